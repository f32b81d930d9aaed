/*
 * bench_index.c - how fast an index stores, forgets and answers.
 *
 *     bench_index speed  set|count [integer|bytes] [WORKERS SEQUENCES]
 *     bench_index tokens set|count
 *     bench_index grow   set|count RESIDENCIES
 *
 * speed runs the workload of index_work.h once; bench/run_index.py runs it in
 * turn with the peers. All input is made before a clock starts. Storing and
 * removing are CPU time of the process over the whole pass; questions are
 * timed one by one, and every answer that was timed is checked, after its
 * clock has stopped. grow makes its input piece by piece instead, so that the
 * size is free; tokens asks with tokens and has the index hash them.
 *
 * What a clock costs by itself, measured in the run, is subtracted. One JSON
 * line a figure.
 */
#include "index_work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_QUERIES 20000
#define TOKEN_QUERIES 4096 /* of 2,048 tokens each: 2^23 in all */
#define TOKEN_ROUND 64     /* questions between two looks at the CPU's clock */
#define PIECE 64           /* sequences of each worker made at a time */

/* The peers' workload, by the exclusive or of its blocks' content hashes. */
#define USUAL_CHECK UINT64_C(0xefcdc0b72d7501e6)
#define USUAL_ENTRIES 1075200
#define USUAL_BLOCKS 1030400

static bool
is_usual(const struct work_shape *shape)
{
    return shape->n_workers == 8 && shape->n_sequences == 2000;
}

/* ---- questions by content --------------------------------------------- */

struct questions {
    uint64_t *contents; /* WORK_BLOCKS each */
    struct work_question *expected;
};

static void
make_questions(
    struct questions *questions, const struct work_shape *shape, bool hit)
{
    uint64_t *to = work_must(malloc(sizeof(*to) * N_QUERIES * WORK_BLOCKS));

    questions->contents = to;
    questions->expected =
        work_must(malloc(sizeof(*questions->expected) * N_QUERIES));
    for (uint64_t q = 0; q < N_QUERIES; q++, to += WORK_BLOCKS) {
        questions->expected[q] = work_ask(shape, q, hit, to);
        for (size_t i = 0; i < WORK_BLOCKS; i++)
            to[i] = work_content(to[i]);
    }
}

static void
free_questions(struct questions *questions)
{
    free(questions->contents);
    free(questions->expected);
}

static void
print_part(const char *work, const char *part, const float *sorted, size_t n,
    size_t per_mille, double cost)
{
    char figure[64];
    double ns = sorted[(n - 1) * per_mille / 1000] - cost;

    (void)snprintf(figure, sizeof(figure), "%s %s", work, part);
    work_print(figure, "ns", ns < 0 ? 0 : ns);
}

static void
time_questions(const struct work *work, const struct questions *questions,
    const char *name)
{
    float *took = work_must(malloc(sizeof(*took) * N_QUERIES));
    double cost = work_timer_cost(work_wall_ns);
    struct work_reader reader;

    work_reader_open(&reader, work);
    for (size_t q = 0; q < N_QUERIES; q++) {
        const uint64_t *contents = questions->contents + q * WORK_BLOCKS;
        double start = work_wall_ns();

        work_query(&reader, contents);
        took[q] = (float)(work_wall_ns() - start);
        if (work_check(work, questions->expected[q], &reader.answer) > 0)
            work_die("answer", "a row moves, and nobody writes");
    }
    work_reader_close(&reader);
    qsort(took, N_QUERIES, sizeof(*took), work_by_float);
    print_part(name, "p50", took, N_QUERIES, 500, cost);
    print_part(name, "p99", took, N_QUERIES, 990, cost);
    free(took);
}

/* ---- speed ------------------------------------------------------------ */

static void
check_input(const struct work_blocks *blocks)
{
    uint64_t check = 0;

    for (size_t i = 0; i < blocks->n; i++)
        check ^= blocks->contents[i];
    if (check != USUAL_CHECK)
        work_die("input", "it is not the peers' workload");
}

static void
print_rate(const char *figure, double ns, size_t n)
{
    work_print(figure, "ns CPU/block", ns / (double)n);
}

