/*
 * test_chain.c - chains of each scheme: known values, rules that changed
 * between releases, what is refused, and no memory.
 */
#include "data.h"

#include <kvevents/hash.h>

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static uint32_t up[96];    /* 100, 101, ... */
static uint32_t small[32]; /* 1, 2, ... */

static int
setup(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_OF(up); i++)
        up[i] = 100 + i;
    for (uint32_t i = 0; i < N_OF(small); i++)
        small[i] = 1 + i;
    return 0;
}

static struct kve_hash_scheme
scheme_of(unsigned algorithm, const char *seed, uint32_t block_size)
{
    struct kve_hash_scheme scheme = KVE_HASH_SCHEME_INIT;

    scheme.algorithm = algorithm;
    scheme.seed = str(seed);
    scheme.block_size = block_size;
    return scheme;
}

static kve_chain *
open_chain(const struct kve_hash_scheme *scheme)
{
    kve_chain *chain = NULL;
    struct kve_error err;

    if (kve_chain_create(scheme, &chain, &err) != KVE_OK)
        fail_msg("%s", err.detail);
    return chain;
}

static void
next(kve_chain *chain, const uint32_t *tokens, size_t n,
    const struct kve_block_extras *extras)
{
    struct kve_error err;

    if (kve_chain_next(chain, tokens, n, extras, &err) != KVE_OK)
        fail_msg("%s", err.detail);
}

static const char *
digest_hex(const kve_chain *chain)
{
    const uint8_t *digest = kve_chain_digest(chain);

    return digest == NULL ? "none" : hex(digest, kve_chain_digest_len(chain));
}

static const char *
bytes_hex(const kve_chain *chain)
{
    struct kve_span bytes = kve_chain_bytes(chain);

    return hex(bytes.data, bytes.len);
}

static uint64_t
integer_of(const kve_chain *chain)
{
    struct kve_hash hash;

    assert_int_equal(kve_chain_hash(chain, &hash), KVE_OK);
    assert_null(hash.bytes);
    return hash.integer;
}

/* ------------------------------------------------------------------ */
/* vLLM. */

static void
test_roots(void **state)
{
    static const struct {
        unsigned algorithm;
        const char *seed;
        const char *root;
    } roots[] = {
        { KVE_HASH_SHA256, NULL,
            "066b1e8987e027138e98701c46128929"
            "378935f9b6cd1549105ae6b4f0d71198" },
        { KVE_HASH_SHA256, "0",
            "1973e23848344dc43a988a9b47866380"
            "3cfffe1243480253f9a3cf004b14aa7c" },
        { KVE_HASH_SHA256, "42",
            "c0bc02c9fc92a4944335649961b9e55c"
            "c41b194bece4801e8c6ef0f0f3f5884a" },
        { KVE_HASH_SHA256_CBOR, NULL,
            "9bd96a485ad84efdafb72ee48a1d7a69"
            "bcead0f8f0433173941b276b9581eef0" },
        { KVE_HASH_SHA256_CBOR, "0",
            "4e1195df020de59e0d65a33a4279f118"
            "3e7ae4e5d980e309f8b55adff2e61c3e" },
        { KVE_HASH_SHA256_CBOR, "42",
            "9fa6eb003f14425eb9c8e6baacfbcaab"
            "26257357b829c7bfa74ffcc4f31c1780" },
        { KVE_HASH_XXHASH, NULL, "none" },
        { KVE_HASH_XXHASH, "0", "6fb31cc38bba6066183f7f2104b9c051" },
        { KVE_HASH_XXHASH, "42", "b6cdd80ea04b31ad0b9fc22fff500882" },
        { KVE_HASH_XXHASH_CBOR, NULL, "none" },
        { KVE_HASH_XXHASH_CBOR, "0", "1ebe36576dcb573f26b99533a20aaeca" },
        { KVE_HASH_XXHASH_CBOR, "42", "a9d2e63407fce1a26c9dc9d7fa2d7caf" },
    };

    (void)state;
    for (size_t i = 0; i < N_OF(roots); i++) {
        struct kve_hash_scheme scheme =
            scheme_of(roots[i].algorithm, roots[i].seed, 16);
        kve_chain *chain = open_chain(&scheme);

        assert_string_equal(digest_hex(chain), roots[i].root);
        kve_chain_destroy(chain);

        /* Before 0.29 no seed was random with every algorithm. */
        scheme.release = KVE_RELEASE(0, 28, 0);
        chain = open_chain(&scheme);
        assert_string_equal(
            digest_hex(chain), roots[i].seed == NULL ? "none" : roots[i].root);
        kve_chain_destroy(chain);
    }
}

