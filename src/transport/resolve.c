/*
 * resolve.c - see resolve.h.
 *
 * One mutex guards everything; it is never held during a look-up.
 */
#include "transport/resolve.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* How long destroying waits for look-ups that are under way. */
#define DESTROY_WAIT_MS 100

/* One name that is being looked up, and who waits for it. */
struct job {
    struct job *next;
    struct kve_lookup *waiting;
    bool running;
    char host[256];
};

struct kve_lookup {
    struct kve_resolver *resolver;
    struct job *job;         /* NULL: answered */
    struct kve_lookup *next; /* of the job */
    int fd;
    struct kve_addrs addrs;
    char why[120];
};

struct kve_resolver {
    pthread_mutex_t mutex;
    pthread_cond_t work;   /* a job, or the end */
    pthread_cond_t change; /* a worker left */
    struct job *jobs;      /* running ones and, behind them, waiting ones */
    unsigned refs;         /* the owner's and one for each worker */
    unsigned workers;
    unsigned idle;
    bool stopping;
    kve_resolve_fn *fn;
    void *fn_ctx;
};

static int
system_lookup(void *ctx, const char *host, struct kve_addrs *ret_addrs,
    char *ret_why, size_t why_cap)
{
    struct addrinfo hints = { .ai_family = AF_UNSPEC,
        .ai_socktype = SOCK_STREAM };
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(host, NULL, &hints, &list);

    (void)ctx;
    if (rc != 0) {
        (void)snprintf(ret_why, why_cap, "%s",
            rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
        return -1;
    }
    ret_addrs->n = 0;
    for (const struct addrinfo *a = list;
         a != NULL && ret_addrs->n < KVE_ADDRS_MAX; a = a->ai_next) {
        char *text = ret_addrs->text[ret_addrs->n];
        char host_text[64];

        if (a->ai_family != AF_INET && a->ai_family != AF_INET6)
            continue;
        if (getnameinfo(a->ai_addr, a->ai_addrlen, host_text, sizeof(host_text),
                NULL, 0, NI_NUMERICHOST) != 0)
            continue;
        (void)snprintf(text, sizeof(ret_addrs->text[0]),
            a->ai_family == AF_INET6 ? "[%s]" : "%s", host_text);
        ret_addrs->n++;
    }
    freeaddrinfo(list);
    if (ret_addrs->n > 0)
        return 0;
    (void)snprintf(ret_why, why_cap, "the name has no IP address");
    return -1;
}

static void
free_resolver(struct kve_resolver *resolver)
{
    (void)pthread_cond_destroy(&resolver->change);
    (void)pthread_cond_destroy(&resolver->work);
    (void)pthread_mutex_destroy(&resolver->mutex);
    kve_mem_free(resolver);
}

/* The first job nobody works at. */
static struct job *
waiting_job(const struct kve_resolver *resolver)
{
    struct job *job = resolver->jobs;

    while (job != NULL && job->running)
        job = job->next;
    return job;
}

static void
unlink_job(struct kve_resolver *resolver, struct job *job)
{
    struct job **at = &resolver->jobs;

    while (*at != job)
        at = &(*at)->next;
    *at = job->next;
}

/* Tell everyone who waits for job. */
static void
answer(struct job *job, int rc, const struct kve_addrs *addrs, const char *why)
{
    static const uint64_t one = 1;

    for (struct kve_lookup *l = job->waiting; l != NULL; l = l->next) {
        l->job = NULL;
        if (rc == 0)
            l->addrs = *addrs;
        else
            (void)snprintf(l->why, sizeof(l->why), "%s", why);
        /* Only a full counter can refuse, and then the fd is readable. */
        (void)!write(l->fd, &one, sizeof(one));
    }
    job->waiting = NULL;
}

static void
run_job(struct kve_resolver *resolver, struct job *job)
{
    struct kve_addrs addrs = { 0 };
    char why[120] = "";
    kve_resolve_fn *fn = resolver->fn;
    void *ctx = resolver->fn_ctx;

    job->running = true;
    (void)pthread_mutex_unlock(&resolver->mutex);
    int rc = fn(ctx, job->host, &addrs, why, sizeof(why));
    (void)pthread_mutex_lock(&resolver->mutex);

    answer(job, rc, &addrs, why);
    unlink_job(resolver, job);
    kve_mem_free(job);
}

static void *
work(void *arg)
{
    struct kve_resolver *resolver = arg;
    bool last;

    (void)pthread_mutex_lock(&resolver->mutex);
    while (!resolver->stopping) {
        struct job *job = waiting_job(resolver);

        if (job != NULL) {
            run_job(resolver, job);
            continue;
        }
        resolver->idle++;
        (void)pthread_cond_wait(&resolver->work, &resolver->mutex);
        resolver->idle--;
    }
    resolver->workers--;
    last = --resolver->refs == 0;
    (void)pthread_cond_broadcast(&resolver->change);
    (void)pthread_mutex_unlock(&resolver->mutex);
    if (last)
        free_resolver(resolver);
    return NULL;
}

/* A detached thread with every signal blocked: signals are the program's. */
static int
start_worker(struct kve_resolver *resolver)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all;
    sigset_t before;
    int rc = pthread_attr_init(&attr);

    if (rc != 0)
        return rc;
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    rc = pthread_create(&thread, &attr, work, resolver);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attr);
    if (rc == 0) {
        resolver->workers++;
        resolver->refs++;
    }
    return rc;
}

