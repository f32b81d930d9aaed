/*
 * stamp.c - recorded messages with the id of who publishes them again.
 */
#include "stamp.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* First bytes of arrays of 2, 3 and 4 items. */
#define ARRAY_2 0x92
#define ARRAY_3 0x93
#define ARRAY_4 0x94

#define NIL 0xc0
#define BIN_8 0xc4

static bool
reserve(struct stamp *stamp, size_t size)
{
    uint8_t *bytes;

    if (size <= stamp->cap)
        return true;
    bytes = realloc(stamp->bytes, size);
    if (bytes == NULL)
        return false;
    stamp->bytes = bytes;
    stamp->cap = size;
    return true;
}

struct kve_span
stamp_payload(
    struct stamp *stamp, struct kve_span payload, const uint8_t id[16])
{
    const struct kve_batch_info *info;
    struct kve_span stamped;
    size_t own; /* where the id stands, or payload.len */
    size_t at = payload.len;

    if (stamp->batch == NULL &&
        kve_batch_create(NULL, &stamp->batch, NULL) != KVE_OK)
        return payload;
    if (kve_batch_decode(stamp->batch, payload.data, payload.len, NULL) !=
        KVE_OK)
        return payload;
    info = kve_batch_get_info(stamp->batch);
    own = info->publisher_id != NULL
        ? (size_t)(info->publisher_id - payload.data)
        : payload.len;
    if (own == payload.len &&
        (info->trailing > 0 ||
            (payload.data[0] != ARRAY_2 && payload.data[0] != ARRAY_3)))
        return payload;
    if (!reserve(stamp, payload.len + 3 + 16))
        return payload;

    memcpy(stamp->bytes, payload.data, payload.len);
    if (own < payload.len) {
        memcpy(stamp->bytes + own, id, 16);
    } else {
        if (payload.data[0] == ARRAY_2)
            stamp->bytes[at++] = NIL;
        stamp->bytes[0] = ARRAY_4;
        stamp->bytes[at++] = BIN_8;
        stamp->bytes[at++] = 16;
        memcpy(stamp->bytes + at, id, 16);
        at += 16;
    }
    stamped.data = stamp->bytes;
    stamped.len = at;
    return stamped;
}

void
stamp_release(struct stamp *stamp)
{
    kve_batch_destroy(stamp->batch);
    free(stamp->bytes);
    stamp->batch = NULL;
    stamp->bytes = NULL;
    stamp->cap = 0;
}
