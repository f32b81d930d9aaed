/*
 * context.c - see context.h and kvevents/context.h.
 *
 * Fork. A child inherits memory and descriptors but none of the threads, so
 * every call into the socket library could wait for ever. A process-wide
 * generation, counted up in every child, tells whose a context is. In a child
 * a context is not ended but parked on a list: its memory stays reachable and
 * its descriptors stay open until the child ends or calls exec().
 */
#include "transport/context.h"

#include "transport/resolve.h"
#include "transport/zap.h"

#include "base/alloc.h"
#include "base/status.h"

#include <kvevents/version.h>

#include <zmq.h>

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#define DEFAULT_SOURCES 256
#define MAX_SOURCES 1000000
#define MAX_IO_THREADS 64

/* What a source can need at a time: live socket, its monitor (two ends),
 * request socket and, while a name has several addresses, its monitor. */
#define SOCKETS_A_SOURCE 6
#define FDS_A_SOURCE 10
#define SPARE_SOCKETS 32
#define SPARE_FDS 128

/* The size of the first release's structure. */
#define CONTEXT_OPTS_MIN \
    (offsetof(struct kve_context_opts, curve_allow) + sizeof(char *))

struct kve_context {
    atomic_uint refs;
    unsigned generation;
    void *zmq;
    bool own_zmq;
    bool apart; /* the last I/O thread is kept for who asks for it */
    kve_log_fn *log;
    void *log_ctx;
    struct kve_zap *zap;
    pthread_mutex_t mutex; /* of resolver, until it is there */
    struct kve_resolver *resolver;
    struct kve_context *parked; /* next on the list, in a child */
};

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static atomic_uint generation;
static struct kve_context *parked_contexts;

static void
count_generation(void)
{
    atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
}

static void
register_fork_handler(void)
{
    (void)pthread_atfork(NULL, NULL, count_generation);
}

bool
kve_context_forked(const kve_context *context)
{
    return context->generation !=
        atomic_load_explicit(&generation, memory_order_relaxed);
}

static char zmq_version_text[40];

static void
write_zmq_version(void)
{
    int major;
    int minor;
    int patch;

    zmq_version(&major, &minor, &patch);
    (void)snprintf(zmq_version_text, sizeof(zmq_version_text), "%d.%d.%d",
        major, minor, patch);
}

const char *
kve_zmq_version(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, write_zmq_version);
    return zmq_version_text;
}

void
kve_context_log(
    kve_context *context, enum kve_log_level level, const char *fmt, ...)
{
    char line[512];
    va_list ap;

    if (context->log == NULL)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    for (char *c = line; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    context->log(context->log_ctx, level, line);
}

/* Raise the soft limit of descriptors towards need. */
static void
raise_fd_limit(kve_context *context, uint64_t need)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= need)
        return;

    uint64_t before = limit.rlim_cur;
    limit.rlim_cur = need < limit.rlim_max ? need : limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < need)
        kve_context_log(context, KVE_LOG_WARNING,
            "%llu open files are allowed (%llu before), %llu can be needed; "
            "raise the hard limit (ulimit -Hn)",
            (unsigned long long)limit.rlim_cur, (unsigned long long)before,
            (unsigned long long)need);
}

static kve_status
create_zmq(kve_context *context, uint32_t io_threads, uint32_t sources,
    struct kve_error *err)
{
    uint64_t sockets = (uint64_t)sources * SOCKETS_A_SOURCE + SPARE_SOCKETS;

    context->zmq = zmq_ctx_new();
    if (context->zmq == NULL)
        return kve_fail(
            err, KVE_E_SYSTEM, "ZeroMQ context: %s", zmq_strerror(errno));
    context->own_zmq = true;

    int most = zmq_ctx_get(context->zmq, ZMQ_SOCKET_LIMIT);
    if (most > 0 && sockets > (uint64_t)most) {
        kve_context_log(context, KVE_LOG_WARNING,
            "max_sources %lu can need %llu sockets; this ZeroMQ library "
            "allows %d",
            (unsigned long)sources, (unsigned long long)sockets, most);
        sockets = (uint64_t)most;
    }
    if (zmq_ctx_set(context->zmq, ZMQ_MAX_SOCKETS, (int)sockets) != 0 ||
        zmq_ctx_set(context->zmq, ZMQ_IO_THREADS, (int)io_threads) != 0 ||
        zmq_ctx_set(context->zmq, ZMQ_BLOCKY, 0) != 0)
        return kve_fail(err, KVE_E_SYSTEM, "options of ZeroMQ context: %s",
            zmq_strerror(errno));
    raise_fd_limit(context, (uint64_t)sources * FDS_A_SOURCE + SPARE_FDS);
    return KVE_OK;
}

/* The last reference is gone, in the process that made it. */
static void
end_context(kve_context *context)
{
    kve_resolver_destroy(context->resolver);
    kve_zap_stop(context->zap);
    if (context->own_zmq && context->zmq != NULL)
        while (zmq_ctx_term(context->zmq) != 0 && errno == EINTR)
            continue;
    (void)pthread_mutex_destroy(&context->mutex);
    kve_mem_free(context);
}

