/*
 * codec.h - bytes to batches and back.
 *
 * Decoding is one pass over a payload into a kve_batch that the caller owns
 * and uses again and again: in steady state nothing is allocated. The decoder
 * reads every layout seen in the field (vLLM 0.10 to 0.33, SGLang, pool
 * publishers; arrays and maps mixed) without being told which.
 *
 * A fault of the schema (an event that lacks what it needs) costs that event:
 * it is recorded with reason and position, the others are delivered. A fault
 * of msgpack itself ends the batch at that byte: what stood before it is
 * delivered. No count in the input is trusted, nothing recurses, and memory
 * stays under the limits of the batch's options.
 *
 * Encoding writes what vLLM's own classes write, byte for byte.
 */
#ifndef KVEVENTS_CODEC_H
#define KVEVENTS_CODEC_H

#include <kvevents/event.h>
#include <kvevents/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kve_batch kve_batch;

/*
 * Limits of a batch. Zero means the default. Memory follows the largest batch
 * decoded so far and is kept until kve_batch_destroy(). Beside what is limited
 * here a batch keeps at most 65,536 unknown fields (64 an event), and copies
 * of hashes written as hex text, which are shorter than that text.
 */
struct kve_batch_opts {
    size_t struct_size;
    /* Tokens kept a batch; default 4,194,304 (16 MiB). An event that would go
     * beyond keeps its hashes, loses its tokens and carries
     * KVE_NOTE_TOKEN_LIMIT. */
    size_t max_tokens;
    /* Hashes kept a batch; default 1,048,576. An event that would go beyond
     * is a fault (too_many_hashes). */
    size_t max_hashes;
    /* Events kept a batch; default 262,144. Those beyond are faults
     * (too_many_events). */
    size_t max_events;
    /* Faults kept in detail; default 1,024. All are counted. */
    size_t max_faults;
};

#define KVE_BATCH_OPTS_INIT                       \
    {                                             \
        sizeof(struct kve_batch_opts), 0, 0, 0, 0 \
    }

/* The same as KVE_BATCH_OPTS_INIT for languages without macros. */
KVE_API void kve_batch_opts_init(struct kve_batch_opts *opts);

/*
 * Why an event could not be delivered.
 */
#define KVE_FAULT_MAP(X)                                                     \
    X(NO_TAG, 1, "no_tag", "the event has no type")                          \
    X(UNKNOWN_TAG, 2, "unknown_tag", "the event's type is not known")        \
    X(BAD_TAG, 3, "bad_tag", "the event's type is not a string")             \
    X(NOT_AN_EVENT, 4, "not_an_event", "neither an array nor a map")         \
    X(MISSING_HASHES, 5, "missing_hashes", "block_hashes is absent or nil")  \
    X(BAD_HASHES, 6, "bad_hashes", "block_hashes is not a list of hashes")   \
    X(BAD_PARENT, 7, "bad_parent", "parent_block_hash is not a hash or nil") \
    X(BAD_TOKENS, 8, "bad_tokens", "token_ids is not a list of integers")    \
    X(BAD_BLOCK_SIZE, 9, "bad_block_size",                                   \
        "block_size is not an integer from 0 to 4294967295")                 \
    X(BAD_EXTRA_KEYS, 10, "bad_extra_keys",                                  \
        "extra_keys is not a list of lists or nils")                         \
    X(BAD_FIELD, 11, "bad_field", "a field has a value of the wrong type")   \
    X(TOO_MANY_HASHES, 12, "too_many_hashes", "over max_hashes")             \
    X(TOO_MANY_EVENTS, 13, "too_many_events", "over max_events")

enum kve_fault_reason {
#define X(name, number, text, help) KVE_FAULT_##name = number,
    KVE_FAULT_MAP(X)
#undef X
};

/* One event that was not delivered. */
struct kve_fault {
    uint32_t reason;     /* enum kve_fault_reason */
    int32_t field;       /* enum kve_field it is about, or -1 */
    size_t index;        /* place in the batch */
    size_t offset;       /* byte of the payload where the reason stands */
    struct kve_str tag;  /* the event's type where it could be read */
    struct kve_span raw; /* the whole event */
};

