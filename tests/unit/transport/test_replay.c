/*
 * Replay over real sockets: one request and its answer, a reader that is full,
 * a reader that leaves, requests of every shape.
 */
#include "peers.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

static struct kve_replay_serve *
serve_open(kve_context *context, const struct kve_serve_opts *opts)
{
    struct kve_error error = { 0 };
    struct kve_replay_serve *serve = NULL;

    if (zmq->replay_serve_open(context, opts, &serve, &error) != KVE_OK)
        fail_msg("open %s: %s", opts->endpoint, error.detail);
    return serve;
}

static struct kve_replay_ask *
ask_open(const char *endpoint, uint64_t start, uint32_t hwm)
{
    struct kve_dial_opts opts = dial_opts(endpoint);
    struct kve_error error = { 0 };
    struct kve_replay_ask *ask = NULL;

    opts.recv_hwm = hwm;
    if (zmq->replay_ask_open(NULL, &opts, start, &ask, &error) != KVE_OK)
        fail_msg("open %s: %s", endpoint, error.detail);
    return ask;
}

static enum kve_io
answer(struct kve_replay_serve *serve, const struct kve_replay_request *to,
    bool with_topic, uint64_t number, struct kve_payload *payload)
{
    struct kve_error error = { 0 };
    enum kve_io io =
        zmq->replay_serve_send(serve, to->peer, to->peer_len, with_topic,
            span(payload != NULL ? "topic" : ""), number, payload, &error);

    if (io == KVE_IO_ERROR)
        fail_msg("answer: %s", error.detail);
    return io;
}

static void
test_both_shapes(void **state)
{
    struct kve_serve_opts opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_replay_serve *serve = serve_open(NULL, &opts);
    struct kve_payload *payload = kve_payload_create("hello", 5, NULL);

    (void)state;
    for (size_t topic = 0; topic <= 1; topic++) {
        struct kve_replay_ask *ask =
            ask_open(zmq->replay_serve_endpoint(serve), 41, 100);
        struct kve_replay_request request;
        struct kve_msg msg = { 0 };

        assert_true(serve_await(serve, &request, 2000));
        assert_int_equal(request.n_frames, 3);
        assert_int_equal(request.start.len, 8);
        assert_int_equal(kve_get64(request.start.data), 41);

        for (uint64_t n = 41; n < 44; n++)
            assert_int_equal(
                answer(serve, &request, topic, n, payload), KVE_IO_OK);
        assert_int_equal(
            answer(serve, &request, topic, UINT64_MAX, NULL), KVE_IO_OK);

        for (uint64_t n = 41; n < 44; n++) {
            assert_true(ask_await(ask, &msg, 2000));
            assert_int_equal(msg.n_frames, 3 + topic);
            assert_int_equal(msg.frame[0].len, 0);
            if (topic)
                assert_memory_equal(msg.frame[1].data, "topic", 5);
            assert_int_equal(kve_get64(msg.frame[1 + topic].data), n);
            assert_int_equal(msg.frame[2 + topic].len, 5);
            assert_memory_equal(msg.frame[2 + topic].data, "hello", 5);
        }
        assert_true(ask_await(ask, &msg, 2000));
        assert_int_equal(msg.n_frames, 3 + topic);
        if (topic)
            assert_int_equal(msg.frame[1].len, 0);
        assert_int_equal(kve_get64(msg.frame[1 + topic].data), UINT64_MAX);
        assert_int_equal(msg.frame[2 + topic].len, 0);
        kve_msg_release(&msg);
        zmq->replay_ask_close(ask);
    }
    zmq->replay_serve_close(serve, 0);
    assert_int_equal(atomic_load(&payload->refs), 1);
    kve_payload_unref(payload);
}

/* One that is full is told so at the first frame, loses nothing, and does not
 * hold up another. Every message is whole. */
