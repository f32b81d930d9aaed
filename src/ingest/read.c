/*
 * read.c - what is known of workers and sources.
 *
 * A read section is the registry's lock, for reading. Sections of one ingest
 * may lie in one another: functions that need the lock themselves
 * (kve_ingest_counter) may be called in one. A writer that waits holds new
 * readers up, so the lock is taken by the outermost section only.
 */
#include "ingest/parts.h"

#include "base/clock.h"
#include "base/counters.h"
#include "base/status.h"
#include "ingest/registry.h"

#include <string.h>

/* The ingest that this thread reads, and how deep. */
static _Thread_local struct {
    const struct kve_ingest *ingest;
    unsigned depth;
} reading;

void
kve_ingest_read_begin(struct kve_ingest *ingest)
{
    if (reading.ingest == ingest) {
        reading.depth++;
        return;
    }
    (void)pthread_rwlock_rdlock(&ingest->registry);
    if (reading.ingest == NULL) {
        reading.ingest = ingest;
        reading.depth = 1;
    }
}

void
kve_ingest_read_end(struct kve_ingest *ingest)
{
    if (reading.ingest == ingest && --reading.depth > 0)
        return;
    if (reading.ingest == ingest)
        reading.ingest = NULL;
    (void)pthread_rwlock_unlock(&ingest->registry);
}

/* ---- what is handed out ---- */

void
kve_ingest_hand_out(void *ret, const void *from, size_t size)
{
    const size_t own = sizeof(size_t);
    size_t given;

    memcpy(&given, ret, own);
    if (given > size)
        given = size;
    if (given > own)
        memcpy((char *)ret + own, (const char *)from + own, given - own);
}

/* ---- sources ---- */

static double
seconds(int64_t ns)
{
    return (double)ns / 1e9;
}

/* What the subscriber says, in its time. */
static void
read_followed(const struct kve_source_entry *e, struct kve_ingest_source *ret)
{
    struct kve_source_info info = { .struct_size = sizeof(info) };
    kve_source_id id = atomic_load(&e->sub_id);
    double now;
    int64_t now_ns;

    if (id == 0 || kve_sub_source(e->ingest->sub, id, &info) != KVE_OK)
        return;
    now = kve_unix_time();
    now_ns = kve_now_ns();
    ret->connected = info.connected;
    ret->tail_confirmed = info.tail_confirmed;
    ret->unknown_events = info.unknown_events;
    if (info.confirmed_at_ns != 0)
        ret->confirmed_at = now - seconds(now_ns - info.confirmed_at_ns);
    if (info.stale)
        ret->stale_since = now - seconds(now_ns - info.stale_since_ns);
}

static void
read_source(const struct kve_source_entry *e, struct kve_ingest_source *ret)
{
    uint32_t status = atomic_load(&e->status);
    struct kve_line *line = atomic_load(&e->last_error);

    memset(ret, 0, sizeof(*ret));
    ret->struct_size = sizeof(*ret);
    ret->id = e->id;
    ret->instance = e->n_feeds > 0 ? e->feeds[0].instance : 0;
    ret->ns = e->worker->ns;
    ret->model = e->worker->model;
    ret->tenant = e->worker->tenant;
    ret->worker = e->worker->name;
    ret->worker_json = e->worker->name_json;
    ret->rank = e->rank;
    ret->origin = e->spec.origin;
    ret->found_in = e->spec.found_in;
    ret->endpoint = e->endpoint;
    ret->replay_endpoint = e->replay_endpoint;
    ret->snapshot_endpoint = e->snapshot_endpoint;
    ret->topic = e->spec.source.topic;
    ret->engine = e->spec.engine;
    ret->lora_name = e->spec.lora_name;
    ret->additional_salt = e->spec.additional_salt;
    ret->block_size = e->spec.block_size;
    ret->block_size_differs = atomic_load(&e->sizes_differ);
    ret->paused = atomic_load(&e->is_paused);
    ret->claimed = e->claimed;
    ret->restored = atomic_load(&e->restored);
    ret->state = KVE_STATUS_STATE(status);
    ret->reason = KVE_STATUS_REASON(status);
    ret->incomplete = atomic_load(&e->incomplete);
    ret->state_since = seconds(atomic_load(&e->state_since_ns));
    ret->added_at = e->added_at;
    ret->last_batch_at = seconds(atomic_load(&e->last_batch_ns));
    ret->started = atomic_load(&e->started);
    ret->last_number = atomic_load(&e->last_number);
    ret->has_missing = atomic_load(&e->has_missing);
    ret->missing_first = atomic_load(&e->missing_first);
    ret->missing_last = atomic_load(&e->missing_last);
    ret->parent = e->parent_id;
    ret->last_error = line != NULL ? line->text : "";
    read_followed(e, ret);
}

