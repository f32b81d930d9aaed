/*
 * Binding: ports in use, ports free again, ipc paths, addresses this machine
 * does not have.
 */
#include "peers.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

static void
test_taken_port_is_refused(void **state)
{
    struct kve_serve_opts opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_live_out *out = out_open(NULL, &opts);
    struct kve_live_out *second = NULL;
    struct kve_replay_serve *serve = NULL;
    struct kve_live_in *in = NULL;
    struct kve_error error = { 0 };

    (void)state;
    opts.endpoint = out_endpoint(out);
    assert_int_equal(
        zmq->live_out_open(NULL, &opts, &second, &error), KVE_E_IN_USE);
    assert_non_null(strstr(error.detail, opts.endpoint));
    assert_non_null(strstr(error.detail, "pipeline stage or rank"));
    assert_int_equal(
        zmq->replay_serve_open(NULL, &opts, &serve, &error), KVE_E_IN_USE);
    struct kve_dial_opts dial = dial_opts(opts.endpoint);
    dial.bind = KVE_BIND_YES;
    assert_int_equal(zmq->live_in_open(NULL, &dial, &in, &error), KVE_E_IN_USE);
    assert_null(second);
    assert_null(serve);
    assert_null(in);
    zmq->live_out_close(out, 0);
}

/* Closing returns when the port is free, in a context of its own or shared,
 * with a reader connected. */
static void
test_port_is_free_after_close(void **state)
{
    char endpoint[64];
    kve_context *shared;

    (void)state;
    (void)snprintf(
        endpoint, sizeof(endpoint), "tcp://127.0.0.1:%u", free_port());
    assert_int_equal(kve_context_create(NULL, &shared, NULL), KVE_OK);
    for (int i = 0; i < 200; i++) {
        kve_context *context = i % 2 == 0 ? shared : NULL;
        struct kve_serve_opts opts = serve_opts(endpoint);
        struct kve_error error = { 0 };
        struct kve_live_out *out = NULL;
        struct kve_replay_serve *serve = NULL;

        if (zmq->live_out_open(context, &opts, &out, &error) != KVE_OK)
            fail_msg("round %d: %s", i, error.detail);
        out_send(out, "t", 1, "x", 1);
        zmq->live_out_close(out, 0);

        opts.endpoint = endpoint;
        if (zmq->replay_serve_open(context, &opts, &serve, &error) != KVE_OK)
            fail_msg("round %d, replay: %s", i, error.detail);
        zmq->replay_serve_close(serve, 0);
    }
    kve_context_destroy(shared);
}

static void
test_port_is_free_with_readers(void **state)
{
    char endpoint[64];
    struct reader r;

    (void)state;
    (void)snprintf(
        endpoint, sizeof(endpoint), "tcp://127.0.0.1:%u", free_port());
    struct kve_serve_opts opts = serve_opts(endpoint);
    struct kve_live_out *out = out_open(NULL, &opts);
    struct kve_dial_opts dial = dial_opts(endpoint);
    dial.reconnect_ms = 1;
    reader_open(&r, NULL, &dial);
    for (int i = 0; i < 30; i++) {
        (void)out_send_until_read(out, &r, 0, 2000);
        zmq->live_out_close(out, 100);
        out = out_open(NULL, &opts);
    }
    reader_close(&r);
    zmq->live_out_close(out, 0);
}

static const struct {
    const char *endpoint;
    kve_status status;
} refused[] = {
    { "tcp://192.0.2.1:0", KVE_E_SYSTEM },
    { "tcp://[2001:db8::1]:0", KVE_E_SYSTEM },
    { "tcp://[fe80::1%nosuch0]:0", KVE_E_INVAL },
    { "tcp://[fe80::1%lo]:0", KVE_E_SYSTEM },
    { "ipc:///no/such/folder/kv", KVE_E_SYSTEM },
};

static void
test_addresses_of_others(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_OF(refused); i++) {
        struct kve_serve_opts opts = serve_opts(refused[i].endpoint);
        struct kve_error error = { 0 };
        struct kve_live_out *out = NULL;
        kve_status status = zmq->live_out_open(NULL, &opts, &out, &error);

        if (status != refused[i].status ||
            strstr(error.detail, refused[i].endpoint) == NULL)
            fail_msg("%s: %d %s", refused[i].endpoint, status, error.detail);
    }
}

static bool
exists(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0;
}

