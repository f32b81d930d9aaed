/*
 * test_topics.c - many engines behind one socket.
 *
 * ctest-timeout: 300
 */
#include "rig.h"

#include "base/alloc.h"
#include "ingest/parts.h"
#include "support/port.h"

#include <stdio.h>
#include <string.h>

/* ---- topics as text ------------------------------------------------- */

/* A24: a topic is split at the first and the second @ only. */
static void
test_a24_topics(void **state)
{
    static const struct {
        const char *topic;
        bool host;
        const char *id; /* NULL: it is no such topic */
        const char *model;
    } rows[] = {
        { "kv@10.0.0.5@m", false, "10.0.0.5", "m" },
        { "kv@10.0.0.5:8000@m", false, "10.0.0.5:8000", "m" },
        { "kv@10.0.0.5@m", true, "10.0.0.5", "m" },
        { "kv@10.0.0.5:8000@m", true, "10.0.0.5", "m" },
        { "kv@[fd00::1]:8000@org/model@v2", false, "[fd00::1]:8000",
            "org/model@v2" },
        { "kv@[fd00::1]:8000@org/model@v2", true, "fd00::1", "org/model@v2" },
        { "kv@fd00::1@m", true, "fd00::1", "m" },
        { "kv@fd00::1@m", false, "fd00::1", "m" },
        { "kv@pod-7:x@@", true, "pod-7", "@" },
        { "kv@:8000@m", true, ":8000", "m" },
        { "kv@a", false, NULL, NULL },
        { "kv@@m", false, NULL, NULL },
        { "kv@a@", false, NULL, NULL },
        { "kv", false, NULL, NULL },
        { "", false, NULL, NULL },
        { "kv-events", false, NULL, NULL },
        { "vk@a@m", false, NULL, NULL },
    };

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        struct kve_str topic = { rows[i].topic, strlen(rows[i].topic) };
        struct kve_str id = { NULL, 0 };
        struct kve_str model = { NULL, 0 };
        bool is = kve_topic_split(topic, rows[i].host, &id, &model);

        assert_int_equal(is, rows[i].id != NULL);
        if (!is)
            continue;
        assert_int_equal(id.len, strlen(rows[i].id));
        assert_memory_equal(id.data, rows[i].id, id.len);
        assert_int_equal(model.len, strlen(rows[i].model));
        assert_memory_equal(model.data, rows[i].model, model.len);
    }
}

static void
test_names(void **state)
{
    static const struct {
        const char *from;
        size_t len;
        const char *text;
    } rows[] = {
        { "plain", 5, "plain" },
        { "", 0, "" },
        { "a\0b\n\x7f", 5, "a\\x00b\\x0a\\x7f" },
        { "gr\xc3\xbc\xc3\x9f", 6, "gr\xc3\xbc\xc3\x9f" },
        { "\xff\xc3", 2, "\\xff\\xc3" },
        { "\xed\xa0\x80", 3, "\\xed\\xa0\\x80" },
        { "\xf0\x9f\x98\x80", 4, "\xf0\x9f\x98\x80" },
    };
    static const struct {
        const char *from;
        const char *json;
    } quoted[] = {
        { "", "\"\"" },
        { "a\"b\\c", "\"a\\\"b\\\\c\"" },
        { "\x01\n", "\"\\u0001\\u000a\"" },
        { "\xc3\xbc/\x7f", "\"\xc3\xbc/\x7f\"" },
        { "x\xffy\xe2\x82", "\"x\xef\xbf\xbdy\xef\xbf\xbd\xef\xbf\xbd\"" },
    };

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        struct kve_str bytes = { rows[i].from, rows[i].len };
        char *text = kve_text_of_bytes(bytes);

        assert_string_equal(text, rows[i].text);
        kve_mem_free(text);
    }
    for (size_t i = 0; i < N_OF(quoted); i++) {
        uint32_t len = 0;
        char *text = kve_json_text(quoted[i].from, &len);

        assert_string_equal(text, quoted[i].json);
        assert_int_equal(len, strlen(text));
        kve_mem_free(text);
    }
}

/* ---- streams -------------------------------------------------------- */

/* A socket that engines connect to. */
static void
any_address(char *text, size_t size)
{
    (void)snprintf(text, size, "tcp://127.0.0.1:%u", test_port_to_keep());
}

