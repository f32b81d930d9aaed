/*
 * input.h - a file of lines that a subcommand reads, and what it says of it.
 *
 * A bad line is one line on standard error with the place it stands at, 100 of
 * them at most; the others are counted. On a terminal there is a progress
 * line, which is taken away before anything else is said.
 */
#ifndef KVEVENTS_TOOL_INPUT_H
#define KVEVENTS_TOOL_INPUT_H

#include "jsonin.h"
#include "lines.h"

struct command;

struct input {
    const struct command *command;
    const char *name; /* for people */
    struct lines lines;
    uint64_t size; /* 0: not known */
    uint64_t bad;
    bool quiet; /* no progress line */
    bool progress_shown;
    double next_progress;
};

/* Open a file, or standard input for "-". Complains when it cannot; release
 * it all the same. */
bool input_open(
    struct input *input, const struct command *command, const char *name);
void input_release(struct input *input);

/* Say what is wrong with the line read last, and count it. */
void input_report(struct input *input, const struct jsonin_error *error);

/* The error of a line that is too long. */
extern const struct jsonin_error input_too_long;

/* Say that reading failed, by errno. */
void input_failed(struct input *input);

/* Show how far it is, four times a second at most; done is a count of what. */
void input_progress(struct input *input, uint64_t done, const char *what);

/* Take the progress line away: something else will be said. */
void input_clear_progress(struct input *input);

/* Text of a file on a terminal: without what moves the cursor. */
void input_write_plain(const char *text, size_t len);

#endif
