/*
 * out.h - buffered output of the command.
 *
 * 64 KiB between the program and a descriptor. Errors stick: after one, writes
 * do nothing, and the caller looks at error when it is convenient. A reader
 * that went away (EPIPE) is such an error; so is an interrupt that came while
 * a reader took nothing (EINTR), so that Ctrl-C ends the program then, too.
 */
#ifndef KVEVENTS_TOOL_OUT_H
#define KVEVENTS_TOOL_OUT_H

#include <stddef.h>
#include <stdint.h>

struct out {
    int fd;
    int error; /* errno of the first failure, or 0 */
    size_t len;
    char data[64 << 10];
};

/* Append bytes, a text, one character, a number, a formatted text (at most
 * 1,023 characters), bytes as lower-case hex. */
void out_bytes(struct out *out, const void *bytes, size_t len);
void out_text(struct out *out, const char *text);
void out_char(struct out *out, char c);
void out_u64(struct out *out, uint64_t number);
void out_i64(struct out *out, int64_t number);
void out_format(struct out *out, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void out_hex(struct out *out, const void *bytes, size_t len);

/* A text of a stranger: without what moves the cursor. */
void out_plain(struct out *out, const char *text, size_t len);

/* A number as the shortest decimal that reads back as the same; always with a
 * point or an exponent. Not for infinities and NaN. */
void out_double(struct out *out, double number);

/* Hand everything to the descriptor. */
void out_flush(struct out *out);

#endif
