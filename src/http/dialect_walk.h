/*
 * dialect_walk.h - all that instances hold, run by run, for those who say it in
 * another's words.
 *
 * An answer of everything is made by a thread while the client reads it
 * (v1_feed.h), one instance after another, each as it was at one moment. Of an
 * instance the index names runs of blocks, parents first, and then who holds
 * them; say() is called when that is complete:
 *
 *     run: contents   c0  c1  c2  c3        parent: last block of another run
 *     held on GPU     h0  h1  -   -
 *     held on CPU     -   h1  -   h3        c2 is a hole: nobody holds it
 *
 *     places          1   3   0   2         sets of 1 << enum kve_walk_place
 *     hashes          h0  h1  r2  h3        r2: no hash is known, so the
 * rolling hash of its place stands for it
 *
 * A hash in bytes is told by its last 8, big-endian, as vLLM makes its
 * integers.
 *
 * Left out is what has no place in a chain that begins somewhere: blocks that
 * nobody taught, and those that wait for a parent. With dynamo also chains of
 * which Dynamo's hashes are not known (a salt that is not Dynamo's), and groups
 * of hybrid models in which a prefix is not held whole, which Dynamo does not
 * keep. All of it is in /v1/dump.
 */
#ifndef KVE_HTTP_DIALECT_WALK_H
#define KVE_HTTP_DIALECT_WALK_H

#include "http/dialect.h"
#include "http/v1_feed.h"

/* Where Dynamo keeps blocks. */
enum kve_walk_place {
    KVE_WALK_DEVICE,
    KVE_WALK_HOST,
    KVE_WALK_DISK,
    KVE_WALK_EXTERNAL,
    KVE_WALK_PLACES
};

/* A namespace that has sources, when the answer begins. */
struct kve_walk_space {
    kve_namespace ns;
    char *model;
    char *tenant;
    uint32_t block_size; /* as registered */
};

struct kve_walk_instance {
    kve_instance instance;
    size_t space;
};

/* What children of a run must know of it. */
struct kve_walk_end {
    uint64_t hash;    /* of its last block */
    uint64_t rolling; /* the same */
    bool usable;      /* its blocks are said */
};

#define KVE_WALK_GROUPS 64u

struct kve_walk {
    struct kve_http *http;
    struct kve_feed *feed;
    struct kve_output out; /* what is written goes to the client by and by */
    bool dynamo;
    bool failed; /* no memory, or the client left */
    /* A run is complete: the fields below. */
    void (*say)(struct kve_walk *walk);

    struct kve_walk_space *spaces;
    size_t n_spaces;
    struct kve_walk_instance *instances; /* by space */
    size_t n_instances;

    /* of the instance */
    char *worker;
    uint32_t rank;

    /* of the run */
    uint64_t id;        /* from 1, counted in the instance */
    uint64_t parent_id; /* 0: it begins a chain */
    uint64_t parent;    /* hash of the block before it; with parent_id */
    size_t n;
    uint64_t *hashes;
    uint64_t *tokens;  /* Dynamo's hashes, or the contents */
    uint64_t *rolling; /* [i + 1]: of block i */
    uint8_t *places;

    /* private */
    struct kve_buffer buf;
    bool open;
    bool usable;
    size_t cap;
    struct kve_walk_end *ends; /* by run's id - 1 */
    size_t n_ends;
    size_t cap_ends;
    struct kve_index_group groups[KVE_WALK_GROUPS];
    size_t n_groups;
};

/* Begin: what there is. false: no memory; end it all the same. */
bool kve_walk_begin(struct kve_walk *walk, struct kve_http *http,
    struct kve_feed *feed, bool dynamo, void (*say)(struct kve_walk *walk));

/* Say an instance; nothing where it has left meanwhile. */
void kve_walk_instance(struct kve_walk *walk, kve_instance instance);

/* Give the client what was written, when it is enough. */
void kve_walk_pass_on(struct kve_walk *walk);

/* Give the client the rest, and free; false: the answer is not whole. */
bool kve_walk_end(struct kve_walk *walk);

/* Room for one more item; false: no memory, and the walk has failed. */
bool kve_walk_grow(
    struct kve_walk *walk, void **items, size_t n, size_t *cap, size_t size);

#endif
