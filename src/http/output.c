/*
 * output.c - see output.h.
 *
 * Each call asks once for the most it can write, then writes without looking.
 * The comma before a value is written by the value itself, so that whoever
 * writes members never asks whether there were others.
 */
#include "http/output.h"

#include "base/utf8.h"

#include "wire/buffer.h"
#include "wire/cursor.h"
#include "wire/put.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The most that a comma, a quote at both ends and a colon take. */
#define AROUND 8
#define MOST_DIGITS 20
/* One byte of text, as JSON: \u00XX; one that is no UTF-8: three bytes. */
#define MOST_ESCAPED 6

void
kve_output_begin(struct kve_output *out, struct kve_buffer *buf, bool msgpack)
{
    out->buf = buf;
    out->status = KVE_OK;
    out->msgpack = msgpack;
    out->comma = false;
}

/* Room for n bytes, or NULL. */
KVE_INLINE uint8_t *
room(struct kve_output *out, size_t n)
{
    struct kve_buffer *buf = out->buf;

    if (KVE_UNLIKELY(out->status != KVE_OK))
        return NULL;
    if (KVE_UNLIKELY(n > buf->cap - buf->len)) {
        out->status = kve_buffer_reserve(buf, n, NULL);
        if (out->status != KVE_OK)
            return NULL;
    }
    return buf->data + buf->len;
}

KVE_INLINE void
finish(struct kve_output *out, const uint8_t *w)
{
    out->buf->len = (size_t)(w - out->buf->data);
}

/* The comma that a value needs, in JSON; then it needs one itself. */
KVE_INLINE uint8_t *
comma(struct kve_output *out, uint8_t *w)
{
    *w = ',';
    w += out->comma && !out->msgpack;
    out->comma = true;
    return w;
}

KVE_INLINE uint8_t *
put_bytes(uint8_t *w, const void *bytes, size_t len)
{
    memcpy(w, bytes, len);
    return w + len;
}

/* ---- numbers ---- */

static const char pairs[] = "00010203040506070809"
                            "10111213141516171819"
                            "20212223242526272829"
                            "30313233343536373839"
                            "40414243444546474849"
                            "50515253545556575859"
                            "60616263646566676869"
                            "70717273747576777879"
                            "80818283848586878889"
                            "90919293949596979899";

static uint8_t *
put_digits(uint8_t *w, uint64_t number)
{
    char digits[MOST_DIGITS];
    size_t at = sizeof(digits);

    while (number >= 100) {
        at -= 2;
        memcpy(digits + at, pairs + 2 * (number % 100), 2);
        number /= 100;
    }
    if (number >= 10) {
        at -= 2;
        memcpy(digits + at, pairs + 2 * number, 2);
    } else {
        digits[--at] = (char)('0' + number);
    }
    return put_bytes(w, digits + at, sizeof(digits) - at);
}

void
kve_output_u64(struct kve_output *out, uint64_t number)
{
    uint8_t *w = room(out, AROUND + MOST_DIGITS);

    if (w == NULL)
        return;
    w = comma(out, w);
    finish(out, out->msgpack ? kve_put_u64(w, number) : put_digits(w, number));
}

void
kve_output_i64(struct kve_output *out, int64_t number)
{
    uint8_t *w = room(out, AROUND + MOST_DIGITS);

    if (w == NULL)
        return;
    w = comma(out, w);
    if (out->msgpack) {
        finish(out, kve_put_i64(w, number));
        return;
    }
    *w = '-';
    w += number < 0;
    finish(out,
        put_digits(w, number < 0 ? 0 - (uint64_t)number : (uint64_t)number));
}

/* The fewest digits that read back as the same number. The locale's decimal
 * point, whatever it is, becomes one byte. */
static size_t
format_double(double number, char *text, size_t cap)
{
    char raw[40];
    size_t n = 0;
    bool whole = true;

    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(raw, sizeof(raw), "%.*g", digits, number);
        if (strtod(raw, NULL) == number)
            break;
    }
    for (const char *p = raw; *p != '\0' && n + 3 < cap; p++) {
        bool plain = strchr("0123456789+-e", *p) != NULL;

        if (plain)
            text[n++] = *p;
        else if (n > 0 && text[n - 1] != '.')
            text[n++] = '.';
        whole = whole && plain && *p != 'e';
    }
    if (whole) {
        text[n++] = '.';
        text[n++] = '0';
    }
    return n;
}

void
kve_output_double(struct kve_output *out, double number)
{
    char text[48];
    uint8_t *w;

    if (!out->msgpack && !isfinite(number)) {
        kve_output_null(out);
        return;
    }
    w = room(out, AROUND + sizeof(text));
    if (w == NULL)
        return;
    w = comma(out, w);
    finish(out,
        out->msgpack
            ? kve_put_float(w, number)
            : put_bytes(w, text, format_double(number, text, sizeof(text))));
}

