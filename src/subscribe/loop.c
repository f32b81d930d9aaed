/*
 * loop.c - see loop.h.
 */
#include "subscribe/loop.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "subscribe/set.h"
#include "subscribe/streams.h"
#include "transport/context.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define N_EVENTS 256
/* Inputs after which a poll returns even if nothing was delivered: a flood of
 * messages that lead to nothing must not keep the caller from its own work. */
#define MAX_INPUTS 65536
/* Library threads look at epoll again after so many. */
#define THREAD_INPUTS 4096
#define RETRY_NS (100 * KVE_MS) /* after an error, with library threads */

/* What epoll hands back: one of these, or a source and the tag in its low
 * bits. */
#define WHO_EVENT 0
#define WHO_TIMER 1
#define TAG_MASK UINT64_C(3)

_Static_assert(_Alignof(struct kve_source) > TAG_MASK, "room for the tag");
_Static_assert(KVE_TAG_ASK_LINK == TAG_MASK, "all tags have room");

static _Thread_local struct kve_loop *loop_here;

struct kve_loop *
kve_loop_here(void)
{
    return loop_here;
}

/* ---- creation ------------------------------------------------------ */

static kve_status
open_fds(struct kve_loop *loop, struct kve_error *err)
{
    struct epoll_event event = { .events = EPOLLIN, .data = { .u64 = 0 } };
    struct epoll_event timer = event;

    event.data.u64 = WHO_EVENT;
    timer.data.u64 = WHO_TIMER;
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    loop->timer_fd =
        timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    loop->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (loop->epoll_fd < 0 || loop->timer_fd < 0 || loop->event_fd < 0)
        return kve_fail(err, KVE_E_SYSTEM, "descriptors of a subscriber");
    if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, loop->timer_fd, &timer) != 0 ||
        epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, loop->event_fd, &event) != 0)
        return kve_fail(err, KVE_E_SYSTEM, "epoll_ctl");
    loop->grants.event_fd = loop->event_fd;
    return KVE_OK;
}

kve_status
kve_loop_init(struct kve_loop *loop, kve_subscriber *set,
    const struct kve_batch_opts *batch, struct kve_error *err)
{
    kve_status status;

    loop->set = set;
    loop->context = set->context;
    loop->callbacks = &set->callbacks;
    loop->threaded = set->threads > 0;
    loop->epoll_fd = -1;
    loop->timer_fd = -1;
    loop->event_fd = -1;
    loop->timer_set = KVE_NEVER;
    status = kve_batch_create(batch, &loop->batch, err);
    return status == KVE_OK ? open_fds(loop, err) : status;
}

static void
close_fd(int fd)
{
    if (fd >= 0)
        (void)close(fd);
}

void
kve_loop_release(struct kve_loop *loop)
{
    if (loop->set == NULL)
        return; /* was not initialised */
    close_fd(loop->event_fd);
    close_fd(loop->timer_fd);
    close_fd(loop->epoll_fd);
    kve_batch_destroy(loop->batch);
}

void
kve_loop_signal(struct kve_loop *loop)
{
    uint64_t one = 1;
    int saved = errno;

    (void)!write(loop->event_fd, &one, sizeof(one));
    errno = saved;
}

/* ---- the queue of sources with work -------------------------------- */

void
kve_loop_enqueue(struct kve_loop *loop, struct kve_source *s)
{
    if (s->queued || s->dropped)
        return;
    s->queued = true;
    s->next_queued = NULL;
    if (loop->last_queued != NULL)
        loop->last_queued->next_queued = s;
    else
        loop->first_queued = s;
    loop->last_queued = s;
}

static struct kve_source *
dequeue(struct kve_loop *loop)
{
    struct kve_source *s = loop->first_queued;

    if (s == NULL)
        return NULL;
    loop->first_queued = s->next_queued;
    if (loop->first_queued == NULL)
        loop->last_queued = NULL;
    s->queued = false;
    s->next_queued = NULL;
    return s;
}

static void
drop_from_queue(struct kve_loop *loop, struct kve_source *gone)
{
    struct kve_source **at = &loop->first_queued;
    struct kve_source *last = NULL;

    if (!gone->queued)
        return;
    while (*at != gone) {
        last = *at;
        at = &(*at)->next_queued;
    }
    *at = gone->next_queued;
    if (loop->last_queued == gone)
        loop->last_queued = last;
    gone->queued = false;
    gone->next_queued = NULL;
}

