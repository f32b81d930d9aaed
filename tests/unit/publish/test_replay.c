/*
 * Answers to replay requests on a transport made of two arrays: who asks, who
 * takes how much. Time is an argument, so back-off and expiry are exact.
 */
#include "pub_test.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "publish/replay.h"
#include "transport/context.h"

#include <kvevents/codec.h>

#include <string.h>

#define PEERS 40

/* The fake transport: its handle. */
struct kve_replay_serve {
    struct {
        uint8_t peer;
        size_t n_frames;
        uint64_t start;
    } asked[64];
    size_t n_asked, next_asked;
    uint8_t start[8];

    struct {
        size_t room; /* messages the peer takes before it is full */
        bool gone;
        size_t attempts;
        size_t n; /* messages taken */
        uint64_t last;
        size_t ends; /* end markers among them */
        bool in_order;
    } peers[PEERS];
    size_t order[4096]; /* which peer took each message */
    size_t n_order;
};

static enum kve_io
fake_recv(struct kve_replay_serve *serve, struct kve_replay_request *ret,
    struct kve_error *err)
{
    (void)err;
    if (serve->next_asked == serve->n_asked)
        return KVE_IO_AGAIN;
    memset(ret, 0, sizeof(*ret));
    ret->peer[0] = serve->asked[serve->next_asked].peer;
    ret->peer_len = 1;
    ret->n_frames = serve->asked[serve->next_asked].n_frames;
    kve_number_write(serve->asked[serve->next_asked].start, serve->start);
    ret->start = (struct kve_span){ serve->start, 8 };
    serve->next_asked++;
    return KVE_IO_OK;
}

static enum kve_io
fake_send(struct kve_replay_serve *serve, const uint8_t *peer, size_t peer_len,
    bool with_topic, struct kve_span topic, uint64_t number,
    struct kve_payload *payload, struct kve_error *err)
{
    size_t p = peer[0];

    (void)err;
    assert_int_equal(peer_len, 1);
    assert_true(with_topic);
    assert_int_equal(topic.len, payload == NULL ? 0 : 5);
    serve->peers[p].attempts++;
    if (serve->peers[p].gone)
        return KVE_IO_GONE;
    if (serve->peers[p].room == 0)
        return KVE_IO_AGAIN;
    serve->peers[p].room--;
    if (payload == NULL) {
        assert_true(number == KVE_NUMBER_END);
        serve->peers[p].ends++;
    } else if (serve->peers[p].n > 0 && number != serve->peers[p].last + 1) {
        serve->peers[p].in_order = false;
    }
    serve->peers[p].last = number;
    serve->peers[p].n++;
    if (serve->n_order < 4096)
        serve->order[serve->n_order++] = p;
    return KVE_IO_OK;
}

static const struct kve_transport fake_transport = {
    .name = "fake",
    .replay_serve_recv = fake_recv,
    .replay_serve_send = fake_send,
};

struct bench {
    struct kve_replay_serve serve;
    struct kve_history history;
    struct kve_pub_counters counters;
    struct kve_replays replays;
};

static struct bench *
bench_create(size_t steps, size_t bytes, uint32_t max_jobs)
{
    struct bench *b = kve_mem_zalloc(1, sizeof(*b));
    struct kve_error err;

    assert_non_null(b);
    kve_history_init(&b->history, steps, bytes);
    assert_int_equal(
        kve_context_ref(NULL, 1, &b->replays.context, &err), KVE_OK);
    b->replays.transport = &fake_transport;
    b->replays.serve = &b->serve;
    b->replays.history = &b->history;
    b->replays.counters = &b->counters;
    b->replays.topic = (struct kve_span){ (const uint8_t *)"topic", 5 };
    b->replays.with_topic = true;
    b->replays.timeout_ns = 100 * KVE_MS;
    b->replays.max_jobs = max_jobs;
    for (size_t p = 0; p < PEERS; p++) {
        b->serve.peers[p].room = SIZE_MAX;
        b->serve.peers[p].in_order = true;
    }
    return b;
}

static void
bench_destroy(struct bench *b)
{
    kve_replays_release(&b->replays);
    assert_int_equal(b->history.pinned, 0);
    kve_history_release(&b->history);
    kve_context_unref(b->replays.context);
    kve_mem_free(b);
}

