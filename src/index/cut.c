/*
 * cut.c - cutting a run in two, where chains part.
 */
#include "index/run_parts.h"

#include <string.h>

/* One part of a run that is being cut: blocks from..to of it. */
struct part {
    struct kve_run *run;
    uint32_t from;
    uint32_t to;
};

static void
part_release(struct kve_space *space, struct part *part)
{
    if (part->run == NULL)
        return;
    for (uint32_t i = 0; i < part->run->cap_recs; i++) {
        struct kve_aux *aux = kve_run_aux(part->run, i);

        if (aux != NULL)
            kve_pool_free(space->pool, aux);
    }
    for (uint32_t v = 0; v < part->run->n_vecs; v++)
        if (kve_run_vecs(part->run)[v].refs != NULL)
            kve_pool_free(space->pool, kve_run_vecs(part->run)[v].refs);
}

/* Bits of blocks 64 w.. of the part. */
static uint64_t
part_word(const struct part *part, const struct kve_run *whole, uint32_t i,
    uint32_t w)
{
    uint32_t from = part->from + w * 64;
    uint32_t left = part->to - from;
    uint64_t word = kve_hold_word(whole, i, from / 64) >> from % 64;

    if (from % 64 != 0)
        word |= kve_hold_word(whole, i, from / 64 + 1) << (64 - from % 64);
    return left < 64 ? word & ((UINT64_C(1) << left) - 1) : word;
}

/* The part of a record that has an aux; false: no memory. */
static bool
part_aux(struct kve_space *space, struct part *part, uint32_t id,
    const struct kve_run *whole, uint32_t i, struct kve_rec *to,
    uint32_t *ret_lead)
{
    const struct kve_aux *old = kve_run_aux(whole, i);
    uint32_t n = part->to - part->from;
    uint32_t lead = 0;
    uint32_t many = 0;
    struct kve_aux *aux;

    for (uint32_t w = 0; w * 64 < n; w++) {
        uint64_t word = part_word(part, whole, i, w);

        to->held += (uint32_t)__builtin_popcountll(word);
        if (lead == w * 64)
            lead += ~word == 0 ? 64 : (uint32_t)__builtin_ctzll(~word);
    }
    *ret_lead = lead;
    for (uint32_t p = part->from; old->many > 0 && p < part->to && p < old->n;
         p++)
        many += kve_aux_count(old, p) > 1;
    if (to->held == lead && many == 0)
        return true;
    aux = kve_aux_create(space, id, part->run->cap, many > 0 ? old->width : 0);
    if (aux == NULL)
        return false;
    for (uint32_t w = 0; w * 64 < n; w++)
        atomic_store_explicit(
            &aux->bits[w], part_word(part, whole, i, w), memory_order_relaxed);
    for (uint32_t p = 0; many > 0 && p < n && part->from + p < old->n; p++)
        kve_aux_count_set(aux, p, kve_aux_count(old, part->from + p));
    aux->many = many;
    atomic_store_explicit(&to->aux, aux, memory_order_relaxed);
    return true;
}

/* What a record holds of the part, as a record of the part. */
static bool
part_record(struct kve_space *space, struct part *part, uint32_t id,
    const struct kve_run *whole, uint32_t i, uint32_t to_rec)
{
    const struct kve_rec *from = &kve_run_recs(whole)[i];
    struct kve_rec *to = &kve_run_recs(part->run)[to_rec];
    uint64_t hot = kve_run_hot(whole, i);
    uint32_t lead = KVE_HOT_LEAD(hot) < part->to ? KVE_HOT_LEAD(hot) : part->to;

    lead = lead > part->from ? lead - part->from : 0;
    memset(to, 0, sizeof(*to));
    to->vec = from->vec;
    if (atomic_load_explicit(&from->aux, memory_order_relaxed) == NULL)
        to->held = lead;
    else if (!part_aux(space, part, id, whole, i, to, &lead))
        return false;
    if (to->held == 0)
        return true;
    atomic_store_explicit(&part->run->hot[to_rec],
        KVE_HOT(KVE_HOT_SCOPE(hot), lead), memory_order_relaxed);
    if (to->vec != KVE_NO_VEC)
        kve_run_vecs(part->run)[to->vec].n_recs++;
    return true;
}

