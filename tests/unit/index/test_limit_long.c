/*
 * test_limit_long.c - the same as test_limit.c for ten million hashes of each
 * hostile stream, and larger limits.
 *
 * ctest-timeout: 7200
 * ctest-label: long
 */
#include "attacks.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#define MIB ((uint64_t)1024 * 1024)

static void
test_c37_no_stream_exceeds_16_mib(void **state)
{
    (void)state;
    limits_attack(16 * MIB, 3000000);
}

static void
test_c37_no_stream_exceeds_64_mib(void **state)
{
    (void)state;
    limits_attack(64 * MIB, 10000000);
}

static void
test_c37_namespaces_share_64_mib(void **state)
{
    (void)state;
    limits_share(64 * MIB, 4);
}

static void
test_c37_never_too_much_is_said_in_many_streams(void **state)
{
    (void)state;
    limits_compare(20000);
}

static void
test_a_longer_mixture_without_memory(void **state)
{
    (void)state;
    limits_starve(20000);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_c37_no_stream_exceeds_16_mib),
        cmocka_unit_test(test_c37_no_stream_exceeds_64_mib),
        cmocka_unit_test(test_c37_namespaces_share_64_mib),
        cmocka_unit_test(test_c37_never_too_much_is_said_in_many_streams),
        cmocka_unit_test(test_a_longer_mixture_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
