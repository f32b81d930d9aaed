/*
 * mem_pool.h - the inside of mem.h, shared by its .c files.
 *
 *     mem.c          classes, slabs, objects
 *     mem_region.c   slabs from the system and back
 *     mem_epoch.c    the budget, readers, what is retired
 *     mem_compact.c  sparse slabs are emptied
 *     mem_dir.c      directories
 *
 * A slab has two bits for each object: used (not to be given), and live (not
 * retired: it may be moved). The first that is free is given, so what stands
 * behind the last one was never touched. Slabs with free objects are
 * listed by their class in eight lists, by eighths of what is used; objects
 * come from the fullest, so that sparse ones get the chance to become empty.
 */
#ifndef KVE_INDEX_MEM_POOL_H
#define KVE_INDEX_MEM_POOL_H

#include "base/alloc.h"
#include "index/mem.h"

#if defined(__SANITIZE_ADDRESS__)
#define KVE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVE_ASAN 1
#endif
#endif

/* Objects that are not given are out of bounds, where somebody checks. */
#ifdef KVE_ASAN
#include <sanitizer/asan_interface.h>
#define KVE_POISON(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define KVE_UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define KVE_POISON(p, n) ((void)(p), (void)(n))
#define KVE_UNPOISON(p, n) ((void)(p), (void)(n))
#endif

#define KVE_REGION_SLABS 32u
#define KVE_REGION_SIZE ((size_t)KVE_REGION_SLABS * KVE_SLAB_SIZE)
#define KVE_SLAB_BUCKETS 8u
#define KVE_MEM_CLASSES 64u

enum kve_slab_flag {
    KVE_SLAB_LISTED = 1,  /* in a list of its class */
    KVE_SLAB_CURRENT = 2, /* objects are taken from it */
    KVE_SLAB_DRAIN = 4,   /* being emptied: nothing is taken from it */
    KVE_SLAB_PINNED = 8   /* something in it can not be moved */
};

struct kve_slab {
    uint16_t cls;
    uint16_t n;      /* objects */
    uint16_t words;  /* words of bits, for each of both */
    uint16_t hint;   /* no free object in words before this one */
    uint16_t n_used; /* given and not freed */
    uint16_t n_live; /* of them, not retired */
    uint16_t low;    /* below that it belongs into a lower list */
    uint8_t bucket;
    uint8_t flags;
    uint32_t size;  /* of an object */
    uint32_t first; /* where the first one is */
    uint32_t recip; /* 2^32 / size, rounded up */
    uint32_t pad;
    struct kve_slab *next;
    struct kve_slab *prev;
    struct kve_region *region;
    uint64_t bits[]; /* used, then live */
};

struct kve_class {
    struct kve_slab *current;
    struct kve_slab *lists[KVE_SLAB_BUCKETS];
    uint32_t mask;    /* lists that are not empty */
    uint32_t n_slabs; /* all, full and draining ones too */
    uint64_t n_used;  /* objects in them, retired ones too */
    uint64_t n_free;  /* places in them, but for those being emptied */
};

/* What all classes of that number have in common. */
struct kve_class_shape {
    uint32_t size;
    uint32_t n;
    uint32_t words;
    uint32_t first;
    uint32_t recip;
};
extern struct kve_class_shape kve_class_shapes[KVE_MEM_CLASSES];

struct kve_region {
    struct kve_region *next;
    struct kve_region *prev;
    char *base;
    uint32_t n_slabs;
    uint32_t used;     /* slabs in use, a bit each */
    uint32_t resident; /* slabs that are counted: in use or kept */
    bool fixed_size;   /* from a caller's allocator: all comes, all goes */
    bool torn;         /* pages were given back: huge ones do not pay */
};

/* Before an object that has a mapping of its own. */
struct kve_large {
    struct kve_large *next;
    struct kve_large *prev;
    uint64_t size; /* of the mapping */
    uint64_t cost; /* what it is counted as */
    uint64_t pad[4];
};

