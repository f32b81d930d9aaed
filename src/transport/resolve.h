/*
 * resolve.h - names to addresses, by threads of a context.
 *
 * getaddrinfo() has no deadline and cannot be cancelled, so it runs in worker
 * threads: up to KVE_RESOLVE_WORKERS, each started when all others are busy.
 * One look-up runs for a name at a time; who asks for a name that is being
 * looked up waits for that answer, so that a name that takes for ever holds
 * one worker however often it is asked for.
 *
 *     handle  --ask(name, eventfd)-->  jobs --> worker: getaddrinfo()
 *             <----- eventfd is written ------- answer copied to each asker
 *
 * The asker keeps the deadline: when it has passed it cancels, and an answer
 * that comes later is thrown away. Destroying does not wait for a stuck
 * look-up: its worker lets go of the last reference when it comes back.
 */
#ifndef KVE_TRANSPORT_RESOLVE_H
#define KVE_TRANSPORT_RESOLVE_H

#include <kvevents/status.h>

#include <stdbool.h>
#include <stddef.h>

#define KVE_RESOLVE_WORKERS 4
#define KVE_ADDRS_MAX 8

/* Addresses of a name in the resolver's order, as endpoints have them:
 * "127.0.0.1", "[::1]", "[fe80::1%eth0]". */
struct kve_addrs {
    size_t n;
    char text[KVE_ADDRS_MAX][80];
};

/* Look host up: 0 and at least one address, or -1 and why not. */
typedef int kve_resolve_fn(void *ctx, const char *host,
    struct kve_addrs *ret_addrs, char *ret_why, size_t why_cap);

struct kve_resolver;
struct kve_lookup;

struct kve_resolver *kve_resolver_create(void);
void kve_resolver_destroy(struct kve_resolver *resolver);

/* For tests: look names up with fn from now on. */
void kve_resolver_set_fn(
    struct kve_resolver *resolver, kve_resolve_fn *fn, void *ctx);

/* Start looking host up. fd, an eventfd, is written when the answer is there;
 * it stays the caller's. End with kve_lookup_end(). */
kve_status kve_lookup_start(struct kve_resolver *resolver, const char *host,
    int fd, struct kve_lookup **ret_lookup, struct kve_error *err);

/* Whether there is an answer; then either *ret_addrs or why (n is 0). */
bool kve_lookup_done(struct kve_lookup *lookup, struct kve_addrs *ret_addrs,
    char *ret_why, size_t why_cap);

/* Free, finished or not; fd is not written after this. NULL is allowed. */
void kve_lookup_end(struct kve_lookup *lookup);

#endif
