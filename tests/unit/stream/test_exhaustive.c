/*
 * test_exhaustive.c - the machine against all schedules of a length.
 *
 * world.h says what the inputs are and what is checked, explore.h how all of
 * them are gone through, runs.c which are.
 *
 * KVE_EXHAUSTIVE_LENGTH makes it shorter; test_exhaustive_long.c is longer.
 *
 * ctest-timeout: 900
 */
#include "runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void
test_all_schedules(void **state)
{
    (void)state;
    assert_true(run_searches(false));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_schedules),
    };

    return cmocka_run_group_tests_name("stream/exhaustive", tests, NULL, NULL);
}
