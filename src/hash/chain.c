/*
 * chain.c - chains of hashes by an engine's scheme; see kvevents/hash.h.
 *
 * A chain holds one digest (where it stands), one buffer (what the last block
 * was written as) and one libcrypto context, which are used again for each
 * block: in steady state nothing is allocated.
 *
 * A root is what the first block has for a parent:
 *
 *     vLLM       the digest of the seed's text; of a fixed text where there is
 *                no seed; random where release or algorithm say so: unknown
 *     SGLang     nothing: the first page is digested alone
 *     Mooncake   XXH64 of the additional salt
 *     standard   nothing: the first hash is the block's own
 */
#include "hash/plain_impl.h"

#include <openssl/evp.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/status.h"
#include "hash/plain.h"
#include "hash/serial.h"

#define NEWEST KVE_RELEASE(0, 33, 0)
#define OLDEST KVE_RELEASE(0, 11, 2)
#define FIXED_SEED KVE_RELEASE(0, 29, 0)
#define TAGS KVE_RELEASE(0, 31, 0)
#define OFFSETS KVE_RELEASE(0, 20, 0)
#define LOOKS_AHEAD KVE_RELEASE(0, 33, 0)

#define MAX_AHEAD 64

struct kve_chain {
    uint32_t algorithm;
    uint32_t form;
    uint32_t release;
    uint32_t block_size;
    uint32_t lookahead;
    size_t digest_len;
    bool rooted; /* the root is known, or is nothing */
    bool begins; /* the root is nothing */
    bool at_root;
    uint8_t root[KVE_DIGEST_MAX];
    uint8_t digest[KVE_DIGEST_MAX]; /* of the last block; not at the root */
    uint8_t *bytes;                 /* what was digested last */
    size_t len;
    size_t cap;
    struct kve_extra_item *items; /* of one block of a prompt */
    size_t items_cap;
    EVP_MD *sha;
    EVP_MD_CTX *ctx;
};

static bool
is_vllm(uint32_t algorithm)
{
    return algorithm <= KVE_HASH_XXHASH_CBOR;
}

static bool
is_pickled(uint32_t algorithm)
{
    return algorithm == KVE_HASH_SHA256 || algorithm == KVE_HASH_XXHASH;
}

static bool
is_sha(uint32_t algorithm)
{
    return algorithm == KVE_HASH_SHA256 || algorithm == KVE_HASH_SHA256_CBOR ||
        algorithm == KVE_HASH_SGLANG;
}

/* ------------------------------------------------------------------ */

static bool
reserve(kve_chain *chain, size_t n)
{
    uint8_t *grown;

    if (n == 0 || n > SIZE_MAX / 2)
        return false;
    if (n <= chain->cap)
        return true;
    grown = kve_mem_realloc(chain->bytes, 2 * n);
    if (grown == NULL)
        return false;
    chain->bytes = grown;
    chain->cap = 2 * n;
    return true;
}

/* Digest the chain's bytes. */
static kve_status
digest(kve_chain *chain, uint8_t *ret, struct kve_error *err)
{
    if (is_sha(chain->algorithm)) {
        if (EVP_DigestInit_ex2(chain->ctx, chain->sha, NULL) != 1 ||
            EVP_DigestUpdate(chain->ctx, chain->bytes, chain->len) != 1 ||
            EVP_DigestFinal_ex(chain->ctx, ret, NULL) != 1)
            return kve_fail_nomem(err, "a digest of libcrypto");
    } else if (is_vllm(chain->algorithm)) {
        XXH128_canonical_t canonical;

        XXH128_canonicalFromHash(
            &canonical, XXH3_128bits(chain->bytes, chain->len));
        memcpy(ret, canonical.digest, sizeof(canonical.digest));
    } else if (chain->algorithm == KVE_HASH_MOONCAKE) {
        kve_put64(ret, XXH64(chain->bytes, chain->len, 0));
    } else {
        kve_put64(ret, kve_plain_hash(chain->bytes, chain->len));
    }
    return KVE_OK;
}

/* ------------------------------------------------------------------ */
/* Creating. */

