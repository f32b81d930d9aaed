/*
 * add.c - sources are added: new ones, those that a state brought and somebody
 * asks for, and those that a state brings.
 */
#include "ingest/parts.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "ingest/registry.h"

#include <string.h>

#define DEFAULT_ENDPOINT "tcp://127.0.0.1:5557"

/* ---- options ---- */

void
kve_ingest_spec_init(struct kve_ingest_spec *spec)
{
    *spec = (struct kve_ingest_spec)KVE_INGEST_SPEC_INIT;
}

static kve_status
check_choice(
    const char *name, uint32_t value, uint32_t max, struct kve_error *err)
{
    if (value <= max)
        return KVE_OK;
    return kve_fail(
        err, KVE_E_INVAL, "%s is %u; accepted are 0 to %u", name, value, max);
}

kve_status
kve_spec_read(const struct kve_ingest_spec *given, bool stream,
    struct kve_ingest_spec *ret, struct kve_error *err)
{
    struct kve_ingest_spec s;
    kve_status status =
        kve_opts_read(given, sizeof(s), &s, sizeof(s), "kve_ingest_spec", err);

    if (status == KVE_OK && s.worker == NULL)
        status = kve_fail(err, KVE_E_INVAL,
            "worker is missing; give the text that names the engine");
    if (status == KVE_OK)
        status = check_choice("counting", s.counting, KVE_COUNTING_SET, err);
    if (status == KVE_OK)
        status =
            check_choice("topic_rule", s.topic_rule, KVE_TOPIC_RULE_HOST, err);
    if (status == KVE_OK)
        status = check_choice("origin", s.origin,
            stream ? KVE_ORIGIN_STREAM : KVE_ORIGIN_NAME, err);
    if (status != KVE_OK)
        return status;
    if (s.model == NULL)
        s.model = "";
    if (s.tenant == NULL)
        s.tenant = "default";
    if (s.origin == 0)
        s.origin = KVE_ORIGIN_API;
    if (s.source.endpoint == NULL)
        s.source.endpoint = DEFAULT_ENDPOINT;
    *ret = s;
    return KVE_OK;
}

/* ---- add ---- */

static bool
is_same_text(const char *a, const char *b)
{
    return strcmp(a != NULL ? a : "", b != NULL ? b : "") == 0;
}

/* Whether it would be followed in the same way. */
static bool
is_same_source(const struct kve_source_opts *a, const struct kve_source_opts *b)
{
    return is_same_text(a->endpoint, b->endpoint) &&
        is_same_text(a->replay_endpoint, b->replay_endpoint) &&
        is_same_text(a->snapshot_endpoint, b->snapshot_endpoint) &&
        is_same_text(a->topic, b->topic) &&
        is_same_text(a->curve.server_key, b->curve.server_key) &&
        is_same_text(a->curve.public_key, b->curve.public_key) &&
        is_same_text(a->curve.secret_key, b->curve.secret_key) &&
        a->rank.set == b->rank.set && a->rank.value == b->rank.value &&
        a->bind == b->bind && a->on_loss == b->on_loss &&
        a->recv_hwm == b->recv_hwm && a->max_body_len == b->max_body_len &&
        a->hold_bytes == b->hold_bytes && a->hold_items == b->hold_items &&
        a->replay_timeout_ms == b->replay_timeout_ms &&
        a->tail_probe_ms == b->tail_probe_ms &&
        a->reconnect_ms == b->reconnect_ms &&
        a->reconnect_max_ms == b->reconnect_max_ms &&
        a->resolve_timeout_ms == b->resolve_timeout_ms &&
        a->snapshot_max_bytes == b->snapshot_max_bytes &&
        a->snapshot_timeout_ms == b->snapshot_timeout_ms &&
        a->heartbeat_timeout_ms == b->heartbeat_timeout_ms &&
        a->streams == b->streams && a->max_streams == b->max_streams &&
        a->stream_idle_ms == b->stream_idle_ms;
}

/* Under registry. */
static void
claim_streams(struct kve_source_entry *e)
{
    struct kve_ingest *ingest = e->ingest;

    for (size_t i = 0; e->many && i < ingest->n_entries; i++)
        if (ingest->entries[i]->parent_id == e->id)
            ingest->entries[i]->claimed = true;
}

