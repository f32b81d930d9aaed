/*
 * event.h - batches and events as values.
 *
 * An engine publishes batches. A batch is a time stamp, a list of events and
 * a data-parallel rank; an event says that KV-cache blocks were stored, were
 * removed, or that all were cleared. The same structures are filled by the
 * decoder (codec.h, subscriber.h) and read by the encoder and the publisher.
 *
 * Absent and nil are one value in every field: a NULL pointer, has_parent
 * false, or an unset struct kve_int. A structure of zeros is therefore an
 * event without any optional field.
 *
 * Everything a decoded event points to (strings, hashes, tokens, raw values)
 * is borrowed from the batch and from the payload it was decoded from, and is
 * valid until the batch is decoded into again, cleared or destroyed.
 *
 * token_ids are users' text. Nothing in this library logs them.
 */
#ifndef KVEVENTS_EVENT_H
#define KVEVENTS_EVENT_H

#include <kvevents/export.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes somewhere else; not terminated. data NULL: absent. */
struct kve_span {
    const uint8_t *data;
    size_t len;
};

/* Text somewhere else, UTF-8 by convention, not terminated, not checked.
 * data NULL: absent or nil. An empty string has data and len 0. */
struct kve_str {
    const char *data;
    size_t len;
};

/* An optional integer. All zero: absent or nil. */
struct kve_int {
    int64_t value;
    bool set;
};

/*
 * The name an engine gives to a block; opaque. Either an integer of 64 bits,
 * whose pattern counts (-1 and 2^64-1 are one hash), or bytes: 32 for
 * SHA-256, 16 for XXH3-128, any length for others. An integer and bytes are
 * never equal. bytes NULL: an integer.
 */
struct kve_hash {
    const uint8_t *bytes;
    union {
        uint64_t integer; /* when bytes is NULL */
        size_t len;       /* of bytes, when not */
    };
};

/* What an event says. Numbers are stable. */
#define KVE_EVENT_MAP(X)                                            \
    X(STORED, 1, "BlockStored", "blocks are now in the cache")      \
    X(REMOVED, 2, "BlockRemoved", "blocks left the cache")          \
    X(CLEARED, 3, "AllBlocksCleared", "every block left the cache") \
    X(TIER_CLEARED, 4, "TierBlocksCleared", "every block of one medium left")

enum kve_event_type {
#define X(name, number, tag, text) KVE_EVENT_##name = number,
    KVE_EVENT_MAP(X)
#undef X
};

/*
 * Storage tiers, from the media names seen in the field. An absent or empty
 * medium is the GPU; an unknown one is never counted as GPU.
 */
#define KVE_TIER_MAP(X)      \
    X(UNKNOWN, 0, "unknown") \
    X(GPU, 1, "gpu")         \
    X(CPU, 2, "cpu")         \
    X(DISK, 3, "disk")       \
    X(REMOTE, 4, "remote")

enum kve_tier {
#define X(name, number, text) KVE_TIER_##name = number,
    KVE_TIER_MAP(X)
#undef X
};

/*
 * Fields of an event by their name on the wire, as bits of kve_event.seen.
 */
#define KVE_FIELD_MAP(X)                                  \
    X(BLOCK_HASHES, 0, "block_hashes")                    \
    X(PARENT_BLOCK_HASH, 1, "parent_block_hash")          \
    X(TOKEN_IDS, 2, "token_ids")                          \
    X(BLOCK_SIZE, 3, "block_size")                        \
    X(LORA_ID, 4, "lora_id")                              \
    X(MEDIUM, 5, "medium")                                \
    X(LORA_NAME, 6, "lora_name")                          \
    X(EXTRA_KEYS, 7, "extra_keys")                        \
    X(GROUP_IDX, 8, "group_idx")                          \
    X(SPEC_KIND, 9, "kv_cache_spec_kind")                 \
    X(SLIDING_WINDOW, 10, "kv_cache_spec_sliding_window") \
    X(LOCALITY, 11, "locality")                           \
    X(OWNERSHIP, 12, "ownership")                         \
    X(SESSION_ID, 13, "session_id")                       \
    X(LOOKAHEAD_TOKEN_IDS, 14, "lookahead_token_ids")     \
    X(CACHE_SALT, 15, "cache_salt")                       \
    X(SKIPPED_PARENT, 16, "skipped_parent_block_hash")    \
    X(SKIPPED_TOKEN_IDS, 17, "skipped_token_ids")         \
    X(SKIPPED_EXTRA_KEYS, 18, "skipped_extra_keys")       \
    X(BLOCK_OFFSETS, 19, "block_offsets")                 \
    X(REMAINING_COPIES, 20, "remaining_copy_counts")

