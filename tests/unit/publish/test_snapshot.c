/*
 * ctest-timeout: 300
 *
 * Snapshots over real sockets: ids, heartbeats, every kind of request, both
 * ways to ask, limits, readers that are slow, stuck or gone, and the live
 * stream beside them. What a snapshot says is compared with a literal fold of
 * what was published up to its number.
 */
#include "pub_test.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "publish/recorder.h"
#include "support/fold.h"
#include "support/port.h"

#include <kvevents/codec.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define PATIENCE 60000 /* ms, for what has to come */

/* No heartbeats, so that tests know every number. */
static struct kve_pub_opts
loopback(void)
{
    struct kve_pub_opts opts = test_loopback();

    opts.snapshot_endpoint = "tcp://127.0.0.1:0";
    opts.heartbeat_ms = KVE_NONE;
    return opts;
}

/* ---- publishing ---- */

static uint64_t
publish_event(kve_publisher *pub, const struct kve_event *event)
{
    struct kve_batch_view view = test_view(event);
    uint64_t number;

    assert_int_equal(kve_pub_publish(pub, &view, &number, NULL), KVE_OK);
    return number;
}

/* A store of n blocks (up to 64) of 16 tokens. */
static uint64_t
publish_store(kve_publisher *pub, uint64_t hash, size_t n)
{
    struct test_store store;

    test_store_init(&store, hash, n * 16);
    return publish_event(pub, &store.event);
}

static void
publish_removal(kve_publisher *pub, uint64_t hash, size_t n)
{
    struct test_store store;
    struct kve_event event = { .type = KVE_EVENT_REMOVED };

    test_store_init(&store, hash, n * 16);
    event.hashes = store.hashes;
    event.n_hashes = n;
    publish_event(pub, &event);
}

/* About n blocks of 16 tokens, some 70 bytes each. */
static void
publish_many(kve_publisher *pub, size_t n)
{
    for (uint64_t i = 0; i < n; i += 64)
        publish_store(pub, 1000000 + i, 64);
    assert_int_equal(kve_pub_flush(pub, PATIENCE, NULL), KVE_OK);
}

/* ---- asking ---- */

static void *
client(int type, const char *endpoint)
{
    void *socket = zmq_socket(test_zmq, type);
    int zero = 0;

    assert_non_null(socket);
    zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof(zero));
    assert_int_equal(zmq_connect(socket, endpoint), 0);
    return socket;
}

static void
ask(void *dealer)
{
    assert_int_equal(zmq_send(dealer, "", 0, ZMQ_SNDMORE), 0);
    assert_int_equal(zmq_send(dealer, "snapshot", 8, 0), 8);
}

/* What a reply says. */
struct reply {
    int64_t seq;
    uint8_t id[16];
    struct fold *fold;
    size_t chunks;
    size_t bytes;
};

static void
reply_release(struct reply *reply)
{
    fold_destroy(reply->fold);
    reply->fold = NULL;
}

static bool
wait_readable(void *socket, int timeout_ms)
{
    zmq_pollitem_t item = { socket, 0, ZMQ_POLLIN, 0 };

    return zmq_poll(&item, 1, timeout_ms) > 0;
}

/* Receive one reply; with is how many frames come before the number. */
static bool
take(void *socket, size_t with, int timeout_ms, struct reply *reply)
{
    zmq_msg_t part;
    size_t i = 0;
    int more = 1;

    memset(reply, 0, sizeof(*reply));
    if (!wait_readable(socket, timeout_ms))
        return false;
    reply->fold = fold_create(true);
    for (; more; i++) {
        const uint8_t *data;
        size_t len;

        zmq_msg_init(&part);
        assert_true(zmq_msg_recv(&part, socket, 0) >= 0);
        data = zmq_msg_data(&part);
        len = zmq_msg_size(&part);
        reply->bytes += len;
        if (i < with) {
            assert_int_equal(len, 0);
        } else if (i == with) {
            assert_int_equal(len, 8);
            reply->seq = (int64_t)kve_number_read(data);
        } else if (i == with + 1) {
            assert_int_equal(len, 16);
            memcpy(reply->id, data, 16);
        } else {
            assert_true(fold_apply_payload(reply->fold, data, len));
            reply->chunks++;
        }
        more = zmq_msg_more(&part);
        zmq_msg_close(&part);
    }
    assert_true(i >= with + 2);
    return true;
}

/* Ask as a DEALER and get the answer. */
static struct reply
get(const char *endpoint)
{
    void *dealer = client(ZMQ_DEALER, endpoint);
    struct reply reply;

    ask(dealer);
    assert_true(take(dealer, 1, PATIENCE, &reply));
    test_close(dealer);
    return reply;
}

/* Ask until one is to be had, or until none is. */
static struct reply
get_until(const char *endpoint, bool available)
{
    int64_t until = kve_now_ns() + PATIENCE * KVE_MS;

    for (;;) {
        struct reply reply = get(endpoint);

        if ((reply.seq != -2) == available)
            return reply;
        reply_release(&reply);
        assert_true(kve_now_ns() < until);
        test_sleep_ms(20);
    }
}

/* ---- the literal fold of what the replay buffer has, up to seq ---- */

static struct fold *
fold_of_replay(kve_publisher *pub, int64_t seq)
{
    void *dealer = client(ZMQ_DEALER, kve_pub_replay_endpoint(pub));
    struct fold *fold = fold_create(true);
    struct test_msg msg = { 0 };

    test_ask(dealer, 0);
    for (;;) {
        assert_true(test_recv(dealer, &msg, PATIENCE));
        assert_int_equal(msg.n, 4);
        if (test_number(&msg, 2) == KVE_NUMBER_END)
            break;
        if ((int64_t)test_number(&msg, 2) <= seq)
            assert_true(fold_apply_payload(fold, msg.data[3], msg.len[3]));
    }
    test_msg_release(&msg);
    test_close(dealer);
    return fold;
}

static void
check_reply(kve_publisher *pub, struct reply *reply)
{
    struct fold *want = fold_of_replay(pub, reply->seq);

    assert_memory_equal(reply->id, kve_pub_publisher_id(pub), 16);
    if (!fold_equal(reply->fold, want)) {
        fold_print_difference(reply->fold, want);
        fail_msg("snapshot %d is not what was published", (int)reply->seq);
    }
    fold_destroy(want);
    reply_release(reply);
}

/* ---- options ---- */