/* A source that a state brought gets an owner, and goes on. */
static kve_status
claim(struct kve_source_entry *e, const struct kve_ingest_spec *spec,
    struct kve_error *err)
{
    struct kve_ingest *ingest = e->ingest;
    bool same = is_same_source(&e->spec.source, &spec->source) && !e->keyless;
    kve_status status;

    if (!same)
        kve_entry_stop(e, atomic_load(&e->is_paused));
    (void)pthread_rwlock_wrlock(&ingest->registry);
    status = kve_entry_set_spec(e, spec, NULL, err);
    if (status == KVE_OK) {
        e->claimed = true;
        e->keyless = false;
        claim_streams(e);
    }
    (void)pthread_rwlock_unlock(&ingest->registry);
    if (same)
        return status;
    (void)pthread_mutex_lock(&e->applying);
    kve_entry_prepare(e);
    (void)pthread_mutex_unlock(&e->applying);
    if (status == KVE_OK)
        return kve_entry_follow(e, err);
    (void)kve_entry_follow(e, NULL);
    return status;
}

/* Whether what it is asked for now is the source that is there. */
static kve_status
check_same_place(struct kve_source_entry *e, const struct kve_ingest_spec *spec,
    bool *ret_same, struct kve_error *err)
{
    struct kve_source_entry *probe = NULL;
    kve_status status = kve_entry_create(e->ingest, spec, NULL, &probe, err);

    if (status != KVE_OK)
        return status;
    *ret_same = e->parent_id == 0 && e->many == probe->many &&
        strcmp(e->endpoint, probe->endpoint) == 0;
    kve_entry_unref(probe);
    return KVE_OK;
}

static kve_status
add_new(struct kve_ingest *ingest, const struct kve_ingest_spec *spec,
    kve_namespace ns, kve_ingest_id *ret_id, struct kve_error *err)
{
    struct kve_source_entry *e = NULL;
    kve_status status = kve_entry_create(ingest, spec, NULL, &e, err);

    if (status != KVE_OK)
        return status;
    status = kve_entry_enter(e, ns, err);
    if (status == KVE_OK) {
        status = kve_entry_dial(e, err);
        if (status == KVE_OK) {
            *ret_id = e->id;
            kve_ingest_tell(e, KVE_INGEST_EVENT_ADDED, e->endpoint);
            kve_entry_open(e);
        } else {
            (void)pthread_rwlock_wrlock(&ingest->registry);
            kve_entry_leave_locked(e);
            (void)pthread_rwlock_unlock(&ingest->registry);
            kve_entry_unref(e);
        }
    }
    kve_entry_unref(e);
    return status;
}

/* The source that has this worker and rank, with a reference; NULL. */
static struct kve_source_entry *
find_taken(struct kve_ingest *ingest, kve_namespace ns, const char *name,
    uint32_t rank)
{
    struct kve_worker_entry *worker;
    struct kve_source_entry *e = NULL;

    (void)pthread_rwlock_rdlock(&ingest->registry);
    worker = kve_registry_worker(ingest, ns, name);
    if (worker != NULL) {
        e = kve_registry_find_rank(worker, rank, true);
        if (e == NULL)
            e = kve_registry_find_rank(worker, rank, false);
    }
    if (e != NULL)
        kve_entry_ref(e);
    (void)pthread_rwlock_unlock(&ingest->registry);
    return e;
}

/* Something of this name is there. *ret_done false: not any more. */
static kve_status
meet(struct kve_source_entry *e, const struct kve_ingest_spec *spec,
    kve_ingest_id *ret_id, bool *ret_done, struct kve_error *err)
{
    bool same = false;
    kve_status status;

    *ret_done = true;
    if (e->claimed) {
        *ret_id = e->id;
        return kve_fail(err, KVE_E_IN_USE,
            "rank %u of this worker is source %llu already, at %s; remove it "
            "first",
            e->rank, (unsigned long long)e->id, e->endpoint);
    }
    status = check_same_place(e, spec, &same, err);
    if (status != KVE_OK)
        return status;
    if (!same) {
        kve_entry_remove(e);
        *ret_done = false;
        return KVE_OK;
    }
    status = claim(e, spec, err);
    if (status == KVE_OK)
        *ret_id = e->id;
    return status;
}

/* *ret_again: a stream of this name came first. */
static kve_status
try_add(struct kve_ingest *ingest, const struct kve_ingest_spec *spec,
    kve_namespace ns, kve_ingest_id *ret_id, bool *ret_again,
    struct kve_error *err)
{
    struct kve_source_entry *taken =
        find_taken(ingest, ns, spec->worker, spec->rank);
    bool done = false;
    kve_status status = KVE_OK;

