/*
 * Answers: exact texts, and random trees that jansson and libmsgpack read back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "http/output.h"

#include "support/scale.h"

#include <jansson.h>
#include <msgpack.h>

#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t
next_random(void)
{
    static uint64_t x = UINT64_C(88172645463325252);

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

/* ---- exact texts ---- */

static struct kve_str
str(const char *text)
{
    struct kve_str s = { text, strlen(text) };

    return s;
}

static void
write_all(struct kve_output *out)
{
    static const uint8_t bytes[] = { 0x00, 0x9f, 0xff };
    static const struct kve_str absent = { NULL, 0 };
    struct kve_hash wide = { .bytes = bytes, .len = sizeof(bytes) };
    struct kve_hash narrow = { .bytes = NULL, .integer = UINT64_MAX };

    kve_output_map(out, 5);
    kve_output_key(out, "numbers");
    kve_output_array(out, 9);
    kve_output_u64(out, 0);
    kve_output_u64(out, 99);
    kve_output_u64(out, 100);
    kve_output_u64(out, UINT64_MAX);
    kve_output_i64(out, -1);
    kve_output_i64(out, INT64_MIN);
    kve_output_double(out, 0.1);
    kve_output_double(out, 3);
    kve_output_double(out, -1e300);
    kve_output_array_end(out);
    kve_output_key_text(out, str("a\"\n\x01\xc3\xa4"));
    kve_output_array(out, 8);
    kve_output_text(out, "\x7f\\/");
    kve_output_text(out, "\xc3x\xed\xa0\x80");
    kve_output_text(out, NULL);
    kve_output_str(out, absent);
    kve_output_null(out);
    kve_output_bool(out, true);
    kve_output_bool(out, false);
    kve_output_text(out, "");
    kve_output_array_end(out);
    kve_output_key_u64(out, 18446744073709551615u);
    kve_output_array(out, 3);
    kve_output_hash(out, &wide);
    kve_output_hash(out, &narrow);
    kve_output_u64_text(out, 7);
    kve_output_array_end(out);
    kve_output_key_json(out, "\"w\\\"\"", 5, "w\"");
    kve_output_json(out, "\"x\"", 3, "x");
    kve_output_key(out, "empty");
    kve_output_map(out, 2);
    kve_output_key(out, "m");
    kve_output_map(out, 0);
    kve_output_map_end(out);
    kve_output_key(out, "a");
    kve_output_array(out, 0);
    kve_output_array_end(out);
    kve_output_map_end(out);
    kve_output_map_end(out);
}

static void
test_json_text(void **state)
{
    static const char want[] =
        "{\"numbers\":[0,99,100,18446744073709551615,-1,-9223372036854775808,"
        "0.1,3.0,-1e+300],\"a\\\"\\n\\u0001\xc3\xa4\":[\"\x7f\\\\/\","
        "\"\xef\xbf\xbdx\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\",null,null,null,"
        "true,false,\"\"],\"18446744073709551615\":[\"009fff\","
        "\"18446744073709551615\",\"7\"],\"w\\\"\":\"x\",\"empty\":{\"m\":{},"
        "\"a\":[]}}";
    struct kve_buffer buf = KVE_BUFFER_INIT;
    struct kve_output out;

    (void)state;
    kve_output_begin(&out, &buf, false);
    write_all(&out);
    assert_int_equal(out.status, KVE_OK);
    assert_int_equal(buf.len, strlen(want));
    assert_memory_equal(buf.data, want, buf.len);
    kve_buffer_release(&buf);
}

