/*
 * input_serde.c - faults in the words of serde_json, in which a service that
 * others are used to answers.
 */
#include "http/input_impl.h"

#include <stdio.h>
#include <string.h>

/* A value that is printed, at most. */
#define MOST_VALUE 128

/* "token_ids[0]: ", "" for the object itself. */
static void
put_path(const struct kve_input_error *err, char *text, size_t cap)
{
    int n = 0;

    text[0] = '\0';
    if (err->field < 0)
        return;
    n = snprintf(text, cap, "%s", kve_input_field_name(err->field));
    if (err->prompt != KVE_INPUT_NO_INDEX)
        n += snprintf(text + n, cap - (size_t)n, "[%zu]", err->prompt);
    if (err->index != KVE_INPUT_NO_INDEX)
        n += snprintf(text + n, cap - (size_t)n, "[%zu]", err->index);
    (void)snprintf(text + n, cap - (size_t)n, ": ");
}

static const char *
expected(const struct kve_input_error *err)
{
    bool element = err->index != KVE_INPUT_NO_INDEX;

    if (err->field < 0)
        return "a question";
    switch (kve_input_type_of(err->field)) {
    case KVE_TYPE_TOKENS:
    case KVE_TYPE_PROMPTS:
        return element ? "u32" : "a sequence";
    case KVE_TYPE_HASHES:
        return element ? "i64" : "a sequence";
    case KVE_TYPE_TEXTS:
        return element ? "a string" : "a sequence";
    case KVE_TYPE_TEXT:
        return "a string";
    case KVE_TYPE_BOOL:
        return "a boolean";
    case KVE_TYPE_NUMBER:
    case KVE_TYPE_ID:
        return "u64";
    }
    return "?";
}

/* Whether an integer is what was expected, but for its size. */
static bool
takes_integers(const struct kve_input_error *err)
{
    const char *what = expected(err);

    return strcmp(what, "u32") == 0 || strcmp(what, "i64") == 0 ||
        strcmp(what, "u64") == 0;
}

/* serde_json makes a float of an integer that fits neither u64 nor i64. */
static bool
fits(const char *value, int len)
{
    static const char most[] = "18446744073709551615";
    static const char least[] = "-9223372036854775808";
    const char *edge = *value == '-' ? least : most;
    int n = (int)strlen(edge);

    if (len == 2 && memcmp(value, "-0", 2) == 0)
        return false;
    return len < n || (len == n && memcmp(value, edge, (size_t)n) <= 0);
}

/* What stands there, as Rust names it: "integer `-1`". */
static void
put_value(const struct kve_input_error *err, const char *value, size_t len,
    char *text, size_t cap)
{
    int n = len < MOST_VALUE ? (int)len : MOST_VALUE;
    bool integral;

    switch (err->kind) {
    case KVE_KIND_NULL:
        (void)snprintf(text, cap, "null");
        break;
    case KVE_KIND_BOOL:
        (void)snprintf(text, cap, "boolean `%.*s`", n, value);
        break;
    case KVE_KIND_INTEGER:
        integral = fits(value, n);
        (void)snprintf(text, cap, "%s `%.*s%s`",
            integral ? "integer" : "floating point", n, value,
            integral ? "" : ".0");
        break;
    case KVE_KIND_FLOAT:
        (void)snprintf(text, cap, "floating point `%.*s`", n, value);
        break;
    case KVE_KIND_TEXT: /* with its quotes and escapes */
        (void)snprintf(text, cap, "string %.*s", n, value);
        break;
    case KVE_KIND_ARRAY:
        (void)snprintf(text, cap, "sequence");
        break;
    default:
        (void)snprintf(text, cap, "map");
        break;
    }
}

void
kve_input_serde(const struct kve_input_error *err, const uint8_t *body,
    size_t len, char *text, size_t cap)
{
    const char *value = (const char *)body + err->offset;
    size_t value_len = err->end > err->offset ? err->end - err->offset : 0;
    char path[96], what[MOST_VALUE + 32];
    bool number = err->kind == KVE_KIND_INTEGER;

    if (err->offset + value_len > len)
        value_len = len - err->offset;
    if (err->fault != KVE_INPUT_WRONG || err->kind == KVE_KIND_NONE) {
        (void)snprintf(text, cap, "%s at line %u column %u", err->detail,
            err->line, err->column);
        return;
    }
    put_path(err, path, sizeof(path));
    put_value(err, value, value_len, what, sizeof(what));
    number = number && takes_integers(err) && strncmp(what, "int", 3) == 0;
    (void)snprintf(text, cap,
        "%sinvalid %s: %s, expected %s at line %u "
        "column %u",
        path, number ? "value" : "type", what, expected(err), err->line,
        err->column);
}

void
kve_input_serde_missing(const struct kve_input *input, const uint8_t *body,
    enum kve_input_field field, char *text, size_t cap)
{
    unsigned line, column;

    kve_input_place(body, input->end, &line, &column);
    (void)snprintf(text, cap, "missing field `%s` at line %u column %u",
        kve_input_field_name((int)field), line, column);
}
