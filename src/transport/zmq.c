/*
 * zmq.c - the ZeroMQ transport's table, and the list of all transports.
 */
#include "transport/endpoint.h"
#include "transport/zmq_roles.h"

#include <string.h>

static bool
takes(const char *endpoint)
{
    return strncmp(endpoint, "tcp://", 6) == 0 ||
        strncmp(endpoint, "ipc://", 6) == 0 ||
        strncmp(endpoint, "inproc://", 9) == 0;
}

const struct kve_transport kve_transport_zmq = {
    .name = "zmq",
    .takes = takes,
    .live_in_open = kve_zmq_in_open,
    .live_in_close = kve_zmq_in_close,
    .live_in_fds = kve_zmq_in_fds,
    .live_in_deadline = kve_zmq_in_deadline,
    .live_in_step = kve_zmq_in_step,
    .live_in_event = kve_zmq_in_event,
    .live_in_recv = kve_zmq_in_recv,
    .replay_ask_open = kve_zmq_ask_open,
    .replay_ask_close = kve_zmq_ask_close,
    .replay_ask_fds = kve_zmq_ask_fds,
    .replay_ask_deadline = kve_zmq_ask_deadline,
    .replay_ask_step = kve_zmq_ask_step,
    .replay_ask_recv = kve_zmq_ask_recv,
    .replay_ask_recv_frame = kve_zmq_ask_recv_frame,
    .live_out_open = kve_zmq_out_open,
    .live_out_close = kve_zmq_out_close,
    .live_out_endpoint = kve_zmq_out_endpoint,
    .live_out_fds = kve_zmq_out_fds,
    .live_out_step = kve_zmq_out_step,
    .live_out_send = kve_zmq_out_send,
    .replay_serve_open = kve_zmq_serve_open,
    .replay_serve_close = kve_zmq_serve_close,
    .replay_serve_endpoint = kve_zmq_serve_endpoint,
    .replay_serve_fds = kve_zmq_serve_fds,
    .replay_serve_recv = kve_zmq_serve_recv,
    .replay_serve_send = kve_zmq_serve_send,
    .replay_serve_send_frames = kve_zmq_serve_send_frames,
};

static const struct kve_transport *const transports[] = {
    &kve_transport_zmq,
};

const struct kve_transport *
kve_transport_find(const char *endpoint, struct kve_error *err)
{
    struct kve_endpoint parts;

    for (size_t i = 0;
         endpoint != NULL && i < sizeof(transports) / sizeof(transports[0]);
         i++)
        if (transports[i]->takes(endpoint))
            return transports[i];
    /* Its text lists what is accepted. */
    (void)kve_endpoint_parse(endpoint, "endpoint", &parts, err);
    return NULL;
}
