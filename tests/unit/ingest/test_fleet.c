/*
 * test_fleet.c - many sources at once, dead ones among them, and removals
 * while everybody talks.
 *
 * ctest-timeout: 600
 *
 * The engines of a fleet are bare XPUB sockets of one context that the ingest
 * shares (inproc): a thousand of them cost no threads. Such an engine sends
 * its first batch when somebody has subscribed, so nothing is missed.
 */
#include "rig.h"

#include "support/eventtext.h"
#include "support/scale.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <zmq.h>

#define FLEET (TEST_SCALE > 1 ? 200 : 1000)
#define DEAD (FLEET / 10)

struct fleet {
    void *zmq;
    void **pubs;    /* NULL: that one is dead */
    uint64_t *next; /* number of its next batch */
    bool *heard;    /* it has a subscriber */
    size_t n;
    uint8_t payload[4096];
    size_t len;
};

static void
endpoint_of(size_t i, char text[64])
{
    (void)snprintf(text, 64, "inproc://engine-%zu", i);
}

static void
fleet_open(struct fleet *f, size_t n)
{
    struct rlimit limit;
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_buffer buf = KVE_BUFFER_INIT;
    struct eventtext *et = calloc(1, sizeof(*et));

    memset(f, 0, sizeof(*f));
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    f->zmq = zmq_ctx_new();
    assert_int_equal(zmq_ctx_set(f->zmq, ZMQ_MAX_SOCKETS, 16384), 0);
    f->pubs = calloc(n, sizeof(*f->pubs));
    f->next = calloc(n, sizeof(*f->next));
    f->heard = calloc(n, sizeof(*f->heard));
    assert_true(f->pubs != NULL && f->next != NULL && f->heard != NULL);
    assert_non_null(et);
    f->n = n;
    eventtext_read(et, "S[-]1,2,3");
    view.ts = 1;
    view.events = et->events;
    view.n_events = et->n_events;
    assert_int_equal(
        kve_batch_encode(&view, KVE_LAYOUT_MAP, &buf, NULL), KVE_OK);
    assert_true(buf.len <= sizeof(f->payload));
    memcpy(f->payload, buf.data, buf.len);
    f->len = buf.len;
    kve_buffer_release(&buf);
    free(et);
}

static void
fleet_begin(struct fleet *f, size_t i)
{
    char endpoint[64];
    int zero = 0;

    endpoint_of(i, endpoint);
    f->pubs[i] = zmq_socket(f->zmq, ZMQ_XPUB);
    assert_non_null(f->pubs[i]);
    (void)zmq_setsockopt(f->pubs[i], ZMQ_LINGER, &zero, sizeof(zero));
    /* One that was closed there leaves soon. */
    UNTIL(zmq_bind(f->pubs[i], endpoint) == 0);
    f->next[i] = 0;
    f->heard[i] = false;
}

static void
fleet_end(struct fleet *f, size_t i)
{
    if (f->pubs[i] != NULL)
        assert_int_equal(zmq_close(f->pubs[i]), 0);
    f->pubs[i] = NULL;
}

static void
fleet_close(struct fleet *f)
{
    for (size_t i = 0; i < f->n; i++)
        fleet_end(f, i);
    zmq_ctx_term(f->zmq);
    free(f->heard);
    free(f->next);
    free(f->pubs);
}

static void
fleet_say(struct fleet *f, size_t i)
{
    uint8_t number[8];

    kve_number_write(f->next[i]++, number);
    (void)zmq_send(f->pubs[i], "t", 1, ZMQ_SNDMORE);
    (void)zmq_send(f->pubs[i], number, 8, ZMQ_SNDMORE);
    (void)zmq_send(f->pubs[i], f->payload, f->len, 0);
}

/* Every engine that has got a subscriber says its first batches. */
static void
fleet_greet(struct fleet *f)
{
    uint8_t frame[16];

    for (size_t i = 0; i < f->n; i++) {
        if (f->pubs[i] == NULL ||
            zmq_recv(f->pubs[i], frame, sizeof(frame), ZMQ_DONTWAIT) < 1)
            continue;
        if (frame[0] != 1)
            continue;
        f->heard[i] = true;
        fleet_say(f, i);
        fleet_say(f, i);
    }
}

