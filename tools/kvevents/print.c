/*
 * print.c - what the formats share: remarks, bad messages, colours.
 */
#include "print.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct option_choice print_colors[] = {
    { "auto", 0 },
    { "always", 1 },
    { "never", 2 },
    { NULL, 0 },
};

void
print_palette(struct palette *palette, int fd, unsigned mode)
{
    static const struct palette none = { "", "", "", "", "", "" };
    static const struct palette ansi = { "\033[1m", "\033[32m", "\033[33m",
        "\033[31m", "\033[2m", "\033[0m" };
    const char *no_color = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    bool on = mode == 1;

    if (mode == 0)
        on = isatty(fd) && (no_color == NULL || *no_color == '\0') &&
            term != NULL && strcmp(term, "dumb") != 0;
    *palette = on ? ansi : none;
}

bool
print_is_heartbeat(const struct kve_delivery *delivery)
{
    const struct kve_batch_info *info = kve_batch_get_info(delivery->batch);

    return delivery->status == KVE_OK && !delivery->snapshot &&
        info->n_declared == 0 &&
        (info->publisher_id != NULL || delivery->publisher_id != NULL);
}

struct seen *
print_seen(struct print *print, kve_source_id source)
{
    return roster_get(&print->roster, print->sub, source);
}

/* What a source is called in remarks. */
static const char *
name_of(struct print *print, kve_source_id source)
{
    return print_seen(print, source)->name;
}

void
print_remark(struct print *print, const char *colour)
{
    out_flush(print->out);
    out_text(print->err, colour);
}

void
print_remark_end(struct print *print)
{
    out_text(print->err, print->on_err.off);
    out_char(print->err, '\n');
    out_flush(print->err);
}

