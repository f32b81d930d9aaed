/*
 * recorder.c - see recorder.h.
 */
#include "publish/recorder.h"

#include "publish/thread.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "transport/context.h"

#include <kvevents/codec.h>

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define ROUND 64 /* batches between two looks at requests */
#define REQUEST_FRAMES 3
#define REQUEST "snapshot"

/* How often it is looked whether a reply was taken. */
#define LOOK_MIN (1 * KVE_MS)
#define LOOK_MAX (20 * KVE_MS)
#define LOOK_STUCK (100 * KVE_MS)
/* A socket that could not be opened again is tried again after this. */
#define REOPEN_AFTER (1000 * KVE_MS)
/* Batches that are fed from the history in one go: the live stream waits. */
#define CATCH_UP 1024
/* A snapshot that was too large is not tried again before. */
#define TOO_LARGE_FOR (1000 * KVE_MS)
/* A reader that does take something, but little, keeps all others from theirs
 * for so many time-outs at most. */
#define SLOWEST 10

/* The snapshot that is being sent. */
struct sent {
    struct kve_snapshot *snapshot; /* a reference; NULL: none */
    bool on_replay;
    unsigned refs; /* of its payload, when they last changed */
    int64_t expires_at;
    int64_t ends_at;
    int64_t look_at;
    int64_t look_after;
};

struct kve_recorder {
    struct kve_recorder_opts opts; /* serve.endpoint: our own copy, real */
    char *endpoint;
    const struct kve_transport *transport;

    struct kve_ring ring;
    _Atomic uint64_t announced; /* number of the batch after the last fed */
    _Atomic int64_t rank;       /* of the last batch that named one */

    /* The sender's. */
    bool behind; /* batches from next on are still to be fed */
    uint64_t next;
    struct kve_asks sending; /* on the replay socket */

    /* Between the two. */
    atomic_bool starved;  /* the sender waits for room in the ring */
    atomic_uint n_unsent; /* replies for the replay socket */
    atomic_size_t stuck_bytes;
    pthread_mutex_t lock;
    bool lock_made;
    struct kve_asks asked;    /* under lock: to the recorder */
    struct kve_asks answered; /* under lock: to the sender */

    /* The recorder's. */
    struct kve_replay_serve *serve;
    int64_t reopen_at; /* when there is none but should be */
    struct kve_residency fold;
    kve_batch *batch;
    uint64_t expected; /* number of the next batch */
    int64_t seq;       /* of the last one, -1: none */
    bool was_complete;
    bool said_lost; /* that it is lost now */
    uint64_t below; /* of fold, counted already */
    struct kve_asks waiting;
    struct kve_asks own; /* to be sent on the own socket */
    struct sent sent;
    struct kve_snapshot *stuck; /* given up, not given back yet */
    int64_t too_large_until;
    uint64_t logged_bad;
    uint64_t logged_refused;
    uint64_t logged_expired;
    uint64_t logged_failed;

    pthread_t thread;
    bool running;
    int wake_fd;
    atomic_bool stop;
};

static void
count(struct kve_recorder *rec, enum kve_counter counter, uint64_t n)
{
    if (n > 0)
        kve_pub_count(rec->opts.counters, counter, n);
}

static uint64_t
number_after(uint64_t number)
{
    return number + 1 == KVE_NUMBER_END ? 0 : number + 1;
}

/* ---- the fold ---- */

static void
lose(struct kve_recorder *rec, uint64_t n, const char *why)
{
    count(rec, KVE_COUNTER_PUB_RECORDER_LOST, n);
    if (!rec->said_lost)
        kve_context_log(rec->opts.context, KVE_LOG_WARNING,
            "no snapshots from batch %" PRIu64 " on until everything is "
            "cleared: %s",
            rec->expected, why);
    rec->said_lost = true;
    kve_residency_lose(&rec->fold);
}

/* Say when the limit of blocks comes and goes. */
static void
note_completeness(struct kve_recorder *rec)
{
    bool complete = kve_residency_complete(&rec->fold);

    rec->said_lost &= rec->fold.lost;
    if (complete == rec->was_complete)
        return;
    rec->was_complete = complete;
    if (complete)
        kve_context_log(
            rec->opts.context, KVE_LOG_INFO, "snapshots are to be had again");
    else if (!rec->fold.lost)
        kve_context_log(rec->opts.context, KVE_LOG_WARNING,
            "no snapshots while there are more than snapshot_max_blocks "
            "(%" PRIu64 ")",
            rec->opts.max_blocks);
}

