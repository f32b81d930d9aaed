/*
 * endpoint.c - see endpoint.h.
 *
 * The port of a TCP endpoint stands behind the last colon after the bracket
 * that closes an IPv6 address, or behind the last colon when there is none;
 * what is in front of it is the host. An IPv6 address without brackets is
 * refused with its bracketed form in the text, because its last group would
 * be taken for a port.
 */
#include "transport/endpoint.h"

#include "base/status.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

#define ACCEPTED "accepted are tcp://HOST:PORT, ipc://PATH and inproc://NAME"

/* Longest path of a local socket; its terminator is counted by the system,
 * the @ of an abstract name stands for the zero byte in front. */
#define IPC_PATH_MAX (sizeof(((struct sockaddr_un *)0)->sun_path) - 1)

/* Digits only: 0..65535, or -1. */
static int
parse_port(const char *text)
{
    uint32_t port = 0;

    if (*text == '\0' || strlen(text) > 5)
        return -1;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9')
            return -1;
        port = port * 10 + (uint32_t)(*text - '0');
    }
    return port <= 65535 ? (int)port : -1;
}

/* Letters, digits and what names of hosts and interfaces hold. */
static bool
is_host_name(const char *text)
{
    if (*text == '\0')
        return false;
    for (; *text != '\0'; text++)
        if (!isalnum((unsigned char)*text) && strchr("-_.", *text) == NULL)
            return false;
    return true;
}

/* Digits and dots only: meant as an IPv4 address. */
static bool
looks_like_ipv4(const char *text)
{
    return text[strspn(text, "0123456789.")] == '\0';
}

/* The host in [brackets], perhaps with %zone. */
static kve_status
parse_ipv6(const char *text, const char *what, const char *inner, size_t len,
    struct kve_endpoint *ret, struct kve_error *err)
{
    const char *percent = memchr(inner, '%', len);
    size_t host_len = percent != NULL ? (size_t)(percent - inner) : len;
    unsigned char address[sizeof(struct in6_addr)];

    if (host_len >= sizeof(ret->host))
        host_len = sizeof(ret->host) - 1;
    memcpy(ret->host, inner, host_len);
    ret->host[host_len] = '\0';
    if (percent != NULL) {
        size_t zone_len = len - host_len - 1;

        if (zone_len == 0 || zone_len >= sizeof(ret->zone))
            return kve_fail(err, KVE_E_INVAL,
                "%s '%s': behind %% the name of an interface is expected, "
                "[fe80::1%%eth0] for instance",
                what, text);
        memcpy(ret->zone, percent + 1, zone_len);
        ret->zone[zone_len] = '\0';
        if (!is_host_name(ret->zone))
            return kve_fail(err, KVE_E_INVAL,
                "%s '%s': '%s' is not the name of an interface", what, text,
                ret->zone);
    }
    if (inet_pton(AF_INET6, ret->host, address) != 1)
        return kve_fail(err, KVE_E_INVAL,
            "%s '%s': '%s' is not an IPv6 address; brackets are for these, "
            "names and IPv4 addresses go without",
            what, text, ret->host);

    static const unsigned char any[sizeof(address)];
    ret->ipv6 = true;
    ret->numeric = true;
    ret->wildcard = memcmp(address, any, sizeof(any)) == 0;
    return KVE_OK;
}

static kve_status
parse_plain_host(const char *text, const char *what, const char *host,
    size_t len, struct kve_endpoint *ret, struct kve_error *err)
{
    struct in_addr address;

    if (len == 0)
        return kve_fail(err, KVE_E_INVAL,
            "%s '%s' has no host; %s, HOST being a name, an address, "
            "[an IPv6 address] or *",
            what, text, ACCEPTED);
    if (len >= sizeof(ret->host))
        return kve_fail(err, KVE_E_INVAL,
            "%s: a host of %zu characters; at most %zu are accepted", what, len,
            sizeof(ret->host) - 1);
    memcpy(ret->host, host, len);
    ret->host[len] = '\0';

    if (strcmp(ret->host, "*") == 0) {
        ret->wildcard = true;
        ret->numeric = true;
        return KVE_OK;
    }
    if (strchr(ret->host, ':') != NULL)
        return kve_fail(err, KVE_E_INVAL,
            "%s '%s': an IPv6 address needs brackets: tcp://[%s]%s", what, text,
            ret->host, text + (host - text) + len);
    if (inet_pton(AF_INET, ret->host, &address) == 1) {
        ret->numeric = true;
        ret->wildcard = address.s_addr == 0;
        return KVE_OK;
    }
    if (looks_like_ipv4(ret->host) || !is_host_name(ret->host))
        return kve_fail(err, KVE_E_INVAL,
            "%s '%s': '%s' is neither a name nor an address", what, text,
            ret->host);
    return KVE_OK;
}

static kve_status
parse_tcp(const char *text, const char *what, struct kve_endpoint *ret,
    struct kve_error *err)
{
    const char *rest = text + strlen("tcp://");
    const char *bracket = *rest == '[' ? strchr(rest, ']') : NULL;
    const char *colon = strrchr(bracket != NULL ? bracket : rest, ':');
    kve_status status;

