/*
 * query.c - kvevents query: ask a service who holds how much of a prompt.
 *
 * The question goes to POST /v1/query as JSON. Of the answer, a line for each
 * tier of each row: what is on this tier alone, what is on it or one before it,
 * and a bar of the latter, where = is what the tiers before it have already.
 */
#include "client.h"
#include "client_table.h"
#include "list.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BAR_WIDTH 20

/* Columns of a row but for the worker. */
#define ROW_WIDTH (BAR_WIDTH + 42)

struct query_options {
    struct client_options client;
    const char *model;
    const char *tenant;
    const char *tokens;
    const char *tokens_file;
    const char *hashes;
    const char *contents;
    uint64_t block_size;
    const char *lora;
    const char *salt;
    struct option_list workers;
    const char *tiers;
    uint64_t limit;
    bool recompute_last;
    bool explain;
    bool json;
    uint32_t color;
};

#define AT(field) .at = offsetof(struct query_options, field)

static const struct option_spec options[] = {
    CLIENT_OPTIONS(struct query_options),
    { .name = "model",
        .letter = 'm',
        .kind = OPTION_TEXT,
        .value = "NAME",
        .fallback = "default",
        AT(model),
        .help = "Model that is asked about; the default is \"default\", as "
                "of kvevents serve" },
    { .name = "tenant",
        .kind = OPTION_TEXT,
        .value = "NAME",
        .fallback = "default",
        AT(tenant),
        .help = "Tenant (routing group); the default is \"default\"" },
    { .name = "tokens",
        .letter = 't',
        .kind = OPTION_TEXT,
        .value = "LIST",
        AT(tokens),
        .help = "Token ids of the prompt" },
    { .name = "tokens-file",
        .kind = OPTION_TEXT,
        .value = "FILE",
        AT(tokens_file),
        .help = "The same from a file; - is standard input" },
    { .name = "hashes",
        .kind = OPTION_TEXT,
        .value = "LIST",
        AT(hashes),
        .help = "The engine's own hashes of a chain of blocks, in order" },
    { .name = "content-hashes",
        .kind = OPTION_TEXT,
        .value = "LIST",
        AT(contents),
        .help = "XXH3 of each block's tokens, as Dynamo's routers have them" },
    { .name = "block-size",
        .kind = OPTION_NUMBER,
        .value = "N",
        .fallback = "0",
        AT(block_size),
        .max = UINT32_MAX,
        .help = "Tokens a block of the hashes; 0: the one size there is" },
    { .name = "lora-name",
        .kind = OPTION_TEXT,
        .value = "NAME",
        AT(lora),
        .help = "The adapter; the default is the base model" },
    { .name = "cache-salt",
        .kind = OPTION_TEXT,
        .value = "TEXT",
        AT(salt),
        .help = "The prompt's salt" },
    { .name = "worker",
        .letter = 'w',
        .kind = OPTION_LIST,
        .value = "NAME",
        AT(workers),
        .help = "Only this worker; may be given again and again" },
    { .name = "tiers",
        .kind = OPTION_TEXT,
        .value = "LIST",
        .fallback = "GPU,CPU,DISK",
        AT(tiers),
        .help = "Tiers to show, in the order in which they are summed up: of "
                "GPU, CPU, DISK, REMOTE and UNKNOWN" },
    { .name = "limit",
        .kind = OPTION_NUMBER,
        .value = "N",
        .fallback = "20",
        AT(limit),
        .max = UINT64_MAX,
        .help = "At most so many rows, the longest ones" },
    { .name = "recompute-last",
        .kind = OPTION_FLAG,
        AT(recompute_last),
        .help = "Engines compute at least the last token: no match has it" },
    { .name = "explain",
        .letter = 'x',
        .kind = OPTION_FLAG,
        AT(explain),
        .help = "Say where and why each match ended; workers that hold nothing "
                "are shown, too" },
    { .name = "json",
        .kind = OPTION_FLAG,
        AT(json),
        .help = "Write the service's answer as it is" },
    { .name = "color",
        .kind = OPTION_CHOICE,
        .value = "WHEN",
        .fallback = "auto",
        AT(color),
        .choices = print_colors,
        .help = "Colours, on a terminal by default" },
    { .name = NULL },
};

/* ------------------------------------------------------------------ */
/* The question                                                        */

