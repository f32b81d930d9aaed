/*
 * index.h - which worker holds how much of a prompt, exactly.
 *
 * An index is told what engines publish (apply) and asked, from any number of
 * threads, how long a prefix of a prompt each of them holds, on which tier.
 *
 *     events of one instance --> apply --> chains of blocks, shared by all
 *                                          instances that hold equal content
 *     tokens of a prompt ------> query --> one row an instance, in tokens
 *
 * Words
 *   namespace  a model and a tenant; nothing is shared between two;
 *   instance   one rank of one worker: what publishes one stream of events;
 *   content    the XXH3 of a block's tokens (hash.h), the same for all engines;
 *              token queries go by content, so engines need not agree on
 *              seeds, algorithms or forms of their own hashes;
 *   scope      (medium, locality, ownership, group) within an instance: what a
 *              removal names, and where copies are counted.
 *
 * Meaning
 *   - A complete store (as many tokens as hashes x block_size; its extra keys
 *     said, where the medium is not the GPU) teaches where its hashes stand:
 *     behind which parent, with which content and, by the root of the chain,
 *     for which adapter and salt. Every store adds residency. A hash that
 *     nobody taught is found by hash only, and takes its place when it is
 *     taught.
 *   - What an instance was taught about a hash lasts as long as the instance
 *     holds the hash in any scope, and to the end of the batch in which it
 *     loses the last copy. It is the instance's own: the same hash may mean
 *     another block elsewhere. A clear forgets at once. A hash that is known
 *     keeps its place; a store that says another one adds residency only and
 *     is counted (conflicts). So a chain can not contain itself.
 *   - A store whose parent the instance does not know waits: its blocks are
 *     found by hash, are no start of any prompt, and join the chain when the
 *     parent is taught, or when a store says the first of them behind another
 *     parent that is known.
 *   - Blocks that a store says it skipped are not held, but a match may pass
 *     over them for as long as the block that was stored over them is held.
 *   - A block that leaves stays a hole in the chain for as long as something
 *     behind it is held; blocks behind a hole match again when it is filled.
 *   - Copies are counted: one store, one removal for each (counting). An
 *     instance of sets forgets a block with its first removal.
 *   - Instances of hybrid models hold blocks in groups; a prefix counts up to
 *     the largest end at which every group has what it needs (full attention:
 *     everything; a sliding window: its last blocks; mamba: the last block;
 *     chunked local attention: the blocks of its chunk).
 *   - locality REMOTE counts as tier REMOTE whatever the medium: it is not the
 *     publisher's own.
 *
 * Threads: any number of readers (kve_index_reader, one thread at a time
 * each) beside writers. apply, clear, rebuild, add and drop may be called from
 * any thread; those of one namespace run one after another. A reader never
 * waits for a writer. Its promise: each row is what that instance held at one
 * moment between start and end of the query (moments lie between any two
 * blocks that were applied); rows of two instances may be of different
 * moments. A row that kept changing while it was read is the smallest seen
 * and flagged KVE_ROW_MOVING.
 *
 * Memory follows what the engines hold. With max_bytes the index stays below
 * it: the runs of blocks that were stored or stored again least recently are
 * forgotten first, from the ends of their chains, which is counted
 * (blocks_evicted) for each instance; answers then say too little, never too
 * much. They are of the namespace that needs room, unless another one has
 * clearly more. One store that needs over half of max_bytes is refused.
 */
#ifndef KVEVENTS_INDEX_H
#define KVEVENTS_INDEX_H

#include <kvevents/codec.h>
#include <kvevents/event.h>
#include <kvevents/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kve_index kve_index;
typedef struct kve_index_reader kve_index_reader;

/* Names a namespace within its index. Never 0, never used twice. */
typedef uint32_t kve_namespace;

/* Names an instance within its index. Never 0, never used twice. */
typedef uint64_t kve_instance;

/* How copies of a block in one scope are counted. */
enum kve_counting {
    KVE_COUNTING_DEFAULT = 0, /* of the index; there: COPIES */
    KVE_COUNTING_COPIES = 1,  /* one removal for each store */
    KVE_COUNTING_SET = 2      /* held or not: for producers that announce
                                 again what they hold */
};

/* What AllBlocksCleared clears. */
enum kve_clearing {
    KVE_CLEARING_DEFAULT = 0, /* everything of the instance; the GPU only where
                                 the batch has a publisher id */
    KVE_CLEARING_ALL = 1,
    KVE_CLEARING_GPU = 2 /* scopes of the tier GPU */
};

