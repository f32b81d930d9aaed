/*
 * dial_events.c - see dial_events.h.
 */
#include "transport/dial_events.h"

#include "transport/context.h"
#include "transport/sock.h"

#include "base/clock.h"
#include "base/status.h"

#include <zmq.h>

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* How long the library may take to announce its next try. */
#define GRACE_MS 300
/* A connection that lived so long was a good one: pauses start anew. */
#define GOOD_CONNECTION_MS 60000

#define MONITOR_EVENTS                                                         \
    (ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_DISCONNECTED |                      \
        ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | \
        ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)

void
kve_dial_push(
    struct kve_dial *dial, enum kve_link_event_type type, const char *fmt, ...)
{
    struct kve_link_event *event;
    va_list ap;

    /* Full: the last one is replaced. Reading stops before that, so only
     * events of our own can meet a full ring. */
    if (dial->n_events == KVE_DIAL_EVENTS)
        dial->n_events--;
    event = &dial->events[(dial->first + dial->n_events) % KVE_DIAL_EVENTS];
    dial->n_events++;
    event->type = type;
    event->peers = dial->bound ? dial->peers : type == KVE_LINK_CONNECTED;
    va_start(ap, fmt);
    (void)vsnprintf(event->detail, sizeof(event->detail), fmt, ap);
    va_end(ap);
}

/* A connection is gone or was refused: ask for the name again, at most once
 * for each interval of reconnecting. */
static void
want_lookup(struct kve_dial *dial, int64_t now_ns)
{
    int64_t earliest = dial->looked_up + dial->reconnect_ms * KVE_MS;

    if (kve_dial_has_name(dial) && dial->lookup == NULL &&
        dial->lookup_at == KVE_NEVER)
        dial->lookup_at = earliest > now_ns ? earliest : now_ns;
}

void
kve_dial_on_up(struct kve_dial *dial, int64_t now_ns)
{
    dial->up = true;
    dial->peers++;
    dial->up_since = now_ns;
    dial->lost = false;
    dial->failed = 0;
    dial->revive_at = KVE_NEVER;
    dial->move_at = KVE_NEVER;
    dial->move_pause_ms = dial->reconnect_ms;
    kve_dial_push(dial, KVE_LINK_CONNECTED, "%s", dial->target);
}

/* Gone or refused; whether the library goes on trying shows in a moment. */
static void
on_down(struct kve_dial *dial, int64_t now_ns)
{
    if (dial->up && now_ns - dial->up_since > GOOD_CONNECTION_MS * KVE_MS)
        dial->revive_pause_ms = KVE_REVIVE_MS;
    if (!dial->lost)
        dial->was_up = dial->up;
    dial->up = false;
    dial->lost = true;
    dial->revive_at = now_ns +
        (dial->revive_pause_ms > GRACE_MS ? dial->revive_pause_ms : GRACE_MS) *
            KVE_MS;
    want_lookup(dial, now_ns);
}

/*
 * A peer of a bound socket left. One whose handshake was refused says so first
 * and then leaves as well; it was never counted, and nothing is told of it.
 */
static void
on_peer_gone(struct kve_dial *dial)
{
    if (dial->refused > 0) {
        dial->refused--;
        return;
    }
    if (dial->peers > 0)
        dial->peers--;
    dial->up = dial->peers > 0;
    kve_dial_push(dial, KVE_LINK_DISCONNECTED, "%s", dial->text);
}

/* The library announced its next try. */
static void
on_retried(struct kve_dial *dial, int64_t now_ns)
{
    bool was_lost = dial->lost;

    dial->lost = false;
    dial->revive_at = KVE_NEVER;
    want_lookup(dial, now_ns);
    if (was_lost || dial->addrs.n < 2 || dial->move)
        return;

    /* Refused: the next address at once, and after all of them a pause, in
     * which the library goes on with the last one. */
    dial->failed++;
    dial->at = (dial->at + 1) % dial->addrs.n;
    if (dial->failed % dial->addrs.n != 0) {
        dial->move = true;
        return;
    }
    if (dial->move_at == KVE_NEVER)
        dial->move_at = now_ns + dial->move_pause_ms * KVE_MS;
    dial->move_pause_ms =
        kve_dial_doubled(dial->move_pause_ms, dial->reconnect_max_ms);
}

