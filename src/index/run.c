/*
 * run.c - runs as objects: make, grow, find, put behind another; vectors.
 */
#include "index/run_parts.h"

#include <string.h>

/* Places in a vector's list: blocks of cap in granules, whatever the phase. */
static uint32_t
granules_for(uint32_t cap)
{
    return (cap + 2 * KVE_GRANULE - 2) / KVE_GRANULE;
}

static size_t
run_size(uint32_t flags, const struct kve_run_shape *shape)
{
    size_t contents = (flags & KVE_RUN_LOOSE) != 0 ? 0
        : (flags & KVE_RUN_DYNAMO) != 0            ? 2 * (size_t)shape->cap
                                                   : shape->cap;

    return sizeof(struct kve_run) +
        shape->cap_recs * (sizeof(uint64_t) + sizeof(struct kve_rec)) +
        contents * sizeof(uint64_t) +
        shape->cap_vecs *
        (sizeof(struct kve_vec) +
            granules_for(shape->cap) * (sizeof(uint32_t) + 1));
}

/* Use what the allocator gives anyway for more contents. */
static void
fill_shape(uint32_t flags, struct kve_run_shape *shape)
{
    size_t room = kve_pool_good_size(run_size(flags, shape));
    size_t each = (flags & KVE_RUN_DYNAMO) != 0 ? 16 : 8;
    struct kve_run_shape wider = *shape;
    size_t size = run_size(flags, shape);

    if ((flags & KVE_RUN_LOOSE) != 0 || room <= size)
        return;
    /* A little less than would fit: the granules' lists grow as well. */
    wider.cap += (uint32_t)((room - size) / (each + shape->cap_vecs));
    if (wider.cap > shape->cap && run_size(flags, &wider) <= room)
        shape->cap = wider.cap;
}

struct kve_run *
kve_run_object(struct kve_space *space, uint32_t block_size, uint32_t flags,
    struct kve_run_shape shape)
{
    struct kve_run *run;
    size_t size;

    fill_shape(flags, &shape);
    size = run_size(flags, &shape);
    run = kve_pool_alloc(space->pool, size);
    if (run == NULL)
        return NULL;
    memset(run, 0, sizeof(*run));
    run->obj.kind = KVE_OBJ_RUN;
    run->block_size = block_size;
    run->flags = flags;
    run->cap = shape.cap;
    run->cap_recs = shape.cap_recs;
    run->cap_vecs = (uint16_t)shape.cap_vecs;
    run->n_granules = granules_for(shape.cap);
    memset(run->hot, 0, shape.cap_recs * sizeof(run->hot[0]));
    /* Records, vectors and lists stand in a row behind the contents. */
    memset(kve_run_recs(run), 0,
        size - (size_t)((char *)kve_run_recs(run) - (char *)run));
    return run;
}

struct kve_run *
kve_run_create(struct kve_space *space, uint32_t block_size, uint32_t flags,
    const struct kve_run_shape *shape)
{
    struct kve_run *run = kve_run_object(space, block_size, flags, *shape);

    if (run == NULL)
        return NULL;
    atomic_store_explicit(&run->parent, KVE_PARENT_NONE, memory_order_relaxed);
    run->obj.id = kve_dir_add(&space->runs, run);
    if (run->obj.id == 0) {
        kve_pool_free(space->pool, run);
        return NULL;
    }
    space->n_runs++;
    return run;
}

void
kve_run_discard(struct kve_space *space, struct kve_run *run)
{
    kve_dir_set(&space->runs, run->obj.id, NULL);
    kve_dir_free(&space->runs, run->obj.id);
    kve_pool_free(space->pool, run);
    space->n_runs--;
}

/* ---- parents and children ---- */