static kve_status
check_scheme(const struct kve_hash_scheme *scheme, struct kve_error *err)
{
    bool vllm = is_vllm(scheme->algorithm);
    uint32_t release = scheme->release == 0 ? NEWEST : scheme->release;
    uint32_t most_ahead = vllm && release >= LOOKS_AHEAD ? MAX_AHEAD : 0;

    if (scheme->algorithm == 0 || scheme->algorithm > KVE_HASH_STANDARD)
        return kve_fail(err, KVE_E_INVAL,
            "algorithm %u; accepted are 1 to %d (enum kve_hash_algo)",
            (unsigned)scheme->algorithm, KVE_HASH_STANDARD);
    if (scheme->form > KVE_FORM_FIRST8_BE_SIGNED)
        return kve_fail(err, KVE_E_INVAL,
            "form %u; accepted are 0 to %d (enum kve_hash_form)",
            (unsigned)scheme->form, KVE_FORM_FIRST8_BE_SIGNED);
    if (scheme->block_size == 0 || scheme->block_size > UINT32_MAX / 16)
        return kve_fail(err, KVE_E_INVAL,
            "block size %u; accepted are 1 to %u tokens",
            (unsigned)scheme->block_size, UINT32_MAX / 16);
    if (vllm && release < OLDEST)
        return kve_fail(err, KVE_E_UNSUPPORTED,
            "releases of vLLM before 0.11.2 name blocks by numbers that "
            "cannot be computed outside; use them as they are");
    if (scheme->algorithm == KVE_HASH_SGLANG ||
        scheme->algorithm == KVE_HASH_STANDARD)
        most_ahead = 1;
    if (scheme->lookahead > most_ahead)
        return kve_fail(err, KVE_E_INVAL,
            "%u look-ahead tokens; this algorithm and release have at most %u",
            (unsigned)scheme->lookahead, (unsigned)most_ahead);
    if (scheme->root != NULL && !vllm)
        return kve_fail(err, KVE_E_INVAL,
            "a root was given; only vLLM's algorithms take one");
    return KVE_OK;
}

static kve_status
fetch_sha(kve_chain *chain, struct kve_error *err)
{
    if (!is_sha(chain->algorithm))
        return KVE_OK;
    chain->sha = EVP_MD_fetch(NULL, "SHA256", NULL);
    if (chain->sha == NULL)
        return kve_fail(err, KVE_E_UNSUPPORTED,
            "libcrypto offers no SHA-256; see its configuration (openssl.cnf)");
    chain->ctx = EVP_MD_CTX_new();
    return chain->ctx == NULL ? kve_fail_nomem(err, "a context of libcrypto")
                              : KVE_OK;
}

/* The root of a scheme of vLLM. */
static kve_status
vllm_root(kve_chain *chain, const struct kve_hash_scheme *scheme,
    struct kve_error *err)
{
    static const char fixed[] = "vllm-none-hash";
    struct kve_str seed = scheme->seed;

    if (scheme->root != NULL) {
        if (scheme->root_len != chain->digest_len)
            return kve_fail(err, KVE_E_INVAL, "a root of %zu bytes; %s has %zu",
                scheme->root_len, kve_hash_algo_str(chain->algorithm),
                chain->digest_len);
        memcpy(chain->root, scheme->root, scheme->root_len);
        chain->rooted = true;
        return KVE_OK;
    }
    if (seed.data == NULL) {
        if (!is_sha(chain->algorithm) || chain->release < FIXED_SEED)
            return KVE_OK; /* random */
        seed = (struct kve_str){ fixed, sizeof(fixed) - 1 };
    }
    if (seed.len >= KVE_PICKLE_FRAME / 2)
        return kve_fail(err, KVE_E_INVAL,
            "a seed of %zu bytes; accepted are up to %d", seed.len,
            KVE_PICKLE_FRAME / 2 - 1);
    if (!reserve(chain, seed.len + 32))
        return kve_fail_nomem(err, "a seed");
    chain->len =
        kve_serial_text(seed, is_pickled(chain->algorithm), chain->bytes);
    chain->rooted = true;
    return digest(chain, chain->root, err);
}

static kve_status
make_root(kve_chain *chain, const struct kve_hash_scheme *scheme,
    struct kve_error *err)
{
    if (is_vllm(chain->algorithm))
        return vllm_root(chain, scheme, err);
    chain->rooted = true;
    if (chain->algorithm == KVE_HASH_MOONCAKE)
        kve_put64(chain->root, XXH64(scheme->seed.data, scheme->seed.len, 0));
    else
        chain->begins = true;
    return KVE_OK;
}

static size_t
digest_len_of(uint32_t algorithm)
{
    static const uint8_t lens[] = {
#define X(name, number, text, len, help) [number] = (len),
        KVE_HASH_ALGO_MAP(X)
#undef X
    };

    return lens[algorithm];
}

