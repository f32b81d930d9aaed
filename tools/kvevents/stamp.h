/*
 * stamp.h - recorded messages with the id of who publishes them again.
 *
 * A publisher that names its life by an id writes it into every batch, and
 * readers take a batch of another id for another publisher. A recorded message
 * carries the id of the one that was recorded, or none. Its bytes stay, but
 * for the id: ours in the place of its own, or as a fourth item of its array.
 * What is no batch of such a form stays as it is.
 */
#ifndef KVEVENTS_TOOL_STAMP_H
#define KVEVENTS_TOOL_STAMP_H

#include <kvevents/codec.h>

#include <stddef.h>
#include <stdint.h>

struct stamp {
    kve_batch *batch; /* what messages are read into */
    uint8_t *bytes;
    size_t cap;
};

/*
 * The payload with an id of 16 bytes. The result is valid until the next call;
 * it is payload itself where nothing was changed. Memory is made when it is
 * needed; without it the payload stays as it is.
 */
struct kve_span stamp_payload(
    struct stamp *stamp, struct kve_span payload, const uint8_t id[16]);

void stamp_release(struct stamp *stamp);

#endif
