/*
 * attacks.c - see attacks.h.
 */
#include "attacks.h"

#include "base/alloc.h"
#include "streams.h"
#include "support/indexcheck.h"

#include <kvevents/counters.h>
#include <kvevents/index.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOKENS 16u
#define BLOCKS 1024u
#define MIB ((uint64_t)1024 * 1024)
/* Of two namespaces that are equally busy none has less, in thousandths. */
#define SHARE_LEAST 375u

static uint64_t
mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* ---- one event ---- */

/* Who sends, and what the next event will be. */
struct sender {
    kve_index *index;
    kve_instance instance;
    struct kve_event event;
    struct kve_hash hashes[BLOCKS];
    uint64_t contents[BLOCKS];
    uint8_t bytes[BLOCKS * 80];
    char text[512];
};

/* Hashes number from..from+n-1, of len bytes (0: integers), and contents. */
static void
begin(struct sender *s, unsigned type, uint64_t from, size_t n, size_t len)
{
    memset(&s->event, 0, sizeof(s->event));
    for (size_t i = 0; i < n; i++) {
        uint64_t number = mix(2 * (from + i));
        uint8_t *at = s->bytes + i * len;

        s->contents[i] = mix(2 * (from + i) + 1);
        s->hashes[i] = (struct kve_hash){ NULL, { number } };
        if (len == 0)
            continue;
        memset(at, 0x5a, len);
        memcpy(at, &number, len < 8 ? len : 8);
        s->hashes[i] = (struct kve_hash){ at, { .len = len } };
    }
    s->event.type = (uint8_t)type;
    s->event.hashes = s->hashes;
    s->event.n_hashes = n;
    s->event.block_size = TOKENS;
    s->event.tier = KVE_TIER_GPU;
}

/* Allocations are made to fail. */
static bool starving;

static void
send(struct sender *s)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    bool with = s->event.type == KVE_EVENT_STORED && s->event.block_size > 0;
    kve_status status;

    view.events = &s->event;
    view.n_events = 1;
    status = kve_index_apply(s->index, s->instance, &view, s->contents,
        with ? s->event.n_hashes : 0, NULL, NULL);
    assert_true(status == KVE_OK || (starving && status == KVE_E_NOMEM));
}

static struct kve_str
text(struct sender *s, const char *format, uint64_t number)
{
    int n = snprintf(s->text, sizeof(s->text), format, number);

    return (struct kve_str){ s->text, (size_t)n };
}

/* ---- streams: each sends the i-th event, returns how many hashes ---- */

static size_t
chains(struct sender *s, uint64_t i)
{
    begin(s, KVE_EVENT_STORED, 8 * i, 8, 0);
    send(s);
    return 8;
}

static size_t
chains_32(struct sender *s, uint64_t i)
{
    begin(s, KVE_EVENT_STORED, 8 * i, 8, 32);
    send(s);
    return 8;
}

/* Hashes of unusual lengths. */
static size_t
chains_odd(struct sender *s, uint64_t i)
{
    begin(s, KVE_EVENT_STORED, 4 * i, 4, 9 + i % 71);
    send(s);
    return 4;
}

/* One chain without an end. */
static size_t
one_chain(struct sender *s, uint64_t i)
{
    begin(s, KVE_EVENT_STORED, 16 * i, 16, 0);
    s->event.has_parent = i > 0;
    s->event.parent = (struct kve_hash){ NULL, { mix(2 * (16 * i - 1)) } };
    send(s);
    return 16;
}

/* The same, with a size that changes from block to block. */
static size_t
one_chain_of_sizes(struct sender *s, uint64_t i)
{
    begin(s, KVE_EVENT_STORED, i, 1, 0);
    s->event.block_size = 8 + 8 * (i % 2);
    s->event.has_parent = i > 0;
    s->event.parent = (struct kve_hash){ NULL, { mix(2 * (i - 1)) } };
    send(s);
    return 1;
}

