/*
 * options.c - the parser over option_spec tables.
 *
 * Written here and not taken from getopt_long(), because an error has to name
 * the option, the value and what is accepted in one line, and because the
 * same table makes the help. Every error ends the parsing: the first one is
 * the one the user reads.
 */
#include "options.h"

#include "command.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define LONGEST_WORD 32

int
option_complain(const struct command *command, const char *fmt, ...)
{
    char line[1024];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    /* One line stays one line, whatever was typed. */
    for (char *p = line; *p != '\0'; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
    if (command != NULL)
        fprintf(stderr, "kvevents %s: %s\n", command->name, line);
    else
        fprintf(stderr, "kvevents: %s\n", line);
    return EXIT_USAGE;
}

unsigned
option_distance(const char *a, const char *b)
{
    unsigned rows[3][LONGEST_WORD];
    size_t len_a = strlen(a);
    size_t len_b = strlen(b);

    if (len_a >= LONGEST_WORD || len_b >= LONGEST_WORD)
        return LONGEST_WORD;
    for (size_t j = 0; j <= len_b; j++)
        rows[0][j] = (unsigned)j;
    for (size_t i = 1; i <= len_a; i++) {
        unsigned *row = rows[i % 3];
        const unsigned *above = rows[(i + 2) % 3];
        const unsigned *two_above = rows[(i + 1) % 3];

        row[0] = (unsigned)i;
        for (size_t j = 1; j <= len_b; j++) {
            unsigned best = above[j - 1] + (a[i - 1] != b[j - 1]);

            if (above[j] + 1 < best)
                best = above[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] &&
                a[i - 2] == b[j - 1] && two_above[j - 2] + 1 < best)
                best = two_above[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[len_a % 3][len_b];
}

bool
option_number(
    const char *text, uint64_t min, uint64_t max, uint64_t *ret_number)
{
    uint64_t number = 0;

    if (*text == '\0')
        return false;
    for (; *text != '\0'; text++) {
        unsigned digit = (unsigned)(unsigned char)*text - '0';

        if (digit > 9 || number > (UINT64_MAX - digit) / 10)
            return false;
        number = number * 10 + digit;
    }
    if (number < min || number > max)
        return false;
    *ret_number = number;
    return true;
}

static bool
read_seconds(const char *text, double *ret_seconds)
{
    char *end;
    double seconds;

    if (strspn(text, "0123456789.") != strlen(text) || *text == '\0')
        return false;
    errno = 0;
    seconds = strtod(text, &end);
    if (errno != 0 || *end != '\0' || !isfinite(seconds) || seconds > 1e9)
        return false;
    *ret_seconds = seconds;
    return true;
}

static bool
read_choice(const struct option_spec *spec, const char *text, uint32_t *ret)
{
    for (const struct option_choice *c = spec->choices; c->name != NULL; c++)
        if (strcmp(c->name, text) == 0) {
            *ret = c->value;
            return true;
        }
    return false;
}

static struct option_list *
list_of(const struct option_spec *spec, void *into)
{
    return (struct option_list *)(void *)((char *)into + spec->at);
}

/* Make room for a value more in a list, which forgets what came from a lower
 * level. */
static bool
list_reserve(struct option_list *list, enum option_level level)
{
    const char **items =
        realloc(list->items, (list->n + 1) * sizeof(*list->items));

    if (items == NULL)
        return false;
    list->items = items;
    if (list->level < level)
        list->n = 0;
    list->level = level;
    return true;
}

/* Store one value; false when it is none. Lists have room for it. */
static bool
store(const struct option_spec *spec, const char *text, void *into)
{
    void *at = (char *)into + spec->at;

    if (spec->kind == OPTION_CUSTOM)
        return spec->parse(text, at);
    if (text == NULL) {
        *(bool *)at = true;
        return true;
    }
    switch (spec->kind) {
    case OPTION_TEXT:
        *(const char **)at = text;
        return true;
    case OPTION_NUMBER:
        return option_number(text, spec->min, spec->max, at);
    case OPTION_SECONDS:
        return read_seconds(text, at);
    case OPTION_CHOICE:
        return read_choice(spec, text, at);
    case OPTION_LIST:
        list_of(spec, into)->items[list_of(spec, into)->n++] = text;
        return true;
    case OPTION_FLAG:
    case OPTION_CUSTOM:
        break;
    }
    return false;
}

void
option_list_release(struct option_list *list)
{
    free(list->items);
    list->items = NULL;
    list->n = 0;
}

void
option_accepted(const struct option_spec *spec, char *text, size_t cap)
{
    size_t len = 0;

    text[0] = '\0';
    switch (spec->kind) {
    case OPTION_NUMBER:
        (void)snprintf(text, cap, "a whole number from %" PRIu64 " to %" PRIu64,
            spec->min, spec->max);
        break;
    case OPTION_SECONDS:
        (void)snprintf(text, cap, "seconds from 0 to 1000000000, like 2.5");
        break;
    case OPTION_CHOICE:
        for (const struct option_choice *c = spec->choices;
             c->name != NULL && len < cap; c++)
            len += (size_t)snprintf(text + len, cap - len, "%s%s",
                c == spec->choices      ? ""
                    : c[1].name == NULL ? " or "
                                        : ", ",
                c->name);
        break;
    case OPTION_CUSTOM:
        (void)snprintf(text, cap, "%s", spec->accepted);
        break;
    case OPTION_FLAG:
        (void)snprintf(text, cap, "yes or no");
        break;
    case OPTION_TEXT:
    case OPTION_LIST:
        (void)snprintf(text, cap, "%s", "any text");
        break;
    }
}

static enum option_result
refuse_value(const struct command *command, const struct option_spec *spec,
    const char *text)
{
    char accepted[512];

    option_accepted(spec, accepted, sizeof(accepted));
    option_complain(command, "--%s: '%s' is not accepted; give %s", spec->name,
        text, accepted);
    return OPTION_WRONG;
}

static enum option_result
refuse_missing(const struct command *command, const struct option_spec *spec)
{
    char accepted[512];

    option_accepted(spec, accepted, sizeof(accepted));
    option_complain(command, "--%s: no value given; give --%s %s, %s",
        spec->name, spec->name, spec->value, accepted);
    return OPTION_WRONG;
}

const char *
option_near(const struct option_spec *table, const char *word)
{
    const char *near = NULL;
    unsigned best = 3;

    for (const struct option_spec *spec = table;
         spec != NULL && spec->name != NULL && *word != '\0'; spec++) {
        unsigned distance = option_distance(word, spec->name);

        /* A part of the name is taken for a shortened one. */
        if (strncmp(word, spec->name, strlen(word)) == 0)
            distance = 1;
        if (distance < best && distance < strlen(word)) {
            best = distance;
            near = spec->name;
        }
    }
    return near;
}

static enum option_result
refuse_option(const struct command *command, const char *word, size_t len)
{
    char name[LONGEST_WORD] = "";
    const char *near;

    if (word[1] == '-' && len - 2 < sizeof(name)) {
        memcpy(name, word + 2, len - 2);
        name[len - 2] = '\0';
    }
    near = option_near(command->options, name);
    if (near != NULL)
        option_complain(command,
            "unknown option '%.*s'; did you mean '--%s'? "
            "'kvevents %s --help' lists all",
            (int)len, word, near, command->name);
    else
        option_complain(command,
            "unknown option '%.*s'; 'kvevents %s --help' lists all", (int)len,
            word, command->name);
    return OPTION_WRONG;
}

const struct option_spec *
option_find(const struct option_spec *table, const char *name, size_t len)
{
    for (const struct option_spec *spec = table;
         spec != NULL && spec->name != NULL; spec++)
        if (strlen(spec->name) == len && memcmp(spec->name, name, len) == 0)
            return spec;
    return NULL;
}

static const struct option_spec *
find_letter(const struct command *command, char letter)
{
    for (const struct option_spec *spec = command->options;
         spec != NULL && spec->name != NULL; spec++)
        if (spec->letter == letter)
            return spec;
    return NULL;
}

/* The command line as it is read. */
struct line {
    const struct command *command;
    int argc;
    char **argv;
    int at;
    void *into;
};

/* Store what an option takes: attached, or the next word. */
static enum option_result
take_value(
    struct line *line, const struct option_spec *spec, const char *attached)
{
    const char *text = attached;

    if (text == NULL && !spec->optional) {
        if (line->at + 1 >= line->argc)
            return refuse_missing(line->command, spec);
        text = line->argv[++line->at];
    }
    if (spec->kind == OPTION_LIST &&
        !list_reserve(list_of(spec, line->into), OPTION_FROM_WORDS)) {
        option_complain(line->command, "out of memory");
        return OPTION_WRONG;
    }
    if (!store(spec, text, line->into))
        return refuse_value(line->command, spec, text);
    return OPTION_OK;
}

static enum option_result
read_long(struct line *line, const char *word)
{
    const char *equals = strchr(word, '=');
    size_t len = equals != NULL ? (size_t)(equals - word) : strlen(word);
    const struct option_spec *spec =
        option_find(line->command->options, word + 2, len - 2);

    if (len == 6 && memcmp(word, "--help", 6) == 0 && equals == NULL)
        return OPTION_HELP;
    if (spec == NULL)
        return refuse_option(line->command, word, len);
    if (spec->kind != OPTION_FLAG)
        return take_value(line, spec, equals != NULL ? equals + 1 : NULL);
    if (equals != NULL) {
        option_complain(line->command,
            "--%s: '%s' is not accepted; the option takes no value", spec->name,
            equals + 1);
        return OPTION_WRONG;
    }
    (void)store(spec, NULL, line->into);
    return OPTION_OK;
}

static enum option_result
read_letters(struct line *line, const char *word)
{
    for (const char *p = word + 1; *p != '\0'; p++) {
        const struct option_spec *spec = find_letter(line->command, *p);
        char one[3] = { '-', *p, '\0' };

        if (*p == 'h')
            return OPTION_HELP;
        if (spec == NULL)
            return refuse_option(line->command, one, 2);
        if (spec->kind != OPTION_FLAG)
            return take_value(line, spec, p[1] != '\0' ? p + 1 : NULL);
        (void)store(spec, NULL, line->into);
    }
    return OPTION_OK;
}

void
option_defaults(const struct option_spec *table, void *into)
{
    for (const struct option_spec *spec = table;
         spec != NULL && spec->name != NULL; spec++)
        if (spec->fallback != NULL)
            (void)store(spec, spec->fallback, into);
}

static bool
read_flag(const char *text, bool *ret)
{
    static const char *const words[] = { "yes", "true", "on", "1", "no",
        "false", "off", "0" };

    for (size_t i = 0; i < 8; i++)
        if (strcasecmp(text, words[i]) == 0) {
            *ret = i < 4;
            return true;
        }
    return false;
}

enum option_result
option_set(const struct option_spec *spec, const char *text,
    enum option_level level, void *into)
{
    bool right;

    if (spec->kind == OPTION_LIST && !list_reserve(list_of(spec, into), level))
        return OPTION_NO_MEMORY;
    right = spec->kind == OPTION_FLAG
        ? read_flag(text, (bool *)((char *)into + spec->at))
        : store(spec, text, into);
    return right ? OPTION_OK : OPTION_WRONG;
}

enum option_result
option_words(const struct command *command, int argc, char **argv, void *into,
    int *ret_operands)
{
    struct line line = { command, argc, argv, 1, into };
    enum option_result result = OPTION_OK;
    bool only_operands = false;
    int n = 0;

    for (; line.at < argc && result == OPTION_OK; line.at++) {
        char *word = argv[line.at];

        if (only_operands || word[0] != '-' || word[1] == '\0')
            argv[1 + n++] = word;
        else if (strcmp(word, "--") == 0)
            only_operands = true;
        else if (word[1] == '-')
            result = read_long(&line, word);
        else
            result = read_letters(&line, word);
    }
    if (result == OPTION_OK)
        *ret_operands = n;
    return result;
}

enum option_result
option_parse(const struct command *command, int argc, char **argv, void *into,
    int *ret_operands)
{
    option_defaults(command->options, into);
    return option_words(command, argc, argv, into, ret_operands);
}
