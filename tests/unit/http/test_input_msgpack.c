/*
 * Questions in msgpack: what is taken and what is refused, and where; limits;
 * memory. Random bodies are in test_input_random.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "http/input.h"

#include <msgpack.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

/* A literal of bytes, zeros allowed. */
#define B(text) text, sizeof(text) - 1

static const struct kve_input_limits limits = { 8, 3, 4, 0 };

/* In a block of its own exact size, for AddressSanitizer. */
static enum kve_input_fault
ask(struct kve_input *in, const char *bytes, size_t len, uint8_t **ret_body,
    struct kve_input_error *err)
{
    *ret_body = malloc(len > 0 ? len : 1);
    memcpy(*ret_body, bytes, len);
    return kve_input_msgpack(in, *ret_body, len, &limits, err);
}

static void
test_whole_question(void **state)
{
    static const char bytes[] =
        "\x8a\xa6tokens\x94\x01\x16\xcd\x01\x4d\xce\xff\xff\xff\xff"
        "\xa5model\xd9\x03m\xc3\xa4\xa6tenant\xa0"
        "\xa7lora_id\xcf\xff\xff\xff\xff\xff\xff\xff\xff"
        "\xa7"
        "explain\xc3\xa7workers\x92\xa1"
        "a\xa1"
        "b\xa5tiers\x90"
        "\xabinstance_id\xcd\x03\xe8\xaa"
        "cache_salt\xc0\x07\x81\xa1x\x01";
    static const uint32_t tokens[] = { 1, 22, 333, UINT32_MAX };
    struct kve_input in = { 0 };
    struct kve_input_error err;
    uint8_t *body;

    (void)state;
    assert_int_equal(
        ask(&in, bytes, sizeof(bytes) - 1, &body, &err), KVE_INPUT_FINE);
    assert_int_equal(in.n_prompts, 1);
    assert_int_equal(in.prompt_end[0], 4);
    assert_memory_equal(in.tokens, tokens, sizeof(tokens));
    assert_int_equal(in.text[KVE_INPUT_MODEL].len, 3);
    assert_memory_equal(in.text[KVE_INPUT_MODEL].data, "m\xc3\xa4", 3);
    assert_int_equal(in.text[KVE_INPUT_TENANT].len, 0);
    assert_non_null(in.text[KVE_INPUT_TENANT].data);
    assert_true(in.number[KVE_INPUT_LORA_ID] == UINT64_MAX);
    assert_int_equal(in.number[KVE_INPUT_EXPLAIN], 1);
    assert_int_equal(in.n_workers, 2);
    assert_int_equal(in.n_tiers, 0);
    assert_true(in.id_is_number);
    assert_int_equal(in.text[KVE_INPUT_INSTANCE_ID].len, 4);
    assert_memory_equal(in.text[KVE_INPUT_INSTANCE_ID].data, "1000", 4);
    assert_int_equal(in.nulls, 1u << KVE_INPUT_CACHE_SALT);
    assert_int_equal(in.end, sizeof(bytes) - 1);
    kve_input_release(&in);
    free(body);
}

static void
test_lists(void **state)
{
    struct kve_input in = { 0 };
    struct kve_input_error err;
    uint8_t *body;

    (void)state;
    assert_int_equal(
        ask(&in, B("\x81\xa9token_ids\xc4\x08\x01\0\0\0\xff\xff\xff\x7f"),
            &body, &err),
        KVE_INPUT_FINE);
    assert_int_equal(in.prompt_end[0], 2);
    assert_int_equal(in.tokens[1], INT32_MAX);
    free(body);

    assert_int_equal(ask(&in,
                         B("\x81\xa7prompts\x93\x92\x01\x02\xc4\x04\x03\0\0\0"
                           "\x90"),
                         &body, &err),
        KVE_INPUT_FINE);
    assert_int_equal(in.n_prompts, 3);
    assert_int_equal(in.prompt_end[1], 3);
    assert_int_equal(in.prompt_end[2], 3);
    assert_int_equal(in.tokens[2], 3);
    free(body);

    assert_int_equal(ask(&in,
                         B("\x81\xa6hashes\x94\xff\xc4\x10"
                           "0123456789abcdef\xd9\x20"
                           "00112233445566778899aabbccddeeff\xa3"
                           "0x9"),
                         &body, &err),
        KVE_INPUT_FINE);
    assert_int_equal(in.n_hashes, 4);
    assert_true(in.wide);
    assert_true(in.hashes[0].integer == UINT64_MAX);
    assert_int_equal(in.hashes[1].len, 16);
    assert_memory_equal(in.hashes[1].bytes, "0123456789abcdef", 16);
    assert_int_equal(in.hashes[2].bytes[1], 0x11);
    assert_int_equal(in.numbers[3], 9);
    free(body);
    kve_input_release(&in);
}

