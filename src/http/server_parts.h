/*
 * server_parts.h - what the files of the server share. The only header that
 * knows libmicrohttpd.
 */
#ifndef KVE_HTTP_SERVER_PARTS_H
#define KVE_HTTP_SERVER_PARTS_H

#include "http/auth.h"
#include "http/limits.h"
#include "http/scratch.h"
#include "http/server.h"
#include "http/server_route.h"
#include "http/tls.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>

/* Lists of connections; an accept and a watchdog's walk meet in one of them
 * only. */
#define KVE_SERVER_SHARDS 16u
/* Buffers for bodies that a thread keeps, and of what size at most. */
#define KVE_SERVER_BODIES 16u
#define KVE_SERVER_BODY_KEPT ((size_t)256 * 1024)
/* A refused body is read to its end up to here. */
#define KVE_SERVER_DISCARD ((size_t)1024 * 1024)
/* Bodies on their way, of all connections: at least so many bytes. */
#define KVE_SERVER_BODIES_MAX ((size_t)256 * 1024 * 1024)
/* Answers up to here are copied. */
#define KVE_SERVER_COPIED ((size_t)16 * 1024)
/* Larger ones that were not read to their end by now, of all connections. */
#define KVE_SERVER_ANSWERS_MAX ((size_t)256 * 1024 * 1024)

/* What log lines are about; each kind is said once in 10 s. */
enum kve_server_log {
    KVE_SERVER_LOG_REFUSED,
    KVE_SERVER_LOG_SLOW,
    KVE_SERVER_LOG_TOKEN,
    KVE_SERVER_LOG_RATE,
    KVE_SERVER_LOG_MEMORY,
    KVE_SERVER_LOG_LIBRARY,
    KVE_SERVER_LOGS
};

/* A thread of the library, as far as it is ours. */
struct kve_server_thread {
    struct kve_server_thread *next;
    struct kve_server *server;
    kve_index_reader *reader; /* NULL without an index */
    struct kve_http_scratch scratch;
    struct kve_buffer out;
    struct kve_buffer bodies[KVE_SERVER_BODIES]; /* to be used again */
    unsigned n_bodies;
};

/* Where a connection is in its requests: a number of the request, and below
 * it one of these. Written by the connection's thread only. */
enum kve_phase {
    KVE_PHASE_IDLE = 0,   /* no request line yet */
    KVE_PHASE_COMING = 1, /* header or body are not complete */
    KVE_PHASE_ANSWER = 2
};
#define KVE_MARK(turn, phase) (((turn) << 2) | (uint64_t)(phase))
#define KVE_MARK_PHASE(mark) ((enum kve_phase)((mark)&3u))

/* How far a request is. */
enum kve_stage {
    KVE_STAGE_HEADER = 0, /* what it is was not looked at yet */
    KVE_STAGE_BODY,
    KVE_STAGE_REFUSED, /* answered with refusal when its body was read */
    KVE_STAGE_DONE
};

struct kve_conn {
    struct kve_conn *prev; /* of its shard; under the shard's lock */
    struct kve_conn *next;
    struct kve_server *server;
    struct kve_server_thread *thread;
    struct MHD_Connection *mhd;
    struct kve_client *client;
    int fd;
    _Atomic unsigned refs; /* the connection, and its stream */
    char name[INET6_ADDRSTRLEN];

    /* The clock of the request on its way. */
    _Atomic uint64_t mark;
    _Atomic int64_t since; /* with KVE_PHASE_COMING: its first byte */

    /* The watchdog's: when it saw the first bytes of the request whose mark is
     * early_mark. */
    _Atomic uint64_t early_mark;
    _Atomic int64_t early_since;
    uint64_t seen_mark; /* at its last walk */
    uint64_t seen_bytes;
    int64_t seen_at;
    bool cut;

