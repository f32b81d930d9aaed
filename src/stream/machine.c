/*
 * machine.c - see machine.h.
 *
 * Reading order: the actions, what is known about a life (digests, losses),
 * asking, judging live messages, judging answers, releasing the hold, time.
 */
#include "stream/machine.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "stream/hold.h"

#include <assert.h>
#include <string.h>

#define N_ACTIONS 16  /* no input makes more before it is pulled */
#define N_DIGESTS 256 /* recent numbers whose digest is known; power of two */
#define MAX_FAILS 3   /* replays in a row without progress */
#define MAX_PROBE_NS (30000 * KVE_MS)
#define RETRY_NS (100 * KVE_MS) /* first delay after a failed replay */

enum mode { MODE_WAIT, MODE_STREAM, MODE_RECOVER, MODE_RELEASE };

/* What is asked for, and so what the answer's first message means. */
enum ask_kind {
    ASK_START, /* nothing applied yet: from the first number wanted */
    ASK_CHECK, /* from the last one applied, which proves the life */
    ASK_HOLE   /* for a number that was absent inside an answer */
};

enum verdict { SAME_LIFE, OTHER_LIFE, UNKNOWN_LIFE };

struct digest_slot {
    uint64_t number;
    uint64_t digest;
    bool used;
};

struct kve_machine {
    struct kve_machine_opts opts;
    enum mode mode;
    int64_t now;

    uint32_t state;
    uint32_t reason;
    int64_t state_since;

    bool connected;
    bool was_connected;
    bool certain; /* unbroken connection since the last check of the life */

    /* The life. */
    bool has_last;
    uint64_t last;     /* applied or given up; with has_last */
    uint64_t base;     /* first number expected; without has_last */
    bool any_base;     /* whatever live number comes first is the base */
    bool after_reset;  /* 1 is as good a first number as 0 */
    bool old_replay;   /* after a reset the replay may hold the old life */
    bool in_doubt;     /* live may bring leftovers; only a probe proves */
    uint64_t unproved; /* first number that no answer has shown, in doubt */
    bool delivered;
    uint64_t delivered_number;
    bool live_seen;
    uint64_t live_number; /* highest one the live stream brought */
    bool replay_has_data; /* an answer of this life had batches */
    bool keeps_buffer;    /* until it is shown not to */
    uint32_t barren;      /* lives in a row of which none had */
    bool lossy;
    bool unreadable;
    uint32_t lost_reason;
    uint64_t missing_first;
    uint64_t missing_last;
    bool has_gap; /* first..last were missed by the live stream */
    uint64_t gap_first;
    uint64_t gap_last;
    bool has_released; /* of the hold, in this recovery */
    uint64_t last_released;
    struct digest_slot digests[N_DIGESTS];

    bool tail_confirmed;
    int64_t confirmed_at;

    /* The request under way. */
    uint32_t ask; /* 0: none */
    uint32_t ask_serial;
    enum ask_kind ask_kind;
    uint64_t ask_from;
    bool ask_proof;    /* from one that was applied, which proves the life */
    uint64_t ask_last; /* the last one applied when it was asked */
    bool ask_probe;
    bool ask_first;    /* nothing of the answer was seen yet */
    bool ask_progress; /* something was applied or proved lost */
    uint64_t ask_next; /* above the highest number that the answer brought */
    int64_t ask_deadline;
    bool repaired;
    uint64_t repaired_first;
    uint64_t repaired_last;

    uint32_t fails;     /* requests in a row without progress */
    bool replay_broken; /* MAX_FAILS was reached; a good answer mends it */
    int64_t retry_at;
    int64_t probe_at;
    int64_t probe_ivl;

    struct kve_hold hold;
    struct kve_held *current; /* what the last APPLY pointed to */
    bool hold_dropped;        /* something did not fit */
    bool released_live;       /* a held message followed in order */

    struct kve_action actions[N_ACTIONS];
    size_t first_action;
    size_t n_actions;
};

static void recover(struct kve_machine *m, enum ask_kind kind, uint32_t reason,
    uint64_t first, uint64_t last);

/* ---- actions ------------------------------------------------------- */

static struct kve_action *
emit(struct kve_machine *m, enum kve_action_type type)
{
    assert(m->n_actions < N_ACTIONS);

    struct kve_action *a =
        &m->actions[(m->first_action + m->n_actions++) % N_ACTIONS];
    memset(a, 0, sizeof(*a));
    a->type = type;
    a->state = m->state;
    a->old_state = m->state;
    return a;
}

