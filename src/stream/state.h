/*
 * state.h - what a machine keeps, for the files that make it up.
 *
 * machine.h says what the machine does; this header only lets it be written
 * in several files. Nothing outside this folder includes it. In the order in
 * which to read them:
 *
 *     action.c    what the owner is told: actions, notices, the state
 *     life.c      the life of a publisher, what was applied of it, the twin
 *     ask.c       requests: asking, waiting, failing, asking again
 *     live.c      live messages are judged
 *     answer.c    messages of a replay are judged
 *     snapshot.c  snapshots: when one is asked for, and what it brings
 *     release.c   what was held is judged; the end of a recovery
 *     position.c  where the reader stands, and to go on from there
 *     machine.c   the connection, time, creation
 *
 * The place is what is known about one copy of the source: how far it is, of
 * which life, and what it lacks. While a twin is built there are two of them,
 * the twin's, which everything works on, and the visible one's, which is put
 * back when the twin is dropped.
 */
#ifndef KVE_STREAM_STATE_H
#define KVE_STREAM_STATE_H

#include "base/clock.h"
#include "stream/hold.h"
#include "stream/machine.h"

#include <stdbool.h>
#include <stdint.h>

#define KVE_SM_ACTIONS 32  /* no input makes more before it is pulled */
#define KVE_SM_DIGESTS 256 /* numbers whose digest is known; power of two */
#define KVE_SM_FAILS 3     /* replays in a row without progress */
#define KVE_SM_ID_LEN 16   /* of a publisher's id */

enum kve_sm_mode {
    KVE_MODE_WAIT,
    KVE_MODE_STREAM,
    KVE_MODE_RECOVER,
    KVE_MODE_RELEASE
};

/* Where a replay starts, and so what its first message means. */
enum kve_sm_from {
    KVE_FROM_START, /* nothing applied yet: from the first number wanted */
    KVE_FROM_LAST,  /* from the last one applied, which proves the life */
    KVE_FROM_HOLE,  /* from a number that was absent inside an answer */
    KVE_FROM_ZERO   /* whether there was one before the first one applied */
};

enum kve_sm_verdict { KVE_LIFE_SAME, KVE_LIFE_OTHER, KVE_LIFE_UNKNOWN };

enum kve_sm_twin { KVE_TWIN_NONE, KVE_TWIN_REBUILD, KVE_TWIN_SNAPSHOT };

struct kve_sm_id {
    bool known;
    uint8_t bytes[KVE_SM_ID_LEN];
};

struct kve_sm_digest {
    uint64_t number;
    uint64_t digest;
    bool used;
    bool has_id; /* the id said whose it was */
};

/* How far a copy of the source is, and what is wrong with it. */
struct kve_sm_place {
    bool has_last;
    uint64_t last;     /* applied or given up; with has_last */
    uint64_t base;     /* first number expected; without has_last */
    bool any_base;     /* whatever live number comes first is the base */
    bool after_reset;  /* 1 is as good a first number as 0 */
    bool old_replay;   /* after a reset the replay may hold the old life */
    uint64_t unproved; /* first number that no answer has shown, in doubt */
    bool has_clear;
    uint64_t clear; /* a batch, applied in doubt, that cleared everything */
    bool delivered;
    uint64_t delivered_number;
    bool delivered_id; /* it had one */
    struct kve_sm_id id;
    bool lossy;
    bool unreadable;
    uint32_t lost_reason;
    uint64_t missing_first;
    uint64_t missing_last;
    struct kve_sm_digest digests[KVE_SM_DIGESTS];
};

struct kve_machine {
    struct kve_machine_opts opts;
    enum kve_sm_mode mode;
    int64_t now;
    bool gone;

    uint32_t state;
    uint32_t reason;
    int64_t state_since;

    bool connected;
    bool was_connected;
    bool resumed;  /* from a position, and not connected since */
    uint32_t link; /* counts connections */
    int64_t connected_at;
    bool certain; /* unbroken connection since the last check of the life */