/* Limits and rules. Zero means the default. */
struct kve_index_opts {
    size_t struct_size;
    uint64_t max_bytes; /* of everything the index allocates; default: none.
                           At least 4 MiB. */
    uint32_t max_namespaces; /* default 4,096 */
    uint32_t max_instances;  /* default 65,536 */
    uint32_t max_scopes;     /* an instance; default 64 */
    uint32_t counting;       /* enum kve_counting */
    uint32_t clearing;       /* enum kve_clearing */
    /* Do not look a hash in bytes that an instance does not know up by its
     * last 8 bytes among that instance's integers (some engines mix forms). */
    uint32_t no_mixed_forms;
};

#define KVE_INDEX_OPTS_INIT                                \
    {                                                      \
        sizeof(struct kve_index_opts), 0, 0, 0, 0, 0, 0, 0 \
    }

/* The same as KVE_INDEX_OPTS_INIT for languages without macros. */
KVE_API void kve_index_opts_init(struct kve_index_opts *opts);

/*
 * Create an empty index; opts may be NULL. The caller owns *ret_index.
 *
 * Returns KVE_OK, KVE_E_INVAL or KVE_E_NOMEM.
 */
KVE_API kve_status kve_index_create(const struct kve_index_opts *opts,
    kve_index **ret_index, struct kve_error *err);

/* Free. Its readers must be gone. NULL is allowed and does nothing. */
KVE_API void kve_index_destroy(kve_index *index);

/* ------------------------------------------------------------------ */

/*
 * The namespace of a model and a tenant, made when it is new. Strings are
 * copied; NULL is "". Any thread.
 *
 * Returns KVE_OK, KVE_E_LIMIT or KVE_E_NOMEM.
 */
KVE_API kve_status kve_index_namespace(kve_index *index, const char *model,
    const char *tenant, kve_namespace *ret_ns, struct kve_error *err);

/* The same without making it; 0 when there is none. Any thread. */
KVE_API kve_namespace kve_index_find_namespace(
    const kve_index *index, const char *model, const char *tenant);

/* Who an instance is. */
struct kve_instance_spec {
    size_t struct_size;
    kve_namespace ns;
    const char *worker; /* any text; copied */
    uint32_t rank;      /* data-parallel rank */
    uint32_t counting;  /* enum kve_counting */
};

#define KVE_INSTANCE_SPEC_INIT                          \
    {                                                   \
        sizeof(struct kve_instance_spec), 0, NULL, 0, 0 \
    }

/* The same as KVE_INSTANCE_SPEC_INIT for languages without macros. */
KVE_API void kve_instance_spec_init(struct kve_instance_spec *spec);

/*
 * Add an instance; it holds nothing. Any thread.
 *
 * Returns KVE_OK, KVE_E_INVAL, KVE_E_NOT_FOUND (no such namespace),
 * KVE_E_IN_USE (worker and rank are there already; *ret_instance is written
 * with theirs), KVE_E_LIMIT or KVE_E_NOMEM.
 */
KVE_API kve_status kve_index_add(kve_index *index,
    const struct kve_instance_spec *spec, kve_instance *ret_instance,
    struct kve_error *err);

/*
 * Drop an instance: when this returns nothing of it shows in any answer that
 * begins later. Any thread. Returns KVE_OK or KVE_E_NOT_FOUND.
 */
KVE_API kve_status kve_index_drop(
    kve_index *index, kve_instance instance, struct kve_error *err);

/* Drop all ranks of a worker; *ret_n (may be NULL) says how many. */
KVE_API kve_status kve_index_drop_worker(kve_index *index, kve_namespace ns,
    const char *worker, size_t *ret_n, struct kve_error *err);

/* The instance of a worker's rank, or 0. Any thread. */
KVE_API kve_instance kve_index_find(const kve_index *index, kve_namespace ns,
    const char *worker, uint32_t rank);

/* ------------------------------------------------------------------ */

/* What one apply did. */
struct kve_index_applied {
    size_t struct_size;
    uint64_t stored;  /* copies that were added */
    uint64_t removed; /* copies that were removed */
    uint64_t cleared; /* events that cleared */
    uint64_t refused; /* events that could not be applied, whole or in part */
};

#define KVE_INDEX_APPLIED_INIT                       \
    {                                                \
        sizeof(struct kve_index_applied), 0, 0, 0, 0 \
    }