static size_t
long_events(struct sender *s, uint64_t i)
{
    begin(s, KVE_EVENT_STORED, BLOCKS * i, BLOCKS, 0);
    send(s);
    return BLOCKS;
}

static size_t
waiting(struct sender *s, uint64_t i)
{
    begin(s, KVE_EVENT_STORED, 4 * i, 4, 0);
    s->event.has_parent = true;
    s->event.parent = (struct kve_hash){ NULL, { mix(~i) } };
    send(s);
    return 4;
}

static size_t
by_hash_only(struct sender *s, uint64_t i)
{
    begin(s, KVE_EVENT_STORED, 16 * i, 16, i % 2 == 0 ? 0 : 32);
    s->event.block_size = 0;
    send(s);
    return 16;
}

/* Each chain with an adapter and a salt of its own. */
static size_t
roots(struct sender *s, uint64_t i)
{
    char salt[200];

    begin(s, KVE_EVENT_STORED, 2 * i, 2, 0);
    s->event.lora_name = text(s, "adapter-%" PRIu64, i);
    memset(salt, 's', sizeof(salt));
    s->event.cache_salt = (struct kve_str){ salt, i % sizeof(salt) };
    send(s);
    return 2;
}

/* Scopes and groups until there may be no more. */
static size_t
scopes(struct sender *s, uint64_t i)
{
    begin(s, KVE_EVENT_STORED, i, 1, 0);
    s->event.medium = text(s, "a medium of a rather long name %" PRIu64, i);
    s->event.group_idx = (struct kve_int){ true, (int64_t)i };
    send(s);
    return 1;
}

/* Chains that branch at every block, and are cut. */
static size_t
branches(struct sender *s, uint64_t i)
{
    begin(s, KVE_EVENT_STORED, 64 * (i / 64), 64, 0);
    for (size_t k = i % 64; k < 64; k++) {
        s->hashes[k].integer = mix(i * 64 + k) | 1;
        s->contents[k] = mix(~(i * 64 + k));
    }
    send(s);
    return 64;
}

/* Copies upon copies, then holes. */
static size_t
copies(struct sender *s, uint64_t i)
{
    begin(s, i % 3 == 2 ? KVE_EVENT_REMOVED : KVE_EVENT_STORED, 64 * (i / 6),
        64, 0);
    if (i % 3 == 2)
        s->event.n_hashes = 7;
    send(s);
    return s->event.n_hashes;
}

/* Another instance for every event, under a long name. */
static size_t
instances(struct sender *s, uint64_t i)
{
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    struct sender other;
    char name[400];
    kve_status status;

    memset(name, 'n', sizeof(name));
    (void)snprintf(name + 380, 20, "%" PRIu64, i);
    spec.ns = 1;
    spec.worker = name;
    status = kve_index_add(s->index, &spec, &other.instance, NULL);
    if (status != KVE_OK) {
        assert_true(status == KVE_E_LIMIT || status == KVE_E_NOMEM);
        return chains(s, i);
    }
    other.index = s->index;
    begin(&other, KVE_EVENT_STORED, i, 1, 0);
    other.event.medium = text(&other, "tier %" PRIu64, i);
    send(&other);
    return 1;
}

/* A removal of what was never there, a clear now and then, and stores. */
static size_t
mixture(struct sender *s, uint64_t i)
{
    static size_t (*const all[])(struct sender *, uint64_t) = { chains,
        chains_32, chains_odd, waiting, by_hash_only, roots, branches, copies,
        one_chain_of_sizes };

    if (i % 20000 == 19999) {
        begin(s, KVE_EVENT_CLEARED, 0, 0, 0);
        send(s);
        return 1;
    }
    return all[mix(i) % (sizeof(all) / sizeof(all[0]))](s, i);
}

/* ---- what must hold ---- */