struct kve_children
kve_run_children(struct kve_space *space, uint32_t parent)
{
    uint32_t id = KVE_PARENT_ID(parent);

    switch (parent & KVE_PARENT_KIND) {
    case KVE_PARENT_RUN: {
        struct kve_run *run = kve_run_get(space, id);

        return (struct kve_children){ &run->first_child, &run->n_children };
    }
    case KVE_PARENT_ROOT: {
        struct kve_root *root = kve_dir_get(&space->roots, id);

        return (struct kve_children){ &root->first_child, &root->n_children };
    }
    default: {
        struct kve_wait *wait = kve_dir_get(&space->waits, id);

        return (struct kve_children){ &wait->first_child, &wait->n_children };
    }
    }
}

uint64_t
kve_run_edge_key(
    const struct kve_space *space, const struct kve_run *run, uint32_t parent)
{
    return kve_edge_key(
        space, parent, run->block_size, kve_run_contents(run)[0]);
}

/* Chains with Dynamo hashes of their own are found from one common root. */
uint64_t
kve_run_dedge_key(
    const struct kve_space *space, const struct kve_run *run, uint32_t parent)
{
    if ((parent & KVE_PARENT_KIND) == KVE_PARENT_ROOT)
        parent = KVE_PARENT_DYNAMO;
    return kve_edge_key(space, parent, run->block_size, kve_run_dynamo(run)[0]);
}

/* Early: a tail that is being cut off is not in its place yet. */
bool
kve_run_edges_enter(
    struct kve_space *space, struct kve_run *run, uint32_t parent)
{
    uint64_t key = kve_run_edge_key(space, run, parent);

    if (!kve_table_insert_early(&space->edges, key, run->obj.id))
        return false;
    if ((run->flags & KVE_RUN_DYNAMO) == 0 ||
        kve_table_insert_early(
            &space->dedges, kve_run_dedge_key(space, run, parent), run->obj.id))
        return true;
    kve_table_erase(&space->edges, key, run->obj.id);
    return false;
}

static void
edges_leave(struct kve_space *space, struct kve_run *run, uint32_t parent)
{
    kve_table_erase(
        &space->edges, kve_run_edge_key(space, run, parent), run->obj.id);
    if ((run->flags & KVE_RUN_DYNAMO) != 0)
        kve_table_erase(
            &space->dedges, kve_run_dedge_key(space, run, parent), run->obj.id);
}

/* After edges_leave(), when all runs can say their keys. */
static void
edges_shrink(struct kve_space *space, struct kve_run *run, uint32_t parent)
{
    kve_table_shrink(&space->edges, kve_run_edge_key(space, run, parent));
    if ((run->flags & KVE_RUN_DYNAMO) != 0)
        kve_table_shrink(&space->dedges, kve_run_dedge_key(space, run, parent));
}

/* How the sizes of a parent's children are known to readers. */
static void
count_size(struct kve_space *space, uint32_t parent, uint32_t size, int change)
{
    uint32_t id = KVE_PARENT_ID(parent);

    if ((parent & KVE_PARENT_KIND) == KVE_PARENT_ROOT) {
        kve_root_size(kve_dir_get(&space->roots, id), size, change);
    } else if ((parent & KVE_PARENT_KIND) == KVE_PARENT_RUN) {
        struct kve_run *run = kve_run_get(space, id);

        if (run->block_size != size)
            atomic_store_explicit(&run->n_odd,
                atomic_load_explicit(&run->n_odd, memory_order_relaxed) +
                    (uint32_t)change,
                memory_order_release);
    }
}

static void
list_insert(struct kve_space *space, struct kve_run *run, uint32_t parent)
{
    struct kve_children children = kve_run_children(space, parent);

    run->prev = 0;
    run->next = *children.first;
    if (run->next != 0)
        kve_run_get(space, run->next)->prev = run->obj.id;
    *children.first = run->obj.id;
    (*children.n)++;
}

static void
list_remove(struct kve_space *space, struct kve_run *run, uint32_t parent)
{
    struct kve_children children = kve_run_children(space, parent);

    if (run->prev != 0)
        kve_run_get(space, run->prev)->next = run->next;
    else
        *children.first = run->next;
    if (run->next != 0)
        kve_run_get(space, run->next)->prev = run->prev;
    (*children.n)--;
}

