/*
 * index_work.c - the workload of the index benchmarks; see the header.
 */
#include "index_work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void
work_die(const char *what, const char *why)
{
    (void)fprintf(stderr, "bench_index: %s: %s\n", what, why);
    exit(1);
}

void *
work_must(void *block)
{
    if (block == NULL)
        work_die("input", "out of memory");
    return block;
}

uint64_t
work_mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* ---- keys ------------------------------------------------------------ */

uint32_t
work_prompt(uint64_t worker, uint64_t sequence)
{
    uint64_t x = 0xB000000000000000u | (worker << 32) | sequence;

    return (uint32_t)(work_mix(x) % WORK_PROMPTS);
}

uint64_t
work_shared_key(uint64_t prompt, uint64_t i)
{
    return 0xA000000000000000u | (prompt << 16) | i;
}

uint64_t
work_key(uint64_t worker, uint64_t sequence, uint64_t i)
{
    if (i < WORK_SHARED)
        return work_shared_key(work_prompt(worker, sequence), i);
    return 0xC000000000000000u | (worker << 40) | (sequence << 16) | i;
}

uint64_t
work_content(uint64_t key)
{
    return work_mix(key);
}

uint32_t
work_token(uint64_t key, uint32_t j)
{
    return (uint32_t)(work_mix(key + (j + 1) * 0x100000001B3u) & 0x1FFFF);
}

/* ---- blocks ---------------------------------------------------------- */

void
work_blocks_init(struct work_blocks *blocks, const struct work_shape *shape,
    size_t n, bool for_stores)
{
    memset(blocks, 0, sizeof(*blocks));
    blocks->n = n;
    blocks->hashes = work_must(calloc(n, sizeof(*blocks->hashes)));
    if (shape->long_hashes)
        blocks->bytes = work_must(malloc(n * WORK_LONG));
    if (for_stores && shape->with_tokens)
        blocks->tokens =
            work_must(malloc(n * WORK_TOKENS * sizeof(*blocks->tokens)));
    else if (for_stores)
        blocks->contents = work_must(malloc(n * sizeof(*blocks->contents)));
}

void
work_blocks_release(struct work_blocks *blocks)
{
    free(blocks->hashes);
    free(blocks->bytes);
    free(blocks->contents);
    free(blocks->tokens);
    memset(blocks, 0, sizeof(*blocks));
}

void
work_blocks_set(struct work_blocks *blocks, size_t at, uint64_t key)
{
    uint64_t name = work_mix(key ^ 0x5555555555555555u);

    if (blocks->bytes == NULL) {
        blocks->hashes[at] = (struct kve_hash){ .integer = name };
    } else {
        uint8_t *bytes = blocks->bytes + at * WORK_LONG;

        for (size_t i = 0; i < WORK_LONG; i += sizeof(name)) {
            memcpy(bytes + i, &name, sizeof(name));
            name = work_mix(name);
        }
        blocks->hashes[at] =
            (struct kve_hash){ .bytes = bytes, .len = WORK_LONG };
    }
    if (blocks->contents != NULL)
        blocks->contents[at] = work_content(key);
    for (uint32_t j = 0; blocks->tokens != NULL && j < WORK_TOKENS; j++)
        blocks->tokens[at * WORK_TOKENS + j] = work_token(key, j);
}

void
work_fill_stores(struct work_blocks *blocks, const struct work_shape *shape,
    uint64_t first, size_t n)
{
    size_t at = 0;

    for (uint64_t s = first; s < first + n; s++)
        for (uint64_t w = 0; w < shape->n_workers; w++)
            for (uint64_t i = 0; i < WORK_BLOCKS; i++)
                work_blocks_set(blocks, at++, work_key(w, s, i));
}

void
work_fill_removals(struct work_blocks *blocks, const struct work_shape *shape,
    uint64_t first, size_t n, size_t from)
{
    size_t at = 0;

    for (uint64_t s = first; s < first + n; s++)
        for (uint64_t w = 0; w < shape->n_workers; w++)
            for (uint64_t i = WORK_BLOCKS; i-- > from;)
                work_blocks_set(blocks, at++, work_key(w, s, i));
}

