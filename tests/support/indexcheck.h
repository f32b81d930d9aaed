/*
 * indexcheck.h - is the inside of an index what it must be between batches?
 *
 * Answers tell what an index says; this tells what it is made of: that trees,
 * tables, lists, bits, counts and sums of a namespace say the same. It looks at
 * everything, so it is for small indexes; no other thread may use the index.
 */
#ifndef KVE_TESTS_INDEXCHECK_H
#define KVE_TESTS_INDEXCHECK_H

#include <kvevents/index.h>

#include <stdbool.h>

#define INDEXCHECK_TEXT 512

/*
 * False: something is wrong, and problem says what. whole: every allocation
 * succeeded so far. Else what nobody needs any more may still be there, since
 * there was no memory to note it; what is needed must be right all the same.
 */
bool indexcheck(
    const kve_index *index, bool whole, char problem[INDEXCHECK_TEXT]);

/* Nothing is held, nothing is drained: no run, no block, no root but the
 * base's, no wait. */
bool indexcheck_empty(const kve_index *index, char problem[INDEXCHECK_TEXT]);

#endif
