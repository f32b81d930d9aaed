/*
 * logs.h - lines about what happens, for people and for machines.
 *
 * A line is an event, a text and fields. It is written in one piece, as logfmt
 *
 *     ts=2026-11-30T02:40:00.123Z level=warning event=lost msg="batches ..."
 *     worker=w0 first=7 last=9
 *
 * or as a JSON object with the same names. Of one event at most LOGS_BURST
 * lines are written within LOGS_WINDOW_S seconds; what was left out is counted,
 * and the count is written with the next one, or when the window is over. Lines
 * of LOG_ALWAYS are never left out.
 *
 * Any thread may write. No line ever holds token ids: nobody gives them here.
 */
#ifndef KVEVENTS_TOOL_LOGS_H
#define KVEVENTS_TOOL_LOGS_H

#include <kvevents/context.h>

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define LOGS_BURST 20
#define LOGS_WINDOW_S 10
#define LOGS_KINDS 96
#define LOGS_LONGEST 2048

/* The lines of one event within the window. */
struct logs_kind {
    const char *event; /* NULL: not in use */
    enum kve_log_level level;
    time_t since; /* CLOCK_MONOTONIC */
    unsigned n;
    uint64_t left_out;
};

struct logs {
    pthread_mutex_t lock;
    int fd;
    bool json;
    enum kve_log_level level; /* the least that is written */
    uint64_t left_out;        /* in all */
    struct logs_kind kinds[LOGS_KINDS];
};

/* Write to fd, which stays the caller's. */
void logs_init(struct logs *logs, int fd, bool json, enum kve_log_level level);
void logs_release(struct logs *logs);

/* Say what was left out of windows that are over. Call it now and then. */
void logs_tick(struct logs *logs);

/* A line as it is written. Texts longer than the line are cut. */
struct log_line {
    struct logs *logs; /* NULL: the line is not written */
    size_t len;
    bool json;
    char text[LOGS_LONGEST];
};

/* Begin a line; event is a constant of one word, msg a sentence without full
 * stop. End it with log_end(). */
void log_begin(struct log_line *line, struct logs *logs,
    enum kve_log_level level, const char *event, const char *msg);

/* The same, of a line that is never left out. */
void log_begin_always(struct log_line *line, struct logs *logs,
    enum kve_log_level level, const char *event, const char *msg);

void log_text(struct log_line *line, const char *name, const char *text);
void log_u64(struct log_line *line, const char *name, uint64_t number);
void log_seconds(struct log_line *line, const char *name, double seconds);
void log_end(struct log_line *line);

/* A line without fields. */
void log_say(struct logs *logs, enum kve_log_level level, const char *event,
    const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Append a text as JSON, quotes included, to text of cap bytes at *len; what
 * does not fit is left out, and the text stays terminated. Bytes that are no
 * UTF-8 become U+FFFD. */
void log_json_text(char *text, size_t cap, size_t *len, const char *value);

/* Addresses, commas between them, into text of cap bytes, with three asterisks
 * in place of what stands there of users and passwords, up to the @. What does
 * not fit is left out. */
void log_hide_users(char *text, size_t cap, const char *addresses);

/* A file of one line for each answer. */
struct access_log {
    pthread_mutex_t lock;
    char *path; /* NULL: none; "-": standard error */
    int fd;
};

/* false: errno says why. */
bool access_log_open(struct access_log *log, const char *path);

/* Open the file anew, after it was moved away; false: the old one stays. */
bool access_log_reopen(struct access_log *log);
void access_log_close(struct access_log *log);

/* What kve_service_opts.access wants; ctx is the log. */
void access_log_write(void *ctx, const char *client, const char *method,
    const char *path, unsigned status, double seconds);

#endif
