/*
 * Random questions, well formed, nearly so, and with bytes changed: what the
 * readers make of them is what jansson and libmsgpack make of them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/inputcheck.h"

#include "support/scale.h"

#include <msgpack.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 8192
#define BODIES 100000

static uint8_t body[2 * MOST];
static size_t len;

static uint64_t
next_random(void)
{
    static uint64_t x = UINT64_C(88172645463325252);

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

static size_t
below(size_t limit)
{
    return (size_t)(next_random() >> 20) % limit;
}

static bool
one_in(size_t n)
{
    return below(n) == 0;
}

/* ---- a writer of either format; JSON with odd spaces now and then ---- */

static bool packed;
static msgpack_packer packer;
static bool spaced; /* this body has spaces in odd places */

static int
write_body(void *ctx, const char *data, size_t n)
{
    (void)ctx;
    if (len + n > MOST)
        return -1;
    memcpy(body + len, data, n);
    len += n;
    return 0;
}

static void
put(const char *text)
{
    static const char *const spaces[] = { " ", "\n", "\t", "\r\n", "  " };

    if (spaced && one_in(4))
        (void)write_body(NULL, spaces[below(5)], 1 + (size_t)one_in(2));
    (void)write_body(NULL, text, strlen(text));
}

static void
put_integer(int64_t number)
{
    char text[32];

    if (packed) {
        msgpack_pack_int64(&packer, number);
        return;
    }
    (void)snprintf(text, sizeof(text), "%lld", (long long)number);
    put(text);
}

static void
put_string(const char *text)
{
    if (packed) {
        msgpack_pack_str(&packer, strlen(text));
        msgpack_pack_str_body(&packer, text, strlen(text));
        return;
    }
    put("\"");
    (void)write_body(NULL, text, strlen(text));
    (void)write_body(NULL, "\"", 1);
}

static void
open_array(size_t n)
{
    if (packed)
        msgpack_pack_array(&packer, n);
    else
        put("[");
}

static void
close_array(void)
{
    if (!packed)
        put("]");
}

static bool tight; /* commas without the one space behind them */

static void
put_comma(size_t i)
{
    if (!packed && i > 0) {
        put(",");
        if (!tight)
            put(" ");
    }
}

/* ---- values ---- */

static void
put_token(void)
{
    static const int64_t odd[] = { 0, 1, -1, 4294967295, 4294967296, 99999999,
        100000000, 999999999, 10000000000, INT64_MAX, INT64_MIN };

    if (one_in(60))
        put_integer(odd[below(11)]);
    else
        put_integer((int64_t)(next_random() >> (20 + 4 * below(11))) & 0xfffff);
}

static void
put_tokens(void)
{
    size_t n = one_in(12) ? 55 + below(10) : below(40);
    uint32_t raw[64];

    if (packed && one_in(3)) {
        for (size_t i = 0; i < n && i < 64; i++)
            raw[i] = (uint32_t)(next_random() >> (33 - one_in(60)));
        n = n < 64 ? n : 64;
        msgpack_pack_bin(&packer, 4 * n);
        msgpack_pack_bin_body(&packer, raw, 4 * n);
        return;
    }
    open_array(n);
    for (size_t i = 0; i < n; i++) {
        put_comma(i);
        put_token();
    }
    close_array();
}

static void
put_hash(void)
{
    static const char *const texts[] = { "0", "0x1f", "0xffffffffffffffff",
        "0x10000000000000000", "18446744073709551615", "18446744073709551616",
        "-9223372036854775808", "-9223372036854775809", "-1", "007", "", "-",
        "0x", "12a", "\\u0031\\u0032", "00112233445566778899aabbccddeeff",
        "00112233445566778899aabbccddeef",
        "00112233445566778899AABBCCDDEEFF00112233445566778899aabbccddeeff",
        "00112233445566778899aabbccddeefg", "0000000000000000000001" };

    if (one_in(4))
        put_string(texts[below(20)]);
    else
        put_integer((int64_t)next_random() >> (4 * below(16)));
}

static void
put_hashes(void)
{
    size_t n = one_in(20) ? 45 + below(10) : below(20);

    open_array(n);
    for (size_t i = 0; i < n; i++) {
        put_comma(i);
        put_hash();
    }
    close_array();
}

static void
put_text(void)
{
    static const char *const texts[] = { "m", "", "meta-llama/Llama-3-8B",
        "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\\u00e4\\ud83d\\ude00x",
        "\\\"\\\\\\/\\b\\f\\n\\r\\t", "a long text, longer than some words",
        "\\u0000", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80", "\\ud800",
        "\\udc00\\udc00", "\\x", "\\u12g4", "\x1f", "\xc3" };

    put_string(texts[one_in(10) ? below(17) : below(8)]);
}

static void
put_texts(void)
{
    size_t n = below(4);

    open_array(n);
    for (size_t i = 0; i < n; i++) {
        put_comma(i);
        put_text();
    }
    close_array();
}

