/*
 * subscriber.c - see kvevents/subscriber.h: many sources in one loop.
 *
 * One epoll descriptor watches everything: the sockets of all sources, a
 * timer for the next deadline, and an event counter for wake-ups. The event
 * counter is also set when kve_sub_poll() returns with work left, because the
 * descriptor of a ZeroMQ socket falls silent while messages wait.
 *
 * Sources with work stand in a queue and get turns in order; one that is not
 * done goes to its end. Nothing is scanned per message; deadlines are scanned
 * before the loop sleeps, and the timer is only moved when the next deadline
 * is earlier than what it is set to, or when it has fired.
 *
 * The lock protects the list of sources against kve_sub_counter() from other
 * threads; the loop itself never takes it.
 */
#include "subscribe/source.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "transport/context.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define DEFAULT_SOURCES 256
#define DEFAULT_BATCHES 1024
#define N_EVENTS 64
/* Inputs after which a poll returns even if nothing was delivered: a flood of
 * messages that lead to nothing must not keep the caller from its own work. */
#define MAX_INPUTS 65536

struct kve_subscriber {
    struct kve_source_env env;
    uint32_t max_sources;
    kve_source_id last_id;

    struct kve_source **sources;
    size_t n_sources;
    size_t cap_sources;

    struct kve_source *first_queued;
    struct kve_source *last_queued;
    struct kve_source *current; /* whose turn it is */
    struct kve_source *removed; /* freed when no callback runs */

    int epoll_fd;
    int timer_fd;
    int event_fd;
    int64_t timer_set; /* what timer_fd is set to; KVE_NEVER: nothing */
    bool polling;

    atomic_bool stopped;
    atomic_bool woken;

    pthread_mutex_t lock; /* sources (the list), retired */
    bool has_lock;
    struct kve_sub_counters retired; /* of sources that were removed */
};

/* ---- the queue of sources with work -------------------------------- */

static void
enqueue(kve_subscriber *sub, struct kve_source *s)
{
    if (s->queued || s->removed)
        return;
    s->queued = true;
    s->next_queued = NULL;
    if (sub->last_queued != NULL)
        sub->last_queued->next_queued = s;
    else
        sub->first_queued = s;
    sub->last_queued = s;
}

static struct kve_source *
dequeue(kve_subscriber *sub)
{
    struct kve_source *s = sub->first_queued;

    if (s == NULL)
        return NULL;
    sub->first_queued = s->next_queued;
    if (sub->first_queued == NULL)
        sub->last_queued = NULL;
    s->queued = false;
    s->next_queued = NULL;
    return s;
}

static void
drop_from_queue(kve_subscriber *sub, struct kve_source *gone)
{
    struct kve_source *s = sub->first_queued;

    sub->first_queued = NULL;
    sub->last_queued = NULL;
    while (s != NULL) {
        struct kve_source *next = s->next_queued;
        s->queued = false;
        if (s != gone)
            enqueue(sub, s);
        s = next;
    }
}

/* ---- creation ------------------------------------------------------ */

static kve_status
open_fds(kve_subscriber *sub, struct kve_error *err)
{
    struct epoll_event ev = { .events = EPOLLIN, .data = { .ptr = NULL } };

    sub->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    sub->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    sub->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (sub->epoll_fd < 0 || sub->timer_fd < 0 || sub->event_fd < 0)
        return kve_fail(err, KVE_E_SYSTEM, "descriptors of a subscriber");

    ev.data.ptr = &sub->timer_fd;
    if (epoll_ctl(sub->epoll_fd, EPOLL_CTL_ADD, sub->timer_fd, &ev) != 0)
        return kve_fail(err, KVE_E_SYSTEM, "epoll_ctl");
    ev.data.ptr = &sub->event_fd;
    if (epoll_ctl(sub->epoll_fd, EPOLL_CTL_ADD, sub->event_fd, &ev) != 0)
        return kve_fail(err, KVE_E_SYSTEM, "epoll_ctl");
    return KVE_OK;
}

static kve_status
read_callbacks(const struct kve_sub_callbacks *given,
    struct kve_sub_callbacks *ret, struct kve_error *err)
{
    kve_status status = kve_opts_read(
        given, sizeof(*given), ret, sizeof(*ret), "kve_sub_callbacks", err);

    if (status == KVE_OK && ret->on_batch == NULL)
        status = kve_fail(err, KVE_E_INVAL,
            "on_batch is missing; set it in struct kve_sub_callbacks");
    return status;
}

static kve_status
read_sub_opts(const struct kve_sub_opts *given, struct kve_sub_opts *ret,
    struct kve_error *err)
{
    kve_status status = kve_opts_read(
        given, sizeof(*given), ret, sizeof(*ret), "kve_sub_opts", err);

