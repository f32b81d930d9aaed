/*
 * ctest-timeout: 240
 *
 * Readers ask while writers change: each row of each answer must be what its
 * instance held at one moment between the question's begin and end. What is
 * changed and how it is known is in support/racemodel.h; here are the threads.
 * Rows that are flagged as moving are counted, and must be few.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/racemodel.h"

#include <pthread.h>
#include <stdio.h>

#define WRITERS 2
#define READERS 2
#define EACH (RACE_INSTANCES / WRITERS) /* instances a writer has */
#define STATES 60000
#define BATCHES 3000

struct thread {
    struct race_dice dice;
    _Atomic uint32_t *writing;
    pthread_t id;
};

static void *
write_all(void *arg)
{
    struct thread *t = arg;
    struct race *race = t->dice.race;

    for (unsigned i = 0; i < BATCHES && !atomic_load(&race->failed); i++)
        (void)race_change(&t->dice,
            &race->instances[t->dice.number * EACH +
                race_draw(&t->dice, EACH)]);
    atomic_fetch_sub(t->writing, 1);
    return NULL;
}

static void *
read_all(void *arg)
{
    struct thread *t = arg;
    struct race *race = t->dice.race;
    kve_index_reader *reader = NULL;

    if (kve_index_reader_create(race->index, &reader, NULL) != KVE_OK)
        return NULL;
    while (atomic_load(t->writing) > 0 && !atomic_load(&race->failed)) {
        race_ask(&t->dice, reader);
        if (race_draw(&t->dice, 8) == 0)
            race_look(&t->dice, reader);
    }
    kve_index_reader_destroy(reader);
    return NULL;
}

/* When all is quiet nothing moves, and the last state is what is said. */
static void
check_rest(struct race *race)
{
    struct race_dice dice = { race, 99, 0 };
    uint64_t moving = race->moving;
    kve_index_reader *reader;

    assert_int_equal(
        kve_index_reader_create(race->index, &reader, NULL), KVE_OK);
    for (unsigned i = 0; i < 200; i++) {
        race_ask(&dice, reader);
        race_look(&dice, reader);
    }
    kve_index_reader_destroy(reader);
    assert_int_equal(race->moving, moving);
}

static void
test_every_row_is_of_one_moment(void **state)
{
    static struct race race;
    struct thread writers[WRITERS];
    struct thread readers[READERS];
    _Atomic uint32_t writing = WRITERS;

    (void)state;
    race_init(&race, STATES);
    for (unsigned i = 0; i < READERS; i++) {
        readers[i] =
            (struct thread){ { &race, (uint64_t)i << 40, i }, &writing, 0 };
        assert_int_equal(
            pthread_create(&readers[i].id, NULL, read_all, &readers[i]), 0);
    }
    for (unsigned i = 0; i < WRITERS; i++) {
        writers[i] = (struct thread){ { &race, (uint64_t)(i + 8) << 40, i },
            &writing, 0 };
        assert_int_equal(
            pthread_create(&writers[i].id, NULL, write_all, &writers[i]), 0);
    }
    for (unsigned i = 0; i < WRITERS; i++)
        pthread_join(writers[i].id, NULL);
    for (unsigned i = 0; i < READERS; i++)
        pthread_join(readers[i].id, NULL);
    if (!race.failed)
        check_rest(&race);
    printf("%llu answers, %llu rows, %llu moving\n",
        (unsigned long long)race.answers, (unsigned long long)race.rows,
        (unsigned long long)race.moving);
    if (race.failed)
        fail_msg("%s", race.problem);
    assert_true(race.answers > 200);
    /* Under 1 in 1,000 where threads run when they want to; a writer that is
     * put to sleep in the middle of a change makes all questions about its
     * instance move until it is back. */
    assert_true(race.moving * 5 < race.rows);
    race_release(&race);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_is_of_one_moment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
