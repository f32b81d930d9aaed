/*
 * live.c - live messages are judged; see state.h.
 */
#include "stream/state.h"

void
kve_sm_hold(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    if (!m->hold_dropped &&
        kve_hold_push(&m->hold, msg, m->ask_serial, m->link)) {
        kve_sm_count(m, KVE_COUNTER_SUB_HELD, 1);
        return;
    }
    /* Once one was dropped the later ones would only show a gap. */
    kve_sm_count(m, KVE_COUNTER_SUB_HOLD_OVERFLOWS, 1);
    if (!m->hold_dropped)
        kve_sm_notice(
            m, KVE_NOTICE_HOLD_FULL, KVE_REASON_NONE, msg->number, msg->number);
    m->hold_dropped = true;
    m->dropped_last = msg->number;
}

/* ---- gaps ---------------------------------------------------------- */

void
kve_sm_note_gap(struct kve_machine *m, uint64_t number)
{
    uint64_t first = kve_sm_expected(m);
    uint64_t last = number - 1;

    kve_sm_count(m, KVE_COUNTER_SUB_GAPS, 1);
    kve_sm_count(m, KVE_COUNTER_SUB_MISSED, last - first + 1);
    kve_sm_notice(m, KVE_NOTICE_GAP, KVE_REASON_GAP, first, last);
    m->has_gap = true;
    m->gap_first = first;
    m->gap_last = last;
}

static void
gap(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    uint64_t first = kve_sm_expected(m);
    uint64_t last = msg->number - 1;

    kve_sm_note_gap(m, msg->number);
    if (kve_sm_can_replay(m)) {
        kve_sm_hold(m, msg);
        kve_sm_recover(m, kve_sm_how_now(m), KVE_REASON_GAP, first, last);
    } else if (kve_sm_snapshot_usable(m)) {
        kve_sm_hold(m, msg);
        kve_sm_recover_by_snapshot(m, KVE_REASON_GAP, first, last, false);
    } else {
        kve_sm_lose(m, last, KVE_REASON_NO_REPLAY, true);
        kve_sm_stream(m, msg);
    }
}

/* The first batch of a life, or of our acquaintance with it. */
static void
first_live(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    if (!kve_sm_is_ahead(m, msg->number)) {
        kve_sm_stream(m, msg);
    } else if (kve_sm_can_replay(m) || kve_sm_snapshot_usable(m)) {
        gap(m, msg);
    } else {
        kve_sm_lose(m, msg->number - 1, KVE_REASON_LATE_START, false);
        kve_sm_stream(m, msg);
    }
}

/* ---- repeats ------------------------------------------------------- */

/* The live stream brought what a replay had brought just before: it has
 * caught up, which confirms the tail as well as a new batch would. */
static void
live_is_level(struct kve_machine *m)
{
    if (m->in_doubt || m->is_old)
        return;
    m->certain = m->connected;
    m->unconfirmed = false;
    kve_sm_confirm_tail(m);
    kve_sm_schedule_probe(m);
    if (m->mode == KVE_MODE_STREAM)
        kve_sm_settle(m);
    else
        m->released_live = true;
}

static void
repeat(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    kve_sm_count(m, KVE_COUNTER_SUB_REPEATS, 1);
    kve_sm_live_came(m, msg->number);
    if (msg->empty && kve_sm_id_is(&m->at.id, msg->publisher_id))
        m->heartbeats = true;
    if (!m->at.has_last || msg->number != m->at.last)
        return;
    kve_sm_learn_digest(m, msg); /* after a snapshot it is news */
    live_is_level(m);
}

/*
 * A replay runs ahead of a live stream that lags, by as much as the queues
 * between can hold, so that what comes then may be behind every digest still
 * known. As long as live numbers rise it is taken for a repeat, and a probe
 * that is due soon decides; a publisher that started anew falls back.
 */
static bool
lags(const struct kve_machine *m, const struct kve_machine_msg *msg)
{
    bool ahead = kve_sm_probes(m) ||
        (m->certain && (kve_sm_can_replay(m) || m->at.id.known));

    return ahead && m->at.has_last &&
        (!m->live_seen || msg->number > m->live_number);
}

static void
probe_soon(struct kve_machine *m)
{
    if (m->opts.tail_probe_ns != KVE_NEVER &&
        m->probe_at > m->now + m->opts.tail_probe_ns)
        kve_sm_schedule_probe(m);
}

