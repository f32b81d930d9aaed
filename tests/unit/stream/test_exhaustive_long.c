/*
 * test_exhaustive_long.c - the machine against all schedules, longer.
 *
 * As test_exhaustive.c, some tens of minutes of it and up to a gigabyte of
 * points that were seen.
 *
 * ctest-timeout: 20000
 * ctest-label: long
 * ctest-serial: yes
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
    assert_true(run_searches(true));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_schedules),
    };

    return cmocka_run_group_tests_name(
        "stream/exhaustive_long", tests, NULL, NULL);
}
