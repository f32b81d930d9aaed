/*
 * ask.c - requests: asking, waiting, failing, asking again; see state.h.
 */
#include "stream/state.h"

#include <string.h>

#define RETRY_NS (100 * KVE_MS) /* first delay after a failed replay */

bool
kve_sm_can_replay(const struct kve_machine *m)
{
    return m->opts.has_replay && !m->distrusted;
}

bool
kve_sm_probes(const struct kve_machine *m)
{
    return kve_sm_can_replay(m) && m->opts.tail_probe_ns != KVE_NEVER;
}

void
kve_sm_schedule_probe(struct kve_machine *m)
{
    m->probe_ivl = m->opts.tail_probe_ns;
    m->probe_at = m->probe_ivl == KVE_NEVER ? KVE_NEVER : m->now + m->probe_ivl;
}

void
kve_sm_flush_repaired(struct kve_machine *m)
{
    if (!m->repaired)
        return;
    m->repaired = false;
    kve_sm_notice(
        m, KVE_NOTICE_REPAIRED, m->reason, m->repaired_first, m->repaired_last);
}

void
kve_sm_stop_ask(struct kve_machine *m)
{
    if (m->ask == 0)
        return;

    struct kve_action *a = kve_sm_emit(m, KVE_ACTION_STOP);
    a->ask = m->ask;
    a->kind = m->ask_kind;
    m->ask = 0;
    m->snap_loading = false;
    kve_sm_flush_repaired(m);
}

void
kve_sm_new_ask(struct kve_machine *m, enum kve_ask_kind kind)
{
    m->ask_serial += m->ask_serial == UINT32_MAX ? 2 : 1; /* 0 is none */
    m->ask = m->ask_serial;
    m->ask_kind = kind;
    m->ask_answered = false;
    m->ask_link = m->link;
    m->ask_deadline = KVE_NEVER;
    m->retry_at = KVE_NEVER;
}

uint64_t
kve_sm_doubtful_from(const struct kve_sm_place *at)
{
    if (at->unproved == 0 || (at->has_clear && at->clear == at->unproved))
        return at->unproved;
    return at->unproved - 1;
}

void
kve_sm_ask_now(
    struct kve_machine *m, enum kve_sm_from how, enum kve_ask_kind kind)
{
    const struct kve_sm_place *at = &m->at;
    bool probe = kind == KVE_ASK_PROBE;

    kve_sm_new_ask(m, kind);
    m->ask_how = how;
    /* Where the life is in doubt a hole is asked for with the one before. */
    m->ask_proof = how == KVE_FROM_LAST ||
        (how == KVE_FROM_HOLE && at->has_last && (!m->certain || m->in_doubt));
    m->ask_from = how == KVE_FROM_ZERO ? 0
        : !m->ask_proof                ? kve_sm_expected(m)
        : !m->in_doubt                 ? at->last
                                       : kve_sm_doubtful_from(at);
    m->ask_last = at->has_last ? at->last : 0;
    m->ask_applied = at->has_last && at->delivered_number == at->last;
    m->ask_first = true;
    m->ask_progress = false;
    m->ask_next = 0;

    kve_sm_count(
        m, probe ? KVE_COUNTER_SUB_PROBES : KVE_COUNTER_SUB_REPLAYS, 1);
    struct kve_action *a = kve_sm_emit(m, KVE_ACTION_ASK);
    a->ask = m->ask;
    a->first = m->ask_from;
    a->kind = kind;
    if (!probe)
        kve_sm_notice(
            m, KVE_NOTICE_REPLAY, m->reason, m->ask_from, m->ask_from);
}

enum kve_sm_from
kve_sm_how_now(const struct kve_machine *m)
{
    return m->at.has_last ? KVE_FROM_LAST : KVE_FROM_START;
}

void
kve_sm_enter_recovery(struct kve_machine *m)
{
    kve_sm_stop_ask(m);
    m->mode = KVE_MODE_RECOVER;
    m->released_live = false;
    m->tail_confirmed = false;
    m->fails = 0;
}

void
kve_sm_recover(struct kve_machine *m, enum kve_sm_from how, uint32_t reason,
    uint64_t first, uint64_t last)
{
    kve_sm_enter_recovery(m);
    kve_sm_set_state(m, KVE_STATE_RECOVERING, reason, first, last);
    kve_sm_ask_now(m, how, KVE_ASK_REPLAY);
}

