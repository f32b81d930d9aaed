/*
 * Endpoints as text: what is accepted and what it means, ranks, ranges, who
 * binds.
 */
#include "peers.h"

#include "transport/endpoint.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *text;
    enum kve_scheme scheme;
    const char *host;
    const char *zone;
    unsigned port;
    bool ipv6;
    bool numeric;
    bool wildcard;
    bool any_port;
    const char *path;
} good[] = {
    { "tcp://*:5557", KVE_SCHEME_TCP, "*", "", 5557, 0, 1, 1, 0, "" },
    { "tcp://*:0", KVE_SCHEME_TCP, "*", "", 0, 0, 1, 1, 1, "" },
    { "tcp://*:*", KVE_SCHEME_TCP, "*", "", 0, 0, 1, 1, 1, "" },
    { "tcp://127.0.0.1:1", KVE_SCHEME_TCP, "127.0.0.1", "", 1, 0, 1, 0, 0, "" },
    { "tcp://0.0.0.0:65535", KVE_SCHEME_TCP, "0.0.0.0", "", 65535, 0, 1, 1, 0,
        "" },
    { "tcp://[::]:5557", KVE_SCHEME_TCP, "::", "", 5557, 1, 1, 1, 0, "" },
    { "tcp://[::1]:5557", KVE_SCHEME_TCP, "::1", "", 5557, 1, 1, 0, 0, "" },
    { "tcp://[0:0:0:0:0:0:0:0]:1", KVE_SCHEME_TCP, "0:0:0:0:0:0:0:0", "", 1, 1,
        1, 1, 0, "" },
    { "tcp://[fe80::1%lo]:5557", KVE_SCHEME_TCP, "fe80::1", "lo", 5557, 1, 1, 0,
        0, "" },
    { "tcp://[fd00::5]:*", KVE_SCHEME_TCP, "fd00::5", "", 0, 1, 1, 0, 1, "" },
    { "tcp://node-1.example.org:80", KVE_SCHEME_TCP, "node-1.example.org", "",
        80, 0, 0, 0, 0, "" },
    { "tcp://my_pod:80", KVE_SCHEME_TCP, "my_pod", "", 80, 0, 0, 0, 0, "" },
    { "ipc:///run/kv.sock", KVE_SCHEME_IPC, "", "", 0, 0, 0, 0, 0,
        "/run/kv.sock" },
    { "ipc://@name", KVE_SCHEME_IPC, "", "", 0, 0, 0, 0, 0, "@name" },
    { "inproc://kv:5", KVE_SCHEME_INPROC, "", "", 0, 0, 0, 0, 0, "kv:5" },
};

static void
test_good_endpoints(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_OF(good); i++) {
        struct kve_endpoint e;
        struct kve_error error = { 0 };

        if (kve_endpoint_parse(good[i].text, "endpoint", &e, &error) != KVE_OK)
            fail_msg("%s: %s", good[i].text, error.detail);
        if (e.scheme != good[i].scheme || e.port != good[i].port ||
            strcmp(e.host, good[i].host) != 0 ||
            strcmp(e.zone, good[i].zone) != 0 ||
            strcmp(e.path, good[i].path) != 0 || e.ipv6 != good[i].ipv6 ||
            e.numeric != good[i].numeric || e.wildcard != good[i].wildcard ||
            e.any_port != good[i].any_port)
            fail_msg("%s: scheme %d host '%s' zone '%s' port %u path '%s' "
                     "ipv6 %d numeric %d wildcard %d any_port %d",
                good[i].text, e.scheme, e.host, e.zone, e.port, e.path, e.ipv6,
                e.numeric, e.wildcard, e.any_port);
    }
}

