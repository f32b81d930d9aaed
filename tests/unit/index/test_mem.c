/*
 * ctest-timeout: 300
 *
 * Memory of a namespace: classes, the limit, what is retired, compaction,
 * directories, and that everything goes back. Objects carry their number and
 * a pattern over all their bytes, checked before they go.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "index/mem_pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define MIB 1048576u
#define REST (256u * 1024) /* what may stay when all was freed */

/* ---- a population of objects ---- */

struct item {
    struct kve_obj *obj;
    size_t size;
    bool fixed;
};

struct world {
    struct kve_mem_shared shared;
    struct kve_pool *pool;
    struct kve_dir dir;
    struct item *items;
    uint32_t n;
    uint64_t random;
    uint32_t moves;
    uint32_t refuse; /* moved() refuses every this many-th id; 0: none */
    uint32_t n_freed_ids;
    uint32_t last_freed_id;
    uint32_t last_freed_kind;
};

static uint32_t
rnd(struct world *w, uint32_t n)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (uint32_t)(w->random >> 32) % n;
}

static void
fill(struct kve_obj *obj, size_t size, bool fixed, uint32_t id)
{
    memset(obj, (int)(id * 37 & 0xff), size);
    obj->kind = fixed ? KVE_OBJ_FIXED : KVE_OBJ_RUN;
    obj->id = id;
}

static void
check(const struct item *item, uint32_t id)
{
    const unsigned char *bytes = (const unsigned char *)item->obj;

    assert_int_equal(
        item->obj->kind, item->fixed ? KVE_OBJ_FIXED : KVE_OBJ_RUN);
    assert_int_equal(item->obj->id, id);
    for (size_t i = sizeof(*item->obj); i < item->size; i++)
        if (bytes[i] != (id * 37 & 0xff))
            fail_msg("object %u of %zu bytes differs at %zu", (unsigned)id,
                item->size, i);
}

static bool
moved(void *ctx, struct kve_obj *from, struct kve_obj *to)
{
    struct world *w = ctx;
    struct item *item = &w->items[from->id];

    assert_ptr_equal(item->obj, from);
    assert_false(item->fixed);
    if (w->refuse != 0 && from->id % w->refuse == 0)
        return false;
    item->obj = to;
    w->moves++;
    return true;
}

static void
id_free(void *ctx, uint32_t kind, uint32_t id)
{
    struct world *w = ctx;

    w->n_freed_ids++;
    w->last_freed_id = id;
    w->last_freed_kind = kind;
}

static void
start(struct world *w, uint64_t max_bytes)
{
    struct kve_pool_ops ops = { w, moved, id_free };

    memset(w, 0, sizeof(*w));
    w->random = 88172645463325252u;
    kve_mem_shared_init(&w->shared, max_bytes);
    assert_int_equal(kve_pool_create(&w->shared, &ops, &w->pool), KVE_OK);
    kve_dir_init(&w->dir, w->pool);
}

static uint64_t
bytes_of(struct world *w)
{
    return atomic_load(&w->shared.bytes);
}

static void
end(struct world *w)
{
    kve_pool_destroy(w->pool);
    assert_int_equal(bytes_of(w), 0);
    assert_int_equal(atomic_load(&w->shared.limbo), 0);
    kve_mem_shared_release(&w->shared);
    assert_int_equal(bytes_of(w), 0);
    free(w->items);
}

/* Sizes as an index has them: pages, runs, segments. */
static size_t
usual_size(struct world *w)
{
    switch (rnd(w, 8)) {
    case 0:
        return 64 + 64 * (64 + (size_t)rnd(w, 63));
    case 1:
        return 16 + rnd(w, 100);
    case 2:
    case 3:
        return 640;
    case 4:
        return 6000;
    default:
        return 200 + rnd(w, 900);
    }
}

