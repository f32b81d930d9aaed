/*
 * ingest.h - many engines into one index.
 *
 * An ingest follows the publishers of a fleet and keeps an index true to them.
 * It knows workers, each with a source for every data-parallel rank, applies
 * what their streams say to the instances of the index, and knows of each how
 * far it can be trusted.
 *
 *     flags, files, names, API --> add / remove
 *                                     |
 *     publishers --> kve_subscriber --> source --> instance of the index
 *                    (its threads)      state, counters, position
 *
 * Words
 *   worker   what a router sends requests to: a text, within (model, tenant);
 *   source   one publisher of a worker: an endpoint and a rank. What batches of
 *            another rank say goes to that rank of the same worker;
 *   claimed  a source that somebody asked for in this process. Those that a
 *            state file brought are not, until they are added again.
 *
 * What it does with a stream. Batches are applied in order; CLEAR forgets the
 * source's instances; BEGIN, hidden batches, SWAP and ABORT drive a twin of
 * each instance. What could not be applied (memory, limits) makes the source
 * degraded, which stays until a rebuild or a restart of the publisher.
 *
 * Pausing a source stops following it; what it held stays, and it is degraded
 * meanwhile. Resuming goes on where it stopped, by the replay endpoint.
 *
 * Removing a source: when kve_ingest_remove() returns, nothing of it shows in
 * any answer that begins later. A worker goes with its last source, all ranks.
 *
 * Sockets of many (kve_source_opts.streams): the source that was added keeps
 * the socket, has no instance, and stays cold; each stream behind it is a
 * source of its own, with it as its parent, and goes with it. One that is
 * removed alone is passed over for as long as its socket is there. One that is
 * gone (silent for stream_idle_ms) holds nothing any more; it stays listed for
 * an hour, or until there is little room.
 *
 * Threads: any thread may call anything at any time; callbacks come from the
 * ingest's own threads, those of one source one at a time. A callback may not
 * call the functions that change the ingest.
 *
 * Reading: what is known of workers and sources is read between
 * kve_ingest_read_begin() and _end(): strings and pointers are valid there,
 * and nothing is added or removed meanwhile. Keep it short; no I/O in it, and
 * nothing that changes the ingest. Sections may lie in one another.
 */
#ifndef KVEVENTS_INGEST_H
#define KVEVENTS_INGEST_H

#include <kvevents/context.h>
#include <kvevents/index.h>
#include <kvevents/status.h>
#include <kvevents/subscriber.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kve_ingest kve_ingest;

/* Names a source within its ingest. Never 0, never used twice. */
typedef uint64_t kve_ingest_id;

/* Who asked for a source. */
#define KVE_ORIGIN_MAP(X)                                           \
    X(API, 1, "api", "registered by a call")                        \
    X(OPTION, 2, "option", "named by an option or the config file") \
    X(FILE, 3, "file", "found in a file of targets")                \
    X(NAME, 4, "name", "an address of a name that is resolved")     \
    X(STREAM, 5, "stream", "a stream behind a socket of many")

enum kve_origin {
#define X(name, number, text, help) KVE_ORIGIN_##name = number,
    KVE_ORIGIN_MAP(X)
#undef X
};

/* "api" for KVE_ORIGIN_API; "?" for unknown numbers. */
KVE_API const char *kve_origin_str(unsigned origin);

/* How streams behind a socket of many become workers. */
enum kve_topic_rule {
    KVE_TOPIC_RULE_DEFAULT = 0, /* the worker that was added has them all, each
                                   as the rank it names */
    KVE_TOPIC_RULE_ID = 1,  /* kv@ID@MODEL: worker ID, and MODEL; other topics:
                               the whole topic is the worker */
    KVE_TOPIC_RULE_HOST = 2 /* the same; of ID the host without port */
};

/* A source: who, and where. Zero or NULL means the default. Strings are
 * copied. */
struct kve_ingest_spec {
    size_t struct_size;
    const char *model;     /* default "" */
    const char *tenant;    /* default "default" */
    const char *worker;    /* must be set; any text */
    uint32_t rank;         /* data-parallel rank */
    uint32_t block_size;   /* as registered; 0: not said. Compared with what the
                              stream says, never believed */
    uint32_t counting;     /* enum kve_counting */
    uint32_t origin;       /* enum kve_origin; default API */
    uint32_t topic_rule;   /* enum kve_topic_rule */
    const char *found_in;  /* of what file or name it came; default "" */
    const char *engine;    /* "vLLM"; kept and shown, not acted on */
    const char *lora_name; /* the same */
    const char *additional_salt;   /* the same */
    struct kve_source_opts source; /* user and resume are the ingest's */
};

