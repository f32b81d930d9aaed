/*
 * subscriber.c - see kvevents/subscriber.h and set.h: the set of sources.
 */
#include "subscribe/set.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "transport/context.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>

#define DEFAULT_SOURCES 256
#define DEFAULT_BATCHES 1024
#define DEFAULT_REPLAYS 4
#define MAX_THREADS 256

/* The sizes of the first release's structures. */
#define SUB_OPTS_MIN \
    (offsetof(struct kve_sub_opts, batch) + sizeof(struct kve_batch_opts))
#define SOURCE_OPTS_MIN \
    (offsetof(struct kve_source_opts, user) + sizeof(void *))

/* ---- creation ------------------------------------------------------ */

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
        given, SUB_OPTS_MIN, ret, sizeof(*ret), "kve_sub_opts", err);

    if (status != KVE_OK)
        return status;
    if (ret->threads > MAX_THREADS)
        return kve_fail(err, KVE_E_INVAL,
            "threads is %u; accepted are 0 (all inside kve_sub_poll()) to %d",
            ret->threads, MAX_THREADS);
    if (ret->max_sources == 0)
        ret->max_sources = DEFAULT_SOURCES;
    if (ret->max_replays == 0)
        ret->max_replays = DEFAULT_REPLAYS;
    if (ret->batch.struct_size == 0)
        ret->batch.struct_size = sizeof(ret->batch);
    return KVE_OK;
}

static kve_status
init_locks(
    kve_subscriber *set, const struct kve_sub_opts *o, struct kve_error *err)
{
    kve_status status;

    if (pthread_mutex_init(&set->lock, NULL) != 0)
        return kve_fail(err, KVE_E_SYSTEM, "mutex of a subscriber");
    set->has_lock = true;
    if (pthread_cond_init(&set->changed, NULL) != 0)
        return kve_fail(err, KVE_E_SYSTEM, "condition of a subscriber");
    set->has_changed = true;
    status = kve_slots_init(&set->slots, o->max_replays, o->threads > 0, err);
    set->has_slots = status == KVE_OK;
    return status;
}

static kve_status
init_loops(
    kve_subscriber *set, const struct kve_sub_opts *o, struct kve_error *err)
{
    kve_status status = KVE_OK;

    set->n_loops = o->threads > 0 ? o->threads : 1;
    set->loops = kve_mem_zalloc(set->n_loops, sizeof(struct kve_loop));
    if (set->loops == NULL)
        return kve_fail_nomem(err, "loops of a subscriber");
    for (size_t i = 0; i < set->n_loops && status == KVE_OK; i++)
        status = kve_loop_init(&set->loops[i], set, &o->batch, err);
    return status;
}

