/*
 * retry.h - when a reader that is full is tried again.
 *
 * That it has room again has no event. So it is tried after 1 ms, then after
 * twice that, up to 20 ms, and after 1 ms again once it took something.
 */
#ifndef KVE_PUBLISH_RETRY_H
#define KVE_PUBLISH_RETRY_H

#include "base/clock.h"

#include <stdint.h>

#define KVE_RETRY_MIN (1 * KVE_MS)
#define KVE_RETRY_MAX (20 * KVE_MS)

struct kve_retry {
    int64_t at; /* 0: at once */
    int64_t after;
};

/* It took something, or was never tried. */
static inline void
kve_retry_begin(struct kve_retry *retry)
{
    retry->after = KVE_RETRY_MIN;
}

/* It is full. */
static inline void
kve_retry_later(struct kve_retry *retry, int64_t now_ns)
{
    retry->at = now_ns + retry->after;
    retry->after =
        retry->after * 2 < KVE_RETRY_MAX ? retry->after * 2 : KVE_RETRY_MAX;
}

#endif
