/*
 * ctest-timeout: 180
 *
 * test_field.c - what goes wrong around a subscriber: dead endpoints, names
 * that take their time, publishers that share a host, readers that pause,
 * heartbeats that stop. Limits of time are generous; what is shown is who did
 * not wait for whom.
 */
#include "rig.h"

#include "transport/context.h"
#include "transport/resolve.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <zmq.h>

#include "support/port.h"

/* ---- D14 ----------------------------------------------------------- */

enum { ENDPOINTS = 100, PUBS = 7 };

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool open;
};

/* "slow" resolves when the gate opens, which stands for three seconds. */
static int
look_up(void *ctx, const char *host, struct kve_addrs *ret_addrs, char *ret_why,
    size_t why_cap)
{
    struct gate *gate = ctx;

    (void)ret_why;
    (void)why_cap;
    assert_string_equal(host, "slow");
    pthread_mutex_lock(&gate->lock);
    while (!gate->open)
        pthread_cond_wait(&gate->opened, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
    ret_addrs->n = 1;
    (void)snprintf(ret_addrs->text[0], sizeof(ret_addrs->text[0]), "127.0.0.1");
    return 0;
}

static size_t
count_live(struct reader *r, const kve_source_id *ids, size_t n)
{
    size_t live = 0;

    for (size_t i = 0; i < n; i++)
        live += ids[i] != 0 && reader_info(r, ids[i]).state == KVE_STATE_LIVE;
    return live;
}

/*
 * D14: of 100 endpoints one is dead and one is a name that is not resolved in
 * time; the 98 others are live before either has come to anything. Each of
 * them is asked for a replay, a few at a time.
 */
static void
test_d14_one_dead_one_slow(void **state)
{
    static struct gate gate = { PTHREAD_MUTEX_INITIALIZER,
        PTHREAD_COND_INITIALIZER, false };
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct kve_context_opts context_opts = KVE_CONTEXT_OPTS_INIT;
    struct kve_sub_opts sub_opts = KVE_SUB_OPTS_INIT;
    struct peer peers[PUBS];
    kve_source_id ids[ENDPOINTS];
    char name[64];
    char dead[64];

    (void)state;
    for (uint32_t threads = 0; threads <= 2; threads += 2) {
        kve_context *context = NULL;
        size_t at = 0;

        gate.open = false;
        assert_int_equal(
            kve_context_create(&context_opts, &context, NULL), KVE_OK);
        kve_resolver_set_fn(kve_context_resolver(context), look_up, &gate);
        for (size_t i = 0; i < PUBS; i++) {
            peer_open(&peers[i]);
            peers[i].next = 3;
        }
        (void)snprintf(
            name, sizeof(name), "tcp://slow%s", strrchr(peers[0].live, ':'));
        (void)snprintf(
            dead, sizeof(dead), "tcp://127.0.0.1:%u", test_port_to_keep());
        sub_opts.threads = threads;
        struct reader *r = reader_open_in(context, &sub_opts);
        int64_t start = kve_now_ns();
        opts.tail_probe_ms = 100;
        opts.endpoint = dead;
        opts.replay_endpoint = dead;
        kve_source_id dead_id = reader_add(r, &opts);
        opts.endpoint = name;
        opts.replay_endpoint = name;
        kve_source_id slow_id = reader_add(r, &opts);
        for (at = 0; at < ENDPOINTS - 2; at++) {
            opts.endpoint = peers[at % PUBS].live;
            opts.replay_endpoint = peers[at % PUBS].replay;
            ids[at] = reader_add(r, &opts);
        }
        assert_true(kve_now_ns() - start < 30000 * KVE_MS);
#define SERVE_PUBS                       \
    for (size_t k_ = 0; k_ < PUBS; k_++) \
    peer_serve(&peers[k_])
        RUN_UNTIL(
            r, SERVE_PUBS, count_live(r, ids, ENDPOINTS - 2) == ENDPOINTS - 2);
        print_message("98 of 100 live after %.2f s with %u threads\n",
            (double)(kve_now_ns() - start) / 1e9, threads);
        assert_int_equal(
            reader_counter(r, 0, KVE_COUNTER_SUB_BATCHES), 3 * (ENDPOINTS - 2));
        /* Never silent, though: not live, and why. */
        assert_int_not_equal(reader_info(r, dead_id).state, KVE_STATE_LIVE);
        assert_int_not_equal(reader_info(r, slow_id).state, KVE_STATE_LIVE);
        assert_false(gate.open);

        pthread_mutex_lock(&gate.lock);
        gate.open = true;
        pthread_cond_broadcast(&gate.opened);
        pthread_mutex_unlock(&gate.lock);
        RUN_UNTIL(r, SERVE_PUBS,
            reader_notices(r, KVE_NOTICE_CONNECTED) == ENDPOINTS - 1);
        reader_close(r);
        kve_context_destroy(context);
        for (size_t i = 0; i < PUBS; i++)
            peer_close(&peers[i]);
    }
}

/* ---- D13 ----------------------------------------------------------- */

/* D13: two publishers at one address; one goes, the other stays. */
static void
test_d13_same_host(void **state)
{
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct peer a;
    struct peer b;

    (void)state;
    peer_open(&a);
    peer_open(&b);
    struct reader *r = reader_open(NULL);
    opts.endpoint = a.live;
    kve_source_id first = reader_add(r, &opts);
    opts.endpoint = b.live;
    kve_source_id second = reader_add(r, &opts);
    uint64_t n = 0;
    RUN_UNTIL(
        r,
        {
            peer_live(&a, n);
            peer_live(&b, n++);
        },
        r->of[first] > 0 && r->of[second] > 0);
    peer_close(&a);
    RUN_UNTIL(r, (void)0, reader_info(r, first).stale);
    size_t before = r->of[second];
    RUN_UNTIL(r, peer_live(&b, n++), r->of[second] > before + 3);
    assert_false(reader_info(r, second).stale);
    assert_true(reader_info(r, second).connected);
    assert_false(reader_info(r, first).connected);
    assert_int_equal(reader_counter(r, second, KVE_COUNTER_SUB_DISCONNECTS), 0);
    reader_close(r);
    peer_close(&b);
}

/* ---- D10 ----------------------------------------------------------- */

/*
 * D10, and a reader that pauses: the pipe fills, the publisher drops for it,
 * and everything comes in the end, the lost part by replay. Nothing of it is
 * taken for another life of the publisher.
 */
static void
test_d10_paused_reader(void **state)
{
    enum { N = 50000, HWM = 100 };
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct peer p;
    int small = HWM;
    size_t size = sizeof(p.live);

    (void)state;
    peer_open(&p);
    /* A publisher with a limit, as they are. */
    zmq_close(p.pub);
    p.pub = zmq_socket(p.zmq, ZMQ_PUB);
    zmq_setsockopt(p.pub, ZMQ_SNDHWM, &small, sizeof(small));
    zmq_setsockopt(p.pub, ZMQ_SNDBUF, &small, sizeof(small));
    assert_int_equal(zmq_bind(p.pub, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(
        zmq_getsockopt(p.pub, ZMQ_LAST_ENDPOINT, p.live, &size), 0);
    struct reader *r = reader_open(NULL);
    opts.endpoint = p.live;
    opts.replay_endpoint = p.replay;
    opts.recv_hwm = HWM;
    opts.tail_probe_ms = 100;
    kve_source_id id = reader_add(r, &opts);
    RUN_UNTIL(r, peer_serve(&p), reader_info(r, id).state == KVE_STATE_LIVE);
    for (uint64_t i = 0; i < N; i++) /* nobody polls */
        peer_live(&p, i);
    p.next = N;
    RUN_UNTIL(r, peer_serve(&p), r->of[id] == N);
    for (size_t i = 0; i < RIG_MAX; i++)
        assert_int_equal(r->number[(N + i) % RIG_MAX], N - RIG_MAX + i);
    RUN_UNTIL(r, peer_serve(&p), reader_info(r, id).state == KVE_STATE_LIVE);
    assert_true(reader_counter(r, id, KVE_COUNTER_SUB_MISSED) > 0);
    assert_int_equal(reader_counter(r, id, KVE_COUNTER_SUB_MISSED),
        reader_counter(r, id, KVE_COUNTER_SUB_REPAIRED));
    assert_int_equal(reader_counter(r, id, KVE_COUNTER_SUB_LOST), 0);
    assert_int_equal(reader_counter(r, id, KVE_COUNTER_SUB_RESTARTS), 0);
    reader_close(r);
    peer_close(&p);
}

/* ---- D9 ------------------------------------------------------------ */

/* D9: the connection stands and says nothing any more. A publisher that sends
 * heartbeats is missed by them, and welcome when it is heard again. */
static void
test_d9_heartbeats_stop(void **state)
{
    static const uint8_t id16[16] = "sixteen letters.";
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct peer p;

    (void)state;
    for (uint32_t threads = 0; threads <= 1; threads++) {
        struct kve_sub_opts sub_opts = KVE_SUB_OPTS_INIT;

        sub_opts.threads = threads;
        peer_open(&p);
        struct reader *r = reader_open(&sub_opts);
        opts.endpoint = p.live;
        opts.heartbeat_timeout_ms = 200;
        kve_source_id id = reader_add(r, &opts);
        uint64_t n = 0;
        RUN_UNTIL(
            r, peer_heartbeat(&p, n++, id16), reader_info(r, id).heartbeats);
        RUN_UNTIL(r, (void)0, reader_notices(r, KVE_NOTICE_STALE) > 0);
        RUN_UNTIL(r, (void)0, reader_info(r, id).stale);
        assert_true(reader_info(r, id).connected);
        assert_true(reader_info(r, id).stale_since_ns > 0);
        assert_non_null(strstr(r->detail[KVE_NOTICE_STALE], "200 ms"));
        size_t fresh = reader_notices(r, KVE_NOTICE_FRESH);
        peer_heartbeat(&p, n++, id16);
        RUN_UNTIL(r, (void)0, reader_notices(r, KVE_NOTICE_FRESH) > fresh);
        assert_true(reader_counter(r, id, KVE_COUNTER_SUB_HEARTBEATS) > 0);
        assert_true(reader_counter(r, id, KVE_COUNTER_SUB_STALES) > 0);
        assert_true(reader_info(r, id).has_publisher_id);
        assert_memory_equal(reader_info(r, id).publisher_id, id16, 16);
        reader_close(r);
        peer_close(&p);
    }
}

/* ---- what is on the wire ------------------------------------------- */

static int
await_client(int listener, struct reader *r)
{
    int fd = -1;

    RUN_UNTIL(r, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK), fd >= 0);
    return fd;
}

/* Read until so many bytes are there. */
static void
read_bytes(int fd, struct reader *r, uint8_t *out, size_t len)
{
    size_t have = 0;

    RUN_UNTIL(
        r,
        {
            ssize_t n = read(fd, out + have, len - have);
            have += n > 0 ? (size_t)n : 0;
        },
        have == len);
}

static int
option_of(int fd, int level, int option)
{
    int value = -1;
    socklen_t size = sizeof(value);

    return getsockopt(fd, level, option, &value, &size) == 0 ? value : -1;
}

/* The subscriber's end of a connection is a descriptor of this process. */
static int
find_fd(uint16_t port)
{
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    int found = -1;

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        struct sockaddr_in to = { 0 };
        socklen_t size = sizeof(to);
        int fd = atoi(entry->d_name);

        if (getpeername(fd, (struct sockaddr *)&to, &size) == 0 &&
            to.sin_family == AF_INET && ntohs(to.sin_port) == port)
            found = fd;
    }
    closedir(dir);
    return found;
}

/*
 * A publisher made of bytes, which shakes hands. No ZMTP heartbeat follows: a
 * reader that pauses must not be cut for it. The kernel looks for dead peers
 * instead: keepalive where nothing is sent, after 15 seconds and then 3 times
 * 5, and 30 seconds for what is sent and not acknowledged.
 */
static void
test_d9_kernel_looks_for_dead_peers(void **state)
{
    static const uint8_t greeting[64] = { 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3,
        0, 'N', 'U', 'L', 'L' };
    static const uint8_t ready[] = "\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03"
                                   "PUB";
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct sockaddr_in at = { .sin_family = AF_INET };
    socklen_t size = sizeof(at);
    uint8_t bytes[128];
    char endpoint[64];
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

    (void)state;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(listener, 4), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &size), 0);
    (void)snprintf(
        endpoint, sizeof(endpoint), "tcp://127.0.0.1:%u", ntohs(at.sin_port));
    struct reader *r = reader_open(NULL);
    opts.endpoint = endpoint;
    (void)reader_add(r, &opts);

    int fd = await_client(listener, r);
    assert_int_equal(write(fd, greeting, sizeof(greeting)), sizeof(greeting));
    read_bytes(fd, r, bytes, 64);
    assert_int_equal(write(fd, ready, sizeof(ready) - 1), sizeof(ready) - 1);
    /* READY, then the subscription to everything: a message of one byte. */
    read_bytes(fd, r, bytes, 2);
    assert_int_equal(bytes[0], 4);
    read_bytes(fd, r, bytes + 2, bytes[1]);
    assert_memory_equal(bytes + 2, "\5READY", 6);
    RUN_UNTIL(r, (void)0, r->notices[KVE_NOTICE_CONNECTED] == 1);
    read_bytes(fd, r, bytes, 3);
    assert_int_equal(bytes[2], 1);

    int ours = find_fd(ntohs(at.sin_port));
    assert_true(ours >= 0);
    assert_int_equal(option_of(ours, SOL_SOCKET, SO_KEEPALIVE), 1);
    assert_int_equal(option_of(ours, IPPROTO_TCP, TCP_KEEPIDLE), 15);
    assert_int_equal(option_of(ours, IPPROTO_TCP, TCP_KEEPINTVL), 5);
    assert_int_equal(option_of(ours, IPPROTO_TCP, TCP_KEEPCNT), 3);
    assert_int_equal(option_of(ours, IPPROTO_TCP, TCP_USER_TIMEOUT), 30000);

    RUN_FOR(r, (void)0, 6000);
    assert_int_equal(read(fd, bytes, sizeof(bytes)), -1);
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(r->notices[KVE_NOTICE_DISCONNECTED], 0);
    reader_close(r);
    (void)close(fd);
    (void)close(listener);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_d14_one_dead_one_slow),
        cmocka_unit_test(test_d13_same_host),
        cmocka_unit_test(test_d10_paused_reader),
        cmocka_unit_test(test_d9_heartbeats_stop),
        cmocka_unit_test(test_d9_kernel_looks_for_dead_peers),
    };

    return cmocka_run_group_tests_name("subscribe/field", tests, NULL, NULL);
}
