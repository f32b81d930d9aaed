/*
 * target.c - targets out of JSON and of texts.
 */
#include "discover/target.h"

#include "base/alloc.h"
#include "base/status.h"

#include <jansson.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define RANKS_MAX 1024u
#define PORT_MAX 65535u

void
kve_targets_release(struct kve_targets *targets)
{
    for (size_t i = 0; i < targets->n; i++)
        kve_mem_free(targets->items[i]);
    kve_mem_free(targets->items);
    targets->items = NULL;
    targets->n = targets->cap = 0;
}

/* ---- template ---- */

/* Where a template has its strings. */
static void
strings_of(struct kve_discover_spec *spec, const char **ret[9])
{
    ret[0] = &spec->source.model;
    ret[1] = &spec->source.tenant;
    ret[2] = &spec->source.engine;
    ret[3] = &spec->source.lora_name;
    ret[4] = &spec->source.additional_salt;
    ret[5] = &spec->source.source.topic;
    ret[6] = &spec->source.source.curve.server_key;
    ret[7] = &spec->source.source.curve.public_key;
    ret[8] = &spec->source.source.curve.secret_key;
}

struct kve_discover_spec *
kve_discover_spec_copy(const struct kve_discover_spec *spec)
{
    struct kve_discover_spec from = *spec;
    struct kve_discover_spec *copy;
    const char **strings[9];
    size_t size = sizeof(*copy);
    char *at;

    strings_of(&from, strings);
    for (size_t i = 0; i < 9; i++)
        size += *strings[i] != NULL ? strlen(*strings[i]) + 1 : 0;
    copy = kve_mem_alloc(size);
    if (copy == NULL)
        return NULL;
    *copy = from;
    at = (char *)(copy + 1);
    strings_of(copy, strings);
    for (size_t i = 0; i < 9; i++) {
        size_t len;

        if (*strings[i] == NULL)
            continue;
        len = strlen(*strings[i]) + 1;
        memcpy(at, *strings[i], len);
        *strings[i] = at;
        at += len;
    }
    /* What is each target's own. */
    copy->source.worker = NULL;
    copy->source.found_in = NULL;
    copy->source.source.endpoint = NULL;
    copy->source.source.replay_endpoint = NULL;
    copy->source.source.snapshot_endpoint = NULL;
    return copy;
}

void
kve_discover_spec_free(struct kve_discover_spec *copy)
{
    const char *secret;

    if (copy == NULL)
        return;
    secret = copy->source.source.curve.secret_key;
    /* It stands in the copy's own memory. */
    if (secret != NULL)
        explicit_bzero((void *)(uintptr_t)secret, strlen(secret));
    kve_mem_free(copy);
}

/* ---- one target ---- */

/* "HOST:PORT" in parts. */
struct address {
    const char *host;
    int host_len;
    uint32_t port;
};

static bool
is_wildcard(const struct address *address)
{
    static const char *const wild[] = { "*", "0.0.0.0", "[::]" };

    for (size_t i = 0; i < sizeof(wild) / sizeof(wild[0]); i++)
        if (strlen(wild[i]) == (size_t)address->host_len &&
            memcmp(address->host, wild[i], strlen(wild[i])) == 0)
            return true;
    return false;
}

static bool
read_port(const char *text, uint32_t *ret_port)
{
    uint32_t port = 0;

    if (*text == '\0')
        return false;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9')
            return false;
        port = port * 10 + (uint32_t)(*text - '0');
        if (port > PORT_MAX)
            return false;
    }
    *ret_port = port;
    return port > 0;
}