static void
populate(struct world *w, size_t total, bool some_fixed)
{
    uint32_t cap = (uint32_t)(total / 64);

    w->items = calloc(cap, sizeof(*w->items));
    assert_non_null(w->items);
    for (size_t sum = 0; sum < total && w->n < cap; w->n++) {
        struct item *item = &w->items[w->n];

        item->size = usual_size(w);
        item->fixed = some_fixed && rnd(w, 500) == 0;
        item->obj = kve_pool_alloc(w->pool, item->size);
        assert_non_null(item->obj);
        fill(item->obj, item->size, item->fixed, w->n);
        sum += item->size;
    }
}

static void
drop(struct world *w, uint32_t i)
{
    struct item *item = &w->items[i];

    if (item->obj == NULL)
        return;
    check(item, i);
    kve_pool_free(w->pool, item->obj);
    item->obj = NULL;
}

static void
check_all(struct world *w)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (w->items[i].obj != NULL)
            check(&w->items[i], i);
}

/* ---- the pool's own counts ---- */

static void
verify_slabs(struct kve_pool *pool, uint64_t *n_used, uint64_t *n_free,
    uint32_t *n_slabs)
{
    struct kve_region *lists[] = { pool->avail, pool->full };
    uint32_t kept = 0;
    uint32_t used = 0;

    for (int l = 0; l < 2; l++)
        for (struct kve_region *r = lists[l]; r != NULL; r = r->next) {
            assert_int_equal(r->used & ~r->resident, 0);
            kept += (uint32_t)__builtin_popcount(r->resident & ~r->used);
            used += (uint32_t)__builtin_popcount(r->used);
            assert_int_equal(r->used == UINT32_MAX >> (32 - r->n_slabs), l);
            for (uint32_t i = 0; i < r->n_slabs; i++) {
                struct kve_slab *slab =
                    (void *)(r->base + (size_t)i * KVE_SLAB_SIZE);

                if ((r->used >> i & 1) == 0)
                    continue;
                assert_ptr_equal(slab->region, r);
                n_slabs[slab->cls]++;
                n_used[slab->cls] += slab->n_used;
                if ((slab->flags & KVE_SLAB_DRAIN) == 0)
                    n_free[slab->cls] += slab->n - slab->n_used;
            }
        }
    assert_int_equal(pool->n_kept, kept);
    assert_int_equal(pool->n_slabs, used);
}

static void
verify(struct world *w)
{
    uint64_t n_used[KVE_MEM_CLASSES] = { 0 };
    uint64_t n_free[KVE_MEM_CLASSES] = { 0 };
    uint32_t n_slabs[KVE_MEM_CLASSES] = { 0 };

    verify_slabs(w->pool, n_used, n_free, n_slabs);
    for (uint32_t i = 0; i < KVE_MEM_CLASSES; i++) {
        assert_int_equal(w->pool->classes[i].n_used, n_used[i]);
        assert_int_equal(w->pool->classes[i].n_free, n_free[i]);
        assert_int_equal(w->pool->classes[i].n_slabs, n_slabs[i]);
    }
}

/* ---- classes ---- */

static void
good_sizes_hold_what_was_asked(void **state)
{
    (void)state;
    for (size_t size = 0; size < 70000; size++) {
        size_t good = kve_pool_good_size(size);

        assert_true(good >= size && good >= 16);
        assert_int_equal(kve_pool_good_size(good), good);
        if (size >= 512 && size < 8128)
            assert_true(good <= size + size / 7);
        if (size % 64 == 0 && size > 0 && size <= KVE_SLAB_OBJECT_MAX)
            assert_int_equal(good % 64, 0);
    }
}

/* What an index is made of loses little. */
static void
usual_sizes_fit_closely(void **state)
{
    static const size_t sizes[] = { 576, 600, 640, 704, 1112, 1152, 2136, 2176,
        4032, 4352, 4672, 4992, 5440, 5888, 6528, 7232, 8128 };

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        size_t good = kve_pool_good_size(sizes[i]);
        size_t n = (KVE_SLAB_SIZE - 128) / good;

        assert_true(n * sizes[i] * 100 >= (size_t)KVE_SLAB_SIZE * 96);
    }
}

