/*
 * answer.c - messages of a replay are judged; see state.h.
 */
#include "stream/state.h"

#include "base/alloc.h"

/* ---- what it lacks ------------------------------------------------- */

/* A snapshot instead, where one may be asked for; the replay follows if none
 * is to be had. */
static bool
better_by_snapshot(struct kve_machine *m)
{
    if (m->twin == KVE_TWIN_SNAPSHOT || !kve_sm_snapshot_usable(m))
        return false;
    kve_sm_recover_by_snapshot(
        m, m->reason, kve_sm_expected(m), kve_sm_expected(m), true);
    return true;
}

/* Nothing tells that the answer is of the life we know: what was asked for as
 * a proof is not there, and there is no id. */
static bool
is_unproved(const struct kve_machine *m, const struct kve_machine_msg *msg)
{
    return m->ask_proof && !m->certain &&
        !kve_sm_id_is(&m->at.id, msg->publisher_id);
}

/* What was before the first message of the answer is gone. */
static void
history_gone(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    bool unproved = is_unproved(m, msg);
    uint64_t number = msg->number;

    if (!m->at.has_last) {
        if (kve_sm_is_ahead(m, number))
            kve_sm_lose(m, number - 1, KVE_REASON_LATE_START, false);
    } else if (kve_sm_is_ahead(m, number)) {
        kve_sm_lose(m, number - 1, KVE_REASON_LOST, m->ask_proof);
    } else if (unproved) {
        kve_sm_life_unknown(m, KVE_REASON_LOST);
    }
    if (unproved) {
        kve_sm_answer_leads(m);
        m->at.id.known = false;
    }
    m->ask_progress = true;
}

/* Does the absence of what was before this message matter? */
static bool
is_gone(const struct kve_machine *m, const struct kve_machine_msg *msg)
{
    return kve_sm_is_ahead(m, msg->number) ||
        (m->at.has_last && is_unproved(m, msg));
}

/* The answer starts above the number asked for, or leaves out again what was
 * asked for by its own number. false: something else is asked for now. */
static bool
judge_start(
    struct kve_machine *m, const struct kve_machine_msg *msg, bool first)
{
    uint64_t number = msg->number;
    bool start = first && number > m->ask_from;
    bool hole = !start && m->ask_how == KVE_FROM_HOLE && !m->ask_progress &&
        kve_sm_is_ahead(m, number);

    if (!start && !hole)
        return true;
    if (is_gone(m, msg) && kve_sm_snapshot_spoilt(m))
        return false;
    if (start && m->ask_how != KVE_FROM_HOLE && is_gone(m, msg) &&
        better_by_snapshot(m))
        return false;
    if (start)
        history_gone(m, msg);
    else
        kve_sm_lose(m, number - 1, KVE_REASON_LOST, false);
    return true;
}

/*
 * Count a replayed batch as missed and repaired when the live stream did miss
 * it: inside a gap that it showed, or found by a probe or after a reconnect
 * and not among the held ones.
 */
static void
count_repair(struct kve_machine *m, uint64_t number)
{
    const struct kve_held *head = m->hold.first;
    bool in_gap = m->has_gap && number >= m->gap_first && number <= m->gap_last;
    bool found = m->reason == KVE_REASON_TAIL ||
        m->reason == KVE_REASON_RECONNECT || m->reason == KVE_REASON_RESUMED;
    bool held = head != NULL && number >= head->msg.number;

    if (!in_gap && (!found || held))
        return;
    if (!in_gap)
        kve_sm_count(m, KVE_COUNTER_SUB_MISSED, 1);
    kve_sm_count(m, KVE_COUNTER_SUB_REPAIRED, 1);
    if (!m->repaired)
        m->repaired_first = number;
    m->repaired = true;
    m->repaired_last = number;
}

/* ---- messages ------------------------------------------------------ */

