/*
 * test_random.c - random streams of events, and all questions, against the
 * reference.
 *
 * ctest-timeout: 600
 * ctest-label: single
 *
 * Each stream is a script in a small world (support/indexscript.h); index and
 * reference must agree about everything that can be asked. A stream that fails
 * is made small and printed, with its seed, in a form that world_run() reads.
 *
 * KVE_INDEX_STREAMS says how many streams, KVE_INDEX_SEED the first one's seed;
 * so a failed one is run alone with KVE_INDEX_STREAMS=1. KVE_INDEX_LINES makes
 * them longer (at most 450 lines) and KVE_INDEX_EVERY compares less often, for
 * runs over many events.
 */
#include "base/alloc.h"
#include "streams.h"
#include "support/scale.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS (10000u / TEST_SCALE)

static void
test_streams_against_the_reference(void **state)
{
    (void)state;
    assert_true(streams_run(STREAMS));
}

/*
 * A comparison that cannot fail proves nothing: a reference that forgets one
 * copy, one that knows one adapter less, and an index that missed an event are
 * all noticed.
 */
static void
test_a_wrong_answer_is_noticed(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    struct ref_state *s;

    (void)state;
    assert_non_null(w);
    assert_true(world_init(w, NULL));
    assert_true(world_run(w, "+A"));
    assert_true(world_run(w, "prompt 11221122"));
    assert_true(world_run(w, "A: S[-]1,2 t=1122; S[2]3,4 t=1122 @CPU e="));
    assert_true(world_compare(w));

    s = ref_state_of(&w->ref, world_id(w, 'A'));
    s->copies[0].n++;
    assert_false(world_compare(w));
    s->copies[0].n--;
    assert_true(world_compare(w));

    s->known[1].place.steps[1].content ^= 1;
    assert_false(world_compare(w));
    s->known[1].place.steps[1].content ^= 1;
    assert_true(world_compare(w));

    s->scopes[1].tier = KVE_TIER_DISK;
    assert_false(world_compare(w));
    s->scopes[1].tier = KVE_TIER_CPU;
    assert_true(world_compare(w));

    s->n_copies--;
    assert_false(world_compare(w));
    s->n_copies++;
    assert_true(world_compare(w));
    world_release(w);
    free(w);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wrong_answer_is_noticed),
        cmocka_unit_test(test_streams_against_the_reference),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
