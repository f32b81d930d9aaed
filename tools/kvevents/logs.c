/*
 * logs.c - lines about what happens.
 */
#include "logs.h"

#include "value.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static time_t
monotonic(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec;
}

/* "2026-11-30T02:40:00.123Z" */
static void
put_time(char *text, size_t cap)
{
    struct timespec time;
    struct tm day;
    size_t len;

    (void)clock_gettime(CLOCK_REALTIME, &time);
    (void)gmtime_r(&time.tv_sec, &day);
    len = strftime(text, cap, "%Y-%m-%dT%H:%M:%S", &day);
    (void)snprintf(
        text + len, cap - len, ".%03dZ", (int)(time.tv_nsec / 1000000));
}

static void
write_all(int fd, const char *text, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, text, len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return;
        text += n;
        len -= (size_t)n;
    }
}

/* ------------------------------------------------------------------ */
/* Texts                                                               */

/* Append bytes; false, and nothing was written: they do not fit. */
static bool
put(char *text, size_t cap, size_t *len, const char *bytes, size_t n)
{
    if (*len + n + 1 > cap)
        return false;
    memcpy(text + *len, bytes, n);
    *len += n;
    text[*len] = '\0';
    return true;
}

void
log_json_text(char *text, size_t cap, size_t *len, const char *value)
{
    const unsigned char *p = (const unsigned char *)value;
    bool fits = true;
    char one[8];

    if (cap < 2 || !put(text, cap - 1, len, "\"", 1))
        return;
    while (*p != '\0' && fits) {
        uint32_t code;
        size_t n = value_character(p, strnlen((const char *)p, 4), &code);
        const char *as = one;
        size_t len_as = 6;

        if (n == 0) {
            as = "\\ufffd";
            n = 1;
        } else if (*p == '"' || *p == '\\') {
            one[0] = '\\';
            one[1] = (char)*p;
            len_as = 2;
        } else if (*p < ' ' || *p == 0x7f) {
            (void)snprintf(one, sizeof(one), "\\u%04x", *p);
        } else {
            as = (const char *)p;
            len_as = n;
        }
        fits = put(text, cap - 1, len, as, len_as);
        p += n;
    }
    (void)put(text, cap, len, "\"", 1);
}

/* Whether logfmt takes a text without quotes. */
static bool
is_word(const char *text)
{
    if (*text == '\0')
        return false;
    for (; *text != '\0'; text++)
        if (*text <= ' ' || *text >= 0x7f || *text == '"' || *text == '=' ||
            *text == '\\')
            return false;
    return true;
}

/* Room is left for what ends a line. */
#define LINE_CAP (LOGS_LONGEST - 4)

static void
put_name(struct log_line *line, const char *name)
{
    bool first = line->len <= 1;

    if (line->json) {
        if (!first)
            (void)put(line->text, LINE_CAP, &line->len, ",", 1);
        log_json_text(line->text, LINE_CAP, &line->len, name);
        (void)put(line->text, LINE_CAP, &line->len, ":", 1);
    } else {
        if (!first)
            (void)put(line->text, LINE_CAP, &line->len, " ", 1);
        (void)put(line->text, LINE_CAP, &line->len, name, strlen(name));
        (void)put(line->text, LINE_CAP, &line->len, "=", 1);
    }
}

void
log_text(struct log_line *line, const char *name, const char *text)
{
    /* A field that does not fit with its name is left out whole. */
    if (line->logs == NULL || line->len + strlen(name) + 16 > LINE_CAP)
        return;
    put_name(line, name);
    if (!line->json && is_word(text) &&
        line->len + strlen(text) + 1 <= LINE_CAP)
        (void)put(line->text, LINE_CAP, &line->len, text, strlen(text));
    else
        log_json_text(line->text, LINE_CAP, &line->len, text);
}

void
log_u64(struct log_line *line, const char *name, uint64_t number)
{
    char text[24];

    if (line->logs == NULL || line->len + strlen(name) + 32 > LINE_CAP)
        return;
    (void)snprintf(text, sizeof(text), "%" PRIu64, number);
    put_name(line, name);
    (void)put(line->text, LINE_CAP, &line->len, text, strlen(text));
}

