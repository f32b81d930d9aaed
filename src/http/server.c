/*
 * server.c - the server's life: start, reload, drain, end.
 */
#include "http/server.h"

#include "http/live.h"
#include "http/server_listen.h"
#include "http/server_parts.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LOG_EVERY (10000 * KVE_MS)
/* Of a connection, in the library's pool: the header, its table, and the piece
 * of the body that is read at once. A header that does not fit: 431 or 414. */
#define CONNECTION_MEMORY ((size_t)32 * 1024)

void
kve_server_say(struct kve_server *server, enum kve_server_log kind,
    enum kve_log_level level, const char *fmt, ...)
{
    const struct kve_service_opts *opts = &server->http->opts;
    int64_t now = kve_now_ns();
    uint64_t unlogged = 0;
    bool say = false;
    char line[400];
    size_t len;
    va_list ap;

    if (opts->log == NULL)
        return;
    (void)pthread_mutex_lock(&server->lock);
    if (server->logged_ns[kind] == 0 ||
        now - server->logged_ns[kind] >= LOG_EVERY) {
        say = true;
        unlogged = server->unlogged[kind];
        server->unlogged[kind] = 0;
        server->logged_ns[kind] = now;
    } else {
        server->unlogged[kind]++;
    }
    (void)pthread_mutex_unlock(&server->lock);
    if (!say)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof(line) - 64, fmt, ap);
    va_end(ap);
    len = strlen(line);
    if (unlogged != 0)
        (void)snprintf(line + len, sizeof(line) - len,
            " (and %llu more like it before)", (unsigned long long)unlogged);
    opts->log(opts->log_ctx, level, line);
}

/* What the library has to say: kept for the error of a failed start, and said
 * as other lines are. */
static void
library_log(void *cls, const char *fmt, va_list ap)
{
    struct kve_server *server = cls;
    char line[160];

    (void)vsnprintf(line, sizeof(line), fmt, ap);
    line[strcspn(line, "\r\n")] = '\0';
    if (!atomic_load_explicit(&server->started, memory_order_acquire))
        (void)snprintf(
            server->start_error, sizeof(server->start_error), "%s", line);
    else
        kve_server_say(server, KVE_SERVER_LOG_LIBRARY, KVE_LOG_DEBUG,
            "libmicrohttpd: %s", line);
}

static unsigned
flags_of(const struct kve_server *server, bool inet6)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
        MHD_USE_TURBO | MHD_USE_ERROR_LOG;

    if (inet6)
        flags |= MHD_USE_IPv6;
    if (server->tls != NULL)
        flags |= MHD_USE_TLS;
    return flags;
}

static kve_status
start(struct kve_server *server, const struct kve_listen *listen,
    struct kve_error *err)
{
    const struct kve_service_opts *opts = &server->http->opts;
    struct MHD_OptionItem options[16];
    unsigned n = 0;
    struct MHD_Daemon *daemon;

#define OPTION(what, number, pointer) \
    options[n++] = (struct MHD_OptionItem){ (what), (number), (pointer) }
    OPTION(
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (intptr_t)CONNECTION_MEMORY, NULL);
    /* The limit is ours; the library splits its own among the threads. */
    OPTION(MHD_OPTION_CONNECTION_LIMIT,
        (intptr_t)(opts->max_connections + 16) * opts->threads, NULL);
    OPTION(MHD_OPTION_CONNECTION_TIMEOUT,
        (intptr_t)(opts->idle_time_ms + 999) / 1000, NULL);
    OPTION(MHD_OPTION_STRICT_FOR_CLIENT, 1, NULL);
    if (opts->threads > 1)
        OPTION(MHD_OPTION_THREAD_POOL_SIZE, (intptr_t)opts->threads, NULL);
    if (server->tls != NULL) {
        OPTION(MHD_OPTION_HTTPS_CERT_CALLBACK, 0, kve_tls_callback());
        OPTION(MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)KVE_TLS_PRIORITIES);
    }
    OPTION(MHD_OPTION_END, 0, NULL);
#undef OPTION
    daemon = MHD_start_daemon(flags_of(server, listen->inet6), 0,
        kve_server_admit, server, kve_server_handle, server,
        MHD_OPTION_EXTERNAL_LOGGER, library_log, server,
        MHD_OPTION_LISTEN_SOCKET, listen->fd, MHD_OPTION_NOTIFY_CONNECTION,
        kve_server_connection, server, MHD_OPTION_NOTIFY_COMPLETED,
        kve_server_completed, server, MHD_OPTION_URI_LOG_CALLBACK,
        kve_server_uri, server, MHD_OPTION_ARRAY, options, MHD_OPTION_END);
    if (daemon == NULL) {
        /* With a pool the library has closed the socket, and its number may
         * be somebody else's by now. Without one it has not. */
        if (opts->threads > 1)
            server->listen_fd = -1;
        return kve_fail(err, KVE_E_SYSTEM,
            "the HTTP server did not start: %s; is there memory for %u "
            "threads, and are descriptors left?",
            server->start_error[0] != '\0' ? server->start_error
                                           : "no reason given",
            opts->threads);
    }
    server->daemon = daemon;
    atomic_store_explicit(&server->started, true, memory_order_release);
    return KVE_OK;
}

static bool
init_locks(struct kve_server *server)
{
    pthread_condattr_t attr;

    for (unsigned i = 0; i < KVE_SERVER_SHARDS; i++)
        if (pthread_mutex_init(&server->shards[i].lock, NULL) != 0)
            return false;
    if (pthread_mutex_init(&server->lock, NULL) != 0 ||
        pthread_mutex_init(&server->watch_lock, NULL) != 0 ||
        pthread_condattr_init(&attr) != 0)
        return false;
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    bool fine = pthread_cond_init(&server->watch_cond, &attr) == 0;
    (void)pthread_condattr_destroy(&attr);
    return fine;
}

