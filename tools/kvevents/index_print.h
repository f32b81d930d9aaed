/*
 * index_print.h - what is in an index, and its answers, as text and as JSON.
 *
 * In JSON "kind" says what a line is: instance, answer, stats, run. Hashes are
 * strings, as everywhere (value.h).
 */
#ifndef KVEVENTS_TOOL_INDEX_PRINT_H
#define KVEVENTS_TOOL_INDEX_PRINT_H

#include "out.h"

#include <kvevents/index.h>

struct index_print {
    struct out *out;
    kve_index *index;
    kve_namespace ns;
    bool json;
};

/* A line for each instance, and its groups. false: no memory. */
bool index_print_instances(const struct index_print *print);

/* Rows of an answer to a question about asked tokens (or blocks, of unit);
 * tiers: the order of the sums. */
void index_print_answer(const struct index_print *print,
    const struct kve_index_answer *answer, const uint8_t *tiers, size_t n_tiers,
    size_t asked, const char *unit);

/* Sizes, and all counters that are not zero. false: no memory. */
bool index_print_stats(const struct index_print *print);

/* What every instance holds, run by run. */
kve_status index_print_dump(
    const struct index_print *print, struct kve_error *err);

#endif
