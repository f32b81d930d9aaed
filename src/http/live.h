/*
 * live.h - readers of GET /v1/events: what the ingest says, as server-sent
 * events.
 *
 * Each reader has a ring of texts, bounded in bytes; an event is written once
 * and copied to the rings of those whose filter wants it. A ring that is full
 * loses its oldest texts, and its reader is told how many, in their place (a
 * text of more than half of a ring is lost by itself):
 *
 *     kve_live_event() --> text --> ring, ring, ... --> pull --> client
 *                                   `-> lost++ when it is full
 *
 * With no reader an event costs one load. Token ids are in no event; hashes
 * are texts, at most KVE_LIVE_HASHES of each event of a batch.
 *
 *     GET /v1/events?worker=&model=&tenant=&source=&types=batch,notice
 *
 *     id: 18                      counts what the ingest said
 *     event: batch                a type of KVE_INGEST_EVENT_MAP, or "lost"
 *     data: {"type":"batch",...}
 *
 * Threads: any. The lock of the readers' list is taken before a ring's, and no
 * ring's lock is held when a connection is woken.
 */
#ifndef KVE_HTTP_LIVE_H
#define KVE_HTTP_LIVE_H

#include "http/http.h"

#define KVE_LIVE_HASHES 32u
/* A text is at most so long; events of a batch beyond it are left out, and it
 * says how many. */
#define KVE_LIVE_TEXT_MAX ((size_t)64 * 1024)

extern const struct kve_http_route kve_routes_live[];

/* NULL: no memory. */
struct kve_http_live *kve_live_create(void);
/* No reader may be left. */
void kve_live_destroy(struct kve_http_live *live);

void kve_live_event(
    struct kve_http *http, const struct kve_ingest_event *event);

/* Say something to readers who have heard nothing for 15 s. */
void kve_live_tick(struct kve_http *http, int64_t now_ns);

/* End every reader's answer, and take no more readers. */
void kve_live_close(struct kve_http *http);

#endif
