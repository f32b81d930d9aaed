/*
 * The live stream over real sockets: every kind of endpoint, frames as they
 * came, what happens to a connection, what an oversize message does.
 */
#include "peers.h"

#include "transport/endpoint.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

/* ---- every kind of endpoint ---- */

static const struct {
    const char *bound;   /* %s: a folder */
    const char *connect; /* %s: the port, or the folder */
} kinds[] = {
    { "tcp://127.0.0.1:0", "tcp://127.0.0.1:%s" },
    { "tcp://*:0", "tcp://127.0.0.1:%s" },
    { "tcp://*:*", "tcp://[::1]:%s" },
    { "tcp://0.0.0.0:0", "tcp://127.0.0.1:%s" },
    { "tcp://[::]:0", "tcp://127.0.0.1:%s" },
    { "tcp://[::]:0", "tcp://[::1]:%s" },
    { "tcp://[::1]:0", "tcp://[::1]:%s" },
    { "tcp://localhost:0", "tcp://localhost:%s" },
    { "tcp://lo:0", "tcp://127.0.0.1:%s" },
    { "ipc://%s/kv", "ipc://%s/kv" },
    { "ipc://@%s", "ipc://@%s" },
};

static void
pass_one_message(struct kve_live_out *out, struct reader *r, const char *to)
{
    if (!reader_await_event(r, KVE_LINK_CONNECTED, 2000))
        fail_msg("no connection to %s", to);
    (void)out_send_until_read(out, r, 7, 2000);
    assert_true(r->last >= 7);
    assert_int_equal(r->msg.n_frames, 3);
    assert_int_equal(r->msg.frame[0].len, 1);
    assert_int_equal(r->msg.frame[1].len, 8);
    assert_int_equal(r->msg.frame[2].len, 1);
    assert_int_equal(r->msg.bytes, 10);
    assert_memory_equal(r->msg.frame[2].data, "x", 1);
}

static void
test_kinds_of_endpoints(void **state)
{
    char folder[64];

    (void)state;
    make_folder(folder, sizeof(folder));
    for (size_t i = 0; i < N_OF(kinds); i++) {
        char bound[KVE_ENDPOINT_MAX];
        char to[KVE_ENDPOINT_MAX];
        const char *place = folder;
        struct reader r;

        (void)snprintf(bound, sizeof(bound), kinds[i].bound, folder);
        struct kve_serve_opts out_opts = serve_opts(bound);
        struct kve_live_out *out = out_open(NULL, &out_opts);

        if (strncmp(bound, "tcp", 3) == 0) {
            place = strrchr(out_endpoint(out), ':') + 1;
            /* As it was given, but with a real port. */
            assert_memory_equal(out_endpoint(out), bound,
                (size_t)(strrchr(bound, ':') - bound));
            assert_string_not_equal(place, "0");
            assert_string_not_equal(place, "*");
        }
        (void)snprintf(to, sizeof(to), kinds[i].connect, place);
        struct kve_dial_opts in_opts = dial_opts(to);
        reader_open(&r, NULL, &in_opts);
        pass_one_message(out, &r, to);
        reader_close(&r);
        zmq->live_out_close(out, 0);
    }
    remove_folder(folder);
}

static void
test_inproc(void **state)
{
    struct kve_serve_opts out_opts = serve_opts("inproc://kv");
    struct kve_dial_opts in_opts = dial_opts("inproc://kv");
    kve_context *context;
    struct reader r;

    (void)state;
    assert_int_equal(kve_context_create(NULL, &context, NULL), KVE_OK);
    struct kve_live_out *out = out_open(context, &out_opts);
    reader_open(&r, context, &in_opts);
    assert_true(reader_await_event(&r, KVE_LINK_CONNECTED, 100));
    (void)out_send_until_read(out, &r, 0, 1000);
    reader_close(&r);
    zmq->live_out_close(out, 0);
    kve_context_destroy(context);
}

