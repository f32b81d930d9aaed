/*
 * mem_epoch.c - the budget, readers' slots, and what was retired.
 *
 * The epoch is a number that only grows. What a batch retired is sealed with
 * the epoch at its end, which then grows by one. A reader that entered in a
 * later epoch read that number, so it sees all that was unlinked before; what
 * is sealed with e is free when no slot says e or less. A slot that says 0 is
 * read by a read-modify-write, as it is written by one on entering: of both
 * one is first in the order of that slot, and so either the writer sees the
 * reader, or the reader what the writer did before it looked. No fences: the
 * thread sanitizer knows none.
 */
#include "index/mem_pool.h"

#include <sched.h>
#include <string.h>

#define RING_MIN 256u
#define QUIET_SETTLES 16384u

#define IS_ID(word) (((word)&1) != 0)
#define IS_MARK(word) (((word)&3) == 3)
#define MARK(epoch) ((epoch) << 2 | 3)
#define OPEN_MARK UINT64_MAX

/* ---- budget ---- */

void
kve_mem_shared_init(struct kve_mem_shared *shared, uint64_t max_bytes)
{
    memset(shared, 0, sizeof(*shared));
    shared->max_bytes = max_bytes;
    atomic_store(&shared->epoch, 1);
}

void
kve_mem_shared_release(struct kve_mem_shared *shared)
{
    struct kve_epoch_slot *slot = atomic_load(&shared->slots);

    atomic_store(&shared->slots, NULL);
    while (slot != NULL) {
        struct kve_epoch_slot *next = slot->next;

        kve_mem_free(slot->raw);
        kve_mem_discharge(shared, sizeof(*slot) + 64);
        slot = next;
    }
}

bool
kve_mem_charge(struct kve_mem_shared *shared, uint64_t bytes)
{
    uint64_t now = atomic_load_explicit(&shared->bytes, memory_order_relaxed);

    do {
        if (shared->max_bytes != 0 &&
            (now > shared->max_bytes || bytes > shared->max_bytes - now))
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&shared->bytes, &now,
        now + bytes, memory_order_relaxed, memory_order_relaxed));
    return true;
}

void
kve_mem_discharge(struct kve_mem_shared *shared, uint64_t bytes)
{
    atomic_fetch_sub_explicit(&shared->bytes, bytes, memory_order_relaxed);
}

void *
kve_charged_array(struct kve_mem_shared *shared, void *array, size_t cap,
    size_t want, size_t size)
{
    uint64_t more = (uint64_t)(want - cap) * size;
    void *grown;

    if (!kve_mem_charge(shared, more))
        return NULL;
    grown = kve_mem_array(array, want, size);
    if (grown == NULL)
        kve_mem_discharge(shared, more);
    return grown;
}

bool
kve_pool_charge(struct kve_pool *pool, uint64_t bytes)
{
    if (!kve_mem_charge(pool->shared, bytes))
        return false;
    pool->charged += bytes;
    return true;
}

void
kve_pool_discharge(struct kve_pool *pool, uint64_t bytes)
{
    pool->charged -= bytes;
    kve_mem_discharge(pool->shared, bytes);
}

/* ---- slots ---- */

static struct kve_epoch_slot *
reuse_slot(struct kve_mem_shared *shared)
{
    struct kve_epoch_slot *slot =
        atomic_load_explicit(&shared->slots, memory_order_acquire);

    for (; slot != NULL; slot = slot->next) {
        bool used = false;

        if (atomic_compare_exchange_strong(&slot->used, &used, true))
            break;
    }
    return slot;
}

struct kve_epoch_slot *
kve_epoch_slot_get(struct kve_mem_shared *shared)
{
    struct kve_epoch_slot *slot = reuse_slot(shared);
    size_t size = sizeof(*slot) + 64;

    if (slot != NULL)
        return slot;
    if (!kve_mem_charge(shared, size))
        return NULL;

    char *raw = kve_mem_alloc(size);
    if (raw == NULL) {
        kve_mem_discharge(shared, size);
        return NULL;
    }
    slot = (struct kve_epoch_slot *)(raw + (64 - (uintptr_t)raw % 64));
    memset(slot, 0, sizeof(*slot));
    slot->raw = raw;
    atomic_store(&slot->used, true);
    slot->next = atomic_load(&shared->slots);
    while (!atomic_compare_exchange_weak(&shared->slots, &slot->next, slot))
        ;
    return slot;
}

void
kve_epoch_slot_put(struct kve_epoch_slot *slot)
{
    if (slot != NULL)
        atomic_store(&slot->used, false);
}

/* Is a reader inside that entered in this epoch or before? Slots are added at
 * the head, with a read-modify-write as well. */
static bool
reader_inside(struct kve_mem_shared *shared, uint64_t epoch)
{
    struct kve_epoch_slot *slot = atomic_fetch_add(&shared->slots, 0);

    for (; slot != NULL; slot = slot->next) {
        uint64_t in = atomic_load_explicit(&slot->epoch, memory_order_acquire);

        if (in == 0)
            in = atomic_fetch_add(&slot->epoch, 0);
        if (in != 0 && in <= epoch)
            return true;
    }
    return false;
}

/* ---- the ring of what is retired ---- */

static uint64_t *
ring_at(struct kve_pool *pool, uint64_t i)
{
    return &pool->ring[i & (pool->ring_cap - 1)];
}

