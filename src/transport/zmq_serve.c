/*
 * zmq_serve.c - the replay server: a ROUTER socket, always bound.
 *
 * Mandatory routing makes a full or absent reader an answer of the send that
 * begins a message, instead of a silent loss. Only the first frame, the
 * reader's identity, can be refused: room is counted in whole messages, so
 * once the identity was taken the rest of the message follows. (A reader that
 * leaves in between takes the rest with it; the next message says so.)
 *
 * That a reader is full has no event, and that it left is only learnt by
 * receiving: the owner tries again after a while, and receives meanwhile.
 *
 * Sending can swallow the wake-up of a request that came in meanwhile. So
 * after each send it is looked whether one waits, and an eventfd, the second
 * descriptor, is made readable until the next receive.
 */
#include "transport/bind.h"
#include "transport/context.h"
#include "transport/endpoint.h"
#include "transport/sock.h"
#include "transport/zmq_roles.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/status.h"

#include <zmq.h>

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct kve_replay_serve {
    kve_context *context; /* a reference */
    void *socket;
    struct kve_bound bound;
    int fd; /* readable: a request waits that ZMQ_FD does not tell of */
    bool raised;
    struct kve_msg msg; /* the last request */
};

static kve_status
set_options(struct kve_replay_serve *serve, const struct kve_serve_opts *opts,
    struct kve_error *err)
{
    bool curve = opts->curve.public_key != NULL;
    kve_status status = kve_sock_set_int(
        serve->socket, ZMQ_ROUTER_MANDATORY, 1, "mandatory routing", err);

    if (status == KVE_OK && opts->sndbuf > 0)
        status = kve_sock_set_int(
            serve->socket, ZMQ_SNDBUF, (int)opts->sndbuf, "sndbuf", err);
    if (status == KVE_OK)
        status =
            kve_sock_set_max(serve->socket, opts->max_request_len, curve, err);
    if (status == KVE_OK)
        status = kve_sock_set_curve(serve->socket, &opts->curve, true, err);
    if (status == KVE_OK && opts->apart)
        status = kve_sock_set_apart(serve->context, serve->socket, err);
    return status;
}

kve_status
kve_zmq_serve_open(kve_context *context, const struct kve_serve_opts *opts,
    struct kve_replay_serve **ret_serve, struct kve_error *err)
{
    struct kve_endpoint endpoint;
    struct kve_replay_serve *serve;
    kve_status status =
        kve_endpoint_parse(opts->endpoint, "replay endpoint", &endpoint, err);

    if (status != KVE_OK)
        return status;
    serve = kve_mem_zalloc(1, sizeof(*serve));
    if (serve == NULL)
        return kve_fail_nomem(err, "replay socket");
    serve->bound = (struct kve_bound)KVE_BOUND_INIT;
    serve->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (serve->fd < 0)
        status = kve_fail(err, KVE_E_SYSTEM, "eventfd: %s", strerror(errno));

    if (status == KVE_OK)
        status = kve_context_ref(context, 1, &serve->context, err);
    if (status == KVE_OK)
        status = kve_sock_create(
            serve->context, ZMQ_ROUTER, opts->hwm, &serve->socket, err);
    if (status == KVE_OK)
        status = set_options(serve, opts, err);
    if (status == KVE_OK)
        status = kve_bind_socket(serve->context, serve->socket, opts->endpoint,
            &endpoint, &serve->bound, err);
    if (status == KVE_OK) {
        kve_context_log(serve->context, KVE_LOG_INFO, "%s: bound %s",
            opts->apart ? "snapshots" : "replay", serve->bound.endpoint);
        *ret_serve = serve;
        serve = NULL;
    }
    kve_zmq_serve_close(serve, 0);
    return status;
}

void
kve_zmq_serve_close(struct kve_replay_serve *serve, int linger_ms)
{
    if (serve == NULL)
        return;

    bool forked = serve->context != NULL && kve_context_forked(serve->context);
    /* In a child the thread that received is gone, perhaps amid a message. */
    if (!forked)
        kve_msg_release(&serve->msg);
    if (!forked && serve->context != NULL)
        kve_sock_close(serve->context, serve->socket, linger_ms, true);
    kve_bound_release(&serve->bound, forked);
    if (serve->fd >= 0)
        (void)close(serve->fd);
    kve_context_unref(serve->context);
    kve_mem_free(serve);
}

const char *
kve_zmq_serve_endpoint(struct kve_replay_serve *serve)
{
    return serve->bound.endpoint;
}

