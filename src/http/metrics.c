/*
 * metrics.c - see metrics.h.
 */
#include "http/metrics.h"

#include "http/metrics_text.h"
#include "http/v1.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <kvevents/version.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- sources ---- */

static const unsigned source_counters[] = {
#define X(name, number, text, help) number,
    KVE_SUB_COUNTER_MAP(X) KVE_INDEX_COUNTER_MAP(X) KVE_INGEST_COUNTER_MAP(X)
#undef X
};
#define N_COUNTERS (sizeof(source_counters) / sizeof(source_counters[0]))

static const char *const states[] = {
#define X(name, number, text, help) [number] = "state=\"" text "\"",
    KVE_STATE_MAP(X)
#undef X
};
#define N_STATES (sizeof(states) / sizeof(states[0]))

static const char *const tiers[KVE_TIERS] = {
#define X(name, number, text) [number] = "tier=\"" #name "\"",
    KVE_TIER_MAP(X)
#undef X
};

/* What is known of one source. */
struct source {
    size_t labels; /* in the buffer of labels */
    size_t labels_len;
    uint32_t state;
    bool has_instance;
    bool stale;
    bool paused;
    bool connected;
    bool incomplete;
    bool block_size_differs;
    double last_batch_at; /* 0: none */
    uint64_t blocks[KVE_TIERS];
    uint64_t waiting;
    uint64_t hash_only;
    uint64_t counters[N_COUNTERS];
};

struct metrics {
    struct kve_http *http;
    struct kve_metrics_text text;
    struct kve_buffer labels;
    struct source *sources;
    size_t n;
    size_t cap;
    bool nomem;
};

/* Room for one source more. */
static struct source *
next_source(struct metrics *m)
{
    size_t cap = m->cap == 0 ? 64 : 2 * m->cap;
    struct source *grown;

    if (m->n < m->cap)
        return &m->sources[m->n++];
    grown = kve_mem_array(m->sources, cap, sizeof(*grown));
    if (grown == NULL) {
        m->nomem = true;
        return NULL;
    }
    m->sources = grown;
    m->cap = cap;
    return &m->sources[m->n++];
}

static void
gather_labels(
    struct metrics *m, struct source *to, const struct kve_ingest_source *s)
{
    struct kve_metrics_text text = { .out = &m->labels };
    char number[24];

    to->labels = m->labels.len;
    (void)snprintf(number, sizeof(number), "%llu", (unsigned long long)s->id);
    kve_metrics_label(&text, true, "source", number);
    kve_metrics_label(&text, false, "model", s->model);
    kve_metrics_label(&text, false, "tenant", s->tenant);
    kve_metrics_label(&text, false, "worker", s->worker);
    (void)snprintf(number, sizeof(number), "%u", s->rank);
    kve_metrics_label(&text, false, "rank", number);
    to->labels_len = m->labels.len - to->labels;
    m->nomem |= text.status != KVE_OK;
}

static bool
gather_source(void *ctx, const struct kve_ingest_source *s)
{
    struct metrics *m = ctx;
    struct source *to = next_source(m);
    struct kve_index_instance info = { 0 };

    if (to == NULL)
        return false;
    gather_labels(m, to, s);
    to->state = s->state;
    to->stale = s->stale_since > 0;
    to->paused = s->paused;
    to->connected = s->connected;
    to->incomplete = s->incomplete;
    to->block_size_differs = s->block_size_differs;
    to->last_batch_at = s->last_batch_at;
    /* A socket of many has none. */
    to->has_instance =
        kve_index_get_instance(m->http->index, s->instance, &info) == KVE_OK;
    memcpy(to->blocks, info.blocks, sizeof(to->blocks));
    to->waiting = info.waiting;
    to->hash_only = info.hash_only;
    for (size_t i = 0; i < N_COUNTERS; i++)
        to->counters[i] =
            kve_ingest_counter(m->http->ingest, s->id, source_counters[i]);
    return !m->nomem;
}

static const char *
labels_of(const struct metrics *m, const struct source *s)
{
    return (const char *)m->labels.data + s->labels;
}

static void
put_counters(struct metrics *m)
{
    for (size_t c = 0; c < N_COUNTERS; c++) {
        kve_metrics_family(&m->text, "kvevents_source_",
            kve_counter_str(source_counters[c]), "counter",
            kve_counter_help(source_counters[c]));
        for (size_t i = 0; i < m->n; i++) {
            const struct source *s = &m->sources[i];

            kve_metrics_u64(
                &m->text, labels_of(m, s), s->labels_len, NULL, s->counters[c]);
        }
    }
}

static void
put_states(struct metrics *m)
{
    kve_metrics_family(&m->text, "kvevents_source_", "state", "gauge",
        "1 for the state that the source is in, 0 for the others");
    for (size_t i = 0; i < m->n; i++) {
        const struct source *s = &m->sources[i];

        for (uint32_t k = 0; k < N_STATES; k++)
            kve_metrics_u64(&m->text, labels_of(m, s), s->labels_len, states[k],
                s->state == k);
    }
}

