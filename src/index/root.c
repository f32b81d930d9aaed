/*
 * root.c - where chains begin: at a root, or at a parent that is not known.
 *
 * Roots are found by (adapter, salt), waits by (life, hash), each in a table of
 * its own whose candidates are compared whole. Readers look roots up; what
 * they find stays what it is until they have left, also when it was freed
 * meanwhile.
 */
#include "hash/dynamo.h"
#include "index/run.h"

#include "base/text.h"

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#define N_SIZES (sizeof(((struct kve_root *)NULL)->sizes) / sizeof(uint32_t))

/* Readers that find nothing look again when this changed. Whoever is inside of
 * such a change already has said so. */
static bool
moves_begin(struct kve_space *space)
{
    uint32_t moves = atomic_load_explicit(&space->moves, memory_order_relaxed);

    if ((moves & 1) != 0)
        return false;
    /* Nothing that follows is seen before it. */
    atomic_fetch_add_explicit(&space->moves, 1, memory_order_acq_rel);
    return true;
}

static void
moves_end(struct kve_space *space, bool begun)
{
    if (begun)
        atomic_store_explicit(&space->moves,
            atomic_load_explicit(&space->moves, memory_order_relaxed) + 1,
            memory_order_release);
}

/* ---- tables ---- */

static uint64_t
key_of_root(void *ctx, uint32_t id)
{
    const struct kve_root *root =
        kve_dir_get(&((struct kve_space *)ctx)->roots, id);

    return root->key;
}

static uint64_t
key_of_wait(void *ctx, uint32_t id)
{
    const struct kve_wait *wait =
        kve_dir_get(&((struct kve_space *)ctx)->waits, id);

    return wait->key;
}

static void
no_prefetch(void *ctx, uint32_t id)
{
    (void)ctx;
    (void)id;
}

static uint64_t
root_key(
    const struct kve_space *space, struct kve_str lora, struct kve_str salt)
{
    const uint64_t *secret = space->names.secret;
    uint64_t key = XXH3_64bits_withSeed(
        lora.len == 0 ? "" : lora.data, lora.len, secret[2]);

    return XXH3_64bits_withSeed(
        salt.len == 0 ? "" : salt.data, salt.len, key ^ secret[3]);
}

/* ---- roots ---- */

/* A root with an id, not in the table. */
static struct kve_root *
create_root(struct kve_space *space, struct kve_str lora, struct kve_str salt,
    uint64_t key)
{
    struct kve_root *root =
        kve_fixed_alloc(space, sizeof(*root) + lora.len + salt.len);
    char *at = (char *)(root + 1);

    if (root == NULL)
        return NULL;
    root->space = space;
    root->key = key;
    root->lora = kve_str_keep(&at, lora);
    root->salt = kve_str_keep(&at, salt);
    root->unhashed = !kve_dynamo_seed(lora, salt, &root->seed);
    root->seeded = !root->unhashed && (lora.len > 0 || salt.len > 0);
    root->id = kve_dir_add(&space->roots, root);
    if (root->id == 0) {
        kve_pool_free(space->pool, root);
        return NULL;
    }
    if (root->id >=
        atomic_load_explicit(&space->top_root, memory_order_relaxed))
        atomic_store_explicit(
            &space->top_root, root->id + 1, memory_order_release);
    return root;
}

kve_status
kve_roots_init(struct kve_space *space)
{
    const struct kve_table_ops roots = { space, key_of_root, no_prefetch };
    const struct kve_table_ops waits = { space, key_of_wait, no_prefetch };
    const struct kve_str none = { NULL, 0 };
    kve_status status =
        kve_table_init(&space->root_ids, space->pool, KVE_TABLE_ROOTS, &roots);

    if (status == KVE_OK)
        status = kve_table_init(
            &space->wait_ids, space->pool, KVE_TABLE_WAITS, &waits);
    /* The base's: the first one gets id 1, and needs no table. */
    if (status == KVE_OK && create_root(space, none, none, 0) == NULL)
        status = KVE_E_NOMEM;
    return status;
}

static struct kve_root *
make_root(struct kve_space *space, struct kve_str lora, struct kve_str salt,
    uint64_t key)
{
    struct kve_root *root = create_root(space, lora, salt, key);
    bool begun, entered;

    if (root == NULL)
        return NULL;
    begun = moves_begin(space);
    entered = kve_table_insert(&space->root_ids, key, root->id);
    moves_end(space, begun);
    if (!entered) {
        kve_dir_free(&space->roots, root->id);
        kve_pool_free(space->pool, root);
        return NULL;
    }
    return root;
}

struct kve_root *
kve_root_of(struct kve_space *space, struct kve_str lora, struct kve_str salt,
    bool make)
{
    struct kve_probe probe;
    uint64_t key;
    uint32_t id;

    if (lora.len == 0 && salt.len == 0)
        return kve_dir_get(&space->roots, 1);
    key = root_key(space, lora, salt);
    kve_probe_begin(&probe, &space->root_ids, key);
    while ((id = kve_probe_next(&probe)) != KVE_NO_VALUE) {
        struct kve_root *root = kve_dir_get(&space->roots, id);

        if (root != NULL && root->key == key &&
            kve_str_same(root->lora, lora) && kve_str_same(root->salt, salt))
            return root;
    }
    return make ? make_root(space, lora, salt, key) : NULL;
}

