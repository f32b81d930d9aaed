/*
 * stream.c - streams of a socket of many: which worker each of them is.
 *
 *     topic, rank --> known here? --> goes on: resumed, or from nothing
 *                        | no
 *                        v
 *                   topic rule --> (model, worker, rank) --> taken?
 *                                       | no                   | yes
 *                                       v                      v
 *                                  a new entry          silent: replaced
 *                                                       else:   refused
 *
 * A stream that is refused leaves the subscriber at once; its next message
 * makes it anew, and it is judged again. So nothing that was passed over is
 * missing later without being noticed: a stream that begins late knows it. As
 * that may be thousands of times a second, it is judged while others read, and
 * once more, for good, where the registry is written.
 *
 * Everything here runs in callbacks of one socket, which are of one thread.
 */
#include "ingest/parts.h"

#include "base/alloc.h"
#include "base/status.h"
#include "ingest/registry.h"
#include "transport/context.h"

#include <stdio.h>
#include <string.h>

/* A stream that spoke within this time keeps its worker's name. */
#define TAKEN_NS INT64_C(10000000000)

/* ---- the table ---- */

struct kve_source_entry *
kve_stream_find(struct kve_source_entry *parent, kve_source_id id)
{
    size_t low = 0;
    size_t high = parent->n_streams;

    if (parent->last_stream.sub_id == id)
        return parent->last_stream.entry;
    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (parent->streams[middle].sub_id < id)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == parent->n_streams || parent->streams[low].sub_id != id)
        return NULL;
    parent->last_stream = parent->streams[low];
    return parent->streams[low].entry;
}

static void
take_place(struct kve_source_entry *parent, size_t at)
{
    parent->n_streams--;
    memmove(&parent->streams[at], &parent->streams[at + 1],
        (parent->n_streams - at) * sizeof(parent->streams[0]));
    parent->last_stream = (struct kve_stream_entry){ 0, NULL };
}

static bool
grow_places(struct kve_source_entry *parent)
{
    size_t cap = parent->cap_streams == 0 ? 8 : 2 * parent->cap_streams;
    struct kve_stream_entry *grown;

    if (parent->n_streams < parent->cap_streams)
        return true;
    grown = kve_mem_array(parent->streams, cap, sizeof(*grown));
    if (grown == NULL)
        return false;
    parent->streams = grown;
    parent->cap_streams = cap;
    return true;
}

/* The newest id is the largest. Room was made. */
static void
add_place(struct kve_source_entry *parent, kve_source_id id,
    struct kve_source_entry *stream)
{
    parent->streams[parent->n_streams++] =
        (struct kve_stream_entry){ id, stream };
}

kve_status
kve_stream_place(struct kve_source_entry *parent,
    struct kve_source_entry *stream, struct kve_error *err)
{
    if (!grow_places(parent))
        return kve_fail_nomem(err, "a stream");
    kve_entry_ref(stream);
    memmove(&parent->streams[1], &parent->streams[0],
        parent->n_streams * sizeof(parent->streams[0]));
    parent->streams[0] = (struct kve_stream_entry){ 0, stream };
    parent->n_streams++;
    return KVE_OK;
}

void
kve_streams_release(struct kve_source_entry *parent)
{
    for (size_t i = 0; i < parent->n_streams; i++)
        kve_entry_unref(parent->streams[i].entry);
    parent->n_streams = 0;
    parent->last_stream = (struct kve_stream_entry){ 0, NULL };
}

static bool
is_same(const struct kve_source_entry *stream, struct kve_str topic,
    struct kve_int rank)
{
    return stream->stream_rank.set == rank.set &&
        (!rank.set || stream->stream_rank.value == rank.value) &&
        stream->topic_len == topic.len &&
        memcmp(stream->topic, topic.data, topic.len) == 0;
}

/* Those that may come back as new ones leave on the way. */
static struct kve_source_entry *
find_topic(struct kve_source_entry *parent, struct kve_str topic,
    struct kve_int rank, size_t *ret_place)
{
    size_t i = 0;