/* A text; jansson takes no broken UTF-8: error says which option had it. */
static json_t *
text_of(const struct command *command, const char *option, const char *text)
{
    json_t *value = json_string(text);

    if (value == NULL)
        option_complain(command, "--%s: the text is not UTF-8", option);
    return value;
}

static bool
set_text(const struct command *command, json_t *question, const char *key,
    const char *option, const char *text)
{
    json_t *value;

    if (text == NULL)
        return true;
    value = text_of(command, option, text);
    return value != NULL && json_object_set_new(question, key, value) == 0;
}

static json_t *
tokens_of(const struct token_list *list)
{
    json_t *array = json_array();

    for (size_t i = 0; i < list->n; i++)
        if (json_array_append_new(array, json_integer(list->items[i])) != 0)
            break;
    return array;
}

/* A hash as the service reads it: a text. */
static json_t *
hash_of(const struct kve_hash *hash)
{
    static const char digits[] = "0123456789abcdef";
    char text[24];
    json_t *value;
    char *hex;

    if (hash->bytes == NULL) {
        (void)snprintf(text, sizeof(text), "%" PRIu64, hash->integer);
        return json_string(text);
    }
    hex = malloc(2 * hash->len + 1);
    if (hex == NULL)
        return NULL;
    for (size_t i = 0; i < hash->len; i++) {
        hex[2 * i] = digits[hash->bytes[i] >> 4];
        hex[2 * i + 1] = digits[hash->bytes[i] & 15];
    }
    value = json_stringn(hex, 2 * hash->len);
    free(hex);
    return value;
}

static json_t *
hashes_of(const struct hash_list *list)
{
    json_t *array = json_array();

    for (size_t i = 0; i < list->n; i++)
        if (json_array_append_new(array, hash_of(&list->items[i])) != 0)
            break;
    return array;
}

static json_t *
numbers_of(const struct number_list *list)
{
    json_t *array = json_array();

    for (size_t i = 0; i < list->n; i++) {
        struct kve_hash hash = { NULL, { list->items[i] } };

        if (json_array_append_new(array, hash_of(&hash)) != 0)
            break;
    }
    return array;
}

/* What is asked for, of one of the four options. */
static bool
set_list(const struct command *command, json_t *question,
    const struct query_options *opts)
{
    struct token_list tokens = { NULL, 0, 0 };
    struct number_list numbers = { NULL, 0, 0 };
    struct hash_list hashes = { NULL, 0, 0, NULL, 0, 0 };
    const char *key = NULL;
    json_t *array = NULL;
    size_t n = 0;
    bool right;

    if (opts->tokens != NULL || opts->tokens_file != NULL) {
        key = "tokens";
        right = opts->tokens != NULL
            ? token_list_add(&tokens, command, "--tokens", opts->tokens,
                  strlen(opts->tokens))
            : token_list_read(&tokens, command, opts->tokens_file);
        n = tokens.n;
        array = right ? tokens_of(&tokens) : NULL;
    } else if (opts->contents != NULL) {
        key = "content_hashes";
        right = number_list_add(&numbers, command, "--content-hashes",
            opts->contents, strlen(opts->contents));
        n = numbers.n;
        array = right ? numbers_of(&numbers) : NULL;
    } else {
        key = "hashes";
        right = hash_list_add(
            &hashes, command, "--hashes", opts->hashes, strlen(opts->hashes));
        n = hashes.n;
        array = right ? hashes_of(&hashes) : NULL;
    }
    if (right && n == 0)
        option_complain(
            command, "the list of %s that is asked for is empty", key);
    else if (right && json_array_size(array) != n)
        option_complain(command, "out of memory");
    right = right && n > 0 && json_array_size(array) == n &&
        json_object_set(question, key, array) == 0;
    json_decref(array);
    token_list_release(&tokens);
    number_list_release(&numbers);
    hash_list_release(&hashes);
    return right;
}

static bool
set_tiers(const struct command *command, json_t *question, const char *tiers)
{
    json_t *array = json_array();

    while (*tiers != '\0') {
        size_t len = strcspn(tiers, ", ");

        if (len > 0 &&
            json_array_append_new(array, json_stringn(tiers, len)) != 0) {
            option_complain(command, "--tiers: the text is not UTF-8");
            json_decref(array);
            return false;
        }
        tiers += len;
        tiers += *tiers != '\0';
    }
    return json_object_set_new(question, "tiers", array) == 0;
}

