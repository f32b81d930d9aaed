/*
 * publisher.c - options, publishing, the ends of a publisher's life. See
 * publisher.h for the whole, sender.c for the thread.
 */
#include "publish/publisher.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "transport/context.h"

#include <kvevents/codec.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#define DEFAULT_ENDPOINT "tcp://127.0.0.1:5557"
#define DEFAULT_HWM 100000
#define DEFAULT_BUFFER_STEPS 10000
#define DEFAULT_QUEUE_ITEMS 100000
#define DEFAULT_MAX_REPLAYS 16
#define DEFAULT_REPLAY_TIMEOUT_MS 30000
#define DEFAULT_SHUTDOWN_MS 1000
#define DEFAULT_QUEUE_BYTES ((size_t)256 << 20)
#define DEFAULT_BUFFER_BYTES ((size_t)1 << 30)
#define DEFAULT_MAX_OUT_BYTES ((size_t)512 << 20)
#define DEFAULT_SNAPSHOT_TIMEOUT_MS 30000
#define DEFAULT_SNAPSHOT_MAX_BYTES ((size_t)256 << 20)
#define DEFAULT_SNAPSHOT_MAX_BLOCKS 4194304
#define DEFAULT_HEARTBEAT_MS 1000

#define SNAPSHOT_HWM 16 /* replies the library queues for one reader */

#define MAX_REPLAYS 65536
#define MAX_REQUEST_LEN 1024 /* a request is 8 bytes */
/* Longest topic a reader may ask for: ours, when that is longer. A message
 * that subscribes is a little longer than its topic. */
#define MAX_SUBSCRIPTION ((size_t)65536)
#define SUBSCRIBE_SPARE 64

#define OPTS_MIN \
    (offsetof(struct kve_pub_opts, curve) + sizeof(struct kve_curve))
#define VIEW_MIN (offsetof(struct kve_batch_view, event_size) + sizeof(size_t))

/* ------------------------------------------------------------------ */

void
kve_pub_opts_init(struct kve_pub_opts *opts)
{
    memset(opts, 0, sizeof(*opts));
    opts->struct_size = sizeof(*opts);
}

static void
default_u32(uint32_t *at, uint32_t value)
{
    if (*at == 0)
        *at = value;
}

static void
default_size(size_t *at, size_t value)
{
    if (*at == 0)
        *at = value;
}

static void
fill_defaults(struct kve_pub_opts *opts)
{
    if (opts->endpoint == NULL)
        opts->endpoint = DEFAULT_ENDPOINT;
    if (opts->replay_endpoint == NULL)
        opts->replay_endpoint = "";
    if (opts->topic == NULL)
        opts->topic = "";
    default_u32(&opts->hwm, DEFAULT_HWM);
    default_u32(&opts->buffer_steps, DEFAULT_BUFFER_STEPS);
    default_u32(&opts->queue_items, DEFAULT_QUEUE_ITEMS);
    default_u32(&opts->max_replays, DEFAULT_MAX_REPLAYS);
    default_u32(&opts->replay_timeout_ms, DEFAULT_REPLAY_TIMEOUT_MS);
    default_u32(&opts->shutdown_ms, DEFAULT_SHUTDOWN_MS);
    default_size(&opts->queue_bytes, DEFAULT_QUEUE_BYTES);
    default_size(&opts->buffer_bytes, DEFAULT_BUFFER_BYTES);
    default_size(&opts->max_out_bytes, DEFAULT_MAX_OUT_BYTES);
    if (opts->snapshot_endpoint == NULL)
        opts->snapshot_endpoint = "";
    if (opts->snapshot_endpoint[0] != '\0')
        opts->snapshots = 1;
    default_u32(&opts->snapshot_timeout_ms, DEFAULT_SNAPSHOT_TIMEOUT_MS);
    default_size(&opts->snapshot_max_bytes, DEFAULT_SNAPSHOT_MAX_BYTES);
    default_u32(&opts->snapshot_max_blocks, DEFAULT_SNAPSHOT_MAX_BLOCKS);
    default_u32(&opts->heartbeat_ms,
        opts->snapshots != 0 ? DEFAULT_HEARTBEAT_MS : KVE_NONE);
    if (!opts->rank.set)
        opts->rank.value = 0; /* moves no port */
    if (opts->buffer_steps == KVE_NONE)
        opts->buffer_steps = 0;
    if (opts->ranks == 0)
        opts->ranks = opts->rank.set ? (uint32_t)opts->rank.value + 1 : 1;
}