/* A probe found what the live stream lost. */
static void
tail_found(struct kve_machine *m, uint64_t number)
{
    m->mode = KVE_MODE_RECOVER;
    m->released_live = false;
    m->tail_confirmed = false;
    kve_sm_count(m, KVE_COUNTER_SUB_GAPS, 1);
    kve_sm_set_state(m, KVE_STATE_RECOVERING, KVE_REASON_TAIL, number, number);
}

/* The one that was asked for as a proof is not there, while what follows is
 * known already; or it proves nothing, being known from a snapshot only. */
static void
proves_nothing(struct kve_machine *m, uint64_t number)
{
    if (m->ask_progress || m->at.lossy || kve_sm_snapshot_spoilt(m) ||
        better_by_snapshot(m))
        return;
    m->mode = KVE_MODE_RECOVER;
    kve_sm_set_state(
        m, KVE_STATE_RECOVERING, KVE_REASON_RECONNECT, number, number);
    kve_sm_life_unknown(m, KVE_REASON_LOST);
    kve_sm_answer_leads(m);
    m->at.id.known = false;
    m->ask_progress = true;
}

/* Is this number known, and not only its successors? */
static bool
is_known(const struct kve_machine *m, uint64_t number)
{
    const struct kve_sm_digest *slot = &m->at.digests[number % KVE_SM_DIGESTS];

    return slot->used && slot->number == number;
}

/* A number that we have: all it can tell is whose life the answer is of. */
static void
replayed_again(
    struct kve_machine *m, const struct kve_machine_msg *msg, bool first)
{
    bool unproved = is_unproved(m, msg);
    bool lacks_proof = unproved && first && msg->number > m->ask_from &&
        is_known(m, m->ask_from);

    if (msg->number == m->at.unproved && !lacks_proof)
        m->at.unproved++;
    switch (kve_sm_judge_life(m, msg)) {
    case KVE_LIFE_OTHER:
        kve_sm_start_over(m, KVE_REASON_RESTART,
            KVE_COUNTER_SUB_RESTARTS_DIGEST, msg->publisher_id);
        break;
    case KVE_LIFE_SAME:
        if (msg->number == m->at.last)
            kve_sm_learn_digest(m, msg); /* after a snapshot it is news */
        if (lacks_proof)
            proves_nothing(m, msg->number);
        else
            m->certain = m->connected;
        break;
    case KVE_LIFE_UNKNOWN:
        if (unproved && msg->number == m->ask_from && msg->number == m->at.last)
            proves_nothing(m, msg->number);
        break;
    }
}

/* The answer is of another life by its id: of the one before, which does not
 * come back as long as the live stream brings the one we know; or of one that
 * is news. */
static void
other_id(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    if (kve_sm_is_refused(m, msg->publisher_id)) {
        m->old_answered = true;
        kve_sm_fail(m);
    } else {
        kve_sm_start_over(m, KVE_REASON_NEW_ID, KVE_COUNTER_SUB_RESTARTS_ID,
            msg->publisher_id);
    }
}

static void
replayed_next(
    struct kve_machine *m, const struct kve_machine_msg *msg, bool first)
{
    if (m->mode == KVE_MODE_STREAM)
        tail_found(m, msg->number);
    if (!judge_start(m, msg, first))
        return;
    if (kve_sm_is_ahead(m, msg->number)) {
        /* A hole inside the answer: a publisher that lost it on the way has
         * it still, one that never had it will say so. */
        kve_sm_flush_repaired(m);
        kve_sm_recover_hole(m, msg->number - 1);
        return;
    }
    count_repair(m, msg->number);
    m->ask_progress = true;
    kve_sm_apply(m, msg, true);
}

/*
 * The answer to whether a life began with 0. Where it says the same of 1 as we
 * know, what it says of 0 is true, and we missed it: all is built anew.
 */