static uint32_t
usual_form(uint32_t algorithm)
{
    return algorithm == KVE_HASH_SGLANG ? KVE_FORM_FIRST8_BE_SIGNED
                                        : KVE_FORM_LAST8_BE_UNSIGNED;
}

kve_status
kve_chain_create(const struct kve_hash_scheme *given, kve_chain **ret_chain,
    struct kve_error *err)
{
    struct kve_hash_scheme scheme;
    kve_chain *chain = NULL;
    kve_status status;

    if (given == NULL || ret_chain == NULL)
        return kve_fail(err, KVE_E_INVAL, "scheme or ret_chain is NULL");
    status = kve_opts_read(
        given, sizeof(scheme), &scheme, sizeof(scheme), "kve_hash_scheme", err);
    if (status == KVE_OK)
        status = check_scheme(&scheme, err);
    if (status != KVE_OK)
        return status;

    chain = kve_mem_zalloc(1, sizeof(*chain));
    if (chain == NULL)
        return kve_fail_nomem(err, "a chain");
    chain->algorithm = scheme.algorithm;
    chain->form = scheme.form == 0 ? usual_form(scheme.algorithm) : scheme.form;
    chain->release = scheme.release == 0 ? NEWEST : scheme.release;
    chain->block_size = scheme.block_size;
    chain->lookahead = scheme.lookahead;
    chain->digest_len = digest_len_of(scheme.algorithm);
    chain->at_root = true;

    status = fetch_sha(chain, err);
    if (status == KVE_OK)
        status = make_root(chain, &scheme, err);
    if (status != KVE_OK) {
        kve_chain_destroy(chain);
        return status;
    }
    chain->len = 0;
    *ret_chain = chain;
    return KVE_OK;
}

void
kve_chain_destroy(kve_chain *chain)
{
    if (chain == NULL)
        return;
    EVP_MD_CTX_free(chain->ctx);
    EVP_MD_free(chain->sha);
    kve_mem_free(chain->bytes);
    kve_mem_free(chain->items);
    kve_mem_free(chain);
}

/* ------------------------------------------------------------------ */
/* Where it stands. */

size_t
kve_chain_digest_len(const kve_chain *chain)
{
    return chain->digest_len;
}

const uint8_t *
kve_chain_digest(const kve_chain *chain)
{
    if (!chain->at_root)
        return chain->digest;
    return chain->rooted && !chain->begins ? chain->root : NULL;
}

kve_status
kve_chain_hash(const kve_chain *chain, struct kve_hash *ret_hash)
{
    struct kve_hash hash = { .bytes = NULL };

    if (chain->at_root)
        return KVE_E_NOT_FOUND;
    if (chain->form == KVE_FORM_BYTES) {
        hash.bytes = chain->digest;
        hash.len = chain->digest_len;
    } else {
        (void)kve_hash_integer(
            chain->digest, chain->digest_len, chain->form, &hash.integer, NULL);
    }
    *ret_hash = hash;
    return KVE_OK;
}

void
kve_chain_restart(kve_chain *chain)
{
    chain->at_root = true;
    chain->len = 0;
}

kve_status
kve_chain_seek(kve_chain *chain, const uint8_t *digest_bytes, size_t len,
    struct kve_error *err)
{
    if (digest_bytes == NULL || len != chain->digest_len)
        return kve_fail(err, KVE_E_INVAL,
            "a digest of %zu bytes; %s has %zu, and less is not enough to "
            "continue from: begin at the root",
            digest_bytes == NULL ? 0 : len, kve_hash_algo_str(chain->algorithm),
            chain->digest_len);
    memcpy(chain->digest, digest_bytes, len);
    chain->at_root = false;
    chain->len = 0;
    return KVE_OK;
}

struct kve_span
kve_chain_bytes(const kve_chain *chain)
{
    return (
        struct kve_span){ chain->len == 0 ? NULL : chain->bytes, chain->len };
}

/* ------------------------------------------------------------------ */
/* One block. */

static kve_status
check_extras(const struct kve_block_extras *extras, struct kve_error *err)
{
    for (size_t i = 0; extras != NULL && i < extras->n_items; i++) {
        const struct kve_extra_item *item = &extras->items[i];

        if (item->kind != KVE_EXTRA_IMAGE && item->kind != KVE_EXTRA_BYTES)
            return kve_fail_at(err, KVE_E_INVAL, i,
                "extra key %zu has kind %u; accepted are IMAGE and BYTES: "
                "adapter and salt have fields of their own",
                i, (unsigned)item->kind);
        if ((item->kind == KVE_EXTRA_IMAGE ? (const void *)item->text.data
                                           : item->bytes.data) == NULL)
            return kve_fail_at(err, KVE_E_INVAL, i,
                "extra key %zu has neither text nor bytes", i);
    }
    return KVE_OK;
}

