/*
 * test_dynamo.c - block and sequence hashes that Dynamo's own code printed.
 */
#include "data.h"

#include <kvevents/codec.h>
#include <kvevents/hash.h>

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "hash/content.h"
#include "hash/dynamo.h"
#include "hash/dynamo_impl.h"

static uint32_t up[64]; /* 1, 2, 3, ... */

/* Three blocks of a prompt of the tokens 1 to 48. */
static const struct golden {
    const char *lora;
    const char *salt;
    uint32_t eagle;
    size_t n;
    uint64_t seed;
    uint64_t local[3];
    uint64_t sequence[3];
} goldens[] = {
    { NULL, NULL, 0, 3, 0x539,
        { 0xea06fc71a5ee6e88, 0x1fbf39bd106be0b5, 0xa8562fe663b7a097 },
        { 0xea06fc71a5ee6e88, 0xad01835a37dd294c, 0x0d55e56c2bccbd1a } },
    { "my-lora", NULL, 0, 3, 0xb2041cc45cbcfedd,
        { 0x3990f1b14309d7e6, 0x27c809c22da91b94, 0xe0ee5d0e535bfbf1 },
        { 0x3990f1b14309d7e6, 0x6cf1d86294264b7a, 0x8ce387e541fed699 } },
    { NULL, "tenant-a", 0, 3, 0x1b095b6229544fb6,
        { 0x71742dfed90682a9, 0xb7db648aa3dfb040, 0x27ea5f8baebff2fd },
        { 0x71742dfed90682a9, 0x10a55acc122317d5, 0x7ba34a181b94b878 } },
    { "my-lora", "tenant-a", 0, 3, 0xcd0d78268611495a,
        { 0x12ed440cccc38cf3, 0x9db0a52cbd130133, 0xde036775f15cf586 },
        { 0x12ed440cccc38cf3, 0x5a006d5753bfda88, 0x00bc8e8e43298ff5 } },
    { "", "", 1, 2, 0x539, { 0x5db5a9903451d2d0, 0xc98d53f2ae88291e, 0 },
        { 0x5db5a9903451d2d0, 0x7f652463affb3fee, 0 } },
};

static int
setup(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_OF(up); i++)
        up[i] = i + 1;
    return 0;
}

static struct kve_dynamo_prompt
prompt_of(const char *lora, const char *salt)
{
    struct kve_dynamo_prompt prompt = KVE_DYNAMO_PROMPT_INIT;

    prompt.tokens = up;
    prompt.n_tokens = 48;
    prompt.block_size = 16;
    prompt.lora_name = str(lora);
    prompt.salt = str(salt);
    return prompt;
}

static void
test_prompts(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_OF(goldens); i++) {
        const struct golden *g = &goldens[i];
        struct kve_dynamo_prompt prompt = prompt_of(g->lora, g->salt);
        uint64_t local[3], sequence[3], seed;
        char salt[64] = "dynamo-cache-salt:";
        size_t n;

        prompt.eagle = g->eagle;
        assert_int_equal(kve_dynamo_hash(&prompt, local, 3, &n, NULL), KVE_OK);
        assert_int_equal(n, g->n);
        assert_memory_equal(local, g->local, 8 * n);
        kve_sequence_hash(local, n, sequence);
        assert_memory_equal(sequence, g->sequence, 8 * n);
        kve_sequence_hash(local, n, local);
        assert_memory_equal(local, g->sequence, 8 * n);

        /* Engines have the salt with a prefix. */
        if (g->salt != NULL && g->salt[0] != '\0')
            strcat(salt, g->salt);
        else
            salt[0] = '\0';
        assert_true(kve_dynamo_seed(str(g->lora), str(salt), &seed));
        assert_true(seed == g->seed);
    }
}

static void
test_small_blocks(void **state)
{
    struct kve_dynamo_prompt prompt = prompt_of(NULL, NULL);
    uint64_t local[2], sequence[2];
    size_t n;

    (void)state;
    prompt.block_size = 4;
    prompt.n_tokens = 8;
    assert_int_equal(kve_dynamo_hash(&prompt, local, 2, &n, NULL), KVE_OK);
    assert_true(local[0] == 14643705804678351452u);
    assert_true(local[1] == 16777012769546811212u);
    kve_sequence_hash(local, 2, sequence);
    assert_true(sequence[1] == 4945711292740353085u);
}