static bool
passes(const struct kve_source_entry *e, const struct kve_ingest_filter *filter)
{
    const struct kve_worker_entry *w = e->worker;

    return (filter->model == NULL || strcmp(filter->model, w->model) == 0) &&
        (filter->tenant == NULL || strcmp(filter->tenant, w->tenant) == 0) &&
        (filter->worker == NULL || strcmp(filter->worker, w->name) == 0);
}

size_t
kve_ingest_sources(struct kve_ingest *ingest,
    const struct kve_ingest_filter *filter,
    bool (*visit)(void *ctx, const struct kve_ingest_source *source), void *ctx)
{
    struct kve_ingest_source source;
    struct kve_ingest_filter wanted;
    bool more = kve_opts_read(filter, sizeof(wanted), &wanted, sizeof(wanted),
                    "kve_ingest_filter", NULL) == KVE_OK;
    size_t n = 0;

    for (size_t i = 0; more && i < ingest->n_entries; i++) {
        if (!passes(ingest->entries[i], &wanted))
            continue;
        read_source(ingest->entries[i], &source);
        more = visit(ctx, &source);
        n++;
    }
    return n;
}

kve_status
kve_ingest_source_of(
    struct kve_ingest *ingest, kve_ingest_id id, struct kve_ingest_source *ret)
{
    const struct kve_source_entry *e = kve_registry_find(ingest, id);
    struct kve_ingest_source source;

    if (ret->struct_size < sizeof(ret->struct_size))
        return KVE_E_INVAL;
    if (e == NULL)
        return KVE_E_NOT_FOUND;
    read_source(e, &source);
    kve_ingest_hand_out(ret, &source, sizeof(source));
    return KVE_OK;
}

bool
kve_ingest_row_of(struct kve_ingest *ingest, kve_instance instance,
    struct kve_ingest_row *ret)
{
    const struct kve_row *row = kve_row_find(ingest, instance);
    uint32_t status = KVE_STATE_DEGRADED | KVE_REASON_REMOVED << 8u;

    if (row == NULL)
        return false;
    if (row->entry != NULL)
        status =
            atomic_load_explicit(&row->entry->status, memory_order_relaxed);
    ret->model = row->worker->model;
    ret->tenant = row->worker->tenant;
    ret->worker = row->worker->name;
    ret->worker_json = row->worker->name_json;
    ret->worker_json_len = row->worker->name_json_len;
    ret->rank = row->rank;
    ret->state = KVE_STATUS_STATE(status);
    ret->reason = KVE_STATUS_REASON(status);
    ret->source = row->entry != NULL ? row->entry->id : 0;
    return true;
}

kve_ingest_id
kve_ingest_find(struct kve_ingest *ingest, const char *model,
    const char *tenant, const char *worker, uint32_t rank)
{
    kve_namespace ns = kve_index_find_namespace(ingest->index,
        model != NULL ? model : "", tenant != NULL ? tenant : "default");
    const struct kve_source_entry *e = NULL;
    const struct kve_worker_entry *w;
    kve_ingest_id id;

    if (ns == 0 || worker == NULL)
        return 0;
    kve_ingest_read_begin(ingest);
    w = kve_registry_worker(ingest, ns, worker);
    if (w != NULL)
        e = kve_registry_find_rank(w, rank, false);
    if (w != NULL && e == NULL)
        e = kve_registry_find_rank(w, rank, true);
    id = e != NULL ? e->id : 0;
    kve_ingest_read_end(ingest);
    return id;
}

/* ---- counters ---- */

static bool
is_of_subscriber(unsigned counter)
{
    return counter >= KVE_SUB_COUNTER_KEPT_BASE &&
        counter < KVE_SUB_COUNTER_KEPT_BASE + KVE_SUB_COUNTERS_KEPT;
}

