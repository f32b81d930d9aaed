/*
 * config_file.c - the config file of kvevents serve.
 *
 * inih knows sections, keys, comments and continued lines, but not where it is:
 * it calls back without a line number, cuts long lines and long section names,
 * and says nothing of a section without keys. So lines come to it through a
 * reader of ours, one at a time, which counts them, refuses long ones and takes
 * note of sections itself.
 */
#include "config_file.h"

#include "list.h"

#include <errno.h>
#include <ini.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* No table of options has more rows. */
#define MOST_OPTIONS 128

enum place { PLACE_NONE, PLACE_SERVE, PLACE_SOURCE };

struct reading {
    struct config *config;
    const char *path;
    FILE *file;
    char *line;
    size_t cap;
    unsigned number; /* of the line read last, from 1 */
    bool failed;
    enum place place;
    unsigned section; /* line of its heading */
    size_t source;    /* place of the source that is read */
    bool seen[MOST_OPTIONS];
};

static void fail(struct reading *r, unsigned line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Only the first error counts. */
static void
fail(struct reading *r, unsigned line, const char *fmt, ...)
{
    char *text = r->config->error;
    size_t cap = sizeof(r->config->error);
    va_list ap;
    int len;

    if (r->failed)
        return;
    r->failed = true;
    len = snprintf(text, cap, "%s:%u: ", r->path, line);
    if (len < 0 || (size_t)len >= cap)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text + len, cap - (size_t)len, fmt, ap);
    va_end(ap);
}

struct given_source *
config_add_source(struct config *config)
{
    struct given_source *given;

    if (!list_grow(&config->given, &config->cap_given, config->n_given,
            sizeof(*config->given)))
        return NULL;
    given = &config->given[config->n_given++];
    memset(given, 0, sizeof(*given));
    given->found_in = "";
    return given;
}

/* ------------------------------------------------------------------ */
/* Sections                                                            */

static void
end_section(struct reading *r)
{
    if (r->place == PLACE_SOURCE && !r->failed &&
        r->config->given[r->source].source.endpoint == NULL)
        fail(r, r->section,
            "the source has no endpoint; give endpoint = tcp://HOST:PORT");
}

static void
begin_source(struct reading *r, const char *name, size_t len)
{
    struct given_source *given = config_add_source(r->config);

    if (given != NULL) {
        r->source = r->config->n_given - 1;
        (void)snprintf(
            given->where, sizeof(given->where), "%s:%u", r->path, r->number);
        given->found_in =
            texts_keep(&r->config->texts, r->path, strlen(r->path));
        if (len > 0)
            given->source.worker = texts_keep(&r->config->texts, name, len);
    }
    if (given == NULL || given->found_in == NULL ||
        (len > 0 && given->source.worker == NULL))
        fail(r, r->number, "out of memory");
    r->place = PLACE_SOURCE;
}

/* The heading that a line is: [serve] or [source NAME]. */
static void
begin_section(struct reading *r, const char *text)
{
    size_t len = strcspn(text, "]\r\n");

    end_section(r);
    memset(r->seen, 0, sizeof(r->seen));
    r->section = r->number;
    while (len > 0 && (*text == ' ' || *text == '\t')) {
        text++;
        len--;
    }
    while (len > 0 && (text[len - 1] == ' ' || text[len - 1] == '\t'))
        len--;
    if (len == 5 && memcmp(text, "serve", 5) == 0) {
        r->place = PLACE_SERVE;
    } else if (len >= 6 && memcmp(text, "source", 6) == 0 &&
        (len == 6 || text[6] == ' ' || text[6] == '\t')) {
        text += 6;
        len -= 6;
        while (len > 0 && (*text == ' ' || *text == '\t')) {
            text++;
            len--;
        }
        begin_source(r, text, len);
    } else {
        fail(r, r->number,
            "unknown section '%.*s'; there are [serve] and [source NAME]",
            (int)len, text);
    }
}

/* ------------------------------------------------------------------ */
/* What inih calls                                                     */

