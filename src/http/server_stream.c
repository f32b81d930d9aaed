/*
 * server_stream.c - answers that are pulled piece by piece.
 *
 * A pull function that has nothing suspends its connection, under the stream's
 * lock; who has something for it wakes it under the same lock, so that no wake
 * is lost between "nothing" and "suspended".
 *
 * A stream that is not at its end when the server ends is cut, without the last
 * chunk: nobody shall take it for whole. Events have been ended before.
 */
#include "http/server_parts.h"

#include <sys/socket.h>

#define PIECE ((size_t)32 * 1024)

static ssize_t
read_piece(void *cls, uint64_t pos, char *data, size_t max)
{
    struct kve_conn *conn = cls;
    ptrdiff_t n = -2;

    (void)pos;
    (void)pthread_mutex_lock(&conn->stream_lock);
    if (!atomic_load_explicit(&conn->server->ending, memory_order_acquire))
        n = conn->pull(conn->pull_ctx, (uint8_t *)data, max);
    if (n == 0) {
        conn->suspended = true;
        MHD_suspend_connection(conn->mhd);
    }
    (void)pthread_mutex_unlock(&conn->stream_lock);
    if (n > 0)
        kve_http_count(
            conn->server->http, KVE_COUNTER_HTTP_ANSWER_BYTES, (uint64_t)n);
    if (n >= 0)
        return n;
    /* The library would leave a failed connection open until its time-out. */
    if (n != -1)
        (void)shutdown(conn->fd, SHUT_RDWR);
    return n == -1 ? MHD_CONTENT_READER_END_OF_STREAM
                   : MHD_CONTENT_READER_END_WITH_ERROR;
}

static void
end_stream(void *cls)
{
    struct kve_conn *conn = cls;

    (void)pthread_mutex_lock(&conn->stream_lock);
    conn->streaming = false;
    (void)pthread_mutex_unlock(&conn->stream_lock);
    if (conn->pull_end != NULL)
        conn->pull_end(conn->pull_ctx);
    kve_conn_unref(conn);
}

struct MHD_Response *
kve_conn_stream(struct kve_conn *conn, const struct kve_http_request *req)
{
    struct MHD_Response *response = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, PIECE, read_piece, conn, end_stream);

    if (response == NULL)
        return NULL;
    (void)pthread_mutex_lock(&conn->stream_lock);
    conn->pull = req->pull;
    conn->pull_end = req->pull_end;
    conn->pull_ctx = req->pull_ctx;
    conn->suspended = false;
    conn->streaming = true;
    (void)pthread_mutex_unlock(&conn->stream_lock);
    atomic_fetch_add_explicit(&conn->refs, 1, memory_order_relaxed);
    return response;
}

static void
wake(struct kve_conn *conn)
{
    (void)pthread_mutex_lock(&conn->stream_lock);
    if (conn->streaming && conn->suspended) {
        conn->suspended = false;
        MHD_resume_connection(conn->mhd);
    }
    (void)pthread_mutex_unlock(&conn->stream_lock);
}

void
kve_http_wake(struct kve_http *http, void *connection)
{
    (void)http;
    wake(connection);
}

void
kve_server_wake_all(struct kve_server *server)
{
    for (unsigned i = 0; i < KVE_SERVER_SHARDS; i++) {
        struct kve_server_shard *shard = &server->shards[i];

        (void)pthread_mutex_lock(&shard->lock);
        for (struct kve_conn *conn = shard->first; conn != NULL;
             conn = conn->next)
            wake(conn);
        (void)pthread_mutex_unlock(&shard->lock);
    }
}