static void
fold_payload(struct kve_recorder *rec, const struct kve_payload *payload)
{
    struct kve_error err;
    kve_status status =
        kve_batch_decode(rec->batch, payload->data, payload->len, &err);
    struct kve_int rank = kve_batch_get_info(rec->batch)->rank;

    if (status == KVE_OK && rank.set)
        atomic_store_explicit(&rec->rank, rank.value, memory_order_relaxed);
    if (!kve_residency_apply(&rec->fold, rec->batch, status))
        lose(rec, 1,
            rec->fold.no_memory    ? "out of memory"
                : status != KVE_OK ? "a batch could not be read"
                : kve_batch_fault(rec->batch, 0) != NULL
                ? "an event could not be read"
                : "far more than snapshot_max_blocks");
    else if (!rec->fold.lost)
        count(rec, KVE_COUNTER_PUB_RECORDED, 1);
    count(rec, KVE_COUNTER_PUB_RECORDER_BELOW, rec->fold.below - rec->below);
    rec->below = rec->fold.below;
}

static void
fold_item(struct kve_recorder *rec, const struct kve_queue_item *item)
{
    uint64_t number =
        item->payload != NULL ? item->number : number_after(item->number);

    if (number != rec->expected)
        lose(rec, number - rec->expected, "the queue or the recorder was full");
    rec->expected = number;
    if (item->payload != NULL) {
        fold_payload(rec, item->payload);
        rec->expected = number_after(item->number);
    }
    rec->seq =
        item->number <= INT64_MAX ? (int64_t)item->number : KVE_SNAPSHOT_NONE;
    note_completeness(rec);
}

static bool
fold_round(struct kve_recorder *rec)
{
    const struct kve_queue_item *item = NULL;

    for (int i = 0; i < ROUND; i++) {
        item = kve_ring_front(&rec->ring);
        if (item == NULL)
            break;
        fold_item(rec, item);
        kve_ring_pop(&rec->ring);
    }
    if (atomic_load(&rec->starved) && kve_ring_has_room(&rec->ring) &&
        atomic_exchange(&rec->starved, false))
        kve_thread_wake(rec->opts.sender_fd);
    return item != NULL;
}

/* ---- requests ---- */

static void
refuse(struct kve_recorder *rec, struct kve_ask *ask, const char *why)
{
    kve_ask_destroy(ask);
    count(rec, KVE_COUNTER_PUB_SNAPSHOT_REFUSED, 1);
    if (kve_is_worth_a_line(++rec->logged_refused))
        kve_context_log(rec->opts.context, KVE_LOG_WARNING,
            "snapshot request refused (%" PRIu64 " so far): %s",
            rec->logged_refused, why);
}

static void
let_wait(struct kve_recorder *rec, struct kve_ask *ask)
{
    if (ask->on_replay && atomic_load(&rec->stuck_bytes) > rec->opts.max_bytes)
        refuse(rec, ask, "readers do not take the snapshots they asked for");
    else {
        /* The oldest may have stopped waiting. */
        if (rec->waiting.n >= rec->opts.max_asks)
            refuse(rec, kve_asks_detach(&rec->waiting, NULL),
                "max_replays are waiting");
        kve_asks_add_take(&rec->waiting, ask);
    }
}

static void
turn_away(struct kve_recorder *rec, const struct kve_replay_request *request)
{
    count(rec, KVE_COUNTER_PUB_SNAPSHOT_BAD, 1);
    if (kve_is_worth_a_line(++rec->logged_bad))
        kve_context_log(rec->opts.context, KVE_LOG_WARNING,
            "snapshot request not answered (%" PRIu64 " so far): %zu frames; "
            "a request is an empty frame and the word " REQUEST,
            rec->logged_bad, request->n_frames - 1);
}

static bool
is_request(const struct kve_replay_request *request)
{
    return request->n_frames == REQUEST_FRAMES && request->delimited &&
        request->start.len == strlen(REQUEST) &&
        memcmp(request->start.data, REQUEST, strlen(REQUEST)) == 0;
}

