/*
 * dump.c - what an instance holds, as one moment had it.
 *
 * The copy is made under the namespace's lock in slices; between two of them
 * others may write. When the instance itself was changed meanwhile, or runs
 * were cut or joined, the copy begins anew; the fourth time it is made in one
 * go. Callbacks are called from the copy, outside of all locks.
 *
 * The copy is beside max_bytes: about 40 bytes for each block of the instance.
 */
#include "index/writer.h"

#include "base/alloc.h"
#include "base/status.h"

#include <stddef.h>
#include <string.h>

#define SLICE 16384u /* blocks copied under one lock */
#define TRIES 3

/* A growing array of the copy. Offsets, not pointers, are kept into it. */
struct pile {
    void *items;
    size_t n;
    size_t cap;
};

/* A run of the copy. Offsets into the piles; entries are numbered from 1. */
struct entry {
    uint32_t run; /* id */
    uint32_t parent;
    bool rooted;
    bool taught;
    struct kve_hash waits_for; /* bytes: offset + 1 */
    size_t lora;               /* offset + 1 into bytes, or 0 */
    size_t lora_len;
    size_t salt;
    size_t salt_len;
    uint32_t block_size;
    uint32_t n;
    size_t contents;
    size_t dynamo;       /* offset + 1 into contents, or 0 */
    uint32_t first_held; /* number, or 0 */
    uint32_t last_held;
};

struct held_entry {
    uint32_t next;
    size_t medium; /* as lora */
    size_t medium_len;
    size_t locality;
    size_t locality_len;
    size_t ownership;
    size_t ownership_len;
    struct kve_int group;
    uint32_t tier;
    size_t hashes;
    size_t copies;
};

struct skipped_entry {
    struct kve_hash over; /* bytes: offset + 1 */
    uint32_t n;
};

struct copy {
    struct pile entries;
    struct pile held;
    struct pile contents;
    struct pile hashes;
    struct pile copies;
    struct pile skipped;
    struct pile bytes;
    struct pile map; /* run id -> entry: open addressing, pairs */
    struct pile up;  /* ancestors on the way */
    /* Where the next slice goes on. */
    uint32_t scope;
    uint32_t run;
    uint32_t rec;
    bool begun; /* in this scope */
    uint64_t changes;
    uint32_t moves;
    bool failed;
};

static void
copy_release(struct copy *c)
{
    struct pile *piles[] = { &c->entries, &c->held, &c->contents, &c->hashes,
        &c->copies, &c->skipped, &c->bytes, &c->map, &c->up };

    for (size_t i = 0; i < sizeof(piles) / sizeof(piles[0]); i++)
        kve_mem_free(piles[i]->items);
    memset(c, 0, sizeof(*c));
}

static void
copy_restart(struct copy *c)
{
    struct pile *piles[] = { &c->entries, &c->held, &c->contents, &c->hashes,
        &c->copies, &c->skipped, &c->bytes, &c->up };

    for (size_t i = 0; i < sizeof(piles) / sizeof(piles[0]); i++)
        piles[i]->n = 0;
    if (c->map.cap > 0)
        memset(c->map.items, 0, c->map.cap * 2 * sizeof(uint32_t));
    c->scope = 0;
    c->begun = false;
}

/* Room for n more items of size; their place, or NULL (the copy fails). */
static void *
pile_add(struct copy *c, struct pile *pile, size_t size, size_t n)
{
    size_t cap = pile->cap == 0 ? 64 : pile->cap;
    void *grown;

    while (cap < pile->n + n)
        cap *= 2;
    if (cap != pile->cap) {
        grown = kve_mem_array(pile->items, cap, size);
        if (grown == NULL) {
            c->failed = true;
            return NULL;
        }
        pile->items = grown;
        pile->cap = cap;
    }
    pile->n += n;
    return (char *)pile->items + (pile->n - n) * size;
}

/* Offset + 1 of a copy of bytes; 0: none, or no memory. */
static size_t
keep_bytes(struct copy *c, const void *data, size_t len)
{
    uint8_t *to = data == NULL ? NULL : pile_add(c, &c->bytes, 1, len);

    if (to == NULL)
        return 0;
    memcpy(to, data, len);
    return c->bytes.n - len + 1;
}

static struct kve_hash
keep_hash(struct copy *c, struct kve_hash hash)
{
    if (hash.bytes != NULL)
        hash.bytes =
            (const uint8_t *)(uintptr_t)keep_bytes(c, hash.bytes, hash.len);
    return hash;
}

/* ---- run id -> entry ---- */

