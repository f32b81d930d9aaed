/*
 * record.c - records of a run: who holds blocks of it.
 */
#include "index/run_parts.h"

#include <string.h>

int64_t
kve_rec_find(const struct kve_run *run, uint32_t scope, uint32_t vec)
{
    uint32_t n = kve_run_n_recs(run);
    const struct kve_rec *recs = kve_run_recs(run);

    for (uint32_t i = 0; i < n; i++)
        if (KVE_HOT_SCOPE(kve_run_hot(run, i)) == scope &&
            (vec == KVE_ANY_VEC || recs[i].vec == vec))
            return i;
    return -1;
}

void
kve_rec_list_insert(struct kve_space *space, struct kve_scope *scope,
    struct kve_run *run, uint32_t i)
{
    struct kve_rec *rec = &kve_run_recs(run)[i];

    rec->next_run = scope->first_run;
    rec->next_rec = (uint16_t)scope->first_rec;
    rec->prev_run = 0;
    rec->prev_rec = 0;
    if (scope->first_run != 0) {
        struct kve_rec *next = &kve_run_recs(
            kve_run_get(space, scope->first_run))[scope->first_rec];

        next->prev_run = run->obj.id;
        next->prev_rec = (uint16_t)i;
    }
    scope->first_run = run->obj.id;
    scope->first_rec = i;
}

void
kve_rec_list_remove(
    struct kve_space *space, struct kve_scope *scope, const struct kve_rec *rec)
{
    if (rec->prev_run != 0) {
        struct kve_rec *prev =
            &kve_run_recs(kve_run_get(space, rec->prev_run))[rec->prev_rec];

        prev->next_run = rec->next_run;
        prev->next_rec = rec->next_rec;
    } else {
        scope->first_run = rec->next_run;
        scope->first_rec = rec->next_rec;
    }
    if (rec->next_run != 0) {
        struct kve_rec *next =
            &kve_run_recs(kve_run_get(space, rec->next_run))[rec->next_rec];

        next->prev_run = rec->prev_run;
        next->prev_rec = rec->prev_rec;
    }
}

/* Second record of a vector: from now on it is counted who holds what. */
static bool
refs_begin(struct kve_space *space, struct kve_run *run, uint32_t v)
{
    struct kve_vec *vec = &kve_run_vecs(run)[v];
    uint32_t n = kve_run_n_recs(run);
    struct kve_aux *refs = kve_aux_create(space, run->obj.id, run->cap, 2);

    if (refs == NULL)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        if (kve_run_hot(run, i) == 0 || kve_run_recs(run)[i].vec != v)
            continue;
        for (uint32_t p = 0; p < run->cap; p++)
            if (kve_rec_holds(run, i, p))
                kve_aux_count_set(refs, p, kve_aux_count(refs, p) + 1);
    }
    vec->refs = refs;
    return true;
}

static void
mark_complex(struct kve_inst *inst)
{
    struct kve_slot *slot = inst->slot;

    inst->complex = true;
    if (!inst->visible)
        return;
    kve_stamp_begin(inst);
    atomic_fetch_or_explicit(
        &slot->shape, KVE_SHAPE_COMPLEX, memory_order_release);
    kve_stamp_end(inst);
}

int64_t
kve_rec_add(
    struct kve_space *space, uint32_t id, struct kve_scope *scope, uint32_t vec)
{
    struct kve_run *run = kve_run_get(space, id);
    uint32_t n = kve_run_n_recs(run);
    uint32_t i = 0;

    if (vec != KVE_NO_VEC && kve_run_vecs(run)[vec].n_recs == 1 &&
        kve_run_vecs(run)[vec].refs == NULL && !refs_begin(space, run, vec))
        return -1;
    while (i < n && kve_run_hot(run, i) != 0)
        i++;
    if (i == run->cap_recs) {
        struct kve_run_shape shape = kve_run_shape_of(run);

        shape.cap_recs += shape.cap_recs < 2 ? 1 : shape.cap_recs / 2;
        if (shape.cap_recs > KVE_RECS_MAX)
            shape.cap_recs = KVE_RECS_MAX;
        if (i >= KVE_RECS_MAX ||
            (run = kve_run_reserve(space, run, shape)) == NULL)
            return -1;
    }
    struct kve_rec *rec = &kve_run_recs(run)[i];

    /* Two records of one scope: readers must look at both. */
    if (kve_rec_find(run, scope->id, KVE_ANY_VEC) >= 0)
        mark_complex(scope->inst);
    /* Readers may still look at who had the place before: no memset. */
    atomic_store_explicit(&rec->aux, NULL, memory_order_relaxed);
    atomic_store_explicit(&rec->vec, (uint16_t)vec, memory_order_relaxed);
    rec->held = 0;
    if (vec != KVE_NO_VEC)
        kve_run_vecs(run)[vec].n_recs++;
    kve_rec_list_insert(space, scope, run, i);
    atomic_store_explicit(
        &run->hot[i], KVE_HOT(scope->id, 0), memory_order_release);
    if (i == n)
        atomic_store_explicit(&run->n_recs, n + 1, memory_order_release);
    return i;
}

/* A record that holds nothing any more. */
void
kve_rec_drop(struct kve_space *space, struct kve_run *run, uint32_t i)
{
    struct kve_rec *rec = &kve_run_recs(run)[i];
    uint64_t hot = kve_run_hot(run, i);
    struct kve_aux *aux = atomic_load_explicit(&rec->aux, memory_order_relaxed);

    struct kve_scope *scope = kve_dir_get(&space->scopes, KVE_HOT_SCOPE(hot));

    kve_rec_list_remove(space, scope, rec);
    if (atomic_load_explicit(&scope->inst->slot->shape, memory_order_relaxed) !=
        0)
        kve_space_gone(space, 2);
    atomic_store_explicit(&run->hot[i], 0, memory_order_release);
    if (aux != NULL) {
        atomic_store_explicit(&rec->aux, NULL, memory_order_release);
        kve_pool_retire(space->pool, aux);
    }
    if (rec->vec != KVE_NO_VEC)
        kve_run_vecs(run)[rec->vec].n_recs--;
}
