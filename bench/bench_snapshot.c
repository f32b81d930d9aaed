/*
 * bench_snapshot.c - a snapshot of a large cache, and the live stream beside.
 *
 *     bench_snapshot [BLOCKS] [ROUNDS]
 *
 *     publisher --- live, 1,000 batches a second ---> meter (plain SUB)
 *         |-------- live, snapshot ----------------> reader (a subscriber)
 *
 * Three processes. The publisher holds BLOCKS blocks of 16 tokens in chains of
 * 64: some twice, some on a second tier, and some that stand on a root that is
 * gone. The meter notes how late each live batch is; what was sent while the
 * reader bootstraps, ROUNDS times, is judged beside what was sent in the pauses
 * between. The reader folds what it is given, counts and all, and the
 * fold must be what the publisher holds. It stands for another machine, so it
 * runs at a low priority: what is asked is what the publisher's own work costs.
 *
 * One JSON line a figure; times are medians over the rounds. The publisher
 * keeps little for replays, so that its memory is that of its recorder.
 */
#include <kvevents/kvevents.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define TOKENS 16        /* a block's */
#define CHAIN 64         /* blocks */
#define RUN 16           /* blocks an event */
#define EVENTS 16        /* a batch */
#define FLUSH_BATCHES 64 /* that may wait to be sent */
#define LIVE_NS 1000000
#define PAUSE_SECONDS 2 /* between two rounds */
#define PATIENCE 120    /* seconds for anything to happen */
#define MAX_ROUNDS 32
#define MAX_SAMPLES (1u << 20)
#define PROBE_TAG UINT64_C(0xFFFF000000000000) /* hashes of live batches */

struct sample {
    double sent;
    double late;
};

/* What the three processes share. */
struct shared {
    char live[64];
    char snapshot[64];
    atomic_int stage; /* of the publisher, enum stage */
    atomic_bool stop;
    atomic_bool meter_ready;
    atomic_uint n_handed; /* snapshots that were built */
    double handed[MAX_ROUNDS];
    double recorded_seconds; /* to fold all that was published */
    double resident_empty;
    double resident_full;
    double resident_peak;
    atomic_uint n_samples;
    struct sample samples[MAX_SAMPLES];
};

enum stage { OPENING, FILLING, FULL };

struct round {
    double begun;
    double asked;
    double received; /* the first part came, so the whole is here */
    double swapped;
    double bytes;
};

static struct shared *shared;
static uint64_t n_blocks = 1000000;
static size_t n_rounds = 10;

static double
now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void
die(const char *what, const char *why)
{
    (void)fprintf(stderr, "bench_snapshot: %s: %s\n", what, why);
    exit(1);
}

static uint64_t
mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* A line of /proc/self/status, in bytes. */
static double
memory(const char *name)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    double kib = 0;

    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            kib = strtod(line + strlen(name) + 1, NULL);
    if (file != NULL)
        (void)fclose(file);
    return kib * 1024;
}

/* ---- what the cache holds ------------------------------------------- */

/*
 * Block i has the hash block_hash(i) and stands in chain i / CHAIN. Every
 * 8th block lies on a second tier as well, every 16th twice on the first, and
 * the first block of each fourth chain is gone.
 */
static uint64_t
block_hash(uint64_t i)
{
    return mix(i) & ~PROBE_TAG;
}

static unsigned
copies_on_gpu(uint64_t i)
{
    if (i % ((uint64_t)4 * CHAIN) == 0)
        return 0;
    return i % 16 == 1 ? 2 : 1;
}

static unsigned
copies_on_cpu(uint64_t i)
{
    return i % 8 == 3;
}

/* ---- the publishing process ----------------------------------------- */

struct filler {
    kve_publisher *pub;
    struct kve_event events[EVENTS];
    struct kve_hash hashes[EVENTS * RUN];
    uint32_t tokens[EVENTS * RUN * TOKENS];
    size_t n_events;
    uint64_t n_batches;
};

