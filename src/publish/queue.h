/*
 * queue.h - the way from publish() to the sender.
 *
 * A ring of fixed size between any number of producers and one consumer.
 * Producers exclude each other with a short mutex, under which a number is
 * given and a slot is filled: so the order of numbers is the order of the
 * queue. The consumer never takes that mutex. A consumer that loses its
 * processor therefore never holds up a caller of publish(), and the mutex is
 * free whenever one thread publishes. (A publisher's sender is a producer too
 * when it sends a heartbeat, which it does when nobody published for long.)
 *
 *      head (consumer)                  tail (producers)
 *        |                                |
 *        v                                v
 *   ... [n=7|payload][n=8|payload][n=10|..] [    ] [    ] ...
 *
 * Positions count up for ever and are taken modulo the ring's size; numbers
 * have holes where a full queue turned a batch away, positions have none.
 * An item leaves the ring when the consumer is done with it, so the limits
 * count what is being sent as well.
 *
 * Waking: the consumer says that it sleeps and looks at tail once more; a
 * producer moves tail and looks whether the consumer sleeps. Both are
 * sequentially consistent, so one of the two sees the other, and taking the
 * flag down is what gives one producer the duty to wake.
 */
#ifndef KVE_PUBLISH_QUEUE_H
#define KVE_PUBLISH_QUEUE_H

#include "transport/payload.h"

#include <kvevents/status.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVE_QUEUE_MAX_ITEMS (UINT32_C(1) << 24)

/* kve_payload.flags: numbered and kept for replay, but not sent live. */
#define KVE_PAYLOAD_WITHHELD 1u
/* Nobody's batch: turned away it takes no number, so that nothing is missed. */
#define KVE_PAYLOAD_HEARTBEAT 2u

struct kve_queue_item {
    struct kve_payload *payload; /* the ring's reference */
    uint64_t number;
};

struct kve_queue {
    struct kve_queue_item *ring;
    size_t mask;
    size_t max_items;
    size_t max_bytes;

    /* Producers. */
    pthread_mutex_t lock;
    bool lock_made;
    bool closed;                  /* under lock */
    _Atomic uint64_t next_number; /* written under lock */
    _Atomic uint64_t tail;        /* written under lock */

    char apart_1[64]; /* the two ends live in different cache lines */

    /* The consumer. */
    _Atomic uint64_t head;
    atomic_size_t taken; /* payload bytes that left the ring, modulo 2^64 */

    char apart_2[64];

    size_t given; /* payload bytes that entered the ring; under lock */
    atomic_bool sleeping;
};

/* Outcome of one push. */
struct kve_queue_pushed {
    uint64_t number; /* given for KVE_E_DROPPED too */
    bool wake;       /* the caller has to wake the consumer */
};

/* An empty queue from zeros. max_items is from 1 to KVE_QUEUE_MAX_ITEMS. */
kve_status kve_queue_init(struct kve_queue *q, size_t max_items,
    size_t max_bytes, uint64_t first_number, struct kve_error *err);

/* Let go of what is queued and of the ring. */
void kve_queue_release(struct kve_queue *q);

/*
 * Give payload a number and a place; takes over the reference on KVE_OK only.
 * Returns KVE_OK, KVE_E_DROPPED (no number for a heartbeat) or KVE_E_CLOSED
 * (no number). Any thread.
 */
kve_status kve_queue_push(struct kve_queue *q, struct kve_payload *payload,
    struct kve_queue_pushed *ret);

/* Give a number and nothing else. Any thread. */
uint64_t kve_queue_number(struct kve_queue *q);

/* Take no more. tail is final when this returns. */
void kve_queue_close(struct kve_queue *q);

/* How many were queued, ever. Any thread. */
uint64_t kve_queue_tail(struct kve_queue *q);
/* How many the consumer is done with. Any thread. */
uint64_t kve_queue_head(struct kve_queue *q);

/* The consumer's next items, at most max, lying side by side; 0: none. */
size_t kve_queue_front(
    struct kve_queue *q, size_t max, struct kve_queue_item **ret_items);

/* The consumer is done with n items, whose references it took over, and with
 * their bytes in all. */
void kve_queue_consume(struct kve_queue *q, size_t n, size_t bytes);

/* The consumer wants to sleep. false: there is work, do not. */
bool kve_queue_sleep(struct kve_queue *q);
/* It is awake again. */
void kve_queue_awake(struct kve_queue *q);

#endif
