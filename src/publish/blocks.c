/*
 * blocks.c - see blocks.h.
 */
#include "publish/blocks.h"

#include "publish/teach.h"

#include "base/alloc.h"
#include "stream/digest.h"

#include <string.h>

#define FIRST_BLOCKS 64
#define FIRST_SLOTS 128
/* Fewer places than this are not worth moving. */
#define COMPACT_FROM 4096

struct kve_slot {
    uint32_t code;
    uint32_t block; /* KVE_NO_ID: empty */
};

/* ---- hashes ---- */

static uint32_t
code_of(const struct kve_hash *hash)
{
    uint64_t x;

    if (hash->bytes != NULL)
        return (uint32_t)kve_digest(hash->bytes, hash->len);
    x = hash->integer;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(x ^ (x >> 31));
}

struct kve_hash
kve_block_hash(const struct kve_block *block)
{
    struct kve_hash hash = { .bytes = NULL };

    if (block->hash_len == KVE_HASH_INTEGER) {
        hash.integer = block->hash.integer;
    } else {
        hash.bytes = block->hash.bytes;
        hash.len = block->hash_len;
    }
    return hash;
}

static bool
has_hash(const struct kve_block *block, const struct kve_hash *hash)
{
    if (hash->bytes == NULL)
        return block->hash_len == KVE_HASH_INTEGER &&
            block->hash.integer == hash->integer;
    return block->hash_len != KVE_HASH_INTEGER &&
        block->hash_len == hash->len &&
        memcmp(block->hash.bytes, hash->bytes, hash->len) == 0;
}

/* ---- the table ---- */

static uint32_t
find(const struct kve_residency *r, const struct kve_hash *hash, uint32_t code)
{
    if (r->mask == 0)
        return KVE_NO_ID;
    for (uint32_t i = code & r->mask; r->slots[i].block != KVE_NO_ID;
         i = (i + 1) & r->mask)
        if (r->slots[i].code == code &&
            has_hash(&r->blocks[r->slots[i].block], hash))
            return r->slots[i].block;
    return KVE_NO_ID;
}

uint32_t
kve_blocks_find(const struct kve_residency *r, const struct kve_hash *hash)
{
    return find(r, hash, code_of(hash));
}

static void
put(struct kve_slot *slots, uint32_t mask, uint32_t code, uint32_t block)
{
    uint32_t i = code & mask;

    while (slots[i].block != KVE_NO_ID)
        i = (i + 1) & mask;
    slots[i] = (struct kve_slot){ code, block };
}

/* Move the table to n slots; map, when not NULL, is where blocks went. */
static bool
resize_table(struct kve_residency *r, size_t n, const uint32_t *map)
{
    struct kve_slot *slots;

    if (n > (size_t)UINT32_MAX + 1)
        return false;
    slots = kve_mem_array(NULL, n, sizeof(*slots));
    if (slots == NULL)
        return false;
    memset(slots, 0xff, n * sizeof(*slots));
    for (size_t i = 0; r->mask != 0 && i <= r->mask; i++) {
        uint32_t block = r->slots[i].block;

        if (block != KVE_NO_ID)
            put(slots, (uint32_t)(n - 1), r->slots[i].code,
                map != NULL ? map[block] : block);
    }
    kve_mem_free(r->slots);
    r->slots = slots;
    r->mask = (uint32_t)(n - 1);
    return true;
}

/* At most two slots of three are taken. */
static bool
table_has_room(struct kve_residency *r)
{
    size_t n = r->mask == 0 ? 0 : (size_t)r->mask + 1;

    if (r->used + 1 <= n - n / 3 && n != 0)
        return true;
    return resize_table(r, n == 0 ? FIRST_SLOTS : 2 * n, NULL);
}

/* Take a block out; those behind it that are not in their own place move up. */
static void
remove_slot(struct kve_residency *r, uint32_t code, uint32_t block)
{
    uint32_t mask = r->mask;
    uint32_t hole = code & mask;

    while (r->slots[hole].block != block)
        hole = (hole + 1) & mask;
    for (uint32_t i = (hole + 1) & mask; r->slots[i].block != KVE_NO_ID;
         i = (i + 1) & mask) {
        uint32_t home = r->slots[i].code & mask;

        if (((i - home) & mask) >= ((i - hole) & mask)) {
            r->slots[hole] = r->slots[i];
            hole = i;
        }
    }
    r->slots[hole].block = KVE_NO_ID;
}

/* ---- blocks ---- */

