/*
 * watch.c - kvevents watch: print publishers' events as they arrive.
 *
 * Everything happens in kve_sub_poll(), for all sources: batches and notices
 * are handed to the printer of the chosen format, which writes into buffers
 * that are flushed when a poll is over. So no line is ever mixed with another
 * one, and threads of the library would only wait for each other to print. The
 * signal handler does one thing, kve_sub_stop().
 */
#include "command.h"
#include "endpoints.h"
#include "interrupt.h"
#include "out.h"
#include "print.h"
#include "stats.h"
#include "targets.h"

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

/* Hints that are given one by one. */
#define MOST_HINTS 8

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
    struct option_list replays;
    struct option_list snapshots;
    const char *topic;
    uint32_t format;
    struct stats_option stats;
    uint64_t count;
    struct from from;
    double timeout;
    uint32_t bind;
    struct kve_int rank;
    uint64_t ranks;
    uint32_t streams;
    uint64_t max_streams;
    double heartbeat_timeout;
    uint32_t on_loss;
    uint64_t show_tokens;
    bool no_tokens;
    bool shorten;
    uint64_t max_tokens;
    uint64_t probe_ms;
    uint64_t hwm;
    uint32_t color;
    struct option_list server_keys;
    const char *curve_keys;
    bool quiet;
    bool verbose;
};

struct watch {
    const struct watch_options *options;
    struct print print;
    struct stats *stats;
    kve_subscriber *sub;
    uint64_t batches; /* printed; heartbeats are none */
    uint64_t events;
    size_t n_sources;
    kve_source_id *sources; /* those of the command line */
    int64_t next_hint;      /* ms; INT64_MAX: it was given */
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

static const struct option_choice stream_kinds[] = {
    { "auto", KVE_STREAMS_DEFAULT },
    { "one", KVE_STREAMS_ONE },
    { "split", KVE_STREAMS_SPLIT },
    { NULL, 0 },
};

static const struct option_choice losses[] = {
    { "default", KVE_ON_LOSS_DEFAULT },
    { "keep", KVE_ON_LOSS_KEEP },
    { "rebuild", KVE_ON_LOSS_REBUILD },
    { NULL, 0 },
};

#define AT(field) .at = offsetof(struct watch_options, field)

static const struct option_spec options[] = {
    { .name = "replay",
        .letter = 'r',
        .kind = OPTION_LIST,
        .value = "ENDPOINT",
        AT(replays),
        .help = "Ask here for batches that the live stream lost. Without it "
                "they stay lost. With several endpoints give it once for each, "
                "in their order, or once as :PORT (that port on the host of "
                "each) or +N (the port of each plus N); none: this one has "
                "no replay" },
    { .name = "snapshot",
        .kind = OPTION_LIST,
        .value = "ENDPOINT",
        AT(snapshots),
        .help = "Ask here for what the cache holds, to start from and after a "
                "loss; replay: at the replay endpoint, which does no harm "
                "where there are none. With several endpoints as --replay" },
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
        .help = "End after this many batches, heartbeats not counted" },
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
        .help = "Follow this data-parallel rank: all ports are moved by N" },
    { .name = "ranks",
        .kind = OPTION_NUMBER,
        .value = "N",
        AT(ranks),
        .min = 1,
        .max = 65536,
        .help = "Follow ranks 0 to N-1 of each endpoint" },
    { .name = "streams",
        .kind = OPTION_CHOICE,
        .value = "HOW",
        .fallback = "auto",
        AT(streams),
        .choices = stream_kinds,
        .help = "split: several publishers come by one endpoint, told apart "
                "by topic and rank, each a source of its own. one: all is one "
                "publisher's. auto: split where we listen" },
    { .name = "max-streams",
        .kind = OPTION_NUMBER,
        .value = "N",
        .fallback = "256",
        AT(max_streams),
        .min = 1,
        .max = 65536,
        .help = "Streams of one endpoint; further ones are dropped, and said" },
    { .name = "heartbeat-timeout",
        .kind = OPTION_SECONDS,
        .value = "SECONDS",
        .fallback = "5",
        AT(heartbeat_timeout),
        .help = "A publisher that sends heartbeats and is silent for so long "
                "is stale; 0: never" },
    { .name = "on-loss",
        .kind = OPTION_CHOICE,
        .value = "WHAT",
        .fallback = "default",
        AT(on_loss),
        .choices = losses,
        .help = "When batches are gone for good: keep going, or rebuild from "
                "what replay still has, in a twin that replaces what was known "
                "once it is complete. The default is rebuild with --replay and "
                "keep without" },
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
        .choices = print_colors,
        .help = "Colours: auto uses them on a terminal, unless NO_COLOR is "
                "set" },
    { .name = "curve-server-key",
        .kind = OPTION_LIST,
        .value = "KEY",
        AT(server_keys),
        .help = "The publisher's public key, 40 characters (Z85); needs "
                "--curve-keys. With several endpoints once for all, or once "
                "for each" },
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
    if (print_is_heartbeat(delivery))
        return watch->print.out->error != 0;
    watch->batches++;
    watch->events += kve_batch_get_info(delivery->batch)->n_events;
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
    if (notice->type == KVE_NOTICE_STATE && notice->state == KVE_STATE_GONE)
        roster_drop(&watch->print.roster, notice->source);
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
check_options(const struct watch_options *opts)
{
    const struct command *command = &command_watch;

    if (opts->from.start == KVE_START_NUMBER && opts->replays.n == 0) {
        option_complain(command,
            "--from: a batch number is read from replay; give --replay "
            "ENDPOINT as well");
        return false;
    }
    if (opts->rank.set && opts->ranks > 0) {
        option_complain(command,
            "--rank and --ranks: one names a rank, the other says how many "
            "there are; give one of them");
        return false;
    }
    if (opts->heartbeat_timeout > 4294967) {
        option_complain(command,
            "--heartbeat-timeout: '%.0f' is not accepted; give seconds from 0 "
            "to 4294967",
            opts->heartbeat_timeout);
        return false;
    }
    if ((opts->server_keys.n == 0) != (opts->curve_keys == NULL)) {
        option_complain(command,
            "--curve-server-key and --curve-keys go together; give both");
        return false;
    }
    return true;
}

