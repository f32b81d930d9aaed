/*
 * text.c - names of workers: as JSON, of bytes, of topics.
 */
#include "ingest/parts.h"

#include "base/alloc.h"
#include "base/utf8.h"

#include <string.h>

/* Bytes of the UTF-8 sequence at p, or 0: it is none. */
static size_t
utf8_len(const unsigned char *p, size_t n)
{
    return p[0] < 0x80 ? 1 : kve_utf8_long(p, n);
}

static char
hex_digit(unsigned value)
{
    return "0123456789abcdef"[value & 15];
}

/* One character of JSON at most: \u00NN. */
static char *
put_json(char *at, const unsigned char *from, size_t len)
{
    if (len == 0) {
        memcpy(at, "\xef\xbf\xbd", 3);
        return at + 3;
    }
    if (from[0] == '"' || from[0] == '\\') {
        *at++ = '\\';
    } else if (from[0] < 0x20) {
        memcpy(at, "\\u00", 4);
        at[4] = hex_digit(from[0] >> 4u);
        at[5] = hex_digit(from[0]);
        return at + 6;
    }
    memcpy(at, from, len);
    return at + len;
}

char *
kve_json_text(const char *text, uint32_t *ret_len)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t n = strlen(text);
    char *json = n < UINT32_MAX / 8 ? kve_mem_alloc(6 * n + 3) : NULL;
    char *at = json;

    if (json == NULL)
        return NULL;
    *at++ = '"';
    while (n > 0) {
        size_t len = utf8_len(p, n);
        size_t step = len > 0 ? len : 1;

        at = put_json(at, p, len);
        p += step;
        n -= step;
    }
    *at++ = '"';
    *at = '\0';
    *ret_len = (uint32_t)(at - json);
    return json;
}

char *
kve_text_of_bytes(struct kve_str bytes)
{
    const unsigned char *p = (const unsigned char *)bytes.data;
    size_t n = bytes.len;
    char *text = n < UINT32_MAX / 8 ? kve_mem_alloc(4 * n + 1) : NULL;
    char *at = text;

    if (text == NULL)
        return NULL;
    while (n > 0) {
        size_t len = utf8_len(p, n);

        if (len == 0 || p[0] < 0x20 || p[0] == 0x7f) {
            *at++ = '\\';
            *at++ = 'x';
            *at++ = hex_digit(p[0] >> 4u);
            *at++ = hex_digit(p[0]);
            len = 1;
        } else {
            memcpy(at, p, len);
            at += len;
        }
        p += len;
        n -= len;
    }
    *at = '\0';
    return text;
}

/* HOST of HOST:PORT and of [HOST]:PORT; an address with several colons and no
 * brackets has no port. */
static struct kve_str
host_of(struct kve_str id)
{
    const char *colon = memchr(id.data, ':', id.len);
    const char *bracket = memchr(id.data, ']', id.len);
    size_t len = colon != NULL ? (size_t)(colon - id.data) : id.len;

    if (id.data[0] == '[' && bracket != NULL) {
        id.len = (size_t)(bracket - id.data) - 1;
        id.data++;
    } else if (len > 0 && len < id.len &&
        memchr(colon + 1, ':', id.len - len - 1) == NULL) {
        id.len = len;
    }
    return id;
}

bool
kve_topic_split(struct kve_str topic, bool host, struct kve_str *ret_id,
    struct kve_str *ret_model)
{
    static const char prefix[] = "kv@";
    const size_t n = sizeof(prefix) - 1;
    const char *second;

    if (topic.len <= n || memcmp(topic.data, prefix, n) != 0)
        return false;
    second = memchr(topic.data + n, '@', topic.len - n);
    if (second == NULL || second == topic.data + n ||
        second + 1 == topic.data + topic.len)
        return false;
    ret_id->data = topic.data + n;
    ret_id->len = (size_t)(second - ret_id->data);
    ret_model->data = second + 1;
    ret_model->len = topic.len - (size_t)(second + 1 - topic.data);
    if (host)
        *ret_id = host_of(*ret_id);
    return true;
}
