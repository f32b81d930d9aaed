/*
 * test_streams.c - several publishers behind one bound socket: each is a
 * stream with an order, a state and counters of its own.
 */
#include "rig.h"

#include "base/alloc.h"
#include "subscribe/set.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <zmq.h>

#include "support/port.h"

struct seen {
    kve_source_id ids[8];
    kve_source_id parents[8];
    char topics[8][32];
    struct kve_int ranks[8];
    size_t n;
    bool remove_first;
    bool remove_parent; /* when a stream is gone */
};

/* The first word of a stream is that it is there. */
static void
on_notice(struct reader *r, const struct kve_notice *n)
{
    struct seen *seen = r->more;
    struct kve_source_info info = { .struct_size = sizeof(info) };

    if (seen->remove_parent && n->type == KVE_NOTICE_STATE &&
        n->state == KVE_STATE_GONE)
        assert_int_equal(kve_sub_remove(r->sub, seen->parents[0]), KVE_OK);
    if (n->type != KVE_NOTICE_STREAM)
        return;
    assert_int_equal(r->of[n->source], 0);
    assert_int_equal(kve_sub_source(r->sub, n->source, &info), KVE_OK);
    assert_int_equal(info.parent, n->first);
    assert_ptr_equal(n->user, seen);
    size_t at = seen->n++ % N_OF(seen->ids);
    seen->ids[at] = n->source;
    seen->parents[at] = info.parent;
    seen->ranks[at] = info.rank;
    (void)snprintf(seen->topics[at], sizeof(seen->topics[0]), "%.*s",
        (int)info.topic.len, info.topic.data);
    if (seen->remove_first)
        assert_int_equal(kve_sub_remove(r->sub, n->source), KVE_OK);
}

static kve_source_id
bind_reader(struct reader *r, struct seen *seen, char *ret_endpoint,
    const struct kve_source_opts *given)
{
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;

    if (given != NULL)
        opts = *given;
    (void)snprintf(ret_endpoint, 64, "tcp://127.0.0.1:%u", test_port_to_keep());
    opts.endpoint = ret_endpoint;
    opts.bind = KVE_BIND_YES;
    opts.user = seen;
    r->more = seen;
    r->on_notice = on_notice;
    return reader_add(r, &opts);
}

/* Until a subscription of the reader is at the peer. */
static void
join(struct reader *r, struct peer *p, struct seen *seen, uint64_t first)
{
    size_t before = seen->n;

    RUN_UNTIL(r, peer_live(p, first), seen->n > before);
}

static kve_source_id
stream_of(const struct seen *seen, const char *topic, int rank)
{
    for (size_t i = 0; i < seen->n; i++)
        if (strcmp(seen->topics[i], topic) == 0 &&
            seen->ranks[i].set == (rank >= 0) &&
            (rank < 0 || seen->ranks[i].value == rank))
            return seen->ids[i];
    return 0;
}

/* Three publishers, two ranks, one topic twice: numbers that overlap are no
 * repeats and no restarts, and a gap is that of one stream. */
