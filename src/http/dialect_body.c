/*
 * dialect_body.c - small JSON bodies, read by a table of fields.
 */
#include "http/dialect_body.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A bit of kve_input_limits.fields that no field has: look at none. */
#define NO_FIELDS (UINT32_C(1) << 31)
#define NUMBER_TEXT 21 /* the longest number, and its zero */

_Static_assert(KVE_INPUT_FIELDS < 32, "a bit is left for no field");

/* One value of valid JSON. */
struct value {
    enum kve_input_kind kind;
    size_t at;   /* its first byte */
    size_t end;  /* behind it */
    size_t seen; /* bytes read when serde_json knows that it is wrong */
};

/* ---- scanning JSON that is valid ---- */

static size_t
skip_space(const uint8_t *data, size_t at)
{
    while (data[at] == ' ' || data[at] == '\t' || data[at] == '\n' ||
        data[at] == '\r')
        at++;
    return at;
}

/* at: the opening quote. Behind the closing one. */
static size_t
skip_text(const uint8_t *data, size_t at)
{
    at++;
    while (data[at] != '"')
        at += data[at] == '\\' ? 2 : 1;
    return at + 1;
}

static size_t
skip_nest(const uint8_t *data, size_t at)
{
    size_t depth = 0;

    do {
        if (data[at] == '"') {
            at = skip_text(data, at);
            continue;
        }
        if (data[at] == '[' || data[at] == '{')
            depth++;
        else if (data[at] == ']' || data[at] == '}')
            depth--;
        at++;
    } while (depth > 0);
    return at;
}

static size_t
skip_word(const uint8_t *data, size_t at)
{
    while (
        data[at] != ',' && data[at] != '}' && data[at] != ']' && data[at] > ' ')
        at++;
    return at;
}

static enum kve_input_kind
number_kind(const uint8_t *data, size_t at, size_t end)
{
    for (; at < end; at++)
        if (data[at] == '.' || data[at] == 'e' || data[at] == 'E')
            return KVE_KIND_FLOAT;
    return KVE_KIND_INTEGER;
}

static struct value
value_at(const uint8_t *data, size_t at)
{
    struct value value = { KVE_KIND_NONE, at, at, at };

    switch (data[at]) {
    case '"':
        value.kind = KVE_KIND_TEXT;
        value.end = skip_text(data, at);
        break;
    case '[':
    case '{':
        value.kind = data[at] == '[' ? KVE_KIND_ARRAY : KVE_KIND_OBJECT;
        value.end = skip_nest(data, at);
        return value; /* seen before it is read */
    case 'n':
        value.kind = KVE_KIND_NULL;
        value.end = at + 4;
        break;
    case 't':
    case 'f':
        value.kind = KVE_KIND_BOOL;
        value.end = skip_word(data, at);
        break;
    default:
        value.end = skip_word(data, at);
        value.kind = number_kind(data, at, value.end);
        break;
    }
    value.seen = value.end;
    return value;
}

/*
 * The next field of an object: *at is behind the brace or a value. false at
 * the end; *at is behind the closing brace then.
 */
static bool
next_field(const uint8_t *data, size_t *at, struct value *ret_key,
    struct value *ret_value)
{
    size_t here = skip_space(data, *at);

    if (data[here] == ',')
        here = skip_space(data, here + 1);
    if (data[here] == '}') {
        *at = here + 1;
        return false;
    }
    *ret_key = value_at(data, here);
    here = skip_space(data, ret_key->end);
    *ret_value = value_at(data, skip_space(data, here + 1));
    *at = ret_value->end;
    return true;
}

static bool
key_is(const uint8_t *data, const struct value *key, const char *name)
{
    size_t len = strlen(name);

    return key->end - key->at == len + 2 &&
        memcmp(data + key->at + 1, name, len) == 0;
}

/* ---- texts ---- */

