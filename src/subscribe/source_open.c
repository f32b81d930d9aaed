/*
 * source_open.c - a source comes and goes: options, sockets, memory.
 */
#include "subscribe/source.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "subscribe/loop.h"
#include "subscribe/streams.h"
#include "transport/context.h"
#include "transport/endpoint.h"

#include <inttypes.h>
#include <string.h>

/* ---- options ------------------------------------------------------- */

static kve_status
move_by_rank(const char *endpoint, struct kve_int rank, char **ret_text,
    struct kve_error *err)
{
    char text[KVE_ENDPOINT_MAX];
    kve_status status = kve_endpoint_of_rank(
        endpoint, rank.set ? (uint32_t)rank.value : 0, text, sizeof(text), err);

    if (status != KVE_OK)
        return status;
    *ret_text = kve_mem_strdup(text);
    return *ret_text != NULL ? KVE_OK : kve_fail_nomem(err, "endpoint");
}

static uint32_t
or_default(uint32_t given, uint32_t value)
{
    return given != 0 ? given : value;
}

static kve_status
check_choices(const struct kve_source_opts *o, struct kve_error *err)
{
    if (o->bind > KVE_BIND_GUESS)
        return kve_fail(err, KVE_E_INVAL,
            "bind is %u; accepted are 0 (default), 1 (yes), 2 (no), 3 (guess)",
            o->bind);
    if (o->on_loss > KVE_ON_LOSS_REBUILD)
        return kve_fail(err, KVE_E_INVAL,
            "on_loss is %u; accepted are 0 (default), 1 (keep), 2 (rebuild)",
            o->on_loss);
    if (o->start > KVE_START_NUMBER)
        return kve_fail(err, KVE_E_INVAL,
            "start is %u; accepted are 0 (default), 1 (live), 2 (number)",
            o->start);
    if (o->start == KVE_START_NUMBER && o->replay_endpoint == NULL)
        return kve_fail(err, KVE_E_INVAL,
            "start is a number, but there is no replay_endpoint to ask for "
            "it");
    if (o->streams > KVE_STREAMS_SPLIT)
        return kve_fail(err, KVE_E_INVAL,
            "streams is %u; accepted are 0 (default), 1 (one), 2 (split)",
            o->streams);
    if (o->resume != NULL &&
        (o->start != KVE_START_DEFAULT || o->first_number != 0))
        return kve_fail(err, KVE_E_INVAL,
            "resume and %s are given; a source that resumes begins where its "
            "position says: leave out one of them",
            o->start != KVE_START_DEFAULT ? "start" : "first_number");
    if (o->rank.set && (o->rank.value < 0 || o->rank.value > 65535))
        return kve_fail(err, KVE_E_INVAL,
            "rank is %lld; accepted are 0 to 65535", (long long)o->rank.value);
    return KVE_OK;
}

static const char *
none_if_empty(const char *text)
{
    return text != NULL && text[0] == '\0' ? NULL : text;
}

/* Defaults filled in, limits checked; pointers are still the caller's. */
static kve_status
check_opts(struct kve_source_opts *o, struct kve_error *err)
{
    if (o->endpoint == NULL)
        o->endpoint = "tcp://127.0.0.1:5557";
    if (o->topic == NULL)
        o->topic = "";
    o->replay_endpoint = none_if_empty(o->replay_endpoint);
    o->snapshot_endpoint = none_if_empty(o->snapshot_endpoint);

    kve_status status = check_choices(o, err);
    if (status != KVE_OK)
        return status;
    o->recv_hwm = or_default(o->recv_hwm, 4096);
    o->hold_items = or_default(o->hold_items, 65536);
    o->replay_timeout_ms = or_default(o->replay_timeout_ms, 5000);
    o->tail_probe_ms = or_default(o->tail_probe_ms, 500);
    o->reconnect_ms = or_default(o->reconnect_ms, 100);
    o->reconnect_max_ms = or_default(o->reconnect_max_ms, 5000);
    o->resolve_timeout_ms = or_default(o->resolve_timeout_ms, 5000);
    o->snapshot_timeout_ms = or_default(o->snapshot_timeout_ms, 5000);
    o->heartbeat_timeout_ms = or_default(o->heartbeat_timeout_ms, 5000);
    o->max_streams = or_default(o->max_streams, 256);
    o->stream_idle_ms = or_default(o->stream_idle_ms, 600000);
    if (o->max_body_len == 0)
        o->max_body_len = (size_t)16 << 20;
    if (o->hold_bytes == 0)
        o->hold_bytes = (size_t)64 << 20;
    if (o->snapshot_max_bytes == 0)
        o->snapshot_max_bytes = (size_t)256 << 20;
    if (o->on_loss == KVE_ON_LOSS_DEFAULT)
        o->on_loss =
            o->replay_endpoint != NULL ? KVE_ON_LOSS_REBUILD : KVE_ON_LOSS_KEEP;
    return KVE_OK;
}

