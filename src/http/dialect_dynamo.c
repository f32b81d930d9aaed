/*
 * dialect_dynamo.c - Dynamo's questions about workers, and its small ones.
 *
 * One worker id belongs to one model and routing group, as Dynamo has it; so a
 * registration is compared with what is there, and added, under a lock. Others
 * who add workers (files, /v1) are not bound by that.
 */
#include "http/dialect.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what sources say ---- */

/* What is there that a registration may not be added beside. */
struct clash {
    const struct kve_ingest_spec *spec;
    bool same_rank;
    bool elsewhere; /* in model and tenant, copied */
    bool nomem;
    char *model;
    char *tenant;
    uint32_t block_size; /* of its namespace, where it differs */
};

static const char *
model_of(const struct kve_ingest_spec *spec)
{
    return spec->model != NULL ? spec->model : "";
}

static const char *
tenant_of(const struct kve_ingest_spec *spec)
{
    return spec->tenant != NULL ? spec->tenant : "default";
}

static bool
see_clash(void *ctx, const struct kve_ingest_source *source)
{
    struct clash *clash = ctx;
    const struct kve_ingest_spec *spec = clash->spec;
    bool same_space = strcmp(source->model, model_of(spec)) == 0 &&
        strcmp(source->tenant, tenant_of(spec)) == 0;

    /* What only a state file knows may be claimed. */
    if (same_space && source->block_size > 0 && spec->block_size > 0 &&
        source->block_size != spec->block_size && source->claimed)
        clash->block_size = source->block_size;
    if (strcmp(source->worker, spec->worker) != 0 || !source->claimed)
        return true;
    if (same_space) {
        clash->same_rank |= source->rank == spec->rank;
    } else if (!clash->elsewhere) {
        clash->elsewhere = true;
        clash->model = kve_mem_strdup(source->model);
        clash->tenant = kve_mem_strdup(source->tenant);
        clash->nomem = clash->model == NULL || clash->tenant == NULL;
    }
    return true;
}

/* ---- /register ---- */

static void
fail_add(struct kve_http_request *req, const struct kve_ingest_spec *spec,
    kve_status status, const struct kve_error *err)
{
    switch (status) {
    case KVE_E_IN_USE:
        kve_dialect_error(req, 409, "instance %s dp_rank %u already registered",
            spec->worker, spec->rank);
        break;
    case KVE_E_INVAL:
    case KVE_E_UNSUPPORTED:
        kve_dialect_error(req, 400, "invalid ZMQ endpoint `%s`: %s",
            spec->source.endpoint, err->detail);
        break;
    default:
        req->retry_after = 1;
        kve_dialect_error(req, 503, "%s", err->detail);
        break;
    }
}

/* Under the lock of registrations. */
static void
add_worker(struct kve_http *http, struct kve_http_request *req,
    const struct kve_ingest_spec *spec)
{
    struct clash clash = { spec, false, false, false, NULL, NULL, 0 };
    struct kve_error err;
    kve_ingest_id id;
    kve_status status;

    kve_ingest_read_begin(http->ingest);
    (void)kve_ingest_sources(http->ingest, NULL, see_clash, &clash);
    kve_ingest_read_end(http->ingest);
    if (clash.nomem) {
        kve_dialect_error(req, 503, "no memory");
    } else if (clash.same_rank) {
        kve_dialect_error(req, 409, "instance %s dp_rank %u already registered",
            spec->worker, spec->rank);
    } else if (clash.elsewhere) {
        kve_dialect_error(req, 409,
            "instance %s is already registered for model=%s routing_group=%s",
            spec->worker, clash.model, clash.tenant);
    } else if (clash.block_size != 0) {
        kve_dialect_error(req, 409,
            "block_size mismatch for model=%s routing_group=%s: existing=%u, "
            "requested=%u",
            model_of(spec), tenant_of(spec), clash.block_size,
            spec->block_size);
    } else {
        status = kve_ingest_add(http->ingest, spec, &id, &err);
        if (status == KVE_OK)
            kve_dialect_ok(req, 201);
        else
            fail_add(req, spec, status, &err);
    }
    kve_mem_free(clash.model);
    kve_mem_free(clash.tenant);
}

