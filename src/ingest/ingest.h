/*
 * ingest.h - inside of a kve_ingest: sources that feed an index.
 *
 *     kve_subscriber (library threads)
 *          | on_batch, on_notice; user = the source's entry
 *          v
 *     entry --> feed of the batch's rank --> instance, or its twin
 *       |                                        |
 *       | worker (strings of many)               | row: instance -> entry
 *       v                                        v
 *     registry: entries by id, workers by name, rows by instance
 *
 * An entry is one source, from add to remove. It feeds an instance of the index
 * for each rank that its batches name, its own rank first. A row says of an
 * instance whose it is; answers look rows up.
 *
 * Locks, in the order in which they are taken:
 *   changing  one change by callers at a time: add, remove, pause, resume,
 *             clear, save, load. Never taken by a callback, so that it may be
 *             held while a callback is waited for;
 *   registry  readers and a writer. Written where entries, rows, feeds and
 *             instances come and go, by callbacks too (streams, new ranks), so
 *             it is not held while a callback is waited for. Instances are
 *             made and dropped under it, so that who reads it sees no row of
 *             an instance that is gone;
 *   applying  of an entry: held by its callback from before the index changes
 *             until its position is stored. Who holds it sees instances and
 *             position agree exactly, and no change while it does. It is taken
 *             under registry, too; so nobody takes registry while holding it.
 *             A save holds it long, under changing. Callbacks, who have not
 *             changing, only try it under registry, and else wait without
 *             that.
 * State, numbers and counters are atomics. The hot path takes applying, which
 * is nearly always free, and nothing else.
 *
 * The end of an entry. Marked dead under applying: from then on nothing of it
 * is applied. Then it leaves the subscriber, which waits for its callbacks, and
 * the registry. Its memory goes with the last reference; whoever looks at an
 * entry outside of registry holds one.
 *
 * Streams behind a socket of many are entries with a parent. The subscriber
 * hands the parent's entry to their callbacks, which find the stream by its id
 * in a table that only callbacks of that socket use: they are all of one
 * thread. A stream can be removed or paused while its parent is followed: it
 * stays in that table, muted, so that what comes of it is passed over.
 */
#ifndef KVE_INGEST_INGEST_H
#define KVE_INGEST_INGEST_H

#include <kvevents/ingest.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define KVE_INGEST_COUNTER_BASE 300
#define KVE_INGEST_COUNTERS 8
#define KVE_SUB_COUNTER_KEPT_BASE 100
#define KVE_SUB_COUNTERS_KEPT 64
#define KVE_SIZES_KEPT 8

struct kve_source_entry;

struct kve_ingest_counters {
    _Atomic uint64_t n[KVE_INGEST_COUNTERS];
};

/* A worker: what its sources and instances have in common. Strings never
 * change. Freed with the last entry or row that names it. */
struct kve_worker_entry {
    struct kve_worker_entry *next; /* in its bucket */
    uint64_t hash;
    kve_namespace ns;
    char *model;
    char *tenant;
    char *name;
    char *name_json; /* with quotes */
    uint32_t name_json_len;
    size_t refs; /* under registry */
    /* Entries in the registry, of all ranks, in no order. */
    struct kve_source_entry **entries;
    size_t n_entries;
    size_t cap_entries;
    kve_instance *instances; /* those that have rows */
    size_t n_instances;
    size_t cap_instances;
};

/* Whose an instance is. entry NULL: the source that fed it was removed, and
 * other sources of the worker remain. */
struct kve_row {
    kve_instance instance;
    struct kve_worker_entry *worker;
    struct kve_source_entry *entry;
    uint32_t rank;
};

/* An instance that an entry's batches go to. */
struct kve_feed {
    uint32_t rank;
    kve_instance instance;
    kve_instance twin; /* 0: none. Under applying */
    bool twin_failed;  /* there should be one. Under applying */
};

/* A stream of a socket of many. */
struct kve_stream_entry {
    kve_source_id sub_id;           /* 0: not there now */
    struct kve_source_entry *entry; /* holds a reference */
};

/* One line for people, that readers may hold while another takes its place. */
struct kve_line {
    struct kve_line *next; /* among those to be freed */
    char text[];
};

