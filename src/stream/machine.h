/*
 * machine.h - the order of one source: gaps, replay, restarts, the tail.
 *
 * A pure state machine: no socket, no clock, no thread, and no allocation
 * after creation except the bounded hold buffer. The owner feeds it what
 * happened and executes what it answers:
 *
 *     inputs                        actions, pulled with kve_machine_next()
 *     connected, disconnected       APPLY   deliver this batch
 *     live message, reset     --->  ASK     open a fresh replay request
 *     replay message, end,          STOP    close it
 *       failure                     CLEAR   reader: forget this source
 *     timer                         STATE   the source's state changed
 *     unreadable, cleared           NOTICE  tell the reader (gap, lost, ...)
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
 *     RECOVER    a replay runs or is about to be retried; live is held
 *     RELEASE    the answer ended; held messages are judged one by one
 *
 * Left for snapshots: a further way out of RECOVER (SWAP IN instead of
 * APPLY), and heartbeats, which make probes unnecessary.
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
    bool rebuild;   /* what is gone for good: forget and start over */
    uint32_t start; /* enum kve_start */
    uint64_t first_number;
    size_t hold_bytes;
    uint32_t hold_items;
    int64_t replay_timeout_ns;         /* silence that ends an answer */
    int64_t tail_probe_ns;             /* KVE_NEVER: no probes */
    struct kve_sub_counters *counters; /* borrowed */
};

/* A message as the machine sees it. Spans are borrowed from the caller. */
struct kve_machine_msg {
    uint64_t number;
    uint64_t digest; /* kve_digest() of payload */
    struct kve_span topic;
    struct kve_span payload;
    const uint8_t *publisher_id; /* 16 bytes or NULL */
};

enum kve_action_type {
    KVE_ACTION_APPLY = 1,
    KVE_ACTION_ASK,
    KVE_ACTION_STOP,
    KVE_ACTION_CLEAR,
    KVE_ACTION_STATE,
    KVE_ACTION_NOTICE
};

struct kve_action {
    enum kve_action_type type;
    uint32_t ask;       /* ASK, STOP: which request */
    uint32_t notice;    /* NOTICE: enum kve_notice_type */
    uint32_t old_state; /* STATE: enum kve_state */
    uint32_t state;
    uint32_t reason; /* STATE, CLEAR, NOTICE: enum kve_reason */
    uint64_t first;  /* ASK: from; NOTICE and STATE: range */
    uint64_t last;
    bool replayed;              /* APPLY */
    bool probe;                 /* ASK: only to check the tail */
    struct kve_machine_msg msg; /* APPLY */
};

/* KVE_E_NOMEM or KVE_OK. */
kve_status kve_machine_create(const struct kve_machine_opts *opts,
    struct kve_machine **ret_machine, struct kve_error *err);
void kve_machine_destroy(struct kve_machine *m);

/* The live connection stands, for the first time or again. */
void kve_machine_connected(struct kve_machine *m, int64_t now_ns);
void kve_machine_disconnected(struct kve_machine *m, int64_t now_ns);

/* A live batch; the publisher's word that it was reset. */
void kve_machine_live(
    struct kve_machine *m, int64_t now_ns, const struct kve_machine_msg *msg);
void kve_machine_reset(struct kve_machine *m, int64_t now_ns);

/* A batch of the answer to request ask; its end; its failure (wrong frames, a
 * broken socket). Anything for a request that is not the current one is
 * ignored. */
void kve_machine_replay(struct kve_machine *m, int64_t now_ns, uint32_t ask,
    const struct kve_machine_msg *msg);
void kve_machine_replay_end(
    struct kve_machine *m, int64_t now_ns, uint32_t ask);
void kve_machine_replay_failed(
    struct kve_machine *m, int64_t now_ns, uint32_t ask);

/* Time has come: call when kve_machine_deadline() is reached. */
void kve_machine_timer(struct kve_machine *m, int64_t now_ns);
int64_t kve_machine_deadline(const struct kve_machine *m);

/* What the batch that was applied last turned out to hold: a store, removal
 * or clear that could not be read; a clear of everything. In that order when
 * the unreadable event stood first. */
void kve_machine_unreadable(struct kve_machine *m, int64_t now_ns);
void kve_machine_cleared(struct kve_machine *m, int64_t now_ns);

/* The next action, or false: everything was pulled. */
bool kve_machine_next(struct kve_machine *m, struct kve_action *ret_action);

/* What there is to say about the source: state, reason, numbers, flags. Only
 * these fields of info are written. */
void kve_machine_info(
    const struct kve_machine *m, struct kve_source_info *info);

/* Bytes in the hold buffer. */
size_t kve_machine_held_bytes(const struct kve_machine *m);

#endif
