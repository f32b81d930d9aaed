/*
 * table.c - the writer's side of table.h.
 *
 * Segments are replaced by one of these; the keys that have to be known are
 * asked for all at once, so that the cache misses overlap:
 *
 *     enlarge, shrink   1 -> 1    asks for displaced entries only (3 %)
 *     split             1 -> 2    and for those whose next bit is not known
 *     join              2 -> 1    displaced entries only
 *
 * Nothing is changed in place but slots and counters of buckets: a new
 * segment, or two, or a new directory, is made and shown, and the old one is
 * retired. When there is no memory for that nothing was changed.
 */
#include "index/table_copy.h"

#include <string.h>

static inline struct kve_table_dir *
table_dir(const struct kve_table *table)
{
    return atomic_load_explicit(&table->dir, memory_order_relaxed);
}

/* ---- directory ---- */

static struct kve_table_dir *
dir_create(struct kve_table *table, uint32_t depth)
{
    struct kve_table_dir *dir = kve_pool_alloc(table->pool,
        sizeof(*dir) + ((size_t)1 << depth) * sizeof(dir->places[0]));

    if (dir == NULL)
        return NULL;
    memset(dir, 0, sizeof(*dir));
    dir->obj.kind = KVE_OBJ_FIXED;
    dir->depth = depth;
    return dir;
}

/* Let a segment's places show it. */
static void
dir_show(struct kve_table_dir *dir, struct kve_segment *segment)
{
    uint32_t spread = dir->depth - segment->depth;
    size_t first = (size_t)segment->prefix << spread;
    uintptr_t place = (uintptr_t)segment;

    place |= segment->n_buckets > KVE_SEGMENT_MAX
        ? KVE_PLACE_MASK
        : segment->n_buckets - KVE_SEGMENT_MIN;
    for (size_t i = 0; i < (size_t)1 << spread; i++)
        atomic_store_explicit(
            &dir->places[first + i], place, memory_order_release);
}

static void
dir_replace(struct kve_table *table, struct kve_table_dir *dir)
{
    struct kve_table_dir *old = table_dir(table);

    atomic_store_explicit(&table->dir, dir, memory_order_release);
    kve_pool_retire(table->pool, old);
}

/* A directory one bit deeper, with the same segments; NULL: no memory. */
static struct kve_table_dir *
dir_deeper(struct kve_table *table)
{
    const struct kve_table_dir *old = table_dir(table);
    struct kve_table_dir *dir = dir_create(table, old->depth + 1);

    if (dir == NULL)
        return NULL;
    for (size_t i = 0; i < (size_t)1 << dir->depth; i++)
        atomic_init(&dir->places[i],
            atomic_load_explicit(&old->places[i >> 1], memory_order_relaxed));
    return dir;
}

/* No segment is as deep as the directory: halve it while that is so. */
static void
dir_shallower(struct kve_table *table)
{
    const struct kve_table_dir *old = table_dir(table);
    uint32_t depth = old->depth;
    struct kve_table_dir *dir;

    while (depth > 0 && table->n_at_depth[depth] == 0)
        depth--;
    if (depth == old->depth)
        return;
    dir = dir_create(table, depth);
    if (dir == NULL)
        return;
    for (size_t i = 0; i < (size_t)1 << depth; i++)
        atomic_init(&dir->places[i],
            atomic_load_explicit(
                &old->places[i << (old->depth - depth)], memory_order_relaxed));
    dir_replace(table, dir);
}

/* ---- replacing segments ---- */

/* Copy a segment into one with other buckets; NULL: no memory. */
static struct kve_segment *
table_resize(
    struct kve_table *table, struct kve_segment *old, uint32_t n_buckets)
{
    struct kve_entries list;
    struct kve_segment *segment = NULL;

