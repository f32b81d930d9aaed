/*
 * table_copy.c - segments are copied into new ones.
 *
 * What is to be known about entries is known from their buckets and tags for
 * most of them (table.h). Keys are asked for all at once, so that the cache
 * misses overlap. Nobody sees the new segments yet.
 */
#include "index/table_copy.h"

#include "base/alloc.h"

#include <string.h>

/* What becomes of an entry, by its state, when its segment is replaced. */
struct fate {
    uint8_t ask[4];
    uint8_t state[4];
    uint8_t side[4];
};

static const struct fate fates[] = {
    [KVE_COPY_RESIZE] = { .ask = { [DISPLACED] = 1 },
        .state = { NEXT_UNKNOWN, DISPLACED, NEXT_0, NEXT_1 } },
    [KVE_COPY_SPLIT] = { .ask = { [DISPLACED] = 1, [NEXT_UNKNOWN] = 1 },
        .side = { [NEXT_1] = 1 } },
    [KVE_COPY_JOIN_0] = { .ask = { [DISPLACED] = 1 },
        .state = { NEXT_0, NEXT_0, NEXT_0, NEXT_0 } },
    [KVE_COPY_JOIN_1] = { .ask = { [DISPLACED] = 1 },
        .state = { NEXT_1, NEXT_1, NEXT_1, NEXT_1 } },
};

bool
kve_entries_init(struct kve_entries *list, size_t n)
{
    list->n = 0;
    list->n_asks = 0;
    list->n_side1 = 0;
    list->heap = NULL;
    list->entries = list->few;
    list->asks = list->few_asks;
    if (n > KVE_ENTRIES) {
        list->heap = kve_mem_array(
            NULL, n + 1, sizeof(struct kve_entry) + sizeof(*list->asks));
        list->entries = list->heap;
        list->asks = (uint32_t *)(list->entries + n + 1);
    }
    return list->entries != NULL;
}

void
kve_entries_release(struct kve_entries *list)
{
    kve_mem_free(list->heap);
}

/* The first cell of bucket i of n. */
static inline uint32_t
bucket_first(uint32_t i, uint32_t n)
{
    return (uint32_t)((((uint64_t)i << KVE_CELL_BITS) + n - 1) / n);
}

/* Tags, a byte each, in the order of slots; and four bytes more. */
static inline void
tags_bytes(uint64_t lo, uint64_t hi, uint8_t tags[16])
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    lo = __builtin_bswap64(lo);
    hi = __builtin_bswap64(hi);
#endif
    memcpy(tags, &lo, sizeof(lo));
    memcpy(tags + 8, &hi, sizeof(hi));
}

/* Add a value whose key is to be asked for. */
static inline void
list_add(struct kve_entries *list, uint32_t value)
{
    list->entries[list->n] = (struct kve_entry){ .value = value };
    list->asks[list->n_asks++] = (uint32_t)list->n++;
}

/* Add the entries of a segment. */
void
kve_entries_read(struct kve_entries *list, const struct kve_segment *segment,
    enum kve_copying why)
{
    const struct fate *fate = &fates[why];
    uint32_t n_buckets = segment->n_buckets;
    size_t n = list->n;
    size_t n_asks = list->n_asks;

    for (uint32_t i = 0; i < n_buckets; i++) {
        const struct kve_bucket *bucket = &segment->buckets[i];
        uint64_t lo = bucket_lo(bucket);
        uint64_t hi = bucket_hi(bucket);
        uint32_t live = ~kve_tags_match(lo, hi, 0) & 0xfff;
        uint32_t states = (uint32_t)(hi >> 32);
        uint32_t first = bucket_first(i, n_buckets);
        uint8_t tags[16];

        tags_bytes(lo, hi, tags);

        /* Every slot is listed, and the next one over it when it was empty:
         * cheaper than branches that nobody can foretell. */
        for (uint32_t slot = 0; slot < KVE_BUCKET_SLOTS; slot++) {
            uint32_t state = states >> 2 * slot & 3;
            uint32_t is_live = live >> slot & 1;

            list->entries[n] = (struct kve_entry){
                .value = atomic_load_explicit(
                    &bucket->values[slot], memory_order_relaxed),
                .cell = (uint16_t)(first + (uint8_t)(tags[slot] - first)),
                .state = fate->state[state],
                .side = fate->side[state],
            };
            list->asks[n_asks] = (uint32_t)n;
            n_asks += fate->ask[state] & is_live;
            n += is_live;
        }
    }
    list->n = n;
    list->n_asks = n_asks;
}

/* Ask for the keys that are needed; depth: of the new segments. */
void
kve_entries_ask(struct kve_entries *list, const struct kve_table *table,
    uint32_t depth, bool split)
{
    const struct kve_table_ops *ops = &table->ops;

    for (size_t i = 0; i < list->n_asks; i++)
        ops->prefetch(ops->ctx, list->entries[list->asks[i]].value);
    for (size_t i = 0; i < list->n_asks; i++) {
        struct kve_entry *entry = &list->entries[list->asks[i]];
        uint64_t key = ops->key(ops->ctx, entry->value);

        entry->cell = (uint16_t)kve_table_cell(key);
        entry->state = (uint8_t)(NEXT_0 + key_bit(key, depth));
        if (split)
            entry->side = (uint8_t)key_bit(key, depth - 1);
    }
    for (size_t i = 0; i < list->n; i++)
        list->n_side1 += list->entries[i].side;
}

/* Write a tag only, of a bucket that nobody sees yet. */
static inline void
bucket_tag(struct kve_bucket *bucket, uint32_t slot, uint8_t tag)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    slot ^= 7;
#endif
    ((unsigned char *)bucket)[slot] = tag;
}

