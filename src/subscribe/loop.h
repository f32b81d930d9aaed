/*
 * loop.h - one loop of a subscriber: many sources, one epoll descriptor.
 *
 *     epoll:  descriptors of sources --> ready bits --> queue of sources
 *             timer: the earliest deadline --> heap --> queue
 *             event counter: wake-ups, the inbox, granted requests
 *
 * Without library threads a subscriber has one loop, which kve_sub_poll() runs;
 * with n of them it has n, each run by its own thread. What belongs to a loop
 * (its sources' sockets, machines, the queue, the heap) is touched by that
 * thread alone. Other threads put a source into its inbox, set flags, and
 * write the event counter.
 *
 * Sources with work stand in a queue and get turns in order; one that is not
 * done goes to its end. Nothing is scanned per message or per wake-up: a
 * descriptor names its source and what it is for, and deadlines lie in a heap.
 * A deadline that moved away stays in the heap until it comes, and is looked at
 * then; only one that came closer is moved.
 *
 * Descriptors of sources are watched for edges: a source remembers that it has
 * not read everything, and one that waits after an error costs nothing.
 *
 * The event counter is also set when kve_sub_poll() returns with work left,
 * because the descriptor of a ZeroMQ socket falls silent while messages wait.
 */
#ifndef KVE_SUBSCRIBE_LOOP_H
#define KVE_SUBSCRIBE_LOOP_H

#include "subscribe/heap.h"
#include "subscribe/slots.h"
#include "subscribe/source.h"

#include <kvevents/subscriber.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* The payload that lies decoded in the loop's batch. */
struct kve_decoded {
    const uint8_t *data; /* NULL: none that may be used */
    size_t len;
    kve_status status;
    struct kve_error error;
};

struct kve_loop {
    kve_subscriber *set;
    kve_context *context; /* borrowed, as are callbacks */
    const struct kve_sub_callbacks *callbacks;
    bool threaded; /* a thread of the library runs it */

    kve_batch *batch; /* decoded into, one delivery at a time */
    struct kve_decoded decoded;

    int epoll_fd;
    int timer_fd;
    int event_fd;
    int64_t timer_set;    /* what timer_fd is set to; KVE_NEVER: nothing */
    int64_t collected_at; /* when epoll was asked last */

    struct kve_source *first_queued;
    struct kve_source *last_queued;
    struct kve_heap deadlines;
    struct kve_source *current; /* whose turn it is */
    struct kve_source *removed; /* freed between turns */
    struct kve_grants grants;

    /* From other threads. */
    atomic_bool woken;
    atomic_bool has_inbox;
    _Atomic(struct kve_source *) calling; /* whose callback runs */

    /* Under the set's lock. */
    size_t n_sources;
    struct kve_source *first_inbox;
    struct kve_source *last_inbox;

    pthread_t thread;
    bool has_thread;
};

/* What some turns came to. */
struct kve_progress {
    size_t batches;
    size_t max_batches;
    size_t inputs;
    bool stop; /* on_batch asked for it */
};

kve_status kve_loop_init(struct kve_loop *loop, kve_subscriber *set,
    const struct kve_batch_opts *batch, struct kve_error *err);
/* After its thread has ended; what is left of its sources is the set's. */
void kve_loop_release(struct kve_loop *loop);

/* The loop whose thread this is, of any subscriber; else NULL. */
struct kve_loop *kve_loop_here(void);

/* Make it look around. Any thread, signal handlers too. */
void kve_loop_signal(struct kve_loop *loop);

/* ---- on the loop's thread ------------------------------------------- */

/* Take a source in: its descriptors, its first turn. */
kve_status kve_loop_attach(
    struct kve_loop *loop, struct kve_source *source, struct kve_error *err);

/* A source is to go, its streams with it: closed and freed as soon as no turn
 * of its family runs. */
void kve_loop_drop(struct kve_loop *loop, struct kve_source *source);

/* Close and free what was dropped. */
void kve_loop_reap(struct kve_loop *loop);

/* It has something to do. */
void kve_loop_enqueue(struct kve_loop *loop, struct kve_source *source);

/* Its deadline may have come closer. */
void kve_loop_reschedule(struct kve_loop *loop, struct kve_source *source);

/* Bring epoll in line with the descriptors a handle names now; the first of
 * them gets tag, the others tag + 1. */
kve_status kve_loop_watch(struct kve_loop *loop, struct kve_source *source,
    enum kve_tag tag, struct kve_watched *watched, const int *fds, size_t n,
    struct kve_error *err);

/* Have payload decoded in loop->batch, and how that went in loop->decoded.
 * KVE_OK, or KVE_E_NOMEM. */
kve_status kve_loop_decode(
    struct kve_loop *loop, struct kve_span payload, struct kve_error *err);

/* The payload is about to go, or was looked at: decode the next one anew. */
static inline void
kve_loop_forget(struct kve_loop *loop)
{
    loop->decoded.data = NULL;
}

/* Around each callback: whether it may be made, and that it has ended. */
bool kve_loop_enter(struct kve_loop *loop, struct kve_source *source);
void kve_loop_leave(struct kve_loop *loop, struct kve_source *source);

/* Wait for work up to wait_ms (< 0: without limit), put it into the queue. */
kve_status kve_loop_collect(
    struct kve_loop *loop, int wait_ms, struct kve_error *err);

/* Turns for the sources in the queue until there are none, or it is enough. */
kve_status kve_loop_run_queue(
    struct kve_loop *loop, struct kve_progress *p, struct kve_error *err);
bool kve_loop_enough(const struct kve_loop *loop, const struct kve_progress *p);

/* Set the timer to the earliest deadline. */
void kve_loop_set_timer(struct kve_loop *loop);

/* What a library thread does. arg is the loop. */
void *kve_loop_thread(void *arg);

#endif
