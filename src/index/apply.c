/*
 * apply.c - the events of a batch, one after another.
 *
 * Tokens are hashed before the namespace's lock is taken, for the first stores
 * of a batch (64, or 16,384 blocks); what comes behind them is hashed under it.
 * The scratch for that is kept with the index, for as many threads as usually
 * apply at once.
 */
#include "index/writer.h"

#include "base/alloc.h"
#include "base/status.h"

#include <stddef.h>
#include <string.h>

#define HASHED_AHEAD 64

/* Size of the first release's view. */
#define VIEW_MIN (offsetof(struct kve_batch_view, event_size) + sizeof(size_t))
#define BLOCKS_AHEAD 16384u
#define KEPT_BYTES 262144u

struct kve_prep {
    struct kve_event_content stores[HASHED_AHEAD];
    struct kve_event_content late; /* for those beyond */
    size_t n;
    uint64_t charged; /* while it is kept */
};

/* ---- scratch ---- */

kve_status
kve_apply_create(struct kve_space *space)
{
    struct kve_apply *apply = kve_mem_zalloc(1, sizeof(*apply));

    if (apply == NULL)
        return KVE_E_NOMEM;
    apply->dead.mem = &space->index->mem;
    apply->idle.mem = &space->index->mem;
    apply->lost.mem = &space->index->mem;
    apply->work.mem = &space->index->mem;
    space->apply = apply;
    return KVE_OK;
}

void
kve_apply_destroy(struct kve_space *space)
{
    struct kve_apply *apply = space->apply;
    struct kve_mem_shared *mem = &space->index->mem;

    if (apply == NULL)
        return;
    kve_ids_release(&apply->dead);
    kve_ids_release(&apply->idle);
    kve_ids_release(&apply->lost);
    kve_ids_release(&apply->work);
    kve_mem_discharge(
        mem, (apply->cap_keys + apply->cap_dynamo) * sizeof(uint64_t));
    kve_mem_free(apply->keys);
    kve_mem_free(apply->dynamo);
    kve_mem_free(apply);
    space->apply = NULL;
}

static bool
reserve(struct kve_space *space, uint64_t **array, size_t *cap, size_t n)
{
    struct kve_mem_shared *mem = &space->index->mem;
    size_t want = *cap == 0 ? 64 : *cap;
    uint64_t *grown;

    while (want < n)
        want *= 2;
    if (want == *cap)
        return true;
    grown = kve_charged_array(mem, *array, *cap, want, sizeof(*grown));
    if (grown == NULL)
        return false;
    *array = grown;
    *cap = want;
    return true;
}

/* What a great event made large is given back. */
static void
trim_scratch(struct kve_space *space)
{
    struct kve_apply *apply = space->apply;

    if (apply->cap_dynamo <= KVE_RUN_MAX)
        return;
    kve_mem_discharge(&space->index->mem, apply->cap_dynamo * sizeof(uint64_t));
    kve_mem_free(apply->dynamo);
    apply->dynamo = NULL;
    apply->cap_dynamo = 0;
}

bool
kve_apply_keys(struct kve_space *space, size_t n)
{
    return reserve(space, &space->apply->keys, &space->apply->cap_keys, n);
}

bool
kve_apply_dynamo(struct kve_space *space, size_t n)
{
    return reserve(space, &space->apply->dynamo, &space->apply->cap_dynamo, n);
}

/* ---- hashing ahead ---- */

static void
prep_free(kve_index *index, struct kve_prep *prep)
{
    if (prep == NULL)
        return;
    kve_mem_discharge(&index->mem, prep->charged);
    for (size_t i = 0; i < HASHED_AHEAD; i++)
        kve_event_content_release(&prep->stores[i]);
    kve_event_content_release(&prep->late);
    kve_mem_free(prep);
}

void
kve_preps_free(kve_index *index)
{
    for (size_t i = 0; i < KVE_INDEX_PREPS; i++)
        prep_free(index, atomic_exchange(&index->preps[i], NULL));
}

static struct kve_prep *
prep_take(kve_index *index)
{
    struct kve_prep *prep = NULL;

    for (size_t i = 0; i < KVE_INDEX_PREPS && prep == NULL; i++)
        prep = atomic_exchange_explicit(
            &index->preps[i], NULL, memory_order_acq_rel);
    if (prep == NULL)
        return kve_mem_zalloc(1, sizeof(*prep));
    /* In use it is the caller's, like his batch. */
    kve_mem_discharge(&index->mem, prep->charged);
    prep->charged = 0;
    return prep;
}

