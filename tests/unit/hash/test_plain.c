/*
 * test_plain.c - the variants of the plain block hash give what xxHash gives.
 *
 * ctest-timeout: 300
 */
#include "data.h"

#include "hash/plain.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <kvevents/hash.h>

#include <stdlib.h>
#include <string.h>

#include "hash/content.h"

#define MOST 24 /* blocks */
#define LARGEST 320

static uint32_t *tokens; /* one more than needed, to be read from odd places */

static int
setup(void **state)
{
    uint64_t x = 1;

    (void)state;
    tokens = malloc((MOST * LARGEST + 1) * sizeof(*tokens));
    assert_non_null(tokens);
    for (size_t i = 0; i <= MOST * LARGEST; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (uint32_t)(x >> 32);
    }
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    free(tokens);
    return 0;
}

/* Blocks in memory of exactly their size, so that a read behind them ends the
 * test where an address sanitizer watches. */
static void
check(uint32_t size, size_t n, size_t from)
{
    uint32_t *exact = malloc(n * size * 4 + 1);
    uint64_t hashes[MOST + 1];

    assert_non_null(exact);
    memcpy(exact, tokens + from, n * size * 4);
    hashes[n] = 0x5ca1ab1e;
    kve_content_blocks(exact, size, n, hashes);
    for (size_t i = 0; i < n; i++)
        if (hashes[i] != XXH3_64bits_withSeed(exact + i * size, 4 * size, 1337))
            fail_msg("block %zu of %zu, size %u", i, n, (unsigned)size);
    assert_true(hashes[n] == 0x5ca1ab1e);
    free(exact);
}

static void
test_every_size_and_variant(void **state)
{
    (void)state;
    for (unsigned v = 0; v < KVE_PLAIN_N_VARIANTS; v++) {
        if (!kve_plain_use(v)) {
            print_message("%s does not run here\n", kve_plain_variant_name(v));
            continue;
        }
        for (uint32_t size = 1; size <= LARGEST; size++)
            for (size_t n = 0; n <= MOST; n += size % 16 == 0 ? 1 : 7)
                check(size, n, (size + n) % 2);
        check(4096, 1, 0);
    }
    assert_true(kve_plain_use(kve_plain_best_variant()));
}

static void
test_choice(void **state)
{
    (void)state;
    assert_true(kve_plain_variant_runs(KVE_PLAIN_PORTABLE));
    assert_false(kve_plain_variant_runs(KVE_PLAIN_N_VARIANTS));
    assert_false(kve_plain_use(KVE_PLAIN_N_VARIANTS));
    assert_true(kve_plain_variant_runs(kve_plain_best_variant()));
    assert_string_equal(kve_plain_variant_name(KVE_PLAIN_PORTABLE), "portable");
    assert_string_equal(
        kve_plain_variant_name(KVE_PLAIN_N_VARIANTS), "unknown");
}

static void
test_of_a_prompt(void **state)
{
    static const uint32_t four[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    uint64_t hashes[3] = { 0, 0, 77 };

    (void)state;
    assert_int_equal(kve_content_hash(four, 9, 4, hashes, 3), 2);
    assert_true(hashes[0] == 14643705804678351452u);
    assert_true(hashes[1] == 16777012769546811212u);
    assert_true(hashes[2] == 77);

    hashes[0] = hashes[1] = 5;
    assert_int_equal(kve_content_hash(four, 9, 4, hashes, 1), 2);
    assert_true(hashes[0] == 14643705804678351452u);
    assert_true(hashes[1] == 5);
    assert_int_equal(kve_content_hash(four, 9, 4, NULL, 0), 2);
    assert_int_equal(kve_content_hash(four, 9, 0, hashes, 3), 0);
    assert_int_equal(kve_content_hash(four, 3, 4, hashes, 3), 0);
    assert_int_equal(kve_content_hash(NULL, 0, 4, hashes, 3), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_size_and_variant),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_of_a_prompt),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
