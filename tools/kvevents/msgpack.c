/*
 * msgpack.c - reading msgpack one token at a time, and writing it.
 */
#include "msgpack.h"

#include <stdlib.h>
#include <string.h>

/* Most bytes that a raw value made from JSON can have. */
#define MOST_BYTES ((size_t)64 << 20)

static uint64_t
big_endian(const uint8_t *bytes, size_t n)
{
    uint64_t number = 0;

    for (size_t i = 0; i < n; i++)
        number = number << 8 | bytes[i];
    return number;
}

static void
read_signed(uint64_t bits, unsigned width, struct msgpack_token *token)
{
    int64_t number = (int64_t)(bits << (64 - width)) >> (64 - width);

    if (number < 0) {
        token->kind = MSGPACK_INT;
        token->sint = number;
    } else {
        token->kind = MSGPACK_UINT;
        token->uint = (uint64_t)number;
    }
}

static void
read_float(uint64_t bits, size_t width, struct msgpack_token *token)
{
    token->kind = MSGPACK_FLOAT;
    if (width == 4) {
        uint32_t half = (uint32_t)bits;
        float real;

        memcpy(&real, &half, sizeof(real));
        token->real = (double)real;
    } else {
        memcpy(&token->real, &bits, sizeof(bits));
    }
}

/*
 * What a head byte from 0xc0 to 0xdf says: the kind, how many bytes of a
 * number follow, and for EXT of a fixed size that size.
 */
static const struct {
    uint8_t kind;
    uint8_t width;
    uint8_t fixed;
} heads[32] = {
    [0x00] = { MSGPACK_NIL, 0, 0 },
    [0x02] = { MSGPACK_BOOL, 0, 0 },
    [0x03] = { MSGPACK_BOOL, 0, 0 },
    [0x04] = { MSGPACK_BYTES, 1, 0 },
    [0x05] = { MSGPACK_BYTES, 2, 0 },
    [0x06] = { MSGPACK_BYTES, 4, 0 },
    [0x07] = { MSGPACK_EXT, 1, 0 },
    [0x08] = { MSGPACK_EXT, 2, 0 },
    [0x09] = { MSGPACK_EXT, 4, 0 },
    [0x0a] = { MSGPACK_FLOAT, 4, 0 },
    [0x0b] = { MSGPACK_FLOAT, 8, 0 },
    [0x0c] = { MSGPACK_UINT, 1, 0 },
    [0x0d] = { MSGPACK_UINT, 2, 0 },
    [0x0e] = { MSGPACK_UINT, 4, 0 },
    [0x0f] = { MSGPACK_UINT, 8, 0 },
    [0x10] = { MSGPACK_INT, 1, 0 },
    [0x11] = { MSGPACK_INT, 2, 0 },
    [0x12] = { MSGPACK_INT, 4, 0 },
    [0x13] = { MSGPACK_INT, 8, 0 },
    [0x14] = { MSGPACK_EXT, 0, 1 },
    [0x15] = { MSGPACK_EXT, 0, 2 },
    [0x16] = { MSGPACK_EXT, 0, 4 },
    [0x17] = { MSGPACK_EXT, 0, 8 },
    [0x18] = { MSGPACK_EXT, 0, 16 },
    [0x19] = { MSGPACK_TEXT, 1, 0 },
    [0x1a] = { MSGPACK_TEXT, 2, 0 },
    [0x1b] = { MSGPACK_TEXT, 4, 0 },
    [0x1c] = { MSGPACK_ARRAY, 2, 0 },
    [0x1d] = { MSGPACK_ARRAY, 4, 0 },
    [0x1e] = { MSGPACK_MAP, 2, 0 },
    [0x1f] = { MSGPACK_MAP, 4, 0 },
};

/* Head bytes that hold their number themselves; true when it is one. */
static bool
read_short(uint8_t head, struct msgpack_token *token, size_t *ret_len)
{
    *ret_len = 0;
    if (head < 0x80) {
        token->kind = MSGPACK_UINT;
        token->uint = head;
    } else if (head < 0x90) {
        token->kind = MSGPACK_MAP;
        token->count = head & 15u;
    } else if (head < 0xa0) {
        token->kind = MSGPACK_ARRAY;
        token->count = head & 15u;
    } else if (head < 0xc0) {
        token->kind = MSGPACK_TEXT;
        *ret_len = head & 31u;
    } else if (head >= 0xe0) {
        token->kind = MSGPACK_INT;
        token->sint = (int8_t)head;
    } else {
        return false;
    }
    return true;
}

/* A number of width bytes: a value, or a count, or a length. */
static void
read_wide(uint8_t head, uint64_t bits, size_t width,
    struct msgpack_token *token, size_t *ret_len)
{
    switch (token->kind) {
    case MSGPACK_BOOL:
        token->truth = head == 0xc3;
        break;
    case MSGPACK_UINT:
        token->uint = bits;
        break;
    case MSGPACK_INT:
        read_signed(bits, (unsigned)(8 * width), token);
        break;
    case MSGPACK_FLOAT:
        read_float(bits, width, token);
        break;
    case MSGPACK_ARRAY:
    case MSGPACK_MAP:
        token->count = (uint32_t)bits;
        break;
    default:
        *ret_len = width > 0 ? (size_t)bits : heads[head - 0xc0].fixed;
        break;
    }
}