static void
objects_are_apart_and_aligned(void **state)
{
    static struct world w;

    (void)state;
    start(&w, 0);
    w.items = calloc(20000, sizeof(*w.items));
    for (size_t size = 8; size < 40000; size += size < 3000 ? 7 : 501)
        for (int i = 0; i < 5; i++) {
            struct item *item = &w.items[w.n];

            item->size = kve_pool_good_size(size);
            item->obj = kve_pool_alloc(w.pool, size);
            assert_non_null(item->obj);
            assert_int_equal((uintptr_t)item->obj % 16, 0);
            if (size % 64 == 0 || size > 2144)
                assert_int_equal((uintptr_t)item->obj % 64, 0);
            fill(item->obj, item->size, false, w.n++);
        }
    check_all(&w);
    for (uint32_t i = 0; i < w.n; i += 2)
        drop(&w, i);
    check_all(&w);
    for (uint32_t i = 1; i < w.n; i += 2)
        drop(&w, i);
    kve_pool_settle(w.pool);
    assert_true(bytes_of(&w) <= REST);
    assert_int_equal(kve_pool_use(w.pool).live, 0);
    end(&w);
}

/* ---- the limit ---- */

static void
the_limit_holds(void **state)
{
    static const uint64_t limits[] = { 100000, 700001, 3 * MIB, 20 * MIB + 5,
        40 * MIB };

    (void)state;
    for (size_t l = 0; l < sizeof(limits) / sizeof(limits[0]); l++) {
        static struct world w;
        uint64_t live = 0;

        start(&w, limits[l]);
        w.items = calloc(400000, sizeof(*w.items));
        for (int refused = 0; refused < 1000;) {
            struct item *item = &w.items[w.n];

            item->size = rnd(&w, 300) == 0 ? 30000 : usual_size(&w);
            item->obj = kve_pool_alloc(w.pool, item->size);
            assert_true(bytes_of(&w) <= limits[l]);
            if (item->obj == NULL) {
                refused++;
                if (w.n > 0)
                    drop(&w, rnd(&w, w.n));
            } else {
                fill(item->obj, item->size, false, w.n++);
            }
        }
        assert_true(bytes_of(&w) == kve_pool_use(w.pool).bytes);
        verify(&w);
        live = kve_pool_use(w.pool).live;
        assert_true(live <= limits[l]);
        if (limits[l] >= 3 * MIB)
            assert_true(live >= limits[l] / 2);
        check_all(&w);
        for (uint32_t i = 0; i < w.n; i++)
            drop(&w, i);
        kve_pool_settle(w.pool);
        assert_true(bytes_of(&w) <= REST);
        end(&w);
    }
}

static void
what_is_charged_elsewhere_counts(void **state)
{
    static struct world w;

    (void)state;
    start(&w, MIB);
    assert_true(kve_mem_charge(&w.shared, MIB - bytes_of(&w)));
    assert_false(kve_mem_charge(&w.shared, 1));
    assert_null(kve_pool_alloc(w.pool, 100));
    assert_null(kve_pool_alloc(w.pool, 100000));
    assert_null(kve_epoch_slot_get(&w.shared));
    kve_mem_discharge(&w.shared, MIB - kve_pool_use(w.pool).bytes);
    assert_non_null(kve_pool_alloc(w.pool, 100));
    end(&w);
}

/* What is said to fit does. */
static void
room_is_room(void **state)
{
    static struct world w;
    uint32_t said = 0;

    (void)state;
    start(&w, 24 * MIB);
    w.items = calloc(400000, sizeof(*w.items));
    while (kve_pool_room(w.pool, 100000)) {
        said++;
        for (size_t sum = 0;;) {
            struct item *item = &w.items[w.n];

            item->size = usual_size(&w);
            if (sum + item->size > 100000)
                break;
            sum += item->size;
            item->obj = kve_pool_alloc(w.pool, item->size);
            assert_non_null(item->obj);
            fill(item->obj, item->size, false, w.n++);
        }
    }
    assert_true(said > 100);
    assert_true(bytes_of(&w) >= 20 * MIB);
    assert_false(kve_pool_room(w.pool, 25 * MIB));
    verify(&w);
    end(&w);
}