static void
on_refused(
    struct kve_dial *dial, unsigned event, uint32_t value, int64_t now_ns)
{
    switch (event) {
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        kve_dial_push(dial, KVE_LINK_REFUSED,
            "%.90s refused the keys (status %lu): the publisher does not know "
            "this client's public key",
            dial->text, (unsigned long)value);
        break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        kve_dial_push(dial, KVE_LINK_REFUSED,
            "%.90s: the handshake failed (0x%08lx): CURVE at one end only, "
            "another socket type, or no ZeroMQ at all",
            dial->text, (unsigned long)value);
        break;
    default:
        kve_dial_push(dial, KVE_LINK_REFUSED,
            "%.90s: the peer ended the handshake (%s): wrong keys, or no "
            "ZeroMQ "
            "at all",
            dial->text, value != 0 ? zmq_strerror((int)value) : "closed");
        break;
    }
    if (dial->bound)
        dial->refused += event != ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
    else
        on_down(dial, now_ns);
}

static void
on_event(struct kve_dial *dial, unsigned event, uint32_t value,
    const char *endpoint, int64_t now_ns)
{
    /* Late words about the address we left. */
    if (!dial->bound && strcmp(endpoint, dial->previous) == 0 &&
        strcmp(endpoint, dial->target) != 0)
        return;
    switch (event) {
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        kve_dial_on_up(dial, now_ns);
        break;
    case ZMQ_EVENT_CONNECT_RETRIED:
        on_retried(dial, now_ns);
        break;
    case ZMQ_EVENT_DISCONNECTED:
        if (dial->bound) {
            on_peer_gone(dial);
            break;
        }
        if (dial->up)
            kve_dial_push(dial, KVE_LINK_DISCONNECTED, "%s", dial->text);
        else if (!dial->lost)
            kve_dial_push(dial, KVE_LINK_REFUSED,
                "%.90s: the handshake failed: another socket type, or no "
                "ZeroMQ at all",
                dial->text);
        on_down(dial, now_ns);
        break;
    default:
        on_refused(dial, event, value, now_ns);
        break;
    }
}

/* One event of the monitor: two frames. False: none there. */
static bool
read_event(struct kve_dial *dial, int64_t now_ns)
{
    uint8_t head[6] = { 0 };
    char endpoint[KVE_ENDPOINT_MAX];
    uint16_t event;
    uint32_t value;
    int len = zmq_recv(dial->monitor, head, sizeof(head), ZMQ_DONTWAIT);

    if (len < 0)
        return errno == EINTR;
    memcpy(&event, head, sizeof(event));
    memcpy(&value, head + 2, sizeof(value));
    len = zmq_recv(dial->monitor, endpoint, sizeof(endpoint) - 1, ZMQ_DONTWAIT);
    if (len < 0)
        return true;
    if ((size_t)len > sizeof(endpoint) - 1)
        len = sizeof(endpoint) - 1;
    endpoint[len] = '\0';
    on_event(dial, event, value, endpoint, now_ns);
    return true;
}

void
kve_dial_read_events(struct kve_dial *dial, int64_t now_ns)
{
    while (dial->monitor != NULL && kve_dial_has_room(dial) &&
        read_event(dial, now_ns))
        continue;
}

kve_status
kve_dial_start_monitor(struct kve_dial *dial, struct kve_error *err)
{
    static atomic_uint names;
    char name[64];
    int zero = 0;
    int why;

    /* First, since events that nobody can read would hold up the library's
     * I/O thread. */
    dial->monitor = zmq_socket(kve_context_zmq(dial->context), ZMQ_PAIR);
    if (dial->monitor == NULL)
        goto fail;
    /* No limit: the library's I/O thread, which serves every socket, waits
     * when it cannot hand over an event. Few events come, a reconnect makes
     * three. */
    (void)zmq_setsockopt(dial->monitor, ZMQ_RCVHWM, &zero, sizeof(zero));
    (void)zmq_setsockopt(dial->monitor, ZMQ_LINGER, &zero, sizeof(zero));
    /* A ZeroMQ context can be shared with another copy of this library. */
    (void)snprintf(name, sizeof(name), "inproc://kve-link-%p-%u",
        (void *)&names,
        atomic_fetch_add_explicit(&names, 1, memory_order_relaxed));
    if (zmq_socket_monitor(dial->socket, name, MONITOR_EVENTS) == 0 &&
        zmq_connect(dial->monitor, name) == 0)
        return KVE_OK;

fail:
    why = errno;
    if (dial->monitor != NULL) {
        (void)zmq_socket_monitor(dial->socket, NULL, 0);
        (void)zmq_close(dial->monitor);
    }
    dial->monitor = NULL;
    errno = why;
    if (why == EMFILE)
        return kve_sock_exhausted(err);
    return kve_fail(err, KVE_E_SYSTEM, "connection events of %s: %s",
        dial->text, zmq_strerror(errno));
}
