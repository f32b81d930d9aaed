/*
 * The context: options, references, limits, log, fork; and every allocation
 * of the transport failing once.
 */
#include "peers.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <kvevents/version.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

static void
test_options(void **state)
{
    struct kve_context_opts opts;
    struct kve_error error = { 0 };
    kve_context *context = NULL;

    (void)state;
    kve_context_opts_init(&opts);
    assert_int_equal(opts.struct_size, sizeof(opts));
    assert_int_equal(kve_context_create(&opts, &context, &error), KVE_OK);
    kve_context_destroy(context);
    kve_context_destroy(NULL);

    context = NULL;
    opts.io_threads = 65;
    assert_int_equal(kve_context_create(&opts, &context, &error), KVE_E_INVAL);
    assert_non_null(strstr(error.detail, "io_threads is 65"));
    opts.io_threads = 2;
    opts.max_sources = 1000001;
    assert_int_equal(kve_context_create(&opts, &context, &error), KVE_E_INVAL);
    assert_non_null(strstr(error.detail, "max_sources"));
    opts.max_sources = 0;
    opts.struct_size = 3;
    assert_int_equal(kve_context_create(&opts, &context, &error), KVE_E_INVAL);
    assert_null(context);

    /* A library newer than the caller, and a caller newer than the library. */
    struct {
        struct kve_context_opts opts;
        uint64_t more;
    } newer = { { 0 }, 0 };
    newer.opts.struct_size = sizeof(newer);
    assert_int_equal(kve_context_create(&newer.opts, &context, &error), KVE_OK);
    kve_context_destroy(context);
    newer.more = 1;
    assert_int_equal(
        kve_context_create(&newer.opts, &context, &error), KVE_E_INVAL);
    assert_non_null(strstr(error.detail, "newer libkvevents"));
}

static void
test_zmq_version(void **state)
{
    int major;
    int minor;
    int patch;
    char want[40];

    (void)state;
    zmq_version(&major, &minor, &patch);
    (void)snprintf(want, sizeof(want), "%d.%d.%d", major, minor, patch);
    assert_string_equal(kve_zmq_version(), want);
}

/* The caller's ZeroMQ context is used, and not ended. */
static void
test_callers_zmq_context(void **state)
{
    struct kve_context_opts opts = KVE_CONTEXT_OPTS_INIT;
    struct kve_dial_opts in_opts = dial_opts("inproc://mine");
    kve_context *context = NULL;
    struct reader r;

    (void)state;
    opts.zmq_context = zmq_ctx_new();
    void *pub = zmq_socket(opts.zmq_context, ZMQ_PUB);
    assert_int_equal(zmq_bind(pub, "inproc://mine"), 0);
    assert_int_equal(kve_context_create(&opts, &context, NULL), KVE_OK);
    assert_ptr_equal(kve_context_zmq(context), opts.zmq_context);
    reader_open(&r, context, &in_opts);
    assert_int_equal(zmq_send(pub, "hello", 5, 0), 5);
    assert_true(reader_await_message(&r, 1000));
    assert_int_equal(r.msg.frame[0].len, 5);
    reader_close(&r);
    kve_context_destroy(context);
    assert_int_equal(zmq_send(pub, "hello", 5, 0), 5);
    (void)zmq_close(pub);
    assert_int_equal(zmq_ctx_term(opts.zmq_context), 0);

    opts.zmq_context = (void *)&opts;
    opts.io_threads = 1;
    assert_int_equal(kve_context_create(&opts, &context, NULL), KVE_E_INVAL);
}

/* A context ends with the last who refers to it. */
static void
test_references(void **state)
{
    struct kve_serve_opts opts = serve_opts("tcp://127.0.0.1:0");
    kve_context *context;
    kve_context *second;

    (void)state;
    assert_int_equal(kve_context_create(NULL, &context, NULL), KVE_OK);
    struct kve_live_out *out = out_open(context, &opts);
    assert_int_equal(kve_context_ref(context, 1, &second, NULL), KVE_OK);
    assert_ptr_equal(second, context);
    kve_context_unref(second);
    kve_context_destroy(context);
    out_send(out, "t", 0, "x", 1);
    zmq->live_out_close(out, 0);
}

/* A thousand sources: sockets and descriptors are there for them. */
static void
test_a_thousand_sources(void **state)
{
    enum { N = 1000 };
    struct kve_context_opts opts = KVE_CONTEXT_OPTS_INIT;
    struct kve_serve_opts out_opts = serve_opts("tcp://127.0.0.1:0");
    static struct reader readers[N];
    struct rlimit before;
    struct rlimit low;
    kve_context *context;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    if (before.rlim_max < 16384) {
        print_message("skipped: only %llu open files are allowed here\n",
            (unsigned long long)before.rlim_max);
        return;
    }
    low = before;
    low.rlim_cur = 1024;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    opts.max_sources = N;
    assert_int_equal(kve_context_create(&opts, &context, NULL), KVE_OK);
    struct kve_live_out *out = out_open(context, &out_opts);
    struct kve_dial_opts in_opts = dial_opts(out_endpoint(out));
    for (int i = 0; i < N; i++)
        reader_open(&readers[i], context, &in_opts);
    for (int i = 0; i < N; i++)
        assert_true(reader_await_event(&readers[i], KVE_LINK_CONNECTED, 5000));
    for (int i = 0; i < N; i++)
        reader_close(&readers[i]);
    zmq->live_out_close(out, 0);
    kve_context_destroy(context);
    (void)setrlimit(RLIMIT_NOFILE, &before);
}

