/*
 * register.c - registrations in three spellings.
 */
#include "http/register.h"

#include "base/alloc.h"
#include "http/http.h"
#include "http/scratch.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Longest name or endpoint. */
#define MAX_TEXT 1024u
#define MAX_RANK 65535u
#define MAX_BLOCK_SIZE 16777216u

/* What a field is, in all spellings. */
enum part {
    WORKER,
    ENDPOINT,
    MODEL,
    BLOCK_SIZE,
    TENANT,
    RANK,
    REPLAY,
    SNAPSHOT,
    TOPIC,
    ENGINE,
    LORA,
    SALT,
    SALT_TOO, /* the other name of it */
    ON_LOSS,
    COUNTING,
    STREAMS,
    TOPIC_RULE,
    HASH_PROFILE,
    IGNORED,
    PARTS
};

/* A table of fields, and of which part each is. */
struct spelling {
    struct kve_body_field fields[KVE_BODY_FIELDS];
    enum part parts[KVE_BODY_FIELDS];
    size_t n;
    bool strict;
};

#define OWN_MAP(X)                                \
    X(WORKER, "worker", TEXT, true)               \
    X(ENDPOINT, "endpoint", TEXT, true)           \
    X(MODEL, "model", TEXT, false)                \
    X(TENANT, "tenant", TEXT, false)              \
    X(RANK, "rank", U32, false)                   \
    X(REPLAY, "replay_endpoint", TEXT, false)     \
    X(SNAPSHOT, "snapshot_endpoint", TEXT, false) \
    X(TOPIC, "topic", TEXT, false)                \
    X(BLOCK_SIZE, "block_size", U32, false)       \
    X(ENGINE, "engine", TEXT, false)              \
    X(LORA, "lora_name", TEXT, false)             \
    X(SALT, "additional_salt", TEXT, false)       \
    X(ON_LOSS, "on_loss", TEXT, false)            \
    X(COUNTING, "counting", TEXT, false)          \
    X(STREAMS, "streams", TEXT, false)            \
    X(TOPIC_RULE, "topic_rule", TEXT, false)

/* Required ones in the order in which serde misses them. */
#define DYNAMO_MAP(X)                         \
    X(WORKER, "instance_id", U64, true)       \
    X(ENDPOINT, "endpoint", TEXT, true)       \
    X(MODEL, "model_name", TEXT, true)        \
    X(BLOCK_SIZE, "block_size", U32, true)    \
    X(TENANT, "routing_group", TEXT, false)   \
    X(IGNORED, "tenant_id", TEXT, false)      \
    X(RANK, "dp_rank", U32, false)            \
    X(REPLAY, "replay_endpoint", TEXT, false) \
    X(SALT, "additional_salt", TEXT, false)   \
    X(SALT_TOO, "additionalsalt", TEXT, false)

#define MOONCAKE_MAP(X)                       \
    X(ENDPOINT, "endpoint", TEXT, true)       \
    X(WORKER, "instance_id", ID, true)        \
    X(MODEL, "modelname", TEXT, true)         \
    X(BLOCK_SIZE, "block_size", U32, false)   \
    X(TENANT, "tenant_id", TEXT, false)       \
    X(RANK, "dp_rank", U32, false)            \
    X(REPLAY, "replay_endpoint", TEXT, false) \
    X(ENGINE, "type", TEXT, false)            \
    X(LORA, "lora_name", TEXT, false)         \
    X(SALT, "additionalsalt", TEXT, false)    \
    X(HASH_PROFILE, "hash_profile", ANY, false)

#define COUNT(part, name, kind, required) +1
#define FIELD(part, name, kind, required) { name, KVE_BODY_##kind, required },
#define PART(part, name, kind, required) part,
#define SPELLING(MAP, strict)                                         \
    {                                                                 \
        { MAP(FIELD) }, { MAP(PART) }, (size_t)(0 MAP(COUNT)), strict \
    }

static const struct spelling spellings[] = {
    [KVE_SPELLING_OWN] = SPELLING(OWN_MAP, true),
    [KVE_SPELLING_DYNAMO] = SPELLING(DYNAMO_MAP, false),
    [KVE_SPELLING_MOONCAKE] = SPELLING(MOONCAKE_MAP, false),
};

