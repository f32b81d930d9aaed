/*
 * ask.c - the request of a source: its slot, its socket, its answer.
 *
 *     the machine says ASK --> slot? --no--> wait in line, no socket yet
 *                               | yes            | granted
 *                               v                v
 *                        a fresh socket; kve_machine_asked(): its time runs
 *                               |
 *                  answer: batches, or the frames of a snapshot
 *                               |
 *                        STOP, or silence of a second: the slot is free
 *
 * What goes wrong when the socket is made counts as an answer that does not
 * come: the machine tries again and, in the end, says so. The limit of sockets
 * for instance may be reached now and free again later. Only want of memory is
 * the caller's to know; nothing is lost by it.
 */
#include "subscribe/source.h"

#include "base/clock.h"
#include "base/status.h"
#include "subscribe/loop.h"
#include "subscribe/set.h"

#include <kvevents/codec.h>

#include <stdio.h>
#include <string.h>

/* A request that hears nothing for so long gives way to those that wait. */
#define QUIET_NS (1000 * KVE_MS)

static struct kve_slots *
slots_of(struct kve_source *s)
{
    return &s->loop->set->slots;
}

static void
give_slot_back(struct kve_source *s)
{
    s->ask.quiet_at = KVE_NEVER;
    s->ask.has_slot = false;
    kve_slot_give_back(slots_of(s), &s->ask.slot);
}

void
kve_ask_begin(struct kve_source *s)
{
    struct kve_ask *ask = &s->ask;

    kve_ask_end(s);
    ask->id = s->action.ask;
    ask->kind = s->action.kind;
    ask->first = s->action.first;
    ask->opened = false;
    ask->phase = KVE_SNAP_NUMBER;
    ask->more = false;
    ask->ended = false;
    ask->n_empty = 0;
    ask->bytes = 0;
    ask->why[0] = '\0';
    ask->has_slot = kve_slot_take(slots_of(s), &ask->slot, &s->loop->grants);
    if (!ask->has_slot)
        kve_sub_count(&s->counters, KVE_COUNTER_SUB_WAITS, 1);
}

/* The message stays: a batch of it may be waiting to be delivered. */
static void
close_handle(struct kve_source *s)
{
    struct kve_replay_ask *handle = s->ask.handle;

    if (handle == NULL)
        return;
    s->ask.handle = NULL;
    (void)kve_loop_watch(s->loop, s, KVE_TAG_ASK, &s->ask.watched, NULL, 0,
        NULL); /* only removes */
    s->ask.transport->replay_ask_close(handle);
}

void
kve_ask_end(struct kve_source *s)
{
    if (s->ask.id == 0)
        return;
    s->ask.id = 0;
    close_handle(s);
    if (s->ask.msg.release != NULL)
        kve_loop_forget(s->loop);
    kve_msg_release(&s->ask.msg);
    s->ask.has_msg = false;
    give_slot_back(s);
}

static kve_status
sync_fds(struct kve_source *s, struct kve_error *err)
{
    int fds[KVE_MAX_FDS];
    size_t n = s->ask.transport->replay_ask_fds(s->ask.handle, fds);

    return kve_loop_watch(
        s->loop, s, KVE_TAG_ASK, &s->ask.watched, fds, n, err);
}

/* No answer will come by this socket; the machine's deadline does the rest. */
static void
broke(struct kve_source *s, const struct kve_error *why)
{
    close_handle(s);
    (void)snprintf(s->ask.why, sizeof(s->ask.why), "%s", why->detail);
    give_slot_back(s);
    kve_sub_count(&s->counters, KVE_COUNTER_SUB_REPLAY_FAULTS, 1);
}

kve_status
kve_ask_open_due(struct kve_source *s, struct kve_error *err)
{
    struct kve_ask *ask = &s->ask;
    bool snapshot = ask->kind == KVE_ASK_SNAPSHOT;
    const char *endpoint = snapshot ? s->snapshot_endpoint : s->replay_endpoint;
    uint32_t pause_ms =
        (snapshot ? s->opts.snapshot_timeout_ms : s->opts.replay_timeout_ms) /
        10;
    struct kve_error why = { KVE_OK, 0, 0, "" };
    kve_status status;

    if (ask->id == 0 || ask->opened || !ask->has_slot)
        return KVE_OK;

    struct kve_dial_opts dial = kve_source_dial_opts(s, endpoint, KVE_BIND_NO);
    /* The request has a deadline, and live messages wait for the answer: an
     * endpoint that comes up meanwhile is to be found well before it. */
    if (dial.reconnect_max_ms > pause_ms && pause_ms > 0)
        dial.reconnect_max_ms = pause_ms;
    ask->dry = false;
    ask->transport = kve_transport_find(endpoint, &why);
    status = ask->transport == NULL
        ? KVE_E_INVAL
        : ask->transport->replay_ask_open(s->loop->context, &dial,
              snapshot ? KVE_SNAPSHOT_WORD : ask->first, &ask->handle, &why);
    if (status == KVE_OK)
        status = sync_fds(s, &why);
    if (status == KVE_E_NOMEM) {
        close_handle(s);
        return kve_fail(err, KVE_E_NOMEM, "%s", why.detail);
    }

    int64_t now_ns = kve_now_ns();
    ask->opened = true;
    ask->quiet_at = now_ns + QUIET_NS;
    if (status != KVE_OK)
        broke(s, &why);
    kve_machine_asked(s->machine, now_ns, ask->id);
    return KVE_OK;
}

