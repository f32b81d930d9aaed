/*
 * test_restore.c - sources that a state brought: they go on, are claimed, or
 * leave.
 *
 * ctest-timeout: 300
 *
 * What a state keeps is taken from one ingest by hand, as its writer does, and
 * given to another one.
 */
#include "rig.h"

#include "base/alloc.h"
#include "ingest/parts.h"
#include "support/eventtext.h"
#include "support/port.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where a source stands. */
static struct kve_position
position_of(struct rig *r, kve_ingest_id id)
{
    struct kve_source_entry **entries = NULL;
    struct kve_position position = { 0 };
    size_t n = 0;

    kve_ingest_lock(r->ingest);
    assert_int_equal(kve_ingest_list(r->ingest, &entries, &n, NULL), KVE_OK);
    for (size_t i = 0; i < n; i++) {
        if (entries[i]->id == id) {
            pthread_mutex_lock(&entries[i]->applying);
            position = entries[i]->position;
            pthread_mutex_unlock(&entries[i]->applying);
        }
        kve_entry_unref(entries[i]);
    }
    kve_mem_free(entries);
    kve_ingest_unlock(r->ingest);
    return position;
}

static void
fill(struct rig *r, kve_instance instance, const char *events)
{
    struct eventtext *et = calloc(1, sizeof(*et));
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;

    assert_non_null(et);
    eventtext_read(et, events);
    view.events = et->events;
    view.n_events = et->n_events;
    assert_int_equal(
        kve_index_apply(r->index, instance, &view, NULL, 0, NULL, NULL),
        KVE_OK);
    free(et);
}

/* Give it to the ingest, with what it held, and have it go on. */
static struct kve_source_entry *
restore(struct rig *r, const struct kve_entry_seed *seed, const char *events)
{
    struct kve_source_entry *e = NULL;
    struct kve_error err = { .status = KVE_OK };
    kve_instance instance = 0;

    kve_ingest_lock(r->ingest);
    if (kve_entry_restore(r->ingest, seed, &e, &err) != KVE_OK)
        fail_msg("%s", err.detail);
    if (events != NULL) {
        assert_int_equal(
            kve_entry_instance(e, e->rank, &instance, &err), KVE_OK);
        fill(r, instance, events);
    }
    kve_ingest_unlock(r->ingest);
    return e;
}

static void
follow(struct rig *r, struct kve_source_entry *e)
{
    struct kve_error err = { .status = KVE_OK };

    kve_ingest_lock(r->ingest);
    if (kve_entry_follow(e, &err) != KVE_OK)
        fail_msg("%s", err.detail);
    kve_ingest_unlock(r->ingest);
    kve_entry_unref(e);
}

static uint64_t
copies(struct rig *r)
{
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;

    assert_int_equal(kve_index_get_stats(r->index, 0, &stats), KVE_OK);
    return stats.copies;
}

/* ---- going on ------------------------------------------------------- */

/* Follow an engine to its second batch, and say where that was. */
static struct kve_position
stand(struct engine *e)
{
    struct rig r;
    struct kve_position position;
    kve_ingest_id id;

    rig_open(&r, NULL, NULL);
    engine_open(e, NULL);
    engine_say(e, -1, "S[-]1,2");
    engine_say(e, -1, "S[2]3");
    id = rig_follow(&r, e, "A", 0);
    UNTIL(is_state(&r, id, LIVE));
    position = position_of(&r, id);
    assert_true(position.started);
    assert_int_equal(position.number, 1);
    rig_close(&r);
    return position;
}

