/*
 * options.h - one table of options makes parser, help, man page, completion.
 *
 * A subcommand describes each option once, in a struct option_spec. What the
 * parser accepts is thereby what the help says: the default that is printed is
 * the text that is parsed when the option is not given, and the range that an
 * error names is the range that is checked.
 *
 * Accepted forms: --name, --name=VALUE, --name VALUE, -x, -xVALUE, -x VALUE,
 * flags in one word (-qv), and -- before operands that begin with a dash. An
 * option whose value may be left out takes it after = only. Shortened names
 * are not accepted: a script that uses one would break when an option is added.
 *
 * Of an option that is given twice the last one counts, but for OPTION_LIST,
 * which keeps them all in their order.
 *
 * Values can come from a file and from the environment, too. They are stored in
 * the order of enum option_level, so that the higher one counts; values of a
 * list take the place of those of a lower level.
 */
#ifndef KVEVENTS_TOOL_OPTIONS_H
#define KVEVENTS_TOOL_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct command;
struct option_spec;

/* Values of numbers; type of what is at option_spec.at. */
enum option_kind {
    OPTION_FLAG,    /* bool */
    OPTION_TEXT,    /* const char *, borrowed from argv */
    OPTION_NUMBER,  /* uint64_t, min..max */
    OPTION_SECONDS, /* double, seconds, 0 to 10^9 */
    OPTION_CHOICE,  /* uint32_t, one of choices */
    OPTION_LIST,    /* struct option_list; may be given again and again */
    OPTION_CUSTOM   /* what parse makes of it */
};

struct option_choice {
    const char *name; /* NULL ends the list */
    uint32_t value;
};

/* Where a value comes from. */
enum option_level {
    OPTION_FROM_FILE,
    OPTION_FROM_ENVIRONMENT,
    OPTION_FROM_WORDS
};

/* The values of an option that may be given again and again, borrowed from
 * argv. The caller ends the list with option_list_release(). */
struct option_list {
    size_t n;
    const char **items;
    enum option_level level; /* of all of them */
};

struct option_spec {
    const char *name; /* without dashes; NULL ends the table */
    char letter;      /* short form, or 0 */
    bool optional;    /* the value may be left out */
    enum option_kind kind;
    const char *value;    /* what the help calls the value */
    const char *fallback; /* default, as text; NULL: nothing is set */
    const char *help;     /* one sentence, no full stop */
    size_t at;            /* offset in the subcommand's own structure */
    uint64_t min;
    uint64_t max;
    const struct option_choice *choices;
    /* For OPTION_CUSTOM. into is where at points. false: refused, and
     * accepted says what would be taken. text is NULL where it was left
     * out. */
    bool (*parse)(const char *text, void *into);
    const char *accepted;
};

void option_list_release(struct option_list *list);

/* How parsing ended. */
enum option_result {
    OPTION_OK,
    OPTION_HELP,     /* --help was given */
    OPTION_WRONG,    /* one line was written to standard error */
    OPTION_NO_MEMORY /* of option_set() */
};

/*
 * Set the defaults of command's table in the structure at into, then read
 * argv[1] to argv[argc - 1]. Operands are moved to the front of argv, from
 * argv[1]; *ret_operands is how many there are.
 */
enum option_result option_parse(const struct command *command, int argc,
    char **argv, void *into, int *ret_operands);

/* The two halves of it: defaults, and then the words. */
void option_defaults(const struct option_spec *table, void *into);
enum option_result option_words(const struct command *command, int argc,
    char **argv, void *into, int *ret_operands);

/*
 * Store a value that did not come as a word; a flag is yes or no. text is
 * borrowed. OPTION_WRONG: it is not accepted, and nothing was written.
 */
enum option_result option_set(const struct option_spec *spec, const char *text,
    enum option_level level, void *into);

/* The option of that name, or NULL; and the name that is nearest to a word, or
 * NULL when none is near. */
const struct option_spec *option_find(
    const struct option_spec *table, const char *name, size_t len);
const char *option_near(const struct option_spec *table, const char *word);

/* Write the usual line about something wrong to standard error:
 * "kvevents watch: ...". Returns 2, the exit status that goes with it. */
int option_complain(const struct command *command, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Read a whole number without sign from min to max; nothing else around it. */
bool option_number(
    const char *text, uint64_t min, uint64_t max, uint64_t *ret_number);

/* How far two words are apart: letters to add, drop, change or swap. Words of
 * more than 31 letters are far from everything. */
unsigned option_distance(const char *a, const char *b);

/* Write what an option takes, "a whole number from 1 to 9", to text. */
void option_accepted(const struct option_spec *spec, char *text, size_t cap);

#endif