/* A new segment that is being filled. */
struct target {
    struct kve_segment *segment;
    uint32_t n_buckets;
    uint32_t n_displaced;
    uint32_t about[KVE_SEGMENT_MAX]; /* what stands above the tags */
    uint8_t fill[KVE_SEGMENT_MAX];   /* entries of each bucket */
};

/* Put the entries of a side into a new segment, one by one. */
static void
list_write_slowly(
    const struct kve_entries *list, struct kve_segment *segment, uint32_t side)
{
    for (size_t i = 0; i < list->n; i++) {
        const struct kve_entry *entry = &list->entries[i];

        if (entry->side == side)
            segment_put(segment, entry->cell, entry->state, entry->value);
    }
}

static void
target_init(struct target *target, struct kve_segment *segment)
{
    target->segment = segment;
    target->n_buckets = segment->n_buckets;
    target->n_displaced = 0;
    memset(target->about, 0, sizeof(target->about));
    memset(target->fill, 0, sizeof(target->fill));
}

/* Put an entry into a bucket that has been found to be its home. */
static inline void
target_put_at(struct target *target, uint32_t at, uint32_t tag, uint32_t state,
    uint32_t value)
{
    struct kve_bucket *bucket;
    uint32_t slot;

    while (__builtin_expect(target->fill[at] == KVE_BUCKET_SLOTS, 0)) {
        if (target->about[at] >> 24 != 255)
            target->about[at] += 1u << 24;
        if (++at == target->n_buckets)
            at = 0;
        state = DISPLACED;
    }
    target->n_displaced += state == DISPLACED;
    bucket = &target->segment->buckets[at];
    slot = target->fill[at]++;
    target->about[at] |= state << 2 * slot;
    bucket_tag(bucket, slot, (uint8_t)tag);
    atomic_store_explicit(&bucket->values[slot], value, memory_order_relaxed);
}

static inline void
target_put(struct target *target, struct kve_entry entry)
{
    target_put_at(target, kve_table_home(entry.cell, target->n_buckets),
        entry.cell, entry.state, entry.value);
}

static void
target_finish(const struct target *target)
{
    struct kve_segment *segment = target->segment;

    for (uint32_t i = 0; i < target->n_buckets; i++) {
        struct kve_bucket *bucket = &segment->buckets[i];

        atomic_store_explicit(&bucket->tags_hi,
            bucket_hi(bucket) | (uint64_t)target->about[i] << 32,
            memory_order_relaxed);
        segment->n_entries += target->fill[i];
    }
    segment->n_displaced = target->n_displaced;
}

/*
 * Put the entries into one or two new segments, by their side. Nobody sees
 * those yet and they have no gaps, so how full their buckets are and what is
 * to be said of their entries is kept aside: reading words back whose bytes
 * were just written would cost more than all the rest.
 */
void
kve_entries_write(const struct kve_entries *list,
    struct kve_segment *const segments[], uint32_t n)
{
    struct target targets[2];
    bool slowly = false;

    for (uint32_t t = 0; t < n; t++)
        slowly |= segments[t]->n_buckets > KVE_SEGMENT_MAX;
    if (slowly) {
        for (uint32_t t = 0; t < n; t++)
            list_write_slowly(list, segments[t], t);
        goto out;
    }
    for (uint32_t t = 0; t < n; t++)
        target_init(&targets[t], segments[t]);
    for (size_t i = 0; i < list->n; i++)
        target_put(&targets[list->entries[i].side], list->entries[i]);
    for (uint32_t t = 0; t < n; t++)
        target_finish(&targets[t]);
out:
    for (uint32_t t = 0; t < n; t++)
        segments[t]->tangled = kve_segment_tangled(
            segments[t]->n_buckets, segments[t]->n_displaced);
}

/* Copy a segment into a new one: most entries directly, and only those that
 * are displaced are listed. */
void
kve_segment_copy(struct kve_entries *list, const struct kve_table *table,
    const struct kve_segment *old, struct kve_segment *segment)
{
    struct target target;
    uint32_t n = old->n_buckets;

    target_init(&target, segment);
    for (uint32_t i = 0; i < n; i++) {
        const struct kve_bucket *bucket = &old->buckets[i];
        uint64_t lo = bucket_lo(bucket);
        uint64_t hi = bucket_hi(bucket);
        uint32_t live = ~kve_tags_match(lo, hi, 0) & 0xfff;
        uint32_t states = (uint32_t)(hi >> 32);
        uint32_t first = bucket_first(i, n);
        uint8_t tags[16];
        uint32_t at[KVE_BUCKET_SLOTS];

        tags_bytes(lo, hi, tags);
        for (uint32_t k = 0; k < KVE_BUCKET_SLOTS; k++)
            at[k] = (first + (uint8_t)(tags[k] - first)) * target.n_buckets >>
                KVE_CELL_BITS;
        for (; live != 0; live &= live - 1) {
            uint32_t k = (uint32_t)__builtin_ctz(live);
            uint32_t state = states >> 2 * k & 3;
            uint32_t value =
                atomic_load_explicit(&bucket->values[k], memory_order_relaxed);

            if (__builtin_expect(state == DISPLACED, 0))
                list_add(list, value);
            else
                target_put_at(&target, at[k], tags[k], state, value);
        }
    }
    kve_entries_ask(list, table, segment->depth, false);
    for (size_t i = 0; i < list->n; i++)
        target_put(&target, list->entries[i]);
    target_finish(&target);
    segment->tangled = kve_segment_tangled(n, segment->n_displaced);
}