/* What is kept for the next batch counts, and is little. */
static bool
prep_charge(kve_index *index, struct kve_prep *prep)
{
    const struct kve_event_content *late = &prep->late;
    uint64_t bytes =
        sizeof(*prep) + late->cap * sizeof(uint64_t) + late->bytes_cap;

    for (size_t i = 0; i < HASHED_AHEAD; i++)
        bytes +=
            prep->stores[i].cap * sizeof(uint64_t) + prep->stores[i].bytes_cap;
    if (bytes > KEPT_BYTES || !kve_mem_charge(&index->mem, bytes))
        return false;
    prep->charged = bytes;
    return true;
}

static void
prep_give(kve_index *index, struct kve_prep *prep)
{
    if (!prep_charge(index, prep)) {
        prep_free(index, prep);
        return;
    }
    for (size_t i = 0; i < KVE_INDEX_PREPS && prep != NULL; i++)
        prep = atomic_exchange_explicit(
            &index->preps[i], prep, memory_order_acq_rel);
    prep_free(index, prep);
}

/* ---- one event ---- */

/* A batch on its way. */
struct batch {
    kve_index *index;
    struct kve_inst *inst;
    bool has_id; /* it has a publisher id */
    const uint64_t *contents;
    size_t n_contents;
    size_t next_content;
    struct kve_prep *prep;
    size_t next_store;
    kve_status status;
};

static const struct kve_event *
event_at(const struct kve_batch_view *view, size_t i)
{
    size_t size =
        view->event_size != 0 ? view->event_size : sizeof(struct kve_event);

    return (const struct kve_event *)(const void *)((const char *)view->events +
        i * size);
}

static void
refuse(struct batch *b, enum kve_counter why)
{
    kve_index_count(b->inst, why, 1);
    b->inst->space->apply->done.refused++;
}

static void
refuse_for(struct batch *b, kve_status status)
{
    refuse(b,
        status == KVE_E_LIMIT ? KVE_COUNTER_INDEX_REFUSED_SCOPES
                              : KVE_COUNTER_INDEX_REFUSED_MEMORY);
    if (status == KVE_E_NOMEM && b->index->mem.max_bytes == 0)
        b->status = KVE_E_NOMEM;
    else if (status == KVE_E_NOMEM)
        b->inst->space->short_of = b->index->mem.max_bytes / 16;
}

/* Contents that came with the event. */
static bool
given_content(struct batch *b, const struct kve_event *event,
    struct kve_event_content *content)
{
    size_t left = b->n_contents - b->next_content;

    memset(content, 0, sizeof(*content));
    content->lora = event->lora_name;
    content->salt = event->cache_salt;
    content->complete = event->n_hashes > 0 && event->block_size > 0;
    if (!content->complete)
        return true;
    if (event->n_hashes > left)
        return false;
    content->hashes = b->contents + b->next_content;
    b->next_content += event->n_hashes;
    return true;
}

static const struct kve_event_content *
content_of(struct batch *b, const struct kve_event *event)
{
    struct kve_event_content *content;

    if (b->next_store < b->prep->n)
        return &b->prep->stores[b->next_store++];
    content = &b->prep->late;
    return kve_event_content_read(content, event) == KVE_OK ? content : NULL;
}

/* Bytes that a store may need, generously. */
static uint64_t
need_of(const struct kve_event *event)
{
    uint64_t need = 65536 + event->lora_name.len + event->cache_salt.len +
        event->n_hashes * (uint64_t)96;

    if (event->block_size > 0)
        need += event->n_skipped_tokens / event->block_size * (uint64_t)48;
    if (event->has_parent && event->parent.bytes != NULL)
        need += event->parent.len;
    for (size_t i = 0; i < event->n_hashes; i++)
        if (event->hashes[i].bytes != NULL)
            need += event->hashes[i].len + (uint64_t)32;
    return need;
}

/* Would the store alone take half of the limit? Everything else would be
 * forgotten for it. */
static bool
is_too_large(const kve_index *index, const struct kve_event *event)
{
    uint64_t max = index->mem.max_bytes;

    return max != 0 &&
        (event->n_hashes > max / 192 || need_of(event) > max / 2);
}

/* Stay below the limit before the event, not in its middle. What was short for
 * the last one, as great objects that have to be copied may be, counts for
 * this one. */
static void
make_room(struct kve_space *space, const struct kve_event *event)
{
    uint64_t more = space->short_of;

    if (space->index->mem.max_bytes == 0)
        return;
    space->short_of = 0;
    (void)kve_make_room(space, (size_t)(need_of(event) + more));
}

