/*
 * space.c - a namespace as a whole: its parts, its lock, and what is done
 * whenever the lock is given back.
 *
 * Giving memory back is paid by those who cause the work: each batch drains
 * about as many blocks as it brought, and some more so that it ends; then what
 * no reader can see any more is freed, and when slabs became sparse a little
 * is moved together. The time for it is bounded, because the next batch waits.
 */
#include "base/alloc.h"
#include "base/clock.h"
#include "index/writer.h"

#include <string.h>

/* Blocks to drain beside those that a batch brought, and for how long. */
#define DRAIN_MORE 256
#define DRAIN_US 300
/* Blocks between two looks at the clock. */
#define DRAIN_SLICE 64
/* Lives that wait for their last name are looked at this many at a time. */
#define LIVES_SLICE 32

/* Slabs are sparse when more than a quarter and this is neither live nor
 * waiting for readers. */
#define SPARSE_BYTES (UINT64_C(1) << 20)
/* Blocks applied from one look at how dense slabs are to the next: adding that
 * up takes as long as applying a few. */
#define LOOK_BLOCKS 256u
#define COMPACT_BYTES 16384u
#define COMPACT_BYTES_MAX 262144u
#define COMPACT_BYTES_BLOCK 64u

/* ---- what the pool asks ---- */

static struct kve_table *
table_of(struct kve_space *space, uint32_t id)
{
    switch ((enum kve_table_id)id) {
    case KVE_TABLE_NAMES:
        return &space->names.table;
    case KVE_TABLE_EDGES:
        return &space->edges;
    case KVE_TABLE_DEDGES:
        return &space->dedges;
    case KVE_TABLE_ROOTS:
        return &space->root_ids;
    case KVE_TABLE_WAITS:
        return &space->wait_ids;
    }
    return NULL;
}

static bool
on_moved(void *ctx, struct kve_obj *from, struct kve_obj *to)
{
    struct kve_space *space = ctx;
    struct kve_table *table;

    switch (from->kind) {
    case KVE_OBJ_RUN:
    case KVE_OBJ_AUX:
        return kve_runs_moved(space, from, to);
    case KVE_OBJ_PAGE:
    case KVE_OBJ_NAME:
        return kve_names_moved(&space->names, from, to);
    case KVE_OBJ_SEGMENT:
        table = table_of(space, from->id);
        return table != NULL && kve_table_moved(table, from, to);
    default:
        return false;
    }
}

static void
on_id_free(void *ctx, uint32_t kind, uint32_t id)
{
    struct kve_space *space = ctx;

    switch (kind) {
    case KVE_OBJ_RUN:
        kve_dir_free(&space->runs, id);
        break;
    case KVE_OBJ_GRANULE:
        kve_names_id_free(&space->names, kind, id);
        break;
    case KVE_ID_SCOPE:
        kve_dir_free(&space->scopes, id);
        break;
    case KVE_ID_INST:
        kve_dir_free(&space->insts, id);
        break;
    case KVE_ID_ROOT:
        kve_dir_free(&space->roots, id);
        break;
    case KVE_ID_WAIT:
        kve_dir_free(&space->waits, id);
        break;
    default:
        break;
    }
}

void *
kve_fixed_alloc(struct kve_space *space, size_t size)
{
    void *p = kve_pool_alloc(space->pool, size);

    if (p != NULL)
        memset(p, 0, size); /* the kind too: KVE_OBJ_FIXED */
    return p;
}

/* ---- create, destroy ---- */

static bool
copy_name(kve_index *index, const char *text, char **ret_copy)
{
    size_t size = strlen(text) + 1;

    *ret_copy = kve_index_alloc(index, size);
    if (*ret_copy == NULL)
        return false;
    memcpy(*ret_copy, text, size);
    return true;
}

static void
free_name(kve_index *index, char *text)
{
    if (text != NULL)
        kve_index_free(index, text, strlen(text) + 1);
}

/* The slot of lives that were dropped, and the life of scopes that have none:
 * nobody sees them, they only count. */
