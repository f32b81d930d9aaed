/*
 * sources.c - kvevents sources: how the sources of a service are.
 *
 * A table of GET /v1/sources, once or again and again, or one change of a
 * source by its id. With --watch on a terminal the table stays in its place.
 */
#include "client.h"
#include "client_table.h"
#include "interrupt.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct sources_options {
    struct client_options client;
    const char *model;
    const char *tenant;
    const char *worker;
    bool json;
    uint64_t watch;
    uint64_t remove;
    uint64_t pause;
    uint64_t resume;
    uint64_t clear;
    uint32_t color;
};

#define AT(field) .at = offsetof(struct sources_options, field)

static const struct option_spec options[] = {
    CLIENT_OPTIONS(struct sources_options),
    { .name = "model",
        .letter = 'm',
        .kind = OPTION_TEXT,
        .value = "NAME",
        AT(model),
        .help = "Only of this model" },
    { .name = "tenant",
        .kind = OPTION_TEXT,
        .value = "NAME",
        AT(tenant),
        .help = "Only of this tenant (routing group)" },
    { .name = "worker",
        .letter = 'w',
        .kind = OPTION_TEXT,
        .value = "NAME",
        AT(worker),
        .help = "Only of this worker" },
    { .name = "watch",
        .kind = OPTION_NUMBER,
        .value = "SECONDS",
        AT(watch),
        .min = 1,
        .max = 86400,
        .help = "Again and again, until Ctrl-C" },
    { .name = "json",
        .kind = OPTION_FLAG,
        AT(json),
        .help = "Write the service's answer as it is" },
    { .name = "remove",
        .kind = OPTION_NUMBER,
        .value = "ID",
        AT(remove),
        .min = 1,
        .max = UINT64_MAX,
        .help = "Follow this source no more, and forget what it held" },
    { .name = "pause",
        .kind = OPTION_NUMBER,
        .value = "ID",
        AT(pause),
        .min = 1,
        .max = UINT64_MAX,
        .help = "Stop following it; what it held stays" },
    { .name = "resume",
        .kind = OPTION_NUMBER,
        .value = "ID",
        AT(resume),
        .min = 1,
        .max = UINT64_MAX,
        .help = "Follow it again, from where it was" },
    { .name = "clear",
        .kind = OPTION_NUMBER,
        .value = "ID",
        AT(clear),
        .min = 1,
        .max = UINT64_MAX,
        .help = "Forget what it holds; the stream goes on" },
    { .name = "color",
        .kind = OPTION_CHOICE,
        .value = "WHEN",
        .fallback = "auto",
        AT(color),
        .choices = print_colors,
        .help = "Colours, on a terminal by default" },
    { .name = NULL },
};

/* Columns of a row but for the worker. */
#define ROW_WIDTH 68

static struct out out = { .fd = STDOUT_FILENO };

/* ------------------------------------------------------------------ */
/* The table                                                           */

/* "3s", "12m", "5h", "9d": since a moment; four columns for two years. */
static void
put_age(double since)
{
    struct timespec time;
    double age;

    (void)clock_gettime(CLOCK_REALTIME, &time);
    age = (double)time.tv_sec + (double)time.tv_nsec / 1e9 - since;
    if (since <= 0)
        out_text(&out, "   -");
    else if (age < 120)
        out_format(&out, "%3.0fs", age > 0 ? age : 0.0);
    else if (age < 7200)
        out_format(&out, "%3.0fm", age / 60);
    else if (age < 172800)
        out_format(&out, "%3.0fh", age / 3600);
    else
        out_format(&out, "%3.0fd", age / 86400);
}

static uint64_t
blocks_of(const json_t *source)
{
    json_t *tiers = json_object_get(source, "blocks");
    uint64_t n = 0;
    const char *name;
    json_t *tier;

    json_object_foreach(tiers, name, tier) n +=
        (uint64_t)json_integer_value(tier);
    return n;
}

static void
put_source(const struct palette *palette, const json_t *source, int width)
{
    const json_t *counters = json_object_get(source, "counters");
    const json_t *last = json_object_get(source, "last_number");
    const char *state = client_text(source, "state");
    const char *error = client_text(source, "last_error");

    out_format(&out, "%3" PRIu64 " ", client_number(source, "id"));
    client_cell(&out, client_text(source, "worker"), width);
    out_format(&out, " %4" PRIu64 " ", client_number(source, "rank"));
    out_text(&out, client_state_colour(palette, state));
    client_cell(&out, state, 10);
    out_text(&out, palette->off);
    out_char(&out, ' ');
    client_cell(&out, client_text(source, "reason"), 15);
    out_char(&out, ' ');
    put_age(json_number_value(json_object_get(source, "state_since")));
    if (json_is_integer(last))
        out_format(&out, " %7" JSON_INTEGER_FORMAT, json_integer_value(last));
    else
        out_text(&out, "       -");
    out_format(&out, " %7" PRIu64 " %4" PRIu64 "  ", blocks_of(source),
        client_number(counters, "batches_lost"));
    put_age(json_number_value(json_object_get(source, "last_batch_at")));
    out_char(&out, '\n');
    if (*error != '\0') {
        out_text(&out, "    ");
        out_text(&out, palette->faint);
        out_plain(&out, error, strlen(error));
        out_text(&out, palette->off);
        out_char(&out, '\n');
    }
}