/* Those of the own socket. Returns whether there may be more. */
static bool
receive(struct kve_recorder *rec)
{
    struct kve_replay_request request;

    for (int i = 0; i < ROUND && rec->serve != NULL; i++) {
        struct kve_ask *ask;

        if (rec->transport->replay_serve_recv(rec->serve, &request, NULL) !=
            KVE_IO_OK)
            return false;
        if (!is_request(&request)) {
            turn_away(rec, &request);
            continue;
        }
        ask = kve_ask_create(request.peer, request.peer_len);
        if (ask == NULL) {
            refuse(rec, NULL, "out of memory");
            continue;
        }
        ask->target = atomic_load(&rec->announced);
        let_wait(rec, ask);
    }
    return rec->serve != NULL;
}

/* Those that the sender received. */
static void
receive_asked(struct kve_recorder *rec)
{
    struct kve_asks asked;
    struct kve_ask *ask;

    (void)pthread_mutex_lock(&rec->lock);
    asked = rec->asked;
    memset(&rec->asked, 0, sizeof(rec->asked));
    (void)pthread_mutex_unlock(&rec->lock);
    while ((ask = kve_asks_detach(&asked, NULL)) != NULL)
        let_wait(rec, ask);
}

/* ---- snapshots ---- */

static bool
is_ready(const struct kve_recorder *rec, const struct kve_ask *ask)
{
    /* Numbers wrap. */
    return (int64_t)(rec->expected - ask->target) >= 0;
}

static struct kve_program_opts
program_opts(struct kve_recorder *rec)
{
    return (struct kve_program_opts){ .layout = rec->opts.layout,
        .rank = kve_recorder_rank(rec),
        .publisher_id = rec->opts.publisher_id,
        .seq = rec->seq,
        .max_bytes = rec->opts.max_bytes,
        .stop = &rec->stop };
}

/* A snapshot, or a reply that says that there is none, or NULL. */
static struct kve_snapshot *
make(struct kve_recorder *rec)
{
    struct kve_program_opts opts = program_opts(rec);
    struct kve_snapshot *snapshot = NULL;
    struct kve_error err;
    kve_status status;

    if (kve_residency_complete(&rec->fold) && rec->seq != KVE_SNAPSHOT_NONE &&
        kve_now_ns() >= rec->too_large_until) {
        status = kve_program_write(&rec->fold, &opts, &snapshot, &err);
        if (status == KVE_OK || status == KVE_E_CLOSED)
            return snapshot;
        rec->too_large_until = kve_now_ns() + TOO_LARGE_FOR;
        if (kve_is_worth_a_line(++rec->logged_failed))
            kve_context_log(rec->opts.context, KVE_LOG_WARNING,
                "no snapshot was made (%" PRIu64 " so far): %s%s",
                rec->logged_failed,
                status == KVE_E_LIMIT ? "more than snapshot_max_bytes: " : "",
                err.detail);
    }
    opts.seq = KVE_SNAPSHOT_NONE;
    if (kve_program_none(&opts, &snapshot, &err) != KVE_OK)
        return NULL;
    return snapshot;
}

/* Move those that wait, came the same way and can be served to a list. */
static void
take_ready(struct kve_recorder *rec, bool on_replay, struct kve_asks *ret)
{
    struct kve_ask *before = NULL;
    struct kve_ask *ask = rec->waiting.first;

    while (ask != NULL) {
        struct kve_ask *next = ask->next;

        if (ask->on_replay == on_replay && is_ready(rec, ask))
            kve_asks_add_take(ret, kve_asks_detach(&rec->waiting, before));
        else
            before = ask;
        ask = next;
    }
}

/* The oldest that can be served, or NULL. */
static const struct kve_ask *
oldest_ready(const struct kve_recorder *rec)
{
    const struct kve_ask *ask = rec->waiting.first;

    while (ask != NULL && !is_ready(rec, ask))
        ask = ask->next;
    return ask;
}

