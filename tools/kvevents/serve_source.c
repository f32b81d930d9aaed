/*
 * serve_source.c - sources that options and the config file name.
 */
#include "serve_source.h"

#include "list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST_ENDPOINT 1024

const char *
texts_keep(struct texts *texts, const char *text, size_t len)
{
    char *copy;

    if (!list_grow(&texts->items, &texts->cap, texts->n, sizeof(*texts->items)))
        return NULL;
    copy = strndup(text, len);
    if (copy != NULL)
        texts->items[texts->n++] = copy;
    return copy;
}

void
texts_release(struct texts *texts)
{
    for (size_t i = 0; i < texts->n; i++)
        free(texts->items[i]);
    free(texts->items);
    memset(texts, 0, sizeof(*texts));
}

/* ------------------------------------------------------------------ */
/* Reading                                                             */

static bool
read_key(struct texts *texts, const char *text, size_t len,
    struct serve_source *into, char *error, size_t cap)
{
    const char *equals = memchr(text, '=', len);
    const struct option_spec *spec;
    char accepted[512];
    const char *value;
    const char *near;
    const char *name;
    size_t name_len;

    if (equals == NULL) {
        (void)snprintf(error, cap,
            "'%.*s' is not accepted; give KEY=VALUE, as topic=kv", (int)len,
            text);
        return false;
    }
    name_len = (size_t)(equals - text);
    spec = option_find(serve_source_keys, text, name_len);
    name = texts_keep(texts, text, name_len);
    value = texts_keep(texts, equals + 1, len - name_len - 1);
    if (name == NULL || value == NULL) {
        (void)snprintf(error, cap, "out of memory");
        return false;
    }
    if (spec == NULL) {
        near = option_near(serve_source_keys, name);
        (void)snprintf(error, cap, "unknown key '%s'%s%s%s", name,
            near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
            near != NULL ? "'?" : "");
        return false;
    }
    if (option_set(spec, value, OPTION_FROM_WORDS, into) == OPTION_OK)
        return true;
    option_accepted(spec, accepted, sizeof(accepted));
    (void)snprintf(error, cap, "%s: '%s' is not accepted; give %s", spec->name,
        value, accepted);
    return false;
}

bool
given_source_keys(struct texts *texts, const char *text,
    struct serve_source *ret, char *error, size_t cap)
{
    while (*text != '\0') {
        size_t len = strcspn(text, ",");

        if (!read_key(texts, text, len, ret, error, cap))
            return false;
        text += len;
        text += *text == ',';
    }
    return true;
}

/* WORKER[:RANK] */
static bool
read_worker(struct texts *texts, const char *text, size_t len,
    struct serve_source *ret, char *error, size_t cap)
{
    const char *name = texts_keep(texts, text, len);
    char *colon = name != NULL ? strrchr(name, ':') : NULL;

    if (name == NULL) {
        (void)snprintf(error, cap, "out of memory");
        return false;
    }
    if (colon != NULL) {
        if (!endpoint_parse_rank(colon + 1, &ret->rank)) {
            (void)snprintf(error, cap,
                "'%s' is no rank; give a whole number from 0 to 65535 (a name "
                "with a colon needs its rank: %s:0=...)",
                colon + 1, name);
            return false;
        }
        *colon = '\0';
    }
    ret->worker = name;
    return true;
}

bool
given_source_read(struct texts *texts, const char *text,
    struct serve_source *ret, char *error, size_t cap)
{
    const char *equals = strchr(text, '=');
    size_t len;

    if (equals == NULL || equals == text) {
        (void)snprintf(error, cap,
            "'%s' is not accepted; give WORKER=ENDPOINT or "
            "WORKER:RANK=ENDPOINT, as w0=tcp://10.0.0.7:5557",
            text);
        return false;
    }
    if (!read_worker(texts, text, (size_t)(equals - text), ret, error, cap))
        return false;
    len = strcspn(equals + 1, ",");
    ret->endpoint = texts_keep(texts, equals + 1, len);
    if (ret->endpoint == NULL) {
        (void)snprintf(error, cap, "out of memory");
        return false;
    }
    equals += 1 + len;
    return given_source_keys(
        texts, *equals == ',' ? equals + 1 : equals, ret, error, cap);
}

/* ------------------------------------------------------------------ */
/* Endpoints                                                           */

/* Whether a text can be connected to (or, with binds, listened on). */
static bool
check_endpoint(
    const char *key, const char *text, bool binds, char *error, size_t cap)
{
    if (strncmp(text, "tcp://", 6) != 0 && strncmp(text, "ipc://", 6) != 0) {
        (void)snprintf(error, cap,
            "%s: '%s' is not accepted; give tcp://HOST:PORT or ipc://PATH%s%s",
            key, text,
            strstr(text, "://") == NULL && strchr(text, ':') != NULL
                ? ", for instance tcp://"
                : "",
            strstr(text, "://") == NULL && strchr(text, ':') != NULL ? text
                                                                     : "");
        return false;
    }
    if (!binds && endpoint_is_wildcard(text)) {
        (void)snprintf(error, cap,
            "%s: '%s' is where an engine listens, and no address that can be "
            "connected to; give the engine's host, as tcp://127.0.0.1:%s%s",
            key, text, strrchr(text, ':') + 1,
            strcmp(key, "endpoint") == 0 ? ", or bind=yes to listen there"
                                         : "");
        return false;
    }
    return true;
}