static kve_status
read_address(const char *text, struct address *ret, struct kve_error *err)
{
    const char *colon = strrchr(text, ':');
    struct address address = { text, 0, 0 };

    if (strncmp(text, "tcp://", 6) == 0)
        address.host = text + 6;
    if (colon == NULL || colon <= address.host ||
        !read_port(colon + 1, &address.port))
        goto wrong;
    address.host_len = (int)(colon - address.host);
    /* Without brackets nobody can tell an IPv6 address from its port. */
    if (address.host[0] == '['
            ? colon[-1] != ']'
            : memchr(address.host, ':', (size_t)address.host_len) != NULL)
        goto wrong;
    if (is_wildcard(&address))
        return kve_fail(err, KVE_E_INVAL,
            "target '%s' is a wildcard, which nobody can connect to; say the "
            "address that others reach it by",
            text);
    *ret = address;
    return KVE_OK;

wrong:
    return kve_fail(err, KVE_E_INVAL,
        "target '%s' is not HOST:PORT with a port from 1 to 65535 (IPv6: "
        "[ADDRESS]:PORT)",
        text);
}

static bool
targets_grow(struct kve_targets *targets)
{
    size_t cap = targets->cap == 0 ? 16 : targets->cap * 2;
    struct kve_target **items;

    if (targets->n < targets->cap)
        return true;
    items = kve_mem_array(targets->items, cap, sizeof(*items));
    if (items == NULL)
        return false;
    targets->items = items;
    targets->cap = cap;
    return true;
}

static const char *
keep(char **at, const char *text)
{
    size_t len = strlen(text) + 1;
    char *kept = *at;

    memcpy(kept, text, len);
    *at += len;
    return kept;
}

static const char *
chosen(const char *label, const char *template, const char *otherwise)
{
    if (label != NULL)
        return label;
    return template != NULL ? template : otherwise;
}

/* tcp://HOST:PORT, or "" where port is 0. */
static void
write_endpoint(char text[320], const struct address *address, uint32_t port)
{
    text[0] = '\0';
    if (port != 0)
        (void)snprintf(text, 320, "tcp://%.*s:%" PRIu32, address->host_len,
            address->host, port);
}

/* The source of one rank, whose ports are moved by move. */
static kve_status
add_rank(struct kve_targets *targets, const struct address *address,
    const struct kve_labels *labels, const struct kve_discover_spec *spec,
    uint32_t rank, uint32_t move, struct kve_error *err)
{
    uint32_t replay =
        labels->replay_port != 0 ? labels->replay_port : spec->replay_port;
    uint32_t snapshot = labels->snapshot_port != 0 ? labels->snapshot_port
                                                   : spec->snapshot_port;
    char endpoints[3][320];
    char name[320];
    const char *texts[4] = {
        chosen(labels->model, spec->source.model, ""),
        chosen(labels->tenant, spec->source.tenant, "default"),
        chosen(labels->worker, NULL, name),
        chosen(labels->topic, spec->source.source.topic, ""),
    };
    struct kve_target *target;
    size_t size = sizeof(*target);
    char *at;

    if (targets->max != 0 && targets->n >= targets->max)
        return kve_fail(
            err, KVE_E_LIMIT, "more than %zu targets", targets->max);
    if (address->port + move > PORT_MAX || replay + move > PORT_MAX ||
        snapshot + move > PORT_MAX)
        return kve_fail(err, KVE_E_INVAL,
            "the ports of rank %" PRIu32 " of %.*s:%" PRIu32
            " would be above 65535",
            rank, address->host_len, address->host, address->port);
    (void)snprintf(name, sizeof(name), "%.*s:%" PRIu32, address->host_len,
        address->host, address->port);
    write_endpoint(endpoints[0], address, address->port + move);
    write_endpoint(endpoints[1], address, replay == 0 ? 0 : replay + move);
    write_endpoint(endpoints[2], address, snapshot == 0 ? 0 : snapshot + move);
    for (size_t i = 0; i < 4; i++)
        size += strlen(texts[i]) + 1;
    for (size_t i = 0; i < 3; i++)
        size += strlen(endpoints[i]) + 1;
    target = targets_grow(targets) ? kve_mem_alloc(size) : NULL;
    if (target == NULL)
        return kve_fail_nomem(err, "targets");
    at = (char *)(target + 1);
    target->model = keep(&at, texts[0]);
    target->tenant = keep(&at, texts[1]);
    target->worker = keep(&at, texts[2]);
    target->topic = keep(&at, texts[3]);
    target->endpoint = keep(&at, endpoints[0]);
    target->replay_endpoint = keep(&at, endpoints[1]);
    target->snapshot_endpoint = keep(&at, endpoints[2]);
    target->rank = rank;
    target->block_size =
        labels->block_size != 0 ? labels->block_size : spec->source.block_size;
    targets->items[targets->n++] = target;
    return KVE_OK;
}