/* ---- life ---------------------------------------------------------- */

static kve_status
copy_key(char **ret_key, const char *key, struct kve_error *err)
{
    if (key == NULL)
        return KVE_OK;
    *ret_key = kve_mem_strdup(key);
    return *ret_key != NULL ? KVE_OK : kve_fail_nomem(err, "key");
}

/* The strings of opts, which are the caller's, become ours. */
static kve_status
copy_strings(struct kve_source *s, struct kve_error *err)
{
    struct kve_source_opts *o = &s->opts;
    struct kve_curve given = o->curve;
    kve_status status = move_by_rank(o->endpoint, o->rank, &s->endpoint, err);

    memset(&o->curve, 0, sizeof(o->curve));
    if (status == KVE_OK && o->replay_endpoint != NULL)
        status =
            move_by_rank(o->replay_endpoint, o->rank, &s->replay_endpoint, err);
    if (status == KVE_OK && o->snapshot_endpoint != NULL)
        status = move_by_rank(
            o->snapshot_endpoint, o->rank, &s->snapshot_endpoint, err);
    if (status == KVE_OK) {
        s->topic = kve_mem_strdup(o->topic);
        if (s->topic == NULL)
            status = kve_fail_nomem(err, "topic");
        else
            s->topic_len = strlen(s->topic);
    }
    if (status == KVE_OK)
        status = copy_key(&s->curve_keys[0], given.server_key, err);
    if (status == KVE_OK)
        status = copy_key(&s->curve_keys[1], given.public_key, err);
    if (status == KVE_OK)
        status = copy_key(&s->curve_keys[2], given.secret_key, err);
    o->curve.server_key = s->curve_keys[0];
    o->curve.public_key = s->curve_keys[1];
    o->curve.secret_key = s->curve_keys[2];
    o->endpoint = s->endpoint;
    o->replay_endpoint = s->replay_endpoint;
    o->snapshot_endpoint = s->snapshot_endpoint;
    o->topic = s->topic;
    return status;
}

struct kve_dial_opts
kve_source_dial_opts(
    const struct kve_source *s, const char *endpoint, uint32_t bind)
{
    struct kve_dial_opts dial = { .endpoint = endpoint,
        .topic = s->topic,
        .bind = bind,
        .recv_hwm = s->opts.recv_hwm,
        .max_body_len = s->opts.max_body_len,
        .reconnect_ms = s->opts.reconnect_ms,
        .reconnect_max_ms = s->opts.reconnect_max_ms,
        .resolve_timeout_ms = s->opts.resolve_timeout_ms,
        .curve = s->opts.curve };

    return dial;
}

static int64_t
ns_or_never(uint32_t ms)
{
    return ms == KVE_NONE ? KVE_NEVER : ms * KVE_MS;
}

static kve_status
create_machine(struct kve_source *s, struct kve_error *err)
{
    struct kve_machine_opts opts = {
        .has_replay = s->replay_endpoint != NULL,
        .has_snapshot = s->snapshot_endpoint != NULL,
        .rebuild = s->opts.on_loss == KVE_ON_LOSS_REBUILD,
        .start = s->opts.start,
        .first_number = s->opts.first_number,
        .hold_bytes = s->opts.hold_bytes,
        .hold_items = s->opts.hold_items,
        .replay_timeout_ns = s->opts.replay_timeout_ms * KVE_MS,
        .snapshot_timeout_ns = s->opts.snapshot_timeout_ms * KVE_MS,
        .tail_probe_ns = ns_or_never(s->opts.tail_probe_ms),
        .heartbeat_timeout_ns = ns_or_never(s->opts.heartbeat_timeout_ms),
        .counters = &s->counters,
    };

    return kve_machine_create(&opts, &s->machine, err);
}

