/*
 * name.c - which block an instance means by a hash; naming and killing blocks.
 */
#include "index/writer.h"

#include "base/alloc.h"
#include "base/bytes.h"

#include <string.h>

/* ---- lists ---- */

bool
kve_ids_add(struct kve_ids *list, uint32_t id)
{
    if (list->n == list->cap) {
        size_t cap = list->cap == 0 ? 64 : list->cap * 2;
        uint32_t *ids = kve_charged_array(
            list->mem, list->ids, list->cap, cap, sizeof(*ids));

        if (ids == NULL)
            return false;
        list->ids = ids;
        list->cap = cap;
    }
    list->ids[list->n++] = id;
    return true;
}

void
kve_ids_release(struct kve_ids *list)
{
    if (list->cap > 0)
        kve_mem_discharge(list->mem, list->cap * sizeof(*list->ids));
    kve_mem_free(list->ids);
    list->ids = NULL;
    list->n = 0;
    list->cap = 0;
}

/* ---- what was lost in this batch ---- */

static size_t
set_at(uint32_t id, size_t cap)
{
    return (id * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (cap - 1);
}

static void
set_put(uint32_t *set, size_t cap, uint32_t id)
{
    size_t at = set_at(id, cap);

    while (set[at] != 0 && set[at] != id)
        at = (at + 1) & (cap - 1);
    set[at] = id;
}

/* Bring the set up to the list; without memory it stays behind, and what was
 * lost is forgotten a little early. */
static void
set_update(struct kve_apply *apply)
{
    size_t want = 64;

    /* A pair has up to 8 blocks. */
    while (want < apply->lost.n * KVE_GRANULE)
        want *= 2;
    if (want > apply->lost_cap) {
        struct kve_mem_shared *mem = apply->lost.mem;
        uint32_t *set;

        if (!kve_mem_charge(mem, (want - apply->lost_cap) * sizeof(*set)))
            return;
        set = kve_mem_zalloc(want, sizeof(*set));
        if (set == NULL) {
            kve_mem_discharge(mem, (want - apply->lost_cap) * sizeof(*set));
            return;
        }
        kve_mem_free(apply->lost_set);
        apply->lost_set = set;
        apply->lost_cap = want;
        apply->lost_seen = 0;
    }
    /* The last pair may have got more blocks since. */
    for (size_t i = apply->lost_seen; i < apply->lost.n; i += 2) {
        for (uint32_t s = 0; s < KVE_GRANULE; s++)
            if ((apply->lost.ids[i + 1] >> s & 1) != 0)
                set_put(
                    apply->lost_set, apply->lost_cap, apply->lost.ids[i] + s);
        apply->lost_seen = i;
    }
}

static bool
was_lost(struct kve_apply *apply, const struct kve_inst *inst, uint32_t block)
{
    size_t at;

    if (apply->inst != inst || apply->lost.n == 0)
        return false;
    set_update(apply);
    if (apply->lost_cap == 0)
        return false;
    at = set_at(block, apply->lost_cap);
    while (apply->lost_set[at] != 0 && apply->lost_set[at] != block)
        at = (at + 1) & (apply->lost_cap - 1);
    return apply->lost_set[at] == block;
}

void
kve_block_moved(struct kve_space *space, uint32_t from, uint32_t to)
{
    struct kve_apply *apply = space->apply;

    if (apply->inst != NULL && was_lost(apply, apply->inst, from))
        kve_marks_add_block(&apply->lost, to);
    /* It may be on its way out; who is alive stays. */
    kve_marks_add_block(&apply->dead, to);
    if (apply->inst != NULL && apply->inst->last_block == from)
        apply->inst->last_block = to;
    kve_bridge_moved(space, from, to);
}

/* ---- who knows what ---- */

bool
kve_holds(struct kve_inst *inst, const struct kve_place *place)
{
    for (uint32_t s = 0; s < inst->n_scopes; s++) {
        int64_t rec = kve_rec_find(place->run, inst->scopes[s]->id, place->vec);

        if (rec >= 0 && kve_rec_holds(place->run, (uint32_t)rec, place->pos))
            return true;
    }
    return false;
}

bool
kve_knows(struct kve_inst *inst, uint32_t block)
{
    struct kve_place place = kve_place_of(inst->space, block);

    return place.run != NULL &&
        (kve_holds(inst, &place) || was_lost(inst->space->apply, inst, block));
}

uint32_t
kve_known_as(struct kve_inst *inst, const struct kve_hash *hash, uint64_t key)
{
    const struct kve_names *names = &inst->space->names;
    uint32_t block = kve_name_find(names, key, hash, 0);

    if (block != KVE_NO_BLOCK && kve_knows(inst, block))
        return block;
    if (inst->n_private == 0)
        return KVE_NO_BLOCK;
    return kve_name_find(
        names, kve_name_key(names, hash, inst->owner), hash, inst->owner);
}

uint32_t
kve_known(struct kve_inst *inst, const struct kve_hash *hash, uint64_t key)
{
    uint32_t block = kve_known_as(inst, hash, key);
    struct kve_hash low;

    if (block != KVE_NO_BLOCK || hash->bytes == NULL || hash->len < 8 ||
        (inst->forms & 1u << KVE_NAME_INT) == 0 ||
        inst->space->index->opts.no_mixed_forms != 0)
        return block;
    low = (struct kve_hash){ NULL, { kve_get64(hash->bytes + hash->len - 8) } };
    block =
        kve_known_as(inst, &low, kve_name_key(&inst->space->names, &low, 0));
    if (block != KVE_NO_BLOCK)
        kve_index_count(inst, KVE_COUNTER_INDEX_MIXED_FORMS, 1);
    return block;
}

/* ---- naming ---- */

struct kve_name_owner *
kve_name_owner_of(struct kve_space *space, uint32_t owner)
{
    struct kve_inst *inst;

    if (owner == 0)
        return &space->names.shared;
    inst = kve_dir_get(&space->insts, owner);
    return &inst->names;
}

static void
count_private(struct kve_space *space, uint32_t owner, int by)
{
    struct kve_inst *inst;

    if (owner == 0)
        return;
    inst = kve_dir_get(&space->insts, owner);
    inst->n_private += (uint32_t)by;
}

/* The granule of position p, made when there is none. 0: no memory. */
static uint32_t
granule_at(
    struct kve_space *space, struct kve_run *run, uint32_t vec, uint32_t g)
{
    struct kve_vec *v = &kve_run_vecs(run)[vec];
    _Atomic uint32_t *granules = kve_run_granules(run, vec);
    uint32_t granule = atomic_load_explicit(&granules[g], memory_order_relaxed);

    if (granule != 0)
        return granule;
    granule = kve_granule_alloc(&space->names,
        kve_name_owner_of(space, v->owner), (enum kve_name_form)v->form,
        g > 0 ? atomic_load_explicit(&granules[g - 1], memory_order_relaxed)
              : 0);
    if (granule == 0)
        return 0;
    kve_home_set(space, granule, run->obj.id, g, vec);
    atomic_store_explicit(&granules[g], granule, memory_order_relaxed);
    return granule;
}

static void
granule_release(
    struct kve_space *space, struct kve_run *run, uint32_t vec, uint32_t g)
{
    struct kve_vec *v = &kve_run_vecs(run)[vec];
    _Atomic uint32_t *granule = &kve_run_granules(run, vec)[g];

    if (kve_run_live(run, vec)[g] != 0)
        return;
    kve_granule_free(&space->names, kve_name_owner_of(space, v->owner),
        atomic_load_explicit(granule, memory_order_relaxed));
    atomic_store_explicit(granule, 0, memory_order_relaxed);
}

bool
kve_name_place(struct kve_space *space, struct kve_run *run, uint32_t vec,
    uint32_t p, const struct kve_hash *hash, uint64_t key)
{
    struct kve_vec *v = &kve_run_vecs(run)[vec];
    uint32_t g = (p + v->phase) / KVE_GRANULE;
    uint32_t slot = (p + v->phase) % KVE_GRANULE;
    uint32_t granule = granule_at(space, run, vec, g);

    if (granule == 0)
        return false;
    if (!kve_name_set(&space->names, granule + slot, hash)) {
        granule_release(space, run, vec, g);
        return false;
    }
    if (v->owner != 0)
        key = kve_name_key(&space->names, hash, v->owner);
    if (!kve_name_enter(&space->names, key, granule + slot)) {
        kve_name_drop(&space->names, granule + slot);
        granule_release(space, run, vec, g);
        return false;
    }
    kve_run_live(run, vec)[g] |= (uint8_t)(1u << slot);
    v->live++;
    run->live++;
    space->n_blocks++;
    count_private(space, v->owner, 1);
    return true;
}

/* The part of a row that lies in one granule. */
static uint32_t
place_in_granule(struct kve_space *space, struct kve_run *run, uint32_t vec,
    uint32_t p, const struct kve_hash *hashes, const uint64_t *keys, uint32_t k)
{
    struct kve_names *names = &space->names;
    struct kve_vec *v = &kve_run_vecs(run)[vec];
    uint32_t g = (p + v->phase) / KVE_GRANULE;
    uint32_t slot = (p + v->phase) % KVE_GRANULE;
    uint8_t *live = &kve_run_live(run, vec)[g];
    uint32_t granule = granule_at(space, run, vec, g);
    enum kve_name_form form = (enum kve_name_form)v->form;
    uint32_t mask = 0;
    uint32_t n = 0;

    for (; granule != 0 && n < k; n++, slot++) {
        uint32_t block = granule + slot;

        if (kve_name_form_of(&hashes[n]) != form || (*live >> slot & 1) != 0 ||
            !kve_name_set(names, block, &hashes[n]))
            break;
        if (!kve_table_insert_absent(&names->table, keys[n], block) &&
            (kve_name_find(names, keys[n], &hashes[n], v->owner) !=
                    KVE_NO_BLOCK ||
                !kve_name_enter(names, keys[n], block))) {
            kve_name_drop(names, block);
            break;
        }
        mask |= 1u << slot;
    }
    *live |= (uint8_t)mask;
    v->live += n;
    run->live += n;
    space->n_blocks += n;
    count_private(space, v->owner, (int)n);
    if (granule != 0)
        granule_release(space, run, vec, g);
    return n;
}

uint32_t
kve_name_place_row(struct kve_space *space, struct kve_run *run, uint32_t vec,
    uint32_t p, const struct kve_hash *hashes, const uint64_t *keys, uint32_t k)
{
    uint32_t phase = kve_run_vecs(run)[vec].phase;
    uint32_t done = 0;

    for (uint32_t i = 0; i < k && k > 1; i++)
        kve_name_prefetch(&space->names, keys[i]);
    while (done < k) {
        uint32_t most = KVE_GRANULE - (p + done + phase) % KVE_GRANULE;
        uint32_t n;

        most = most < k - done ? most : k - done;
        n = place_in_granule(
            space, run, vec, p + done, hashes + done, keys + done, most);
        done += n;
        if (n < most)
            break;
    }
    return done;
}

void
kve_name_fetch(struct kve_space *space, uint32_t granule, uint32_t mask,
    uint64_t ret_keys[KVE_GRANULE])
{
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        uint32_t s = (uint32_t)__builtin_ctz(left);

        ret_keys[s] = kve_block_key(&space->names, granule + s);
        kve_table_prefetch(&space->names.table, ret_keys[s]);
        kve_table_prefetch_head(&space->names.table, ret_keys[s]);
    }
}

