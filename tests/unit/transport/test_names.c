/*
 * Names: an injected resolver answers late, wrongly, never, or otherwise than
 * before; healthy sources notice nothing.
 */
#include "peers.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

/*
 * The names of these tests:
 *
 *     good*    127.0.0.1 at once
 *     late     127.0.0.1 after 600 ms
 *     slow*    127.0.0.1 when the gate opens, and not before
 *     both     [::1], then 127.0.0.1: nobody listens at the first
 *     moving   what moving_to says now: an address, or two with a comma
 *     others   fail
 */
struct names {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    char moving_to[80];
    unsigned asked;
    bool gate_open;
    unsigned passed; /* look-ups that were held up by the gate */
};

static struct names names = { PTHREAD_MUTEX_INITIALIZER,
    PTHREAD_COND_INITIALIZER, "", 0, false, 0 };

static void
wait_at_gate(struct names *n)
{
    (void)pthread_mutex_lock(&n->mutex);
    while (!n->gate_open)
        (void)pthread_cond_wait(&n->changed, &n->mutex);
    n->passed++;
    (void)pthread_cond_broadcast(&n->changed);
    (void)pthread_mutex_unlock(&n->mutex);
}

/* Let look-ups of slow names come back, until so many more have, and shut the
 * gate again. */
static void
open_gate(unsigned how_many)
{
    (void)pthread_mutex_lock(&names.mutex);
    unsigned until = names.passed + how_many;
    names.gate_open = true;
    (void)pthread_cond_broadcast(&names.changed);
    while (names.passed < until)
        (void)pthread_cond_wait(&names.changed, &names.mutex);
    names.gate_open = false;
    (void)pthread_mutex_unlock(&names.mutex);
}

static int
look_up(void *ctx, const char *host, struct kve_addrs *ret_addrs, char *ret_why,
    size_t why_cap)
{
    struct names *n = ctx;

    (void)pthread_mutex_lock(&n->mutex);
    n->asked++;
    (void)snprintf(ret_addrs->text[0], sizeof(ret_addrs->text[0]), "%s",
        strcmp(host, "moving") == 0 ? n->moving_to : "127.0.0.1");
    (void)pthread_mutex_unlock(&n->mutex);
    ret_addrs->n = ret_addrs->text[0][0] != '\0' ? 1 : 0;

    char *comma = strchr(ret_addrs->text[0], ',');
    if (comma != NULL) {
        (void)snprintf(
            ret_addrs->text[1], sizeof(ret_addrs->text[1]), "%s", comma + 1);
        *comma = '\0';
        ret_addrs->n = 2;
    }
    if (strcmp(host, "late") == 0)
        sleep_ms(600);
    else if (strncmp(host, "slow", 4) == 0)
        wait_at_gate(n);
    else if (strcmp(host, "both") == 0) {
        (void)snprintf(ret_addrs->text[0], sizeof(ret_addrs->text[0]), "[::1]");
        (void)snprintf(
            ret_addrs->text[1], sizeof(ret_addrs->text[1]), "127.0.0.1");
        ret_addrs->n = 2;
    } else if (strncmp(host, "good", 4) != 0 && strcmp(host, "moving") != 0)
        ret_addrs->n = 0;
    if (ret_addrs->n > 0)
        return 0;
    (void)snprintf(ret_why, why_cap, "no such name here");
    return -1;
}

static void
move_to(const char *address)
{
    (void)pthread_mutex_lock(&names.mutex);
    (void)snprintf(names.moving_to, sizeof(names.moving_to), "%s", address);
    (void)pthread_mutex_unlock(&names.mutex);
}

static unsigned
times_asked(void)
{
    (void)pthread_mutex_lock(&names.mutex);
    unsigned n = names.asked;
    (void)pthread_mutex_unlock(&names.mutex);
    return n;
}

static kve_context *
make_context(void)
{
    kve_context *context = NULL;

    assert_int_equal(kve_context_create(NULL, &context, NULL), KVE_OK);
    kve_resolver_set_fn(kve_context_resolver(context), look_up, &names);
    return context;
}

static const char *
port_of(struct kve_live_out *out)
{
    return strrchr(out_endpoint(out), ':') + 1;
}

static void
open_name(
    struct reader *r, kve_context *context, const char *name, const char *port)
{
    char endpoint[128];

