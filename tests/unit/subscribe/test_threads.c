/*
 * ctest-timeout: 120
 *
 * test_threads.c - the library's own threads: the same batches as without, and
 * what a caller may do from where.
 */
#include "rig.h"

#include "base/alloc.h"
#include "subscribe/set.h"
#include "transport/context.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct reader *
open_threads(uint32_t threads)
{
    struct kve_sub_opts opts = KVE_SUB_OPTS_INIT;

    opts.threads = threads;
    return reader_open(&opts);
}

static kve_source_id
follow(struct reader *r, const struct peer *p, bool replay)
{
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;

    opts.endpoint = p->live;
    opts.replay_endpoint = replay ? p->replay : NULL;
    opts.tail_probe_ms = 100;
    return reader_add(r, &opts);
}

/* What is not for these: poll and the descriptor. */
static void
test_not_polled(void **state)
{
    struct kve_error err;

    (void)state;
    struct reader *r = open_threads(2);
    assert_int_equal(kve_sub_poll(r->sub, 0, 0, NULL, &err), KVE_E_INVAL);
    assert_non_null(strstr(err.detail, "threads"));
    assert_int_equal(kve_sub_fd(r->sub), -1);
    kve_sub_wake(r->sub);
    kve_sub_stop(r->sub);
    kve_sub_stop(r->sub);
    kve_source_id id;
    assert_int_equal(kve_sub_add(r->sub, NULL, &id, NULL), KVE_E_CLOSED);
    reader_close(r);
}

static uint64_t thread_of[RIG_SOURCES];
static atomic_int strayed;

/* A source stays with one thread, which takes no signals. */
static int
check_thread(struct reader *r, const struct kve_delivery *d)
{
    uint64_t self = (uint64_t)pthread_self();
    sigset_t blocked;

    (void)r;
    if (thread_of[d->source] == 0)
        thread_of[d->source] = self;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    if (thread_of[d->source] != self || !sigismember(&blocked, SIGTERM))
        atomic_fetch_add(&strayed, 1);
    return 0;
}

/* Several sources, gaps and repairs, over two threads. */
static void
test_many_sources(void **state)
{
    enum { PEERS = 6, N = 60 };
    struct peer peers[PEERS];
    kve_source_id ids[PEERS];
    size_t others = 0;

    (void)state;
    memset(thread_of, 0, sizeof(thread_of));
    atomic_store(&strayed, 0);
    struct reader *r = open_threads(2);
    r->on_batch = check_thread;
    for (size_t i = 0; i < PEERS; i++) {
        peer_open(&peers[i]);
        ids[i] = follow(r, &peers[i], true);
    }
#define SERVE_ALL                         \
    for (size_t k_ = 0; k_ < PEERS; k_++) \
    peer_serve(&peers[k_])
    for (size_t i = 0; i < PEERS; i++)
        RUN_UNTIL(r, SERVE_ALL, reader_info(r, ids[i]).state == KVE_STATE_LIVE);
    for (uint64_t n = 0; n < N; n++)
        for (size_t i = 0; i < PEERS; i++) {
            peers[i].next = n + 1;
            if (n % 10 != i)
                peer_live(&peers[i], n);
        }
    RUN_UNTIL(r, SERVE_ALL, reader_n(r) == PEERS * N);
    for (size_t i = 0; i < PEERS; i++) {
        RUN_UNTIL(r, SERVE_ALL, reader_info(r, ids[i]).state == KVE_STATE_LIVE);
        assert_int_equal(r->of[ids[i]], N);
        assert_int_equal(reader_info(r, ids[i]).last_number, N - 1);
        assert_int_equal(reader_counter(r, ids[i], KVE_COUNTER_SUB_BATCHES), N);
        assert_int_equal(reader_counter(r, ids[i], KVE_COUNTER_SUB_LOST), 0);
        others += thread_of[ids[i]] != thread_of[ids[0]];
    }
    assert_int_equal(atomic_load(&strayed), 0);
    assert_int_equal(others, PEERS / 2); /* spread evenly */
    reader_close(r);
    for (size_t i = 0; i < PEERS; i++)
        peer_close(&peers[i]);
}

/* ---- remove -------------------------------------------------------- */

static atomic_bool inside;
static atomic_bool let_go;
static atomic_int calls;

static int
stay_inside(struct reader *r, const struct kve_delivery *d)
{
    (void)r;
    (void)d;
    atomic_fetch_add(&calls, 1);
    atomic_store(&inside, true);
    while (!atomic_load(&let_go))
        usleep(1000);
    usleep(20000);
    atomic_store(&inside, false);
    return 0;
}

static void *
let_go_soon(void *arg)
{
    (void)arg;
    usleep(100000);
    atomic_store(&let_go, true);
    return NULL;
}