static const struct {
    const char *bytes;
    size_t len;
    enum kve_input_fault fault;
    size_t offset;
    const char *detail;
} refused[] = {
    { B(""), KVE_INPUT_BROKEN, 0, "msgpack that ends too early" },
    { B("\x81"), KVE_INPUT_BROKEN, 1, "msgpack that ends too early" },
    { B("\x81\xa5model"), KVE_INPUT_BROKEN, 7, "msgpack that ends too early" },
    { B("\x81\xa5model\xa2x"), KVE_INPUT_BROKEN, 9,
        "msgpack that ends too early" },
    { B("\xdf\xff\xff\xff\xff"), KVE_INPUT_BROKEN, 5,
        "msgpack that ends too early" },
    { B("\x81\xa1x\xc1"), KVE_INPUT_BROKEN, 3,
        "not msgpack: byte c1 is never used" },
    { B("\x80\x01"), KVE_INPUT_BROKEN, 1, "bytes behind the map" },
    { B("\x81\xa5model\xa1\xff"), KVE_INPUT_BROKEN, 8,
        "a string that is not UTF-8" },
    { B("\x81\xa1\xff\x01"), KVE_INPUT_BROKEN, 2,
        "a string that is not UTF-8" },
    { B("\x90"), KVE_INPUT_WRONG, 0, "expected an object, got an array" },
    { B("{}"), KVE_INPUT_WRONG, 0, "expected an object, got an integer" },
    { B("\x81\xa5model\x01"), KVE_INPUT_WRONG, 7,
        "model: expected a text, got an integer" },
    { B("\x81\xa5model\xc4\x01x"), KVE_INPUT_WRONG, 7,
        "model: expected a text, got bytes" },
    { B("\x81\xa6tokens\x92\x01\xff"), KVE_INPUT_WRONG, 10,
        "tokens[1]: expected a token id from 0 to 4294967295, got an integer "
        "out of range" },
    { B("\x81\xa6tokens\x91\xcb\0\0\0\0\0\0\0\0"), KVE_INPUT_WRONG, 9,
        "tokens[0]: expected a token id from 0 to 4294967295, got a number "
        "with a fraction" },
    { B("\x81\xa6tokens\xa1x"), KVE_INPUT_WRONG, 8,
        "tokens: expected an array of token ids, got a text" },
    { B("\x81\xa6tokens\xc4\x03xxx"), KVE_INPUT_WRONG, 8,
        "tokens: expected token ids of four bytes each, got bytes" },
    { B("\x81\xa6tokens\xc4\x08\0\0\0\0\0\0\0\x80"), KVE_INPUT_WRONG, 14,
        "tokens[1]: expected a token id from 0 to 2147483647, got an integer "
        "out of range" },
    { B("\x81\xa7prompts\x91\x05"), KVE_INPUT_WRONG, 10,
        "prompts[0]: expected an array of token ids, got an integer" },
    { B("\x81\xa6hashes\x91\xc4\x02xx"), KVE_INPUT_WRONG, 9,
        "hashes[0]: expected a hash (64-bit integer; or text: decimal, 0x and "
        "up to 16 hex digits, or 32 to 128 hex digits), got bytes" },
    { B("\x81\xa6hashes\x91\xc4\x41"
        "abcdefghijklmabcdefghijklmabcdefghijklmabcdefghijklmabcdefghijklm"),
        KVE_INPUT_WRONG, 9,
        "hashes[0]: expected a hash (64-bit integer; or text: decimal, 0x and "
        "up to 16 hex digits, or 32 to 128 hex digits), got bytes" },
    { B("\x81\xa5limit\xff"), KVE_INPUT_WRONG, 7,
        "limit: expected an integer from 0 to 18446744073709551615, got an "
        "integer out of range" },
    { B("\x81\xa7"
        "explain\x01"),
        KVE_INPUT_WRONG, 9, "explain: expected true or false, got an integer" },
    { B("\x82\xa5model\xa1"
        "a\xa5model\xa1"
        "b"),
        KVE_INPUT_WRONG, 9, "duplicate field `model`" },
    { B("\x82\xa6tokens\x90\xa7prompts\x90"), KVE_INPUT_WRONG, 9,
        "prompts: there is tokens already, and only one of them is accepted" },
    { B("\x81\xa6tokens\x99\1\2\3\4\5\6\7\7\7"), KVE_INPUT_LARGE, 8,
        "tokens[8]: more than 8 tokens, which is the limit" },
    { B("\x81\xa6tokens\xc4\x24"
        "abcdabcdabcdabcdabcdabcdabcdabcdabcd"),
        KVE_INPUT_LARGE, 8,
        "tokens[8]: more than 8 tokens, which is the limit" },
    { B("\x81\xa7prompts\x94\x90\x90\x90\x90"), KVE_INPUT_LARGE, 9,
        "prompts: more than 3 prompts, which is the limit" },
    { B("\x81\xa6hashes\x95\1\2\3\4\5"), KVE_INPUT_LARGE, 8,
        "hashes: more than 4 hashes, which is the limit" },
};

