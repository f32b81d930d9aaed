/*
 * data.c - see data.h.
 */
#include "data.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kve_str
str(const char *text)
{
    return (struct kve_str){ text, text == NULL ? 0 : strlen(text) };
}

size_t
unhex(const char *hex_text, uint8_t *room)
{
    size_t n = 0;
    unsigned byte;

    for (; sscanf(hex_text + 2 * n, "%2x", &byte) == 1; n++)
        room[n] = (uint8_t)byte;
    assert_int_equal(strlen(hex_text), 2 * n);
    return n;
}

const char *
hex(const void *bytes, size_t len)
{
    static char rooms[4][8192];
    static unsigned turn;
    char *room = rooms[turn++ % 4];

    assert_true(2 * len < sizeof(rooms[0]));
    room[0] = '\0';
    for (size_t i = 0; i < len; i++)
        (void)snprintf(room + 2 * i, 3, "%02x", ((const uint8_t *)bytes)[i]);
    return room;
}

char *
data_path(const char *format, ...)
{
    const char *root = getenv("KVEVENTS_SOURCE_DIR");
    char *path = malloc(1024);
    va_list args;
    int n;

    assert_non_null(path);
    n = snprintf(path, 1024, "%s/tests/", root != NULL ? root : ".");
    va_start(args, format);
    (void)vsnprintf(path + n, 1024 - (size_t)n, format, args);
    va_end(args);
    return path;
}

char *
data_read(const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = NULL;
    size_t cap = 0;
    ssize_t len;

    if (f == NULL)
        fail_msg("cannot open %s", path);
    len = getdelim(&text, &cap, '\0', f);
    if (len <= 0)
        fail_msg("cannot read %s", path);
    (void)fclose(f);
    return text;
}

json_t *
data_json(const char *text, size_t len)
{
    char *copy = malloc(2 * len + 1), *w = copy;
    bool quoted = false;
    json_error_t error;
    json_t *root;

    assert_non_null(copy);
    for (size_t i = 0; i < len;) {
        size_t digits = 0;

        while (!quoted && i + digits < len &&
            isdigit((unsigned char)text[i + digits]))
            digits++;
        if (digits > 0) {
            bool large = digits >= 19 && (i == 0 || text[i - 1] != '.');

            if (large)
                *w++ = '"';
            memcpy(w, text + i, digits);
            w += digits;
            if (large)
                *w++ = '"';
            i += digits;
            continue;
        }
        if (text[i] == '"')
            quoted = !quoted;
        if (quoted && text[i] == '\\')
            *w++ = text[i++];
        *w++ = text[i++];
    }
    root = json_loadb(copy, (size_t)(w - copy), 0, &error);
    if (root == NULL)
        fail_msg("JSON: %s at column %d", error.text, error.column);
    free(copy);
    return root;
}

void
data_lines(const char *path, void (*each)(char *line, void *ctx), void *ctx)
{
    char *text = data_read(path), *save = NULL;

    for (char *line = strtok_r(text, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save))
        each(line, ctx);
    free(text);
}

size_t
data_tokens(const json_t *list, uint32_t *tokens, size_t n)
{
    const json_t *token;
    size_t i;

    json_array_foreach(list, i, token) tokens[n++] =
        (uint32_t)json_integer_value(token);
    return n;
}
