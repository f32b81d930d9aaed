/*
 * entry.c - a source comes, is followed, and goes.
 */
#include "ingest/parts.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "ingest/registry.h"
#include "transport/endpoint.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Ranks that the batches of one source may name. */
#define MAX_FEEDS 1024
/* A bound socket is closed soon after its source was removed. */
#define UNBIND_NS (2000 * KVE_MS)
/* Lines that wait for readers; beyond it the line there is stays. */
#define MAX_OLD_LINES 4096

int64_t
kve_real_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- what it was asked for ---- */

/* All texts of a spec, and those of its endpoints, in one piece of memory. */
struct text_list {
    const char *from[20];
    const char **to[20];
    size_t n;
    size_t size;
};

static void
want(struct text_list *list, const char *from, const char **to)
{
    *to = NULL;
    if (from == NULL)
        return;
    list->from[list->n] = from;
    list->to[list->n++] = to;
    list->size += strlen(from) + 1;
}

static void
free_texts(char *texts, size_t size)
{
    if (texts != NULL)
        explicit_bzero(texts, size);
    kve_mem_free(texts);
}

static const char *
or_empty(const char *text)
{
    return text != NULL ? text : "";
}

/* Where this rank's sockets are. */
static kve_status
move_by_rank(const struct kve_source_opts *o, const char *endpoint, char *text,
    size_t cap, struct kve_error *err)
{
    uint32_t rank = o->rank.set && o->rank.value >= 0 && o->rank.value <= 65535
        ? (uint32_t)o->rank.value
        : 0;

    text[0] = '\0';
    if (endpoint == NULL || endpoint[0] == '\0')
        return KVE_OK;
    return kve_endpoint_of_rank(endpoint, rank, text, cap, err);
}

kve_status
kve_entry_set_spec(struct kve_source_entry *e,
    const struct kve_ingest_spec *given, const char *const endpoints[3],
    struct kve_error *err)
{
    const struct kve_source_opts *from = &given->source;
    struct kve_ingest_spec spec = *given;
    struct kve_source_opts *to = &spec.source;
    struct text_list list = { .n = 0 };
    char moved[3][KVE_ENDPOINT_MAX];
    const char *given_endpoints[3] = { from->endpoint, from->replay_endpoint,
        from->snapshot_endpoint };
    const char *connected[3];
    kve_status status = KVE_OK;
    char *texts;

    for (size_t i = 0; i < 3; i++) {
        if (endpoints == NULL && status == KVE_OK)
            status = move_by_rank(
                from, given_endpoints[i], moved[i], sizeof(moved[i]), err);
        given_endpoints[i] = endpoints != NULL ? endpoints[i] : moved[i];
    }
    if (status != KVE_OK)
        return status;
    want(&list, given->model, &spec.model);
    want(&list, given->tenant, &spec.tenant);
    want(&list, given->worker, &spec.worker);
    want(&list, or_empty(given->found_in), &spec.found_in);
    want(&list, or_empty(given->engine), &spec.engine);
    want(&list, or_empty(given->lora_name), &spec.lora_name);
    want(&list, or_empty(given->additional_salt), &spec.additional_salt);
    want(&list, from->endpoint, &to->endpoint);
    want(&list, from->replay_endpoint, &to->replay_endpoint);
    want(&list, from->snapshot_endpoint, &to->snapshot_endpoint);
    want(&list, or_empty(from->topic), &to->topic);
    want(&list, from->curve.server_key, &to->curve.server_key);
    want(&list, from->curve.public_key, &to->curve.public_key);
    want(&list, from->curve.secret_key, &to->curve.secret_key);
    for (size_t i = 0; i < 3; i++)
        want(&list, given_endpoints[i], &connected[i]);

    texts = kve_mem_alloc(list.size);
    if (texts == NULL)
        return kve_fail_nomem(err, "a source");
    for (size_t i = 0, at = 0; i < list.n; i++) {
        size_t size = strlen(list.from[i]) + 1;

        memcpy(texts + at, list.from[i], size);
        *list.to[i] = texts + at;
        at += size;
    }
    to->user = NULL;
    to->resume = NULL;
    free_texts(e->texts, e->texts_size);
    e->texts = texts;
    e->texts_size = list.size;
    e->spec = spec;
    e->endpoint = connected[0];
    e->replay_endpoint = connected[1];
    e->snapshot_endpoint = connected[2];
    atomic_store(&e->block_size, spec.block_size);
    return KVE_OK;
}