static void
test_goes_on(void **state)
{
    struct rig r;
    struct engine e;
    struct kve_ingest_spec spec;
    struct kve_entry_seed seed = { 0 };
    struct kve_ingest_source source = { .struct_size = sizeof(source) };
    struct kve_source_entry *entry;
    kve_ingest_id id;

    (void)state;
    seed.position = stand(&e);
    engine_say(&e, -1, "S[3]4");
    rig_open(&r, NULL, NULL);
    spec = rig_spec(&e, "A", 0);
    spec.origin = KVE_ORIGIN_OPTION;
    seed.spec = &spec;
    seed.added_at = 1234;
    entry = restore(&r, &seed, "S[-]1,2; S[2]3");
    id = entry->id;
    assert_true(is_state(&r, id, KVE_STATE_RECOVERING, KVE_REASON_RESUMED));
    source = rig_source(&r, id);
    assert_true(source.restored && !source.claimed && source.started);
    assert_int_equal(source.last_number, 1);
    assert_true(source.added_at == 1234);
    assert_int_equal(held(&r, "A", 0, 4), 6);
    follow(&r, entry);
    UNTIL(held(&r, "A", 0, 4) == 8);
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(copies(&r), 4);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INGEST_BATCHES), 1);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INGEST_RESUMED), 1);
    assert_true(rig_source(&r, id).restored);
    engine_close(&e);
    rig_close(&r);
}

/* The publisher's life is another one: what was restored goes. */
static void
test_other_life(void **state)
{
    struct rig r;
    struct engine e;
    struct kve_ingest_spec spec;
    struct kve_entry_seed seed = { 0 };
    struct kve_source_entry *entry;
    kve_ingest_id id;

    (void)state;
    seed.position = stand(&e);
    engine_close(&e);
    engine_reopen(&e);
    engine_say(&e, -1, "S[-]1");
    engine_say(&e, -1, "S[-]1");
    rig_open(&r, NULL, NULL);
    spec = rig_spec(&e, "A", 0);
    seed.spec = &spec;
    entry = restore(&r, &seed, "S[-]1,2; S[2]3");
    id = entry->id;
    follow(&r, entry);
    UNTIL(held(&r, "A", 0, 3) == 2);
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(copies(&r), 2);
    assert_false(rig_source(&r, id).restored);
    engine_close(&e);
    rig_close(&r);
}

/* Nothing to go on from: what it held is not believed, since the publisher
 * says all of it again. */
static void
test_no_position(void **state)
{
    struct rig r;
    struct engine e;
    struct kve_ingest_spec spec;
    struct kve_entry_seed seed = { 0 };
    struct kve_source_entry *entry;
    kve_ingest_id id;

    (void)state;
    (void)stand(&e);
    rig_open(&r, NULL, NULL);
    spec = rig_spec(&e, "A", 0);
    seed.spec = &spec;
    entry = restore(&r, &seed, "S[-]1,2,3,4");
    id = entry->id;
    follow(&r, entry);
    assert_int_not_equal(held(&r, "A", 0, 4), 8);
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(held(&r, "A", 0, 4), 6);
    assert_int_equal(copies(&r), 3);
    engine_close(&e);
    rig_close(&r);
}

/* ---- claims --------------------------------------------------------- */

static void
test_claimed(void **state)
{
    struct rig r;
    struct engine e;
    struct kve_ingest_spec spec;
    struct kve_entry_seed seed = { 0 };
    struct kve_ingest_source source = { .struct_size = sizeof(source) };
    struct kve_source_entry *entry;
    kve_ingest_id id;
    kve_ingest_id again = 0;
    unsigned origin = KVE_ORIGIN_FILE;

    (void)state;
    seed.position = stand(&e);
    rig_open(&r, NULL, NULL);
    spec = rig_spec(&e, "A", 0);
    spec.origin = KVE_ORIGIN_OPTION;
    seed.spec = &spec;
    entry = restore(&r, &seed, "S[-]1,2; S[2]3");
    id = entry->id;
    follow(&r, entry);

    /* The same source, asked for by somebody else: it is theirs now. */
    spec.origin = origin;
    spec.found_in = "targets.json";
    spec.block_size = 2;
    assert_int_equal(rig_add(&r, &spec), id);
    kve_ingest_read_begin(r.ingest);
    assert_int_equal(kve_ingest_source_of(r.ingest, id, &source), KVE_OK);
    assert_true(source.claimed);
    assert_int_equal(source.origin, origin);
    assert_string_equal(source.found_in, "targets.json");
    kve_ingest_read_end(r.ingest);
    assert_int_equal(held(&r, "A", 0, 3), 6);
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INGEST_RESUMED), 1);
    assert_int_equal(
        kve_ingest_add(r.ingest, &spec, &again, NULL), KVE_E_IN_USE);
    assert_int_equal(again, id);
    assert_int_equal(kve_ingest_drop_unclaimed(r.ingest), 0);
    assert_int_equal(copies(&r), 3);
    engine_close(&e);
    rig_close(&r);
}