kve_status
kve_targets_add(struct kve_targets *targets, const char *target,
    const struct kve_labels *labels, const struct kve_discover_spec *spec,
    struct kve_error *err)
{
    struct address address = { "", 0, 0 };
    uint32_t ranks = labels->ranks != 0 ? labels->ranks : spec->ranks;
    kve_status status = read_address(target, &address, err);

    if (status != KVE_OK)
        return status;
    if (address.host_len > 255)
        return kve_fail(err, KVE_E_INVAL,
            "target '%.40s...' has a name of more than 255 characters", target);
    if (labels->has_rank)
        return add_rank(targets, &address, labels, spec, labels->rank, 0, err);
    for (uint32_t i = 0; i < (ranks > 0 ? ranks : 1) && status == KVE_OK; i++)
        status = add_rank(targets, &address, labels, spec, i, i, err);
    return status;
}

/* ---- JSON ---- */

/* A label that is a text, or a number where numbers are asked for. */
static kve_status
read_number(const json_t *labels, const char *name, uint32_t min, uint32_t max,
    uint32_t *ret, bool *ret_has, struct kve_error *err)
{
    const json_t *value = json_object_get(labels, name);
    const char *text = json_string_value(value);
    uint64_t number = 0;

    *ret_has = false;
    if (value == NULL || json_is_null(value))
        return KVE_OK;
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        number = (uint64_t)json_integer_value(value);
    } else if (text != NULL && *text != '\0' && strlen(text) < 11 &&
        strspn(text, "0123456789") == strlen(text)) {
        for (; *text != '\0'; text++)
            number = number * 10 + (uint64_t)(*text - '0');
    } else {
        return kve_fail(err, KVE_E_SCHEMA,
            "label %s is no number; accepted is a whole number from %" PRIu32
            " to %" PRIu32 ", as a number or as a text",
            name, min, max);
    }
    if (number < min || number > max)
        return kve_fail(err, KVE_E_SCHEMA,
            "label %s is %" PRIu64 "; accepted is %" PRIu32 " to %" PRIu32,
            name, number, min, max);
    *ret = (uint32_t)number;
    *ret_has = true;
    return KVE_OK;
}

static kve_status
read_text(const json_t *labels, const char *name, const char **ret,
    struct kve_error *err)
{
    const json_t *value = json_object_get(labels, name);

    if (value == NULL || json_is_null(value))
        return KVE_OK;
    if (!json_is_string(value))
        return kve_fail(err, KVE_E_SCHEMA, "label %s is not a text", name);
    *ret = json_string_value(value);
    return KVE_OK;
}

static kve_status
read_labels(
    const json_t *json, struct kve_labels *labels, struct kve_error *err)
{
    struct {
        const char *name;
        uint32_t min;
        uint32_t max;
        uint32_t *at;
        bool has;
    } numbers[] = {
        { "rank", 0, UINT32_MAX, &labels->rank, false },
        { "ranks", 1, RANKS_MAX, &labels->ranks, false },
        { "replay_port", 1, PORT_MAX, &labels->replay_port, false },
        { "snapshot_port", 1, PORT_MAX, &labels->snapshot_port, false },
        { "block_size", 0, UINT32_MAX, &labels->block_size, false },
    };
    struct {
        const char *name;
        const char **at;
    } texts[] = {
        { "model", &labels->model },
        { "tenant", &labels->tenant },
        { "worker", &labels->worker },
        { "topic", &labels->topic },
    };
    kve_status status = KVE_OK;

    if (json != NULL && !json_is_object(json) && !json_is_null(json))
        return kve_fail(err, KVE_E_SCHEMA, "labels is not an object");
    for (size_t i = 0; i < 5 && status == KVE_OK; i++)
        status = read_number(json, numbers[i].name, numbers[i].min,
            numbers[i].max, numbers[i].at, &numbers[i].has, err);
    for (size_t i = 0; i < 4 && status == KVE_OK; i++)
        status = read_text(json, texts[i].name, texts[i].at, err);
    labels->has_rank = numbers[0].has;
    return status;
}

