/*
 * bench_index_threads.c - readers beside each other and beside a writer, and
 * how long one call of a writer takes at most.
 *
 *     bench_index_threads scale             two readers on one hot prefix
 *     bench_index_threads beside            a reader beside a writer
 *     bench_index_threads longest N         growing to N residencies
 *
 * scale: one reader on each of two cores asks the same question again and
 * again, alone and both at once; the same with a bare loop that compares as
 * many bytes. What is compared is work per CPU time of a thread, so that other
 * programs on the machine do not count: readers that share a cache line spend
 * CPU time on it.
 *
 * beside: a reader asks fresh questions and notes how long each takes, in
 * turns while nobody writes and while a writer on another core stores at full
 * speed into the same instances; what it stored is removed between.
 *
 * longest: every call is timed, in several runs that do the same; of each call
 * the shortest time counts, because other programs can only make it longer.
 */
#include "index_work.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_QUERIES 20000
#define SCALE_ROUNDS 9
#define SCALE_NS 120e6 /* wall time of one turn */
#define SCALE_CHECK 64 /* questions between two looks at the flag */
#define HOT_BYTES (WORK_SHARED * sizeof(uint64_t))
#define BESIDE_ROUNDS 40
#define BESIDE_SEQUENCES 512 /* the writer stores a turn, of each worker */
#define MAX_SAMPLES (1u << 22)
#define LONGEST_RUNS 3
#define PIECE 64

static int cores[2];

static void
find_cores(void)
{
    cpu_set_t set;
    int n = 0;

    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        work_die("cores", "cannot be read");
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET(i, &set))
            cores[n++] = i;
    if (n < 2)
        work_die("cores", "two are needed, and one is allowed");
}

static void
pin(int core)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(core, &set);
    (void)sched_setaffinity(0, sizeof(set), &set);
}

static pthread_t
start(void *(*body)(void *), void *arg)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, body, arg) != 0)
        work_die("thread", "cannot be made");
    return thread;
}

static void
load(struct work *work, const struct work_shape *shape)
{
    struct work_blocks piece;

    work_open(work, shape);
    work_blocks_init(
        &piece, shape, (size_t)PIECE * shape->n_workers * WORK_BLOCKS, true);
    for (size_t s = 0; s < shape->n_sequences; s += PIECE) {
        size_t left = shape->n_sequences - s;
        size_t n = left < PIECE ? left : PIECE;

        work_fill_stores(&piece, shape, s, n);
        work_store_all(work, &piece, n);
    }
    work_blocks_release(&piece);
    work_expect(work, work_entries(work), WORK_ANY);
}

/* ---- scale ------------------------------------------------------------ */

struct hot {
    const struct work *work;
    struct work_question question;
    uint64_t contents[WORK_BLOCKS];
    uint64_t again[WORK_BLOCKS]; /* equal, for the bare loop */
    bool bare;
    atomic_bool stop;
    pthread_barrier_t begin;
};

struct hot_side {
    struct hot *hot;
    int core;
    double rate; /* per CPU nanosecond */
};

static volatile int sink;

static void *
run_hot(void *arg)
{
    struct hot_side *side = arg;
    struct hot *hot = side->hot;
    struct work_reader reader;
    uint64_t n = 0;

    pin(side->core);
    work_reader_open(&reader, hot->work);
    work_query(&reader, hot->contents);
    (void)work_check(hot->work, hot->question, &reader.answer);
    (void)pthread_barrier_wait(&hot->begin);
    double began = work_thread_ns();
    do {
        for (int i = 0; i < SCALE_CHECK && !hot->bare; i++)
            work_query(&reader, hot->contents);
        for (int i = 0; i < SCALE_CHECK && hot->bare; i++)
            sink = memcmp(hot->contents, hot->again, HOT_BYTES);
        n += SCALE_CHECK;
    } while (!atomic_load_explicit(&hot->stop, memory_order_relaxed));
    side->rate = (double)n / (work_thread_ns() - began);
    (void)work_check(hot->work, hot->question, &reader.answer);
    work_reader_close(&reader);
    return NULL;
}

