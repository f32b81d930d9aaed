/*
 * Replay over real sockets: both shapes, every kind of request, readers that
 * are slow, stuck or gone, and the live stream beside them.
 */
#include "pub_test.h"

#include "base/clock.h"
#include "publish/publisher.h"

#include <kvevents/codec.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

static void
publish(kve_publisher *pub, size_t n, size_t len)
{
    uint8_t *payload = calloc(1, len);

    assert_non_null(payload);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(
            kve_pub_publish_payload(pub, payload, len, NULL, NULL), KVE_OK);
    assert_int_equal(kve_pub_flush(pub, 10000, NULL), KVE_OK);
    free(payload);
}

static void
test_a_replay_starts_where_asked(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub;
    void *dealer;

    (void)state;
    opts.topic = "test";
    pub = test_create(NULL, &opts);
    dealer = test_dealer(test_zmq, kve_pub_replay_endpoint(pub), 1000);
    test_ask(dealer, 0);
    assert_int_equal(test_answer(dealer, 0, "test", 5000), 0);
    publish(pub, 19, 20);
    test_ask(dealer, 10);
    assert_int_equal(test_answer(dealer, 10, "test", 5000), 9);
    test_ask(dealer, 0);
    assert_int_equal(test_answer(dealer, 0, "test", 5000), 19);
    test_ask(dealer, 19);
    assert_int_equal(test_answer(dealer, 0, "test", 5000), 0);
    assert_int_equal(kve_pub_counter(pub, KVE_COUNTER_PUB_REPLAY_BATCHES), 28);
    test_wait_counter(pub, KVE_COUNTER_PUB_REPLAY_REQUESTS, 4);
    test_close(dealer);
    kve_pub_destroy(pub);
}

static void
test_the_old_shape_has_no_topic(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub;
    void *dealer;

    (void)state;
    opts.topic = "test";
    opts.replay_shape = KVE_REPLAY_NO_TOPIC;
    pub = test_create(NULL, &opts);
    dealer = test_dealer(test_zmq, kve_pub_replay_endpoint(pub), 1000);
    publish(pub, 5, 20);
    test_ask(dealer, 2);
    assert_int_equal(test_answer(dealer, 2, NULL, 5000), 3);
    test_close(dealer);
    kve_pub_destroy(pub);
}

static void
test_only_the_last_steps_are_kept(void **state)
{
    static const struct {
        uint32_t steps;
        size_t bytes;
        uint64_t first;
        size_t n;
    } rows[] = {
        { 100, 0, 10, 100 },
        { 0, 50 * 20, 60, 50 },
        { KVE_NONE, 0, 0, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct kve_pub_opts opts = test_loopback();
        kve_publisher *pub;
        void *dealer;

        opts.buffer_steps = rows[i].steps;
        opts.buffer_bytes = rows[i].bytes;
        pub = test_create(NULL, &opts);
        dealer = test_dealer(test_zmq, kve_pub_replay_endpoint(pub), 1000);
        publish(pub, 110, 20);
        test_ask(dealer, 0);
        assert_int_equal(
            test_answer(dealer, rows[i].first, "", 5000), rows[i].n);
        assert_int_equal(kve_pub_counter(pub, KVE_COUNTER_PUB_REPLAY_EVICTED),
            110 - rows[i].n);
        test_close(dealer);
        kve_pub_destroy(pub);
    }
}

/* ---- requests of every shape ---- */

struct request {
    size_t n; /* frames, as the DEALER sends them */
    struct {
        const char *data;
        size_t len;
    } frame[4];
    int first; /* of the answer; -1: the end only; -2: no answer at all */
};

static void
test_requests_of_every_shape(void **state)
{
    static const struct request rows[] = {
        { 1, { { "", 0 } }, -2 },
        { 1, { { "\0\0\0\0\0\0\0\2", 8 } }, -2 },
        { 2, { { "x", 1 }, { "\0\0\0\0\0\0\0\2", 8 } }, 2 },
        { 3, { { "", 0 }, { "\0\0\0\0\0\0\0\2", 8 }, { "", 0 } }, -2 },
        { 4, { { "", 0 }, { "", 0 }, { "", 0 }, { "", 0 } }, -2 },
        { 2, { { "", 0 }, { "", 0 } }, 0 },
        { 2, { { "", 0 }, { "\3", 1 } }, 3 },
        { 2, { { "", 0 }, { "\0\0\0\4", 4 } }, 4 },
        { 2, { { "", 0 }, { "\0\0\0\0\0\0\0\0\0\0\0\5", 12 } }, 5 },
        { 2, { { "", 0 }, { "\1\0\0\0\0\0\0\0\0", 9 } }, -1 },
        { 2, { { "", 0 }, { "snapshot", 8 } }, -1 },
        { 2, { { "", 0 }, { "\377\377\377\377\377\377\377\377", 8 } }, -1 },
    };
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub = test_create(NULL, &opts);
    void *dealer = test_dealer(test_zmq, kve_pub_replay_endpoint(pub), 1000);
    struct test_msg msg = { 0 };
    uint64_t bad = 0;

    (void)state;
    publish(pub, 10, 20);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (size_t k = 0; k < rows[i].n; k++)
            assert_true(
                zmq_send(dealer, rows[i].frame[k].data, rows[i].frame[k].len,
                    k + 1 < rows[i].n ? ZMQ_SNDMORE : 0) >= 0);
        if (rows[i].first == -2) {
            test_wait_counter(pub, KVE_COUNTER_PUB_REPLAY_BAD, ++bad);
            assert_false(test_recv(dealer, &msg, 20));
        } else if (rows[i].first == -1) {
            assert_int_equal(test_answer(dealer, 0, "", 5000), 0);
        } else {
            assert_int_equal(
                test_answer(dealer, (uint64_t)rows[i].first, "", 5000),
                10 - (size_t)rows[i].first);
        }
    }
    assert_int_equal(kve_pub_counter(pub, KVE_COUNTER_PUB_REPLAY_BAD), bad);
    test_msg_release(&msg);
    test_close(dealer);
    kve_pub_destroy(pub);
}

