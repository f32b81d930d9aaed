/*
 * table_copy.h - the entries of segments that are replaced, inside table*.c.
 */
#ifndef KVE_INDEX_TABLE_COPY_H
#define KVE_INDEX_TABLE_COPY_H

#include "index/table_segment.h"

/* Entries of a segment that are listed without allocating memory. */
#define KVE_ENTRIES (KVE_SEGMENT_MAX * KVE_BUCKET_SLOTS)

struct kve_entry {
    uint32_t value;
    uint16_t cell;
    uint8_t state;
    uint8_t side; /* which of two new segments */
};

struct kve_entries {
    struct kve_entry *entries;
    uint32_t *asks; /* entries whose keys have to be asked for */
    size_t n;
    size_t n_asks;
    size_t n_side1; /* entries whose side is 1, after list_ask() */
    void *heap;     /* to be freed, or NULL */
    struct kve_entry few[KVE_ENTRIES + 1]; /* one more than there are */
    uint32_t few_asks[KVE_ENTRIES + 1];
};

/* Why entries are listed: what is needed of them, and what they become. */
enum kve_copying {
    KVE_COPY_RESIZE = 0,
    KVE_COPY_SPLIT = 1,  /* the bit that tells the halves apart is needed */
    KVE_COPY_JOIN_0 = 2, /* from the first half */
    KVE_COPY_JOIN_1 = 3  /* from the second one */
};

/* Room for n entries; false: no memory. Released in either case. */
bool kve_entries_init(struct kve_entries *list, size_t n);
void kve_entries_release(struct kve_entries *list);

/* Add the entries of a segment. */
void kve_entries_read(struct kve_entries *list,
    const struct kve_segment *segment, enum kve_copying why);

/* Ask for the keys that are needed; depth: of the new segments. */
void kve_entries_ask(struct kve_entries *list, const struct kve_table *table,
    uint32_t depth, bool split);

/* Put the entries into one or two new segments, by their side. */
void kve_entries_write(const struct kve_entries *list,
    struct kve_segment *const segments[], uint32_t n);

/* Copy a segment into a new one: most entries directly, and only those that
 * are displaced are listed (the list is empty, with room for all). */
void kve_segment_copy(struct kve_entries *list, const struct kve_table *table,
    const struct kve_segment *old, struct kve_segment *segment);

#endif