    if (*rest == '[' && bracket == NULL)
        return kve_fail(
            err, KVE_E_INVAL, "%s '%s': the closing ] is missing", what, text);
    if (colon == NULL || (bracket != NULL && colon != bracket + 1))
        return kve_fail(err, KVE_E_INVAL,
            "%s '%s' has no port; %s, PORT being 1..65535, or 0 or * for one "
            "that the system chooses",
            what, text, ACCEPTED);

    if (bracket != NULL)
        status = parse_ipv6(
            text, what, rest + 1, (size_t)(bracket - rest) - 1, ret, err);
    else
        status = parse_plain_host(
            text, what, rest, (size_t)(colon - rest), ret, err);
    if (status != KVE_OK)
        return status;

    int port = strcmp(colon + 1, "*") == 0 ? 0 : parse_port(colon + 1);
    if (port < 0)
        return kve_fail(err, KVE_E_INVAL,
            "%s '%s': port '%s' is not a number of 1..65535, nor 0 or * for "
            "one that the system chooses",
            what, text, colon + 1);
    ret->port = (uint16_t)port;
    ret->any_port = port == 0;
    return KVE_OK;
}

kve_status
kve_endpoint_parse(const char *text, const char *what, struct kve_endpoint *ret,
    struct kve_error *err)
{
    struct kve_endpoint endpoint;
    const char *rest = NULL;
    kve_status status = KVE_OK;

    if (text == NULL || *text == '\0')
        return kve_fail(err, KVE_E_INVAL, "%s is empty; %s", what, ACCEPTED);
    if (strlen(text) >= KVE_ENDPOINT_MAX)
        return kve_fail(err, KVE_E_INVAL,
            "%s is %zu characters long; at most %d are accepted", what,
            strlen(text), KVE_ENDPOINT_MAX - 1);

    memset(&endpoint, 0, sizeof(endpoint));
    if (strncmp(text, "tcp://", 6) == 0) {
        endpoint.scheme = KVE_SCHEME_TCP;
        status = parse_tcp(text, what, &endpoint, err);
    } else if (strncmp(text, "ipc://", 6) == 0) {
        endpoint.scheme = KVE_SCHEME_IPC;
        rest = text + 6;
    } else if (strncmp(text, "inproc://", 9) == 0) {
        endpoint.scheme = KVE_SCHEME_INPROC;
        rest = text + 9;
    } else {
        return kve_fail(err, KVE_E_INVAL, "%s '%s' has no known scheme; %s",
            what, text, ACCEPTED);
    }
    if (status != KVE_OK)
        return status;

    if (rest != NULL && (*rest == '\0' || strcmp(rest, "@") == 0))
        return kve_fail(err, KVE_E_INVAL, "%s '%s' has no %s; %s", what, text,
            endpoint.scheme == KVE_SCHEME_IPC ? "path" : "name", ACCEPTED);
    if (endpoint.scheme == KVE_SCHEME_IPC && strlen(rest) > IPC_PATH_MAX)
        return kve_fail(err, KVE_E_INVAL,
            "%s: an ipc path of %zu characters; the system accepts %zu", what,
            strlen(rest), IPC_PATH_MAX);
    if (rest != NULL)
        memcpy(endpoint.path, rest, strlen(rest) + 1);
    *ret = endpoint;
    return KVE_OK;
}

bool
kve_endpoint_binds(const struct kve_endpoint *endpoint, const char *text,
    uint32_t bind, bool publisher)
{
    switch (bind) {
    case KVE_BIND_YES:
        return true;
    case KVE_BIND_NO:
        return false;
    case KVE_BIND_GUESS:
        if (endpoint->scheme != KVE_SCHEME_TCP)
            return true;
        /* `::` in [::5] or [fd00::5] belongs to a whole address; a port of
         * * alone cannot be connected to. */
        return endpoint->wildcard || strchr(text, '*') != NULL;
    default:
        return publisher;
    }
}

/* Write host and port again; the zone goes back into the brackets. */
static int
write_tcp(const char *text, uint16_t port, char *ret_text, size_t cap)
{
    const char *colon = strrchr(text, ':');

    return snprintf(
        ret_text, cap, "%.*s:%u", (int)(colon - text), text, (unsigned)port);
}