/* One more than there is room for is refused with what to do about it. */
static void
test_too_many_sockets(void **state)
{
    void *zmq_context = zmq_ctx_new();
    struct kve_context_opts opts = KVE_CONTEXT_OPTS_INIT;
    struct kve_dial_opts in_opts = dial_opts("tcp://127.0.0.1:1");
    struct kve_error error = { 0 };
    struct reader readers[4];
    kve_context *context;
    struct kve_live_in *in = NULL;

    (void)state;
    assert_int_equal(zmq_ctx_set(zmq_context, ZMQ_MAX_SOCKETS, 13), 0);
    opts.zmq_context = zmq_context;
    assert_int_equal(kve_context_create(&opts, &context, NULL), KVE_OK);
    for (int i = 0; i < 4; i++)
        reader_open(&readers[i], context, &in_opts);
    assert_int_equal(
        zmq->live_in_open(context, &in_opts, &in, &error), KVE_E_LIMIT);
    assert_non_null(strstr(error.detail, "max_sources"));
    assert_null(in);
    for (int i = 0; i < 4; i++)
        reader_close(&readers[i]);
    kve_context_destroy(context);
    assert_int_equal(zmq_ctx_term(zmq_context), 0);
}

/* ---- log ---- */

static char last_line[600];
static unsigned n_lines;

static void
keep_line(void *ctx, enum kve_log_level level, const char *line)
{
    *(enum kve_log_level *)ctx = level;
    (void)snprintf(last_line, sizeof(last_line), "%s", line);
    n_lines++;
}

static void
test_log(void **state)
{
    struct kve_context_opts opts = KVE_CONTEXT_OPTS_INIT;
    struct kve_serve_opts out_opts = serve_opts("tcp://127.0.0.1:0");
    enum kve_log_level level = 0;
    kve_context *context;

    (void)state;
    opts.log = keep_line;
    opts.log_ctx = &level;
    assert_int_equal(kve_context_create(&opts, &context, NULL), KVE_OK);
    kve_context_log(context, KVE_LOG_ERROR, "a\nb %d", 5);
    assert_string_equal(last_line, "a?b 5");
    assert_int_equal(level, KVE_LOG_ERROR);
    kve_context_log(context, KVE_LOG_DEBUG, "%01000d", 1);
    assert_int_equal(strlen(last_line), 511);

    /* Whether an end binds or connects is said. */
    n_lines = 0;
    struct kve_live_out *out = out_open(context, &out_opts);
    assert_int_equal(n_lines, 1);
    assert_non_null(strstr(last_line, "bound tcp://127.0.0.1:"));
    struct kve_dial_opts in_opts = dial_opts(out_endpoint(out));
    struct reader r;
    reader_open(&r, context, &in_opts);
    assert_non_null(strstr(last_line, "connecting to tcp://127.0.0.1:"));
    reader_close(&r);
    zmq->live_out_close(out, 0);
    kve_context_destroy(context);
}

/* ---- fork ---- */

/* A child destroys what it inherited and ends; the parent goes on. */
static void
test_fork(void **state)
{
    struct kve_serve_opts out_opts = serve_opts("tcp://127.0.0.1:0");
    kve_context *context;
    struct kve_replay_serve *serve = NULL;
    struct kve_replay_ask *ask = NULL;
    struct reader r;
    struct reader bound;
    char folder[64];
    char ipc[128];

    (void)state;
    make_folder(folder, sizeof(folder));
    (void)snprintf(ipc, sizeof(ipc), "ipc://%s/kv", folder);
    assert_int_equal(kve_context_create(NULL, &context, NULL), KVE_OK);
    assert_false(kve_context_forked(context));
    struct kve_live_out *out = out_open(context, &out_opts);
    struct kve_dial_opts in_opts = dial_opts(out_endpoint(out));
    reader_open(&r, context, &in_opts);
    (void)out_send_until_read(out, &r, 0, 2000);
    struct kve_dial_opts bound_opts = dial_opts(ipc);
    bound_opts.bind = KVE_BIND_YES;
    reader_open(&bound, context, &bound_opts);
    assert_int_equal(
        zmq->replay_serve_open(context, &out_opts, &serve, NULL), KVE_OK);
    in_opts.endpoint = zmq->replay_serve_endpoint(serve);
    assert_int_equal(
        zmq->replay_ask_open(context, &in_opts, 0, &ask, NULL), KVE_OK);

    pid_t child = fork();
    if (child == 0) {
        kve_context *other = NULL;
        struct kve_error error = { 0 };
        bool right = kve_context_forked(context) &&
            kve_context_ref(context, 1, &other, &error) == KVE_E_FORKED &&
            other == NULL;

        (void)alarm(10);
        reader_close(&r);
        reader_close(&bound);
        zmq->live_out_close(out, 1000);
        zmq->replay_ask_close(ask);
        zmq->replay_serve_close(serve, 1000);
        kve_context_destroy(context);
        /* A child can have its own. */
        right = right && kve_context_create(NULL, &other, NULL) == KVE_OK &&
            !kve_context_forked(other);
        kve_context_destroy(other);
        _exit(right ? 0 : 1);
    }
    int status = 1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_false(kve_context_forked(context));
    assert_int_equal(access(ipc + strlen("ipc://"), F_OK), 0);
    (void)out_send_until_read(out, &r, 100, 2000);

    reader_close(&r);
    reader_close(&bound);
    zmq->live_out_close(out, 0);
    zmq->replay_ask_close(ask);
    zmq->replay_serve_close(serve, 0);
    kve_context_destroy(context);
    remove_folder(folder);
}

