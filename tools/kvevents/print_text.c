/*
 * print_text.c - what the example subscriber of vLLM's documentation prints.
 *
 *     Listening for KV cache events on topic: kv-events
 *     Received event batch at 1795963990.274236:
 *       - BlockStored(block_hashes=[1, 2], parent_block_hash=None, ...)
 *     Missed 2 messages (last: 4, current: 7)
 *     Interrupted
 *
 * Beside these lines there are two of our own: a batch that came by replay
 * has "# replayed" and its number behind the colon, and what is odd about an
 * event stands in a line below it, after an exclamation mark.
 */
#include "print.h"

#include <inttypes.h>
#include <string.h>

static void
start(struct print *print)
{
    struct out *out = print->out;

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
write_notes(struct print *print, uint32_t notes)
{
    const char *before = "    ! ";

    if (notes == 0)
        return;
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

static void
write_head(struct print *print, const struct kve_delivery *delivery, double ts)
{
    struct out *out = print->out;

    out_text(out, print->on_out.strong);
    out_text(out, "Received event batch at ");
    value_double(out, NOTATION_PYTHON, ts);
    out_char(out, ':');
    out_text(out, print->on_out.off);
    if (delivery->replayed)
        out_format(out, "%s  # replayed, number %" PRIu64 "%s",
            print->on_out.good, delivery->number, print->on_out.off);
    out_char(out, '\n');
}

static void
batch(struct print *print, const struct kve_delivery *delivery)
{
    const struct kve_batch_info *info = kve_batch_get_info(delivery->batch);
    const struct kve_event *event;
    struct out *out = print->out;

    /* What breaks before its time was read is no batch for people. */
    if (delivery->status == KVE_OK || info->ts != 0)
        write_head(print, delivery, info->ts);
    while ((event = kve_batch_next(delivery->batch)) != NULL) {
        out_text(out, "  - ");
        event_write(out, &print->style, event);
        out_char(out, '\n');
        write_notes(print, event->notes);
    }
    print_faults(print, delivery);
}

/* The number before the first missing one; the example begins with -1. */
static void
missed(struct print *print, const struct kve_notice *notice)
{
    struct out *out = print->out;

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
