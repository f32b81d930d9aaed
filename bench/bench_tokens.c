/*
 * The token kernel alone, each variant beside a loop with a table of lengths.
 *
 * 2^21 token ids a pass, none decoded twice in it: on input that repeats, the
 * branch predictor learns the lengths by heart and any loop looks fast. The
 * lists stand as in events, with other fields between them, and each list is
 * found where the decoder said that the one before it ends. Runs of the peer
 * and of the variants take turns; the figures are medians of CPU time. Nothing
 * else should run on the core: pin it, as with taskset -c 1.
 *
 * One JSON line a figure. There is no target for a variant alone; those of the
 * codec, which uses it, are in run_codec.py.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "wire/tokens.h"

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

#define N_TOKENS ((size_t)1 << 21)
#define VOCABULARY 131072
#define RUNS 9

/* What stands between two lists: block size and other fields of an event,
 * then the next list's head. */
static const uint8_t between[] = { 0x10, 0xc0, 0xa3, 'G', 'P', 'U', 0xc0, 0x98,
    0xa0, 0xdc, 0x00, 0x10 };

static uint64_t
next_random(void)
{
    static uint64_t x = UINT64_C(88172645463325252);

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

static uint32_t
uniform(void)
{
    return (uint32_t)(next_random() % VOCABULARY);
}

static uint32_t
three_bytes(void)
{
    return 256 + (uint32_t)(next_random() % (65536 - 256));
}

/* Rank r is 1/r as likely as the first: the way of words in a text. */
static uint32_t
zipf(void)
{
    static double below[VOCABULARY + 1];
    size_t lo = 0, hi = VOCABULARY - 1;
    double u;

    if (below[1] == 0) {
        for (size_t i = 0; i < VOCABULARY; i++)
            below[i + 1] = below[i] + 1.0 / (double)(i + 1);
    }
    u = (double)(next_random() >> 11) / 9007199254740992.0 * below[VOCABULARY];
    while (lo < hi) {
        size_t middle = (lo + hi) / 2;

        if (below[middle + 1] <= u)
            lo = middle + 1;
        else
            hi = middle;
    }
    return (uint32_t)lo;
}

static uint8_t *
put(uint8_t *w, uint32_t v)
{
    int width = v < 0x80 ? 0 : v < 0x100 ? 1 : v < 0x10000 ? 2 : 4;

    if (width == 0)
        *w++ = (uint8_t)v;
    else
        *w++ = width == 1 ? 0xcc : width == 2 ? 0xcd : 0xce;
    while (width-- > 0)
        *w++ = (uint8_t)(v >> (8 * width));
    return w;
}

/* ---- the peer ---- */

static uint8_t len_of[256];
static uint8_t shift_of[256];
static uint32_t mask_of[256];

static void
fill_tables(void)
{
    for (int i = 0; i < 0x80; i++) {
        len_of[i] = 1;
        shift_of[i] = 56;
        mask_of[i] = 0x7f;
    }
    for (int i = 0; i < 3; i++) {
        len_of[0xcc + i] = (uint8_t)(1 + (1 << i));
        shift_of[0xcc + i] = (uint8_t)(64 - 8 * (1 + (1 << i)));
        mask_of[0xcc + i] = UINT32_MAX >> (32 - 8 * (1 << i));
    }
}

/* Eight bytes can be read behind all lists here: no end to look out for. */
static const uint8_t *
decode_by_table(const uint8_t *p, size_t n, uint32_t *out)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t tag = *p;
        uint64_t bytes;

        if (len_of[tag] == 0)
            return NULL;
        memcpy(&bytes, p, sizeof(bytes));
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        bytes = __builtin_bswap64(bytes);
#endif
        out[i] = (uint32_t)(bytes >> shift_of[tag]) & mask_of[tag];
        p += len_of[tag];
    }
    return p;
}

/* ---- runs ---- */

struct lists {
    uint8_t *bytes;
    size_t len;
    uint32_t *tokens;
    size_t n; /* tokens in each */
};

enum { PEER = -1 };

/* The list at p, by the peer or a variant; gives up when it is refused. */
static const uint8_t *
decode(const struct lists *lists, const uint8_t *p, int who, uint32_t *out)
{
    const uint8_t *stop;
    size_t done;

    p += sizeof(between);
    if (who == PEER)
        p = decode_by_table(p, lists->n, out);
    else
        p = kve_tokens_decode(
            p, lists->bytes + lists->len, lists->n, out, &stop, &done);
    if (p == NULL) {
        fprintf(stderr, "bench_tokens: a list was refused\n");
        exit(1);
    }
    return p;
}

