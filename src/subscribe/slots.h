/*
 * slots.h - how many requests run at a time, over all sources of a subscriber.
 *
 *     ask --> slot free and nobody waits? --> go
 *                     | no
 *                     v
 *               the queue, first come first served
 *                     |  a slot is given back
 *                     v
 *               grants of the loop that the source belongs to: the slot is
 *               its own already, the loop is woken and has the source ask
 *
 * When many sources lose their publishers at once and all come back, they ask
 * one after the other and not all together. A request that was sent and hears
 * nothing gives its slot back before it ends (the owner decides when), so that
 * a dead endpoint delays nobody for long.
 *
 * With library threads all of this is under one mutex; without, no lock is
 * taken. A slot that waits or was granted can be released at any time, which
 * is how a source leaves.
 */
#ifndef KVE_SUBSCRIBE_SLOTS_H
#define KVE_SUBSCRIBE_SLOTS_H

#include <kvevents/status.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum kve_slot_state {
    KVE_SLOT_NONE = 0,
    KVE_SLOT_WAITING, /* in the queue */
    KVE_SLOT_GRANTED, /* it has one; its loop does not know yet */
    KVE_SLOT_HELD
};

struct kve_grants;

/* One request's place. Part of a source. */
struct kve_slot {
    enum kve_slot_state state;
    struct kve_slot *next;
    struct kve_slot *prev;
    struct kve_grants *grants; /* of the loop it belongs to */
};

struct kve_slot_list {
    struct kve_slot *first;
    struct kve_slot *last;
};

/* What was granted to the sources of one loop. */
struct kve_grants {
    struct kve_slot_list list;
    atomic_bool any;
    int event_fd; /* borrowed: written when there is something */
};

struct kve_slots {
    bool locked; /* several threads */
    pthread_mutex_t lock;
    uint32_t max;
    uint32_t used;
    struct kve_slot_list waiting;
};

kve_status kve_slots_init(
    struct kve_slots *slots, uint32_t max, bool locked, struct kve_error *err);
void kve_slots_release(struct kve_slots *slots);

/* Take a slot, or stand in line for one: true when it is there at once. The
 * slot must be in state NONE. */
bool kve_slot_take(
    struct kve_slots *slots, struct kve_slot *slot, struct kve_grants *grants);

/* Give it back, or leave the line; the first who waits gets it. NONE is
 * allowed. */
void kve_slot_give_back(struct kve_slots *slots, struct kve_slot *slot);

/* The next slot of this loop that was granted, HELD from now on, or NULL. */
struct kve_slot *kve_slots_granted(
    struct kve_slots *slots, struct kve_grants *grants);

#endif
