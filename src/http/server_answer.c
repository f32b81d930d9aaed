/*
 * server_answer.c - answers and refusals, as responses of the library.
 */
#include "http/server_parts.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <stdio.h>

static const char *const media_names[] = {
    [KVE_MEDIA_JSON] = "application/json",
    [KVE_MEDIA_MSGPACK] = "application/msgpack",
    [KVE_MEDIA_TEXT] = "text/plain; charset=utf-8",
    [KVE_MEDIA_METRICS] = "text/plain; version=0.0.4",
    [KVE_MEDIA_LINES] = "application/x-ndjson",
    [KVE_MEDIA_EVENTS] = "text/event-stream",
    [KVE_MEDIA_BYTES] = "application/octet-stream",
};

static const char *
media_name(enum kve_media media)
{
    if ((size_t)media >= sizeof(media_names) / sizeof(media_names[0]))
        return NULL;
    return media_names[media];
}

/* The buffer's bytes as a response: copied when they are few, else the
 * response gets the buffer's memory and the buffer starts anew. */
static struct MHD_Response *
response_of(struct kve_buffer *out)
{
    struct MHD_Response *response;

    if (out->len <= KVE_SERVER_COPIED)
        return MHD_create_response_from_buffer(
            out->len, out->data, MHD_RESPMEM_MUST_COPY);
    response = MHD_create_response_from_buffer_with_free_callback(
        out->len, out->data, kve_mem_free);
    if (response != NULL)
        *out = (struct kve_buffer){ NULL, 0, 0, out->max };
    return response;
}

static bool
add_header(struct MHD_Response *response, const char *name, const char *value)
{
    return MHD_add_response_header(response, name, value) == MHD_YES;
}

static bool
add_headers(struct kve_conn *conn, const struct kve_http_request *req,
    struct MHD_Response *response)
{
    const char *media = media_name(req->media);
    char number[16];

    if (media != NULL && !add_header(response, "Content-Type", media))
        return false;
    if (req->media == KVE_MEDIA_EVENTS &&
        !add_header(response, "Cache-Control", "no-store"))
        return false;
    if (req->allow != NULL && !add_header(response, "Allow", req->allow))
        return false;
    if (req->retry_after != 0) {
        (void)snprintf(number, sizeof(number), "%u", req->retry_after);
        if (!add_header(response, "Retry-After", number))
            return false;
    }
    if (req->status == MHD_HTTP_UNAUTHORIZED &&
        !add_header(response, "WWW-Authenticate",
            conn->bad_token
                ? "Bearer realm=\"kvevents\", error=\"invalid_token\""
                : "Bearer realm=\"kvevents\""))
        return false;
    return (!conn->last &&
               !atomic_load_explicit(
                   &conn->server->draining, memory_order_relaxed)) ||
        add_header(response, "Connection", "close");
}

static const char *
method_name(enum kve_method method)
{
    switch (method) {
    case KVE_METHOD_GET:
        return "GET";
    case KVE_METHOD_POST:
        return "POST";
    case KVE_METHOD_DELETE:
        return "DELETE";
    case KVE_METHOD_PUT:
        return "PUT";
    case KVE_METHOD_HEAD:
        return "HEAD";
    case KVE_METHOD_OTHER:
        break;
    }
    return "?";
}

static void
account(struct kve_conn *conn, const struct kve_http_request *req, size_t bytes,
    const char *url)
{
    struct kve_http *http = conn->server->http;

    kve_http_count(http, KVE_COUNTER_HTTP_REQUESTS, 1);
    if (bytes != 0)
        kve_http_count(http, KVE_COUNTER_HTTP_ANSWER_BYTES, bytes);
    if (req->status >= 500)
        kve_http_count(http, KVE_COUNTER_HTTP_5XX, 1);
    else if (req->status >= 400)
        kve_http_count(http, KVE_COUNTER_HTTP_4XX, 1);
    if (http->opts.access != NULL) {
        int64_t ns = kve_now_ns() -
            atomic_load_explicit(&conn->since, memory_order_relaxed);

        http->opts.access(http->opts.access_ctx, conn->name,
            method_name(req->method), url, req->status, (double)ns / 1e9);
    }
}

/* The library ends even a body that is not sent with its last chunk, which the
 * client then takes for the next answer. So HEAD gets no stream. */
static void
end_unwanted(struct kve_http_request *req)
{
    if (req->pull == NULL || req->method != KVE_METHOD_HEAD)
        return;
    if (req->pull_end != NULL)
        req->pull_end(req->pull_ctx);
    req->pull = NULL;
    req->out->len = 0;
}

void
kve_conn_drop_answer(struct kve_conn *conn)
{
    if (conn->answered != 0)
        atomic_fetch_sub_explicit(
            &conn->server->answer_bytes, conn->answered, memory_order_relaxed);
    conn->answered = 0;
}

/* A client that reads a byte now and then is not idle, and holds the memory of
 * its answer: so there is a limit for all of them together. One answer may be
 * larger than that. */
