/*
 * change.c - sources are looked for, removed and cleared by callers.
 *
 * One change at a time (changing). The order of a removal: mark it dead, so
 * that nothing more of it is applied; leave the subscriber, which waits for a
 * callback that runs; leave the registry, and drop the instances.
 */
#include "ingest/parts.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "ingest/registry.h"

/* How long a stream that is gone is shown. */
#define GONE_NS (INT64_C(3600) * 1000 * KVE_MS)

void
kve_ingest_lock(struct kve_ingest *ingest)
{
    (void)pthread_mutex_lock(&ingest->changing);
}

void
kve_ingest_unlock(struct kve_ingest *ingest)
{
    (void)pthread_mutex_unlock(&ingest->changing);
}

/* ---- finding ---- */

struct kve_source_entry *
kve_ingest_entry(struct kve_ingest *ingest, kve_ingest_id id)
{
    struct kve_source_entry *e;

    (void)pthread_rwlock_rdlock(&ingest->registry);
    e = kve_registry_find(ingest, id);
    if (e != NULL)
        kve_entry_ref(e);
    (void)pthread_rwlock_unlock(&ingest->registry);
    return e;
}

kve_status
kve_ingest_unknown(struct kve_error *err, kve_ingest_id id)
{
    return kve_fail(err, KVE_E_NOT_FOUND,
        "there is no source %llu; it was removed, or never added",
        (unsigned long long)id);
}

/* The first one for which is(entry, arg), with a reference. */
static struct kve_source_entry *
find_by(struct kve_ingest *ingest,
    bool (*is)(const struct kve_source_entry *e, const void *arg),
    const void *arg)
{
    struct kve_source_entry *found = NULL;

    (void)pthread_rwlock_rdlock(&ingest->registry);
    for (size_t i = 0; i < ingest->n_entries && found == NULL; i++)
        if (is(ingest->entries[i], arg))
            found = ingest->entries[i];
    if (found != NULL)
        kve_entry_ref(found);
    (void)pthread_rwlock_unlock(&ingest->registry);
    return found;
}

kve_status
kve_ingest_list(struct kve_ingest *ingest,
    struct kve_source_entry ***ret_entries, size_t *ret_n,
    struct kve_error *err)
{
    struct kve_source_entry **entries;
    size_t n;

    (void)pthread_rwlock_rdlock(&ingest->registry);
    n = ingest->n_entries;
    entries = kve_mem_array(NULL, n + 1, sizeof(struct kve_source_entry *));
    for (size_t i = 0; entries != NULL && i < n; i++) {
        entries[i] = ingest->entries[i];
        kve_entry_ref(entries[i]);
    }
    (void)pthread_rwlock_unlock(&ingest->registry);
    if (entries == NULL)
        return kve_fail_nomem(err, "a list of sources");
    *ret_entries = entries;
    *ret_n = n;
    return KVE_OK;
}

/* ---- remove ---- */

/* Under registry: it and its streams leave; they are chained. */
static struct kve_source_entry *
leave_all(struct kve_source_entry *e)
{
    struct kve_ingest *ingest = e->ingest;
    struct kve_source_entry *removed = NULL;
    size_t i = e->many ? ingest->n_entries : 0;

    while (i > 0) {
        struct kve_source_entry *stream = ingest->entries[--i];

        if (stream->parent_id != e->id)
            continue;
        kve_entry_kill(stream);
        kve_entry_leave_locked(stream);
        stream->next_removed = removed;
        removed = stream;
    }
    if (e->listed) {
        kve_entry_leave_locked(e);
        e->next_removed = removed;
        removed = e;
    }
    return removed;
}

void
kve_entry_remove(struct kve_source_entry *e)
{
    struct kve_ingest *ingest = e->ingest;
    struct kve_source_entry *removed;

    kve_entry_ref(e);
    kve_entry_kill(e);
    if (KVE_STATUS_STATE(atomic_load(&e->status)) == KVE_STATE_GONE)
        atomic_store(&e->forgotten, true);
    kve_entry_unfollow(e);
    (void)pthread_rwlock_wrlock(&ingest->registry);
    removed = leave_all(e);
    (void)pthread_rwlock_unlock(&ingest->registry);
    if (e->many)
        kve_streams_release(e);
    while (removed != NULL) {
        struct kve_source_entry *next = removed->next_removed;

        kve_ingest_tell(removed, KVE_INGEST_EVENT_REMOVED, NULL);
        kve_entry_unref(removed);
        removed = next;
    }
    kve_entry_unref(e);
}