static void
count(struct kve_machine *m, enum kve_counter counter, uint64_t n)
{
    kve_sub_count(m->opts.counters, counter, n);
}

static void
notice(struct kve_machine *m, enum kve_notice_type type, uint32_t reason,
    uint64_t first, uint64_t last)
{
    struct kve_action *a = emit(m, KVE_ACTION_NOTICE);

    a->notice = type;
    a->reason = reason;
    a->first = first;
    a->last = last;
}

static void
set_state(struct kve_machine *m, enum kve_state state, uint32_t reason,
    uint64_t first, uint64_t last)
{
    uint32_t old = m->state;

    if (old == state && (m->reason == reason || state == KVE_STATE_LIVE))
        return;
    if (old != state)
        m->state_since = m->now;
    m->state = state;
    m->reason = reason;

    struct kve_action *a = emit(m, KVE_ACTION_STATE);
    a->old_state = old;
    a->reason = reason;
    a->first = first;
    a->last = last;
}

/* ---- the life ------------------------------------------------------ */

static uint64_t
expected(const struct kve_machine *m)
{
    return m->has_last ? m->last + 1 : m->base;
}

static enum verdict
judge_life(const struct kve_machine *m, const struct kve_machine_msg *msg)
{
    const struct digest_slot *slot = &m->digests[msg->number % N_DIGESTS];

    if (!slot->used || slot->number != msg->number)
        return UNKNOWN_LIFE;
    return slot->digest == msg->digest ? SAME_LIFE : OTHER_LIFE;
}

/* The state that follows from what is known while messages stream. */
static void
settle(struct kve_machine *m)
{
    if (m->lossy)
        set_state(m, KVE_STATE_DEGRADED, m->lost_reason, m->missing_first,
            m->missing_last);
    else if (m->unreadable)
        set_state(
            m, KVE_STATE_DEGRADED, KVE_REASON_UNREADABLE, m->last, m->last);
    else if (m->replay_broken)
        set_state(m, KVE_STATE_DEGRADED, KVE_REASON_REPLAY_FAILED, expected(m),
            expected(m));
    else if (m->connected && !m->in_doubt)
        set_state(m, KVE_STATE_LIVE, KVE_REASON_CAUGHT_UP, m->last, m->last);
    else if (!m->connected)
        set_state(m, KVE_STATE_RECOVERING,
            m->was_connected ? KVE_REASON_RECONNECT : KVE_REASON_STARTING,
            m->last, m->last);
}

static void
confirm_tail(struct kve_machine *m)
{
    if (!m->opts.has_replay || !m->connected)
        return;
    m->tail_confirmed = true;
    m->confirmed_at = m->now;
}

static bool
probes(const struct kve_machine *m)
{
    return m->opts.has_replay && m->opts.tail_probe_ns != KVE_NEVER;
}

static void
schedule_probe(struct kve_machine *m)
{
    m->probe_ivl = m->opts.tail_probe_ns;
    m->probe_at = m->probe_ivl == KVE_NEVER ? KVE_NEVER : m->now + m->probe_ivl;
}

/* The live stream has come as far as this number. */
static void
live_came(struct kve_machine *m, uint64_t number)
{
    if (!m->live_seen || number > m->live_number)
        m->live_number = number;
    m->live_seen = true;
}

static void
apply(struct kve_machine *m, const struct kve_machine_msg *msg, bool replayed)
{
    struct digest_slot *slot = &m->digests[msg->number % N_DIGESTS];
    struct kve_action *a = emit(m, KVE_ACTION_APPLY);

    a->msg = *msg;
    a->replayed = replayed;
    /* An answer that skips what was applied in doubt does not prove it. */
    if (!m->has_last)
        m->unproved = msg->number;
    if (replayed &&
        (!m->has_last || !m->in_doubt || m->lossy || m->unproved > m->last))
        m->unproved = msg->number + 1;
    slot->used = true;
    slot->number = msg->number;
    slot->digest = msg->digest;
    m->has_last = true;
    m->last = msg->number;
    m->any_base = false;
    m->after_reset = false;
    m->old_replay = false;
    m->delivered = true;
    m->delivered_number = msg->number;
    if (replayed)
        return;
    live_came(m, msg->number);
    if (m->in_doubt) {
        if (msg->number - m->unproved == N_DIGESTS / 2)
            m->probe_at = m->now; /* while the digests are known */
        return;
    }
    m->certain = m->connected;
    confirm_tail(m);
    schedule_probe(m);
}

/* Does a number leave a hole before it, or say what was applied already? */
static bool
is_ahead(const struct kve_machine *m, uint64_t number)
{
    if (m->any_base || (m->after_reset && number == 1))
        return false;
    return number > expected(m);
}

