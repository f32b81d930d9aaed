/*
 * spell.c - see spell.h.
 */
#include "spell.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOM ((size_t)1 << 20)

static void
die(const char *what, const char *at)
{
    fprintf(stderr, "spell: %s at \"%.40s\"\n", what, at);
    abort();
}

static const char *
spell_text(const char *at, uint8_t *out, size_t *n)
{
    const char *end = strchr(at + 1, '\'');

    if (end == NULL)
        die("no end of text", at);
    size_t len = (size_t)(end - at) - 1;
    if (len <= 31) {
        out[(*n)++] = (uint8_t)(0xa0 | len);
    } else {
        out[(*n)++] = 0xd9;
        out[(*n)++] = (uint8_t)len;
    }
    memcpy(out + *n, at + 1, len);
    *n += len;
    return end + 1;
}

static const char *
spell_byte(const char *at, uint8_t *out, size_t *n)
{
    unsigned byte = 0;

    if (!isxdigit((unsigned char)at[0]) || !isxdigit((unsigned char)at[1]) ||
        sscanf(at, "%2x", &byte) != 1)
        die("no hex", at);
    out[(*n)++] = (uint8_t)byte;
    at += 2;
    if (*at == '*') {
        char *end;
        unsigned long times = strtoul(at + 1, &end, 10);
        for (; times > 1 && *n + 512 < ROOM; times--)
            out[(*n)++] = (uint8_t)byte;
        at = end;
    }
    return at;
}

uint8_t *
spell(const char *text, size_t *ret_len)
{
    uint8_t *out = malloc(ROOM);
    size_t n = 0;

    for (const char *at = text; *at != '\0';) {
        if (n + 512 > ROOM)
            die("too long", at);
        if (*at == ' ')
            at++;
        else if (*at == '\'')
            at = spell_text(at, out, &n);
        else
            at = spell_byte(at, out, &n);
    }
    uint8_t *exact = malloc(n > 0 ? n : 1);
    memcpy(exact, out, n);
    free(out);
    *ret_len = n;
    return exact;
}

uint8_t *
spell_batch(unsigned n_events, const char *text, size_t *ret_len)
{
    size_t size = strlen(text) + 64;
    char *all = malloc(size);

    snprintf(all, size, "93 cb4025000000000000 dc%04x %s 00", n_events, text);
    uint8_t *bytes = spell(all, ret_len);
    free(all);
    return bytes;
}
