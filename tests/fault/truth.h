/*
 * truth.h - what is published, and what the cache holds then.
 *
 * Batch k of a life is made from seed, life and k alone: stores, removals and
 * clears in several scopes, of hashes that come again and again, some of them
 * the same in all lives. Its time stamp names life and k.
 *
 * Blocks form chains with a fixed parent and fixed tokens. With snapshots each
 * store begins at the chain's start, so that nothing is published that a
 * snapshot would have to leave out.
 */
#ifndef KVE_TESTS_FAULT_TRUTH_H
#define KVE_TESTS_FAULT_TRUTH_H

#include "world.h"

#include <kvevents/codec.h>

#define MAX_EVENTS 8
#define MAX_HASHES 8
#define BLOCK_TOKENS 2

struct made_event {
    struct kve_event event;
    struct kve_hash hashes[MAX_HASHES];
    uint8_t bytes[MAX_HASHES + 1][32];
    uint32_t tokens[MAX_HASHES * BLOCK_TOKENS];
};

struct made {
    double ts;
    size_t n;
    bool unreadable; /* one event, a store without anything */
    bool whole;      /* its last event empties every medium */
    struct made_event events[MAX_EVENTS];
    struct kve_event plain[MAX_EVENTS]; /* the same side by side */
};

void make_batch(const struct settings *set, const struct life *life,
    unsigned life_at, uint32_t k, struct made *ret_made);

/* The payload of a batch that cannot be read; returns its length, at most
 * 64. */
size_t make_unreadable(
    const struct made *made, const struct life *life, uint8_t ret_bytes[64]);

/* Which batch a time stamp names; false: none of ours. */
bool read_ts(double ts, unsigned *ret_life, uint32_t *ret_k);

/* ---- the cache after batches 0..n-1 of a life ---- */

struct truth;

struct truth *truth_create(const struct world *world);
void truth_destroy(struct truth *truth);

struct fold;

/* Borrowed until the next call. *ret_lossy: something of it could not be read
 * or was never sent, and no clear of everything came since. */
const struct fold *truth_at(
    struct truth *truth, unsigned life, uint32_t n, bool *ret_lossy);

#endif