/* Work per CPU time: of sides, all at once. */
static double
hot_turn(struct hot *hot, struct hot_side *sides, unsigned n, bool bare)
{
    pthread_t threads[2];
    double rate = 0, until;

    hot->bare = bare;
    atomic_store(&hot->stop, false);
    (void)pthread_barrier_init(&hot->begin, NULL, n + 1);
    for (unsigned i = 0; i < n; i++)
        threads[i] = start(run_hot, &sides[i]);
    (void)pthread_barrier_wait(&hot->begin);
    until = work_wall_ns() + SCALE_NS;
    while (work_wall_ns() < until) {
        struct timespec pause = { 0, 5000000 };

        (void)nanosleep(&pause, NULL);
    }
    atomic_store(&hot->stop, true);
    for (unsigned i = 0; i < n; i++) {
        (void)pthread_join(threads[i], NULL);
        rate += sides[i].rate;
    }
    (void)pthread_barrier_destroy(&hot->begin);
    return rate;
}

static void
run_scale(const struct work_shape *shape)
{
    static struct hot hot;
    struct hot_side sides[2] = { { &hot, cores[0], 0 }, { &hot, cores[1], 0 } };
    float scales[2][SCALE_ROUNDS], parts[SCALE_ROUNDS];
    struct work work;

    load(&work, shape);
    hot.work = &work;
    hot.question = work_ask(shape, 0, false, hot.contents);
    for (size_t i = 0; i < WORK_BLOCKS; i++)
        hot.contents[i] = work_content(hot.contents[i]);
    memcpy(hot.again, hot.contents, sizeof(hot.again));
    for (int round = 0; round < SCALE_ROUNDS; round++) {
        for (int bare = 0; bare < 2; bare++) {
            double one = (hot_turn(&hot, &sides[0], 1, bare) +
                             hot_turn(&hot, &sides[1], 1, bare)) /
                2;

            scales[bare][round] = (float)(hot_turn(&hot, sides, 2, bare) / one);
        }
        parts[round] = scales[0][round] / scales[1][round];
    }
    work_close(&work);
    for (int bare = 0; bare < 2; bare++)
        qsort(scales[bare], SCALE_ROUNDS, sizeof(float), work_by_float);
    qsort(parts, SCALE_ROUNDS, sizeof(float), work_by_float);
    work_print("two readers", "times one", scales[0][SCALE_ROUNDS / 2]);
    work_print("two bare loops", "times one", scales[1][SCALE_ROUNDS / 2]);
    work_print("two readers of what two bare loops scale", "part",
        parts[SCALE_ROUNDS / 2]);
}

/* ---- beside ----------------------------------------------------------- */

struct beside {
    struct work work;
    struct work_blocks stores;
    struct work_blocks tails;
    atomic_int turn; /* -1: end; odd: store; even: remove, then wait */
    atomic_int done; /* the last turn that the writer has ended */
    double stored_ns;
};

static void *
run_writer(void *arg)
{
    struct beside *b = arg;
    int done = 0;

    pin(cores[1]);
    for (int turn; (turn = atomic_load(&b->turn)) >= 0;) {
        if (turn == done) {
            (void)sched_yield();
            continue;
        }
        if (turn % 2 == 1) {
            double began = work_thread_ns();

            work_store_all(&b->work, &b->stores, BESIDE_SEQUENCES);
            b->stored_ns += work_thread_ns() - began;
        } else {
            work_remove_all(&b->work, &b->tails, BESIDE_SEQUENCES,
                WORK_BLOCKS - WORK_SHARED);
        }
        done = turn;
        atomic_store(&b->done, done);
    }
    return NULL;
}

struct samples {
    float *took;
    size_t n;
    size_t moving;
    size_t rows;
};

struct asker {
    struct work_reader reader;
    uint64_t *contents;
    struct work_question *expected;
    size_t next;
};

