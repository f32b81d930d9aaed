/*
 * ctest-timeout: 200
 *
 * Pages of hashes: every form keeps its hash, owners are kept apart, granules
 * come back only when readers have left, pages go with their last granule,
 * and what is moved is found again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "index/names.h"

struct world {
    struct kve_mem_shared shared;
    struct kve_pool *pool;
    struct kve_names names;
    uint8_t text[KVE_NAME_FORMS][96];
};

static uint64_t
next_random(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15ull;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static void
on_id_free(void *ctx, uint32_t kind, uint32_t id)
{
    struct world *w = ctx;

    kve_names_id_free(&w->names, kind, id);
}

static bool
on_moved(void *ctx, struct kve_obj *from, struct kve_obj *to)
{
    struct world *w = ctx;

    if (from->kind == KVE_OBJ_SEGMENT)
        return kve_table_moved(&w->names.table, from, to);
    return kve_names_moved(&w->names, from, to);
}

static void
world_init(struct world *w, uint64_t max_bytes)
{
    const struct kve_pool_ops ops = { w, on_moved, on_id_free };

    memset(w, 0, sizeof(*w));
    kve_mem_shared_init(&w->shared, max_bytes);
    assert_int_equal(kve_pool_create(&w->shared, &ops, &w->pool), KVE_OK);
    assert_int_equal(kve_names_init(&w->names, w->pool), KVE_OK);
}

static void
world_release(struct world *w)
{
    kve_pool_destroy(w->pool);
    kve_mem_shared_release(&w->shared);
}

/* Hash number i of a form; its bytes last until the next one of the form. */
static struct kve_hash
hash_of(struct world *w, enum kve_name_form form, uint64_t i)
{
    uint64_t seed = i * 4 + form;
    struct kve_hash hash = { NULL, { 0 } };

    for (size_t at = 0; at < sizeof(w->text[0]); at += 8) {
        uint64_t word = next_random(&seed);

        memcpy(w->text[form] + at, &word, sizeof(word));
    }
    if (form == KVE_NAME_INT) {
        memcpy(&hash.integer, w->text[form], sizeof(hash.integer));
        return hash;
    }
    hash.bytes = w->text[form];
    hash.len = form == KVE_NAME_B16 ? 16
        : form == KVE_NAME_B32      ? 32
                                    : 17 + i % 15;
    return hash;
}

static void
expect_hash(
    struct world *w, uint32_t block, enum kve_name_form form, uint64_t i)
{
    struct kve_hash want = hash_of(w, form, i);
    struct kve_hash have = kve_name_get(&w->names, block);

    assert_int_equal(have.bytes == NULL, want.bytes == NULL);
    if (want.bytes == NULL) {
        assert_int_equal(have.integer, want.integer);
    } else {
        assert_int_equal(have.len, want.len);
        assert_memory_equal(have.bytes, want.bytes, want.len);
    }
    assert_true(kve_name_is(&w->names, block, &want));
    want = hash_of(w, form, i + 1000000);
    assert_false(kve_name_is(&w->names, block, &want));
}

static uint32_t
find(struct world *w, enum kve_name_form form, uint64_t i, uint32_t owner)
{
    struct kve_hash hash = hash_of(w, form, i);

    return kve_name_find(
        &w->names, kve_name_key(&w->names, &hash, owner), &hash, owner);
}

static void
enter(struct world *w, uint32_t block, enum kve_name_form form, uint64_t i,
    uint32_t owner)
{
    struct kve_hash hash = hash_of(w, form, i);
    uint64_t key = kve_name_key(&w->names, &hash, owner);

    assert_true(kve_name_set(&w->names, block, &hash));
    assert_int_equal(kve_block_key(&w->names, block), key);
    assert_true(kve_name_enter(&w->names, key, block));
}

static void
leave(struct world *w, uint32_t block)
{
    kve_name_leave(&w->names, kve_block_key(&w->names, block), block);
    kve_name_drop(&w->names, block);
}