static void
test_three_publishers(void **state)
{
    static const struct {
        const char *topic;
        int rank;
    } who[] = { { "a", 0 }, { "a", 1 }, { "b", -1 } };
    struct peer peers[3];
    struct seen seen = { .n = 0 };
    char endpoint[64];

    (void)state;
    struct reader *r = reader_open(NULL);
    kve_source_id parent = bind_reader(r, &seen, endpoint, NULL);
    for (size_t i = 0; i < 3; i++) {
        peer_open_connected(&peers[i], endpoint);
        peers[i].topic = who[i].topic;
        peers[i].rank = who[i].rank;
        join(r, &peers[i], &seen, 0);
    }
    assert_int_equal(seen.n, 3);
    for (uint64_t number = 1; number < 20; number++)
        for (size_t i = 0; i < 3; i++)
            if (i != 1 || number != 7)
                peer_live(&peers[i], number);
    RUN_UNTIL(r, (void)0,
        r->last[seen.ids[0]] == 19 && r->last[seen.ids[1]] == 19 &&
            r->last[seen.ids[2]] == 19);

    for (size_t i = 0; i < 3; i++) {
        kve_source_id id = stream_of(&seen, who[i].topic, who[i].rank);
        assert_int_not_equal(id, 0);
        assert_int_equal(r->of[id], i == 1 ? 19 : 20);
        assert_int_equal(seen.parents[i], parent);
        assert_int_equal(
            reader_counter(r, id, KVE_COUNTER_SUB_GAPS), i == 1 ? 1 : 0);
        assert_int_equal(reader_counter(r, id, KVE_COUNTER_SUB_RESTARTS), 0);
        assert_int_equal(reader_info(r, id).state,
            i == 1 ? KVE_STATE_DEGRADED : KVE_STATE_LIVE);
        assert_string_equal(reader_info(r, id).endpoint, endpoint);
    }
    assert_non_null(strstr(r->detail[KVE_NOTICE_STREAM], "topic 'b', no rank"));
    /* The parent keeps the connection and no order. */
    assert_int_equal(reader_info(r, parent).state, KVE_STATE_COLD);
    assert_true(reader_info(r, parent).connected);
    assert_int_equal(r->of[parent], 0);
    assert_int_equal(reader_counter(r, parent, KVE_COUNTER_SUB_STREAMS), 3);

    /* One of them leaves, the others do not mind. */
    peer_close(&peers[0]);
    RUN_UNTIL(r, (void)0, r->notices[KVE_NOTICE_DISCONNECTED] == 1);
    peer_live(&peers[2], 20);
    RUN_UNTIL(r, (void)0, r->last[seen.ids[2]] == 20);
    assert_int_equal(reader_info(r, seen.ids[2]).state, KVE_STATE_LIVE);
    assert_true(reader_info(r, parent).connected);

    /* All of them: nobody is connected. */
    peer_close(&peers[1]);
    peer_close(&peers[2]);
    RUN_UNTIL(r, (void)0, !reader_info(r, parent).connected);
    RUN_UNTIL(
        r, (void)0, reader_info(r, seen.ids[2]).state == KVE_STATE_RECOVERING);
    assert_true(reader_info(r, seen.ids[2]).stale);

    /* With the parent everything goes. */
    assert_int_equal(kve_sub_remove(r->sub, parent), KVE_OK);
    for (size_t i = 0; i < 3; i++) {
        struct kve_source_info info = { .struct_size = sizeof(info) };
        assert_int_equal(
            kve_sub_source(r->sub, seen.ids[i], &info), KVE_E_NOT_FOUND);
    }
    assert_int_equal(r->sub->n_sources, 0);
    assert_int_equal(reader_counter(r, 0, KVE_COUNTER_SUB_BATCHES), r->n);
    reader_close(r);
}

/* Beyond max_streams messages are dropped, counted, and told ever more
 * seldom; so are topics of a size that nobody means. */
static void
test_limits(void **state)
{
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct seen seen = { .n = 0 };
    struct peer p;
    char endpoint[64];
    char topic[2000];

    (void)state;
    struct reader *r = reader_open(NULL);
    opts.max_streams = 2;
    kve_source_id parent = bind_reader(r, &seen, endpoint, &opts);
    peer_open_connected(&p, endpoint);
    p.topic = "a";
    join(r, &p, &seen, 0);
    p.topic = "b";
    peer_live(&p, 0);
    p.topic = "c";
    for (uint64_t i = 0; i < 9; i++)
        peer_live(&p, i);
    memset(topic, 'x', sizeof(topic) - 1);
    topic[sizeof(topic) - 1] = '\0';
    p.topic = topic;
    peer_live(&p, 0);
    p.topic = "b";
    peer_live(&p, 1);
    RUN_UNTIL(r, (void)0, seen.n == 2 && r->last[seen.ids[1]] == 1);
    assert_int_equal(
        reader_counter(r, parent, KVE_COUNTER_SUB_STREAMS_REFUSED), 10);
    assert_int_equal(r->notices[KVE_NOTICE_STREAMS_FULL], 4); /* 1 2 4 8 */
    assert_non_null(
        strstr(r->detail[KVE_NOTICE_STREAMS_FULL], "raise max_streams"));
    reader_close(r);
    peer_close(&p);

    /* Streams count as sources. */
    struct kve_sub_opts sub_opts = KVE_SUB_OPTS_INIT;
    memset(&seen, 0, sizeof(seen));
    sub_opts.max_sources = 2;
    r = reader_open(&sub_opts);
    (void)bind_reader(r, &seen, endpoint, NULL);
    peer_open_connected(&p, endpoint);
    p.topic = "a";
    join(r, &p, &seen, 0);
    p.topic = "b";
    RUN_UNTIL(r, peer_live(&p, 0), r->notices[KVE_NOTICE_STREAMS_FULL] > 0);
    assert_non_null(
        strstr(r->detail[KVE_NOTICE_STREAMS_FULL], "raise max_sources"));
    reader_close(r);
    peer_close(&p);
}

