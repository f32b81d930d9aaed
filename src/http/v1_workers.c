/*
 * v1_workers.c - GET /v1/workers: what a router chooses from.
 *
 * A rank is an instance of the index; ranks of one worker stand together. Some
 * have no source of their own: batches of another source named them. Model and
 * tenant of a namespace are known from its sources.
 *
 *     sources   -> namespace -> model, tenant; worker -> ids, stale
 *     instances -> sorted by namespace, worker, rank -> one entry a worker
 */
#include "http/v1.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

struct rank {
    struct kve_index_instance info;
    struct kve_ingest_row row;
};

struct source {
    kve_namespace ns;
    kve_ingest_id id;
    const char *model;
    const char *tenant;
    const char *worker;
    bool stale;
};

struct workers {
    struct kve_http *http;
    struct kve_ingest_filter filter;
    struct source *sources;
    size_t n_sources;
    size_t cap_sources;
    kve_instance *instances;
    struct rank *ranks;
    size_t n_ranks;
    bool nomem;
    struct kve_output out;
};

/* ---- gathering ---- */

static bool
add_source(void *ctx, const struct kve_ingest_source *s)
{
    struct workers *w = ctx;

    if (w->n_sources == w->cap_sources) {
        size_t cap = w->cap_sources == 0 ? 64 : 2 * w->cap_sources;
        struct source *grown =
            kve_mem_array(w->sources, cap, sizeof(*w->sources));

        if (grown == NULL) {
            w->nomem = true;
            return false;
        }
        w->sources = grown;
        w->cap_sources = cap;
    }
    w->sources[w->n_sources++] = (struct source){ s->ns, s->id, s->model,
        s->tenant, s->worker, s->stale_since > 0 };
    return true;
}

static int
compare_sources(const void *a, const void *b)
{
    const struct source *x = a;
    const struct source *y = b;
    int order = x->ns < y->ns ? -1 : x->ns > y->ns;

    if (order == 0)
        order = strcmp(x->worker, y->worker);
    return order != 0 ? order : (x->id < y->id ? -1 : x->id > y->id);
}

static void
gather_sources(struct workers *w)
{
    kve_ingest_sources(w->http->ingest, NULL, add_source, w);
    if (w->n_sources > 0)
        qsort(w->sources, w->n_sources, sizeof(*w->sources), compare_sources);
}

/* The first source of a worker, or (worker "") of its namespace; it may be of
 * another one, or behind the last, when there is none. */
