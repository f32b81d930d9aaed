/*
 * release.c - what was held is judged; the end of a recovery; see state.h.
 */
#include "stream/state.h"

#include "base/alloc.h"

void
kve_sm_release(struct kve_machine *m)
{
    m->mode = KVE_MODE_RELEASE;
    if (!m->in_doubt)
        m->at.unproved = m->at.last + 1;
}

/*
 * Held messages that do not follow each other show what the live stream missed
 * while the replay ran: some of it the answer has brought by now, the rest is
 * asked for next.
 */
static void
count_jump(struct kve_machine *m, uint64_t number)
{
    uint64_t first = m->last_released + 1;

    if (m->has_released && number > first) {
        const struct kve_sm_place *at = &m->at;
        uint64_t upto = number - 1;

        kve_sm_count(m, KVE_COUNTER_SUB_GAPS, 1);
        kve_sm_count(m, KVE_COUNTER_SUB_MISSED, upto - first + 1);
        if (at->has_last && at->last >= first)
            kve_sm_count(m, KVE_COUNTER_SUB_REPAIRED,
                (at->last < upto ? at->last : upto) - first + 1);
        m->has_gap = true;
        m->gap_first = at->has_last && at->last >= first ? at->last + 1 : first;
        m->gap_last = upto;
    }
    m->has_released = true;
    m->last_released = number;
}

/* ---- the end of a recovery ----------------------------------------- */

/* What did not fit into the hold is asked for, or is a loss. */
static bool
ask_dropped(struct kve_machine *m)
{
    if (!m->hold_dropped)
        return false;
    m->hold_dropped = false;
    if (kve_sm_can_replay(m)) {
        kve_sm_recover(m, kve_sm_how_now(m), KVE_REASON_GAP, kve_sm_expected(m),
            kve_sm_expected(m));
        return true;
    }
    if (kve_sm_is_ahead(m, m->dropped_last + 1))
        kve_sm_lose(m, m->dropped_last, KVE_REASON_NO_REPLAY, true);
    else
        kve_sm_life_unknown(m, KVE_REASON_NO_REPLAY);
    return false;
}

/* Something will say later whether the source is live. */
static bool
is_awaited(const struct kve_machine *m)
{
    return kve_sm_probes(m) || m->heartbeats || m->unconfirmed ||
        m->snap_wanted;
}

static void
end_recovery(struct kve_machine *m)
{
    const struct kve_sm_place *at = &m->at;

    m->mode = KVE_MODE_STREAM;
    m->has_released = false;
    if (ask_dropped(m))
        return;
    if (m->twin != KVE_TWIN_SNAPSHOT)
        m->unconfirmed = false;
    kve_sm_swap_twin(m);
    kve_sm_schedule_probe(m);
    kve_sm_check_first(m);
    if (m->released_live || at->lossy || at->unreadable || m->replay_broken ||
        (!is_awaited(m) && m->certain))
        kve_sm_settle(m);
    else if (m->state == KVE_STATE_DEGRADED)
        kve_sm_set_state(
            m, KVE_STATE_RECOVERING, KVE_REASON_SNAPSHOT, at->last, at->last);
    /* Else the tail probe that follows makes the source live. */
}

/* ---- one by one ---------------------------------------------------- */

/* What is held, or visible, lies beyond what the answer brought. It was given
 * before these were published. */
static void
fill(struct kve_machine *m, uint64_t number)
{
    uint64_t last = number - 1;

    if (kve_sm_can_replay(m) && !m->replay_broken) {
        kve_sm_recover_hole(m, last);
        return;
    }
    if (kve_sm_snapshot_spoilt(m))
        return;
    if (m->replay_broken) {
        kve_sm_lose(m, last, KVE_REASON_REPLAY_FAILED, false);
        return;
    }
    if (!m->has_gap || m->gap_last != last)
        kve_sm_note_gap(m, number);
    if (kve_sm_snapshot_usable(m))
        kve_sm_recover_by_snapshot(
            m, KVE_REASON_GAP, kve_sm_expected(m), last, false);
    else if (m->at.has_last)
        kve_sm_lose(m, last, KVE_REASON_NO_REPLAY, true);
    else
        kve_sm_lose(m, last, KVE_REASON_LATE_START, false);
}

bool
kve_sm_is_outdated(const struct kve_machine *m, const struct kve_held *held)
{
    if (held->link == m->link)
        return false;
    if (m->ask_answered && !m->at.has_last)
        return true;
    return held->msg.publisher_id == NULL
        ? m->at.id.known
        : kve_sm_id_differs(&m->heard_id, held->msg.publisher_id);
}

static void
judge_held(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    if (kve_sm_id_differs(&m->at.id, msg->publisher_id)) {
        kve_sm_other_id(m, msg);
        return;
    }
    kve_sm_id_proves(m, msg);
    if (kve_sm_is_behind(m, msg->number)) {
        kve_sm_behind(m, msg);
        return;
    }
    m->released_live = !m->in_doubt && !m->is_old;
    kve_sm_apply(m, msg, false);
}

void
kve_sm_release_one(struct kve_machine *m)
{
    const struct kve_held *head = m->hold.first;

    if (head == NULL && kve_sm_snapshot_lags(m)) {
        fill(m, m->visible.last + 1);
        return;
    }
    if (head == NULL) {
        end_recovery(m);
        return;
    }
    if (kve_sm_is_outdated(m, head)) {
        kve_sm_count(m, KVE_COUNTER_SUB_REPEATS, 1);
        kve_mem_free(kve_hold_pop(&m->hold));
        return;
    }
    if (!kve_sm_id_differs(&m->at.id, head->msg.publisher_id)) {
        count_jump(m, head->msg.number);
        if (kve_sm_is_ahead(m, head->msg.number)) {
            fill(m, head->msg.number);
            return;
        }
    }
    m->current = kve_hold_pop(&m->hold);
    m->is_old = m->current->link != m->link;
    judge_held(m, &m->current->msg);
    m->is_old = false;
}
