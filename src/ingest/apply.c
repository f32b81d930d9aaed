/*
 * apply.c - a batch comes: to which instance it goes, and what it came to.
 *
 * This is the hot path. It takes the entry's own lock, allocates nothing, and
 * makes no text unless something is wrong.
 */
#include "ingest/parts.h"

#include "base/status.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What one batch came to. */
struct outcome {
    kve_status status;
    struct kve_index_applied applied;
    struct kve_error err;
    bool passed_over; /* the source is paused or removed */
    bool other_rank;
};

/* ---- what went wrong ---- */

static void
tell_not_applied(struct kve_source_entry *e, const struct kve_delivery *d,
    const struct outcome *out)
{
    struct kve_ingest_event event;
    char text[400];

    if (out->status != KVE_OK)
        (void)snprintf(text, sizeof(text),
            "batch %" PRIu64 " was not applied to its end: %s: %s", d->number,
            kve_status_str(out->status), out->err.detail);
    else
        (void)snprintf(text, sizeof(text),
            "batch %" PRIu64 ": %" PRIu64 " events were not applied, whole or "
            "in part: memory, a limit, or a shape that can not be",
            d->number, out->applied.refused);
    kve_entry_say(e, text);
    memset(&event, 0, sizeof(event));
    event.type = KVE_INGEST_EVENT_NOT_APPLIED;
    event.number = d->number;
    event.detail = text;
    kve_ingest_tell_event(e, &event);
}

/* Under applying. */
static void
note_incomplete(struct kve_source_entry *e, const struct kve_delivery *d)
{
    if (d->hidden) {
        e->twin_incomplete = true;
        return;
    }
    atomic_store(&e->incomplete, true);
    kve_entry_refresh(e);
}

/* ---- block sizes ---- */

static bool
is_new_size(struct kve_source_entry *e, uint32_t size)
{
    for (uint32_t i = 0; i < e->n_sizes; i++)
        if (e->sizes[i] == size)
            return false;
    if (e->n_sizes == KVE_SIZES_KEPT)
        return false;
    e->sizes[e->n_sizes++] = size;
    return true;
}

static void
tell_size(struct kve_source_entry *e, uint32_t size, uint32_t registered)
{
    char text[160];

    atomic_store(&e->sizes_differ, true);
    kve_ingest_count(e, KVE_COUNTER_INGEST_BLOCK_SIZE, 1);
    (void)snprintf(text, sizeof(text),
        "the stream has blocks of %" PRIu32 " tokens; registered were %" PRIu32
        "; what the stream says counts",
        size, registered);
    kve_entry_say(e, text);
    kve_ingest_tell(e, KVE_INGEST_EVENT_BLOCK_SIZE, text);
}

/* Each size that was not registered is told once. */
static void
check_sizes(struct kve_source_entry *e, kve_batch *batch)
{
    uint32_t registered =
        atomic_load_explicit(&e->block_size, memory_order_relaxed);
    const struct kve_event *event;

    if (registered == 0)
        return;
    kve_batch_rewind(batch);
    while ((event = kve_batch_next(batch)) != NULL)
        if (event->type == KVE_EVENT_STORED && event->block_size != 0 &&
            event->block_size != registered &&
            is_new_size(e, event->block_size))
            tell_size(e, event->block_size, registered);
}

/* ---- to the index ---- */

/* The twin of the instance, begun with the first batch that is for it. */
static kve_status
find_twin(struct kve_source_entry *e, struct kve_feed *feed,
    kve_instance *ret_twin, struct kve_error *err)
{
    kve_status status = KVE_OK;

    if (feed->twin_failed)
        return kve_fail(
            err, KVE_E_NOMEM, "the instance has no twin to rebuild it");
    if (feed->twin == 0) {
        status = kve_index_rebuild_begin(
            e->ingest->index, feed->instance, &feed->twin, err);
        feed->twin_failed = status != KVE_OK && status != KVE_E_NOT_FOUND;
    }
    *ret_twin = feed->twin;
    return status;
}

static void
apply_to(struct kve_source_entry *e, struct kve_feed *feed,
    const struct kve_delivery *d, struct outcome *out)
{
    kve_instance into = feed->instance;

    out->status = KVE_OK;
    if (d->hidden)
        out->status = find_twin(e, feed, &into, &out->err);
    if (out->status == KVE_OK)
        out->status = kve_index_apply_batch(
            e->ingest->index, into, d->batch, &out->applied, &out->err);
}

