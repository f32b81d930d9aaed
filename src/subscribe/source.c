/*
 * source.c - see source.h.
 *
 * Reading order: actions, inputs, turns, looking.
 */
#include "subscribe/source.h"

#include "base/clock.h"
#include "subscribe/loop.h"
#include "subscribe/streams.h"

#include <string.h>

#define QUOTA 256 /* inputs a turn, so that sources share fairly */
/* The same in time, for slow callbacks. Less than a publisher needs to come
 * back: word of a lost connection, read when a turn begins, must be read
 * before what comes by the next connection. */
#define TURN_NS (10 * KVE_MS)

/* ---- actions ------------------------------------------------------- */

static enum kve_notice_type
notice_of(const struct kve_action *a)
{
    switch (a->type) {
    case KVE_ACTION_CLEAR:
        return KVE_NOTICE_CLEAR;
    case KVE_ACTION_BEGIN:
        return KVE_NOTICE_BEGIN;
    case KVE_ACTION_SWAP:
        return KVE_NOTICE_SWAP;
    case KVE_ACTION_ABORT:
        return KVE_NOTICE_ABORT;
    case KVE_ACTION_STATE:
        return KVE_NOTICE_STATE;
    case KVE_ACTION_APPLY:
    case KVE_ACTION_ASK:
    case KVE_ACTION_STOP:
    case KVE_ACTION_NOTICE:
        break;
    }
    return (enum kve_notice_type)a->notice;
}

static void
forward_notice(struct kve_source *s, int64_t now_ns)
{
    const struct kve_action *a = &s->action;
    struct kve_notice_args args = { a->first, a->last, a->old_state, a->state,
        a->reason, 0, 0, NULL };

    if (notice_of(a) == KVE_NOTICE_STALE)
        s->unheard_since = now_ns;
    kve_source_notify(s, notice_of(a), &args);
}

static kve_status
execute(struct kve_source *s, struct kve_turn *turn, struct kve_error *err)
{
    kve_status status = KVE_OK;

    switch (s->action.type) {
    case KVE_ACTION_APPLY:
        status = kve_source_deliver(s, turn, err);
        if (status != KVE_OK)
            return status; /* again, next turn */
        break;
    case KVE_ACTION_ASK:
        kve_ask_begin(s);
        status = kve_ask_open_due(s, err);
        break;
    case KVE_ACTION_STOP:
        if (s->ask.id == s->action.ask)
            kve_ask_end(s);
        break;
    case KVE_ACTION_CLEAR:
    case KVE_ACTION_BEGIN:
    case KVE_ACTION_SWAP:
    case KVE_ACTION_ABORT:
    case KVE_ACTION_STATE:
    case KVE_ACTION_NOTICE:
        forward_notice(s, turn->now_ns);
        break;
    }
    s->has_action = false;
    return status;
}

/* No more batches in this turn. */
static bool
is_enough(const struct kve_turn *turn)
{
    return turn->stop || turn->late || turn->batches >= turn->max_batches;
}

kve_status
kve_source_run_actions(struct kve_source *s, struct kve_turn *turn,
    bool *ret_done, struct kve_error *err)
{
    kve_status status = KVE_OK;
    bool delivers;

    *ret_done = false;
    while (status == KVE_OK && !kve_source_gone(s)) {
        /* Before it is pulled: between turns the reader stands where the
         * machine says. */
        if (is_enough(turn) &&
            (s->has_action ? s->action.type == KVE_ACTION_APPLY
                           : kve_machine_may_apply(s->machine))) {
            turn->more = true;
            return KVE_OK;
        }
        if (!s->has_action)
            s->has_action = kve_machine_next(s->machine, &s->action);
        if (!s->has_action)
            break;
        delivers = s->action.type == KVE_ACTION_APPLY;
        status = execute(s, turn, err);
        if (delivers && kve_now_ns() - turn->now_ns >= TURN_NS)
            turn->late = true;
    }
    *ret_done = status == KVE_OK;
    return status;
}

/* ---- inputs -------------------------------------------------------- */

/* Which machines hear of it: one's own, or those of the streams. */
static void
feed_link(struct kve_source *s, int64_t now_ns, bool up)
{
    if (s->streams != NULL)
        kve_streams_link(s, up);
    else if (up)
        kve_machine_connected(s->machine, now_ns);
    else
        kve_machine_disconnected(s->machine, now_ns);
}

