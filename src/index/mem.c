/*
 * mem.c - classes, slabs and objects; see mem.h and mem_pool.h.
 *
 * Sizes of classes are not a geometric row: a class is what a slab divided by
 * a whole number gives, so the end of a slab is never lost, and the numbers
 * are chosen so that what an index is full of (pages of names of 640, 1,152
 * and 2,176 bytes, segments of 4 to 8 KiB) fits closely.
 */
#include "index/mem_pool.h"

#include <pthread.h>
#include <string.h>

#define SIZE_STEP 16u
#define N_STEPS (KVE_SLAB_OBJECT_MAX / SIZE_STEP + 1)
#define LARGE_HEAD sizeof(struct kve_large)

_Static_assert(LARGE_HEAD == 64, "objects of their own are aligned to 64");
_Static_assert(offsetof(struct kve_slab, bits) + 16 > LARGE_HEAD,
    "no object of a slab is where an object of its own mapping would be");

/* What a class must hold at least; it holds what fits as often into a slab. */
static const uint16_t wanted[] = { 16, 32, 48, 64, 80, 96, 112, 128, 144, 160,
    192, 224, 256, 288, 320, 352, 384, 448, 512, 576, 608, 640, 704, 768, 832,
    896, 960, 1024, 1120, 1152, 1280, 1408, 1536, 1664, 1792, 1920, 2144 };
/* From there on: this many objects a slab. */
static const uint8_t shares[] = { 28, 26, 24, 22, 20, 19, 18, 17, 16, 15, 14,
    13, 12, 11, 10, 9, 8, 7, 6, 5, 4 };

#define N_WANTED (sizeof(wanted) / sizeof(wanted[0]))
#define N_SHARES (sizeof(shares) / sizeof(shares[0]))
#define N_CLASSES (N_WANTED + N_SHARES)

_Static_assert(N_CLASSES <= KVE_MEM_CLASSES, "no room for all classes");

struct kve_class_shape kve_class_shapes[KVE_MEM_CLASSES];
static uint8_t class_of[N_STEPS];
static pthread_once_t shapes_once = PTHREAD_ONCE_INIT;

/* ---- classes ---- */

static uint32_t
head_size(uint32_t n)
{
    uint32_t words = (n + 63) / 64;

    return ((uint32_t)offsetof(struct kve_slab, bits) + 16 * words + 63) & ~63u;
}

static void
make_shape(struct kve_class_shape *shape, uint32_t size, uint32_t n)
{
    uint32_t step = size % 64 == 0 ? 64 : SIZE_STEP;

    if (n == 0)
        for (n = KVE_SLAB_SIZE / size; head_size(n) + n * size > KVE_SLAB_SIZE;)
            n--;
    shape->n = n;
    shape->words = (n + 63) / 64;
    shape->first = head_size(n);
    shape->size = (KVE_SLAB_SIZE - shape->first) / n / step * step;
    shape->recip =
        (uint32_t)(((UINT64_C(1) << 32) + shape->size - 1) / shape->size);
}

/* Whole cache lines are asked for by who wants them aligned. */
static uint8_t
find_class(uint32_t size)
{
    uint32_t cls = 0;

    while (kve_class_shapes[cls].size < size ||
        (size % 64 == 0 && kve_class_shapes[cls].size % 64 != 0))
        cls++;
    return (uint8_t)cls;
}

static void
make_shapes(void)
{
    for (uint32_t i = 0; i < N_WANTED; i++)
        make_shape(&kve_class_shapes[i], wanted[i], 0);
    for (uint32_t i = 0; i < N_SHARES; i++)
        make_shape(&kve_class_shapes[N_WANTED + i], 64, shares[i]);
    for (uint32_t i = 0; i < N_STEPS; i++)
        class_of[i] = i == 0 ? 0 : find_class(i * SIZE_STEP);
}

size_t
kve_pool_good_size(size_t size)
{
    (void)pthread_once(&shapes_once, make_shapes);
    if (size <= KVE_SLAB_OBJECT_MAX)
        return kve_class_shapes[class_of[(size + 15) / SIZE_STEP]].size;
    return (size + LARGE_HEAD + 4095) / 4096 * 4096 - LARGE_HEAD;
}

