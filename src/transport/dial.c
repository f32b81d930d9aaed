/*
 * dial.c - see dial.h.
 */
#include "transport/dial.h"

#include "transport/context.h"
#include "transport/dial_events.h"
#include "transport/sock.h"

#include "base/clock.h"
#include "base/status.h"

#include <zmq.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Longest pause after a cut, or the limit of reconnects when that is more. */
#define REVIVE_MAX_MS 30000
/* An address that does not answer at all must not hold up the others. */
#define CONNECT_TIMEOUT_MS 10000

/* ---- connecting ---- */

static void
leave(struct kve_dial *dial)
{
    if (dial->target[0] == '\0')
        return;
    /* What the library gave up itself is not there any more: no matter. */
    (void)zmq_disconnect(dial->socket, dial->target);
    if (dial->up)
        kve_dial_push(dial, KVE_LINK_DISCONNECTED, "%s", dial->text);
    dial->up = false;
}

/* Connect to the address that is meant, leaving the one there was. */
static kve_status
connect_now(struct kve_dial *dial, struct kve_error *err)
{
    char target[KVE_ENDPOINT_MAX];
    int timeout = CONNECT_TIMEOUT_MS;
    int ipv6;

    dial->move = false;
    dial->move_at = KVE_NEVER;
    dial->revive_at = KVE_NEVER;
    leave(dial);
    if (kve_dial_has_name(dial)) {
        const char *host = dial->addrs.text[dial->at];

        (void)snprintf(target, sizeof(target), "tcp://%s:%u", host,
            (unsigned)dial->endpoint.port);
        ipv6 = host[0] == '[';
        (void)zmq_setsockopt(dial->socket, ZMQ_IPV6, &ipv6, sizeof(ipv6));
    } else {
        (void)snprintf(target, sizeof(target), "%s", dial->text);
        kve_sock_set_family(dial->socket, &dial->endpoint);
    }
    if (strcmp(target, dial->target) != 0)
        (void)snprintf(
            dial->previous, sizeof(dial->previous), "%s", dial->target);
    (void)snprintf(dial->target, sizeof(dial->target), "%s", target);
    dial->lost = false;
    dial->dialed = true;

    (void)zmq_setsockopt(
        dial->socket, ZMQ_CONNECT_TIMEOUT, &timeout, sizeof(timeout));
    if (zmq_connect(dial->socket, target) == 0)
        return KVE_OK;
    dial->target[0] = '\0';
    return kve_fail(err, errno == EINVAL ? KVE_E_INVAL : KVE_E_SYSTEM,
        "cannot connect to %s: %s", dial->text, zmq_strerror(errno));
}

/* ---- names ---- */

static void
lookup_failed(struct kve_dial *dial, const char *why, int64_t now_ns)
{
    kve_dial_push(dial, KVE_LINK_RESOLVE_FAILED,
        "'%.100s' is not resolved: %.80s", dial->endpoint.host, why);
    dial->lookup_at = now_ns + dial->lookup_pause_ms * KVE_MS;
    dial->lookup_pause_ms =
        kve_dial_doubled(dial->lookup_pause_ms, dial->reconnect_max_ms);
}

static void
start_lookup(struct kve_dial *dial, int64_t now_ns)
{
    struct kve_resolver *resolver = kve_context_resolver(dial->context);
    struct kve_error error = { 0 };

    dial->lookup_at = KVE_NEVER;
    dial->looked_up = now_ns;
    if (resolver == NULL) {
        lookup_failed(dial, "out of memory", now_ns);
        return;
    }
    if (kve_lookup_start(resolver, dial->endpoint.host, dial->fd, &dial->lookup,
            &error) != KVE_OK) {
        lookup_failed(dial, error.detail, now_ns);
        return;
    }
    dial->lookup_until = now_ns + dial->resolve_timeout_ms * KVE_MS;
}

/* Which of the addresses is connected to, or addrs->n. */
static size_t
find_target(const struct kve_dial *dial, const struct kve_addrs *addrs)
{
    char target[KVE_ENDPOINT_MAX];
    size_t i;

    for (i = 0; i < addrs->n; i++) {
        (void)snprintf(target, sizeof(target), "tcp://%s:%u", addrs->text[i],
            (unsigned)dial->endpoint.port);
        if (strcmp(target, dial->target) == 0)
            break;
    }
    return i;
}

