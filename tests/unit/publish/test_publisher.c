/*
 * A publisher and readers of the socket library: live stream, numbers, full
 * queue, flush, shutdown, options, fork.
 */
#include "pub_test.h"

#include "../../support/port.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "publish/publisher.h"

#include <kvevents/codec.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

/* ---- the live stream ---- */

/* Three frames, numbers from 0, rank and time filled in, every event there. */
static void
test_a_batch_arrives_as_it_was(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    struct test_store store[3];
    struct kve_event events[3];
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    const struct kve_batch_info *info;
    struct test_msg msg = { 0 };
    kve_batch *batch = NULL;
    kve_publisher *pub;
    uint64_t number = 99;
    void *sub;

    (void)state;
    opts.topic = "kv-events";
    opts.rank = (struct kve_int){ 0, true };
    pub = test_create(NULL, &opts);
    assert_true(kve_pub_bound(pub));
    assert_int_equal(kve_pub_next_number(pub), 0);
    sub = test_sub(test_zmq, kve_pub_endpoint(pub), "kv", 1000);
    test_join(pub, sub);

    for (size_t i = 0; i < 3; i++) {
        test_store_init(&store[i], 100 * (i + 1), 32);
        events[i] = store[i].event;
    }
    view.events = events;
    view.n_events = 3;
    double before = kve_unix_time();
    uint64_t next = kve_pub_next_number(pub);
    assert_int_equal(kve_pub_publish(pub, &view, &number, NULL), KVE_OK);
    assert_int_equal(number, next);

    assert_true(test_recv(sub, &msg, 5000));
    assert_int_equal(msg.n, 3);
    assert_string_equal((char *)msg.data[0], "kv-events");
    assert_int_equal(test_number(&msg, 1), number);
    assert_int_equal(kve_batch_create(NULL, &batch, NULL), KVE_OK);
    assert_int_equal(
        kve_batch_decode(batch, msg.data[2], msg.len[2], NULL), KVE_OK);
    info = kve_batch_get_info(batch);
    assert_int_equal(info->n_events, 3);
    assert_true(info->rank.set);
    assert_int_equal(info->rank.value, 0);
    assert_true(info->ts >= before && info->ts < before + 5);
    for (size_t i = 0; i < 3; i++) {
        const struct kve_event *event = kve_batch_next(batch);

        assert_int_equal(event->type, KVE_EVENT_STORED);
        assert_int_equal(event->n_hashes, 2);
        assert_true(event->hashes[1].integer == 100 * (i + 1) + 1);
        assert_int_equal(event->n_tokens, 32);
        assert_memory_equal(event->tokens, store[i].tokens, 32 * 4);
    }

    /* What the view says goes before the publisher's rank and clock. */
    view.ts = 12.5;
    view.rank = (struct kve_int){ 7, true };
    assert_int_equal(kve_pub_publish(pub, &view, NULL, NULL), KVE_OK);
    assert_true(test_recv(sub, &msg, 5000));
    assert_int_equal(
        kve_batch_decode(batch, msg.data[2], msg.len[2], NULL), KVE_OK);
    assert_int_equal(kve_batch_get_info(batch)->rank.value, 7);
    assert_true(kve_batch_get_info(batch)->ts == 12.5);

    test_msg_release(&msg);
    kve_batch_destroy(batch);
    test_close(sub);
    kve_pub_destroy(pub);
}

/* An unset rank is not rank 0. */
static void
test_no_rank_is_nil(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    struct kve_event clear = { .type = KVE_EVENT_CLEARED };
    struct kve_batch_view view = test_view(&clear);
    struct test_msg msg = { 0 };
    kve_publisher *pub = test_create(NULL, &opts);
    void *sub = test_sub(test_zmq, kve_pub_endpoint(pub), "", 1000);

    (void)state;
    test_join(pub, sub);
    assert_int_equal(kve_pub_publish(pub, &view, NULL, NULL), KVE_OK);
    assert_true(test_recv(sub, &msg, 5000));
    assert_int_equal(msg.len[0], 0);
    assert_int_equal(msg.data[2][msg.len[2] - 1], 0xc0);
    test_msg_release(&msg);
    test_close(sub);
    kve_pub_destroy(pub);
}

/* Numbers go on over 10,000 batches, nothing is lost or out of order. */
static void
test_many_batches_in_order(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub = test_create(NULL, &opts);
    void *sub = test_sub(test_zmq, kve_pub_endpoint(pub), "", 100000);
    struct test_store store;
    struct kve_batch_view view;
    struct test_msg msg = { 0 };
    uint64_t first, number;

    (void)state;
    test_join(pub, sub);
    test_store_init(&store, 5, 16);
    view = test_view(&store.event);
    first = kve_pub_next_number(pub);
    for (uint64_t i = 0; i < 10000; i++) {
        assert_int_equal(kve_pub_publish(pub, &view, &number, NULL), KVE_OK);
        assert_int_equal(number, first + i);
    }
    for (uint64_t i = 0; i < 10000; i++) {
        assert_true(test_recv(sub, &msg, 5000));
        assert_int_equal(test_number(&msg, 1), first + i);
    }
    assert_int_equal(kve_pub_flush(pub, 5000, NULL), KVE_OK);
    assert_int_equal(
        kve_pub_counter(pub, KVE_COUNTER_PUB_BATCHES), first + 10000);
    assert_int_equal(kve_pub_counter(pub, KVE_COUNTER_PUB_SENT), first + 10000);
    test_msg_release(&msg);
    test_close(sub);
    kve_pub_destroy(pub);
}