static struct kve_ingest_spec
many_spec(const char *address, unsigned rule)
{
    struct kve_ingest_spec spec = KVE_INGEST_SPEC_INIT;

    spec.model = "m";
    spec.worker = "all";
    spec.topic_rule = rule;
    spec.source.endpoint = address;
    spec.source.bind = KVE_BIND_YES;
    spec.source.tail_probe_ms = 50;
    return spec;
}

/* An engine that connects; it has no replay. */
static void
join(struct engine *e, const char *address, const char *topic)
{
    struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;

    opts.endpoint = address;
    opts.bind = KVE_BIND_NO;
    opts.topic = topic;
    engine_open(e, &opts);
}

/* Say it until it is heard: a connection takes a moment. */
static void
say_until(struct rig *r, struct engine *e, kve_namespace ns, const char *worker,
    uint32_t rank)
{
    int64_t until = kve_now_ns() + 60000 * KVE_MS;

    while (held_in(r, ns, worker, rank, 1) == 0 && kve_now_ns() < until) {
        engine_say(e, rank > 0 ? (int)rank : -1, "S[-]1");
        rest_ms(10);
    }
    assert_int_equal(held_in(r, ns, worker, rank, 1), 2);
}

/* Streams become workers by their topics; the model is the topic's. */
static void
test_streams_by_id(void **state)
{
    struct rig r;
    struct engine e[3];
    struct kve_ingest_spec spec;
    struct kve_ingest_source source = { .struct_size = sizeof(source) };
    struct kve_ingest_progress progress = { .struct_size = sizeof(progress) };
    char address[64];
    kve_namespace ns = 0;
    kve_ingest_id parent;
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    any_address(address, sizeof(address));
    spec = many_spec(address, KVE_TOPIC_RULE_ID);
    parent = rig_add(&r, &spec);
    assert_int_equal(rig_source(&r, parent).instance, 0);
    join(&e[0], address, "kv@10.0.0.5:8000@m");
    join(&e[1], address, "kv@[fd00::1]:8000@org/model@v2");
    join(&e[2], address, "something else");
    say_until(&r, &e[0], r.ns, "10.0.0.5:8000", 0);
    say_until(&r, &e[0], r.ns, "10.0.0.5:8000", 3);
    say_until(&r, &e[2], r.ns, "something else", 0);
    assert_int_equal(
        kve_index_namespace(r.index, "org/model@v2", "default", &ns, NULL),
        KVE_OK);
    say_until(&r, &e[1], ns, "[fd00::1]:8000", 0);

    id = kve_ingest_find(r.ingest, "org/model@v2", NULL, "[fd00::1]:8000", 0);
    kve_ingest_read_begin(r.ingest);
    assert_int_equal(kve_ingest_source_of(r.ingest, id, &source), KVE_OK);
    assert_int_equal(source.parent, parent);
    assert_int_equal(source.origin, KVE_ORIGIN_STREAM);
    assert_string_equal(source.topic, "kv@[fd00::1]:8000@org/model@v2");
    assert_string_equal(source.endpoint, address);
    kve_ingest_read_end(r.ingest);
    /* The socket itself has no order, and is not counted. */
    kve_ingest_get_progress(r.ingest, &progress);
    assert_int_equal(progress.sources, 4);
    assert_int_equal(progress.workers, 4);
    assert_int_equal(progress.namespaces, 2);

    /* Each goes alone, and does not come back while its socket is there. */
    id = kve_ingest_find(r.ingest, "m", NULL, "something else", 0);
    assert_int_equal(kve_ingest_remove(r.ingest, id, NULL), KVE_OK);
    for (int i = 0; i < 20; i++) {
        engine_say(&e[2], -1, "S[-]1");
        engine_say(&e[0], -1, "S[1]2");
        rest_ms(2);
    }
    UNTIL(held(&r, "10.0.0.5:8000", 0, 2) == 4);
    assert_int_equal(held(&r, "something else", 0, 1), 0);
    assert_int_equal(
        kve_ingest_find(r.ingest, "m", NULL, "something else", 0), 0);

    /* All go with their socket. */
    assert_int_equal(kve_ingest_remove(r.ingest, parent, NULL), KVE_OK);
    kve_ingest_get_progress(r.ingest, &progress);
    assert_int_equal(progress.sources + progress.workers, 0);
    assert_int_equal(rows_of(&r, 1), 0);
    /* It can be had again at once, and so can they. */
    parent = rig_add(&r, &spec);
    say_until(&r, &e[2], r.ns, "something else", 0);
    for (size_t i = 0; i < 3; i++)
        engine_close(&e[i]);
    rig_close(&r);
}