/* ---- deadlines ----------------------------------------------------- */

static struct kve_source *
source_of(struct kve_heap_node *node)
{
    return (struct kve_source *)(void *)((char *)node -
        offsetof(struct kve_source, due));
}

void
kve_loop_reschedule(struct kve_loop *loop, struct kve_source *s)
{
    int64_t deadline;

    if (kve_source_gone(s) || s->dropped)
        return;
    deadline = kve_source_deadline(s);
    if (deadline == KVE_NEVER || (s->due.in && s->due.due <= deadline))
        return;
    kve_heap_remove(&loop->deadlines, &s->due);
    kve_heap_add(&loop->deadlines, &s->due, deadline);
}

/* Those whose deadline has come get a turn; one that moved away meanwhile
 * goes to its new place. */
static void
enqueue_due(struct kve_loop *loop, int64_t now_ns)
{
    struct kve_heap_node *top;

    while ((top = loop->deadlines.top) != NULL && top->due <= now_ns) {
        struct kve_source *s = source_of(top);

        kve_heap_remove(&loop->deadlines, top);
        if (kve_source_deadline(s) <= now_ns)
            kve_loop_enqueue(loop, s);
        else
            kve_loop_reschedule(loop, s);
    }
}

void
kve_loop_set_timer(struct kve_loop *loop)
{
    struct itimerspec t = { { 0, 0 }, { 0, 0 } };
    int64_t next =
        loop->deadlines.top != NULL ? loop->deadlines.top->due : KVE_NEVER;

    /* One that fires early does no harm; moving it costs a system call. */
    if (next >= loop->timer_set)
        return;
    int64_t at = next > 0 ? next : 1;
    t.it_value.tv_sec = at / 1000000000;
    t.it_value.tv_nsec = at % 1000000000;
    (void)timerfd_settime(loop->timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
    loop->timer_set = next;
}

/* ---- descriptors --------------------------------------------------- */

static bool
has_fd(const int *fds, size_t n, int fd)
{
    for (size_t i = 0; i < n; i++)
        if (fds[i] == fd)
            return true;
    return false;
}

kve_status
kve_loop_watch(struct kve_loop *loop, struct kve_source *s, enum kve_tag tag,
    struct kve_watched *watched, const int *fds, size_t n,
    struct kve_error *err)
{
    struct kve_watched now = { .n = 0 };
    kve_status status = KVE_OK;

    /* The epoll instance is the parent's too: leave it as it is. */
    if (kve_context_forked(loop->context)) {
        watched->n = 0;
        return KVE_OK;
    }
    for (size_t i = 0; i < watched->n; i++)
        if (!has_fd(fds, n, watched->fds[i]))
            (void)epoll_ctl(
                loop->epoll_fd, EPOLL_CTL_DEL, watched->fds[i], NULL);

    for (size_t i = 0; i < n; i++) {
        uint64_t which = (uint64_t)tag + (i > 0);
        struct epoll_event ev = { .events = EPOLLIN | EPOLLET,
            .data = { .u64 = (uint64_t)(uintptr_t)s | which } };

        if (!has_fd(watched->fds, watched->n, fds[i]) &&
            epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fds[i], &ev) != 0)
            status =
                kve_fail(err, KVE_E_SYSTEM, "epoll_ctl for %s", s->endpoint);
        else
            now.fds[now.n++] = fds[i];
    }
    *watched = now;
    return status;
}

/* ---- decoding, callbacks ------------------------------------------- */

kve_status
kve_loop_decode(
    struct kve_loop *loop, struct kve_span payload, struct kve_error *err)
{
    struct kve_decoded *d = &loop->decoded;

    if (d->data != NULL && d->data == payload.data && d->len == payload.len)
        return KVE_OK;
    memset(&d->error, 0, sizeof(d->error));
    d->status =
        kve_batch_decode(loop->batch, payload.data, payload.len, &d->error);
    d->data = d->status == KVE_E_NOMEM ? NULL : payload.data;
    d->len = payload.len;
    if (d->status == KVE_E_NOMEM)
        return kve_fail(err, KVE_E_NOMEM, "%s", d->error.detail);
    return KVE_OK;
}

