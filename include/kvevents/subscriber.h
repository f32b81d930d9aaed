/*
 * subscriber.h - follow publishers, never silently wrong.
 *
 * A subscriber follows sources. A source is one publisher: a live endpoint
 * and, where there is one, its replay endpoint. Batches are delivered in the
 * order of their numbers, each once. What the live stream lost is asked for
 * and delivered in its place; what is gone for good is said.
 *
 *     live  ---> judge number ---> deliver ------------> on_batch
 *                   | gap
 *                   v
 *     replay <- ask from the first missing number; live messages wait in a
 *               bounded buffer and are delivered after it, in order
 *
 * A source is live only when the end of its stream was confirmed: by a live
 * message that followed in order, or by a tail probe (a replay request from
 * the last number, which must answer with that batch and nothing else).
 *
 * Event loops: kve_sub_fd() is one descriptor, readable as long as there is
 * work; call kve_sub_poll(sub, 0, n, ...) when it is. Or call kve_sub_poll()
 * with a time-out in a loop of your own.
 *
 * Threads: one at a time, except kve_sub_wake(), kve_sub_stop() and
 * kve_sub_counter(), which any thread may call; wake and stop also from a
 * signal handler. With threads 0 every callback runs inside kve_sub_poll().
 * With library threads kve_sub_add(), kve_sub_remove() and kve_sub_source()
 * may be called from any thread, too.
 *
 * Caveat: the worst case of memory is recv_hwm x max_body_len per source,
 * held by ZeroMQ, and hold_bytes per source and stream; and a hostile
 * publisher can send one message of endless frames, which ZeroMQ keeps whole.
 * CURVE is the defence against strangers.
 */
#ifndef KVEVENTS_SUBSCRIBER_H
#define KVEVENTS_SUBSCRIBER_H

#include <kvevents/codec.h>
#include <kvevents/context.h>
#include <kvevents/counters.h>
#include <kvevents/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kve_subscriber kve_subscriber;

/* Names a source within its subscriber. Never 0, never used twice. */
typedef uint32_t kve_source_id;

/* What is known about a source. */
#define KVE_STATE_MAP(X)                                                     \
    X(COLD, 0, "cold", "nothing received yet")                               \
    X(RECOVERING, 1, "recovering", "a replay is running or about to")        \
    X(LIVE, 2, "live", "complete up to its last number")                     \
    X(DEGRADED, 3, "degraded", "something is missing, or cannot be checked") \
    X(GONE, 4, "gone", "a stream that left, or was silent for too long")

enum kve_state {
#define X(name, number, text, help) KVE_STATE_##name = number,
    KVE_STATE_MAP(X)
#undef X
};

/* Why a source is in its state. */
#define KVE_REASON_MAP(X)                                                    \
    X(NONE, 0, "none", "")                                                   \
    X(STARTING, 1, "starting", "first contact")                              \
    X(GAP, 2, "gap", "numbers are missing from the live stream")             \
    X(TAIL, 3, "tail", "a probe found batches the live stream lost")         \
    X(RECONNECT, 4, "reconnect", "the connection was lost and is back")      \
    X(RESTART, 5, "restart", "the publisher started anew")                   \
    X(RESET, 6, "reset", "the publisher said that it was reset")             \
    X(LOST, 7, "lost", "batches are gone for good")                          \
    X(UNREADABLE, 8, "unreadable", "a store, removal or clear was not read") \
    X(NO_REPLAY, 9, "no_replay", "missed batches and nowhere to ask")        \
    X(REPLAY_FAILED, 10, "replay_failed",                                    \
        "the replay endpoint gives no complete answer")                      \
    X(CAUGHT_UP, 11, "caught_up", "everything was received in order")        \
    X(LATE_START, 12, "late_start",                                          \
        "the publisher's first batches are no longer to be had")             \
    X(CLEARED, 13, "cleared", "the publisher's cache was emptied since")     \
    X(REMOVED, 14, "removed", "removed by the caller")                       \
    X(SNAPSHOT, 15, "snapshot", "rebuilt from a snapshot")                   \
    X(SNAPSHOT_FAILED, 16, "snapshot_failed", "no snapshot was to be had")   \
    X(NEW_ID, 17, "new_id", "the publisher's id changed: it started anew")   \
    X(SILENT, 18, "silent", "nothing was heard of it for too long")          \
    X(RESUMED, 19, "resumed", "goes on where an earlier reader stood")       \
    X(PAUSED, 20, "paused", "not followed for now, by the caller's wish")    \
    X(NOT_APPLIED, 21, "not_applied",                                        \
        "the reader could not keep all of it: memory, or a limit")

