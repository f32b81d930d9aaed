/*
 * machine.c - the connection, time, creation; see machine.h and state.h.
 */
#include "stream/state.h"

#include "base/alloc.h"
#include "base/status.h"

#include <string.h>

#define MAX_PROBE_NS (30000 * KVE_MS)

/* ---- connection ---------------------------------------------------- */

static bool
asks_nothing(const struct kve_machine *m)
{
    return !kve_sm_can_replay(m) || m->at.old_replay ||
        (m->opts.start == KVE_START_LIVE && !m->at.has_last);
}

/* A source without replay that came back: a message will tell whose it is, or
 * a snapshot does where messages cannot. */
static bool
reconnects_by_snapshot(const struct kve_machine *m, bool again)
{
    return again && !kve_sm_can_replay(m) && m->at.has_last &&
        !m->at.id.known && kve_sm_snapshot_usable(m);
}

static void
contact(struct kve_machine *m, bool again)
{
    uint32_t reason = m->resumed ? KVE_REASON_RESUMED
        : again                  ? KVE_REASON_RECONNECT
                                 : KVE_REASON_STARTING;

    if (kve_sm_starts_by_snapshot(m) || reconnects_by_snapshot(m, again)) {
        kve_sm_start_by_snapshot(m, reason);
    } else if (!asks_nothing(m)) {
        kve_sm_recover(m, kve_sm_how_now(m), reason, kve_sm_expected(m),
            kve_sm_expected(m));
    } else {
        if (m->mode == KVE_MODE_WAIT)
            m->mode = KVE_MODE_STREAM;
        if (!again && m->at.has_last)
            kve_sm_settle(m);
        if (m->in_doubt)
            kve_sm_schedule_probe(m);
    }
}

void
kve_machine_connected(struct kve_machine *m, int64_t now_ns)
{
    bool again = m->was_connected;

    if (!kve_sm_begin_input(m, now_ns))
        return;
    m->connected = true;
    m->was_connected = true;
    if (again) {
        m->link++;
        m->overruled = false;
        m->distrusted = false;
        m->heard_id.known = false;
        m->shown = false;
        m->heard = false;
        m->old_heard = false;
    }
    m->heard_at = m->now;
    m->connected_at = m->now;
    if (!m->in_doubt)
        m->at.unproved = m->at.last + 1;
    m->in_doubt = again && kve_sm_probes(m) && m->keeps_buffer;
    if (!again)
        m->certain = true;
    if (again && m->ask != 0 && m->ask_kind == KVE_ASK_SNAPSHOT)
        kve_sm_snapshot_outlived(m);
    else if (m->ask == 0 || m->ask_kind != KVE_ASK_SNAPSHOT)
        contact(m, again);
    m->resumed = false;
}

void
kve_machine_disconnected(struct kve_machine *m, int64_t now_ns)
{
    if (!kve_sm_begin_input(m, now_ns) || !m->connected)
        return;
    m->connected = false;
    m->certain = false;
    m->visible_certain = false;
    m->tail_confirmed = false;
    m->at.old_replay = false;
    m->at.after_reset = false; /* it may have been another life since */
    m->probe_at = KVE_NEVER;
    if (m->mode == KVE_MODE_STREAM)
        kve_sm_stop_ask(m); /* a probe */
    if (m->ask != 0 && m->ask_kind != KVE_ASK_SNAPSHOT &&
        m->ask_how == KVE_FROM_HOLE && !m->ask_proof) {
        /* Another life may answer it: ask again, with a proof. */
        kve_sm_stop_ask(m);
        kve_sm_ask_now(m, KVE_FROM_HOLE, KVE_ASK_REPLAY);
    }
    if (m->state == KVE_STATE_LIVE)
        kve_sm_set_state(m, KVE_STATE_RECOVERING, KVE_REASON_RECONNECT,
            kve_sm_expected(m), kve_sm_expected(m));
}