/*
 * Apply a decoded batch to an instance, event by event in order. The batch is
 * read from its first event on and left at its end. A batch that names another
 * rank than the instance's goes to that rank of the same worker, which is
 * added when it is new. ret_applied may be NULL.
 *
 * Returns KVE_OK, also when single events were refused (ret_applied and the
 * counters say so); KVE_E_NOT_FOUND, KVE_E_LIMIT (no room for another rank) or
 * KVE_E_NOMEM (what could not be stored is missing, never wrong).
 */
KVE_API kve_status kve_index_apply_batch(kve_index *index,
    kve_instance instance, kve_batch *batch,
    struct kve_index_applied *ret_applied, struct kve_error *err);

/*
 * The same for events that the caller made. contents may be NULL; else it
 * holds, one after another, the content hash of each block of each complete
 * store in events (stores without tokens count as complete then, when they
 * have hashes and a block_size), and tokens are not looked at.
 */
KVE_API kve_status kve_index_apply(kve_index *index, kve_instance instance,
    const struct kve_batch_view *events, const uint64_t *contents,
    size_t n_contents, struct kve_index_applied *ret_applied,
    struct kve_error *err);

/*
 * Forget what an instance holds, at once. tiers is a set of 1 << KVE_TIER_*;
 * 0: all, and with it what was learnt about its groups (the instance starts
 * anew).
 */
KVE_API kve_status kve_index_clear(kve_index *index, kve_instance instance,
    uint32_t tiers, struct kve_error *err);

/*
 * Rebuild: begin makes a hidden twin of the instance that holds nothing;
 * kve_index_apply*() with the value that begin returned go there. commit puts
 * it in the place of what was visible, in one step; the instance keeps its
 * name. abort drops it. The twin counts copies whatever the instance does; in
 * an instance of sets they count as one after commit.
 *
 * begin returns KVE_E_IN_USE when there is a twin already.
 */
KVE_API kve_status kve_index_rebuild_begin(kve_index *index,
    kve_instance instance, kve_instance *ret_twin, struct kve_error *err);
KVE_API kve_status kve_index_rebuild_commit(
    kve_index *index, kve_instance instance, struct kve_error *err);
KVE_API kve_status kve_index_rebuild_abort(
    kve_index *index, kve_instance instance, struct kve_error *err);

/*
 * Give memory back that dropped and cleared instances left, for about max_us
 * microseconds a call. apply does this along the way; a caller that has
 * nothing to apply calls it when it is idle. Returns true when more is left.
 */
KVE_API bool kve_index_tidy(kve_index *index, uint64_t max_us);

/* ------------------------------------------------------------------ */

/*
 * A reader: scratch memory of its own. One thread at a time; as many readers
 * as there are threads that ask.
 */
KVE_API kve_status kve_index_reader_create(
    kve_index *index, kve_index_reader **ret_reader, struct kve_error *err);

/* NULL is allowed and does nothing. */
KVE_API void kve_index_reader_destroy(kve_index_reader *reader);

/* Number of enum kve_tier: arrays by tier have this many places. */
#define KVE_TIERS 5

/* What belongs to a part of a prompt beside its tokens. */
struct kve_query_extra {
    uint32_t kind;         /* KVE_EXTRA_IMAGE, _BYTES, _TEXT or _OTHER */
    uint32_t start;        /* IMAGE: first token of its placeholders */
    uint32_t n_tokens;     /* IMAGE: how many */
    uint32_t block;        /* others: the block it belongs to */
    struct kve_str text;   /* IMAGE: identifier; TEXT */
    struct kve_span bytes; /* BYTES: digest of prompt embeddings; OTHER: raw */
};

/*
 * A question. Exactly one of tokens, contents and hashes is given.
 */
struct kve_index_query {
    size_t struct_size;
    kve_namespace ns;
    uint32_t recompute_last; /* 1: at least one token is computed anyway, as
                                engines do, so a match ends before the last */
    const uint32_t *tokens;  /* a prompt; hashed by the sizes that are there */
    size_t n_tokens;
    const uint64_t *contents; /* content hashes, of blocks of block_size */
    size_t n_contents;
    const uint64_t *dynamo; /* or: Dynamo's block hashes (hash.h), which carry
                               adapter and salt themselves */
    size_t n_dynamo;
    const struct kve_hash *hashes; /* engine hashes of a chain, in order: the
                                      longest run of them from the first */
    size_t n_hashes;
    uint32_t block_size; /* tokens a block of contents, dynamo and hashes; 0:
                            the one size there is */
    struct kve_str lora_name; /* for tokens and contents; absent or "": base */
    struct kve_str cache_salt;
    const struct kve_query_extra *extras; /* for tokens, in order of place */
    size_t n_extras;
    const uint8_t *tiers; /* order of the sums; default GPU, CPU, DISK */
    size_t n_tiers;
    const kve_instance *only; /* rows of these only; NULL: all */
    size_t n_only;
};