    (void)snprintf(endpoint, sizeof(endpoint), "tcp://%s:%s", name, port);
    struct kve_dial_opts opts = dial_opts(endpoint);
    reader_open(r, context, &opts);
}

/* One name takes its time, four others are unknown: the good one is up long
 * before, as is one given as an address, and the slow one comes in the end. */
static void
test_slow_name_delays_nobody(void **state)
{
    kve_context *context = make_context();
    struct kve_serve_opts opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_live_out *out = out_open(context, &opts);
    struct reader slow[2];
    struct reader bad;
    struct reader good;

    (void)state;
    open_name(&slow[0], context, "slow-1", port_of(out));
    open_name(&slow[1], context, "slow-2", port_of(out));
    open_name(&bad, context, "unknown", port_of(out));
    open_name(&good, context, "good", port_of(out));
    assert_true(reader_await_event(&good, KVE_LINK_CONNECTED, 2000));
    assert_true(reader_await_event(&bad, KVE_LINK_RESOLVE_FAILED, 2000));
    assert_non_null(strstr(bad.detail[KVE_LINK_RESOLVE_FAILED],
        "'unknown' is not resolved: no such name here"));
    (void)out_send_until_read(out, &good, 0, 2000);
    open_gate(2);
    for (int i = 0; i < 2; i++)
        assert_true(reader_await_event(&slow[i], KVE_LINK_CONNECTED, 8000));
    reader_close(&good);
    reader_close(&bad);
    reader_close(&slow[0]);
    reader_close(&slow[1]);
    zmq->live_out_close(out, 0);
    kve_context_destroy(context);
}

/* The deadline passes, that is told; the name is asked for again, and an
 * answer that comes after all is no trap. */
static void
test_deadline_of_a_look_up(void **state)
{
    kve_context *context = make_context();
    struct kve_serve_opts out_opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_live_out *out = out_open(context, &out_opts);
    char endpoint[128];
    struct reader r;
    int64_t start = kve_now_ns();

    (void)state;
    (void)snprintf(endpoint, sizeof(endpoint), "tcp://late:%s", port_of(out));
    struct kve_dial_opts opts = dial_opts(endpoint);
    opts.resolve_timeout_ms = 400;
    reader_open(&r, context, &opts);
    assert_true(reader_await_event(&r, KVE_LINK_RESOLVE_FAILED, 5000));
    assert_true(kve_now_ns() - start >= 390 * KVE_MS);
    assert_non_null(strstr(r.detail[KVE_LINK_RESOLVE_FAILED], "within 400 ms"));
    /* A later question joins the look-up that is still under way, so it is
     * answered before its own deadline. */
    assert_true(reader_await_event(&r, KVE_LINK_CONNECTED, 2000));
    reader_close(&r);
    zmq->live_out_close(out, 0);
    kve_context_destroy(context);
}

/* localhost is often two addresses, and one has no listener. */
static void
test_addresses_in_turn(void **state)
{
    kve_context *context = make_context();
    struct kve_serve_opts opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_live_out *out = out_open(context, &opts);
    struct kve_replay_serve *serve = NULL;
    struct kve_replay_ask *ask = NULL;
    struct kve_replay_request request;
    struct kve_msg msg = { 0 };
    char endpoint[64];
    struct reader r;

    (void)state;
    open_name(&r, context, "both", port_of(out));
    assert_true(reader_await_event(&r, KVE_LINK_CONNECTED, 2000));
    (void)out_send_until_read(out, &r, 0, 2000);

    /* The other end dies and comes back at the other address. */
    (void)snprintf(endpoint, sizeof(endpoint), "tcp://[::1]:%s", port_of(out));
    zmq->live_out_close(out, 0);
    assert_true(reader_await_event(&r, KVE_LINK_DISCONNECTED, 2000));
    opts.endpoint = endpoint;
    out = out_open(context, &opts);
    assert_true(reader_await_event(&r, KVE_LINK_CONNECTED, 2000));
    (void)out_send_until_read(out, &r, 0, 2000);
    reader_close(&r);
    zmq->live_out_close(out, 0);

    /* A replay request finds its server as well, once. */
    opts.endpoint = "tcp://127.0.0.1:0";
    assert_int_equal(
        zmq->replay_serve_open(context, &opts, &serve, NULL), KVE_OK);
    (void)snprintf(endpoint, sizeof(endpoint), "tcp://both:%s",
        strrchr(zmq->replay_serve_endpoint(serve), ':') + 1);
    struct kve_dial_opts ask_opts = dial_opts(endpoint);
    assert_int_equal(
        zmq->replay_ask_open(context, &ask_opts, 3, &ask, NULL), KVE_OK);
    bool came = false;
    for (int i = 0; i < 200 && !came; i++) {
        assert_false(ask_await(ask, &msg, 5));
        came = serve_await(serve, &request, 5);
    }
    assert_true(came);
    assert_false(serve_await(serve, &request, 50));
    zmq->replay_ask_close(ask);
    zmq->replay_serve_close(serve, 0);
    kve_context_destroy(context);
}