/* Bits of kve_source_entry.status, above state (8 bits) and reason (8 bits). */
#define KVE_STATUS_STATE(status) ((status)&0xffu)
#define KVE_STATUS_REASON(status) ((status) >> 8 & 0xffu)

struct kve_source_entry {
    struct kve_ingest *ingest;
    kve_ingest_id id;
    atomic_size_t refs;

    /* Set when it is made, never changed. */
    struct kve_worker_entry *worker;
    uint32_t rank;
    bool many;                       /* a socket of many: no order, no
                                        instance of its own */
    struct kve_source_entry *parent; /* of a stream; borrowed: of callbacks */
    kve_ingest_id parent_id;         /* of a stream; else 0 */
    char *topic;                     /* of a stream: any bytes, terminated */
    size_t topic_len;
    struct kve_int stream_rank; /* of a stream, as its batches say */
    double added_at;            /* seconds since 1970 */

    /* As it was asked for: strings are in texts; spec.source.user and resume
     * mean nothing. Changed under changing and registry. */
    struct kve_ingest_spec spec;
    char *texts;
    size_t texts_size;           /* wiped when freed: there may be keys in it */
    const char *endpoint;        /* moved by rank */
    const char *replay_endpoint; /* moved by rank; "" */
    const char *snapshot_endpoint; /* moved by rank; "" */
    bool claimed;                  /* under changing and registry */
    atomic_bool restored; /* a state brought it, and it goes on from there */
    bool keyless;         /* a state brought it without the keys it needs: not
                             followed until it is claimed. Under changing */

    /* Under registry and applying where they grow. */
    struct kve_feed *feeds; /* [0]: its own rank; none of a socket of many */
    size_t n_feeds;
    size_t cap_feeds;
    size_t last_feed; /* found last; of callbacks */
    bool listed;      /* the registry has it. Under registry */
    struct kve_source_entry *next_removed; /* of who removes it */

    /* ---- applying ---- */
    pthread_mutex_t applying;
    bool dead; /* removed: nothing more is applied */
    bool paused;
    bool building; /* between BEGIN, and SWAP or ABORT */
    bool twin_incomplete;
    bool twin_started; /* twin_number was applied to the twin last */
    uint64_t twin_number;
    /* Where what is visible stands: instances and this agree whenever applying
     * is free. Not started: it can not be gone on from. */
    struct kve_position position;
    uint32_t sizes[KVE_SIZES_KEPT]; /* unexpected block sizes already told */
    uint32_t n_sizes;

    /* ---- atomics, written by callbacks and changes ---- */
    _Atomic kve_source_id sub_id; /* 0: not followed now */
    _Atomic uint32_t status;      /* what readers see: state | reason << 8 */
    _Atomic uint32_t sub_status;  /* the same, as the subscriber says */
    atomic_bool is_paused;        /* as paused */
    atomic_bool incomplete;
    atomic_bool sizes_differ;
    atomic_bool opened;    /* its callbacks may go on */
    atomic_bool detached;  /* a stream that its parent's socket has not brought
                              since it was resumed or restored */
    atomic_bool forgotten; /* a dead stream that may come back as a new one */
    atomic_bool started;
    _Atomic uint32_t block_size; /* as registered; 0: not said */
    _Atomic uint64_t last_number;
    atomic_bool has_missing;
    _Atomic uint64_t missing_first;
    _Atomic uint64_t missing_last;
    _Atomic int64_t state_since_ns;        /* CLOCK_REALTIME */
    _Atomic int64_t last_batch_ns;         /* CLOCK_REALTIME; 0: none */
    _Atomic int64_t unready_since_ns;      /* CLOCK_MONOTONIC; 0: it is live,
                                              degraded or gone */
    _Atomic(struct kve_line *) last_error; /* NULL: none */
    struct kve_ingest_counters counters;
    _Atomic uint64_t sub_counters[KVE_SUB_COUNTERS_KEPT]; /* of its earlier
                                                             sub_ids */

    /* Of callbacks of this socket, or of changes while it is not followed. */
    struct kve_stream_entry *streams; /* by sub_id, ascending */
    size_t n_streams;
    size_t cap_streams;
    struct kve_stream_entry last_stream;
    uint64_t n_refused; /* streams that were refused */
};

