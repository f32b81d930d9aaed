/*
 * client_table.c - what the tables of query and sources have in common.
 */
#include "client_table.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

uint64_t
client_number(const json_t *object, const char *key)
{
    json_int_t number = json_integer_value(json_object_get(object, key));

    return number > 0 ? (uint64_t)number : 0;
}

const char *
client_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text != NULL ? text : "";
}

static bool
begins_character(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

/* Bytes of the first characters of a text, and how many there are. */
static size_t
cut(const char *text, int width, int *ret_columns)
{
    size_t len = 0;
    int columns = 0;

    while (text[len] != '\0') {
        if (begins_character(text[len]) && columns++ == width)
            break;
        len++;
    }
    *ret_columns = columns < width ? columns : width;
    return len;
}

void
client_cell(struct out *out, const char *text, int width)
{
    int columns;
    size_t len = cut(text, width, &columns);

    out_plain(out, text, len);
    for (; columns < width; columns++)
        out_char(out, ' ');
}

int
client_name_width(const json_t *rows, int others)
{
    struct winsize size = { .ws_col = 0 };
    int most = CLIENT_LONGEST_NAME;
    int width = (int)sizeof("worker") - 1;
    size_t i;
    json_t *row;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 &&
        size.ws_col - others < most)
        most = size.ws_col - others;
    json_array_foreach(rows, i, row)
    {
        int columns;

        (void)cut(client_text(row, "worker"), CLIENT_LONGEST_NAME, &columns);
        if (columns > width)
            width = columns;
    }
    if (width > most)
        width = most;
    return width < 6 ? 6 : width;
}

const char *
client_state_colour(const struct palette *palette, const char *state)
{
    return strcmp(state, "live") == 0    ? palette->good
        : strcmp(state, "degraded") == 0 ? palette->bad
                                         : palette->odd;
}
