/*
 * publisher.h - tell the world what happens to a KV cache.
 *
 * A publisher numbers batches 0, 1, 2 ..., sends each on a PUB socket and
 * keeps the last ones for readers that ask for a replay. It is a drop-in for
 * vLLM's: the same sockets, frames and bytes.
 *
 * kve_pub_publish() encodes in the caller's thread, takes a number and a
 * place in a bounded queue, and returns; it never waits for a socket or a
 * reader. A thread of the publisher does all I/O, also when no further call
 * comes. Numbers are given in queue order; a batch that the full queue turned
 * away has used up its number, so that readers see the hole.
 *
 * Threads: kve_pub_publish(), kve_pub_publish_payload(), kve_pub_flush() and
 * kve_pub_counter() may be called from any number of threads at once. Create,
 * shutdown and destroy: one thread.
 */
#ifndef KVEVENTS_PUBLISHER_H
#define KVEVENTS_PUBLISHER_H

#include <kvevents/codec.h>
#include <kvevents/context.h>
#include <kvevents/counters.h>
#include <kvevents/event.h>
#include <kvevents/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kve_publisher kve_publisher;

/* How replay answers look. */
enum kve_replay_shape {
    KVE_REPLAY_WITH_TOPIC = 0, /* "", topic, number, payload: vLLM from 0.26 */
    KVE_REPLAY_NO_TOPIC = 1    /* "", number, payload: vLLM up to 0.25 */
};

/* What an AllBlocksCleared without an owner empties in a snapshot: the rule
 * that the readers of this publisher follow. */
enum kve_clear_scope {
    KVE_CLEAR_DEFAULT = 0, /* the GPU, as readers of a publisher with id do */
    KVE_CLEAR_GPU = 1,     /* blocks whose medium is GPU or not said */
    KVE_CLEAR_ALL = 2      /* every medium */
};

/* Zero or NULL means the default, everywhere. Strings are copied. */
struct kve_pub_opts {
    size_t struct_size;
    const char *endpoint; /* live stream; default "tcp://127.0.0.1:5557" */
    const char *replay_endpoint; /* default: no replay */
    const char *topic;           /* default "" */
    uint32_t bind;   /* enum kve_bind; of the live socket. Replay is bound */
    uint32_t layout; /* enum kve_layout of kve_pub_publish() */
    uint32_t replay_shape; /* enum kve_replay_shape */
    /* Data-parallel rank. Set (also to 0): it is written into batches that
     * name none, and moves all endpoints as kve_endpoint_of_rank() says. */
    struct kve_int rank;
    /* Publishers of this deployment, for the check that no rank's port is
     * another one's; default rank + 1. */
    uint32_t ranks;
    uint32_t hwm;          /* messages a live reader may lag; default 100,000 */
    uint32_t buffer_steps; /* batches kept for replay; default 10,000;
                            * KVE_NONE: none */
    uint32_t queue_items;  /* batches between publish and sender; default
                            * 100,000, at most 16,777,216 */
    uint32_t max_replays;  /* replay requests served at a time, and snapshot
                            * requests that wait; default 16, at most 65,536 */
    uint32_t replay_timeout_ms; /* a reader that takes nothing is given up;
                                 * default 30,000 */
    uint32_t shutdown_ms;       /* limit of kve_pub_destroy(); default 1,000 */
    uint32_t sndbuf;     /* kernel's send buffer, bytes; default the system's */
    size_t queue_bytes;  /* payload bytes queued; default 256 MiB. With
                          * snapshots as much again, at most, is held until it
                          * was recorded */
    size_t buffer_bytes; /* payload bytes kept for replay; default 1 GiB. As
                          * much again at most is held for readers that are
                          * slower than the stream; beyond it the request
                          * that goes back furthest is given up, counted */
    size_t max_out_bytes;  /* live payload bytes in ZeroMQ's hands; default
                            * 512 MiB; above it live sends are skipped and
                            * counted. Replays may hold half as much besides;
                            * above that they wait */
    uint64_t first_number; /* of the first batch; default 0 */
    struct kve_curve curve;
    /*
     * Snapshots: what the cache holds, for readers that come late. Default:
     * none. With an endpoint here they are served there; readers may ask on
     * the replay endpoint as well. snapshots 1: on the replay endpoint only.
     * Either gives batches an id, and sends heartbeats.
     *
     * A snapshot tells of every batch that was sent live before the request
     * was read. It has the copies of every block in every scope, also of
     * blocks that came without tokens or behind an unknown parent: those are
     * stored by hash, so that what a reader counts is what the stream says.
     * What a thread of its own cannot read of the batches, or what the full
     * queue turned away, it does not know; then there is none until an
     * AllBlocksCleared empties all media (KVE_CLEAR_ALL), or a restart.
     */
    const char *snapshot_endpoint;
    uint32_t snapshots;
    uint32_t snapshot_timeout_ms; /* a reader that takes nothing of it for so
                                   * long is given up, and one that has not
                                   * all in ten times that; 30,000 */
    size_t snapshot_max_bytes;    /* of one; larger: none is to be had until it
                                   * fits again; 256 MiB */
    uint32_t snapshot_max_blocks; /* blocks whose tokens are kept; beyond it
                                   * the same; default 4,194,304 */
    uint32_t clear_scope;         /* enum kve_clear_scope */
    uint32_t heartbeat_ms; /* an empty batch when nothing was published for so
                            * long; default 1,000 with snapshots, else none;
                            * KVE_NONE: none. Needs an id */
    const uint8_t *publisher_id; /* 16 bytes; default: random with snapshots,
                                  * else none. kve_pub_publish() writes it */
};

