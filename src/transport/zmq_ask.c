/*
 * zmq_ask.c - one request, for a replay or a snapshot: a DEALER socket, made
 * for one question.
 *
 * The request is queued as soon as the socket has somewhere to send it, and
 * again when it is connected to another address of a name: a move throws away
 * what was queued for the old one, which never took it.
 */
#include "transport/context.h"
#include "transport/dial.h"
#include "transport/sock.h"
#include "transport/zmq_roles.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/status.h"

#include <zmq.h>

#include <errno.h>

struct kve_replay_ask {
    kve_context *context; /* a reference */
    void *socket;
    bool has_dial;
    struct kve_dial dial;
    uint64_t start;
};

static kve_status
send_request(struct kve_replay_ask *ask, struct kve_error *err)
{
    uint8_t start[8];

    if (!kve_dial_dialed(&ask->dial))
        return KVE_OK;
    kve_put64(start, ask->start);
    if (kve_sock_send_copy(ask->socket, "", 0, ZMQ_SNDMORE) >= 0 &&
        kve_sock_send_copy(ask->socket, start, sizeof(start), 0) >= 0)
        return KVE_OK;
    return kve_fail(err, KVE_E_SYSTEM, "replay request to %s: %s",
        ask->dial.text, zmq_strerror(errno));
}

kve_status
kve_zmq_ask_open(kve_context *context, const struct kve_dial_opts *opts,
    uint64_t start, struct kve_replay_ask **ret_ask, struct kve_error *err)
{
    struct kve_endpoint endpoint;
    struct kve_replay_ask *ask;
    bool curve = opts->curve.public_key != NULL;
    kve_status status =
        kve_endpoint_parse(opts->endpoint, "replay endpoint", &endpoint, err);

    if (status != KVE_OK)
        return status;
    ask = kve_mem_zalloc(1, sizeof(*ask));
    if (ask == NULL)
        return kve_fail_nomem(err, "replay request");
    ask->start = start;

    status = kve_context_ref(context, 1, &ask->context, err);
    if (status == KVE_OK)
        status = kve_sock_create(
            ask->context, ZMQ_DEALER, opts->recv_hwm, &ask->socket, err);
    if (status == KVE_OK)
        status = kve_sock_set_max(ask->socket, opts->max_body_len, curve, err);
    if (status == KVE_OK)
        status = kve_sock_set_curve(ask->socket, &opts->curve, false, err);
    if (status == KVE_OK) {
        ask->has_dial = true;
        status = kve_dial_init(&ask->dial, ask->context, ask->socket, opts,
            &endpoint, KVE_WATCH_SEVERAL, err);
    }
    if (status == KVE_OK)
        status = send_request(ask, err);
    if (status == KVE_OK) {
        *ret_ask = ask;
        ask = NULL;
    }
    kve_zmq_ask_close(ask);
    return status;
}

void
kve_zmq_ask_close(struct kve_replay_ask *ask)
{
    if (ask == NULL)
        return;

    bool forked = ask->context != NULL && kve_context_forked(ask->context);
    if (ask->has_dial)
        kve_dial_release(&ask->dial, forked);
    if (!forked && ask->context != NULL)
        kve_sock_close(ask->context, ask->socket, 0, false);
    kve_context_unref(ask->context);
    kve_mem_free(ask);
}

size_t
kve_zmq_ask_fds(struct kve_replay_ask *ask, int ret_fds[KVE_MAX_FDS])
{
    ret_fds[0] = kve_sock_fd(ask->socket);
    return 1 + kve_dial_fds(&ask->dial, ret_fds + 1);
}

int64_t
kve_zmq_ask_deadline(struct kve_replay_ask *ask)
{
    return kve_dial_deadline(&ask->dial);
}

kve_status
kve_zmq_ask_step(struct kve_replay_ask *ask, int64_t now_ns,
    bool *ret_fds_changed, struct kve_error *err)
{
    struct kve_link_event event;
    kve_status status;

    *ret_fds_changed = false;
    status = kve_dial_step(&ask->dial, now_ns, ret_fds_changed, err);
    /* The asker's deadline is its only word on connections. */
    while (kve_dial_event(&ask->dial, &event))
        continue;
    return status == KVE_OK ? send_request(ask, err) : status;
}

enum kve_io
kve_zmq_ask_recv(
    struct kve_replay_ask *ask, struct kve_msg *msg, struct kve_error *err)
{
    enum kve_io io = kve_sock_recv(ask->socket, msg, err);

    if (io != KVE_IO_AGAIN || !kve_dial_drained(&ask->dial))
        return io;
    if (send_request(ask, err) != KVE_OK)
        return KVE_IO_ERROR;
    return kve_sock_recv(ask->socket, msg, err);
}

static void
release_frame(struct kve_msg *frame)
{
    (void)zmq_msg_close((zmq_msg_t *)(void *)frame->priv[0]);
}

/* One frame, or -1 with errno. */
static int
recv_frame(void *socket, struct kve_msg *frame)
{
    zmq_msg_t *msg = (zmq_msg_t *)(void *)frame->priv[0];
    int len;

    do
        len = zmq_msg_recv(msg, socket, ZMQ_DONTWAIT);
    while (len < 0 && errno == EINTR);
    return len;
}

enum kve_io
kve_zmq_ask_recv_frame(struct kve_replay_ask *ask, struct kve_msg *frame,
    bool *ret_more, struct kve_error *err)
{
    zmq_msg_t *msg = (zmq_msg_t *)(void *)frame->priv[0];
    int len;

    kve_msg_release(frame);
    (void)zmq_msg_init(msg);
    frame->release = release_frame;
    len = recv_frame(ask->socket, frame);
    /* Never in the middle of a message, which is here whole or not at all. */
    if (len < 0 && errno == EAGAIN && kve_dial_drained(&ask->dial)) {
        if (send_request(ask, err) != KVE_OK)
            return KVE_IO_ERROR;
        len = recv_frame(ask->socket, frame);
    }
    if (len < 0 && errno == EAGAIN)
        return KVE_IO_AGAIN;
    if (len < 0) {
        (void)kve_fail(err, KVE_E_SYSTEM, "answer of %s: %s", ask->dial.text,
            zmq_strerror(errno));
        return KVE_IO_ERROR;
    }
    frame->frame[0].data = zmq_msg_data(msg);
    frame->frame[0].len = (size_t)len;
    frame->n_frames = 1;
    frame->bytes = (size_t)len;
    *ret_more = zmq_msg_more(msg) != 0;
    return KVE_IO_OK;
}