bool
kve_loop_enter(struct kve_loop *loop, struct kve_source *s)
{
    if (!loop->threaded) {
        if (kve_source_gone(s))
            return false;
        atomic_store_explicit(&loop->calling, s, memory_order_relaxed);
        return true;
    }
    /* Either the remover sees that we call, or we see that it removed. */
    atomic_store(&loop->calling, s);
    if (!atomic_load(&s->removed) &&
        (s->parent == NULL || !atomic_load(&s->parent->removed)))
        return true;
    kve_loop_leave(loop, s);
    return false;
}

void
kve_loop_leave(struct kve_loop *loop, struct kve_source *s)
{
    if (!loop->threaded) {
        atomic_store_explicit(&loop->calling, NULL, memory_order_relaxed);
        return;
    }
    atomic_store(&loop->calling, NULL);
    if (atomic_load(&s->removed) ||
        (s->parent != NULL && atomic_load(&s->parent->removed)))
        kve_set_callback_ended(loop->set);
}

/* ---- sources come and go ------------------------------------------- */

kve_status
kve_loop_attach(
    struct kve_loop *loop, struct kve_source *s, struct kve_error *err)
{
    kve_status status = kve_source_sync(s, err);

    /* A library thread has nobody to tell: the source's turn tries again. */
    if (status != KVE_OK && !loop->threaded)
        return status;
    s->attached = true;
    s->live_dry = false;
    s->events_dry = false;
    kve_loop_enqueue(loop, s);
    kve_loop_reschedule(loop, s);
    return KVE_OK;
}

static void
drop_one(struct kve_loop *loop, struct kve_source *s)
{
    if (s->dropped)
        return;
    s->dropped = true;
    atomic_store(&s->removed, true);
    drop_from_queue(loop, s);
    kve_heap_remove(&loop->deadlines, &s->due);
    if (s->parent != NULL)
        kve_streams_forget(s->parent, s);
    s->next_removed = loop->removed;
    loop->removed = s;
}

void
kve_loop_drop(struct kve_loop *loop, struct kve_source *s)
{
    struct kve_stream_table *st = s->streams;

    /* Streams before their parent on the way out: the list is a stack. */
    drop_one(loop, s);
    for (size_t i = 0; st != NULL && i < st->n_buckets; i++)
        while (st->buckets[i] != NULL)
            drop_one(loop, st->buckets[i]);
}

void
kve_loop_reap(struct kve_loop *loop)
{
    while (loop->removed != NULL) {
        struct kve_source *s = loop->removed;

        loop->removed = s->next_removed;
        kve_source_close(s);
        kve_set_leave(loop->set, s);
        kve_source_destroy(s);
    }
}

/* What other threads added and removed. */
static void
take_inbox(struct kve_loop *loop)
{
    struct kve_source *s;

    while (atomic_load(&loop->has_inbox) &&
        (s = kve_set_take_inbox(loop->set, loop)) != NULL) {
        if (!s->attached)
            (void)kve_loop_attach(loop, s, NULL);
        if (atomic_load(&s->removed))
            kve_loop_drop(loop, s);
    }
    kve_loop_reap(loop);
}

/* Requests whose turn has come. */
static void
take_grants(struct kve_loop *loop)
{
    struct kve_slot *slot;

    while (
        (slot = kve_slots_granted(&loop->set->slots, &loop->grants)) != NULL) {
        struct kve_source *s = (struct kve_source *)(void *)((char *)slot -
            offsetof(struct kve_source, ask.slot));

        s->ask.has_slot = true;
        kve_loop_enqueue(loop, s);
    }
}

/* ---- the loop ------------------------------------------------------ */

static void
drain(int fd)
{
    uint64_t n;

    (void)!read(fd, &n, sizeof(n));
}

static void
on_event(struct kve_loop *loop, uint64_t who)
{
    struct kve_source *s;

    if (who == WHO_EVENT) {
        drain(loop->event_fd);
    } else if (who == WHO_TIMER) {
        drain(loop->timer_fd);
        loop->timer_set = KVE_NEVER;
    } else {
        s = (struct kve_source *)(uintptr_t)(who & ~TAG_MASK);
        s->ready |= KVE_READY(who & TAG_MASK);
        if (s->retry_at == KVE_NEVER)
            kve_loop_enqueue(loop, s);
    }
}