/* Each refusal names what was given, and a word that helps. */
static const struct {
    const char *text;
    const char *said;
} bad[] = {
    { NULL, "endpoint is empty" },
    { "", "tcp://HOST:PORT" },
    { "127.0.0.1:5557", "no known scheme" },
    { "udp://127.0.0.1:5557", "ipc://PATH" },
    { "TCP://127.0.0.1:5557", "no known scheme" },
    { "tcp://127.0.0.1", "no port" },
    { "tcp://:5557", "no host" },
    { "tcp://", "no port" },
    { "tcp://127.0.0.1:", "port ''" },
    { "tcp://127.0.0.1:65536", "65536" },
    { "tcp://127.0.0.1:99999999999", "99999999999" },
    { "tcp://127.0.0.1:-1", "port '-1'" },
    { "tcp://127.0.0.1:+1", "port '+1'" },
    { "tcp://127.0.0.1: 1", "port ' 1'" },
    { "tcp://127.0.0.1:5557x", "5557x" },
    { "tcp://127.0.0:5557", "neither a name nor an address" },
    { "tcp://300.1.1.1:5557", "neither a name nor an address" },
    { "tcp://::1:5557", "tcp://[::1]:5557" },
    { "tcp://fd00::5:5557", "needs brackets" },
    { "tcp://[::1]", "no port" },
    { "tcp://[::1]5557", "no port" },
    { "tcp://[::1:5557", "closing ]" },
    { "tcp://[::1]x:5557", "no port" },
    { "tcp://[127.0.0.1]:5557", "not an IPv6 address" },
    { "tcp://[node]:5557", "not an IPv6 address" },
    { "tcp://[]:5557", "not an IPv6 address" },
    { "tcp://[fe80::1%]:5557", "name of an interface" },
    { "tcp://[fe80::1%a/b]:5557", "a/b" },
    { "tcp://a b:5557", "'a b'" },
    { "tcp://eth0;127.0.0.1:5557", "neither a name nor an address" },
    { "ipc://", "no path" },
    { "ipc://@", "no path" },
    { "inproc://", "no name" },
};

static void
test_bad_endpoints(void **state)
{
    char text[KVE_ENDPOINT_MAX + 10];
    struct kve_endpoint e;
    struct kve_error error = { 0 };

    (void)state;
    for (size_t i = 0; i < N_OF(bad); i++) {
        if (kve_endpoint_parse(bad[i].text, "endpoint", &e, &error) !=
            KVE_E_INVAL)
            fail_msg("%s was accepted", bad[i].text);
        if (strstr(error.detail, bad[i].said) == NULL)
            fail_msg("%s: '%s' says nothing of '%s'", bad[i].text, error.detail,
                bad[i].said);
    }

    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    memcpy(text, "tcp://", 6);
    assert_int_equal(
        kve_endpoint_parse(text, "endpoint", &e, &error), KVE_E_INVAL);
    text[300] = '\0';
    memcpy(text + 295, ":5557", 5);
    assert_int_equal(
        kve_endpoint_parse(text, "endpoint", &e, &error), KVE_E_INVAL);
    memcpy(text, "ipc:///", 7);
    assert_int_equal(
        kve_endpoint_parse(text, "endpoint", &e, &error), KVE_E_INVAL);
    assert_non_null(strstr(error.detail, "accepts 107"));
}

static const struct {
    const char *endpoint;
    uint32_t rank;
    const char *want; /* NULL: refused */
} ranks[] = {
    { "tcp://*:5557", 0, "tcp://*:5557" },
    { "tcp://*:5557", 3, "tcp://*:5560" },
    { "tcp://*:*", 3, "tcp://*:*" },
    { "tcp://*:0", 1, "tcp://*:0" },
    { "tcp://[::1]:5557", 2, "tcp://[::1]:5559" },
    { "tcp://[fe80::1%lo]:5557", 1, "tcp://[fe80::1%lo]:5558" },
    { "tcp://node:65534", 1, "tcp://node:65535" },
    { "tcp://*:65535", 0, "tcp://*:65535" },
    { "tcp://*:65535", 1, NULL },
    { "tcp://*:1", 65535, NULL },
    { "tcp://*:1", UINT32_MAX, NULL },
    { "inproc://kv", 0, "inproc://kv" },
    { "inproc://kv", 2, "inproc://kv_dp2" },
    { "ipc:///tmp/kv", 1, "ipc:///tmp/kv_dp1" },
    { "ipc://@kv", 1, "ipc://@kv_dp1" },
    { "udp://kv:1", 1, NULL },
    { "tcp://kv", 1, NULL },
    { NULL, 1, NULL },
};