static void
put_blocks(struct metrics *m)
{
    kve_metrics_family(&m->text, "kvevents_source_", "blocks", "gauge",
        "pairs of a block and a scope that the source's rank holds, by tier");
    for (size_t i = 0; i < m->n; i++) {
        const struct source *s = &m->sources[i];

        for (unsigned t = 0; s->has_instance && t < KVE_TIERS; t++)
            kve_metrics_u64(&m->text, labels_of(m, s), s->labels_len, tiers[t],
                s->blocks[t]);
    }
}

/* One gauge of each source; those of an instance only where there is one. */
static void
put_gauge(struct metrics *m, const char *name, const char *help,
    bool of_instance, uint64_t (*value)(const struct source *s))
{
    kve_metrics_family(&m->text, "kvevents_source_", name, "gauge", help);
    for (size_t i = 0; i < m->n; i++) {
        const struct source *s = &m->sources[i];

        if (!of_instance || s->has_instance)
            kve_metrics_u64(
                &m->text, labels_of(m, s), s->labels_len, NULL, value(s));
    }
}

#define GAUGE(member)                                      \
    static uint64_t value_##member(const struct source *s) \
    {                                                      \
        return s->member;                                  \
    }
GAUGE(stale)
GAUGE(paused)
GAUGE(connected)
GAUGE(incomplete)
GAUGE(block_size_differs)
GAUGE(waiting)
GAUGE(hash_only)
#undef GAUGE

static void
put_ages(struct metrics *m)
{
    double now = kve_unix_time();

    kve_metrics_family(&m->text, "kvevents_source_", "last_batch_age_seconds",
        "gauge", "since the last batch was applied; absent before the first");
    for (size_t i = 0; i < m->n; i++) {
        const struct source *s = &m->sources[i];
        double age = now - s->last_batch_at;

        if (s->last_batch_at > 0)
            kve_metrics_double(&m->text, labels_of(m, s), s->labels_len, NULL,
                age > 0 ? age : 0);
    }
}

static void
put_sources(struct metrics *m)
{
    put_states(m);
    put_gauge(
        m, "stale", "1 while its heartbeats are missing", false, value_stale);
    put_gauge(m, "paused", "1 while it is paused", false, value_paused);
    put_gauge(m, "connected", "1 while the live connection stands", false,
        value_connected);
    put_gauge(m, "incomplete",
        "1 when something was not applied since it was whole", false,
        value_incomplete);
    put_gauge(m, "block_size_differs",
        "1 when its stores have other block sizes than were registered", false,
        value_block_size_differs);
    put_ages(m);
    put_blocks(m);
    put_gauge(m, "waiting_blocks",
        "of its blocks, those whose parent is not known (orphans)", true,
        value_waiting);
    put_gauge(m, "hash_only_blocks",
        "of its blocks, those of which only the hash is known", true,
        value_hash_only);
    put_counters(m);
}

/* ---- the whole ---- */

static void
put_one(struct metrics *m, const char *name, const char *type, const char *help,
    uint64_t value)
{
    kve_metrics_family(&m->text, "kvevents_", name, type, help);
    kve_metrics_u64(&m->text, "", 0, NULL, value);
}

static void
put_totals(struct metrics *m)
{
    for (size_t c = 0; c < N_COUNTERS; c++) {
        kve_metrics_family(&m->text, "kvevents_ingest_",
            kve_counter_str(source_counters[c]), "counter",
            kve_counter_help(source_counters[c]));
        kve_metrics_u64(&m->text, "", 0, NULL,
            kve_ingest_counter(m->http->ingest, 0, source_counters[c]));
    }
}

static void
put_http(struct metrics *m)
{
#define X(name, number, text, help)   \
    put_one(m, text, "counter", help, \
        atomic_load_explicit(         \
            &m->http->counters.n[number - 400], memory_order_relaxed));
    KVE_HTTP_COUNTER_MAP(X)
#undef X
}

/* Buckets are cumulative. The sum may be of a moment a little later. */
static void
put_histogram(struct metrics *m)
{
    struct kve_http_histogram *h = &m->http->queries;
    uint64_t n = 0;
    char label[40];

    kve_metrics_family(&m->text, "kvevents_", "query_seconds", "histogram",
        "time that questions took in the service, without the network");
    for (unsigned i = 0; i < KVE_HTTP_BUCKETS; i++) {
        n += atomic_load_explicit(&h->bucket[i], memory_order_relaxed);
        if (i < KVE_HTTP_BUCKETS - 1) {
            uint32_t us = kve_http_bucket_us[i];

            (void)snprintf(label, sizeof(label), "le=\"%u.%06u\"", us / 1000000,
                us % 1000000);
        } else {
            (void)snprintf(label, sizeof(label), "le=\"+Inf\"");
        }
        kve_metrics_part(&m->text, "_bucket", label, (double)n);
    }
    kve_metrics_part(&m->text, "_sum", "",
        (double)atomic_load_explicit(&h->sum_ns, memory_order_relaxed) / 1e9);
    kve_metrics_part(&m->text, "_count", "", (double)n);
}

