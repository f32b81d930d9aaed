/*
 * input_text.c - hashes that are written as texts.
 */
#include "http/input_impl.h"

#include "http/input_digits.h"

static int
hex_value(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool
hex_number(const uint8_t *p, size_t len, uint64_t *ret)
{
    uint64_t value = 0;

    if (len == 0 || len > 16)
        return false;
    for (size_t i = 0; i < len; i++) {
        int digit = hex_value(p[i]);

        if (digit < 0)
            return false;
        value = value << 4 | (unsigned)digit;
    }
    *ret = value;
    return true;
}

static bool
decimal_number(const uint8_t *p, size_t len, uint64_t *ret)
{
    const uint8_t *end = p + len;
    bool below = len > 0 && *p == '-';
    uint64_t value;
    bool fits;

    p += below;
    if (p == end || kve_digits_u64(p, end, &value, &fits) != end || !fits)
        return false;
    if (below && value > UINT64_C(1) << 63)
        return false;
    *ret = below ? 0 - value : value;
    return true;
}

static bool
hex_bytes(struct kve_input_job *job, const uint8_t *p, size_t len, size_t i)
{
    struct kve_hash *hash = &job->memory->hashes[i];
    uint8_t *bytes;

    if (len < 32 || len > 128 || len % 2 != 0)
        return false;
    for (size_t k = 0; k < len; k++)
        if (hex_value(p[k]) < 0)
            return false;
    bytes = kve_input_bytes(job, len / 2);
    if (bytes == NULL)
        return false;
    for (size_t k = 0; k < len / 2; k++)
        bytes[k] =
            (uint8_t)(hex_value(p[2 * k]) << 4 | hex_value(p[2 * k + 1]));
    job->memory->numbers[i] = 0;
    hash->bytes = bytes;
    hash->len = len / 2;
    job->in->wide = true;
    return true;
}

bool
kve_input_hash_text(struct kve_input_job *job, struct kve_str text, size_t i)
{
    const uint8_t *p = (const uint8_t *)text.data;
    uint64_t number;

    if (text.len > 2 && p[0] == '0' && (p[1] | 0x20) == 'x') {
        if (!hex_number(p + 2, text.len - 2, &number))
            return false;
    } else if (text.len > 21) {
        return hex_bytes(job, p, text.len, i);
    } else if (!decimal_number(p, text.len, &number)) {
        return false;
    }
    kve_input_put_hash(job, i, number);
    return true;
}
