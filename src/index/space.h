/*
 * space.h - namespaces, instances and scopes.
 *
 *     index
 *       slots[]                       one per kve_instance handle; what
 *         | stamp, shape               readers see of an instance
 *         | inst, twin
 *       spaces[]                      one per (model, tenant)
 *         | lock, pool                 one writer at a time
 *         | names, edges, runs ...     the blocks (names.h, run.h)
 *         | insts[]                    lives of instances
 *         | scopes[], views[]          where their copies are counted
 *
 * A kve_inst is one life of an instance. Dropping an instance, clearing it
 * and putting a twin in its place are the same thing: another life becomes
 * visible, in one step, and the old one is drained afterwards, a little with
 * each batch. What a life holds is reached only through its scopes, and a
 * reader counts a scope only when its view says so; so the step is a few
 * stores, however much is held.
 *
 * Readers and stamps. slot.stamp is odd while something that a reader can see
 * of this instance changes, and goes up by two with every change:
 *
 *     writer   begin: stamp odd     | changes (release) | end: stamp even
 *     reader   s = stamp (even)     | reads (acquire)   | stamp still s?
 *
 * Only what changes residency is between begin and end: a few stores. Changes
 * of structure that leave everybody's residency as it is need no stamp; they
 * are told by space.moves, odd while runs are being cut or joined: a reader
 * that finds nothing where it expects a run looks again if moves changed.
 *
 * Handles: kve_instance is generation << 32 | slot + 1; the top bit names the
 * twin.
 *
 * Locks. space.lock is held by whoever changes something in a namespace;
 * index.lock is taken inside it, for a few lookups at most, and guards who is
 * called what (workers, namespaces), which slots are free, and the names of
 * unknown kinds. Nobody waits for a space.lock while holding index.lock.
 *
 * The end of lives. What is over is unlinked at once and drained later: its
 * scopes stand in space.drain, oldest first, and are emptied by
 * kve_scope_drain() a slice at a time. Scopes that left a life which goes on
 * (kve_inst_clear_tiers()) belong to space.grave from then on: a life that
 * nobody sees and that never ends. A life is freed when its scopes are, and
 * when no name and no wait is its own any more.
 */
#ifndef KVE_INDEX_SPACE_H
#define KVE_INDEX_SPACE_H

#include "base/counters.h"
#include "hash/content.h"
#include "index/mem.h"
#include "index/names.h"

#include <kvevents/index.h>

#include <pthread.h>

struct kve_space;
struct kve_inst;

/* ---- what readers see of an instance ---- */

/* Its residency in a run is not just the lead of one scope on the GPU: the
 * reader takes the long way for it. */
#define KVE_SHAPE_COMPLEX 1u

struct kve_slot {
    _Alignas(64) _Atomic uint32_t stamp;
    _Atomic uint32_t shape;  /* KVE_SHAPE_*; only ever set, cleared by a new
                                life */
    _Atomic uint64_t handle; /* 0: free */
    /* Under the lock of the space. */
    uint32_t index;
    uint32_t generation;
    _Atomic(struct kve_space *) space;
    _Atomic(struct kve_inst *) inst; /* readers: within a read section */
    struct kve_inst *twin;           /* NULL: none */
    struct kve_worker *home;         /* slot.h; under index.lock, too */
    const char *worker;              /* its name */
    uint32_t rank;
    _Atomic uint32_t counting; /* resolved: COPIES or SET; readers, too */
    uint32_t next_free;        /* number + 1 of the next free slot */
    struct kve_index_counters *counters;
};

/*
 * What a scope is to a reader, one word:
 *     slot index << 32 | group << 8 | tier << 4 | 1
 * 0: nobody's (hidden, retired, free). group: index into the life's groups,
 * KVE_NO_GROUP for residency without one.
 */
#define KVE_NO_GROUP 0xffffu
static inline uint64_t
kve_view_make(uint32_t slot, uint32_t group, uint32_t tier)
{
    return (uint64_t)slot << 32 | (uint64_t)group << 8 | tier << 4 | 1u;
}
#define KVE_VIEW_SLOT(v) ((uint32_t)((v) >> 32))
#define KVE_VIEW_GROUP(v) ((uint32_t)((v) >> 8) & 0xffffu)
#define KVE_VIEW_TIER(v) ((uint32_t)((v) >> 4) & 15u)

