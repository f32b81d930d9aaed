/*
 * payload.h - one published batch, shared by everyone who still needs it.
 *
 * A batch is encoded once into a counted buffer. The queue, the replay buffer
 * and every pipe of the socket library hold references to the same bytes; the
 * last to let go frees them, on whatever thread that is.
 *
 *     struct kve_payload   refs | len | out -> gauge | bytes ...
 *
 * References that are in the socket library's hands are counted, in bytes, in
 * the gauge *out, so that the owner can stop feeding a library that cannot
 * get rid of what it has. Live and replay are counted apart, so that readers
 * of the one cannot hold up the other; a payload that is sent in both counts
 * for each.
 */
#ifndef KVE_TRANSPORT_PAYLOAD_H
#define KVE_TRANSPORT_PAYLOAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kve_out { KVE_OUT_LIVE, KVE_OUT_REPLAY };

/* Bytes in the socket library's hands; shared, outlives its payloads. */
struct kve_out_gauge {
    atomic_size_t bytes[2]; /* by enum kve_out */
    atomic_uint refs;       /* the owner's and one for each payload */
};

struct kve_payload {
    atomic_uint refs;
    uint32_t flags; /* the owner's */
    size_t len;
    struct kve_out_gauge *out; /* NULL: not counted */
    uint8_t data[];
};

/* A gauge with one reference, or NULL. */
struct kve_out_gauge *kve_out_gauge_create(void);
/* Let go of one reference. NULL is allowed. */
void kve_out_gauge_unref(struct kve_out_gauge *gauge);

/* A payload of len bytes with one reference, bytes copied from data when it is
 * not NULL, or NULL when memory is short. */
struct kve_payload *kve_payload_create(
    const void *data, size_t len, struct kve_out_gauge *out);
/*
 * Make a payload of bytes that lie in a block already, without copying them:
 * block comes from kve_mem_*, its first KVE_PAYLOAD_HEAD bytes are room for the
 * payload's head, and len bytes of data follow. Takes block over; one
 * reference, not counted in a gauge.
 */
#define KVE_PAYLOAD_HEAD sizeof(struct kve_payload)
struct kve_payload *kve_payload_adopt_take(void *block, size_t len);
/* One more reference; returns payload. */
struct kve_payload *kve_payload_ref(struct kve_payload *payload);
/* Whether the caller's reference is the only one; who sees that, sees all that
 * the others did before they let go. */
bool kve_payload_alone(struct kve_payload *payload);
/* How many references there are, for one who watches them go. */
unsigned kve_payload_refs(struct kve_payload *payload);
/* Let go of one reference. NULL is allowed. */
void kve_payload_unref(struct kve_payload *payload);

#endif