static bool fail(struct kve_registration_error *err, unsigned status,
    size_t offset, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

static bool
fail(struct kve_registration_error *err, unsigned status, size_t offset,
    const char *fmt, ...)
{
    va_list args;

    err->status = status;
    err->json = true;
    err->offset = offset;
    va_start(args, fmt);
    vsnprintf(err->text, sizeof(err->text), fmt, args);
    va_end(args);
    return false;
}

/* ---- endpoints, in Dynamo's words ---- */

/* The port as Rust reads a u16; text for what is wrong with it, or NULL. */
static const char *
port_fault(const char *port)
{
    unsigned x = 0;

    if (*port == '+')
        port++;
    if (*port == '\0')
        return "cannot parse integer from empty string";
    for (; *port != '\0'; port++) {
        if (*port < '0' || *port > '9')
            return "invalid digit found in string";
        x = x * 10 + (unsigned)(*port - '0');
        if (x > 65535)
            return "number too large to fit in target type";
    }
    return NULL;
}

/* What is wrong with HOST:PORT; NULL: nothing. *ret_more goes behind it. */
static const char *
tcp_fault(const char *address, const char **ret_more)
{
    const char *colon;

    if (address[0] == '[') {
        const char *end = strchr(address, ']');

        if (end == NULL)
            return "missing closing `]`";
        if (end == address + 1)
            return "missing TCP host";
        if (end[1] != ':' || end[2] == '\0')
            return "missing TCP port";
        colon = end + 1;
    } else {
        colon = strrchr(address, ':');
        if (colon == NULL || colon[1] == '\0')
            return "missing TCP port";
        if (colon == address)
            return "missing TCP host";
    }
    *ret_more = port_fault(colon + 1);
    return *ret_more == NULL ? NULL : "invalid TCP port: ";
}

/* Write what is wrong with an endpoint, as Dynamo says it. */
static bool
endpoint_fault(const char *endpoint, char *text, size_t cap)
{
    const char *mark = strstr(endpoint, "://");
    const char *fault = NULL;
    const char *more = "";
    char scheme[96];
    size_t len = mark == NULL ? 0 : (size_t)(mark - endpoint);

    if (mark == NULL) {
        fault = "missing scheme";
    } else if (len == 3 && memcmp(endpoint, "tcp", 3) == 0) {
        fault =
            mark[3] == '\0' ? "missing address" : tcp_fault(mark + 3, &more);
    } else if ((len == 3 && memcmp(endpoint, "ipc", 3) == 0) ||
        (len == 6 && memcmp(endpoint, "inproc", 6) == 0)) {
        if (mark[3] == '\0')
            fault = "missing address";
    } else {
        snprintf(scheme, sizeof(scheme), "unsupported scheme `%.*s`",
            len > 64 ? 64 : (int)len, endpoint);
        fault = scheme;
    }
    if (fault == NULL)
        return false;
    snprintf(text, cap, "invalid ZMQ endpoint `%.200s`: %s%s", endpoint, fault,
        more);
    return true;
}

static bool
check_dynamo(
    const struct kve_registration *reg, struct kve_registration_error *err)
{
    const struct kve_source_opts *source = &reg->spec.source;
    char text[400];

    if (endpoint_fault(source->endpoint, text, sizeof(text)))
        return fail(err, 400, 0, "%s", text);
    if (source->replay_endpoint != NULL &&
        endpoint_fault(source->replay_endpoint, text, sizeof(text)))
        return fail(err, 400, 0, "invalid replay endpoint `%.200s`: %s",
            source->replay_endpoint, text);
    return true;
}

/* ---- our own words ---- */

/* One of a list of words; its number, counted from 1. */
static bool
word_of(const struct kve_body_value *value, const char *name,
    const char *const words[], uint32_t *ret,
    struct kve_registration_error *err)
{
    char list[96];
    size_t used = 0;

    if (!value->set)
        return true;
    for (uint32_t i = 0; words[i] != NULL; i++) {
        if (strcmp(value->text, words[i]) == 0) {
            *ret = i + 1;
            return true;
        }
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s\"%s\"",
            i == 0 ? "" : ", ", words[i]);
    }
    return fail(err, 422, value->offset,
        "%s: \"%.64s\" is not known; accepted are %s", name, value->text, list);
}

static bool
check_range(const struct kve_body_value *value, const char *name,
    uint32_t least, uint32_t most, struct kve_registration_error *err)
{
    if (!value->set || (value->number >= least && value->number <= most))
        return true;
    return fail(err, 422, value->offset,
        "%s: %llu is out of range; accepted are %u to %u", name,
        (unsigned long long)value->number, least, most);
}

static bool
read_own(struct kve_registration *reg,
    const struct kve_body_value *const at[PARTS],
    struct kve_registration_error *err)
{
    static const char *const losses[] = { "keep", "rebuild", NULL };
    static const char *const countings[] = { "copies", "set", NULL };
    static const char *const streams[] = { "one", "split", NULL };
    static const char *const rules[] = { "worker", "id", "host", NULL };
    struct kve_ingest_spec *spec = &reg->spec;
    uint32_t rule = 0;

