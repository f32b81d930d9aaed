/*
 * CURVE: who gets in, what is told to who does not, which options are refused.
 */
#include "peers.h"

#include "transport/sock.h"

#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

struct keys {
    char public_key[41];
    char secret_key[41];
};

static struct keys server;
static struct keys friend;
static struct keys stranger;

static int
make_keys(void **state)
{
    struct keys *all[] = { &server, &friend, &stranger };

    (void)state;
    for (size_t i = 0; i < N_OF(all); i++)
        if (zmq_curve_keypair(all[i]->public_key, all[i]->secret_key) != 0)
            return -1;
    return 0;
}

static struct kve_curve
server_curve(void)
{
    return (struct kve_curve){ NULL, server.public_key, server.secret_key };
}

static struct kve_curve
client_curve(const struct keys *keys)
{
    return (struct kve_curve){ server.public_key, keys->public_key,
        keys->secret_key };
}

/* A file with the friend's key, and noise that is allowed. */
static void
write_allow_file(const char *path, const char *last_line)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    (void)fprintf(file, "# who may read\n\n  %s   # a friend\n\t\r\n#%s\n%s",
        friend.public_key, stranger.public_key, last_line);
    (void)fclose(file);
}

static kve_context *
context_with_door_keeper(const char *path)
{
    struct kve_context_opts opts = KVE_CONTEXT_OPTS_INIT;
    struct kve_error error = { 0 };
    kve_context *context = NULL;

    opts.curve_allow = path;
    if (kve_context_create(&opts, &context, &error) != KVE_OK)
        fail_msg("context: %s", error.detail);
    return context;
}

static struct kve_live_out *
curve_out(kve_context *context)
{
    struct kve_serve_opts opts = serve_opts("tcp://127.0.0.1:0");

    opts.curve = server_curve();
    return out_open(context, &opts);
}

static void
expect(struct kve_live_out *out, const struct kve_curve *curve, bool allowed)
{
    struct kve_dial_opts opts = dial_opts(out_endpoint(out));
    struct reader r;

    if (curve != NULL)
        opts.curve = *curve;
    reader_open(&r, NULL, &opts);
    if (allowed) {
        assert_true(reader_await_event(&r, KVE_LINK_CONNECTED, 2000));
        (void)out_send_until_read(out, &r, 0, 2000);
    } else {
        assert_true(reader_await_event(&r, KVE_LINK_REFUSED, 2000));
        out_send(out, "t", 0, "x", 1);
        assert_false(reader_await_message(&r, 50));
        assert_int_equal(r.seen[KVE_LINK_CONNECTED], 0);
    }
    reader_close(&r);
}

static void
test_only_friends_get_in(void **state)
{
    char folder[64];
    char path[128];

    (void)state;
    make_folder(folder, sizeof(folder));
    (void)snprintf(path, sizeof(path), "%s/allow", folder);
    write_allow_file(path, "");
    kve_context *context = context_with_door_keeper(path);
    struct kve_live_out *out = curve_out(context);
    struct kve_curve known = client_curve(&friend);
    struct kve_curve unknown = client_curve(&stranger);

    expect(out, &known, true);
    expect(out, &unknown, false);
    expect(out, NULL, false);
    expect(out, &known, true);
    zmq->live_out_close(out, 0);
    kve_context_destroy(context);
    remove_folder(folder);
}

/* Without a list CURVE lets anyone in who knows the server's key. */
static void
test_without_a_list(void **state)
{
    struct kve_live_out *out = curve_out(NULL);
    struct kve_curve known = client_curve(&stranger);
    struct kve_curve wrong_server = client_curve(&stranger);

    (void)state;
    wrong_server.server_key = friend.public_key;
    expect(out, &known, true);
    expect(out, NULL, false);
    struct kve_dial_opts opts = dial_opts(out_endpoint(out));
    struct reader r;
    opts.curve = wrong_server;
    reader_open(&r, NULL, &opts);
    assert_false(reader_await_message(&r, 300));
    assert_int_equal(r.seen[KVE_LINK_CONNECTED], 0);
    reader_close(&r);
    zmq->live_out_close(out, 0);
}

