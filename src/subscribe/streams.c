/*
 * streams.c - see streams.h.
 */
#include "subscribe/streams.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "stream/digest.h"
#include "subscribe/loop.h"
#include "subscribe/set.h"
#include "transport/context.h"

#include <kvevents/codec.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FIRST_BUCKETS 16
#define MAX_TOPIC 1024

kve_status
kve_streams_create(const struct kve_source_opts *opts,
    struct kve_stream_table **ret_streams, struct kve_error *err)
{
    struct kve_stream_table *st = kve_mem_zalloc(1, sizeof(*st));

    if (st == NULL)
        return kve_fail_nomem(err, "streams");
    st->n_buckets = FIRST_BUCKETS;
    st->buckets = kve_mem_zalloc(FIRST_BUCKETS, sizeof(struct kve_source *));
    if (opts->replay_endpoint != NULL)
        st->replay_base = kve_mem_strdup(opts->replay_endpoint);
    if (opts->snapshot_endpoint != NULL)
        st->snapshot_base = kve_mem_strdup(opts->snapshot_endpoint);
    if (st->buckets == NULL ||
        (opts->replay_endpoint != NULL && st->replay_base == NULL) ||
        (opts->snapshot_endpoint != NULL && st->snapshot_base == NULL)) {
        kve_streams_destroy(st);
        return kve_fail_nomem(err, "streams");
    }
    *ret_streams = st;
    return KVE_OK;
}

void
kve_streams_destroy(struct kve_stream_table *st)
{
    if (st == NULL)
        return;
    kve_mem_free(st->snapshot_base);
    kve_mem_free(st->replay_base);
    kve_mem_free(st->buckets);
    kve_mem_free(st);
}

/* ---- the table ----------------------------------------------------- */

static uint64_t
hash_of(struct kve_span topic, struct kve_int rank)
{
    uint64_t hash = kve_digest(topic.data, topic.len);

    if (rank.set)
        hash ^= ((uint64_t)rank.value + 1) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ (hash >> 32);
}

static bool
matches(const struct kve_source *s, struct kve_span topic, struct kve_int rank)
{
    return s->rank.set == rank.set &&
        (!rank.set || s->rank.value == rank.value) &&
        s->topic_len == topic.len &&
        (topic.len == 0 || memcmp(s->topic, topic.data, topic.len) == 0);
}

static struct kve_source *
look_up(struct kve_stream_table *st, struct kve_span topic, struct kve_int rank)
{
    struct kve_source *s = st->last;
    uint64_t hash;

    if (s != NULL && matches(s, topic, rank))
        return s;
    hash = hash_of(topic, rank);
    s = st->buckets[hash & (st->n_buckets - 1)];
    while (s != NULL && (s->topic_hash != hash || !matches(s, topic, rank)))
        s = s->next_stream;
    return s;
}

static void
put(struct kve_stream_table *st, struct kve_source *s)
{
    struct kve_source **at = &st->buckets[s->topic_hash & (st->n_buckets - 1)];

    s->next_stream = *at;
    *at = s;
}

/* Without memory for it chains get longer, that is all. */
static void
grow(struct kve_stream_table *st)
{
    size_t n = st->n_buckets;
    struct kve_source **old = st->buckets;
    struct kve_source **buckets;

    if (st->n < n)
        return;
    buckets = kve_mem_zalloc(2 * n, sizeof(struct kve_source *));
    if (buckets == NULL)
        return;
    st->buckets = buckets;
    st->n_buckets = 2 * n;
    for (size_t i = 0; i < n; i++)
        while (old[i] != NULL) {
            struct kve_source *s = old[i];
            old[i] = s->next_stream;
            put(st, s);
        }
    kve_mem_free(old);
}

void
kve_streams_forget(struct kve_source *parent, struct kve_source *stream)
{
    struct kve_stream_table *st = parent->streams;
    struct kve_source **at =
        &st->buckets[stream->topic_hash & (st->n_buckets - 1)];

    while (*at != NULL && *at != stream)
        at = &(*at)->next_stream;
    if (*at == NULL)
        return;
    *at = stream->next_stream;
    st->n--;
    if (st->last == stream)
        st->last = NULL;
    if (parent->busy == stream)
        parent->busy = NULL;
}

/* ---- new ones ------------------------------------------------------ */

/* Counted; told the first time, the second, the fourth, ... */
static void
refuse(struct kve_source *parent, const char *why)
{
    uint64_t n = ++parent->streams->refused;
    struct kve_notice_args args = { 0 };

    kve_sub_count(&parent->counters, KVE_COUNTER_SUB_STREAMS_REFUSED, 1);
    if (!kve_is_worth_a_line(n))
        return;
    args.detail = why;
    kve_source_notify(parent, KVE_NOTICE_STREAMS_FULL, &args);
}

static void
tell_new(struct kve_source *s)
{
    struct kve_notice_args args = { .first = s->parent_id };
    struct kve_str topic = { s->topic, s->topic_len };
    char name[200];
    char text[280];

    kve_printable(name, sizeof(name), topic);
    if (s->rank.set)
        (void)snprintf(text, sizeof(text), "topic '%s', rank %" PRId64, name,
            s->rank.value);
    else
        (void)snprintf(text, sizeof(text), "topic '%s', no rank", name);
    args.detail = text;
    kve_source_notify(s, KVE_NOTICE_STREAM, &args);
}