static void
test_topics_are_filtered_by_their_reader(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub;
    struct test_msg msg = { 0 };
    void *foo, *bar;

    (void)state;
    opts.topic = "foo";
    opts.replay_endpoint = NULL;
    pub = test_create(NULL, &opts);
    assert_string_equal(kve_pub_replay_endpoint(pub), "");
    bar = test_sub(test_zmq, kve_pub_endpoint(pub), "bar", 1000);
    foo = test_sub(test_zmq, kve_pub_endpoint(pub), "foo", 1000);
    test_join(pub, foo);
    for (int i = 0; i < 3; i++)
        assert_int_equal(
            kve_pub_publish_payload(pub, "x", 1, NULL, NULL), KVE_OK);
    for (int i = 0; i < 3; i++)
        assert_true(test_recv(foo, &msg, 5000));
    assert_false(test_recv(bar, &msg, 50));
    test_close(foo);
    test_close(bar);
    kve_pub_destroy(pub);
}

/* A sleeping engine: one batch and no call after it. */
static void
test_one_batch_goes_out_by_itself(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    struct kve_event clear = { .type = KVE_EVENT_CLEARED };
    struct kve_batch_view view = test_view(&clear);
    kve_publisher *pub = test_create(NULL, &opts);
    void *sub = test_sub(test_zmq, kve_pub_endpoint(pub), "", 1000);
    struct test_msg msg = { 0 };
    uint64_t wakeups;

    (void)state;
    test_join(pub, sub);
    test_sleep_ms(50);
    wakeups = kve_pub_counter(pub, KVE_COUNTER_PUB_WAKEUPS);
    assert_int_equal(kve_pub_publish(pub, &view, NULL, NULL), KVE_OK);
    assert_true(test_recv(sub, &msg, 1000));
    assert_int_equal(
        kve_pub_counter(pub, KVE_COUNTER_PUB_WAKEUPS), wakeups + 1);
    test_msg_release(&msg);
    test_close(sub);
    kve_pub_destroy(pub);
}

static void
test_numbers_start_where_asked_and_skip_the_reserved_one(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub;
    uint64_t number;

    (void)state;
    opts.first_number = KVE_NUMBER_END - 2;
    pub = test_create(NULL, &opts);
    assert_true(kve_pub_next_number(pub) == KVE_NUMBER_END - 2);
    static const uint64_t expected[] = { KVE_NUMBER_END - 2, KVE_NUMBER_END - 1,
        0, 1 };
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(
            kve_pub_publish_payload(pub, "x", 1, &number, NULL), KVE_OK);
        assert_true(number == expected[i]);
    }
    kve_pub_destroy(pub);
}

static void
test_a_withheld_batch_is_in_the_replay_only(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub = test_create(NULL, &opts);
    void *sub = test_sub(test_zmq, kve_pub_endpoint(pub), "", 1000);
    void *dealer = test_dealer(test_zmq, kve_pub_replay_endpoint(pub), 1000);
    struct test_msg msg = { 0 };
    uint64_t first, number;

    (void)state;
    test_join(pub, sub);
    first = kve_pub_next_number(pub);
    for (int i = 0; i < 6; i++)
        assert_int_equal(i % 2 == 0
                ? kve_pub_publish_payload(pub, "x", 1, NULL, NULL)
                : kve_pub_withhold_payload(pub, "y", 1, &number, NULL),
            KVE_OK);
    assert_int_equal(number, first + 5);
    for (uint64_t i = 0; i < 6; i += 2) {
        assert_true(test_recv(sub, &msg, 5000));
        assert_int_equal(test_number(&msg, 1), first + i);
    }
    assert_int_equal(kve_pub_flush(pub, 5000, NULL), KVE_OK);
    test_ask(dealer, first);
    assert_int_equal(test_answer(dealer, first, "", 5000), 6);
    assert_false(test_recv(sub, &msg, 20));
    test_msg_release(&msg);
    test_close(sub);
    test_close(dealer);
    kve_pub_destroy(pub);
}

/* ---- what cannot be published ---- */

static void
test_what_cannot_be_encoded_uses_no_number(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    struct kve_event wrong = { .type = 77 };
    struct kve_batch_view view = test_view(&wrong);
    kve_publisher *pub = test_create(NULL, &opts);
    struct kve_error err = { 0 };
    uint64_t number = 42;

    (void)state;
    assert_int_equal(kve_pub_publish(pub, &view, &number, &err), KVE_E_INVAL);
    assert_true(err.detail[0] != '\0');
    assert_int_equal(kve_pub_publish(pub, NULL, &number, &err), KVE_E_INVAL);
    assert_int_equal(
        kve_pub_publish_payload(pub, "", 0, &number, &err), KVE_E_INVAL);
    assert_int_equal(
        kve_pub_publish_payload(pub, NULL, 3, &number, &err), KVE_E_INVAL);
    assert_int_equal(number, 42);
    assert_int_equal(kve_pub_next_number(pub), 0);
    assert_int_equal(kve_pub_counter(pub, KVE_COUNTER_PUB_UNENCODABLE), 4);
    assert_int_equal(kve_pub_counter(pub, KVE_COUNTER_PUB_BATCHES), 0);
    kve_pub_destroy(pub);
}

/* Queue of 10, a sender that stands still, 100 batches: a hole of 90, the
 * first ten in order, and a replay that has the same hole. */