static void
hand_over(struct kve_recorder *rec, struct kve_asks *asks, bool on_replay)
{
    if (!on_replay) {
        kve_asks_move(&rec->own, asks);
        return;
    }
    atomic_fetch_add(&rec->n_unsent, asks->n);
    (void)pthread_mutex_lock(&rec->lock);
    kve_asks_move(&rec->answered, asks);
    (void)pthread_mutex_unlock(&rec->lock);
    kve_thread_wake(rec->opts.sender_fd);
}

static void
begin_sending(
    struct kve_recorder *rec, struct kve_snapshot *snapshot, bool on_replay)
{
    int64_t now_ns = kve_now_ns();

    rec->sent = (struct sent){ .snapshot = snapshot,
        .on_replay = on_replay,
        .expires_at = now_ns + rec->opts.timeout_ns,
        .ends_at = now_ns + SLOWEST * rec->opts.timeout_ns,
        .look_at = now_ns,
        .look_after = LOOK_MIN };
}

/* Make a snapshot for who waits, when none is on its way. */
static void
answer(struct kve_recorder *rec)
{
    const struct kve_ask *oldest;
    struct kve_snapshot *snapshot;
    struct kve_asks asks = { NULL, NULL, 0 };
    bool on_replay;

    oldest = oldest_ready(rec);
    if (rec->sent.snapshot != NULL || oldest == NULL)
        return;
    on_replay = oldest->on_replay;
    take_ready(rec, on_replay, &asks);
    snapshot = make(rec);
    if (snapshot == NULL) {
        while (asks.n > 0)
            refuse(rec, kve_asks_detach(&asks, NULL), "out of memory");
        return;
    }
    for (struct kve_ask *ask = asks.first; ask != NULL; ask = ask->next)
        kve_ask_answer(ask, snapshot, kve_now_ns(), rec->opts.timeout_ns);
    begin_sending(rec, snapshot, on_replay);
    hand_over(rec, &asks, on_replay);
}

/* ---- what became of them ---- */

static void
open_again(struct kve_recorder *rec, int64_t now_ns)
{
    struct kve_error err;

    rec->reopen_at = KVE_NEVER;
    if (rec->transport->replay_serve_open(
            rec->opts.context, &rec->opts.serve, &rec->serve, &err) == KVE_OK)
        return;
    rec->serve = NULL;
    rec->reopen_at = now_ns + REOPEN_AFTER;
    kve_context_log(rec->opts.context, KVE_LOG_ERROR,
        "the snapshot endpoint could not be opened again, and is tried again "
        "in a second: %s",
        err.detail);
}

/* Who waits at the own socket has to ask again. */
static void
drop_own(struct kve_recorder *rec)
{
    struct kve_asks others = { NULL, NULL, 0 };
    struct kve_ask *ask;

    count(rec, KVE_COUNTER_PUB_SNAPSHOT_GONE, rec->own.n);
    kve_asks_release(&rec->own);
    while ((ask = kve_asks_detach(&rec->waiting, NULL)) != NULL) {
        if (ask->on_replay) {
            kve_asks_add_take(&others, ask);
        } else {
            count(rec, KVE_COUNTER_PUB_SNAPSHOT_GONE, 1);
            kve_ask_destroy(ask);
        }
    }
    rec->waiting = others;
}

/* A reader took nothing for too long. */
static void
give_up(struct kve_recorder *rec, int64_t now_ns)
{
    struct kve_snapshot *snapshot = rec->sent.snapshot;
    struct kve_replay_serve *serve = rec->serve;

    count(rec, KVE_COUNTER_PUB_SNAPSHOT_EXPIRED, 1);
    if (kve_is_worth_a_line(++rec->logged_expired))
        kve_context_log(rec->opts.context, KVE_LOG_WARNING,
            "snapshot given up (%" PRIu64 " so far): the reader took nothing "
            "for snapshot_timeout_ms, or not all in ten times that",
            rec->logged_expired);
    rec->sent.snapshot = NULL;
    snapshot->next = rec->stuck;
    rec->stuck = snapshot;
    atomic_fetch_add(&rec->stuck_bytes, snapshot->payload->len);
    if (rec->sent.on_replay)
        return;
    drop_own(rec);
    /* Closing waits; a child that is forked meanwhile must not close it too. */
    rec->serve = NULL;
    rec->transport->replay_serve_close(serve, 0);
    open_again(rec, now_ns);
}