enum kve_reason {
#define X(name, number, text, help) KVE_REASON_##name = number,
    KVE_REASON_MAP(X)
#undef X
};

/*
 * Several publishers behind one socket. Each of them numbers its own batches,
 * so each needs its own order: a stream. Streams are told apart by topic and
 * rank; each is a source of its own, with an id, a state and counters, made
 * when its first batch comes (KVE_NOTICE_STREAM). The source that was added
 * keeps the connection and no order: its state stays cold. Streams ask at its
 * replay and snapshot endpoints moved by their own rank; batches of another
 * rank or topic in an answer are passed over. Topics above 1,024 bytes are
 * refused as streams beyond max_streams are.
 */
enum kve_streams {
    KVE_STREAMS_DEFAULT = 0, /* bound: by topic and rank; connected: one */
    KVE_STREAMS_ONE = 1,     /* all that comes is one publisher's */
    KVE_STREAMS_SPLIT = 2    /* by topic and rank */
};

/* What to do when batches are gone for good. */
enum kve_on_loss {
    KVE_ON_LOSS_DEFAULT = 0, /* keep without a replay endpoint, else rebuild */
    KVE_ON_LOSS_KEEP = 1,    /* go on with what there is; degraded */
    /* Have the reader build a twin (KVE_NOTICE_BEGIN) of what replay still
     * has and swap it in; degraded all the same. Without a replay endpoint:
     * tell it to forget the source (KVE_NOTICE_CLEAR). */
    KVE_ON_LOSS_REBUILD = 2
};

/* Where to begin. */
enum kve_start {
    KVE_START_DEFAULT = 0, /* everything the publisher still has */
    KVE_START_LIVE = 1,    /* with the first live message; nothing before */
    KVE_START_NUMBER = 2   /* with first_number, from replay */
};

/*
 * Where a reader stands in a source's stream: enough to go on later, in another
 * process too, without reading again what it knows. A plain value: it has no
 * pointers and no struct_size, and never grows; another kind of position would
 * be another structure. It belongs to what the reader has of the source at that
 * moment: keep both or neither.
 *
 * A source that resumes is as if its connection had just been lost after the
 * batch number: it asks at the replay endpoint from that number on, and its
 * digest (or the publisher's id) proves that the publisher is still in the same
 * life; else a CLEAR comes first. What came while that was in doubt is proved
 * from proof_number on. Without a replay endpoint the source is not live until
 * a live message follows, as after any lost connection. A position that is not
 * started resumes nothing.
 */
struct kve_position {
    uint64_t number;        /* of the batch applied last */
    uint64_t digest;        /* of its payload, with has_digest; opaque */
    uint64_t proof_number;  /* with doubted: the last batch beyond doubt */
    uint64_t proof_digest;  /* of its payload */
    uint64_t doubt_digest;  /* of the batch behind it, the first in doubt */
    uint64_t missing_first; /* with has_missing: what is gone for good */
    uint64_t missing_last;
    uint8_t publisher_id[16]; /* with has_publisher_id */
    bool started;
    bool has_digest; /* not right behind a snapshot */
    bool has_publisher_id;
    bool has_missing;
    bool doubted;    /* nothing proved yet that number is of one life with what
                      * came up to proof_number */
    bool degraded;   /* for reason; stays so until it is made whole */
    uint32_t reason; /* enum kve_reason */
};

/* One source. Zero or NULL means the default, everywhere. Strings are copied.
 */
