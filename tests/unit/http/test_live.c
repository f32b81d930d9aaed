/*
 * Readers of live events: what they are told, filters, slow ones, many.
 *
 * ctest-timeout: 180
 */
#include "web.h"

#include "base/clock.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int
open_reader(const struct web *web, const char *arguments)
{
    char line[256];
    int fd = web_connect(web->port);

    (void)snprintf(line, sizeof(line),
        "GET /v1/events%s HTTP/1.1\r\nHost: x\r\n\r\n", arguments);
    web_send(fd, line);
    web_expect(fd, "text/event-stream");
    web_expect(fd, ":\n\n");
    return fd;
}

/* ---- a stream of chunks, read line by line ---- */

struct lines {
    int fd;
    size_t left; /* of the chunk */
    bool any;    /* a chunk was read */
    char buffer[65536];
    size_t at;
    size_t len;
};

static int
raw_byte(struct lines *lines)
{
    if (lines->at == lines->len) {
        ssize_t n = recv(lines->fd, lines->buffer, sizeof(lines->buffer), 0);

        if (n <= 0)
            return -1;
        lines->at = 0;
        lines->len = (size_t)n;
    }
    return (unsigned char)lines->buffer[lines->at++];
}

static void
raw_line(struct lines *lines, char *text, size_t cap)
{
    size_t n = 0;
    int c;

    while ((c = raw_byte(lines)) != '\n') {
        assert_true(c >= 0 && n < cap - 1);
        text[n++] = (char)c;
    }
    text[n] = '\0';
}

/* A byte of the body; -1: the end. */
static int
body_byte(struct lines *lines)
{
    char text[64];

    if (lines->left == 0) {
        if (lines->any)
            raw_line(lines, text, sizeof(text));
        raw_line(lines, text, sizeof(text));
        lines->any = true;
        lines->left = strtoul(text, NULL, 16);
        if (lines->left == 0)
            return -1;
    }
    lines->left--;
    return raw_byte(lines);
}

/* The data of the next event and its type; NULL: the end. The first chunk's
 * head was taken by open_reader(). */
static json_t *
next_event(struct lines *lines, char *type, size_t cap)
{
    static char line[200000];
    json_t *data = NULL;
    size_t n = 0;
    int c;

    type[0] = '\0';
    while ((c = body_byte(lines)) >= 0) {
        if (c != '\n') {
            assert_true(n < sizeof(line) - 1);
            line[n++] = (char)c;
            continue;
        }
        line[n] = '\0';
        if (n == 0 && data != NULL)
            return data;
        if (strncmp(line, "event: ", 7) == 0)
            (void)snprintf(type, cap, "%.60s", line + 7);
        if (strncmp(line, "data: ", 6) == 0) {
            json_error_t error;

            data = json_loads(line + 6, 0, &error);
            if (data == NULL)
                fail_msg("%s: %.80s", error.text, line);
        }
        n = 0;
    }
    return NULL;
}

static json_int_t
number_of(const json_t *data, const char *key)
{
    json_t *number = json_object_get(data, key);

    if (!json_is_integer(number))
        fail_msg("no number %s", key);
    return json_integer_value(number);
}

static const char *
text_of(const json_t *data, const char *key)
{
    const char *text = json_string_value(json_object_get(data, key));

    if (text == NULL)
        fail_msg("no text %s", key);
    return text;
}

static struct kve_ingest_event
event_of(unsigned type, const char *worker, kve_ingest_id source)
{
    struct kve_ingest_event event = { .struct_size = sizeof(event),
        .type = type,
        .source = source,
        .worker = worker,
        .model = "m",
        .tenant = "default",
        .rank = 3,
        .detail = "said \"so\"\n" };

    return event;
}

/* open_reader() has read the first chunk's data but not its end. */
static struct lines *
lines_of(int fd)
{
    struct lines *lines = calloc(1, sizeof(*lines));

    assert_non_null(lines);
    lines->fd = fd;
    lines->any = true;
    return lines;
}

/* ---- tests ---- */

