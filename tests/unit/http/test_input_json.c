/*
 * Questions in JSON: what is taken and what is refused, where and with which
 * words; limits; memory. Random bodies are in test_input_random.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "http/input.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

static const struct kve_input_limits limits = { 8, 3, 4, 0 };

static enum kve_input_fault
ask(struct kve_input *in, const char *text, struct kve_input_error *err)
{
    return kve_input_json(
        in, (const uint8_t *)text, strlen(text), &limits, err);
}

/* ---- what is taken ---- */

static void
assert_text(const struct kve_input *in, int field, const char *want)
{
    assert_true(in->has & UINT32_C(1) << field);
    assert_int_equal(in->text[field].len, strlen(want));
    assert_memory_equal(in->text[field].data, want, strlen(want));
}

static void
test_whole_question(void **state)
{
    static const char text[] =
        " {\"tokens\" : [1, 22 ,333,\n4294967295],\t\"model\":\"m\\u00e4\","
        "\"tenant\":\"\",\"lora_id\":18446744073709551615,\"explain\":true,"
        "\"recompute_last\":false,\"workers\":[\"a\",\"\\\"\"],\"tiers\":[],"
        "\"instance_id\":42,\"cache_salt\":null,\"x\":{\"tokens\":[]}} \n";
    static const uint32_t tokens[] = { 1, 22, 333, UINT32_MAX };
    struct kve_input in = { 0 };
    struct kve_input_error err;

    (void)state;
    assert_int_equal(ask(&in, text, &err), KVE_INPUT_FINE);
    assert_int_equal(in.n_prompts, 1);
    assert_int_equal(in.prompt_end[0], 4);
    assert_memory_equal(in.tokens, tokens, sizeof(tokens));
    assert_text(&in, KVE_INPUT_MODEL, "m\xc3\xa4");
    assert_text(&in, KVE_INPUT_TENANT, "");
    assert_text(&in, KVE_INPUT_INSTANCE_ID, "42");
    assert_true(in.id_is_number);
    assert_true(in.number[KVE_INPUT_LORA_ID] == UINT64_MAX);
    assert_int_equal(in.number[KVE_INPUT_EXPLAIN], 1);
    assert_int_equal(in.number[KVE_INPUT_RECOMPUTE_LAST], 0);
    assert_int_equal(in.n_workers, 2);
    assert_memory_equal(in.workers[1].data, "\"", 1);
    assert_true(in.has & 1u << KVE_INPUT_TIERS);
    assert_int_equal(in.n_tiers, 0);
    assert_int_equal(in.nulls, 1u << KVE_INPUT_CACHE_SALT);
    assert_false(in.has & 1u << KVE_INPUT_CACHE_SALT);
    assert_int_equal(in.where[KVE_INPUT_TOKENS], 13);
    assert_int_equal(in.end, strlen(text) - 2);
    kve_input_release(&in);
}

static void
test_prompts(void **state)
{
    struct kve_input in = { 0 };
    struct kve_input_error err;

    (void)state;
    assert_int_equal(
        ask(&in, "{\"prompts\":[[1,2],[ ],[3]]}", &err), KVE_INPUT_FINE);
    assert_int_equal(in.n_prompts, 3);
    assert_int_equal(in.prompt_end[0], 2);
    assert_int_equal(in.prompt_end[1], 2);
    assert_int_equal(in.prompt_end[2], 3);
    assert_int_equal(in.tokens[2], 3);

    assert_int_equal(ask(&in, "{\"prompts\":[]}", &err), KVE_INPUT_FINE);
    assert_int_equal(in.n_prompts, 0);
    kve_input_release(&in);
}