enum kve_field {
#define X(name, number, text) KVE_FIELD_##name = number,
    KVE_FIELD_MAP(X)
#undef X
};

/*
 * What is odd about an event that is delivered all the same; bits of
 * kve_event.notes. A subscriber counts events with any of them (noted_events).
 * HASH_ONLY: the event carries no usable tokens although it may have had some:
 * its blocks are known by hash only.
 */
#define KVE_NOTE_MAP(X)                                                      \
    X(HASH_ONLY, 0, "hash_only",                                             \
        "no tokens belong to its hashes (none sent, or one of the below)")   \
    X(TOKEN_COUNT, 1, "token_count_mismatch",                                \
        "tokens are not hashes x block_size; normal for sparse groups")      \
    X(EMPTY_HASHES, 2, "empty_hashes",                                       \
        "a store without hashes; normal for sparse groups")                  \
    X(TOKEN_LIMIT, 3, "token_limit",                                         \
        "tokens left out: the limit of tokens a batch was reached")          \
    X(TOKEN_RANGE, 4, "token_range",                                         \
        "tokens left out: one is negative or above 4294967295")              \
    X(TOKEN_PAIRS, 5, "token_pairs",                                         \
        "tokens came as pairs and were folded; the last one looks ahead")    \
    X(TOKEN_PAIRS_BROKEN, 6, "token_pairs_broken",                           \
        "tokens left out: they came as pairs that do not overlap")           \
    X(UNKNOWN_MEDIUM, 7, "unknown_medium", "the medium is in no known tier") \
    X(UNKNOWN_FIELD, 8, "unknown_field",                                     \
        "has keys or slots this library does not know; kept raw")            \
    X(TWO_NAMES, 9, "two_names",                                             \
        "a field came under two names; the current one was used")

enum kve_note {
#define X(name, bit, text, help) KVE_NOTE_##name = 1u << (bit),
    KVE_NOTE_MAP(X)
#undef X
};

/*
 * How an event was written. The two maps differ in the header of a store
 * only: vLLM 0.33 has room for more than 15 fields and so always writes their
 * number in 3 bytes, releases before it in 1.
 */
enum kve_layout {
    KVE_LAYOUT_MAP = 0,       /* {"type": tag, ...}: vLLM 0.33; the default */
    KVE_LAYOUT_ARRAY = 1,     /* [tag, ...], 12 slots: vLLM 0.22 and 0.23 */
    KVE_LAYOUT_FIRST = 2,     /* [tag, ...], 6 slots: vLLM 0.10; write only */
    KVE_LAYOUT_MAP_SHORT = 3, /* {"type": tag, ...}: vLLM 0.24 to 0.32 */
    KVE_LAYOUT_KEEP = 4 /* write only: each event as its own layout says, so
                           that decoded events become the same bytes again */
};

/* A field this library does not know, as it came. */
struct kve_unknown {
    struct kve_str key;    /* of a map; data NULL when the key is no string */
    uint32_t slot;         /* of an array, counted from 0 (the tag); else 0 */
    struct kve_span value; /* one whole msgpack value */
};

/*
 * One event. Which fields mean something depends on type: hashes and medium
 * for STORED and REMOVED, tokens and what describes them for STORED, medium
 * for TIER_CLEARED, ownership for all.
 */
struct kve_event {
    uint8_t type;   /* enum kve_event_type */
    uint8_t layout; /* enum kve_layout it came in; for KVE_LAYOUT_KEEP */
    uint8_t tier;   /* enum kve_tier of medium; ignored when encoding */
    bool has_parent;
    uint32_t notes;      /* KVE_NOTE_* bits; ignored when encoding */
    uint32_t seen;       /* 1 << KVE_FIELD_*: on the wire, nil included */
    uint32_t block_size; /* tokens a block; 0 with stores without tokens */
    size_t index;        /* place in the batch, faulty events counted */

