/*
 * bind.c - see bind.h.
 *
 * ipc. Binding an ipc path removes what is there, be it a user's file or the
 * socket that a live publisher serves. So files are refused, and a lock on
 * PATH.lock is taken first; it ends with the process, however that ends. Who
 * let go removes the file; a file that was removed between open and lock is
 * noticed by its inode. Programs that do not lock are found by connecting to
 * them.
 */
#include "transport/bind.h"

#include "transport/context.h"
#include "transport/resolve.h"
#include "transport/sock.h"

#include "base/clock.h"
#include "base/status.h"

#include <zmq.h>

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BIND_RESOLVE_MS 5000
/* A file that somebody removes just now is soon the next one's. */
#define LOCK_TRIES 1000

/* 0 and the lock, or an errno. EWOULDBLOCK: somebody holds it. */
static int
lock_path(struct kve_bound *bound)
{
    for (int i = 0; i < LOCK_TRIES; i++) {
        struct stat opened;
        struct stat there;
        int fd = open(
            bound->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

        if (fd < 0)
            return errno;
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            int why = errno;

            (void)close(fd);
            return why;
        }
        if (fstat(fd, &opened) == 0 && stat(bound->lock_path, &there) == 0 &&
            opened.st_ino == there.st_ino && opened.st_dev == there.st_dev) {
            bound->lock_fd = fd;
            return 0;
        }
        (void)close(fd);
    }
    return EWOULDBLOCK;
}

/* Whether somebody listens there who did not lock. */
static bool
is_served(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return false;
    /* Endpoints with longer paths were refused. */
    memcpy(address.sun_path, path, strnlen(path, sizeof(address.sun_path) - 1));
    int rc = connect(fd, (struct sockaddr *)&address, sizeof(address));
    bool served = rc == 0 || errno == EAGAIN;
    (void)close(fd);
    return served;
}

static kve_status
lock_ipc(const char *text, const struct kve_endpoint *endpoint,
    struct kve_bound *bound, struct kve_error *err)
{
    struct stat there;

    /* Abstract names cannot be stolen; "*" is a fresh path. */
    if (endpoint->path[0] == '@' || strcmp(endpoint->path, "*") == 0)
        return KVE_OK;
    if (lstat(endpoint->path, &there) == 0 && !S_ISSOCK(there.st_mode))
        return kve_fail(err, KVE_E_INVAL,
            "cannot bind %s: there is something else than a socket, which "
            "binding would remove; choose another path",
            text);
    (void)snprintf(
        bound->lock_path, sizeof(bound->lock_path), "%s.lock", endpoint->path);

    int why = lock_path(bound);
    if (why == 0 && is_served(endpoint->path)) {
        kve_bound_release(bound, false);
        return kve_fail(err, KVE_E_IN_USE,
            "%s is in use: another program listens there; choose another path",
            text);
    }
    if (why == 0)
        return KVE_OK;
    if (why == EWOULDBLOCK)
        return kve_fail(err, KVE_E_IN_USE,
            "%s is in use: a running publisher holds %s; choose another path",
            text, bound->lock_path);
    errno = why;
    return kve_fail(err, KVE_E_SYSTEM, "%s: cannot lock %s: %s", text,
        bound->lock_path, strerror(why));
}

static kve_status
bind_failed(const char *text, int why, struct kve_error *err)
{
    errno = why;
    switch (why) {
    case EADDRINUSE:
        return kve_fail(err, KVE_E_IN_USE,
            "%s is in use: another publisher, pipeline stage or rank has it; "
            "give each its own port (rank, or port 0 for a free one), or end "
            "the other",
            text);
    case EADDRNOTAVAIL:
    case ENODEV:
        return kve_fail(err, KVE_E_SYSTEM,
            "cannot bind %s: no interface of this machine has that address; "
            "accepted are *, 127.0.0.1, [::1], an own address or interface",
            text);
    case EACCES:
        return kve_fail(err, KVE_E_SYSTEM,
            "cannot bind %s: permission denied; ports below 1024 are for root "
            "as a rule, and an ipc path needs a folder that can be written",
            text);
    case EINVAL:
        return kve_fail(err, KVE_E_INVAL,
            "cannot bind %s: not an address of this machine, or an interface "
            "or zone that it does not have",
            text);
    default:
        return kve_fail(
            err, KVE_E_SYSTEM, "cannot bind %s: %s", text, zmq_strerror(why));
    }
}

/* The endpoint as it was given, with the port the system chose. */
static void
note_endpoint(void *socket, const char *text,
    const struct kve_endpoint *endpoint, struct kve_bound *bound)
{
    char real[KVE_ENDPOINT_MAX];
    size_t len = sizeof(real);
    const char *port;

    (void)snprintf(bound->endpoint, sizeof(bound->endpoint), "%s", text);
    if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, real, &len) != 0)
        return;
    if (endpoint->scheme == KVE_SCHEME_IPC && strcmp(endpoint->path, "*") == 0)
        (void)snprintf(bound->endpoint, sizeof(bound->endpoint), "%s", real);
    if (endpoint->scheme != KVE_SCHEME_TCP || !endpoint->any_port ||
        (port = strrchr(real, ':')) == NULL)
        return;
    (void)snprintf(bound->endpoint, sizeof(bound->endpoint), "%.*s%s",
        (int)(strrchr(text, ':') - text), text, port);
}

