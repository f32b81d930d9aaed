/*
 * v1_register.c - POST /v1/sources: follow one more source.
 *
 * Registering the same again is no error: programs that register at their
 * start may start twice. What the body says is read by register.h, which
 * refuses a field of another name: a name that is mistyped would otherwise be
 * a default that nobody wanted.
 */
#include "http/register.h"
#include "http/v1.h"

#include <string.h>

/* ---- the answer ---- */

static bool
same_text(const char *given, const char *there)
{
    return strcmp(given == NULL ? "" : given, there == NULL ? "" : there) == 0;
}

/* Is what is there what was asked for? */
static bool
is_same(
    struct kve_http *http, kve_ingest_id id, const struct kve_ingest_spec *spec)
{
    struct kve_ingest_source there = { .struct_size = sizeof(there) };
    bool same;

    kve_ingest_read_begin(http->ingest);
    same = kve_ingest_source_of(http->ingest, id, &there) == KVE_OK &&
        same_text(spec->source.endpoint, there.endpoint) &&
        same_text(spec->source.replay_endpoint, there.replay_endpoint) &&
        same_text(spec->source.snapshot_endpoint, there.snapshot_endpoint);
    kve_ingest_read_end(http->ingest);
    return same;
}

/* 409 says which source it is, so that it can be removed. */
static void
answer_conflict(
    struct kve_http_request *req, kve_ingest_id id, const struct kve_error *err)
{
    struct kve_output out;

    req->status = 409;
    kve_v1_begin(req, &out);
    kve_output_map(&out, 3);
    kve_output_key(&out, "error");
    kve_output_text(&out, err->detail);
    kve_output_key(&out, "status");
    kve_output_u64(&out, 409);
    kve_output_key(&out, "source");
    kve_output_u64(&out, id);
    kve_output_map_end(&out);
    kve_v1_end(req, &out);
}

static void
add(struct kve_http *http, struct kve_http_request *req,
    const struct kve_ingest_spec *spec)
{
    struct kve_error err;
    kve_ingest_id id = 0;
    kve_status status = kve_ingest_add(http->ingest, spec, &id, &err);

    if (status == KVE_OK) {
        req->status = 201;
        kve_v1_answer_source(http, req, id);
    } else if (status == KVE_E_IN_USE && is_same(http, id, spec)) {
        kve_v1_answer_source(http, req, id);
    } else if (status == KVE_E_IN_USE) {
        answer_conflict(req, id, &err);
    } else {
        kve_v1_fail(req, status, &err);
    }
}

void
kve_v1_register(struct kve_http *http, struct kve_http_request *req)
{
    struct kve_registration reg;
    struct kve_registration_error err;

    if (req->content != KVE_MEDIA_JSON) {
        kve_v1_wrong_type(req);
        return;
    }
    if (!kve_registration_read(&reg, req, KVE_SPELLING_OWN, &err)) {
        kve_http_fail_at(req, err.status, err.offset, "%s", err.text);
        return;
    }
    add(http, req, &reg.spec);
    kve_registration_release(&reg);
}