static void
test_a_full_queue_leaves_a_hole(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    struct test_brake *brake;
    kve_context *context = test_brake_context(&brake, NULL);
    kve_publisher *pub;
    struct test_msg msg = { 0 };
    struct kve_error err = { 0 };
    int64_t longest = 0;
    uint64_t first, number = 0;
    void *sub, *dealer;

    (void)state;
    opts.queue_items = 10;
    pub = test_create(context, &opts);
    sub = test_sub(test_zmq, kve_pub_endpoint(pub), "", 1000);
    dealer = test_dealer(test_zmq, kve_pub_replay_endpoint(pub), 1000);
    test_join(pub, sub);
    assert_int_equal(kve_pub_flush(pub, 5000, NULL), KVE_OK);
    first = kve_pub_next_number(pub);

    test_brake_hold(brake, pub, test_zmq);
    for (uint64_t i = 0; i < 100; i++) {
        int64_t begin = kve_now_ns();
        kve_status status = kve_pub_publish_payload(pub, "x", 1, &number, &err);

        if (kve_now_ns() - begin > longest)
            longest = kve_now_ns() - begin;
        assert_int_equal(status, i < 10 ? KVE_OK : KVE_E_DROPPED);
        assert_int_equal(number, first + i);
    }
    /* Never waits: the sender stands still until it is let go, so that a call
     * that waited for it would not come back at all. */
    assert_true(longest < 5000 * KVE_MS);
    assert_int_equal(kve_pub_flush(pub, 20, NULL), KVE_E_TIMEOUT);
    test_brake_let_go(brake);

    assert_int_equal(kve_pub_flush(pub, 5000, NULL), KVE_OK);
    assert_int_equal(
        kve_pub_publish_payload(pub, "x", 1, &number, NULL), KVE_OK);
    assert_int_equal(number, first + 100);
    for (uint64_t i = 0; i < 10; i++) {
        assert_true(test_recv(sub, &msg, 5000));
        assert_int_equal(test_number(&msg, 1), first + i);
    }
    assert_true(test_recv(sub, &msg, 5000));
    assert_int_equal(test_number(&msg, 1), first + 100);
    assert_int_equal(kve_pub_counter(pub, KVE_COUNTER_PUB_DROPPED_QUEUE), 90);

    assert_int_equal(kve_pub_flush(pub, 5000, NULL), KVE_OK);
    test_ask(dealer, first + 10);
    assert_int_equal(test_answer(dealer, first + 100, "", 5000), 1);
    test_msg_release(&msg);
    test_close(sub);
    test_close(dealer);
    kve_pub_destroy(pub);
    test_brake_destroy(brake);
}

/* ---- flush and shutdown ---- */

static void
test_flush_of_nothing_is_done(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub = test_create(NULL, &opts);

    (void)state;
    assert_int_equal(kve_pub_flush(pub, 0, NULL), KVE_OK);
    assert_int_equal(kve_pub_flush(pub, -1, NULL), KVE_OK);
    assert_int_equal(kve_pub_publish_payload(pub, "x", 1, NULL, NULL), KVE_OK);
    assert_int_equal(kve_pub_flush(pub, -1, NULL), KVE_OK);
    assert_int_equal(kve_pub_counter(pub, KVE_COUNTER_PUB_SENT), 1);
    kve_pub_destroy(pub);
}

static void
test_shutdown_sends_what_is_queued(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub = test_create(NULL, &opts);
    void *sub = test_sub(test_zmq, kve_pub_endpoint(pub), "", 100000);
    struct test_msg msg = { 0 };
    struct kve_error err = { 0 };
    uint64_t first, number = 7, lost = 99;

    (void)state;
    test_join(pub, sub);
    first = kve_pub_next_number(pub);
    for (int i = 0; i < 5000; i++)
        assert_int_equal(
            kve_pub_publish_payload(pub, "x", 1, NULL, NULL), KVE_OK);
    assert_int_equal(kve_pub_shutdown(pub, 5000, &lost, NULL), KVE_OK);
    assert_int_equal(lost, 0);
    for (uint64_t i = 0; i < 5000; i++) {
        assert_true(test_recv(sub, &msg, 5000));
        assert_int_equal(test_number(&msg, 1), first + i);
    }

    /* After it: every call says so, and a second one does nothing. */
    assert_int_equal(
        kve_pub_publish_payload(pub, "x", 1, &number, &err), KVE_E_CLOSED);
    assert_int_equal(number, 7);
    assert_int_equal(kve_pub_shutdown(pub, 0, &lost, &err), KVE_OK);
    assert_int_equal(lost, 0);
    assert_int_equal(kve_pub_flush(pub, 0, NULL), KVE_OK);
    test_msg_release(&msg);
    test_close(sub);
    kve_pub_destroy(pub);
}

/* A sender that never gets anywhere: the limit holds and the loss is told. */
static void
test_shutdown_says_what_was_lost(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    struct test_brake *brake;
    kve_context *context = test_brake_context(&brake, NULL);
    kve_publisher *pub = test_create(context, &opts);
    struct kve_error err = { 0 };
    uint64_t lost = 0;

    (void)state;
    test_brake_hold(brake, pub, test_zmq);
    for (int i = 0; i < 200; i++)
        assert_int_equal(
            kve_pub_publish_payload(pub, "x", 1, NULL, NULL), KVE_OK);
    test_brake_let_go(brake);
    /* With no time at all one round goes out at most. */
    kve_status status = kve_pub_shutdown(pub, 0, &lost, &err);
    assert_int_equal(lost > 0 ? KVE_E_TIMEOUT : KVE_OK, status);
    assert_int_equal(kve_pub_counter(pub, KVE_COUNTER_PUB_SENT) + lost, 200);
    assert_int_equal(kve_pub_counter(pub, KVE_COUNTER_PUB_LOST_SHUTDOWN), lost);
    kve_pub_destroy(pub);
    test_brake_destroy(brake);
}

