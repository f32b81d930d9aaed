/*
 * test_vectors.c - what an engine's own functions computed.
 *
 * tests/hash/hash_vectors.jsonl: roots and blocks of each algorithm of vLLM
 * with the bytes that were digested, the digest, its integer, and the extra
 * keys as the hash and as the event has them.
 */
#include "data.h"

#include <kvevents/hash.h>

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

static const char *
text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* The extra keys as the hash has them: ["kind", value...] each. */
static void
read_keys(const json_t *keys, struct kve_block_extras *extras,
    struct kve_extra_item *items, uint8_t *room)
{
    const json_t *key;
    size_t i;

    extras->items = items;
    json_array_foreach(keys, i, key)
    {
        const char *kind = json_string_value(json_array_get(key, 0));
        const json_t *value = json_array_get(key, 1);
        struct kve_extra_item *item = &items[extras->n_items];

        if (strcmp(kind, "lora") == 0) {
            extras->lora_name = str(json_string_value(value));
            extras->lora_path = str(json_string_value(json_array_get(key, 2)));
        } else if (strcmp(kind, "cache_salt") == 0) {
            extras->cache_salt = str(json_string_value(value));
        } else if (strcmp(kind, "mm") == 0) {
            item->kind = KVE_EXTRA_IMAGE;
            item->text = str(json_string_value(value));
            item->offset = json_integer_value(json_array_get(key, 2));
            extras->n_items++;
        } else {
            assert_string_equal(kind, "prompt_embeds");
            item->kind = KVE_EXTRA_BYTES;
            item->bytes.data = room;
            item->bytes.len = unhex(text_of(value, "$bytes"), room);
            extras->n_items++;
        }
    }
}

static void
check_root(const json_t *vector, struct kve_hash_scheme *scheme)
{
    kve_chain *chain = NULL;

    scheme->block_size = 16;
    assert_int_equal(kve_chain_create(scheme, &chain, NULL), KVE_OK);
    assert_string_equal(
        hex(kve_chain_digest(chain), kve_chain_digest_len(chain)),
        text_of(vector, "hash"));
    kve_chain_destroy(chain);
}

static void
check_block(const json_t *vector, struct kve_hash_scheme *scheme)
{
    struct kve_block_extras extras = { .n_items = 0 };
    struct kve_extra_item items[8];
    uint32_t tokens[512];
    uint8_t room[64], parent[KVE_DIGEST_MAX];
    kve_chain *chain = NULL;
    struct kve_hash hash;
    struct kve_error err;
    struct kve_span bytes;
    size_t n = data_tokens(json_object_get(vector, "token_ids"), tokens, 0);
    const json_t *integer = json_object_get(vector, "external_int");

    memset(items, 0, sizeof(items));
    read_keys(json_object_get(vector, "extra_keys"), &extras, items, room);
    scheme->block_size = (uint32_t)n;
    assert_int_equal(kve_chain_create(scheme, &chain, NULL), KVE_OK);
    if (json_is_true(json_object_get(vector, "parent_is_none_hash")))
        assert_string_equal(
            hex(kve_chain_digest(chain), kve_chain_digest_len(chain)),
            text_of(vector, "parent"));
    else
        assert_int_equal(kve_chain_seek(chain, parent,
                             unhex(text_of(vector, "parent"), parent), NULL),
            KVE_OK);
    if (kve_chain_next(chain, tokens, n, &extras, &err) != KVE_OK)
        fail_msg("%s", err.detail);

    bytes = kve_chain_bytes(chain);
    assert_string_equal(
        hex(bytes.data, bytes.len), text_of(vector, "serialized"));
    assert_string_equal(
        hex(kve_chain_digest(chain), kve_chain_digest_len(chain)),
        text_of(vector, "hash"));
    assert_int_equal(kve_chain_hash(chain, &hash), KVE_OK);
    assert_null(hash.bytes);
    assert_true(hash.integer ==
        (json_is_string(integer)
                ? strtoull(json_string_value(integer), NULL, 10)
                : (uint64_t)json_integer_value(integer)));
    kve_chain_destroy(chain);
}

static void
check_vector(char *line, void *ctx)
{
    json_t *vector = data_json(line, strlen(line));
    struct kve_hash_scheme scheme = KVE_HASH_SCHEME_INIT;
    size_t *n = ctx;

    scheme.algorithm = kve_hash_algo_find(text_of(vector, "algo"));
    scheme.release = KVE_RELEASE(0, 32, 0);
    scheme.seed = str(text_of(vector, "PYTHONHASHSEED"));
    if (strcmp(text_of(vector, "case"), "NONE_HASH") == 0)
        check_root(vector, &scheme);
    else
        check_block(vector, &scheme);
    json_decref(vector);
    ++*n;
}

static void
test_every_vector(void **state)
{
    char *path = data_path("hash/hash_vectors.jsonl");
    size_t n = 0;

    (void)state;
    data_lines(path, check_vector, &n);
    assert_int_equal(n, 60);
    free(path);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_vector),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