static void
test_forms(void **state)
{
    static struct world w;
    struct kve_name_owner other;
    uint32_t blocks[2][KVE_NAME_FORMS];

    (void)state;
    world_init(&w, 0);
    kve_name_owner_init(&other, 77);
    for (uint32_t f = 0; f < KVE_NAME_FORMS; f++) {
        enum kve_name_form form = (enum kve_name_form)f;

        blocks[0][f] =
            kve_granule_alloc(&w.names, &w.names.shared, form, KVE_NO_BLOCK);
        blocks[1][f] = kve_granule_alloc(&w.names, &other, form, blocks[0][f]);
        assert_true(blocks[0][f] >= KVE_PAGE_BLOCKS);
        assert_int_not_equal(
            blocks[0][f] / KVE_PAGE_BLOCKS, blocks[1][f] / KVE_PAGE_BLOCKS);
        /* The second block of each; the same hash for both owners. */
        assert_int_equal(find(&w, form, 5, 0), KVE_NO_BLOCK);
        enter(&w, blocks[0][f] + 1, form, 5, 0);
        assert_int_equal(find(&w, form, 5, 77), KVE_NO_BLOCK);
        enter(&w, blocks[1][f] + 1, form, 5, 77);
    }
    for (uint32_t f = 0; f < KVE_NAME_FORMS; f++) {
        enum kve_name_form form = (enum kve_name_form)f;

        expect_hash(&w, blocks[0][f] + 1, form, 5);
        expect_hash(&w, blocks[1][f] + 1, form, 5);
        assert_int_equal(find(&w, form, 5, 0), blocks[0][f] + 1);
        assert_int_equal(find(&w, form, 5, 77), blocks[1][f] + 1);
        assert_int_equal(find(&w, form, 5, 78), KVE_NO_BLOCK);
        assert_int_equal(find(&w, form, 6, 0), KVE_NO_BLOCK);
        leave(&w, blocks[0][f] + 1);
        assert_int_equal(find(&w, form, 5, 0), KVE_NO_BLOCK);
        assert_int_equal(find(&w, form, 5, 77), blocks[1][f] + 1);
        leave(&w, blocks[1][f] + 1);
        assert_int_equal(find(&w, form, 5, 77), KVE_NO_BLOCK);
        kve_granule_free(&w.names, &w.names.shared, blocks[0][f]);
        kve_granule_free(&w.names, &other, blocks[1][f]);
    }
    kve_name_owner_release(&w.names, &other);
    kve_pool_settle(w.pool);
    assert_int_equal(w.names.pages.n_used, 0);
    assert_int_equal(w.names.table.n_entries, 0);
    world_release(&w);
}

/* Two owners' keys may be equal by chance. */
static void
test_owners_with_one_key(void **state)
{
    static struct world w;
    struct kve_name_owner owner;
    struct kve_hash hash;
    uint32_t mine, theirs;
    uint64_t key;

    (void)state;
    world_init(&w, 0);
    kve_name_owner_init(&owner, 9);
    hash = hash_of(&w, KVE_NAME_INT, 1);
    key = kve_name_key(&w.names, &hash, 0);
    mine = kve_granule_alloc(&w.names, &owner, KVE_NAME_INT, KVE_NO_BLOCK);
    theirs = kve_granule_alloc(
        &w.names, &w.names.shared, KVE_NAME_INT, KVE_NO_BLOCK);
    assert_true(kve_name_set(&w.names, mine, &hash));
    assert_true(kve_name_set(&w.names, theirs, &hash));
    assert_true(kve_name_enter(&w.names, key, mine));
    assert_int_equal(kve_name_find(&w.names, key, &hash, 0), KVE_NO_BLOCK);
    assert_int_equal(kve_name_find(&w.names, key, &hash, 8), KVE_NO_BLOCK);
    assert_int_equal(kve_name_find(&w.names, key, &hash, 9), mine);
    assert_true(kve_name_enter(&w.names, key, theirs));
    assert_int_equal(kve_name_find(&w.names, key, &hash, 0), theirs);
    assert_int_equal(kve_name_find(&w.names, key, &hash, 9), mine);
    world_release(&w);
}