/* The subscriber binds, the publisher connects, by address and by name. */
static void
test_other_way_round(void **state)
{
    static const char *const hosts[] = { "127.0.0.1", "localhost", "[::1]" };

    (void)state;
    for (size_t i = 0; i < N_OF(hosts); i++) {
        char endpoint[64];
        struct reader r;

        (void)snprintf(
            endpoint, sizeof(endpoint), "tcp://%s:%u", hosts[i], free_port());
        struct kve_dial_opts in_opts = dial_opts(endpoint);
        in_opts.bind = KVE_BIND_YES;
        reader_open(&r, NULL, &in_opts);

        struct kve_serve_opts out_opts = serve_opts(endpoint);
        out_opts.bind = KVE_BIND_NO;
        struct kve_live_out *out = out_open(NULL, &out_opts);
        bool bound = true;
        assert_string_equal(zmq->live_out_endpoint(out, &bound), endpoint);
        assert_false(bound);

        assert_true(reader_await_event(&r, KVE_LINK_CONNECTED, 2000));
        (void)out_send_until_read(out, &r, 0, 2000);
        zmq->live_out_close(out, 0);
        assert_true(reader_await_event(&r, KVE_LINK_DISCONNECTED, 2000));
        reader_close(&r);
    }
}

/* What cannot work is refused when it is opened. */
static const struct {
    const char *endpoint;
    const char *said;
} never[] = {
    { "tcp://*:5557", "bind=yes" },
    { "tcp://127.0.0.1:0", "bind=yes" },
    { "tcp://127.0.0.1", "no port" },
    { "ipc://", "no path" },
};

static void
test_endpoints_that_cannot_work(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_OF(never); i++) {
        struct kve_dial_opts opts = dial_opts(never[i].endpoint);
        struct kve_error error = { 0 };
        struct kve_live_in *in = NULL;
        struct kve_replay_ask *ask = NULL;

        assert_int_equal(
            zmq->live_in_open(NULL, &opts, &in, &error), KVE_E_INVAL);
        if (strstr(error.detail, never[i].said) == NULL)
            fail_msg("%s: %s", never[i].endpoint, error.detail);
        assert_null(in);
        assert_int_equal(
            zmq->replay_ask_open(NULL, &opts, 0, &ask, &error), KVE_E_INVAL);
        assert_null(ask);
    }
}

/* ---- frames ---- */

/* A PUB socket that sends whatever it is told. */
static void *
raw_pub(void *zmq_context, int type, char *ret_endpoint, size_t cap)
{
    void *socket = zmq_socket(zmq_context, type);
    int zero = 0;

    assert_non_null(socket);
    (void)zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof(zero));
    assert_int_equal(zmq_bind(socket, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(
        zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, ret_endpoint, &cap), 0);
    return socket;
}

static void
send_frames(void *socket, size_t n, size_t len)
{
    static const uint8_t zeros[4096];

    for (size_t i = 0; i < n; i++)
        assert_true(
            zmq_send(socket, zeros, len, i + 1 < n ? ZMQ_SNDMORE : 0) >= 0);
}

static void
test_frames_are_counted(void **state)
{
    void *zmq_context = zmq_ctx_new();
    char endpoint[128];
    void *pub = raw_pub(zmq_context, ZMQ_PUB, endpoint, sizeof(endpoint));
    struct kve_dial_opts opts = dial_opts(endpoint);
    struct reader r;

    (void)state;
    reader_open(&r, NULL, &opts);
    for (int i = 0; i < 100; i++) {
        send_frames(pub, 1, 1);
        if (reader_await_message(&r, 20))
            break;
    }
    while (reader_await_message(&r, 50))
        continue;

    for (size_t n = 1; n <= 20; n++) {
        send_frames(pub, n, 100);
        assert_true(reader_await_message(&r, 1000));
        assert_int_equal(r.msg.n_frames, n);
        assert_int_equal(r.msg.bytes, n * 100);
        for (size_t k = 0; k < n && k < KVE_MSG_FRAMES; k++)
            assert_int_equal(r.msg.frame[k].len, 100);
    }
    reader_close(&r);
    (void)zmq_close(pub);
    (void)zmq_ctx_term(zmq_context);
}

