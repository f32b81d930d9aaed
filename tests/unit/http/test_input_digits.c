/*
 * The kernel of digits: every variant against a reader that takes one number at
 * a time. Each input ends at a page that cannot be touched, and begins behind
 * one, so that a read of one byte outside it ends the test; the output has
 * words behind its slack that must survive.
 *
 * A variant may stop early, where it leaves the rest to the reader of single
 * values; where it must not stop is said for long lists of the usual kind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "http/input_digits.h"

#include "support/scale.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST ((size_t)4096)
#define CANARY UINT32_C(0xdeadbeef)

static uint8_t *front; /* begins right behind a guard page */
static uint8_t *back;  /* a guard page is here: inputs end at it */
static uint32_t out[MOST / 2 + KVE_DIGITS_SLACK + 16];

static int
map_guarded(void **state)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t room = (MOST + page - 1) / page * page;
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

static uint64_t
next_random(void)
{
    static uint64_t x = UINT64_C(0x9e3779b97f4a7c15);

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

/* ---- the reference: the longest that may be taken ---- */

struct taken {
    size_t n;
    uint32_t values[MOST];
    size_t ends[MOST]; /* behind the comma */
};

static void
reference(const uint8_t *p, size_t len, struct taken *ret)
{
    size_t i = 0;

    for (ret->n = 0;; ret->n++) {
        uint32_t value = 0;
        size_t from;

        i += i < len && p[i] == ' ';
        for (from = i; i < len && p[i] >= '0' && p[i] <= '9' && i - from < 8;)
            value = value * 10 + (uint32_t)(p[i++] - '0');
        if (i == from || i == len || p[i] != ',' ||
            (p[from] == '0' && i - from > 1))
            return;
        ret->values[ret->n] = value;
        ret->ends[ret->n] = ++i;
    }
}

static void
report(const char *what, int variant, const uint8_t *p, size_t len)
{
    print_error("%s: %s, input of %zu: %.*s\n", what,
        kve_digits_variant_name((enum kve_digits_variant)variant), len,
        (int)len, (const char *)p);
    fail();
}

static size_t
check_at(const uint8_t *p, size_t len, const struct taken *want, int variant)
{
    size_t room = len / 2 + KVE_DIGITS_SLACK;
    const uint8_t *end;
    size_t n = SIZE_MAX;
    size_t at;

    for (size_t i = room; i < room + 16; i++)
        out[i] = CANARY;
    end = kve_digits_decode(p, p + len, out, &n);
    at = (size_t)(end - p);
    if (n > want->n || memcmp(out, want->values, n * sizeof(*out)) != 0)
        report("values", variant, p, len);
    if (n > 0 ? at != want->ends[n - 1] && at != want->ends[n - 1] + 1 : at > 1)
        report("where it stopped", variant, p, len);
    if (at > len || (at > 0 && p[at - 1] != ',' && p[at - 1] != ' '))
        report("what it took", variant, p, len);
    for (size_t i = room; i < room + 16; i++)
        if (out[i] != CANARY)
            report("room", variant, p, len);
    return n;
}

/* Returns the least that a variant took. */
static size_t
check(const char *text, size_t len)
{
    static struct taken want;
    size_t least = SIZE_MAX;

    reference((const uint8_t *)text, len, &want);
    for (int v = 0; v < KVE_DIGITS_N_VARIANTS; v++) {
        size_t n;

        if (!kve_digits_use((enum kve_digits_variant)v))
            continue;
        memcpy(back - len, text, len);
        n = check_at(back - len, len, &want, v);
        if (n < least)
            least = n;
        memcpy(front, text, len);
        (void)check_at(front, len, &want, v);
    }
    return least;
}

/* ---- the inputs ---- */

/* A number of some digits, zeros in front not excluded. */
static size_t
put_number(char *w, unsigned digits)
{
    for (unsigned i = 0; i < digits; i++)
        w[i] = (char)('0' + next_random() % 10);
    if (digits > 1 && w[0] == '0')
        w[0] = '1';
    return digits;
}

/* Lists of all lengths of numbers and both commas are taken but for what is
 * near the end. */
static void
test_usual(void **state)
{
    static char text[MOST];

    (void)state;
    for (int round = 0; round < 400 / TEST_SCALE; round++) {
        unsigned most = 1 + (unsigned)(next_random() % 8);
        bool wide = next_random() % 2 == 0;
        size_t len = 0, n = 0, least;

        while (len < 2000) {
            len += put_number(text + len, 1 + (unsigned)(next_random() % most));
            text[len++] = ',';
            if (wide)
                text[len++] = ' ';
            n++;
        }
        len -= wide;
        least = check(text, len);
        if (least + 10 < n)
            report("stopped too early", 0, (uint8_t *)text, len);
    }
}

/* Every place of a fault in a window, and every kind. */
static void
test_faults(void **state)
{
    static const char *const faults[] = { "", " ", "  ", ",", "0", "-", ".",
        "]", "x", "\t", "\n", "123456789", "99999999", "01", " 1", "/", ":",
        "\x80", "\xff", "\xb0", "1 ", "1 2", "1]" };
    static const char usual[] = "1, 22,333, 4444,55555, 666666,0,7777777,8,";
    char text[600];

    (void)state;
    for (size_t lead = 0; lead < 140; lead++) {
        for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) {
            size_t len = 0;

            while (len < lead)
                text[len] = usual[len % (sizeof(usual) - 1)], len++;
            strcpy(text + len, faults[i]);
            len += strlen(faults[i]);
            strcpy(text + len,
                ",1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,"
                "19,20,21,22,23,24,25,26,27,28,29,30,31,32,33");
            len += strlen(text + len);
            (void)check(text, len);
            (void)check(text, lead + strlen(faults[i]));
        }
    }
}