static void
test_hashes(void **state)
{
    struct kve_input in = { 0 };
    struct kve_input_error err;

    (void)state;
    assert_int_equal(ask(&in,
                         "{\"block_hashes\":[-3803038269031200164,"
                         "18446744073709551615,\"-1\",\"0xFf\"]}",
                         &err),
        KVE_INPUT_FINE);
    assert_int_equal(in.n_hashes, 4);
    assert_int_equal(in.hashes_field, KVE_INPUT_BLOCK_HASHES);
    assert_true(in.numbers[0] == (uint64_t)INT64_C(-3803038269031200164));
    assert_true(in.numbers[1] == UINT64_MAX && in.numbers[2] == UINT64_MAX);
    assert_int_equal(in.numbers[3], 255);
    assert_null(in.hashes[3].bytes);
    assert_int_equal(in.hashes[3].integer, 255);
    assert_false(in.wide);

    assert_int_equal(
        ask(&in, "{\"hashes\":[7,\"00112233445566778899aabbccddeeff\"]}", &err),
        KVE_INPUT_FINE);
    assert_true(in.wide);
    assert_int_equal(in.hashes[1].len, 16);
    assert_int_equal(in.hashes[1].bytes[15], 255);
    assert_int_equal(in.numbers[1], 0);

    /* 32 digits are bytes, whatever number they are, too. */
    assert_int_equal(
        ask(&in, "{\"hashes\":[\"00000000000000000000000000000007\"]}", &err),
        KVE_INPUT_FINE);
    assert_true(in.wide);
    assert_int_equal(in.hashes[0].len, 16);
    assert_int_equal(in.hashes[0].bytes[15], 7);
    kve_input_release(&in);
}

/* The most that texts take beside the body: digits of which one is escaped, and
 * the bytes they mean. */
static void
test_escaped_hash(void **state)
{
    struct kve_input in = { 0 };
    struct kve_input_error err;
    char text[200];

    (void)state;
    (void)snprintf(text, sizeof(text), "{\"hashes\":[\"%0127d\\u0041\"]}", 0);
    assert_int_equal(ask(&in, text, &err), KVE_INPUT_FINE);
    assert_int_equal(in.hashes[0].len, 64);
    assert_int_equal(in.hashes[0].bytes[63], 0x0a);
    kve_input_release(&in);
}

/* Fields that nobody asked for are of another name. */
static void
test_fields_asked_for(void **state)
{
    static const char text[] = "{\"limit\":\"x\",\"model\":\"m\"}";
    struct kve_input_limits some = limits;
    struct kve_input in = { 0 };
    struct kve_input_error err;

    (void)state;
    some.fields = 1u << KVE_INPUT_MODEL;
    assert_int_equal(
        kve_input_json(&in, (const uint8_t *)text, strlen(text), &some, &err),
        KVE_INPUT_FINE);
    assert_int_equal(in.has, 1u << KVE_INPUT_MODEL);
    assert_int_equal(ask(&in, text, &err), KVE_INPUT_WRONG);
    kve_input_release(&in);
}

/* ---- what is refused ---- */