/* A REQ sends the same frames, and can read the first answer only. */
static void
test_a_req_gets_the_first_message(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub = test_create(NULL, &opts);
    void *req = zmq_socket(test_zmq, ZMQ_REQ);
    struct test_msg msg = { 0 };
    int zero = 0;

    (void)state;
    publish(pub, 3, 20);
    zmq_setsockopt(req, ZMQ_LINGER, &zero, sizeof(zero));
    assert_int_equal(zmq_connect(req, kve_pub_replay_endpoint(pub)), 0);
    assert_int_equal(zmq_send(req, "\1", 1, 0), 1);
    assert_true(test_recv(req, &msg, 5000));
    assert_int_equal(msg.n, 3);
    assert_int_equal(test_number(&msg, 1), 1);
    test_msg_release(&msg);
    test_close(req);
    kve_pub_destroy(pub);
}

/* ---- slow, stuck and gone readers ---- */

/* The reader begins to read two seconds after it asked, with room for ten
 * messages; meanwhile the stream goes on and pushes what it asked for out of
 * the buffer. Everything and the end arrives. */
static void
slow_reader(size_t n, size_t len)
{
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub;
    void *dealer, *sub;
    struct test_msg msg = { 0 };
    uint64_t first;

    opts.buffer_steps = (uint32_t)n;
    opts.sndbuf = 65536;
    pub = test_create(NULL, &opts);
    sub = test_sub(test_zmq, kve_pub_endpoint(pub), "", 100000);
    test_join(pub, sub);
    first = kve_pub_next_number(pub);
    publish(pub, n, len);
    dealer = test_dealer(test_zmq, kve_pub_replay_endpoint(pub), 10);
    test_ask(dealer, first);
    test_sleep_ms(1000);
    publish(pub, n / 2, len);
    test_sleep_ms(1000);
    assert_int_equal(test_answer(dealer, first, "", 10000), n);
    test_wait_counter(pub, KVE_COUNTER_PUB_REPLAY_REQUESTS, 1);

    /* Nor did the live stream lose anything. */
    for (size_t i = 0; i < n + n / 2; i++) {
        assert_true(test_recv(sub, &msg, 5000));
        assert_int_equal(test_number(&msg, 1), first + i);
    }
    test_msg_release(&msg);
    test_close(sub);
    test_close(dealer);
    kve_pub_destroy(pub);
}

static void
test_a_slow_reader_gets_10000(void **state)
{
    (void)state;
    slow_reader(10000, 60);
}

static void
test_a_slow_reader_gets_5000_large_ones(void **state)
{
    (void)state;
    slow_reader(5000, 10000);
}

static int
by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* p99 of the time from publish to receive of n batches, 1 ms apart. */
static int64_t
live_delay(kve_publisher *pub, void *sub, size_t n)
{
    int64_t *delays = calloc(n, sizeof(*delays));
    struct test_msg msg = { 0 };
    int64_t p99;

    assert_non_null(delays);
    for (size_t i = 0; i < n; i++) {
        int64_t begin = kve_now_ns();

        assert_int_equal(
            kve_pub_publish_payload(pub, "live", 4, NULL, NULL), KVE_OK);
        assert_true(test_recv(sub, &msg, 5000));
        delays[i] = kve_now_ns() - begin;
        test_sleep_ms(1);
    }
    qsort(delays, n, sizeof(*delays), by_size);
    p99 = delays[n * 99 / 100];
    test_msg_release(&msg);
    free(delays);
    return p99;
}