static void
test_options(void **state)
{
    static const uint8_t id[16] = "abcdefghijklmnop";
    static const struct {
        const char *live, *replay, *snapshot;
        uint32_t snapshots, heartbeat_ms, clear_scope, ranks;
        const char *text; /* NULL: accepted */
    } rows[] = {
        { "tcp://127.0.0.1:0", NULL, "tcp://127.0.0.1:0", 0, 0, 0, 0, NULL },
        { "tcp://127.0.0.1:0", "tcp://127.0.0.1:0", NULL, 1, 0, 2, 0, NULL },
        { "tcp://127.0.0.1:0", NULL, NULL, 1, 0, 0, 0, "nowhere to ask" },
        { "tcp://127.0.0.1:0", NULL, NULL, 2, 0, 0, 0, "snapshots is 2" },
        { "tcp://127.0.0.1:0", NULL, NULL, 0, 100, 0, 0, "set publisher_id" },
        { "tcp://127.0.0.1:0", NULL, NULL, 0, 0, 3, 0, "clear_scope is 3" },
        { "tcp://127.0.0.1:0", NULL, "udp://1:2", 0, 0, 0, 0, "udp" },
        { "tcp://127.0.0.1:21000", NULL, "tcp://127.0.0.1:21003", 0, 0, 0, 4,
            "live ports 21000..21003 and snapshot ports 21003..21006" },
        { "tcp://127.0.0.1:0", "tcp://127.0.0.1:21000", "tcp://127.0.0.1:21001",
            0, 0, 0, 2,
            "replay ports 21000..21001 and snapshot ports 21001..21002" },
        { "inproc://a", NULL, "inproc://a", 0, 0, 0, 0, "need two names" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;
        struct kve_error err = { 0 };
        kve_publisher *pub = NULL;
        kve_status status;

        opts.endpoint = rows[i].live;
        opts.replay_endpoint = rows[i].replay;
        opts.snapshot_endpoint = rows[i].snapshot;
        opts.snapshots = rows[i].snapshots;
        opts.heartbeat_ms = rows[i].heartbeat_ms;
        opts.clear_scope = rows[i].clear_scope;
        opts.ranks = rows[i].ranks;
        status = kve_pub_create(NULL, &opts, &pub, &err);
        assert_int_equal(status, rows[i].text == NULL ? KVE_OK : KVE_E_INVAL);
        if (rows[i].text != NULL && strstr(err.detail, rows[i].text) == NULL)
            fail_msg("row %d: %s", (int)i, err.detail);
        if (status == KVE_OK) {
            assert_non_null(kve_pub_publisher_id(pub));
            assert_int_equal(kve_pub_snapshot_endpoint(pub)[0] != '\0',
                rows[i].snapshot != NULL);
        }
        kve_pub_destroy(pub);
    }

    /* Ids: given, by chance, none. */
    struct kve_pub_opts opts = loopback();
    kve_publisher *a = test_create(NULL, &opts);
    kve_publisher *b = test_create(NULL, &opts);
    assert_memory_not_equal(
        kve_pub_publisher_id(a), kve_pub_publisher_id(b), 16);
    kve_pub_destroy(a);
    kve_pub_destroy(b);
    opts.publisher_id = id;
    a = test_create(NULL, &opts);
    assert_memory_equal(kve_pub_publisher_id(a), id, 16);
    assert_ptr_not_equal(kve_pub_publisher_id(a), id);
    kve_pub_destroy(a);
    opts = loopback();
    opts.snapshot_endpoint = NULL;
    a = test_create(NULL, &opts);
    assert_null(kve_pub_publisher_id(a));
    assert_string_equal(kve_pub_snapshot_endpoint(a), "");
    kve_pub_destroy(a);
    assert_int_equal(kve_pub_create_null(&a, NULL), KVE_OK);
    assert_null(kve_pub_publisher_id(a));
    assert_string_equal(kve_pub_snapshot_endpoint(a), "");
    kve_pub_destroy(a);
}

static void
test_a_rank_moves_the_endpoint(void **state)
{
    struct kve_pub_opts opts = loopback();
    unsigned port = test_port_to_keep();
    char base[64], moved[64];

    (void)state;
    (void)snprintf(base, sizeof(base), "tcp://127.0.0.1:%u", port - 3);
    (void)snprintf(moved, sizeof(moved), "tcp://127.0.0.1:%u", port);
    opts.snapshot_endpoint = base;
    opts.rank = (struct kve_int){ 3, true };
    kve_publisher *pub = test_create(NULL, &opts);
    struct reply reply;

    assert_string_equal(kve_pub_snapshot_endpoint(pub), moved);
    publish_store(pub, 1, 2);
    assert_int_equal(kve_pub_flush(pub, PATIENCE, NULL), KVE_OK);
    reply = get(moved);
    assert_int_equal(reply.seq, 0);
    check_reply(pub, &reply);

    /* Taken. */
    struct kve_pub_opts again = loopback();
    kve_publisher *other = NULL;
    again.snapshot_endpoint = moved;
    assert_int_equal(kve_pub_create(NULL, &again, &other, NULL), KVE_E_IN_USE);
    kve_pub_destroy(pub);
    /* And free again. */
    pub = test_create(NULL, &again);
    kve_pub_destroy(pub);
}

/* ---- ids and heartbeats ---- */

static const struct kve_batch_info *
decode(kve_batch *batch, const struct test_msg *msg)
{
    assert_int_equal(
        kve_batch_decode(batch, msg->data[2], msg->len[2], NULL), KVE_OK);
    return kve_batch_get_info(batch);
}

static void
test_batches_have_the_id(void **state)
{
    static const uint8_t own[16] = "0123456789ABCDEF";
    struct kve_pub_opts opts = loopback();
    kve_publisher *pub = test_create(NULL, &opts);
    void *sub = test_sub(test_zmq, kve_pub_endpoint(pub), "", 1000);
    struct test_msg msg = { 0 };
    struct test_store store;
    struct kve_batch_view view;
    kve_batch *batch = NULL;

    (void)state;
    assert_int_equal(kve_batch_create(NULL, &batch, NULL), KVE_OK);
    test_join(pub, sub);
    test_store_init(&store, 1, 16);
    view = test_view(&store.event);
    assert_int_equal(kve_pub_publish(pub, &view, NULL, NULL), KVE_OK);
    assert_true(test_recv(sub, &msg, PATIENCE));
    assert_memory_equal(
        decode(batch, &msg)->publisher_id, kve_pub_publisher_id(pub), 16);
    /* A batch's own id stays, and so does what was encoded already. */
    view.publisher_id = own;
    assert_int_equal(kve_pub_publish(pub, &view, NULL, NULL), KVE_OK);
    assert_true(test_recv(sub, &msg, PATIENCE));
    assert_memory_equal(decode(batch, &msg)->publisher_id, own, 16);
    assert_int_equal(
        kve_pub_publish_payload(pub, "\x92\x01\x90", 3, NULL, NULL), KVE_OK);
    assert_true(test_recv(sub, &msg, PATIENCE));
    assert_int_equal(msg.len[2], 3);
    assert_null(decode(batch, &msg)->publisher_id);
    test_msg_release(&msg);
    kve_batch_destroy(batch);
    test_close(sub);
    kve_pub_destroy(pub);
}

static void
test_heartbeats(void **state)
{
    struct kve_pub_opts opts = loopback();
    struct test_msg msg = { 0 };
    kve_batch *batch = NULL;
    uint64_t number;

    (void)state;
    opts.heartbeat_ms = 30;
    opts.rank = (struct kve_int){ 0, true };
    opts.layout = KVE_LAYOUT_ARRAY;
    kve_publisher *pub = test_create(NULL, &opts);
    void *sub = test_sub(test_zmq, kve_pub_endpoint(pub), "", 1000);

    assert_int_equal(kve_batch_create(NULL, &batch, NULL), KVE_OK);
    for (int i = 0; i < 3; i++) {
        const struct kve_batch_info *info;
        uint64_t before = i > 0 ? number : 0;

        assert_true(test_recv(sub, &msg, PATIENCE));
        number = test_number(&msg, 1);
        assert_true(i == 0 || number == before + 1);
        info = decode(batch, &msg);
        assert_int_equal(info->n_events, 0);
        assert_true(info->rank.set && info->rank.value == 0);
        assert_memory_equal(info->publisher_id, kve_pub_publisher_id(pub), 16);
    }
    test_wait_counter(pub, KVE_COUNTER_PUB_HEARTBEATS, 5);
    /* They are batches like others: in the buffer, and counted. */
    void *dealer = client(ZMQ_DEALER, kve_pub_replay_endpoint(pub));
    test_ask(dealer, 0);
    assert_true(test_answer(dealer, 0, "", PATIENCE) >= 5);
    test_close(dealer);
    struct reply reply = get(kve_pub_snapshot_endpoint(pub));
    assert_true(reply.seq >= 4);
    assert_int_equal(reply.chunks, 0);
    reply_release(&reply);

    /* None while there is something to say (20 would be due; a few come when
     * this machine lets its threads wait). */
    uint64_t beats = kve_pub_counter(pub, KVE_COUNTER_PUB_HEARTBEATS);
    int64_t longest = 0, last = kve_now_ns();
    for (int i = 0; i < 300; i++) {
        publish_store(pub, 1, 1);
        int64_t now = kve_now_ns();
        longest = now - last > longest ? now - last : longest;
        last = now;
        test_sleep_ms(2);
    }
    if (longest < 20 * KVE_MS)
        assert_true(
            kve_pub_counter(pub, KVE_COUNTER_PUB_HEARTBEATS) <= beats + 8);
    test_msg_release(&msg);
    test_close(sub);
    kve_batch_destroy(batch);
    kve_pub_destroy(pub);

    /* With an id, without snapshots; and not at all. */
    opts = loopback();
    opts.snapshot_endpoint = NULL;
    opts.publisher_id = (const uint8_t *)"0123456789abcdef";
    opts.heartbeat_ms = 20;
    pub = test_create(NULL, &opts);
    test_wait_counter(pub, KVE_COUNTER_PUB_HEARTBEATS, 2);
    kve_pub_destroy(pub);
    opts = loopback();
    pub = test_create(NULL, &opts);
    test_sleep_ms(100);
    assert_int_equal(kve_pub_next_number(pub), 0);
    kve_pub_destroy(pub);
}

/* A publisher without a rank of its own whose batches name one: a heartbeat
 * and a snapshot must not look like another rank's. */
static void
test_heartbeats_take_the_rank_of_batches(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
        struct kve_pub_opts opts = loopback();
        struct test_msg msg = { 0 };
        kve_batch *batch = NULL;

        opts.heartbeat_ms = 30;
        if (how == 2) {
            opts.snapshot_endpoint = NULL;
            opts.publisher_id = (const uint8_t *)"0123456789abcdef";
        }
        kve_publisher *pub = test_create(NULL, &opts);
        void *sub = test_sub(test_zmq, kve_pub_endpoint(pub), "", 1000);

        assert_int_equal(kve_batch_create(NULL, &batch, NULL), KVE_OK);
        view.rank = (struct kve_int){ 3, true };
        if (how != 1)
            assert_int_equal(kve_pub_publish(pub, &view, NULL, NULL), KVE_OK);
        else
            assert_int_equal(
                kve_pub_publish_payload(pub, "\x93\x01\x90\x03", 4, NULL, NULL),
                KVE_OK);
        uint64_t beats = kve_pub_counter(pub, KVE_COUNTER_PUB_HEARTBEATS);
        test_wait_counter(pub, KVE_COUNTER_PUB_HEARTBEATS, beats + 3);
        uint64_t seen = kve_pub_next_number(pub);
        do
            assert_true(test_recv(sub, &msg, PATIENCE));
        while (test_number(&msg, 1) < seen);
        assert_true(decode(batch, &msg)->rank.set);
        assert_int_equal(decode(batch, &msg)->rank.value, 3);
        test_msg_release(&msg);
        test_close(sub);
        kve_batch_destroy(batch);
        kve_pub_destroy(pub);
    }
}