/* A bound name is bound at all its addresses, with one port. */
static void
test_bound_name(void **state)
{
    static const char *const hosts[] = { "[::1]", "127.0.0.1", "both" };
    kve_context *context = make_context();
    struct kve_serve_opts opts = serve_opts("tcp://both:0");
    struct kve_live_out *out = out_open(context, &opts);
    struct kve_live_out *second = NULL;
    struct kve_error error = { 0 };
    char endpoint[64];

    (void)state;
    assert_memory_equal(out_endpoint(out), "tcp://both:", 11);
    for (size_t i = 0; i < N_OF(hosts); i++) {
        struct reader r;

        open_name(&r, context, hosts[i], port_of(out));
        assert_true(reader_await_event(&r, KVE_LINK_CONNECTED, 2000));
        (void)out_send_until_read(out, &r, 0, 2000);
        reader_close(&r);
    }
    (void)snprintf(endpoint, sizeof(endpoint), "%s", out_endpoint(out));
    opts.endpoint = endpoint;
    assert_int_equal(
        zmq->live_out_open(context, &opts, &second, &error), KVE_E_IN_USE);
    zmq->live_out_close(out, 0);
    zmq->live_out_close(out_open(context, &opts), 0);

    opts.endpoint = "tcp://unknown:0";
    assert_int_equal(
        zmq->live_out_open(context, &opts, &second, &error), KVE_E_SYSTEM);
    assert_non_null(strstr(error.detail, "no such name here"));
    kve_context_destroy(context);
}

/* A pod that comes back with another address. */
static void
test_name_that_moves(void **state)
{
    kve_context *context = make_context();
    char endpoint[64];
    struct kve_serve_opts opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_live_out *out;
    struct reader r;

    (void)state;
    move_to("127.0.0.1");
    out = out_open(context, &opts);
    (void)snprintf(endpoint, sizeof(endpoint), "tcp://[::1]:%s", port_of(out));
    open_name(&r, context, "moving", port_of(out));
    (void)out_send_until_read(out, &r, 0, 2000);

    unsigned asked = times_asked();
    for (uint64_t n = 100; n < 110; n++) {
        out_send(out, "t", n, "x", 1);
        assert_true(reader_await_message(&r, 1000));
    }
    assert_int_equal(times_asked(), asked);

    zmq->live_out_close(out, 0);
    move_to("[::1]");
    opts.endpoint = endpoint;
    out = out_open(context, &opts);
    assert_true(reader_await_event(&r, KVE_LINK_CONNECTED, 2000));
    uint64_t n = out_send_until_read(out, &r, 1000, 2000);
    assert_int_equal(r.last, n);

    /* Then the name is gone for a while; the old address still counts. */
    move_to("");
    zmq->live_out_close(out, 0);
    assert_true(reader_await_event(&r, KVE_LINK_RESOLVE_FAILED, 2000));
    out = out_open(context, &opts);
    assert_true(reader_await_event(&r, KVE_LINK_CONNECTED, 2000));
    (void)out_send_until_read(out, &r, 2000, 2000);
    reader_close(&r);
    zmq->live_out_close(out, 0);
    kve_context_destroy(context);
}

/* An address that cannot be connected to, since this machine has not the
 * interface of its zone, is passed over, and left when the name moves. */
