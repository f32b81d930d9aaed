/*
 * metrics.h - everything that is counted and measured, for Prometheus.
 *
 * Text format 0.0.4. All samples of a name stand together, so what is known of
 * the sources is gathered first, in one read section, and written afterwards:
 *
 *     sources --gather--> [ labels | counters | gauges ] each --write--> text
 *
 * Names
 *   kvevents_source_X_total   one series a source, by the counters' names;
 *   kvevents_ingest_X_total   the same of all that ever were: goes on growing
 *                             when a source is removed;
 *   kvevents_http_X_total     of the service itself;
 *   kvevents_source_X         what a source is like now;
 *   kvevents_X                the same of the whole.
 * Labels of a source: source (its id), model, tenant, worker, rank.
 */
#ifndef KVE_HTTP_METRICS_H
#define KVE_HTTP_METRICS_H

#include "http/http.h"

/* Write all of it. KVE_OK, KVE_E_NOMEM or KVE_E_LIMIT (of the buffer). */
kve_status kve_metrics_write(struct kve_http *http, struct kve_buffer *out);

#endif
