/*
 * server_request.c - a request from its first line to its answer.
 *
 * The library calls kve_server_uri() with the request line, then
 * kve_server_handle() once when the header is there, with each piece of the
 * body, and once when all is there. Only in the first and in the last of these
 * calls it takes an answer.
 */
#include "http/server_parts.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Of a route with KVE_ROUTE_SMALL. */
#define SMALL_BODY ((size_t)2 * 1024 * 1024)

static struct kve_conn *
conn_of(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info != NULL ? info->socket_context : NULL;
}

static void
set_phase(struct kve_conn *conn, enum kve_phase phase)
{
    atomic_store_explicit(
        &conn->mark, KVE_MARK(conn->turn, phase), memory_order_release);
}

static void
reset_request(struct kve_conn *conn)
{
    conn->stage = KVE_STAGE_HEADER;
    conn->route = NULL;
    conn->refusal = 0;
    conn->allow = NULL;
    conn->retry_after = 0;
    conn->bad_token = false;
    conn->last = false;
    conn->content = KVE_MEDIA_NONE;
    conn->accepts_msgpack = false;
    conn->discarded = 0;
}

void *
kve_server_uri(void *cls, const char *uri, struct MHD_Connection *mhd)
{
    struct kve_conn *conn = conn_of(mhd);
    int64_t since = kve_now_ns();

    (void)cls;
    if (conn == NULL)
        return NULL;
    reset_request(conn);
    /* The library decodes it to the end of a C text. */
    conn->bad_uri = strstr(uri, "%00") != NULL;
    /* The watchdog may have seen bytes of it long before. */
    if (atomic_load_explicit(&conn->early_mark, memory_order_acquire) ==
        KVE_MARK(conn->turn, KVE_PHASE_IDLE))
        since = atomic_load_explicit(&conn->early_since, memory_order_relaxed);
    atomic_store_explicit(&conn->since, since, memory_order_relaxed);
    set_phase(conn, KVE_PHASE_COMING);
    return conn;
}

void
kve_server_completed(void *cls, struct MHD_Connection *mhd, void **con_cls,
    enum MHD_RequestTerminationCode code)
{
    struct kve_conn *conn = *con_cls;

    (void)cls;
    (void)mhd;
    (void)code;
    if (conn == NULL)
        return;
    kve_conn_drop_body(conn);
    kve_conn_drop_answer(conn);
    conn->turn++;
    set_phase(conn, KVE_PHASE_IDLE);
    *con_cls = NULL;
}

/* ---- the header ---- */

struct header {
    struct kve_conn *conn;
    const char *token;
    bool has_length;
    bool chunked;
    bool expects;
    bool unclear; /* two lengths, a length and chunks, unknown coding */
    uint64_t length;
};

/* Does a media type stand in text, before the end or a parameter? */
static bool
is_media(const char *text, const char *media)
{
    size_t len = strlen(media);

    return strncasecmp(text, media, len) == 0 &&
        (text[len] == '\0' || text[len] == ';' || text[len] == ' ' ||
            text[len] == ',');
}

static enum kve_media
media_of(const char *text)
{
    text += strspn(text, " \t");
    if (text[0] == '\0')
        return KVE_MEDIA_NONE;
    if (is_media(text, "application/json"))
        return KVE_MEDIA_JSON;
    if (is_media(text, "application/msgpack") ||
        is_media(text, "application/x-msgpack"))
        return KVE_MEDIA_MSGPACK;
    if (is_media(text, "text/plain"))
        return KVE_MEDIA_TEXT;
    if (is_media(text, "application/x-ndjson"))
        return KVE_MEDIA_LINES;
    if (is_media(text, "application/octet-stream"))
        return KVE_MEDIA_BYTES;
    return KVE_MEDIA_OTHER;
}

/* Is msgpack named, and not after JSON? */
static bool
prefers_msgpack(const char *accept)
{
    for (const char *p = accept; p != NULL; p = strchr(p, ',')) {
        p += strspn(p, ", \t");
        enum kve_media media = media_of(p);
        if (media == KVE_MEDIA_MSGPACK)
            return true;
        if (media == KVE_MEDIA_JSON || *p == '\0')
            return false;
    }
    return false;
}