static void
test_name_with_an_impossible_address(void **state)
{
    static const char *const first[] = { "[fe80::1%nosuch0],127.0.0.1",
        "[fe80::1%nosuch0]" };
    kve_context *context = make_context();
    struct kve_serve_opts opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_live_out *out = out_open(context, &opts);

    (void)state;
    for (size_t i = 0; i < N_OF(first); i++) {
        struct reader r;

        move_to(first[i]);
        open_name(&r, context, "moving", port_of(out));
        if (i == 1) {
            assert_false(reader_await_event(&r, KVE_LINK_CONNECTED, 100));
            move_to("127.0.0.1");
        }
        assert_true(reader_await_event(&r, KVE_LINK_CONNECTED, 2000));
        (void)out_send_until_read(out, &r, 0, 2000);
        reader_close(&r);
    }
    zmq->live_out_close(out, 0);
    kve_context_destroy(context);
}

/* There is no socket left to watch a name's addresses with: that is said, and
 * the library's thread goes on. */
static void
test_no_socket_for_several_addresses(void **state)
{
    void *small = zmq_ctx_new();
    struct kve_context_opts context_opts = { .zmq_context = small };
    kve_context *context = NULL;
    struct kve_replay_ask *ask = NULL;
    struct kve_error error = { 0 };
    kve_status status = KVE_OK;
    char endpoint[64];

    (void)state;
    assert_int_equal(zmq_ctx_set(small, ZMQ_MAX_SOCKETS, 2), 0);
    assert_int_equal(kve_context_create(&context_opts, &context, NULL), KVE_OK);
    kve_resolver_set_fn(kve_context_resolver(context), look_up, &names);
    move_to("127.0.0.1,127.0.0.2");
    (void)snprintf(endpoint, sizeof(endpoint), "tcp://moving:%u", free_port());
    struct kve_dial_opts opts = dial_opts(endpoint);
    assert_int_equal(
        zmq->replay_ask_open(context, &opts, 0, &ask, &error), KVE_OK);
    for (int i = 0; i < 400 && status == KVE_OK; i++) {
        bool changed;

        sleep_ms(5);
        status = zmq->replay_ask_step(ask, kve_now_ns(), &changed, &error);
    }
    assert_int_equal(status, KVE_E_LIMIT);
    /* Nothing was kept of the attempt. */
    void *spare = NULL;
    for (int i = 0; i < 400 && spare == NULL; i++) {
        sleep_ms(5);
        spare = zmq_socket(small, ZMQ_PAIR);
    }
    assert_non_null(spare);
    (void)zmq_close(spare);
    zmq->replay_ask_close(ask);
    kve_context_destroy(context);
    assert_int_equal(zmq_ctx_term(small), 0);
}

/* A name that is unknown at first is asked for again, ever more seldom. */
static void
test_name_that_comes_late(void **state)
{
    kve_context *context = make_context();
    struct kve_serve_opts opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_live_out *out = out_open(context, &opts);
    struct reader r;

    (void)state;
    move_to("");
    unsigned asked = times_asked();
    open_name(&r, context, "moving", port_of(out));
    (void)reader_await_message(&r, 500);
    assert_in_range(times_asked() - asked, 3, 10);
    assert_true(r.seen[KVE_LINK_RESOLVE_FAILED] >= 3);
    move_to("127.0.0.1");
    assert_true(reader_await_event(&r, KVE_LINK_CONNECTED, 1000));
    reader_close(&r);
    zmq->live_out_close(out, 0);
    kve_context_destroy(context);
}

/* While nobody listens the name is asked for once for each try, not more. */
static void
test_refused_asks_no_more_than_it_tries(void **state)
{
    kve_context *context = make_context();
    struct reader r;
    char port[8];

    (void)state;
    (void)snprintf(port, sizeof(port), "%u", free_port());
    unsigned asked = times_asked();
    open_name(&r, context, "both", port);
    assert_false(reader_await_message(&r, 600));
    assert_in_range(times_asked() - asked, 2, 32);
    assert_int_equal(r.seen[KVE_LINK_CONNECTED], 0);
    reader_close(&r);
    kve_context_destroy(context);
}

/* Closing does not wait for a look-up, of a handle or of the context. */
static void
test_closing_does_not_wait(void **state)
{
    kve_context *context = make_context();
    struct reader r;

    (void)state;
    unsigned asked = times_asked();
    open_name(&r, context, "slow-1", "1");
    while (times_asked() == asked)
        sleep_ms(1);
    reader_close(&r);
    kve_context_destroy(context);
    /* Let the worker come back and find nobody. */
    open_gate(1);
    sleep_ms(200);
}

/* ---- the resolver alone ---- */

