/*
 * streams.c - see streams.h.
 */
#include "streams.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t current_seed;

/* The seed is worth more than anything else when the process dies. */
static void
on_death(int number)
{
    char text[] = "died in the stream of seed                     \n";
    char *at = text + sizeof(text) - 3;

    for (uint64_t seed = current_seed;; seed /= 10) {
        *at-- = (char)('0' + seed % 10);
        if (seed < 10)
            break;
    }
    (void)!write(STDERR_FILENO, text, sizeof(text) - 1);
    signal(number, SIG_DFL);
    raise(number);
}

uint64_t
streams_number(const char *name, uint64_t usual)
{
    const char *text = getenv(name);

    return text != NULL ? strtoull(text, NULL, 10) : usual;
}

void
streams_draw(struct script *script, uint64_t seed, bool consistent)
{
    struct script_source source = { seed * UINT64_C(0x9e3779b97f4a7c15), NULL,
        0, false };

    const struct script_draft draft = { consistent,
        consistent ? 0 : streams_number("KVE_INDEX_LINES", 0),
        consistent ? 0 : streams_number("KVE_INDEX_EVERY", 0) };

    current_seed = seed;
    script_draw(script, &source, &draft);
}

bool
streams_run(uint64_t usual)
{
    uint64_t seed = streams_number("KVE_INDEX_SEED", 1);
    uint64_t n = streams_number("KVE_INDEX_STREAMS", usual);
    struct script *script = malloc(sizeof(*script));
    char problem[512] = "";
    uint64_t events = 0;
    bool good = script != NULL;

    signal(SIGABRT, on_death);
    signal(SIGSEGV, on_death);
    (void)fprintf(
        stderr, "%" PRIu64 " streams from seed %" PRIu64 "\n", n, seed);
    for (uint64_t i = 0; i < n && good; i++) {
        streams_draw(script, seed + i, false);
        events += script_events(script);
        good = script_run(script, problem);
        if (good)
            continue;
        (void)fprintf(stderr, "seed %" PRIu64 ": %s\n", seed + i, problem);
        script_shrink(script);
        script_print(script);
    }
    (void)fprintf(stderr, "%" PRIu64 " events\n", events);
    free(script);
    return good;
}