/* The worst way to use it: one object of each class that is full. */
static void
room_is_room_at_worst(void **state)
{
    enum { CLASSES = 24, STEPS = 40 };

    (void)state;
    for (uint64_t step = 0; step < STEPS; step++) {
        static struct world w;
        bool said;

        start(&w, 0);
        for (size_t size = 16, i = 0; i < CLASSES;
             i++, size = kve_pool_good_size(size + 1))
            for (size_t n = (KVE_SLAB_SIZE - 64) / size; n > 0; n--)
                if (w.pool->n_slabs <= i || w.pool->classes[i].n_free > 0)
                    assert_non_null(kve_pool_alloc(w.pool, size));
        w.shared.max_bytes = bytes_of(&w) + step * KVE_SLAB_SIZE;
        said = kve_pool_room(w.pool, 4000);
        if (step == 0)
            assert_false(said);
        if (step == STEPS - 1)
            assert_true(said);
        for (size_t size = 16, sum = 16; said && sum <= 4000;
             size = kve_pool_good_size(size + 1), sum += size)
            assert_non_null(kve_pool_alloc(w.pool, size));
        end(&w);
    }
}

/* ---- giving back ---- */

static void
everything_goes_back(void **state)
{
    int64_t before = kve_mem_live();
    static struct world w;

    (void)state;
    start(&w, 0);
    populate(&w, 80 * MIB, true);

    struct kve_pool_use use = kve_pool_use(w.pool);
    assert_true(use.bytes - use.live <= use.live / 16 + 2 * MIB);
    for (uint32_t i = 0; i < w.n; i++)
        drop(&w, i);
    kve_pool_settle(w.pool);
    assert_true(bytes_of(&w) <= REST);
    verify(&w);
    kve_pool_trim(w.pool);
    verify(&w);
    assert_true(bytes_of(&w) <= REST / 8);
    end(&w);
    assert_int_equal(kve_mem_live(), before);
}

static void
a_small_pool_stays_small(void **state)
{
    static struct world w;

    (void)state;
    start(&w, 0);
    void *page = kve_pool_alloc(w.pool, 640);
    assert_non_null(page);
    assert_non_null(kve_pool_alloc(w.pool, 6000));
    assert_true(bytes_of(&w) <= 2 * KVE_SLAB_SIZE + 8192);
    kve_pool_free(w.pool, page);
    kve_pool_settle(w.pool);
    assert_int_equal(w.pool->n_slabs, 1);
    verify(&w);
    end(&w);
}

/* A pool that rests keeps nothing that only growing needs. */
static void
resting_gives_back(void **state)
{
    static struct world w;

    (void)state;
    start(&w, 0);
    populate(&w, 9 * MIB, false);
    kve_pool_trim(w.pool);

    struct kve_pool_use use = kve_pool_use(w.pool);
    assert_true(use.bytes <= use.live + use.live / 8 + MIB);

    /* More grows again, and settling for long is resting. */
    struct item *items = w.items;
    uint32_t n = w.n;
    w.items = NULL;
    w.n = 0;
    populate(&w, 9 * MIB, false);
    kve_pool_settle(w.pool);
    assert_true(w.pool->n_kept > kve_regions_keep(w.pool));
    for (int i = 0; i < 20000; i++)
        kve_pool_settle(w.pool);
    assert_true(w.pool->n_kept <= kve_regions_keep(w.pool));
    use = kve_pool_use(w.pool);
    assert_true(use.bytes <= use.live + use.live / 8 + MIB);
    check_all(&w);

    struct item *later = w.items;
    w.items = items;
    w.n = n;
    check_all(&w);
    free(later);
    end(&w);
}

/* ---- compaction ---- */