static bool
part_refs(struct kve_space *space, struct part *part, uint32_t id,
    const struct kve_run *whole, uint32_t v)
{
    const struct kve_aux *from = kve_run_vecs(whole)[v].refs;
    struct kve_aux *to;

    if (from == NULL || kve_run_vecs(part->run)[v].n_recs < 2)
        return true;
    to = kve_aux_create(space, id, part->run->cap, from->width);
    if (to == NULL)
        return false;
    for (uint32_t p = part->from; p < part->to && p < from->n; p++)
        kve_aux_count_set(to, p - part->from, kve_aux_count(from, p));
    kve_run_vecs(part->run)[v].refs = to;
    return true;
}

/* Contents, records and vectors of a part; granules come later. The tail
 * keeps the places of its records, the front takes new ones. */
static bool
part_fill(struct kve_space *space, struct part *part, uint32_t id,
    const struct kve_run *whole, bool keep)
{
    uint32_t n_recs = kve_run_n_recs(whole);
    uint32_t n = part->to - part->from;
    uint32_t next = 0;

    atomic_store_explicit(&part->run->n, n, memory_order_relaxed);
    part->run->high = n;
    part->run->n_vecs = whole->n_vecs;
    memcpy((uint64_t *)(uintptr_t)kve_run_contents(part->run),
        kve_run_contents(whole) + part->from, n * sizeof(uint64_t));
    if ((whole->flags & KVE_RUN_DYNAMO) != 0)
        memcpy((uint64_t *)(uintptr_t)kve_run_dynamo(part->run),
            kve_run_dynamo(whole) + part->from, n * sizeof(uint64_t));
    for (uint32_t v = 0; v < whole->n_vecs; v++) {
        struct kve_vec *to = &kve_run_vecs(part->run)[v];

        *to = kve_run_vecs(whole)[v];
        to->refs = NULL;
        to->n_recs = 0;
        to->live = 0;
    }
    for (uint32_t i = 0; i < n_recs; i++) {
        if (kve_run_hot(whole, i) == 0)
            continue;
        uint32_t to = keep ? i : next;

        if (!part_record(space, part, id, whole, i, to))
            return false;
        if (kve_run_recs(part->run)[to].held > 0)
            next++;
        else if (!keep)
            memset(&kve_run_recs(part->run)[to], 0, sizeof(struct kve_rec));
    }
    atomic_store_explicit(
        &part->run->n_recs, keep ? n_recs : next, memory_order_relaxed);
    for (uint32_t v = 0; v < whole->n_vecs; v++)
        if (!part_refs(space, part, id, whole, v))
            return false;
    return true;
}

/* A granule that lies on both sides of the cut: the blocks of the smaller
 * side get ids in another one. */
struct split_granule {
    uint32_t granule; /* the new one; 0: none is needed */
    bool for_front;
};

static bool
split_prepare(struct kve_space *space, const struct kve_run *run, uint32_t v,
    uint32_t at, struct split_granule *ret)
{
    const struct kve_vec *vec = &kve_run_vecs(run)[v];
    uint32_t g = (at + vec->phase) / KVE_GRANULE;
    uint32_t slot = (at + vec->phase) % KVE_GRANULE;
    uint32_t mask = kve_run_live(run, v)[g];
    uint32_t front = mask & ((1u << slot) - 1);
    uint32_t tail = mask & ~((1u << slot) - 1);
    uint32_t old;
    uint32_t moved;
    struct kve_name_owner *owner;

    *ret = (struct split_granule){ 0, false };
    if (front == 0 || tail == 0)
        return true;
    owner = kve_name_owner_of(space, vec->owner);
    old = atomic_load_explicit(
        &kve_run_granules(run, v)[g], memory_order_relaxed);
    ret->for_front = __builtin_popcount(front) < __builtin_popcount(tail);
    moved = ret->for_front ? front : tail;
    ret->granule = kve_granule_alloc(
        &space->names, owner, (enum kve_name_form)vec->form, old);
    if (ret->granule == 0)
        return false;
    for (uint32_t s = 0; s < KVE_GRANULE; s++) {
        struct kve_hash hash;

        if ((moved >> s & 1) == 0)
            continue;
        hash = kve_name_get(&space->names, old + s);
        if (kve_name_set(&space->names, ret->granule + s, &hash))
            continue;
        while (s-- > 0)
            if ((moved >> s & 1) != 0)
                kve_name_drop(&space->names, ret->granule + s);
        kve_granule_free(&space->names, owner, ret->granule);
        ret->granule = 0;
        return false;
    }
    return true;
}

