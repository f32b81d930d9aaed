/*
 * life.c - the life of a publisher, and what was applied of it; see state.h.
 */
#include "stream/state.h"

#include <string.h>

uint64_t
kve_sm_expected(const struct kve_machine *m)
{
    return m->at.has_last ? m->at.last + 1 : m->at.base;
}

/* After a reset 1 may be the first number, unless 0 was seen. */
static bool
may_begin_at_one(const struct kve_machine *m)
{
    const struct kve_held *head = m->hold.first;

    return m->at.after_reset && (head == NULL || head->msg.number != 0);
}

bool
kve_sm_is_ahead(const struct kve_machine *m, uint64_t number)
{
    if (m->at.any_base || (number == 1 && may_begin_at_one(m)))
        return false;
    return number > kve_sm_expected(m);
}

bool
kve_sm_is_behind(const struct kve_machine *m, uint64_t number)
{
    return !m->at.any_base && number < kve_sm_expected(m);
}

/* ---- whose life it is ---------------------------------------------- */

void
kve_sm_set_id(struct kve_sm_id *id, const uint8_t *bytes)
{
    id->known = true;
    memcpy(id->bytes, bytes, sizeof(id->bytes));
}

bool
kve_sm_id_is(const struct kve_sm_id *id, const uint8_t *bytes)
{
    return id->known && bytes != NULL &&
        memcmp(id->bytes, bytes, sizeof(id->bytes)) == 0;
}

bool
kve_sm_id_differs(const struct kve_sm_id *id, const uint8_t *bytes)
{
    return id->known && bytes != NULL && !kve_sm_id_is(id, bytes);
}

/* Shortly after the connection stood it may be the live messages that are left
 * over. */
bool
kve_sm_is_refused(const struct kve_machine *m, const uint8_t *id)
{
    bool fresh = m->ask_link == m->link && !m->old_heard &&
        m->now - m->connected_at <= m->opts.replay_timeout_ns;

    return kve_sm_id_is(&m->old_id, id) && kve_sm_id_differs(&m->at.id, id) &&
        m->heard_id.known && kve_sm_id_is(&m->at.id, m->heard_id.bytes) &&
        m->now - m->heard_at <= m->opts.replay_timeout_ns && !fresh;
}

void
kve_sm_name_life(struct kve_machine *m, const uint8_t *id)
{
    if (id == NULL)
        return;
    kve_sm_set_id(&m->at.id, id);
    if (kve_sm_id_is(&m->old_id, id))
        m->old_id.known = false;
}

enum kve_sm_verdict
kve_sm_judge_life(
    const struct kve_machine *m, const struct kve_machine_msg *msg)
{
    const struct kve_sm_digest *slot =
        &m->at.digests[msg->number % KVE_SM_DIGESTS];

    bool applied = slot->used && slot->number == msg->number;
    bool equal = applied && slot->digest == msg->digest;

    if (kve_sm_id_differs(&m->at.id, msg->publisher_id))
        return KVE_LIFE_OTHER;
    /* What was applied without an id may have been of another life. */
    if (kve_sm_id_is(&m->at.id, msg->publisher_id))
        return equal || !applied || slot->has_id ? KVE_LIFE_SAME
                                                 : KVE_LIFE_OTHER;
    if (!applied)
        return KVE_LIFE_UNKNOWN;
    return equal ? KVE_LIFE_SAME : KVE_LIFE_OTHER;
}

void
kve_sm_id_proves(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    m->strayed = false;
    if (m->is_old || !kve_sm_id_is(&m->at.id, msg->publisher_id))
        return;
    m->heard = true;
    if (m->mode == KVE_MODE_STREAM) { /* not what was held, it is older */
        m->strays_since = KVE_NEVER;
        m->old_answered = false;
    }
    /* A leftover may bear the id of the life as well; and what was applied in
     * doubt without an id is not proved by this one. */
    if (m->in_doubt &&
        (!m->shown || m->id_doubted ||
            (m->at.has_last && m->at.unproved <= m->at.last)))
        return;
    m->in_doubt = false;
    m->certain = m->connected;
}

/* ---- what was applied ---------------------------------------------- */

void
kve_sm_confirm_tail(struct kve_machine *m)
{
    if ((!kve_sm_can_replay(m) && !m->heartbeats) || !m->connected)
        return;
    m->tail_confirmed = true;
    m->confirmed_at = m->now;
}

