/*
 * request.h - one request, and what answers it.
 *
 * server.c receives a request whole (body in one piece, bounded), finds its
 * route and calls the route's handler once, on the thread of the connection.
 * The handler writes the answer into req->out and sets req->status; it does no
 * I/O and waits for nobody. Answers too large for that are streams: the handler
 * leaves a pull function behind, which is called again and again for the next
 * piece.
 *
 *     libmicrohttpd --> server.c: limits, token, rate, route
 *                          |
 *                          v
 *                       handler(http, req) --> req->out --> server.c --> client
 *
 * Folder: server.c and what it needs (auth, tls, limits, clients) know
 * libmicrohttpd; handlers do not.
 */
#ifndef KVE_HTTP_REQUEST_H
#define KVE_HTTP_REQUEST_H

#include <kvevents/codec.h>
#include <kvevents/index.h>
#include <kvevents/ingest.h>
#include <kvevents/service.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kve_http; /* http.h */

enum kve_method {
    KVE_METHOD_OTHER = 0,
    KVE_METHOD_GET = 1,
    KVE_METHOD_POST = 2,
    KVE_METHOD_DELETE = 4,
    KVE_METHOD_PUT = 8,
    KVE_METHOD_HEAD = 16 /* answered as GET, without the body */
};

/* What a body or an answer is. */
enum kve_media {
    KVE_MEDIA_NONE = 0, /* no header, or */
    KVE_MEDIA_OTHER = 1,
    KVE_MEDIA_JSON = 2,    /* application/json, parameters allowed */
    KVE_MEDIA_MSGPACK = 3, /* application/msgpack, application/x-msgpack */
    KVE_MEDIA_TEXT = 4,    /* text/plain; charset=utf-8 */
    KVE_MEDIA_METRICS = 5, /* text/plain; version=0.0.4 */
    KVE_MEDIA_LINES = 6,   /* application/x-ndjson */
    KVE_MEDIA_EVENTS = 7,  /* text/event-stream */
    KVE_MEDIA_BYTES = 8    /* application/octet-stream */
};

/* The next piece of a stream: at most cap bytes to data. > 0: so many; 0: none
 * for now, ask again when http_wake() was called; -1: that was all; -2: it
 * failed, cut the connection. */
typedef ptrdiff_t kve_http_pull_fn(void *ctx, uint8_t *data, size_t cap);

struct kve_http_request {
    enum kve_method method;
    const char *path; /* decoded, without the query part */
    const char
        *path_rest; /* behind the route's prefix, "" when there is none */
    enum kve_media content; /* of the body */
    bool accepts_msgpack;   /* Accept names it before JSON */
    const uint8_t *body;    /* body_len bytes and a zero; never NULL */
    size_t body_len;
    kve_index_reader *reader;         /* of this thread */
    struct kve_http_scratch *scratch; /* of this thread: arrays to reuse */

    /* the answer */
    unsigned status;             /* 200 at first */
    enum kve_media media;        /* of the answer; JSON at first */
    struct kve_buffer *out;      /* empty at first; wire/buffer.h */
    const char *allow;           /* 405: "GET, POST" */
    uint32_t retry_after;        /* seconds; 0: not said */
    kve_http_pull_fn *pull;      /* a stream; out is not sent then */
    void (*pull_end)(void *ctx); /* always called once at its end */
    void *pull_ctx;

    void *connection; /* server.c's */
};

/* A query argument (?name=value), decoded; NULL when it is not there. Borrowed
 * from the request. */
const char *kve_http_argument(struct kve_http_request *req, const char *name);

typedef void kve_http_handler(
    struct kve_http *http, struct kve_http_request *req);

/* Flags of routes. */
#define KVE_ROUTE_OPEN 1u   /* needs no token */
#define KVE_ROUTE_PREFIX 2u /* path is a prefix; the rest is path_rest */
#define KVE_ROUTE_SMALL 4u  /* body of at most 2 MiB, whatever max_body is */
#define KVE_ROUTE_QUERY 8u  /* its time goes into the histogram of queries */
#define KVE_ROUTE_TEST 16u  /* only with test_endpoints */
#define KVE_ROUTE_PLAIN 32u /* a body too large: a plain text, as Dynamo's */

struct kve_http_route {
    unsigned methods; /* set of enum kve_method */
    const char *path;
    kve_http_handler *handler;
    unsigned flags;
};

/* The tables of the parts, each ended by a NULL path; in this order. */
extern const struct kve_http_route kve_routes_v1[];        /* v1*.c */
extern const struct kve_http_route kve_routes_dialects[];  /* dialect*.c */
extern const struct kve_http_route kve_routes_operation[]; /* operation.c */

/* Answer with an error in the service's own form:
 * {"error":"...","status":422[,"offset":n]}. fmt makes one line. */
void kve_http_fail(struct kve_http_request *req, unsigned status,
    const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void kve_http_fail_at(struct kve_http_request *req, unsigned status,
    size_t offset, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Answer with a plain text. */
void kve_http_plain(
    struct kve_http_request *req, unsigned status, const char *text);

#endif