/* ---- requests ---- */

/* A first number that was chosen: a reader waits for that one, not for 0. */
static void
test_nothing_published_from_a_number(void **state)
{
    struct kve_pub_opts opts = loopback();

    (void)state;
    opts.first_number = 7;
    kve_publisher *pub = test_create(NULL, &opts);
    struct reply reply = get(kve_pub_snapshot_endpoint(pub));
    assert_int_equal(reply.seq, 6);
    assert_int_equal(reply.chunks, 0);
    reply_release(&reply);
    kve_pub_destroy(pub);
}

static void
test_nothing_published(void **state)
{
    struct kve_pub_opts opts = loopback();
    kve_publisher *pub = test_create(NULL, &opts);
    struct reply reply = get(kve_pub_snapshot_endpoint(pub));

    (void)state;
    assert_int_equal(reply.seq, -1);
    assert_int_equal(reply.chunks, 0);
    assert_memory_equal(reply.id, kve_pub_publisher_id(pub), 16);
    reply_release(&reply);
    kve_pub_destroy(pub);
}

/* Over inproc the socket library hands our memory to the reader, and this
 * sanitizer does not see how the library orders that. */
#ifdef __SANITIZE_THREAD__
#define N_SCHEMES 2
#else
#define N_SCHEMES 3
#endif