static const struct {
    const char *body;
    enum kve_input_fault fault;
    size_t offset;
    const char *serde; /* what serde_json says */
} refused[] = {
    /* From recorded answers of a service on serde_json. */
    { "nope", KVE_INPUT_BROKEN, 1, "expected ident at line 1 column 2" },
    { "{\"token_ids\": [-1, 2, 3, 4], \"model_name\": \"m\"}", KVE_INPUT_WRONG,
        15,
        "token_ids[0]: invalid value: integer `-1`, expected u32 at line 1 "
        "column 17" },
    { "{\"instance_id\": -1}", KVE_INPUT_WRONG, 16,
        "instance_id: invalid value: integer `-1`, expected u64 at line 1 "
        "column 18" },
    /* No JSON. */
    { "", KVE_INPUT_BROKEN, 0, "EOF while parsing a value at line 1 column 0" },
    { " ", KVE_INPUT_BROKEN, 1,
        "EOF while parsing a value at line 1 column 1" },
    { "{", KVE_INPUT_BROKEN, 1,
        "EOF while parsing an object at line 1 column 1" },
    { "{\n\n \"a\" 1}", KVE_INPUT_BROKEN, 8,
        "expected `:` at line 3 column 6" },
    { "{\"a\":1 2}", KVE_INPUT_BROKEN, 7,
        "expected `,` or `}` at line 1 column 8" },
    { "{\"a\":1,}", KVE_INPUT_BROKEN, 7, "trailing comma at line 1 column 8" },
    { "{1:2}", KVE_INPUT_BROKEN, 1, "key must be a string at line 1 column 2" },
    { "{} x", KVE_INPUT_BROKEN, 3, "trailing characters at line 1 column 4" },
    { "{\"a\":[1,2", KVE_INPUT_BROKEN, 9,
        "EOF while parsing a list at line 1 column 9" },
    { "{\"a\":[1 2]}", KVE_INPUT_BROKEN, 8,
        "expected `,` or `]` at line 1 column 9" },
    { "{\"a\":01}", KVE_INPUT_BROKEN, 6, "invalid number at line 1 column 7" },
    { "{\"a\":-}", KVE_INPUT_BROKEN, 6, "invalid number at line 1 column 7" },
    { "{\"a\":1.e1}", KVE_INPUT_BROKEN, 7,
        "invalid number at line 1 column 8" },
    { "{\"a\":1e+}", KVE_INPUT_BROKEN, 8, "invalid number at line 1 column 9" },
    { "{\"a\":+1}", KVE_INPUT_BROKEN, 5, "expected value at line 1 column 6" },
    { "{\"a\":tru}", KVE_INPUT_BROKEN, 8, "expected ident at line 1 column 9" },
    { "{\"a\":nul", KVE_INPUT_BROKEN, 8,
        "EOF while parsing a value at line 1 column 8" },
    { "{\"a\":\"x", KVE_INPUT_BROKEN, 7,
        "EOF while parsing a string at line 1 column 7" },
    { "{\"a\":\"\n\"}", KVE_INPUT_BROKEN, 6,
        "control character (\\u0000-\\u001F) found while parsing a string at "
        "line 2 column 0" },
    { "{\"a\":\"\\x\"}", KVE_INPUT_BROKEN, 7,
        "invalid escape at line 1 column 8" },
    { "{\"a\":\"\\u12g4\"}", KVE_INPUT_BROKEN, 8,
        "invalid escape at line 1 column 12" },
    { "{\"a\":\"\\u12", KVE_INPUT_BROKEN, 8,
        "EOF while parsing a string at line 1 column 10" },
    { "{\"a\":\"\\udc00\"}", KVE_INPUT_BROKEN, 6,
        "lone leading surrogate in hex escape at line 1 column 12" },
    { "{\"a\":\"\\ud800x\"}", KVE_INPUT_BROKEN, 12,
        "unexpected end of hex escape at line 1 column 13" },
    { "{\"a\":\"\\ud800\\n\"}", KVE_INPUT_BROKEN, 13,
        "unexpected end of hex escape at line 1 column 14" },
    { "{\"a\":\"\\ud800\\u0041\"}", KVE_INPUT_BROKEN, 12,
        "lone leading surrogate in hex escape at line 1 column 18" },
    { "{\"a\":\"\\ud800\\ue000\"}", KVE_INPUT_BROKEN, 12,
        "lone leading surrogate in hex escape at line 1 column 18" },
    { "{\"a\":\"\xc0\x80\"}", KVE_INPUT_BROKEN, 6,
        "invalid unicode code point at line 1 column 7" },
    { "{\"a\":\"\xed\xa0\x80\"}", KVE_INPUT_BROKEN, 6,
        "invalid unicode code point at line 1 column 7" },
    { "{\"a\":\"\xf4\x90\x80\x80\"}", KVE_INPUT_BROKEN, 6,
        "invalid unicode code point at line 1 column 7" },
    { "\xef\xbb\xbf{}", KVE_INPUT_BROKEN, 0,
        "expected value at line 1 column 1" },
    { "{\"token_ids\":[1,]}", KVE_INPUT_BROKEN, 16,
        "trailing comma at line 1 column 17" },
    { "{\"token_ids\":[,1]}", KVE_INPUT_BROKEN, 14,
        "expected value at line 1 column 15" },
    { "{\"token_ids\":[1,,2]}", KVE_INPUT_BROKEN, 16,
        "expected value at line 1 column 17" },
    { "{\"token_ids\":[1 2]}", KVE_INPUT_BROKEN, 16,
        "expected `,` or `]` at line 1 column 17" },
    { "{\"token_ids\":[1,2", KVE_INPUT_BROKEN, 17,
        "EOF while parsing a list at line 1 column 17" },
    { "{\"token_ids\":[1,02]}", KVE_INPUT_BROKEN, 17,
        "invalid number at line 1 column 18" },
    /* JSON, and not what the field takes. */
    { "[1]", KVE_INPUT_WRONG, 0,
        "invalid type: sequence, expected a question at line 1 column 0" },
    { " 5", KVE_INPUT_WRONG, 1,
        "invalid type: integer `5`, expected a question at line 1 column 2" },
    { "{\"token_ids\":5}", KVE_INPUT_WRONG, 13,
        "token_ids: invalid type: integer `5`, expected a sequence at line 1 "
        "column 14" },
    { "{\"token_ids\":[1,4294967296]}", KVE_INPUT_WRONG, 16,
        "token_ids[1]: invalid value: integer `4294967296`, expected u32 at "
        "line 1 column 26" },
    { "{\"token_ids\":[1,\n1.5]}", KVE_INPUT_WRONG, 17,
        "token_ids[1]: invalid type: floating point `1.5`, expected u32 at "
        "line 2 column 3" },
    { "{\"token_ids\":[-0]}", KVE_INPUT_WRONG, 14,
        "token_ids[0]: invalid type: floating point `-0.0`, expected u32 at "
        "line 1 column 16" },
    { "{\"token_ids\":[1e2]}", KVE_INPUT_WRONG, 14,
        "token_ids[0]: invalid type: floating point `1e2`, expected u32 at "
        "line 1 column 17" },
    { "{\"token_ids\":[null]}", KVE_INPUT_WRONG, 14,
        "token_ids[0]: invalid type: null, expected u32 at line 1 column 18" },
    { "{\"token_ids\":[[1]]}", KVE_INPUT_WRONG, 14,
        "token_ids[0]: invalid type: sequence, expected u32 at line 1 column "
        "14" },
    { "{\"prompts\":[[1],2]}", KVE_INPUT_WRONG, 16,
        "prompts[1]: invalid type: integer `2`, expected a sequence at line 1 "
        "column 17" },
    { "{\"prompts\":[[1],[true]]}", KVE_INPUT_WRONG, 17,
        "prompts[1][0]: invalid type: boolean `true`, expected u32 at line 1 "
        "column 21" },
    { "{\"block_hashes\":[18446744073709551616]}", KVE_INPUT_WRONG, 17,
        "block_hashes[0]: invalid type: floating point "
        "`18446744073709551616.0`, expected i64 at line 1 column 37" },
    { "{\"block_hashes\":[-9223372036854775809]}", KVE_INPUT_WRONG, 17,
        "block_hashes[0]: invalid type: floating point "
        "`-9223372036854775809.0`, expected i64 at line 1 column 37" },
    { "{\"block_hashes\":[-0]}", KVE_INPUT_WRONG, 17,
        "block_hashes[0]: invalid type: floating point `-0.0`, expected i64 "
        "at line 1 column 19" },
    { "{\"block_hashes\":[\"x\"]}", KVE_INPUT_WRONG, 17,
        "block_hashes[0]: invalid type: string \"x\", expected i64 at line 1 "
        "column 20" },
    { "{\"model_name\":{}}", KVE_INPUT_WRONG, 14,
        "model_name: invalid type: map, expected a string at line 1 column "
        "14" },
    { "{\"model_name\":7}", KVE_INPUT_WRONG, 14,
        "model_name: invalid type: integer `7`, expected a string at line 1 "
        "column 15" },
    { "{\"block_size\":\"4\"}", KVE_INPUT_WRONG, 14,
        "block_size: invalid type: string \"4\", expected u64 at line 1 "
        "column 17" },
    { "{\"explain\":1}", KVE_INPUT_WRONG, 11,
        "explain: invalid type: integer `1`, expected a boolean at line 1 "
        "column 12" },
    { "{\"workers\":[\"a\",2]}", KVE_INPUT_WRONG, 16,
        "workers[1]: invalid type: integer `2`, expected a string at line 1 "
        "column 17" },
    { "{\"model\":\"a\",\"model\":\"b\"}", KVE_INPUT_WRONG, 13,
        "duplicate field `model` at line 1 column 20" },
    { "{\"tenant\":null,\"tenant\":\"b\"}", KVE_INPUT_WRONG, 15,
        "duplicate field `tenant` at line 1 column 23" },
    { "{\"tokens\":[1],\"token_ids\":[1]}", KVE_INPUT_WRONG, 14,
        "token_ids: there is tokens already, and only one of them is accepted "
        "at line 1 column 25" },
    /* What is wrong is met before what is broken. */
    { "{\"model\":1,", KVE_INPUT_WRONG, 9,
        "model: invalid type: integer `1`, expected a string at line 1 column "
        "10" },
    { "{\"model\":1x", KVE_INPUT_WRONG, 9,
        "model: invalid type: integer `1`, expected a string at line 1 column "
        "10" },
    /* Too much. */
    { "{\"tokens\":[1,2,3,4,5,6,7,8,9]}", KVE_INPUT_LARGE, 10, NULL },
    { "{\"prompts\":[[],[],[],[]]}", KVE_INPUT_LARGE, 11, NULL },
    { "{\"hashes\":[1,2,3,4,5]}", KVE_INPUT_LARGE, 10, NULL },
};

