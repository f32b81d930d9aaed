/*
 * deliver.c - what a source's callbacks see: batches and notices.
 */
#include "subscribe/source.h"

#include "base/status.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A range for people: one number, or first..last. */
static void
range_text(char *text, size_t cap, uint64_t first, uint64_t last)
{
    if (first == last)
        (void)snprintf(text, cap, "%" PRIu64, first);
    else
        (void)snprintf(text, cap, "%" PRIu64 "..%" PRIu64, first, last);
}

static void
notice_text(const struct kve_source *s, enum kve_notice_type type,
    const struct kve_notice_args *a, uint32_t state, char *text, size_t cap)
{
    char range[48];

    range_text(range, sizeof(range), a->first, a->last);
    switch (type) {
    case KVE_NOTICE_STATE:
        (void)snprintf(text, cap, "%s -> %s: %s%s%s",
            kve_state_str(a->old_state), kve_state_str(state),
            kve_reason_str(a->reason), state == KVE_STATE_LIVE ? "" : " ",
            state == KVE_STATE_LIVE ? "" : range);
        break;
    case KVE_NOTICE_CONNECTED:
        (void)snprintf(text, cap, "connected to %s", s->endpoint);
        break;
    case KVE_NOTICE_DISCONNECTED:
        (void)snprintf(text, cap, "connection to %s lost", s->endpoint);
        break;
    case KVE_NOTICE_GAP:
        (void)snprintf(text, cap, "batches %s are missing", range);
        break;
    case KVE_NOTICE_REPLAY:
        (void)snprintf(text, cap, "asking %s for batches from %" PRIu64,
            s->replay_endpoint, a->first);
        break;
    case KVE_NOTICE_REPAIRED:
        (void)snprintf(text, cap, "batches %s came by replay", range);
        break;
    case KVE_NOTICE_LOST:
        (void)snprintf(text, cap, "batches %s are lost: %s", range,
            kve_reason_str(a->reason));
        break;
    case KVE_NOTICE_CLEAR:
        (void)snprintf(text, cap, "forget everything of this source: %s",
            kve_reason_str(a->reason));
        break;
    case KVE_NOTICE_REPLAY_FAILED:
        (void)snprintf(text, cap,
            "no complete answer from %s to a replay from %" PRIu64,
            s->replay_endpoint, a->first);
        break;
    case KVE_NOTICE_HOLD_FULL:
        (void)snprintf(text, cap,
            "hold buffer full: live batches from %" PRIu64
            " on are dropped and will be replayed",
            a->first);
        break;
    case KVE_NOTICE_UNREADABLE:
    case KVE_NOTICE_UNKNOWN_EVENT:
    case KVE_NOTICE_BAD_FRAMES:
    case KVE_NOTICE_RESOLVE_FAILED:
        (void)snprintf(text, cap, "%s", kve_notice_str(type));
        break;
    }
}

void
kve_source_notify(struct kve_source *s, enum kve_notice_type type,
    const struct kve_notice_args *args)
{
    struct kve_notice notice;
    struct kve_source_info info;
    char text[320];

    if (s->env->callbacks.on_notice == NULL || s->removed)
        return;
    memset(&info, 0, sizeof(info));
    kve_machine_info(s->machine, &info);
    memset(&notice, 0, sizeof(notice));
    notice.struct_size = sizeof(notice);
    notice.type = type;
    notice.source = s->id;
    notice.user = s->opts.user;
    notice.first = args->first;
    notice.last = args->last;
    /* The machine may be a state further by now than the notice is about. */
    notice.old_state = type == KVE_NOTICE_STATE ? args->old_state : info.state;
    notice.state = type == KVE_NOTICE_STATE ? args->state : info.state;
    notice.reason = args->reason;
    notice.fault = args->fault;
    notice.offset = args->offset;
    notice.detail = args->detail;
    if (notice.detail == NULL) {
        notice_text(s, type, args, notice.state, text, sizeof(text));
        notice.detail = text;
    }
    s->env->callbacks.on_notice(s->env->callbacks.ctx, &notice);
}

/* Whether losing this event can make a reader's picture wrong. */
static bool
fault_matters(const struct kve_fault *fault)
{
    return fault->reason != KVE_FAULT_UNKNOWN_TAG;
}

/* A string of the network's in a line for people: printable, bounded. */
static void
printable(char *text, size_t cap, struct kve_str from)
{
    size_t n = from.len < cap - 1 ? from.len : cap - 1;

    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)from.data[i];
        text[i] = c >= 0x20 && c < 0x7f ? (char)c : '?';
    }
    text[n] = '\0';
}

static void
notify_fault(
    struct kve_source *s, uint64_t number, const struct kve_fault *fault)
{
    struct kve_notice_args args = { number, number, 0, 0, 0, fault->reason,
        fault->offset, NULL };
    char tag[64];
    char text[320];

    printable(tag, sizeof(tag), fault->tag);
    (void)snprintf(text, sizeof(text),
        "batch %" PRIu64 ", event %zu%s%s%s, byte %zu: %s%s%s", number,
        fault->index, tag[0] != '\0' ? " (" : "", tag,
        tag[0] != '\0' ? ")" : "", fault->offset, kve_fault_help(fault->reason),
        fault->field >= 0 ? ": " : "",
        fault->field >= 0 ? kve_field_str((unsigned)fault->field) : "");
    args.detail = text;
    kve_source_notify(s,
        fault_matters(fault) ? KVE_NOTICE_UNREADABLE : KVE_NOTICE_UNKNOWN_EVENT,
        &args);
}