/* DEALER and REQ, own endpoint and replay endpoint, tcp and ipc and inproc. */
static void
test_both_ways(void **state)
{
    static const char *const schemes[] = { "tcp://127.0.0.1:0",
        "ipc:///tmp/kve-test-snapshot-%d", "inproc://kve-test-snapshot-%d" };

    (void)state;
    for (size_t i = 0; i < N_SCHEMES; i++) {
        struct kve_context_opts context_opts = KVE_CONTEXT_OPTS_INIT;
        struct kve_pub_opts opts = loopback();
        char endpoint[100];
        kve_context *context = NULL;
        kve_publisher *pub = NULL;
        struct reply reply;

        context_opts.zmq_context = test_zmq;
        assert_int_equal(
            kve_context_create(&context_opts, &context, NULL), KVE_OK);
        (void)snprintf(endpoint, sizeof(endpoint), schemes[i], (int)getpid());
        opts.snapshot_endpoint = endpoint;
        opts.first_number = 7;
        assert_int_equal(kve_pub_create(context, &opts, &pub, NULL), KVE_OK);
        for (uint64_t k = 0; k < 20; k++)
            publish_store(pub, 100 * k, 10);
        publish_removal(pub, 100, 7);
        publish_removal(pub, 555555, 1); /* of nothing */
        assert_int_equal(kve_pub_flush(pub, PATIENCE, NULL), KVE_OK);

        reply = get(kve_pub_snapshot_endpoint(pub));
        assert_int_equal(reply.seq, 7 + 21);
        assert_int_equal(fold_pairs(reply.fold), 193);
        check_reply(pub, &reply);

        void *req = client(ZMQ_REQ, kve_pub_snapshot_endpoint(pub));
        assert_int_equal(zmq_send(req, "snapshot", 8, 0), 8);
        assert_true(take(req, 0, PATIENCE, &reply));
        assert_int_equal(reply.seq, 7 + 21);
        check_reply(pub, &reply);
        test_close(req);

        reply = get(kve_pub_replay_endpoint(pub));
        assert_int_equal(reply.seq, 7 + 21);
        check_reply(pub, &reply);
        test_wait_counter(pub, KVE_COUNTER_PUB_SNAPSHOT_REQUESTS, 3);
        test_wait_counter(pub, KVE_COUNTER_PUB_RECORDED, 22);
        test_wait_counter(pub, KVE_COUNTER_PUB_RECORDER_BELOW, 1);
        assert_true(kve_pub_counter(pub, KVE_COUNTER_PUB_SNAPSHOT_BYTES) > 999);
        kve_pub_destroy(pub);
        kve_context_destroy(context);
    }
}

/* Without snapshots the word is a number that is never reached. */
static void
test_asking_who_knows_nothing_of_it(void **state)
{
    struct kve_pub_opts opts = loopback();

    (void)state;
    opts.snapshot_endpoint = NULL;
    kve_publisher *pub = test_create(NULL, &opts);
    publish_store(pub, 1, 4);
    void *dealer = client(ZMQ_DEALER, kve_pub_replay_endpoint(pub));
    ask(dealer);
    assert_int_equal(test_answer(dealer, 0, "", PATIENCE), 0);
    test_close(dealer);
    kve_pub_destroy(pub);
}

/* With them it is not one, and other numbers are. */
static void
test_replays_go_on(void **state)
{
    struct kve_pub_opts opts = loopback();
    struct reply reply;

    (void)state;
    opts.snapshot_endpoint = NULL;
    opts.snapshots = 1;
    kve_publisher *pub = test_create(NULL, &opts);
    assert_string_equal(kve_pub_snapshot_endpoint(pub), "");
    for (uint64_t i = 0; i < 10; i++)
        publish_store(pub, 100 * i, 4);
    assert_int_equal(kve_pub_flush(pub, PATIENCE, NULL), KVE_OK);
    void *dealer = client(ZMQ_DEALER, kve_pub_replay_endpoint(pub));
    test_ask(dealer, 3);
    assert_int_equal(test_answer(dealer, 3, "", PATIENCE), 7);
    ask(dealer);
    assert_true(take(dealer, 1, PATIENCE, &reply));
    assert_int_equal(reply.seq, 9);
    check_reply(pub, &reply);
    test_ask(dealer, KVE_SNAPSHOT_WORD + 1);
    assert_int_equal(test_answer(dealer, 3, "", PATIENCE), 0);
    test_close(dealer);
    kve_pub_destroy(pub);
}

static void
test_bad_requests(void **state)
{
    static const char *const shapes[][4] = {
        { "snapshot", NULL },
        { "", NULL },
        { "", "snapsho", NULL },
        { "", "snapshots", NULL },
        { "", "SNAPSHOT", NULL },
        { "", "", NULL },
        { "", "12345678", NULL },
        { "x", "snapshot", NULL },
        { "", "snapshot", "", NULL },
        { "", "", "snapshot", NULL },
    };
    const uint64_t n = sizeof(shapes) / sizeof(shapes[0]);
    struct kve_pub_opts opts = loopback();
    kve_publisher *pub = test_create(NULL, &opts);
    void *dealer = client(ZMQ_DEALER, kve_pub_snapshot_endpoint(pub));
    struct reply reply;

    (void)state;
    for (size_t i = 0; i < n; i++)
        for (int k = 0; shapes[i][k] != NULL; k++)
            assert_true(zmq_send(dealer, shapes[i][k], strlen(shapes[i][k]),
                            shapes[i][k + 1] != NULL ? ZMQ_SNDMORE : 0) >= 0);
    test_wait_counter(pub, KVE_COUNTER_PUB_SNAPSHOT_BAD, n);
    /* None was answered; the next one is. */
    ask(dealer);
    assert_true(take(dealer, 1, PATIENCE, &reply));
    assert_int_equal(reply.seq, -1);
    reply_release(&reply);
    assert_false(wait_readable(dealer, 50));
    assert_int_equal(kve_pub_counter(pub, KVE_COUNTER_PUB_SNAPSHOT_BAD), n);
    test_close(dealer);
    kve_pub_destroy(pub);
}