/*
 * Messages that wait to be read outlive their publisher. What contradicts an
 * answer that was given after it came, or comes while the live stream was not
 * yet heard to bring the life that an answer showed, is such a leftover.
 */
static bool
is_leftover(const struct kve_machine *m, const struct kve_machine_msg *msg)
{
    return m->at.has_last && !kve_sm_id_is(&m->at.id, msg->publisher_id) &&
        (m->in_doubt || (m->mode == KVE_MODE_RELEASE && m->ask_answered));
}

/* ---- another life -------------------------------------------------- */

static void
restart(struct kve_machine *m, const struct kve_machine_msg *msg,
    uint32_t reason, enum kve_counter kind)
{
    bool lived = m->live_seen;

    kve_sm_new_life(m, reason, kind);
    m->old_lived = m->old_lived && lived;
    kve_sm_name_life(m, msg->publisher_id);
    m->id_doubted = m->in_doubt;
    m->certain = m->certain && !m->is_old;
    if (msg->publisher_id != NULL && !m->is_old && !kve_sm_probes(m))
        m->in_doubt = false;
    if (m->mode == KVE_MODE_RELEASE) {
        kve_hold_put_back(&m->hold, m->current);
        m->current = NULL;
    } else {
        m->mode = KVE_MODE_STREAM;
    }
    if (msg->number > 0 &&
        (kve_sm_can_replay(m) || kve_sm_snapshot_usable(m))) {
        if (m->mode == KVE_MODE_STREAM)
            kve_sm_hold(m, msg);
        if (kve_sm_can_replay(m))
            kve_sm_recover(m, KVE_FROM_START, reason, 0, msg->number - 1);
        else
            kve_sm_recover_by_snapshot(m, reason, 0, msg->number - 1, false);
    } else if (m->mode == KVE_MODE_STREAM) {
        first_live(m, msg);
    }
}

void
kve_sm_behind(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    /* Below the number to start with there is nothing that it could repeat. */
    enum kve_sm_verdict verdict =
        m->at.has_last ? kve_sm_judge_life(m, msg) : KVE_LIFE_UNKNOWN;

    if (verdict == KVE_LIFE_SAME) {
        repeat(m, msg);
        return;
    }
    if (is_leftover(m, msg)) {
        kve_sm_count(m, KVE_COUNTER_SUB_REPEATS, 1);
        if (verdict == KVE_LIFE_OTHER)
            m->in_doubt = kve_sm_probes(m); /* where one is, more may follow */
        return;
    }
    if (verdict == KVE_LIFE_UNKNOWN && lags(m, msg)) {
        kve_sm_count(m, KVE_COUNTER_SUB_REPEATS, 1);
        kve_sm_live_came(m, msg->number);
        m->tail_confirmed = false;
        probe_soon(m);
        return;
    }
    if (m->overruled && kve_sm_is_old_link(m)) {
        m->distrusted = true;
        m->replay_broken = true;
    }
    restart(m, msg, KVE_REASON_RESTART,
        verdict == KVE_LIFE_OTHER ? KVE_COUNTER_SUB_RESTARTS_DIGEST
                                  : KVE_COUNTER_SUB_RESTARTS_NUMBER);
}

/* What was held before a request whose answer showed this life, came by an
 * earlier connection, or was followed by messages of this life. */
bool
kve_sm_is_overtaken(const struct kve_machine *m, const struct kve_held *held)
{
    if (m->ask_answered &&
        (held->link != m->link || held->ask != m->ask_serial))
        return true;
    return m->heard_id.known && kve_sm_id_is(&m->at.id, m->heard_id.bytes);
}

bool
kve_sm_may_be_before(const struct kve_machine *m, const uint8_t *id)
{
    return (m->shown && !m->heard) ||
        (m->old_lived && kve_sm_id_is(&m->old_id, id));
}

/*
 * A message with another id than the life's is of a life before if it was
 * overtaken. So is, for a while, what comes before the first live message of a
 * life that an answer showed, or bears the id of the one before: messages
 * outlive their publisher, but not for long, and not when answers bear that id,
 * too. Then to leave that life was the mistake.
 */