    /* The life. */
    struct kve_sm_place at;
    bool shown; /* by its id, in an answer asked for by this connection */
    bool heard; /* likewise, by a live message */
    struct kve_sm_id old_id;   /* of the life before this one */
    bool old_lived;            /* of which there may be live messages still */
    bool old_heard;            /* it was heard by this connection */
    bool id_doubted;           /* the life's id was learnt while in doubt */
    struct kve_sm_id heard_id; /* of the last live message that had one */
    int64_t strays_since;      /* messages of that one come; KVE_NEVER: none */
    bool strayed;              /* one came last, and no answer since */
    bool old_answered;         /* answers of it come, too */
    bool in_doubt; /* live may bring leftovers; only a proof ends it */
    bool live_seen;
    uint64_t live_number; /* highest one the live stream brought */
    bool first_check;     /* it began with 1; was there a 0? */
    bool zero_seen;       /* in the answer to that */
    bool overruled;       /* an answer contradicted an unbroken live stream */
    bool distrusted;      /* ... which then contradicted the answer; to the end
                           * of the connection replays are not asked for */
    bool replay_has_data; /* an answer of this life had batches */
    bool keeps_buffer;    /* until it is shown not to */
    bool ever_kept;       /* an answer of any life had batches */
    uint32_t barren;      /* lives in a row of which none had */
    bool has_gap;         /* first..last were missed by the live stream */
    uint64_t gap_first;
    uint64_t gap_last;
    bool has_released; /* of the hold, in this recovery */
    uint64_t last_released;

    /* The twin. */
    enum kve_sm_twin twin;
    struct kve_sm_place visible; /* with a twin */
    bool visible_certain;        /* what certain and snap_wanted were then */
    bool visible_wanted;

    bool tail_confirmed;
    int64_t confirmed_at;

    /* The request under way. */
    uint32_t ask; /* 0: none */
    uint32_t ask_serial;
    enum kve_ask_kind ask_kind;
    enum kve_sm_from ask_how;
    uint64_t ask_from;
    bool ask_proof;    /* from one that was applied, which proves the life */
    uint64_t ask_last; /* the last one applied when it was asked */
    bool ask_applied;  /* or was it given up? */
    bool ask_first;    /* nothing of the answer was seen yet */
    bool ask_progress; /* something was applied or proved lost */
    bool ask_answered; /* it ended as it should */
    uint32_t ask_link; /* the connection at that time */
    uint64_t ask_next; /* above the highest number that the answer brought */
    int64_t ask_deadline;
    bool repaired;
    uint64_t repaired_first;
    uint64_t repaired_last;

    uint32_t fails;     /* requests in a row without progress */
    bool replay_broken; /* KVE_SM_FAILS was reached; a good answer mends it */
    int64_t retry_at;
    int64_t probe_at;
    int64_t probe_ivl;

    /* The snapshot under way, and when the next one may be asked for. */
    bool snap_loading; /* it began */
    bool snap_wanted;  /* nothing says where the stream begins */
    bool snap_replay;  /* if it fails a replay is asked for */
    bool unconfirmed;  /* it was swapped in, and nothing followed it yet */
    int64_t snap_number;
    struct kve_sm_id snap_id;
    bool snap_same; /* as far as is known, of the life of what is visible */
    int64_t snap_next;
    int64_t snap_back_off; /* after failures */
    int64_t snap_pace;     /* after one that soon was not enough */
    bool snap_asked;       /* and it did not fail */
    int64_t snap_asked_at;

    /* Heartbeats. */
    bool heartbeats; /* known in this life */
    bool stale;
    int64_t heard_at; /* the last live message, or the connection */

    struct kve_hold hold;
    struct kve_held *current; /* what the last APPLY pointed to */
    bool is_old;              /* it came by an earlier connection */
    bool hold_dropped;        /* something did not fit */
    uint64_t dropped_last;    /* the number of what was dropped last */
    bool released_live;       /* a held message followed in order */

    bool settles; /* once what was applied is known */
    struct kve_action actions[KVE_SM_ACTIONS];
    size_t first_action;
    size_t n_actions;
    /* Where the reader stands until the APPLY at that place is pulled. */
    struct kve_position before;
    size_t before_at;
    bool has_before;
};

/* ---- action.c ---- */

