/*
 * input.h - the bodies of questions, as JSON or msgpack, read in one pass.
 *
 * A question is a flat object with one or two long arrays of integers. jansson
 * needs 270 us for 2,048 tokens, because it makes an object of each; this
 * reader puts numbers straight into arrays that the thread reuses. It is strict
 * JSON (RFC 8259, valid UTF-8, no duplicate keys among those it knows), of
 * bounded depth, without recursion, and is fuzzed against jansson.
 *
 * The fields are the union of all dialects; has says which were there, so that
 * the dialect is told by the spelling. A field of another name, or one that the
 * caller does not ask for, is passed over and must be valid JSON. null counts
 * as absent, but is noted in nulls. There is one list of tokens (token_ids,
 * tokens or prompts) and one of hashes in a question: a second is refused.
 *
 * Numbers of hashes: integers from -2^63 to 2^64 - 1, or texts: decimal, 0x and
 * up to 16 hex digits, or an even number of hex digits from 32 to 128 (bytes).
 * Token ids: 0 to 2^32 - 1.
 *
 * A fault is where it is met first, from left to right: a field of the wrong
 * type is one even if the JSON behind it is broken. Positions are counted as
 * serde_json counts them: bytes read when the fault was seen.
 */
#ifndef KVE_HTTP_INPUT_H
#define KVE_HTTP_INPUT_H

#include <kvevents/event.h>
#include <kvevents/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(ENUM, "name", kind): TOKENS: array of token ids (or a bin of i32 LE in
 * msgpack), or with PROMPTS an array of such arrays; HASHES: array; TEXT;
 * NUMBER: 0..2^64-1; BOOL; TEXTS: array of texts; ID: a text or a number. */
#define KVE_INPUT_MAP(X)                        \
    X(TOKEN_IDS, "token_ids", TOKENS)           \
    X(TOKENS, "tokens", TOKENS)                 \
    X(PROMPTS, "prompts", PROMPTS)              \
    X(BLOCK_HASHES, "block_hashes", HASHES)     \
    X(BLOCK_HASH, "block_hash", HASHES)         \
    X(SEQ_HASHES, "seq_hashes", HASHES)         \
    X(HASHES, "hashes", HASHES)                 \
    X(CONTENT_HASHES, "content_hashes", HASHES) \
    X(MODEL_NAME, "model_name", TEXT)           \
    X(MODEL, "model", TEXT)                     \
    X(MODELNAME, "modelname", TEXT)             \
    X(ROUTING_GROUP, "routing_group", TEXT)     \
    X(TENANT_ID, "tenant_id", TEXT)             \
    X(TENANT, "tenant", TEXT)                   \
    X(LORA_NAME, "lora_name", TEXT)             \
    X(LORA_ID, "lora_id", NUMBER)               \
    X(CACHE_SALT, "cache_salt", TEXT)           \
    X(BLOCK_SIZE, "block_size", NUMBER)         \
    X(INSTANCE_ID, "instance_id", ID)           \
    X(WORKERS, "workers", TEXTS)                \
    X(TIERS, "tiers", TEXTS)                    \
    X(LIMIT, "limit", NUMBER)                   \
    X(EXPLAIN, "explain", BOOL)                 \
    X(RECOMPUTE_LAST, "recompute_last", BOOL)

enum kve_input_field {
#define X(name, text, kind) KVE_INPUT_##name,
    KVE_INPUT_MAP(X)
#undef X
        KVE_INPUT_FIELDS
};

/* What one question said. Texts are borrowed from the body where they have no
 * escapes, else from the input's own memory; all of it is good until the input
 * is used again. Reused: zero it first, end with kve_input_release(). One
 * thread at a time. */
struct kve_input {
    uint32_t has;   /* set of 1 << enum kve_input_field; nulls are not in it */
    uint32_t nulls; /* fields that were null */
    size_t where[KVE_INPUT_FIELDS]; /* byte of the value, for errors */
    size_t end; /* behind the object: where serde misses a field */