static void
test_two_blocks(void **state)
{
    static const struct {
        unsigned algorithm;
        const char *digests[2];
        uint64_t integers[2];
    } chains[] = {
        { KVE_HASH_SHA256,
            { "3e333711c2a7b6810fc3053131adb41a"
              "e6f863bdfa562bdca49d1a371975611d",
                "387cb57761ddc845a04615ec32fe9e8f"
                "6abd64656d0679648b6bed7858297293" },
            { 11861665817516400925u, 10046384494910993043u } },
        { KVE_HASH_SHA256_CBOR,
            { "ab58392d264a768c3517f3993e9d6293"
              "00c57835c145dd6e75876fa1c1a52a9c",
                "cd7899503ba3829377063fdc1ac124a7"
                "c8b79a39b66137a14e8a52dc92849429" },
            { 8468860364822751900u, 5659426989048894505u } },
        { KVE_HASH_XXHASH,
            { "2d6d44d4c8320b45ad8bae4cf295d6ba",
                "8f8ea72d49e8bd42a518b89755d898a6" },
            { 12505280435834967738u, 0xa518b89755d898a6u } },
        { KVE_HASH_XXHASH_CBOR,
            { "44a6e932beab462055ecfc98f7017242",
                "7c7a0cc60b1a8036416025b3d503dc04" },
            { 6191601321636885058u, 0x416025b3d503dc04u } },
    };

    (void)state;
    for (size_t i = 0; i < N_OF(chains); i++) {
        struct kve_hash_scheme scheme = scheme_of(chains[i].algorithm, "0", 16);
        kve_chain *chain = open_chain(&scheme);
        struct kve_chain_input input = KVE_CHAIN_INPUT_INIT;
        uint8_t digests[2 * KVE_DIGEST_MAX];
        struct kve_hash hash;
        size_t n, len = kve_chain_digest_len(chain);

        assert_int_equal(kve_chain_hash(chain, &hash), KVE_E_NOT_FOUND);
        for (size_t k = 0; k < 2; k++) {
            next(chain, up + 16 * k, 16, NULL);
            assert_string_equal(digest_hex(chain), chains[i].digests[k]);
            assert_true(integer_of(chain) == chains[i].integers[k]);
        }

        /* All at once, with a rest that is no block. */
        input.tokens = up;
        input.n_tokens = 47;
        assert_int_equal(
            kve_chain_prompt(chain, &input, digests, 2, &n, NULL), KVE_OK);
        assert_int_equal(n, 2);
        assert_string_equal(hex(digests, len), chains[i].digests[0]);
        assert_string_equal(hex(digests + len, len), chains[i].digests[1]);
        assert_int_equal(
            kve_chain_prompt(chain, &input, NULL, 0, &n, NULL), KVE_OK);
        assert_int_equal(n, 2);
        assert_string_equal(digest_hex(chain), chains[i].digests[1]);

        /* From a known block on, and from the root again. */
        assert_int_equal(kve_chain_seek(chain, digests, len, NULL), KVE_OK);
        next(chain, up + 16, 16, NULL);
        assert_string_equal(digest_hex(chain), chains[i].digests[1]);
        kve_chain_restart(chain);
        next(chain, up, 16, NULL);
        assert_string_equal(digest_hex(chain), chains[i].digests[0]);
        kve_chain_destroy(chain);

        scheme.form = KVE_FORM_BYTES;
        chain = open_chain(&scheme);
        next(chain, up, 16, NULL);
        assert_int_equal(kve_chain_hash(chain, &hash), KVE_OK);
        assert_string_equal(hex(hash.bytes, hash.len), chains[i].digests[0]);
        kve_chain_destroy(chain);
    }
}