void
kve_dynamo_register(struct kve_http *http, struct kve_http_request *req)
{
    struct kve_registration reg;
    struct kve_registration_error err;

    if (kve_dialect_no_json(req))
        return;
    if (!kve_registration_read(&reg, req, KVE_SPELLING_DYNAMO, &err)) {
        if (err.json)
            kve_dialect_error(req, err.status, "%s", err.text);
        else
            kve_dialect_bad_body(req, err.status == 400, err.text);
        return;
    }
    (void)pthread_mutex_lock(&http->peers->registering);
    add_worker(http, req, &reg.spec);
    (void)pthread_mutex_unlock(&http->peers->registering);
    kve_registration_release(&reg);
}

/* ---- small bodies ---- */

/* Read one; false: it was answered with an error. */
static bool
read_small(struct kve_http_request *req, struct kve_body *body,
    const struct kve_body_field *fields, size_t n)
{
    struct kve_body_error err;

    if (kve_dialect_no_json(req))
        return false;
    switch (kve_body_read(body, &req->scratch->input, req->body, req->body_len,
        fields, n, false, &err)) {
    case KVE_BODY_FINE:
        return true;
    case KVE_BODY_NOMEM:
        req->retry_after = 1;
        kve_dialect_error(req, 503, "no memory for the body");
        return false;
    default:
        kve_dialect_bad_body(req, err.fault == KVE_BODY_BROKEN, err.text);
        return false;
    }
}

/* ---- one worker ---- */

/* Looking for a worker; what is found is copied. */
struct search {
    char worker[24];
    const char *model;  /* NULL: any */
    const char *tenant; /* NULL: any, "default" before others */
    bool has_rank;
    uint32_t rank;
    bool known; /* somewhere; the first place is in model and tenant until it
                   is found where it should be */
    bool found;
    bool nomem;
    char *found_model;
    char *found_tenant;
    kve_ingest_id id; /* of the rank, in any place that fits */
};

static void
search_init(struct search *search, uint64_t id)
{
    memset(search, 0, sizeof(*search));
    snprintf(search->worker, sizeof(search->worker), "%" PRIu64, id);
}

static void
keep_place(struct search *search, const struct kve_ingest_source *source)
{
    char *model = kve_mem_strdup(source->model);
    char *tenant = kve_mem_strdup(source->tenant);

    if (model == NULL || tenant == NULL) {
        kve_mem_free(model);
        kve_mem_free(tenant);
        search->nomem = true;
        return;
    }
    kve_mem_free(search->found_model);
    kve_mem_free(search->found_tenant);
    search->found_model = model;
    search->found_tenant = tenant;
}

static bool
see_worker(void *ctx, const struct kve_ingest_source *source)
{
    struct search *search = ctx;
    bool fits;

    if (strcmp(source->worker, search->worker) != 0)
        return true;
    fits =
        (search->model == NULL || strcmp(source->model, search->model) == 0) &&
        (search->tenant == NULL || strcmp(source->tenant, search->tenant) == 0);
    if (!search->known || (fits && !search->found) ||
        (fits && strcmp(source->tenant, "default") == 0 &&
            strcmp(search->found_tenant, "default") != 0)) {
        search->id = 0;
        keep_place(search, source);
    }
    search->known = true;
    search->found |= fits;
    if (fits && !search->nomem && source->rank == search->rank &&
        strcmp(source->model, search->found_model) == 0 &&
        strcmp(source->tenant, search->found_tenant) == 0)
        search->id = source->id;
    return !search->nomem;
}

/* Find a worker, and its rank where one is named. false: it was answered with
 * an error. The caller frees what was found in any case. */
static bool
find_worker(
    struct kve_http *http, struct kve_http_request *req, struct search *search)
{
    kve_ingest_read_begin(http->ingest);
    (void)kve_ingest_sources(http->ingest, NULL, see_worker, search);
    kve_ingest_read_end(http->ingest);
    if (search->nomem)
        kve_dialect_error(req, 503, "no memory");
    else if (!search->known)
        kve_dialect_error(req, 404, "instance %s not found", search->worker);
    else if (!search->found)
        kve_dialect_error(req, 404,
            "instance %s is registered for model=%s routing_group=%s",
            search->worker, search->found_model, search->found_tenant);
    else if (search->has_rank && search->id == 0)
        kve_dialect_error(req, 404, "instance %s dp_rank %u not found",
            search->worker, search->rank);
    else
        return true;
    return false;
}