static bool
make_grave(struct kve_space *space)
{
    struct kve_slot *slot = kve_index_alloc(space->index, sizeof(*slot));

    space->no_slot = slot;
    if (slot == NULL)
        return false;
    slot->counters = kve_index_alloc(space->index, sizeof(*slot->counters));
    if (slot->counters == NULL)
        return false;
    atomic_store_explicit(&slot->space, space, memory_order_relaxed);
    space->grave = kve_inst_create(slot, true);
    if (space->grave != NULL)
        space->grave->retired = true;
    return space->grave != NULL;
}

static bool
fill(struct kve_space *space, const char *model, const char *tenant)
{
    const struct kve_pool_ops ops = { space, on_moved, on_id_free };
    kve_index *index = space->index;

    if (!copy_name(index, model, &space->model) ||
        !copy_name(index, tenant, &space->tenant) ||
        kve_pool_create(&index->mem, &ops, &space->pool) != KVE_OK)
        return false;
    kve_dir_init(&space->runs, space->pool);
    kve_dir_init(&space->scopes, space->pool);
    kve_dir_init(&space->insts, space->pool);
    kve_dir_init(&space->roots, space->pool);
    kve_dir_init(&space->waits, space->pool);
    return kve_runs_init(space) == KVE_OK && kve_roots_init(space) == KVE_OK &&
        kve_apply_create(space) == KVE_OK && make_grave(space);
}

kve_status
kve_space_create(kve_index *index, uint32_t id, const char *model,
    const char *tenant, struct kve_space **ret_space)
{
    struct kve_space *space = kve_index_alloc(index, sizeof(*space));

    if (space == NULL)
        return KVE_E_NOMEM;
    if (pthread_mutex_init(&space->lock, NULL) != 0) {
        kve_index_free(index, space, sizeof(*space));
        return KVE_E_NOMEM;
    }
    space->index = index;
    space->id = id;
    if (!fill(space, model, tenant)) {
        kve_space_destroy(space);
        return KVE_E_NOMEM;
    }
    *ret_space = space;
    return KVE_OK;
}

/* What lives have beside the pool. */
static void
free_marks(struct kve_space *space)
{
    for (uint32_t id = 1; id < space->insts.next; id++) {
        struct kve_inst *inst = kve_dir_get(&space->insts, id);

        if (inst != NULL)
            kve_bridges_free(inst);
    }
}

void
kve_space_destroy(struct kve_space *space)
{
    kve_index *index;

    if (space == NULL)
        return;
    index = space->index;
    free_marks(space);
    kve_apply_destroy(space);
    kve_pool_destroy(space->pool);
    if (space->no_slot != NULL)
        kve_index_free(
            index, space->no_slot->counters, sizeof(*space->no_slot->counters));
    kve_index_free(index, space->no_slot, sizeof(*space->no_slot));
    free_name(index, space->model);
    free_name(index, space->tenant);
    (void)pthread_mutex_destroy(&space->lock);
    kve_index_free(index, space, sizeof(*space));
}

/* ---- draining ---- */

/* One slice of the scope that has waited longest. Returns the blocks done. */
static uint64_t
drain_slice(struct kve_space *space, size_t max_blocks)
{
    struct kve_scope *scope = space->drain;
    uint64_t before = scope->held;
    uint64_t done;

    if (!kve_scope_drain(space, scope, max_blocks)) {
        done = before - scope->held;
        return done == 0 ? max_blocks : done;
    }
    space->drain = scope->next_retired;
    if (space->drain == NULL)
        space->last_drain = NULL;
    kve_scope_free(scope);
    return before;
}

void
kve_life_append(struct kve_space *space, struct kve_inst *inst)
{
    inst->next_retired = NULL;
    if (space->last_retired != NULL)
        space->last_retired->next_retired = inst;
    else
        space->retired = inst;
    space->last_retired = inst;
}

/* Where memory was short, empty runs may have been overlooked: look at all of
 * those that one life has for itself. */
static void
sweep(struct kve_space *space)
{
    bool again = true;

    while (again) {
        again = false;
        for (uint32_t id = space->runs.next; id-- > 1;) {
            struct kve_run *run = kve_run_get(space, id);

            if (run == NULL || run->n_children > 0 ||
                (run->flags & (KVE_RUN_WAITING | KVE_RUN_LOOSE)) == 0)
                continue;
            kve_run_finish(space, id);
            again |= kve_run_get(space, id) == NULL;
        }
    }
}