static void
test_salted_block(void **state)
{
    struct kve_hash_scheme scheme = scheme_of(KVE_HASH_SHA256_CBOR, "0", 16);
    kve_chain *chain = open_chain(&scheme);
    struct kve_block_extras extras = { .cache_salt = str("tenant-1") };

    (void)state;
    next(chain, up, 16, &extras);
    assert_string_equal(digest_hex(chain),
        "897ad3119e661b38a1f593a5d40c0628"
        "c6c166ad24bf78394de591b47a854139");
    kve_chain_destroy(chain);
}

/* Mooncake's conductor computes vLLM's chain, too. */
static void
test_small_block(void **state)
{
    struct kve_hash_scheme scheme = scheme_of(KVE_HASH_SHA256_CBOR, "0", 4);
    kve_chain *chain = open_chain(&scheme);

    (void)state;
    next(chain, small, 4, NULL);
    assert_true(integer_of(chain) == 2164874634404590027u);
    next(chain, small + 4, 4, NULL);
    assert_true(integer_of(chain) == 17270480062156288726u);
    kve_chain_destroy(chain);
}

/* How extra keys stand in the bytes, by release; blocks of one token. */
static void
test_releases(void **state)
{
    static const uint8_t digest[] = { 0xd1, 0xd2 };
    const struct kve_extra_item items[] = {
        { .kind = KVE_EXTRA_BYTES, .bytes = { digest, 2 } },
        { .kind = KVE_EXTRA_IMAGE, .text = str("img"), .offset = -3 },
    };
    const struct kve_block_extras extras = { .lora_name = str("ad"),
        .lora_path = str("/p"),
        .cache_salt = str("st"),
        .items = items,
        .n_items = 2 };
    static const struct {
        uint32_t release;
        const char *keys;
    } wants[] = {
        { KVE_RELEASE(0, 33, 0),
            "84"
            "83646c6f726162616462"
            "2f70"
            "83626d6d63696d6722"
            "826a63616368655f73616c74627374"
            "826d70726f6d70745f656d6265647342d1d2" },
        { KVE_RELEASE(0, 31, 0),
            "84"
            "83646c6f726162616462"
            "2f70"
            "83626d6d63696d6722"
            "826a63616368655f73616c74627374"
            "826d70726f6d70745f656d6265647342d1d2" },
        { KVE_RELEASE(0, 30, 9),
            "84"
            "626164"
            "8263696d6722"
            "627374"
            "42d1d2" },
        { KVE_RELEASE(0, 20, 0),
            "84"
            "626164"
            "8263696d6722"
            "627374"
            "42d1d2" },
        { KVE_RELEASE(0, 18, 0),
            "84"
            "626164"
            "63696d67"
            "627374"
            "42d1d2" },
        { KVE_RELEASE(0, 11, 2),
            "84"
            "626164"
            "63696d67"
            "627374"
            "42d1d2" },
    };

    (void)state;
    for (size_t i = 0; i < N_OF(wants); i++) {
        struct kve_hash_scheme scheme = scheme_of(KVE_HASH_XXHASH_CBOR, "0", 1);
        static const uint32_t token = 5;
        char want[512];

        scheme.release = wants[i].release;
        kve_chain *chain = open_chain(&scheme);
        (void)snprintf(want, sizeof(want), "8350%s8105%s", digest_hex(chain),
            wants[i].keys);
        next(chain, &token, 1, &extras);
        assert_string_equal(bytes_hex(chain), want);
        kve_chain_destroy(chain);
    }
}