static bool
set_workers(const struct command *command, json_t *question,
    const struct option_list *workers)
{
    json_t *array;

    if (workers->n == 0)
        return true;
    array = json_array();
    for (size_t i = 0; i < workers->n; i++)
        if (json_array_append_new(
                array, text_of(command, "worker", workers->items[i])) != 0) {
            json_decref(array);
            return false;
        }
    return json_object_set_new(question, "workers", array) == 0;
}

/* The body; NULL after a line that says why not. The caller frees it. */
static char *
make_question(const struct command *command, const struct query_options *opts)
{
    json_t *question = json_object();
    char *body = NULL;

    if (set_text(command, question, "model", "model", opts->model) &&
        set_text(command, question, "tenant", "tenant", opts->tenant) &&
        set_text(command, question, "lora_name", "lora-name", opts->lora) &&
        set_text(command, question, "cache_salt", "cache-salt", opts->salt) &&
        set_workers(command, question, &opts->workers) &&
        set_tiers(command, question, opts->tiers) &&
        (opts->block_size == 0 ||
            json_object_set_new(question, "block_size",
                json_integer((json_int_t)opts->block_size)) == 0) &&
        (!opts->recompute_last ||
            json_object_set_new(question, "recompute_last", json_true()) ==
                0) &&
        (!opts->explain ||
            json_object_set_new(question, "explain", json_true()) == 0) &&
        (opts->limit > INT64_MAX ||
            json_object_set_new(question, "limit",
                json_integer((json_int_t)opts->limit)) == 0) &&
        set_list(command, question, opts)) {
        body = json_dumps(question, JSON_COMPACT);
        if (body == NULL)
            option_complain(command, "out of memory");
    }
    json_decref(question);
    return body;
}

/* ------------------------------------------------------------------ */
/* The answer                                                          */

struct table {
    struct out *out;
    struct palette palette;
    uint64_t tokens; /* asked for */
    int worker_width;
};

/* Columns of a part: any of it is one, and only the whole of it is all. */
static uint64_t
bar_of(uint64_t part, uint64_t whole)
{
    uint64_t columns = (part * BAR_WIDTH + whole - 1) / whole;

    if (part >= whole)
        return BAR_WIDTH;
    return columns >= BAR_WIDTH ? BAR_WIDTH - 1 : columns;
}

/* [====####........]: = what tiers before it have, # what this one adds. */
static void
put_bar(const struct table *table, uint64_t before, uint64_t upto)
{
    struct out *out = table->out;
    uint64_t whole = table->tokens > 0 ? table->tokens : 1;
    uint64_t a = bar_of(before, whole);
    uint64_t b = bar_of(upto, whole);

    out_char(out, '[');
    out_text(out, table->palette.faint);
    for (uint64_t i = 0; i < a; i++)
        out_char(out, '=');
    out_text(out, table->palette.off);
    out_text(out, table->palette.good);
    for (uint64_t i = a; i < b; i++)
        out_char(out, '#');
    out_text(out, table->palette.off);
    for (uint64_t i = b; i < BAR_WIDTH; i++)
        out_char(out, '.');
    out_char(out, ']');
}

/* One row: a line for each tier; the first one says who. */
static void
put_row(const struct table *table, const json_t *row)
{
    struct out *out = table->out;
    const char *state = client_text(row, "state");
    const json_t *ended = json_object_get(row, "ended");
    json_t *tiers = json_object_get(row, "tiers");
    uint64_t before = 0;
    bool first = true;
    const char *name;
    json_t *tier;

    json_object_foreach(tiers, name, tier)
    {
        uint64_t alone = client_number(tier, "alone");
        uint64_t upto = client_number(tier, "upto");

        if (!first && alone == 0 && upto == before)
            continue;
        if (first) {
            out_text(out, table->palette.strong);
            client_cell(out, client_text(row, "worker"), table->worker_width);
            out_text(out, table->palette.off);
            out_format(out, " %4" PRIu64 " ", client_number(row, "rank"));
        } else {
            out_format(out, "%*s", table->worker_width + 6, "");
        }
        client_cell(out, name, 7);
        out_format(out, " %7" PRIu64 " %7" PRIu64 " ", alone, upto);
        put_bar(table, before, upto);
        if (first) {
            out_char(out, ' ');
            out_text(out, client_state_colour(&table->palette, state));
            out_plain(out, state, strlen(state));
            out_text(out, table->palette.off);
        }
        out_char(out, '\n');
        before = upto;
        first = false;
    }
    if (json_is_true(json_object_get(row, "moving")))
        out_text(out,
            "  it changed while it was looked at: the smallest "
            "seen\n");
    if (strcmp(state, "live") != 0)
        out_format(
            out, "  %s because of %s\n", state, client_text(row, "reason"));
    if (ended != NULL)
        out_format(out, "  ended at %" PRIu64 ", %s: %s\n",
            client_number(ended, "at"), client_text(ended, "why"),
            client_text(ended, "detail"));
}