    const struct kve_hash *hashes; /* in chain order */
    size_t n_hashes;
    struct kve_hash parent; /* block before the first; with has_parent */
    const uint32_t *tokens; /* NULL when none, or left out (see notes) */
    size_t n_tokens; /* with KVE_NOTE_TOKEN_PAIRS tokens[n_tokens], too, may
                        be read: the token behind the last one */

    struct kve_str medium;         /* absent or "" means GPU */
    struct kve_str lora_name;      /* adapter */
    struct kve_int lora_id;        /* deprecated by vLLM */
    struct kve_int group_idx;      /* KV-cache group of a hybrid model */
    struct kve_str spec_kind;      /* "full_attention", "sliding_window", ... */
    struct kve_int sliding_window; /* in tokens */
    struct kve_str locality;       /* "LOCAL" or "REMOTE" */
    struct kve_str ownership;      /* secondary offloading tier, or owner */
    struct kve_str session_id;
    struct kve_str cache_salt; /* where a producer sends it as a field */

    /* Raw msgpack values; read them with kve_extra_next() or a msgpack
     * reader of your choice. For encoding, kve_extra_write() makes one. */
    struct kve_span extra_keys; /* one entry a block: list or nil */
    struct kve_span lookahead_token_ids;
    struct kve_span skipped_extra_keys;
    struct kve_span block_offsets;
    struct kve_span remaining_copy_counts;

    /* A part of the chain that was skipped before the first block. */
    bool has_skipped_parent;
    struct kve_hash skipped_parent;
    const uint32_t *skipped_tokens;
    size_t n_skipped_tokens;

    const struct kve_unknown *unknown; /* at most 64; ignored when encoding */
    size_t n_unknown;
    struct kve_span raw; /* the whole event as it came; not for encoding */
};

/*
 * A batch to be encoded or published. Start from KVE_BATCH_VIEW_INIT.
 */
struct kve_batch_view {
    size_t struct_size;          /* sizeof(struct kve_batch_view) */
    double ts;                   /* Unix seconds; 0: the time of the call */
    struct kve_int rank;         /* data-parallel rank; unset: nil */
    const uint8_t *publisher_id; /* 16 bytes, or NULL */
    const struct kve_event *events;
    size_t n_events;
    size_t event_size; /* sizeof(struct kve_event): the array's stride; 0:
                          that of the first release */
};

#define KVE_BATCH_VIEW_INIT                                            \
    {                                                                  \
        sizeof(struct kve_batch_view), 0, { 0, false }, NULL, NULL, 0, \
            sizeof(struct kve_event)                                   \
    }

#ifdef __cplusplus
extern "C" {
#endif

/* The same as KVE_BATCH_VIEW_INIT for languages without macros. */
KVE_API void kve_batch_view_init(struct kve_batch_view *view);

/* "BlockStored" for KVE_EVENT_STORED; "?" for unknown numbers. Any thread. */
KVE_API const char *kve_event_type_str(unsigned type);

/* "gpu" for KVE_TIER_GPU; "unknown" for unknown numbers. Any thread. */
KVE_API const char *kve_tier_str(unsigned tier);

/* Name on the wire of a field; "?" for unknown numbers. Any thread. */
KVE_API const char *kve_field_str(unsigned field);

/* Name of one KVE_NOTE_* bit; "?" when it is not exactly one known bit. */
KVE_API const char *kve_note_str(unsigned note);

/*
 * The tier of a medium's name, upper or lower case; absent or empty: GPU.
 * CPU, CPU_PINNED, CPU_TIER1, CPU_TIER2, host_pinned: CPU. DISK, FS, STORAGE:
 * DISK. SHARED_STORAGE, OBJ, REMOTE: REMOTE. Others: UNKNOWN.
 */
KVE_API enum kve_tier kve_medium_tier(struct kve_str medium);

/* Same kind and same bytes. Any thread. */
KVE_API bool kve_hash_equal(const struct kve_hash *a, const struct kve_hash *b);

/*
 * Write a hash as text: decimal for an integer (unsigned), lower-case hex, two
 * digits a byte, for bytes. At most cap bytes are written, always terminated
 * when cap > 0; returns the length the whole text has.
 */
KVE_API size_t kve_hash_format(
    const struct kve_hash *hash, char *text, size_t cap);

#ifdef __cplusplus
}
#endif

#endif