static bool
is_behind(const struct kve_machine *m, uint64_t number)
{
    return !m->any_base && number < expected(m);
}

/* A batch that followed in order while streaming. */
static void
stream(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    apply(m, msg, false);
    settle(m);
}

static void
clear(struct kve_machine *m, uint32_t reason)
{
    count(m, KVE_COUNTER_SUB_CLEARS, 1);
    emit(m, KVE_ACTION_CLEAR)->reason = reason;
}

/* Numbers up to last are gone for good; the next one expected is last + 1. */
static void
lose(struct kve_machine *m, uint64_t last, uint32_t reason, bool rebuild)
{
    uint64_t first = expected(m);

    if (rebuild && m->opts.rebuild) {
        clear(m, KVE_REASON_LOST);
        m->lossy = false;
        m->unreadable = false;
    }
    count(m, KVE_COUNTER_SUB_LOST, last - first + 1);
    notice(m, KVE_NOTICE_LOST, reason, first, last);
    if (!m->lossy)
        m->missing_first = first;
    m->missing_last = last;
    m->lossy = true;
    m->lost_reason = reason;
    if (m->has_last)
        m->last = last;
    else
        m->base = last + 1;
}

static void
flush_repaired(struct kve_machine *m)
{
    if (!m->repaired)
        return;
    m->repaired = false;
    notice(
        m, KVE_NOTICE_REPAIRED, m->reason, m->repaired_first, m->repaired_last);
}

static void
stop_ask(struct kve_machine *m)
{
    if (m->ask == 0)
        return;
    emit(m, KVE_ACTION_STOP)->ask = m->ask;
    m->ask = 0;
    flush_repaired(m);
}

/* Forget everything about the life that ended. What is held may be of the new
 * one already, and is judged when it is released. */
static void
new_life(struct kve_machine *m, uint32_t reason)
{
    stop_ask(m);
    count(m,
        reason == KVE_REASON_RESET ? KVE_COUNTER_SUB_RESETS
                                   : KVE_COUNTER_SUB_RESTARTS,
        1);
    clear(m, reason);
    m->has_last = false;
    m->base = 0;
    m->any_base = false;
    m->after_reset = reason == KVE_REASON_RESET;
    m->old_replay = m->after_reset;
    m->live_seen = false;
    m->replay_has_data = false;
    m->lossy = false;
    m->unreadable = false;
    m->tail_confirmed = false;
    m->confirmed_at = 0;
    m->certain = m->connected;
    m->fails = 0;
    m->has_gap = false;
    m->has_released = false;
    memset(m->digests, 0, sizeof(m->digests));
}

/* ---- asking -------------------------------------------------------- */

static void
ask_now(struct kve_machine *m, enum ask_kind kind, bool probe)
{
    m->ask = ++m->ask_serial;
    m->ask_kind = kind;
    /* Where the life is in doubt a hole is asked for with the one before. */
    m->ask_proof = kind == ASK_CHECK ||
        (kind == ASK_HOLE && m->has_last && (!m->certain || m->in_doubt));
    m->ask_from = !m->ask_proof ? expected(m)
        : !m->in_doubt          ? m->last
        : m->unproved > 0       ? m->unproved - 1
                                : 0;
    m->ask_last = m->has_last ? m->last : 0;
    m->ask_probe = probe;
    m->ask_first = true;
    m->ask_progress = false;
    m->ask_next = 0;
    m->ask_deadline = m->now + m->opts.replay_timeout_ns;
    m->retry_at = KVE_NEVER;

    count(m, probe ? KVE_COUNTER_SUB_PROBES : KVE_COUNTER_SUB_REPLAYS, 1);
    struct kve_action *a = emit(m, KVE_ACTION_ASK);
    a->ask = m->ask;
    a->first = m->ask_from;
    a->probe = probe;
    if (!probe)
        notice(m, KVE_NOTICE_REPLAY, m->reason, m->ask_from, m->ask_from);
}

static void
recover(struct kve_machine *m, enum ask_kind kind, uint32_t reason,
    uint64_t first, uint64_t last)
{
    stop_ask(m);
    m->mode = MODE_RECOVER;
    m->released_live = false;
    m->tail_confirmed = false;
    m->fails = 0;
    set_state(m, KVE_STATE_RECOVERING, reason, first, last);
    ask_now(m, kind, false);
}

