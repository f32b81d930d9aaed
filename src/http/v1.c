/*
 * v1.c - routes of /v1, its document, and what its handlers share.
 */
#include "http/v1.h"

#include "wire/buffer.h"

#include <jansson.h>
#include <string.h>
#include <strings.h>

/* ---- the document ---- */

/* docs/openapi.json as it was built; .incbin has it without a generated file.
 * KVE_OPENAPI is its path, from cmake. */
__asm__(".pushsection .rodata\n"
        ".balign 16\n"
        "kve_openapi_begin:\n"
        ".incbin \"" KVE_OPENAPI "\"\n"
        "kve_openapi_end:\n"
        ".popsection\n");
extern const uint8_t kve_openapi_begin[] __attribute__((visibility("hidden")));
extern const uint8_t kve_openapi_end[] __attribute__((visibility("hidden")));

static bool
put_bytes(struct kve_buffer *out, const void *data, size_t len)
{
    if (kve_buffer_reserve(out, len, NULL) != KVE_OK)
        return false;
    memcpy(out->data + out->len, data, len);
    out->len += len;
    return true;
}

static void
answer_openapi(struct kve_http *http, struct kve_http_request *req)
{
    (void)http;
    if (!put_bytes(req->out, kve_openapi_begin,
            (size_t)(kve_openapi_end - kve_openapi_begin)))
        kve_http_fail(req, 503, "no memory for the document");
}

static void
answer_settings(struct kve_http *http, struct kve_http_request *req)
{
    const char *settings = http->opts.settings;

    if (settings == NULL)
        settings = "{}";
    if (!put_bytes(req->out, settings, strlen(settings)))
        kve_http_fail(req, 503, "no memory for the settings");
}

const struct kve_http_route kve_routes_v1[] = {
    { KVE_METHOD_POST, "/v1/query", kve_v1_query, KVE_ROUTE_QUERY },
    { KVE_METHOD_GET, "/v1/sources", kve_v1_sources, 0 },
    { KVE_METHOD_POST, "/v1/sources", kve_v1_register, KVE_ROUTE_SMALL },
    { KVE_METHOD_GET | KVE_METHOD_POST | KVE_METHOD_DELETE, "/v1/sources/",
        kve_v1_source, KVE_ROUTE_PREFIX | KVE_ROUTE_SMALL },
    { KVE_METHOD_GET, "/v1/workers", kve_v1_workers, 0 },
    { KVE_METHOD_DELETE, "/v1/workers/", kve_v1_worker, KVE_ROUTE_PREFIX },
    { KVE_METHOD_GET, "/v1/blocks/", kve_v1_block, KVE_ROUTE_PREFIX },
    { KVE_METHOD_GET, "/v1/dump", kve_v1_dump, 0 },
    { KVE_METHOD_GET, "/v1/state", kve_v1_state, 0 },
    { KVE_METHOD_POST, "/v1/clear", kve_v1_clear, KVE_ROUTE_SMALL },
    { KVE_METHOD_GET, "/v1/settings", answer_settings, 0 },
    { KVE_METHOD_GET, "/v1/openapi.json", answer_openapi, 0 },
    { 0, NULL, NULL, 0 },
};

/* ---- errors ---- */

void
kve_v1_fail(struct kve_http_request *req, kve_status status,
    const struct kve_error *err)
{
    unsigned code = 503;

    switch (status) {
    case KVE_E_NOT_FOUND:
        code = 404;
        break;
    case KVE_E_IN_USE:
        code = 409;
        break;
    case KVE_E_INVAL:
    case KVE_E_UNSUPPORTED:
        code = 422;
        break;
    default:
        break;
    }
    kve_http_fail(req, code, "%s", err->detail);
}

void
kve_v1_wrong_type(struct kve_http_request *req)
{
    kve_http_fail(
        req, 415, "the body must be JSON, with Content-Type: application/json");
}

void
kve_v1_wrong_method(struct kve_http_request *req, const char *allow)
{
    kve_http_fail(req, 405, "%s knows %s only", req->path, allow);
    req->allow = allow;
}

/* ---- arguments ---- */

struct kve_ingest_filter
kve_v1_filter(struct kve_http_request *req)
{
    return (struct kve_ingest_filter){ sizeof(struct kve_ingest_filter),
        kve_http_argument(req, "model"), kve_http_argument(req, "tenant"),
        kve_http_argument(req, "worker") };
}

bool
kve_v1_namespace(
    struct kve_http *http, struct kve_http_request *req, kve_namespace *ret_ns)
{
    const char *model = kve_http_argument(req, "model");
    const char *tenant = kve_http_argument(req, "tenant");
    kve_namespace ns = kve_index_find_namespace(http->index,
        model == NULL ? "" : model, tenant == NULL ? "default" : tenant);

    if (ns == 0) {
        kve_http_fail(req, 404,
            "nothing is known of this model and tenant; GET /v1/sources lists "
            "those that are");
        return false;
    }
    *ret_ns = ns;
    return true;
}

