/*
 * batch.h - what a kve_batch is inside, and what reads into it.
 *
 *   kve_batch_decode()            decode.c         the batch around the events
 *     kve_read_usual()            usual.h          the usual event, in pieces
 *     kve_decode_map / _array()   decode_*.c       one event, key by key
 *       kve_get_hashes() ...      value.h, value.c values of one field
 *         kve_skip() ...          cursor.h         msgpack
 *
 * Events lie in one array, which may move while a batch is decoded; all they
 * point to lies in the arena or in the payload and does not move.
 */
#ifndef KVE_WIRE_BATCH_H
#define KVE_WIRE_BATCH_H

#include "wire/arena.h"
#include "wire/cursor.h"

/* Unknown fields kept raw: of one event, and of one batch. */
#define KVE_UNKNOWN_PER_EVENT 64
#define KVE_UNKNOWN_PER_BATCH 65536

struct kve_batch {
    struct kve_event *events; /* info.n_events of them are filled */
    size_t cap_events;
    size_t n_blank; /* first slots that usual.h need not clear */
    size_t next;    /* kve_batch_next() */
    struct kve_batch_info info;

    struct kve_fault *faults;
    size_t n_faults; /* kept */
    size_t cap_faults;

    size_t max_tokens;
    size_t max_hashes;
    size_t max_events;
    size_t max_faults;

    struct kve_arena arena;
};

/*
 * One call of kve_batch_decode(). Counters are not neighbours on purpose:
 * compilers load neighbours as one piece, which waits for the two stores
 * before it to leave the core; that took a tenth of a small batch's time.
 */
struct kve_decoder {
    struct kve_reader r;
    struct kve_batch *batch;
    size_t n_tokens; /* kept so far, skipped ones of events included */

    /* Of the event in hand. */
    const uint8_t *start;
    size_t n_hashes; /* kept so far, of all events */
    struct kve_str tag;
    size_t n_unknown; /* kept so far, of all events */
    bool has_hashes;
    uint32_t given;   /* fields that were there and not nil, as bits */
    uint32_t aliased; /* those of them that came under an old name */
    size_t n_fields;
    struct kve_unknown fields[KVE_UNKNOWN_PER_EVENT]; /* unknown ones */

    /* A list of tokens that usual.h has read of an event that is not usual
     * behind it. */
    const uint8_t *known_list;
    const uint8_t *known_end;
    const uint32_t *known_tokens;
    uint8_t *arena_at; /* where the arena was before that event */

    /* Of events delivered. */
    size_t sum_tokens;
    uint32_t notes;
    size_t sum_hashes;
};

/*
 * Fill with zeros; size is known where this is compiled, and is whole pairs.
 * Clearing 100 or 400 bytes by a call or by "rep stos", which compilers choose
 * for it, takes as long as reading a small event; plain stores do not.
 */
KVE_INLINE void
kve_zero(void *block, size_t size)
{
    typedef uint64_t pair
        __attribute__((vector_size(16), aligned(8), may_alias));
    pair *at = block;

#pragma GCC unroll 32
    for (size_t i = 0; i < size / sizeof(pair); i++)
        at[i] = (pair){ 0, 0 };
}

_Static_assert(sizeof(struct kve_event) % 16 == 0, "whole pairs");
_Static_assert(sizeof(struct kve_batch_info) % 16 == 0, "whole pairs");

/* kve_batch_clear(), out of a call. */
KVE_INLINE void
kve_batch_empty(kve_batch *batch)
{
    kve_zero(&batch->info, sizeof(batch->info));
    batch->n_faults = 0;
    batch->next = 0;
    kve_arena_reset(&batch->arena);
}

/*
 * Read one event whose header begins at p into *ev, which is all zeros. NULL
 * as cursor.h says; what *ev holds is then of no use.
 */
const uint8_t *kve_decode_map(
    struct kve_decoder *d, const uint8_t *p, struct kve_event *ev);
const uint8_t *kve_decode_array(
    struct kve_decoder *d, const uint8_t *p, struct kve_event *ev);

/* The type a tag names, or 0. Pool publishers' lower-case names included. */
unsigned kve_tag_type(struct kve_str tag);

/*
 * Find the tag of the event at p, which is whole and sound: a string in *ret.
 * Returns 0, or the fault a tag is: NO_TAG, BAD_TAG; *ret_at says where.
 */
uint32_t kve_find_tag(struct kve_reader *r, const uint8_t *p,
    struct kve_str *ret, const uint8_t **ret_at);

#endif