static void
test_random(void **state)
{
    static const char bytes[] = "0123456789,,,   ]-.e\n";
    char text[300];

    (void)state;
    for (int round = 0; round < 200000 / TEST_SCALE; round++) {
        size_t len = next_random() % sizeof(text);

        for (size_t i = 0; i < len;) {
            if (next_random() % 16 == 0) {
                text[i++] = bytes[next_random() % (sizeof(bytes) - 1)];
                continue;
            }
            i += put_number(
                text + i, len - i > 8 ? 1 + (unsigned)(next_random() % 8) : 1);
            if (i < len)
                text[i++] = ',';
            if (i < len && next_random() % 2 == 0)
                text[i++] = ' ';
        }
        (void)check(text, len);
    }
}

static void
check_u64(const char *text, bool fits, size_t digits, uint64_t want)
{
    size_t len = strlen(text);
    uint8_t *p = back - len;
    bool got_fits = false;
    uint64_t got = 0;
    const uint8_t *end;

    for (int i = 0; i < 2; i++) {
        memcpy(p, text, len);
        end = kve_digits_u64(p, p + len, &got, &got_fits);
        if ((size_t)(end - p) != digits || got_fits != fits ||
            (fits && got != want)) {
            print_error("%s: %llu\n", text, (unsigned long long)got);
            fail();
        }
        p = front;
    }
}

static void
test_u64(void **state)
{
    static const char *const behind[] = { "", ",",
        ", 1234567890123456789012345678901234567890",
        "\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"" };
    char text[200];

    (void)state;
    for (size_t b = 0; b < 4; b++) {
        for (unsigned digits = 0; digits < 30; digits++) {
            for (int round = 0; round < 50; round++) {
                unsigned __int128 value = 0;

                put_number(text, digits);
                text[digits] = '\0';
                /* Near the edge, too. */
                if (digits == 20 && round % 2 == 0)
                    memcpy(text, "184467440737095516", 18);
                for (unsigned i = 0; i < digits; i++)
                    value = value * 10 + (unsigned)(text[i] - '0');
                strcat(text, behind[b]);
                check_u64(text, value <= UINT64_MAX, digits, (uint64_t)value);
            }
        }
    }
    check_u64("18446744073709551615", true, 20, UINT64_MAX);
    check_u64("18446744073709551616", false, 20, 0);
    check_u64("00000000000000000000000000000007,             ", true, 32, 7);
}

static void
test_variants(void **state)
{
    (void)state;
    assert_true(kve_digits_variant_runs(KVE_DIGITS_SCALAR));
    assert_false(kve_digits_variant_runs(KVE_DIGITS_N_VARIANTS));
    assert_false(kve_digits_use(KVE_DIGITS_N_VARIANTS));
    assert_string_equal(
        kve_digits_variant_name(KVE_DIGITS_N_VARIANTS), "unknown");
    for (int v = 0; v < KVE_DIGITS_N_VARIANTS; v++)
        print_message("%s %s\n",
            kve_digits_variant_name((enum kve_digits_variant)v),
            kve_digits_variant_runs((enum kve_digits_variant)v) ? "runs"
                                                                : "does not");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_usual),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_u64),
    };

    return cmocka_run_group_tests(tests, map_guarded, NULL);
}