static void
test_ranks(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_OF(ranks); i++) {
        char text[KVE_ENDPOINT_MAX] = "untouched";
        struct kve_error error = { 0 };
        kve_status status = kve_endpoint_of_rank(
            ranks[i].endpoint, ranks[i].rank, text, sizeof(text), &error);

        if (ranks[i].want == NULL) {
            if (status != KVE_E_INVAL || strcmp(text, "untouched") != 0)
                fail_msg(
                    "%s rank %u: %s", ranks[i].endpoint, ranks[i].rank, text);
        } else if (status != KVE_OK || strcmp(text, ranks[i].want) != 0) {
            fail_msg("%s rank %u: '%s' (%s), want %s", ranks[i].endpoint,
                ranks[i].rank, text, error.detail, ranks[i].want);
        }
    }
}

static void
test_rank_needs_room(void **state)
{
    char text[13];
    struct kve_error error = { 0 };

    (void)state;
    assert_int_equal(
        kve_endpoint_of_rank("tcp://*:5557", 0, text, 13, &error), KVE_OK);
    assert_int_equal(
        kve_endpoint_of_rank("tcp://*:5557", 0, text, 12, &error), KVE_E_LIMIT);
    assert_int_equal(
        kve_endpoint_of_rank("tcp://*:5557", 0, text, 0, &error), KVE_E_LIMIT);
}

static const struct {
    const char *live;
    const char *replay;
    uint32_t ranks;
    const char *said; /* NULL: fine */
} ranges[] = {
    { "tcp://*:5557", "tcp://*:5558", 1, NULL },
    { "tcp://*:5557", "tcp://*:5558", 2,
        "live ports 5557..5558 and replay ports 5558..5559 overlap" },
    { "tcp://*:5557", "tcp://*:5560", 8,
        "live ports 5557..5564 and replay ports 5560..5567 overlap" },
    { "tcp://*:5560", "tcp://*:5557", 8,
        "live ports 5560..5567 and replay ports 5557..5564 overlap" },
    { "tcp://*:5557", "tcp://*:5565", 8, NULL },
    { "tcp://*:5557", "tcp://*:5557", 1,
        "live port 5557 and replay port 5557 overlap" },
    { "tcp://127.0.0.1:5557", "tcp://localhost:5557", 1, "overlap" },
    { "tcp://127.0.0.1:5557", "tcp://0.0.0.0:5557", 1, "overlap" },
    { "tcp://127.0.0.1:5557", "tcp://127.0.0.2:5557", 1, NULL },
    { "tcp://127.0.0.1:5557", "tcp://[::1]:5557", 1, NULL },
    { "tcp://[::1]:5557", "tcp://[0:0::1]:5557", 1, "overlap" },
    { "tcp://[fe80::1%a]:5557", "tcp://[fe80::1%b]:5557", 1, NULL },
    { "tcp://*:0", "tcp://*:0", 8, NULL },
    { "tcp://*:5557", "tcp://*:0", 8, NULL },
    { "tcp://*:65535", NULL, 1, NULL },
    { "tcp://*:65535", "", 2, "live ports 65535..65536 of 2 ranks" },
    { "tcp://*:65535", NULL, 2, "at most 65534" },
    { "tcp://*:5557", "tcp://*:65530", 8, "replay ports 65530..65537" },
    { "tcp://*:65528", NULL, 8, NULL },
    { "tcp://*:65529", NULL, 8, "at most 65528" },
    { "tcp://*:1", NULL, UINT32_MAX, "live ports 1..4294967295" },
    { "ipc:///tmp/a", "ipc:///tmp/a", 1, "two names" },
    { "ipc:///tmp/a", "ipc:///tmp/b", 9, NULL },
    { "inproc://a", "inproc://a", 2, "two names" },
    { "inproc://a", "tcp://*:1", 2, NULL },
    { "tcp://*:1", "nonsense", 2, "replay endpoint 'nonsense'" },
    { "tcp://*:1", NULL, 0, NULL },
};