#define KVE_INGEST_SPEC_INIT                                                   \
    {                                                                          \
        sizeof(struct kve_ingest_spec), NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL, \
            NULL, NULL, NULL, KVE_SOURCE_OPTS_INIT                             \
    }

/* The same as KVE_INGEST_SPEC_INIT for languages without macros. */
KVE_API void kve_ingest_spec_init(struct kve_ingest_spec *spec);

/* ---- what happens ---- */

#define KVE_INGEST_EVENT_MAP(X)                                          \
    X(BATCH, 1, "batch", "a batch was applied: delivery, applied")       \
    X(NOTICE, 2, "notice", "the subscriber says: notice")                \
    X(ADDED, 3, "added", "a source was added")                           \
    X(REMOVED, 4, "removed", "a source was removed")                     \
    X(PAUSED, 5, "paused", "a source was paused")                        \
    X(RESUMED, 6, "resumed", "a source goes on")                         \
    X(BLOCK_SIZE, 7, "block_size",                                       \
        "the stream has other block sizes than were registered: detail") \
    X(NOT_APPLIED, 8, "not_applied",                                     \
        "events of batch number were not applied: detail")               \
    X(CLEARED, 9, "cleared", "a call emptied it")

enum kve_ingest_event_type {
#define X(name, number, text, help) KVE_INGEST_EVENT_##name = number,
    KVE_INGEST_EVENT_MAP(X)
#undef X
};

/* "batch" for KVE_INGEST_EVENT_BATCH; "?" for unknown numbers. */
KVE_API const char *kve_ingest_event_str(unsigned type);

/* Everything is borrowed until the callback ends. */
struct kve_ingest_event {
    size_t struct_size;
    uint32_t type; /* enum kve_ingest_event_type */
    kve_ingest_id source;
    const char *worker;
    const char *model;
    const char *tenant;
    uint32_t rank;
    uint64_t number;                     /* NOT_APPLIED */
    const char *detail;                  /* one line; never NULL */
    const struct kve_delivery *delivery; /* BATCH; its batch may be read from
                                            its first event on */
    const struct kve_index_applied *applied; /* BATCH */
    const struct kve_notice *notice;         /* NOTICE */
};

typedef void kve_ingest_event_fn(
    void *ctx, const struct kve_ingest_event *event);

/* Zero means the default. */
struct kve_ingest_opts {
    size_t struct_size;
    uint32_t threads; /* that follow sources; default: half as many as cores,
                         at least 1, at most 4 */
    uint32_t max_sources;          /* default 4,096; streams count as well */
    uint32_t max_replays;          /* requests at a time over all; default 4 */
    uint32_t recovery_limit_ms;    /* a source that recovers for longer does not
                                      keep the whole from being ready; 60,000 */
    struct kve_batch_opts batch;   /* limits of decoding */
    kve_ingest_event_fn *on_event; /* optional; must be quick */
    void *ctx;                     /* handed to on_event */
};

#define KVE_INGEST_OPTS_INIT                                                 \
    {                                                                        \
        sizeof(struct kve_ingest_opts), 0, 0, 0, 0, { 0, 0, 0, 0, 0 }, NULL, \
            NULL                                                             \
    }

/* The same as KVE_INGEST_OPTS_INIT for languages without macros. */
KVE_API void kve_ingest_opts_init(struct kve_ingest_opts *opts);

/*
 * Create an ingest that feeds index; context and opts may be NULL. index and
 * context are borrowed until kve_ingest_destroy(); nobody else may change the
 * namespaces it feeds. The caller owns *ret_ingest.
 *
 * Returns KVE_OK, KVE_E_INVAL, KVE_E_NOMEM, KVE_E_FORKED or KVE_E_SYSTEM.
 */
KVE_API kve_status kve_ingest_create(kve_context *context, kve_index *index,
    const struct kve_ingest_opts *opts, kve_ingest **ret_ingest,
    struct kve_error *err);

/* Stop following, free. The index keeps what it holds. NULL is allowed. */
KVE_API void kve_ingest_destroy(kve_ingest *ingest);

/*
 * Follow one more source. It returns before anything is connected. A source
 * that a state file brought, with the same worker, rank and endpoint, is
 * claimed: it goes on with what is known; another endpoint starts empty.
 *
 * Returns KVE_OK; KVE_E_INVAL (an option); KVE_E_IN_USE (worker and rank are
 * there already; *ret_id is written with theirs, and nothing was changed);
 * KVE_E_LIMIT; KVE_E_UNSUPPORTED (CURVE); KVE_E_NOMEM; KVE_E_SYSTEM.
 */