/* Whether several publishers speak by it: the subscriber's own rule. */
static kve_status
find_many(struct kve_source_entry *e, struct kve_error *err)
{
    const struct kve_source_opts *o = &e->spec.source;
    struct kve_endpoint endpoint;
    kve_status status =
        kve_endpoint_parse(e->endpoint, "endpoint", &endpoint, err);

    if (status == KVE_OK)
        e->many = o->streams == KVE_STREAMS_SPLIT ||
            (o->streams == KVE_STREAMS_DEFAULT &&
                kve_endpoint_binds(&endpoint, e->endpoint, o->bind, false));
    return status;
}

/* ---- life ---- */

static void
destroy(struct kve_source_entry *e)
{
    struct kve_ingest *ingest = e->ingest;

    if (e->worker != NULL) {
        (void)pthread_rwlock_wrlock(&ingest->registry);
        kve_registry_worker_unref(ingest, e->worker);
        (void)pthread_rwlock_unlock(&ingest->registry);
    }
    free_texts(e->texts, e->texts_size);
    kve_mem_free(atomic_load(&e->last_error));
    kve_mem_free(e->topic);
    kve_mem_free(e->feeds);
    kve_mem_free(e->streams);
    (void)pthread_mutex_destroy(&e->applying);
    kve_mem_free(e);
}

void
kve_entry_ref(struct kve_source_entry *e)
{
    (void)atomic_fetch_add(&e->refs, 1);
}

void
kve_entry_unref(struct kve_source_entry *e)
{
    if (e != NULL && atomic_fetch_sub(&e->refs, 1) == 1)
        destroy(e);
}

kve_status
kve_entry_create(struct kve_ingest *ingest, const struct kve_ingest_spec *spec,
    const char *const endpoints[3], struct kve_source_entry **ret_entry,
    struct kve_error *err)
{
    struct kve_source_entry *e = kve_mem_zalloc(1, sizeof(*e));
    kve_status status;

    if (e == NULL)
        return kve_fail_nomem(err, "a source");
    if (pthread_mutex_init(&e->applying, NULL) != 0) {
        kve_mem_free(e);
        return kve_fail(err, KVE_E_SYSTEM, "mutex of a source");
    }
    e->ingest = ingest;
    atomic_store(&e->refs, 1);
    e->rank = spec->rank;
    e->added_at = kve_unix_time();
    e->claimed = true;
    atomic_store(&e->state_since_ns, kve_real_ns());
    atomic_store(&e->unready_since_ns, kve_now_ns());
    atomic_store(&e->sub_status, KVE_REASON_STARTING << 8u);
    atomic_store(&e->status, KVE_REASON_STARTING << 8u);
    status = kve_entry_set_spec(e, spec, endpoints, err);
    if (status == KVE_OK && endpoints == NULL)
        status = find_many(e, err);
    if (status == KVE_OK && !e->many) {
        e->feeds = kve_mem_zalloc(1, sizeof(struct kve_feed));
        e->cap_feeds = 1;
        if (e->feeds == NULL)
            status = kve_fail_nomem(err, "a source");
    }
    if (status == KVE_OK)
        *ret_entry = e;
    else
        destroy(e);
    return status;
}

/* ---- instances ---- */

static kve_status
add_instance(struct kve_source_entry *e, uint32_t rank,
    kve_instance *ret_instance, struct kve_error *err)
{
    struct kve_ingest *ingest = e->ingest;
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    kve_instance instance = 0;
    kve_status status;

    spec.ns = e->worker->ns;
    spec.worker = e->worker->name;
    spec.rank = rank;
    spec.counting = e->spec.counting;
    status = kve_index_add(ingest->index, &spec, &instance, err);
    if (status == KVE_E_IN_USE)
        status = KVE_OK;
    if (status == KVE_OK)
        status = kve_row_put(ingest, e->worker, rank, instance, e, err);
    if (status == KVE_OK)
        *ret_instance = instance;
    else if (instance != 0 && kve_row_find(ingest, instance) == NULL)
        (void)kve_index_drop(ingest->index, instance, NULL);
    return status;
}