    /* The words stand in the order of their numbers, from 1. */
    if (!word_of(at[ON_LOSS], "on_loss", losses, &spec->source.on_loss, err) ||
        !word_of(at[COUNTING], "counting", countings, &spec->counting, err) ||
        !word_of(at[STREAMS], "streams", streams, &spec->source.streams, err) ||
        !word_of(at[TOPIC_RULE], "topic_rule", rules, &rule, err) ||
        !check_range(at[RANK], "rank", 0, MAX_RANK, err) ||
        !check_range(at[BLOCK_SIZE], "block_size", 1, MAX_BLOCK_SIZE, err))
        return false;
    if (spec->worker[0] == '\0')
        return fail(err, 422, at[WORKER]->offset,
            "worker: an empty text; give the name a router knows it by");
    if (spec->source.endpoint[0] == '\0')
        return fail(err, 422, at[ENDPOINT]->offset,
            "endpoint: an empty text; accepted are tcp://HOST:PORT and "
            "ipc://PATH");
    spec->topic_rule = rule > 0 ? rule - 1 : KVE_TOPIC_RULE_DEFAULT;
    return true;
}

/* ---- all spellings ---- */

static bool
check_lengths(const struct spelling *spelling,
    const struct kve_registration *reg, struct kve_registration_error *err)
{
    for (size_t i = 0; i < spelling->n; i++) {
        const struct kve_body_value *value = &reg->body.value[i];

        if (value->set && value->len > MAX_TEXT)
            return fail(err, 422, value->offset,
                "%s: a text of %zu bytes; accepted are up to %u",
                spelling->fields[i].name, value->len, MAX_TEXT);
    }
    return true;
}

/* A text; empty ones count as absent. */
static const char *
text_of(const struct kve_body_value *value)
{
    return value->len > 0 ? value->text : NULL;
}

static void
fill_spec(struct kve_ingest_spec *spec, const struct kve_body_value *const at[])
{
    static const struct kve_ingest_spec none = KVE_INGEST_SPEC_INIT;

    *spec = none;
    spec->origin = KVE_ORIGIN_API;
    spec->worker = at[WORKER]->text;
    spec->model = text_of(at[MODEL]);
    spec->tenant = text_of(at[TENANT]);
    spec->rank = (uint32_t)at[RANK]->number;
    spec->block_size = (uint32_t)at[BLOCK_SIZE]->number;
    spec->engine = text_of(at[ENGINE]);
    spec->lora_name = text_of(at[LORA]);
    spec->additional_salt = text_of(at[at[SALT]->set ? SALT : SALT_TOO]);
    spec->source.endpoint = at[ENDPOINT]->text;
    spec->source.replay_endpoint = text_of(at[REPLAY]);
    spec->source.snapshot_endpoint = text_of(at[SNAPSHOT]);
    spec->source.topic = text_of(at[TOPIC]);
}

static bool
fail_body(const struct kve_body_error *why, struct kve_registration_error *err)
{
    err->json = false;
    err->offset = why->offset;
    switch (why->fault) {
    case KVE_BODY_NOMEM:
        return fail(err, 503, 0, "no memory for the body; try again later");
    case KVE_BODY_BROKEN:
        err->status = 400;
        break;
    default:
        err->status = 422;
        break;
    }
    memcpy(err->text, why->text, sizeof(why->text));
    return false;
}

bool
kve_registration_read(struct kve_registration *reg,
    struct kve_http_request *req, enum kve_spelling spelled,
    struct kve_registration_error *err)
{
    static const struct kve_body_value absent;
    const struct spelling *spelling = &spellings[spelled];
    const struct kve_body_value *at[PARTS];
    struct kve_body_error why;
    bool fine;

    memset(err, 0, sizeof(*err));
    if (kve_body_read(&reg->body, &req->scratch->input, req->body,
            req->body_len, spelling->fields, spelling->n, spelling->strict,
            &why) != KVE_BODY_FINE)
        return fail_body(&why, err);
    for (size_t i = 0; i < PARTS; i++)
        at[i] = &absent;
    for (size_t i = 0; i < spelling->n; i++)
        at[spelling->parts[i]] = &reg->body.value[i];
    fine = check_lengths(spelling, reg, err);
    if (fine) {
        char *number = reg->number;

        fill_spec(&reg->spec, at);
        if (reg->spec.worker == NULL) {
            snprintf(number, sizeof(reg->number), "%llu",
                (unsigned long long)at[WORKER]->number);
            reg->spec.worker = number;
        }
        if (spelled == KVE_SPELLING_OWN)
            fine = read_own(reg, at, err);
        else if (spelled == KVE_SPELLING_DYNAMO)
            fine = check_dynamo(reg, err);
    }
    if (!fine)
        kve_registration_release(reg);
    return fine;
}

void
kve_registration_release(struct kve_registration *reg)
{
    if (reg != NULL)
        kve_body_release(&reg->body);
}
