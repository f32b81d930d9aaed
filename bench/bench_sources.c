/*
 * bench_sources.c - many publishers, one process that follows them all.
 *
 *     bench_sources ours|peer [SOURCES] [RATE] [SECONDS] [THREADS]
 *
 * A child has SOURCES publishing sockets and sends RATE one-event batches a
 * second on each, spread evenly over the time, as engines that know nothing
 * of each other would. The parent follows them: with a subscriber that
 * decodes and judges every batch (ours), or with an empty loop, one SUB socket
 * a source, epoll on their descriptors, receive and drop (peer). Both have one
 * I/O thread of the socket library.
 *
 * One JSON object: CPU time of the whole process a batch, from the end of the
 * first two seconds to the last batch; resident memory a source; batches that
 * did not come and those that are counted as lost. Every batch has tokens of
 * its own.
 */
#include <kvevents/kvevents.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define TOKENS 16
#define WARM 2        /* seconds of traffic before the clock is read */
#define SILENCE 10    /* seconds after which nothing more is waited for */
#define PATIENCE 60   /* seconds for all connections to stand */
#define RECV_HWM 4096 /* the subscriber's default, for both */

/* What is asked for on the command line. */
static uint32_t n_sources = 1000;
static uint64_t rate = 20;
static uint64_t seconds = 10;
static uint32_t n_threads;

static double
now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double
cpu(void)
{
    struct rusage u;

    (void)getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_utime.tv_usec * 1e-6 +
        (double)u.ru_stime.tv_sec + (double)u.ru_stime.tv_usec * 1e-6;
}