/* Tier of scopes that mark skipped blocks as passable (run.h). */
#define KVE_TIER_BRIDGE 15u

/* ---- the writer's side ---- */

/* What a group needs of a prefix. */
enum kve_group_need {
    KVE_NEED_ALL = 0,    /* every block */
    KVE_NEED_WINDOW = 1, /* the last ceil((window - 1) / block_size) */
    KVE_NEED_LAST = 2,   /* the block that ends the prefix */
    KVE_NEED_CHUNK = 3,  /* those of the chunk the end lies in; window is the
                            chunk's size in tokens. Engines that send windows
                            of sliding groups only leave it out: then the need
                            is ALL, which is never too little */
    KVE_NEED_NONE = 4    /* ignored */
};

/* Of kinds that are not known; never what readers see. */
#define KVE_NEED_UNKNOWN 5

/*
 * A group of blocks, as a life learnt it: kind, window and block size as its
 * stores said them last. Read by readers under the stamp: what they need is
 * atomic, and the array is replaced whole when it grows.
 *
 * An unknown kind, or none, counts as full attention until a store of the
 * group has tokens that are not hashes x block_size: such a group lists only
 * some of its blocks, by a rule nobody knows, and is ignored from then on.
 */
struct kve_group_info {
    _Atomic uint32_t need; /* enum kve_group_need */
    _Atomic uint32_t block_size;
    _Atomic uint32_t window; /* 0: not said */
    uint8_t of_kind;         /* what the kind needs; KVE_NEED_UNKNOWN */
    bool sparse;
    uint32_t kind_len;
    int64_t group;    /* number on the wire */
    const char *kind; /* NULL: not said; lives as long as the index */
};

struct kve_groups {
    struct kve_obj obj;
    _Atomic uint32_t n;
    uint32_t cap;
    struct kve_group_info info[];
};

struct kve_scope {
    struct kve_obj obj;
    uint32_t id; /* in space.scopes and views; never 0 */
    struct kve_inst *inst;
    uint8_t tier;
    uint32_t group; /* index into groups, or KVE_NO_GROUP */
    struct kve_int group_idx;
    struct kve_str medium; /* as first said; absent and "" are one: len 0 */
    struct kve_str locality;
    struct kve_str ownership;
    /* Records of this scope in runs, a list (run.h). */
    uint32_t first_run;
    uint32_t first_rec;
    uint64_t held;    /* blocks */
    uint64_t copies;  /* with their counts */
    uint64_t waiting; /* of held: in chains whose root is unknown */
    uint64_t loose;   /* of held: by hash only */
    bool retired;     /* in space.drain */
    struct kve_scope *next_retired;
};

/* One life of an instance. */
struct kve_inst {
    struct kve_obj obj;
    uint32_t owner; /* id in space.insts; owner of private names; never 0 */
    struct kve_slot *slot;
    struct kve_space *space;
    bool visible; /* the slot's inst: its scopes have views */
    bool retired; /* being drained */
    bool counts;  /* copies are counted; else a set */
    bool complex; /* a scope has two records in one run */
    struct kve_scope **scopes;
    uint32_t n_scopes;
    uint32_t cap_scopes;
    struct kve_scope *last_scope; /* that kve_scope_of() returned, or NULL */
    uint32_t n_draining; /* of its scopes, how many are in space.drain */
    bool swept; /* retired, and what memory was too short for was looked for */
    _Atomic(struct kve_groups *) groups; /* NULL: none learnt */
    struct kve_name_owner names;         /* private ones */
    _Atomic uint32_t n_private; /* blocks in the table under this owner */
    uint32_t forms;   /* 1 << enum kve_name_form: hashes it ever stored */
    uint32_t n_waits; /* unknown parents that something waits for */
    uint32_t loose;   /* a run of hash-only blocks with room, or 0 */
    uint64_t batches;
    uint64_t changes;  /* of what it holds; goes up only */
    uint32_t sizes[8]; /* block sizes seen */
    uint32_t n_sizes;
    /* Where the last store ended: the next one of the chain finds its parent
     * without a look-up. block is checked against the hash before use. */
    uint32_t last_block;
    /* Where the last removal ended: the next one goes on before it, as a
     * rule. All of it is checked before use. */
    uint32_t gone_run;
    uint32_t gone_vec;
    uint32_t gone_pos;
    uint32_t gone_rec;
    struct kve_inst *next_retired;
    struct kve_bridges *bridges; /* run.h; NULL: none */
};