/* Ask for a hole inside an answer; why we recover stays what it was. */
static void
recover_hole(struct kve_machine *m, uint64_t last)
{
    uint32_t reason =
        m->state == KVE_STATE_RECOVERING ? m->reason : KVE_REASON_GAP;

    recover(m, ASK_HOLE, reason, expected(m), last);
}

/* From what is known now; a hole is asked for by its own number. */
static enum ask_kind
ask_kind_now(const struct kve_machine *m)
{
    return m->has_last ? ASK_CHECK : ASK_START;
}

/* An answer shows a life that may not be the one we know. */
static void
answer_leads(struct kve_machine *m)
{
    memset(m->digests, 0, sizeof(m->digests));
    m->live_seen = false;
    m->certain = false;
    m->in_doubt = probes(m) && m->keeps_buffer;
}

/* An answer showed another life. The live stream may not have come so far. */
static void
start_over(struct kve_machine *m, uint32_t reason)
{
    new_life(m, reason);
    answer_leads(m);
    recover(m, ASK_START, reason, 0, 0);
}

/* ---- live messages ------------------------------------------------- */

static void
hold(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    if (!m->hold_dropped && kve_hold_push(&m->hold, msg, m->ask_serial)) {
        count(m, KVE_COUNTER_SUB_HELD, 1);
        return;
    }
    /* Once one was dropped the later ones would only show a gap. */
    count(m, KVE_COUNTER_SUB_HOLD_OVERFLOWS, 1);
    if (!m->hold_dropped)
        notice(
            m, KVE_NOTICE_HOLD_FULL, KVE_REASON_NONE, msg->number, msg->number);
    m->hold_dropped = true;
}

static void
gap(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    uint64_t first = expected(m);
    uint64_t last = msg->number - 1;

    count(m, KVE_COUNTER_SUB_GAPS, 1);
    count(m, KVE_COUNTER_SUB_MISSED, last - first + 1);
    notice(m, KVE_NOTICE_GAP, KVE_REASON_GAP, first, last);
    m->has_gap = true;
    m->gap_first = first;
    m->gap_last = last;
    if (m->opts.has_replay) {
        hold(m, msg);
        recover(m, ask_kind_now(m), KVE_REASON_GAP, first, last);
    } else {
        lose(m, last, KVE_REASON_NO_REPLAY, true);
        stream(m, msg);
    }
}

/* The first batch of a life, or of our acquaintance with it. */
static void
first_live(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    if (!is_ahead(m, msg->number)) {
        stream(m, msg);
    } else if (m->opts.has_replay) {
        gap(m, msg);
    } else {
        lose(m, msg->number - 1, KVE_REASON_LATE_START, false);
        stream(m, msg);
    }
}

/* The live stream brought what a replay had brought just before: it has
 * caught up, which confirms the tail as well as a new batch would. */
static void
live_is_level(struct kve_machine *m)
{
    if (m->in_doubt)
        return;
    m->certain = m->connected;
    confirm_tail(m);
    schedule_probe(m);
    if (m->mode == MODE_STREAM)
        settle(m);
    else
        m->released_live = true;
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
    return probes(m) && m->has_last &&
        (!m->live_seen || msg->number > m->live_number);
}

static void
probe_soon(struct kve_machine *m)
{
    if (m->opts.tail_probe_ns != KVE_NEVER &&
        m->probe_at > m->now + m->opts.tail_probe_ns)
        schedule_probe(m);
}

/*
 * Messages that wait to be read outlive their publisher. What contradicts an
 * answer that was given after it came, or comes while the live stream was not
 * yet heard to bring the life that an answer showed, is such a leftover.
 */
static bool
is_leftover(const struct kve_machine *m)
{
    return m->has_last &&
        (m->in_doubt || (m->mode == MODE_RELEASE && !m->replay_broken));
}

static void
repeat(struct kve_machine *m, uint64_t number)
{
    count(m, KVE_COUNTER_SUB_REPEATS, 1);
    live_came(m, number);
    if (number == m->last)
        live_is_level(m);
}

/* A live number below the one expected. */
static void
behind(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    enum verdict verdict = judge_life(m, msg);

    if (verdict == SAME_LIFE) {
        repeat(m, msg->number);
        return;
    }
    if (is_leftover(m)) {
        count(m, KVE_COUNTER_SUB_REPEATS, 1);
        if (verdict == OTHER_LIFE)
            m->in_doubt = probes(m); /* where one is, more may follow */
        return;
    }
    if (verdict == UNKNOWN_LIFE && lags(m, msg)) {
        count(m, KVE_COUNTER_SUB_REPEATS, 1);
        live_came(m, msg->number);
        m->tail_confirmed = false;
        probe_soon(m);
        return;
    }

    new_life(m, KVE_REASON_RESTART);
    if (m->mode == MODE_RELEASE) {
        kve_hold_put_back(&m->hold, m->current);
        m->current = NULL;
    } else {
        m->mode = MODE_STREAM;
    }
    if (m->opts.has_replay && msg->number > 0) {
        if (m->mode == MODE_STREAM)
            hold(m, msg);
        recover(m, ASK_START, KVE_REASON_RESTART, 0, msg->number - 1);
    } else if (m->mode == MODE_STREAM) {
        first_live(m, msg);
    }
}