/* Where the machine goes on; the position is the caller's. */
static kve_status
resume(struct kve_source *s, bool split, struct kve_error *err)
{
    const struct kve_position *position = s->opts.resume;

    s->opts.resume = NULL;
    if (position == NULL)
        return KVE_OK;
    if (split)
        return kve_fail(err, KVE_E_INVAL,
            "resume is given for a socket of streams, each of which has a "
            "position of its own; call kve_sub_resume() when KVE_NOTICE_STREAM "
            "tells of one, or set streams to 1 (one)");
    if (!kve_machine_resume(s->machine, kve_now_ns(), position))
        return kve_fail(err, KVE_E_INVAL,
            "resume is no position: batch %" PRIu64 ", missing %" PRIu64
            "..%" PRIu64 "; give one that kve_sub_position() filled in",
            position->number, position->missing_first, position->missing_last);
    return KVE_OK;
}

/* Whether streams are told apart. */
static kve_status
splits(const struct kve_source *s, bool *ret_splits, struct kve_error *err)
{
    struct kve_endpoint endpoint;
    kve_status status =
        kve_endpoint_parse(s->endpoint, "endpoint", &endpoint, err);

    if (status != KVE_OK)
        return status;
    *ret_splits = s->opts.streams == KVE_STREAMS_SPLIT ||
        (s->opts.streams == KVE_STREAMS_DEFAULT &&
            kve_endpoint_binds(&endpoint, s->endpoint, s->opts.bind, false));
    return KVE_OK;
}

static kve_status
find_transports(const struct kve_source *s, struct kve_error *err)
{
    const char *endpoints[] = { s->endpoint, s->replay_endpoint,
        s->snapshot_endpoint };

    for (size_t i = 0; i < sizeof(endpoints) / sizeof(endpoints[0]); i++)
        if (endpoints[i] != NULL &&
            kve_transport_find(endpoints[i], err) == NULL)
            return KVE_E_INVAL;
    return KVE_OK;
}

/* What is the same for a source and a stream. */
static kve_status
init_common(struct kve_source *s, struct kve_loop *loop, struct kve_error *err)
{
    s->loop = loop;
    s->live_dry = true;
    s->events_dry = true;
    s->live_at = KVE_NEVER;
    s->retry_at = KVE_NEVER;
    s->idle_at = KVE_NEVER;
    s->ask.quiet_at = KVE_NEVER;
    if (!loop->threaded)
        return KVE_OK;
    if (pthread_mutex_init(&s->info_lock, NULL) != 0)
        return kve_fail(err, KVE_E_SYSTEM, "mutex of a source");
    s->has_info_lock = true;
    return KVE_OK;
}

kve_status
kve_source_create(struct kve_loop *loop, const struct kve_source_opts *opts,
    struct kve_source **ret_source, struct kve_error *err)
{
    struct kve_source *s = kve_mem_zalloc(1, sizeof(*s));
    bool split = false;
    kve_status status;

    if (s == NULL)
        return kve_fail_nomem(err, "source");
    s->opts = *opts;
    status = init_common(s, loop, err);
    if (status == KVE_OK)
        status = check_opts(&s->opts, err);
    if (status == KVE_OK) {
        struct kve_source_opts given = s->opts; /* not moved by rank */

        s->rank = s->opts.rank;
        status = copy_strings(s, err);
        if (status == KVE_OK)
            status = splits(s, &split, err);
        if (status == KVE_OK && split)
            status = kve_streams_create(&given, &s->streams, err);
    }
    if (status == KVE_OK)
        status = find_transports(s, err);
    if (status == KVE_OK)
        status = create_machine(s, err);
    if (status == KVE_OK)
        status = resume(s, split, err);
    if (status == KVE_OK) {
        struct kve_dial_opts dial =
            kve_source_dial_opts(s, s->endpoint, s->opts.bind);

        s->transport = kve_transport_find(s->endpoint, NULL);
        status =
            s->transport->live_in_open(loop->context, &dial, &s->live, err);
    }
    if (status == KVE_OK) {
        kve_source_publish(s);
        *ret_source = s;
        s = NULL;
    }
    kve_source_destroy(s);
    return status;
}

