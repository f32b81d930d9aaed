/*
 * zmq_live_in.c - a subscription: a SUB socket, connected or bound.
 *
 * No ZMTP heartbeats, here or elsewhere. A reader that takes nothing for a
 * while has its connection stopped by the library once the pipe is full; then
 * a heartbeat's time-out cuts it for its own slowness, since the answer stands
 * in line behind messages, and worse, the library (4.3.4, 4.3.5) ends the whole
 * process: when the next connection is woken for room that the one before it
 * had waited for, and when it is to send a PING by a stopped connection whose
 * publisher has died. Dead peers are found by the kernel, in the same 30
 * seconds and whatever the reader does: keepalive asks where nothing is sent,
 * and what is sent must be acknowledged.
 */
#include "transport/bind.h"
#include "transport/context.h"
#include "transport/dial.h"
#include "transport/sock.h"
#include "transport/zmq_roles.h"

#include "base/alloc.h"
#include "base/status.h"

#include <zmq.h>

#include <errno.h>
#include <string.h>

#define DEAD_MS 30000 /* for what was sent to be acknowledged */

struct kve_live_in {
    kve_context *context; /* a reference */
    void *socket;
    bool has_dial;
    struct kve_dial dial;
    struct kve_bound bound;
    bool binds;
};

static kve_status
set_options(struct kve_live_in *in, const struct kve_dial_opts *opts,
    struct kve_error *err)
{
    const char *topic = opts->topic != NULL ? opts->topic : "";
    bool curve = opts->curve.public_key != NULL;
    kve_status status =
        kve_sock_set_max(in->socket, opts->max_body_len, curve, err);

    if (status == KVE_OK)
        status = kve_sock_set_int(
            in->socket, ZMQ_TCP_MAXRT, DEAD_MS, "retransmission time", err);
    if (status == KVE_OK)
        status = kve_sock_set_curve(in->socket, &opts->curve, false, err);
    if (status == KVE_OK &&
        zmq_setsockopt(in->socket, ZMQ_SUBSCRIBE, topic, strlen(topic)) != 0)
        status =
            kve_fail(err, KVE_E_SYSTEM, "subscribing: %s", zmq_strerror(errno));
    return status;
}

static kve_status
open_link(struct kve_live_in *in, const struct kve_dial_opts *opts,
    const struct kve_endpoint *endpoint, struct kve_error *err)
{
    kve_status status;

    in->has_dial = true;
    if (!in->binds)
        return kve_dial_init(&in->dial, in->context, in->socket, opts, endpoint,
            KVE_WATCH_ALWAYS, err);
    status = kve_dial_init_bound(
        &in->dial, in->context, in->socket, opts->endpoint, endpoint, err);
    if (status == KVE_OK)
        status = kve_bind_socket(
            in->context, in->socket, opts->endpoint, endpoint, &in->bound, err);
    return status;
}

kve_status
kve_zmq_in_open(kve_context *context, const struct kve_dial_opts *opts,
    struct kve_live_in **ret_in, struct kve_error *err)
{
    struct kve_endpoint endpoint;
    struct kve_live_in *in;
    kve_status status =
        kve_endpoint_parse(opts->endpoint, "endpoint", &endpoint, err);

    if (status != KVE_OK)
        return status;
    in = kve_mem_zalloc(1, sizeof(*in));
    if (in == NULL)
        return kve_fail_nomem(err, "subscription");
    in->bound = (struct kve_bound)KVE_BOUND_INIT;
    in->binds =
        kve_endpoint_binds(&endpoint, opts->endpoint, opts->bind, false);

    status = kve_context_ref(context, 1, &in->context, err);
    if (status == KVE_OK)
        status = kve_sock_create(
            in->context, ZMQ_SUB, opts->recv_hwm, &in->socket, err);
    if (status == KVE_OK)
        status = set_options(in, opts, err);
    if (status == KVE_OK)
        status = open_link(in, opts, &endpoint, err);
    if (status == KVE_OK) {
        kve_context_log(in->context, KVE_LOG_INFO, "live: %s %s",
            in->binds ? "bound" : "connecting to",
            in->binds ? in->bound.endpoint : opts->endpoint);
        *ret_in = in;
        in = NULL;
    }
    kve_zmq_in_close(in);
    return status;
}

void
kve_zmq_in_close(struct kve_live_in *in)
{
    if (in == NULL)
        return;

    bool forked = in->context != NULL && kve_context_forked(in->context);
    if (in->has_dial)
        kve_dial_release(&in->dial, forked);
    if (!forked && in->context != NULL)
        kve_sock_close(in->context, in->socket, 0, in->binds);
    kve_bound_release(&in->bound, forked);
    kve_context_unref(in->context);
    kve_mem_free(in);
}

size_t
kve_zmq_in_fds(struct kve_live_in *in, int ret_fds[KVE_MAX_FDS])
{
    ret_fds[0] = kve_sock_fd(in->socket);
    return 1 + kve_dial_fds(&in->dial, ret_fds + 1);
}

int64_t
kve_zmq_in_deadline(struct kve_live_in *in)
{
    return kve_dial_deadline(&in->dial);
}

kve_status
kve_zmq_in_step(struct kve_live_in *in, int64_t now_ns, bool *ret_fds_changed,
    struct kve_error *err)
{
    *ret_fds_changed = false;
    return kve_dial_step(&in->dial, now_ns, ret_fds_changed, err);
}

bool
kve_zmq_in_event(struct kve_live_in *in, struct kve_link_event *ret_event)
{
    return kve_dial_event(&in->dial, ret_event);
}

enum kve_io
kve_zmq_in_recv(
    struct kve_live_in *in, struct kve_msg *msg, struct kve_error *err)
{
    enum kve_io io = kve_sock_recv(in->socket, msg, err);

    /* Changing the connection can swallow a wake-up, so look again. */
    if (io == KVE_IO_AGAIN && kve_dial_drained(&in->dial))
        io = kve_sock_recv(in->socket, msg, err);
    return io;
}
