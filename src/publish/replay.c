/*
 * replay.c - see replay.h.
 */
#include "publish/replay.h"

#include "publish/retry.h"

#include "publish/recorder.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "transport/context.h"

#include <kvevents/codec.h>

#include <inttypes.h>
#include <string.h>

#define SLICE 16 /* messages for one job before the next has its turn */

/* Identity, a frame that is empty by custom, start. */
#define REQUEST_FRAMES 3

struct kve_replay_job {
    struct kve_replay_job *next;
    struct kve_cut cut;
    bool behind; /* an older job of the same reader comes first */
    struct kve_retry retry;
    int64_t expires_at;
    size_t peer_len;
    uint8_t peer[]; /* peer_len bytes */
};

enum trouble { TROUBLE_BAD, TROUBLE_REFUSED, TROUBLE_EXPIRED, TROUBLE_ERROR };

/* Each kind is counted by itself. */
static bool
worth_a_line(struct kve_replays *r, enum trouble what)
{
    return kve_is_worth_a_line(++r->logged[what]);
}

uint64_t
kve_replay_start(struct kve_span start)
{
    uint64_t number = 0;

    for (size_t i = 0; i < start.len; i++) {
        if (number >> 56 != 0)
            return KVE_NUMBER_END;
        number = number << 8 | start.data[i];
    }
    return number;
}

static bool
same_peer(const struct kve_replay_job *job, const uint8_t *peer, size_t len)
{
    return job->peer_len == len && memcmp(job->peer, peer, len) == 0;
}

static void
refuse(struct kve_replays *r, const char *why)
{
    kve_pub_count(r->counters, KVE_COUNTER_PUB_REPLAY_REFUSED, 1);
    if (worth_a_line(r, TROUBLE_REFUSED))
        kve_context_log(r->context, KVE_LOG_WARNING,
            "replay request refused (%" PRIu64 " so far): %s",
            r->logged[TROUBLE_REFUSED], why);
}

static struct kve_replay_job *
make_job(struct kve_replays *r, const struct kve_replay_request *request)
{
    struct kve_replay_job *job =
        kve_mem_alloc(sizeof(*job) + request->peer_len);

    if (job == NULL)
        return NULL;
    memset(job, 0, sizeof(*job));
    memcpy(job->peer, request->peer, request->peer_len);
    job->peer_len = request->peer_len;
    if (kve_history_cut(r->history, kve_replay_start(request->start),
            &job->cut) != KVE_OK) {
        kve_mem_free(job);
        return NULL;
    }
    return job;
}

static void
accept_request(struct kve_replays *r, const struct kve_replay_request *request,
    int64_t now_ns)
{
    struct kve_replay_job **at = &r->jobs;
    struct kve_replay_job *job;
    bool behind = false;

    if (r->n_jobs >= r->max_jobs) {
        refuse(r, "max_replays are being served");
        return;
    }
    job = make_job(r, request);
    if (job == NULL) {
        refuse(r, "out of memory");
        return;
    }
    for (; *at != NULL; at = &(*at)->next)
        behind |= same_peer(*at, request->peer, request->peer_len);
    job->behind = behind;
    kve_retry_begin(&job->retry);
    job->expires_at = now_ns + r->timeout_ns;
    *at = job;
    r->n_jobs++;
}

/* What takes the place of a start number in a request for a snapshot. */
static bool
asks_snapshot(
    const struct kve_replays *r, const struct kve_replay_request *request)
{
    return r->recorder != NULL && request->start.len == 8 &&
        kve_get64(request->start.data) == KVE_SNAPSHOT_WORD;
}

static void
turn_away(struct kve_replays *r, const struct kve_replay_request *request)
{
    kve_pub_count(r->counters, KVE_COUNTER_PUB_REPLAY_BAD, 1);
    if (worth_a_line(r, TROUBLE_BAD))
        kve_context_log(r->context, KVE_LOG_WARNING,
            "replay request not answered (%" PRIu64 " so far): %zu frames; a "
            "request is an empty frame and a start number, sent by a DEALER",
            r->logged[TROUBLE_BAD], request->n_frames - 1);
}

bool
kve_replays_receive(struct kve_replays *r, int64_t now_ns)
{
    struct kve_replay_request request;
    struct kve_error err;

    if (r->serve == NULL)
        return false;
    for (int i = 0; i < KVE_TURN_MESSAGES; i++) {
        enum kve_io io =
            r->transport->replay_serve_recv(r->serve, &request, &err);

        if (io == KVE_IO_ERROR && worth_a_line(r, TROUBLE_ERROR))
            kve_context_log(r->context, KVE_LOG_ERROR,
                "the replay socket cannot be read: %s", err.detail);
        if (io != KVE_IO_OK)
            return false;
        if (request.n_frames != REQUEST_FRAMES)
            turn_away(r, &request);
        else if (asks_snapshot(r, &request))
            kve_recorder_ask(r->recorder, request.peer, request.peer_len);
        else
            accept_request(r, &request, now_ns);
    }
    return true;
}

/* The next request of the same reader comes up; it has until expires_at. */
static void
bring_up(const struct kve_replay_job *after, int64_t expires_at)
{
    for (struct kve_replay_job *j = after->next; j != NULL; j = j->next)
        if (same_peer(j, after->peer, after->peer_len)) {
            j->behind = false;
            j->expires_at = expires_at;
            return;
        }
}

static void
remove_job(
    struct kve_replays *r, struct kve_replay_job *job, int64_t next_expires_at)
{
    struct kve_replay_job **at = &r->jobs;

    if (!job->behind)
        bring_up(job, next_expires_at);

    while (*at != job)
        at = &(*at)->next;
    *at = job->next;
    if (r->turn == job)
        r->turn = job->next;
    r->n_jobs--;
    kve_cut_release(r->history, &job->cut);
    kve_mem_free(job);
}

