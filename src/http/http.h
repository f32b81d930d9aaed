/*
 * http.h - what handlers share: the index, the ingest, the limits.
 */
#ifndef KVE_HTTP_HTTP_H
#define KVE_HTTP_HTTP_H

#include "http/request.h"

#include <stdatomic.h>

/* Upper bounds of the buckets of the query histogram, in microseconds; the
 * last bucket has none. */
#define KVE_HTTP_BUCKETS 16
extern const uint32_t kve_http_bucket_us[KVE_HTTP_BUCKETS - 1];

struct kve_http_counters {
    _Atomic uint64_t n[64]; /* KVE_HTTP_COUNTER_MAP, from 400 */
};

struct kve_http_histogram {
    _Atomic uint64_t bucket[KVE_HTTP_BUCKETS];
    _Atomic uint64_t sum_ns;
};

struct kve_http_peers; /* dialect.c: the list of /peers */
struct kve_http_live;  /* live.c: readers of /v1/events */

struct kve_http {
    kve_index *index;
    kve_ingest *ingest;
    struct kve_service_opts opts; /* with defaults filled in; strings owned */
    struct kve_http_counters counters;
    struct kve_http_histogram queries; /* KVE_ROUTE_QUERY */
    _Atomic bool ready;
    struct kve_http_peers *peers;
    struct kve_http_live *live;
    struct kve_server *server;
    uint32_t feeds; /* v1_feed.c: threads that make answers; its lock */
};

static inline void
kve_http_count(struct kve_http *http, unsigned counter, uint64_t n)
{
    atomic_fetch_add_explicit(
        &http->counters.n[counter - 400], n, memory_order_relaxed);
}

/* Continue the stream of a request whose pull function said 0. Any thread. */
void kve_http_wake(struct kve_http *http, void *connection);

/* Wait for threads that make answers (v1_feed.h), whose connections have all
 * ended. */
void kve_feeds_wait(struct kve_http *http);

#endif
