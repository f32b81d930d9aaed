/*
 * rig.h - one world for a case, and short questions.
 *
 * A case is written as reports write it: run() takes lines of indexworld.h, and
 * compares index and reference after each. What the case says must come out is
 * then asked of the real index, in numbers.
 *
 * A prompt is written as the hashes whose own tokens it consists of: "1,2,3",
 * two tokens a block; "=1122" stands for tokens as digits, and "+" for one
 * token that is nobody's.
 */
#ifndef KVE_TEST_RIG_H
#define KVE_TEST_RIG_H

#include "support/indexworld.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

extern struct world *rig;

/* cmocka: a fresh world for each test. */
int rig_setup(void **state);
int rig_teardown(void **state);
#define RIG_TEST(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)

/* Instead of the usual one: before the first line. */
void rig_options(const struct world_opts *opts);

/* Lines up to NULL. */
void run_lines(const char *first, ...) __attribute__((sentinel));
#define run(...) run_lines(__VA_ARGS__, NULL)

/* What the next questions are about, until reset. */
struct rig_question {
    const char *lora;
    const char *salt;
    bool recompute_last;
    const char *image; /* from its first token on, for two tokens */
};
extern struct rig_question asking;

/* The row of an instance, all zeros when it has none. */
struct kve_index_row row_of(char letter, const char *prompt);

/* Of that row, in tokens: on one tier alone; up to a place of the order. */
uint32_t alone(char letter, enum kve_tier tier, const char *prompt);
uint32_t gpu(char letter, const char *prompt);
uint32_t upto(char letter, unsigned place, const char *prompt);

/* Copies of a block that an instance has, over all scopes; and what else is
 * known of it (instance 0: not held). */
uint32_t copies(char letter, const char *hash);
struct kve_index_holder holder(char letter, const char *hash);
size_t n_holders(const char *hash);

uint64_t counter(char letter, enum kve_counter which);

#endif