/* The same calls in msgpack are the same tree; keys are strings. */
static void
test_msgpack_tree(void **state)
{
    static const char want[] =
        "{\"numbers\"=>[0, 99, 100, 18446744073709551615, -1, "
        "-9223372036854775808, 0.100000, 3.000000, -";
    struct kve_buffer buf = KVE_BUFFER_INIT;
    struct kve_output out;
    msgpack_unpacked got;
    size_t offset = 0;
    char text[2000];
    const msgpack_object *second;

    (void)state;
    kve_output_begin(&out, &buf, true);
    write_all(&out);
    assert_int_equal(out.status, KVE_OK);
    msgpack_unpacked_init(&got);
    assert_int_equal(
        msgpack_unpack_next(&got, (const char *)buf.data, buf.len, &offset),
        MSGPACK_UNPACK_SUCCESS);
    assert_int_equal(offset, buf.len);
    (void)msgpack_object_print_buffer(text, sizeof(text), got.data);
    assert_memory_equal(text, want, strlen(want));
    assert_int_equal(got.data.via.map.size, 5);
    second = &got.data.via.map.ptr[1].val;
    assert_memory_equal(second->via.array.ptr[0].via.str.ptr, "\x7f\\/", 3);
    assert_int_equal(second->via.array.ptr[1].via.str.size, 13);
    assert_memory_equal(second->via.array.ptr[1].via.str.ptr,
        "\xef\xbf\xbdx\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 13);
    assert_int_equal(got.data.via.map.ptr[3].key.via.str.size, 2);
    msgpack_unpacked_destroy(&got);
    kve_buffer_release(&buf);
}

/* ---- random trees ---- */

/* A tree as jansson has it, written by the calls at the same time. */
static json_t *put_random(struct kve_output *out, unsigned depth);

static size_t
random_text(char *text, size_t cap)
{
    static const char *const parts[] = { "a", "\"", "\\", "\n", "\x01", "\x1f",
        "\x7f", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "longer text" };
    size_t n = next_random() % 40, len = 0;

    for (size_t i = 0; i < n; i++) {
        const char *part = parts[next_random() % 11];

        if (len + strlen(part) >= cap)
            break;
        memcpy(text + len, part, strlen(part));
        len += strlen(part);
    }
    text[len] = '\0';
    return len;
}

static json_t *
put_container(struct kve_output *out, unsigned depth)
{
    size_t n = next_random() % 20;
    bool map = next_random() % 2 == 0;
    json_t *tree = map ? json_object() : json_array();

    if (map)
        kve_output_map(out, (uint32_t)n);
    else
        kve_output_array(out, (uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        char key[200];

        if (!map) {
            json_array_append_new(tree, put_random(out, depth + 1));
            continue;
        }
        (void)random_text(key, 100);
        (void)sprintf(key + strlen(key), "%zu", i);
        kve_output_key_text(out, str(key));
        json_object_set_new(tree, key, put_random(out, depth + 1));
    }
    if (map)
        kve_output_map_end(out);
    else
        kve_output_array_end(out);
    return tree;
}

static double
random_double(void)
{
    uint64_t bits = next_random();
    double number;

    if (bits % 3 == 0)
        return (double)(int64_t)next_random();
    if (bits % 3 == 1)
        return (double)(int64_t)(next_random() % 100000) / 1000;
    memcpy(&number, &bits, sizeof(number));
    return isfinite(number) ? number : 0.5;
}

static json_t *
put_random(struct kve_output *out, unsigned depth)
{
    int64_t number = (int64_t)next_random() >> (next_random() % 64);
    char text[300];
    double real;

    switch (next_random() % (depth < 4 ? 9 : 6)) {
    case 0:
        kve_output_i64(out, number);
        return json_integer(number);
    case 1:
        number &= INT64_MAX;
        kve_output_u64(out, (uint64_t)number);
        return json_integer(number);
    case 2:
        real = random_double();
        kve_output_double(out, real);
        return json_real(real);
    case 3:
        (void)random_text(text, sizeof(text));
        kve_output_text(out, text);
        return json_string(text);
    case 4:
        kve_output_bool(out, number & 1);
        return json_boolean(number & 1);
    case 5:
        kve_output_null(out);
        return json_null();
    default:
        return put_container(out, depth);
    }
}

static bool
same(const json_t *want, const msgpack_object *got)
{
    switch (json_typeof(want)) {
    case JSON_OBJECT:
        if (got->type != MSGPACK_OBJECT_MAP ||
            got->via.map.size != json_object_size(want))
            return false;
        for (uint32_t i = 0; i < got->via.map.size; i++) {
            const msgpack_object_kv *kv = &got->via.map.ptr[i];
            char key[300];

            memcpy(key, kv->key.via.str.ptr, kv->key.via.str.size);
            key[kv->key.via.str.size] = '\0';
            if (!same(json_object_get(want, key), &kv->val))
                return false;
        }
        return true;
    case JSON_ARRAY:
        if (got->type != MSGPACK_OBJECT_ARRAY ||
            got->via.array.size != json_array_size(want))
            return false;
        for (uint32_t i = 0; i < got->via.array.size; i++)
            if (!same(json_array_get(want, i), &got->via.array.ptr[i]))
                return false;
        return true;
    case JSON_STRING:
        return got->type == MSGPACK_OBJECT_STR &&
            got->via.str.size == json_string_length(want) &&
            (got->via.str.size == 0 ||
                memcmp(got->via.str.ptr, json_string_value(want),
                    got->via.str.size) == 0);
    case JSON_INTEGER:
        return got->via.i64 == json_integer_value(want);
    case JSON_REAL:
        return got->via.f64 == json_real_value(want);
    case JSON_NULL:
        return got->type == MSGPACK_OBJECT_NIL;
    default:
        return got->via.boolean == json_is_true(want);
    }
}

static void
test_random_json(void **state)
{
    struct kve_buffer buf = KVE_BUFFER_INIT;

    (void)state;
    for (int i = 0; i < 600 / TEST_SCALE; i++) {
        struct kve_output out;
        json_t *want, *got;

        buf.len = 0;
        kve_output_begin(&out, &buf, false);
        want = put_container(&out, 0);
        assert_int_equal(out.status, KVE_OK);
        got = json_loadb((const char *)buf.data, buf.len, 0, NULL);
        assert_true(json_equal(want, got));
        json_decref(want);
        json_decref(got);
    }
    kve_buffer_release(&buf);
}

static void
test_random_msgpack(void **state)
{
    struct kve_buffer buf = KVE_BUFFER_INIT;

    (void)state;
    for (int i = 0; i < 600 / TEST_SCALE; i++) {
        struct kve_output out;
        msgpack_unpacked got;
        size_t offset = 0;
        json_t *want;

        buf.len = 0;
        kve_output_begin(&out, &buf, true);
        want = put_container(&out, 0);
        assert_int_equal(out.status, KVE_OK);
        msgpack_unpacked_init(&got);
        assert_int_equal(
            msgpack_unpack_next(&got, (const char *)buf.data, buf.len, &offset),
            MSGPACK_UNPACK_SUCCESS);
        assert_int_equal(offset, buf.len);
        assert_true(same(want, &got.data));
        msgpack_unpacked_destroy(&got);
        json_decref(want);
    }
    kve_buffer_release(&buf);
}

/* Lengths at which the head of a string changes, of texts that are all plain
 * and of texts that have to be mended. */
static void
test_long_texts(void **state)
{
    static const size_t lens[] = { 0, 1, 31, 32, 255, 256, 65535, 65536 };
    char *text = malloc(65537);

    (void)state;
    for (size_t i = 0; i < 8; i++) {
        for (int odd = 0; odd < 2 && (size_t)odd <= lens[i]; odd++) {
            struct kve_buffer buf = KVE_BUFFER_INIT;
            struct kve_output out;
            msgpack_unpacked got;
            size_t offset = 0;

            memset(text, 'x', lens[i]);
            text[lens[i]] = '\0';
            if (odd)
                text[lens[i] - 1] = '\xff';
            kve_output_begin(&out, &buf, true);
            kve_output_text(&out, text);
            msgpack_unpacked_init(&got);
            assert_int_equal(msgpack_unpack_next(&got, (const char *)buf.data,
                                 buf.len, &offset),
                MSGPACK_UNPACK_SUCCESS);
            assert_int_equal(offset, buf.len);
            assert_int_equal(got.data.via.str.size, lens[i] + 2 * (size_t)odd);
            msgpack_unpacked_destroy(&got);
            kve_buffer_release(&buf);
        }
    }
    free(text);
}

/* ---- doubles, limits, memory ---- */

static void
test_doubles(void **state)
{
    static const char *const locales[] = { "C", "de_DE.UTF-8", "fr_FR.UTF-8" };

    (void)state;
    for (size_t l = 0; l < 3; l++) {
        const char *here = setlocale(LC_NUMERIC, locales[l]);

        if (here == NULL)
            continue;
        for (int i = 0; i < 5000 / TEST_SCALE; i++) {
            struct kve_buffer buf = KVE_BUFFER_INIT;
            struct kve_output out;
            double want = random_double();
            json_t *got;

            kve_output_begin(&out, &buf, false);
            kve_output_double(&out, want);
            got = json_loadb(
                (const char *)buf.data, buf.len, JSON_DECODE_ANY, NULL);
            assert_true(json_is_real(got) && json_real_value(got) == want);
            json_decref(got);
            kve_buffer_release(&buf);
        }
    }
    (void)setlocale(LC_NUMERIC, "C");
}

static void
test_not_finite(void **state)
{
    static const double numbers[] = { NAN, INFINITY, -INFINITY };
    struct kve_buffer buf = KVE_BUFFER_INIT;
    struct kve_output out;

    (void)state;
    kve_output_begin(&out, &buf, false);
    kve_output_array(&out, 3);
    for (int i = 0; i < 3; i++)
        kve_output_double(&out, numbers[i]);
    kve_output_array_end(&out);
    assert_int_equal(buf.len, 16);
    assert_memory_equal(buf.data, "[null,null,null]", 16);
    kve_buffer_release(&buf);
}

static void
test_limit(void **state)
{
    struct kve_buffer buf = KVE_BUFFER_INIT;
    struct kve_output out;

    (void)state;
    buf.max = 5000;
    kve_output_begin(&out, &buf, false);
    kve_output_array(&out, 0);
    for (int i = 0; i < 2000; i++)
        kve_output_text(&out, "0123456789");
    kve_output_array_end(&out);
    assert_int_equal(out.status, KVE_E_LIMIT);
    assert_true(buf.len <= 5000);
    kve_buffer_release(&buf);
}

static void
test_no_memory(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct kve_buffer buf = KVE_BUFFER_INIT;
        struct kve_output out;
        bool failed;

        kve_mem_fail_at(n, false);
        kve_output_begin(&out, &buf, n % 2 == 0);
        kve_output_array(&out, 1000);
        for (int i = 0; i < 1000; i++)
            write_all(&out);
        kve_output_array_end(&out);
        failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        assert_int_equal(out.status, failed ? KVE_E_NOMEM : KVE_OK);
        kve_buffer_release(&buf);
        assert_int_equal(kve_mem_live(), 0);
        if (!failed)
            break;
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_text),
        cmocka_unit_test(test_msgpack_tree),
        cmocka_unit_test(test_random_json),
        cmocka_unit_test(test_random_msgpack),
        cmocka_unit_test(test_long_texts),
        cmocka_unit_test(test_doubles),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
