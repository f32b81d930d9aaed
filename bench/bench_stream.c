/*
 * bench_stream.c - publisher to subscriber over TCP loopback, two processes.
 *
 *     bench_stream BATCHES TOKENS
 *
 * A child publishes one-event batches as fast as its sender takes them; the
 * parent receives, decodes and counts them. One JSON object: batches a second
 * from the first to the last one received, CPU time a batch of both
 * processes, payload bytes, and how many were lost (none may be).
 *
 * Each batch has tokens of its own, so that nothing is decoded twice. The
 * publisher waits while its queue is long, as an engine would be paced by its
 * own work: a full queue drops, and dropping is fast but measures nothing.
 */
#include <kvevents/kvevents.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define QUEUE_HIGH 20000 /* batches waiting at which the publisher pauses */
#define MAX_TOKENS 4096

static double
now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double
cpu_of(int who)
{
    struct rusage u;

    (void)getrusage(who, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_utime.tv_usec * 1e-6 +
        (double)u.ru_stime.tv_sec + (double)u.ru_stime.tv_usec * 1e-6;
}

static void
die(const char *what, const struct kve_error *err)
{
    (void)fprintf(stderr, "bench_stream: %s: %s\n", what, err->detail);
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

/* ---- the publishing process ---------------------------------------- */

static void
publish_all(kve_publisher *pub, uint64_t batches, size_t n_tokens)
{
    static uint32_t tokens[MAX_TOKENS];
    struct kve_hash hash = { .bytes = NULL };
    struct kve_event event = { .type = KVE_EVENT_STORED };
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_error err;

    event.hashes = &hash;
    event.n_hashes = 1;
    event.tokens = tokens;
    event.n_tokens = n_tokens;
    event.block_size = (uint32_t)n_tokens;
    event.medium = (struct kve_str){ "GPU", 3 };
    view.events = &event;
    view.n_events = 1;
    view.rank = (struct kve_int){ 0, true };
    for (uint64_t i = 0; i < batches; i++) {
        hash.integer = mix(i);
        for (size_t k = 0; k < n_tokens; k++)
            tokens[k] = (uint32_t)(mix(i * n_tokens + k) & 0x1FFFF);
        while ((i & 255) == 0 &&
            i > QUEUE_HIGH + kve_pub_counter(pub, KVE_COUNTER_PUB_SENT))
            (void)usleep(200);
        if (kve_pub_publish(pub, &view, NULL, &err) != KVE_OK)
            die("publish", &err);
    }
}

/* Publishes when the reader says so, stays until it says that it is done. */
static int
publisher(int to_parent, int from_parent, uint64_t batches, size_t n_tokens)
{
    struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;
    kve_publisher *pub = NULL;
    struct kve_error err;
    char go;

    opts.endpoint = "tcp://127.0.0.1:0";
    opts.bind = KVE_BIND_YES;
    opts.hwm = 1u << 30;
    opts.buffer_bytes = (size_t)64 << 20;
    opts.max_out_bytes = (size_t)4 << 30;
    if (kve_pub_create(NULL, &opts, &pub, &err) != KVE_OK)
        die("create", &err);
    const char *at = kve_pub_endpoint(pub);
    if (write(to_parent, at, strlen(at) + 1) < 0 ||
        read(from_parent, &go, 1) != 1)
        return 1;
    double start = cpu_of(RUSAGE_SELF);
    publish_all(pub, batches, n_tokens);
    (void)kve_pub_flush(pub, -1, &err);
    if (read(from_parent, &go, 1) != 1)
        return 1;
    double used = cpu_of(RUSAGE_SELF) - start;
    kve_pub_destroy(pub);
    return write(to_parent, &used, sizeof(used)) == sizeof(used) ? 0 : 1;
}

/* ---- the receiving process ----------------------------------------- */

struct reader {
    uint64_t batches;
    uint64_t tokens;
    uint64_t bytes;
    double first;
    bool connected;
};

static int
on_batch(void *ctx, const struct kve_delivery *d)
{
    struct reader *r = ctx;
    const struct kve_event *event;

    if (r->batches++ == 0)
        r->first = now();
    r->bytes += d->payload.len;
    while ((event = kve_batch_next(d->batch)) != NULL)
        r->tokens += event->n_tokens;
    return 0;
}

static void
on_notice(void *ctx, const struct kve_notice *notice)
{
    struct reader *r = ctx;

    if (notice->type == KVE_NOTICE_CONNECTED)
        r->connected = true;
}

static int
reader(int to_child, int from_child, uint64_t batches, size_t n_tokens)
{
    struct reader r = { 0, 0, 0, 0, false };
    struct kve_sub_callbacks callbacks = { sizeof(callbacks), on_batch,
        on_notice, &r };
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    kve_subscriber *sub = NULL;
    kve_source_id source;
    struct kve_error err;
    char at[128] = "";
    double used = 0;

    if (read(from_child, at, sizeof(at) - 1) <= 0)
        return 1;
    opts.endpoint = at;
    if (kve_sub_create(NULL, NULL, &callbacks, &sub, &err) != KVE_OK ||
        kve_sub_add(sub, &opts, &source, &err) != KVE_OK)
        die("subscribe", &err);
    while (!r.connected)
        (void)kve_sub_poll(sub, 1000, 0, NULL, &err);
    (void)usleep(200000); /* the subscription arrives */

    double start = cpu_of(RUSAGE_SELF);
    if (write(to_child, "g", 1) != 1)
        return 1;
    double last = now();
    while (r.batches < batches && now() - last < 10) {
        size_t got = 0;
        if (kve_sub_poll(sub, 1000, 0, &got, &err) != KVE_OK)
            die("poll", &err);
        if (got > 0)
            last = now();
    }
    double end = now();
    double mine = cpu_of(RUSAGE_SELF) - start;
    uint64_t lost =
        kve_sub_counter(sub, 0, KVE_COUNTER_SUB_LOST) + (batches - r.batches);
    if (write(to_child, "d", 1) != 1 ||
        read(from_child, &used, sizeof(used)) != sizeof(used))
        return 1;
    kve_sub_destroy(sub);

    (void)printf("{\"batches\": %llu, \"tokens\": %zu, \"seconds\": %.4f, "
                 "\"batches_per_s\": %.0f, \"cpu_ns_publisher\": %.1f, "
                 "\"cpu_ns_subscriber\": %.1f, \"payload_bytes\": %.1f, "
                 "\"lost\": %llu}\n",
        (unsigned long long)r.batches, n_tokens, end - r.first,
        (double)r.batches / (end - r.first), used * 1e9 / (double)batches,
        mine * 1e9 / (double)batches, (double)r.bytes / (double)r.batches,
        (unsigned long long)lost);
    return lost == 0 && r.tokens == batches * n_tokens ? 0 : 1;
}

int
main(int argc, char **argv)
{
    uint64_t batches = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
    size_t n_tokens = argc > 2 ? strtoull(argv[2], NULL, 10) : 16;
    int down[2];
    int up[2];

    if (batches == 0 || n_tokens == 0 || n_tokens > MAX_TOKENS) {
        (void)fprintf(stderr, "usage: bench_stream BATCHES TOKENS\n");
        return 2;
    }
    if (pipe(down) != 0 || pipe(up) != 0)
        return 1;
    pid_t child = fork();
    if (child < 0)
        return 1;
    if (child == 0)
        return publisher(up[1], down[0], batches, n_tokens);
    int rc = reader(down[1], up[0], batches, n_tokens);
    int status = 1;
    (void)waitpid(child, &status, 0);
    return rc != 0 || status != 0;
}