/* Signals are the program's: a library thread takes none. */
static kve_status
start_threads(kve_subscriber *set, struct kve_error *err)
{
    sigset_t all;
    sigset_t before;
    int rc = 0;

    if (set->threads == 0)
        return KVE_OK;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    for (size_t i = 0; i < set->n_loops && rc == 0; i++) {
        struct kve_loop *loop = &set->loops[i];

        rc = pthread_create(&loop->thread, NULL, kve_loop_thread, loop);
        loop->has_thread = rc == 0;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return kve_fail(
            err, KVE_E_SYSTEM, "thread of a subscriber: %s", strerror(rc));
    return KVE_OK;
}

kve_status
kve_sub_create(kve_context *context, const struct kve_sub_opts *opts,
    const struct kve_sub_callbacks *callbacks, kve_subscriber **ret_sub,
    struct kve_error *err)
{
    struct kve_sub_opts o;
    kve_subscriber *set = NULL;
    kve_status status = read_sub_opts(opts, &o, err);

    if (status != KVE_OK)
        return status;
    set = kve_mem_zalloc(1, sizeof(*set));
    if (set == NULL)
        return kve_fail_nomem(err, "subscriber");
    set->threads = o.threads;
    set->max_sources = o.max_sources;
    status = read_callbacks(callbacks, &set->callbacks, err);
    if (status == KVE_OK)
        status = init_locks(set, &o, err);
    if (status == KVE_OK)
        status = kve_context_ref(context, o.max_sources, &set->context, err);
    if (status == KVE_OK)
        status = init_loops(set, &o, err);
    if (status == KVE_OK)
        status = start_threads(set, err);
    if (status == KVE_OK) {
        *ret_sub = set;
        set = NULL;
    }
    kve_sub_destroy(set);
    return status;
}

/* Streams before their parents, whose endpoint they use. */
static void
destroy_sources(kve_subscriber *set)
{
    size_t parents = 0;

    for (size_t i = 0; i < set->n_sources; i++)
        if (set->sources[i]->parent == NULL)
            set->sources[parents++] = set->sources[i];
        else
            kve_source_destroy(set->sources[i]);
    for (size_t i = 0; i < parents; i++)
        kve_source_destroy(set->sources[i]);
    kve_mem_free(set->sources);
}

void
kve_sub_destroy(kve_subscriber *set)
{
    if (set == NULL)
        return;

    bool forked = set->context != NULL && kve_context_forked(set->context);
    /* In a child there are no threads, and who knows what they had locked. */
    if (forked) {
        set->slots.locked = false;
        set->slots.max = 0; /* nobody is woken: the counters are the parent's */
    } else if (set->threads > 0 && set->loops != NULL) {
        kve_sub_stop(set);
    }
    for (size_t i = 0; set->loops != NULL && i < set->n_loops; i++)
        if (set->loops[i].has_thread && !forked)
            (void)pthread_join(set->loops[i].thread, NULL);
    destroy_sources(set);
    for (size_t i = 0; set->loops != NULL && i < set->n_loops; i++)
        kve_loop_release(&set->loops[i]);
    kve_mem_free(set->loops);
    kve_context_unref(set->context);
    if (set->has_slots)
        kve_slots_release(&set->slots);
    if (set->has_changed && !forked)
        (void)pthread_cond_destroy(&set->changed);
    if (set->has_lock && !forked)
        (void)pthread_mutex_destroy(&set->lock);
    kve_mem_free(set);
}

/* ---- the list of sources ------------------------------------------- */

/* The lock is not part of what const protects. */
static void
lock(const kve_subscriber *set)
{
    (void)pthread_mutex_lock((pthread_mutex_t *)&set->lock);
}

static void
unlock(const kve_subscriber *set)
{
    (void)pthread_mutex_unlock((pthread_mutex_t *)&set->lock);
}

/* The first place whose id is not below. */
static size_t
place_of(const kve_subscriber *set, kve_source_id id)
{
    size_t low = 0;
    size_t high = set->n_sources;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (set->sources[middle]->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* NULL: there is none, or it was removed. */
static struct kve_source *
find(const kve_subscriber *set, kve_source_id id)
{
    size_t at = place_of(set, id);
    struct kve_source *s = at < set->n_sources ? set->sources[at] : NULL;

    return s != NULL && s->id == id && !s->hidden ? s : NULL;
}

/* Room for one more, and it is counted. Under the lock. */
static kve_status
reserve(kve_subscriber *set, struct kve_error *err)
{
    if (set->n_counted >= set->max_sources)
        return kve_fail(err, KVE_E_LIMIT,
            "%zu sources are followed already; raise max_sources",
            set->n_counted);
    if (set->n_sources + set->n_reserved == set->cap_sources) {
        size_t cap = set->cap_sources == 0 ? 8 : 2 * set->cap_sources;
        struct kve_source **grown =
            kve_mem_array(set->sources, cap, sizeof(struct kve_source *));

        if (grown == NULL)
            return kve_fail_nomem(err, "list of sources");
        set->sources = grown;
        set->cap_sources = cap;
    }
    set->n_counted++;
    set->n_reserved++;
    return KVE_OK;
}

/* Under the lock, into the place reserved. */
static void
insert(kve_subscriber *set, struct kve_source *s)
{
    set->n_reserved--;
    s->id = ++set->last_id;
    set->sources[set->n_sources++] = s;
    s->loop->n_sources++;
}

kve_status
kve_set_enter(kve_subscriber *set, struct kve_source *s, struct kve_error *err)
{
    kve_status status;

    lock(set);
    status = reserve(set, err);
    if (status == KVE_OK)
        insert(set, s);
    unlock(set);
    return status;
}

static void
hide(kve_subscriber *set, struct kve_source *s)
{
    if (s->hidden)
        return;
    s->hidden = true;
    set->n_counted--;
}

/* It goes by itself while another thread removes it. Under the lock. */
static void
leave_inbox(struct kve_source *gone)
{
    struct kve_loop *loop = gone->loop;
    struct kve_source **at = &loop->first_inbox;
    struct kve_source *last = NULL;

    if (!gone->in_inbox)
        return;
    while (*at != gone) {
        last = *at;
        at = &(*at)->next_inbox;
    }
    *at = gone->next_inbox;
    if (loop->last_inbox == gone)
        loop->last_inbox = last;
    gone->in_inbox = false;
}

void
kve_set_leave(kve_subscriber *set, struct kve_source *s)
{
    size_t at;

    lock(set);
    at = place_of(set, s->id);
    hide(set, s);
    leave_inbox(s);
    s->loop->n_sources--;
    set->n_sources--;
    memmove(&set->sources[at], &set->sources[at + 1],
        (set->n_sources - at) * sizeof(set->sources[0]));
    for (unsigned i = 0; i < KVE_SUB_COUNTERS; i++)
        kve_sub_count(&set->retired,
            (enum kve_counter)(KVE_SUB_COUNTER_BASE + i),
            kve_sub_count_get(&s->counters, KVE_SUB_COUNTER_BASE + i));
    unlock(set);
}

/* Under the lock. */
static void
put_inbox(struct kve_source *s)
{
    struct kve_loop *loop = s->loop;

    if (s->in_inbox)
        return;
    s->in_inbox = true;
    s->next_inbox = NULL;
    if (loop->last_inbox != NULL)
        loop->last_inbox->next_inbox = s;
    else
        loop->first_inbox = s;
    loop->last_inbox = s;
    atomic_store(&loop->has_inbox, true);
}

struct kve_source *
kve_set_take_inbox(kve_subscriber *set, struct kve_loop *loop)
{
    struct kve_source *s;

    lock(set);
    s = loop->first_inbox;
    if (s != NULL) {
        loop->first_inbox = s->next_inbox;
        s->in_inbox = false;
    }
    if (loop->first_inbox == NULL) {
        loop->last_inbox = NULL;
        atomic_store(&loop->has_inbox, false);
    }
    unlock(set);
    return s;
}

/* ---- add and remove ------------------------------------------------ */

static kve_status
check_usable(const kve_subscriber *set, struct kve_error *err)
{
    if (kve_context_forked(set->context))
        return kve_fail(err, KVE_E_FORKED,
            "a subscriber does not survive fork(); make one in the child");
    if (atomic_load(&set->stopped))
        return kve_fail(err, KVE_E_CLOSED, "the subscriber was stopped");
    return KVE_OK;
}

/* The one with the fewest sources; under the lock. */
static struct kve_loop *
choose_loop(kve_subscriber *set)
{
    struct kve_loop *best = &set->loops[0];

    for (size_t i = 1; i < set->n_loops; i++)
        if (set->loops[i].n_sources < best->n_sources)
            best = &set->loops[i];
    return best;
}

kve_status
kve_sub_add(kve_subscriber *set, const struct kve_source_opts *opts,
    kve_source_id *ret_source, struct kve_error *err)
{
    struct kve_source_opts o;
    struct kve_source *s = NULL;
    struct kve_loop *loop;
    kve_status status = check_usable(set, err);

    if (status == KVE_OK)
        status = kve_opts_read(
            opts, SOURCE_OPTS_MIN, &o, sizeof(o), "kve_source_opts", err);
    if (status != KVE_OK)
        return status;

    lock(set);
    status = reserve(set, err);
    loop = choose_loop(set);
    unlock(set);
    if (status != KVE_OK)
        return status;
    status = kve_source_create(loop, &o, &s, err);
    if (status == KVE_OK && !loop->threaded)
        status = kve_loop_attach(loop, s, err);

    lock(set);
    if (status == KVE_OK) {
        insert(set, s);
        *ret_source = s->id;
        if (loop->threaded)
            put_inbox(s);
    } else {
        set->n_counted--;
        set->n_reserved--;
    }
    unlock(set);
    if (status == KVE_OK)
        kve_loop_signal(loop);
    else
        kve_source_destroy(s);
    return status;
}

static bool
is_of(const struct kve_source *s, kve_source_id id)
{
    return s != NULL && (s->id == id || s->parent_id == id);
}

void
kve_set_callback_ended(kve_subscriber *set)
{
    lock(set);
    (void)pthread_cond_broadcast(&set->changed);
    unlock(set);
}

/* By another thread than the one that polls, or a callback of any. Under the
 * lock: who is called back cannot be freed. */
static void
remove_for_loop(kve_subscriber *set, struct kve_source *s)
{
    struct kve_loop *loop = s->loop;
    kve_source_id id = s->id;

    atomic_store(&s->removed, true);
    put_inbox(s);
    kve_loop_signal(loop);
    /* A library thread never waits: the one it would wait for may wait for
     * it. */
    if (kve_loop_here() != NULL)
        return;
    while (is_of(atomic_load(&loop->calling), id))
        (void)pthread_cond_wait(&set->changed, &set->lock);
}

kve_status
kve_sub_remove(kve_subscriber *set, kve_source_id source)
{
    struct kve_source *s;

    lock(set);
    s = find(set, source);
    if (s == NULL) {
        unlock(set);
        return KVE_E_NOT_FOUND;
    }
    for (size_t i = 0; i < set->n_sources; i++)
        if (is_of(set->sources[i], source))
            hide(set, set->sources[i]);
    if (set->threads > 0)
        remove_for_loop(set, s);
    unlock(set);

    if (set->threads == 0) {
        kve_loop_drop(s->loop, s);
        /* From a callback the source may be the one whose turn it is. */
        if (s->loop->current == NULL)
            kve_loop_reap(s->loop);
    }
    return KVE_OK;
}

/* ---- polling ------------------------------------------------------- */

/* How long epoll may wait: until the caller's time is over, or a source's
 * deadline comes. */
static int
wait_of(struct kve_loop *loop, int64_t until)
{
    int64_t next = until;

    if (loop->first_queued != NULL || atomic_load(&loop->woken))
        return 0;
    if (loop->deadlines.top != NULL && loop->deadlines.top->due < next)
        next = loop->deadlines.top->due;
    return kve_ms_until(next, kve_now_ns());
}

/* Wait for something to do and do it, until something came of it. */
static kve_status
poll_loop(kve_subscriber *set, int timeout_ms, struct kve_progress *p,
    struct kve_error *err)
{
    struct kve_loop *loop = &set->loops[0];
    int64_t until =
        timeout_ms < 0 ? KVE_NEVER : kve_now_ns() + timeout_ms * KVE_MS;
    kve_status status;

    for (;;) {
        status = kve_loop_collect(loop, wait_of(loop, until), err);
        if (status == KVE_OK)
            status = kve_loop_run_queue(loop, p, err);
        if (status != KVE_OK || kve_loop_enough(loop, p))
            return status;
        if (loop->first_queued != NULL)
            continue;
        if (atomic_exchange(&loop->woken, false) || p->batches > 0 ||
            (until != KVE_NEVER && kve_now_ns() >= until))
            return KVE_OK;
    }
}

kve_status
kve_sub_poll(kve_subscriber *set, int timeout_ms, size_t max_batches,
    size_t *ret_delivered, struct kve_error *err)
{
    struct kve_progress p = { 0,
        max_batches != 0 ? max_batches : DEFAULT_BATCHES, 0, false };
    struct kve_loop *loop = &set->loops[0];
    kve_status status = check_usable(set, err);

    if (ret_delivered != NULL)
        *ret_delivered = 0;
    if (status != KVE_OK)
        return status;
    if (set->threads > 0)
        return kve_fail(err, KVE_E_INVAL,
            "kve_sub_poll() is for threads 0; with %u the library's threads "
            "do the work",
            set->threads);
    if (set->polling)
        return kve_fail(err, KVE_E_INVAL,
            "kve_sub_poll() must not be called from a callback");

    set->polling = true;
    status = poll_loop(set, timeout_ms, &p, err);
    set->polling = false;
    kve_loop_set_timer(loop);
    if (loop->first_queued != NULL || atomic_load(&loop->woken))
        kve_loop_signal(loop);
    if (ret_delivered != NULL)
        *ret_delivered = p.batches;
    if (status == KVE_OK && atomic_load(&set->stopped))
        status = kve_fail(err, KVE_E_CLOSED, "the subscriber was stopped");
    return status;
}

int
kve_sub_fd(const kve_subscriber *set)
{
    return set->threads > 0 ? -1 : set->loops[0].epoll_fd;
}

void
kve_sub_wake(kve_subscriber *set)
{
    if (set->threads > 0)
        return;
    atomic_store(&set->loops[0].woken, true);
    kve_loop_signal(&set->loops[0]);
}

void
kve_sub_stop(kve_subscriber *set)
{
    atomic_store(&set->stopped, true);
    for (size_t i = 0; i < set->n_loops; i++)
        if (set->loops[i].set != NULL) /* else it has no descriptors yet */
            kve_loop_signal(&set->loops[i]);
}

/* ---- looking ------------------------------------------------------- */

/* Other threads see what the source's thread published last. */
static void
read_info(const kve_subscriber *set, struct kve_source *s,
    struct kve_source_info *ret_info)
{
    if (set->threads == 0 || kve_loop_here() == s->loop) {
        kve_source_info(s, ret_info);
        return;
    }
    (void)pthread_mutex_lock(&s->info_lock);
    *ret_info = s->info;
    (void)pthread_mutex_unlock(&s->info_lock);
}

kve_status
kve_sub_source(const kve_subscriber *set, kve_source_id source,
    struct kve_source_info *ret_info)
{
    struct kve_source_info info;
    size_t given = ret_info->struct_size;
    struct kve_source *s;

    if (given < sizeof(given))
        return KVE_E_INVAL;
    memset(&info, 0, sizeof(info));
    lock(set);
    s = find(set, source);
    if (s != NULL)
        read_info(set, s, &info);
    unlock(set);
    if (s == NULL)
        return KVE_E_NOT_FOUND;
    info.struct_size = given;
    memcpy(ret_info, &info, given < sizeof(info) ? given : sizeof(info));
    return KVE_OK;
}

/* The source whose callback this is called from; NULL: none, or another. */
static struct kve_source *
called_back(const struct kve_subscriber *set, kve_source_id source)
{
    struct kve_loop *loop =
        set->threads == 0 ? &set->loops[0] : kve_loop_here();
    struct kve_source *s;

    if (loop == NULL || loop->set != set)
        return NULL;
    s = atomic_load_explicit(&loop->calling, memory_order_relaxed);
    return s != NULL && s->id == source ? s : NULL;
}

/* With library threads only its own thread may look into it, which is the one
 * that frees it, too. */
static bool
is_here(const struct kve_subscriber *set, const struct kve_source *s)
{
    return set->threads == 0 || kve_loop_here() == s->loop;
}

static kve_status
find_here(const struct kve_subscriber *set, kve_source_id source,
    struct kve_source **ret_source)
{
    struct kve_source *s = called_back(set, source);
    bool here = s != NULL;

    if (s == NULL) {
        lock(set);
        s = find(set, source);
        here = s != NULL && is_here(set, s);
        unlock(set);
    }
    if (s == NULL)
        return KVE_E_NOT_FOUND;
    if (!here)
        return KVE_E_INVAL;
    if (kve_source_gone(s))
        return KVE_E_NOT_FOUND;
    *ret_source = s;
    return KVE_OK;
}

kve_status
kve_sub_position(const kve_subscriber *set, kve_source_id source,
    struct kve_position *ret_position)
{
    struct kve_source *s = NULL;
    kve_status status = find_here(set, source, &s);

    if (status == KVE_OK)
        kve_source_position(s, ret_position);
    return status;
}

kve_status
kve_sub_resume(kve_subscriber *set, kve_source_id source,
    const struct kve_position *position)
{
    struct kve_source *s = NULL;
    kve_status status = find_here(set, source, &s);

    if (status != KVE_OK)
        return status;
    if (s->parent == NULL ||
        !kve_machine_resume(s->machine, kve_now_ns(), position))
        return KVE_E_INVAL;
    kve_source_publish(s);
    return KVE_OK;
}

uint64_t
kve_sub_counter(
    const kve_subscriber *set, kve_source_id source, unsigned counter)
{
    uint64_t sum = 0;

    lock(set);
    if (source == 0) {
        sum = kve_sub_count_get(&set->retired, counter);
        for (size_t i = 0; i < set->n_sources; i++)
            sum += kve_sub_count_get(&set->sources[i]->counters, counter);
    } else {
        const struct kve_source *s = find(set, source);
        if (s != NULL)
            sum = kve_sub_count_get(&s->counters, counter);
    }
    unlock(set);
    return sum;
}
