/*
 * notice.c - what the subscriber says beside batches: state, twins, faults.
 *
 * A source is about every instance that its batches went to: CLEAR empties all
 * of them, SWAP puts each twin in its place. A twin is begun with the first
 * hidden batch of its rank; a rank that has none when the others are swapped in
 * has become empty.
 *
 * Where the source stands. A notice may be told when the subscriber's machine
 * is further already than what was delivered; so what it says of its position
 * is taken only where it is about the batch that was applied last.
 */
#include "ingest/parts.h"

#include "base/status.h"

#include <string.h>

/* ---- twins ---- */

/* Under applying. true: the feed now shows all there is. */
static bool
swap_feed(struct kve_source_entry *e, struct kve_feed *feed)
{
    kve_index *index = e->ingest->index;
    bool whole = !feed->twin_failed;

    if (feed->twin != 0 &&
        kve_index_rebuild_commit(index, feed->instance, NULL) != KVE_OK)
        whole = false;
    if (feed->twin == 0 || !whole)
        (void)kve_index_clear(index, feed->instance, 0, NULL);
    feed->twin = 0;
    feed->twin_failed = false;
    return whole;
}

/* Under applying. */
static void
swap(struct kve_source_entry *e, const struct kve_position *position)
{
    struct kve_position stands;
    bool whole = !e->twin_incomplete;

    for (size_t i = 0; i < e->n_feeds; i++)
        whole = swap_feed(e, &e->feeds[i]) && whole;
    memset(&stands, 0, sizeof(stands));
    if (e->twin_started && position->started &&
        position->number == e->twin_number)
        stands = *position;
    kve_entry_stands(e, &stands);
    e->building = false;
    e->twin_incomplete = false;
    e->twin_started = false;
    atomic_store(&e->restored, false);
    atomic_store(&e->incomplete, !whole);
    kve_ingest_count(e, KVE_COUNTER_INGEST_SWAPPED, 1);
}

/* ---- under applying ---- */

/* Loss, and what else may have changed of it without a batch. */
static void
note_position(struct kve_source_entry *e, const struct kve_position *position)
{
    if (!e->building && position->started && e->position.started &&
        position->number == e->position.number)
        e->position = *position;
}

static void
note_missing(struct kve_source_entry *e, const struct kve_notice *n)
{
    uint64_t first = n->first;
    uint64_t last = n->last;

    if (atomic_load(&e->has_missing)) {
        if (atomic_load(&e->missing_first) < first)
            first = atomic_load(&e->missing_first);
        if (atomic_load(&e->missing_last) > last)
            last = atomic_load(&e->missing_last);
    }
    atomic_store(&e->missing_first, first);
    atomic_store(&e->missing_last, last);
    atomic_store(&e->has_missing, true);
}

/* A stream that left. What it held is not known to be there any more, and it
 * would begin with nothing. */
static void
note_gone(struct kve_source_entry *e)
{
    kve_source_id id = atomic_load(&e->sub_id);

    kve_entry_keep_counters(e, id);
    atomic_store(&e->sub_id, 0);
    kve_entry_clear_all(e);
}

static void
note_state(struct kve_source_entry *e, const struct kve_notice *n)
{
    if (n->state == KVE_STATE_GONE)
        note_gone(e);
    if (n->state == KVE_STATE_LIVE)
        atomic_store(&e->has_missing, false);
    kve_entry_set_state(e, n->state, n->reason);
}

static void
act(struct kve_source_entry *e, const struct kve_notice *n,
    const struct kve_position *position)
{
    switch ((enum kve_notice_type)n->type) {
    case KVE_NOTICE_CLEAR:
        kve_entry_clear_all(e);
        kve_ingest_count(e, KVE_COUNTER_INGEST_CLEARED, 1);
        break;
    case KVE_NOTICE_BEGIN:
        kve_entry_abort_twins(e);
        e->building = true;
        break;
    case KVE_NOTICE_SWAP:
        swap(e, position);
        break;
    case KVE_NOTICE_ABORT:
        kve_entry_abort_twins(e);
        break;
    case KVE_NOTICE_LOST:
        note_missing(e, n);
        break;
    case KVE_NOTICE_STATE:
        note_state(e, n);
        break;
    default:
        break;
    }
    note_position(e, position);
    kve_entry_refresh(e);
}

/* false: nobody is to hear of it. */
static bool
take(struct kve_source_entry *e, const struct kve_notice *n)
{
    struct kve_position position;
    bool taken;

    memset(&position, 0, sizeof(position));
    (void)kve_sub_position(e->ingest->sub, n->source, &position);
    (void)pthread_mutex_lock(&e->applying);
    taken = !e->dead && !e->paused && atomic_load(&e->sub_id) == n->source;
    if (taken)
        act(e, n, &position);
    else if (n->type == KVE_NOTICE_STATE && n->state == KVE_STATE_GONE &&
        atomic_load(&e->sub_id) == n->source)
        atomic_store(&e->sub_id, 0); /* it stays paused, or dead */
    (void)pthread_mutex_unlock(&e->applying);
    return taken;
}

/* ---- for people ---- */

static bool
is_trouble(unsigned type)
{
    switch ((enum kve_notice_type)type) {
    case KVE_NOTICE_DISCONNECTED:
    case KVE_NOTICE_LOST:
    case KVE_NOTICE_UNREADABLE:
    case KVE_NOTICE_UNKNOWN_EVENT:
    case KVE_NOTICE_BAD_FRAMES:
    case KVE_NOTICE_REPLAY_FAILED:
    case KVE_NOTICE_RESOLVE_FAILED:
    case KVE_NOTICE_HOLD_FULL:
    case KVE_NOTICE_SNAPSHOT_FAILED:
    case KVE_NOTICE_STALE:
    case KVE_NOTICE_STREAMS_FULL:
        return true;
    default:
        return false;
    }
}

static void
tell(struct kve_source_entry *e, const struct kve_notice *n)
{
    struct kve_ingest_event event;

    if (is_trouble(n->type))
        kve_entry_say(e, n->detail);
    memset(&event, 0, sizeof(event));
    event.type = KVE_INGEST_EVENT_NOTICE;
    event.detail = n->detail;
    event.notice = n;
    kve_ingest_tell_event(e, &event);
}

void
kve_ingest_on_notice(void *ctx, const struct kve_notice *n)
{
    struct kve_source_entry *e = n->user;

    (void)ctx;
    if (!atomic_load(&e->opened))
        kve_entry_wait_opened(e);
    if (n->type == KVE_NOTICE_STREAM)
        e = kve_stream_begin(e, n);
    else if (e->many && atomic_load(&e->sub_id) != n->source)
        e = kve_stream_find(e, n->source);
    if (e != NULL && take(e, n))
        tell(e, n);
}
