/*
 * test_loop.c - kve_sub_poll() at its edges: shares, wake-ups, signals, sources
 * that come and go, and when the descriptor is readable.
 *
 * The publisher's end is a PUB and, for some, a ROUTER of plain libzmq.
 */
#include "base/clock.h"

#include <kvevents/kvevents.h>

#include <dirent.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include <zmq.h>

#include <cmocka.h>

/* ---- the publisher's end ------------------------------------------- */

struct peer {
    void *zmq;
    void *pub;
    void *router;
    char live[64];
    char replay[64];
};

static void
bind_any(void *socket, char *ret, size_t cap)
{
    int zero = 0;

    zmq_setsockopt(socket, ZMQ_SNDHWM, &zero, sizeof(zero));
    zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof(zero));
    assert_int_equal(zmq_bind(socket, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, ret, &cap), 0);
}

static void
peer_open(struct peer *p)
{
    memset(p, 0, sizeof(*p));
    p->zmq = zmq_ctx_new();
    p->pub = zmq_socket(p->zmq, ZMQ_PUB);
    p->router = zmq_socket(p->zmq, ZMQ_ROUTER);
    bind_any(p->pub, p->live, sizeof(p->live));
    bind_any(p->router, p->replay, sizeof(p->replay));
}

static void
peer_close(struct peer *p)
{
    zmq_close(p->pub);
    zmq_close(p->router);
    zmq_ctx_term(p->zmq);
}

/* [1.0, [], nil] */
static const uint8_t batch[] = { 0x93, 0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0, 0x90,
    0xc0 };

static void
peer_live(struct peer *p, uint64_t number)
{
    uint8_t seq[8];

    kve_number_write(number, seq);
    zmq_send(p->pub, "", 0, ZMQ_SNDMORE);
    zmq_send(p->pub, seq, 8, ZMQ_SNDMORE);
    zmq_send(p->pub, batch, sizeof(batch), 0);
}

/* Answer one request with 0..n-1, when there is one. */
static void
peer_serve(struct peer *p, uint64_t n)
{
    uint8_t id[64];
    uint8_t start[64];
    uint8_t seq[8];
    int id_len = zmq_recv(p->router, id, sizeof(id), ZMQ_DONTWAIT);

    if (id_len < 0)
        return;
    zmq_recv(p->router, start, sizeof(start), 0);
    assert_int_equal(zmq_recv(p->router, start, sizeof(start), 0), 8);
    for (uint64_t i = kve_number_read(start); i <= n; i++) {
        bool end = i >= n;
        kve_number_write(end ? KVE_NUMBER_END : i, seq);
        zmq_send(p->router, id, (size_t)id_len, ZMQ_SNDMORE);
        zmq_send(p->router, "", 0, ZMQ_SNDMORE);
        zmq_send(p->router, seq, 8, ZMQ_SNDMORE);
        zmq_send(p->router, batch, end ? 0 : sizeof(batch), 0);
    }
}

/* ---- the reader's end ---------------------------------------------- */

struct reader {
    kve_subscriber *sub;
    size_t connected;
    size_t n;
    size_t of[8]; /* by source */
    uint64_t next;
    bool ordered; /* one source: numbers from next on */
    bool stop_each;
    kve_source_id stop_with; /* one of its batches ends the call */
    kve_source_id slow;      /* its batches take 2 ms */
    bool storm;
    size_t refused;
    kve_source_id victim;
};

/* Another source goes, a new one comes, from inside a callback. The socket
 * library closes in a thread of its own, which may lag: its limit can be
 * reached for a moment. */
static void
storm(struct reader *r)
{
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct kve_error err = { KVE_OK, 0, 0, "" };
    kve_source_id before = r->victim;

    opts.endpoint = "tcp://127.0.0.1:9"; /* nobody is there */
    opts.replay_endpoint = opts.endpoint;
    if (before != 0)
        assert_int_equal(kve_sub_remove(r->sub, before), KVE_OK);
    r->victim = 0;
    kve_status status = kve_sub_add(r->sub, &opts, &r->victim, &err);
    if (status == KVE_E_LIMIT)
        r->refused++;
    else if (status != KVE_OK)
        fail_msg("after %zu batches: %s", r->n, err.detail);
    else
        assert_true(r->victim > before);
}

static int
on_batch(void *ctx, const struct kve_delivery *d)
{
    struct reader *r = ctx;

    r->n++;
    if (d->source < 8)
        r->of[d->source]++;
    if (r->ordered)
        assert_int_equal(d->number, r->next++);
    if (r->storm && r->n % 4 == 0)
        storm(r);
    if (d->source == r->slow)
        usleep(2000);
    return r->stop_each || d->source == r->stop_with;
}

static void
on_notice(void *ctx, const struct kve_notice *n)
{
    struct reader *r = ctx;

    r->connected += n->type == KVE_NOTICE_CONNECTED;
}

static void
reader_open(struct reader *r)
{
    struct kve_sub_callbacks callbacks = { sizeof(callbacks), on_batch,
        on_notice, r };

    memset(r, 0, sizeof(*r));
    assert_int_equal(
        kve_sub_create(NULL, NULL, &callbacks, &r->sub, NULL), KVE_OK);
}

