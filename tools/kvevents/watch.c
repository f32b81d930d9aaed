/*
 * watch.c - kvevents watch: print a publisher's events as they arrive.
 *
 * Everything happens in kve_sub_poll(): batches and notices are handed to the
 * printer of the chosen format, which writes into buffers that are flushed
 * when a poll is over. The signal handler does one thing, kve_sub_stop().
 */
#include "command.h"
#include "endpoints.h"
#include "interrupt.h"
#include "out.h"
#include "print.h"
#include "stats.h"

#include <kvevents/kvevents.h>

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* After this long without a batch a hint is given. */
#define HINT_MS 5000

enum format { FORMAT_TEXT, FORMAT_JSON, FORMAT_RAW };

/* What --from says. */
struct from {
    uint32_t start; /* enum kve_start */
    uint64_t number;
};

/* --stats and --stats=SECONDS. */
struct stats_option {
    bool on;
    uint64_t every; /* seconds, 0: at the end only */
};

struct watch_options {
    const char *replay;
    const char *topic;
    uint32_t format;
    struct stats_option stats;
    uint64_t count;
    struct from from;
    double timeout;
    uint32_t bind;
    struct kve_int rank;
    uint32_t on_loss;
    uint64_t show_tokens;
    bool no_tokens;
    bool shorten;
    uint64_t max_tokens;
    uint64_t probe_ms;
    uint64_t hwm;
    uint32_t color;
    const char *curve_server_key;
    const char *curve_keys;
    bool quiet;
    bool verbose;
};

struct watch {
    const struct watch_options *options;
    struct print print;
    struct stats *stats;
    kve_subscriber *sub;
    uint64_t batches;
    kve_source_id source;
    int64_t next_hint; /* ms; INT64_MAX: it was given */
};

/* What the signal handler stops. */
static kve_subscriber *volatile stoppable;

/* Looking up a name to listen on can take seconds, and nothing was received
 * yet: a signal ends the command there and then. */
static volatile sig_atomic_t starting;

static void
stop(void)
{
    if (starting)
        _exit(128 + interrupt_signal());
    if (stoppable != NULL)
        kve_sub_stop(stoppable);
}

static bool
parse_from(const char *text, void *into)
{
    struct from *from = into;

    if (strcmp(text, "start") == 0) {
        from->start = KVE_START_DEFAULT;
        return true;
    }
    if (strcmp(text, "live") == 0) {
        from->start = KVE_START_LIVE;
        return true;
    }
    from->start = KVE_START_NUMBER;
    return option_number(text, 0, UINT64_MAX - 1, &from->number);
}

static bool
parse_stats(const char *text, void *into)
{
    struct stats_option *stats = into;

    stats->on = true;
    return text == NULL || option_number(text, 1, 86400, &stats->every);
}

static const struct option_choice formats[] = {
    { "text", FORMAT_TEXT },
    { "json", FORMAT_JSON },
    { "raw", FORMAT_RAW },
    { NULL, 0 },
};

static const struct option_choice binds[] = {
    { "no", KVE_BIND_NO },
    { "yes", KVE_BIND_YES },
    { "guess", KVE_BIND_GUESS },
    { NULL, 0 },
};

static const struct option_choice losses[] = {
    { "default", KVE_ON_LOSS_DEFAULT },
    { "keep", KVE_ON_LOSS_KEEP },
    { "rebuild", KVE_ON_LOSS_REBUILD },
    { NULL, 0 },
};

static const struct option_choice colors[] = {
    { "auto", 0 },
    { "always", 1 },
    { "never", 2 },
    { NULL, 0 },
};

#define AT(field) .at = offsetof(struct watch_options, field)

