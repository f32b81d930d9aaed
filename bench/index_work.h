/*
 * index_work.h - the workload of the index benchmarks.
 *
 * The one both peers run, key for key, so that figures can be laid beside
 * theirs: 8 workers with 2,000 sequences of 128 blocks each. The first 64
 * blocks of a sequence are one of 100 prompts that all workers share, the rest
 * is its own. Events carry 16 blocks. Other numbers of workers and sequences
 * make the same work larger or smaller.
 *
 *     for each sequence, for each worker, 8 events: store
 *     for each sequence, for each worker, 4 events: remove the own blocks,
 *                                                   the deepest first
 *     for each worker, for each prompt,   4 events: remove the shared blocks
 *
 * Each event is one call of kve_index_apply(), because the peers take one
 * event at a time. What an event points to is made before a clock starts.
 */
#ifndef BENCH_INDEX_WORK_H
#define BENCH_INDEX_WORK_H

#include <kvevents/index.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WORK_PROMPTS 100
#define WORK_SHARED 64      /* blocks of a prompt */
#define WORK_BLOCKS 128     /* of a sequence */
#define WORK_EVENT 16       /* blocks an event */
#define WORK_TOKENS 16      /* a block */
#define WORK_LONG 32        /* bytes of a long hash */
#define WORK_ANY UINT64_MAX /* to work_expect(): do not look */

struct work_shape {
    uint32_t n_workers;
    uint32_t n_sequences; /* of each worker */
    bool long_hashes;     /* 32 bytes in place of integers */
    bool with_tokens;     /* stores carry tokens and not content hashes */
    uint32_t counting;    /* enum kve_counting */
};

/* An index with a shape's workers in it. */
struct work {
    struct work_shape shape;
    kve_index *index;
    kve_namespace ns;
    kve_instance *instances;
    uint32_t *times; /* by worker and prompt: sequences that begin with it */
    /* The events that every call uses again, as a decoder does. */
    struct kve_event stored;
    struct kve_event removed;
    struct kve_batch_view store_view;
    struct kve_batch_view remove_view;
};

/* A reader, its question, and room for the answer. */
struct work_reader {
    kve_index_reader *reader;
    struct kve_index_query query;
    struct kve_index_answer answer;
};

/* Blocks one after another, as events name them. */
struct work_blocks {
    size_t n; /* room */
    struct kve_hash *hashes;
    uint8_t *bytes;     /* of long hashes, else NULL */
    uint64_t *contents; /* NULL for removals, or where there are tokens */
    uint32_t *tokens;   /* or NULL */
};

/* Print what went wrong and exit. */
void work_die(const char *what, const char *why);
/* block, unless it is NULL. */
void *work_must(void *block);
uint64_t work_mix(uint64_t x);

/* ---- keys: what a block is ---- */

uint32_t work_prompt(uint64_t worker, uint64_t sequence);
/* Block i of a sequence, shared or own. */
uint64_t work_key(uint64_t worker, uint64_t sequence, uint64_t i);
uint64_t work_shared_key(uint64_t prompt, uint64_t i);
uint64_t work_content(uint64_t key);

/* ---- blocks ---- */

void work_blocks_init(struct work_blocks *blocks,
    const struct work_shape *shape, size_t n, bool for_stores);
void work_blocks_release(struct work_blocks *blocks);
void work_blocks_set(struct work_blocks *blocks, size_t at, uint64_t key);

/* Sequences first..first+n-1 of all workers, to be stored. */
void work_fill_stores(struct work_blocks *blocks,
    const struct work_shape *shape, uint64_t first, size_t n);
/* The same sequences' blocks from `from` on, the deepest first. */
void work_fill_removals(struct work_blocks *blocks,
    const struct work_shape *shape, uint64_t first, size_t n, size_t from);
/* The prompts' blocks, the deepest first. */
void work_fill_prompts(struct work_blocks *blocks);

/* ---- the index ---- */

void work_open(struct work *work, const struct work_shape *shape);
void work_close(struct work *work);

/* One call: n blocks at a place, behind the block before it or at a root. */
void work_store(struct work *work, uint32_t worker,
    const struct work_blocks *blocks, size_t at, size_t n, bool at_root);
void work_remove(struct work *work, uint32_t worker,
    const struct work_blocks *blocks, size_t at, size_t n);

/* The events of n sequences a worker that lie in blocks. */
void work_store_all(
    struct work *work, const struct work_blocks *blocks, size_t n);
/* per_sequence blocks of each. */
void work_remove_all(struct work *work, const struct work_blocks *blocks,
    size_t n, size_t per_sequence);
/* Every worker's prompts: once, or where copies count as often as they were
 * stored. Returns the number of blocks in those events. */
size_t work_remove_prompts(struct work *work, const struct work_blocks *blocks);

/* Let the index give back what it can. */
void work_settle(struct work *work);
struct kve_index_stats work_stats(const struct work *work);
/* Exit unless that many are held, of so many blocks. */
void work_expect(const struct work *work, uint64_t entries, uint64_t blocks);
/* (worker, block) pairs of the whole workload. */
uint64_t work_entries(const struct work *work);

/* ---- questions ---- */

/* What a question should find. */
struct work_question {
    uint32_t prompt;
    uint32_t whole; /* worker that holds all of it; n_workers: none */
};

/* Question q of a kind: a known prompt and then blocks nobody has (miss), or a
 * sequence that one worker holds (hit). Keys of its 128 blocks. */
struct work_question work_ask(
    const struct work_shape *shape, uint64_t q, bool hit, uint64_t *keys);
void work_reader_open(struct work_reader *reader, const struct work *work);
void work_reader_close(struct work_reader *reader);
/* Ask for the WORK_BLOCKS blocks of contents. */
void work_query(struct work_reader *reader, const uint64_t *contents);
/* Exit unless the answer is exact; returns rows flagged as moving, which may
 * say less. */
size_t work_check(const struct work *work, struct work_question question,
    const struct kve_index_answer *answer);

/* ---- clocks and figures ---- */

double work_cpu_ns(void);    /* of the process */
double work_thread_ns(void); /* CPU time of the thread */
double work_wall_ns(void);
/* What two looks at a clock take by themselves. */
double work_timer_cost(double (*clock_ns)(void));
uint32_t work_token(uint64_t key, uint32_t j);
/* Resident memory of the process, bytes. */
double work_resident(void);
void work_print(const char *figure, const char *unit, double value);
int work_by_float(const void *a, const void *b);

#endif
