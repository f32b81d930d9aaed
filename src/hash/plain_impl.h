/*
 * What the variants of the plain block hash share; for plain*.c alone.
 *
 * XXH3 is compiled in, with the lengths that engines use as constants: of its
 * many paths one is left for each, without a branch, and the compiler keeps
 * several blocks in flight.
 */
#ifndef KVE_HASH_PLAIN_IMPL_H
#define KVE_HASH_PLAIN_IMPL_H

#include <stddef.h>
#include <stdint.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "hash/content.h"

/* The vector variants need x86-64 and the function attributes of gcc/clang. */
#if defined(__x86_64__) && defined(__GNUC__)
#define KVE_PLAIN_X86 1
#else
#define KVE_PLAIN_X86 0
#endif

/* For functions with locals that are aligned to 64 bytes (states of XXH3,
 * arrays of registers): the stack that ASan gives them is aligned to 32. */
#define KVE_WIDE_LOCALS __attribute__((no_sanitize("address")))

/* kve_content_blocks() in one variant. */
typedef void kve_plain_fn(const uint32_t *tokens, uint32_t block_size,
    size_t n_blocks, uint64_t *ret_hashes);

kve_plain_fn kve_plain_portable;

#if KVE_PLAIN_X86
kve_plain_fn kve_plain_avx2;
kve_plain_fn kve_plain_avx512;
#endif

/* Blocks of a size that is a constant where this is inlined. */
#define KVE_PLAIN_LOOP(tokens, size, n_blocks, hashes)               \
    do {                                                             \
        for (size_t at = 0; at < (n_blocks); at++)                   \
            (hashes)[at] = XXH3_64bits_withSeed(                     \
                (tokens) + at * (size), (size)*4, KVE_CONTENT_SEED); \
    } while (0)

#endif