static void
judge_live(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    if (is_behind(m, msg->number))
        behind(m, msg);
    else if (!m->has_last)
        first_live(m, msg);
    else if (is_ahead(m, msg->number))
        gap(m, msg);
    else
        stream(m, msg);
}

static void
free_current(struct kve_machine *m)
{
    kve_mem_free(m->current);
    m->current = NULL;
}

static void
begin_input(struct kve_machine *m, int64_t now_ns)
{
    assert(m->n_actions == 0);
    m->now = now_ns;
    free_current(m);
}

void
kve_machine_live(
    struct kve_machine *m, int64_t now_ns, const struct kve_machine_msg *msg)
{
    begin_input(m, now_ns);
    if (m->mode == MODE_RECOVER || m->mode == MODE_RELEASE)
        hold(m, msg);
    else if (m->mode == MODE_WAIT && m->opts.has_replay &&
        m->opts.start != KVE_START_LIVE) {
        /* A message before the word that there is a connection. */
        hold(m, msg);
        recover(m, ASK_START, KVE_REASON_STARTING, 0, 0);
    } else {
        m->mode = MODE_STREAM;
        judge_live(m, msg);
    }
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

    begin_input(m, now_ns);
    new_life(m, KVE_REASON_RESET);
    m->mode = MODE_STREAM;
    m->probe_at = KVE_NEVER;
    m->hold_dropped = false;
    kve_hold_clear(&m->hold);
    if (late) {
        m->old_replay = false;
        answer_leads(m);
        recover(m, ASK_START, KVE_REASON_RESET, 0, 0);
    } else {
        set_state(m, KVE_STATE_COLD, KVE_REASON_RESET, 0, 0);
    }
}

/* ---- connection ---------------------------------------------------- */

void
kve_machine_connected(struct kve_machine *m, int64_t now_ns)
{
    bool again = m->was_connected;

    begin_input(m, now_ns);
    m->connected = true;
    m->was_connected = true;
    if (!m->in_doubt)
        m->unproved = m->last + 1;
    m->in_doubt = again && probes(m) && m->keeps_buffer;
    if (!again)
        m->certain = true;
    if (!m->opts.has_replay || m->old_replay ||
        (m->opts.start == KVE_START_LIVE && !m->has_last)) {
        if (m->mode == MODE_WAIT)
            m->mode = MODE_STREAM;
        if (!again && m->has_last)
            settle(m);
        if (m->in_doubt)
            schedule_probe(m);
        return;
    }
    recover(m, ask_kind_now(m),
        again ? KVE_REASON_RECONNECT : KVE_REASON_STARTING, expected(m),
        expected(m));
}

void
kve_machine_disconnected(struct kve_machine *m, int64_t now_ns)
{
    begin_input(m, now_ns);
    if (!m->connected)
        return;
    m->connected = false;
    m->certain = false;
    m->tail_confirmed = false;
    m->old_replay = false;
    m->probe_at = KVE_NEVER;
    if (m->mode == MODE_STREAM)
        stop_ask(m); /* a probe */
    if (m->ask != 0 && m->ask_kind == ASK_HOLE && !m->ask_proof) {
        /* Another life may answer it: ask again, with a proof. */
        stop_ask(m);
        ask_now(m, ASK_HOLE, false);
    }
    if (m->state == KVE_STATE_LIVE)
        set_state(m, KVE_STATE_RECOVERING, KVE_REASON_RECONNECT, expected(m),
            expected(m));
}

/* ---- answers ------------------------------------------------------- */

/*
 * Nothing is missing, but nothing proves that what follows is of the life we
 * know: the only message that could has left the buffer, or is not to be had.
 */
static void
life_unknown(struct kve_machine *m, uint32_t reason)
{
    if (m->opts.rebuild)
        clear(m, KVE_REASON_LOST);
    if (!m->lossy) {
        m->missing_first = expected(m);
        m->missing_last = expected(m);
    }
    m->lossy = true;
    m->lost_reason = reason;
}

