/*
 * cursor.c - see cursor.h.
 */
#include "wire/cursor.h"

const uint8_t *
kve_cut(struct kve_reader *r)
{
    r->status = KVE_E_TRUNCATED;
    r->broken = r->end;
    return NULL;
}

const uint8_t *
kve_broken(struct kve_reader *r, const uint8_t *p)
{
    r->status = KVE_E_MALFORMED;
    r->broken = p;
    return NULL;
}

const uint8_t *
kve_no_memory(struct kve_reader *r, const uint8_t *p)
{
    r->status = KVE_E_NOMEM;
    r->broken = p;
    return NULL;
}

const uint8_t *
kve_fault_at(struct kve_reader *r, enum kve_fault_reason reason, int32_t field,
    const uint8_t *p)
{
    r->reason = reason;
    r->field = field;
    r->at = p;
    return NULL;
}

const uint8_t *
kve_wrong(struct kve_reader *r, enum kve_fault_reason reason, int32_t field,
    const uint8_t *p)
{
    if (kve_skip(r, p) == NULL)
        return NULL;
    return kve_fault_at(r, reason, field, p);
}

const uint8_t *
kve_read_count(struct kve_reader *r, const uint8_t *p, size_t *ret_n)
{
    size_t left = kve_left(r, p);
    uint8_t c = *p;
    size_t n;

    if ((c & 0xe0) == 0x80) {
        n = c & 0x0f;
        p += 1;
    } else if (c == 0xdc || c == 0xde) {
        if (left < 3)
            return kve_cut(r);
        n = kve_get16(p + 1);
        p += 3;
    } else {
        if (left < 5)
            return kve_cut(r);
        n = kve_get32(p + 1);
        p += 5;
    }
    /* A pair of a map takes two bytes at least. */
    if (n > kve_left(r, p) >> kve_is_map(c))
        return kve_cut(r);
    *ret_n = n;
    return p;
}

const uint8_t *
kve_read_number(struct kve_reader *r, const uint8_t *p, struct kve_number *ret)
{
    size_t left = kve_left(r, p);
    uint8_t c = *p;

    if (c <= 0x7f || c >= 0xe0) {
        ret->bits = (uint64_t)(int64_t)(int8_t)c;
        ret->negative = c >= 0xe0;
        return p + 1;
    }

    size_t len = (size_t)1 << (c & 3);
    if (left <= len)
        return kve_cut(r);

    uint64_t bits;
    if (len == 1)
        bits = p[1];
    else if (len == 2)
        bits = kve_get16(p + 1);
    else if (len == 4)
        bits = kve_get32(p + 1);
    else
        bits = kve_get64(p + 1);

    bool below = false;
    if (c >= 0xd0) {
        unsigned spare = 64 - 8 * (unsigned)len;
        bits = (uint64_t)((int64_t)(bits << spare) >> spare);
        below = (int64_t)bits < 0;
    }
    ret->bits = bits;
    ret->negative = below;
    return p + 1 + len;
}

const uint8_t *
kve_read_body(struct kve_reader *r, const uint8_t *p, struct kve_span *ret)
{
    size_t left = kve_left(r, p);
    uint8_t c = *p;
    size_t head;
    size_t len;

    if ((c & 0xe0) == 0xa0) {
        head = 1;
        len = c & 0x1f;
    } else if (c == 0xd9 || c == 0xc4) {
        head = 2;
        len = left < head ? 0 : p[1];
    } else if (c == 0xda || c == 0xc5) {
        head = 3;
        len = left < head ? 0 : kve_get16(p + 1);
    } else {
        head = 5;
        len = left < head ? 0 : kve_get32(p + 1);
    }
    if (left < head || len > left - head)
        return kve_cut(r);
    ret->data = p + head;
    ret->len = len;
    return p + head + len;
}

/*
 * Values are counted, not nested: items is how many are still to come, over
 * all levels. Each takes one byte at least, so items can never outgrow the
 * bytes that are left, and a lie is found at its header.
 */
const uint8_t *
kve_skip(struct kve_reader *r, const uint8_t *p)
{
    size_t items = 1;

    while (items > 0) {
        size_t left = kve_left(r, p);
        if (left < items)
            return kve_cut(r);
        items--;

        uint8_t c = *p;
        size_t size = 1;
        if (c <= 0x7f || c >= 0xe0 || c == 0xc0 || c == 0xc2 || c == 0xc3) {
            p++;
            continue;
        }
        if (kve_is_array(c) || kve_is_map(c)) {
            size_t n;
            p = kve_read_count(r, p, &n);
            if (p == NULL)
                return NULL;
            items += kve_is_map(c) ? 2 * n : n;
            continue;
        }
        if (kve_is_str(c) || (c >= 0xc4 && c <= 0xc6)) {
            struct kve_span body;
            p = kve_read_body(r, p, &body);
            if (p == NULL)
                return NULL;
            continue;
        }
        switch (c) {
        case 0xc1:
            return kve_broken(r, p);
        case 0xca:
            size = 5;
            break;
        case 0xcb:
            size = 9;
            break;
        case 0xc7: /* ext: a byte of length, one of type, then the body */
            size = left < 2 ? left + 1 : (size_t)3 + p[1];
            break;
        case 0xc8:
            size = left < 3 ? left + 1 : (size_t)4 + kve_get16(p + 1);
            break;
        case 0xc9:
            size = left < 5 ? left + 1 : (size_t)6 + kve_get32(p + 1);
            break;
        default:
            if (c <= 0xd3) /* cc..d3 */
                size = 1 + ((size_t)1 << (c & 3));
            else /* d4..d8 */
                size = 2 + ((size_t)1 << (c - 0xd4));
            break;
        }
        if (size > left)
            return kve_cut(r);
        p += size;
    }
    return p;
}
