/*
 * evict.c - taking away what is held without an event: lives that are over,
 * and runs that must go to stay below a limit.
 *
 * Eviction goes round all runs like the hand of a clock. One that was stored
 * to since the hand passed is given another round; one that something stands
 * behind is passed over; any other is forgotten, by everybody, and then the run
 * before it, if nothing else stands behind that one and it was not stored to
 * either. So chains go from their ends, the least recently stored first, and
 * what is left of them is still a prefix; and a chain of many runs takes no
 * more rounds than a short one.
 *
 * Who goes. Lives that are over first. Then runs of the namespace that has
 * most of the budget: the one that asks, unless another has clearly more, which
 * then gives, wherever it rests. So none that is busy can keep others out, and
 * none that rests can keep what the others need. One that has less than the one
 * that asks gives only to one that has nothing left to forget: else two that
 * are equally busy would not stay equal.
 *
 * What is forgotten is not room yet: it is places in slabs of many classes,
 * and none of these may have enough of them to empty one. So more is forgotten,
 * within bounds, before somebody else is asked.
 */
#include "index/writer.h"

/* What a record holds, at most this many blocks, from the end, so that no hole
 * needs memory. */
static size_t
drop_record(struct kve_space *space, uint32_t id, uint32_t rec, size_t most,
    bool evicted)
{
    struct kve_run *run = kve_run_get(space, id);
    struct kve_scope *scope =
        kve_dir_get(&space->scopes, KVE_HOT_SCOPE(kve_run_hot(run, rec)));
    uint32_t lead = KVE_HOT_LEAD(kve_run_hot(run, rec));
    uint64_t copies = 0;
    size_t n = 0;

    if (kve_run_aux(run, rec) == NULL &&
        kve_run_recs(run)[rec].vec != KVE_NO_VEC && lead > 0) {
        n = lead < most ? lead : most;
        copies = n;
        kve_hold_take(space, run, rec, lead - (uint32_t)n, lead);
    }
    for (uint32_t p = n > 0 ? 0 : kve_hold_end(run, rec);
         n < most && p-- > 0;) {
        uint32_t c = kve_hold_copies(run, rec, p);

        if (c == 0)
            continue;
        copies += c;
        n++;
        kve_hold_set(space, run, rec, p, 0);
    }
    if (evicted && scope->tier != KVE_TIER_BRIDGE)
        kve_index_count(scope->inst, KVE_COUNTER_INDEX_EVICTED, copies);
    kve_ids_add(&space->apply->idle, id);
    return n;
}

bool
kve_scope_drain(
    struct kve_space *space, struct kve_scope *scope, size_t max_blocks)
{
    size_t done = 0;

    while (scope->first_run != 0 && done < max_blocks) {
        uint32_t id = scope->first_run;

        done +=
            drop_record(space, id, scope->first_rec, max_blocks - done, false) +
            1;
        kve_apply_finish(space);
        /* Without memory for the list it was not looked at yet. */
        if (scope->first_run == id)
            kve_run_finish(space, id);
    }
    return scope->first_run == 0;
}

/* Forget a run that nothing stands behind. */
static void
evict_run(struct kve_space *space, struct kve_run *run)
{
    uint32_t id = run->obj.id;
    uint32_t n = kve_run_n_recs(run);

    for (uint32_t i = 0; i < n; i++)
        if (kve_run_hot(run, i) != 0)
            drop_record(space, id, i, SIZE_MAX, true);
    /* At once, not at the end of the batch: the memory is needed now. */
    for (uint32_t v = 0; v < run->n_vecs; v++)
        for (uint32_t p = 0;
             kve_run_vecs(run)[v].live > 0 && p < kve_run_n(run); p++)
            if (kve_run_block(run, v, p) != KVE_NO_BLOCK)
                kve_name_kill(space, run, v, p);
    kve_run_finish(space, id);
}

/* Forget the run and those before it, from the end of the chain on; true:
 * that is enough. */
static bool
evict_chain(struct kve_space *space, uint32_t id, uint64_t live_after)
{
    while (id != 0) {
        struct kve_run *run = kve_run_get(space, id);
        uint32_t parent;

        if (run == NULL || run->n_children > 0 ||
            (run->flags & KVE_RUN_TOUCHED) != 0)
            return false;
        parent = kve_run_parent(run);
        evict_run(space, run);
        kve_pool_settle(space->pool);
        if (kve_pool_use(space->pool).live <= live_after)
            return true;
        id = (parent & KVE_PARENT_KIND) == KVE_PARENT_RUN
            ? KVE_PARENT_ID(parent)
            : 0;
    }
    return false;
}