struct kve_source_opts {
    size_t struct_size;
    const char *endpoint;        /* live; default "tcp://127.0.0.1:5557" */
    const char *replay_endpoint; /* default: none, lost batches stay lost */
    const char *topic;     /* prefix of the topics received; default "": all */
    uint32_t bind;         /* enum kve_bind; of the live socket */
    uint32_t on_loss;      /* enum kve_on_loss */
    uint32_t start;        /* enum kve_start */
    uint32_t recv_hwm;     /* messages ZeroMQ keeps for us; default 4,096 */
    uint64_t first_number; /* with KVE_START_NUMBER */
    struct kve_int rank;   /* moves both endpoints, kve_endpoint_of_rank() */
    size_t max_body_len;   /* larger frames cut the connection; 16 MiB */
    size_t hold_bytes;     /* live payloads held during a replay; 64 MiB */
    uint32_t hold_items;   /* the same in messages; default 65,536 */
    uint32_t replay_timeout_ms;  /* silence that ends a replay; 5,000 */
    uint32_t tail_probe_ms;      /* default 500; KVE_NONE: no tail probes */
    uint32_t reconnect_ms;       /* first delay; default 100 */
    uint32_t reconnect_max_ms;   /* doubling up to this; default 5,000 */
    uint32_t resolve_timeout_ms; /* of a name look-up; default 5,000 */
    struct kve_curve curve;
    void *user; /* handed back in callbacks */
    /* Where snapshots are asked for; default: none. The replay endpoint may
     * be named here again: then they are asked for there, which does no harm
     * to a publisher that has none. */
    const char *snapshot_endpoint;
    size_t snapshot_max_bytes;     /* a larger one is refused; 256 MiB */
    uint32_t snapshot_timeout_ms;  /* without an answer; default 5,000 */
    uint32_t heartbeat_timeout_ms; /* silence that makes a source stale whose
                                    * publisher sends heartbeats; 5,000;
                                    * KVE_NONE: never */
    uint32_t streams;              /* enum kve_streams */
    uint32_t max_streams;          /* of this endpoint; default 256 */
    uint32_t stream_idle_ms;       /* a stream silent for so long is gone;
                                    * default 600,000; KVE_NONE: never */
    const struct kve_position *resume; /* go on from there; copied. Not with
                                        * start or first_number; not for
                                        * sockets of streams, see
                                        * kve_sub_resume() */
};

#define KVE_SOURCE_OPTS_INIT                                                  \
    {                                                                         \
        sizeof(struct kve_source_opts), NULL, NULL, NULL, 0, 0, 0, 0, 0,      \
            { 0, false }, 0, 0, 0, 0, 0, 0, 0, 0, { NULL, NULL, NULL }, NULL, \
            NULL, 0, 0, 0, 0, 0, 0, NULL                                      \
    }

/* The same as KVE_SOURCE_OPTS_INIT for languages without macros. */
KVE_API void kve_source_opts_init(struct kve_source_opts *opts);

/* One batch, handed over. Everything is borrowed until the callback ends. */
struct kve_delivery {
    size_t struct_size;
    kve_source_id source;
    uint32_t replayed; /* 1: came from a replay, 0: live */
    void *user;        /* of the source */
    uint64_t number;
    struct kve_span topic; /* the subscription's own where replay sent none */
    struct kve_span payload;
    const uint8_t *publisher_id; /* 16 bytes, or NULL */
    /* The decoded events; call kve_batch_next(). When status is not KVE_OK
     * the payload was broken at error->offset and the batch holds what stood
     * before. Events that were not delivered: kve_batch_fault(). */
    kve_batch *batch;
    kve_status status;
    const struct kve_error *error;
    uint32_t hidden;   /* 1: belongs to the twin, see KVE_NOTICE_BEGIN */
    uint32_t snapshot; /* 1: a part of a snapshot; number is the last batch
                        * that the whole of it includes, ts is the moment */
};

/*
 * What else a reader must know. Which fields of kve_notice mean something
 * stands behind each.
 */
