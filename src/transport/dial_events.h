/*
 * dial_events.h - inside of a dial: what the socket library's monitor says
 * about a connection, and what follows from it.
 *
 *     monitor --> up, lost, refused, tried again --> events for the owner
 *                                               \-> times at which dial.c
 *                                                   looks up, moves, revives
 */
#ifndef KVE_TRANSPORT_DIAL_EVENTS_H
#define KVE_TRANSPORT_DIAL_EVENTS_H

#include "transport/dial.h"

/* First pause before a connection that was cut is made again. */
#define KVE_REVIVE_MS 1000

/* Add an event for the owner. */
void kve_dial_push(struct kve_dial *dial, enum kve_link_event_type type,
    const char *fmt, ...) KVE_PRINTF(3, 4);

kve_status kve_dial_start_monitor(struct kve_dial *dial, struct kve_error *err);

/* Read what the monitor says, as far as there is room for events. */
void kve_dial_read_events(struct kve_dial *dial, int64_t now_ns);

/* The connection is up. */
void kve_dial_on_up(struct kve_dial *dial, int64_t now_ns);

/* A word of the monitor makes at most one event; places are kept for those
 * that the dial adds itself. */
static inline bool
kve_dial_has_room(const struct kve_dial *dial)
{
    return dial->n_events < KVE_DIAL_EVENTS - 2;
}

static inline bool
kve_dial_has_name(const struct kve_dial *dial)
{
    return dial->endpoint.scheme == KVE_SCHEME_TCP && !dial->endpoint.numeric &&
        !dial->bound;
}

static inline uint32_t
kve_dial_doubled(uint32_t pause_ms, uint32_t max_ms)
{
    return pause_ms >= max_ms / 2 ? max_ms : 2 * pause_ms;
}

#endif