static void
compaction_follows_what_is_held(void **state)
{
    static struct world w;
    uint32_t steps = 0;

    (void)state;
    start(&w, 0);
    populate(&w, 30 * MIB, false);
    for (uint32_t i = 0; i < w.n; i++)
        if (rnd(&w, 10) != 0)
            drop(&w, i);
    kve_pool_settle(w.pool);
    while (kve_pool_compact(w.pool, 65536))
        steps++;
    assert_true(steps > 10);
    assert_true(w.moves > 100);

    struct kve_pool_use use = kve_pool_use(w.pool);
    assert_int_equal(use.limbo, 0);
    assert_true(use.bytes <= use.live + use.live / 8 + 3 * MIB);
    check_all(&w);
    verify(&w);

    /* Nothing more to do, and nothing is done. */
    uint32_t moves = w.moves;
    assert_false(kve_pool_compact(w.pool, MIB));
    assert_int_equal(w.moves, moves);
    for (uint32_t i = 0; i < w.n; i++)
        drop(&w, i);
    kve_pool_settle(w.pool);
    assert_true(bytes_of(&w) <= REST);
    end(&w);
}

/* Some never move, some owners refuse, and what is between batches changes
 * while a slab is half emptied. */
static void
compaction_leaves_what_must_stay(void **state)
{
    static struct world w;

    (void)state;
    start(&w, 0);
    populate(&w, 10 * MIB, true);
    w.refuse = 7;

    void **fixed = calloc(w.n, sizeof(*fixed));
    assert_non_null(fixed);
    for (uint32_t i = 0; i < w.n; i++)
        if (w.items[i].fixed || i % 7 == 0)
            fixed[i] = w.items[i].obj;

    for (int round = 0; round < 200; round++) {
        for (uint32_t i = 0; i < w.n / 100; i++)
            drop(&w, rnd(&w, w.n));
        (void)kve_pool_compact(w.pool, 3000);
        kve_pool_settle(w.pool);
        verify(&w);
    }

    /* It comes to an end. */
    int calls = 0;
    while (kve_pool_compact(w.pool, 3000))
        assert_true(++calls < 10000);
    verify(&w);
    for (uint32_t i = 0; i < w.n; i++)
        if (fixed[i] != NULL && w.items[i].obj != NULL)
            assert_ptr_equal(w.items[i].obj, fixed[i]);
    check_all(&w);
    assert_true(w.moves > 0);
    free(fixed);
    for (uint32_t i = 0; i < w.n; i++)
        drop(&w, i);
    kve_pool_settle(w.pool);
    assert_true(bytes_of(&w) <= REST);
    end(&w);
}

/* A reader inside keeps the old copies, not the move. */
static void
compaction_waits_for_readers_to_free(void **state)
{
    static struct world w;
    struct kve_epoch_slot *slot;

    (void)state;
    start(&w, 0);
    slot = kve_epoch_slot_get(&w.shared);
    assert_non_null(slot);
    populate(&w, 4 * MIB, false);
    for (uint32_t i = 0; i < w.n; i++)
        if (rnd(&w, 4) != 0)
            drop(&w, i);

    kve_epoch_enter(&w.shared, slot);
    while (kve_pool_compact(w.pool, MIB))
        ;
    assert_true(w.moves > 0);
    assert_true(kve_pool_use(w.pool).limbo > 0);
    assert_int_equal(kve_pool_use(w.pool).limbo, atomic_load(&w.shared.limbo));
    check_all(&w);
    uint64_t before = bytes_of(&w);
    kve_epoch_leave(slot);
    kve_pool_settle(w.pool);
    assert_int_equal(kve_pool_use(w.pool).limbo, 0);
    assert_int_equal(atomic_load(&w.shared.limbo), 0);
    assert_true(bytes_of(&w) < before);
    check_all(&w);
    kve_epoch_slot_put(slot);
    kve_pool_destroy(w.pool);
    kve_mem_shared_release(&w.shared);
    assert_int_equal(bytes_of(&w), 0);
    free(w.items);
}

/* ---- readers ---- */

