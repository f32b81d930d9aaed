/*
 * test_failures.c - memory runs out in the middle of a change.
 *
 * ctest-timeout: 600
 *
 * Each allocation of a change fails in turn. A change that says so left nothing
 * behind: nothing shows, nothing leaks, and the same change works right after.
 * The library's own threads may meet the failure instead; then the change
 * succeeds, and the source says what it lost.
 */
#include "rig.h"

#include "base/alloc.h"
#include "support/scale.h"

#include <string.h>

#define MOST 400u

static size_t
n_sources(struct rig *r)
{
    struct kve_ingest_progress p = { .struct_size = sizeof(p) };

    kve_ingest_get_progress(r->ingest, &p);
    return p.sources + p.paused;
}

/* A dead address: the sockets' threads have nothing to do. */
static const struct engine nowhere = { NULL, "inproc://nobody", "" };

static void
test_create(void **state)
{
    kve_index *index = NULL;
    kve_ingest *ingest = NULL;
    int64_t live;
    unsigned n = 0;
    kve_status status;

    (void)state;
    assert_int_equal(kve_index_create(NULL, &index, NULL), KVE_OK);
    live = kve_mem_live();
    do {
        kve_mem_fail_at(++n, false);
        status = kve_ingest_create(NULL, index, NULL, &ingest, NULL);
        kve_mem_fail_at(0, false);
        if (status != KVE_OK) {
            assert_int_equal(status, KVE_E_NOMEM);
            assert_null(ingest);
            assert_int_equal(kve_mem_live(), live);
        }
    } while (status != KVE_OK && n < MOST);
    assert_int_equal(status, KVE_OK);
    assert_true(n > 3);
    kve_ingest_destroy(ingest);
    assert_int_equal(kve_mem_live(), live);
    kve_index_destroy(index);
}

/* The n-th allocation of an add fails, for every n; others are there. */
static void
test_add(void **state)
{
    struct rig r;
    struct kve_ingest_spec spec = rig_spec(&nowhere, "new", 0);
    kve_ingest_id id = 0;
    unsigned n = 0;
    unsigned failed = 0;
    kve_status status;

    (void)state;
    rig_open(&r, NULL, NULL);
    (void)rig_follow(&r, &nowhere, "old", 0);
    spec.found_in = "file";
    spec.engine = "e";
    do {
        kve_mem_fail_at(++n, false);
        status = kve_ingest_add(r.ingest, &spec, &id, NULL);
        bool met = kve_mem_failed();
        kve_mem_fail_at(0, false);
        if (status != KVE_OK) {
            assert_int_equal(status, KVE_E_NOMEM);
            assert_int_equal(n_sources(&r), 1);
            assert_int_equal(kve_ingest_find(r.ingest, "m", NULL, "new", 0), 0);
            assert_int_equal(kve_index_find(r.index, r.ns, "new", 0), 0);
            failed++;
        } else {
            assert_int_equal(n_sources(&r), 2);
            assert_int_equal(kve_ingest_remove(r.ingest, id, NULL), KVE_OK);
            if (!met)
                break;
        }
    } while (n < MOST);
    assert_true(n < MOST);
    assert_true(failed > 8);
    assert_int_equal(kve_ingest_add(r.ingest, &spec, &id, NULL), KVE_OK);
    rig_close(&r);
}

/* Removal needs no memory. */
static void
test_remove(void **state)
{
    struct rig r;
    struct engine e;
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_say(&e, -1, "S[-]1,2");
    id = rig_follow(&r, &e, "A", 0);
    UNTIL(is_state(&r, id, LIVE));
    kve_mem_fail_at(1, true);
    kve_status status = kve_ingest_remove(r.ingest, id, NULL);
    bool shows = kve_index_find(r.index, r.ns, "A", 0) != 0;
    kve_mem_fail_at(0, false);
    assert_int_equal(status, KVE_OK);
    assert_false(shows);
    assert_int_equal(n_sources(&r), 0);
    engine_close(&e);
    rig_close(&r);
}

/* Resuming may fail; the source is paused then, and can be resumed again. */
static void
test_resume(void **state)
{
    struct rig r;
    struct engine e;
    kve_ingest_id id;
    unsigned failed = 0;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_say(&e, -1, "S[-]1,2");
    id = rig_follow(&r, &e, "A", 0);
    UNTIL(is_state(&r, id, LIVE));
    for (unsigned n = 1; n < 30; n++) {
        assert_int_equal(kve_ingest_pause(r.ingest, id, NULL), KVE_OK);
        kve_mem_fail_at(n, false);
        kve_status status = kve_ingest_resume(r.ingest, id, NULL);
        kve_mem_fail_at(0, false);
        if (status == KVE_OK)
            continue;
        failed++;
        assert_int_equal(status, KVE_E_NOMEM);
        assert_true(is_state(&r, id, KVE_STATE_DEGRADED, KVE_REASON_PAUSED));
        assert_int_equal(held(&r, "A", 0, 2), 4);
        assert_int_equal(kve_ingest_resume(r.ingest, id, NULL), KVE_OK);
    }
    assert_true(failed > 0);
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(held(&r, "A", 0, 2), 4);
    engine_close(&e);
    rig_close(&r);
}

/* No memory where a batch is applied: what is missing is said, and whatever is
 * said to be held was said by the engine. */
static void
test_apply(void **state)
{
    struct rig r;
    struct engine e;
    kve_ingest_id id;
    unsigned said = 0;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    id = rig_follow(&r, &e, "A", 0);
    engine_say(&e, -1, "S[-]1");
    UNTIL(is_state(&r, id, LIVE));
    for (unsigned n = 1; n <= 24; n++) {
        uint64_t batches = rig_count(&r, id, KVE_COUNTER_INGEST_BATCHES);

        kve_mem_fail_at(n, true);
        /* Other ranks need most: rows, feeds, instances. The publisher's
         * threads are of this process as well, and may drop it instead. */
        struct kve_batch_view view = KVE_BATCH_VIEW_INIT;

        view.rank.set = true;
        view.rank.value = n;
        kve_status status = kve_pub_publish(e.pub, &view, NULL, NULL);
        rest_ms(20);
        kve_mem_fail_at(0, false);
        if (status != KVE_OK)
            continue;
        UNTIL(rig_count(&r, id, KVE_COUNTER_INGEST_BATCHES) > batches);
        said++;
    }
    assert_true(said > 0);
    if (rig_count(&r, id, KVE_COUNTER_INGEST_FAILED) > 0) {
        assert_true(rig_source(&r, id).incomplete);
        UNTIL(is_state(&r, id, KVE_STATE_DEGRADED, KVE_REASON_NOT_APPLIED));
    }
    assert_int_equal(held(&r, "A", 0, 1), 2);
    engine_say(&e, 1, "S[-]1");
    UNTIL(held(&r, "A", 1, 1) == 2);
    engine_close(&e);
    rig_close(&r);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_remove),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_apply),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