/* One object in the engine is one object in the pickle. */
static void
test_shared_objects(void **state)
{
    const struct kve_extra_item items[] = {
        { .kind = KVE_EXTRA_IMAGE, .text = str("ab"), .offset = 1 },
        { .kind = KVE_EXTRA_IMAGE, .text = str("ab"), .offset = 300 },
    };
    const struct kve_block_extras extras = { .lora_name = str("\xc3\xa9"),
        .lora_path = str("\xc3\xa9"),
        .items = items,
        .n_items = 2 };
    struct kve_hash_scheme scheme = scheme_of(KVE_HASH_XXHASH, "0", 1);
    kve_chain *chain = open_chain(&scheme);
    static const uint32_t token = 5;
    char want[512];

    (void)state;
    (void)snprintf(want, sizeof(want),
        "8005954600000000000000"
        "4310%s94"
        "4b058594"
        "8c046c6f726194"
        "8c02c3a994"
        "6803"
        "8794"
        "8c026d6d94"
        "8c02616294"
        "4b01"
        "8794"
        "6805"
        "8c02616294"
        "4d2c01"
        "8794"
        "8794"
        "87942e",
        digest_hex(chain));
    next(chain, &token, 1, &extras);
    assert_string_equal(bytes_hex(chain), want);
    kve_chain_destroy(chain);
}

/* An image belongs to each block that it touches, its offset from there. */
static void
test_prompt_with_extras(void **state)
{
    static const uint8_t digest[32] = { 1 };
    const struct kve_prompt_extra extras[] = {
        { .kind = KVE_EXTRA_IMAGE,
            .start = 20,
            .n_tokens = 25,
            .text = str("A") },
        { .kind = KVE_EXTRA_BYTES, .block = 1, .bytes = { digest, 32 } },
    };
    const struct kve_extra_item items[][2] = {
        { { .kind = 0 }, { .kind = 0 } },
        { { .kind = KVE_EXTRA_IMAGE, .text = str("A"), .offset = 4 },
            { .kind = KVE_EXTRA_BYTES, .bytes = { digest, 32 } } },
        { { .kind = KVE_EXTRA_IMAGE, .text = str("A"), .offset = -12 } },
        { { .kind = 0 } },
    };
    static const size_t n_items[] = { 0, 2, 1, 0 };
    struct kve_hash_scheme scheme = scheme_of(KVE_HASH_SHA256, "0", 16);
    struct kve_chain_input input = KVE_CHAIN_INPUT_INIT;
    kve_chain *chain = open_chain(&scheme), *one = open_chain(&scheme);
    uint8_t digests[4 * 32];
    size_t n;

    (void)state;
    input.tokens = up;
    input.n_tokens = 64;
    input.lora_name = str("ad");
    input.lora_path = str("path");
    input.cache_salt = str("salt");
    input.extras = extras;
    input.n_extras = 2;
    assert_int_equal(
        kve_chain_prompt(chain, &input, digests, 4, &n, NULL), KVE_OK);
    assert_int_equal(n, 4);
    for (size_t i = 0; i < 4; i++) {
        struct kve_block_extras own = { .lora_name = str("ad"),
            .lora_path = str("path"),
            .cache_salt = str(i == 0 ? "salt" : NULL),
            .items = items[i],
            .n_items = n_items[i] };

        next(one, up + 16 * i, 16, &own);
        assert_string_equal(digest_hex(one), hex(digests + 32 * i, 32));
    }
    kve_chain_destroy(chain);
    kve_chain_destroy(one);
}

