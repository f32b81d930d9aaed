/*
 * put.h - writing msgpack in its shortest forms, as msgspec does.
 *
 * Every function writes at w and returns the position behind; room is the
 * caller's business: encode.c computes a bound for a whole batch, reserves
 * once, and then nothing is checked. Nothing here writes more than PUT_SLACK
 * bytes beyond the position it returns.
 */
#ifndef KVE_WIRE_PUT_H
#define KVE_WIRE_PUT_H

#include <kvevents/event.h>

#include "base/bytes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Longest head of a string, bin, list or number. */
#define KVE_PUT_HEAD 9
#define KVE_PUT_SLACK 64

static inline uint8_t *
kve_put_u64(uint8_t *w, uint64_t x)
{
    if (x <= 0x7f) {
        w[0] = (uint8_t)x;
        return w + 1;
    }
    if (x <= 0xff) {
        w[0] = 0xcc;
        w[1] = (uint8_t)x;
        return w + 2;
    }
    if (x <= 0xffff) {
        w[0] = 0xcd;
        kve_put16(w + 1, (uint16_t)x);
        return w + 3;
    }
    if (x <= 0xffffffff) {
        w[0] = 0xce;
        kve_put32(w + 1, (uint32_t)x);
        return w + 5;
    }
    w[0] = 0xcf;
    kve_put64(w + 1, x);
    return w + 9;
}

static inline uint8_t *
kve_put_i64(uint8_t *w, int64_t x)
{
    if (x >= 0)
        return kve_put_u64(w, (uint64_t)x);
    if (x >= -32) {
        w[0] = (uint8_t)x;
        return w + 1;
    }
    if (x >= INT8_MIN) {
        w[0] = 0xd0;
        w[1] = (uint8_t)x;
        return w + 2;
    }
    if (x >= INT16_MIN) {
        w[0] = 0xd1;
        kve_put16(w + 1, (uint16_t)x);
        return w + 3;
    }
    if (x >= INT32_MIN) {
        w[0] = 0xd2;
        kve_put32(w + 1, (uint32_t)x);
        return w + 5;
    }
    w[0] = 0xd3;
    kve_put64(w + 1, (uint64_t)x);
    return w + 9;
}

static inline uint8_t *
kve_put_nil(uint8_t *w)
{
    *w = 0xc0;
    return w + 1;
}

static inline uint8_t *
kve_put_float(uint8_t *w, double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    w[0] = 0xcb;
    kve_put64(w + 1, bits);
    return w + 9;
}

/* fix is 0x90 for arrays, 0x80 for maps. */
static inline uint8_t *
kve_put_count(uint8_t *w, size_t n, uint8_t fix)
{
    uint8_t wide = fix == 0x90 ? 0xdc : 0xde;

    if (n <= 15) {
        w[0] = (uint8_t)(fix | n);
        return w + 1;
    }
    if (n <= 0xffff) {
        w[0] = wide;
        kve_put16(w + 1, (uint16_t)n);
        return w + 3;
    }
    w[0] = (uint8_t)(wide + 1);
    kve_put32(w + 1, (uint32_t)n);
    return w + 5;
}

static inline uint8_t *
kve_put_array(uint8_t *w, size_t n)
{
    return kve_put_count(w, n, 0x90);
}

static inline uint8_t *
kve_put_str(uint8_t *w, const char *text, size_t len)
{
    if (len <= 31) {
        w[0] = (uint8_t)(0xa0 | len);
        w += 1;
    } else if (len <= 0xff) {
        w[0] = 0xd9;
        w[1] = (uint8_t)len;
        w += 2;
    } else if (len <= 0xffff) {
        w[0] = 0xda;
        kve_put16(w + 1, (uint16_t)len);
        w += 3;
    } else {
        w[0] = 0xdb;
        kve_put32(w + 1, (uint32_t)len);
        w += 5;
    }
    memcpy(w, text, len);
    return w + len;
}

static inline uint8_t *
kve_put_bin(uint8_t *w, const uint8_t *bytes, size_t len)
{
    if (len <= 0xff) {
        w[0] = 0xc4;
        w[1] = (uint8_t)len;
        w += 2;
    } else if (len <= 0xffff) {
        w[0] = 0xc5;
        kve_put16(w + 1, (uint16_t)len);
        w += 3;
    } else {
        w[0] = 0xc6;
        kve_put32(w + 1, (uint32_t)len);
        w += 5;
    }
    memcpy(w, bytes, len);
    return w + len;
}

/* ------------------------------------------------------------------ */

/*
 * One event, checked before, in any layout but KVE_LAYOUT_KEEP; put_event.c.
 * Beside the bytes of its hashes, strings, raw values, and 5 a token, it takes
 * at most KVE_PUT_EVENT bytes and KVE_PUT_HEAD a hash.
 */
#define KVE_PUT_EVENT (640 + KVE_PUT_SLACK)

uint8_t *kve_put_event(
    uint8_t *w, const struct kve_event *ev, enum kve_layout layout);

/* How a run of tokens can be written; put_tokens.c. */
enum kve_put_variant {
    KVE_PUT_SCALAR, /* portable C */
    KVE_PUT_AVX512, /* AVX-512 with VBMI2 */
    KVE_PUT_N_VARIANTS
};

/* n tokens, 5 bytes each at most, and KVE_PUT_SLACK bytes of room. */
uint8_t *kve_put_tokens(uint8_t *w, const uint32_t *tokens, size_t n);

/* Whether this build has the variant and this CPU can run it. */
bool kve_put_variant_runs(enum kve_put_variant variant);

/* For tests and benches: false, and nothing changes, where it cannot run. */
bool kve_put_use(enum kve_put_variant variant);

#endif