/* One option that is a number: the text names it, what was given and what is
 * accepted. */
static kve_status
check_range(const char *name, uint32_t value, uint32_t min, uint32_t max,
    struct kve_error *err)
{
    if (value >= min && value <= max)
        return KVE_OK;
    return kve_fail(err, KVE_E_INVAL,
        "%s is %" PRIu32 "; accepted are %" PRIu32 " to %" PRIu32, name, value,
        min, max);
}

static kve_status
check_rank(const struct kve_pub_opts *opts, struct kve_error *err)
{
    if (!opts->rank.set)
        return KVE_OK;
    if (opts->rank.value < 0 || opts->rank.value >= UINT32_MAX)
        return kve_fail(err, KVE_E_INVAL,
            "rank is %" PRId64 "; ranks count from 0; leave it unset for an "
            "engine without data parallelism",
            opts->rank.value);
    if (opts->ranks != 0 && (uint64_t)opts->rank.value >= opts->ranks)
        return kve_fail(err, KVE_E_INVAL,
            "rank is %" PRId64 " with ranks %" PRIu32 "; accepted are 0 to "
            "%" PRIu32,
            opts->rank.value, opts->ranks, opts->ranks - 1);
    return KVE_OK;
}

static kve_status
check_numbers(const struct kve_pub_opts *opts, struct kve_error *err)
{
    const struct {
        const char *name;
        uint32_t value, min, max;
    } ranges[] = {
        { "bind", opts->bind, KVE_BIND_DEFAULT, KVE_BIND_GUESS },
        { "layout", opts->layout, KVE_LAYOUT_MAP, KVE_LAYOUT_KEEP },
        { "replay_shape", opts->replay_shape, KVE_REPLAY_WITH_TOPIC,
            KVE_REPLAY_NO_TOPIC },
        { "hwm", opts->hwm, 1, INT_MAX },
        { "sndbuf", opts->sndbuf, 0, INT_MAX },
        { "queue_items", opts->queue_items, 1, KVE_QUEUE_MAX_ITEMS },
        { "max_replays", opts->max_replays, 1, MAX_REPLAYS },
        { "replay_timeout_ms", opts->replay_timeout_ms, 1, INT_MAX },
        { "shutdown_ms", opts->shutdown_ms, 1, INT_MAX },
        { "snapshots", opts->snapshots, 0, 1 },
        { "snapshot_timeout_ms", opts->snapshot_timeout_ms, 1, INT_MAX },
        { "clear_scope", opts->clear_scope, KVE_CLEAR_DEFAULT, KVE_CLEAR_ALL },
        { "heartbeat_ms",
            opts->heartbeat_ms == KVE_NONE ? 1 : opts->heartbeat_ms, 1,
            INT_MAX },
    };

    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        kve_status status = check_range(
            ranges[i].name, ranges[i].value, ranges[i].min, ranges[i].max, err);
        if (status != KVE_OK)
            return status;
    }
    return KVE_OK;
}

static kve_status
check_endpoint(const char *endpoint, const char *option, struct kve_error *err)
{
    struct kve_endpoint parsed;

    /* First, since it lists the schemes there are. */
    if (kve_transport_find(endpoint, err) == NULL)
        return KVE_E_INVAL;
    return kve_endpoint_parse(endpoint, option, &parsed, err);
}