/* vLLM: parent, tokens and extra keys, serialized. */
static kve_status
write_serial(kve_chain *chain, const uint32_t *tokens,
    const struct kve_block_extras *extras, struct kve_error *err)
{
    bool pickle = is_pickled(chain->algorithm);
    struct kve_serial_block block = {
        .parent = kve_chain_digest(chain),
        .parent_len = chain->digest_len,
        .tokens = tokens,
        .n_tokens = chain->block_size,
        .ahead = tokens + chain->block_size,
        .n_ahead = chain->lookahead,
        .extras = extras,
        .tagged = chain->release >= TAGS,
        .offsets = chain->release >= OFFSETS,
    };
    kve_status status = check_extras(extras, err);

    if (status != KVE_OK)
        return status;
    if (!reserve(chain, kve_serial_room(&block)))
        return kve_fail_nomem(err, "a serialized block");
    chain->len = kve_serial_write(&block, pickle, chain->bytes);
    if (pickle && chain->len >= KVE_PICKLE_FRAME) {
        kve_status limit = kve_fail(err, KVE_E_LIMIT,
            "a pickled block of %zu bytes; accepted are up to %d: engines "
            "have smaller blocks, or use a _cbor algorithm",
            chain->len, KVE_PICKLE_FRAME - 1);

        chain->len = 0;
        return limit;
    }
    return KVE_OK;
}

/* SGLang: the digest before, and each token, or each with the next one. */
static kve_status
write_page(kve_chain *chain, const uint32_t *tokens, struct kve_error *err)
{
    size_t each = 1 + chain->lookahead;
    size_t size = (size_t)chain->block_size * each * 4;
    uint8_t *w;

    if (!reserve(chain, size + chain->digest_len))
        return kve_fail_nomem(err, "a page");
    w = chain->bytes;
    if (!chain->at_root) {
        memcpy(w, chain->digest, chain->digest_len);
        w += chain->digest_len;
    }
    if (each == 1)
        kve_plain_bytes(tokens, chain->block_size, w);
    for (size_t i = 0; each == 2 && i < chain->block_size; i++)
        kve_plain_bytes(tokens + i, 2, w + 8 * i);
    chain->len = (size_t)(w - chain->bytes) + size;
    return KVE_OK;
}

/* Mooncake: the hash before and the tokens. */
static kve_status
write_mooncake(kve_chain *chain, const uint32_t *tokens, struct kve_error *err)
{
    size_t size = (size_t)chain->block_size * 4;

    if (!reserve(chain, 8 + size))
        return kve_fail_nomem(err, "a block");
    kve_put_le64(chain->bytes, kve_get64(kve_chain_digest(chain)));
    kve_plain_bytes(tokens, chain->block_size, chain->bytes + 8);
    chain->len = 8 + size;
    return KVE_OK;
}

/* The standard: the block itself, or the hash before and the block's. */
static kve_status
write_standard(kve_chain *chain, const uint32_t *tokens, struct kve_error *err)
{
    size_t size = (size_t)chain->block_size + chain->lookahead;

    if (!reserve(chain, 4 * size + 16))
        return kve_fail_nomem(err, "a block");
    kve_plain_bytes(tokens, size, chain->bytes);
    chain->len = 4 * size;
    if (chain->at_root)
        return KVE_OK;

    uint64_t own = kve_plain_hash(chain->bytes, chain->len);
    kve_put_le64(chain->bytes, kve_get64(chain->digest));
    kve_put_le64(chain->bytes + 8, own);
    chain->len = 16;
    return KVE_OK;
}

static kve_status
write_block(kve_chain *chain, const uint32_t *tokens,
    const struct kve_block_extras *extras, struct kve_error *err)
{
    switch (chain->algorithm) {
    case KVE_HASH_SGLANG:
        return write_page(chain, tokens, err);
    case KVE_HASH_MOONCAKE:
        return write_mooncake(chain, tokens, err);
    case KVE_HASH_STANDARD:
        return write_standard(chain, tokens, err);
    default:
        return write_serial(chain, tokens, extras, err);
    }
}