#define KVE_INDEX_QUERY_INIT                                                   \
    {                                                                          \
        sizeof(struct kve_index_query), 0, 0, NULL, 0, NULL, 0, NULL, 0, NULL, \
            0, 0, { NULL, 0 }, { NULL, 0 }, NULL, 0, NULL, 0, NULL, 0          \
    }

/* The same as KVE_INDEX_QUERY_INIT for languages without macros. */
KVE_API void kve_index_query_init(struct kve_index_query *query);

/* The row changed whenever it was read; it is the smallest seen, which may be
 * nothing. */
#define KVE_ROW_MOVING 1u

/* What one instance holds of the prompt, in tokens. */
struct kve_index_row {
    kve_instance instance;
    uint32_t longest;          /* the largest number below */
    uint32_t flags;            /* KVE_ROW_* */
    uint32_t alone[KVE_TIERS]; /* by enum kve_tier: the prefix that is on that
                                  tier */
    uint32_t upto[KVE_TIERS];  /* by place in the order of tiers: the prefix
                                  that is on that tier or one before it */
};

/* The caller's room for rows, and what was put there. */
struct kve_index_answer {
    size_t struct_size;
    struct kve_index_row *rows; /* longest first; equal ones in any order */
    size_t cap;                 /* rows there is room for */
    size_t n;                   /* rows written */
    size_t total;               /* instances that hold any of it */
    size_t n_moving;            /* rows flagged KVE_ROW_MOVING */
};

#define KVE_INDEX_ANSWER_INIT                             \
    {                                                     \
        sizeof(struct kve_index_answer), NULL, 0, 0, 0, 0 \
    }

/* The same as KVE_INDEX_ANSWER_INIT for languages without macros. */
KVE_API void kve_index_answer_init(struct kve_index_answer *answer);

/*
 * Ask. Allocates nothing once the reader has seen a question of this length.
 * Instances that hold nothing of it have no row.
 *
 * Returns KVE_OK, KVE_E_INVAL, KVE_E_NOT_FOUND (no such namespace) or
 * KVE_E_NOMEM.
 */
KVE_API kve_status kve_index_query(kve_index_reader *reader,
    const struct kve_index_query *query, struct kve_index_answer *answer,
    struct kve_error *err);

/* Why the match of an instance ends where it does. */
#define KVE_ENDED_MAP(X)                                                   \
    X(PROMPT_END, 1, "prompt_end",                                         \
        "nothing is missing but a rest that is shorter than a block")      \
    X(NOT_STORED, 2, "not_stored", "nobody holds the next block")          \
    X(NOT_HELD, 3, "not_held", "others hold the next block, this one not") \
    X(HOLE, 4, "hole", "it holds blocks behind the one that is missing")   \
    X(GROUP, 5, "group", "full attention goes on, another group does not") \
    X(OTHER_ROOT, 6, "other_root",                                         \
        "it holds more of the content under another adapter or salt")      \
    X(OTHER_TIER, 7, "other_tier",                                         \
        "it goes on with tiers that are not in the order of the query")    \
    X(NOTHING, 8, "nothing", "it holds nothing at all, or is not there")   \
    X(MOVING, 9, "moving", "it changed whenever it was looked at")

enum kve_ended {
#define X(name, number, text, help) KVE_ENDED_##name = number,
    KVE_ENDED_MAP(X)
#undef X
};

/* "prompt_end" for KVE_ENDED_PROMPT_END; "?" for unknown numbers. */
KVE_API const char *kve_ended_str(unsigned why);

/* Where the match of an instance ends, and why. */
struct kve_index_ended {
    size_t struct_size;
    uint32_t why;         /* enum kve_ended */
    uint32_t at;          /* tokens; what longest of its row would be */
    uint32_t other;       /* HOLE: the last token that is held behind it; GROUP:
                             how far full attention goes; OTHER_ROOT and
                             OTHER_TIER: how far it goes there */
    struct kve_int group; /* GROUP: the group that ends it; of several the one
                             that was learnt first */
};

