/*
 * source.c - see source.h.
 */
#include "subscribe/source.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "stream/digest.h"
#include "transport/context.h"
#include "transport/endpoint.h"

#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define QUOTA 256 /* inputs a turn, so that sources share fairly */
/* The same in time, for slow callbacks. Less than a publisher needs to come
 * back: word of a lost connection, read when a turn begins, must be read
 * before what comes by the next connection. */
#define TURN_NS (10 * KVE_MS)

/* ---- creation ------------------------------------------------------ */

static kve_status
move_by_rank(const char *endpoint, struct kve_int rank, char **ret_text,
    struct kve_error *err)
{
    char text[KVE_ENDPOINT_MAX];
    kve_status status = kve_endpoint_of_rank(
        endpoint, rank.set ? (uint32_t)rank.value : 0, text, sizeof(text), err);

    if (status != KVE_OK)
        return status;
    *ret_text = kve_mem_strdup(text);
    return *ret_text != NULL ? KVE_OK : kve_fail_nomem(err, "endpoint");
}

static uint32_t
or_default(uint32_t given, uint32_t value)
{
    return given != 0 ? given : value;
}

/* Defaults filled in, limits checked; pointers are still the caller's. */
static kve_status
check_opts(struct kve_source_opts *o, struct kve_error *err)
{
    if (o->endpoint == NULL)
        o->endpoint = "tcp://127.0.0.1:5557";
    if (o->topic == NULL)
        o->topic = "";
    if (o->replay_endpoint != NULL && o->replay_endpoint[0] == '\0')
        o->replay_endpoint = NULL;
    if (o->bind > KVE_BIND_GUESS)
        return kve_fail(err, KVE_E_INVAL,
            "bind is %u; accepted are 0 (default), 1 (yes), 2 (no), 3 (guess)",
            o->bind);
    if (o->on_loss > KVE_ON_LOSS_REBUILD)
        return kve_fail(err, KVE_E_INVAL,
            "on_loss is %u; accepted are 0 (default), 1 (keep), 2 (rebuild)",
            o->on_loss);
    if (o->start > KVE_START_NUMBER)
        return kve_fail(err, KVE_E_INVAL,
            "start is %u; accepted are 0 (default), 1 (live), 2 (number)",
            o->start);
    if (o->start == KVE_START_NUMBER && o->replay_endpoint == NULL)
        return kve_fail(err, KVE_E_INVAL,
            "start is a number, but there is no replay_endpoint to ask for "
            "it");
    if (o->rank.set && (o->rank.value < 0 || o->rank.value > 65535))
        return kve_fail(err, KVE_E_INVAL,
            "rank is %lld; accepted are 0 to 65535", (long long)o->rank.value);

    o->recv_hwm = or_default(o->recv_hwm, 4096);
    o->hold_items = or_default(o->hold_items, 65536);
    o->replay_timeout_ms = or_default(o->replay_timeout_ms, 5000);
    o->tail_probe_ms = or_default(o->tail_probe_ms, 500);
    o->reconnect_ms = or_default(o->reconnect_ms, 100);
    o->reconnect_max_ms = or_default(o->reconnect_max_ms, 5000);
    o->resolve_timeout_ms = or_default(o->resolve_timeout_ms, 5000);
    if (o->max_body_len == 0)
        o->max_body_len = (size_t)16 << 20;
    if (o->hold_bytes == 0)
        o->hold_bytes = (size_t)64 << 20;
    if (o->on_loss == KVE_ON_LOSS_DEFAULT)
        o->on_loss =
            o->replay_endpoint != NULL ? KVE_ON_LOSS_REBUILD : KVE_ON_LOSS_KEEP;
    return KVE_OK;
}

static kve_status
copy_key(char **ret_key, const char *key, struct kve_error *err)
{
    if (key == NULL)
        return KVE_OK;
    *ret_key = kve_mem_strdup(key);
    return *ret_key != NULL ? KVE_OK : kve_fail_nomem(err, "key");
}