static void
judge_first(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    if (msg->number == 0)
        m->zero_seen = true;
    if (msg->number != 1 || !m->zero_seen ||
        kve_sm_judge_life(m, msg) != KVE_LIFE_SAME)
        return;
    m->first_check = false;
    kve_sm_stop_ask(m);
    kve_sm_begin_twin(m, KVE_TWIN_REBUILD, KVE_REASON_GAP);
    m->at.has_last = false;
    m->at.delivered = false;
    m->at.delivered_number = 0;
    m->at.base = 0;
    m->at.after_reset = false;
    kve_sm_note_gap(m, 1);
    kve_sm_recover(m, KVE_FROM_START, KVE_REASON_GAP, 0, 0);
}

static bool
is_replay(const struct kve_machine *m, uint32_t ask)
{
    return ask != 0 && ask == m->ask && m->ask_kind != KVE_ASK_SNAPSHOT;
}

/* It has batches. Where that was no longer expected a reconnect raised no
 * doubt, since no probe could have ended it; now one can. */
static void
keeps_after_all(struct kve_machine *m)
{
    if (!m->keeps_buffer && m->link > 0)
        m->in_doubt = kve_sm_probes(m);
    m->keeps_buffer = true;
    m->ever_kept = true;
    m->barren = 0;
}

void
kve_machine_replay(struct kve_machine *m, int64_t now_ns, uint32_t ask,
    const struct kve_machine_msg *msg)
{
    bool first;

    if (!kve_sm_begin_input(m, now_ns) || !is_replay(m, ask))
        return;
    /* Only an answer that goes on may take its time. */
    if (msg->number >= m->ask_next) {
        m->ask_next = msg->number + 1;
        m->ask_deadline = m->now + m->opts.replay_timeout_ns;
    }
    if (m->ask_how == KVE_FROM_ZERO) {
        judge_first(m, msg);
        return;
    }
    if (kve_sm_id_differs(&m->at.id, msg->publisher_id)) {
        other_id(m, msg);
        return;
    }
    if (msg->publisher_id != NULL && m->connected && m->ask_link == m->link)
        m->shown = true;
    m->replay_has_data = true;
    keeps_after_all(m);
    /* That nothing was before a 1 is a live message's word, not an answer's:
     * what was may have left the buffer. */
    m->at.after_reset = false;
    first = m->ask_first;
    if (msg->number >= m->ask_from)
        m->ask_first = false; /* below: more than was asked for */
    if (!kve_sm_is_behind(m, msg->number))
        replayed_next(m, msg, first);
    else if (m->at.has_last)
        replayed_again(m, msg, first);
}

/* ---- the end ------------------------------------------------------- */

/* Was a message beyond what an answer brought in hand when it was asked for?
 * One that came later may have been sent after the answer was given. */
static bool
gap_is_known(const struct kve_machine *m)
{
    const struct kve_held *head = m->hold.first;

    return head != NULL && head->ask != m->ask_serial &&
        kve_sm_is_ahead(m, head->msg.number);
}

/* The publisher showed nothing where it should have; does it keep nothing? An
 * endpoint that showed something once is believed longer. */
static void
nothing_shown(struct kve_machine *m)
{
    if (++m->barren <= (m->ever_kept ? 3 * KVE_SM_FAILS : KVE_SM_FAILS))
        return;
    m->keeps_buffer = false;
    m->in_doubt = false;
}

/*
 * An answer contradicted an unbroken live stream, and now the live stream
 * contradicts the answers: they are of another publisher than it is.
 */
void
kve_sm_distrust(struct kve_machine *m)
{
    m->distrusted = true;
    m->replay_broken = true;
    kve_sm_new_life(m, KVE_REASON_RESTART, KVE_COUNTER_SUB_RESTARTS_DIGEST);
}

/*
 * Messages were held already when the publisher said that it has nothing so
 * new. If it keeps a buffer they are leftovers of the life before, and a probe
 * that follows will tell if not; else what was before them is lost.
 */
