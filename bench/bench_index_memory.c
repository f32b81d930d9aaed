/*
 * bench_index_memory.c - resident memory of an index.
 *
 *     bench_index_memory load  set|count integer|bytes RESIDENCIES
 *     bench_index_memory part  set|count blocks|sequences all|rest|alone
 *     bench_index_memory churn set|count CHAINS
 *
 * load: the workload of index_work.h at a size, and what is left when all of
 * it was removed. part: nine tenths of it are removed at random, in random
 * order ("all"); beside it, in a process of its own, what is left is loaded
 * afresh ("rest"). For single blocks, afresh means that each sequence is
 * stored and loses its blocks before the next one comes, so both end with the
 * same blocks behind the same holes; "alone" stores just the blocks that are
 * left, as blocks whose parents nobody knows. churn: CHAINS chains of 16
 * blocks come and go while 1,000 live.
 *
 * One process measures one thing. Memory is what /proc/self/statm says, less
 * what it said before the index was made; room for input is taken and touched
 * before that. One JSON line a figure.
 */
#include "index_work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE 8 /* sequences of each worker made at a time */
#define LIVE_CHAINS 1000
#define KEPT 10 /* one of so many stays */

static double
memory_since(double before)
{
    double now = work_resident();

    return now > before ? now - before : 0;
}

static void
print_memory(const char *figure, double bytes, uint64_t entries)
{
    work_print(figure, "bytes/residency", bytes / (double)entries);
}

/* Room that is resident before memory is looked at. */
static void
touch(struct work_blocks *blocks)
{
    for (size_t i = 0; i < blocks->n; i++)
        work_blocks_set(blocks, i, i);
}

/* ---- load ------------------------------------------------------------- */

static void
run_load(struct work_shape *shape, uint64_t residencies)
{
    size_t own = WORK_BLOCKS - WORK_SHARED;
    uint64_t per_round = (uint64_t)shape->n_workers * own;
    struct work_blocks stores, tails, prompts;
    struct work work;
    double before;
    uint64_t entries;

    shape->n_sequences = (uint32_t)(residencies / per_round) - WORK_PROMPTS;
    work_blocks_init(
        &stores, shape, (size_t)PIECE * shape->n_workers * WORK_BLOCKS, true);
    work_blocks_init(
        &tails, shape, (size_t)PIECE * shape->n_workers * own, false);
    work_blocks_init(
        &prompts, shape, (size_t)WORK_PROMPTS * WORK_SHARED, false);
    touch(&stores);
    touch(&tails);
    work_fill_prompts(&prompts);

    before = work_resident();
    work_open(&work, shape);
    for (size_t s = 0; s < shape->n_sequences; s += PIECE) {
        size_t left = shape->n_sequences - s;
        size_t n = left < PIECE ? left : PIECE;

        work_fill_stores(&stores, shape, s, n);
        work_store_all(&work, &stores, n);
    }
    entries = work_entries(&work);
    work_expect(&work, entries, WORK_ANY);
    work_settle(&work);
    print_memory("after load", memory_since(before), entries);
    work_print("residencies", "blocks", (double)entries);
    print_memory("allocated", (double)work_stats(&work).bytes, entries);

    for (size_t s = 0; s < shape->n_sequences; s += PIECE) {
        size_t left = shape->n_sequences - s;
        size_t n = left < PIECE ? left : PIECE;

        work_fill_removals(&tails, shape, s, n, WORK_SHARED);
        work_remove_all(&work, &tails, n, own);
    }
    (void)work_remove_prompts(&work, &prompts);
    work_expect(&work, 0, 0);
    work_settle(&work);
    print_memory("after removing all", memory_since(before), entries);
    print_memory("allocated after removing all",
        (double)work_stats(&work).bytes, entries);
    work_close(&work);
    work_blocks_release(&stores);
    work_blocks_release(&tails);
    work_blocks_release(&prompts);
}

/* ---- part ------------------------------------------------------------- */

/*
 * A permutation of 0..n-1: a Feistel network over the next even power of two,
 * applied again while the result is outside.
 */
static uint64_t
shuffled(uint64_t i, uint64_t n)
{
    unsigned half = 1;

    while ((uint64_t)1 << (2 * half) < n)
        half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t a = i >> half, b = i & mask;

        for (uint64_t round = 0; round < 4; round++) {
            uint64_t f = work_mix(b + (round << 48)) & mask;
            uint64_t next = a ^ f;

            a = b;
            b = next;
        }
        i = a << half | b;
    } while (i >= n);
    return i;
}

/* Does a block, or a sequence, of a worker stay? */
static bool
stays(uint64_t worker, uint64_t key)
{
    return work_mix(key ^ work_mix(worker)) % KEPT == 0;
}