#define KVE_NOTICE_MAP(X)                                                      \
    X(STATE, 1, "state", "state changed: old_state, state, reason")            \
    X(CONNECTED, 2, "connected", "the live connection stands")                 \
    X(DISCONNECTED, 3, "disconnected", "the live connection is gone")          \
    X(GAP, 4, "gap", "first..last are missing from the live stream")           \
    X(REPLAY, 5, "replay", "a replay was asked for, from first")               \
    X(REPAIRED, 6, "repaired", "first..last came by replay")                   \
    X(LOST, 7, "lost", "first..last are gone for good")                        \
    X(CLEAR, 8, "clear", "forget everything of this source: reason")           \
    X(UNREADABLE, 9, "unreadable",                                             \
        "batch first: an event was not delivered; offset, detail")             \
    X(UNKNOWN_EVENT, 10, "unknown_event",                                      \
        "batch first: an event of a type this library does not know")          \
    X(BAD_FRAMES, 11, "bad_frames", "a message that is none: detail")          \
    X(REPLAY_FAILED, 12, "replay_failed",                                      \
        "a replay from first did not end: detail")                             \
    X(RESOLVE_FAILED, 13, "resolve_failed", "a name was not resolved: detail") \
    X(HOLD_FULL, 14, "hold_full",                                              \
        "the hold buffer is full; live messages are dropped and replayed")     \
    X(BEGIN, 15, "begin",                                                      \
        "begin an empty twin of the source; hidden batches belong to it")      \
    X(SWAP, 16, "swap", "the twin replaces what was known of the source")      \
    X(ABORT, 17, "abort", "drop the twin; what was known before still counts") \
    X(SNAPSHOT, 18, "snapshot", "a snapshot was asked for")                    \
    X(SNAPSHOT_FAILED, 19, "snapshot_failed", "no snapshot: detail")           \
    X(STALE, 20, "stale", "no heartbeat for heartbeat_timeout_ms")             \
    X(FRESH, 21, "fresh", "heard again after it was stale")                    \
    X(STREAM, 22, "stream", "a new stream; its parent's id is in first")       \
    X(STREAMS_FULL, 23, "streams_full",                                        \
        "batches of further streams are dropped: max_streams: detail")

enum kve_notice_type {
#define X(name, number, text, help) KVE_NOTICE_##name = number,
    KVE_NOTICE_MAP(X)
#undef X
};

struct kve_notice {
    size_t struct_size;
    uint32_t type; /* enum kve_notice_type */
    kve_source_id source;
    void *user; /* of the source */
    uint64_t first;
    uint64_t last;
    uint32_t old_state; /* enum kve_state */
    uint32_t state;     /* enum kve_state, in every notice */
    uint32_t reason;    /* enum kve_reason */
    uint32_t fault;     /* enum kve_fault_reason or kve_frames_fault, or 0 */
    size_t offset;      /* byte of the payload */
    const char *detail; /* one line for people; never NULL */
};

/*
 * Callbacks run inside kve_sub_poll(), on its thread; with library threads on
 * the thread of their source, those of one source never two at a time. They
 * may call kve_sub_add(), kve_sub_remove() (also of the source they are
 * about), kve_sub_wake(), kve_sub_stop() and the functions that only read;
 * they must not call kve_sub_poll() or kve_sub_destroy() on the same
 * subscriber.
 *
 * The twin. After a loss, and from a snapshot, a source is built anew while
 * readers still see what was known. KVE_NOTICE_BEGIN says so; batches with
 * hidden set belong to the twin; KVE_NOTICE_SWAP puts it in the place of what
 * was known, KVE_NOTICE_ABORT drops it. There is at most one twin a source, a
 * BEGIN where there is one already starts it over, and a KVE_NOTICE_CLEAR
 * drops it too. The batches of a snapshot are valid only where each store and
 * each removal counts by one for its block, medium, locality, ownership and
 * group; an AllBlocksCleared of a publisher with an id empties the GPU only.
 */
struct kve_sub_callbacks {
    size_t struct_size;
    /* One batch, in order. Return 0 to go on, anything else to make
     * kve_sub_poll() return after this batch. Must be set. */
    int (*on_batch)(void *ctx, const struct kve_delivery *delivery);
    /* Something else happened; ordered with the batches. Optional. */
    void (*on_notice)(void *ctx, const struct kve_notice *notice);
    void *ctx; /* handed back untouched */
};

