/*
 * set.h - the inside of a kve_subscriber: a set of sources and its loops.
 *
 *     kve_sub_add ----> list of sources (by id) <---- kve_sub_source, _counter
 *          |                    ^
 *          v inbox              | streams come and go
 *        loop 0, 1, ... n-1 ----+
 *
 * One lock, for the list and the inboxes. Without library threads only
 * kve_sub_counter() shares the list with another thread; then the lock is
 * taken where the list changes, and nowhere else. The hot path never takes it.
 *
 * Removing from another thread than the source's: the source is hidden from
 * the list and marked; its loop sees the mark before each callback, and closes
 * and frees it. The remover waits only while a callback of that very source
 * runs, and a library thread never waits, so that whatever the callbacks of
 * two loops do to each other's sources nobody waits in a circle.
 */
#ifndef KVE_SUBSCRIBE_SET_H
#define KVE_SUBSCRIBE_SET_H

#include "subscribe/loop.h"

struct kve_subscriber {
    kve_context *context;
    struct kve_sub_callbacks callbacks;
    uint32_t threads; /* 0: kve_sub_poll() */
    struct kve_loop *loops;
    size_t n_loops;
    struct kve_slots slots;
    bool has_slots;
    uint32_t max_sources;
    bool polling;
    atomic_bool stopped;

    pthread_mutex_t lock;
    bool has_lock;
    pthread_cond_t changed; /* a callback of a removed source has ended */
    bool has_changed;
    kve_source_id last_id;
    struct kve_source **sources; /* by id, ascending; hidden ones too */
    size_t n_sources;
    size_t cap_sources;
    size_t n_reserved;               /* places for those on their way in */
    size_t n_counted;                /* towards max_sources */
    struct kve_sub_counters retired; /* of sources that are gone */
};

/* A stream gets an id and a place in the list: KVE_OK, KVE_E_LIMIT, or
 * KVE_E_NOMEM. */
kve_status kve_set_enter(
    kve_subscriber *set, struct kve_source *source, struct kve_error *err);

/* It is in the list no more; its counters stay in the sums. */
void kve_set_leave(kve_subscriber *set, struct kve_source *source);

/* The next source in the loop's inbox, or NULL. */
struct kve_source *kve_set_take_inbox(
    kve_subscriber *set, struct kve_loop *loop);

/* A callback of a removed source has ended: remover may go on. */
void kve_set_callback_ended(kve_subscriber *set);

#endif
