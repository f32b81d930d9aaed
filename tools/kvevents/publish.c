/*
 * publish.c - kvevents publish: publish the lines of a file.
 *
 * Lines are read, made into payloads and queued in one thread; the library's
 * own thread sends them and serves replay. So that a fast reader of files
 * does not fill the queue, it waits for the sender every FLUSH_EVERY batches.
 */
#include "command.h"
#include "endpoints.h"
#include "input.h"
#include "interrupt.h"
#include "jsonin.h"
#include "stamp.h"

#include <kvevents/kvevents.h>

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FLUSH_EVERY 1000
#define FLUSH_BYTES ((size_t)16 << 20)
#define MOST_RANGES 256

/* --drop 3,7-9 */
struct drops {
    size_t n;
    struct {
        uint64_t first;
        uint64_t last;
    } ranges[MOST_RANGES];
};

/* --heartbeat 0 is another thing than no --heartbeat. */
struct heartbeat {
    bool given;
    double seconds;
};

struct publisher_id {
    bool given;
    uint8_t bytes[16];
};

struct publish_options {
    const char *endpoint;
    const char *replay;
    const char *snapshot;
    bool snapshots;
    uint64_t snapshot_bytes;
    uint64_t snapshot_blocks;
    uint32_t clear_scope;
    struct heartbeat heartbeat;
    struct publisher_id id;
    const char *topic;
    uint32_t bind;
    struct kve_int rank;
    double rate;
    bool loop;
    struct drops drops;
    uint32_t layout;
    bool old_replay;
    double delay;
    bool exit;
    double linger;
    uint64_t first_number;
    uint64_t buffer_steps;
    uint64_t hwm;
    bool is_public;
    bool strict;
    bool quiet;
    const char *curve_keys;
    const char *curve_allow;
};

struct publish {
    const struct publish_options *options;
    struct input input;
    struct jsonin *in;
    struct kve_buffer encoded;
    struct stamp stamp;
    kve_publisher *pub;
    uint64_t batches;
    uint64_t withheld;
    uint64_t other_topics;
    uint64_t unflushed;
    size_t unflushed_bytes;
    double next_send;
};

static bool
parse_range(
    const char *text, size_t len, uint64_t *ret_first, uint64_t *ret_last)
{
    char copy[48];
    char *dash;

    if (len == 0 || len >= sizeof(copy))
        return false;
    memcpy(copy, text, len);
    copy[len] = '\0';
    dash = strchr(copy, '-');
    if (dash != NULL)
        *dash = '\0';
    if (!option_number(copy, 0, UINT64_MAX - 1, ret_first))
        return false;
    *ret_last = *ret_first;
    return dash == NULL ||
        option_number(dash + 1, *ret_first, UINT64_MAX - 1, ret_last);
}

static bool
parse_drops(const char *text, void *into)
{
    struct drops *drops = into;

    for (;;) {
        size_t len = strcspn(text, ",");

        if (drops->n == MOST_RANGES ||
            !parse_range(text, len, &drops->ranges[drops->n].first,
                &drops->ranges[drops->n].last))
            return false;
        drops->n++;
        if (text[len] == '\0')
            return true;
        text += len + 1;
    }
}

static bool
parse_rate(const char *text, void *into)
{
    char *end;
    double rate = strtod(text, &end);

    if (strspn(text, "0123456789.") != strlen(text) || end == text ||
        *end != '\0' || !isfinite(rate) || rate > 1e9)
        return false;
    *(double *)into = rate;
    return true;
}

static bool
parse_heartbeat(const char *text, void *into)
{
    struct heartbeat *heartbeat = into;
    double seconds;

    if (!parse_rate(text, &seconds) || seconds > 4294967 ||
        (seconds > 0 && seconds < 0.001))
        return false;
    heartbeat->given = true;
    heartbeat->seconds = seconds;
    return true;
}

