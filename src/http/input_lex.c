/*
 * input_lex.c - see input_lex.h.
 *
 * Strings are looked at twice when they have escapes: once to find their end
 * and every fault, once to be copied. What is passed over is a loop with a word
 * of bits for a stack (bit: object or array).
 */
#include "http/input_lex.h"

#include "base/utf8.h"

#include <string.h>

const uint8_t *
kve_json_unexpected(struct kve_input_job *job, const uint8_t *p,
    const char *wanted, const char *at_end)
{
    return kve_input_broken(job, p, p + 1, p == job->end ? at_end : wanted);
}

/* ---- strings ---- */

static int
hex4(const uint8_t *p)
{
    int value = 0;

    for (int i = 0; i < 4; i++) {
        uint8_t c = p[i];

        if (kve_json_digit(c))
            value = value * 16 + (c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            value = value * 16 + ((c | 0x20) - 'a' + 10);
        else
            return -1;
    }
    return value;
}

KVE_COLD static const uint8_t *
bad_hex(struct kve_input_job *job, const uint8_t *p)
{
    for (int i = 0; i < 4; i++)
        if (p + i >= job->end)
            return kve_input_broken(job, p, job->end, KVE_JSON_END_OF_STRING);
    return kve_input_broken(job, p, p + 4, "invalid escape");
}

/* The escape at p, a backslash; *ret is the character. */
static const uint8_t *
escape(struct kve_input_job *job, const uint8_t *p, uint32_t *ret)
{
    static const char letters[] = "\"\\/bfnrt";
    static const char meanings[] = "\"\\/\b\f\n\r\t";
    const char *letter;
    int high, low;

    if (p[1] != 'u') {
        letter = p[1] == 0 ? NULL : strchr(letters, p[1]);
        if (letter == NULL)
            return kve_json_unexpected(
                job, p + 1, "invalid escape", KVE_JSON_END_OF_STRING);
        *ret = (uint32_t)meanings[letter - letters];
        return p + 2;
    }
    if (job->end - p < 6 || (high = hex4(p + 2)) < 0)
        return bad_hex(job, p + 2);
    p += 6;
    *ret = (uint32_t)high;
    if (high < 0xd800 || high > 0xdfff)
        return p;
    if (high >= 0xdc00)
        return kve_input_broken(
            job, p - 6, p, "lone leading surrogate in hex escape");
    if (*p != '\\')
        return kve_json_unexpected(
            job, p, "unexpected end of hex escape", KVE_JSON_END_OF_STRING);
    if (p[1] != 'u')
        return kve_json_unexpected(
            job, p + 1, "unexpected end of hex escape", KVE_JSON_END_OF_STRING);
    if (job->end - p < 6 || (low = hex4(p + 2)) < 0)
        return bad_hex(job, p + 2);
    if (low < 0xdc00 || low > 0xdfff)
        return kve_input_broken(
            job, p, p + 6, "lone leading surrogate in hex escape");
    *ret =
        0x10000 + (((uint32_t)high - 0xd800) << 10 | ((uint32_t)low - 0xdc00));
    return p + 6;
}

static uint8_t *
put_utf8(uint8_t *w, uint32_t c)
{
    if (c < 0x80) {
        *w++ = (uint8_t)c;
    } else if (c < 0x800) {
        *w++ = (uint8_t)(0xc0 | c >> 6);
        *w++ = (uint8_t)(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
        *w++ = (uint8_t)(0xe0 | c >> 12);
        *w++ = (uint8_t)(0x80 | (c >> 6 & 0x3f));
        *w++ = (uint8_t)(0x80 | (c & 0x3f));
    } else {
        *w++ = (uint8_t)(0xf0 | c >> 18);
        *w++ = (uint8_t)(0x80 | (c >> 12 & 0x3f));
        *w++ = (uint8_t)(0x80 | (c >> 6 & 0x3f));
        *w++ = (uint8_t)(0x80 | (c & 0x3f));
    }
    return w;
}

/* Bytes that end a run of plain text: quote, backslash, controls, not ASCII. */
KVE_INLINE bool
all_plain(const uint8_t *p)
{
    const uint64_t ones = UINT64_C(0x0101010101010101);
    const uint64_t high = UINT64_C(0x8080808080808080);
    uint64_t x, quote, slash;

    memcpy(&x, p, 8);
    quote = x ^ ones * '"';
    slash = x ^ ones * '\\';
    /* The lowest byte that is less than what is taken off it shows as such;
     * a borrow can only add some above it. */
    return (((quote - ones) | (slash - ones) | (x - ones * 0x20) | x) & high) ==
        0;
}

/* The closing quote of the string whose text begins at p. */
static const uint8_t *
string_end(struct kve_input_job *job, const uint8_t *p, bool *ret_escapes)
{
    for (;;) {
        uint32_t character;
        size_t n;

        while (job->end - p >= 8 && all_plain(p))
            p += 8;
        if (*p == '"')
            return p;
        if (*p == '\\') {
            *ret_escapes = true;
            p = escape(job, p, &character);
            if (p == NULL)
                return NULL;
        } else if (*p < 0x20) {
            return kve_json_unexpected(job, p,
                "control character (\\u0000-\\u001F) found while parsing a "
                "string",
                KVE_JSON_END_OF_STRING);
        } else if (*p < 0x80) {
            p++;
        } else {
            n = kve_utf8_long(p, (size_t)(job->end - p));
            if (n == 0)
                return kve_input_broken(
                    job, p, p + 1, "invalid unicode code point");
            p += n;
        }
    }
}

/* Copy the valid text [p, end) without its escapes. */
static bool
unescape(struct kve_input_job *job, const uint8_t *p, const uint8_t *end,
    struct kve_str *ret)
{
    uint8_t *bytes = kve_input_bytes(job, (size_t)(end - p));
    uint8_t *w = bytes;

    if (bytes == NULL)
        return false;
    while (p < end) {
        uint32_t character;

        if (*p != '\\') {
            *w++ = *p++;
            continue;
        }
        p = escape(job, p, &character);
        w = put_utf8(w, character);
    }
    ret->data = (const char *)bytes;
    ret->len = (size_t)(w - bytes);
    return true;
}

const uint8_t *
kve_json_string(
    struct kve_input_job *job, const uint8_t *p, struct kve_str *ret)
{
    bool escapes = false;
    const uint8_t *end = string_end(job, p + 1, &escapes);

    if (end == NULL)
        return NULL;
    if (ret == NULL)
        return end + 1;
    ret->data = (const char *)p + 1;
    ret->len = (size_t)(end - p - 1);
    if (escapes && !unescape(job, p + 1, end, ret))
        return NULL;
    return end + 1;
}

/* ---- numbers and words ---- */

/* The number at p, of any kind. */
static const uint8_t *
number(
    struct kve_input_job *job, const uint8_t *p, enum kve_input_kind *ret_kind)
{
    *ret_kind = KVE_KIND_INTEGER;
    p += *p == '-';
    if (!kve_json_digit(*p))
        return kve_json_unexpected(
            job, p, "invalid number", KVE_JSON_END_OF_VALUE);
    if (*p == '0' && kve_json_digit(p[1]))
        return kve_input_broken(job, p + 1, p + 2, "invalid number");
    while (kve_json_digit(*p))
        p++;
    if (*p == '.') {
        *ret_kind = KVE_KIND_FLOAT;
        p++;
        if (!kve_json_digit(*p))
            return kve_json_unexpected(
                job, p, "invalid number", KVE_JSON_END_OF_VALUE);
        while (kve_json_digit(*p))
            p++;
    }
    if ((*p | 0x20) == 'e') {
        *ret_kind = KVE_KIND_FLOAT;
        p++;
        p += *p == '+' || *p == '-';
        if (!kve_json_digit(*p))
            return kve_json_unexpected(
                job, p, "invalid number", KVE_JSON_END_OF_VALUE);
        while (kve_json_digit(*p))
            p++;
    }
    return p;
}

const uint8_t *
kve_json_word(struct kve_input_job *job, const uint8_t *p, const char *text)
{
    for (; *text != '\0'; text++, p++)
        if (*p != (uint8_t)*text)
            return kve_json_unexpected(
                job, p, "expected ident", KVE_JSON_END_OF_VALUE);
    return p;
}

const uint8_t *
kve_json_plain(
    struct kve_input_job *job, const uint8_t *p, enum kve_input_kind *ret_kind)
{
    switch (*p) {
    case '"':
        *ret_kind = KVE_KIND_TEXT;
        return kve_json_string(job, p, NULL);
    case 'n':
        *ret_kind = KVE_KIND_NULL;
        return kve_json_word(job, p, "null");
    case 't':
        *ret_kind = KVE_KIND_BOOL;
        return kve_json_word(job, p, "true");
    case 'f':
        *ret_kind = KVE_KIND_BOOL;
        return kve_json_word(job, p, "false");
    default:
        if (*p == '-' || kve_json_digit(*p))
            return number(job, p, ret_kind);
        return kve_json_unexpected(
            job, p, "expected value", KVE_JSON_END_OF_VALUE);
    }
}

/* ---- what is passed over ---- */

const uint8_t *
kve_json_key(struct kve_input_job *job, const uint8_t *p, struct kve_str *ret,
    const uint8_t **ret_end)
{
    if (*p != '"')
        return kve_json_unexpected(
            job, p, "key must be a string", KVE_JSON_END_OF_OBJECT);
    p = kve_json_string(job, p, ret);
    if (p == NULL)
        return NULL;
    *ret_end = p;
    p = kve_json_space(p);
    if (*p != ':')
        return kve_json_unexpected(
            job, p, "expected `:`", KVE_JSON_END_OF_OBJECT);
    return kve_json_space(p + 1);
}

const uint8_t *
kve_json_skip(struct kve_input_job *job, const uint8_t *p)
{
    uint64_t objects = 0; /* lowest bit: the innermost is an object */
    unsigned depth = 0;
    enum kve_input_kind kind;
    const uint8_t *end;

    for (;;) {
        bool closed = false;
        uint8_t c = *p;

        if (c == '[' || c == '{') {
            if (++depth > KVE_INPUT_MAX_DEPTH)
                return kve_input_broken(
                    job, p, p + 1, "recursion limit exceeded");
            objects = objects << 1 | (c == '{');
            p = kve_json_space(p + 1);
            closed = *p == (c == '{' ? '}' : ']');
            p += closed;
        } else {
            p = kve_json_plain(job, p, &kind);
            if (p == NULL)
                return NULL;
            if (depth == 0)
                return p;
            p = kve_json_after(job, p, objects & 1 ? '}' : ']', &closed);
            if (p == NULL)
                return NULL;
        }
        while (closed) {
            objects >>= 1;
            if (--depth == 0)
                return p;
            p = kve_json_after(job, p, objects & 1 ? '}' : ']', &closed);
            if (p == NULL)
                return NULL;
        }
        if (objects & 1) {
            p = kve_json_key(job, p, NULL, &end);
            if (p == NULL)
                return NULL;
        }
    }
}
