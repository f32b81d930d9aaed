/*
 * roster.c - the sources that watch has seen, and what it calls them.
 */
#include "roster.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Longest topic in a name. */
#define TOPIC_CAP 128

/* The first entry whose id is not below one; n when there is none. */
static size_t
place_of(const struct roster *roster, kve_source_id id)
{
    size_t low = 0;
    size_t high = roster->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (roster->items[middle]->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void
destroy(struct seen *seen)
{
    if (seen == NULL)
        return;
    free(seen->endpoint);
    free(seen->stream);
    free(seen->name);
    free(seen->prefix);
    free(seen);
}

/* "kv-events/0", "kv-events", "\"\"/1". */
static char *
stream_name(const struct kve_source_info *info)
{
    char text[TOPIC_CAP + 32];
    size_t len = 0;

    for (size_t i = 0; i < info->topic.len && len < TOPIC_CAP; i++) {
        unsigned char c = (unsigned char)info->topic.data[i];

        text[len++] = c <= ' ' || c >= 0x7f ? '?' : (char)c;
    }
    if (len == 0) {
        text[len++] = '"';
        text[len++] = '"';
    }
    text[len] = '\0';
    if (info->rank.set)
        (void)snprintf(
            text + len, sizeof(text) - len, "/%" PRId64, info->rank.value);
    return strdup(text);
}

/* A text on the heap, or NULL. */
static char *make(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static char *
make(const char *fmt, ...)
{
    va_list ap;
    char *text;
    int len;

    va_start(ap, fmt);
    len = vasprintf(&text, fmt, ap);
    va_end(ap);
    return len < 0 ? NULL : text;
}

static bool
name_it(const struct roster *roster, struct seen *seen,
    const struct kve_source_info *info)
{
    seen->parent = info->parent;
    seen->endpoint = strdup(info->endpoint);
    if (seen->endpoint == NULL)
        return false;
    if (info->parent != 0) {
        seen->stream = stream_name(info);
        if (seen->stream == NULL)
            return false;
        seen->name = make("%s %s", seen->endpoint, seen->stream);
        seen->prefix = roster->several
            ? make("%-*s %s ", roster->width, seen->endpoint, seen->stream)
            : make("%s ", seen->stream);
    } else {
        seen->name = strdup(seen->endpoint);
        seen->prefix = roster->several
            ? make("%-*s ", roster->width, seen->endpoint)
            : strdup("");
    }
    return seen->name != NULL && seen->prefix != NULL;
}

/* Put an entry in its place; false: no memory. */
static bool
insert(struct roster *roster, size_t at, struct seen *seen)
{
    if (roster->n == roster->cap) {
        size_t cap = roster->cap == 0 ? 16 : 2 * roster->cap;
        struct seen **items =
            realloc(roster->items, cap * sizeof(*roster->items));

        if (items == NULL)
            return false;
        roster->items = items;
        roster->cap = cap;
    }
    memmove(&roster->items[at + 1], &roster->items[at],
        (roster->n - at) * sizeof(*roster->items));
    roster->items[at] = seen;
    roster->n++;
    roster->n_streams += seen->parent != 0;
    return true;
}

struct seen *
roster_get(
    struct roster *roster, const kve_subscriber *sub, kve_source_id source)
{
    static char nothing[] = "";
    static char question[] = "?";
    struct kve_source_info info = { .struct_size = sizeof(info) };
    size_t at = place_of(roster, source);
    struct seen *seen = NULL;

    if (at < roster->n && roster->items[at]->id == source)
        return roster->items[at];
    if (kve_sub_source(sub, source, &info) == KVE_OK)
        seen = calloc(1, sizeof(*seen));
    if (seen != NULL) {
        seen->id = source;
        if (name_it(roster, seen, &info) && insert(roster, at, seen))
            return seen;
        destroy(seen);
    }
    roster->unknown.endpoint = question;
    roster->unknown.name = question;
    roster->unknown.prefix = nothing;
    return &roster->unknown;
}

bool
roster_has_streams(const struct roster *roster, kve_source_id source)
{
    for (size_t i = 0; roster->n_streams > 0 && i < roster->n; i++)
        if (roster->items[i]->parent == source)
            return true;
    return false;
}

void
roster_drop(struct roster *roster, kve_source_id source)
{
    size_t at = place_of(roster, source);

    if (at == roster->n || roster->items[at]->id != source)
        return;
    roster->n_streams -= roster->items[at]->parent != 0;
    destroy(roster->items[at]);
    roster->n--;
    memmove(&roster->items[at], &roster->items[at + 1],
        (roster->n - at) * sizeof(*roster->items));
}

void
roster_release(struct roster *roster)
{
    for (size_t i = 0; i < roster->n; i++)
        destroy(roster->items[i]);
    free(roster->items);
    roster->items = NULL;
    roster->n = 0;
    roster->cap = 0;
}
