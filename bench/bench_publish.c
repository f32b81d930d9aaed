/*
 * bench_publish.c - how long one kve_pub_publish() takes its caller.
 *
 *     bench_publish [SAMPLES]
 *
 * One event of 16 tokens a batch, over TCP loopback to a reader of the socket
 * library. The sender is awake in a tight loop; in a loop paced to 1,000 a
 * second it sleeps, and the call has to wake it. Each is measured by itself,
 * beside a reader that takes nothing, and beside a replay that never ends.
 * Tokens are fresh for every call; what the clock itself costs, measured in
 * the run, is subtracted. One JSON line a figure.
 *
 * The tight loop pauses after each burst until the queue is empty: a full
 * queue drops, and dropping is fast but measures nothing.
 */
#include <kvevents/kvevents.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#define TOKENS 16
#define POOL (1u << 21) /* tokens; each call takes the next 16 */
#define BURST 50000     /* half of the queue */
#define PACE_NS 1000000
#define TIGHT_SAMPLES 400000
#define PACED_SAMPLES 3000

static uint32_t *pool;
static size_t pool_at;

static int64_t
now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void
die(const char *what, const char *why)
{
    (void)fprintf(stderr, "bench_publish: %s: %s\n", what, why);
    exit(1);
}

static void
fill_pool(void)
{
    uint64_t x = 0x9E3779B97F4A7C15u;

    pool = malloc(POOL * sizeof(*pool));
    if (pool == NULL)
        die("tokens", "out of memory");
    for (size_t i = 0; i < POOL; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        pool[i] = (uint32_t)(x >> 40) % 131072;
    }
}

/* ---- readers --------------------------------------------------------- */

struct readers {
    void *zmq;
    const char *live;
    const char *replay;
    atomic_bool stop;
};

static void *
open_reader(struct readers *r, int type, int hwm)
{
    void *socket = zmq_socket(r->zmq, type);
    int linger = 0, timeout = 100;

    if (socket == NULL)
        die("reader", zmq_strerror(zmq_errno()));
    (void)zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger));
    (void)zmq_setsockopt(socket, ZMQ_RCVHWM, &hwm, sizeof(hwm));
    (void)zmq_setsockopt(socket, ZMQ_RCVTIMEO, &timeout, sizeof(timeout));
    if (type == ZMQ_SUB)
        (void)zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
    if (zmq_connect(socket, type == ZMQ_SUB ? r->live : r->replay) != 0)
        die("reader", zmq_strerror(zmq_errno()));
    return socket;
}

/* Take a message and forget it; false: none came in time. */
static bool
swallow(void *socket, size_t *ret_last_len)
{
    int more = 1;

    while (more) {
        zmq_msg_t part;

        (void)zmq_msg_init(&part);
        if (zmq_msg_recv(&part, socket, 0) < 0) {
            (void)zmq_msg_close(&part);
            return false;
        }
        *ret_last_len = zmq_msg_size(&part);
        more = zmq_msg_more(&part);
        (void)zmq_msg_close(&part);
    }
    return true;
}

static void *
read_live(void *arg)
{
    struct readers *r = arg;
    void *socket = open_reader(r, ZMQ_SUB, 0);
    size_t len;

    while (!atomic_load(&r->stop))
        (void)swallow(socket, &len);
    (void)zmq_close(socket);
    return NULL;
}

/* Ask for everything, again and again. */
static void *
read_replays(void *arg)
{
    struct readers *r = arg;
    void *socket = open_reader(r, ZMQ_DEALER, 1000);
    size_t len = 0;

    while (!atomic_load(&r->stop)) {
        (void)zmq_send(socket, "", 0, ZMQ_SNDMORE);
        (void)zmq_send(socket, "", 0, 0);
        do
            if (!swallow(socket, &len) && atomic_load(&r->stop))
                break;
        while (len > 0);
        len = 1;
    }
    (void)zmq_close(socket);
    return NULL;
}

/* ---- measuring ------------------------------------------------------- */

static int
by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static int64_t
clock_cost(void)
{
    static int64_t costs[10001];

    for (size_t i = 0; i < 10001; i++) {
        int64_t begin = now_ns();
        costs[i] = now_ns() - begin;
    }
    qsort(costs, 10001, sizeof(costs[0]), by_size);
    return costs[5000];
}

static int64_t
one_call(kve_publisher *pub)
{
    struct kve_hash hash = { .integer = pool_at * 0x9E3779B97F4A7C15u };
    struct kve_event event = { .type = KVE_EVENT_STORED,
        .hashes = &hash,
        .n_hashes = 1,
        .tokens = pool + pool_at,
        .n_tokens = TOKENS,
        .block_size = TOKENS,
        .medium = { "GPU", 3 } };
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_error err;
    kve_status status;
    int64_t begin, took;

    view.events = &event;
    view.n_events = 1;
    pool_at = (pool_at + TOKENS) % (POOL - TOKENS);
    begin = now_ns();
    status = kve_pub_publish(pub, &view, NULL, &err);
    took = now_ns() - begin;
    if (status != KVE_OK)
        die("publish", err.detail);
    return took;
}