static void
flush_batch(struct filler *f)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_error err;

    if (f->n_events == 0)
        return;
    view.events = f->events;
    view.n_events = f->n_events;
    if (kve_pub_publish(f->pub, &view, NULL, &err) != KVE_OK)
        die("publish", err.detail);
    f->n_batches++;
    f->n_events = 0;
    /* An engine is paced by its own work, and so are the queues. */
    if (f->n_batches % FLUSH_BATCHES == 0 &&
        kve_pub_flush(f->pub, PATIENCE * 1000, &err) != KVE_OK)
        die("flush", err.detail);
}

/* The event to fill in next, and its place for hashes and tokens. */
static struct kve_event *
next_event(struct filler *f, uint32_t type, const char *medium)
{
    if (f->n_events == EVENTS)
        flush_batch(f);

    struct kve_event *event = &f->events[f->n_events];
    memset(event, 0, sizeof(*event));
    event->type = type;
    event->medium = (struct kve_str){ medium, 3 };
    event->hashes = f->hashes + f->n_events * RUN;
    event->tokens = f->tokens + f->n_events * RUN * TOKENS;
    f->n_events++;
    return event;
}

static void
store(struct filler *f, uint64_t first, uint64_t n, const char *medium,
    bool teach)
{
    struct kve_event *event = next_event(f, KVE_EVENT_STORED, medium);
    size_t at = f->n_events - 1;

    for (uint64_t k = 0; k < n; k++) {
        f->hashes[at * RUN + k] =
            (struct kve_hash){ .integer = block_hash(first + k) };
        for (size_t t = 0; teach && t < TOKENS; t++)
            f->tokens[(at * RUN + k) * TOKENS + t] =
                (uint32_t)(mix((first + k) * TOKENS + t) & 0x1FFFF);
    }
    event->n_hashes = n;
    if (!teach)
        return;
    event->n_tokens = n * TOKENS;
    event->block_size = TOKENS;
    event->has_parent = first % CHAIN != 0;
    event->parent = (struct kve_hash){ .integer = block_hash(first - 1) };
}

static void
removal(struct filler *f, uint64_t i)
{
    struct kve_event *event = next_event(f, KVE_EVENT_REMOVED, "GPU");

    f->hashes[(f->n_events - 1) * RUN] =
        (struct kve_hash){ .integer = block_hash(i) };
    event->n_hashes = 1;
}

static void
fill(struct filler *f)
{
    for (uint64_t i = 0; i < n_blocks; i += RUN)
        store(f, i, i + RUN < n_blocks ? RUN : n_blocks - i, "GPU", true);
    for (uint64_t i = 0; i < n_blocks; i++) {
        if (copies_on_gpu(i) == 2)
            store(f, i, 1, "GPU", true);
        if (copies_on_cpu(i))
            store(f, i, 1, "CPU", false);
        if (copies_on_gpu(i) == 0)
            removal(f, i);
    }
    flush_batch(f);
}

/* One small batch: a block comes, the one of the batch before goes. */
static void
publish_live(kve_publisher *pub, uint64_t k)
{
    uint32_t tokens[TOKENS];
    struct kve_hash hashes[2] = { { .integer = PROBE_TAG | k },
        { .integer = PROBE_TAG | (k - 1) } };
    struct kve_event events[2] = { { .type = KVE_EVENT_STORED,
                                       .hashes = &hashes[0],
                                       .n_hashes = 1,
                                       .tokens = tokens,
                                       .n_tokens = TOKENS,
                                       .block_size = TOKENS,
                                       .medium = { "GPU", 3 } },
        { .type = KVE_EVENT_REMOVED,
            .hashes = &hashes[1],
            .n_hashes = 1,
            .medium = { "GPU", 3 } } };
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_error err;

    for (size_t i = 0; i < TOKENS; i++)
        tokens[i] = (uint32_t)(mix(k * TOKENS + i) & 0x1FFFF);
    view.events = events;
    view.n_events = 2;
    view.ts = now();
    if (kve_pub_publish(pub, &view, NULL, &err) != KVE_OK)
        die("publish", err.detail);
}

