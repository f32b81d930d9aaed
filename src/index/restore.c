/*
 * restore.c - what a dump said, given back.
 *
 * All of it is one batch under the namespace's lock. A run of the dump is put
 * behind the end of its parent, with its contents first and whatever is held
 * of it then, a row of equal copies at a time. Its end is the end of a run of
 * ours, and no run grows behind one (kve_store_run()), so that the end is
 * known by the run's id, whatever else is cut: a cut leaves the id with the
 * tail. What nobody holds in the end is taken away with the end of the batch,
 * as always, and runs that need not be two are joined.
 *
 * A hash has one place. A dump says so; what says otherwise is refused before
 * anything is joined or moved for it.
 */
#include "base/status.h"
#include "index/writer.h"

#include <string.h>

/* Instead of a run's end. */
#define NO_MEMORY 0u
#define HASH_ONLY UINT32_MAX /* it has no place */

/* What is being given back. */
struct restore {
    struct kve_inst *inst;
    struct kve_ids ends;      /* by run of the dump: our run that ends there */
    struct kve_index_run run; /* the one that was said last */
    bool has_run;
    bool placed;           /* it has a place */
    struct kve_spot start; /* what it stands behind */
    kve_status status;
    struct kve_error *err;
};

/* The end of it: status, and why. */
static bool
refuse(struct restore *r, kve_status status, const char *why)
{
    r->status = kve_fail(r->err, status, "%s (run %zu of the dump)", why,
        r->ends.n + (r->has_run ? 0 : 1));
    return false;
}

/* No memory: with max_bytes it is forgotten, as what was evicted. */
static bool
lose(struct restore *r, uint64_t copies)
{
    if (r->inst->space->index->mem.max_bytes == 0)
        return refuse(r, KVE_E_NOMEM, "out of memory: blocks of a dump");
    kve_index_count(r->inst, KVE_COUNTER_INDEX_EVICTED, copies);
    return true;
}

/* ---- runs ---- */

/* What the run stands behind. *ret_there false: it has no place. */
static bool
find_start(struct restore *r, const struct kve_index_run *run, bool *ret_there)
{
    struct kve_inst *inst = r->inst;

    *ret_there = true;
    r->start = (struct kve_spot){ 0, 0, 0 };
    if (run->parent != 0) {
        if (run->parent > r->ends.n)
            return refuse(r, KVE_E_INVAL, "a run before its parent");
        r->start.run = r->ends.ids[run->parent - 1];
        if (r->start.run == HASH_ONLY)
            return refuse(r, KVE_E_INVAL, "a run behind one without order");
        if (r->start.run == NO_MEMORY)
            *ret_there = false;
        else
            r->start.pos = kve_run_n(kve_run_at(inst->space, r->start.run)) - 1;
    } else if (run->rooted) {
        struct kve_root *root =
            kve_root_of(inst->space, run->lora_name, run->cache_salt, true);

        *ret_there = root != NULL;
        if (root != NULL)
            r->start.parent = KVE_PARENT_ROOT | root->id;
    } else {
        struct kve_wait *wait = kve_wait_of(inst, &run->waits_for, true);

        *ret_there = wait != NULL;
        if (wait != NULL)
            r->start.parent = KVE_PARENT_WAIT | wait->id;
    }
    return true;
}

/* Its contents, behind what it stands behind; returns our run that ends with
 * them, or NO_MEMORY. */
static uint32_t
place_run(struct restore *r, const struct kve_index_run *run)
{
    struct kve_space *space = r->inst->space;
    struct kve_spot at = r->start;
    bool ok = kve_store_run(space, &at, run);

    if (at.run != 0)
        kve_ids_add(&space->apply->idle, at.run);
    if (ok)
        return at.run;
    kve_store_leave(r->inst, &r->start);
    return NO_MEMORY;
}

static bool
check_run(struct restore *r, const struct kve_index_run *run)
{
    if (run->n_blocks == 0 || run->n_blocks > UINT32_MAX)
        return refuse(r, KVE_E_INVAL, "a run without blocks, or too many");
    if (run->taught && (run->contents == NULL || run->block_size == 0))
        return refuse(r, KVE_E_INVAL, "a run without contents");
    if (run->taught && !kve_space_size(r->inst->space, run->block_size))
        return refuse(r, KVE_E_LIMIT, "too many block sizes");
    return true;
}

static bool
on_run(void *ctx, const struct kve_index_run *run)
{
    struct restore *r = ctx;
    struct kve_event event = { .type = KVE_EVENT_STORED,
        .block_size = run->block_size };
    uint32_t end = run->taught ? NO_MEMORY : HASH_ONLY;
    bool there = false;

    r->has_run = false;
    if (r->status != KVE_OK || !check_run(r, run) ||
        (run->taught && !find_start(r, run, &there)))
        return false;
    if (run->taught)
        (void)kve_group_note(r->inst, &event); /* its block size */
    if (there)
        end = place_run(r, run);
    if (end == NO_MEMORY && !lose(r, 0))
        return false;
    if (!kve_ids_add(&r->ends, end))
        return refuse(r, KVE_E_NOMEM, "out of memory: runs of a dump");
    r->run = *run;
    r->has_run = true;
    r->placed = end != NO_MEMORY && end != HASH_ONLY;
    return true;
}

/* ---- what is held ---- */

/* How many blocks from i on have as many copies as the first of them. */
static uint32_t
row_of(const struct kve_index_held *held, uint32_t i)
{
    uint32_t k = 1;

    while (i + k < held->n_blocks && held->copies[i + k] == held->copies[i])
        k++;
    return k;
}

