/*
 * runs.c - see runs.h.
 */
#include "runs.h"

#include "arena.h"
#include "base/clock.h"
#include "explore.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Which worlds a search is for; each row is run for all that it allows. */
enum {
    NO_REPLAY = 1,
    REPLAY = 2,
    NO_SNAPSHOTS = 4,
    SNAPSHOTS = 8,
    NO_IDS = 16,
    IDS = 32,
    KEEP = 64,
    REBUILD = 128,
    ANY = 255
};

#define PLAIN (NO_SNAPSHOTS | NO_IDS)
#define ALL_LETTERS "PQpDJCKreRaWhFTHUZXYBSsLNG"
#define READER_TOO ALL_LETTERS "VM"

struct run {
    const char *name;
    unsigned worlds; /* of the names above: at least one of each pair */
    uint8_t cap;     /* batches that the publisher keeps */
    uint8_t hold;    /* batches that the machine may hold */
    const char *start;
    const char *alphabet;
    unsigned length; /* 0: only with the longer ones */
    unsigned longer;
};

/* The whole alphabet in every world, and longer ones over the twelve or more
 * inputs that belong to one subject. */
static const struct run runs[] = {
    { "everything", ANY, 2, 2, "", ALL_LETTERS, 5, 6 },
    { "everything, replay", REPLAY | PLAIN | KEEP | REBUILD, 2, 2, "",
        ALL_LETTERS, 0, 8 },
    { "everything, a long buffer", REPLAY | PLAIN | REBUILD, 8, 4, "",
        ALL_LETTERS, 0, 7 },
    { "everything, snapshots", SNAPSHOTS | REPLAY | IDS | REBUILD, 2, 2, "",
        ALL_LETTERS, 0, 7 },
    { "everything, no replay", NO_REPLAY | PLAIN | KEEP, 2, 2, "", ALL_LETTERS,
        0, 7 },
    { "losses, repaired by replay", REPLAY | PLAIN | KEEP | REBUILD, 2, 2, "",
        "PpQDJCKaWhFTH", 8, 10 },
    { "restarts, seen by replay", REPLAY | PLAIN | KEEP, 2, 2, "",
        "PpQDCKreRaWT", 8, 9 },
    { "restarts, seen by ids", REPLAY | NO_SNAPSHOTS | IDS | REBUILD, 2, 2, "",
        "PpQDCKreRaWT", 7, 9 },
    { "without replay", NO_REPLAY | PLAIN | REBUILD, 2, 2, "", "PpQDJCKrRXHUZ",
        7, 8 },
    { "heartbeats", REPLAY | NO_SNAPSHOTS | IDS | KEEP, 2, 2, "",
        "PpQCKrWhTBUZ", 7, 9 },
    { "snapshots", NO_REPLAY | SNAPSHOTS | NO_IDS | KEEP, 2, 2, "",
        "PpQCKrRSsLNT", 8, 10 },
    { "snapshots and replay", REPLAY | SNAPSHOTS | IDS | REBUILD, 2, 2, "",
        "PpCKrRaWTSsLN", 8, 10 },
    { "a warm source", REPLAY | PLAIN | KEEP | REBUILD, 2, 2, "CWPP",
        "PpQDJCKreRaWhFTU", 6, 8 },
    { "a long buffer", REPLAY | PLAIN | REBUILD, 8, 4, "", "PpQDCKRaWhFT", 8,
        10 },
    /* The reader saved its copy after two batches, and may do so again. */
    { "saved, no replay", (ANY & ~REPLAY) & ~SNAPSHOTS, 2, 2, "CPPV",
        READER_TOO, 4, 6 },
    { "saved, replay", (ANY & ~NO_REPLAY) & ~SNAPSHOTS, 4, 2, "CWPPV",
        READER_TOO, 4, 6 },
    { "saved, snapshots", ANY & ~NO_SNAPSHOTS, 4, 2, "CSPPV", READER_TOO, 4,
        5 },
    { "saved and followed", REPLAY | PLAIN | KEEP | REBUILD, 4, 2, "CWPPV",
        "PpQDCKreRaWTVM", 6, 8 },
    { "saved and followed, ids", REPLAY | NO_SNAPSHOTS | IDS | REBUILD, 4, 2,
        "CWPPV", "PpQCKreRaWTVM", 5, 7 },
    { "saved and followed, a short buffer", REPLAY | PLAIN | KEEP | REBUILD, 1,
        2, "CWPPV", "PpQCKeRWhTVM", 5, 7 },
    { "saved and followed, snapshots",
        SNAPSHOTS | IDS | NO_IDS | NO_REPLAY | REPLAY | REBUILD, 2, 2, "CSPPV",
        "PpCrRaWTSVM", 6, 8 },
    { "saved and followed, no replay", NO_REPLAY | PLAIN | KEEP | REBUILD, 2, 2,
        "CPPV", "PpQDCKrRUZVM", 6, 8 },
    { "saved in doubt", REPLAY | PLAIN | REBUILD, 8, 4, "CWPPKC", "PQDWTKCreVM",
        6, 8 },
    { "saved in doubt, with leftovers", REPLAY | PLAIN | KEEP, 8, 4,
        "CWPPQQeCW", "PDWTVMC", 7, 10 },
    { "saved in doubt, a leftover between", REPLAY | PLAIN | KEEP | REBUILD, 8,
        4, "CWPPQrppCWWDPP", "PpQDKCWTVM", 5, 7 },
};

#define N_WORLDS 16
#define SAY_EVERY 5000000 /* schedules */

/* Many of what goes well, few of what goes wrong. */
#define DRAWN                                                                 \
    "PPPPPPPPQQQQppppDDDDDDJJCCCCCCCCKKKreRaaaaWWWWWWWWhFTTTTTTHUZXYBBSSSSSS" \
    "ssLNG"