static void
charge_answer(struct kve_conn *conn, struct kve_http_request *req)
{
    struct kve_server *server = conn->server;
    size_t n = req->pull != NULL ? 0 : req->out->len;
    size_t before;

    if (n <= KVE_SERVER_COPIED)
        return;
    before = atomic_fetch_add_explicit(
        &server->answer_bytes, n, memory_order_relaxed);
    conn->answered = n;
    if (before <= KVE_SERVER_ANSWERS_MAX)
        return;
    kve_conn_drop_answer(conn);
    kve_buffer_release(req->out);
    kve_http_fail(req, MHD_HTTP_SERVICE_UNAVAILABLE,
        "answers of %zu bytes wait for their clients to read them, which is "
        "the limit here; try again",
        KVE_SERVER_ANSWERS_MAX);
    req->retry_after = 1;
    kve_server_say(server, KVE_SERVER_LOG_MEMORY, KVE_LOG_WARNING,
        "request of %s refused: answers of %zu bytes wait for their clients",
        conn->name, before);
}

enum MHD_Result
kve_conn_answer(
    struct kve_conn *conn, struct kve_http_request *req, const char *url)
{
    struct MHD_Response *response;
    enum MHD_Result result = MHD_NO;
    size_t bytes;
    bool stream;

    end_unwanted(req);
    charge_answer(conn, req);
    stream = req->pull != NULL;
    bytes = stream ? 0 : req->out->len;
    response = stream ? kve_conn_stream(conn, req) : response_of(req->out);

    if (response == NULL) {
        if (stream && req->pull_end != NULL)
            req->pull_end(req->pull_ctx);
        return MHD_NO;
    }
    if (add_headers(conn, req, response)) {
        account(conn, req, bytes, url);
        result = MHD_queue_response(conn->mhd, req->status, response);
    }
    MHD_destroy_response(response);
    return result;
}

/* The body of a refusal; empty for what has none. */
static void
explain(struct kve_conn *conn, struct kve_http_request *req)
{
    struct kve_http *http = conn->server->http;
    bool plain =
        conn->route != NULL && (conn->route->flags & KVE_ROUTE_PLAIN) != 0;

    switch (conn->refusal) {
    case MHD_HTTP_BAD_REQUEST:
        kve_http_fail(req, conn->refusal, "%s",
            conn->bad_uri
                ? "the address has a zero byte (%00); none is accepted"
                : "how long the body is is not clear: send one Content-Length, "
                  "or Transfer-Encoding: chunked");
        break;
    case MHD_HTTP_UNAUTHORIZED:
        kve_http_count(http, KVE_COUNTER_HTTP_UNAUTHORIZED, 1);
        kve_http_fail(req, conn->refusal, "%s",
            conn->bad_token
                ? "the token is not valid; ask who runs this service for one"
                : "a token is needed: send Authorization: Bearer TOKEN");
        break;
    case MHD_HTTP_TOO_MANY_REQUESTS:
        kve_http_count(http, KVE_COUNTER_HTTP_RATE_LIMITED, 1);
        kve_http_fail(req, conn->refusal,
            "more than %u requests a second from this address; try again in "
            "%u s",
            http->opts.max_requests, conn->retry_after);
        break;
    case MHD_HTTP_CONTENT_TOO_LARGE:
        if (plain) {
            kve_http_plain(req, conn->refusal,
                "Failed to buffer the request body: length limit exceeded");
            break;
        }
        kve_http_fail(req, conn->refusal,
            "the body is larger than %zu bytes, which is the limit here; ask "
            "for less at once",
            conn->body_limit);
        break;
    case MHD_HTTP_SERVICE_UNAVAILABLE:
        kve_http_fail(req, conn->refusal,
            "no memory for the body of this request now; try again in %u s",
            conn->retry_after);
        break;
    default:
        req->status = conn->refusal;
        req->media = KVE_MEDIA_NONE;
        break;
    }
}

static void
say(struct kve_conn *conn)
{
    struct kve_server *server = conn->server;

    if (conn->refusal == MHD_HTTP_UNAUTHORIZED)
        kve_server_say(server, KVE_SERVER_LOG_TOKEN, KVE_LOG_WARNING,
            "request of %s refused: %s token", conn->name,
            conn->bad_token ? "not a valid" : "no");
    else if (conn->refusal == MHD_HTTP_TOO_MANY_REQUESTS)
        kve_server_say(server, KVE_SERVER_LOG_RATE, KVE_LOG_WARNING,
            "request of %s refused: more than %u requests a second", conn->name,
            server->http->opts.max_requests);
}

enum MHD_Result
kve_conn_refuse(struct kve_conn *conn, const char *url)
{
    struct kve_server_thread *thread = conn->thread;
    struct kve_http_request req = {
        .method = conn->method,
        .path = url,
        .path_rest = "",
        .out = &thread->out,
        .retry_after = conn->retry_after,
        .allow =
            conn->refusal == MHD_HTTP_METHOD_NOT_ALLOWED ? conn->allow : NULL,
        .connection = conn,
    };

    atomic_store_explicit(&conn->mark, KVE_MARK(conn->turn, KVE_PHASE_ANSWER),
        memory_order_release);
    thread->out.len = 0;
    explain(conn, &req);
    say(conn);
    return kve_conn_answer(conn, &req, url);
}