/* A reader asks for everything and reads nothing: live goes on as before, the
 * request expires, and the reader after it is served. */
static void
test_a_stuck_reader_harms_nobody(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub;
    void *sub, *stuck, *dealer;
    uint64_t first;

    (void)state;
    opts.replay_timeout_ms = 3000;
    opts.sndbuf = 65536;
    pub = test_create(NULL, &opts);
    sub = test_sub(test_zmq, kve_pub_endpoint(pub), "", 100000);
    test_join(pub, sub);
    int64_t quiet = live_delay(pub, sub, 200);

    test_close(sub);
    first = kve_pub_next_number(pub);
    publish(pub, 5000, 10000);
    sub = test_sub(test_zmq, kve_pub_endpoint(pub), "", 100000);
    test_join(pub, sub);
    stuck = test_dealer(test_zmq, kve_pub_replay_endpoint(pub), 1);
    test_ask(stuck, first);
    int64_t beside = live_delay(pub, sub, 200);

    /* Both are under a millisecond on an idle machine; one that is not may
     * take its time, but not as long as the stuck request stands. */
    assert_true(beside < quiet + 2000 * KVE_MS);
    test_wait_counter(pub, KVE_COUNTER_PUB_REPLAY_EXPIRED, 1);
    dealer = test_dealer(test_zmq, kve_pub_replay_endpoint(pub), 1000);
    test_ask(dealer, first + 4000);
    assert_true(test_answer(dealer, first + 4000, "", 5000) >= 1000);
    test_close(stuck);
    test_close(dealer);
    test_close(sub);
    kve_pub_destroy(pub);
}

/* Readers that ask for all there is and take nothing fill the socket library
 * up to a bound of their own: no live batch is skipped for them. */
static void
test_stuck_readers_do_not_silence_the_live_stream(void **state)
{
    enum { LEN = 50000, N = 200, LIMIT = 40 * LEN, READERS = 4 };
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub;
    void *stuck[READERS], *sub;

    (void)state;
    opts.sndbuf = 65536;
    opts.max_out_bytes = LIMIT;
    pub = test_create(NULL, &opts);
    publish(pub, N, LEN);
    for (int i = 0; i < READERS; i++) {
        stuck[i] = test_dealer(test_zmq, kve_pub_replay_endpoint(pub), 1);
        test_ask(stuck[i], 0);
    }
    test_sleep_ms(500);
    assert_int_equal(kve_pub_counter(pub, KVE_COUNTER_PUB_REPLAY_REQUESTS), 0);
    size_t held = atomic_load(&pub->out->bytes[KVE_OUT_REPLAY]);
    assert_in_range(held, LIMIT / 2, LIMIT / 2 + LEN);

    sub = test_sub(test_zmq, kve_pub_endpoint(pub), "", 1000);
    test_join(pub, sub);
    assert_int_equal(kve_pub_counter(pub, KVE_COUNTER_PUB_SKIPPED_OUT), 0);

    /* One wakes up and gets everything, when the others are gone. */
    for (int i = 1; i < READERS; i++)
        test_close(stuck[i]);
    assert_true(test_answer(stuck[0], 0, "", 5000) >= N);
    test_close(stuck[0]);
    test_close(sub);
    kve_pub_destroy(pub);
}

static void
test_a_gone_reader_is_counted(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    struct test_msg msg = { 0 };
    kve_publisher *pub;
    void *dealer;

    (void)state;
    opts.sndbuf = 65536;
    pub = test_create(NULL, &opts);
    publish(pub, 5000, 10000);
    dealer = test_dealer(test_zmq, kve_pub_replay_endpoint(pub), 1);
    test_ask(dealer, 0);
    assert_true(test_recv(dealer, &msg, 5000));
    test_msg_release(&msg);
    test_close(dealer);
    test_wait_counter(pub, KVE_COUNTER_PUB_REPLAY_GONE, 1);
    kve_pub_destroy(pub);
}

