/*
 * test_sources.c - sources come, feed the index, and go.
 *
 * ctest-timeout: 300
 */
#include "rig.h"

#include "ingest/parts.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the plain way -------------------------------------------------- */

static void
test_follows(void **state)
{
    struct rig r;
    struct engine e;
    struct kve_ingest_source source = { .struct_size = sizeof(source) };
    struct kve_ingest_row row = { .struct_size = sizeof(row) };
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_say(&e, -1, "S[-]1,2,3");
    id = rig_follow(&r, &e, "w \"0\"", 0);
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(held(&r, "w \"0\"", 0, 4), 6);
    engine_say(&e, -1, "S[3]4; R 1");
    UNTIL(held(&r, "w \"0\"", 0, 4) == 0);
    engine_say(&e, -1, "S[-]1");
    UNTIL(held(&r, "w \"0\"", 0, 4) == 8);

    kve_ingest_read_begin(r.ingest);
    assert_int_equal(kve_ingest_source_of(r.ingest, id, &source), KVE_OK);
    assert_string_equal(source.worker, "w \"0\"");
    assert_string_equal(source.worker_json, "\"w \\\"0\\\"\"");
    assert_string_equal(source.model, "m");
    assert_string_equal(source.tenant, "default");
    assert_string_equal(source.endpoint, e.live);
    assert_string_equal(source.replay_endpoint, e.replay);
    assert_string_equal(source.snapshot_endpoint, "");
    assert_string_equal(source.last_error, "");
    assert_int_equal(source.origin, KVE_ORIGIN_API);
    assert_true(source.claimed && !source.restored && !source.paused);
    assert_true(source.connected && source.started);
    assert_int_equal(source.last_number, 2);
    assert_true(source.added_at > 1e9 && source.last_batch_at > 1e9);
    assert_true(source.state_since >= source.added_at - 1);
    assert_true(kve_ingest_row_of(r.ingest, source.instance, &row));
    assert_int_equal(row.source, id);
    assert_int_equal(row.state, KVE_STATE_LIVE);
    assert_int_equal(row.worker_json_len, strlen(source.worker_json));
    assert_false(kve_ingest_row_of(r.ingest, source.instance + 1, &row));
    /* In a read section as well. */
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INGEST_BATCHES), 3);
    kve_ingest_read_end(r.ingest);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_SUB_BATCHES), 3);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INDEX_BATCHES), 3);
    assert_int_equal(rig_count(&r, 0, KVE_COUNTER_INDEX_STORED), 5);
    assert_int_equal(rig_events(&r, id, KVE_INGEST_EVENT_BATCH), 3);
    assert_int_equal(rig_events(&r, id, KVE_INGEST_EVENT_ADDED), 1);
    assert_int_equal(kve_ingest_find(r.ingest, "m", NULL, "w \"0\"", 0), id);
    assert_int_equal(kve_ingest_find(r.ingest, "m", NULL, "w \"0\"", 1), 0);
    assert_int_equal(kve_ingest_find(r.ingest, "n", NULL, "w \"0\"", 0), 0);

    assert_int_equal(kve_ingest_remove(r.ingest, id, NULL), KVE_OK);
    assert_int_equal(held(&r, "w \"0\"", 0, 4), 0);
    assert_int_equal(rows_of(&r, 4), 0);
    assert_false(rig_exists(&r, id));
    assert_int_equal(kve_ingest_remove(r.ingest, id, NULL), KVE_E_NOT_FOUND);
    /* The totals remember it. */
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INGEST_BATCHES), 0);
    assert_int_equal(rig_count(&r, 0, KVE_COUNTER_INGEST_BATCHES), 3);
    assert_int_equal(rig_events(&r, id, KVE_INGEST_EVENT_REMOVED), 1);
    engine_close(&e);
    rig_close(&r);
}

