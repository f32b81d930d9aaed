/*
 * value.c - how one value is written, in two notations.
 *
 * Nested values are walked with a stack of VALUE_DEPTH levels, never by
 * recursion: how deep they are is decided by a stranger.
 */
#include "value.h"

#include "msgpack.h"

#include <kvevents/codec.h>

#include <math.h>
#include <string.h>

void
value_nil(struct out *out, enum notation notation)
{
    out_text(out, notation == NOTATION_JSON ? "null" : "None");
}

size_t
value_character(const unsigned char *p, size_t len, uint32_t *ret_code)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    uint32_t code = p[0];
    size_t n = p[0] < 0x80 ? 1
        : p[0] < 0xc0      ? 0
        : p[0] < 0xe0      ? 2
        : p[0] < 0xf0      ? 3
        : p[0] < 0xf8      ? 4
                           : 0;

    if (n == 0 || n > len)
        return 0;
    if (n > 1)
        code &= 0x7fu >> n;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (p[i] & 0x3fu);
    }
    if (code < least[n] || code > 0x10ffff ||
        (code >= 0xd800 && code <= 0xdfff))
        return 0;
    *ret_code = code;
    return n;
}

/* Characters that do something to a terminal, or to the line they are in. */
static bool
is_control(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0xad ||
        (code >= 0x200b && code <= 0x200f) ||
        (code >= 0x2028 && code <= 0x202e) ||
        (code >= 0x2060 && code <= 0x206f) || code == 0xfeff;
}

static void
escape(struct out *out, enum notation notation, uint32_t code)
{
    if (code == '\n')
        out_text(out, "\\n");
    else if (code == '\t')
        out_text(out, "\\t");
    else if (code == '\r')
        out_text(out, "\\r");
    else if (code < 0x100 && notation == NOTATION_PYTHON)
        out_format(out, "\\x%02x", code);
    else
        out_format(out, "\\u%04x", code);
}

void
value_text(
    struct out *out, enum notation notation, const char *text, size_t len)
{
    const unsigned char *p = (const unsigned char *)text;
    char quote = notation == NOTATION_JSON ? '"' : '\'';

    out_char(out, quote);
    while (len > 0) {
        uint32_t code;
        size_t n = value_character(p, len, &code);

        if (n == 0) {
            if (notation == NOTATION_JSON)
                out_text(out, "\xef\xbf\xbd");
            else
                out_format(out, "\\x%02x", p[0]);
            n = 1;
        } else if (code == '\\' || code == (unsigned char)quote) {
            out_char(out, '\\');
            out_char(out, (char)code);
        } else if (is_control(code)) {
            escape(out, notation, code);
        } else {
            out_bytes(out, p, n);
        }
        p += n;
        len -= n;
    }
    out_char(out, quote);
}

void
value_double(struct out *out, enum notation notation, double number)
{
    const char *name = isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";

    if (isfinite(number))
        out_double(out, number);
    else if (notation == NOTATION_JSON)
        out_format(out, "{\"$float\":\"%s\"}", name);
    else
        out_text(out, name);
}

static void
write_bytes(struct out *out, enum notation notation, struct kve_span bytes)
{
    out_text(out, notation == NOTATION_JSON ? "{\"$bytes\":\"" : "h'");
    out_hex(out, bytes.data, bytes.len);
    out_text(out, notation == NOTATION_JSON ? "\"}" : "'");
}

void
value_hash(struct out *out, enum notation notation, const struct kve_hash *hash)
{
    bool json = notation == NOTATION_JSON;

    if (hash->bytes == NULL) {
        if (json)
            out_char(out, '"');
        out_u64(out, hash->integer);
        if (json)
            out_char(out, '"');
        return;
    }
    /* 10 bytes are 20 digits: what a number of 64 bits can have. */
    out_text(out, !json ? "h'" : hash->len <= 10 ? "\"hex:" : "\"");
    out_hex(out, hash->bytes, hash->len);
    out_char(out, json ? '"' : '\'');
}

static void
write_scalar(
    struct out *out, enum notation notation, const struct msgpack_token *token)
{
    bool json = notation == NOTATION_JSON;

    switch (token->kind) {
    case MSGPACK_BOOL:
        if (json)
            out_text(out, token->truth ? "true" : "false");
        else
            out_text(out, token->truth ? "True" : "False");
        break;
    case MSGPACK_UINT:
        out_u64(out, token->uint);
        break;
    case MSGPACK_INT:
        out_i64(out, token->sint);
        break;
    case MSGPACK_FLOAT:
        value_double(out, notation, token->real);
        break;
    case MSGPACK_TEXT:
        value_text(
            out, notation, (const char *)token->data.data, token->data.len);
        break;
    case MSGPACK_BYTES:
        write_bytes(out, notation, token->data);
        break;
    case MSGPACK_EXT:
        out_format(out, json ? "{\"$ext\":[%d,\"" : "ext(%d, h'", token->ext);
        out_hex(out, token->data.data, token->data.len);
        out_text(out, json ? "\"]}" : "')");
        break;
    case MSGPACK_NIL:
    case MSGPACK_ARRAY:
    case MSGPACK_MAP:
        value_nil(out, notation);
        break;
    }
}