static kve_status
check_opts(const struct kve_context_opts *opts, struct kve_error *err)
{
    if (opts->io_threads > MAX_IO_THREADS)
        return kve_fail(err, KVE_E_INVAL,
            "io_threads is %lu; 1..%d are accepted",
            (unsigned long)opts->io_threads, MAX_IO_THREADS);
    if (opts->max_sources > MAX_SOURCES)
        return kve_fail(err, KVE_E_INVAL,
            "max_sources is %lu; 1..%d are accepted",
            (unsigned long)opts->max_sources, MAX_SOURCES);
    if (opts->zmq_context != NULL && opts->io_threads != 0)
        return kve_fail(err, KVE_E_INVAL,
            "io_threads is for our own ZeroMQ context; set it on the one "
            "given as zmq_context");
    return KVE_OK;
}

void
kve_context_opts_init(struct kve_context_opts *opts)
{
    *opts = (struct kve_context_opts)KVE_CONTEXT_OPTS_INIT;
}

kve_status
kve_context_create(const struct kve_context_opts *given,
    kve_context **ret_context, struct kve_error *err)
{
    struct kve_context_opts opts;
    kve_context *context = NULL;
    kve_status status = kve_opts_read(
        given, CONTEXT_OPTS_MIN, &opts, sizeof(opts), "kve_context_opts", err);

    if (status == KVE_OK)
        status = check_opts(&opts, err);
    if (status != KVE_OK)
        return status;

    (void)pthread_once(&fork_once, register_fork_handler);
    context = kve_mem_zalloc(1, sizeof(*context));
    if (context == NULL)
        return kve_fail_nomem(err, "context");
    atomic_init(&context->refs, 1);
    context->generation =
        atomic_load_explicit(&generation, memory_order_relaxed);
    (void)pthread_mutex_init(&context->mutex, NULL);
    context->log = opts.log;
    context->log_ctx = opts.log_ctx;

    if (opts.zmq_context != NULL)
        context->zmq = opts.zmq_context;
    else
        status = create_zmq(context, opts.io_threads > 0 ? opts.io_threads : 1,
            opts.max_sources > 0 ? opts.max_sources : DEFAULT_SOURCES, err);
    if (status == KVE_OK && opts.curve_allow != NULL)
        status =
            kve_zap_start(context->zmq, opts.curve_allow, &context->zap, err);
    if (status == KVE_OK) {
        *ret_context = context;
        context = NULL;
    }
    if (context != NULL)
        end_context(context);
    return status;
}

void
kve_context_destroy(kve_context *context)
{
    kve_context_unref(context);
}

kve_status
kve_context_ref(kve_context *context, uint32_t sources,
    kve_context **ret_context, struct kve_error *err)
{
    struct kve_context_opts opts = KVE_CONTEXT_OPTS_INIT;

    if (context == NULL) {
        opts.max_sources = sources;
        return kve_context_create(&opts, ret_context, err);
    }
    if (kve_context_forked(context))
        return kve_fail(err, KVE_E_FORKED,
            "the context was made by the parent process; make a new one");
    atomic_fetch_add_explicit(&context->refs, 1, memory_order_relaxed);
    *ret_context = context;
    return KVE_OK;
}

kve_status
kve_context_ref_apart(kve_context *context, uint32_t sources,
    kve_context **ret_context, struct kve_error *err)
{
    struct kve_context_opts opts = KVE_CONTEXT_OPTS_INIT;
    kve_status status;

    if (context != NULL)
        return kve_context_ref(context, sources, ret_context, err);
    opts.max_sources = sources;
    opts.io_threads = 2;
    status = kve_context_create(&opts, ret_context, err);
    if (status == KVE_OK)
        (*ret_context)->apart = true;
    return status;
}

bool
kve_context_keeps_apart(const kve_context *context)
{
    return context->apart;
}

unsigned
kve_context_io_threads(kve_context *context)
{
    int n = zmq_ctx_get(context->zmq, ZMQ_IO_THREADS);

    return n > 0 ? (unsigned)n : 1;
}

void
kve_context_unref(kve_context *context)
{
    if (context == NULL ||
        atomic_fetch_sub_explicit(&context->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (!kve_context_forked(context)) {
        end_context(context);
        return;
    }
    context->parked = parked_contexts;
    parked_contexts = context;
}

void *
kve_context_zmq(kve_context *context)
{
    return context->zmq;
}

struct kve_resolver *
kve_context_resolver(kve_context *context)
{
    (void)pthread_mutex_lock(&context->mutex);
    if (context->resolver == NULL)
        context->resolver = kve_resolver_create();
    struct kve_resolver *resolver = context->resolver;
    (void)pthread_mutex_unlock(&context->mutex);
    return resolver;
}