static kve_status
copy_strings(struct kve_source *s, struct kve_error *err)
{
    struct kve_source_opts *o = &s->opts;
    struct kve_curve given = o->curve;
    kve_status status = move_by_rank(o->endpoint, o->rank, &s->endpoint, err);

    memset(&o->curve, 0, sizeof(o->curve));
    if (status == KVE_OK && o->replay_endpoint != NULL)
        status =
            move_by_rank(o->replay_endpoint, o->rank, &s->replay_endpoint, err);
    if (status == KVE_OK) {
        s->topic = kve_mem_strdup(o->topic);
        if (s->topic == NULL)
            status = kve_fail_nomem(err, "topic");
    }
    if (status == KVE_OK)
        status = copy_key(&s->curve_keys[0], given.server_key, err);
    if (status == KVE_OK)
        status = copy_key(&s->curve_keys[1], given.public_key, err);
    if (status == KVE_OK)
        status = copy_key(&s->curve_keys[2], given.secret_key, err);
    o->curve.server_key = s->curve_keys[0];
    o->curve.public_key = s->curve_keys[1];
    o->curve.secret_key = s->curve_keys[2];
    o->endpoint = s->endpoint;
    o->replay_endpoint = s->replay_endpoint;
    o->topic = s->topic;
    return status;
}

static struct kve_dial_opts
dial_opts(const struct kve_source *s, const char *endpoint, uint32_t bind)
{
    struct kve_dial_opts dial = { .endpoint = endpoint,
        .topic = s->topic,
        .bind = bind,
        .recv_hwm = s->opts.recv_hwm,
        .max_body_len = s->opts.max_body_len,
        .reconnect_ms = s->opts.reconnect_ms,
        .reconnect_max_ms = s->opts.reconnect_max_ms,
        .resolve_timeout_ms = s->opts.resolve_timeout_ms,
        .curve = s->opts.curve };

    return dial;
}

static kve_status
create_machine(struct kve_source *s, struct kve_error *err)
{
    struct kve_machine_opts opts = {
        .has_replay = s->replay_endpoint != NULL,
        .rebuild = s->opts.on_loss == KVE_ON_LOSS_REBUILD,
        .start = s->opts.start,
        .first_number = s->opts.first_number,
        .hold_bytes = s->opts.hold_bytes,
        .hold_items = s->opts.hold_items,
        .replay_timeout_ns = s->opts.replay_timeout_ms * KVE_MS,
        .tail_probe_ns = s->opts.tail_probe_ms == KVE_NONE
            ? KVE_NEVER
            : s->opts.tail_probe_ms * KVE_MS,
        .counters = &s->counters,
    };

    return kve_machine_create(&opts, &s->machine, err);
}

/* ---- descriptors --------------------------------------------------- */

static bool
has_fd(const int *fds, size_t n, int fd)
{
    for (size_t i = 0; i < n; i++)
        if (fds[i] == fd)
            return true;
    return false;
}

/* Bring epoll in line with the descriptors the handles name now. */
static kve_status
sync_fds(struct kve_source *s, struct kve_error *err)
{
    int now[KVE_SOURCE_FDS];
    size_t n = 0;
    kve_status status = KVE_OK;

    /* The epoll instance is the parent's too: leave it as it is. */
    if (kve_context_forked(s->env->context)) {
        s->n_fds = 0;
        return KVE_OK;
    }
    if (s->live != NULL)
        n += s->transport->live_in_fds(s->live, now);
    if (s->ask != NULL)
        n += s->replay_transport->replay_ask_fds(s->ask, now + n);

    for (size_t i = 0; i < s->n_fds; i++)
        if (!has_fd(now, n, s->fds[i]))
            (void)epoll_ctl(s->env->epoll_fd, EPOLL_CTL_DEL, s->fds[i], NULL);

    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        struct epoll_event ev = { .events = EPOLLIN, .data = { .ptr = s } };
        if (!has_fd(s->fds, s->n_fds, now[i]) &&
            epoll_ctl(s->env->epoll_fd, EPOLL_CTL_ADD, now[i], &ev) != 0)
            status =
                kve_fail(err, KVE_E_SYSTEM, "epoll_ctl for %s", s->endpoint);
        else
            now[kept++] = now[i];
    }
    memcpy(s->fds, now, kept * sizeof(now[0]));
    s->n_fds = kept;
    return status;
}

