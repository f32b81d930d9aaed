/*
 * The plain block hash on x86-64: with AVX2 and BMI2, and with AVX-512.
 *
 * XXH3 of a short input multiplies two 64-bit words to 128 bits for each 16
 * bytes and adds the halves, xored, up. A block of 16 tokens is 4 products and
 * about 40 instructions, and blocks do not depend on one another: what it
 * costs is how many instructions begin in a cycle. mulx takes the moves away
 * that mul needs.
 *
 * With AVX-512 eight blocks lie side by side, a word of each in one register:
 * eight registers are loaded (a block each), turned (24 shuffles), and each
 * 128-bit product put together from four of 32 bits. That is about 14
 * instructions a block. From 61 tokens on XXH3 is another function, made for
 * vectors, and one block is enough; its secret, which depends on the seed, is
 * made once a call and not once a block.
 *
 * Figures, ns a block, 2,048 tokens a call out of 2^21 (AMD EPYC (Zen 4),
 * 3.7 GHz, gcc 12 -O2, best of 60):
 *
 *     tokens a block     4     8    16    32    64   128   256
 *     portable        1.20  1.83  3.47  8.33  23.7  93.6   179
 *     AVX2            1.21  1.82  3.51  5.90   9.4  15.4  28.0
 *     AVX-512         1.21  1.82  2.36  4.48   9.6  15.3  26.9
 *
 * Tried and not kept: the xors alone in vectors (3.9 ns for 16 tokens: words
 * go through memory to the multiplier); two or four blocks hashed by the
 * scalar units beside each eight (2.2 instead of 2.3 ns for 16 tokens, and
 * nothing for 32).
 */
#include "hash/plain_impl.h"

#if KVE_PLAIN_X86

#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512dq,bmi2")))
#define INLINE TARGET __attribute__((always_inline)) static inline

/* A word of XXH3's secret, with the seed: added to the first word of a pair,
 * taken from the second. */
#define WORD(at)                                                      \
    _mm512_set1_epi64((long long)(XXH_readLE64(XXH3_kSecret + (at)) + \
        (((at)&8) == 0 ? KVE_CONTENT_SEED : 0 - KVE_CONTENT_SEED)))

/* Low xor high half of the products of eight pairs. */
INLINE __m512i
fold(__m512i a, __m512i b)
{
    __m512i low = _mm512_set1_epi64(0xffffffff);
    __m512i a_high = _mm512_srli_epi64(a, 32);
    __m512i b_high = _mm512_srli_epi64(b, 32);
    __m512i ll = _mm512_mul_epu32(a, b);
    __m512i lh = _mm512_mul_epu32(a, b_high);
    __m512i hl = _mm512_mul_epu32(a_high, b);
    __m512i hh = _mm512_mul_epu32(a_high, b_high);
    __m512i mid = _mm512_add_epi64(hl, _mm512_srli_epi64(ll, 32));
    __m512i rest = _mm512_add_epi64(lh, _mm512_and_si512(mid, low));
    __m512i high = _mm512_add_epi64(hh,
        _mm512_add_epi64(
            _mm512_srli_epi64(mid, 32), _mm512_srli_epi64(rest, 32)));

    return _mm512_xor_si512(
        high, _mm512_mask_blend_epi32(0xaaaa, ll, _mm512_slli_epi64(rest, 32)));
}

/* One product of each of eight blocks, from two words of each and two of the
 * secret, which stand at byte at. */
INLINE __m512i
mix(__m512i first, __m512i second, size_t at)
{
    return fold(_mm512_xor_si512(first, WORD(at)),
        _mm512_xor_si512(second, WORD(at + 8)));
}

/*
 * Words 0 to 7 at p, p + stride, ... become eight registers, one for each
 * word.
 */
