/*
 * input_digits.h - decimal numbers, many at once.
 *
 * Token ids in JSON are some five digits and a comma each: most of the bytes
 * of most questions. They have a kernel of their own, with variants for the
 * vector units that are found at run time (as wire/tokens.h has them for
 * msgpack). It takes what is usual and leaves the rest (the last number,
 * other whitespace, faults) to the reader of single values, which alone
 * decides what is refused.
 *
 * Thread safety: as wire/tokens.h.
 */
#ifndef KVE_HTTP_INPUT_DIGITS_H
#define KVE_HTTP_INPUT_DIGITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Room, in values, behind what is decoded: overwritten with rubbish. */
#define KVE_DIGITS_SLACK 64

/*
 * Decode numbers of 1 to 8 digits, each with a comma behind it, and before it
 * at most one space. p is where a number may begin. *ret_n values are written
 * to out, which has room for (end - p) / 2 + KVE_DIGITS_SLACK. Not one byte
 * outside [p, end) is read.
 *
 * Returns the position behind the comma of the last value taken, or one space
 * further; p, or one space further, when there was none. How much is taken
 * differs between variants; the values do not.
 */
const uint8_t *kve_digits_decode(
    const uint8_t *p, const uint8_t *end, uint32_t *out, size_t *ret_n);

/*
 * The digits at p, as far as they are some: 64 bits. Returns the position
 * behind them, p when there is none. *ret_fits is false when the number does
 * not fit (*ret is nothing then). Leading zeros are for the caller to judge.
 */
const uint8_t *kve_digits_u64(
    const uint8_t *p, const uint8_t *end, uint64_t *ret, bool *ret_fits);

/* The variants, slowest first. */
enum kve_digits_variant {
    KVE_DIGITS_SCALAR, /* portable C: eight bytes at a time */
    KVE_DIGITS_AVX2,
    KVE_DIGITS_AVX512, /* AVX-512 with VBMI and VBMI2 */
    KVE_DIGITS_N_VARIANTS
};

/* A short name for people; never NULL. */
const char *kve_digits_variant_name(enum kve_digits_variant variant);

/* Whether this build has the variant and this CPU can run it. */
bool kve_digits_variant_runs(enum kve_digits_variant variant);

/* Make kve_digits_decode() use variant: for tests and benches. Returns false,
 * and changes nothing, where the variant cannot run. */
bool kve_digits_use(enum kve_digits_variant variant);

#endif