static void
fill(struct bench *b, uint64_t first, size_t n, size_t len)
{
    for (size_t i = 0; i < n; i++) {
        struct kve_payload *payload = kve_payload_create(NULL, len, NULL);

        assert_non_null(payload);
        assert_int_equal(
            kve_history_put(&b->history, first + i, payload), KVE_OK);
    }
}

static void
ask(struct bench *b, uint8_t peer, uint64_t start)
{
    size_t i = b->serve.n_asked++;

    assert_true(i < 64);
    b->serve.asked[i].peer = peer;
    b->serve.asked[i].n_frames = 3;
    b->serve.asked[i].start = start;
}

static uint64_t
count(struct bench *b, unsigned counter)
{
    return kve_pub_count_get(&b->counters, counter);
}

/* Turns until nothing can go on at now_ns. */
static size_t
turns(struct bench *b, int64_t now_ns)
{
    size_t n = 0;

    while (kve_replays_receive(&b->replays, now_ns))
        ;
    while (kve_replays_send(&b->replays, now_ns))
        n++;
    return n;
}

static void
test_an_answer_is_everything_and_an_end(void **state)
{
    struct bench *b = bench_create(1000, 1 << 20, 16);

    (void)state;
    fill(b, 0, 500, 10);
    ask(b, 1, 100);
    /* Work of one turn is bounded. */
    assert_true(turns(b, kve_now_ns()) >= 400 / KVE_TURN_MESSAGES);
    assert_int_equal(b->serve.peers[1].n, 401);
    assert_int_equal(b->serve.peers[1].ends, 1);
    assert_int_equal(count(b, KVE_COUNTER_PUB_REPLAY_BATCHES), 400);
    assert_int_equal(count(b, KVE_COUNTER_PUB_REPLAY_REQUESTS), 1);
    assert_int_equal(b->replays.n_jobs, 0);
    assert_true(kve_replays_deadline(&b->replays) == KVE_NEVER);
    bench_destroy(b);
}

static void
test_what_comes_later_is_not_in_the_answer(void **state)
{
    struct bench *b = bench_create(1000, 1 << 20, 16);

    (void)state;
    fill(b, 0, 100, 10);
    ask(b, 1, 0);
    (void)kve_replays_receive(&b->replays, kve_now_ns());
    fill(b, 100, 50, 10);
    (void)turns(b, kve_now_ns());
    assert_int_equal(b->serve.peers[1].n, 101);
    bench_destroy(b);
}

static void
test_bad_requests_get_no_answer(void **state)
{
    struct bench *b = bench_create(1000, 1 << 20, 16);

    (void)state;
    fill(b, 0, 10, 10);
    for (size_t frames = 1; frames <= 6; frames++) {
        if (frames == 3)
            continue;
        ask(b, 1, 0);
        b->serve.asked[b->serve.n_asked - 1].n_frames = frames;
    }
    (void)turns(b, kve_now_ns());
    assert_int_equal(b->serve.peers[1].attempts, 0);
    assert_int_equal(count(b, KVE_COUNTER_PUB_REPLAY_BAD), 5);
    bench_destroy(b);
}

static void
test_a_full_reader_is_tried_again_later_and_later(void **state)
{
    static const int64_t after_ms[] = { 1, 2, 4, 8, 16, 20, 20 };
    struct bench *b = bench_create(1000, 1 << 20, 16);
    int64_t now = kve_now_ns();

    (void)state;
    fill(b, 0, 100, 10);
    b->serve.peers[1].room = 30;
    ask(b, 1, 0);
    (void)turns(b, now);
    assert_int_equal(b->serve.peers[1].n, 30);
    for (size_t i = 0; i < 7; i++) {
        assert_int_equal(
            kve_replays_deadline(&b->replays), now + after_ms[i] * KVE_MS);
        /* Too early: no attempt. */
        size_t attempts = b->serve.peers[1].attempts;
        (void)turns(b, now + after_ms[i] * KVE_MS - 1);
        assert_int_equal(b->serve.peers[1].attempts, attempts);
        now += after_ms[i] * KVE_MS;
        (void)turns(b, now);
        assert_int_equal(b->serve.peers[1].attempts, attempts + 1);
    }
    /* It took something: from the start again. */
    b->serve.peers[1].room = 1;
    now += 20 * KVE_MS;
    (void)turns(b, now);
    assert_int_equal(b->serve.peers[1].n, 31);
    assert_int_equal(kve_replays_deadline(&b->replays), now + 1 * KVE_MS);

    b->serve.peers[1].room = 1000;
    (void)turns(b, now + 1 * KVE_MS);
    assert_int_equal(b->serve.peers[1].n, 101);
    assert_true(b->serve.peers[1].ends == 1);
    bench_destroy(b);
}

