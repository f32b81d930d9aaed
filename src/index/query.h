/*
 * query.h - what the readers' files share.
 *
 *     reader.c      the reader, its scratch memory, hashes of a prompt
 *     walk.h        one step down: the child of a run, how much of it matches
 *     query.c       the public call; instances that are simple; the answer
 *     query_long.c  all others, and whoever changed while it was read
 *     query_groups.c  of these, who holds blocks in groups
 *     explain.c     why a match ends where it does
 *     lookup.c      by engine hashes: chains and single blocks
 *
 * A row is what an instance held at one moment. How that is known:
 *
 *     stamp (acquire, even) | whatever is read of it (acquire) | stamp again
 *
 * The stamp is stored odd (relaxed) before anything of the instance changes,
 * and what changes is stored with release. So a reader that saw any of it sees
 * another stamp at the end; and a reader that read the stamp sees everything
 * that was stored before it. No fences: each order follows from one acquire
 * and one release of the same word.
 *
 * Objects that were replaced are the trap: an object that a reader got before
 * it read a stamp may be an old copy, which later changes do not reach. So
 * pointers are fetched after the stamp; where an instance is met in an object
 * that came first, the object is compared with the directory after the stamp
 * was read, and so is its length (both loads come after the stamp's). An
 * object that is replaced later keeps what the instance held when it was
 * replaced, which is what it held all the time if its stamp stays.
 *
 * Structure that changes without anybody's residency (cuts and joins) needs no
 * stamp and does not stop a reader: the writer orders its stores so that each
 * state between two of them can be walked. The rest is in walk.h.
 *
 * Who is nowhere to be found has no stamp that could be read. So that he held
 * nothing at one moment is known by space.gone, which tells of lives that were
 * exchanged and of records that were dropped during the walk.
 */
#ifndef KVE_INDEX_QUERY_H
#define KVE_INDEX_QUERY_H

#include "index/run.h"

/* For tests: somebody else's turn, between two loads whose order matters. */
#ifdef KVE_TESTING
extern void (*kve_reader_turn)(void);
#define KVE_READER_TURN()            \
    do {                             \
        if (kve_reader_turn != NULL) \
            kve_reader_turn();       \
    } while (0)
#else
#define KVE_READER_TURN() ((void)0)
#endif

/* How often something is read again before it is said to move. */
#define KVE_TRIES 8
/* How often a walk begins again because a run on its way became another one,
 * or somebody was put elsewhere. Each time some writer has done that; if it
 * was not enough, everybody is looked at alone. */
#define KVE_WALKS 32

/* ---- scratch ---- */

/* Content hashes of the prompt's blocks of one size, from one token on. */
struct kve_stream {
    uint32_t size;
    uint32_t start;        /* token */
    size_t total;          /* blocks the prompt has from there on */
    size_t n;              /* of them, hashed so far */
    const uint64_t *given; /* by the caller; NULL: hashes is ours */
    uint64_t *hashes;
    size_t cap;
};

static inline const uint64_t *
kve_stream_hashes(const struct kve_stream *stream)
{
    return stream->given != NULL ? stream->given : stream->hashes;
}

#define KVE_ROW_LONG 1u    /* takes the long way */
#define KVE_ROW_SETTLED 2u /* its numbers are those of one moment */
#define KVE_ROW_SEEN 4u    /* its numbers were computed at least once */
#define KVE_ROW_SHAKY 8u   /* flagged KVE_ROW_MOVING in the answer */

/* No hit; no step. */
#define KVE_NONE UINT32_MAX

/* An instance that was met. */
struct kve_row {
    struct kve_slot *slot;
    uint64_t handle;
    uint32_t stamp;
    uint32_t flags;
    uint32_t rec;    /* its record in the first run, where it is simple */
    uint32_t scope;  /* whose record that is */
    uint32_t number; /* of the slot */
    uint32_t blocks; /* that match, where it is simple */
    uint32_t first_hit;
    uint32_t last_hit;
    uint32_t numbers; /* place in the reader's numbers, where it is long */
    uint32_t pad[3];  /* 64 bytes: rows are found by a shift */
};

/* Numbers of a row that takes the long way. */
struct kve_numbers {
    uint32_t alone[KVE_TIERS];
    uint32_t upto[KVE_TIERS];
};