static void
apply_store(struct batch *b, const struct kve_event *event)
{
    struct kve_inst *inst = b->inst;
    struct kve_space *space = inst->space;
    struct kve_event_content given;
    const struct kve_event_content *content = &given;
    struct kve_scope *scope;
    kve_status status = KVE_OK;

    if (b->contents != NULL && !given_content(b, event, &given)) {
        refuse(b, KVE_COUNTER_INDEX_REFUSED_SHAPE);
        return;
    }
    /* No content was made ahead for it, nor for any store behind it. */
    if (is_too_large(b->index, event)) {
        refuse(b, KVE_COUNTER_INDEX_REFUSED_MEMORY);
        return;
    }
    if (b->contents == NULL && (content = content_of(b, event)) == NULL) {
        refuse_for(b, KVE_E_NOMEM);
        return;
    }
    status = kve_group_learn(inst, event);
    if (status != KVE_OK) {
        refuse_for(b, status);
        return;
    }
    if (content->tokens_left)
        kve_index_count(inst, KVE_COUNTER_INDEX_UNITS_REST, 1);
    if (event->n_hashes == 0)
        return;
    if (event->n_hashes > UINT32_MAX ||
        (content->complete && !kve_space_size(space, event->block_size))) {
        refuse(b, KVE_COUNTER_INDEX_REFUSED_SHAPE);
        return;
    }
    make_room(space, event);
    scope = kve_scope_of(inst, event, true, &status);
    if (scope != NULL)
        status = kve_store(inst, scope, event, content);
    if (status != KVE_OK)
        refuse_for(b, status);
    space->work += event->n_hashes;
}

static void
apply_remove(struct batch *b, const struct kve_event *event)
{
    struct kve_inst *inst = b->inst;
    kve_status status;
    struct kve_scope *scope = kve_scope_of(inst, event, false, &status);

    if (scope != NULL)
        kve_remove(inst, scope, event);
    else
        kve_index_count(inst, KVE_COUNTER_INDEX_UNMATCHED, event->n_hashes);
    inst->space->work += event->n_hashes;
}

static void
apply_clear(struct batch *b, const struct kve_event *event)
{
    struct kve_inst *inst = b->inst;
    uint32_t rule = b->index->opts.clearing;
    uint32_t tiers = UINT32_MAX;

    if (event->type == KVE_EVENT_TIER_CLEARED)
        inst = kve_inst_clear_medium(inst, event->medium, event->ownership);
    else if (event->ownership.len > 0)
        inst = kve_inst_clear_owner(inst, event->ownership);
    else {
        if (rule == KVE_CLEARING_GPU || (rule != KVE_CLEARING_ALL && b->has_id))
            tiers = 1u << KVE_TIER_GPU;
        inst = kve_inst_clear_tiers(inst, tiers);
    }
    b->inst = inst;
    inst->space->apply->inst = inst;
    /* A clear forgets at once, what was lost before it too. */
    kve_apply_finish(inst->space);
    kve_index_count(inst, KVE_COUNTER_INDEX_CLEARS, 1);
    inst->space->apply->done.cleared++;
}

static void
apply_event(struct batch *b, const struct kve_event *event)
{
    switch (event->type) {
    case KVE_EVENT_STORED:
        apply_store(b, event);
        break;
    case KVE_EVENT_REMOVED:
        apply_remove(b, event);
        break;
    case KVE_EVENT_CLEARED:
    case KVE_EVENT_TIER_CLEARED:
        apply_clear(b, event);
        break;
    default:
        refuse(b, KVE_COUNTER_INDEX_REFUSED_SHAPE);
        break;
    }
    kve_index_count(b->inst, KVE_COUNTER_INDEX_EVENTS, 1);
}

/* ---- one batch ---- */

static void
apply_begin(struct batch *b)
{
    struct kve_apply *apply = b->inst->space->apply;

    apply->inst = b->inst;
    memset(&apply->done, 0, sizeof(apply->done));
}

static void
apply_end(struct batch *b, struct kve_index_applied *ret_applied)
{
    struct kve_space *space = b->inst->space;
    struct kve_apply *apply = space->apply;
    size_t size =
        ret_applied != NULL ? ret_applied->struct_size : sizeof(apply->done);

    kve_apply_finish(space);
    trim_scratch(space);
    apply->inst = NULL;
    b->inst->batches++;
    kve_index_count(b->inst, KVE_COUNTER_INDEX_BATCHES, 1);
    kve_index_count(b->inst, KVE_COUNTER_INDEX_STORED, apply->done.stored);
    kve_index_count(b->inst, KVE_COUNTER_INDEX_REMOVED, apply->done.removed);
    if (ret_applied == NULL)
        return;
    apply->done.struct_size = size;
    memcpy(ret_applied, &apply->done,
        size == 0 || size > sizeof(apply->done) ? sizeof(apply->done) : size);
}