/* Silent for too long: told as gone, not there any more; a later message makes
 * a new one with another id. */
static void
test_silence(void **state)
{
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct seen seen = { .n = 0 };
    struct kve_source_info info = { .struct_size = sizeof(info) };
    struct peer p;
    char endpoint[64];

    (void)state;
    struct reader *r = reader_open(NULL);
    opts.stream_idle_ms = 300;
    kve_source_id parent = bind_reader(r, &seen, endpoint, &opts);
    peer_open_connected(&p, endpoint);
    join(r, &p, &seen, 0);
    kve_source_id id = seen.ids[0];
    uint64_t n = 1;
    RUN_FOR(
        r,
        {
            if (n < 40) {
                peer_live(&p, n++);
                usleep(20000);
            }
        },
        900);
    RUN_UNTIL(r, (void)0, kve_sub_source(r->sub, id, &info) == KVE_E_NOT_FOUND);
    assert_int_equal(r->notice[KVE_NOTICE_STATE].source, id);
    assert_int_equal(r->notice[KVE_NOTICE_STATE].state, KVE_STATE_GONE);
    assert_int_equal(r->notice[KVE_NOTICE_STATE].reason, KVE_REASON_SILENT);
    assert_int_equal(
        reader_counter(r, parent, KVE_COUNTER_SUB_STREAMS_GONE), seen.n);
    size_t before = seen.n;
    peer_live(&p, n);
    RUN_UNTIL(r, (void)0, seen.n > before);
    assert_true(seen.ids[(seen.n - 1) % N_OF(seen.ids)] > id);
    reader_close(r);
    peer_close(&p);
}

/* The word that a stream is gone may be what ends its parent, too. */
static void
test_silence_ends_all(void **state)
{
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct seen seen = { .n = 0, .remove_parent = true };
    struct peer p;
    char endpoint[64];

    (void)state;
    struct reader *r = reader_open(NULL);
    opts.stream_idle_ms = 100;
    (void)bind_reader(r, &seen, endpoint, &opts);
    peer_open_connected(&p, endpoint);
    join(r, &p, &seen, 0);
    RUN_UNTIL(r, (void)0, r->notice[KVE_NOTICE_STATE].state == KVE_STATE_GONE);
    assert_int_equal(reader_listed(r), 0);
    reader_close(r);
    peer_close(&p);
}

/* What a stream waits for after a message comes due although its descriptors,
 * and its parent's, stay silent. */
static void
test_deadlines(void **state)
{
    static const uint8_t id[16] = "sixteen letters";
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct seen seen = { .n = 0 };
    struct peer silent;
    struct peer p;
    char endpoint[64];

    (void)state;
    peer_open(&silent);
    struct reader *r = reader_open(NULL);
    opts.replay_endpoint = silent.replay;
    opts.replay_timeout_ms = 200;
    opts.tail_probe_ms = KVE_NONE;
    (void)bind_reader(r, &seen, endpoint, &opts);
    peer_open_connected(&p, endpoint);
    join(r, &p, &seen, 5);
    RUN_UNTIL(r, (void)0,
        reader_counter(r, seen.ids[0], KVE_COUNTER_SUB_REPLAY_TIMEOUTS) >= 2);
    reader_close(r);
    peer_close(&p);
    peer_close(&silent);

    memset(&seen, 0, sizeof(seen));
    kve_source_opts_init(&opts);
    opts.heartbeat_timeout_ms = 200;
    r = reader_open(NULL);
    (void)bind_reader(r, &seen, endpoint, &opts);
    peer_open_connected(&p, endpoint);
    RUN_UNTIL(r, peer_heartbeat(&p, 0, id), seen.n > 0);
    RUN_UNTIL(r, (void)0, r->notices[KVE_NOTICE_STALE] > 0);
    reader_close(r);
    peer_close(&p);
}