static void
note_handed(const kve_publisher *pub)
{
    uint64_t n = kve_pub_counter(pub, KVE_COUNTER_PUB_SNAPSHOT_REQUESTS);

    while (atomic_load(&shared->n_handed) < n) {
        unsigned at = atomic_load(&shared->n_handed);
        if (at < MAX_ROUNDS)
            shared->handed[at] = now();
        atomic_store(&shared->n_handed, at + 1);
    }
}

/* Wait until the recorder has folded n batches. */
static void
wait_recorded(const kve_publisher *pub, uint64_t n)
{
    double begun = now();

    while (kve_pub_counter(pub, KVE_COUNTER_PUB_RECORDED) < n) {
        if (now() - begun > PATIENCE)
            die("recorder", "it does not keep up");
        (void)usleep(1000);
    }
}

static int
publisher(void)
{
    static struct filler filler;
    struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;
    kve_publisher *pub = NULL;
    struct kve_error err;

    opts.endpoint = "tcp://127.0.0.1:0";
    opts.bind = KVE_BIND_YES;
    opts.snapshot_endpoint = "tcp://127.0.0.1:0";
    opts.buffer_steps = 4 * FLUSH_BATCHES;
    if (kve_pub_create(NULL, &opts, &pub, &err) != KVE_OK)
        die("publisher", err.detail);
    (void)snprintf(
        shared->live, sizeof(shared->live), "%s", kve_pub_endpoint(pub));
    (void)snprintf(shared->snapshot, sizeof(shared->snapshot), "%s",
        kve_pub_snapshot_endpoint(pub));
    atomic_store(&shared->stage, FILLING);
    while (!atomic_load(&shared->meter_ready))
        (void)usleep(10000);

    shared->resident_empty = memory("VmRSS");
    filler.pub = pub;
    double begun = now();
    fill(&filler);
    wait_recorded(pub, filler.n_batches);
    shared->recorded_seconds = now() - begun;
    shared->resident_full = memory("VmRSS");
    atomic_store(&shared->stage, FULL);

    struct timespec next;
    (void)clock_gettime(CLOCK_MONOTONIC, &next);
    for (uint64_t k = 1; !atomic_load(&shared->stop); k++) {
        next.tv_nsec += LIVE_NS;
        if (next.tv_nsec >= 1000000000) {
            next.tv_sec++;
            next.tv_nsec -= 1000000000;
        }
        (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
        publish_live(pub, k);
        note_handed(pub);
    }
    shared->resident_peak = memory("VmHWM");
    if (kve_pub_counter(pub, KVE_COUNTER_PUB_RECORDER_LOST) != 0)
        die("recorder", "it lost batches");
    kve_pub_destroy(pub);
    return 0;
}

/* ---- the meter ------------------------------------------------------- */

/* The time a live batch was sent at: it begins [ts, ... */
static double
time_of(const uint8_t *payload, size_t len)
{
    uint64_t bits;
    double ts;

    if (len < 10 || payload[1] != 0xcb)
        return 0;
    bits = kve_number_read(payload + 2);
    memcpy(&ts, &bits, sizeof(ts));
    return ts;
}

static int
meter(void)
{
    void *zmq = zmq_ctx_new();
    void *socket = zmq_socket(zmq, ZMQ_SUB);
    int hwm = 0, timeout = 100;
    uint8_t part[512];

    while (atomic_load(&shared->stage) < FILLING)
        (void)usleep(1000);
    if (zmq_setsockopt(socket, ZMQ_RCVHWM, &hwm, sizeof(hwm)) != 0 ||
        zmq_setsockopt(socket, ZMQ_RCVTIMEO, &timeout, sizeof(timeout)) != 0 ||
        zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0) != 0 ||
        zmq_connect(socket, shared->live) != 0)
        die("meter", zmq_strerror(zmq_errno()));
    (void)usleep(300000);
    atomic_store(&shared->meter_ready, true);

    while (!atomic_load(&shared->stop)) {
        int more = 1, len = -1;
        size_t size = sizeof(more);

        while (more && (len = zmq_recv(socket, part, sizeof(part), 0)) >= 0)
            (void)zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size);
        double came = now();
        unsigned n = atomic_load(&shared->n_samples);
        if (len < 0 || (size_t)len > sizeof(part) || n == MAX_SAMPLES ||
            atomic_load(&shared->stage) < FULL)
            continue;
        double sent = time_of(part, (size_t)len);
        shared->samples[n] = (struct sample){ sent, came - sent };
        atomic_store(&shared->n_samples, n + 1);
    }
    _exit(0);
}

