/*
 * serve_events.h - what an ingest says, as lines of the log.
 *
 * Every loss, refusal and restart of a stream is a line with the source's
 * worker, rank and endpoint's numbers; changes of state are lines, too. Batches
 * are none. What a stream holds is never said: only numbers and names.
 */
#ifndef KVEVENTS_TOOL_SERVE_EVENTS_H
#define KVEVENTS_TOOL_SERVE_EVENTS_H

#include "logs.h"

#include <kvevents/ingest.h>

/* Write the line of an event, if it has one. Any thread. */
void serve_event_log(struct logs *logs, const struct kve_ingest_event *event);

#endif