/* A ROUTER at a place of its own. */
static void *
router_at(struct peer *p, const char *endpoint)
{
    int zero = 0;

    p->router = zmq_socket(p->zmq, ZMQ_ROUTER);
    zmq_setsockopt(p->router, ZMQ_LINGER, &zero, sizeof(zero));
    assert_int_equal(zmq_bind(p->router, endpoint), 0);
    return p->router;
}

/* Each rank asks at its own place; batches of another rank in an answer are
 * passed over. */
static void
test_replay(void **state)
{
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct seen seen = { .n = 0 };
    struct peer peers[2];
    char base[64];
    char moved[64];
    char endpoint[64];

    (void)state;
    (void)snprintf(base, sizeof(base), "ipc:///tmp/kve-streams-%d", getpid());
    assert_int_equal(
        kve_endpoint_of_rank(base, 1, moved, sizeof(moved), NULL), KVE_OK);
    struct reader *r = reader_open(NULL);
    opts.replay_endpoint = base;
    opts.tail_probe_ms = KVE_NONE;
    (void)bind_reader(r, &seen, endpoint, &opts);
    for (int i = 0; i < 2; i++) {
        peer_open_connected(&peers[i], endpoint);
        peers[i].rank = i;
        peers[i].next = 6;
        router_at(&peers[i], i == 0 ? base : moved);
    }
    for (int i = 0; i < 2; i++)
        RUN_UNTIL(
            r,
            {
                peer_live(&peers[i], 5);
                peer_serve(&peers[0]);
                peer_serve(&peers[1]);
            },
            seen.n > (size_t)i && r->of[seen.ids[i]] == 6);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(
            reader_info(r, seen.ids[i]).replay_endpoint, i == 0 ? base : moved);
        assert_int_equal(peers[i].starts[0], 0);
        assert_int_equal(
            reader_counter(r, seen.ids[i], KVE_COUNTER_SUB_REPLAY_FAULTS), 0);
    }

    /* Rank 1's endpoint says something of rank 0. */
    uint64_t lost = reader_counter(r, seen.ids[1], KVE_COUNTER_SUB_RESTARTS);
    peers[1].next = 9;
    peer_live(&peers[1], 8);
    struct request asked;
    bool came = false;
    RUN_UNTIL(
        r, { came = came || peer_request(&peers[1], &asked); }, came);
    peers[1].rank = 0;
    peers[1].cut = 2;
    peer_answer(&peers[1], &asked);
    peers[1].rank = 1;
    peers[1].cut = 0;
    peer_answer(&peers[1], &asked);
    RUN_UNTIL(r, (void)0, r->last[seen.ids[1]] == 8);
    assert_int_equal(r->of[seen.ids[1]], 9);
    assert_int_equal(
        reader_counter(r, seen.ids[1], KVE_COUNTER_SUB_REPLAY_FAULTS), 2);
    assert_int_equal(
        reader_counter(r, seen.ids[1], KVE_COUNTER_SUB_RESTARTS), lost);
    reader_close(r);
    peer_close(&peers[0]);
    peer_close(&peers[1]);
    (void)unlink(base + 6);
    (void)unlink(moved + 6);
}

