/*
 * ctest-timeout: 300
 *
 * The table against a model: what is entered is found, once, and nothing
 * else, through growth, splits, joins, replacements, moves and a lack of
 * memory; and its memory follows what it holds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "index/table.h"

/* Values are 1..N; the model knows the key of each and whether it is in. */
struct world {
    struct kve_mem_shared shared;
    struct kve_pool *pool;
    struct kve_table table;
    uint64_t *keys;
    bool *in;
    uint32_t n;
    uint32_t n_in;
    uint64_t seed;
    uint64_t asked;
};

static uint64_t
next_random(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15ull;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint64_t
world_key(void *ctx, uint32_t value)
{
    struct world *w = ctx;

    assert_in_range(value, 1, w->n);
    w->asked++;
    return w->keys[value];
}

static void
world_prefetch(void *ctx, uint32_t value)
{
    struct world *w = ctx;

    __builtin_prefetch(&w->keys[value]);
}

static void
world_init(struct world *w, uint32_t n, uint64_t max_bytes)
{
    const struct kve_pool_ops pool_ops = { NULL, NULL, NULL };
    const struct kve_table_ops ops = { w, world_key, world_prefetch };

    memset(w, 0, sizeof(*w));
    w->n = n;
    w->seed = 7;
    w->keys = malloc(((size_t)n + 1) * sizeof(*w->keys));
    w->in = calloc((size_t)n + 1, sizeof(*w->in));
    assert_non_null(w->keys);
    assert_non_null(w->in);
    for (uint32_t v = 1; v <= n; v++)
        w->keys[v] = next_random(&w->seed);
    kve_mem_shared_init(&w->shared, max_bytes);
    assert_int_equal(kve_pool_create(&w->shared, &pool_ops, &w->pool), KVE_OK);
    assert_int_equal(kve_table_init(&w->table, w->pool, 3, &ops), KVE_OK);
}

static void
world_release(struct world *w)
{
    kve_pool_destroy(w->pool);
    kve_mem_shared_release(&w->shared);
    free(w->keys);
    free(w->in);
}

/* How often a value is among the candidates of a key. */
static unsigned
times_found(const struct world *w, uint64_t key, uint32_t value)
{
    struct kve_probe probe;
    unsigned times = 0;
    uint32_t found;

    kve_probe_begin(&probe, &w->table, key);
    while ((found = kve_probe_next(&probe)) != KVE_NO_VALUE)
        times += found == value;
    return times;
}

static void
check_all(const struct world *w)
{
    uint32_t n_in = 0;

    for (uint32_t v = 1; v <= w->n; v++) {
        if (times_found(w, w->keys[v], v) != w->in[v])
            fail_msg("value %u is found %u times, not %d", v,
                times_found(w, w->keys[v], v), w->in[v]);
        n_in += w->in[v];
    }
    assert_int_equal(n_in, w->n_in);
    assert_int_equal(w->table.n_entries, w->n_in);
}

static void
enter(struct world *w, uint32_t v)
{
    assert_true(kve_table_insert(&w->table, w->keys[v], v));
    w->in[v] = true;
    w->n_in++;
}

static void
leave(struct world *w, uint32_t v)
{
    assert_true(kve_table_erase(&w->table, w->keys[v], v));
    w->in[v] = false;
    w->n_in--;
    kve_table_shrink(&w->table, w->keys[v]);
}

/* Bytes of live objects for an entry; the directory's doubling and a segment
 * that is just replaced are in it. */
static double
bytes_each(struct world *w)
{
    kve_pool_settle(w->pool);
    return (double)kve_pool_use(w->pool).live / w->n_in;
}

static void
test_cells(void **state)
{
    static uint32_t first[4096];
    uint64_t seed = 3;

    (void)state;
    for (uint32_t n = KVE_SEGMENT_MIN; n <= 4096; n = n * 9 / 8) {
        memset(first, 0xff, sizeof(first));
        for (uint32_t c = 0; c < 1u << KVE_CELL_BITS; c++) {
            uint32_t cell = kve_table_cell(c);
            uint32_t home = kve_table_home(cell, n);

            assert_in_range(home, 0, n - 1);
            assert_int_not_equal(cell & 255, 0);
            if (first[home] == UINT32_MAX)
                first[home] = cell;
            assert_in_range(cell, first[home], first[home] + 255);
        }
    }
    for (int i = 0; i < 100000; i++) {
        uint64_t lo = next_random(&seed);
        uint64_t hi = next_random(&seed) & next_random(&seed);
        uint8_t tag = (uint8_t)next_random(&seed);
        uint32_t mask = 0;

        if (i % 2 != 0)
            tag = (uint8_t)(lo >> 8 * (i % 8));
        for (uint32_t s = 0; s < 12; s++) {
            uint8_t have = (uint8_t)(s < 8 ? lo >> 8 * s : hi >> 8 * (s - 8));

            mask |= (uint32_t)(have == tag) << s;
        }
        assert_int_equal(
            kve_tags_match(lo, hi, tag * 0x0101010101010101ull), mask);
    }
}

static void
test_grow_and_empty(void **state)
{
    static struct world w;
    double worst = 0;
    uint32_t n = 1000000;

    (void)state;
    world_init(&w, n, 0);
    assert_int_equal(times_found(&w, w.keys[1], 1), 0);
    for (uint32_t v = 1; v <= n; v++) {
        enter(&w, v);
        if (v % 1024 == 0)
            kve_pool_settle(w.pool);
        if (v >= 100000 && v % 10007 == 0 && bytes_each(&w) > worst)
            worst = bytes_each(&w);
    }
    check_all(&w);
    print_message("%.2f bytes an entry at worst, %.2f keys asked for\n", worst,
        (double)w.asked / n);
    assert_true(worst < 8.5);

    /* Nine tenths go at random: memory follows, a little late. */
    for (uint32_t v = 1; v <= n; v++) {
        if (next_random(&w.seed) % 10 != 0)
            leave(&w, v);
        if (v % 1024 == 0)
            kve_pool_settle(w.pool);
    }
    check_all(&w);
    assert_true(bytes_each(&w) < 17);
    for (uint32_t v = 1; v <= n; v++)
        if (w.in[v])
            leave(&w, v);
    check_all(&w);
    kve_pool_settle(w.pool);
    assert_int_equal(w.table.dir->depth, 0);
    assert_true(kve_pool_use(w.pool).live < 16384);
    world_release(&w);
}

/* Values that are not in: v or its twin v + n/2, under the key of v, is. */
static void
replace(struct world *w, uint32_t v)
{
    uint32_t twin = v <= w->n / 2 ? v + w->n / 2 : v - w->n / 2;

    if (w->in[twin]) {
        /* Another tag: nothing may happen to it. */
        assert_false(kve_table_replace(&w->table, w->keys[v] ^ 2, v, twin));
        return;
    }
    w->keys[twin] = w->keys[v];
    assert_true(kve_table_replace(&w->table, w->keys[v], v, twin));
    assert_false(kve_table_replace(&w->table, w->keys[v], v, twin));
    w->in[v] = false;
    w->in[twin] = true;
}

static void
test_random(void **state)
{
    static struct world w;
    uint32_t n = 40000;

    (void)state;
    world_init(&w, n, 0);
    for (uint32_t round = 0; round < 60; round++) {
        /* Between growing, shrinking and staying as it is. */
        uint64_t grow = next_random(&w.seed) % 101;

        for (int i = 0; i < 10000; i++) {
            uint32_t v = (uint32_t)(next_random(&w.seed) % n) + 1;
            uint64_t what = next_random(&w.seed) % 100;

            if (w.in[v] && what >= grow)
                leave(&w, v);
            else if (w.in[v] && what % 4 == 0)
                replace(&w, v);
            else if (!w.in[v] && what < grow)
                enter(&w, v);
            else if (!w.in[v])
                assert_false(kve_table_erase(&w.table, w.keys[v], v));
        }
        kve_pool_settle(w.pool);
        check_all(&w);
    }
    world_release(&w);
}

/* A segment whose keys can not be told apart is larger, and nothing else. */
static void
test_equal_keys(void **state)
{
    static struct world w;
    uint32_t n = 20000;

    (void)state;
    world_init(&w, n, 0);
    for (uint32_t v = 1; v <= 4000; v++)
        w.keys[v] = 0x123456789abcdefull;
    for (uint32_t v = 4001; v <= 8000; v++)
        w.keys[v] = (w.keys[1] & ~0xffffull) | (w.keys[v] & 0xffff);
    for (uint32_t v = 1; v <= n; v++)
        enter(&w, v);
    check_all(&w);
    assert_in_range(w.table.dir->depth, 4, 9);
    for (uint32_t v = 1; v <= n; v += 2)
        leave(&w, v);
    check_all(&w);
    for (uint32_t v = n; v > 0; v--)
        if (w.in[v])
            leave(&w, v);
    kve_pool_settle(w.pool);
    check_all(&w);
    assert_int_equal(w.table.dir->depth, 0);
    assert_true(kve_pool_use(w.pool).live < 16384);
    world_release(&w);
}

/* Nor does the directory grow for them. */
static void
test_only_equal_keys(void **state)
{
    static struct world w;
    uint32_t n = 20000;

    (void)state;
    world_init(&w, n, 0);
    for (uint32_t v = 1; v <= n; v++) {
        w.keys[v] = w.keys[1];
        enter(&w, v);
    }
    assert_true(w.table.dir->depth <= 9);
    for (uint32_t v = 1; v <= n; v += 1000)
        assert_int_equal(times_found(&w, w.keys[1], v), 1);
    for (uint32_t v = 1; v <= n; v++)
        leave(&w, v);
    kve_pool_settle(w.pool);
    assert_int_equal(w.table.n_entries, 0);
    assert_int_equal(w.table.dir->depth, 0);
    assert_true(kve_pool_use(w.pool).live < 16384);
    world_release(&w);
}

static void
test_no_memory(void **state)
{
    static struct world w;
    uint32_t n = 900000;
    uint32_t v;

    (void)state;
    world_init(&w, n, 4u << 20);
    for (int round = 0; round < 3; round++) {
        uint32_t refused = 0;

        for (v = 1; v <= n && refused < 1000; v++) {
            if (w.in[v])
                continue;
            if (kve_table_insert(&w.table, w.keys[v], v)) {
                w.in[v] = true;
                w.n_in++;
            } else {
                refused++;
            }
            kve_pool_settle(w.pool);
        }
        assert_int_equal(refused, 1000);
        assert_in_range(w.n_in, 100000, n);
        check_all(&w);
        /* What is there can be changed and taken away all the same. */
        for (v = 1; v <= n; v++)
            if (w.in[v] && next_random(&w.seed) % 4 != 0)
                leave(&w, v);
        kve_pool_settle(w.pool);
        check_all(&w);
    }
    world_release(&w);
}

static struct kve_segment *
segment_at(const struct world *w, size_t place)
{
    return kve_place_segment(atomic_load(&w->table.dir->places[place]));
}

/* Every segment is moved once, as the pool does it. */
static void
test_moved(void **state)
{
    static struct world w;
    uint32_t n = 50000;

    (void)state;
    world_init(&w, n, 0);
    for (uint32_t v = 1; v <= n; v++)
        enter(&w, v);
    for (size_t i = 0; i < (size_t)1 << w.table.dir->depth;) {
        struct kve_segment *from = segment_at(&w, i);
        size_t size =
            sizeof(*from) + from->n_buckets * sizeof(struct kve_bucket);
        struct kve_segment *to = kve_pool_alloc(w.pool, size);

        assert_non_null(to);
        assert_int_equal(from->obj.kind, KVE_OBJ_SEGMENT);
        assert_int_equal(from->obj.id, 3);
        memcpy(to, from, size);
        assert_true(kve_table_moved(&w.table, &from->obj, &to->obj));
        assert_ptr_equal(segment_at(&w, i), to);
        /* What was replaced is not the table's any more. */
        assert_false(kve_table_moved(&w.table, &from->obj, &to->obj));
        memset(from->buckets, 0xee, size - sizeof(*from));
        kve_pool_retire(w.pool, from);
        i += (size_t)1 << (w.table.dir->depth - to->depth);
    }
    kve_pool_settle(w.pool);
    check_all(&w);
    for (uint32_t v = 1; v <= n; v++)
        leave(&w, v);
    check_all(&w);
    world_release(&w);
}

/* Misses stop early at whatever age: what passed a bucket is uncounted. */
static void
test_misses_stay_short(void **state)
{
    static struct world w;
    uint32_t n = 60000;
    uint64_t buckets = 0;

    (void)state;
    world_init(&w, n, 0);
    for (uint32_t v = 1; v <= n / 2; v++)
        enter(&w, v);
    for (int i = 0; i < 2000000; i++) {
        uint32_t v = (uint32_t)(next_random(&w.seed) % n) + 1;

        if (w.in[v] && w.n_in >= n / 2)
            leave(&w, v);
        else if (!w.in[v] && w.n_in < n / 2)
            enter(&w, v);
        if (i % 4096 == 0)
            kve_pool_settle(w.pool);
    }
    check_all(&w);
    for (int i = 0; i < 100000; i++) {
        struct kve_probe probe;

        kve_probe_begin(&probe, &w.table, next_random(&w.seed));
        while (kve_probe_next(&probe) != KVE_NO_VALUE)
            continue;
        buckets += probe.steps;
    }
    print_message("%.2f buckets a miss\n", (double)buckets / 100000);
    assert_true(buckets < 230000);
    world_release(&w);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cells),
        cmocka_unit_test(test_grow_and_empty),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_equal_keys),
        cmocka_unit_test(test_only_equal_keys),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_moved),
        cmocka_unit_test(test_misses_stay_short),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