void
kve_sm_live_came(struct kve_machine *m, uint64_t number)
{
    if (!m->live_seen || number > m->live_number)
        m->live_number = number;
    m->live_seen = true;
}

/* An answer that skips what was applied in doubt does not prove it. */
static void
move_unproved(struct kve_machine *m, uint64_t number, bool replayed)
{
    struct kve_sm_place *at = &m->at;

    if (!at->has_last)
        at->unproved = number;
    if (replayed &&
        (!at->has_last || !m->in_doubt || at->lossy || at->unproved > at->last))
        at->unproved = number + 1;
}

/* A life that begins without an id is not the one that an id announced. */
static void
learn_id(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    struct kve_sm_place *at = &m->at;

    if (msg->publisher_id == NULL) {
        at->id.known = at->id.known && at->has_last;
    } else if (!at->id.known) {
        kve_sm_name_life(m, msg->publisher_id);
    }
}

void
kve_sm_learn_digest(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    struct kve_sm_digest *slot = &m->at.digests[msg->number % KVE_SM_DIGESTS];

    slot->used = true;
    slot->number = msg->number;
    slot->digest = msg->digest;
    slot->has_id = msg->publisher_id != NULL;
}

static void
move_on(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    struct kve_sm_place *at = &m->at;

    kve_sm_learn_digest(m, msg);
    learn_id(m, msg);
    at->has_last = true;
    at->last = msg->number;
    at->any_base = false;
    at->after_reset = false;
    at->old_replay = false;
    at->delivered = true;
    at->delivered_number = msg->number;
    at->delivered_id = msg->publisher_id != NULL;
    m->snap_wanted = false;
}

void
kve_sm_apply(
    struct kve_machine *m, const struct kve_machine_msg *msg, bool replayed)
{
    struct kve_action *a = kve_sm_emit(m, KVE_ACTION_APPLY);

    a->msg = *msg;
    a->replayed = replayed;
    a->hidden = m->twin != KVE_TWIN_NONE;
    if (m->at.after_reset && msg->number == 1 && !replayed)
        m->first_check = true;
    move_unproved(m, msg->number, replayed);
    move_on(m, msg);
    if (replayed)
        return;
    kve_sm_live_came(m, msg->number);
    if (msg->empty && kve_sm_id_is(&m->at.id, msg->publisher_id))
        m->heartbeats = true;
    if (m->in_doubt) {
        if (msg->number - m->at.unproved == KVE_SM_DIGESTS / 2)
            m->probe_at = m->now; /* while the digests are known */
        return;
    }
    if (m->is_old)
        return;
    m->overruled = false;
    m->certain = m->connected;
    m->unconfirmed = false;
    kve_sm_confirm_tail(m);
    kve_sm_schedule_probe(m);
}

void
kve_sm_stream(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    kve_sm_apply(m, msg, false);
    kve_sm_check_first(m);
    m->settles = true;
}

/* ---- the twin ------------------------------------------------------ */

void
kve_sm_begin_twin(struct kve_machine *m, enum kve_sm_twin twin, uint32_t reason)
{
    if (m->twin == KVE_TWIN_NONE) {
        m->visible = m->at;
        m->visible_certain = m->certain;
        m->visible_wanted = m->snap_wanted;
    }
    kve_sm_count(m, KVE_COUNTER_SUB_REBUILDS, 1);
    kve_sm_emit(m, KVE_ACTION_BEGIN)->reason = reason;
    m->twin = twin;
}

void
kve_sm_swap_twin(struct kve_machine *m)
{
    if (m->twin == KVE_TWIN_NONE)
        return;
    kve_sm_emit(m, KVE_ACTION_SWAP)->reason =
        m->twin == KVE_TWIN_SNAPSHOT ? KVE_REASON_SNAPSHOT : KVE_REASON_LOST;
    if (m->twin == KVE_TWIN_SNAPSHOT)
        kve_sm_snapshot_taken(m);
    m->twin = KVE_TWIN_NONE;
}

void
kve_sm_abort_twin(struct kve_machine *m, uint32_t reason)
{
    if (m->twin == KVE_TWIN_NONE)
        return;
    kve_sm_emit(m, KVE_ACTION_ABORT)->reason = reason;
    m->at = m->visible;
    m->certain = m->visible_certain && m->connected;
    m->snap_wanted = m->visible_wanted;
    m->released_live = false; /* it was the twin that it followed */
    m->twin = KVE_TWIN_NONE;
}

