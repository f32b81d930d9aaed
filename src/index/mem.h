/*
 * mem.h - memory of one namespace: counted, bounded, returned.
 *
 * Objects of a namespace come from slabs of 64 KiB, aligned to their size, cut
 * into objects of one class; what is larger than a quarter of a slab has a
 * mapping of its own. Classes lie 1/7 to 1/16 apart and are chosen so that a
 * slab is filled to its end; who can use what rounding adds asks
 * kve_pool_good_size() first, and then loses nothing.
 *
 *     region (2 MiB)  [slab|slab|slab|...]
 *     slab (64 KiB)   [head|object|object|object|...]
 *     object          [kind u32|id u32|...]     the owner can be found
 *
 * Slabs come from regions. A small namespace has its pages one by one, as they
 * are touched. A larger one (some MiB) has huge pages: a fault costs as much
 * as storing tens of blocks otherwise, and random access to an index is mostly
 * waiting for address translation. What a huge page gives too early is at most
 * 2 MiB, at most a thirty-second part from 24 MiB on, and goes back when the
 * namespace stops growing. A slab that becomes empty goes back to the system
 * at the end of the batch; two, or a thirty-second part, are kept.
 *
 * Objects can be moved: slabs that are mostly free are emptied by copying what
 * is left in them elsewhere and telling the owner (struct kve_pool_ops.moved),
 * so memory follows what is held also after a random nine tenths of it went.
 *
 * Readers. What a reader may still look at is retired, not freed: it is freed
 * when every reader that was inside a read section at that time has left. A
 * reader's section is one exchange and one store, both of its own slot.
 *
 * One writer at a time for each pool (the namespace's lock). Slots and the
 * budget are shared by all pools of an index.
 */
#ifndef KVE_INDEX_MEM_H
#define KVE_INDEX_MEM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvevents/status.h>

/* For functions that do nothing but fetch: gcc takes them for functions without
 * an effect, and leaves calls of them out. */
#define KVE_FETCHES __attribute__((always_inline))

#define KVE_SLAB_SIZE 65536u

/* What is larger has a mapping of its own and is never moved. */
#define KVE_SLAB_OBJECT_MAX 16320u

/*
 * Every object of a slab begins with this, moved or not. It is written by the
 * owner before the batch ends. An object that readers write to is FIXED.
 */
struct kve_obj {
    uint32_t kind; /* enum kve_obj_kind */
    uint32_t id;   /* which one of its kind, to its owner */
};

enum kve_obj_kind {
    KVE_OBJ_FIXED = 0,   /* never moved */
    KVE_OBJ_RUN = 1,     /* run.h; id: the run's */
    KVE_OBJ_AUX = 2,     /* run.h; id: the run's it belongs to */
    KVE_OBJ_PAGE = 3,    /* names.h; id: the page's */
    KVE_OBJ_SEGMENT = 4, /* table.h; id: which table; it knows its place */
    KVE_OBJ_NAME = 5,    /* names.h: a hash of unusual length; id: block */
    KVE_OBJ_GRANULE = 6  /* names.h; no object, only an id: block / 8 */
};

/* ---- shared by all pools of an index ---- */

/* One reader's slot: a cache line of its own. 0: outside. */
struct kve_epoch_slot {
    _Alignas(64) _Atomic uint64_t epoch;
    struct kve_epoch_slot *next; /* never changes once it is in the list */
    void *raw;                   /* what was allocated */
    _Atomic bool used;
};

struct kve_mem_shared {
    _Atomic uint64_t bytes;              /* had from the system, all pools */
    uint64_t max_bytes;                  /* 0: none */
    _Atomic uint64_t limbo;              /* of bytes: retired and not freed */
    _Alignas(64) _Atomic uint64_t epoch; /* from 1 */
    _Atomic(struct kve_epoch_slot *) slots; /* only grows */
};

/* Release when pools are destroyed and readers gone. */
void kve_mem_shared_init(struct kve_mem_shared *shared, uint64_t max_bytes);
void kve_mem_shared_release(struct kve_mem_shared *shared);

/* A slot for a reader, or NULL; given back by kve_epoch_slot_put(). Any
 * thread. */
struct kve_epoch_slot *kve_epoch_slot_get(struct kve_mem_shared *shared);
void kve_epoch_slot_put(struct kve_epoch_slot *slot);

/* Enter and leave a read section. Everything that was published before is
 * seen; nothing that is reachable now is freed until it ends. */
static inline void
kve_epoch_enter(struct kve_mem_shared *shared, struct kve_epoch_slot *slot)
{
    uint64_t now = atomic_load_explicit(&shared->epoch, memory_order_acquire);

    /* An exchange, not a store: the writer looks with a read-modify-write
     * too, so of both one comes first. Either it sees us, or we see all that
     * it unlinked before it looked. */
    atomic_exchange_explicit(&slot->epoch, now, memory_order_seq_cst);
}

static inline void
kve_epoch_leave(struct kve_epoch_slot *slot)
{
    atomic_store_explicit(&slot->epoch, 0, memory_order_release);
}

/* Account for memory that is allocated outside of pools (scratch of readers,
 * tables of instances): false when it would exceed the limit. */
