/*
 * remove.c - removals, and what the end of a batch does.
 *
 * Engines remove blocks that stand together, as a rule the deepest first: the
 * neighbours of the last one are looked at before the table is asked. Blocks
 * that nobody holds any more are only noted; they die at the end of the batch,
 * all together, because what an instance loses it may store again, elsewhere,
 * in the same batch.
 */
#include "index/writer.h"

#include "base/alloc.h"
#include "wire/cursor.h"

/* Copies that stay, one for each hash, where the engine says so. */
struct remaining {
    struct kve_reader reader;
    const uint8_t *at;
    size_t left;
};

static void
remaining_begin(struct remaining *r, const struct kve_event *event)
{
    const struct kve_span *raw = &event->remaining_copy_counts;

    *r = (struct remaining){ .at = NULL };
    if (raw->len == 0 || !kve_is_array(raw->data[0]))
        return;
    r->reader.begin = raw->data;
    r->reader.end = raw->data + raw->len;
    r->at = kve_read_count(&r->reader, raw->data, &r->left);
    if (r->at != NULL && r->left != event->n_hashes)
        r->at = NULL;
}

/* false: nobody said. */
static bool
remaining_next(struct remaining *r, uint32_t *ret)
{
    struct kve_number number;

    if (r->at == NULL || r->left == 0 || r->at == r->reader.end ||
        !kve_is_int(*r->at))
        return false;
    r->at = kve_read_number(&r->reader, r->at, &number);
    r->left--;
    if (r->at == NULL || number.negative || number.bits > UINT32_MAX)
        return false;
    *ret = (uint32_t)number.bits;
    return true;
}

/* Where a scope holds a block. */
struct held {
    uint32_t run;
    uint32_t vec;
    uint32_t pos;
    uint32_t rec;
};

static bool
is_held(struct kve_space *space, const struct kve_scope *scope, uint32_t block,
    struct held *ret)
{
    struct kve_place place = kve_place_of(space, block);
    int64_t rec =
        place.run == NULL ? -1 : kve_rec_find(place.run, scope->id, place.vec);

    if (rec < 0 || !kve_rec_holds(place.run, (uint32_t)rec, place.pos))
        return false;
    *ret =
        (struct held){ place.run->obj.id, place.vec, place.pos, (uint32_t)rec };
    return true;
}

static bool
find_held(struct kve_inst *inst, const struct kve_scope *scope,
    const struct kve_hash *hash, struct held *ret)
{
    struct kve_space *space = inst->space;
    uint64_t key = kve_name_key(&space->names, hash, 0);
    uint32_t block = kve_name_find(&space->names, key, hash, 0);

    if (block != KVE_NO_BLOCK && is_held(space, scope, block, ret))
        return true;
    block = kve_known(inst, hash, key);
    return block != KVE_NO_BLOCK && is_held(space, scope, block, ret);
}

/* ---- blocks beside one another ---- */

/* How many of hashes[0..n) are the names of the blocks before p, going back:
 * that of p - 1 first. */
static uint32_t
names_before(const struct kve_space *space, const struct kve_run *run,
    uint32_t vec, uint32_t p, const struct kve_hash *hashes, size_t n)
{
    uint32_t at = p + kve_run_vecs(run)[vec].phase;
    uint32_t most = n < p ? (uint32_t)n : p;
    uint32_t k = 0;

    while (k < most) {
        uint32_t g = (at - 1) / KVE_GRANULE;
        uint32_t live = kve_run_live(run, vec)[g];
        uint32_t granule = atomic_load_explicit(
            &kve_run_granules(run, vec)[g], memory_order_relaxed);

        uintptr_t ref = live != 0 ? kve_page_ref(&space->names, granule) : 0;

        do {
            uint32_t s = --at % KVE_GRANULE;

            if ((live >> s & 1) == 0 ||
                kve_name_form_of(&hashes[k]) != kve_ref_form(ref) ||
                !kve_ref_has(ref, granule + s, &hashes[k]))
                return k;
            k++;
        } while (k < most && at % KVE_GRANULE != 0);
    }
    return k;
}

