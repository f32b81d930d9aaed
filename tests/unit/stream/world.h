/*
 * world.h - a tiny world around one machine, for schedules of single inputs.
 *
 *     publisher ---- live link ----> queue ----> machine ---> reader
 *     lives, numbers,   |                         |   ^       a visible copy,
 *     a buffer of a     cuts, losses              |   |       a hidden twin
 *     few batches                                 |   |
 *         |---- answers: whole, in part, with holes, failing, silent
 *         '---- snapshots: whole, in part, of a moment ago, none
 *
 * A schedule is a word over the alphabet below. Each letter is something that
 * can really happen, and the world knows whether it can happen now: only what
 * was published is delivered, a live stream keeps its order, what was sent can
 * still be read after its sender is gone, and a restart breaks connections.
 *
 * The reader is a literal model, apart from the machine's ideas: a copy is the
 * set of batches that were applied to it, as (life, number). After each letter
 *
 *   1  a source that says live shows exactly batches 0..n of one life, n being
 *      the number it reports, without those before the last clear of that
 *      life. A batch that could not be read is missing from a copy, so that a
 *      loss of any kind ends this equality until a clear, a restart or a
 *      snapshot makes the copy whole
 *   2  ... and that life is not one which was over when this connection began
 *   3  each copy gets each number once and in order, and one is skipped only
 *      together with a LOST notice for exactly that range; a twin that is
 *      swapped in is not older than what it replaces
 *   4  an input brings few actions, a timer moves on, and answers to requests
 *      that are over bring nothing
 *   5  the hold buffer keeps its limits
 *   6  where the machine says that the reader stands is where it stands, after
 *      each action; and what is wrong with its copy is said or in doubt
 *
 * and when a schedule has ended a quiet time follows, in which nothing goes
 * wrong any more: the machine comes to rest after few requests, and live where
 * a snapshot is to be had, or where the publisher kept everything and no answer
 * went wrong; it follows what is published then, and is live after a clear, or
 * after a restart where a clear leaves tiers that it does not empty.
 *
 * What no subscriber can know is left out, and only that:
 *   - with neither ids nor replay: a publisher that restarts while we are away
 *     and is heard again with exactly the number that we expect;
 *   - without replay, when messages of the lost connection are read after the
 *     new one stands, rule 2: nothing tells a leftover from news; and the same
 *     where answers have been empty so often that the endpoint is taken for one
 *     that keeps nothing;
 *   - without ids, after a lost connection, that a snapshot with a lower number
 *     is of the same life and only late;
 *   - messages that wait to be read for as long as a tail probe waits: the
 *     timer comes only when the queue is empty;
 *   - a reset message that is lost, and the batch after it.
 */
#ifndef KVE_TEST_WORLD_H
#define KVE_TEST_WORLD_H

#include <kvevents/subscriber.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The alphabet: name, letter, what it is. */
#define LETTER_MAP(X)                                                     \
    X(PUBLISH, 'P', "a batch is published and read at once")              \
    X(WAITS, 'Q', "a batch is published and waits to be read")            \
    X(LOST, 'p', "a batch is published and lost on the live link")        \
    X(READ, 'D', "the oldest waiting message is read")                    \
    X(AGAIN, 'J', "the last live message comes again")                    \
    X(CONNECT, 'C', "the connection stands")                              \
    X(CUT, 'K', "the connection is lost")                                 \
    X(RESTART, 'r', "the publisher restarts, with nothing published")     \
    X(RESTART_SAME, 'e', "... and has come to the same number, unseen")   \
    X(RESTART_ABOVE, 'R', "... and has come to a higher number, unseen")  \
    X(ANSWER_ONE, 'a', "one batch of the replay's answer comes")          \
    X(ANSWER, 'W', "the (rest of the) answer and its end come")           \
    X(ANSWER_HOLED, 'h', "the answer comes without one of its batches")   \
    X(FAIL, 'F', "the replay fails")                                      \
    X(TIMER, 'T', "time passes up to the next deadline")                  \
    X(HOLE, 'H', "the publisher uses up a number without a batch")        \
    X(UNREADABLE, 'U', "a batch whose store cannot be read is published") \
    X(CLEAR, 'Z', "a batch that clears everything is published")          \
    X(RESET, 'X', "a reset message, and batch 0 after it")                \
    X(RESET_1, 'Y', "a reset message, and batch 1 after it")              \
    X(HEARTBEAT, 'B', "an empty batch is published")                      \
    X(SNAPSHOT, 'S', "the (rest of the) snapshot comes")                  \
    X(SNAPSHOT_PART, 's', "the first part of the snapshot comes")         \
    X(SNAPSHOT_OLD, 'L', "a snapshot comes that lacks the newest batch")  \
    X(SNAPSHOT_NONE, 'N', "the answer: no snapshot is to be had")         \
    X(SNAPSHOT_FAIL, 'G', "the snapshot fails")                           \
    X(SAVE, 'V', "the reader saves its copy, and where it stands")        \
    X(RESUME, 'M', "the reader starts anew, and goes on from there")

