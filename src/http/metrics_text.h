/*
 * metrics_text.h - Prometheus' text format, written into a buffer.
 *
 * The first failure sticks: whoever writes looks once, at the end. A family
 * (HELP, TYPE) is said once, before its samples.
 */
#ifndef KVE_HTTP_METRICS_TEXT_H
#define KVE_HTTP_METRICS_TEXT_H

#include <kvevents/codec.h>
#include <kvevents/status.h>

#include <stdbool.h>

struct kve_metrics_text {
    struct kve_buffer *out;
    kve_status status;
    char name[96]; /* of the family */
    size_t name_len;
};

/* A family: prefix and name make its name, with _total where it counts. */
void kve_metrics_family(struct kve_metrics_text *text, const char *prefix,
    const char *name, const char *type, const char *help);

/* A sample of the family. labels: what stands between the braces, "" for none;
 * more: another label as text, or NULL. */
void kve_metrics_u64(struct kve_metrics_text *text, const char *labels,
    size_t labels_len, const char *more, uint64_t value);
void kve_metrics_double(struct kve_metrics_text *text, const char *labels,
    size_t labels_len, const char *more, double value);

/* A sample of a name that the family's is the beginning of: _bucket, _sum,
 * _count. */
void kve_metrics_part(struct kve_metrics_text *text, const char *suffix,
    const char *labels, double value);

/* Append name="value" (a comma before it when it is not the first), escaped;
 * bytes that are no UTF-8 become U+FFFD. */
void kve_metrics_label(struct kve_metrics_text *text, bool first,
    const char *name, const char *value);

#endif
