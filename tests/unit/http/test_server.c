/*
 * The server: routes, methods, bodies, answers, streams, drain.
 *
 * ctest-timeout: 180
 */
#include "web.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void
expect(struct answer answer, unsigned status, const char *body)
{
    assert_int_equal(answer.status, status);
    if (body != NULL)
        assert_string_equal(answer.body, body);
    answer_free(&answer);
}

static void
test_routes(void **state)
{
    struct web web;

    (void)state;
    web_start(&web, NULL);
    expect(web_ask(&web, "GET /hello", NULL), 200, "hello");
    expect(web_ask(&web, "GET /hello?x=1", NULL), 200, "hello");
    expect(web_ask(&web, "GET /item/a%20b/c?name=x%2By+z", NULL), 200,
        "a b/c|x+y z");
    expect(web_ask(&web, "GET /item/?name", NULL), 404, "");
    expect(web_ask(&web, "GET /item/7", NULL), 200, "7|(none)");
    expect(web_ask(&web, "DELETE /item/7", NULL), 200, "gone");
    expect(web_ask(&web, "GET /test", NULL), 404, "");
    expect(web_ask(&web, "GET /hell", NULL), 404, "");
    expect(web_ask(&web, "GET /hello/", NULL), 404, "");
    expect(web_ask(&web, "GET /item/a%00b", NULL), 400, NULL);
    expect(web_ask(&web, "GET /item/a?name=%00", NULL), 400, NULL);
    web_wait_counter(&web, KVE_COUNTER_HTTP_REQUESTS, 11);
    assert_int_equal(web_counter(&web, KVE_COUNTER_HTTP_4XX), 6);
    assert_int_equal(web_counter(&web, KVE_COUNTER_HTTP_CONNECTIONS), 11);
    web_stop(&web);
}

static void
test_test_routes(void **state)
{
    struct kve_service_opts opts = web_opts();
    struct web web;

    (void)state;
    opts.test_endpoints = true;
    opts.threads = 1;
    web_start(&web, &opts);
    expect(web_ask(&web, "GET /test", NULL), 200, "hello");
    web_stop(&web);
}

/* 404 and 405 have no body and no type; 405 says what is allowed. */
static void
test_wrong_method(void **state)
{
    struct answer answer;
    struct web web;

    (void)state;
    web_start(&web, NULL);
    answer = web_ask(&web, "PUT /item/7", NULL);
    assert_int_equal(answer.status, 405);
    assert_string_equal(answer_field(&answer, "Allow"), "GET, HEAD, DELETE");
    assert_string_equal(answer_field(&answer, "Content-Length"), "0");
    assert_null(answer_field(&answer, "Content-Type"));
    answer_free(&answer);
    answer = web_post(&web, "/hello", NULL, "abc", 3);
    assert_int_equal(answer.status, 405);
    assert_string_equal(answer_field(&answer, "Allow"), "GET, HEAD");
    answer_free(&answer);
    answer = web_ask(&web, "OPTIONS /echo", NULL);
    assert_int_equal(answer.status, 405);
    assert_string_equal(answer_field(&answer, "Allow"), "POST");
    answer_free(&answer);
    answer = web_ask(&web, "GET /nothing", NULL);
    assert_int_equal(answer.status, 404);
    assert_null(answer_field(&answer, "Content-Type"));
    assert_null(answer_field(&answer, "Allow"));
    answer_free(&answer);
    web_stop(&web);
}

