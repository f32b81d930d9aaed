/*
 * cursor.h - reading msgpack, one value at a time.
 *
 * The position travels by value: a function takes p and returns the position
 * behind what it read, or NULL. Then either msgpack itself is broken (or
 * memory ran out), which kve_reader.status says, or the value is not what the
 * schema wants, which kve_reader.reason says. One NULL check a value is all a
 * caller does, and p stays in a register.
 *
 * What the first byte of a value means:
 *
 *   00..7f  positive fixint    c4 c5 c6  bin 8/16/32     d4..d8  fixext
 *   80..8f  fixmap             c7 c8 c9  ext 8/16/32     d9..db  str 8/16/32
 *   90..9f  fixarray           ca cb     float 32/64     dc dd   array 16/32
 *   a0..bf  fixstr             cc..cf    uint 8..64      de df   map 16/32
 *   c0 nil  c1 never           d0..d3    int 8..64       e0..ff  negative
 * fixint c2 c3 bool
 *
 * Every item of a container takes at least one byte, so a count above the
 * bytes that are left is a truncation before anything is allocated for it.
 */
#ifndef KVE_WIRE_CURSOR_H
#define KVE_WIRE_CURSOR_H

#include <kvevents/codec.h>

#include "base/bytes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KVE_LIKELY(x) __builtin_expect(!!(x), 1)
#define KVE_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define KVE_INLINE static inline __attribute__((always_inline))
#define KVE_COLD __attribute__((cold, noinline))

struct kve_reader {
    const uint8_t *begin;
    const uint8_t *end;
    kve_status status;     /* KVE_OK, or why reading cannot go on */
    const uint8_t *broken; /* the byte status is about */
    uint32_t reason;       /* enum kve_fault_reason of this event, or 0 */
    int32_t field;         /* enum kve_field the reason is about, or -1 */
    const uint8_t *at;     /* the byte the reason is about */
};

/* Each returns NULL, so that a failing reader is one line. */
KVE_COLD const uint8_t *kve_cut(struct kve_reader *r);
KVE_COLD const uint8_t *kve_broken(struct kve_reader *r, const uint8_t *p);
KVE_COLD const uint8_t *kve_no_memory(struct kve_reader *r, const uint8_t *p);
KVE_COLD const uint8_t *kve_fault_at(struct kve_reader *r,
    enum kve_fault_reason reason, int32_t field, const uint8_t *p);

/* The value at p is of the wrong type, or broken, or cut off: say which. */
KVE_COLD const uint8_t *kve_wrong(struct kve_reader *r,
    enum kve_fault_reason reason, int32_t field, const uint8_t *p);

/* Pass over one value of any depth, without recursion. */
const uint8_t *kve_skip(struct kve_reader *r, const uint8_t *p);

/*
 * The header of an array or map whose first byte is *p; *ret_n items (pairs of
 * a map count as one). NULL when the header is cut off or promises more than
 * the input holds. The caller has seen that it is an array (or a map).
 */
const uint8_t *kve_read_count(
    struct kve_reader *r, const uint8_t *p, size_t *ret_n);

KVE_INLINE size_t
kve_left(const struct kve_reader *r, const uint8_t *p)
{
    return (size_t)(r->end - p);
}

KVE_INLINE bool
kve_is_array(uint8_t c)
{
    return (c & 0xf0) == 0x90 || c == 0xdc || c == 0xdd;
}

KVE_INLINE bool
kve_is_map(uint8_t c)
{
    return (c & 0xf0) == 0x80 || c == 0xde || c == 0xdf;
}

KVE_INLINE bool
kve_is_str(uint8_t c)
{
    return (c & 0xe0) == 0xa0 || (c >= 0xd9 && c <= 0xdb);
}

KVE_INLINE bool
kve_is_int(uint8_t c)
{
    return c <= 0x7f || c >= 0xe0 || (c >= 0xcc && c <= 0xd3);
}

/* An integer as its 64-bit pattern and whether it is below zero. */
struct kve_number {
    uint64_t bits;
    bool negative;
};

/* Read an integer whose first byte kve_is_int(). NULL when it is cut off. */
const uint8_t *kve_read_number(
    struct kve_reader *r, const uint8_t *p, struct kve_number *ret);

/*
 * Body of a string or bin whose first byte kve_is_str(), or is c4..c6. NULL
 * when it is cut off.
 */
const uint8_t *kve_read_body(
    struct kve_reader *r, const uint8_t *p, struct kve_span *ret);

/* Nearly every string and list is short: those stay out of a call. */
KVE_INLINE const uint8_t *
kve_read_text(struct kve_reader *r, const uint8_t *p, struct kve_str *ret)
{
    struct kve_span body;

    if (KVE_LIKELY((*p & 0xe0) == 0xa0)) {
        size_t len = *p & 0x1f;
        if (KVE_UNLIKELY(len >= kve_left(r, p)))
            return kve_cut(r);
        ret->data = (const char *)p + 1;
        ret->len = len;
        return p + 1 + len;
    }
    p = kve_read_body(r, p, &body);
    if (p == NULL)
        return NULL;
    ret->data = (const char *)body.data;
    ret->len = body.len;
    return p;
}

KVE_INLINE const uint8_t *
kve_read_n(struct kve_reader *r, const uint8_t *p, size_t *ret_n)
{
    if (KVE_LIKELY((*p & 0xe0) == 0x80)) { /* fixmap and fixarray */
        size_t n = *p & 0x0f;
        if (KVE_UNLIKELY(n >= kve_left(r, p)))
            return kve_cut(r);
        *ret_n = n;
        return p + 1;
    }
    if (KVE_LIKELY((*p & 0xfd) == 0xdc && kve_left(r, p) >= 3)) {
        size_t n = kve_get16(p + 1); /* array 16 and map 16 */
        p += 3;
        if (KVE_UNLIKELY(n > kve_left(r, p)))
            return kve_cut(r);
        *ret_n = n;
        return p;
    }
    return kve_read_count(r, p, ret_n);
}

#endif