/* ---- the reader: a fold by counts ------------------------------------ */

struct entry {
    uint64_t key;
    uint32_t copies;
    bool used;
};

struct reader {
    struct entry *table;
    size_t mask;
    size_t n_used;
    uint64_t below;
    struct round *round;
    bool swapped;
};

static struct entry *
entry_of(struct reader *r, uint64_t key)
{
    size_t at = mix(key) & r->mask;

    while (r->table[at].used && r->table[at].key != key)
        at = (at + 1) & r->mask;
    if (!r->table[at].used) {
        if (++r->n_used > r->mask - r->mask / 4)
            die("fold", "more blocks than there can be");
        r->table[at] = (struct entry){ key, 0, true };
    }
    return &r->table[at];
}

/* The tier is part of the key: both are integers here. */
static uint64_t
key_of(uint64_t hash, bool on_cpu)
{
    return hash | (on_cpu ? (uint64_t)1 << 63 : 0);
}

static void
fold_event(struct reader *r, const struct kve_event *event)
{
    bool on_cpu =
        event->medium.len == 3 && memcmp(event->medium.data, "CPU", 3) == 0;

    for (size_t i = 0; i < event->n_hashes; i++) {
        uint64_t hash = event->hashes[i].integer;
        if ((hash & PROBE_TAG) == PROBE_TAG)
            continue;
        struct entry *entry = entry_of(r, key_of(hash, on_cpu));
        if (event->type == KVE_EVENT_STORED)
            entry->copies++;
        else if (entry->copies > 0)
            entry->copies--;
        else
            r->below++;
    }
}

static int
on_batch(void *ctx, const struct kve_delivery *delivery)
{
    struct reader *r = ctx;
    const struct kve_event *event;

    if (delivery->snapshot && r->round->received == 0)
        r->round->received = now();
    while ((event = kve_batch_next(delivery->batch)) != NULL)
        if (event->type == KVE_EVENT_STORED || event->type == KVE_EVENT_REMOVED)
            fold_event(r, event);
    return 0;
}

static void
empty_fold(struct reader *r)
{
    memset(r->table, 0, (r->mask + 1) * sizeof(*r->table));
    r->n_used = 0;
    r->below = 0;
}

static void
on_notice(void *ctx, const struct kve_notice *notice)
{
    struct reader *r = ctx;

    switch (notice->type) {
    case KVE_NOTICE_SNAPSHOT:
        if (r->round->asked == 0)
            r->round->asked = now();
        break;
    case KVE_NOTICE_BEGIN:
    case KVE_NOTICE_CLEAR:
        empty_fold(r);
        break;
    case KVE_NOTICE_SWAP:
        r->round->swapped = now();
        r->swapped = true;
        break;
    case KVE_NOTICE_SNAPSHOT_FAILED:
        die("snapshot", notice->detail);
        break;
    default:
        break;
    }
}