static void
run_speed(const struct work_shape *shape)
{
    size_t n = (size_t)shape->n_workers * shape->n_sequences;
    size_t n_own = n * (WORK_BLOCKS - WORK_SHARED), n_shared;
    struct work_blocks stores, tails, prompts;
    struct questions miss, hit;
    struct work work;
    double start, cost = work_timer_cost(work_cpu_ns);

    work_blocks_init(&stores, shape, n * WORK_BLOCKS, true);
    work_fill_stores(&stores, shape, 0, shape->n_sequences);
    work_blocks_init(&tails, shape, n_own, false);
    work_fill_removals(&tails, shape, 0, shape->n_sequences, WORK_SHARED);
    work_blocks_init(
        &prompts, shape, (size_t)WORK_PROMPTS * WORK_SHARED, false);
    work_fill_prompts(&prompts);
    make_questions(&miss, shape, false);
    make_questions(&hit, shape, true);
    if (is_usual(shape))
        check_input(&stores);

    work_open(&work, shape);
    start = work_cpu_ns();
    work_store_all(&work, &stores, shape->n_sequences);
    print_rate("store", work_cpu_ns() - start - cost, n * WORK_BLOCKS);
    work_expect(
        &work, work_entries(&work), is_usual(shape) ? USUAL_BLOCKS : WORK_ANY);
    if (is_usual(shape))
        work_expect(&work, USUAL_ENTRIES, USUAL_BLOCKS);

    time_questions(&work, &miss, "query miss");
    time_questions(&work, &hit, "query hit");

    start = work_cpu_ns();
    work_remove_all(
        &work, &tails, shape->n_sequences, WORK_BLOCKS - WORK_SHARED);
    print_rate("remove tails", work_cpu_ns() - start - cost, n_own);
    work_expect(&work, work_entries(&work) - n_own, WORK_ANY);
    start = work_cpu_ns();
    n_shared = work_remove_prompts(&work, &prompts);
    print_rate("remove prefixes", work_cpu_ns() - start - cost, n_shared);
    work_expect(&work, 0, 0);

    work_print("clock", "ns", work_timer_cost(work_wall_ns));
    work_close(&work);
    free_questions(&miss);
    free_questions(&hit);
    work_blocks_release(&stores);
    work_blocks_release(&tails);
    work_blocks_release(&prompts);
}

/* ---- questions by tokens ---------------------------------------------- */

static void
ask_round(struct work_reader *readers, const uint32_t *tokens)
{
    struct kve_error err;

    for (size_t i = 0; i < TOKEN_ROUND; i++) {
        struct work_reader *r = &readers[i];

        r->query.tokens = tokens + i * WORK_BLOCKS * WORK_TOKENS;
        r->query.n_tokens = (size_t)WORK_BLOCKS * WORK_TOKENS;
        if (kve_index_query(readers[0].reader, &r->query, &r->answer, &err) !=
            KVE_OK)
            work_die("query", err.detail);
    }
}

static uint32_t *
make_prompts(const struct work_shape *shape, struct work_question *expected)
{
    size_t n = (size_t)TOKEN_QUERIES * WORK_BLOCKS * WORK_TOKENS;
    uint32_t *tokens = work_must(malloc(n * sizeof(*tokens)));
    uint64_t keys[WORK_BLOCKS];
    size_t at = 0;

    for (uint64_t q = 0; q < TOKEN_QUERIES; q++) {
        expected[q] = work_ask(shape, q, true, keys);
        for (size_t i = 0; i < WORK_BLOCKS; i++)
            for (uint32_t j = 0; j < WORK_TOKENS; j++)
                tokens[at++] = work_token(keys[i], j);
    }
    return tokens;
}

static void
store_pieces(struct work *work, double *ret_ns)
{
    const struct work_shape *shape = &work->shape;
    double cost = work_timer_cost(work_cpu_ns);
    struct work_blocks piece;

    work_blocks_init(
        &piece, shape, (size_t)PIECE * shape->n_workers * WORK_BLOCKS, true);
    for (size_t s = 0; s < shape->n_sequences; s += PIECE) {
        size_t n =
            shape->n_sequences - s < PIECE ? shape->n_sequences - s : PIECE;

        work_fill_stores(&piece, shape, s, n);
        double start = work_cpu_ns();
        work_store_all(work, &piece, n);
        *ret_ns += work_cpu_ns() - start - cost;
    }
    work_blocks_release(&piece);
}

static void
run_tokens(struct work_shape *shape)
{
    static struct work_question expected[TOKEN_QUERIES];
    struct work_reader readers[TOKEN_ROUND];
    double cost = work_timer_cost(work_cpu_ns), ns = 0, store_ns = 0;
    uint32_t *tokens;
    struct work work;

    shape->with_tokens = true;
    tokens = make_prompts(shape, expected);
    work_open(&work, shape);
    store_pieces(&work, &store_ns);
    print_rate("store from tokens", store_ns,
        (size_t)shape->n_workers * shape->n_sequences * WORK_BLOCKS);
    work_expect(&work, USUAL_ENTRIES, USUAL_BLOCKS);

    /* One reader asks; the others are room for their answers. */
    for (size_t i = 0; i < TOKEN_ROUND; i++)
        work_reader_open(&readers[i], &work);
    for (size_t q = 0; q < TOKEN_QUERIES; q += TOKEN_ROUND) {
        double start = work_cpu_ns();

        ask_round(readers, tokens + q * WORK_BLOCKS * WORK_TOKENS);
        ns += work_cpu_ns() - start - cost;
        for (size_t i = 0; i < TOKEN_ROUND; i++)
            (void)work_check(&work, expected[q + i], &readers[i].answer);
    }
    work_print(
        "query hit from 2048 tokens", "us CPU", ns / TOKEN_QUERIES / 1000);
    for (size_t i = 0; i < TOKEN_ROUND; i++)
        work_reader_close(&readers[i]);
    work_close(&work);
    free(tokens);
}