bool
msgpack_read(struct kve_span in, size_t *pos, struct msgpack_token *ret)
{
    struct msgpack_token token = { .kind = MSGPACK_NIL };
    size_t at = *pos;
    size_t len = 0;
    uint8_t head;

    if (at >= in.len)
        return false;
    head = in.data[at++];
    if (!read_short(head, &token, &len)) {
        size_t width = heads[head - 0xc0].width;

        if (head == 0xc1 || in.len - at < width)
            return false;
        token.kind = heads[head - 0xc0].kind;
        read_wide(head, big_endian(in.data + at, width), width, &token, &len);
        at += width;
    }
    if (token.kind == MSGPACK_EXT) {
        if (at >= in.len)
            return false;
        token.ext = (int8_t)in.data[at++];
    }
    if (in.len - at < len)
        return false;
    token.data.data = in.data + at;
    token.data.len = len;
    *pos = at + len;
    *ret = token;
    return true;
}

bool
msgpack_skip(struct kve_span in, size_t *pos)
{
    /* Each value that is still to come has at least one byte. */
    uint64_t left = 1;

    while (left > 0) {
        struct msgpack_token token;

        if (!msgpack_read(in, pos, &token))
            return false;
        left--;
        if (token.kind == MSGPACK_ARRAY)
            left += token.count;
        else if (token.kind == MSGPACK_MAP)
            left += 2 * (uint64_t)token.count;
        if (left > in.len - *pos)
            return false;
    }
    return true;
}

bool
msgpack_append(struct msgpack_buffer *out, const void *bytes, size_t len)
{
    if (len > MOST_BYTES - out->len)
        return false;
    if (out->cap - out->len < len) {
        size_t cap = 2 * out->cap + len + 64;
        uint8_t *data = realloc(out->data, cap);

        if (data == NULL)
            return false;
        out->data = data;
        out->cap = cap;
    }
    if (len > 0)
        memcpy(out->data + out->len, bytes, len);
    out->len += len;
    return true;
}

/* A head byte and a big-endian number of width bytes. */
static bool
append_wide(
    struct msgpack_buffer *out, uint8_t head, uint64_t bits, size_t width)
{
    uint8_t bytes[9] = { head };

    for (size_t i = 0; i < width; i++)
        bytes[1 + i] = (uint8_t)(bits >> 8 * (width - 1 - i));
    return msgpack_append(out, bytes, 1 + width);
}

/* A count or length in the shortest of its forms; 0 as a head: no such form. */
static bool
append_count(struct msgpack_buffer *out, uint64_t count, uint8_t fix,
    unsigned fix_max, uint8_t head8, uint8_t head16)
{
    if (fix != 0 && count <= fix_max)
        return append_wide(out, (uint8_t)(fix | count), 0, 0);
    if (head8 != 0 && count <= UINT8_MAX)
        return append_wide(out, head8, count, 1);
    if (count <= UINT16_MAX)
        return append_wide(out, head16, count, 2);
    return append_wide(out, (uint8_t)(head16 + 1), count, 4);
}

static bool
append_number(struct msgpack_buffer *out, const struct msgpack_token *token)
{
    int64_t negative = token->sint;

    if (token->kind == MSGPACK_UINT) {
        if (token->uint < 0x80)
            return append_wide(out, (uint8_t)token->uint, 0, 0);
        if (token->uint <= UINT32_MAX)
            return append_count(out, token->uint, 0, 0, 0xcc, 0xcd);
        return append_wide(out, 0xcf, token->uint, 8);
    }
    if (negative >= -32)
        return append_wide(out, (uint8_t)negative, 0, 0);
    if (negative >= INT8_MIN)
        return append_wide(out, 0xd0, (uint64_t)negative, 1);
    if (negative >= INT16_MIN)
        return append_wide(out, 0xd1, (uint64_t)negative, 2);
    if (negative >= INT32_MIN)
        return append_wide(out, 0xd2, (uint64_t)negative, 4);
    return append_wide(out, 0xd3, (uint64_t)negative, 8);
}

bool
msgpack_write(struct msgpack_buffer *out, const struct msgpack_token *token)
{
    size_t len = token->data.len;
    uint64_t bits;

    switch (token->kind) {
    case MSGPACK_NIL:
        return append_wide(out, 0xc0, 0, 0);
    case MSGPACK_BOOL:
        return append_wide(out, token->truth ? 0xc3 : 0xc2, 0, 0);
    case MSGPACK_UINT:
    case MSGPACK_INT:
        return append_number(out, token);
    case MSGPACK_FLOAT:
        memcpy(&bits, &token->real, sizeof(bits));
        return append_wide(out, 0xcb, bits, 8);
    case MSGPACK_TEXT:
        return append_count(out, len, 0xa0, 31, 0xd9, 0xda) &&
            msgpack_append(out, token->data.data, len);
    case MSGPACK_BYTES:
        return append_count(out, len, 0, 0, 0xc4, 0xc5) &&
            msgpack_append(out, token->data.data, len);
    case MSGPACK_EXT:
        return append_count(out, len, 0, 0, 0xc7, 0xc8) &&
            msgpack_append(out, &token->ext, 1) &&
            msgpack_append(out, token->data.data, len);
    case MSGPACK_ARRAY:
        return append_count(out, token->count, 0x90, 15, 0, 0xdc);
    case MSGPACK_MAP:
        return append_count(out, token->count, 0x80, 15, 0, 0xde);
    }
    return false;
}