static unsigned
hex4(const uint8_t *at)
{
    unsigned x = 0;

    for (int i = 0; i < 4; i++) {
        unsigned c = at[i];

        x = x << 4 | (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return x;
}

static char *
put_utf8(char *to, unsigned c)
{
    if (c < 0x80) {
        *to++ = (char)c;
        return to;
    }
    if (c < 0x800) {
        *to++ = (char)(0xc0 | c >> 6);
    } else if (c < 0x10000) {
        *to++ = (char)(0xe0 | c >> 12);
        *to++ = (char)(0x80 | (c >> 6 & 0x3f));
    } else {
        *to++ = (char)(0xf0 | c >> 18);
        *to++ = (char)(0x80 | (c >> 12 & 0x3f));
        *to++ = (char)(0x80 | (c >> 6 & 0x3f));
    }
    *to++ = (char)(0x80 | (c & 0x3f));
    return to;
}

/* One escape; *at stands at the backslash. */
static char *
put_escape(char *to, const uint8_t *data, size_t *at)
{
    static const char from[] = "bfnrt";
    static const char means[] = "\b\f\n\r\t";
    uint8_t c = data[*at + 1];
    const char *found;
    unsigned code;

    if (c != 'u') {
        found = strchr(from, c);
        *to++ = found != NULL ? means[found - from] : (char)c;
        *at += 2;
        return to;
    }
    code = hex4(data + *at + 2);
    *at += 6;
    if (code >= 0xd800 && code < 0xdc00) {
        code =
            0x10000 + ((code - 0xd800) << 10) + (hex4(data + *at + 2) - 0xdc00);
        *at += 6;
    }
    return put_utf8(to, code);
}

/* Decode a text to to, with a zero behind it; its length. */
static size_t
decode_text(char *to, const uint8_t *data, const struct value *value)
{
    char *begin = to;
    size_t at = value->at + 1;

    while (at + 1 < value->end) {
        if (data[at] == '\\')
            to = put_escape(to, data, &at);
        else
            *to++ = (char)data[at++];
    }
    *to = '\0';
    return (size_t)(to - begin);
}

/* ---- what is wrong, in serde_json's words ---- */

static void
say_place(char *text, size_t cap, size_t used, const uint8_t *data, size_t end)
{
    unsigned line;
    unsigned column;

    if (used >= cap)
        used = cap - 1;
    kve_input_place(data, end, &line, &column);
    snprintf(text + used, cap - used, " at line %u column %u", line, column);
}

/* Digits of a double as Rust writes it: as few as tell it from others, plain,
 * with a point. */
static void
say_double(char *text, size_t cap, const uint8_t *raw, size_t len)
{
    char copy[64];
    char shortest[40];
    char digits[400];
    double x;
    int kept = 0;
    int power;
    size_t n = 0;

    snprintf(copy, sizeof(copy), "%.*s", (int)len, (const char *)raw);
    x = strtod(copy, NULL);
    do {
        snprintf(shortest, sizeof(shortest), "%.*e", kept, x);
    } while (strtod(shortest, NULL) != x && ++kept < 17);
    power = atoi(strchr(shortest, 'e') + 1);
    if (power < kept) {
        snprintf(text, cap, "%.*f", kept - power, x);
        return;
    }
    for (const char *c = shortest; *c != 'e'; c++)
        if (*c >= '0' && *c <= '9')
            digits[n++] = *c;
    while (n < (size_t)power + 1 && n < sizeof(digits))
        digits[n++] = '0';
    snprintf(text, cap, "%s%.*s.0", x < 0 ? "-" : "", (int)n, digits);
}

/* What stands there: integer `-1`, string "abc", ... */
static void
say_given(
    char *text, size_t cap, const uint8_t *data, const struct value *value)
{
    const char *raw = (const char *)data + value->at;
    size_t len = value->end - value->at;
    int shown = len > 128 ? 128 : (int)len;
    char number[560];

    switch (value->kind) {
    case KVE_KIND_NULL:
        snprintf(text, cap, "null");
        break;
    case KVE_KIND_BOOL:
        snprintf(text, cap, "boolean `%.*s`", shown, raw);
        break;
    case KVE_KIND_INTEGER:
        snprintf(text, cap, "integer `%.*s`", shown, raw);
        break;
    case KVE_KIND_FLOAT:
        say_double(number, sizeof(number), data + value->at, len);
        snprintf(text, cap, "floating point `%.160s`", number);
        break;
    case KVE_KIND_TEXT:
        /* Not in the middle of a character. */
        while (shown < (int)len && ((uint8_t)raw[shown] & 0xc0) == 0x80)
            shown--;
        snprintf(text, cap, "string %.*s%s", shown, raw,
            shown < (int)len ? "...\"" : "");
        break;
    case KVE_KIND_ARRAY:
        snprintf(text, cap, "sequence");
        break;
    default:
        snprintf(text, cap, "map");
        break;
    }
}

static const char *
kind_name(enum kve_body_kind kind)
{
    switch (kind) {
    case KVE_BODY_U32:
        return "u32";
    case KVE_BODY_U64:
        return "u64";
    case KVE_BODY_ID:
        return "a string or u64";
    default:
        return "a string";
    }
}

static enum kve_body_fault
fail(struct kve_body_error *err, enum kve_body_fault fault, size_t offset)
{
    err->fault = fault;
    err->offset = offset;
    return fault;
}

/* type: a value of another type; else one that is out of its range. */
static enum kve_body_fault
fail_value(struct kve_body_error *err, const struct kve_body_field *field,
    const uint8_t *data, const struct value *value, bool type)
{
    char given[320];
    int used;

    say_given(given, sizeof(given), data, value);
    used = snprintf(err->text, sizeof(err->text),
        "%s: invalid %s: %s, expected %s", field->name, type ? "type" : "value",
        given, kind_name(field->kind));
    say_place(err->text, sizeof(err->text), (size_t)used, data, value->seen);
    return fail(err, KVE_BODY_WRONG, value->at);
}

static enum kve_body_fault
fail_zero(struct kve_body_error *err, const struct kve_body_field *field,
    const uint8_t *data, const struct value *value)
{
    int used = snprintf(err->text, sizeof(err->text),
        "%s: invalid value: a string with U+0000 in it, expected one without",
        field->name);

    say_place(err->text, sizeof(err->text), (size_t)used, data, value->seen);
    return fail(err, KVE_BODY_WRONG, value->at);
}

static enum kve_body_fault
fail_name(struct kve_body_error *err, const char *what, const char *name,
    const uint8_t *data, size_t offset, size_t end)
{
    int used =
        snprintf(err->text, sizeof(err->text), "%s field `%s`", what, name);

    say_place(err->text, sizeof(err->text), (size_t)used, data, end);
    return fail(err, KVE_BODY_WRONG, offset);
}

static enum kve_body_fault
fail_unknown(struct kve_body_error *err, const struct kve_body_field *fields,
    size_t n, const uint8_t *data, const struct value *key)
{
    size_t len = key->end - key->at - 2;
    size_t used;

    used = (size_t)snprintf(err->text, sizeof(err->text),
        "unknown field `%.*s`, expected one of", len > 64 ? 64 : (int)len,
        (const char *)data + key->at + 1);
    for (size_t i = 0; i < n && used < sizeof(err->text) - 64; i++)
        used += (size_t)snprintf(err->text + used, sizeof(err->text) - used,
            "%s `%s`", i == 0 ? "" : ",", fields[i].name);
    say_place(err->text, sizeof(err->text), used, data, key->end);
    return fail(err, KVE_BODY_WRONG, key->at);
}

/* ---- values ---- */

/* A number of at most 20 digits and at most max. */
static bool
read_number(
    const uint8_t *data, const struct value *value, uint64_t max, uint64_t *ret)
{
    uint64_t x = 0;

    for (size_t at = value->at; at < value->end; at++) {
        uint64_t digit = (uint64_t)data[at] - '0';

        if (digit > 9 || x > (UINT64_MAX - digit) / 10)
            return false;
        x = x * 10 + digit;
    }
    *ret = x;
    return x <= max;
}

static bool
kind_fits(enum kve_body_kind wanted, enum kve_input_kind given)
{
    if (wanted == KVE_BODY_TEXT)
        return given == KVE_KIND_TEXT;
    if (wanted == KVE_BODY_ID && given == KVE_KIND_TEXT)
        return true;
    return given == KVE_KIND_INTEGER;
}

/* room: where texts go on; moved behind what is put there. */
static enum kve_body_fault
take(struct kve_body_value *to, const struct kve_body_field *field,
    const uint8_t *data, const struct value *value, char **room,
    struct kve_body_error *err)
{
    if (value->kind == KVE_KIND_NULL && !field->required)
        return KVE_BODY_FINE;
    to->offset = value->at;
    to->set = true;
    if (field->kind == KVE_BODY_ANY)
        return KVE_BODY_FINE;
    if (!kind_fits(field->kind, value->kind))
        return fail_value(err, field, data, value, true);
    if (value->kind == KVE_KIND_INTEGER &&
        !read_number(data, value,
            field->kind == KVE_BODY_U32 ? UINT32_MAX : UINT64_MAX, &to->number))
        return fail_value(err, field, data, value, false);
    if (field->kind == KVE_BODY_U32 || field->kind == KVE_BODY_U64)
        return KVE_BODY_FINE;
    to->text = *room;
    if (value->kind == KVE_KIND_TEXT)
        to->len = decode_text(*room, data, value);
    else
        to->len = (size_t)snprintf(*room, NUMBER_TEXT, "%" PRIu64, to->number);
    if (memchr(to->text, 0, to->len) != NULL)
        return fail_zero(err, field, data, value);
    *room += to->len + 1;
    return KVE_BODY_FINE;
}

static enum kve_body_fault
check_syntax(struct kve_input *input, const uint8_t *data, size_t len,
    struct kve_body_error *err)
{
    const struct kve_input_limits limits = { 0, 0, 0, NO_FIELDS };
    struct kve_input_error wrong;
    enum kve_input_fault fault =
        kve_input_json(input, data, len, &limits, &wrong);

    if (fault == KVE_INPUT_FINE)
        return KVE_BODY_FINE;
    if (fault == KVE_INPUT_NOMEM)
        return fail(err, KVE_BODY_NOMEM, 0);
    kve_input_serde(&wrong, data, len, err->text, sizeof(err->text));
    return fail(err,
        fault == KVE_INPUT_BROKEN ? KVE_BODY_BROKEN : KVE_BODY_WRONG,
        wrong.offset);
}

static enum kve_body_fault
read_fields(struct kve_body *body, const uint8_t *data,
    const struct kve_body_field *fields, size_t n, bool strict, char *room,
    struct kve_body_error *err)
{
    uint32_t seen = 0;
    size_t at = skip_space(data, 0) + 1;
    struct value key;
    struct value value;

    while (next_field(data, &at, &key, &value)) {
        enum kve_body_fault fault;
        size_t i = 0;

        while (i < n && !key_is(data, &key, fields[i].name))
            i++;
        if (i == n && strict)
            return fail_unknown(err, fields, n, data, &key);
        if (i == n)
            continue;
        if ((seen & (UINT32_C(1) << i)) != 0)
            return fail_name(
                err, "duplicate", fields[i].name, data, key.at, key.end);
        seen |= UINT32_C(1) << i;
        fault = take(&body->value[i], &fields[i], data, &value, &room, err);
        if (fault != KVE_BODY_FINE)
            return fault;
    }
    for (size_t i = 0; i < n; i++)
        if (fields[i].required && !body->value[i].set)
            return fail_name(err, "missing", fields[i].name, data, 0, at);
    return KVE_BODY_FINE;
}

enum kve_body_fault
kve_body_read(struct kve_body *body, struct kve_input *input,
    const uint8_t *data, size_t len, const struct kve_body_field *fields,
    size_t n_fields, bool strict, struct kve_body_error *err)
{
    enum kve_body_fault fault;

    memset(body, 0, sizeof(*body));
    memset(err, 0, sizeof(*err));
    fault = check_syntax(input, data, len, err);
    if (fault != KVE_BODY_FINE)
        return fault;
    /* Texts do not grow by decoding; a number that is read as a text grows by
     * its zero, and its comma or brace is not needed. */
    body->memory = kve_mem_alloc(len + 1);
    if (body->memory == NULL)
        return fail(err, KVE_BODY_NOMEM, 0);
    fault =
        read_fields(body, data, fields, n_fields, strict, body->memory, err);
    if (fault != KVE_BODY_FINE)
        kve_body_release(body);
    return fault;
}

void
kve_body_release(struct kve_body *body)
{
    if (body == NULL)
        return;
    kve_mem_free(body->memory);
    memset(body, 0, sizeof(*body));
}

bool
kve_body_has(
    struct kve_input *input, const uint8_t *data, size_t len, const char *name)
{
    struct kve_body_error err;
    size_t at;
    struct value key;
    struct value value;
    char quoted[64];

    if (check_syntax(input, data, len, &err) != KVE_BODY_FINE) {
        snprintf(quoted, sizeof(quoted), "\"%s\"", name);
        return memmem(data, len, quoted, strlen(quoted)) != NULL;
    }
    at = skip_space(data, 0) + 1;
    while (next_field(data, &at, &key, &value))
        if (key_is(data, &key, name))
            return true;
    return false;
}
