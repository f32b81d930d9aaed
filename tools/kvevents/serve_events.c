/*
 * serve_events.c - what an ingest says, as lines of the log.
 */
#include "serve_events.h"

#include <stdio.h>
#include <string.h>

/* How much a notice matters, and which of its fields mean something. */
struct notice_line {
    enum kve_log_level level;
    bool first;
    bool last;
    const char *msg;
};

static struct notice_line
notice_line(const struct kve_notice *notice)
{
    static const struct notice_line lines[] = {
        [KVE_NOTICE_CONNECTED] = { KVE_LOG_DEBUG, false, false, "connected" },
        [KVE_NOTICE_DISCONNECTED] = { KVE_LOG_WARNING, false, false,
            "the live connection is gone" },
        [KVE_NOTICE_GAP] = { KVE_LOG_INFO, true, true,
            "batches are missing from the live stream" },
        [KVE_NOTICE_REPLAY] = { KVE_LOG_DEBUG, true, false,
            "a replay was asked for" },
        [KVE_NOTICE_REPAIRED] = { KVE_LOG_INFO, true, true,
            "missing batches came by replay" },
        [KVE_NOTICE_LOST] = { KVE_LOG_WARNING, true, true,
            "batches are gone for good" },
        [KVE_NOTICE_CLEAR] = { KVE_LOG_WARNING, false, false,
            "what was known of the source is forgotten" },
        [KVE_NOTICE_UNREADABLE] = { KVE_LOG_WARNING, true, false,
            "an event of a batch can not be read" },
        [KVE_NOTICE_UNKNOWN_EVENT] = { KVE_LOG_WARNING, true, false,
            "an event of a type that is not known here" },
        [KVE_NOTICE_BAD_FRAMES] = { KVE_LOG_WARNING, false, false,
            "a message that is no batch" },
        [KVE_NOTICE_REPLAY_FAILED] = { KVE_LOG_WARNING, true, false,
            "a replay did not end" },
        [KVE_NOTICE_RESOLVE_FAILED] = { KVE_LOG_WARNING, false, false,
            "a name can not be resolved" },
        [KVE_NOTICE_HOLD_FULL] = { KVE_LOG_INFO, false, false,
            "too much came during a replay; it will be asked for again" },
        [KVE_NOTICE_BEGIN] = { KVE_LOG_DEBUG, false, false,
            "the source is built anew" },
        [KVE_NOTICE_SWAP] = { KVE_LOG_INFO, false, false,
            "the source was built anew" },
        [KVE_NOTICE_ABORT] = { KVE_LOG_WARNING, false, false,
            "building the source anew was given up" },
        [KVE_NOTICE_SNAPSHOT] = { KVE_LOG_DEBUG, false, false,
            "a snapshot was asked for" },
        [KVE_NOTICE_SNAPSHOT_FAILED] = { KVE_LOG_WARNING, false, false,
            "there is no snapshot" },
        [KVE_NOTICE_STALE] = { KVE_LOG_WARNING, false, false,
            "no heartbeat comes any more" },
        [KVE_NOTICE_FRESH] = { KVE_LOG_INFO, false, false,
            "it is heard again" },
        [KVE_NOTICE_STREAM] = { KVE_LOG_INFO, false, false, "a new stream" },
        [KVE_NOTICE_STREAMS_FULL] = { KVE_LOG_WARNING, false, false,
            "batches of further streams are dropped" },
    };
    static const struct notice_line unknown = { KVE_LOG_INFO, false, false,
        "something else" };

    if (notice->type >= sizeof(lines) / sizeof(lines[0]) ||
        lines[notice->type].msg == NULL)
        return unknown;
    return lines[notice->type];
}

static void
put_source(struct log_line *line, const struct kve_ingest_event *event)
{
    log_u64(line, "source", event->source);
    log_text(line, "worker", event->worker);
    log_u64(line, "rank", event->rank);
    log_text(line, "model", event->model);
    log_text(line, "tenant", event->tenant);
}

static void
log_state(struct logs *logs, const struct kve_ingest_event *event)
{
    const struct kve_notice *notice = event->notice;
    struct log_line line;
    char msg[64];

    (void)snprintf(msg, sizeof(msg), "%s", kve_state_str(notice->state));
    log_begin(&line, logs,
        notice->state == KVE_STATE_DEGRADED ? KVE_LOG_WARNING : KVE_LOG_INFO,
        "state", msg);
    put_source(&line, event);
    log_text(&line, "reason", kve_reason_str(notice->reason));
    log_text(&line, "before", kve_state_str(notice->old_state));
    log_end(&line);
}

static void
log_notice(struct logs *logs, const struct kve_ingest_event *event)
{
    const struct kve_notice *notice = event->notice;
    struct notice_line about = notice_line(notice);
    struct log_line line;

    if (notice->type == KVE_NOTICE_STATE) {
        log_state(logs, event);
        return;
    }
    log_begin(
        &line, logs, about.level, kve_notice_str(notice->type), about.msg);
    put_source(&line, event);
    if (about.first)
        log_u64(&line, about.last ? "first" : "number", notice->first);
    if (about.last)
        log_u64(&line, "last", notice->last);
    log_text(&line, "state", kve_state_str(notice->state));
    log_text(&line, "reason", kve_reason_str(notice->reason));
    if (*notice->detail != '\0')
        log_text(&line, "detail", notice->detail);
    log_end(&line);
}

static void
log_other(struct logs *logs, const struct kve_ingest_event *event,
    enum kve_log_level level, const char *msg)
{
    struct log_line line;

    log_begin(&line, logs, level, kve_ingest_event_str(event->type), msg);
    put_source(&line, event);
    if (event->type == KVE_INGEST_EVENT_NOT_APPLIED)
        log_u64(&line, "number", event->number);
    if (*event->detail != '\0')
        log_text(&line, "detail", event->detail);
    log_end(&line);
}

void
serve_event_log(struct logs *logs, const struct kve_ingest_event *event)
{
    switch (event->type) {
    case KVE_INGEST_EVENT_NOTICE:
        log_notice(logs, event);
        break;
    case KVE_INGEST_EVENT_ADDED:
        log_other(logs, event, KVE_LOG_INFO, "a source was added");
        break;
    case KVE_INGEST_EVENT_REMOVED:
        log_other(logs, event, KVE_LOG_INFO, "a source was removed");
        break;
    case KVE_INGEST_EVENT_PAUSED:
        log_other(logs, event, KVE_LOG_INFO, "a source was paused");
        break;
    case KVE_INGEST_EVENT_RESUMED:
        log_other(logs, event, KVE_LOG_INFO, "a source goes on");
        break;
    case KVE_INGEST_EVENT_CLEARED:
        log_other(logs, event, KVE_LOG_INFO, "a source was emptied by a call");
        break;
    case KVE_INGEST_EVENT_BLOCK_SIZE:
        log_other(logs, event, KVE_LOG_WARNING,
            "the stream has another block size than was registered");
        break;
    case KVE_INGEST_EVENT_NOT_APPLIED:
        log_other(
            logs, event, KVE_LOG_WARNING, "events of a batch were not applied");
        break;
    default: /* batches have no line */
        break;
    }
}