    if (!kve_entries_init(&list, old->n_entries))
        goto out;
    segment = kve_segment_create(table, old->depth, old->prefix, n_buckets);
    if (segment == NULL)
        goto out;
    if (n_buckets <= KVE_SEGMENT_MAX) {
        kve_segment_copy(&list, table, old, segment);
    } else {
        kve_entries_read(&list, old, KVE_COPY_RESIZE);
        kve_entries_ask(&list, table, old->depth, false);
        kve_entries_write(&list, &segment, 1);
    }
    dir_show(table_dir(table), segment);
    kve_pool_retire(table->pool, old);
out:
    kve_entries_release(&list);
    return segment;
}

/* Split a segment by one more bit; false: no memory. */
static bool
table_split(struct kve_table *table, struct kve_segment *old)
{
    uint32_t depth = old->depth + 1;
    uint32_t prefix = old->prefix << 1;
    struct kve_table_dir *dir = NULL;
    struct kve_segment *halves[2] = { NULL, NULL };
    struct kve_entries list;
    bool done = false;

    if (!kve_entries_init(&list, old->n_entries))
        goto out;
    if (depth > table_dir(table)->depth) {
        dir = dir_deeper(table);
        if (dir == NULL)
            goto out;
    }
    kve_entries_read(&list, old, KVE_COPY_SPLIT);
    kve_entries_ask(&list, table, depth, true);
    halves[0] = kve_segment_create(table, depth, prefix,
        kve_segment_size(depth, prefix, list.n - list.n_side1));
    halves[1] = kve_segment_create(table, depth, prefix + 1,
        kve_segment_size(depth, prefix + 1, list.n_side1));
    if (halves[0] == NULL || halves[1] == NULL)
        goto out;
    kve_entries_write(&list, halves, 2);
    if (dir != NULL)
        dir_replace(table, dir);
    dir_show(table_dir(table), halves[0]);
    dir_show(table_dir(table), halves[1]);
    table->n_at_depth[depth - 1]--;
    table->n_at_depth[depth] += 2;
    kve_pool_retire(table->pool, old);
    done = true;
out:
    if (!done) {
        kve_pool_free(table->pool, halves[0]);
        kve_pool_free(table->pool, halves[1]);
        kve_pool_free(table->pool, dir);
    }
    kve_entries_release(&list);
    return done;
}

/* Join two segments that differ in the last bit of their prefix; NULL: no
 * memory. */
static struct kve_segment *
table_join(
    struct kve_table *table, struct kve_segment *a, struct kve_segment *b)
{
    uint32_t depth = a->depth - 1;
    uint32_t prefix = a->prefix >> 1;
    uint32_t n_buckets =
        kve_segment_size(depth, prefix, (size_t)a->n_entries + b->n_entries);
    struct kve_segment *segment = NULL;
    struct kve_entries list;

    if (!kve_entries_init(&list, (size_t)a->n_entries + b->n_entries))
        goto out;
    segment = kve_segment_create(table, depth, prefix, n_buckets);
    if (segment == NULL)
        goto out;
    kve_entries_read(&list, a, KVE_COPY_JOIN_0);
    kve_entries_read(&list, b, KVE_COPY_JOIN_1);
    kve_entries_ask(&list, table, depth, false);
    kve_entries_write(&list, &segment, 1);
    dir_show(table_dir(table), segment);
    table->n_at_depth[depth + 1] -= 2;
    table->n_at_depth[depth]++;
    kve_pool_retire(table->pool, a);
    kve_pool_retire(table->pool, b);
    dir_shallower(table);
out:
    kve_entries_release(&list);
    return segment;
}

/* Splitting helps when keys differ. Where they do not the segment becomes
 * deep, and the directory large, without becoming emptier: not deeper than
 * some bits more than segments usually have. */
static bool
may_split(const struct kve_table *table, const struct kve_segment *segment)
{
    return segment->depth < KVE_TABLE_MAX_DEPTH &&
        table->n_entries >> segment->depth >= 48;
}

/* Give a segment the size that it should have: larger, when it is full, or
 * split it; the same, when it is only tangled. false: no memory. */
