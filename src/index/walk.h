/*
 * walk.h - one step down a chain, by readers.
 *
 * Runs are cut while readers walk. The writer orders its stores:
 *
 *     cut R at k    F is in the directory; edge F -> R; R becomes the tail,
 *                   with parent F; edge P -> R becomes P -> F
 *
 * so at every moment the blocks behind P are found: the edge leads to the run
 * itself, or (in the middle of the cut) to a run whose parent is it; also when
 * the writer was put to sleep there. Joining is the opposite:
 *
 *     join F and R  edge P -> F becomes P -> R; R becomes the whole, with
 *                   parent P; F leaves the directory; edge F -> R goes
 *
 * Who stands in F then finds nothing behind it, and has to begin again: F is
 * gone, or what was behind it stands where F does. And a look-up that saw two
 * of these begin may find nothing, or the name of a run that is gone: then
 * moves is another than it was, or the directory has nothing under that name,
 * and the reader begins again (kve_descent_sure()).
 */
#ifndef KVE_INDEX_WALK_H
#define KVE_INDEX_WALK_H

#include "index/query.h"

#include <string.h>

/* The directory still has this object in the run's place. */
static inline bool
kve_run_stays(const struct kve_space *space, const struct kve_run *run)
{
    return kve_run_get(space, run->obj.id) == run;
}

/* Where a look-up stands, and what it met. */
struct kve_descent {
    uint32_t parent; /* tag of a run or a root */
    uint32_t size;
    uint64_t hash; /* of the block that follows */
    bool dynamo;   /* hash is Dynamo's, and so is the table */
    bool plain;    /* only runs without Dynamo hashes of their own */
    bool doubt;    /* met a run that is gone */
    uint32_t moves;
    struct kve_probe probe;
};

static inline uint64_t
kve_run_first(const struct kve_run *run, bool dynamo)
{
    return dynamo ? kve_run_dynamo(run)[0] : kve_run_contents(run)[0];
}

/* Is it the run that begins with hash behind parent? */
static inline bool
kve_descent_fits(
    const struct kve_descent *d, const struct kve_run *run, uint32_t parent)
{
    uint32_t flags;

    if (run->block_size != d->size ||
        atomic_load_explicit(&run->n, memory_order_acquire) == 0)
        return false;
    if (d->parent == KVE_PARENT_DYNAMO
            ? (parent & KVE_PARENT_KIND) != KVE_PARENT_ROOT
            : parent != d->parent)
        return false;
    if (d->dynamo || d->plain) {
        flags = atomic_load_explicit(&run->flags, memory_order_relaxed);
        if (((flags & KVE_RUN_DYNAMO) != 0) != d->dynamo)
            return false;
    }
    return kve_run_first(run, d->dynamo) == d->hash;
}

static inline void
kve_descent_begin(const struct kve_space *space, struct kve_descent *d)
{
    d->doubt = false;
    d->moves = atomic_load_explicit(&space->moves, memory_order_acquire);
    kve_probe_begin(&d->probe, d->dynamo ? &space->dedges : &space->edges,
        kve_edge_key(space, d->parent, d->size, d->hash));
}

/* A candidate that does not fit: a run in the middle of being cut? Then the
 * one in front of it may fit. */
static inline const struct kve_run *
kve_descent_front(
    const struct kve_space *space, struct kve_descent *d, uint32_t parent)
{
    const struct kve_run *front;

    if ((parent & KVE_PARENT_KIND) != KVE_PARENT_RUN)
        return NULL;
    front = kve_run_get(space, KVE_PARENT_ID(parent));
    if (front == NULL) {
        d->doubt = true;
        return NULL;
    }
    parent = atomic_load_explicit(&front->parent, memory_order_acquire);
    return kve_descent_fits(d, front, parent) ? front : NULL;
}

/* A candidate that does not fit, behind a run: was it joined with that run? It
 * stands where that one stood then, with the same content. */
static inline bool
kve_descent_joined(const struct kve_space *space, const struct kve_descent *d,
    const struct kve_run *run, uint32_t parent)
{
    const struct kve_run *from;

    /* The edge to where one stands may be met, too, with an equal tag. */
    if ((d->parent & KVE_PARENT_KIND) != KVE_PARENT_RUN ||
        run->obj.id == KVE_PARENT_ID(d->parent))
        return false;
    from = kve_run_get(space, KVE_PARENT_ID(d->parent));
    /* The run itself is in its bucket as any other with an equal tag may be. */
    return from == NULL ||
        (run != from &&
            atomic_load_explicit(&from->parent, memory_order_acquire) ==
                parent &&
            run->block_size == from->block_size &&
            kve_run_contents(run)[0] == kve_run_contents(from)[0]);
}

/* Fetch the beginning of a run: its head, first records, contents. */
KVE_FETCHES static inline void
kve_run_prefetch(const struct kve_run *run)
{
    const char *p = (const char *)run;

    __builtin_prefetch(p);
    __builtin_prefetch(p + 64);
    __builtin_prefetch(p + 128);
    __builtin_prefetch(p + 192);
    __builtin_prefetch(p + 256);
    __builtin_prefetch(p + 320);
    __builtin_prefetch(p + 384);
    __builtin_prefetch(p + 448);
    __builtin_prefetch(p + 512);
    __builtin_prefetch(p + 576);
}

/* The next run that fits, or NULL. */
static inline const struct kve_run *
kve_descent_next(const struct kve_space *space, struct kve_descent *d)
{
    uint32_t id;

    while ((id = kve_probe_next(&d->probe)) != KVE_NO_VALUE) {
        const struct kve_run *run;
        uint32_t parent;

        KVE_READER_TURN();
        run = kve_run_get(space, id);
        /* All of it at once: it is the one that fits, nearly always. */
        if (run != NULL)
            kve_run_prefetch(run);
        if (run == NULL) {
            d->doubt = true;
            continue;
        }
        KVE_READER_TURN();
        parent = atomic_load_explicit(&run->parent, memory_order_acquire);
        if (kve_descent_fits(d, run, parent))
            return run;
        if (kve_descent_joined(space, d, run, parent))
            d->doubt = true;
        run = kve_descent_front(space, d, parent);
        if (run != NULL)
            return run;
    }
    return NULL;
}

/* Is it true that there are no more? */
static inline bool
kve_descent_sure(const struct kve_space *space, const struct kve_descent *d)
{
    return !d->doubt &&
        ((d->parent & KVE_PARENT_KIND) != KVE_PARENT_RUN ||
            kve_run_get(space, KVE_PARENT_ID(d->parent)) != NULL) &&
        atomic_load_explicit(&space->moves, memory_order_relaxed) == d->moves;
}

/* How many of n numbers are equal, from the first on. */
static inline size_t
kve_words_match(const uint64_t *a, const uint64_t *b, size_t n)
{
    size_t i = 0;

    if (memcmp(a, b, n * sizeof(*a)) == 0)
        return n;
    while (i + 4 <= n &&
        ((a[i] ^ b[i]) | (a[i + 1] ^ b[i + 1]) | (a[i + 2] ^ b[i + 2]) |
            (a[i + 3] ^ b[i + 3])) == 0)
        i += 4;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* Blocks of the run (of n) that the stream has from place at on. false: no
 * memory. */
bool kve_run_match(struct kve_ask *ask, const struct kve_run *run, uint32_t n,
    struct kve_stream *stream, size_t at, bool dynamo, uint32_t *ret_n);

#endif