static bool
resize_ring(struct kve_pool *pool, uint64_t cap)
{
    uint64_t *ring;

    if (!kve_pool_charge(pool, cap * sizeof(*ring)))
        return false;
    ring = kve_mem_array(NULL, cap, sizeof(*ring));
    if (ring == NULL) {
        kve_pool_discharge(pool, cap * sizeof(*ring));
        return false;
    }
    for (uint64_t i = pool->head; i != pool->tail; i++)
        ring[i & (cap - 1)] = *ring_at(pool, i);
    kve_mem_free(pool->ring);
    kve_pool_discharge(pool, pool->ring_cap * sizeof(*ring));
    pool->ring = ring;
    pool->ring_cap = cap;
    return true;
}

static void
free_word(struct kve_pool *pool, uint64_t word)
{
    if (!IS_ID(word)) {
        void *object = (void *)(uintptr_t)word;

        pool->limbo -= kve_is_large(object) ? kve_large_of(object)->size
                                            : kve_slab_of(object)->size;
        kve_object_free(pool, object, true);
    } else if (pool->ops.id_free != NULL) {
        pool->ops.id_free(pool->ops.ctx, (uint32_t)(word >> 2) & 0xff,
            (uint32_t)(word >> 32));
    }
}

/* From now on, what was retired waits for those who are inside only. */
static void
seal(struct kve_pool *pool)
{
    if (!pool->open)
        return;
    pool->open = false;
    *ring_at(pool, pool->mark) =
        MARK(atomic_fetch_add(&pool->shared->epoch, 1));
}

/* Free what was sealed and nobody can see; true when nothing sealed is left.
 * Freeing an id may retire something: that waits for its own seal. */
static bool
free_sealed(struct kve_pool *pool)
{
    uint64_t known = 0; /* no reader up to this epoch */

    while (pool->head != pool->tail) {
        uint64_t word = *ring_at(pool, pool->head);

        if (IS_MARK(word)) {
            if (word == OPEN_MARK)
                return true;
            if (word >> 2 > known && reader_inside(pool->shared, word >> 2))
                return false;
            known = word >> 2;
        }
        pool->head++;
        if (!IS_MARK(word))
            free_word(pool, word);
    }
    return true;
}

static void
tell_limbo(struct kve_pool *pool)
{
    uint64_t more = pool->limbo - pool->limbo_told;

    if (more != 0)
        atomic_fetch_add_explicit(
            &pool->shared->limbo, more, memory_order_relaxed);
    pool->limbo_told = pool->limbo;
}

/*
 * Without memory: wait until nobody is inside who saw it, and free all. The
 * word is kept aside, it is not in the ring yet.
 */
static void
wait_and_free(struct kve_pool *pool, uint64_t word)
{
    uint64_t epoch;

    seal(pool);
    epoch = atomic_fetch_add(&pool->shared->epoch, 1);
    while (reader_inside(pool->shared, epoch))
        (void)sched_yield();
    (void)free_sealed(pool);
    free_word(pool, word);
}

static void
push(struct kve_pool *pool, uint64_t word)
{
    if (pool->tail - pool->head + 2 > pool->ring_cap &&
        !resize_ring(
            pool, pool->ring_cap == 0 ? RING_MIN : 2 * pool->ring_cap)) {
        wait_and_free(pool, word);
        return;
    }
    if (!pool->open) {
        pool->open = true;
        pool->mark = pool->tail;
        *ring_at(pool, pool->tail++) = OPEN_MARK;
    }
    *ring_at(pool, pool->tail++) = word;
}

void
kve_pool_retire(struct kve_pool *pool, void *object)
{
    if (object == NULL)
        return;
    if (kve_is_large(object)) {
        pool->limbo += kve_large_of(object)->size;
    } else {
        struct kve_slab *slab = kve_slab_of(object);
        uint32_t i = kve_slab_index(slab, object);

        slab->bits[slab->words + i / 64] &= ~(UINT64_C(1) << i % 64);
        slab->n_live--;
        pool->limbo += slab->size;
    }
    push(pool, (uintptr_t)object);
}

void
kve_pool_retire_id(struct kve_pool *pool, uint32_t kind, uint32_t id)
{
    push(pool, (uint64_t)id << 32 | (uint64_t)(kind & 0xff) << 2 | 1);
}

static void
settle_slowly(struct kve_pool *pool)
{
    seal(pool);
    (void)free_sealed(pool);
    tell_limbo(pool);
    if (pool->sweep) {
        pool->sweep = false;
        kve_pool_sweep(pool);
        pool->sweep = false;
        kve_regions_trim(pool, kve_regions_keep(pool), false);
    }
    if (pool->grow != NULL && ++pool->quiet >= QUIET_SETTLES)
        kve_regions_trim(pool, kve_regions_keep(pool), true);
    if (pool->head == pool->tail && pool->ring_cap > 4 * RING_MIN)
        (void)resize_ring(pool, RING_MIN);
}

void
kve_pool_settle(struct kve_pool *pool)
{
    if (pool->head != pool->tail || pool->sweep || pool->grow != NULL ||
        pool->limbo != pool->limbo_told)
        settle_slowly(pool);
}

void
kve_pool_trim(struct kve_pool *pool)
{
    kve_pool_settle(pool);
    kve_pool_sweep(pool);
    kve_regions_trim(pool, 0, true);
}

void
kve_limbo_release(struct kve_pool *pool)
{
    pool->limbo = 0;
    tell_limbo(pool);
    kve_mem_free(pool->ring);
    kve_pool_discharge(pool, pool->ring_cap * sizeof(*pool->ring));
    pool->ring = NULL;
    pool->ring_cap = 0;
}
