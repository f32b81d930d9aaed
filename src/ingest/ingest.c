/*
 * ingest.c - an ingest as a whole: it begins, does idle work, and ends.
 */
#include "ingest/parts.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "ingest/registry.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_SOURCES 4096
#define MAX_SOURCES 65536
#define DEFAULT_LIMIT_MS 60000
#define MAX_THREADS 256

/* The keeper's pace: with something to tidy, and without. */
#define BUSY_MS 10
#define IDLE_MS 1000
#define TIDY_US 500
#define EXPIRE_TICKS 16 /* idle ones between looks at streams that are gone */

/* ---- names ---- */

const char *
kve_origin_str(unsigned origin)
{
    switch (origin) {
#define X(name, number, text, help) \
    case number:                    \
        return text;
        KVE_ORIGIN_MAP(X)
#undef X
    default:
        return "?";
    }
}

const char *
kve_ingest_event_str(unsigned type)
{
    switch (type) {
#define X(name, number, text, help) \
    case number:                    \
        return text;
        KVE_INGEST_EVENT_MAP(X)
#undef X
    default:
        return "?";
    }
}

/* ---- options ---- */

void
kve_ingest_opts_init(struct kve_ingest_opts *opts)
{
    *opts = (struct kve_ingest_opts)KVE_INGEST_OPTS_INIT;
}

/* The socket library's thread and those that answer want cores, too; on two
 * cores a second thread made an event a tenth dearer and none more a second. */
static uint32_t
default_threads(void)
{
    long half = sysconf(_SC_NPROCESSORS_ONLN) / 2;

    return half < 1 ? 1 : half > 4 ? 4 : (uint32_t)half;
}

static kve_status
read_opts(const struct kve_ingest_opts *given, struct kve_ingest_opts *ret,
    struct kve_error *err)
{
    kve_status status = kve_opts_read(
        given, sizeof(*ret), ret, sizeof(*ret), "kve_ingest_opts", err);

    if (status != KVE_OK)
        return status;
    if (ret->threads > MAX_THREADS)
        return kve_fail(err, KVE_E_INVAL,
            "threads is %u; accepted are 0 (default) to %d", ret->threads,
            MAX_THREADS);
    if (ret->max_sources > MAX_SOURCES)
        return kve_fail(err, KVE_E_INVAL,
            "max_sources is %u; accepted are 0 (default) to %d",
            ret->max_sources, MAX_SOURCES);
    if (ret->threads == 0)
        ret->threads = default_threads();
    if (ret->max_sources == 0)
        ret->max_sources = DEFAULT_SOURCES;
    if (ret->recovery_limit_ms == 0)
        ret->recovery_limit_ms = DEFAULT_LIMIT_MS;
    return KVE_OK;
}

/* ---- the keeper ---- */

/* A tick; false: it is to end. */
static bool
rest(struct kve_ingest *ingest, int ms)
{
    struct timespec until;
    bool stopping;
    int rc = 0;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += ms % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    (void)pthread_mutex_lock(&ingest->keeping);
    while (!ingest->stopping && rc == 0)
        rc = pthread_cond_timedwait(&ingest->keep, &ingest->keeping, &until);
    stopping = ingest->stopping;
    (void)pthread_mutex_unlock(&ingest->keeping);
    return !stopping;
}

static void *
keep(void *arg)
{
    struct kve_ingest *ingest = arg;
    unsigned ticks = 0;
    bool more = false;

    while (rest(ingest, more ? BUSY_MS : IDLE_MS)) {
        more = kve_index_tidy(ingest->index, TIDY_US);
        kve_ingest_free_lines(ingest);
        if (!more && ++ticks % EXPIRE_TICKS == 0)
            kve_ingest_expire(ingest);
    }
    return NULL;
}

static kve_status
start_keeper(struct kve_ingest *ingest, struct kve_error *err)
{
    int rc = pthread_create(&ingest->keeper, NULL, keep, ingest);

    if (rc != 0) {
        errno = rc;
        return kve_fail(err, KVE_E_SYSTEM, "a thread for idle work");
    }
    ingest->has_keeper = true;
    return KVE_OK;
}

static void
stop_keeper(struct kve_ingest *ingest)
{
    if (!ingest->has_keeper)
        return;
    (void)pthread_mutex_lock(&ingest->keeping);
    ingest->stopping = true;
    (void)pthread_cond_signal(&ingest->keep);
    (void)pthread_mutex_unlock(&ingest->keeping);
    (void)pthread_join(ingest->keeper, NULL);
}

/* ---- life ---- */

/* In a child there are no threads, and who knows what they had locked. */
static bool
is_forked(const struct kve_ingest *ingest)
{
    return ingest->pid != getpid();
}

