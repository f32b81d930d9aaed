/*
 * deliver.c - hand a batch over, and see what it means for its source.
 */
#include "subscribe/source.h"

#include "base/status.h"
#include "subscribe/loop.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Whether losing this event can make a reader's picture wrong. */
static bool
fault_matters(const struct kve_fault *fault)
{
    return fault->reason != KVE_FAULT_UNKNOWN_TAG;
}

static void
notify_fault(
    struct kve_source *s, uint64_t number, const struct kve_fault *fault)
{
    struct kve_notice_args args = { number, number, 0, 0, 0, fault->reason,
        fault->offset, NULL };
    char tag[64];
    char text[320];

    kve_printable(tag, sizeof(tag), fault->tag);
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
    const struct kve_batch_info *info = kve_batch_get_info(s->loop->batch);
    const struct kve_fault *fault;
    int64_t last = -1;
    size_t unknown = 0;

    for (size_t i = 0; (fault = kve_batch_fault(s->loop->batch, i)) != NULL;
         i++) {
        if (fault_matters(fault))
            last = (int64_t)fault->index;
        else
            unknown++;
        notify_fault(s, number, fault);
        if (kve_source_gone(s))
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

    kve_batch_rewind(s->loop->batch);
    while ((event = kve_batch_next(s->loop->batch)) != NULL) {
        if (event->notes != 0)
            noted++;
        if (event->type == KVE_EVENT_CLEARED && event->ownership.len == 0)
            last = (int64_t)event->index;
    }
    kve_batch_rewind(s->loop->batch);
    if (info->notes != 0)
        kve_sub_count(&s->counters, KVE_COUNTER_SUB_NOTED_EVENTS, noted);
    return last;
}

/* What the batch means for what is known about the source. */
static void
tell_machine(
    struct kve_source *s, int64_t now_ns, kve_status status, int64_t fault_at)
{
    const struct kve_batch_info *info = kve_batch_get_info(s->loop->batch);
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

/* Count and tell what could not be read, and have the machine know. */
static void
look_into(struct kve_source *s, uint64_t number, int64_t now_ns)
{
    const struct kve_batch_info *info = kve_batch_get_info(s->loop->batch);
    kve_status status = s->loop->decoded.status;
    int64_t fault_at = -1;

    kve_sub_count(&s->counters, KVE_COUNTER_SUB_BATCHES, 1);
    kve_sub_count(&s->counters, KVE_COUNTER_SUB_EVENTS, info->n_events);
    if (info->n_faults > 0)
        fault_at = report_faults(s, number);
    if (status != KVE_OK && !kve_source_gone(s))
        notify_broken(s, number, &s->loop->decoded.error);
    tell_machine(s, now_ns, status, fault_at);
}

kve_status
kve_source_deliver(
    struct kve_source *s, struct kve_turn *turn, struct kve_error *err)
{
    const struct kve_sub_callbacks *callbacks = s->loop->callbacks;
    const struct kve_machine_msg *msg = &s->action.msg;
    struct kve_error error;
    struct kve_delivery delivery;
    kve_status status;

    s->untold = true;
    status = kve_loop_decode(s->loop, msg->payload, err);
    if (status != KVE_OK)
        return status;
    /* A snapshot's batches were found whole before. */
    if (!s->action.snapshot)
        look_into(s, msg->number, turn->now_ns);
    error = s->loop->decoded.error;

    memset(&delivery, 0, sizeof(delivery));
    delivery.struct_size = sizeof(delivery);
    delivery.source = s->id;
    delivery.replayed = s->action.replayed ? 1 : 0;
    delivery.user = s->opts.user;
    delivery.number = msg->number;
    delivery.topic = msg->topic;
    delivery.payload = msg->payload;
    delivery.publisher_id = msg->publisher_id != NULL
        ? msg->publisher_id
        : kve_batch_get_info(s->loop->batch)->publisher_id;
    delivery.batch = s->loop->batch;
    delivery.status = s->loop->decoded.status;
    delivery.error = &error;
    delivery.hidden = s->action.hidden ? 1 : 0;
    delivery.snapshot = s->action.snapshot ? 1 : 0;
    kve_loop_forget(s->loop);
    s->untold = false;
    if (!kve_loop_enter(s->loop, s))
        return KVE_OK;
    turn->stop = callbacks->on_batch(callbacks->ctx, &delivery) != 0;
    turn->batches++;
    kve_loop_leave(s->loop, s);
    return KVE_OK;
}
