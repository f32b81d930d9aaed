/*
 * zmq_live_out.c - the live stream: a PUB socket, bound or connected.
 *
 * A message is three frames: the topic and the number are small enough to lie
 * inside the library's message, the payload is handed over by reference.
 *
 * Where it connects, names and reconnects are seen to while sending and in
 * step(), at most a few times a second. Readers that come and go leave work
 * with the socket, which holds memory until it is asked for something: the
 * descriptor tells when.
 */
#include "transport/bind.h"
#include "transport/context.h"
#include "transport/dial.h"
#include "transport/sock.h"
#include "transport/zmq_roles.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"

#include <zmq.h>

#include <errno.h>
#include <poll.h>

#define DIAL_EVERY_MS 50
/* Opening waits so long for a name, lest the first batches have nowhere to
 * go. */
#define FIRST_LOOKUP_MS 5000

struct kve_live_out {
    kve_context *context; /* a reference */
    void *socket;
    bool binds;
    struct kve_bound bound;
    struct kve_dial *dial; /* NULL: bound */
    int64_t dial_at;
};

static void
see_to_dial(struct kve_live_out *out, int64_t now_ns)
{
    struct kve_error error = { 0 };
    struct kve_link_event event;
    bool changed;

    out->dial_at = now_ns + DIAL_EVERY_MS * KVE_MS;
    if (kve_dial_step(out->dial, now_ns, &changed, &error) != KVE_OK)
        kve_context_log(out->context, KVE_LOG_WARNING, "%s", error.detail);
    while (kve_dial_event(out->dial, &event))
        kve_context_log(out->context,
            event.type == KVE_LINK_CONNECTED ? KVE_LOG_INFO : KVE_LOG_WARNING,
            "live: %s %s",
            event.type == KVE_LINK_CONNECTED ? "connected to" : "connection:",
            event.detail);
    /* Nothing is received here. */
    (void)kve_dial_drained(out->dial);
}

/* Wait until the name is looked up, or failed once. */
static void
await_name(struct kve_live_out *out)
{
    int64_t until = kve_now_ns() + FIRST_LOOKUP_MS * KVE_MS;

    while (out->dial->lookup != NULL) {
        int64_t now = kve_now_ns();
        struct pollfd item = { out->dial->fd, POLLIN, 0 };

        if (now >= until)
            break;
        (void)poll(&item, 1, kve_ms_until(until, now));
        see_to_dial(out, kve_now_ns());
    }
}

static kve_status
dial(struct kve_live_out *out, const struct kve_serve_opts *opts,
    const struct kve_endpoint *endpoint, struct kve_error *err)
{
    const struct kve_dial_opts dial_opts = { .endpoint = opts->endpoint,
        .resolve_timeout_ms = FIRST_LOOKUP_MS };
    struct kve_dial *made = kve_mem_zalloc(1, sizeof(*made));
    kve_status status;

    if (made == NULL)
        return kve_fail_nomem(err, "publisher's connection");
    made->fd = -1;
    out->dial = made;
    status = kve_dial_init(made, out->context, out->socket, &dial_opts,
        endpoint, KVE_WATCH_ALWAYS, err);
    if (status == KVE_OK)
        await_name(out);
    return status;
}

kve_status
kve_zmq_out_open(kve_context *context, const struct kve_serve_opts *opts,
    struct kve_live_out **ret_out, struct kve_error *err)
{
    struct kve_endpoint endpoint;
    struct kve_live_out *out;
    kve_status status =
        kve_endpoint_parse(opts->endpoint, "endpoint", &endpoint, err);

    if (status != KVE_OK)
        return status;
    out = kve_mem_zalloc(1, sizeof(*out));
    if (out == NULL)
        return kve_fail_nomem(err, "live socket");
    out->bound = (struct kve_bound)KVE_BOUND_INIT;
    out->binds =
        kve_endpoint_binds(&endpoint, opts->endpoint, opts->bind, true);

    status = kve_context_ref(context, 1, &out->context, err);
    if (status == KVE_OK)
        status = kve_sock_create(
            out->context, ZMQ_PUB, opts->hwm, &out->socket, err);
    if (status == KVE_OK && opts->sndbuf > 0)
        status = kve_sock_set_int(
            out->socket, ZMQ_SNDBUF, (int)opts->sndbuf, "sndbuf", err);
    if (status == KVE_OK)
        status = kve_sock_set_max(out->socket, opts->max_request_len,
            opts->curve.public_key != NULL, err);
    if (status == KVE_OK)
        status = kve_sock_set_curve(out->socket, &opts->curve, true, err);
    if (status == KVE_OK && out->binds)
        status = kve_bind_socket(out->context, out->socket, opts->endpoint,
            &endpoint, &out->bound, err);
    else if (status == KVE_OK)
        status = dial(out, opts, &endpoint, err);
    if (status == KVE_OK) {
        kve_context_log(out->context, KVE_LOG_INFO, "live: %s %s",
            out->binds ? "bound" : "connecting to",
            kve_zmq_out_endpoint(out, &(bool){ false }));
        *ret_out = out;
        out = NULL;
    }
    kve_zmq_out_close(out, 0);
    return status;
}

void
kve_zmq_out_close(struct kve_live_out *out, int linger_ms)
{
    if (out == NULL)
        return;

    bool forked = out->context != NULL && kve_context_forked(out->context);
    if (out->dial != NULL)
        kve_dial_release(out->dial, forked);
    kve_mem_free(out->dial);
    if (!forked && out->context != NULL)
        kve_sock_close(out->context, out->socket, linger_ms, true);
    kve_bound_release(&out->bound, forked);
    kve_context_unref(out->context);
    kve_mem_free(out);
}

const char *
kve_zmq_out_endpoint(struct kve_live_out *out, bool *ret_bound)
{
    *ret_bound = out->binds;
    return out->binds ? out->bound.endpoint : out->dial->text;
}

size_t
kve_zmq_out_fds(struct kve_live_out *out, int ret_fds[KVE_MAX_FDS])
{
    ret_fds[0] = kve_sock_fd(out->socket);
    return 1;
}

void
kve_zmq_out_step(struct kve_live_out *out)
{
    int64_t now = kve_now_ns();

    if (out->dial != NULL && now >= out->dial_at)
        see_to_dial(out, now);
    /* Asking makes the library take note of readers that left. */
    (void)kve_sock_readable(out->socket);
}

enum kve_io
kve_zmq_out_send(struct kve_live_out *out, struct kve_span topic,
    uint64_t number, struct kve_payload *payload, struct kve_error *err)
{
    uint8_t text[8];

    if (out->dial != NULL) {
        int64_t now = kve_now_ns();

        if (now >= out->dial_at)
            see_to_dial(out, now);
    }
    kve_put64(text, number);
    /* A PUB socket never says "not now": a reader that is full misses it. */
    if (kve_sock_send_copy(out->socket, topic.data, topic.len, ZMQ_SNDMORE) >=
            0 &&
        kve_sock_send_copy(out->socket, text, sizeof(text), ZMQ_SNDMORE) >= 0 &&
        kve_sock_send_payload(out->socket, payload, KVE_OUT_LIVE) >= 0)
        return KVE_IO_OK;
    (void)kve_fail(err, KVE_E_SYSTEM, "sending live: %s", zmq_strerror(errno));
    return KVE_IO_ERROR;
}
