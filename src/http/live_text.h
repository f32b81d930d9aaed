/*
 * live_text.h - an event of the ingest as the text that readers get.
 */
#ifndef KVE_HTTP_LIVE_TEXT_H
#define KVE_HTTP_LIVE_TEXT_H

#include <kvevents/codec.h>
#include <kvevents/ingest.h>

#include <stdbool.h>

/* "id: ...\nevent: ...\ndata: ...\n\n" behind what is in text, at most
 * KVE_LIVE_TEXT_MAX bytes; false: no memory. */
bool kve_live_text(
    struct kve_buffer *text, uint64_t id, const struct kve_ingest_event *event);

/* Append bytes; false: no memory. */
bool kve_live_put(struct kve_buffer *text, const char *bytes, size_t len);

#endif
