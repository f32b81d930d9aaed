/*
 * test_limit.c - an index told to use so many bytes stays below them, whatever
 * is sent, forgets by its rule, counts it, and is never wrong.
 *
 * ctest-timeout: 600
 * ctest-label: single
 */
#include "attacks.h"

#include "support/scale.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#define MIB ((uint64_t)1024 * 1024)

static void
test_c37_no_stream_exceeds_the_limit(void **state)
{
    (void)state;
    limits_attack(4 * MIB, 300000 / TEST_SCALE);
}

static void
test_c37_namespaces_share_the_limit(void **state)
{
    (void)state;
    limits_share(8 * MIB, 10 / TEST_SCALE + 1);
}

static void
test_c37_never_too_much_is_said(void **state)
{
    (void)state;
    limits_compare(200 / TEST_SCALE);
}

static void
test_a_mixture_without_memory(void **state)
{
    (void)state;
    limits_starve(1500 / TEST_SCALE);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_c37_namespaces_share_the_limit),
        cmocka_unit_test(test_c37_no_stream_exceeds_the_limit),
        cmocka_unit_test(test_c37_never_too_much_is_said),
        cmocka_unit_test(test_a_mixture_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