/* Blocks of a run that lie on the way. */
struct kve_step {
    const struct kve_run *run;
    uint32_t up;     /* the step before it, or KVE_NONE */
    uint32_t start;  /* token (by engine hashes: number of the hash) */
    uint32_t pos;    /* first block within the run */
    uint32_t n;      /* blocks that match */
    uint32_t size;   /* tokens a block */
    uint32_t vec;    /* by engine hashes: the vector they name */
    uint32_t stream; /* by tokens: the stream, and the place in it */
    uint32_t at;
    bool whole; /* all of the run matches */
    bool mixed; /* by engine hashes: found by another form */
};

/* A record of a row in a run on the way. */
struct kve_hit {
    uint32_t step;
    uint32_t rec;
    uint32_t scope; /* the record's, when it was met */
    uint32_t next;
    uint16_t group;
    uint8_t tier;
};

/* A group of the instance that is computed, as its stores left it. */
struct kve_need {
    uint32_t need; /* enum kve_group_need */
    uint32_t group;
    uint64_t size;
    uint64_t window;
    uint64_t *ends; /* bit i: a block ends at (i + 1) x unit */
};

struct kve_mark {
    uint32_t gen;
    uint32_t row;
};

/* A life with names of its own; the first in the list stands for the names
 * that all share. */
struct kve_private {
    uint32_t owner; /* 0: shared */
    uint32_t step;  /* its last one */
    uint32_t mixed; /* its last one by another form */
};

/* A block that somebody means by a hash. */
struct kve_found {
    struct kve_place place;
    uint32_t private; /* who; a number in the reader's list */
    bool mixed;       /* by another form of the hash */
};

struct kve_index_reader {
    kve_index *index;
    struct kve_epoch_slot *epoch;
    uint64_t charged;
    uint32_t gen; /* of marks and wanted: no clearing */

    struct kve_mark *marks; /* by slot */
    size_t cap_marks;
    struct kve_mark *wanted; /* by slot: generation of the handle asked for */
    size_t cap_wanted;
    struct kve_row *rows;
    size_t n_rows;
    size_t cap_rows;
    struct kve_numbers *numbers;
    size_t n_numbers;
    size_t cap_numbers;
    struct kve_step *steps;
    size_t n_steps;
    size_t cap_steps;
    struct kve_hit *hits;
    size_t n_hits;
    size_t cap_hits;
    struct kve_stream *streams;
    size_t n_streams; /* of this query; those behind keep their room */
    size_t cap_streams;
    struct kve_private *privates;
    size_t n_privates;
    size_t cap_privates;
    struct kve_found *found;
    size_t n_found;
    size_t cap_found;
    struct kve_need *needs;
    size_t cap_needs;
    uint64_t *words; /* bitmaps */
    size_t cap_words;
    uint8_t *reached; /* by step */
    size_t cap_reached;
    uint64_t *order; /* rows of the answer: length << 32 | row */
    size_t cap_order;
    struct kve_content_scratch content;
    size_t content_charged;
};

/* Room for n items in an array of the reader's; false: no memory, or the
 * index's limit. New items are not cleared. */
bool kve_reader_grow(
    kve_index_reader *reader, void *array, size_t *cap, size_t n, size_t size);

/* The same where there may be room already. */
#define KVE_ROOM(reader, array, cap, n)                                  \
    ((n) <= (reader)->cap ||                                             \
        kve_reader_grow((reader), &(reader)->array, &(reader)->cap, (n), \
            sizeof(*(reader)->array)))

/* A query begins: forget the rows. false: no memory. */
bool kve_reader_begin(kve_index_reader *reader);

/* ---- one question ---- */

enum kve_ask_kind {
    KVE_ASK_TOKENS = 0,
    KVE_ASK_CONTENTS = 1,
    KVE_ASK_DYNAMO = 2,
    KVE_ASK_HASHES = 3
};

struct kve_ask {
    kve_index_reader *reader;
    kve_index *index;
    struct kve_space *space;
    const struct kve_index_query *query;
    enum kve_ask_kind kind;
    uint32_t limit;              /* no match ends behind this token */
    uint32_t block_size;         /* of contents and the like; 0: not said */
    const struct kve_root *root; /* NULL: there is none */
    const uint8_t *order;        /* of tiers */
    size_t n_order;
    bool picky;    /* only some instances are asked for */
    bool thorough; /* by engine hashes: all of them, not only up to the first
                      one that nobody means */
    /* Of the rows, when they were found. */
    uint32_t size;   /* tokens a block, of simple ones */
    size_t n_listed; /* in the reader's order */
    bool in_order;   /* the longest first */
    bool plain;      /* none has a flag */
};

