/*
 * ctest-timeout: 180
 *
 * Many threads publish at once. First the queue alone, with the sender's own
 * protocol of sleeping and waking; then a publisher and a reader of the
 * socket library. In both no batch is lost or doubled, numbers are the order
 * of the queue, and what one thread published stays in its order.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "publish/publisher.h"

#include <kvevents/codec.h>

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#define THREADS 8
#define PER_THREAD 20000

/* What a thread publishes: who it is, and which one this is. */
struct mark {
    uint32_t thread;
    uint32_t index;
    uint64_t number; /* filled in by the reading side */
};

/* ---- the queue alone ---- */

struct producer {
    struct kve_queue *queue;
    int wake_fd;
    uint32_t thread;
    uint64_t dropped;
    uint64_t last; /* number given */
};

static void *
produce(void *arg)
{
    struct producer *p = arg;
    uint64_t one = 1;

    for (uint32_t i = 0; i < PER_THREAD; i++) {
        struct mark mark = { p->thread, i, 0 };
        struct kve_payload *payload =
            kve_payload_create(&mark, sizeof(mark), NULL);
        struct kve_queue_pushed pushed;

        if (payload == NULL)
            abort();
        if (kve_queue_push(p->queue, payload, &pushed) != KVE_OK) {
            kve_payload_unref(payload);
            p->dropped++;
            sched_yield();
        }
        /* A thread's own numbers grow. */
        if (i > 0 && pushed.number <= p->last)
            abort();
        p->last = pushed.number;
        if (pushed.wake && write(p->wake_fd, &one, sizeof(one)) < 0)
            abort();
        if (i % 1000 == 0)
            sched_yield();
    }
    return NULL;
}

struct consumed {
    uint64_t n;
    uint64_t sleeps;
    uint64_t last_number;
    int64_t last_index[THREADS];
};

static void
consume(struct kve_queue *q, struct consumed *c)
{
    struct kve_queue_item *items;
    size_t n = kve_queue_front(q, 64, &items);
    size_t bytes = 0;

    for (size_t i = 0; i < n; i++) {
        struct mark mark;

        memcpy(&mark, items[i].payload->data, sizeof(mark));
        assert_true(c->n == 0 || items[i].number > c->last_number);
        assert_true((int64_t)mark.index > c->last_index[mark.thread]);
        c->last_number = items[i].number;
        c->last_index[mark.thread] = mark.index;
        c->n++;
        bytes += items[i].payload->len;
        kve_payload_unref(items[i].payload);
    }
    kve_queue_consume(q, n, bytes);
}

static void
test_the_queue(void **state)
{
    struct kve_queue q = { 0 };
    struct producer producers[THREADS] = { 0 };
    struct consumed c = { 0 };
    pthread_t threads[THREADS];
    uint64_t dropped = 0;
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(kve_queue_init(&q, 1000, 1 << 20, 0, NULL), KVE_OK);
    for (uint32_t t = 0; t < THREADS; t++) {
        c.last_index[t] = -1;
        producers[t] = (struct producer){ &q, fd, t, 0, 0 };
        assert_int_equal(
            pthread_create(&threads[t], NULL, produce, &producers[t]), 0);
    }
    while (atomic_load(&q.next_number) < THREADS * PER_THREAD ||
        kve_queue_head(&q) != kve_queue_tail(&q)) {
        struct pollfd item = { fd, POLLIN, 0 };
        uint64_t count;

        consume(&q, &c);
        if (!kve_queue_sleep(&q))
            continue;
        /* A wake-up that got lost would leave this at the time-out. */
        if (atomic_load(&q.next_number) < THREADS * PER_THREAD)
            (void)poll(&item, 1, 1000);
        kve_queue_awake(&q);
        c.sleeps += read(fd, &count, sizeof(count)) > 0;
    }
    for (uint32_t t = 0; t < THREADS; t++) {
        assert_int_equal(pthread_join(threads[t], NULL), 0);
        dropped += producers[t].dropped;
    }
    assert_int_equal(c.n + dropped, THREADS * PER_THREAD);
    assert_int_equal(atomic_load(&q.next_number), THREADS * PER_THREAD);
    kve_queue_release(&q);
    (void)close(fd);
}

