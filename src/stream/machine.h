/*
 * machine.h - the order of one source: gaps, replay, restarts, the tail.
 *
 * A pure state machine: no socket, no clock, no thread, and no allocation
 * after creation except the bounded hold buffer. The owner feeds it what
 * happened and executes what it answers:
 *
 *     inputs                        actions, pulled with kve_machine_next()
 *     connected, disconnected       APPLY   deliver this batch
 *     live message, reset     --->  ASK     open a fresh request: a replay, a
 *     asked (it was sent)                   probe, or a snapshot
 *     replay message, end,          STOP    close it
 *       failure                     CLEAR   reader: forget this source
 *     snapshot begin, chunk,        BEGIN   reader: build a twin, hidden
 *       end, failure                SWAP    ... which now replaces it
 *     timer                         ABORT   ... which is dropped
 *     unreadable, cleared           STATE   the source's state changed
 *     resume (first), gone          NOTICE  tell the reader (gap, lost, ...)
 *
 * Rules
 *   - All actions of an input are pulled before the next input is fed; what
 *     APPLY points to is valid until then.
 *   - Each number is applied once and in order; a number is skipped only
 *     together with a LOST notice.
 *   - Numbers at or below the last one are repeats when their digest agrees
 *     with what was applied, and another life of the publisher when not. One
 *     whose digest is known no more is a repeat while live numbers rise (a
 *     live stream that lags behind a replay), until a probe says otherwise,
 *     and another life when they fall.
 *   - A replay is asked from the last number that was applied, so that the
 *     answer's first message proves (by its digest) that the publisher is
 *     still the one we know. Only a hole inside an answer is asked for by its
 *     own number: an answer that then starts above it proves the loss, so a
 *     gap costs at most one request more than it has holes. Where the life is
 *     not sure a hole is asked for with the proof too. If the proof is not to
 *     be had the source is degraded: nothing may be missing, but two lives
 *     may have been mixed.
 *   - While a replay runs live messages are held, in a buffer bounded in
 *     bytes and items; what does not fit is dropped and replayed later. What
 *     was held before a request and is not in its answer, or contradicts it,
 *     is of a life that is over, and is dropped. What was held since says
 *     nothing: it may have been sent after the answer was given.
 *   - Messages that wait in queues outlive their publisher, and word of a
 *     lost connection overtakes them. So after a reconnect, and after an
 *     answer that showed another life, the live stream is in doubt: what
 *     follows in order is applied, but confirms nothing, and what contradicts
 *     is a leftover and no restart. The probe that comes then asks from where
 *     the doubt began; when it agrees with all that was applied since, the
 *     source is live, and when not it starts over.
 *   - An answer without its end marker is never success: it is asked for
 *     again, from where it stopped, on a fresh socket; after three failures
 *     in a row without progress the range is given up, aloud.
 *   - An idle publisher says nothing, so a lost last batch leaves no trace:
 *     the tail is probed by asking from the last number, first after
 *     tail_probe, then at doubling intervals up to 30 s of silence.
 *
 * Modes (state is what the reader is told, mode is what we do):
 *
 *     WAIT       not connected yet
 *     STREAM     live messages are judged and applied; a probe may run
 *     RECOVER    a replay or a snapshot is waited for; live is held
 *     RELEASE    the answer ended; held messages are judged one by one
 *
 * A publisher may name its life with an id. Two messages with ids are of one
 * life when the ids agree, whatever their digests and numbers say; where one
 * has none the digest decides. An id that changes is a restart even when the
 * numbers go on, and one that agrees ends a doubt once an answer showed it,
 * too. Leftovers bear ids as well: a message of the life before is dropped for
 * a while, as is what comes before the first live message of a life that an
 * answer showed; meanwhile the source is not live. If it goes on, it is the
 * life there is. An answer of the life before is no answer while the live
 * stream brings the one we know.
 *
 * Answers and the live stream may come from two publishers by mistake. Ids tell
 * (see above); without ids an answer that contradicts a live stream of an
 * unbroken connection, and is then contradicted by it, is the last one asked
 * for until there is another connection: degraded, replay_failed.
 *
 * After a reset 1 is as good a first number as 0. Where 1 comes first live, a
 * replay is asked whether there was a 0, before the source is live; an answer
 * of the life before says nothing. Where an answer begins with 1 what was
 * before it counts as lost.
 *
 * Snapshots. Where they are offered they are the first choice when there is
 * nothing to start from, when history is gone, and to become whole again after
 * a loss or an unreadable event. A snapshot says the residency after its
 * number; it is applied to a twin that the reader keeps hidden, then the held
 * messages behind that number follow, and only then the twin is swapped in. A
 * hole between is asked for by replay, or spoils the snapshot; so does a number
 * below what is visible, unless a replay fills the rest. One that fails is
 * tried again ever more seldom; meanwhile the source does without. One under
 * way when the connection is replaced is asked for again, or a replay is.
 *
 * A rebuild after a loss builds a twin as well: what is visible stays as it
 * was until the replay has brought all it has. An ABORT drops the twin; what
 * was visible before counts again, unless a CLEAR or BEGIN follows at once.
 *
 * A position says where the reader stands: the batch that was applied last, its
 * digest, the life's id, what is missing. A machine that resumes from one is in
 * doubt from there on, and so finds out with its first answer whether the life
 * is the same. What was applied in doubt before came live, and is proved by
 * three digests: of the last batch beyond doubt, of the first in doubt, and of
 * the last of all. A live stream never returns to a life that it left, so if
 * an answer agrees about these all between is of that life, too.
 *
 * Heartbeats are empty batches with an id, sent by a publisher that has
 * nothing to say. Once one came they confirm the tail, and probes end; silence
 * beyond heartbeat_timeout then makes the source stale, which is a flag and
 * not a state, and has the tail probed where that can be done.
 */