    *ret_again = false;
    if (taken != NULL)
        status = meet(taken, spec, ret_id, &done, err);
    if (status == KVE_OK && !done) {
        status = add_new(ingest, spec, ns, ret_id, err);
        *ret_again = status == KVE_E_IN_USE;
    }
    kve_entry_unref(taken);
    return status;
}

kve_status
kve_ingest_add(struct kve_ingest *ingest, const struct kve_ingest_spec *given,
    kve_ingest_id *ret_id, struct kve_error *err)
{
    struct kve_ingest_spec spec;
    kve_namespace ns = 0;
    bool again = true;
    kve_status status = kve_spec_read(given, false, &spec, err);

    if (status != KVE_OK)
        return status;
    kve_ingest_lock(ingest);
    status =
        kve_index_namespace(ingest->index, spec.model, spec.tenant, &ns, err);
    while (again && (status == KVE_OK || status == KVE_E_IN_USE))
        status = try_add(ingest, &spec, ns, ret_id, &again, err);
    kve_ingest_unlock(ingest);
    return status;
}

/* ---- restore ---- */

static kve_status
create_restored(struct kve_ingest *ingest, const struct kve_entry_seed *seed,
    struct kve_source_entry **ret, struct kve_error *err)
{
    struct kve_ingest_spec spec;
    struct kve_source_entry *e = NULL;
    char *topic = NULL;
    kve_status status =
        kve_spec_read(seed->spec, seed->parent != NULL, &spec, err);

    if (status != KVE_OK)
        return status;
    if (seed->parent != NULL) {
        const char *const endpoints[3] = { seed->parent->endpoint, "", "" };

        topic = kve_mem_alloc(seed->topic.len + 1);
        if (topic == NULL)
            return kve_fail_nomem(err, "a stream");
        if (seed->topic.len > 0)
            memcpy(topic, seed->topic.data, seed->topic.len);
        topic[seed->topic.len] = '\0';
        status = kve_entry_create(ingest, &spec, endpoints, &e, err);
    } else {
        status = kve_entry_create(ingest, &spec, NULL, &e, err);
    }
    if (status != KVE_OK) {
        kve_mem_free(topic);
        return status;
    }
    e->topic = topic;
    e->topic_len = seed->topic.len;
    e->stream_rank = seed->stream_rank;
    e->parent = seed->parent;
    e->parent_id = seed->parent != NULL ? seed->parent->id : 0;
    atomic_store(&e->detached, seed->parent != NULL);
    *ret = e;
    return KVE_OK;
}

static void
restore_state(struct kve_source_entry *e, const struct kve_entry_seed *seed)
{
    const struct kve_position *p = &seed->position;

    e->claimed = false;
    atomic_store(&e->restored, true);
    e->keyless = seed->keyless;
    e->added_at = seed->added_at;
    e->paused = seed->paused;
    atomic_store(&e->is_paused, seed->paused);
    atomic_store(&e->incomplete, seed->incomplete);
    atomic_store(&e->missing_first, p->missing_first);
    atomic_store(&e->missing_last, p->missing_last);
    atomic_store(&e->has_missing, p->has_missing);
    kve_entry_stands(e, p);
    if (p->started)
        kve_entry_set_state(e, KVE_STATE_RECOVERING, KVE_REASON_RESUMED);
    kve_entry_refresh(e);
}

kve_status
kve_entry_restore(struct kve_ingest *ingest, const struct kve_entry_seed *seed,
    struct kve_source_entry **ret_entry, struct kve_error *err)
{
    struct kve_source_entry *e = NULL;
    kve_namespace ns = 0;
    kve_status status = create_restored(ingest, seed, &e, err);

    if (status != KVE_OK)
        return status;
    restore_state(e, seed);
    status = kve_index_namespace(
        ingest->index, e->spec.model, e->spec.tenant, &ns, err);
    if (status == KVE_OK && seed->parent != NULL)
        status = kve_stream_place(seed->parent, e, err);
    if (status == KVE_OK)
        status = kve_entry_enter(e, ns, err);
    if (status == KVE_OK) {
        kve_ingest_tell(e, KVE_INGEST_EVENT_ADDED, e->endpoint);
        *ret_entry = e;
        return KVE_OK;
    }
    kve_entry_kill(e);
    atomic_store(&e->forgotten, true);
    kve_entry_unref(e);
    return status;
}
