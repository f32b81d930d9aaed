/*
 * test_targets.c - what files of targets may say, and what is said of those
 * that may not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "discover/target.h"

#include <stdio.h>
#include <string.h>

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

static const struct kve_discover_spec template = {
    .struct_size = sizeof(template),
    .source = { .struct_size = sizeof(template.source),
        .model = "model",
        .tenant = "tenant",
        .block_size = 16,
        .source = { .struct_size = sizeof(template.source.source),
            .topic = "kv-events" } },
    .ranks = 1,
    .replay_port = 5558,
};

/* "worker/rank endpoint replay snapshot model tenant topic size; ..." */
static void
write_all(const struct kve_targets *targets, char *text, size_t cap)
{
    size_t len = 0;

    text[0] = '\0';
    for (size_t i = 0; i < targets->n; i++) {
        const struct kve_target *t = targets->items[i];

        len += (size_t)snprintf(text + len, cap - len,
            "%s/%u %s %s %s %s %s %s %u; ", t->worker, (unsigned)t->rank,
            t->endpoint, t->replay_endpoint, t->snapshot_endpoint, t->model,
            t->tenant, t->topic, (unsigned)t->block_size);
        assert_true(len < cap);
    }
}

static void
test_what_files_say(void **state)
{
    static const struct {
        const char *json;
        const char *said;
    } rows[] = {
        { "[]", "" },
        { "[{\"targets\":[]}]", "" },
        { "[{\"targets\":[\"h:5557\"]}]",
            "h:5557/0 tcp://h:5557 tcp://h:5558  model tenant kv-events 16; " },
        { "[{\"targets\":[\"tcp://10.0.0.7:1\",\"[fd00::7]:2\"],"
          "\"labels\":{\"replay_port\":\"9\",\"model\":\"m\"}}]",
            "10.0.0.7:1/0 tcp://10.0.0.7:1 tcp://10.0.0.7:9  m tenant "
            "kv-events 16; "
            "[fd00::7]:2/0 tcp://[fd00::7]:2 tcp://[fd00::7]:9  m tenant "
            "kv-events 16; " },
        { "[{\"targets\":[\"h:10\"],\"labels\":{\"ranks\":2,\"replay_port\":20,"
          "\"snapshot_port\":30,\"worker\":\"w\",\"tenant\":\"\","
          "\"topic\":\"t\",\"block_size\":\"64\",\"job\":\"x\"}}]",
            "w/0 tcp://h:10 tcp://h:20 tcp://h:30 model  t 64; "
            "w/1 tcp://h:11 tcp://h:21 tcp://h:31 model  t 64; " },
        { "[{\"targets\":[\"h:10\"],\"labels\":{\"rank\":\"3\"}}]",
            "h:10/3 tcp://h:10 tcp://h:5558  model tenant kv-events 16; " },
        { "[{\"targets\":[\"h:10\"],\"labels\":null}]",
            "h:10/0 tcp://h:10 tcp://h:5558  model tenant kv-events 16; " },
    };

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        struct kve_targets targets = { NULL, 0, 0, 0 };
        struct kve_error err = { .status = KVE_OK };
        char text[1024];

        if (kve_targets_read(&targets, rows[i].json, strlen(rows[i].json),
                &template, &err) != KVE_OK)
            fail_msg("%s: %s", rows[i].json, err.detail);
        write_all(&targets, text, sizeof(text));
        assert_string_equal(text, rows[i].said);
        kve_targets_release(&targets);
    }
}

