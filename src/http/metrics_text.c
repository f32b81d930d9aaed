/*
 * metrics_text.c - see metrics_text.h.
 */
#include "http/metrics_text.h"

#include "base/utf8.h"
#include "wire/buffer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NUMBER 32 /* bytes a number takes at most */

static char *
room(struct kve_metrics_text *text, size_t n)
{
    struct kve_buffer *out = text->out;

    if (text->status != KVE_OK)
        return NULL;
    if (n > out->cap - out->len) {
        text->status = kve_buffer_reserve(out, n, NULL);
        if (text->status != KVE_OK)
            return NULL;
    }
    return (char *)out->data + out->len;
}

static void
put(struct kve_metrics_text *text, const char *data, size_t len)
{
    char *at = room(text, len);

    if (at == NULL)
        return;
    memcpy(at, data, len);
    text->out->len += len;
}

static void
put_text(struct kve_metrics_text *text, const char *data)
{
    put(text, data, strlen(data));
}

void
kve_metrics_family(struct kve_metrics_text *text, const char *prefix,
    const char *name, const char *type, const char *help)
{
    int n = snprintf(text->name, sizeof(text->name), "%s%s%s", prefix, name,
        strcmp(type, "counter") == 0 ? "_total" : "");

    text->name_len = (size_t)n;
    put_text(text, "# HELP ");
    put_text(text, text->name);
    put_text(text, " ");
    put_text(text, help);
    put_text(text, "\n# TYPE ");
    put_text(text, text->name);
    put_text(text, " ");
    put_text(text, type);
    put_text(text, "\n");
}

/* Digits from the back: these are most of what there is to write. */
static size_t
digits_of(uint64_t value, char *to)
{
    char digits[NUMBER];
    size_t at = sizeof(digits);

    do
        digits[--at] = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    memcpy(to, digits + at, sizeof(digits) - at);
    return sizeof(digits) - at;
}

/* The name and its labels; then value_len bytes of value and the line's end. */
static void
sample(struct kve_metrics_text *text, const char *labels, size_t labels_len,
    const char *more, const char *value, size_t value_len)
{
    size_t more_len = more == NULL ? 0 : strlen(more);
    char *at =
        room(text, text->name_len + labels_len + more_len + value_len + 8);
    char *begin = at;

    if (at == NULL)
        return;
    memcpy(at, text->name, text->name_len);
    at += text->name_len;
    if (labels_len + more_len > 0) {
        *at++ = '{';
        memcpy(at, labels, labels_len);
        at += labels_len;
        if (labels_len > 0 && more_len > 0)
            *at++ = ',';
        if (more_len > 0)
            memcpy(at, more, more_len);
        at += more_len;
        *at++ = '}';
    }
    *at++ = ' ';
    memcpy(at, value, value_len);
    at += value_len;
    *at++ = '\n';
    text->out->len += (size_t)(at - begin);
}

void
kve_metrics_u64(struct kve_metrics_text *text, const char *labels,
    size_t labels_len, const char *more, uint64_t value)
{
    char number[NUMBER];

    sample(text, labels, labels_len, more, number, digits_of(value, number));
}

/* A number as Prometheus reads it, whatever the locale's decimal point is. */
static size_t
double_of(double value, char *to)
{
    int n = snprintf(to, NUMBER, "%.9g", value);

    if (isfinite(value)) {
        for (int i = 0; i < n; i++)
            if ((to[i] < '0' || to[i] > '9') && to[i] != '-' && to[i] != '+' &&
                to[i] != 'e')
                to[i] = '.';
    }
    return (size_t)n;
}

void
kve_metrics_double(struct kve_metrics_text *text, const char *labels,
    size_t labels_len, const char *more, double value)
{
    char number[NUMBER];

    sample(text, labels, labels_len, more, number, double_of(value, number));
}

void
kve_metrics_part(struct kve_metrics_text *text, const char *suffix,
    const char *labels, double value)
{
    size_t had = text->name_len;
    char number[NUMBER];

    (void)snprintf(text->name + had, sizeof(text->name) - had, "%s", suffix);
    text->name_len += strlen(suffix);
    sample(
        text, labels, strlen(labels), NULL, number, double_of(value, number));
    text->name_len = had;
    text->name[had] = '\0';
}

void
kve_metrics_label(struct kve_metrics_text *text, bool first, const char *name,
    const char *value)
{
    size_t len = strlen(value);

    if (!first)
        put_text(text, ",");
    put_text(text, name);
    put_text(text, "=\"");
    while (len > 0) {
        size_t n = kve_utf8_valid(value, len);

        for (size_t i = 0; i < n; i++) {
            if (value[i] == '\n')
                put_text(text, "\\n");
            else if (value[i] == '"' || value[i] == '\\')
                put(text, (char[]){ '\\', value[i] }, 2);
            else
                put(text, value + i, 1);
        }
        value += n;
        len -= n;
        if (len > 0) {
            put_text(text, "\xef\xbf\xbd");
            value++;
            len--;
        }
    }
    put_text(text, "\"");
}
