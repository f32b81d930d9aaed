/*
 * snapshot.c - snapshots: when one is asked for, and what it brings; see
 * state.h.
 *
 * When: at the first contact; where history is gone; to mend what is degraded.
 * Never while the time of the next one has not come: after a failure that is a
 * second, doubling up to a minute, and likewise when one was asked for shortly
 * after another, so that what can not be mended is not tried for ever at full
 * speed.
 */
#include "stream/state.h"

#include <string.h>

#define BACK_OFF_NS (1000 * KVE_MS)
#define UNAVAILABLE_NS (5000 * KVE_MS) /* the first one after "none" */
#define MAX_BACK_OFF_NS (60000 * KVE_MS)

/* ---- when ---------------------------------------------------------- */

bool
kve_sm_snapshot_usable(const struct kve_machine *m)
{
    return m->opts.has_snapshot && m->now >= m->snap_next;
}

bool
kve_sm_snapshot_due(const struct kve_machine *m)
{
    return m->opts.has_snapshot && m->mode == KVE_MODE_STREAM && m->ask == 0 &&
        m->connected && (m->at.lossy || m->at.unreadable || m->snap_wanted);
}

static int64_t
doubled(int64_t ns, int64_t least)
{
    ns = ns > MAX_BACK_OFF_NS / 2 ? MAX_BACK_OFF_NS : 2 * ns;
    return ns < least ? least : ns;
}

static void
ask_snapshot(struct kve_machine *m)
{
    bool again = m->snap_asked && m->now - m->snap_asked_at < MAX_BACK_OFF_NS;

    m->snap_pace = again ? doubled(m->snap_pace, BACK_OFF_NS) : 0;
    m->snap_next = m->now + m->snap_pace;
    m->snap_asked = true;
    m->snap_asked_at = m->now;
    kve_sm_new_ask(m, KVE_ASK_SNAPSHOT);
    m->snap_loading = false;
    kve_sm_count(m, KVE_COUNTER_SUB_SNAPSHOTS, 1);
    struct kve_action *a = kve_sm_emit(m, KVE_ACTION_ASK);
    a->ask = m->ask;
    a->kind = KVE_ASK_SNAPSHOT;
    kve_sm_notice(m, KVE_NOTICE_SNAPSHOT, m->reason, kve_sm_expected(m),
        kve_sm_expected(m));
}

void
kve_sm_recover_by_snapshot(struct kve_machine *m, uint32_t reason,
    uint64_t first, uint64_t last, bool then_replay)
{
    kve_sm_enter_recovery(m);
    m->snap_replay = then_replay;
    kve_sm_set_state(m, KVE_STATE_RECOVERING, reason, first, last);
    ask_snapshot(m);
}

void
kve_sm_mend_by_snapshot(struct kve_machine *m)
{
    kve_sm_enter_recovery(m);
    m->snap_replay = false;
    ask_snapshot(m);
}

bool
kve_sm_starts_by_snapshot(const struct kve_machine *m)
{
    return kve_sm_snapshot_usable(m) && !m->at.has_last && !m->at.old_replay &&
        m->opts.start == KVE_START_DEFAULT;
}

void
kve_sm_start_by_snapshot(struct kve_machine *m, uint32_t reason)
{
    m->snap_wanted = true;
    kve_sm_recover_by_snapshot(m, reason, kve_sm_expected(m),
        kve_sm_expected(m), kve_sm_can_replay(m));
}

/* ---- failures ------------------------------------------------------ */

static void
failed(struct kve_machine *m, int64_t back_off)
{
    m->snap_asked = false; /* the back-off is enough */
    m->snap_back_off = doubled(m->snap_back_off, back_off);
    m->snap_next = m->now +
        (m->snap_pace > m->snap_back_off ? m->snap_pace : m->snap_back_off);
    kve_sm_count(m, KVE_COUNTER_SUB_SNAPSHOTS_FAILED, 1);
    kve_sm_notice(m, KVE_NOTICE_SNAPSHOT_FAILED, KVE_REASON_SNAPSHOT_FAILED,
        kve_sm_expected(m), kve_sm_expected(m));
}