static bool
is_stray(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    if (m->mode == KVE_MODE_RELEASE && kve_sm_is_overtaken(m, m->current))
        return true;
    if (m->old_answered || !kve_sm_may_be_before(m, msg->publisher_id))
        return false;
    if (m->strays_since == KVE_NEVER)
        m->strays_since = m->now;
    return m->now - m->strays_since <= m->opts.replay_timeout_ns;
}

/* Until the life is heard again nothing says that it is the one there is. */
static void
stray(struct kve_machine *m)
{
    kve_sm_count(m, KVE_COUNTER_SUB_REPEATS, 1);
    m->strayed = true;
    m->tail_confirmed = false;
    if (m->state == KVE_STATE_LIVE)
        kve_sm_set_state(
            m, KVE_STATE_RECOVERING, KVE_REASON_NEW_ID, m->at.last, m->at.last);
}

void
kve_sm_other_id(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    if (is_stray(m, msg))
        stray(m);
    else
        restart(m, msg, KVE_REASON_NEW_ID, KVE_COUNTER_SUB_RESTARTS_ID);
}

/* ---- inputs -------------------------------------------------------- */

static void
judge_live(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    if (kve_sm_id_differs(&m->at.id, msg->publisher_id)) {
        kve_sm_other_id(m, msg);
        return;
    }
    kve_sm_id_proves(m, msg);
    if (kve_sm_is_behind(m, msg->number))
        kve_sm_behind(m, msg);
    else if (!m->at.has_last)
        first_live(m, msg);
    else if (kve_sm_is_ahead(m, msg->number))
        gap(m, msg);
    else
        kve_sm_stream(m, msg);
}

/* Any live message is a sign of life. */
static void
heard(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    m->heard_at = m->now;
    if (msg->publisher_id != NULL)
        kve_sm_set_id(&m->heard_id, msg->publisher_id);
    if (msg->empty && msg->publisher_id != NULL)
        kve_sm_count(m, KVE_COUNTER_SUB_HEARTBEATS, 1);
    if (!m->stale)
        return;
    m->stale = false;
    kve_sm_notice(
        m, KVE_NOTICE_FRESH, KVE_REASON_NONE, msg->number, msg->number);
}

/* A message before the word that there is a connection. */
static bool
starts_recovery(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    bool snapshot = kve_sm_starts_by_snapshot(m);

    if (m->mode != KVE_MODE_WAIT || m->opts.start == KVE_START_LIVE ||
        (!kve_sm_can_replay(m) && !snapshot))
        return false;
    kve_sm_hold(m, msg);
    if (snapshot)
        kve_sm_start_by_snapshot(m, KVE_REASON_STARTING);
    else
        kve_sm_recover(m, kve_sm_how_now(m),
            m->resumed ? KVE_REASON_RESUMED : KVE_REASON_STARTING,
            kve_sm_expected(m), kve_sm_expected(m));
    return true;
}

void
kve_machine_live(
    struct kve_machine *m, int64_t now_ns, const struct kve_machine_msg *msg)
{
    if (!kve_sm_begin_input(m, now_ns))
        return;
    heard(m, msg);
    if (m->mode == KVE_MODE_RECOVER || m->mode == KVE_MODE_RELEASE) {
        kve_sm_hold(m, msg);
        return;
    }
    if (starts_recovery(m, msg))
        return;
    m->mode = KVE_MODE_STREAM;
    judge_live(m, msg);
}

/*
 * The publisher's replay may still hold the old life, so it is not asked
 * before there is another connection. If there is one already, the message
 * may be a leftover of the one before, and what follows it too.
 */
void
kve_machine_reset(struct kve_machine *m, int64_t now_ns)
{
    bool late = m->in_doubt;

    if (!kve_sm_begin_input(m, now_ns))
        return;
    kve_sm_new_life(m, KVE_REASON_RESET, KVE_COUNTER_SUB_RESETS);
    /* Read after its connection was lost: the next one is the new life's. */
    if (!m->connected)
        m->at.old_replay = false;
    m->mode = KVE_MODE_STREAM;
    m->probe_at = KVE_NEVER;
    m->hold_dropped = false;
    kve_hold_clear(&m->hold);
    if (late) {
        m->at.old_replay = false;
        kve_sm_answer_leads(m);
        kve_sm_recover(m, KVE_FROM_START, KVE_REASON_RESET, 0, 0);
    } else {
        kve_sm_set_state(m, KVE_STATE_COLD, KVE_REASON_RESET, 0, 0);
    }
}