/* Every bit and every length makes another key, and so do owners. */
static void
test_keys(void **state)
{
    static const uint8_t zeros[64];
    static struct world w;
    uint8_t bytes[64];
    struct kve_hash hash = { bytes, { 0 } };
    uint64_t keys[64 * 9 + 200];
    size_t n = 0;

    (void)state;
    world_init(&w, 0);
    for (size_t len = 0; len <= 64; len++) {
        memset(bytes, 0, sizeof(bytes));
        hash.len = len;
        keys[n++] = kve_name_key(&w.names, &hash, 0);
    }
    hash.len = 64;
    for (size_t bit = 0; bit < 64 * 8; bit++) {
        memcpy(bytes, zeros, sizeof(bytes));
        bytes[bit / 8] = (uint8_t)(1u << bit % 8);
        keys[n++] = kve_name_key(&w.names, &hash, 0);
    }
    for (uint32_t owner = 0; owner < 8; owner++) {
        struct kve_hash zero = { NULL, { 0 } };

        keys[n++] = kve_name_key(&w.names, &zero, owner);
        zero = (struct kve_hash){ zeros, { 8 } };
        if (owner > 0)
            keys[n++] = kve_name_key(&w.names, &zero, owner);
    }
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            assert_int_not_equal(keys[i], keys[j]);
    world_release(&w);

    /* Another process, other keys: nobody can make them collide. */
    world_init(&w, 0);
    hash.len = 0;
    assert_int_not_equal(kve_name_key(&w.names, &hash, 0), keys[0]);
    world_release(&w);
}

static void
test_match(void **state)
{
    static struct world w;

    (void)state;
    world_init(&w, 0);
    for (uint32_t f = 0; f < KVE_NAME_FORMS; f++) {
        enum kve_name_form form = (enum kve_name_form)f;
        uint32_t block =
            kve_granule_alloc(&w.names, &w.names.shared, form, KVE_NO_BLOCK);
        uint8_t text[9][96];
        struct kve_hash hashes[9];

        for (uint32_t i = 0; i < 9; i++) {
            hashes[i] = hash_of(&w, form, i);
            if (hashes[i].bytes != NULL) {
                memcpy(text[i], hashes[i].bytes, hashes[i].len);
                hashes[i].bytes = text[i];
            }
            if (i < 8)
                assert_true(kve_name_set(&w.names, block + i, &hashes[i]));
        }
        assert_int_equal(kve_name_match(&w.names, block, hashes, 9), 8);
        assert_int_equal(kve_name_match(&w.names, block, hashes, 3), 3);
        assert_int_equal(kve_name_match(&w.names, block, hashes, 0), 0);
        for (uint32_t i = 0; i < 8; i++) {
            struct kve_hash good = hashes[i];
            struct kve_hash low = { NULL, { 0 } };

            assert_int_equal(
                kve_name_match(&w.names, block + i, hashes + i, 9 - i), 8 - i);
            hashes[i] = hashes[8];
            assert_int_equal(kve_name_match(&w.names, block, hashes, 8), i);
            /* Of another form; as an integer it would be the length. */
            low.integer = 8;
            if (form == KVE_NAME_INT)
                assert_true(kve_name_set(&w.names, block + i, &low));
            hashes[i] = form == KVE_NAME_INT
                ? (struct kve_hash){ (const uint8_t *)"12345678", { 8 } }
                : low;
            assert_int_equal(kve_name_match(&w.names, block, hashes, 8), i);
            hashes[i] = good;
            assert_true(kve_name_set(&w.names, block + i, &good));
        }
    }
    world_release(&w);
}