/* Who has received a live message and then asks, gets it in the snapshot. */
static void
test_nothing_between_live_and_snapshot(void **state)
{
    struct kve_pub_opts opts = loopback();
    kve_publisher *pub = test_create(NULL, &opts);
    void *sub = test_sub(test_zmq, kve_pub_endpoint(pub), "", 1000);
    void *own = client(ZMQ_DEALER, kve_pub_snapshot_endpoint(pub));
    void *replay = client(ZMQ_DEALER, kve_pub_replay_endpoint(pub));
    struct test_msg msg = { 0 };
    uint64_t number;

    (void)state;
    for (bool joined = false; !joined;) {
        publish_store(pub, 1, 1);
        joined = test_recv(sub, &msg, 10);
    }
    for (int i = 0; i < 300; i++) {
        void *dealer = i % 2 ? own : replay;
        struct reply reply;

        number = publish_store(pub, (uint64_t)i, 1);
        while (test_number(&msg, 1) != number)
            assert_true(test_recv(sub, &msg, PATIENCE));
        ask(dealer);
        assert_true(take(dealer, 1, PATIENCE, &reply));
        assert_true(reply.seq >= (int64_t)number);
        reply_release(&reply);
    }
    test_msg_release(&msg);
    test_close(sub);
    test_close(own);
    test_close(replay);
    kve_pub_destroy(pub);
}

/* ---- limits ---- */

static void
test_max_blocks_ends_by_itself(void **state)
{
    struct kve_pub_opts opts = loopback();
    struct reply reply;

    (void)state;
    opts.snapshot_max_blocks = 100;
    kve_publisher *pub = test_create(NULL, &opts);
    for (uint64_t i = 0; i < 11; i++)
        publish_store(pub, 100 * i, 10);
    assert_int_equal(kve_pub_flush(pub, PATIENCE, NULL), KVE_OK);
    for (int way = 0; way < 2; way++) {
        reply = get(way ? kve_pub_snapshot_endpoint(pub)
                        : kve_pub_replay_endpoint(pub));
        assert_int_equal(reply.seq, -2);
        assert_int_equal(reply.chunks, 0);
        assert_memory_equal(reply.id, kve_pub_publisher_id(pub), 16);
        reply_release(&reply);
    }
    test_wait_counter(pub, KVE_COUNTER_PUB_SNAPSHOT_UNAVAILABLE, 2);
    publish_removal(pub, 1000, 10);
    assert_int_equal(kve_pub_flush(pub, PATIENCE, NULL), KVE_OK);
    reply = get(kve_pub_snapshot_endpoint(pub));
    assert_int_equal(reply.seq, 11);
    check_reply(pub, &reply);
    assert_int_equal(kve_pub_counter(pub, KVE_COUNTER_PUB_RECORDER_LOST), 0);
    kve_pub_destroy(pub);
}

static void
test_max_bytes_ends_by_itself(void **state)
{
    struct kve_pub_opts opts = loopback();
    struct reply reply;

    (void)state;
    opts.snapshot_max_bytes = 20000;
    kve_publisher *pub = test_create(NULL, &opts);
    for (uint64_t i = 0; i < 20; i++)
        publish_store(pub, 100 * i, 64);
    assert_int_equal(kve_pub_flush(pub, PATIENCE, NULL), KVE_OK);
    reply = get(kve_pub_snapshot_endpoint(pub));
    assert_int_equal(reply.seq, -2);
    reply_release(&reply);
    for (uint64_t i = 1; i < 20; i++)
        publish_removal(pub, 100 * i, 64);
    assert_int_equal(kve_pub_flush(pub, PATIENCE, NULL), KVE_OK);
    reply = get_until(kve_pub_snapshot_endpoint(pub), true);
    assert_true(reply.bytes <= 20000);
    check_reply(pub, &reply);
    kve_pub_destroy(pub);
}

/* A batch that cannot be read: none, until everything was cleared. */
static void
test_a_lost_batch(void **state)
{
    const struct kve_event clear = { .type = KVE_EVENT_CLEARED };

    (void)state;
    for (int scope = KVE_CLEAR_GPU; scope <= KVE_CLEAR_ALL; scope++) {
        struct kve_pub_opts opts = loopback();
        struct reply reply;

        opts.clear_scope = (uint32_t)scope;
        kve_publisher *pub = test_create(NULL, &opts);
        publish_store(pub, 1, 4);
        assert_int_equal(
            kve_pub_publish_payload(pub, "nonsense", 8, NULL, NULL), KVE_OK);
        publish_store(pub, 5, 4);
        assert_int_equal(kve_pub_flush(pub, PATIENCE, NULL), KVE_OK);
        reply = get(kve_pub_snapshot_endpoint(pub));
        assert_int_equal(reply.seq, -2);
        reply_release(&reply);
        assert_int_equal(
            kve_pub_counter(pub, KVE_COUNTER_PUB_RECORDER_LOST), 1);
        assert_int_equal(kve_pub_counter(pub, KVE_COUNTER_PUB_RECORDED), 1);

        publish_event(pub, &clear);
        publish_store(pub, 77, 3);
        assert_int_equal(kve_pub_flush(pub, PATIENCE, NULL), KVE_OK);
        reply = get(kve_pub_snapshot_endpoint(pub));
        assert_int_equal(reply.seq, scope == KVE_CLEAR_ALL ? 4 : -2);
        assert_int_equal(
            fold_pairs(reply.fold), scope == KVE_CLEAR_ALL ? 3 : 0);
        reply_release(&reply);
        kve_pub_destroy(pub);
    }
}

/* ---- the way to the recorder ---- */

/* The last line of the log. Read when the thread that logs has ended. */
static char last_line[300];
static unsigned n_lines;

static void
keep_line(void *ctx, enum kve_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)snprintf(last_line, sizeof(last_line), "%s", line);
    n_lines++;
}

struct bench_recorder {
    kve_context *context;
    struct kve_recorder *rec;
    struct kve_pub_counters counters;
    struct kve_history history;
    int fd;
};