/* With other options it is followed by those, from where it stood. */
static void
test_claimed_otherwise(void **state)
{
    struct rig r;
    struct engine e;
    struct kve_ingest_spec spec;
    struct kve_entry_seed seed = { 0 };
    struct kve_source_entry *entry;
    kve_ingest_id id;

    (void)state;
    seed.position = stand(&e);
    rig_open(&r, NULL, NULL);
    spec = rig_spec(&e, "A", 0);
    seed.spec = &spec;
    /* Its keys are not in the state: nothing happens before it is claimed. */
    seed.keyless = true;
    entry = restore(&r, &seed, "S[-]1,2; S[2]3");
    id = entry->id;
    follow(&r, entry);
    engine_say(&e, -1, "S[3]4");
    rest_ms(100);
    assert_true(is_state(&r, id, KVE_STATE_RECOVERING, KVE_REASON_RESUMED));
    assert_false(rig_source(&r, id).connected);
    spec.source.tail_probe_ms = 20;
    assert_int_equal(rig_add(&r, &spec), id);
    UNTIL(held(&r, "A", 0, 4) == 8);
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(copies(&r), 4);
    engine_close(&e);
    rig_close(&r);
}

/* C29: at another address it is another one, and begins with nothing. */
static void
test_c29_moved(void **state)
{
    struct rig r;
    struct engine e;
    struct engine moved;
    struct kve_ingest_spec spec;
    struct kve_entry_seed seed = { 0 };
    struct kve_source_entry *entry;
    kve_ingest_id id;
    kve_ingest_id other;

    (void)state;
    seed.position = stand(&e);
    rig_open(&r, NULL, NULL);
    spec = rig_spec(&e, "A", 0);
    seed.spec = &spec;
    entry = restore(&r, &seed, "S[-]1,2; S[2]3");
    id = entry->id;
    follow(&r, entry);
    engine_open(&moved, NULL);
    other = rig_follow(&r, &moved, "A", 0);
    assert_int_not_equal(other, id);
    assert_false(rig_exists(&r, id));
    assert_int_equal(rows_of(&r, 3), 0);
    assert_int_equal(rig_events(&r, id, KVE_INGEST_EVENT_REMOVED), 1);
    engine_say(&moved, -1, "S[-]1");
    UNTIL(held(&r, "A", 0, 3) == 2);
    engine_close(&moved);
    engine_close(&e);
    rig_close(&r);
}

static void
test_unclaimed(void **state)
{
    struct rig r;
    struct engine e = { NULL, "tcp://127.0.0.1:1", "" };
    struct kve_ingest_spec spec;
    struct kve_entry_seed seed = { 0 };
    const unsigned origins[] = { KVE_ORIGIN_API, KVE_ORIGIN_OPTION,
        KVE_ORIGIN_FILE, KVE_ORIGIN_NAME };
    char name[16];

    (void)state;
    rig_open(&r, NULL, NULL);
    seed.position.started = true;
    seed.position.number = 5;
    for (size_t i = 0; i < N_OF(origins); i++) {
        (void)snprintf(name, sizeof(name), "w%zu", i);
        spec = rig_spec(&e, name, 0);
        spec.origin = origins[i];
        seed.spec = &spec;
        seed.paused = i == 1;
        follow(&r, restore(&r, &seed, "S[-]1"));
    }
    (void)rig_follow(&r, &e, "w4", 0);
    assert_int_equal(rows_of(&r, 1), 4);
    spec = rig_spec(&e, "w2", 0);
    (void)rig_add(&r, &spec);
    /* What was asked for by a call stays until a call removes it. */
    assert_int_equal(kve_ingest_drop_unclaimed(r.ingest), 2);
    assert_int_equal(rows_of(&r, 1), 2);
    assert_int_not_equal(kve_ingest_find(r.ingest, "m", NULL, "w0", 0), 0);
    assert_int_equal(kve_ingest_find(r.ingest, "m", NULL, "w1", 0), 0);
    assert_int_not_equal(kve_ingest_find(r.ingest, "m", NULL, "w2", 0), 0);
    assert_int_equal(kve_ingest_find(r.ingest, "m", NULL, "w3", 0), 0);
    assert_int_not_equal(kve_ingest_find(r.ingest, "m", NULL, "w4", 0), 0);
    rig_close(&r);
}