static const struct option_spec options[] = {
    { .name = "replay",
        .letter = 'r',
        .kind = OPTION_TEXT,
        .value = "ENDPOINT",
        AT(replay),
        .help = "Ask here for batches that the live stream lost. Without it "
                "they stay lost" },
    { .name = "topic",
        .letter = 't',
        .kind = OPTION_TEXT,
        .value = "TOPIC",
        .fallback = "",
        AT(topic),
        .help = "Receive topics that begin with this. The empty one is all" },
    { .name = "format",
        .letter = 'f',
        .kind = OPTION_CHOICE,
        .value = "FORMAT",
        .fallback = "text",
        AT(format),
        .choices = formats,
        .help = "text for people, json for programs (one object a line), raw "
                "for kvevents publish (the messages as they came)" },
    { .name = "stats",
        .letter = 's',
        .optional = true,
        .kind = OPTION_CUSTOM,
        .value = "SECONDS",
        AT(stats),
        .parse = parse_stats,
        .accepted = "a whole number of seconds from 1 to 86400, or no value",
        .help = "At the end, print counts by type, medium, group and rank, "
                "and every counter; with a value, print them this often as "
                "well" },
    { .name = "count",
        .letter = 'n',
        .kind = OPTION_NUMBER,
        .value = "N",
        AT(count),
        .min = 1,
        .max = UINT64_MAX,
        .help = "End after this many batches" },
    { .name = "from",
        .kind = OPTION_CUSTOM,
        .value = "WHERE",
        .fallback = "start",
        AT(from),
        .parse = parse_from,
        .accepted = "start, live, or a batch number",
        .help = "Where to begin: start, with everything the publisher still "
                "has; live, with the next message; or a batch number. All but "
                "live need --replay" },
    { .name = "timeout",
        .kind = OPTION_SECONDS,
        .value = "SECONDS",
        AT(timeout),
        .help = "End after this time; 0: never. With --count, fewer batches "
                "make the "
                "exit status 1" },
    { .name = "bind",
        .kind = OPTION_CHOICE,
        .value = "HOW",
        .fallback = "no",
        AT(bind),
        .choices = binds,
        .help = "yes: listen, publishers connect to ENDPOINT. no: connect. "
                "guess: listen where ENDPOINT has * or :: or is ipc" },
    { .name = "rank",
        .kind = OPTION_CUSTOM,
        .value = "N",
        AT(rank),
        .parse = endpoint_parse_rank,
        .accepted = "a whole number from 0 to 65535",
        .help = "Follow this data-parallel rank: both ports are moved by N" },
    { .name = "on-loss",
        .kind = OPTION_CHOICE,
        .value = "WHAT",
        .fallback = "default",
        AT(on_loss),
        .choices = losses,
        .help = "When batches are gone for good: keep going, or rebuild from "
                "what replay still has. The default is rebuild with --replay "
                "and keep without" },
    { .name = "show-tokens",
        .kind = OPTION_NUMBER,
        .value = "N",
        .fallback = "18446744073709551615",
        AT(show_tokens),
        .max = UINT64_MAX,
        .help = "Print at most N token ids of an event. They are users' text" },
    { .name = "no-tokens",
        .kind = OPTION_FLAG,
        AT(no_tokens),
        .help = "Print how many token ids there are, and none of them; the "
                "same as --show-tokens 0" },
    { .name = "short",
        .kind = OPTION_FLAG,
        AT(shorten),
        .help = "In text, print at most 4 hashes and 4 token ids of a list" },
    { .name = "max-tokens",
        .kind = OPTION_NUMBER,
        .value = "N",
        .fallback = "4194304",
        AT(max_tokens),
        .min = 1,
        .max = 1u << 30,
        .help = "Token ids kept of one batch; the events beyond keep their "
                "hashes" },
    { .name = "probe-ms",
        .kind = OPTION_NUMBER,
        .value = "MS",
        .fallback = "500",
        AT(probe_ms),
        .max = 86400000,
        .help = "With --replay, check this long after the last message that "
                "it was the last one; 0: never" },
    { .name = "hwm",
        .kind = OPTION_NUMBER,
        .value = "N",
        .fallback = "4096",
        AT(hwm),
        .min = 1,
        .max = 1u << 30,
        .help = "Messages that may wait to be read" },
    { .name = "color",
        .kind = OPTION_CHOICE,
        .value = "WHEN",
        .fallback = "auto",
        AT(color),
        .choices = colors,
        .help = "Colours: auto uses them on a terminal, unless NO_COLOR is "
                "set" },
    { .name = "curve-server-key",
        .kind = OPTION_TEXT,
        .value = "KEY",
        AT(curve_server_key),
        .help = "The publisher's public key, 40 characters (Z85); needs "
                "--curve-keys" },
    { .name = "curve-keys",
        .kind = OPTION_TEXT,
        .value = "FILE",
        AT(curve_keys),
        .help = "File with our own public and secret key, one a line (Z85)" },
    { .name = "quiet",
        .letter = 'q',
        .kind = OPTION_FLAG,
        AT(quiet),
        .help = "No remarks about states and no summary; warnings stay" },
    { .name = "verbose",
        .letter = 'v',
        .kind = OPTION_FLAG,
        AT(verbose),
        .help = "More remarks: replay requests and the library's log" },
    { .name = NULL },
};