#ifndef KVE_STREAM_MACHINE_H
#define KVE_STREAM_MACHINE_H

#include "base/counters.h"

#include <kvevents/event.h>
#include <kvevents/status.h>
#include <kvevents/subscriber.h>

#include <stdbool.h>
#include <stdint.h>

struct kve_machine;

struct kve_machine_opts {
    bool has_replay;
    bool has_snapshot;
    bool rebuild;   /* what is gone for good: forget and start over */
    uint32_t start; /* enum kve_start */
    uint64_t first_number;
    size_t hold_bytes;
    uint32_t hold_items;
    int64_t replay_timeout_ns;         /* silence that ends an answer */
    int64_t snapshot_timeout_ns;       /* from asked to begin */
    int64_t tail_probe_ns;             /* KVE_NEVER: no probes */
    int64_t heartbeat_timeout_ns;      /* KVE_NEVER: never stale */
    struct kve_sub_counters *counters; /* borrowed */
};

/* A message as the machine sees it. Spans are borrowed from the caller. */
struct kve_machine_msg {
    uint64_t number;
    uint64_t digest; /* kve_digest() of payload */
    struct kve_span topic;
    struct kve_span payload;
    const uint8_t *publisher_id; /* 16 bytes or NULL; of frame or batch */
    bool empty;                  /* a batch without events */
};

enum kve_action_type {
    KVE_ACTION_APPLY = 1,
    KVE_ACTION_ASK,
    KVE_ACTION_STOP,
    KVE_ACTION_CLEAR,
    KVE_ACTION_BEGIN,
    KVE_ACTION_SWAP,
    KVE_ACTION_ABORT,
    KVE_ACTION_STATE,
    KVE_ACTION_NOTICE
};

/* What an ASK is for. */
enum kve_ask_kind {
    KVE_ASK_REPLAY = 1, /* batches from first on */
    KVE_ASK_PROBE,      /* the same, only to check the tail */
    KVE_ASK_SNAPSHOT    /* first means nothing */
};

struct kve_action {
    enum kve_action_type type;
    uint32_t ask;       /* ASK, STOP: which request */
    uint32_t notice;    /* NOTICE: enum kve_notice_type */
    uint32_t old_state; /* STATE: enum kve_state */
    uint32_t state;
    uint32_t reason; /* STATE, CLEAR, BEGIN, SWAP, ABORT, NOTICE */
    uint64_t first;  /* ASK: from; NOTICE and STATE: range */
    uint64_t last;
    uint32_t kind;              /* ASK, STOP: enum kve_ask_kind */
    bool replayed;              /* APPLY: it came by replay */
    bool snapshot;              /* APPLY: a chunk; number is the snapshot's */
    bool hidden;                /* APPLY: it belongs to the twin */
    struct kve_machine_msg msg; /* APPLY */
};