kve_status
kve_loop_collect(struct kve_loop *loop, int wait_ms, struct kve_error *err)
{
    struct epoll_event events[N_EVENTS];
    int n = epoll_wait(loop->epoll_fd, events, N_EVENTS, wait_ms);

    if (n < 0 && errno != EINTR)
        return kve_fail(err, KVE_E_SYSTEM, "epoll_wait");
    loop->collected_at = kve_now_ns();
    for (int i = 0; i < n; i++)
        on_event(loop, events[i].data.u64);
    take_inbox(loop);
    take_grants(loop);
    enqueue_due(loop, loop->collected_at);
    return KVE_OK;
}

bool
kve_loop_enough(const struct kve_loop *loop, const struct kve_progress *p)
{
    return p->stop || p->batches >= p->max_batches ||
        p->inputs >= (loop->threaded ? THREAD_INPUTS : MAX_INPUTS) ||
        atomic_load_explicit(&loop->set->stopped, memory_order_relaxed);
}

/* An error of a turn that nobody else will hear of: it is logged, the first
 * time, the second, the fourth, ... and the source tries again after a
 * pause. */
static void
log_failure(
    struct kve_loop *loop, struct kve_source *s, const struct kve_error *why)
{
    s->retry_at = kve_now_ns() + RETRY_NS;
    s->fails++;
    if ((s->fails & (s->fails - 1)) == 0)
        kve_context_log(loop->context, KVE_LOG_ERROR,
            "source %lu, %s: %s: %s; trying again (%lu times so far)",
            (unsigned long)s->id, s->endpoint, kve_status_str(why->status),
            why->detail, (unsigned long)s->fails);
}

static kve_status
run_turn(struct kve_loop *loop, struct kve_source *s, struct kve_progress *p,
    struct kve_error *err)
{
    struct kve_turn turn = { .now_ns = kve_now_ns(),
        .max_batches = p->max_batches - p->batches };
    struct kve_error why = { KVE_OK, 0, 0, "" };
    kve_status status;

    loop->current = s;
    status = kve_source_turn(s, &turn, &why);
    loop->current = NULL;
    p->batches += turn.batches;
    p->inputs += turn.inputs;
    p->stop = turn.stop;
    if (status == KVE_OK)
        s->fails = 0;
    else if (loop->threaded)
        log_failure(loop, s, &why);
    else if (err != NULL)
        *err = why;
    if (!kve_source_gone(s) && (turn.more || status != KVE_OK) &&
        (status == KVE_OK || !loop->threaded))
        kve_loop_enqueue(loop, s);
    kve_loop_reschedule(loop, s);
    kve_loop_reap(loop);
    return loop->threaded ? KVE_OK : status;
}

kve_status
kve_loop_run_queue(
    struct kve_loop *loop, struct kve_progress *p, struct kve_error *err)
{
    kve_status status = KVE_OK;
    struct kve_source *s;

    while (status == KVE_OK && !kve_loop_enough(loop, p) &&
        (s = dequeue(loop)) != NULL) {
        status = run_turn(loop, s, p, err);
        if (atomic_load_explicit(&loop->grants.any, memory_order_relaxed))
            take_grants(loop);
        if (atomic_load_explicit(&loop->has_inbox, memory_order_relaxed))
            take_inbox(loop);
    }
    return status;
}

/* ---- library threads ----------------------------------------------- */

void *
kve_loop_thread(void *arg)
{
    struct kve_loop *loop = arg;
    struct kve_error err = { KVE_OK, 0, 0, "" };

    loop_here = loop;
    while (!atomic_load(&loop->set->stopped)) {
        struct kve_progress p = { 0, SIZE_MAX, 0, false };
        int64_t next =
            loop->deadlines.top != NULL ? loop->deadlines.top->due : KVE_NEVER;
        int wait_ms =
            loop->first_queued != NULL ? 0 : kve_ms_until(next, kve_now_ns());

        if (kve_loop_collect(loop, wait_ms, &err) != KVE_OK) {
            kve_context_log(loop->context, KVE_LOG_ERROR,
                "a thread of a subscriber: %s: %s; trying again",
                kve_status_str(err.status), err.detail);
            (void)usleep(RETRY_NS / 1000);
        }
        (void)kve_loop_run_queue(loop, &p, NULL);
    }
    return NULL;
}
