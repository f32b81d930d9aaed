/*
 * server_route.h - from a path to what answers it.
 *
 * Paths of all tables in one hash table, made once. Routes of the same path
 * and other methods belong together; of the same path and method the first
 * one counts. Prefixes are tried when no whole path fits, the longest first.
 *
 * Threads: read by any number after it was made.
 */
#ifndef KVE_HTTP_SERVER_ROUTE_H
#define KVE_HTTP_SERVER_ROUTE_H

#include "http/request.h"

struct kve_router;

/* tables end with NULL. test: with routes of KVE_ROUTE_TEST. NULL: no memory.
 */
struct kve_router *kve_router_create(
    const struct kve_http_route *const *tables, bool test);
void kve_router_destroy(struct kve_router *router);

/*
 * The route of path and method, or NULL. *ret_allow: the methods that the path
 * does have, "GET, HEAD, POST", or NULL when there is no such path. HEAD is
 * what GET is.
 */
const struct kve_http_route *kve_router_find(const struct kve_router *router,
    const char *path, enum kve_method method, const char **ret_allow);

enum kve_method kve_method_of(const char *text);

#endif