static void
test_refused(void **state)
{
    struct kve_input in = { 0 };
    struct kve_input_error err;
    char text[300];
    bool good = true;

    (void)state;
    for (size_t i = 0; i < N_OF(refused); i++) {
        const char *body = refused[i].body;

        if (ask(&in, body, &err) != refused[i].fault ||
            err.offset != refused[i].offset) {
            print_error("%s: fault %d at %zu: %s\n", body, (int)err.fault,
                err.offset, err.detail);
            good = false;
        }
        kve_input_serde(
            &err, (const uint8_t *)body, strlen(body), text, sizeof(text));
        if (refused[i].serde != NULL && strcmp(text, refused[i].serde) != 0) {
            print_error("%s: %s\n  not %s\n", body, text, refused[i].serde);
            good = false;
        }
    }
    kve_input_release(&in);
    assert_true(good);
}

/* The words for people have no values in them. */
static const struct {
    const char *body;
    const char *detail;
} told[] = {
    { "{\"token_ids\":[1,-7777]}",
        "token_ids[1]: expected a token id from 0 to 4294967295, got an "
        "integer out of range" },
    { "{\"prompts\":[[1],[2,\"7777\"]]}",
        "prompts[1][1]: expected a token id from 0 to 4294967295, got a "
        "text" },
    { "{\"prompts\":[7777]}",
        "prompts[0]: expected an array of token ids, got an integer" },
    { "{\"hashes\":[\"7777x\"]}",
        "hashes[0]: expected a hash (64-bit integer; or text: decimal, 0x and "
        "up to 16 hex digits, or 32 to 128 hex digits), got another text" },
    { "{\"limit\":-7777}",
        "limit: expected an integer from 0 to 18446744073709551615, got an "
        "integer out of range" },
    { "[7777]", "expected an object, got an array" },
    { "{\"tokens\":[1,2,3,4,5,6,7,8,7777]}",
        "tokens[8]: more than 8 tokens, which is the limit" },
    { "{\"prompts\":[[],[],[],[7777]]}",
        "prompts: more than 3 prompts, which is the limit" },
};