static void
split_cancel(struct kve_space *space, const struct kve_run *run, uint32_t v,
    uint32_t at, const struct split_granule *split)
{
    const struct kve_vec *vec = &kve_run_vecs(run)[v];
    struct kve_name_owner *owner;
    uint32_t slot = (at + vec->phase) % KVE_GRANULE;
    uint32_t low = (1u << slot) - 1;
    uint32_t moved = kve_run_live(run, v)[(at + vec->phase) / KVE_GRANULE] &
        (split->for_front ? low : ~low);

    if (split->granule == 0)
        return;
    owner = kve_name_owner_of(space, vec->owner);
    for (uint32_t s = 0; s < KVE_GRANULE; s++)
        if ((moved >> s & 1) != 0)
            kve_name_drop(&space->names, split->granule + s);
    kve_granule_free(&space->names, owner, split->granule);
}

static void
part_granule(struct kve_space *space, struct kve_run *run, uint32_t id,
    uint32_t v, uint32_t g, uint32_t granule, uint32_t mask)
{
    atomic_store_explicit(
        &kve_run_granules(run, v)[g], granule, memory_order_relaxed);
    kve_run_live(run, v)[g] = (uint8_t)mask;
    kve_run_vecs(run)[v].live += (uint32_t)__builtin_popcount(mask);
    run->live += (uint32_t)__builtin_popcount(mask);
    kve_home_set(space, granule, id, g, v);
}

/* Deal the granules of a vector out to both parts. */
static void
split_commit(struct kve_space *space, const struct kve_run *run, uint32_t v,
    uint32_t at, struct part *front, struct part *tail,
    const struct split_granule *split)
{
    uint32_t phase = kve_run_vecs(run)[v].phase;
    uint32_t first = (at + phase) / KVE_GRANULE;
    uint32_t slot = (at + phase) % KVE_GRANULE;
    uint32_t low = (1u << slot) - 1;
    uint32_t front_id = front->run->obj.id;

    kve_run_vecs(tail->run)[v].phase = (uint8_t)slot;
    for (uint32_t g = 0; g < run->n_granules; g++) {
        uint32_t mask = kve_run_live(run, v)[g];
        uint32_t granule = atomic_load_explicit(
            &kve_run_granules(run, v)[g], memory_order_relaxed);

        if (mask == 0)
            continue;
        if (g < first || (g == first && (mask & ~low) == 0)) {
            part_granule(space, front->run, front_id, v, g, granule, mask);
        } else if (g > first || (mask & low) == 0) {
            part_granule(
                space, tail->run, run->obj.id, v, g - first, granule, mask);
        } else {
            uint32_t moved = mask & (split->for_front ? low : ~low);

            part_granule(space, front->run, front_id, v, g,
                split->for_front ? split->granule : granule, mask & low);
            part_granule(space, tail->run, run->obj.id, v, 0,
                split->for_front ? granule : split->granule, mask & ~low);
            for (uint32_t s = 0; s < KVE_GRANULE; s++) {
                if ((moved >> s & 1) == 0)
                    continue;
                kve_table_replace(&space->names.table,
                    kve_block_key(&space->names, granule + s), granule + s,
                    split->granule + s);
                kve_name_drop(&space->names, granule + s);
                kve_block_moved(space, granule + s, split->granule + s);
            }
        }
    }
}