/* The tokens ahead, and images in them. */
static void
test_lookahead(void **state)
{
    const struct kve_prompt_extra extras[] = {
        { .kind = KVE_EXTRA_IMAGE,
            .start = 3,
            .n_tokens = 1,
            .text = str("A") },
    };
    struct kve_hash_scheme scheme = scheme_of(KVE_HASH_XXHASH_CBOR, "0", 2);
    struct kve_chain_input input = KVE_CHAIN_INPUT_INIT;
    kve_chain *chain;
    uint8_t digests[3 * 16];
    char want[256];
    size_t n;

    (void)state;
    scheme.lookahead = 2;
    scheme.release = KVE_RELEASE(0, 32, 0);
    assert_int_equal(kve_chain_create(&scheme, &chain, NULL), KVE_E_INVAL);
    scheme.release = 0;
    chain = open_chain(&scheme);
    (void)snprintf(
        want, sizeof(want), "8350%s82010283f60304", digest_hex(chain));
    next(chain, small, 4, NULL);
    assert_string_equal(bytes_hex(chain), want);

    input.tokens = small;
    input.n_tokens = 7; /* the third block lacks a token ahead */
    input.extras = extras;
    input.n_extras = 1;
    assert_int_equal(
        kve_chain_prompt(chain, &input, digests, 3, &n, NULL), KVE_OK);
    assert_int_equal(n, 2);
    (void)snprintf(want, sizeof(want),
        "8350%s82030483"
        "8183626d6d614101"
        "0506",
        hex(digests, 16));
    assert_string_equal(bytes_hex(chain), want);
    input.n_tokens = 1;
    assert_int_equal(
        kve_chain_prompt(chain, &input, digests, 3, &n, NULL), KVE_OK);
    assert_int_equal(n, 0);
    kve_chain_destroy(chain);
}

/* ------------------------------------------------------------------ */
/* Others. */

static void
test_sglang(void **state)
{
    struct kve_hash_scheme scheme = scheme_of(KVE_HASH_SGLANG, NULL, 2);
    kve_chain *chain = open_chain(&scheme);
    char want[256];

    (void)state;
    assert_string_equal(digest_hex(chain), "none");
    next(chain, small, 2, NULL);
    assert_string_equal(bytes_hex(chain), "0100000002000000");
    assert_true(integer_of(chain) ==
        strtoull(hex(kve_chain_digest(chain), 8), NULL, 16));
    (void)snprintf(want, sizeof(want), "%s0300000004000000", digest_hex(chain));
    next(chain, small + 2, 2, NULL);
    assert_string_equal(bytes_hex(chain), want);
    kve_chain_destroy(chain);

    scheme.lookahead = 1; /* tokens as pairs */
    chain = open_chain(&scheme);
    next(chain, small, 3, NULL);
    assert_string_equal(bytes_hex(chain), "01000000020000000200000003000000");
    kve_chain_destroy(chain);
}

static void
test_mooncake(void **state)
{
    struct kve_hash_scheme scheme = scheme_of(KVE_HASH_MOONCAKE, NULL, 2);
    kve_chain *chain = open_chain(&scheme);

    (void)state;
    assert_string_equal(digest_hex(chain), "ef46db3751d8e999");
    next(chain, small, 2, NULL);
    assert_string_equal(bytes_hex(chain), "99e9d85137db46ef0100000002000000");
    assert_true(integer_of(chain) == strtoull(digest_hex(chain), NULL, 16));
    kve_chain_destroy(chain);

    scheme.seed = str("w8a8");
    chain = open_chain(&scheme);
    assert_string_not_equal(digest_hex(chain), "ef46db3751d8e999");
    kve_chain_destroy(chain);
}

