/*
 * loose.c - blocks that are known by hash only.
 *
 * They lie in runs without contents, 64 places each, private to their life. A
 * life lists those that have room.
 */
#include "index/writer.h"

static uint32_t
free_place(const struct kve_run *run)
{
    for (uint32_t g = 0; g < KVE_LOOSE_BLOCKS / KVE_GRANULE; g++) {
        uint32_t mask = kve_run_live(run, 0)[g];

        if (mask != 0xff)
            return g * KVE_GRANULE + (uint32_t)__builtin_ctz(~mask);
    }
    return KVE_LOOSE_BLOCKS;
}

/* A run with room for names of this form; NULL: no memory. */
static struct kve_run *
loose_run(struct kve_inst *inst, enum kve_name_form form)
{
    struct kve_space *space = inst->space;
    struct kve_run_shape shape = { KVE_LOOSE_BLOCKS, 1, 1 };
    struct kve_run *run;

    for (uint32_t id = inst->loose; id != 0; id = run->next) {
        run = kve_run_at(space, id);
        if (kve_run_vecs(run)[0].form == form)
            return run;
    }
    run = kve_run_create(space, 0, KVE_RUN_LOOSE, &shape);
    if (run == NULL)
        return NULL;
    atomic_store_explicit(&run->n, KVE_LOOSE_BLOCKS, memory_order_relaxed);
    /* The object has room for one vector: this takes no memory. */
    kve_vec_add(space, run->obj.id, inst->owner, form, 0);
    kve_loose_list(space, run);
    return run;
}

/* It may have nothing in it: looked at at the end of the batch, or now. */
static void
look_later(struct kve_space *space, uint32_t id)
{
    if (!kve_ids_add(&space->apply->idle, id))
        kve_run_finish(space, id);
}

kve_status
kve_loose_add(struct kve_inst *inst, struct kve_scope *scope,
    const struct kve_hash *hash, uint32_t copies)
{
    struct kve_space *space = inst->space;
    struct kve_run *run = loose_run(inst, kve_name_form_of(hash));
    uint32_t id = run != NULL ? run->obj.id : 0;
    uint32_t p;
    int64_t rec = -1;

    if (run == NULL)
        return KVE_E_NOMEM;
    p = free_place(run);
    if (!kve_name_place(space, run, 0, p, hash, 0)) {
        look_later(space, id);
        return KVE_E_NOMEM;
    }
    if (free_place(run) == KVE_LOOSE_BLOCKS)
        kve_loose_unlist(space, run);
    rec = kve_rec_find(run, scope->id, 0);
    if (rec < 0)
        rec = kve_rec_add(space, id, scope, 0);
    run = kve_run_at(space, id);
    if (rec < 0 || !kve_hold_add(space, run, (uint32_t)rec, p, 1, copies)) {
        kve_name_kill(space, run, 0, p);
        look_later(space, id);
        return KVE_E_NOMEM;
    }
    inst->forms |= 1u << kve_name_form_of(hash);
    run->flags |= KVE_RUN_TOUCHED;
    space->apply->done.stored += copies;
    kve_index_count(inst, KVE_COUNTER_INDEX_HASH_ONLY, 1);
    return KVE_OK;
}
