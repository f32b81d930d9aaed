/*
 * test_memory_long.c - ten million chains that come and go.
 *
 * ctest-timeout: 3600
 * ctest-label: long
 */
#include "churn.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

static void
test_e1_ten_million_chains(void **state)
{
    (void)state;
    churn_run(10000000, 1000);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_e1_ten_million_chains),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