struct kve_action *kve_sm_emit(
    struct kve_machine *m, enum kve_action_type type);
void kve_sm_count(struct kve_machine *m, enum kve_counter counter, uint64_t n);
void kve_sm_notice(struct kve_machine *m, enum kve_notice_type type,
    uint32_t reason, uint64_t first, uint64_t last);
void kve_sm_set_state(struct kve_machine *m, enum kve_state state,
    uint32_t reason, uint64_t first, uint64_t last);
bool kve_sm_is_sure(const struct kve_machine *m);
/* The state that follows from what is known while messages stream. */
void kve_sm_settle(struct kve_machine *m);
/* An input begins; false: the machine is over. */
bool kve_sm_begin_input(struct kve_machine *m, int64_t now_ns);
void kve_sm_free_current(struct kve_machine *m);

/* ---- life.c ---- */

uint64_t kve_sm_expected(const struct kve_machine *m);
/* Does a number leave a hole before it, or say what was applied already? */
bool kve_sm_is_ahead(const struct kve_machine *m, uint64_t number);
bool kve_sm_is_behind(const struct kve_machine *m, uint64_t number);
void kve_sm_set_id(struct kve_sm_id *id, const uint8_t *bytes);
bool kve_sm_id_is(const struct kve_sm_id *id, const uint8_t *bytes);
/* A life of this id was left, and no answer makes us come back to it. */
bool kve_sm_is_refused(const struct kve_machine *m, const uint8_t *bytes);
bool kve_sm_id_differs(const struct kve_sm_id *id, const uint8_t *bytes);
/* The life has this id from now on; NULL: it is not known. */
void kve_sm_name_life(struct kve_machine *m, const uint8_t *id);
enum kve_sm_verdict kve_sm_judge_life(
    const struct kve_machine *m, const struct kve_machine_msg *msg);
/* This is the batch with its number in this life. */
void kve_sm_learn_digest(
    struct kve_machine *m, const struct kve_machine_msg *msg);
void kve_sm_confirm_tail(struct kve_machine *m);
/* The live stream has come as far as this number. */
void kve_sm_live_came(struct kve_machine *m, uint64_t number);
void kve_sm_apply(
    struct kve_machine *m, const struct kve_machine_msg *msg, bool replayed);
/* A batch that followed in order while streaming. */
void kve_sm_stream(struct kve_machine *m, const struct kve_machine_msg *msg);
/* A live message that is not of another life by its id. With the life's id it
 * ends a doubt, if nothing that was applied meanwhile lacked one. */
void kve_sm_id_proves(struct kve_machine *m, const struct kve_machine_msg *msg);
/* Numbers up to last are gone for good; the next one expected is last + 1. */
void kve_sm_lose(
    struct kve_machine *m, uint64_t last, uint32_t reason, bool rebuild);
void kve_sm_life_unknown(struct kve_machine *m, uint32_t reason);
/* Forget the life that ended. What is held may be of the new one already, and
 * is judged when it is released. kind counts what showed it. */
void kve_sm_new_life(
    struct kve_machine *m, uint32_t reason, enum kve_counter kind);
void kve_sm_forget_life(
    struct kve_machine *m, uint32_t reason, enum kve_counter kind);
void kve_sm_begin_twin(
    struct kve_machine *m, enum kve_sm_twin twin, uint32_t reason);
void kve_sm_swap_twin(struct kve_machine *m);
void kve_sm_abort_twin(struct kve_machine *m, uint32_t reason);

/* ---- ask.c ---- */

bool kve_sm_can_replay(const struct kve_machine *m);
bool kve_sm_probes(const struct kve_machine *m);
void kve_sm_schedule_probe(struct kve_machine *m);
/* In doubt: the last that was proved. Behind a clear the clear itself is as
 * good: what was before it counts no more. */
uint64_t kve_sm_doubtful_from(const struct kve_sm_place *at);
void kve_sm_flush_repaired(struct kve_machine *m);
void kve_sm_stop_ask(struct kve_machine *m);
/* Give the next request its number; its time begins when it was sent. */
void kve_sm_new_ask(struct kve_machine *m, enum kve_ask_kind kind);
void kve_sm_ask_now(
    struct kve_machine *m, enum kve_sm_from how, enum kve_ask_kind kind);