static void
put_prompt(struct table *table, const json_t *prompt)
{
    const json_t *rows = json_object_get(prompt, "workers");
    struct out *out = table->out;
    uint64_t total = client_number(prompt, "total");
    size_t shown = json_array_size(rows);
    size_t i;
    json_t *row;

    table->tokens = client_number(prompt, "tokens");
    table->worker_width = client_name_width(rows, ROW_WIDTH);
    if (shown > 0) {
        out_text(out, table->palette.faint);
        client_cell(out, "worker", table->worker_width);
        out_format(out, " rank tier      alone   up to  0 %%%*s100 %% state\n",
            BAR_WIDTH - 8, "");
        out_text(out, table->palette.off);
    }
    json_array_foreach(rows, i, row) put_row(table, row);
    out_format(out,
        "%" PRIu64 " tokens asked for; ranks that hold any: %" PRIu64 "\n",
        table->tokens, total);
    if (shown < total)
        out_format(out, "%" PRIu64 " of them are not shown (--limit)\n",
            total - shown);
}

static int
show(const struct command *command, const struct query_options *opts,
    const struct client_answer *answer)
{
    static struct out out = { .fd = STDOUT_FILENO };
    struct table table = { .out = &out };
    json_t *root;
    json_t *prompts;
    json_t *prompt;
    size_t i;

    if (opts->json) {
        out_bytes(&out, answer->data, answer->len);
        out_char(&out, '\n');
        out_flush(&out);
        return out.error == 0 ? EXIT_FINE : EXIT_TROUBLE;
    }
    root = json_loadb(answer->data, answer->len, 0, NULL);
    prompts = json_object_get(root, "prompts");
    if (!json_is_array(prompts)) {
        json_decref(root);
        option_complain(
            command, "the answer is none of this service's; is --url right?");
        return EXIT_TROUBLE;
    }
    print_palette(&table.palette, STDOUT_FILENO, opts->color);
    json_array_foreach(prompts, i, prompt) put_prompt(&table, prompt);
    json_decref(root);
    out_flush(&out);
    return out.error == 0 ? EXIT_FINE : EXIT_TROUBLE;
}

static int
ask(const struct command *command, const struct query_options *opts)
{
    char *body = make_question(command, opts);
    struct client_answer answer = { .status = 0 };
    struct client client;
    int result;

    if (body == NULL)
        return EXIT_USAGE;
    result = client_init(&client, command, &opts->client);
    if (result == EXIT_FINE)
        result = client_ask(
            &client, "POST", "/v1/query", body, strlen(body), &answer);
    if (result == EXIT_FINE)
        result = show(command, opts, &answer);
    client_answer_release(&answer);
    client_release(&client);
    free(body);
    return result;
}

static int
run(const struct command *command, int argc, char **argv)
{
    struct query_options opts = { .model = NULL };
    int operands;
    int status;
    int questions;

    if (help_or_options(command, argc, argv, &opts, &operands, &status)) {
        questions = (opts.tokens != NULL) + (opts.tokens_file != NULL) +
            (opts.contents != NULL) + (opts.hashes != NULL);
        if (operands > 0)
            status = option_complain(command,
                "'%s' is one operand too many; there are none", argv[1]);
        else if (questions != 1)
            status = option_complain(command,
                "%d questions given; give one of --tokens, --tokens-file, "
                "--hashes and --content-hashes",
                questions);
        else
            status = ask(command, &opts);
    }
    option_list_release(&opts.workers);
    return status;
}

const struct command command_query = {
    .name = "query",
    .operands = "",
    .summary = "ask a service who holds how much of a prompt",
    .options = options,
    .examples = "kvevents query --model m --tokens 1,2,3,4,5,6,7,8\n"
                "kvevents query --model m --tokens-file prompt.txt --explain\n",
    .run = run,
};