static void
test_near(void **state)
{
    static struct world w;
    uint32_t first, second, at;

    (void)state;
    world_init(&w, 0);
    first = kve_granule_alloc(
        &w.names, &w.names.shared, KVE_NAME_INT, KVE_NO_BLOCK);
    for (int i = 0; i < 7; i++)
        assert_int_equal(kve_granule_alloc(&w.names, &w.names.shared,
                             KVE_NAME_INT, KVE_NO_BLOCK) /
                KVE_PAGE_BLOCKS,
            first / KVE_PAGE_BLOCKS);
    second = kve_granule_alloc(&w.names, &w.names.shared, KVE_NAME_INT, first);
    assert_int_not_equal(second / KVE_PAGE_BLOCKS, first / KVE_PAGE_BLOCKS);
    /* The page of near has room again. */
    kve_granule_free(&w.names, &w.names.shared, first + 3 * KVE_GRANULE);
    kve_pool_settle(w.pool);
    at = kve_granule_alloc(&w.names, &w.names.shared, KVE_NAME_INT, second);
    assert_int_equal(at, second + KVE_GRANULE);
    at = kve_granule_alloc(&w.names, &w.names.shared, KVE_NAME_INT, first);
    assert_int_equal(at, first + 3 * KVE_GRANULE);
    at = kve_granule_alloc(&w.names, &w.names.shared, KVE_NAME_B32, first);
    assert_int_not_equal(at / KVE_PAGE_BLOCKS, first / KVE_PAGE_BLOCKS);
    world_release(&w);
}

/* A granule is not given again while a reader may look at it. */
static void
test_readers(void **state)
{
    static struct world w;
    struct kve_epoch_slot *slot;
    struct kve_name_owner owner;
    uint32_t block, again;

    (void)state;
    world_init(&w, 0);
    kve_name_owner_init(&owner, 5);
    slot = kve_epoch_slot_get(&w.shared);
    assert_non_null(slot);
    block = kve_granule_alloc(&w.names, &owner, KVE_NAME_OTHER, KVE_NO_BLOCK);
    enter(&w, block, KVE_NAME_OTHER, 1, 5);
    kve_epoch_enter(&w.shared, slot);
    leave(&w, block);
    kve_granule_free(&w.names, &owner, block);
    for (int i = 0; i < 8; i++) {
        kve_pool_settle(w.pool);
        again =
            kve_granule_alloc(&w.names, &owner, KVE_NAME_OTHER, KVE_NO_BLOCK);
        assert_int_not_equal(again, block);
        assert_int_not_equal(again, KVE_NO_BLOCK);
    }
    /* The owner goes before the reader: its page still comes back. */
    for (uint32_t page = 1; page <= 2; page++)
        for (uint32_t g = 0; g < 8; g++) {
            uint32_t b = page * KVE_PAGE_BLOCKS + g * KVE_GRANULE;

            if (b != block && b <= again)
                kve_granule_free(&w.names, &owner, b);
        }
    kve_name_owner_release(&w.names, &owner);
    memset(&owner, 0xee, sizeof(owner));
    kve_pool_settle(w.pool);
    assert_int_equal(w.names.pages.n_used, 2);
    kve_epoch_leave(slot);
    kve_pool_settle(w.pool);
    assert_int_equal(w.names.pages.n_used, 0);
    assert_int_equal(w.names.left.waiting, 0);
    kve_epoch_slot_put(slot);
    world_release(&w);
}

/* Random granules of random forms and owners come and go; compaction runs. */
#define GRANULES 3000u
#define OWNERS 3u

struct granule {
    uint32_t block;
    uint64_t first; /* number of its first hash */
    uint8_t form;
    uint8_t owner;
};

static void
granule_fill(struct world *w, struct granule *g, struct kve_name_owner *owners,
    uint64_t *seed, uint64_t number, uint32_t near)
{
    g->form = (uint8_t)(next_random(seed) % KVE_NAME_FORMS);
    g->owner = (uint8_t)(next_random(seed) % OWNERS);
    g->first = number;
    g->block = kve_granule_alloc(&w->names,
        g->owner == 0 ? &w->names.shared : &owners[g->owner],
        (enum kve_name_form)g->form, near);
    assert_int_not_equal(g->block, KVE_NO_BLOCK);
    for (uint32_t s = 0; s < KVE_GRANULE; s++)
        enter(
            w, g->block + s, (enum kve_name_form)g->form, number + s, g->owner);
}