static double
resident(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;

    if (file == NULL)
        return 0;
    if (fscanf(file, "%*u %lu", &pages) != 1)
        pages = 0;
    (void)fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void
die(const char *what, const char *why)
{
    (void)fprintf(stderr, "bench_sources: %s: %s\n", what, why);
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

static void *
new_context(void)
{
    struct rlimit limit;
    void *zmq = zmq_ctx_new();

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (zmq == NULL ||
        zmq_ctx_set(zmq, ZMQ_MAX_SOCKETS, (int)n_sources + 16) != 0)
        die("context", zmq_strerror(zmq_errno()));
    return zmq;
}

static void
read_all(int fd, void *to, size_t len)
{
    for (size_t got = 0; got < len;) {
        ssize_t n = read(fd, (char *)to + got, len - got);
        if (n <= 0)
            die("pipe", n == 0 ? "the other process ended" : strerror(errno));
        got += (size_t)n;
    }
}

static void
write_all(int fd, const void *from, size_t len)
{
    for (size_t put = 0; put < len;) {
        ssize_t n = write(fd, (const char *)from + put, len - put);
        if (n <= 0)
            die("pipe", strerror(errno));
        put += (size_t)n;
    }
}

/* ---- the publishing process ----------------------------------------- */

/* XPUB is a PUB that tells who subscribed: that is waited for. */
static void
bind_all(void *zmq, void **sockets, int to_parent)
{
    for (uint32_t i = 0; i < n_sources; i++) {
        char at[64];
        size_t len = sizeof(at);
        int hwm = 0;

        memset(at, 0, sizeof(at));
        sockets[i] = zmq_socket(zmq, ZMQ_XPUB);
        if (sockets[i] == NULL ||
            zmq_setsockopt(sockets[i], ZMQ_SNDHWM, &hwm, sizeof(hwm)) != 0 ||
            zmq_bind(sockets[i], "tcp://127.0.0.1:*") != 0 ||
            zmq_getsockopt(sockets[i], ZMQ_LAST_ENDPOINT, at, &len) != 0)
            die("bind", zmq_strerror(zmq_errno()));
        write_all(to_parent, at, sizeof(at));
    }
}

static void
wait_for_readers(void **sockets)
{
    int timeout = PATIENCE * 1000;
    char subscription[64];

    for (uint32_t i = 0; i < n_sources; i++) {
        (void)zmq_setsockopt(
            sockets[i], ZMQ_RCVTIMEO, &timeout, sizeof(timeout));
        if (zmq_recv(sockets[i], subscription, sizeof(subscription), 0) < 0)
            die("no subscription", zmq_strerror(zmq_errno()));
    }
}

static void
send_batch(void *socket, uint64_t k, uint64_t number)
{
    static struct kve_buffer out;
    uint32_t tokens[TOKENS];
    uint8_t text[8];
    struct kve_hash hash = { .integer = mix(k) };
    struct kve_event event = { .type = KVE_EVENT_STORED,
        .hashes = &hash,
        .n_hashes = 1,
        .tokens = tokens,
        .n_tokens = TOKENS,
        .block_size = TOKENS,
        .medium = { "GPU", 3 } };
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_error err;

    for (size_t i = 0; i < TOKENS; i++)
        tokens[i] = (uint32_t)(mix(k * TOKENS + i) & 0x1FFFF);
    view.events = &event;
    view.n_events = 1;
    view.rank = (struct kve_int){ 0, true };
    out.len = 0;
    if (kve_batch_encode(&view, KVE_LAYOUT_MAP, &out, &err) != KVE_OK)
        die("encode", err.detail);
    kve_number_write(number, text);
    if (zmq_send(socket, "", 0, ZMQ_SNDMORE) < 0 ||
        zmq_send(socket, text, sizeof(text), ZMQ_SNDMORE) < 0 ||
        zmq_send(socket, out.data, out.len, 0) < 0)
        die("send", zmq_strerror(zmq_errno()));
}

/* Sends all there is to send, a tick a millisecond, then waits to be told
 * that it may go. */
static int
publisher(int to_parent, int from_parent)
{
    void *zmq = new_context();
    void **sockets = calloc(n_sources, sizeof(*sockets));
    uint64_t all = n_sources * rate * (WARM + seconds);
    char go;

    if (sockets == NULL)
        die("sockets", "out of memory");
    bind_all(zmq, sockets, to_parent);
    wait_for_readers(sockets);
    write_all(to_parent, "g", 1);

    double start = now();
    for (uint64_t k = 0; k < all;) {
        uint64_t due = (uint64_t)((now() - start) * (double)(n_sources * rate));
        for (; k < due && k < all; k++)
            send_batch(sockets[k % n_sources], k, k / n_sources);
        (void)usleep(1000);
    }
    read_all(from_parent, &go, 1);
    _exit(0);
}

/* ---- the following process ------------------------------------------ */

struct reader {
    atomic_uint_fast64_t batches;
    atomic_uint_fast64_t tokens;
    uint64_t warm; /* the batch at which the clock is read */
    double cpu_at_warm;
    double at_warm;
    void *zmq;
    void **sockets;
    int epoll;
    kve_subscriber *sub;
};

static void
count(struct reader *r, uint64_t tokens)
{
    atomic_fetch_add_explicit(&r->tokens, tokens, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&r->batches, 1, memory_order_relaxed) ==
        r->warm) {
        r->cpu_at_warm = cpu();
        r->at_warm = now();
    }
}

static int
on_batch(void *ctx, const struct kve_delivery *delivery)
{
    const struct kve_event *event;
    uint64_t tokens = 0;

    while ((event = kve_batch_next(delivery->batch)) != NULL)
        tokens += event->n_tokens;
    count(ctx, tokens);
    return 0;
}

static void
open_ours(struct reader *r, int from_child)
{
    struct kve_context_opts context_opts = KVE_CONTEXT_OPTS_INIT;
    struct kve_sub_callbacks callbacks = KVE_SUB_CALLBACKS_INIT;
    struct kve_source_opts source = KVE_SOURCE_OPTS_INIT;
    struct kve_sub_opts opts = KVE_SUB_OPTS_INIT;
    kve_context *context = NULL;
    struct kve_error err;
    kve_source_id id;
    char at[64];

    callbacks.on_batch = on_batch;
    callbacks.ctx = r;
    context_opts.max_sources = n_sources;
    opts.max_sources = n_sources;
    opts.threads = n_threads;
    source.endpoint = at;
    if (kve_context_create(&context_opts, &context, &err) != KVE_OK ||
        kve_sub_create(context, &opts, &callbacks, &r->sub, &err) != KVE_OK)
        die("subscriber", err.detail);
    for (uint32_t i = 0; i < n_sources; i++) {
        read_all(from_child, at, sizeof(at));
        if (kve_sub_add(r->sub, &source, &id, &err) != KVE_OK)
            die("source", err.detail);
    }
}

static void
turn_ours(struct reader *r)
{
    struct kve_error err;

    if (n_threads > 0)
        (void)usleep(20000);
    else if (kve_sub_poll(r->sub, 100, 0, NULL, &err) != KVE_OK)
        die("poll", err.detail);
}

static void
open_peer(struct reader *r, int from_child)
{
    r->zmq = new_context();
    r->sockets = calloc(n_sources, sizeof(*r->sockets));
    r->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (r->sockets == NULL || r->epoll < 0)
        die("peer", strerror(errno));
    for (uint32_t i = 0; i < n_sources; i++) {
        struct epoll_event event = { .events = EPOLLIN, .data.u32 = i };
        int hwm = RECV_HWM, fd = -1;
        size_t len = sizeof(fd);
        char at[64];

        read_all(from_child, at, sizeof(at));
        r->sockets[i] = zmq_socket(r->zmq, ZMQ_SUB);
        if (r->sockets[i] == NULL ||
            zmq_setsockopt(r->sockets[i], ZMQ_RCVHWM, &hwm, sizeof(hwm)) != 0 ||
            zmq_setsockopt(r->sockets[i], ZMQ_SUBSCRIBE, "", 0) != 0 ||
            zmq_connect(r->sockets[i], at) != 0 ||
            zmq_getsockopt(r->sockets[i], ZMQ_FD, &fd, &len) != 0 ||
            epoll_ctl(r->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
            die("connect", zmq_strerror(zmq_errno()));
    }
}

static void
drain(struct reader *r, void *socket)
{
    zmq_msg_t part;

    (void)zmq_msg_init(&part);
    while (zmq_msg_recv(&part, socket, ZMQ_DONTWAIT) >= 0)
        if (!zmq_msg_more(&part))
            count(r, TOKENS);
    (void)zmq_msg_close(&part);
}

static void
turn_peer(struct reader *r)
{
    struct epoll_event events[256];
    int n = epoll_wait(r->epoll, events, 256, 100);

    for (int i = 0; i < n; i++)
        drain(r, r->sockets[events[i].data.u32]);
}

static int
reader(bool ours, int to_child, int from_child)
{
    uint64_t all = n_sources * rate * (WARM + seconds);
    struct reader r = { .warm = n_sources * rate * WARM };
    double before = resident();
    char go;

    (ours ? open_ours : open_peer)(&r, from_child);
    /* Connections need turns of ours to be made. */
    zmq_pollitem_t wait = { .fd = from_child, .events = ZMQ_POLLIN };
    while (zmq_poll(&wait, 1, 0) == 0)
        (ours ? turn_ours : turn_peer)(&r);
    read_all(from_child, &go, 1);

    double connected = resident();
    uint64_t seen = 0;
    double last = now();
    while (seen < all && now() - last < SILENCE) {
        (ours ? turn_ours : turn_peer)(&r);
        if (atomic_load(&r.batches) != seen) {
            seen = atomic_load(&r.batches);
            last = now();
        }
    }
    double used = cpu() - r.cpu_at_warm;
    double took = last - r.at_warm;
    double after = resident();
    uint64_t counted =
        ours ? kve_sub_counter(r.sub, 0, KVE_COUNTER_SUB_LOST) : 0;
    write_all(to_child, "d", 1);
    if (seen <= r.warm)
        die("run", "too few batches came");

    double measured = (double)(seen - r.warm);
    (void)printf(
        "{\"sources\": %u, \"rate\": %llu, \"threads\": %u, "
        "\"seconds\": %.3f, \"batches\": %llu, \"cpu_ns\": %.1f, "
        "\"cpu_share\": %.4f, \"resident\": %.0f, "
        "\"bytes_a_source_connected\": %.0f, \"bytes_a_source\": %.0f, "
        "\"missing\": %llu, \"lost_counted\": %llu}\n",
        n_sources, (unsigned long long)rate, n_threads, took,
        (unsigned long long)seen, used * 1e9 / measured, used / took, after,
        (connected - before) / n_sources, (after - before) / n_sources,
        (unsigned long long)(all - seen), (unsigned long long)counted);
    return atomic_load(&r.tokens) == seen * TOKENS && all - seen == counted ? 0
                                                                            : 1;
}

int
main(int argc, char **argv)
{
    bool ours = argc > 1 && strcmp(argv[1], "ours") == 0;
    int down[2];
    int up[2];

    if (argc < 2 || (!ours && strcmp(argv[1], "peer") != 0)) {
        (void)fprintf(stderr,
            "usage: bench_sources ours|peer [SOURCES] [RATE] [SECONDS] "
            "[THREADS]\n");
        return 2;
    }
    if (argc > 2)
        n_sources = (uint32_t)strtoul(argv[2], NULL, 10);
    if (argc > 3)
        rate = strtoull(argv[3], NULL, 10);
    if (argc > 4)
        seconds = strtoull(argv[4], NULL, 10);
    if (argc > 5)
        n_threads = (uint32_t)strtoul(argv[5], NULL, 10);
    if (n_sources == 0 || rate == 0 || seconds == 0)
        die("arguments", "they are numbers above 0");
    if (pipe(down) != 0 || pipe(up) != 0)
        return 1;
    pid_t child = fork();
    if (child < 0)
        return 1;
    if (child == 0) {
        (void)close(up[0]);
        (void)close(down[1]);
        return publisher(up[1], down[0]);
    }
    (void)close(up[1]);
    (void)close(down[0]);
    int rc = reader(ours, down[1], up[0]);
    int status = 1;
    (void)waitpid(child, &status, 0);
    return rc != 0 || status != 0;
}