KVE_API kve_status kve_ingest_add(kve_ingest *ingest,
    const struct kve_ingest_spec *spec, kve_ingest_id *ret_id,
    struct kve_error *err);

/* Follow a source no more and forget its rank; with the worker's last source
 * all ranks of the worker. KVE_OK or KVE_E_NOT_FOUND. */
KVE_API kve_status kve_ingest_remove(
    kve_ingest *ingest, kve_ingest_id id, struct kve_error *err);

/* All sources and ranks of a worker; *ret_n (may be NULL): how many sources. */
KVE_API kve_status kve_ingest_remove_worker(kve_ingest *ingest,
    const char *model, const char *tenant, const char *worker, size_t *ret_n,
    struct kve_error *err);

/* KVE_OK, KVE_E_NOT_FOUND, or KVE_E_IN_USE: it is paused already, or was not.
 * Where resuming fails for want of memory or descriptors (KVE_E_NOMEM,
 * KVE_E_SYSTEM, KVE_E_LIMIT) it stays paused. */
KVE_API kve_status kve_ingest_pause(
    kve_ingest *ingest, kve_ingest_id id, struct kve_error *err);
KVE_API kve_status kve_ingest_resume(
    kve_ingest *ingest, kve_ingest_id id, struct kve_error *err);

/* Forget what the source's rank holds, of a set of 1 << KVE_TIER_*, 0: all; of
 * a socket of many, what its streams hold. The stream goes on. KVE_OK,
 * KVE_E_INVAL (tiers) or KVE_E_NOT_FOUND. */
KVE_API kve_status kve_ingest_clear(kve_ingest *ingest, kve_ingest_id id,
    uint32_t tiers, struct kve_error *err);

/* The source of a worker's rank, or 0. tenant NULL: "default". */
KVE_API kve_ingest_id kve_ingest_find(kve_ingest *ingest, const char *model,
    const char *tenant, const char *worker, uint32_t rank);

/* ---- reading ---- */

/*
 * Structures that are read into: the caller sets struct_size before the call,
 * and no more than that is written; it stays as it is. Where the library hands
 * one to a callback it has set struct_size itself.
 */

/* How a source is. Strings are valid in the read section. */
struct kve_ingest_source {
    size_t struct_size;
    kve_ingest_id id;
    kve_instance instance; /* of its own rank; 0: a socket of many */
    kve_namespace ns;
    const char *model;
    const char *tenant;
    const char *worker;
    const char *worker_json; /* the same as a JSON text, with its quotes */
    uint32_t rank;
    uint32_t origin;
    const char *found_in;
    const char *endpoint;          /* of this rank, as it is connected to */
    const char *replay_endpoint;   /* "" when there is none */
    const char *snapshot_endpoint; /* the same */
    const char *topic;
    const char *engine;
    const char *lora_name;
    const char *additional_salt;
    uint32_t block_size;     /* as registered; 0: not said */
    bool block_size_differs; /* the stream has others */
    bool paused;
    bool claimed;
    bool restored;      /* it goes on from a state file */
    uint32_t state;     /* enum kve_state; DEGRADED when paused or incomplete */
    uint32_t reason;    /* enum kve_reason */
    bool incomplete;    /* something was not applied since it was whole */
    double state_since; /* seconds since 1970 */
    double added_at;    /* seconds since 1970 */
    double confirmed_at;  /* seconds since 1970; 0: never */
    double stale_since;   /* seconds since 1970; 0: it is not stale */
    double last_batch_at; /* seconds since 1970; 0: none yet */
    bool connected;
    bool tail_confirmed;
    bool started; /* last_number is one */
    uint64_t last_number;
    bool has_missing; /* missing_first..missing_last are gone for good */
    uint64_t missing_first;
    uint64_t missing_last;
    bool unknown_events;
    kve_ingest_id parent;   /* of a stream; else 0 */
    const char *last_error; /* "" or one line */
};

/* A read section. */
KVE_API void kve_ingest_read_begin(kve_ingest *ingest);
KVE_API void kve_ingest_read_end(kve_ingest *ingest);

/* Which sources to visit. NULL: any. */
struct kve_ingest_filter {
    size_t struct_size; /* set by the caller */
    const char *model;
    const char *tenant;
    const char *worker;
};

