/*
 * web.c - see web.h.
 */
#include "web.h"

#include "base/clock.h"
#include "wire/buffer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define MINUTE 60000

/* ---- routes ---- */

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static unsigned released;
static unsigned slow;
static unsigned ended;

/* The waiting stream, if there is one. */
static struct {
    void *connection;
    unsigned said;
} waiting;

static void
put(struct kve_http_request *req, const void *data, size_t len)
{
    if (len == 0)
        return;
    /* A test may have taken the memory away. */
    if (kve_buffer_reserve(req->out, len, NULL) != KVE_OK) {
        req->status = 503;
        return;
    }
    if (len > 0)
        memcpy(req->out->data + req->out->len, data, len);
    req->out->len += len;
}

static void
say(struct kve_http_request *req, const char *text)
{
    req->media = KVE_MEDIA_TEXT;
    put(req, text, strlen(text));
}

static void
hello(struct kve_http *http, struct kve_http_request *req)
{
    (void)http;
    assert_int_equal(req->out->len, 0);
    say(req, "hello");
}

static void
echo(struct kve_http *http, struct kve_http_request *req)
{
    (void)http;
    assert_int_equal(req->body[req->body_len], 0);
    req->media = req->content;
    put(req, req->body, req->body_len);
}

static void
small(struct kve_http *http, struct kve_http_request *req)
{
    char text[32];

    (void)http;
    (void)snprintf(text, sizeof(text), "%zu", req->body_len);
    say(req, text);
}

static void
item(struct kve_http *http, struct kve_http_request *req)
{
    const char *name = kve_http_argument(req, "name");

    (void)http;
    say(req, req->path_rest);
    say(req, "|");
    say(req, name != NULL ? name : "(none)");
}

static void
gone(struct kve_http *http, struct kve_http_request *req)
{
    (void)http;
    say(req, "gone");
}

static size_t
number(struct kve_http_request *req)
{
    const char *n = kve_http_argument(req, "n");

    return n != NULL ? strtoul(n, NULL, 10) : 0;
}

static void
big(struct kve_http *http, struct kve_http_request *req)
{
    size_t n = number(req);

    (void)http;
    for (size_t i = 0; i < n; i++) {
        char c = (char)('a' + i % 26);

        put(req, &c, 1);
    }
}

struct counting {
    size_t at;
    size_t n;
};

static ptrdiff_t
count_pull(void *ctx, uint8_t *data, size_t cap)
{
    struct counting *counting = ctx;
    size_t n = 0;

    while (n < cap && counting->at < counting->n)
        data[n++] = (uint8_t)('a' + counting->at++ % 26);
    return n != 0 ? (ptrdiff_t)n : -1;
}

static void
stream_end(void *ctx)
{
    free(ctx);
    (void)pthread_mutex_lock(&gate);
    waiting.connection = NULL;
    ended++;
    (void)pthread_mutex_unlock(&gate);
}

static void
stream_of(struct kve_http_request *req, size_t n, kve_http_pull_fn *pull)
{
    struct counting *counting = calloc(1, sizeof(*counting));

    assert_non_null(counting);
    counting->n = n;
    req->media = KVE_MEDIA_LINES;
    req->pull = pull;
    req->pull_end = stream_end;
    req->pull_ctx = counting;
}

static void
count(struct kve_http *http, struct kve_http_request *req)
{
    (void)http;
    stream_of(req, number(req), count_pull);
}

static ptrdiff_t
broken_pull(void *ctx, uint8_t *data, size_t cap)
{
    struct counting *counting = ctx;

    if (counting->at != 0 || cap < 5)
        return -2;
    counting->at = 5;
    memcpy(data, "12345", 5);
    return 5;
}

static void
broken(struct kve_http *http, struct kve_http_request *req)
{
    (void)http;
    stream_of(req, 0, broken_pull);
}

