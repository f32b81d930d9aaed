/*
 * runs.h - what the tests of schedules share: tables of searches, and many
 * schedules at random, with figures printed.
 *
 * In the environment: KVE_EXHAUSTIVE_LENGTH is the most letters a search goes
 * through, for builds that are slow; KVE_SCHEDULES is how many schedules are
 * drawn; KVE_SCHEDULES_SEED draws the one of that seed and prints it.
 */
#ifndef KVE_TEST_RUNS_H
#define KVE_TEST_RUNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Which worlds a search is for; each row is run for all that it allows. */
enum {
    NO_REPLAY = 1,
    REPLAY = 2,
    NO_SNAPSHOTS = 4,
    SNAPSHOTS = 8,
    NO_IDS = 16,
    IDS = 32,
    KEEP = 64,
    REBUILD = 128,
    ANY = 255
};

struct run {
    const char *name;
    unsigned worlds; /* of the names above: at least one of each pair */
    uint8_t cap;     /* batches that the publisher keeps */
    uint8_t hold;    /* batches that the machine may hold */
    const char *start;
    const char *alphabet;
    unsigned length;
};

#define ALL_LETTERS "PQpDJCKreRaWhFTHUZXYBSsLNG"

/* False when a rule was broken; its schedule was printed. */
bool run_searches(const struct run *runs, size_t n);
bool run_random(uint64_t n);
bool run_seeds(const uint64_t *seeds, size_t n);

#endif
