/*
 * table_impl.h - what table.h has inline: the look-up.
 *
 * A look-up is two dependent cache misses at most: the directory's place,
 * which also says how many buckets the segment has, and the bucket. The
 * segment's head is not touched.
 */
#ifndef KVE_INDEX_TABLE_IMPL_H
#define KVE_INDEX_TABLE_IMPL_H

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define KVE_CELL_BITS 14
#define KVE_SEGMENT_MIN 64u  /* buckets: no bucket has more than 256 cells */
#define KVE_SEGMENT_MAX 126u /* what fits into a place's 6 bits */
#define KVE_PLACE_MASK ((uintptr_t)63)

/* A key's cell. Its last 8 bits are the tag, which is never 0: cells whose
 * last bits are 0 count as their neighbour. */
static inline uint32_t
kve_table_cell(uint64_t key)
{
    uint32_t cell = (uint32_t)key & ((1u << KVE_CELL_BITS) - 1);

    return cell + ((cell & 255) == 0);
}

/* Whether a value that stands under both keys could not be told apart: of a key
 * a bucket keeps the tag only, so one may be found on the way to the other, and
 * taken for it. */
static inline bool
kve_table_alike(uint64_t a, uint64_t b)
{
    return ((kve_table_cell(a) ^ kve_table_cell(b)) & 255) == 0;
}

/* The bucket of a cell. */
static inline uint32_t
kve_table_home(uint32_t cell, uint32_t n_buckets)
{
    return (uint32_t)((uint64_t)cell * n_buckets >> KVE_CELL_BITS);
}

static inline uintptr_t
kve_table_place(const struct kve_table *table, uint64_t key)
{
    const struct kve_table_dir *dir =
        atomic_load_explicit(&table->dir, memory_order_acquire);

    return atomic_load_explicit(
        &dir->places[key >> 1 >> (63 - dir->depth)], memory_order_acquire);
}

static inline struct kve_segment *
kve_place_segment(uintptr_t place)
{
    return (struct kve_segment *)(place & ~KVE_PLACE_MASK);
}

static inline uint32_t
kve_place_buckets(uintptr_t place)
{
    uint32_t code = (uint32_t)(place & KVE_PLACE_MASK);

    return __builtin_expect(code == KVE_PLACE_MASK, 0)
        ? kve_place_segment(place)->n_buckets
        : KVE_SEGMENT_MIN + code;
}

/* Which of the 12 tags are the one that tags has in every byte: a bit each. */
static inline uint32_t
kve_tags_match(uint64_t lo, uint64_t hi, uint64_t tags)
{
#if defined(__SSE2__)
    __m128i have = _mm_set_epi64x((long long)hi, (long long)lo);
    __m128i want = _mm_set1_epi64x((long long)tags);

    return (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(have, want)) & 0xfff;
#else
    const uint64_t low7 = 0x7f7f7f7f7f7f7f7full;
    const uint64_t gather = 0x0102040810204080ull;
    uint64_t a = lo ^ tags;
    uint64_t b = hi ^ tags;

    /* 0x80 in every byte that is zero, exactly; then one bit a byte. */
    a = ~(((a & low7) + low7) | a | low7) >> 7;
    b = ~(((b & low7) + low7) | b | low7) >> 7;
    return (uint32_t)(a * gather >> 56) |
        ((uint32_t)(b * gather >> 56) & 0xf) << 8;
#endif
}

static inline bool
kve_bucket_is_full(const struct kve_bucket *bucket)
{
    return kve_tags_match(
               atomic_load_explicit(&bucket->tags_lo, memory_order_relaxed),
               atomic_load_explicit(&bucket->tags_hi, memory_order_relaxed),
               0) == 0;
}

static inline void
kve_probe_load(struct kve_probe *probe)
{
    const struct kve_bucket *bucket = &probe->buckets[probe->at];
    uint64_t lo = atomic_load_explicit(&bucket->tags_lo, memory_order_acquire);
    uint64_t hi = atomic_load_explicit(&bucket->tags_hi, memory_order_acquire);

    probe->bucket = bucket;
    probe->mask = kve_tags_match(lo, hi, probe->tags);
    probe->passed = (uint32_t)(hi >> 56);
}

static inline void
kve_probe_begin(
    struct kve_probe *probe, const struct kve_table *table, uint64_t key)
{
    uintptr_t place = kve_table_place(table, key);
    uint32_t cell = kve_table_cell(key);

    probe->buckets = kve_place_segment(place)->buckets;
    probe->n = kve_place_buckets(place);
    probe->at = kve_table_home(cell, probe->n);
    probe->steps = 1;
    probe->tags = (cell & 255) * 0x0101010101010101ull;
    kve_probe_load(probe);
}

static inline uint32_t
kve_probe_next(struct kve_probe *probe)
{
    uint32_t slot;

    while (probe->mask == 0) {
        if (probe->passed == 0 || probe->steps == probe->n)
            return KVE_NO_VALUE;
        probe->steps++;
        if (++probe->at == probe->n)
            probe->at = 0;
        kve_probe_load(probe);
    }
    slot = (uint32_t)__builtin_ctz(probe->mask);
    probe->mask &= probe->mask - 1;
    return atomic_load_explicit(
        &probe->bucket->values[slot], memory_order_relaxed);
}

KVE_FETCHES static inline void
kve_table_prefetch(const struct kve_table *table, uint64_t key)
{
    uintptr_t place = kve_table_place(table, key);
    uint32_t home =
        kve_table_home(kve_table_cell(key), kve_place_buckets(place));

    __builtin_prefetch(&kve_place_segment(place)->buckets[home]);
}

KVE_FETCHES static inline void
kve_table_prefetch_head(const struct kve_table *table, uint64_t key)
{
    __builtin_prefetch(kve_place_segment(kve_table_place(table, key)));
}

/* The part of kve_table_shrink() that does something. */
void kve_table_shrink_segment(
    struct kve_table *table, struct kve_segment *segment);

static inline void
kve_table_shrink(struct kve_table *table, uint64_t key)
{
    struct kve_segment *segment =
        kve_place_segment(kve_table_place(table, key));

    if (segment->n_entries < segment->low)
        kve_table_shrink_segment(table, segment);
}

#endif
