/*
 * server_conn.c - connections come and go; what a thread keeps for them.
 *
 * The library accepts on the thread that keeps the connection, and tells of it
 * there: the first time this makes what the thread owns. It is freed when the
 * threads are gone, by the server's end.
 */
#include "http/server_parts.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "wire/buffer.h"

#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

static _Thread_local struct kve_server_thread *mine;

static struct kve_server_thread *
make_thread(struct kve_server *server)
{
    struct kve_server_thread *thread = kve_mem_zalloc(1, sizeof(*thread));
    kve_index *index = server->http->index;

    if (thread == NULL)
        return NULL;
    thread->server = server;
    if (index != NULL &&
        kve_index_reader_create(index, &thread->reader, NULL) != KVE_OK) {
        kve_mem_free(thread);
        return NULL;
    }
    (void)pthread_mutex_lock(&server->lock);
    thread->next = server->threads;
    server->threads = thread;
    (void)pthread_mutex_unlock(&server->lock);
    return thread;
}

static struct kve_server_thread *
this_thread(struct kve_server *server)
{
    if (mine == NULL) {
        mine = make_thread(server);
        kve_tls_use(server->tls);
    }
    return mine;
}

void
kve_server_threads_destroy(struct kve_server *server)
{
    while (server->threads != NULL) {
        struct kve_server_thread *thread = server->threads;

        server->threads = thread->next;
        for (unsigned i = 0; i < thread->n_bodies; i++)
            kve_buffer_release(&thread->bodies[i]);
        kve_buffer_release(&thread->out);
        kve_scratch_release(&thread->scratch);
        kve_index_reader_destroy(thread->reader);
        kve_mem_free(thread);
    }
}

/* ---- bodies ---- */

void
kve_conn_drop_body(struct kve_conn *conn)
{
    struct kve_server_thread *thread = conn->thread;

    if (conn->charged != 0)
        atomic_fetch_sub_explicit(
            &conn->server->body_bytes, conn->charged, memory_order_relaxed);
    conn->charged = 0;
    if (conn->body.data == NULL)
        return;
    conn->body.len = 0;
    if (conn->body.cap <= KVE_SERVER_BODY_KEPT &&
        thread->n_bodies < KVE_SERVER_BODIES)
        thread->bodies[thread->n_bodies++] = conn->body;
    else
        kve_buffer_release(&conn->body);
    conn->body = (struct kve_buffer)KVE_BUFFER_INIT;
}

unsigned
kve_conn_grow_body(struct kve_conn *conn, size_t n)
{
    struct kve_server *server = conn->server;
    struct kve_server_thread *thread = conn->thread;
    size_t before;

    if (conn->body.data == NULL && thread->n_bodies > 0)
        conn->body = thread->bodies[--thread->n_bodies];
    conn->body.max = SIZE_MAX;
    if (conn->body.cap - conn->body.len <= n &&
        kve_buffer_reserve(&conn->body, n + 1, NULL) != KVE_OK)
        return MHD_HTTP_SERVICE_UNAVAILABLE;
    if (conn->body.cap == conn->charged)
        return 0;
    before = atomic_fetch_add_explicit(&server->body_bytes,
        conn->body.cap - conn->charged, memory_order_relaxed);
    conn->charged = conn->body.cap;
    return before > server->body_bytes_max ? MHD_HTTP_SERVICE_UNAVAILABLE : 0;
}

/* ---- connections ---- */

static struct kve_server_shard *
shard_of(struct kve_conn *conn)
{
    uintptr_t at = (uintptr_t)conn / sizeof(*conn);

    return &conn->server->shards[at % KVE_SERVER_SHARDS];
}

static void
link_conn(struct kve_conn *conn)
{
    struct kve_server_shard *shard = shard_of(conn);

    (void)pthread_mutex_lock(&shard->lock);
    conn->next = shard->first;
    if (shard->first != NULL)
        shard->first->prev = conn;
    shard->first = conn;
    (void)pthread_mutex_unlock(&shard->lock);
}