static void
check_fold(struct reader *r)
{
    uint64_t sum = 0, wanted = 0;

    for (size_t i = 0; i <= r->mask; i++)
        sum += r->table[i].copies;
    for (uint64_t i = 0; i < n_blocks; i++) {
        unsigned gpu = copies_on_gpu(i), cpu = copies_on_cpu(i);

        wanted += gpu + cpu;
        if (entry_of(r, key_of(block_hash(i), false))->copies != gpu ||
            entry_of(r, key_of(block_hash(i), true))->copies != cpu)
            die("fold", "it is not what the publisher holds");
    }
    if (sum != wanted || r->below != 0)
        die("fold", "copies of blocks that are not there");
}

static void
bootstrap(struct reader *r, struct round *round)
{
    struct kve_sub_callbacks callbacks = { sizeof(callbacks), on_batch,
        on_notice, r };
    struct kve_source_opts source = KVE_SOURCE_OPTS_INIT;
    kve_subscriber *sub = NULL;
    struct kve_error err;
    kve_source_id id;

    memset(round, 0, sizeof(*round));
    r->round = round;
    r->swapped = false;
    empty_fold(r);
    source.endpoint = shared->live;
    source.snapshot_endpoint = shared->snapshot;
    source.snapshot_timeout_ms = PATIENCE * 1000;
    round->begun = now();
    if (kve_sub_create(NULL, NULL, &callbacks, &sub, &err) != KVE_OK ||
        kve_sub_add(sub, &source, &id, &err) != KVE_OK)
        die("reader", err.detail);
    while (!r->swapped) {
        if (now() - round->begun > PATIENCE)
            die("reader", "no snapshot came");
        if (kve_sub_poll(sub, 100, 0, NULL, &err) != KVE_OK)
            die("poll", err.detail);
    }
    round->bytes =
        (double)kve_sub_counter(sub, 0, KVE_COUNTER_SUB_SNAPSHOT_BYTES);
    kve_sub_destroy(sub);
    check_fold(r);
}

/* ---- figures --------------------------------------------------------- */

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double
median(double *values, size_t n)
{
    qsort(values, n, sizeof(*values), by_value);
    return values[n / 2];
}

static void
print_figure(const char *name, const char *unit, double value, double target)
{
    (void)printf("{\"figure\": \"snapshot of %llu blocks, %s\", \"unit\": "
                 "\"%s\", \"ours\": %.3f, \"peer\": null, \"ratio\": null, ",
        (unsigned long long)n_blocks, name, unit, value);
    if (target > 0)
        (void)printf("\"target\": %.3f, \"met\": %s}\n", target,
            value <= target ? "true" : "false");
    else
        (void)printf("\"target\": null, \"met\": null}\n");
    (void)fflush(stdout);
}

/* The lateness of batches sent inside the rounds, or between them. */
static size_t
lateness(const struct round *rounds, bool inside, double *ret)
{
    unsigned all = atomic_load(&shared->n_samples);
    size_t n = 0;

    for (unsigned i = 0; i < all; i++) {
        const struct sample *s = &shared->samples[i];
        bool during = false;

        for (size_t k = 0; k < n_rounds && !during; k++)
            during = s->sent >= rounds[k].asked && s->sent <= rounds[k].swapped;
        if (during == inside)
            ret[n++] = s->late * 1e3;
    }
    if (n == 0)
        die("meter", "it received nothing");
    qsort(ret, n, sizeof(*ret), by_value);
    return n;
}

static void
report_lateness(const struct round *rounds)
{
    double *late = malloc(MAX_SAMPLES * sizeof(*late));
    double idle_99;

    if (late == NULL)
        die("figures", "out of memory");
    size_t n = lateness(rounds, false, late);
    idle_99 = late[n * 99 / 100];
    print_figure("live latency without, median", "ms", late[n / 2], 0);
    print_figure("live latency without, p99", "ms", idle_99, 0);
    print_figure("live latency without, max", "ms", late[n - 1], 0);
    n = lateness(rounds, true, late);
    print_figure("live latency during, median", "ms", late[n / 2], 0);
    print_figure("live latency during, p99", "ms", late[n * 99 / 100], 0);
    print_figure("live latency during, max", "ms", late[n - 1], 0);
    print_figure(
        "live delay added, p99", "ms", late[n * 99 / 100] - idle_99, 5);
    free(late);
}

