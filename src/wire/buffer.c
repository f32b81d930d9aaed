/*
 * buffer.c - see buffer.h.
 */
#include "wire/buffer.h"

#include "base/alloc.h"
#include "base/status.h"

#define DEFAULT_MAX ((size_t)256 * 1024 * 1024)
#define FIRST_CAP ((size_t)4096)

size_t
kve_buffer_max(const struct kve_buffer *buf)
{
    return buf->max != 0 ? buf->max : DEFAULT_MAX;
}

kve_status
kve_buffer_reserve(struct kve_buffer *buf, size_t n, struct kve_error *err)
{
    size_t max = kve_buffer_max(buf);

    if (n <= buf->cap - buf->len)
        return KVE_OK;
    if (buf->len > max || n > max - buf->len)
        return kve_fail(err, KVE_E_LIMIT,
            "output of %zu + %zu bytes is over the buffer's max of %zu",
            buf->len, n, max);

    size_t cap = buf->cap < FIRST_CAP ? FIRST_CAP : buf->cap;
    while (cap < buf->len + n)
        cap = cap > max / 2 ? max : cap * 2;
    if (cap > max)
        cap = max;
    uint8_t *data = kve_mem_realloc(buf->data, cap);
    if (data == NULL)
        return kve_fail_nomem(err, "output buffer");
    buf->data = data;
    buf->cap = cap;
    return KVE_OK;
}

void
kve_buffer_release(struct kve_buffer *buf)
{
    kve_mem_free(buf->data);
    buf->data = NULL;
    buf->len = 0;
    buf->cap = 0;
}
