/*
 * Memory of a namespace from a caller's allocator: everything comes from
 * there, is counted as at least what it gave, stays below the limit, and goes
 * back. One process has one allocator, so this is a test of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "index/mem.h"

#include <kvevents/context.h>

#include <stdlib.h>
#include <string.h>

#define LIMIT (8u << 20)
#define OBJECTS 60000

static uint64_t given; /* bytes asked for and not given back */
static uint64_t most;

/* The size stands before what is handed out. */
static void *
resize(void *ctx, void *p, size_t size)
{
    size_t *old = p == NULL ? NULL : (size_t *)p - 2;

    assert_ptr_equal(ctx, &given);
    if (old != NULL)
        given -= *old;
    if (size == 0) {
        free(old);
        return NULL;
    }

    size_t *block = realloc(old, size + 2 * sizeof(size_t));
    assert_non_null(block);
    *block = size;
    given += size;
    most = given > most ? given : most;
    return block + 2;
}

static uint32_t
rnd(uint32_t n)
{
    static uint64_t random = 88172645463325252u;

    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return (uint32_t)(random >> 32) % n;
}

static void
all_is_the_callers(void **state)
{
    static struct kve_mem_shared shared;
    struct kve_pool *pool;
    struct kve_obj **objects = calloc(OBJECTS, sizeof(*objects));
    uint32_t refused = 0;

    (void)state;
    assert_non_null(objects);
    kve_mem_shared_init(&shared, LIMIT);
    assert_int_equal(kve_pool_create(&shared, NULL, &pool), KVE_OK);
    for (uint32_t i = 0; i < OBJECTS; i++) {
        size_t size = 8 + rnd(rnd(20) == 0 ? 30000 : 700);

        objects[i] = kve_pool_alloc(pool, size);
        refused += objects[i] == NULL;
        if (objects[i] != NULL)
            memset(objects[i], 0x5a, size);
        assert_true(given <= atomic_load(&shared.bytes));
        assert_true(atomic_load(&shared.bytes) <= LIMIT);
        if (rnd(3) == 0) {
            uint32_t k = rnd(i + 1);

            kve_pool_free(pool, objects[k]);
            objects[k] = NULL;
        }
        if (i % 100 == 0)
            kve_pool_settle(pool);
    }
    assert_true(refused > 0);
    assert_true(most > LIMIT / 2);
    for (uint32_t i = 0; i < OBJECTS; i++)
        kve_pool_retire(pool, objects[i]);
    kve_pool_settle(pool);
    assert_int_equal(kve_pool_use(pool).live, 0);
    kve_pool_trim(pool);
    assert_true(given <= 65536);
    kve_pool_destroy(pool);
    kve_mem_shared_release(&shared);
    assert_int_equal(given, 0);
    assert_int_equal(atomic_load(&shared.bytes), 0);
    free(objects);
}

int
main(void)
{
    static const struct kve_allocator allocator = { sizeof(allocator), resize,
        &given };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_is_the_callers),
    };

    if (kve_allocator_set(&allocator) != KVE_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
