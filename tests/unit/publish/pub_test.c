/*
 * pub_test.c - see pub_test.h.
 */
#include "pub_test.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <kvevents/codec.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <zmq.h>

void *test_zmq;

int
test_make_zmq(void **state)
{
    (void)state;
    test_zmq = zmq_ctx_new();
    return test_zmq == NULL;
}

int
test_end_zmq(void **state)
{
    (void)state;
    return zmq_ctx_term(test_zmq);
}

struct kve_pub_opts
test_loopback(void)
{
    struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;

    opts.endpoint = "tcp://127.0.0.1:0";
    opts.replay_endpoint = "tcp://127.0.0.1:0";
    return opts;
}

kve_publisher *
test_create(kve_context *context, const struct kve_pub_opts *opts)
{
    kve_publisher *pub = NULL;
    struct kve_error err = { 0 };

    if (kve_pub_create(context, opts, &pub, &err) != KVE_OK)
        fail_msg("%s", err.detail);
    return pub;
}

void
test_sleep_ms(int ms)
{
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

static int64_t live_before;

int
test_remember(void **state)
{
    (void)state;
    live_before = kve_mem_live();
    return 0;
}

int
test_nothing_left(void **state)
{
    (void)state;
    if (kve_mem_live() == live_before)
        return 0;
    print_error("%d blocks left\n", (int)(kve_mem_live() - live_before));
    return -1;
}

void
test_store_init(struct test_store *store, uint64_t hash, size_t n_tokens)
{
    memset(store, 0, sizeof(*store));
    for (size_t i = 0; i < n_tokens; i++)
        store->tokens[i] = (uint32_t)(hash * 31 + i * 7919) % 131072;
    for (size_t i = 0; i < n_tokens / 16; i++)
        store->hashes[i].integer = hash + i;
    store->event.type = KVE_EVENT_STORED;
    store->event.block_size = 16;
    store->event.hashes = store->hashes;
    store->event.n_hashes = n_tokens / 16;
    store->event.tokens = store->tokens;
    store->event.n_tokens = n_tokens;
}

struct kve_batch_view
test_view(const struct kve_event *event)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;

    view.events = event;
    view.n_events = 1;
    return view;
}

void
test_msg_release(struct test_msg *msg)
{
    for (size_t i = 0; i < msg->n; i++)
        free(msg->data[i]);
    msg->n = 0;
}

bool
test_recv(void *socket, struct test_msg *msg, int timeout_ms)
{
    zmq_pollitem_t item = { socket, 0, ZMQ_POLLIN, 0 };
    int more = 1;

    test_msg_release(msg);
    if (zmq_poll(&item, 1, timeout_ms) <= 0)
        return false;
    while (more) {
        zmq_msg_t part;

        zmq_msg_init(&part);
        assert_true(zmq_msg_recv(&part, socket, 0) >= 0);
        assert_true(msg->n < 8);
        msg->len[msg->n] = zmq_msg_size(&part);
        msg->data[msg->n] = malloc(zmq_msg_size(&part) + 1);
        assert_non_null(msg->data[msg->n]);
        memcpy(msg->data[msg->n], zmq_msg_data(&part), zmq_msg_size(&part));
        msg->data[msg->n][zmq_msg_size(&part)] = '\0';
        msg->n++;
        more = zmq_msg_more(&part);
        zmq_msg_close(&part);
    }
    return true;
}

uint64_t
test_number(const struct test_msg *msg, size_t i)
{
    assert_true(i < msg->n);
    assert_int_equal(msg->len[i], 8);
    return kve_number_read(msg->data[i]);
}

static void *
client(void *zmq, int type, const char *endpoint, int rcvhwm)
{
    void *socket = zmq_socket(zmq, type);
    int zero = 0;

    assert_non_null(socket);
    zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof(zero));
    zmq_setsockopt(socket, ZMQ_RCVHWM, &rcvhwm, sizeof(rcvhwm));
    if (type == ZMQ_SUB)
        return socket;
    assert_int_equal(zmq_connect(socket, endpoint), 0);
    return socket;
}

void *
test_sub(void *zmq, const char *endpoint, const char *topic, int rcvhwm)
{
    void *socket = client(zmq, ZMQ_SUB, endpoint, rcvhwm);

    assert_int_equal(
        zmq_setsockopt(socket, ZMQ_SUBSCRIBE, topic, strlen(topic)), 0);
    assert_int_equal(zmq_connect(socket, endpoint), 0);
    return socket;
}

void *
test_dealer(void *zmq, const char *endpoint, int rcvhwm)
{
    return client(zmq, ZMQ_DEALER, endpoint, rcvhwm);
}

void
test_ask(void *dealer, uint64_t start)
{
    uint8_t bytes[8];

    kve_number_write(start, bytes);
    assert_int_equal(zmq_send(dealer, "", 0, ZMQ_SNDMORE), 0);
    assert_int_equal(zmq_send(dealer, bytes, 8, 0), 8);
}

void
test_close(void *socket)
{
    assert_int_equal(zmq_close(socket), 0);
}

