/*
 * table_segment.c - how large segments are.
 *
 * Sizes. A segment that is FULL gets more buckets: the next of a ladder of
 * sizes, STEPS to a doubling, that each segment has with a phase of its own.
 * At the end of the ladder it is split. Measured with random keys while the
 * table grew from 1 to 2 M entries; a miss looks at so many buckets, and an
 * insert costs so many copied entries and so many keys asked for:
 *
 *     steps  full   bytes an entry   a miss   copied   asked
 *                   worst    mean
 *       1    0.80    9.9      9.8     1.07     1.4     0.52
 *       1    0.92    8.6      8.5     1.28     1.5     0.59
 *       2    0.80    8.2      8.1     1.14     2.9     0.57
 *       2    0.84    7.8      7.7     1.23     2.9     0.59
 *       2    0.92    7.2      7.1     1.58     3.0     0.69
 *       4    0.84    7.1      7.0     1.39     5.7     0.77
 *       4    0.92    6.6      6.5     2.12     5.8     1.02
 *
 * An entry is copied in about 5 ns, and a bucket or a key that is not in the
 * cache costs 10 ns also when many are fetched at once: fuller tables pay for
 * each byte with three more cache misses in ten operations, and more steps
 * with more copies. Chosen: two steps and 0.90, 7.4 bytes an entry at worst.
 * A table that loses entries is made smaller late (LOW, JOIN): removals are
 * more often followed by stores than by nothing.
 */
#include "index/table_segment.h"

#include <string.h>

/* Fullness, in 256ths of all slots. */
#define FULL 230u  /* enlarged with so many */
#define SPARE 244u /* a new segment has at least 1 - SPARE/256 below FULL */
#define LOW 80u    /* made smaller below */

#define STEPS 2u      /* sizes a doubling, of one segment */
#define LADDER 16u    /* sizes a doubling, of all */
#define PHASE_BITS 3u /* of keys; 2 to it is LADDER / STEPS */

/* 64 * 2^(i/16) */
static const uint8_t ladder[LADDER] = { 64, 67, 70, 73, 76, 79, 83, 87, 91, 95,
    99, 103, 108, 112, 117, 123 };

static inline uint32_t
full_entries(uint32_t n_buckets)
{
    return (uint32_t)((uint64_t)n_buckets * KVE_BUCKET_SLOTS * FULL / 256);
}

uint32_t
kve_segment_low(uint32_t n_buckets)
{
    return (uint32_t)((uint64_t)n_buckets * KVE_BUCKET_SLOTS * LOW / 256);
}

/*
 * Entries that come and go leave others displaced that could be at home by
 * now. A segment is copied to be in order when it has so many of them: one in
 * eight slots, and a quarter more than when it was made.
 */
uint32_t
kve_segment_tangled(uint32_t n_buckets, uint32_t n_displaced)
{
    uint32_t many = n_buckets * KVE_BUCKET_SLOTS / 8;
    uint32_t more = n_displaced + n_displaced / 4 + 16;

    return many > more ? many : more;
}

struct kve_segment *
kve_segment_create(struct kve_table *table, uint32_t depth, uint32_t prefix,
    uint32_t n_buckets)
{
    size_t size =
        sizeof(struct kve_segment) + n_buckets * sizeof(struct kve_bucket);
    struct kve_segment *segment;

    segment = kve_pool_alloc(table->pool, size);
    if (segment == NULL)
        return NULL;
    memset(segment, 0, size);
    segment->obj.kind = KVE_OBJ_SEGMENT;
    segment->obj.id = table->id;
    segment->n_buckets = n_buckets;
    segment->depth = depth;
    segment->prefix = prefix;
    segment->high = full_entries(n_buckets);
    segment->low = kve_segment_low(n_buckets);
    if (segment->low < KVE_SEGMENT_JOIN / 2)
        segment->low = KVE_SEGMENT_JOIN / 2;
    segment->tangled = kve_segment_tangled(n_buckets, 0);
    return segment;
}

/*
 * Where on the ladder the sizes of the segment with this prefix begin: by the
 * first bits of its keys, which the two it is split into inherit. So each has
 * a whole step before it when it is made.
 */
static uint32_t
segment_phase(uint32_t depth, uint32_t prefix)
{
    uint32_t first = depth < PHASE_BITS ? prefix << (PHASE_BITS - depth)
                                        : prefix >> (depth - PHASE_BITS);

    _Static_assert(1u << PHASE_BITS == LADDER / STEPS, "a phase each");
    return first;
}

/* Buckets that the pool gives for the price of n_buckets. */
static uint32_t
segment_round(uint32_t n_buckets)
{
    size_t size = sizeof(struct kve_segment) +
        (size_t)n_buckets * sizeof(struct kve_bucket);
    size_t good = kve_pool_good_size(size);
    uint32_t n = (uint32_t)((good - sizeof(struct kve_segment)) /
        sizeof(struct kve_bucket));

    if (n_buckets <= KVE_SEGMENT_MAX && n > KVE_SEGMENT_MAX)
        n = KVE_SEGMENT_MAX;
    return n < n_buckets ? n_buckets : n;
}

/* The buckets that a segment with this prefix should have for n entries;
 * more than KVE_SEGMENT_MAX when it should rather be split. */
uint32_t
kve_segment_size(uint32_t depth, uint32_t prefix, size_t n)
{
    uint64_t need = (uint64_t)n * 256 / SPARE + 8;
    uint64_t large;

    if (depth == 0 && need <= full_entries(KVE_SEGMENT_MIN))
        return segment_round(KVE_SEGMENT_MIN);
    for (uint32_t i = segment_phase(depth, prefix); i < LADDER;
         i += LADDER / STEPS) {
        uint32_t n_buckets = segment_round(ladder[i]);

        if (full_entries(n_buckets) >= need)
            return n_buckets;
    }
    large = need * 5 / 4 * 256 / FULL / KVE_BUCKET_SLOTS;
    if (large <= KVE_SEGMENT_MAX)
        large = KVE_SEGMENT_MAX + 1;
    return segment_round((uint32_t)large);
}
