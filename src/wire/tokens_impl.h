/*
 * What the variants of the token kernel share; for tokens*.c alone.
 */
#ifndef KVE_WIRE_TOKENS_IMPL_H
#define KVE_WIRE_TOKENS_IMPL_H

#include <stddef.h>
#include <stdint.h>

/* The vector variants need x86-64 and the function attributes of gcc/clang. */
#if defined(__x86_64__) && defined(__GNUC__)
#define KVE_TOKENS_X86 1
#else
#define KVE_TOKENS_X86 0
#endif

/* kve_tokens_decode() in one variant. */
typedef const uint8_t *kve_tokens_fn(const uint8_t *p, const uint8_t *end,
    size_t n, uint32_t *out, const uint8_t **ret_stop, size_t *ret_done);

kve_tokens_fn kve_tokens_decode_scalar;

#if KVE_TOKENS_X86
kve_tokens_fn kve_tokens_decode_avx2;
kve_tokens_fn kve_tokens_decode_avx512;
#endif

#endif
