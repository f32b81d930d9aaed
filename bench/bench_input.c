/*
 * The reader of questions alone, each variant of its kernel beside a bare scan
 * of the digits, which knows nothing of JSON and refuses nothing.
 *
 * Questions of 2,048 token ids, 2^21 ids in all, none read twice in a pass; and
 * of 128 hashes. Runs of the peer and of the variants take turns; the figures
 * are medians of CPU time. Nothing else should run on the core: pin it, as with
 * taskset -c 1.
 *
 * One JSON line a figure. There is no target for the reader alone; those of the
 * service, which uses it, are in run_service.py.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "http/input.h"
#include "http/input_digits.h"

#define BODIES 1024
#define TOKENS 2048
#define HASHES 128
#define RUNS 9

/* Room for one number and what stands around it. */
#define MOST_NUMBER 24

struct question {
    char *text;
    size_t len;
};

static struct question questions[BODIES];
static volatile uint64_t kept; /* what the peer read, lest it is left out */

static uint64_t
next_random(void)
{
    static uint64_t x = UINT64_C(88172645463325252);

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

static uint64_t
uniform(void)
{
    return next_random() % 131072;
}

/* As many of each count of digits, 1 to 6. */
static uint64_t
all_lengths(void)
{
    static const uint32_t tops[] = { 10, 100, 1000, 10000, 100000, 1000000 };

    return next_random() % tops[next_random() % 6];
}

static void
make(const char *field, size_t n, uint64_t (*number)(void), const char *comma,
    const char *quote)
{
    for (size_t i = 0; i < BODIES; i++) {
        struct question *question = &questions[i];
        size_t cap = n * MOST_NUMBER + 100, len;

        free(question->text);
        question->text = malloc(cap);
        if (question->text == NULL) {
            fprintf(stderr, "bench_input: out of memory\n");
            exit(1);
        }
        len = (size_t)snprintf(question->text, cap, "{\"%s\":[", field);
        for (size_t k = 0; k < n; k++)
            len += (size_t)snprintf(question->text + len, cap - len,
                "%s%s%llu%s", k > 0 ? comma : "", quote,
                (unsigned long long)number(), quote);
        len += (size_t)snprintf(
            question->text + len, cap - len, "],\"model_name\":\"m\"}");
        question->len = len;
    }
}

static double
now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static uint64_t
scan(const struct question *question)
{
    uint64_t sum = 0, value = 0;

    for (size_t i = 0; i < question->len; i++) {
        unsigned digit = (unsigned char)question->text[i] - '0';

        if (digit <= 9) {
            value = value * 10 + digit;
        } else {
            sum += value;
            value = 0;
        }
    }
    return sum;
}

/* us a question, in one pass over all. */
static double
pass_scan(void)
{
    double start = now_ns();

    for (size_t i = 0; i < BODIES; i++)
        kept += scan(&questions[i]);
    return (now_ns() - start) / 1e3 / BODIES;
}

static double
pass(struct kve_input *input)
{
    static const struct kve_input_limits limits = { 0, 0, 0, 0 };
    struct kve_input_error err;
    double start = now_ns();

    for (size_t i = 0; i < BODIES; i++) {
        if (kve_input_json(input, (const uint8_t *)questions[i].text,
                questions[i].len, &limits, &err) != KVE_INPUT_FINE) {
            fprintf(stderr, "bench_input: refused: %s\n", err.detail);
            exit(1);
        }
    }
    return (now_ns() - start) / 1e3 / BODIES;
}

static int
by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double
median(double *runs)
{
    qsort(runs, RUNS, sizeof(*runs), by_size);
    return runs[RUNS / 2];
}

/* Every variant, or the best alone. */
static void
compare(const char *what, bool variants)
{
    static double ours[KVE_DIGITS_N_VARIANTS][RUNS], peer[RUNS];
    struct kve_input input = { 0 };
    double middle;

    for (int run = 0; run < RUNS; run++) {
        peer[run] = pass_scan();
        for (int v = 0; v < KVE_DIGITS_N_VARIANTS; v++)
            if (kve_digits_use((enum kve_digits_variant)v))
                ours[v][run] = pass(&input);
    }
    middle = median(peer);
    for (int v = 0; v < KVE_DIGITS_N_VARIANTS; v++) {
        enum kve_digits_variant variant = (enum kve_digits_variant)v;
        double us;

        if (!kve_digits_variant_runs(variant) || (!variants && v > 0))
            continue;
        us = median(ours[v]);
        printf("{\"figure\": \"question of %s, %s\", \"unit\": \"us CPU\", "
               "\"ours\": %.2f, \"peer\": %.2f, \"ratio\": %.2f, \"target\": "
               "null, \"met\": null}\n",
            what, variants ? kve_digits_variant_name(variant) : "all", us,
            middle, middle / us);
    }
    kve_input_release(&input);
}

int
main(void)
{
    make("token_ids", TOKENS, uniform, ",", "");
    compare("2,048 tokens", true);
    make("token_ids", TOKENS, uniform, ", ", "");
    compare("2,048 tokens, spaced", true);
    make("token_ids", TOKENS, all_lengths, ",", "");
    compare("2,048 tokens of 1 to 6 digits", true);
    make("block_hashes", HASHES, next_random, ",", "");
    compare("128 hashes", false);
    make("block_hashes", HASHES, next_random, ",", "\"");
    compare("128 hashes as texts", false);
    for (size_t i = 0; i < BODIES; i++)
        free(questions[i].text);
    return 0;
}