void
kve_output_bool(struct kve_output *out, bool value)
{
    uint8_t *w = room(out, AROUND);

    if (w == NULL)
        return;
    w = comma(out, w);
    if (out->msgpack)
        *w++ = value ? 0xc3 : 0xc2;
    else
        w = value ? put_bytes(w, "true", 4) : put_bytes(w, "false", 5);
    finish(out, w);
}

void
kve_output_null(struct kve_output *out)
{
    uint8_t *w = room(out, AROUND);

    if (w == NULL)
        return;
    w = comma(out, w);
    finish(out, out->msgpack ? kve_put_nil(w) : put_bytes(w, "null", 4));
}

/* ---- containers ---- */

static void
open_container(struct kve_output *out, char bracket, size_t n, uint8_t fix)
{
    uint8_t *w = room(out, AROUND);

    if (w == NULL)
        return;
    w = comma(out, w);
    if (out->msgpack)
        w = kve_put_count(w, n, fix);
    else
        *w++ = (uint8_t)bracket;
    finish(out, w);
    out->comma = false;
}

static void
close_container(struct kve_output *out, char bracket)
{
    uint8_t *w;

    out->comma = true;
    if (out->msgpack)
        return;
    w = room(out, AROUND);
    if (w == NULL)
        return;
    *w++ = (uint8_t)bracket;
    finish(out, w);
}

void
kve_output_map(struct kve_output *out, uint32_t n)
{
    open_container(out, '{', n, 0x80);
}

void
kve_output_map_end(struct kve_output *out)
{
    close_container(out, '}');
}

void
kve_output_array(struct kve_output *out, uint32_t n)
{
    open_container(out, '[', n, 0x90);
}

void
kve_output_array_end(struct kve_output *out)
{
    close_container(out, ']');
}

/* ---- texts ---- */

