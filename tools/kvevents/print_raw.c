/*
 * print_raw.c - messages as they came, in lines that publish reads.
 *
 *     {"topic":"kv-events","seq":0,"seq_hex":"0000000000000000",
 *      "payload":"93cb41da..."}
 *
 * Nothing is lost but a topic that is no UTF-8.
 */
#include "print.h"

#include <inttypes.h>

static void
start(struct print *print)
{
    (void)print;
}

static void
batch(struct print *print, const struct kve_delivery *delivery)
{
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
    out_text(out, "\"}\n");
    print_faults(print, delivery);
}

static void
interrupted(struct print *print)
{
    (void)print;
}

const struct printer printer_raw = { start, batch, print_notice_remark,
    interrupted };