int
test_mute_dealer(const char *endpoint)
{
    /* ZMTP 3.0, NULL: greeting, then the READY command. */
    static const uint8_t ready[] = "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06"
                                   "DEALER";
    uint8_t greeting[64] = { 0xff, [8] = 1, [9] = 0x7f, 3, 0, 'N', 'U', 'L',
        'L' };
    struct sockaddr_in address = { .sin_family = AF_INET };
    const char *colon = strrchr(endpoint, ':');
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint8_t theirs[256];
    int small = 4096;

    assert_true(fd >= 0 && colon != NULL);
    address.sin_port = htons((uint16_t)atoi(colon + 1));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
    assert_int_equal(
        connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(send(fd, greeting, 64, 0), 64);
    assert_int_equal(send(fd, ready, sizeof(ready) - 1, 0), sizeof(ready) - 1);
    /* Its greeting and READY, and from then on nothing. */
    assert_int_equal(recv(fd, theirs, 66, MSG_WAITALL), 66);
    assert_int_equal(
        recv(fd, theirs, theirs[65], MSG_WAITALL), (int)theirs[65]);
    return fd;
}

void
test_mute_send(int fd, const char *const *frames, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t head[2] = { i + 1 < n, (uint8_t)strlen(frames[i]) };

        assert_int_equal(send(fd, head, 2, 0), 2);
        assert_int_equal(send(fd, frames[i], head[1], 0), head[1]);
    }
}

size_t
test_answer(void *dealer, uint64_t first, const char *topic, int timeout_ms)
{
    struct test_msg msg = { 0 };
    size_t with = topic != NULL;
    size_t n = 0;

    for (;; n++) {
        assert_true(test_recv(dealer, &msg, timeout_ms));
        assert_int_equal(msg.n, 3 + with);
        assert_int_equal(msg.len[0], 0);
        if (test_number(&msg, 1 + with) == KVE_NUMBER_END)
            break;
        assert_int_equal(test_number(&msg, 1 + with), first + n);
        assert_true(msg.len[2 + with] > 0);
        if (with)
            assert_string_equal((char *)msg.data[1], topic);
    }
    assert_int_equal(msg.len[2 + with], 0);
    if (with)
        assert_int_equal(msg.len[1], 0);
    test_msg_release(&msg);
    return n;
}

void
test_join(kve_publisher *pub, void *sub)
{
    struct test_msg msg = { 0 };
    bool joined = false;
    uint64_t last = 0;

    for (int i = 0; i < 500 && !joined; i++) {
        assert_int_equal(
            kve_pub_publish_payload(pub, "join", 4, &last, NULL), KVE_OK);
        joined = test_recv(sub, &msg, 10);
    }
    assert_true(joined);
    while (test_number(&msg, 1) != last)
        assert_true(test_recv(sub, &msg, 5000));
    test_msg_release(&msg);
}

static void
nap(void)
{
    struct timespec ms = { 0, 1000000 };

    nanosleep(&ms, NULL);
}

void
test_wait_counter(kve_publisher *pub, unsigned counter, uint64_t n)
{
    int64_t until = kve_now_ns() + 30000 * KVE_MS;

    while (kve_pub_counter(pub, counter) < n) {
        if (kve_now_ns() > until)
            fail_msg("%s is %d, %d were expected", kve_counter_str(counter),
                (int)kve_pub_counter(pub, counter), (int)n);
        nap();
    }
}

/* ---- the brake ---- */

struct test_brake {
    kve_context *context;
    void *dealer;
    sem_t held;
    sem_t go;
};

static void
stand_still(void *ctx, enum kve_log_level level, const char *line)
{
    struct test_brake *brake = ctx;

    (void)level;
    if (strstr(line, "not answered") == NULL)
        return;
    sem_post(&brake->held);
    while (sem_wait(&brake->go) != 0)
        ;
}

kve_context *
test_brake_context(struct test_brake **ret_brake, void *zmq)
{
    struct test_brake *brake = calloc(1, sizeof(*brake));
    struct kve_context_opts opts = KVE_CONTEXT_OPTS_INIT;

    assert_non_null(brake);
    sem_init(&brake->held, 0, 0);
    sem_init(&brake->go, 0, 0);
    opts.log = stand_still;
    opts.log_ctx = brake;
    opts.zmq_context = zmq;
    assert_int_equal(kve_context_create(&opts, &brake->context, NULL), KVE_OK);
    *ret_brake = brake;
    return brake->context;
}

void
test_brake_hold(struct test_brake *brake, kve_publisher *pub, void *zmq)
{
    brake->dealer = test_dealer(zmq, kve_pub_replay_endpoint(pub), 10);
    assert_int_equal(zmq_send(brake->dealer, "nonsense", 8, 0), 8);
    while (sem_wait(&brake->held) != 0)
        ;
}

void
test_brake_let_go(struct test_brake *brake)
{
    sem_post(&brake->go);
    test_close(brake->dealer);
}

void
test_brake_destroy(struct test_brake *brake)
{
    kve_context_destroy(brake->context);
    sem_destroy(&brake->held);
    sem_destroy(&brake->go);
    free(brake);
}
