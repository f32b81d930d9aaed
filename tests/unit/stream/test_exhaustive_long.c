/*
 * test_exhaustive_long.c - the machine against all schedules, longer.
 *
 * As test_exhaustive.c, some tens of minutes of it and up to a gigabyte of
 * points that were seen.
 *
 * ctest-timeout: 20000
 * ctest-label: long
 * ctest-serial: yes
 */
#include "runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define PLAIN (NO_SNAPSHOTS | NO_IDS)

static const struct run runs[] = {
    { "everything", ANY, 2, 2, "", ALL_LETTERS, 6 },
    { "everything, replay", REPLAY | PLAIN | KEEP | REBUILD, 2, 2, "",
        ALL_LETTERS, 8 },
    { "everything, a long buffer", REPLAY | PLAIN | REBUILD, 8, 4, "",
        ALL_LETTERS, 7 },
    { "everything, snapshots", SNAPSHOTS | REPLAY | IDS | REBUILD, 2, 2, "",
        ALL_LETTERS, 7 },
    { "everything, no replay", NO_REPLAY | PLAIN | KEEP, 2, 2, "", ALL_LETTERS,
        7 },
    { "losses, repaired by replay", REPLAY | PLAIN | KEEP | REBUILD, 2, 2, "",
        "PpQDJCKaWhFTH", 10 },
    { "restarts, seen by replay", REPLAY | PLAIN | KEEP, 2, 2, "",
        "PpQDCKreRaWT", 9 },
    { "restarts, seen by ids", REPLAY | NO_SNAPSHOTS | IDS | REBUILD, 2, 2, "",
        "PpQDCKreRaWT", 9 },
    { "without replay", NO_REPLAY | PLAIN | REBUILD, 2, 2, "", "PpQDJCKrRXHUZ",
        8 },
    { "heartbeats", REPLAY | NO_SNAPSHOTS | IDS | KEEP, 2, 2, "",
        "PpQCKrWhTBUZ", 9 },
    { "snapshots", NO_REPLAY | SNAPSHOTS | NO_IDS | KEEP, 2, 2, "",
        "PpQCKrRSsLNT", 10 },
    { "snapshots and replay", REPLAY | SNAPSHOTS | IDS | REBUILD, 2, 2, "",
        "PpCKrRaWTSsLN", 10 },
    { "a warm source", REPLAY | PLAIN | KEEP | REBUILD, 2, 2, "CWPP",
        "PpQDJCKreRaWhFTU", 8 },
    { "a long buffer", REPLAY | PLAIN | REBUILD, 8, 4, "", "PpQDCKRaWhFT", 10 },
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

    return cmocka_run_group_tests_name(
        "stream/exhaustive_long", tests, NULL, NULL);
}