static kve_status
create(struct kve_source *parent, struct kve_span topic, struct kve_int rank,
    int64_t now_ns, struct kve_source **ret_stream, struct kve_error *err)
{
    struct kve_stream_table *st = parent->streams;
    struct kve_str name = { (const char *)topic.data, topic.len };
    struct kve_source *s = NULL;
    kve_status status = kve_source_create_stream(parent, name, rank, &s, err);

    if (status == KVE_OK)
        status = kve_set_enter(parent->loop->set, s, err);
    if (status != KVE_OK) {
        kve_source_destroy(s);
        return status;
    }
    s->topic_hash = hash_of(topic, rank);
    s->heard_at = now_ns;
    s->idle_at = parent->opts.stream_idle_ms == KVE_NONE
        ? KVE_NEVER
        : now_ns + parent->opts.stream_idle_ms * KVE_MS;
    s->link_up = parent->connected;
    st->n++;
    grow(st);
    put(st, s);
    st->last = s;
    s->attached = true;
    kve_sub_count(&parent->counters, KVE_COUNTER_SUB_STREAMS, 1);
    kve_source_publish(s);
    tell_new(s);
    kve_loop_reschedule(s->loop, s);
    *ret_stream = s;
    return KVE_OK;
}

/* A batch whose rank could not be read, of no stream that is known. If one
 * lost it, that one will see its number missing. */
static void
refuse_broken(struct kve_source *parent, uint64_t number)
{
    const struct kve_error *error = &parent->loop->decoded.error;
    struct kve_notice_args args = { number, number, 0, 0, 0, 0, error->offset,
        NULL };
    char text[320];

    kve_sub_count(&parent->counters, KVE_COUNTER_SUB_UNREADABLE_BATCHES, 1);
    (void)snprintf(text, sizeof(text),
        "batch %" PRIu64 ", byte %zu: %s: %s; of which stream is not known",
        number, error->offset, kve_status_str(error->status), error->detail);
    args.detail = text;
    kve_source_notify(parent, KVE_NOTICE_UNREADABLE, &args);
}

kve_status
kve_streams_find(struct kve_source *parent, const struct kve_message *message,
    int64_t now_ns, struct kve_source **ret_stream, struct kve_error *err)
{
    struct kve_stream_table *st = parent->streams;
    struct kve_int rank = kve_batch_get_info(parent->loop->batch)->rank;
    struct kve_source *s = look_up(st, message->topic, rank);
    char text[160];
    kve_status status;

    *ret_stream = NULL;
    if (s != NULL) {
        st->last = s;
        *ret_stream = s;
        return KVE_OK;
    }
    if (parent->loop->decoded.status != KVE_OK) {
        refuse_broken(parent, message->number);
        return KVE_OK;
    }
    if (message->topic.len > MAX_TOPIC) {
        (void)snprintf(text, sizeof(text),
            "a topic of %zu bytes; accepted are %d", message->topic.len,
            MAX_TOPIC);
        refuse(parent, text);
        return KVE_OK;
    }
    if (st->n >= parent->opts.max_streams) {
        (void)snprintf(text, sizeof(text),
            "there are %zu streams already; raise max_streams", st->n);
        refuse(parent, text);
        return KVE_OK;
    }
    status = create(parent, message->topic, rank, now_ns, ret_stream, err);
    if (status == KVE_E_NOMEM)
        return status;
    if (status != KVE_OK)
        refuse(parent, "the subscriber is full; raise max_sources");
    return KVE_OK;
}

/* ---- news of the connection ---------------------------------------- */

static void
pass_on(struct kve_source *s, bool up)
{
    if (up) {
        s->link_up = true;
    } else {
        s->link_up = false;
        s->link_down = true;
    }
    kve_loop_enqueue(s->loop, s);
}

void
kve_streams_link(struct kve_source *parent, bool up)
{
    struct kve_stream_table *st = parent->streams;

    for (size_t i = 0; i < st->n_buckets; i++)
        for (struct kve_source *s = st->buckets[i]; s != NULL;
             s = s->next_stream)
            pass_on(s, up);
}

void
kve_streams_reset(struct kve_source *parent, struct kve_span topic)
{
    struct kve_stream_table *st = parent->streams;

    for (size_t i = 0; i < st->n_buckets; i++)
        for (struct kve_source *s = st->buckets[i]; s != NULL;
             s = s->next_stream) {
            if (!matches(s, topic, s->rank))
                continue;
            s->link_reset = true;
            kve_loop_enqueue(s->loop, s);
        }
}

bool
kve_stream_take_news(struct kve_source *s, int64_t now_ns)
{
    if (s->link_down) {
        s->link_down = false;
        kve_machine_disconnected(s->machine, now_ns);
    } else if (s->link_up) {
        s->link_up = false;
        kve_machine_connected(s->machine, now_ns);
    } else if (s->link_reset) {
        s->link_reset = false;
        kve_machine_reset(s->machine, now_ns);
    } else {
        return false;
    }
    return true;
}

kve_status
kve_stream_settle(struct kve_source *s, struct kve_turn *turn, bool *ret_done,
    struct kve_error *err)
{
    kve_status status;

    do
        status = kve_source_run_actions(s, turn, ret_done, err);
    while (status == KVE_OK && *ret_done && !kve_source_gone(s) &&
        kve_stream_take_news(s, turn->now_ns));
    return status;
}