    if (status != KVE_OK)
        return status;
    if (ret->threads != 0)
        return kve_fail(err, KVE_E_UNSUPPORTED,
            "threads is %u; this release supports 0: call kve_sub_poll()",
            ret->threads);
    if (ret->max_sources == 0)
        ret->max_sources = DEFAULT_SOURCES;
    if (ret->batch.struct_size == 0)
        ret->batch.struct_size = sizeof(ret->batch);
    return KVE_OK;
}

kve_status
kve_sub_create(kve_context *context, const struct kve_sub_opts *opts,
    const struct kve_sub_callbacks *callbacks, kve_subscriber **ret_sub,
    struct kve_error *err)
{
    struct kve_sub_opts o;
    kve_subscriber *sub = NULL;
    kve_status status = read_sub_opts(opts, &o, err);

    if (status != KVE_OK)
        goto out;
    sub = kve_mem_zalloc(1, sizeof(*sub));
    if (sub == NULL) {
        status = kve_fail_nomem(err, "subscriber");
        goto out;
    }
    sub->epoll_fd = -1;
    sub->timer_fd = -1;
    sub->event_fd = -1;
    sub->timer_set = KVE_NEVER;
    sub->max_sources = o.max_sources;
    status = read_callbacks(callbacks, &sub->env.callbacks, err);
    if (status != KVE_OK)
        goto out;
    if (pthread_mutex_init(&sub->lock, NULL) != 0) {
        status = kve_fail(err, KVE_E_SYSTEM, "mutex of a subscriber");
        goto out;
    }
    sub->has_lock = true;
    status = kve_context_ref(context, o.max_sources, &sub->env.context, err);
    if (status == KVE_OK)
        status = kve_batch_create(&o.batch, &sub->env.batch, err);
    if (status == KVE_OK)
        status = open_fds(sub, err);
    if (status != KVE_OK)
        goto out;
    sub->env.epoll_fd = sub->epoll_fd;
    *ret_sub = sub;
    sub = NULL;

out:
    kve_sub_destroy(sub);
    return status;
}

static void
free_removed(kve_subscriber *sub)
{
    while (sub->removed != NULL) {
        struct kve_source *s = sub->removed;
        sub->removed = s->next_removed;
        kve_source_destroy(s);
    }
}

static void
close_fd(int fd)
{
    if (fd >= 0)
        (void)close(fd);
}

void
kve_sub_destroy(kve_subscriber *sub)
{
    if (sub == NULL)
        return;
    free_removed(sub);
    for (size_t i = 0; i < sub->n_sources; i++)
        kve_source_destroy(sub->sources[i]);
    kve_mem_free(sub->sources);
    close_fd(sub->event_fd);
    close_fd(sub->timer_fd);
    close_fd(sub->epoll_fd);
    kve_batch_destroy(sub->env.batch);
    kve_context_unref(sub->env.context);
    if (sub->has_lock)
        (void)pthread_mutex_destroy(&sub->lock);
    kve_mem_free(sub);
}

/* ---- sources ------------------------------------------------------- */

static kve_status
check_usable(const kve_subscriber *sub, struct kve_error *err)
{
    if (kve_context_forked(sub->env.context))
        return kve_fail(err, KVE_E_FORKED,
            "a subscriber does not survive fork(); make one in the child");
    if (atomic_load(&sub->stopped))
        return kve_fail(err, KVE_E_CLOSED, "the subscriber was stopped");
    return KVE_OK;
}

static kve_status
make_room(kve_subscriber *sub, struct kve_error *err)
{
    if (sub->n_sources >= sub->max_sources)
        return kve_fail(err, KVE_E_LIMIT,
            "%zu sources are followed already; raise max_sources",
            sub->n_sources);
    if (sub->n_sources < sub->cap_sources)
        return KVE_OK;

    size_t cap = sub->cap_sources == 0 ? 8 : 2 * sub->cap_sources;
    pthread_mutex_lock(&sub->lock);
    struct kve_source **grown =
        kve_mem_array(sub->sources, cap, sizeof(struct kve_source *));
    if (grown != NULL) {
        sub->sources = grown;
        sub->cap_sources = cap;
    }
    pthread_mutex_unlock(&sub->lock);
    return grown != NULL ? KVE_OK : kve_fail_nomem(err, "list of sources");
}

/* Any time soon kve_sub_poll() has something to do. */
static void
signal_work(kve_subscriber *sub)
{
    uint64_t one = 1;
    int saved = errno;

    (void)!write(sub->event_fd, &one, sizeof(one));
    errno = saved;
}