/* The instance of its own rank begins empty, whoever fed one before. */
static kve_status
begin_instance(struct kve_source_entry *e, struct kve_error *err)
{
    struct kve_ingest *ingest = e->ingest;
    struct kve_feed *own = &e->feeds[0];
    kve_status status;

    kve_row_drop(ingest,
        kve_index_find(ingest->index, e->worker->ns, e->worker->name, e->rank));
    own->rank = e->rank;
    status = add_instance(e, e->rank, &own->instance, err);
    if (status == KVE_OK)
        e->n_feeds = 1;
    return status;
}

kve_status
kve_ingest_check_room(const struct kve_ingest *ingest, struct kve_error *err)
{
    if (ingest->n_entries < ingest->opts.max_sources)
        return KVE_OK;
    return kve_fail(err, KVE_E_LIMIT,
        "%zu sources are followed already; raise max_sources",
        ingest->n_entries);
}

kve_status
kve_entry_enter_locked(
    struct kve_source_entry *e, kve_namespace ns, struct kve_error *err)
{
    struct kve_ingest *ingest = e->ingest;
    struct kve_worker_entry *worker = NULL;
    kve_status status = kve_ingest_check_room(ingest, err);

    if (status == KVE_OK)
        status = kve_registry_worker_make(ingest, ns, e->spec.model,
            e->spec.tenant, e->spec.worker, &worker, err);
    if (status != KVE_OK)
        return status;
    e->worker = worker;
    if (kve_registry_find_rank(worker, e->rank, e->many) != NULL)
        status = kve_fail(err, KVE_E_IN_USE,
            "rank %u of this worker has a source already", e->rank);
    if (status == KVE_OK)
        status = kve_registry_reserve(ingest, worker, err);
    if (status == KVE_OK && !e->many)
        status = begin_instance(e, err);
    if (status == KVE_OK) {
        kve_registry_enter(ingest, e);
    } else {
        e->worker = NULL;
        kve_registry_worker_unref(ingest, worker);
    }
    return status;
}

kve_status
kve_entry_enter(
    struct kve_source_entry *e, kve_namespace ns, struct kve_error *err)
{
    kve_status status;

    (void)pthread_rwlock_wrlock(&e->ingest->registry);
    status = kve_entry_enter_locked(e, ns, err);
    (void)pthread_rwlock_unlock(&e->ingest->registry);
    return status;
}

static void
retire_counters(struct kve_source_entry *e)
{
    for (size_t i = 0; i < KVE_INGEST_COUNTERS; i++)
        atomic_fetch_add(
            &e->ingest->retired.n[i], atomic_load(&e->counters.n[i]));
}

void
kve_entry_leave_locked(struct kve_source_entry *e)
{
    struct kve_ingest *ingest = e->ingest;

    kve_registry_leave(ingest, e);
    if (e->worker->n_entries == 0) {
        kve_row_drop_worker(ingest, e->worker);
    } else {
        if (e->n_feeds > 0)
            kve_row_drop(ingest, e->feeds[0].instance);
        kve_row_disown(ingest, e);
    }
    retire_counters(e);
}

void
kve_entry_wait_applied(struct kve_source_entry *e)
{
    (void)pthread_mutex_lock(&e->applying);
    (void)pthread_mutex_unlock(&e->applying);
}

void
kve_entry_kill(struct kve_source_entry *e)
{
    (void)pthread_mutex_lock(&e->applying);
    e->dead = true;
    (void)pthread_mutex_unlock(&e->applying);
}

/* Both locks of a callback that changes what its entry feeds. A save holds
 * applying for as long as it copies a source; registry is not held while that
 * is waited for, as everybody who reads would wait, too. */