#define KVE_INDEX_COUNTERS 32
#define KVE_INDEX_COUNTER_BASE 200
struct kve_index_counters {
    _Atomic uint64_t n[KVE_INDEX_COUNTERS];
};

/* Scopes of a namespace: at most 2^20. */
#define KVE_VIEW_CHUNK 1024u
#define KVE_VIEW_CHUNKS 1024u

/* Block sizes in a namespace: stores that bring more are refused. */
#define KVE_SPACE_SIZES 32u

/* Tables of a namespace, for kve_obj.id of their segments. */
enum kve_table_id {
    KVE_TABLE_NAMES = 0,
    KVE_TABLE_EDGES = 1,
    KVE_TABLE_DEDGES = 2,
    KVE_TABLE_ROOTS = 3,
    KVE_TABLE_WAITS = 4
};

/* Kinds of ids for kve_pool_retire_id() beside enum kve_obj_kind. */
enum kve_id_kind {
    KVE_ID_SCOPE = 64,
    KVE_ID_INST = 65,
    KVE_ID_ROOT = 66,
    KVE_ID_WAIT = 67
};

/* The root of chains with one adapter and one salt. Root 1 is the base's. */
struct kve_root {
    struct kve_obj obj;
    struct kve_space *space;
    uint64_t key; /* in space.root_ids */
    uint32_t id;  /* in space.roots */
    struct kve_str lora;
    struct kve_str salt;
    bool seeded;   /* chains have Dynamo hashes of their own ... */
    bool unhashed; /* ... or none at all */
    uint64_t seed;
    uint32_t first_child; /* run */
    uint32_t n_children;
    /* Block sizes of the runs that begin here; readers hash by these. More
     * than fit: the reader asks each child's (n_sizes > 4). */
    _Atomic uint32_t n_sizes;
    _Atomic uint32_t sizes[4];
    uint32_t size_uses[4];
    uint32_t other_uses; /* of sizes that had no place */
};

/* What chains of one life wait for: a parent nobody taught it. */
struct kve_wait {
    struct kve_obj obj;
    uint64_t key; /* in space.wait_ids */
    uint32_t id;  /* in space.waits */
    uint32_t owner;
    uint32_t first_child;
    uint32_t n_children;
    struct kve_hash hash; /* bytes point behind this structure */
};

/* A place in a list of struct kve_links (links.h). */
struct kve_link {
    struct kve_link *next;
    uint64_t key;
};

/* Things by name: lists by the low bits of their keys. Under index.lock. */
struct kve_links {
    struct kve_link **heads;
    uint32_t n;
    uint32_t cap; /* lists; a power of two, or 0 */
};

struct kve_space {
    struct kve_link link; /* first; by model and tenant */
    kve_index *index;
    uint32_t id;
    char *model;
    char *tenant;
    pthread_mutex_t lock;
    struct kve_pool *pool;
    struct kve_names names;
    struct kve_dir runs;
    struct kve_dir scopes;
    struct kve_dir insts;
    struct kve_dir roots;
    struct kve_dir waits;
    struct kve_table edges;    /* (parent, size, first content) -> run */
    struct kve_table dedges;   /* the same by Dynamo hash, where it differs */
    struct kve_table root_ids; /* (lora, salt) -> root */
    struct kve_table wait_ids; /* (owner, hash) -> wait */
    _Atomic uint32_t moves;
    /* A reader may have passed the place where an instance is now, and find
     * nothing where it was: another life was shown (odd meanwhile), or a
     * record of a complex instance was dropped (up by two). */
    _Atomic uint32_t gone;
    /* Ids of insts are below; readers go through all lives that have private
     * names (kve_dir_get(&insts, id) is safe for every id that was given). */
    _Atomic uint32_t top_inst;
    /* The same of roots: all were below. */
    _Atomic uint32_t top_root;
    /* Block sizes of runs there ever were, 0 ends the list: where chains of
     * several sizes meet, readers hash by each of them. */
    _Atomic uint32_t sizes[KVE_SPACE_SIZES];
    /* views[scope id], in chunks. */
    _Atomic(_Atomic uint64_t *) views[KVE_VIEW_CHUNKS];
    /* Lives that are over, and scopes that are not empty yet: lists. */
    struct kve_inst *retired;
    struct kve_inst *last_retired;
    struct kve_scope *drain;
    struct kve_scope *last_drain;
    struct kve_inst *grave;   /* life of scopes whose own goes on */
    struct kve_slot *no_slot; /* slot of lives that were dropped */
    uint32_t n_instances;
    /* Blocks touched since the lock was taken: apply adds, kve_space_unlock()
     * drains about as many. */
    uint64_t work;
    size_t unlooked;   /* the same, since slabs were last looked at */
    uint32_t hand;     /* eviction: next run to be looked at */
    uint64_t short_of; /* bytes that were missing when a store failed */
    uint64_t n_blocks; /* blocks that have an id */
    uint64_t n_runs;
    uint32_t n_bridges;      /* of all lives (bridge.c) */
    struct kve_apply *apply; /* scratch of the writer (apply.h) */
};