static void
test_what_files_may_not_say(void **state)
{
    static const struct {
        const char *json;
        kve_status status;
        const char *why; /* a part of it */
    } rows[] = {
        { "", KVE_E_MALFORMED, "line 1" },
        { "[\n{\"targets\":[,]}]", KVE_E_MALFORMED, "line 2, column 13" },
        { "{}", KVE_E_SCHEMA, "not a list" },
        { "[1]", KVE_E_SCHEMA, "entry 1: no {" },
        { "[{\"targets\":\"h:1\"}]", KVE_E_SCHEMA, "entry 1: no {" },
        { "[{\"targets\":[1]}]", KVE_E_SCHEMA, "target 1 is not a text" },
        { "[{\"targets\":[\"h:1\"]},{\"targets\":[\"h\"]}]", KVE_E_SCHEMA,
            "entry 2: target 'h' is not HOST:PORT" },
        { "[{\"targets\":[\"h:0\"]}]", KVE_E_SCHEMA, "1 to 65535" },
        { "[{\"targets\":[\"h:65536\"]}]", KVE_E_SCHEMA, "1 to 65535" },
        { "[{\"targets\":[\"h:1x\"]}]", KVE_E_SCHEMA, "1 to 65535" },
        { "[{\"targets\":[\":1\"]}]", KVE_E_SCHEMA, "HOST:PORT" },
        { "[{\"targets\":[\"fd00::7:1\"]}]", KVE_E_SCHEMA, "[ADDRESS]" },
        { "[{\"targets\":[\"0.0.0.0:1\"]}]", KVE_E_SCHEMA, "wildcard" },
        { "[{\"targets\":[\"[::]:1\"]}]", KVE_E_SCHEMA, "wildcard" },
        { "[{\"targets\":[\"*:1\"]}]", KVE_E_SCHEMA, "wildcard" },
        { "[{\"targets\":[\"h:1\"],\"labels\":[]}]", KVE_E_SCHEMA,
            "labels is not an object" },
        { "[{\"targets\":[\"h:1\"],\"labels\":{\"model\":7}}]", KVE_E_SCHEMA,
            "label model is not a text" },
        { "[{\"targets\":[\"h:1\"],\"labels\":{\"ranks\":0}}]", KVE_E_SCHEMA,
            "label ranks is 0; accepted is 1 to 1024" },
        { "[{\"targets\":[\"h:1\"],\"labels\":{\"rank\":\"-1\"}}]",
            KVE_E_SCHEMA, "label rank is no number" },
        { "[{\"targets\":[\"h:1\",\"h:2\"],\"labels\":{\"worker\":\"w\"}}]",
            KVE_E_SCHEMA, "stands for 2 targets" },
        { "[{\"targets\":[\"h:65535\"],\"labels\":{\"ranks\":2}}]",
            KVE_E_SCHEMA, "above 65535" },
        { "[{\"targets\":[],\"targets\":[]}]", KVE_E_MALFORMED, "duplicate" },
    };

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        struct kve_targets targets = { NULL, 0, 0, 0 };
        struct kve_error err = { .status = KVE_OK };
        kve_status status = kve_targets_read(
            &targets, rows[i].json, strlen(rows[i].json), &template, &err);

        if (status != rows[i].status || strstr(err.detail, rows[i].why) == NULL)
            fail_msg(
                "%s: %s: %s", rows[i].json, kve_status_str(status), err.detail);
        assert_int_equal(targets.n, 0);
    }
}

static void
test_too_many_targets(void **state)
{
    const char *json = "[{\"targets\":[\"h:1\",\"h:2\",\"h:3\"]}]";
    struct kve_targets targets = { NULL, 0, 0, 2 };

    (void)state;
    assert_int_equal(
        kve_targets_read(&targets, json, strlen(json), &template, NULL),
        KVE_E_LIMIT);
    assert_int_equal(targets.n, 0);
}

static void
test_without_memory(void **state)
{
    const char *json = "[{\"targets\":[\"h:1\",\"h:2\"]}]";

    (void)state;
    for (uint64_t n = 1;; n++) {
        struct kve_targets targets = { NULL, 0, 0, 0 };
        int64_t live = kve_mem_live();
        kve_status status;
        bool failed;

        kve_mem_fail_at(n, true);
        status =
            kve_targets_read(&targets, json, strlen(json), &template, NULL);
        failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        assert_int_equal(status, failed ? KVE_E_NOMEM : KVE_OK);
        kve_targets_release(&targets);
        assert_int_equal(kve_mem_live(), live);
        if (!failed)
            break;
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_files_say),
        cmocka_unit_test(test_what_files_may_not_say),
        cmocka_unit_test(test_too_many_targets),
        cmocka_unit_test(test_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
