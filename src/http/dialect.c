/*
 * dialect.c - routes of the dialects, and what they share.
 */
#include "http/dialect.h"

#include "base/alloc.h"
#include "wire/buffer.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- peers ---- */

struct kve_http_peers *
kve_http_peers_create(void)
{
    struct kve_http_peers *peers = kve_mem_zalloc(1, sizeof(*peers));

    if (peers == NULL)
        return NULL;
    (void)pthread_mutex_init(&peers->lock, NULL);
    (void)pthread_mutex_init(&peers->registering, NULL);
    return peers;
}

void
kve_http_peers_destroy(struct kve_http_peers *peers)
{
    if (peers == NULL)
        return;
    for (size_t i = 0; i < peers->n; i++)
        kve_mem_free(peers->urls[i]);
    kve_mem_free(peers->urls);
    (void)pthread_mutex_destroy(&peers->registering);
    (void)pthread_mutex_destroy(&peers->lock);
    kve_mem_free(peers);
}

/* ---- answers ---- */

/* There is no memory for an answer: its status says so alone. */
static void
fail_nomem(struct kve_http_request *req)
{
    req->out->len = 0;
    req->status = 503;
    req->retry_after = 1;
    req->media = KVE_MEDIA_NONE;
}

void
kve_dialect_begin(
    struct kve_http_request *req, struct kve_output *out, bool msgpack)
{
    req->out->len = 0;
    req->media = msgpack ? KVE_MEDIA_MSGPACK : KVE_MEDIA_JSON;
    kve_output_begin(out, req->out, msgpack);
}

void
kve_dialect_end(struct kve_http_request *req, struct kve_output *out)
{
    if (out->status != KVE_OK)
        fail_nomem(req);
}

/* The line that fmt makes; free it with kve_mem_free(). NULL: no memory. */
static char *
line_of(const char *fmt, va_list args)
{
    va_list again;
    int len;
    char *line;

    va_copy(again, args);
    len = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    line = len < 0 ? NULL : kve_mem_alloc((size_t)len + 1);
    if (line != NULL)
        vsnprintf(line, (size_t)len + 1, fmt, args);
    return line;
}

void
kve_dialect_error(
    struct kve_http_request *req, unsigned status, const char *fmt, ...)
{
    struct kve_output out;
    va_list args;
    char *line;

    va_start(args, fmt);
    line = line_of(fmt, args);
    va_end(args);
    if (line == NULL) {
        fail_nomem(req);
        return;
    }
    req->status = status;
    kve_dialect_begin(req, &out, req->content == KVE_MEDIA_MSGPACK);
    kve_output_map(&out, 1);
    kve_output_key(&out, "error");
    kve_output_text(&out, line);
    kve_output_map_end(&out);
    kve_dialect_end(req, &out);
    kve_mem_free(line);
}

void
kve_dialect_text(
    struct kve_http_request *req, unsigned status, const char *fmt, ...)
{
    va_list args;
    char *line;
    size_t len;

    va_start(args, fmt);
    line = line_of(fmt, args);
    va_end(args);
    len = line == NULL ? 0 : strlen(line);
    req->out->len = 0;
    if (line == NULL || kve_buffer_reserve(req->out, len, NULL) != KVE_OK) {
        fail_nomem(req);
    } else {
        memcpy(req->out->data, line, len);
        req->out->len = len;
        req->status = status;
        req->media = KVE_MEDIA_TEXT;
    }
    kve_mem_free(line);
}

void
kve_dialect_ok(struct kve_http_request *req, unsigned status)
{
    struct kve_output out;

    req->status = status;
    kve_dialect_begin(req, &out, false);
    kve_output_map(&out, 1);
    kve_output_key(&out, "status");
    kve_output_text(&out, "ok");
    kve_output_map_end(&out);
    kve_dialect_end(req, &out);
}

bool
kve_dialect_no_json(struct kve_http_request *req)
{
    if (req->content == KVE_MEDIA_JSON)
        return false;
    kve_dialect_text(
        req, 415, "Expected request with `Content-Type: application/json`");
    return true;
}

