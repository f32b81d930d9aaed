/*
 * runs.h - what the tests of schedules share: one table of searches, which are
 * gone through to a length for every day or to a greater one, and many
 * schedules at random, with figures printed.
 *
 * In the environment: KVE_EXHAUSTIVE_LENGTH is the most letters a search goes
 * through, for builds that are slow; KVE_SCHEDULES is how many schedules are
 * drawn, KVE_SCHEDULES_FROM where their seeds begin; KVE_SCHEDULES_SEED draws
 * the one of that seed and prints it.
 */
#ifndef KVE_TEST_RUNS_H
#define KVE_TEST_RUNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* False when a rule was broken; its schedule was printed. */
bool run_searches(bool longer);
bool run_random(uint64_t n);
bool run_seeds(const uint64_t *seeds, size_t n);

#endif