/* What a walk came to. */
enum kve_walk {
    KVE_WALK_DONE = 0,
    KVE_WALK_AGAIN = 1, /* structure changed under it */
    KVE_WALK_LONG = 2,  /* not for the quick way */
    KVE_WALK_NOMEM = 3,
    KVE_WALK_SIZES = 4 /* block_size was not said, and there are several */
};

/* The stream of this size from this token on, made when it is new; KVE_NONE:
 * no memory. *ret_at is the place of the token in it. */
uint32_t kve_ask_stream(
    struct kve_ask *ask, uint32_t size, uint32_t start, uint32_t *ret_at);
/* Hash blocks up to n (at most total) and some more. false: no memory. */
bool kve_stream_fill(struct kve_ask *ask, struct kve_stream *stream, size_t n);

static inline bool
kve_stream_need(struct kve_ask *ask, struct kve_stream *stream, size_t n)
{
    return stream->n >= n || kve_stream_fill(ask, stream, n);
}

/* The row of a slot. Not met before: made where make is set and somebody asks
 * for it, with these flags. NULL: none, with *ret_nomem set when that is why.
 */
struct kve_row *kve_ask_row(struct kve_ask *ask, uint64_t view, bool make,
    uint32_t flags, bool *ret_nomem);

/* Note for all rows of which slots they are (kve_row_met()); for the quick
 * way, which makes rows without. false: no memory. */
bool kve_mark_rows(kve_index_reader *reader);

/* Note whom the question is about. false: no memory. */
bool kve_ask_want(struct kve_ask *ask);

/* The row of a slot that was met, or NULL. */
static inline struct kve_row *
kve_row_met(const kve_index_reader *reader, uint32_t slot)
{
    const struct kve_mark *mark;

    if (slot >= reader->cap_marks)
        return NULL;
    mark = &reader->marks[slot];
    return mark->gen == reader->gen ? &reader->rows[mark->row] : NULL;
}

static inline uint32_t
kve_stamp_read(const struct kve_slot *slot)
{
    return atomic_load_explicit(&slot->stamp, memory_order_acquire);
}

/* After reads with acquire: nothing of the instance changed since. */
static inline bool
kve_stamp_stays(const struct kve_slot *slot, uint32_t stamp)
{
    return (stamp & 1) == 0 &&
        atomic_load_explicit(&slot->stamp, memory_order_relaxed) == stamp;
}

/*
 * Who was found nowhere held nothing: that is so when nobody was put elsewhere
 * while it was looked for.
 */
static inline uint32_t
kve_gone_read(const struct kve_space *space)
{
    return atomic_load_explicit(&space->gone, memory_order_acquire);
}

static inline bool
kve_gone_stays(const struct kve_space *space, uint32_t gone)
{
    return (gone & 1) == 0 &&
        atomic_load_explicit(&space->gone, memory_order_relaxed) == gone;
}

/* A writer is in the middle of something short: let it finish. try counts
 * from 0. */
void kve_reader_pause(unsigned try);

/* The sizes that chains begin with at a root, and those there are at all;
 * writes at most KVE_SPACE_SIZES, returns how many. */
size_t kve_root_sizes(const struct kve_space *space,
    const struct kve_root *root, uint32_t *sizes);
size_t kve_space_sizes(const struct kve_space *space, uint32_t *sizes);

/* Take a question that was checked for struct_size. KVE_OK, KVE_E_INVAL or
 * KVE_E_NOT_FOUND; and the same of what a walk came to, else KVE_E_NOMEM. */
kve_status kve_query_begin(kve_index_reader *reader,
    const struct kve_index_query *query, struct kve_ask *ask,
    struct kve_error *err);
kve_status kve_query_status(
    const struct kve_ask *ask, enum kve_walk walk, struct kve_error *err);

/* No match ends behind this token, where blocks have this size (tokens: 1). */
uint32_t kve_query_limit(const struct kve_ask *ask, uint32_t size);

/* The question's root, block size and limit. KVE_WALK_SIZES: the size has to
 * be said. Where nobody can hold anything of it root is NULL, or block_size
 * is 0 (not of tokens). */
enum kve_walk kve_query_frame(struct kve_ask *ask);

/* Settle all rows with KVE_ROW_LONG that are not settled. discover: there are
 * no rows yet, find them first. */