/* ---- lists of slabs ---- */

/* What is pinned goes to the end: compaction looks at the first only. */
void
kve_slab_list(struct kve_pool *pool, struct kve_slab *slab)
{
    struct kve_class *c = &pool->classes[slab->cls];
    uint32_t bucket = slab->n_used * KVE_SLAB_BUCKETS / slab->n;
    struct kve_slab **head = &c->lists[bucket];

    slab->bucket = (uint8_t)bucket;
    slab->low = (uint16_t)((bucket * slab->n + KVE_SLAB_BUCKETS - 1) /
        KVE_SLAB_BUCKETS);
    slab->flags |= KVE_SLAB_LISTED;
    if (*head == NULL) {
        slab->next = slab->prev = slab;
        *head = slab;
        c->mask |= 1u << bucket;
        return;
    }
    slab->next = *head;
    slab->prev = (*head)->prev;
    slab->prev->next = slab;
    slab->next->prev = slab;
    if ((slab->flags & KVE_SLAB_PINNED) == 0)
        *head = slab;
}

void
kve_slab_unlist(struct kve_pool *pool, struct kve_slab *slab)
{
    struct kve_class *c = &pool->classes[slab->cls];
    struct kve_slab **head = &c->lists[slab->bucket];

    slab->flags &= (uint8_t)~KVE_SLAB_LISTED;
    if (slab->next == slab) {
        *head = NULL;
        c->mask &= ~(1u << slab->bucket);
        return;
    }
    slab->next->prev = slab->prev;
    slab->prev->next = slab->next;
    if (*head == slab)
        *head = slab->next;
}

/* ---- objects of slabs ---- */

static struct kve_slab *
next_current(struct kve_pool *pool, uint32_t cls)
{
    struct kve_class *c = &pool->classes[cls];

    if (c->mask == 0)
        return NULL;

    struct kve_slab *slab = c->lists[31 - __builtin_clz(c->mask)];
    kve_slab_unlist(pool, slab);
    slab->flags = KVE_SLAB_CURRENT;
    c->current = slab;
    return slab;
}

void *
kve_class_take(struct kve_pool *pool, uint32_t cls)
{
    struct kve_class *c = &pool->classes[cls];
    struct kve_slab *slab = c->current;

    if (slab == NULL) {
        slab = next_current(pool, cls);
        if (slab == NULL)
            return NULL;
    }

    uint32_t w = slab->hint;
    while (~slab->bits[w] == 0)
        w++;
    uint32_t bit = (uint32_t)__builtin_ctzll(~slab->bits[w]);
    slab->bits[w] |= UINT64_C(1) << bit;
    slab->bits[slab->words + w] |= UINT64_C(1) << bit;
    slab->hint = (uint16_t)w;
    slab->n_live++;
    c->n_used++;
    c->n_free--;
    if (++slab->n_used == slab->n) {
        slab->flags = 0;
        c->current = NULL;
    }

    void *object = kve_slab_object(slab, w * 64 + bit);
    KVE_UNPOISON(object, slab->size);
    return object;
}

static bool
add_slab(struct kve_pool *pool, uint32_t cls)
{
    const struct kve_class_shape *shape = &kve_class_shapes[cls];
    struct kve_class *c = &pool->classes[cls];
    struct kve_region *region;
    struct kve_slab *slab = kve_slab_get(pool, &region);

    if (slab == NULL)
        return false;
    KVE_UNPOISON(slab, shape->first);
    memset(slab, 0, shape->first);
    slab->cls = (uint16_t)cls;
    slab->n = (uint16_t)shape->n;
    slab->words = (uint16_t)shape->words;
    slab->size = shape->size;
    slab->first = shape->first;
    slab->recip = shape->recip;
    slab->region = region;
    KVE_POISON((char *)slab + shape->first, KVE_SLAB_SIZE - shape->first);
    slab->flags = KVE_SLAB_CURRENT;
    c->current = slab;
    c->n_slabs++;
    c->n_free += slab->n;
    return true;
}

