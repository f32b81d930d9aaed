/*
 * test_recordings.c - every hash that an engine published is computed again.
 *
 * tests/wire/fixtures/ holds what a real engine sent, tests/hash/ what it had
 * been asked for: prompts, answers, adapters, salts, images, and its
 * settings. From these alone each chain is computed, and each published hash
 * must be among the results, with the tokens and the parent that the engine
 * said beside it.
 */
#include "data.h"

#include <kvevents/codec.h>
#include <kvevents/hash.h>

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

/* A block that was computed. */
struct known {
    uint8_t digest[KVE_DIGEST_MAX];
    uint64_t integer;
    struct known *parent; /* NULL: the root */
    uint32_t tokens[32];
};

/* One recording. */
struct recording {
    json_t *meta;
    kve_chain *chain;
    size_t block_size;
    size_t digest_len;
    bool integers;
    struct known *known[4096];
    size_t n_known;
    size_t n_published;
};

static const char *const names[] = {
    "bs16-sha256_cbor-bytes-seed0",
    "dp2-async-sha256_cbor-bytes-seed0",
    "dup-sha256_cbor-bytes-seed0",
    "embeds-sha256_cbor-bytes-seed0",
    "hybrid-gemma3-sha256_cbor-bytes-seed0",
    "lora-sha256_cbor-bytes-seed0",
    "mm-llava-sha256_cbor-bytes-seed0",
    "mp-chunked-sha256_cbor-bytes-seed0",
    "report-full-sha256-bytes-seed0",
    "sha256-bytes-seed0",
    "sha256-int-defaults",
    "sha256_cbor-bytes-noseed",
    "xxhash_cbor-bytes-noseed",
    "xxhash_cbor-bytes-seed7",
    "xxhash_cbor-int-seed7",
};

/* ------------------------------------------------------------------ */

/* What a request gave beside tokens. */
struct request {
    struct kve_chain_input input;
    struct kve_prompt_extra extras[64];
    uint8_t digests[64][KVE_DIGEST_MAX];
    uint32_t tokens[4096];
};

static void
read_images(const json_t *from, struct request *request)
{
    const json_t *image;
    size_t i;

    json_array_foreach(json_object_get(from, "mm"), i, image)
        request->extras[request->input.n_extras++] = (struct kve_prompt_extra){
        .kind = KVE_EXTRA_IMAGE,
        .start = (size_t)json_integer_value(json_object_get(image, "offset")),
        .n_tokens =
            (size_t)json_integer_value(json_object_get(image, "length")),
        .text = str(json_string_value(json_object_get(image, "identifier")))
    };
}

/* Their tokens are zeros, and each block has a digest. */
static void
read_embeds(const json_t *from, struct request *request, size_t block_size)
{
    const json_t *embeds = json_object_get(from, "prompt_embeds");
    const char *start;
    json_t *digest;

    if (!json_is_object(embeds))
        return;
    request->input.n_tokens = (size_t)json_integer_value(
        json_array_get(json_object_get(embeds, "shape"), 0));
    memset(request->tokens, 0, 4 * request->input.n_tokens);
    json_object_foreach(
        json_object_get(embeds, "block_sha256_by_start"), start, digest)
    {
        size_t i = request->input.n_extras++;

        request->extras[i] = (struct kve_prompt_extra){
            .kind = KVE_EXTRA_BYTES,
            .block = strtoul(start, NULL, 10) / block_size,
            .bytes = { request->digests[i],
                unhex(json_string_value(digest), request->digests[i]) },
        };
    }
}

static void
read_request(const json_t *from, struct request *request, size_t block_size)
{
    const json_t *lora = json_object_get(from, "lora");
    struct kve_chain_input *input = &request->input;

    memset(request, 0, sizeof(*request));
    kve_chain_input_init(input);
    input->n_tokens = data_tokens(
        json_object_get(from, "prompt_token_ids"), request->tokens, 0);
    read_embeds(from, request, block_size);
    input->n_tokens = data_tokens(json_object_get(from, "output_token_ids"),
        request->tokens, input->n_tokens);
    read_images(from, request);
    input->tokens = request->tokens;
    input->extras = request->extras;
    input->lora_name = str(json_string_value(json_object_get(lora, "name")));
    input->lora_path = str(json_string_value(json_object_get(lora, "path")));
    input->cache_salt =
        str(json_string_value(json_object_get(from, "cache_salt")));
}

static void
learn_request(struct recording *rec, const json_t *from)
{
    static struct request request;
    static uint8_t digests[256 * KVE_DIGEST_MAX];
    struct known *parent = NULL;
    struct kve_error err;
    size_t n;

    read_request(from, &request, rec->block_size);
    if (kve_chain_prompt(rec->chain, &request.input, digests, 256, &n, &err) !=
        KVE_OK)
        fail_msg("%s", err.detail);
    assert_true(n <= 256);
    for (size_t i = 0; i < n; i++) {
        struct known *known = calloc(1, sizeof(*known));

        assert_non_null(known);
        assert_true(rec->n_known < N_OF(rec->known));
        memcpy(known->digest, digests + i * rec->digest_len, rec->digest_len);
        assert_int_equal(kve_hash_integer(known->digest, rec->digest_len,
                             KVE_FORM_LAST8_BE_UNSIGNED, &known->integer, NULL),
            KVE_OK);
        known->parent = parent;
        memcpy(known->tokens, request.tokens + i * rec->block_size,
            4 * rec->block_size);
        rec->known[rec->n_known++] = known;
        parent = known;
    }
}

