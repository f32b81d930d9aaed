/*
 * hash.c - hashes of prompts, and names; see kvevents/hash.h.
 */
#include <kvevents/hash.h>

#include <string.h>

#include "base/bytes.h"
#include "base/status.h"
#include "hash/dynamo_impl.h"
#include "hash/plain.h"

size_t
kve_content_hash(const uint32_t *tokens, size_t n_tokens, uint32_t block_size,
    uint64_t *ret_hashes, size_t cap)
{
    size_t n = block_size == 0 ? 0 : n_tokens / block_size;

    if (n > 0 && cap > 0)
        kve_content_blocks(tokens, block_size, n < cap ? n : cap, ret_hashes);
    return n;
}

/* ------------------------------------------------------------------ */

void
kve_dynamo_prompt_init(struct kve_dynamo_prompt *prompt)
{
    *prompt = (struct kve_dynamo_prompt)KVE_DYNAMO_PROMPT_INIT;
}

static kve_status
check_prompt(const struct kve_dynamo_prompt *prompt, struct kve_error *err)
{
    if (prompt->tokens == NULL && prompt->n_tokens > 0)
        return kve_fail(err, KVE_E_INVAL, "tokens is NULL");
    if (prompt->block_size == UINT32_MAX)
        return kve_fail(err, KVE_E_INVAL,
            "block size %u; accepted are up to %u tokens", UINT32_MAX,
            UINT32_MAX - 1);
    if (prompt->eagle > 1)
        return kve_fail(err, KVE_E_INVAL, "eagle is %u; accepted are 0 and 1",
            (unsigned)prompt->eagle);
    for (size_t i = 1; i < prompt->n_images; i++)
        if (prompt->images[i].block < prompt->images[i - 1].block)
            return kve_fail_at(err, KVE_E_INVAL, i,
                "image %zu: its block is before that of the image before", i);
    return KVE_OK;
}

/* Blocks that have images, over again. */
KVE_WIDE_LOCALS static void
hash_images(const struct kve_dynamo_prompt *prompt, uint64_t seed,
    uint64_t *hashes, size_t n)
{
    struct kve_dynamo_block block;
    size_t i = 0;

    while (i < prompt->n_images && prompt->images[i].block < n) {
        size_t at = prompt->images[i].block;

        kve_dynamo_begin(&block, prompt->tokens + at * prompt->block_size,
            (size_t)prompt->block_size + prompt->eagle, seed);
        for (; i < prompt->n_images && prompt->images[i].block == at; i++)
            kve_dynamo_add_image(&block, prompt->images[i].id);
        hashes[at] = kve_dynamo_end(&block);
    }
}

kve_status
kve_dynamo_hash(const struct kve_dynamo_prompt *given, uint64_t *ret_hashes,
    size_t cap, size_t *ret_n, struct kve_error *err)
{
    struct kve_dynamo_prompt prompt;
    uint64_t seed;
    size_t n, some;
    kve_status status;

    if (given == NULL || ret_n == NULL || (ret_hashes == NULL && cap > 0))
        return kve_fail(
            err, KVE_E_INVAL, "prompt, ret_hashes or ret_n is NULL");
    status = kve_opts_read(given, sizeof(prompt), &prompt, sizeof(prompt),
        "kve_dynamo_prompt", err);
    if (status == KVE_OK)
        status = check_prompt(&prompt, err);
    if (status != KVE_OK)
        return status;

    n = prompt.block_size == 0 || prompt.n_tokens < prompt.eagle
        ? 0
        : (prompt.n_tokens - prompt.eagle) / prompt.block_size;
    some = n < cap ? n : cap;
    seed = kve_dynamo_seed_of(prompt.lora_name, prompt.salt);
    for (size_t i = 0; i < some && prompt.eagle == 1; i++)
        kve_plain_seeded(prompt.tokens + i * prompt.block_size,
            prompt.block_size + 1, 1, seed, &ret_hashes[i]);
    if (prompt.eagle == 0)
        kve_plain_seeded(
            prompt.tokens, prompt.block_size, some, seed, ret_hashes);
    hash_images(&prompt, seed, ret_hashes, some);
    *ret_n = n;
    return KVE_OK;
}

void
kve_sequence_hash(const uint64_t *hashes, size_t n, uint64_t *ret_sequence)
{
    uint8_t bytes[16];

    for (size_t i = 0; i < n; i++) {
        uint64_t own = hashes[i];

        if (i > 0) {
            kve_put_le64(bytes, ret_sequence[i - 1]);
            kve_put_le64(bytes + 8, own);
            own = kve_plain_hash(bytes, sizeof(bytes));
        }
        ret_sequence[i] = own;
    }
}

/* ------------------------------------------------------------------ */

const char *
kve_hash_algo_str(unsigned algorithm)
{
    switch (algorithm) {
#define X(name, number, text, len, help) \
    case number:                         \
        return text;
        KVE_HASH_ALGO_MAP(X)
#undef X
    default:
        return "?";
    }
}

const char *
kve_hash_algo_help(unsigned algorithm)
{
    switch (algorithm) {
#define X(name, number, text, len, help) \
    case number:                         \
        return help;
        KVE_HASH_ALGO_MAP(X)
#undef X
    default:
        return "?";
    }
}

unsigned
kve_hash_algo_find(const char *name)
{
#define X(id, number, text, len, help) \
    if (strcmp(name, text) == 0)       \
        return number;
    KVE_HASH_ALGO_MAP(X)
#undef X
    return 0;
}

const char *
kve_hash_form_str(unsigned form)
{
    switch (form) {
#define X(name, number, text, help) \
    case number:                    \
        return text;
        KVE_HASH_FORM_MAP(X)
#undef X
    default:
        return "?";
    }
}

unsigned
kve_hash_form_find(const char *name)
{
#define X(id, number, text, help) \
    if (strcmp(name, text) == 0)  \
        return number;
    KVE_HASH_FORM_MAP(X)
#undef X
    return 0;
}

kve_status
kve_hash_integer(const uint8_t *digest, size_t len, unsigned form,
    uint64_t *ret_integer, struct kve_error *err)
{
    if (digest == NULL || len < 8)
        return kve_fail(err, KVE_E_INVAL,
            "a digest of %zu bytes; an integer is made of 8 or more",
            digest == NULL ? 0 : len);
    if (form == KVE_FORM_LAST8_BE_UNSIGNED)
        *ret_integer = kve_get64(digest + len - 8);
    else if (form == KVE_FORM_FIRST8_BE_SIGNED)
        *ret_integer = kve_get64(digest);
    else
        return kve_fail(err, KVE_E_INVAL,
            "form %s is no integer; accepted are last8_be_unsigned and "
            "first8_be_signed",
            kve_hash_form_str(form));
    return KVE_OK;
}