static void
granule_check(struct world *w, const struct granule *g)
{
    for (uint32_t s = 0; s < KVE_GRANULE; s++) {
        enum kve_name_form form = (enum kve_name_form)g->form;

        expect_hash(w, g->block + s, form, g->first + s);
        assert_int_equal(find(w, form, g->first + s, g->owner), g->block + s);
        assert_int_equal(
            find(w, form, g->first + s, g->owner + 1u), KVE_NO_BLOCK);
    }
}

static void
granule_drop(struct world *w, struct granule *g, struct kve_name_owner *owners)
{
    for (uint32_t s = 0; s < KVE_GRANULE; s++)
        leave(w, g->block + s);
    kve_granule_free(&w->names,
        g->owner == 0 ? &w->names.shared : &owners[g->owner], g->block);
    g->block = KVE_NO_BLOCK;
}

static void
test_random(void **state)
{
    struct granule *all = calloc(GRANULES, sizeof(*all));
    struct kve_name_owner owners[OWNERS];
    static struct world w;
    uint64_t seed = 11;
    uint64_t number = 0;

    (void)state;
    assert_non_null(all);
    world_init(&w, 0);
    for (uint32_t i = 0; i < OWNERS; i++)
        kve_name_owner_init(&owners[i], i);
    for (uint32_t round = 0; round < 30; round++) {
        uint64_t fill = next_random(&seed) % 101;

        for (uint32_t i = 0; i < GRANULES; i++) {
            struct granule *g = &all[next_random(&seed) % GRANULES];
            uint64_t what = next_random(&seed) % 100;

            if (g->block != KVE_NO_BLOCK && what >= fill) {
                granule_drop(&w, g, owners);
            } else if (g->block == KVE_NO_BLOCK && what < fill) {
                granule_fill(&w, g, owners, &seed, number, all[i].block);
                number += KVE_GRANULE;
            }
        }
        kve_pool_settle(w.pool);
        while (kve_pool_compact(w.pool, 1u << 20))
            kve_pool_settle(w.pool);
        for (uint32_t i = 0; i < GRANULES; i++)
            if (all[i].block != KVE_NO_BLOCK)
                granule_check(&w, &all[i]);
    }
    for (uint32_t i = 0; i < GRANULES; i++)
        if (all[i].block != KVE_NO_BLOCK)
            granule_drop(&w, &all[i], owners);
    kve_name_owner_release(&w.names, &owners[1]);
    kve_name_owner_release(&w.names, &owners[2]);
    kve_pool_settle(w.pool);
    assert_int_equal(w.names.pages.n_used, 0);
    assert_int_equal(w.names.table.n_entries, 0);
    /* Hashes of unusual length went, too. */
    assert_true(kve_pool_use(w.pool).live < 100000);
    world_release(&w);
    free(all);
}

/* At every lack of memory something is refused and nothing is lost. */
static void
test_no_memory(void **state)
{
    static struct world w;
    uint64_t n = 0;
    uint32_t block;

    (void)state;
    world_init(&w, 4u << 20);
    while ((block = kve_granule_alloc(&w.names, &w.names.shared, KVE_NAME_OTHER,
                KVE_NO_BLOCK)) != KVE_NO_BLOCK) {
        for (uint32_t s = 0; s < KVE_GRANULE; s++) {
            struct kve_hash hash = hash_of(&w, KVE_NAME_OTHER, n);

            if (!kve_name_set(&w.names, block + s, &hash))
                break;
            if (!kve_name_enter(
                    &w.names, kve_block_key(&w.names, block + s), block + s)) {
                kve_name_drop(&w.names, block + s);
                break;
            }
            n++;
        }
    }
    assert_true(n > 10000);
    for (uint64_t i = 0; i < n; i++)
        assert_int_not_equal(find(&w, KVE_NAME_OTHER, i, 0), KVE_NO_BLOCK);
    assert_int_equal(find(&w, KVE_NAME_OTHER, n, 0), KVE_NO_BLOCK);
    world_release(&w);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_owners_with_one_key),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_match),
        cmocka_unit_test(test_near),
        cmocka_unit_test(test_readers),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