static void
ask_one(const struct work *work, struct asker *asker, struct samples *to)
{
    size_t q = asker->next++ % N_QUERIES;
    double start = work_wall_ns();

    work_query(&asker->reader, asker->contents + q * WORK_BLOCKS);
    if (to->n < MAX_SAMPLES)
        to->took[to->n++] = (float)(work_wall_ns() - start);
    to->moving += work_check(work, asker->expected[q], &asker->reader.answer);
    to->rows += asker->reader.answer.n;
}

static void
open_asker(struct asker *asker, const struct work *work)
{
    uint64_t *to = work_must(malloc(sizeof(*to) * N_QUERIES * WORK_BLOCKS));

    work_reader_open(&asker->reader, work);
    asker->contents = to;
    asker->expected = work_must(malloc(sizeof(*asker->expected) * N_QUERIES));
    asker->next = 0;
    for (uint64_t q = 0; q < N_QUERIES; q++, to += WORK_BLOCKS) {
        asker->expected[q] = work_ask(&work->shape, q, q % 2 == 1, to);
        for (size_t i = 0; i < WORK_BLOCKS; i++)
            to[i] = work_content(to[i]);
    }
}

static void
beside_turn(struct beside *b, struct asker *asker, struct samples *idle,
    struct samples *busy, int round)
{
    size_t first = busy->n;

    atomic_store(&b->turn, 2 * round + 1);
    while (atomic_load(&b->done) != 2 * round + 1)
        ask_one(&b->work, asker, busy);
    atomic_store(&b->turn, 2 * round + 2);
    while (atomic_load(&b->done) != 2 * round + 2)
        (void)sched_yield();
    /* As many while nobody writes. */
    for (size_t i = first; i < busy->n; i++)
        ask_one(&b->work, asker, idle);
}

static double
print_samples(struct samples *samples, const char *name, size_t per_mille)
{
    char figure[64];
    double ns;

    if (samples->n == 0)
        work_die("reader", "it was never asked");
    qsort(samples->took, samples->n, sizeof(float), work_by_float);
    ns = samples->took[(samples->n - 1) * per_mille / 1000] -
        work_timer_cost(work_wall_ns);
    (void)snprintf(figure, sizeof(figure), "%s p%zu", name,
        per_mille % 10 == 0 ? per_mille / 10 : per_mille);
    work_print(figure, "ns", ns);
    return ns;
}

static void
print_beside(struct beside *b, struct samples *idle, struct samples *busy)
{
    static const size_t parts[] = { 500, 990, 999 };
    double ns[2];

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        char figure[64];

        ns[0] = print_samples(idle, "reader, idle,", parts[i]);
        ns[1] = print_samples(busy, "reader, beside a writer,", parts[i]);
        (void)snprintf(figure, sizeof(figure),
            "reader beside a writer, p%zu of idle",
            parts[i] % 10 == 0 ? parts[i] / 10 : parts[i]);
        work_print(figure, "times", ns[1] / ns[0]);
    }
    work_print("moving rows", "%",
        100.0 * (double)busy->moving / (double)(busy->rows + 1));
    work_print("writer beside a reader, store", "ns CPU/block",
        b->stored_ns / BESIDE_ROUNDS / (double)b->stores.n);
}

