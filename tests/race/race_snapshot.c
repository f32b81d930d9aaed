/*
 * ctest-timeout: 180
 *
 * A publisher whose recorder, sender, producers and readers all work at once:
 * batches are published by several threads, snapshots are asked for both
 * ways, heartbeats are sent, counters are read; then it is shut down amid all
 * of it. What snapshots say is counted: every block was stored once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <kvevents/codec.h>
#include <kvevents/publisher.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define WRITERS 3 /* times 16 is less than the queue */
#define BATCHES 400
#define BLOCKS 8 /* a batch */
#define BLOCK_SIZE 4

struct writer {
    kve_publisher *pub;
    uint32_t thread;
    atomic_bool *stop;
};

static void
write_one(struct writer *w, uint64_t i)
{
    struct kve_hash hashes[BLOCKS];
    uint32_t tokens[BLOCKS * BLOCK_SIZE] = { 0 };
    struct kve_event event = { .type = KVE_EVENT_STORED,
        .hashes = hashes,
        .n_hashes = BLOCKS,
        .tokens = tokens,
        .n_tokens = BLOCKS * BLOCK_SIZE,
        .block_size = BLOCK_SIZE };
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;

    for (uint64_t k = 0; k < BLOCKS; k++)
        hashes[k] = (struct kve_hash){ NULL,
            { (uint64_t)w->thread << 32 | (i * BLOCKS + k) } };
    view.events = &event;
    view.n_events = 1;
    (void)kve_pub_publish(w->pub, &view, NULL, NULL);
}

static void *
write_batches(void *arg)
{
    struct writer *w = arg;

    for (uint64_t i = 0; i < BATCHES && !atomic_load(w->stop); i++) {
        write_one(w, i);
        /* The queue turns nothing away, or there would be no snapshots. */
        if (i % 16 == 15)
            (void)kve_pub_flush(w->pub, 10000, NULL);
    }
    return NULL;
}

struct reader {
    void *zmq;
    const char *endpoint;
    atomic_bool *stop;
    int64_t last_seq;
    uint64_t blocks; /* of the last one */
    unsigned answers;
};

/* Blocks that a chunk stores, less those it removes. */
static uint64_t
count_blocks(kve_batch *batch, zmq_msg_t *part)
{
    const struct kve_event *ev;
    uint64_t n = 0;

    if (kve_batch_decode(batch, zmq_msg_data(part), zmq_msg_size(part), NULL) !=
        KVE_OK)
        abort();
    while ((ev = kve_batch_next(batch)) != NULL)
        n += ev->type == KVE_EVENT_STORED ? ev->n_hashes : -ev->n_hashes;
    return n;
}

static bool
take(struct reader *r, void *socket, kve_batch *batch)
{
    zmq_pollitem_t item = { socket, 0, ZMQ_POLLIN, 0 };
    uint64_t blocks = 0;
    int64_t seq = 0;
    int more = 1;

    if (zmq_poll(&item, 1, 100) <= 0)
        return false;
    for (int i = 0; more; i++) {
        zmq_msg_t part;

        zmq_msg_init(&part);
        if (zmq_msg_recv(&part, socket, 0) < 0)
            abort();
        if (i == 1)
            seq = (int64_t)kve_number_read(zmq_msg_data(&part));
        if (i > 2)
            blocks += count_blocks(batch, &part);
        more = zmq_msg_more(&part);
        zmq_msg_close(&part);
    }
    if (seq < r->last_seq)
        abort();
    r->last_seq = seq;
    r->blocks = blocks;
    r->answers++;
    return true;
}

static void *
read_snapshots(void *arg)
{
    struct reader *r = arg;
    kve_batch *batch = NULL;

    if (kve_batch_create(NULL, &batch, NULL) != KVE_OK)
        abort();
    r->last_seq = -1;
    while (!atomic_load(r->stop)) {
        void *socket = zmq_socket(r->zmq, ZMQ_DEALER);
        int zero = 0;

        zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof(zero));
        if (zmq_connect(socket, r->endpoint) != 0)
            abort();
        for (int i = 0; i < 10 && !atomic_load(r->stop); i++) {
            zmq_send(socket, "", 0, ZMQ_SNDMORE);
            zmq_send(socket, "snapshot", 8, 0);
            /* Some are left alone with their answer. */
            if (i < 9)
                (void)take(r, socket, batch);
        }
        zmq_close(socket);
    }
    kve_batch_destroy(batch);
    return NULL;
}

static void
run(bool to_the_end)
{
    struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;
    struct writer writers[WRITERS];
    struct reader readers[2];
    pthread_t threads[WRITERS + 2];
    void *zmq = zmq_ctx_new();
    atomic_bool stop = false, stop_readers = false;
    kve_publisher *pub = NULL;

    opts.endpoint = "tcp://127.0.0.1:0";
    opts.replay_endpoint = "tcp://127.0.0.1:0";
    opts.snapshot_endpoint = "tcp://127.0.0.1:0";
    opts.heartbeat_ms = 5;
    opts.queue_items = 64; /* the recorder's ring is full now and then */
    assert_int_equal(kve_pub_create(NULL, &opts, &pub, NULL), KVE_OK);
    for (uint32_t i = 0; i < 2; i++) {
        readers[i] = (struct reader){ .zmq = zmq,
            .stop = &stop_readers,
            .endpoint = i ? kve_pub_snapshot_endpoint(pub)
                          : kve_pub_replay_endpoint(pub) };
        assert_int_equal(
            pthread_create(&threads[i], NULL, read_snapshots, &readers[i]), 0);
    }
    for (uint32_t i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){ pub, i, &stop };
        assert_int_equal(
            pthread_create(&threads[2 + i], NULL, write_batches, &writers[i]),
            0);
    }
    for (int i = 0; i < 100; i++) {
        struct timespec ms = { 0, 1000000 };

        for (unsigned c = 0; c < 32; c++)
            (void)kve_pub_counter(pub, c);
        (void)nanosleep(&ms, NULL);
    }
    atomic_store(&stop, !to_the_end);
    if (!to_the_end)
        (void)kve_pub_shutdown(pub, 200, NULL, NULL);
    for (uint32_t i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_join(threads[2 + i], NULL), 0);
    if (to_the_end)
        assert_int_equal(kve_pub_flush(pub, 20000, NULL), KVE_OK);
    atomic_store(&stop_readers, true);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);

    for (int i = 0; to_the_end && i < 2; i++) {
        void *socket = zmq_socket(zmq, ZMQ_DEALER);
        int zero = 0;
        kve_batch *batch = NULL;

        assert_int_equal(kve_batch_create(NULL, &batch, NULL), KVE_OK);
        zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof(zero));
        assert_int_equal(zmq_connect(socket, readers[i].endpoint), 0);
        assert_true(readers[i].answers > 0);
        zmq_send(socket, "", 0, ZMQ_SNDMORE);
        zmq_send(socket, "snapshot", 8, 0);
        for (int tries = 0; !take(&readers[i], socket, batch); tries++)
            assert_true(tries < 200);
        assert_int_equal(
            kve_pub_counter(pub, KVE_COUNTER_PUB_DROPPED_QUEUE), 0);
        assert_int_equal(readers[i].blocks, WRITERS * BATCHES * BLOCKS);
        kve_batch_destroy(batch);
        zmq_close(socket);
    }
    kve_pub_destroy(pub);
    zmq_ctx_term(zmq);
}

static void
test_to_the_end(void **state)
{
    (void)state;
    run(true);
}

static void
test_shut_down_amid_it(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        run(false);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_to_the_end),
        cmocka_unit_test(test_shut_down_amid_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