static const struct source *
find_source(const struct workers *w, kve_namespace ns, const char *worker)
{
    const struct source key = { .ns = ns, .worker = worker };
    size_t low = 0;
    size_t high = w->n_sources;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (compare_sources(&w->sources[middle], &key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return w->sources + low;
}

static int
compare_ranks(const void *a, const void *b)
{
    const struct kve_index_instance *x = &((const struct rank *)a)->info;
    const struct kve_index_instance *y = &((const struct rank *)b)->info;
    int order = x->ns < y->ns ? -1 : x->ns > y->ns;

    if (order == 0)
        order = strcmp(x->worker, y->worker);
    return order != 0 ? order : (x->rank < y->rank ? -1 : x->rank > y->rank);
}

/* The ranks that are there, with room for some that come meanwhile. */
static void
gather_ranks(struct workers *w)
{
    struct kve_http *http = w->http;
    size_t cap = kve_index_instances(http->index, 0, NULL, 0) + 16;
    size_t n;

    w->instances = kve_mem_array(NULL, cap, sizeof(*w->instances));
    w->ranks = kve_mem_array(NULL, cap, sizeof(*w->ranks));
    if (w->instances == NULL || w->ranks == NULL) {
        w->nomem = true;
        return;
    }
    n = kve_index_instances(http->index, 0, w->instances, cap);
    for (size_t i = 0; i < n && i < cap; i++) {
        struct rank *rank = &w->ranks[w->n_ranks];

        rank->row.struct_size = sizeof(rank->row);
        if (!kve_ingest_row_of(http->ingest, w->instances[i], &rank->row) ||
            kve_index_get_instance(http->index, w->instances[i], &rank->info) !=
                KVE_OK)
            continue;
        /* The name of the row is good for as long as we read. */
        rank->info.worker = rank->row.worker;
        if (w->filter.worker == NULL ||
            strcmp(w->filter.worker, rank->info.worker) == 0)
            w->n_ranks++;
    }
    if (w->n_ranks > 0)
        qsort(w->ranks, w->n_ranks, sizeof(*w->ranks), compare_ranks);
}

/* ---- writing ---- */

/* The larger, the less an answer of it can be trusted. */
static unsigned
badness(uint32_t state)
{
    switch (state) {
    case KVE_STATE_LIVE:
        return 0;
    case KVE_STATE_DEGRADED:
        return 1;
    case KVE_STATE_RECOVERING:
        return 2;
    case KVE_STATE_COLD:
        return 3;
    default:
        return 4;
    }
}

static void
put_group(struct kve_output *out, const struct kve_index_group *group)
{
    kve_output_map(out, 5);
    kve_output_key(out, "group");
    if (group->group.set)
        kve_output_i64(out, group->group.value);
    else
        kve_output_null(out);
    kve_output_key(out, "kind");
    kve_output_str(out,
        group->kind.data == NULL ? (struct kve_str){ "", 0 } : group->kind);
    kve_output_key(out, "block_size");
    if (group->block_size > 0)
        kve_output_u64(out, group->block_size);
    else
        kve_output_null(out);
    kve_output_key(out, "window");
    if (group->window > 0)
        kve_output_u64(out, group->window);
    else
        kve_output_null(out);
    kve_output_key(out, "ignored");
    kve_output_bool(out, group->ignored);
    kve_output_map_end(out);
}

static void
put_groups(struct workers *w, kve_instance instance)
{
    struct kve_index_group groups[32];
    size_t cap = sizeof(groups) / sizeof(groups[0]);
    size_t n = kve_index_groups(w->http->index, instance, groups, cap);

    kve_output_key(&w->out, "groups");
    kve_output_array(&w->out, 0);
    for (size_t i = 0; i < n && i < cap; i++)
        put_group(&w->out, &groups[i]);
    kve_output_array_end(&w->out);
}

static void
put_rank(struct workers *w, const struct rank *rank)
{
    struct kve_output *out = &w->out;

    kve_output_map(out, 0);
    kve_output_key(out, "rank");
    kve_output_u64(out, rank->info.rank);
    kve_v1_put_state(out, rank->row.state, rank->row.reason, rank->row.source);
    kve_v1_put_blocks(out, rank->info.blocks);
    kve_output_key(out, "waiting");
    kve_output_u64(out, rank->info.waiting);
    kve_output_key(out, "hash_only");
    kve_output_u64(out, rank->info.hash_only);
    kve_v1_put_sizes(out, rank->info.block_sizes, rank->info.n_block_sizes,
        sizeof(rank->info.block_sizes) / sizeof(rank->info.block_sizes[0]));
    put_groups(w, rank->info.instance);
    kve_output_map_end(out);
}

/* What the ranks have together. */
struct together {
    const struct rank *worst;
    uint64_t blocks[KVE_TIERS];
    uint32_t sizes[64];
    size_t n_sizes;
};

static void
add_sizes(struct together *sum, const struct kve_index_instance *info)
{
    const size_t most = sizeof(sum->sizes) / sizeof(sum->sizes[0]);
    size_t n = sizeof(info->block_sizes) / sizeof(info->block_sizes[0]);

    if (n > info->n_block_sizes)
        n = info->n_block_sizes;
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;

        while (k < sum->n_sizes && sum->sizes[k] != info->block_sizes[i])
            k++;
        if (k == sum->n_sizes && k < most)
            sum->sizes[sum->n_sizes++] = info->block_sizes[i];
    }
}

static void
add_up(struct together *sum, const struct rank *ranks, size_t n)
{
    *sum = (struct together){ .worst = ranks };
    for (size_t i = 0; i < n; i++) {
        if (badness(ranks[i].row.state) > badness(sum->worst->row.state))
            sum->worst = &ranks[i];
        for (unsigned t = 0; t < KVE_TIERS; t++)
            sum->blocks[t] += ranks[i].info.blocks[t];
        add_sizes(sum, &ranks[i].info);
    }
}

static void
put_sources(struct workers *w, const struct rank *rank)
{
    const struct source *s = find_source(w, rank->info.ns, rank->info.worker);
    const struct source *end = w->sources + w->n_sources;
    bool stale = false;

    kve_output_key(&w->out, "sources");
    kve_output_array(&w->out, 0);
    for (; s < end && s->ns == rank->info.ns &&
         strcmp(s->worker, rank->info.worker) == 0;
         s++) {
        kve_output_u64(&w->out, s->id);
        stale |= s->stale;
    }
    kve_output_array_end(&w->out);
    kve_output_key(&w->out, "stale");
    kve_output_bool(&w->out, stale);
}

static void
put_worker(struct workers *w, const struct source *names,
    const struct rank *ranks, size_t n)
{
    struct kve_output *out = &w->out;
    struct together sum;

    add_up(&sum, ranks, n);
    kve_output_map(out, 0);
    kve_output_key(out, "worker");
    kve_output_text(out, ranks->info.worker);
    kve_output_key(out, "model");
    kve_output_text(out, names->model);
    kve_output_key(out, "tenant");
    kve_output_text(out, names->tenant);
    kve_output_key(out, "state");
    kve_output_text(out, kve_state_str(sum.worst->row.state));
    kve_output_key(out, "reason");
    kve_output_text(out, kve_reason_str(sum.worst->row.reason));
    put_sources(w, ranks);
    kve_v1_put_blocks(out, sum.blocks);
    kve_v1_put_sizes(out, sum.sizes, sum.n_sizes, sum.n_sizes);
    kve_output_key(out, "ranks");
    kve_output_array(out, (uint32_t)n);
    for (size_t i = 0; i < n; i++)
        put_rank(w, &ranks[i]);
    kve_output_array_end(out);
    kve_output_map_end(out);
}

static bool
is_asked(const struct workers *w, const struct source *names, kve_namespace ns)
{
    return names < w->sources + w->n_sources && names->ns == ns &&
        (w->filter.model == NULL ||
            strcmp(w->filter.model, names->model) == 0) &&
        (w->filter.tenant == NULL ||
            strcmp(w->filter.tenant, names->tenant) == 0);
}

static void
put_workers(struct workers *w)
{
    size_t n;

    for (size_t i = 0; i < w->n_ranks; i += n) {
        const struct rank *rank = &w->ranks[i];
        const struct source *names = find_source(w, rank->info.ns, "");

        n = 1;
        while (i + n < w->n_ranks && w->ranks[i + n].info.ns == rank->info.ns &&
            strcmp(w->ranks[i + n].info.worker, rank->info.worker) == 0)
            n++;
        if (is_asked(w, names, rank->info.ns))
            put_worker(w, names, rank, n);
    }
}

void
kve_v1_workers(struct kve_http *http, struct kve_http_request *req)
{
    struct workers w = { .http = http, .filter = kve_v1_filter(req) };

    kve_v1_begin(req, &w.out);
    kve_output_map(&w.out, 1);
    kve_output_key(&w.out, "workers");
    kve_output_array(&w.out, 0);
    kve_ingest_read_begin(http->ingest);
    gather_sources(&w);
    gather_ranks(&w);
    if (!w.nomem)
        put_workers(&w);
    kve_ingest_read_end(http->ingest);
    kve_output_array_end(&w.out);
    kve_output_map_end(&w.out);
    if (w.nomem)
        w.out.status = KVE_E_NOMEM;
    kve_v1_end(req, &w.out);
    kve_mem_free(w.sources);
    kve_mem_free(w.instances);
    kve_mem_free(w.ranks);
}
