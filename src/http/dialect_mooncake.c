/*
 * dialect_mooncake.c - Mooncake's questions about services.
 *
 * A service is (instance, tenant, rank), whatever its model; where one is
 * registered again nothing happens, and that is a success.
 *
 * Mooncake's own service takes JSON of any Content-Type. What changes something
 * here must say that it is JSON: a page in somebody's browser can send the
 * other types to this machine without being asked.
 */
#include "http/dialect.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

/* The service that is looked for. */
struct service {
    const char *worker;
    const char *tenant;
    uint32_t rank;
    kve_ingest_id id; /* 0: there is none */
    char *model;      /* copied where registering; NULL: no memory */
    bool registering; /* what only a state file knows may be claimed */
};

static bool
see_service(void *ctx, const struct kve_ingest_source *source)
{
    struct service *service = ctx;

    if (source->rank != service->rank ||
        (service->registering && !source->claimed) ||
        strcmp(source->worker, service->worker) != 0 ||
        strcmp(source->tenant, service->tenant) != 0)
        return true;
    service->id = source->id;
    if (service->registering)
        service->model = kve_mem_strdup(source->model);
    return false;
}

static void
find_service(struct kve_http *http, struct service *service)
{
    service->id = 0;
    kve_ingest_read_begin(http->ingest);
    (void)kve_ingest_sources(http->ingest, NULL, see_service, service);
    kve_ingest_read_end(http->ingest);
}

/* ---- /register ---- */

static void
fail_body(struct kve_http_request *req, unsigned status, const char *words)
{
    if (status == 503)
        kve_dialect_text(req, status, "%s", words);
    else if (strncmp(words, "missing", 7) == 0)
        kve_dialect_text(req, 400, "Invalid JSON: %s", words);
    else
        kve_dialect_text(req, 400, "Invalid JSON");
}

static void
registered(struct kve_http_request *req, const char *worker)
{
    struct kve_output out;

    kve_dialect_begin(req, &out, false);
    kve_output_map(&out, 2);
    kve_output_key(&out, "status");
    kve_output_text(&out, "registered successfully");
    kve_output_key(&out, "instance_id");
    kve_output_text(&out, worker);
    kve_output_map_end(&out);
    kve_dialect_end(req, &out);
}

/* Under the lock of registrations. */
static void
add_service(struct kve_http *http, struct kve_http_request *req,
    const struct kve_ingest_spec *spec)
{
    const char *model = spec->model != NULL ? spec->model : "";
    struct service service = { spec->worker,
        spec->tenant != NULL ? spec->tenant : "default", spec->rank, 0, NULL,
        true };
    struct kve_error err;
    kve_ingest_id id;
    kve_status status;

    find_service(http, &service);
    if (service.id != 0 && service.model == NULL) {
        kve_dialect_text(req, 503, "no memory");
        return;
    }
    if (service.id != 0 && strcmp(service.model, model) != 0) {
        kve_dialect_text(req, 409,
            "service already registered: %s|%s|%u is of model %s",
            service.worker, service.tenant, service.rank, service.model);
    } else if (service.id != 0) {
        registered(req, spec->worker);
    } else {
        status = kve_ingest_add(http->ingest, spec, &id, &err);
        if (status == KVE_OK || status == KVE_E_IN_USE)
            registered(req, spec->worker);
        else
            kve_dialect_text(req, 500, "Failed to subscribe: %s", err.detail);
    }
    kve_mem_free(service.model);
}

void
kve_mooncake_register(struct kve_http *http, struct kve_http_request *req)
{
    struct kve_registration reg;
    struct kve_registration_error err;

    if (kve_dialect_no_json(req))
        return;
    if (!kve_registration_read(&reg, req, KVE_SPELLING_MOONCAKE, &err)) {
        fail_body(req, err.status, err.text);
        return;
    }
    (void)pthread_mutex_lock(&http->peers->registering);
    add_service(http, req, &reg.spec);
    (void)pthread_mutex_unlock(&http->peers->registering);
    kve_registration_release(&reg);
}

/* ---- /unregister ---- */