static void
test_topic_is_a_prefix(void **state)
{
    struct kve_serve_opts out_opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_live_out *out = out_open(NULL, &out_opts);
    struct kve_dial_opts opts = dial_opts(out_endpoint(out));
    struct reader r;

    (void)state;
    opts.topic = "t";
    reader_open(&r, NULL, &opts);
    (void)out_send_until_read(out, &r, 0, 2000);
    out_send(out, "other", 100, "x", 1);
    out_send(out, "", 101, "x", 1);
    out_send(out, "tx", 102, "x", 1);
    while (r.last != 102)
        assert_true(reader_await_message(&r, 1000));
    assert_int_equal(r.msg.frame[0].len, 2);
    assert_false(reader_await_message(&r, 30));
    reader_close(&r);
    zmq->live_out_close(out, 0);
}

/* ---- waiting ---- */

/* Many messages and a loop that only looks at descriptors: none is left. */
static void
test_descriptors_tell_of_every_message(void **state)
{
    struct kve_serve_opts out_opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_live_out *out = out_open(NULL, &out_opts);
    struct kve_dial_opts opts = dial_opts(out_endpoint(out));
    struct reader r;
    size_t n = 0;

    (void)state;
    reader_open(&r, NULL, &opts);
    (void)out_send_until_read(out, &r, 0, 2000);
    for (int round = 0; round < 200; round++) {
        int burst = 1 + round % 7;

        for (int i = 0; i < burst; i++)
            out_send(out, "t", 1000 + n + (size_t)i, "x", 1);
        n += (size_t)burst;
        /* Reads until AGAIN each time it wakes. */
        while (r.last != 1000 + n - 1)
            assert_true(reader_await_message(&r, 1000));
        assert_false(reader_await_message(&r, 0));
    }
    reader_close(&r);
    zmq->live_out_close(out, 0);
}

/* ---- connections ---- */

static void
test_publisher_comes_back(void **state)
{
    struct kve_serve_opts out_opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_live_out *out = out_open(NULL, &out_opts);
    char endpoint[64];
    struct reader r;

    (void)state;
    (void)snprintf(endpoint, sizeof(endpoint), "%s", out_endpoint(out));
    struct kve_dial_opts opts = dial_opts(endpoint);
    reader_open(&r, NULL, &opts);
    (void)out_send_until_read(out, &r, 0, 2000);
    for (int life = 1; life <= 3; life++) {
        zmq->live_out_close(out, 0);
        assert_true(reader_await_event(&r, KVE_LINK_DISCONNECTED, 2000));
        out_opts.endpoint = endpoint;
        out = out_open(NULL, &out_opts);
        assert_true(reader_await_event(&r, KVE_LINK_CONNECTED, 2000));
        uint64_t got =
            out_send_until_read(out, &r, (uint64_t)life * 1000, 2000);
        assert_int_equal(got / 1000, life);
    }
    assert_int_equal(r.seen[KVE_LINK_OVERSIZE], 0);
    assert_int_equal(r.seen[KVE_LINK_REFUSED], 0);
    reader_close(&r);
    zmq->live_out_close(out, 0);
}

static void
test_reader_comes_first(void **state)
{
    char endpoint[64];
    struct reader r;

    (void)state;
    (void)snprintf(
        endpoint, sizeof(endpoint), "tcp://127.0.0.1:%u", free_port());
    struct kve_dial_opts opts = dial_opts(endpoint);
    reader_open(&r, NULL, &opts);
    assert_false(reader_await_message(&r, 100));

    struct kve_serve_opts out_opts = serve_opts(endpoint);
    struct kve_live_out *out = out_open(NULL, &out_opts);
    assert_true(reader_await_event(&r, KVE_LINK_CONNECTED, 2000));
    (void)out_send_until_read(out, &r, 0, 2000);
    reader_close(&r);
    zmq->live_out_close(out, 0);
}

/* A frame above max_body_len: cut, told, connected again. What came before it
 * is not lost, and a frame of exactly the limit passes. */
