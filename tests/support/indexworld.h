/*
 * indexworld.h - an index and the reference, side by side.
 *
 * A script is a list of lines. Each is given to the real index and to the
 * reference (refindex.h); "?" compares everything that can be asked. The lines
 * of a script that fails are printed, and can be run again as they are.
 *
 *     +A            add an instance; +A set, +A copies say how it counts
 *     -A            drop it
 *     A: EVENTS     a batch for it (eventtext.h)
 *     A%1: EVENTS   a batch that names rank 1
 *     A!: EVENTS    a batch with a publisher id
 *     A': EVENTS    a batch for its twin
 *     A begin, A commit, A abort      the twin
 *     A clear N     forget; N is a set of tiers, 0: all
 *     prompt DIGITS [lora=NAME] [salt=TEXT] [img=NAME:START:N]
 *     hashes B H,H,...    engine hashes to be asked for, blocks of B tokens
 *     tidy          what an idle caller does
 *     reload        another index with the same in it takes this one's place
 *                   (world_copy)
 *     ?             compare
 *
 * A..D are workers of their own, E is rank 1 of A's worker, F a worker of A's
 * name in another namespace.
 *
 * What is compared: rows for each prompt as tokens and as contents, cut at
 * different places, for base and adapters, with and without recompute_last, in
 * several orders of tiers; for each path that the reference knows; by engine
 * hashes; each hash looked up; the dump of each instance and twin; what is
 * known about instances and groups; statistics and counters.
 *
 * With "less" the index may say less than the reference, but never more: when
 * memory was short. Instances with a group that it could not hear of are not
 * asked then: a whole batch was refused, and said so.
 */
#ifndef KVE_TESTS_INDEXWORLD_H
#define KVE_TESTS_INDEXWORLD_H

#include "support/eventtext.h"
#include "support/refindex.h"

#include <kvevents/counters.h>
#include <kvevents/index.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WORLD_LETTERS 6
#define WORLD_PROMPTS 8
#define WORLD_PROMPT 64
#define WORLD_ROWS 16
#define WORLD_HASHES 256
#define WORLD_BLOCKS 1024

struct world_prompt {
    uint32_t tokens[WORLD_PROMPT];
    size_t n;
    char lora[16];
    char salt[16];
    char image[16];
    struct kve_query_extra extra;
    size_t n_extras;
};

/* Engine hashes in a row. */
struct world_hashes {
    struct kve_hash hashes[16];
    size_t n;
    uint32_t block_size;
};

/* The tokens of a block that some store named. */
struct world_block {
    uint64_t content;
    uint32_t block_size;
    uint32_t tokens[8];
};

struct world {
    kve_index *index;
    kve_index_reader *reader;
    struct ref ref;
    kve_namespace ns[2];
    kve_instance ids[WORLD_LETTERS]; /* 0: not there */
    kve_instance twins[WORLD_LETTERS];
    struct world_prompt prompts[WORLD_PROMPTS];
    size_t n_prompts;
    struct world_hashes chains[WORLD_PROMPTS];
    size_t n_chains;
    struct eventtext text;                /* of the batch that is applied */
    struct eventtext names;               /* of hashes that stay */
    struct kve_hash hashes[WORLD_HASHES]; /* all that were named */
    size_t n_hashes;
    struct world_block blocks[WORLD_BLOCKS];
    size_t n_blocks;
    struct kve_index_opts opts;
    bool reloaded;  /* counters began anew: they are not compared */
    bool less;      /* see above */
    bool no_memory; /* an operation failed for want of it */
    unsigned turns; /* comparisons, to vary them */
    char problem[512];
};

struct world_opts {
    uint32_t counting;
    uint32_t clearing;
    bool no_mixed_forms;
    bool less;
    uint64_t max_bytes; /* with less */
};

/* False: no memory (only where allocations are made to fail). */
bool world_init(struct world *w, const struct world_opts *opts);
void world_release(struct world *w);

/* Run one line. False: index and reference differ, problem says how. */
bool world_run(struct world *w, const char *line);

/* How "reload" copies instance a to b, which is empty. At first by a dump that
 * is given back as it comes. */
extern kve_status (*world_copy)(
    kve_index *from, kve_instance a, kve_index *to, kve_instance b);

/* When set, asked with each question whose rows agreed, to compare something
 * else. False: problem says how it differs. */
extern bool (*world_also)(
    struct world *w, const struct kve_index_query *query, const char *what);

/* Compare everything. */
bool world_compare(struct world *w);

/* At the end: drop all instances; nothing may be left of them. Afterwards the
 * world is for world_release() only. */
bool world_empty(struct world *w);

/* The instance of a letter; 0: not there. */
kve_instance world_id(const struct world *w, char letter);

#endif