#define KVE_SUB_CALLBACKS_INIT                             \
    {                                                      \
        sizeof(struct kve_sub_callbacks), NULL, NULL, NULL \
    }

/* Zero means the default. */
struct kve_sub_opts {
    size_t struct_size;
    /* 0: everything runs inside kve_sub_poll(). n, at most 256: the library
     * runs n threads, a source stays with one of them, and kve_sub_poll() and
     * kve_sub_fd() are not used. */
    uint32_t threads;
    uint32_t max_sources;        /* default 256; streams count as well */
    struct kve_batch_opts batch; /* limits of decoding; zeros: defaults */
    uint32_t max_replays; /* requests at a time over all sources; default 4.
                           * One that is silent for a second counts no more */
};

#define KVE_SUB_OPTS_INIT                                       \
    {                                                           \
        sizeof(struct kve_sub_opts), 0, 0, { 0, 0, 0, 0, 0 }, 0 \
    }

/* The same as KVE_SUB_OPTS_INIT for languages without macros. */
KVE_API void kve_sub_opts_init(struct kve_sub_opts *opts);

/*
 * Create a subscriber without sources. context and opts may be NULL. The
 * caller owns *ret_sub and ends it with kve_sub_destroy().
 *
 * Returns KVE_OK, KVE_E_INVAL, KVE_E_NOMEM, KVE_E_FORKED (a context of the
 * parent's) or KVE_E_SYSTEM.
 */
KVE_API kve_status kve_sub_create(kve_context *context,
    const struct kve_sub_opts *opts, const struct kve_sub_callbacks *callbacks,
    kve_subscriber **ret_sub, struct kve_error *err);

/* Close and free, without waiting for anybody. NULL is allowed. */
KVE_API void kve_sub_destroy(kve_subscriber *sub);

/*
 * Follow one more source; opts may be NULL. Names are resolved and
 * connections made by later calls of kve_sub_poll(): an endpoint that does
 * not answer is no failure here.
 *
 * Returns KVE_OK, KVE_E_INVAL (an option), KVE_E_LIMIT (max_sources),
 * KVE_E_IN_USE (bind), KVE_E_UNSUPPORTED (CURVE, which this ZeroMQ was built
 * without), KVE_E_NOMEM, KVE_E_SYSTEM, KVE_E_CLOSED or KVE_E_FORKED.
 */
KVE_API kve_status kve_sub_add(kve_subscriber *sub,
    const struct kve_source_opts *opts, kve_source_id *ret_source,
    struct kve_error *err);

/*
 * Follow a source no more; its streams leave with it. When this returns
 * nothing of it is delivered any more. With library threads it waits for a
 * callback of this source that runs already; called from a callback of a
 * source of another thread it does not wait, and that one callback may still
 * end later. The thread of the source closes its sockets soon after: a bound
 * endpoint may be in use for a moment.
 *
 * Returns KVE_OK or KVE_E_NOT_FOUND.
 */
KVE_API kve_status kve_sub_remove(kve_subscriber *sub, kve_source_id source);

/*
 * Do what there is to do: receive, recover, call back. Waits up to timeout_ms
 * for the first thing to do (0: not at all, < 0: without limit) and returns
 * when it delivered something and nothing more is waiting, when max_batches
 * were delivered (0: 1,024), when on_batch asked for it, when
 * kve_sub_wake() was called, or when the time is over. *ret_delivered, when
 * not NULL, is how many batches were delivered, also when the call fails.
 *
 * Returns KVE_OK; KVE_E_CLOSED after kve_sub_stop(); KVE_E_NOMEM (nothing
 * was lost: call again); KVE_E_INVAL from a callback, or where the library's
 * threads do the work; KVE_E_SYSTEM; KVE_E_FORKED.
 */
KVE_API kve_status kve_sub_poll(kve_subscriber *sub, int timeout_ms,
    size_t max_batches, size_t *ret_delivered, struct kve_error *err);

/* A descriptor that is readable while there is work; for poll and epoll
 * only, level-triggered. Owned by the subscriber. -1 with library threads. */
KVE_API int kve_sub_fd(const kve_subscriber *sub);