static void
test_oversize(void **state)
{
    struct kve_serve_opts out_opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_live_out *out = out_open(NULL, &out_opts);
    struct kve_dial_opts opts = dial_opts(out_endpoint(out));
    uint8_t body[4097] = { 0 };
    struct reader r;

    (void)state;
    opts.max_body_len = sizeof(body) - 1;
    reader_open(&r, NULL, &opts);
    (void)out_send_until_read(out, &r, 0, 2000);
    while (reader_await_message(&r, 50))
        continue;

    out_send(out, "t", 500, body, sizeof(body) - 1);
    out_send(out, "t", 501, body, sizeof(body));
    assert_true(reader_await_message(&r, 1000));
    assert_int_equal(r.last, 500);
    assert_int_equal(r.msg.frame[2].len, sizeof(body) - 1);
    assert_true(reader_await_event(&r, KVE_LINK_OVERSIZE, 3000));
    assert_int_equal(r.seen[KVE_LINK_DISCONNECTED], 1);
    assert_non_null(strstr(r.detail[KVE_LINK_OVERSIZE], "4096 bytes"));
    assert_true(reader_await_event(&r, KVE_LINK_CONNECTED, 3000));
    assert_int_equal(r.last, 500);
    assert_true(out_send_until_read(out, &r, 600, 2000) >= 600);
    reader_close(&r);
    zmq->live_out_close(out, 0);
}

static int
tcp_listen(char *ret_endpoint, size_t cap)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(address);
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    assert_int_equal(bind(fd, (struct sockaddr *)&address, len), 0);
    assert_int_equal(listen(fd, 5), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    (void)snprintf(
        ret_endpoint, cap, "tcp://127.0.0.1:%u", ntohs(address.sin_port));
    return fd;
}

/* A live stream has one kind of other end. */
static void
test_wrong_socket_type_is_told(void **state)
{
    void *zmq_context = zmq_ctx_new();
    char endpoint[128];
    void *router = raw_pub(zmq_context, ZMQ_ROUTER, endpoint, sizeof(endpoint));
    struct kve_dial_opts opts = dial_opts(endpoint);
    struct reader r;

    (void)state;
    reader_open(&r, NULL, &opts);
    assert_true(reader_await_event(&r, KVE_LINK_REFUSED, 2000));
    assert_int_equal(r.seen[KVE_LINK_CONNECTED], 0);
    assert_int_equal(r.seen[KVE_LINK_OVERSIZE], 0);
    reader_close(&r);
    (void)zmq_close(router);
    (void)zmq_ctx_term(zmq_context);
}

/* A listener that is no ZeroMQ: hangs up, or says something else. The library
 * gives such a connection up for good; a publisher that takes the port over
 * is found all the same. */
static void
test_peer_that_is_no_zeromq(void **state)
{
    static const char *const words[] = { "", "HTTP/1.1 400 Bad Request\r\n\r\n",
        "\xff\0\0\0\0\0\0\0\1\x7f\3" };

    (void)state;
    for (size_t i = 0; i < N_OF(words); i++) {
        char endpoint[64];
        struct reader r;
        int listener = tcp_listen(endpoint, sizeof(endpoint));
        struct kve_dial_opts opts = dial_opts(endpoint);

        reader_open(&r, NULL, &opts);
        int fd = accept(listener, NULL, NULL);
        assert_true(fd >= 0);
        (void)!write(fd, words[i], i == 2 ? 11 : strlen(words[i]));
        if (i != 1)
            sleep_ms(20);
        (void)close(fd);
        (void)close(listener);
        assert_true(reader_await_event(&r, KVE_LINK_REFUSED, 2000));

        struct kve_serve_opts out_opts = serve_opts(endpoint);
        struct kve_live_out *out = out_open(NULL, &out_opts);
        assert_true(reader_await_event(&r, KVE_LINK_CONNECTED, 3000));
        (void)out_send_until_read(out, &r, 0, 2000);
        assert_int_equal(r.seen[KVE_LINK_OVERSIZE], 0);
        reader_close(&r);
        zmq->live_out_close(out, 0);
    }
}

/* ---- references ---- */

/* A reader that is stuck holds payloads; the gauge tells how many bytes, and
 * all of them come back when it is gone. */
