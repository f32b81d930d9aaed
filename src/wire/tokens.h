/*
 * A run of msgpack unsigned integers (token ids), decoded at full speed.
 *
 * Token ids are most of the bytes of most events, so they do not go through
 * the general reader: this is a kernel of its own, with variants for the
 * vector units that are found at run time. tokens.c says how they work and
 * what each of them costs.
 *
 * Thread safety: kve_tokens_decode() may run in any number of threads at
 * once; kve_tokens_use() may be called beside it, and a decode that has
 * already begun ends with the variant it began with.
 */
#ifndef KVE_WIRE_TOKENS_H
#define KVE_WIRE_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Room, in values, that must lie behind the n values asked for: vector stores
 * write whole registers, so what stands there is overwritten with rubbish.
 */
#define KVE_TOKENS_SLACK 64

/*
 * Decode exactly n msgpack integers that begin at p into out[0..n).
 *
 * Every integer form is taken (positive fixint, uint 8 to 64, int 8 to 64)
 * when its value is in 0..UINT32_MAX. Not one byte outside [p, end) is read.
 * out has room for n + KVE_TOKENS_SLACK values; what stands behind the values
 * decoded is undefined afterwards, on success and on failure.
 *
 * Returns the position after the last value. Returns NULL when a value could
 * not be taken: *ret_stop is then the address of its first byte and *ret_done
 * the number of values before it, which stand in out. Such a value is cut off
 * by end, is no integer, or is outside the range; the caller, who can look at
 * it, decides which. ret_stop and ret_done are left alone on success.
 */
const uint8_t *kve_tokens_decode(const uint8_t *p, const uint8_t *end, size_t n,
    uint32_t *out, const uint8_t **ret_stop, size_t *ret_done);

/* The variants, slowest first. All give the same results. */
enum kve_tokens_variant {
    KVE_TOKENS_SCALAR, /* portable C */
    KVE_TOKENS_AVX2,   /* AVX2 and BMI2 */
    KVE_TOKENS_AVX512, /* AVX-512 with VBMI and VBMI2 */
    KVE_TOKENS_N_VARIANTS
};

/* A short name for people; never NULL. */
const char *kve_tokens_variant_name(enum kve_tokens_variant variant);

/* Whether this build has the variant and this CPU can run it. */
bool kve_tokens_variant_runs(enum kve_tokens_variant variant);

/* The variant that kve_tokens_decode() picks by itself on this CPU. */
enum kve_tokens_variant kve_tokens_best_variant(void);

/*
 * Make kve_tokens_decode() use variant from now on: for tests and benches.
 * Returns false, and changes nothing, where the variant cannot run.
 */
bool kve_tokens_use(enum kve_tokens_variant variant);

#endif