void
kve_root_free(struct kve_space *space, struct kve_root *root)
{
    bool begun;

    if (root->id == 1)
        return;
    begun = moves_begin(space);
    (void)kve_table_erase(&space->root_ids, root->key, root->id);
    kve_table_shrink(&space->root_ids, root->key);
    moves_end(space, begun);
    kve_dir_set(&space->roots, root->id, NULL);
    kve_pool_retire_id(space->pool, KVE_ID_ROOT, root->id);
    kve_pool_retire(space->pool, root);
}

/* The place of a size, or N_SIZES. */
static uint32_t
size_place(const struct kve_root *root, uint32_t n, uint32_t block_size)
{
    for (uint32_t i = 0; i < n; i++)
        if (atomic_load_explicit(&root->sizes[i], memory_order_relaxed) ==
            block_size)
            return i;
    return N_SIZES;
}

/* How many sizes have a place: they are the first ones with uses. */
static uint32_t
sizes_placed(const struct kve_root *root)
{
    uint32_t n = 0;

    while (n < N_SIZES && root->size_uses[n] != 0)
        n++;
    return n;
}

static void
size_move(struct kve_root *root, uint32_t to, uint32_t from)
{
    atomic_store_explicit(&root->sizes[to],
        atomic_load_explicit(&root->sizes[from], memory_order_relaxed),
        memory_order_release);
    root->size_uses[to] = root->size_uses[from];
    root->size_uses[from] = 0;
}

/*
 * Uses are added up over places and the rest, so that a size may be in both:
 * it came when there was no place, and came again when there was one.
 */
void
kve_root_size(struct kve_root *root, uint32_t block_size, int change)
{
    uint32_t n = sizes_placed(root);
    uint32_t i = size_place(root, n, block_size);
    bool begun;

    if (i < n && change > 0) {
        root->size_uses[i]++;
        return;
    }
    if (i < n && root->size_uses[i] > 1) {
        root->size_uses[i]--;
        return;
    }
    begun = moves_begin(root->space);
    if (i < n) {
        root->size_uses[i] = 0;
        if (i != --n)
            size_move(root, i, n);
    } else if (change < 0) {
        root->other_uses--;
    } else if (n < N_SIZES) {
        atomic_store_explicit(
            &root->sizes[n], block_size, memory_order_release);
        root->size_uses[n++] = 1;
    } else {
        root->other_uses++;
    }
    atomic_store_explicit(&root->n_sizes,
        root->other_uses != 0 ? (uint32_t)N_SIZES + 1 : n,
        memory_order_release);
    moves_end(root->space, begun);
}

/* ---- waits ---- */

static struct kve_wait *
make_wait(struct kve_inst *inst, const struct kve_hash *hash, uint64_t key)
{
    struct kve_space *space = inst->space;
    size_t len = hash->bytes == NULL ? 0 : hash->len;
    struct kve_wait *wait = kve_fixed_alloc(space, sizeof(*wait) + len);

    if (wait == NULL)
        return NULL;
    wait->key = key;
    wait->owner = inst->owner;
    wait->hash = *hash;
    if (hash->bytes != NULL) {
        uint8_t *bytes = (uint8_t *)(wait + 1);

        memcpy(bytes, hash->bytes, len);
        wait->hash.bytes = bytes;
    }
    wait->id = kve_dir_add(&space->waits, wait);
    if (wait->id == 0) {
        kve_pool_free(space->pool, wait);
        return NULL;
    }
    if (!kve_table_insert(&space->wait_ids, key, wait->id)) {
        kve_dir_free(&space->waits, wait->id);
        kve_pool_free(space->pool, wait);
        return NULL;
    }
    inst->n_waits++;
    return wait;
}

struct kve_wait *
kve_wait_of(struct kve_inst *inst, const struct kve_hash *hash, bool make)
{
    struct kve_space *space = inst->space;
    struct kve_probe probe;
    uint64_t key;
    uint32_t id;

    if (inst->n_waits == 0 && !make)
        return NULL;
    key = kve_name_key(&space->names, hash, inst->owner);
    kve_probe_begin(&probe, &space->wait_ids, key);
    while ((id = kve_probe_next(&probe)) != KVE_NO_VALUE) {
        struct kve_wait *wait = kve_dir_get(&space->waits, id);

        if (wait != NULL && wait->owner == inst->owner && wait->key == key &&
            kve_hash_equal(&wait->hash, hash))
            return wait;
    }
    return make ? make_wait(inst, hash, key) : NULL;
}

void
kve_wait_free(struct kve_inst *inst, struct kve_wait *wait)
{
    struct kve_space *space = inst->space;

    (void)kve_table_erase(&space->wait_ids, wait->key, wait->id);
    kve_table_shrink(&space->wait_ids, wait->key);
    inst->n_waits--;
    kve_dir_set(&space->waits, wait->id, NULL);
    kve_pool_retire_id(space->pool, KVE_ID_WAIT, wait->id);
    kve_pool_retire(space->pool, wait);
}