INLINE void
turn(const uint8_t *p, size_t stride, __m512i w[8])
{
    __m512i r0 = _mm512_loadu_si512(p);
    __m512i r1 = _mm512_loadu_si512(p + stride);
    __m512i r2 = _mm512_loadu_si512(p + 2 * stride);
    __m512i r3 = _mm512_loadu_si512(p + 3 * stride);
    __m512i r4 = _mm512_loadu_si512(p + 4 * stride);
    __m512i r5 = _mm512_loadu_si512(p + 5 * stride);
    __m512i r6 = _mm512_loadu_si512(p + 6 * stride);
    __m512i r7 = _mm512_loadu_si512(p + 7 * stride);
    __m512i a = _mm512_unpacklo_epi64(r0, r1);
    __m512i b = _mm512_unpackhi_epi64(r0, r1);
    __m512i c = _mm512_unpacklo_epi64(r2, r3);
    __m512i d = _mm512_unpackhi_epi64(r2, r3);
    __m512i e = _mm512_unpacklo_epi64(r4, r5);
    __m512i f = _mm512_unpackhi_epi64(r4, r5);
    __m512i g = _mm512_unpacklo_epi64(r6, r7);
    __m512i h = _mm512_unpackhi_epi64(r6, r7);
    __m512i low = _mm512_shuffle_i64x2(a, c, 0x44);
    __m512i high = _mm512_shuffle_i64x2(a, c, 0xee);
    __m512i low2 = _mm512_shuffle_i64x2(e, g, 0x44);
    __m512i high2 = _mm512_shuffle_i64x2(e, g, 0xee);

    w[0] = _mm512_shuffle_i64x2(low, low2, 0x88);
    w[2] = _mm512_shuffle_i64x2(low, low2, 0xdd);
    w[4] = _mm512_shuffle_i64x2(high, high2, 0x88);
    w[6] = _mm512_shuffle_i64x2(high, high2, 0xdd);
    low = _mm512_shuffle_i64x2(b, d, 0x44);
    high = _mm512_shuffle_i64x2(b, d, 0xee);
    low2 = _mm512_shuffle_i64x2(f, h, 0x44);
    high2 = _mm512_shuffle_i64x2(f, h, 0xee);
    w[1] = _mm512_shuffle_i64x2(low, low2, 0x88);
    w[3] = _mm512_shuffle_i64x2(low, low2, 0xdd);
    w[5] = _mm512_shuffle_i64x2(high, high2, 0x88);
    w[7] = _mm512_shuffle_i64x2(high, high2, 0xdd);
}

INLINE __m512i
avalanche(__m512i x)
{
    x = _mm512_xor_si512(x, _mm512_srli_epi64(x, 37));
    x = _mm512_mullo_epi64(x, _mm512_set1_epi64(0x165667919E3779F9));
    return _mm512_xor_si512(x, _mm512_srli_epi64(x, 32));
}

INLINE __m512i
start(uint64_t len)
{
    return _mm512_set1_epi64((long long)(len * XXH_PRIME64_1));
}

/* Blocks of 16 tokens, eight at a time; returns how many. */
TARGET KVE_WIDE_LOCALS static size_t
hash_16(const uint32_t *tokens, size_t n_blocks, uint64_t *hashes)
{
    size_t i = 0;

    for (; n_blocks - i >= 8; i += 8) {
        __m512i w[8], sum;

        turn((const uint8_t *)(tokens + 16 * i), 64, w);
        sum = _mm512_add_epi64(start(64), mix(w[0], w[1], 0));
        sum = _mm512_add_epi64(sum, mix(w[6], w[7], 16));
        sum = _mm512_add_epi64(sum, mix(w[2], w[3], 32));
        sum = _mm512_add_epi64(sum, mix(w[4], w[5], 48));
        _mm512_storeu_si512(hashes + i, avalanche(sum));
    }
    return i;
}

/* Blocks of 32 tokens, half of eight of them at a time; returns how many. */
TARGET KVE_WIDE_LOCALS static size_t
hash_32(const uint32_t *tokens, size_t n_blocks, uint64_t *hashes)
{
    size_t i = 0;

    for (; n_blocks - i >= 8; i += 8) {
        const uint8_t *bytes = (const uint8_t *)(tokens + 32 * i);
        __m512i w[8], sum;

        turn(bytes, 128, w);
        sum = _mm512_add_epi64(start(128), mix(w[0], w[1], 0));
        sum = _mm512_add_epi64(sum, mix(w[2], w[3], 32));
        sum = _mm512_add_epi64(sum, mix(w[4], w[5], 64));
        sum = _mm512_add_epi64(sum, mix(w[6], w[7], 96));
        turn(bytes + 64, 128, w);
        sum = _mm512_add_epi64(sum, mix(w[6], w[7], 16));
        sum = _mm512_add_epi64(sum, mix(w[4], w[5], 48));
        sum = _mm512_add_epi64(sum, mix(w[2], w[3], 80));
        sum = _mm512_add_epi64(sum, mix(w[0], w[1], 112));
        _mm512_storeu_si512(hashes + i, avalanche(sum));
    }
    return i;
}

/* ------------------------------------------------------------------ */
/* Blocks of 61 to 256 tokens: eight sums of 64 bits, a stripe of 64 bytes at a
 * time. Longer ones scramble the sums in between, and are left to xxHash. */

#define IS_LONG(block_size) ((block_size) > 60 && (block_size) <= 256)

/* Where the last stripe's part of the secret begins, and that of the end. */
#define LAST_SECRET (XXH_SECRET_DEFAULT_SIZE - 64 - 7)
#define MERGE_SECRET 11

static const uint64_t first_sums[8] = { XXH_PRIME32_3, XXH_PRIME64_1,
    XXH_PRIME64_2, XXH_PRIME64_3, XXH_PRIME64_4, XXH_PRIME32_2, XXH_PRIME64_5,
    XXH_PRIME32_1 };