static void
run_beside(const struct work_shape *shape)
{
    static struct beside b;
    struct samples idle = { 0 }, busy = { 0 };
    size_t n = (size_t)BESIDE_SEQUENCES * shape->n_workers;
    struct asker asker;
    pthread_t writer;

    load(&b.work, shape);
    work_blocks_init(&b.stores, shape, n * WORK_BLOCKS, true);
    work_fill_stores(&b.stores, shape, shape->n_sequences, BESIDE_SEQUENCES);
    work_blocks_init(&b.tails, shape, n * (WORK_BLOCKS - WORK_SHARED), false);
    work_fill_removals(
        &b.tails, shape, shape->n_sequences, BESIDE_SEQUENCES, WORK_SHARED);
    idle.took = work_must(malloc(MAX_SAMPLES * sizeof(float)));
    busy.took = work_must(malloc(MAX_SAMPLES * sizeof(float)));
    memset(idle.took, 0, MAX_SAMPLES * sizeof(float));
    memset(busy.took, 0, MAX_SAMPLES * sizeof(float));
    open_asker(&asker, &b.work);

    pin(cores[0]);
    writer = start(run_writer, &b);
    for (int round = 0; round < BESIDE_ROUNDS; round++)
        beside_turn(&b, &asker, &idle, &busy, round);
    atomic_store(&b.turn, -1);
    (void)pthread_join(writer, NULL);
    print_beside(&b, &idle, &busy);

    work_reader_close(&asker.reader);
    free(asker.contents);
    free(asker.expected);
    free(idle.took);
    free(busy.took);
    work_close(&b.work);
    work_blocks_release(&b.stores);
    work_blocks_release(&b.tails);
}

/* ---- longest ---------------------------------------------------------- */

static void
grow_timed(struct work *work, struct work_blocks *piece, float *took)
{
    const struct work_shape *shape = &work->shape;

    for (size_t s = 0; s < shape->n_sequences; s += PIECE) {
        size_t left = shape->n_sequences - s, at = 0;
        size_t n = left < PIECE ? left : PIECE;

        work_fill_stores(piece, shape, s, n);
        for (size_t k = 0; k < n * shape->n_workers; k++)
            for (size_t i = 0; i < WORK_BLOCKS; i += WORK_EVENT, took++) {
                double start = work_wall_ns(), ns;

                work_store(work, (uint32_t)(k % shape->n_workers), piece, at,
                    WORK_EVENT, i == 0);
                ns = work_wall_ns() - start;
                if (ns < *took)
                    *took = (float)ns;
                at += WORK_EVENT;
            }
    }
}

static void
run_longest(struct work_shape *shape, uint64_t residencies)
{
    uint64_t per_round = (uint64_t)shape->n_workers * WORK_SHARED;
    struct work_blocks piece;
    size_t n;
    float *took;

    shape->n_sequences = (uint32_t)(residencies / per_round) - WORK_PROMPTS;
    n = (size_t)shape->n_sequences * shape->n_workers *
        (WORK_BLOCKS / WORK_EVENT);
    took = work_must(malloc(n * sizeof(*took)));
    for (size_t i = 0; i < n; i++)
        took[i] = 1e12f;
    work_blocks_init(
        &piece, shape, (size_t)PIECE * shape->n_workers * WORK_BLOCKS, true);
    for (int run = 0; run < LONGEST_RUNS; run++) {
        struct work work;

        work_open(&work, shape);
        grow_timed(&work, &piece, took);
        work_expect(&work, work_entries(&work), WORK_ANY);
        work_close(&work);
    }
    qsort(took, n, sizeof(*took), work_by_float);
    work_print("longest apply", "us", took[n - 1] / 1e3);
    work_print("apply p999", "us", took[(n - 1) / 1000 * 999] / 1e3);
    work_print("apply p50", "us", took[n / 2] / 1e3);
    work_blocks_release(&piece);
    free(took);
}

/* ------------------------------------------------------------------ */

int
main(int argc, char **argv)
{
    struct work_shape shape = {
        .n_workers = 8, .n_sequences = 2000, .counting = KVE_COUNTING_SET
    };
    const char *what = argc > 1 ? argv[1] : "";

    if (strcmp(what, "scale") == 0 && argc == 2) {
        find_cores();
        run_scale(&shape);
    } else if (strcmp(what, "beside") == 0 && argc == 2) {
        find_cores();
        run_beside(&shape);
    } else if (strcmp(what, "longest") == 0 && argc == 3 &&
        strtoull(argv[2], NULL, 10) >= 100000) {
        run_longest(&shape, strtoull(argv[2], NULL, 10));
    } else {
        (void)fprintf(stderr,
            "usage: bench_index_threads scale|beside|longest RESIDENCIES\n"
            "       RESIDENCIES is at least 100000\n");
        return 2;
    }
    return 0;
}