/* Ten thousand times: one producer, a consumer that always goes to sleep. A
 * wake-up that is lost stops the test. */
static void *
produce_one_by_one(void *arg)
{
    struct producer *p = arg;
    uint64_t one = 1;

    for (uint32_t i = 0; i < 10000; i++) {
        struct kve_payload *payload = kve_payload_create("x", 1, NULL);
        struct kve_queue_pushed pushed;

        if (payload == NULL ||
            kve_queue_push(p->queue, payload, &pushed) != KVE_OK)
            abort();
        if (pushed.wake && write(p->wake_fd, &one, sizeof(one)) < 0)
            abort();
        while (kve_queue_head(p->queue) != kve_queue_tail(p->queue))
            sched_yield();
    }
    return NULL;
}

static void
test_no_wake_up_is_lost(void **state)
{
    struct kve_queue q = { 0 };
    struct producer producer = { .queue = &q };
    pthread_t thread;
    uint64_t n = 0, late = 0;

    (void)state;
    producer.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    assert_true(producer.wake_fd >= 0);
    assert_int_equal(kve_queue_init(&q, 10, 1 << 20, 0, NULL), KVE_OK);
    assert_int_equal(
        pthread_create(&thread, NULL, produce_one_by_one, &producer), 0);
    while (n < 10000) {
        struct pollfd item = { producer.wake_fd, POLLIN, 0 };
        struct kve_queue_item *items;
        uint64_t count;
        size_t got;

        while ((got = kve_queue_front(&q, 64, &items)) > 0) {
            for (size_t i = 0; i < got; i++)
                kve_payload_unref(items[i].payload);
            n += got;
            kve_queue_consume(&q, got, got);
        }
        if (n < 10000 && kve_queue_sleep(&q)) {
            late += poll(&item, 1, 20000) == 0;
            if (read(producer.wake_fd, &count, sizeof(count)) < 0)
                assert_int_equal(errno, EAGAIN);
            kve_queue_awake(&q);
        }
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(late, 0);
    kve_queue_release(&q);
    (void)close(producer.wake_fd);
}

/* ---- a publisher ---- */

struct writer {
    kve_publisher *pub;
    uint32_t thread;
    uint64_t numbers[2000];
};

static void *
write_batches(void *arg)
{
    struct writer *w = arg;
    struct kve_hash hash = { .integer = 0 };
    struct kve_event event = {
        .type = KVE_EVENT_REMOVED, .hashes = &hash, .n_hashes = 1
    };
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;

    view.events = &event;
    view.n_events = 1;
    for (uint32_t i = 0; i < 2000; i++) {
        hash.integer = (uint64_t)w->thread << 32 | i;
        if (kve_pub_publish(w->pub, &view, &w->numbers[i], NULL) != KVE_OK)
            abort();
        if (i % 100 == 0 && kve_pub_flush(w->pub, 10000, NULL) != KVE_OK)
            abort();
        (void)kve_pub_counter(w->pub, KVE_COUNTER_PUB_SENT);
    }
    return NULL;
}

static void *
reader(void *zmq, int type, const char *endpoint)
{
    void *socket = zmq_socket(zmq, type);
    int hwm = 0, timeout = 20000, linger = 0;

    assert_non_null(socket);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &hwm, sizeof(hwm));
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &timeout, sizeof(timeout));
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger));
    if (type == ZMQ_SUB)
        zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
    assert_int_equal(zmq_connect(socket, endpoint), 0);
    return socket;
}