static void
test_options(void **state)
{
    struct rig r;
    struct engine e = { NULL, "tcp://127.0.0.1:1", "" };
    struct kve_ingest_opts opts = KVE_INGEST_OPTS_INIT;
    struct kve_ingest_spec spec;
    struct {
        struct kve_ingest_spec spec;
        uint64_t more; /* what this library does not know */
    } newer;
    struct kve_error err = { .status = KVE_OK };
    kve_ingest *none = NULL;
    kve_ingest_id id = 77;
    kve_ingest_id first;

    (void)state;
    opts.max_sources = 2;
    rig_open(&r, &opts, NULL);
    first = rig_follow(&r, &e, "a", 0);
    spec = rig_spec(&e, "a", 0);
    assert_int_equal(kve_ingest_add(r.ingest, &spec, &id, &err), KVE_E_IN_USE);
    assert_int_equal(id, first);
    assert_non_null(strstr(err.detail, "127.0.0.1:1"));
    spec.worker = NULL;
    assert_int_equal(kve_ingest_add(r.ingest, &spec, &id, &err), KVE_E_INVAL);
    spec = rig_spec(&e, "b", 0);
    spec.source.endpoint = "tcp://nowhere";
    assert_int_equal(kve_ingest_add(r.ingest, &spec, &id, &err), KVE_E_INVAL);
    spec.source.endpoint = "udp://127.0.0.1:1";
    assert_int_equal(kve_ingest_add(r.ingest, &spec, &id, &err), KVE_E_INVAL);
    spec = rig_spec(&e, "b", 0);
    spec.source.on_loss = 99; /* only the subscriber knows */
    assert_int_equal(kve_ingest_add(r.ingest, &spec, &id, &err), KVE_E_INVAL);
    spec.source.on_loss = 0;
    spec.origin = KVE_ORIGIN_STREAM;
    assert_int_equal(kve_ingest_add(r.ingest, &spec, &id, &err), KVE_E_INVAL);
    spec.origin = 0;
    spec.counting = 3;
    assert_int_equal(kve_ingest_add(r.ingest, &spec, &id, &err), KVE_E_INVAL);
    spec.counting = 0;
    spec.topic_rule = 3;
    assert_int_equal(kve_ingest_add(r.ingest, &spec, &id, &err), KVE_E_INVAL);
    spec.topic_rule = 0;
    newer.spec = spec;
    newer.spec.struct_size = sizeof(newer);
    newer.more = 1;
    assert_int_equal(
        kve_ingest_add(r.ingest, &newer.spec, &id, &err), KVE_E_INVAL);
    assert_non_null(strstr(err.detail, "newer"));
    assert_int_equal(rig_events(&r, 0, KVE_INGEST_EVENT_ADDED), 1);
    assert_int_equal(rig_events(&r, 0, KVE_INGEST_EVENT_REMOVED), 0);
    (void)rig_follow(&r, &e, "b", 7);
    spec = rig_spec(&e, "c", 0);
    assert_int_equal(kve_ingest_add(r.ingest, &spec, &id, &err), KVE_E_LIMIT);
    assert_non_null(strstr(err.detail, "max_sources"));
    assert_int_equal(kve_ingest_remove(r.ingest, first, NULL), KVE_OK);
    (void)rig_follow(&r, &e, "c", 0);

    assert_int_equal(
        kve_ingest_create(NULL, NULL, NULL, &none, &err), KVE_E_INVAL);
    opts.threads = 1000;
    assert_int_equal(
        kve_ingest_create(NULL, r.index, &opts, &none, &err), KVE_E_INVAL);
    opts.threads = 0;
    opts.max_sources = 10000000;
    assert_int_equal(
        kve_ingest_create(NULL, r.index, &opts, &none, &err), KVE_E_INVAL);
    kve_ingest_destroy(NULL);
    assert_string_equal(kve_origin_str(KVE_ORIGIN_FILE), "file");
    assert_string_equal(kve_origin_str(99), "?");
    assert_string_equal(
        kve_ingest_event_str(KVE_INGEST_EVENT_BLOCK_SIZE), "block_size");
    assert_string_equal(kve_ingest_event_str(0), "?");
    rig_close(&r);
}

/* ---- ranks ---------------------------------------------------------- */

