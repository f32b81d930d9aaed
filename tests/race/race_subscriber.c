/*
 * ctest-timeout: 120
 *
 * What any thread may do while another one polls: read counters, of one
 * source and of all, wake, and in the end stop. Meanwhile batches come and
 * sources are added and removed, so that the list of sources moves and grows
 * under the readers. Sums only rise, also when sources are removed.
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
#include <stdlib.h>
#include <string.h>

#include <zmq.h>

#define READERS 3
#define BATCHES 20000

struct shared {
    kve_subscriber *sub;
    kve_source_id source;
    atomic_bool done;
    size_t n;
    kve_source_id extra[20];
    size_t n_extra;
};

static void *
look(void *arg)
{
    struct shared *s = arg;
    uint64_t seen = 0;

    while (!atomic_load(&s->done)) {
        uint64_t all = kve_sub_counter(s->sub, 0, KVE_COUNTER_SUB_BATCHES);
        uint64_t one =
            kve_sub_counter(s->sub, s->source, KVE_COUNTER_SUB_BATCHES);
        if (all < seen || one > BATCHES)
            abort();
        seen = all;
        kve_sub_wake(s->sub);
    }
    return NULL;
}

static int
on_batch(void *ctx, const struct kve_delivery *d)
{
    struct shared *s = ctx;
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;

    assert_int_equal(d->number, s->n);
    if (++s->n % 200 != 0)
        return 0;
    opts.endpoint = "tcp://127.0.0.1:9"; /* nobody is there */
    if (s->n_extra == 20)
        while (s->n_extra > 0)
            assert_int_equal(
                kve_sub_remove(s->sub, s->extra[--s->n_extra]), KVE_OK);
    assert_int_equal(
        kve_sub_add(s->sub, &opts, &s->extra[s->n_extra++], NULL), KVE_OK);
    return 0;
}

static void
send_batch(void *pub, uint64_t number)
{
    /* [1.0, [], nil] */
    static const uint8_t batch[] = { 0x93, 0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0,
        0x90, 0xc0 };
    uint8_t seq[8];

    kve_number_write(number, seq);
    zmq_send(pub, "", 0, ZMQ_SNDMORE);
    zmq_send(pub, seq, sizeof(seq), ZMQ_SNDMORE);
    zmq_send(pub, batch, sizeof(batch), 0);
}

static void *
stop(void *arg)
{
    kve_sub_stop(arg);
    return NULL;
}

static void
test_counters_and_wakes(void **state)
{
    struct shared s = { .n = 0 };
    struct kve_sub_callbacks callbacks = { sizeof(callbacks), on_batch, NULL,
        &s };
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    pthread_t threads[READERS];
    pthread_t stopper;
    char endpoint[64];
    size_t len = sizeof(endpoint);
    int zero = 0;

    (void)state;
    void *zmq = zmq_ctx_new();
    void *pub = zmq_socket(zmq, ZMQ_PUB);
    zmq_setsockopt(pub, ZMQ_SNDHWM, &zero, sizeof(zero));
    zmq_setsockopt(pub, ZMQ_LINGER, &zero, sizeof(zero));
    assert_int_equal(zmq_bind(pub, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(zmq_getsockopt(pub, ZMQ_LAST_ENDPOINT, endpoint, &len), 0);
    opts.endpoint = endpoint;
    assert_int_equal(
        kve_sub_create(NULL, NULL, &callbacks, &s.sub, NULL), KVE_OK);
    assert_int_equal(kve_sub_add(s.sub, &opts, &s.source, NULL), KVE_OK);
    for (int i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, look, &s), 0);

    /* The first numbers are sent until the subscription has arrived. */
    int64_t until = kve_now_ns() + 30000 * KVE_MS;
    while (s.n == 0 && kve_now_ns() < until) {
        send_batch(pub, 0);
        assert_int_equal(kve_sub_poll(s.sub, 20, 0, NULL, NULL), KVE_OK);
    }
    for (uint64_t i = 1; i < BATCHES; i++)
        send_batch(pub, i);
    while (s.n < BATCHES && kve_now_ns() < until)
        assert_int_equal(kve_sub_poll(s.sub, 20, 64, NULL, NULL), KVE_OK);
    assert_int_equal(s.n, BATCHES);
    atomic_store(&s.done, true);
    for (int i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);

    assert_int_equal(pthread_create(&stopper, NULL, stop, s.sub), 0);
    kve_status status = KVE_OK;
    while (status == KVE_OK && kve_now_ns() < until)
        status = kve_sub_poll(s.sub, -1, 0, NULL, NULL);
    assert_int_equal(status, KVE_E_CLOSED);
    pthread_join(stopper, NULL);
    kve_sub_destroy(s.sub);
    zmq_close(pub);
    zmq_ctx_term(zmq);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counters_and_wakes),
    };

    return cmocka_run_group_tests_name("race/subscriber", tests, NULL, NULL);
}