/* The answer starts above the number asked for: what was before is gone. */
static void
history_gone(struct kve_machine *m, uint64_t number)
{
    bool unproved = m->ask_proof && !m->certain;

    if (!m->has_last) {
        if (is_ahead(m, number))
            lose(m, number - 1, KVE_REASON_LATE_START, false);
    } else if (is_ahead(m, number)) {
        lose(m, number - 1, KVE_REASON_LOST, m->ask_proof);
    } else if (unproved) {
        life_unknown(m, KVE_REASON_LOST);
    }
    if (unproved)
        answer_leads(m);
    m->ask_progress = true;
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
    bool found =
        m->reason == KVE_REASON_TAIL || m->reason == KVE_REASON_RECONNECT;
    bool held = head != NULL && number >= head->msg.number;

    if (!in_gap && (!found || held))
        return;
    if (!in_gap)
        count(m, KVE_COUNTER_SUB_MISSED, 1);
    count(m, KVE_COUNTER_SUB_REPAIRED, 1);
    if (!m->repaired)
        m->repaired_first = number;
    m->repaired = true;
    m->repaired_last = number;
}

/* A probe found what the live stream lost. */
static void
tail_found(struct kve_machine *m, uint64_t number)
{
    m->mode = MODE_RECOVER;
    m->released_live = false;
    m->tail_confirmed = false;
    count(m, KVE_COUNTER_SUB_GAPS, 1);
    set_state(m, KVE_STATE_RECOVERING, KVE_REASON_TAIL, number, number);
}

/* A number that we have: all it can tell is whose life the answer is of. */
static void
replayed_again(struct kve_machine *m, const struct kve_machine_msg *msg)
{
    if (msg->number == m->unproved)
        m->unproved++;
    switch (judge_life(m, msg)) {
    case OTHER_LIFE:
        start_over(m, KVE_REASON_RESTART);
        break;
    case SAME_LIFE:
        m->certain = m->connected;
        break;
    case UNKNOWN_LIFE:
        break;
    }
}

void
kve_machine_replay(struct kve_machine *m, int64_t now_ns, uint32_t ask,
    const struct kve_machine_msg *msg)
{
    bool first;

    begin_input(m, now_ns);
    if (ask == 0 || ask != m->ask)
        return;
    /* Only an answer that goes on may take its time. */
    if (msg->number >= m->ask_next) {
        m->ask_next = msg->number + 1;
        m->ask_deadline = m->now + m->opts.replay_timeout_ns;
    }
    m->replay_has_data = true;
    m->keeps_buffer = true;
    m->barren = 0;
    first = m->ask_first;
    if (msg->number >= m->ask_from)
        m->ask_first = false; /* below: more than was asked for */
    if (is_behind(m, msg->number)) {
        if (m->has_last)
            replayed_again(m, msg);
        return;
    }

    if (m->mode == MODE_STREAM)
        tail_found(m, msg->number);
    if (first && msg->number > m->ask_from)
        history_gone(m, msg->number);
    else if (m->ask_kind == ASK_HOLE && !m->ask_progress &&
        is_ahead(m, msg->number))
        lose(m, msg->number - 1, KVE_REASON_LOST, false);
    if (is_ahead(m, msg->number)) {
        /* A hole inside the answer: a publisher that lost it on the way has
         * it still, one that never had it will say so. */
        flush_repaired(m);
        recover_hole(m, msg->number - 1);
        return;
    }
    count_repair(m, msg->number);
    m->ask_progress = true;
    apply(m, msg, true);
}

/* Was a message beyond what an answer brought in hand when it was asked for?
 * One that came later may have been sent after the answer was given. */
static bool
gap_is_known(const struct kve_machine *m)
{
    const struct kve_held *head = m->hold.first;

    return head != NULL && head->ask != m->ask_serial &&
        is_ahead(m, head->msg.number);
}

/* The publisher showed nothing where it should have; does it keep nothing? */
static void
nothing_shown(struct kve_machine *m)
{
    if (++m->barren <= MAX_FAILS)
        return;
    m->keeps_buffer = false;
    m->in_doubt = false;
}

/*
 * Messages were held already when the publisher said that it has nothing so
 * new. If it keeps a buffer they are leftovers of the life before, and a probe
 * that follows will tell if not; else what was before them is lost.
 */
