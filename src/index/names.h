/*
 * names.h - the engine hashes of all blocks, each kept once, and their table.
 *
 * A block that some instance holds has an id of 32 bits, under which its
 * engine hash is kept; ids never change while the block does not move. They
 * are given in granules of 8 that belong to one vector of hashes of one run
 * (run.h), so block -> run is one look into the granule:
 *
 *     id        page (26 bits) | granule (3 bits) | slot (3 bits)
 *     page      [head | 8 x {run, place, vector} | 64 hashes]
 *
 * A page keeps hashes of one form (integers, 16 bytes, 32 bytes, or any other
 * length behind a pointer) and of one owner: 0, shared by every instance that
 * says the same hash of the same block; or one instance, for hashes that mean
 * something else to others, that nobody taught, or whose chain waits for a
 * parent.
 *
 * The table finds ids by hash and owner. At most one shared block has a given
 * hash, and at most one of each owner, so a look-up ends after one or two
 * candidates whatever engines send. Keys are mixed with a secret of the
 * process: hashes from the network can not be chosen to collide.
 */
#ifndef KVE_INDEX_NAMES_H
#define KVE_INDEX_NAMES_H

#include "index/table.h"

#include <kvevents/event.h>

#define KVE_GRANULE 8u
#define KVE_PAGE_BLOCKS 64u
#define KVE_NO_BLOCK 0u /* page 0 is never given */

enum kve_name_form {
    KVE_NAME_INT = 0,
    KVE_NAME_B16 = 1,
    KVE_NAME_B32 = 2,
    KVE_NAME_OTHER = 3,
    KVE_NAME_FORMS = 4
};

/* Where a granule's blocks are: granule number place of vector vec of run. */
struct kve_granule_home {
    _Atomic uint32_t run;
    _Atomic uint16_t place;
    _Atomic uint16_t vec;
};

struct kve_page {
    struct kve_obj obj;
    uint32_t owner;
    uint8_t form;
    uint8_t free;    /* granules that may be given, a bit each */
    uint8_t waiting; /* granules that readers may still look at */
    uint32_t next;   /* in the list of its owner where it is */
    uint32_t prev;
    struct kve_granule_home homes[8];
    struct kve_name_owner *lists; /* its owner's */
    uint8_t listed;               /* enum kve_page_list */
    /* 64 hashes of 1, 2 or 4 words, or a pointer each for OTHER. A granule of
     * integers has a cache line of its own. */
    _Alignas(64) _Atomic uint64_t words[];
};

enum kve_page_list {
    KVE_PAGE_UNLISTED = 0, /* all granules are given */
    KVE_PAGE_OPEN = 1,     /* some may be given */
    KVE_PAGE_WAITING = 2   /* some will be when readers have left */
};

/* A hash of unusual length. */
struct kve_name_bytes {
    struct kve_obj obj;
    uint32_t len;
    uint8_t bytes[];
};

/*
 * The pages of one owner that are not full: those with free granules, by form,
 * and the others. It stays at its address while it has pages.
 */
struct kve_name_owner {
    uint32_t owner;
    uint32_t open[KVE_NAME_FORMS];
    uint32_t waiting;
};

struct kve_names {
    struct kve_pool *pool;
    struct kve_dir pages;   /* of what kve_page_ref() returns */
    struct kve_table table; /* key(hash, owner) -> block id */
    uint64_t secret[4];
    struct kve_name_owner shared;
    struct kve_name_owner left; /* pages of owners that are gone */
};

/* Returns KVE_OK, KVE_E_NOMEM or KVE_E_SYSTEM (no random numbers). Memory is
 * the pool's: nothing is to be done at the end. */
kve_status kve_names_init(struct kve_names *names, struct kve_pool *pool);

/* An owner without pages; and one goes, after all its granules were given
 * back. */
void kve_name_owner_init(struct kve_name_owner *owner, uint32_t number);
void kve_name_owner_release(
    struct kve_names *names, struct kve_name_owner *owner);

static inline enum kve_name_form
kve_name_form_of(const struct kve_hash *hash)
{
    return hash->bytes == NULL ? KVE_NAME_INT
        : hash->len == 16      ? KVE_NAME_B16
        : hash->len == 32      ? KVE_NAME_B32
                               : KVE_NAME_OTHER;
}

/* The key of a hash for the table; and of a block that has an id. */
static inline uint64_t kve_name_key(
    const struct kve_names *names, const struct kve_hash *hash, uint32_t owner);
uint64_t kve_block_key(const struct kve_names *names, uint32_t block);

/* A granule (the id of its first block) of this form and owner, if possible
 * in the page of near (a block or 0); 0: no memory. Its home is not set. */
uint32_t kve_granule_alloc(struct kve_names *names,
    struct kve_name_owner *owner, enum kve_name_form form, uint32_t near);
/* Give it back; none of its blocks is in the table. It is given again when
 * readers have left. */
void kve_granule_free(
    struct kve_names *names, struct kve_name_owner *owner, uint32_t block);
/* Pool's id_free() for KVE_OBJ_GRANULE. */
void kve_names_id_free(struct kve_names *names, uint32_t kind, uint32_t id);

/*
 * A page's address, in whose last bits, which are 0 in the address, stand its
 * form (1 and 2) and whether it has one instance for an owner (3): so a hash
 * is compared and its key computed without a look at the page's head. 0: none.
 */
static inline uintptr_t
kve_page_ref(const struct kve_names *names, uint32_t block)
{
    return (uintptr_t)kve_dir_get(&names->pages, block / KVE_PAGE_BLOCKS);
}

static inline struct kve_page *
kve_page_of(const struct kve_names *names, uint32_t block)
{
    return (struct kve_page *)(kve_page_ref(names, block) & ~(uintptr_t)63);
}

static inline struct kve_granule_home *
kve_home_of(const struct kve_names *names, uint32_t block)
{
    return &kve_page_of(names, block)
                ->homes[block % KVE_PAGE_BLOCKS / KVE_GRANULE];
}

/* Write a block's hash (before it is put into the table); false: no memory
 * (OTHER only). Read it (borrowed). Compare it. */
bool kve_name_set(
    struct kve_names *names, uint32_t block, const struct kve_hash *hash);
struct kve_hash kve_name_get(const struct kve_names *names, uint32_t block);
static inline bool kve_name_is(
    const struct kve_names *names, uint32_t block, const struct kve_hash *hash);
/* How many of hashes[0..n) are the names of blocks block, block+1, ...; stays
 * within the granule. */
size_t kve_name_match(const struct kve_names *names, uint32_t block,
    const struct kve_hash *hashes, size_t n);
/* A block dies: free what its name holds beside its place (OTHER only). */
void kve_name_drop(struct kve_names *names, uint32_t block);

/* The block of this hash and owner, or KVE_NO_BLOCK. Readers and writer. */
static inline uint32_t kve_name_find(const struct kve_names *names,
    uint64_t key, const struct kve_hash *hash, uint32_t owner);

/* Before several look-ups: kve_table_prefetch() for all, then this for all:
 * it fetches what the key's bucket leads to. */
static inline void kve_name_prefetch(
    const struct kve_names *names, uint64_t key);

/* Put into and take out of the table. */
bool kve_name_enter(struct kve_names *names, uint64_t key, uint32_t block);
void kve_name_leave(struct kve_names *names, uint64_t key, uint32_t block);

/* Pool's moved() for pages and names. */
bool kve_names_moved(
    struct kve_names *names, struct kve_obj *from, struct kve_obj *to);

#include "index/names_impl.h"

#endif