/* C14: a batch's own rank counts; one rank is cleared, and goes, alone. */
static void
test_c14_ranks(void **state)
{
    struct rig r;
    struct engine e;
    struct engine other;
    struct kve_ingest_row row = { .struct_size = sizeof(row) };
    struct kve_ingest_source source = { .struct_size = sizeof(source) };
    kve_ingest_id a0;
    kve_ingest_id a7;
    kve_instance rank1;
    size_t n = 0;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_open(&other, NULL);
    a0 = rig_follow(&r, &e, "A", 0);
    a7 = rig_follow(&r, &other, "A", 7);
    engine_say(&e, -1, "S[-]1,2");
    engine_say(&e, 1, "S[-]1,2,3");
    engine_say(&other, -1, "S[-]1");
    UNTIL(held(&r, "A", 1, 3) == 6 && held(&r, "A", 7, 3) == 2);
    assert_int_equal(held(&r, "A", 0, 3), 4);
    assert_int_equal(rig_count(&r, a0, KVE_COUNTER_INGEST_OTHER_RANK), 1);
    /* Both are the source's. */
    assert_int_equal(rig_count(&r, a0, KVE_COUNTER_INDEX_STORED), 5);

    engine_say(&e, 1, "C");
    UNTIL(held(&r, "A", 1, 3) == 0);
    assert_int_equal(held(&r, "A", 0, 3), 4);
    engine_say(&e, 1, "S[-]1,2,3");
    UNTIL(held(&r, "A", 1, 3) == 6);

    /* Rank 0 goes alone. */
    rank1 = kve_index_find(r.index, r.ns, "A", 1);
    assert_int_equal(kve_ingest_remove(r.ingest, a0, NULL), KVE_OK);
    assert_int_equal(held(&r, "A", 0, 3), 0);
    assert_int_equal(held(&r, "A", 1, 3), 6);
    assert_int_equal(held(&r, "A", 7, 3), 2);
    /* Nobody keeps it true any more, which answers say. */
    kve_ingest_read_begin(r.ingest);
    assert_true(kve_ingest_row_of(r.ingest, rank1, &row));
    assert_int_equal(row.state, KVE_STATE_DEGRADED);
    assert_int_equal(row.reason, KVE_REASON_REMOVED);
    assert_int_equal(row.source, 0);
    assert_int_equal(row.rank, 1);
    kve_ingest_read_end(r.ingest);

    /* A source of rank 1 begins with nothing. */
    assert_int_not_equal(rig_follow(&r, &e, "A", 1), 0);
    source = rig_source(&r, kve_ingest_find(r.ingest, "m", NULL, "A", 1));
    assert_int_not_equal(source.instance, rank1);
    UNTIL(held(&r, "A", 1, 3) == 6);

    /* The worker goes with all of its ranks. */
    assert_int_equal(
        kve_ingest_remove_worker(r.ingest, "m", NULL, "A", &n, NULL), KVE_OK);
    assert_int_equal(n, 2);
    assert_int_equal(rows_of(&r, 3), 0);
    assert_false(rig_exists(&r, a7));
    assert_int_equal(kve_index_find(r.index, r.ns, "A", 1), 0);
    assert_int_equal(
        kve_ingest_remove_worker(r.ingest, "m", NULL, "A", &n, NULL),
        KVE_E_NOT_FOUND);
    engine_close(&other);
    engine_close(&e);
    rig_close(&r);
}

/* With its last source all ranks of a worker go, those that only batches
 * named, too. */
static void
test_last_source(void **state)
{
    struct rig r;
    struct engine e;
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    id = rig_follow(&r, &e, "A", 0);
    engine_say(&e, 3, "S[-]1");
    UNTIL(held(&r, "A", 3, 1) == 2);
    assert_int_equal(kve_ingest_remove(r.ingest, id, NULL), KVE_OK);
    assert_int_equal(rows_of(&r, 1), 0);
    assert_int_equal(kve_index_find(r.index, r.ns, "A", 3), 0);
    engine_close(&e);
    rig_close(&r);
}

/* A rank that a source's batches name gets a source of its own, and loses it
 * again: what feeds it finds what is there. */
static void
test_rank_taken_over(void **state)
{
    struct rig r;
    struct engine e;
    struct engine own;
    kve_ingest_id a0;
    kve_ingest_id a1;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_open(&own, NULL);
    a0 = rig_follow(&r, &e, "A", 0);
    engine_say(&e, 1, "S[-]1");
    UNTIL(held(&r, "A", 1, 1) == 2);
    a1 = rig_follow(&r, &own, "A", 1);
    assert_int_equal(held(&r, "A", 1, 1), 0);
    engine_say(&own, -1, "S[-]1,2");
    UNTIL(held(&r, "A", 1, 3) == 4);
    engine_say(&e, 1, "S[2]3");
    UNTIL(held(&r, "A", 1, 3) == 6);
    /* What was dropped is missing from what the first one says. */
    assert_true(rig_source(&r, a0).incomplete);
    assert_false(rig_source(&r, a1).incomplete);
    assert_int_equal(kve_ingest_remove(r.ingest, a1, NULL), KVE_OK);
    assert_int_equal(held(&r, "A", 1, 3), 0);
    engine_say(&e, 1, "S[-]1");
    UNTIL(held(&r, "A", 1, 3) == 2);
    engine_close(&own);
    engine_close(&e);
    rig_close(&r);
}

