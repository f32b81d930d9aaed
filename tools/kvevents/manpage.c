/*
 * manpage.c - kvevents(1), written from the tables in man(7) macros.
 */
#include "command.h"

#include <kvevents/version.h>

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define DATE "2026-11-29"

/* One character as roff reads it back. */
static void
put(char c, bool *line_start)
{
    if (*line_start && (c == '.' || c == '\''))
        fputs("\\&", stdout);
    *line_start = false;
    if (c == '\\')
        fputs("\\e", stdout);
    else if (c == '-')
        fputs("\\-", stdout);
    else if (c == '\'')
        fputs("\\(aq", stdout);
    else if (c == '^')
        fputs("\\(ha", stdout);
    else if (c == '~')
        fputs("\\(ti", stdout);
    else
        putchar(c);
}

static void
put_text(const char *text, size_t len)
{
    bool line_start = true;

    for (size_t i = 0; i < len; i++)
        put(text[i], &line_start);
}

/* Sentences begin in lines of their own, as roff likes it, and long ones are
 * broken; the last one gets its full stop. */
static void
put_sentences(const char *text, size_t len)
{
    bool line_start = true;
    char last = '\0';
    size_t column = 0;

    for (size_t i = 0; i < len; i++) {
        if (text[i] == ' ' &&
            (last == '.' || last == '?' ||
                column + strcspn(text + i + 1, " ") > 65)) {
            putchar('\n');
            line_start = true;
            column = 0;
        } else {
            put(text[i], &line_start);
            column++;
        }
        last = text[i];
    }
    if (last != '.' && last != ':')
        putchar('.');
    putchar('\n');
}

/* Text with paragraphs; lines that begin with a blank stand as they are. The
 * first paragraph of a section needs no macro. */
static void
put_paragraphs(const char *text)
{
    bool example = false;
    bool first = true;

    while (*text != '\0') {
        size_t len = strcspn(text, "\n");

        if (text[0] == ' ') {
            if (!example)
                puts(".PP\n.nf\n.RS");
            example = true;
            put_text(text + 2, len - 2);
            putchar('\n');
        } else if (len > 0) {
            if (!first)
                puts(".PP");
            put_sentences(text, len);
        }
        first = false;
        text += len;
        text += *text == '\n';
        if (example && *text != ' ') {
            puts(".RE\n.fi");
            example = false;
        }
    }
}

static void
put_accepted(const struct option_spec *spec)
{
    char accepted[512];

    if (spec->kind == OPTION_FLAG || spec->kind == OPTION_TEXT ||
        spec->kind == OPTION_LIST)
        return;
    option_accepted(spec, accepted, sizeof(accepted));
    fputs("Accepted: ", stdout);
    put_sentences(accepted, strlen(accepted));
}

static void
put_option(const struct option_spec *spec)
{
    puts(".TP");
    fputs(".B \"", stdout);
    if (spec->letter != 0)
        printf("\\-%c, ", spec->letter);
    fputs("\\-\\-", stdout);
    put_text(spec->name, strlen(spec->name));
    if (spec->kind != OPTION_FLAG) {
        printf("%s\\fI%s\\fB%s", spec->optional ? "[=" : " ", spec->value,
            spec->optional ? "]" : "");
    }
    puts("\"");
    put_sentences(spec->help, strlen(spec->help));
    if (help_has_default(spec)) {
        fputs("Default: ", stdout);
        put_sentences(spec->fallback, strlen(spec->fallback));
    }
    put_accepted(spec);
}

static void
put_command(const struct command *command)
{
    printf(".SS kvevents %s %s%s%s\n", command->name,
        command->options != NULL ? "[OPTIONS]" : "",
        command->options != NULL && *command->operands != '\0' ? " " : "",
        command->operands);
    printf("%c", toupper((unsigned char)command->summary[0]));
    put_sentences(command->summary + 1, strlen(command->summary + 1));
    if (command->operand_help != NULL)
        put_sentences(command->operand_help, strlen(command->operand_help));
    if (command->options == NULL)
        return;
    for (const struct option_spec *spec = command->options; spec->name != NULL;
         spec++)
        put_option(spec);
}

/* Keys of a file, as options are. */
static void
put_keys(const struct option_spec *keys)
{
    for (const struct option_spec *spec = keys; spec->name != NULL; spec++) {
        fputs(".TP\n.BI \"", stdout);
        put_text(spec->name, strlen(spec->name));
        printf(" = \" %s\n", spec->value);
        put_sentences(spec->help, strlen(spec->help));
        put_accepted(spec);
    }
}