kve_status
kve_chain_next(kve_chain *chain, const uint32_t *tokens, size_t n_tokens,
    const struct kve_block_extras *extras, struct kve_error *err)
{
    size_t want = (size_t)chain->block_size + chain->lookahead;
    uint8_t out[KVE_DIGEST_MAX];
    kve_status status;

    chain->len = 0;
    if (tokens == NULL || n_tokens != want)
        return kve_fail(err, KVE_E_INVAL,
            "%zu tokens; a block is hashed from %zu", n_tokens, want);
    if (chain->at_root && !chain->rooted)
        return kve_fail(err, KVE_E_UNSUPPORTED,
            "the root of this chain is random: no seed is set, and %s of this "
            "release takes one of its own then; set PYTHONHASHSEED",
            kve_hash_algo_str(chain->algorithm));

    status = write_block(chain, tokens, extras, err);
    if (status == KVE_OK)
        status = digest(chain, out, err);
    if (status != KVE_OK)
        return status;
    memcpy(chain->digest, out, chain->digest_len);
    chain->at_root = false;
    return KVE_OK;
}

/* ------------------------------------------------------------------ */
/* A prompt. */

void
kve_chain_input_init(struct kve_chain_input *input)
{
    *input = (struct kve_chain_input)KVE_CHAIN_INPUT_INIT;
}

void
kve_hash_scheme_init(struct kve_hash_scheme *scheme)
{
    *scheme = (struct kve_hash_scheme)KVE_HASH_SCHEME_INIT;
}

/* Whether an extra belongs to block i, and what it is there. */
static bool
touches(const kve_chain *chain, const struct kve_prompt_extra *extra, size_t i,
    struct kve_extra_item *ret_item)
{
    size_t start = i * chain->block_size;
    size_t end = start + chain->block_size + chain->lookahead;

    *ret_item = (struct kve_extra_item){
        .kind = extra->kind, .text = extra->text, .bytes = extra->bytes
    };
    if (extra->kind != KVE_EXTRA_IMAGE)
        return extra->block == i;
    ret_item->offset = (int64_t)(extra->start - start);
    return extra->start < end &&
        (extra->start >= start || extra->n_tokens > start - extra->start);
}

static kve_status
gather(kve_chain *chain, const struct kve_chain_input *input, size_t i,
    struct kve_block_extras *ret_extras, struct kve_error *err)
{
    size_t n = 0;

    if (input->n_extras > chain->items_cap) {
        struct kve_extra_item *items =
            kve_mem_array(chain->items, input->n_extras, sizeof(*items));

        if (items == NULL)
            return kve_fail_nomem(err, "extra keys");
        chain->items = items;
        chain->items_cap = input->n_extras;
    }
    for (size_t k = 0; k < input->n_extras; k++)
        if (touches(chain, &input->extras[k], i, &chain->items[n]))
            n++;
    *ret_extras = (struct kve_block_extras){ .lora_name = input->lora_name,
        .lora_path = input->lora_path,
        .items = chain->items,
        .n_items = n };
    if (i == 0)
        ret_extras->cache_salt = input->cache_salt;
    return KVE_OK;
}

kve_status
kve_chain_prompt(kve_chain *chain, const struct kve_chain_input *given,
    uint8_t *ret_digests, size_t cap, size_t *ret_n, struct kve_error *err)
{
    struct kve_chain_input input;
    struct kve_block_extras extras;
    size_t bs = chain->block_size;
    size_t n;
    kve_status status;

    if (given == NULL || ret_n == NULL || (ret_digests == NULL && cap > 0))
        return kve_fail(
            err, KVE_E_INVAL, "input, ret_digests or ret_n is NULL");
    status = kve_opts_read(
        given, sizeof(input), &input, sizeof(input), "kve_chain_input", err);
    if (status != KVE_OK)
        return status;
    if (input.tokens == NULL && input.n_tokens > 0)
        return kve_fail(err, KVE_E_INVAL, "tokens is NULL");

    kve_chain_restart(chain);
    n = input.n_tokens < chain->lookahead
        ? 0
        : (input.n_tokens - chain->lookahead) / bs;
    for (size_t i = 0; i < n; i++) {
        status = gather(chain, &input, i, &extras, err);
        if (status == KVE_OK)
            status = kve_chain_next(chain, input.tokens + i * bs,
                bs + chain->lookahead, &extras, err);
        if (status != KVE_OK)
            return status;
        if (i < cap)
            memcpy(ret_digests + i * chain->digest_len, chain->digest,
                chain->digest_len);
    }
    *ret_n = n;
    return KVE_OK;
}