/* A snapshot that another rank's publisher gave is not taken for this one's. */
static void
test_snapshot_of_another(void **state)
{
    static const uint8_t id[16] = "sixteen letters";
    static const uint8_t five[8] = { 0, 0, 0, 0, 0, 0, 0, 5 };
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct seen seen = { .n = 0 };
    struct peer p;
    struct request asked;
    bool came = false;
    char base[64];
    char moved[64];
    char endpoint[64];
    uint8_t payload[80];

    (void)state;
    (void)snprintf(base, sizeof(base), "ipc:///tmp/kve-snap-%d", getpid());
    assert_int_equal(
        kve_endpoint_of_rank(base, 1, moved, sizeof(moved), NULL), KVE_OK);
    struct reader *r = reader_open(NULL);
    opts.snapshot_endpoint = base;
    opts.snapshot_timeout_ms = 30000;
    (void)bind_reader(r, &seen, endpoint, &opts);
    peer_open_connected(&p, endpoint);
    p.rank = 1;
    (void)router_at(&p, moved);
    join(r, &p, &seen, 5);
    RUN_UNTIL(
        r, { came = came || peer_request(&p, &asked); }, came);
    p.rank = 0;
    struct kve_span frames[] = { { asked.id, asked.id_len }, { NULL, 0 },
        { five, 8 }, { id, 16 },
        { payload, peer_payload(&p, 5, id, payload) } };
    rig_send(p.router, frames, N_OF(frames));
    RUN_UNTIL(r, (void)0, r->notices[KVE_NOTICE_SNAPSHOT_FAILED] > 0);
    assert_non_null(strstr(r->detail[KVE_NOTICE_SNAPSHOT_FAILED], "rank 0"));
    assert_int_equal(r->notices[KVE_NOTICE_SWAP], 0);
    reader_close(r);
    peer_close(&p);
    (void)unlink(moved + 6);
}

/* B24 for streams: the word of a reset names a topic and no rank. */
static void
test_reset(void **state)
{
    struct seen seen = { .n = 0 };
    struct peer p;
    char endpoint[64];
    uint8_t end[8];

    (void)state;
    struct reader *r = reader_open(NULL);
    (void)bind_reader(r, &seen, endpoint, NULL);
    peer_open_connected(&p, endpoint);
    p.topic = "a";
    join(r, &p, &seen, 0);
    p.topic = "b";
    peer_live(&p, 0);
    kve_number_write(KVE_NUMBER_END, end);
    struct kve_span frames[] = { { (const uint8_t *)"a", 1 }, { end, 8 },
        { NULL, 0 } };
    rig_send(p.pub, frames, 3);
    RUN_UNTIL(r, (void)0, r->notices[KVE_NOTICE_CLEAR] == 1 && seen.n == 2);
    assert_int_equal(r->notice[KVE_NOTICE_CLEAR].source, seen.ids[0]);
    assert_int_equal(reader_counter(r, seen.ids[0], KVE_COUNTER_SUB_RESETS), 1);
    assert_int_equal(reader_counter(r, seen.ids[1], KVE_COUNTER_SUB_RESETS), 0);
    reader_close(r);
    peer_close(&p);
}

/* A batch whose rank cannot be read makes no stream; one that is of a stream
 * without rank goes there. */
static void
test_broken(void **state)
{
    struct seen seen = { .n = 0 };
    struct peer p;
    char endpoint[64];
    uint8_t seq[8];

    (void)state;
    struct reader *r = reader_open(NULL);
    kve_source_id parent = bind_reader(r, &seen, endpoint, NULL);
    peer_open_connected(&p, endpoint);
    p.topic = "a";
    p.rank = 3;
    join(r, &p, &seen, 0);
    p.rank = -1;
    p.topic = "b";
    peer_live(&p, 0);
    kve_number_write(1, seq);
    for (int i = 0; i < 2; i++) {
        struct kve_span frames[] = { { (const uint8_t *)(i == 0 ? "a" : "b"),
                                         1 },
            { seq, 8 }, { (const uint8_t *)"\x93\xcb", 2 } };
        rig_send(p.pub, frames, 3);
    }
    RUN_UNTIL(r, (void)0, r->notices[KVE_NOTICE_UNREADABLE] == 2);
    assert_int_equal(seen.n, 2);
    assert_int_equal(
        reader_counter(r, parent, KVE_COUNTER_SUB_UNREADABLE_BATCHES), 1);
    assert_int_equal(
        reader_counter(r, seen.ids[1], KVE_COUNTER_SUB_UNREADABLE_BATCHES), 1);
    assert_int_equal(r->last[seen.ids[1]], 1);
    assert_int_equal(reader_info(r, seen.ids[1]).state, KVE_STATE_DEGRADED);
    reader_close(r);
    peer_close(&p);
}

