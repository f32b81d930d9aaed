/*
 * help.c - kvevents help and the --help of every subcommand.
 *
 * All of it is made from the tables: what the parser does not accept cannot
 * be promised here.
 */
#include "command.h"

#include <kvevents/version.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Lines are broken at this column; the text of an option begins at that. */
#define WIDTH 79
#define INDENT 27

/* Print words from column at on, broken and indented. */
static void
print_words(const char *text, size_t at, size_t indent)
{
    while (*text != '\0') {
        size_t len = strcspn(text, " ");

        if (at + 1 + len > WIDTH && at > indent) {
            printf("\n%*s", (int)indent, "");
            at = indent;
        } else if (at > indent) {
            putchar(' ');
            at++;
        }
        printf("%.*s", (int)len, text);
        at += len;
        text += len;
        text += strspn(text, " ");
    }
    putchar('\n');
}

/* "-f, --format FORMAT", "    --stats[=SECONDS]". */
static size_t
print_names(const struct option_spec *spec)
{
    char text[80];
    int len;

    len = snprintf(text, sizeof(text), "  %c%c%s --%s%s%s%s",
        spec->letter != 0 ? '-' : ' ', spec->letter != 0 ? spec->letter : ' ',
        spec->letter != 0 ? "," : " ", spec->name,
        spec->kind == OPTION_FLAG ? ""
            : spec->optional      ? "[="
                                  : " ",
        spec->kind == OPTION_FLAG ? "" : spec->value,
        spec->optional ? "]" : "");
    fputs(text, stdout);
    return (size_t)len;
}

bool
help_has_default(const struct option_spec *spec)
{
    return spec->fallback != NULL && *spec->fallback != '\0' &&
        strcmp(spec->fallback, "default") != 0 &&
        strcmp(spec->fallback, "18446744073709551615") != 0;
}

static void
print_option(const struct option_spec *spec)
{
    char text[512];
    size_t at = print_names(spec);

    if (at + 2 > INDENT) {
        printf("\n%*s", INDENT, "");
    } else {
        printf("%*s", (int)(INDENT - at), "");
    }
    if (help_has_default(spec))
        (void)snprintf(
            text, sizeof(text), "%s (default %s)", spec->help, spec->fallback);
    else
        (void)snprintf(text, sizeof(text), "%s", spec->help);
    print_words(text, INDENT, INDENT);
}

/* Lines of text, each behind two blanks. */
static void
print_lines(const char *text)
{
    while (*text != '\0') {
        size_t len = strcspn(text, "\n");

        printf("  %.*s\n", (int)len, text);
        text += len;
        text += *text == '\n';
    }
}

void
help_command(const struct command *command)
{
    printf("Usage: kvevents %s %s%s%s\n\n", command->name,
        command->options != NULL ? "[OPTIONS]" : "",
        command->options != NULL && *command->operands != '\0' ? " " : "",
        command->operands);
    printf("kvevents %s: %s\n", command->name, command->summary);
    if (command->operand_help != NULL) {
        putchar('\n');
        print_words(command->operand_help, 0, 0);
    }
    if (command->options != NULL) {
        puts("\nOptions:");
        for (const struct option_spec *spec = command->options;
             spec->name != NULL; spec++)
            print_option(spec);
        printf("  -h, --help%*sThis text\n", INDENT - 12, "");
    }
    if (command->examples != NULL) {
        puts("\nExamples:");
        print_lines(command->examples);
    }
    puts("\nMore: man kvevents, or kvevents help --man | man -l -");
}

bool
help_or_options(const struct command *command, int argc, char **argv,
    void *into, int *ret_operands, int *ret_status)
{
    enum option_result result =
        option_parse(command, argc, argv, into, ret_operands);

    if (result == OPTION_HELP)
        help_command(command);
    *ret_status = result == OPTION_WRONG ? EXIT_USAGE : EXIT_FINE;
    return result == OPTION_OK;
}

void
help_overview(void)
{
    puts("Usage: kvevents COMMAND [OPTIONS] ...\n\n"
         "KV-cache events for LLM serving: watch what an engine stores and "
         "removes,\npublish what was recorded, ask who holds how much of a "
         "prompt, "
         "compute the\nhashes of blocks.\n\nCommands:");
    for (size_t i = 0; commands[i] != NULL; i++)
        printf("  %-12s %s\n", commands[i]->name, commands[i]->summary);
    puts("\n  kvevents COMMAND --help     options and examples of a command\n"
         "  kvevents --version          versions of kvevents and ZeroMQ");
}

struct help_options {
    bool man;
};

static const struct option_spec options[] = {
    { .name = "man",
        .kind = OPTION_FLAG,
        .at = offsetof(struct help_options, man),
        .help = "Write the man page kvevents(1) in roff" },
    { .name = NULL },
};

/* Complain about a word that is no subcommand. */
static int
refuse_word(const struct command *command, const char *word)
{
    const struct command *near = command_near(word);

    if (near != NULL)
        return option_complain(command,
            "'%s' is no command; did you mean '%s'?", word, near->name);
    return option_complain(
        command, "'%s' is no command; 'kvevents help' lists all", word);
}

static int
run(const struct command *command, int argc, char **argv)
{
    struct help_options opts = { false };
    const struct command *about;
    int operands;
    int status;

    if (!help_or_options(command, argc, argv, &opts, &operands, &status))
        return status;
    if (operands > 1)
        return option_complain(
            command, "'%s' is one operand too many; give one COMMAND", argv[2]);
    if (opts.man) {
        manpage_write();
    } else if (operands == 0) {
        help_overview();
    } else {
        about = command_find(argv[1]);
        if (about == NULL)
            return refuse_word(command, argv[1]);
        help_command(about);
    }
    return EXIT_FINE;
}

const struct command command_help = {
    .name = "help",
    .operands = "[COMMAND]",
    .summary = "explain a command",
    .operand_help = "Without COMMAND all are listed.",
    .options = options,
#if defined(KVE_HAVE_SERVICE)
    .words = "watch publish index hash serve query sources help completion",
#else
    .words = "watch publish index hash help completion",
#endif
    .run = run,
};
