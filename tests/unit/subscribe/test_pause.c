/*
 * ctest-timeout: 240
 * ctest-label: long
 *
 * test_pause.c - a reader that pauses for longer than any time-out of the
 * connection (30 seconds), with a full pipe. It is not cut for that, nothing
 * is lost in silence, and the publisher is not taken for another one.
 */
#include "rig.h"

#include <unistd.h>

#include <zmq.h>

#define PAUSE_S 40

enum { N = 20000, HWM = 100 };

/* A publisher with a limit, and a reader that is live. */
static kve_source_id
begin(struct peer *p, struct reader *r)
{
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    size_t size = sizeof(p->live);
    int small = HWM;
    int zero = 0;

    peer_open(p);
    zmq_close(p->pub);
    p->pub = zmq_socket(p->zmq, ZMQ_PUB);
    zmq_setsockopt(p->pub, ZMQ_SNDHWM, &small, sizeof(small));
    zmq_setsockopt(p->pub, ZMQ_SNDBUF, &small, sizeof(small));
    zmq_setsockopt(p->pub, ZMQ_LINGER, &zero, sizeof(zero));
    assert_int_equal(zmq_bind(p->pub, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(
        zmq_getsockopt(p->pub, ZMQ_LAST_ENDPOINT, p->live, &size), 0);
    opts.endpoint = p->live;
    opts.replay_endpoint = p->replay;
    opts.recv_hwm = HWM;
    opts.tail_probe_ms = 100;
    kve_source_id id = reader_add(r, &opts);
    RUN_UNTIL(r, peer_serve(p), reader_info(r, id).state == KVE_STATE_LIVE);
    return id;
}

/* Slowly, so that all that can be full is. */
static void
fill(struct peer *p)
{
    for (uint64_t i = 0; i < N; i++) {
        peer_live(p, i);
        if (i % 20 == 0)
            (void)usleep(1000);
    }
    p->next = N;
}

static void
assert_all_came(struct reader *r, struct peer *p, kve_source_id id)
{
    RUN_UNTIL(r, peer_serve(p), r->of[id] == N);
    for (size_t i = 0; i < RIG_MAX; i++)
        assert_int_equal(r->number[(N + i) % RIG_MAX], N - RIG_MAX + i);
    /* The pipe was full, so that the publisher dropped. */
    assert_true(reader_counter(r, id, KVE_COUNTER_SUB_MISSED) > 0);
    assert_int_equal(reader_counter(r, id, KVE_COUNTER_SUB_MISSED),
        reader_counter(r, id, KVE_COUNTER_SUB_REPAIRED));
    assert_int_equal(reader_counter(r, id, KVE_COUNTER_SUB_LOST), 0);
    assert_int_equal(reader_counter(r, id, KVE_COUNTER_SUB_RESTARTS), 0);
    assert_int_equal(r->notices[KVE_NOTICE_CLEAR], 0);
}

static void
test_pause(void **state)
{
    struct peer p;

    (void)state;
    struct reader *r = reader_open(NULL);
    kve_source_id id = begin(&p, r);
    fill(&p);
    (void)sleep(PAUSE_S);
    assert_all_came(r, &p, id);
    RUN_UNTIL(r, peer_serve(&p), reader_info(r, id).state == KVE_STATE_LIVE);
    assert_int_equal(reader_counter(r, id, KVE_COUNTER_SUB_DISCONNECTS), 0);
    reader_close(r);
    peer_close(&p);
}

/* The publisher's live end goes meanwhile, and comes back. */
static void
test_pause_and_cut(void **state)
{
    struct peer p;

    (void)state;
    struct reader *r = reader_open(NULL);
    kve_source_id id = begin(&p, r);
    fill(&p);
    zmq_close(p.pub);
    (void)sleep(13);
    p.pub = zmq_socket(p.zmq, ZMQ_PUB);
    int zero = 0;
    zmq_setsockopt(p.pub, ZMQ_LINGER, &zero, sizeof(zero));
    assert_int_equal(zmq_bind(p.pub, p.live), 0);
    assert_all_came(r, &p, id);
    RUN_UNTIL(r, peer_serve(&p), reader_info(r, id).state == KVE_STATE_LIVE);
    assert_true(reader_counter(r, id, KVE_COUNTER_SUB_DISCONNECTS) > 0);
    reader_close(r);
    peer_close(&p);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pause_and_cut),
        cmocka_unit_test(test_pause),
    };

    return cmocka_run_group_tests_name("subscribe/pause", tests, NULL, NULL);
}