static void
flush(kve_publisher *pub)
{
    struct kve_error err;

    if (kve_pub_flush(pub, 60000, &err) != KVE_OK)
        die("flush", err.detail);
}

static void
tight(kve_publisher *pub, int64_t *took, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (i % BURST == 0)
            flush(pub);
        took[i] = one_call(pub);
    }
    flush(pub);
}

static void
paced(kve_publisher *pub, int64_t *took, size_t n)
{
    int64_t next = now_ns();

    for (size_t i = 0; i < n; i++) {
        struct timespec until;

        next += PACE_NS;
        until.tv_sec = (time_t)(next / 1000000000);
        until.tv_nsec = (long)(next % 1000000000);
        while (
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
            ;
        took[i] = one_call(pub);
    }
}

static void
print_figure(const char *name, const char *which, int64_t ns, int64_t target)
{
    (void)printf("{\"figure\": \"publish %s %s\", \"unit\": \"ns\", "
                 "\"ours\": %lld, \"peer\": null, \"ratio\": null, "
                 "\"target\": %lld, \"met\": %s}\n",
        name, which, (long long)ns, (long long)target,
        ns <= target ? "true" : "false");
    (void)fflush(stdout);
}

static void
report(const char *name, int64_t *took, size_t n, int64_t cost, int64_t target)
{
    qsort(took, n, sizeof(took[0]), by_size);
    print_figure(name, "median", took[n / 2] - cost, target);
    print_figure(name, "p99", took[n * 99 / 100] - cost, 20000);
}

/* ---- the cases ------------------------------------------------------- */

enum company { ALONE, STUCK_READER, RUNNING_REPLAY };

static void
measure(enum company company, bool in_pace, const char *name, size_t n)
{
    struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;
    struct kve_error err;
    struct readers readers = { .zmq = zmq_ctx_new() };
    kve_publisher *pub = NULL;
    pthread_t live, replay;
    void *stuck = NULL;
    int64_t cost = clock_cost();
    int64_t *took = malloc(n * sizeof(*took));

    if (took == NULL || readers.zmq == NULL)
        die("bench", "out of memory");
    opts.endpoint = "tcp://127.0.0.1:0";
    opts.replay_endpoint = "tcp://127.0.0.1:0";
    if (kve_pub_create(NULL, &opts, &pub, &err) != KVE_OK)
        die("publisher", err.detail);
    readers.live = kve_pub_endpoint(pub);
    readers.replay = kve_pub_replay_endpoint(pub);

    if (pthread_create(&live, NULL, read_live, &readers) != 0)
        die("reader", "no thread");
    if (company == STUCK_READER)
        stuck = open_reader(&readers, ZMQ_SUB, 1);
    /* Something to replay, and caches that are warm. */
    tight(pub, took, n < 20000 ? n : 20000);
    if (company == RUNNING_REPLAY &&
        pthread_create(&replay, NULL, read_replays, &readers) != 0)
        die("reader", "no thread");
    while (company == RUNNING_REPLAY &&
        kve_pub_counter(pub, KVE_COUNTER_PUB_REPLAY_BATCHES) < 1000)
        (void)nanosleep(&(struct timespec){ 0, 1000000 }, NULL);

    if (in_pace)
        paced(pub, took, n);
    else
        tight(pub, took, n);
    report(name, took, n, cost, in_pace ? 8000 : 1000);

    atomic_store(&readers.stop, true);
    (void)pthread_join(live, NULL);
    if (company == RUNNING_REPLAY)
        (void)pthread_join(replay, NULL);
    if (stuck != NULL)
        (void)zmq_close(stuck);
    kve_pub_destroy(pub);
    (void)zmq_ctx_term(readers.zmq);
    free(took);
}

int
main(int argc, char **argv)
{
    static const struct {
        enum company company;
        bool in_pace;
        const char *name;
    } cases[] = {
        { ALONE, false, "awake" },
        { STUCK_READER, false, "awake, stuck reader" },
        { RUNNING_REPLAY, false, "awake, running replay" },
        { ALONE, true, "1000/s, sender asleep" },
        { STUCK_READER, true, "1000/s, stuck reader" },
        { RUNNING_REPLAY, true, "1000/s, running replay" },
    };
    long samples = argc > 1 ? atol(argv[1]) : 0;

    fill_pool();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t n = cases[i].in_pace ? PACED_SAMPLES : TIGHT_SAMPLES;

        if (samples > 0 && (size_t)samples < n)
            n = (size_t)samples;
        measure(cases[i].company, cases[i].in_pace, cases[i].name, n);
    }
    free(pool);
    return 0;
}