static bool
table_grow(struct kve_table *table, struct kve_segment *segment)
{
    size_t n = segment->n_entries;
    uint32_t n_buckets;

    n_buckets = kve_segment_size(segment->depth, segment->prefix, n);
    if (n_buckets < segment->n_buckets)
        n_buckets = segment->n_buckets;
    if (n_buckets > KVE_SEGMENT_MAX && may_split(table, segment))
        return table_split(table, segment);
    return table_resize(table, segment, n_buckets) != NULL;
}

/* The segment that this one can be joined with, or NULL. */
static struct kve_segment *
segment_partner(
    const struct kve_table *table, const struct kve_segment *segment)
{
    const struct kve_table_dir *dir = table_dir(table);
    struct kve_segment *other;

    if (segment->depth == 0)
        return NULL;
    other = kve_place_segment(
        atomic_load_explicit(&dir->places[(size_t)(segment->prefix ^ 1)
                                 << (dir->depth - segment->depth)],
            memory_order_relaxed));
    if (other->depth != segment->depth ||
        segment->n_entries + other->n_entries > KVE_SEGMENT_JOIN)
        return NULL;
    return other;
}

void
kve_table_shrink_segment(struct kve_table *table, struct kve_segment *segment)
{
    struct kve_segment *other;
    uint32_t n_buckets;

    while ((other = segment_partner(table, segment)) != NULL) {
        segment = (segment->prefix & 1) == 0
            ? table_join(table, segment, other)
            : table_join(table, other, segment);
        if (segment == NULL)
            return;
    }
    if (segment->n_entries >= segment->low)
        return;
    n_buckets =
        kve_segment_size(segment->depth, segment->prefix, segment->n_entries);
    if (n_buckets < segment->n_buckets &&
        segment->n_entries < kve_segment_low(segment->n_buckets)) {
        if (table_resize(table, segment, n_buckets) != NULL)
            return;
    }
    /* Look again when it is emptier. */
    segment->low = segment->n_entries - segment->n_entries / 16;
}

/* ---- what the owner calls ---- */

kve_status
kve_table_init(struct kve_table *table, struct kve_pool *pool, uint32_t id,
    const struct kve_table_ops *ops)
{
    struct kve_segment *segment;
    struct kve_table_dir *dir;

    memset(table, 0, sizeof(*table));
    table->pool = pool;
    table->ops = *ops;
    table->id = id;
    dir = dir_create(table, 0);
    if (dir == NULL)
        return KVE_E_NOMEM;
    segment = kve_segment_create(table, 0, 0, kve_segment_size(0, 0, 0));
    if (segment == NULL) {
        kve_pool_free(pool, dir);
        return KVE_E_NOMEM;
    }
    dir_show(dir, segment);
    table->n_at_depth[0] = 1;
    atomic_init(&table->dir, dir);
    return KVE_OK;
}

static inline struct kve_segment *
segment_of(const struct kve_table *table, uint64_t key)
{
    return kve_place_segment(kve_table_place(table, key));
}

/* Put the entry in; *ret_displaced: not where it belongs. */
static struct kve_segment *
table_put(
    struct kve_table *table, uint64_t key, uint32_t value, bool *ret_displaced)
{
    struct kve_segment *segment = segment_of(table, key);

    if (__builtin_expect(segment->n_entries >= segment->high, 0)) {
        /* Without memory it may become fuller than it should. */
        if (table_grow(table, segment))
            segment = segment_of(table, key);
        if (segment->n_entries == segment->n_buckets * KVE_BUCKET_SLOTS)
            return NULL;
    }
    *ret_displaced = segment_put(segment, kve_table_cell(key),
        NEXT_0 + key_bit(key, segment->depth), value);
    table->n_entries++;
    return segment;
}

bool
kve_table_insert(struct kve_table *table, uint64_t key, uint32_t value)
{
    bool displaced;
    struct kve_segment *segment = table_put(table, key, value, &displaced);

    if (segment == NULL)
        return false;
    if (__builtin_expect(displaced, 0) &&
        segment->n_displaced > segment->tangled && !table_grow(table, segment))
        /* Without memory not at every insert again. */
        segment->tangled = kve_segment_tangled(0, segment->n_displaced);
    return true;
}

