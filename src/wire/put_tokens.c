/*
 * put_tokens.c - a run of tokens in their shortest forms.
 *
 * The length of each token (1, 2, 3 or 5 bytes) is as good as random, so a
 * branch on it is guessed wrong every second time. No variant branches on it.
 *
 * Scalar: three comparisons add up to the row of a table with head, shifts
 * and length; 8 bytes are stored, the position moves by the length, and the
 * next token overwrites what was too much.
 *
 * AVX-512: 8 tokens become 8 lanes of 8 bytes, each holding a big-endian value
 * that ends at byte 4, with the head right before the bytes that count. One
 * vpcompressb moves those together:
 *
 *   byte of a lane    0  1  2  3  4  5  6  7
 *   above 65535      ce b3 b2 b1 b0  .  .  .
 *   above 255         .  . cd b1 b0  .  .  .
 *   above 127         .  .  . cc b0  .  .  .
 *   the rest          .  .  .  . b0  .  .  .
 */
#include "wire/put.h"

#include <stdatomic.h>

/* The forms, shortest first. Shifts are of the byte-swapped token; a token of
 * one byte is its own head. */
static const struct {
    uint8_t length;
    uint8_t head;
    uint8_t right;
    uint8_t left;
} forms[4] = {
    { 1, 0, 24, 0 },
    { 2, 0xcc, 24, 8 },
    { 3, 0xcd, 16, 8 },
    { 5, 0xce, 0, 8 },
};

static uint8_t *
put_scalar(uint8_t *w, const uint32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t token = tokens[i];
        unsigned form =
            (unsigned)(token > 0x7f) + (token > 0xff) + (token > 0xffff);
        uint64_t value = __builtin_bswap32(token) >> forms[form].right;
        uint64_t bytes = value << forms[form].left | forms[form].head;

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        bytes = __builtin_bswap64(bytes);
#endif
        memcpy(w, &bytes, sizeof(bytes));
        w += forms[form].length;
    }
    return w;
}

#if defined(__x86_64__)

#include <immintrin.h>

#define AVX512 target("avx512f,avx512bw,avx512vl,avx512vbmi2,popcnt")

static bool
avx512_runs(void)
{
    return __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vbmi2") &&
        __builtin_cpu_supports("popcnt");
}

__attribute__((AVX512)) static uint8_t *
put_avx512(uint8_t *w, const uint32_t *tokens, size_t n)
{
    const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(
        -1, 3, 2, 1, 0, -1, -1, -1, -1, 11, 10, 9, 8, -1, -1, -1));
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m512i wide = _mm512_cvtepu32_epi64(
            _mm256_loadu_si256((const __m256i *)(const void *)(tokens + i)));
        __mmask8 over7 = _mm512_cmpgt_epu64_mask(wide, _mm512_set1_epi64(0x7f));
        __mmask8 over8 = _mm512_cmpgt_epu64_mask(wide, _mm512_set1_epi64(0xff));
        __mmask8 over16 =
            _mm512_cmpgt_epu64_mask(wide, _mm512_set1_epi64(0xffff));

        __m512i head =
            _mm512_maskz_mov_epi64(over7, _mm512_set1_epi64(0xcc000000));
        head = _mm512_mask_mov_epi64(head, over8, _mm512_set1_epi64(0xcd0000));
        head = _mm512_mask_mov_epi64(head, over16, _mm512_set1_epi64(0xce));
        __m512i bytes = _mm512_or_si512(_mm512_shuffle_epi8(wide, order), head);

        /* The top bit of each byte that counts. */
        __m512i keep = _mm512_set1_epi64(0x8000000000);
        keep =
            _mm512_mask_mov_epi64(keep, over7, _mm512_set1_epi64(0x8080000000));
        keep =
            _mm512_mask_mov_epi64(keep, over8, _mm512_set1_epi64(0x8080800000));
        keep = _mm512_mask_mov_epi64(
            keep, over16, _mm512_set1_epi64(0x8080808080));
        __mmask64 mask = _mm512_movepi8_mask(keep);

        _mm512_storeu_si512(w, _mm512_maskz_compress_epi8(mask, bytes));
        w += __builtin_popcountll(mask);
    }
    return put_scalar(w, tokens + i, n - i);
}

#else

static bool
avx512_runs(void)
{
    return false;
}

static uint8_t *
put_avx512(uint8_t *w, const uint32_t *tokens, size_t n)
{
    return put_scalar(w, tokens, n);
}

#endif

/* 0: not chosen yet; else the variant + 1. Every thread would choose alike. */
static atomic_int chosen;

bool
kve_put_variant_runs(enum kve_put_variant variant)
{
    return variant == KVE_PUT_SCALAR ||
        (variant == KVE_PUT_AVX512 && avx512_runs());
}

bool
kve_put_use(enum kve_put_variant variant)
{
    if (!kve_put_variant_runs(variant))
        return false;
    atomic_store_explicit(&chosen, (int)variant + 1, memory_order_relaxed);
    return true;
}

uint8_t *
kve_put_tokens(uint8_t *w, const uint32_t *tokens, size_t n)
{
    int variant = atomic_load_explicit(&chosen, memory_order_relaxed);

    if (n == 0) /* tokens may be NULL, to which C adds nothing, not even 0 */
        return w;
    if (__builtin_expect(variant == 0, 0)) {
        variant = 1 + (avx512_runs() ? KVE_PUT_AVX512 : KVE_PUT_SCALAR);
        atomic_store_explicit(&chosen, variant, memory_order_relaxed);
    }
    return variant == 1 + KVE_PUT_AVX512 ? put_avx512(w, tokens, n)
                                         : put_scalar(w, tokens, n);
}