static void
test_images(void **state)
{
    static const struct kve_dynamo_image images[] = { { 0, 42 }, { 0, 7 } };
    static const struct kve_dynamo_image beyond[] = { { 3, 42 } };
    static const struct kve_dynamo_image wrong[] = { { 1, 1 }, { 0, 1 } };
    struct kve_dynamo_prompt prompt = prompt_of(NULL, NULL);
    uint64_t local[3], sequence[3];
    size_t n;

    (void)state;
    prompt.images = images;
    prompt.n_images = 2;
    assert_int_equal(kve_dynamo_hash(&prompt, local, 3, &n, NULL), KVE_OK);
    assert_true(local[0] == 0xd20efc4585ab9cd0);
    assert_true(local[1] == 0x1fbf39bd106be0b5);
    assert_true(local[2] == 0xa8562fe663b7a097);
    kve_sequence_hash(local, 3, sequence);
    assert_true(sequence[1] == 0xb53492cda6c9c2b3);
    assert_true(sequence[2] == 0x90992a28af58eed1);

    prompt.images = beyond;
    prompt.n_images = 1;
    assert_int_equal(kve_dynamo_hash(&prompt, local, 3, &n, NULL), KVE_OK);
    assert_memory_equal(local, goldens[0].local, sizeof(local));
    prompt.images = wrong;
    prompt.n_images = 2;
    assert_int_equal(kve_dynamo_hash(&prompt, local, 3, &n, NULL), KVE_E_INVAL);

    assert_true(kve_dynamo_image_id(str("img")) == 10616190782678107496u);
    assert_true(kve_dynamo_image_id(str("0123456789abcDEF0000000000000000"
                                        "00000000000000000000000000000001")) ==
        0x0123456789abcdef);
    assert_true(kve_dynamo_image_id(str("0123456789abcdeg0000000000000000"
                                        "00000000000000000000000000000001")) !=
        0x0123456789abcdef);
}

static void
test_bad_prompts(void **state)
{
    struct kve_dynamo_prompt prompt = prompt_of(NULL, NULL);
    struct kve_error err;
    uint64_t local[3];
    size_t n = 9;

    (void)state;
    assert_int_equal(kve_dynamo_hash(NULL, local, 3, &n, &err), KVE_E_INVAL);
    assert_int_equal(kve_dynamo_hash(&prompt, NULL, 3, &n, &err), KVE_E_INVAL);
    assert_int_equal(
        kve_dynamo_hash(&prompt, local, 3, NULL, &err), KVE_E_INVAL);
    prompt.eagle = 2;
    assert_int_equal(kve_dynamo_hash(&prompt, local, 3, &n, &err), KVE_E_INVAL);
    prompt.eagle = 0;
    prompt.tokens = NULL;
    assert_int_equal(kve_dynamo_hash(&prompt, local, 3, &n, &err), KVE_E_INVAL);
    prompt.n_tokens = 0;
    prompt.block_size = UINT32_MAX;
    assert_int_equal(kve_dynamo_hash(&prompt, local, 3, &n, &err), KVE_E_INVAL);
    assert_int_equal(n, 9);
    prompt.block_size = 16;
    assert_int_equal(kve_dynamo_hash(&prompt, local, 3, &n, &err), KVE_OK);
    assert_int_equal(n, 0);
    prompt.tokens = up;
    prompt.n_tokens = 48;
    prompt.block_size = 0;
    assert_int_equal(kve_dynamo_hash(&prompt, local, 3, &n, &err), KVE_OK);
    assert_int_equal(n, 0);
}

static void
test_salts_without_a_hash(void **state)
{
    uint64_t seed = 1;

    (void)state;
    assert_false(kve_dynamo_seed(str("ad"), str("tenant-a"), &seed));
    assert_false(kve_dynamo_seed(str(NULL), str("dynamo-cache-salt:"), &seed));
    assert_false(kve_dynamo_seed(str(NULL), str("dynamo"), &seed));
    assert_true(seed == 1);
}