static void
test_head(void **state)
{
    struct answer answer;
    struct web web;
    int fd;

    (void)state;
    web_start(&web, NULL);
    fd = web_connect(web.port);
    web_send(fd, "HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    answer = web_answer(fd, true);
    assert_int_equal(answer.status, 200);
    assert_string_equal(answer_field(&answer, "Content-Length"), "5");
    answer_free(&answer);
    /* No byte of a body: the next answer follows at once. */
    web_send(fd, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    expect(web_answer(fd, false), 200, "hello");
    /* A stream asked for by HEAD leaves nothing behind either. */
    web_send(fd, "HEAD /count?n=5 HTTP/1.1\r\nHost: x\r\n\r\n");
    expect(web_answer(fd, true), 200, NULL);
    web_send(fd, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    expect(web_answer(fd, false), 200, "hello");
    (void)close(fd);
    web_stop(&web);
}

static void
test_errors_are_json(void **state)
{
    struct answer answer;
    struct web web;

    (void)state;
    web_start(&web, NULL);
    answer = web_ask(&web, "GET /fail", NULL);
    assert_int_equal(answer.status, 422);
    assert_string_equal(
        answer_field(&answer, "Content-Type"), "application/json");
    assert_string_equal(answer.body,
        "{\"error\":\"\\\"x\\n\xef\xbf\xbd\\\" is no number\","
        "\"status\":422,\"offset\":7}");
    answer_free(&answer);
    web_stop(&web);
}

static void
test_media(void **state)
{
    static const struct {
        const char *fields;
        const char *body;
    } rows[] = {
        { "", "0 0" },
        { "Content-Type: application/json\r\n", "2 0" },
        { "content-type: Application/JSON; charset=utf-8\r\n", "2 0" },
        { "Content-Type: application/jsonp\r\n", "1 0" },
        { "Content-Type: application/msgpack\r\n", "3 0" },
        { "Content-Type: application/x-msgpack\r\n", "3 0" },
        { "Accept: application/msgpack\r\n", "0 1" },
        { "Accept: text/html, application/msgpack;q=0.9\r\n", "0 1" },
        { "Accept: application/json, application/msgpack\r\n", "0 0" },
        { "Accept: */*\r\n", "0 0" },
        { "Accept: ,,\r\n", "0 0" },
    };
    struct web web;

    (void)state;
    web_start(&web, NULL);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        expect(web_ask(&web, "GET /kind", rows[i].fields), 200, rows[i].body);
    web_stop(&web);
}

/* One connection, many requests, bodies of all sizes, in one piece and byte by
 * byte. */
static void
test_keep_alive(void **state)
{
    char *body = malloc(300000);
    char head[128];
    struct web web;
    int fd;

    (void)state;
    assert_non_null(body);
    for (size_t i = 0; i < 300000; i++)
        body[i] = (char)('a' + i % 23);
    web_start(&web, NULL);
    fd = web_connect(web.port);
    for (size_t len = 0; len < 300000; len = len * 3 + 1) {
        int n = snprintf(head, sizeof(head),
            "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n",
            len);

        web_send_bytes(fd, head, (size_t)n);
        web_send_bytes(fd, body, len);
        struct answer answer = web_answer(fd, false);
        assert_int_equal(answer.status, 200);
        assert_int_equal(answer.body_len, len);
        assert_memory_equal(answer.body, body, len);
        answer_free(&answer);
    }
    for (const char *p = "POST /echo HTTP/1.1\r\nHost: x\r\n"
                         "Content-Length: 3\r\n\r\nabc";
         *p != '\0'; p++)
        web_send_bytes(fd, p, 1);
    expect(web_answer(fd, false), 200, "abc");
    assert_int_equal(web_counter(&web, KVE_COUNTER_HTTP_CONNECTIONS), 1);
    uint64_t counted = 0;
    for (unsigned i = 0; i < KVE_HTTP_BUCKETS; i++)
        counted += atomic_load(&web.http.queries.bucket[i]);
    assert_int_equal(counted, web_counter(&web, KVE_COUNTER_HTTP_REQUESTS));
    (void)close(fd);
    free(body);
    web_stop(&web);
}

static void
test_pipelining(void **state)
{
    char text[8192] = "";
    struct web web;
    int fd;

    (void)state;
    web_start(&web, NULL);
    fd = web_connect(web.port);
    for (int i = 0; i < 20; i++) {
        strcat(text, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
        strcat(text,
            "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
    }
    web_send(fd, text);
    for (int i = 0; i < 20; i++) {
        expect(web_answer(fd, false), 200, "hello");
        expect(web_answer(fd, false), 200, "hi");
    }
    (void)close(fd);
    web_stop(&web);
}

static void
test_chunked(void **state)
{
    struct web web;
    int fd;

    (void)state;
    web_start(&web, NULL);
    fd = web_connect(web.port);
    web_send(fd,
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        "3\r\nabc\r\n");
    web_send(fd, "A;ext=1\r\n0123456789\r\n0\r\n\r\n");
    expect(web_answer(fd, false), 200, "abc0123456789");
    (void)close(fd);

    fd = web_connect(web.port);
    web_send(fd,
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        "xyz\r\nabc\r\n");
    struct answer answer = web_answer(fd, false);
    assert_true(answer.closed || answer.status == 400);
    answer_free(&answer);
    (void)close(fd);
    expect(web_ask(&web, "GET /hello", NULL), 200, "hello");
    web_stop(&web);
}

static void
test_expect_continue(void **state)
{
    struct web web;
    int fd;

    (void)state;
    web_start(&web, NULL);
    fd = web_connect(web.port);
    web_send(fd,
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
        "Expect: 100-continue\r\n\r\n");
    expect(web_answer(fd, false), 100, NULL);
    web_send(fd, "abc");
    expect(web_answer(fd, false), 200, "abc");
    (void)close(fd);

    /* Refused: nothing is asked for. */
    fd = web_connect(web.port);
    web_send(fd,
        "POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
        "Expect: 100-continue\r\n\r\n");
    expect(web_answer(fd, false), 404, NULL);
    assert_true(web_closed(fd));
    (void)close(fd);
    web_stop(&web);
}

/* ---- large things ---- */

static void
test_length_over_the_limit(void **state)
{
    struct answer answer;
    struct web web;
    int fd;

    (void)state;
    web_start(&web, NULL);
    fd = web_connect(web.port);
    web_send(fd,
        "POST /echo HTTP/1.1\r\nHost: x\r\n"
        "Content-Length: 99999999999\r\n\r\n");
    answer = web_answer(fd, false);
    assert_int_equal(answer.status, 413);
    assert_non_null(strstr(answer.body, "4194304 bytes"));
    answer_free(&answer);
    assert_true(web_closed(fd));
    (void)close(fd);

    /* More than any number of bytes. */
    fd = web_connect(web.port);
    web_send(fd,
        "POST /echo HTTP/1.1\r\nHost: x\r\n"
        "Content-Length: 99999999999999999999999\r\n\r\n");
    answer = web_answer(fd, false);
    assert_true(answer.closed || answer.status / 100 == 4);
    answer_free(&answer);
    (void)close(fd);
    expect(web_ask(&web, "GET /hello", NULL), 200, "hello");
    web_stop(&web);
}

/* KVE_ROUTE_SMALL has a lower limit; a body a little too large is read, and
 * the connection goes on. */
static void
test_small_limit(void **state)
{
    size_t limit = (size_t)2 * 1024 * 1024;
    char *body = calloc(1, limit + 1);
    struct answer answer;
    struct web web;

    (void)state;
    assert_non_null(body);
    web_start(&web, NULL);
    expect(web_post(&web, "/small", NULL, body, limit), 200, "2097152");
    answer = web_post(&web, "/small", NULL, body, limit + 1);
    assert_int_equal(answer.status, 413);
    answer_free(&answer);
    answer = web_post(&web, "/plain", NULL, body, limit + 1);
    assert_int_equal(answer.status, 413);
    assert_string_equal(answer.body,
        "Failed to buffer the request body: length limit exceeded");
    assert_string_equal(
        answer_field(&answer, "Content-Type"), "text/plain; charset=utf-8");
    answer_free(&answer);
    expect(web_post(&web, "/echo", NULL, body, limit + 1), 200, NULL);
    free(body);
    web_stop(&web);
}

static void
send_chunks(int fd, size_t total)
{
    static char piece[65536 + 16];
    size_t n = 65536;
    int head = snprintf(piece, 16, "%zx\r\n", n);

    memset(piece + head, 'x', n);
    memcpy(piece + head + n, "\r\n", 2);
    for (size_t sent = 0; sent < total; sent += n)
        web_send_bytes(fd, piece, (size_t)head + n + 2);
}

static void
test_chunked_over_the_limit(void **state)
{
    const char *head = "POST /echo HTTP/1.1\r\nHost: x\r\n"
                       "Transfer-Encoding: chunked\r\n\r\n";
    const size_t mib = (size_t)1024 * 1024;
    struct answer answer;
    struct web web;
    int fd;

    (void)state;
    web_start(&web, NULL);
    fd = web_connect(web.port);
    web_send(fd, head);
    send_chunks(fd, 4 * mib + mib / 2);
    web_send(fd, "0\r\n\r\n");
    answer = web_answer(fd, false);
    assert_int_equal(answer.status, 413);
    answer_free(&answer);
    web_send(fd, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    expect(web_answer(fd, false), 200, "hello");
    (void)close(fd);

    /* Without an end: closed a MiB later. */
    fd = web_connect(web.port);
    web_send(fd, head);
    send_chunks(fd, 16 * mib);
    answer = web_answer(fd, false);
    assert_true(answer.closed);
    answer_free(&answer);
    (void)close(fd);
    assert_true(web_counter(&web, KVE_COUNTER_HTTP_BODY_BYTES) < 12 * mib);
    web_stop(&web);
}

static void
test_large_header(void **state)
{
    char *text = malloc(200000);
    struct answer answer;
    struct web web;
    int fd;

    (void)state;
    assert_non_null(text);
    web_start(&web, NULL);
    memset(text, 'a', 199999);
    text[199999] = '\0';
    fd = web_connect(web.port);
    web_send(fd, "GET /");
    web_send(fd, text);
    answer = web_answer(fd, false);
    assert_true(answer.closed || answer.status == 414);
    answer_free(&answer);
    (void)close(fd);

    fd = web_connect(web.port);
    web_send(fd, "GET /hello HTTP/1.1\r\nHost: x\r\nX: ");
    web_send(fd, text);
    answer = web_answer(fd, false);
    assert_true(answer.closed || answer.status == 431);
    answer_free(&answer);
    (void)close(fd);

    fd = web_connect(web.port);
    web_send(fd, "GET /hello HTTP/1.1\r\nHost: x\r\n");
    for (int i = 0; i < 20000; i++)
        web_send(fd, "A: b\r\n");
    web_send(fd, "\r\n");
    answer = web_answer(fd, false);
    assert_true(answer.closed || answer.status / 100 == 4);
    answer_free(&answer);
    (void)close(fd);
    free(text);
    expect(web_ask(&web, "GET /hello", NULL), 200, "hello");
    web_stop(&web);
}

static bool
is_alphabet(const struct answer *answer)
{
    for (size_t i = 0; i < answer->body_len; i++)
        if (answer->body[i] != (char)('a' + i % 26))
            return false;
    return true;
}

/* Answers that are copied, given away, and pulled. */
static void
test_large_answers(void **state)
{
    static const size_t sizes[] = { 0, 1, 16384, 16385, 3000000 };
    struct web web;
    char line[64];
    int fd;

    (void)state;
    web_start(&web, NULL);
    fd = web_connect(web.port);
    for (size_t round = 0; round < 2; round++)
        for (size_t i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]); i++) {
            size_t n = sizes[i / 2];

            (void)snprintf(line, sizeof(line),
                "GET /%s?n=%zu HTTP/1.1\r\nHost: x\r\n\r\n",
                i % 2 == 0 ? "big" : "count", n);
            web_send(fd, line);
            struct answer answer = web_answer(fd, false);
            assert_int_equal(answer.status, 200);
            assert_int_equal(answer.body_len, n);
            assert_false(answer.closed);
            assert_true(is_alphabet(&answer));
            answer_free(&answer);
        }
    (void)close(fd);
    web_stop(&web);
}

/* ---- wrong things ---- */

static void
test_garbage(void **state)
{
    static const char *const texts[] = {
        "\r\n\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "GET /hello\r\n\r\n",
        "GET /hello HTTP/9.9\r\n\r\n",
        "GET /hello HTTP/1.1\r\n\r\n",
        "GET /hello HTTP/1.1\r\nHost x\r\n\r\n",
        "GET  HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
        "Content-Length: 4\r\n\r\nabcd",
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: x\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        "\r\nffffffffffffffffffff\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "\xff\xfe\xfd\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET /%ff%fe HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /hello%0d%0aX:%20y HTTP/1.1\r\nHost: x\r\n\r\n",
    };
    struct kve_service_opts opts = web_opts();
    struct web web;
    char data[2048];

    (void)state;
    /* Half a line and the end: the watchdog's. */
    opts.request_time_ms = 2000;
    web_start(&web, &opts);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        int fd = web_connect(web.port);

        web_send(fd, texts[i]);
        (void)shutdown(fd, SHUT_WR);
        size_t n = web_some(fd, data, sizeof(data), 60000);
        /* Closed without a word, or an error: never an answer of 2xx. */
        if (n != 0 && strncmp(data, "HTTP/1.", 7) != 0)
            fail_msg("%zu: answer %.20s", i, data);
        if (n != 0 && data[9] == '2')
            fail_msg("%zu: answered with %.30s", i, data);
        (void)close(fd);
    }
    expect(web_ask(&web, "GET /hello", NULL), 200, "hello");
    web_stop(&web);
}

/* The client sends all and closes its half: it is answered. */
static void
test_half_close(void **state)
{
    struct web web;
    int fd;

    (void)state;
    web_start(&web, NULL);
    fd = web_connect(web.port);
    web_send(
        fd, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc");
    (void)shutdown(fd, SHUT_WR);
    expect(web_answer(fd, false), 200, "abc");
    assert_true(web_closed(fd));
    (void)close(fd);
    web_stop(&web);
}

/* Clients that leave in the middle: of the header, the body, the answer. */
static void
test_clients_that_leave(void **state)
{
    static const char *const texts[] = { "GET /he",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc",
        "GET /big?n=3000000 HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /count?n=9000000 HTTP/1.1\r\nHost: x\r\n\r\n" };
    struct linger hard = { 1, 0 };
    struct web web;

    (void)state;
    web_start(&web, NULL);
    for (int i = 0; i < 200; i++) {
        int fd = web_connect(web.port);

        web_send(fd, texts[i % 4]);
        if (i % 8 < 4)
            (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
        (void)close(fd);
    }
    expect(web_ask(&web, "GET /hello", NULL), 200, "hello");
    web_stop(&web);
}

/* ---- streams ---- */

static void
test_stream_waits(void **state)
{
    unsigned ended = web_streams_ended();
    struct web web;
    int fd;

    (void)state;
    web_start(&web, NULL);
    fd = web_connect(web.port);
    web_send(fd, "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
    web_expect(fd, "\r\n\r\n");
    for (int i = 0; i < 50; i++) {
        web_release(&web);
        web_expect(fd, "line ");
    }
    /* Others are answered meanwhile. */
    for (int i = 0; i < 4; i++)
        expect(web_ask(&web, "GET /hello", NULL), 200, "hello");
    (void)close(fd);
    web_stop(&web);
    assert_int_equal(web_streams_ended(), ended + 1);
}

static void
test_stream_fails(void **state)
{
    unsigned ended = web_streams_ended();
    struct answer answer;
    struct web web;
    int fd;

    (void)state;
    web_start(&web, NULL);
    fd = web_connect(web.port);
    web_send(fd, "GET /broken HTTP/1.1\r\nHost: x\r\n\r\n");
    answer = web_answer(fd, false);
    assert_string_equal(answer.body, "12345");
    assert_true(answer.closed);
    answer_free(&answer);
    (void)close(fd);
    expect(web_ask(&web, "HEAD /count?n=5", NULL), 200, NULL);
    web_stop(&web);
    assert_int_equal(web_streams_ended(), ended + 2);
}

/* ---- the beginning ---- */

/* Closes of what is closed already, in all of the process. */
static atomic_uint closed_twice;

int
close(int fd)
{
    int result = (int)syscall(SYS_close, fd);

    if (result != 0 && errno == EBADF)
        atomic_fetch_add(&closed_twice, 1);
    return result;
}

/* However many descriptors there are for a start: it succeeds, or says so, and
 * what it opened is closed, once. */
static void
test_start_without_descriptors(void **state)
{
    struct rlimit before;
    unsigned twice = atomic_load(&closed_twice);
    unsigned failed = 0;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (unsigned threads = 1; threads <= 2; threads++) {
        struct kve_service_opts opts = web_opts();
        kve_status status = KVE_E_SYSTEM;
        int first = dup(STDERR_FILENO);
        int again;

        (void)close(first);
        opts.threads = threads;
        for (unsigned room = 0; status != KVE_OK; room++) {
            struct rlimit few = before;
            struct kve_error err;
            struct web web;

            few.rlim_cur = (rlim_t)first + room;
            assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
            status = web_try(&web, &opts, &err);
            assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
            if (status == KVE_OK)
                web_stop(&web);
            else
                failed++;
        }
        again = dup(STDERR_FILENO);
        assert_int_equal(again, first);
        (void)close(again);
    }
    assert_true(failed > 4);
    assert_int_equal(atomic_load(&closed_twice), twice);
}

/* ---- the end ---- */

static void *
drain(void *arg)
{
    struct web *web = arg;

    kve_server_drain(web->http.server, 60000);
    return NULL;
}

/* What was asked is answered, with Connection: close; idle connections and
 * streams that wait are ended; nobody new comes in. */
static void
test_drain(void **state)
{
    struct web web;
    pthread_t thread;
    struct answer answer;
    int idle;
    int busy;
    int events;

    (void)state;
    web_start(&web, NULL);
    idle = web_connect(web.port);
    web_send(idle, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    expect(web_answer(idle, false), 200, "hello");
    events = web_connect(web.port);
    web_send(events, "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n");
    web_expect(events, ":\n\n");
    busy = web_connect(web.port);
    web_send(busy, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    while (web_slow() == 0)
        (void)usleep(1000);
    assert_int_equal(pthread_create(&thread, NULL, drain, &web), 0);
    for (int fd; (fd = web_connect(web.port)) >= 0;) {
        (void)close(fd);
        (void)usleep(1000);
    }
    web_release(&web);
    answer = web_answer(busy, false);
    assert_int_equal(answer.status, 200);
    assert_string_equal(answer.body, "slow");
    assert_string_equal(answer_field(&answer, "Connection"), "close");
    answer_free(&answer);
    assert_true(web_closed(busy));
    assert_true(web_closed(idle));
    assert_int_equal(pthread_join(thread, NULL), 0);
    web_expect(events, "0\r\n\r\n");
    (void)close(events);
    (void)close(idle);
    (void)close(busy);
    web_stop(&web);
}

/* What is not at its end when the server ends is not ended as if it were: no
 * last chunk. */
static void
test_cut_streams_are_not_whole(void **state)
{
    static const char *const texts[] = {
        "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /count?n=900000000 HTTP/1.1\r\nHost: x\r\n\r\n",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        unsigned ended = web_streams_ended();
        char last[8] = "";
        char piece[4096];
        ssize_t got;
        struct web web;
        int fd;

        web_start(&web, NULL);
        fd = web_connect(web.port);
        web_send(fd, texts[i]);
        web_expect(fd, "\r\n\r\n");
        kve_server_drain(web.http.server, 0);
        assert_int_equal(web_streams_ended(), ended + 1);
        /* The last bytes there are. */
        while ((got = recv(fd, piece, sizeof(piece), 0)) > 0) {
            size_t n = (size_t)got < 5 ? (size_t)got : 5;

            memmove(last, last + n, 5 - n);
            memcpy(last + 5 - n, piece + got - n, n);
        }
        assert_memory_not_equal(last, "0\r\n\r\n", 5);
        (void)close(fd);
        web_stop(&web);
    }
}

/* Whatever is under way, the end comes: half requests, streams, waiters. */
static void
test_end_with_everything_open(void **state)
{
    static const char *const texts[] = { "", "GET /he",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc",
        "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /count?n=900000000 HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n" };
    struct web web;
    int fds[14];

    (void)state;
    for (int round = 0; round < 5; round++) {
        web_start(&web, NULL);
        for (int i = 0; i < 14; i++) {
            fds[i] = web_connect(web.port);
            web_send(fds[i], texts[i % 7]);
        }
        (void)usleep(round * 10000u);
        web_stop(&web);
        for (int i = 0; i < 14; i++)
            (void)close(fds[i]);
    }
}

/* ---- addresses ---- */

static void
test_port_in_use(void **state)
{
    struct kve_service_opts opts = web_opts();
    struct kve_error err;
    struct web first;
    struct web second;
    char listen[32];

    (void)state;
    web_start(&first, NULL);
    (void)snprintf(listen, sizeof(listen), "127.0.0.1:%u", first.port);
    opts.listen = listen;
    assert_int_equal(web_try(&second, &opts, &err), KVE_E_IN_USE);
    assert_non_null(strstr(err.detail, listen));
    assert_non_null(strstr(err.detail, "another service"));
    web_stop(&first);
    /* Free again at once. */
    web_start(&second, &opts);
    assert_int_equal(second.port, first.port);
    web_stop(&second);
}

static void
test_addresses(void **state)
{
    static const struct {
        const char *listen;
        kve_status status;
    } rows[] = {
        { "localhost:0", KVE_OK },
        { "127.0.0.1:0", KVE_OK },
        { "0.0.0.0:0", KVE_OK },
        { "*:0", KVE_OK },
        { "127.0.0.1", KVE_E_INVAL },
        { ":8090", KVE_E_INVAL },
        { "127.0.0.1:65536", KVE_E_INVAL },
        { "127.0.0.1:-1", KVE_E_INVAL },
        { "127.0.0.1:", KVE_E_INVAL },
        { "::1:8090", KVE_E_INVAL },
        { "[::1:8090", KVE_E_INVAL },
        { "[]:8090", KVE_E_INVAL },
        { "[", KVE_E_INVAL },
        { "example.org:8090", KVE_E_INVAL },
        { "192.0.2.1:0", KVE_E_SYSTEM },
    };
    struct kve_service_opts opts = web_opts();
    struct kve_error err;
    struct web web;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        opts.listen = rows[i].listen;
        kve_status status = web_try(&web, &opts, &err);
        if (status != rows[i].status)
            fail_msg("%s: %s, %s", rows[i].listen, kve_status_name(status),
                status != KVE_OK ? err.detail : "");
        if (status != KVE_OK)
            continue;
        expect(web_ask(&web, "GET /hello", NULL), 200, "hello");
        web_stop(&web);
    }
}

static void
test_inet6(void **state)
{
    struct kve_service_opts opts = web_opts();
    struct sockaddr_in6 address = { .sin6_family = AF_INET6,
        .sin6_addr = IN6ADDR_LOOPBACK_INIT };
    struct kve_error err;
    struct web web;
    int fd;

    (void)state;
    fd = socket(AF_INET6, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        print_message("this machine has no [::1]\n");
        skip();
    }
    (void)close(fd);
    for (int i = 0; i < 2; i++) {
        opts.listen = i == 0 ? "[::1]:0" : "*:0";
        assert_int_equal(web_try(&web, &opts, &err), KVE_OK);
        address.sin6_port = htons(web.port);
        fd = socket(AF_INET6, SOCK_STREAM, 0);
        assert_int_equal(
            connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
        web_send(fd, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
        expect(web_answer(fd, false), 200, "hello");
        (void)close(fd);
        web_stop(&web);
    }
}

struct lines {
    unsigned warnings;
    char last[400];
};

static void
keep_line(void *ctx, enum kve_log_level level, const char *line)
{
    struct lines *lines = ctx;

    if (level == KVE_LOG_WARNING) {
        lines->warnings++;
        (void)snprintf(lines->last, sizeof(lines->last), "%s", line);
    }
}

/* Listening to others without a token or TLS is said. */
static void
test_warning(void **state)
{
    struct kve_service_opts opts = web_opts();
    struct lines lines = { 0 };
    struct web web;

    (void)state;
    opts.log = keep_line;
    opts.log_ctx = &lines;
    web_start(&web, &opts);
    web_stop(&web);
    assert_int_equal(lines.warnings, 0);
    opts.listen = "0.0.0.0:0";
    web_start(&web, &opts);
    web_stop(&web);
    assert_int_equal(lines.warnings, 1);
    assert_non_null(strstr(lines.last, "0.0.0.0:0"));
    assert_non_null(strstr(lines.last, "token"));
}

/* ---- access ---- */

struct accesses {
    pthread_mutex_t lock;
    unsigned n;
    char line[256];
};

static void
keep_access(void *ctx, const char *client, const char *method, const char *path,
    unsigned status, double seconds)
{
    struct accesses *accesses = ctx;

    assert_true(seconds >= 0 && seconds < 60);
    (void)pthread_mutex_lock(&accesses->lock);
    (void)snprintf(accesses->line, sizeof(accesses->line), "%s %s %s %u",
        client, method, path, status);
    accesses->n++;
    (void)pthread_mutex_unlock(&accesses->lock);
}

static void
expect_access(struct accesses *accesses, unsigned n, const char *line)
{
    (void)pthread_mutex_lock(&accesses->lock);
    assert_int_equal(accesses->n, n);
    assert_string_equal(accesses->line, line);
    (void)pthread_mutex_unlock(&accesses->lock);
}

static void
test_access(void **state)
{
    struct kve_service_opts opts = web_opts();
    struct accesses accesses = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct web web;

    (void)state;
    opts.access = keep_access;
    opts.access_ctx = &accesses;
    web_start(&web, &opts);
    expect(web_ask(&web, "GET /item/x?name=secret", NULL), 200, NULL);
    expect_access(&accesses, 1, "127.0.0.1 GET /item/x 200");
    expect(web_ask(&web, "PUT /hello", NULL), 405, NULL);
    expect_access(&accesses, 2, "127.0.0.1 PUT /hello 405");
    web_stop(&web);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_test_routes),
        cmocka_unit_test(test_wrong_method),
        cmocka_unit_test(test_head),
        cmocka_unit_test(test_errors_are_json),
        cmocka_unit_test(test_media),
        cmocka_unit_test(test_keep_alive),
        cmocka_unit_test(test_pipelining),
        cmocka_unit_test(test_chunked),
        cmocka_unit_test(test_expect_continue),
        cmocka_unit_test(test_length_over_the_limit),
        cmocka_unit_test(test_small_limit),
        cmocka_unit_test(test_chunked_over_the_limit),
        cmocka_unit_test(test_large_header),
        cmocka_unit_test(test_large_answers),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_half_close),
        cmocka_unit_test(test_clients_that_leave),
        cmocka_unit_test(test_stream_waits),
        cmocka_unit_test(test_stream_fails),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_cut_streams_are_not_whole),
        cmocka_unit_test(test_end_with_everything_open),
        cmocka_unit_test(test_start_without_descriptors),
        cmocka_unit_test(test_port_in_use),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_inet6),
        cmocka_unit_test(test_warning),
        cmocka_unit_test(test_access),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