static void
test_what_is_said(void **state)
{
    struct kve_ingest_event event = event_of(KVE_INGEST_EVENT_ADDED, "w", 17);
    struct kve_notice notice = { .struct_size = sizeof(notice),
        .type = KVE_NOTICE_STATE,
        .first = 1,
        .last = 7,
        .old_state = KVE_STATE_COLD,
        .state = KVE_STATE_LIVE,
        .reason = KVE_REASON_CAUGHT_UP,
        .detail = "d" };
    struct lines *lines;
    struct web web;
    char type[64];
    json_t *data;

    (void)state;
    web_start(&web, NULL);
    /* Nobody listens: nothing happens. */
    kve_live_event(&web.http, &event);
    lines = lines_of(open_reader(&web, ""));
    kve_live_event(&web.http, &event);
    data = next_event(lines, type, sizeof(type));
    assert_string_equal(type, "added");
    assert_string_equal(text_of(data, "type"), "added");
    assert_string_equal(text_of(data, "worker"), "w");
    assert_string_equal(text_of(data, "model"), "m");
    assert_string_equal(text_of(data, "tenant"), "default");
    assert_string_equal(text_of(data, "detail"), "said \"so\"\n");
    assert_int_equal(number_of(data, "source"), 17);
    assert_int_equal(number_of(data, "rank"), 3);
    json_decref(data);

    event.type = KVE_INGEST_EVENT_NOTICE;
    event.notice = &notice;
    kve_live_event(&web.http, &event);
    data = next_event(lines, type, sizeof(type));
    assert_string_equal(type, "notice");
    assert_string_equal(text_of(data, "notice"), "state");
    assert_string_equal(text_of(data, "old_state"), "cold");
    assert_string_equal(text_of(data, "state"), "live");
    assert_string_equal(text_of(data, "reason"), "caught_up");
    json_decref(data);
    assert_int_equal(web_counter(&web, KVE_COUNTER_HTTP_EVENTS_SENT), 2);
    (void)close(lines->fd);
    free(lines);
    web_stop(&web);
}

/* n stores of four blocks of 16 tokens, decoded. The caller frees both. */
static kve_batch *
make_batch(size_t n, struct kve_buffer *payload)
{
    static uint32_t tokens[64];
    static struct kve_hash hashes[4];
    static const uint8_t bytes[32] = { 0xab, 0xcd };
    struct kve_event *events = calloc(n, sizeof(*events));
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    kve_batch *batch;

    assert_non_null(events);
    for (size_t i = 0; i < 64; i++)
        tokens[i] = 777777000 + (uint32_t)i;
    for (size_t i = 0; i < 3; i++)
        hashes[i].integer = UINT64_MAX - i;
    hashes[3].bytes = bytes;
    hashes[3].len = sizeof(bytes);
    for (size_t i = 0; i < n; i++) {
        events[i].type = KVE_EVENT_STORED;
        events[i].block_size = 16;
        events[i].hashes = hashes;
        events[i].n_hashes = 4;
        events[i].tokens = tokens;
        events[i].n_tokens = 64;
        events[i].medium.data = "GPU";
        events[i].medium.len = 3;
        events[i].group_idx.set = true;
        events[i].group_idx.value = 2;
    }
    view.events = events;
    view.n_events = n;
    assert_int_equal(
        kve_batch_encode(&view, KVE_LAYOUT_MAP, payload, NULL), KVE_OK);
    assert_int_equal(kve_batch_create(NULL, &batch, NULL), KVE_OK);
    assert_int_equal(
        kve_batch_decode(batch, payload->data, payload->len, NULL), KVE_OK);
    free(events);
    return batch;
}

/* Hashes are texts, tokens a number: no token id is said. A batch of many
 * events is cut, and says so. */
static void
test_batches(void **state)
{
    static const size_t sizes[] = { 2, 5000 };
    struct kve_ingest_event event = event_of(KVE_INGEST_EVENT_BATCH, "w", 1);
    struct kve_index_applied applied = KVE_INDEX_APPLIED_INIT;
    struct kve_delivery delivery = { .struct_size = sizeof(delivery),
        .number = 18446744073709551614u,
        .replayed = 1 };
    struct lines *lines;
    struct web web;
    char type[64];

    (void)state;
    applied.stored = 8;
    event.delivery = &delivery;
    event.applied = &applied;
    web_start(&web, NULL);
    lines = lines_of(open_reader(&web, "?types=batch"));
    for (size_t i = 0; i < 2; i++) {
        struct kve_buffer payload = KVE_BUFFER_INIT;

        delivery.number = 41 + i;
        delivery.batch = make_batch(sizes[i], &payload);
        kve_live_event(&web.http, &event);
        json_t *data = next_event(lines, type, sizeof(type));
        assert_string_equal(type, "batch");
        assert_int_equal(number_of(data, "number"), 41 + i);
        assert_true(json_is_true(json_object_get(data, "replayed")));
        assert_true(json_is_false(json_object_get(data, "hidden")));
        assert_int_equal(
            number_of(json_object_get(data, "applied"), "stored"), 8);
        json_t *events = json_object_get(data, "events");
        json_t *one = json_array_get(events, 0);
        assert_string_equal(text_of(one, "type"), "BlockStored");
        assert_int_equal(number_of(one, "blocks"), 4);
        assert_int_equal(number_of(one, "tokens"), 64);
        assert_int_equal(number_of(one, "block_size"), 16);
        assert_int_equal(number_of(one, "group"), 2);
        assert_string_equal(text_of(one, "medium"), "GPU");
        assert_string_equal(text_of(one, "tier"), "gpu");
        json_t *hashes = json_object_get(one, "hashes");
        assert_int_equal(json_array_size(hashes), 4);
        assert_string_equal(json_string_value(json_array_get(hashes, 0)),
            "18446744073709551615");
        assert_memory_equal(
            json_string_value(json_array_get(hashes, 3)), "abcd00", 6);
        size_t left_out = i == 0 ? 0 : (size_t)number_of(data, "left_out");
        assert_int_equal(json_array_size(events) + left_out, sizes[i]);
        char *text = json_dumps(data, JSON_COMPACT);
        assert_null(strstr(text, "777777"));
        assert_true(strlen(text) <= KVE_LIVE_TEXT_MAX);
        free(text);
        json_decref(data);
        kve_batch_destroy(delivery.batch);
        kve_buffer_release(&payload);
    }
    (void)close(lines->fd);
    free(lines);
    web_stop(&web);
}