static char *
next_line(char *text, int cap, void *stream)
{
    struct reading *r = stream;
    ssize_t len;
    size_t mark;

    errno = 0;
    len = r->failed ? -1 : getline(&r->line, &r->cap, r->file);
    if (len < 0) {
        if (!r->failed && ferror(r->file))
            fail(r, r->number + 1, "cannot read: %s", strerror(errno));
        return NULL;
    }
    r->number++;
    if (strlen(r->line) != (size_t)len) {
        fail(r, r->number, "there is a zero byte; the file is text");
        return NULL;
    }
    if (len > CONFIG_LONGEST || len + 2 > cap) {
        fail(r, r->number,
            "the line is longer than %d bytes; a list may be given again and "
            "again, one value a line",
            CONFIG_LONGEST);
        return NULL;
    }
    memcpy(text, r->line, (size_t)len + 1);
    mark = r->number == 1 && strncmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    if (text[mark] == '[')
        begin_section(r, text + mark + 1);
    return r->failed ? NULL : text;
}

static void
refuse_key(struct reading *r, const struct option_spec *table, const char *name)
{
    const char *near = option_near(table, name);
    const struct option_spec *other =
        option_find(table == serve_options ? serve_source_keys : serve_options,
            name, strlen(name));

    if (near != NULL)
        fail(r, r->number, "unknown key '%s'; did you mean '%s'?", name, near);
    else if (other != NULL)
        fail(r, r->number, "'%s' does not belong here, but into a section %s",
            name, table == serve_options ? "[source NAME]" : "[serve]");
    else
        fail(r, r->number,
            "unknown key '%s'; 'kvevents serve --print-config' writes all",
            name);
}

static void
take_value(struct reading *r, const struct option_spec *table, void *into,
    const char *name, const char *value)
{
    const struct option_spec *spec = option_find(table, name, strlen(name));
    size_t place = spec != NULL ? (size_t)(spec - table) : 0;
    char accepted[512];
    const char *kept;

    if (spec == NULL || strcmp(name, "config") == 0 ||
        strcmp(name, "print-config") == 0) {
        refuse_key(r, table, name);
        return;
    }
    if (place < MOST_OPTIONS && r->seen[place] && spec->kind != OPTION_LIST) {
        fail(r, r->number, "'%s' is given twice", name);
        return;
    }
    if (place < MOST_OPTIONS)
        r->seen[place] = true;
    if (*value == '\0')
        return; /* nothing is said */
    kept = texts_keep(&r->config->texts, value, strlen(value));
    switch (kept != NULL ? option_set(spec, kept, OPTION_FROM_FILE, into)
                         : OPTION_NO_MEMORY) {
    case OPTION_WRONG:
        option_accepted(spec, accepted, sizeof(accepted));
        fail(r, r->number, "%s: '%s' is not accepted; give %s", name, value,
            accepted);
        break;
    case OPTION_NO_MEMORY:
        fail(r, r->number, "out of memory");
        break;
    case OPTION_OK:
    case OPTION_HELP:
        break;
    }
}

static int
on_value(void *user, const char *section, const char *name, const char *value)
{
    struct reading *r = user;

    (void)section;
    switch (r->place) {
    case PLACE_NONE:
        fail(r, r->number, "'%s' stands before any section; begin with [serve]",
            name);
        break;
    case PLACE_SERVE:
        take_value(r, serve_options, &r->config->options, name, value);
        break;
    case PLACE_SOURCE:
        take_value(r, serve_source_keys, &r->config->given[r->source].source,
            name, value);
        break;
    }
    return !r->failed;
}

bool
config_file_read(struct config *config, const char *path)
{
    struct reading r = { .config = config, .path = path };
    int wrong;

    r.file = fopen(path, "re");
    if (r.file == NULL) {
        (void)snprintf(config->error, sizeof(config->error),
            "--config: cannot open '%s': %s", path, strerror(errno));
        return false;
    }
    wrong = ini_parse_stream(next_line, &r, on_value, &r);
    if (wrong > 0 && !r.failed)
        fail(&r, (unsigned)wrong,
            "this is no [SECTION], no KEY = VALUE and no comment");
    else if (wrong < 0)
        fail(&r, r.number, "out of memory");
    end_section(&r);
    free(r.line);
    (void)fclose(r.file);
    return !r.failed;
}