/* Removing waits for the callback that runs, and after it nothing comes. */
static void
test_remove_waits(void **state)
{
    struct peer p;
    pthread_t thread;

    (void)state;
    atomic_store(&inside, false);
    atomic_store(&let_go, false);
    atomic_store(&calls, 0);
    peer_open(&p);
    p.next = 50;
    struct reader *r = open_threads(1);
    r->on_batch = stay_inside;
    kve_source_id id = follow(r, &p, true);
    RUN_UNTIL(r, peer_serve(&p), atomic_load(&inside));
    pthread_create(&thread, NULL, let_go_soon, NULL);
    assert_int_equal(kve_sub_remove(r->sub, id), KVE_OK);
    assert_true(atomic_load(&let_go));
    assert_false(atomic_load(&inside));
    int then = atomic_load(&calls);
    usleep(100000);
    assert_int_equal(atomic_load(&calls), then);
    assert_int_equal(kve_sub_remove(r->sub, id), KVE_E_NOT_FOUND);
    pthread_join(thread, NULL);
    RUN_UNTIL(r, (void)0,
        reader_counter(r, 0, KVE_COUNTER_SUB_BATCHES) == (uint64_t)then);
    reader_close(r);
    peer_close(&p);
}

/* The callback of another source that takes its time does not keep a remover
 * waiting, though it runs on the same thread. */
static int
stay_if_first(struct reader *r, const struct kve_delivery *d)
{
    return d->user != NULL ? stay_inside(r, d) : 0;
}

static void
test_remove_of_another(void **state)
{
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct peer p;

    (void)state;
    atomic_store(&inside, false);
    atomic_store(&let_go, false);
    peer_open(&p);
    p.next = 1;
    struct reader *r = open_threads(1);
    r->on_batch = stay_if_first;
    kve_source_id idle = follow(r, &p, false);
    opts.endpoint = p.live;
    opts.replay_endpoint = p.replay;
    opts.user = r;
    reader_add(r, &opts);
    RUN_UNTIL(r, peer_serve(&p), atomic_load(&inside));
    assert_int_equal(kve_sub_remove(r->sub, idle), KVE_OK);
    assert_false(atomic_load(&let_go));
    assert_true(atomic_load(&inside));
    atomic_store(&let_go, true);
    reader_close(r);
    peer_close(&p);
}

/* Callbacks of two threads remove each other's source, at the same time. */
struct pair {
    atomic_uint id[2]; /* sources */
    pthread_barrier_t both;
    atomic_int removed;
};

static int
remove_other(struct reader *r, const struct kve_delivery *d)
{
    struct pair *pair = r->more;

    pthread_barrier_wait(&pair->both);
    kve_source_id other = atomic_load(&pair->id[0]);
    if (d->source == other)
        other = atomic_load(&pair->id[1]);
    if (kve_sub_remove(r->sub, other) == KVE_OK)
        atomic_fetch_add(&pair->removed, 1);
    return 0;
}

static void
test_remove_each_other(void **state)
{
    struct peer peers[2];
    struct pair pair;

    (void)state;
    for (int round = 0; round < 5; round++) {
        memset(&pair, 0, sizeof(pair));
        pthread_barrier_init(&pair.both, NULL, 2);
        struct reader *r = open_threads(2);
        r->on_batch = remove_other;
        r->more = &pair;
        for (int i = 0; i < 2; i++) {
            peer_open(&peers[i]);
            atomic_store(&pair.id[i], follow(r, &peers[i], true));
        }
        for (int i = 0; i < 2; i++)
            peers[i].next = 1;
        RUN_UNTIL(
            r,
            {
                peer_serve(&peers[0]);
                peer_serve(&peers[1]);
            },
            atomic_load(&pair.removed) == 2);
        RUN_UNTIL(r, (void)0, reader_n(r) == 2);
        reader_close(r);
        pthread_barrier_destroy(&pair.both);
        peer_close(&peers[0]);
        peer_close(&peers[1]);
    }
}

/* Add and remove from callbacks, of itself and of others, hundreds of times. */
struct churn {
    struct peer *peer;
    struct kve_source_opts opts;
    atomic_int made;
    atomic_int most;
};

static int
churn(struct reader *r, const struct kve_delivery *d)
{
    struct churn *c = r->more;
    kve_source_id id = 0;
    struct kve_source_info info = { .struct_size = sizeof(info) };

    if (d->number != 2)
        return 0;
    assert_int_equal(kve_sub_source(r->sub, d->source, &info), KVE_OK);
    if (atomic_fetch_add(&c->made, 1) < atomic_load(&c->most))
        (void)kve_sub_add(r->sub, &c->opts, &id, NULL);
    (void)kve_sub_remove(r->sub, d->source);
    return 0;
}

static void
test_churn(void **state)
{
    enum { MADE = 100, AT_ONCE = 4 };
    struct peer p;
    struct churn c;

    (void)state;
    for (uint32_t threads = 0; threads <= 2; threads += 2) {
        peer_open(&p);
        p.next = 5;
        memset(&c, 0, sizeof(c));
        c.peer = &p;
        atomic_store(&c.most, MADE);
        kve_source_opts_init(&c.opts);
        c.opts.endpoint = p.live;
        c.opts.replay_endpoint = p.replay;
        struct reader *r = open_threads(threads);
        r->on_batch = churn;
        r->more = &c;
        for (int i = 0; i < AT_ONCE; i++)
            reader_add(r, &c.opts);
        RUN_UNTIL(r, peer_serve(&p),
            atomic_load(&c.made) >= MADE + AT_ONCE && reader_listed(r) == 0);
        assert_int_equal(reader_n(r), 3 * (MADE + AT_ONCE));
        assert_int_equal(reader_counter(r, 0, KVE_COUNTER_SUB_BATCHES),
            3 * (MADE + AT_ONCE));
        reader_close(r);
        peer_close(&p);
    }
}