/* The last two frames of the next message: number and payload. */
static size_t
receive(void *socket, uint64_t *ret_number, uint8_t *payload, size_t cap)
{
    uint8_t frame[2][512];
    int len[2] = { 0, 0 };
    int more = 1;
    size_t size = sizeof(more);

    while (more) {
        memcpy(frame[0], frame[1], sizeof(frame[0]));
        len[0] = len[1];
        len[1] = zmq_recv(socket, frame[1], sizeof(frame[1]), 0);
        assert_true(len[1] >= 0 && len[1] <= (int)cap);
        zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size);
    }
    assert_int_equal(len[0], 8);
    *ret_number = kve_number_read(frame[0]);
    memcpy(payload, frame[1], (size_t)len[1]);
    return (size_t)len[1];
}

static uint64_t
hash_of(kve_batch *batch, const uint8_t *payload, size_t len)
{
    assert_int_equal(kve_batch_decode(batch, payload, len, NULL), KVE_OK);
    return kve_batch_next(batch)->hashes[0].integer;
}

static void
test_a_publisher(void **state)
{
    static struct writer writers[THREADS];
    struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;
    pthread_t threads[THREADS];
    int64_t last[THREADS];
    void *zmq = zmq_ctx_new();
    kve_publisher *pub = NULL;
    kve_batch *batch = NULL;
    uint8_t payload[512];
    uint64_t number, first;
    size_t len;

    (void)state;
    opts.endpoint = "tcp://127.0.0.1:0";
    opts.replay_endpoint = "tcp://127.0.0.1:0";
    opts.buffer_steps = 100000;
    assert_int_equal(kve_pub_create(NULL, &opts, &pub, NULL), KVE_OK);
    assert_int_equal(kve_batch_create(NULL, &batch, NULL), KVE_OK);
    void *sub = reader(zmq, ZMQ_SUB, kve_pub_endpoint(pub));
    void *dealer = reader(zmq, ZMQ_DEALER, kve_pub_replay_endpoint(pub));

    /* Until the subscription is there. */
    for (;;) {
        zmq_pollitem_t item = { sub, 0, ZMQ_POLLIN, 0 };

        assert_int_equal(
            kve_pub_publish_payload(pub, "x", 1, &first, NULL), KVE_OK);
        if (zmq_poll(&item, 1, 10) > 0)
            break;
    }
    do
        (void)receive(sub, &number, payload, sizeof(payload));
    while (number != first);
    first++;

    for (uint32_t t = 0; t < THREADS; t++) {
        writers[t].pub = pub;
        writers[t].thread = t;
        last[t] = -1;
        assert_int_equal(
            pthread_create(&threads[t], NULL, write_batches, &writers[t]), 0);
    }
    for (uint64_t i = 0; i < THREADS * 2000; i++) {
        len = receive(sub, &number, payload, sizeof(payload));
        uint64_t hash = hash_of(batch, payload, len);
        uint32_t t = (uint32_t)(hash >> 32);

        assert_int_equal(number, first + i);
        assert_true((int64_t)(uint32_t)hash == last[t] + 1);
        last[t]++;
        /* Somebody asks again meanwhile. */
        if (i % 4000 == 0) {
            zmq_send(dealer, "", 0, ZMQ_SNDMORE);
            zmq_send(dealer, "\0", 1, 0);
        }
    }
    for (uint32_t t = 0; t < THREADS; t++)
        assert_int_equal(pthread_join(threads[t], NULL), 0);
    for (uint32_t t = 0; t < THREADS; t++)
        for (uint32_t i = 1; i < 2000; i++)
            assert_true(writers[t].numbers[i] > writers[t].numbers[i - 1]);

    for (int answers = 0; answers < 4;) {
        uint64_t expected = 0;

        while (receive(dealer, &number, payload, sizeof(payload)) > 0)
            assert_int_equal(number, expected++);
        assert_true(number == KVE_NUMBER_END);
        answers++;
    }
    kve_batch_destroy(batch);
    zmq_close(sub);
    zmq_close(dealer);
    kve_pub_destroy(pub);
    zmq_ctx_term(zmq);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_queue),
        cmocka_unit_test(test_no_wake_up_is_lost),
        cmocka_unit_test(test_a_publisher),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
