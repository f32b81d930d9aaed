/*
 * test_random_long.c - as test_random.c, a million streams.
 *
 * ctest-timeout: 7200
 * ctest-label: long
 */
#include "streams.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define STREAMS 1000000

static void
test_a_million_streams(void **state)
{
    (void)state;
    assert_true(streams_run(STREAMS));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_million_streams),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
