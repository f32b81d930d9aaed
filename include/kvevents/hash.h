/*
 * hash.h - hashes of blocks: our content hashes, and those of others.
 *
 * Content hash: XXH3-64 with seed 1337 over a block's tokens as 32-bit
 * little-endian numbers. It does not depend on what stands before the block,
 * so it can be computed from a block alone; an index (index.h) compares these.
 *
 * Engines name blocks by hashes of their own, in a chain: what enters one is
 * the block's tokens, what else makes it different (adapter, images, salt),
 * and the hash of the block before it. Who knows an engine's settings can
 * compute the same names from tokens. A setting that differs gives other
 * names without any error, which is why all of them are named here:
 *
 *     algorithm   what is written down, and what digests it
 *     seed        the environment variable PYTHONHASHSEED of vLLM
 *     release     rules that changed between releases of vLLM
 *     block size  tokens a block
 *     form        digest as bytes, or 8 of them as an integer
 *
 *     root --> block 0 --> block 1 --> ...     kve_chain_next(): one block
 *       |         |           |                kve_chain_prompt(): all of them
 *     seed     tokens,     tokens,
 *              extras      extras
 *
 * Token ids are users' text. No error text here holds one.
 */
#ifndef KVEVENTS_HASH_H
#define KVEVENTS_HASH_H

#include <kvevents/codec.h>
#include <kvevents/event.h>
#include <kvevents/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Content hashes of a prompt's whole blocks; a rest shorter than a block has
 * none. At most cap are written; returns how many blocks there are (0 with
 * block_size 0). Any thread.
 */
KVE_API size_t kve_content_hash(const uint32_t *tokens, size_t n_tokens,
    uint32_t block_size, uint64_t *ret_hashes, size_t cap);

/* ------------------------------------------------------------------ */

/* An image that touches a block of a prompt, as Dynamo knows it. */
struct kve_dynamo_image {
    size_t block; /* counted from 0 */
    uint64_t id;  /* see kve_dynamo_image_id() */
};

/* A prompt as Dynamo hashes it. */
struct kve_dynamo_prompt {
    size_t struct_size;
    const uint32_t *tokens;
    size_t n_tokens;
    uint32_t block_size;
    uint32_t eagle;           /* 1: a block covers the token behind it, too */
    struct kve_str lora_name; /* adapter; absent or "": none */
    struct kve_str salt;      /* without "dynamo-cache-salt:", the prefix it
                                 has in an engine; absent or "": none */
    const struct kve_dynamo_image *images; /* in order of block */
    size_t n_images;                       /* at most 64 a block are sorted */
};

#define KVE_DYNAMO_PROMPT_INIT                                        \
    {                                                                 \
        sizeof(struct kve_dynamo_prompt), NULL, 0, 0, 0, { NULL, 0 }, \
            { NULL, 0 }, NULL, 0                                      \
    }

/* The same as KVE_DYNAMO_PROMPT_INIT for languages without macros. */
KVE_API void kve_dynamo_prompt_init(struct kve_dynamo_prompt *prompt);

/*
 * Dynamo's hashes of a prompt's whole blocks (LocalBlockHash): content hashes
 * whose seed depends on adapter and salt, with the ids of images behind the
 * tokens in ascending order. At most cap are written; *ret_n is how many
 * blocks there are. Any thread.
 *
 * Returns KVE_OK or KVE_E_INVAL.
 */
KVE_API kve_status kve_dynamo_hash(const struct kve_dynamo_prompt *prompt,
    uint64_t *ret_hashes, size_t cap, size_t *ret_n, struct kve_error *err);

/*
 * The number Dynamo gives to an image: the first 16 of 64 hex digits, or
 * XXH3-64 of an identifier of any other form. Any thread.
 */
KVE_API uint64_t kve_dynamo_image_id(struct kve_str identifier);

/*
 * The rolling hash over block hashes, which names a block by all that stands
 * before it: the first is the block's own, each other XXH3-64 with seed 1337
 * of the one before it and its own, 8 little-endian bytes each. Dynamo's
 * sequence hash, and the standard of pool events. sequence may be hashes. Any
 * thread.
 */
KVE_API void kve_sequence_hash(
    const uint64_t *hashes, size_t n, uint64_t *ret_sequence);

/* ------------------------------------------------------------------ */

/* Chains of hashes. Numbers are stable. */
#define KVE_HASH_ALGO_MAP(X)                                                   \
    X(SHA256, 1, "sha256", 32, "vLLM: SHA-256 of pickled blocks; its default") \
    X(SHA256_CBOR, 2, "sha256_cbor", 32, "vLLM: SHA-256 of CBOR")              \
    X(XXHASH, 3, "xxhash", 16, "vLLM: XXH3-128 of pickled blocks")             \
    X(XXHASH_CBOR, 4, "xxhash_cbor", 16, "vLLM: XXH3-128 of CBOR")             \
    X(SGLANG, 5, "sglang", 32,                                                 \
        "SGLang: SHA-256 of the digest before and the tokens of a page")       \
    X(MOONCAKE, 6, "mooncake", 8,                                              \
        "Mooncake's indexer: XXH64 of the hash before and the tokens")         \
    X(STANDARD, 7, "standard", 8,                                              \
        "pool events and Dynamo: rolling XXH3-64 over content hashes")

