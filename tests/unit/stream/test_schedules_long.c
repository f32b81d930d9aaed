/*
 * test_schedules_long.c - the machine against 10^8 schedules at random.
 *
 * Longer than those of test_exhaustive.c, in the same world. KVE_SCHEDULES
 * makes them fewer or more, KVE_SCHEDULES_SEED shows the one that failed.
 *
 * ctest-timeout: 7200
 * ctest-label: long
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
    assert_true(run_random(100000000));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_schedules),
    };

    return cmocka_run_group_tests_name(
        "stream/schedules_long", tests, NULL, NULL);
}
