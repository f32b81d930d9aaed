/*
 * buffer.h - room in a struct kve_buffer (kvevents/codec.h).
 */
#ifndef KVE_WIRE_BUFFER_H
#define KVE_WIRE_BUFFER_H

#include <kvevents/codec.h>

/* The buffer's limit: max, or 256 MiB. */
size_t kve_buffer_max(const struct kve_buffer *buf);

/* Room for n bytes behind len, within the limit. KVE_OK, KVE_E_NOMEM or
 * KVE_E_LIMIT; what is in the buffer stays. */
kve_status kve_buffer_reserve(
    struct kve_buffer *buf, size_t n, struct kve_error *err);

#endif