/* Lock the life that the batch is for. */
static kve_status
lock_inst(kve_index *index, kve_instance instance, struct kve_int rank,
    struct kve_inst **ret_inst, struct kve_error *err)
{
    struct kve_inst *inst = kve_inst_lock(index, instance);
    bool twin = (instance & KVE_TWIN) != 0;

    if (inst != NULL && rank.set && !twin &&
        rank.value != (int64_t)inst->slot->rank) {
        kve_status status;

        kve_space_unlock(inst->space);
        if (rank.value < 0 || rank.value > UINT32_MAX)
            return kve_fail(err, KVE_E_INVAL,
                "the batch names rank %lld; accepted are 0 to %u",
                (long long)rank.value, UINT32_MAX);
        status = kve_index_rank(
            index, instance, (uint32_t)rank.value, &instance, err);
        if (status != KVE_OK)
            return status;
        inst = kve_inst_lock(index, instance);
    }
    if (inst == NULL)
        return kve_fail(err, KVE_E_NOT_FOUND,
            "no such instance in this index; it was dropped, or never added");
    if (inst->space->apply == NULL && kve_apply_create(inst->space) != KVE_OK) {
        kve_space_unlock(inst->space);
        return kve_fail_nomem(err, "the writer's scratch");
    }
    *ret_inst = inst;
    return KVE_OK;
}

/* Hash the first stores; false: no memory for the scratch. */
static bool
hash_ahead(struct batch *b, const struct kve_batch_view *events)
{
    uint64_t blocks = 0;

    for (size_t i = 0; i < events->n_events; i++) {
        const struct kve_event *event = event_at(events, i);

        if (event->type != KVE_EVENT_STORED)
            continue;
        if (b->prep == NULL) {
            b->prep = prep_take(b->index);
            if (b->prep == NULL)
                return false;
            b->prep->n = 0;
        }
        blocks += event->n_hashes;
        if (b->prep->n == HASHED_AHEAD || blocks > BLOCKS_AHEAD ||
            is_too_large(b->index, event) ||
            kve_event_content_read(&b->prep->stores[b->prep->n], event) !=
                KVE_OK)
            break;
        b->prep->n++;
    }
    return true;
}

kve_status
kve_index_apply(kve_index *index, kve_instance instance,
    const struct kve_batch_view *events, const uint64_t *contents,
    size_t n_contents, struct kve_index_applied *ret_applied,
    struct kve_error *err)
{
    struct batch b = { index, NULL, false, contents, n_contents, 0, NULL, 0,
        KVE_OK };
    struct kve_batch_view view;
    kve_status status;

    if (events->struct_size != sizeof(*events)) {
        status = kve_opts_read(
            events, VIEW_MIN, &view, sizeof(view), "kve_batch_view", err);
        if (status != KVE_OK)
            return status;
        events = &view;
    }
    if (events->event_size != 0 &&
        events->event_size < sizeof(struct kve_event))
        return kve_fail(err, KVE_E_INVAL,
            "event_size is %zu; it is the size of struct kve_event, at least "
            "%zu",
            events->event_size, sizeof(struct kve_event));
    b.has_id = events->publisher_id != NULL;
    if (contents == NULL && !hash_ahead(&b, events))
        return kve_fail_nomem(err, "content hashes");
    status = lock_inst(index, instance, events->rank, &b.inst, err);
    if (status == KVE_OK) {
        apply_begin(&b);
        for (size_t i = 0; i < events->n_events; i++)
            apply_event(&b, event_at(events, i));
        apply_end(&b, ret_applied);
        kve_space_unlock(b.inst->space);
        status = b.status;
        if (status != KVE_OK)
            kve_fail_nomem(err, "blocks; what could not be stored is missing");
    }
    if (b.prep != NULL)
        prep_give(index, b.prep);
    return status;
}

kve_status
kve_index_apply_batch(kve_index *index, kve_instance instance, kve_batch *batch,
    struct kve_index_applied *ret_applied, struct kve_error *err)
{
    const struct kve_batch_info *info = kve_batch_get_info(batch);
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;

    kve_batch_rewind(batch);
    view.ts = info->ts;
    view.rank = info->rank;
    view.publisher_id = info->publisher_id;
    /* Decoded events lie in a row; the first one's address is theirs all. */
    view.n_events = info->n_events;
    view.events = kve_batch_next(batch);
    while (kve_batch_next(batch) != NULL)
        continue;
    return kve_index_apply(index, instance, &view, NULL, 0, ret_applied, err);
}