/* Names of any length and bytes fit, and stay valid JSON. */
static void
test_long_names(void **state)
{
    struct kve_ingest_event event = event_of(KVE_INGEST_EVENT_CLEARED, "", 1);
    char *name = malloc(100001);
    struct lines *lines;
    struct web web;
    char type[64];

    (void)state;
    assert_non_null(name);
    for (size_t i = 0; i < 100000; i++)
        name[i] = (char)(1 + i % 255);
    name[100000] = '\0';
    event.worker = name;
    event.detail = name;
    web_start(&web, NULL);
    lines = lines_of(open_reader(&web, ""));
    kve_live_event(&web.http, &event);
    json_t *data = next_event(lines, type, sizeof(type));
    assert_string_equal(type, "cleared");
    assert_true(strlen(text_of(data, "worker")) <= 3 * 1024);
    json_decref(data);
    (void)close(lines->fd);
    free(lines);
    free(name);
    web_stop(&web);
}

static void
test_filters(void **state)
{
    static const struct {
        const char *arguments;
        unsigned expected; /* of the six events below */
    } rows[] = {
        { "", 0x3f },
        { "?worker=w0", 0x15 },
        { "?worker=w%31", 0x2a },
        { "?worker=none", 0 },
        { "?model=m", 0x3f },
        { "?model=m2", 0 },
        { "?tenant=default&worker=w0", 0x15 },
        { "?types=added", 0x03 },
        { "?types=removed,paused", 0x3c },
        { "?types=paused&worker=w1", 0x20 },
        { "?source=2", 0x02 },
        { "?types=", 0x3f },
    };
    static const unsigned types[] = { KVE_INGEST_EVENT_ADDED,
        KVE_INGEST_EVENT_REMOVED, KVE_INGEST_EVENT_PAUSED };
    static const char *const bad[] = { "?types=added,nothing", "?types=adde",
        "?source=x", "?source=0", "?source=-1", "?source=1x",
        "?source=99999999999999999999" };
    struct kve_service_opts opts = web_opts();
    struct web web;
    char line[128];
    char type[64];

    (void)state;
    opts.event_clients = 64;
    web_start(&web, &opts);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct lines *lines = lines_of(open_reader(&web, rows[i].arguments));
        unsigned seen = 0;
        json_t *data;

        for (unsigned j = 0; j < 6; j++) {
            struct kve_ingest_event event =
                event_of(types[j / 2], j % 2 == 0 ? "w0" : "w1", 1 + j);

            kve_live_event(&web.http, &event);
        }
        kve_live_close(&web.http);
        while ((data = next_event(lines, type, sizeof(type))) != NULL) {
            seen |= 1u << (number_of(data, "source") - 1);
            json_decref(data);
        }
        if (seen != rows[i].expected)
            fail_msg(
                "%s: %x, not %x", rows[i].arguments, seen, rows[i].expected);
        (void)close(lines->fd);
        free(lines);
        web_stop(&web);
        web_start(&web, &opts);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        (void)snprintf(line, sizeof(line), "GET /v1/events%s", bad[i]);
        struct answer answer = web_ask(&web, line, NULL);
        assert_int_equal(answer.status, 422);
        answer_free(&answer);
    }
    web_stop(&web);
}

/* A reader that reads nothing loses the oldest, and is told how many; another
 * one beside it loses nothing; who says it never waits. */