kve_status
kve_ask_step(struct kve_source *s, int64_t now_ns, struct kve_error *err)
{
    struct kve_ask *ask = &s->ask;
    struct kve_error why = { KVE_OK, 0, 0, "" };
    bool changed = false;
    kve_status status;

    if (ask->has_slot && now_ns >= ask->quiet_at)
        give_slot_back(s);
    if (ask->handle == NULL)
        return KVE_OK;
    status =
        ask->transport->replay_ask_step(ask->handle, now_ns, &changed, &why);
    ask->dry = false;
    if (status == KVE_OK && changed)
        status = sync_fds(s, &why);
    if (status == KVE_E_NOMEM)
        return kve_fail(err, KVE_E_NOMEM, "%s", why.detail);
    if (status != KVE_OK)
        broke(s, &why);
    return KVE_OK;
}

int64_t
kve_ask_deadline(struct kve_source *s)
{
    struct kve_ask *ask = &s->ask;
    int64_t deadline = ask->quiet_at;

    if (ask->handle != NULL) {
        int64_t handle = ask->transport->replay_ask_deadline(ask->handle);
        if (handle < deadline)
            deadline = handle;
    }
    return deadline;
}

/*
 * Whether a batch of the answer is of this source. Several publishers can
 * stand behind the endpoint that a stream asks; only one of them is meant.
 */
static bool
is_ours(const struct kve_source *s, const struct kve_message *message)
{
    const struct kve_batch_info *info = kve_batch_get_info(s->loop->batch);

    if (s->parent == NULL)
        return true;
    if (message->has_topic &&
        (message->topic.len != s->topic_len ||
            memcmp(message->topic.data, s->topic, s->topic_len) != 0))
        return false;
    if (s->loop->decoded.status != KVE_OK)
        return true; /* its rank was perhaps not read */
    return info->rank.set == s->rank.set &&
        (!s->rank.set || info->rank.value == s->rank.value);
}

static kve_status
feed_replay(struct kve_source *s, int64_t now_ns, struct kve_error *err)
{
    struct kve_error why = { KVE_OK, 0, 0, "" };
    struct kve_message message;
    kve_status status;

    if (kve_message_read(&s->ask.msg, true, &message, &why) != KVE_OK) {
        s->ask.has_msg = false;
        kve_sub_count(&s->counters, KVE_COUNTER_SUB_REPLAY_FAULTS, 1);
        kve_message_bad(s, &why);
        if (!kve_source_gone(s))
            kve_machine_replay_failed(s->machine, now_ns, s->ask.id);
        return KVE_OK;
    }
    if (message.kind == KVE_MESSAGE_END) {
        s->ask.has_msg = false;
        kve_machine_replay_end(s->machine, now_ns, s->ask.id);
        return KVE_OK;
    }
    status = kve_loop_decode(s->loop, message.payload, err);
    if (status != KVE_OK)
        return status;
    s->ask.has_msg = false;
    kve_sub_count(&s->counters, KVE_COUNTER_SUB_REPLAY_MESSAGES, 1);
    kve_sub_count(
        &s->counters, KVE_COUNTER_SUB_REPLAY_BYTES, message.payload.len);
    if (!is_ours(s, &message)) {
        kve_sub_count(&s->counters, KVE_COUNTER_SUB_REPLAY_FAULTS, 1);
        return KVE_OK;
    }
    struct kve_machine_msg msg = kve_message_of(s, &message);
    kve_machine_replay(s->machine, now_ns, s->ask.id, &msg);
    return KVE_OK;
}

void
kve_ask_heard(struct kve_source *s, int64_t now_ns)
{
    if (s->ask.has_slot)
        s->ask.quiet_at = now_ns + QUIET_NS;
}

kve_status
kve_ask_take(
    struct kve_source *s, int64_t now_ns, bool *ret_took, struct kve_error *err)
{
    struct kve_ask *ask = &s->ask;
    enum kve_io io = KVE_IO_OK;
    kve_status status = KVE_OK;

    if (ask->handle == NULL)
        return KVE_OK;
    if (ask->kind == KVE_ASK_SNAPSHOT)
        return kve_snapshot_take(s, now_ns, ret_took, err);
    if (!ask->has_msg) {
        if (ask->dry)
            return KVE_OK;
        kve_loop_forget(s->loop);
        io = ask->transport->replay_ask_recv(ask->handle, &ask->msg, err);
        ask->dry = io == KVE_IO_AGAIN;
        if (ask->dry)
            return KVE_OK;
        ask->has_msg = io == KVE_IO_OK;
        kve_ask_heard(s, now_ns);
    }
    if (io == KVE_IO_OK) {
        status = feed_replay(s, now_ns, err);
    } else {
        kve_sub_count(&s->counters, KVE_COUNTER_SUB_REPLAY_FAULTS, 1);
        kve_machine_replay_failed(s->machine, now_ns, ask->id);
    }
    *ret_took = status == KVE_OK;
    return status;
}