/* Fifty times: full queue, a reader that reads nothing, a limit of 50 ms; the
 * same port is free at once. */
static void
test_shutdown_keeps_its_limit_and_frees_the_port(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    char live[256], replay[256];
    uint8_t payload[20000] = { 1 };

    (void)state;
    snprintf(live, sizeof(live), "tcp://127.0.0.1:%u", test_port_to_keep());
    snprintf(replay, sizeof(replay), "tcp://127.0.0.1:%u", test_port_to_keep());

    opts.endpoint = live;
    opts.replay_endpoint = replay;
    opts.shutdown_ms = 50;
    for (int i = 0; i < 50; i++) {
        kve_publisher *pub = test_create(NULL, &opts);
        void *sub = test_sub(test_zmq, live, "", 1);
        void *dealer = test_dealer(test_zmq, replay, 1);

        if (i % 5 == 0)
            test_join(pub, sub);
        for (int k = 0; k < 300; k++)
            assert_int_equal(kve_pub_publish_payload(
                                 pub, payload, sizeof(payload), NULL, NULL),
                KVE_OK);
        test_ask(dealer, 0);
        int64_t begin = kve_now_ns();
        kve_pub_destroy(pub);
        assert_true(kve_now_ns() - begin < 2000 * KVE_MS);
        test_close(sub);
        test_close(dealer);
    }
}

struct hammer {
    kve_publisher *pub;
    atomic_bool stop;
    uint64_t ok, closed;
};

static void *
hammer(void *arg)
{
    struct hammer *h = arg;

    while (!atomic_load(&h->stop)) {
        switch (kve_pub_publish_payload(h->pub, "x", 1, NULL, NULL)) {
        case KVE_OK:
        case KVE_E_DROPPED:
            h->ok++;
            break;
        case KVE_E_CLOSED:
            h->closed++;
            break;
        default:
            abort();
        }
        (void)kve_pub_flush(h->pub, 1, NULL);
    }
    return NULL;
}

static void
test_publishing_while_it_shuts_down(void **state)
{
    struct kve_pub_opts opts = test_loopback();

    (void)state;
    for (int i = 0; i < 10; i++) {
        struct hammer h[4] = { 0 };
        pthread_t threads[4];
        kve_publisher *pub = test_create(NULL, &opts);
        uint64_t lost, ok = 0;

        for (size_t t = 0; t < 4; t++) {
            h[t].pub = pub;
            assert_int_equal(
                pthread_create(&threads[t], NULL, hammer, &h[t]), 0);
        }
        test_sleep_ms(5);
        (void)kve_pub_shutdown(pub, 1000, &lost, NULL);
        test_sleep_ms(2);
        for (size_t t = 0; t < 4; t++) {
            atomic_store(&h[t].stop, true);
            assert_int_equal(pthread_join(threads[t], NULL), 0);
            ok += h[t].ok;
        }
        assert_int_equal(ok, kve_pub_counter(pub, KVE_COUNTER_PUB_BATCHES));
        assert_int_equal(ok, kve_pub_next_number(pub));
        assert_int_equal(lost, 0);
        assert_int_equal(ok, kve_pub_counter(pub, KVE_COUNTER_PUB_SENT));
        kve_pub_destroy(pub);
    }
}

/* ---- limits of the socket library ---- */

static size_t
out_bytes(kve_publisher *pub)
{
    return atomic_load(&pub->out->bytes[KVE_OUT_LIVE]);
}

/* A reader that takes nothing: above max_out_bytes live sends are skipped,
 * numbers and replay go on; when it has left, live goes on too. The last
 * message that is sent is a large one, so that what the library drops by
 * itself when the reader leaves does not get below the limit. */
static void
test_a_stuck_reader_costs_max_out_bytes_and_no_more(void **state)
{
    enum { LEN = 20000, LIMIT = 50 * LEN, N = 300 };
    static uint8_t payload[3 * LIMIT] = { 1 };
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub;
    struct test_msg msg = { 0 };
    uint64_t first, skipped;
    void *stuck, *sub, *dealer;
    bool sent = false;

    (void)state;
    opts.max_out_bytes = LIMIT;
    opts.sndbuf = 65536;
    pub = test_create(NULL, &opts);
    stuck = test_sub(test_zmq, kve_pub_endpoint(pub), "", 1);
    test_join(pub, stuck);
    for (int i = 0; i < 10000 && out_bytes(pub) < LIMIT / 2; i++) {
        assert_int_equal(
            kve_pub_publish_payload(pub, payload, LEN, NULL, NULL), KVE_OK);
        assert_int_equal(kve_pub_flush(pub, 5000, NULL), KVE_OK);
        if (i % 100 == 99)
            test_sleep_ms(1);
    }
    assert_int_equal(kve_pub_counter(pub, KVE_COUNTER_PUB_SKIPPED_OUT), 0);
    assert_int_equal(
        kve_pub_publish_payload(pub, payload, sizeof(payload), NULL, NULL),
        KVE_OK);
    first = kve_pub_next_number(pub);
    for (int i = 0; i < N; i++)
        assert_int_equal(
            kve_pub_publish_payload(pub, payload, LEN, NULL, NULL), KVE_OK);
    assert_int_equal(kve_pub_flush(pub, 5000, NULL), KVE_OK);
    assert_int_equal(kve_pub_next_number(pub), first + N);
    skipped = kve_pub_counter(pub, KVE_COUNTER_PUB_SKIPPED_OUT);
    assert_in_range(skipped, N - 50, N);
    assert_in_range(out_bytes(pub), LIMIT, LIMIT + sizeof(payload));

    dealer = test_dealer(test_zmq, kve_pub_replay_endpoint(pub), 1000);
    test_ask(dealer, first);
    assert_int_equal(test_answer(dealer, first, "", 5000), N);

    test_close(stuck);
    sub = test_sub(test_zmq, kve_pub_endpoint(pub), "", 1000);
    for (int i = 0; i < 300 && !sent; i++) {
        assert_int_equal(
            kve_pub_publish_payload(pub, "x", 1, NULL, NULL), KVE_OK);
        sent = test_recv(sub, &msg, 20);
    }
    assert_true(sent);
    test_msg_release(&msg);
    test_close(sub);
    test_close(dealer);
    kve_pub_destroy(pub);
}