static void
test_gauge_counts_what_the_library_holds(void **state)
{
    enum { LEN = 100000, N = 100 };
    struct kve_serve_opts out_opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_live_out *out = out_open(NULL, &out_opts);
    struct kve_dial_opts opts = dial_opts(out_endpoint(out));
    struct kve_out_gauge *gauge = kve_out_gauge_create();
    int64_t live = kve_mem_live();
    struct reader r;

    (void)state;
    opts.recv_hwm = 1;
    reader_open(&r, NULL, &opts);
    (void)out_send_until_read(out, &r, 0, 2000);
    for (uint64_t i = 0; i < N; i++) {
        struct kve_payload *payload = kve_payload_create(NULL, LEN, gauge);

        memset(payload->data, 0, LEN);
        assert_int_equal(
            zmq->live_out_send(out, span("t"), i, payload, NULL), KVE_IO_OK);
        kve_payload_unref(payload);
    }
    sleep_ms(100);
    size_t held = atomic_load(&gauge->bytes[KVE_OUT_LIVE]);
    assert_true(held <= (size_t)LEN * N);
    assert_true(held >= LEN);
    assert_int_equal(held % LEN, 0);

    reader_close(&r);
    zmq->live_out_close(out, 0);
    assert_int_equal(atomic_load(&gauge->bytes[KVE_OUT_LIVE]), 0);
    assert_int_equal(atomic_load(&gauge->refs), 1);
    assert_true(kve_mem_live() < live);
    kve_out_gauge_unref(gauge);
}

/* What readers have not taken yet is kept for the linger, and closing ends
 * when they have it, or when the time is over. */
static void
test_linger(void **state)
{
    enum { N = 500 };
    static uint8_t body[20000];
    struct kve_serve_opts out_opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_live_out *out = out_open(NULL, &out_opts);
    struct kve_dial_opts opts = dial_opts(out_endpoint(out));
    struct reader r;
    int64_t took;

    (void)state;
    reader_open(&r, NULL, &opts);
    (void)out_send_until_read(out, &r, 0, 2000);
    for (uint64_t i = 1; i <= N; i++)
        out_send(out, "t", 1000 + i, body, sizeof(body));
    /* The reader's I/O thread takes all of it. */
    took = kve_now_ns();
    zmq->live_out_close(out, 5000);
    took = kve_now_ns() - took;
    assert_true(took < 4000 * KVE_MS);
    while (r.last != 1000 + N)
        assert_true(reader_await_message(&r, 1000));
    reader_close(&r);

    /* This one is stuck. */
    out = out_open(NULL, &out_opts);
    opts.endpoint = out_endpoint(out);
    opts.recv_hwm = 1;
    reader_open(&r, NULL, &opts);
    (void)out_send_until_read(out, &r, 0, 2000);
    for (uint64_t i = 1; i <= N; i++)
        out_send(out, "t", 1000 + i, body, sizeof(body));
    took = kve_now_ns();
    zmq->live_out_close(out, 200);
    took = kve_now_ns() - took;
    assert_in_range(took, 150 * KVE_MS, 4000 * KVE_MS);
    reader_close(&r);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds_of_endpoints),
        cmocka_unit_test(test_inproc),
        cmocka_unit_test(test_other_way_round),
        cmocka_unit_test(test_endpoints_that_cannot_work),
        cmocka_unit_test(test_frames_are_counted),
        cmocka_unit_test(test_topic_is_a_prefix),
        cmocka_unit_test(test_descriptors_tell_of_every_message),
        cmocka_unit_test(test_publisher_comes_back),
        cmocka_unit_test(test_reader_comes_first),
        cmocka_unit_test(test_oversize),
        cmocka_unit_test(test_wrong_socket_type_is_told),
        cmocka_unit_test(test_peer_that_is_no_zeromq),
        cmocka_unit_test(test_gauge_counts_what_the_library_holds),
        cmocka_unit_test(test_linger),
    };

    return cmocka_run_group_tests_name("transport/live", tests, NULL, NULL);
}