/* ------------------------------------------------------------------ */

static bool
names_block(const struct recording *rec, const struct kve_hash *hash,
    const struct known *known)
{
    if (rec->integers)
        return hash->bytes == NULL && hash->integer == known->integer;
    return hash->bytes != NULL && hash->len == rec->digest_len &&
        memcmp(hash->bytes, known->digest, hash->len) == 0;
}

static const struct known *
find(const struct recording *rec, const struct kve_hash *hash)
{
    for (size_t i = 0; i < rec->n_known; i++)
        if (names_block(rec, hash, rec->known[i]))
            return rec->known[i];
    return NULL;
}

/* Two chains may share a hash; both have the same tokens and parent then. */
static void
check_store(struct recording *rec, const struct kve_event *event)
{
    bool complete = event->n_tokens == event->n_hashes * event->block_size;

    for (size_t i = 0; i < event->n_hashes; i++) {
        const struct known *known = find(rec, &event->hashes[i]);
        const struct kve_hash *parent = i > 0 ? &event->hashes[i - 1]
            : event->has_parent               ? &event->parent
                                              : NULL;

        rec->n_published++;
        if (known == NULL)
            fail_msg("a published hash was not computed");
        if (!complete)
            continue;
        assert_memory_equal(known->tokens,
            event->tokens + i * event->block_size, 4 * event->block_size);
        if (parent == NULL)
            assert_null(known->parent);
        else
            assert_true(known->parent != NULL &&
                names_block(rec, parent, known->parent));
    }
}

static void
check_message(char *line, void *ctx)
{
    static uint8_t payload[1 << 20];
    static const char key[] = "\"payload\": \"";
    struct recording *rec = ctx;
    const struct kve_event *event;
    char *from = strstr(line, key), *to;
    kve_batch *batch = NULL;
    size_t len;

    assert_non_null(from);
    from += strlen(key);
    to = strchr(from, '"');
    assert_non_null(to);
    *to = '\0';
    assert_true(strlen(from) / 2 < sizeof(payload));
    len = unhex(from, payload);

    assert_int_equal(kve_batch_create(NULL, &batch, NULL), KVE_OK);
    assert_int_equal(kve_batch_decode(batch, payload, len, NULL), KVE_OK);
    while ((event = kve_batch_next(batch)) != NULL)
        if (event->type == KVE_EVENT_STORED)
            check_store(rec, event);
    kve_batch_destroy(batch);
}

/* ------------------------------------------------------------------ */

/* Without a seed the roots of two algorithms are random; what the engine had
 * stands beside the recording. */
static void
open_chain(struct recording *rec)
{
    struct kve_hash_scheme scheme = KVE_HASH_SCHEME_INIT;
    const json_t *env = json_object_get(rec->meta, "env");
    const char *ints = json_string_value(
        json_object_get(env, "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"));
    const char *none =
        json_string_value(json_object_get(rec->meta, "none_hash"));
    struct kve_error err;
    uint8_t root[KVE_DIGEST_MAX];

    scheme.algorithm = kve_hash_algo_find(
        json_string_value(json_object_get(rec->meta, "algo")));
    scheme.block_size =
        (uint32_t)json_integer_value(json_object_get(rec->meta, "block_size"));
    scheme.release = KVE_RELEASE(0, 32, 0);
    scheme.seed =
        str(json_string_value(json_object_get(env, "PYTHONHASHSEED")));
    if (scheme.seed.data == NULL && scheme.algorithm >= KVE_HASH_XXHASH) {
        scheme.root = root;
        scheme.root_len = unhex(none, root);
    }
    if (kve_chain_create(&scheme, &rec->chain, &err) != KVE_OK)
        fail_msg("%s", err.detail);

    rec->block_size = scheme.block_size;
    rec->digest_len = kve_chain_digest_len(rec->chain);
    rec->integers = ints == NULL || strcmp(ints, "1") == 0;
    assert_true(rec->block_size <= 32);
    if (none != NULL)
        assert_string_equal(
            hex(kve_chain_digest(rec->chain), rec->digest_len), none);
}

static size_t
check_recording(const char *name)
{
    static struct recording rec;
    char *meta = data_path("hash/%s.meta.json", name);
    char *live = data_path("wire/fixtures/%s.jsonl", name);
    char *text = data_read(meta);
    const json_t *request;
    size_t i;

    memset(&rec, 0, sizeof(rec));
    rec.meta = data_json(text, strlen(text));
    open_chain(&rec);
    json_array_foreach(json_object_get(rec.meta, "requests"), i, request)
    {
        const char *op = json_string_value(json_object_get(request, "op"));

        if (op == NULL || strcmp(op, "generate") == 0)
            learn_request(&rec, request);
    }
    data_lines(live, check_message, &rec);

    for (i = 0; i < rec.n_known; i++)
        free(rec.known[i]);
    kve_chain_destroy(rec.chain);
    json_decref(rec.meta);
    free(text);
    free(meta);
    free(live);
    return rec.n_published;
}

static void
test_every_published_hash(void **state)
{
    size_t total = 0;

    (void)state;
    for (size_t i = 0; i < N_OF(names); i++)
        total += check_recording(names[i]);
    assert_int_equal(total, 503);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_published_hash),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
