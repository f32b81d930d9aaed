/*
 * action.c - what the owner is told; see state.h.
 */
#include "stream/state.h"

#include "base/alloc.h"

#include <assert.h>
#include <string.h>

struct kve_action *
kve_sm_emit(struct kve_machine *m, enum kve_action_type type)
{
    assert(m->n_actions < KVE_SM_ACTIONS);

    size_t at = (m->first_action + m->n_actions) % KVE_SM_ACTIONS;
    /* Others are pulled before it: the reader may be asked where it stands. */
    if (type == KVE_ACTION_APPLY && m->n_actions > 0 && !m->has_before) {
        kve_sm_position(m, &m->before);
        m->before_at = at;
        m->has_before = true;
    }
    m->n_actions++;
    struct kve_action *a = &m->actions[at];
    memset(a, 0, sizeof(*a));
    a->type = type;
    a->state = m->state;
    a->old_state = m->state;
    return a;
}

void
kve_sm_count(struct kve_machine *m, enum kve_counter counter, uint64_t n)
{
    kve_sub_count(m->opts.counters, counter, n);
}

void
kve_sm_notice(struct kve_machine *m, enum kve_notice_type type, uint32_t reason,
    uint64_t first, uint64_t last)
{
    struct kve_action *a = kve_sm_emit(m, KVE_ACTION_NOTICE);

    a->notice = type;
    a->reason = reason;
    a->first = first;
    a->last = last;
}

void
kve_sm_set_state(struct kve_machine *m, enum kve_state state, uint32_t reason,
    uint64_t first, uint64_t last)
{
    uint32_t old = m->state;

    if (old == state && (m->reason == reason || state == KVE_STATE_LIVE))
        return;
    if (old != state)
        m->state_since = m->now;
    m->state = state;
    m->reason = reason;

    struct kve_action *a = kve_sm_emit(m, KVE_ACTION_STATE);
    a->old_state = old;
    a->reason = reason;
    a->first = first;
    a->last = last;
}

/* Is there nothing open that an answer or a message will tell? */
bool
kve_sm_is_sure(const struct kve_machine *m)
{
    bool checking = m->first_check && kve_sm_can_replay(m);

    return m->connected && !m->in_doubt && !m->strayed && !m->snap_wanted &&
        !m->unconfirmed && !checking;
}

void
kve_sm_settle(struct kve_machine *m)
{
    const struct kve_sm_place *at = &m->at;
    uint64_t next = kve_sm_expected(m);

    if (at->lossy)
        kve_sm_set_state(m, KVE_STATE_DEGRADED, at->lost_reason,
            at->missing_first, at->missing_last);
    else if (at->unreadable)
        kve_sm_set_state(
            m, KVE_STATE_DEGRADED, KVE_REASON_UNREADABLE, at->last, at->last);
    else if (m->replay_broken)
        kve_sm_set_state(
            m, KVE_STATE_DEGRADED, KVE_REASON_REPLAY_FAILED, next, next);
    else if (!m->connected)
        kve_sm_set_state(m, KVE_STATE_RECOVERING,
            m->resumed             ? KVE_REASON_RESUMED
                : m->was_connected ? KVE_REASON_RECONNECT
                                   : KVE_REASON_STARTING,
            at->last, at->last);
    else if (kve_sm_is_sure(m))
        kve_sm_set_state(
            m, KVE_STATE_LIVE, KVE_REASON_CAUGHT_UP, at->last, at->last);
}

void
kve_sm_free_current(struct kve_machine *m)
{
    kve_mem_free(m->current);
    m->current = NULL;
}

bool
kve_sm_begin_input(struct kve_machine *m, int64_t now_ns)
{
    assert(m->n_actions == 0);
    m->now = now_ns;
    kve_sm_free_current(m);
    return !m->gone;
}

bool
kve_machine_next(struct kve_machine *m, struct kve_action *ret_action)
{
    if (m->n_actions == 0)
        kve_sm_free_current(m);
    while (m->n_actions == 0 && m->mode == KVE_MODE_RELEASE) {
        kve_sm_free_current(m);
        kve_sm_release_one(m);
    }
    if (m->n_actions == 0 && m->settles) {
        m->settles = false;
        kve_sm_settle(m);
    }
    if (m->n_actions == 0) {
        m->first_action = 0;
        return false;
    }
    *ret_action = m->actions[m->first_action];
    if (m->has_before && m->before_at == m->first_action) {
        m->has_before = false;
        m->before_at = 0;
        memset(&m->before, 0, sizeof(m->before));
    }
    m->first_action = (m->first_action + 1) % KVE_SM_ACTIONS;
    m->n_actions--;
    return true;
}