    while (i < parent->n_streams) {
        struct kve_source_entry *stream = parent->streams[i].entry;

        if (atomic_load(&stream->forgotten)) {
            take_place(parent, i);
            kve_entry_unref(stream);
        } else if (is_same(stream, topic, rank)) {
            *ret_place = i;
            return stream;
        } else {
            i++;
        }
    }
    return NULL;
}

/* ---- one that is known ---- */

/* It goes on where it stood, if it can; else it begins with nothing. */
static void
go_on(struct kve_source_entry *stream, kve_source_id id)
{
    struct kve_ingest *ingest = stream->ingest;

    (void)pthread_mutex_lock(&stream->applying);
    atomic_store(&stream->sub_id, id);
    if (!stream->dead && !stream->paused) {
        if (stream->position.started &&
            kve_sub_resume(ingest->sub, id, &stream->position) == KVE_OK) {
            kve_ingest_count(stream, KVE_COUNTER_INGEST_RESUMED, 1);
            kve_entry_set_state(
                stream, KVE_STATE_RECOVERING, KVE_REASON_RESUMED);
        } else {
            kve_entry_clear_all(stream);
            kve_entry_set_state(stream, KVE_STATE_COLD, KVE_REASON_STARTING);
        }
        atomic_store(&stream->detached, false);
    }
    (void)pthread_mutex_unlock(&stream->applying);
}

/* ---- one that is new ---- */

/* What a new stream is to be. */
struct plan {
    struct kve_source_entry *parent;
    const struct kve_source_info *info;
    struct kve_ingest_spec spec; /* strings of the two below, and parent's */
    char *model;
    char *worker;
};

static kve_status
plan_by_topic(struct plan *plan, bool host, struct kve_error *err)
{
    struct kve_str topic = plan->info->topic;
    struct kve_str id = topic;
    struct kve_str model = { NULL, 0 };

    if (kve_topic_split(topic, host, &id, &model)) {
        plan->model = kve_text_of_bytes(model);
        if (plan->model == NULL)
            return kve_fail_nomem(err, "a stream");
        plan->spec.model = plan->model;
    }
    plan->worker = kve_text_of_bytes(id);
    if (plan->worker == NULL)
        return kve_fail_nomem(err, "a stream");
    plan->spec.worker = plan->worker;
    plan->spec.rank = 0;
    return KVE_OK;
}

/* Under registry: the parent's spec is looked at. */
static kve_status
make_plan(struct plan *plan, struct kve_error *err)
{
    const struct kve_ingest_spec *from = &plan->parent->spec;
    struct kve_int rank = plan->info->rank;
    kve_status status = KVE_OK;

    plan->spec = *from;
    plan->spec.origin = KVE_ORIGIN_STREAM;
    if (from->topic_rule != KVE_TOPIC_RULE_DEFAULT)
        status =
            plan_by_topic(plan, from->topic_rule == KVE_TOPIC_RULE_HOST, err);
    if (status == KVE_OK && rank.set) {
        if (rank.value < 0 || rank.value > UINT32_MAX)
            status = kve_fail(err, KVE_E_INVAL,
                "its batches name rank %lld; accepted are 0 to %u",
                (long long)rank.value, UINT32_MAX);
        else
            plan->spec.rank = (uint32_t)rank.value;
    }
    return status;
}

static kve_status
create_stream(
    struct plan *plan, struct kve_source_entry **ret, struct kve_error *err)
{
    const struct kve_source_info *info = plan->info;
    const char *const endpoints[3] = { info->endpoint, info->replay_endpoint,
        info->snapshot_endpoint };
    struct kve_source_entry *stream = NULL;
    char *topic = kve_text_of_bytes(info->topic);
    kve_status status;

