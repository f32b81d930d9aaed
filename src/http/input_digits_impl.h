/*
 * input_digits_impl.h - what the variants of the kernel of digits share; for
 * input_digits*.c alone.
 */
#ifndef KVE_HTTP_INPUT_DIGITS_IMPL_H
#define KVE_HTTP_INPUT_DIGITS_IMPL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The vector variants need x86-64 and the function attributes of gcc/clang. */
#if defined(__x86_64__) && defined(__GNUC__)
#define KVE_DIGITS_X86 1
#else
#define KVE_DIGITS_X86 0
#endif

/* kve_digits_decode() in one variant. */
typedef const uint8_t *kve_digits_fn(
    const uint8_t *p, const uint8_t *end, uint32_t *out, size_t *ret_n);

kve_digits_fn kve_digits_decode_scalar;

#if KVE_DIGITS_X86
kve_digits_fn kve_digits_decode_avx2;
kve_digits_fn kve_digits_decode_avx512;
#endif

/* Eight characters, the first one lowest, with '0' taken off each. */
static inline uint64_t
kve_digits_load(const uint8_t *p)
{
    uint64_t x;

    memcpy(&x, p, sizeof(x));
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = __builtin_bswap64(x);
#endif
    return x ^ UINT64_C(0x3030303030303030);
}

/* The value of eight digits: pairs, then fours, then all. */
static inline uint32_t
kve_digits_value(uint64_t x)
{
    x = x * 10 + (x >> 8);
    return (uint32_t)(((x & UINT64_C(0x000000ff000000ff)) *
                              UINT64_C(0x000f424000000064) +
                          ((x >> 16) & UINT64_C(0x000000ff000000ff)) *
                              UINT64_C(0x0000271000000001)) >>
        32);
}

#endif
