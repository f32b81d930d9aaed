/*
 * table.h - 64-bit keys to 32-bit values, at most eight bytes an entry.
 *
 * The table keeps no keys: an entry is a value and an 8-bit tag of its key.
 * Who asks gets candidates and compares what they stand for. One key may have
 * several values.
 *
 *     directory (top bits of the key) -> segment -> bucket
 *     bucket, 64 bytes: [12 tags | 3 bytes of states | passed | 12 values x 4]
 *
 * Growing without keys. The last 14 bits of a key are its cell, of 16,384 that
 * every segment has; cells are dealt out to the 64 to 126 buckets of a segment
 * in order, and the tag is the cell's last 8 bits. A bucket has at most 256
 * cells, so bucket and tag together say which cell an entry has, and a segment
 * can be copied into a larger or smaller one without asking for any key. Two
 * bits an entry, its state, say one bit of the key more, the one by which the
 * segment will be split. It is known of entries that came since the last
 * split, so two thirds of a segment are split without asking, too; for the
 * others the owner computes the key from the value (kve_table_ops.key).
 *
 * So growing is cheap, and a segment grows in small steps, each with a phase
 * of its own (from its prefix): the table as a whole is always about as full,
 * whatever its size. A change takes microseconds, never the whole table.
 * Segments that became emptier shrink the same way, and two that are nearly
 * empty are joined.
 *
 * A full bucket passes entries on to the next one and counts them; a miss
 * stops at the first bucket that passed nothing on.
 *
 * Readers look while the one writer changes: tags and values are atomic words,
 * a value is written before its tag, entries never move within a segment, and
 * segments and directories are replaced whole and retired. What holds for a
 * walk by a reader in a read section:
 *   - an entry that is in the table from the walk's begin to its end is found;
 *   - of an entry whose value is replaced meanwhile the old value may be found;
 *   - what is found was in the table, under some key, at some time after the
 *     read section began, or is there now. Callers compare.
 */
#ifndef KVE_INDEX_TABLE_H
#define KVE_INDEX_TABLE_H

#include "index/mem.h"

#define KVE_BUCKET_SLOTS 12
#define KVE_TABLE_MAX_DEPTH 30

struct kve_bucket {
    /* Tags 0..7; 0 is an empty slot. */
    _Alignas(64) _Atomic uint64_t tags_lo;
    /* Tags 8..11; from bit 32 a state of 2 bits for each slot; in the last 8
     * bits how many entries passed this bucket because it was full (255: not
     * known any more). */
    _Atomic uint64_t tags_hi;
    _Atomic uint32_t values[KVE_BUCKET_SLOTS];
};

struct kve_segment {
    struct kve_obj obj;
    uint32_t n_buckets; /* 64 to 126; more when keys are equal */
    uint32_t n_entries;
    uint32_t depth;       /* bits of the key that lead here */
    uint32_t prefix;      /* their value */
    uint32_t high;        /* entries with which it is enlarged */
    uint32_t low;         /* entries below which it may be made smaller */
    uint32_t n_displaced; /* entries that are not in their home bucket */
    uint32_t tangled;     /* so many that it is replaced to be in order */
    struct kve_bucket buckets[];
};

struct kve_table_ops {
    void *ctx;
    /* The key of a value that is in the table; and a hint that it will be
     * asked for soon. */
    uint64_t (*key)(void *ctx, uint32_t value);
    void (*prefetch)(void *ctx, uint32_t value);
};

/* Where segments are. A place is a segment's address; its last 6 bits, which
 * are 0 in the address, are n_buckets - 64, or 63 when that is larger. */
struct kve_table_dir {
    struct kve_obj obj;
    uint32_t depth;
    uint32_t pad;
    _Atomic uintptr_t places[];
};

struct kve_table {
    struct kve_pool *pool;
    struct kve_table_ops ops;
    uint32_t id; /* for kve_obj of its segments */
    uint64_t n_entries;
    _Atomic(struct kve_table_dir *) dir;
    uint32_t n_at_depth[KVE_TABLE_MAX_DEPTH + 1]; /* segments */
};

/* No value; also the end of a walk. Values are never 0. */
#define KVE_NO_VALUE 0u

/* Returns KVE_OK or KVE_E_NOMEM. Memory is the pool's: nothing is to be done
 * at the end. */
kve_status kve_table_init(struct kve_table *table, struct kve_pool *pool,
    uint32_t id, const struct kve_table_ops *ops);

/* Add an entry; false when there is no memory, and nothing was changed. */
bool kve_table_insert(struct kve_table *table, uint64_t key, uint32_t value);
/* The same while the owner does not say this key for the value yet: it is not
 * asked for it before this returns. */
bool kve_table_insert_early(
    struct kve_table *table, uint64_t key, uint32_t value);
/* The same in one look, where it is plain that no entry has this key: nothing
 * with its tag in its bucket, nothing behind it, and room. false: look first,
 * then insert. */
bool kve_table_insert_absent(
    struct kve_table *table, uint64_t key, uint32_t value);

/* Take one away, or give it another value in place; false: not there. */
bool kve_table_erase(struct kve_table *table, uint64_t key, uint32_t value);
bool kve_table_replace(
    struct kve_table *table, uint64_t key, uint32_t from, uint32_t to);

/* Make the segment of this key smaller, or join it with its neighbour, when
 * that pays. Called after erasing; cheap when there is nothing to do. Keys of
 * entries that are left may be asked for. */
static inline void kve_table_shrink(struct kve_table *table, uint64_t key);

/* Pool's moved(): a segment of this table is now at to. */
bool kve_table_moved(
    struct kve_table *table, struct kve_obj *from, struct kve_obj *to);

/* Walk over the candidates for a key. Readers and writer. */
struct kve_probe {
    const struct kve_bucket *buckets; /* of the segment */
    const struct kve_bucket *bucket;
    uint32_t n;      /* of buckets */
    uint32_t at;     /* index of bucket */
    uint32_t mask;   /* slots whose tag is equal and that are not seen yet */
    uint32_t passed; /* of bucket */
    uint32_t steps;  /* buckets seen */
    uint64_t tags;   /* tag, in every byte */
};

static inline void kve_probe_begin(
    struct kve_probe *probe, const struct kve_table *table, uint64_t key);
/* The next candidate, or KVE_NO_VALUE. */
static inline uint32_t kve_probe_next(struct kve_probe *probe);
/* Fetch the key's bucket into the cache. */
static inline void kve_table_prefetch(
    const struct kve_table *table, uint64_t key);
/* Before entering or erasing the key: fetch its segment's counters, too. */
static inline void kve_table_prefetch_head(
    const struct kve_table *table, uint64_t key);

#include "index/table_impl.h"

#endif
