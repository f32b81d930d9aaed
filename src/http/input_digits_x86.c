/*
 * input_digits_x86.c - the kernel of digits on x86-64: AVX-512 with VBMI, and
 * AVX2.
 *
 * 64 bytes at a time are compared with what may stand in a list, which gives a
 * word of bits for each (bit i: byte i is one):
 *
 *     bytes    1 7 , _ 2 0 4 , _ 9 9 8 2 5 , _ 3 1
 *     digits   1 1 . . 1 1 1 . . 1 1 1 1 1 . . 1 1
 *     commas   . . 1 . . . . 1 . . . . . . 1 . . .
 *     spaces   . . . 1 . . . . 1 . . . . . . 1 . .
 *     starts   1 . . . 1 . . . . 1 . . . . . . . .
 *
 * A comma has a digit before it, a space a comma, and nothing else is there:
 * then each comma ends one number, and the k-th start belongs to the k-th
 * comma. What breaks that (other whitespace, signs, a zero in front of other
 * digits, nine digits, the end of the list) is a bit in a word of its own, and
 * the window counts up to the lowest of them. A window goes as far as its last
 * comma, and the next one begins there, so no number lies across two.
 *
 * AVX-512 moves the places of starts and commas together (vpcompressb), fetches
 * for each number the eight bytes that end at its comma, zeros for those before
 * its start (vpermb), and multiplies out 16 numbers with three multiplications
 * that add pairs: 10 and 1, 100 and 1, 10,000 and 1. AVX2 takes the places out
 * of the words one after another, four numbers at a time so that the count of
 * them is foretold, and multiplies each in a general register.
 *
 * Figures, ns a number (bodies of 2,048, 2^21 in all, none read twice in a
 * pass; AMD EPYC (Zen 4), gcc 12 -O2; from the second-level cache AVX-512 takes
 * 0.3 to 0.4 less):
 *
 *                       0..131071          1 to 6 digits
 *                      ","     ", "        ","     ", "
 *     portable         5.7      5.8        5.7      5.7
 *     AVX2             3.1      3.3        2.7      2.8
 *     AVX-512          1.6      1.8        1.3      1.4
 */
#include "http/input_digits_impl.h"

#if KVE_DIGITS_X86

#include <immintrin.h>
#include <stdbool.h>

#define INLINE static inline __attribute__((always_inline))
#define AVX2 __attribute__((target("avx2,bmi,popcnt")))
#define AVX512                                                    \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi," \
                          "avx512vbmi2,avx2,bmi,popcnt")))

/* What is in the 64 bytes. */
struct window {
    uint64_t digits;
    uint64_t commas;
    uint64_t spaces;
    uint64_t zeros;
};

/* The numbers in it. */
struct found {
    uint64_t starts;
    uint64_t commas;
    bool more; /* nothing but numbers up to its end */
};

/* The first digits of runs of nine. */
INLINE uint64_t
runs_of_nine(uint64_t digits)
{
    uint64_t two = digits & digits >> 1;
    uint64_t four = two & two >> 2;
    uint64_t eight = four & four >> 4;

    return eight & digits >> 8;
}

/* What is no list of numbers: a bit at its first byte, or at the start of the
 * number that is none. */
INLINE uint64_t
find_odd(const struct window *w)
{
    uint64_t starts = w->digits & ~(w->digits << 1);

    return ~(w->digits | w->commas | w->spaces) |
        (w->spaces & ~(w->commas << 1 | 1)) | (w->commas & ~(w->digits << 1)) |
        (starts & w->zeros & w->digits >> 1) | runs_of_nine(w->digits);
}

/*
 * The next window waits for the highest comma of this one, so that must not
 * wait for the search of what is odd. It is foretold that there is nothing.
 */
INLINE struct found
find(const struct window *w)
{
    uint64_t odd = find_odd(w);
    struct found found;

    found.starts = w->digits & ~(w->digits << 1);
    found.commas = w->commas;
    found.more = odd == 0;
    if (__builtin_expect(odd != 0, 0))
        found.commas &= (odd & (0 - odd)) - 1;
    return found;
}

/* The number of the highest bit; there is one. */
INLINE size_t
highest(uint64_t bits)
{
    return (size_t)(63 - __builtin_clzll(bits));
}

/* ---- AVX2 ---- */

AVX2 INLINE uint64_t
bits_of(__m256i low, __m256i high)
{
    return (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32 |
        (uint32_t)_mm256_movemask_epi8(low);
}

AVX2 INLINE uint64_t
bytes_like(__m256i low, __m256i high, char c)
{
    __m256i all = _mm256_set1_epi8(c);

    return bits_of(_mm256_cmpeq_epi8(low, all), _mm256_cmpeq_epi8(high, all));
}

/* A byte is at most 9 when the smaller of it and 9 is itself. */
AVX2 INLINE __m256i
is_digit(__m256i bytes)
{
    __m256i x = _mm256_sub_epi8(bytes, _mm256_set1_epi8('0'));

    return _mm256_cmpeq_epi8(_mm256_min_epu8(x, _mm256_set1_epi8(9)), x);
}

AVX2 INLINE struct window
look_avx2(const uint8_t *p)
{
    __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)p);
    __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(p + 32));
    struct window w;

    w.digits = bits_of(is_digit(low), is_digit(high));
    w.commas = bytes_like(low, high, ',');
    w.spaces = bytes_like(low, high, ' ');
    w.zeros = bytes_like(low, high, '0');
    return w;
}