static bool
parse_id(const char *text, void *into)
{
    static const char digits[] = "0123456789abcdef";
    struct publisher_id *id = into;

    if (strlen(text) != 32)
        return false;
    for (size_t i = 0; i < 32; i++) {
        const char *digit = strchr(digits, tolower((unsigned char)text[i]));

        if (digit == NULL)
            return false;
        id->bytes[i / 2] = (uint8_t)(id->bytes[i / 2] << 4 | (digit - digits));
    }
    id->given = true;
    return true;
}

static const struct option_choice clear_scopes[] = {
    { "default", KVE_CLEAR_DEFAULT },
    { "gpu", KVE_CLEAR_GPU },
    { "all", KVE_CLEAR_ALL },
    { NULL, 0 },
};

static const struct option_choice binds[] = {
    { "yes", KVE_BIND_YES },
    { "no", KVE_BIND_NO },
    { "guess", KVE_BIND_GUESS },
    { NULL, 0 },
};

static const struct option_choice layouts[] = {
    { "map", KVE_LAYOUT_MAP },
    { "map-short", KVE_LAYOUT_MAP_SHORT },
    { "array", KVE_LAYOUT_ARRAY },
    { "first", KVE_LAYOUT_FIRST },
    { NULL, 0 },
};

#define AT(field) .at = offsetof(struct publish_options, field)