struct kve_pool {
    struct kve_mem_shared *shared;
    struct kve_pool_ops ops;
    struct kve_class classes[KVE_MEM_CLASSES];
    _Atomic uint64_t charged; /* bytes this pool has of the budget */

    /* Regions: with a free slab, and full. */
    struct kve_region *avail;
    struct kve_region *full;
    struct kve_region *grow; /* its free slabs are for growing */
    uint32_t grow_from;      /* slabs in use when it became that */
    uint32_t n_slabs;        /* in use */
    uint32_t n_kept;         /* resident and free, those of grow too */
    uint32_t quiet;          /* settled since a slab was taken */
    bool sweep;              /* there may be slabs to give back */

    struct kve_large *large;
    uint64_t large_bytes;

    /* Retired: a ring of words. An object is its address, an id has bit 0
     * set; a mark (bits 0 and 1) stands before what one epoch retired. */
    uint64_t *ring;
    uint64_t ring_cap; /* a power of two */
    uint64_t head;     /* next to free */
    uint64_t tail;     /* next to write */
    uint64_t mark;     /* place of the open mark */
    bool open;
    uint64_t limbo;      /* bytes */
    uint64_t limbo_told; /* of them, in shared->limbo */

    struct kve_slab *drain; /* being emptied, up to drain_at */
    uint32_t drain_at;
    uint32_t drain_cls; /* class to look at next */
};

/* ---- mem.c ---- */

static inline bool
kve_is_large(const void *object)
{
    return (uintptr_t)object % KVE_SLAB_SIZE == sizeof(struct kve_large);
}

static inline struct kve_slab *
kve_slab_of(const void *object)
{
    return (
        struct kve_slab *)((uintptr_t)object & ~(uintptr_t)(KVE_SLAB_SIZE - 1));
}

static inline struct kve_large *
kve_large_of(const void *object)
{
    return (struct kve_large *)((uintptr_t)object - sizeof(struct kve_large));
}

static inline uint32_t
kve_slab_index(const struct kve_slab *slab, const void *object)
{
    uint64_t off = (uintptr_t)object % KVE_SLAB_SIZE - slab->first;

    return (uint32_t)((off * slab->recip) >> 32);
}

static inline void *
kve_slab_object(struct kve_slab *slab, uint32_t i)
{
    return (char *)slab + slab->first + (size_t)i * slab->size;
}

/* Lists of a class. */
void kve_slab_list(struct kve_pool *pool, struct kve_slab *slab);
void kve_slab_unlist(struct kve_pool *pool, struct kve_slab *slab);
/* An object of this class from slabs that are there, or NULL. */
void *kve_class_take(struct kve_pool *pool, uint32_t cls);
/* Free without a look at readers; a retired one is not live any more. */
void kve_object_free(struct kve_pool *pool, void *object, bool retired);
/* Slabs without objects go back to their regions. */
void kve_pool_sweep(struct kve_pool *pool);

/* Budget for this pool. */
bool kve_pool_charge(struct kve_pool *pool, uint64_t bytes);
void kve_pool_discharge(struct kve_pool *pool, uint64_t bytes);

/* ---- mem_region.c ---- */

/* 64 KiB, contents undefined, and its region; or NULL. */
void *kve_slab_get(struct kve_pool *pool, struct kve_region **ret_region);
void kve_slab_put(struct kve_pool *pool, struct kve_slab *slab);
/* Give free slabs back until this many are kept; those for growing, too. */
void kve_regions_trim(struct kve_pool *pool, uint32_t keep, bool grow);
void kve_regions_release(struct kve_pool *pool);
/* How many free slabs may be kept. */
uint32_t kve_regions_keep(const struct kve_pool *pool);

/* ---- mem_epoch.c ---- */

void kve_limbo_release(struct kve_pool *pool);

#endif
