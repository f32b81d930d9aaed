/*
 * test_alloc.c - random streams with allocations that fail.
 *
 * ctest-timeout: 600
 * ctest-label: single
 *
 * In a consistent world (support/indexscript.h) a store that was lost for want
 * of memory can only make answers smaller. So each allocation of a stream fails
 * in turn, once or from then on for a while, and the index must never say more
 * than the reference; nothing must leak, and when memory is there again an
 * instance that starts anew must say exactly what it holds.
 *
 * KVE_INDEX_STREAMS and KVE_INDEX_SEED as in test_random.c.
 */
#include "base/alloc.h"
#include "streams.h"
#include "support/scale.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* One at least. */
#define STREAMS (40u / TEST_SCALE)
/* Beyond these only some allocations of a stream fail. */
#define EACH 300

/* What must work after everything: a new instance, exactly. */
static bool
works(struct world *w)
{
    w->less = false;
    if (w->ids[0] != 0 && !world_run(w, "-A"))
        return false;
    return world_run(w, "+A") &&
        world_run(w, "A: S[-]1,2,3 t=112233; S[2]4 t=44") &&
        world_run(w, "A: R 3; S[-]1,2,3 @CPU e= t=112233");
}

static bool
questions_agree(struct world *w)
{
    struct kve_index_query q = KVE_INDEX_QUERY_INIT;
    struct kve_index_answer answer = KVE_INDEX_ANSWER_INIT;
    struct kve_index_row real, want;
    uint32_t tokens[6] = { 1, 1, 2, 2, 3, 3 };

    q.ns = w->ns[0];
    q.tokens = tokens;
    q.n_tokens = 6;
    q.only = &w->ids[0];
    q.n_only = 1;
    answer.rows = &real;
    answer.cap = 1;
    return kve_index_query(w->reader, &q, &answer, NULL) == KVE_OK &&
        answer.n == 1 && ref_query(&w->ref, &q, &want, 1) == 1 &&
        memcmp(real.alone, want.alone, sizeof(real.alone)) == 0 &&
        memcmp(real.upto, want.upto, sizeof(real.upto)) == 0 &&
        real.alone[KVE_TIER_GPU] == 4 && real.alone[KVE_TIER_CPU] == 6;
}

/* Run with the n-th allocation failing; false: the index said too much. */
static bool
run_failing(const struct script *script, uint64_t n, bool for_a_while,
    bool *ret_failed, struct world *w)
{
    bool good = true, failed = false;

    kve_mem_fail_at(n, for_a_while);
    if (!world_init(w, &script->opts)) {
        *ret_failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        return *ret_failed;
    }
    for (size_t i = 0; i < script->n && good; i++) {
        good = world_run(w, script->lines[i]);
        if (!good)
            print_error(
                "line %zu (%s): %s\n", i + 1, script->lines[i], w->problem);
        if (kve_mem_failed())
            failed = true;
        /* Memory is short for the time of a few lines. */
        if (failed && for_a_while && i % 4 == 3)
            kve_mem_fail_at(0, false);
    }
    *ret_failed = failed || kve_mem_failed();
    kve_mem_fail_at(0, false);
    if (good && !(works(w) && questions_agree(w))) {
        print_error("afterwards: %s\n", w->problem);
        good = false;
    }
    world_release(w);
    return good;
}

static bool
run_stream(struct script *script, struct world *w, uint64_t seed)
{
    int64_t live = kve_mem_live();
    bool failed = true;

    streams_draw(script, seed, true);
    script->opts.less = true;
    for (uint64_t n = 1; failed; n += n < EACH ? 1 : 1 + n / 8) {
        for (int a_while = 0; a_while < 2; a_while++) {
            if (!run_failing(script, n, a_while != 0, &failed, w) ||
                kve_mem_live() != live) {
                print_error("seed %" PRIu64 ", allocation %" PRIu64
                            " %s, %" PRId64 " kept\n",
                    seed, n, a_while != 0 ? "and more" : "alone",
                    kve_mem_live() - live);
                script_print(script);
                return false;
            }
        }
    }
    return true;
}

static void
test_every_allocation_fails_in_turn(void **state)
{
    uint64_t seed = streams_number("KVE_INDEX_SEED", 1);
    uint64_t n = streams_number("KVE_INDEX_STREAMS", STREAMS);
    struct script *script = malloc(sizeof(*script));
    struct world *w = calloc(1, sizeof(*w));

    (void)state;
    assert_non_null(script);
    assert_non_null(w);
    print_message("%" PRIu64 " streams from seed %" PRIu64 "\n", n, seed);
    for (uint64_t i = 0; i < n; i++)
        assert_true(run_stream(script, w, seed + i));
    free(w);
    free(script);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation_fails_in_turn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