void
kve_machine_gone(struct kve_machine *m, int64_t now_ns, enum kve_reason reason)
{
    if (!kve_sm_begin_input(m, now_ns))
        return;
    kve_sm_stop_ask(m);
    kve_sm_abort_twin(m, reason);
    kve_hold_clear(&m->hold);
    m->gone = true;
    m->connected = false;
    m->tail_confirmed = false;
    m->mode = KVE_MODE_WAIT;
    kve_sm_set_state(m, KVE_STATE_GONE, reason, m->at.last, m->at.last);
}

/* ---- what the batches held ----------------------------------------- */

void
kve_machine_unreadable(struct kve_machine *m, int64_t now_ns)
{
    m->now = now_ns;
    if (m->gone)
        return;
    if (m->snap_loading) {
        kve_sm_snapshot_fails(m, false);
        return;
    }
    if (m->at.unreadable)
        return;
    m->at.unreadable = true;
    if (m->mode == KVE_MODE_STREAM && m->state == KVE_STATE_LIVE)
        kve_sm_settle(m);
}

/* A clear of a publisher with an id empties one tier: what was lost may have
 * been about another one. */
void
kve_machine_cleared(struct kve_machine *m, int64_t now_ns)
{
    m->now = now_ns;
    if (m->gone || m->snap_loading || m->at.id.known || m->at.delivered_id)
        return;
    /* Whose the batches before it were is of no consequence any more. */
    if (m->in_doubt && m->at.unproved <= m->at.last) {
        m->at.unproved = m->at.last;
        m->at.has_clear = true;
        m->at.clear = m->at.last;
    }
    if (!m->at.lossy && !m->at.unreadable)
        return;
    m->at.lossy = false;
    m->at.unreadable = false;
    if (m->state == KVE_STATE_DEGRADED && m->mode == KVE_MODE_STREAM) {
        if (m->replay_broken || !kve_sm_is_sure(m))
            kve_sm_settle(m);
        else
            kve_sm_set_state(
                m, KVE_STATE_LIVE, KVE_REASON_CLEARED, m->at.last, m->at.last);
    }
}

/* ---- time ---------------------------------------------------------- */

static bool
may_probe(const struct kve_machine *m)
{
    return m->mode == KVE_MODE_STREAM && m->ask == 0 && m->connected &&
        kve_sm_can_replay(m) && !m->at.any_base && !m->at.old_replay &&
        (!m->heartbeats || m->stale || m->replay_broken || m->in_doubt ||
            m->strayed);
}

static int64_t
stale_at(const struct kve_machine *m)
{
    if (!m->heartbeats || !m->connected || m->stale ||
        m->opts.heartbeat_timeout_ns == KVE_NEVER)
        return KVE_NEVER;
    return m->heard_at + m->opts.heartbeat_timeout_ns;
}

static int64_t
earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t
kve_machine_deadline(const struct kve_machine *m)
{
    int64_t at = stale_at(m);

    if (m->gone)
        return KVE_NEVER;
    if (m->ask != 0)
        return earlier(at, m->ask_deadline);
    if (m->mode == KVE_MODE_RECOVER)
        return earlier(at, m->retry_at);
    if (kve_sm_snapshot_due(m))
        at = earlier(at, m->snap_next);
    if (may_probe(m))
        at = earlier(at, m->probe_at);
    return at;
}

static void
becomes_stale(struct kve_machine *m)
{
    m->stale = true;
    m->tail_confirmed = false;
    kve_sm_count(m, KVE_COUNTER_SUB_STALES, 1);
    kve_sm_notice(m, KVE_NOTICE_STALE, KVE_REASON_NONE, kve_sm_expected(m),
        kve_sm_expected(m));
    m->probe_ivl = m->opts.tail_probe_ns;
    m->probe_at = m->probe_ivl == KVE_NEVER ? KVE_NEVER : m->now;
}