static void
on_connected(struct kve_source *s, int64_t now_ns)
{
    kve_sub_count(&s->counters, KVE_COUNTER_SUB_CONNECTS, 1);
    s->connected = true;
    s->was_connected = true;
    s->stale_since = 0;
    feed_link(s, now_ns, true);
}

/* Of several peers of a bound socket one left: it is not known whose stream
 * that ends, and the others go on. */
static void
on_disconnected(struct kve_source *s, int64_t now_ns, uint32_t peers)
{
    kve_sub_count(&s->counters, KVE_COUNTER_SUB_DISCONNECTS, 1);
    if (peers > 0)
        return;
    s->connected = false;
    s->stale_since = now_ns;
    feed_link(s, now_ns, false);
}

static void
feed_link_event(
    struct kve_source *s, int64_t now_ns, const struct kve_link_event *event)
{
    struct kve_notice_args args = { 0 };
    enum kve_notice_type type = KVE_NOTICE_DISCONNECTED;

    args.detail = event->detail[0] != '\0' ? event->detail : NULL;
    switch ((enum kve_link_event_type)event->type) {
    case KVE_LINK_CONNECTED:
        on_connected(s, now_ns);
        type = KVE_NOTICE_CONNECTED;
        break;
    case KVE_LINK_DISCONNECTED:
        on_disconnected(s, now_ns, event->peers);
        break;
    case KVE_LINK_OVERSIZE:
        kve_sub_count(&s->counters, KVE_COUNTER_SUB_OVERSIZE, 1);
        break;
    case KVE_LINK_REFUSED:
        break;
    case KVE_LINK_RESOLVE_FAILED:
        kve_sub_count(&s->counters, KVE_COUNTER_SUB_RESOLVE_FAILURES, 1);
        type = KVE_NOTICE_RESOLVE_FAILED;
        break;
    }
    kve_source_notify(s, type, &args);
}

/* The next connection event, when there is one. */
static bool
take_event(struct kve_source *s, int64_t now_ns)
{
    struct kve_link_event event;

    if (s->events_dry)
        return false;
    s->stepped = true;
    if (!s->transport->live_in_event(s->live, &event)) {
        s->events_dry = true;
        return false;
    }
    feed_link_event(s, now_ns, &event);
    return true;
}

/* The publisher's word that it was reset. */
static void
feed_reset(struct kve_source *s, int64_t now_ns, struct kve_span topic)
{
    if (s->streams != NULL)
        kve_streams_reset(s, topic);
    else
        kve_machine_reset(s->machine, now_ns);
}

/*
 * The stream that a decoded message is for, ready to be fed: its machine was
 * told what came before. *ret_to NULL: the message is to be dropped. *ret_done
 * false: the turn ends here, and the message waits.
 */
static kve_status
find_stream(struct kve_source *s, const struct kve_message *message,
    struct kve_turn *turn, struct kve_source **ret_to, bool *ret_done,
    struct kve_error *err)
{
    kve_status status = kve_streams_find(s, message, turn->now_ns, ret_to, err);

    *ret_done = status == KVE_OK;
    if (status != KVE_OK || *ret_to == NULL)
        return status;
    status = kve_stream_settle(*ret_to, turn, ret_done, err);
    if (status != KVE_OK || !*ret_done)
        return status;
    if (is_enough(turn)) { /* what it brings could not be delivered */
        turn->more = true;
        *ret_done = false;
        return KVE_OK;
    }
    if (kve_source_gone(*ret_to)) {
        *ret_to = NULL;
        return KVE_OK;
    }
    /* What was executed meanwhile may have taken the batch. */
    status = kve_loop_decode(s->loop, message->payload, err);
    *ret_done = status == KVE_OK;
    return status;
}

/* The message in live_msg. *ret_took false: it waits for the next turn. */
static kve_status
feed_live(struct kve_source *s, struct kve_turn *turn, bool *ret_took,
    struct kve_error *err)
{
    struct kve_error why = { KVE_OK, 0, 0, "" };
    struct kve_source *to = s;
    struct kve_message message;
    bool done = true;
    kve_status status;

    if (kve_message_read(&s->live_msg, false, &message, &why) != KVE_OK) {
        s->has_live = false;
        *ret_took = true;
        kve_message_bad(s, &why);
        return KVE_OK;
    }
    if (message.kind == KVE_MESSAGE_RESET) {
        s->has_live = false;
        *ret_took = true;
        kve_sub_count(&s->counters, KVE_COUNTER_SUB_MESSAGES, 1);
        feed_reset(s, turn->now_ns, message.topic);
        return KVE_OK;
    }
    status = kve_loop_decode(s->loop, message.payload, err);
    if (status == KVE_OK && s->streams != NULL)
        status = find_stream(s, &message, turn, &to, &done, err);
    if (status != KVE_OK || !done)
        return status;