static void
rig_open_in(struct rig *r, struct fleet *f, uint32_t max_sources)
{
    struct kve_context_opts context = KVE_CONTEXT_OPTS_INIT;
    struct kve_ingest_opts opts = KVE_INGEST_OPTS_INIT;
    struct kve_error err = { .status = KVE_OK };

    memset(r, 0, sizeof(*r));
    pthread_mutex_init(&r->lock, NULL);
    context.zmq_context = f->zmq;
    if (kve_context_create(&context, &r->context, &err) != KVE_OK)
        fail_msg("%s", err.detail);
    opts.max_sources = max_sources;
    assert_int_equal(kve_index_create(NULL, &r->index, &err), KVE_OK);
    if (kve_ingest_create(r->context, r->index, &opts, &r->ingest, &err) !=
        KVE_OK)
        fail_msg("%s", err.detail);
    assert_int_equal(
        kve_index_reader_create(r->index, &r->reader, &err), KVE_OK);
    assert_int_equal(
        kve_index_namespace(r->index, "m", "default", &r->ns, &err), KVE_OK);
}

static void
rig_close_in(struct rig *r)
{
    kve_context *context = r->context;

    rig_close(r);
    kve_context_destroy(context);
}

static kve_ingest_id
follow(struct rig *r, size_t i)
{
    struct kve_ingest_spec spec = KVE_INGEST_SPEC_INIT;
    char endpoint[64];
    char worker[32];

    endpoint_of(i, endpoint);
    (void)snprintf(worker, sizeof(worker), "w%zu", i);
    spec.model = "m";
    spec.worker = worker;
    spec.source.endpoint = endpoint;
    return rig_add(r, &spec);
}

static struct kve_ingest_progress
progress(struct rig *r)
{
    struct kve_ingest_progress p = { .struct_size = sizeof(p) };

    kve_ingest_get_progress(r->ingest, &p);
    return p;
}

/* ---- many sources ---------------------------------------------------- */

/* D14: of a hundred publishers one can not be reached; the others are live,
 * and stopping twice does no harm. */
static void
test_d14_one_dead(void **state)
{
    struct fleet f;
    struct rig r;
    kve_ingest_id ids[100];

    (void)state;
    fleet_open(&f, 100);
    rig_open_in(&r, &f, 0);
    for (size_t i = 0; i < 100; i++) {
        if (i != 37)
            fleet_begin(&f, i);
        ids[i] = follow(&r, i);
    }
    UNTIL((fleet_greet(&f), progress(&r).live == 99));
    assert_int_equal(progress(&r).cold, 1);
    assert_false(progress(&r).ready);
    assert_true(is_state(&r, ids[37], KVE_STATE_COLD, KVE_REASON_STARTING));
    assert_int_equal(rows_of(&r, 3), 99);
    assert_int_equal(kve_ingest_remove(r.ingest, ids[37], NULL), KVE_OK);
    assert_int_equal(
        kve_ingest_remove(r.ingest, ids[37], NULL), KVE_E_NOT_FOUND);
    assert_true(progress(&r).ready);
    rig_close_in(&r);
    fleet_close(&f);
}

static size_t
rows_all(struct rig *r)
{
    struct kve_index_query query = KVE_INDEX_QUERY_INIT;
    struct kve_index_answer answer = KVE_INDEX_ANSWER_INIT;
    uint32_t tokens[2] = { eventtext_token(1, 0), eventtext_token(1, 1) };

    query.ns = r->ns;
    query.tokens = tokens;
    query.n_tokens = 2;
    assert_int_equal(kve_index_query(r->reader, &query, &answer, NULL), KVE_OK);
    return answer.total;
}

/* A fleet with a tenth of it dead: the others are live, dead ones can be
 * removed, come to life, and go. */