static void
search_release(struct search *search)
{
    kve_mem_free(search->found_model);
    kve_mem_free(search->found_tenant);
}

void
kve_dynamo_unregister(struct kve_http *http, struct kve_http_request *req)
{
    static const struct kve_body_field fields[] = {
        { "instance_id", KVE_BODY_U64, true },
        { "model_name", KVE_BODY_TEXT, true },
        { "routing_group", KVE_BODY_TEXT, false },
        { "dp_rank", KVE_BODY_U32, false },
        { "tenant_id", KVE_BODY_TEXT, false },
    };
    struct search search;
    struct kve_body body;
    kve_status status;

    if (!read_small(req, &body, fields, sizeof(fields) / sizeof(fields[0])))
        return;
    search_init(&search, body.value[0].number);
    search.model = body.value[1].text;
    search.tenant = body.value[2].len > 0 ? body.value[2].text : NULL;
    search.has_rank = body.value[3].set;
    search.rank = (uint32_t)body.value[3].number;
    if (find_worker(http, req, &search)) {
        status = search.has_rank
            ? kve_ingest_remove(http->ingest, search.id, NULL)
            : kve_ingest_remove_worker(http->ingest, search.found_model,
                  search.found_tenant, search.worker, NULL, NULL);
        if (status == KVE_OK)
            kve_dialect_ok(req, 200);
        else
            kve_dialect_error(req, 404, "instance %s not found", search.worker);
    }
    search_release(&search);
    kve_body_release(&body);
}

/* ---- /test/... ---- */

static void
pause_or_resume(
    struct kve_http *http, struct kve_http_request *req, bool resume)
{
    static const struct kve_body_field fields[] = {
        { "instance_id", KVE_BODY_U64, true },
        { "dp_rank", KVE_BODY_U32, false },
    };
    struct search search;
    struct kve_body body;
    struct kve_error err;
    kve_status status;

    if (!read_small(req, &body, fields, sizeof(fields) / sizeof(fields[0])))
        return;
    search_init(&search, body.value[0].number);
    search.has_rank = true;
    search.rank = (uint32_t)body.value[1].number;
    if (find_worker(http, req, &search)) {
        status = (resume ? kve_ingest_resume : kve_ingest_pause)(
            http->ingest, search.id, &err);
        if (status == KVE_OK) {
            kve_dialect_ok(req, 200);
        } else if (status == KVE_E_IN_USE) {
            kve_dialect_error(req, 409,
                "instance %s dp_rank %u cannot be %s from status %s",
                search.worker, search.rank, resume ? "resumed" : "paused",
                resume ? "active" : "paused");
        } else if (status == KVE_E_NOT_FOUND) {
            kve_dialect_error(req, 404, "instance %s not found", search.worker);
        } else {
            /* It stays paused, and may be asked for again. */
            kve_dialect_error(req, 503, "%s", err.detail);
            req->retry_after = 1;
        }
    }
    search_release(&search);
    kve_body_release(&body);
}

void
kve_dynamo_pause(struct kve_http *http, struct kve_http_request *req)
{
    pause_or_resume(http, req, false);
}

void
kve_dynamo_resume(struct kve_http *http, struct kve_http_request *req)
{
    pause_or_resume(http, req, true);
}

/* ---- /workers ---- */

/* A listener: one rank of a worker. Borrowed from the read section. */
struct listener {
    kve_namespace ns;
    const char *worker;
    const char *model;
    const char *tenant;
    const char *endpoint;
    const char *last_error;
    uint32_t rank;
    uint32_t block_size;
    bool paused;
    bool failed;
};

struct listeners {
    const char *model;
    const char *tenant;
    struct listener *list;
    size_t n;
    size_t cap;
    bool nomem;
};