static bool
grow_blocks(struct kve_residency *r)
{
    uint64_t cap =
        r->cap_blocks == 0 ? FIRST_BLOCKS : 2 * (uint64_t)r->cap_blocks;
    struct kve_block *blocks;

    if (cap >= KVE_NO_ID)
        return false;
    blocks = kve_mem_array(r->blocks, (size_t)cap, sizeof(*blocks));
    if (blocks == NULL)
        return false;
    r->blocks = blocks;
    r->cap_blocks = (uint32_t)cap;
    return true;
}

static uint32_t
give_place(struct kve_residency *r)
{
    uint32_t id = r->free;

    if (id != KVE_NO_ID) {
        r->free = r->blocks[id].parent;
        return id;
    }
    if (r->n_blocks == r->cap_blocks && !grow_blocks(r))
        return KVE_NO_ID;
    return r->n_blocks++;
}

static void
free_place(struct kve_residency *r, uint32_t id)
{
    r->blocks[id].used = false;
    r->blocks[id].parent = r->free;
    r->free = id;
}

static bool
copy_hash(struct kve_block *block, const struct kve_hash *hash)
{
    if (hash->bytes == NULL) {
        block->hash_len = KVE_HASH_INTEGER;
        block->hash.integer = hash->integer;
        return true;
    }
    block->hash.bytes = kve_mem_alloc(hash->len);
    if (block->hash.bytes == NULL)
        return false;
    memcpy(block->hash.bytes, hash->bytes, hash->len);
    block->hash_len = (uint32_t)hash->len;
    return true;
}

/* Whether there may be one more of what the hard limit counts, n so far. What
 * fails after this fails for want of memory. */
static bool
under_hard_limit(struct kve_residency *r, uint64_t n)
{
    r->no_memory = n / KVE_HARD_LIMIT < r->max_blocks;
    return r->no_memory;
}

uint32_t
kve_blocks_get(struct kve_residency *r, const struct kve_hash *hash)
{
    uint32_t code = code_of(hash);
    uint32_t id = find(r, hash, code);
    struct kve_block *block;

    if (id != KVE_NO_ID)
        return id;
    if (!under_hard_limit(r, r->used) || !table_has_room(r) ||
        (hash->bytes != NULL && hash->len >= KVE_HASH_INTEGER))
        return KVE_NO_ID;
    id = give_place(r);
    if (id == KVE_NO_ID)
        return KVE_NO_ID;
    block = &r->blocks[id];
    memset(block, 0, sizeof(*block));
    if (!copy_hash(block, hash)) {
        free_place(r, id);
        return KVE_NO_ID;
    }
    block->used = true;
    block->parent = KVE_NO_ID;
    put(r->slots, r->mask, code, id);
    r->used++;
    return id;
}

void
kve_blocks_give_up(struct kve_residency *r, uint32_t id)
{
    while (id != KVE_NO_ID) {
        struct kve_block *block = &r->blocks[id];
        struct kve_hash hash = kve_block_hash(block);
        uint32_t parent = KVE_NO_ID;

        if (block->first.count > 0 || block->children > 0)
            return;
        if (block->origin != NULL) {
            parent = block->parent;
            kve_teach_forget(r, block);
        }
        r->n_lacking -= block->lacks;
        remove_slot(r, code_of(&hash), id);
        if (hash.bytes != NULL)
            kve_mem_free(block->hash.bytes);
        free_place(r, id);
        r->used--;
        if (parent != KVE_NO_ID)
            r->blocks[parent].children--;
        id = parent;
    }
}

/* ---- copies ---- */

static struct kve_copies *
find_copies(struct kve_block *block, uint32_t scope)
{
    if (block->first.count > 0 && block->first.scope == scope)
        return &block->first;
    for (unsigned i = 0; i < block->n_more; i++)
        if (block->more[i].scope == scope)
            return &block->more[i];
    return NULL;
}

uint32_t
kve_residency_count(const struct kve_block *block, uint32_t scope)
{
    const struct kve_copies *copies =
        find_copies((struct kve_block *)block, scope);

    return copies != NULL ? copies->count : 0;
}

/* Room for one more scope of a block that has copies: the array doubles. */
static bool
more_has_room(struct kve_block *block)
{
    unsigned n = block->n_more;
    struct kve_copies *more;

    if (n == UINT16_MAX)
        return false;
    if (n > 0 && (n & (n - 1)) != 0)
        return true;
    more = kve_mem_array(block->more, n == 0 ? 1 : 2 * n, sizeof(*more));
    if (more == NULL)
        return false;
    block->more = more;
    return true;
}