static void
test_fleet(void **state)
{
    struct fleet f;
    struct rig r;
    kve_ingest_id *ids = calloc(FLEET, sizeof(*ids));
    struct kve_ingest_progress p = { .struct_size = sizeof(p) };

    (void)state;
    assert_non_null(ids);
    fleet_open(&f, FLEET);
    rig_open_in(&r, &f, FLEET);
    for (size_t i = 0; i < FLEET; i++) {
        if (i % 10 != 0)
            fleet_begin(&f, i);
        ids[i] = follow(&r, i);
    }
    UNTIL((fleet_greet(&f), progress(&r).live == FLEET - DEAD));
    p = progress(&r);
    assert_int_equal(p.sources, FLEET);
    assert_int_equal(p.workers, FLEET);
    assert_int_equal(p.cold, DEAD);
    assert_int_equal(rows_all(&r), FLEET - DEAD);

    /* Half of the dead come to life, the others leave. */
    for (size_t i = 0; i < FLEET; i += 10)
        if (i % 20 == 0)
            fleet_begin(&f, i);
        else
            assert_int_equal(kve_ingest_remove(r.ingest, ids[i], NULL), KVE_OK);
    UNTIL((fleet_greet(&f), progress(&r).live == FLEET - DEAD / 2));
    assert_true(progress(&r).ready);
    assert_int_equal(rows_all(&r), FLEET - DEAD / 2);

    /* A new life at the same address, and a new registration. */
    for (size_t i = 1; i < FLEET; i += 10) {
        assert_int_equal(kve_ingest_remove(r.ingest, ids[i], NULL), KVE_OK);
        fleet_end(&f, i);
        fleet_begin(&f, i);
        ids[i] = follow(&r, i);
    }
    assert_int_equal(rows_all(&r), FLEET - DEAD / 2 - DEAD);
    UNTIL((fleet_greet(&f), progress(&r).live == FLEET - DEAD / 2));
    assert_int_equal(rows_all(&r), FLEET - DEAD / 2);
    rig_close_in(&r);
    fleet_close(&f);
    free(ids);
}

/* ---- removal under load ---------------------------------------------- */

struct load {
    struct fleet *f;
    atomic_bool done;
};

/* One thread is all engines. */
static void *
talk(void *arg)
{
    struct load *load = arg;

    while (!atomic_load(&load->done)) {
        fleet_greet(load->f);
        for (size_t i = 0; i < load->f->n; i++)
            if (load->f->heard[i])
                fleet_say(load->f, i);
        rest_ms(1);
    }
    return NULL;
}

/* While everybody talks a worker is removed: from then on no answer has it,
 * until it is added again. */
static void
test_remove_under_load(void **state)
{
    struct fleet f;
    struct rig r;
    struct load load;
    pthread_t thread;
    kve_ingest_id ids[8];
    kve_instance was;

    (void)state;
    fleet_open(&f, 8);
    rig_open_in(&r, &f, 0);
    for (size_t i = 0; i < 8; i++) {
        fleet_begin(&f, i);
        ids[i] = follow(&r, i);
    }
    load.f = &f;
    atomic_init(&load.done, false);
    assert_int_equal(pthread_create(&thread, NULL, talk, &load), 0);
    UNTIL(rows_of(&r, 3) == 8);
    for (unsigned round = 0; round < 40 / (TEST_SCALE > 1 ? 4 : 1); round++) {
        size_t i = round % 8;
        char worker[32];

        (void)snprintf(worker, sizeof(worker), "w%zu", i);
        UNTIL(rows_of(&r, 3) == 8 && held(&r, worker, 0, 3) == 6);
        was = rig_source(&r, ids[i]).instance;
        assert_int_equal(kve_ingest_remove(r.ingest, ids[i], NULL), KVE_OK);
        for (int k = 0; k < 50; k++) {
            assert_int_equal(held(&r, worker, 0, 3), 0);
            assert_int_equal(rows_of(&r, 3), 7);
        }
        assert_int_equal(kve_index_get_instance(
                             r.index, was, &(struct kve_index_instance){ 0 }),
            KVE_E_NOT_FOUND);
        ids[i] = follow(&r, i);
    }
    atomic_store(&load.done, true);
    pthread_join(thread, NULL);
    rig_close_in(&r);
    fleet_close(&f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_d14_one_dead),
        cmocka_unit_test(test_fleet),
        cmocka_unit_test(test_remove_under_load),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