size_t
kve_zmq_serve_fds(struct kve_replay_serve *serve, int ret_fds[KVE_MAX_FDS])
{
    ret_fds[0] = kve_sock_fd(serve->socket);
    ret_fds[1] = serve->fd;
    return 2;
}

enum kve_io
kve_zmq_serve_recv(struct kve_replay_serve *serve,
    struct kve_replay_request *ret_request, struct kve_error *err)
{
    struct kve_msg *msg = &serve->msg;
    uint64_t counter;

    if (serve->raised)
        (void)!read(serve->fd, &counter, sizeof(counter));
    serve->raised = false;

    enum kve_io io = kve_sock_recv(serve->socket, msg, err);
    if (io != KVE_IO_OK)
        return io;
    ret_request->peer_len =
        msg->frame[0].len < KVE_PEER_MAX ? msg->frame[0].len : KVE_PEER_MAX;
    memcpy(ret_request->peer, msg->frame[0].data, ret_request->peer_len);
    ret_request->n_frames = msg->n_frames;
    ret_request->delimited = msg->n_frames >= 2 && msg->frame[1].len == 0;
    ret_request->start = (struct kve_span){ NULL, 0 };
    if (msg->n_frames >= 3)
        ret_request->start = msg->frame[2];
    return KVE_IO_OK;
}

/* Requests that wait must not lose their wake-up. */
static void
raise_if_readable(struct kve_replay_serve *serve)
{
    static const uint64_t one = 1;

    if (serve->raised || !kve_sock_readable(serve->socket))
        return;
    serve->raised = true;
    (void)!write(serve->fd, &one, sizeof(one));
}

static enum kve_io
send_failed(struct kve_error *err)
{
    (void)kve_fail(
        err, KVE_E_SYSTEM, "sending a replay: %s", zmq_strerror(errno));
    return KVE_IO_ERROR;
}

/* What the send that begins a message says of its reader. */
static enum kve_io
refused(struct kve_error *err)
{
    return errno == EAGAIN      ? KVE_IO_AGAIN
        : errno == EHOSTUNREACH ? KVE_IO_GONE
                                : send_failed(err);
}

enum kve_io
kve_zmq_serve_send(struct kve_replay_serve *serve, const uint8_t *peer,
    size_t peer_len, bool with_topic, struct kve_span topic, uint64_t number,
    struct kve_payload *payload, struct kve_error *err)
{
    void *socket = serve->socket;
    uint8_t text[8];
    enum kve_io io = KVE_IO_OK;
    int rc = kve_sock_send_copy(socket, peer, peer_len, ZMQ_SNDMORE);

    if (rc < 0) {
        io = refused(err);
        goto out;
    }

    kve_put64(text, number);
    rc = kve_sock_send_copy(socket, "", 0, ZMQ_SNDMORE);
    if (rc >= 0 && with_topic)
        rc = kve_sock_send_copy(socket, topic.data, topic.len, ZMQ_SNDMORE);
    if (rc >= 0)
        rc = kve_sock_send_copy(socket, text, sizeof(text), ZMQ_SNDMORE);
    if (rc >= 0)
        rc = payload != NULL
            ? kve_sock_send_payload(socket, payload, KVE_OUT_REPLAY)
            : kve_sock_send_copy(socket, "", 0, 0);
    if (rc < 0)
        io = send_failed(err);

out:
    raise_if_readable(serve);
    return io;
}

enum kve_io
kve_zmq_serve_send_frames(struct kve_replay_serve *serve, const uint8_t *peer,
    size_t peer_len, struct kve_payload *payload, const size_t *ends, size_t n,
    struct kve_error *err)
{
    void *socket = serve->socket;
    enum kve_io io = KVE_IO_OK;
    size_t begin = 0;
    int rc = kve_sock_send_copy(socket, peer, peer_len, ZMQ_SNDMORE);

    if (rc < 0) {
        io = refused(err);
        goto out;
    }
    rc = kve_sock_send_copy(socket, "", 0, n > 0 ? ZMQ_SNDMORE : 0);
    for (size_t i = 0; i < n && rc >= 0; i++) {
        rc = kve_sock_send_slice(socket, payload, payload->data + begin,
            ends[i] - begin, i + 1 < n ? ZMQ_SNDMORE : 0);
        begin = ends[i];
    }
    if (rc < 0)
        io = send_failed(err);

out:
    raise_if_readable(serve);
    return io;
}
