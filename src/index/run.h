/*
 * run.h - chains of blocks, in runs.
 *
 * A chain of blocks that nothing branches off is one run: one object, with the
 * content hashes of its blocks in a row, so that a query compares memory. A
 * branch ends a run; the runs behind it are found by (parent run, block size,
 * first content) in one table (space.edges). Runs form trees; a tree's root
 * says adapter and salt (struct kve_root), or that nobody knows them yet
 * because the parent of its first block was not taught (struct kve_wait).
 *
 *     run    [head][hot x recs][contents x cap][dynamo x cap]?
 *            [cold x recs][vecs][granules, a list for each vector]
 *            [live, a byte for each granule: which of its 8 have an id]
 *
 * Records. Who holds what is said by one record for each (scope, vector):
 * lead, the number of blocks from the run's start that are held without a
 * hole, which is all a reader needs for most queries, in one atomic word with
 * the scope. What is held beyond a hole, and counts of copies that are not 1,
 * are in an aux object, which most records lack.
 *
 *     hot    scope << 32 | lead            0: free
 *     aux    bits: which blocks are held   counts: copies, 1, 2 or 4 bytes each
 *
 * Vectors. Engine hashes of the run's blocks (names.h), in granules of 8.
 * Scopes that say the same hashes share a vector; another seed, another
 * engine is another vector. refs counts, for vectors with several records, how
 * many of them hold each block; a block that nobody holds any more loses its
 * hash and its id, and keeps its content only while something behind it is
 * held.
 *
 *     block at position p of vector v:  granule (p + phase) / 8, slot
 *                                       (p + phase) % 8
 *
 * Hash-only blocks (nobody taught where they stand) are in loose runs, without
 * contents: 64 places, one vector, no order.
 *
 * Readers may look at a run while it changes. Contents below n are never
 * written again (high says how far they ever were seen: the run is copied
 * before a place below it gets another content); hot words, n and aux are
 * atomic; everything else that moves is a new object in the old one's id. A
 * cut leaves the id with the tail, so that children keep their parent:
 *
 *     P -> R[a b c d] -> X   cut at 2:   P -> F[a b] -> R[c d] -> X
 */
#ifndef KVE_INDEX_RUN_H
#define KVE_INDEX_RUN_H

#include "index/space.h"

#define KVE_RUN_MAX 16384u  /* blocks a run */
#define KVE_RECS_MAX 65535u /* records a run */
#define KVE_LOOSE_BLOCKS 64u

/* What a run continues: the kind in the two top bits, an id below. */
#define KVE_PARENT_KIND 0xc0000000u
#define KVE_PARENT_RUN 0x00000000u
#define KVE_PARENT_ROOT 0x40000000u
#define KVE_PARENT_WAIT 0x80000000u
#define KVE_PARENT_NONE 0xc0000000u /* loose runs */
#define KVE_PARENT_ID(parent) ((parent) & ~KVE_PARENT_KIND)
/* Parent of every run with Dynamo hashes of its own that begins a chain, in
 * space.dedges. */
#define KVE_PARENT_DYNAMO (KVE_PARENT_ROOT | 0x3fffffffu)

#define KVE_RUN_DYNAMO 1u  /* has Dynamo hashes beside the contents */
#define KVE_RUN_LOOSE 2u   /* hash-only blocks */
#define KVE_RUN_TOUCHED 4u /* stored to since the eviction's hand passed */
#define KVE_RUN_WAITING 8u /* its root is a wait */
#define KVE_RUN_LISTED 16u /* a loose run in its life's list: it has room */
#define KVE_RUN_MOVED                                       \
    32u /* its blocks went elsewhere; the batch's end frees \
           it and what is behind it */

struct kve_run {
    struct kve_obj obj;      /* KVE_OBJ_RUN, id */
    _Atomic uint32_t parent; /* KVE_PARENT_* */
    _Atomic uint32_t n;      /* blocks */
    uint32_t block_size;
    uint32_t cap;            /* room for contents */
    _Atomic uint32_t n_recs; /* places in use, free ones among them */
    uint32_t cap_recs;
    uint32_t high;          /* contents below were seen by readers */
    _Atomic uint32_t flags; /* KVE_RUN_* */
    uint32_t first_child;
    uint32_t next; /* siblings */
    uint32_t prev;
    uint32_t n_children;
    /* Children whose block size is another one: the reader asks them one by
     * one. */
    _Atomic uint32_t n_odd;
    uint16_t n_vecs;
    uint16_t cap_vecs;
    uint32_t live;       /* (vector, block) pairs that have an id */
    uint32_t n_granules; /* of each vector: room in its list */
    /* 72 bytes so far; hot words follow */
    _Atomic uint64_t hot[];
};

#define KVE_HOT(scope, lead) ((uint64_t)(scope) << 32 | (lead))
#define KVE_HOT_SCOPE(hot) ((uint32_t)((hot) >> 32))
#define KVE_HOT_LEAD(hot) ((uint32_t)(hot))

/* What is not in the hot word of a record. */
struct kve_rec {
    _Atomic(struct kve_aux *) aux;
    uint32_t next_run; /* the scope's list */
    uint32_t prev_run;
    uint16_t next_rec;
    uint16_t prev_rec;
    _Atomic uint16_t vec; /* KVE_NO_VEC: blocks without names (bridges) */
    uint16_t pad;
    uint32_t held; /* blocks */
    uint32_t pad2;
};
#define KVE_NO_VEC 0xffffu