static void
test_ipc_path_is_locked(void **state)
{
    char folder[64];
    char endpoint[128];
    char lock[128];
    struct kve_live_out *second = NULL;
    struct kve_error error = { 0 };

    (void)state;
    make_folder(folder, sizeof(folder));
    (void)snprintf(endpoint, sizeof(endpoint), "ipc://%s/kv", folder);
    (void)snprintf(lock, sizeof(lock), "%s/kv.lock", folder);
    struct kve_serve_opts opts = serve_opts(endpoint);
    for (int i = 0; i < 20; i++) {
        struct kve_live_out *out = out_open(NULL, &opts);
        assert_true(exists(lock));
        assert_int_equal(
            zmq->live_out_open(NULL, &opts, &second, &error), KVE_E_IN_USE);
        assert_non_null(strstr(error.detail, lock));
        assert_true(exists(lock));
        zmq->live_out_close(out, 0);
        assert_false(exists(lock));
        assert_false(exists(endpoint + strlen("ipc://")));
    }
    remove_folder(folder);
}

/* A process that died holds nothing, and what it left is no hindrance. */
static void
test_ipc_path_of_a_dead_process(void **state)
{
    char folder[64];
    char endpoint[128];

    (void)state;
    make_folder(folder, sizeof(folder));
    (void)snprintf(endpoint, sizeof(endpoint), "ipc://%s/kv", folder);
    struct kve_serve_opts opts = serve_opts(endpoint);
    pid_t child = fork();
    if (child == 0) {
        struct kve_live_out *out = NULL;

        _exit(zmq->live_out_open(NULL, &opts, &out, NULL) == KVE_OK ? 0 : 1);
    }
    int status = 1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(exists(endpoint + strlen("ipc://")));
    zmq->live_out_close(out_open(NULL, &opts), 0);
    remove_folder(folder);
}

/* A program that knows nothing of the lock keeps its path too. */
static void
test_ipc_path_of_a_stranger(void **state)
{
    char folder[64];
    char endpoint[128];
    void *zmq_context = zmq_ctx_new();
    void *stranger = zmq_socket(zmq_context, ZMQ_PUB);
    struct kve_live_out *out = NULL;
    struct kve_error error = { 0 };

    (void)state;
    make_folder(folder, sizeof(folder));
    (void)snprintf(endpoint, sizeof(endpoint), "ipc://%s/kv", folder);
    struct kve_serve_opts opts = serve_opts(endpoint);
    assert_int_equal(zmq_bind(stranger, endpoint), 0);
    assert_int_equal(
        zmq->live_out_open(NULL, &opts, &out, &error), KVE_E_IN_USE);
    assert_non_null(strstr(error.detail, "another program"));
    assert_true(exists(endpoint + strlen("ipc://")));
    (void)zmq_close(stranger);
    (void)zmq_ctx_term(zmq_context);
    zmq->live_out_close(out_open(NULL, &opts), 0);
    remove_folder(folder);
}

static void
test_inproc_name_in_use(void **state)
{
    struct kve_serve_opts opts = serve_opts("inproc://kv");
    struct kve_live_out *second = NULL;
    kve_context *context;

    (void)state;
    assert_int_equal(kve_context_create(NULL, &context, NULL), KVE_OK);
    for (int i = 0; i < 20; i++) {
        struct kve_live_out *out = out_open(context, &opts);
        assert_int_equal(
            zmq->live_out_open(context, &opts, &second, NULL), KVE_E_IN_USE);
        zmq->live_out_close(out, 0);
    }
    kve_context_destroy(context);
}

/* What is no socket is somebody's file: it stays. */
static void
test_ipc_path_of_a_file(void **state)
{
    char folder[64];
    char endpoint[128];
    struct kve_error error = { 0 };
    struct kve_live_out *out = NULL;
    FILE *file;

    (void)state;
    make_folder(folder, sizeof(folder));
    (void)snprintf(endpoint, sizeof(endpoint), "ipc://%s/notes", folder);
    struct kve_serve_opts opts = serve_opts(endpoint);
    file = fopen(endpoint + strlen("ipc://"), "w");
    assert_non_null(file);
    (void)fclose(file);
    assert_int_equal(
        zmq->live_out_open(NULL, &opts, &out, &error), KVE_E_INVAL);
    assert_non_null(strstr(error.detail, endpoint));
    assert_true(exists(endpoint + strlen("ipc://")));
    remove_folder(folder);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_taken_port_is_refused),
        cmocka_unit_test(test_port_is_free_after_close),
        cmocka_unit_test(test_port_is_free_with_readers),
        cmocka_unit_test(test_addresses_of_others),
        cmocka_unit_test(test_ipc_path_is_locked),
        cmocka_unit_test(test_ipc_path_of_a_dead_process),
        cmocka_unit_test(test_ipc_path_of_a_stranger),
        cmocka_unit_test(test_ipc_path_of_a_file),
        cmocka_unit_test(test_inproc_name_in_use),
    };

    return cmocka_run_group_tests_name("transport/bind", tests, NULL, NULL);
}