/* ---- growth ----------------------------------------------------------- */

static double
remove_pieces(struct work *work)
{
    const struct work_shape *shape = &work->shape;
    size_t own = WORK_BLOCKS - WORK_SHARED;
    double cost = work_timer_cost(work_cpu_ns), ns = 0;
    struct work_blocks piece;

    work_blocks_init(
        &piece, shape, (size_t)PIECE * shape->n_workers * own, false);
    for (size_t s = 0; s < shape->n_sequences; s += PIECE) {
        size_t n =
            shape->n_sequences - s < PIECE ? shape->n_sequences - s : PIECE;

        work_fill_removals(&piece, shape, s, n, WORK_SHARED);
        double start = work_cpu_ns();
        work_remove_all(work, &piece, n, own);
        ns += work_cpu_ns() - start - cost;
    }
    work_blocks_release(&piece);
    return ns;
}

static void
run_grow(struct work_shape *shape, uint64_t residencies)
{
    uint64_t per_round = (uint64_t)shape->n_workers * WORK_SHARED;
    struct work_blocks prompts;
    struct questions miss, hit;
    struct work work;
    double ns = 0;
    size_t n, n_shared;

    shape->n_sequences = (uint32_t)(residencies / per_round) - WORK_PROMPTS;
    n = (size_t)shape->n_workers * shape->n_sequences;
    make_questions(&miss, shape, false);
    make_questions(&hit, shape, true);
    work_blocks_init(
        &prompts, shape, (size_t)WORK_PROMPTS * WORK_SHARED, false);
    work_fill_prompts(&prompts);

    work_open(&work, shape);
    store_pieces(&work, &ns);
    print_rate("store", ns, n * WORK_BLOCKS);
    work_expect(&work, work_entries(&work), WORK_ANY);
    work_print("residencies", "blocks", (double)work_entries(&work));
    work_print("allocated", "bytes/residency",
        (double)work_stats(&work).bytes / (double)work_entries(&work));
    time_questions(&work, &miss, "query miss");
    time_questions(&work, &hit, "query hit");
    print_rate(
        "remove tails", remove_pieces(&work), n * (WORK_BLOCKS - WORK_SHARED));
    ns = work_cpu_ns();
    n_shared = work_remove_prompts(&work, &prompts);
    print_rate("remove prefixes", work_cpu_ns() - ns, n_shared);
    work_expect(&work, 0, 0);

    work_close(&work);
    work_blocks_release(&prompts);
    free_questions(&miss);
    free_questions(&hit);
}

/* ------------------------------------------------------------------ */

static int
usage(void)
{
    (void)fprintf(stderr,
        "usage: bench_index speed set|count [integer|bytes] "
        "[WORKERS SEQUENCES]\n"
        "       bench_index tokens set|count\n"
        "       bench_index grow set|count RESIDENCIES\n"
        "       RESIDENCIES is at least 100000\n");
    return 2;
}

int
main(int argc, char **argv)
{
    struct work_shape shape = { .n_workers = 8, .n_sequences = 2000 };

    if (argc < 3)
        return usage();
    shape.counting =
        strcmp(argv[2], "set") == 0 ? KVE_COUNTING_SET : KVE_COUNTING_COPIES;
    if (strcmp(argv[1], "speed") == 0) {
        shape.long_hashes = argc > 3 && strcmp(argv[3], "bytes") == 0;
        if (argc > 5) {
            shape.n_workers = (uint32_t)strtoul(argv[4], NULL, 10);
            shape.n_sequences = (uint32_t)strtoul(argv[5], NULL, 10);
        }
        run_speed(&shape);
    } else if (strcmp(argv[1], "tokens") == 0) {
        run_tokens(&shape);
    } else if (strcmp(argv[1], "grow") == 0 && argc > 3 &&
        strtoull(argv[3], NULL, 10) >= 100000) {
        run_grow(&shape, strtoull(argv[3], NULL, 10));
    } else {
        return usage();
    }
    return 0;
}
