/*
 * scratch.h - memory of a thread that answers questions, used again and again.
 *
 * Zero it first, end with kve_scratch_release(). What it holds is good until
 * the thread's next question.
 */
#ifndef KVE_HTTP_SCRATCH_H
#define KVE_HTTP_SCRATCH_H

#include "http/input.h"

#include <kvevents/index.h>

struct kve_http_scratch {
    struct kve_input input;
    struct kve_index_row *rows;
    size_t cap_rows;
    struct kve_index_row *more; /* a second set, to be merged with the first */
    size_t cap_more;
    kve_instance *only;
    size_t cap_only;
    struct kve_group *groups; /* dialect_rows.c: rows by worker */
    size_t cap_groups;
    uint32_t *buckets; /* the same: to find a worker's */
    size_t cap_buckets;
};

/* Room for n items; what was there is not kept. false: no memory, and what was
 * there is. */
bool kve_scratch_rows(struct kve_http_scratch *scratch, size_t n);
bool kve_scratch_more(struct kve_http_scratch *scratch, size_t n);
bool kve_scratch_only(struct kve_http_scratch *scratch, size_t n);
void kve_scratch_release(struct kve_http_scratch *scratch);

#endif