/* The endpoint at the host of another one: ":PORT", "+N", a whole one, or
 * a port. */
static const char *
make_endpoint(struct texts *texts, const char *key, const char *endpoint,
    const char *text, uint64_t port, char *error, size_t cap)
{
    const char *colon = strrchr(endpoint, ':');
    bool relative = port != 0 || *text == ':' || *text == '+';
    char made[LONGEST_ENDPOINT + 32];
    const char *kept;
    uint64_t own = 0;

    if (!relative)
        return check_endpoint(key, text, false, error, cap) ? text : NULL;
    if (strncmp(endpoint, "tcp://", 6) != 0 || colon == NULL ||
        strlen(endpoint) > LONGEST_ENDPOINT ||
        !option_number(colon + 1, 0, 65535, &own)) {
        (void)snprintf(error, cap,
            "%s: the endpoint '%s' has no port to begin from; give a whole "
            "one, as ipc://PATH",
            key, endpoint);
        return NULL;
    }
    if (port == 0 &&
        (!option_number(text + 1, 1, 65535, &port) ||
            (*text == '+' && (port += own) > 65535))) {
        (void)snprintf(error, cap,
            "%s: '%s' is not accepted; give :PORT, +N (up to port 65535), or "
            "an endpoint",
            key, text);
        return NULL;
    }
    (void)snprintf(made, sizeof(made), "%.*s:%" PRIu64, (int)(colon - endpoint),
        endpoint, port);
    kept = texts_keep(texts, made, strlen(made));
    if (kept == NULL)
        (void)snprintf(error, cap, "out of memory");
    return kept;
}

/* ------------------------------------------------------------------ */
/* Specs                                                               */

static const char *
first(const char *a, const char *b)
{
    return a != NULL ? a : b;
}

/* What a source and a template of targets have in common. */
static void
fill_spec(struct kve_ingest_spec *spec, const struct serve_source *given,
    const struct serve_options *opts, const struct key_pair *keys)
{
    struct kve_source_opts *source = &spec->source;

    spec->model = first(given->model, opts->model);
    spec->tenant = first(given->tenant, opts->tenant);
    spec->block_size = (uint32_t)(given->block_size != 0 ? given->block_size
                                                         : opts->block_size);
    spec->counting = given->counting != 0 ? given->counting : opts->counting;
    spec->topic_rule = given->topic_rule;
    source->topic = given->topic;
    source->bind = given->bind;
    source->on_loss = given->on_loss != 0 ? given->on_loss : opts->on_loss;
    source->streams = given->streams;
    source->curve.server_key =
        first(given->curve_server_key, opts->curve_server_key);
    if (keys != NULL && source->curve.server_key != NULL) {
        source->curve.public_key = keys->public_key;
        source->curve.secret_key = keys->secret_key;
    }
}

void
discover_spec_make(struct kve_discover_spec *ret,
    const struct serve_source *given, const struct serve_options *opts,
    const struct key_pair *keys)
{
    kve_discover_spec_init(ret);
    fill_spec(&ret->source, given, opts, keys);
    ret->ranks = (uint32_t)(given->ranks != 0 ? given->ranks : opts->ranks);
    ret->replay_port = (uint32_t)(given->replay_port != 0 ? given->replay_port
                                                          : opts->replay_port);
    ret->snapshot_port =
        (uint32_t)(given->snapshot_port != 0 ? given->snapshot_port
                                             : opts->snapshot_port);
}

/* Endpoints of a source that asks for replay and snapshots. */
static bool
fill_endpoints(struct kve_source_opts *source, struct texts *texts,
    const struct serve_source *given, char *error, size_t cap)
{
    const char *snapshot = given->snapshot_endpoint;
    bool binds = given->bind == KVE_BIND_YES || given->bind == KVE_BIND_GUESS;

    if (!check_endpoint("endpoint", given->endpoint, binds, error, cap))
        return false;
    source->endpoint = given->endpoint;
    if (given->replay_endpoint != NULL || given->replay_port != 0) {
        source->replay_endpoint = make_endpoint(texts, "replay_endpoint",
            given->endpoint, first(given->replay_endpoint, ""),
            given->replay_port, error, cap);
        if (source->replay_endpoint == NULL)
            return false;
    }
    if (snapshot != NULL && strcmp(snapshot, "replay") == 0) {
        source->snapshot_endpoint = source->replay_endpoint;
        if (source->replay_endpoint == NULL)
            (void)snprintf(error, cap,
                "snapshot_endpoint: 'replay' is the replay endpoint, and "
                "there is none; give replay_endpoint as well");
        return source->replay_endpoint != NULL;
    }
    if (snapshot != NULL || given->snapshot_port != 0) {
        source->snapshot_endpoint =
            make_endpoint(texts, "snapshot_endpoint", given->endpoint,
                first(snapshot, ""), given->snapshot_port, error, cap);
        if (source->snapshot_endpoint == NULL)
            return false;
    }
    return true;
}