/* What a batch says beside its events. */
struct kve_batch_info {
    double ts; /* Unix seconds; milliseconds (integers above 1e11) converted */
    bool ts_integer;             /* it was sent as an integer */
    struct kve_int rank;         /* data-parallel rank */
    const uint8_t *publisher_id; /* 16 bytes, or NULL */
    size_t n_events;             /* delivered by kve_batch_next() */
    size_t n_faults;             /* all faults, also beyond max_faults */
    size_t n_declared;           /* events the payload's header announced */
    size_t n_tokens;             /* of all events */
    size_t n_hashes;             /* of all events */
    size_t trailing;             /* bytes after the batch, ignored */
    /* Every note any of its events carries, and KVE_NOTE_UNKNOWN_FIELD for
     * parts of the batch itself. */
    uint32_t notes;
    bool map; /* the batch was a map, not an array */
};

/*
 * Create an empty batch. opts may be NULL. The caller owns *ret_batch and
 * ends it with kve_batch_destroy().
 *
 * Returns KVE_OK, KVE_E_INVAL or KVE_E_NOMEM.
 */
KVE_API kve_status kve_batch_create(const struct kve_batch_opts *opts,
    kve_batch **ret_batch, struct kve_error *err);

/* Free. NULL is allowed and does nothing. */
KVE_API void kve_batch_destroy(kve_batch *batch);

/*
 * Decode one payload into batch; what it held before is gone. payload is
 * borrowed: it must stay as it is for as long as the events are looked at.
 *
 * Returns
 *   KVE_OK           the payload was read to its end; events that could not
 *                    be read are in kve_batch_fault();
 *   KVE_E_TRUNCATED,
 *   KVE_E_MALFORMED  msgpack is broken at err->offset; events that stood
 *                    before that byte are in the batch;
 *   KVE_E_SCHEMA     the payload is msgpack but no batch; nothing delivered;
 *   KVE_E_NOMEM      events read until then are in the batch.
 * In each case kve_batch_get_info() and kve_batch_next() may be used. Where the
 * input ends too early err->offset is len: the byte that is missing.
 */
KVE_API kve_status kve_batch_decode(
    kve_batch *batch, const void *payload, size_t len, struct kve_error *err);

/* Forget the events and return to the first; memory is kept. */
KVE_API void kve_batch_clear(kve_batch *batch);

/* What the batch says beside its events; valid as long as the events. */
KVE_API const struct kve_batch_info *kve_batch_get_info(const kve_batch *batch);

/* The next event in order, or NULL at the end. */
KVE_API const struct kve_event *kve_batch_next(kve_batch *batch);

/* Return to the first event. */
KVE_API void kve_batch_rewind(kve_batch *batch);

/* The i-th recorded fault in the order they stood, or NULL. */
KVE_API const struct kve_fault *kve_batch_fault(
    const kve_batch *batch, size_t i);

/* "no_tag" for KVE_FAULT_NO_TAG; "?" for unknown numbers. Any thread. */
KVE_API const char *kve_fault_str(unsigned reason);

/* One sentence for people about a reason. Any thread. */
KVE_API const char *kve_fault_help(unsigned reason);

/* Bytes the batch holds now. */
KVE_API size_t kve_batch_memory(const kve_batch *batch);

/* ------------------------------------------------------------------ */

/*
 * A growing buffer for output. Start from zeros (or KVE_BUFFER_INIT), use it
 * again and again, end with kve_buffer_release(). max 0: 256 MiB; a write
 * that would go beyond it fails with KVE_E_LIMIT.
 */
struct kve_buffer {
    uint8_t *data;
    size_t len;
    size_t cap;
    size_t max;
};

#define KVE_BUFFER_INIT \
    {                   \
        NULL, 0, 0, 0   \
    }

/* Free the buffer's memory and make it empty. */
KVE_API void kve_buffer_release(struct kve_buffer *buf);

/*
 * Append one batch, encoded, to out. layout says how events are written:
 * KVE_LAYOUT_MAP is vLLM's current one. Fields a layout has no place for are
 * left out. On failure out is as it was.
 *
 * A hash or a string must have data where it has a length; raw values must be
 * one whole msgpack value each. KVE_LAYOUT_FIRST knows integer hashes only.
 *
 * Returns KVE_OK, KVE_E_INVAL, KVE_E_NOMEM or KVE_E_LIMIT.
 */
KVE_API kve_status kve_batch_encode(const struct kve_batch_view *view,
    enum kve_layout layout, struct kve_buffer *out, struct kve_error *err);

/* ------------------------------------------------------------------ */

