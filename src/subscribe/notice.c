/*
 * notice.c - notices: their texts for people, and handing them over.
 */
#include "subscribe/source.h"

#include "subscribe/loop.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void
kve_printable(char *text, size_t cap, struct kve_str from)
{
    size_t n = from.len < cap - 1 ? from.len : cap - 1;

    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)from.data[i];
        text[i] = c >= 0x20 && c < 0x7f ? (char)c : '?';
    }
    text[n] = '\0';
}

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
            "no complete answer from %s to a replay from %" PRIu64 "%s%s",
            s->replay_endpoint, a->first, s->ask.why[0] != '\0' ? ": " : "",
            s->ask.why);
        break;
    case KVE_NOTICE_BEGIN:
        (void)snprintf(text, cap, "building a hidden twin of this source: %s",
            kve_reason_str(a->reason));
        break;
    case KVE_NOTICE_SWAP:
        (void)snprintf(text, cap, "the twin replaces what was known: %s",
            kve_reason_str(a->reason));
        break;
    case KVE_NOTICE_ABORT:
        (void)snprintf(text, cap,
            "the twin is dropped, what was known before still counts: %s",
            kve_reason_str(a->reason));
        break;
    case KVE_NOTICE_SNAPSHOT:
        (void)snprintf(
            text, cap, "asking %s for a snapshot", s->snapshot_endpoint);
        break;
    case KVE_NOTICE_SNAPSHOT_FAILED:
        (void)snprintf(text, cap, "no snapshot from %s: %s",
            s->snapshot_endpoint,
            s->ask.why[0] != '\0' ? s->ask.why : "no answer in time");
        break;
    case KVE_NOTICE_STALE:
        (void)snprintf(text, cap, "no heartbeat for %" PRIu32 " ms",
            s->opts.heartbeat_timeout_ms);
        break;
    case KVE_NOTICE_FRESH:
        (void)snprintf(text, cap, "heard again, after no heartbeat had come");
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
    case KVE_NOTICE_STREAM:
    case KVE_NOTICE_STREAMS_FULL:
        (void)snprintf(text, cap, "%s", kve_notice_str(type));
        break;
    }
}

void
kve_source_notify(struct kve_source *s, enum kve_notice_type type,
    const struct kve_notice_args *args)
{
    const struct kve_sub_callbacks *callbacks = s->loop->callbacks;
    struct kve_notice notice;
    struct kve_source_info info;
    char text[480];

    if (callbacks->on_notice == NULL || kve_source_gone(s))
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
    /* What is told of is to be seen as well. */
    kve_source_publish(s);
    if (!kve_loop_enter(s->loop, s))
        return;
    callbacks->on_notice(callbacks->ctx, &notice);
    kve_loop_leave(s->loop, s);
}