static void
retired_waits_for_who_was_inside(void **state)
{
    static struct world w;
    struct kve_epoch_slot *a, *b;

    (void)state;
    start(&w, 0);
    a = kve_epoch_slot_get(&w.shared);
    b = kve_epoch_slot_get(&w.shared);
    assert_non_null(a);
    assert_non_null(b);
    assert_ptr_not_equal(a, b);

    /* Nobody inside: at once. */
    kve_pool_retire(w.pool, kve_pool_alloc(w.pool, 640));
    kve_pool_retire_id(w.pool, 66, 77);
    assert_int_equal(w.n_freed_ids, 0);
    kve_pool_settle(w.pool);
    assert_int_equal(w.n_freed_ids, 1);
    assert_int_equal(w.last_freed_id, 77);
    assert_int_equal(w.last_freed_kind, 66);
    assert_int_equal(kve_pool_use(w.pool).live, 0);

    /* One inside; one that enters later does not count. */
    kve_epoch_enter(&w.shared, a);
    struct kve_obj *obj = kve_pool_alloc(w.pool, 20000);
    struct kve_obj *small = kve_pool_alloc(w.pool, 640);
    fill(obj, 20000, false, 1);
    fill(small, 640, false, 2);
    kve_pool_retire(w.pool, obj);
    kve_pool_retire(w.pool, small);
    kve_pool_retire_id(w.pool, KVE_OBJ_PAGE, 0xfffffffe);
    kve_pool_settle(w.pool);
    kve_epoch_enter(&w.shared, b);
    for (int i = 0; i < 5; i++)
        kve_pool_settle(w.pool);
    assert_int_equal(w.n_freed_ids, 1);
    assert_true(kve_pool_use(w.pool).limbo >= 20640);
    check(&(struct item){ obj, 20000, false }, 1);
    check(&(struct item){ small, 640, false }, 2);
    kve_epoch_leave(a);
    kve_pool_settle(w.pool);
    assert_int_equal(w.n_freed_ids, 2);
    assert_int_equal(w.last_freed_id, 0xfffffffe);
    assert_int_equal(kve_pool_use(w.pool).limbo, 0);

    /* The other one holds what came after it, in order. */
    kve_pool_retire_id(w.pool, 1, 1);
    kve_pool_settle(w.pool);
    kve_epoch_enter(&w.shared, a);
    kve_pool_retire_id(w.pool, 1, 2);
    kve_pool_settle(w.pool);
    assert_int_equal(w.n_freed_ids, 2);
    kve_epoch_leave(b);
    kve_pool_settle(w.pool);
    assert_int_equal(w.n_freed_ids, 3);
    assert_int_equal(w.last_freed_id, 1);
    kve_epoch_leave(a);
    kve_pool_settle(w.pool);
    assert_int_equal(w.n_freed_ids, 4);

    /* Slots are used again. */
    kve_epoch_slot_put(a);
    assert_ptr_equal(kve_epoch_slot_get(&w.shared), a);
    kve_epoch_slot_put(a);
    kve_epoch_slot_put(b);
    kve_pool_destroy(w.pool);
    kve_mem_shared_release(&w.shared);
    assert_int_equal(bytes_of(&w), 0);
}

/* The list of what is retired grows, and shrinks. */
static void
much_can_be_retired(void **state)
{
    static struct world w;
    struct kve_epoch_slot *slot;

    (void)state;
    start(&w, 0);
    slot = kve_epoch_slot_get(&w.shared);
    kve_epoch_enter(&w.shared, slot);
    populate(&w, 6 * MIB, false);
    for (uint32_t i = 0; i < w.n; i++) {
        kve_pool_retire(w.pool, w.items[i].obj);
        if (i % 3 == 0)
            kve_pool_retire_id(w.pool, 1, i);
        if (i % 10 == 0)
            kve_pool_settle(w.pool);
    }
    kve_pool_settle(w.pool);
    check_all(&w);
    assert_int_equal(kve_pool_use(w.pool).live, 0);
    assert_int_equal(w.n_freed_ids, 0);
    verify(&w);
    kve_epoch_leave(slot);
    kve_pool_settle(w.pool);
    verify(&w);
    assert_int_equal(w.n_freed_ids, (w.n + 2) / 3);
    assert_true(bytes_of(&w) <= REST);
    kve_epoch_slot_put(slot);
    kve_pool_destroy(w.pool);
    kve_mem_shared_release(&w.shared);
    free(w.items);
}