static void
test_standard(void **state)
{
    static const uint64_t wants[] = { 0xea06fc71a5ee6e88, 0xad01835a37dd294c };
    static const uint64_t eagles[] = { 0x5db5a9903451d2d0, 0x7f652463affb3fee };
    struct kve_hash_scheme scheme = scheme_of(KVE_HASH_STANDARD, NULL, 16);
    uint32_t tokens[33];
    kve_chain *chain;

    (void)state;
    for (uint32_t i = 0; i < 33; i++)
        tokens[i] = i + 1;
    chain = open_chain(&scheme);
    for (size_t i = 0; i < 2; i++) {
        next(chain, tokens + 16 * i, 16, NULL);
        assert_true(integer_of(chain) == wants[i]);
    }
    kve_chain_destroy(chain);
    scheme.lookahead = 1;
    chain = open_chain(&scheme);
    for (size_t i = 0; i < 2; i++) {
        next(chain, tokens + 16 * i, 17, NULL);
        assert_true(integer_of(chain) == eagles[i]);
    }
    kve_chain_destroy(chain);
}

/* A11: two rules, two integers of one digest. */
static void
test_forms(void **state)
{
    uint8_t digest[32];
    uint64_t x = 0;

    (void)state;
    assert_int_equal(unhex("8dcbba95c2a6eaa375a102c94294b393"
                           "1bcf0f53d54b9fa8d0df081fd9876ba5",
                         digest),
        32);
    assert_int_equal(
        kve_hash_integer(digest, 32, KVE_FORM_FIRST8_BE_SIGNED, &x, NULL),
        KVE_OK);
    assert_true((int64_t)x == -8229278741710837085);
    assert_int_equal(
        kve_hash_integer(digest, 32, KVE_FORM_LAST8_BE_UNSIGNED, &x, NULL),
        KVE_OK);
    assert_true(x == 15050757412582026149u);
    assert_int_equal(unhex("f67c5ff154ee4961", digest), 8);
    assert_int_equal(
        kve_hash_integer(digest, 8, KVE_FORM_FIRST8_BE_SIGNED, &x, NULL),
        KVE_OK);
    assert_true((int64_t)x == -685567553150498463);

    x = 3;
    assert_int_equal(
        kve_hash_integer(digest, 32, KVE_FORM_BYTES, &x, NULL), KVE_E_INVAL);
    assert_int_equal(
        kve_hash_integer(digest, 7, KVE_FORM_LAST8_BE_UNSIGNED, &x, NULL),
        KVE_E_INVAL);
    assert_int_equal(
        kve_hash_integer(NULL, 8, KVE_FORM_LAST8_BE_UNSIGNED, &x, NULL),
        KVE_E_INVAL);
    assert_true(x == 3);
}

static void
test_names(void **state)
{
    (void)state;
    for (unsigned i = KVE_HASH_SHA256; i <= KVE_HASH_STANDARD; i++) {
        assert_int_equal(kve_hash_algo_find(kve_hash_algo_str(i)), i);
        assert_true(strlen(kve_hash_algo_help(i)) > 10);
    }
    for (unsigned i = KVE_FORM_BYTES; i <= KVE_FORM_FIRST8_BE_SIGNED; i++)
        assert_int_equal(kve_hash_form_find(kve_hash_form_str(i)), i);
    assert_int_equal(kve_hash_algo_find("md5"), 0);
    assert_int_equal(kve_hash_form_find("middle"), 0);
    assert_string_equal(kve_hash_algo_str(0), "?");
    assert_string_equal(kve_hash_algo_help(99), "?");
    assert_string_equal(kve_hash_form_str(0), "?");
}

/* ------------------------------------------------------------------ */

static void
refused(struct kve_hash_scheme scheme, kve_status want)
{
    kve_chain *chain = NULL;
    struct kve_error err = { .detail = "" };

    assert_int_equal(kve_chain_create(&scheme, &chain, &err), want);
    assert_null(chain);
    assert_true(strlen(err.detail) > 0);
}