static bool
check_given(const struct serve_source *given, const struct serve_options *opts,
    const struct key_pair *keys, char *error, size_t cap)
{
    if (given->worker == NULL || *given->worker == '\0')
        (void)snprintf(error, cap, "the worker has no name; give worker");
    else if (given->endpoint == NULL)
        (void)snprintf(error, cap,
            "the endpoint is missing; give endpoint, as tcp://10.0.0.7:5557");
    else if (given->rank.set && given->ranks > 1)
        (void)snprintf(error, cap,
            "rank and ranks: a rank has its own endpoint, ranks follow one "
            "another from the endpoint's port; give one of them");
    else if (keys == NULL &&
        first(given->curve_server_key, opts->curve_server_key) != NULL)
        (void)snprintf(error, cap,
            "curve_server_key: our own keys are missing; give --curve-keys "
            "as well");
    else
        return true;
    return false;
}

static bool
is_there(const struct wanted_sources *list, const struct kve_ingest_spec *spec)
{
    for (size_t i = 0; i < list->n; i++) {
        const struct kve_ingest_spec *other = &list->items[i].spec;

        if (other->rank == spec->rank &&
            strcmp(other->worker, spec->worker) == 0 &&
            strcmp(other->model, spec->model) == 0 &&
            strcmp(other->tenant, spec->tenant) == 0)
            return true;
    }
    return false;
}

bool
wanted_sources_add(struct wanted_sources *list, struct texts *texts,
    const struct given_source *given, const struct serve_options *opts,
    const struct key_pair *keys, char *error, size_t cap)
{
    struct kve_ingest_spec spec = KVE_INGEST_SPEC_INIT;
    const struct serve_source *source = &given->source;
    uint32_t ranks = source->ranks > 1 ? (uint32_t)source->ranks : 1;

    if (!check_given(source, opts, keys, error, cap) ||
        !fill_endpoints(&spec.source, texts, source, error, cap))
        return false;
    fill_spec(&spec, source, opts, keys);
    spec.worker = source->worker;
    spec.origin = KVE_ORIGIN_OPTION;
    spec.found_in = given->found_in;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        struct wanted_source *wanted;

        spec.rank = source->rank.set ? (uint32_t)source->rank.value : rank;
        if (ranks > 1) {
            spec.source.rank.value = rank;
            spec.source.rank.set = true;
        }
        if (is_there(list, &spec)) {
            (void)snprintf(error, cap,
                "worker '%s' has a source for rank %" PRIu32
                " already; give another name or rank",
                spec.worker, spec.rank);
            return false;
        }
        if (!list_grow(
                &list->items, &list->cap, list->n, sizeof(*list->items))) {
            (void)snprintf(error, cap, "out of memory");
            return false;
        }
        wanted = &list->items[list->n++];
        wanted->spec = spec;
        wanted->where = given->where;
        wanted->id = 0;
    }
    return true;
}

static bool
same_text(const char *a, const char *b)
{
    return strcmp(first(a, ""), first(b, "")) == 0;
}

bool
wanted_source_same(const struct wanted_source *a, const struct wanted_source *b)
{
    const struct kve_ingest_spec *p = &a->spec;
    const struct kve_ingest_spec *q = &b->spec;
    const struct kve_source_opts *s = &p->source;
    const struct kve_source_opts *t = &q->source;

    return p->rank == q->rank && same_text(p->worker, q->worker) &&
        same_text(p->model, q->model) && same_text(p->tenant, q->tenant) &&
        p->block_size == q->block_size && p->counting == q->counting &&
        p->topic_rule == q->topic_rule && same_text(s->endpoint, t->endpoint) &&
        same_text(s->replay_endpoint, t->replay_endpoint) &&
        same_text(s->snapshot_endpoint, t->snapshot_endpoint) &&
        same_text(s->topic, t->topic) && s->bind == t->bind &&
        s->on_loss == t->on_loss && s->streams == t->streams &&
        s->rank.set == t->rank.set && s->rank.value == t->rank.value &&
        same_text(s->curve.server_key, t->curve.server_key) &&
        same_text(s->curve.public_key, t->curve.public_key);
}

void
wanted_sources_release(struct wanted_sources *list)
{
    free(list->items);
    memset(list, 0, sizeof(*list));
}
