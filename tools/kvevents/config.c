/*
 * config.c - options from a file, the environment and the command line.
 */
#include "config.h"

#include "config_file.h"
#include "logs.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "KVEVENTS_SERVE_"
#define LONGEST_NAME 64

/* ------------------------------------------------------------------ */
/* Environment                                                         */

/* The variable of an option. */
static void
variable_name(const char *option, char name[LONGEST_NAME])
{
    size_t len = sizeof(PREFIX) - 1;

    memcpy(name, PREFIX, len);
    for (; *option != '\0' && len + 1 < LONGEST_NAME; option++)
        name[len++] =
            *option == '-' ? '_' : (char)toupper((unsigned char)*option);
    name[len] = '\0';
}

/* The option of a variable's name behind the prefix, up to =. */
static void
option_name(const char *variable, char name[LONGEST_NAME])
{
    size_t len = 0;

    for (; variable[len] != '=' && variable[len] != '\0' &&
         len + 1 < LONGEST_NAME;
         len++)
        name[len] = variable[len] == '_'
            ? '-'
            : (char)tolower((unsigned char)variable[len]);
    name[len] = '\0';
}

static bool
take_variable(struct config *config, const struct option_spec *spec,
    const char *variable, const char *text)
{
    char accepted[512];

    switch (option_set(spec, text, OPTION_FROM_ENVIRONMENT, &config->options)) {
    case OPTION_OK:
    case OPTION_HELP:
        return true;
    case OPTION_NO_MEMORY:
        (void)snprintf(config->error, sizeof(config->error), "out of memory");
        return false;
    case OPTION_WRONG:
        break;
    }
    option_accepted(spec, accepted, sizeof(accepted));
    (void)snprintf(config->error, sizeof(config->error),
        "%s: '%s' is not accepted; give %s", variable, text, accepted);
    return false;
}

/* A list: its values have blanks between them. */
static bool
take_words(struct config *config, const struct option_spec *spec,
    const char *variable, const char *text)
{
    for (;;) {
        const char *word;
        size_t len;

        text += strspn(text, " \t\n");
        len = strcspn(text, " \t\n");
        if (len == 0)
            return true;
        word = texts_keep(&config->texts, text, len);
        if (word == NULL) {
            (void)snprintf(
                config->error, sizeof(config->error), "out of memory");
            return false;
        }
        if (!take_variable(config, spec, variable, word))
            return false;
        text += len;
    }
}

/* A service that Kubernetes calls kvevents-serve gives every container such a
 * variable, with an endpoint for a port: nobody wrote that. */
static bool
is_of_kubernetes(struct config *config, const struct option_spec *spec,
    const char *variable, const char *text)
{
    if (strcmp(spec->name, "port") != 0 || strncmp(text, "tcp://", 6) != 0)
        return false;
    (void)snprintf(config->warning, sizeof(config->warning),
        "the variable %s=%.64s is of Kubernetes, and passed over", variable,
        text);
    return true;
}

static bool
read_environment(struct config *config)
{
    for (const struct option_spec *spec = serve_options; spec->name != NULL;
         spec++) {
        char variable[LONGEST_NAME];
        const char *text;

        variable_name(spec->name, variable);
        text = getenv(variable);
        if (text == NULL || *text == '\0' ||
            strcmp(spec->name, "print-config") == 0)
            continue;
        if (is_of_kubernetes(config, spec, variable, text))
            continue;
        if (spec->kind == OPTION_LIST
                ? !take_words(config, spec, variable, text)
                : !take_variable(config, spec, variable, text))
            return false;
    }
    return true;
}

/* A variable that begins like ours and is none is likely a mistake; it is no
 * error, because containers get variables that nobody wrote. */
static void
look_for_strangers(struct config *config)
{
    for (char **p = environ; *p != NULL && config->warning[0] == '\0'; p++) {
        char name[LONGEST_NAME];
        const char *near;

        if (strncmp(*p, PREFIX, sizeof(PREFIX) - 1) != 0)
            continue;
        option_name(*p + sizeof(PREFIX) - 1, name);
        if (option_find(serve_options, name, strlen(name)) != NULL)
            continue;
        near = option_near(serve_options, name);
        if (near != NULL)
            variable_name(near, name);
        (void)snprintf(config->warning, sizeof(config->warning),
            "the variable %.*s means nothing here%s%s%s", (int)strcspn(*p, "="),
            *p, near != NULL ? "; did you mean " : "", near != NULL ? name : "",
            near != NULL ? "?" : "");
    }
}

/* ------------------------------------------------------------------ */
/* Sources                                                             */

static bool
add_given(struct config *config, const char *option, const char *text)
{
    struct given_source *given = config_add_source(config);
    char error[400] = "out of memory";

    if (given != NULL) {
        (void)snprintf(
            given->where, sizeof(given->where), "--%s '%s'", option, text);
        if (given_source_read(
                &config->texts, text, &given->source, error, sizeof(error)))
            return true;
    }
    (void)snprintf(
        config->error, sizeof(config->error), "--%s: %s", option, error);
    return false;
}