void
work_fill_prompts(struct work_blocks *blocks)
{
    size_t at = 0;

    for (uint64_t p = 0; p < WORK_PROMPTS; p++)
        for (uint64_t i = WORK_SHARED; i-- > 0;)
            work_blocks_set(blocks, at++, work_shared_key(p, i));
}

/* ---- the index ------------------------------------------------------- */

static void
count_prompts(struct work *work)
{
    const struct work_shape *shape = &work->shape;

    work->times = work_must(
        calloc((size_t)shape->n_workers * WORK_PROMPTS, sizeof(*work->times)));
    for (uint32_t w = 0; w < shape->n_workers; w++)
        for (uint32_t s = 0; s < shape->n_sequences; s++)
            work->times[w * WORK_PROMPTS + work_prompt(w, s)]++;
}

static void
prepare_events(struct work *work)
{
    work->stored.type = KVE_EVENT_STORED;
    work->stored.tier = KVE_TIER_GPU;
    work->stored.block_size = WORK_TOKENS;
    work->removed.type = KVE_EVENT_REMOVED;
    work->removed.tier = KVE_TIER_GPU;
    kve_batch_view_init(&work->store_view);
    work->store_view.events = &work->stored;
    work->store_view.n_events = 1;
    kve_batch_view_init(&work->remove_view);
    work->remove_view.events = &work->removed;
    work->remove_view.n_events = 1;
}

void
work_open(struct work *work, const struct work_shape *shape)
{
    struct kve_index_opts opts = KVE_INDEX_OPTS_INIT;
    struct kve_error err;

    memset(work, 0, sizeof(*work));
    work->shape = *shape;
    prepare_events(work);
    opts.counting = shape->counting;
    if (kve_index_create(&opts, &work->index, &err) != KVE_OK ||
        kve_index_namespace(work->index, "model", "", &work->ns, &err) !=
            KVE_OK)
        work_die("index", err.detail);
    work->instances =
        work_must(calloc(shape->n_workers, sizeof(*work->instances)));
    for (uint32_t w = 0; w < shape->n_workers; w++) {
        struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
        char name[32];

        (void)snprintf(name, sizeof(name), "worker-%u", (unsigned)w);
        spec.ns = work->ns;
        spec.worker = name;
        if (kve_index_add(work->index, &spec, &work->instances[w], &err) !=
            KVE_OK)
            work_die("worker", err.detail);
    }
    count_prompts(work);
}

void
work_close(struct work *work)
{
    kve_index_destroy(work->index);
    free(work->instances);
    free(work->times);
    memset(work, 0, sizeof(*work));
}

static void
apply(struct work *work, uint32_t worker, const struct kve_batch_view *view,
    const uint64_t *contents, size_t n_contents)
{
    struct kve_error err;

    if (kve_index_apply(work->index, work->instances[worker], view, contents,
            n_contents, NULL, &err) != KVE_OK)
        work_die("apply", err.detail);
}

void
work_store(struct work *work, uint32_t worker, const struct work_blocks *blocks,
    size_t at, size_t n, bool at_root)
{
    struct kve_event *event = &work->stored;

    event->hashes = blocks->hashes + at;
    event->n_hashes = n;
    event->has_parent = !at_root;
    if (!at_root)
        event->parent = blocks->hashes[at - 1];
    if (blocks->tokens != NULL) {
        event->tokens = blocks->tokens + at * WORK_TOKENS;
        event->n_tokens = n * WORK_TOKENS;
        apply(work, worker, &work->store_view, NULL, 0);
    } else {
        apply(work, worker, &work->store_view, blocks->contents + at, n);
    }
}

void
work_remove(struct work *work, uint32_t worker,
    const struct work_blocks *blocks, size_t at, size_t n)
{
    work->removed.hashes = blocks->hashes + at;
    work->removed.n_hashes = n;
    apply(work, worker, &work->remove_view, NULL, 0);
}