/* Bits and counts of a record, or refs of a vector. */
struct kve_aux {
    struct kve_obj obj; /* KVE_OBJ_AUX, id of the run */
    uint32_t n;         /* blocks there is room for, a multiple of 64 */
    uint32_t width;     /* bytes a count: 0 (none), 1, 2, 4 */
    uint32_t many;      /* counts above 1 */
    uint32_t pad;
    /* Which blocks are held, 64 a word; exact, also below lead. Then counts. */
    _Atomic uint64_t bits[];
};

struct kve_vec {
    struct kve_aux *refs; /* width 2 or 4, no bits used; NULL: one record */
    uint32_t owner;       /* of its names; 0: shared */
    uint32_t live;        /* blocks that have an id */
    uint16_t n_recs;      /* 0: the place is free */
    uint8_t form;         /* enum kve_name_form */
    _Atomic uint8_t phase;
    bool kept; /* private for good: somebody has one of its names */
};

/* ---- for readers ---- */

static inline struct kve_run *
kve_run_get(const struct kve_space *space, uint32_t id)
{
    return kve_dir_get(&space->runs, id);
}

/* The same for the writer, who knows that the run is there. */
static inline struct kve_run *
kve_run_at(const struct kve_space *space, uint32_t id)
{
    return atomic_load_explicit(
        kve_dir_place(&space->runs, id), memory_order_relaxed);
}

static inline const uint64_t *
kve_run_contents(const struct kve_run *run)
{
    return (const uint64_t *)(const void *)&run->hot[run->cap_recs];
}

/* Dynamo's hashes: the contents themselves where they do not differ. */
static inline const uint64_t *
kve_run_dynamo(const struct kve_run *run)
{
    return kve_run_contents(run) +
        ((run->flags & KVE_RUN_DYNAMO) != 0 ? run->cap : 0);
}

static inline struct kve_rec *
kve_run_recs(const struct kve_run *run)
{
    const uint64_t *end = kve_run_dynamo(run);

    /* Loose runs have no contents. */
    end += (run->flags & KVE_RUN_LOOSE) != 0 ? 0 : run->cap;
    return (struct kve_rec *)(uintptr_t)end;
}

static inline struct kve_vec *
kve_run_vecs(const struct kve_run *run)
{
    return (struct kve_vec *)(void *)(kve_run_recs(run) + run->cap_recs);
}

/* First blocks of the granules of vector v; 0 where there is none. */
static inline _Atomic uint32_t *
kve_run_granules(const struct kve_run *run, uint32_t v)
{
    return (_Atomic uint32_t *)(void *)(kve_run_vecs(run) + run->cap_vecs) +
        (size_t)v * run->n_granules;
}

/* Bits of a granule's blocks that have an id. The writer's only. */
static inline uint8_t *
kve_run_live(const struct kve_run *run, uint32_t v)
{
    return (uint8_t *)(void *)kve_run_granules(run, run->cap_vecs) +
        (size_t)v * run->n_granules;
}

/* Does this record hold the block at position p? */
static inline bool
kve_rec_holds(const struct kve_run *run, uint32_t rec, uint32_t p)
{
    uint64_t hot = atomic_load_explicit(&run->hot[rec], memory_order_acquire);
    const struct kve_aux *aux;

    if (p < KVE_HOT_LEAD(hot))
        return true;
    aux =
        atomic_load_explicit(&kve_run_recs(run)[rec].aux, memory_order_acquire);
    return aux != NULL && p < aux->n &&
        (atomic_load_explicit(&aux->bits[p / 64], memory_order_acquire) >>
                (p % 64) &
            1) != 0;
}

/* Key of an edge: table edges, and dedges with a Dynamo hash. */
static inline uint64_t
kve_edge_key(const struct kve_space *space, uint32_t parent,
    uint32_t block_size, uint64_t content)
{
    unsigned __int128 m =
        (unsigned __int128)(content ^ space->names.secret[0]) *
        (((uint64_t)parent << 32 | block_size) ^ space->names.secret[1]);

    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

/* Where a block is: run (NULL: it died), vector, position. The object may be
 * replaced under a reader; what is read is checked by stamps. */
struct kve_place {
    struct kve_run *run;
    uint32_t vec;
    uint32_t pos;
};

struct kve_place kve_place_of(const struct kve_space *space, uint32_t block);

/* ---- for the rest of the folder; see writer.h for the writer's own ---- */

/* The tables of blocks, edges and runs. */
kve_status kve_runs_init(struct kve_space *space);

/* Pool's moved() for runs and aux. */
bool kve_runs_moved(
    struct kve_space *space, struct kve_obj *from, struct kve_obj *to);

/* Remove everything a scope holds, at most about max_blocks blocks; true when
 * nothing is left. The scope has no view any more. */
bool kve_scope_drain(
    struct kve_space *space, struct kve_scope *scope, size_t max_blocks);

/* Forget the least recently stored runs until at least this many bytes were
 * given back, or nothing is left to forget (false). */
bool kve_evict(struct kve_space *space, size_t bytes);

/* Scratch of the writer, made with the space and ended with it. */
kve_status kve_apply_create(struct kve_space *space);
void kve_apply_destroy(struct kve_space *space);
void kve_preps_free(kve_index *index);
/* A life's marks of skipped parts (bridge.c): when it ends, and when scopes
 * of it were cleared. */
void kve_bridges_free(struct kve_inst *inst);
void kve_bridges_check(struct kve_inst *inst);

#endif