    /* The request. */
    uint64_t turn;
    enum kve_stage stage;
    enum kve_method method;
    const struct kve_http_route *route;
    unsigned refusal; /* status */
    const char *allow;
    uint32_t retry_after;
    bool bad_uri;
    bool bad_token; /* one was given */
    bool last;      /* the connection is closed behind the answer */
    enum kve_media content;
    bool accepts_msgpack;
    size_t body_limit;
    size_t discarded;
    size_t charged;  /* of body, to server->body_bytes */
    size_t answered; /* of a large answer, to server->answer_bytes */
    struct kve_buffer body;

    /* A stream that answers. */
    pthread_mutex_t stream_lock;
    bool streaming;
    bool suspended;
    kve_http_pull_fn *pull;
    void (*pull_end)(void *ctx);
    void *pull_ctx;
};

struct kve_server_shard {
    pthread_mutex_t lock;
    struct kve_conn *first;
};

struct kve_server {
    struct kve_http *http;
    struct MHD_Daemon *daemon;
    uint16_t port;
    int listen_fd; /* -1 when the library closes it */
    struct kve_router *router;
    struct kve_clients *clients;
    struct kve_auth *auth; /* NULL: no token is asked for */
    struct kve_tls *tls;   /* NULL: plain */
    pthread_mutex_t lock;  /* threads, logs */
    struct kve_server_thread *threads;
    struct kve_server_shard shards[KVE_SERVER_SHARDS];
    _Atomic size_t body_bytes; /* of bodies on their way */
    size_t body_bytes_max;
    _Atomic size_t answer_bytes; /* of large answers on their way */
    _Atomic bool draining;
    _Atomic bool ending; /* streams as well */
    bool stopped;

    /* The watchdog. */
    pthread_t watch;
    bool watching;
    bool watch_stop; /* under watch_lock */
    pthread_mutex_t watch_lock;
    pthread_cond_t watch_cond;

    int64_t logged_ns[KVE_SERVER_LOGS];
    uint64_t unlogged[KVE_SERVER_LOGS];
    _Atomic bool started;
    char start_error[160]; /* what the library said before that */
};

/* ---- server.c ---- */

/* One line, if none of its kind was said in the last 10 s. */
void kve_server_say(struct kve_server *server, enum kve_server_log kind,
    enum kve_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- server_conn.c: connections and what a thread has ---- */

enum MHD_Result kve_server_admit(
    void *cls, const struct sockaddr *address, socklen_t len);
void kve_server_connection(void *cls, struct MHD_Connection *mhd,
    void **socket_context, enum MHD_ConnectionNotificationCode code);
void kve_conn_unref(struct kve_conn *conn);
/* A body's buffer back to the thread, or freed. */
void kve_conn_drop_body(struct kve_conn *conn);
/* Room for n more bytes of body and a zero. 0, or the status to refuse with. */
unsigned kve_conn_grow_body(struct kve_conn *conn, size_t n);
void kve_server_threads_destroy(struct kve_server *server);

/* ---- server_request.c: one request ---- */

void *kve_server_uri(void *cls, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result kve_server_handle(void *cls, struct MHD_Connection *mhd,
    const char *url, const char *method, const char *version,
    const char *upload_data, size_t *upload_size, void **con_cls);
void kve_server_completed(void *cls, struct MHD_Connection *mhd, void **con_cls,
    enum MHD_RequestTerminationCode code);

/* ---- server_answer.c ---- */

/* Its large answer is sent, or will not be. */
void kve_conn_drop_answer(struct kve_conn *conn);
/* Send what the handler left. */
enum MHD_Result kve_conn_answer(
    struct kve_conn *conn, struct kve_http_request *req, const char *url);
/* Send the refusal of the connection's request. */
enum MHD_Result kve_conn_refuse(struct kve_conn *conn, const char *url);

/* ---- server_stream.c ---- */

/* NULL: no memory; pull_end was not called. */
struct MHD_Response *kve_conn_stream(
    struct kve_conn *conn, const struct kve_http_request *req);
/* Wake all streams. */
void kve_server_wake_all(struct kve_server *server);

/* ---- server_watch.c ---- */

bool kve_server_watch_start(struct kve_server *server);
void kve_server_watch_stop(struct kve_server *server);
/* Shut down connections that ask nothing now. */
void kve_server_close_idle(struct kve_server *server);

#endif
