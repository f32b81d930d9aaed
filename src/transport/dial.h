/*
 * dial.h - the connecting end: names, reconnects, what became of them.
 *
 * A dial belongs to one socket, which it connects. The socket library
 * reconnects by itself as long as the address stays; the dial does the rest:
 *
 *   - it looks the host's name up before the first connect and again each
 *     time a connection was lost or refused, and moves to another address
 *     when the one in use is no longer among the name's;
 *   - a name with several addresses (localhost) is tried address by address;
 *   - the library gives a connection up for good after a protocol error (a
 *     frame above the limit, bytes that are no ZMTP, refused keys): the dial
 *     connects again, with a growing pause.
 *
 * How a cut for a protocol error is told from a peer that went away: after a
 * lost connection the library announces its next try at once
 * (ZMQ_EVENT_CONNECT_RETRIED), after a protocol error never. So a connection
 * that was up, is gone and is not tried again for GRACE_MS was cut by this
 * end. Over ZMTP, with the sizes of frames limited, that means an oversize
 * frame, or else a broken peer; the event's text says both.
 *
 *     step:  look-up answers -> connection events -> what is due
 *
 * Moving away from an address throws away what was received from it and not
 * read yet. So a move waits until its owner has read everything: step() only
 * decides, kve_dial_drained() moves.
 *
 * For a bound socket a dial only tells of its peers.
 */
#ifndef KVE_TRANSPORT_DIAL_H
#define KVE_TRANSPORT_DIAL_H

#include "transport/endpoint.h"
#include "transport/resolve.h"
#include "transport/transport.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVE_DIAL_EVENTS 16

/* When connection events are watched, which costs two more sockets. */
enum kve_dial_watch {
    KVE_WATCH_ALWAYS,
    KVE_WATCH_SEVERAL /* only while a name has several addresses */
};

struct kve_dial {
    kve_context *context; /* borrowed */
    void *socket;         /* borrowed */
    void *monitor;        /* our end, or NULL */
    bool bound;           /* the socket is bound: nothing to connect */
    struct kve_endpoint endpoint;
    char text[KVE_ENDPOINT_MAX];
    uint32_t reconnect_ms;
    uint32_t reconnect_max_ms;
    uint32_t resolve_timeout_ms;

    /* Where to. */
    struct kve_addrs addrs;        /* of a name */
    size_t at;                     /* which one is meant */
    size_t failed;                 /* refused ones since the last connection */
    char target[KVE_ENDPOINT_MAX]; /* given to the library; "": none yet */
    char previous[KVE_ENDPOINT_MAX]; /* its late events mean nothing */
    bool move;   /* to addrs[at], or the same again, when drained */
    bool dialed; /* connected since kve_dial_dialed() was asked */

    /* A look-up that is under way, or due. */
    int fd; /* eventfd; -1 without a name */
    struct kve_lookup *lookup;
    int64_t lookup_until;
    int64_t lookup_at;
    int64_t looked_up; /* when the last one began */
    uint32_t lookup_pause_ms;

    /* The connection. */
    bool up;
    uint32_t peers;   /* of a bound socket: handshakes done, not gone yet */
    uint32_t refused; /* of a bound socket: refused ones, not gone yet */
    bool was_up;      /* before it was lost */
    bool lost;        /* and the library did not say that it tries again */
    int64_t up_since;
    int64_t revive_at;
    uint32_t revive_pause_ms;
    int64_t move_at;
    uint32_t move_pause_ms;

    /* Events that were not fetched yet. */
    struct kve_link_event events[KVE_DIAL_EVENTS];
    size_t first;
    size_t n_events;
    size_t max_body_len; /* for a text */
};

/* Connect socket, or begin to: returns at once. End with kve_dial_release()
 * before the socket is closed, also after a failure. */
kve_status kve_dial_init(struct kve_dial *dial, kve_context *context,
    void *socket, const struct kve_dial_opts *opts,
    const struct kve_endpoint *endpoint, enum kve_dial_watch watch,
    struct kve_error *err);

/* The same for a socket that is or will be bound: events only. */
kve_status kve_dial_init_bound(struct kve_dial *dial, kve_context *context,
    void *socket, const char *text, const struct kve_endpoint *endpoint,
    struct kve_error *err);

/* In a forked child only memory is freed. */
void kve_dial_release(struct kve_dial *dial, bool forked);

/* Descriptors of the dial itself: at most 2. */
size_t kve_dial_fds(struct kve_dial *dial, int *ret_fds);
int64_t kve_dial_deadline(const struct kve_dial *dial);
kve_status kve_dial_step(struct kve_dial *dial, int64_t now_ns,
    bool *ret_fds_changed, struct kve_error *err);

/* The owner has read everything. Whether something was changed at the socket,
 * so that it has to be read once more. */
bool kve_dial_drained(struct kve_dial *dial);

/* Whether the socket was connected (again) since the last call: what was to
 * be sent has to be sent again. */
bool kve_dial_dialed(struct kve_dial *dial);

bool kve_dial_event(struct kve_dial *dial, struct kve_link_event *ret_event);

#endif