/* A reader that took nothing gets no new time for its next request: that one
 * ends with its first attempt, when that fails too. */
static void
expire_job(struct kve_replays *r, struct kve_replay_job *job, const char *why)
{
    kve_pub_count(r->counters, KVE_COUNTER_PUB_REPLAY_EXPIRED, 1);
    if (worth_a_line(r, TROUBLE_EXPIRED))
        kve_context_log(r->context, KVE_LOG_WARNING,
            "replay answer given up (%" PRIu64 " so far): %s",
            r->logged[TROUBLE_EXPIRED], why);
    remove_job(r, job, job->expires_at);
}

static bool
over_out_limit(const struct kve_replays *r)
{
    return r->out != NULL &&
        atomic_load_explicit(&r->out->bytes[KVE_OUT_REPLAY],
            memory_order_relaxed) > r->max_out_bytes;
}

static enum kve_io
send_next(struct kve_replays *r, struct kve_replay_job *job, bool *ret_end,
    struct kve_error *err)
{
    uint64_t number = KVE_NUMBER_END;
    struct kve_payload *payload = kve_cut_at(&job->cut, &number);
    struct kve_span topic = { NULL, 0 };

    *ret_end = payload == NULL;
    if (payload != NULL && over_out_limit(r))
        return KVE_IO_AGAIN;
    if (payload != NULL)
        topic = r->topic;
    return r->transport->replay_serve_send(r->serve, job->peer, job->peer_len,
        r->with_topic, topic, number, payload, err);
}

/* A job's share of a turn; it may be gone afterwards. Returns how many
 * messages were sent. */
static int
serve_job(struct kve_replays *r, struct kve_replay_job *job, int64_t now_ns)
{
    struct kve_error err;
    enum kve_io io = KVE_IO_OK;
    bool end = false;
    int n = 0;

    while (n < SLICE && !end) {
        io = send_next(r, job, &end, &err);
        if (io != KVE_IO_OK)
            break;
        n++;
        if (!end)
            kve_cut_advance(r->history, &job->cut);
    }
    if (n > 0) {
        kve_pub_count(r->counters, KVE_COUNTER_PUB_REPLAY_BATCHES,
            (uint64_t)(n - (io == KVE_IO_OK && end)));
        kve_retry_begin(&job->retry);
        job->expires_at = now_ns + r->timeout_ns;
    }

    switch (io) {
    case KVE_IO_OK:
        if (end) {
            kve_pub_count(r->counters, KVE_COUNTER_PUB_REPLAY_REQUESTS, 1);
            remove_job(r, job, now_ns + r->timeout_ns);
        }
        break;
    case KVE_IO_AGAIN:
        if (now_ns >= job->expires_at) {
            expire_job(r, job,
                "the reader took nothing for "
                "replay_timeout_ms");
            break;
        }
        kve_retry_later(&job->retry, now_ns);
        break;
    case KVE_IO_ERROR:
        if (worth_a_line(r, TROUBLE_ERROR))
            kve_context_log(r->context, KVE_LOG_ERROR,
                "a replay answer cannot be sent: %s", err.detail);
        /* fall through */
    case KVE_IO_GONE:
        kve_pub_count(r->counters, KVE_COUNTER_PUB_REPLAY_GONE, 1);
        remove_job(r, job, now_ns + r->timeout_ns);
        break;
    }
    return n;
}

static bool
can_send(const struct kve_replay_job *job, int64_t now_ns)
{
    return !job->behind && job->retry.at <= now_ns;
}

/* The next job that can send, from the one whose turn it is; NULL: none. */
static struct kve_replay_job *
next_job(struct kve_replays *r, int64_t now_ns)
{
    struct kve_replay_job *job = r->turn != NULL ? r->turn : r->jobs;

    for (uint32_t i = 0; i < r->n_jobs; i++) {
        if (can_send(job, now_ns)) {
            r->turn = job->next;
            return job;
        }
        job = job->next != NULL ? job->next : r->jobs;
    }
    return NULL;
}

bool
kve_replays_send(struct kve_replays *r, int64_t now_ns)
{
    int64_t began_ns = kve_now_ns();
    int n = 0;

    while (n < KVE_TURN_MESSAGES && kve_now_ns() - began_ns < KVE_TURN_NS) {
        struct kve_replay_job *job = next_job(r, now_ns);

        if (job == NULL)
            return false;
        n += serve_job(r, job, now_ns);
    }
    return r->n_jobs > 0;
}

/* Whether a goes back further than b; cuts that are done hold nothing. */
static bool
older(const struct kve_replay_job *a, const struct kve_replay_job *b)
{
    return a->cut.n_chunks > 0 && (b == NULL || a->cut.next < b->cut.next);
}

void
kve_replays_bound(struct kve_replays *r)
{
    while (r->history->pinned > r->history->max_bytes) {
        struct kve_replay_job *oldest = NULL;

        for (struct kve_replay_job *j = r->jobs; j != NULL; j = j->next)
            if (older(j, oldest))
                oldest = j;
        if (oldest == NULL)
            return;
        expire_job(r, oldest,
            "more than buffer_bytes are held for readers "
            "slower than the stream");
    }
}

int64_t
kve_replays_deadline(const struct kve_replays *r)
{
    int64_t deadline = KVE_NEVER;

    for (const struct kve_replay_job *j = r->jobs; j != NULL; j = j->next)
        if (!j->behind && j->retry.at < deadline)
            deadline = j->retry.at;
    return deadline;
}

void
kve_replays_release(struct kve_replays *r)
{
    while (r->jobs != NULL)
        remove_job(r, r->jobs, 0);
}