/* From what is known now; a hole is asked for by its own number. */
enum kve_sm_from kve_sm_how_now(const struct kve_machine *m);
/* Live messages are held from now on. */
void kve_sm_enter_recovery(struct kve_machine *m);
void kve_sm_recover(struct kve_machine *m, enum kve_sm_from how,
    uint32_t reason, uint64_t first, uint64_t last);
void kve_sm_recover_hole(struct kve_machine *m, uint64_t last);
bool kve_sm_is_old_link(const struct kve_machine *m);
/* An answer shows a life that may not be the one we know. */
void kve_sm_answer_leads(struct kve_machine *m);
/* An answer showed another life. The live stream may not be so far. */
void kve_sm_start_over(struct kve_machine *m, uint32_t reason,
    enum kve_counter kind, const uint8_t *id);
/* Ask whether 0 came before the 1 that a life began with after a reset. */
void kve_sm_check_first(struct kve_machine *m);
void kve_sm_fail(struct kve_machine *m);

/* ---- live.c ---- */

void kve_sm_hold(struct kve_machine *m, const struct kve_machine_msg *msg);
void kve_sm_note_gap(struct kve_machine *m, uint64_t number);
/* A live message of the life's number range, or of another id. */
void kve_sm_behind(struct kve_machine *m, const struct kve_machine_msg *msg);
void kve_sm_other_id(struct kve_machine *m, const struct kve_machine_msg *msg);
/* A message with another id than the life's: may it be older than the life? Is
 * this held one? */
bool kve_sm_may_be_before(const struct kve_machine *m, const uint8_t *id);
bool kve_sm_is_overtaken(
    const struct kve_machine *m, const struct kve_held *held);

/* ---- answer.c ---- */

/* The answers are of another publisher than the live stream. */
void kve_sm_distrust(struct kve_machine *m);

/* ---- snapshot.c ---- */

bool kve_sm_snapshot_usable(const struct kve_machine *m);
/* Something is wrong that a snapshot would mend, while messages stream. */
bool kve_sm_snapshot_due(const struct kve_machine *m);
/* Live messages are held and a snapshot is asked for. then_replay: if it fails
 * a replay is. */
void kve_sm_recover_by_snapshot(struct kve_machine *m, uint32_t reason,
    uint64_t first, uint64_t last, bool then_replay);
/* The same while degraded, which the source stays meanwhile. */
void kve_sm_mend_by_snapshot(struct kve_machine *m);
/* Is the first contact made by a snapshot? Make it. */
bool kve_sm_starts_by_snapshot(const struct kve_machine *m);
void kve_sm_start_by_snapshot(struct kve_machine *m, uint32_t reason);
/* The request for a snapshot under way failed. unavailable: the publisher
 * says that it has none. */
void kve_sm_snapshot_fails(struct kve_machine *m, bool unavailable);
/* There is another connection: it may be of a life that is over. */
void kve_sm_snapshot_outlived(struct kve_machine *m);
/* What must follow a snapshot is not to be had: its twin is dropped. Spoilt
 * does so and recovers without; false: there is no such twin. */
bool kve_sm_snapshot_drop(struct kve_machine *m);
bool kve_sm_snapshot_spoilt(struct kve_machine *m);
/* Is its twin older than what is visible? */
bool kve_sm_snapshot_lags(const struct kve_machine *m);
/* Its twin is visible now. */
void kve_sm_snapshot_taken(struct kve_machine *m);

/* ---- position.c ---- */

/* Where the reader stands when everything was pulled. */
void kve_sm_position(
    const struct kve_machine *m, struct kve_position *ret_position);

/* ---- release.c ---- */

/* A held message of an earlier connection, where this one has brought another
 * life since, or an answer showed none; or where the life has an id and it has
 * none. */
bool kve_sm_is_outdated(
    const struct kve_machine *m, const struct kve_held *held);
/* Held messages are released by kve_machine_next(), one at a time. */
void kve_sm_release(struct kve_machine *m);
void kve_sm_release_one(struct kve_machine *m);

#endif