static void
drop_slab(struct kve_pool *pool, struct kve_slab *slab)
{
    struct kve_class *c = &pool->classes[slab->cls];

    if ((slab->flags & KVE_SLAB_LISTED) != 0)
        kve_slab_unlist(pool, slab);
    if (c->current == slab)
        c->current = NULL;
    if (pool->drain == slab)
        pool->drain = NULL;
    c->n_slabs--;
    if ((slab->flags & KVE_SLAB_DRAIN) == 0)
        c->n_free -= slab->n;
    kve_slab_put(pool, slab);
}

/* One object less in it: where does it belong now? */
static void
slab_lost_one(struct kve_pool *pool, struct kve_slab *slab)
{
    if ((slab->flags & KVE_SLAB_CURRENT) != 0) {
        pool->sweep |= slab->n_used == 0;
    } else if (slab->n_used == 0) {
        drop_slab(pool, slab);
    } else if (slab->flags == 0) {
        kve_slab_list(pool, slab);
    } else if ((slab->flags & KVE_SLAB_LISTED) != 0 &&
        slab->n_used < slab->low) {
        kve_slab_unlist(pool, slab);
        slab->flags = 0;
        kve_slab_list(pool, slab);
    }
}

void
kve_pool_sweep(struct kve_pool *pool)
{
    for (uint32_t cls = 0; cls < N_CLASSES; cls++) {
        struct kve_slab *slab = pool->classes[cls].current;

        if (slab != NULL && slab->n_used == 0)
            drop_slab(pool, slab);
    }
}

/* ---- objects that have a mapping of their own ---- */

static void *
large_alloc(struct kve_pool *pool, size_t size)
{
    if (size > SIZE_MAX / 2)
        return NULL;

    size_t all = kve_pool_good_size(size) + LARGE_HEAD;
    uint64_t cost = kve_mem_map_cost(all, KVE_SLAB_SIZE);
    if (!kve_pool_charge(pool, cost))
        return NULL;

    struct kve_large *large = kve_mem_map(all, KVE_SLAB_SIZE);
    if (large == NULL) {
        kve_pool_discharge(pool, cost);
        return NULL;
    }
    large->size = all;
    large->cost = cost;
    large->prev = NULL;
    large->next = pool->large;
    if (pool->large != NULL)
        pool->large->prev = large;
    pool->large = large;
    pool->large_bytes += all;
    return (char *)large + LARGE_HEAD;
}

static void
large_free(struct kve_pool *pool, struct kve_large *large)
{
    uint64_t cost = large->cost;

    if (large->prev != NULL)
        large->prev->next = large->next;
    else
        pool->large = large->next;
    if (large->next != NULL)
        large->next->prev = large->prev;
    pool->large_bytes -= large->size;
    kve_mem_unmap(large, large->size);
    kve_pool_discharge(pool, cost);
}

/* ---- objects ---- */

void *
kve_pool_alloc(struct kve_pool *pool, size_t size)
{
    if (kve_mem_inject())
        return NULL;
    if (size > KVE_SLAB_OBJECT_MAX)
        return large_alloc(pool, size);

    uint32_t cls = class_of[(size + 15) / SIZE_STEP];
    void *object = kve_class_take(pool, cls);
    if (object == NULL && add_slab(pool, cls))
        object = kve_class_take(pool, cls);
    return object;
}

void
kve_object_free(struct kve_pool *pool, void *object, bool retired)
{
    if (kve_is_large(object)) {
        large_free(pool, kve_large_of(object));
        return;
    }

    struct kve_slab *slab = kve_slab_of(object);
    uint32_t i = kve_slab_index(slab, object);
    uint64_t bit = UINT64_C(1) << i % 64;

    slab->bits[i / 64] &= ~bit;
    if (!retired) {
        slab->bits[slab->words + i / 64] &= ~bit;
        slab->n_live--;
    }
    if (slab->hint > i / 64)
        slab->hint = (uint16_t)(i / 64);
    slab->n_used--;
    pool->classes[slab->cls].n_used--;
    pool->classes[slab->cls].n_free += (slab->flags & KVE_SLAB_DRAIN) == 0;
    KVE_POISON(object, slab->size);
    slab_lost_one(pool, slab);
}