/* One field of the header. */
static enum MHD_Result
read_field(
    void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct header *header = cls;

    (void)kind;
    if (value == NULL)
        return MHD_YES;
    switch (key[0] | 0x20) {
    case 'a':
        if (strcasecmp(key, "Accept") == 0)
            header->conn->accepts_msgpack = prefers_msgpack(value);
        else if (strcasecmp(key, "Authorization") == 0)
            header->token = value;
        break;
    case 'c':
        if (strcasecmp(key, "Content-Type") == 0)
            header->conn->content = media_of(value);
        else if (strcasecmp(key, "Content-Length") == 0) {
            /* The library refused what is no number. */
            header->unclear |= header->has_length || header->chunked;
            header->has_length = true;
            header->length = strtoull(value, NULL, 10);
        }
        break;
    case 'e':
        if (strcasecmp(key, "Expect") == 0)
            header->expects = true;
        break;
    case 't':
        if (strcasecmp(key, "Transfer-Encoding") == 0) {
            header->unclear |= header->has_length || header->chunked ||
                strcasecmp(value, "chunked") != 0;
            header->chunked = true;
        }
        break;
    default:
        break;
    }
    return MHD_YES;
}

/* Why the request is not answered by its handler: a status, or 0. */
static unsigned
judge(struct kve_conn *conn, const struct header *header, const char *url)
{
    struct kve_server *server = conn->server;
    bool open;

    conn->retry_after =
        kve_clients_request(server->clients, conn->client, kve_now_ns());
    if (conn->retry_after != 0)
        return MHD_HTTP_TOO_MANY_REQUESTS;
    conn->route =
        kve_router_find(server->router, url, conn->method, &conn->allow);
    open = conn->route != NULL && (conn->route->flags & KVE_ROUTE_OPEN) != 0;
    if (server->auth != NULL && !open &&
        !kve_auth_allows(server->auth, header->token)) {
        conn->bad_token = header->token != NULL;
        return MHD_HTTP_UNAUTHORIZED;
    }
    if (conn->bad_uri || header->unclear)
        return MHD_HTTP_BAD_REQUEST;
    if (conn->route == NULL)
        return conn->allow != NULL ? MHD_HTTP_METHOD_NOT_ALLOWED
                                   : MHD_HTTP_NOT_FOUND;
    conn->body_limit = server->http->opts.max_body;
    if ((conn->route->flags & KVE_ROUTE_SMALL) != 0 &&
        conn->body_limit > SMALL_BODY)
        conn->body_limit = SMALL_BODY;
    if (header->length > conn->body_limit)
        return MHD_HTTP_CONTENT_TOO_LARGE;
    return 0;
}

static enum MHD_Result
begin(struct kve_conn *conn, const char *url, const char *method)
{
    struct header header = { .conn = conn };

    conn->method = kve_method_of(method);
    (void)MHD_get_connection_values(
        conn->mhd, MHD_HEADER_KIND, read_field, &header);
    conn->refusal = judge(conn, &header, url);
    conn->stage = conn->refusal != 0 ? KVE_STAGE_REFUSED : KVE_STAGE_BODY;
    /* A refusal waits for a body that is on its way and small; it does not
     * ask for one that waits to be asked for. Where a request ends whose
     * length is unclear nobody knows. */
    conn->last = conn->refusal != 0 &&
        (header.length > KVE_SERVER_DISCARD || header.expects ||
            header.unclear);
    if (conn->last) {
        conn->stage = KVE_STAGE_DONE;
        return kve_conn_refuse(conn, url);
    }
    return MHD_YES;
}

/* ---- the body ---- */

