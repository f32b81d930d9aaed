/*
 * racemodel.h - what an index must say while it changes.
 *
 * Instances with a history: whoever changes one draws a batch, writes down
 * every state the instance goes through, block by block, says how far the
 * batch may get it (reach), applies, and says that it is there (done). Whoever
 * asks looks at done before and at reach afterwards: each row must be one of
 * the states between.
 *
 *     history   s0 s1 s2 | s3 s4 s5 s6 | ...      a batch between two bars
 *     reader      lo = done            hi = reach
 *
 * There are simple instances and such with two tiers, two ways to name blocks,
 * holes, repeated copies, clears and rebuilds; visitors come and go. Blocks
 * form a tree of chains that share beginnings, so runs are cut all the time.
 *
 * An instance is changed by one thread at a time; any number of threads ask.
 */
#ifndef KVE_TESTS_RACEMODEL_H
#define KVE_TESTS_RACEMODEL_H

#include <kvevents/index.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define RACE_INSTANCES 6
#define RACE_PROMPTS 5
#define RACE_LENGTH 16 /* blocks of a prompt */
#define RACE_BLOCKS (RACE_PROMPTS * RACE_LENGTH)
#define RACE_TIERS 2 /* GPU, CPU */

/* Copies of each block on each tier. */
struct race_state {
    uint8_t copies[RACE_TIERS][RACE_BLOCKS];
};

struct race_instance {
    kve_instance id;
    unsigned style; /* how it names blocks */
    bool tiers;     /* has blocks on the CPU, too */
    struct race_state *history;
    _Atomic uint32_t reach;
    _Atomic uint32_t done;
};

struct race {
    kve_index *index;
    kve_namespace ns;
    uint32_t n_states; /* room in a history */
    uint32_t clears;   /* of 100 batches, how many begin with a clear: many
                          keep the tree young, so that it is cut again */
    uint16_t prompts[RACE_PROMPTS][RACE_LENGTH]; /* of blocks */
    struct race_instance instances[RACE_INSTANCES];
    _Atomic uint64_t rows;
    _Atomic uint64_t moving;
    _Atomic uint64_t answers;
    _Atomic bool failed;
    char problem[256]; /* the first one */
};

/* Somebody who draws. */
struct race_dice {
    struct race *race;
    uint64_t random;
    unsigned number; /* of the thread */
};

void race_init(struct race *race, uint32_t n_states);
void race_release(struct race *race);

uint32_t race_draw(struct race_dice *dice, uint32_t below);

/* Change an instance by a batch or a rebuild. false: its history is full. */
bool race_change(struct race_dice *dice, struct race_instance *instance);

/* Ask about a prompt, by contents or by hashes, and check every row. */
void race_ask(struct race_dice *dice, kve_index_reader *reader);

/* Look a block up. */
void race_look(struct race_dice *dice, kve_index_reader *reader);

#endif