/* Visit sources until visit returns false; in the order they were added. In a
 * read section. filter may be NULL; one with fields that this library does not
 * know visits nothing. Returns how many were visited. */
KVE_API size_t kve_ingest_sources(kve_ingest *ingest,
    const struct kve_ingest_filter *filter,
    bool (*visit)(void *ctx, const struct kve_ingest_source *source),
    void *ctx);

/* One source. In a read section. KVE_OK, KVE_E_NOT_FOUND, or KVE_E_INVAL
 * (ret->struct_size is not set). */
KVE_API kve_status kve_ingest_source_of(
    kve_ingest *ingest, kve_ingest_id id, struct kve_ingest_source *ret);

/* Whose a row of an answer is. rank is the instance's own, which is not the
 * source's where batches named another one. */
struct kve_ingest_row {
    size_t struct_size; /* set by the caller */
    const char *model;
    const char *tenant;
    const char *worker;
    const char *worker_json;
    uint32_t worker_json_len;
    uint32_t rank;
    uint32_t state;
    uint32_t reason;
    kve_ingest_id source;
};

/* What an answer says of a row, cheaply: no lock beyond the read section's, and
 * struct_size is not looked at: the fields above are always written. false: the
 * instance is nobody's (it was just removed). */
KVE_API bool kve_ingest_row_of(
    kve_ingest *ingest, kve_instance instance, struct kve_ingest_row *ret);

/* A counter of counters.h of a source (KVE_SUB_ and KVE_INDEX_ and
 * KVE_INGEST_COUNTER_MAP), or of all that ever were (id 0). Any time. */
KVE_API uint64_t kve_ingest_counter(
    kve_ingest *ingest, kve_ingest_id id, unsigned counter);

/* How far the whole is. Sockets of many are counted by their streams only. */
struct kve_ingest_progress {
    size_t struct_size; /* set by the caller */
    size_t sources;     /* paused ones are not counted */
    size_t live;
    size_t degraded;
    size_t recovering;
    size_t cold;
    size_t gone;
    size_t paused;
    size_t past_limit; /* recovering or cold for longer than the limit */
    size_t workers;
    size_t namespaces;
    bool ready; /* each one is live, degraded, gone, or past its limit */
};
KVE_API void kve_ingest_get_progress(
    kve_ingest *ingest, struct kve_ingest_progress *ret);

/* ---- state ---- */

/* What a file or a stream of state brought. */
struct kve_ingest_loaded {
    size_t struct_size; /* set by the caller */
    size_t sources;
    size_t blocks;
    double saved_at; /* seconds since 1970 */
};

/*
 * Write what is known to a file: sources, positions, blocks; each source's
 * blocks are those after the batch its position names. path is replaced in one
 * step. Secret keys are not written.
 *
 * Returns KVE_OK, KVE_E_SYSTEM or KVE_E_NOMEM.
 */
KVE_API kve_status kve_ingest_save(
    kve_ingest *ingest, const char *path, struct kve_error *err);

/*
 * Read it back, into an ingest without sources. Each source goes on from its
 * position, if its publisher is still in the same life; else it is built anew.
 * What there is no room for is left out: sources beyond max_sources, and blocks
 * of a source that do not fit, which then begins anew.
 *
 * Returns KVE_OK; KVE_E_NOT_FOUND (no such file); KVE_E_MALFORMED (broken) or
 * KVE_E_UNSUPPORTED (another version; err says which): nothing was read;
 * KVE_E_IN_USE (there are sources); KVE_E_INVAL (no regular file);
 * KVE_E_SYSTEM; KVE_E_NOMEM.
 */
KVE_API kve_status kve_ingest_load(kve_ingest *ingest, const char *path,
    struct kve_ingest_loaded *ret, struct kve_error *err);

/* The same to and from anything: write returns false to end it
 * (KVE_E_CLOSED); read returns bytes read, 0 at the end, -1 on failure. */
KVE_API kve_status kve_ingest_save_to(kve_ingest *ingest,
    bool (*write)(void *ctx, const void *data, size_t len), void *ctx,
    struct kve_error *err);
KVE_API kve_status kve_ingest_load_from(kve_ingest *ingest,
    ptrdiff_t (*read)(void *ctx, void *data, size_t cap), void *ctx,
    struct kve_ingest_loaded *ret, struct kve_error *err);

/* Remove sources that a state brought, that were not claimed, and that were
 * not registered by a call (those stay). Returns how many. */
KVE_API size_t kve_ingest_drop_unclaimed(kve_ingest *ingest);

#ifdef __cplusplus
}
#endif

#endif