/* --workers: several, with commas between them. */
static bool
add_workers(struct config *config, const char *text)
{
    while (*text != '\0') {
        size_t len = strcspn(text, ",");
        const char *one = texts_keep(&config->texts, text, len);

        if (one == NULL) {
            (void)snprintf(
                config->error, sizeof(config->error), "out of memory");
            return false;
        }
        if (!add_given(config, "workers", one))
            return false;
        text += len;
        text += *text == ',';
    }
    return true;
}

static bool
make_sources(struct config *config)
{
    const struct serve_options *opts = &config->options;
    char error[400];

    for (size_t i = 0; i < opts->sources.n; i++)
        if (!add_given(config, "source", opts->sources.items[i]))
            return false;
    if (opts->workers != NULL && !add_workers(config, opts->workers))
        return false;
    for (size_t i = 0; i < config->n_given; i++) {
        if (wanted_sources_add(&config->wanted, &config->texts,
                &config->given[i], opts,
                config->has_keys ? &config->keys : NULL, error, sizeof(error)))
            continue;
        (void)snprintf(config->error, sizeof(config->error), "%s: %s",
            config->given[i].where, error);
        return false;
    }
    return true;
}

/* ------------------------------------------------------------------ */

static bool
check(struct config *config)
{
    const struct serve_options *opts = &config->options;
    const char *wrong = NULL;

    if ((opts->tls_cert == NULL) != (opts->tls_key == NULL))
        wrong = "--tls-cert and --tls-key: one of them is missing; give both, "
                "or none";
    else if (opts->curve_server_key != NULL && opts->curve_keys == NULL)
        wrong = "--curve-server-key: our own keys are missing; give "
                "--curve-keys as well";
    if (wrong != NULL)
        (void)snprintf(config->error, sizeof(config->error), "%s", wrong);
    return wrong == NULL;
}

/* The words without those that the parser moves: argv stays as it is. */
static enum option_result
read_words(
    struct config *config, const struct command *command, int argc, char **argv)
{
    char **copy = calloc((size_t)argc + 1, sizeof(*copy));
    enum option_result result;
    int operands = 0;

    if (copy == NULL) {
        (void)snprintf(config->error, sizeof(config->error), "out of memory");
        return OPTION_WRONG;
    }
    memcpy(copy, argv, (size_t)argc * sizeof(*copy));
    result = option_words(command, argc, copy, &config->options, &operands);
    if (result == OPTION_OK && operands > 0) {
        (void)snprintf(config->error, sizeof(config->error),
            "'%s' is one operand too many; there are none", copy[1]);
        result = OPTION_WRONG;
    }
    free(copy);
    return result;
}

/* The file that the words or the environment name; NULL: none. */
static enum option_result
find_file(const struct command *command, int argc, char **argv,
    struct config *config, const char **ret_path)
{
    enum option_result result = read_words(config, command, argc, argv);
    const char *path = config->options.config;

    if (path == NULL) {
        path = getenv(PREFIX "CONFIG");
        if (path != NULL && *path == '\0')
            path = NULL;
    }
    *ret_path = path;
    serve_options_release(&config->options);
    memset(&config->options, 0, sizeof(config->options));
    return result;
}

enum option_result
config_read(
    struct config *config, const struct command *command, int argc, char **argv)
{
    enum option_result result;
    const char *path = NULL;

    memset(config, 0, sizeof(*config));
    result = find_file(command, argc, argv, config, &path);
    if (result != OPTION_OK)
        return result;
    option_defaults(serve_options, &config->options);
    if (path != NULL && !config_file_read(config, path))
        return OPTION_WRONG;
    if (!read_environment(config))
        return OPTION_WRONG;
    look_for_strangers(config);
    result = read_words(config, command, argc, argv);
    if (result != OPTION_OK)
        return result;
    if (!check(config))
        return OPTION_WRONG;
    if (config->options.curve_keys != NULL) {
        config->has_keys = key_pair_load(config->options.curve_keys,
            &config->keys, config->error, sizeof(config->error));
        if (!config->has_keys)
            return OPTION_WRONG;
    }
    return make_sources(config) ? OPTION_OK : OPTION_WRONG;
}

void
config_release(struct config *config)
{
    serve_options_release(&config->options);
    wanted_sources_release(&config->wanted);
    free(config->given);
    texts_release(&config->texts);
    memset(config, 0, sizeof(*config));
}

/* ------------------------------------------------------------------ */
/* Writing                                                             */

/* Words of a comment, in lines of at most 79 columns. */
static void
print_comment(const char *text)
{
    size_t at = 0;

    while (*text != '\0') {
        size_t len = strcspn(text, " ");

        if (at > 0 && at + 1 + len > 79) {
            putchar('\n');
            at = 0;
        }
        if (at == 0)
            at = (size_t)printf("#");
        at += (size_t)printf(" %.*s", (int)len, text);
        text += len;
        text += strspn(text, " ");
    }
    putchar('\n');
}