static void
test_slow_reader(void **state)
{
    struct kve_service_opts opts = web_opts();
    struct lines *slow;
    struct web web;
    char type[64];
    char detail[1024];
    json_int_t next = 1;
    json_int_t lost = 0;
    json_int_t got = 0;
    const json_int_t total = 40000;

    (void)state;
    opts.event_bytes = (size_t)128 * 1024;
    web_start(&web, &opts);
    slow = lines_of(open_reader(&web, ""));
    memset(detail, 'x', sizeof(detail) - 1);
    detail[sizeof(detail) - 1] = '\0';
    for (json_int_t i = 1; i <= total; i++) {
        struct kve_ingest_event event =
            event_of(KVE_INGEST_EVENT_CLEARED, "w", (kve_ingest_id)i);

        event.detail = detail;
        kve_live_event(&web.http, &event);
    }
    while (next <= total) {
        json_t *data = next_event(slow, type, sizeof(type));

        assert_non_null(data);
        if (strcmp(type, "lost") == 0) {
            lost += number_of(data, "lost");
            next += number_of(data, "lost");
        } else {
            assert_int_equal(number_of(data, "source"), next);
            got++;
            next++;
        }
        json_decref(data);
    }
    assert_true(lost > 0);
    assert_int_equal(got + lost, total);
    assert_int_equal(web_counter(&web, KVE_COUNTER_HTTP_EVENTS_LOST), lost);
    assert_int_equal(web_counter(&web, KVE_COUNTER_HTTP_EVENTS_SENT), got);
    (void)close(slow->fd);
    free(slow);
    web_stop(&web);
}

static void
test_heartbeat(void **state)
{
    struct web web;
    int fd;

    (void)state;
    web_start(&web, NULL);
    fd = open_reader(&web, "");
    kve_live_tick(&web.http, kve_now_ns() + 20000 * KVE_MS);
    web_expect(fd, ":\n\n");
    (void)close(fd);
    web_stop(&web);
}

static void
test_too_many_readers(void **state)
{
    struct kve_service_opts opts = web_opts();
    struct answer answer;
    struct web web;
    int fds[3];

    (void)state;
    opts.event_clients = 3;
    web_start(&web, &opts);
    for (int i = 0; i < 3; i++)
        fds[i] = open_reader(&web, "");
    answer = web_ask(&web, "GET /v1/events", NULL);
    assert_int_equal(answer.status, 503);
    assert_non_null(answer_field(&answer, "Retry-After"));
    answer_free(&answer);
    /* One that left is noticed when it is said something. */
    (void)close(fds[1]);
    for (unsigned status = 0; status != 200;) {
        struct kve_ingest_event event =
            event_of(KVE_INGEST_EVENT_PAUSED, "w", 1);

        kve_live_event(&web.http, &event);
        fds[1] = web_connect(web.port);
        web_send(fds[1], "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n");
        web_expect(fds[1], "HTTP/1.1 ");
        char code[4] = { 0 };
        assert_int_equal(recv(fds[1], code, 3, MSG_WAITALL), 3);
        status = (unsigned)atoi(code);
        if (status != 200)
            (void)close(fds[1]);
    }
    for (int i = 0; i < 3; i++)
        (void)close(fds[i]);
    web_stop(&web);
}

/* ---- many at once ---- */

struct saying {
    struct web *web;
    atomic_bool *stop;
};

static void *
say_events(void *arg)
{
    struct saying *saying = arg;
    struct kve_ingest_event event = event_of(KVE_INGEST_EVENT_PAUSED, "w", 1);

    while (!atomic_load(saying->stop))
        kve_live_event(&saying->web->http, &event);
    return NULL;
}

static void
test_readers_come_and_go(void **state)
{
    atomic_bool stop = false;
    struct web web;
    struct saying saying = { &web, &stop };
    pthread_t threads[2];
    char data[65536];

    (void)state;
    web_start(&web, NULL);
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            pthread_create(&threads[i], NULL, say_events, &saying), 0);
    for (int i = 0; i < 60; i++) {
        int fd = web_connect(web.port);

        web_send(fd, "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n");
        if (i % 3 != 0)
            (void)web_some(fd, data, sizeof(data), 5);
        (void)close(fd);
    }
    int last = web_connect(web.port);
    web_send(last, "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n");
    (void)usleep(20000);
    kve_server_drain(web.http.server, 0);
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    (void)close(last);
    web_stop(&web);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_said),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_filters),
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_heartbeat),
        cmocka_unit_test(test_too_many_readers),
        cmocka_unit_test(test_readers_come_and_go),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