static void
fill_source(struct kve_source_opts *source, const struct watch_options *opts,
    const struct target *target)
{
    source->endpoint = target->endpoint;
    source->replay_endpoint = target->replay;
    source->snapshot_endpoint = target->snapshot;
    source->topic = opts->topic;
    source->bind = opts->bind;
    source->on_loss = opts->on_loss;
    source->start = opts->from.start;
    source->first_number = opts->from.number;
    source->rank = target->rank;
    source->recv_hwm = (uint32_t)opts->hwm;
    source->tail_probe_ms =
        opts->probe_ms == 0 ? KVE_NONE : (uint32_t)opts->probe_ms;
    source->heartbeat_timeout_ms = opts->heartbeat_timeout == 0
        ? KVE_NONE
        : (uint32_t)(opts->heartbeat_timeout * 1000.0) + 1;
    source->streams = opts->streams;
    source->max_streams = (uint32_t)opts->max_streams;
    source->curve.server_key = target->server_key;
}

/* Print the statistics: with the data for JSON and at the end, else aside. */
static void
write_stats(struct watch *watch, bool at_end)
{
    struct print *print = &watch->print;

    if (watch->options->format == FORMAT_JSON) {
        stats_write_json(print->out, watch->stats, watch->sub, &print->roster);
        out_flush(print->out);
        return;
    }
    out_flush(print->out);
    if (at_end && watch->options->format == FORMAT_TEXT) {
        stats_write_text(print->out, watch->stats, watch->sub, &print->roster);
        out_flush(print->out);
    } else {
        stats_write_text(print->err, watch->stats, watch->sub, &print->roster);
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
write_more(struct out *out, const kve_subscriber *sub, unsigned counter,
    const char *words)
{
    uint64_t value = kve_sub_counter(sub, 0, counter);

    if (value > 0)
        out_format(out, "; %s: %" PRIu64, words, value);
}

/* How many sources there are, and how many of them are live. A socket that
 * several publishers share has no order of its own and is none. */
static size_t
count_sources(const struct watch *watch, size_t *ret_live)
{
    const struct roster *roster = &watch->print.roster;
    size_t n = 0;
    size_t live = 0;

    for (size_t i = 0; i < roster->n; i++) {
        struct kve_source_info info = { .struct_size = sizeof(info) };
        kve_source_id id = roster->items[i]->id;

        if (roster_has_streams(roster, id))
            continue;
        n++;
        live += kve_sub_source(watch->sub, id, &info) == KVE_OK &&
            info.state == KVE_STATE_LIVE;
    }
    *ret_live = live;
    return n;
}

static void
write_summary(struct watch *watch)
{
    const kve_subscriber *sub = watch->sub;
    struct out *err = watch->print.err;
    size_t live = 0;
    size_t n = count_sources(watch, &live);

    print_remark(&watch->print, "");
    out_format(err,
        "%" PRIu64 " batches, %" PRIu64 " events; gaps: %" PRIu64
        ", batches missed: %" PRIu64 ", recovered: %" PRIu64 ", lost: %" PRIu64
        "; bad: %" PRIu64,
        watch->batches, watch->events,
        kve_sub_counter(sub, 0, KVE_COUNTER_SUB_GAPS),
        kve_sub_counter(sub, 0, KVE_COUNTER_SUB_MISSED),
        kve_sub_counter(sub, 0, KVE_COUNTER_SUB_REPAIRED),
        kve_sub_counter(sub, 0, KVE_COUNTER_SUB_LOST), count_bad(sub));
    write_more(err, sub, KVE_COUNTER_SUB_RESTARTS, "restarts");
    write_more(err, sub, KVE_COUNTER_SUB_SNAPSHOTS_TAKEN, "snapshots");
    if (n > 1)
        out_format(err, "; sources: %zu, live: %zu", n, live);
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

/* What may keep a source from being heard. */
enum silence { SILENCE_NONE, SILENCE_NOBODY, SILENCE_TOPIC };

static enum silence
silence_of(struct watch *watch, kve_source_id source)
{
    struct kve_source_info info = { .struct_size = sizeof(info) };
    struct roster *roster = &watch->print.roster;

    if (kve_sub_source(watch->sub, source, &info) != KVE_OK || info.started ||
        roster_has_streams(roster, source))
        return SILENCE_NONE;
    if (info.connected)
        return *watch->options->topic != '\0' ? SILENCE_TOPIC : SILENCE_NONE;
    /* Why it cannot be reached was said already, if there was more to say. */
    return print_seen(&watch->print, source)->n_troubles > 0 ? SILENCE_NONE
                                                             : SILENCE_NOBODY;
}

static void
hint_source(struct watch *watch, kve_source_id source, enum silence silence)
{
    struct print *print = &watch->print;
    const char *topic = watch->options->topic;

    print_remark(print, print->on_err.odd);
    if (print->roster.several || silence == SILENCE_NOBODY)
        out_format(print->err, "source %s: ", print_seen(print, source)->name);
    if (silence == SILENCE_TOPIC) {
        out_text(
            print->err, "nothing received yet; only topics that begin with ");
        value_text(print->err, NOTATION_PYTHON, topic, strlen(topic));
        out_text(print->err, " are received; without --topic all are");
    } else {
        out_text(print->err, "no publisher there yet; waiting");
    }
    print_remark_end(print);
}

/* A word, once, for who waits and sees nothing: nobody there, or no such
 * topic. Of many sources the first ones are enough. */
static void
hint(struct watch *watch)
{
    size_t said = 0;

    watch->next_hint = INT64_MAX;
    for (size_t i = 0; !watch->options->quiet && i < watch->n_sources; i++) {
        enum silence silence = silence_of(watch, watch->sources[i]);

        if (silence == SILENCE_NONE)
            continue;
        if (++said <= MOST_HINTS)
            hint_source(watch, watch->sources[i], silence);
    }
    if (said > MOST_HINTS) {
        print_remark(&watch->print, watch->print.on_err.odd);
        out_format(watch->print.err,
            "%zu more sources were not heard of yet; --stats says which",
            said - MOST_HINTS);
        print_remark_end(&watch->print);
    }
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

/* Room for every source and stream that the options allow. */
static uint32_t
most_sources(const struct watch_options *opts, const struct targets *targets)
{
    bool split = opts->streams == KVE_STREAMS_SPLIT ||
        (opts->streams == KVE_STREAMS_DEFAULT && opts->bind != KVE_BIND_NO);
    uint64_t most = targets->n * (1 + (split ? opts->max_streams : 0));

    return most > UINT32_MAX ? UINT32_MAX : (uint32_t)most;
}

/* Begin to follow every target; complains when one cannot be. */
static int
add_sources(struct watch *watch, const struct targets *targets,
    const struct key_pair *keys)
{
    struct print *print = &watch->print;
    struct kve_error err;

    print->roster.several = targets->n > 1;
    for (size_t i = 0; i < targets->n; i++) {
        struct kve_source_opts source = KVE_SOURCE_OPTS_INIT;
        struct kve_source_info info = { .struct_size = sizeof(info) };

        fill_source(&source, watch->options, &targets->items[i]);
        if (source.curve.server_key != NULL) {
            source.curve.public_key = keys->public_key;
            source.curve.secret_key = keys->secret_key;
        }
        if (kve_sub_add(watch->sub, &source, &watch->sources[i], &err) !=
            KVE_OK)
            return refuse(&err);
        watch->n_sources++;
        if (kve_sub_source(watch->sub, watch->sources[i], &info) == KVE_OK &&
            (int)strlen(info.endpoint) > print->roster.width)
            print->roster.width = (int)strlen(info.endpoint);
    }
    for (size_t i = 0; i < targets->n; i++)
        print->printer->start(print, watch->sources[i]);
    return EXIT_FINE;
}

static int
watch_targets(const struct watch_options *opts, const struct targets *targets)
{
    struct watch watch = { .options = opts };
    struct kve_context_opts context_opts = KVE_CONTEXT_OPTS_INIT;
    struct kve_sub_opts sub_opts = KVE_SUB_OPTS_INIT;
    struct kve_sub_callbacks callbacks = KVE_SUB_CALLBACKS_INIT;
    struct kve_error err = { .status = KVE_OK };
    struct key_pair keys = { "", "" };
    kve_context *context = NULL;
    int result = EXIT_TROUBLE;

    if (opts->curve_keys != NULL &&
        !key_pair_read(&command_watch, opts->curve_keys, &keys))
        return EXIT_USAGE;
    context_opts.log = on_log;
    context_opts.log_ctx = (void *)opts;
    if (targets->n > 256)
        context_opts.max_sources = (uint32_t)targets->n;
    sub_opts.batch.max_tokens = (size_t)opts->max_tokens;
    sub_opts.max_sources = most_sources(opts, targets);
    callbacks.on_batch = on_batch;
    callbacks.on_notice = on_notice;
    callbacks.ctx = &watch;
    init_print(&watch.print, opts);

    watch.sources = calloc(targets->n, sizeof(*watch.sources));
    if (opts->stats.on)
        watch.stats = calloc(1, sizeof(*watch.stats));
    if (watch.sources == NULL || (opts->stats.on && watch.stats == NULL)) {
        fputs("kvevents watch: out of memory\n", stderr);
        goto out;
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
    result = add_sources(&watch, targets, &keys);
    starting = false;
    if (result == EXIT_FINE)
        result = finish(&watch, follow(&watch));

out:
    stoppable = NULL;
    kve_sub_destroy(watch.sub);
    kve_context_destroy(context);
    roster_release(&watch.print.roster);
    free(watch.sources);
    free(watch.stats);
    return result;
}

static int
run(const struct command *command, int argc, char **argv)
{
    static char usual[] = "tcp://127.0.0.1:5557";
    char *one[] = { usual };
    struct watch_options opts = { .topic = NULL };
    struct target_words words = { .n_endpoints = 1, .endpoints = one };
    struct targets targets = { 0, NULL };
    int operands;
    int status;

    if (!help_or_options(command, argc, argv, &opts, &operands, &status))
        goto out;
    if (operands > 0) {
        words.n_endpoints = (size_t)operands;
        words.endpoints = argv + 1;
    }
    words.replays = &opts.replays;
    words.snapshots = &opts.snapshots;
    words.server_keys = &opts.server_keys;
    words.connects = opts.bind == KVE_BIND_NO;
    words.rank = opts.rank;
    words.ranks = opts.ranks;
    status = EXIT_USAGE;
    if (targets_make(command, &words, &targets) && check_options(&opts))
        status = watch_targets(&opts, &targets);

out:
    targets_release(&targets);
    option_list_release(&opts.replays);
    option_list_release(&opts.snapshots);
    option_list_release(&opts.server_keys);
    return status;
}

static const struct section sections[] = {
    { "Sources",
        "Each ENDPOINT is a source: one publisher, with a state of its own. "
        "With --ranks an endpoint is as many of them, at ports that follow "
        "one another. Where several publishers come by one endpoint, because "
        "they connect to us or through a relay, each topic and rank is a "
        "source of its own, a stream, and called so: kv-events/0. An endpoint "
        "that nobody answers at delays no other one.\n"
        "\n"
        "A source is cold (nothing received yet), recovering (batches are "
        "missing and asked for), live (complete up to its last number), "
        "degraded (something is missing for good, or cannot be checked) or "
        "gone (a stream that was silent for ten minutes). Each change is a "
        "line on standard error, with its reason:\n"
        "\n"
        "  source tcp://10.0.0.1:5557 live -> recovering: gap 12..19\n"
        "  source tcp://10.0.0.1:5557 live -> recovering: restart\n"
        "\n"
        "After a loss, and from a snapshot, a source is built anew in a twin: "
        "batches of the twin are marked, and what was known before stays "
        "until a line says that the twin is complete, or that it is dropped. "
        "Who adds up events counts those of a twin apart, and forgets "
        "everything of a source when a line says so.\n"
        "\n"
        "  kvevents watch tcp://10.0.0.1:5557 tcp://10.0.0.2:5557 -r :5558\n"
        "  kvevents watch tcp://10.0.0.1:5557 --ranks 8 -r +8 --snapshot +16\n"
        "  kvevents watch 'tcp://*:5557' --bind yes\n" },
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
        "Behind the # stands how a batch came when it is not simply the next "
        "live one: replayed, of the twin, or of a snapshot with the number of "
        "the last batch that the snapshot includes. Heartbeats are printed "
        "with --verbose only. With several sources every line begins with the "
        "one it is of.\n"
        "\n"
        "Remarks go to standard error: connections, states, what was "
        "recovered or lost, and messages that could not be read, one line "
        "each. After 10 bad messages in a row one warning says what was seen "
        "and what was expected; the others are counted only." },
    { "JSON output",
        "One object a line. kind is batch, notice or stats. A batch has "
        "source, seq, topic, replayed, snapshot, hidden, ts, rank, events and "
        "faults, publisher_id when it has one, and error when its payload was "
        "broken. source is the live endpoint; stream, of a stream, its topic "
        "and rank. hidden is true for what belongs to a twin; of a snapshot "
        "seq is the last number that it includes. A heartbeat is a batch with "
        "a publisher_id and no events. An event has type, every "
        "field that was on the wire under its name there, unknown (the fields "
        "that are not known) and notes. A notice has type, source, state and "
        "what belongs to its type: first and last, reason, detail. stats has "
        "counts, counters, and for each of sources its state and counters.\n"
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
        "as it came in hex; with snapshot, hidden and source where they say "
        "something. kvevents publish reads these lines." },
    { NULL, NULL },
};

const struct command command_watch = {
    .name = "watch",
    .operands = "[ENDPOINT...]",
    .summary = "print publishers' events as they arrive",
    .operand_help =
        "ENDPOINT is where a publisher's live stream is, "
        "tcp://127.0.0.1:5557 when none is given. Also ipc://PATH. With "
        "several each line begins with the one it is of.",
    .options = options,
    .sections = sections,
    .examples =
        "kvevents watch --topic kv-events --replay tcp://127.0.0.1:5558\n"
        "kvevents watch tcp://10.0.0.7:5557 tcp://10.0.0.8:5557 -r :5558\n"
        "kvevents watch tcp://10.0.0.7:5557 --ranks 8 --replay +8\n"
        "kvevents watch tcp://10.0.0.7:5557 --format json | jq .events\n"
        "kvevents watch --no-tokens --stats --timeout 60\n",
    .words = "tcp:// ipc://",
    .run = run,
};
