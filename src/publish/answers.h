/*
 * answers.h - requests for a snapshot, from when they came to when the reply
 * was handed to a socket.
 *
 * A request is one piece of memory that moves from list to list: waiting for
 * its snapshot, then waiting for room at its reader. As with replays, a reader
 * that is full says KVE_IO_AGAIN, is tried again (retry.h), and given up after
 * a time.
 *
 * One thread a list.
 */
#ifndef KVE_PUBLISH_ANSWERS_H
#define KVE_PUBLISH_ANSWERS_H

#include "base/counters.h"
#include "publish/program.h"
#include "publish/retry.h"
#include "transport/transport.h"

struct kve_ask {
    struct kve_ask *next;
    bool on_replay;  /* it came by the replay socket */
    uint64_t target; /* the batch that comes after those it must tell of */
    struct kve_snapshot *snapshot; /* a reference; NULL: still to be made */
    struct kve_retry retry;
    int64_t expires_at;
    size_t peer_len;
    uint8_t peer[]; /* peer_len bytes */
};

/* Oldest first. Empty from zeros. */
struct kve_asks {
    struct kve_ask *first;
    struct kve_ask *last;
    uint32_t n;
};

/* NULL when memory is short. */
struct kve_ask *kve_ask_create(const uint8_t *peer, size_t peer_len);
void kve_ask_destroy(struct kve_ask *ask);

void kve_asks_add_take(struct kve_asks *asks, struct kve_ask *ask);
/* Take the one after before out (before NULL: the first); NULL: none. */
struct kve_ask *kve_asks_detach(struct kve_asks *asks, struct kve_ask *before);
/* All of from to the end of asks. */
void kve_asks_move(struct kve_asks *asks, struct kve_asks *from);
void kve_asks_release(struct kve_asks *asks);

/* The snapshot is there, send it from now on, for at most timeout_ns. */
void kve_ask_answer(struct kve_ask *ask, struct kve_snapshot *snapshot,
    int64_t now_ns, int64_t timeout_ns);

/* Send what can be sent; who got it, left or took nothing for too long is
 * counted and leaves the list. */
void kve_asks_send(struct kve_asks *asks, const struct kve_transport *transport,
    struct kve_replay_serve *serve, struct kve_pub_counters *counters,
    int64_t now_ns);

/* When the next one is to be tried again; KVE_NEVER. */
int64_t kve_asks_deadline(const struct kve_asks *asks);

#endif