/* A list with a first address, perhaps the list there was. */
static kve_status
take_addrs(struct kve_dial *dial, const struct kve_addrs *addrs,
    bool *ret_fds_changed, struct kve_error *err)
{
    size_t now = find_target(dial, addrs);

    dial->addrs = *addrs;
    dial->lookup_pause_ms = dial->reconnect_ms;
    if (addrs->n > 1 && dial->monitor == NULL) {
        kve_status status = kve_dial_start_monitor(dial, err);

        if (status != KVE_OK)
            return status;
        *ret_fds_changed = true;
    }
    if (now < addrs->n) {
        /* A move that is under way goes on, to the place it was meant for in
         * a list that may have another order. */
        if (!dial->move && dial->move_at == KVE_NEVER)
            dial->at = now;
        else
            dial->at = (now + 1) % addrs->n;
        return KVE_OK;
    }
    dial->at = 0;
    dial->failed = 0;
    if (dial->target[0] == '\0')
        return connect_now(dial, err);
    dial->move = true;
    return KVE_OK;
}

static kve_status
step_lookup(struct kve_dial *dial, int64_t now_ns, bool *ret_fds_changed,
    struct kve_error *err)
{
    struct kve_addrs addrs;
    char why[120] = "";
    uint64_t counter;

    if (dial->lookup == NULL)
        return KVE_OK;
    (void)!read(dial->fd, &counter, sizeof(counter));
    if (!kve_lookup_done(dial->lookup, &addrs, why, sizeof(why))) {
        if (now_ns < dial->lookup_until)
            return KVE_OK;
        (void)snprintf(why, sizeof(why), "no answer within %lu ms",
            (unsigned long)dial->resolve_timeout_ms);
        addrs.n = 0;
    }
    kve_lookup_end(dial->lookup);
    dial->lookup = NULL;
    if (addrs.n > 0)
        return take_addrs(dial, &addrs, ret_fds_changed, err);
    lookup_failed(dial, why, now_ns);
    return KVE_OK;
}

/* ---- the dial ---- */

static void
init_times(struct kve_dial *dial)
{
    dial->fd = -1;
    dial->lookup_at = KVE_NEVER;
    dial->looked_up = INT64_MIN / 2;
    dial->revive_at = KVE_NEVER;
    dial->move_at = KVE_NEVER;
    dial->revive_pause_ms = KVE_REVIVE_MS;
    dial->lookup_pause_ms = dial->reconnect_ms;
    dial->move_pause_ms = dial->reconnect_ms;
}

static kve_status
set_reconnect(struct kve_dial *dial, struct kve_error *err)
{
    kve_status status = kve_sock_set_int(dial->socket, ZMQ_RECONNECT_IVL,
        (int)dial->reconnect_ms, "reconnect_ms", err);

    if (status == KVE_OK)
        status = kve_sock_set_int(dial->socket, ZMQ_RECONNECT_IVL_MAX,
            (int)dial->reconnect_max_ms, "reconnect_max_ms", err);
    return status;
}

static uint32_t
or_default(uint32_t value, uint32_t otherwise)
{
    return value == 0 ? otherwise : value > INT32_MAX ? INT32_MAX : value;
}

kve_status
kve_dial_init(struct kve_dial *dial, kve_context *context, void *socket,
    const struct kve_dial_opts *opts, const struct kve_endpoint *endpoint,
    enum kve_dial_watch watch, struct kve_error *err)
{
    kve_status status;

    memset(dial, 0, sizeof(*dial));
    dial->context = context;
    dial->socket = socket;
    dial->endpoint = *endpoint;
    dial->max_body_len = opts->max_body_len;
    dial->reconnect_ms = or_default(opts->reconnect_ms, 100);
    dial->reconnect_max_ms = or_default(opts->reconnect_max_ms, 1000);
    if (dial->reconnect_max_ms < dial->reconnect_ms)
        dial->reconnect_max_ms = dial->reconnect_ms;
    dial->resolve_timeout_ms = or_default(opts->resolve_timeout_ms, 5000);
    (void)snprintf(dial->text, sizeof(dial->text), "%s", opts->endpoint);
    init_times(dial);

    if (endpoint->scheme == KVE_SCHEME_TCP &&
        (endpoint->any_port || strcmp(endpoint->host, "*") == 0))
        return kve_fail(err, KVE_E_INVAL,
            "cannot connect to %s: %s is for the end that binds; give a host "
            "and a port, or bind=yes",
            dial->text, endpoint->any_port ? "port 0 or *" : "*");
    status = set_reconnect(dial, err);
    if (status == KVE_OK && watch == KVE_WATCH_ALWAYS &&
        endpoint->scheme != KVE_SCHEME_INPROC)
        status = kve_dial_start_monitor(dial, err);
    if (status != KVE_OK)
        return status;

