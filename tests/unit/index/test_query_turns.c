/*
 * ctest-timeout: 240
 * ctest-label: single
 *
 * A question with a change in its middle: at each place where the order of a
 * reader's loads matters it gives the test a turn (KVE_READER_TURN), and the
 * test applies a batch there, in the same thread. So every interleaving of a
 * whole batch with the steps of a reader is met, again and again, where
 * threads would need luck. What must be said is in support/racemodel.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "index/query.h"
#include "support/racemodel.h"
#include "support/scale.h"

#include <stdio.h>
#include <stdlib.h>

#define STATES 200000
#define QUESTIONS (20000u / TEST_SCALE)

/* The change that is to come. */
static struct {
    struct race_dice *dice;
    uint32_t turns;  /* until it comes; 0: it came */
    uint32_t left;   /* changes that come after it in this question, ... */
    uint32_t repeat; /* ... each after as many turns as are drawn below this */
    uint32_t taken;
} plan;

static void
take_turn(void)
{
    struct race *race = plan.dice->race;

    if (plan.turns == 0 || --plan.turns > 0)
        return;
    plan.taken++;
    (void)race_change(
        plan.dice, &race->instances[race_draw(plan.dice, RACE_INSTANCES)]);
    if (plan.left > 0) {
        plan.left--;
        plan.turns = 1 + race_draw(plan.dice, plan.repeat);
    }
}

/*
 * Ask many times, with n changes each time. As there are fewer than a reader
 * tries, nothing ever has to be flagged.
 */
static void
run_some(
    uint32_t first, uint32_t n, uint32_t repeat, uint64_t seed, uint32_t clears)
{
    static struct race race;
    struct race_dice writer = { &race, seed << 40, 0 };
    struct race_dice asker = { &race, seed << 40 | 1u << 30, 1 };
    kve_index_reader *reader;

    race_init(&race, STATES);
    race.clears = clears;
    assert_int_equal(
        kve_index_reader_create(race.index, &reader, NULL), KVE_OK);
    for (unsigned i = 0; i < 100; i++)
        race_change(&writer, &race.instances[i % RACE_INSTANCES]);
    plan.dice = &writer;
    plan.repeat = repeat;
    plan.taken = 0;
    kve_reader_turn = take_turn;
    for (unsigned i = 0; i < QUESTIONS && !race.failed; i++) {
        plan.turns = 1 + race_draw(&asker, first);
        plan.left = n - 1;
        if (i % 4 != 0)
            race_ask(&asker, reader);
        else
            race_look(&asker, reader);
    }
    kve_reader_turn = NULL;
    printf("%u changes, %llu rows, %llu moving\n", plan.taken,
        (unsigned long long)race.rows, (unsigned long long)race.moving);
    if (race.failed)
        fail_msg("seed %llu: %s", (unsigned long long)seed, race.problem);
    assert_true(plan.taken > QUESTIONS / 10);
    assert_int_equal(race.moving, 0);
    kve_index_reader_destroy(reader);
    race_release(&race);
}

static void
run_turns(uint32_t first, uint32_t n, uint32_t repeat, uint64_t seed)
{
    run_some(first, n, repeat, seed, 1);
    run_some(first, n, repeat, seed + 100, 40);
}

static void
test_one_change_in_a_question(void **state)
{
    (void)state;
    run_turns(24, 1, 1, 1);
    run_turns(120, 1, 1, 2);
}

static void
test_a_few_changes_in_a_question(void **state)
{
    (void)state;
    run_turns(24, 3, 60, 3);
}

static void
test_as_many_changes_as_there_are_tries(void **state)
{
    (void)state;
    run_turns(12, KVE_TRIES - 1, 20, 4);
    run_turns(60, KVE_TRIES - 1, 80, 5);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_change_in_a_question),
        cmocka_unit_test(test_a_few_changes_in_a_question),
        cmocka_unit_test(test_as_many_changes_as_there_are_tries),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
