/*
 * v1_sources.c - sources: listed, looked at, paused, cleared, removed.
 */
#include "http/v1.h"

#include "base/alloc.h"

#include <jansson.h>
#include <string.h>

/* ---- one source as JSON ---- */

static void
put_time(struct kve_output *out, const char *name, double time)
{
    kve_output_key(out, name);
    if (time > 0)
        kve_output_double(out, time);
    else
        kve_output_null(out);
}

static void
put_flag(struct kve_output *out, const char *name, bool value)
{
    kve_output_key(out, name);
    kve_output_bool(out, value);
}

static void
put_text(struct kve_output *out, const char *name, const char *text)
{
    kve_output_key(out, name);
    kve_output_text(out, text);
}

static void
put_optional(struct kve_output *out, const char *name, const char *text)
{
    kve_output_key(out, name);
    kve_v1_put_text_or_null(out, text);
}

static void
put_number_or_null(
    struct kve_output *out, const char *name, bool there, uint64_t number)
{
    kve_output_key(out, name);
    if (there)
        kve_output_u64(out, number);
    else
        kve_output_null(out);
}

static void
put_counters(struct kve_http *http, struct kve_output *out, kve_ingest_id id)
{
    static const unsigned counters[] = {
#define X(name, number, text, help) number,
        KVE_SUB_COUNTER_MAP(X) KVE_INDEX_COUNTER_MAP(X)
            KVE_INGEST_COUNTER_MAP(X)
#undef X
    };
    const size_t n = sizeof(counters) / sizeof(counters[0]);

    kve_output_key(out, "counters");
    kve_output_map(out, (uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        kve_output_key(out, kve_counter_str(counters[i]));
        kve_output_u64(out, kve_ingest_counter(http->ingest, id, counters[i]));
    }
    kve_output_map_end(out);
}

static void
put_who(struct kve_output *out, const struct kve_ingest_source *s)
{
    kve_output_key(out, "id");
    kve_output_u64(out, s->id);
    put_text(out, "model", s->model);
    put_text(out, "tenant", s->tenant);
    put_text(out, "worker", s->worker);
    kve_output_key(out, "rank");
    kve_output_u64(out, s->rank);
    put_text(out, "origin", kve_origin_str(s->origin));
    put_text(out, "found_in", s->found_in);
    put_text(out, "endpoint", s->endpoint);
    put_optional(out, "replay_endpoint", s->replay_endpoint);
    put_optional(out, "snapshot_endpoint", s->snapshot_endpoint);
    put_text(out, "topic", s->topic);
    put_text(out, "engine", s->engine);
    put_text(out, "lora_name", s->lora_name);
    put_text(out, "additional_salt", s->additional_salt);
    put_number_or_null(out, "parent", s->parent != 0, s->parent);
}

static void
put_missing(struct kve_output *out, const struct kve_ingest_source *s)
{
    kve_output_key(out, "missing");
    if (!s->has_missing) {
        kve_output_null(out);
        return;
    }
    kve_output_map(out, 2);
    kve_output_key(out, "first");
    kve_output_u64(out, s->missing_first);
    kve_output_key(out, "last");
    kve_output_u64(out, s->missing_last);
    kve_output_map_end(out);
}

static void
put_how(struct kve_output *out, const struct kve_ingest_source *s)
{
    put_flag(out, "paused", s->paused);
    put_flag(out, "claimed", s->claimed);
    put_flag(out, "restored", s->restored);
    put_text(out, "state", kve_state_str(s->state));
    put_text(out, "reason", kve_reason_str(s->reason));
    put_flag(out, "incomplete", s->incomplete);
    kve_output_key(out, "state_since");
    kve_output_double(out, s->state_since);
    kve_output_key(out, "added_at");
    kve_output_double(out, s->added_at);
    put_time(out, "confirmed_at", s->confirmed_at);
    put_time(out, "stale_since", s->stale_since);
    put_time(out, "last_batch_at", s->last_batch_at);
    put_flag(out, "connected", s->connected);
    put_flag(out, "tail_confirmed", s->tail_confirmed);
    put_number_or_null(out, "last_number", s->started, s->last_number);
    put_missing(out, s);
    put_flag(out, "unknown_events", s->unknown_events);
    put_optional(out, "last_error", s->last_error);
}

/* What the index has of it; of a socket of many that is nothing. */
static void
put_held(struct kve_http *http, struct kve_output *out,
    const struct kve_ingest_source *s)
{
    struct kve_index_instance info = { 0 };

    (void)kve_index_get_instance(http->index, s->instance, &info);
    put_number_or_null(out, "block_size", s->block_size > 0, s->block_size);
    put_flag(out, "block_size_differs", s->block_size_differs);
    kve_v1_put_sizes(out, info.block_sizes, info.n_block_sizes,
        sizeof(info.block_sizes) / sizeof(info.block_sizes[0]));
    kve_v1_put_blocks(out, info.blocks);
    kve_output_key(out, "waiting");
    kve_output_u64(out, info.waiting);
    kve_output_key(out, "hash_only");
    kve_output_u64(out, info.hash_only);
}

void
kve_v1_put_source(struct kve_http *http, struct kve_output *out,
    const struct kve_ingest_source *source)
{
    kve_output_map(out, 0);
    put_who(out, source);
    put_held(http, out, source);
    put_how(out, source);
    put_counters(http, out, source->id);
    kve_output_map_end(out);
}

void
kve_v1_answer_source(
    struct kve_http *http, struct kve_http_request *req, kve_ingest_id id)
{
    struct kve_ingest_source source = { .struct_size = sizeof(source) };
    struct kve_output out;
    kve_status status;

    kve_v1_begin(req, &out);
    kve_ingest_read_begin(http->ingest);
    status = kve_ingest_source_of(http->ingest, id, &source);
    if (status == KVE_OK)
        kve_v1_put_source(http, &out, &source);
    kve_ingest_read_end(http->ingest);
    if (status != KVE_OK)
        kve_http_fail(
            req, 404, "there is no source %llu", (unsigned long long)id);
    else
        kve_v1_end(req, &out);
}

/* ---- the list ---- */

struct list {
    struct kve_http *http;
    struct kve_output out;
};

static bool
list_one(void *ctx, const struct kve_ingest_source *source)
{
    struct list *list = ctx;

    kve_v1_put_source(list->http, &list->out, source);
    return list->out.status == KVE_OK;
}

void
kve_v1_sources(struct kve_http *http, struct kve_http_request *req)
{
    struct kve_ingest_filter filter = kve_v1_filter(req);
    struct list list = { .http = http };

    kve_v1_begin(req, &list.out);
    kve_output_map(&list.out, 1);
    kve_output_key(&list.out, "sources");
    kve_output_array(&list.out, 0);
    kve_ingest_read_begin(http->ingest);
    kve_ingest_sources(http->ingest, &filter, list_one, &list);
    kve_ingest_read_end(http->ingest);
    kve_output_array_end(&list.out);
    kve_output_map_end(&list.out);
    kve_v1_end(req, &list.out);
}

/* ---- what is done to one ---- */

static void
put_removed(struct kve_http_request *req, size_t n)
{
    struct kve_output out;

    kve_v1_begin(req, &out);
    kve_output_map(&out, 1);
    kve_output_key(&out, "removed");
    kve_output_u64(&out, n);
    kve_output_map_end(&out);
    kve_v1_end(req, &out);
}

static void
remove_source(
    struct kve_http *http, struct kve_http_request *req, kve_ingest_id id)
{
    struct kve_error err;
    kve_status status = kve_ingest_remove(http->ingest, id, &err);

    if (status == KVE_OK)
        put_removed(req, 1);
    else
        kve_v1_fail(req, status, &err);
}

static void
clear_source(
    struct kve_http *http, struct kve_http_request *req, kve_ingest_id id)
{
    static const char *const names[] = { "tiers", NULL };
    struct kve_error err;
    json_t *object = NULL;
    uint32_t tiers = 0;
    kve_status status;

    if (!kve_v1_object(req, true, &object))
        return;
    if (kve_v1_only(req, object, names) && kve_v1_tiers(req, object, &tiers)) {
        status = kve_ingest_clear(http->ingest, id, tiers, &err);
        if (status == KVE_OK)
            kve_v1_answer_source(http, req, id);
        else
            kve_v1_fail(req, status, &err);
    }
    json_decref(object);
}

static void
pause_source(struct kve_http *http, struct kve_http_request *req,
    kve_ingest_id id, bool pause)
{
    struct kve_error err;
    kve_status status = pause ? kve_ingest_pause(http->ingest, id, &err)
                              : kve_ingest_resume(http->ingest, id, &err);

    if (status == KVE_OK)
        kve_v1_answer_source(http, req, id);
    else
        kve_v1_fail(req, status, &err);
}

static void
do_with_source(struct kve_http *http, struct kve_http_request *req,
    kve_ingest_id id, const char *verb)
{
    bool post = req->method == KVE_METHOD_POST;

    if (strcmp(verb, "pause") != 0 && strcmp(verb, "resume") != 0 &&
        strcmp(verb, "clear") != 0)
        kve_http_fail(
            req, 404, "sources know pause, resume and clear, which are POSTed");
    else if (!post)
        kve_v1_wrong_method(req, "POST");
    else if (verb[0] == 'c')
        clear_source(http, req, id);
    else
        pause_source(http, req, id, verb[0] == 'p');
}

void
kve_v1_source(struct kve_http *http, struct kve_http_request *req)
{
    const char *slash = strchr(req->path_rest, '/');
    size_t len = slash == NULL ? strlen(req->path_rest)
                               : (size_t)(slash - req->path_rest);
    uint64_t id;

    if (!kve_v1_number(req->path_rest, len, UINT64_MAX, &id)) {
        kve_http_fail(req, 404, "sources are named by a number, their id");
        return;
    }
    if (slash != NULL)
        do_with_source(http, req, id, slash + 1);
    else if (req->method == KVE_METHOD_DELETE)
        remove_source(http, req, id);
    else if (req->method == KVE_METHOD_POST)
        kve_v1_wrong_method(req, "GET, HEAD, DELETE");
    else
        kve_v1_answer_source(http, req, id);
}

/* ---- what is done to many ---- */

void
kve_v1_worker(struct kve_http *http, struct kve_http_request *req)
{
    const char *model = kve_http_argument(req, "model");
    const char *tenant = kve_http_argument(req, "tenant");
    struct kve_error err;
    size_t n = 0;
    kve_status status =
        kve_ingest_remove_worker(http->ingest, model == NULL ? "" : model,
            tenant == NULL ? "default" : tenant, req->path_rest, &n, &err);

    if (status == KVE_OK)
        put_removed(req, n);
    else
        kve_v1_fail(req, status, &err);
}

/* Ids of sources, gathered in a read section, in which nothing is changed. */
struct ids {
    kve_ingest_id *ids;
    size_t n;
    size_t cap;
};

static bool
gather_id(void *ctx, const struct kve_ingest_source *source)
{
    struct ids *ids = ctx;

    if (ids->n < ids->cap)
        ids->ids[ids->n] = source->id;
    ids->n++;
    return true;
}

/* false: no memory. The caller frees ids->ids. */
static bool
gather_ids(
    kve_ingest *ingest, const struct kve_ingest_filter *filter, struct ids *ids)
{
    kve_ingest_id *grown;

    *ids = (struct ids){ NULL, 0, 0 };
    for (;;) {
        ids->n = 0;
        kve_ingest_read_begin(ingest);
        kve_ingest_sources(ingest, filter, gather_id, ids);
        kve_ingest_read_end(ingest);
        if (ids->n <= ids->cap)
            return true;
        grown = kve_mem_array(ids->ids, ids->n + 16, sizeof(*grown));
        if (grown == NULL)
            return false;
        ids->ids = grown;
        ids->cap = ids->n + 16;
    }
}

static void
clear_many(struct kve_http *http, struct kve_http_request *req,
    const struct kve_ingest_filter *filter, uint32_t tiers)
{
    struct kve_output out;
    struct ids ids;
    size_t cleared = 0;

    if (!gather_ids(http->ingest, filter, &ids)) {
        kve_mem_free(ids.ids);
        kve_http_fail(req, 503, "no memory for the list of sources");
        return;
    }
    for (size_t i = 0; i < ids.n; i++)
        cleared +=
            kve_ingest_clear(http->ingest, ids.ids[i], tiers, NULL) == KVE_OK;
    kve_mem_free(ids.ids);
    kve_v1_begin(req, &out);
    kve_output_map(&out, 1);
    kve_output_key(&out, "cleared");
    kve_output_u64(&out, cleared);
    kve_output_map_end(&out);
    kve_v1_end(req, &out);
}

void
kve_v1_clear(struct kve_http *http, struct kve_http_request *req)
{
    static const char *const names[] = { "model", "tenant", "worker", "tiers",
        NULL };
    struct kve_ingest_filter filter = { .struct_size = sizeof(filter) };
    json_t *object = NULL;
    uint32_t tiers = 0;

    if (!kve_v1_object(req, false, &object))
        return;
    if (kve_v1_only(req, object, names) &&
        kve_v1_text(req, object, "model", &filter.model) &&
        kve_v1_text(req, object, "tenant", &filter.tenant) &&
        kve_v1_text(req, object, "worker", &filter.worker) &&
        kve_v1_tiers(req, object, &tiers))
        clear_many(http, req, &filter, tiers);
    json_decref(object);
}
