/*
 * completion.c - kvevents completion: scripts for bash, zsh and fish.
 *
 * Written from the tables: options with their help, and the words of those
 * that take one of a few.
 */
#include "command.h"

#include <stdio.h>
#include <string.h>

/* Text between single quotes of a shell, where ' and, for zsh, what its
 * _arguments reads must be escaped. */
static void
put_quoted(const char *text, const char *escape)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            fputs("'\\'", stdout);
        else if (strchr(escape, *text) != NULL)
            putchar('\\');
        putchar(*text);
    }
}

static void
put_choices(const struct option_spec *spec)
{
    for (const struct option_choice *c = spec->choices; c->name != NULL; c++)
        printf("%s%s", c == spec->choices ? "" : " ", c->name);
}

/* Whether a value is the path of something. */
static bool
takes_file(const struct option_spec *spec)
{
    return strcmp(spec->value, "FILE") == 0 ||
        strcmp(spec->value, "DIR") == 0 || strcmp(spec->value, "PATH") == 0;
}

static void
put_command_names(void)
{
    for (size_t i = 0; commands[i] != NULL; i++)
        printf("%s%s", i > 0 ? " " : "", commands[i]->name);
}

/* ------------------------------------------------------------------ */

static void
bash_command(const struct command *command)
{
    printf("    %s)\n        options='", command->name);
    for (const struct option_spec *spec = command->options;
         spec != NULL && spec->name != NULL; spec++)
        printf("--%s ", spec->name);
    printf("--help'\n        words='%s'\n        case $previous in\n",
        command->words != NULL ? command->words : "");
    for (const struct option_spec *spec = command->options;
         spec != NULL && spec->name != NULL; spec++) {
        if (spec->kind == OPTION_FLAG || spec->optional)
            continue;
        if (spec->letter != 0)
            printf("        -%c | --%s)", spec->letter, spec->name);
        else
            printf("        --%s)", spec->name);
        if (spec->kind == OPTION_CHOICE) {
            fputs(" values='", stdout);
            put_choices(spec);
            fputs("' ;;\n", stdout);
        } else if (takes_file(spec)) {
            fputs(" values=/files ;;\n", stdout);
        } else {
            fputs(" values=/none ;;\n", stdout);
        }
    }
    puts("        esac\n        ;;");
}

static void
write_bash(void)
{
    puts("# bash completion of kvevents\n\n"
         "_kvevents()\n{\n"
         "    local current=${COMP_WORDS[COMP_CWORD]}\n"
         "    local previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
         "    local options='' words='' values=''\n\n"
         "    # --name=value is three words here.\n"
         "    case $current,$previous in\n"
         "    =,*) current='' ;;\n"
         "    *,=) previous=${COMP_WORDS[COMP_CWORD - 2]} ;;\n"
         "    esac\n"
         "    COMPREPLY=()\n"
         "    case ${COMP_WORDS[1]} in");
    for (size_t i = 0; commands[i] != NULL; i++)
        bash_command(commands[i]);
    puts("    esac\n\n"
         "    if [ \"$COMP_CWORD\" -eq 1 ]; then");
    fputs("        options='", stdout);
    put_command_names();
    puts(" --help --version'\n"
         "        words=$options\n"
         "    fi\n"
         "    case $values in\n"
         "    /files) COMPREPLY=($(compgen -f -- \"$current\")) ;;\n"
         "    /none) ;;\n"
         "    ?*) COMPREPLY=($(compgen -W \"$values\" -- \"$current\")) ;;\n"
         "    *)\n"
         "        case $current in\n"
         "        -*) COMPREPLY=($(compgen -W \"$options\" -- \"$current\")) "
         ";;\n"
         "        *)\n"
         "            if [ -n \"$words\" ]; then\n"
         "                COMPREPLY=($(compgen -W \"$words\" -- "
         "\"$current\"))\n"
         "            else\n"
         "                COMPREPLY=($(compgen -f -- \"$current\"))\n"
         "            fi\n"
         "            ;;\n"
         "        esac\n"
         "        ;;\n"
         "    esac\n"
         "}\n\n"
         "complete -o filenames -F _kvevents kvevents");
}

/* ------------------------------------------------------------------ */

/* One argument of _arguments: '(-f --format)'{-f,--format=}'[help]:V:(a b)'. */
static void
zsh_option(const struct option_spec *spec)
{
    const char *takes = spec->kind == OPTION_FLAG ? ""
        : spec->optional                          ? "=-"
                                                  : "=";

    bool again = spec->kind == OPTION_LIST;

    fputs("            ", stdout);
    if (spec->letter != 0 && again)
        printf("'*'{-%c+,--%s%s}'[", spec->letter, spec->name, takes);
    else if (spec->letter != 0)
        printf("'(-%c --%s)'{-%c%s,--%s%s}'[", spec->letter, spec->name,
            spec->letter,
            spec->kind == OPTION_FLAG || spec->optional ? "" : "+", spec->name,
            takes);
    else
        printf("'%s--%s%s[", again ? "*" : "", spec->name, takes);
    put_quoted(spec->help, "[]\\");
    putchar(']');
    if (spec->kind != OPTION_FLAG) {
        printf("%s%s:", spec->optional ? "::" : ":", spec->value);
        if (spec->kind == OPTION_CHOICE) {
            putchar('(');
            put_choices(spec);
            putchar(')');
        } else if (takes_file(spec)) {
            fputs("_files", stdout);
        } else {
            putchar(' ');
        }
    }
    puts("' \\");
}

