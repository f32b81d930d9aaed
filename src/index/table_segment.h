/*
 * table_segment.h - buckets and segments of a table, inside table*.c only.
 */
#ifndef KVE_INDEX_TABLE_SEGMENT_H
#define KVE_INDEX_TABLE_SEGMENT_H

#include "index/table.h"

/* Joined when both together have no more entries than this. */
#define KVE_SEGMENT_JOIN 640u

/* What is known about an entry beside its tag. */
enum state {
    NEXT_UNKNOWN = 0, /* in its home bucket */
    DISPLACED = 1,    /* in a bucket behind its home */
    NEXT_0 = 2,       /* in its home bucket; the key's bit behind the */
    NEXT_1 = 3        /* segment's prefix is 0, or 1 */
};

/* The key's bit behind the first depth ones. */
static inline uint32_t
key_bit(uint64_t key, uint32_t depth)
{
    return (uint32_t)(key >> (63 - depth)) & 1;
}

/* ---- buckets ---- */

static inline uint64_t
bucket_lo(const struct kve_bucket *bucket)
{
    return atomic_load_explicit(&bucket->tags_lo, memory_order_relaxed);
}

static inline uint64_t
bucket_hi(const struct kve_bucket *bucket)
{
    return atomic_load_explicit(&bucket->tags_hi, memory_order_relaxed);
}

static inline uint32_t
bucket_empty(const struct kve_bucket *bucket)
{
    return kve_tags_match(bucket_lo(bucket), bucket_hi(bucket), 0);
}

/* What to change in the two words of tags for a slot: without branches, as
 * nobody can foretell which word it is. */
static inline uint64_t
slot_in_lo(uint32_t slot, uint64_t tag)
{
    return (tag << 8 * (slot & 7)) & ((uint64_t)(slot >> 3) - 1);
}

static inline uint64_t
slot_in_hi(uint32_t slot, uint64_t tag, uint64_t state)
{
    return ((tag << 8 * (slot & 7)) & -(uint64_t)(slot >> 3)) |
        state << (32 + 2 * slot);
}

/* Write an entry into an empty slot: the value, then the tag. */
static inline void
bucket_fill(struct kve_bucket *bucket, uint32_t slot, uint32_t tag,
    uint32_t state, uint32_t value)
{
    atomic_store_explicit(&bucket->values[slot], value, memory_order_relaxed);
    atomic_store_explicit(&bucket->tags_hi,
        bucket_hi(bucket) | slot_in_hi(slot, tag, state), memory_order_release);
    atomic_store_explicit(&bucket->tags_lo,
        bucket_lo(bucket) | slot_in_lo(slot, tag), memory_order_release);
}

/* Empty a slot. Its value stays: a reader that saw the tag gets it. */
static inline void
bucket_clear(struct kve_bucket *bucket, uint32_t slot)
{
    atomic_store_explicit(&bucket->tags_lo,
        bucket_lo(bucket) & ~slot_in_lo(slot, 255), memory_order_relaxed);
    atomic_store_explicit(&bucket->tags_hi,
        bucket_hi(bucket) & ~slot_in_hi(slot, 255, 3), memory_order_relaxed);
}

/* One more, or one less, entry passed this bucket. */
static inline void
bucket_pass(struct kve_bucket *bucket, bool more)
{
    uint64_t hi = bucket_hi(bucket);

    if (hi >> 56 == 255)
        return;
    hi = more ? hi + ((uint64_t)1 << 56) : hi - ((uint64_t)1 << 56);
    atomic_store_explicit(&bucket->tags_hi, hi, memory_order_relaxed);
}

/* ---- segments ---- */

/* An empty segment, which is in no directory yet; NULL: no memory. */
struct kve_segment *kve_segment_create(struct kve_table *table, uint32_t depth,
    uint32_t prefix, uint32_t n_buckets);

/* The buckets that a segment with this prefix should have for n entries;
 * more than KVE_SEGMENT_MAX when it should rather be split. */
uint32_t kve_segment_size(uint32_t depth, uint32_t prefix, size_t n);

/* Below so many entries a segment may be made smaller. */
uint32_t kve_segment_low(uint32_t n_buckets);

/* A segment is copied, to be in order, when it has so many displaced entries;
 * it had n_displaced when it was made. */
uint32_t kve_segment_tangled(uint32_t n_buckets, uint32_t n_displaced);

/* Put an entry into a segment that has an empty slot; returns whether it is
 * displaced. */
static inline bool
segment_put(
    struct kve_segment *segment, uint32_t cell, uint32_t state, uint32_t value)
{
    uint32_t at = kve_table_home(cell, segment->n_buckets);
    bool displaced = false;
    uint32_t empty = bucket_empty(&segment->buckets[at]);

    while (empty == 0) {
        bucket_pass(&segment->buckets[at], true);
        displaced = true;
        if (++at == segment->n_buckets)
            at = 0;
        empty = bucket_empty(&segment->buckets[at]);
    }
    bucket_fill(&segment->buckets[at], (uint32_t)__builtin_ctz(empty),
        cell & 255, displaced ? DISPLACED : state, value);
    segment->n_entries++;
    segment->n_displaced += displaced;
    return displaced;
}

#endif