kve_status
kve_sub_add(kve_subscriber *sub, const struct kve_source_opts *opts,
    kve_source_id *ret_source, struct kve_error *err)
{
    struct kve_source_opts o;
    struct kve_source *s = NULL;
    kve_status status = check_usable(sub, err);

    if (status == KVE_OK)
        status = kve_opts_read(
            opts, sizeof(o), &o, sizeof(o), "kve_source_opts", err);
    if (status == KVE_OK)
        status = make_room(sub, err);
    if (status == KVE_OK)
        status = kve_source_create(&sub->env, sub->last_id + 1, &o, &s, err);
    if (status != KVE_OK)
        return status;

    pthread_mutex_lock(&sub->lock);
    sub->sources[sub->n_sources++] = s;
    pthread_mutex_unlock(&sub->lock);
    sub->last_id++;
    enqueue(sub, s);
    signal_work(sub);
    *ret_source = s->id;
    return KVE_OK;
}

static size_t
find(const kve_subscriber *sub, kve_source_id id)
{
    for (size_t i = 0; i < sub->n_sources; i++)
        if (sub->sources[i]->id == id)
            return i;
    return sub->n_sources;
}

static void
retire_counters(kve_subscriber *sub, const struct kve_source *s)
{
    for (unsigned i = 0; i < KVE_SUB_COUNTERS; i++)
        kve_sub_count(&sub->retired,
            (enum kve_counter)(KVE_SUB_COUNTER_BASE + i),
            kve_sub_count_get(&s->counters, KVE_SUB_COUNTER_BASE + i));
}

kve_status
kve_sub_remove(kve_subscriber *sub, kve_source_id source)
{
    size_t at = find(sub, source);

    if (at == sub->n_sources)
        return KVE_E_NOT_FOUND;

    struct kve_source *s = sub->sources[at];
    pthread_mutex_lock(&sub->lock);
    sub->sources[at] = sub->sources[--sub->n_sources];
    retire_counters(sub, s);
    pthread_mutex_unlock(&sub->lock);

    drop_from_queue(sub, s);
    s->removed = true;
    s->next_removed = sub->removed;
    sub->removed = s;
    /* From a callback the source may be the one whose turn it is: the turn
     * closes it. */
    if (s != sub->current)
        kve_source_close(s);
    if (!sub->polling)
        free_removed(sub);
    return KVE_OK;
}

/* ---- the loop ------------------------------------------------------ */

static void
drain(int fd)
{
    uint64_t n;

    (void)!read(fd, &n, sizeof(n));
}

static void
enqueue_due(kve_subscriber *sub, int64_t now)
{
    for (size_t i = 0; i < sub->n_sources; i++)
        if (kve_source_deadline(sub->sources[i]) <= now)
            enqueue(sub, sub->sources[i]);
}