enum kve_hash_algo {
#define X(name, number, text, len, help) KVE_HASH_##name = number,
    KVE_HASH_ALGO_MAP(X)
#undef X
};

/* How a digest is written in events. Numbers are stable. */
#define KVE_HASH_FORM_MAP(X)                             \
    X(BYTES, 1, "bytes", "the whole digest")             \
    X(LAST8_BE_UNSIGNED, 2, "last8_be_unsigned",         \
        "its last 8 bytes, big-endian: vLLM's integers") \
    X(FIRST8_BE_SIGNED, 3, "first8_be_signed",           \
        "its first 8 bytes, big-endian, signed: SGLang's integers")

enum kve_hash_form {
#define X(name, number, text, help) KVE_FORM_##name = number,
    KVE_HASH_FORM_MAP(X)
#undef X
};

/* "sha256" for KVE_HASH_SHA256; "?" for unknown numbers. Any thread. */
KVE_API const char *kve_hash_algo_str(unsigned algorithm);

/* One sentence for people about an algorithm. Any thread. */
KVE_API const char *kve_hash_algo_help(unsigned algorithm);

/* KVE_HASH_SHA256 for "sha256"; 0 for unknown names. Any thread. */
KVE_API unsigned kve_hash_algo_find(const char *name);

/* "bytes" for KVE_FORM_BYTES; "?" for unknown numbers. Any thread. */
KVE_API const char *kve_hash_form_str(unsigned form);

/* KVE_FORM_BYTES for "bytes"; 0 for unknown names. Any thread. */
KVE_API unsigned kve_hash_form_find(const char *name);

/*
 * A digest in one of the integer forms, as 64 bits (a signed one's pattern).
 * Returns KVE_E_INVAL for a digest under 8 bytes and a form that is no
 * integer. Any thread.
 */
KVE_API kve_status kve_hash_integer(const uint8_t *digest, size_t len,
    unsigned form, uint64_t *ret_integer, struct kve_error *err);

/* A release of vLLM as one number: 0.32.0 is KVE_RELEASE(0, 32, 0). */
#define KVE_RELEASE(major, minor, patch) \
    ((major)*1000000u + (minor)*1000u + (patch))

/* Longest digest, in bytes. */
#define KVE_DIGEST_MAX 32

/*
 * An engine's settings. Zero means the default.
 */
struct kve_hash_scheme {
    size_t struct_size;
    uint32_t algorithm;  /* enum kve_hash_algo; must be given */
    uint32_t form;       /* enum kve_hash_form; default: the integers of its
                            engine (SGLang's signed, all others LAST8) */
    uint32_t block_size; /* tokens a block; must be given */
    /* Of vLLM, KVE_RELEASE(); default: the newest that is known, 0.33.0; at
     * least 0.11.2. What changed: before 0.29 an unset seed is random whatever
     * the algorithm; before 0.31 extra keys carry no tags and no path; before
     * 0.20 images carry no offset. */
    uint32_t release;
    /* Tokens behind a block that enter its hash, which therefore needs them:
     * vLLM from 0.33 with a drafter that looks ahead, at most 64; SGLANG: 1,
     * each token goes in with the next one; STANDARD: 1, Eagle's windows. */
    uint32_t lookahead;
    /* PYTHONHASHSEED as text; data NULL: unset. MOONCAKE: the additional
     * salt. The others have none. */
    struct kve_str seed;
    /* The digest before the first block, where it is known from elsewhere;
     * NULL: by seed and release. vLLM only. */
    const uint8_t *root;
    size_t root_len;
};

#define KVE_HASH_SCHEME_INIT                                                \
    {                                                                       \
        sizeof(struct kve_hash_scheme), 0, 0, 0, 0, 0, { NULL, 0 }, NULL, 0 \
    }

/* The same as KVE_HASH_SCHEME_INIT for languages without macros. */
KVE_API void kve_hash_scheme_init(struct kve_hash_scheme *scheme);

/*
 * What enters one block's hash beside its tokens, in vLLM; SGLANG, MOONCAKE
 * and STANDARD hash nothing else.
 */