static void
test_words(void **state)
{
    struct kve_input in = { 0 };
    struct kve_input_error err;

    (void)state;
    for (size_t i = 0; i < N_OF(told); i++) {
        assert_int_not_equal(ask(&in, told[i].body, &err), KVE_INPUT_FINE);
        assert_string_equal(err.detail, told[i].detail);
        assert_null(strstr(err.detail, "7777"));
    }
    kve_input_release(&in);
}

static void
test_missing(void **state)
{
    static const char body[] =
        "{\"instance_id\": 3, \"x\": \"tcp://127.0.0.1:25902\", \"y\": 1}  ";
    struct kve_input in = { 0 };
    struct kve_input_error err;
    char text[100];

    (void)state;
    assert_int_equal(ask(&in, body, &err), KVE_INPUT_FINE);
    kve_input_serde_missing(
        &in, (const uint8_t *)body, KVE_INPUT_BLOCK_SIZE, text, sizeof(text));
    assert_string_equal(text, "missing field `block_size` at line 1 column 56");
    kve_input_release(&in);
}

/* A zero byte ends nothing but the body. */
static void
test_zero_bytes(void **state)
{
    static const char inside[] = "{\"a\":\"x\0y\"}";
    static const char behind[] = "{}\0";
    struct kve_input in = { 0 };
    struct kve_input_error err;

    (void)state;
    assert_int_equal(kve_input_json(&in, (const uint8_t *)inside,
                         sizeof(inside) - 1, &limits, &err),
        KVE_INPUT_BROKEN);
    assert_int_equal(err.offset, 7);
    assert_int_equal(kve_input_json(&in, (const uint8_t *)behind,
                         sizeof(behind) - 1, &limits, &err),
        KVE_INPUT_BROKEN);
    assert_string_equal(err.detail, "trailing characters");
    kve_input_release(&in);
}