static ptrdiff_t
wait_pull(void *ctx, uint8_t *data, size_t cap)
{
    ptrdiff_t n = 0;

    (void)ctx;
    (void)pthread_mutex_lock(&gate);
    if (waiting.said < released)
        n = snprintf((char *)data, cap, "line %u\n", waiting.said++);
    (void)pthread_mutex_unlock(&gate);
    return n;
}

static void
wait_stream(struct kve_http *http, struct kve_http_request *req)
{
    (void)http;
    stream_of(req, 0, wait_pull);
    (void)pthread_mutex_lock(&gate);
    waiting.connection = req->connection;
    waiting.said = released;
    (void)pthread_mutex_unlock(&gate);
}

static void
wait_slowly(struct kve_http *http, struct kve_http_request *req)
{
    unsigned before;

    (void)http;
    (void)pthread_mutex_lock(&gate);
    before = released;
    slow++;
    while (released == before)
        (void)pthread_cond_wait(&opened, &gate);
    slow--;
    (void)pthread_mutex_unlock(&gate);
    say(req, "slow");
}

static void
kind(struct kve_http *http, struct kve_http_request *req)
{
    char text[64];

    (void)http;
    (void)snprintf(text, sizeof(text), "%d %d", (int)req->content,
        (int)req->accepts_msgpack);
    say(req, text);
}

static void
failing(struct kve_http *http, struct kve_http_request *req)
{
    (void)http;
    kve_http_fail_at(req, 422, 7, "\"%s\" is no number", "x\n\xff");
}

static const struct kve_http_route routes[] = {
    { KVE_METHOD_GET, "/hello", hello, 0 },
    { KVE_METHOD_GET, "/open", hello, KVE_ROUTE_OPEN },
    { KVE_METHOD_POST, "/echo", echo, KVE_ROUTE_QUERY },
    { KVE_METHOD_POST, "/small", small, KVE_ROUTE_SMALL },
    { KVE_METHOD_POST, "/plain", small, KVE_ROUTE_SMALL | KVE_ROUTE_PLAIN },
    { KVE_METHOD_GET, "/item/", item, KVE_ROUTE_PREFIX },
    { KVE_METHOD_DELETE, "/item/", gone, KVE_ROUTE_PREFIX },
    { KVE_METHOD_GET, "/test", hello, KVE_ROUTE_TEST },
    { KVE_METHOD_GET, "/big", big, 0 },
    { KVE_METHOD_GET, "/count", count, 0 },
    { KVE_METHOD_GET, "/wait", wait_stream, 0 },
    { KVE_METHOD_GET, "/broken", broken, 0 },
    { KVE_METHOD_GET, "/slow", wait_slowly, 0 },
    { KVE_METHOD_GET | KVE_METHOD_POST, "/kind", kind, 0 },
    { KVE_METHOD_GET, "/fail", failing, 0 },
    { 0, NULL, NULL, 0 },
};

static const struct kve_http_route *const tables[] = { routes, kve_routes_live,
    NULL };

/* ---- the server ---- */

struct kve_service_opts
web_opts(void)
{
    struct kve_service_opts opts = KVE_SERVICE_OPTS_INIT;

    opts.listen = "127.0.0.1:0";
    opts.threads = 2;
    opts.max_connections = 4096;
    opts.max_body = (size_t)4 * 1024 * 1024;
    opts.request_time_ms = 60000;
    opts.idle_time_ms = 60000;
    opts.event_clients = 8;
    opts.event_bytes = (size_t)256 * 1024;
    return opts;
}

kve_status
web_server(struct web *web, struct kve_error *err)
{
    return kve_server_create(&web->http, tables, err);
}

kve_status
web_try(
    struct web *web, const struct kve_service_opts *opts, struct kve_error *err)
{
    kve_status status;

    memset(web, 0, sizeof(*web));
    web->http.opts = opts != NULL ? *opts : web_opts();
    web->http.live = kve_live_create();
    assert_non_null(web->http.live);
    status = web_server(web, err);
    if (status != KVE_OK)
        kve_live_destroy(web->http.live);
    else
        web->port = kve_server_port(web->http.server);
    return status;
}