static void
bench_begin(struct bench_recorder *b, size_t ring_items, size_t steps)
{
    struct kve_recorder_opts opts = { .counters = &b->counters,
        .publisher_id = (const uint8_t *)"0123456789abcdef",
        .ring_items = ring_items,
        .ring_bytes = 1 << 20,
        .max_bytes = 1 << 20,
        .max_blocks = 1000,
        .max_asks = 4,
        .timeout_ns = KVE_MS,
        .serve = { .endpoint = "" } };
    struct kve_context_opts context_opts = KVE_CONTEXT_OPTS_INIT;
    int fds[2];

    memset(b, 0, sizeof(*b));
    context_opts.zmq_context = test_zmq;
    assert_int_equal(pipe(fds), 0);
    close(fds[0]);
    b->fd = fds[1];
    opts.sender_fd = b->fd;
    context_opts.log = keep_line;
    assert_int_equal(
        kve_context_create(&context_opts, &b->context, NULL), KVE_OK);
    opts.context = b->context;
    kve_history_init(&b->history, steps, 1 << 20);
    assert_int_equal(kve_recorder_create(&opts, &b->rec, NULL), KVE_OK);
}

/* What the sender does with a round of batches. */
static void
bench_feed(struct bench_recorder *b, uint64_t first, uint64_t n)
{
    for (uint64_t i = first; i < first + n; i++) {
        struct kve_payload *payload =
            kve_payload_create("\x92\x01\x90", 3, NULL);

        assert_non_null(payload);
        kve_recorder_feed(b->rec, i, payload);
        assert_int_equal(kve_history_put(&b->history, i, payload), KVE_OK);
    }
    kve_recorder_fed(b->rec, &b->history);
}

static void
bench_wait(struct bench_recorder *b, uint64_t recorded, uint64_t lost)
{
    int64_t until = kve_now_ns() + PATIENCE * KVE_MS;

    while (
        kve_pub_count_get(&b->counters, KVE_COUNTER_PUB_RECORDED) < recorded ||
        kve_pub_count_get(&b->counters, KVE_COUNTER_PUB_RECORDER_LOST) < lost) {
        kve_recorder_fed(b->rec, &b->history);
        if (kve_now_ns() > until)
            fail_msg("recorded %d, lost %d",
                (int)kve_pub_count_get(&b->counters, KVE_COUNTER_PUB_RECORDED),
                (int)kve_pub_count_get(
                    &b->counters, KVE_COUNTER_PUB_RECORDER_LOST));
        test_sleep_ms(1);
    }
    assert_int_equal(
        kve_pub_count_get(&b->counters, KVE_COUNTER_PUB_RECORDED), recorded);
    assert_int_equal(
        kve_pub_count_get(&b->counters, KVE_COUNTER_PUB_RECORDER_LOST), lost);
}

static void
bench_end(struct bench_recorder *b)
{
    kve_recorder_stop(b->rec);
    kve_recorder_destroy(b->rec);
    kve_history_release(&b->history);
    kve_context_destroy(b->context);
    close(b->fd);
}

static void
test_the_history_fills_in(void **state)
{
    struct bench_recorder b;

    (void)state;
    signal(SIGPIPE, SIG_IGN); /* nobody reads what wakes the sender */
    bench_begin(&b, 4, 1000);
    bench_feed(&b, 0, 3);
    bench_feed(&b, 3, 60); /* does not fit */
    bench_feed(&b, 63, 37);
    assert_int_equal(kve_recorder_start(b.rec, NULL), KVE_OK);
    bench_wait(&b, 100, 0);
    bench_feed(&b, 100, 1);
    bench_wait(&b, 101, 0);
    bench_end(&b);
}

static void
test_what_the_history_lacks_is_lost(void **state)
{
    struct bench_recorder b;

    (void)state;
    bench_begin(&b, 4, 10);
    bench_feed(&b, 0, 40); /* 4 in the ring, 30..39 in the history */
    assert_int_equal(kve_recorder_start(b.rec, NULL), KVE_OK);
    bench_wait(&b, 4, 26);
    bench_end(&b);

    /* Without a history, also when nothing comes after it. */
    bench_begin(&b, 4, 0);
    bench_feed(&b, 0, 6);
    assert_int_equal(kve_recorder_start(b.rec, NULL), KVE_OK);
    bench_wait(&b, 4, 2);
    bench_end(&b);

    /* A number that the queue turned away. */
    bench_begin(&b, 100, 100);
    n_lines = 0;
    bench_feed(&b, 0, 5);
    bench_feed(&b, 8, 5);
    bench_feed(&b, 20, 5);
    assert_int_equal(kve_recorder_start(b.rec, NULL), KVE_OK);
    bench_wait(&b, 5, 10);
    bench_end(&b);
    assert_int_equal(n_lines, 1); /* not one for each */
    assert_string_equal(last_line,
        "no snapshots from batch 5 on until everything is cleared: the queue "
        "or the recorder was full");
}

/* ---- readers that do not read ---- */

static const char *const request[] = { "", "snapshot" };

static void
wait_for(kve_publisher *pub, unsigned counter, uint64_t n)
{
    int64_t until = kve_now_ns() + PATIENCE * KVE_MS;

    while (kve_pub_counter(pub, counter) < n) {
        if (kve_now_ns() > until)
            fail_msg("%s is %d, %d were expected", kve_counter_str(counter),
                (int)kve_pub_counter(pub, counter), (int)n);
        test_sleep_ms(2);
    }
}

/* Blocks whose snapshot is more than the kernel's buffers hold. */
#define MANY 60000
#define SMALL_BUFFER 65536

/* For ports that are opened again. */
static void
keep_port(char endpoint[64])
{
    (void)snprintf(endpoint, 64, "tcp://127.0.0.1:%u", test_port_to_keep());
}

static void
test_a_mute_reader(void **state)
{
    struct kve_pub_opts opts = loopback();
    struct reply reply;
    char endpoint[64];

    (void)state;
    keep_port(endpoint);
    opts.snapshot_endpoint = endpoint;
    opts.snapshot_timeout_ms = 300;
    opts.sndbuf = SMALL_BUFFER;
    kve_publisher *pub = test_create(NULL, &opts);
    publish_many(pub, MANY);
    int fd = test_mute_dealer(kve_pub_snapshot_endpoint(pub));
    test_mute_send(fd, request, 2);
    wait_for(pub, KVE_COUNTER_PUB_SNAPSHOT_REQUESTS, 1);

    /* Who waits meanwhile has to ask again; the socket is opened anew. */
    wait_for(pub, KVE_COUNTER_PUB_SNAPSHOT_EXPIRED, 1);
    void *dealer = client(ZMQ_DEALER, kve_pub_snapshot_endpoint(pub));
    for (int i = 0;; i++) {
        ask(dealer);
        if (take(dealer, 1, 2000, &reply))
            break;
        assert_true(i < 30);
    }
    test_close(dealer);
    assert_true(reply.bytes > 3000000);
    check_reply(pub, &reply);
    close(fd);
    kve_pub_destroy(pub);
}