/* Where a stream asks; one that rank cannot be added to has nowhere. */
static kve_status
stream_endpoint(struct kve_source *s, const char *base, char **ret_endpoint)
{
    kve_status status;

    if (base == NULL)
        return KVE_OK;
    status = move_by_rank(base, s->rank, ret_endpoint, NULL);
    if (status == KVE_E_NOMEM)
        return status;
    if (status != KVE_OK)
        kve_context_log(s->loop->context, KVE_LOG_WARNING,
            "%s has no place for rank %lld; that stream asks nobody", base,
            (long long)s->rank.value);
    return KVE_OK;
}

kve_status
kve_source_create_stream(struct kve_source *parent, struct kve_str topic,
    struct kve_int rank, struct kve_source **ret_source, struct kve_error *err)
{
    struct kve_source *s = kve_mem_zalloc(1, sizeof(*s));
    bool ranked = rank.set && rank.value >= 0 && rank.value <= 65535;
    kve_status status;

    if (s == NULL)
        return kve_fail_nomem(err, "stream");
    s->parent = parent;
    s->parent_id = parent->id;
    s->opts = parent->opts;
    s->endpoint = parent->endpoint;
    s->rank = rank;
    status = init_common(s, parent->loop, err);
    if (status == KVE_OK) {
        s->topic = kve_mem_alloc(topic.len + 1);
        if (s->topic == NULL)
            status = kve_fail_nomem(err, "topic of a stream");
    }
    if (status == KVE_OK) {
        if (topic.len > 0)
            memcpy(s->topic, topic.data, topic.len);
        s->topic[topic.len] = '\0';
        s->topic_len = topic.len;
        if (ranked || !rank.set)
            status = stream_endpoint(
                s, parent->streams->replay_base, &s->replay_endpoint);
    }
    if (status == KVE_OK && (ranked || !rank.set))
        status = stream_endpoint(
            s, parent->streams->snapshot_base, &s->snapshot_endpoint);
    if (status == KVE_OK)
        status = create_machine(s, err);
    if (status == KVE_OK) {
        *ret_source = s;
        s = NULL;
    } else if (status == KVE_E_NOMEM) {
        status = kve_fail_nomem(err, "stream");
    }
    kve_source_destroy(s);
    return status;
}

kve_status
kve_source_sync(struct kve_source *s, struct kve_error *err)
{
    int fds[KVE_MAX_FDS];
    size_t n = s->live != NULL ? s->transport->live_in_fds(s->live, fds) : 0;
    kve_status status =
        kve_loop_watch(s->loop, s, KVE_TAG_LIVE, &s->watched, fds, n, err);

    s->unwatched = status != KVE_OK;
    return status;
}

void
kve_source_close(struct kve_source *s)
{
    if (s->closed)
        return;
    s->closed = true;
    /* One that never had a message may be another thread's still. */
    if (s->live_msg.release != NULL)
        kve_loop_forget(s->loop);
    kve_ask_end(s);
    kve_msg_release(&s->live_msg);
    s->has_live = false;
    if (s->live == NULL)
        return;

    struct kve_live_in *live = s->live;
    s->live = NULL;
    s->live_at = KVE_NEVER;
    (void)kve_source_sync(s, NULL); /* only removes */
    s->transport->live_in_close(live);
}

void
kve_source_destroy(struct kve_source *s)
{
    if (s == NULL)
        return;
    kve_source_close(s);
    kve_machine_destroy(s->machine);
    for (size_t i = 0; i < 3; i++) {
        if (s->curve_keys[i] != NULL)
            explicit_bzero(s->curve_keys[i], strlen(s->curve_keys[i]));
        kve_mem_free(s->curve_keys[i]);
    }
    kve_streams_destroy(s->streams);
    kve_mem_free(s->topic);
    kve_mem_free(s->snapshot_endpoint);
    kve_mem_free(s->replay_endpoint);
    if (s->parent == NULL)
        kve_mem_free(s->endpoint);
    if (s->has_info_lock)
        (void)pthread_mutex_destroy(&s->info_lock);
    kve_mem_free(s);
}