struct visitor {
    struct kve_mem_shared *shared;
    struct kve_epoch_slot *slot;
    atomic_bool inside;
    atomic_bool waited; /* the writer has begun to */
    atomic_bool left;
};

static void *
visit(void *arg)
{
    struct visitor *v = arg;

    kve_epoch_enter(v->shared, v->slot);
    atomic_store(&v->inside, true);
    while (!atomic_load(&v->waited))
        (void)sched_yield();
    for (int i = 0; i < 1000; i++)
        (void)sched_yield();
    atomic_store(&v->left, true);
    kve_epoch_leave(v->slot);
    return NULL;
}

static void
without_memory_retiring_waits(void **state)
{
    static struct world w;
    struct visitor v;
    pthread_t thread;

    (void)state;
    memset(&v, 0, sizeof(v));
    start(&w, 0);
    v.shared = &w.shared;
    v.slot = kve_epoch_slot_get(&w.shared);
    void *first = kve_pool_alloc(w.pool, 640);
    void *second = kve_pool_alloc(w.pool, 640);
    assert_int_equal(pthread_create(&thread, NULL, visit, &v), 0);
    while (!atomic_load(&v.inside))
        (void)sched_yield();

    kve_mem_fail_at(1, true);
    atomic_store(&v.waited, true);
    kve_pool_retire(w.pool, first);
    assert_true(atomic_load(&v.left));
    assert_int_equal(kve_pool_use(w.pool).limbo, 0);
    kve_pool_retire_id(w.pool, 5, 6);
    assert_int_equal(w.n_freed_ids, 1);
    kve_pool_retire(w.pool, second);
    assert_int_equal(kve_pool_use(w.pool).live, 0);
    kve_mem_fail_at(0, false);
    assert_int_equal(pthread_join(thread, NULL), 0);
    kve_pool_settle(w.pool);
    assert_int_equal(atomic_load(&w.shared.limbo), 0);
    kve_epoch_slot_put(v.slot);
    kve_pool_destroy(w.pool);
    kve_mem_shared_release(&w.shared);
    assert_int_equal(bytes_of(&w), 0);
}

/* ---- failures ---- */

/* Everything once; what fails leaves things as they were. */
static void
scenario(struct world *w)
{
    struct kve_pool_ops ops = { w, moved, id_free };
    struct kve_epoch_slot *slot;

    memset(w, 0, sizeof(*w));
    w->random = 1234567;
    w->items = calloc(2000, sizeof(*w->items));
    kve_mem_shared_init(&w->shared, 0);
    slot = kve_epoch_slot_get(&w->shared);
    if (slot != NULL)
        kve_epoch_enter(&w->shared, slot);
    if (kve_pool_create(&w->shared, &ops, &w->pool) == KVE_OK) {
        kve_dir_init(&w->dir, w->pool);
        for (int i = 0; i < 400; i++) {
            struct item *item = &w->items[w->n];

            item->size = i % 50 == 0 ? 20000 : usual_size(w);
            item->obj = kve_pool_alloc(w->pool, item->size);
            if (item->obj == NULL)
                continue;
            fill(item->obj, item->size, false, w->n++);
            if (i % 100 == 0)
                (void)kve_dir_add(&w->dir, item->obj);
        }
        if (slot != NULL)
            kve_epoch_leave(slot);
        for (uint32_t i = 0; i < w->n; i++)
            if (i % 5 != 0) {
                check(&w->items[i], i);
                kve_pool_retire(w->pool, w->items[i].obj);
                w->items[i].obj = NULL;
            }
        kve_pool_settle(w->pool);
        while (kve_pool_compact(w->pool, 10000))
            ;
        check_all(w);
        kve_pool_destroy(w->pool);
    }
    if (slot != NULL) {
        kve_epoch_leave(slot);
        kve_epoch_slot_put(slot);
    }
    kve_mem_shared_release(&w->shared);
    assert_int_equal(bytes_of(w), 0);
    free(w->items);
}