/* The same without a further call: an idle publisher gives back what a reader
 * that left has not taken. */
static void
test_an_idle_publisher_lets_go_of_a_gone_reader(void **state)
{
    static uint8_t payload[200000] = { 1 };
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub;
    void *stuck;
    int64_t until;

    (void)state;
    opts.sndbuf = 65536;
    pub = test_create(NULL, &opts);
    stuck = test_sub(test_zmq, kve_pub_endpoint(pub), "", 1);
    test_join(pub, stuck);
    for (int i = 0; i < 100; i++)
        assert_int_equal(
            kve_pub_publish_payload(pub, payload, sizeof(payload), NULL, NULL),
            KVE_OK);
    assert_int_equal(kve_pub_flush(pub, 5000, NULL), KVE_OK);
    test_sleep_ms(100);
    assert_true(out_bytes(pub) > 5 * sizeof(payload));
    test_close(stuck);
    until = kve_now_ns() + 5000 * KVE_MS;
    while (out_bytes(pub) > 0 && kve_now_ns() < until)
        test_sleep_ms(5);
    assert_int_equal(out_bytes(pub), 0);
    kve_pub_destroy(pub);
}

/* Readers come and go while nothing is published: what the library wants done
 * about them is done. Its descriptor is readable while something waits. */
static void
test_an_idle_publisher_sees_to_readers(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub = test_create(NULL, &opts);
    struct pollfd item = { .events = POLLIN };
    int fds[KVE_MAX_FDS];

    (void)state;
    assert_int_equal(pub->live_transport->live_out_fds(pub->live, fds), 1);
    item.fd = fds[0];
    for (int i = 0; i < 5; i++) {
        void *sub = test_sub(test_zmq, kve_pub_endpoint(pub), "", 10);

        test_sleep_ms(20);
        test_close(sub);
    }
    test_sleep_ms(200);
    assert_int_equal(poll(&item, 1, 0), 0);
    kve_pub_destroy(pub);
}

/* ---- readers with ill will ---- */

