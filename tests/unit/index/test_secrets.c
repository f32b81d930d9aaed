/*
 * test_secrets.c - whatever the secrets are by which an index mixes its keys.
 *
 * Which keys fall beside one another in its tables is a matter of secrets that
 * are drawn anew for every index, so what goes wrong only for some of them is
 * seen now and then, and not again. Here they are drawn from a seed.
 *
 * ctest-timeout: 240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attacks.h"
#include "support/scale.h"

#include <sys/random.h>
#include <sys/types.h>

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))
#define NEVER 100000000u /* more allocations than there are */

static uint64_t drawn;

/* Takes the place of the system's. */
ssize_t
getrandom(void *bytes, size_t n, unsigned flags)
{
    unsigned char *at = bytes;

    (void)flags;
    for (size_t i = 0; i < n; i++) {
        drawn = drawn * 6364136223846793005u + 1442695040888963407u;
        at[i] = (unsigned char)(drawn >> 56);
    }
    return (ssize_t)n;
}

static void
run(uint64_t seed, uint64_t n)
{
    drawn = seed * 0x9E3779B97F4A7C15u + 1;
    (void)limits_starve_once(n, false, 1500);
}

/* A run stood behind two parents for a moment, with keys that a table could not
 * tell apart, and was not found behind either afterwards. */
static void
test_secrets_that_failed(void **state)
{
    (void)state;
    run(3188, 3);
    run(20001226, NEVER);
}

static void
test_many_secrets(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 500 / TEST_SCALE; seed++)
        run(seed, NEVER);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_secrets_that_failed),
        cmocka_unit_test(test_many_secrets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