static kve_source_id
follow(
    struct reader *r, const struct peer *p, bool replay, uint32_t tail_probe_ms)
{
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    kve_source_id id = 0;

    opts.endpoint = p->live;
    opts.replay_endpoint = replay ? p->replay : NULL;
    opts.tail_probe_ms = tail_probe_ms;
    assert_int_equal(kve_sub_add(r->sub, &opts, &id, NULL), KVE_OK);
    return id;
}

static bool
readable(const struct reader *r, int timeout_ms)
{
    struct pollfd fd = { kve_sub_fd(r->sub), POLLIN, 0 };

    return poll(&fd, 1, timeout_ms) == 1;
}

/* Connect, and let the subscriptions arrive. */
static void
settle(struct reader *r, size_t sources)
{
    int64_t until = kve_now_ns() + 5000 * KVE_MS;

    while (r->connected < sources && kve_now_ns() < until)
        assert_int_equal(kve_sub_poll(r->sub, 10, 0, NULL, NULL), KVE_OK);
    assert_int_equal(r->connected, sources);
    for (int i = 0; i < 10; i++)
        assert_int_equal(kve_sub_poll(r->sub, 10, 0, NULL, NULL), KVE_OK);
}

/* ---- tests --------------------------------------------------------- */

/* A source with much to say does not keep another one from its turn, however
 * few batches each call takes. */
static void
test_shares(void **state)
{
    enum { MUCH = 5000, LITTLE = 20, EACH = 10 };
    struct peer a;
    struct peer b;
    struct reader r;

    (void)state;
    peer_open(&a);
    peer_open(&b);
    reader_open(&r);
    kve_source_id loud = follow(&r, &a, false, 0);
    kve_source_id quiet = follow(&r, &b, false, 0);
    settle(&r, 2);
    for (uint64_t i = 0; i < MUCH; i++)
        peer_live(&a, i);
    for (uint64_t i = 0; i < LITTLE; i++)
        peer_live(&b, i);
    usleep(200000);

    size_t polls = 0;
    while (r.of[quiet] < LITTLE && polls < MUCH) {
        size_t got = 0;
        assert_int_equal(kve_sub_poll(r.sub, 1000, EACH, &got, NULL), KVE_OK);
        assert_true(got <= EACH);
        polls++;
    }
    assert_int_equal(r.of[quiet], LITTLE);
    assert_true(r.of[loud] > 0 && r.of[loud] < MUCH / 2);
    kve_sub_destroy(r.sub);
    peer_close(&a);
    peer_close(&b);
}

/* Nor does one whose batches take long: a turn ends after some time too, not
 * only after some batches. */
static void
test_shares_of_time(void **state)
{
    enum { MUCH = 400 };
    struct peer a;
    struct peer b;
    struct reader r;

    (void)state;
    peer_open(&a);
    peer_open(&b);
    reader_open(&r);
    kve_source_id loud = follow(&r, &a, false, 0);
    kve_source_id quiet = follow(&r, &b, false, 0);
    settle(&r, 2);
    r.slow = loud;
    r.stop_with = quiet;
    for (uint64_t i = 0; i < MUCH; i++)
        peer_live(&a, i);
    peer_live(&b, 0);
    usleep(100000);
    int64_t until = kve_now_ns() + 10000 * KVE_MS;
    while (r.of[quiet] == 0 && kve_now_ns() < until)
        assert_int_equal(kve_sub_poll(r.sub, 1000, 0, NULL, NULL), KVE_OK);
    assert_int_equal(r.of[quiet], 1);
    assert_true(r.of[loud] < MUCH / 4);
    kve_sub_destroy(r.sub);
    peer_close(&a);
    peer_close(&b);
}

/* A wake-up before the call counts for that call, and for no other. */
static void
test_wake_before(void **state)
{
    struct reader r;
    int64_t start = kve_now_ns();

    (void)state;
    reader_open(&r);
    kve_sub_wake(r.sub);
    kve_sub_wake(r.sub);
    assert_true(readable(&r, 0));
    assert_int_equal(kve_sub_poll(r.sub, 10000, 0, NULL, NULL), KVE_OK);
    assert_true(kve_now_ns() - start < 5000 * KVE_MS);
    assert_false(readable(&r, 0));
    start = kve_now_ns();
    assert_int_equal(kve_sub_poll(r.sub, 50, 0, NULL, NULL), KVE_OK);
    assert_true(kve_now_ns() - start >= 49 * KVE_MS);
    kve_sub_destroy(r.sub);
}

static kve_subscriber *to_stop;

static void
on_alarm(int signal_number)
{
    (void)signal_number;
    kve_sub_stop(to_stop);
}