/* A client with keys does not talk to a server without. */
static void
test_client_insists(void **state)
{
    struct kve_serve_opts opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_live_out *out = out_open(NULL, &opts);
    struct kve_curve curve = client_curve(&friend);

    (void)state;
    expect(out, &curve, false);
    zmq->live_out_close(out, 0);
}

static void
test_replay_and_limits(void **state)
{
    enum { LIMIT = 5000 };
    struct kve_serve_opts opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_replay_serve *serve = NULL;
    struct kve_replay_ask *ask = NULL;
    struct kve_payload *payload = kve_payload_create(NULL, LIMIT, NULL);
    struct kve_replay_request request;
    struct kve_msg msg = { 0 };

    (void)state;
    memset(payload->data, 1, LIMIT);
    opts.curve = server_curve();
    opts.max_request_len = 8;
    assert_int_equal(zmq->replay_serve_open(NULL, &opts, &serve, NULL), KVE_OK);
    struct kve_dial_opts ask_opts =
        dial_opts(zmq->replay_serve_endpoint(serve));
    ask_opts.curve = client_curve(&friend);
    ask_opts.max_body_len = LIMIT;
    assert_int_equal(
        zmq->replay_ask_open(NULL, &ask_opts, 3, &ask, NULL), KVE_OK);
    assert_true(serve_await(serve, &request, 2000));
    assert_int_equal(request.start.len, 8);
    assert_int_equal(zmq->replay_serve_send(serve, request.peer,
                         request.peer_len, true, span("t"), 3, payload, NULL),
        KVE_IO_OK);
    /* Encryption makes frames longer; the limit is the body's. */
    assert_true(ask_await(ask, &msg, 2000));
    assert_int_equal(msg.frame[3].len, LIMIT);
    kve_msg_release(&msg);
    zmq->replay_ask_close(ask);
    zmq->replay_serve_close(serve, 0);
    kve_payload_unref(payload);
}

static void
test_bad_keys(void **state)
{
    static const char *const bad[] = { NULL, "", "short",
        "0123456789012345678901234567890123456789x",
        "\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\""
        "\""
        "\"\"\"\"" };

    (void)state;
    for (size_t i = 0; i < N_OF(bad); i++)
        for (size_t which = 0; which < 3; which++) {
            struct kve_curve curve = client_curve(&friend);
            const char **keys[] = { &curve.server_key, &curve.public_key,
                &curve.secret_key };
            static const char *const names[] = { "curve.server_key",
                "curve.public_key", "curve.secret_key" };
            struct kve_dial_opts opts = dial_opts("tcp://127.0.0.1:1");
            struct kve_serve_opts out_opts = serve_opts("tcp://127.0.0.1:0");
            struct kve_error error = { 0 };
            struct kve_live_in *in = NULL;
            struct kve_live_out *out = NULL;

            *keys[which] = bad[i];
            opts.curve = curve;
            assert_int_equal(
                zmq->live_in_open(NULL, &opts, &in, &error), KVE_E_INVAL);
            assert_non_null(strstr(error.detail, names[which]));
            if (bad[i] != NULL && strlen(bad[i]) > 3)
                assert_null(strstr(error.detail, bad[i]));
            if (which == 0)
                continue;
            out_opts.curve = curve;
            assert_int_equal(
                zmq->live_out_open(NULL, &out_opts, &out, &error), KVE_E_INVAL);
            assert_non_null(strstr(error.detail, names[which]));
        }
}

