/*
 * lines.h - lines of a file or of standard input, bounded and interruptible.
 *
 * A line longer than LINES_LONGEST is passed over whole and reported as too
 * long; memory never follows the input.
 */
#ifndef KVEVENTS_TOOL_LINES_H
#define KVEVENTS_TOOL_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LINES_LONGEST ((size_t)64 << 20)

enum lines_result {
    LINES_LINE,
    LINES_TOO_LONG,
    LINES_END,
    LINES_INTERRUPTED,
    LINES_ERROR /* errno says why */
};

struct lines {
    int fd;
    uint64_t number; /* of the line read last, from 1 */
    uint64_t bytes;  /* read in all */
    char *data;
    size_t cap;
    size_t len;   /* bytes in data */
    size_t start; /* where the next line begins */
    bool at_end;
};

/* Read from fd, which stays the caller's. */
void lines_init(struct lines *lines, int fd);
void lines_release(struct lines *lines);

/* Return to the first line; false where the input has no beginning. */
bool lines_rewind(struct lines *lines);

/* The next line without its newline; borrowed until the next call. */
enum lines_result lines_next(
    struct lines *lines, const char **ret_line, size_t *ret_len);

#endif