static uint32_t *
map_at(struct copy *c, uint32_t run)
{
    uint32_t *pairs = c->map.items;
    size_t at = (run * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (c->map.cap - 1);

    while (pairs[2 * at] != 0 && pairs[2 * at] != run)
        at = (at + 1) & (c->map.cap - 1);
    return &pairs[2 * at];
}

static bool
map_grow(struct copy *c)
{
    struct pile old = c->map;
    size_t cap = old.cap == 0 ? 256 : old.cap * 2;

    c->map.items = kve_mem_zalloc(cap, 2 * sizeof(uint32_t));
    if (c->map.items == NULL) {
        c->map = old;
        c->failed = true;
        return false;
    }
    c->map.cap = cap;
    for (size_t i = 0; i < old.cap; i++) {
        const uint32_t *pair = (const uint32_t *)old.items + 2 * i;

        if (pair[0] != 0)
            memcpy(map_at(c, pair[0]), pair, 2 * sizeof(uint32_t));
    }
    kve_mem_free(old.items);
    return true;
}

static uint32_t
map_get(struct copy *c, uint32_t run)
{
    return c->map.cap == 0 ? 0 : map_at(c, run)[1];
}

static void
map_put(struct copy *c, uint32_t run, uint32_t entry)
{
    uint32_t *pair;

    if (c->entries.n * 2 >= c->map.cap && !map_grow(c))
        return;
    pair = map_at(c, run);
    pair[0] = run;
    pair[1] = entry;
}

/* ---- copying ---- */

static void
entry_root(const struct kve_space *space, struct copy *c, struct entry *entry,
    uint32_t parent)
{
    uint32_t id = KVE_PARENT_ID(parent);

    if ((parent & KVE_PARENT_KIND) == KVE_PARENT_ROOT) {
        const struct kve_root *root = kve_dir_get(&space->roots, id);

        entry->rooted = true;
        entry->lora = keep_bytes(c, root->lora.data, root->lora.len);
        entry->lora_len = root->lora.len;
        entry->salt = keep_bytes(c, root->salt.data, root->salt.len);
        entry->salt_len = root->salt.len;
    } else if ((parent & KVE_PARENT_KIND) == KVE_PARENT_WAIT) {
        const struct kve_wait *wait = kve_dir_get(&space->waits, id);

        entry->waits_for = keep_hash(c, wait->hash);
    }
}

/* n numbers of a run; their offset. */
static size_t
keep_numbers(struct copy *c, const uint64_t *numbers, uint32_t n)
{
    uint64_t *to = pile_add(c, &c->contents, sizeof(*to), n);

    if (to == NULL)
        return 0;
    memcpy(to, numbers, n * sizeof(*to));
    return c->contents.n - n;
}

static void
entry_add(
    const struct kve_space *space, struct copy *c, const struct kve_run *run)
{
    struct entry entry = { 0 };
    uint32_t parent = kve_run_parent(run);
    struct entry *to;

    entry.run = run->obj.id;
    entry.taught = (run->flags & KVE_RUN_LOOSE) == 0;
    entry.block_size = run->block_size;
    entry.n = kve_run_n(run);
    if (entry.taught) {
        entry.contents = keep_numbers(c, kve_run_contents(run), entry.n);
        if ((run->flags & KVE_RUN_DYNAMO) != 0)
            entry.dynamo = keep_numbers(c, kve_run_dynamo(run), entry.n) + 1;
        if ((parent & KVE_PARENT_KIND) == KVE_PARENT_RUN)
            entry.parent = map_get(c, KVE_PARENT_ID(parent));
        else
            entry_root(space, c, &entry, parent);
    }
    to = pile_add(c, &c->entries, sizeof(entry), 1);
    if (to == NULL)
        return;
    *to = entry;
    map_put(c, entry.run, (uint32_t)c->entries.n);
}

/* The entry of a run; those it stands behind come before it. */
static struct entry *
entry_of(const struct kve_space *space, struct copy *c, uint32_t id)
{
    uint32_t at = id;
    uint32_t number;

    c->up.n = 0;
    while (!c->failed && map_get(c, at) == 0) {
        const struct kve_run *run = kve_run_at(space, at);
        uint32_t parent = kve_run_parent(run);
        uint32_t *up = pile_add(c, &c->up, sizeof(*up), 1);

        if (up != NULL)
            *up = at;
        if ((parent & KVE_PARENT_KIND) != KVE_PARENT_RUN)
            break;
        at = KVE_PARENT_ID(parent);
    }
    while (!c->failed && c->up.n > 0)
        entry_add(
            space, c, kve_run_at(space, ((uint32_t *)c->up.items)[--c->up.n]));
    number = c->failed ? 0 : map_get(c, id);
    return number == 0 ? NULL : (struct entry *)c->entries.items + number - 1;
}

static void
held_scope(
    struct copy *c, struct held_entry *held, const struct kve_scope *scope)
{
    held->medium = keep_bytes(c, scope->medium.data, scope->medium.len);
    held->medium_len = scope->medium.len;
    held->locality = keep_bytes(c, scope->locality.data, scope->locality.len);
    held->locality_len = scope->locality.len;
    held->ownership =
        keep_bytes(c, scope->ownership.data, scope->ownership.len);
    held->ownership_len = scope->ownership.len;
    held->group = scope->group_idx;
    held->tier = scope->tier;
}

static void
held_add(const struct kve_space *space, struct copy *c,
    const struct kve_scope *scope, const struct kve_run *run, uint32_t rec)
{
    struct held_entry held = { 0 };
    struct entry *entry = entry_of(space, c, run->obj.id);
    uint32_t vec = kve_run_recs(run)[rec].vec;
    uint32_t n = entry != NULL ? entry->n : 0;
    struct kve_hash *hashes = pile_add(c, &c->hashes, sizeof(*hashes), n);
    uint32_t *copies = pile_add(c, &c->copies, sizeof(*copies), n);
    struct held_entry *to;

    if (entry == NULL || c->failed)
        return;
    held.hashes = c->hashes.n - n;
    held.copies = c->copies.n - n;
    for (uint32_t p = 0; p < n; p++) {
        struct kve_hash hash = { NULL, { 0 } };

        copies[p] = kve_hold_copies(run, rec, p);
        if (copies[p] > 0)
            hash = keep_hash(
                c, kve_name_get(&space->names, kve_run_block(run, vec, p)));
        hashes[p] = hash;
    }
    held_scope(c, &held, scope);
    to = pile_add(c, &c->held, sizeof(held), 1);
    if (to == NULL || c->failed)
        return;
    *to = held;
    if (entry->last_held != 0)
        ((struct held_entry *)c->held.items)[entry->last_held - 1].next =
            (uint32_t)c->held.n;
    else
        entry->first_held = (uint32_t)c->held.n;
    entry->last_held = (uint32_t)c->held.n;
}

static void
copy_skipped(const struct kve_inst *inst, struct copy *c)
{
    struct skipped_entry skipped = { { NULL, { 0 } }, 0 };

    for (uint32_t i = 0; !c->failed; i++) {
        struct skipped_entry *to;

        skipped.n = kve_bridge_at(inst, i, &skipped.over);
        if (skipped.n == 0)
            return;
        skipped.over = keep_hash(c, skipped.over);
        to = pile_add(c, &c->skipped, sizeof(skipped), 1);
        if (to != NULL)
            *to = skipped;
    }
}

/* Copy up to max blocks more; true: all is copied. */
static bool
copy_slice(struct kve_inst *inst, struct copy *c, size_t max)
{
    struct kve_space *space = inst->space;
    size_t done = 0;

    while (c->scope < inst->n_scopes && done < max && !c->failed) {
        struct kve_scope *scope = inst->scopes[c->scope];
        struct kve_run *run;
        struct kve_rec *rec;

        if (!c->begun) {
            c->run = scope->first_run;
            c->rec = scope->first_rec;
            c->begun = true;
        }
        if (c->run == 0 || scope->tier == KVE_TIER_BRIDGE) {
            c->scope++;
            c->begun = false;
            continue;
        }
        run = kve_run_at(space, c->run);
        rec = &kve_run_recs(run)[c->rec];
        if (rec->held > 0)
            held_add(space, c, scope, run, c->rec);
        done += kve_run_n(run) + 1;
        c->run = rec->next_run;
        c->rec = rec->next_rec;
    }
    if (c->scope < inst->n_scopes && !c->failed)
        return false;
    copy_skipped(inst, c);
    return true;
}

static kve_status
copy_make(kve_index *index, kve_instance instance, struct copy *c,
    struct kve_error *err)
{
    bool all = false;

    for (uint32_t restarts = 0; !all;) {
        struct kve_inst *inst = kve_inst_lock(index, instance);

        if (inst == NULL)
            return kve_fail(err, KVE_E_NOT_FOUND,
                "no such instance in this index; it was dropped, or never "
                "added");
        if (c->changes != inst->changes ||
            c->moves !=
                atomic_load_explicit(
                    &inst->space->moves, memory_order_relaxed)) {
            if (c->scope > 0 || c->begun)
                restarts++;
            copy_restart(c);
            c->changes = inst->changes;
            c->moves =
                atomic_load_explicit(&inst->space->moves, memory_order_relaxed);
        }
        all = copy_slice(inst, c, restarts < TRIES ? SLICE : SIZE_MAX);
        kve_space_unlock(inst->space);
    }
    return c->failed ? kve_fail_nomem(err, "the copy of an instance") : KVE_OK;
}

/* ---- telling ---- */

static struct kve_str
str_of(const struct copy *c, size_t offset, size_t len)
{
    struct kve_str str = { NULL, 0 };

    if (offset != 0) {
        str.data = (const char *)c->bytes.items + offset - 1;
        str.len = len;
    }
    return str;
}

static void
hash_fix(const struct copy *c, struct kve_hash *hash)
{
    if (hash->bytes != NULL)
        hash->bytes =
            (const uint8_t *)c->bytes.items + (uintptr_t)hash->bytes - 1;
}

static bool
tell_run(const struct copy *c, const struct kve_index_dump *dump, uint64_t id,
    const struct entry *entry)
{
    struct kve_index_run run = { 0 };

    run.id = id;
    run.parent = entry->parent;
    run.rooted = entry->rooted;
    run.taught = entry->taught;
    run.waits_for = entry->waits_for;
    hash_fix(c, &run.waits_for);
    run.lora_name = str_of(c, entry->lora, entry->lora_len);
    run.cache_salt = str_of(c, entry->salt, entry->salt_len);
    run.block_size = entry->block_size;
    run.n_blocks = entry->n;
    run.contents = entry->taught
        ? (const uint64_t *)c->contents.items + entry->contents
        : NULL;
    run.dynamo = entry->dynamo != 0
        ? (const uint64_t *)c->contents.items + entry->dynamo - 1
        : NULL;
    return dump->run == NULL || dump->run(dump->ctx, &run);
}

static bool
tell_held(const struct copy *c, const struct kve_index_dump *dump,
    const struct entry *entry, const struct held_entry *from)
{
    struct kve_index_held held = { 0 };
    struct kve_hash *hashes = (struct kve_hash *)c->hashes.items + from->hashes;

    for (uint32_t p = 0; p < entry->n; p++)
        hash_fix(c, &hashes[p]);
    held.medium = str_of(c, from->medium, from->medium_len);
    held.locality = str_of(c, from->locality, from->locality_len);
    held.ownership = str_of(c, from->ownership, from->ownership_len);
    held.group = from->group;
    held.tier = from->tier;
    held.n_blocks = entry->n;
    held.hashes = hashes;
    held.copies = (const uint32_t *)c->copies.items + from->copies;
    return dump->held == NULL || dump->held(dump->ctx, &held);
}

static void
tell_skipped(const struct copy *c, const struct kve_index_dump *dump)
{
    for (size_t i = 0; dump->skipped != NULL && i < c->skipped.n; i++) {
        const struct skipped_entry *entry =
            (struct skipped_entry *)c->skipped.items + i;
        struct kve_index_skipped skipped = { entry->over, entry->n };

        hash_fix(c, &skipped.over);
        if (!dump->skipped(dump->ctx, &skipped))
            return;
    }
}

static void
tell(const struct copy *c, const struct kve_index_dump *dump)
{
    for (size_t i = 0; i < c->entries.n; i++) {
        const struct entry *entry = (struct entry *)c->entries.items + i;
        uint32_t number = entry->first_held;

        if (!tell_run(c, dump, i + 1, entry))
            return;
        while (number != 0) {
            const struct held_entry *held =
                (struct held_entry *)c->held.items + number - 1;

            if (!tell_held(c, dump, entry, held))
                return;
            number = held->next;
        }
    }
    tell_skipped(c, dump);
}

kve_status
kve_index_dump_instance(kve_index *index, kve_instance instance,
    const struct kve_index_dump *dump, struct kve_error *err)
{
    struct kve_index_dump to;
    struct copy c = { 0 };
    /* skipped came later than the others. */
    kve_status status =
        kve_opts_read(dump, offsetof(struct kve_index_dump, skipped), &to,
            sizeof(to), "kve_index_dump", err);

    if (status != KVE_OK)
        return status;
    c.changes = UINT64_MAX;
    status = copy_make(index, instance, &c, err);
    if (status == KVE_OK)
        tell(&c, &to);
    copy_release(&c);
    return status;
}