static bool
see_listener(void *ctx, const struct kve_ingest_source *source)
{
    struct listeners *all = ctx;
    struct listener *to;

    if ((all->model != NULL && strcmp(all->model, source->model) != 0) ||
        (all->tenant != NULL && strcmp(all->tenant, source->tenant) != 0))
        return true;
    if (all->n == all->cap) {
        size_t cap = all->cap == 0 ? 64 : 2 * all->cap;
        void *grown = kve_mem_array(all->list, cap, sizeof(all->list[0]));

        if (grown == NULL) {
            all->nomem = true;
            return false;
        }
        all->list = grown;
        all->cap = cap;
    }
    to = &all->list[all->n++];
    to->ns = source->ns;
    to->worker = source->worker;
    to->model = source->model;
    to->tenant = source->tenant;
    to->endpoint = source->endpoint;
    to->last_error = source->last_error;
    to->rank = source->rank;
    to->block_size = source->block_size;
    to->paused = source->paused;
    to->failed = source->state == KVE_STATE_GONE;
    return true;
}

static int
by_worker(const void *a, const void *b)
{
    const struct listener *one = a;
    const struct listener *two = b;
    int order;

    if (one->ns != two->ns)
        return one->ns < two->ns ? -1 : 1;
    order = strcmp(one->worker, two->worker);
    if (order != 0)
        return order;
    return one->rank < two->rank ? -1 : one->rank > two->rank;
}

static const char *
status_of(const struct listener *one)
{
    return one->paused ? "paused" : one->failed ? "failed" : "active";
}

/* Failed if any is, else active if any is, else paused. */
static const char *
status_of_all(const struct listener *ranks, size_t n)
{
    bool active = false;

    for (size_t i = 0; i < n; i++) {
        if (ranks[i].failed && !ranks[i].paused)
            return "failed";
        active |= !ranks[i].paused;
    }
    return active ? "active" : "paused";
}