/* Make a kve_sub_poll() that waits, or the next one, return. Any thread,
 * signal handlers too. */
KVE_API void kve_sub_wake(kve_subscriber *sub);

/* Make every kve_sub_poll() from now on return KVE_E_CLOSED, and library
 * threads end their work. Any thread, signal handlers too. */
KVE_API void kve_sub_stop(kve_subscriber *sub);

/* How a source is. */
struct kve_source_info {
    size_t struct_size; /* set by the caller */
    uint32_t state;     /* enum kve_state */
    uint32_t reason;    /* enum kve_reason */
    bool connected;
    bool tail_confirmed;    /* false: nothing says that the end is complete */
    bool stale;             /* it was connected and is not any more, or its
                             * heartbeats stopped */
    bool unknown_events;    /* it sent types this library does not know */
    bool started;           /* a batch was delivered: last_number is one */
    uint64_t last_number;   /* of the batch delivered last */
    uint64_t missing_first; /* what is missing, when degraded by loss */
    uint64_t missing_last;
    int64_t state_since_ns;        /* CLOCK_MONOTONIC */
    int64_t confirmed_at_ns;       /* CLOCK_MONOTONIC; 0: never */
    int64_t stale_since_ns;        /* CLOCK_MONOTONIC; with stale */
    const char *endpoint;          /* borrowed until the source is removed */
    const char *replay_endpoint;   /* "" when there is none */
    const char *snapshot_endpoint; /* "" when there is none */
    kve_source_id parent; /* of a stream: the source it came by; else 0 */
    struct kve_str topic; /* of a stream; else the subscription's */
    struct kve_int rank;  /* of a stream, or as added */
    bool heartbeats;      /* its publisher sends them */
    bool building;        /* there is a twin */
    bool has_publisher_id;
    uint8_t publisher_id[16];
};

/*
 * Read how a source is. info->struct_size must be set. A stream can leave by
 * itself: with library threads its strings are safe to read only in one of its
 * callbacks.
 *
 * Returns KVE_OK, KVE_E_INVAL or KVE_E_NOT_FOUND.
 */
KVE_API kve_status kve_sub_source(const kve_subscriber *sub,
    kve_source_id source, struct kve_source_info *ret_info);

/*
 * Where a source's reader stands: what was delivered and is visible. Only in a
 * callback of that source, where it costs no lock, or with threads 0 between
 * two polls. In on_batch it includes that batch. *ret_position is not started
 * when nothing is visible that could be resumed: nothing came yet, a twin is
 * being built, a CLEAR is about to come; and for the moment in which a notice
 * tells of a batch that is not delivered yet (KVE_NOTICE_UNREADABLE), or
 * memory was short for the next one.
 *
 * Returns KVE_OK, KVE_E_NOT_FOUND, or KVE_E_INVAL (library threads, and not in
 * a callback of the thread that the source belongs to).
 */
KVE_API kve_status kve_sub_position(const kve_subscriber *sub,
    kve_source_id source, struct kve_position *ret_position);

/*
 * Make a stream go on from a position. Only in the callback that says
 * KVE_NOTICE_STREAM of it: before its first batch is judged.
 *
 * Returns KVE_OK, KVE_E_INVAL (too late, no stream, or no position that was
 * ever given out) or KVE_E_NOT_FOUND.
 */
KVE_API kve_status kve_sub_resume(kve_subscriber *sub, kve_source_id source,
    const struct kve_position *position);

/* A counter (enum kve_counter) of one source, or of all, those removed too,
 * with source 0. Any thread. */
KVE_API uint64_t kve_sub_counter(
    const kve_subscriber *sub, kve_source_id source, unsigned counter);

/* "live" for KVE_STATE_LIVE; "?" for unknown numbers. Any thread. */
KVE_API const char *kve_state_str(unsigned state);

/* "gap" for KVE_REASON_GAP; "?" for unknown numbers. Any thread. */
KVE_API const char *kve_reason_str(unsigned reason);

/* "lost" for KVE_NOTICE_LOST; "?" for unknown numbers. Any thread. */
KVE_API const char *kve_notice_str(unsigned type);

#ifdef __cplusplus
}
#endif

#endif