/* Each by itself, and no two of them in each other's way. */
static kve_status
check_endpoints(const struct kve_pub_opts *opts, struct kve_error *err)
{
    const struct kve_endpoint_role roles[] = {
        { opts->endpoint, "live", "endpoint" },
        { opts->replay_endpoint, "replay", "replay endpoint" },
        { opts->snapshot_endpoint, "snapshot", "snapshot endpoint" },
    };
    const size_t n = sizeof(roles) / sizeof(roles[0]);
    kve_status status = check_endpoint(opts->endpoint, "endpoint", err);

    if (status == KVE_OK && opts->replay_endpoint[0] != '\0')
        status = check_endpoint(opts->replay_endpoint, "replay_endpoint", err);
    if (status == KVE_OK && opts->snapshot_endpoint[0] != '\0')
        status =
            check_endpoint(opts->snapshot_endpoint, "snapshot_endpoint", err);
    for (size_t i = 0; i < n && status == KVE_OK; i++)
        for (size_t j = i + 1; j < n && status == KVE_OK; j++)
            status = kve_endpoint_check_apart(
                &roles[i], &roles[j], opts->ranks, err);
    return status;
}

static kve_status
check_snapshots(const struct kve_pub_opts *opts, struct kve_error *err)
{
    if (opts->snapshots != 0 && opts->snapshot_endpoint[0] == '\0' &&
        opts->replay_endpoint[0] == '\0')
        return kve_fail(err, KVE_E_INVAL,
            "snapshots is 1 and there is nowhere to ask for one; set "
            "snapshot_endpoint or replay_endpoint");
    if (opts->heartbeat_ms != KVE_NONE && opts->snapshots == 0 &&
        opts->publisher_id == NULL)
        return kve_fail(err, KVE_E_INVAL,
            "heartbeat_ms is %" PRIu32 " without an id, and readers know a "
            "heartbeat by it; set publisher_id",
            opts->heartbeat_ms);
    return KVE_OK;
}

/* The options as they count: defaults filled in, everything checked. */
static kve_status
read_opts(const struct kve_pub_opts *given, struct kve_pub_opts *ret,
    struct kve_error *err)
{
    kve_status status =
        kve_opts_read(given, OPTS_MIN, ret, sizeof(*ret), "kve_pub_opts", err);

    if (status == KVE_OK)
        status = check_rank(ret, err);
    if (status != KVE_OK)
        return status;
    fill_defaults(ret);
    status = check_numbers(ret, err);
    if (status == KVE_OK)
        status = check_endpoints(ret, err);
    if (status == KVE_OK)
        status = check_snapshots(ret, err);
    return status;
}

/* ------------------------------------------------------------------ */

static kve_status
copy_text(const char *text, const char *what, char **ret, struct kve_error *err)
{
    *ret = kve_mem_strdup(text);
    return *ret != NULL ? KVE_OK : kve_fail_nomem(err, what);
}

static kve_status
open_live(
    kve_publisher *pub, const struct kve_pub_opts *opts, struct kve_error *err)
{
    char endpoint[KVE_ENDPOINT_MAX];
    size_t topic_len = strlen(opts->topic);
    struct kve_serve_opts serve = { .endpoint = endpoint,
        .bind = opts->bind,
        .hwm = opts->hwm,
        .sndbuf = opts->sndbuf,
        .max_request_len = SUBSCRIBE_SPARE +
            (topic_len > MAX_SUBSCRIPTION ? topic_len : MAX_SUBSCRIPTION),
        .curve = opts->curve };
    kve_status status = kve_endpoint_of_rank(opts->endpoint,
        (uint32_t)opts->rank.value, endpoint, sizeof(endpoint), err);

    if (status != KVE_OK)
        return status;
    pub->live_transport = kve_transport_find(endpoint, err);
    if (pub->live_transport == NULL)
        return KVE_E_INVAL;
    status = pub->live_transport->live_out_open(
        pub->context, &serve, &pub->live, err);
    if (status != KVE_OK)
        return status;
    return copy_text(
        pub->live_transport->live_out_endpoint(pub->live, &pub->bound),
        "endpoint", &pub->endpoint, err);
}