static void
look_at_stuck(struct kve_recorder *rec)
{
    struct kve_snapshot **at = &rec->stuck;

    while (*at != NULL) {
        struct kve_snapshot *snapshot = *at;

        if (!kve_payload_alone(snapshot->payload)) {
            at = &snapshot->next;
            continue;
        }
        *at = snapshot->next;
        atomic_fetch_sub(&rec->stuck_bytes, snapshot->payload->len);
        kve_snapshot_unref(snapshot);
    }
}

static void
look_at_sent(struct kve_recorder *rec, int64_t now_ns)
{
    struct sent *sent = &rec->sent;
    uint32_t unsent;
    unsigned refs;

    if (sent->snapshot == NULL)
        return;
    unsent = sent->on_replay ? atomic_load(&rec->n_unsent) : rec->own.n;
    refs = kve_payload_refs(sent->snapshot->payload);
    if (unsent == 0 && refs == 1) {
        kve_snapshot_unref(sent->snapshot);
        sent->snapshot = NULL;
        return;
    }
    if (unsent > 0 || refs < sent->refs) {
        sent->expires_at = now_ns + rec->opts.timeout_ns;
        sent->look_after = LOOK_MIN;
    }
    sent->refs = refs;
    if (now_ns >= sent->expires_at || now_ns >= sent->ends_at)
        give_up(rec, now_ns);
    else if (now_ns >= sent->look_at) {
        sent->look_at = now_ns + sent->look_after;
        sent->look_after =
            sent->look_after * 2 < LOOK_MAX ? sent->look_after * 2 : LOOK_MAX;
    }
}

/* ---- the thread ---- */

static int64_t
earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void
rest(struct kve_recorder *rec)
{
    struct pollfd fds[1 + KVE_MAX_FDS];
    int64_t now_ns = kve_now_ns();
    int64_t deadline = rec->reopen_at;
    int serve_fds[KVE_MAX_FDS];
    size_t n = 0;

    if (!kve_ring_sleep(&rec->ring))
        return;
    if (rec->serve != NULL)
        n = rec->transport->replay_serve_fds(rec->serve, serve_fds);
    for (size_t i = 0; i < n; i++)
        fds[1 + i] = (struct pollfd){ .fd = serve_fds[i], .events = POLLIN };
    fds[0] = (struct pollfd){ .fd = rec->wake_fd, .events = POLLIN };
    deadline = earlier(deadline, kve_asks_deadline(&rec->own));
    if (rec->sent.snapshot != NULL)
        deadline = earlier(deadline, rec->sent.look_at);
    if (rec->stuck != NULL)
        deadline = earlier(deadline, now_ns + LOOK_STUCK);
    if (poll(fds, (nfds_t)(1 + n), kve_ms_until(deadline, now_ns)) > 0 &&
        fds[0].revents != 0)
        kve_thread_woken(rec->wake_fd);
    kve_ring_awake(&rec->ring);
}

static void *
run(void *arg)
{
    struct kve_recorder *rec = arg;

    kve_thread_begin();
    kve_thread_give_way();
    while (!atomic_load(&rec->stop)) {
        bool more = fold_round(rec);
        int64_t now_ns = kve_now_ns();

        if (now_ns >= rec->reopen_at)
            open_again(rec, now_ns);
        more |= receive(rec);
        receive_asked(rec);
        answer(rec);
        if (rec->serve != NULL)
            kve_asks_send(&rec->own, rec->transport, rec->serve,
                rec->opts.counters, kve_now_ns());
        look_at_sent(rec, kve_now_ns());
        look_at_stuck(rec);
        if (!more && (rec->sent.snapshot != NULL || oldest_ready(rec) == NULL))
            rest(rec);
    }
    return NULL;
}

kve_status
kve_recorder_start(struct kve_recorder *rec, struct kve_error *err)
{
    kve_status status =
        kve_thread_start(&rec->thread, run, rec, "snapshot recorder's", err);

    rec->running = status == KVE_OK;
    return status;
}

void
kve_recorder_stop(struct kve_recorder *rec)
{
    if (rec == NULL || !rec->running)
        return;
    atomic_store(&rec->stop, true);
    kve_thread_wake(rec->wake_fd);
    (void)pthread_join(rec->thread, NULL);
    rec->running = false;
}