void
web_start(struct web *web, const struct kve_service_opts *opts)
{
    struct kve_error err = { .detail = "" };
    kve_status status = web_try(web, opts, &err);

    if (status != KVE_OK)
        fail_msg("server: %s", err.detail);
}

void
web_stop(struct web *web)
{
    kve_server_destroy(web->http.server);
    kve_live_destroy(web->http.live);
    (void)pthread_mutex_lock(&gate);
    assert_null(waiting.connection);
    (void)pthread_mutex_unlock(&gate);
}

uint64_t
web_counter(const struct web *web, unsigned counter)
{
    return atomic_load(&web->http.counters.n[counter - 400]);
}

void
web_wait_counter(const struct web *web, unsigned counter, uint64_t n)
{
    int64_t until = kve_now_ns() + MINUTE * KVE_MS;

    while (web_counter(web, counter) < n) {
        if (kve_now_ns() > until)
            fail_msg("counter %u is %llu, not %llu", counter,
                (unsigned long long)web_counter(web, counter),
                (unsigned long long)n);
        (void)usleep(2000);
    }
}

void
web_release(struct web *web)
{
    (void)pthread_mutex_lock(&gate);
    released++;
    (void)pthread_cond_broadcast(&opened);
    void *connection = waiting.connection;
    (void)pthread_mutex_unlock(&gate);
    if (connection != NULL)
        kve_http_wake(&web->http, connection);
}

unsigned
web_slow(void)
{
    (void)pthread_mutex_lock(&gate);
    unsigned n = slow;
    (void)pthread_mutex_unlock(&gate);
    return n;
}

unsigned
web_streams_ended(void)
{
    (void)pthread_mutex_lock(&gate);
    unsigned n = ended;
    (void)pthread_mutex_unlock(&gate);
    return n;
}

/* ---- the client ---- */

int
web_connect(uint16_t port)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
        .sin_port = htons(port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int on = 1;

    assert_true(fd >= 0);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

void
web_send_bytes(int fd, const void *data, size_t len)
{
    const uint8_t *p = data;

    while (len != 0) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);

        /* Closed by the other side: what it said before is still there. */
        if (n < 0)
            return;
        p += n;
        len -= (size_t)n;
    }
}

void
web_send(int fd, const char *text)
{
    web_send_bytes(fd, text, strlen(text));
}

/* One byte; -1: the end. */
static int
next_byte(int fd)
{
    struct pollfd wait = { .fd = fd, .events = POLLIN };
    uint8_t byte;

    if (poll(&wait, 1, MINUTE) != 1)
        fail_msg("no answer in a minute");
    return recv(fd, &byte, 1, 0) == 1 ? byte : -1;
}

/* A line without its end; false: the other side closed before one. */
static bool
read_line(int fd, char *line, size_t cap)
{
    size_t n = 0;

    for (;;) {
        int c = next_byte(fd);

        if (c < 0)
            return false;
        if (c == '\n')
            break;
        assert_true(n < cap - 1);
        line[n++] = (char)c;
    }
    if (n > 0 && line[n - 1] == '\r')
        n--;
    line[n] = '\0';
    return true;
}

static void
more_body(int fd, struct answer *answer, size_t n)
{
    answer->body = realloc(answer->body, answer->body_len + n + 1);
    assert_non_null(answer->body);
    while (n != 0) {
        struct pollfd wait = { .fd = fd, .events = POLLIN };

        if (poll(&wait, 1, MINUTE) != 1)
            fail_msg("no body in a minute");
        ssize_t got = recv(fd, answer->body + answer->body_len, n, 0);
        if (got <= 0) {
            answer->closed = true;
            break;
        }
        answer->body_len += (size_t)got;
        n -= (size_t)got;
    }
    answer->body[answer->body_len] = '\0';
}