static void
test_a_mute_reader_on_replay(void **state)
{
    struct kve_pub_opts opts = loopback();
    struct reply reply;

    (void)state;
    opts.snapshot_timeout_ms = 300;
    opts.snapshot_max_bytes = 6000000;
    opts.sndbuf = SMALL_BUFFER;
    kve_publisher *pub = test_create(NULL, &opts);
    publish_many(pub, MANY);
    const char *endpoint = kve_pub_replay_endpoint(pub);
    int fd[2];

    for (int i = 0; i < 2; i++) {
        fd[i] = test_mute_dealer(endpoint);
        test_mute_send(fd[i], request, 2);
        wait_for(pub, KVE_COUNTER_PUB_SNAPSHOT_EXPIRED, (uint64_t)i + 1);
    }
    /* Two hang there: that is more than the limit. */
    void *dealer = client(ZMQ_DEALER, endpoint);
    ask(dealer);
    wait_for(pub, KVE_COUNTER_PUB_SNAPSHOT_REFUSED, 1);
    /* Replays and the own socket are not concerned. */
    test_ask(dealer, 3);
    assert_true(test_answer(dealer, 3, "", PATIENCE) > 100);
    reply = get(kve_pub_snapshot_endpoint(pub));
    check_reply(pub, &reply);

    /* They leave, and the memory comes back. */
    close(fd[0]);
    close(fd[1]);
    for (uint64_t i = 2;; i++) {
        ask(dealer);
        if (take(dealer, 1, 500, &reply))
            break;
        assert_true(i < 40);
    }
    check_reply(pub, &reply);
    test_close(dealer);
    kve_pub_destroy(pub);
}

/* While one is being sent others wait, as many as max_replays. */
static void
test_requests_wait(void **state)
{
    struct kve_pub_opts opts = loopback();
    void *dealer[5];
    struct reply reply;
    size_t got = 0;

    (void)state;
    opts.max_replays = 2;
    opts.sndbuf = SMALL_BUFFER;
    kve_publisher *pub = test_create(NULL, &opts);
    publish_many(pub, MANY);
    int fd = test_mute_dealer(kve_pub_snapshot_endpoint(pub));
    test_mute_send(fd, request, 2);
    wait_for(pub, KVE_COUNTER_PUB_SNAPSHOT_REQUESTS, 1);
    for (int i = 0; i < 5; i++) {
        dealer[i] = client(ZMQ_DEALER, kve_pub_snapshot_endpoint(pub));
        ask(dealer[i]);
    }
    wait_for(pub, KVE_COUNTER_PUB_SNAPSHOT_REFUSED, 3);
    /* The reader that holds them up leaves. */
    close(fd);
    for (int tries = 0; got < 2 && tries < 5 * PATIENCE / 20; tries++)
        if (take(dealer[tries % 5], 1, 20, &reply)) {
            got++;
            reply_release(&reply);
        }
    assert_int_equal(got, 2);
    test_wait_counter(pub, KVE_COUNTER_PUB_SNAPSHOT_REQUESTS, 3);
    for (int i = 0; i < 5; i++)
        test_close(dealer[i]);
    kve_pub_destroy(pub);
}

/* Shutting down ends within its limit, whoever takes nothing. */
static void
test_shutdown_with_a_mute_reader(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        struct kve_pub_opts opts = loopback();
        char endpoint[2][64];
        int64_t before;

        keep_port(endpoint[0]);
        keep_port(endpoint[1]);
        opts.snapshot_endpoint = endpoint[0];
        opts.replay_endpoint = endpoint[1];
        opts.shutdown_ms = 100;
        opts.sndbuf = SMALL_BUFFER;
        kve_publisher *pub = test_create(NULL, &opts);
        publish_many(pub, MANY);
        int fd = test_mute_dealer(endpoint[way]);
        test_mute_send(fd, request, 2);
        wait_for(pub, KVE_COUNTER_PUB_SNAPSHOT_REQUESTS, 1);
        test_mute_send(fd, request, 2); /* and one that waits */
        before = kve_now_ns();
        kve_pub_destroy(pub);
        assert_true(kve_now_ns() - before < 10000 * KVE_MS);
        close(fd);

        /* The port is free. */
        pub = test_create(NULL, &opts);
        kve_pub_destroy(pub);
    }
}

/* Readers that are killed while they are sent to. */
static void
test_readers_that_leave(void **state)
{
    struct kve_pub_opts opts = loopback();
    struct reply reply;

    (void)state;
    opts.sndbuf = SMALL_BUFFER;
    kve_publisher *pub = test_create(NULL, &opts);
    publish_many(pub, MANY);
    for (int i = 0; i < 6; i++) {
        uint64_t before =
            kve_pub_counter(pub, KVE_COUNTER_PUB_SNAPSHOT_REQUESTS);
        int fd = test_mute_dealer(i % 2 ? kve_pub_snapshot_endpoint(pub)
                                        : kve_pub_replay_endpoint(pub));

        test_mute_send(fd, request, 2);
        if (i % 3 > 0)
            wait_for(pub, KVE_COUNTER_PUB_SNAPSHOT_REQUESTS, before + 1);
        close(fd);
    }
    reply = get(kve_pub_snapshot_endpoint(pub));
    check_reply(pub, &reply);
    reply = get(kve_pub_replay_endpoint(pub));
    check_reply(pub, &reply);
    kve_pub_destroy(pub);
}

/* ---- at full speed ---- */

struct writer {
    kve_publisher *pub;
    atomic_bool stop;
    uint64_t dropped;
};

static void *
write_at_full_speed(void *arg)
{
    struct writer *w = arg;

    for (uint64_t i = 0; i < 20000 && !atomic_load(&w->stop); i++) {
        struct test_store store;
        struct kve_batch_view view;

        test_store_init(&store, i * 3 % 5000, 16 * (1 + i % 4));
        if (i % 3 == 2) {
            store.event.type = KVE_EVENT_REMOVED;
            store.event.tokens = NULL;
            store.event.n_tokens = store.event.block_size = 0;
        }
        view = test_view(&store.event);
        if (kve_pub_publish(w->pub, &view, NULL, NULL) != KVE_OK)
            w->dropped++;
        if (i % 500 == 0)
            (void)kve_pub_flush(w->pub, PATIENCE, NULL);
    }
    return NULL;
}