static kve_status
open_replay(
    kve_publisher *pub, const struct kve_pub_opts *opts, struct kve_error *err)
{
    char endpoint[KVE_ENDPOINT_MAX];
    struct kve_serve_opts serve = { .endpoint = endpoint,
        .hwm = KVE_REPLAY_HWM,
        .sndbuf = opts->sndbuf,
        .max_request_len = MAX_REQUEST_LEN,
        .curve = opts->curve };
    struct kve_replays *replays = &pub->replays;
    kve_status status;

    if (opts->replay_endpoint[0] == '\0')
        return copy_text("", "replay_endpoint", &pub->replay_endpoint, err);
    status = kve_endpoint_of_rank(opts->replay_endpoint,
        (uint32_t)opts->rank.value, endpoint, sizeof(endpoint), err);
    if (status != KVE_OK)
        return status;
    replays->transport = kve_transport_find(endpoint, err);
    if (replays->transport == NULL)
        return KVE_E_INVAL;
    status = replays->transport->replay_serve_open(
        pub->context, &serve, &replays->serve, err);
    if (status != KVE_OK)
        return status;
    return copy_text(replays->transport->replay_serve_endpoint(replays->serve),
        "replay_endpoint", &pub->replay_endpoint, err);
}

/* A publisher's life has a name of its own. */
static kve_status
choose_id(
    kve_publisher *pub, const struct kve_pub_opts *opts, struct kve_error *err)
{
    pub->has_id = opts->publisher_id != NULL || opts->snapshots != 0;
    if (opts->publisher_id != NULL)
        memcpy(pub->id, opts->publisher_id, sizeof(pub->id));
    else if (pub->has_id &&
        getrandom(pub->id, sizeof(pub->id), 0) != (ssize_t)sizeof(pub->id))
        return kve_fail(err, KVE_E_SYSTEM, "no random bytes for an id: %s",
            strerror(errno));
    return KVE_OK;
}

static kve_status
open_recorder(
    kve_publisher *pub, const struct kve_pub_opts *opts, struct kve_error *err)
{
    char endpoint[KVE_ENDPOINT_MAX] = "";
    struct kve_recorder_opts rec = { .context = pub->context,
        .counters = &pub->counters,
        .sender_fd = pub->wake_fd,
        .layout = pub->layout,
        .rank = opts->rank,
        .publisher_id = pub->id,
        .first_number = opts->first_number,
        .ring_items = opts->queue_items,
        .ring_bytes = opts->queue_bytes,
        .max_bytes = opts->snapshot_max_bytes,
        .max_blocks = opts->snapshot_max_blocks,
        .clear_all = opts->clear_scope == KVE_CLEAR_ALL,
        .max_asks = opts->max_replays,
        .timeout_ns = opts->snapshot_timeout_ms * KVE_MS,
        .serve = { .endpoint = endpoint,
            .hwm = SNAPSHOT_HWM,
            .sndbuf = opts->sndbuf,
            .apart = true,
            .max_request_len = MAX_REQUEST_LEN,
            .curve = opts->curve } };
    kve_status status = KVE_OK;

    if (opts->snapshots == 0)
        return KVE_OK;
    if (opts->snapshot_endpoint[0] != '\0')
        status = kve_endpoint_of_rank(opts->snapshot_endpoint,
            (uint32_t)opts->rank.value, endpoint, sizeof(endpoint), err);
    if (status == KVE_OK)
        status = kve_recorder_create(&rec, &pub->recorder, err);
    if (status == KVE_OK)
        status = kve_recorder_start(pub->recorder, err);
    if (status == KVE_OK)
        pub->replays.recorder = pub->recorder;
    return status;
}

static void
set_up(kve_publisher *pub, const struct kve_pub_opts *opts)
{
    struct kve_replays *replays = &pub->replays;

    pub->layout = (enum kve_layout)opts->layout;
    pub->rank = opts->rank;
    atomic_init(&pub->last_rank, KVE_NO_RANK);
    pub->max_out_bytes = opts->max_out_bytes;
    pub->shutdown_ms = opts->shutdown_ms;
    pub->heartbeat_ns = opts->heartbeat_ms == KVE_NONE
        ? KVE_NEVER
        : opts->heartbeat_ms * KVE_MS;
    pub->topic_span =
        (struct kve_span){ (const uint8_t *)pub->topic, strlen(pub->topic) };

    kve_history_init(&pub->history, opts->buffer_steps, opts->buffer_bytes);
    replays->context = pub->context;
    replays->history = &pub->history;
    replays->counters = &pub->counters;
    replays->topic = pub->topic_span;
    replays->with_topic = opts->replay_shape == KVE_REPLAY_WITH_TOPIC;
    replays->timeout_ns = opts->replay_timeout_ms * KVE_MS;
    replays->max_jobs = opts->max_replays;
    replays->max_out_bytes = opts->max_out_bytes / 2;
}