static void
put_table(const struct palette *palette, const json_t *sources)
{
    int width = client_name_width(sources, ROW_WIDTH);
    size_t i;
    json_t *source;

    if (json_array_size(sources) == 0) {
        out_text(&out, "no sources\n");
        return;
    }
    out_text(&out, palette->faint);
    out_text(&out, " id ");
    client_cell(&out, "worker", width);
    out_text(&out,
        " rank state      reason         since  number  blocks "
        "lost batch\n");
    out_text(&out, palette->off);
    json_array_foreach(sources, i, source) put_source(palette, source, width);
}

/* ------------------------------------------------------------------ */

/* What a URL takes as it is; everything else is escaped. */
static void
add_filter(struct client *client, char *path, size_t cap, const char *name,
    const char *value)
{
    char *escaped;
    size_t len = strlen(path);

    if (value == NULL)
        return;
    escaped = curl_easy_escape(client->curl, value, (int)strlen(value));
    (void)snprintf(path + len, cap - len, "%c%s=%s",
        strchr(path, '?') == NULL ? '?' : '&', name,
        escaped != NULL ? escaped : "");
    curl_free(escaped);
}

/* Ask once and show. */
static int
show(struct client *client, const struct sources_options *opts)
{
    struct client_answer answer;
    struct palette palette;
    char path[4096] = "/v1/sources";
    json_t *sources;
    json_t *root;
    int result;

    add_filter(client, path, sizeof(path), "model", opts->model);
    add_filter(client, path, sizeof(path), "tenant", opts->tenant);
    add_filter(client, path, sizeof(path), "worker", opts->worker);
    result = client_ask(client, "GET", path, NULL, 0, &answer);
    if (result != EXIT_FINE) {
        client_answer_release(&answer);
        return result;
    }
    print_palette(&palette, STDOUT_FILENO, opts->color);
    root = opts->json ? NULL : json_loadb(answer.data, answer.len, 0, NULL);
    sources = json_object_get(root, "sources");
    if (opts->watch > 0 && !opts->json && isatty(STDOUT_FILENO))
        out_text(&out, "\033[H\033[2J");
    if (opts->json) {
        out_bytes(&out, answer.data, answer.len);
        out_char(&out, '\n');
    } else if (json_is_array(sources)) {
        put_table(&palette, sources);
    } else {
        (void)option_complain(client->command,
            "the answer is none of this service's; is --url right?");
        result = EXIT_TROUBLE;
    }
    out_flush(&out);
    if (out.error != 0)
        result = EXIT_TROUBLE;
    json_decref(root);
    client_answer_release(&answer);
    return result;
}

static int
show_again_and_again(struct client *client, const struct sources_options *opts)
{
    if (!interrupt_install(NULL)) {
        perror("kvevents sources");
        return EXIT_TROUBLE;
    }
    for (;;) {
        int result = show(client, opts);

        if (result != EXIT_FINE)
            return result;
        (void)interrupt_wait(-1, (int)opts->watch * 1000);
        if (interrupt_signal() != 0)
            return 128 + interrupt_signal();
        if (!isatty(STDOUT_FILENO) && !opts->json) {
            out_char(&out, '\n');
        }
    }
}

/* One change of one source. */
static int
change(struct client *client, const char *method, uint64_t id, const char *what,
    const char *done)
{
    struct client_answer answer;
    char path[64];
    int result;

    (void)snprintf(path, sizeof(path), "/v1/sources/%" PRIu64 "%s%s", id,
        *what != '\0' ? "/" : "", what);
    result = client_ask(client, method, path, NULL, 0, &answer);
    if (result == EXIT_FINE) {
        out_format(&out, "source %" PRIu64 " %s\n", id, done);
        out_flush(&out);
    }
    client_answer_release(&answer);
    return result;
}

static int
act(struct client *client, const struct sources_options *opts)
{
    if (opts->remove != 0)
        return change(client, "DELETE", opts->remove, "", "was removed");
    if (opts->pause != 0)
        return change(client, "POST", opts->pause, "pause", "is paused");
    if (opts->resume != 0)
        return change(client, "POST", opts->resume, "resume", "goes on");
    if (opts->clear != 0)
        return change(client, "POST", opts->clear, "clear", "was emptied");
    return opts->watch > 0 ? show_again_and_again(client, opts)
                           : show(client, opts);
}

static int
run(const struct command *command, int argc, char **argv)
{
    struct sources_options opts = { .model = NULL };
    struct client client;
    int operands;
    int status;

    if (!help_or_options(command, argc, argv, &opts, &operands, &status))
        return status;
    if (operands > 0)
        return option_complain(
            command, "'%s' is one operand too many; there are none", argv[1]);
    if ((opts.remove != 0) + (opts.pause != 0) + (opts.resume != 0) +
            (opts.clear != 0) + (opts.watch != 0) >
        1)
        return option_complain(command,
            "--remove, --pause, --resume, --clear and --watch: give one of "
            "them");
    status = client_init(&client, command, &opts.client);
    if (status == EXIT_FINE)
        status = act(&client, &opts);
    client_release(&client);
    return status;
}

const struct command command_sources = {
    .name = "sources",
    .operands = "",
    .summary = "show how the sources of a service are, or change one",
    .options = options,
    .examples = "kvevents sources\n"
                "kvevents sources --url http://10.0.0.3:8090 --watch 2\n"
                "kvevents sources --pause 17\n",
    .run = run,
};