/* ------------------------------------------------------------------ */

/* A store of three blocks whose extra keys are items. */
static void
hash_store(const struct kve_extra_item *items, size_t n, uint64_t *hashes)
{
    static const struct kve_hash names[3];
    struct kve_buffer keys = KVE_BUFFER_INIT;
    struct kve_event event = { .type = KVE_EVENT_STORED,
        .hashes = names,
        .n_hashes = 3,
        .block_size = 16,
        .tokens = up,
        .n_tokens = 48,
        .lora_name = str("ad") };

    assert_int_equal(kve_extra_write(items, n, 3, &keys, NULL), KVE_OK);
    event.extra_keys = (struct kve_span){ keys.data, keys.len };
    kve_dynamo_blocks(&event, KVE_CONTENT_SEED, hashes);
    kve_buffer_release(&keys);
}

static void
test_stores(void **state)
{
    static const char id42[] = "000000000000002a"
                               "0000000000000000"
                               "0000000000000000"
                               "0000000000000000";
    static const char id7[] = "0000000000000007"
                              "0000000000000000"
                              "0000000000000000"
                              "0000000000000000";
    const struct kve_extra_item images[] = {
        { .kind = KVE_EXTRA_TEXT, .block = 0, .text = str("ad") },
        { .kind = KVE_EXTRA_IMAGE, .block = 0, .text = str(id42) },
        { .kind = KVE_EXTRA_IMAGE, .block = 0, .text = str(id7), .offset = 9 },
        { .kind = KVE_EXTRA_TEXT, .block = 0, .text = str("salt") },
        { .kind = KVE_EXTRA_TEXT, .block = 1, .text = str("ad") },
    };
    const struct kve_extra_item embeds[] = {
        { .kind = KVE_EXTRA_BYTES,
            .block = 2,
            .bytes = { (const uint8_t *)"digest", 6 } },
    };
    uint64_t hashes[3];

    (void)state;
    hash_store(images, N_OF(images), hashes);
    assert_true(hashes[0] == 0xd20efc4585ab9cd0);
    assert_true(hashes[1] == goldens[0].local[1]);
    assert_true(hashes[2] == goldens[0].local[2]);

    hash_store(embeds, N_OF(embeds), hashes);
    assert_true(hashes[0] == goldens[0].local[0]);
    assert_true(hashes[2] != goldens[0].local[2]);
}

/* More images than are sorted: still one value, whatever their number. */
static void
test_many_images(void **state)
{
    struct kve_extra_item items[200];
    char names[200][8];
    uint64_t first[3], again[3];

    (void)state;
    memset(items, 0, sizeof(items));
    for (size_t i = 0; i < N_OF(items); i++) {
        (void)snprintf(names[i], sizeof(names[i]), "%zu", i);
        items[i].kind = KVE_EXTRA_IMAGE;
        items[i].block = 1;
        items[i].text = str(names[i]);
    }
    hash_store(items, N_OF(items), first);
    hash_store(items, N_OF(items), again);
    assert_memory_equal(first, again, sizeof(first));
    assert_true(first[1] != goldens[0].local[1]);
}

/* xxHash looks at a state before it sets it: what lay there must not count,
 * not even if it looks like a state with that seed. Blocks above 240 bytes
 * are hashed with what is derived from the seed. */
static void
test_rubbish_before(void **state)
{
    static struct kve_dynamo_block block;

    (void)state;
    memset(&block, 0xa5, sizeof(block));
    block.state.seed = KVE_CONTENT_SEED;
    block.state.extSecret = NULL;
    kve_dynamo_begin(&block, up, 64, KVE_CONTENT_SEED);
    assert_true(kve_dynamo_end(&block) ==
        XXH3_64bits_withSeed(up, 256, KVE_CONTENT_SEED));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_small_blocks),
        cmocka_unit_test(test_images),
        cmocka_unit_test(test_bad_prompts),
        cmocka_unit_test(test_salts_without_a_hash),
        cmocka_unit_test(test_stores),
        cmocka_unit_test(test_many_images),
        cmocka_unit_test(test_rubbish_before),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
