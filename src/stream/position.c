/*
 * position.c - where the reader stands, and to go on from there; see state.h.
 *
 * The machine is ahead of its reader by the actions that are still to be
 * pulled, and a position is asked for in the middle of them, from a callback.
 * So an APPLY behind other actions remembers what was before it. Before all
 * else that changes what the reader sees there is no position: what a CLEAR or
 * a BEGIN ends was found to be wrong, and a SWAP or an ABORT ends a twin.
 */
#include "stream/state.h"

#include <string.h>

/* ---- saying it ----------------------------------------------------- */

static const struct kve_sm_digest *
digest_of(const struct kve_sm_place *at, uint64_t number)
{
    const struct kve_sm_digest *slot = &at->digests[number % KVE_SM_DIGESTS];

    return slot->used && slot->number == number ? slot : NULL;
}

/* A loss without numbers: two lives may have been mixed. */
static void
degrade(struct kve_position *pos, uint32_t reason, uint64_t expected)
{
    pos->degraded = true;
    pos->reason = reason;
    pos->has_missing = true;
    pos->missing_first = expected;
    pos->missing_last = expected;
}

static void
say_faults(const struct kve_sm_place *at, struct kve_position *pos)
{
    pos->degraded = at->lossy || at->unreadable;
    pos->has_missing = at->lossy;
    if (at->lossy) {
        pos->reason = at->lost_reason;
        pos->missing_first = at->missing_first;
        pos->missing_last = at->missing_last;
    } else if (at->unreadable) {
        pos->reason = KVE_REASON_UNREADABLE;
    }
}

/* What was applied in doubt. Where the digests that could prove it are known
 * no more nothing ever will. */
static void
say_doubt(const struct kve_machine *m, struct kve_position *pos)
{
    const struct kve_sm_place *at = &m->at;
    const struct kve_sm_digest *proof;
    const struct kve_sm_digest *first;
    uint64_t number;

    if (!m->in_doubt || at->lossy || at->unproved > pos->number)
        return;
    number = kve_sm_doubtful_from(at);
    if (number >= pos->number)
        return;
    proof = digest_of(at, number);
    first = digest_of(at, number + 1);
    if (proof == NULL || first == NULL || !pos->has_digest) {
        degrade(pos, KVE_REASON_REPLAY_FAILED, kve_sm_expected(m));
        return;
    }
    pos->doubted = true;
    pos->proof_number = number;
    pos->proof_digest = proof->digest;
    pos->doubt_digest = first->digest;
}

/* Whether a life began with 0 is still being asked; a resumed one would not
 * ask. */
static bool
is_beginning_open(const struct kve_machine *m)
{
    return m->first_check && m->opts.has_replay;
}

void
kve_sm_position(const struct kve_machine *m, struct kve_position *pos)
{
    const struct kve_sm_place *at = &m->at;
    const struct kve_sm_digest *digest;

    memset(pos, 0, sizeof(*pos));
    if (m->twin != KVE_TWIN_NONE || !at->has_last || !at->delivered ||
        is_beginning_open(m))
        return;
    pos->started = true;
    pos->number = at->delivered_number;
    digest = digest_of(at, pos->number);
    if (digest != NULL) {
        pos->has_digest = true;
        pos->digest = digest->digest;
    }
    pos->has_publisher_id = at->id.known;
    if (at->id.known)
        memcpy(pos->publisher_id, at->id.bytes, sizeof(pos->publisher_id));
    say_faults(at, pos);
    say_doubt(m, pos);
}

/* Does it change what the reader sees? */
static bool
moves_reader(enum kve_action_type type)
{
    switch (type) {
    case KVE_ACTION_APPLY:
    case KVE_ACTION_CLEAR:
    case KVE_ACTION_BEGIN:
    case KVE_ACTION_SWAP:
    case KVE_ACTION_ABORT:
        return true;
    case KVE_ACTION_ASK:
    case KVE_ACTION_STOP:
    case KVE_ACTION_STATE:
    case KVE_ACTION_NOTICE:
        break;
    }
    return false;
}

void
kve_machine_position(
    const struct kve_machine *m, struct kve_position *ret_position)
{
    size_t at = m->first_action;

    for (size_t i = 0; i < m->n_actions; i++) {
        if (moves_reader(m->actions[at].type)) {
            if (m->has_before && m->before_at == at)
                *ret_position = m->before;
            else
                memset(ret_position, 0, sizeof(*ret_position));
            return;
        }
        at = (at + 1) % KVE_SM_ACTIONS;
    }
    kve_sm_position(m, ret_position);
}

/* ---- going on from it ---------------------------------------------- */

static void
learn(struct kve_sm_place *at, uint64_t number, uint64_t digest)
{
    struct kve_sm_digest *slot = &at->digests[number % KVE_SM_DIGESTS];

    slot->used = true;
    slot->number = number;
    slot->digest = digest;
}

/* Everything up to the position, as it was applied. */
static void
take_place(struct kve_sm_place *at, const struct kve_position *pos)
{
    at->has_last = true;
    at->last = pos->number;
    at->any_base = false;
    at->delivered = true;
    at->delivered_number = pos->number;
    at->delivered_id = pos->has_publisher_id;
    at->unproved = pos->number + 1;
    if (pos->has_publisher_id)
        kve_sm_set_id(&at->id, pos->publisher_id);
    if (pos->has_digest)
        learn(at, pos->number, pos->digest);
    if (pos->doubted) {
        at->unproved = pos->proof_number + 1;
        learn(at, pos->proof_number, pos->proof_digest);
        learn(at, pos->proof_number + 1, pos->doubt_digest);
    }
}

static void
take_faults(struct kve_machine *m, const struct kve_position *pos)
{
    struct kve_sm_place *at = &m->at;
    struct kve_position doubted = *pos;

    /* What would prove it is not asked for here. */
    if (pos->doubted && !pos->degraded && !kve_sm_probes(m))
        degrade(&doubted,
            m->opts.has_replay ? KVE_REASON_REPLAY_FAILED
                               : KVE_REASON_NO_REPLAY,
            kve_sm_expected(m));
    if (!doubted.degraded)
        return;
    if (!doubted.has_missing && doubted.reason == KVE_REASON_UNREADABLE) {
        at->unreadable = true;
        return;
    }
    at->lossy = true;
    at->lost_reason = doubted.reason;
    at->missing_first = doubted.missing_first;
    at->missing_last = doubted.missing_last;
}

static bool
is_sane(const struct kve_position *pos)
{
    if (pos->number == UINT64_MAX ||
        (pos->has_missing && pos->missing_first > pos->missing_last))
        return false;
    return !pos->doubted ||
        (pos->has_digest && pos->proof_number < pos->number);
}

bool
kve_machine_resume(
    struct kve_machine *m, int64_t now_ns, const struct kve_position *pos)
{
    if (m->gone || m->was_connected || m->mode != KVE_MODE_WAIT ||
        m->at.has_last || m->n_actions != 0 || !is_sane(pos))
        return false;
    if (!pos->started)
        return true;
    (void)kve_sm_begin_input(m, now_ns);
    take_place(&m->at, pos);
    take_faults(m, pos);
    m->was_connected = true;
    m->resumed = true;
    m->in_doubt = kve_sm_probes(m);
    if (m->at.lossy || m->at.unreadable)
        kve_sm_settle(m);
    else
        kve_sm_set_state(m, KVE_STATE_RECOVERING, KVE_REASON_RESUMED,
            kve_sm_expected(m), kve_sm_expected(m));
    return true;
}