struct kve_resolver *
kve_resolver_create(void)
{
    struct kve_resolver *resolver = kve_mem_zalloc(1, sizeof(*resolver));
    pthread_condattr_t attr;

    if (resolver == NULL)
        return NULL;
    resolver->refs = 1;
    resolver->fn = system_lookup;
    (void)pthread_mutex_init(&resolver->mutex, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&resolver->work, &attr);
    (void)pthread_cond_init(&resolver->change, &attr);
    (void)pthread_condattr_destroy(&attr);
    return resolver;
}

void
kve_resolver_set_fn(
    struct kve_resolver *resolver, kve_resolve_fn *fn, void *ctx)
{
    (void)pthread_mutex_lock(&resolver->mutex);
    resolver->fn = fn;
    resolver->fn_ctx = ctx;
    (void)pthread_mutex_unlock(&resolver->mutex);
}

/* Jobs nobody has begun and nobody will. */
static void
drop_waiting_jobs(struct kve_resolver *resolver)
{
    for (struct job *job; (job = waiting_job(resolver)) != NULL;) {
        answer(job, -1, NULL, "the context ends");
        unlink_job(resolver, job);
        kve_mem_free(job);
    }
}

void
kve_resolver_destroy(struct kve_resolver *resolver)
{
    bool last;

    if (resolver == NULL)
        return;

    int64_t until = kve_now_ns() + DESTROY_WAIT_MS * KVE_MS;
    struct timespec at = { .tv_sec = until / 1000000000,
        .tv_nsec = until % 1000000000 };

    (void)pthread_mutex_lock(&resolver->mutex);
    resolver->stopping = true;
    drop_waiting_jobs(resolver);
    (void)pthread_cond_broadcast(&resolver->work);
    while (resolver->workers > 0 &&
        pthread_cond_timedwait(&resolver->change, &resolver->mutex, &at) == 0)
        continue;
    last = --resolver->refs == 0;
    (void)pthread_mutex_unlock(&resolver->mutex);
    if (last)
        free_resolver(resolver);
}

/* The job for host, begun or not, or a new one. */
static struct job *
find_job(struct kve_resolver *resolver, const char *host)
{
    struct job **at = &resolver->jobs;

    for (; *at != NULL; at = &(*at)->next)
        if (strcasecmp((*at)->host, host) == 0)
            return *at;

    struct job *job = kve_mem_zalloc(1, sizeof(*job));
    if (job == NULL)
        return NULL;
    (void)snprintf(job->host, sizeof(job->host), "%s", host);
    *at = job;
    return job;
}

static unsigned
count_waiting_jobs(const struct kve_resolver *resolver)
{
    unsigned n = 0;

    for (const struct job *job = resolver->jobs; job != NULL; job = job->next)
        n += job->running ? 0 : 1;
    return n;
}

/* One job more waits: wake a worker for it, or start one when those that are
 * idle have a job each already. */
static int
hand_out(struct kve_resolver *resolver)
{
    int rc;

    if (resolver->idle >= count_waiting_jobs(resolver)) {
        (void)pthread_cond_signal(&resolver->work);
        return 0;
    }
    if (resolver->workers >= KVE_RESOLVE_WORKERS)
        return 0;
    rc = start_worker(resolver);
    return resolver->workers > 0 ? 0 : rc;
}

kve_status
kve_lookup_start(struct kve_resolver *resolver, const char *host, int fd,
    struct kve_lookup **ret_lookup, struct kve_error *err)
{
    struct kve_lookup *lookup = kve_mem_zalloc(1, sizeof(*lookup));
    kve_status status = KVE_OK;

    if (lookup == NULL)
        return kve_fail_nomem(err, "name look-up");

    (void)pthread_mutex_lock(&resolver->mutex);
    struct job *job = find_job(resolver, host);
    if (job == NULL) {
        status = kve_fail_nomem(err, "name look-up");
        goto out;
    }
    if (!job->running && job->waiting == NULL) {
        errno = hand_out(resolver);
        if (errno != 0) {
            status = kve_fail(err, KVE_E_SYSTEM,
                "cannot start a thread to look up '%s': %s", host,
                strerror(errno));
            unlink_job(resolver, job);
            kve_mem_free(job);
            goto out;
        }
    }
    lookup->resolver = resolver;
    lookup->job = job;
    lookup->fd = fd;
    lookup->next = job->waiting;
    job->waiting = lookup;
    *ret_lookup = lookup;
    lookup = NULL;

out:
    (void)pthread_mutex_unlock(&resolver->mutex);
    kve_mem_free(lookup);
    return status;
}

bool
kve_lookup_done(struct kve_lookup *lookup, struct kve_addrs *ret_addrs,
    char *ret_why, size_t why_cap)
{
    struct kve_resolver *resolver = lookup->resolver;

    (void)pthread_mutex_lock(&resolver->mutex);
    bool done = lookup->job == NULL;
    if (done) {
        *ret_addrs = lookup->addrs;
        (void)snprintf(ret_why, why_cap, "%s", lookup->why);
    }
    (void)pthread_mutex_unlock(&resolver->mutex);
    return done;
}

void
kve_lookup_end(struct kve_lookup *lookup)
{
    if (lookup == NULL)
        return;

    struct kve_resolver *resolver = lookup->resolver;

    (void)pthread_mutex_lock(&resolver->mutex);
    if (lookup->job != NULL) {
        struct kve_lookup **at = &lookup->job->waiting;

        while (*at != lookup)
            at = &(*at)->next;
        *at = lookup->next;
    }
    (void)pthread_mutex_unlock(&resolver->mutex);
    kve_mem_free(lookup);
}