/* Scratch for hashing, kept for as many threads as apply at once (apply.c). */
#define KVE_INDEX_PREPS 8

struct kve_index {
    _Atomic(struct kve_prep *) preps[KVE_INDEX_PREPS];
    struct kve_mem_shared mem;
    struct kve_index_opts opts; /* resolved: no zeros where there is a
                                   default */
    pthread_mutex_t lock;
    uint64_t secret;                     /* of the keys of names */
    _Atomic(struct kve_space *) *spaces; /* max_namespaces places */
    _Atomic uint32_t n_spaces;
    _Atomic(struct kve_slot *) *slot_chunks; /* 256 slots each */
    uint32_t n_slots;                        /* ever used */
    uint32_t n_instances;
    uint32_t free_slots; /* number + 1 of the first one, or 0 */
    struct kve_links space_names;
    struct kve_links workers;
    struct kve_kind *kinds; /* names of unknown kinds: a list */
    uint32_t n_kinds;
    struct kve_index_counters counters; /* of instances that were dropped */
};

#define KVE_SLOT_CHUNK 256u

/* The bit of a handle that names the twin. */
#define KVE_TWIN (UINT64_C(1) << 63)

/* The slot of an index; readers call it with what a view says. */
static inline struct kve_slot *
kve_slot_at(const kve_index *index, uint32_t i)
{
    return atomic_load_explicit(
               &index->slot_chunks[i / KVE_SLOT_CHUNK], memory_order_acquire) +
        i % KVE_SLOT_CHUNK;
}

static inline _Atomic uint64_t *
kve_view_place(const struct kve_space *space, uint32_t scope)
{
    return &atomic_load_explicit(&space->views[scope / KVE_VIEW_CHUNK],
        memory_order_acquire)[scope % KVE_VIEW_CHUNK];
}

static inline uint64_t
kve_view_of(const struct kve_space *space, uint32_t scope)
{
    return atomic_load_explicit(
        kve_view_place(space, scope), memory_order_acquire);
}

/* Note a block size before the first run of it is made. false: there are too
 * many sizes (the store is refused). By the writer. */
static inline bool
kve_space_size(struct kve_space *space, uint32_t block_size)
{
    for (uint32_t i = 0; i < KVE_SPACE_SIZES; i++) {
        uint32_t size =
            atomic_load_explicit(&space->sizes[i], memory_order_relaxed);

        if (size == block_size)
            return true;
        if (size == 0) {
            atomic_store_explicit(
                &space->sizes[i], block_size, memory_order_release);
            return true;
        }
    }
    return false;
}

static inline void
kve_space_gone(struct kve_space *space, uint32_t up)
{
    atomic_store_explicit(&space->gone,
        atomic_load_explicit(&space->gone, memory_order_relaxed) + up,
        memory_order_release);
}

/* Between these two an instance's visible residency changes. A hidden or
 * retired life needs neither. */