static void
time_out(struct kve_machine *m)
{
    if (m->ask_kind == KVE_ASK_SNAPSHOT) {
        kve_sm_snapshot_fails(m, false);
        return;
    }
    kve_sm_count(m, KVE_COUNTER_SUB_REPLAY_TIMEOUTS, 1);
    kve_sm_fail(m);
}

static void
probe(struct kve_machine *m)
{
    m->probe_ivl =
        m->probe_ivl > MAX_PROBE_NS / 2 ? MAX_PROBE_NS : 2 * m->probe_ivl;
    m->probe_at = m->now + m->probe_ivl;
    kve_sm_ask_now(m, kve_sm_how_now(m), KVE_ASK_PROBE);
}

void
kve_machine_timer(struct kve_machine *m, int64_t now_ns)
{
    if (!kve_sm_begin_input(m, now_ns))
        return;
    if (m->now >= stale_at(m))
        becomes_stale(m);
    if (m->ask != 0) {
        if (m->now >= m->ask_deadline)
            time_out(m);
    } else if (m->mode == KVE_MODE_RECOVER) {
        if (m->now >= m->retry_at)
            kve_sm_ask_now(m, m->ask_how, KVE_ASK_REPLAY);
    } else if (kve_sm_snapshot_due(m) && m->now >= m->snap_next) {
        kve_sm_mend_by_snapshot(m);
    } else if (may_probe(m) && m->now >= m->probe_at) {
        probe(m);
    }
}

/* ---- life of the machine ------------------------------------------- */

kve_status
kve_machine_create(const struct kve_machine_opts *opts,
    struct kve_machine **ret_machine, struct kve_error *err)
{
    struct kve_machine *m = kve_mem_zalloc(1, sizeof(*m));

    if (m == NULL)
        return kve_fail(err, KVE_E_NOMEM, "state of a source");
    m->opts = *opts;
    m->at.base = opts->start == KVE_START_NUMBER ? opts->first_number : 0;
    m->at.any_base = opts->start == KVE_START_LIVE;
    m->keeps_buffer = opts->has_replay;
    m->reason = KVE_REASON_STARTING;
    m->strays_since = KVE_NEVER;
    m->retry_at = KVE_NEVER;
    m->probe_at = KVE_NEVER;
    m->probe_ivl = opts->tail_probe_ns;
    kve_hold_init(&m->hold, opts->hold_bytes, opts->hold_items);
    *ret_machine = m;
    return KVE_OK;
}

void
kve_machine_destroy(struct kve_machine *m)
{
    if (m == NULL)
        return;
    kve_hold_clear(&m->hold);
    kve_sm_free_current(m);
    kve_mem_free(m);
}

bool
kve_machine_may_apply(const struct kve_machine *m)
{
    return m->n_actions > 0
        ? m->actions[m->first_action].type == KVE_ACTION_APPLY
        : m->mode == KVE_MODE_RELEASE;
}

void
kve_machine_info(const struct kve_machine *m, struct kve_source_info *info)
{
    const struct kve_sm_place *at = &m->at;

    info->state = m->state;
    info->reason = m->reason;
    info->connected = m->connected;
    info->tail_confirmed = m->tail_confirmed;
    info->stale = m->stale;
    info->started = at->delivered;
    info->last_number = at->delivered_number;
    info->missing_first = at->lossy ? at->missing_first : 0;
    info->missing_last = at->lossy ? at->missing_last : 0;
    info->state_since_ns = m->state_since;
    info->confirmed_at_ns = m->confirmed_at;
    info->heartbeats = m->heartbeats;
    info->building = m->twin != KVE_TWIN_NONE;
    info->has_publisher_id = at->id.known;
    memcpy(info->publisher_id, at->id.bytes, sizeof(info->publisher_id));
}

size_t
kve_machine_held_bytes(const struct kve_machine *m)
{
    return m->hold.bytes;
}