void
kve_dialect_bad_body(
    struct kve_http_request *req, bool broken, const char *words)
{
    kve_dialect_text(req, broken ? 400 : 422, "%s: %s",
        broken ? "Failed to parse the request body as JSON"
               : "Failed to deserialize the JSON body into the target type",
        words);
}

void
kve_dialect_put_id(struct kve_output *out, const char *worker)
{
    uint64_t id = 0;
    const char *at = worker;

    while (*at >= '0' && *at <= '9' &&
        id <= (UINT64_MAX - (uint64_t)(*at - '0')) / 10)
        id = id * 10 + (uint64_t)(*at++ - '0');
    /* "007" and "" are names, not numbers. */
    if (*at != '\0' || at == worker || (worker[0] == '0' && worker[1] != '\0'))
        kve_output_text(out, worker);
    else
        kve_output_u64(out, id);
}

/* ---- which dialect ---- */

static bool
body_has(struct kve_http_request *req, const char *name)
{
    return kve_body_has(&req->scratch->input, req->body, req->body_len, name);
}

static void
register_any(struct kve_http *http, struct kve_http_request *req)
{
    if (body_has(req, "modelname") && !body_has(req, "model_name"))
        kve_mooncake_register(http, req);
    else
        kve_dynamo_register(http, req);
}

/* Mooncake's may name no model; Dynamo's must. */
static void
unregister_any(struct kve_http *http, struct kve_http_request *req)
{
    static const struct kve_body_field text_id[] = { { "instance_id",
        KVE_BODY_TEXT, true } };
    struct kve_body body;
    struct kve_body_error err;
    bool mooncake = false;

    if (!body_has(req, "model_name")) {
        mooncake = body_has(req, "modelname");
        if (!mooncake &&
            kve_body_read(&body, &req->scratch->input, req->body, req->body_len,
                text_id, 1, false, &err) == KVE_BODY_FINE) {
            mooncake = true;
            kve_body_release(&body);
        }
    }
    if (mooncake)
        kve_mooncake_unregister(http, req);
    else
        kve_dynamo_unregister(http, req);
}

/* ---- routes ---- */

#define SMALL (KVE_ROUTE_SMALL | KVE_ROUTE_PLAIN)
#define QUERY (KVE_ROUTE_QUERY | KVE_ROUTE_PLAIN)

const struct kve_http_route kve_routes_dialects[] = {
    { KVE_METHOD_POST, "/query", kve_dialect_query, QUERY },
    { KVE_METHOD_POST, "/query_by_hash", kve_dialect_query_by_hash, QUERY },
    { KVE_METHOD_POST, "/register", register_any, SMALL },
    { KVE_METHOD_POST, "/unregister", unregister_any, SMALL },
    { KVE_METHOD_GET, "/workers", kve_dynamo_workers, SMALL },
    { KVE_METHOD_GET, "/dump", kve_dynamo_dump, SMALL },
    { KVE_METHOD_POST, "/register_peer", kve_dynamo_register_peer, SMALL },
    { KVE_METHOD_POST, "/deregister_peer", kve_dynamo_deregister_peer, SMALL },
    { KVE_METHOD_GET, "/peers", kve_dynamo_peers, SMALL },
    { KVE_METHOD_POST, "/reopen_logs", kve_dynamo_reopen_logs, SMALL },
    { KVE_METHOD_POST, "/test/pause_listener", kve_dynamo_pause,
        SMALL | KVE_ROUTE_TEST },
    { KVE_METHOD_POST, "/test/resume_listener", kve_dynamo_resume,
        SMALL | KVE_ROUTE_TEST },
    { KVE_METHOD_GET, "/services", kve_mooncake_services, SMALL },
    { KVE_METHOD_GET, "/global_view", kve_mooncake_global_view, SMALL },
    { 0, NULL, NULL, 0 },
};
