/*
 * lines.c - lines of a file or of standard input, bounded and interruptible.
 */
#include "lines.h"

#include "interrupt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK ((size_t)64 << 10)

void
lines_init(struct lines *lines, int fd)
{
    memset(lines, 0, sizeof(*lines));
    lines->fd = fd;
}

void
lines_release(struct lines *lines)
{
    free(lines->data);
    lines_init(lines, -1);
}

bool
lines_rewind(struct lines *lines)
{
    if (lseek(lines->fd, 0, SEEK_SET) != 0)
        return false;
    lines->number = 0;
    lines->len = 0;
    lines->start = 0;
    lines->at_end = false;
    return true;
}

/* Make room for one more chunk: move what is left to the front, or grow. */
static bool
make_room(struct lines *lines)
{
    if (lines->start > 0) {
        memmove(
            lines->data, lines->data + lines->start, lines->len - lines->start);
        lines->len -= lines->start;
        lines->start = 0;
    }
    if (lines->cap - lines->len < CHUNK) {
        size_t cap = 2 * lines->cap + CHUNK;
        char *data = realloc(lines->data, cap);

        if (data == NULL) {
            errno = ENOMEM;
            return false;
        }
        lines->data = data;
        lines->cap = cap;
    }
    return true;
}

/* Read one chunk more; LINES_LINE: there may be one now. */
static enum lines_result
fill(struct lines *lines)
{
    ssize_t n;

    if (!make_room(lines))
        return LINES_ERROR;
    while (!interrupt_wait(lines->fd, -1))
        if (interrupt_signal() != 0)
            return LINES_INTERRUPTED;
    n = read(lines->fd, lines->data + lines->len, CHUNK);
    if (n < 0)
        return errno == EINTR || errno == EAGAIN ? LINES_LINE : LINES_ERROR;
    if (n == 0)
        lines->at_end = true;
    lines->len += (size_t)n;
    lines->bytes += (size_t)n;
    return LINES_LINE;
}

enum lines_result
lines_next(struct lines *lines, const char **ret_line, size_t *ret_len)
{
    size_t looked_at = 0;
    bool too_long = false;

    if (interrupt_signal() != 0)
        return LINES_INTERRUPTED;
    for (;;) {
        size_t len = lines->len - lines->start;
        char *line = lines->data + lines->start;
        char *end = len > looked_at
            ? memchr(line + looked_at, '\n', len - looked_at)
            : NULL;
        enum lines_result result;

        if (end != NULL || (lines->at_end && (len > 0 || too_long))) {
            size_t n = end != NULL ? (size_t)(end - line) : len;

            lines->start += end != NULL ? n + 1 : n;
            lines->number++;
            if (too_long || n > LINES_LONGEST)
                return LINES_TOO_LONG;
            *ret_line = n > 0 ? line : "";
            *ret_len = n;
            return LINES_LINE;
        }
        if (lines->at_end)
            return LINES_END;
        looked_at = len;
        if (len > LINES_LONGEST) {
            lines->len = lines->start = 0;
            looked_at = 0;
            too_long = true;
        }
        result = fill(lines);
        if (result != LINES_LINE)
            return result;
    }
}