static void
test_many_names_few_threads(void **state)
{
    enum { N = 100 };
    struct kve_resolver *resolver = kve_resolver_create();
    struct kve_lookup *lookups[N];
    struct kve_addrs addrs;
    char why[120];
    int fds[2];
    char c;

    (void)state;
    kve_resolver_set_fn(resolver, look_up, &names);
    assert_int_equal(pipe(fds), 0);
    for (int i = 0; i < N; i++) {
        char name[32];

        (void)snprintf(
            name, sizeof(name), i % 2 == 0 ? "good-%d" : "bad-%d", i);
        assert_int_equal(
            kve_lookup_start(resolver, name, fds[1], &lookups[i], NULL),
            KVE_OK);
    }
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < 8; k++)
            assert_int_equal(read(fds[0], &c, 1), 1);
    }
    for (int i = 0; i < N; i++) {
        assert_true(kve_lookup_done(lookups[i], &addrs, why, sizeof(why)));
        assert_int_equal(addrs.n, i % 2 == 0 ? 1 : 0);
        assert_string_equal(why, i % 2 == 0 ? "" : "no such name here");
        kve_lookup_end(lookups[i]);
    }
    kve_resolver_destroy(resolver);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

/* One name, many who ask: it is looked up once; who gave up is not told. */
static void
test_one_look_up_for_all_who_ask(void **state)
{
    struct kve_resolver *resolver = kve_resolver_create();
    struct kve_lookup *lookups[10];
    struct kve_addrs addrs;
    char why[120];
    char c[8 * 10];
    int fds[2];

    (void)state;
    kve_resolver_set_fn(resolver, look_up, &names);
    assert_int_equal(pipe(fds), 0);
    unsigned asked = times_asked();
    for (int i = 0; i < 10; i++)
        assert_int_equal(kve_lookup_start(resolver, i % 2 ? "SLOW-1" : "slow-1",
                             fds[1], &lookups[i], NULL),
            KVE_OK);
    assert_false(kve_lookup_done(lookups[0], &addrs, why, sizeof(why)));
    for (int i = 0; i < 9; i++)
        kve_lookup_end(lookups[i]);
    open_gate(1);
    assert_int_equal(read(fds[0], c, sizeof(c)), 8);
    assert_true(kve_lookup_done(lookups[9], &addrs, why, sizeof(why)));
    assert_int_equal(addrs.n, 1);
    assert_int_equal(times_asked() - asked, 1);
    kve_lookup_end(lookups[9]);
    kve_lookup_end(NULL);
    kve_resolver_destroy(resolver);
    kve_resolver_destroy(NULL);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

static void
test_the_system_knows_localhost(void **state)
{
    struct kve_resolver *resolver = kve_resolver_create();
    struct kve_lookup *lookup;
    struct kve_addrs addrs;
    char why[120];
    char c[8];
    int fds[2];

    (void)state;
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(
        kve_lookup_start(resolver, "localhost", fds[1], &lookup, NULL), KVE_OK);
    assert_int_equal(read(fds[0], c, sizeof(c)), 8);
    assert_true(kve_lookup_done(lookup, &addrs, why, sizeof(why)));
    assert_true(addrs.n >= 1);
    for (size_t i = 0; i < addrs.n; i++)
        if (strcmp(addrs.text[i], "[::1]") != 0 &&
            strncmp(addrs.text[i], "127.", 4) != 0)
            fail_msg("localhost is %s", addrs.text[i]);
    kve_lookup_end(lookup);
    kve_resolver_destroy(resolver);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_name_delays_nobody),
        cmocka_unit_test(test_deadline_of_a_look_up),
        cmocka_unit_test(test_addresses_in_turn),
        cmocka_unit_test(test_bound_name),
        cmocka_unit_test(test_name_that_moves),
        cmocka_unit_test(test_name_with_an_impossible_address),
        cmocka_unit_test(test_no_socket_for_several_addresses),
        cmocka_unit_test(test_name_that_comes_late),
        cmocka_unit_test(test_refused_asks_no_more_than_it_tries),
        cmocka_unit_test(test_closing_does_not_wait),
        cmocka_unit_test(test_many_names_few_threads),
        cmocka_unit_test(test_one_look_up_for_all_who_ask),
        cmocka_unit_test(test_the_system_knows_localhost),
    };

    return cmocka_run_group_tests_name("transport/names", tests, NULL, NULL);
}
