/*
 * The portable variant of the token kernel, and the choice between variants.
 *
 * A reader with a table of lengths has to wait for a load (the first byte),
 * for another one (its length) and for an addition before it can load the
 * next first byte. Here eight bytes are loaded at each value, so that the next
 * first byte is in a register already, and its table row is looked up while
 * the next eight bytes are on their way. With the tests for the end of the
 * input that makes 9 cycles a value, and 12 without looking ahead. There is no
 * branch on the form: forms change without a pattern.
 *
 * What the vector variants do, and how fast each is, stands in tokens_x86.c.
 */
#include "wire/tokens.h"

#include <stdatomic.h>

#include "wire/tokens_impl.h"

/* The rows of the fixints i and following. */
#define FIX1(i) [i] = { 0x7f, 1, 56, 48 }
#define FIX4(i) FIX1(i), FIX1((i) + 1), FIX1((i) + 2), FIX1((i) + 3)
#define FIX16(i) FIX4(i), FIX4((i) + 4), FIX4((i) + 8), FIX4((i) + 12)
#define FIX64(i) FIX16(i), FIX16((i) + 16), FIX16((i) + 32), FIX16((i) + 48)

/*
 * For each first byte that the quick loop takes: how the value, and the first
 * byte behind it, are cut out of the eight bytes that begin there.
 */
static const struct form {
    uint32_t mask;
    uint8_t len; /* 0: not taken */
    uint8_t shift;
    uint8_t next; /* the shift that leaves the following byte the lowest */
} forms[256] = {
    FIX64(0),
    FIX64(64),
    [0xcc] = { 0xff, 2, 48, 40 },
    [0xcd] = { 0xffff, 3, 40, 32 },
    [0xce] = { 0xffffffff, 5, 24, 16 },
};

/* The eight bytes at p as a big-endian number; compiles to one load. */
static inline uint64_t
load_be(const uint8_t *p)
{
    return (uint64_t)p[0] << 56 | (uint64_t)p[1] << 48 | (uint64_t)p[2] << 40 |
        (uint64_t)p[3] << 32 | (uint64_t)p[4] << 24 | (uint64_t)p[5] << 16 |
        (uint64_t)p[6] << 8 | (uint64_t)p[7];
}

/* Take one value of any form, carefully; NULL where it cannot be taken. */
static const uint8_t *
decode_one(const uint8_t *p, const uint8_t *end, uint32_t *ret_value)
{
    uint64_t v = 0;
    size_t width;

    if (p == end)
        return NULL;
    if (*p < 0x80) {
        *ret_value = *p;
        return p + 1;
    }
    if (*p < 0xcc || *p > 0xd3)
        return NULL;

    width = (size_t)1 << (*p & 3);
    if ((size_t)(end - p) <= width)
        return NULL;
    for (size_t i = 1; i <= width; i++)
        v = v << 8 | p[i];
    if (*p >= 0xd0 && v >> (8 * width - 1) != 0)
        return NULL; /* negative */
    if (v > UINT32_MAX)
        return NULL;
    *ret_value = (uint32_t)v;
    return p + 1 + width;
}

/*
 * Take values of the quick forms, of which 8 bytes can be read: moves *p and
 * returns how many. The next first byte is cut out of the bytes at hand, and
 * is looked up while the next eight are being loaded.
 */
static size_t
decode_quick(const uint8_t **p, const uint8_t *end, size_t n, uint32_t *out)
{
    const uint8_t *at = *p;
    size_t i = 0;
    uint64_t bytes;
    uint8_t tag;

    if (n == 0 || end - at < 8)
        return 0;
    bytes = load_be(at);
    tag = (uint8_t)(bytes >> 56);
    for (;;) {
        const struct form *form = &forms[tag];

        if (form->len == 0)
            break;
        out[i++] = (uint32_t)(bytes >> form->shift) & form->mask;
        at += form->len;
        if (i == n || end - at < 8)
            break;
        tag = (uint8_t)(bytes >> form->next);
        bytes = load_be(at);
    }
    *p = at;
    return i;
}