kve_status
kve_pub_create(kve_context *context, const struct kve_pub_opts *given,
    kve_publisher **ret_pub, struct kve_error *err)
{
    struct kve_pub_opts opts;
    kve_publisher *pub = NULL;
    kve_status status = read_opts(given, &opts, err);

    if (status != KVE_OK)
        return status;

    pub = kve_mem_zalloc(1, sizeof(*pub));
    if (pub == NULL)
        return kve_fail_nomem(err, "publisher");
    pub->wake_fd = -1;

    /* Snapshots are large; a thread of their own keeps them from delaying
     * the live stream. */
    status = opts.snapshot_endpoint[0] != '\0'
        ? kve_context_ref_apart(context, 3, &pub->context, err)
        : kve_context_ref(context, 2, &pub->context, err);
    if (status != KVE_OK)
        goto out;
    status = choose_id(pub, &opts, err);
    if (status != KVE_OK)
        goto out;
    status = copy_text(opts.topic, "topic", &pub->topic, err);
    if (status != KVE_OK)
        goto out;
    set_up(pub, &opts);

    status = kve_queue_init(&pub->queue, opts.queue_items, opts.queue_bytes,
        opts.first_number, err);
    if (status != KVE_OK)
        goto out;
    status = kve_flush_init(&pub->flush, err);
    if (status != KVE_OK)
        goto out;
    pub->out = kve_out_gauge_create();
    if (pub->out == NULL) {
        status = kve_fail_nomem(err, "publisher");
        goto out;
    }
    pub->replays.out = pub->out;
    pub->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (pub->wake_fd < 0) {
        status = kve_fail(
            err, KVE_E_SYSTEM, "an eventfd was refused: %s", strerror(errno));
        goto out;
    }

    status = open_live(pub, &opts, err);
    if (status != KVE_OK)
        goto out;
    status = open_replay(pub, &opts, err);
    if (status != KVE_OK)
        goto out;
    status = open_recorder(pub, &opts, err);
    if (status != KVE_OK)
        goto out;
    status = kve_sender_start(pub, err);
    if (status != KVE_OK)
        goto out;

    *ret_pub = pub;
    pub = NULL;
out:
    kve_pub_destroy(pub);
    return status;
}

kve_status
kve_pub_create_null(kve_publisher **ret_pub, struct kve_error *err)
{
    kve_publisher *pub = kve_mem_zalloc(1, sizeof(*pub));
    kve_status status = KVE_OK;

    if (pub == NULL)
        return kve_fail_nomem(err, "publisher");
    pub->null = true;
    pub->wake_fd = -1;
    status = kve_queue_init(&pub->queue, 1, 1, 0, err);
    if (status != KVE_OK) {
        kve_pub_destroy(pub);
        return status;
    }
    *ret_pub = pub;
    return KVE_OK;
}

/* ------------------------------------------------------------------ */

static bool
forked(const kve_publisher *pub)
{
    return pub->context != NULL && kve_context_forked(pub->context);
}

static kve_status
fail_forked(struct kve_error *err)
{
    return kve_fail(err, KVE_E_FORKED,
        "the publisher belongs to the parent process; make one after fork()");
}

static kve_status
fail_closed(struct kve_error *err)
{
    return kve_fail(err, KVE_E_CLOSED, "the publisher was shut down");
}

static void
null_publish(kve_publisher *pub, uint64_t *ret_number)
{
    uint64_t number = kve_queue_number(&pub->queue);

    kve_pub_count(&pub->counters, KVE_COUNTER_PUB_BATCHES, 1);
    if (ret_number != NULL)
        *ret_number = number;
}