static void
write_zsh(void)
{
    puts("#compdef kvevents\n\n"
         "_kvevents() {\n"
         "    local -a names\n"
         "    names=(");
    for (size_t i = 0; commands[i] != NULL; i++) {
        printf("        '%s:", commands[i]->name);
        put_quoted(commands[i]->summary, ":\\");
        puts("'");
    }
    puts("    )\n"
         "    if (( CURRENT == 2 )); then\n"
         "        _describe command names\n"
         "        return\n"
         "    fi\n"
         "    local name=$words[2]\n"
         "    shift words\n"
         "    (( CURRENT-- ))\n"
         "    case $name in");
    for (size_t i = 0; commands[i] != NULL; i++) {
        const char *words = commands[i]->words;

        printf("    %s)\n        _arguments \\\n", commands[i]->name);
        for (const struct option_spec *spec = commands[i]->options;
             spec != NULL && spec->name != NULL; spec++)
            zsh_option(spec);
        puts("            '(-h --help)'{-h,--help}'[This text]' \\");
        printf("            '%s:",
            strstr(commands[i]->operands, "...") != NULL ? "*" : "1");
        put_quoted(commands[i]->operands, ":\\[]");
        if (words != NULL)
            printf(":(%s)'\n        ;;\n",
                strstr(words, "://") != NULL ? "" : words);
        else
            puts(":_files'\n        ;;");
    }
    puts("    esac\n"
         "}\n\n"
         "_kvevents \"$@\"");
}

/* ------------------------------------------------------------------ */

/* Text between single quotes of fish, which knows \' and \\ only. */
static void
put_fish(const char *text)
{
    putchar('\'');
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '\'' || *p == '\\')
            putchar('\\');
        putchar(*p);
    }
    putchar('\'');
}

static void
fish_option(const struct command *command, const struct option_spec *spec)
{
    printf("complete -c kvevents -n '__fish_seen_subcommand_from %s' -l %s",
        command->name, spec->name);
    if (spec->letter != 0)
        printf(" -s %c", spec->letter);
    if (spec->kind == OPTION_CHOICE) {
        fputs(" -x -a '", stdout);
        put_choices(spec);
        putchar('\'');
    } else if (spec->kind != OPTION_FLAG && !spec->optional) {
        fputs(takes_file(spec) ? " -r" : " -x", stdout);
    }
    fputs(" -d ", stdout);
    put_fish(spec->help);
    putchar('\n');
}

static void
write_fish(void)
{
    puts("# fish completion of kvevents\n");
    for (size_t i = 0; commands[i] != NULL; i++) {
        printf("complete -c kvevents -f -n __fish_use_subcommand -a %s -d ",
            commands[i]->name);
        put_fish(commands[i]->summary);
        putchar('\n');
    }
    for (size_t i = 0; commands[i] != NULL; i++) {
        if (commands[i]->words != NULL)
            printf("complete -c kvevents -f -n '__fish_seen_subcommand_from "
                   "%s' -a '%s'\n",
                commands[i]->name, commands[i]->words);
        for (const struct option_spec *spec = commands[i]->options;
             spec != NULL && spec->name != NULL; spec++)
            fish_option(commands[i], spec);
    }
    puts("complete -c kvevents -s h -l help -d 'This text'");
}

/* ------------------------------------------------------------------ */

static const struct {
    const char *name;
    void (*write)(void);
} shells[] = {
    { "bash", write_bash },
    { "zsh", write_zsh },
    { "fish", write_fish },
};

static int
run(const struct command *command, int argc, char **argv)
{
    int operands;
    int status;

    if (!help_or_options(command, argc, argv, NULL, &operands, &status))
        return status;
    if (operands != 1)
        return option_complain(
            command, "%d shells given; give one: bash, zsh or fish", operands);
    for (size_t i = 0; i < sizeof(shells) / sizeof(shells[0]); i++) {
        if (strcmp(argv[1], shells[i].name) == 0) {
            shells[i].write();
            return EXIT_FINE;
        }
    }
    return option_complain(
        command, "'%s' is not accepted; give bash, zsh or fish", argv[1]);
}

const struct command command_completion = {
    .name = "completion",
    .operands = "bash|zsh|fish",
    .summary = "write the completion script of a shell",
    .examples = "source <(kvevents completion bash)\n",
    .words = "bash zsh fish",
    .run = run,
};