bool
kve_blocks_add(struct kve_residency *r, uint32_t id, uint32_t scope)
{
    struct kve_block *block = &r->blocks[id];
    struct kve_copies *copies = find_copies(block, scope);

    if (copies != NULL) {
        if (copies->count == UINT32_MAX)
            return false;
        copies->count++;
        return true;
    }
    if (!under_hard_limit(r, r->n_pairs))
        return false;
    if (block->first.count == 0) {
        block->first = (struct kve_copies){ scope, 1 };
    } else {
        if (!more_has_room(block))
            return false;
        block->more[block->n_more++] = (struct kve_copies){ scope, 1 };
    }
    kve_intern_ref(&r->scopes, scope);
    r->n_pairs++;
    return true;
}

/* The last copy in a scope is gone; another scope takes its place. */
static void
drop_copies(
    struct kve_residency *r, struct kve_block *block, struct kve_copies *copies)
{
    kve_residency_scope_unref(r, copies->scope);
    r->n_pairs--;
    if (block->n_more == 0) {
        copies->count = 0;
        return;
    }
    *copies = block->more[--block->n_more];
    if (block->n_more == 0) {
        kve_mem_free(block->more);
        block->more = NULL;
    }
}

bool
kve_blocks_take(struct kve_residency *r, uint32_t id, uint32_t scope)
{
    struct kve_block *block = &r->blocks[id];
    struct kve_copies *copies = find_copies(block, scope);

    if (copies == NULL)
        return false;
    if (--copies->count == 0)
        drop_copies(r, block, copies);
    return true;
}

void
kve_blocks_take_marked(struct kve_residency *r, uint32_t id)
{
    struct kve_block *block = &r->blocks[id];
    unsigned i = block->n_more;

    /* From the end: what takes an entry's place was looked at before. */
    while (i-- > 0)
        if (r->scopes.entry[block->more[i].scope].marked)
            drop_copies(r, block, &block->more[i]);
    if (block->first.count > 0 && r->scopes.entry[block->first.scope].marked)
        drop_copies(r, block, &block->first);
}

/* ---- memory ---- */

/* Where each block goes: places without gaps. */
static void
move_blocks(struct kve_residency *r, struct kve_block *to, uint32_t *map)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->n_blocks; i++)
        if (r->blocks[i].used) {
            map[i] = n;
            to[n++] = r->blocks[i];
        }
    for (uint32_t i = 0; i < n; i++)
        if (to[i].origin != NULL && to[i].parent != KVE_NO_ID)
            to[i].parent = map[to[i].parent];
    for (struct kve_origin *o = r->origins; o != NULL; o = o->next)
        for (uint32_t i = 0; i < o->n; i++) {
            uint32_t *block = &kve_origin_blocks(o)[i];

            if (*block != KVE_NO_ID)
                *block = map[*block];
        }
    r->n_blocks = n;
}

void
kve_blocks_compact(struct kve_residency *r)
{
    uint32_t cap = FIRST_BLOCKS;
    size_t n_slots = FIRST_SLOTS;
    struct kve_block *to;
    uint32_t *map;

    if (r->n_blocks < COMPACT_FROM || r->used > r->n_blocks / 4)
        return;
    while (cap < 2 * r->used)
        cap *= 2;
    while (n_slots < 3 * (size_t)r->used)
        n_slots *= 2;
    to = kve_mem_array(NULL, cap, sizeof(*to));
    map = kve_mem_array(NULL, r->n_blocks, sizeof(*map));
    if (to != NULL && map != NULL) {
        for (uint32_t i = 0, n = 0; i < r->n_blocks; i++)
            map[i] = r->blocks[i].used ? n++ : KVE_NO_ID;
        /* The table first: it is what can fail. */
        if (resize_table(r, n_slots, map)) {
            move_blocks(r, to, map);
            kve_mem_free(r->blocks);
            r->blocks = to;
            r->cap_blocks = cap;
            r->free = KVE_NO_ID;
            to = NULL;
        }
    }
    kve_mem_free(to);
    kve_mem_free(map);
}

void
kve_blocks_release(struct kve_residency *r)
{
    for (uint32_t i = 0; i < r->n_blocks; i++) {
        struct kve_block *block = &r->blocks[i];

        if (!block->used)
            continue;
        if (block->hash_len != KVE_HASH_INTEGER)
            kve_mem_free(block->hash.bytes);
        kve_mem_free(block->more);
    }
    kve_mem_free(r->blocks);
    kve_mem_free(r->slots);
    r->blocks = NULL;
    r->slots = NULL;
    r->n_blocks = r->cap_blocks = r->used = r->mask = 0;
    r->free = KVE_NO_ID;
    r->n_pairs = 0;
}