#define KVE_PUB_OPTS_INIT                                                      \
    {                                                                          \
        sizeof(struct kve_pub_opts), NULL, NULL, NULL, 0, 0, 0, { 0, false },  \
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { NULL, NULL, NULL }, NULL, 0, \
            0, 0, 0, 0, 0, NULL                                                \
    }

/* The same as KVE_PUB_OPTS_INIT for languages without macros. */
KVE_API void kve_pub_opts_init(struct kve_pub_opts *opts);

/*
 * Create a publisher, bind or connect its sockets and start its thread. opts
 * may be NULL, context may be NULL (one of its own). The caller owns *ret_pub
 * and ends it with kve_pub_destroy().
 *
 * Returns KVE_OK, KVE_E_INVAL (an option; also ports of two ranks that
 * overlap: the text names both ranges), KVE_E_IN_USE (an endpoint is taken),
 * KVE_E_LIMIT (no more sockets), KVE_E_UNSUPPORTED (CURVE, which this ZeroMQ
 * was built without), KVE_E_NOMEM, KVE_E_SYSTEM or KVE_E_FORKED.
 */
KVE_API kve_status kve_pub_create(kve_context *context,
    const struct kve_pub_opts *opts, kve_publisher **ret_pub,
    struct kve_error *err);

/*
 * A publisher that does nothing: every call succeeds, numbers are given,
 * nothing is sent. For engines with events switched off.
 *
 * Returns KVE_OK or KVE_E_NOMEM.
 */
KVE_API kve_status kve_pub_create_null(
    kve_publisher **ret_pub, struct kve_error *err);

/*
 * Encode one batch and queue it. Never waits. view->ts 0 takes the time of
 * the call; view->rank unset takes the publisher's. *ret_number, when
 * ret_number is not NULL, is the batch's number; it is written for
 * KVE_E_DROPPED too.
 *
 * Returns KVE_OK; KVE_E_DROPPED (queue full: counted, the number is used up);
 * KVE_E_INVAL, KVE_E_LIMIT or KVE_E_NOMEM (not encoded; no number used);
 * KVE_E_CLOSED after shutdown; KVE_E_FORKED.
 */
KVE_API kve_status kve_pub_publish(kve_publisher *pub,
    const struct kve_batch_view *view, uint64_t *ret_number,
    struct kve_error *err);

/* Queue a payload that is encoded already; it is copied. As above. */
KVE_API kve_status kve_pub_publish_payload(kve_publisher *pub,
    const void *payload, size_t len, uint64_t *ret_number,
    struct kve_error *err);

/*
 * For tests and demonstrations: give this batch a number and a place in the
 * replay buffer, but do not send it live. As kve_pub_publish_payload().
 */
KVE_API kve_status kve_pub_withhold_payload(kve_publisher *pub,
    const void *payload, size_t len, uint64_t *ret_number,
    struct kve_error *err);

/*
 * Wait until what was queued before this call was handed to the live socket.
 * timeout_ms < 0 waits without limit.
 *
 * Returns KVE_OK, KVE_E_TIMEOUT, KVE_E_CLOSED or KVE_E_FORKED.
 */