/* Stopped from a signal handler while it waits without limit. */
static void
test_stop_in_signal(void **state)
{
    struct sigaction action;
    struct itimerval soon = { { 0, 0 }, { 0, 50000 } };
    struct reader r;

    (void)state;
    reader_open(&r);
    to_stop = r.sub;
    memset(&action, 0, sizeof(action));
    action.sa_handler = on_alarm;
    assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
    assert_int_equal(kve_sub_poll(r.sub, -1, 0, NULL, NULL), KVE_E_CLOSED);
    assert_true(readable(&r, 0) ||
        kve_sub_poll(r.sub, -1, 0, NULL, NULL) == KVE_E_CLOSED);
    assert_int_equal(kve_sub_add(r.sub, NULL, NULL, NULL), KVE_E_CLOSED);
    (void)signal(SIGALRM, SIG_DFL);
    kve_sub_destroy(r.sub);
}

static size_t
open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    size_t n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

/* Sources come and go from a callback of another one, hundreds of times. */
static void
test_storm(void **state)
{
    enum { N = 2000 };
    struct peer p;
    struct reader r;
    size_t fds;

    (void)state;
    peer_open(&p);
    reader_open(&r);
    follow(&r, &p, false, 0);
    settle(&r, 1);
    fds = open_fds();
    r.storm = true;
    r.ordered = true;
    for (uint64_t i = 0; i < N; i++)
        peer_live(&p, i);
    int64_t until = kve_now_ns() + 60000 * KVE_MS;
    while (r.n < N && kve_now_ns() < until) {
        assert_int_equal(kve_sub_poll(r.sub, 100, 16, NULL, NULL), KVE_OK);
    }
    assert_int_equal(r.n, N);
    assert_true(r.refused < N / 8);

    /* When the other thread has come so far, all is given back. */
    while (open_fds() > fds + 8 && kve_now_ns() < until)
        usleep(10000);
    assert_true(open_fds() <= fds + 8);
    r.storm = false;
    follow(&r, &p, false, 0);
    assert_true(kve_sub_counter(r.sub, 0, KVE_COUNTER_SUB_BATCHES) == N);
    kve_sub_destroy(r.sub);
    peer_close(&p);
}

/* on_batch ends each call, in the middle of a replay too: each batch once and
 * in order, and the descriptor says that there is more. */
static void
test_stop_in_replay(void **state)
{
    enum { N = 300 };
    struct peer p;
    struct reader r;

    (void)state;
    peer_open(&p);
    reader_open(&r);
    r.ordered = true;
    r.stop_each = true;
    follow(&r, &p, true, 100);
    int64_t until = kve_now_ns() + 20000 * KVE_MS;
    while (r.n < N && kve_now_ns() < until) {
        size_t got = 0;
        peer_serve(&p, N);
        if (!readable(&r, 5))
            continue;
        assert_int_equal(kve_sub_poll(r.sub, 0, 0, &got, NULL), KVE_OK);
        assert_true(got <= 1);
    }
    assert_int_equal(r.n, N);
    kve_sub_destroy(r.sub);
    peer_close(&p);
}

/* Readable while there is work, not when all is done, and again when a timer
 * of the source comes: the probe of a silent tail. */
static void
test_descriptor(void **state)
{
    enum { N = 50 };
    struct peer p;
    struct reader r;

    (void)state;
    peer_open(&p);
    reader_open(&r);
    kve_source_id id = follow(&r, &p, true, 400);
    int64_t until = kve_now_ns() + 5000 * KVE_MS;
    while (r.n < N && kve_now_ns() < until) {
        peer_serve(&p, N);
        (void)kve_sub_poll(r.sub, 5, 0, NULL, NULL);
    }
    assert_int_equal(r.n, N);
    for (int i = 0; i < 20; i++) { /* the end of the answer */
        peer_serve(&p, N);
        (void)kve_sub_poll(r.sub, 5, 0, NULL, NULL);
    }
    for (uint64_t i = N; i < 2 * N; i++)
        peer_live(&p, i);
    while (r.n < 2 * N) {
        size_t got = 0;
        assert_true(readable(&r, 1000));
        assert_int_equal(kve_sub_poll(r.sub, 0, 1, &got, NULL), KVE_OK);
        assert_true(got <= 1);
    }
    while (readable(&r, 20))
        assert_int_equal(kve_sub_poll(r.sub, 0, 0, NULL, NULL), KVE_OK);
    assert_int_equal(r.n, 2 * N);

    uint64_t probes = kve_sub_counter(r.sub, id, KVE_COUNTER_SUB_PROBES);
    until = kve_now_ns() + 5000 * KVE_MS;
    while (kve_sub_counter(r.sub, id, KVE_COUNTER_SUB_PROBES) == probes &&
        kve_now_ns() < until)
        if (readable(&r, 1000))
            (void)kve_sub_poll(r.sub, 0, 0, NULL, NULL);
    assert_true(kve_sub_counter(r.sub, id, KVE_COUNTER_SUB_PROBES) > probes);
    kve_sub_destroy(r.sub);
    peer_close(&p);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_shares_of_time),
        cmocka_unit_test(test_wake_before),
        cmocka_unit_test(test_stop_in_signal),
        cmocka_unit_test(test_storm),
        cmocka_unit_test(test_stop_in_replay),
        cmocka_unit_test(test_descriptor),
    };

    return cmocka_run_group_tests_name("subscribe/loop", tests, NULL, NULL);
}