const uint8_t *
kve_tokens_decode_scalar(const uint8_t *p, const uint8_t *end, size_t n,
    uint32_t *out, const uint8_t **ret_stop, size_t *ret_done)
{
    size_t done = 0;

    for (;;) {
        const uint8_t *next;

        done += decode_quick(&p, end, n - done, out + done);
        if (done == n)
            return p;
        next = decode_one(p, end, &out[done]);
        if (next == NULL)
            break;
        p = next;
        done++;
    }
    *ret_stop = p;
    *ret_done = done;
    return NULL;
}

static const struct variant {
    const char *name;
    kve_tokens_fn *decode; /* NULL: not in this build */
} variants[KVE_TOKENS_N_VARIANTS] = {
    [KVE_TOKENS_SCALAR] = { "scalar", kve_tokens_decode_scalar },
#if KVE_TOKENS_X86
    [KVE_TOKENS_AVX2] = { "avx2", kve_tokens_decode_avx2 },
    [KVE_TOKENS_AVX512] = { "avx512", kve_tokens_decode_avx512 },
#else
    [KVE_TOKENS_AVX2] = { "avx2", NULL },
    [KVE_TOKENS_AVX512] = { "avx512", NULL },
#endif
};

const char *
kve_tokens_variant_name(enum kve_tokens_variant variant)
{
    if ((unsigned)variant >= KVE_TOKENS_N_VARIANTS)
        return "unknown";
    return variants[variant].name;
}

bool
kve_tokens_variant_runs(enum kve_tokens_variant variant)
{
    if ((unsigned)variant >= KVE_TOKENS_N_VARIANTS)
        return false;
#if KVE_TOKENS_X86
    bool avx2 = __builtin_cpu_supports("popcnt") &&
        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
        __builtin_cpu_supports("avx2");

    if (variant == KVE_TOKENS_AVX2)
        return avx2;
    if (variant == KVE_TOKENS_AVX512)
        return avx2 && __builtin_cpu_supports("avx512f") &&
            __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512vbmi") &&
            __builtin_cpu_supports("avx512vbmi2");
#endif
    return variants[variant].decode != NULL;
}

enum kve_tokens_variant
kve_tokens_best_variant(void)
{
    if (kve_tokens_variant_runs(KVE_TOKENS_AVX512))
        return KVE_TOKENS_AVX512;
#if KVE_TOKENS_X86
    /* These have BMI2 too, but their pext is microcode: 20 to 250 cycles. */
    if (__builtin_cpu_is("amdfam17h") || __builtin_cpu_is("bdver4"))
        return KVE_TOKENS_SCALAR;
#endif
    if (kve_tokens_variant_runs(KVE_TOKENS_AVX2))
        return KVE_TOKENS_AVX2;
    return KVE_TOKENS_SCALAR;
}

static kve_tokens_fn decode_first;

/* The variant in use. Each is right, so no order between threads matters. */
static kve_tokens_fn *_Atomic current = decode_first;

/* Stands in until the first call has chosen. */
static const uint8_t *
decode_first(const uint8_t *p, const uint8_t *end, size_t n, uint32_t *out,
    const uint8_t **ret_stop, size_t *ret_done)
{
    kve_tokens_fn *expected = decode_first;
    kve_tokens_fn *best = variants[kve_tokens_best_variant()].decode;

    /* Not a plain store: that could undo a kve_tokens_use() just made. */
    (void)atomic_compare_exchange_strong(&current, &expected, best);
    return best(p, end, n, out, ret_stop, ret_done);
}

bool
kve_tokens_use(enum kve_tokens_variant variant)
{
    if (!kve_tokens_variant_runs(variant))
        return false;
    atomic_store_explicit(
        &current, variants[variant].decode, memory_order_relaxed);
    return true;
}

const uint8_t *
kve_tokens_decode(const uint8_t *p, const uint8_t *end, size_t n, uint32_t *out,
    const uint8_t **ret_stop, size_t *ret_done)
{
    kve_tokens_fn *decode =
        atomic_load_explicit(&current, memory_order_relaxed);

    return decode(p, end, n, out, ret_stop, ret_done);
}