enum letter {
#define X(name, letter, text) LETTER_##name,
    LETTER_MAP(X)
#undef X
        N_LETTERS
};

struct config {
    const char *name;
    bool replay;
    bool snapshot;
    bool ids;
    bool rebuild;
    uint8_t cap;        /* batches that the publisher keeps for replay */
    uint8_t hold_items; /* batches that the machine may hold */
};

#define MAX_LIVES 16
#define MAX_NUMBER 60
#define MAX_QUEUE 6
#define MAX_CAP 8
#define MAX_EMPTY 10

/* Everything is bytes, so that a world can be copied and hashed. */
struct item {
    uint8_t life;
    uint8_t number;
    uint8_t reset;
    uint8_t old; /* of the connection before */
};

struct life {
    uint64_t holes;
    uint64_t clears;
    uint64_t unreadable;
    uint64_t empty;
    uint8_t base;
    uint8_t next;
    uint8_t spare[6];
};

/* What a reader has of the source. */
struct copy {
    uint64_t set; /* numbers applied since the last clear */
    uint8_t life;
    uint8_t next;
    uint8_t last;
    bool has; /* anything was applied since it was begun */
    bool mixed;
    bool excused; /* nobody could have known better */
    bool one;     /* 1 may come first */
    bool spare;
};

struct answer {
    uint32_t ask; /* 0: none */
    uint8_t from;
    uint8_t served;
    uint8_t n;
    uint8_t at;
    struct item items[MAX_CAP];
};

struct snapshot {
    uint32_t ask; /* 0: none */
    uint8_t served;
    uint8_t life;
    int8_t number;
    uint8_t spare;
};

/* What the reader's next process will find. */
struct saved {
    struct kve_position position;
    struct copy copy;
    bool faults;
    uint8_t spare[7];
};

struct world {
    int64_t now;
    const char *broken; /* the rule that was broken first, or NULL */
    struct life lives[MAX_LIVES];
    struct item buffer[MAX_CAP];
    struct item queue[MAX_QUEUE];
    struct item last_read;
    struct answer answer;
    struct snapshot snapshot;
    struct copy visible;
    struct copy twin;
    struct saved saved;
    uint32_t state;
    uint8_t life;
    uint8_t link_life;
    uint8_t n_buffer;
    uint8_t n_queue;
    bool up;
    bool can_repeat; /* last_read may come again */
    bool building;
    bool heartbeats;
    bool leftovers; /* were read since the connection stands */
    bool faults;    /* an answer went wrong, or proved nothing, since a CLEAR */
    bool unbroken;  /* the connection, since a batch was applied */
    bool kept;      /* an answer had batches, ever */
    uint8_t empty;  /* answers in a row that had none, up to MAX_EMPTY */
    uint8_t spare[3];
};

/* Begin a world: a fresh machine, nothing published. The trace goes to out,
 * which may be NULL. */
void world_begin(struct world *w, const struct config *config, FILE *trace_to);

bool world_possible(const struct world *w, enum letter letter);
void world_step(struct world *w, enum letter letter);

/* The quiet time after a schedule: all that is on its way comes; then a few
 * more batches, and the machine is destroyed. */
void world_quiet(struct world *w);
void world_end(struct world *w);

/* World and machine as one value; world_hash() comes before world_save(). */
struct world_point;
struct world_point *world_point_create(void);
void world_point_destroy(struct world_point *point);
void world_save(const struct world *w, struct world_point *point);
void world_load(struct world *w, const struct world_point *point);
uint64_t world_hash(const struct world *w);

char letter_char(enum letter letter);
const char *letter_text(enum letter letter);
/* N_LETTERS: there is no such letter. */
enum letter letter_of(char c);

#endif