static uint64_t
resident(void)
{
    unsigned long pages = 0, size = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu %lu", &size, &pages), 2);
    (void)fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static struct kve_index_stats
stats_of(const kve_index *index)
{
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;

    assert_int_equal(kve_index_get_stats(index, 0, &stats), KVE_OK);
    return stats;
}

/* What is held and what was forgotten is what was stored and not removed. */
static void
check_sums(kve_index *index, const char *name)
{
    uint64_t stored = kve_index_counter(index, 0, KVE_COUNTER_INDEX_STORED);
    uint64_t removed = kve_index_counter(index, 0, KVE_COUNTER_INDEX_REMOVED);
    uint64_t evicted = kve_index_counter(index, 0, KVE_COUNTER_INDEX_EVICTED);
    uint64_t clears = kve_index_counter(index, 0, KVE_COUNTER_INDEX_CLEARS);
    struct kve_index_stats stats = stats_of(index);

    if (clears == 0 && stored != removed + evicted + stats.copies) {
        print_error("%s: stored %" PRIu64 ", removed %" PRIu64
                    ", forgotten %" PRIu64 ", held %" PRIu64 "\n",
            name, stored, removed, evicted, stats.copies);
        fail();
    }
}

static void
attack(const char *name, size_t (*stream)(struct sender *, uint64_t),
    uint64_t max_bytes, uint64_t hashes)
{
    struct kve_index_opts opts = KVE_INDEX_OPTS_INIT;
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    struct sender *s = calloc(1, sizeof(*s));
    char problem[INDEXCHECK_TEXT];
    uint64_t before, most = 0, most_resident = 0, i = 0, refused;
    struct kve_index_stats stats;
    kve_namespace ns;

    assert_non_null(s);
    before = resident();
    opts.max_bytes = max_bytes;
    assert_int_equal(kve_index_create(&opts, &s->index, NULL), KVE_OK);
    assert_int_equal(kve_index_namespace(s->index, "m", "", &ns, NULL), KVE_OK);
    spec.ns = ns;
    spec.worker = "a";
    assert_int_equal(
        kve_index_add(s->index, &spec, &s->instance, NULL), KVE_OK);
    for (uint64_t sent = 0; sent < hashes; i++) {
        sent += stream(s, i);
        stats = stats_of(s->index);
        most = stats.bytes > most ? stats.bytes : most;
        if (i % 1024 == 0 && resident() - before > most_resident)
            most_resident = resident() - before;
    }
    refused = kve_index_counter(s->index, 0, KVE_COUNTER_INDEX_REFUSED_MEMORY);
    print_message("%-20s %8" PRIu64 " events, %7" PRIu64
                  " copies, at most %6" PRIu64 " KiB, resident %6" PRIu64
                  "; forgotten %8" PRIu64 ", refused %" PRIu64 "\n",
        name, i, stats.copies, most >> 10, most_resident >> 10,
        kve_index_counter(s->index, 0, KVE_COUNTER_INDEX_EVICTED), refused);
    assert_true(most <= max_bytes);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    /* Names of lists and the like come from the heap, which rounds. */
    assert_true(most_resident <= max_bytes + MIB);
#endif
    check_sums(s->index, name);
    if (!indexcheck(s->index, false, problem)) {
        print_error("%s: %s\n", name, problem);
        fail();
    }
    /* It goes on working, however it was treated. */
    if (stream != scopes && stream != instances) {
        assert_true(refused * 10 <= i);
        assert_true(stats.blocks > 0);
    }
    kve_index_destroy(s->index);
    free(s);
}

void
limits_attack(uint64_t max_bytes, uint64_t hashes)
{
    int64_t live = kve_mem_live();

#define ATTACK(stream) attack(#stream, stream, max_bytes, hashes)
    ATTACK(chains);
    ATTACK(chains_32);
    ATTACK(chains_odd);
    ATTACK(one_chain);
    ATTACK(one_chain_of_sizes);
    ATTACK(long_events);
    ATTACK(waiting);
    ATTACK(by_hash_only);
    ATTACK(roots);
    ATTACK(scopes);
    ATTACK(branches);
    ATTACK(copies);
    ATTACK(instances);
    ATTACK(mixture);
#undef ATTACK
    assert_true(kve_mem_live() == live);
}

/* ---- without memory ---- */

bool
limits_starve_once(uint64_t n, bool for_a_while, uint64_t events)
{
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    struct sender *s = calloc(1, sizeof(*s));
    int64_t live = kve_mem_live();
    char problem[INDEXCHECK_TEXT];
    kve_namespace ns;
    bool failed;

    assert_non_null(s);
    assert_int_equal(kve_index_create(NULL, &s->index, NULL), KVE_OK);
    assert_int_equal(kve_index_namespace(s->index, "m", "", &ns, NULL), KVE_OK);
    spec.ns = ns;
    spec.worker = "a";
    assert_int_equal(
        kve_index_add(s->index, &spec, &s->instance, NULL), KVE_OK);
    starving = true;
    kve_mem_fail_at(n, for_a_while);
    for (uint64_t i = 0; i < events; i++) {
        (void)mixture(s, i);
        if (for_a_while && i % 32 == 31 && kve_mem_failed())
            kve_mem_fail_at(0, false);
    }
    failed = kve_mem_failed();
    kve_mem_fail_at(0, false);
    starving = false;
    if (!indexcheck(s->index, false, problem)) {
        print_error("allocation %" PRIu64 " %s: %s\n", n,
            for_a_while ? "and more" : "alone", problem);
        fail();
    }
    /* And everything goes. */
    assert_int_equal(kve_index_drop(s->index, s->instance, NULL), KVE_OK);
    while (kve_index_tidy(s->index, 100000))
        ;
    kve_index_destroy(s->index);
    free(s);
    assert_true(kve_mem_live() == live);
    return failed;
}

void
limits_starve(uint64_t events)
{
    uint64_t n = 1;

    while (limits_starve_once(n, false, events)) {
        (void)limits_starve_once(n, true, events);
        n += 1 + n / 16;
    }
    print_message("%" PRIu64 " allocations\n", n);
}

/* ---- shared by two namespaces ---- */

#define SHARERS 2

struct sharers {
    kve_index *index;
    kve_namespace ns[SHARERS];
    struct sender s[SHARERS];
    uint64_t lowest; /* part of both, in thousandths, that one ever had */
};

static struct sharers *
sharers_create(uint64_t max_bytes)
{
    struct kve_index_opts opts = KVE_INDEX_OPTS_INIT;
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    struct sharers *sh = calloc(1, sizeof(*sh));

    assert_non_null(sh);
    opts.max_bytes = max_bytes;
    spec.worker = "a";
    sh->lowest = 1000;
    assert_int_equal(kve_index_create(&opts, &sh->index, NULL), KVE_OK);
    for (int i = 0; i < SHARERS; i++) {
        const char *model = i == 0 ? "m" : "n";

        sh->s[i].index = sh->index;
        assert_int_equal(
            kve_index_namespace(sh->index, model, "", &sh->ns[i], NULL),
            KVE_OK);
        spec.ns = sh->ns[i];
        assert_int_equal(
            kve_index_add(sh->index, &spec, &sh->s[i].instance, NULL), KVE_OK);
    }
    return sh;
}

static void
sharers_destroy(struct sharers *sh)
{
    kve_index_destroy(sh->index);
    free(sh);
}

/* Nobody was refused, and neither has much less than the other: what one has
 * clearly more (a quarter) goes to the other, in pieces. */
static void
check_shares(struct sharers *sh)
{
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;
    uint64_t bytes[SHARERS];

    for (int i = 0; i < SHARERS; i++) {
        assert_int_equal(
            kve_index_get_stats(sh->index, sh->ns[i], &stats), KVE_OK);
        bytes[i] = stats.bytes;
        assert_int_equal(kve_index_counter(sh->index, sh->s[i].instance,
                             KVE_COUNTER_INDEX_REFUSED_MEMORY),
            0);
    }
    for (int i = 0; i < SHARERS; i++) {
        uint64_t part = bytes[i] * 1000 / (bytes[0] + bytes[1]);

        if (part < sh->lowest)
            sh->lowest = part;
        if (part < SHARE_LEAST) {
            print_error("number %d has %" PRIu64 " KiB, the other %" PRIu64
                        " KiB\n",
                i, bytes[i] >> 10, bytes[1 - i] >> 10);
            fail();
        }
    }
}

/* Returns the least part of both, in thousandths, that one had. */
static uint64_t
share_once(uint64_t max_bytes)
{
    struct sharers *sh = sharers_create(max_bytes);
    uint64_t n = max_bytes / 100;
    uint64_t lowest;

    /* The first takes everything, and rests. */
    for (uint64_t i = 0; i < n; i++)
        (void)chains(&sh->s[0], i);
    /* The second gets its part of it, without the first doing anything. */
    for (uint64_t i = 0; i < n; i++)
        (void)chains(&sh->s[1], i);
    check_shares(sh);
    /* And in turn. */
    for (uint64_t i = 0; i < n; i++) {
        (void)chains(&sh->s[0], i);
        (void)chains(&sh->s[1], i);
        if (i % (n / 16) == 0)
            check_shares(sh);
    }
    check_shares(sh);
    lowest = sh->lowest;
    sharers_destroy(sh);
    return lowest;
}

void
limits_share(uint64_t max_bytes, unsigned times)
{
    /* Tables have secrets of their own each time, so slabs are filled in
     * another order. */
    for (unsigned i = 0; i < times; i++)
        print_message("%" PRIu64 " MiB for two: nobody had less than %" PRIu64
                      " thousandths\n",
            max_bytes >> 20, share_once(max_bytes));
}

/* ---- beside the reference ---- */

/* The small world's own events, and between them somebody who fills the index,
 * so that what it holds is forgotten again and again. */
static bool
run_full(const struct script *script, struct world *w, uint64_t seed)
{
    struct sender *s = calloc(1, sizeof(*s));
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    uint64_t n = seed << 32;
    bool good;

    assert_non_null(s);
    assert_true(world_init(w, &script->opts));
    s->index = w->index;
    spec.ns = w->ns[0];
    spec.worker = "somebody else";
    assert_int_equal(
        kve_index_add(w->index, &spec, &s->instance, NULL), KVE_OK);
    for (uint64_t k = 0; k < 100; k++)
        (void)long_events(s, n++);
    good = true;
    for (size_t i = 0; i < script->n && good; i++) {
        for (uint64_t k = 0; k < mix(seed + i) % 8; k++)
            (void)long_events(s, n++);
        good = world_run(w, script->lines[i]);
    }
    world_release(w);
    free(s);
    return good;
}

void
limits_compare(uint64_t streams)
{
    uint64_t seed = streams_number("KVE_INDEX_SEED", 1);
    uint64_t n = streams_number("KVE_INDEX_STREAMS", streams);
    struct script *script = malloc(sizeof(*script));
    struct world *w = calloc(1, sizeof(*w));

    assert_non_null(script);
    assert_non_null(w);
    print_message("%" PRIu64 " streams from seed %" PRIu64 "\n", n, seed);
    for (uint64_t i = 0; i < n; i++) {
        streams_draw(script, seed + i, true);
        script->opts.less = true;
        script->opts.max_bytes = 4 * MIB;
        if (!run_full(script, w, seed + i)) {
            print_error("seed %" PRIu64 ": %s\n", seed + i, w->problem);
            script_print(script);
            fail();
        }
    }
    free(w);
    free(script);
}