static void
nothing_so_new(struct kve_machine *m)
{
    uint32_t reason = m->has_last ? KVE_REASON_LOST : KVE_REASON_LATE_START;

    if (!m->replay_has_data && !m->in_doubt) {
        lose(m, m->hold.first->msg.number - 1, reason, m->ask_proof);
        return;
    }
    while (gap_is_known(m)) {
        count(m, KVE_COUNTER_SUB_REPEATS, 1);
        kve_mem_free(kve_hold_pop(&m->hold));
    }
    if (!m->replay_has_data)
        nothing_shown(m);
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

    if (m->ask_kind == ASK_START) {
        m->certain = m->connected; /* it has nothing: all that comes is new */
        if (gap_is_known(m))
            nothing_so_new(m);
        else if (m->ask_probe)
            confirm_tail(m);
    } else if (m->ask_proof && doubted) {
        nothing_shown(m);
        start_over(m, KVE_REASON_RESTART);
    } else if (gap_is_known(m)) {
        nothing_so_new(m);
    } else if (m->ask_kind == ASK_HOLE) {
        start_over(m, KVE_REASON_RESTART);
    } else {
        /* It keeps no buffer: the tail can not be confirmed. */
        nothing_shown(m);
        m->tail_confirmed = false;
        m->probe_at = KVE_NEVER;
    }
}

/* Held messages are released by kve_machine_next(), one at a time. */
static void
release(struct kve_machine *m)
{
    m->mode = MODE_RELEASE;
    if (!m->in_doubt)
        m->unproved = m->last + 1;
}

static void
end_recovery(struct kve_machine *m)
{
    m->mode = MODE_STREAM;
    if (m->hold_dropped) {
        m->hold_dropped = false;
        recover(m, ask_kind_now(m), KVE_REASON_GAP, expected(m), expected(m));
        return;
    }
    schedule_probe(m);
    if (m->released_live || m->lossy || m->unreadable || m->replay_broken ||
        !probes(m))
        settle(m);
    /* Else the tail probe that follows makes the source live. */
}

void
kve_machine_replay_end(struct kve_machine *m, int64_t now_ns, uint32_t ask)
{
    bool probe;

    begin_input(m, now_ns);
    if (ask == 0 || ask != m->ask)
        return;
    probe = m->ask_probe;
    stop_ask(m);
    m->fails = 0;
    m->replay_broken = false;
    if (m->ask_first)
        empty_answer(m);
    else if (m->ask_kind == ASK_HOLE && !m->ask_progress && gap_is_known(m))
        nothing_so_new(m);
    else if (m->mode == MODE_STREAM)
        confirm_tail(m);

    if (m->in_doubt && m->ask == 0 && m->ask_proof && !m->lossy &&
        m->unproved <= m->ask_last)
        start_over(m, KVE_REASON_RESTART); /* it never sent what we applied */
    else if (m->mode == MODE_STREAM)
        m->in_doubt = false;
    if (m->ask != 0)
        return; /* another life: a new request runs */
    if (m->mode == MODE_RECOVER)
        release(m);
    else if (probe)
        settle(m);
}

static void
fail(struct kve_machine *m)
{
    enum ask_kind kind = m->ask_kind;

    stop_ask(m);
    m->fails = m->ask_progress ? 0 : m->fails + 1;
    notice(m, KVE_NOTICE_REPLAY_FAILED, KVE_REASON_REPLAY_FAILED, expected(m),
        expected(m));

    if (m->mode == MODE_STREAM) { /* a probe; its next one is scheduled */
        if (m->fails >= MAX_FAILS) {
            m->replay_broken = true;
            m->tail_confirmed = false;
            settle(m);
        }
        return;
    }
    if (m->fails < MAX_FAILS) {
        m->ask_kind =
            kind == ASK_HOLE && m->fails > 0 ? ASK_HOLE : ask_kind_now(m);
        m->retry_at = m->now + (RETRY_NS << m->fails);
        return;
    }
    m->replay_broken = true;
    m->fails = 0;
    if (m->connected && m->has_last && !m->certain) {
        life_unknown(m, KVE_REASON_REPLAY_FAILED);
        answer_leads(m);
    }
    release(m);
}

void
kve_machine_replay_failed(struct kve_machine *m, int64_t now_ns, uint32_t ask)
{
    begin_input(m, now_ns);
    if (ask == 0 || ask != m->ask)
        return;
    fail(m);
}

/* ---- releasing the hold -------------------------------------------- */

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
        uint64_t upto = number - 1;

        count(m, KVE_COUNTER_SUB_GAPS, 1);
        count(m, KVE_COUNTER_SUB_MISSED, upto - first + 1);
        if (m->has_last && m->last >= first)
            count(m, KVE_COUNTER_SUB_REPAIRED,
                (m->last < upto ? m->last : upto) - first + 1);
        m->has_gap = true;
        m->gap_first = m->has_last && m->last >= first ? m->last + 1 : first;
        m->gap_last = upto;
    }
    m->has_released = true;
    m->last_released = number;
}

