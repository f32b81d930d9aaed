/*
 * web.h - a server with routes of the tests' own, and a client of plain
 * sockets that can be as slow, wrong and rude as a test wants.
 */
#ifndef TESTS_UNIT_HTTP_WEB_H
#define TESTS_UNIT_HTTP_WEB_H

#include "http/http.h"
#include "http/live.h"
#include "http/server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/*
 * Routes:
 *   GET       /hello   "hello"
 *   GET       /open    "open", without a token
 *   POST      /echo    the body
 *   POST      /small   the number of its bytes; KVE_ROUTE_SMALL
 *   POST      /plain   the same; KVE_ROUTE_PLAIN
 *   GET       /item/   the rest of the path and the argument "name"
 *   DELETE    /item/   "gone"
 *   GET       /big     ?n= bytes "abc...zabc..."
 *   GET       /count   a stream of ?n= bytes, the same
 *   GET       /wait    a stream that says one line a web_release()
 *   GET       /broken  a stream that fails after 5 bytes
 *   GET       /slow    "slow", after web_release()
 *   GET       /kind    what the request's body and Accept are
 *   GET       /fail    422 with an offset
 *   GET       /v1/events
 */
struct web {
    struct kve_http http;
    uint16_t port;
};

/* opts NULL: defaults as the service has them, port 0, two threads. */
struct kve_service_opts web_opts(void);
void web_start(struct web *web, const struct kve_service_opts *opts);
kve_status web_try(struct web *web, const struct kve_service_opts *opts,
    struct kve_error *err);
/* Without readers of events; web->http.opts are set, the rest is zero. */
kve_status web_server(struct web *web, struct kve_error *err);
void web_stop(struct web *web);
uint64_t web_counter(const struct web *web, unsigned counter);
/* Wait until a counter is at least n; fails the test after a minute. */
void web_wait_counter(const struct web *web, unsigned counter, uint64_t n);

/* Let one more line of /wait, or one more /slow, go on. */
void web_release(struct web *web);
/* How many /slow are waiting. */
unsigned web_slow(void);
/* Streams whose end was called. */
unsigned web_streams_ended(void);

struct answer {
    unsigned status;
    char head[4096]; /* status line and fields */
    char *body;      /* body_len bytes and a zero; freed by answer_free() */
    size_t body_len;
    bool closed; /* nothing came but the end */
};

int web_connect(uint16_t port);
void web_send(int fd, const char *text);
void web_send_bytes(int fd, const void *data, size_t len);
/* One answer, whole; head_only: to a HEAD. */
struct answer web_answer(int fd, bool head_only);
void answer_free(struct answer *answer);
/* The value of a field, or NULL; good until the next call. */
const char *answer_field(const struct answer *answer, const char *name);
/* Ask on a connection of its own; extra: more fields, each with \r\n. */
struct answer web_ask(
    const struct web *web, const char *line, const char *extra);
/* The same with a body. */
struct answer web_post(const struct web *web, const char *path,
    const char *extra, const void *body, size_t len);
/* true: the other side closed, without a byte more. Waits a minute. */
bool web_closed(int fd);
/* Bytes that came in ms at most; a zero behind them. */
size_t web_some(int fd, char *data, size_t cap, int ms);
/* Read until text comes; fails the test after a minute. */
void web_expect(int fd, const char *text);

#endif