/* A rank that can not be is said, and nothing else is lost. */
static void
test_impossible_rank(void **state)
{
    struct rig r;
    struct engine e;
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    id = rig_follow(&r, &e, "A", 0);
    view.rank.set = true;
    view.rank.value = -5;
    assert_int_equal(kve_pub_publish(e.pub, &view, NULL, NULL), KVE_OK);
    engine_say(&e, -1, "S[-]1");
    UNTIL(held(&r, "A", 0, 1) == 2);
    UNTIL(is_state(&r, id, KVE_STATE_DEGRADED, KVE_REASON_NOT_APPLIED));
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INGEST_FAILED), 1);
    assert_non_null(strstr(rig_error(&r, id), "rank -5"));
    assert_int_equal(rig_events(&r, id, KVE_INGEST_EVENT_NOT_APPLIED), 1);
    engine_close(&e);
    rig_close(&r);
}

/* ---- addresses ------------------------------------------------------ */

/* C29: what goes leaves nothing; the same name and address begin empty. */
static void
test_c29_new_life(void **state)
{
    struct rig r;
    struct engine e;
    kve_ingest_id first;
    kve_ingest_id second;
    kve_instance was;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_say(&e, -1, "S[-]1,2,3");
    first = rig_follow(&r, &e, "pod", 0);
    UNTIL(held(&r, "pod", 0, 3) == 6);
    was = rig_source(&r, first).instance;
    engine_close(&e);
    assert_int_equal(kve_ingest_remove(r.ingest, first, NULL), KVE_OK);
    assert_int_equal(rows_of(&r, 3), 0);

    /* Nobody is there yet. */
    second = rig_follow(&r, &e, "pod", 0);
    assert_int_not_equal(second, first);
    assert_int_not_equal(rig_source(&r, second).instance, was);
    assert_int_equal(rows_of(&r, 3), 0);
    engine_reopen(&e);
    engine_say(&e, -1, "S[-]1");
    UNTIL(is_state(&r, second, LIVE));
    UNTIL(held(&r, "pod", 0, 3) == 2);
    engine_close(&e);
    rig_close(&r);
}

/* D13: several engines at one address: one goes, the others stay. */
static void
test_d13_one_host(void **state)
{
    struct rig r;
    struct engine e[3];
    kve_ingest_id ids[3];
    const char *names[] = { "p0", "p1", "p2" };

    (void)state;
    rig_open(&r, NULL, NULL);
    for (size_t i = 0; i < 3; i++) {
        engine_open(&e[i], NULL);
        engine_say(&e[i], -1, "S[-]1,2");
        ids[i] = rig_follow(&r, &e[i], names[i], 0);
    }
    for (size_t i = 0; i < 3; i++)
        UNTIL(held(&r, names[i], 0, 2) == 4);
    assert_int_equal(kve_ingest_remove(r.ingest, ids[1], NULL), KVE_OK);
    assert_int_equal(held(&r, "p0", 0, 2), 4);
    assert_int_equal(held(&r, "p1", 0, 2), 0);
    assert_int_equal(held(&r, "p2", 0, 2), 4);
    engine_close(&e[2]);
    engine_say(&e[0], -1, "S[2]3");
    UNTIL(held(&r, "p0", 0, 3) == 6);
    assert_int_equal(held(&r, "p2", 0, 2), 4);
    engine_close(&e[0]);
    engine_close(&e[1]);
    rig_close(&r);
}

/* ---- block sizes ---------------------------------------------------- */

/* C22: the stream's size counts; that another one was registered is said
 * once, with both. */