/* ---- depth ---- */

static enum kve_input_fault
ask_deep(struct kve_input *in, size_t depth, const char *open,
    const char *inner, const char *close, struct kve_input_error *err)
{
    char *text = calloc(1, depth * (strlen(open) + 1) + 100);
    enum kve_input_fault fault;

    strcpy(text, "{\"a\":");
    for (size_t i = 0; i < depth; i++)
        strcat(text, open);
    strcat(text, inner);
    for (size_t i = 0; i < depth; i++)
        strcat(text, close);
    strcat(text, "}");
    fault = ask(in, text, err);
    free(text);
    return fault;
}

static void
test_depth(void **state)
{
    const size_t most = KVE_INPUT_MAX_DEPTH;
    struct kve_input in = { 0 };
    struct kve_input_error err;

    (void)state;
    assert_int_equal(ask_deep(&in, most, "[", "", "]", &err), KVE_INPUT_FINE);
    assert_int_equal(
        ask_deep(&in, most, "{\"b\":", "1", "}", &err), KVE_INPUT_FINE);
    assert_int_equal(
        ask_deep(&in, most + 1, "[", "", "]", &err), KVE_INPUT_BROKEN);
    assert_string_equal(err.detail, "recursion limit exceeded");
    assert_int_equal(
        ask_deep(&in, 20000, "[", "", "]", &err), KVE_INPUT_BROKEN);
    assert_int_equal(ask_deep(&in, most, "[", "", "}", &err), KVE_INPUT_BROKEN);
    kve_input_release(&in);
}

/* ---- memory ---- */

/* A question with n tokens. */
static char *
long_question(size_t n)
{
    char *text = malloc(8 * n + 100);
    size_t at = (size_t)sprintf(text, "{\"tokens\":[0");

    for (size_t i = 1; i < n; i++)
        at += (size_t)sprintf(text + at, ",%zu", i);
    strcpy(text + at,
        "],\"model\":\"m\\n\",\"hashes\":[\""
        "00112233445566778899aabbccddeeff\"],"
        "\"workers\":[\"a\",\"\\u0062\"]}");
    return text;
}

static void
test_long(void **state)
{
    static const struct kve_input_limits none = { 0, 0, 0, 0 };
    char *text = long_question(200000);
    struct kve_input in = { 0 };
    struct kve_input_error err;

    (void)state;
    assert_int_equal(
        kve_input_json(&in, (const uint8_t *)text, strlen(text), &none, &err),
        KVE_INPUT_FINE);
    assert_int_equal(in.prompt_end[0], 200000);
    for (uint32_t i = 0; i < 200000; i++)
        if (in.tokens[i] != i)
            fail();
    free(text);
    /* The giant's memory goes with the next question of the usual kind; a test
     * build counts blocks, and tokens, ends, numbers, hashes, texts, bytes and
     * the record of them are seven. */
    assert_int_equal(kve_mem_live(), 7);
    assert_int_equal(ask(&in, "{}", &err), KVE_INPUT_FINE);
    assert_int_equal(kve_mem_live(), 1);
    kve_input_release(&in);
    assert_int_equal(kve_mem_live(), 0);
    kve_input_release(&in);
}

static void
test_no_memory(void **state)
{
    char *text = long_question(100);
    struct kve_input_limits wide = { 0, 0, 0, 0 };
    bool failed = true;

    (void)state;
    for (uint64_t n = 1; failed; n++) {
        struct kve_input in = { 0 };
        struct kve_input_error err;
        enum kve_input_fault fault;

        kve_mem_fail_at(n, false);
        fault = kve_input_json(
            &in, (const uint8_t *)text, strlen(text), &wide, &err);
        failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        assert_int_equal(fault, failed ? KVE_INPUT_NOMEM : KVE_INPUT_FINE);
        /* The same input works again. */
        assert_int_equal(ask(&in, "{\"tokens\":[7]}", &err), KVE_INPUT_FINE);
        assert_int_equal(in.tokens[0], 7);
        kve_input_release(&in);
        assert_int_equal(kve_mem_live(), 0);
    }
    free(text);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_question),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_hashes),
        cmocka_unit_test(test_escaped_hash),
        cmocka_unit_test(test_fields_asked_for),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_zero_bytes),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