void
work_store_all(struct work *work, const struct work_blocks *blocks, size_t n)
{
    size_t at = 0;

    for (size_t s = 0; s < n; s++)
        for (uint32_t w = 0; w < work->shape.n_workers; w++)
            for (size_t i = 0; i < WORK_BLOCKS; i += WORK_EVENT) {
                work_store(work, w, blocks, at, WORK_EVENT, i == 0);
                at += WORK_EVENT;
            }
}

void
work_remove_all(struct work *work, const struct work_blocks *blocks, size_t n,
    size_t per_sequence)
{
    size_t at = 0;

    for (size_t s = 0; s < n; s++)
        for (uint32_t w = 0; w < work->shape.n_workers; w++)
            for (size_t i = 0; i < per_sequence; i += WORK_EVENT) {
                work_remove(work, w, blocks, at, WORK_EVENT);
                at += WORK_EVENT;
            }
}

static uint32_t
copies_to_remove(const struct work *work, uint32_t worker, uint32_t prompt)
{
    uint32_t times = work->times[worker * WORK_PROMPTS + prompt];

    return work->shape.counting == KVE_COUNTING_SET && times > 0 ? 1 : times;
}

size_t
work_remove_prompts(struct work *work, const struct work_blocks *blocks)
{
    size_t n = 0;

    for (uint32_t w = 0; w < work->shape.n_workers; w++)
        for (uint32_t p = 0; p < WORK_PROMPTS; p++)
            for (uint32_t c = copies_to_remove(work, w, p); c > 0; c--)
                for (size_t i = 0; i < WORK_SHARED; i += WORK_EVENT) {
                    work_remove(work, w, blocks, (size_t)p * WORK_SHARED + i,
                        WORK_EVENT);
                    n += WORK_EVENT;
                }
    return n;
}

void
work_settle(struct work *work)
{
    while (kve_index_tidy(work->index, 1000))
        continue;
}

struct kve_index_stats
work_stats(const struct work *work)
{
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;

    if (kve_index_get_stats(work->index, 0, &stats) != KVE_OK)
        work_die("statistics", "there are none");
    return stats;
}

void
work_expect(const struct work *work, uint64_t entries, uint64_t blocks)
{
    struct kve_index_stats stats = work_stats(work);

    if (stats.residencies[KVE_TIER_GPU] == entries &&
        (blocks == WORK_ANY || stats.blocks == blocks))
        return;
    (void)fprintf(stderr,
        "bench_index: %llu residencies of %llu blocks, not %llu of %llu\n",
        (unsigned long long)stats.residencies[KVE_TIER_GPU],
        (unsigned long long)stats.blocks, (unsigned long long)entries,
        (unsigned long long)blocks);
    exit(1);
}

uint64_t
work_entries(const struct work *work)
{
    const struct work_shape *shape = &work->shape;
    uint64_t n = (uint64_t)shape->n_workers * shape->n_sequences *
        (WORK_BLOCKS - WORK_SHARED);

    for (size_t i = 0; i < (size_t)shape->n_workers * WORK_PROMPTS; i++)
        n += work->times[i] > 0 ? WORK_SHARED : 0;
    return n;
}

/* ---- questions ------------------------------------------------------- */

struct work_question
work_ask(const struct work_shape *shape, uint64_t q, bool hit, uint64_t *keys)
{
    struct work_question question;

    if (hit) {
        uint64_t r = work_mix(0xF000000000000000u | q);
        uint64_t w = r % shape->n_workers;
        uint64_t s = (r >> 32) % shape->n_sequences;

        for (uint64_t i = 0; i < WORK_BLOCKS; i++)
            keys[i] = work_key(w, s, i);
        question.prompt = work_prompt(w, s);
        question.whole = (uint32_t)w;
        return question;
    }
    question.prompt =
        (uint32_t)(work_mix(0xD000000000000000u | q) % WORK_PROMPTS);
    question.whole = shape->n_workers;
    for (uint64_t i = 0; i < WORK_BLOCKS; i++)
        keys[i] = i < WORK_SHARED ? work_shared_key(question.prompt, i)
                                  : 0xE000000000000000u | (q << 16) | i;
    return question;
}

