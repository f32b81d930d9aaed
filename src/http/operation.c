/*
 * operation.c - what the machinery around a service asks: alive, ready,
 * metrics.
 */
#include "http/metrics.h"
#include "http/v1.h"

/* Alive: somebody answers. The body is empty, as clients of other indexers
 * expect. */
static void
answer_health(struct kve_http *http, struct kve_http_request *req)
{
    (void)http;
    req->media = KVE_MEDIA_NONE;
}

static void
put_count(struct kve_output *out, const char *key, size_t n)
{
    kve_output_key(out, key);
    kve_output_u64(out, n);
}

static void
answer_ready(struct kve_http *http, struct kve_http_request *req)
{
    bool loaded = atomic_load_explicit(&http->ready, memory_order_acquire);
    struct kve_ingest_progress p = { .struct_size = sizeof(p) };
    struct kve_output out;

    kve_ingest_get_progress(http->ingest, &p);
    req->status = loaded && p.ready ? 200 : 503;
    kve_v1_begin(req, &out);
    kve_output_map(&out, 0);
    kve_output_key(&out, "ready");
    kve_output_bool(&out, loaded && p.ready);
    kve_output_key(&out, "loading");
    kve_output_bool(&out, !loaded);
    put_count(&out, "sources", p.sources);
    put_count(&out, "live", p.live);
    put_count(&out, "degraded", p.degraded);
    put_count(&out, "recovering", p.recovering);
    put_count(&out, "cold", p.cold);
    put_count(&out, "gone", p.gone);
    put_count(&out, "paused", p.paused);
    put_count(&out, "past_limit", p.past_limit);
    put_count(&out, "workers", p.workers);
    put_count(&out, "namespaces", p.namespaces);
    kve_output_map_end(&out);
    kve_v1_end(req, &out);
}

static void
answer_metrics(struct kve_http *http, struct kve_http_request *req)
{
    req->media = KVE_MEDIA_METRICS;
    if (kve_metrics_write(http, req->out) == KVE_OK)
        return;
    req->out->len = 0;
    kve_http_fail(req, 503, "no memory for the metrics");
}

const struct kve_http_route kve_routes_operation[] = {
    { KVE_METHOD_GET, "/health", answer_health, KVE_ROUTE_OPEN },
    { KVE_METHOD_GET, "/ready", answer_ready, 0 },
    { KVE_METHOD_GET, "/metrics", answer_metrics, 0 },
    { 0, NULL, NULL, 0 },
};
