/*
 * out.c - buffered output of the command.
 */
#include "out.h"

#include "interrupt.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Never more at a time than a pipe that has room takes at once: a write that
 * waits in the kernel for its rest would not notice a signal. */
void
out_flush(struct out *out)
{
    size_t done = 0;

    while (done < out->len && out->error == 0) {
        size_t left = out->len - done;
        ssize_t n;

        if (!interrupt_wait_writable(out->fd)) {
            out->error = EINTR;
            break;
        }
        n = write(out->fd, out->data + done, left < PIPE_BUF ? left : PIPE_BUF);
        if (n >= 0)
            done += (size_t)n;
        else if (errno != EINTR && errno != EAGAIN)
            out->error = errno;
    }
    out->len = 0;
}

void
out_bytes(struct out *out, const void *bytes, size_t len)
{
    const char *from = bytes;

    while (len > 0) {
        size_t room = sizeof(out->data) - out->len;
        size_t n = len < room ? len : room;

        memcpy(out->data + out->len, from, n);
        out->len += n;
        from += n;
        len -= n;
        if (out->len == sizeof(out->data))
            out_flush(out);
    }
}

void
out_text(struct out *out, const char *text)
{
    out_bytes(out, text, strlen(text));
}

void
out_char(struct out *out, char c)
{
    out_bytes(out, &c, 1);
}

void
out_u64(struct out *out, uint64_t number)
{
    char digits[20];
    size_t at = sizeof(digits);

    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    out_bytes(out, digits + at, sizeof(digits) - at);
}

void
out_i64(struct out *out, int64_t number)
{
    if (number < 0) {
        out_char(out, '-');
        out_u64(out, 0 - (uint64_t)number);
    } else {
        out_u64(out, (uint64_t)number);
    }
}

void
out_format(struct out *out, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    out_text(out, text);
}

void
out_hex(struct out *out, const void *bytes, size_t len)
{
    static const char digits[] = "0123456789abcdef";
    const unsigned char *from = bytes;

    for (size_t i = 0; i < len; i++) {
        char two[2] = { digits[from[i] >> 4], digits[from[i] & 15] };

        out_bytes(out, two, 2);
    }
}

void
out_plain(struct out *out, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        out_char(out,
            (unsigned char)text[i] < ' ' || text[i] == 0x7f ? '?' : text[i]);
}

void
out_double(struct out *out, double number)
{
    char text[40];

    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(text, sizeof(text), "%.*g", digits, number);
        if (strtod(text, NULL) == number)
            break;
    }
    out_text(out, text);
    if (strpbrk(text, ".e") == NULL)
        out_text(out, ".0");
}
