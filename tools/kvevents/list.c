/*
 * list.c - lists of tokens, hashes and images that people give.
 */
#include "list.h"

#include "command.h"
#include "input.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What may stand between two items. */
static bool
is_between(char c)
{
    return c != '\0' && strchr(" \t\r\n,[]\"'", c) != NULL;
}

/* The next item of a text; false at its end. */
static bool
next_item(const char **pos, const char *end, const char **ret, size_t *ret_len)
{
    const char *p = *pos;

    while (p < end && is_between(*p))
        p++;
    *ret = p;
    while (p < end && !is_between(*p))
        p++;
    *pos = p;
    *ret_len = (size_t)(p - *ret);
    return *ret_len > 0;
}

bool
list_grow(void *items, size_t *cap, size_t n, size_t size)
{
    size_t more = *cap > 0 ? 2 * *cap : 64;
    void *array;

    if (n < *cap)
        return true;
    if (more > LIST_MOST)
        return false;
    memcpy(&array, items, sizeof(array));
    array = realloc(array, more * size);
    if (array == NULL)
        return false;
    memcpy(items, &array, sizeof(array));
    *cap = more;
    return true;
}

static bool
no_room(const struct command *command, const char *name)
{
    option_complain(
        command, "%s: out of memory, or more than 67108864 items", name);
    return false;
}

int
hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* A whole item as a number in base 10 or, behind 0x, 16; with a sign its
 * pattern. */
static bool
read_number(const char *text, size_t len, uint64_t most, uint64_t *ret)
{
    bool minus = len > 1 && text[0] == '-';
    unsigned base = 10;
    uint64_t number = 0;

    if (minus) {
        text++;
        len--;
    } else if (len > 2 && text[0] == '0' && (text[1] | 0x20) == 'x') {
        base = 16;
        text += 2;
        len -= 2;
    }
    for (size_t i = 0; i < len; i++) {
        int digit = hex_digit(text[i]);

        if (digit < 0 || (unsigned)digit >= base ||
            number > (most - (unsigned)digit) / base)
            return false;
        number = number * base + (unsigned)digit;
    }
    if (minus && (most < UINT64_MAX || number > (uint64_t)INT64_MAX + 1))
        return false;
    *ret = minus ? 0 - number : number;
    return true;
}

bool
token_list_add(struct token_list *list, const struct command *command,
    const char *name, const char *text, size_t len)
{
    const char *pos = text;
    const char *item;
    size_t item_len;
    uint64_t number;

    while (next_item(&pos, text + len, &item, &item_len)) {
        if (!read_number(item, item_len, UINT32_MAX, &number)) {
            option_complain(command,
                "%s: item %zu is no token id; give whole numbers from 0 to "
                "4294967295, like 1,2,3 or [1, 2, 3]",
                name, list->n + 1);
            return false;
        }
        if (!list_grow(&list->items, &list->cap, list->n, sizeof(uint32_t)))
            return no_room(command, name);
        list->items[list->n++] = (uint32_t)number;
    }
    return true;
}

bool
number_list_add(struct number_list *list, const struct command *command,
    const char *name, const char *text, size_t len)
{
    const char *pos = text;
    const char *item;
    size_t item_len;
    uint64_t number;

    while (next_item(&pos, text + len, &item, &item_len)) {
        if (!read_number(item, item_len, UINT64_MAX, &number)) {
            option_complain(command,
                "%s: '%.*s' is not accepted; give numbers of 64 bits, decimal "
                "or 0x and hex",
                name, item_len < 80 ? (int)item_len : 80, item);
            return false;
        }
        if (!list_grow(&list->items, &list->cap, list->n, sizeof(uint64_t)))
            return no_room(command, name);
        list->items[list->n++] = number;
    }
    return true;
}

/* Bytes in hex, kept by the list; false: they are none, or no memory. */
static bool
read_bytes(
    struct hash_list *list, const char *text, size_t len, struct kve_hash *ret)
{
    uint8_t *bytes;

