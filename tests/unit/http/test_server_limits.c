/*
 * The server's limits: slow requests, connections, requests a second, tokens.
 *
 * ctest-timeout: 180
 */
#include "web.h"

#include "http/auth.h"
#include "http/limits.h"
#include "http/server_parts.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void
expect(struct answer answer, unsigned status, const char *body)
{
    assert_int_equal(answer.status, status);
    if (body != NULL)
        assert_string_equal(answer.body, body);
    answer_free(&answer);
}

/* ---- slow requests ---- */

/* Send a byte now and then, of a text that never ends, until the other side
 * closes. Returns the milliseconds since the request began. */
static int64_t
trickle(int fd, char byte, int64_t began)
{
    char data[8];

    for (;;) {
        if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1 ||
            web_some(fd, data, sizeof(data), 20) != 0 ||
            recv(fd, data, 1, MSG_DONTWAIT) == 0)
            return (kve_now_ns() - began) / KVE_MS;
        if (kve_now_ns() - began > 60000 * KVE_MS)
            fail_msg("the other side bears a trickle for a minute");
    }
}

/* A request has so long from its first byte on, wherever it lingers; what the
 * time-out of the library's does not see. */
static void
test_slow_requests(void **state)
{
    static const char *const begins[] = {
        "G",
        "GET /hello HTTP/1.1\r\n",
        "GET /hello HTTP/1.1\r\nHost: x\r\nX: ",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
        "POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        "ffff\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        "1;",
    };
    const size_t n = sizeof(begins) / sizeof(begins[0]);
    struct kve_service_opts opts = web_opts();
    struct web web;

    (void)state;
    opts.request_time_ms = 400;
    web_start(&web, &opts);
    for (size_t i = 0; i < 2 * n; i++) {
        int fd = web_connect(web.port);

        /* The second time on a connection that was used before. */
        if (i >= n) {
            web_send(fd, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
            expect(web_answer(fd, false), 200, "hello");
        }
        int64_t began = kve_now_ns();
        web_send(fd, begins[i % n]);
        assert_true(trickle(fd, 'x', began) >= 200);
        (void)close(fd);
        web_wait_counter(&web, KVE_COUNTER_HTTP_SLOW, i + 1);
    }
    assert_int_equal(web_counter(&web, KVE_COUNTER_HTTP_SLOW), 2 * n);
    expect(web_ask(&web, "GET /hello", NULL), 200, "hello");
    web_stop(&web);
}

/* Waiting between requests is no slow request, and neither is a slow answer. */
static void
test_idle_is_not_slow(void **state)
{
    struct kve_service_opts opts = web_opts();
    struct web web;
    int fresh;
    int slow;
    int fd;

    (void)state;
    opts.request_time_ms = 1500;
    web_start(&web, &opts);
    fresh = web_connect(web.port);
    fd = web_connect(web.port);
    slow = web_connect(web.port);
    web_send(fd, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    expect(web_answer(fd, false), 200, "hello");
    web_send(slow, "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
    web_expect(slow, "\r\n\r\n");
    (void)usleep(3000000);
    web_send(fd, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    expect(web_answer(fd, false), 200, "hello");
    web_send(fresh, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    expect(web_answer(fresh, false), 200, "hello");
    web_release(&web);
    web_expect(slow, "line ");
    assert_int_equal(web_counter(&web, KVE_COUNTER_HTTP_SLOW), 0);
    (void)close(fresh);
    (void)close(slow);
    (void)close(fd);
    web_stop(&web);
}

/* Clients that do not read hold so many bytes of answers, together; small
 * answers go on, and large ones when they have left. */
static void
test_answers_that_wait(void **state)
{
    struct web web;
    struct answer answer;
    unsigned status = 0;
    int fd;

    (void)state;
    web_start(&web, NULL);
    /* As if others waited for nearly as much as may wait. */
    atomic_fetch_add(
        &web.http.server->answer_bytes, KVE_SERVER_ANSWERS_MAX - 1000);
    fd = web_connect(web.port);
    web_send(fd, "GET /big?n=20000000 HTTP/1.1\r\nHost: x\r\n\r\n");
    web_expect(fd, "\r\n\r\n");
    for (int i = 0; i < 3; i++) {
        answer = web_ask(&web, "GET /big?n=30000", NULL);
        assert_int_equal(answer.status, 503);
        assert_string_equal(answer_field(&answer, "Retry-After"), "1");
        assert_non_null(strstr(answer.body, "wait for their clients"));
        answer_free(&answer);
    }
    expect(web_ask(&web, "GET /hello", NULL), 200, "hello");
    (void)close(fd);
    for (int64_t until = kve_now_ns() + 60000 * KVE_MS; status != 200;) {
        answer = web_ask(&web, "GET /big?n=30000", NULL);
        status = answer.status;
        answer_free(&answer);
        assert_true(kve_now_ns() < until);
    }
    web_stop(&web);
}

/* What was counted is no longer, whether it was read or not. */
static void
test_answers_are_forgotten(void **state)
{
    struct web web;
    int64_t until = kve_now_ns() + 60000 * KVE_MS;

    (void)state;
    web_start(&web, NULL);
    for (int i = 0; i < 20; i++) {
        int fd = web_connect(web.port);

        web_send(fd, "GET /big?n=2000000 HTTP/1.1\r\nHost: x\r\n\r\n");
        if (i % 2 == 0)
            web_expect(fd, "\r\n\r\n");
        (void)close(fd);
        expect(web_ask(&web, "GET /big?n=50000", NULL), 200, NULL);
    }
    while (atomic_load(&web.http.server->answer_bytes) != 0) {
        assert_true(kve_now_ns() < until);
        (void)usleep(2000);
    }
    web_stop(&web);
}

static void
test_idle_time(void **state)
{
    struct kve_service_opts opts = web_opts();
    struct web web;
    int fd[2];

    (void)state;
    opts.idle_time_ms = 1000;
    web_start(&web, &opts);
    for (int i = 0; i < 2; i++)
        fd[i] = web_connect(web.port);
    web_send(fd[0], "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    expect(web_answer(fd[0], false), 200, "hello");
    for (int i = 0; i < 2; i++) {
        assert_true(web_closed(fd[i]));
        (void)close(fd[i]);
    }
    assert_int_equal(web_counter(&web, KVE_COUNTER_HTTP_SLOW), 0);
    web_stop(&web);
}

/* ---- connections ---- */

static void
test_connections(void **state)
{
    struct kve_service_opts opts = web_opts();
    struct web web;
    int fds[8];
    int more;

    (void)state;
    opts.max_connections = 8;
    web_start(&web, &opts);
    for (int i = 0; i < 8; i++) {
        fds[i] = web_connect(web.port);
        web_send(fds[i], "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
        expect(web_answer(fds[i], false), 200, "hello");
    }
    for (int i = 0; i < 20; i++) {
        more = web_connect(web.port);
        assert_true(more >= 0);
        assert_true(web_closed(more));
        (void)close(more);
    }
    assert_int_equal(web_counter(&web, KVE_COUNTER_HTTP_REFUSED), 20);
    assert_int_equal(web_counter(&web, KVE_COUNTER_HTTP_CONNECTIONS), 8);
    /* Those that are there go on; a place that is left is taken. */
    web_send(fds[3], "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    expect(web_answer(fds[3], false), 200, "hello");
    (void)close(fds[3]);
    for (unsigned status = 0; status != 200;) {
        struct answer answer;

        fds[3] = web_connect(web.port);
        web_send(fds[3], "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
        answer = web_answer(fds[3], false);
        status = answer.status;
        answer_free(&answer);
        if (status != 200)
            (void)close(fds[3]);
    }
    for (int i = 0; i < 8; i++)
        (void)close(fds[i]);
    web_stop(&web);
}

static int
connect_from(uint16_t port, const char *from)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(inet_pton(AF_INET, from, &address.sin_addr), 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    assert_int_equal(
        connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static void
test_connections_of_one_client(void **state)
{
    struct kve_service_opts opts = web_opts();
    struct web web;
    int fds[3];

    (void)state;
    opts.max_client_connections = 2;
    web_start(&web, &opts);
    for (int i = 0; i < 2; i++) {
        fds[i] = web_connect(web.port);
        web_send(fds[i], "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
        expect(web_answer(fds[i], false), 200, "hello");
    }
    fds[2] = web_connect(web.port);
    assert_true(web_closed(fds[2]));
    (void)close(fds[2]);
    assert_int_equal(web_counter(&web, KVE_COUNTER_HTTP_REFUSED), 1);
    fds[2] = connect_from(web.port, "127.0.0.2");
    web_send(fds[2], "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    expect(web_answer(fds[2], false), 200, "hello");
    for (int i = 0; i < 3; i++)
        (void)close(fds[i]);
    web_stop(&web);
}

/* ---- requests a second ---- */

/* The virtual clock alone, by a clock of the test's. */
static void
test_rate(void **state)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    const struct sockaddr *any = (const struct sockaddr *)&address;
    struct kve_clients *clients = kve_clients_create(10, 0, 10);
    struct kve_client *client = kve_clients_enter(clients, any);
    int64_t now = kve_now_ns();

    (void)state;
    assert_non_null(client);
    /* A second's worth at once, then one each tenth. */
    for (int i = 0; i < 10; i++)
        assert_int_equal(kve_clients_request(clients, client, now), 0);
    assert_int_equal(kve_clients_request(clients, client, now), 1);
    now += 100 * KVE_MS;
    assert_int_equal(kve_clients_request(clients, client, now), 0);
    assert_int_equal(kve_clients_request(clients, client, now), 1);
    /* Leaving and coming back changes nothing. */
    kve_clients_leave(clients, client);
    client = kve_clients_enter(clients, any);
    assert_int_equal(kve_clients_request(clients, client, now), 1);
    /* What was not used in a pause is not kept beyond a second's worth. */
    now += 60000 * KVE_MS;
    for (int i = 0; i < 10; i++)
        assert_int_equal(kve_clients_request(clients, client, now), 0);
    assert_int_equal(kve_clients_request(clients, client, now), 1);
    kve_clients_leave(clients, client);
    kve_clients_destroy(clients);
}

/* Any number of clients that come and go take bounded memory; an IPv6 client
 * is its network. */
static void
test_many_clients(void **state)
{
    struct sockaddr_in6 in6 = { .sin6_family = AF_INET6 };
    struct sockaddr_in in = { .sin_family = AF_INET };
    struct kve_clients *clients = kve_clients_create(100000, 1, 1);
    int64_t live = kve_mem_live();
    struct kve_client *client;

    (void)state;
    for (uint32_t i = 0; i < 50000; i++) {
        in.sin_addr.s_addr = htonl(i);
        client = kve_clients_enter(clients, (struct sockaddr *)&in);
        assert_non_null(client);
        (void)kve_clients_request(clients, client, kve_now_ns());
        kve_clients_leave(clients, client);
    }
    assert_true(kve_mem_live() - live <= 8192 + 1);
    assert_int_equal(kve_clients_connections(clients), 0);

    in6.sin6_addr.s6_addr[0] = 0x20;
    in6.sin6_addr.s6_addr[15] = 1;
    client = kve_clients_enter(clients, (struct sockaddr *)&in6);
    assert_non_null(client);
    in6.sin6_addr.s6_addr[15] = 2;
    assert_false(kve_clients_accept(clients, (struct sockaddr *)&in6));
    in6.sin6_addr.s6_addr[7] = 1;
    assert_true(kve_clients_accept(clients, (struct sockaddr *)&in6));
    kve_clients_leave(clients, client);

    /* IPv4 in IPv6 is IPv4. */
    memset(&in6.sin6_addr, 0, 16);
    in6.sin6_addr.s6_addr[10] = 255;
    in6.sin6_addr.s6_addr[11] = 255;
    in6.sin6_addr.s6_addr[12] = 10;
    client = kve_clients_enter(clients, (struct sockaddr *)&in6);
    in.sin_addr.s_addr = htonl(0x0a000000);
    assert_false(kve_clients_accept(clients, (struct sockaddr *)&in));
    char name[INET6_ADDRSTRLEN];
    kve_clients_name((struct sockaddr *)&in6, name, sizeof(name));
    assert_string_equal(name, "10.0.0.0");
    kve_clients_leave(clients, client);
    kve_clients_destroy(clients);
}

static void
test_too_many_requests(void **state)
{
    struct kve_service_opts opts = web_opts();
    struct answer answer;
    struct web web;
    unsigned refused = 0;

    (void)state;
    opts.max_requests = 1;
    web_start(&web, &opts);
    for (int i = 0; i < 200 && refused == 0; i++) {
        answer = web_ask(&web, "GET /hello", NULL);
        if (answer.status != 200) {
            assert_int_equal(answer.status, 429);
            assert_string_equal(answer_field(&answer, "Retry-After"), "1");
            assert_non_null(strstr(answer.body, "more than 1 requests"));
            refused++;
        }
        answer_free(&answer);
    }
    assert_int_equal(refused, 1);
    assert_int_equal(web_counter(&web, KVE_COUNTER_HTTP_RATE_LIMITED), 1);
    web_stop(&web);
}

/* ---- tokens ---- */

static char token_path[64];

static void
write_tokens(const char *text)
{
    FILE *file = fopen(token_path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void
make_token_file(const char *text)
{
    int fd;

    strcpy(token_path, "/tmp/kvevents-tokens-XXXXXX");
    fd = mkstemp(token_path);
    assert_true(fd >= 0);
    (void)close(fd);
    write_tokens(text);
}

static void
test_tokens(void **state)
{
    static const char *const wrong[] = {
        "",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer \r\n",
        "Authorization: Bearer first-tokem\r\n",
        "Authorization: Bearer first-toke\r\n",
        "Authorization: Bearer first-token2\r\n",
        "Authorization: Basic first-token\r\n",
        "Authorization: first-token\r\n",
        "Authorization: Bearerfirst-token\r\n",
        "Authorization: Bearer # comment\r\n",
        "X-Authorization: Bearer first-token\r\n",
    };
    static const char *const lines[] = { "GET /hello", "GET /nothing",
        "PUT /hello", "GET /v1/events", "HEAD /hello", "PUT /open" };
    struct kve_service_opts opts = web_opts();
    struct answer answer;
    struct kve_error err;
    struct web web;
    unsigned n = 0;

    (void)state;
    make_token_file("# comment\n\nfirst-token\n  second-token \r\n");
    opts.token_file = token_path;
    web_start(&web, &opts);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        for (size_t j = 0; j < sizeof(lines) / sizeof(lines[0]); j++) {
            answer = web_ask(&web, lines[j], wrong[i]);
            if (answer.status != 401)
                fail_msg("%s with %s: %u", lines[j], wrong[i], answer.status);
            assert_non_null(strstr(answer_field(&answer, "WWW-Authenticate"),
                "Bearer realm=\"kvevents\""));
            assert_null(answer_field(&answer, "Allow"));
            assert_null(strstr(answer.body, "first"));
            answer_free(&answer);
            n++;
        }
    assert_int_equal(web_counter(&web, KVE_COUNTER_HTTP_UNAUTHORIZED), n);
    expect(web_ask(&web, "GET /open", NULL), 200, "hello");
    expect(web_ask(&web, "GET /hello", "Authorization: Bearer first-token\r\n"),
        200, "hello");
    expect(
        web_ask(&web, "GET /hello", "authorization: bearer second-token\r\n"),
        200, "hello");
    expect(web_post(&web, "/echo", "Authorization: Bearer  second-token\r\n",
               "abc", 3),
        200, "abc");
    expect(web_post(&web, "/echo", NULL, "abc", 3), 401, NULL);

    /* Read again: from now on, on connections that stand, too. */
    write_tokens("third-token\n");
    assert_int_equal(kve_server_reload(web.http.server, &err), KVE_OK);
    expect(web_ask(&web, "GET /hello", "Authorization: Bearer first-token\r\n"),
        401, NULL);
    expect(web_ask(&web, "GET /hello", "Authorization: Bearer third-token\r\n"),
        200, "hello");
    /* What can not be read changes nothing. */
    write_tokens("short\n");
    assert_int_equal(kve_server_reload(web.http.server, &err), KVE_E_MALFORMED);
    assert_non_null(strstr(err.detail, ":1:"));
    (void)unlink(token_path);
    assert_int_equal(kve_server_reload(web.http.server, &err), KVE_E_NOT_FOUND);
    expect(web_ask(&web, "GET /hello", "Authorization: Bearer third-token\r\n"),
        200, "hello");
    web_stop(&web);
}

static void
count_line(void *ctx, enum kve_log_level level, const char *line)
{
    if (level == KVE_LOG_WARNING && strstr(line, "token") != NULL)
        atomic_fetch_add((atomic_uint *)ctx, 1);
}

/* Who is refused a hundred times does not fill the log. */
static void
test_log_is_limited(void **state)
{
    struct kve_service_opts opts = web_opts();
    int64_t began = kve_now_ns();
    atomic_uint lines = 0;
    struct web web;

    (void)state;
    make_token_file("first-token\n");
    opts.token_file = token_path;
    opts.log = count_line;
    opts.log_ctx = &lines;
    web_start(&web, &opts);
    for (int i = 0; i < 100; i++)
        expect(web_ask(&web, "GET /hello", NULL), 401, NULL);
    unsigned most = 1 + (unsigned)((kve_now_ns() - began) / (10000 * KVE_MS));
    assert_in_range(atomic_load(&lines), 1, most);
    web_stop(&web);
    (void)unlink(token_path);
}

static void
test_token_files(void **state)
{
    static const struct {
        const char *text;
        kve_status status;
    } rows[] = {
        { "12345678", KVE_OK },
        { "12345678\n", KVE_OK },
        { "", KVE_E_MALFORMED },
        { "# only\n\n", KVE_E_MALFORMED },
        { "1234567\n", KVE_E_MALFORMED },
        { "1234 5678\n", KVE_E_MALFORMED },
        { "12345678\n\xff"
          "1234567\n",
            KVE_E_MALFORMED },
    };
    struct kve_auth *auth;
    struct kve_error err;
    char *large = malloc(300 * 10 + 1);

    (void)state;
    assert_non_null(large);
    make_token_file("");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        write_tokens(rows[i].text);
        assert_int_equal(
            kve_auth_create(token_path, &auth, &err), rows[i].status);
        if (rows[i].status == KVE_OK)
            kve_auth_destroy(auth);
    }
    large[0] = '\0';
    for (int i = 0; i < 257; i++)
        (void)sprintf(large + strlen(large), "token%04d\n", i);
    write_tokens(large);
    assert_int_equal(kve_auth_create(token_path, &auth, &err), KVE_E_MALFORMED);
    *strrchr(large, 't') = '\0';
    write_tokens(large);
    assert_int_equal(kve_auth_create(token_path, &auth, &err), KVE_OK);
    assert_true(kve_auth_allows(auth, "Bearer token0255"));
    assert_false(kve_auth_allows(auth, "Bearer token0256"));
    kve_auth_destroy(auth);
    memset(large, 'a', 513);
    large[513] = '\0';
    write_tokens(large);
    assert_int_equal(kve_auth_create(token_path, &auth, &err), KVE_E_MALFORMED);
    (void)unlink(token_path);
    assert_int_equal(kve_auth_create(token_path, &auth, &err), KVE_E_NOT_FOUND);
    assert_int_not_equal(kve_auth_create("/", &auth, &err), KVE_OK);
    free(large);
}

/* ---- memory ---- */

/* Each allocation of a start fails once: an error, and nothing is left. */
static void
test_no_memory(void **state)
{
    struct kve_service_opts opts = web_opts();
    struct kve_error err;
    struct web web;
    uint64_t n = 0;
    bool failed = true;

    (void)state;
    make_token_file("12345678\n");
    opts.token_file = token_path;
    while (failed) {
        int64_t live = kve_mem_live();
        kve_status status;

        memset(&web, 0, sizeof(web));
        web.http.opts = opts;
        kve_mem_fail_at(++n, false);
        status = web_server(&web, &err);
        failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        if (failed)
            assert_int_equal(status, KVE_E_NOMEM);
        else
            kve_server_destroy(web.http.server);
        assert_int_equal(kve_mem_live(), live);
    }
    assert_true(n > 5);
    (void)unlink(token_path);
}

/* While no memory is to be had requests are refused, and the service lives. */
static void
test_no_memory_for_requests(void **state)
{
    struct web web;
    char *body = calloc(1, 100000);

    (void)state;
    assert_non_null(body);
    web_start(&web, NULL);
    for (int i = 0; i < 40; i++) {
        kve_mem_fail_at(1 + (uint64_t)i % 4, true);
        int fd = web_connect(web.port);
        web_send(fd,
            "POST /small HTTP/1.1\r\nHost: x\r\nContent-Length: 100000"
            "\r\n\r\n");
        web_send_bytes(fd, body, 100000);
        struct answer answer = web_answer(fd, false);
        kve_mem_fail_at(0, false);
        if (!answer.closed && answer.status != 503 && answer.status != 200)
            fail_msg("status %u", answer.status);
        answer_free(&answer);
        (void)close(fd);
    }
    expect(web_ask(&web, "GET /hello", NULL), 200, "hello");
    free(body);
    web_stop(&web);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_requests),
        cmocka_unit_test(test_idle_is_not_slow),
        cmocka_unit_test(test_answers_that_wait),
        cmocka_unit_test(test_answers_are_forgotten),
        cmocka_unit_test(test_idle_time),
        cmocka_unit_test(test_connections),
        cmocka_unit_test(test_connections_of_one_client),
        cmocka_unit_test(test_rate),
        cmocka_unit_test(test_many_clients),
        cmocka_unit_test(test_too_many_requests),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_log_is_limited),
        cmocka_unit_test(test_token_files),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_no_memory_for_requests),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