/* ---- streams -------------------------------------------------------- */

/* A socket of many and a stream of it: the stream goes on when its publisher
 * speaks; another one that does not is gone after a while. */
static void
test_streams(void **state)
{
    struct rig r;
    struct engine e;
    struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;
    struct kve_ingest_spec spec = KVE_INGEST_SPEC_INIT;
    struct kve_ingest_spec of = KVE_INGEST_SPEC_INIT;
    struct kve_entry_seed seed = { 0 };
    struct kve_entry_seed stream = { 0 };
    struct kve_source_entry *parent;
    struct kve_source_entry *pod;
    struct kve_source_entry *lost;
    char address[64];
    char replay[64];
    kve_ingest_id first;
    kve_ingest_id id;
    kve_ingest_id lost_id;

    (void)state;
    (void)snprintf(
        address, sizeof(address), "tcp://127.0.0.1:%u", test_port_to_keep());
    (void)snprintf(
        replay, sizeof(replay), "tcp://127.0.0.1:%u", test_port_to_keep());
    spec.model = "m";
    spec.worker = "all";
    spec.topic_rule = KVE_TOPIC_RULE_ID;
    spec.source.endpoint = address;
    spec.source.replay_endpoint = replay;
    spec.source.bind = KVE_BIND_YES;
    spec.source.tail_probe_ms = 50;
    spec.source.stream_idle_ms = 2000;
    opts.endpoint = address;
    opts.replay_endpoint = replay;
    opts.bind = KVE_BIND_NO;
    opts.topic = "kv@pod@m";

    rig_open(&r, NULL, NULL);
    (void)rig_add(&r, &spec);
    engine_open(&e, &opts);
    engine_say(&e, -1, "S[-]1");
    UNTIL((engine_say(&e, -1, "S[-]9; R 9"),
        first = kve_ingest_find(r.ingest, "m", NULL, "pod", 0), first != 0));
    UNTIL(is_state(&r, first, LIVE));
    stream.position = position_of(&r, first);
    assert_true(stream.position.started);
    rig_close(&r);

    engine_say(&e, -1, "S[1]2");
    rig_open(&r, NULL, NULL);
    seed.spec = &spec;
    parent = restore(&r, &seed, NULL);
    of = spec;
    of.worker = "pod";
    of.origin = KVE_ORIGIN_STREAM;
    stream.spec = &of;
    stream.parent = parent;
    stream.topic.data = (const uint8_t *)"kv@pod@m";
    stream.topic.len = 8;
    pod = restore(&r, &stream, "S[-]1");
    id = pod->id;
    kve_entry_unref(pod);
    of.worker = "lost";
    stream.topic.data = (const uint8_t *)"kv@lost@m";
    stream.topic.len = 9;
    lost = restore(&r, &stream, "S[-]1");
    lost_id = lost->id;
    kve_entry_unref(lost);
    assert_int_equal(rows_of(&r, 1), 2);
    follow(&r, parent);
    UNTIL((engine_say(&e, -1, "S[-]9; R 9"), held(&r, "pod", 0, 2) == 4));
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(copies(&r), 3);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INGEST_RESUMED), 1);
    assert_int_equal(kve_ingest_find(r.ingest, "m", NULL, "pod", 0), id);
    assert_int_equal(rig_source(&r, id).parent, rig_source(&r, lost_id).parent);

    /* Claimed with their socket. */
    assert_false(rig_source(&r, id).claimed);
    assert_int_equal(rig_add(&r, &spec), rig_source(&r, id).parent);
    assert_true(rig_source(&r, id).claimed);
    assert_int_equal(kve_ingest_drop_unclaimed(r.ingest), 0);

    UNTIL((kve_ingest_expire(r.ingest),
        is_state(&r, lost_id, KVE_STATE_GONE, KVE_REASON_SILENT)));
    assert_int_equal(held(&r, "lost", 0, 1), 0);
    engine_close(&e);
    rig_close(&r);
}

