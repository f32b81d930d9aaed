/*
 * print_raw.c - messages as they came, in lines that publish reads.
 *
 *     {"topic":"kv-events","seq":0,"seq_hex":"0000000000000000",
 *      "payload":"93cb41da..."}
 *
 * Nothing is lost but a topic that is no UTF-8. A batch of a snapshot or of a
 * twin says so, because it repeats what was there before; and where several
 * sources are followed a line has the one it is of.
 */
#include "print.h"

#include <inttypes.h>
#include <string.h>

static void
start(struct print *print, kve_source_id source)
{
    (void)print;
    (void)source;
}

static void
batch(struct print *print, const struct kve_delivery *delivery)
{
    const struct seen *seen = print_seen(print, delivery->source);
    struct out *out = print->out;
    uint8_t number[8];

    kve_number_write(delivery->number, number);
    out_text(out, "{\"topic\":");
    value_text(out, NOTATION_JSON, (const char *)delivery->topic.data,
        delivery->topic.len);
    out_format(out, ",\"seq\":%" PRIu64 ",\"seq_hex\":\"", delivery->number);
    out_hex(out, number, sizeof(number));
    out_text(out, "\",\"payload\":\"");
    out_hex(out, delivery->payload.data, delivery->payload.len);
    out_char(out, '"');
    if (delivery->snapshot)
        out_text(out, ",\"snapshot\":true");
    if (delivery->hidden)
        out_text(out, ",\"hidden\":true");
    if (*seen->prefix != '\0') {
        out_text(out, ",\"source\":");
        value_text(out, NOTATION_JSON, seen->endpoint, strlen(seen->endpoint));
    }
    out_text(out, "}\n");
    print_faults(print, delivery);
}

static void
interrupted(struct print *print)
{
    (void)print;
}

const struct printer printer_raw = { start, batch, print_notice_remark,
    interrupted };