/* ---- life ---- */

static kve_status
open_own(struct kve_recorder *rec, struct kve_error *err)
{
    kve_status status = KVE_OK;

    if (rec->opts.serve.endpoint[0] != '\0') {
        rec->transport = kve_transport_find(rec->opts.serve.endpoint, err);
        if (rec->transport == NULL)
            return KVE_E_INVAL;
        status = rec->transport->replay_serve_open(
            rec->opts.context, &rec->opts.serve, &rec->serve, err);
    }
    if (status != KVE_OK)
        return status;
    rec->endpoint = kve_mem_strdup(rec->serve != NULL
            ? rec->transport->replay_serve_endpoint(rec->serve)
            : "");
    if (rec->endpoint == NULL)
        return kve_fail_nomem(err, "snapshot_endpoint");
    /* The port that the system chose stays when it is opened again. */
    rec->opts.serve.endpoint = rec->endpoint;
    return KVE_OK;
}

static kve_status
begin(struct kve_recorder *rec, struct kve_error *err)
{
    int rc = pthread_mutex_init(&rec->lock, NULL);
    kve_status status;

    if (rc != 0)
        return kve_fail(err, KVE_E_SYSTEM, "a mutex was refused (%d)", rc);
    rec->lock_made = true;
    rec->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (rec->wake_fd < 0)
        return kve_fail(
            err, KVE_E_SYSTEM, "an eventfd was refused: %s", strerror(errno));
    status = kve_batch_create(NULL, &rec->batch, err);
    if (status == KVE_OK)
        status = kve_ring_init(
            &rec->ring, rec->opts.ring_items, rec->opts.ring_bytes, err);
    if (status == KVE_OK)
        status = open_own(rec, err);
    return status;
}

kve_status
kve_recorder_create(const struct kve_recorder_opts *opts,
    struct kve_recorder **ret_recorder, struct kve_error *err)
{
    struct kve_recorder *rec = kve_mem_zalloc(1, sizeof(*rec));
    kve_status status;

    if (rec == NULL)
        return kve_fail_nomem(err, "snapshot recorder");
    rec->opts = *opts;
    rec->wake_fd = -1;
    rec->reopen_at = KVE_NEVER;
    rec->expected =
        opts->first_number == KVE_NUMBER_END ? 0 : opts->first_number;
    /* Nothing yet: -1, or what precedes a first number that was chosen. */
    rec->seq = rec->expected <= INT64_MAX ? (int64_t)rec->expected - 1
                                          : KVE_SNAPSHOT_NONE;
    atomic_init(&rec->rank, KVE_NO_RANK);
    rec->was_complete = true;
    atomic_init(&rec->announced, rec->expected);
    kve_residency_init(&rec->fold, opts->max_blocks, opts->clear_all);
    status = begin(rec, err);
    if (status == KVE_OK) {
        *ret_recorder = rec;
        return KVE_OK;
    }
    kve_recorder_destroy(rec);
    return status;
}

void
kve_recorder_close(struct kve_recorder *rec, int linger_ms)
{
    if (rec == NULL || rec->serve == NULL)
        return;
    rec->transport->replay_serve_close(rec->serve, linger_ms);
    rec->serve = NULL;
}

void
kve_recorder_park(struct kve_recorder *rec)
{
    if (rec == NULL)
        return;
    kve_recorder_close(rec, 0);
    (void)close(rec->wake_fd);
}

void
kve_recorder_destroy(struct kve_recorder *rec)
{
    if (rec == NULL)
        return;
    kve_recorder_close(rec, 0);
    kve_asks_release(&rec->sending);
    kve_asks_release(&rec->asked);
    kve_asks_release(&rec->answered);
    kve_asks_release(&rec->waiting);
    kve_asks_release(&rec->own);
    kve_snapshot_unref(rec->sent.snapshot);
    while (rec->stuck != NULL) {
        struct kve_snapshot *next = rec->stuck->next;

        kve_snapshot_unref(rec->stuck);
        rec->stuck = next;
    }
    kve_ring_release(&rec->ring);
    kve_residency_release(&rec->fold);
    kve_batch_destroy(rec->batch);
    if (rec->wake_fd >= 0)
        (void)close(rec->wake_fd);
    if (rec->lock_made)
        (void)pthread_mutex_destroy(&rec->lock);
    kve_mem_free(rec->endpoint);
    kve_mem_free(rec);
}

