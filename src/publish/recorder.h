/*
 * recorder.h - remembers what the cache holds, and tells who asks.
 *
 *     the sender's thread                |  the recorder's thread
 *                                        |
 *     before a batch is sent live ----- ring ---> fold (residency.h)
 *                                        |          |
 *     "snapshot" at the replay socket    |          |    own socket
 *        |                               |          v       |
 *        `------------ asked ----------------> requests <---'
 *                                        |          |
 *                                        |      snapshot (program.h)
 *                                        |          |
 *     replay socket <-- answered -------------------+-----> own socket
 *
 * The live stream waits for nothing here. A full ring is passed over: the
 * sender then feeds the recorder from the history, as room appears, until it
 * is up to date again. What the history no longer has is missed, and so is a
 * batch that the queue turned away (its number shows); then no snapshot is to
 * be had until everything was cleared, because a fold that lacks a batch is
 * wrong and nobody could tell.
 *
 * A snapshot tells of every batch that was sent live before the request was
 * read: a batch goes into the ring before it is sent, and its number is noted
 * with the request. So a reader that got a live message and then asks misses
 * nothing in between.
 *
 * Memory. One snapshot is made or being sent at a time, to all who wait for
 * one by then; it is let go of when the socket library gave back its last
 * frame, which shows in the count of references. A reader that takes nothing
 * for snapshot_timeout is given up. Of the own socket that is done by opening
 * it anew, which frees what was queued. The replay socket serves others and is
 * left alone: what hangs there is counted, and while more than one snapshot's
 * limit does, requests by that way are refused.
 */
#ifndef KVE_PUBLISH_RECORDER_H
#define KVE_PUBLISH_RECORDER_H

#include "base/counters.h"
#include "publish/answers.h"
#include "publish/history.h"
#include "publish/program.h"
#include "publish/residency.h"
#include "publish/ring.h"
#include "transport/transport.h"

#include <pthread.h>

#define KVE_NO_RANK INT64_MIN

/* Strings are borrowed during creation, the rest while the recorder lives. */
struct kve_recorder_opts {
    kve_context *context;
    struct kve_pub_counters *counters;
    int sender_fd; /* wakes the sender */
    enum kve_layout layout;
    struct kve_int rank;
    const uint8_t *publisher_id;
    uint64_t first_number;
    size_t ring_items;
    size_t ring_bytes;
    size_t max_bytes;
    uint64_t max_blocks;
    bool clear_all;
    uint32_t max_asks; /* that wait */
    int64_t timeout_ns;
    /* The own socket; endpoint "": none. */
    struct kve_serve_opts serve;
};

struct kve_recorder;

/* Open the own socket, when there is one. Returns KVE_OK, KVE_E_NOMEM,
 * KVE_E_SYSTEM, or what opening says. */
kve_status kve_recorder_create(const struct kve_recorder_opts *opts,
    struct kve_recorder **ret_recorder, struct kve_error *err);

/* Free; its thread was stopped. NULL is allowed. */
void kve_recorder_destroy(struct kve_recorder *rec);

/* Make its thread, and end it soon. */
kve_status kve_recorder_start(struct kve_recorder *rec, struct kve_error *err);
void kve_recorder_stop(struct kve_recorder *rec);

/* Close the own socket; readers have linger_ms to take what was sent. */
void kve_recorder_close(struct kve_recorder *rec, int linger_ms);

/* In a forked child: let go of the socket and of nothing else. */
void kve_recorder_park(struct kve_recorder *rec);

/* Real endpoint; "" when there is none. */
const char *kve_recorder_endpoint(const struct kve_recorder *rec);

/* ---- the sender's thread ---- */

/* This batch is about to be sent. Never waits. */
void kve_recorder_feed(
    struct kve_recorder *rec, uint64_t number, struct kve_payload *payload);

/* A round of batches was fed and kept: bring the recorder up to date, as far
 * as there is room, and wake it. */
void kve_recorder_fed(struct kve_recorder *rec, const struct kve_history *h);

/* Somebody asked at the replay socket. */
void kve_recorder_ask(
    struct kve_recorder *rec, const uint8_t *peer, size_t peer_len);

/* Send finished replies on the replay socket. Returns when to call again at
 * the latest; KVE_NEVER: when woken. */
int64_t kve_recorder_serve(struct kve_recorder *rec,
    const struct kve_transport *transport, struct kve_replay_serve *serve,
    int64_t now_ns);

/* The rank that the last batch with one named; what the options say before. */
struct kve_int kve_recorder_rank(struct kve_recorder *rec);

/* Replies for the replay socket that were not sent yet. */
uint32_t kve_recorder_unsent(struct kve_recorder *rec);

#endif