static kve_status
hold_loose(struct restore *r, struct kve_scope *scope,
    const struct kve_index_held *held, uint32_t i, uint32_t k)
{
    kve_status status = KVE_OK;

    for (uint32_t end = i + k; i < end && status == KVE_OK; i++)
        status =
            kve_store_loose(r->inst, scope, &held->hashes[i], held->copies[i]);
    return status;
}

/* A row: 0 copies are passed. */
static kve_status
hold_row(struct restore *r, struct kve_scope *scope, struct kve_spot *at,
    const struct kve_index_held *held, uint32_t i, uint32_t k)
{
    if (!r->run.taught)
        return held->copies[i] == 0 ? KVE_OK : hold_loose(r, scope, held, i, k);
    if (!r->placed)
        return held->copies[i] == 0 ? KVE_OK : KVE_E_NOMEM;
    if (held->copies[i] == 0)
        return kve_store_pass(r->inst->space, at, &r->run, i, k) ? KVE_OK
                                                                 : KVE_E_NOMEM;
    return kve_store_held(
        r->inst, scope, at, &r->run, i, k, held->hashes + i, held->copies[i]);
}

static bool
on_held(void *ctx, const struct kve_index_held *held)
{
    struct restore *r = ctx;
    struct kve_event event = { .type = KVE_EVENT_STORED,
        .medium = held->medium,
        .locality = held->locality,
        .ownership = held->ownership,
        .group_idx = held->group };
    struct kve_spot at = r->start;
    struct kve_scope *scope;
    kve_status status = KVE_OK;

    if (r->status != KVE_OK)
        return false;
    if (!r->has_run || held->n_blocks != r->run.n_blocks)
        return refuse(r, KVE_E_INVAL, "blocks of no run, or of another one");
    scope = kve_scope_of(r->inst, &event, true, &status);
    if (scope == NULL && status == KVE_E_LIMIT)
        return refuse(r, status, "too many scopes");
    for (uint32_t i = 0, k; i < held->n_blocks; i += k) {
        k = row_of(held, i);
        status =
            scope == NULL ? KVE_E_NOMEM : hold_row(r, scope, &at, held, i, k);
        if (status == KVE_E_INVAL)
            return refuse(r, status, "a hash that has two places");
        /* Where the cursor stands is not known then. */
        if (status != KVE_OK) {
            uint64_t copies = 0;

            for (; i < held->n_blocks; i++)
                copies += held->copies[i];
            return lose(r, copies);
        }
    }
    return true;
}

static bool
on_skipped(void *ctx, const struct kve_index_skipped *skipped)
{
    struct restore *r = ctx;

    if (r->status != KVE_OK)
        return false;
    /* Without it answers are too small, never too large. */
    (void)kve_bridge_add(r->inst, &skipped->over, skipped->n_blocks);
    return true;
}

/* ---- groups ---- */

static bool
learn(struct restore *r, const struct kve_index_group *groups, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct kve_event event = { .type = KVE_EVENT_STORED,
            .block_size = groups[i].block_size,
            .group_idx = groups[i].group,
            .spec_kind = groups[i].kind,
            .sliding_window = { groups[i].window, groups[i].window != 0 },
            /* Tokens of no hash: what a sparse group's stores have. */
            .n_tokens = groups[i].sparse ? 1 : 0 };
        kve_status status = kve_group_note(r->inst, &event);

        if (status != KVE_OK)
            return refuse(r, status,
                status == KVE_E_LIMIT ? "too many groups"
                                      : "out of memory: groups of a dump");
    }
    return true;
}

/* ---- the whole ---- */

static bool
holds_nothing(const struct kve_inst *inst)
{
    for (uint32_t i = 0; i < inst->n_scopes; i++)
        if (inst->scopes[i]->held > 0)
            return false;
    return true;
}

static void
restore(struct restore *r, const struct kve_index_group *groups,
    size_t n_groups, bool (*say)(void *ctx, const struct kve_index_dump *to),
    void *ctx)
{
    struct kve_space *space = r->inst->space;
    struct kve_apply *apply = space->apply;
    struct kve_index_dump to = { sizeof(to), r, on_run, on_held, on_skipped };

    apply->inst = r->inst;
    memset(&apply->done, 0, sizeof(apply->done));
    r->ends.mem = &space->index->mem;
    if (learn(r, groups, n_groups) && !say(ctx, &to) && r->status == KVE_OK)
        r->status = KVE_E_CLOSED;
    kve_ids_release(&r->ends);
    kve_apply_finish(space);
    kve_index_count(r->inst, KVE_COUNTER_INDEX_STORED, apply->done.stored);
    space->work += apply->done.stored;
    apply->inst = NULL;
}

kve_status
kve_index_restore(kve_index *index, kve_instance instance,
    const struct kve_index_group *groups, size_t n_groups,
    bool (*say)(void *ctx, const struct kve_index_dump *to), void *ctx,
    struct kve_error *err)
{
    struct restore r = { .status = KVE_OK, .err = err };

    r.inst = kve_inst_lock(index, instance);
    if (r.inst == NULL)
        return kve_fail(err, KVE_E_NOT_FOUND,
            "no such instance in this index; it was dropped, or never added");
    if (r.inst->space->apply == NULL &&
        kve_apply_create(r.inst->space) != KVE_OK)
        r.status = kve_fail_nomem(err, "the writer's scratch");
    else if (!holds_nothing(r.inst))
        r.status = kve_fail(err, KVE_E_INVAL,
            "the instance holds blocks; give a dump back to a new one, or to "
            "a twin");
    else
        restore(&r, groups, n_groups, say, ctx);
    kve_space_unlock(r.inst->space);
    return r.status;
}