/* Without a rule the worker has all of them, each as the rank it names. */
static void
test_streams_by_rank(void **state)
{
    struct rig r;
    struct engine e[2];
    struct kve_ingest_spec spec;
    char address[64];
    kve_ingest_id parent;
    kve_ingest_id again = 0;
    uint64_t before;

    (void)state;
    rig_open(&r, NULL, NULL);
    any_address(address, sizeof(address));
    spec = many_spec(address, KVE_TOPIC_RULE_DEFAULT);
    parent = rig_add(&r, &spec);
    assert_int_equal(
        kve_ingest_add(r.ingest, &spec, &again, NULL), KVE_E_IN_USE);
    assert_int_equal(again, parent);
    join(&e[0], address, "");
    join(&e[1], address, "other");
    say_until(&r, &e[0], r.ns, "all", 0);
    say_until(&r, &e[0], r.ns, "all", 1);
    assert_int_not_equal(
        kve_ingest_find(r.ingest, "m", NULL, "all", 0), parent);

    /* Another publisher of the same worker and rank is refused, and said. */
    engine_say(&e[1], 1, "S[-]1,2,3");
    while (rig_count(&r, parent, KVE_COUNTER_INGEST_FAILED) == 0) {
        engine_say(&e[0], -1, "S[-]1");
        engine_say(&e[0], 1, "S[-]1");
        engine_say(&e[1], 1, "S[-]1,2,3");
        rest_ms(2);
    }
    assert_non_null(strstr(rig_error(&r, parent), "topic_rule"));
    /* Nobody who reads waits for that, however often it is. */
    kve_ingest_read_begin(r.ingest);
    before = rig_count(&r, parent, KVE_COUNTER_INGEST_FAILED);
    while (rig_count(&r, parent, KVE_COUNTER_INGEST_FAILED) < before + 3) {
        engine_say(&e[0], 1, "S[-]1");
        engine_say(&e[1], 1, "S[-]1,2,3");
        rest_ms(2);
    }
    kve_ingest_read_end(r.ingest);
    assert_int_equal(held(&r, "all", 1, 3), 2);
    assert_int_equal(
        kve_ingest_remove_worker(r.ingest, "m", NULL, "all", NULL, NULL),
        KVE_OK);
    assert_int_equal(rows_of(&r, 1), 0);
    engine_close(&e[0]);
    engine_close(&e[1]);
    rig_close(&r);
}

/* A24: the same pod under another topic is the same worker, once the old one
 * is silent. */
static void
test_streams_by_host(void **state)
{
    struct rig r;
    struct engine e[2];
    struct kve_ingest_spec spec;
    char address[64];
    struct kve_source_entry *entry;
    kve_ingest_id parent;
    kve_ingest_id old;

    (void)state;
    rig_open(&r, NULL, NULL);
    any_address(address, sizeof(address));
    spec = many_spec(address, KVE_TOPIC_RULE_HOST);
    spec.source.stream_idle_ms = 300;
    parent = rig_add(&r, &spec);
    join(&e[0], address, "kv@10.0.0.5@m");
    say_until(&r, &e[0], r.ns, "10.0.0.5", 0);
    old = kve_ingest_find(r.ingest, "m", NULL, "10.0.0.5", 0);
    engine_say(&e[0], -1, "S[1]2,3");
    engine_close(&e[0]);
    /* It is gone for good; nothing of it is believed. */
    UNTIL(is_state(&r, old, KVE_STATE_GONE, KVE_REASON_SILENT));
    assert_int_equal(held(&r, "10.0.0.5", 0, 3), 0);
    join(&e[1], address, "kv@10.0.0.5:8000@m");
    /* It is being saved: the new one waits for that, and nobody else does. */
    entry = kve_ingest_entry(r.ingest, old);
    pthread_mutex_lock(&entry->applying);
    for (int i = 0; i < 20; i++) {
        engine_say(&e[1], -1, "S[-]1");
        rest_ms(2);
    }
    rig_reads_go_on(&r);
    assert_true(rig_exists(&r, old));
    pthread_mutex_unlock(&entry->applying);
    kve_entry_unref(entry);
    say_until(&r, &e[1], r.ns, "10.0.0.5", 0);
    assert_int_equal(held(&r, "10.0.0.5", 0, 3), 2);
    assert_false(rig_exists(&r, old));
    assert_int_equal(rig_events(&r, old, KVE_INGEST_EVENT_REMOVED), 1);
    assert_int_not_equal(
        kve_ingest_find(r.ingest, "m", NULL, "10.0.0.5", 0), 0);
    assert_int_equal(rig_source(&r, parent).parent, 0);
    engine_close(&e[1]);
    rig_close(&r);
}