/* Whoever changes something must not wait for ever behind those who ask. */
static bool
init_registry(struct kve_ingest *ingest)
{
    pthread_rwlockattr_t attr;

    if (pthread_rwlockattr_init(&attr) != 0)
        return false;
    (void)pthread_rwlockattr_setkind_np(
        &attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    ingest->has_registry = pthread_rwlock_init(&ingest->registry, &attr) == 0;
    (void)pthread_rwlockattr_destroy(&attr);
    return ingest->has_registry;
}

static bool
init_keep(struct kve_ingest *ingest)
{
    pthread_condattr_t attr;

    if (pthread_condattr_init(&attr) != 0)
        return false;
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    ingest->has_keep = pthread_cond_init(&ingest->keep, &attr) == 0;
    (void)pthread_condattr_destroy(&attr);
    return ingest->has_keep;
}

static kve_status
init_locks(struct kve_ingest *ingest, struct kve_error *err)
{
    ingest->has_changing = pthread_mutex_init(&ingest->changing, NULL) == 0;
    ingest->has_gate = pthread_mutex_init(&ingest->gate, NULL) == 0;
    ingest->has_opened = pthread_cond_init(&ingest->opened, NULL) == 0;
    ingest->has_keeping = pthread_mutex_init(&ingest->keeping, NULL) == 0;
    if (!ingest->has_changing || !ingest->has_gate || !ingest->has_opened ||
        !ingest->has_keeping || !init_registry(ingest) || !init_keep(ingest))
        return kve_fail(err, KVE_E_SYSTEM, "locks of an ingest");
    return KVE_OK;
}

static kve_status
create_subscriber(
    struct kve_ingest *ingest, kve_context *context, struct kve_error *err)
{
    struct kve_sub_opts opts = KVE_SUB_OPTS_INIT;
    struct kve_sub_callbacks callbacks = KVE_SUB_CALLBACKS_INIT;

    opts.threads = ingest->opts.threads;
    opts.max_sources = ingest->opts.max_sources;
    opts.max_replays = ingest->opts.max_replays;
    opts.batch = ingest->opts.batch;
    callbacks.on_batch = kve_ingest_on_batch;
    callbacks.on_notice = kve_ingest_on_notice;
    callbacks.ctx = ingest;
    return kve_sub_create(context, &opts, &callbacks, &ingest->sub, err);
}

kve_status
kve_ingest_create(kve_context *context, kve_index *index,
    const struct kve_ingest_opts *given, struct kve_ingest **ret_ingest,
    struct kve_error *err)
{
    struct kve_ingest_opts opts;
    struct kve_ingest *ingest = NULL;
    kve_status status = read_opts(given, &opts, err);

    if (status == KVE_OK && index == NULL)
        status = kve_fail(err, KVE_E_INVAL, "index is missing");
    if (status != KVE_OK)
        return status;
    ingest = kve_mem_zalloc(1, sizeof(*ingest));
    if (ingest == NULL)
        return kve_fail_nomem(err, "an ingest");
    ingest->index = index;
    ingest->opts = opts;
    ingest->pid = getpid();
    status = init_locks(ingest, err);
    if (status == KVE_OK)
        status = create_subscriber(ingest, context, err);
    if (status == KVE_OK)
        status = start_keeper(ingest, err);
    if (status == KVE_OK) {
        *ret_ingest = ingest;
        ingest = NULL;
    }
    kve_ingest_destroy(ingest);
    return status;
}

/* Nobody else is here any more. The index keeps what it holds. */
static void
free_registry(struct kve_ingest *ingest)
{
    /* Streams are held by their parents too. */
    for (size_t i = 0; i < ingest->n_entries; i++)
        kve_streams_release(ingest->entries[i]);
    for (size_t i = 0; i < ingest->rows.cap; i++)
        if (ingest->rows.slots[i].instance != 0)
            kve_registry_worker_unref(ingest, ingest->rows.slots[i].worker);
    for (size_t i = 0; i < ingest->n_entries; i++)
        kve_entry_unref(ingest->entries[i]);
    kve_mem_free(ingest->rows.slots);
    kve_mem_free(ingest->spaces);
    kve_mem_free(ingest->workers);
    kve_mem_free(ingest->entries);
}

static void
release_locks(struct kve_ingest *ingest)
{
    if (ingest->has_registry)
        (void)pthread_rwlock_destroy(&ingest->registry);
    if (ingest->has_keep)
        (void)pthread_cond_destroy(&ingest->keep);
    if (ingest->has_keeping)
        (void)pthread_mutex_destroy(&ingest->keeping);
    if (ingest->has_opened)
        (void)pthread_cond_destroy(&ingest->opened);
    if (ingest->has_gate)
        (void)pthread_mutex_destroy(&ingest->gate);
    if (ingest->has_changing)
        (void)pthread_mutex_destroy(&ingest->changing);
}

void
kve_ingest_destroy(struct kve_ingest *ingest)
{
    bool forked;

    if (ingest == NULL)
        return;
    forked = is_forked(ingest);
    if (!forked)
        stop_keeper(ingest);
    else if (ingest->has_registry)
        (void)init_registry(ingest);
    kve_sub_destroy(ingest->sub);
    if (ingest->has_registry) {
        free_registry(ingest);
        kve_ingest_free_lines(ingest);
    }
    if (!forked)
        release_locks(ingest);
    kve_mem_free(ingest);
}
