/*
 * history.h - the last batches, kept for readers that ask again.
 *
 * Entries stand in order of publishing in chunks of a fixed number of
 * entries. Position p (counted up for ever) is entry p % KVE_CHUNK of chunk
 * p / KVE_CHUNK, so every entry is reached without a walk; numbers grow with
 * positions, with holes where the queue dropped batches, so a number is found
 * by halving.
 *
 *        first                                   end
 *          v                                      v
 *   [x x x 4 5 6][7 8 9 11 12 13][14 15 16 _ _ _ ]
 *    chunk 0      chunk 1         chunk 2
 *
 * A replay answers with what is there when the request comes, and a slow
 * reader must get all of it although the buffer goes on. So an answer takes a
 * cut: references to the chunks it needs (not to the batches: a cut of 10,000
 * batches costs 313 references), given back one by one as it passes. An entry
 * that leaves the history while a cut holds its chunk stays alive and is
 * counted in pinned, in bytes. Cuts hold no chunk begun after them. The owner
 * bounds pinned by ending cuts.
 *
 * Not taken: a reference for each batch and cut (the sender would stand still
 * for as long as that takes), and a chain of chunks (one slow cut would hold
 * everything published after it).
 *
 * Numbers wrap once in 2^64 batches. Then those after the wrap come after
 * those before it, and a start is read as one of this order.
 *
 * One thread.
 */
#ifndef KVE_PUBLISH_HISTORY_H
#define KVE_PUBLISH_HISTORY_H

#include "transport/payload.h"

#include <kvevents/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVE_CHUNK 32 /* entries a chunk */

struct kve_chunk;

struct kve_history {
    struct kve_chunk **chunks; /* a ring, by chunk number & mask */
    size_t mask;               /* its size - 1; no ring yet when 0 */
    uint64_t first;            /* position of the oldest entry */
    uint64_t end;              /* position behind the newest */
    size_t max_steps;
    size_t max_bytes;
    size_t bytes;     /* payload bytes of the entries */
    size_t pinned;    /* payload bytes that left, but are held by cuts */
    uint64_t evicted; /* entries that left, ever */
};

/* A cut through the history: what one answer has still to send. */
struct kve_cut {
    struct kve_chunk **chunks; /* one reference each, from chunk on */
    size_t n_chunks;
    size_t chunk;  /* the one next is in */
    uint64_t base; /* number of chunks[0] */
    uint64_t next; /* position */
    uint64_t end;  /* position behind the last */
};

/* An empty history from zeros; it allocates nothing yet. */
void kve_history_init(
    struct kve_history *h, size_t max_steps, size_t max_bytes);

/* Let go of everything; every cut was released. */
void kve_history_release(struct kve_history *h);

/*
 * Keep one more batch, takes over the reference. Older ones leave as the
 * limits demand. One that alone is over them is not kept and counts as left.
 *
 * Returns KVE_OK, or KVE_E_NOMEM: this one was not kept (the reference is
 * gone all the same).
 */
kve_status kve_history_put(
    struct kve_history *h, uint64_t number, struct kve_payload *payload);

/* The first batch whose number is start or above, borrowed until the next
 * kve_history_put(); NULL: there is none. */
struct kve_payload *kve_history_at(
    const struct kve_history *h, uint64_t start, uint64_t *ret_number);

/*
 * Cut from the first batch whose number is start or above to the newest.
 * Release the cut with kve_cut_release().
 *
 * Returns KVE_OK or KVE_E_NOMEM.
 */
kve_status kve_history_cut(
    struct kve_history *h, uint64_t start, struct kve_cut *ret_cut);

/* The batch the cut is at, borrowed until kve_cut_advance(); NULL: the end. */
struct kve_payload *kve_cut_at(const struct kve_cut *cut, uint64_t *ret_number);

/* Go to the next one. */
void kve_cut_advance(struct kve_history *h, struct kve_cut *cut);

/* Let go of what is left. A cut of zeros may be released. */
void kve_cut_release(struct kve_history *h, struct kve_cut *cut);

#endif