struct part {
    struct work *work;
    struct work_blocks one; /* a sequence, to be stored */
    struct work_blocks back;
    uint32_t *times; /* by worker and prompt: sequences that are left */
};

static void
store_sequence(struct part *part, uint32_t w, uint64_t s)
{
    for (size_t i = 0; i < WORK_BLOCKS; i++)
        work_blocks_set(&part->one, i, work_key(w, s, i));
    for (size_t i = 0; i < WORK_BLOCKS; i += WORK_EVENT)
        work_store(part->work, w, &part->one, i, WORK_EVENT, i == 0);
}

static void
remove_block(struct part *part, uint32_t w, uint64_t key)
{
    work_blocks_set(&part->back, 0, key);
    work_remove(part->work, w, &part->back, 0, 1);
}

/* One copy of each block that does not stay, once the sequence is stored. */
static void
thin_sequence(struct part *part, uint32_t w, uint64_t s)
{
    for (uint64_t i = WORK_BLOCKS; i-- > 0;)
        if (!stays(w, work_key(w, s, i)))
            remove_block(part, w, work_key(w, s, i));
}

/* All copies of what does not stay, one block a call, in random order. */
static void
thin_all(struct part *part)
{
    const struct work_shape *shape = &part->work->shape;
    uint64_t own = WORK_BLOCKS - WORK_SHARED;
    uint64_t n_own = (uint64_t)shape->n_workers * shape->n_sequences * own;
    uint64_t n =
        n_own + (uint64_t)shape->n_workers * WORK_PROMPTS * WORK_SHARED;

    for (uint64_t k = 0; k < n; k++) {
        uint64_t at = shuffled(k, n), key;
        uint32_t copies = 1, w = (uint32_t)(at % shape->n_workers);

        at /= shape->n_workers;
        if (at < n_own / shape->n_workers) {
            key = work_key(w, at / own, WORK_SHARED + at % own);
        } else {
            at -= n_own / shape->n_workers;
            key = work_shared_key(at / WORK_SHARED, at % WORK_SHARED);
            copies = part->work->times[w * WORK_PROMPTS + at / WORK_SHARED];
            if (shape->counting == KVE_COUNTING_SET)
                copies = 1;
        }
        for (; copies > 0 && !stays(w, key); copies--)
            remove_block(part, w, key);
    }
}

/* What is left, block by block; the parent of each that stays is gone. */
static void
store_alone(struct part *part, uint32_t w, uint64_t s)
{
    for (size_t i = 0; i < WORK_BLOCKS; i++)
        work_blocks_set(&part->one, i, work_key(w, s, i));
    for (size_t i = 0; i < WORK_BLOCKS; i++)
        if (stays(w, work_key(w, s, i)))
            work_store(part->work, w, &part->one, i, 1, i == 0);
}

/* A sequence as its engine lets go of it: its own blocks, the deepest first,
 * then its copies of the prompt's. */
static void
drop_sequence(struct part *part, uint32_t w, uint64_t s)
{
    bool set = part->work->shape.counting == KVE_COUNTING_SET;
    uint32_t *times = &part->times[w * WORK_PROMPTS + work_prompt(w, s)];
    size_t n = WORK_BLOCKS;

    *times -= 1;
    if (set && *times > 0)
        n -= WORK_SHARED;
    for (size_t i = 0; i < n; i++)
        work_blocks_set(&part->back, i, work_key(w, s, WORK_BLOCKS - 1 - i));
    for (size_t i = 0; i < n; i += WORK_EVENT)
        work_remove(part->work, w, &part->back, i, WORK_EVENT);
}

static void
thin_sequences(struct part *part)
{
    const struct work_shape *shape = &part->work->shape;
    uint64_t n = (uint64_t)shape->n_workers * shape->n_sequences;

    for (uint64_t k = 0; k < n; k++) {
        uint64_t at = shuffled(k, n);
        uint32_t w = (uint32_t)(at % shape->n_workers);

        if (!stays(w, at / shape->n_workers))
            drop_sequence(part, w, at / shape->n_workers);
    }
}

static void
load_part(struct part *part, bool by_block, const char *how)
{
    const struct work_shape *shape = &part->work->shape;
    bool all = strcmp(how, "all") == 0, alone = strcmp(how, "alone") == 0;

    for (uint64_t s = 0; s < shape->n_sequences; s++)
        for (uint32_t w = 0; w < shape->n_workers; w++) {
            if (by_block && alone)
                store_alone(part, w, s);
            else if (all || by_block || stays(w, s))
                store_sequence(part, w, s);
            if (by_block && !all && !alone)
                thin_sequence(part, w, s);
        }
}