static void
report(const struct round *rounds)
{
    double build[MAX_ROUNDS], receive[MAX_ROUNDS], fold[MAX_ROUNDS],
        whole[MAX_ROUNDS];
    double mib = 1024 * 1024;

    for (size_t i = 0; i < n_rounds; i++) {
        build[i] = (shared->handed[i] - rounds[i].asked) * 1e3;
        receive[i] = (rounds[i].received - shared->handed[i]) * 1e3;
        fold[i] = (rounds[i].swapped - rounds[i].received) * 1e3;
        whole[i] = (rounds[i].swapped - rounds[i].asked) * 1e3;
    }
    print_figure("asked to built", "ms", median(build, n_rounds), 0);
    print_figure("built to received", "ms", median(receive, n_rounds), 0);
    print_figure("received to folded", "ms", median(fold, n_rounds), 0);
    print_figure("asked to folded", "ms", median(whole, n_rounds), 0);
    print_figure("reply", "MiB", rounds[0].bytes / mib, 0);
    print_figure(
        "bytes a block", "bytes", rounds[0].bytes / (double)n_blocks, 0);
    print_figure("publishing and recording", "s", shared->recorded_seconds, 0);
    print_figure("recorder's memory", "MiB",
        (shared->resident_full - shared->resident_empty) / mib, 0);
    print_figure(
        "publisher's memory, peak", "MiB", shared->resident_peak / mib, 0);
    report_lateness(rounds);
}

static int
measure(void)
{
    static struct round rounds[MAX_ROUNDS];
    struct reader r = { .mask = 1 };
    double begun = now();

    (void)setpriority(PRIO_PROCESS, 0, 10);
    while (r.mask < 3 * n_blocks)
        r.mask *= 2;
    r.mask--;
    r.table = calloc(r.mask + 1, sizeof(*r.table));
    if (r.table == NULL)
        die("fold", "out of memory");
    while (atomic_load(&shared->stage) < FULL) {
        if (now() - begun > PATIENCE)
            die("publisher", "it is not ready");
        (void)usleep(10000);
    }
    for (size_t i = 0; i < n_rounds; i++) {
        (void)sleep(PAUSE_SECONDS);
        bootstrap(&r, &rounds[i]);
    }
    (void)sleep(PAUSE_SECONDS);
    atomic_store(&shared->stop, true);
    free(r.table);
    while (shared->resident_peak == 0 && now() - begun < PATIENCE)
        (void)usleep(10000);
    if (atomic_load(&shared->n_handed) != n_rounds)
        die("publisher", "it built another number of snapshots");
    report(rounds);
    return 0;
}

static pid_t
start(int (*process)(void))
{
    pid_t pid = fork();

    if (pid < 0)
        die("fork", "no process");
    if (pid == 0)
        exit(process());
    return pid;
}

int
main(int argc, char **argv)
{
    int status = 0, rc;

    if (argc > 1)
        n_blocks = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        n_rounds = strtoull(argv[2], NULL, 10);
    if (n_blocks < RUN || n_blocks > (1u << 24) || n_rounds == 0 ||
        n_rounds > MAX_ROUNDS) {
        (void)fprintf(stderr, "usage: bench_snapshot [BLOCKS] [ROUNDS]\n");
        return 2;
    }
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die("memory", "none is to be had");
    start(publisher);
    start(meter);
    rc = measure();
    while (wait(&status) > 0)
        rc |= status;
    return rc != 0;
}