bool
kve_evict(struct kve_space *space, size_t bytes)
{
    uint64_t live = kve_pool_use(space->pool).live;
    uint64_t live_after = live > bytes ? live - bytes : 0;
    uint32_t top = space->runs.next;
    bool enough = false;

    for (uint64_t looked = 0; looked < 2 * (uint64_t)top && !enough; looked++) {
        struct kve_run *run;

        if (++space->hand >= top)
            space->hand = 1;
        run = space->hand < top ? kve_run_get(space, space->hand) : NULL;
        if (run == NULL)
            continue;
        if ((run->flags & KVE_RUN_TOUCHED) != 0)
            run->flags &= ~KVE_RUN_TOUCHED;
        else
            enough = evict_chain(space, space->hand, live_after);
    }
    /* Ids of what went may be another's soon. */
    kve_apply_forget(space);
    return enough;
}

/* ---- room below the limit ---- */

#define DRAIN_BLOCKS 4096u
#define COMPACT_ROUNDS 32u
/* One is enough nearly always. Each takes twice what the one before took, and
 * none is begun when a sixteenth of the limit and what is asked went. */
#define EVICT_ROUNDS 6u
#define EVICT_PART 16u
/* What another namespace gives more than what is asked: it is not disturbed
 * for each event. */
#define GIVE_MORE ((size_t)262144)

/* Compact until there is room or nothing more to move, all rounds together
 * below a limit. */
static bool
compact_for(struct kve_space *victim, struct kve_space *space, size_t bytes,
    size_t give, uint32_t *rounds)
{
    kve_pool_settle(victim->pool);
    while (!kve_pool_room(space->pool, bytes)) {
        if (*rounds == COMPACT_ROUNDS || !kve_pool_compact(victim->pool, give))
            return kve_pool_room(space->pool, bytes);
        ++*rounds;
        kve_pool_settle(victim->pool);
    }
    return true;
}

/* Make room for so many bytes in space's pool at the cost of victim, which is
 * locked. Says whether it has anything left to forget. */
static bool
room_from(struct kve_space *victim, struct kve_space *space, size_t bytes,
    bool *ret_left)
{
    uint64_t most = space->index->mem.max_bytes / EVICT_PART + bytes;
    size_t give = bytes + (victim != space ? GIVE_MORE : 0);
    uint64_t given = 0;
    uint32_t compacted = 0;
    bool left = true;
    bool room = false;

    while (victim->drain != NULL && !kve_pool_room(space->pool, bytes)) {
        (void)kve_space_drain(victim, DRAIN_BLOCKS, UINT32_MAX);
        kve_pool_settle(victim->pool);
    }
    if (kve_pool_room(space->pool, bytes))
        return true;
    for (uint32_t i = 0; i < EVICT_ROUNDS && left && !room && given <= most;
         i++) {
        left = kve_evict(victim, give << i);
        given += (uint64_t)give << i;
        if (victim != space)
            kve_apply_finish(victim);
        room = compact_for(victim, space, bytes, give, &compacted);
        /* What readers still look at becomes room when they leave: no reason
         * to forget more. */
        if (kve_pool_use(victim->pool).limbo >= give)
            break;
    }
    if (victim != space)
        kve_pool_trim(victim->pool);
    *ret_left = left;
    return room || kve_pool_room(space->pool, bytes);
}

/* The namespace beside this one that has most, locked, if it has more than
 * floor and is not busy; or NULL. */
static struct kve_space *
lock_largest(struct kve_space *space, uint64_t floor)
{
    kve_index *index = space->index;
    uint32_t n = atomic_load_explicit(&index->n_spaces, memory_order_acquire);
    struct kve_space *best = NULL;

    for (uint32_t i = 1; i <= n; i++) {
        struct kve_space *other = kve_space_get(index, i);
        uint64_t bytes;

        if (other == space || (bytes = kve_pool_bytes(other->pool)) <= floor)
            continue;
        best = other;
        floor = bytes;
    }
    /* Never waits: its writer may be looking for room here. */
    return best != NULL && pthread_mutex_trylock(&best->lock) == 0 ? best
                                                                   : NULL;
}

static bool
room_elsewhere(struct kve_space *space, size_t bytes, uint64_t floor)
{
    struct kve_space *other = lock_largest(space, floor);
    bool left;
    bool room;

    if (other == NULL)
        return false;
    room = room_from(other, space, bytes, &left);
    (void)pthread_mutex_unlock(&other->lock);
    return room;
}

bool
kve_make_room(struct kve_space *space, size_t bytes)
{
    uint64_t own = kve_pool_bytes(space->pool);
    bool left = true;

    if (kve_pool_room(space->pool, bytes) ||
        room_elsewhere(space, bytes, own + own / 4) ||
        room_from(space, space, bytes, &left))
        return true;
    return room_elsewhere(space, bytes, left ? kve_pool_bytes(space->pool) : 0);
}