/* {"targets": [...], "labels": {...}} */
static kve_status
read_group(struct kve_targets *targets, const json_t *group,
    const struct kve_discover_spec *spec, struct kve_error *err)
{
    const json_t *list = json_object_get(group, "targets");
    struct kve_labels labels;
    const json_t *target;
    size_t i;
    kve_status status;

    memset(&labels, 0, sizeof(labels));
    if (!json_is_object(group) || !json_is_array(list))
        return kve_fail(
            err, KVE_E_SCHEMA, "no {\"targets\": [...], \"labels\": {...}}");
    status = read_labels(json_object_get(group, "labels"), &labels, err);
    if (status == KVE_OK && labels.worker != NULL && json_array_size(list) > 1)
        status = kve_fail(err, KVE_E_SCHEMA,
            "label worker stands for %zu targets; a worker is one target",
            json_array_size(list));
    json_array_foreach(list, i, target)
    {
        if (status != KVE_OK)
            break;
        if (!json_is_string(target))
            status =
                kve_fail(err, KVE_E_SCHEMA, "target %zu is not a text", i + 1);
        else
            status = kve_targets_add(
                targets, json_string_value(target), &labels, spec, err);
    }
    return status;
}

/* The same, and the number of the group before what is wrong. */
static kve_status
read_numbered(struct kve_targets *targets, const json_t *group, size_t i,
    const struct kve_discover_spec *spec, struct kve_error *err)
{
    struct kve_error why = { .status = KVE_OK };
    kve_status status = read_group(targets, group, spec, &why);

    if (status == KVE_E_INVAL)
        status = KVE_E_SCHEMA;
    if (status != KVE_OK)
        (void)kve_fail(err, status, "entry %zu: %.200s", i + 1, why.detail);
    return status;
}

kve_status
kve_targets_read(struct kve_targets *targets, const char *text, size_t len,
    const struct kve_discover_spec *spec, struct kve_error *err)
{
    json_error_t error;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    const json_t *group;
    size_t i;
    kve_status status = KVE_OK;

    if (root == NULL) {
        status = kve_fail_at(err, KVE_E_MALFORMED,
            error.position > 0 ? (size_t)error.position : 0,
            "line %d, column %d: %.150s", error.line, error.column, error.text);
        goto out;
    }
    if (!json_is_array(root)) {
        status = kve_fail(err, KVE_E_SCHEMA,
            "not a list: accepted is [{\"targets\": [...], \"labels\": "
            "{...}}, ...]");
        goto out;
    }
    json_array_foreach(root, i, group)
    {
        status = read_numbered(targets, group, i, spec, err);
        if (status != KVE_OK)
            break;
    }

out:
    json_decref(root);
    if (status != KVE_OK)
        kve_targets_release(targets);
    return status;
}

/* ---- comparing ---- */

bool
kve_target_is(const struct kve_target *a, const struct kve_target *b)
{
    return a->rank == b->rank && strcmp(a->worker, b->worker) == 0 &&
        strcmp(a->model, b->model) == 0 && strcmp(a->tenant, b->tenant) == 0;
}

bool
kve_target_same(const struct kve_target *a, const struct kve_target *b)
{
    return kve_target_is(a, b) && a->block_size == b->block_size &&
        strcmp(a->topic, b->topic) == 0 &&
        strcmp(a->endpoint, b->endpoint) == 0 &&
        strcmp(a->replay_endpoint, b->replay_endpoint) == 0 &&
        strcmp(a->snapshot_endpoint, b->snapshot_endpoint) == 0;
}