static void
make(struct lists *lists, uint32_t (*token)(void), size_t n)
{
    uint8_t *w = lists->bytes;

    for (size_t i = 0; i < N_TOKENS; i++) {
        if (i % n == 0) {
            memcpy(w, between, sizeof(between));
            w += sizeof(between);
        }
        lists->tokens[i] = token();
        w = put(w, lists->tokens[i]);
    }
    memcpy(w, between, sizeof(between));
    w += sizeof(between);
    lists->len = (size_t)(w - lists->bytes);
    lists->n = n;
}

static void
verify(const struct lists *lists, int who, uint32_t *out)
{
    const uint8_t *p = lists->bytes;

    for (size_t i = 0; i < N_TOKENS; i += lists->n) {
        p = decode(lists, p, who, out);
        if (memcmp(out, lists->tokens + i, lists->n * sizeof(*out)) != 0) {
            fprintf(stderr, "bench_tokens: a list came out wrong\n");
            exit(1);
        }
    }
}

static double
now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* ns a token, in one pass over all lists. */
static double
pass(const struct lists *lists, int who, uint32_t *out)
{
    const uint8_t *p = lists->bytes;
    double timer = now_ns(), start = now_ns();

    timer = start - timer;
    for (size_t i = 0; i < N_TOKENS; i += lists->n)
        p = decode(lists, p, who, out);
    return (now_ns() - start - timer) / (double)N_TOKENS;
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

static const struct {
    const char *name;
    uint32_t (*token)(void);
} distributions[] = {
    { "uniform", uniform },
    { "3 bytes", three_bytes },
    { "zipf", zipf },
};

static const size_t lengths[3] = { 16, 64, 4096 };

static void
print(size_t d, size_t l, int who, double ours, double peer)
{
    printf("{\"figure\": \"tokens %s, %zu a list, %s\", \"unit\": "
           "\"ns CPU/token\", \"ours\": %.3f, \"peer\": %.3f, \"ratio\": %.2f, "
           "\"target\": null, \"met\": null}\n",
        distributions[d].name, lengths[l],
        kve_tokens_variant_name((enum kve_tokens_variant)who), ours, peer,
        peer / ours);
}

static void
compare(struct lists *lists, size_t d, size_t l, uint32_t *out)
{
    double ours[KVE_TOKENS_N_VARIANTS][RUNS], peer[RUNS], middle;

    make(lists, distributions[d].token, lengths[l]);
    for (int who = PEER; who < KVE_TOKENS_N_VARIANTS; who++) {
        if (who == PEER || kve_tokens_use((enum kve_tokens_variant)who))
            verify(lists, who, out);
    }
    for (int run = 0; run < RUNS; run++) {
        peer[run] = pass(lists, PEER, out);
        for (int who = 0; who < KVE_TOKENS_N_VARIANTS; who++) {
            if (kve_tokens_use((enum kve_tokens_variant)who))
                ours[who][run] = pass(lists, who, out);
        }
    }
    middle = median(peer);
    for (int who = 0; who < KVE_TOKENS_N_VARIANTS; who++) {
        if (kve_tokens_variant_runs((enum kve_tokens_variant)who))
            print(d, l, who, median(ours[who]), middle);
    }
}

int
main(void)
{
    static uint32_t out[4096 + KVE_TOKENS_SLACK];
    struct lists lists = { 0 };
    int code = 1;

    fill_tables();
    lists.bytes = malloc(N_TOKENS * 5 + (N_TOKENS / 16 + 1) * sizeof(between));
    lists.tokens = malloc(N_TOKENS * sizeof(*lists.tokens));
    if (lists.bytes == NULL || lists.tokens == NULL) {
        fprintf(stderr, "bench_tokens: out of memory\n");
        goto out;
    }
    for (size_t d = 0; d < N_OF(distributions); d++) {
        for (size_t l = 0; l < N_OF(lengths); l++)
            compare(&lists, d, l, out);
    }
    code = 0;

out:
    free(lists.tokens);
    free(lists.bytes);
    return code;
}
