/*
 * Extra keys: every kind of item read, whatever is wrong in them ends the
 * walk, and what is written reads back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "spell.h"

#include <kvevents/codec.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

/* All items as one line: block:kind:content. */
static void
walk(const char *spelled, char *text, size_t size)
{
    size_t len;
    uint8_t *bytes = spell(spelled, &len);
    struct kve_extra_iter iter = { .keys = { bytes, len } };
    struct kve_extra_item item;

    text[0] = '\0';
    while (kve_extra_next(&iter, &item)) {
        char one[128];
        if (item.kind == KVE_EXTRA_TEXT)
            snprintf(one, sizeof(one), " %zu:text:%.*s", item.block,
                (int)item.text.len, item.text.data);
        else if (item.kind == KVE_EXTRA_IMAGE)
            snprintf(one, sizeof(one), " %zu:image:%.*s@%lld", item.block,
                (int)item.text.len, item.text.data, (long long)item.offset);
        else if (item.kind == KVE_EXTRA_BYTES)
            snprintf(
                one, sizeof(one), " %zu:bytes:%zu", item.block, item.bytes.len);
        else
            snprintf(
                one, sizeof(one), " %zu:other:%zu", item.block, item.raw.len);
        strncat(text, one, size - strlen(text) - 1);
        assert_true(item.raw.data > bytes);
        assert_true(item.raw.data + item.raw.len <= bytes + len);
    }
    assert_false(kve_extra_next(&iter, &item)); /* the end stays the end */
    free(bytes);
}

/* A call keeps the layout of a table that the formatter would widen. */
#define ROW(...)    \
    {               \
        __VA_ARGS__ \
    }

static const struct {
    const char *keys;
    const char *want;
} rows[] = {
    ROW("90", ""),
    ROW("93 c0 c0 c0", ""),
    ROW("93 92 'ad' 'salt' 92 'ad' 92 'img' fd c0",
        " 0:text:ad 0:text:salt 1:text:ad 1:image:img@-3"),
    ROW("92 c0 91 c404 01020304", " 1:bytes:4"),
    ROW("92 90 91 'a'", " 1:text:a"),
    ROW("91 95 05 c0 93 'a' 01 02 92 01 'a' 92 'a' cb4025000000000000",
        " 0:other:1 0:other:1 0:other:5 0:other:4 0:other:12"),
    ROW("91 91 92 'a' cf8000000000000000", " 0:other:12"),
    ROW("91 91 92 'a' d38000000000000000", " 0:image:a@-9223372036854775808"),
    /* Not what extra keys are. */
    ROW("05", ""),
    ROW("80", ""),
    ROW("92 05 91 'a'", ""),
    ROW("92 91 'a' 'b'", " 0:text:a"),
    /* Broken. */
    ROW("", ""),
    ROW("dd", ""),
    ROW("ddffffffff", ""),
    ROW("92 91 'a'", " 0:text:a"),
    ROW("91 92 'a' a5", " 0:text:a"),
    ROW("91 92 'a' c1", " 0:text:a"),
    ROW("91 ddffffffff 'a'", ""),
    ROW("91 91 92 'a'", ""),
};

static void
test_walk(void **state)
{
    (void)state;

    for (size_t i = 0; i < N_OF(rows); i++) {
        char got[512];
        walk(rows[i].keys, got, sizeof(got));
        if (strcmp(got, rows[i].want) != 0)
            fail_msg("%s gives%s", rows[i].keys, got);
    }

    struct kve_extra_iter iter = { .keys = { NULL, 0 } };
    struct kve_extra_item item;
    assert_false(kve_extra_next(&iter, &item));
}

static const struct kve_extra_item items[] = {
    { .kind = KVE_EXTRA_TEXT, .block = 0, .text = { "ad", 2 } },
    { .kind = KVE_EXTRA_TEXT, .block = 0, .text = { "salt", 4 } },
    { .kind = KVE_EXTRA_IMAGE, .block = 2, .text = { "img", 3 }, .offset = -3 },
    { .kind = KVE_EXTRA_BYTES,
        .block = 2,
        .bytes = { (const uint8_t *)"\1\2", 2 } },
};

static void
test_write(void **state)
{
    (void)state;
    struct kve_buffer out = KVE_BUFFER_INIT;
    size_t len;
    uint8_t *want =
        spell("94 92 'ad' 'salt' c0 92 92 'img' fd c4020102 c0", &len);

    assert_int_equal(kve_extra_write(items, 4, 4, &out, NULL), KVE_OK);
    assert_int_equal(out.len, len);
    assert_memory_equal(out.data, want, len);
    free(want);

    /* Appended. */
    assert_int_equal(kve_extra_write(NULL, 0, 20, &out, NULL), KVE_OK);
    want = spell("dc0014 c0*20", &len);
    assert_memory_equal(out.data + out.len - len, want, len);
    free(want);
    kve_buffer_release(&out);
}

static void
test_refused(void **state)
{
    (void)state;
    struct kve_buffer out = KVE_BUFFER_INIT;
    struct kve_error err;
    struct kve_extra_item item[2];

#define REFUSE(change)                                             \
    do {                                                           \
        item[0] = items[0];                                        \
        item[1] = items[0];                                        \
        change;                                                    \
        assert_int_equal(                                          \
            kve_extra_write(item, 2, 2, &out, &err), KVE_E_INVAL); \
        assert_int_equal(err.offset, 1);                           \
        assert_int_equal(out.len, 0);                              \
    } while (0)

    REFUSE(item[1].block = 2);
    REFUSE((item[0].block = 1, item[1].block = 0));
    REFUSE(item[1].kind = KVE_EXTRA_OTHER);
    REFUSE(item[1].kind = 0);
    REFUSE(item[1].text.data = NULL);
    REFUSE(item[1].kind = KVE_EXTRA_BYTES);
#undef REFUSE

    out.max = 8;
    assert_int_equal(kve_extra_write(items, 4, 4, &out, NULL), KVE_E_LIMIT);
    assert_null(out.data);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_walk),
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests_name("wire/extra", tests, NULL, NULL);
}