static int64_t
now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000) + now.tv_nsec / 1000000;
}

static int
on_batch(void *ctx, const struct kve_delivery *delivery)
{
    struct watch *watch = ctx;

    if (watch->stats != NULL)
        stats_add(watch->stats, delivery->batch);
    watch->print.printer->batch(&watch->print, delivery);
    watch->batches++;
    return watch->print.out->error != 0 ||
        watch->batches == watch->options->count;
}

static void
on_notice(void *ctx, const struct kve_notice *notice)
{
    struct watch *watch = ctx;

    /* After the batch that --count asked for nothing more is said. */
    if (watch->options->count > 0 && watch->batches >= watch->options->count)
        return;
    watch->print.printer->notice(&watch->print, notice);
    /* A poll goes on until there is a batch, and that can take long. */
    out_flush(watch->print.out);
}

/* The library's log. May be called from its threads: one write a line. */
static void
on_log(void *ctx, enum kve_log_level level, const char *line)
{
    const struct watch_options *opts = ctx;
    char text[512];
    int len;
    ssize_t ignored;

    if (level > (opts->verbose ? KVE_LOG_DEBUG : KVE_LOG_WARNING))
        return;
    len = snprintf(text, sizeof(text), "kvevents: %s\n", line);
    if (len >= (int)sizeof(text))
        len = (int)sizeof(text) - 1;
    ignored = write(STDERR_FILENO, text, (size_t)len);
    (void)ignored;
}

/* What can be said about the options together; true when all is well. */
static bool
check_options(const struct watch_options *opts, const char *endpoint)
{
    const struct command *command = &command_watch;

    if (!endpoint_check(command, "ENDPOINT", endpoint))
        return false;
    if (opts->replay != NULL &&
        !endpoint_check(command, "--replay", opts->replay))
        return false;
    if (opts->bind == KVE_BIND_NO && strncmp(endpoint, "tcp://*", 7) == 0) {
        option_complain(command,
            "ENDPOINT: '%s' is where a publisher listens; to connect to it "
            "name its host, tcp://127.0.0.1%s; to listen here give --bind yes",
            endpoint, endpoint + 7);
        return false;
    }
    if (opts->replay != NULL && strncmp(opts->replay, "tcp://*", 7) == 0) {
        option_complain(command,
            "--replay: '%s' is where a publisher listens; to connect to it "
            "name its host, tcp://127.0.0.1%s",
            opts->replay, opts->replay + 7);
        return false;
    }
    if (opts->replay != NULL && strcmp(opts->replay, endpoint) == 0) {
        option_complain(command,
            "--replay: '%s' is the live stream; give the endpoint where the "
            "publisher serves replay, or leave the option out",
            opts->replay);
        return false;
    }
    if (opts->from.start == KVE_START_NUMBER && opts->replay == NULL) {
        option_complain(command,
            "--from: a batch number is read from replay; give --replay "
            "ENDPOINT as well");
        return false;
    }
    if ((opts->curve_server_key == NULL) != (opts->curve_keys == NULL)) {
        option_complain(command,
            "--curve-server-key and --curve-keys go together; give both");
        return false;
    }
    return true;
}

static void
fill_source(struct kve_source_opts *source, const struct watch_options *opts,
    const char *endpoint)
{
    source->endpoint = endpoint;
    source->replay_endpoint = opts->replay;
    source->topic = opts->topic;
    source->bind = opts->bind;
    source->on_loss = opts->on_loss;
    source->start = opts->from.start;
    source->first_number = opts->from.number;
    source->rank = opts->rank;
    source->recv_hwm = (uint32_t)opts->hwm;
    source->tail_probe_ms =
        opts->probe_ms == 0 ? KVE_NONE : (uint32_t)opts->probe_ms;
}

/* Print the statistics: with the data for JSON and at the end, else aside. */
static void
write_stats(struct watch *watch, bool at_end)
{
    struct print *print = &watch->print;

    if (watch->options->format == FORMAT_JSON) {
        stats_write_json(print->out, watch->stats, watch->sub);
        out_flush(print->out);
        return;
    }
    out_flush(print->out);
    if (at_end && watch->options->format == FORMAT_TEXT) {
        stats_write_text(print->out, watch->stats, watch->sub);
        out_flush(print->out);
    } else {
        stats_write_text(print->err, watch->stats, watch->sub);
        out_flush(print->err);
    }
}