static void
test_ranges(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_OF(ranges); i++) {
        struct kve_error error = { 0 };
        const struct kve_endpoint_role live = { ranges[i].live, "live",
            "endpoint" };
        const struct kve_endpoint_role replay = { ranges[i].replay, "replay",
            "replay endpoint" };
        kve_status status =
            kve_endpoint_check_apart(&live, &replay, ranges[i].ranks, &error);

        if (ranges[i].said == NULL && status != KVE_OK)
            fail_msg("row %zu: %s", i, error.detail);
        if (ranges[i].said != NULL &&
            (status != KVE_E_INVAL ||
                strstr(error.detail, ranges[i].said) == NULL))
            fail_msg("row %zu: %d '%s', want '%s'", i, status, error.detail,
                ranges[i].said);
    }
}

static const struct {
    const char *endpoint;
    uint32_t bind;
    bool as_publisher;
    bool as_subscriber;
} binds[] = {
    { "tcp://127.0.0.1:5557", KVE_BIND_DEFAULT, true, false },
    { "tcp://*:5557", KVE_BIND_DEFAULT, true, false },
    { "tcp://127.0.0.1:5557", KVE_BIND_YES, true, true },
    { "tcp://*:5557", KVE_BIND_NO, false, false },
    { "tcp://*:5557", KVE_BIND_GUESS, true, true },
    { "tcp://[::]:5557", KVE_BIND_GUESS, true, true },
    { "tcp://0.0.0.0:5557", KVE_BIND_GUESS, true, true },
    { "tcp://127.0.0.1:*", KVE_BIND_GUESS, true, true },
    { "tcp://[fd00::5]:5557", KVE_BIND_GUESS, false, false },
    { "tcp://[::1]:5557", KVE_BIND_GUESS, false, false },
    { "tcp://node:5557", KVE_BIND_GUESS, false, false },
    { "ipc:///tmp/kv", KVE_BIND_GUESS, true, true },
    { "inproc://kv", KVE_BIND_GUESS, true, true },
    { "inproc://kv", KVE_BIND_DEFAULT, true, false },
};

static void
test_who_binds(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_OF(binds); i++) {
        const char *text = binds[i].endpoint;
        struct kve_endpoint e;

        assert_int_equal(
            kve_endpoint_parse(text, "endpoint", &e, NULL), KVE_OK);
        if (kve_endpoint_binds(&e, text, binds[i].bind, true) !=
                binds[i].as_publisher ||
            kve_endpoint_binds(&e, text, binds[i].bind, false) !=
                binds[i].as_subscriber)
            fail_msg("%s with bind %u", text, binds[i].bind);
    }
}

static void
test_transport_of_endpoint(void **state)
{
    struct kve_error error = { 0 };

    (void)state;
    assert_ptr_equal(kve_transport_find("tcp://*:1", &error), zmq);
    assert_ptr_equal(kve_transport_find("ipc:///a", &error), zmq);
    assert_ptr_equal(kve_transport_find("inproc://a", &error), zmq);
    assert_null(kve_transport_find("nats://a", &error));
    assert_int_equal(error.status, KVE_E_INVAL);
    assert_non_null(strstr(error.detail, "accepted are tcp://"));
    assert_null(kve_transport_find(NULL, &error));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_endpoints),
        cmocka_unit_test(test_bad_endpoints),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_rank_needs_room),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_who_binds),
        cmocka_unit_test(test_transport_of_endpoint),
    };

    return cmocka_run_group_tests_name("transport/endpoint", tests, NULL, NULL);
}