void
kve_name_kill_fetched(struct kve_space *space, struct kve_run *run,
    uint32_t vec, uint32_t g, uint32_t mask, const uint64_t keys[KVE_GRANULE])
{
    struct kve_vec *v = &kve_run_vecs(run)[vec];
    uint8_t *live = &kve_run_live(run, vec)[g];
    uint32_t granule = atomic_load_explicit(
        &kve_run_granules(run, vec)[g], memory_order_relaxed);
    uint32_t n = (uint32_t)__builtin_popcount(mask);

    for (uint32_t left = mask; left != 0; left &= left - 1) {
        uint32_t s = (uint32_t)__builtin_ctz(left);

        kve_name_leave(&space->names, keys[s], granule + s);
        if (v->form == KVE_NAME_OTHER)
            kve_name_drop(&space->names, granule + s);
    }
    *live &= (uint8_t)~mask;
    v->live -= n;
    run->live -= n;
    space->n_blocks -= n;
    count_private(space, v->owner, -(int)n);
    granule_release(space, run, vec, g);
}

void
kve_name_kill_mask(struct kve_space *space, struct kve_run *run, uint32_t vec,
    uint32_t g, uint32_t mask)
{
    uint64_t keys[KVE_GRANULE];

    kve_name_fetch(space,
        atomic_load_explicit(
            &kve_run_granules(run, vec)[g], memory_order_relaxed),
        mask, keys);
    kve_name_kill_fetched(space, run, vec, g, mask, keys);
}

