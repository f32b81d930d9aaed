/*
 * test_exhaustive.c - the machine against all schedules of a length.
 *
 * world.h says what the inputs are and what is checked, explore.h how all of
 * them are gone through. Each row below is one set of searches: the whole
 * alphabet in every world, and longer ones over the twelve or more inputs that
 * belong to one subject.
 *
 * KVE_EXHAUSTIVE_LENGTH makes it shorter; test_exhaustive_long.c is longer.
 *
 * ctest-timeout: 900
 */
#include "runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define PLAIN (NO_SNAPSHOTS | NO_IDS)

static const struct run runs[] = {
    { "everything", ANY, 2, 2, "", ALL_LETTERS, 5 },
    { "losses, repaired by replay", REPLAY | PLAIN | KEEP | REBUILD, 2, 2, "",
        "PpQDJCKaWhFTH", 8 },
    { "restarts, seen by replay", REPLAY | PLAIN | KEEP, 2, 2, "",
        "PpQDCKreRaWT", 8 },
    { "restarts, seen by ids", REPLAY | NO_SNAPSHOTS | IDS | REBUILD, 2, 2, "",
        "PpQDCKreRaWT", 7 },
    { "without replay", NO_REPLAY | PLAIN | REBUILD, 2, 2, "", "PpQDJCKrRXHUZ",
        7 },
    { "heartbeats", REPLAY | NO_SNAPSHOTS | IDS | KEEP, 2, 2, "",
        "PpQCKrWhTBUZ", 7 },
    { "snapshots", NO_REPLAY | SNAPSHOTS | NO_IDS | KEEP, 2, 2, "",
        "PpQCKrRSsLNT", 8 },
    { "snapshots and replay", REPLAY | SNAPSHOTS | IDS | REBUILD, 2, 2, "",
        "PpCKrRaWTSsLN", 8 },
    { "a warm source", REPLAY | PLAIN | KEEP | REBUILD, 2, 2, "CWPP",
        "PpQDJCKreRaWhFTU", 6 },
    { "a long buffer", REPLAY | PLAIN | REBUILD, 8, 4, "", "PpQDCKRaWhFT", 8 },
};

static void
test_all_schedules(void **state)
{
    (void)state;
    assert_true(run_searches(runs, sizeof(runs) / sizeof(runs[0])));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_schedules),
    };

    return cmocka_run_group_tests_name("stream/exhaustive", tests, NULL, NULL);
}
