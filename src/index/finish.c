/*
 * finish.c - what is left of a run when blocks went: trimmed, or freed.
 */
#include "index/run_parts.h"

#include <string.h>

static void
drop_empty_records(struct kve_space *space, struct kve_run *run)
{
    uint32_t n = kve_run_n_recs(run);

    for (uint32_t i = 0; i < n; i++)
        if (kve_run_hot(run, i) != 0 && kve_run_recs(run)[i].held == 0)
            kve_rec_drop(space, run, i);
    while (n > 0 && kve_run_hot(run, n - 1) == 0)
        n--;
    atomic_store_explicit(&run->n_recs, n, memory_order_release);
    for (uint32_t v = 0; v < run->n_vecs; v++) {
        struct kve_vec *vec = &kve_run_vecs(run)[v];

        if (vec->n_recs == 0 && vec->refs != NULL) {
            kve_pool_free(space->pool, vec->refs);
            vec->refs = NULL;
        }
    }
}

/* Names from end on that nobody holds, and that are still there because there
 * was no memory to note them. */
static void
kill_behind(struct kve_space *space, struct kve_run *run, uint32_t end)
{
    for (uint32_t v = 0; v < run->n_vecs; v++) {
        uint32_t at = end + kve_run_vecs(run)[v].phase;
        uint32_t low = (1u << at % KVE_GRANULE) - 1;

        for (uint32_t g = at / KVE_GRANULE;
             kve_run_vecs(run)[v].live > 0 && g < run->n_granules; g++) {
            uint32_t mask = kve_run_live(run, v)[g] & ~low;

            if (mask != 0)
                kve_name_kill_mask(space, run, v, g, mask);
            low = 0;
        }
    }
}

/* Blocks at the end that nobody holds go, unless something is behind them. */
static void
trim(struct kve_space *space, struct kve_run *run)
{
    uint32_t n_recs = kve_run_n_recs(run);
    uint32_t end = 0;

    if ((run->flags & KVE_RUN_LOOSE) != 0 || run->n_children > 0)
        return;
    for (uint32_t i = 0; i < n_recs; i++) {
        uint32_t e = kve_run_hot(run, i) == 0 ? 0 : kve_hold_end(run, i);

        end = e > end ? e : end;
    }
    if (end == kve_run_n(run))
        return;
    if (run->live > 0)
        kill_behind(space, run, end);
    atomic_store_explicit(&run->n, end, memory_order_release);
}

static bool
is_over(const struct kve_run *run)
{
    if ((run->flags & KVE_RUN_LOOSE) != 0)
        return run->live == 0 && kve_run_n_recs(run) == 0;
    return run->n_children == 0 && kve_run_n(run) == 0;
}

static struct kve_inst *
loose_life(const struct kve_space *space, const struct kve_run *run)
{
    return kve_dir_get(&space->insts, kve_run_vecs(run)[0].owner);
}

void
kve_loose_unlist(struct kve_space *space, struct kve_run *run)
{
    struct kve_inst *inst = loose_life(space, run);

    if ((run->flags & KVE_RUN_LISTED) == 0)
        return;
    run->flags &= ~KVE_RUN_LISTED;
    if (run->prev != 0)
        kve_run_get(space, run->prev)->next = run->next;
    else
        inst->loose = run->next;
    if (run->next != 0)
        kve_run_get(space, run->next)->prev = run->prev;
}

void
kve_loose_list(struct kve_space *space, struct kve_run *run)
{
    struct kve_inst *inst = loose_life(space, run);

    if ((run->flags & KVE_RUN_LISTED) != 0)
        return;
    run->flags |= KVE_RUN_LISTED;
    run->prev = 0;
    run->next = inst->loose;
    if (run->next != 0)
        kve_run_get(space, run->next)->prev = run->obj.id;
    inst->loose = run->obj.id;
}

static void
run_free(struct kve_space *space, struct kve_run *run)
{
    if ((run->flags & KVE_RUN_LOOSE) != 0)
        kve_loose_unlist(space, run);
    else
        kve_run_unlink(space, run);
    kve_dir_set(&space->runs, run->obj.id, NULL);
    kve_pool_retire_id(space->pool, KVE_OBJ_RUN, run->obj.id);
    kve_pool_retire(space->pool, run);
    space->n_runs--;
}

/* Much smaller than its object: another object. Without memory it stays. */
static void
shrink(struct kve_space *space, struct kve_run *run)
{
    uint32_t n = kve_run_n(run);
    uint32_t recs = kve_run_n_recs(run);
    struct kve_run_shape shape = { n, recs, run->n_vecs };

    if ((run->flags & KVE_RUN_LOOSE) != 0 ||
        (n * 3 + 8 > run->cap && recs * 4 + 4 > run->cap_recs))
        return;
    shape.cap_recs = recs > 0 ? recs : 1;
    shape.cap_vecs = run->n_vecs > 0 ? run->n_vecs : 1;
    kve_run_reserve(space, run, shape);
}

void
kve_run_moved_out(struct kve_space *space, uint32_t id)
{
    struct kve_run *run = kve_run_get(space, id);

    if (run == NULL || (run->flags & KVE_RUN_MOVED) == 0 ||
        run->n_children > 0 || run->live > 0)
        return;
    drop_empty_records(space, run);
    if (kve_run_n_recs(run) > 0)
        return;
    atomic_store_explicit(&run->n, 0, memory_order_release);
    run_free(space, run);
}

uint32_t
kve_run_finish(struct kve_space *space, uint32_t id)
{
    struct kve_run *run = NULL;

    while (id != 0 && (run = kve_run_get(space, id)) != NULL) {
        uint32_t parent;

        drop_empty_records(space, run);
        trim(space, run);
        if (!is_over(run)) {
            if ((run->flags & KVE_RUN_LOOSE) != 0 &&
                run->live < KVE_LOOSE_BLOCKS)
                kve_loose_list(space, run);
            shrink(space, run);
            break;
        }
        parent = kve_run_parent(run);
        run_free(space, run);
        /* What was only there to hold this one may go as well. */
        id = (parent & KVE_PARENT_KIND) == KVE_PARENT_RUN
            ? KVE_PARENT_ID(parent)
            : 0;
    }
    return run != NULL ? id : 0;
}