    s->has_live = false;
    *ret_took = true;
    if (to == NULL)
        return KVE_OK;
    kve_sub_count(&to->counters, KVE_COUNTER_SUB_MESSAGES, 1);
    kve_sub_count(&to->counters, KVE_COUNTER_SUB_BYTES, message.payload.len);
    to->heard_at = turn->now_ns;
    struct kve_machine_msg msg = kve_message_of(to, &message);
    kve_machine_live(to->machine, turn->now_ns, &msg);
    s->busy = to;
    return KVE_OK;
}

/* One live message, when there is one. */
static kve_status
take_live(struct kve_source *s, struct kve_turn *turn, bool *ret_took,
    struct kve_error *err)
{
    if (s->has_live)
        return feed_live(s, turn, ret_took, err);
    if (s->live_dry)
        return KVE_OK;
    kve_loop_forget(s->loop);
    switch (s->transport->live_in_recv(s->live, &s->live_msg, err)) {
    case KVE_IO_OK:
        s->has_live = true;
        return feed_live(s, turn, ret_took, err);
    case KVE_IO_AGAIN:
        s->live_dry = true;
        return KVE_OK;
    case KVE_IO_GONE:
    case KVE_IO_ERROR:
        break;
    }
    return KVE_E_SYSTEM;
}

/* A stream that nobody spoke for, for too long. */
static bool
take_silence(struct kve_source *s, int64_t now_ns)
{
    int64_t until = s->heard_at + s->opts.stream_idle_ms * KVE_MS;

    if (now_ns < s->idle_at)
        return false;
    if (now_ns < until) {
        s->idle_at = until; /* it was heard since this was set */
        return false;
    }
    s->idle_at = KVE_NEVER;
    s->silent = true;
    kve_streams_forget(s->parent, s);
    kve_machine_gone(s->machine, now_ns, KVE_REASON_SILENT);
    return true;
}

/* The next input of any kind; *ret_took false: there is none. */
static kve_status
take_input(struct kve_source *s, struct kve_turn *turn, bool *ret_took,
    struct kve_error *err)
{
    int64_t now_ns = turn->now_ns;
    kve_status status;

    *ret_took = false;
    if (s->silent)
        return KVE_OK;
    *ret_took = true;
    if (take_event(s, now_ns) ||
        (s->parent != NULL &&
            (kve_stream_take_news(s, now_ns) || take_silence(s, now_ns))))
        return KVE_OK;
    if (kve_machine_deadline(s->machine) <= now_ns) {
        kve_machine_timer(s->machine, now_ns);
        return KVE_OK;
    }
    *ret_took = false;
    s->replay_first = !s->replay_first;
    if (s->replay_first) {
        status = kve_ask_take(s, now_ns, ret_took, err);
        if (status == KVE_OK && !*ret_took)
            status = take_live(s, turn, ret_took, err);
    } else {
        status = take_live(s, turn, ret_took, err);
        if (status == KVE_OK && !*ret_took && !turn->more)
            status = kve_ask_take(s, now_ns, ret_took, err);
    }
    return status;
}

/* ---- turns --------------------------------------------------------- */

static kve_status
step_live(struct kve_source *s, int64_t now_ns, struct kve_error *err)
{
    bool changed = false;
    kve_status status =
        s->transport->live_in_step(s->live, now_ns, &changed, err);

    /* What was done there can have swallowed a wake-up. */
    s->live_dry = false;
    s->events_dry = false;
    s->stepped = true;
    if (changed)
        s->unwatched = true;
    return status;
}

/* Word of the connection that came since epoll was asked counts, too: by then
 * messages of the next one can be here. */
static bool
is_old_news(const struct kve_source *s, int64_t now_ns)
{
    return now_ns - s->loop->collected_at >= TURN_NS;
}

