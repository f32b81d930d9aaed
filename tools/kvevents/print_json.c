/*
 * print_json.c - one JSON object a line, for programs.
 *
 * "kind" says what a line is: batch, notice, and with --stats stats. "source"
 * is the live endpoint; of a stream, "stream" is its topic and rank. Hashes are
 * strings; value.h says how the rest is written.
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
write_string(struct out *out, const char *text)
{
    value_text(out, NOTATION_JSON, text, strlen(text));
}

/* "source":"tcp://...","stream":"kv-events/0" */
static void
write_source(struct print *print, kve_source_id source)
{
    const struct seen *seen = print_seen(print, source);

    out_text(print->out, "\"source\":");
    write_string(print->out, seen->endpoint);
    if (seen->stream != NULL) {
        out_text(print->out, ",\"stream\":");
        write_string(print->out, seen->stream);
    }
}

static void
write_fault(struct out *out, const struct kve_fault *fault)
{
    out_format(out, "{\"reason\":\"%s\",\"index\":%zu,\"offset\":%zu",
        kve_fault_str(fault->reason), fault->index, fault->offset);
    if (fault->field >= 0)
        out_format(
            out, ",\"field\":\"%s\"", kve_field_str((unsigned)fault->field));
    if (fault->tag.data != NULL) {
        out_text(out, ",\"tag\":");
        value_text(out, NOTATION_JSON, fault->tag.data, fault->tag.len);
    }
    out_char(out, '}');
}

static void
write_faults(struct out *out, const struct kve_delivery *delivery)
{
    const struct kve_fault *fault;

    out_text(out, "],\"faults\":[");
    for (size_t i = 0; (fault = kve_batch_fault(delivery->batch, i)) != NULL;
         i++) {
        if (i > 0)
            out_char(out, ',');
        write_fault(out, fault);
    }
    out_char(out, ']');
    if (delivery->status != KVE_OK) {
        out_format(out,
            ",\"error\":{\"status\":\"%s\",\"offset\":%zu,"
            "\"detail\":",
            kve_status_name(delivery->status), delivery->error->offset);
        write_string(out, delivery->error->detail);
        out_char(out, '}');
    }
}

static const char *
boolean(uint32_t value)
{
    return value != 0 ? "true" : "false";
}

static void
batch(struct print *print, const struct kve_delivery *delivery)
{
    const struct kve_batch_info *info = kve_batch_get_info(delivery->batch);
    const struct kve_event *event;
    struct out *out = print->out;
    bool first = true;

    out_text(out, "{\"kind\":\"batch\",");
    write_source(print, delivery->source);
    out_format(out, ",\"seq\":%" PRIu64 ",\"topic\":", delivery->number);
    value_text(out, NOTATION_JSON, (const char *)delivery->topic.data,
        delivery->topic.len);
    out_format(out, ",\"replayed\":%s,\"snapshot\":%s,\"hidden\":%s,\"ts\":",
        boolean(delivery->replayed), boolean(delivery->snapshot),
        boolean(delivery->hidden));
    value_double(out, NOTATION_JSON, info->ts);
    out_text(out, ",\"rank\":");
    if (info->rank.set)
        out_i64(out, info->rank.value);
    else
        out_text(out, "null");
    if (info->publisher_id != NULL) {
        out_text(out, ",\"publisher_id\":\"");
        out_hex(out, info->publisher_id, 16);
        out_char(out, '"');
    }
    out_text(out, ",\"events\":[");
    while ((event = kve_batch_next(delivery->batch)) != NULL) {
        if (!first)
            out_char(out, ',');
        event_write(out, &print->style, event);
        first = false;
    }
    write_faults(out, delivery);
    out_text(out, "}\n");
    print_faults(print, delivery);
}

static void
write_range(struct out *out, const struct kve_notice *notice)
{
    out_format(out, ",\"first\":%" PRIu64 ",\"last\":%" PRIu64, notice->first,
        notice->last);
}

/* The fields that mean something in a notice of this type. */
static void
write_notice(struct out *out, const struct kve_notice *notice)
{
    switch (notice->type) {
    case KVE_NOTICE_STATE:
        out_format(out, ",\"old_state\":\"%s\",\"reason\":\"%s\"",
            kve_state_str(notice->old_state), kve_reason_str(notice->reason));
        write_range(out, notice);
        break;
    case KVE_NOTICE_CLEAR:
    case KVE_NOTICE_BEGIN:
    case KVE_NOTICE_SWAP:
    case KVE_NOTICE_ABORT:
        out_format(out, ",\"reason\":\"%s\"", kve_reason_str(notice->reason));
        break;
    case KVE_NOTICE_GAP:
    case KVE_NOTICE_REPAIRED:
    case KVE_NOTICE_LOST:
        write_range(out, notice);
        break;
    case KVE_NOTICE_REPLAY:
    case KVE_NOTICE_REPLAY_FAILED:
        out_format(out, ",\"first\":%" PRIu64, notice->first);
        break;
    case KVE_NOTICE_UNREADABLE:
    case KVE_NOTICE_UNKNOWN_EVENT:
        out_format(out, ",\"first\":%" PRIu64 ",\"offset\":%zu", notice->first,
            notice->offset);
        if (notice->fault != 0)
            out_format(out, ",\"fault\":\"%s\"", kve_fault_str(notice->fault));
        break;
    case KVE_NOTICE_BAD_FRAMES:
        out_format(
            out, ",\"fault\":\"%s\"", kve_frames_fault_str(notice->fault));
        break;
    default:
        break;
    }
}

static void
notice_line(struct print *print, const struct kve_notice *notice)
{
    struct out *out = print->out;

    out_format(out, "{\"kind\":\"notice\",\"type\":\"%s\",",
        kve_notice_str(notice->type));
    write_source(print, notice->source);
    out_format(out, ",\"state\":\"%s\"", kve_state_str(notice->state));
    write_notice(out, notice);
    if (*notice->detail != '\0') {
        out_text(out, ",\"detail\":");
        write_string(out, notice->detail);
    }
    out_text(out, "}\n");
    print_notice_remark(print, notice);
}

static void
interrupted(struct print *print)
{
    (void)print;
}

const struct printer printer_json = { start, batch, notice_line, interrupted };