static void
test_c22_block_size(void **state)
{
    struct rig r;
    struct engine e;
    struct kve_ingest_spec spec;
    struct kve_index_instance instance;
    const struct rig_event *event;
    kve_ingest_id id;
    kve_ingest_id right;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    spec = rig_spec(&e, "wrong", 0);
    spec.block_size = 768;
    id = rig_add(&r, &spec);
    spec = rig_spec(&e, "right", 0);
    spec.block_size = 2;
    right = rig_add(&r, &spec);
    engine_say(&e, -1, "S[-]1,2; S[2]3");
    engine_say(&e, -1, "S[3]4");
    UNTIL(held(&r, "wrong", 0, 4) == 8 && held(&r, "right", 0, 4) == 8);
    UNTIL(is_state(&r, id, LIVE));
    assert_true(rig_source(&r, id).block_size_differs);
    assert_int_equal(rig_source(&r, id).block_size, 768);
    assert_false(rig_source(&r, right).block_size_differs);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INGEST_BLOCK_SIZE), 1);
    assert_int_equal(rig_events(&r, id, KVE_INGEST_EVENT_BLOCK_SIZE), 1);
    assert_int_equal(rig_events(&r, 0, KVE_INGEST_EVENT_BLOCK_SIZE), 1);
    event = rig_event(&r, id, KVE_INGEST_EVENT_BLOCK_SIZE);
    assert_non_null(strstr(event->detail, "768"));
    assert_non_null(strstr(event->detail, "of 2 tokens"));
    assert_non_null(strstr(rig_error(&r, id), "768"));
    assert_int_equal(
        kve_index_get_instance(r.index, rig_source(&r, id).instance, &instance),
        KVE_OK);
    assert_int_equal(instance.n_block_sizes, 1);
    assert_int_equal(instance.block_sizes[0], 2);

    /* A further size once more, whatever it is. */
    engine_say(&e, -1, "S[4]5 b=4 t=1234");
    engine_say(&e, -1, "S[5]6 b=4 t=1235");
    UNTIL(rig_count(&r, id, KVE_COUNTER_INGEST_BATCHES) == 4);
    UNTIL(rig_count(&r, id, KVE_COUNTER_INGEST_BLOCK_SIZE) == 2);
    engine_close(&e);
    rig_close(&r);
}

/* ---- what is not applied -------------------------------------------- */

static void
test_not_applied(void **state)
{
    struct rig r;
    struct engine e;
    struct kve_index_opts index = KVE_INDEX_OPTS_INIT;
    kve_ingest_id id;

    (void)state;
    index.max_scopes = 1;
    rig_open(&r, NULL, &index);
    engine_open(&e, NULL);
    engine_say(&e, -1, "S[-]1,2");
    id = rig_follow(&r, &e, "A", 0);
    UNTIL(is_state(&r, id, LIVE));
    assert_false(rig_source(&r, id).incomplete);
    engine_say(&e, -1, "S[-]1 @cpu e=; S[2]3");
    UNTIL(is_state(&r, id, KVE_STATE_DEGRADED, KVE_REASON_NOT_APPLIED));
    UNTIL(held(&r, "A", 0, 3) == 6);
    assert_true(rig_source(&r, id).incomplete);
    UNTIL(rig_events(&r, id, KVE_INGEST_EVENT_NOT_APPLIED) == 1);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INGEST_NOT_APPLIED), 1);
    assert_int_equal(
        rig_event(&r, id, KVE_INGEST_EVENT_NOT_APPLIED)->number, 1);
    assert_non_null(strstr(rig_error(&r, id), "batch 1"));

    /* Its publisher's next life begins whole. */
    engine_close(&e);
    engine_reopen(&e);
    engine_say(&e, -1, "S[-]1");
    UNTIL(held(&r, "A", 0, 3) == 2);
    UNTIL(is_state(&r, id, LIVE));
    assert_false(rig_source(&r, id).incomplete);
    engine_close(&e);
    rig_close(&r);
}

/* ---- restarts, losses ----------------------------------------------- */

static void
test_restart(void **state)
{
    struct rig r;
    struct engine e;
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_say(&e, -1, "S[-]1,2,3");
    engine_say(&e, 1, "S[-]1,2");
    id = rig_follow(&r, &e, "A", 0);
    UNTIL(is_state(&r, id, LIVE));
    UNTIL(held(&r, "A", 1, 2) == 4);
    engine_close(&e);
    engine_reopen(&e);
    engine_say(&e, -1, "S[-]1");
    UNTIL(held(&r, "A", 0, 3) == 2);
    /* All of its ranks. */
    UNTIL(held(&r, "A", 1, 2) == 0);
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INGEST_CLEARED), 1);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_SUB_RESTARTS), 1);
    assert_true(rig_events(&r, id, KVE_INGEST_EVENT_NOTICE) > 3);
    engine_close(&e);
    rig_close(&r);
}