static void
test_requests_over_the_limit_are_refused(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub;
    void *dealers[6], *late;

    (void)state;
    opts.max_replays = 3;
    opts.sndbuf = 65536;
    opts.replay_timeout_ms = 500;
    pub = test_create(NULL, &opts);
    publish(pub, 3000, 20000);
    for (size_t i = 0; i < 6; i++) {
        dealers[i] = test_dealer(test_zmq, kve_pub_replay_endpoint(pub), 1);
        test_ask(dealers[i], 0);
    }
    test_wait_counter(pub, KVE_COUNTER_PUB_REPLAY_REFUSED, 3);
    test_wait_counter(pub, KVE_COUNTER_PUB_REPLAY_EXPIRED, 3);
    late = test_dealer(test_zmq, kve_pub_replay_endpoint(pub), 1);
    test_ask(late, 2999);
    assert_int_equal(test_answer(late, 2999, "", 5000), 1);
    test_close(late);
    for (size_t i = 0; i < 6; i++)
        test_close(dealers[i]);
    kve_pub_destroy(pub);
}

/* ---- many at once ---- */

struct reader {
    const char *endpoint;
    size_t got;
};

static void *
read_everything(void *arg)
{
    struct reader *reader = arg;
    void *dealer = test_dealer(test_zmq, reader->endpoint, 100);

    for (int i = 0; i < 5; i++) {
        test_ask(dealer, 0);
        reader->got += test_answer(dealer, 0, "", 20000);
    }
    test_close(dealer);
    return NULL;
}

static void
test_eight_readers_at_once_while_the_stream_goes_on(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    struct reader readers[8] = { 0 };
    pthread_t threads[8];
    kve_publisher *pub;

    (void)state;
    opts.buffer_steps = 100000;
    pub = test_create(NULL, &opts);
    publish(pub, 2000, 100);
    for (size_t i = 0; i < 8; i++) {
        readers[i].endpoint = kve_pub_replay_endpoint(pub);
        assert_int_equal(
            pthread_create(&threads[i], NULL, read_everything, &readers[i]), 0);
    }
    for (int i = 0; i < 100; i++) {
        publish(pub, 20, 100);
        test_sleep_ms(1);
    }
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_in_range(readers[i].got, 5 * 2000, 5 * 4000);
    }
    test_wait_counter(pub, KVE_COUNTER_PUB_REPLAY_REQUESTS, 40);
    kve_pub_destroy(pub);
}

/* Two questions on one DEALER before anything was read: two whole answers,
 * one after the other. */
static void
test_two_questions_of_one_reader(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub = test_create(NULL, &opts);
    void *dealer = test_dealer(test_zmq, kve_pub_replay_endpoint(pub), 10);

    (void)state;
    publish(pub, 3000, 100);
    test_ask(dealer, 0);
    test_ask(dealer, 1500);
    test_sleep_ms(100);
    assert_int_equal(test_answer(dealer, 0, "", 5000), 3000);
    assert_int_equal(test_answer(dealer, 1500, "", 5000), 1500);
    test_close(dealer);
    kve_pub_destroy(pub);
}

/* What was asked for before the end of the publisher is answered in its
 * limit. */
static void
test_shutdown_finishes_answers(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub = test_create(NULL, &opts);
    void *dealer = test_dealer(test_zmq, kve_pub_replay_endpoint(pub), 100);
    struct test_msg msg = { 0 };

    (void)state;
    publish(pub, 200, 100);
    test_ask(dealer, 0);
    assert_true(test_recv(dealer, &msg, 5000));
    assert_int_equal(kve_pub_shutdown(pub, 5000, NULL, NULL), KVE_OK);
    assert_int_equal(test_answer(dealer, 1, "", 5000), 199);
    test_msg_release(&msg);
    test_close(dealer);
    kve_pub_destroy(pub);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        LEAK_TEST(test_a_replay_starts_where_asked),
        LEAK_TEST(test_the_old_shape_has_no_topic),
        LEAK_TEST(test_only_the_last_steps_are_kept),
        LEAK_TEST(test_requests_of_every_shape),
        LEAK_TEST(test_a_req_gets_the_first_message),
        LEAK_TEST(test_a_slow_reader_gets_10000),
        LEAK_TEST(test_a_slow_reader_gets_5000_large_ones),
        LEAK_TEST(test_a_stuck_reader_harms_nobody),
        LEAK_TEST(test_stuck_readers_do_not_silence_the_live_stream),
        LEAK_TEST(test_a_gone_reader_is_counted),
        LEAK_TEST(test_requests_over_the_limit_are_refused),
        LEAK_TEST(test_eight_readers_at_once_while_the_stream_goes_on),
        LEAK_TEST(test_two_questions_of_one_reader),
        LEAK_TEST(test_shutdown_finishes_answers),
    };

    return cmocka_run_group_tests(tests, test_make_zmq, test_end_zmq);
}