static uint64_t
count_bad(const kve_subscriber *sub)
{
    static const unsigned bad[] = { KVE_COUNTER_SUB_BAD_ONE_FRAME,
        KVE_COUNTER_SUB_BAD_TWO_FRAMES, KVE_COUNTER_SUB_BAD_MANY_FRAMES,
        KVE_COUNTER_SUB_BAD_NUMBER, KVE_COUNTER_SUB_BAD_EMPTY,
        KVE_COUNTER_SUB_UNREADABLE_BATCHES, KVE_COUNTER_SUB_UNREADABLE_EVENTS,
        KVE_COUNTER_SUB_UNKNOWN_EVENTS };
    uint64_t sum = 0;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        sum += kve_sub_counter(sub, 0, bad[i]);
    return sum;
}

static void
write_summary(struct watch *watch)
{
    const kve_subscriber *sub = watch->sub;
    struct out *err = watch->print.err;

    print_remark(&watch->print, "");
    out_format(err,
        "%" PRIu64 " batches, %" PRIu64 " events; gaps: %" PRIu64
        ", batches missed: %" PRIu64 ", recovered: %" PRIu64 ", lost: %" PRIu64
        "; bad: %" PRIu64,
        watch->batches, kve_sub_counter(sub, 0, KVE_COUNTER_SUB_EVENTS),
        kve_sub_counter(sub, 0, KVE_COUNTER_SUB_GAPS),
        kve_sub_counter(sub, 0, KVE_COUNTER_SUB_MISSED),
        kve_sub_counter(sub, 0, KVE_COUNTER_SUB_REPAIRED),
        kve_sub_counter(sub, 0, KVE_COUNTER_SUB_LOST), count_bad(sub));
    print_remark_end(&watch->print);
}

/* Milliseconds until something is due, for kve_sub_poll(). */
static int
wait_ms(int64_t now, int64_t end, int64_t next_stats, int64_t next_hint)
{
    int64_t first = end < next_stats ? end : next_stats;

    if (next_hint < first)
        first = next_hint;

    if (first == INT64_MAX)
        return -1;
    if (first <= now)
        return 0;
    return first - now > 3600000 ? 3600000 : (int)(first - now);
}

/* A word, once, for who waits and sees nothing: nobody there, or no such
 * topic. */
static void
hint(struct watch *watch)
{
    struct kve_source_info info = { .struct_size = sizeof(info) };
    struct print *print = &watch->print;
    bool connected =
        kve_sub_source(watch->sub, watch->source, &info) == KVE_OK &&
        info.connected;

    watch->next_hint = INT64_MAX;
    if (watch->batches > 0 || watch->options->quiet)
        return;
    if (connected ? *watch->options->topic == '\0' : print->n_troubles > 0)
        return;
    print_remark(print, print->on_err.odd);
    if (connected) {
        out_text(print->err,
            "nothing received yet; only topics that begin "
            "with ");
        value_text(print->err, NOTATION_PYTHON, watch->options->topic,
            strlen(watch->options->topic));
        out_text(print->err, " are received; without --topic all are");
    } else {
        out_format(print->err, "source %s: no publisher there yet; waiting",
            print_source(print, watch->source));
    }
    print_remark_end(print);
}

/* Poll until something ends it. Returns the exit status. */
static int
follow(struct watch *watch)
{
    const struct watch_options *opts = watch->options;
    struct kve_error err = { .status = KVE_OK };
    int64_t every = (int64_t)opts->stats.every * 1000;
    int64_t now = now_ms();
    int64_t end =
        opts->timeout > 0 ? now + (int64_t)(opts->timeout * 1000.0) : INT64_MAX;
    int64_t next_stats = every > 0 ? now + every : INT64_MAX;

    watch->next_hint = now + HINT_MS;

    for (;;) {
        kve_status status = kve_sub_poll(watch->sub,
            wait_ms(now, end, next_stats, watch->next_hint), 0, NULL, &err);

        out_flush(watch->print.out);
        if (interrupt_signal() != 0 || watch->print.out->error != 0)
            return EXIT_FINE;
        if (opts->count > 0 && watch->batches >= opts->count)
            return EXIT_FINE;
        if (status != KVE_OK) {
            fprintf(stderr, "kvevents watch: %s: %s\n", kve_status_str(status),
                err.detail);
            return EXIT_TROUBLE;
        }
        now = now_ms();
        if (now >= next_stats) {
            write_stats(watch, false);
            next_stats = now + every;
        }
        if (now >= watch->next_hint)
            hint(watch);
        if (now >= end)
            return opts->count > 0 ? EXIT_TROUBLE : EXIT_FINE;
    }
}