/* Batches that replay has no more: a twin is built of what it has, for each
 * rank, and takes the place of what was known. */
static void
test_loss_rebuilds(void **state)
{
    struct rig r;
    struct engine e;
    struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;
    struct kve_ingest_source source = { .struct_size = sizeof(source) };
    struct kve_ingest_row row = { .struct_size = sizeof(row) };
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    opts.buffer_steps = 3;
    engine_open(&e, &opts);
    engine_say(&e, -1, "S[-]1,2,3,4");
    engine_say(&e, 1, "S[-]1,2,3");
    engine_say(&e, 2, "S[-]1,2,3");
    id = rig_follow(&r, &e, "A", 0);
    UNTIL(is_state(&r, id, LIVE));
    UNTIL(held(&r, "A", 2, 3) == 6);
    for (int i = 0; i < 5; i++)
        engine_lose(&e, -1, "S[4]5");
    engine_say(&e, -1, "S[-]1,2");
    engine_say(&e, 1, "S[-]1");
    UNTIL(rig_count(&r, id, KVE_COUNTER_INGEST_SWAPPED) == 1);
    UNTIL(held(&r, "A", 0, 5) == 4);
    UNTIL(held(&r, "A", 1, 5) == 2);
    /* A rank that had nothing in the rest is empty now. */
    assert_int_equal(held(&r, "A", 2, 5), 0);
    UNTIL(is_state(&r, id, KVE_STATE_DEGRADED, KVE_REASON_LOST));
    source = rig_source(&r, id);
    assert_true(source.has_missing);
    assert_true(source.missing_last >= source.missing_first);
    assert_false(source.incomplete);
    assert_non_null(strstr(rig_error(&r, id), "lost"));
    kve_ingest_read_begin(r.ingest);
    assert_true(kve_ingest_row_of(r.ingest, source.instance, &row));
    assert_int_equal(row.state, KVE_STATE_DEGRADED);
    assert_int_equal(row.reason, KVE_REASON_LOST);
    kve_ingest_read_end(r.ingest);
    engine_close(&e);
    rig_close(&r);
}

/* A lost batch that replay still has comes in its place. */
static void
test_gap_repaired(void **state)
{
    struct rig r;
    struct engine e;
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_say(&e, -1, "S[-]1");
    id = rig_follow(&r, &e, "A", 0);
    UNTIL(is_state(&r, id, LIVE));
    engine_lose(&e, -1, "S[1]2");
    engine_say(&e, -1, "S[2]3");
    UNTIL(held(&r, "A", 0, 3) == 6);
    UNTIL(is_state(&r, id, LIVE));
    UNTIL(rig_count(&r, id, KVE_COUNTER_SUB_REPAIRED) == 1);
    engine_close(&e);
    rig_close(&r);
}

/* ---- clear, lists, progress ----------------------------------------- */

static void
test_clear(void **state)
{
    struct rig r;
    struct engine e;
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_say(&e, -1, "S[-]1,2; S[-]1,2,3 @cpu e=");
    id = rig_follow(&r, &e, "A", 0);
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(
        kve_ingest_clear(r.ingest, id, 1u << KVE_TIER_CPU, NULL), KVE_OK);
    assert_int_equal(held(&r, "A", 0, 3), 4);
    assert_int_equal(kve_ingest_clear(r.ingest, id, 0, NULL), KVE_OK);
    assert_int_equal(held(&r, "A", 0, 3), 0);
    assert_int_equal(
        kve_ingest_clear(r.ingest, id, 1u << 20, NULL), KVE_E_INVAL);
    assert_int_equal(kve_ingest_clear(r.ingest, 999, 0, NULL), KVE_E_NOT_FOUND);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INGEST_CLEARED), 2);
    assert_int_equal(rig_events(&r, id, KVE_INGEST_EVENT_CLEARED), 2);
    /* The stream goes on. */
    engine_say(&e, -1, "S[-]1");
    UNTIL(held(&r, "A", 0, 3) == 2);
    engine_close(&e);
    rig_close(&r);
}

struct list {
    kve_ingest_id ids[8];
    size_t n;
    size_t stop;
};

static bool
visit(void *ctx, const struct kve_ingest_source *source)
{
    struct list *list = ctx;

    list->ids[list->n++] = source->id;
    return list->n != list->stop;
}