    if (len == 0 || len % 2 != 0 ||
        !list_grow(
            &list->bytes, &list->cap_bytes, list->n_bytes, sizeof(bytes)))
        return false;
    bytes = malloc(len / 2);
    if (bytes == NULL)
        return false;
    list->bytes[list->n_bytes++] = bytes;
    for (size_t i = 0; i < len; i++) {
        int digit = hex_digit(text[i]);

        if (digit < 0)
            return false;
        bytes[i / 2] = (uint8_t)(bytes[i / 2] << 4 | digit);
    }
    ret->bytes = bytes;
    ret->len = len / 2;
    return true;
}

bool
hash_list_add(struct hash_list *list, const struct command *command,
    const char *name, const char *text, size_t len)
{
    const char *pos = text;
    const char *item;
    size_t item_len;

    while (next_item(&pos, text + len, &item, &item_len)) {
        struct kve_hash hash = { .bytes = NULL, { .integer = 0 } };
        bool hex = item_len > 4 && memcmp(item, "hex:", 4) == 0;

        if (hex ? !read_bytes(list, item + 4, item_len - 4, &hash)
                : !read_number(item, item_len, UINT64_MAX, &hash.integer) &&
                    !read_bytes(list, item, item_len, &hash)) {
            option_complain(command,
                "%s: '%.*s' is not accepted; a hash is a decimal number of 64 "
                "bits, 0x and up to 16 hex digits, or bytes in hex, with "
                "hex: in front of short ones",
                name, item_len < 80 ? (int)item_len : 80, item);
            return false;
        }
        if (!list_grow(&list->items, &list->cap, list->n, sizeof(hash)))
            return no_room(command, name);
        list->items[list->n++] = hash;
    }
    return true;
}

bool
token_list_read(
    struct token_list *list, const struct command *command, const char *path)
{
    struct input input;
    const char *line;
    size_t len;
    bool right = false;

    if (!input_open(&input, command, path))
        goto out;
    for (;;) {
        switch (lines_next(&input.lines, &line, &len)) {
        case LINES_LINE:
            if (!token_list_add(list, command, input.name, line, len))
                goto out;
            break;
        case LINES_TOO_LONG:
            option_complain(command,
                "%s: a line is longer than 64 MiB, the most that is read; "
                "split it",
                input.name);
            goto out;
        case LINES_END:
            right = true;
            goto out;
        case LINES_INTERRUPTED:
            goto out;
        case LINES_ERROR:
            input_failed(&input);
            goto out;
        }
    }

out:
    input_release(&input);
    return right;
}

void
token_list_release(struct token_list *list)
{
    free(list->items);
    memset(list, 0, sizeof(*list));
}

void
number_list_release(struct number_list *list)
{
    free(list->items);
    memset(list, 0, sizeof(*list));
}

void
hash_list_release(struct hash_list *list)
{
    for (size_t i = 0; i < list->n_bytes; i++)
        free(list->bytes[i]);
    free(list->bytes);
    free(list->items);
    memset(list, 0, sizeof(*list));
}

bool
image_read(
    const struct command *command, const char *text, struct image *ret_image)
{
    const char *at = strrchr(text, '@');
    const char *plus = at != NULL ? strchr(at, '+') : NULL;
    uint64_t offset;
    uint64_t length;

    if (plus == NULL || at == text ||
        !read_number(at + 1, (size_t)(plus - at - 1), UINT32_MAX, &offset) ||
        plus == at + 1 || plus[1] == '\0' ||
        !read_number(plus + 1, strlen(plus + 1), UINT32_MAX, &length) ||
        length == 0 || offset + length > UINT32_MAX) {
        option_complain(command,
            "--image: '%s' is not accepted; give ID@OFFSET+LENGTH, as "
            "a1b2@20+24 for 24 tokens from token 20 on",
            text);
        return false;
    }
    ret_image->id.data = text;
    ret_image->id.len = (size_t)(at - text);
    ret_image->offset = (uint32_t)offset;
    ret_image->n_tokens = (uint32_t)length;
    return true;
}