/* Say what there is to say at the end, and how the command ends. */
static int
finish(struct watch *watch, int result)
{
    struct print *print = &watch->print;
    int signal_number = interrupt_signal();

    if (signal_number != 0) {
        /* The reader of a full pipe gets no more; the summary is aside. */
        if (print->out->error == 0) {
            print->printer->interrupted(print);
            out_flush(print->out);
        }
        result = 128 + signal_number;
    }
    if (watch->stats != NULL && print->out->error == 0)
        write_stats(watch, true);
    if (!watch->options->quiet)
        write_summary(watch);
    if (print->out->error != 0 && print->out->error != EPIPE &&
        signal_number == 0) {
        fprintf(stderr, "kvevents watch: cannot write: %s\n",
            strerror(print->out->error));
        result = EXIT_TROUBLE;
    }
    return result;
}

static void
init_print(struct print *print, const struct watch_options *opts)
{
    static const struct printer *const printers[] = {
        [FORMAT_TEXT] = &printer_text,
        [FORMAT_JSON] = &printer_json,
        [FORMAT_RAW] = &printer_raw,
    };
    static struct out standard_output = { .fd = STDOUT_FILENO };
    static struct out standard_error = { .fd = STDERR_FILENO };

    print->printer = printers[opts->format];
    print->out = &standard_output;
    print->err = &standard_error;
    print->style.notation =
        opts->format == FORMAT_JSON ? NOTATION_JSON : NOTATION_PYTHON;
    print->style.tokens = opts->no_tokens ? 0 : opts->show_tokens;
    print->style.hashes = UINT64_MAX;
    if (opts->shorten && opts->format == FORMAT_TEXT) {
        print->style.hashes = 4;
        if (print->style.tokens > 4)
            print->style.tokens = 4;
    }
    print->topic = opts->topic;
    print->quiet = opts->quiet;
    print->verbose = opts->verbose;
    print_palette(&print->on_out, STDOUT_FILENO, opts->color);
    print_palette(&print->on_err, STDERR_FILENO, opts->color);
}

/* A status of the library as a line and an exit status. */
static int
refuse(const struct kve_error *err)
{
    int result = option_complain(
        &command_watch, "%s: %s", kve_status_str(err->status), err->detail);

    return err->status == KVE_E_INVAL ? result : EXIT_TROUBLE;
}

static int
watch_endpoint(const struct watch_options *opts, const char *endpoint)
{
    struct watch watch = { .options = opts };
    struct kve_context_opts context_opts = KVE_CONTEXT_OPTS_INIT;
    struct kve_sub_opts sub_opts = KVE_SUB_OPTS_INIT;
    struct kve_source_opts source = KVE_SOURCE_OPTS_INIT;
    struct kve_sub_callbacks callbacks = KVE_SUB_CALLBACKS_INIT;
    struct kve_error err = { .status = KVE_OK };
    struct key_pair keys;
    kve_context *context = NULL;
    int result = EXIT_TROUBLE;

    fill_source(&source, opts, endpoint);
    if (opts->curve_keys != NULL) {
        if (!key_pair_read(&command_watch, opts->curve_keys, &keys))
            return EXIT_USAGE;
        source.curve.server_key = opts->curve_server_key;
        source.curve.public_key = keys.public_key;
        source.curve.secret_key = keys.secret_key;
    }
    context_opts.log = on_log;
    context_opts.log_ctx = (void *)opts;
    sub_opts.batch.max_tokens = (size_t)opts->max_tokens;
    callbacks.on_batch = on_batch;
    callbacks.on_notice = on_notice;
    callbacks.ctx = &watch;
    init_print(&watch.print, opts);

    if (opts->stats.on) {
        watch.stats = calloc(1, sizeof(*watch.stats));
        if (watch.stats == NULL) {
            fputs("kvevents watch: out of memory\n", stderr);
            goto out;
        }
    }
    if (kve_context_create(&context_opts, &context, &err) != KVE_OK ||
        kve_sub_create(context, &sub_opts, &callbacks, &watch.sub, &err) !=
            KVE_OK) {
        result = refuse(&err);
        goto out;
    }
    watch.print.sub = watch.sub;
    stoppable = watch.sub;
    if (!interrupt_install(stop)) {
        perror("kvevents watch: signals");
        goto out;
    }
    starting = true;
    if (kve_sub_add(watch.sub, &source, &watch.source, &err) != KVE_OK) {
        result = refuse(&err);
        goto out;
    }
    starting = false;
    watch.print.printer->start(&watch.print);
    result = finish(&watch, follow(&watch));

out:
    stoppable = NULL;
    kve_sub_destroy(watch.sub);
    kve_context_destroy(context);
    free(watch.stats);
    return result;
}

