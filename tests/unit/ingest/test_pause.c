/*
 * test_pause.c - sources that are not followed for a while.
 *
 * ctest-timeout: 300
 */
#include "rig.h"

#include <stdio.h>
#include <string.h>

/* Copies of all blocks that the worker's rank holds: what is applied twice
 * shows here. */
static uint64_t
copies(struct rig *r)
{
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;

    assert_int_equal(kve_index_get_stats(r->index, 0, &stats), KVE_OK);
    return stats.copies;
}

/* Nothing is missing after a pause, and nothing is there twice. */
static void
test_pause(void **state)
{
    struct rig r;
    struct engine e;
    struct kve_ingest_source source = { .struct_size = sizeof(source) };
    struct kve_ingest_row row = { .struct_size = sizeof(row) };
    kve_ingest_id id;
    uint64_t batches;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_say(&e, -1, "S[-]1,2");
    id = rig_follow(&r, &e, "A", 0);
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(kve_ingest_resume(r.ingest, id, NULL), KVE_E_IN_USE);
    assert_int_equal(kve_ingest_pause(r.ingest, id, NULL), KVE_OK);
    assert_int_equal(kve_ingest_pause(r.ingest, id, NULL), KVE_E_IN_USE);
    assert_true(is_state(&r, id, KVE_STATE_DEGRADED, KVE_REASON_PAUSED));
    source = rig_source(&r, id);
    assert_true(source.paused);
    assert_false(source.connected);
    assert_true(source.started);
    assert_int_equal(source.last_number, 0);
    kve_ingest_read_begin(r.ingest);
    assert_true(kve_ingest_row_of(r.ingest, source.instance, &row));
    assert_int_equal(row.reason, KVE_REASON_PAUSED);
    kve_ingest_read_end(r.ingest);
    batches = rig_count(&r, id, KVE_COUNTER_SUB_BATCHES);
    assert_int_equal(batches, 1);

    for (int i = 0; i < 10; i++)
        engine_say(&e, -1, i == 0 ? "S[2]3" : "S[3]4; R 4");
    rest_ms(100);
    assert_int_equal(held(&r, "A", 0, 4), 4);
    assert_int_equal(kve_ingest_resume(r.ingest, id, NULL), KVE_OK);
    UNTIL(held(&r, "A", 0, 4) == 6);
    UNTIL(is_state(&r, id, LIVE));
    engine_say(&e, -1, "S[3]4");
    UNTIL(held(&r, "A", 0, 4) == 8);
    assert_int_equal(copies(&r), 4);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INGEST_RESUMED), 1);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INGEST_CLEARED), 0);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INGEST_BATCHES), 12);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_SUB_BATCHES), 12);
    assert_int_equal(rig_events(&r, id, KVE_INGEST_EVENT_PAUSED), 1);
    assert_int_equal(rig_events(&r, id, KVE_INGEST_EVENT_RESUMED), 1);
    assert_int_equal(kve_ingest_pause(r.ingest, 999, NULL), KVE_E_NOT_FOUND);
    assert_int_equal(kve_ingest_resume(r.ingest, 999, NULL), KVE_E_NOT_FOUND);
    engine_close(&e);
    rig_close(&r);
}

/* Again and again, while the engine talks. */
static void
test_pause_often(void **state)
{
    struct rig r;
    struct engine e;
    kve_ingest_id id;
    char text[64];
    unsigned n = 0;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_say(&e, -1, "S[-]1");
    id = rig_follow(&r, &e, "A", 0);
    for (int i = 0; i < 10; i++) {
        for (int k = 0; k < 10; k++) {
            n++;
            (void)snprintf(
                text, sizeof(text), "S[%u]%u; S[%u]%u", n, n + 1, n, n + 1);
            engine_say(&e, -1, text);
        }
        if (i % 2 == 0)
            assert_int_equal(kve_ingest_pause(r.ingest, id, NULL), KVE_OK);
        else
            assert_int_equal(kve_ingest_resume(r.ingest, id, NULL), KVE_OK);
        rest_ms(20);
    }
    UNTIL(held(&r, "A", 0, n + 1) == 2 * (n + 1));
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(copies(&r), 2 * n + 1);
    engine_close(&e);
    rig_close(&r);
}

/* The publisher's next life began meanwhile: nothing of the one before is
 * left. */
static void
test_restart_meanwhile(void **state)
{
    struct rig r;
    struct engine e;
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_say(&e, -1, "S[-]1,2");
    engine_say(&e, -1, "S[2]3");
    id = rig_follow(&r, &e, "A", 0);
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(kve_ingest_pause(r.ingest, id, NULL), KVE_OK);
    engine_close(&e);
    engine_reopen(&e);
    engine_say(&e, -1, "S[-]1");
    engine_say(&e, -1, "S[-]9");
    engine_say(&e, -1, "R 9");
    assert_int_equal(held(&r, "A", 0, 3), 6);
    assert_int_equal(kve_ingest_resume(r.ingest, id, NULL), KVE_OK);
    UNTIL(held(&r, "A", 0, 3) == 2);
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(copies(&r), 1);
    engine_close(&e);
    rig_close(&r);
}

/* Paused before anything came: it begins when it is resumed. */
static void
test_paused_cold(void **state)
{
    struct rig r;
    struct engine e;
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_close(&e);
    id = rig_follow(&r, &e, "A", 0);
    assert_int_equal(kve_ingest_pause(r.ingest, id, NULL), KVE_OK);
    engine_reopen(&e);
    engine_say(&e, -1, "S[-]1,2");
    rest_ms(50);
    assert_int_equal(rows_of(&r, 2), 0);
    assert_int_equal(kve_ingest_resume(r.ingest, id, NULL), KVE_OK);
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(held(&r, "A", 0, 2), 4);
    assert_int_equal(copies(&r), 2);

    /* Removed while paused. */
    assert_int_equal(kve_ingest_pause(r.ingest, id, NULL), KVE_OK);
    assert_int_equal(kve_ingest_remove(r.ingest, id, NULL), KVE_OK);
    assert_int_equal(rows_of(&r, 2), 0);
    engine_close(&e);
    rig_close(&r);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pause),
        cmocka_unit_test(test_pause_often),
        cmocka_unit_test(test_restart_meanwhile),
        cmocka_unit_test(test_paused_cold),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
