/*
 * test_schedules.c - the machine against a million schedules at random.
 *
 * Longer than those of test_exhaustive.c, in the same world. KVE_SCHEDULES
 * makes them fewer or more, KVE_SCHEDULES_SEED shows the one that failed.
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

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_schedules),
    };

    return cmocka_run_group_tests_name("stream/schedules", tests, NULL, NULL);
}
