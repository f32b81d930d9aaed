/*
 * ctest-timeout: 240
 *
 * Readers of the table beside its writer: keys that are in it all the time
 * are found at every look, while others around them come and go by the ten
 * thousand, so that segments are enlarged, split, made smaller, joined and
 * moved, and while values are replaced.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "index/table.h"

#define READERS 2
#define STAY 3000u    /* values 1..STAY are in it all the time, */
#define TWIN 3000u    /* or, every third of them, its value + TWIN */
#define GUESTS 40000u /* the values behind them come and go */
#define WAVES 12u

struct world {
    struct kve_mem_shared shared;
    struct kve_pool *pool;
    struct kve_table table;
    _Atomic bool stop;
    _Atomic uint64_t looks;
    _Atomic uint64_t missed;
    _Atomic uint64_t strange;
};

static uint64_t
key_of(uint32_t value)
{
    uint64_t z;

    if (value > STAY && value <= STAY + TWIN)
        value -= TWIN;
    z = value * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint64_t
table_key(void *ctx, uint32_t value)
{
    (void)ctx;
    return key_of(value);
}

static void
table_prefetch(void *ctx, uint32_t value)
{
    (void)ctx;
    (void)value;
}

static bool
on_moved(void *ctx, struct kve_obj *from, struct kve_obj *to)
{
    struct world *w = ctx;

    return from->kind == KVE_OBJ_SEGMENT &&
        kve_table_moved(&w->table, from, to);
}

static void
look(struct world *w, uint32_t value)
{
    struct kve_probe probe;
    uint32_t found;
    bool hit = false;

    kve_probe_begin(&probe, &w->table, key_of(value));
    while ((found = kve_probe_next(&probe)) != KVE_NO_VALUE) {
        hit |= found == value || found == value + TWIN;
        if (found > STAY + TWIN + GUESTS)
            atomic_fetch_add(&w->strange, 1);
    }
    if (!hit)
        atomic_fetch_add(&w->missed, 1);
}

static void *
read_all(void *arg)
{
    struct world *w = arg;
    struct kve_epoch_slot *slot = kve_epoch_slot_get(&w->shared);
    uint32_t value = 0;

    if (slot == NULL)
        return NULL;
    while (!atomic_load(&w->stop)) {
        kve_epoch_enter(&w->shared, slot);
        for (int i = 0; i < 50; i++) {
            value = value % STAY + 1;
            look(w, value);
        }
        kve_epoch_leave(slot);
        atomic_fetch_add(&w->looks, 50);
    }
    kve_epoch_slot_put(slot);
    return NULL;
}

/* Guest number i, in an order that is another one each time. */
static uint32_t
guest(uint32_t i, uint32_t wave)
{
    return STAY + TWIN + 1 +
        (uint32_t)(((uint64_t)i * 7919 + wave * 104729ull) % GUESTS);
}

static void
end_of_batch(struct world *w)
{
    (void)kve_pool_compact(w->pool, 1u << 16);
    kve_pool_settle(w->pool);
}

/* One wave: all guests come, values are replaced, all go. */
static void
wave(struct world *w, uint32_t number)
{
    for (uint32_t i = 0; i < GUESTS; i++) {
        uint32_t value = guest(i, number);

        assert_true(kve_table_insert(&w->table, key_of(value), value));
        if (i % 32 == 0)
            end_of_batch(w);
    }
    for (uint32_t value = 3; value <= STAY; value += 3)
        assert_true(kve_table_replace(&w->table, key_of(value),
            number % 2 == 0 ? value : value + TWIN,
            number % 2 == 0 ? value + TWIN : value));
    for (uint32_t i = 0; i < GUESTS; i++) {
        uint32_t value = guest(i, number + 1);

        assert_true(kve_table_erase(&w->table, key_of(value), value));
        kve_table_shrink(&w->table, key_of(value));
        if (i % 32 == 0)
            end_of_batch(w);
    }
}

static void
test_never_missed(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    const struct kve_table_ops ops = { NULL, table_key, table_prefetch };
    struct kve_pool_ops pool_ops = { w, on_moved, NULL };
    pthread_t readers[READERS];

    (void)state;
    assert_non_null(w);
    kve_mem_shared_init(&w->shared, 0);
    assert_int_equal(kve_pool_create(&w->shared, &pool_ops, &w->pool), KVE_OK);
    assert_int_equal(kve_table_init(&w->table, w->pool, 0, &ops), KVE_OK);
    for (uint32_t value = 1; value <= STAY; value++)
        assert_true(kve_table_insert(&w->table, key_of(value), value));
    for (int i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&readers[i], NULL, read_all, w), 0);
    for (uint32_t number = 0; number < WAVES; number++)
        wave(w, number);
    /* On a busy machine readers may not have had their turn yet. */
    while (atomic_load(&w->looks) < 100000)
        wave(w, 0), wave(w, 1);
    atomic_store(&w->stop, true);
    for (int i = 0; i < READERS; i++)
        pthread_join(readers[i], NULL);
    print_message("%llu looks\n", (unsigned long long)atomic_load(&w->looks));
    assert_int_equal(atomic_load(&w->missed), 0);
    assert_int_equal(atomic_load(&w->strange), 0);
    assert_int_equal(w->table.n_entries, STAY);
    kve_pool_destroy(w->pool);
    kve_mem_shared_release(&w->shared);
    free(w);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_never_missed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
