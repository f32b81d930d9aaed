/*
 * plain.h - XXH3-64 over the tokens of blocks, nothing else in them.
 *
 * The variants of kve_content_blocks() (content.h). All give the same
 * results; the best one for this CPU is picked by itself.
 */
#ifndef KVE_HASH_PLAIN_H
#define KVE_HASH_PLAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t
kve_le64(uint64_t x)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return __builtin_bswap64(x);
#else
    return x;
#endif
}

/* A number as 8 bytes, the lowest first. */
static inline void
kve_put_le64(uint8_t *p, uint64_t x)
{
    x = kve_le64(x);
    memcpy(p, &x, sizeof(x));
}

/* n tokens as 4 bytes each, the lowest first. */
static inline void
kve_plain_bytes(const uint32_t *tokens, size_t n, uint8_t *ret_bytes)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    for (size_t i = 0; i < n; i++) {
        uint32_t x = __builtin_bswap32(tokens[i]);

        memcpy(ret_bytes + 4 * i, &x, sizeof(x));
    }
#else
    if (n > 0)
        memcpy(ret_bytes, tokens, 4 * n);
#endif
}

/* XXH3-64 with seed 1337 of any bytes. */
uint64_t kve_plain_hash(const void *bytes, size_t len);

/* Blocks of tokens, with any seed. */
void kve_plain_seeded(const uint32_t *tokens, uint32_t block_size,
    size_t n_blocks, uint64_t seed, uint64_t *ret_hashes);

/* The variants, slowest first. */
enum kve_plain_variant {
    KVE_PLAIN_PORTABLE, /* the compiler's code for any CPU */
    KVE_PLAIN_AVX2,     /* AVX2 and BMI2: for blocks above 60 tokens */
    KVE_PLAIN_AVX512,   /* eight blocks of 16 or 32 tokens side by side */
    KVE_PLAIN_N_VARIANTS
};

/* A short name for people; never NULL. */
const char *kve_plain_variant_name(enum kve_plain_variant variant);

/* Whether this build has the variant and this CPU can run it. */
bool kve_plain_variant_runs(enum kve_plain_variant variant);

/* The variant that kve_content_blocks() picks by itself on this CPU. */
enum kve_plain_variant kve_plain_best_variant(void);

/*
 * Make kve_content_blocks() use variant from now on: for tests and benches.
 * Returns false, and changes nothing, where the variant cannot run.
 */
bool kve_plain_use(enum kve_plain_variant variant);

#endif