static size_t
list(struct rig *r, const char *model, const char *tenant, const char *worker,
    struct list *ret)
{
    struct kve_ingest_filter filter = { sizeof(filter), model, tenant, worker };
    size_t n;

    ret->n = 0;
    kve_ingest_read_begin(r->ingest);
    n = kve_ingest_sources(r->ingest, &filter, visit, ret);
    kve_ingest_read_end(r->ingest);
    assert_int_equal(n, ret->n);
    return n;
}

/* A save that copies a source holds a batch of a new rank up, and no reader. */
static void
test_new_rank_while_saved(void **state)
{
    struct rig r;
    struct engine e;
    struct kve_source_entry *entry;
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    id = rig_follow(&r, &e, "A", 0);
    engine_say(&e, -1, "S[-]1");
    UNTIL(held(&r, "A", 0, 1) == 2);
    entry = kve_ingest_entry(r.ingest, id);
    pthread_mutex_lock(&entry->applying);
    engine_say(&e, 1, "S[-]1,2");
    rig_reads_go_on(&r);
    assert_int_equal(held(&r, "A", 1, 2), 0);
    pthread_mutex_unlock(&entry->applying);
    kve_entry_unref(entry);
    UNTIL(held(&r, "A", 1, 2) == 4);
    engine_close(&e);
    rig_close(&r);
}

/* Callers of another release have other sizes of what is read into. */
static void
test_sizes_of_callers(void **state)
{
    struct rig r;
    struct engine e = { NULL, "tcp://127.0.0.1:1", "" };
    struct {
        struct kve_ingest_filter filter;
        const char *later;
    } newer = { { sizeof(newer), "m", NULL, NULL }, NULL };
    struct kve_ingest_source source;
    struct kve_ingest_progress progress;
    struct list l = { .stop = 0 };
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    id = rig_follow(&r, &e, "a", 0);
    memset(&source, 0x55, sizeof(source));
    memset(&progress, 0x55, sizeof(progress));
    kve_ingest_read_begin(r.ingest);
    source.struct_size = 0;
    assert_int_equal(kve_ingest_source_of(r.ingest, id, &source), KVE_E_INVAL);
    source.struct_size = offsetof(struct kve_ingest_source, ns);
    assert_int_equal(kve_ingest_source_of(r.ingest, id, &source), KVE_OK);
    assert_int_equal(
        source.struct_size, offsetof(struct kve_ingest_source, ns));
    assert_int_equal(source.id, id);
    assert_int_not_equal(source.instance, 0);
    for (size_t i = source.struct_size; i < sizeof(source); i++)
        assert_int_equal(((uint8_t *)&source)[i], 0x55);
    source.struct_size = 2 * sizeof(source);
    assert_int_equal(kve_ingest_source_of(r.ingest, id, &source), KVE_OK);
    assert_int_equal(source.struct_size, 2 * sizeof(source));
    assert_string_equal(source.worker, "a");

    assert_int_equal(kve_ingest_sources(r.ingest, &newer.filter, visit, &l), 1);
    newer.later = "what this library can not know";
    assert_int_equal(kve_ingest_sources(r.ingest, &newer.filter, visit, &l), 0);
    newer.filter = (struct kve_ingest_filter){ .worker = "b" };
    newer.later = NULL;
    assert_int_equal(kve_ingest_sources(r.ingest, &newer.filter, visit, &l), 0);
    kve_ingest_read_end(r.ingest);

    progress.struct_size = offsetof(struct kve_ingest_progress, live);
    kve_ingest_get_progress(r.ingest, &progress);
    assert_int_equal(progress.sources, 1);
    for (size_t i = progress.struct_size; i < sizeof(progress); i++)
        assert_int_equal(((uint8_t *)&progress)[i], 0x55);
    rig_close(&r);
}