static void
print_key(const struct option_spec *spec)
{
    char accepted[512];
    char text[1024];

    putchar('\n');
    print_comment(spec->help);
    if (spec->kind != OPTION_TEXT && spec->kind != OPTION_LIST) {
        option_accepted(spec, accepted, sizeof(accepted));
        (void)snprintf(text, sizeof(text), "Accepted: %s.", accepted);
        print_comment(text);
    }
    printf("#%s = %s\n", spec->name,
        spec->kind == OPTION_FLAG    ? "no"
            : spec->fallback != NULL ? spec->fallback
                                     : "");
}

void
config_print(const struct option_spec *table)
{
    puts("# Config file of kvevents serve: every option at its default.\n"
         "# Options on the command line and the variables "
         "KVEVENTS_SERVE_NAME count more.\n"
         "# A list is a key that stands here again and again.\n"
         "\n[serve]");
    for (const struct option_spec *spec = table; spec->name != NULL; spec++)
        if (strcmp(spec->name, "config") != 0 &&
            strcmp(spec->name, "print-config") != 0)
            print_key(spec);
    puts("\n# One section a source:\n#\n#[source w0]");
    for (const struct option_spec *spec = serve_source_keys; spec->name != NULL;
         spec++)
        print_key(spec);
}

/* Text that grows. */
struct json {
    FILE *file;
    char *text;
    size_t len;
};

static void
json_text(FILE *file, const char *text)
{
    char quoted[4096];
    size_t len = 0;

    log_json_text(quoted, sizeof(quoted), &len, text);
    fputs(quoted, file);
}

static void
json_choice(FILE *file, const struct option_spec *spec, uint32_t value)
{
    for (const struct option_choice *c = spec->choices; c->name != NULL; c++)
        if (c->value == value) {
            json_text(file, c->name);
            return;
        }
    fputs("null", file);
}

/* Whoever may see the settings need not know passwords. */
static void
json_peers(FILE *file, const char *text)
{
    char shown[4096];

    log_hide_users(shown, sizeof(shown), text);
    json_text(file, shown);
}

static void
json_value(FILE *file, const struct option_spec *spec, const void *at)
{
    const struct option_list *list = at;
    const char *text;

    switch (spec->kind) {
    case OPTION_FLAG:
        fputs(*(const bool *)at ? "true" : "false", file);
        break;
    case OPTION_TEXT:
        text = *(const char *const *)at;
        if (text != NULL)
            json_text(file, text);
        else
            fputs("null", file);
        break;
    case OPTION_SECONDS:
        fprintf(file, "%.9g", *(const double *)at);
        break;
    case OPTION_CHOICE:
        json_choice(file, spec, *(const uint32_t *)at);
        break;
    case OPTION_LIST:
        fputc('[', file);
        for (size_t i = 0; i < list->n; i++) {
            if (i > 0)
                fputc(',', file);
            if (strcmp(spec->name, "peers") == 0)
                json_peers(file, list->items[i]);
            else
                json_text(file, list->items[i]);
        }
        fputc(']', file);
        break;
    case OPTION_NUMBER:
    case OPTION_CUSTOM: /* of this table a number, too */
        fprintf(file, "%" PRIu64, *(const uint64_t *)at);
        break;
    }
}

char *
config_json(const struct option_spec *table, const struct serve_options *opts)
{
    struct json json = { NULL, NULL, 0 };
    bool first = true;

    json.file = open_memstream(&json.text, &json.len);
    if (json.file == NULL)
        return NULL;
    fputc('{', json.file);
    for (const struct option_spec *spec = table; spec->name != NULL; spec++) {
        if (strcmp(spec->name, "print-config") == 0)
            continue;
        if (!first)
            fputc(',', json.file);
        first = false;
        json_text(json.file, spec->name);
        fputc(':', json.file);
        json_value(json.file, spec, (const char *)opts + spec->at);
    }
    fputc('}', json.file);
    if (fclose(json.file) == 0)
        return json.text;
    free(json.text);
    return NULL;
}

/* Whether a value is the same, as JSON has it. */
static bool
same_value(const struct option_spec *spec, const struct serve_options *a,
    const struct serve_options *b)
{
    const struct option_spec one[2] = { *spec, { .name = NULL } };
    char *p = config_json(one, a);
    char *q = config_json(one, b);
    bool same = p == NULL || q == NULL || strcmp(p, q) == 0;

    free(p);
    free(q);
    return same;
}

void
config_differences(const struct serve_options *a, const struct serve_options *b,
    char *text, size_t cap)
{
    static const char again[] =
        " config source workers model-name routing-group block-size on-loss "
        "counting curve-server-key ";
    size_t len = 0;

    text[0] = '\0';
    for (const struct option_spec *spec = serve_options; spec->name != NULL;
         spec++) {
        char word[LONGEST_NAME + 2];

        (void)snprintf(word, sizeof(word), " %s ", spec->name);
        if (strstr(again, word) != NULL || same_value(spec, a, b) ||
            len + strlen(spec->name) + 2 > cap)
            continue;
        len += (size_t)snprintf(
            text + len, cap - len, "%s%s", len > 0 ? " " : "", spec->name);
    }
}
