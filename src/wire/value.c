/*
 * value.c - see value.h.
 *
 * Hashes come in four forms. Integers of any width give their pattern of 64
 * bits, so that -1 and 2^64-1 are one hash; bins are borrowed from the
 * payload. Strings are written by producers that keep hashes in JSON:
 *
 *   "18446744073709551615", "-1"   decimal: an integer
 *   "0x1f"                         up to 16 digits behind 0x: an integer
 *   "0xab..ef", "ab..ef"           more, an even number: bytes, in the arena
 *
 * Tokens: the kernel of tokens.h takes plain lists. What it stops at is looked
 * at here: cut off, out of range (the event keeps its hashes), pairs, or no
 * token at all.
 */
#include "wire/value.h"

#include "wire/tokens.h"

static int
hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool
parse_decimal(const char *text, size_t len, uint64_t *ret)
{
    bool minus = len > 0 && text[0] == '-';
    uint64_t limit = minus ? (uint64_t)1 << 63 : UINT64_MAX;
    uint64_t value = 0;

    if (minus) {
        text++;
        len--;
    }
    if (len == 0 || len > 20)
        return false;
    for (size_t i = 0; i < len; i++) {
        unsigned digit = (unsigned)(text[i] - '0');
        if (digit > 9 || value > (limit - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *ret = minus ? 0 - value : value;
    return true;
}

static bool
parse_hex(const char *text, size_t len, uint64_t *ret)
{
    uint64_t value = 0;

    if (len == 0 || len > 16)
        return false;
    for (size_t i = 0; i < len; i++) {
        int digit = hex_digit(text[i]);
        if (digit < 0)
            return false;
        value = value << 4 | (unsigned)digit;
    }
    *ret = value;
    return true;
}

static bool
is_hex(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (hex_digit(text[i]) < 0)
            return false;
    return true;
}

/* A hash written as text that begins at p. */
static KVE_COLD const uint8_t *
get_spelled_hash(struct kve_decoder *d, const uint8_t *p,
    enum kve_fault_reason reason, int32_t field, struct kve_hash *ret)
{
    struct kve_span body;
    const uint8_t *after = kve_read_body(&d->r, p, &body);

    if (after == NULL)
        return NULL;

    const char *text = (const char *)body.data;
    size_t len = body.len;
    ret->bytes = NULL;
    if (parse_decimal(text, len, &ret->integer))
        return after;

    bool marked = len > 2 && text[0] == '0' && (text[1] | 0x20) == 'x';
    if (marked) {
        text += 2;
        len -= 2;
        if (parse_hex(text, len, &ret->integer))
            return after;
    }
    if (len <= 16 || len % 2 != 0 || !is_hex(text, len))
        return kve_fault_at(&d->r, reason, field, p);

    uint8_t *bytes = kve_arena_get(&d->batch->arena, len / 2);
    if (bytes == NULL)
        return kve_no_memory(&d->r, p);
    for (size_t i = 0; i < len / 2; i++)
        bytes[i] =
            (uint8_t)(hex_digit(text[2 * i]) << 4 | hex_digit(text[2 * i + 1]));
    ret->bytes = bytes;
    ret->len = len / 2;
    return after;
}

const uint8_t *
kve_get_hash(struct kve_decoder *d, const uint8_t *p,
    enum kve_fault_reason reason, int32_t field, struct kve_hash *ret)
{
    if (p == d->r.end)
        return kve_cut(&d->r);

    uint8_t c = *p;
    if (kve_is_int(c)) {
        struct kve_number number;
        p = kve_read_number(&d->r, p, &number);
        if (p == NULL)
            return NULL;
        ret->bytes = NULL;
        ret->integer = number.bits;
        return p;
    }
    if (c >= 0xc4 && c <= 0xc6) {
        struct kve_span body;
        p = kve_read_body(&d->r, p, &body);
        if (p == NULL)
            return NULL;
        ret->bytes = body.data;
        ret->len = body.len;
        return p;
    }
    if (kve_is_str(c))
        return get_spelled_hash(d, p, reason, field, ret);
    return kve_wrong(&d->r, reason, field, p);
}

/*
 * The n values at p are not kept. They must be integers all the same, or (for
 * a list of any kind of lists) lists, else the field is a fault.
 */
static KVE_COLD const uint8_t *
leave_out(struct kve_decoder *d, const uint8_t *p, size_t n, bool lists,
    int32_t field)
{
    for (; n > 0; n--) {
        if (p == d->r.end)
            return kve_cut(&d->r);
        if (lists ? !kve_is_array(*p) : !kve_is_int(*p))
            return kve_wrong(&d->r, KVE_FAULT_BAD_TOKENS, field, p);
        p = kve_skip(&d->r, p);
        if (p == NULL)
            return NULL;
    }
    return p;
}

/*
 * Fold [[t0, t1], [t1, t2], ..] to t0, t1, .. with the last token behind the
 * n, where it may be looked at but is not counted. The first list is at p.
 */
static KVE_COLD const uint8_t *
fold_pairs(struct kve_decoder *d, const uint8_t *p, size_t n, int32_t field,
    uint32_t *out, bool *ret_kept, uint32_t *notes)
{
    const uint8_t *first = p;
    uint32_t pair[2 + KVE_TOKENS_SLACK];
    uint32_t before = 0;

    for (size_t i = 0; i < n; i++) {
        const uint8_t *stop;
        size_t done;
        size_t len;

        if (p == d->r.end)
            return kve_cut(&d->r);
        if (!kve_is_array(*p))
            return kve_wrong(&d->r, KVE_FAULT_BAD_TOKENS, field, p);
        p = kve_read_count(&d->r, p, &len);
        if (p == NULL)
            return NULL;
        if (len == 2)
            p = kve_tokens_decode(p, d->r.end, 2, pair, &stop, &done);
        if (len != 2 || p == NULL || (i > 0 && pair[0] != before)) {
            *notes |= KVE_NOTE_TOKEN_PAIRS_BROKEN;
            *ret_kept = false;
            return leave_out(d, first, n, true, field);
        }
        out[i] = pair[0];
        out[i + 1] = before = pair[1];
    }
    *notes |= KVE_NOTE_TOKEN_PAIRS;
    *ret_kept = true;
    return p;
}

/* The kernel stopped at p with n values (this one included) to come. */
static KVE_COLD const uint8_t *
stopped_at(struct kve_decoder *d, const uint8_t *p, size_t n, int32_t field,
    uint32_t *notes)
{
    if (p == d->r.end)
        return kve_cut(&d->r);
    p = leave_out(d, p, n, false, field);
    if (p != NULL)
        *notes |= KVE_NOTE_TOKEN_RANGE;
    return p;
}

const uint8_t *
kve_get_odd_tokens(struct kve_decoder *d, const uint8_t *stop, size_t n,
    size_t done, int32_t field, uint32_t *out, bool *ret_kept, uint32_t *notes)
{
    if (done == 0 && stop < d->r.end && kve_is_array(*stop))
        return fold_pairs(d, stop, n, field, out, ret_kept, notes);
    *ret_kept = false;
    return stopped_at(d, stop, n - done, field, notes);
}

const uint8_t *
kve_get_extra(struct kve_decoder *d, const uint8_t *p, int32_t field,
    struct kve_span *ret)
{
    struct kve_reader *r = &d->r;
    const uint8_t *head = p;
    const uint8_t *end = r->end;
    size_t n;

    if (p == end)
        return kve_cut(r);
    if (!kve_is_array(*p))
        return *p == 0xc0 ? p + 1
                          : kve_wrong(r, KVE_FAULT_BAD_EXTRA_KEYS, field, p);
    p = kve_read_n(r, p, &n);
    if (p == NULL)
        return NULL;
    for (; n > 0; n--) {
        if (p == end)
            return kve_cut(r);
        if (*p == 0xc0) {
            p++;
            continue;
        }
        if (!kve_is_array(*p))
            return kve_wrong(r, KVE_FAULT_BAD_EXTRA_KEYS, field, p);
        p = kve_skip(r, p);
        if (p == NULL)
            return NULL;
    }
    ret->data = head;
    ret->len = (size_t)(p - head);
    return p;
}

const uint8_t *
kve_get_raw(struct kve_decoder *d, const uint8_t *p, int32_t field,
    struct kve_span *ret)
{
    const uint8_t *head = p;

    if (p == d->r.end)
        return kve_cut(&d->r);
    if (*p == 0xc0)
        return p + 1;
    if (!kve_is_array(*p) && !kve_is_map(*p))
        return kve_wrong(&d->r, KVE_FAULT_BAD_FIELD, field, p);
    p = kve_skip(&d->r, p);
    if (p != NULL) {
        ret->data = head;
        ret->len = (size_t)(p - head);
    }
    return p;
}

const uint8_t *
kve_get_int(
    struct kve_decoder *d, const uint8_t *p, int32_t field, struct kve_int *ret)
{
    const uint8_t *head = p;
    struct kve_number number;

    if (p == d->r.end)
        return kve_cut(&d->r);
    if (*p == 0xc0)
        return p + 1;
    if (!kve_is_int(*p))
        return kve_wrong(&d->r, KVE_FAULT_BAD_FIELD, field, p);
    p = kve_read_number(&d->r, p, &number);
    if (p == NULL)
        return NULL;
    if (!number.negative && number.bits > INT64_MAX)
        return kve_fault_at(&d->r, KVE_FAULT_BAD_FIELD, field, head);
    ret->value = (int64_t)number.bits;
    ret->set = true;
    return p;
}

const uint8_t *
kve_get_block_size(struct kve_decoder *d, const uint8_t *p, uint32_t *ret)
{
    const uint8_t *head = p;
    struct kve_number number;

    if (p == d->r.end)
        return kve_cut(&d->r);
    if (*p == 0xc0)
        return p + 1;
    if (!kve_is_int(*p))
        return kve_wrong(
            &d->r, KVE_FAULT_BAD_BLOCK_SIZE, KVE_FIELD_BLOCK_SIZE, p);
    p = kve_read_number(&d->r, p, &number);
    if (p == NULL)
        return NULL;
    if (number.negative || number.bits > UINT32_MAX)
        return kve_fault_at(
            &d->r, KVE_FAULT_BAD_BLOCK_SIZE, KVE_FIELD_BLOCK_SIZE, head);
    *ret = (uint32_t)number.bits;
    return p;
}