/* What one item of a block's extra keys is. */
enum kve_extra_kind {
    KVE_EXTRA_TEXT = 1,  /* adapter name, cache salt; an image before 0.20 */
    KVE_EXTRA_IMAGE = 2, /* [identifier, offset] */
    KVE_EXTRA_BYTES = 3, /* digest of prompt embeddings */
    KVE_EXTRA_OTHER = 4  /* anything else; see raw */
};

struct kve_extra_item {
    uint32_t kind;         /* enum kve_extra_kind */
    size_t block;          /* which block of the event it belongs to */
    struct kve_str text;   /* TEXT, IMAGE */
    int64_t offset;        /* IMAGE: first token, from the block's start */
    struct kve_span bytes; /* BYTES */
    struct kve_span raw;   /* the item as it came; ignored when writing */
};

/* A walk over extra keys. Zero it, set keys to an event's extra_keys. */
struct kve_extra_iter {
    struct kve_span keys;
    size_t pos;
    size_t block;
    size_t blocks_left;
    size_t items_left;
    bool started;
};

/* The next item, in order, or false at the end. Blocks that have none (nil)
 * are passed over. */
KVE_API bool kve_extra_next(
    struct kve_extra_iter *iter, struct kve_extra_item *ret_item);

/*
 * Append the msgpack value of extra keys for n_blocks blocks: a list with one
 * entry a block, nil where no item names the block. Items must be in order of
 * block; kinds TEXT, IMAGE and BYTES.
 *
 * Returns KVE_OK, KVE_E_INVAL, KVE_E_NOMEM or KVE_E_LIMIT.
 */
KVE_API kve_status kve_extra_write(const struct kve_extra_item *items,
    size_t n_items, size_t n_blocks, struct kve_buffer *out,
    struct kve_error *err);

/* ------------------------------------------------------------------ */

/* Number that no batch has: end of a replay, or "I was reset" live. */
#define KVE_NUMBER_END UINT64_MAX

enum kve_message_kind {
    KVE_MESSAGE_DATA = 1,  /* a batch */
    KVE_MESSAGE_RESET = 2, /* live: the publisher starts anew */
    KVE_MESSAGE_END = 3    /* replay: nothing follows */
};

/* One message, its frames told apart. Borrowed from the frames. */
struct kve_message {
    uint32_t kind;  /* enum kve_message_kind */
    bool has_topic; /* false: a replay answer without the topic frame */
    uint64_t number;
    struct kve_span topic;
    struct kve_span payload;
    const uint8_t *publisher_id; /* 16 bytes behind the number, or NULL */
};

/*
 * Why a set of frames is no message. Each has a counter.
 */
#define KVE_FRAMES_MAP(X)                                                      \
    X(ONE, 1, "one_frame", "1 frame: the publisher sends no topic or number")  \
    X(TWO, 2, "two_frames", "2 frames: the publisher sends no number")         \
    X(MANY, 3, "many_frames", "more frames than a message has")                \
    X(NUMBER, 4, "number_length",                                              \
        "the number has under 8 bytes, or is the reserved one with a payload") \
    X(EMPTY, 5, "empty_payload", "an empty payload with a data number")

enum kve_frames_fault {
#define X(name, number, text, help) KVE_FRAMES_##name = number,
    KVE_FRAMES_MAP(X)
#undef X
};

/*
 * Tell the frames of a live message apart: topic, number, payload. A number
 * frame longer than 8 bytes is read by its first 8; of 24 bytes the rest is
 * the publisher's id.
 *
 * Returns KVE_OK, or KVE_E_MALFORMED with err->offset = the enum
 * kve_frames_fault.
 */
KVE_API kve_status kve_frames_live(const struct kve_span *frames,
    size_t n_frames, struct kve_message *ret_message, struct kve_error *err);

/*
 * Tell the frames of a replay answer apart, as a DEALER reads them: an empty
 * delimiter, perhaps a topic, a number, a payload. Read from the end.
 *
 * Returns as kve_frames_live().
 */
KVE_API kve_status kve_frames_replay(const struct kve_span *frames,
    size_t n_frames, struct kve_message *ret_message, struct kve_error *err);

/* "two_frames" for KVE_FRAMES_TWO; "?" for unknown numbers. Any thread. */
KVE_API const char *kve_frames_fault_str(unsigned fault);

/* A number as the 8 bytes that travel, big-endian, and back. */
KVE_API void kve_number_write(uint64_t number, uint8_t ret_bytes[8]);
KVE_API uint64_t kve_number_read(const uint8_t bytes[8]);

#ifdef __cplusplus
}
#endif

#endif