static void
put_title(const char *title)
{
    fputs(".SH \"", stdout);
    for (; *title != '\0'; title++)
        putchar(toupper((unsigned char)*title));
    puts("\"");
}

static void
put_sections(const struct section *sections)
{
    for (const struct section *s = sections; s != NULL && s->title != NULL;
         s++) {
        put_title(s->title);
        put_paragraphs(s->text);
    }
}

static void
put_examples(void)
{
    puts(".SH EXAMPLES\n.nf");
    for (size_t i = 0; commands[i] != NULL; i++) {
        const char *text = commands[i]->examples;

        while (text != NULL && *text != '\0') {
            size_t len = strcspn(text, "\n");

            put_text(text, len);
            putchar('\n');
            text += len;
            text += *text == '\n';
        }
    }
    puts(".fi");
}

static const struct section ends[] = {
    { "Exit status",
        "0: as asked. 1: something was not as it should be: a bad line of "
        "input, fewer batches than --count within --timeout, an endpoint in "
        "use, hashes that the stated settings do not give, a service that does "
        "not answer or answers with an error, a state that was not written. 2: "
        "an option or "
        "operand is wrong; one line on standard error says which, what was "
        "given and what is accepted. 130 and 143: ended "
        "by Ctrl-C or by SIGTERM; publish that has published all and only "
        "serves replay ends with 0 then, and so does serve with SIGTERM. A "
        "reader of standard output that "
        "goes away ends watch with 0." },
    { "Environment",
        "NO_COLOR: when set and not empty, no colours.\n"
        "\n"
        "KVEVENTS_URL: where query and sources find the service.\n"
        "\n"
        "KVEVENTS_SERVE_NAME: the option --name of serve, in capitals and with "
        "_ for -.\n"
        "\n"
        "NOTIFY_SOCKET, WATCHDOG_USEC: serve tells systemd that it is ready "
        "and alive." },
    { "Security",
        "Token ids are users' text: whoever can connect to a publisher can "
        "read what its users wrote. So kvevents publish listens on this "
        "machine only unless --public is given, and --curve-keys encrypts. "
        "Without --curve-allow any reader that knows the publisher's public "
        "key is let in. kvevents watch --no-tokens prints none. kvevents serve "
        "listens on this machine only; where others are to ask, give it "
        "--token-file and --tls-cert." },
    { NULL, NULL },
};

void
manpage_write(void)
{
    printf(".TH KVEVENTS 1 \"%s\" \"kvevents %s\" \"User Commands\"\n", DATE,
        kve_version());
    puts(".SH NAME\nkvevents \\- watch, publish and index KV\\-cache events of "
         "LLM serving\n.SH SYNOPSIS\n.nf");
    for (size_t i = 0; commands[i] != NULL; i++)
        printf("\\fBkvevents %s\\fR %s%s\n", commands[i]->name,
            commands[i]->options != NULL ? "[OPTIONS] " : "",
            commands[i]->operands);
    puts("\\fBkvevents \\-\\-version\\fR\n.fi\n.SH DESCRIPTION");
    puts("An engine that serves a language model publishes what happens in "
         "its KV cache:\nblocks that were stored, blocks that were removed, "
         "and that all were cleared.\nkvevents prints these events as they "
         "arrive, asks again for those that the\nstream lost, publishes "
         "recorded or written ones, answers from them which\nworker holds how "
         "much of a prompt, and computes the hashes of blocks.\nIt speaks the "
         "protocol of vLLM and of "
         "the engines that took it over.\n"
         "Every option can be written as \\-\\-name value or "
         "\\-\\-name=value;\n\\-\\- ends the options.\n.SH COMMANDS");
    for (size_t i = 0; commands[i] != NULL; i++)
        put_command(commands[i]);
    for (size_t i = 0; commands[i] != NULL; i++) {
        put_sections(commands[i]->sections);
        if (commands[i]->keys != NULL) {
            put_title(commands[i]->keys_title);
            put_keys(commands[i]->keys);
        }
    }
    put_sections(ends);
    put_examples();
    puts(".SH SEE ALSO\n.BR kvevents (3),\n.BR kve_subscriber (3),\n.BR "
         "kve_publisher (3),\n.BR kve_index (3),\n.BR kve_hash (3),\n.BR "
         "kve_ingest (3),\n.BR kve_discover (3),\n.BR kve_service (3)");
}