void
kve_name_kill(
    struct kve_space *space, struct kve_run *run, uint32_t vec, uint32_t p)
{
    uint32_t at = p + kve_run_vecs(run)[vec].phase;

    kve_name_kill_mask(
        space, run, vec, at / KVE_GRANULE, 1u << at % KVE_GRANULE);
}

/* ---- a vector for a name ---- */

static bool
used_by(const struct kve_run *run, const struct kve_inst *inst, uint32_t vec)
{
    for (uint32_t s = 0; s < inst->n_scopes; s++)
        if (kve_rec_find(run, inst->scopes[s]->id, vec) >= 0)
            return true;
    return false;
}

/* More vectors of a run are not looked through: of those, a life uses what it
 * uses already, or takes a new one. */
#define VECS_LOOKED 64u

static bool
is_free_at(const struct kve_run *run, uint32_t v, uint32_t owner,
    enum kve_name_form form, uint32_t p)
{
    const struct kve_vec *vec = &kve_run_vecs(run)[v];

    return (vec->n_recs > 0 || vec->live > 0) && vec->owner == owner &&
        vec->form == form && kve_run_block(run, v, p) == KVE_NO_BLOCK;
}

/* A vector of this owner and form whose place p is empty; one the life uses
 * already if possible; -1: none. */