/* In a child only destroy is allowed, and does not wait for threads that are
 * not there. */
static void
test_fork(void **state)
{
    struct peer p;

    (void)state;
    peer_open(&p);
    p.next = 3;
    struct reader *r = open_threads(2);
    follow(r, &p, true);
    RUN_UNTIL(r, peer_serve(&p), reader_n(r) == 3);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kve_source_id id;
        int ok = kve_sub_add(r->sub, NULL, &id, NULL) == KVE_E_FORKED;
        kve_sub_destroy(r->sub);
        _exit(ok ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    peer_live(&p, 3);
    p.next = 4;
    RUN_UNTIL(r, peer_serve(&p), reader_n(r) == 4);
    reader_close(r);
    peer_close(&p);
}

/* ---- errors that nobody is told of by a status --------------------- */

static atomic_int logged;

static void
count_errors(void *ctx, enum kve_log_level level, const char *line)
{
    (void)ctx;
    if (level == KVE_LOG_ERROR && strstr(line, "trying again") != NULL)
        atomic_fetch_add(&logged, 1);
}

/* The n-th allocation fails, for every n: what fails on a library thread is
 * logged and tried again, and every batch comes. */
static void
test_memory_failures(void **state)
{
    (void)state;
    atomic_store(&logged, 0);
    for (uint64_t n = 1;; n++) {
        struct kve_context_opts context_opts = KVE_CONTEXT_OPTS_INIT;
        struct kve_sub_opts sub_opts = KVE_SUB_OPTS_INIT;
        struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
        int64_t live = kve_mem_live();
        kve_context *context = NULL;
        kve_source_id id = 0;
        struct peer p;

        assert_true(n < 300);
        peer_open(&p);
        p.next = 3;
        context_opts.log = count_errors;
        assert_int_equal(
            kve_context_create(&context_opts, &context, NULL), KVE_OK);
        sub_opts.threads = 1;
        struct reader *r = reader_open_in(context, &sub_opts);
        opts.endpoint = p.live;
        opts.replay_endpoint = p.replay;
        opts.tail_probe_ms = 50;
        kve_mem_fail_at(n, false);
        kve_status status = kve_sub_add(r->sub, &opts, &id, NULL);
        if (status == KVE_OK) {
            RUN_UNTIL(r, peer_serve(&p), reader_n(r) == 3);
            peer_live(&p, 3);
            p.next = 4;
            RUN_UNTIL(r, peer_serve(&p), reader_n(r) == 4);
        } else {
            assert_int_equal(status, KVE_E_NOMEM);
        }
        bool failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        reader_close(r);
        kve_context_destroy(context);
        peer_close(&p);
        assert_int_equal(kve_mem_live(), live);
        if (!failed)
            break;
    }
    assert_true(atomic_load(&logged) > 0);
}

/* A subscriber that could not be made leaves every descriptor alone that is
 * not its own: here 0 is a pipe that would tell. */
static void
test_create_failures(void **state)
{
    struct kve_sub_opts opts = KVE_SUB_OPTS_INIT;
    struct kve_sub_callbacks callbacks = KVE_SUB_CALLBACKS_INIT;
    struct reader *r = reader_open(NULL);
    int before = dup(0);
    int ends[2];
    char byte;

    (void)state;
    callbacks = r->sub->callbacks;
    callbacks.struct_size = sizeof(callbacks);
    opts.threads = 3;
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    assert_int_equal(dup2(ends[1], 0), 0);
    for (uint64_t n = 1;; n++) {
        kve_subscriber *sub = NULL;

        assert_true(n < 300);
        kve_mem_fail_at(n, false);
        kve_status status = kve_sub_create(NULL, &opts, &callbacks, &sub, NULL);
        bool failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        assert_int_equal(status, failed ? KVE_E_NOMEM : KVE_OK);
        kve_sub_destroy(sub);
        assert_int_equal(read(ends[0], &byte, 1), -1);
        assert_int_equal(errno, EAGAIN);
        if (!failed)
            break;
    }
    if (before >= 0)
        (void)dup2(before, 0);
    (void)close(before);
    (void)close(ends[0]);
    (void)close(ends[1]);
    reader_close(r);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_polled),
        cmocka_unit_test(test_many_sources),
        cmocka_unit_test(test_remove_waits),
        cmocka_unit_test(test_remove_of_another),
        cmocka_unit_test(test_remove_each_other),
        cmocka_unit_test(test_churn),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_memory_failures),
        cmocka_unit_test(test_create_failures),
    };

    return cmocka_run_group_tests_name("subscribe/threads", tests, NULL, NULL);
}