static void
close_ask(struct kve_source *s)
{
    if (s->ask == NULL)
        return;

    struct kve_replay_ask *ask = s->ask;
    s->ask = NULL;
    kve_msg_release(&s->replay_msg);
    (void)sync_fds(s, NULL); /* only removes */
    s->replay_transport->replay_ask_close(ask);
}

kve_status
kve_source_create(struct kve_source_env *env, kve_source_id id,
    const struct kve_source_opts *opts, struct kve_source **ret_source,
    struct kve_error *err)
{
    struct kve_source *s = kve_mem_zalloc(1, sizeof(*s));
    kve_status status;

    if (s == NULL) {
        status = kve_fail_nomem(err, "source");
        goto out;
    }
    s->id = id;
    s->env = env;
    s->opts = *opts;
    status = check_opts(&s->opts, err);
    if (status == KVE_OK)
        status = copy_strings(s, err);
    if (status == KVE_OK)
        status = create_machine(s, err);
    if (status != KVE_OK)
        goto out;

    status = KVE_E_INVAL;
    s->transport = kve_transport_find(s->endpoint, err);
    if (s->transport == NULL)
        goto out;
    if (s->replay_endpoint != NULL) {
        s->replay_transport = kve_transport_find(s->replay_endpoint, err);
        if (s->replay_transport == NULL)
            goto out;
    }
    struct kve_dial_opts dial = dial_opts(s, s->endpoint, s->opts.bind);
    status = s->transport->live_in_open(env->context, &dial, &s->live, err);
    if (status == KVE_OK)
        status = sync_fds(s, err);
    if (status != KVE_OK)
        goto out;
    *ret_source = s;
    s = NULL;

out:
    kve_source_destroy(s);
    return status;
}

void
kve_source_close(struct kve_source *s)
{
    close_ask(s);
    kve_msg_release(&s->live_msg);
    if (s->live == NULL)
        return;

    struct kve_live_in *live = s->live;
    s->live = NULL;
    (void)sync_fds(s, NULL);
    s->transport->live_in_close(live);
}

void
kve_source_destroy(struct kve_source *s)
{
    if (s == NULL)
        return;
    kve_source_close(s);
    kve_machine_destroy(s->machine);
    for (size_t i = 0; i < 3; i++) {
        if (s->curve_keys[i] != NULL)
            explicit_bzero(s->curve_keys[i], strlen(s->curve_keys[i]));
        kve_mem_free(s->curve_keys[i]);
    }
    kve_mem_free(s->topic);
    kve_mem_free(s->replay_endpoint);
    kve_mem_free(s->endpoint);
    kve_mem_free(s);
}

/* ---- actions ------------------------------------------------------- */

static kve_status
open_ask(struct kve_source *s, struct kve_error *err)
{
    struct kve_dial_opts dial = dial_opts(s, s->replay_endpoint, KVE_BIND_NO);
    uint32_t pause_ms = s->opts.replay_timeout_ms / 10;
    struct kve_error why = { KVE_OK, 0, 0, "" };
    kve_status status;

    close_ask(s);
    /* The request has a deadline, and live messages wait for the answer: an
     * endpoint that comes up meanwhile is to be found well before it. */
    if (dial.reconnect_max_ms > pause_ms && pause_ms > 0)
        dial.reconnect_max_ms = pause_ms;
    s->ask_id = s->action.ask;
    s->replay_dry = false;
    status = s->replay_transport->replay_ask_open(
        s->env->context, &dial, s->action.first, &s->ask, &why);
    if (status == KVE_OK)
        status = sync_fds(s, &why);
    if (status == KVE_E_NOMEM) {
        close_ask(s);
        return kve_fail(err, KVE_E_NOMEM, "%s", why.detail);
    }
    /* What else goes wrong here counts as an answer that did not come: the
     * machine retries and, in the end, says so. The socket limit for instance
     * may be reached now and free again later. */
    if (status != KVE_OK) {
        close_ask(s);
        kve_sub_count(&s->counters, KVE_COUNTER_SUB_REPLAY_FAULTS, 1);
    }
    return KVE_OK;
}