/* The same for those from p on. */
static uint32_t
names_from(const struct kve_space *space, const struct kve_run *run,
    uint32_t vec, uint32_t p, const struct kve_hash *hashes, size_t n)
{
    uint32_t end = kve_run_n(run);
    uint32_t k = 0;

    while (k < n && p + k < end) {
        uint32_t block = kve_run_block(run, vec, p + k);

        if (block == KVE_NO_BLOCK ||
            !kve_name_is(&space->names, block, &hashes[k]))
            break;
        k++;
    }
    return k;
}

/* The block before the last one that was removed, if the hash is its name. */
static bool
goes_on(struct kve_inst *inst, const struct kve_scope *scope,
    const struct kve_hash *hash, struct held *ret)
{
    struct kve_space *space = inst->space;
    const struct kve_run *run =
        inst->gone_run != 0 ? kve_run_get(space, inst->gone_run) : NULL;
    uint32_t rec = inst->gone_rec;

    if (run == NULL || inst->gone_vec >= run->n_vecs || inst->gone_pos == 0 ||
        inst->gone_pos > kve_run_n(run) || rec >= kve_run_n_recs(run) ||
        KVE_HOT_SCOPE(kve_run_hot(run, rec)) != scope->id ||
        kve_run_recs(run)[rec].vec != inst->gone_vec ||
        !kve_rec_holds(run, rec, inst->gone_pos - 1) ||
        names_before(space, run, inst->gone_vec, inst->gone_pos, hash, 1) == 0)
        return false;
    *ret = (struct held){ inst->gone_run, inst->gone_vec, inst->gone_pos - 1,
        rec };
    return true;
}

/* Take the block that was found, and those beside it that the event names
 * next; returns how many. */
static uint32_t
remove_row(struct kve_inst *inst, const struct held *held,
    const struct kve_hash *hashes, size_t n)
{
    struct kve_space *space = inst->space;
    struct kve_run *run = kve_run_at(space, held->run);
    uint32_t lo = held->pos;
    uint32_t hi = held->pos + 1;
    uint32_t k;

    k = names_before(space, run, held->vec, lo, hashes + 1, n - 1);
    if (kve_run_aux(run, held->rec) == NULL)
        lo -= k; /* it holds all in front of what it holds */
    else
        for (uint32_t i = 0; i < k && kve_rec_holds(run, held->rec, lo - 1);
             i++)
            lo--;
    if (k == 0) {
        k = names_from(space, run, held->vec, hi, hashes + 1, n - 1);
        for (uint32_t i = 0; i < k && kve_rec_holds(run, held->rec, hi); i++)
            hi++;
    }
    inst->gone_run = held->run;
    inst->gone_vec = held->vec;
    inst->gone_pos = lo;
    inst->gone_rec = held->rec;
    kve_hold_take(space, run, held->rec, lo, hi);
    space->apply->done.removed += hi - lo;
    return hi - lo;
}

/* One block, of which so many copies are left. */
static void
remove_to(struct kve_inst *inst, const struct held *held, uint32_t said)
{
    struct kve_space *space = inst->space;
    struct kve_run *run = kve_run_at(space, held->run);
    uint32_t copies = kve_hold_copies(run, held->rec, held->pos);
    uint32_t stay = inst->counts ? said : said > 0;

    kve_hold_set(space, run, held->rec, held->pos, stay);
    space->apply->done.removed += copies > stay ? copies - stay : 0;
}

kve_status
kve_remove(struct kve_inst *inst, struct kve_scope *scope,
    const struct kve_event *event)
{
    struct remaining remaining;
    uint64_t unmatched = 0;
    size_t done;

    remaining_begin(&remaining, event);
    for (size_t i = 0; i < event->n_hashes; i += done) {
        struct held held;
        uint32_t said = 0;
        bool is_said = remaining_next(&remaining, &said);

        done = 1;
        if (!goes_on(inst, scope, &event->hashes[i], &held) &&
            !find_held(inst, scope, &event->hashes[i], &held))
            unmatched++;
        else if (is_said)
            remove_to(inst, &held, said);
        else
            done = remove_row(inst, &held, &event->hashes[i],
                remaining.at != NULL ? 1 : event->n_hashes - i);
    }
    if (unmatched > 0)
        kve_index_count(inst, KVE_COUNTER_INDEX_UNMATCHED, unmatched);
    return KVE_OK;
}