static void
test_at_full_speed(void **state)
{
    struct kve_pub_opts opts = loopback();
    struct writer writer = { 0 };
    struct reply replies[10];
    pthread_t thread;

    (void)state;
    opts.buffer_steps = 1000000;
    writer.pub = test_create(NULL, &opts);
    assert_int_equal(
        pthread_create(&thread, NULL, write_at_full_speed, &writer), 0);
    for (int i = 0; i < 10; i++)
        replies[i] = get(i % 2 ? kve_pub_snapshot_endpoint(writer.pub)
                               : kve_pub_replay_endpoint(writer.pub));
    atomic_store(&writer.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(writer.dropped, 0);
    assert_int_equal(
        kve_pub_counter(writer.pub, KVE_COUNTER_PUB_RECORDER_LOST), 0);
    for (int i = 0; i < 10; i++) {
        assert_true(i == 0 || replies[i].seq >= replies[i - 1].seq);
        check_reply(writer.pub, &replies[i]);
    }
    kve_pub_destroy(writer.pub);
}

/* Many at once, both ways. */
static void
test_many_readers(void **state)
{
    struct kve_pub_opts opts = loopback();
    void *dealer[24];
    struct reply reply;

    (void)state;
    opts.max_replays = 100;
    kve_publisher *pub = test_create(NULL, &opts);
    publish_many(pub, 20000);
    for (int i = 0; i < 24; i++) {
        dealer[i] = client(ZMQ_DEALER,
            i % 3 ? kve_pub_snapshot_endpoint(pub)
                  : kve_pub_replay_endpoint(pub));
        ask(dealer[i]);
    }
    for (int i = 0; i < 24; i++) {
        assert_true(take(dealer[i], 1, PATIENCE, &reply));
        check_reply(pub, &reply);
        test_close(dealer[i]);
    }
    test_wait_counter(pub, KVE_COUNTER_PUB_SNAPSHOT_REQUESTS, 24);
    kve_pub_destroy(pub);
}

/* ---- fork and memory ---- */

static void
test_a_child_may_only_destroy(void **state)
{
    struct kve_pub_opts opts = loopback();
    kve_publisher *pub = test_create(NULL, &opts);
    struct reply reply;
    int status;
    pid_t child;

    (void)state;
    publish_store(pub, 1, 5);
    assert_int_equal(kve_pub_flush(pub, PATIENCE, NULL), KVE_OK);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kve_pub_destroy(pub);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    reply = get(kve_pub_snapshot_endpoint(pub));
    check_reply(pub, &reply);
    kve_pub_destroy(pub);
}

static void
test_creation_without_memory(void **state)
{
    struct kve_pub_opts opts = loopback();

    (void)state;
    for (uint64_t n = 1;; n++) {
        kve_publisher *pub = NULL;
        bool failed;

        kve_mem_fail_at(n, false);
        kve_status status = kve_pub_create(NULL, &opts, &pub, NULL);
        failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        if (!failed) {
            assert_int_equal(status, KVE_OK);
            kve_pub_destroy(pub);
            break;
        }
        if (status != KVE_OK) {
            assert_int_equal(status, KVE_E_NOMEM);
            assert_null(pub);
        }
        kve_pub_destroy(pub);
    }
}

/* Whichever allocation fails while there are readers: an answer or none, and
 * never a wrong one. */
static void
test_serving_without_memory(void **state)
{
    (void)state;
    for (uint64_t n = 1; n < 60; n++) {
        struct kve_pub_opts opts = loopback();
        kve_publisher *pub = test_create(NULL, &opts);
        void *dealer = client(ZMQ_DEALER, kve_pub_snapshot_endpoint(pub));
        struct reply reply;
        bool came;

        for (uint64_t i = 0; i < 4; i++)
            publish_store(pub, 100 * i, 4);
        assert_int_equal(kve_pub_flush(pub, PATIENCE, NULL), KVE_OK);
        kve_mem_fail_at(n, false);
        {
            struct test_store store;
            struct kve_batch_view view;

            test_store_init(&store, 900, 64);
            view = test_view(&store.event);
            (void)kve_pub_publish(pub, &view, NULL, NULL);
        }
        ask(dealer);
        came = wait_readable(dealer, 200);
        kve_mem_fail_at(0, false);
        if (!came)
            ask(dealer);
        assert_true(take(dealer, 1, PATIENCE, &reply));
        if (reply.seq != -2)
            check_reply(pub, &reply);
        else
            reply_release(&reply);
        test_close(dealer);
        kve_pub_destroy(pub);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        LEAK_TEST(test_options),
        LEAK_TEST(test_a_rank_moves_the_endpoint),
        LEAK_TEST(test_batches_have_the_id),
        LEAK_TEST(test_heartbeats),
        LEAK_TEST(test_heartbeats_take_the_rank_of_batches),
        LEAK_TEST(test_nothing_published),
        LEAK_TEST(test_nothing_published_from_a_number),
        LEAK_TEST(test_both_ways),
        LEAK_TEST(test_asking_who_knows_nothing_of_it),
        LEAK_TEST(test_replays_go_on),
        LEAK_TEST(test_bad_requests),
        LEAK_TEST(test_nothing_between_live_and_snapshot),
        LEAK_TEST(test_max_blocks_ends_by_itself),
        LEAK_TEST(test_max_bytes_ends_by_itself),
        LEAK_TEST(test_a_lost_batch),
        LEAK_TEST(test_the_history_fills_in),
        LEAK_TEST(test_what_the_history_lacks_is_lost),
        LEAK_TEST(test_a_mute_reader),
        LEAK_TEST(test_a_mute_reader_on_replay),
        LEAK_TEST(test_requests_wait),
        LEAK_TEST(test_shutdown_with_a_mute_reader),
        LEAK_TEST(test_readers_that_leave),
        LEAK_TEST(test_at_full_speed),
        LEAK_TEST(test_many_readers),
        LEAK_TEST(test_a_child_may_only_destroy),
        LEAK_TEST(test_creation_without_memory),
        LEAK_TEST(test_serving_without_memory),
    };

    return cmocka_run_group_tests(tests, test_make_zmq, test_end_zmq);
}