void
work_reader_open(struct work_reader *reader, const struct work *work)
{
    struct kve_error err;

    memset(reader, 0, sizeof(*reader));
    if (kve_index_reader_create(work->index, &reader->reader, &err) != KVE_OK)
        work_die("reader", err.detail);
    kve_index_query_init(&reader->query);
    reader->query.ns = work->ns;
    reader->query.block_size = WORK_TOKENS;
    kve_index_answer_init(&reader->answer);
    reader->answer.cap = work->shape.n_workers;
    reader->answer.rows =
        work_must(calloc(reader->answer.cap, sizeof(*reader->answer.rows)));
}

void
work_reader_close(struct work_reader *reader)
{
    kve_index_reader_destroy(reader->reader);
    free(reader->answer.rows);
    memset(reader, 0, sizeof(*reader));
}

void
work_query(struct work_reader *reader, const uint64_t *contents)
{
    struct kve_error err;

    reader->query.contents = contents;
    reader->query.n_contents = WORK_BLOCKS;
    if (kve_index_query(
            reader->reader, &reader->query, &reader->answer, &err) != KVE_OK)
        work_die("query", err.detail);
}

/* Instances are named in the order they were added, so a worker is found
 * without a search where the names follow one another. */
static uint32_t
worker_of(const struct work *work, kve_instance instance)
{
    uint64_t guess = instance - work->instances[0];

    if (guess < work->shape.n_workers && work->instances[guess] == instance)
        return (uint32_t)guess;
    for (uint32_t w = 0; w < work->shape.n_workers; w++)
        if (work->instances[w] == instance)
            return w;
    work_die("answer", "a row of an instance that does not exist");
    return 0;
}

size_t
work_check(const struct work *work, struct work_question question,
    const struct kve_index_answer *answer)
{
    size_t expected = 0, moving = 0;
    uint32_t last = UINT32_MAX;

    for (uint32_t w = 0; w < work->shape.n_workers; w++)
        expected += work->times[w * WORK_PROMPTS + question.prompt] > 0;
    if (answer->n != answer->total ||
        (answer->n_moving == 0 && answer->n != expected))
        work_die("answer", "it has another number of rows");
    for (size_t i = 0; i < answer->n; i++) {
        const struct kve_index_row *row = &answer->rows[i];
        uint32_t w = worker_of(work, row->instance);
        uint32_t tokens =
            WORK_TOKENS * (w == question.whole ? WORK_BLOCKS : WORK_SHARED);
        bool may_be_less = (row->flags & KVE_ROW_MOVING) != 0;

        moving += may_be_less;
        if (work->times[w * WORK_PROMPTS + question.prompt] == 0)
            tokens = 0;
        if (row->longest > last || row->longest > tokens ||
            (row->longest < tokens && !may_be_less) ||
            row->alone[KVE_TIER_GPU] != row->longest)
            work_die("answer", "a row is wrong");
        last = row->longest;
    }
    return moving;
}

/* ---- clocks and figures ---------------------------------------------- */

static double
clock_of(clockid_t id)
{
    struct timespec t;

    (void)clock_gettime(id, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

double
work_cpu_ns(void)
{
    return clock_of(CLOCK_PROCESS_CPUTIME_ID);
}

double
work_thread_ns(void)
{
    return clock_of(CLOCK_THREAD_CPUTIME_ID);
}

double
work_wall_ns(void)
{
    return clock_of(CLOCK_MONOTONIC);
}

int
work_by_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

double
work_timer_cost(double (*clock_ns)(void))
{
    static float took[10001];
    size_t n = sizeof(took) / sizeof(*took);

    for (size_t i = 0; i < n; i++) {
        double start = clock_ns();

        took[i] = (float)(clock_ns() - start);
    }
    qsort(took, n, sizeof(*took), work_by_float);
    return took[n / 2];
}

double
work_resident(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;

    if (file == NULL || fscanf(file, "%*u %lu", &pages) != 1)
        work_die("/proc/self/statm", "cannot be read");
    (void)fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

void
work_print(const char *figure, const char *unit, double value)
{
    (void)printf("{\"figure\": \"%s\", \"unit\": \"%s\", \"value\": %.4f}\n",
        figure, unit, value);
    (void)fflush(stdout);
}