/* Queue a copy of data. */
static kve_status
publish_bytes(kve_publisher *pub, const void *data, size_t len, uint32_t flags,
    uint64_t *ret_number, struct kve_error *err)
{
    struct kve_payload *payload = kve_payload_create(data, len, pub->out);
    struct kve_queue_pushed pushed;
    kve_status status;

    if (payload == NULL) {
        kve_pub_count(&pub->counters, KVE_COUNTER_PUB_UNENCODABLE, 1);
        return kve_fail_nomem(err, "a batch to publish");
    }
    payload->flags = flags;
    status = kve_queue_push(&pub->queue, payload, &pushed);
    if (status != KVE_OK)
        kve_payload_unref(payload);
    if (status == KVE_E_CLOSED)
        return fail_closed(err);
    if (status != KVE_OK && (flags & KVE_PAYLOAD_HEARTBEAT))
        return status; /* as if it had never been */

    kve_pub_count(&pub->counters, KVE_COUNTER_PUB_BATCHES, 1);
    kve_pub_count(&pub->counters, KVE_COUNTER_PUB_BYTES, len);
    if (ret_number != NULL)
        *ret_number = pushed.number;
    if (status == KVE_E_DROPPED) {
        kve_pub_count(&pub->counters, KVE_COUNTER_PUB_DROPPED_QUEUE, 1);
        return kve_fail(err, KVE_E_DROPPED,
            "batch %" PRIu64 " was dropped: the queue is full (queue_items, "
            "queue_bytes)",
            pushed.number);
    }
    if (pushed.wake) {
        kve_pub_count(&pub->counters, KVE_COUNTER_PUB_WAKEUPS, 1);
        kve_sender_wake(pub);
    }
    return KVE_OK;
}

/* A free scratch, or NULL when as many callers encode at once. */
static struct kve_scratch *
take_scratch(kve_publisher *pub)
{
    for (size_t i = 0; i < KVE_SCRATCHES; i++) {
        struct kve_scratch *scratch = &pub->scratch[i];

        if (!atomic_load_explicit(&scratch->taken, memory_order_relaxed) &&
            !atomic_exchange_explicit(
                &scratch->taken, true, memory_order_acquire))
            return scratch;
    }
    return NULL;
}

static void
give_scratch(struct kve_scratch *scratch)
{
    scratch->buf.len = 0;
    if (scratch->buf.cap > KVE_SCRATCH_KEEP)
        kve_buffer_release(&scratch->buf);
    atomic_store_explicit(&scratch->taken, false, memory_order_release);
}

/* What a heartbeat names, since readers may tell streams apart by it. Written
 * when it changes, so that callers share the line. */
static void
note_rank(kve_publisher *pub, int64_t rank)
{
    if (atomic_load_explicit(&pub->last_rank, memory_order_relaxed) != rank)
        atomic_store_explicit(&pub->last_rank, rank, memory_order_relaxed);
}

static struct kve_int
last_rank(kve_publisher *pub)
{
    int64_t rank = atomic_load_explicit(&pub->last_rank, memory_order_relaxed);

    /* The recorder reads payloads that came encoded, too. */
    if (pub->recorder != NULL)
        return kve_recorder_rank(pub->recorder);
    return rank == KVE_NO_RANK ? pub->rank : (struct kve_int){ rank, true };
}

static kve_status
encode(kve_publisher *pub, const struct kve_batch_view *given,
    struct kve_buffer *buf, struct kve_error *err)
{
    struct kve_batch_view view;
    kve_status status;

    if (given == NULL)
        return kve_fail(err, KVE_E_INVAL, "view is NULL");
    status = kve_opts_read(
        given, VIEW_MIN, &view, sizeof(view), "kve_batch_view", err);
    if (status != KVE_OK)
        return status;
    if (!view.rank.set)
        view.rank = pub->rank;
    if (view.publisher_id == NULL && pub->has_id)
        view.publisher_id = pub->id;
    status = kve_batch_encode(&view, pub->layout, buf, err);
    if (status == KVE_OK && view.rank.set)
        note_rank(pub, view.rank.value);
    return status;
}