bool kve_mem_charge(struct kve_mem_shared *shared, uint64_t bytes);
void kve_mem_discharge(struct kve_mem_shared *shared, uint64_t bytes);
/* An array of cap items of size bytes, which was accounted for, with room for
 * want; NULL: no memory, or the limit, and it stays as it was. */
void *kve_charged_array(struct kve_mem_shared *shared, void *array, size_t cap,
    size_t want, size_t size);

/* ---- one namespace ---- */

struct kve_pool;

struct kve_pool_ops {
    void *ctx;
    /* to is a copy of from (size bytes): point the owner to it. The pool
     * retires from. Returns false when it must stay. */
    bool (*moved)(void *ctx, struct kve_obj *from, struct kve_obj *to);
    /* An id that was retired with kve_pool_retire_id() may be used again. */
    void (*id_free)(void *ctx, uint32_t kind, uint32_t id);
};

/* Create and destroy; destroy frees all at once, whoever owns it, and tells
 * nobody. No reader is inside. */
kve_status kve_pool_create(struct kve_mem_shared *shared,
    const struct kve_pool_ops *ops, struct kve_pool **ret_pool);
void kve_pool_destroy(struct kve_pool *pool);

/* size bytes, aligned to 16 (64 for sizes that are multiples of 64 and for all
 * above 2,144), not cleared; NULL when there is no memory or it would exceed
 * the limit. */
void *kve_pool_alloc(struct kve_pool *pool, size_t size);

/* What kve_pool_alloc(size) really gives: use it all. */
size_t kve_pool_good_size(size_t size);

/* Free now: no reader ever saw it. */
void kve_pool_free(struct kve_pool *pool, void *object);

/*
 * Free when the readers have left; the object was unlinked before. Never
 * fails: without memory for its list it waits for the readers that are inside
 * (so not inside a read section of one's own) and frees what it may, ids too.
 */
void kve_pool_retire(struct kve_pool *pool, void *object);
void kve_pool_retire_id(struct kve_pool *pool, uint32_t kind, uint32_t id);

/* End of a batch: a new epoch when something was retired, free what no reader
 * can see any more, give empty slabs back. */
void kve_pool_settle(struct kve_pool *pool);

/*
 * Give back what is kept for the next objects, too: what a huge page brought
 * too early, and empty slabs. For a namespace that rests.
 */
void kve_pool_trim(struct kve_pool *pool);

/* Empty sparse slabs, at most about budget bytes copied, and settle. Returns
 * true when there is more to do. Called between batches only. */
bool kve_pool_compact(struct kve_pool *pool, size_t budget);

/* Bytes this pool holds, bytes of live objects in it (rounded to classes),
 * bytes retired. By the writer. */
struct kve_pool_use {
    uint64_t bytes;
    uint64_t live;
    uint64_t limbo;
};
struct kve_pool_use kve_pool_use(const struct kve_pool *pool);
/* The first of these. Any thread. */
uint64_t kve_pool_bytes(const struct kve_pool *pool);

/* Would size more bytes fit below the limit, in objects of whatever classes,
 * among them at most four that this pool never used? Used before a step that
 * must not stop in its middle. It may still fail when the system has none. */
bool kve_pool_room(struct kve_pool *pool, size_t size);

/*
 * A directory: id -> object, read without locks. Two levels, so it grows
 * without copying. Ids are given from 1 up, freed ones first.
 */
struct kve_dir {
    struct kve_pool *pool;
    _Atomic(_Atomic(void *) **) top; /* chunks of KVE_DIR_CHUNK pointers */
    uint32_t n_chunks;
    uint32_t cap_chunks;
    uint32_t next;      /* never given yet */
    uint32_t free_head; /* list of free ids, through their places */
    uint32_t n_used;
};

#define KVE_DIR_BITS 12
#define KVE_DIR_CHUNK (1u << KVE_DIR_BITS)

/* Its memory is the pool's: there is nothing to release. */
void kve_dir_init(struct kve_dir *dir, struct kve_pool *pool);
/* A new id with this object, or 0 when there is no memory. */
uint32_t kve_dir_add(struct kve_dir *dir, void *object);
/* An id that nobody uses any more. */
void kve_dir_free(struct kve_dir *dir, uint32_t id);

static inline _Atomic(void *) *
kve_dir_place(const struct kve_dir *dir, uint32_t id)
{
    _Atomic(void *) **top =
        atomic_load_explicit(&dir->top, memory_order_acquire);

    return &top[id >> KVE_DIR_BITS][id & (KVE_DIR_CHUNK - 1)];
}

/* The object of an id that was given; NULL after kve_dir_set(NULL). The free
 * list is kept in places as odd numbers: they read as NULL here. */
static inline void *
kve_dir_get(const struct kve_dir *dir, uint32_t id)
{
    void *p =
        atomic_load_explicit(kve_dir_place(dir, id), memory_order_acquire);

    return ((uintptr_t)p & 1) != 0 ? NULL : p;
}

static inline void
kve_dir_set(struct kve_dir *dir, uint32_t id, void *object)
{
    atomic_store_explicit(kve_dir_place(dir, id), object, memory_order_release);
}

#endif