#define KVE_INDEX_ENDED_INIT                     \
    {                                            \
        sizeof(struct kve_index_ended), 0, 0, 0, \
        {                                        \
            0, false                             \
        }                                        \
    }

/*
 * Say where and why an instance's match of a query ends. It is for people: it
 * takes longer than the query, and the reader's promise is that of a query.
 *
 * The reasons are looked for in this order, and the first that holds is said:
 * NOTHING; PROMPT_END (no block of a size there is fits behind it, or none
 * that suits all groups); OTHER_TIER; GROUP; HOLE; OTHER_ROOT (not by dynamo
 * and hashes, and not where there are more than 16 adapters and salts);
 * NOT_HELD; NOT_STORED. "Others" hold a block on any tier and in any group.
 *
 * Returns KVE_OK, KVE_E_INVAL, KVE_E_NOT_FOUND (no such namespace) or
 * KVE_E_NOMEM.
 */
KVE_API kve_status kve_index_explain(kve_index_reader *reader,
    const struct kve_index_query *query, kve_instance instance,
    struct kve_index_ended *ret, struct kve_error *err);

/* One scope of one instance that holds a block. */
struct kve_index_holder {
    kve_instance instance;
    uint32_t tier;   /* enum kve_tier */
    bool placed;     /* it stands in a chain that begins at a root */
    bool taught;     /* its content is known; false: by hash only */
    uint32_t copies; /* 1 in an instance of sets */
    uint32_t end;    /* tokens up to the block's end; from its waiting
                        place on when it is not placed; 0 by hash only */
    uint32_t block_size;
    uint64_t content; /* when taught */
    struct kve_int group;
};

/*
 * Who holds a block, by engine hash. Writes at most cap holders, returns how
 * many there are in all.
 */
KVE_API size_t kve_index_block(kve_index_reader *reader, kve_namespace ns,
    const struct kve_hash *hash, struct kve_index_holder *holders, size_t cap);

/* ------------------------------------------------------------------ */

/*
 * Part of a dump: blocks of one instance that follow one another in a chain.
 * A run is named before runs that name it as their parent. Borrowed.
 */
struct kve_index_run {
    uint64_t id;     /* within this dump, from 1 */
    uint64_t parent; /* the run it continues, after its last block; 0: none */
    bool rooted;     /* parent 0: begins a chain. false: its parent is not
                        known; waits for waits_for */
    bool taught;     /* false: blocks by hash only; no contents, no order */
    struct kve_hash waits_for; /* when not rooted and taught */
    struct kve_str lora_name;  /* of the chain, where rooted */
    struct kve_str cache_salt;
    uint32_t block_size;
    size_t n_blocks;
    const uint64_t *contents; /* n_blocks; NULL when not taught */
    const uint64_t *dynamo;   /* n_blocks, Dynamo's block hashes; NULL: the
                                 contents themselves, or nobody can say */
};

/* Blocks of the run that were just said, in one scope. Borrowed. */
struct kve_index_held {
    struct kve_str medium;
    struct kve_str locality;
    struct kve_str ownership;
    struct kve_int group;
    uint32_t tier;
    size_t n_blocks;               /* that of the run */
    const struct kve_hash *hashes; /* n_blocks; of those held */
    const uint32_t *copies;        /* n_blocks; 0: not held */
};

/* Blocks that a store skipped: n_blocks before the block over, which was stored
 * over them. The same may be said more than once. Borrowed. */
struct kve_index_skipped {
    struct kve_hash over;
    uint32_t n_blocks;
};

struct kve_index_dump {
    size_t struct_size;
    void *ctx;
    /* Each returns false to end the dump. Called outside all locks. What was
     * said of a run is there until the next run. NULL: not asked for. */
    bool (*run)(void *ctx, const struct kve_index_run *run);
    bool (*held)(void *ctx, const struct kve_index_held *held);
    bool (*skipped)(void *ctx, const struct kve_index_skipped *skipped);
};

/*
 * Say what an instance holds: its state after one batch, taken in slices that
 * do not hold up the writers for long. Also of a hidden twin.
 *
 * Returns KVE_OK, KVE_E_INVAL (struct_size), KVE_E_NOT_FOUND or KVE_E_NOMEM.
 */
KVE_API kve_status kve_index_dump_instance(kve_index *index,
    kve_instance instance, const struct kve_index_dump *dump,
    struct kve_error *err);