/* Anything: for a field of another name, or a wrong value. */
static void
put_any(unsigned depth)
{
    static const char *const words[] = { "true", "false", "null", "1.5",
        "-0.25e+3", "1E2", "-3", "0", "01", "1.", "-", ".5", "1e", "nul", "+1",
        "NaN" };
    size_t n = below(3);

    if (one_in(3) && depth < 5) {
        open_array(n);
        for (size_t i = 0; i < n; i++) {
            put_comma(i);
            put_any(depth + 1);
        }
        close_array();
    } else if (one_in(3) && depth < 5) {
        if (packed)
            msgpack_pack_map(&packer, n);
        else
            put("{");
        for (size_t i = 0; i < n; i++) {
            put_comma(i);
            put_string(i == 0 ? "a" : "b");
            if (!packed)
                put(":");
            put_any(depth + 1);
        }
        if (!packed)
            put("}");
    } else if (one_in(2)) {
        put_text();
    } else if (!packed) {
        put(words[one_in(5) ? below(16) : below(8)]);
    } else if (one_in(2)) {
        msgpack_pack_nil(&packer);
    } else if (one_in(2)) {
        msgpack_pack_double(&packer, 1.5);
    } else {
        msgpack_pack_true(&packer);
    }
}

static void
put_bool(void)
{
    if (!packed)
        put(one_in(2) ? "true" : "false");
    else if (one_in(2))
        msgpack_pack_true(&packer);
    else
        msgpack_pack_false(&packer);
}

static void
put_prompts(void)
{
    size_t n = below(6);

    open_array(n);
    for (size_t i = 0; i < n; i++) {
        put_comma(i);
        put_tokens();
    }
    close_array();
}

static void
put_number(void)
{
    put_integer((int64_t)(next_random() >> (1 + below(60))) - one_in(20));
}

static void
put_id(void)
{
    if (one_in(2))
        put_number();
    else
        put_text();
}

static const struct {
    const char *name;
    void (*put)(void);
} members[] = { { "token_ids", put_tokens }, { "tokens", put_tokens },
    { "prompts", put_prompts }, { "block_hashes", put_hashes },
    { "seq_hashes", put_hashes }, { "hashes", put_hashes },
    { "model_name", put_text }, { "model", put_text }, { "tenant", put_text },
    { "lora_name", put_text }, { "cache_salt", put_text },
    { "block_size", put_number }, { "limit", put_number },
    { "instance_id", put_id }, { "workers", put_texts }, { "tiers", put_texts },
    { "explain", put_bool } };

#define N_MEMBERS (sizeof(members) / sizeof(members[0]))

static void
put_member(void)
{
    size_t which = below(N_MEMBERS + 2);

    put_string(which < N_MEMBERS ? members[which].name
            : one_in(8)          ? "m\\u006fdel"
                                 : "other");
    if (!packed)
        put(":");
    if (which < N_MEMBERS && !one_in(30))
        members[which].put();
    else
        put_any(0);
}

static void
make_body(void)
{
    size_t n = below(6);

    len = 0;
    spaced = one_in(4);
    tight = one_in(2);
    if (packed)
        msgpack_pack_map(&packer, n);
    else
        put("{");
    for (size_t i = 0; i < n; i++) {
        put_comma(i);
        put_member();
    }
    if (!packed)
        put("}");
}

static void
change_bytes(void)
{
    static const char marks[] = "{}[],:\"\\ 0123456789-+.eEtfn\x1f\x80\xff";

    for (size_t i = 1 + below(3); i > 0 && len > 0; i--) {
        size_t at = below(len);

        switch (below(5)) {
        case 0:
            body[at] ^= (uint8_t)(1u << below(8));
            break;
        case 1:
            body[at] = (uint8_t)marks[below(sizeof(marks) - 1)];
            break;
        case 2:
            memmove(body + at, body + at + 1, len - at - 1);
            len--;
            break;
        case 3:
            memmove(body + at + 1, body + at, len - at);
            body[at] = (uint8_t)marks[below(sizeof(marks) - 1)];
            len++;
            break;
        default:
            len = one_in(4) ? at : len;
            break;
        }
    }
}

static void
report(size_t i, const char *why)
{
    print_error("body %zu, %s, %zu bytes: %s\n", i, packed ? "msgpack" : "JSON",
        len, why);
    if (!packed) {
        print_error("%.*s\n", (int)len, (const char *)body);
    } else {
        for (size_t k = 0; k < len; k++)
            print_error("%02x", body[k]);
        print_error("\n");
    }
    fail();
}

static void
run(bool msgpack)
{
    size_t counts[INPUT_DIFFERS + 1] = { 0 };
    const char *why = "";

    packed = msgpack;
    for (size_t i = 0; i < BODIES / TEST_SCALE; i++) {
        enum input_verdict verdict;

        make_body();
        if (!one_in(3))
            change_bytes();
        verdict = input_check(msgpack, body, len, &why);
        counts[verdict]++;
        if (verdict == INPUT_DIFFERS)
            report(i, why);
    }
    /* A generator that makes only one kind shows nothing. */
    assert_true(counts[INPUT_TAKEN] > BODIES / TEST_SCALE / 10);
    assert_true(counts[INPUT_REFUSED] > BODIES / TEST_SCALE / 10);
    assert_true(counts[INPUT_UNASKED] < BODIES / TEST_SCALE / 4);
}

static void
test_json(void **state)
{
    (void)state;
    run(false);
}

static void
test_msgpack(void **state)
{
    (void)state;
    msgpack_packer_init(&packer, NULL, write_body);
    run(true);
}

static int
release(void **state)
{
    (void)state;
    input_check_release();
    return 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_msgpack),
    };

    return cmocka_run_group_tests(tests, NULL, release);
}