    if (kve_dial_has_name(dial)) {
        dial->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (dial->fd < 0)
            return kve_fail(err, KVE_E_SYSTEM, "eventfd: %s", strerror(errno));
        start_lookup(dial, kve_now_ns());
        return KVE_OK;
    }
    status = connect_now(dial, err);
    /* Nothing tells of in-process connections. */
    if (status == KVE_OK && endpoint->scheme == KVE_SCHEME_INPROC)
        kve_dial_on_up(dial, kve_now_ns());
    return status;
}

kve_status
kve_dial_init_bound(struct kve_dial *dial, kve_context *context, void *socket,
    const char *text, const struct kve_endpoint *endpoint,
    struct kve_error *err)
{
    memset(dial, 0, sizeof(*dial));
    dial->context = context;
    dial->socket = socket;
    dial->bound = true;
    dial->endpoint = *endpoint;
    (void)snprintf(dial->text, sizeof(dial->text), "%s", text);
    (void)snprintf(dial->target, sizeof(dial->target), "%s", text);
    init_times(dial);
    if (endpoint->scheme != KVE_SCHEME_INPROC)
        return kve_dial_start_monitor(dial, err);
    /* Nothing tells of in-process connections. */
    dial->peers = 1;
    kve_dial_push(dial, KVE_LINK_CONNECTED, "%s", text);
    return KVE_OK;
}

void
kve_dial_release(struct kve_dial *dial, bool forked)
{
    if (!forked) {
        kve_lookup_end(dial->lookup);
        if (dial->monitor != NULL) {
            (void)zmq_socket_monitor(dial->socket, NULL, 0);
            (void)zmq_close(dial->monitor);
        }
    }
    if (dial->fd >= 0)
        (void)close(dial->fd);
    dial->lookup = NULL;
    dial->monitor = NULL;
    dial->fd = -1;
}

size_t
kve_dial_fds(struct kve_dial *dial, int *ret_fds)
{
    size_t n = 0;

    if (dial->monitor != NULL)
        ret_fds[n++] = kve_sock_fd(dial->monitor);
    if (dial->fd >= 0)
        ret_fds[n++] = dial->fd;
    return n;
}

static int64_t
earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t
kve_dial_deadline(const struct kve_dial *dial)
{
    int64_t at = KVE_NEVER;

    if (dial->n_events > 0 || dial->move)
        return 0;
    if (dial->lookup != NULL)
        at = dial->lookup_until;
    at = earlier(at, dial->lookup_at);
    at = earlier(at, dial->revive_at);
    return earlier(at, dial->move_at);
}

static uint32_t
max_revive_ms(const struct kve_dial *dial)
{
    return dial->reconnect_max_ms > REVIVE_MAX_MS ? dial->reconnect_max_ms
                                                  : REVIVE_MAX_MS;
}

/* Lost, and the library is not trying again. */
static void
revive(struct kve_dial *dial)
{
    dial->revive_at = KVE_NEVER;
    dial->revive_pause_ms =
        kve_dial_doubled(dial->revive_pause_ms, max_revive_ms(dial));
    if (dial->was_up)
        kve_dial_push(dial, KVE_LINK_OVERSIZE,
            "%.90s: cut for a frame above max_body_len (%zu bytes), or for "
            "bytes that are no ZMTP",
            dial->text, dial->max_body_len);
    dial->move = true;
}

kve_status
kve_dial_step(struct kve_dial *dial, int64_t now_ns, bool *ret_fds_changed,
    struct kve_error *err)
{
    kve_status status = step_lookup(dial, now_ns, ret_fds_changed, err);

    if (status != KVE_OK)
        return status;
    kve_dial_read_events(dial, now_ns);
    if (now_ns >= dial->lookup_at)
        start_lookup(dial, now_ns);
    /* Not while the library's word can still be among unread events. */
    if (now_ns >= dial->revive_at && kve_dial_has_room(dial))
        revive(dial);
    if (now_ns >= dial->move_at) {
        dial->move_at = KVE_NEVER;
        dial->move = true;
    }
    return KVE_OK;
}

bool
kve_dial_drained(struct kve_dial *dial)
{
    struct kve_error error = { 0 };

    if (!dial->move)
        return false;
    if (connect_now(dial, &error) != KVE_OK)
        kve_context_log(dial->context, KVE_LOG_WARNING, "%s", error.detail);
    return true;
}

bool
kve_dial_dialed(struct kve_dial *dial)
{
    bool dialed = dial->dialed;

    dial->dialed = false;
    return dialed;
}

bool
kve_dial_event(struct kve_dial *dial, struct kve_link_event *ret_event)
{
    if (dial->n_events == 0)
        kve_dial_read_events(dial, kve_now_ns());
    if (dial->n_events == 0)
        return false;
    *ret_event = dial->events[dial->first];
    dial->first = (dial->first + 1) % KVE_DIAL_EVENTS;
    dial->n_events--;
    return true;
}