bool
kve_run_link(struct kve_space *space, struct kve_run *run, uint32_t parent)
{
    /* Before the edge: who finds the run checks its parent. */
    atomic_store_explicit(&run->parent, parent, memory_order_release);
    count_size(space, parent, run->block_size, 1);
    if (!kve_run_edges_enter(space, run, parent)) {
        count_size(space, parent, run->block_size, -1);
        return false;
    }
    list_insert(space, run, parent);
    return true;
}

/* No child of the parent any more, who may be freed. */
static void
detach(struct kve_space *space, struct kve_run *run, uint32_t parent)
{
    uint32_t id = KVE_PARENT_ID(parent);

    list_remove(space, run, parent);
    count_size(space, parent, run->block_size, -1);
    if ((parent & KVE_PARENT_KIND) == KVE_PARENT_ROOT) {
        struct kve_root *root = kve_dir_get(&space->roots, id);

        if (root->n_children == 0 && root->id != 1)
            kve_root_free(space, root);
    } else if ((parent & KVE_PARENT_KIND) == KVE_PARENT_WAIT) {
        struct kve_wait *wait = kve_dir_get(&space->waits, id);

        if (wait->n_children == 0)
            kve_wait_free(kve_dir_get(&space->insts, wait->owner), wait);
    }
}

void
kve_run_unlink(struct kve_space *space, struct kve_run *run)
{
    uint32_t parent = kve_run_parent(run);

    edges_leave(space, run, parent);
    edges_shrink(space, run, parent);
    detach(space, run, parent);
}

static bool
edges_alike(const struct kve_space *space, const struct kve_run *run,
    uint32_t a, uint32_t b)
{
    return kve_table_alike(kve_run_edge_key(space, run, a),
               kve_run_edge_key(space, run, b)) ||
        ((run->flags & KVE_RUN_DYNAMO) != 0 &&
            kve_table_alike(kve_run_dedge_key(space, run, a),
                kve_run_dedge_key(space, run, b)));
}

bool
kve_run_relink(struct kve_space *space, struct kve_run *run, uint32_t parent)
{
    uint32_t old = kve_run_parent(run);
    bool alike = edges_alike(space, run, old, parent);
    bool entered;

    /* Behind both parents, so that readers find it, where that can be; else
     * moves says to look again. */
    atomic_fetch_add_explicit(&space->moves, 1, memory_order_acq_rel);
    if (alike)
        edges_leave(space, run, old);
    /* While the run still has its old parent, by which tables find its key. */
    entered = kve_run_edges_enter(space, run, parent);
    if (entered && !alike)
        edges_leave(space, run, old);
    else if (!entered && alike)
        /* There is room where it was. */
        (void)kve_run_edges_enter(space, run, old);
    if (entered) {
        detach(space, run, old);
        atomic_store_explicit(&run->parent, parent, memory_order_release);
        count_size(space, parent, run->block_size, 1);
        list_insert(space, run, parent);
        edges_shrink(space, run, old);
    }
    atomic_fetch_add_explicit(&space->moves, 1, memory_order_release);
    return entered;
}

struct kve_run *
kve_run_child(const struct kve_space *space, uint32_t parent,
    uint32_t block_size, uint64_t content)
{
    struct kve_probe probe;
    uint32_t id;

    kve_probe_begin(&probe, &space->edges,
        kve_edge_key(space, parent, block_size, content));
    while ((id = kve_probe_next(&probe)) != KVE_NO_VALUE) {
        struct kve_run *run = kve_run_get(space, id);

        if (run != NULL && run->block_size == block_size &&
            kve_run_parent(run) == parent &&
            kve_run_contents(run)[0] == content)
            return run;
    }
    return NULL;
}

/* ---- growing ---- */

