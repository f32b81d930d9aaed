/*
 * ctest-timeout: 180
 *
 * A subscriber with threads of its own, and everything that any thread may do
 * to it at the same time: add, remove, read how a source is, read counters;
 * and callbacks that do the same. Meanwhile batches come, gaps are repaired
 * by requests that stand in line, and publishers join a bound socket. In the
 * end it is stopped, and destroyed with sources in it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"

#include <kvevents/kvevents.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zmq.h>

#include "support/port.h"

#define ACTORS 4
#define RUN_MS 4000
#define NEXT 64 /* batches that a replay has */

struct shared {
    kve_subscriber *sub;
    char live[64];
    char replay[64];
    char bound[64];
    atomic_bool done;
    atomic_uint_fast64_t batches;
    atomic_uint_fast64_t streams;
    atomic_uint removed; /* source: none of its batches may come any more */
    atomic_uint late;
};

/* [1.0, [], nil] */
static const uint8_t batch[] = { 0x93, 0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0, 0x90,
    0xc0 };

static int
on_batch(void *ctx, const struct kve_delivery *d)
{
    struct shared *s = ctx;
    struct kve_source_info info = { .struct_size = sizeof(info) };

    atomic_fetch_add(&s->batches, 1);
    if (d->source == atomic_load(&s->removed))
        atomic_fetch_add(&s->late, 1);
    if (d->number % 7 == 0)
        (void)kve_sub_source(s->sub, d->source, &info);
    if (d->number % 13 == 0)
        (void)kve_sub_counter(s->sub, d->source, KVE_COUNTER_SUB_BATCHES);
    if (d->number == NEXT + 5)
        (void)kve_sub_remove(s->sub, d->source);
    return 0;
}

static void
on_notice(void *ctx, const struct kve_notice *n)
{
    struct shared *s = ctx;

    if (n->type == KVE_NOTICE_STREAM)
        atomic_fetch_add(&s->streams, 1);
    if (n->type == KVE_NOTICE_STREAM && n->source % 3 == 0)
        (void)kve_sub_remove(s->sub, n->source);
}

static uint32_t
next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* One thread's sources come and go. */
static void *
act(void *arg)
{
    struct shared *s = arg;
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct kve_source_opts wrong = KVE_SOURCE_OPTS_INIT;
    struct kve_source_info info = { .struct_size = sizeof(info) };
    kve_source_id none;
    kve_source_id ids[8] = { 0 };
    uint32_t seed = (uint32_t)(uintptr_t)pthread_self();

    opts.endpoint = s->live;
    opts.replay_endpoint = s->replay;
    opts.tail_probe_ms = 20;
    wrong.endpoint = "nothing://of-the-kind";
    while (!atomic_load(&s->done)) {
        kve_source_id *id = &ids[next_random(&seed) % 8];

        if (*id == 0) {
            if (kve_sub_add(s->sub, &opts, id, NULL) != KVE_OK)
                *id = 0;
        } else if (next_random(&seed) % 4 == 0) {
            kve_status status = kve_sub_remove(s->sub, *id);
            /* From here on nothing of it may come; by a callback of its own
             * it may have left already, which says nothing about when. */
            if (status == KVE_OK)
                atomic_store(&s->removed, *id);
            *id = 0;
        } else if (kve_sub_source(s->sub, *id, &info) == KVE_OK) {
            if (info.parent != 0 || info.endpoint == NULL)
                abort();
        }
        (void)kve_sub_counter(s->sub, 0, KVE_COUNTER_SUB_BATCHES);
        if (kve_sub_add(s->sub, &wrong, &none, NULL) == KVE_OK)
            abort();
        (void)usleep(next_random(&seed) % 3000);
    }
    return NULL;
}

static void
send_batch(void *pub, const char *topic, uint64_t number)
{
    uint8_t seq[8];

    kve_number_write(number, seq);
    zmq_send(pub, topic, strlen(topic), ZMQ_SNDMORE);
    zmq_send(pub, seq, sizeof(seq), ZMQ_SNDMORE);
    zmq_send(pub, batch, sizeof(batch), 0);
}