/* A walk over one nested value. */
struct walk {
    struct out *out;
    enum notation notation;
    struct kve_span raw;
    size_t pos;
    size_t depth;
    struct {
        uint64_t left; /* tokens still to come, keys and values alike */
        bool map;
        bool first;
    } levels[VALUE_DEPTH];
};

/* Write raw[from..pos) as it came: what is too deep, or no msgpack. */
static void
write_raw(struct walk *walk, size_t from)
{
    bool json = walk->notation == NOTATION_JSON;

    out_text(walk->out, json ? "{\"$msgpack\":\"" : "msgpack(h'");
    out_hex(walk->out, walk->raw.data + from, walk->pos - from);
    out_text(walk->out, json ? "\"}" : "')");
}

/* What stands between two members; says whether a key comes now. */
static bool
write_separator(struct walk *walk)
{
    bool json = walk->notation == NOTATION_JSON;
    bool key = walk->levels[walk->depth - 1].map &&
        walk->levels[walk->depth - 1].left % 2 == 0;

    if (walk->levels[walk->depth - 1].map && !key)
        out_text(walk->out, json ? ":" : ": ");
    else if (!walk->levels[walk->depth - 1].first)
        out_text(walk->out, json ? "," : ", ");
    walk->levels[walk->depth - 1].first = false;
    return key;
}

/* Open an array or map, or write it raw when it is too deep. */
static void
enter(struct walk *walk, const struct msgpack_token *token, size_t from)
{
    bool map = token->kind == MSGPACK_MAP;

    if (walk->depth == VALUE_DEPTH) {
        walk->pos = from;
        if (!msgpack_skip(walk->raw, &walk->pos))
            walk->pos = walk->raw.len;
        write_raw(walk, from);
        return;
    }
    out_char(walk->out, map ? '{' : '[');
    walk->levels[walk->depth].left = (map ? 2 : 1) * (uint64_t)token->count;
    walk->levels[walk->depth].map = map;
    walk->levels[walk->depth].first = true;
    walk->depth++;
}

/* A key in JSON must be a text. */
static void
write_json_key(
    struct walk *walk, const struct msgpack_token *token, size_t from)
{
    struct out *out = walk->out;

    switch (token->kind) {
    case MSGPACK_TEXT:
        write_scalar(out, NOTATION_JSON, token);
        break;
    case MSGPACK_NIL:
    case MSGPACK_BOOL:
    case MSGPACK_UINT:
    case MSGPACK_INT:
        out_char(out, '"');
        write_scalar(out, NOTATION_JSON, token);
        out_char(out, '"');
        break;
    default:
        walk->pos = from;
        if (!msgpack_skip(walk->raw, &walk->pos))
            walk->pos = walk->raw.len;
        out_text(out, "\"$msgpack:");
        out_hex(out, walk->raw.data + from, walk->pos - from);
        out_char(out, '"');
        break;
    }
}

static void
close_levels(struct walk *walk)
{
    while (walk->depth > 0 && walk->levels[walk->depth - 1].left == 0) {
        walk->depth--;
        out_char(walk->out, walk->levels[walk->depth].map ? '}' : ']');
    }
}

void
value_msgpack(struct out *out, enum notation notation, struct kve_span raw)
{
    struct walk walk = { .out = out, .notation = notation, .raw = raw };
    size_t end = 0;

    if (raw.data == NULL) {
        value_nil(out, notation);
        return;
    }
    /* After this no token is missing: the loop ends where the value does. */
    if (!msgpack_skip(raw, &end)) {
        walk.pos = raw.len;
        write_raw(&walk, 0);
        return;
    }
    do {
        struct msgpack_token token;
        size_t from = walk.pos;
        bool key = walk.depth > 0 && write_separator(&walk);

        if (!msgpack_read(raw, &walk.pos, &token))
            break;
        if (walk.depth > 0)
            walk.levels[walk.depth - 1].left--;
        if (key && notation == NOTATION_JSON)
            write_json_key(&walk, &token, from);
        else if (token.kind == MSGPACK_ARRAY || token.kind == MSGPACK_MAP)
            enter(&walk, &token, from);
        else
            write_scalar(out, notation, &token);
        close_levels(&walk);
    } while (walk.depth > 0);
}
