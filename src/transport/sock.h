/*
 * sock.h - what all four ZeroMQ roles have in common: making a socket with
 * its options, receiving a message without copying, handing a payload over,
 * and closing so that the port is free afterwards.
 *
 * Errors of the socket library become one line with the endpoint in it.
 */
#ifndef KVE_TRANSPORT_SOCK_H
#define KVE_TRANSPORT_SOCK_H

#include "transport/endpoint.h"
#include "transport/transport.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A socket of a ZMQ_* type: no linger, keepalive, both high-water marks set
 * to hwm (0: the library's 1,000, as no limit is no choice here); kept away
 * from the I/O thread that a context keeps apart.
 */
kve_status kve_sock_create(kve_context *context, int type, uint32_t hwm,
    void **ret_socket, struct kve_error *err);

/* KVE_E_LIMIT, and which limit of sockets it was. */
kve_status kve_sock_exhausted(struct kve_error *err);

/* One integer option; these cannot fail for want of anything but a bug or an
 * absurd value, so the text names option and value. */
kve_status kve_sock_set_int(void *socket, int option, int value,
    const char *name, struct kve_error *err);

/* Let only the last of the context's I/O threads carry the socket's traffic,
 * when there are several. */
kve_status kve_sock_set_apart(
    kve_context *context, void *socket, struct kve_error *err);

/* Longest frame that is accepted; a longer one cuts the connection. 0: 16
 * MiB.
 * Small limits are raised to what a handshake needs, 512 bytes, with CURVE
 * 1024. */
kve_status kve_sock_set_max(
    void *socket, size_t max, bool curve, struct kve_error *err);

/* Keys: all NULL is no encryption. A server needs two, a client three. */
kve_status kve_sock_set_curve(void *socket, const struct kve_curve *curve,
    bool server, struct kve_error *err);

/* For the next connect or bind: IPv6 only where the address is not an IPv4
 * one, so that systems without IPv6 work too. */
void kve_sock_set_family(void *socket, const struct kve_endpoint *endpoint);

/*
 * Close. With wait, return only when the socket is gone altogether: what is
 * kept for readers was sent or linger_ms passed, and its port is free. NULL is
 * allowed.
 */
void kve_sock_close(
    kve_context *context, void *socket, int linger_ms, bool wait);

/*
 * The next message into msg, whole. KVE_IO_AGAIN means that the socket's
 * descriptor will become readable when there is more.
 */
enum kve_io kve_sock_recv(
    void *socket, struct kve_msg *msg, struct kve_error *err);

/* Whether a message waits. Looks behind the descriptor's back: a descriptor
 * that was readable for what this saw may not be so any more. */
bool kve_sock_readable(void *socket);

/* Send one more frame of a message that was begun, copied; or its last one, by
 * reference and counted for out. */
int kve_sock_send_copy(void *socket, const void *data, size_t len, int flags);
int kve_sock_send_payload(
    void *socket, struct kve_payload *payload, enum kve_out out);

/* Send len bytes of a payload, from data on, as one frame: by reference, and
 * not counted. */
int kve_sock_send_slice(void *socket, struct kve_payload *payload,
    const uint8_t *data, size_t len, int flags);

/* The descriptor to watch for input, or -1. */
int kve_sock_fd(void *socket);

#endif