static void
refuse_body(struct kve_conn *conn, unsigned status)
{
    conn->refusal = status;
    conn->stage = KVE_STAGE_REFUSED;
    kve_conn_drop_body(conn);
    if (status == MHD_HTTP_SERVICE_UNAVAILABLE) {
        conn->retry_after = 1;
        kve_server_say(conn->server, KVE_SERVER_LOG_MEMORY, KVE_LOG_WARNING,
            "request refused: no memory for its body");
    }
}

static enum MHD_Result
take_body(struct kve_conn *conn, const char *data, size_t *size)
{
    size_t n = *size;

    *size = 0;
    kve_http_count(conn->server->http, KVE_COUNTER_HTTP_BODY_BYTES, n);
    if (conn->stage == KVE_STAGE_BODY) {
        unsigned refusal = n > conn->body_limit - conn->body.len
            ? MHD_HTTP_CONTENT_TOO_LARGE
            : kve_conn_grow_body(conn, n);

        if (refusal == 0) {
            memcpy(conn->body.data + conn->body.len, data, n);
            conn->body.len += n;
            return MHD_YES;
        }
        refuse_body(conn, refusal);
    }
    conn->discarded += n;
    return conn->discarded <= KVE_SERVER_DISCARD ? MHD_YES : MHD_NO;
}

/* ---- all of it ---- */

static void
observe(struct kve_http *http, int64_t ns)
{
    uint64_t us = (uint64_t)ns / 1000;
    unsigned i = 0;

    while (i < KVE_HTTP_BUCKETS - 1 && us > kve_http_bucket_us[i])
        i++;
    atomic_fetch_add_explicit(
        &http->queries.bucket[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(
        &http->queries.sum_ns, (uint64_t)ns, memory_order_relaxed);
}

static enum MHD_Result
finish(struct kve_conn *conn, const char *url)
{
    struct kve_server_thread *thread = conn->thread;
    const struct kve_http_route *route = conn->route;
    struct kve_http *http = conn->server->http;
    static const uint8_t nothing[1] = { 0 };
    struct kve_http_request req = {
        .method = conn->method,
        .path = url,
        .path_rest = "",
        .content = conn->content,
        .accepts_msgpack = conn->accepts_msgpack,
        .body = nothing,
        .reader = thread->reader,
        .scratch = &thread->scratch,
        .status = MHD_HTTP_OK,
        .media = KVE_MEDIA_JSON,
        .out = &thread->out,
        .connection = conn,
    };

    if (conn->body.len != 0) {
        conn->body.data[conn->body.len] = 0;
        req.body = conn->body.data;
        req.body_len = conn->body.len;
    }
    if ((route->flags & KVE_ROUTE_PREFIX) != 0)
        req.path_rest = url + strlen(route->path);
    thread->out.len = 0;
    if ((route->flags & KVE_ROUTE_QUERY) != 0) {
        int64_t began = kve_now_ns();

        route->handler(http, &req);
        observe(http, kve_now_ns() - began);
    } else {
        route->handler(http, &req);
    }
    return kve_conn_answer(conn, &req, url);
}

enum MHD_Result
kve_server_handle(void *cls, struct MHD_Connection *mhd, const char *url,
    const char *method, const char *version, const char *upload_data,
    size_t *upload_size, void **con_cls)
{
    struct kve_conn *conn = *con_cls;
    enum kve_stage stage;

    (void)cls;
    (void)mhd;
    (void)version;
    if (conn == NULL)
        return MHD_NO;
    if (conn->stage == KVE_STAGE_HEADER)
        return begin(conn, url, method);
    if (*upload_size != 0)
        return take_body(conn, upload_data, upload_size);
    set_phase(conn, KVE_PHASE_ANSWER);
    stage = conn->stage;
    conn->stage = KVE_STAGE_DONE;
    return stage == KVE_STAGE_REFUSED ? kve_conn_refuse(conn, url)
                                      : finish(conn, url);
}

const char *
kve_http_argument(struct kve_http_request *req, const char *name)
{
    struct kve_conn *conn = req->connection;

    return MHD_lookup_connection_value(conn->mhd, MHD_GET_ARGUMENT_KIND, name);
}