/* Free lives of which nothing is left; others go to the end of the list.
 * Returns whether one was freed. */
static bool
bury_lives(struct kve_space *space)
{
    bool freed = false;

    for (size_t i = 0; i < LIVES_SLICE && space->retired != NULL; i++) {
        struct kve_inst *inst = space->retired;

        space->retired = inst->next_retired;
        if (space->retired == NULL)
            space->last_retired = NULL;
        if (inst->n_draining == 0 && inst->n_private == 0 &&
            inst->n_waits == 0) {
            kve_inst_free(inst);
            freed = true;
        } else {
            if (inst->n_draining == 0 && !inst->swept)
                sweep(space);
            inst->swept = inst->n_draining == 0;
            kve_life_append(space, inst);
        }
    }
    return freed;
}

bool
kve_space_drain(struct kve_space *space, size_t max_blocks, uint64_t max_us)
{
    int64_t end;
    bool more;

    if (space->drain == NULL && space->retired == NULL)
        return false;
    end = kve_now_ns() + (int64_t)max_us * 1000;
    while (space->drain != NULL && max_blocks > 0) {
        size_t slice = max_blocks < DRAIN_SLICE ? max_blocks : DRAIN_SLICE;
        uint64_t done = drain_slice(space, slice);

        max_blocks -= done < max_blocks ? done : max_blocks;
        if (max_blocks == 0 || kve_now_ns() >= end)
            break;
    }
    do {
        more = bury_lives(space);
    } while (more && kve_now_ns() < end);
    return space->drain != NULL || more;
}

/* ---- the lock ---- */

/* How many bytes to move together, at most; 0: slabs are dense enough. */
static size_t
sparse_bytes(const struct kve_space *space)
{
    struct kve_pool_use use = kve_pool_use(space->pool);
    uint64_t needed = use.live + use.limbo;
    uint64_t budget = COMPACT_BYTES + COMPACT_BYTES_BLOCK * space->unlooked;

    if (use.bytes < needed + SPARSE_BYTES || use.bytes / 4 * 3 < needed)
        return 0;
    return budget < COMPACT_BYTES_MAX ? budget : COMPACT_BYTES_MAX;
}

void
kve_space_unlock(struct kve_space *space)
{
    size_t budget;

    (void)kve_space_drain(space, space->work + DRAIN_MORE, DRAIN_US);
    kve_pool_settle(space->pool);
    space->unlooked += space->work + 1;
    space->work = 0;
    if (space->unlooked >= LOOK_BLOCKS) {
        budget = sparse_bytes(space);
        if (budget != 0)
            (void)kve_pool_compact(space->pool, budget);
        space->unlooked = 0;
    }
    (void)pthread_mutex_unlock(&space->lock);
}

/* Tidy one namespace; true when more is left. */
static bool
tidy_space(struct kve_space *space, int64_t end)
{
    int64_t left = end - kve_now_ns();
    bool more;

    (void)pthread_mutex_lock(&space->lock);
    more =
        kve_space_drain(space, SIZE_MAX, left > 0 ? (uint64_t)left / 1000 : 0);
    kve_pool_settle(space->pool);
    if (!more && sparse_bytes(space) != 0) {
        do
            more = kve_pool_compact(space->pool, COMPACT_BYTES);
        while (more && kve_now_ns() < end);
    }
    /* A namespace that rests keeps nothing for the next batch. */
    if (!more)
        kve_pool_trim(space->pool);
    (void)pthread_mutex_unlock(&space->lock);
    return more;
}

bool
kve_index_tidy(kve_index *index, uint64_t max_us)
{
    /* An hour is as good as for ever, and does not overflow. */
    uint64_t us = max_us < UINT64_C(3600000000) ? max_us : UINT64_C(3600000000);
    int64_t end = kve_now_ns() + (int64_t)us * 1000;
    uint32_t n = atomic_load_explicit(&index->n_spaces, memory_order_acquire);
    bool more = false;

    for (uint32_t i = 0; i < n; i++)
        more |= tidy_space(kve_space_get(index, i + 1), end);
    return more;
}
