/*
 * input_lex.h - strict JSON (RFC 8259), a token at a time; for input*.c alone.
 *
 * body[len] is zero, which no rule of JSON takes: so the byte at p can always
 * be looked at, and the end of the body is found where some other byte was
 * wanted.
 */
#ifndef KVE_HTTP_INPUT_LEX_H
#define KVE_HTTP_INPUT_LEX_H

#include "http/input_impl.h"

#define KVE_JSON_END_OF_VALUE "EOF while parsing a value"
#define KVE_JSON_END_OF_OBJECT "EOF while parsing an object"
#define KVE_JSON_END_OF_LIST "EOF while parsing a list"
#define KVE_JSON_END_OF_STRING "EOF while parsing a string"

/* What is at p is not what was wanted; it is in what was read. NULL. */
KVE_COLD const uint8_t *kve_json_unexpected(struct kve_input_job *job,
    const uint8_t *p, const char *wanted, const char *at_end);

/* The string at p, a quote. ret NULL: pass over it. */
const uint8_t *kve_json_string(
    struct kve_input_job *job, const uint8_t *p, struct kve_str *ret);

/* true, false or null at p. */
const uint8_t *kve_json_word(
    struct kve_input_job *job, const uint8_t *p, const char *text);

/* A value that is neither array nor object. */
const uint8_t *kve_json_plain(
    struct kve_input_job *job, const uint8_t *p, enum kve_input_kind *ret_kind);

/* A key and its colon, up to the value. *ret_end is behind the key. */
const uint8_t *kve_json_key(struct kve_input_job *job, const uint8_t *p,
    struct kve_str *ret, const uint8_t **ret_end);

/* Pass over the value at p, KVE_INPUT_MAX_DEPTH levels deep at most. */
const uint8_t *kve_json_skip(struct kve_input_job *job, const uint8_t *p);

KVE_INLINE const uint8_t *
kve_json_space(const uint8_t *p)
{
    while (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')
        p++;
    return p;
}

KVE_INLINE bool
kve_json_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

/* What follows a value in a container: the next item, or its end, in which case
 * *ret_end is true. close is the bracket. */
KVE_INLINE const uint8_t *
kve_json_after(
    struct kve_input_job *job, const uint8_t *p, uint8_t close, bool *ret_end)
{
    bool object = close == '}';

    p = kve_json_space(p);
    *ret_end = *p == close;
    if (*p == close)
        return p + 1;
    if (KVE_UNLIKELY(*p != ','))
        return kve_json_unexpected(job, p,
            object ? "expected `,` or `}`" : "expected `,` or `]`",
            object ? KVE_JSON_END_OF_OBJECT : KVE_JSON_END_OF_LIST);
    p = kve_json_space(p + 1);
    if (KVE_UNLIKELY(*p == close))
        return kve_json_unexpected(
            job, p, "trailing comma", KVE_JSON_END_OF_VALUE);
    return p;
}

#endif