static inline void
kve_stamp_begin(struct kve_inst *inst)
{
    if (inst->visible) {
        _Atomic uint32_t *stamp = &inst->slot->stamp;

        atomic_store_explicit(stamp,
            atomic_load_explicit(stamp, memory_order_relaxed) + 1,
            memory_order_relaxed);
    }
}

static inline void
kve_stamp_end(struct kve_inst *inst)
{
    if (inst->visible) {
        _Atomic uint32_t *stamp = &inst->slot->stamp;

        atomic_store_explicit(stamp,
            atomic_load_explicit(stamp, memory_order_relaxed) + 1,
            memory_order_release);
    }
}

static inline void
kve_index_count(struct kve_inst *inst, enum kve_counter counter, uint64_t n)
{
    unsigned i = counter - KVE_INDEX_COUNTER_BASE;
    _Atomic uint64_t *own = &inst->slot->counters->n[i];

    atomic_store_explicit(own,
        atomic_load_explicit(own, memory_order_relaxed) + n,
        memory_order_relaxed);
}

/*
 * A handle's slot with its space locked, and the life it names (the twin when
 * the handle says so), or NULL. Unlock with kve_space_unlock(): it settles
 * the pool and drains a bounded part of retired lives first.
 */
struct kve_inst *kve_inst_lock(kve_index *index, kve_instance instance);
void kve_space_unlock(struct kve_space *space);

/* Drain what is over: at most about max_blocks blocks, for at most about
 * max_us microseconds (a slice more). Returns true when more is left. Under
 * the lock; kve_space_unlock() does it, and who needs memory may. */
bool kve_space_drain(
    struct kve_space *space, size_t max_blocks, uint64_t max_us);

/* The scope of an event in a life, made when it is new (make), and its group
 * with it; NULL: there is none (KVE_E_NOT_FOUND), or no room for one
 * (KVE_E_LIMIT, KVE_E_NOMEM). The event is a store or a removal. Absent, ""
 * and "GPU" are one medium; absent and "" are one locality, one ownership. */
struct kve_scope *kve_scope_of(struct kve_inst *inst,
    const struct kve_event *event, bool make, kve_status *ret_status);

/* Learn what a store says of its group (kind, block size, window), and note
 * its block size among those the life has seen. Counts groups_ignored.
 * Changes are stamped. Returns KVE_OK, KVE_E_LIMIT or KVE_E_NOMEM. */
kve_status kve_group_learn(
    struct kve_inst *inst, const struct kve_event *event);

/* The scope that marks skipped blocks as passable; made when it is new. NULL:
 * no memory. */
struct kve_scope *kve_scope_bridge(struct kve_inst *inst);

/* Another life for a slot, hidden and empty; NULL: no memory. */
struct kve_inst *kve_inst_create(struct kve_slot *slot, bool counts);
/* Make a life the visible one of its slot (NULL: none), and retire the one
 * that was, in one step for readers. */
void kve_inst_show(struct kve_slot *slot, struct kve_inst *inst);
/* Retire a life that is not visible: it will be drained. */
void kve_inst_retire(struct kve_inst *inst);
/* Put a life that is over behind the others that are to be drained. */
void kve_life_append(struct kve_space *space, struct kve_inst *inst);
/* Take scopes out of sight: tiers is a set of 1 << tier. The next store makes
 * new ones. The old ones move to the grave and are drained from there, so
 * scope.inst is another life than inst from now on. Never fails. Returns the
 * life to go on with: where nothing is left, and names were the life's own,
 * another one that knows the same groups takes its place. */
struct kve_inst *kve_inst_clear_tiers(struct kve_inst *inst, uint32_t tiers);
/* The same for scopes of one medium (and one ownership, where given), and for
 * those of one ownership. */
struct kve_inst *kve_inst_clear_medium(
    struct kve_inst *inst, struct kve_str medium, struct kve_str ownership);
struct kve_inst *kve_inst_clear_owner(
    struct kve_inst *inst, struct kve_str ownership);
/* Forget everything, also what was learnt of groups. Returns the life that is
 * in inst's place from now on, visible or twin as inst was; inst itself when
 * there was no memory for another (then it was drained here and now). */
struct kve_inst *kve_inst_renew(struct kve_inst *inst);

/* Roots and waits. NULL: no memory (make), or not there. */
struct kve_root *kve_root_of(struct kve_space *space, struct kve_str lora,
    struct kve_str salt, bool make);