static int64_t
vec_with_place(const struct kve_run *run, const struct kve_inst *inst,
    uint32_t owner, enum kve_name_form form, uint32_t p)
{
    uint32_t first = run->n_vecs > VECS_LOOKED ? run->n_vecs - VECS_LOOKED : 0;
    int64_t other = -1;

    for (uint32_t s = 0; first > 0 && s < inst->n_scopes; s++) {
        int64_t rec = kve_rec_find(run, inst->scopes[s]->id, KVE_ANY_VEC);
        uint32_t v = rec < 0 ? KVE_NO_VEC : kve_run_recs(run)[rec].vec;

        if (v != KVE_NO_VEC && is_free_at(run, v, owner, form, p))
            return v;
    }
    for (uint32_t v = first; v < run->n_vecs; v++) {
        if (!is_free_at(run, v, owner, form, p))
            continue;
        if (used_by(run, inst, v))
            return v;
        if (other < 0)
            other = v;
    }
    return other;
}

/* ---- sharing a private vector ---- */

/* A granule of shared names for one of private ones. */
struct shared_granule {
    uint32_t from;
    uint32_t to;
    uint32_t mask;
};

/* Forget the first n blocks that were entered into shared granules. */
static void
share_undo(struct kve_space *space, const struct shared_granule *granules,
    uint32_t n, uint32_t last_mask)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t mask = i + 1 < n ? granules[i].mask : last_mask;

        for (uint32_t s = 0; s < KVE_GRANULE; s++) {
            uint32_t block = granules[i].to + s;

            if ((mask >> s & 1) == 0)
                continue;
            kve_name_leave(
                &space->names, kve_block_key(&space->names, block), block);
            kve_name_drop(&space->names, block);
        }
        if (granules[i].to != 0)
            kve_granule_free(
                &space->names, &space->names.shared, granules[i].to);
    }
}

/* Enter a granule's names as shared ones; *ret_mask: those that were. */
static bool
share_granule(struct kve_space *space, struct shared_granule *granule,
    enum kve_name_form form, uint32_t *ret_mask)
{
    struct kve_names *names = &space->names;

    *ret_mask = 0;
    granule->to = kve_granule_alloc(names, &names->shared, form, 0);
    if (granule->to == 0)
        return false;
    for (uint32_t s = 0; s < KVE_GRANULE; s++) {
        struct kve_hash hash;
        uint64_t key;

        if ((granule->mask >> s & 1) == 0)
            continue;
        hash = kve_name_get(names, granule->from + s);
        key = kve_name_key(names, &hash, 0);
        if (kve_name_find(names, key, &hash, 0) != KVE_NO_BLOCK ||
            !kve_name_set(names, granule->to + s, &hash))
            return false;
        if (!kve_name_enter(names, key, granule->to + s)) {
            kve_name_drop(names, granule->to + s);
            return false;
        }
        *ret_mask |= 1u << s;
    }
    return true;
}

static void
share_commit(struct kve_space *space, struct kve_run *run, uint32_t vec,
    uint32_t g, const struct shared_granule *granule)
{
    struct kve_vec *v = &kve_run_vecs(run)[vec];

    kve_home_set(space, granule->to, run->obj.id, g, vec);
    for (uint32_t s = 0; s < KVE_GRANULE; s++) {
        uint32_t block = granule->from + s;

        if ((granule->mask >> s & 1) == 0)
            continue;
        kve_name_leave(
            &space->names, kve_block_key(&space->names, block), block);
        kve_name_drop(&space->names, block);
        kve_block_moved(space, block, granule->to + s);
        count_private(space, v->owner, -1);
    }
    kve_granule_free(
        &space->names, kve_name_owner_of(space, v->owner), granule->from);
    atomic_store_explicit(
        &kve_run_granules(run, vec)[g], granule->to, memory_order_relaxed);
}