static void
nothing_so_new(struct kve_machine *m)
{
    uint32_t reason = m->at.has_last ? KVE_REASON_LOST : KVE_REASON_LATE_START;

    if (kve_sm_snapshot_spoilt(m))
        return;
    if (!m->replay_has_data && m->in_doubt)
        nothing_shown(m);
    if (!m->replay_has_data && !m->in_doubt) {
        if (!better_by_snapshot(m))
            kve_sm_lose(m, m->hold.first->msg.number - 1, reason, m->ask_proof);
        return;
    }
    if (m->overruled && kve_sm_is_old_link(m) &&
        m->hold.first->link == m->link) {
        kve_sm_distrust(m);
        return;
    }
    while (gap_is_known(m)) {
        kve_sm_count(m, KVE_COUNTER_SUB_REPEATS, 1);
        kve_mem_free(kve_hold_pop(&m->hold));
    }
}

/*
 * An answer that held nothing at all. A publisher that keeps a buffer and has
 * nothing from our last number on has never sent that number: it is another
 * one. The same is feared of one that was not proved to be the one we know.
 */
static void
empty_answer(struct kve_machine *m)
{
    bool doubted = m->replay_has_data || m->in_doubt || !m->certain;

    if (kve_sm_snapshot_spoilt(m))
        return;
    if (m->ask_how == KVE_FROM_START) {
        m->certain = m->connected; /* it has nothing: all that comes is new */
        if (gap_is_known(m))
            nothing_so_new(m);
        else if (m->ask_kind == KVE_ASK_PROBE)
            kve_sm_confirm_tail(m);
    } else if (m->ask_proof && doubted) {
        nothing_shown(m);
        kve_sm_start_over(
            m, KVE_REASON_RESTART, KVE_COUNTER_SUB_RESTARTS_ANSWER, NULL);
    } else if (gap_is_known(m)) {
        nothing_so_new(m);
    } else if (m->ask_how == KVE_FROM_HOLE) {
        kve_sm_start_over(
            m, KVE_REASON_RESTART, KVE_COUNTER_SUB_RESTARTS_ANSWER, NULL);
    } else {
        /* It keeps no buffer: the tail can not be confirmed. */
        nothing_shown(m);
        m->tail_confirmed = false;
    }
}

/* Did the answer lack what was applied since the doubt began? Where there were
 * losses in between, it must at least come as far. */
static bool
lacks_unproved(const struct kve_machine *m)
{
    if (!m->in_doubt || m->ask != 0 || !m->ask_proof ||
        m->at.unproved > m->ask_last)
        return false;
    return !m->at.lossy || (m->ask_applied && m->ask_next <= m->ask_last);
}

void
kve_machine_replay_end(struct kve_machine *m, int64_t now_ns, uint32_t ask)
{
    bool probe;

    if (!kve_sm_begin_input(m, now_ns) || !is_replay(m, ask))
        return;
    probe = m->ask_kind == KVE_ASK_PROBE;
    kve_sm_stop_ask(m);
    m->ask_answered = true;
    m->fails = 0;
    m->replay_broken = false;
    if (m->ask_how == KVE_FROM_ZERO) {
        m->first_check = false;
        kve_sm_settle(m);
        return;
    }
    if (m->ask_first)
        empty_answer(m);
    else if (m->ask_how == KVE_FROM_HOLE && !m->ask_progress &&
        (gap_is_known(m) || kve_sm_snapshot_lags(m)))
        nothing_so_new(m);
    else if (m->mode == KVE_MODE_STREAM)
        kve_sm_confirm_tail(m);

    if (lacks_unproved(m))
        kve_sm_start_over(
            m, KVE_REASON_RESTART, KVE_COUNTER_SUB_RESTARTS_ANSWER, NULL);
    else if (m->mode == KVE_MODE_STREAM)
        m->in_doubt = false;
    if (m->ask != 0)
        return; /* a new request runs: another life, or a snapshot */
    m->snap_wanted = false;
    if (m->mode == KVE_MODE_RECOVER) {
        kve_sm_release(m);
    } else if (probe) {
        m->strayed = false;
        m->unconfirmed = false;
        kve_sm_settle(m);
    }
}