/* The tail's records have the places of the whole's in their scopes' lists. */
static void
cut_links(const struct kve_run *whole, struct kve_run *tail)
{
    uint32_t n = kve_run_n_recs(whole);

    for (uint32_t i = 0; i < n; i++) {
        const struct kve_rec *from = &kve_run_recs(whole)[i];
        struct kve_rec *to = &kve_run_recs(tail)[i];

        to->next_run = from->next_run;
        to->next_rec = from->next_rec;
        to->prev_run = from->prev_run;
        to->prev_rec = from->prev_rec;
    }
}

/* Once the tail is the run: those of its records that hold nothing leave the
 * lists, and the front's are put into them. What was sliced is given back. */
static void
cut_lists(struct kve_space *space, struct kve_run *whole, struct kve_run *front,
    struct kve_run *tail)
{
    uint32_t n = kve_run_n_recs(whole);

    for (uint32_t i = 0; i < n; i++) {
        uint64_t hot = kve_run_hot(whole, i);
        struct kve_rec *rec = &kve_run_recs(tail)[i];
        struct kve_aux *aux = kve_run_aux(whole, i);

        if (hot == 0)
            continue;
        if (rec->held == 0) {
            kve_rec_list_remove(
                space, kve_dir_get(&space->scopes, KVE_HOT_SCOPE(hot)), rec);
            memset(rec, 0, sizeof(*rec));
        }
        if (aux != NULL)
            kve_pool_retire(space->pool, aux);
    }
    n = kve_run_n_recs(front);
    for (uint32_t i = 0; i < n; i++)
        kve_rec_list_insert(space,
            kve_dir_get(&space->scopes, KVE_HOT_SCOPE(kve_run_hot(front, i))),
            front, i);
    for (uint32_t v = 0; v < whole->n_vecs; v++)
        if (kve_run_vecs(whole)[v].refs != NULL)
            kve_pool_retire(space->pool, kve_run_vecs(whole)[v].refs);
}

/* The front takes the run's place among its siblings. */
static void
cut_siblings(struct kve_space *space, struct kve_run *front,
    struct kve_run *whole, struct kve_run *tail, uint32_t parent)
{
    uint32_t id = front->obj.id;

    front->prev = whole->prev;
    front->next = whole->next;
    if (front->prev != 0)
        kve_run_get(space, front->prev)->next = id;
    else
        *kve_run_children(space, parent).first = id;
    if (front->next != 0)
        kve_run_get(space, front->next)->prev = id;
    front->first_child = whole->obj.id;
    front->n_children = 1;
    tail->first_child = whole->first_child;
    tail->n_children = whole->n_children;
    tail->prev = 0;
    tail->next = 0;
}

struct cut {
    struct part front;
    struct part tail;
    struct split_granule *splits;
    uint32_t n_splits;
};

static void
cut_cancel(struct kve_space *space, struct cut *cut, const struct kve_run *run)
{
    for (uint32_t v = 0; v < cut->n_splits; v++)
        split_cancel(space, run, v, cut->tail.from, &cut->splits[v]);
    part_release(space, &cut->front);
    part_release(space, &cut->tail);
    if (cut->front.run != NULL)
        kve_run_discard(space, cut->front.run);
    if (cut->tail.run != NULL)
        kve_pool_free(space->pool, cut->tail.run);
    if (cut->splits != NULL)
        kve_pool_free(space->pool, cut->splits);
}