    const uint32_t *tokens;   /* of all prompts, one after another */
    const size_t *prompt_end; /* where each prompt ends in tokens */
    size_t n_prompts;         /* 1 for token_ids and tokens */
    const uint64_t *numbers;  /* hash arrays: the values that fit 64 bits, 0
                                 for others; content_hashes and the like */
    const struct kve_hash *hashes; /* the same as engine hashes: numbers as 8
                                      bytes, texts of bytes as such */
    size_t n_hashes;
    bool wide;                             /* some hash is not 64 bits */
    uint32_t hashes_field;                 /* which field they were of */
    struct kve_str text[KVE_INPUT_FIELDS]; /* TEXT and ID (numbers: their
                                              decimal text) */
    uint64_t number[KVE_INPUT_FIELDS];     /* NUMBER, BOOL, and ID's */
    bool id_is_number;
    const struct kve_str *workers;
    size_t n_workers;
    const struct kve_str *tiers;
    size_t n_tiers;

    struct kve_input_memory *memory; /* private */
};

/* Why a body was not taken. */
enum kve_input_fault {
    KVE_INPUT_FINE = 0,
    KVE_INPUT_BROKEN, /* no JSON (msgpack): 400 */
    KVE_INPUT_WRONG,  /* a field of the wrong type or range: 422 */
    KVE_INPUT_LARGE,  /* too many tokens, prompts or hashes: 413 */
    KVE_INPUT_NOMEM
};

/* What a value is. */
enum kve_input_kind {
    KVE_KIND_NONE = 0,
    KVE_KIND_NULL,
    KVE_KIND_BOOL,
    KVE_KIND_INTEGER,
    KVE_KIND_FLOAT,
    KVE_KIND_TEXT,
    KVE_KIND_BYTES, /* msgpack only */
    KVE_KIND_ARRAY,
    KVE_KIND_OBJECT,
    KVE_KIND_OTHER /* msgpack's extensions */
};

/* Texts in one array of workers or tiers, at most. */
#define KVE_INPUT_MAX_TEXTS 65536u
/* Levels of arrays and objects in a value that is passed over, at most. */
#define KVE_INPUT_MAX_DEPTH 64

#define KVE_INPUT_NO_INDEX SIZE_MAX

struct kve_input_limits {
    size_t max_tokens;  /* of one prompt; 0: no limit but the body's length */
    size_t max_prompts; /* the same */
    size_t max_hashes;  /* the same */
    uint32_t fields; /* set of 1 << enum kve_input_field that are looked at; the
                        others are passed over as unknown; 0: all */
};

struct kve_input_error {
    enum kve_input_fault fault;
    size_t offset;            /* byte of the body: where the value begins, or
                                 the first byte that breaks the format */
    size_t end;               /* bytes read when it was seen */
    unsigned line;            /* JSON: of end, from 1; msgpack: 0 */
    unsigned column;          /* JSON: of end, bytes of that line; msgpack: 0 */
    int field;                /* enum kve_input_field, or -1 */
    size_t prompt;            /* of prompts; else KVE_INPUT_NO_INDEX */
    size_t index;             /* element of the array, from 0; else the same */
    enum kve_input_kind kind; /* WRONG: what stands there; NONE: a second value
                                 for a field or list, not a wrong one */
    char detail[160]; /* one line: what is wrong and what is accepted. Values
                         are not in it. JSON that is BROKEN: serde_json's words
                         for it, such as "expected `:`" */
};

/* JSON: body has a zero behind it, at body[len]. */
enum kve_input_fault kve_input_json(struct kve_input *input,
    const uint8_t *body, size_t len, const struct kve_input_limits *limits,
    struct kve_input_error *err);

/* The same as a msgpack map. */
enum kve_input_fault kve_input_msgpack(struct kve_input *input,
    const uint8_t *body, size_t len, const struct kve_input_limits *limits,
    struct kve_input_error *err);

void kve_input_release(struct kve_input *input);

/* Name of a field; "?" for others than enum kve_input_field. */
const char *kve_input_field_name(int field);

/* Line and column of a place as serde_json counts: end bytes were read. */
void kve_input_place(
    const uint8_t *body, size_t end, unsigned *ret_line, unsigned *ret_column);

/*
 * What serde_json says of a JSON body that is BROKEN or WRONG, and where:
 *
 *     token_ids[0]: invalid value: integer `-1`, expected u32 at line 1 ...
 *
 * The value itself is in it: only for the one who sent it, never for a log.
 * Always terminated; long values are cut.
 */
void kve_input_serde(const struct kve_input_error *err, const uint8_t *body,
    size_t len, char *text, size_t cap);

/* The same for a field that is not there: "missing field `model_name` at line 1
 * column 84". */
void kve_input_serde_missing(const struct kve_input *input, const uint8_t *body,
    enum kve_input_field field, char *text, size_t cap);

#endif