kve_status
kve_ingest_remove(
    struct kve_ingest *ingest, kve_ingest_id id, struct kve_error *err)
{
    struct kve_source_entry *e;

    kve_ingest_lock(ingest);
    e = kve_ingest_entry(ingest, id);
    if (e != NULL)
        kve_entry_remove(e);
    kve_ingest_unlock(ingest);
    kve_entry_unref(e);
    return e != NULL ? KVE_OK : kve_ingest_unknown(err, id);
}

/* The worker's first source, with a reference. */
static struct kve_source_entry *
first_of(struct kve_ingest *ingest, kve_namespace ns, const char *name)
{
    struct kve_worker_entry *worker;
    struct kve_source_entry *e = NULL;

    (void)pthread_rwlock_rdlock(&ingest->registry);
    worker = kve_registry_worker(ingest, ns, name);
    if (worker != NULL && worker->n_entries > 0) {
        e = worker->entries[0];
        kve_entry_ref(e);
    }
    (void)pthread_rwlock_unlock(&ingest->registry);
    return e;
}

kve_status
kve_ingest_remove_worker(struct kve_ingest *ingest, const char *model,
    const char *tenant, const char *worker, size_t *ret_n,
    struct kve_error *err)
{
    struct kve_source_entry *e;
    kve_namespace ns;
    size_t n = 0;

    if (model == NULL)
        model = "";
    if (tenant == NULL)
        tenant = "default";
    if (worker == NULL)
        return kve_fail(err, KVE_E_INVAL, "worker is missing");
    kve_ingest_lock(ingest);
    ns = kve_index_find_namespace(ingest->index, model, tenant);
    while (ns != 0 && (e = first_of(ingest, ns, worker)) != NULL) {
        kve_entry_remove(e);
        kve_entry_unref(e);
        n++;
    }
    kve_ingest_unlock(ingest);
    if (n == 0)
        return kve_fail(err, KVE_E_NOT_FOUND,
            "there is no worker of this name with this model and tenant");
    if (ret_n != NULL)
        *ret_n = n;
    return KVE_OK;
}

static bool
is_unclaimed(const struct kve_source_entry *e, const void *arg)
{
    (void)arg;
    return !e->claimed && e->parent_id == 0 && e->spec.origin != KVE_ORIGIN_API;
}

size_t
kve_ingest_drop_unclaimed(struct kve_ingest *ingest)
{
    struct kve_source_entry *e;
    size_t n = 0;

    kve_ingest_lock(ingest);
    while ((e = find_by(ingest, is_unclaimed, NULL)) != NULL) {
        kve_entry_remove(e);
        kve_entry_unref(e);
        n++;
    }
    kve_ingest_unlock(ingest);
    return n;
}

/* ---- streams that are gone ---- */

struct age {
    int64_t real_ns; /* gone before that */
    int64_t now_ns;
};

static bool
is_long_gone(const struct kve_source_entry *e, const void *arg)
{
    const struct age *age = arg;

    return e->parent_id != 0 &&
        KVE_STATUS_STATE(atomic_load(&e->status)) == KVE_STATE_GONE &&
        atomic_load(&e->state_since_ns) <= age->real_ns;
}

/* Not brought by its socket since it was resumed, for longer than a stream may
 * be silent. */
static bool
is_missed(const struct kve_source_entry *e, const void *arg)
{
    const struct age *age = arg;
    uint32_t idle_ms = e->spec.source.stream_idle_ms;
    int64_t since = atomic_load(&e->unready_since_ns);

    if (e->parent_id == 0 || idle_ms == KVE_NONE ||
        !atomic_load(&e->detached) || since == 0)
        return false;
    return age->now_ns - since > (idle_ms != 0 ? idle_ms : 600000) * KVE_MS;
}