void
log_seconds(struct log_line *line, const char *name, double seconds)
{
    char text[32];

    if (line->logs == NULL || line->len + strlen(name) + 40 > LINE_CAP)
        return;
    (void)snprintf(text, sizeof(text), "%.3f", seconds);
    put_name(line, name);
    (void)put(line->text, LINE_CAP, &line->len, text, strlen(text));
}

/* ------------------------------------------------------------------ */
/* Lines                                                               */

void
logs_init(struct logs *logs, int fd, bool json, enum kve_log_level level)
{
    memset(logs, 0, sizeof(*logs));
    (void)pthread_mutex_init(&logs->lock, NULL);
    logs->fd = fd;
    logs->json = json;
    logs->level = level;
}

void
logs_release(struct logs *logs)
{
    (void)pthread_mutex_destroy(&logs->lock);
}

/* The window of an event. With more events than there are places, the last
 * place is shared. */
static struct logs_kind *
find_kind(struct logs *logs, const char *event, enum kve_log_level level)
{
    for (size_t i = 0; i < LOGS_KINDS; i++) {
        struct logs_kind *kind = &logs->kinds[i];

        if (kind->event == NULL) {
            kind->event = event;
            kind->level = level;
            kind->since = monotonic();
        }
        if (strcmp(kind->event, event) == 0)
            return kind;
    }
    return &logs->kinds[LOGS_KINDS - 1];
}

/* Whether a line of an event may be written; *ret_left_out are those that were
 * not, since the last one that was. */
static bool
admit(struct logs *logs, enum kve_log_level level, const char *event,
    uint64_t *ret_left_out)
{
    struct logs_kind *kind;
    bool admitted;

    (void)pthread_mutex_lock(&logs->lock);
    kind = find_kind(logs, event, level);
    if (monotonic() - kind->since >= LOGS_WINDOW_S) {
        kind->since = monotonic();
        kind->n = 0;
    }
    admitted = kind->n < LOGS_BURST;
    if (admitted) {
        kind->n++;
        *ret_left_out = kind->left_out;
        kind->left_out = 0;
    } else {
        kind->left_out++;
        logs->left_out++;
    }
    (void)pthread_mutex_unlock(&logs->lock);
    return admitted;
}

static const char *
level_text(enum kve_log_level level)
{
    static const char *const texts[] = { "error", "error", "warning", "info",
        "debug" };

    return level > KVE_LOG_DEBUG ? "debug" : texts[level];
}

/* Write what every line begins with. */
static void
put_begin(struct log_line *line, enum kve_log_level level, const char *event,
    const char *msg)
{
    char time[32];

    line->len = 0;
    line->json = line->logs->json;
    line->text[0] = '\0';
    if (line->json)
        (void)put(line->text, LINE_CAP, &line->len, "{", 1);
    put_time(time, sizeof(time));
    log_text(line, "ts", time);
    log_text(line, "level", level_text(level));
    log_text(line, "event", event);
    log_text(line, "msg", msg);
}

void
log_begin_always(struct log_line *line, struct logs *logs,
    enum kve_log_level level, const char *event, const char *msg)
{
    line->logs = level <= logs->level ? logs : NULL;
    if (line->logs != NULL)
        put_begin(line, level, event, msg);
}

void
log_begin(struct log_line *line, struct logs *logs, enum kve_log_level level,
    const char *event, const char *msg)
{
    uint64_t left_out = 0;

    line->logs = level <= logs->level && admit(logs, level, event, &left_out)
        ? logs
        : NULL;
    if (line->logs == NULL)
        return;
    put_begin(line, level, event, msg);
    if (left_out > 0)
        log_u64(line, "left_out", left_out);
}

void
log_end(struct log_line *line)
{
    if (line->logs == NULL)
        return;
    if (line->json)
        line->text[line->len++] = '}';
    line->text[line->len++] = '\n';
    write_all(line->logs->fd, line->text, line->len);
}

void
log_say(struct logs *logs, enum kve_log_level level, const char *event,
    const char *fmt, ...)
{
    struct log_line line;
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    log_begin(&line, logs, level, event, text);
    log_end(&line);
}