static kve_status
prepare(struct kve_server *server, const struct kve_http_route *const *tables,
    struct kve_error *err)
{
    const struct kve_service_opts *opts = &server->http->opts;
    kve_status status = KVE_OK;

    server->body_bytes_max = opts->max_body > KVE_SERVER_BODIES_MAX / 8
        ? opts->max_body * 8
        : KVE_SERVER_BODIES_MAX;
    server->router = kve_router_create(tables, opts->test_endpoints);
    server->clients = kve_clients_create(opts->max_connections,
        opts->max_client_connections, opts->max_requests);
    if (server->router == NULL || server->clients == NULL)
        return kve_fail_nomem(err, "HTTP server");
    if (opts->token_file != NULL)
        status = kve_auth_create(opts->token_file, &server->auth, err);
    if (status == KVE_OK && opts->tls_cert != NULL)
        status = kve_tls_create(opts->tls_cert, opts->tls_key,
            opts->request_time_ms, &server->tls, err);
    return status;
}

static void
warn(struct kve_server *server, const struct kve_listen *listen)
{
    const struct kve_service_opts *opts = &server->http->opts;
    char line[300];

    if (listen->loopback || opts->log == NULL ||
        (server->auth != NULL && server->tls != NULL))
        return;
    (void)snprintf(line, sizeof(line),
        "listening on %s, which other machines reach, without %s: %s",
        opts->listen,
        server->auth == NULL && server->tls == NULL ? "a token and TLS"
            : server->auth == NULL                  ? "a token"
                                                    : "TLS",
        server->auth == NULL
            ? "whoever reaches it can ask for and change everything; give it "
              "a token file"
            : "tokens and prompts can be read on the way; give it a "
              "certificate");
    opts->log(opts->log_ctx, KVE_LOG_WARNING, line);
}

kve_status
kve_server_create(struct kve_http *http,
    const struct kve_http_route *const *tables, struct kve_error *err)
{
    struct kve_server *server = kve_mem_zalloc(1, sizeof(*server));
    struct kve_listen listen;
    kve_status status;

    if (server == NULL)
        return kve_fail_nomem(err, "HTTP server");
    server->http = http;
    server->listen_fd = -1;
    if (!init_locks(server)) {
        kve_mem_free(server);
        return kve_fail(err, KVE_E_SYSTEM, "no locks for the HTTP server");
    }
    http->server = server;
    status = prepare(server, tables, err);
    if (status != KVE_OK)
        goto fail;
    status = kve_listen_open(http->opts.listen, &listen, err);
    if (status != KVE_OK)
        goto fail;
    server->listen_fd = listen.fd;
    server->port = listen.port;
    status = start(server, &listen, err);
    if (status != KVE_OK)
        goto fail;
    if (!kve_server_watch_start(server)) {
        status = kve_fail(
            err, KVE_E_SYSTEM, "no thread for the HTTP server's watchdog");
        goto fail;
    }
    warn(server, &listen);
    return KVE_OK;

fail:
    kve_server_destroy(server);
    http->server = NULL;
    return status;
}

/* Nobody is accepted any more; the kernel refuses at once. */
static void
stop_listening(struct kve_server *server)
{
    if (server->daemon == NULL ||
        atomic_exchange_explicit(&server->draining, true, memory_order_acq_rel))
        return;
    (void)MHD_quiesce_daemon(server->daemon);
    (void)shutdown(server->listen_fd, SHUT_RDWR);
}

void
kve_server_drain(struct kve_server *server, uint32_t drain_ms)
{
    int64_t until = kve_now_ns() + (int64_t)drain_ms * KVE_MS;

    if (server->stopped)
        return;
    stop_listening(server);
    if (server->http->live != NULL)
        kve_live_close(server->http);
    while (server->daemon != NULL &&
        kve_clients_connections(server->clients) != 0) {
        struct timespec nap = { 0, 2000000 };

        kve_server_close_idle(server);
        if (kve_now_ns() >= until)
            break;
        (void)nanosleep(&nap, NULL);
    }
    kve_server_watch_stop(server);
    atomic_store_explicit(&server->ending, true, memory_order_release);
    kve_server_wake_all(server);
    if (server->daemon != NULL)
        MHD_stop_daemon(server->daemon);
    server->daemon = NULL;
    server->stopped = true;
    if (server->listen_fd >= 0)
        (void)close(server->listen_fd);
    server->listen_fd = -1;
}

void
kve_server_destroy(struct kve_server *server)
{
    if (server == NULL)
        return;
    kve_server_drain(server, 0);
    kve_server_threads_destroy(server);
    kve_router_destroy(server->router);
    kve_clients_destroy(server->clients);
    kve_auth_destroy(server->auth);
    kve_tls_destroy(server->tls);
    for (unsigned i = 0; i < KVE_SERVER_SHARDS; i++)
        (void)pthread_mutex_destroy(&server->shards[i].lock);
    (void)pthread_mutex_destroy(&server->lock);
    (void)pthread_mutex_destroy(&server->watch_lock);
    (void)pthread_cond_destroy(&server->watch_cond);
    kve_mem_free(server);
}

uint16_t
kve_server_port(const struct kve_server *server)
{
    return server->port;
}

kve_status
kve_server_reload(struct kve_server *server, struct kve_error *err)
{
    struct kve_error second;
    kve_status status = KVE_OK;
    kve_status other = KVE_OK;

    if (server->auth != NULL)
        status = kve_auth_reload(server->auth, err);
    if (server->tls != NULL)
        other = kve_tls_reload(server->tls, &second);
    if (status != KVE_OK || other == KVE_OK)
        return status;
    if (err != NULL)
        *err = second;
    return other;
}