/* Why we recover stays what it was. */
void
kve_sm_recover_hole(struct kve_machine *m, uint64_t last)
{
    uint32_t reason =
        m->state == KVE_STATE_RECOVERING ? m->reason : KVE_REASON_GAP;

    kve_sm_recover(m, KVE_FROM_HOLE, reason, kve_sm_expected(m), last);
}

void
kve_sm_answer_leads(struct kve_machine *m)
{
    memset(m->at.digests, 0, sizeof(m->at.digests));
    m->live_seen = false;
    m->certain = false;
    m->in_doubt = kve_sm_probes(m) && m->keeps_buffer;
}

/* Long after the connection stood there are no leftovers any more, and what an
 * answer says must be what the live stream says. */
bool
kve_sm_is_old_link(const struct kve_machine *m)
{
    return m->certain && m->connected && !m->in_doubt && kve_sm_probes(m) &&
        m->now - m->connected_at > m->opts.replay_timeout_ns;
}

void
kve_sm_start_over(struct kve_machine *m, uint32_t reason, enum kve_counter kind,
    const uint8_t *id)
{
    bool sure = kve_sm_is_old_link(m) && !m->at.id.known && id == NULL;

    kve_sm_new_life(m, reason, kind);
    kve_sm_name_life(m, id);
    m->overruled = sure;
    kve_sm_answer_leads(m);
    kve_sm_recover(m, KVE_FROM_START, reason, 0, 0);
}

/*
 * After a reset 1 was as good a first number as 0, but 0 may have been lost.
 * The replay may still hold the life before, so that its answer counts only
 * where it agrees about 1.
 */
void
kve_sm_check_first(struct kve_machine *m)
{
    if (!m->first_check || m->ask != 0 || !m->connected ||
        m->mode != KVE_MODE_STREAM || !kve_sm_can_replay(m))
        return;
    m->zero_seen = false;
    kve_sm_ask_now(m, KVE_FROM_ZERO, KVE_ASK_PROBE);
}

void
kve_machine_asked(struct kve_machine *m, int64_t now_ns, uint32_t ask)
{
    if (ask == 0 || ask != m->ask)
        return;
    m->ask_deadline = now_ns +
        (m->ask_kind == KVE_ASK_SNAPSHOT ? m->opts.snapshot_timeout_ns
                                         : m->opts.replay_timeout_ns);
}

/* ---- failures ------------------------------------------------------ */

/* It is given up: what is held is all that there is. */
static void
give_up(struct kve_machine *m)
{
    m->replay_broken = true;
    m->fails = 0;
    kve_sm_snapshot_drop(m);
    if (m->at.has_last && !m->certain) {
        kve_sm_life_unknown(m, KVE_REASON_REPLAY_FAILED);
        kve_sm_answer_leads(m);
    }
    kve_sm_release(m);
}

/* The next probe is scheduled already. */
static void
probe_fails(struct kve_machine *m)
{
    if (m->ask_how == KVE_FROM_ZERO) {
        m->first_check = false; /* it is not to be had */
        kve_sm_settle(m);
    }
    if (m->fails < KVE_SM_FAILS)
        return;
    m->replay_broken = true;
    m->tail_confirmed = false;
    kve_sm_settle(m);
}

void
kve_sm_fail(struct kve_machine *m)
{
    bool hole = m->ask_how == KVE_FROM_HOLE;

    kve_sm_stop_ask(m);
    m->fails = m->ask_progress ? 0 : m->fails + 1;
    kve_sm_notice(m, KVE_NOTICE_REPLAY_FAILED, KVE_REASON_REPLAY_FAILED,
        kve_sm_expected(m), kve_sm_expected(m));

    if (m->mode == KVE_MODE_STREAM) {
        probe_fails(m);
        return;
    }
    if (m->fails >= KVE_SM_FAILS) {
        give_up(m);
        return;
    }
    m->ask_how = hole && m->fails > 0 ? KVE_FROM_HOLE : kve_sm_how_now(m);
    m->retry_at = m->now + (RETRY_NS << m->fails);
}

void
kve_machine_replay_failed(struct kve_machine *m, int64_t now_ns, uint32_t ask)
{
    if (!kve_sm_begin_input(m, now_ns) || ask == 0 || ask != m->ask ||
        m->ask_kind == KVE_ASK_SNAPSHOT)
        return;
    kve_sm_fail(m);
}
