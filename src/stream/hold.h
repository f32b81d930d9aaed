/*
 * hold.h - live messages that wait while a replay runs.
 *
 * A queue of copies, bounded in bytes and in items; the only memory a machine
 * allocates after it was made. A copy, not the received message itself: what
 * the socket library holds is bounded in messages only, and this buffer in
 * bytes.
 */
#ifndef KVE_STREAM_HOLD_H
#define KVE_STREAM_HOLD_H

#include "stream/machine.h"

#include <stdbool.h>
#include <stddef.h>

struct kve_held {
    struct kve_held *next;
    size_t bytes;
    uint32_t ask;               /* the last request before it came */
    uint32_t link;              /* the connection by which it came */
    struct kve_machine_msg msg; /* points into data */
    uint8_t data[];
};

struct kve_hold {
    struct kve_held *first;
    struct kve_held **tail; /* where the next one is hooked in */
    size_t bytes;
    size_t items;
    size_t max_bytes;
    size_t max_items;
};

void kve_hold_init(struct kve_hold *hold, size_t max_bytes, size_t max_items);

/* Append a copy, or false: full, or out of memory. */
bool kve_hold_push(struct kve_hold *hold, const struct kve_machine_msg *msg,
    uint32_t ask, uint32_t link);

/* Take the oldest out; the caller frees it with kve_mem_free(). NULL: empty. */
struct kve_held *kve_hold_pop(struct kve_hold *hold);

/* Put back what was taken out, as the oldest. */
void kve_hold_put_back(struct kve_hold *hold, struct kve_held *held);

/* Free everything; the hold can be used again. */
void kve_hold_clear(struct kve_hold *hold);

#endif