static void
every_allocation_may_fail(void **state)
{
    int64_t before = kve_mem_live();
    uint64_t n = 1;

    (void)state;
    for (bool failed = true; failed; n++) {
        static struct world w;

        kve_mem_fail_at(n, n % 2 == 0);
        scenario(&w);
        failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        assert_int_equal(kve_mem_live(), before);
    }
    assert_true(n > 400);
}

/* ---- directories ---- */

static void
a_directory_gives_ids(void **state)
{
    enum { N = 100000 };
    static struct world w;
    static int objects[N + 1];

    (void)state;
    start(&w, 0);
    for (uint32_t i = 1; i <= N; i++) {
        assert_int_equal(kve_dir_add(&w.dir, &objects[i]), i);
        if (i % 1000 == 0)
            kve_pool_settle(w.pool);
    }
    for (uint32_t i = 1; i <= N; i++)
        assert_ptr_equal(kve_dir_get(&w.dir, i), &objects[i]);
    kve_dir_set(&w.dir, 7, NULL);
    assert_null(kve_dir_get(&w.dir, 7));
    assert_int_equal(w.dir.n_used, N);

    /* Freed ones read as nothing and are given first. */
    kve_dir_free(&w.dir, 5);
    kve_dir_free(&w.dir, N);
    assert_null(kve_dir_get(&w.dir, 5));
    assert_null(kve_dir_get(&w.dir, N));
    assert_int_equal(w.dir.n_used, N - 2);
    assert_int_equal(kve_dir_add(&w.dir, &objects[1]), N);
    assert_int_equal(kve_dir_add(&w.dir, &objects[2]), 5);
    assert_int_equal(kve_dir_add(&w.dir, &objects[0]), N + 1);
    assert_ptr_equal(kve_dir_get(&w.dir, 5), &objects[2]);
    assert_ptr_equal(kve_dir_get(&w.dir, 6), &objects[6]);
    end(&w);
}

static void
a_directory_without_memory_stays(void **state)
{
    static struct world w;
    int object;

    (void)state;
    start(&w, 0);
    kve_mem_fail_at(1, true);
    assert_int_equal(kve_dir_add(&w.dir, &object), 0);
    kve_mem_fail_at(0, false);
    assert_int_equal(kve_dir_add(&w.dir, &object), 1);
    kve_mem_fail_at(1, true);
    for (uint32_t i = 2; i < KVE_DIR_CHUNK; i++)
        assert_int_equal(kve_dir_add(&w.dir, &object), i);
    assert_int_equal(kve_dir_add(&w.dir, &object), 0);
    kve_mem_fail_at(0, false);
    assert_int_equal(kve_dir_add(&w.dir, &object), KVE_DIR_CHUNK);
    end(&w);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_sizes_hold_what_was_asked),
        cmocka_unit_test(usual_sizes_fit_closely),
        cmocka_unit_test(objects_are_apart_and_aligned),
        cmocka_unit_test(the_limit_holds),
        cmocka_unit_test(what_is_charged_elsewhere_counts),
        cmocka_unit_test(room_is_room),
        cmocka_unit_test(room_is_room_at_worst),
        cmocka_unit_test(everything_goes_back),
        cmocka_unit_test(a_small_pool_stays_small),
        cmocka_unit_test(resting_gives_back),
        cmocka_unit_test(compaction_follows_what_is_held),
        cmocka_unit_test(compaction_leaves_what_must_stay),
        cmocka_unit_test(compaction_waits_for_readers_to_free),
        cmocka_unit_test(retired_waits_for_who_was_inside),
        cmocka_unit_test(much_can_be_retired),
        cmocka_unit_test(without_memory_retiring_waits),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_directory_gives_ids),
        cmocka_unit_test(a_directory_without_memory_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