static const struct option_spec options[] = {
    { .name = "endpoint",
        .letter = 'e',
        .kind = OPTION_TEXT,
        .value = "ENDPOINT",
        .fallback = "tcp://127.0.0.1:5557",
        AT(endpoint),
        .help = "Publish here. Port 0 takes a free one" },
    { .name = "replay-endpoint",
        .letter = 'r',
        .kind = OPTION_TEXT,
        .value = "ENDPOINT",
        .fallback = "tcp://127.0.0.1:5558",
        AT(replay),
        .help = "Serve replay here; none: no replay" },
    { .name = "snapshot-endpoint",
        .kind = OPTION_TEXT,
        .value = "ENDPOINT",
        AT(snapshot),
        .help = "Serve snapshots here and on the replay endpoint, for readers "
                "that come late: what the cache holds. Batches get an id, and "
                "a heartbeat is sent when there is nothing else" },
    { .name = "snapshots",
        .kind = OPTION_FLAG,
        AT(snapshots),
        .help = "The same on the replay endpoint only" },
    { .name = "snapshot-max-bytes",
        .kind = OPTION_NUMBER,
        .value = "N",
        .fallback = "268435456",
        AT(snapshot_bytes),
        .min = 1,
        .max = 1ull << 40,
        .help = "Largest snapshot; of a larger one readers hear that there is "
                "none, until it fits again" },
    { .name = "snapshot-max-blocks",
        .kind = OPTION_NUMBER,
        .value = "N",
        .fallback = "4194304",
        AT(snapshot_blocks),
        .min = 1,
        .max = 1u << 30,
        .help = "Blocks that are kept for snapshots; beyond it the same" },
    { .name = "clear-scope",
        .kind = OPTION_CHOICE,
        .value = "WHAT",
        .fallback = "default",
        AT(clear_scope),
        .choices = clear_scopes,
        .help = "What AllBlocksCleared empties in a snapshot: gpu (the "
                "default: so do readers of a publisher with an id), or all" },
    { .name = "heartbeat",
        .kind = OPTION_CUSTOM,
        .value = "SECONDS",
        AT(heartbeat),
        .parse = parse_heartbeat,
        .accepted = "seconds from 0.001 to 4294967, or 0 for none",
        .help = "Send an empty batch when nothing was published for so long; "
                "0: never. The default is 1 with snapshots, else never. Needs "
                "an id" },
    { .name = "publisher-id",
        .kind = OPTION_CUSTOM,
        .value = "HEX",
        AT(id),
        .parse = parse_id,
        .accepted = "32 hex digits",
        .help = "Write this id into every batch, so that a restart is seen "
                "for sure. The default is a random one with snapshots, else "
                "none" },
    { .name = "topic",
        .letter = 't',
        .kind = OPTION_TEXT,
        .value = "TOPIC",
        AT(topic),
        .help = "Topic of all messages. The default is the topic of the "
                "file's first recorded message, else the empty one" },
    { .name = "bind",
        .kind = OPTION_CHOICE,
        .value = "HOW",
        .fallback = "yes",
        AT(bind),
        .choices = binds,
        .help = "yes: listen. no: connect to a reader that listens. guess: "
                "listen where the endpoint has * or :: or is ipc" },
    { .name = "rank",
        .kind = OPTION_CUSTOM,
        .value = "N",
        AT(rank),
        .parse = endpoint_parse_rank,
        .accepted = "a whole number from 0 to 65535",
        .help = "Data-parallel rank: moves all ports by N and stands in "
                "batches that name none" },
    { .name = "rate",
        .kind = OPTION_CUSTOM,
        .value = "N",
        .fallback = "0",
        AT(rate),
        .parse = parse_rate,
        .accepted = "a number of batches a second from 0 to 1000000000, like "
                    "2.5; 0 is as fast as it goes",
        .help = "Batches a second; 0: as fast as it goes" },
    { .name = "loop",
        .kind = OPTION_FLAG,
        AT(loop),
        .help = "Begin again at the end of the file, until interrupted" },
    { .name = "drop",
        .kind = OPTION_CUSTOM,
        .value = "LIST",
        AT(drops),
        .parse = parse_drops,
        .accepted = "numbers and ranges of batches, like 3,7-9 (256 at most)",
        .help = "Do not send these batches live, only in replays, so that "
                "readers see gaps: numbers and ranges, 3,7-9" },
    { .name = "layout",
        .kind = OPTION_CHOICE,
        .value = "LAYOUT",
        .fallback = "map",
        AT(layout),
        .choices = layouts,
        .help = "How events are written: map as vLLM 0.33 does, map-short as "
                "0.24 to 0.32, array as 0.22 and 0.23, first as 0.10. "
                "Recorded messages stay as they are" },
    { .name = "old-replay",
        .kind = OPTION_FLAG,
        AT(old_replay),
        .help = "Answer replay requests as vLLM up to 0.25 did, without the "
                "topic" },
    { .name = "delay",
        .kind = OPTION_SECONDS,
        .value = "SECONDS",
        .fallback = "0",
        AT(delay),
        .help = "Wait before the first batch, so that readers can connect" },
    { .name = "exit",
        .letter = 'x',
        .kind = OPTION_FLAG,
        AT(exit),
        .help = "End after the last line. The default is to serve replay "
                "until interrupted" },
    { .name = "linger",
        .kind = OPTION_SECONDS,
        .value = "SECONDS",
        .fallback = "1",
        AT(linger),
        .help = "At the end, give readers this long to take what was sent" },
    { .name = "first-number",
        .kind = OPTION_NUMBER,
        .value = "N",
        .fallback = "0",
        AT(first_number),
        .max = UINT64_MAX - 1,
        .help = "Number of the first batch" },
    { .name = "buffer-steps",
        .kind = OPTION_NUMBER,
        .value = "N",
        .fallback = "10000",
        AT(buffer_steps),
        .min = 1,
        .max = 100000000,
        .help = "Batches kept for replay" },
    { .name = "hwm",
        .kind = OPTION_NUMBER,
        .value = "N",
        .fallback = "100000",
        AT(hwm),
        .min = 1,
        .max = 1u << 30,
        .help = "Messages a reader may lag behind before it loses some" },
    { .name = "public",
        .kind = OPTION_FLAG,
        AT(is_public),
        .help = "Allow endpoints that other machines reach. Token ids are "
                "users' text: everybody who can connect can read it" },
    { .name = "strict",
        .kind = OPTION_FLAG,
        AT(strict),
        .help = "Stop at the first bad line; the default is to pass over "
                "it" },
    { .name = "quiet",
        .letter = 'q',
        .kind = OPTION_FLAG,
        AT(quiet),
        .help = "Say nothing but what is wrong" },
    { .name = "curve-keys",
        .kind = OPTION_TEXT,
        .value = "FILE",
        AT(curve_keys),
        .help = "Encrypt; file with our public and secret key, one a line "
                "(Z85)" },
    { .name = "curve-allow",
        .kind = OPTION_TEXT,
        .value = "FILE",
        AT(curve_allow),
        .help = "Let in only readers whose public key is in this file, one a "
                "line" },
    { .name = NULL },
};

