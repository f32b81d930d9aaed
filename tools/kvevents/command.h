/*
 * command.h - what the command is made of: a list of subcommands.
 *
 * Each lies in a file of its own and describes itself here: its options, its
 * operands and the words of help and man page. main.c only looks one up and
 * runs it; help.c, manpage.c and completion.c read the descriptions.
 */
#ifndef KVEVENTS_TOOL_COMMAND_H
#define KVEVENTS_TOOL_COMMAND_H

#include "options.h"

#include <stddef.h>

/* How the command ends. */
enum {
    EXIT_FINE = 0,
    EXIT_TROUBLE = 1,      /* something was not as it should be */
    EXIT_USAGE = 2,        /* an option or operand was wrong */
    EXIT_INTERRUPTED = 130 /* Ctrl-C; 128 + number of the signal */
};

/* A chapter of the man page. In text an empty line ends a paragraph and a
 * line that begins with a blank stands as it is. */
struct section {
    const char *title; /* NULL ends the list */
    const char *text;
};

struct command {
    const char *name;
    const char *operands;     /* "[ENDPOINT]", for the usage line */
    const char *summary;      /* one line, no full stop */
    const char *operand_help; /* one paragraph about the operands, or NULL */
    const struct option_spec *options; /* NULL: none but --help */
    const struct section *sections;    /* NULL: none */
    const char *keys_title;            /* a chapter of the keys of a file */
    const struct option_spec *keys;    /* NULL: none */
    const char *examples;              /* lines as they stand, or NULL */
    /* Words that complete the operand, or NULL: files. */
    const char *words;
    int (*run)(const struct command *command, int argc, char **argv);
};

extern const struct command command_watch;
extern const struct command command_publish;
extern const struct command command_index;
extern const struct command command_hash;
#if defined(KVE_HAVE_SERVICE)
extern const struct command command_serve;
extern const struct command command_query;
extern const struct command command_sources;
#endif
extern const struct command command_help;
extern const struct command command_completion;

/* All subcommands in the order of the help; NULL ends the list. */
extern const struct command *const commands[];

/* The subcommand of that name, or NULL. */
const struct command *command_find(const char *name);

/* The subcommand whose name is nearest to a word, or NULL when none is near. */
const struct command *command_near(const char *word);

/* Write the help of one subcommand, or of the command, to standard output. */
void help_command(const struct command *command);
void help_overview(void);

/*
 * How every subcommand begins: read its options, as option_parse() does. False
 * when it ends here, with the exit status *ret_status: help was asked for and
 * written, or an option was wrong.
 */
bool help_or_options(const struct command *command, int argc, char **argv,
    void *into, int *ret_operands, int *ret_status);

/* Whether an option has a default that says something: not the empty text,
 * not "no limit". */
bool help_has_default(const struct option_spec *spec);

/* Write the man page kvevents(1) to standard output. */
void manpage_write(void);

#endif