static void
unregistered(struct kve_http_request *req, const struct service *service)
{
    struct kve_output out;
    char rank[16];
    size_t room = strlen(service->worker) + strlen(service->tenant) + 16;
    char *name = kve_mem_alloc(room);

    kve_dialect_begin(req, &out, false);
    if (name == NULL) {
        out.status = KVE_E_NOMEM;
        kve_dialect_end(req, &out);
        return;
    }
    snprintf(rank, sizeof(rank), "%u", service->rank);
    snprintf(name, room, "%s|%s|%s", service->worker, service->tenant, rank);
    kve_output_map(&out, 2);
    kve_output_key(&out, "status");
    kve_output_text(&out, "unregistered successfully");
    kve_output_key(&out, "removed_instances");
    kve_output_array(&out, 1);
    kve_output_text(&out, name);
    kve_output_array_end(&out);
    kve_output_map_end(&out);
    kve_dialect_end(req, &out);
    kve_mem_free(name);
}

void
kve_mooncake_unregister(struct kve_http *http, struct kve_http_request *req)
{
    static const struct kve_body_field fields[] = {
        { "instance_id", KVE_BODY_ID, true },
        { "tenant_id", KVE_BODY_TEXT, false },
        { "dp_rank", KVE_BODY_U32, false },
    };
    struct service service = { NULL, "default", 0, 0, NULL, false };
    struct kve_body body;
    struct kve_body_error err;
    bool removed = false;

    if (kve_dialect_no_json(req))
        return;
    if (kve_body_read(&body, &req->scratch->input, req->body, req->body_len,
            fields, sizeof(fields) / sizeof(fields[0]), false,
            &err) != KVE_BODY_FINE) {
        fail_body(req, err.fault == KVE_BODY_NOMEM ? 503 : 400,
            err.fault == KVE_BODY_NOMEM ? "no memory" : err.text);
        return;
    }
    service.worker = body.value[0].text;
    if (body.value[1].len > 0)
        service.tenant = body.value[1].text;
    service.rank = (uint32_t)body.value[2].number;
    /* Of every model that has it. */
    for (find_service(http, &service); service.id != 0;
         find_service(http, &service))
        removed |= kve_ingest_remove(http->ingest, service.id, NULL) == KVE_OK;
    if (removed)
        unregistered(req, &service);
    else
        kve_dialect_text(req, 404, "service not found: %s|%s|%u",
            service.worker, service.tenant, service.rank);
    kve_body_release(&body);
}

/* ---- /services ---- */

static bool
count_service(void *ctx, const struct kve_ingest_source *source)
{
    (void)source;
    (void)ctx;
    return true;
}

static bool
put_service(void *ctx, const struct kve_ingest_source *source)
{
    struct kve_output *out = ctx;

    kve_output_map(out, 10);
    kve_output_key(out, "Endpoint");
    kve_output_text(out, source->endpoint);
    kve_output_key(out, "ReplayEndpoint");
    kve_output_text(out, source->replay_endpoint);
    kve_output_key(out, "Type");
    kve_output_text(out, source->engine);
    kve_output_key(out, "ModelName");
    kve_output_text(out, source->model);
    kve_output_key(out, "LoraName");
    kve_output_text(out, source->lora_name);
    kve_output_key(out, "TenantID");
    kve_output_text(out, source->tenant);
    kve_output_key(out, "InstanceID");
    kve_output_text(out, source->worker);
    kve_output_key(out, "BlockSize");
    kve_output_u64(out, source->block_size);
    kve_output_key(out, "DPRank");
    kve_output_u64(out, source->rank);
    kve_output_key(out, "AdditionalSalt");
    kve_output_text(out, source->additional_salt);
    kve_output_map_end(out);
    return true;
}

void
kve_mooncake_services(struct kve_http *http, struct kve_http_request *req)
{
    struct kve_output out;
    size_t n;

    kve_dialect_begin(req, &out, false);
    kve_ingest_read_begin(http->ingest);
    n = kve_ingest_sources(http->ingest, NULL, count_service, NULL);
    kve_output_map(&out, 2);
    kve_output_key(&out, "count");
    kve_output_u64(&out, n);
    kve_output_key(&out, "services");
    kve_output_array(&out, (uint32_t)n);
    (void)kve_ingest_sources(http->ingest, NULL, put_service, &out);
    kve_output_array_end(&out);
    kve_output_map_end(&out);
    kve_ingest_read_end(http->ingest);
    kve_dialect_end(req, &out);
}
