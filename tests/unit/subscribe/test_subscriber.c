/*
 * ctest-timeout: 120
 *
 * test_subscriber.c - the subscriber against sockets it did not write.
 *
 * The publisher's end is plain libzmq in the test's own hands: a PUB and a
 * ROUTER on free loopback ports. The ROUTER is as strict as the ones in the
 * field: anything but exactly three frames gets no answer.
 */
#include "base/alloc.h"
#include "base/clock.h"

#include <kvevents/kvevents.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <zmq.h>

#include <cmocka.h>

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))
#define MAX_SEEN 20000

/* ---- the publisher's end ------------------------------------------- */

enum shape { WITH_TOPIC, NO_TOPIC };

struct peer {
    void *zmq;
    void *pub;
    void *router;
    char live[64];
    char replay[64];
    const char *topic;
    enum shape shape;
    uint64_t first; /* replay knows first..next-1 */
    uint64_t next;
    uint64_t hole; /* a number replay does not have; UINT64_MAX none */
    unsigned requests;
    bool silent;   /* answer nothing */
    unsigned life; /* part of each payload */
};

static void
bind_any(void *socket, char *ret, size_t cap)
{
    assert_int_equal(zmq_bind(socket, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, ret, &cap), 0);
}

static void
peer_open(struct peer *p, const char *topic)
{
    int hwm = 0;
    int linger = 0;

    memset(p, 0, sizeof(*p));
    p->topic = topic;
    p->hole = UINT64_MAX;
    p->zmq = zmq_ctx_new();
    p->pub = zmq_socket(p->zmq, ZMQ_PUB);
    p->router = zmq_socket(p->zmq, ZMQ_ROUTER);
    zmq_setsockopt(p->pub, ZMQ_SNDHWM, &hwm, sizeof(hwm));
    zmq_setsockopt(p->router, ZMQ_SNDHWM, &hwm, sizeof(hwm));
    zmq_setsockopt(p->pub, ZMQ_LINGER, &linger, sizeof(linger));
    zmq_setsockopt(p->router, ZMQ_LINGER, &linger, sizeof(linger));
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

/* [ts, [["BlockRemoved", [number, life]]], nil]: 8-byte integers. */
static size_t
payload_of(const struct peer *p, uint64_t number, uint8_t *out)
{
    static const uint8_t head[] = { 0x93, 0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0,
        0x91, 0x92, 0xac, 'B', 'l', 'o', 'c', 'k', 'R', 'e', 'm', 'o', 'v', 'e',
        'd', 0x92, 0xcf };
    size_t len = sizeof(head);

    memcpy(out, head, len);
    kve_number_write(number, out + len);
    len += 8;
    out[len++] = 0xcf;
    kve_number_write(p->life, out + len);
    len += 8;
    out[len++] = 0xc0;
    return len;
}

static void
send_frames(void *socket, size_t n, const struct kve_span *frames)
{
    for (size_t i = 0; i < n; i++)
        assert_true(zmq_send(socket, frames[i].data, frames[i].len,
                        i + 1 < n ? ZMQ_SNDMORE : 0) >= 0);
}

static void
peer_live(struct peer *p, uint64_t number)
{
    uint8_t payload[64];
    uint8_t seq[8];
    size_t len = payload_of(p, number, payload);

    kve_number_write(number, seq);
    struct kve_span frames[] = { { (const uint8_t *)p->topic,
                                     strlen(p->topic) },
        { seq, 8 }, { payload, len } };
    send_frames(p->pub, 3, frames);
}

static void
peer_answer(struct peer *p, const struct kve_span *id, uint64_t number)
{
    bool end = number == KVE_NUMBER_END;
    uint8_t payload[64];
    uint8_t seq[8];
    size_t len = end ? 0 : payload_of(p, number, payload);
    struct kve_span frames[5];
    size_t n = 0;

    kve_number_write(number, seq);
    frames[n++] = *id;
    frames[n++] = (struct kve_span){ NULL, 0 };
    if (p->shape == WITH_TOPIC)
        frames[n++] = (struct kve_span){ (const uint8_t *)p->topic,
            end ? 0 : strlen(p->topic) };
    frames[n++] = (struct kve_span){ seq, 8 };
    frames[n++] = (struct kve_span){ payload, len };
    send_frames(p->router, n, frames);
}

/* Serve one replay request, when there is one. */
static void
peer_serve(struct peer *p)
{
    uint8_t frame[5][64];
    struct kve_span id = { frame[0], 0 };
    int len[5];
    int n = 0;
    int more = 1;
    size_t size = sizeof(more);

    len[0] = zmq_recv(p->router, frame[0], 64, ZMQ_DONTWAIT);
    if (len[0] < 0)
        return;
    n = 1;
    while (zmq_getsockopt(p->router, ZMQ_RCVMORE, &more, &size) == 0 && more &&
        n < 5) {
        len[n] = zmq_recv(p->router, frame[n], 64, 0);
        n++;
    }
    p->requests++;
    if (n != 3 || len[1] != 0 || len[2] != 8 || p->silent)
        return;
    id.len = (size_t)len[0];
    uint64_t from = kve_number_read(frame[2]);
    for (uint64_t i = from < p->first ? p->first : from; i < p->next; i++)
        if (i != p->hole)
            peer_answer(p, &id, i);
    peer_answer(p, &id, KVE_NUMBER_END);
}

/* ---- the reader's end ---------------------------------------------- */

struct seen {
    kve_subscriber *sub;
    kve_source_id source;
    uint64_t number[MAX_SEEN];
    uint64_t life[MAX_SEEN];
    size_t n;
    size_t replayed;
    size_t notices[32];
    struct kve_notice last[32];
    char detail[32][256];
    bool remove_in_batch;
    bool remove_in_notice;
    bool stop_each;
    char topic[32];
};

static int
on_batch(void *ctx, const struct kve_delivery *d)
{
    struct seen *s = ctx;
    const struct kve_event *e = kve_batch_next(d->batch);

    assert_true(s->n < MAX_SEEN);
    s->number[s->n] = d->number;
    s->life[s->n] = 0;
    if (e != NULL && e->n_hashes == 2) {
        assert_int_equal(e->hashes[0].integer, d->number);
        s->life[s->n] = e->hashes[1].integer;
    }
    s->n++;
    s->replayed += d->replayed;
    (void)snprintf(s->topic, sizeof(s->topic), "%.*s", (int)d->topic.len,
        d->topic.len > 0 ? (const char *)d->topic.data : "");
    if (s->remove_in_batch)
        assert_int_equal(kve_sub_remove(s->sub, s->source), KVE_OK);
    return s->stop_each;
}

static void
on_notice(void *ctx, const struct kve_notice *n)
{
    struct seen *s = ctx;

    assert_non_null(n->detail);
    assert_null(strchr(n->detail, '\n'));
    s->notices[n->type]++;
    s->last[n->type] = *n;
    (void)snprintf(s->detail[n->type], sizeof(s->detail[0]), "%s", n->detail);
    if (s->remove_in_notice)
        assert_int_equal(kve_sub_remove(s->sub, s->source), KVE_OK);
}

static struct seen *
reader_open_probing(
    const struct peer *p, bool with_replay, uint32_t tail_probe_ms)
{
    struct seen *s = calloc(1, sizeof(*s));
    struct kve_sub_callbacks callbacks = { sizeof(callbacks), on_batch,
        on_notice, s };
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct kve_error err = { KVE_OK, 0, 0, "" };

    assert_non_null(s);
    opts.endpoint = p->live;
    opts.replay_endpoint = with_replay ? p->replay : NULL;
    opts.topic = p->topic;
    opts.tail_probe_ms = tail_probe_ms;
    opts.replay_timeout_ms = 300;
    if (kve_sub_create(NULL, NULL, &callbacks, &s->sub, &err) != KVE_OK ||
        kve_sub_add(s->sub, &opts, &s->source, &err) != KVE_OK)
        fail_msg("%s", err.detail);
    return s;
}

static struct seen *
reader_open(const struct peer *p, bool with_replay)
{
    return reader_open_probing(p, with_replay, 100);
}

static void
reader_close(struct seen *s)
{
    kve_sub_destroy(s->sub);
    free(s);
}

static struct kve_source_info
info_of(const struct seen *s)
{
    struct kve_source_info info = { .struct_size = sizeof(info) };

    assert_int_equal(kve_sub_source(s->sub, s->source, &info), KVE_OK);
    return info;
}

static uint64_t
counter(const struct seen *s, unsigned which)
{
    return kve_sub_counter(s->sub, 0, which);
}

/* Let both ends work until the condition holds or a minute has passed. */
#define RUN_UNTIL(p, s, condition)                                            \
    do {                                                                      \
        int64_t until = kve_now_ns() + 60000 * KVE_MS;                        \
        while (!(condition) && kve_now_ns() < until) {                        \
            peer_serve(p);                                                    \
            (void)kve_sub_poll((s)->sub, 5, 0, NULL, NULL);                   \
        }                                                                     \
        if (!(condition))                                                     \
            fail_msg(                                                         \
                "not within a minute: %s (%zu batches)", #condition, (s)->n); \
    } while (0)

static void
run_for(struct peer *p, struct seen *s, int ms)
{
    int64_t until = kve_now_ns() + ms * KVE_MS;

    while (kve_now_ns() < until) {
        peer_serve(p);
        (void)kve_sub_poll(s->sub, 5, 0, NULL, NULL);
    }
}

static void
assert_in_order(const struct seen *s, uint64_t first, size_t n)
{
    assert_int_equal(s->n, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(s->number[i], first + i);
}

/* ---- tests --------------------------------------------------------- */

/* B1, B2: the request is understood by a strict ROUTER, and answers of both
 * shapes are, with an empty topic, a topic, and one of 8 bytes. */
static void
test_replay_shapes(void **state)
{
    static const struct {
        const char *topic;
        enum shape shape;
    } rows[] = {
        { "", WITH_TOPIC },
        { "", NO_TOPIC },
        { "kv", WITH_TOPIC },
        { "kv", NO_TOPIC },
        { "kv-event", WITH_TOPIC },
        { "kv-event", NO_TOPIC },
    };

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        struct peer p;
        peer_open(&p, rows[i].topic);
        p.shape = rows[i].shape;
        p.next = 5;
        struct seen *s = reader_open(&p, true);

        RUN_UNTIL(&p, s, s->n == 5);
        assert_string_equal(s->topic, rows[i].topic);
        assert_int_equal(s->replayed, 5);
        RUN_UNTIL(&p, s, info_of(s).state == KVE_STATE_LIVE);
        assert_true(info_of(s).tail_confirmed);
        peer_live(&p, p.next++);
        RUN_UNTIL(&p, s, s->n == 6);
        assert_in_order(s, 0, 6);
        assert_int_equal(s->replayed, 5);
        reader_close(s);
        peer_close(&p);
    }
}

/* Exactly the lost ones come by replay, before the live batch that showed
 * the gap. */
static void
test_gap_is_repaired(void **state)
{
    struct peer p;
    (void)state;
    peer_open(&p, "t");
    struct seen *s = reader_open(&p, true);

    RUN_UNTIL(&p, s, info_of(s).state == KVE_STATE_LIVE);
    peer_live(&p, 0);
    p.next = 1;
    RUN_UNTIL(&p, s, s->n == 1);
    p.next = 7;
    peer_live(&p, 6);
    RUN_UNTIL(&p, s, s->n == 7);
    assert_in_order(s, 0, 7);
    assert_int_equal(counter(s, KVE_COUNTER_SUB_GAPS), 1);
    assert_int_equal(counter(s, KVE_COUNTER_SUB_MISSED), 5);
    assert_int_equal(counter(s, KVE_COUNTER_SUB_REPAIRED), 5);
    assert_int_equal(counter(s, KVE_COUNTER_SUB_LOST), 0);
    assert_int_equal(s->last[KVE_NOTICE_GAP].first, 1);
    assert_int_equal(s->last[KVE_NOTICE_GAP].last, 5);
    RUN_UNTIL(&p, s, info_of(s).state == KVE_STATE_LIVE);
    reader_close(s);
    peer_close(&p);
}

/* A batch that replay never had is lost once; no third request follows. */
static void
test_permanent_hole(void **state)
{
    struct peer p;
    (void)state;
    peer_open(&p, "t");
    struct seen *s = reader_open(&p, true);

    RUN_UNTIL(&p, s, info_of(s).state == KVE_STATE_LIVE);
    peer_live(&p, 0);
    p.next = 1;
    RUN_UNTIL(&p, s, s->n == 1);
    unsigned before = p.requests;
    p.hole = 2;
    p.next = 5;
    peer_live(&p, 4);
    RUN_UNTIL(&p, s, s->n == 4);
    assert_int_equal(s->number[1], 1);
    assert_int_equal(s->number[2], 3);
    assert_int_equal(s->number[3], 4);
    assert_int_equal(p.requests - before, 2);
    assert_int_equal(counter(s, KVE_COUNTER_SUB_LOST), 1);
    RUN_UNTIL(&p, s, info_of(s).state == KVE_STATE_DEGRADED);
    assert_int_equal(info_of(s).missing_first, 2);
    assert_int_equal(info_of(s).missing_last, 2);
    reader_close(s);
    peer_close(&p);
}

/* The last batch is lost and nothing follows: the tail probe finds it. */
static void
test_lost_tail(void **state)
{
    struct peer p;
    (void)state;
    peer_open(&p, "t");
    struct seen *s = reader_open(&p, true);

    RUN_UNTIL(&p, s, info_of(s).state == KVE_STATE_LIVE);
    peer_live(&p, 0);
    p.next = 1;
    RUN_UNTIL(&p, s, s->n == 1);
    p.next = 2;
    RUN_UNTIL(&p, s, s->n == 2);
    assert_in_order(s, 0, 2);
    RUN_UNTIL(&p, s, info_of(s).state == KVE_STATE_LIVE);
    reader_close(s);
    peer_close(&p);
}

/* B7: the publisher starts anew in place; only the new life is delivered
 * after the word to forget the old one. */
static void
test_restart(void **state)
{
    struct peer p;
    (void)state;
    peer_open(&p, "t");
    struct seen *s = reader_open(&p, false);

    RUN_UNTIL(&p, s, s->notices[KVE_NOTICE_CONNECTED] == 1);
    for (uint64_t i = 0; i < 10; i++)
        peer_live(&p, i);
    RUN_UNTIL(&p, s, s->n == 10);
    p.life = 1;
    peer_live(&p, 0);
    RUN_UNTIL(&p, s, s->n == 11);
    assert_int_equal(s->number[10], 0);
    assert_int_equal(s->life[10], 1);
    assert_int_equal(s->notices[KVE_NOTICE_CLEAR], 1);
    assert_int_equal(s->last[KVE_NOTICE_CLEAR].reason, KVE_REASON_RESTART);
    assert_int_equal(counter(s, KVE_COUNTER_SUB_RESTARTS), 1);
    reader_close(s);
    peer_close(&p);
}

/* No answer to replays: given up after three tries, aloud, and the live
 * stream goes on. */
static void
test_silent_replay(void **state)
{
    struct peer p;
    (void)state;
    peer_open(&p, "t");
    p.silent = true;
    struct seen *s = reader_open(&p, true);

    RUN_UNTIL(&p, s, s->notices[KVE_NOTICE_CONNECTED] == 1);
    peer_live(&p, 3);
    RUN_UNTIL(&p, s, s->n == 1);
    assert_int_equal(s->number[0], 3);
    assert_int_equal(s->notices[KVE_NOTICE_REPLAY_FAILED], 3);
    assert_int_equal(s->notices[KVE_NOTICE_LOST], 1);
    assert_int_equal(s->last[KVE_NOTICE_LOST].last, 2);
    assert_int_equal(counter(s, KVE_COUNTER_SUB_REPLAY_TIMEOUTS), 3);
    RUN_UNTIL(&p, s, info_of(s).state == KVE_STATE_DEGRADED);
    peer_live(&p, 4);
    RUN_UNTIL(&p, s, s->n == 2);
    reader_close(s);
    peer_close(&p);
}

/* A18: what is no message is counted by kind, told, and costs nothing else. */
static void
test_bad_frames(void **state)
{
    static const uint8_t x8[8] = { 0 };
    static const struct {
        size_t n;
        size_t len[4];
        enum kve_counter counter;
    } rows[] = {
        { 1, { 1 }, KVE_COUNTER_SUB_BAD_ONE_FRAME },
        { 2, { 1, 8 }, KVE_COUNTER_SUB_BAD_TWO_FRAMES },
        { 4, { 1, 8, 8, 8 }, KVE_COUNTER_SUB_BAD_MANY_FRAMES },
        { 3, { 1, 4, 8 }, KVE_COUNTER_SUB_BAD_NUMBER },
        { 3, { 1, 8, 0 }, KVE_COUNTER_SUB_BAD_EMPTY },
    };
    struct peer p;

    (void)state;
    peer_open(&p, "t");
    struct seen *s = reader_open(&p, false);
    RUN_UNTIL(&p, s, s->notices[KVE_NOTICE_CONNECTED] == 1);
    for (size_t i = 0; i < N_OF(rows); i++) {
        struct kve_span frames[4];
        for (size_t k = 0; k < rows[i].n; k++)
            frames[k] = (struct kve_span){ k == 0 ? (const uint8_t *)"t" : x8,
                rows[i].len[k] };
        send_frames(p.pub, rows[i].n, frames);
        RUN_UNTIL(&p, s, s->notices[KVE_NOTICE_BAD_FRAMES] == i + 1);
        assert_int_equal(counter(s, rows[i].counter), 1);
    }
    peer_live(&p, 0);
    RUN_UNTIL(&p, s, s->n == 1);
    reader_close(s);
    peer_close(&p);
}

/* An event that cannot be read costs that event, and the source says so. */
static void
test_unreadable(void **state)
{
    /* [1, [["BlockRemoved"], ["BlockTeleported"]], nil] */
    static const uint8_t payload[] = "\x93\x01\x92\x91\xac"
                                     "BlockRemoved\x91\xaf"
                                     "BlockTeleported\xc0";
    static const uint8_t seq[8] = { 0 };
    struct peer p;

    (void)state;
    peer_open(&p, "t");
    struct seen *s = reader_open(&p, false);
    RUN_UNTIL(&p, s, s->notices[KVE_NOTICE_CONNECTED] == 1);
    struct kve_span frames[] = { { (const uint8_t *)"t", 1 }, { seq, 8 },
        { payload, sizeof(payload) - 1 } };
    send_frames(p.pub, 3, frames);
    RUN_UNTIL(&p, s, s->n == 1);
    assert_int_equal(s->notices[KVE_NOTICE_UNREADABLE], 1);
    assert_int_equal(s->notices[KVE_NOTICE_UNKNOWN_EVENT], 1);
    assert_int_equal(
        s->last[KVE_NOTICE_UNREADABLE].fault, KVE_FAULT_MISSING_HASHES);
    assert_non_null(strstr(s->detail[KVE_NOTICE_UNREADABLE], "BlockRemoved"));
    assert_int_equal(counter(s, KVE_COUNTER_SUB_UNREADABLE_EVENTS), 1);
    assert_int_equal(counter(s, KVE_COUNTER_SUB_UNKNOWN_EVENTS), 1);
    RUN_UNTIL(&p, s, info_of(s).state == KVE_STATE_DEGRADED);
    assert_int_equal(info_of(s).reason, KVE_REASON_UNREADABLE);
    assert_true(info_of(s).unknown_events);
    reader_close(s);
    peer_close(&p);
}

/* 10,000 wait; a loop of poll(2) and one batch a call gets them all. */
static void
test_poll_loop(void **state)
{
    enum { N = 10000 };
    struct peer p;

    (void)state;
    peer_open(&p, "t");
    struct seen *s = reader_open_probing(&p, true, KVE_NONE);
    RUN_UNTIL(&p, s, info_of(s).state == KVE_STATE_LIVE);
    for (uint64_t i = 0; i < N; i++)
        peer_live(&p, i);
    p.next = N;

    int64_t until = kve_now_ns() + 60000 * KVE_MS;
    while (s->n < N && kve_now_ns() < until) {
        struct pollfd fd = { kve_sub_fd(s->sub), POLLIN, 0 };
        size_t before = s->n;
        size_t got = 0;

        peer_serve(&p);
        if (poll(&fd, 1, 100) == 0)
            continue;
        assert_int_equal(kve_sub_poll(s->sub, 0, 1, &got, NULL), KVE_OK);
        assert_true(got <= 1);
        assert_int_equal(s->n - before, got);
    }
    assert_in_order(s, 0, N);

    /* And then it is quiet: nothing to do, nothing readable. A timer that was
     * set for something that is over by now may fire once. */
    bool quiet = false;
    for (int i = 0; i < 50 && !quiet; i++) {
        struct pollfd fd = { kve_sub_fd(s->sub), POLLIN, 0 };

        quiet = poll(&fd, 1, 50) == 0;
        assert_int_equal(kve_sub_poll(s->sub, 0, 0, NULL, NULL), KVE_OK);
    }
    assert_true(quiet);
    reader_close(s);
    peer_close(&p);
}

/* on_batch ends the poll after the batch it was called for. */
static void
test_stop_each(void **state)
{
    struct peer p;
    (void)state;
    peer_open(&p, "t");
    struct seen *s = reader_open(&p, false);
    RUN_UNTIL(&p, s, s->notices[KVE_NOTICE_CONNECTED] == 1);
    s->stop_each = true;
    for (uint64_t i = 0; i < 3; i++)
        peer_live(&p, i);
    for (size_t i = 1; i <= 3; i++) {
        size_t got = 0;
        assert_int_equal(kve_sub_poll(s->sub, 1000, 0, &got, NULL), KVE_OK);
        assert_int_equal(got, 1);
        assert_int_equal(s->n, i);
    }
    reader_close(s);
    peer_close(&p);
}

static void *
waker(void *sub)
{
    usleep(30000);
    kve_sub_wake(sub);
    usleep(30000);
    kve_sub_stop(sub);
    return NULL;
}

static void
test_wake_and_stop(void **state)
{
    struct peer p;
    pthread_t thread;

    (void)state;
    peer_open(&p, "t");
    struct seen *s = reader_open(&p, false);
    run_for(&p, s, 50);
    assert_int_equal(pthread_create(&thread, NULL, waker, s->sub), 0);
    int64_t start = kve_now_ns();
    assert_int_equal(kve_sub_poll(s->sub, 5000, 0, NULL, NULL), KVE_OK);
    assert_int_equal(kve_sub_poll(s->sub, 5000, 0, NULL, NULL), KVE_E_CLOSED);
    assert_true(kve_now_ns() - start < 2000 * KVE_MS);
    pthread_join(thread, NULL);
    assert_int_equal(kve_sub_poll(s->sub, 5000, 0, NULL, NULL), KVE_E_CLOSED);
    reader_close(s);
    peer_close(&p);
}

/* A source may be removed from its own callbacks. */
static void
test_remove_from_callbacks(void **state)
{
    struct peer p;

    (void)state;
    for (int notice = 0; notice < 2; notice++) {
        peer_open(&p, "t");
        p.next = 3;
        struct seen *s = reader_open(&p, true);
        s->remove_in_batch = notice == 0;
        s->remove_in_notice = notice == 1;
        struct kve_source_info info = { .struct_size = sizeof(info) };
        RUN_UNTIL(
            &p, s, kve_sub_source(s->sub, s->source, &info) == KVE_E_NOT_FOUND);
        run_for(&p, s, 50);
        assert_int_equal(s->n, notice == 0 ? 1 : 0);
        /* What it counted is kept in the sum. */
        assert_int_equal(counter(s, KVE_COUNTER_SUB_BATCHES), s->n);
        assert_int_equal(kve_sub_remove(s->sub, s->source), KVE_E_NOT_FOUND);
        reader_close(s);
        peer_close(&p);
    }
}

/* A batch whose callback removed its source was delivered all the same: it is
 * counted, and the poll returns. One that fails says 0. */
static void
test_delivered_and_removed(void **state)
{
    struct peer p;
    size_t total = 0;
    size_t got = 0;

    (void)state;
    peer_open(&p, "t");
    struct seen *s = reader_open(&p, false);
    RUN_UNTIL(&p, s, s->notices[KVE_NOTICE_CONNECTED] == 1);
    s->remove_in_batch = true;
    peer_live(&p, 0);
    int64_t until = kve_now_ns() + 60000 * KVE_MS;
    while (s->n == 0 && kve_now_ns() < until) {
        assert_int_equal(kve_sub_poll(s->sub, 1000, 0, &got, NULL), KVE_OK);
        total += got;
    }
    assert_int_equal(s->n, 1);
    assert_int_equal(total, 1);
    kve_sub_stop(s->sub);
    assert_int_equal(kve_sub_poll(s->sub, 0, 0, &got, NULL), KVE_E_CLOSED);
    assert_int_equal(got, 0);
    reader_close(s);
    peer_close(&p);
}

/* One subscriber, several sources, each on its own. */
static void
test_two_sources(void **state)
{
    struct peer a;
    struct peer b;

    (void)state;
    peer_open(&a, "t");
    peer_open(&b, "t");
    a.next = 3;
    b.next = 4;
    struct seen *s = reader_open(&a, true);
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    kve_source_id second;
    opts.endpoint = b.live;
    opts.replay_endpoint = b.replay;
    assert_int_equal(kve_sub_add(s->sub, &opts, &second, NULL), KVE_OK);
    assert_int_not_equal(second, s->source);
    RUN_UNTIL(&a, s, (peer_serve(&b), s->n == 7));
    assert_int_equal(
        kve_sub_counter(s->sub, s->source, KVE_COUNTER_SUB_BATCHES), 3);
    assert_int_equal(
        kve_sub_counter(s->sub, second, KVE_COUNTER_SUB_BATCHES), 4);
    reader_close(s);
    peer_close(&a);
    peer_close(&b);
}

/* Options that cannot work are refused with a line that says why. */
static void
test_bad_options(void **state)
{
    static const struct {
        struct kve_source_opts opts;
        const char *says;
    } rows[] = {
        { { .endpoint = "http://127.0.0.1:1" }, "http" },
        { { .endpoint = "tcp://127.0.0.1" }, "port" },
        { { .endpoint = "tcp://127.0.0.1:70000" }, "70000" },
        { { .bind = 9 }, "bind is 9" },
        { { .on_loss = 9 }, "on_loss is 9" },
        { { .start = 9 }, "start is 9" },
        { { .streams = 9 }, "streams is 9" },
        { { .snapshot_endpoint = "nats://127.0.0.1:1" }, "nats" },
        { { .start = KVE_START_NUMBER }, "replay_endpoint" },
        { { .endpoint = "tcp://127.0.0.1:65535", .rank = { 1, true } },
            "65535" },
        { { .rank = { -1, true } }, "rank is -1" },
    };
    struct seen s = { .n = 0 };
    struct kve_sub_callbacks callbacks = { sizeof(callbacks), on_batch,
        on_notice, &s };
    struct kve_sub_opts sub_opts = KVE_SUB_OPTS_INIT;
    struct kve_error err;
    kve_source_id id;

    (void)state;
    assert_int_equal(
        kve_sub_create(NULL, NULL, NULL, &s.sub, &err), KVE_E_INVAL);
    sub_opts.threads = 257;
    assert_int_equal(
        kve_sub_create(NULL, &sub_opts, &callbacks, &s.sub, &err), KVE_E_INVAL);
    assert_non_null(strstr(err.detail, "threads is 257"));
    assert_int_equal(
        kve_sub_create(NULL, NULL, &callbacks, &s.sub, &err), KVE_OK);
    for (size_t i = 0; i < N_OF(rows); i++) {
        struct kve_source_opts opts = rows[i].opts;
        opts.struct_size = sizeof(opts);
        memset(&err, 0, sizeof(err));
        assert_int_equal(kve_sub_add(s.sub, &opts, &id, &err), KVE_E_INVAL);
        if (strstr(err.detail, rows[i].says) == NULL)
            fail_msg("row %zu: \"%s\" does not say \"%s\"", i, err.detail,
                rows[i].says);
    }
    kve_sub_destroy(s.sub);
}

/* A caller that knows more fields than this library: zero is fine, anything
 * else is refused. */
static void
test_newer_caller(void **state)
{
    struct {
        struct kve_source_opts opts;
        uint64_t future;
    } newer = { .opts = KVE_SOURCE_OPTS_INIT };
    struct kve_sub_callbacks callbacks = { sizeof(callbacks), on_batch, NULL,
        NULL };
    kve_subscriber *sub = NULL;
    kve_source_id id;
    struct kve_error err;

    (void)state;
    newer.opts.struct_size = sizeof(newer);
    assert_int_equal(
        kve_sub_create(NULL, NULL, &callbacks, &sub, NULL), KVE_OK);
    assert_int_equal(kve_sub_add(sub, &newer.opts, &id, &err), KVE_OK);
    newer.future = 1;
    assert_int_equal(kve_sub_add(sub, &newer.opts, &id, &err), KVE_E_INVAL);
    assert_non_null(strstr(err.detail, "newer libkvevents"));
    kve_sub_destroy(sub);
}

/* After fork() the child may only destroy. */
static void
test_fork(void **state)
{
    struct peer p;
    (void)state;
    peer_open(&p, "t");
    struct seen *s = reader_open(&p, true);
    RUN_UNTIL(&p, s, info_of(s).state == KVE_STATE_LIVE);

    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct kve_error err;
        int ok = kve_sub_poll(s->sub, 0, 0, NULL, &err) == KVE_E_FORKED;
        kve_sub_destroy(s->sub);
        _exit(ok ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);

    /* The parent's is as it was. */
    peer_live(&p, 0);
    p.next = 1;
    RUN_UNTIL(&p, s, s->n == 1);
    reader_close(s);
    peer_close(&p);
}

/* The n-th allocation fails, for every n: no crash, no leak, and what could
 * not be delivered then is delivered later. */
static void
test_memory_failures(void **state)
{
    (void)state;
    for (uint64_t n = 1; n < 400; n++) {
        struct peer p;
        struct seen *s = calloc(1, sizeof(*s));
        struct kve_sub_callbacks callbacks = { sizeof(callbacks), on_batch,
            on_notice, s };
        struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
        int64_t live = kve_mem_live();

        peer_open(&p, "t");
        p.next = 3;
        opts.endpoint = p.live;
        opts.replay_endpoint = p.replay;
        opts.tail_probe_ms = 20;
        kve_mem_fail_at(n, false);
        kve_status status =
            kve_sub_create(NULL, NULL, &callbacks, &s->sub, NULL);
        if (status == KVE_OK) {
            status = kve_sub_add(s->sub, &opts, &s->source, NULL);
            if (status == KVE_OK) {
                RUN_UNTIL(&p, s, s->n == 3);
                peer_live(&p, 3);
                p.next = 4;
                RUN_UNTIL(&p, s, s->n == 4);
                assert_in_order(s, 0, 4);
            }
        }
        bool failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        if (status != KVE_OK)
            assert_int_equal(status, KVE_E_NOMEM);
        kve_sub_destroy(s->sub);
        peer_close(&p);
        free(s);
        assert_int_equal(kve_mem_live(), live);
        if (!failed)
            return; /* n is beyond the last allocation */
    }
    fail_msg("400 allocations were not enough");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replay_shapes),
        cmocka_unit_test(test_gap_is_repaired),
        cmocka_unit_test(test_permanent_hole),
        cmocka_unit_test(test_lost_tail),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_silent_replay),
        cmocka_unit_test(test_bad_frames),
        cmocka_unit_test(test_unreadable),
        cmocka_unit_test(test_poll_loop),
        cmocka_unit_test(test_stop_each),
        cmocka_unit_test(test_wake_and_stop),
        cmocka_unit_test(test_remove_from_callbacks),
        cmocka_unit_test(test_delivered_and_removed),
        cmocka_unit_test(test_two_sources),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_newer_caller),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_memory_failures),
    };

    return cmocka_run_group_tests_name(
        "subscribe/subscriber", tests, NULL, NULL);
}