/* Take the count of one event whose window is over; false: there is none. */
static bool
take_left_out(struct logs *logs, size_t i, struct logs_kind *ret)
{
    struct logs_kind *kind = &logs->kinds[i];
    bool taken;

    (void)pthread_mutex_lock(&logs->lock);
    taken = kind->event != NULL && kind->left_out > 0 &&
        monotonic() - kind->since >= LOGS_WINDOW_S;
    *ret = *kind;
    if (taken)
        kind->left_out = 0;
    (void)pthread_mutex_unlock(&logs->lock);
    return taken;
}

void
logs_tick(struct logs *logs)
{
    struct logs_kind kind;
    struct log_line line;

    for (size_t i = 0; i < LOGS_KINDS; i++) {
        if (!take_left_out(logs, i, &kind))
            continue;
        log_begin_always(
            &line, logs, kind.level, kind.event, "more of these were left out");
        log_u64(&line, "left_out", kind.left_out);
        log_end(&line);
    }
}

/* ------------------------------------------------------------------ */
/* Answers                                                             */

static int
open_access(const char *path)
{
    if (path == NULL)
        return -1;
    if (strcmp(path, "-") == 0)
        return STDERR_FILENO;
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
}

static void
close_access(int fd)
{
    if (fd > STDERR_FILENO)
        (void)close(fd);
}

bool
access_log_open(struct access_log *log, const char *path)
{
    (void)pthread_mutex_init(&log->lock, NULL);
    log->path = path != NULL ? strdup(path) : NULL;
    log->fd = open_access(log->path);
    return path == NULL || log->fd >= 0;
}

bool
access_log_reopen(struct access_log *log)
{
    int fd = open_access(log->path);
    int old;

    if (fd < 0)
        return log->path == NULL;
    (void)pthread_mutex_lock(&log->lock);
    old = log->fd;
    log->fd = fd;
    (void)pthread_mutex_unlock(&log->lock);
    close_access(old);
    return true;
}

void
access_log_close(struct access_log *log)
{
    close_access(log->fd);
    log->fd = -1;
    free(log->path);
    log->path = NULL;
    (void)pthread_mutex_destroy(&log->lock);
}

void
access_log_write(void *ctx, const char *client, const char *method,
    const char *path, unsigned status, double seconds)
{
    struct access_log *log = ctx;
    char line[LOGS_LONGEST];
    char time[32];
    size_t len;

    put_time(time, sizeof(time));
    len = (size_t)snprintf(
        line, sizeof(line), "{\"ts\":\"%s\",\"client\":", time);
    log_json_text(line, 256, &len, client);
    (void)put(line, sizeof(line), &len, ",\"method\":", 10);
    log_json_text(line, 320, &len, method);
    (void)put(line, sizeof(line), &len, ",\"path\":", 8);
    log_json_text(line, sizeof(line) - 64, &len, path);
    len += (size_t)snprintf(line + len, sizeof(line) - len,
        ",\"status\":%u,\"duration_ms\":%.3f}\n", status, seconds * 1000.0);
    (void)pthread_mutex_lock(&log->lock);
    write_all(log->fd, line, len);
    (void)pthread_mutex_unlock(&log->lock);
}

void
log_hide_users(char *text, size_t cap, const char *addresses)
{
    size_t len = 0;

    while (*addresses != '\0' && len + 1 < cap) {
        size_t n = strcspn(addresses, ",");
        const char *scheme = memmem(addresses, n, "://", 3);
        size_t skip = scheme == NULL ? 0 : (size_t)(scheme - addresses) + 3;
        const char *at = memrchr(addresses + skip, '@', n - skip);
        const char *rest = at != NULL ? at : addresses + skip;

        len += (size_t)snprintf(text + len, cap - len, "%.*s%s%.*s%s",
            (int)skip, addresses, at != NULL ? "***" : "",
            (int)(addresses + n - rest), rest, addresses[n] == ',' ? "," : "");
        addresses += n + (addresses[n] == ',' ? 1 : 0);
    }
    text[len < cap ? len : cap - 1] = '\0';
}