static double
now(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Sleep until then; false when a signal ended it. */
static bool
sleep_until(double then)
{
    for (;;) {
        double left = then - now();

        if (interrupt_signal() != 0)
            return false;
        if (left <= 0)
            return true;
        if (left < 0.001) {
            struct timespec time = { .tv_nsec = (long)(left * 1e9) };

            (void)nanosleep(&time, NULL);
        } else {
            (void)interrupt_wait(
                -1, left > 1000 ? 1000000 : (int)(left * 1000));
        }
    }
}

static bool
is_dropped(const struct publish *p, uint64_t number)
{
    const struct drops *drops = &p->options->drops;

    for (size_t i = 0; i < drops->n; i++)
        if (number >= drops->ranges[i].first && number <= drops->ranges[i].last)
            return true;
    return false;
}

static bool
is_other_topic(const struct publish *p, struct kve_str topic)
{
    const char *ours = p->options->topic;

    return topic.data != NULL &&
        (strlen(ours) != topic.len || memcmp(ours, topic.data, topic.len) != 0);
}

/* Wait until the sender has what was queued, or a signal came. */
static void
flush(struct publish *p)
{
    while (interrupt_signal() == 0 &&
        kve_pub_flush(p->pub, 100, NULL) == KVE_E_TIMEOUT)
        continue;
    p->unflushed = 0;
    p->unflushed_bytes = 0;
}

/* Give a payload its number; live, or withheld. */
static bool
send_payload(struct publish *p, struct kve_span payload)
{
    bool drop = is_dropped(p, kve_pub_next_number(p->pub));
    struct kve_error err = { .status = KVE_OK };
    kve_status status = drop ? kve_pub_withhold_payload(p->pub, payload.data,
                                   payload.len, NULL, &err)
                             : kve_pub_publish_payload(p->pub, payload.data,
                                   payload.len, NULL, &err);

    if (status != KVE_OK) {
        input_clear_progress(&p->input);
        fprintf(stderr, "kvevents publish: %s: %s\n", kve_status_str(status),
            err.detail);
        return false;
    }
    p->batches++;
    p->withheld += drop;
    p->unflushed++;
    p->unflushed_bytes += payload.len;
    if (p->unflushed >= FLUSH_EVERY || p->unflushed_bytes >= FLUSH_BYTES)
        flush(p);
    return true;
}

/* Keep the rate: false when a signal came while waiting. */
static bool
wait_turn(struct publish *p)
{
    double time = now();

    if (p->options->rate <= 0)
        return true;
    /* After a pause of the input nothing is caught up on. */
    if (p->next_send < time - 1)
        p->next_send = time;
    if (!sleep_until(p->next_send))
        return false;
    p->next_send += 1 / p->options->rate;
    return true;
}

/* Encode a batch, with our id if we have one, and with the time of now and our
 * rank where it has none. */
static bool
encode(
    struct publish *p, struct kve_batch_view *view, struct jsonin_error *error)
{
    struct kve_error err;

    if (kve_pub_publisher_id(p->pub) != NULL)
        view->publisher_id = kve_pub_publisher_id(p->pub);
    if (!view->rank.set)
        view->rank = p->options->rank;
    if (view->ts == 0) {
        struct timespec time;

        (void)clock_gettime(CLOCK_REALTIME, &time);
        view->ts = (double)time.tv_sec + (double)time.tv_nsec / 1e9;
    }
    p->encoded.len = 0;
    if (kve_batch_encode(view, (enum kve_layout)p->options->layout, &p->encoded,
            &err) == KVE_OK)
        return true;
    (void)snprintf(error->text, sizeof(error->text), "%s", err.detail);
    return false;
}

/* One line of input. false: stop. */
static bool
publish_line(struct publish *p, const char *line, size_t len)
{
    const uint8_t *id = kve_pub_publisher_id(p->pub);
    struct jsonin_error error = { .column = 0 };
    struct jsonin_item item;
    struct kve_span payload;
    size_t blank = 0;

    while (blank < len && memchr(" \t\r", line[blank], 3) != NULL)
        blank++;
    if (blank == len)
        return true;
    if (!jsonin_line(p->in, line, len, &item, &error) ||
        (item.kind == JSONIN_BATCH && !encode(p, &item.view, &error))) {
        input_report(&p->input, &error);
        return !p->options->strict;
    }
    if (item.kind == JSONIN_NOTHING)
        return true;
    payload = item.payload;
    if (item.kind == JSONIN_BATCH) {
        payload.data = p->encoded.data;
        payload.len = p->encoded.len;
    } else if (is_other_topic(p, item.topic) && p->other_topics++ == 0) {
        input_clear_progress(&p->input);
        fprintf(stderr, "%s:%" PRIu64 ": recorded with topic '", p->input.name,
            p->input.lines.number);
        input_write_plain(item.topic.data, item.topic.len);
        fputs("', published with '", stderr);
        input_write_plain(p->options->topic, strlen(p->options->topic));
        fputs("' (said once)\n", stderr);
    }
    if (item.kind == JSONIN_PAYLOAD && id != NULL)
        payload = stamp_payload(&p->stamp, payload, id);
    return wait_turn(p) && send_payload(p, payload);
}

/* All lines, once or for ever. false: it ended early. */
static bool
publish_lines(struct publish *p)
{
    const char *line;
    size_t len;

    for (;;) {
        input_progress(&p->input, p->batches, "batches");
        switch (lines_next(&p->input.lines, &line, &len)) {
        case LINES_LINE:
            if (!publish_line(p, line, len))
                return false;
            break;
        case LINES_TOO_LONG:
            input_report(&p->input, &input_too_long);
            if (p->options->strict)
                return false;
            break;
        case LINES_END:
            if (!p->options->loop || p->batches == 0)
                return true;
            if (!lines_rewind(&p->input.lines))
                return false;
            break;
        case LINES_INTERRUPTED:
            return false;
        case LINES_ERROR:
            input_failed(&p->input);
            return false;
        }
    }
}

/* The topic of the first recorded message of a file, or NULL; the caller
 * frees it. The file is at its beginning again. */
static char *
find_topic(struct publish *p)
{
    struct jsonin_item item;
    struct jsonin_error error;
    const char *line;
    size_t len;
    char *topic = NULL;

    if (lines_next(&p->input.lines, &line, &len) == LINES_LINE &&
        jsonin_line(p->in, line, len, &item, &error) &&
        item.kind == JSONIN_PAYLOAD && item.topic.data != NULL &&
        memchr(item.topic.data, '\0', item.topic.len) == NULL)
        topic = strndup(item.topic.data, item.topic.len);
    (void)lines_rewind(&p->input.lines);
    p->input.lines.bytes = 0;
    return topic;
}

static bool
check_public(
    const struct publish_options *opts, const char *name, const char *endpoint)
{
    if (opts->is_public || !endpoint_is_public(endpoint))
        return true;
    option_complain(&command_publish,
        "%s: '%s' can be reached from other machines, and token ids are "
        "users' text; give --public if that is meant, or tcp://127.0.0.1:%s",
        name, endpoint,
        strrchr(endpoint, ':') != NULL ? strrchr(endpoint, ':') + 1 : "5557");
    return false;
}

/* What --snapshots and --heartbeat need. */
static bool
check_snapshots(const struct publish_options *opts)
{
    bool snapshots = opts->snapshots || opts->snapshot != NULL;

    if (opts->snapshots && opts->snapshot == NULL && opts->replay == NULL) {
        option_complain(&command_publish,
            "--snapshots: they are served on the replay endpoint, and there "
            "is none; give --replay-endpoint, or --snapshot-endpoint");
        return false;
    }
    if (opts->heartbeat.seconds > 0 && !snapshots && !opts->id.given) {
        option_complain(&command_publish,
            "--heartbeat: a heartbeat is known by the publisher's id, and "
            "there is none; give --publisher-id or --snapshots");
        return false;
    }
    return true;
}

static bool
check_options(const struct publish_options *opts, const char *input)
{
    const struct command *command = &command_publish;
    bool listens = opts->bind == KVE_BIND_YES ||
        (opts->bind == KVE_BIND_GUESS && endpoint_is_wildcard(opts->endpoint));

    if (!endpoint_check(command, "--endpoint", opts->endpoint))
        return false;
    if (listens && !check_public(opts, "--endpoint", opts->endpoint))
        return false;
    if (opts->replay != NULL &&
        (!endpoint_check(command, "--replay-endpoint", opts->replay) ||
            !check_public(opts, "--replay-endpoint", opts->replay)))
        return false;
    if (opts->snapshot != NULL &&
        (!endpoint_check(command, "--snapshot-endpoint", opts->snapshot) ||
            !check_public(opts, "--snapshot-endpoint", opts->snapshot)))
        return false;
    if (!check_snapshots(opts))
        return false;
    if (opts->loop && strcmp(input, "-") == 0) {
        option_complain(command,
            "--loop: standard input has no beginning to return to; give a "
            "file");
        return false;
    }
    if (opts->curve_allow != NULL && opts->curve_keys == NULL) {
        option_complain(command,
            "--curve-allow: nothing is encrypted; give --curve-keys FILE as "
            "well");
        return false;
    }
    return true;
}

static void
say_start(const struct publish *p)
{
    const char *replay = kve_pub_replay_endpoint(p->pub);
    const char *snapshot = kve_pub_snapshot_endpoint(p->pub);
    const uint8_t *id = kve_pub_publisher_id(p->pub);

    if (p->options->quiet)
        return;
    fprintf(stderr, "Publishing on %s (%s), ", kve_pub_endpoint(p->pub),
        kve_pub_bound(p->pub) ? "bound" : "connecting");
    if (*replay != '\0')
        fprintf(stderr, "replay on %s, ", replay);
    else
        fputs("no replay, ", stderr);
    if (*snapshot != '\0')
        fprintf(stderr, "snapshots on %s, ", snapshot);
    else if (p->options->snapshots)
        fprintf(stderr, "snapshots on %s, ", replay);
    fputs("topic '", stderr);
    input_write_plain(p->options->topic, strlen(p->options->topic));
    fputs("'", stderr);
    if (id != NULL)
        fputs(", id ", stderr);
    for (size_t i = 0; id != NULL && i < 16; i++)
        fprintf(stderr, "%02x", id[i]);
    fputc('\n', stderr);
}

static bool
has_snapshots(const struct publish *p)
{
    return p->options->snapshots || p->options->snapshot != NULL;
}

static void
say_sent(const struct publish *p, bool serving)
{
    if (p->options->quiet)
        return;
    fprintf(stderr, "Published %" PRIu64 " batches", p->batches);
    if (p->withheld > 0)
        fprintf(stderr, ", %" PRIu64 " of them withheld from the live stream",
            p->withheld);
    if (p->input.bad > 0)
        fprintf(stderr, "; %" PRIu64 " bad lines", p->input.bad);
    if (serving)
        fprintf(stderr, "; serving %s until interrupted\n",
            !has_snapshots(p)                              ? "replay"
                : *kve_pub_replay_endpoint(p->pub) != '\0' ? "replay and "
                                                             "snapshots"
                                                           : "snapshots");
    else
        fputc('\n', stderr);
}

/* Publish all there is and serve replay. Returns the exit status. */
static int
serve(struct publish *p)
{
    const struct publish_options *opts = p->options;
    bool replay = *kve_pub_replay_endpoint(p->pub) != '\0' || has_snapshots(p);
    uint64_t lost = 0;
    bool whole;

    say_start(p);
    p->next_send = now();
    whole = sleep_until(now() + opts->delay) && publish_lines(p);
    input_clear_progress(&p->input);
    if (whole)
        flush(p);
    if (whole && replay && !opts->exit && interrupt_signal() == 0) {
        say_sent(p, true);
        while (interrupt_signal() == 0)
            (void)interrupt_wait(-1, -1);
    } else {
        say_sent(p, false);
    }
    if (kve_pub_shutdown(p->pub, (int)(opts->linger * 1000.0), &lost, NULL) !=
            KVE_OK &&
        lost > 0)
        fprintf(stderr, "kvevents publish: %" PRIu64 " batches were not sent\n",
            lost);
    if (!whole && interrupt_signal() != 0)
        return 128 + interrupt_signal();
    return whole && p->input.bad == 0 && lost == 0 ? EXIT_FINE : EXIT_TROUBLE;
}

static void
fill_options(struct kve_pub_opts *pub, const struct publish_options *opts)
{
    pub->endpoint = opts->endpoint;
    pub->replay_endpoint = opts->replay;
    pub->topic = opts->topic;
    pub->bind = opts->bind;
    pub->rank = opts->rank;
    pub->replay_shape =
        opts->old_replay ? KVE_REPLAY_NO_TOPIC : KVE_REPLAY_WITH_TOPIC;
    pub->hwm = (uint32_t)opts->hwm;
    pub->buffer_steps = (uint32_t)opts->buffer_steps;
    pub->first_number = opts->first_number;
    pub->snapshot_endpoint = opts->snapshot;
    pub->snapshots = opts->snapshots;
    pub->snapshot_max_bytes = (size_t)opts->snapshot_bytes;
    pub->snapshot_max_blocks = (uint32_t)opts->snapshot_blocks;
    pub->clear_scope = opts->clear_scope;
    if (opts->heartbeat.given)
        pub->heartbeat_ms = opts->heartbeat.seconds > 0
            ? (uint32_t)(opts->heartbeat.seconds * 1000.0)
            : KVE_NONE;
    if (opts->id.given)
        pub->publisher_id = opts->id.bytes;
    pub->shutdown_ms = (uint32_t)(opts->linger * 1000.0) + 1;
}

/* The library's log. May be called from its threads: one write a line. */
static void
on_log(void *ctx, enum kve_log_level level, const char *line)
{
    char text[512];
    int len;
    ssize_t ignored;

    (void)ctx;
    if (level > KVE_LOG_WARNING)
        return;
    len = snprintf(text, sizeof(text), "%skvevents publish: %s\n",
        isatty(STDERR_FILENO) ? "\r\033[K" : "", line);
    if (len >= (int)sizeof(text))
        len = (int)sizeof(text) - 1;
    ignored = write(STDERR_FILENO, text, (size_t)len);
    (void)ignored;
}

/* Looking up a name to bind or connect to can take seconds, and nothing was
 * published yet: a signal ends the command there and then. */
static volatile sig_atomic_t starting;

static void
leave_start(void)
{
    if (starting)
        _exit(128 + interrupt_signal());
}

/* Create the publisher; complains and returns an exit status when it cannot. */
static int
create(struct publish *p, kve_context **ret_context)
{
    const struct publish_options *opts = p->options;
    struct kve_context_opts context = KVE_CONTEXT_OPTS_INIT;
    struct kve_pub_opts pub = KVE_PUB_OPTS_INIT;
    struct kve_error err;
    struct key_pair keys;

    fill_options(&pub, opts);
    if (opts->curve_keys != NULL) {
        if (!key_pair_read(&command_publish, opts->curve_keys, &keys))
            return EXIT_USAGE;
        pub.curve.public_key = keys.public_key;
        pub.curve.secret_key = keys.secret_key;
    }
    context.curve_allow = opts->curve_allow;
    context.log = on_log;
    if (kve_context_create(&context, ret_context, &err) == KVE_OK &&
        kve_pub_create(*ret_context, &pub, &p->pub, &err) == KVE_OK)
        return EXIT_FINE;
    (void)option_complain(
        &command_publish, "%s: %s", kve_status_str(err.status), err.detail);
    return err.status == KVE_E_INVAL ? EXIT_USAGE : EXIT_TROUBLE;
}

static int
publish_input(struct publish_options *opts, const char *input)
{
    struct publish p = { .options = opts };
    kve_context *context = NULL;
    char *topic = NULL;
    int result = EXIT_TROUBLE;

    if (!input_open(&p.input, &command_publish, input)) {
        result = EXIT_USAGE;
        goto out;
    }
    p.input.quiet = opts->quiet;
    p.in = jsonin_create();
    if (p.in == NULL || !interrupt_install(leave_start)) {
        perror("kvevents publish");
        goto out;
    }
    if (opts->topic == NULL) {
        if (p.input.size > 0)
            topic = find_topic(&p);
        opts->topic = topic != NULL ? topic : "";
    }
    if (opts->loop)
        p.input.size = 0;
    starting = true;
    result = create(&p, &context);
    starting = false;
    if (result == EXIT_FINE)
        result = serve(&p);

out:
    kve_pub_destroy(p.pub);
    kve_context_destroy(context);
    kve_buffer_release(&p.encoded);
    stamp_release(&p.stamp);
    jsonin_destroy(p.in);
    free(topic);
    input_release(&p.input);
    return result;
}

static int
run(const struct command *command, int argc, char **argv)
{
    struct publish_options opts = { .endpoint = NULL };
    int operands;
    int status;

    if (!help_or_options(command, argc, argv, &opts, &operands, &status))
        return status;
    if (operands != 1)
        return option_complain(command,
            "%d files given; give one FILE, or - for standard input", operands);
    if (strcmp(opts.replay, "none") == 0)
        opts.replay = NULL;
    if (!check_options(&opts, argv[1]))
        return EXIT_USAGE;
    return publish_input(&opts, argv[1]);
}

static const struct section sections[] = {
    { "Lines that are read",
        "One JSON object a line, of these kinds:\n"
        "\n"
        "  {\"payload\": \"93cb41...\", \"topic\": \"kv-events\"}\n"
        "  {\"events\": [EVENT, ...], \"ts\": 1795963990.3, \"rank\": 0}\n"
        "  {\"type\": \"BlockStored\", \"block_hashes\": [1, 2], ...}\n"
        "\n"
        "The first is a recorded message, published byte for byte under the "
        "topic of this publisher and with a new number; only the id of a "
        "publisher that has one is put in. The second is a "
        "batch; without ts it gets the time of now. The third is an event, "
        "published as a batch of its own. The names are those of the wire: "
        "type, block_hashes, parent_block_hash, token_ids, block_size, "
        "lora_id, medium, lora_name, extra_keys, group_idx and so on. So "
        "what kvevents watch printed as json or raw can be published again; "
        "its notices are passed over, and unknown fields are left out.\n"
        "\n"
        "A hash is an integer or a text. A text of decimal digits that fit "
        "64 bits, or 0x and up to 16 hex digits, is an integer; any other is "
        "bytes in hex, with or without hex: in front.\n"
        "\n"
        "A bad line is reported with its number and passed over; the exit "
        "status is then 1. A line of more than 64 MiB is one." },
    { NULL, NULL },
};

const struct command command_publish = {
    .name = "publish",
    .operands = "FILE",
    .summary = "publish events or recorded messages from a file",
    .operand_help =
        "FILE has one JSON object a line; - is standard input. After the last "
        "line replay and snapshots are served until Ctrl-C.",
    .options = options,
    .sections = sections,
    .examples =
        "kvevents publish recording.jsonl --rate 2 --drop 3,7-9\n"
        "kvevents publish recording.jsonl --snapshot-endpoint "
        "tcp://127.0.0.1:5559\n"
        "kvevents watch -f raw | kvevents publish - -e tcp://127.0.0.1:6000 "
        "-r none\n"
        "echo '{\"type\":\"AllBlocksCleared\"}' | kvevents publish - --exit "
        "--delay 1\n",
    .words = NULL,
    .run = run,
};