static void
test_a_stuck_reader_expires_others_do_not(void **state)
{
    struct bench *b = bench_create(1000, 1 << 20, 16);
    int64_t now = kve_now_ns();

    (void)state;
    fill(b, 0, 200, 10);
    b->serve.peers[1].room = 0;
    b->serve.peers[2].room = 0;
    ask(b, 1, 0);
    ask(b, 1, 50); /* goes with the first one */
    ask(b, 2, 0);
    (void)turns(b, now);
    for (int ms = 1; ms < 100; ms++) {
        b->serve.peers[2].room = 1;
        (void)turns(b, now + ms * KVE_MS);
    }
    assert_int_equal(count(b, KVE_COUNTER_PUB_REPLAY_EXPIRED), 0);
    for (int ms = 100; ms < 130; ms++)
        (void)turns(b, now + ms * KVE_MS);
    assert_int_equal(count(b, KVE_COUNTER_PUB_REPLAY_EXPIRED), 2);
    assert_int_equal(b->replays.n_jobs, 1);

    b->serve.peers[2].room = 1000;
    (void)turns(b, now + 150 * KVE_MS);
    assert_int_equal(b->serve.peers[2].n, 201);
    assert_true(b->serve.peers[2].in_order || b->serve.peers[2].ends == 1);
    assert_int_equal(count(b, KVE_COUNTER_PUB_REPLAY_EXPIRED), 2);
    bench_destroy(b);
}

static void
test_a_gone_reader_is_dropped_at_once(void **state)
{
    struct bench *b = bench_create(1000, 1 << 20, 16);
    int64_t now = kve_now_ns();

    (void)state;
    fill(b, 0, 200, 10);
    b->serve.peers[1].room = 5;
    ask(b, 1, 0);
    ask(b, 2, 0);
    (void)turns(b, now);
    b->serve.peers[1].gone = true;
    (void)turns(b, now + 1 * KVE_MS);
    assert_int_equal(count(b, KVE_COUNTER_PUB_REPLAY_GONE), 1);
    assert_int_equal(count(b, KVE_COUNTER_PUB_REPLAY_REQUESTS), 1);
    assert_int_equal(b->replays.n_jobs, 0);
    bench_destroy(b);
}

static void
test_two_requests_of_one_reader_keep_their_order(void **state)
{
    struct bench *b = bench_create(1000, 1 << 20, 16);
    int64_t now = kve_now_ns();

    (void)state;
    fill(b, 0, 100, 10);
    b->serve.peers[1].room = 10;
    ask(b, 1, 0);
    ask(b, 1, 0);
    (void)turns(b, now);
    for (int ms = 1; b->replays.n_jobs == 2; ms++) {
        b->serve.peers[1].room = 10;
        (void)turns(b, now + ms * KVE_MS);
    }
    assert_int_equal(b->serve.peers[1].ends, 1);
    assert_true(b->serve.peers[1].n >= 101);
    /* The end marker came straight after the last batch. */
    b->serve.peers[1].room = 1000;
    (void)turns(b, now + 1000 * KVE_MS);
    assert_int_equal(b->serve.peers[1].n, 202);
    assert_int_equal(b->serve.peers[1].ends, 2);
    assert_int_equal(count(b, KVE_COUNTER_PUB_REPLAY_REQUESTS), 2);
    bench_destroy(b);
}

static void
test_readers_share_the_turns(void **state)
{
    struct bench *b = bench_create(1000, 1 << 20, 16);
    size_t taken[4] = { 0 };

    (void)state;
    fill(b, 0, 1000, 10);
    for (uint8_t p = 0; p < 4; p++)
        ask(b, p, 0);
    (void)turns(b, kve_now_ns());
    for (size_t i = 0; i < 2000; i++)
        taken[b->serve.order[i]]++;
    for (size_t p = 0; p < 4; p++)
        assert_in_range(taken[p], 450, 550);
    bench_destroy(b);
}

