/*
 * input_digits.c - the portable variant of the kernel of digits, and the choice
 * between variants.
 *
 * Eight bytes are loaded at each number; the comma is found in them by one bit,
 * and what stands before it is moved to the end, so that zeros stand before it,
 * and multiplied out, all at once. The next number waits for the place of the
 * comma and no more; that all before it are digits is looked at beside. What
 * the vector variants do instead, and how fast each is, stands in
 * input_digits_x86.c.
 */
#include "http/input_digits.h"

#include "http/input_digits_impl.h"

#include <stdatomic.h>

#define HIGH UINT64_C(0x8080808080808080)
/* The bit that commas and spaces have, and digits have not. */
#define MARKS UINT64_C(0x1010101010101010)

/* The high bit of each byte that is no digit; those above the lowest may be
 * wrong, as the addition carries. */
static inline uint64_t
others(uint64_t x)
{
    return ((x + UINT64_C(0x7676767676767676)) | x) & HIGH;
}

/* How many digits x begins with: 0 to 8. */
static inline unsigned
digits(uint64_t x)
{
    uint64_t no = others(x);

    return no == 0 ? 8 : (unsigned)__builtin_ctzll(no) >> 3;
}

const uint8_t *
kve_digits_decode_scalar(
    const uint8_t *p, const uint8_t *end, uint32_t *out, size_t *ret_n)
{
    size_t n = 0;

    if (p < end && *p == ' ')
        p++;
    while (end - p >= 10) {
        uint64_t x = kve_digits_load(p);
        uint64_t marks = x & MARKS;
        unsigned len = marks != 0 ? (unsigned)__builtin_ctzll(marks) >> 3 : 8;

        if (len == 0 || p[len] != ',' || (*p == '0' && len > 1))
            break;
        x <<= 64 - 8 * len;
        if (others(x) != 0)
            break;
        out[n++] = kve_digits_value(x);
        p += len + 1;
        if (*p == ' ')
            p++;
    }
    *ret_n = n;
    return p;
}

static const uint64_t powers[] = { 1, 10, 100, 1000, 10000, 100000, 1000000,
    10000000, 100000000 };

/* One digit at a time, near the end of the body. */
static const uint8_t *
slow_u64(const uint8_t *p, const uint8_t *end, uint64_t *ret, bool *ret_fits)
{
    uint64_t value = 0;
    bool over = false;

    for (; p < end && *p >= '0' && *p <= '9'; p++) {
        over |= __builtin_mul_overflow(value, 10, &value);
        over |= __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value);
    }
    *ret = value;
    *ret_fits = !over;
    return p;
}

const uint8_t *
kve_digits_u64(
    const uint8_t *p, const uint8_t *end, uint64_t *ret, bool *ret_fits)
{
    uint64_t value, x;
    unsigned len;

    *ret_fits = true;
    if (end - p < 24)
        return slow_u64(p, end, ret, ret_fits);
    x = kve_digits_load(p);
    if (others(x) != 0) {
        len = digits(x);
        *ret = len == 0 ? 0 : kve_digits_value(x << (64 - 8 * len));
        return p + len;
    }
    value = kve_digits_value(x);
    x = kve_digits_load(p + 8);
    len = digits(x);
    if (len < 8) {
        *ret = len == 0
            ? value
            : value * powers[len] + kve_digits_value(x << (64 - 8 * len));
        return p + 8 + len;
    }
    value = value * powers[8] + kve_digits_value(x);
    x = kve_digits_load(p + 16);
    len = digits(x);
    if (len == 0) {
        *ret = value;
        return p + 16;
    }
    if (len > 4 || __builtin_mul_overflow(value, powers[len], &value) ||
        __builtin_add_overflow(
            value, kve_digits_value(x << (64 - 8 * len)), &value))
        return slow_u64(p, end, ret, ret_fits);
    *ret = value;
    return p + 16 + len;
}

static const struct variant {
    const char *name;
    kve_digits_fn *decode; /* NULL: not in this build */
} variants[KVE_DIGITS_N_VARIANTS] = {
    [KVE_DIGITS_SCALAR] = { "scalar", kve_digits_decode_scalar },
#if KVE_DIGITS_X86
    [KVE_DIGITS_AVX2] = { "avx2", kve_digits_decode_avx2 },
    [KVE_DIGITS_AVX512] = { "avx512", kve_digits_decode_avx512 },
#else
    [KVE_DIGITS_AVX2] = { "avx2", NULL },
    [KVE_DIGITS_AVX512] = { "avx512", NULL },
#endif
};

const char *
kve_digits_variant_name(enum kve_digits_variant variant)
{
    if ((unsigned)variant >= KVE_DIGITS_N_VARIANTS)
        return "unknown";
    return variants[variant].name;
}

bool
kve_digits_variant_runs(enum kve_digits_variant variant)
{
    if ((unsigned)variant >= KVE_DIGITS_N_VARIANTS)
        return false;
#if KVE_DIGITS_X86
    bool avx2 = __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt");

    if (variant == KVE_DIGITS_AVX2)
        return avx2;
    if (variant == KVE_DIGITS_AVX512)
        return avx2 && __builtin_cpu_supports("avx512f") &&
            __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512vbmi") &&
            __builtin_cpu_supports("avx512vbmi2");
#endif
    return variants[variant].decode != NULL;
}

static kve_digits_fn decode_first;

/* The variant in use. Each is right, so no order between threads matters. */
static kve_digits_fn *_Atomic current = decode_first;

/* Stands in until the first call has chosen. */
static const uint8_t *
decode_first(const uint8_t *p, const uint8_t *end, uint32_t *out, size_t *ret_n)
{
    kve_digits_fn *expected = decode_first;
    kve_digits_fn *best = kve_digits_decode_scalar;

    for (int i = 0; i < KVE_DIGITS_N_VARIANTS; i++)
        if (kve_digits_variant_runs((enum kve_digits_variant)i))
            best = variants[i].decode;
    /* Not a plain store: that could undo a kve_digits_use() just made. */
    (void)atomic_compare_exchange_strong(&current, &expected, best);
    return best(p, end, out, ret_n);
}

bool
kve_digits_use(enum kve_digits_variant variant)
{
    if (!kve_digits_variant_runs(variant))
        return false;
    atomic_store_explicit(
        &current, variants[variant].decode, memory_order_relaxed);
    return true;
}

const uint8_t *
kve_digits_decode(
    const uint8_t *p, const uint8_t *end, uint32_t *out, size_t *ret_n)
{
    kve_digits_fn *decode =
        atomic_load_explicit(&current, memory_order_relaxed);

    return decode(p, end, out, ret_n);
}
