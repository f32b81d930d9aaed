/*
 * residency.h - what the cache holds, folded from what was published.
 *
 * The fold counts copies: a store adds one for each of its hashes in its
 * scope, a removal takes one away, never below zero. A scope is medium,
 * locality, ownership and group; an absent medium, "" and "GPU" are one, every
 * other value is itself, and absent is a value of its own. Hashes are integers
 * or bytes of any length and never equal across the two.
 *
 * So that others can rebuild the chains, and not only the hashes, the fold
 * also keeps what taught them. A complete store (tokens for each of its hashes,
 * extra keys said, or the GPU, where none means none) teaches each hash that
 * nobody taught before: it becomes the block's origin.
 *
 *     origin of S[5] 7,8,9     parent: block 5
 *       tokens  t7 t8 t9       once for the whole store
 *       blocks   |  |  |
 *                v  v  v
 *     blocks    (7)(8)(9)      copies by scope, parent, number of children
 *
 * A block stays as long as it has copies, or is the parent of one that stays:
 * chains are rebuilt from their start. An origin stays as long as one of its
 * blocks does. So memory follows what is held, at most a store's worth of
 * tokens beyond it. Blocks that nobody taught are counted like all others and
 * have no origin. That a store has tokens as pairs, skips a part of its chain
 * or names another number of extra keys than blocks makes it teach nothing:
 * its place in the chain could not be said again.
 *
 * Limits. Beyond max_blocks blocks with tokens further ones are counted without
 * (lacking); that alone makes a snapshot incomplete, and ends by itself when
 * such blocks left or were taught again. Beyond 16 times as many counts the
 * fold is lost, as it is when memory runs out amid a count, or a batch was
 * missed: it then forgets everything, and knows nothing until everything was
 * cleared.
 *
 * Not taken: chains of tokens shared by prefix (a store's tokens are its own,
 * so nothing has to be cut when a part of it goes).
 *
 * One thread. Nothing recurses, chains are of any length.
 */
#ifndef KVE_PUBLISH_RESIDENCY_H
#define KVE_PUBLISH_RESIDENCY_H

#include "publish/intern.h"

#include <kvevents/codec.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVE_HASH_INTEGER UINT32_MAX
/* Counts that are kept, for each block whose tokens are. */
#define KVE_HARD_LIMIT 16

/* Copies in one scope. */
struct kve_copies {
    uint32_t scope;
    uint32_t count;
};

/* The store that taught some blocks. Its memory is one piece:
 *
 *     word   blocks      n           KVE_NO_ID: not, or no longer, this one's
 *            tokens      n * block_size
 *            extra ends  n           where each block's value ends in extra;
 *                                    none when all are nil
 *            ahead ends  n           the same of lookahead_token_ids; none
 *                                    when it has none
 *            extra, ahead            raw values, one a block */
struct kve_origin {
    struct kve_origin *prev; /* in order of teaching */
    struct kve_origin *next;
    uint32_t scope; /* references of both */
    uint32_t attrs;
    uint32_t n;    /* blocks it has tokens for */
    uint32_t held; /* of them, that have it as their origin */
    uint32_t block_size;
    uint32_t extra_len; /* bytes; 0: nils all of them */
    uint32_t ahead_len; /* bytes; 0: none */
    bool extra_said;    /* extra keys were, if only as nils */
    uint32_t word[];
};

static inline uint32_t *
kve_origin_blocks(struct kve_origin *o)
{
    return o->word;
}

static inline uint32_t *
kve_origin_tokens(struct kve_origin *o)
{
    return o->word + o->n;
}

/* Meaningful with extra_len. */
static inline uint32_t *
kve_origin_extra_ends(struct kve_origin *o)
{
    return kve_origin_tokens(o) + (size_t)o->n * o->block_size;
}

/* Meaningful with ahead_len. */
static inline uint32_t *
kve_origin_ahead_ends(struct kve_origin *o)
{
    return kve_origin_extra_ends(o) + (o->extra_len > 0 ? o->n : 0);
}

