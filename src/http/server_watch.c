/*
 * server_watch.c - requests that do not come to their end.
 *
 * The library's time-out is of inactivity: a byte now and then keeps a header
 * or a body open for ever. Here a request has so long from its first byte to
 * its last one. The library tells us of a request when its first line is
 * complete; bytes before that are seen in the kernel's count of what the
 * connection received (TCP_INFO), which is asked at each walk for those
 * connections only that are not being answered:
 *
 *   walk:  idle, n bytes --> idle, more bytes: the next request began then
 *          idle, its clock ran out             : shut down
 *          coming, its clock ran out           : shut down
 *          idle or coming, and the client has
 *          closed its half since the last walk : shut down
 *
 * Shutting the socket down makes the library close it; that takes the lock of
 * the connection's list first, so that the descriptor is the connection's as
 * long as we hold it. A connection that never sent a byte is the inactivity's.
 * With TLS the handshake's bytes count as the first request's.
 */
#include "http/live.h"
#include "http/server_parts.h"

#include "base/clock.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

/* TCP_INFO as the kernel has it; the C library's is older. */
struct tcp_state {
    uint8_t state;
    uint8_t flags[7];
    uint32_t numbers[24];
    uint64_t rates[2];
    uint64_t bytes_acked;
    uint64_t bytes_received;
};

static bool
ask_kernel(int fd, struct tcp_state *ret)
{
    socklen_t len = sizeof(*ret);

    memset(ret, 0, sizeof(*ret));
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, ret, &len) == 0 &&
        len == sizeof(*ret);
}

/* The other side has closed its half, and all it sent was read. */
static bool
is_over(int fd, const struct tcp_state *tcp)
{
    int waiting = 0;

    return tcp->state == TCP_CLOSE_WAIT && ioctl(fd, SIOCINQ, &waiting) == 0 &&
        waiting == 0;
}

static void
cut(struct kve_conn *conn, const char *what)
{
    struct kve_server *server = conn->server;

    conn->cut = true;
    (void)shutdown(conn->fd, SHUT_RDWR);
    kve_http_count(server->http, KVE_COUNTER_HTTP_SLOW, 1);
    kve_server_say(server, KVE_SERVER_LOG_SLOW, KVE_LOG_WARNING,
        "connection of %s cut: %s was not complete after %u ms", conn->name,
        what, server->http->opts.request_time_ms);
}

/* Between two requests: has the next one begun, and when? */
static void
watch_idle(struct kve_conn *conn, uint64_t mark, const struct tcp_state *tcp,
    int64_t now, int64_t limit)
{
    if (atomic_load_explicit(&conn->early_mark, memory_order_relaxed) == mark) {
        int64_t since =
            atomic_load_explicit(&conn->early_since, memory_order_relaxed);

        if (now - since > limit &&
            atomic_load_explicit(&conn->mark, memory_order_acquire) == mark)
            cut(conn, "a request's header");
    } else if (tcp->bytes_received > conn->seen_bytes) {
        atomic_store_explicit(
            &conn->early_since, conn->seen_at, memory_order_relaxed);
        atomic_store_explicit(&conn->early_mark, mark, memory_order_release);
    } else {
        conn->seen_at = now;
    }
}

static void
watch(struct kve_conn *conn, int64_t now, int64_t limit)
{
    uint64_t mark = atomic_load_explicit(&conn->mark, memory_order_acquire);
    struct tcp_state tcp;

    if (conn->cut || KVE_MARK_PHASE(mark) == KVE_PHASE_ANSWER)
        return;
    if (KVE_MARK_PHASE(mark) == KVE_PHASE_COMING &&
        now - atomic_load_explicit(&conn->since, memory_order_relaxed) >
            limit &&
        atomic_load_explicit(&conn->mark, memory_order_acquire) == mark) {
        cut(conn, "a request");
        return;
    }
    if (!ask_kernel(conn->fd, &tcp))
        return;
    if (mark != conn->seen_mark) {
        conn->seen_mark = mark;
        conn->seen_bytes = tcp.bytes_received;
        conn->seen_at = now;
    } else if (is_over(conn->fd, &tcp)) {
        /* The library read the last bytes and the end in one go, and waits for
         * an event that does not come. */
        conn->cut = true;
        (void)shutdown(conn->fd, SHUT_RDWR);
    } else if (KVE_MARK_PHASE(mark) == KVE_PHASE_IDLE) {
        watch_idle(conn, mark, &tcp, now, limit);
    }
}

static void
walk(struct kve_server *server, int64_t now)
{
    int64_t limit = (int64_t)server->http->opts.request_time_ms * KVE_MS;

    for (unsigned i = 0; i < KVE_SERVER_SHARDS; i++) {
        struct kve_server_shard *shard = &server->shards[i];

        (void)pthread_mutex_lock(&shard->lock);
        for (struct kve_conn *conn = shard->first; conn != NULL;
             conn = conn->next)
            watch(conn, now, limit);
        (void)pthread_mutex_unlock(&shard->lock);
    }
}

void
kve_server_close_idle(struct kve_server *server)
{
    for (unsigned i = 0; i < KVE_SERVER_SHARDS; i++) {
        struct kve_server_shard *shard = &server->shards[i];

        (void)pthread_mutex_lock(&shard->lock);
        for (struct kve_conn *conn = shard->first; conn != NULL;
             conn = conn->next) {
            uint64_t mark =
                atomic_load_explicit(&conn->mark, memory_order_acquire);
            int waiting = 0;

            if (KVE_MARK_PHASE(mark) == KVE_PHASE_IDLE &&
                ioctl(conn->fd, SIOCINQ, &waiting) == 0 && waiting == 0)
                (void)shutdown(conn->fd, SHUT_RDWR);
        }
        (void)pthread_mutex_unlock(&shard->lock);
    }
}

/* ---- the thread ---- */

static int64_t
pace(const struct kve_server *server)
{
    int64_t ms = server->http->opts.request_time_ms / 8;

    if (ms < 10)
        ms = 10;
    return (ms > 250 ? 250 : ms) * KVE_MS;
}

static void *
run(void *arg)
{
    struct kve_server *server = arg;
    struct timespec at;

    (void)pthread_mutex_lock(&server->watch_lock);
    while (!server->watch_stop) {
        int64_t next = kve_now_ns() + pace(server);

        at.tv_sec = (time_t)(next / 1000000000);
        at.tv_nsec = (long)(next % 1000000000);
        if (pthread_cond_timedwait(
                &server->watch_cond, &server->watch_lock, &at) != ETIMEDOUT)
            continue;
        (void)pthread_mutex_unlock(&server->watch_lock);
        int64_t now = kve_now_ns();
        walk(server, now);
        if (server->http->live != NULL)
            kve_live_tick(server->http, now);
        (void)pthread_mutex_lock(&server->watch_lock);
    }
    (void)pthread_mutex_unlock(&server->watch_lock);
    return NULL;
}

bool
kve_server_watch_start(struct kve_server *server)
{
    server->watching = pthread_create(&server->watch, NULL, run, server) == 0;
    return server->watching;
}

void
kve_server_watch_stop(struct kve_server *server)
{
    if (!server->watching)
        return;
    (void)pthread_mutex_lock(&server->watch_lock);
    server->watch_stop = true;
    (void)pthread_cond_signal(&server->watch_cond);
    (void)pthread_mutex_unlock(&server->watch_lock);
    (void)pthread_join(server->watch, NULL);
    server->watching = false;
}