INLINE __m512i
add_stripe(__m512i sums, const uint8_t *bytes, const uint8_t *secret)
{
    __m512i data = _mm512_loadu_si512(bytes);
    __m512i key = _mm512_xor_si512(data, _mm512_loadu_si512(secret));
    __m512i product = _mm512_mul_epu32(key, _mm512_srli_epi64(key, 32));

    return _mm512_add_epi64(_mm512_add_epi64(sums, product),
        _mm512_shuffle_epi32(data, _MM_PERM_BADC));
}

TARGET KVE_WIDE_LOCALS static void
hash_long(
    const uint32_t *tokens, size_t size, size_t n_blocks, uint64_t *ret_hashes)
{
    XXH_ALIGN(64) uint8_t secret[XXH_SECRET_DEFAULT_SIZE];
    uint64_t words[8];

    XXH3_generateSecret_fromSeed(secret, KVE_CONTENT_SEED);
    for (size_t k = 0; k < n_blocks; k++) {
        const uint8_t *bytes = (const uint8_t *)(tokens + k * size);
        __m512i sums = _mm512_loadu_si512(first_sums);

        for (size_t i = 0; i < (4 * size - 1) / 64; i++)
            sums = add_stripe(sums, bytes + 64 * i, secret + 8 * i);
        sums = add_stripe(sums, bytes + 4 * size - 64, secret + LAST_SECRET);
        _mm512_storeu_si512(words, sums);
        ret_hashes[k] = XXH3_mergeAccs(
            words, secret + MERGE_SECRET, 4 * size * XXH_PRIME64_1);
    }
}

#undef TARGET
#undef INLINE
#define TARGET __attribute__((target("avx2,bmi2")))
#define INLINE TARGET __attribute__((always_inline)) static inline

/* Half a stripe. */
INLINE __m256i
add_half(__m256i sums, const uint8_t *bytes, const uint8_t *secret)
{
    __m256i data = _mm256_loadu_si256((const void *)bytes);
    __m256i key =
        _mm256_xor_si256(data, _mm256_loadu_si256((const void *)secret));
    __m256i product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32));

    return _mm256_add_epi64(
        _mm256_add_epi64(sums, product), _mm256_shuffle_epi32(data, 0x4e));
}

TARGET static void
hash_long_halves(
    const uint32_t *tokens, size_t size, size_t n_blocks, uint64_t *ret_hashes)
{
    XXH_ALIGN(64) uint8_t secret[XXH_SECRET_DEFAULT_SIZE];
    uint64_t words[8];

    XXH3_generateSecret_fromSeed(secret, KVE_CONTENT_SEED);
    for (size_t k = 0; k < n_blocks; k++) {
        const uint8_t *bytes = (const uint8_t *)(tokens + k * size);
        const uint8_t *last = bytes + 4 * size - 64;
        __m256i low = _mm256_loadu_si256((const void *)first_sums);
        __m256i high = _mm256_loadu_si256((const void *)(first_sums + 4));

        for (size_t i = 0; i < (4 * size - 1) / 64; i++) {
            low = add_half(low, bytes + 64 * i, secret + 8 * i);
            high = add_half(high, bytes + 64 * i + 32, secret + 8 * i + 32);
        }
        low = add_half(low, last, secret + LAST_SECRET);
        high = add_half(high, last + 32, secret + LAST_SECRET + 32);
        _mm256_storeu_si256((void *)words, low);
        _mm256_storeu_si256((void *)(words + 4), high);
        ret_hashes[k] = XXH3_mergeAccs(
            words, secret + MERGE_SECRET, 4 * size * XXH_PRIME64_1);
    }
}

/* ------------------------------------------------------------------ */

TARGET void
kve_plain_avx2(const uint32_t *tokens, uint32_t block_size, size_t n_blocks,
    uint64_t *ret_hashes)
{
    if (IS_LONG(block_size))
        hash_long_halves(tokens, block_size, n_blocks, ret_hashes);
    else if (block_size == 32)
        KVE_PLAIN_LOOP(tokens, 32, n_blocks, ret_hashes);
    else
        kve_plain_portable(tokens, block_size, n_blocks, ret_hashes);
}

void
kve_plain_avx512(const uint32_t *tokens, uint32_t block_size, size_t n_blocks,
    uint64_t *ret_hashes)
{
    size_t i = 0;

    if (IS_LONG(block_size)) {
        hash_long(tokens, block_size, n_blocks, ret_hashes);
        return;
    }
    if (block_size == 16)
        i = hash_16(tokens, n_blocks, ret_hashes);
    else if (block_size == 32)
        i = hash_32(tokens, n_blocks, ret_hashes);
    kve_plain_avx2(
        tokens + i * block_size, block_size, n_blocks - i, ret_hashes + i);
}

#endif