const char *
kve_recorder_endpoint(const struct kve_recorder *rec)
{
    return rec->endpoint;
}

/* ---- the sender's thread ---- */

static bool
push(struct kve_recorder *rec, uint64_t number, struct kve_payload *payload)
{
    if (payload != NULL)
        kve_payload_ref(payload);
    if (kve_ring_push(&rec->ring, number, payload))
        return true;
    kve_payload_unref(payload);
    return false;
}

void
kve_recorder_feed(
    struct kve_recorder *rec, uint64_t number, struct kve_payload *payload)
{
    if (!rec->behind && !push(rec, number, payload)) {
        rec->behind = true;
        rec->next = number;
    }
    atomic_store(&rec->announced, number_after(number));
}

/* Feed from the history, some at most; true: the recorder is up to date. */
static bool
catch_up(struct kve_recorder *rec, const struct kve_history *h)
{
    uint64_t announced =
        atomic_load_explicit(&rec->announced, memory_order_relaxed);
    struct kve_payload *payload;
    uint64_t number;
    int n = 0;

    while ((payload = kve_history_at(h, rec->next, &number)) != NULL) {
        if (n++ == CATCH_UP || !push(rec, number, payload))
            return false;
        rec->next = number_after(number);
    }
    /* What comes last is not there either: say that it is missed. */
    return rec->next == announced || push(rec, announced - 1, NULL);
}

void
kve_recorder_fed(struct kve_recorder *rec, const struct kve_history *h)
{
    if (rec->behind && !catch_up(rec, h)) {
        atomic_store(&rec->starved, true);
        /* Once more: the room may have appeared before that was seen. What
         * stopped at CATCH_UP has filled the ring anew, and goes on when the
         * recorder has emptied half of it. */
        rec->behind = !catch_up(rec, h);
    } else {
        rec->behind = false;
    }
    if (kve_ring_wants_waking(&rec->ring))
        kve_thread_wake(rec->wake_fd);
}

void
kve_recorder_ask(struct kve_recorder *rec, const uint8_t *peer, size_t peer_len)
{
    struct kve_ask *ask = kve_ask_create(peer, peer_len);
    bool full;

    if (ask == NULL) {
        count(rec, KVE_COUNTER_PUB_SNAPSHOT_REFUSED, 1);
        return;
    }
    ask->on_replay = true;
    ask->target = atomic_load(&rec->announced);
    (void)pthread_mutex_lock(&rec->lock);
    full = rec->asked.n >= rec->opts.max_asks;
    if (!full)
        kve_asks_add_take(&rec->asked, ask);
    (void)pthread_mutex_unlock(&rec->lock);
    if (full) {
        kve_ask_destroy(ask);
        count(rec, KVE_COUNTER_PUB_SNAPSHOT_REFUSED, 1);
        return;
    }
    kve_thread_wake(rec->wake_fd);
}

int64_t
kve_recorder_serve(struct kve_recorder *rec,
    const struct kve_transport *transport, struct kve_replay_serve *serve,
    int64_t now_ns)
{
    uint32_t before;

    if (atomic_load(&rec->n_unsent) == 0)
        return KVE_NEVER;
    (void)pthread_mutex_lock(&rec->lock);
    kve_asks_move(&rec->sending, &rec->answered);
    (void)pthread_mutex_unlock(&rec->lock);
    before = rec->sending.n;
    kve_asks_send(&rec->sending, transport, serve, rec->opts.counters, now_ns);
    atomic_fetch_sub(&rec->n_unsent, before - rec->sending.n);
    return kve_asks_deadline(&rec->sending);
}

struct kve_int
kve_recorder_rank(struct kve_recorder *rec)
{
    int64_t rank = atomic_load_explicit(&rec->rank, memory_order_relaxed);

    return rank == KVE_NO_RANK ? rec->opts.rank
                               : (struct kve_int){ rank, true };
}

uint32_t
kve_recorder_unsent(struct kve_recorder *rec)
{
    return atomic_load(&rec->n_unsent);
}