static void
run_part(struct work_shape *shape, bool by_block, const char *how)
{
    bool all = strcmp(how, "all") == 0;
    struct part part = { 0 };
    struct work work;
    double before;
    size_t n_times = (size_t)shape->n_workers * WORK_PROMPTS;

    work_blocks_init(&part.one, shape, WORK_BLOCKS, true);
    work_blocks_init(&part.back, shape, WORK_BLOCKS, false);
    touch(&part.one);
    touch(&part.back);
    part.times = work_must(malloc(n_times * sizeof(*part.times)));
    memset(part.times, 0, n_times * sizeof(*part.times));

    before = work_resident();
    work_open(&work, shape);
    part.work = &work;
    memcpy(part.times, work.times, n_times * sizeof(*part.times));
    load_part(&part, by_block, how);
    if (all)
        work_expect(&work, work_entries(&work), WORK_ANY);
    if (all && by_block)
        thin_all(&part);
    else if (all)
        thin_sequences(&part);
    work_settle(&work);
    work_print("resident", "bytes", memory_since(before));
    work_print("allocated", "bytes", (double)work_stats(&work).bytes);
    work_print("residencies", "blocks",
        (double)work_stats(&work).residencies[KVE_TIER_GPU]);
    work_close(&work);
    free(part.times);
    work_blocks_release(&part.one);
    work_blocks_release(&part.back);
}

/* ---- churn ------------------------------------------------------------ */

static void
fill_chain(struct work_blocks *chain, uint64_t number, bool back)
{
    for (uint64_t i = 0; i < WORK_EVENT; i++)
        work_blocks_set(chain, back ? WORK_EVENT - 1 - i : i,
            0x9000000000000000u | (number << 16) | i);
}

static void
run_churn(struct work_shape *shape, uint64_t n_chains)
{
    struct work_blocks chain, back;
    struct work work;
    double before, early = 0, most = 0;

    shape->n_sequences = 0;
    work_blocks_init(&chain, shape, WORK_EVENT, true);
    work_blocks_init(&back, shape, WORK_EVENT, false);
    touch(&chain);
    touch(&back);
    before = work_resident();
    work_open(&work, shape);
    for (uint64_t c = 0; c < n_chains; c++) {
        fill_chain(&chain, c, false);
        work_store(&work, (uint32_t)(c % shape->n_workers), &chain, 0,
            WORK_EVENT, true);
        if (c >= LIVE_CHAINS) {
            uint64_t gone = c - LIVE_CHAINS;

            fill_chain(&back, gone, true);
            work_remove(&work, (uint32_t)(gone % shape->n_workers), &back, 0,
                WORK_EVENT);
        }
        if (c % (n_chains / 100 + 1) == 0 && c > 0) {
            double now = memory_since(before);

            early = c < n_chains / 10 ? now : early;
            most = now > most ? now : most;
        }
    }
    work_expect(&work, LIVE_CHAINS * WORK_EVENT, LIVE_CHAINS * WORK_EVENT);
    work_print("after a tenth", "bytes", early);
    work_print("at most", "bytes", most);
    work_print("at the end", "bytes", memory_since(before));
    work_close(&work);
    work_blocks_release(&chain);
    work_blocks_release(&back);
}

/* ------------------------------------------------------------------ */

static int
usage(void)
{
    (void)fprintf(stderr,
        "usage: bench_index_memory load set|count integer|bytes RESIDENCIES\n"
        "       bench_index_memory part set|count blocks|sequences "
        "all|rest|alone\n"
        "       bench_index_memory churn set|count CHAINS\n");
    return 2;
}

int
main(int argc, char **argv)
{
    struct work_shape shape = { .n_workers = 8, .n_sequences = 2000 };

    if (argc < 4)
        return usage();
    shape.counting =
        strcmp(argv[2], "set") == 0 ? KVE_COUNTING_SET : KVE_COUNTING_COPIES;
    if (strcmp(argv[1], "load") == 0 && argc == 5) {
        uint64_t residencies = strtoull(argv[4], NULL, 10);

        shape.long_hashes = strcmp(argv[3], "bytes") == 0;
        if (residencies < 100000)
            work_die("load", "fewer than 100,000 say little");
        run_load(&shape, residencies);
    } else if (strcmp(argv[1], "part") == 0 && argc == 5) {
        run_part(&shape, strcmp(argv[3], "blocks") == 0, argv[4]);
    } else if (strcmp(argv[1], "churn") == 0) {
        uint64_t chains = strtoull(argv[3], NULL, 10);

        if (chains < 10 * LIVE_CHAINS)
            work_die("churn", "fewer than 10,000 say little");
        run_churn(&shape, chains);
    } else {
        return usage();
    }
    return 0;
}