/* ---- the end of a batch ---- */

#define TOGETHER 4 /* granules whose buckets are fetched at a time */

/* Blocks of one granule that nobody holds any more. */
struct burial {
    struct kve_run *run;
    uint32_t vec;
    uint32_t g;
    uint32_t mask;
    uint64_t keys[KVE_GRANULE];
};

static bool
burial_begin(struct kve_space *space, uint32_t granule, uint32_t mask,
    struct burial *ret)
{
    struct kve_place place = kve_place_of(space, granule);
    struct kve_granule_home *home;

    if (place.run == NULL)
        return false;
    home = kve_home_of(&space->names, granule);
    ret->g = atomic_load_explicit(&home->place, memory_order_relaxed);
    /* It may be another's by now. */
    if (ret->g >= place.run->n_granules ||
        atomic_load_explicit(&kve_run_granules(place.run, place.vec)[ret->g],
            memory_order_relaxed) != granule)
        return false;
    mask &= kve_run_live(place.run, place.vec)[ret->g];
    mask &= ~kve_hold_mask(place.run, place.vec, ret->g, mask);
    ret->run = place.run;
    ret->vec = place.vec;
    ret->mask = mask;
    kve_name_fetch(space, granule, mask, ret->keys);
    return mask != 0;
}

static void
bury_some(struct kve_space *space, const uint32_t *marks, size_t n)
{
    struct kve_ids *idle = &space->apply->idle;
    struct burial burials[TOGETHER];
    size_t n_burials = 0;

    for (size_t i = 0; i < n; i += 2)
        n_burials +=
            burial_begin(space, marks[i], marks[i + 1], &burials[n_burials]);
    for (size_t i = 0; i < n_burials; i++) {
        const struct burial *b = &burials[i];
        /* The same granule may have been marked twice. */
        uint32_t mask = b->mask & kve_run_live(b->run, b->vec)[b->g];

        if (mask == 0)
            continue;
        kve_name_kill_fetched(space, b->run, b->vec, b->g, mask, b->keys);
        if (idle->n == 0 || idle->ids[idle->n - 1] != b->run->obj.id)
            kve_ids_add(idle, b->run->obj.id);
    }
}

static void
bury(struct kve_space *space)
{
    struct kve_ids *dead = &space->apply->dead;

    for (size_t i = 0; i < dead->n; i += 2 * TOGETHER)
        bury_some(space, dead->ids + i,
            dead->n - i < 2 * TOGETHER ? dead->n - i : 2 * TOGETHER);
    dead->n = 0;
}

/* Lists that a great batch made large are given back. */
static void
trim_list(struct kve_ids *list)
{
    list->n = 0;
    if (list->cap > 65536)
        kve_ids_release(list);
}

void
kve_apply_forget(struct kve_space *space)
{
    struct kve_apply *apply = space->apply;

    if (apply->lost_cap > 0) {
        kve_mem_discharge(
            apply->lost.mem, apply->lost_cap * sizeof(*apply->lost_set));
        kve_mem_free(apply->lost_set);
        apply->lost_set = NULL;
        apply->lost_cap = 0;
        apply->lost_seen = 0;
    }
    trim_list(&apply->lost);
}

void
kve_apply_finish(struct kve_space *space)
{
    struct kve_apply *apply = space->apply;

    bury(space);
    for (size_t i = 0; i < apply->idle.n; i++)
        if (i == 0 || apply->idle.ids[i] != apply->idle.ids[i - 1])
            kve_run_join(space, kve_run_finish(space, apply->idle.ids[i]));
    kve_apply_forget(space);
    trim_list(&apply->dead);
    trim_list(&apply->idle);
    trim_list(&apply->work);
}