/* A stream may be removed by the word that it is there; what follows makes
 * another one. And streams=one is what it says. */
static void
test_remove_and_one(void **state)
{
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct seen seen = { .n = 0, .remove_first = true };
    struct peer p;
    char endpoint[64];

    (void)state;
    struct reader *r = reader_open(NULL);
    (void)bind_reader(r, &seen, endpoint, NULL);
    peer_open_connected(&p, endpoint);
    join(r, &p, &seen, 0);
    assert_int_equal(r->n, 0);
    join(r, &p, &seen, 1);
    assert_int_equal(r->n, 0);
    seen.remove_first = false;
    RUN_UNTIL(r, peer_live(&p, 2), r->n > 0);
    reader_close(r);
    peer_close(&p);

    memset(&seen, 0, sizeof(seen));
    r = reader_open(NULL);
    opts.streams = KVE_STREAMS_ONE;
    kve_source_id id = bind_reader(r, &seen, endpoint, &opts);
    peer_open_connected(&p, endpoint);
    RUN_UNTIL(r, peer_live(&p, 0), r->n > 0);
    assert_int_equal(seen.n, 0);
    assert_int_equal(r->of[id], r->n);
    reader_close(r);
    peer_close(&p);
}

/* Whoever knocks and leaves again without a word is not counted as a peer. */
static void
test_strangers(void **state)
{
    struct seen seen = { .n = 0 };
    struct sockaddr_in to = { .sin_family = AF_INET };
    struct peer p;
    char endpoint[64];

    (void)state;
    struct reader *r = reader_open(NULL);
    kve_source_id parent = bind_reader(r, &seen, endpoint, NULL);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)atoi(strrchr(endpoint, ':') + 1));
    for (int i = 0; i < 6; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
        if (i % 2 == 1)
            assert_int_equal(write(fd, "GET / HTTP/1.0\r\n\r\n", 18), 18);
        RUN_FOR(r, (void)0, 20);
        (void)close(fd);
    }
    peer_open_connected(&p, endpoint);
    join(r, &p, &seen, 0);
    RUN_FOR(r, (void)0, 100);
    assert_true(reader_info(r, parent).connected);
    assert_int_equal(reader_counter(r, parent, KVE_COUNTER_SUB_CONNECTS), 1);
    assert_int_equal(reader_counter(r, parent, KVE_COUNTER_SUB_DISCONNECTS), 0);
    peer_close(&p);
    RUN_UNTIL(r, (void)0, !reader_info(r, parent).connected);
    reader_close(r);
}

/* The n-th allocation fails while streams are made: no message is lost. */
static void
test_memory(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
        struct seen seen = { .n = 0 };
        struct peer p;
        char endpoint[64];
        int64_t live = kve_mem_live();

        assert_true(n < 300);
        struct reader *r = reader_open(NULL);
        opts.replay_endpoint = "ipc:///tmp/kve-no-such-thing";
        opts.snapshot_endpoint = opts.replay_endpoint;
        opts.start = KVE_START_LIVE;
        (void)bind_reader(r, &seen, endpoint, &opts);
        peer_open_connected(&p, endpoint);
        p.topic = "0";
        join(r, &p, &seen, 0);
        kve_mem_fail_at(n, false);
        for (int i = 1; i < 20; i++) {
            char topic[12];
            (void)snprintf(topic, sizeof(topic), "%d", i);
            p.topic = topic;
            peer_live(&p, 0);
        }
        RUN_UNTIL(r, (void)0, seen.n == 20);
        bool failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        assert_int_equal(r->notices[KVE_NOTICE_STREAMS_FULL], 0);
        reader_close(r);
        peer_close(&p);
        assert_int_equal(kve_mem_live(), live);
        if (!failed)
            return;
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_three_publishers),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_silence_ends_all),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_replay),
        cmocka_unit_test(test_snapshot_of_another),
        cmocka_unit_test(test_reset),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_remove_and_one),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_memory),
    };

    return cmocka_run_group_tests_name("subscribe/streams", tests, NULL, NULL);
}