enum kve_walk kve_long(struct kve_ask *ask, bool discover);

/* Steps and hits of the rows that there are; make: of all, which are made.
 * Each step comes before those behind it. */
enum kve_walk kve_gather(struct kve_ask *ask, bool make);

/* By engine hashes: steps and hits of the rows that are not settled; numbers
 * of one row. */
enum kve_walk kve_hashes_gather(struct kve_ask *ask, bool discover);
enum kve_walk kve_hashes_numbers(
    struct kve_ask *ask, struct kve_row *row, struct kve_numbers *numbers);

/* The last hash, counted from 1, that the row holds whose numbers were computed
 * last; 0: none. */
uint32_t kve_hashes_last(const struct kve_ask *ask, uint32_t tiers);

/* The walk was never the same to its end: whoever there is goes the long way,
 * in which each row is flagged that can not be settled. false: no memory. */
bool kve_ask_everybody(struct kve_ask *ask);

/* Make hits of the records of a step. */
enum kve_walk kve_step_hits(struct kve_ask *ask, uint32_t step, bool make);

/* Numbers by set of tiers: alone and upto of a row from fn(sets of tiers). */
typedef enum kve_walk (*kve_number_fn)(struct kve_ask *ask, struct kve_row *row,
    uint32_t tiers, uint32_t *ret_tokens);
enum kve_walk kve_row_numbers(struct kve_ask *ask, struct kve_row *row,
    kve_number_fn fn, struct kve_numbers *numbers);

/* The largest of them. */
uint32_t kve_numbers_longest(const struct kve_numbers *numbers);

/* How a row is computed from its hits: with groups, or without. */
kve_number_fn kve_number_fn_of(const struct kve_row *row);
enum kve_walk kve_number_plain(struct kve_ask *ask, struct kve_row *row,
    uint32_t tiers, uint32_t *ret_tokens);

/* What a row holds in some tiers, group by group, as bits. */
struct kve_hunt {
    struct kve_ask *ask;
    struct kve_need *needs; /* of the groups that count */
    uint32_t n_needs;
    uint32_t unit; /* tokens a bit */
    size_t words;  /* a bitmap */
    uint32_t last; /* token behind the last block on the way */
    uint64_t *any; /* where anything that is held ends */
    uint64_t *bridges;
};

/* *ret_step: between ends that suit the sizes of all groups; 0: no end within
 * the prompt does, and there are no bits. */
enum kve_walk kve_hunt_begin(struct kve_hunt *h, struct kve_ask *ask,
    const struct kve_row *row, uint32_t tiers, uint64_t *ret_step);
/* Up to end, or the last one of its own blocks before it, that a group which
 * needs everything has; 0: it needs less, or has nothing. A multiple of step.
 */
uint64_t kve_hunt_full(const struct kve_hunt *h, const struct kve_need *need,
    uint64_t end, uint64_t step);
/* Has the group what it needs for this end? */
bool kve_hunt_enough(
    const struct kve_hunt *h, const struct kve_need *need, uint64_t end);

/*
 * Which of blocks 64w..64w+63 a record of this scope holds. A record that holds
 * nothing any more becomes another scope's without a stamp: so whose it is is
 * looked at again, after the last word of it was read.
 */
static inline uint64_t
kve_rec_word(
    const struct kve_run *run, uint32_t rec, uint32_t scope, uint32_t w)
{
    uint64_t hot = atomic_load_explicit(&run->hot[rec], memory_order_acquire);
    uint32_t lead = KVE_HOT_LEAD(hot);
    const struct kve_aux *aux;
    uint64_t word;

    KVE_READER_TURN();
    if (KVE_HOT_SCOPE(hot) != scope)
        return 0;
    if (lead >= 64 * (w + 1))
        return UINT64_MAX;
    word = lead > 64 * w ? (UINT64_C(1) << (lead - 64 * w)) - 1 : 0;
    aux =
        atomic_load_explicit(&kve_run_recs(run)[rec].aux, memory_order_acquire);
    if (aux == NULL || 64 * w >= aux->n)
        return word;
    word |= atomic_load_explicit(&aux->bits[w], memory_order_acquire);
    KVE_READER_TURN();
    hot = atomic_load_explicit(&run->hot[rec], memory_order_relaxed);
    return KVE_HOT_SCOPE(hot) == scope ? word : 0;
}

#endif