static bool
is_of_ingest(unsigned counter)
{
    return counter >= KVE_INGEST_COUNTER_BASE &&
        counter < KVE_INGEST_COUNTER_BASE + KVE_INGEST_COUNTERS;
}

/* Of the instances that are its own: those of ranks that no other source
 * has. */
static uint64_t
count_index(const struct kve_source_entry *e, unsigned counter)
{
    const struct kve_ingest *ingest = e->ingest;
    uint64_t sum = 0;

    for (size_t i = 0; i < e->n_feeds; i++) {
        kve_instance instance = e->feeds[i].instance;
        const struct kve_row *row = kve_row_find(ingest, instance);

        if (row != NULL && row->entry == e)
            sum += kve_index_counter(ingest->index, instance, counter);
    }
    return sum;
}

static uint64_t
count_one(const struct kve_source_entry *e, unsigned counter)
{
    kve_source_id id = atomic_load(&e->sub_id);
    unsigned at = counter - KVE_SUB_COUNTER_KEPT_BASE;

    if (is_of_ingest(counter))
        return atomic_load(&e->counters.n[counter - KVE_INGEST_COUNTER_BASE]);
    if (!is_of_subscriber(counter))
        return count_index(e, counter);
    return atomic_load(&e->sub_counters[at]) +
        (id != 0 ? kve_sub_counter(e->ingest->sub, id, counter) : 0);
}

static uint64_t
count_all(struct kve_ingest *ingest, unsigned counter)
{
    unsigned at = counter - KVE_INGEST_COUNTER_BASE;
    uint64_t sum;

    if (is_of_subscriber(counter))
        return kve_sub_counter(ingest->sub, 0, counter);
    if (!is_of_ingest(counter))
        return kve_index_counter(ingest->index, 0, counter);
    sum = atomic_load(&ingest->retired.n[at]);
    for (size_t i = 0; i < ingest->n_entries; i++)
        sum += atomic_load(&ingest->entries[i]->counters.n[at]);
    return sum;
}

uint64_t
kve_ingest_counter(
    struct kve_ingest *ingest, kve_ingest_id id, unsigned counter)
{
    const struct kve_source_entry *e;
    uint64_t n = 0;

    kve_ingest_read_begin(ingest);
    if (id == 0) {
        n = count_all(ingest, counter);
    } else {
        e = kve_registry_find(ingest, id);
        if (e != NULL)
            n = count_one(e, counter);
    }
    kve_ingest_read_end(ingest);
    return n;
}

/* ---- the whole ---- */

static void
count_state(const struct kve_source_entry *e, int64_t now_ns,
    struct kve_ingest_progress *p)
{
    int64_t limit = (int64_t)e->ingest->opts.recovery_limit_ms * KVE_MS;
    int64_t since = atomic_load(&e->unready_since_ns);

    if (atomic_load(&e->is_paused)) {
        p->paused++;
        return;
    }
    p->sources++;
    switch ((enum kve_state)KVE_STATUS_STATE(atomic_load(&e->status))) {
    case KVE_STATE_COLD:
        p->cold++;
        break;
    case KVE_STATE_RECOVERING:
        p->recovering++;
        break;
    case KVE_STATE_LIVE:
        p->live++;
        return;
    case KVE_STATE_DEGRADED:
        p->degraded++;
        return;
    case KVE_STATE_GONE:
        p->gone++;
        return;
    }
    if (since != 0 && now_ns - since > limit)
        p->past_limit++;
    else
        p->ready = false;
}

void
kve_ingest_get_progress(
    struct kve_ingest *ingest, struct kve_ingest_progress *ret)
{
    struct kve_ingest_progress progress = { .ready = true };
    int64_t now_ns = kve_now_ns();

    kve_ingest_read_begin(ingest);
    for (size_t i = 0; i < ingest->n_entries; i++)
        if (!ingest->entries[i]->many)
            count_state(ingest->entries[i], now_ns, &progress);
    progress.workers = ingest->n_workers;
    progress.namespaces = ingest->n_spaces;
    kve_ingest_read_end(ingest);
    kve_ingest_hand_out(ret, &progress, sizeof(progress));
}