/* Everything that needs memory. */
static bool
cut_prepare(struct kve_space *space, struct cut *cut, struct kve_run *run)
{
    uint32_t at = cut->tail.from;
    struct kve_run_shape front = { at, run->cap_recs, run->cap_vecs };
    struct kve_run_shape tail = { cut->tail.to - at, run->cap_recs,
        run->cap_vecs };

    cut->front.run = kve_run_create(space, run->block_size, run->flags, &front);
    cut->tail.run = kve_run_object(space, run->block_size, run->flags, tail);
    cut->splits = kve_pool_alloc(
        space->pool, (run->n_vecs + 1u) * sizeof(cut->splits[0]));
    if (cut->front.run == NULL || cut->tail.run == NULL ||
        cut->splits == NULL ||
        !part_fill(space, &cut->front, cut->front.run->obj.id, run, false) ||
        !part_fill(space, &cut->tail, run->obj.id, run, true))
        return false;
    for (uint32_t v = 0; v < run->n_vecs; v++) {
        if (!split_prepare(space, run, v, at, &cut->splits[v]))
            return false;
        cut->n_splits = v + 1;
    }
    return true;
}

/* The edge behind parent leads to another id. */
static void
cut_edges(struct kve_space *space, const struct kve_run *front, uint32_t parent,
    uint32_t from, uint32_t to)
{
    kve_table_replace(
        &space->edges, kve_run_edge_key(space, front, parent), from, to);
    if ((front->flags & KVE_RUN_DYNAMO) != 0)
        kve_table_replace(
            &space->dedges, kve_run_dedge_key(space, front, parent), from, to);
}

struct kve_run *
kve_run_cut(struct kve_space *space, uint32_t id, uint32_t at)
{
    struct kve_run *run = kve_run_at(space, id);
    uint32_t parent = kve_run_parent(run);
    struct cut cut = { { NULL, 0, at }, { NULL, at, kve_run_n(run) }, NULL, 0 };
    struct kve_run *front = NULL;
    struct kve_run *tail;
    uint32_t front_tag;

    if (!cut_prepare(space, &cut, run))
        goto fail;
    front = cut.front.run;
    tail = cut.tail.run;
    tail->obj.id = id;
    front_tag = kve_run_tag(front);
    atomic_store_explicit(&front->parent, parent, memory_order_relaxed);
    atomic_store_explicit(&tail->parent, front_tag, memory_order_relaxed);
    atomic_store_explicit(&tail->n_odd,
        atomic_load_explicit(&run->n_odd, memory_order_relaxed),
        memory_order_relaxed);
    /* The last thing that can fail; found before it is true it does not
     * verify, and moves says to look again. The old edge changes first: an id
     * that stood in a table twice, with keys of one cell, could not be told
     * apart. */
    atomic_fetch_add_explicit(&space->moves, 1, memory_order_acq_rel);
    cut_edges(space, front, parent, id, front->obj.id);
    if (!kve_run_edges_enter(space, tail, front_tag)) {
        cut_edges(space, front, parent, front->obj.id, id);
        atomic_fetch_add_explicit(&space->moves, 1, memory_order_release);
        goto fail;
    }
    cut_links(run, tail);
    for (uint32_t v = 0; v < run->n_vecs; v++)
        split_commit(space, run, v, at, &cut.front, &cut.tail, &cut.splits[v]);
    cut_siblings(space, front, run, tail, parent);
    kve_dir_set(&space->runs, id, tail);
    cut_lists(space, run, front, tail);
    atomic_fetch_add_explicit(&space->moves, 1, memory_order_release);
    kve_pool_retire(space->pool, run);
    kve_pool_free(space->pool, cut.splits);
    return front;
fail:
    cut_cancel(space, &cut, run);
    return NULL;
}

/*
 * A front with many vectors is as much work for the next cut, however little
 * that cuts off: halves of it are half the work.
 */
#define HEAVY 8192u /* granules */

struct kve_run *
kve_spot_cut(struct kve_space *space, struct kve_spot *at)
{
    struct kve_run *run = kve_run_cut(space, at->run, at->pos + 1);
    uint32_t n;

    if (run == NULL)
        return NULL;
    at->run = run->obj.id;
    n = kve_run_n(run);
    if (n >= 16 && run->n_vecs * run->n_granules > HEAVY &&
        kve_run_cut(space, at->run, n / 2) != NULL) {
        run = kve_run_at(space, at->run);
        at->pos = kve_run_n(run) - 1;
    }
    return run;
}