static void
read_chunks(int fd, struct answer *answer)
{
    char line[64];

    while (!answer->closed && read_line(fd, line, sizeof(line))) {
        size_t n = strtoul(line, NULL, 16);

        if (n == 0) {
            (void)read_line(fd, line, sizeof(line));
            return;
        }
        more_body(fd, answer, n);
        if (!answer->closed)
            (void)read_line(fd, line, sizeof(line));
    }
    answer->closed = true;
}

struct answer
web_answer(int fd, bool head_only)
{
    struct answer answer = { 0 };
    char line[1024];
    const char *value;

    if (!read_line(fd, line, sizeof(line))) {
        answer.closed = true;
        return answer;
    }
    assert_int_equal(sscanf(line, "HTTP/1.1 %u ", &answer.status), 1);
    do {
        assert_true(
            strlen(answer.head) + strlen(line) + 2 < sizeof(answer.head));
        strcat(strcat(answer.head, line), "\n");
    } while (read_line(fd, line, sizeof(line)) && line[0] != '\0');
    answer.body = calloc(1, 1);
    assert_non_null(answer.body);
    if (head_only || answer.status == 100)
        return answer;
    if ((value = answer_field(&answer, "Transfer-Encoding")) != NULL)
        read_chunks(fd, &answer);
    else if ((value = answer_field(&answer, "Content-Length")) != NULL)
        more_body(fd, &answer, strtoul(value, NULL, 10));
    return answer;
}

void
answer_free(struct answer *answer)
{
    free(answer->body);
    answer->body = NULL;
}

const char *
answer_field(const struct answer *answer, const char *name)
{
    static char value[512];
    const char *p = strchr(answer->head, '\n');
    size_t len = strlen(name);

    for (; p != NULL && *++p != '\0'; p = strchr(p, '\n'))
        if (strncasecmp(p, name, len) == 0 && p[len] == ':') {
            p += len + 1;
            p += strspn(p, " ");
            (void)snprintf(
                value, sizeof(value), "%.*s", (int)strcspn(p, "\n"), p);
            return value;
        }
    return NULL;
}

struct answer
web_ask(const struct web *web, const char *line, const char *extra)
{
    int fd = web_connect(web->port);
    char text[2048];

    assert_true(fd >= 0);
    (void)snprintf(text, sizeof(text), "%s HTTP/1.1\r\nHost: x\r\n%s\r\n", line,
        extra != NULL ? extra : "");
    web_send(fd, text);
    struct answer answer = web_answer(fd, strncmp(line, "HEAD", 4) == 0);
    (void)close(fd);
    return answer;
}

struct answer
web_post(const struct web *web, const char *path, const char *extra,
    const void *body, size_t len)
{
    int fd = web_connect(web->port);
    char text[1024];

    assert_true(fd >= 0);
    (void)snprintf(text, sizeof(text),
        "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n%s\r\n", path,
        len, extra != NULL ? extra : "");
    web_send(fd, text);
    web_send_bytes(fd, body, len);
    struct answer answer = web_answer(fd, false);
    (void)close(fd);
    return answer;
}

bool
web_closed(int fd)
{
    return next_byte(fd) < 0;
}

size_t
web_some(int fd, char *data, size_t cap, int ms)
{
    int64_t until = kve_now_ns() + ms * KVE_MS;
    size_t n = 0;

    for (;;) {
        struct pollfd wait = { .fd = fd, .events = POLLIN };
        ssize_t got;

        if (n == cap - 1 ||
            poll(&wait, 1, kve_ms_until(until, kve_now_ns())) != 1)
            break;
        got = recv(fd, data + n, cap - 1 - n, 0);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    data[n] = '\0';
    return n;
}

void
web_expect(int fd, const char *text)
{
    size_t len = strlen(text);
    char *window = calloc(1, len + 1);

    assert_non_null(window);
    while (memcmp(window, text, len) != 0) {
        int c = next_byte(fd);

        if (c < 0)
            fail_msg("closed before \"%s\" came", text);
        memmove(window, window + 1, len - 1);
        window[len - 1] = (char)c;
    }
    free(window);
}