static void
test_lists(void **state)
{
    struct rig r;
    struct engine e = { NULL, "tcp://127.0.0.1:1", "" };
    struct kve_ingest_spec spec;
    struct kve_ingest_progress progress = { .struct_size = sizeof(progress) };
    struct list l = { .stop = 0 };
    kve_ingest_id ids[4];

    (void)state;
    rig_open(&r, NULL, NULL);
    ids[0] = rig_follow(&r, &e, "a", 0);
    ids[1] = rig_follow(&r, &e, "b", 0);
    ids[2] = rig_follow(&r, &e, "a", 1);
    spec = rig_spec(&e, "a", 0);
    spec.model = "other";
    spec.tenant = "t";
    ids[3] = rig_add(&r, &spec);
    assert_int_equal(list(&r, NULL, NULL, NULL, &l), 4);
    assert_memory_equal(l.ids, ids, sizeof(ids));
    assert_int_equal(list(&r, "m", NULL, NULL, &l), 3);
    assert_int_equal(list(&r, NULL, "t", NULL, &l), 1);
    assert_int_equal(list(&r, "m", "default", "a", &l), 2);
    assert_int_equal(l.ids[1], ids[2]);
    assert_int_equal(list(&r, "m", "default", "x", &l), 0);
    l.stop = 2;
    assert_int_equal(list(&r, NULL, NULL, NULL, &l), 2);

    kve_ingest_get_progress(r.ingest, &progress);
    assert_int_equal(progress.sources, 4);
    assert_int_equal(progress.cold, 4);
    assert_int_equal(progress.workers, 3);
    assert_int_equal(progress.namespaces, 2);
    assert_false(progress.ready);
    assert_int_equal(kve_ingest_remove(r.ingest, ids[3], NULL), KVE_OK);
    kve_ingest_get_progress(r.ingest, &progress);
    assert_int_equal(progress.workers, 2);
    assert_int_equal(progress.namespaces, 1);
    rig_close(&r);
}

/* D15: how far the whole is, in numbers; one that does not come back does not
 * keep it from being ready for ever. */
static void
test_d15_progress(void **state)
{
    struct rig r;
    struct engine e;
    struct engine dead = { NULL, "tcp://127.0.0.1:1", "" };
    struct kve_ingest_opts opts = KVE_INGEST_OPTS_INIT;
    struct kve_ingest_progress p = { .struct_size = sizeof(p) };
    kve_ingest_id id;
    kve_ingest_id none;

    (void)state;
    opts.recovery_limit_ms = 300;
    rig_open(&r, &opts, NULL);
    kve_ingest_get_progress(r.ingest, &p);
    assert_true(p.ready);
    assert_int_equal(p.sources, 0);
    engine_open(&e, NULL);
    none = rig_follow(&r, &dead, "dead", 0);
    id = rig_follow(&r, &e, "A", 0);
    kve_ingest_get_progress(r.ingest, &p);
    assert_int_equal(p.sources, 2);
    assert_int_equal(p.live + p.cold + p.recovering, 2);
    UNTIL(is_state(&r, id, LIVE));
    UNTIL((kve_ingest_get_progress(r.ingest, &p), p.ready));
    assert_int_equal(p.live, 1);
    assert_int_equal(p.cold, 1);
    assert_int_equal(p.past_limit, 1);
    assert_int_equal(kve_ingest_pause(r.ingest, none, NULL), KVE_OK);
    kve_ingest_get_progress(r.ingest, &p);
    assert_int_equal(p.sources, 1);
    assert_int_equal(p.paused, 1);
    assert_int_equal(p.past_limit, 0);
    assert_true(p.ready);
    assert_false(rig_source(&r, none).connected);
    engine_close(&e);
    rig_close(&r);
}

/* ---- fork ------------------------------------------------------------ */

/* A child may only free what it has. */
static void
test_fork(void **state)
{
    struct rig r;
    struct engine e;
    kve_ingest_id id;
    pid_t child;
    int status = -1;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_say(&e, -1, "S[-]1");
    id = rig_follow(&r, &e, "A", 0);
    UNTIL(is_state(&r, id, LIVE));
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60);
        kve_ingest_destroy(r.ingest);
        _exit(7);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 7);
    engine_say(&e, -1, "S[1]2");
    UNTIL(held(&r, "A", 0, 2) == 4);
    engine_close(&e);
    rig_close(&r);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_follows),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_c14_ranks),
        cmocka_unit_test(test_last_source),
        cmocka_unit_test(test_rank_taken_over),
        cmocka_unit_test(test_impossible_rank),
        cmocka_unit_test(test_c29_new_life),
        cmocka_unit_test(test_d13_one_host),
        cmocka_unit_test(test_c22_block_size),
        cmocka_unit_test(test_not_applied),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_loss_rebuilds),
        cmocka_unit_test(test_gap_repaired),
        cmocka_unit_test(test_clear),
        cmocka_unit_test(test_new_rank_while_saved),
        cmocka_unit_test(test_sizes_of_callers),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_d15_progress),
        cmocka_unit_test(test_fork),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