/* Beyond the last number this gives rubbish, from bytes of [p, p + 72). */
AVX2 INLINE uint32_t
next_value(const uint8_t *p, struct found *found)
{
    size_t start = (size_t)_tzcnt_u64(found->starts);
    size_t comma = (size_t)_tzcnt_u64(found->commas);
    uint64_t x = kve_digits_load(p + start);

    found->starts &= found->starts - 1;
    found->commas &= found->commas - 1;
    return kve_digits_value(x << ((8 - (comma - start)) * 8 & 63));
}

#define ROOM_AVX2 72

AVX2 const uint8_t *
kve_digits_decode_avx2(
    const uint8_t *p, const uint8_t *end, uint32_t *out, size_t *ret_n)
{
    uint32_t *at = out;
    bool more = true;
    size_t rest = 0;

    while (more && end - p >= ROOM_AVX2) {
        struct window w = look_avx2(p);
        struct found found = find(&w);
        const uint8_t *next;
        size_t n;

        more = found.more;
        if (found.commas == 0)
            break;
        n = (size_t)__builtin_popcountll(found.commas);
        next = p + highest(found.commas) + 1;
        for (size_t i = 0; i < n; i += 4) {
            at[i] = next_value(p, &found);
            at[i + 1] = next_value(p, &found);
            at[i + 2] = next_value(p, &found);
            at[i + 3] = next_value(p, &found);
        }
        at += n;
        p = next;
    }
    if (more) /* the end is too near for a whole window */
        p = kve_digits_decode_scalar(p, end, at, &rest);
    *ret_n = (size_t)(at - out) + rest;
    return p;
}

/* ---- AVX-512 ---- */

/* Byte j of number k: where it is, counted from the number's comma. */
#define EIGHT -8, -7, -6, -5, -4, -3, -2, -1
#define TIMES8(x) x, x, x, x, x, x, x, x

/* Numbers in an order in which packing two registers, 16 bytes at a time, leads
 * to the natural one. */
static const int8_t even[64]
    __attribute__((aligned(64))) = { TIMES8(0), TIMES8(1), TIMES8(4), TIMES8(5),
        TIMES8(8), TIMES8(9), TIMES8(12), TIMES8(13) };
static const int8_t back[64] __attribute__((aligned(64))) = { EIGHT, EIGHT,
    EIGHT, EIGHT, EIGHT, EIGHT, EIGHT, EIGHT };
static const int8_t iota[64]
    __attribute__((aligned(64))) = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
        13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
        31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48,
        49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63 };

/* Fours of digits, as 32-bit numbers, of the eight numbers which. */
AVX512 INLINE __m512i
fours(__m512i digits, __m512i commas, __m512i starts, __m512i which)
{
    __m512i from = _mm512_add_epi8(
        _mm512_permutexvar_epi8(which, commas), _mm512_load_si512(back));
    __mmask64 there =
        _mm512_cmpge_epi8_mask(from, _mm512_permutexvar_epi8(which, starts));
    __m512i x = _mm512_maskz_permutexvar_epi8(there, from, digits);

    x = _mm512_maddubs_epi16(x, _mm512_set1_epi16(0x010a));
    return _mm512_madd_epi16(x, _mm512_set1_epi32(0x00010064));
}

AVX512 INLINE struct window
look_avx512(__m512i bytes, __m512i digits)
{
    struct window w;

    w.digits = _mm512_cmple_epu8_mask(digits, _mm512_set1_epi8(9));
    w.commas = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(','));
    w.spaces = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(' '));
    w.zeros = _mm512_testn_epi8_mask(digits, digits);
    return w;
}

/* The chosen bytes, moved together. vpcompressb waits for the old content of
 * the register that it writes, even where it replaces it all: give it zero. */
AVX512 INLINE __m512i
compress(uint64_t chosen, __m512i bytes)
{
    __m512i fresh = _mm512_setzero_si512();

    __asm__("" : "+v"(fresh));
    return _mm512_mask_compress_epi8(fresh, chosen, bytes);
}

/* The n numbers of a window. */
AVX512 INLINE void
put_avx512(uint32_t *out, size_t n, __m512i digits, const struct found *found)
{
    const __m512i places = _mm512_load_si512(iota);
    __m512i commas = compress(found->commas, places);
    __m512i starts = compress(found->starts, places);
    __m512i which = _mm512_load_si512(even);

    for (size_t i = 0; i < n; i += 16) {
        __m512i a = fours(digits, commas, starts, which);
        __m512i b = fours(digits, commas, starts,
            _mm512_add_epi8(which, _mm512_set1_epi8(2)));
        __m512i words = _mm512_packus_epi32(a, b);

        _mm512_storeu_si512(
            out + i, _mm512_madd_epi16(words, _mm512_set1_epi32(0x00012710)));
        which = _mm512_add_epi8(which, _mm512_set1_epi8(16));
    }
}

AVX512 const uint8_t *
kve_digits_decode_avx512(
    const uint8_t *p, const uint8_t *end, uint32_t *out, size_t *ret_n)
{
    uint32_t *at = out;
    bool more = true;

    while (more && p < end) {
        size_t left = (size_t)(end - p);
        __m512i bytes = __builtin_expect(left >= 64, 1)
            ? _mm512_loadu_si512(p)
            : _mm512_maskz_loadu_epi8((UINT64_C(1) << left) - 1, p);
        __m512i digits = _mm512_sub_epi8(bytes, _mm512_set1_epi8('0'));
        struct window w = look_avx512(bytes, digits);
        struct found found = find(&w);
        size_t n;

        if (found.commas == 0)
            break;
        more = found.more;
        p += highest(found.commas) + 1;
        n = (size_t)__builtin_popcountll(found.commas);
        put_avx512(at, n, digits, &found);
        at += n;
    }
    *ret_n = (size_t)(at - out);
    return p;
}

#endif
