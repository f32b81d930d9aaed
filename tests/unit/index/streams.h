/*
 * streams.h - many random streams in a row.
 */
#ifndef KVE_TEST_STREAMS_H
#define KVE_TEST_STREAMS_H

#include "support/indexscript.h"

/* KVE_INDEX_STREAMS streams, or this many; false: one failed, and was made
 * small and printed. */
bool streams_run(uint64_t usual);

/* The script of a seed. */
void streams_draw(struct script *script, uint64_t seed, bool consistent);

/* The number that the environment says, or usual. */
uint64_t streams_number(const char *name, uint64_t usual);

#endif