/* Text of the library on a terminal: without what moves the cursor. */
static void
write_plain(struct out *out, const char *text)
{
    for (; *text != '\0'; text++)
        out_char(
            out, (unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text);
}

/* "gap" for reasons that are one word, "caught up" for others. */
static void
write_words(struct out *out, const char *name)
{
    for (; *name != '\0'; name++)
        out_char(out, *name == '_' ? ' ' : *name);
}

static void
write_range(struct out *out, uint64_t first, uint64_t last)
{
    if (first == last)
        out_format(out, " %" PRIu64, first);
    else
        out_format(out, " %" PRIu64 "..%" PRIu64, first, last);
}

static bool
reason_has_range(uint32_t reason)
{
    return reason == KVE_REASON_GAP || reason == KVE_REASON_TAIL ||
        reason == KVE_REASON_LOST || reason == KVE_REASON_NO_REPLAY;
}

/* source tcp://... live -> recovering: gap 12..19; source tcp://...
 * recovering: restart, where only the reason is another one */
static void
remark_state(struct print *print, const struct kve_notice *notice)
{
    const char *colour = notice->state == KVE_STATE_LIVE ? print->on_err.good
        : notice->state == KVE_STATE_DEGRADED            ? print->on_err.bad
                                                         : print->on_err.odd;

    print_remark(print, colour);
    out_format(print->err, "source %s ", name_of(print, notice->source));
    if (notice->old_state != notice->state)
        out_format(print->err, "%s -> ", kve_state_str(notice->old_state));
    out_format(print->err, "%s: ", kve_state_str(notice->state));
    write_words(print->err, kve_reason_str(notice->reason));
    if (reason_has_range(notice->reason) && notice->first <= notice->last)
        write_range(print->err, notice->first, notice->last);
    print_remark_end(print);
}

/* One of the short remarks: "source X: WORDS 3..5". */
static void
remark_range(struct print *print, const struct kve_notice *notice,
    const char *colour, const char *words)
{
    print_remark(print, colour);
    out_format(
        print->err, "source %s: %s", name_of(print, notice->source), words);
    write_range(print->err, notice->first, notice->last);
    print_remark_end(print);
}

static void
remark_detail(struct print *print, const struct kve_notice *notice,
    const char *colour, const char *words)
{
    print_remark(print, colour);
    out_format(
        print->err, "source %s: %s", name_of(print, notice->source), words);
    if (*notice->detail != '\0') {
        out_text(print->err, ": ");
        write_plain(print->err, notice->detail);
    }
    print_remark_end(print);
}

static void
remark_plain(struct print *print, const struct kve_notice *notice,
    const char *colour, const char *words)
{
    print_remark(print, colour);
    out_format(
        print->err, "source %s: %s", name_of(print, notice->source), words);
    print_remark_end(print);
}

static void
remark_bad_frames(struct print *print, const struct kve_notice *notice)
{
    struct seen *source = print_seen(print, notice->source);
    char seen[240];
    char *expected;

    if (source->bad_frames >= PRINT_BAD_ROW)
        return;
    source->bad_frames++;
    if (source->bad_frames < PRINT_BAD_ROW) {
        remark_detail(print, notice, print->on_err.bad, "bad message");
        return;
    }
    print_remark(print, print->on_err.bad);
    out_format(print->err,
        "warning: %u bad messages in a row from %s; seen: ", PRINT_BAD_ROW,
        source->name);
    /* The detail names what it expected, too: once is enough. */
    (void)snprintf(seen, sizeof(seen), "%s", notice->detail);
    expected = strstr(seen, "; expected");
    if (expected != NULL)
        *expected = '\0';
    write_plain(print->err, seen);
    out_text(print->err,
        "; expected: 3 frames: topic, number of 8 bytes, msgpack batch; "
        "more are counted but not shown until a good one arrives");
    print_remark_end(print);
}

/* It is tried again and again; once is enough to read. */
static void
remark_trouble(struct print *print, const struct kve_notice *notice)
{
    struct seen *source = print_seen(print, notice->source);
    const char *detail = notice->detail;
    size_t len = strlen(source->endpoint);

    if (!print->verbose &&
        (source->n_troubles == PRINT_TROUBLES ||
            strncmp(source->trouble, detail, sizeof(source->trouble) - 1) == 0))
        return;
    source->n_troubles += source->n_troubles < PRINT_TROUBLES;
    (void)snprintf(source->trouble, sizeof(source->trouble), "%s", detail);
    if (strncmp(detail, source->endpoint, len) == 0 &&
        strncmp(detail + len, ": ", 2) == 0)
        detail += len + 2;
    print_remark(print, print->on_err.bad);
    out_format(
        print->err, "source %s: not connected, trying again: ", source->name);
    write_plain(print->err, detail);
    print_remark_end(print);
}

/* It is asked for again and again, too, ever more seldom. */
static void
remark_no_snapshot(struct print *print, const struct kve_notice *notice)
{
    struct seen *source = print_seen(print, notice->source);

    if (!print->verbose && strcmp(source->no_snapshot, notice->detail) == 0)
        return;
    (void)snprintf(
        source->no_snapshot, sizeof(source->no_snapshot), "%s", notice->detail);
    print_remark(print, print->on_err.odd);
    out_format(print->err, "source %s: ", source->name);
    write_plain(print->err, notice->detail);
    print_remark_end(print);
}

/* A connection that was there has no more to say than its endpoint; one that
 * was refused, or cut because of what came, says why. */
static bool
is_trouble(struct print *print, const struct kve_notice *notice)
{
    return notice->type == KVE_NOTICE_RESOLVE_FAILED ||
        (notice->type == KVE_NOTICE_DISCONNECTED &&
            strcmp(notice->detail,
                print_seen(print, notice->source)->endpoint) != 0);
}

/* "source X: WORDS: why", for what has a reason. */
static void
remark_reason(struct print *print, const struct kve_notice *notice,
    const char *colour, const char *words)
{
    print_remark(print, colour);
    out_format(
        print->err, "source %s: %s: ", name_of(print, notice->source), words);
    write_words(print->err, kve_reason_str(notice->reason));
    print_remark_end(print);
}

/* What is said also to those who want no remarks; true when it was said. */
static bool
remark_warning(struct print *print, const struct kve_notice *notice)
{
    const struct palette *p = &print->on_err;

    switch (notice->type) {
    case KVE_NOTICE_LOST:
        remark_range(print, notice, p->bad, "lost for good");
        return true;
    case KVE_NOTICE_BAD_FRAMES:
        remark_bad_frames(print, notice);
        return true;
    case KVE_NOTICE_REPLAY_FAILED:
        remark_detail(print, notice, p->bad, "replay failed");
        return true;
    case KVE_NOTICE_SNAPSHOT_FAILED:
        remark_no_snapshot(print, notice);
        return true;
    case KVE_NOTICE_HOLD_FULL:
        remark_detail(print, notice, p->odd,
            "hold buffer full; live messages will be replayed");
        return true;
    case KVE_NOTICE_STALE:
        remark_plain(print, notice, p->bad, "stale: its heartbeats stopped");
        return true;
    case KVE_NOTICE_STREAMS_FULL:
        remark_detail(print, notice, p->bad,
            "too many streams, further ones are dropped");
        return true;
    default:
        return false;
    }
}

/* A new stream has a name of its own; where it came by is in it. */
static void
remark_stream(struct print *print, const struct kve_notice *notice)
{
    const struct seen *seen = print_seen(print, notice->source);

    print_remark(print, print->on_err.faint);
    out_format(print->err, "source %s: new stream", seen->name);
    print_remark_end(print);
}

void
print_notice_remark(struct print *print, const struct kve_notice *notice)
{
    const struct palette *p = &print->on_err;
    struct seen *seen = print_seen(print, notice->source);

    if (is_trouble(print, notice)) {
        remark_trouble(print, notice);
        return;
    }
    if (notice->type == KVE_NOTICE_CONNECTED) {
        seen->trouble[0] = '\0';
        seen->n_troubles = 0;
    }
    if (notice->type == KVE_NOTICE_CONNECTED || notice->type == KVE_NOTICE_SWAP)
        seen->no_snapshot[0] = '\0';
    if (remark_warning(print, notice) || print->quiet)
        return;
    switch (notice->type) {
    case KVE_NOTICE_STATE:
        remark_state(print, notice);
        break;
    case KVE_NOTICE_REPAIRED:
        remark_range(print, notice, p->good, "recovered");
        break;
    case KVE_NOTICE_CLEAR:
        remark_reason(print, notice, p->odd, "forget what it held");
        break;
    case KVE_NOTICE_BEGIN:
        remark_reason(print, notice, p->odd,
            "builds a twin, hidden until it is complete");
        break;
    case KVE_NOTICE_SWAP:
        remark_reason(print, notice, p->good,
            "the twin is complete and replaces what was known");
        break;
    case KVE_NOTICE_ABORT:
        remark_reason(
            print, notice, p->odd, "drops the twin, what was known stays");
        break;
    case KVE_NOTICE_FRESH:
        remark_plain(print, notice, p->good, "heard again, not stale");
        break;
    case KVE_NOTICE_STREAM:
        remark_stream(print, notice);
        break;
    case KVE_NOTICE_CONNECTED:
        remark_plain(print, notice, p->faint, "connected");
        break;
    case KVE_NOTICE_DISCONNECTED:
        remark_plain(print, notice, p->odd, "disconnected");
        break;
    case KVE_NOTICE_REPLAY:
        if (print->verbose) {
            print_remark(print, p->faint);
            out_format(print->err,
                "source %s: asking for a replay from %" PRIu64, seen->name,
                notice->first);
            print_remark_end(print);
        }
        break;
    case KVE_NOTICE_SNAPSHOT:
        if (print->verbose)
            remark_plain(print, notice, p->faint, "asking for a snapshot");
        break;
    default:
        break;
    }
}

/* "batch 5", "source X: batch 5" where it could be another one's. */
static void
write_batch(struct print *print, const struct kve_delivery *delivery)
{
    const struct seen *seen = print_seen(print, delivery->source);

    if (*seen->prefix != '\0')
        out_format(print->err, "source %s: ", seen->name);
    out_format(print->err, "%s %" PRIu64,
        delivery->snapshot ? "a batch of snapshot" : "batch", delivery->number);
}

static void
remark_payload(struct print *print, const struct kve_delivery *delivery)
{
    const struct seen *seen = print_seen(print, delivery->source);

    print_remark(print, print->on_err.bad);
    if (seen->bad_payloads == PRINT_BAD_ROW) {
        out_format(print->err,
            "warning: %u bad batches in a row from %s; seen: ", PRINT_BAD_ROW,
            seen->name);
    } else {
        write_batch(print, delivery);
        out_format(
            print->err, " is broken at byte %zu: ", delivery->error->offset);
    }
    write_plain(print->err, delivery->error->detail);
    if (seen->bad_payloads == PRINT_BAD_ROW)
        out_text(print->err,
            "; expected: a msgpack batch [ts, events, rank]; more are counted "
            "but not shown until a good one arrives");
    print_remark_end(print);
}

static void
remark_fault(struct print *print, const struct kve_delivery *delivery,
    const struct kve_fault *fault)
{
    struct out *err = print->err;

    print_remark(print, print->on_err.bad);
    write_batch(print, delivery);
    out_format(err, ", event %zu", fault->index);
    if (fault->tag.data != NULL) {
        out_char(err, ' ');
        value_text(err, NOTATION_PYTHON, fault->tag.data,
            fault->tag.len < 64 ? fault->tag.len : 64);
    }
    out_format(err, " is not delivered: %s (%s", kve_fault_help(fault->reason),
        kve_fault_str(fault->reason));
    if (fault->field >= 0)
        out_format(err, ", %s", kve_field_str((unsigned)fault->field));
    out_format(err, ", byte %zu)", fault->offset);
    print_remark_end(print);
}

void
print_faults(struct print *print, const struct kve_delivery *delivery)
{
    const struct kve_batch_info *info = kve_batch_get_info(delivery->batch);
    struct seen *seen = print_seen(print, delivery->source);
    size_t i;

    if (delivery->status == KVE_OK && info->n_faults == 0) {
        seen->bad_frames = 0;
        seen->bad_payloads = 0;
        return;
    }
    if (seen->bad_payloads >= PRINT_BAD_ROW)
        return;
    seen->bad_payloads++;
    for (i = 0; i < PRINT_FAULTS; i++) {
        const struct kve_fault *fault = kve_batch_fault(delivery->batch, i);

        if (fault == NULL)
            break;
        remark_fault(print, delivery, fault);
    }
    if (i < info->n_faults) {
        print_remark(print, print->on_err.bad);
        write_batch(print, delivery);
        out_format(print->err, ": %zu more events are not delivered",
            info->n_faults - i);
        print_remark_end(print);
    }
    if (delivery->status != KVE_OK) {
        remark_payload(print, delivery);
    } else if (seen->bad_payloads == PRINT_BAD_ROW) {
        print_remark(print, print->on_err.bad);
        out_format(print->err,
            "warning: %u batches in a row from %s had events that could not "
            "be read; more are counted but not shown until a good one arrives",
            PRINT_BAD_ROW, seen->name);
        print_remark_end(print);
    }
}