static void
unlink_conn(struct kve_conn *conn)
{
    struct kve_server_shard *shard = shard_of(conn);

    (void)pthread_mutex_lock(&shard->lock);
    if (conn->prev != NULL)
        conn->prev->next = conn->next;
    else
        shard->first = conn->next;
    if (conn->next != NULL)
        conn->next->prev = conn->prev;
    (void)pthread_mutex_unlock(&shard->lock);
}

static void
refused(struct kve_server *server, const struct sockaddr *address)
{
    char name[INET6_ADDRSTRLEN];

    kve_clients_name(address, name, sizeof(name));
    kve_http_count(server->http, KVE_COUNTER_HTTP_REFUSED, 1);
    kve_server_say(server, KVE_SERVER_LOG_REFUSED, KVE_LOG_WARNING,
        "connection of %s refused: %u connections are open, limits are %u in "
        "all and %u of one client (0: none)",
        name, kve_clients_connections(server->clients),
        server->http->opts.max_connections,
        server->http->opts.max_client_connections);
}

enum MHD_Result
kve_server_admit(void *cls, const struct sockaddr *address, socklen_t len)
{
    struct kve_server *server = cls;

    (void)len;
    if (kve_clients_accept(server->clients, address))
        return MHD_YES;
    refused(server, address);
    return MHD_NO;
}

static struct kve_conn *
make_conn(struct kve_server *server, struct MHD_Connection *mhd, int fd,
    const struct sockaddr *address)
{
    struct kve_server_thread *thread = this_thread(server);
    struct kve_conn *conn;

    if (thread == NULL)
        return NULL;
    conn = kve_mem_zalloc(1, sizeof(*conn));
    if (conn == NULL)
        return NULL;
    conn->client = kve_clients_enter(server->clients, address);
    if (conn->client == NULL) {
        kve_mem_free(conn);
        return NULL;
    }
    conn->server = server;
    conn->thread = thread;
    conn->mhd = mhd;
    conn->fd = fd;
    conn->turn = 1;
    atomic_init(&conn->refs, 1);
    atomic_init(&conn->mark, KVE_MARK(conn->turn, KVE_PHASE_IDLE));
    conn->seen_mark = KVE_MARK(conn->turn, KVE_PHASE_IDLE);
    conn->seen_at = kve_now_ns();
    (void)pthread_mutex_init(&conn->stream_lock, NULL);
    kve_clients_name(address, conn->name, sizeof(conn->name));
    return conn;
}

static void
started(struct kve_server *server, struct MHD_Connection *mhd,
    void **socket_context)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    int fd = info != NULL ? info->connect_fd : -1;
    const struct sockaddr *address = NULL;
    int on = 1;

    info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    if (info != NULL)
        address = info->client_addr;
    struct kve_conn *conn = make_conn(server, mhd, fd, address);
    if (conn == NULL) {
        refused(server, address);
        (void)shutdown(fd, SHUT_RDWR);
        return;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    kve_http_count(server->http, KVE_COUNTER_HTTP_CONNECTIONS, 1);
    link_conn(conn);
    *socket_context = conn;
}

void
kve_conn_unref(struct kve_conn *conn)
{
    if (atomic_fetch_sub_explicit(&conn->refs, 1, memory_order_acq_rel) != 1)
        return;
    (void)pthread_mutex_destroy(&conn->stream_lock);
    kve_mem_free(conn);
}

void
kve_server_connection(void *cls, struct MHD_Connection *mhd,
    void **socket_context, enum MHD_ConnectionNotificationCode code)
{
    struct kve_conn *conn = *socket_context;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        started(cls, mhd, socket_context);
        return;
    }
    if (conn == NULL)
        return;
    unlink_conn(conn);
    kve_conn_drop_body(conn);
    kve_conn_drop_answer(conn);
    kve_clients_leave(conn->server->clients, conn->client);
    *socket_context = NULL;
    kve_conn_unref(conn);
}