/*
 * Count and tell what could not be delivered; returns the place of the last
 * event whose loss matters, or -1.
 */
static int64_t
report_faults(struct kve_source *s, uint64_t number)
{
    const struct kve_batch_info *info = kve_batch_get_info(s->env->batch);
    const struct kve_fault *fault;
    int64_t last = -1;
    size_t unknown = 0;

    for (size_t i = 0; (fault = kve_batch_fault(s->env->batch, i)) != NULL;
         i++) {
        if (fault_matters(fault))
            last = (int64_t)fault->index;
        else
            unknown++;
        notify_fault(s, number, fault);
        if (s->removed)
            return last;
    }
    if (unknown > 0)
        s->unknown_events = true;
    kve_sub_count(&s->counters, KVE_COUNTER_SUB_UNKNOWN_EVENTS, unknown);
    kve_sub_count(&s->counters, KVE_COUNTER_SUB_UNREADABLE_EVENTS,
        info->n_faults - unknown);
    return last;
}

/* The place of the last event that emptied the whole cache, or -1; counts
 * events with notes on the way. */
static int64_t
look_through(struct kve_source *s, const struct kve_batch_info *info)
{
    const struct kve_event *event;
    int64_t last = -1;
    size_t noted = 0;

    kve_batch_rewind(s->env->batch);
    while ((event = kve_batch_next(s->env->batch)) != NULL) {
        if (event->notes != 0)
            noted++;
        if (event->type == KVE_EVENT_CLEARED && event->ownership.len == 0)
            last = (int64_t)event->index;
    }
    kve_batch_rewind(s->env->batch);
    if (info->notes != 0)
        kve_sub_count(&s->counters, KVE_COUNTER_SUB_NOTED_EVENTS, noted);
    return last;
}

/* What the batch means for what is known about the source. */
static void
tell_machine(
    struct kve_source *s, int64_t now_ns, kve_status status, int64_t fault_at)
{
    const struct kve_batch_info *info = kve_batch_get_info(s->env->batch);
    struct kve_source_info source;
    int64_t cleared_at = -1;

    memset(&source, 0, sizeof(source));
    kve_machine_info(s->machine, &source);
    if (info->notes != 0 || source.state != KVE_STATE_LIVE || fault_at >= 0)
        cleared_at = look_through(s, info);
    if (cleared_at >= 0)
        kve_machine_cleared(s->machine, now_ns);
    if (status != KVE_OK || fault_at > cleared_at)
        kve_machine_unreadable(s->machine, now_ns);
}

static void
notify_broken(
    struct kve_source *s, uint64_t number, const struct kve_error *error)
{
    struct kve_notice_args args = { number, number, 0, 0, 0, 0, error->offset,
        NULL };
    char text[320];

    kve_sub_count(&s->counters, KVE_COUNTER_SUB_UNREADABLE_BATCHES, 1);
    (void)snprintf(text, sizeof(text), "batch %" PRIu64 ", byte %zu: %s: %s",
        number, error->offset, kve_status_str(error->status), error->detail);
    args.detail = text;
    kve_source_notify(s, KVE_NOTICE_UNREADABLE, &args);
}

kve_status
kve_source_deliver(
    struct kve_source *s, int64_t now_ns, bool *ret_stop, struct kve_error *err)
{
    const struct kve_machine_msg *msg = &s->action.msg;
    struct kve_error error = { KVE_OK, 0, 0, "" };
    struct kve_delivery delivery;
    int64_t fault_at;

    kve_status status = kve_batch_decode(
        s->env->batch, msg->payload.data, msg->payload.len, &error);
    if (status == KVE_E_NOMEM)
        return kve_fail(err, KVE_E_NOMEM, "%s", error.detail);

    kve_sub_count(&s->counters, KVE_COUNTER_SUB_BATCHES, 1);
    kve_sub_count(&s->counters, KVE_COUNTER_SUB_EVENTS,
        kve_batch_get_info(s->env->batch)->n_events);
    fault_at = kve_batch_get_info(s->env->batch)->n_faults > 0
        ? report_faults(s, msg->number)
        : -1;
    if (status != KVE_OK && !s->removed)
        notify_broken(s, msg->number, &error);
    tell_machine(s, now_ns, status, fault_at);
    if (s->removed)
        return KVE_OK;

    memset(&delivery, 0, sizeof(delivery));
    delivery.struct_size = sizeof(delivery);
    delivery.source = s->id;
    delivery.replayed = s->action.replayed ? 1 : 0;
    delivery.user = s->opts.user;
    delivery.number = msg->number;
    delivery.topic = msg->topic;
    delivery.payload = msg->payload;
    delivery.publisher_id = msg->publisher_id;
    delivery.batch = s->env->batch;
    delivery.status = status;
    delivery.error = &error;
    *ret_stop =
        s->env->callbacks.on_batch(s->env->callbacks.ctx, &delivery) != 0;
    return KVE_OK;
}
