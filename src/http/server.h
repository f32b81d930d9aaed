/*
 * server.h - HTTP by libmicrohttpd: connections, limits, routes, answers.
 *
 * libmicrohttpd reads and writes; each of its threads has an epoll of its own
 * and keeps the connections that it accepted. What it leaves to us is here:
 *
 *   accepted        limits.h: too many of all, or of one client: closed
 *   first byte      server_watch.c: a clock starts that inactivity does not
 *                   reset; too late: shut down
 *   header          rate (429), token (401), route (404, 405), length (413)
 *   body            into a buffer of the connection's, within the limit
 *   whole           handler, with the thread's reader and scratch; its answer
 *                   is copied (small) or given away (large) or pulled (stream)
 *
 * A refusal with a small body behind it is answered when that was read, so
 * that the client sees the answer and the connection stays; with a large one
 * at once, and the connection is closed.
 *
 * Threads: a request runs on the thread of its connection from begin to end.
 * What other threads touch of a connection is atomic, or under a lock of
 * server_parts.h.
 */
#ifndef KVE_HTTP_SERVER_H
#define KVE_HTTP_SERVER_H

#include "http/http.h"

struct kve_server;

/*
 * Listen and answer what tables (ended by NULL, asked in their order) have
 * routes for. http->opts are complete; http->server is set when this returns.
 */
kve_status kve_server_create(struct kve_http *http,
    const struct kve_http_route *const *tables, struct kve_error *err);

/* See kve_service_drain(). After it nothing is answered any more. */
void kve_server_drain(struct kve_server *server, uint32_t drain_ms);

/* Drains with no time, and frees. NULL is allowed. */
void kve_server_destroy(struct kve_server *server);

uint16_t kve_server_port(const struct kve_server *server);

/* Read the files of tokens and certificates again. */
kve_status kve_server_reload(struct kve_server *server, struct kve_error *err);

#endif