void
kve_pool_free(struct kve_pool *pool, void *object)
{
    if (object != NULL)
        kve_object_free(pool, object, false);
}

/* ---- the pool ---- */

kve_status
kve_pool_create(struct kve_mem_shared *shared, const struct kve_pool_ops *ops,
    struct kve_pool **ret_pool)
{
    struct kve_pool *pool;

    (void)pthread_once(&shapes_once, make_shapes);
    if (!kve_mem_charge(shared, sizeof(*pool)))
        return KVE_E_NOMEM;
    pool = kve_mem_zalloc(1, sizeof(*pool));
    if (pool == NULL) {
        kve_mem_discharge(shared, sizeof(*pool));
        return KVE_E_NOMEM;
    }
    pool->shared = shared;
    pool->charged = sizeof(*pool);
    if (ops != NULL)
        pool->ops = *ops;
    *ret_pool = pool;
    return KVE_OK;
}

void
kve_pool_destroy(struct kve_pool *pool)
{
    if (pool == NULL)
        return;
    while (pool->large != NULL)
        large_free(pool, pool->large);
    kve_limbo_release(pool);
    kve_regions_release(pool);
    kve_mem_discharge(pool->shared, pool->charged);
    kve_mem_free(pool);
}

struct kve_pool_use
kve_pool_use(const struct kve_pool *pool)
{
    struct kve_pool_use use = { pool->charged, pool->large_bytes, pool->limbo };

    for (uint32_t cls = 0; cls < N_CLASSES; cls++)
        use.live += pool->classes[cls].n_used * kve_class_shapes[cls].size;
    use.live -= pool->limbo;
    return use;
}

uint64_t
kve_pool_bytes(const struct kve_pool *pool)
{
    return atomic_load_explicit(&pool->charged, memory_order_relaxed);
}

/* How many of n classes, of which each needs at least 2^b bytes before it asks
 * for a slab, can be made to by so many bytes. */
static uint64_t
can_overflow(const uint8_t *n_by_log, uint64_t size)
{
    uint64_t slabs = 0;

    for (uint32_t b = 0; b < 32; b++) {
        uint64_t n = n_by_log[b];

        if (n > size >> b)
            n = size >> b;
        slabs += n;
        size -= n << b;
    }
    return slabs;
}

/*
 * A slab is needed by a class as soon as more is asked of it than it has free:
 * at worst the bytes go to the classes that have least. What is free below the
 * limit may go to other pools meanwhile: their writers have to leave each
 * other room.
 */
bool
kve_pool_room(struct kve_pool *pool, size_t size)
{
    const struct kve_mem_shared *shared = pool->shared;
    uint64_t bytes = atomic_load_explicit(&shared->bytes, memory_order_relaxed);
    uint64_t slabs = 4 + size / (KVE_SLAB_SIZE / 4 * 3);
    uint64_t rest = size / 4 + KVE_SLAB_SIZE;
    uint8_t n_by_log[32] = { 0 };

    if (shared->max_bytes == 0)
        return true;
    if (bytes > shared->max_bytes)
        return false;
    if ((slabs + N_CLASSES) * KVE_SLAB_SIZE + rest <= shared->max_bytes - bytes)
        return true;
    for (uint32_t cls = 0; cls < N_CLASSES; cls++) {
        const struct kve_class *c = &pool->classes[cls];
        uint64_t first = c->n_free * kve_class_shapes[cls].size + 1;

        if (c->n_slabs > 0 && first <= size && first <= UINT32_MAX)
            n_by_log[31 - __builtin_clz((uint32_t)first)]++;
    }
    slabs += can_overflow(n_by_log, size);
    slabs -= slabs < pool->n_kept ? slabs : pool->n_kept;
    return slabs * KVE_SLAB_SIZE + rest <= shared->max_bytes - bytes;
}