    if (topic == NULL)
        return kve_fail_nomem(err, "a stream");
    plan->spec.source.topic = topic;
    status = kve_entry_create(
        plan->parent->ingest, &plan->spec, endpoints, &stream, err);
    kve_mem_free(topic);
    if (status != KVE_OK)
        return status;
    stream->parent = plan->parent;
    stream->parent_id = plan->parent->id;
    stream->stream_rank = info->rank;
    stream->claimed = plan->parent->claimed;
    stream->topic_len = info->topic.len;
    stream->topic = kve_mem_alloc(info->topic.len + 1);
    if (stream->topic == NULL) {
        kve_entry_unref(stream);
        return kve_fail_nomem(err, "a stream");
    }
    if (info->topic.len > 0)
        memcpy(stream->topic, info->topic.data, info->topic.len);
    stream->topic[info->topic.len] = '\0';
    *ret = stream;
    return KVE_OK;
}

/* Whether it has said nothing for so long that another one may have its
 * name. */
static bool
is_silent(struct kve_source_entry *e)
{
    int64_t heard = atomic_load(&e->last_batch_ns);

    return KVE_STATUS_STATE(atomic_load(&e->status)) == KVE_STATE_GONE ||
        kve_real_ns() - heard > TAKEN_NS;
}

/* Who has its worker and rank already; *ret_old: who is to leave for it. */
static kve_status
check_taken(struct plan *plan, kve_namespace ns,
    struct kve_source_entry **ret_old, struct kve_error *err)
{
    struct kve_worker_entry *worker =
        kve_registry_worker(plan->parent->ingest, ns, plan->spec.worker);
    struct kve_source_entry *other = NULL;

    if (worker != NULL)
        other = kve_registry_find_rank(worker, plan->spec.rank, false);
    if (other == NULL)
        return KVE_OK;
    if (other->parent_id != plan->parent->id || !is_silent(other))
        return kve_fail(err, KVE_E_IN_USE,
            "rank %u of its worker is source %llu already, which is followed "
            "elsewhere or speaks; see topic_rule",
            plan->spec.rank, (unsigned long long)other->id);
    *ret_old = other;
    return KVE_OK;
}

/* Whether it may enter. Under registry, for reading or writing. */
static kve_status
judge(
    struct plan *plan, struct kve_source_entry **ret_old, struct kve_error *err)
{
    const struct kve_ingest *ingest = plan->parent->ingest;
    struct kve_source_entry *old = NULL;
    kve_status status = make_plan(plan, err);
    kve_namespace ns;

    if (status == KVE_OK && !plan->parent->listed)
        status = kve_fail(err, KVE_E_NOT_FOUND, "its socket was removed");
    if (status != KVE_OK)
        return status;
    ns = kve_index_find_namespace(
        ingest->index, plan->spec.model, plan->spec.tenant);
    if (ns != 0)
        status = check_taken(plan, ns, &old, err);
    if (status == KVE_OK && old == NULL)
        status = kve_ingest_check_room(ingest, err);
    *ret_old = old;
    return status;
}

/* Under registry. The old one's callbacks are of this thread: none runs. false:
 * it is being saved. */
static bool
replace(struct kve_source_entry *old)
{
    kve_source_id id;

    if (pthread_mutex_trylock(&old->applying) != 0)
        return false;
    old->dead = true;
    (void)pthread_mutex_unlock(&old->applying);
    id = atomic_exchange(&old->sub_id, 0);
    atomic_store(&old->forgotten, true);
    if (id != 0)
        (void)kve_sub_remove(old->ingest->sub, id);
    kve_entry_leave_locked(old);
    return true;
}

/* What came of it. */
struct entered {
    struct kve_source_entry *stream; /* with a reference */
    struct kve_source_entry *old;    /* that left for it; with a reference */
    struct kve_source_entry *busy;   /* the same, when it is being saved: once
                                        more, after that */
};

/* Under registry. */
static kve_status
enter(struct plan *plan, kve_source_id id, struct entered *ret,
    struct kve_error *err)
{
    struct kve_ingest *ingest = plan->parent->ingest;
    struct kve_source_entry *old = NULL;
    kve_namespace ns = 0;
    kve_status status = judge(plan, &old, err);