static void
forward_notice(struct kve_source *s)
{
    const struct kve_action *a = &s->action;
    struct kve_notice_args args = { a->first, a->last, a->old_state, a->state,
        a->reason, 0, 0, NULL };
    enum kve_notice_type type = a->type == KVE_ACTION_CLEAR ? KVE_NOTICE_CLEAR
        : a->type == KVE_ACTION_STATE                       ? KVE_NOTICE_STATE
                                      : (enum kve_notice_type)a->notice;

    kve_source_notify(s, type, &args);
}

static kve_status
execute(struct kve_source *s, int64_t now_ns, struct kve_turn *turn,
    struct kve_error *err)
{
    kve_status status = KVE_OK;

    switch (s->action.type) {
    case KVE_ACTION_APPLY:
        status = kve_source_deliver(s, now_ns, &turn->stop, err);
        if (status == KVE_OK && !s->removed)
            turn->batches++;
        break;
    case KVE_ACTION_ASK:
        status = open_ask(s, err);
        break;
    case KVE_ACTION_STOP:
        if (s->ask_id == s->action.ask)
            close_ask(s);
        break;
    case KVE_ACTION_CLEAR:
    case KVE_ACTION_STATE:
    case KVE_ACTION_NOTICE:
        forward_notice(s);
        break;
    }
    if (status == KVE_OK)
        s->has_action = false;
    return status;
}

/* ---- inputs -------------------------------------------------------- */

static void
bad_frames(struct kve_source *s, const struct kve_error *why)
{
    static const enum kve_counter counters[] = {
        [KVE_FRAMES_ONE] = KVE_COUNTER_SUB_BAD_ONE_FRAME,
        [KVE_FRAMES_TWO] = KVE_COUNTER_SUB_BAD_TWO_FRAMES,
        [KVE_FRAMES_MANY] = KVE_COUNTER_SUB_BAD_MANY_FRAMES,
        [KVE_FRAMES_NUMBER] = KVE_COUNTER_SUB_BAD_NUMBER,
        [KVE_FRAMES_EMPTY] = KVE_COUNTER_SUB_BAD_EMPTY,
    };
    struct kve_notice_args args = { 0, 0, 0, 0, 0, (uint32_t)why->offset, 0,
        why->detail };

    if (why->offset < sizeof(counters) / sizeof(counters[0]))
        kve_sub_count(&s->counters, counters[why->offset], 1);
    kve_source_notify(s, KVE_NOTICE_BAD_FRAMES, &args);
}

static struct kve_machine_msg
machine_msg(const struct kve_source *s, const struct kve_message *message)
{
    struct kve_machine_msg msg = { .number = message->number,
        .digest = kve_digest(message->payload.data, message->payload.len),
        .topic = message->topic,
        .payload = message->payload,
        .publisher_id = message->publisher_id };

    if (!message->has_topic) {
        msg.topic.data = (const uint8_t *)s->topic;
        msg.topic.len = strlen(s->topic);
    }
    return msg;
}

static size_t
frames_kept(const struct kve_msg *msg)
{
    return msg->n_frames < KVE_MSG_FRAMES ? msg->n_frames : KVE_MSG_FRAMES;
}

/* Frames beyond those kept only count: their number is what is wrong. */
static kve_status
read_frames(const struct kve_msg *msg, bool replay,
    struct kve_message *ret_message, struct kve_error *err)
{
    _Static_assert(KVE_MSG_FRAMES > 4, "a message one frame too long is seen");
    return replay
        ? kve_frames_replay(msg->frame, frames_kept(msg), ret_message, err)
        : kve_frames_live(msg->frame, frames_kept(msg), ret_message, err);
}

static void
feed_live(struct kve_source *s, int64_t now_ns)
{
    struct kve_error why = { KVE_OK, 0, 0, "" };
    struct kve_message message;

    if (read_frames(&s->live_msg, false, &message, &why) != KVE_OK) {
        bad_frames(s, &why);
        return;
    }
    kve_sub_count(&s->counters, KVE_COUNTER_SUB_MESSAGES, 1);
    kve_sub_count(&s->counters, KVE_COUNTER_SUB_BYTES, message.payload.len);
    if (message.kind == KVE_MESSAGE_RESET) {
        kve_machine_reset(s->machine, now_ns);
        return;
    }
    struct kve_machine_msg msg = machine_msg(s, &message);
    kve_machine_live(s->machine, now_ns, &msg);
}