static void
test_too_many_requests_are_refused(void **state)
{
    struct bench *b = bench_create(1000, 1 << 20, 16);

    (void)state;
    fill(b, 0, 10, 10);
    for (uint8_t p = 0; p < 20; p++)
        ask(b, p, 0);
    (void)turns(b, kve_now_ns());
    assert_int_equal(count(b, KVE_COUNTER_PUB_REPLAY_REFUSED), 4);
    assert_int_equal(count(b, KVE_COUNTER_PUB_REPLAY_REQUESTS), 16);
    assert_int_equal(b->serve.peers[16].attempts, 0);

    ask(b, 30, 0);
    (void)turns(b, kve_now_ns());
    assert_int_equal(b->serve.peers[30].n, 11);
    bench_destroy(b);
}

static void
test_memory_held_for_slow_readers_is_bounded(void **state)
{
    struct bench *b = bench_create(1000, 1000 * 1000, 16);
    int64_t now = kve_now_ns();

    (void)state;
    fill(b, 0, 1000, 1000);
    b->serve.peers[1].room = 0;
    b->serve.peers[2].room = 0;
    ask(b, 1, 0);
    (void)turns(b, now);
    fill(b, 1000, 900, 1000);
    kve_replays_bound(&b->replays);
    ask(b, 2, 1200);
    (void)turns(b, now);
    assert_int_equal(b->replays.n_jobs, 2);

    for (uint64_t i = 1900; i < 10000; i++) {
        fill(b, i, 1, 1000);
        kve_replays_bound(&b->replays);
        assert_true(b->history.bytes <= b->history.max_bytes);
        assert_true(b->history.pinned <= b->history.max_bytes);
    }
    /* The one that goes back furthest had to go, the other one had not. */
    assert_int_equal(count(b, KVE_COUNTER_PUB_REPLAY_EXPIRED), 1);
    b->serve.peers[2].room = 1000;
    (void)turns(b, now + 50 * KVE_MS);
    assert_int_equal(b->serve.peers[2].n, 701);
    assert_int_equal(b->serve.peers[2].ends, 1);
    assert_int_equal(b->history.pinned, 0);
    bench_destroy(b);
}

static void
test_a_request_without_memory_is_refused(void **state)
{
    struct bench *b = bench_create(100, 1 << 20, 16);

    (void)state;
    fill(b, 0, 10, 10);
    for (uint64_t n = 1; n <= 2; n++) {
        ask(b, 1, 0);
        kve_mem_fail_at(n, false);
        (void)turns(b, kve_now_ns());
        kve_mem_fail_at(0, false);
        assert_int_equal(count(b, KVE_COUNTER_PUB_REPLAY_REFUSED), n);
    }
    ask(b, 1, 0);
    (void)turns(b, kve_now_ns());
    assert_int_equal(b->serve.peers[1].n, 11);
    bench_destroy(b);
}

static void
test_a_start_is_a_number_of_any_length(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
        uint64_t number;
    } rows[] = {
        { "", 0, 0 },
        { "\x07", 1, 7 },
        { "\x01\x02", 2, 0x0102 },
        { "\x00\x00\x00\x05", 4, 5 },
        { "\x00\x00\x00\x00\x00\x00\x01\x00", 8, 256 },
        { "snapshot", 8, UINT64_C(0x736e617073686f74) },
        { "\xff\xff\xff\xff\xff\xff\xff\xff", 8, KVE_NUMBER_END },
        { "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x09", 10, 9 },
        { "\x01\x00\x00\x00\x00\x00\x00\x00\x00", 9, KVE_NUMBER_END },
        { "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 10, KVE_NUMBER_END },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_true(
            kve_replay_start((struct kve_span){ (const uint8_t *)rows[i].bytes,
                rows[i].len }) == rows[i].number);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        LEAK_TEST(test_an_answer_is_everything_and_an_end),
        LEAK_TEST(test_what_comes_later_is_not_in_the_answer),
        LEAK_TEST(test_bad_requests_get_no_answer),
        LEAK_TEST(test_a_full_reader_is_tried_again_later_and_later),
        LEAK_TEST(test_a_stuck_reader_expires_others_do_not),
        LEAK_TEST(test_a_gone_reader_is_dropped_at_once),
        LEAK_TEST(test_two_requests_of_one_reader_keep_their_order),
        LEAK_TEST(test_readers_share_the_turns),
        LEAK_TEST(test_too_many_requests_are_refused),
        LEAK_TEST(test_memory_held_for_slow_readers_is_bounded),
        LEAK_TEST(test_a_request_without_memory_is_refused),
        LEAK_TEST(test_a_start_is_a_number_of_any_length),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
