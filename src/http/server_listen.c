/*
 * server_listen.c - see server_listen.h.
 *
 * The address is numeric: a name could be several addresses, and which of them
 * answers would be an accident. "*" is every address of both families, where
 * the machine has both.
 */
#include "http/server_listen.h"

#include "base/status.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 1024

union address {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

struct where {
    union address address;
    socklen_t len;
    bool dual; /* "*" */
};

static bool
parse_port(const char *text, uint16_t *ret)
{
    unsigned port = 0;

    if (text[0] == '\0' || strlen(text) > 5)
        return false;
    for (const char *p = text; *p != '\0'; p++) {
        if (*p < '0' || *p > '9')
            return false;
        port = port * 10 + (unsigned)(*p - '0');
    }
    if (port > 65535)
        return false;
    *ret = (uint16_t)port;
    return true;
}

static void
set_inet6(struct where *where, const struct in6_addr *host, uint16_t port)
{
    where->address.in6.sin6_family = AF_INET6;
    where->address.in6.sin6_addr = *host;
    where->address.in6.sin6_port = htons(port);
    where->len = sizeof(where->address.in6);
}

static bool
parse_host(const char *host, uint16_t port, struct where *ret)
{
    struct where where = { .dual = false };
    struct in6_addr inet6;
    size_t len = strlen(host);
    char inner[INET6_ADDRSTRLEN + 1];

    if (strcmp(host, "*") == 0) {
        where.dual = true;
        set_inet6(&where, &in6addr_any, port);
    } else if (host[0] == '[') {
        if (host[len - 1] != ']' || len - 2 >= sizeof(inner))
            return false;
        memcpy(inner, host + 1, len - 2);
        inner[len - 2] = '\0';
        if (inet_pton(AF_INET6, inner, &inet6) != 1)
            return false;
        set_inet6(&where, &inet6, port);
    } else {
        if (strcmp(host, "localhost") == 0)
            host = "127.0.0.1";
        if (inet_pton(AF_INET, host, &where.address.in.sin_addr) != 1)
            return false;
        where.address.in.sin_family = AF_INET;
        where.address.in.sin_port = htons(port);
        where.len = sizeof(where.address.in);
    }
    *ret = where;
    return true;
}

static kve_status
parse(const char *text, struct where *ret, struct kve_error *err)
{
    const char *colon = strrchr(text, ':');
    char host[INET6_ADDRSTRLEN + 8];
    uint16_t port;

    if (colon == NULL || colon == text ||
        (size_t)(colon - text) >= sizeof(host))
        goto bad;
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = '\0';
    if (!parse_port(colon + 1, &port) || !parse_host(host, port, ret))
        goto bad;
    return KVE_OK;

bad:
    return kve_fail(err, KVE_E_INVAL,
        "listen address \"%.80s\" is not HOST:PORT with a numeric HOST; "
        "accepted are 127.0.0.1:8090, [::1]:8090, localhost:8090, *:8090, and "
        "port 0 for any free one",
        text);
}

static kve_status
fail(const char *text, int error, struct kve_error *err)
{
    if (error == EADDRINUSE)
        return kve_fail(err, KVE_E_IN_USE,
            "cannot listen on %s: the address is in use, by another service "
            "or by another one of this kind; stop it, or choose another port",
            text);
    if (error == EADDRNOTAVAIL)
        return kve_fail(err, KVE_E_SYSTEM,
            "cannot listen on %s: this machine has no such address; 127.0.0.1 "
            "or * are always there",
            text);
    if (error == EACCES)
        return kve_fail(err, KVE_E_SYSTEM,
            "cannot listen on %s: permission denied; ports below 1024 need a "
            "privilege",
            text);
    return kve_fail(
        err, KVE_E_SYSTEM, "cannot listen on %s: %s", text, strerror(error));
}

/* The socket, or -1 with errno. */
static int
open_socket(const struct where *where)
{
    int on = 1;
    int only = where->dual ? 0 : 1;
    int fd = socket(where->address.any.sa_family,
        SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (where->address.any.sa_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
    if (bind(fd, &where->address.any, where->len) != 0 ||
        listen(fd, BACKLOG) != 0) {
        int error = errno;

        (void)close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static bool
is_loopback(const struct where *where)
{
    if (where->address.any.sa_family == AF_INET)
        return (ntohl(where->address.in.sin_addr.s_addr) >> 24) == 127;
    return IN6_IS_ADDR_LOOPBACK(&where->address.in6.sin6_addr);
}

kve_status
kve_listen_open(const char *text, struct kve_listen *ret, struct kve_error *err)
{
    struct where where;
    union address bound;
    socklen_t len = sizeof(bound);
    kve_status status = parse(text, &where, err);
    int fd;

    if (status != KVE_OK)
        return status;
    fd = open_socket(&where);
    if (fd < 0 && where.dual && errno != EADDRINUSE && errno != EACCES) {
        /* A machine without IPv6. */
        uint16_t port = where.address.in6.sin6_port;

        memset(&where, 0, sizeof(where));
        where.address.in.sin_family = AF_INET;
        where.address.in.sin_addr.s_addr = htonl(INADDR_ANY);
        where.address.in.sin_port = port;
        where.len = sizeof(where.address.in);
        fd = open_socket(&where);
    }
    if (fd < 0)
        return fail(text, errno, err);
    if (getsockname(fd, &bound.any, &len) != 0) {
        status = fail(text, errno, err);
        (void)close(fd);
        return status;
    }
    ret->fd = fd;
    ret->inet6 = where.address.any.sa_family == AF_INET6;
    ret->port = ntohs(ret->inet6 ? bound.in6.sin6_port : bound.in.sin_port);
    ret->loopback = is_loopback(&where);
    return KVE_OK;
}