/* Where what is visible stands after the batch. */
static void
note_position(struct kve_source_entry *e, const struct kve_delivery *d)
{
    struct kve_position position;

    if (d->hidden) {
        e->twin_started = true;
        e->twin_number = d->number;
        return;
    }
    if (kve_sub_position(e->ingest->sub, d->source, &position) != KVE_OK ||
        position.number != d->number)
        memset(&position, 0, sizeof(position));
    kve_entry_stands(e, &position);
}

/* Under applying. */
static bool
passes_over(struct kve_source_entry *e, const struct kve_delivery *d)
{
    return e->dead || e->paused || atomic_load(&e->sub_id) != d->source;
}

/* false: the instance is gone; another one has to take its place. */
static bool
apply(struct kve_source_entry *e, size_t feed, const struct kve_delivery *d,
    struct outcome *out)
{
    bool done = true;

    (void)pthread_mutex_lock(&e->applying);
    out->passed_over = passes_over(e, d);
    if (!out->passed_over) {
        apply_to(e, &e->feeds[feed], d, out);
        done = out->status != KVE_E_NOT_FOUND;
        if (done)
            note_position(e, d);
        if (out->status != KVE_OK || out->applied.refused > 0)
            note_incomplete(e, d);
    }
    (void)pthread_mutex_unlock(&e->applying);
    return done;
}

/* A batch that has no instance to go to. */
static void
fail_feed(struct kve_source_entry *e, const struct kve_delivery *d,
    struct outcome *out)
{
    (void)pthread_mutex_lock(&e->applying);
    out->passed_over = passes_over(e, d);
    if (!out->passed_over) {
        note_position(e, d);
        note_incomplete(e, d);
    }
    (void)pthread_mutex_unlock(&e->applying);
}

static void
ingest(struct kve_source_entry *e, const struct kve_delivery *d,
    struct outcome *out)
{
    struct kve_int rank = kve_batch_get_info(d->batch)->rank;
    int64_t of = rank.set ? rank.value : (int64_t)e->rank;
    size_t feed = e->last_feed;

    out->other_rank = of != (int64_t)e->rank;
    if (e->feeds[feed].rank != of)
        out->status = kve_entry_feed(e, of, &feed, &out->err);
    if (out->status == KVE_OK && apply(e, feed, d, out))
        return;
    /* Another source of this rank came or went, and its instance with it. */
    if (out->status == KVE_E_NOT_FOUND && e->feeds[feed].rank == of)
        out->status = kve_entry_refeed(e, feed, &out->err);
    if (out->status != KVE_OK || !apply(e, feed, d, out))
        fail_feed(e, d, out);
}

static void
tell_batch(struct kve_source_entry *e, const struct kve_delivery *d,
    const struct outcome *out)
{
    struct kve_ingest_event event;

    memset(&event, 0, sizeof(event));
    event.type = KVE_INGEST_EVENT_BATCH;
    event.number = d->number;
    event.delivery = d;
    event.applied = &out->applied;
    kve_batch_rewind(d->batch);
    kve_ingest_tell_event(e, &event);
}

int
kve_ingest_on_batch(void *ctx, const struct kve_delivery *d)
{
    struct kve_source_entry *e = d->user;
    struct outcome out; /* err is long, and written on failure only */

    (void)ctx;
    out.status = KVE_OK;
    out.applied = (struct kve_index_applied)KVE_INDEX_APPLIED_INIT;
    out.err.detail[0] = '\0';
    if (!atomic_load(&e->opened))
        kve_entry_wait_opened(e);
    if (e->many)
        e = kve_stream_find(e, d->source);
    if (e == NULL)
        return 0;
    ingest(e, d, &out);
    if (out.passed_over)
        return 0;
    atomic_store_explicit(
        &e->last_batch_ns, kve_real_ns(), memory_order_relaxed);
    kve_ingest_count(e, KVE_COUNTER_INGEST_BATCHES, 1);
    if (out.other_rank)
        kve_ingest_count(e, KVE_COUNTER_INGEST_OTHER_RANK, 1);
    if (out.status != KVE_OK)
        kve_ingest_count(e, KVE_COUNTER_INGEST_FAILED, 1);
    if (out.applied.refused > 0)
        kve_ingest_count(
            e, KVE_COUNTER_INGEST_NOT_APPLIED, out.applied.refused);
    check_sizes(e, d->batch);
    if (out.status != KVE_OK || out.applied.refused > 0)
        tell_not_applied(e, d, &out);
    if (e->ingest->opts.on_event != NULL)
        tell_batch(e, d, &out);
    return 0;
}