KVE_API kve_status kve_pub_flush(
    kve_publisher *pub, int timeout_ms, struct kve_error *err);

/*
 * Take no more batches, send what is queued, give connected readers until the
 * limit to take it, and stop. *ret_lost, when not NULL, is how many queued
 * batches were not sent; it is written with KVE_E_TIMEOUT too. The replay
 * socket is served until the end. timeout_ms < 0: the option shutdown_ms. A
 * second call does nothing.
 *
 * Returns KVE_OK, KVE_E_TIMEOUT when something was lost, or KVE_E_FORKED.
 */
KVE_API kve_status kve_pub_shutdown(kve_publisher *pub, int timeout_ms,
    uint64_t *ret_lost, struct kve_error *err);

/*
 * Shut down within the limit of the options and free. The ports are free when
 * this returns. NULL is allowed and does nothing.
 */
KVE_API void kve_pub_destroy(kve_publisher *pub);

/*
 * The endpoints in use, with the real port where 0 was asked for; "" for what
 * there is not. Borrowed, valid until kve_pub_destroy().
 */
KVE_API const char *kve_pub_endpoint(const kve_publisher *pub);
KVE_API const char *kve_pub_replay_endpoint(const kve_publisher *pub);
KVE_API const char *kve_pub_snapshot_endpoint(const kve_publisher *pub);

/* The id in its batches, 16 bytes, or NULL. Borrowed as above. */
KVE_API const uint8_t *kve_pub_publisher_id(const kve_publisher *pub);

/* true: the live socket was bound, false: connected. */
KVE_API bool kve_pub_bound(const kve_publisher *pub);

/* The number the next batch will get. Any thread. */
KVE_API uint64_t kve_pub_next_number(const kve_publisher *pub);

/* A counter (enum kve_counter); 0 for those a publisher has not. Any thread. */
KVE_API uint64_t kve_pub_counter(const kve_publisher *pub, unsigned counter);

/* ------------------------------------------------------------------ */

/*
 * Engines with several workers: each worker emits the same events for its
 * shard, and a block counts as stored only when all have it. The aggregator
 * takes the events of each worker and gives those that all N emitted.
 *
 * One thread at a time.
 */
typedef struct kve_aggregator kve_aggregator;

/*
 * Create one for workers workers, at least 1. The caller owns it.
 *
 * Returns KVE_OK, KVE_E_INVAL or KVE_E_NOMEM.
 */
KVE_API kve_status kve_aggregator_create(
    uint32_t workers, kve_aggregator **ret_aggregator, struct kve_error *err);

/* Free. NULL is allowed and does nothing. */
KVE_API void kve_aggregator_destroy(kve_aggregator *aggregator);

/*
 * Add the events of one worker; they are copied. Two events are the same when
 * all fields are. event_size is sizeof(struct kve_event).
 *
 * Returns KVE_OK, KVE_E_INVAL, KVE_E_LIMIT or KVE_E_NOMEM; on failure none
 * was added.
 */
KVE_API kve_status kve_aggregator_add(kve_aggregator *aggregator,
    const struct kve_event *events, size_t n_events, size_t event_size,
    struct kve_error *err);

/*
 * Make a batch of the events that were added exactly as often as there are
 * workers, in the order in which they were first added. *ret_batch is
 * borrowed: valid until the next call on the aggregator.
 *
 * Returns KVE_OK or KVE_E_NOMEM.
 */
KVE_API kve_status kve_aggregator_common(
    kve_aggregator *aggregator, kve_batch **ret_batch, struct kve_error *err);

/* Every event added, each as often as it was, in order of first arrival. */
KVE_API kve_status kve_aggregator_all(
    kve_aggregator *aggregator, kve_batch **ret_batch, struct kve_error *err);

/* Forget the events; the number of workers stays. */
KVE_API void kve_aggregator_clear(kve_aggregator *aggregator);

/* More workers from now on; returns how many there are. */
KVE_API uint32_t kve_aggregator_add_workers(
    kve_aggregator *aggregator, uint32_t more);

/* One worker again. */
KVE_API void kve_aggregator_reset_workers(kve_aggregator *aggregator);

/* How many workers there are. */
KVE_API uint32_t kve_aggregator_workers(const kve_aggregator *aggregator);

#ifdef __cplusplus
}
#endif

#endif
