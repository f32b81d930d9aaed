/*
 * ring.h - batches on their way from the sender to the recorder.
 *
 * One producer, one consumer, no lock. Bounded in batches and in bytes; a full
 * ring refuses, and the producer goes on. Memory that was never used costs
 * nothing.
 *
 * Waking is as in queue.h: the consumer says that it sleeps and looks once
 * more, the producer moves the tail and then looks whether the consumer
 * sleeps.
 */
#ifndef KVE_PUBLISH_RING_H
#define KVE_PUBLISH_RING_H

#include "publish/queue.h"

struct kve_ring {
    struct kve_queue_item *item;
    uint64_t size;
    size_t max_bytes;

    /* The producer's. */
    _Atomic uint64_t tail;
    size_t given; /* bytes that entered, modulo 2^64 */

    char apart[64];

    /* The consumer's. */
    _Atomic uint64_t head;
    atomic_size_t taken; /* bytes that left */
    atomic_bool sleeping;
};

/* An empty ring from zeros. Returns KVE_OK or KVE_E_NOMEM. */
kve_status kve_ring_init(struct kve_ring *ring, size_t items, size_t max_bytes,
    struct kve_error *err);

/* Let go of what is in it. */
void kve_ring_release(struct kve_ring *ring);

/* Put one more in; takes over the reference on true only. payload NULL is a
 * mark: numbers up to this one are passed over. Bytes are bounded, but the
 * first of an empty ring always fits. */
bool kve_ring_push(
    struct kve_ring *ring, uint64_t number, struct kve_payload *payload);

/* Whether the consumer has to be woken; asked once, after pushes. */
bool kve_ring_wants_waking(struct kve_ring *ring);

/* The consumer's next one, or NULL. */
const struct kve_queue_item *kve_ring_front(struct kve_ring *ring);
/* It is done with it; the reference is let go of. */
void kve_ring_pop(struct kve_ring *ring);

/* At most half full. */
bool kve_ring_has_room(struct kve_ring *ring);

/* The consumer wants to sleep. false: there is work, do not. */
bool kve_ring_sleep(struct kve_ring *ring);
void kve_ring_awake(struct kve_ring *ring);

#endif