static void
test_bad_schemes(void **state)
{
    static const uint8_t root[32];
    struct kve_hash_scheme good = scheme_of(KVE_HASH_SHA256, "0", 16), bad;
    kve_chain *chain = NULL;

    (void)state;
    assert_int_equal(kve_chain_create(NULL, &chain, NULL), KVE_E_INVAL);
    assert_int_equal(kve_chain_create(&good, NULL, NULL), KVE_E_INVAL);
    bad = good;
    bad.algorithm = 0;
    refused(bad, KVE_E_INVAL);
    bad.algorithm = KVE_HASH_STANDARD + 1;
    refused(bad, KVE_E_INVAL);
    bad = good;
    bad.form = KVE_FORM_FIRST8_BE_SIGNED + 1;
    refused(bad, KVE_E_INVAL);
    bad = good;
    bad.block_size = 0;
    refused(bad, KVE_E_INVAL);
    bad.block_size = UINT32_MAX;
    refused(bad, KVE_E_INVAL);
    bad = good;
    bad.release = KVE_RELEASE(0, 11, 1);
    refused(bad, KVE_E_UNSUPPORTED);
    bad = good;
    bad.lookahead = 65;
    refused(bad, KVE_E_INVAL);
    bad = good;
    bad.root = root;
    bad.root_len = 16;
    refused(bad, KVE_E_INVAL);
    bad.algorithm = KVE_HASH_SGLANG;
    bad.root_len = 32;
    refused(bad, KVE_E_INVAL);
    bad = scheme_of(KVE_HASH_MOONCAKE, NULL, 16);
    bad.lookahead = 1;
    refused(bad, KVE_E_INVAL);
    bad = good;
    bad.seed.len = 1 << 20;
    refused(bad, KVE_E_INVAL);
    kve_chain_destroy(NULL);
}

static void
test_bad_blocks(void **state)
{
    const struct kve_extra_item text = { .kind = KVE_EXTRA_TEXT,
        .text = str("x") };
    const struct kve_extra_item empty = { .kind = KVE_EXTRA_IMAGE };
    struct kve_block_extras extras = { .items = &text, .n_items = 1 };
    struct kve_hash_scheme scheme = scheme_of(KVE_HASH_SHA256, "0", 16);
    struct kve_chain_input input = KVE_CHAIN_INPUT_INIT;
    kve_chain *chain = open_chain(&scheme);
    struct kve_error err;
    const char *root = digest_hex(chain);
    uint8_t digest[32] = { 0 };
    size_t n = 5;

    (void)state;
    assert_int_equal(kve_chain_next(chain, up, 15, NULL, &err), KVE_E_INVAL);
    assert_int_equal(kve_chain_next(chain, NULL, 16, NULL, &err), KVE_E_INVAL);
    assert_int_equal(kve_chain_next(chain, up, 16, &extras, &err), KVE_E_INVAL);
    extras.items = &empty;
    assert_int_equal(kve_chain_next(chain, up, 16, &extras, &err), KVE_E_INVAL);
    assert_string_equal(digest_hex(chain), root);
    assert_null(kve_chain_bytes(chain).data);

    assert_int_equal(kve_chain_seek(chain, digest, 8, &err), KVE_E_INVAL);
    assert_int_equal(kve_chain_seek(chain, NULL, 32, &err), KVE_E_INVAL);
    assert_int_equal(
        kve_chain_prompt(chain, NULL, digest, 1, &n, &err), KVE_E_INVAL);
    assert_int_equal(
        kve_chain_prompt(chain, &input, NULL, 1, &n, &err), KVE_E_INVAL);
    assert_int_equal(
        kve_chain_prompt(chain, &input, digest, 1, NULL, &err), KVE_E_INVAL);
    input.n_tokens = 16;
    assert_int_equal(
        kve_chain_prompt(chain, &input, digest, 1, &n, &err), KVE_E_INVAL);
    assert_int_equal(n, 5);
    kve_chain_destroy(chain);
}