static inline uint8_t *
kve_origin_extra(struct kve_origin *o)
{
    return (
        uint8_t *)(kve_origin_ahead_ends(o) + (o->ahead_len > 0 ? o->n : 0));
}

static inline uint8_t *
kve_origin_ahead(struct kve_origin *o)
{
    return kve_origin_extra(o) + o->extra_len;
}

struct kve_block {
    union {
        uint64_t integer;
        uint8_t *bytes;
    } hash;
    struct kve_copies *more;   /* in further scopes */
    struct kve_origin *origin; /* NULL: nobody taught it */
    uint32_t hash_len;         /* KVE_HASH_INTEGER: an integer */
    struct kve_copies first;   /* count 0: no copies at all */
    uint32_t parent;   /* with origin; KVE_NO_ID: the chain starts here */
    uint32_t index;    /* with origin: which of its blocks */
    uint32_t children; /* blocks with an origin whose parent this is */
    uint16_t n_more;
    bool used;  /* false: parent is the next free place */
    bool lacks; /* a limit kept its tokens away */
};

struct kve_residency {
    struct kve_block *blocks;
    uint32_t n_blocks; /* places, free ones too */
    uint32_t cap_blocks;
    uint32_t free; /* the first free place */
    uint32_t used;

    struct kve_slot *slots; /* hash to block */
    uint32_t mask;          /* number of slots - 1; no slots yet when 0 */

    struct kve_origin *origins; /* the first taught */
    struct kve_origin *last_origin;
    struct kve_intern scopes; /* user: attrs that say the kind of its group */
    struct kve_intern attrs;

    uint64_t max_blocks;
    bool clear_all; /* a clear empties all media, not only the GPU */

    uint64_t n_pairs;  /* (block, scope) with copies */
    uint64_t n_tokens; /* blocks that origins have tokens for */
    uint64_t n_lacking;
    bool lost;
    bool no_memory; /* why the last apply lost it: memory, or a limit */
    uint64_t below; /* removals of what was not there */

    uint32_t *ids; /* scratch: the blocks of one event */
    size_t cap_ids;
    struct kve_buffer text; /* scratch: a string to be interned */
};

/* Empty, from zeros; max_blocks at least 1. */
void kve_residency_init(
    struct kve_residency *r, uint64_t max_blocks, bool clear_all);

/* Free everything; it is empty then. */
void kve_residency_release(struct kve_residency *r);

/*
 * Fold the events of a batch that was decoded with status. What could not be
 * read of it, and was not followed by a clear of everything, loses the fold.
 *
 * Returns false when this batch lost it.
 */
bool kve_residency_apply(
    struct kve_residency *r, kve_batch *batch, kve_status status);

/* A batch was missed: forget everything and know nothing. */
void kve_residency_lose(struct kve_residency *r);

/* Whether everything is known that a snapshot says. */
static inline bool
kve_residency_complete(const struct kve_residency *r)
{
    return !r->lost && r->n_lacking == 0;
}

/* Bytes of our own memory that it holds, roughly. For reports. */
size_t kve_residency_memory(const struct kve_residency *r);

/* ---- for who writes it down ---- */

/* Copies of a block in a scope. */
uint32_t kve_residency_count(const struct kve_block *block, uint32_t scope);

/* The hash as it travels; borrowed from the block. */
struct kve_hash kve_block_hash(const struct kve_block *block);

/* Fill in the medium, locality, ownership and group of a scope; the medium of
 * the GPU is said. Borrowed. */
void kve_residency_scope(
    const struct kve_residency *r, uint32_t scope, struct kve_event *ev);

/* Fill in adapter, kind, window and salt. Borrowed. */
void kve_residency_attrs(
    const struct kve_residency *r, uint32_t attrs, struct kve_event *ev);

/* The GPU's scope of scope's group, with a reference; KVE_NO_ID when memory is
 * short. */
uint32_t kve_residency_gpu_scope(struct kve_residency *r, uint32_t scope);
void kve_residency_scope_unref(struct kve_residency *r, uint32_t scope);

#endif
