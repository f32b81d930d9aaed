/*
 * intern.h - byte strings that are kept once, counted, and named by a number.
 *
 * What many blocks have in common (scope, adapter, kind of attention) is
 * written as one byte string; a block then holds a number of 4 bytes. A string
 * leaves with its last reference, and its number is given again.
 *
 * One thread.
 */
#ifndef KVE_PUBLISH_INTERN_H
#define KVE_PUBLISH_INTERN_H

#include <kvevents/event.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVE_NO_ID UINT32_MAX

struct kve_interned {
    uint8_t *bytes;
    uint32_t len;
    uint32_t code;
    uint32_t refs; /* 0: the number is free */
    uint32_t next; /* in the bucket, or of the free numbers */
    uint32_t user; /* the owner's; KVE_NO_ID at first */
    bool marked;   /* the owner's */
};

/* An empty table from zeros. */
struct kve_intern {
    struct kve_interned *entry; /* by number */
    uint32_t n;                 /* numbers ever given */
    uint32_t cap;
    uint32_t used;
    uint32_t free; /* the first free number; when free_made */
    bool free_made;
    uint32_t *buckets;
    uint32_t n_buckets; /* a power of two, or 0 */
};

void kve_intern_release(struct kve_intern *t);

/* The number of these bytes, with one reference more; KVE_NO_ID when memory is
 * short. len is below 4 GiB. */
uint32_t kve_intern_get(struct kve_intern *t, const void *bytes, size_t len);

/* Let go of one reference; true: that was the last, and *ret_user is what the
 * owner had kept with it. */
bool kve_intern_unref(struct kve_intern *t, uint32_t id, uint32_t *ret_user);

static inline void
kve_intern_ref(struct kve_intern *t, uint32_t id)
{
    t->entry[id].refs++;
}

static inline struct kve_span
kve_intern_bytes(const struct kve_intern *t, uint32_t id)
{
    return (struct kve_span){ t->entry[id].bytes, t->entry[id].len };
}

#endif
