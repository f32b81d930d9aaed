/*
 * input_impl.h - what the two readers of questions share; for input*.c alone.
 *
 * Readers pass the position by value, as wire/cursor.h does: a function takes p
 * and returns the position behind what it read, or NULL when the error says why
 * it did not.
 */
#ifndef KVE_HTTP_INPUT_IMPL_H
#define KVE_HTTP_INPUT_IMPL_H

#include "http/input.h"

#include "wire/cursor.h"

enum kve_input_type {
    KVE_TYPE_TOKENS,
    KVE_TYPE_PROMPTS,
    KVE_TYPE_HASHES,
    KVE_TYPE_TEXT,
    KVE_TYPE_NUMBER,
    KVE_TYPE_BOOL,
    KVE_TYPE_TEXTS,
    KVE_TYPE_ID
};

/*
 * Arrays that are used again for the next question. Tokens, hashes and bytes
 * get all the room that the rest of the body can need before they are filled,
 * so that nothing moves or is checked meanwhile; room that is not written to
 * costs nothing.
 */
struct kve_input_memory {
    uint32_t *tokens;
    size_t cap_tokens;
    size_t *ends;
    size_t cap_ends;
    uint64_t *numbers;
    size_t cap_numbers;
    struct kve_hash *hashes;
    size_t cap_hashes;
    struct kve_str *texts[2]; /* workers, tiers */
    size_t cap_texts[2];
    uint8_t *bytes; /* texts without their escapes, hashes from hex digits */
    size_t cap_bytes;
    size_t n_bytes;
    uint8_t order[KVE_INPUT_FIELDS]; /* fields in the order of the last body */
};

/* One body that is being read. */
struct kve_input_job {
    const uint8_t *begin;
    const uint8_t *end;
    struct kve_input *in;
    struct kve_input_memory *memory;
    struct kve_input_limits limits; /* zeros replaced */
    struct kve_input_error *err;
    size_t n_keys; /* keys that were fields, so far */
    /* where we are, for errors */
    int field;
    size_t prompt;
    size_t index;
};

/* Begin with an empty input; false: no memory. */
bool kve_input_start(struct kve_input_job *job, struct kve_input *input,
    const uint8_t *body, size_t len, const struct kve_input_limits *limits,
    struct kve_input_error *err);

/* What the field takes. */
enum kve_input_type kve_input_type_of(int field);

/* The field of a key that is looked at, or -1. */
int kve_input_field_of(struct kve_input_job *job, struct kve_str key);

/* A field's value begins, a null perhaps: false when it was there before, or is
 * a second list of tokens or hashes; the error then says so, about the place
 * [at, read). */
bool kve_input_claim(struct kve_input_job *job, int field, bool null,
    const uint8_t *at, const uint8_t *read);

/* Room for what can be in the rest of the body, or for one more. false: no
 * memory, and the error says so. */
bool kve_input_room_tokens(struct kve_input_job *job, size_t n);
bool kve_input_room_hashes(struct kve_input_job *job, size_t n);
bool kve_input_room_end(struct kve_input_job *job, size_t n);
bool kve_input_room_text(struct kve_input_job *job, int which, size_t n);
/* n bytes, or NULL. */
uint8_t *kve_input_bytes(struct kve_input_job *job, size_t n);

/* n hashes of the field are there. */
void kve_input_put_hashes(struct kve_input_job *job, size_t n);

/* n texts of workers (0) or tiers (1) are there. */
void kve_input_put_texts(struct kve_input_job *job, int which, size_t n);

/*
 * Failures; each returns NULL. at is where the value begins, read what was read
 * when it was seen.
 */
KVE_COLD const uint8_t *kve_input_broken(struct kve_input_job *job,
    const uint8_t *at, const uint8_t *read, const char *what);
KVE_COLD const uint8_t *kve_input_nomem(struct kve_input_job *job);
KVE_COLD const uint8_t *kve_input_large(
    struct kve_input_job *job, const uint8_t *at, const char *what, size_t max);
/* "FIELD[i]: expected WHAT, got KIND" */
KVE_COLD const uint8_t *kve_input_wrong(struct kve_input_job *job,
    const uint8_t *at, const uint8_t *read, enum kve_input_kind kind,
    const char *what);

/* What is expected at the job's place, in words for people. */
const char *kve_input_expected(const struct kve_input_job *job);

/* A hash as a text, in the job's place index. false: not one; it is for the
 * caller to say so, unless memory ran out (err->fault is set then). */
bool kve_input_hash_text(
    struct kve_input_job *job, struct kve_str text, size_t i);

KVE_INLINE void
kve_input_put_hash(struct kve_input_job *job, size_t i, uint64_t number)
{
    job->memory->numbers[i] = number;
    job->memory->hashes[i].bytes = NULL;
    job->memory->hashes[i].integer = number;
}

#endif
