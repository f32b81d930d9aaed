/*
 * The service as a whole: options, its life, memory.
 *
 * ctest-timeout: 180
 */
#include "web.h"

#include <kvevents/service.h>

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct world {
    kve_index *index;
    kve_ingest *ingest;
};

static struct world
world_create(void)
{
    struct world world;

    assert_int_equal(kve_index_create(NULL, &world.index, NULL), KVE_OK);
    assert_int_equal(
        kve_ingest_create(NULL, world.index, NULL, &world.ingest, NULL),
        KVE_OK);
    return world;
}

static void
world_destroy(struct world *world)
{
    kve_ingest_destroy(world->ingest);
    kve_index_destroy(world->index);
}

static struct kve_service_opts
some_opts(void)
{
    struct kve_service_opts opts = KVE_SERVICE_OPTS_INIT;

    opts.listen = "127.0.0.1:0";
    opts.threads = 1;
    return opts;
}

static void
test_init(void **state)
{
    struct kve_service_opts one = KVE_SERVICE_OPTS_INIT;
    struct kve_service_opts other;

    (void)state;
    memset(&other, 0xff, sizeof(other));
    kve_service_opts_init(&other);
    assert_int_equal(one.struct_size, other.struct_size);
    assert_null(other.listen);
    assert_null(other.reopen_ctx);
    assert_int_equal(other.max_tokens, 0);
}

/* What is wrong is named. */
static void
test_wrong_options(void **state)
{
    static const struct {
        const char *word; /* that the error has */
        kve_status status;
        struct kve_service_opts opts;
    } rows[] = {
        { "nowhere", KVE_E_INVAL, { .listen = "nowhere:1" } },
        { "threads", KVE_E_INVAL, { .threads = 257 } },
        { "max_connections", KVE_E_INVAL, { .max_connections = 1000001 } },
        { "max_body", KVE_E_INVAL, { .max_body = (size_t)2 << 30 } },
        { "event_bytes", KVE_E_INVAL, { .event_bytes = 100 } },
        { "tls_key", KVE_E_INVAL, { .tls_cert = "x" } },
        { "tls_cert", KVE_E_INVAL, { .tls_key = "x" } },
        { "/nowhere", KVE_E_NOT_FOUND, { .token_file = "/nowhere/at/all" } },
        { "/nowhere", KVE_E_NOT_FOUND,
            { .tls_cert = "/nowhere/cert", .tls_key = "/nowhere/key" } },
    };
    struct world world = world_create();
    kve_service *service = NULL;
    struct kve_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct kve_service_opts opts = rows[i].opts;

        if (opts.listen == NULL)
            opts.listen = "127.0.0.1:0";
        assert_int_equal(kve_service_create(
                             world.index, world.ingest, &opts, &service, &err),
            rows[i].status);
        if (strstr(err.detail, rows[i].word) == NULL)
            fail_msg("\"%s\" says nothing of %s", err.detail, rows[i].word);
        assert_null(service);
    }
    struct kve_service_opts opts = some_opts();
    assert_int_equal(
        kve_service_create(NULL, world.ingest, &opts, &service, &err),
        KVE_E_INVAL);
    assert_int_equal(
        kve_service_create(world.index, NULL, &opts, &service, &err),
        KVE_E_INVAL);
    world_destroy(&world);
}

static unsigned
status_of(uint16_t port, const char *path)
{
    struct web web = { .port = port };
    char line[128];

    (void)snprintf(line, sizeof(line), "GET %s", path);
    struct answer answer = web_ask(&web, line, NULL);
    unsigned status = answer.status;
    answer_free(&answer);
    return status;
}

static void
test_life(void **state)
{
    struct world world = world_create();
    struct kve_service_opts opts = some_opts();
    struct kve_ingest_event event = { .struct_size = sizeof(event),
        .type = KVE_INGEST_EVENT_ADDED,
        .detail = "" };
    kve_service *service;
    kve_service *second;
    struct kve_error err;
    char listen[32];
    int fd;

    (void)state;
    opts.settings = "{\"what\":[1,2]}";
    assert_int_equal(
        kve_service_create(world.index, world.ingest, &opts, &service, &err),
        KVE_OK);
    uint16_t port = kve_service_port(service);
    assert_true(port != 0);
    assert_int_equal(status_of(port, "/health"), 200);
    assert_int_equal(status_of(port, "/ready"), 200);
    assert_int_equal(status_of(port, "/v1/settings"), 200);
    assert_int_equal(status_of(port, "/nothing"), 404);
    kve_service_set_ready(service, false);
    assert_int_equal(status_of(port, "/ready"), 503);
    kve_service_set_ready(service, true);
    assert_int_equal(status_of(port, "/ready"), 200);
    assert_int_equal(
        kve_service_counter(service, KVE_COUNTER_HTTP_REQUESTS), 6);
    assert_int_equal(kve_service_counter(service, KVE_COUNTER_HTTP_4XX), 1);
    assert_int_equal(kve_service_counter(service, KVE_COUNTER_HTTP_5XX), 1);
    assert_int_equal(kve_service_counter(service, 0), 0);
    assert_int_equal(kve_service_counter(service, 1000000), 0);
    kve_service_event(service, &event);
    assert_int_equal(kve_service_reload(service, &err), KVE_OK);

    (void)snprintf(listen, sizeof(listen), "127.0.0.1:%u", port);
    opts.listen = listen;
    assert_int_equal(
        kve_service_create(world.index, world.ingest, &opts, &second, &err),
        KVE_E_IN_USE);
    assert_non_null(strstr(err.detail, listen));

    kve_service_drain(service, 1000);
    fd = web_connect(port);
    assert_true(fd < 0);
    kve_service_event(service, &event);
    kve_service_drain(service, 1000);
    kve_service_destroy(service);
    kve_service_destroy(NULL);
    world_destroy(&world);
}

/* Each allocation of a start fails once: an error, and nothing is left. */
static void
test_no_memory(void **state)
{
    struct world world = world_create();
    struct kve_service_opts opts = some_opts();
    kve_service *service;
    struct kve_error err;
    bool failed = true;
    uint64_t n = 0;

    (void)state;
    while (failed) {
        int64_t live = kve_mem_live();
        kve_status status;

        kve_mem_fail_at(++n, false);
        status = kve_service_create(
            world.index, world.ingest, &opts, &service, &err);
        failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        if (failed)
            assert_int_equal(status, KVE_E_NOMEM);
        else
            kve_service_destroy(service);
        assert_int_equal(kve_mem_live(), live);
    }
    assert_true(n > 8);
    world_destroy(&world);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init),
        cmocka_unit_test(test_wrong_options),
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