bool
kve_v1_number(const char *text, size_t len, uint64_t max, uint64_t *ret)
{
    uint64_t value = 0;

    for (size_t i = 0; i < len; i++) {
        unsigned digit = (unsigned)text[i] - '0';

        if (digit > 9 || value > (max - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *ret = value;
    return len > 0;
}

/* ---- answers ---- */

void
kve_v1_begin(struct kve_http_request *req, struct kve_output *out)
{
    kve_output_begin(out, req->out, false);
}

void
kve_v1_end(struct kve_http_request *req, struct kve_output *out)
{
    if (out->status == KVE_OK)
        return;
    req->out->len = 0;
    kve_http_fail(req, 503, "no memory for this answer");
}

static const char *const tiers[] = { "UNKNOWN", "GPU", "CPU", "DISK",
    "REMOTE" };

const char *
kve_v1_tier(unsigned tier)
{
    return tier < KVE_TIERS ? tiers[tier] : tiers[0];
}

bool
kve_v1_tier_of(const char *text, size_t len, unsigned *ret_tier)
{
    for (unsigned i = 0; i < KVE_TIERS; i++) {
        if (len == strlen(tiers[i]) && strncasecmp(text, tiers[i], len) == 0) {
            *ret_tier = i;
            return true;
        }
    }
    return false;
}

void
kve_v1_put_text_or_null(struct kve_output *out, const char *text)
{
    if (text == NULL || text[0] == '\0')
        kve_output_null(out);
    else
        kve_output_text(out, text);
}

void
kve_v1_put_state(
    struct kve_output *out, uint32_t state, uint32_t reason, uint64_t source)
{
    kve_output_key(out, "state");
    kve_output_text(out, kve_state_str(state));
    kve_output_key(out, "reason");
    kve_output_text(out, kve_reason_str(reason));
    kve_output_key(out, "source");
    if (source == 0)
        kve_output_null(out);
    else
        kve_output_u64(out, source);
}

void
kve_v1_put_blocks(struct kve_output *out, const uint64_t blocks[])
{
    kve_output_key(out, "blocks");
    kve_output_map(out, KVE_TIERS);
    for (unsigned i = 0; i < KVE_TIERS; i++) {
        kve_output_key(out, tiers[i]);
        kve_output_u64(out, blocks[i]);
    }
    kve_output_map_end(out);
}

void
kve_v1_put_sizes(
    struct kve_output *out, const uint32_t *sizes, size_t n, size_t cap)
{
    if (n > cap)
        n = cap;
    kve_output_key(out, "block_sizes");
    kve_output_array(out, (uint32_t)n);
    for (size_t i = 0; i < n; i++)
        kve_output_u64(out, sizes[i]);
    kve_output_array_end(out);
}

/* ---- bodies ---- */

bool
kve_v1_object(
    struct kve_http_request *req, bool may_be_absent, struct json_t **ret)
{
    json_error_t error;
    json_t *object;

    if (req->body_len == 0 && may_be_absent) {
        *ret = NULL;
        return true;
    }
    if (req->content != KVE_MEDIA_JSON) {
        kve_v1_wrong_type(req);
        return false;
    }
    object = json_loadb((const char *)req->body, req->body_len,
        JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (object == NULL) {
        kve_http_fail_at(req, 400,
            error.position > 0 ? (size_t)error.position : 0,
            "the body is no JSON, in line %d, column %d: %s", error.line,
            error.column, error.text);
        return false;
    }
    if (!json_is_object(object)) {
        json_decref(object);
        kve_http_fail(req, 422, "the body must be a JSON object");
        return false;
    }
    *ret = object;
    return true;
}

bool
kve_v1_only(struct kve_http_request *req, struct json_t *object,
    const char *const *names)
{
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value)
    {
        size_t i = 0;

        while (names[i] != NULL && strcmp(names[i], key) != 0)
            i++;
        if (names[i] != NULL)
            continue;
        kve_http_fail(req, 422,
            "there is no field of this name: %.64s; /v1/openapi.json has those "
            "there are",
            key);
        return false;
    }
    return true;
}

bool
kve_v1_tiers(
    struct kve_http_request *req, const struct json_t *object, uint32_t *ret)
{
    const json_t *array = json_object_get(object, "tiers");
    uint32_t set = 0;

    if (array != NULL && !json_is_array(array))
        goto wrong;
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        unsigned tier;

        if (!json_is_string(item) ||
            !kve_v1_tier_of(
                json_string_value(item), json_string_length(item), &tier))
            goto wrong;
        set |= 1u << tier;
    }
    *ret = set;
    return true;

wrong:
    kve_http_fail(req, 422,
        "tiers must be an array of GPU, CPU, DISK, REMOTE or UNKNOWN");
    return false;
}

bool
kve_v1_text(struct kve_http_request *req, const struct json_t *object,
    const char *name, const char **ret)
{
    const json_t *value = json_object_get(object, name);

    if (value != NULL && !json_is_string(value)) {
        kve_http_fail(req, 422, "%s must be a text", name);
        return false;
    }
    *ret = json_string_value(value);
    return true;
}