void
kve_ingest_expire(struct kve_ingest *ingest)
{
    struct age age = { kve_real_ns() - GONE_NS, kve_now_ns() };
    struct kve_source_entry *e;

    kve_ingest_lock(ingest);
    while ((e = find_by(ingest, is_missed, &age)) != NULL) {
        (void)pthread_mutex_lock(&e->applying);
        if (atomic_load(&e->detached)) {
            atomic_store(&e->detached, false);
            kve_entry_clear_all(e);
            kve_entry_set_state(e, KVE_STATE_GONE, KVE_REASON_SILENT);
        }
        (void)pthread_mutex_unlock(&e->applying);
        kve_entry_unref(e);
    }
    (void)pthread_rwlock_rdlock(&ingest->registry);
    if (4 * ingest->n_entries >= 3 * (size_t)ingest->opts.max_sources)
        age.real_ns = INT64_MAX; /* there is little room: at once */
    (void)pthread_rwlock_unlock(&ingest->registry);
    while ((e = find_by(ingest, is_long_gone, &age)) != NULL) {
        kve_entry_remove(e);
        kve_entry_unref(e);
    }
    kve_ingest_unlock(ingest);
}

/* ---- clear ---- */

/* What is cleared of its ranks, from *i on: its own, and those that nobody else
 * is the source of. 0: there are no more. */
static kve_instance
next_cleared(const struct kve_source_entry *e, size_t *i)
{
    kve_instance found = 0;

    kve_ingest_read_begin(e->ingest);
    for (; *i < e->n_feeds && found == 0; ++*i) {
        kve_instance instance = e->feeds[*i].instance;
        const struct kve_row *row = kve_row_find(e->ingest, instance);

        if (*i == 0 || (row != NULL && row->entry == e))
            found = instance;
    }
    kve_ingest_read_end(e->ingest);
    return found;
}

/* Clearing takes a while where there is much, so registry is not held. An
 * instance that is gone by then holds nothing; a stream may leave, too. */
static kve_status
clear_entry(struct kve_source_entry *e, uint32_t tiers, struct kve_error *err)
{
    kve_status status = KVE_OK;
    kve_instance instance;
    bool dead = false;
    size_t i = 0;

    while (!dead && status == KVE_OK && (instance = next_cleared(e, &i)) != 0) {
        (void)pthread_mutex_lock(&e->applying);
        dead = e->dead;
        if (!dead)
            status = kve_index_clear(e->ingest->index, instance, tiers, err);
        (void)pthread_mutex_unlock(&e->applying);
        if (status == KVE_E_NOT_FOUND)
            status = KVE_OK;
    }
    if (status == KVE_OK && !dead) {
        kve_ingest_count(e, KVE_COUNTER_INGEST_CLEARED, 1);
        kve_ingest_tell(e, KVE_INGEST_EVENT_CLEARED, NULL);
    }
    return status;
}

/* Of a socket of many: all of its streams. */
static kve_status
clear_family(struct kve_ingest *ingest, kve_ingest_id id, uint32_t tiers,
    struct kve_error *err)
{
    struct kve_source_entry **entries = NULL;
    size_t n = 0;
    kve_status status = kve_ingest_list(ingest, &entries, &n, err);

    for (size_t i = 0; i < n; i++) {
        if (status == KVE_OK && entries[i]->parent_id == id)
            status = clear_entry(entries[i], tiers, err);
        kve_entry_unref(entries[i]);
    }
    kve_mem_free(entries);
    return status;
}

kve_status
kve_ingest_clear(struct kve_ingest *ingest, kve_ingest_id id, uint32_t tiers,
    struct kve_error *err)
{
    struct kve_source_entry *e;
    kve_status status;

    kve_ingest_lock(ingest);
    e = kve_ingest_entry(ingest, id);
    status =
        e != NULL ? clear_entry(e, tiers, err) : kve_ingest_unknown(err, id);
    if (status == KVE_OK && e->many)
        status = clear_family(ingest, id, tiers, err);
    kve_ingest_unlock(ingest);
    kve_entry_unref(e);
    return status;
}