static kve_status
publish_view(kve_publisher *pub, const struct kve_batch_view *view,
    uint32_t flags, uint64_t *ret_number, struct kve_error *err)
{
    struct kve_buffer own = KVE_BUFFER_INIT;
    struct kve_scratch *scratch = take_scratch(pub);
    struct kve_buffer *buf = scratch != NULL ? &scratch->buf : &own;
    kve_status status = encode(pub, view, buf, err);

    if (status == KVE_OK)
        status =
            publish_bytes(pub, buf->data, buf->len, flags, ret_number, err);
    else
        kve_pub_count(&pub->counters, KVE_COUNTER_PUB_UNENCODABLE, 1);
    if (scratch != NULL)
        give_scratch(scratch);
    kve_buffer_release(&own);
    return status;
}

void
kve_pub_heartbeat(kve_publisher *pub)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;

    view.rank = last_rank(pub);
    if (publish_view(pub, &view, KVE_PAYLOAD_HEARTBEAT, NULL, NULL) == KVE_OK)
        kve_pub_count(&pub->counters, KVE_COUNTER_PUB_HEARTBEATS, 1);
}

kve_status
kve_pub_publish(kve_publisher *pub, const struct kve_batch_view *view,
    uint64_t *ret_number, struct kve_error *err)
{
    if (pub->null) {
        null_publish(pub, ret_number);
        return KVE_OK;
    }
    if (forked(pub))
        return fail_forked(err);
    return publish_view(pub, view, 0, ret_number, err);
}

static kve_status
publish_payload(kve_publisher *pub, const void *payload, size_t len,
    uint32_t flags, uint64_t *ret_number, struct kve_error *err)
{
    if (pub->null) {
        null_publish(pub, ret_number);
        return KVE_OK;
    }
    if (forked(pub))
        return fail_forked(err);
    if (payload == NULL || len == 0) {
        kve_pub_count(&pub->counters, KVE_COUNTER_PUB_UNENCODABLE, 1);
        return kve_fail(err, KVE_E_INVAL,
            "the payload is empty; readers take that for an error");
    }
    return publish_bytes(pub, payload, len, flags, ret_number, err);
}

kve_status
kve_pub_publish_payload(kve_publisher *pub, const void *payload, size_t len,
    uint64_t *ret_number, struct kve_error *err)
{
    return publish_payload(pub, payload, len, 0, ret_number, err);
}

kve_status
kve_pub_withhold_payload(kve_publisher *pub, const void *payload, size_t len,
    uint64_t *ret_number, struct kve_error *err)
{
    return publish_payload(
        pub, payload, len, KVE_PAYLOAD_WITHHELD, ret_number, err);
}

kve_status
kve_pub_flush(kve_publisher *pub, int timeout_ms, struct kve_error *err)
{
    kve_status status;

    if (pub->null)
        return KVE_OK;
    if (forked(pub))
        return fail_forked(err);
    status = kve_flush_wait(
        &pub->flush, &pub->queue, kve_queue_tail(&pub->queue), timeout_ms);
    if (status == KVE_E_TIMEOUT)
        return kve_fail(err, KVE_E_TIMEOUT,
            "the queue was not sent within %d ms", timeout_ms);
    if (status == KVE_E_CLOSED)
        return kve_fail(err, KVE_E_CLOSED,
            "the publisher was shut down before the queue was sent");
    return KVE_OK;
}

/* ------------------------------------------------------------------ */

static int
ms_left(int64_t deadline_ns)
{
    int64_t left = deadline_ns - kve_now_ns();

    return left <= 0 ? 0 : (int)(left / KVE_MS);
}

/* Readers get what is left until the deadline to take what was sent. */
static void
close_sockets(kve_publisher *pub, int64_t deadline_ns)
{
    struct kve_replays *replays = &pub->replays;

    if (pub->live != NULL)
        pub->live_transport->live_out_close(pub->live, ms_left(deadline_ns));
    pub->live = NULL;
    kve_replays_release(replays);
    if (replays->serve != NULL)
        replays->transport->replay_serve_close(
            replays->serve, ms_left(deadline_ns));
    replays->serve = NULL;
    kve_recorder_close(pub->recorder, ms_left(deadline_ns));
}