kve_status
kve_endpoint_of_rank(const char *endpoint, uint32_t rank, char *ret_text,
    size_t cap, struct kve_error *err)
{
    struct kve_endpoint parts;
    char text[KVE_ENDPOINT_MAX + 16];
    int len;
    kve_status status = kve_endpoint_parse(endpoint, "endpoint", &parts, err);

    if (status != KVE_OK)
        return status;
    if (rank == 0 || (parts.scheme == KVE_SCHEME_TCP && parts.any_port)) {
        len = snprintf(text, sizeof(text), "%s", endpoint);
    } else if (parts.scheme == KVE_SCHEME_TCP) {
        if (rank > 65535u - parts.port)
            return kve_fail(err, KVE_E_INVAL,
                "endpoint '%s' of rank %" PRIu32 " would have port %" PRIu64
                ", above 65535; choose a port of at most %d",
                endpoint, rank, (uint64_t)parts.port + rank,
                rank < 65535 ? (int)(65535 - rank) : 0);
        len = write_tcp(
            endpoint, (uint16_t)(parts.port + rank), text, sizeof(text));
    } else {
        len = snprintf(text, sizeof(text), "%s_dp%" PRIu32, endpoint, rank);
        status = kve_endpoint_parse(text, "endpoint of this rank", &parts, err);
        if (status != KVE_OK)
            return status;
    }

    if ((size_t)len >= cap)
        return kve_fail(err, KVE_E_LIMIT,
            "endpoint of %d characters; there is room for %zu", len,
            cap > 0 ? cap - 1 : 0);
    memcpy(ret_text, text, (size_t)len + 1);
    return KVE_OK;
}

/* Whether two hosts can be one address of one machine. Names can be
 * anything; so they collide with everything. */
static bool
hosts_collide(const struct kve_endpoint *a, const struct kve_endpoint *b)
{
    unsigned char x[sizeof(struct in6_addr)];
    unsigned char y[sizeof(struct in6_addr)];
    int family = a->ipv6 ? AF_INET6 : AF_INET;

    if (a->wildcard || b->wildcard || !a->numeric || !b->numeric)
        return true;
    if (a->ipv6 != b->ipv6 || strcmp(a->zone, b->zone) != 0)
        return false;
    if (inet_pton(family, a->host, x) != 1 ||
        inet_pton(family, b->host, y) != 1)
        return true;
    return memcmp(x, y, a->ipv6 ? 16 : 4) == 0;
}

/* "port 5557", or "ports 5557..5564". */
static void
write_range(const struct kve_endpoint *endpoint, const char *what,
    uint32_t ranks, char *ret_text, size_t cap)
{
    if (ranks == 1)
        (void)snprintf(
            ret_text, cap, "%s port %u", what, (unsigned)endpoint->port);
    else
        (void)snprintf(ret_text, cap, "%s ports %u..%" PRIu64, what,
            (unsigned)endpoint->port, (uint64_t)endpoint->port + ranks - 1);
}

static kve_status
check_overflow(const struct kve_endpoint *endpoint, const char *what,
    uint32_t ranks, struct kve_error *err)
{
    char range[64];

    if (endpoint->scheme != KVE_SCHEME_TCP || endpoint->any_port ||
        ranks - 1 <= 65535u - endpoint->port)
        return KVE_OK;
    write_range(endpoint, what, ranks, range, sizeof(range));
    if (ranks > 65535)
        return kve_fail(err, KVE_E_INVAL,
            "%s of %" PRIu32 " ranks pass 65535; there are not that many "
            "ports: use fewer ranks, or port 0",
            range, ranks);
    return kve_fail(err, KVE_E_INVAL,
        "%s of %" PRIu32 " ranks pass 65535; choose a base port of at most "
        "%u, or port 0",
        range, ranks, (unsigned)(65536 - ranks));
}

kve_status
kve_endpoint_check_apart(const struct kve_endpoint_role *first,
    const struct kve_endpoint_role *second, uint32_t ranks,
    struct kve_error *err)
{
    struct kve_endpoint a;
    struct kve_endpoint b;
    char a_range[64];
    char b_range[64];
    kve_status status;

    if (ranks == 0)
        ranks = 1;
    if (first->text == NULL || *first->text == '\0')
        return KVE_OK;
    status = kve_endpoint_parse(first->text, first->option, &a, err);
    if (status == KVE_OK)
        status = check_overflow(&a, first->ports, ranks, err);
    if (status != KVE_OK || second->text == NULL || *second->text == '\0')
        return status;
    status = kve_endpoint_parse(second->text, second->option, &b, err);
    if (status == KVE_OK)
        status = check_overflow(&b, second->ports, ranks, err);
    if (status != KVE_OK || a.scheme != b.scheme)
        return status;

    if (a.scheme != KVE_SCHEME_TCP) {
        if (strcmp(a.path, b.path) != 0)
            return KVE_OK;
        return kve_fail(err, KVE_E_INVAL,
            "%s and %s are both '%s'; they need two names", first->option,
            second->option, first->text);
    }
    if (a.any_port || b.any_port || !hosts_collide(&a, &b))
        return KVE_OK;

    /* Equal lengths: they overlap when the starts are closer than that. */
    uint32_t apart = a.port < b.port ? (uint32_t)(b.port - a.port)
                                     : (uint32_t)(a.port - b.port);
    if (apart >= ranks)
        return KVE_OK;
    write_range(&a, first->ports, ranks, a_range, sizeof(a_range));
    write_range(&b, second->ports, ranks, b_range, sizeof(b_range));
    return kve_fail(err, KVE_E_INVAL,
        "%s and %s overlap (%" PRIu32 " rank%s); choose ports at least "
        "%" PRIu32 " apart",
        a_range, b_range, ranks, ranks == 1 ? "" : "s", ranks);
}