/* Everything of from, in to, which has room for it. */
static void
run_copy(struct kve_run *to, const struct kve_run *from)
{
    uint32_t n = kve_run_n(from);
    uint32_t n_recs = kve_run_n_recs(from);
    uint32_t granules =
        from->n_granules < to->n_granules ? from->n_granules : to->n_granules;

    to->obj = from->obj;
    atomic_store_explicit(
        &to->parent, kve_run_parent(from), memory_order_relaxed);
    atomic_store_explicit(&to->n, n, memory_order_relaxed);
    atomic_store_explicit(&to->n_recs, n_recs, memory_order_relaxed);
    atomic_store_explicit(&to->n_odd,
        atomic_load_explicit(&from->n_odd, memory_order_relaxed),
        memory_order_relaxed);
    to->high = n;
    to->first_child = from->first_child;
    to->next = from->next;
    to->prev = from->prev;
    to->n_children = from->n_children;
    to->n_vecs = from->n_vecs;
    to->live = from->live;
    memcpy(to->hot, from->hot, n_recs * sizeof(to->hot[0]));
    memcpy((uint64_t *)(uintptr_t)kve_run_contents(to), kve_run_contents(from),
        ((from->flags & KVE_RUN_LOOSE) != 0 ? 0 : n) * sizeof(uint64_t));
    if ((from->flags & KVE_RUN_DYNAMO) != 0)
        memcpy((uint64_t *)(uintptr_t)kve_run_dynamo(to), kve_run_dynamo(from),
            n * sizeof(uint64_t));
    memcpy(
        kve_run_recs(to), kve_run_recs(from), n_recs * sizeof(struct kve_rec));
    memcpy(kve_run_vecs(to), kve_run_vecs(from),
        from->n_vecs * sizeof(struct kve_vec));
    for (uint32_t v = 0; v < from->n_vecs; v++) {
        memcpy(kve_run_granules(to, v), kve_run_granules(from, v),
            granules * sizeof(uint32_t));
        memcpy(kve_run_live(to, v), kve_run_live(from, v), granules);
    }
}

struct kve_run *
kve_run_reserve(
    struct kve_space *space, struct kve_run *run, struct kve_run_shape shape)
{
    struct kve_run *to =
        kve_run_object(space, run->block_size, run->flags, shape);

    if (to == NULL)
        return NULL;
    run_copy(to, run);
    kve_dir_set(&space->runs, run->obj.id, to);
    kve_pool_retire(space->pool, run);
    return to;
}

struct kve_run_shape
kve_run_shape_of(const struct kve_run *run)
{
    return (struct kve_run_shape){ run->cap, run->cap_recs, run->cap_vecs };
}

/* ---- vectors ---- */

int64_t
kve_vec_add(struct kve_space *space, uint32_t id, uint32_t owner,
    enum kve_name_form form, uint32_t phase)
{
    struct kve_run *run = kve_run_get(space, id);
    uint32_t v = 0;

    while (v < run->n_vecs &&
        (kve_run_vecs(run)[v].n_recs > 0 || kve_run_vecs(run)[v].live > 0))
        v++;
    if (v == run->cap_vecs) {
        struct kve_run_shape shape = kve_run_shape_of(run);

        shape.cap_vecs += shape.cap_vecs < 2 ? 1 : shape.cap_vecs / 2;
        if (shape.cap_vecs >= KVE_ANY_VEC ||
            (run = kve_run_reserve(space, run, shape)) == NULL)
            return -1;
    }
    struct kve_vec *vec = &kve_run_vecs(run)[v];

    if (vec->refs != NULL)
        kve_pool_free(space->pool, vec->refs);
    /* As with records: readers look at phase and granules. */
    vec->refs = NULL;
    vec->owner = owner;
    vec->live = 0;
    vec->n_recs = 0;
    vec->form = (uint8_t)form;
    atomic_store_explicit(&vec->phase, (uint8_t)phase, memory_order_relaxed);
    for (uint32_t g = 0; g < run->n_granules; g++)
        atomic_store_explicit(
            &kve_run_granules(run, v)[g], 0, memory_order_relaxed);
    memset(kve_run_live(run, v), 0, run->n_granules);
    if (v == run->n_vecs)
        run->n_vecs++;
    return v;
}

