/*
 * replay.h - answers to readers that ask again, a little at a time.
 *
 * Each request becomes a job: whom to answer, and a cut of the history. The
 * sender gives the jobs a turn between two rounds of live messages; a turn
 * ends after KVE_TURN_MESSAGES messages or KVE_TURN_NS, so that a replay
 * costs a live message at most that much. Jobs take turns among each other.
 *
 * A reader that is full says KVE_IO_AGAIN and nothing tells when it no longer
 * is: its job is tried again after 1 ms, doubling to 20 ms, back to 1 ms when
 * it took something. One that took nothing for timeout_ms is given up, one
 * that left at once.
 *
 * What a slow reader asked for stays alive until it has it (history.h). That
 * is bounded: when more than the history's own limit of bytes is held beside
 * the history, the job that goes back furthest is given up. So both together
 * are at most twice the limit and one batch, and who is given up has fallen a
 * whole buffer behind.
 *
 * Payloads of answers that the socket library cannot get rid of are bounded
 * too, whoever they are for, apart from the live stream's: above max_out_bytes
 * all readers are taken for full.
 *
 * Two requests of one reader are answered one after the other.
 *
 * One thread: the sender's.
 */
#ifndef KVE_PUBLISH_REPLAY_H
#define KVE_PUBLISH_REPLAY_H

#include "base/counters.h"
#include "publish/history.h"
#include "transport/transport.h"

#include <stdbool.h>
#include <stdint.h>

#define KVE_TURN_MESSAGES 64
#define KVE_TURN_NS INT64_C(100000)

/* Batches the socket library queues for one reader. Few, since they count
 * against max_out_bytes; enough for a reader that is awake never to wait. */
#define KVE_REPLAY_HWM 256

struct kve_recorder;
struct kve_replay_job;

struct kve_replays {
    kve_context *context; /* for the log */
    const struct kve_transport *transport;
    struct kve_replay_serve *serve; /* NULL: no replay */
    struct kve_history *history;
    struct kve_pub_counters *counters;
    struct kve_span topic;
    bool with_topic;
    int64_t timeout_ns;
    uint32_t max_jobs;
    struct kve_out_gauge *out; /* borrowed; NULL: no bound */
    size_t max_out_bytes;      /* of answers in the socket library's hands */
    struct kve_recorder *recorder; /* asked when the start is the word for a
                                    * snapshot; NULL: a number like others */

    struct kve_replay_job *jobs; /* a list, oldest first */
    struct kve_replay_job *turn; /* whose turn it is; NULL: the first */
    uint32_t n_jobs;
    uint64_t logged[4]; /* how often each kind of trouble came up */
};

/*
 * Receive requests until there are none, at most KVE_TURN_MESSAGES. Returns
 * whether there may be more.
 */
bool kve_replays_receive(struct kve_replays *r, int64_t now_ns);

/* Send for one turn. Returns whether a job could go on at once. */
bool kve_replays_send(struct kve_replays *r, int64_t now_ns);

/* Give up jobs until what they hold is within its bound. */
void kve_replays_bound(struct kve_replays *r);

/* When the next blocked job is to be tried again; KVE_NEVER. */
int64_t kve_replays_deadline(const struct kve_replays *r);

/* Give up all jobs, without counting them. */
void kve_replays_release(struct kve_replays *r);

/* The number a request starts at: big-endian bytes of any length. */
uint64_t kve_replay_start(struct kve_span start);

#endif