static void
serve(void *router)
{
    uint8_t id[64];
    uint8_t start[16];
    uint8_t seq[8];
    int len;

    while ((len = zmq_recv(router, id, sizeof(id), ZMQ_DONTWAIT)) > 0) {
        (void)zmq_recv(router, start, sizeof(start), 0);
        (void)zmq_recv(router, start, sizeof(start), 0);
        for (uint64_t i = kve_number_read(start); i <= NEXT; i++) {
            bool end = i == NEXT;
            kve_number_write(end ? KVE_NUMBER_END : i, seq);
            zmq_send(router, id, (size_t)len, ZMQ_SNDMORE);
            zmq_send(router, "", 0, ZMQ_SNDMORE);
            zmq_send(router, seq, 8, ZMQ_SNDMORE);
            zmq_send(router, batch, end ? 0 : sizeof(batch), 0);
        }
    }
}

/* All publishers' ends, on one thread. */
static void *
publish(void *arg)
{
    struct shared *s = arg;
    int zero = 0;
    void *zmq = zmq_ctx_new();
    void *pub = zmq_socket(zmq, ZMQ_PUB);
    void *router = zmq_socket(zmq, ZMQ_ROUTER);
    void *joined = zmq_socket(zmq, ZMQ_PUB);
    char topic[16];

    zmq_setsockopt(pub, ZMQ_LINGER, &zero, sizeof(zero));
    zmq_setsockopt(router, ZMQ_LINGER, &zero, sizeof(zero));
    zmq_setsockopt(joined, ZMQ_LINGER, &zero, sizeof(zero));
    zmq_bind(pub, s->live);
    zmq_bind(router, s->replay);
    zmq_connect(joined, s->bound);
    for (uint64_t n = 0; !atomic_load(&s->done); n++) {
        send_batch(pub, "", NEXT + n % 40);
        (void)snprintf(topic, sizeof(topic), "%u", (unsigned)(n % 20));
        send_batch(joined, topic, n / 20);
        serve(router);
        (void)usleep(500);
    }
    zmq_close(joined);
    zmq_close(router);
    zmq_close(pub);
    zmq_ctx_term(zmq);
    return NULL;
}

static void *
stop(void *arg)
{
    kve_sub_stop(arg);
    return NULL;
}

static void
test_everything_at_once(void **state)
{
    static struct shared s;
    struct kve_sub_opts sub_opts = KVE_SUB_OPTS_INIT;
    struct kve_sub_callbacks callbacks = { sizeof(callbacks), on_batch,
        on_notice, &s };
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    pthread_t actors[ACTORS];
    pthread_t publisher;
    pthread_t stopper;
    kve_source_id parent;

    (void)state;
    (void)snprintf(
        s.live, sizeof(s.live), "tcp://127.0.0.1:%u", test_port_to_keep());
    (void)snprintf(
        s.replay, sizeof(s.replay), "tcp://127.0.0.1:%u", test_port_to_keep());
    (void)snprintf(
        s.bound, sizeof(s.bound), "tcp://127.0.0.1:%u", test_port_to_keep());
    sub_opts.threads = 3;
    sub_opts.max_replays = 2;
    assert_int_equal(
        kve_sub_create(NULL, &sub_opts, &callbacks, &s.sub, NULL), KVE_OK);
    opts.endpoint = s.bound;
    opts.bind = KVE_BIND_YES;
    opts.stream_idle_ms = 50;
    assert_int_equal(kve_sub_add(s.sub, &opts, &parent, NULL), KVE_OK);
    pthread_create(&publisher, NULL, publish, &s);
    for (int i = 0; i < ACTORS; i++)
        pthread_create(&actors[i], NULL, act, &s);

    int64_t until = kve_now_ns() + RUN_MS * KVE_MS;
    int64_t patience = kve_now_ns() + 60000 * KVE_MS;
    while (kve_now_ns() < until ||
        (kve_now_ns() < patience &&
            (atomic_load(&s.batches) < 1000 || atomic_load(&s.streams) < 20)))
        (void)usleep(10000);
    assert_true(atomic_load(&s.batches) >= 1000);
    assert_true(atomic_load(&s.streams) >= 20);

    pthread_create(&stopper, NULL, stop, s.sub);
    atomic_store(&s.done, true);
    for (int i = 0; i < ACTORS; i++)
        pthread_join(actors[i], NULL);
    pthread_join(publisher, NULL);
    pthread_join(stopper, NULL);
    uint64_t counted = kve_sub_counter(s.sub, 0, KVE_COUNTER_SUB_BATCHES);
    kve_sub_destroy(s.sub);
    assert_true(counted >= atomic_load(&s.batches));
    assert_int_equal(atomic_load(&s.late), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_at_once),
    };

    return cmocka_run_group_tests_name(
        "race/subscriber_threads", tests, NULL, NULL);
}
