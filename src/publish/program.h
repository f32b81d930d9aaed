/*
 * program.h - a snapshot: what residency.h knows, as batches to be applied.
 *
 * The batches are a program. Who applies it to nothing, counting copies, has
 * in the end exactly the copies that the fold has, in every scope, and on the
 * way learns each chain from its start:
 *
 *   1. every block that was taught is stored once, with its tokens, parents
 *      first: in the scope of the store that taught it, if it has copies there
 *      (and then that is one of them), else as GPU of its group;
 *   2. those that have no copies at all (kept for their descendants) are
 *      removed again;
 *   3. stores without tokens bring every scope to its exact count;
 *   4. blocks that have no copies where step 1 put them are removed there.
 *
 * A chain is stored from the last that was taught of it up, so that what many
 * stores taught block by block becomes one event again.
 *
 * Blocks that nobody taught come in step 3 only. The proposal leaves them out
 * with their descendants; then the counts would not be those of the stream,
 * and later removals would be below zero. The proposal also stores every live
 * block once more in step 3 and takes the first one back in step 4; here only
 * those are that have to be, which gives the same counts with half the bytes.
 *
 * Chunks hold at most 256 events and about a MiB, events at most 1,024 hashes.
 * Everything lies in one piece of memory, which frames of the reply are cut
 * from:
 *
 *     payload:   seq | publisher id | chunk | chunk | ...
 *                    ^              ^       ^       ^
 *     ends:          8              24      ...
 *
 * Events are written in the publisher's layout, or, where that has no place
 * for what they say, as maps.
 */
#ifndef KVE_PUBLISH_PROGRAM_H
#define KVE_PUBLISH_PROGRAM_H

#include "publish/residency.h"
#include "transport/payload.h"

#include <kvevents/event.h>
#include <kvevents/status.h>

#include <stdatomic.h>
#include <stdbool.h>

#define KVE_SNAPSHOT_NONE (-2) /* for seq: there is none to be had */

#define KVE_CHUNK_EVENTS 256
#define KVE_EVENT_HASHES 1024

/* A reply, shared by all whom it is sent to. */
struct kve_snapshot {
    atomic_uint refs;
    struct kve_payload *payload; /* one reference */
    size_t *ends;                /* where each frame ends */
    size_t n;                    /* frames: 2 and the chunks */
    int64_t seq;
    struct kve_snapshot *next; /* its owner's */
};

struct kve_program_opts {
    enum kve_layout layout;
    struct kve_int rank;
    const uint8_t *publisher_id; /* 16 bytes */
    int64_t seq;
    size_t max_bytes;
    const atomic_bool *stop; /* give up when it becomes true; NULL: never */
};

/*
 * Write the program of r, which does not change by it. The caller owns one
 * reference of *ret_snapshot.
 *
 * Returns KVE_OK, KVE_E_LIMIT (above max_bytes), KVE_E_NOMEM, or KVE_E_CLOSED
 * (stopped).
 */
kve_status kve_program_write(struct kve_residency *r,
    const struct kve_program_opts *opts, struct kve_snapshot **ret_snapshot,
    struct kve_error *err);

/* A reply without chunks: opts->seq and the id. KVE_OK or KVE_E_NOMEM. */
kve_status kve_program_none(const struct kve_program_opts *opts,
    struct kve_snapshot **ret_snapshot, struct kve_error *err);

struct kve_snapshot *kve_snapshot_ref(struct kve_snapshot *snapshot);
/* NULL is allowed. */
void kve_snapshot_unref(struct kve_snapshot *snapshot);

#endif
