/*
 * explore.h - every schedule of a length, and schedules at random.
 */
#ifndef KVE_TEST_EXPLORE_H
#define KVE_TEST_EXPLORE_H

#include "world.h"

#include <stdbool.h>
#include <stdint.h>

/* What to go through: schedules that begin with start and go on with every
 * word of length letters of the alphabet. */
struct search {
    const struct config *config;
    const char *start;    /* letters; "" for a world just begun */
    const char *alphabet; /* letters */
    unsigned length;
};

struct found {
    uint64_t schedules; /* words that are possible; all of them are covered */
    uint64_t points;    /* different points of world and machine, by letters
                         * left; each was gone on from once */
    uint64_t steps;     /* inputs that were really made */
    uint64_t seen[N_LETTERS];
};

/* False when a rule was broken; the schedule was printed then. Figures are
 * added to ret_found. */
bool explore(const struct search *search, struct found *ret_found);

/* One schedule of n letters, drawn with this seed; the same. A letter that is
 * named more than once is drawn more often. */
bool explore_random(const struct config *config, const char *alphabet,
    uint64_t seed, unsigned n, bool verbose, struct found *ret_found);

/* Run one schedule and print what happens. */
bool explore_one(const struct config *config, const char *word);

#endif