static void
put_worker(struct kve_output *out, const struct listener *ranks, size_t n)
{
    uint32_t block_size = 0;

    for (size_t i = 0; i < n && block_size == 0; i++)
        block_size = ranks[i].block_size;
    kve_output_map(out, 8);
    kve_output_key(out, "instance_id");
    kve_dialect_put_id(out, ranks->worker);
    kve_output_key(out, "source");
    kve_output_text(out, "zmq");
    kve_output_key(out, "status");
    kve_output_text(out, status_of_all(ranks, n));
    kve_output_key(out, "model_name");
    kve_output_text(out, ranks->model);
    kve_output_key(out, "routing_group");
    kve_output_text(out, ranks->tenant);
    kve_output_key(out, "block_size");
    kve_output_u64(out, block_size);
    kve_output_key(out, "endpoints");
    kve_output_map(out, (uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        kve_output_key_u64(out, ranks[i].rank);
        kve_output_text(out, ranks[i].endpoint);
    }
    kve_output_map_end(out);
    kve_output_key(out, "listeners");
    kve_output_map(out, (uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        bool error = ranks[i].last_error[0] != '\0';

        kve_output_key_u64(out, ranks[i].rank);
        kve_output_map(out, error ? 3 : 2);
        kve_output_key(out, "endpoint");
        kve_output_text(out, ranks[i].endpoint);
        kve_output_key(out, "status");
        kve_output_text(out, status_of(&ranks[i]));
        if (error) {
            kve_output_key(out, "last_error");
            kve_output_text(out, ranks[i].last_error);
        }
        kve_output_map_end(out);
    }
    kve_output_map_end(out);
    kve_output_map_end(out);
}

/* Ranks of one worker stand together from *at on; moves it behind them. */
static size_t
ranks_at(const struct listeners *all, size_t at)
{
    size_t end = at + 1;

    while (end < all->n && all->list[end].ns == all->list[at].ns &&
        strcmp(all->list[end].worker, all->list[at].worker) == 0)
        end++;
    return end;
}

static void
put_workers(struct kve_output *out, struct listeners *all)
{
    uint32_t n = 0;

    if (all->n > 1)
        qsort(all->list, all->n, sizeof(all->list[0]), by_worker);
    for (size_t at = 0; at < all->n; at = ranks_at(all, at))
        n++;
    kve_output_array(out, n);
    for (size_t at = 0; at < all->n;) {
        size_t end = ranks_at(all, at);

        put_worker(out, &all->list[at], end - at);
        at = end;
    }
    kve_output_array_end(out);
}

void
kve_dynamo_workers(struct kve_http *http, struct kve_http_request *req)
{
    struct listeners all = { kve_http_argument(req, "model_name"),
        kve_http_argument(req, "routing_group"), NULL, 0, 0, false };
    struct kve_output out;

    kve_dialect_begin(req, &out, false);
    kve_ingest_read_begin(http->ingest);
    (void)kve_ingest_sources(http->ingest, NULL, see_listener, &all);
    if (all.nomem)
        out.status = KVE_E_NOMEM;
    else
        put_workers(&out, &all);
    kve_ingest_read_end(http->ingest);
    kve_mem_free(all.list);
    kve_dialect_end(req, &out);
}

/* ---- peers ---- */

static bool
read_url(struct kve_http_request *req, struct kve_body *body)
{
    static const struct kve_body_field fields[] = { { "url", KVE_BODY_TEXT,
        true } };

    return read_small(req, body, fields, 1);
}

/* Its place in the list, or n. */
static size_t
peer_at(const struct kve_http_peers *peers, const char *url)
{
    size_t i = 0;

    while (i < peers->n && strcmp(peers->urls[i], url) != 0)
        i++;
    return i;
}

static bool
peer_add(struct kve_http_peers *peers, const char *url)
{
    char *copy = kve_mem_strdup(url);
    char **grown =
        kve_mem_array(peers->urls, peers->n + 1, sizeof(peers->urls[0]));

    if (grown != NULL)
        peers->urls = grown;
    if (copy == NULL || grown == NULL) {
        kve_mem_free(copy);
        return false;
    }
    peers->urls[peers->n++] = copy;
    return true;
}

void
kve_dynamo_register_peer(struct kve_http *http, struct kve_http_request *req)
{
    struct kve_http_peers *peers = http->peers;
    struct kve_body body;

    if (!read_url(req, &body))
        return;
    (void)pthread_mutex_lock(&peers->lock);
    if (peer_at(peers, body.value[0].text) < peers->n)
        kve_dialect_ok(req, 201);
    else if (peers->n >= KVE_MAX_PEERS)
        kve_dialect_error(req, 409,
            "there are %u peers already, which is the limit; deregister one",
            KVE_MAX_PEERS);
    else if (peer_add(peers, body.value[0].text))
        kve_dialect_ok(req, 201);
    else
        kve_dialect_error(req, 503, "no memory for a peer");
    (void)pthread_mutex_unlock(&peers->lock);
    kve_body_release(&body);
}

void
kve_dynamo_deregister_peer(struct kve_http *http, struct kve_http_request *req)
{
    struct kve_http_peers *peers = http->peers;
    struct kve_body body;
    size_t at;

    if (!read_url(req, &body))
        return;
    (void)pthread_mutex_lock(&peers->lock);
    at = peer_at(peers, body.value[0].text);
    if (at < peers->n) {
        kve_mem_free(peers->urls[at]);
        peers->n--;
        memmove(&peers->urls[at], &peers->urls[at + 1],
            (peers->n - at) * sizeof(peers->urls[0]));
        kve_dialect_ok(req, 200);
    } else {
        kve_dialect_error(req, 404, "peer not found");
    }
    (void)pthread_mutex_unlock(&peers->lock);
    kve_body_release(&body);
}

void
kve_dynamo_peers(struct kve_http *http, struct kve_http_request *req)
{
    struct kve_http_peers *peers = http->peers;
    struct kve_output out;

    kve_dialect_begin(req, &out, false);
    (void)pthread_mutex_lock(&peers->lock);
    kve_output_array(&out, (uint32_t)peers->n);
    for (size_t i = 0; i < peers->n; i++)
        kve_output_text(&out, peers->urls[i]);
    kve_output_array_end(&out);
    (void)pthread_mutex_unlock(&peers->lock);
    kve_dialect_end(req, &out);
}

/* ---- logs ---- */

void
kve_dynamo_reopen_logs(struct kve_http *http, struct kve_http_request *req)
{
    if (http->opts.reopen_logs == NULL ||
        http->opts.reopen_logs(http->opts.reopen_ctx))
        kve_dialect_ok(req, 200);
    else
        kve_dialect_error(req, 500, "the log could not be opened again");
}