static void
feed_replay(struct kve_source *s, int64_t now_ns)
{
    struct kve_error why = { KVE_OK, 0, 0, "" };
    struct kve_message message;

    if (read_frames(&s->replay_msg, true, &message, &why) != KVE_OK) {
        kve_sub_count(&s->counters, KVE_COUNTER_SUB_REPLAY_FAULTS, 1);
        bad_frames(s, &why);
        if (!s->removed)
            kve_machine_replay_failed(s->machine, now_ns, s->ask_id);
        return;
    }
    if (message.kind == KVE_MESSAGE_END) {
        kve_machine_replay_end(s->machine, now_ns, s->ask_id);
        return;
    }
    kve_sub_count(&s->counters, KVE_COUNTER_SUB_REPLAY_MESSAGES, 1);
    kve_sub_count(
        &s->counters, KVE_COUNTER_SUB_REPLAY_BYTES, message.payload.len);
    struct kve_machine_msg msg = machine_msg(s, &message);
    kve_machine_replay(s->machine, now_ns, s->ask_id, &msg);
}

static void
feed_link_event(
    struct kve_source *s, int64_t now_ns, const struct kve_link_event *event)
{
    struct kve_notice_args args = { 0 };

    args.detail = event->detail[0] != '\0' ? event->detail : NULL;
    switch ((enum kve_link_event_type)event->type) {
    case KVE_LINK_CONNECTED:
        kve_sub_count(&s->counters, KVE_COUNTER_SUB_CONNECTS, 1);
        s->stale_since = 0;
        s->was_connected = true;
        kve_machine_connected(s->machine, now_ns);
        kve_source_notify(s, KVE_NOTICE_CONNECTED, &args);
        break;
    case KVE_LINK_OVERSIZE:
        kve_sub_count(&s->counters, KVE_COUNTER_SUB_OVERSIZE, 1);
        kve_source_notify(s, KVE_NOTICE_DISCONNECTED, &args);
        break;
    case KVE_LINK_DISCONNECTED:
        kve_sub_count(&s->counters, KVE_COUNTER_SUB_DISCONNECTS, 1);
        s->stale_since = now_ns;
        kve_machine_disconnected(s->machine, now_ns);
        kve_source_notify(s, KVE_NOTICE_DISCONNECTED, &args);
        break;
    case KVE_LINK_REFUSED:
        kve_source_notify(s, KVE_NOTICE_DISCONNECTED, &args);
        break;
    case KVE_LINK_RESOLVE_FAILED:
        kve_sub_count(&s->counters, KVE_COUNTER_SUB_RESOLVE_FAILURES, 1);
        kve_source_notify(s, KVE_NOTICE_RESOLVE_FAILED, &args);
        break;
    }
}

/* One live message, when there is one. */
static kve_status
take_live(
    struct kve_source *s, int64_t now_ns, bool *ret_took, struct kve_error *err)
{
    if (s->live_dry)
        return KVE_OK;
    switch (s->transport->live_in_recv(s->live, &s->live_msg, err)) {
    case KVE_IO_OK:
        *ret_took = true;
        feed_live(s, now_ns);
        return KVE_OK;
    case KVE_IO_AGAIN:
        s->live_dry = true;
        return KVE_OK;
    case KVE_IO_GONE:
    case KVE_IO_ERROR:
        break;
    }
    return KVE_E_SYSTEM;
}

static kve_status
take_replay(
    struct kve_source *s, int64_t now_ns, bool *ret_took, struct kve_error *err)
{
    if (s->ask == NULL || s->replay_dry)
        return KVE_OK;
    switch (s->replay_transport->replay_ask_recv(s->ask, &s->replay_msg, err)) {
    case KVE_IO_OK:
        *ret_took = true;
        feed_replay(s, now_ns);
        return KVE_OK;
    case KVE_IO_AGAIN:
        s->replay_dry = true;
        return KVE_OK;
    case KVE_IO_GONE:
    case KVE_IO_ERROR:
        break;
    }
    kve_sub_count(&s->counters, KVE_COUNTER_SUB_REPLAY_FAULTS, 1);
    *ret_took = true;
    kve_machine_replay_failed(s->machine, now_ns, s->ask_id);
    return KVE_OK;
}