/* A stream that was gone comes back as what it was, empty. */
static void
test_stream_returns(void **state)
{
    struct rig r;
    struct engine e;
    struct kve_ingest_spec spec;
    char address[64];
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    any_address(address, sizeof(address));
    spec = many_spec(address, KVE_TOPIC_RULE_ID);
    spec.source.stream_idle_ms = 200;
    (void)rig_add(&r, &spec);
    join(&e, address, "kv@pod@m");
    say_until(&r, &e, r.ns, "pod", 0);
    id = kve_ingest_find(r.ingest, "m", NULL, "pod", 0);
    engine_say(&e, -1, "S[1]2,3");
    UNTIL(is_state(&r, id, KVE_STATE_GONE, KVE_REASON_SILENT));
    assert_int_equal(rows_of(&r, 1), 0);
    assert_true(rig_count(&r, id, KVE_COUNTER_SUB_BATCHES) > 0);
    say_until(&r, &e, r.ns, "pod", 0);
    assert_int_equal(kve_ingest_find(r.ingest, "m", NULL, "pod", 0), id);
    assert_int_equal(held(&r, "pod", 0, 3), 2);
    engine_close(&e);
    rig_close(&r);
}

/* Streams, and their socket, can be paused; what they said meanwhile comes by
 * replay. */
static void
test_streams_paused(void **state)
{
    struct rig r;
    struct engine e;
    struct kve_ingest_spec spec;
    struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;
    char address[64];
    char replay[64];
    kve_ingest_id parent;
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    any_address(address, sizeof(address));
    any_address(replay, sizeof(replay));
    opts.endpoint = address;
    opts.replay_endpoint = replay;
    opts.bind = KVE_BIND_NO;
    opts.topic = "kv@pod@m";
    spec = many_spec(address, KVE_TOPIC_RULE_ID);
    spec.source.replay_endpoint = replay;
    parent = rig_add(&r, &spec);
    engine_open(&e, &opts);
    engine_say(&e, -1, "S[-]1");
    while (kve_ingest_find(r.ingest, "m", NULL, "pod", 0) == 0) {
        engine_say(&e, -1, "S[-]9; R 9");
        rest_ms(10);
    }
    id = kve_ingest_find(r.ingest, "m", NULL, "pod", 0);
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(held(&r, "pod", 0, 1), 2);

    assert_int_equal(kve_ingest_pause(r.ingest, id, NULL), KVE_OK);
    engine_say(&e, -1, "S[1]2");
    rest_ms(50);
    assert_int_equal(held(&r, "pod", 0, 2), 2);
    assert_true(is_state(&r, id, KVE_STATE_DEGRADED, KVE_REASON_PAUSED));
    assert_int_equal(kve_ingest_resume(r.ingest, id, NULL), KVE_OK);
    engine_say(&e, -1, "S[2]3");
    UNTIL(held(&r, "pod", 0, 3) == 6);
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INGEST_RESUMED), 1);

    assert_int_equal(kve_ingest_pause(r.ingest, parent, NULL), KVE_OK);
    assert_true(is_state(&r, id, KVE_STATE_DEGRADED, KVE_REASON_PAUSED));
    engine_say(&e, -1, "S[3]4");
    rest_ms(50);
    assert_int_equal(held(&r, "pod", 0, 4), 6);
    assert_int_equal(kve_ingest_resume(r.ingest, parent, NULL), KVE_OK);
    assert_true(is_state(&r, id, KVE_STATE_RECOVERING, KVE_REASON_RESUMED));
    while (held(&r, "pod", 0, 4) != 8) {
        engine_say(&e, -1, "S[-]9; R 9");
        rest_ms(10);
    }
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(kve_ingest_find(r.ingest, "m", NULL, "pod", 0), id);
    assert_int_equal(kve_index_get_stats(r.index, 0, &stats), KVE_OK);
    assert_int_equal(stats.copies, 4);

    /* The socket's clear is all of its streams'. */
    assert_int_equal(kve_ingest_clear(r.ingest, parent, 0, NULL), KVE_OK);
    assert_int_equal(rows_of(&r, 1), 0);
    engine_close(&e);
    rig_close(&r);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a24_topics),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_streams_by_id),
        cmocka_unit_test(test_streams_by_rank),
        cmocka_unit_test(test_streams_by_host),
        cmocka_unit_test(test_stream_returns),
        cmocka_unit_test(test_streams_paused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
