/*
 * The portable variant of the plain block hash, and the choice between
 * variants.
 */
#include "hash/plain.h"

#include <stdatomic.h>

#include "hash/plain_impl.h"

uint64_t
kve_plain_hash(const void *bytes, size_t len)
{
    return XXH3_64bits_withSeed(bytes, len, KVE_CONTENT_SEED);
}

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__

/* The same over the bytes as a little-endian machine has them. */
KVE_WIDE_LOCALS static uint64_t
hash_block(const uint32_t *tokens, size_t n, uint64_t seed)
{
    XXH3_state_t state;
    uint8_t bytes[256];

    XXH3_INITSTATE(&state); /* its seed is looked at */
    XXH3_64bits_reset_withSeed(&state, seed);
    while (n > 0) {
        size_t some = n < 64 ? n : 64;

        kve_plain_bytes(tokens, some, bytes);
        XXH3_64bits_update(&state, bytes, 4 * some);
        tokens += some;
        n -= some;
    }
    return XXH3_64bits_digest(&state);
}

#else

static inline uint64_t
hash_block(const uint32_t *tokens, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(tokens, 4 * n, seed);
}

#endif

void
kve_plain_seeded(const uint32_t *tokens, uint32_t block_size, size_t n_blocks,
    uint64_t seed, uint64_t *ret_hashes)
{
    for (size_t i = 0; i < n_blocks; i++)
        ret_hashes[i] = hash_block(tokens + i * block_size, block_size, seed);
}

void
kve_plain_portable(const uint32_t *tokens, uint32_t block_size, size_t n_blocks,
    uint64_t *ret_hashes)
{
#if __BYTE_ORDER__ != __ORDER_BIG_ENDIAN__
    switch (block_size) {
    case 4:
        KVE_PLAIN_LOOP(tokens, 4, n_blocks, ret_hashes);
        return;
    case 8:
        KVE_PLAIN_LOOP(tokens, 8, n_blocks, ret_hashes);
        return;
    case 16:
        KVE_PLAIN_LOOP(tokens, 16, n_blocks, ret_hashes);
        return;
    case 32:
        KVE_PLAIN_LOOP(tokens, 32, n_blocks, ret_hashes);
        return;
    default:
        break;
    }
#endif
    kve_plain_seeded(
        tokens, block_size, n_blocks, KVE_CONTENT_SEED, ret_hashes);
}

static const struct variant {
    const char *name;
    kve_plain_fn *hash; /* NULL: not in this build */
} variants[KVE_PLAIN_N_VARIANTS] = {
    [KVE_PLAIN_PORTABLE] = { "portable", kve_plain_portable },
#if KVE_PLAIN_X86
    [KVE_PLAIN_AVX2] = { "avx2", kve_plain_avx2 },
    [KVE_PLAIN_AVX512] = { "avx512", kve_plain_avx512 },
#else
    [KVE_PLAIN_AVX2] = { "avx2", NULL },
    [KVE_PLAIN_AVX512] = { "avx512", NULL },
#endif
};

const char *
kve_plain_variant_name(enum kve_plain_variant variant)
{
    if ((unsigned)variant >= KVE_PLAIN_N_VARIANTS)
        return "unknown";
    return variants[variant].name;
}

bool
kve_plain_variant_runs(enum kve_plain_variant variant)
{
    if ((unsigned)variant >= KVE_PLAIN_N_VARIANTS)
        return false;
#if KVE_PLAIN_X86
    bool avx2 =
        __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("avx2");

    if (variant == KVE_PLAIN_AVX2)
        return avx2;
    if (variant == KVE_PLAIN_AVX512)
        return avx2 && __builtin_cpu_supports("avx512f") &&
            __builtin_cpu_supports("avx512dq");
#endif
    return variants[variant].hash != NULL;
}

enum kve_plain_variant
kve_plain_best_variant(void)
{
    unsigned variant = KVE_PLAIN_N_VARIANTS - 1;

    while (!kve_plain_variant_runs(variant))
        variant--;
    return variant;
}

static kve_plain_fn hash_first;

/* The variant in use. Each is right, so no order between threads matters. */
static kve_plain_fn *_Atomic current = hash_first;

/* Stands in until the first call has chosen. */
static void
hash_first(const uint32_t *tokens, uint32_t block_size, size_t n_blocks,
    uint64_t *ret_hashes)
{
    kve_plain_fn *expected = hash_first;
    kve_plain_fn *best = variants[kve_plain_best_variant()].hash;

    /* Not a plain store: that could undo a kve_plain_use() just made. */
    (void)atomic_compare_exchange_strong(&current, &expected, best);
    best(tokens, block_size, n_blocks, ret_hashes);
}

bool
kve_plain_use(enum kve_plain_variant variant)
{
    if (!kve_plain_variant_runs(variant))
        return false;
    atomic_store_explicit(
        &current, variants[variant].hash, memory_order_relaxed);
    return true;
}

void
kve_content_blocks(const uint32_t *tokens, uint32_t block_size, size_t n_blocks,
    uint64_t *ret_hashes)
{
    kve_plain_fn *hash = atomic_load_explicit(&current, memory_order_relaxed);

    hash(tokens, block_size, n_blocks, ret_hashes);
}