static int
connect_raw(const char *endpoint)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((uint16_t)atoi(strrchr(endpoint, ':') + 1));
    assert_true(fd >= 0);
    assert_int_equal(
        connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* Whether the publisher cuts the connection within ms. */
static bool
is_cut(int fd, int ms)
{
    int64_t until = kve_now_ns() + ms * KVE_MS;
    struct pollfd item = { fd, POLLIN, 0 };
    uint8_t data[256];

    while (poll(&item, 1, kve_ms_until(until, kve_now_ns())) > 0)
        if (recv(fd, data, sizeof(data), 0) <= 0)
            return true;
    return false;
}

/* A subscription is as long as a topic may be; who announces more than that
 * gets no memory for it. */
static void
test_a_huge_subscription_is_cut(void **state)
{
    static const uint8_t greeting[64] = { 0xff, [9] = 0x7f, 3, 0, 'N', 'U', 'L',
        'L' };
    static const uint8_t ready[] = "\4\31\5READY\13Socket-Type\0\0\0\3SUB";
    static const struct {
        uint8_t head[9];
        size_t topic_len; /* of the publisher */
        bool cut;
    } rows[] = {
        { { 2, 0, 0, 0, 0, 0, 0, 0xff, 0 }, 0, false },
        { { 2, 0, 0, 0, 0, 0, 2, 0, 0 }, 0, true },
        { { 2, 0, 0, 0, 0, 0xff, 0, 0, 0 }, 0, true },
        { { 2, 0, 0, 0, 0, 0, 2, 0, 1 }, 0x20000, false },
        { { 2, 0, 0, 0, 0, 0, 3, 0, 0 }, 0x20000, true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct kve_pub_opts opts = test_loopback();
        char *topic = calloc(1, rows[i].topic_len + 1);
        kve_publisher *pub;
        int fd;

        assert_non_null(topic);
        memset(topic, 't', rows[i].topic_len);
        opts.topic = topic;
        pub = test_create(NULL, &opts);
        fd = connect_raw(kve_pub_endpoint(pub));
        assert_int_equal(send(fd, greeting, 64, 0), 64);
        assert_int_equal(send(fd, ready, sizeof(ready) - 1, 0), 27);
        assert_int_equal(send(fd, rows[i].head, 9, 0), 9);
        if (is_cut(fd, rows[i].cut ? 5000 : 200) != rows[i].cut)
            fail_msg("row %zu", i);
        (void)close(fd);
        kve_pub_destroy(pub);
        free(topic);
    }
}

/* ---- endpoints and ranks ---- */

static void
test_an_endpoint_in_use_is_named(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub = test_create(NULL, &opts), *second = NULL;
    struct kve_error err = { 0 };

    (void)state;
    opts.endpoint = kve_pub_endpoint(pub);
    assert_int_equal(kve_pub_create(NULL, &opts, &second, &err), KVE_E_IN_USE);
    assert_non_null(strstr(err.detail, kve_pub_endpoint(pub)));
    assert_null(second);

    opts.endpoint = "tcp://127.0.0.1:0";
    opts.replay_endpoint = kve_pub_replay_endpoint(pub);
    assert_int_equal(kve_pub_create(NULL, &opts, &second, &err), KVE_E_IN_USE);
    assert_non_null(strstr(err.detail, kve_pub_replay_endpoint(pub)));
    kve_pub_destroy(pub);
}

/* Near the limit of open files creation fails, at whatever place, and does
 * not end the process. */
static void
test_few_descriptors_are_an_error(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    struct rlimit before, few;
    bool created = false;
    int first;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (rlim_t spare = 0; spare < 40 && !created; spare++) {
        kve_context *context = NULL;
        kve_publisher *pub = NULL;
        struct kve_error err = { 0 };
        kve_status status;

        assert_int_equal(kve_context_create(NULL, &context, NULL), KVE_OK);
        first = dup(0);
        assert_true(first >= 0);
        (void)close(first);
        few = before;
        few.rlim_cur = (rlim_t)first + spare;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        status = kve_pub_create(context, &opts, &pub, &err);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        created = status == KVE_OK;
        if (!created && status != KVE_E_LIMIT && status != KVE_E_SYSTEM)
            fail_msg("%d spare: %d %s", (int)spare, status, err.detail);
        kve_pub_destroy(pub);
        kve_context_destroy(context);
    }
    assert_true(created);
}

static void
test_ranks_move_endpoints(void **state)
{
    struct kve_context_opts context_opts = KVE_CONTEXT_OPTS_INIT;
    struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;
    kve_context *context = NULL;
    kve_publisher *pubs[2];
    struct test_msg msg = { 0 };
    void *sub;

    (void)state;
    context_opts.zmq_context = test_zmq;
    assert_int_equal(kve_context_create(&context_opts, &context, NULL), KVE_OK);
    opts.endpoint = "inproc://ranks";
    opts.replay_endpoint = "inproc://ranks_replay";
    opts.ranks = 2;
    for (int64_t rank = 0; rank < 2; rank++) {
        opts.rank = (struct kve_int){ rank, true };
        pubs[rank] = test_create(context, &opts);
    }
    assert_string_equal(kve_pub_endpoint(pubs[0]), "inproc://ranks");
    assert_string_equal(kve_pub_endpoint(pubs[1]), "inproc://ranks_dp1");
    assert_string_equal(
        kve_pub_replay_endpoint(pubs[1]), "inproc://ranks_replay_dp1");

    sub = test_sub(test_zmq, "inproc://ranks_dp1", "", 100);
    test_join(pubs[1], sub);
    struct kve_event clear = { .type = KVE_EVENT_CLEARED };
    struct kve_batch_view view = test_view(&clear);
    assert_int_equal(kve_pub_publish(pubs[1], &view, NULL, NULL), KVE_OK);
    assert_true(test_recv(sub, &msg, 5000));
    assert_int_equal(msg.data[2][msg.len[2] - 1], 1); /* the rank */
    test_msg_release(&msg);
    test_close(sub);
    kve_pub_destroy(pubs[0]);
    kve_pub_destroy(pubs[1]);
    kve_context_destroy(context);
}

/* A number beside "unset" is none. */
static void
test_no_rank_moves_nothing(void **state)
{
    struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;
    kve_publisher *pub;

    (void)state;
    opts.endpoint = "inproc://unset";
    opts.replay_endpoint = "inproc://unset_replay";
    opts.rank = (struct kve_int){ 3, false };
    pub = test_create(NULL, &opts);
    assert_string_equal(kve_pub_endpoint(pub), "inproc://unset");
    assert_string_equal(kve_pub_replay_endpoint(pub), "inproc://unset_replay");
    kve_pub_destroy(pub);
}

static void
test_connecting_instead_of_binding(void **state)
{
    struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;
    struct test_msg msg = { 0 };
    char endpoint[256];
    size_t len = sizeof(endpoint);
    kve_publisher *pub;
    void *sub = zmq_socket(test_zmq, ZMQ_SUB);

    (void)state;
    assert_int_equal(zmq_setsockopt(sub, ZMQ_SUBSCRIBE, "", 0), 0);
    assert_int_equal(zmq_bind(sub, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(zmq_getsockopt(sub, ZMQ_LAST_ENDPOINT, endpoint, &len), 0);
    opts.endpoint = endpoint;
    opts.bind = KVE_BIND_NO;
    pub = test_create(NULL, &opts);
    assert_false(kve_pub_bound(pub));
    assert_string_equal(kve_pub_endpoint(pub), endpoint);
    test_join(pub, sub);
    test_msg_release(&msg);
    kve_pub_destroy(pub);
    test_close(sub);
}

/* ---- options ---- */

#define OPTS(...)                                \
    {                                            \
        sizeof(struct kve_pub_opts), __VA_ARGS__ \
    }

static void
test_bad_options_are_named(void **state)
{
    static const struct {
        struct kve_pub_opts opts;
        const char *text[2]; /* both are in the error's text */
    } rows[] = {
        { OPTS(.endpoint = "http://x:1"), { "http", "tcp" } },
        { OPTS(.endpoint = "tcp://127.0.0.1"), { "tcp://127.0.0.1", "" } },
        { OPTS(.endpoint = "tcp://127.0.0.1:70000"), { "70000", "65535" } },
        { OPTS(.replay_endpoint = "nonsense"), { "nonsense", "tcp" } },
        { OPTS(.bind = 9), { "bind is 9", "0 to 3" } },
        { OPTS(.layout = 9), { "layout is 9", "0 to 4" } },
        { OPTS(.replay_shape = 2), { "replay_shape is 2", "0 to 1" } },
        { OPTS(.rank = { -1, true }), { "rank is -1", "from 0" } },
        { OPTS(.rank = { 4, true }, .ranks = 4), { "rank is 4", "0 to 3" } },
        { OPTS(.queue_items = UINT32_MAX), { "queue_items", "16777216" } },
        { OPTS(.max_replays = 1000000), { "max_replays", "65536" } },
        { OPTS(.hwm = UINT32_MAX), { "hwm", "2147483647" } },
        { OPTS(.endpoint = "tcp://127.0.0.1:5557",
              .replay_endpoint = "tcp://127.0.0.1:5560", .ranks = 8),
            { "5557", "5560" } },
        { OPTS(.endpoint = "tcp://127.0.0.1:65535", .ranks = 2),
            { "65535", "" } },
        { OPTS(.endpoint = "tcp://127.0.0.1:65535", .rank = { 1, true }),
            { "65535", "" } },
    };
    struct {
        struct kve_pub_opts opts;
        uint64_t newer;
    } newer = { KVE_PUB_OPTS_INIT, 1 };
    struct kve_pub_opts tiny = { 0 };
    kve_publisher *pub = NULL;
    struct kve_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        memset(&err, 0, sizeof(err));
        if (kve_pub_create(NULL, &rows[i].opts, &pub, &err) != KVE_E_INVAL)
            fail_msg("row %zu: %s", i, err.detail);
        for (size_t k = 0; k < 2; k++)
            if (strstr(err.detail, rows[i].text[k]) == NULL)
                fail_msg(
                    "row %zu: no '%s' in: %s", i, rows[i].text[k], err.detail);
    }
    newer.opts.struct_size = sizeof(newer);
    assert_int_equal(
        kve_pub_create(NULL, &newer.opts, &pub, &err), KVE_E_INVAL);
    assert_non_null(strstr(err.detail, "newer"));
    tiny.struct_size = 8;
    assert_int_equal(kve_pub_create(NULL, &tiny, &pub, &err), KVE_E_INVAL);
    assert_null(pub);

    /* No size at all, as a structure of zeros has, is the first release's. */
    tiny.struct_size = 0;
    tiny.endpoint = "tcp://127.0.0.1:0";
    assert_int_equal(kve_pub_create(NULL, &tiny, &pub, &err), KVE_OK);
    kve_pub_destroy(pub);
}

static void
test_port_0_stays_0_for_every_rank(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub;

    (void)state;
    opts.rank = (struct kve_int){ 3, true };
    pub = test_create(NULL, &opts);
    assert_null(strstr(kve_pub_endpoint(pub), ":0"));
    assert_null(strstr(kve_pub_replay_endpoint(pub), ":0"));
    assert_string_not_equal(
        kve_pub_endpoint(pub), kve_pub_replay_endpoint(pub));
    kve_pub_destroy(pub);
}

/* ---- the null publisher ---- */

static void
test_the_null_publisher_does_nothing(void **state)
{
    kve_publisher *pub = NULL;
    struct kve_event clear = { .type = KVE_EVENT_CLEARED };
    struct kve_batch_view view = test_view(&clear);
    uint64_t number, lost = 9;

    (void)state;
    assert_int_equal(kve_pub_create_null(&pub, NULL), KVE_OK);
    for (uint64_t i = 0; i < 9; i += 3) {
        assert_int_equal(kve_pub_publish(pub, &view, &number, NULL), KVE_OK);
        assert_int_equal(number, i);
        assert_int_equal(
            kve_pub_publish_payload(pub, "x", 1, &number, NULL), KVE_OK);
        assert_int_equal(number, i + 1);
        assert_int_equal(
            kve_pub_withhold_payload(pub, "x", 1, NULL, NULL), KVE_OK);
    }
    assert_int_equal(kve_pub_next_number(pub), 9);
    assert_int_equal(kve_pub_flush(pub, -1, NULL), KVE_OK);
    assert_int_equal(kve_pub_counter(pub, KVE_COUNTER_PUB_SENT), 0);
    assert_string_equal(kve_pub_endpoint(pub), "");
    assert_string_equal(kve_pub_replay_endpoint(pub), "");
    assert_false(kve_pub_bound(pub));
    assert_int_equal(kve_pub_shutdown(pub, 10, &lost, NULL), KVE_OK);
    assert_int_equal(lost, 0);
    assert_int_equal(kve_pub_publish(pub, &view, NULL, NULL), KVE_OK);
    kve_pub_destroy(pub);
    kve_pub_destroy(NULL);
}

/* ---- fork, threads ---- */

static void
test_a_child_may_only_destroy(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    kve_publisher *pub = test_create(NULL, &opts);
    void *sub = test_sub(test_zmq, kve_pub_endpoint(pub), "", 1000);
    struct test_msg msg = { 0 };
    int status;
    pid_t child;

    (void)state;
    test_join(pub, sub);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct kve_event clear = { .type = KVE_EVENT_CLEARED };
        struct kve_batch_view view = test_view(&clear);
        int bad = 0;

        bad |= kve_pub_publish(pub, &view, NULL, NULL) != KVE_E_FORKED;
        bad |= kve_pub_publish_payload(pub, "x", 1, NULL, NULL) != KVE_E_FORKED;
        bad |= kve_pub_flush(pub, 10, NULL) != KVE_E_FORKED;
        bad |= kve_pub_shutdown(pub, 10, NULL, NULL) != KVE_E_FORKED;
        kve_pub_destroy(pub);
        _exit(bad);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);

    /* The parent's goes on. */
    assert_int_equal(kve_pub_publish_payload(pub, "x", 1, NULL, NULL), KVE_OK);
    assert_true(test_recv(sub, &msg, 5000));
    test_msg_release(&msg);
    test_close(sub);
    kve_pub_destroy(pub);
}

/* The sender had a batch in hand when the process forked: whose it is cannot
 * be told, so the child lets it be. */
static void
test_a_child_leaves_batches_alone(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    struct test_brake *brake;
    kve_context *context = test_brake_context(&brake, test_zmq);
    kve_publisher *pub = test_create(context, &opts);
    struct kve_payload *payload;
    int status;
    pid_t child;

    (void)state;
    test_brake_hold(brake, pub, test_zmq);
    assert_int_equal(kve_pub_publish_payload(pub, "x", 1, NULL, NULL), KVE_OK);
    payload = pub->queue.ring[0].payload;
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kve_pub_destroy(pub);
        _exit(atomic_load(&payload->refs) != 1 || payload->data[0] != 'x');
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    test_brake_let_go(brake);
    kve_pub_destroy(pub);
    test_brake_destroy(brake);
}

/* ---- memory ---- */

/* The n-th allocation fails, for every n, from creation to the end. */
static void
test_memory_is_short_everywhere(void **state)
{
    struct kve_pub_opts opts = test_loopback();
    struct test_store store;
    struct kve_batch_view view;

    (void)state;
    test_store_init(&store, 1, 64);
    view = test_view(&store.event);
    for (uint64_t n = 1;; n++) {
        int64_t live = kve_mem_live();
        kve_publisher *pub = NULL;
        struct kve_error err = { 0 };
        bool failed;

        kve_mem_fail_at(n, false);
        kve_status status = kve_pub_create(NULL, &opts, &pub, &err);
        if (status == KVE_OK) {
            for (int i = 0; i < 40; i++) {
                status = kve_pub_publish(pub, &view, NULL, &err);
                assert_true(status == KVE_OK || status == KVE_E_NOMEM);
            }
            assert_int_equal(kve_pub_flush(pub, 5000, NULL), KVE_OK);
        } else {
            assert_int_equal(status, KVE_E_NOMEM);
            assert_null(pub);
        }
        failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        if (pub != NULL) {
            /* Still good for everything. */
            assert_int_equal(kve_pub_publish(pub, &view, NULL, &err), KVE_OK);
            assert_int_equal(kve_pub_flush(pub, 5000, NULL), KVE_OK);
        }
        kve_pub_destroy(pub);
        assert_int_equal(kve_mem_live(), live);
        if (!failed)
            break;
    }

    kve_publisher *null = NULL;
    kve_mem_fail_at(1, true);
    assert_int_equal(kve_pub_create_null(&null, NULL), KVE_E_NOMEM);
    kve_mem_fail_at(2, true);
    assert_int_equal(kve_pub_create_null(&null, NULL), KVE_E_NOMEM);
    kve_mem_fail_at(0, false);
    assert_null(null);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        LEAK_TEST(test_a_batch_arrives_as_it_was),
        LEAK_TEST(test_no_rank_is_nil),
        LEAK_TEST(test_many_batches_in_order),
        LEAK_TEST(test_topics_are_filtered_by_their_reader),
        LEAK_TEST(test_one_batch_goes_out_by_itself),
        LEAK_TEST(test_numbers_start_where_asked_and_skip_the_reserved_one),
        LEAK_TEST(test_a_withheld_batch_is_in_the_replay_only),
        LEAK_TEST(test_what_cannot_be_encoded_uses_no_number),
        LEAK_TEST(test_a_full_queue_leaves_a_hole),
        LEAK_TEST(test_flush_of_nothing_is_done),
        LEAK_TEST(test_shutdown_sends_what_is_queued),
        LEAK_TEST(test_shutdown_says_what_was_lost),
        LEAK_TEST(test_shutdown_keeps_its_limit_and_frees_the_port),
        LEAK_TEST(test_publishing_while_it_shuts_down),
        LEAK_TEST(test_a_stuck_reader_costs_max_out_bytes_and_no_more),
        LEAK_TEST(test_an_idle_publisher_lets_go_of_a_gone_reader),
        LEAK_TEST(test_an_idle_publisher_sees_to_readers),
        LEAK_TEST(test_a_huge_subscription_is_cut),
        LEAK_TEST(test_an_endpoint_in_use_is_named),
        LEAK_TEST(test_few_descriptors_are_an_error),
        LEAK_TEST(test_ranks_move_endpoints),
        LEAK_TEST(test_no_rank_moves_nothing),
        LEAK_TEST(test_connecting_instead_of_binding),
        LEAK_TEST(test_bad_options_are_named),
        LEAK_TEST(test_port_0_stays_0_for_every_rank),
        LEAK_TEST(test_the_null_publisher_does_nothing),
        LEAK_TEST(test_a_child_may_only_destroy),
        LEAK_TEST(test_a_child_leaves_batches_alone),
        LEAK_TEST(test_memory_is_short_everywhere),
    };

    return cmocka_run_group_tests(tests, test_make_zmq, test_end_zmq);
}