/* The next input of any kind; *ret_took false: there is none. */
static kve_status
take_input(
    struct kve_source *s, int64_t now_ns, bool *ret_took, struct kve_error *err)
{
    struct kve_link_event event;
    kve_status status;

    *ret_took = false;
    if (!s->events_dry) {
        if (s->transport->live_in_event(s->live, &event)) {
            *ret_took = true;
            feed_link_event(s, now_ns, &event);
            return KVE_OK;
        }
        /* Asked once a turn: asking costs the socket library a system call,
         * which is too much for every message. */
        s->events_dry = true;
    }
    if (kve_machine_deadline(s->machine) <= now_ns) {
        *ret_took = true;
        kve_machine_timer(s->machine, now_ns);
        return KVE_OK;
    }
    s->replay_first = !s->replay_first;
    if (s->replay_first) {
        status = take_replay(s, now_ns, ret_took, err);
        if (status == KVE_OK && !*ret_took)
            status = take_live(s, now_ns, ret_took, err);
    } else {
        status = take_live(s, now_ns, ret_took, err);
        if (status == KVE_OK && !*ret_took)
            status = take_replay(s, now_ns, ret_took, err);
    }
    return status;
}

/* ---- turns --------------------------------------------------------- */

static kve_status
step_handles(struct kve_source *s, int64_t now_ns, struct kve_error *err)
{
    bool live_changed = false;
    bool ask_changed = false;
    kve_status status =
        s->transport->live_in_step(s->live, now_ns, &live_changed, err);

    if (status == KVE_OK && s->ask != NULL)
        status = s->replay_transport->replay_ask_step(
            s->ask, now_ns, &ask_changed, err);
    if (status == KVE_OK && (live_changed || ask_changed))
        status = sync_fds(s, err);
    s->events_dry = false;
    s->live_dry = false;
    s->replay_dry = false;
    return status;
}

kve_status
kve_source_turn(struct kve_source *s, int64_t now_ns, size_t max_batches,
    struct kve_turn *ret_turn, struct kve_error *err)
{
    struct kve_turn turn = { 0, 0, false, false };
    bool took = true;
    bool late = false;
    kve_status status = step_handles(s, now_ns, err);

    while (status == KVE_OK && !s->removed) {
        if (!s->has_action)
            s->has_action = kve_machine_next(s->machine, &s->action);
        if (s->has_action) {
            bool delivers = s->action.type == KVE_ACTION_APPLY;
            if (delivers && (turn.stop || turn.batches == max_batches)) {
                turn.more = true;
                break;
            }
            status = execute(s, now_ns, &turn, err);
            late = kve_now_ns() - now_ns >= TURN_NS;
            continue;
        }
        if (turn.stop || late || turn.batches == max_batches ||
            turn.inputs == QUOTA) {
            turn.more = true;
            break;
        }
        status = take_input(s, now_ns, &took, err);
        if (!took)
            break;
        turn.inputs++;
    }
    /* A removed source gives back its sockets at once. */
    if (s->removed)
        kve_source_close(s);
    *ret_turn = turn;
    return status;
}

int64_t
kve_source_deadline(struct kve_source *s)
{
    int64_t deadline = kve_machine_deadline(s->machine);
    int64_t live = s->transport->live_in_deadline(s->live);

    if (live < deadline)
        deadline = live;
    if (s->ask != NULL) {
        int64_t ask = s->replay_transport->replay_ask_deadline(s->ask);
        if (ask < deadline)
            deadline = ask;
    }
    return deadline;
}

void
kve_source_info(const struct kve_source *s, struct kve_source_info *info)
{
    kve_machine_info(s->machine, info);
    info->unknown_events = s->unknown_events;
    info->stale = s->was_connected && s->stale_since != 0;
    info->stale_since_ns = s->stale_since;
    info->endpoint = s->endpoint;
    info->replay_endpoint =
        s->replay_endpoint != NULL ? s->replay_endpoint : "";
}