/* Bytes that JSON has no escape for and that are no ASCII: all but these. */
KVE_INLINE bool
is_plain(uint8_t c)
{
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

static uint8_t *
put_escape(uint8_t *w, uint8_t c)
{
    static const char hex[] = "0123456789abcdef";
    static const char from[] = "\"\\\b\f\n\r\t";
    static const char to[] = "\"\\bfnrt";
    const char *letter = c == 0 ? NULL : strchr(from, c);

    *w++ = '\\';
    if (letter != NULL) {
        *w++ = (uint8_t)to[letter - from];
        return w;
    }
    w = put_bytes(w, "u00", 3);
    *w++ = (uint8_t)hex[c >> 4];
    *w++ = (uint8_t)hex[c & 15];
    return w;
}

/* A text, its bytes that are no UTF-8 replaced, escaped when json. */
static uint8_t *
put_text(uint8_t *w, struct kve_str text, bool json)
{
    const uint8_t *p = (const uint8_t *)text.data;
    const uint8_t *end = p + text.len;

    while (p < end) {
        size_t n = 1;

        if (*p >= 0x80) {
            n = kve_utf8_long(p, (size_t)(end - p));
            if (n == 0) {
                w = put_bytes(w, "\xef\xbf\xbd", 3);
                p++;
                continue;
            }
        } else if (json && !is_plain(*p)) {
            w = put_escape(w, *p++);
            continue;
        }
        w = put_bytes(w, p, n);
        p += n;
    }
    return w;
}

static bool
all_plain(struct kve_str text)
{
    for (size_t i = 0; i < text.len; i++)
        if (!is_plain((uint8_t)text.data[i]))
            return false;
    return true;
}

/* What put_text() makes of it in msgpack, where the length comes first. */
static size_t
replaced_len(struct kve_str text)
{
    size_t len = 0, i = 0;

    while (i < text.len) {
        size_t valid = kve_utf8_valid(text.data + i, text.len - i);

        len += valid;
        i += valid;
        if (i < text.len) {
            len += 3;
            i++;
        }
    }
    return len;
}

/* The head of a msgpack string of len bytes. */
static uint8_t *
put_str_head(uint8_t *w, size_t len)
{
    if (len <= 31) {
        *w++ = (uint8_t)(0xa0 | len);
    } else if (len <= 0xff) {
        *w++ = 0xd9;
        *w++ = (uint8_t)len;
    } else if (len <= 0xffff) {
        *w++ = 0xda;
        kve_put16(w, (uint16_t)len);
        w += 2;
    } else {
        *w++ = 0xdb;
        kve_put32(w, (uint32_t)len);
        w += 4;
    }
    return w;
}

/* Neither key nor value yet: the text, in quotes. */
static uint8_t *
put_str(struct kve_output *out, uint8_t *w, struct kve_str text)
{
    if (KVE_LIKELY(all_plain(text))) {
        if (out->msgpack)
            return kve_put_str(w, text.data, text.len);
        *w++ = '"';
        w = put_bytes(w, text.data, text.len);
    } else if (out->msgpack) {
        w = put_str_head(w, replaced_len(text));
        return put_text(w, text, false);
    } else {
        *w++ = '"';
        w = put_text(w, text, true);
    }
    *w++ = '"';
    return w;
}

KVE_INLINE uint8_t *
room_for_text(struct kve_output *out, size_t len)
{
    if (KVE_UNLIKELY(len > UINT32_MAX / MOST_ESCAPED)) {
        out->status = KVE_E_LIMIT;
        return NULL;
    }
    return room(out, AROUND + len * MOST_ESCAPED);
}

/* A colon behind a key; its value needs no comma. */
KVE_INLINE uint8_t *
colon(struct kve_output *out, uint8_t *w)
{
    *w = ':';
    w += !out->msgpack;
    out->comma = false;
    return w;
}

void
kve_output_str(struct kve_output *out, struct kve_str text)
{
    uint8_t *w;

    if (text.data == NULL) {
        kve_output_null(out);
        return;
    }
    w = room_for_text(out, text.len);
    if (w != NULL)
        finish(out, put_str(out, comma(out, w), text));
}

void
kve_output_text(struct kve_output *out, const char *text)
{
    struct kve_str str = { text, text != NULL ? strlen(text) : 0 };

    kve_output_str(out, str);
}

void
kve_output_key_text(struct kve_output *out, struct kve_str key)
{
    static const struct kve_str empty = { "", 0 };
    uint8_t *w = room_for_text(out, key.len);

    if (w == NULL)
        return;
    w = put_str(out, comma(out, w), key.data != NULL ? key : empty);
    finish(out, colon(out, w));
}

void
kve_output_plain_key(struct kve_output *out, const char *key, size_t len)
{
    uint8_t *w = room(out, AROUND + len);

    if (w == NULL)
        return;
    w = comma(out, w);
    if (out->msgpack) {
        w = kve_put_str(w, key, len);
    } else {
        *w++ = '"';
        w = put_bytes(w, key, len);
        *w++ = '"';
    }
    finish(out, colon(out, w));
}

/* A ready text; NULL: no room. */
static uint8_t *
put_ready(
    struct kve_output *out, const char *json, size_t json_len, const char *raw)
{
    size_t len = out->msgpack ? strlen(raw) : json_len;
    uint8_t *w = room(out, AROUND + len);

    if (w == NULL)
        return NULL;
    w = comma(out, w);
    return out->msgpack ? kve_put_str(w, raw, len) : put_bytes(w, json, len);
}

void
kve_output_key_json(
    struct kve_output *out, const char *json, size_t json_len, const char *raw)
{
    uint8_t *w = put_ready(out, json, json_len, raw);

    if (w != NULL)
        finish(out, colon(out, w));
}

void
kve_output_json(
    struct kve_output *out, const char *json, size_t json_len, const char *raw)
{
    uint8_t *w = put_ready(out, json, json_len, raw);

    if (w != NULL)
        finish(out, w);
}

/* A number as a text, comma before it. */
static uint8_t *
put_u64_text(struct kve_output *out, uint64_t number)
{
    uint8_t *w = room(out, AROUND + MOST_DIGITS);
    uint8_t digits[MOST_DIGITS];
    size_t len;

    if (w == NULL)
        return NULL;
    w = comma(out, w);
    if (!out->msgpack) {
        *w++ = '"';
        w = put_digits(w, number);
        *w++ = '"';
        return w;
    }
    len = (size_t)(put_digits(digits, number) - digits);
    return kve_put_str(w, (const char *)digits, len);
}

void
kve_output_u64_text(struct kve_output *out, uint64_t number)
{
    uint8_t *w = put_u64_text(out, number);

    if (w != NULL)
        finish(out, w);
}

void
kve_output_key_u64(struct kve_output *out, uint64_t number)
{
    uint8_t *w = put_u64_text(out, number);

    if (w != NULL)
        finish(out, colon(out, w));
}

void
kve_output_hash(struct kve_output *out, const struct kve_hash *hash)
{
    static const char hex[] = "0123456789abcdef";
    size_t len = hash->len;
    uint8_t *w;

    if (hash->bytes == NULL) {
        kve_output_u64_text(out, hash->integer);
        return;
    }
    w = room_for_text(out, len);
    if (w == NULL)
        return;
    w = comma(out, w);
    if (out->msgpack)
        w = put_str_head(w, 2 * len);
    else
        *w++ = '"';
    for (size_t i = 0; i < len; i++) {
        *w++ = (uint8_t)hex[hash->bytes[i] >> 4];
        *w++ = (uint8_t)hex[hash->bytes[i] & 15];
    }
    *w = '"';
    w += !out->msgpack;
    finish(out, w);
}