bool
kve_table_insert_early(struct kve_table *table, uint64_t key, uint32_t value)
{
    bool displaced;

    return table_put(table, key, value, &displaced) != NULL;
}

bool
kve_table_insert_absent(struct kve_table *table, uint64_t key, uint32_t value)
{
    uintptr_t place = kve_table_place(table, key);
    struct kve_segment *segment = kve_place_segment(place);
    uint32_t cell = kve_table_cell(key);
    struct kve_bucket *bucket =
        &segment->buckets[kve_table_home(cell, kve_place_buckets(place))];
    uint64_t lo = bucket_lo(bucket);
    uint64_t hi = bucket_hi(bucket);
    uint32_t empty = kve_tags_match(lo, hi, 0);

    if (hi >> 56 != 0 || empty == 0 ||
        kve_tags_match(lo, hi, (cell & 255) * 0x0101010101010101ull) != 0 ||
        segment->n_entries >= segment->high)
        return false;
    bucket_fill(bucket, (uint32_t)__builtin_ctz(empty), cell & 255,
        NEXT_0 + key_bit(key, segment->depth), value);
    segment->n_entries++;
    table->n_entries++;
    return true;
}

/* Where an entry is. */
struct found {
    struct kve_segment *segment;
    uint32_t home;
    uint32_t at;
    uint32_t slot;
};

static inline bool
table_find(const struct kve_table *table, uint64_t key, uint32_t value,
    struct found *ret_found)
{
    struct kve_segment *segment = segment_of(table, key);
    uint32_t n = segment->n_buckets;
    uint32_t cell = kve_table_cell(key);
    uint64_t tags = (cell & 255) * 0x0101010101010101ull;
    uint32_t home = kve_table_home(cell, n);
    uint32_t at = home;

    for (uint32_t steps = 0; steps < n; steps++) {
        const struct kve_bucket *bucket = &segment->buckets[at];
        uint64_t hi = bucket_hi(bucket);
        uint32_t mask = kve_tags_match(bucket_lo(bucket), hi, tags);

        for (; mask != 0; mask &= mask - 1) {
            uint32_t slot = (uint32_t)__builtin_ctz(mask);

            if (atomic_load_explicit(
                    &bucket->values[slot], memory_order_relaxed) == value) {
                *ret_found = (struct found){ segment, home, at, slot };
                return true;
            }
        }
        if (hi >> 56 == 0)
            return false;
        if (++at == n)
            at = 0;
    }
    return false;
}

bool
kve_table_erase(struct kve_table *table, uint64_t key, uint32_t value)
{
    struct found found;

    if (!table_find(table, key, value, &found))
        return false;
    bucket_clear(&found.segment->buckets[found.at], found.slot);
    for (uint32_t i = found.home; i != found.at;) {
        bucket_pass(&found.segment->buckets[i], false);
        if (++i == found.segment->n_buckets)
            i = 0;
    }
    found.segment->n_displaced -= found.home != found.at;
    found.segment->n_entries--;
    table->n_entries--;
    return true;
}

bool
kve_table_replace(
    struct kve_table *table, uint64_t key, uint32_t from, uint32_t to)
{
    struct found found;

    if (!table_find(table, key, from, &found))
        return false;
    atomic_store_explicit(&found.segment->buckets[found.at].values[found.slot],
        to, memory_order_release);
    return true;
}

bool
kve_table_moved(
    struct kve_table *table, struct kve_obj *from, struct kve_obj *to)
{
    struct kve_segment *segment = (struct kve_segment *)to;
    struct kve_table_dir *dir = table_dir(table);
    uint32_t spread;
    uintptr_t place;

    if (segment->depth > dir->depth)
        return false;
    spread = dir->depth - segment->depth;
    place = atomic_load_explicit(
        &dir->places[(size_t)segment->prefix << spread], memory_order_relaxed);
    if ((struct kve_obj *)kve_place_segment(place) != from)
        return false;
    dir_show(dir, segment);
    return true;
}