struct kve_rows {
    struct kve_row *slots; /* open addressing; instance 0: free */
    size_t cap;            /* a power of two, or 0 */
    size_t n;
};

struct kve_space_count {
    kve_namespace ns;
    size_t workers;
};

struct kve_ingest {
    kve_index *index; /* borrowed */
    kve_subscriber *sub;
    struct kve_ingest_opts opts; /* defaults filled in */
    pid_t pid;                   /* of who made it */

    pthread_mutex_t changing;
    bool has_changing;
    pthread_rwlock_t registry;
    bool has_registry;

    /* Under registry. */
    struct kve_source_entry **entries; /* by id, ascending: as added */
    size_t n_entries;
    size_t cap_entries;
    struct kve_worker_entry **workers; /* buckets, a power of two of them */
    size_t n_buckets;
    size_t n_workers;
    struct kve_rows rows;
    struct kve_space_count *spaces; /* namespaces with workers */
    size_t n_spaces;
    size_t cap_spaces;
    kve_ingest_id last_id;

    struct kve_ingest_counters retired; /* of sources that were removed */
    int64_t unbound_at;                 /* a bound socket was closed. Under
                                           changing */

    /* Callbacks wait here until their entry is opened. */
    pthread_mutex_t gate;
    bool has_gate;
    pthread_cond_t opened;
    bool has_opened;

    /* Lines that were replaced, and are still read perhaps. */
    _Atomic(struct kve_line *) old_lines;
    atomic_size_t n_old_lines;

    pthread_t keeper; /* idle work: tidy, old lines, streams long gone */
    bool has_keeper;
    pthread_mutex_t keeping;
    bool has_keeping;
    pthread_cond_t keep;
    bool has_keep;
    bool stopping; /* under keeping */
};

static inline void
kve_ingest_count(struct kve_source_entry *e, unsigned counter, uint64_t n)
{
    atomic_fetch_add_explicit(&e->counters.n[counter - KVE_INGEST_COUNTER_BASE],
        n, memory_order_relaxed);
}

/* ---- what state*.c needs ------------------------------------------- */

/* The lock of changes; a save or load holds it from begin to end. No entry is
 * added or removed by callers meanwhile; streams may come and go. */
void kve_ingest_lock(kve_ingest *ingest);
void kve_ingest_unlock(kve_ingest *ingest);

/* All entries, in the order they were added (parents before their streams),
 * each with a reference. *ret_entries is kve_mem_free()d by the caller. Takes
 * registry. KVE_OK or KVE_E_NOMEM. */
kve_status kve_ingest_list(kve_ingest *ingest,
    struct kve_source_entry ***ret_entries, size_t *ret_n,
    struct kve_error *err);

void kve_entry_ref(struct kve_source_entry *entry);
void kve_entry_unref(struct kve_source_entry *entry);

/* What a state knows of an entry. */
struct kve_entry_seed {
    const struct kve_ingest_spec *spec; /* of a stream: model, tenant, worker,
                                           rank and origin STREAM */
    struct kve_source_entry *parent;    /* of a stream */
    struct kve_span topic;              /* of a stream */
    struct kve_int stream_rank;         /* of a stream */
    struct kve_position position;
    double added_at;
    bool paused;
    bool incomplete;
    bool keyless; /* CURVE keys are needed, and are not in spec */
};

/*
 * An entry that nobody claimed, not followed yet, whose own instance is empty.
 * Under changing. The caller gets a reference of its own. As kve_ingest_add().
 */
kve_status kve_entry_restore(kve_ingest *ingest,
    const struct kve_entry_seed *seed, struct kve_source_entry **ret_entry,
    struct kve_error *err);

/* The instance of one of its ranks, added when it is new. Under changing. */
kve_status kve_entry_instance(struct kve_source_entry *entry, uint32_t rank,
    kve_instance *ret_instance, struct kve_error *err);

/* Follow it from its position on; nothing to do for streams, for those that
 * are paused and for keyless ones. Under changing; after the streams of it were
 * restored. */
kve_status kve_entry_follow(
    struct kve_source_entry *entry, struct kve_error *err);

/* Remove it, and its streams, as kve_ingest_remove() does. Under changing. */
void kve_entry_remove(struct kve_source_entry *entry);

#endif