static void
lock_both(struct kve_source_entry *e)
{
    (void)pthread_rwlock_wrlock(&e->ingest->registry);
    while (pthread_mutex_trylock(&e->applying) != 0) {
        (void)pthread_rwlock_unlock(&e->ingest->registry);
        kve_entry_wait_applied(e);
        (void)pthread_rwlock_wrlock(&e->ingest->registry);
    }
}

static void
unlock_both(struct kve_source_entry *e)
{
    (void)pthread_mutex_unlock(&e->applying);
    (void)pthread_rwlock_unlock(&e->ingest->registry);
}

/* Under registry, for what others see, and applying: who holds that may look at
 * the feeds of an entry. */
static kve_status
add_feed(struct kve_source_entry *e, uint32_t rank, struct kve_error *err)
{
    struct kve_feed feed = { .rank = rank };
    struct kve_feed *grown = NULL;
    size_t cap = 2 * e->cap_feeds;
    kve_status status;

    if (!e->listed)
        return kve_fail(err, KVE_E_NOT_FOUND, "the source was removed");
    if (e->n_feeds == MAX_FEEDS)
        return kve_fail(err, KVE_E_LIMIT,
            "its batches name %d ranks already; rank %u is one more", MAX_FEEDS,
            rank);
    if (e->n_feeds == e->cap_feeds) {
        grown = kve_mem_array(e->feeds, cap, sizeof(*grown));
        if (grown == NULL)
            return kve_fail_nomem(err, "another rank of a source");
        e->feeds = grown;
        e->cap_feeds = cap;
    }
    status = add_instance(e, rank, &feed.instance, err);
    if (status == KVE_OK)
        e->feeds[e->n_feeds++] = feed;
    return status;
}

kve_status
kve_entry_feed(struct kve_source_entry *e, int64_t rank, size_t *ret_feed,
    struct kve_error *err)
{
    kve_status status;

    for (size_t i = 0; i < e->n_feeds; i++)
        if (e->feeds[i].rank == rank) {
            *ret_feed = e->last_feed = i;
            return KVE_OK;
        }
    if (rank < 0 || rank > UINT32_MAX)
        return kve_fail(err, KVE_E_INVAL,
            "the batch names rank %lld; accepted are 0 to %u", (long long)rank,
            UINT32_MAX);
    lock_both(e);
    status = add_feed(e, (uint32_t)rank, err);
    unlock_both(e);
    if (status == KVE_OK)
        *ret_feed = e->last_feed = e->n_feeds - 1;
    return status;
}

kve_status
kve_entry_refeed(struct kve_source_entry *e, size_t feed, struct kve_error *err)
{
    kve_instance instance = 0;
    kve_status status;

    lock_both(e);
    status = e->listed
        ? add_instance(e, e->feeds[feed].rank, &instance, err)
        : kve_fail(err, KVE_E_NOT_FOUND, "the source was removed");
    if (status == KVE_OK) {
        e->feeds[feed].instance = instance;
        e->feeds[feed].twin = 0;
        /* What went to the twin went with it. */
        e->twin_incomplete = e->twin_incomplete || e->building;
    }
    unlock_both(e);
    return status;
}

kve_status
kve_entry_instance(struct kve_source_entry *e, uint32_t rank,
    kve_instance *ret_instance, struct kve_error *err)
{
    size_t feed = 0;
    kve_status status = kve_entry_feed(e, rank, &feed, err);

    if (status == KVE_OK)
        *ret_instance = e->feeds[feed].instance;
    return status;
}

/* ---- what is visible ---- */

void
kve_entry_stands(
    struct kve_source_entry *e, const struct kve_position *position)
{
    e->position = *position;
    atomic_store_explicit(
        &e->last_number, position->number, memory_order_relaxed);
    atomic_store_explicit(&e->started, position->started, memory_order_relaxed);
}

void
kve_entry_abort_twins(struct kve_source_entry *e)
{
    for (size_t i = 0; i < e->n_feeds; i++) {
        struct kve_feed *feed = &e->feeds[i];

        if (feed->twin != 0)
            (void)kve_index_rebuild_abort(
                e->ingest->index, feed->instance, NULL);
        feed->twin = 0;
        feed->twin_failed = false;
    }
    e->building = false;
    e->twin_incomplete = false;
    e->twin_started = false;
}

