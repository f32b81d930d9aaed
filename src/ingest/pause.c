/*
 * pause.c - a source is not followed for a while, and goes on.
 *
 * What was applied until then stays, with the position where that was. Going on
 * is from there, or from nothing where there is no position.
 */
#include "ingest/parts.h"

#include "base/clock.h"
#include "base/status.h"

/* ---- leaving the publisher ---- */

/* Its streams are not there until its socket brings them again. */
static void
detach_streams(struct kve_source_entry *e, bool paused)
{
    struct kve_ingest *ingest = e->ingest;

    (void)pthread_rwlock_rdlock(&ingest->registry);
    for (size_t i = 0; e->many && i < ingest->n_entries; i++) {
        struct kve_source_entry *stream = ingest->entries[i];
        kve_source_id id;

        if (stream->parent_id != e->id)
            continue;
        (void)pthread_mutex_lock(&stream->applying);
        id = atomic_exchange(&stream->sub_id, 0);
        if (id != 0)
            kve_entry_keep_counters(stream, id);
        kve_entry_abort_twins(stream);
        atomic_store(&stream->is_paused, paused || stream->paused);
        if (KVE_STATUS_STATE(atomic_load(&stream->sub_status)) !=
            KVE_STATE_GONE) {
            atomic_store(&stream->detached, true);
            kve_entry_set_state(
                stream, KVE_STATE_RECOVERING, KVE_REASON_RESUMED);
        }
        kve_entry_refresh(stream);
        (void)pthread_mutex_unlock(&stream->applying);
    }
    (void)pthread_rwlock_unlock(&ingest->registry);
}

void
kve_entry_stop(struct kve_source_entry *e, bool paused)
{
    detach_streams(e, paused);
    kve_entry_unfollow(e);
    detach_streams(e, paused); /* those that came meanwhile */
    (void)pthread_mutex_lock(&e->applying);
    kve_entry_abort_twins(e);
    (void)pthread_mutex_unlock(&e->applying);
}

void
kve_entry_prepare(struct kve_source_entry *e)
{
    if (!e->position.started)
        kve_entry_clear_all(e);
    if (e->position.started)
        kve_entry_set_state(e, KVE_STATE_RECOVERING, KVE_REASON_RESUMED);
    else
        kve_entry_set_state(e, KVE_STATE_COLD, KVE_REASON_STARTING);
}

/* ---- pause, resume ---- */

static void
set_paused(struct kve_source_entry *e, bool paused)
{
    (void)pthread_mutex_lock(&e->applying);
    e->paused = paused;
    atomic_store(&e->is_paused, paused);
    kve_entry_refresh(e);
    (void)pthread_mutex_unlock(&e->applying);
}

static kve_status
pause_entry(struct kve_source_entry *e, struct kve_error *err)
{
    if (e->paused)
        return kve_fail(err, KVE_E_IN_USE, "source %llu is paused already",
            (unsigned long long)e->id);
    set_paused(e, true);
    /* A stream stays with its socket, and what it says is passed over. */
    if (e->parent_id == 0) {
        kve_entry_stop(e, true);
    } else {
        (void)pthread_mutex_lock(&e->applying);
        kve_entry_abort_twins(e);
        (void)pthread_mutex_unlock(&e->applying);
    }
    kve_ingest_tell(e, KVE_INGEST_EVENT_PAUSED, NULL);
    return KVE_OK;
}

kve_status
kve_ingest_pause(
    struct kve_ingest *ingest, kve_ingest_id id, struct kve_error *err)
{
    struct kve_source_entry *e;
    kve_status status;

    kve_ingest_lock(ingest);
    e = kve_ingest_entry(ingest, id);
    status = e != NULL ? pause_entry(e, err) : kve_ingest_unknown(err, id);
    kve_ingest_unlock(ingest);
    kve_entry_unref(e);
    return status;
}

/* It leaves its socket, whose next message of it makes it anew; there it goes
 * on from its position (stream.c). */
static void
resume_stream(struct kve_source_entry *e)
{
    struct kve_source_entry *parent = kve_ingest_entry(e->ingest, e->parent_id);
    bool paused = parent != NULL && parent->paused;
    kve_source_id id;

    (void)pthread_mutex_lock(&e->applying);
    id = atomic_exchange(&e->sub_id, 0);
    if (id != 0)
        kve_entry_keep_counters(e, id);
    e->paused = false;
    atomic_store(&e->is_paused, paused);
    if (KVE_STATUS_STATE(atomic_load(&e->sub_status)) != KVE_STATE_GONE) {
        atomic_store(&e->detached, true);
        kve_entry_prepare(e);
    }
    kve_entry_refresh(e);
    (void)pthread_mutex_unlock(&e->applying);
    if (id != 0)
        (void)kve_sub_remove(e->ingest->sub, id);
    kve_entry_unref(parent);
}

static kve_status
resume_source(struct kve_source_entry *e, struct kve_error *err)
{
    kve_status status;

    (void)pthread_mutex_lock(&e->applying);
    e->paused = false;
    atomic_store(&e->is_paused, false);
    kve_entry_prepare(e);
    (void)pthread_mutex_unlock(&e->applying);
    detach_streams(e, false);
    status = kve_entry_dial(e, err);
    if (status != KVE_OK) {
        set_paused(e, true);
        detach_streams(e, true);
    }
    return status;
}

static kve_status
resume_entry(struct kve_source_entry *e, struct kve_error *err)
{
    kve_status status = KVE_OK;

    if (!e->paused)
        return kve_fail(err, KVE_E_IN_USE, "source %llu is not paused",
            (unsigned long long)e->id);
    if (e->parent_id != 0)
        resume_stream(e);
    else
        status = resume_source(e, err);
    if (status == KVE_OK) {
        kve_ingest_tell(e, KVE_INGEST_EVENT_RESUMED, NULL);
        kve_entry_open(e);
    }
    return status;
}

kve_status
kve_ingest_resume(
    struct kve_ingest *ingest, kve_ingest_id id, struct kve_error *err)
{
    struct kve_source_entry *e;
    kve_status status;

    kve_ingest_lock(ingest);
    e = kve_ingest_entry(ingest, id);
    status = e != NULL ? resume_entry(e, err) : kve_ingest_unknown(err, id);
    kve_ingest_unlock(ingest);
    kve_entry_unref(e);
    return status;
}