/* Nobody can know a random root; from a block on all goes well. */
static void
test_random_root(void **state)
{
    struct kve_hash_scheme scheme = scheme_of(KVE_HASH_XXHASH, NULL, 16);
    kve_chain *chain = open_chain(&scheme);
    uint8_t root[16];
    struct kve_error err;

    (void)state;
    assert_int_equal(
        kve_chain_next(chain, up, 16, NULL, &err), KVE_E_UNSUPPORTED);
    assert_int_equal(unhex("6fb31cc38bba6066183f7f2104b9c051", root), 16);
    assert_int_equal(kve_chain_seek(chain, root, 16, &err), KVE_OK);
    next(chain, up, 16, NULL);
    assert_string_equal(digest_hex(chain), "2d6d44d4c8320b45ad8bae4cf295d6ba");
    kve_chain_destroy(chain);

    scheme.root = root;
    scheme.root_len = 16;
    chain = open_chain(&scheme);
    next(chain, up, 16, NULL);
    assert_string_equal(digest_hex(chain), "2d6d44d4c8320b45ad8bae4cf295d6ba");
    kve_chain_destroy(chain);
}

/* A pickle of more than one frame is not written. */
static void
test_large_block(void **state)
{
    static uint32_t tokens[16384];
    struct kve_hash_scheme scheme = scheme_of(KVE_HASH_XXHASH, "0", 16384);
    kve_chain *chain;

    (void)state;
    memset(tokens, 0xff, sizeof(tokens));
    chain = open_chain(&scheme);
    assert_int_equal(
        kve_chain_next(chain, tokens, 16384, NULL, NULL), KVE_E_LIMIT);
    kve_chain_destroy(chain);
    scheme.algorithm = KVE_HASH_XXHASH_CBOR;
    chain = open_chain(&scheme);
    next(chain, tokens, 16384, NULL);
    kve_chain_destroy(chain);
}

static void
test_without_memory(void **state)
{
    const struct kve_prompt_extra extra = {
        .kind = KVE_EXTRA_IMAGE, .start = 3, .n_tokens = 40, .text = str("A")
    };
    struct kve_chain_input input = KVE_CHAIN_INPUT_INIT;
    int64_t before = kve_mem_live();

    (void)state;
    input.tokens = up;
    input.n_tokens = 64;
    input.extras = &extra;
    input.n_extras = 1;
    for (unsigned algorithm = 1; algorithm <= KVE_HASH_STANDARD; algorithm++) {
        struct kve_hash_scheme scheme = scheme_of(algorithm, "0", 16);

        for (uint64_t n = 1;; n++) {
            kve_chain *chain = NULL;
            size_t blocks;
            kve_status status;

            kve_mem_fail_at(n, false);
            status = kve_chain_create(&scheme, &chain, NULL);
            if (status == KVE_OK)
                status =
                    kve_chain_prompt(chain, &input, NULL, 0, &blocks, NULL);
            bool hit = kve_mem_failed();
            kve_mem_fail_at(0, false);

            assert_int_equal(status, hit ? KVE_E_NOMEM : KVE_OK);
            kve_chain_destroy(chain);
            assert_int_equal(kve_mem_live(), before);
            if (!hit) {
                assert_true(n > 2);
                break;
            }
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roots),
        cmocka_unit_test(test_two_blocks),
        cmocka_unit_test(test_salted_block),
        cmocka_unit_test(test_small_block),
        cmocka_unit_test(test_releases),
        cmocka_unit_test(test_shared_objects),
        cmocka_unit_test(test_prompt_with_extras),
        cmocka_unit_test(test_lookahead),
        cmocka_unit_test(test_sglang),
        cmocka_unit_test(test_mooncake),
        cmocka_unit_test(test_standard),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_bad_schemes),
        cmocka_unit_test(test_bad_blocks),
        cmocka_unit_test(test_random_root),
        cmocka_unit_test(test_large_block),
        cmocka_unit_test(test_without_memory),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