bool
kve_sm_snapshot_drop(struct kve_machine *m)
{
    if (m->twin != KVE_TWIN_SNAPSHOT)
        return false;
    kve_sm_abort_twin(m, KVE_REASON_SNAPSHOT_FAILED);
    if (!m->at.has_last) /* it told at least whose life it is */
        kve_sm_name_life(m, m->snap_id.bytes);
    failed(m, BACK_OFF_NS);
    return true;
}

/* Without it: by replay, or with what is held. */
static void
go_on(struct kve_machine *m, bool replay)
{
    if (replay)
        kve_sm_recover(m, kve_sm_how_now(m),
            m->state == KVE_STATE_RECOVERING ? m->reason : KVE_REASON_GAP,
            kve_sm_expected(m), kve_sm_expected(m));
    else
        kve_sm_release(m);
}

void
kve_sm_snapshot_fails(struct kve_machine *m, bool unavailable)
{
    kve_sm_stop_ask(m);
    if (m->twin == KVE_TWIN_SNAPSHOT)
        kve_sm_abort_twin(m, KVE_REASON_SNAPSHOT_FAILED);
    failed(m, unavailable ? UNAVAILABLE_NS : BACK_OFF_NS);
    go_on(m, m->snap_replay);
}

/* What was held and followed it is gone: only a replay has it. */
bool
kve_sm_snapshot_spoilt(struct kve_machine *m)
{
    if (m->twin != KVE_TWIN_SNAPSHOT)
        return false;
    kve_sm_stop_ask(m);
    (void)kve_sm_snapshot_drop(m);
    go_on(m, kve_sm_can_replay(m));
    return true;
}

void
kve_sm_snapshot_outlived(struct kve_machine *m)
{
    bool wanted = m->snap_wanted;
    bool replay = kve_sm_can_replay(m);

    kve_sm_stop_ask(m);
    kve_sm_abort_twin(m, KVE_REASON_RECONNECT);
    uint64_t next = kve_sm_expected(m);
    if (kve_sm_snapshot_usable(m) && !(replay && m->at.has_last))
        kve_sm_recover_by_snapshot(m, KVE_REASON_RECONNECT, next, next, replay);
    else if (replay)
        kve_sm_recover(m, kve_sm_how_now(m), KVE_REASON_RECONNECT, next, next);
    else
        kve_sm_release(m);
    m->snap_wanted = wanted;
}

void
kve_machine_snapshot_failed(struct kve_machine *m, int64_t now_ns, uint32_t ask)
{
    if (!kve_sm_begin_input(m, now_ns) || ask == 0 || ask != m->ask ||
        m->ask_kind != KVE_ASK_SNAPSHOT)
        return;
    kve_sm_snapshot_fails(m, false);
}

/* ---- what it brings ------------------------------------------------ */

/* A snapshot may lag behind the stream, but not for long: what we have is then
 * not of the life that it shows. */
static bool
is_behind_for_long(const struct kve_machine *m, int64_t number)
{
    return m->at.has_last && m->ask_link == m->link &&
        (number < 0 || (uint64_t)number < m->at.last) &&
        m->now - m->heard_at > m->opts.snapshot_timeout_ns;
}

/* It is of another life than the one we know. */
static void
leave_life(struct kve_machine *m, uint32_t reason, enum kve_counter kind,
    const uint8_t *id)
{
    kve_sm_forget_life(m, reason, kind);
    kve_sm_name_life(m, id);
    kve_sm_set_state(m, KVE_STATE_RECOVERING, reason, 0, 0);
}

void
kve_machine_snapshot_begin(struct kve_machine *m, int64_t now_ns, uint32_t ask,
    int64_t number, const uint8_t publisher_id[16])
{
    if (!kve_sm_begin_input(m, now_ns) || ask == 0 || ask != m->ask ||
        m->ask_kind != KVE_ASK_SNAPSHOT)
        return;
    /* None is to be had; or of a life that is over; or it begins twice. */
    if (number < -1 || m->snap_loading || kve_sm_is_refused(m, publisher_id)) {
        kve_sm_snapshot_fails(m, number < -1);
        return;
    }
    m->ask_deadline = m->now + m->opts.snapshot_timeout_ns;
    if (kve_sm_id_differs(&m->at.id, publisher_id))
        leave_life(
            m, KVE_REASON_NEW_ID, KVE_COUNTER_SUB_RESTARTS_ID, publisher_id);
    else if (is_behind_for_long(m, number))
        leave_life(m, KVE_REASON_RESTART, KVE_COUNTER_SUB_RESTARTS_ANSWER,
            publisher_id);
    m->snap_loading = true;
    m->snap_number = number;
    m->snap_same = !m->at.id.known || kve_sm_id_is(&m->at.id, publisher_id);
    kve_sm_set_id(&m->snap_id, publisher_id);
    kve_sm_begin_twin(m, KVE_TWIN_SNAPSHOT, KVE_REASON_SNAPSHOT);
}