struct kve_wait *kve_wait_of(
    struct kve_inst *inst, const struct kve_hash *hash, bool make);
/* Nothing hangs on it any more. */
void kve_root_free(struct kve_space *space, struct kve_root *root);
void kve_wait_free(struct kve_inst *inst, struct kve_wait *wait);
/* A run of this block size begins, or no longer begins, at a root. */
void kve_root_size(struct kve_root *root, uint32_t block_size, int change);

/* ---- between the files that have no header of their own: index.c, space.c,
 * instance.c, life.c, group.c and root.c ---- */

/* The lock of names, for a few lines (see above). Looking changes nothing, so
 * it is taken for a const index, too. */
static inline void
kve_index_lock(const kve_index *index)
{
    (void)pthread_mutex_lock((pthread_mutex_t *)&index->lock);
}

static inline void
kve_index_unlock(const kve_index *index)
{
    (void)pthread_mutex_unlock((pthread_mutex_t *)&index->lock);
}

/* Zeroed memory that counts, on a cache line of its own; freed with the same
 * size. NULL: no memory, or max_bytes. */
void *kve_index_alloc(kve_index *index, size_t size);
void kve_index_free(kve_index *index, void *p, size_t size);

/* A kind as text that lives as long as the index: a constant for known ones,
 * "?" for others when there are too many or the text is too long. */
const char *kve_kind_name(kve_index *index, struct kve_str kind);

/* The rank of the worker that instance is a rank of, added when it is new.
 * Takes the locks itself. */
kve_status kve_index_rank(kve_index *index, kve_instance instance,
    uint32_t rank, kve_instance *ret_instance, struct kve_error *err);

kve_status kve_space_create(kve_index *index, uint32_t id, const char *model,
    const char *tenant, struct kve_space **ret_space);
void kve_space_destroy(struct kve_space *space);

/* Zeroed memory of the pool that is never moved. */
void *kve_fixed_alloc(struct kve_space *space, size_t size);

/* The scope is empty, the life is over: free them when readers have left. */
void kve_scope_free(struct kve_scope *scope);
void kve_inst_free(struct kve_inst *inst);

/* The index of a group in a life, or KVE_NO_GROUP. */
uint32_t kve_group_find(const struct kve_inst *inst, int64_t group);
/* kve_group_learn() without counting. */
kve_status kve_group_note(struct kve_inst *inst, const struct kve_event *event);
/* Is there anything that the short way of a reader would get wrong? Then say
 * so, if the life is visible. */
void kve_inst_shape(struct kve_inst *inst);

/* The base's root, which is there from the beginning; false: no memory. */
kve_status kve_roots_init(struct kve_space *space);

/* The namespace of an id, or NULL. Readers too. */
static inline struct kve_space *
kve_space_get(const kve_index *index, kve_namespace ns)
{
    uint32_t n = atomic_load_explicit(&index->n_spaces, memory_order_acquire);

    return ns == 0 || ns > n
        ? NULL
        : atomic_load_explicit(&index->spaces[ns - 1], memory_order_acquire);
}

/* Chunks there is a place for: some slots more than instances, for those that
 * are worn out. */
static inline uint32_t
kve_slot_chunks(const kve_index *index)
{
    return (index->opts.max_instances + KVE_SLOT_CHUNK - 1) / KVE_SLOT_CHUNK;
}

/* The slot a handle names (of the twin: its instance's), or NULL. What was
 * dropped meanwhile shows in slot.handle. */
static inline struct kve_slot *
kve_slot_get(const kve_index *index, kve_instance instance)
{
    uint64_t i = (instance & 0xffffffffu) - 1;
    struct kve_slot *chunk;

    if (i / KVE_SLOT_CHUNK >= kve_slot_chunks(index))
        return NULL;
    chunk = atomic_load_explicit(
        &index->slot_chunks[i / KVE_SLOT_CHUNK], memory_order_acquire);
    if (chunk == NULL ||
        atomic_load_explicit(&chunk[i % KVE_SLOT_CHUNK].handle,
            memory_order_acquire) != (instance & ~KVE_TWIN))
        return NULL;
    return &chunk[i % KVE_SLOT_CHUNK];
}

#endif