    if (status == KVE_OK)
        status = kve_index_namespace(
            ingest->index, plan->spec.model, plan->spec.tenant, &ns, err);
    if (status == KVE_OK)
        status = create_stream(plan, &ret->stream, err);
    if (status != KVE_OK)
        return status;
    if (old != NULL && !replace(old)) {
        kve_entry_ref(old);
        ret->busy = old;
        return KVE_OK;
    }
    ret->old = old;
    status = kve_entry_enter_locked(ret->stream, ns, err);
    atomic_store(&ret->stream->sub_id, id);
    return status;
}

static void
plan_release(struct plan *plan)
{
    kve_mem_free(plan->model);
    kve_mem_free(plan->worker);
    plan->model = NULL;
    plan->worker = NULL;
}

/* Those who read go on while it is judged for the first time, and while a save
 * of the one that is to leave is waited for. */
static kve_status
try_enter(struct plan *plan, kve_source_id id, struct entered *ret,
    struct kve_error *err)
{
    struct kve_ingest *ingest = plan->parent->ingest;
    struct kve_source_entry *old = NULL;
    kve_status status;

    (void)pthread_rwlock_rdlock(&ingest->registry);
    status = judge(plan, &old, err);
    (void)pthread_rwlock_unlock(&ingest->registry);
    plan_release(plan);
    while (status == KVE_OK && ret->stream == NULL) {
        (void)pthread_rwlock_wrlock(&ingest->registry);
        status = enter(plan, id, ret, err);
        (void)pthread_rwlock_unlock(&ingest->registry);
        plan_release(plan);
        if (ret->busy == NULL)
            continue;
        kve_entry_wait_applied(ret->busy);
        kve_entry_unref(ret->busy);
        ret->busy = NULL;
        kve_entry_unref(ret->stream);
        ret->stream = NULL;
    }
    return status;
}

/* It is passed over; its next message makes it anew. Told of the first time,
 * the second, the fourth, ... */
static void
refuse(struct kve_source_entry *parent, const struct kve_notice *notice,
    const struct kve_error *why)
{
    char text[512];

    (void)kve_sub_remove(parent->ingest->sub, notice->source);
    kve_ingest_count(parent, KVE_COUNTER_INGEST_FAILED, 1);
    if (!kve_is_worth_a_line(++parent->n_refused))
        return;
    (void)snprintf(text, sizeof(text), "stream of %s: %s: %s", notice->detail,
        kve_status_str(why->status), why->detail);
    kve_entry_say(parent, text);
    kve_ingest_tell(parent, KVE_INGEST_EVENT_NOT_APPLIED, text);
}

static struct kve_source_entry *
begin_new(struct kve_source_entry *parent, const struct kve_notice *notice,
    const struct kve_source_info *info)
{
    struct plan plan = { .parent = parent, .info = info };
    struct kve_error err = { .status = KVE_OK };
    struct entered entered = { NULL, NULL, NULL };
    kve_status status = grow_places(parent)
        ? try_enter(&plan, notice->source, &entered, &err)
        : kve_fail_nomem(&err, "a stream");

    if (entered.old != NULL) {
        kve_ingest_tell(entered.old, KVE_INGEST_EVENT_REMOVED,
            "another stream has its worker and rank now");
        kve_entry_unref(entered.old);
    }
    if (status != KVE_OK) {
        kve_entry_unref(entered.stream);
        refuse(parent, notice, &err);
        return NULL;
    }
    /* With our reference. */
    add_place(parent, notice->source, entered.stream);
    atomic_store(&entered.stream->opened, true);
    kve_ingest_tell(entered.stream, KVE_INGEST_EVENT_ADDED, notice->detail);
    return entered.stream;
}

struct kve_source_entry *
kve_stream_begin(
    struct kve_source_entry *parent, const struct kve_notice *notice)
{
    struct kve_source_info info = { .struct_size = sizeof(info) };
    struct kve_source_entry *stream;
    size_t at = 0;

    if (kve_sub_source(parent->ingest->sub, notice->source, &info) != KVE_OK)
        return NULL;
    stream = find_topic(parent, info.topic, info.rank, &at);
    if (stream == NULL)
        return begin_new(parent, notice, &info);
    take_place(parent, at);
    add_place(parent, notice->source, stream);
    go_on(stream, notice->source);
    return stream;
}