static bool
is_loading(const struct kve_machine *m, uint32_t ask)
{
    return ask != 0 && ask == m->ask && m->snap_loading;
}

void
kve_machine_snapshot_chunk(struct kve_machine *m, int64_t now_ns, uint32_t ask,
    const struct kve_machine_msg *msg)
{
    if (!kve_sm_begin_input(m, now_ns) || !is_loading(m, ask))
        return;
    if (m->snap_number < 0) { /* of nothing there are no parts */
        kve_sm_snapshot_fails(m, false);
        return;
    }
    m->ask_deadline = m->now + m->opts.snapshot_timeout_ns;
    struct kve_action *a = kve_sm_emit(m, KVE_ACTION_APPLY);
    a->msg = *msg;
    a->msg.number = (uint64_t)m->snap_number;
    a->msg.publisher_id = m->snap_id.bytes;
    a->snapshot = true;
    a->hidden = true;
}

/* The twin stands where the snapshot says. */
static void
move_to_snapshot(struct kve_machine *m)
{
    struct kve_sm_place *at = &m->at;

    memset(at, 0, sizeof(*at));
    at->id = m->snap_id;
    at->has_last = m->snap_number >= 0;
    at->last = at->has_last ? (uint64_t)m->snap_number : 0;
    at->unproved = kve_sm_expected(m);
    at->delivered = at->has_last;
    at->delivered_number = at->last;
    if (!m->snap_same)
        m->replay_has_data = false;
    m->live_seen = false;
    m->certain = m->connected && m->ask_link == m->link;
    m->shown = m->certain;
    m->snap_wanted = false;
    m->has_released = false;
}

bool
kve_sm_snapshot_lags(const struct kve_machine *m)
{
    return m->twin == KVE_TWIN_SNAPSHOT && m->visible.has_last &&
        m->snap_same && m->visible.last >= kve_sm_expected(m);
}

/*
 * Without a replay endpoint what is held must follow the snapshot without a
 * hole, up to a message of another life: once the first of them was applied
 * to the twin it can not be applied to what is visible any more.
 */
static bool
hold_follows(const struct kve_machine *m)
{
    uint64_t next = kve_sm_expected(m);

    for (const struct kve_held *h = m->hold.first; h != NULL; h = h->next) {
        if (kve_sm_is_outdated(m, h))
            continue;
        if (kve_sm_id_differs(&m->at.id, h->msg.publisher_id)) {
            if (!kve_sm_is_overtaken(m, h) &&
                !kve_sm_may_be_before(m, h->msg.publisher_id))
                return true; /* a restart: nothing else matters then */
        } else if (h->msg.number > next) {
            return false;
        } else if (h->msg.number == next) {
            next++;
        }
    }
    return !m->hold_dropped;
}

void
kve_machine_snapshot_end(struct kve_machine *m, int64_t now_ns, uint32_t ask)
{
    if (!kve_sm_begin_input(m, now_ns) || !is_loading(m, ask))
        return;
    kve_sm_stop_ask(m);
    m->ask_answered = true;
    move_to_snapshot(m);
    if (!kve_sm_can_replay(m) && !hold_follows(m)) {
        kve_sm_snapshot_fails(m, false);
        return;
    }
    kve_sm_release(m);
}

void
kve_sm_snapshot_taken(struct kve_machine *m)
{
    kve_sm_count(m, KVE_COUNTER_SUB_SNAPSHOTS_TAKEN, 1);
    m->snap_back_off = 0;
    m->snap_next = m->now + m->snap_pace;
    m->unconfirmed = !m->released_live;
    m->replay_broken = false; /* whole without it */
    m->first_check = false;
    m->has_gap = false;
}