static void
release_one(struct kve_machine *m)
{
    const struct kve_held *head = m->hold.first;

    if (head == NULL) {
        m->has_released = false;
        end_recovery(m);
        return;
    }
    count_jump(m, head->msg.number);
    if (is_ahead(m, head->msg.number)) {
        /* The answer was given before these were published. */
        if (m->replay_broken)
            lose(m, head->msg.number - 1, KVE_REASON_REPLAY_FAILED, false);
        else
            recover_hole(m, head->msg.number - 1);
        return;
    }
    m->current = kve_hold_pop(&m->hold);
    if (is_behind(m, m->current->msg.number)) {
        behind(m, &m->current->msg);
        return;
    }
    m->released_live = !m->in_doubt;
    apply(m, &m->current->msg, false);
}

bool
kve_machine_next(struct kve_machine *m, struct kve_action *ret_action)
{
    if (m->n_actions == 0)
        free_current(m);
    while (m->n_actions == 0 && m->mode == MODE_RELEASE) {
        free_current(m);
        release_one(m);
    }
    if (m->n_actions == 0)
        return false;
    *ret_action = m->actions[m->first_action];
    m->first_action = (m->first_action + 1) % N_ACTIONS;
    m->n_actions--;
    return true;
}

/* ---- what the batches held ----------------------------------------- */

void
kve_machine_unreadable(struct kve_machine *m, int64_t now_ns)
{
    m->now = now_ns;
    if (m->unreadable)
        return;
    m->unreadable = true;
    if (m->mode == MODE_STREAM && m->state == KVE_STATE_LIVE)
        settle(m);
}

void
kve_machine_cleared(struct kve_machine *m, int64_t now_ns)
{
    m->now = now_ns;
    if (!m->lossy && !m->unreadable)
        return;
    m->lossy = false;
    m->unreadable = false;
    if (m->state == KVE_STATE_DEGRADED && m->mode == MODE_STREAM) {
        if (m->replay_broken || !m->connected || m->in_doubt)
            settle(m);
        else
            set_state(m, KVE_STATE_LIVE, KVE_REASON_CLEARED, m->last, m->last);
    }
}

/* ---- time ---------------------------------------------------------- */

static bool
may_probe(const struct kve_machine *m)
{
    return m->mode == MODE_STREAM && m->ask == 0 && m->connected &&
        m->opts.has_replay && !m->any_base && !m->old_replay;
}

int64_t
kve_machine_deadline(const struct kve_machine *m)
{
    if (m->ask != 0)
        return m->ask_deadline;
    if (m->mode == MODE_RECOVER)
        return m->retry_at;
    return may_probe(m) ? m->probe_at : KVE_NEVER;
}

void
kve_machine_timer(struct kve_machine *m, int64_t now_ns)
{
    begin_input(m, now_ns);
    if (m->ask != 0) {
        if (m->now < m->ask_deadline)
            return;
        count(m, KVE_COUNTER_SUB_REPLAY_TIMEOUTS, 1);
        fail(m);
    } else if (m->mode == MODE_RECOVER) {
        if (m->now >= m->retry_at)
            ask_now(m, m->ask_kind, false);
    } else if (may_probe(m) && m->now >= m->probe_at) {
        m->probe_ivl =
            m->probe_ivl > MAX_PROBE_NS / 2 ? MAX_PROBE_NS : 2 * m->probe_ivl;
        m->probe_at = m->now + m->probe_ivl;
        ask_now(m, ask_kind_now(m), true);
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
    m->base = opts->start == KVE_START_NUMBER ? opts->first_number : 0;
    m->any_base = opts->start == KVE_START_LIVE;
    m->keeps_buffer = opts->has_replay;
    m->reason = KVE_REASON_STARTING;
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
    free_current(m);
    kve_mem_free(m);
}

void
kve_machine_info(const struct kve_machine *m, struct kve_source_info *info)
{
    info->state = m->state;
    info->reason = m->reason;
    info->connected = m->connected;
    info->tail_confirmed = m->tail_confirmed;
    info->started = m->delivered;
    info->last_number = m->delivered_number;
    info->missing_first = m->lossy ? m->missing_first : 0;
    info->missing_last = m->lossy ? m->missing_last : 0;
    info->state_since_ns = m->state_since;
    info->confirmed_at_ns = m->confirmed_at;
}

size_t
kve_machine_held_bytes(const struct kve_machine *m)
{
    return m->hold.bytes;
}
