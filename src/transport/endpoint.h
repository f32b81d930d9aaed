/*
 * endpoint.h - endpoints as text: parts, ranks, ranges, who binds.
 *
 *     tcp://HOST:PORT    HOST a name, an IPv4 address, *, or [IPv6], perhaps
 *                        with a zone: [fe80::1%eth0]; PORT 0..65535 or *
 *     ipc://PATH         a path, or @abstract
 *     inproc://NAME
 *
 * Pure text work: nothing is resolved or opened here.
 */
#ifndef KVE_TRANSPORT_ENDPOINT_H
#define KVE_TRANSPORT_ENDPOINT_H

#include <kvevents/context.h>
#include <kvevents/status.h>

#include <stdbool.h>
#include <stdint.h>

enum kve_scheme { KVE_SCHEME_TCP, KVE_SCHEME_IPC, KVE_SCHEME_INPROC };

#define KVE_ENDPOINT_MAX 512 /* bytes of an endpoint's text, terminator too */

struct kve_endpoint {
    enum kve_scheme scheme;
    char host[256]; /* tcp: without brackets and zone; "*" for all */
    char zone[32];  /* tcp: after %, or "" */
    bool ipv6;      /* tcp: host stood in brackets */
    bool numeric;   /* tcp: host is an address, not a name */
    bool wildcard;  /* tcp: *, 0.0.0.0 or [::] */
    bool any_port;  /* tcp: the port is 0 or *: the system chooses */
    uint16_t port;  /* tcp */
    char path[KVE_ENDPOINT_MAX]; /* ipc: path; inproc: name */
};

/* KVE_OK, or KVE_E_INVAL with a text that says what is accepted. what names
 * the option in the text, "endpoint" for instance. */
kve_status kve_endpoint_parse(const char *text, const char *what,
    struct kve_endpoint *ret, struct kve_error *err);

/* Whether this end binds, after enum kve_bind; publisher decides the default.
 */
bool kve_endpoint_binds(const struct kve_endpoint *endpoint, const char *text,
    uint32_t bind, bool publisher);

/* An endpoint of a publisher, and the words that an error uses for it. */
struct kve_endpoint_role {
    const char *text;   /* NULL or "": there is none */
    const char *ports;  /* "live", as in "live ports 1..2" */
    const char *option; /* "endpoint" */
};

/*
 * Check two endpoints of a deployment of ranks publishers: no port above
 * 65535 for any rank, and no port of the one that is a port of the other for
 * another rank. The text of a refusal names both ranges.
 */
kve_status kve_endpoint_check_apart(const struct kve_endpoint_role *first,
    const struct kve_endpoint_role *second, uint32_t ranks,
    struct kve_error *err);

#endif