/* KVE_E_NOMEM or KVE_OK. */
kve_status kve_machine_create(const struct kve_machine_opts *opts,
    struct kve_machine **ret_machine, struct kve_error *err);
void kve_machine_destroy(struct kve_machine *m);

/*
 * Go on from a position: as if everything up to it had been applied, and the
 * connection had then been lost. The first input of all; false: it is not, or
 * the position is none that a machine gives out, and nothing was done. One
 * that is not started changes nothing.
 */
bool kve_machine_resume(
    struct kve_machine *m, int64_t now_ns, const struct kve_position *position);

/* The live connection stands, for the first time or again. */
void kve_machine_connected(struct kve_machine *m, int64_t now_ns);
void kve_machine_disconnected(struct kve_machine *m, int64_t now_ns);

/* A live batch; the publisher's word that it was reset. */
void kve_machine_live(
    struct kve_machine *m, int64_t now_ns, const struct kve_machine_msg *msg);
void kve_machine_reset(struct kve_machine *m, int64_t now_ns);

/* The request was sent: its time begins. Until then it waits for its turn
 * among the requests of other sources, without a deadline. The one input that
 * may come while actions are still to be pulled. */
void kve_machine_asked(struct kve_machine *m, int64_t now_ns, uint32_t ask);

/* A batch of the answer to request ask; its end; its failure (wrong frames, a
 * broken socket). Anything for a request that is not the current one is
 * ignored. */
void kve_machine_replay(struct kve_machine *m, int64_t now_ns, uint32_t ask,
    const struct kve_machine_msg *msg);
void kve_machine_replay_end(
    struct kve_machine *m, int64_t now_ns, uint32_t ask);
void kve_machine_replay_failed(
    struct kve_machine *m, int64_t now_ns, uint32_t ask);

/*
 * The answer to a request for a snapshot: its number (-1: nothing was ever
 * published, -2: none is to be had) and the publisher's id; one batch of it
 * (number and digest of msg mean nothing); its end. Or its failure: no answer,
 * a wrong shape, too large, a publisher that knows no snapshots.
 */
void kve_machine_snapshot_begin(struct kve_machine *m, int64_t now_ns,
    uint32_t ask, int64_t number, const uint8_t publisher_id[16]);
void kve_machine_snapshot_chunk(struct kve_machine *m, int64_t now_ns,
    uint32_t ask, const struct kve_machine_msg *msg);
void kve_machine_snapshot_end(
    struct kve_machine *m, int64_t now_ns, uint32_t ask);
void kve_machine_snapshot_failed(
    struct kve_machine *m, int64_t now_ns, uint32_t ask);

/* The publisher is known to have left: nothing is applied or asked any more.
 * The last input. */
void kve_machine_gone(
    struct kve_machine *m, int64_t now_ns, enum kve_reason reason);

/* Time has come: call when kve_machine_deadline() is reached. */
void kve_machine_timer(struct kve_machine *m, int64_t now_ns);
int64_t kve_machine_deadline(const struct kve_machine *m);

/*
 * What the batch that was applied last turned out to hold: a store, removal
 * or clear that could not be read; a clear of everything. In that order when
 * the unreadable event stood first. The clear mends nothing in a life with an
 * id, where it empties one tier only; a part of a snapshot that could not be
 * read makes the snapshot fail at once.
 */
void kve_machine_unreadable(struct kve_machine *m, int64_t now_ns);
void kve_machine_cleared(struct kve_machine *m, int64_t now_ns);

/* The next action, or false: everything was pulled. */
bool kve_machine_next(struct kve_machine *m, struct kve_action *ret_action);

/* Could what is pulled next be an APPLY? */
bool kve_machine_may_apply(const struct kve_machine *m);

/*
 * Where the reader stands after the action that was pulled last, of which
 * everything is done; not started where nothing could go on from. After an
 * input at least one of its actions is to be pulled first.
 */
void kve_machine_position(
    const struct kve_machine *m, struct kve_position *ret_position);

/* What there is to say about the source: state, reason, numbers, flags. Only
 * these fields of info are written. */
void kve_machine_info(
    const struct kve_machine *m, struct kve_source_info *info);

/* Bytes in the hold buffer. */
size_t kve_machine_held_bytes(const struct kve_machine *m);

#endif