struct kve_place
kve_place_of(const struct kve_space *space, uint32_t block)
{
    struct kve_page *page = kve_page_of(&space->names, block);
    struct kve_place place = { NULL, 0, 0 };
    struct kve_granule_home *home;

    if (page == NULL)
        return place;
    home = &page->homes[block % KVE_PAGE_BLOCKS / KVE_GRANULE];
    place.run = kve_run_get(
        space, atomic_load_explicit(&home->run, memory_order_acquire));
    place.vec = atomic_load_explicit(&home->vec, memory_order_acquire);
    if (place.run == NULL || place.vec >= place.run->n_vecs)
        return (struct kve_place){ NULL, 0, 0 };
    place.pos =
        atomic_load_explicit(&home->place, memory_order_acquire) * KVE_GRANULE +
        block % KVE_GRANULE - kve_run_vecs(place.run)[place.vec].phase;
    return place;
}

void
kve_home_set(struct kve_space *space, uint32_t granule, uint32_t run,
    uint32_t place, uint32_t vec)
{
    struct kve_granule_home *home = kve_home_of(&space->names, granule);

    atomic_store_explicit(&home->run, run, memory_order_release);
    atomic_store_explicit(&home->place, (uint16_t)place, memory_order_release);
    atomic_store_explicit(&home->vec, (uint16_t)vec, memory_order_release);
}

/* ---- set-up and moving ---- */

static uint64_t
edges_key_of(void *ctx, uint32_t value)
{
    struct kve_space *space = ctx;
    struct kve_run *run = kve_run_at(space, value);

    return kve_run_edge_key(space, run, kve_run_parent(run));
}

static uint64_t
dedges_key_of(void *ctx, uint32_t value)
{
    struct kve_space *space = ctx;
    struct kve_run *run = kve_run_at(space, value);

    return kve_run_dedge_key(space, run, kve_run_parent(run));
}

static void
edges_prefetch(void *ctx, uint32_t value)
{
    __builtin_prefetch(kve_run_get(ctx, value));
}

kve_status
kve_runs_init(struct kve_space *space)
{
    struct kve_table_ops edges = { space, edges_key_of, edges_prefetch };
    struct kve_table_ops dedges = { space, dedges_key_of, edges_prefetch };
    kve_status status = kve_names_init(&space->names, space->pool);

    if (status == KVE_OK)
        status =
            kve_table_init(&space->edges, space->pool, KVE_TABLE_EDGES, &edges);
    if (status == KVE_OK)
        status = kve_table_init(
            &space->dedges, space->pool, KVE_TABLE_DEDGES, &dedges);
    return status;
}

/* An aux belongs to a record or is a vector's refs; few have one. */
static bool
aux_moved(struct kve_run *run, struct kve_aux *from, struct kve_aux *to)
{
    uint32_t n = kve_run_n_recs(run);

    for (uint32_t i = 0; i < n; i++) {
        struct kve_rec *rec = &kve_run_recs(run)[i];

        if (atomic_load_explicit(&rec->aux, memory_order_relaxed) == from) {
            atomic_store_explicit(&rec->aux, to, memory_order_release);
            return true;
        }
    }
    for (uint32_t v = 0; v < run->n_vecs; v++) {
        struct kve_vec *vec = &kve_run_vecs(run)[v];

        if (vec->refs == from) {
            vec->refs = to;
            return true;
        }
    }
    return false;
}

bool
kve_runs_moved(
    struct kve_space *space, struct kve_obj *from, struct kve_obj *to)
{
    struct kve_run *run = kve_run_get(space, from->id);

    if (from->kind == KVE_OBJ_AUX)
        return run != NULL &&
            aux_moved(run, (struct kve_aux *)(void *)from,
                (struct kve_aux *)(void *)to);
    if ((struct kve_obj *)(void *)run != from)
        return false;
    kve_dir_set(&space->runs, from->id, to);
    return true;
}