static void
test_full_reader(void **state)
{
    /* More than the kernel's buffers take, by far. */
    enum { LEN = 500000, N = 200 };
    struct kve_serve_opts opts = serve_opts("tcp://127.0.0.1:0");
    opts.hwm = 10;
    struct kve_replay_serve *serve = serve_open(NULL, &opts);
    struct kve_out_gauge *gauge = kve_out_gauge_create();
    struct kve_payload *payload = kve_payload_create(NULL, LEN, gauge);
    struct kve_replay_ask *slow =
        ask_open(zmq->replay_serve_endpoint(serve), 0, 10);
    struct kve_replay_request slow_request;
    struct kve_replay_request fast_request;
    struct kve_msg msg = { 0 };
    uint64_t sent = 0;
    uint64_t got = 0;
    unsigned again = 0;

    (void)state;
    memset(payload->data, 7, LEN);
    assert_true(serve_await(serve, &slow_request, 2000));
    for (int i = 0; sent < N && i < 50; i++) {
        if (answer(serve, &slow_request, true, sent, payload) == KVE_IO_OK) {
            sent++;
            i = 0;
        } else {
            sleep_ms(2);
        }
    }
    assert_true(sent > 0 && sent < N);
    assert_true(atomic_load(&gauge->bytes[KVE_OUT_REPLAY]) > 0);

    /* Another one is served all the same. */
    struct kve_replay_ask *fast =
        ask_open(zmq->replay_serve_endpoint(serve), 5, 10);
    assert_true(serve_await(serve, &fast_request, 2000));
    assert_int_equal(kve_get64(fast_request.start.data), 5);
    assert_int_equal(answer(serve, &fast_request, true, 5, payload), KVE_IO_OK);
    assert_int_equal(
        answer(serve, &slow_request, true, sent, payload), KVE_IO_AGAIN);
    assert_true(ask_await(fast, &msg, 2000));
    assert_int_equal(kve_get64(msg.frame[2].data), 5);
    zmq->replay_ask_close(fast);

    /* The slow one wakes up and gets everything. */
    int64_t until = kve_now_ns() + 5000 * KVE_MS;
    while (got < N && kve_now_ns() < until) {
        while (sent < N) {
            enum kve_io io = answer(serve, &slow_request, true, sent, payload);
            assert_int_not_equal(io, KVE_IO_GONE);
            if (io == KVE_IO_AGAIN) {
                again++;
                break;
            }
            sent++;
        }
        while (ask_await(slow, &msg, 0)) {
            assert_int_equal(msg.n_frames, 4);
            assert_int_equal(kve_get64(msg.frame[2].data), got);
            assert_int_equal(msg.frame[3].len, LEN);
            got++;
        }
        assert_false(serve_await(serve, &fast_request, 0));
        sleep_ms(1);
    }
    assert_int_equal(got, N);
    assert_true(again > 0);
    kve_msg_release(&msg);
    zmq->replay_ask_close(slow);
    zmq->replay_serve_close(serve, 0);
    assert_int_equal(atomic_load(&gauge->bytes[KVE_OUT_REPLAY]), 0);
    kve_payload_unref(payload);
    kve_out_gauge_unref(gauge);
}