/* Set the timer to the next deadline of any source. */
static void
set_timer(kve_subscriber *sub)
{
    int64_t next = KVE_NEVER;

    for (size_t i = 0; i < sub->n_sources; i++) {
        int64_t deadline = kve_source_deadline(sub->sources[i]);
        if (deadline < next)
            next = deadline;
    }
    /* One that fires early does no harm; moving it costs a system call. */
    if (next >= sub->timer_set)
        return;

    struct itimerspec t = { { 0, 0 }, { 0, 0 } };
    int64_t at = next > 0 ? next : 1;
    t.it_value.tv_sec = at / 1000000000;
    t.it_value.tv_nsec = at % 1000000000;
    (void)timerfd_settime(sub->timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
    sub->timer_set = next;
}

/* Put the sources that have something to do into the queue, waiting for the
 * first up to timeout_ms. */
static kve_status
collect(kve_subscriber *sub, int timeout_ms, struct kve_error *err)
{
    struct epoll_event events[N_EVENTS];
    bool timer = false;
    int n = epoll_wait(sub->epoll_fd, events, N_EVENTS, timeout_ms);

    if (n < 0 && errno != EINTR)
        return kve_fail(err, KVE_E_SYSTEM, "epoll_wait");
    for (int i = 0; i < n; i++) {
        void *who = events[i].data.ptr;
        if (who == &sub->event_fd) {
            drain(sub->event_fd);
        } else if (who == &sub->timer_fd) {
            drain(sub->timer_fd);
            timer = true;
        } else {
            enqueue(sub, who);
        }
    }
    if (timer) {
        sub->timer_set = KVE_NEVER;
        enqueue_due(sub, kve_now_ns());
    }
    return KVE_OK;
}

struct progress {
    size_t batches;
    size_t max_batches;
    size_t inputs;
    bool stop; /* on_batch asked for it */
};

/* Turns for the sources in the queue until there are none, or it is enough. */
static kve_status
run_queue(kve_subscriber *sub, struct progress *p, struct kve_error *err)
{
    kve_status status = KVE_OK;
    struct kve_source *s;

    while (status == KVE_OK && !p->stop && p->batches < p->max_batches &&
        p->inputs < MAX_INPUTS && !atomic_load(&sub->stopped) &&
        (s = dequeue(sub)) != NULL) {
        struct kve_turn turn;

        sub->current = s;
        status = kve_source_turn(
            s, kve_now_ns(), p->max_batches - p->batches, &turn, err);
        sub->current = NULL;
        p->batches += turn.batches;
        p->inputs += turn.inputs;
        p->stop = turn.stop;
        if (turn.more || status != KVE_OK)
            enqueue(sub, s);
    }
    return status;
}

static bool
enough(const kve_subscriber *sub, const struct progress *p)
{
    return p->stop || p->batches >= p->max_batches || p->inputs >= MAX_INPUTS ||
        atomic_load(&sub->stopped);
}

static kve_status
poll_loop(kve_subscriber *sub, int timeout_ms, struct progress *p,
    struct kve_error *err)
{
    int64_t until =
        timeout_ms < 0 ? KVE_NEVER : kve_now_ns() + timeout_ms * KVE_MS;
    kve_status status = KVE_OK;

    for (;;) {
        int wait = 0;

        status = collect(sub, 0, err);
        if (status == KVE_OK)
            status = run_queue(sub, p, err);
        if (status != KVE_OK || enough(sub, p))
            break;
        if (sub->first_queued != NULL)
            continue;
        if (atomic_exchange(&sub->woken, false) || p->batches > 0)
            break;
        set_timer(sub);
        wait = kve_ms_until(until, kve_now_ns());
        if (wait == 0)
            break;
        status = collect(sub, wait, err);
        if (status != KVE_OK)
            break;
    }
    return status;
}

kve_status
kve_sub_poll(kve_subscriber *sub, int timeout_ms, size_t max_batches,
    size_t *ret_delivered, struct kve_error *err)
{
    struct progress p = { 0, max_batches != 0 ? max_batches : DEFAULT_BATCHES,
        0, false };
    kve_status status = check_usable(sub, err);

    if (status != KVE_OK)
        return status;
    if (sub->polling)
        return kve_fail(err, KVE_E_INVAL,
            "kve_sub_poll() must not be called from a callback");

    sub->polling = true;
    status = poll_loop(sub, timeout_ms, &p, err);
    sub->polling = false;
    free_removed(sub);
    set_timer(sub);
    if (sub->first_queued != NULL)
        signal_work(sub);
    if (ret_delivered != NULL)
        *ret_delivered = p.batches;
    if (status == KVE_OK && atomic_load(&sub->stopped))
        status = kve_fail(err, KVE_E_CLOSED, "the subscriber was stopped");
    return status;
}

int
kve_sub_fd(const kve_subscriber *sub)
{
    return sub->epoll_fd;
}

void
kve_sub_wake(kve_subscriber *sub)
{
    atomic_store(&sub->woken, true);
    signal_work(sub);
}

void
kve_sub_stop(kve_subscriber *sub)
{
    atomic_store(&sub->stopped, true);
    signal_work(sub);
}

/* ---- looking ------------------------------------------------------- */

kve_status
kve_sub_source(const kve_subscriber *sub, kve_source_id source,
    struct kve_source_info *ret_info)
{
    struct kve_source_info info;
    size_t at = find(sub, source);
    size_t given = ret_info->struct_size;

    if (given < sizeof(given))
        return KVE_E_INVAL;
    if (at == sub->n_sources)
        return KVE_E_NOT_FOUND;
    memset(&info, 0, sizeof(info));
    kve_source_info(sub->sources[at], &info);
    info.struct_size = given;
    memcpy(ret_info, &info, given < sizeof(info) ? given : sizeof(info));
    return KVE_OK;
}

uint64_t
kve_sub_counter(
    const kve_subscriber *sub, kve_source_id source, unsigned counter)
{
    /* The lock is not part of what const protects. */
    pthread_mutex_t *lock = (pthread_mutex_t *)&sub->lock;
    uint64_t sum = 0;

    pthread_mutex_lock(lock);
    if (source == 0)
        sum = kve_sub_count_get(&sub->retired, counter);
    for (size_t i = 0; i < sub->n_sources; i++)
        if (source == 0 || sub->sources[i]->id == source)
            sum += kve_sub_count_get(&sub->sources[i]->counters, counter);
    pthread_mutex_unlock(lock);
    return sum;
}
