/*
 * The token kernel: every variant against a reader that takes one value at a
 * time, written here in the plainest way.
 *
 * Each input is laid once so that it ends at a page that cannot be touched,
 * and once so that it begins behind one: a read of one byte outside it ends
 * the test. The output has words behind its slack that must survive.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "wire/tokens.h"

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

#define MAX_VALUES 1024
#define MAX_BYTES (MAX_VALUES * 9)
#define CANARY UINT32_C(0xdeadbeef)
#define UNTOUCHED ((size_t)-1)

static uint8_t *front; /* begins right behind a guard page */
static uint8_t *back;  /* a guard page is here: inputs end at it */
static uint32_t out[MAX_VALUES + KVE_TOKENS_SLACK + 16];

static int
map_guarded(void **state)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t room = (MAX_BYTES + page - 1) / page * page;
    uint8_t *map;

    (void)state;
    map = mmap(
        NULL, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED ||
        mprotect(map + page, room, PROT_READ | PROT_WRITE) != 0)
        return -1;
    front = map + page;
    back = front + room;
    return 0;
}

/* The same numbers in every run. */
static uint64_t
next_random(void)
{
    static uint64_t x = UINT64_C(0x9e3779b97f4a7c15);

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

/* ---- the reference ---- */

struct verdict {
    size_t len;  /* bytes taken */
    size_t done; /* values taken */
    uint32_t values[MAX_VALUES];
};

/* The length of the value at p, 0 if it cannot be taken. */
static size_t
reference_one(const uint8_t *p, size_t avail, uint32_t *ret_value)
{
    uint64_t v = 0;
    size_t width;

    if (avail == 0)
        return 0;
    switch (p[0]) {
    case 0xcc:
    case 0xd0:
        width = 1;
        break;
    case 0xcd:
    case 0xd1:
        width = 2;
        break;
    case 0xce:
    case 0xd2:
        width = 4;
        break;
    case 0xcf:
    case 0xd3:
        width = 8;
        break;
    default:
        *ret_value = p[0];
        return p[0] <= 0x7f ? 1 : 0;
    }
    if (avail < 1 + width)
        return 0;
    for (size_t i = 1; i <= width; i++)
        v = v * 256 + p[i];
    if (v > UINT32_MAX || (p[0] >= 0xd0 && p[1] >= 0x80))
        return 0;
    *ret_value = (uint32_t)v;
    return 1 + width;
}

static void
reference(const uint8_t *p, size_t len, size_t n, struct verdict *ret)
{
    ret->len = 0;
    for (ret->done = 0; ret->done < n; ret->done++) {
        size_t one = reference_one(
            p + ret->len, len - ret->len, &ret->values[ret->done]);

        if (one == 0)
            return;
        ret->len += one;
    }
}

/* ---- the comparison ---- */

static void
report(const char *what, enum kve_tokens_variant variant, const uint8_t *bytes,
    size_t len, size_t n)
{
    print_error("%s: variant %s, n %zu, input of %zu:", what,
        kve_tokens_variant_name(variant), n, len);
    for (size_t i = 0; i < len; i++)
        print_error(" %02x", bytes[i]);
    print_error("\n");
    fail();
}

static void
check_at(const uint8_t *p, size_t len, size_t n, const struct verdict *want,
    enum kve_tokens_variant variant)
{
    const uint8_t *stop = NULL, *after;
    size_t done = UNTOUCHED;

    for (size_t i = n + KVE_TOKENS_SLACK; i < N_OF(out); i++)
        out[i] = CANARY;
    after = kve_tokens_decode(p, p + len, n, out, &stop, &done);

    if (want->done == n) {
        if (after != p + want->len)
            report("wrong end", variant, p, len, n);
        if (stop != NULL || done != UNTOUCHED)
            report("failure written on success", variant, p, len, n);
    } else {
        if (after != NULL || stop != p + want->len || done != want->done)
            report("wrong stop", variant, p, len, n);
    }
    if (memcmp(out, want->values, want->done * sizeof(out[0])) != 0)
        report("wrong values", variant, p, len, n);
    for (size_t i = n + KVE_TOKENS_SLACK; i < N_OF(out); i++) {
        if (out[i] != CANARY)
            report("wrote behind the slack", variant, p, len, n);
    }
}

/* Ask for n values of the bytes, in every variant, at both guard pages. */
static void
check(const uint8_t *bytes, size_t len, size_t n)
{
    static struct verdict want;

    assert_true(len <= MAX_BYTES && n <= MAX_VALUES);
    reference(bytes, len, n, &want);
    for (int v = 0; v < KVE_TOKENS_N_VARIANTS; v++) {
        if (!kve_tokens_use((enum kve_tokens_variant)v))
            continue;
        if (len > 0) {
            memcpy(back - len, bytes, len);
            memcpy(front, bytes, len);
        }
        check_at(back - len, len, n, &want, (enum kve_tokens_variant)v);
        check_at(front, len, n, &want, (enum kve_tokens_variant)v);
    }
    assert_true(kve_tokens_use(kve_tokens_best_variant()));
}

/* ---- making input ---- */

enum form { FIX, U8, U16, U32, U64, I8, I16, I32, I64, N_FORMS };

static const struct {
    uint8_t tag;
    uint8_t width;
    uint64_t max; /* of the values that the form can hold and we take */
} forms[N_FORMS] = {
    [FIX] = { 0, 0, 0x7f },
    [U8] = { 0xcc, 1, 0xff },
    [U16] = { 0xcd, 2, 0xffff },
    [U32] = { 0xce, 4, 0xffffffff },
    [U64] = { 0xcf, 8, 0xffffffff },
    [I8] = { 0xd0, 1, 0x7f },
    [I16] = { 0xd1, 2, 0x7fff },
    [I32] = { 0xd2, 4, 0x7fffffff },
    [I64] = { 0xd3, 8, 0xffffffff },
};

struct input {
    uint8_t bytes[MAX_BYTES];
    size_t len;
};

static void
put(struct input *in, enum form form, uint64_t value)
{
    if (form == FIX) {
        in->bytes[in->len++] = (uint8_t)value;
        return;
    }
    in->bytes[in->len++] = forms[form].tag;
    for (int i = forms[form].width - 1; i >= 0; i--)
        in->bytes[in->len++] = (uint8_t)(value >> (8 * i));
}

/* A value of the form whose bytes look like tags more often than not. */
static uint64_t
tricky_value(enum form form)
{
    static const uint8_t tricky[] = { 0x00, 0x01, 0x10, 0x7f, 0x80, 0xc0, 0xcc,
        0xcd, 0xcd, 0xce, 0xce, 0xcf, 0xd0, 0xd3, 0xff };
    uint64_t v = 0;

    for (int i = 0; i < 4; i++)
        v = v << 8 | tricky[next_random() % N_OF(tricky)];
    return v & forms[form].max;
}

/* ---- the tests ---- */

static void
test_every_form_at_its_bounds(void **state)
{
    static const uint64_t values[] = { 0, 1, 127, 128, 255, 256, 32767, 32768,
        65535, 65536, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000,
        0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff };
    static struct input in;

    (void)state;
    for (int f = 0; f < N_FORMS; f++) {
        for (size_t v = 0; v < N_OF(values); v++) {
            /* Alone, and behind and before enough others for a window. */
            for (size_t others = 0; others <= 70; others += 7) {
                in.len = 0;
                for (size_t i = 0; i < others; i++)
                    put(&in, U16, 0x1234);
                put(&in, (enum form)f, values[v]);
                for (size_t i = 0; i < others; i++)
                    put(&in, U32, 0x12345678);
                check(in.bytes, in.len, 2 * others + 1);
                check(in.bytes, in.len, others + 1);
            }
        }
    }
}

/* All sequences of six of the forms that msgpack writers use. */
static void
test_every_sequence(void **state)
{
    static struct input in;

    (void)state;
    for (unsigned code = 0; code < 5 * 5 * 5 * 5 * 5 * 5; code++) {
        unsigned c = code;

        in.len = 0;
        for (int i = 0; i < 6; i++, c /= 5)
            put(&in, (enum form)(c % 5), tricky_value((enum form)(c % 5)));
        check(in.bytes, in.len, 6);
    }
}

static void
test_every_length(void **state)
{
    static const struct {
        enum form form;
        uint64_t value;
    } rows[] = { { FIX, 5 }, { U8, 200 }, { U16, 0xcdcd }, { U32, 0xcececece },
        { U16, 0x0102 }, { U32, 0x01020304 }, { U64, 7 }, { I32, 9 } };
    static struct input in;

    (void)state;
    for (size_t r = 0; r < N_OF(rows); r++) {
        in.len = 0;
        for (size_t n = 0; n <= 150; n++) {
            check(in.bytes, in.len, n);
            put(&in, rows[r].form, rows[r].value);
        }
    }
}

/* What follows the list must not matter: not its tags, not its end. */
static void
test_bytes_behind_the_list(void **state)
{
    static const char *const tails[] = { "\x10", "\xc0\xc0\xc0", "\xcd",
        "\xce\xce\xce\xce", "\xa3GPU\xc0\x98\xa0", "\xcf\xff\xff\xff\xff",
        "\xd9\x40"
        "0123456789abcdef0123456789abcdef0123456789abcdef"
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" };
    static struct input in;

    (void)state;
    for (size_t t = 0; t < N_OF(tails); t++) {
        for (size_t n = 0; n <= 100; n++) {
            in.len = 0;
            for (size_t i = 0; i < n; i++) {
                enum form form = next_random() % 2 == 0 ? U16 : U32;

                put(&in, form, tricky_value(form));
            }
            memcpy(in.bytes + in.len, tails[t], strlen(tails[t]));
            check(in.bytes, in.len + strlen(tails[t]), n);
        }
    }
}

static void
test_cut_at_every_byte(void **state)
{
    static const struct {
        const char *name;
        enum form forms[7];
        size_t n;
    } rows[] = {
        { "16 bits", { U16, U16, U16, U16, U16, U16, U16 }, 60 },
        { "32 bits", { U32, U32, U32, U32, U32, U32, U32 }, 40 },
        { "both", { U16, U32, U32, U16, U32, U16, U16 }, 16 },
        { "both, long", { U16, U32, U32, U16, U32, U16, U16 }, 64 },
        { "small", { FIX, U8, U16, FIX, U32, FIX, U8 }, 90 },
        { "all", { I8, U64, I16, U32, I64, U16, I32 }, 30 },
    };
    static struct input in;

    (void)state;
    for (size_t r = 0; r < N_OF(rows); r++) {
        in.len = 0;
        for (size_t i = 0; i < rows[r].n; i++) {
            enum form form = rows[r].forms[i % 7];

            put(&in, form, tricky_value(form));
        }
        for (size_t cut = 0; cut <= in.len; cut++)
            check(in.bytes, cut, rows[r].n);
    }
}

/* Each byte that begins no integer, in each place of a window and more. */
static void
test_bad_tag_in_every_place(void **state)
{
    static const enum form kinds[][2] = { { U16, U16 }, { U32, U32 },
        { U16, U32 }, { FIX, U16 }, { FIX, FIX }, { U64, U8 } };
    static const uint8_t few[] = { 0x80, 0x90, 0xa0, 0xc0, 0xc1, 0xcb, 0xd4,
        0xdc, 0xe0, 0xff };
    static struct input in;

    (void)state;
    for (size_t k = 0; k < N_OF(kinds); k++) {
        for (size_t place = 0; place < 130; place++) {
            size_t at = 0;

            in.len = 0;
            for (size_t i = 0; i < 140; i++) {
                enum form form = kinds[k][next_random() % 2];

                if (i == place) {
                    at = in.len;
                    in.len++;
                } else {
                    put(&in, form, tricky_value(form));
                }
            }
            for (size_t b = 0; b < N_OF(few); b++) {
                in.bytes[at] = few[b];
                check(in.bytes, in.len, 140);
                check(in.bytes, in.len, place);
            }
        }
    }

    for (unsigned b = 0x80; b <= 0xff; b++) {
        in.len = 0;
        for (size_t i = 0; i < 20; i++)
            put(&in, U16, 0x4242);
        in.bytes[in.len++] = (uint8_t)b;
        for (size_t i = 0; i < 20; i++)
            put(&in, U16, 0x4242);
        check(in.bytes, in.len, 40);
    }
}

/* A long run of one tag byte: the most false starts there can be. */
static void
test_nothing_but_one_byte(void **state)
{
    static struct input in;

    (void)state;
    for (unsigned b = 0; b <= 0xff; b++) {
        memset(in.bytes, (int)b, 700);
        for (size_t n = 0; n < 400; n = n * 2 + 1)
            check(in.bytes, 700, n);
    }
}

/* How likely each form is, in 1/16, in one kind of stream. */
static const struct profile {
    uint8_t weight[N_FORMS];
    bool tricky;
    bool faults;
} profiles[] = {
    { { [U16] = 8, [U32] = 8 }, false, false },
    { { [U16] = 8, [U32] = 8 }, true, false },
    { { [U16] = 8, [U32] = 8 }, true, true },
    { { [U16] = 16 }, false, false },
    { { [U16] = 15, [U32] = 1 }, true, true },
    { { [FIX] = 7, [U8] = 1, [U16] = 7, [U32] = 1 }, false, false },
    { { [FIX] = 7, [U8] = 1, [U16] = 7, [U32] = 1 }, true, false },
    { { [FIX] = 4, [U8] = 4, [U16] = 4, [U32] = 4 }, true, true },
    { { [FIX] = 2,
          [U8] = 2,
          [U16] = 2,
          [U32] = 2,
          [U64] = 2,
          [I8] = 2,
          [I16] = 2,
          [I32] = 1,
          [I64] = 1 },
        true, true },
    { { [FIX] = 16 }, false, false },
    { { [U32] = 15, [U64] = 1 }, true, true },
};

static enum form
random_form(const struct profile *profile)
{
    int r = (int)(next_random() % 16), f = 0;

    while (r >= profile->weight[f])
        r -= profile->weight[f++];
    return (enum form)f;
}

static void
test_random_streams(void **state)
{
    static struct input in;

    (void)state;
    for (int round = 0; round < 400; round++) {
        for (size_t k = 0; k < N_OF(profiles); k++) {
            const struct profile *profile = &profiles[k];
            size_t made = next_random() % 400, n = made;

            in.len = 0;
            for (size_t i = 0; i < made; i++) {
                enum form form = random_form(profile);

                put(&in, form,
                    profile->tricky ? tricky_value(form)
                                    : next_random() & forms[form].max);
            }
            if (profile->faults && in.len > 0) {
                if (next_random() % 2 == 0)
                    in.bytes[next_random() % in.len] = (uint8_t)next_random();
                if (next_random() % 4 == 0)
                    in.len = next_random() % in.len;
            }
            if (n > 0 && next_random() % 2 == 0)
                n = next_random() % n;
            check(in.bytes, in.len, n);
        }
    }
}

/* Bytes without any order: mostly faults, in every variant the same. */
static void
test_random_bytes(void **state)
{
    static const uint8_t likely[] = { 0xcc, 0xcd, 0xce, 0xcf, 0xd2, 0x00 };
    static struct input in;

    (void)state;
    for (int round = 0; round < 20000; round++) {
        size_t len = next_random() % 200;

        for (size_t i = 0; i < len; i++) {
            uint64_t r = next_random();

            in.bytes[i] = (uint8_t)(r >> 8);
            if (r % 4 != 0 && in.bytes[i] >= 0x80)
                in.bytes[i] = likely[(r >> 16) % N_OF(likely)];
        }
        check(in.bytes, len, len / 2);
    }
}

static void
test_variants(void **state)
{
    static const uint8_t bytes[] = { 1, 0xcd, 2, 3, 0xce, 4, 5, 6, 7 };
    const uint8_t *stop;
    size_t done;

    (void)state;
    /* Before anything was chosen: the first call chooses. */
    assert_ptr_equal(
        kve_tokens_decode(bytes, bytes + sizeof(bytes), 3, out, &stop, &done),
        bytes + sizeof(bytes));
    assert_int_equal(out[0], 1);
    assert_int_equal(out[1], 0x0203);
    assert_int_equal(out[2], 0x04050607);

    assert_true(kve_tokens_variant_runs(KVE_TOKENS_SCALAR));
    assert_true(kve_tokens_variant_runs(kve_tokens_best_variant()));
    assert_false(kve_tokens_variant_runs(KVE_TOKENS_N_VARIANTS));
    assert_false(kve_tokens_use(KVE_TOKENS_N_VARIANTS));
    assert_string_equal(kve_tokens_variant_name(KVE_TOKENS_SCALAR), "scalar");
    assert_string_equal(kve_tokens_variant_name(KVE_TOKENS_AVX2), "avx2");
    assert_string_equal(kve_tokens_variant_name(KVE_TOKENS_AVX512), "avx512");
    assert_string_equal(
        kve_tokens_variant_name(KVE_TOKENS_N_VARIANTS), "unknown");
    for (int v = 0; v < KVE_TOKENS_N_VARIANTS; v++) {
        enum kve_tokens_variant variant = (enum kve_tokens_variant)v;

        assert_int_equal(
            kve_tokens_use(variant), kve_tokens_variant_runs(variant));
        print_message("variant %s: %s\n", kve_tokens_variant_name(variant),
            kve_tokens_variant_runs(variant) ? "tested here"
                                             : "not on this CPU");
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_every_form_at_its_bounds),
        cmocka_unit_test(test_every_sequence),
        cmocka_unit_test(test_every_length),
        cmocka_unit_test(test_bytes_behind_the_list),
        cmocka_unit_test(test_cut_at_every_byte),
        cmocka_unit_test(test_bad_tag_in_every_place),
        cmocka_unit_test(test_nothing_but_one_byte),
        cmocka_unit_test(test_random_streams),
        cmocka_unit_test(test_random_bytes),
    };

    return cmocka_run_group_tests_name("tokens", tests, map_guarded, NULL);
}