/* A reader that is full and then leaves: GONE, once it was received. */
static void
test_reader_leaves(void **state)
{
    struct kve_serve_opts opts = serve_opts("tcp://127.0.0.1:0");
    opts.hwm = 2;
    struct kve_replay_serve *serve = serve_open(NULL, &opts);
    struct kve_payload *payload = kve_payload_create(NULL, 1000000, NULL);
    struct kve_replay_ask *ask =
        ask_open(zmq->replay_serve_endpoint(serve), 0, 1);
    struct kve_replay_request request;
    struct kve_replay_request none;
    enum kve_io io = KVE_IO_OK;

    (void)state;
    memset(payload->data, 0, payload->len);
    assert_true(serve_await(serve, &request, 2000));
    for (int i = 0; i < 100 && io == KVE_IO_OK; i++) {
        io = answer(serve, &request, true, 0, payload);
        sleep_ms(1);
    }
    assert_int_equal(io, KVE_IO_AGAIN);
    zmq->replay_ask_close(ask);
    for (int i = 0; i < 200 && io != KVE_IO_GONE; i++) {
        assert_false(serve_await(serve, &none, 5));
        io = answer(serve, &request, true, 0, payload);
    }
    assert_int_equal(io, KVE_IO_GONE);

    /* One that never was. */
    request.peer_len = 3;
    assert_int_equal(answer(serve, &request, true, 0, payload), KVE_IO_GONE);
    zmq->replay_serve_close(serve, 0);
    assert_int_equal(atomic_load(&payload->refs), 1);
    kve_payload_unref(payload);
}

/* Requests that come in while answers are sent wake the server. */
static void
test_sending_swallows_no_request(void **state)
{
    struct kve_serve_opts opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_replay_serve *serve = serve_open(NULL, &opts);
    struct kve_payload *payload = kve_payload_create("x", 1, NULL);
    struct kve_replay_ask *first =
        ask_open(zmq->replay_serve_endpoint(serve), 0, 100);
    struct kve_replay_request request;
    struct kve_replay_request second_request;
    struct kve_msg msg = { 0 };

    (void)state;
    assert_true(serve_await(serve, &request, 2000));
    assert_false(serve_await(serve, &second_request, 0));
    for (uint64_t i = 0; i < 20; i++) {
        struct kve_replay_ask *second =
            ask_open(zmq->replay_serve_endpoint(serve), 100 + i, 100);
        struct pollfd items[KVE_MAX_FDS];
        int fds[KVE_MAX_FDS];

        /* Let it arrive, then send: the socket library looks at its inbox
         * while it sends. */
        sleep_ms(20);
        assert_int_equal(answer(serve, &request, true, i, payload), KVE_IO_OK);
        size_t n = zmq->replay_serve_fds(serve, fds);
        /* A descriptor may tell of less than a request: of a connection. On a
         * busy machine the request comes after the send. */
        do {
            for (size_t k = 0; k < n; k++)
                items[k] = (struct pollfd){ fds[k], POLLIN, 0 };
            assert_true(poll(items, n, 2000) > 0);
        } while (!serve_await(serve, &second_request, 0));
        assert_int_equal(kve_get64(second_request.start.data), 100 + i);
        assert_false(serve_await(serve, &second_request, 0));
        assert_true(ask_await(first, &msg, 1000));
        zmq->replay_ask_close(second);
    }
    kve_msg_release(&msg);
    zmq->replay_ask_close(first);
    zmq->replay_serve_close(serve, 0);
    kve_payload_unref(payload);
}

/* What the server makes of requests of any shape. */
static const struct {
    size_t n;
    size_t len[8];
    size_t want_frames; /* 0: cut */
    size_t want_start;
} shapes[] = {
    { 2, { 0, 8 }, 3, 8 },
    { 1, { 0 }, 2, 0 },
    { 1, { 8 }, 2, 0 },
    { 2, { 5, 8 }, 3, 8 },
    { 2, { 0, 0 }, 3, 0 },
    { 2, { 0, 4 }, 3, 4 },
    { 3, { 0, 8, 1 }, 4, 8 },
    { 8, { 0, 8, 1, 1, 1, 1, 1, 1 }, 9, 8 },
    { 2, { 0, 600 }, 3, 600 },
    { 2, { 0, 601 }, 0, 0 },
};