/* The port of what was bound last, or port. */
static unsigned
real_port(void *socket, unsigned port)
{
    char real[KVE_ENDPOINT_MAX];
    size_t len = sizeof(real);
    const char *colon;

    if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, real, &len) == 0 &&
        (colon = strrchr(real, ':')) != NULL)
        port = (unsigned)strtoul(colon + 1, NULL, 10);
    return port;
}

/*
 * Bind every address of a name that is one of this machine, so that a reader
 * that tries only one of them finds us: localhost is often two. With a port
 * that the system chooses, the first address decides. 0 or an errno.
 */
static int
bind_addresses(void *socket, const struct kve_endpoint *endpoint,
    const struct kve_addrs *addrs)
{
    unsigned port = endpoint->port;
    size_t n_bound = 0;
    int why = EADDRNOTAVAIL;

    for (size_t i = 0; i < addrs->n; i++) {
        char text[128];
        int ipv6 = addrs->text[i][0] == '[';

        (void)snprintf(text, sizeof(text), "tcp://%s:%u", addrs->text[i], port);
        (void)zmq_setsockopt(socket, ZMQ_IPV6, &ipv6, sizeof(ipv6));
        if (zmq_bind(socket, text) == 0) {
            n_bound++;
            port = real_port(socket, port);
            continue;
        }
        why = errno;
        if (why == EADDRINUSE && !endpoint->any_port)
            return why;
    }
    return n_bound > 0 ? 0 : why;
}

static kve_status
bind_name(kve_context *context, void *socket, const char *text,
    const struct kve_endpoint *endpoint, struct kve_error *err)
{
    struct kve_resolver *resolver = kve_context_resolver(context);
    struct kve_lookup *lookup = NULL;
    struct kve_addrs addrs = { 0 };
    struct pollfd item = { -1, POLLIN, 0 };
    char why[120] = "";
    int64_t until = kve_now_ns() + BIND_RESOLVE_MS * KVE_MS;
    kve_status status;

    if (resolver == NULL)
        return kve_fail_nomem(err, "resolver");
    item.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (item.fd < 0)
        return kve_fail(err, KVE_E_SYSTEM, "eventfd: %s", strerror(errno));
    status = kve_lookup_start(resolver, endpoint->host, item.fd, &lookup, err);
    if (status != KVE_OK)
        goto out;
    while (!kve_lookup_done(lookup, &addrs, why, sizeof(why)) &&
        kve_now_ns() < until)
        (void)poll(&item, 1, kve_ms_until(until, kve_now_ns()));

    if (addrs.n == 0) {
        errno = EADDRNOTAVAIL;
        status = kve_fail(err, KVE_E_SYSTEM,
            "cannot bind %s: '%s' is not resolved: %s", text, endpoint->host,
            *why != '\0' ? why : "no answer in time");
        goto out;
    }
    int failed = bind_addresses(socket, endpoint, &addrs);
    if (failed != 0)
        status = bind_failed(text, failed, err);

out:
    kve_lookup_end(lookup);
    (void)close(item.fd);
    return status;
}

/* 0 or an errno. An interface's IPv4 address is meant when it has one. */
static int
bind_interface(void *socket, const char *text)
{
    for (int ipv6 = 0; ipv6 <= 1; ipv6++) {
        (void)zmq_setsockopt(socket, ZMQ_IPV6, &ipv6, sizeof(ipv6));
        if (zmq_bind(socket, text) == 0)
            return 0;
        if (errno == EADDRINUSE)
            break;
    }
    return errno;
}

/* 0 or an errno. */
static int
bind_address(
    void *socket, const char *text, const struct kve_endpoint *endpoint)
{
    kve_sock_set_family(socket, endpoint);
    return zmq_bind(socket, text) == 0 ? 0 : errno;
}

kve_status
kve_bind_socket(kve_context *context, void *socket, const char *text,
    const struct kve_endpoint *endpoint, struct kve_bound *bound,
    struct kve_error *err)
{
    bool name = endpoint->scheme == KVE_SCHEME_TCP && !endpoint->numeric;
    bool interface = name && if_nametoindex(endpoint->host) != 0;
    kve_status status = KVE_OK;
    int failed = 0;

    if (endpoint->scheme == KVE_SCHEME_IPC)
        status = lock_ipc(text, endpoint, bound, err);
    if (status != KVE_OK)
        return status;

    if (interface)
        failed = bind_interface(socket, text);
    else if (name)
        status = bind_name(context, socket, text, endpoint, err);
    else
        failed = bind_address(socket, text, endpoint);
    if (failed != 0)
        status = bind_failed(text, failed, err);
    if (status == KVE_OK)
        note_endpoint(socket, text, endpoint, bound);
    else
        kve_bound_release(bound, false);
    return status;
}

void
kve_bound_release(struct kve_bound *bound, bool forked)
{
    if (bound->lock_fd < 0)
        return;
    /* The library leaves the path behind; while the lock is held nobody else
     * can have bound it. */
    if (!forked && bound->endpoint[0] != '\0')
        (void)unlink(bound->endpoint + strlen("ipc://"));
    if (!forked)
        (void)unlink(bound->lock_path);
    (void)close(bound->lock_fd);
    bound->lock_fd = -1;
}
