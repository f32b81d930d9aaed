/*
 * test_v1_nomem.c - every answer of /v1, with every allocation failing once.
 *
 * ctest-timeout: 300
 *
 * A service with one paused source, whose rank holds a few blocks, is asked
 * again and again; the n-th allocation fails, for every n until none does. The
 * answer is whole, or an error, or the connection is closed: never half of one
 * that looks whole. Afterwards the same question is answered.
 */
#include "web.h"

#include "base/alloc.h"

#include <kvevents/service.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST 400 /* allocations of one request */

struct rig {
    kve_index *index;
    kve_ingest *ingest;
    kve_service *service;
    kve_ingest_id source;
};

static void
hold_blocks(struct rig *rig)
{
    static const uint32_t tokens[] = { 1, 1, 2, 2, 3, 3 };
    static struct kve_hash hashes[3];
    struct kve_event event = { .type = KVE_EVENT_STORED };
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_ingest_source source = { .struct_size = sizeof(source) };

    for (size_t i = 0; i < 3; i++)
        hashes[i].integer = i + 1;
    event.hashes = hashes;
    event.n_hashes = 3;
    event.tokens = tokens;
    event.n_tokens = 6;
    event.block_size = 2;
    view.events = &event;
    view.n_events = 1;
    kve_ingest_read_begin(rig->ingest);
    assert_int_equal(
        kve_ingest_source_of(rig->ingest, rig->source, &source), KVE_OK);
    kve_ingest_read_end(rig->ingest);
    assert_int_equal(kve_index_apply(rig->index, source.instance, &view, NULL,
                         0, NULL, NULL),
        KVE_OK);
}

static void
rig_start(struct rig *rig)
{
    struct kve_ingest_spec spec = KVE_INGEST_SPEC_INIT;
    struct kve_service_opts opts = KVE_SERVICE_OPTS_INIT;

    spec.model = "m";
    spec.worker = "w";
    spec.source.endpoint = "tcp://127.0.0.1:1";
    opts.listen = "127.0.0.1:0";
    opts.threads = 1;
    assert_int_equal(kve_index_create(NULL, &rig->index, NULL), KVE_OK);
    assert_int_equal(
        kve_ingest_create(NULL, rig->index, NULL, &rig->ingest, NULL), KVE_OK);
    assert_int_equal(
        kve_ingest_add(rig->ingest, &spec, &rig->source, NULL), KVE_OK);
    assert_int_equal(kve_ingest_pause(rig->ingest, rig->source, NULL), KVE_OK);
    assert_int_equal(
        kve_service_create(rig->index, rig->ingest, &opts, &rig->service, NULL),
        KVE_OK);
    hold_blocks(rig);
}

static void
rig_stop(struct rig *rig)
{
    kve_service_destroy(rig->service);
    kve_ingest_destroy(rig->ingest);
    kve_index_destroy(rig->index);
}

/* All that comes back, up to the end of the connection. */
static size_t
fetch(const struct rig *rig, const char *request, char *data, size_t cap)
{
    int fd = web_connect(kve_service_port(rig->service));
    size_t n = 0;
    ssize_t got;

    web_send(fd, request);
    while (n < cap - 1 && (got = recv(fd, data + n, cap - 1 - n, 0)) > 0)
        n += (size_t)got;
    data[n] = '\0';
    (void)close(fd);
    return n;
}

/* What stands at the end of an answer that is whole; all that is known of one
 * that was cut is that it has it not. */
static const struct {
    const char *request;
    const char *end;
} rows[] = {
    { "GET /v1/sources HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "]}" },
    { "GET /v1/sources/1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "}" },
    { "GET /v1/workers HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "]}" },
    { "GET /v1/blocks/2?model=m HTTP/1.1\r\nHost: x\r\nConnection: "
      "close\r\n\r\n",
        "}" },
    { "GET /v1/dump HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "\"type\":\"end\",\"instances\":1}\n\r\n0\r\n\r\n" },
    { "GET /v1/state HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "\r\n0\r\n\r\n" },
    { "GET /v1/settings HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "{}" },
    { "GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "}\n" },
    { "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "\n" },
    { "POST /v1/query HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
      "Content-Type: application/json\r\nContent-Length: 54\r\n\r\n"
      "{\"model\":\"m\",\"tokens\":[1,1,2,2,9,9],\"explain\" :true}  ",
        "}]}]}" },
    { "POST /v1/clear HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
      "Content-Type: application/json\r\nContent-Length: 14\r\n\r\n"
      "{\"worker\":\"x\"}",
        "{\"cleared\":0}" },
    { "POST /v1/sources HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
      "Content-Type: application/json\r\nContent-Length: 64\r\n\r\n"
      "{\"worker\":\"w\",\"model\":\"m\",\"endpoint\":\"tcp://127.0.0.1:1\"}"
      "          ",
        "}" },
};

static bool
ends_with(const char *data, size_t n, const char *end)
{
    size_t len = strlen(end);

    return n >= len && memcmp(data + n - len, end, len) == 0;
}

/* Ask with the n-th allocation failing; whether one did. */
static bool
ask_failing(const struct rig *rig, size_t i, uint64_t n, char *data, size_t cap)
{
    size_t len;
    bool failed;

    kve_mem_fail_at(n, false);
    len = fetch(rig, rows[i].request, data, cap);
    failed = kve_mem_failed();
    kve_mem_fail_at(0, false);
    if (len == 0 || strncmp(data, "HTTP/1.1 503 ", 13) == 0)
        return failed;
    if (strncmp(data, "HTTP/1.1 200 ", 13) != 0)
        fail_msg(
            "%.40s: allocation %u: %.300s", rows[i].request, (unsigned)n, data);
    /* A stream may be cut; everything else has its length said before. */
    if (!ends_with(data, len, rows[i].end) &&
        strstr(data, "Transfer-Encoding: chunked") == NULL)
        fail_msg("%.40s: allocation %u: it ends so: %s", rows[i].request,
            (unsigned)n, len > 80 ? data + len - 80 : data);
    return failed;
}

static void
test_every_allocation_fails_once(void **state)
{
    const size_t cap = (size_t)4 * 1024 * 1024;
    char *data = malloc(cap);
    struct rig rig;

    (void)state;
    assert_non_null(data);
    rig_start(&rig);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t n = 1;
        size_t len;

        while (n < MOST && ask_failing(&rig, i, n, data, cap))
            n++;
        assert_true(n < MOST);
        len = fetch(&rig, rows[i].request, data, cap);
        if (strncmp(data, "HTTP/1.1 200 ", 13) != 0 ||
            !ends_with(data, len, rows[i].end))
            fail_msg("%.40s: afterwards: %.100s ... %s", rows[i].request, data,
                len > 200 ? data + len - 200 : data);
        (void)fprintf(stderr, "%.24s: %u allocations\n", rows[i].request,
            (unsigned)n - 1);
    }
    rig_stop(&rig);
    free(data);
    assert_int_equal(kve_mem_live(), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation_fails_once),
    };

    return cmocka_run_group_tests_name("http/v1_nomem", tests, NULL, NULL);
}