struct kve_block_extras {
    struct kve_str lora_name;  /* absent or "": none */
    struct kve_str lora_path;  /* from 0.31 on; events do not carry it */
    struct kve_str cache_salt; /* give it for the first block of a chain only */
    /* IMAGE (text and offset), then BYTES (digests of prompt embeddings;
     * before 0.18 the tensor's bytes), as kve_extra_next() reads them; other
     * kinds are refused. Their block does not count. */
    const struct kve_extra_item *items;
    size_t n_items;
};

/* An image of a prompt, or what its embeddings gave for one block. */
struct kve_prompt_extra {
    uint32_t kind;         /* KVE_EXTRA_IMAGE or KVE_EXTRA_BYTES */
    size_t start;          /* IMAGE: first token of its placeholders */
    size_t n_tokens;       /* IMAGE: how many */
    size_t block;          /* BYTES: the block it belongs to */
    struct kve_str text;   /* IMAGE: identifier */
    struct kve_span bytes; /* BYTES: digest of prompt embeddings */
};

/* A prompt as vLLM hashes it. */
struct kve_chain_input {
    size_t struct_size;
    const uint32_t *tokens;
    size_t n_tokens;
    struct kve_str lora_name;
    struct kve_str lora_path;
    struct kve_str cache_salt;
    const struct kve_prompt_extra *extras; /* in the engine's order */
    size_t n_extras;
};

#define KVE_CHAIN_INPUT_INIT                                               \
    {                                                                      \
        sizeof(struct kve_chain_input), NULL, 0, { NULL, 0 }, { NULL, 0 }, \
            { NULL, 0 }, NULL, 0                                           \
    }

/* The same as KVE_CHAIN_INPUT_INIT for languages without macros. */
KVE_API void kve_chain_input_init(struct kve_chain_input *input);

/* Hashes one chain after another, of one scheme. One thread at a time. */
typedef struct kve_chain kve_chain;

/*
 * Create a chain that stands at its root. The caller owns *ret_chain.
 *
 * A root that nobody can know (vLLM: no seed, and a release or an algorithm
 * that takes random bytes then) is no error yet: kve_chain_next() fails until
 * kve_chain_seek() names a block to continue from.
 *
 * Returns KVE_OK, KVE_E_INVAL, KVE_E_UNSUPPORTED (libcrypto has no SHA-256, a
 * release too old) or KVE_E_NOMEM.
 */
KVE_API kve_status kve_chain_create(const struct kve_hash_scheme *scheme,
    kve_chain **ret_chain, struct kve_error *err);

/* NULL is allowed and does nothing. */
KVE_API void kve_chain_destroy(kve_chain *chain);

/* Bytes a digest has: 32, 16 or 8. */
KVE_API size_t kve_chain_digest_len(const kve_chain *chain);

/*
 * Where the chain stands: the digest of the last block, or the root. Borrowed
 * until the next call. NULL at a root that is not known or is nothing
 * (SGLANG, STANDARD).
 */
KVE_API const uint8_t *kve_chain_digest(const kve_chain *chain);

/* The same as it stands in events; not at a root. Bytes are borrowed until
 * the next call. Returns KVE_OK or KVE_E_NOT_FOUND. */
KVE_API kve_status kve_chain_hash(
    const kve_chain *chain, struct kve_hash *ret_hash);

/* Back to the root. */
KVE_API void kve_chain_restart(kve_chain *chain);

/*
 * Continue behind the block with this digest. Returns KVE_OK, or KVE_E_INVAL
 * when it is not as long as the algorithm's: an integer of 8 bytes is not
 * enough to continue from.
 */
KVE_API kve_status kve_chain_seek(
    kve_chain *chain, const uint8_t *digest, size_t len, struct kve_error *err);

/*
 * Hash the next block: block_size tokens, and lookahead more behind them.
 * extras may be NULL. On failure the chain stays where it is.
 *
 * Returns KVE_OK, KVE_E_INVAL, KVE_E_UNSUPPORTED (the root is not known),
 * KVE_E_LIMIT (a pickled block of 64 KiB or more) or KVE_E_NOMEM.
 */
KVE_API kve_status kve_chain_next(kve_chain *chain, const uint32_t *tokens,
    size_t n_tokens, const struct kve_block_extras *extras,
    struct kve_error *err);

/* The bytes that the last block's hash digested. Borrowed until the next
 * call; empty where there was none. */
KVE_API struct kve_span kve_chain_bytes(const kve_chain *chain);

/*
 * Hash all whole blocks of a prompt from the root on, and stand behind the
 * last one. Digests, of kve_chain_digest_len() each, are written one after
 * another, at most cap of them; ret_digests may be NULL with cap 0. *ret_n is
 * how many blocks there are.
 *
 * Returns as kve_chain_next().
 */
KVE_API kve_status kve_chain_prompt(kve_chain *chain,
    const struct kve_chain_input *input, uint8_t *ret_digests, size_t cap,
    size_t *ret_n, struct kve_error *err);

#ifdef __cplusplus
}
#endif

#endif
