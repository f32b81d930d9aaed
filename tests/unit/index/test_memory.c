/*
 * test_memory.c - memory follows what engines hold, and stays below a limit.
 *
 * ctest-timeout: 600
 * ctest-label: single
 */
#include "churn.h"

#include <kvevents/counters.h>

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <string.h>

#define LIMIT ((uint64_t)4 * 1024 * 1024)

static void
test_e1_chains_that_come_and_go(void **state)
{
    (void)state;
    churn_run(200000, 1000);
}

static uint64_t
bytes_of(const struct churn *churn)
{
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;

    assert_int_equal(kve_index_get_stats(churn->index, 0, &stats), KVE_OK);
    return stats.bytes;
}

static uint64_t
count(const struct churn *churn, enum kve_counter which)
{
    return kve_index_counter(churn->index, churn->instance, which);
}

/*
 * Many more chains than there is room for: the oldest are forgotten, counted,
 * the newest are there; what engines remove later of the forgotten is no
 * error.
 */
static void
test_c37_a_limit_in_bytes(void **state)
{
    const uint64_t n = 60000;
    struct churn churn;
    uint64_t held = 0, evicted, unmatched;

    (void)state;
    churn_init(&churn, LIMIT);
    for (uint64_t i = 0; i < n; i++) {
        churn_store(churn.index, churn.instance, i);
        assert_true(bytes_of(&churn) <= LIMIT);
        if (i % 97 == 0)
            assert_int_equal(churn_match(churn.reader, churn.ns, i),
                CHURN_BLOCKS * CHURN_TOKENS);
    }
    evicted = count(&churn, KVE_COUNTER_INDEX_EVICTED);
    for (uint64_t i = 0; i < n; i++)
        held += churn_match(churn.reader, churn.ns, i) / CHURN_TOKENS;
    print_message("%" PRIu64 " of %" PRIu64 " blocks held in %" PRIu64
                  " KiB, %" PRIu64 " forgotten, %" PRIu64 " refused\n",
        held, n * CHURN_BLOCKS, bytes_of(&churn) >> 10, evicted,
        count(&churn, KVE_COUNTER_INDEX_REFUSED_MEMORY));
    assert_int_equal(held + evicted, n * CHURN_BLOCKS);
    assert_true(held > 10000);
    assert_int_equal(churn_match(churn.reader, churn.ns, 0), 0);
    assert_int_equal(count(&churn, KVE_COUNTER_INDEX_REFUSED_MEMORY), 0);

    for (uint64_t i = 0; i < n; i++)
        churn_remove(churn.index, churn.instance, i);
    unmatched = count(&churn, KVE_COUNTER_INDEX_UNMATCHED);
    assert_int_equal(unmatched, evicted);
    for (uint64_t i = 0; i < n; i += 100)
        assert_int_equal(churn_match(churn.reader, churn.ns, i), 0);
    churn_store(churn.index, churn.instance, 7);
    assert_int_equal(
        churn_match(churn.reader, churn.ns, 7), CHURN_BLOCKS * CHURN_TOKENS);
    churn_release(&churn);
}

/* What was stored again is not what is forgotten first. */
static void
test_c37_what_is_in_use_stays(void **state)
{
    struct churn churn;

    (void)state;
    churn_init(&churn, LIMIT);
    for (uint64_t i = 0; i < 60000; i++) {
        churn_store(churn.index, churn.instance, i);
        if (i % 500 == 0)
            churn_store(churn.index, churn.instance, 3);
    }
    assert_int_equal(
        churn_match(churn.reader, churn.ns, 3), CHURN_BLOCKS * CHURN_TOKENS);
    assert_int_equal(churn_match(churn.reader, churn.ns, 4), 0);
    churn_release(&churn);
}

/* A limit below the least is refused. */
static void
test_the_least_limit(void **state)
{
    struct kve_index_opts opts = KVE_INDEX_OPTS_INIT;
    kve_index *index = NULL;

    (void)state;
    opts.max_bytes = LIMIT - 1;
    assert_int_equal(kve_index_create(&opts, &index, NULL), KVE_E_INVAL);
    assert_null(index);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_least_limit),
        cmocka_unit_test(test_e1_chains_that_come_and_go),
        cmocka_unit_test(test_c37_a_limit_in_bytes),
        cmocka_unit_test(test_c37_what_is_in_use_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