/* An instance, its group of blocks and what was learnt of it. */
struct kve_index_group {
    struct kve_int group;
    struct kve_str kind; /* as the engine named it; borrowed until drop */
    uint32_t block_size;
    uint32_t window; /* of sliding windows, in tokens */
    bool ignored;    /* its kind takes no part in matches */
    bool sparse;     /* a store of it had tokens that are not hashes x
                        block_size: it lists only some of its blocks */
};

struct kve_index_instance {
    kve_instance instance;
    kve_namespace ns;
    const char *worker; /* borrowed until it is dropped */
    uint32_t rank;
    uint32_t counting;
    bool twin;                  /* it has a hidden twin */
    uint64_t blocks[KVE_TIERS]; /* (scope, block) pairs held, by tier */
    uint64_t hash_only;         /* of them, those that nobody taught */
    uint64_t waiting;           /* of them, those without a known parent */
    uint64_t batches;           /* applied */
    uint32_t block_sizes[8];    /* sizes seen in stores, as many as fit */
    uint32_t n_block_sizes;     /* how many there were */
};

/*
 * Give an instance what a dump said and kve_index_groups() wrote, of another
 * instance, perhaps in another process: then its dump and its answers are the
 * same. It must hold nothing: one that is new, or a twin that was just begun.
 *
 * say() is called once, while the namespace is locked, and may not call this
 * index. It calls the functions of what it is given in the order of a dump;
 * when one of them returns false it shall end. It returns false when it could
 * not say all.
 *
 * With max_bytes what does not fit is forgotten, and counted as evicted.
 *
 * Returns KVE_OK; KVE_E_CLOSED (say returned false); KVE_E_INVAL (it does not
 * hold nothing, or what was said contradicts itself); KVE_E_LIMIT;
 * KVE_E_NOT_FOUND; KVE_E_NOMEM. After a failure it may hold a part: clear it,
 * or abort.
 */
KVE_API kve_status kve_index_restore(kve_index *index, kve_instance instance,
    const struct kve_index_group *groups, size_t n_groups,
    bool (*say)(void *ctx, const struct kve_index_dump *to), void *ctx,
    struct kve_error *err);

/* What is known about an instance. Any thread. KVE_OK or KVE_E_NOT_FOUND. */
KVE_API kve_status kve_index_get_instance(const kve_index *index,
    kve_instance instance, struct kve_index_instance *ret);

/* Its groups; at most cap are written; returns how many there are. */
KVE_API size_t kve_index_groups(const kve_index *index, kve_instance instance,
    struct kve_index_group *groups, size_t cap);

/* The instances of a namespace (0: of all); at most cap are written; returns
 * how many there are. Any thread. */
KVE_API size_t kve_index_instances(const kve_index *index, kve_namespace ns,
    kve_instance *instances, size_t cap);

/* Sizes of an index or a namespace (ns 0: all). What hidden twins hold is in
 * bytes, blocks and runs only. */
struct kve_index_stats {
    size_t struct_size;
    uint64_t bytes;     /* allocated now, by the index's own allocator */
    uint64_t max_bytes; /* limit; 0: none */
    uint64_t limbo;     /* of bytes: freed, but readers may still look */
    uint64_t blocks;    /* unique (content and place, or hash) blocks */
    uint64_t residencies[KVE_TIERS]; /* (instance, scope, block), by tier */
    uint64_t copies;                 /* residencies with their counts */
    uint64_t waiting;   /* residencies whose parent is not known (orphans) */
    uint64_t hash_only; /* residencies that nobody taught */
    uint64_t runs;      /* pieces of chains */
    uint64_t instances;
    uint64_t namespaces;
};

#define KVE_INDEX_STATS_INIT                                                 \
    {                                                                        \
        sizeof(struct kve_index_stats), 0, 0, 0, 0, { 0, 0, 0, 0, 0 }, 0, 0, \
            0, 0, 0, 0                                                       \
    }

/* The same as KVE_INDEX_STATS_INIT for languages without macros. */
KVE_API void kve_index_stats_init(struct kve_index_stats *stats);

/* Any thread. KVE_OK, KVE_E_INVAL or KVE_E_NOT_FOUND. */
KVE_API kve_status kve_index_get_stats(const kve_index *index, kve_namespace ns,
    struct kve_index_stats *ret_stats);

/* A counter of counters.h (KVE_INDEX_COUNTER_MAP) of an instance, or of all
 * that ever were (instance 0). Any thread. */
KVE_API uint64_t kve_index_counter(
    const kve_index *index, kve_instance instance, unsigned counter);

#ifdef __cplusplus
}
#endif

#endif