static void
put_progress(struct metrics *m)
{
    struct kve_ingest_progress p = { .struct_size = sizeof(p) };
    bool ready;

    kve_ingest_get_progress(m->http->ingest, &p);
    ready =
        p.ready && atomic_load_explicit(&m->http->ready, memory_order_acquire);
    put_one(m, "ready", "gauge", "1 when /ready says so", ready);
    put_one(m, "workers", "gauge", "workers that are known", p.workers);
    put_one(m, "sources_past_limit", "gauge",
        "sources that recover for longer than the limit", p.past_limit);
    put_one(m, "sources_paused", "gauge", "sources that are paused", p.paused);
    kve_metrics_family(&m->text, "kvevents_", "sources", "gauge",
        "sources that are not paused, by state");
    kve_metrics_u64(&m->text, "", 0, states[KVE_STATE_COLD], p.cold);
    kve_metrics_u64(
        &m->text, "", 0, states[KVE_STATE_RECOVERING], p.recovering);
    kve_metrics_u64(&m->text, "", 0, states[KVE_STATE_LIVE], p.live);
    kve_metrics_u64(&m->text, "", 0, states[KVE_STATE_DEGRADED], p.degraded);
    kve_metrics_u64(&m->text, "", 0, states[KVE_STATE_GONE], p.gone);
}

static void
put_index(struct metrics *m)
{
    struct kve_index_stats s = KVE_INDEX_STATS_INIT;

    if (kve_index_get_stats(m->http->index, 0, &s) != KVE_OK)
        return;
    put_one(m, "index_bytes", "gauge", "memory of the index", s.bytes);
    put_one(m, "index_max_bytes", "gauge", "its limit; 0: none", s.max_bytes);
    put_one(m, "index_limbo_bytes", "gauge",
        "of the memory, what is freed but may still be looked at", s.limbo);
    put_one(
        m, "index_blocks", "gauge", "different blocks that are held", s.blocks);
    kve_metrics_family(&m->text, "kvevents_", "index_residencies", "gauge",
        "triples of a rank, a scope and a block that it holds, by tier");
    for (unsigned t = 0; t < KVE_TIERS; t++)
        kve_metrics_u64(&m->text, "", 0, tiers[t], s.residencies[t]);
    put_one(
        m, "index_copies", "gauge", "residencies with their counts", s.copies);
    put_one(m, "index_waiting_blocks", "gauge",
        "residencies whose parent is not known (orphans)", s.waiting);
    put_one(m, "index_hash_only_blocks", "gauge",
        "residencies of which only the hash is known", s.hash_only);
    put_one(m, "index_runs", "gauge", "pieces of chains", s.runs);
    put_one(m, "index_instances", "gauge", "ranks", s.instances);
    put_one(m, "index_namespaces", "gauge", "pairs of a model and a tenant",
        s.namespaces);
}

/* ---- the process ---- */

/* Pages that are in memory, from /proc; false: not to be had. */
static bool
resident_pages(unsigned long *ret)
{
    FILE *file = fopen("/proc/self/statm", "re");
    bool got = file != NULL && fscanf(file, "%*u %lu", ret) == 1;

    if (file != NULL)
        (void)fclose(file);
    return got;
}

static double
seconds(const struct timeval *tv)
{
    return (double)tv->tv_sec + (double)tv->tv_usec / 1e6;
}

static void
put_process(struct metrics *m)
{
    unsigned long pages;
    struct rusage usage;

    if (resident_pages(&pages)) {
        kve_metrics_family(&m->text, "process_", "resident_memory_bytes",
            "gauge", "resident memory");
        kve_metrics_u64(&m->text, "", 0, NULL,
            (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE));
    }
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        kve_metrics_family(&m->text, "process_", "cpu_seconds", "counter",
            "user and system time");
        kve_metrics_double(&m->text, "", 0, NULL,
            seconds(&usage.ru_utime) + seconds(&usage.ru_stime));
    }
    kve_metrics_family(&m->text, "kvevents_", "build_info", "gauge",
        "1; the version is a label");
    kve_metrics_u64(&m->text, "", 0, "version=\"" KVE_VERSION_STRING "\"", 1);
}

kve_status
kve_metrics_write(struct kve_http *http, struct kve_buffer *out)
{
    struct metrics m = { .http = http, .text = { .out = out } };
    kve_status status;

    kve_ingest_read_begin(http->ingest);
    kve_ingest_sources(http->ingest, NULL, gather_source, &m);
    kve_ingest_read_end(http->ingest);
    if (!m.nomem) {
        put_process(&m);
        put_progress(&m);
        put_index(&m);
        put_histogram(&m);
        put_http(&m);
        put_totals(&m);
        put_sources(&m);
    }
    status = m.nomem ? KVE_E_NOMEM : m.text.status;
    kve_buffer_release(&m.labels);
    kve_mem_free(m.sources);
    return status;
}
