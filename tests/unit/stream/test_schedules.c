/*
 * test_schedules.c - the machine against a million schedules at random.
 *
 * Longer than those of test_exhaustive.c, in the same world. KVE_SCHEDULES
 * makes them fewer or more, KVE_SCHEDULES_FROM begins elsewhere, and
 * KVE_SCHEDULES_SEED shows the one that failed.
 *
 * ctest-timeout: 600
 */
#include "runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void
test_random_schedules(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    assert_true(run_random(100000));
#else
    assert_true(run_random(1000000));
#endif
}

/* Each of these once showed a fault that a million others did not. */
static void
test_schedules_that_failed(void **state)
{
    static const uint64_t seeds[] = { 974897, 3255467, 7365422, 15588771,
        28058707, 1099522316265, 2199026938954, 3298546850787, 5497559309867 };

    (void)state;
    assert_true(run_seeds(seeds, sizeof(seeds) / sizeof(seeds[0])));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_schedules),
        cmocka_unit_test(test_schedules_that_failed),
    };

    return cmocka_run_group_tests_name("stream/schedules", tests, NULL, NULL);
}