kve_status
kve_pub_shutdown(kve_publisher *pub, int timeout_ms, uint64_t *ret_lost,
    struct kve_error *err)
{
    uint64_t lost = 0;
    int64_t deadline_ns;

    if (forked(pub))
        return fail_forked(err);
    if (timeout_ms < 0)
        timeout_ms = (int)pub->shutdown_ms;
    if (pub->running) {
        deadline_ns = kve_now_ns() + timeout_ms * KVE_MS;
        kve_queue_close(&pub->queue);
        kve_sender_stop(pub, deadline_ns);
        kve_recorder_stop(pub->recorder);
        lost = kve_queue_tail(&pub->queue) - kve_queue_head(&pub->queue);
        kve_pub_count(&pub->counters, KVE_COUNTER_PUB_LOST_SHUTDOWN, lost);
        close_sockets(pub, deadline_ns);
    }
    if (ret_lost != NULL)
        *ret_lost = lost;
    if (lost > 0)
        return kve_fail(err, KVE_E_TIMEOUT,
            "%" PRIu64 " batches were still queued after %d ms", lost,
            timeout_ms);
    return KVE_OK;
}

/*
 * In a forked child. The sender may have been amid anything when the process
 * forked: references can be in two places at once. So queue, history and
 * replays are not touched; the handle stays on a list, where its memory can
 * be reached. What the parent locked is let go of.
 */
static void
park(kve_publisher *pub)
{
    static _Atomic(kve_publisher *) parked;

    if (pub->live != NULL)
        pub->live_transport->live_out_close(pub->live, 0);
    if (pub->replays.serve != NULL)
        pub->replays.transport->replay_serve_close(pub->replays.serve, 0);
    kve_recorder_park(pub->recorder);
    if (pub->wake_fd >= 0)
        (void)close(pub->wake_fd);
    kve_context_unref(pub->context);
    pub->parked = atomic_load(&parked);
    while (!atomic_compare_exchange_weak(&parked, &pub->parked, pub))
        ;
}

void
kve_pub_destroy(kve_publisher *pub)
{
    if (pub == NULL)
        return;
    if (forked(pub)) {
        park(pub);
        return;
    }
    (void)kve_pub_shutdown(pub, -1, NULL, NULL);
    /* What creation left half-made. */
    kve_recorder_stop(pub->recorder);
    close_sockets(pub, 0);
    kve_recorder_destroy(pub->recorder);
    kve_history_release(&pub->history);
    kve_queue_release(&pub->queue);
    kve_flush_release(&pub->flush);
    kve_out_gauge_unref(pub->out);
    if (pub->wake_fd >= 0)
        (void)close(pub->wake_fd);
    for (size_t i = 0; i < KVE_SCRATCHES; i++)
        kve_buffer_release(&pub->scratch[i].buf);
    kve_mem_free(pub->topic);
    kve_mem_free(pub->endpoint);
    kve_mem_free(pub->replay_endpoint);
    kve_context_unref(pub->context);
    kve_mem_free(pub);
}

/* ------------------------------------------------------------------ */

const char *
kve_pub_endpoint(const kve_publisher *pub)
{
    return pub->endpoint != NULL ? pub->endpoint : "";
}

const char *
kve_pub_replay_endpoint(const kve_publisher *pub)
{
    return pub->replay_endpoint != NULL ? pub->replay_endpoint : "";
}

const char *
kve_pub_snapshot_endpoint(const kve_publisher *pub)
{
    return pub->recorder != NULL ? kve_recorder_endpoint(pub->recorder) : "";
}

const uint8_t *
kve_pub_publisher_id(const kve_publisher *pub)
{
    return pub->has_id ? pub->id : NULL;
}

bool
kve_pub_bound(const kve_publisher *pub)
{
    return pub->bound;
}

uint64_t
kve_pub_next_number(const kve_publisher *pub)
{
    return atomic_load_explicit(&pub->queue.next_number, memory_order_relaxed);
}

uint64_t
kve_pub_counter(const kve_publisher *pub, unsigned counter)
{
    return kve_pub_count_get(&pub->counters, counter);
}
