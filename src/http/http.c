/*
 * http.c - what handlers share; see http.h and request.h.
 */
#include "http/http.h"

#include "http/output.h"
#include "wire/buffer.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const uint32_t kve_http_bucket_us[KVE_HTTP_BUCKETS - 1] = { 10, 20, 50, 100,
    200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 500000, 1000000 };

/* The longest text of an error. */
#define LINE 400

static void
fail(struct kve_http_request *req, unsigned status, const size_t *offset,
    const char *fmt, va_list ap)
{
    struct kve_output out;
    char line[LINE];

    (void)vsnprintf(line, sizeof(line), fmt, ap);
    req->status = status;
    req->media = KVE_MEDIA_JSON;
    req->out->len = 0;
    kve_output_begin(&out, req->out, false);
    kve_output_map(&out, offset != NULL ? 3 : 2);
    kve_output_key(&out, "error");
    kve_output_text(&out, line);
    kve_output_key(&out, "status");
    kve_output_u64(&out, status);
    if (offset != NULL) {
        kve_output_key(&out, "offset");
        kve_output_u64(&out, *offset);
    }
    kve_output_map_end(&out);
    /* No memory: the status alone says it. */
    if (out.status != KVE_OK) {
        req->out->len = 0;
        req->media = KVE_MEDIA_NONE;
    }
}

void
kve_http_fail(
    struct kve_http_request *req, unsigned status, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fail(req, status, NULL, fmt, ap);
    va_end(ap);
}

void
kve_http_fail_at(struct kve_http_request *req, unsigned status, size_t offset,
    const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fail(req, status, &offset, fmt, ap);
    va_end(ap);
}

void
kve_http_plain(struct kve_http_request *req, unsigned status, const char *text)
{
    size_t len = strlen(text);

    req->status = status;
    req->media = KVE_MEDIA_TEXT;
    req->out->len = 0;
    if (kve_buffer_reserve(req->out, len, NULL) != KVE_OK) {
        req->media = KVE_MEDIA_NONE;
        return;
    }
    memcpy(req->out->data, text, len);
    req->out->len = len;
}