/* ---- payloads ---- */

static void *
let_go_of_many(void *arg)
{
    for (int i = 0; i < 10000; i++) {
        kve_payload_unref(kve_payload_ref(arg));
        sched_yield();
    }
    kve_payload_unref(arg);
    return NULL;
}

static void
test_payloads(void **state)
{
    int64_t live = kve_mem_live();
    struct kve_out_gauge *gauge = kve_out_gauge_create();
    struct kve_payload *payload = kve_payload_create("bytes", 5, gauge);
    pthread_t threads[4];

    (void)state;
    assert_int_equal(payload->len, 5);
    assert_int_equal(payload->flags, 0);
    assert_memory_equal(payload->data, "bytes", 5);
    assert_int_equal(atomic_load(&gauge->refs), 2);
    assert_null(kve_payload_create("", SIZE_MAX, gauge));
    for (size_t i = 0; i < N_OF(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, let_go_of_many,
                             kve_payload_ref(payload)),
            0);
    kve_payload_unref(payload);
    /* The gauge outlives its owner. */
    kve_out_gauge_unref(gauge);
    for (size_t i = 0; i < N_OF(threads); i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    kve_payload_unref(NULL);
    kve_out_gauge_unref(NULL);
    assert_int_equal(kve_mem_live(), live);
}

/* ---- no memory ---- */

/* One round of everything; true when all of it worked. */
static bool
all_roles(struct kve_error *err)
{
    kve_context *context = NULL;
    struct kve_live_out *out = NULL;
    struct kve_live_in *in = NULL;
    struct kve_live_in *named = NULL;
    struct kve_replay_serve *serve = NULL;
    struct kve_replay_ask *ask = NULL;
    struct kve_serve_opts opts = serve_opts("tcp://127.0.0.1:0");
    struct kve_dial_opts dial = dial_opts("tcp://127.0.0.1:1");
    struct kve_dial_opts name = dial_opts("tcp://localhost:1");
    struct kve_serve_opts connect = serve_opts("tcp://127.0.0.1:1");
    struct kve_live_out *connecting = NULL;
    bool changed;
    bool all = kve_context_create(NULL, &context, err) == KVE_OK &&
        zmq->live_out_open(context, &opts, &out, err) == KVE_OK &&
        zmq->replay_serve_open(context, &opts, &serve, err) == KVE_OK &&
        zmq->live_in_open(context, &dial, &in, err) == KVE_OK &&
        zmq->replay_ask_open(context, &dial, 0, &ask, err) == KVE_OK &&
        zmq->live_in_open(context, &name, &named, err) == KVE_OK &&
        zmq->live_in_step(named, kve_now_ns(), &changed, err) == KVE_OK;

    connect.bind = KVE_BIND_NO;
    all = all &&
        zmq->live_out_open(context, &connect, &connecting, err) == KVE_OK;
    zmq->live_out_close(connecting, 0);
    zmq->live_in_close(named);
    zmq->live_in_close(in);
    zmq->replay_ask_close(ask);
    zmq->replay_serve_close(serve, 0);
    zmq->live_out_close(out, 0);
    kve_context_destroy(context);
    return all;
}

static void
test_every_allocation_fails_once(void **state)
{
    struct kve_error error = { 0 };
    unsigned failures = 0;

    (void)state;
    assert_true(all_roles(&error));
    for (uint64_t n = 1;; n++) {
        int64_t live = kve_mem_live();

        memset(&error, 0, sizeof(error));
        kve_mem_fail_at(n, false);
        bool all = all_roles(&error);
        bool failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        assert_int_equal(kve_mem_live(), live);
        if (!failed) {
            assert_true(all);
            break;
        }
        /* A look-up that cannot be begun is tried again later. */
        if (!all) {
            assert_int_equal(error.status, KVE_E_NOMEM);
            failures++;
        }
    }
    assert_true(failures >= 6);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_zmq_version),
        cmocka_unit_test(test_callers_zmq_context),
        cmocka_unit_test(test_references),
        cmocka_unit_test(test_a_thousand_sources),
        cmocka_unit_test(test_too_many_sockets),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_payloads),
        cmocka_unit_test(test_every_allocation_fails_once),
    };

    return cmocka_run_group_tests_name("transport/context", tests, NULL, NULL);
}
