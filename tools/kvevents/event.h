/*
 * event.h - one event in either notation.
 *
 * Every field that was on the wire is written, in the wire's order, and no
 * other: an event shows what its producer sent. Fields this library does not
 * know follow with their values as they came.
 */
#ifndef KVEVENTS_TOOL_EVENT_H
#define KVEVENTS_TOOL_EVENT_H

#include "value.h"

#include <kvevents/event.h>

struct event_style {
    enum notation notation;
    uint64_t tokens; /* most token ids shown of one list */
    uint64_t hashes; /* most hashes shown of one list, for PYTHON */
};

/* BlockStored(block_hashes=[1], ...) or {"type":"BlockStored",...}. */
void event_write(struct out *out, const struct event_style *style,
    const struct kve_event *event);

#endif
