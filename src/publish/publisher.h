/*
 * publisher.h - inside of a kve_publisher.
 *
 *     any thread                 |  the sender's thread
 *                                |
 *     publish()                  |
 *       encode into a scratch    |
 *       copy into a payload      |
 *       number, place -------- queue ---> live socket
 *       wake, if it sleeps       |    \
 *                                |     `-> history ---> replay socket
 *
 * One payload of counted bytes goes the whole way; nothing behind publish()
 * copies or allocates for a batch, but a chunk of the history now and then.
 *
 * A round of the sender: up to KVE_ROUND live messages, then the requests
 * that came, then one turn of replays. It sleeps in poll() when none of them
 * had anything to do; while the socket library holds live payloads it looks
 * after the live socket every 100 ms even so, because what a reader that left
 * has not taken is given back only then, and once a second when the socket is
 * a connected one, which may have to follow a name.
 *
 * With snapshots a batch goes to the recorder as well, just before it is sent
 * live; see recorder.h, which has a thread of its own. When nothing was
 * published for a while, the sender itself publishes an empty batch, through
 * the queue like everybody: a heartbeat.
 *
 * Shutting down: the queue takes no more; the sender goes on until queue and
 * replays are empty or the deadline is there, and ends. The sockets are closed
 * by the thread that shuts down, with what is left of the limit as linger.
 */
#ifndef KVE_PUBLISH_PUBLISHER_H
#define KVE_PUBLISH_PUBLISHER_H

#include "base/counters.h"
#include "publish/history.h"
#include "publish/queue.h"
#include "publish/recorder.h"
#include "publish/replay.h"
#include "transport/endpoint.h"
#include "transport/transport.h"

#include <kvevents/publisher.h>

#include <pthread.h>
#include <stdatomic.h>

#define KVE_ROUND 64 /* live messages between two looks at replays */

#define KVE_SCRATCHES 8
#define KVE_SCRATCH_KEEP ((size_t)1 << 20) /* larger ones are given back */

/* Where one caller of publish() encodes. */
struct kve_scratch {
    atomic_bool taken;
    struct kve_buffer buf;
    char apart[64]; /* other callers use the others at the same time */
};

/* Callers that wait in kve_pub_flush(). */
struct kve_flush {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    bool made;
    atomic_uint waiting;
    bool ended; /* under lock: the sender will move nothing more */
};

struct kve_publisher {
    bool null; /* does nothing */
    kve_context *context;

    /* Fixed at creation. */
    enum kve_layout layout;
    struct kve_int rank;
    size_t max_out_bytes;
    uint32_t shutdown_ms;
    char *topic;
    char *endpoint;
    char *replay_endpoint;
    bool bound;
    bool has_id;
    uint8_t id[16];            /* written into batches that have none */
    int64_t heartbeat_ns;      /* KVE_NEVER: none */
    _Atomic int64_t last_rank; /* of kve_pub_publish(); KVE_NO_RANK: none */

    struct kve_queue queue;
    struct kve_pub_counters counters;
    struct kve_scratch scratch[KVE_SCRATCHES];
    struct kve_flush flush;
    struct kve_out_gauge *out;

    /* The sender's, while it runs. */
    const struct kve_transport *live_transport;
    struct kve_live_out *live;
    struct kve_span topic_span;
    struct kve_history history;
    struct kve_replays replays;
    uint64_t live_errors;
    int64_t quiet_since_ns; /* the last batch was sent */

    struct kve_recorder *recorder; /* NULL: no snapshots */
    kve_publisher *parked;         /* the next one, in a forked child */

    pthread_t thread;
    bool running;
    int wake_fd;
    atomic_bool closing;
    _Atomic int64_t deadline_ns; /* written before closing */
};

/* Make the thread. Returns KVE_OK or KVE_E_SYSTEM. */
kve_status kve_sender_start(kve_publisher *pub, struct kve_error *err);

/* End it: at the latest soon after deadline_ns. */
void kve_sender_stop(kve_publisher *pub, int64_t deadline_ns);

/* Wake it, whether it sleeps or not. Any thread. */
void kve_sender_wake(kve_publisher *pub);

/* Publish an empty batch. The sender's thread. */
void kve_pub_heartbeat(kve_publisher *pub);

/* kve_pub_flush()'s lock and condition. */
kve_status kve_flush_init(struct kve_flush *flush, struct kve_error *err);
void kve_flush_release(struct kve_flush *flush);
/* Tell the waiting that the head moved; end: that it will not again. */
void kve_flush_moved(struct kve_flush *flush, bool end);
/* Wait until the queue's head is at target; timeout_ms < 0: no limit.
 * Returns KVE_OK, KVE_E_TIMEOUT or KVE_E_CLOSED. */
kve_status kve_flush_wait(struct kve_flush *flush, struct kve_queue *queue,
    uint64_t target, int timeout_ms);

#endif