/* ---- losses -------------------------------------------------------- */

static void
clear(struct kve_machine *m, uint32_t reason)
{
    kve_sm_count(m, KVE_COUNTER_SUB_CLEARS, 1);
    kve_sm_emit(m, KVE_ACTION_CLEAR)->reason = reason;
}

/* What is known is started anew, hidden where a replay fills it. */
static void
rebuild(struct kve_machine *m)
{
    if (kve_sm_can_replay(m)) {
        kve_sm_begin_twin(m, KVE_TWIN_REBUILD, KVE_REASON_LOST);
        return;
    }
    clear(m, KVE_REASON_LOST);
    m->at.delivered = false; /* nothing of it is visible any more */
}

void
kve_sm_lose(
    struct kve_machine *m, uint64_t last, uint32_t reason, bool may_rebuild)
{
    struct kve_sm_place *at = &m->at;
    uint64_t first = kve_sm_expected(m);

    if (may_rebuild && m->opts.rebuild) {
        rebuild(m);
        at->lossy = false;
        at->unreadable = false;
    }
    kve_sm_count(m, KVE_COUNTER_SUB_LOST, last - first + 1);
    kve_sm_notice(m, KVE_NOTICE_LOST, reason, first, last);
    if (!at->lossy)
        at->missing_first = first;
    at->missing_last = last;
    at->lossy = true;
    at->lost_reason = reason;
    if (at->has_last)
        at->last = last;
    else
        at->base = last + 1;
    /* Before what follows is applied the reader knows that it lacks something.
     */
    if (m->state == KVE_STATE_LIVE)
        kve_sm_settle(m);
}

/*
 * Nothing is missing, but nothing proves that what follows is of the life we
 * know: the only message that could has left the buffer, or is not to be had.
 */
void
kve_sm_life_unknown(struct kve_machine *m, uint32_t reason)
{
    struct kve_sm_place *at = &m->at;

    if (m->opts.rebuild)
        rebuild(m);
    if (!at->lossy) {
        at->missing_first = kve_sm_expected(m);
        at->missing_last = kve_sm_expected(m);
    }
    at->lossy = true;
    at->lost_reason = reason;
}

/* ---- the end of a life --------------------------------------------- */

static void
forget_place(struct kve_machine *m, bool reset)
{
    struct kve_sm_place *at = &m->at;

    if (at->id.known) {
        m->old_id = at->id;
        m->old_lived = true;
        m->old_heard = m->heard;
    }
    at->id.known = false;
    at->has_last = false;
    at->delivered = false;
    at->delivered_number = 0;
    at->base = 0;
    at->any_base = false;
    at->after_reset = reset;
    at->old_replay = reset;
    at->has_clear = false;
    at->lossy = false;
    at->unreadable = false;
    memset(at->digests, 0, sizeof(at->digests));
}

void
kve_sm_forget_life(
    struct kve_machine *m, uint32_t reason, enum kve_counter kind)
{
    bool reset = reason == KVE_REASON_RESET;

    kve_sm_abort_twin(m, reason);
    kve_sm_count(
        m, reset ? KVE_COUNTER_SUB_RESETS : KVE_COUNTER_SUB_RESTARTS, 1);
    if (!reset)
        kve_sm_count(m, kind, 1);
    clear(m, reason);
    forget_place(m, reset);
    m->strays_since = KVE_NEVER;
    m->strayed = false;
    m->old_answered = false;
    m->shown = false;
    m->heard = false;
    m->id_doubted = false;
    m->first_check = false;
    m->overruled = false;
    m->live_seen = false;
    m->replay_has_data = false;
    m->heartbeats = false;
    m->snap_wanted = false;
    m->unconfirmed = false;
    m->tail_confirmed = false;
    m->confirmed_at = 0;
    m->certain = m->connected;
    m->fails = 0;
    m->has_gap = false;
    m->has_released = false;
}

void
kve_sm_new_life(struct kve_machine *m, uint32_t reason, enum kve_counter kind)
{
    kve_sm_stop_ask(m);
    kve_sm_forget_life(m, reason, kind);
}
