/*
 * service.c - see kvevents/service.h: options, parts, and the server.
 */
#include <kvevents/service.h>

#include "http/dialect.h"
#include "http/http.h"
#include "http/live.h"
#include "http/server.h"

#include "base/alloc.h"
#include "base/status.h"

#include <stddef.h>
#include <string.h>
#include <unistd.h>

/* A ring of less would lose every event but the shortest. */
#define MIN_EVENT_BYTES ((size_t)4096)

struct kve_service {
    struct kve_http http;
};

static const struct kve_http_route *const tables[] = { kve_routes_v1,
    kve_routes_live, kve_routes_dialects, kve_routes_operation, NULL };

void
kve_service_opts_init(struct kve_service_opts *opts)
{
    *opts = (struct kve_service_opts)KVE_SERVICE_OPTS_INIT;
}

#define DEFAULT(field, value) \
    if (opts->field == 0)     \
    opts->field = (value)

static uint32_t
cores(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);

    return n < 1 ? 1 : n > 8 ? 8 : (uint32_t)n;
}

static kve_status
check(struct kve_service_opts *opts, struct kve_error *err)
{
    DEFAULT(threads, cores());
    DEFAULT(max_connections, 4096);
    DEFAULT(max_body, (size_t)8 * 1024 * 1024);
    DEFAULT(max_tokens, (size_t)1048576);
    DEFAULT(max_prompts, 256);
    DEFAULT(request_time_ms, 10000);
    DEFAULT(idle_time_ms, 60000);
    DEFAULT(event_clients, 64);
    DEFAULT(event_bytes, (size_t)1024 * 1024);
    if (opts->threads > 256)
        return kve_fail(err, KVE_E_INVAL,
            "threads is %u; accepted are 1 to 256", opts->threads);
    if (opts->max_connections > 1000000)
        return kve_fail(err, KVE_E_INVAL,
            "max_connections is %u; accepted are 1 to 1000000",
            opts->max_connections);
    if (opts->max_body > (size_t)1024 * 1024 * 1024)
        return kve_fail(err, KVE_E_INVAL,
            "max_body is %zu bytes; accepted are up to 1 GiB", opts->max_body);
    if (opts->event_bytes < MIN_EVENT_BYTES)
        return kve_fail(err, KVE_E_INVAL,
            "event_bytes is %zu; at least %zu are needed", opts->event_bytes,
            MIN_EVENT_BYTES);
    if ((opts->tls_cert == NULL) != (opts->tls_key == NULL))
        return kve_fail(err, KVE_E_INVAL,
            "%s is set without %s; TLS needs both",
            opts->tls_cert != NULL ? "tls_cert" : "tls_key",
            opts->tls_cert != NULL ? "tls_key" : "tls_cert");
    return KVE_OK;
}

#undef DEFAULT

/* The texts of opts, made the service's own. NULL stays NULL. */
static kve_status
keep_texts(struct kve_service_opts *opts, struct kve_error *err)
{
    const char **texts[] = { &opts->listen, &opts->token_file, &opts->tls_cert,
        &opts->tls_key, &opts->settings };
    const size_t n = sizeof(texts) / sizeof(texts[0]);
    size_t failed = n;

    for (size_t i = 0; i < n; i++) {
        const char *text = *texts[i];

        *texts[i] = failed == n ? kve_mem_strdup(text) : NULL;
        if (text != NULL && *texts[i] == NULL && failed == n)
            failed = i;
    }
    return failed == n ? KVE_OK : kve_fail_nomem(err, "service options");
}

static void
release(struct kve_service *service)
{
    struct kve_service_opts *opts = &service->http.opts;

    kve_server_destroy(service->http.server);
    kve_feeds_wait(&service->http);
    kve_live_destroy(service->http.live);
    kve_http_peers_destroy(service->http.peers);
    kve_mem_free((void *)opts->listen);
    kve_mem_free((void *)opts->token_file);
    kve_mem_free((void *)opts->tls_cert);
    kve_mem_free((void *)opts->tls_key);
    kve_mem_free((void *)opts->settings);
    kve_mem_free(service);
}

kve_status
kve_service_create(kve_index *index, kve_ingest *ingest,
    const struct kve_service_opts *given, kve_service **ret_service,
    struct kve_error *err)
{
    struct kve_service_opts opts;
    struct kve_service *service;
    kve_status status = kve_opts_read(
        given, sizeof(opts), &opts, sizeof(opts), "kve_service_opts", err);

    if (status != KVE_OK)
        return status;
    if (index == NULL || ingest == NULL)
        return kve_fail(err, KVE_E_INVAL, "index and ingest must be given");
    if (opts.listen == NULL)
        opts.listen = "127.0.0.1:8090";
    if (opts.settings == NULL)
        opts.settings = "{}";
    status = check(&opts, err);
    if (status != KVE_OK)
        return status;
    service = kve_mem_zalloc(1, sizeof(*service));
    if (service == NULL)
        return kve_fail_nomem(err, "service");
    service->http.index = index;
    service->http.ingest = ingest;
    atomic_init(&service->http.ready, true);
    status = keep_texts(&opts, err);
    service->http.opts = opts;
    if (status != KVE_OK)
        goto fail;
    service->http.peers = kve_http_peers_create();
    service->http.live = kve_live_create();
    if (service->http.peers == NULL || service->http.live == NULL) {
        status = kve_fail_nomem(err, "service");
        goto fail;
    }
    status = kve_server_create(&service->http, tables, err);
    if (status != KVE_OK)
        goto fail;
    *ret_service = service;
    return KVE_OK;

fail:
    release(service);
    return status;
}

void
kve_service_drain(kve_service *service, uint32_t drain_ms)
{
    kve_server_drain(service->http.server, drain_ms);
}

void
kve_service_destroy(kve_service *service)
{
    if (service != NULL)
        release(service);
}

uint16_t
kve_service_port(const kve_service *service)
{
    return kve_server_port(service->http.server);
}

kve_status
kve_service_reload(kve_service *service, struct kve_error *err)
{
    return kve_server_reload(service->http.server, err);
}

void
kve_service_event(kve_service *service, const struct kve_ingest_event *event)
{
    kve_live_event(&service->http, event);
}

void
kve_service_set_ready(kve_service *service, bool ready)
{
    atomic_store_explicit(&service->http.ready, ready, memory_order_release);
}

uint64_t
kve_service_counter(const kve_service *service, unsigned counter)
{
    const struct kve_http_counters *counters = &service->http.counters;

    if (counter < 400 ||
        counter - 400 >= sizeof(counters->n) / sizeof(counters->n[0]))
        return 0;
    return atomic_load_explicit(
        &counters->n[counter - 400], memory_order_relaxed);
}