static void
test_refused(void **state)
{
    struct kve_input in = { 0 };
    struct kve_input_error err;
    bool good = true;
    uint8_t *body;

    (void)state;
    for (size_t i = 0; i < N_OF(refused); i++) {
        if (ask(&in, refused[i].bytes, refused[i].len, &body, &err) !=
                refused[i].fault ||
            err.offset != refused[i].offset ||
            strcmp(err.detail, refused[i].detail) != 0) {
            print_error("row %zu, not \"%s\": fault %d at %zu: %s\n", i,
                refused[i].detail, (int)err.fault, err.offset, err.detail);
            good = false;
        }
        free(body);
    }
    kve_input_release(&in);
    assert_true(good);
}

static void
test_no_memory(void **state)
{
    static const struct kve_input_limits none = { 0, 0, 0, 0 };
    struct kve_input_error err;
    msgpack_sbuffer buf;
    msgpack_packer packer;
    bool failed = true;

    (void)state;
    msgpack_sbuffer_init(&buf);
    msgpack_packer_init(&packer, &buf, msgpack_sbuffer_write);
    msgpack_pack_map(&packer, 4);
    msgpack_pack_str_with_body(&packer, "prompts", 7);
    msgpack_pack_array(&packer, 1);
    msgpack_pack_array(&packer, 300);
    for (int i = 0; i < 300; i++)
        msgpack_pack_int(&packer, i);
    msgpack_pack_str_with_body(&packer, "hashes", 6);
    msgpack_pack_array(&packer, 1);
    msgpack_pack_str_with_body(&packer, "00112233445566778899aabbccddeeff", 32);
    msgpack_pack_str_with_body(&packer, "tiers", 5);
    msgpack_pack_array(&packer, 1);
    msgpack_pack_str_with_body(&packer, "GPU", 3);
    msgpack_pack_str_with_body(&packer, "instance_id", 11);
    msgpack_pack_uint64(&packer, UINT64_MAX);
    for (uint64_t n = 1; failed; n++) {
        struct kve_input in = { 0 };
        enum kve_input_fault fault;

        kve_mem_fail_at(n, false);
        fault = kve_input_msgpack(
            &in, (const uint8_t *)buf.data, buf.size, &none, &err);
        failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        assert_int_equal(fault, failed ? KVE_INPUT_NOMEM : KVE_INPUT_FINE);
        kve_input_release(&in);
        assert_int_equal(kve_mem_live(), 0);
    }
    msgpack_sbuffer_destroy(&buf);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_question),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