/* Where there is little room streams that are gone leave the list. */
static void
test_gone_leave(void **state)
{
    struct rig r;
    struct engine e;
    struct kve_ingest_opts ingest = KVE_INGEST_OPTS_INIT;
    struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;
    struct kve_ingest_spec spec = KVE_INGEST_SPEC_INIT;
    char address[64];
    kve_ingest_id id = 0;
    kve_ingest_id again = 0;

    (void)state;
    (void)snprintf(
        address, sizeof(address), "tcp://127.0.0.1:%u", test_port_to_keep());
    ingest.max_sources = 3;
    rig_open(&r, &ingest, NULL);
    spec.model = "m";
    spec.worker = "all";
    spec.topic_rule = KVE_TOPIC_RULE_ID;
    spec.source.endpoint = address;
    spec.source.bind = KVE_BIND_YES;
    spec.source.stream_idle_ms = 200;
    (void)rig_add(&r, &spec);
    opts.endpoint = address;
    opts.bind = KVE_BIND_NO;
    opts.topic = "kv@pod@m";
    engine_open(&e, &opts);
    UNTIL((engine_say(&e, -1, "S[-]1"),
        id = kve_ingest_find(r.ingest, "m", NULL, "pod", 0), id != 0));
    UNTIL(is_state(&r, id, KVE_STATE_GONE, KVE_REASON_SILENT));
    kve_ingest_expire(r.ingest);
    assert_true(rig_exists(&r, id));
    UNTIL((engine_say(&e, 1, "S[-]1"),
        kve_ingest_find(r.ingest, "m", NULL, "pod", 1) != 0));
    UNTIL((kve_ingest_expire(r.ingest), !rig_exists(&r, id)));
    /* It comes back as a new one. */
    UNTIL((engine_say(&e, -1, "S[-]1"), kve_ingest_expire(r.ingest),
        again = kve_ingest_find(r.ingest, "m", NULL, "pod", 0), again != 0));
    assert_int_not_equal(again, id);
    engine_close(&e);
    rig_close(&r);
}

/* A seed that can not be: nothing is left of it. */
static void
test_refused(void **state)
{
    struct rig r;
    struct engine e = { NULL, "tcp://nowhere", "" };
    struct kve_ingest_spec spec = rig_spec(&e, "A", 0);
    struct kve_entry_seed seed = { .spec = &spec };
    struct kve_source_entry *entry = NULL;
    struct kve_ingest_progress p = { .struct_size = sizeof(p) };

    (void)state;
    rig_open(&r, NULL, NULL);
    kve_ingest_lock(r.ingest);
    assert_int_equal(
        kve_entry_restore(r.ingest, &seed, &entry, NULL), KVE_E_INVAL);
    assert_null(entry);
    kve_ingest_unlock(r.ingest);
    kve_ingest_get_progress(r.ingest, &p);
    assert_int_equal(p.sources + p.paused + p.workers, 0);

    /* Two of one name. */
    (void)snprintf(e.live, sizeof(e.live), "tcp://127.0.0.1:1");
    spec = rig_spec(&e, "A", 0);
    kve_entry_unref(restore(&r, &seed, "S[-]1"));
    kve_ingest_lock(r.ingest);
    assert_int_equal(
        kve_entry_restore(r.ingest, &seed, &entry, NULL), KVE_E_IN_USE);
    assert_null(entry);
    kve_ingest_unlock(r.ingest);
    assert_int_equal(held(&r, "A", 0, 1), 2);
    rig_close(&r);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goes_on),
        cmocka_unit_test(test_other_life),
        cmocka_unit_test(test_no_position),
        cmocka_unit_test(test_claimed),
        cmocka_unit_test(test_claimed_otherwise),
        cmocka_unit_test(test_c29_moved),
        cmocka_unit_test(test_unclaimed),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_gone_leave),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