void
kve_entry_clear_all(struct kve_source_entry *e)
{
    struct kve_position nowhere;

    memset(&nowhere, 0, sizeof(nowhere));
    kve_entry_abort_twins(e);
    for (size_t i = 0; i < e->n_feeds; i++)
        (void)kve_index_clear(e->ingest->index, e->feeds[i].instance, 0, NULL);
    atomic_store(&e->incomplete, false);
    atomic_store(&e->has_missing, false);
    atomic_store(&e->restored, false);
    kve_entry_stands(e, &nowhere);
}

/* ---- state ---- */

static bool
is_unready(uint32_t state)
{
    return state == KVE_STATE_COLD || state == KVE_STATE_RECOVERING;
}

void
kve_entry_refresh(struct kve_source_entry *e)
{
    uint32_t was = atomic_load(&e->status);
    uint32_t now = atomic_load(&e->sub_status);
    uint32_t state;

    if (atomic_load(&e->is_paused))
        now = KVE_STATE_DEGRADED | KVE_REASON_PAUSED << 8u;
    else if (KVE_STATUS_STATE(now) == KVE_STATE_LIVE &&
        atomic_load(&e->incomplete))
        now = KVE_STATE_DEGRADED | KVE_REASON_NOT_APPLIED << 8u;
    if (now == was)
        return;
    state = KVE_STATUS_STATE(now);
    if (!is_unready(state))
        atomic_store(&e->unready_since_ns, 0);
    else if (atomic_load(&e->unready_since_ns) == 0)
        atomic_store(&e->unready_since_ns, kve_now_ns());
    if (state != KVE_STATUS_STATE(was))
        atomic_store(&e->state_since_ns, kve_real_ns());
    atomic_store(&e->status, now);
}

void
kve_entry_set_state(struct kve_source_entry *e, uint32_t state, uint32_t reason)
{
    atomic_store(&e->sub_status, state | reason << 8);
    kve_entry_refresh(e);
}

/* ---- following ---- */

void
kve_entry_open(struct kve_source_entry *e)
{
    struct kve_ingest *ingest = e->ingest;

    (void)pthread_mutex_lock(&ingest->gate);
    atomic_store(&e->opened, true);
    (void)pthread_cond_broadcast(&ingest->opened);
    (void)pthread_mutex_unlock(&ingest->gate);
}

void
kve_entry_wait_opened(struct kve_source_entry *e)
{
    struct kve_ingest *ingest = e->ingest;

    (void)pthread_mutex_lock(&ingest->gate);
    while (!atomic_load(&e->opened))
        (void)pthread_cond_wait(&ingest->opened, &ingest->gate);
    (void)pthread_mutex_unlock(&ingest->gate);
}

/* The address of a bound socket that was just closed is free soon. */
static kve_status
add_to_subscriber(struct kve_source_entry *e,
    const struct kve_source_opts *opts, kve_source_id *ret_id,
    struct kve_error *err)
{
    struct kve_ingest *ingest = e->ingest;
    struct kve_error why = { .status = KVE_OK };
    kve_status status;

    for (;;) {
        status = kve_sub_add(ingest->sub, opts, ret_id, &why);
        if (status != KVE_E_IN_USE || ingest->unbound_at == 0 ||
            kve_now_ns() - ingest->unbound_at > UNBIND_NS)
            break;
        (void)usleep(5000);
    }
    /* IN_USE means something else to those who add. */
    if (status == KVE_E_IN_USE)
        return kve_fail(err, KVE_E_SYSTEM, "%s", why.detail);
    if (status != KVE_OK && err != NULL)
        *err = why;
    return status;
}

