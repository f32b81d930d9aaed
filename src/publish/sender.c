/*
 * sender.c - the thread that does a publisher's I/O; see publisher.h.
 */
#include "publish/publisher.h"

#include "publish/thread.h"

#include "base/clock.h"
#include "transport/context.h"

#include <inttypes.h>
#include <poll.h>

/* How often readers that left are looked for while payloads are out. */
#define LOOK_AFTER (100 * KVE_MS)
/* How often a connection is looked after. */
#define DIAL_AFTER (1000 * KVE_MS)

void
kve_sender_wake(kve_publisher *pub)
{
    kve_thread_wake(pub->wake_fd);
}

static size_t
out_bytes(kve_publisher *pub)
{
    return atomic_load_explicit(
        &pub->out->bytes[KVE_OUT_LIVE], memory_order_relaxed);
}

static bool
over_out_limit(kve_publisher *pub)
{
    return out_bytes(pub) > pub->max_out_bytes;
}

static void
live_failed(kve_publisher *pub, const struct kve_error *err)
{
    uint64_t n = ++pub->live_errors;

    if (kve_is_worth_a_line(n))
        kve_context_log(pub->context, KVE_LOG_ERROR,
            "a batch was not sent live (%" PRIu64 " so far): %s", n,
            err->detail);
}

/* What became of the live messages of one round. */
struct round {
    uint64_t sent;
    uint64_t skipped;
    size_t bytes; /* that leave the queue */
};

static void
send_live(
    kve_publisher *pub, const struct kve_queue_item *item, struct round *round)
{
    struct kve_error err;

    if (item->payload->flags & KVE_PAYLOAD_WITHHELD)
        return;
    if (over_out_limit(pub)) {
        round->skipped++;
        return;
    }
    switch (pub->live_transport->live_out_send(
        pub->live, pub->topic_span, item->number, item->payload, &err)) {
    case KVE_IO_OK:
        round->sent++;
        break;
    case KVE_IO_ERROR:
        live_failed(pub, &err);
        break;
    case KVE_IO_AGAIN:
    case KVE_IO_GONE:
        break;
    }
}

/* The queue's reference becomes the history's. */
static void
keep(kve_publisher *pub, const struct kve_queue_item *item)
{
    if (pub->replays.serve == NULL) {
        kve_payload_unref(item->payload);
        return;
    }

    uint64_t before = pub->history.evicted;
    kve_status status =
        kve_history_put(&pub->history, item->number, item->payload);
    uint64_t left = pub->history.evicted - before;

    if (status != KVE_OK) {
        kve_context_log(pub->context, KVE_LOG_ERROR,
            "out of memory: batch %" PRIu64 " is not kept for replay",
            item->number);
        left++;
    }
    if (left > 0)
        kve_pub_count(&pub->counters, KVE_COUNTER_PUB_REPLAY_EVICTED, left);
}

/* Returns whether there may be more. */
static bool
live_round(kve_publisher *pub)
{
    struct round round = { 0, 0, 0 };
    struct kve_queue_item *items;
    size_t n = kve_queue_front(&pub->queue, KVE_ROUND, &items);

    if (n == 0)
        return false;
    if (over_out_limit(pub))
        pub->live_transport->live_out_step(pub->live);
    for (size_t i = 0; i < n; i++) {
        round.bytes += items[i].payload->len;
        /* First: who got it live may ask for a snapshot that has it. */
        if (pub->recorder != NULL)
            kve_recorder_feed(pub->recorder, items[i].number, items[i].payload);
        send_live(pub, &items[i], &round);
        keep(pub, &items[i]);
    }
    /* Before the head moves, so that a caller of flush() sees them. */
    kve_pub_count(&pub->counters, KVE_COUNTER_PUB_SENT, round.sent);
    if (round.skipped > 0)
        kve_pub_count(
            &pub->counters, KVE_COUNTER_PUB_SKIPPED_OUT, round.skipped);
    kve_queue_consume(&pub->queue, n, round.bytes);
    kve_flush_moved(&pub->flush, false);
    kve_replays_bound(&pub->replays);
    pub->quiet_since_ns = kve_now_ns();
    return true;
}

/* What snapshots need of this thread. Returns when to be called again. */
static int64_t
serve_recorder(kve_publisher *pub, int64_t now_ns)
{
    struct kve_replays *replays = &pub->replays;

    if (pub->recorder == NULL)
        return KVE_NEVER;
    kve_recorder_fed(pub->recorder, &pub->history);
    if (replays->serve == NULL)
        return KVE_NEVER;
    return kve_recorder_serve(
        pub->recorder, replays->transport, replays->serve, now_ns);
}

