/*
 * print_text.c - what the example subscriber of vLLM's documentation prints.
 *
 *     Listening for KV cache events on topic: kv-events
 *     Received event batch at 1795963990.274236:
 *       - BlockStored(block_hashes=[1, 2], parent_block_hash=None, ...)
 *     Missed 2 messages (last: 4, current: 7)
 *     Interrupted
 *
 * Beside these lines there are two of our own: a batch that did not come live
 * has how it came and its number behind the colon, after a #, and what is odd
 * about an event stands in a line below it, after an exclamation mark.
 *
 *     # replayed, number 5
 *     # replayed, number 5, of the twin
 *     # number 7, of the twin
 *     # snapshot after number 9
 *     # heartbeat, number 8
 *
 * Heartbeats are said to those only who want all remarks.
 * With several sources each line begins with the one it is of.
 */
#include "print.h"

#include <inttypes.h>
#include <string.h>

/* Begin a line of a source. */
static void
begin(struct print *print, kve_source_id source)
{
    const char *prefix = print_seen(print, source)->prefix;

    if (*prefix == '\0')
        return;
    out_text(print->out, print->on_out.faint);
    out_text(print->out, prefix);
    out_text(print->out, print->on_out.off);
}

static void
start(struct print *print, kve_source_id source)
{
    struct out *out = print->out;

    begin(print, source);
    out_text(out, print->on_out.strong);
    out_text(out, "Listening for KV cache events on topic: ");
    if (*print->topic == '\0')
        out_text(out, "(all)");
    else
        for (const char *p = print->topic; *p != '\0'; p++)
            out_char(out, (unsigned char)*p < ' ' || *p == 0x7f ? '?' : *p);
    out_text(out, print->on_out.off);
    out_char(out, '\n');
    out_flush(out);
}

static void
write_notes(struct print *print, kve_source_id source, uint32_t notes)
{
    const char *before = "    ! ";

    if (notes == 0)
        return;
    begin(print, source);
    out_text(print->out, print->on_out.odd);
    for (unsigned bit = 0; bit < 32; bit++) {
        if ((notes & 1u << bit) == 0)
            continue;
        out_text(print->out, before);
        out_text(print->out, kve_note_str(1u << bit));
        before = ", ";
    }
    out_text(print->out, print->on_out.off);
    out_char(print->out, '\n');
}

/* How a batch came, when it is not simply the next live one. */
static void
write_way(struct out *out, const struct kve_delivery *delivery)
{
    if (delivery->snapshot)
        out_format(out, "  # snapshot after number %" PRIu64, delivery->number);
    else if (print_is_heartbeat(delivery))
        out_format(out, "  # heartbeat, number %" PRIu64, delivery->number);
    else
        out_format(out, "  # %snumber %" PRIu64 "%s",
            delivery->replayed ? "replayed, " : "", delivery->number,
            delivery->hidden ? ", of the twin" : "");
}

static void
write_head(struct print *print, const struct kve_delivery *delivery, double ts)
{
    struct out *out = print->out;

    begin(print, delivery->source);
    out_text(out, print->on_out.strong);
    out_text(out, "Received event batch at ");
    value_double(out, NOTATION_PYTHON, ts);
    out_char(out, ':');
    out_text(out, print->on_out.off);
    if (delivery->replayed || delivery->hidden || delivery->snapshot ||
        print_is_heartbeat(delivery)) {
        out_text(out, print->on_out.good);
        write_way(out, delivery);
        out_text(out, print->on_out.off);
    }
    out_char(out, '\n');
}

static void
batch(struct print *print, const struct kve_delivery *delivery)
{
    const struct kve_batch_info *info = kve_batch_get_info(delivery->batch);
    const struct kve_event *event;
    struct out *out = print->out;

    if (print_is_heartbeat(delivery) && !print->verbose)
        return;
    /* What breaks before its time was read is no batch for people. */
    if (delivery->status == KVE_OK || info->ts != 0)
        write_head(print, delivery, info->ts);
    while ((event = kve_batch_next(delivery->batch)) != NULL) {
        begin(print, delivery->source);
        out_text(out, "  - ");
        event_write(out, &print->style, event);
        out_char(out, '\n');
        write_notes(print, delivery->source, event->notes);
    }
    print_faults(print, delivery);
}

/* The number before the first missing one; the example begins with -1. */
static void
missed(struct print *print, const struct kve_notice *notice)
{
    struct out *out = print->out;

    begin(print, notice->source);
    out_text(out, print->on_out.odd);
    out_format(out, "Missed %" PRIu64 " messages (last: ",
        notice->last - notice->first + 1);
    if (notice->first == 0)
        out_text(out, "-1");
    else
        out_u64(out, notice->first - 1);
    out_format(out, ", current: %" PRIu64 ")", notice->last + 1);
    out_text(out, print->on_out.off);
    out_char(out, '\n');
}

static void
notice_line(struct print *print, const struct kve_notice *notice)
{
    if (notice->type == KVE_NOTICE_GAP)
        missed(print, notice);
    else
        print_notice_remark(print, notice);
}

static void
interrupted(struct print *print)
{
    out_text(print->out, "Interrupted\n");
}

const struct printer printer_text = { start, batch, notice_line, interrupted };