#define DRAWN_TOO DRAWN "VVVMM"

/* Of these seeds the reader restarts, too. */
#define RESUMING (UINT64_C(1) << 40)

/* World number i of 16, if a row allows it. */
static bool
make_config(const struct run *run, unsigned i, struct config *ret_config)
{
    static const struct {
        unsigned off;
        unsigned on;
        const char *name;
    } pairs[] = {
        { NO_REPLAY, REPLAY, "replay " },
        { NO_SNAPSHOTS, SNAPSHOTS, "snapshots " },
        { NO_IDS, IDS, "ids " },
        { KEEP, REBUILD, "rebuild " },
    };
    static char name[64];

    name[0] = '\0';
    for (unsigned p = 0; p < 4; p++) {
        bool on = (i & (1U << p)) != 0;
        if ((run->worlds & (on ? pairs[p].on : pairs[p].off)) == 0)
            return false;
        strcat(name, on ? pairs[p].name : "");
    }
    (void)snprintf(name + strlen(name), sizeof(name) - strlen(name),
        "buffer %u hold %u", run->cap, run->hold);
    memset(ret_config, 0, sizeof(*ret_config));
    ret_config->name = name;
    ret_config->replay = (i & 1) != 0;
    ret_config->snapshot = (i & 2) != 0;
    ret_config->ids = (i & 4) != 0;
    ret_config->rebuild = (i & 8) != 0;
    ret_config->cap = run->cap;
    ret_config->hold_items = run->hold;
    return true;
}

/* Under a sanitizer everything is ten times slower, and two letters less are
 * ten times fewer schedules. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWER 2
#else
#define SLOWER 0
#endif

static unsigned
limit_of(unsigned length)
{
    const char *text = getenv("KVE_EXHAUSTIVE_LENGTH");
    unsigned limit =
        text != NULL ? (unsigned)strtoul(text, NULL, 10) : length - SLOWER;

    return limit < length ? limit : length;
}

static void
print_found(const char *what, const struct found *found, int64_t began)
{
    unsigned inputs = 0;

    for (unsigned i = 0; i < N_LETTERS; i++)
        inputs += found->seen[i] > 0;
    (void)printf("%s: %u inputs seen, %" PRIu64 " schedules, %" PRIu64
                 " points, %" PRIu64 " steps, %.1f s\n",
        what, inputs, found->schedules, found->points, found->steps,
        (double)(kve_now_ns() - began) / (1000.0 * (double)KVE_MS));
    (void)fflush(stdout);
}

static bool
run_search(
    const struct run *run, unsigned world, unsigned length, struct found *all)
{
    struct config config;
    struct found found = { 0 };
    struct search search = { &config, run->start, run->alphabet,
        limit_of(length) };
    int64_t began = kve_now_ns();
    char what[200];
    bool good;

    if (!make_config(run, world, &config))
        return true;
    good = explore(&search, &found);
    (void)snprintf(what, sizeof(what), "%s, %s, length %u", run->name,
        config.name, search.length);
    print_found(what, &found, began);
    all->schedules += found.schedules;
    all->points += found.points;
    all->steps += found.steps;
    for (unsigned i = 0; i < N_LETTERS; i++)
        all->seen[i] += found.seen[i];
    return good;
}

bool
run_searches(bool longer)
{
    const size_t n = sizeof(runs) / sizeof(runs[0]);
    struct found all = { 0 };
    int64_t began = kve_now_ns();
    bool good = true;

    kve_arena_install();
    for (size_t i = 0; i < n && good; i++) {
        unsigned length = longer ? runs[i].longer : runs[i].length;

        for (unsigned world = 0; length > 0 && world < N_WORLDS && good;
             world++)
            good = run_search(&runs[i], world, length, &all);
    }
    print_found("all", &all, began);
    return good && all.schedules > 0;
}

/* ---- at random ----------------------------------------------------- */

static bool
run_seed(uint64_t seed, bool verbose, struct found *found)
{
    static const uint8_t caps[] = { 1, 2, 3, 8 };
    static const uint8_t holds[] = { 1, 2, 4, 12 };
    struct run run = { "random", ANY, caps[seed / 16 % 4], holds[seed / 64 % 4],
        "", seed < RESUMING ? DRAWN : DRAWN_TOO, 0, 0 };
    struct config config;

    (void)make_config(&run, (unsigned)(seed % N_WORLDS), &config);
    return explore_random(&config, run.alphabet, seed,
        20 + (unsigned)(seed % 21), verbose, found);
}

bool
run_random(uint64_t n)
{
    const char *count = getenv("KVE_SCHEDULES");
    const char *seed = getenv("KVE_SCHEDULES_SEED");
    const char *from = getenv("KVE_SCHEDULES_FROM");
    struct found found = { 0 };
    int64_t began = kve_now_ns();
    uint64_t first = from != NULL ? strtoull(from, NULL, 10) : 0;
    bool good = true;

    kve_arena_install();
    if (seed != NULL)
        return run_seed(strtoull(seed, NULL, 10), true, &found);
    if (count != NULL)
        n = strtoull(count, NULL, 10);
    for (uint64_t i = 0; i < n && good; i++) {
        if (i > 0 && i % SAY_EVERY == 0)
            print_found("so far", &found, began);
        good = run_seed(first + i + (i % 4 == 3 ? RESUMING : 0), false, &found);
    }
    print_found("random", &found, began);
    return good && found.schedules == n;
}

bool
run_seeds(const uint64_t *seeds, size_t n)
{
    struct found found = { 0 };
    bool good = true;

    kve_arena_install();
    for (size_t i = 0; i < n && good; i++)
        good = run_seed(seeds[i], false, &found);
    return good;
}