/* Two good keys that do not belong together. */
static void
test_keys_of_two_pairs(void **state)
{
    struct kve_serve_opts opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_dial_opts ask_opts = dial_opts("tcp://127.0.0.1:1");
    struct kve_error error = { 0 };
    struct kve_live_out *out = NULL;
    struct kve_replay_ask *ask = NULL;

    (void)state;
    opts.curve = server_curve();
    opts.curve.secret_key = friend.secret_key;
    assert_int_equal(
        zmq->live_out_open(NULL, &opts, &out, &error), KVE_E_INVAL);
    assert_non_null(strstr(error.detail, "one pair"));
    assert_null(strstr(error.detail, friend.secret_key));
    ask_opts.curve = client_curve(&friend);
    ask_opts.curve.public_key = stranger.public_key;
    assert_int_equal(
        zmq->replay_ask_open(NULL, &ask_opts, 0, &ask, &error), KVE_E_INVAL);
}

static void
test_bad_lists(void **state)
{
    char folder[64];
    char path[128];
    struct kve_context_opts opts = KVE_CONTEXT_OPTS_INIT;
    struct kve_error error = { 0 };
    kve_context *context = NULL;

    (void)state;
    make_folder(folder, sizeof(folder));
    (void)snprintf(path, sizeof(path), "%s/allow", folder);
    opts.curve_allow = path;
    assert_int_equal(kve_context_create(&opts, &context, &error), KVE_E_SYSTEM);
    assert_non_null(strstr(error.detail, path));

    write_allow_file(path, "not a key\n");
    assert_int_equal(kve_context_create(&opts, &context, &error), KVE_E_INVAL);
    assert_non_null(strstr(error.detail, "line 6"));

    /* Two door keepers in one ZeroMQ context. */
    write_allow_file(path, friend.public_key);
    opts.zmq_context = zmq_ctx_new();
    assert_int_equal(kve_context_create(&opts, &context, &error), KVE_OK);
    kve_context *second = NULL;
    assert_int_equal(kve_context_create(&opts, &second, &error), KVE_E_IN_USE);
    assert_non_null(strstr(error.detail, "ZAP"));
    assert_null(second);
    kve_context_destroy(context);
    (void)zmq_ctx_term(opts.zmq_context);
    remove_folder(folder);
}

/* Many keys, so that the list grows. */
static void
test_long_list(void **state)
{
    char folder[64];
    char path[128];
    struct keys keys;

    (void)state;
    make_folder(folder, sizeof(folder));
    (void)snprintf(path, sizeof(path), "%s/allow", folder);
    write_allow_file(path, "");
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    for (int i = 0; i < 99; i++) {
        uint8_t key[32];

        for (size_t k = 0; k < sizeof(key); k++)
            key[k] = (uint8_t)(i * 37 + (int)k);
        char text[41];
        assert_non_null(zmq_z85_encode(text, key, sizeof(key)));
        (void)fprintf(file, "%s # %0300d\n", text, i);
    }
    assert_int_equal(zmq_curve_keypair(keys.public_key, keys.secret_key), 0);
    (void)fprintf(file, "%s", keys.public_key);
    (void)fclose(file);

    kve_context *context = context_with_door_keeper(path);
    struct kve_live_out *out = curve_out(context);
    struct kve_curve first = client_curve(&friend);
    struct kve_curve last = client_curve(&keys);
    struct kve_curve unknown = client_curve(&stranger);
    expect(out, &first, true);
    expect(out, &last, true);
    expect(out, &unknown, false);
    zmq->live_out_close(out, 0);
    kve_context_destroy(context);
    remove_folder(folder);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_friends_get_in),
        cmocka_unit_test(test_without_a_list),
        cmocka_unit_test(test_client_insists),
        cmocka_unit_test(test_replay_and_limits),
        cmocka_unit_test(test_bad_keys),
        cmocka_unit_test(test_keys_of_two_pairs),
        cmocka_unit_test(test_bad_lists),
        cmocka_unit_test(test_long_list),
    };

    return cmocka_run_group_tests_name(
        "transport/curve", tests, make_keys, NULL);
}