static void
test_shapes_of_requests(void **state)
{
    static const uint8_t zeros[1024];
    struct kve_serve_opts opts = serve_opts("tcp://127.0.0.1:0");
    opts.max_request_len = 600;
    struct kve_replay_serve *serve = serve_open(NULL, &opts);
    void *zmq_context = zmq_ctx_new();
    int zero = 0;

    (void)state;
    for (size_t i = 0; i < N_OF(shapes); i++) {
        void *dealer = zmq_socket(zmq_context, ZMQ_DEALER);
        struct kve_replay_request request;

        (void)zmq_setsockopt(dealer, ZMQ_LINGER, &zero, sizeof(zero));
        assert_int_equal(
            zmq_connect(dealer, zmq->replay_serve_endpoint(serve)), 0);
        for (size_t k = 0; k < shapes[i].n; k++)
            assert_true(zmq_send(dealer, zeros, shapes[i].len[k],
                            k + 1 < shapes[i].n ? ZMQ_SNDMORE : 0) >= 0);
        bool came = serve_await(
            serve, &request, shapes[i].want_frames > 0 ? 2000 : 200);
        assert_int_equal(came, shapes[i].want_frames > 0);
        if (came &&
            (request.n_frames != shapes[i].want_frames ||
                request.start.len != shapes[i].want_start))
            fail_msg("row %zu: %zu frames, start of %zu", i, request.n_frames,
                request.start.len);
        (void)zmq_close(dealer);
    }
    (void)zmq_ctx_term(zmq_context);
    zmq->replay_serve_close(serve, 0);
}

/* The request waits for a server that is not there yet, and a name is as good
 * as an address. */
static void
test_request_waits_for_server(void **state)
{
    static const char *const hosts[] = { "127.0.0.1", "localhost" };

    (void)state;
    for (size_t i = 0; i < N_OF(hosts); i++) {
        char endpoint[64];
        struct kve_replay_request request;
        struct kve_msg msg = { 0 };
        unsigned port = free_port();

        (void)snprintf(
            endpoint, sizeof(endpoint), "tcp://%s:%u", hosts[i], port);
        struct kve_replay_ask *ask = ask_open(endpoint, 9, 100);
        assert_false(ask_await(ask, &msg, 100));
        struct kve_serve_opts opts = serve_opts(endpoint);
        struct kve_replay_serve *serve = serve_open(NULL, &opts);
        assert_true(serve_await(serve, &request, 2000));
        assert_int_equal(kve_get64(request.start.data), 9);
        assert_false(serve_await(serve, &request, 50));
        zmq->replay_ask_close(ask);
        zmq->replay_serve_close(serve, 0);
    }
}

/* An answer above max_body_len never arrives; asking anew is the asker's
 * business. */
static void
test_oversize_answer(void **state)
{
    struct kve_serve_opts opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_replay_serve *serve = serve_open(NULL, &opts);
    struct kve_dial_opts ask_opts =
        dial_opts(zmq->replay_serve_endpoint(serve));
    struct kve_payload *payload = kve_payload_create(NULL, 1001, NULL);
    struct kve_replay_request request;
    struct kve_replay_ask *ask;
    struct kve_msg msg = { 0 };

    (void)state;
    memset(payload->data, 0, payload->len);
    ask_opts.max_body_len = 1000;
    assert_int_equal(
        zmq->replay_ask_open(NULL, &ask_opts, 0, &ask, NULL), KVE_OK);
    assert_true(serve_await(serve, &request, 2000));
    assert_int_equal(answer(serve, &request, true, 0, payload), KVE_IO_OK);
    assert_false(ask_await(ask, &msg, 100));
    zmq->replay_ask_close(ask);
    zmq->replay_serve_close(serve, 0);
    kve_payload_unref(payload);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_shapes),
        cmocka_unit_test(test_full_reader),
        cmocka_unit_test(test_reader_leaves),
        cmocka_unit_test(test_sending_swallows_no_request),
        cmocka_unit_test(test_shapes_of_requests),
        cmocka_unit_test(test_request_waits_for_server),
        cmocka_unit_test(test_oversize_answer),
    };

    return cmocka_run_group_tests_name("transport/replay", tests, NULL, NULL);
}