/*
 * All blocks of a private vector get shared names, unless somebody has one of
 * them. Done when a second life says the same: what waited for a parent was
 * private until it joined its chain.
 */
static bool
vec_share(struct kve_space *space, struct kve_run *run, uint32_t vec)
{
    enum kve_name_form form = (enum kve_name_form)kve_run_vecs(run)[vec].form;
    struct shared_granule *granules =
        kve_pool_alloc(space->pool, run->n_granules * sizeof(granules[0]));
    uint32_t mask = 0;
    uint32_t n = 0;
    bool ok = granules != NULL;

    for (uint32_t g = 0; ok && g < run->n_granules; g++) {
        granules[g].mask = kve_run_live(run, vec)[g];
        granules[g].to = 0;
        granules[g].from = atomic_load_explicit(
            &kve_run_granules(run, vec)[g], memory_order_relaxed);
        n = g + 1;
        mask = 0;
        ok = granules[g].mask == 0 ||
            share_granule(space, &granules[g], form, &mask);
    }
    if (granules == NULL)
        return false;
    if (!ok) {
        share_undo(space, granules, n, mask);
        /* Not tried again for every block. */
        kve_run_vecs(run)[vec].kept = true;
    } else {
        atomic_fetch_add_explicit(&space->moves, 1, memory_order_acq_rel);
        for (uint32_t g = 0; g < n; g++)
            if (granules[g].mask != 0)
                share_commit(space, run, vec, g, &granules[g]);
        kve_run_vecs(run)[vec].owner = 0;
        atomic_fetch_add_explicit(&space->moves, 1, memory_order_release);
    }
    kve_pool_free(space->pool, granules);
    return ok;
}

/* A vector of another life in which p has this very name, shared now. */
static int64_t
vec_of_other(struct kve_space *space, struct kve_run *run, uint32_t p,
    const struct kve_hash *hash)
{
    for (uint32_t v = 0; v < run->n_vecs && v < VECS_LOOKED; v++) {
        const struct kve_vec *vec = &kve_run_vecs(run)[v];
        uint32_t block;

        if (vec->live == 0 || vec->owner == 0 || vec->kept ||
            (block = kve_run_block(run, v, p)) == KVE_NO_BLOCK)
            continue;
        if (kve_name_is(&space->names, block, hash) && vec_share(space, run, v))
            return v;
    }
    return -1;
}

static bool
stands_at(const struct kve_place *place, uint32_t run, uint32_t p)
{
    return place->run != NULL && place->run->obj.id == run && place->pos == p;
}

int64_t
kve_name_block(struct kve_inst *inst, uint32_t id, uint32_t p,
    const struct kve_hash *hash, uint64_t key)
{
    struct kve_space *space = inst->space;
    struct kve_run *run = kve_run_at(space, id);
    enum kve_name_form form = kve_name_form_of(hash);
    uint32_t block = kve_name_find(&space->names, key, hash, 0);
    struct kve_place place;
    uint32_t owner = 0;
    int64_t vec;

    if (block != KVE_NO_BLOCK) {
        place = kve_place_of(space, block);
        if (stands_at(&place, id, p))
            return place.vec;
        owner = inst->owner;
    }
    if (inst->n_private > 0) {
        block = kve_name_find(&space->names,
            kve_name_key(&space->names, hash, inst->owner), hash, inst->owner);
        place = block == KVE_NO_BLOCK ? (struct kve_place){ NULL, 0, 0 }
                                      : kve_place_of(space, block);
        if (stands_at(&place, id, p))
            return place.vec;
    }
    if ((run->flags & KVE_RUN_WAITING) != 0)
        owner = inst->owner;
    else if (owner == 0 && (vec = vec_of_other(space, run, p, hash)) >= 0)
        return vec;
    vec = vec_with_place(run, inst, owner, form, p);
    if (vec < 0)
        vec = kve_vec_add(space, id, owner, form, 0);
    if (vec < 0 ||
        !kve_name_place(
            space, kve_run_at(space, id), (uint32_t)vec, p, hash, key))
        return -1;
    return vec;
}