/* When the next heartbeat is due. */
static int64_t
heartbeat_at(const kve_publisher *pub)
{
    return pub->heartbeat_ns == KVE_NEVER
        ? KVE_NEVER
        : pub->quiet_since_ns + pub->heartbeat_ns;
}

/* The thread's descriptors: the wake-up first, then the live socket's, then
 * the replay socket's. */
struct watch {
    struct pollfd fds[1 + 2 * KVE_MAX_FDS];
    nfds_t n_live; /* the first ones, up to the live socket's */
    nfds_t n;
};

static void
watch_add(struct watch *watch, const int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++)
        watch->fds[watch->n++] =
            (struct pollfd){ .fd = fds[i], .events = POLLIN };
}

static void
watch_init(kve_publisher *pub, struct watch *watch)
{
    struct kve_replays *replays = &pub->replays;
    int fds[KVE_MAX_FDS];

    watch->n = 0;
    watch_add(watch, &pub->wake_fd, 1);
    watch_add(watch, fds, pub->live_transport->live_out_fds(pub->live, fds));
    watch->n_live = watch->n;
    if (replays->serve != NULL)
        watch_add(watch, fds,
            replays->transport->replay_serve_fds(replays->serve, fds));
}

/* Whether poll() found one of the live socket's. */
static bool
live_is_readable(const struct watch *watch)
{
    for (nfds_t i = 1; i < watch->n_live; i++)
        if (watch->fds[i].revents != 0)
            return true;
    return false;
}

static int64_t
earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t
next_deadline(kve_publisher *pub, int64_t now_ns, int64_t recorder_at)
{
    int64_t deadline =
        earlier(kve_replays_deadline(&pub->replays), recorder_at);

    deadline = earlier(deadline, heartbeat_at(pub));
    if (atomic_load(&pub->closing))
        deadline = earlier(deadline, atomic_load(&pub->deadline_ns));
    if (out_bytes(pub) > 0)
        deadline = earlier(deadline, now_ns + LOOK_AFTER);
    if (!pub->bound)
        deadline = earlier(deadline, now_ns + DIAL_AFTER);
    return deadline;
}

static void
rest(kve_publisher *pub, struct watch *watch, int64_t recorder_at)
{
    int64_t now_ns = kve_now_ns();
    int ms = kve_ms_until(next_deadline(pub, now_ns, recorder_at), now_ns);

    if (!kve_queue_sleep(&pub->queue))
        return;
    if (poll(watch->fds, watch->n, ms) == 0 || live_is_readable(watch))
        pub->live_transport->live_out_step(pub->live);
    if (watch->fds[0].revents != 0)
        kve_thread_woken(pub->wake_fd);
    kve_queue_awake(&pub->queue);
}

/* Whether the thread may end. */
static bool
done(kve_publisher *pub)
{
    if (!atomic_load(&pub->closing))
        return false;
    if (kve_now_ns() >= atomic_load(&pub->deadline_ns))
        return true;
    return kve_queue_head(&pub->queue) == kve_queue_tail(&pub->queue) &&
        pub->replays.n_jobs == 0 &&
        (pub->recorder == NULL || kve_recorder_unsent(pub->recorder) == 0);
}

static void *
run(void *arg)
{
    kve_publisher *pub = arg;
    struct watch watch;

    kve_thread_begin();
    watch_init(pub, &watch);
    pub->quiet_since_ns = kve_now_ns();
    for (;;) {
        bool more = live_round(pub);
        int64_t now_ns = kve_now_ns();

        more |= kve_replays_receive(&pub->replays, now_ns);
        more |= kve_replays_send(&pub->replays, now_ns);
        int64_t recorder_at = serve_recorder(pub, now_ns);
        if (done(pub))
            break;
        if (now_ns >= heartbeat_at(pub)) {
            /* Also when there is none: what waits in the queue shows as
             * much. */
            pub->quiet_since_ns = now_ns;
            if (kve_queue_head(&pub->queue) == kve_queue_tail(&pub->queue))
                kve_pub_heartbeat(pub);
        } else if (!more) {
            rest(pub, &watch, recorder_at);
        }
    }
    kve_flush_moved(&pub->flush, true);
    return NULL;
}

kve_status
kve_sender_start(kve_publisher *pub, struct kve_error *err)
{
    kve_status status =
        kve_thread_start(&pub->thread, run, pub, "publisher's", err);

    pub->running = status == KVE_OK;
    return status;
}

void
kve_sender_stop(kve_publisher *pub, int64_t deadline_ns)
{
    if (!pub->running)
        return;
    atomic_store(&pub->deadline_ns, deadline_ns);
    atomic_store(&pub->closing, true);
    kve_sender_wake(pub);
    (void)pthread_join(pub->thread, NULL);
    pub->running = false;
}