kve_status
kve_entry_dial(struct kve_source_entry *e, struct kve_error *err)
{
    struct kve_source_opts opts = e->spec.source;
    struct kve_position position;
    kve_source_id id = 0;
    kve_status status;

    if (e->parent_id != 0 || atomic_load(&e->is_paused) || e->keyless)
        return KVE_OK;
    (void)pthread_mutex_lock(&e->applying);
    position = e->position;
    /* What a state brought without one is said again by the publisher. */
    if (!position.started && atomic_load(&e->restored))
        kve_entry_clear_all(e);
    (void)pthread_mutex_unlock(&e->applying);
    opts.struct_size = sizeof(opts);
    opts.user = e;
    if (position.started && !e->many) {
        opts.resume = &position;
        opts.start = KVE_START_DEFAULT;
        opts.first_number = 0;
    }
    atomic_store(&e->opened, false);
    status = add_to_subscriber(e, &opts, &id, err);
    if (status != KVE_OK)
        return status;
    atomic_store(&e->sub_id, id);
    if (opts.resume != NULL)
        kve_ingest_count(e, KVE_COUNTER_INGEST_RESUMED, 1);
    return KVE_OK;
}

kve_status
kve_entry_follow(struct kve_source_entry *e, struct kve_error *err)
{
    kve_status status = kve_entry_dial(e, err);

    kve_entry_open(e);
    return status;
}

void
kve_entry_keep_counters(struct kve_source_entry *e, kve_source_id id)
{
    for (unsigned i = 0; i < KVE_SUB_COUNTERS_KEPT; i++)
        atomic_fetch_add_explicit(&e->sub_counters[i],
            kve_sub_counter(e->ingest->sub, id, KVE_SUB_COUNTER_KEPT_BASE + i),
            memory_order_relaxed);
}

void
kve_entry_unfollow(struct kve_source_entry *e)
{
    kve_source_id id = atomic_exchange(&e->sub_id, 0);

    if (id == 0)
        return;
    kve_entry_keep_counters(e, id);
    (void)kve_sub_remove(e->ingest->sub, id);
    if (e->many)
        e->ingest->unbound_at = kve_now_ns();
}

/* ---- lines ---- */

static void
retire_line(struct kve_ingest *ingest, struct kve_line *line)
{
    struct kve_line *first = atomic_load(&ingest->old_lines);

    do
        line->next = first;
    while (!atomic_compare_exchange_weak(&ingest->old_lines, &first, line));
    atomic_fetch_add(&ingest->n_old_lines, 1);
}

void
kve_entry_say(struct kve_source_entry *e, const char *text)
{
    struct kve_ingest *ingest = e->ingest;
    size_t size = strlen(text) + 1;
    struct kve_line *line;

    if (atomic_load(&ingest->n_old_lines) >= MAX_OLD_LINES)
        return;
    line = kve_mem_alloc(sizeof(*line) + size);
    if (line == NULL)
        return;
    memcpy(line->text, text, size);
    line = atomic_exchange(&e->last_error, line);
    if (line != NULL)
        retire_line(ingest, line);
}

void
kve_ingest_free_lines(struct kve_ingest *ingest)
{
    struct kve_line *line = atomic_exchange(&ingest->old_lines, NULL);

    if (line == NULL)
        return;
    /* Who reads now may hold one of them; who reads later sees others. */
    (void)pthread_rwlock_wrlock(&ingest->registry);
    (void)pthread_rwlock_unlock(&ingest->registry);
    while (line != NULL) {
        struct kve_line *next = line->next;

        kve_mem_free(line);
        atomic_fetch_sub(&ingest->n_old_lines, 1);
        line = next;
    }
}

/* ---- events ---- */

void
kve_ingest_tell_event(
    struct kve_source_entry *e, struct kve_ingest_event *event)
{
    const struct kve_ingest_opts *opts = &e->ingest->opts;

    if (opts->on_event == NULL)
        return;
    event->struct_size = sizeof(*event);
    event->source = e->id;
    event->worker = e->worker->name;
    event->model = e->worker->model;
    event->tenant = e->worker->tenant;
    event->rank = e->rank;
    if (event->detail == NULL)
        event->detail = "";
    opts->on_event(opts->ctx, event);
}

void
kve_ingest_tell(struct kve_source_entry *e, enum kve_ingest_event_type type,
    const char *detail)
{
    struct kve_ingest_event event;

    memset(&event, 0, sizeof(event));
    event.type = type;
    event.detail = detail;
    kve_ingest_tell_event(e, &event);
}