static int
run(const struct command *command, int argc, char **argv)
{
    struct watch_options opts = { .replay = NULL };
    const char *endpoint = "tcp://127.0.0.1:5557";
    int operands;
    int status;

    if (!help_or_options(command, argc, argv, &opts, &operands, &status))
        return status;
    if (operands > 1)
        return option_complain(command,
            "'%s' is one operand too many; give one ENDPOINT", argv[2]);
    if (operands == 1)
        endpoint = argv[1];
    if (!check_options(&opts, endpoint))
        return EXIT_USAGE;
    return watch_endpoint(&opts, endpoint);
}

static const struct section sections[] = {
    { "Text output",
        "The lines of the example subscriber in vLLM's documentation: one for "
        "each batch with its time in Unix seconds, one for each event with "
        "every field that was on the wire, in the notation of Python. Byte "
        "strings are written as h'00ff'. Fields that are not known follow "
        "with their values; slot_N is a place in an array. What is odd about "
        "an event stands in a line below it, after an exclamation mark.\n"
        "\n"
        "  Listening for KV cache events on topic: kv-events\n"
        "  Received event batch at 1795963990.274236:\n"
        "    - BlockStored(block_hashes=[7027578], token_ids=[1, 2], ...)\n"
        "  Missed 2 messages (last: 4, current: 7)\n"
        "  Received event batch at 1795963990.31:  # replayed, number 5\n"
        "\n"
        "Remarks go to standard error: connections, states, what was "
        "recovered or lost, and messages that could not be read, one line "
        "each. After 10 bad messages in a row one warning says what was seen "
        "and what was expected; the others are counted only." },
    { "JSON output",
        "One object a line. kind is batch, notice or stats. A batch has "
        "source, seq, topic, replayed, ts, rank, events and faults, and error "
        "when its payload was broken. An event has type, every field that was "
        "on the wire under its name there, unknown (the fields that are not "
        "known) and notes. A notice has type, source, state and what belongs "
        "to its type: first and last, reason, detail.\n"
        "\n"
        "Hashes are strings: decimal for integers, hex for bytes, with hex: "
        "in front of hashes of 10 bytes or less. Other bytes are {\"$bytes\": "
        "HEX}, extensions {\"$ext\": [TYPE, HEX]}, numbers that JSON has not "
        "{\"$float\": \"nan\"}, values nested deeper than 32 levels "
        "{\"$msgpack\": HEX}. Bytes that are no UTF-8 in a text become "
        "U+FFFD. With --show-tokens a shortened list is followed by "
        "n_token_ids, its length." },
    { "Raw output",
        "One object a line with topic, seq, seq_hex and payload, the message "
        "as it came in hex. kvevents publish reads these lines." },
    { NULL, NULL },
};

const struct command command_watch = {
    .name = "watch",
    .operands = "[ENDPOINT]",
    .summary = "print a publisher's events as they arrive",
    .operand_help =
        "ENDPOINT is where the publisher's live stream is, "
        "tcp://127.0.0.1:5557 when it is not given. Also ipc://PATH.",
    .options = options,
    .sections = sections,
    .examples =
        "kvevents watch --topic kv-events --replay tcp://127.0.0.1:5558\n"
        "kvevents watch tcp://10.0.0.7:5557 --format json | jq .events\n"
        "kvevents watch --no-tokens --stats --timeout 60\n",
    .words = "tcp:// ipc://",
    .run = run,
};
