/*
 * limits.h - who our clients are, and how much each of them may ask.
 *
 * One entry a client address: how many connections it has, and until when its
 * requests are paid for. A connection keeps a pointer to its client's entry,
 * so a request looks nothing up. An IPv6 client is its /64: a host there has
 * 2^64 addresses to choose from; an IPv4 address mapped into IPv6 is IPv4.
 *
 * The rate is a virtual clock (GCRA): a request moves the client's clock on by
 * 1/rate s and is refused when that puts it more than a second ahead of now.
 * So a second's worth may come at once, and the memory of a client is one
 * number. An entry outlives its last connection until its clock is overtaken:
 * a new connection for each request is no way around the limit. The table is
 * bounded; when it is full of clients without connections the oldest goes.
 *
 * Threads: all functions, any thread.
 */
#ifndef KVE_HTTP_LIMITS_H
#define KVE_HTTP_LIMITS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct kve_clients;
struct kve_client;

/* max: connections of all clients; per_client and rate: 0 is no limit. NULL:
 * no memory. */
struct kve_clients *kve_clients_create(
    uint32_t max, uint32_t per_client, uint32_t rate);
void kve_clients_destroy(struct kve_clients *clients);

/* May one more connection from address come? Changes nothing. */
bool kve_clients_accept(
    struct kve_clients *clients, const struct sockaddr *address);

/* Count a connection. The entry, to be handed to kve_clients_leave(); NULL:
 * no memory, or one connection too many. */
struct kve_client *kve_clients_enter(
    struct kve_clients *clients, const struct sockaddr *address);
void kve_clients_leave(struct kve_clients *clients, struct kve_client *client);

/* 0: the request may go on; else: refused, seconds to wait. */
uint32_t kve_clients_request(
    struct kve_clients *clients, struct kve_client *client, int64_t now_ns);

/* The client as a text, "127.0.0.1"; at least INET6_ADDRSTRLEN bytes. */
void kve_clients_name(const struct sockaddr *address, char *text, size_t size);

/* Connections now. */
uint32_t kve_clients_connections(const struct kve_clients *clients);

#endif