static kve_status
step_handles(struct kve_source *s, int64_t now_ns, struct kve_error *err)
{
    unsigned ready = s->ready;
    kve_status status = KVE_OK;

    s->ready = 0;
    s->retry_at = KVE_NEVER;
    if (ready & KVE_READY(KVE_TAG_LIVE))
        s->live_dry = false;
    if (ready & KVE_READY(KVE_TAG_ASK))
        s->ask.dry = false;
    if (s->live != NULL &&
        ((ready & KVE_READY(KVE_TAG_LINK)) || s->live_at <= now_ns ||
            is_old_news(s, now_ns)))
        status = step_live(s, now_ns, err);
    if (status == KVE_OK && s->unwatched)
        status = kve_source_sync(s, err);
    if (status == KVE_OK && (ready & KVE_READY(KVE_TAG_ASK_LINK)))
        status = kve_ask_step(s, now_ns, err);
    else if (status == KVE_OK && kve_ask_deadline(s) <= now_ns)
        status = kve_ask_step(s, now_ns, err);
    if (status == KVE_OK)
        status = kve_ask_open_due(s, err);
    if (status != KVE_OK)
        s->ready |= ready;
    return status;
}

static bool
is_full(const struct kve_turn *turn)
{
    return is_enough(turn) || turn->inputs >= QUOTA;
}

static kve_status
work(struct kve_source *s, struct kve_turn *turn, struct kve_error *err)
{
    kve_status status = KVE_OK;
    bool took = true;
    bool done;

    while (took && !kve_source_gone(s)) {
        struct kve_source *busy = s->busy != NULL ? s->busy : s;

        status = kve_source_run_actions(busy, turn, &done, err);
        /* Removed meanwhile: what its machine still wanted stays undone. */
        if (status != KVE_OK || !done || kve_source_gone(s))
            break;
        if (s->busy != NULL && s->busy != s) {
            kve_source_publish(s->busy);
            kve_loop_reschedule(s->loop, s->busy); /* not its turn, but ours */
        }
        s->busy = NULL;
        if (is_full(turn)) {
            turn->more = true;
            break;
        }
        status = take_input(s, turn, &took, err);
        if (status != KVE_OK)
            break;
        turn->inputs += took;
    }
    return status;
}

kve_status
kve_source_turn(
    struct kve_source *s, struct kve_turn *turn, struct kve_error *err)
{
    kve_status status = step_handles(s, turn->now_ns, err);

    if (status == KVE_OK)
        status = work(s, turn, err);
    /* In this turn whatever else: nobody but itself knows of it any more. */
    if (s->silent) {
        kve_sub_count(&s->parent->counters, KVE_COUNTER_SUB_STREAMS_GONE, 1);
        kve_loop_drop(s->loop, s);
    }
    kve_source_publish(s);
    return status;
}

static int64_t
earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t
kve_source_deadline(struct kve_source *s)
{
    int64_t deadline = kve_machine_deadline(s->machine);

    /* Asked again only when something was done there. */
    if (s->stepped && s->live != NULL)
        s->live_at = s->transport->live_in_deadline(s->live);
    s->stepped = false;
    deadline = earlier(deadline, s->live_at);
    deadline = earlier(deadline, kve_ask_deadline(s));
    deadline = earlier(deadline, s->idle_at);
    /* After an error everything waits, what is due as well. */
    return s->retry_at != KVE_NEVER ? s->retry_at : deadline;
}

/* ---- looking ------------------------------------------------------- */

void
kve_source_info(const struct kve_source *s, struct kve_source_info *info)
{
    const struct kve_source *owner = s->parent != NULL ? s->parent : s;

    kve_machine_info(s->machine, info);
    if (s->streams != NULL)
        info->connected = s->connected;
    if (owner->was_connected && owner->stale_since != 0) {
        info->stale = true;
        info->stale_since_ns = owner->stale_since;
    } else if (info->stale) {
        info->stale_since_ns = s->unheard_since;
    }
    info->unknown_events = s->unknown_events;
    info->endpoint = s->endpoint;
    info->replay_endpoint =
        s->replay_endpoint != NULL ? s->replay_endpoint : "";
    info->snapshot_endpoint =
        s->snapshot_endpoint != NULL ? s->snapshot_endpoint : "";
    info->parent = s->parent_id;
    info->topic = (struct kve_str){ s->topic, s->topic_len };
    info->rank = s->rank;
}

void
kve_source_position(const struct kve_source *s, struct kve_position *ret)
{
    if (s->untold)
        memset(ret, 0, sizeof(*ret));
    else
        kve_machine_position(s->machine, ret);
}

void
kve_source_publish(struct kve_source *s)
{
    struct kve_source_info info;

    if (!s->has_info_lock)
        return;
    memset(&info, 0, sizeof(info));
    kve_source_info(s, &info);
    (void)pthread_mutex_lock(&s->info_lock);
    s->info = info;
    (void)pthread_mutex_unlock(&s->info_lock);
}
