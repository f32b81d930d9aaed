/*
 * ctest-timeout: 300
 *
 * test_resume.c - a reader that goes on in its next process: a position that
 * was taken inside a callback, and a new subscriber that begins there.
 *
 * Each story runs inside kve_sub_poll() and with library threads.
 */
#include "rig.h"

#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zmq.h>

#include "support/port.h"

static const uint32_t ways[] = { 0, 2 };

/* ---- a reader that keeps positions --------------------------------- */

struct keeper {
    uint64_t at; /* keep the position when this batch is delivered */
    struct kve_position kept;
    struct kve_position last; /* of the latest callback */
    size_t visible;           /* batches */
    bool nothing;             /* a CLEAR came, and nothing since */
    bool building;
    bool unread;       /* a notice told of a batch that was not read */
    const char *wrong; /* a position that was not so */
    /* Of a stream. */
    const struct kve_position *resume;
    kve_source_id stream;
    kve_status resumed;
    kve_status late; /* in on_batch */
};

static void
expect(struct keeper *k, bool good, const char *what)
{
    if (!good && k->wrong == NULL)
        k->wrong = what;
}

static int
on_batch(struct reader *r, const struct kve_delivery *d)
{
    struct keeper *k = r->more;
    struct kve_position at;
    kve_status late;

    assert_int_equal(kve_sub_position(r->sub, d->source, &at), KVE_OK);
    late = kve_sub_resume(r->sub, d->source, &at);
    pthread_mutex_lock(&r->lock);
    k->last = at;
    k->late = late;
    if (d->hidden) {
        expect(k, !at.started, "nowhere while a twin is built");
    } else {
        expect(k, at.started && at.number == d->number, "at this batch");
        expect(k, at.has_digest, "with its digest");
        k->visible++;
        k->nothing = false;
        if (d->number == k->at)
            k->kept = at;
    }
    pthread_mutex_unlock(&r->lock);
    return 0;
}

static void
on_notice(struct reader *r, const struct kve_notice *n)
{
    struct keeper *k = r->more;
    struct kve_position at;
    kve_status resumed = KVE_OK;

    if (n->type == KVE_NOTICE_STREAM && k->resume != NULL)
        resumed = kve_sub_resume(r->sub, n->source, k->resume);
    assert_int_equal(kve_sub_position(r->sub, n->source, &at), KVE_OK);
    pthread_mutex_lock(&r->lock);
    k->last = at;
    switch (n->type) {
    case KVE_NOTICE_STREAM:
        k->stream = n->source;
        k->resumed = resumed;
        break;
    case KVE_NOTICE_CLEAR:
        k->nothing = true;
        k->building = false;
        break;
    case KVE_NOTICE_BEGIN:
        k->building = true;
        break;
    case KVE_NOTICE_SWAP:
        expect(k, at.started, "the twin's");
        k->building = false;
        k->nothing = false;
        break;
    case KVE_NOTICE_ABORT:
        k->building = false;
        break;
    case KVE_NOTICE_UNREADABLE:
        k->unread = true;
        expect(k, !at.started, "nowhere before it is delivered");
        break;
    default:
        break;
    }
    if (k->nothing || k->building)
        expect(k, !at.started, "nowhere after CLEAR and BEGIN");
    pthread_mutex_unlock(&r->lock);
}

static struct reader *
open_keeper(struct keeper *k, uint32_t threads, uint64_t at)
{
    struct kve_sub_opts opts = KVE_SUB_OPTS_INIT;
    struct reader *r;

    memset(k, 0, sizeof(*k));
    k->at = at;
    opts.threads = threads;
    r = reader_open(&opts);
    r->more = k;
    r->on_batch = on_batch;
    r->on_notice = on_notice;
    return r;
}

static void
close_keeper(struct reader *r)
{
    struct keeper *k = r->more;

    reader_close(r);
    if (k->wrong != NULL)
        fail_msg("a position is wrong: %s", k->wrong);
}

static struct kve_source_opts
opts_of(const struct peer *p)
{
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;

    opts.endpoint = p->live;
    opts.replay_endpoint = p->replay;
    opts.tail_probe_ms = 50;
    return opts;
}

static void
until_state(struct reader *r, struct peer *p, kve_source_id id, uint32_t state)
{
    RUN_UNTIL(r, peer_serve(p), reader_info(r, id).state == state);
}

/* One process: it follows until it is live with what the peer has, keeps the
 * position at one batch, and is gone. */
static struct kve_position
first_process(struct peer *p, uint32_t threads, uint64_t at)
{
    struct kve_source_opts opts = opts_of(p);
    struct keeper k;
    struct reader *r = open_keeper(&k, threads, at);
    kve_source_id id = reader_add(r, &opts);

    until_state(r, p, id, KVE_STATE_LIVE);
    assert_int_equal(reader_n(r), p->next - p->first);
    close_keeper(r);
    assert_int_equal(k.late, KVE_E_INVAL); /* it is no stream */
    assert_true(k.kept.started);
    assert_int_equal(k.kept.number, at);
    assert_false(k.kept.degraded);
    assert_false(k.kept.doubted);
    return k.kept;
}

/* The next one, at work; the position is not needed any longer. */
static kve_source_id
next_process(struct keeper *k, struct reader **ret_reader, struct peer *p,
    uint32_t threads, const struct kve_position *from)
{
    struct kve_source_opts opts = opts_of(p);
    struct kve_position at = *from;
    kve_source_id id;

    p->requests = 0;
    opts.resume = &at;
    *ret_reader = open_keeper(k, threads, UINT64_MAX);
    id = reader_add(*ret_reader, &opts);
    memset(&at, 0xee, sizeof(at));
    return id;
}

/* All that was delivered; and what a range of it was. */
static void
assert_numbers(struct reader *r, uint64_t first, size_t n)
{
    pthread_mutex_lock(&r->lock);
    assert_int_equal(r->n, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(r->number[i], first + i);
    pthread_mutex_unlock(&r->lock);
}

/* ---- with a replay endpoint ---------------------------------------- */

/* Exactly what is missing comes, once each, and live goes on behind it. */
static void
publisher_goes_on(uint32_t threads)
{
    struct reader *r;
    struct keeper k;
    struct peer p;

    peer_open(&p);
    p.next = 5;
    struct kve_position at = first_process(&p, threads, 2);
    p.next = 9;
    kve_source_id id = next_process(&k, &r, &p, threads, &at);
    until_state(r, &p, id, KVE_STATE_LIVE);
    assert_int_equal(p.starts[0], 2);
    assert_numbers(r, 3, 6);
    p.next = 10;
    peer_live(&p, 9); /* lost if nobody listens yet: a probe finds it */
    RUN_UNTIL(r, peer_serve(&p), reader_n(r) == 7);
    assert_numbers(r, 3, 7);
    assert_int_equal(reader_notices(r, KVE_NOTICE_CLEAR), 0);
    assert_int_equal(reader_notices(r, KVE_NOTICE_BEGIN), 0);
    assert_int_equal(reader_notices(r, KVE_NOTICE_LOST), 0);
    close_keeper(r);
    assert_int_equal(k.last.number, 9);
    peer_close(&p);
}

static void
test_publisher_goes_on(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_OF(ways); i++)
        publisher_goes_on(ways[i]);
}

/* The reader knows that it resumes before anything comes, and says so. */
static void
test_state_at_first(void **state)
{
    struct reader *r;
    struct keeper k;
    struct peer p;

    (void)state;
    peer_open(&p);
    p.next = 3;
    struct kve_position at = first_process(&p, 0, 2);
    p.silent = true;
    kve_source_id id = next_process(&k, &r, &p, 0, &at);
    struct kve_source_info info = reader_info(r, id);
    assert_int_equal(info.state, KVE_STATE_RECOVERING);
    assert_int_equal(info.reason, KVE_REASON_RESUMED);
    assert_true(info.started);
    assert_int_equal(info.last_number, 2);
    assert_false(info.connected);
    RUN_UNTIL(r, (void)0, r->notices[KVE_NOTICE_STATE] > 0);
    assert_int_equal(r->notice[KVE_NOTICE_STATE].old_state, KVE_STATE_COLD);
    assert_int_equal(r->notice[KVE_NOTICE_STATE].reason, KVE_REASON_RESUMED);
    struct kve_position now;
    assert_int_equal(kve_sub_position(r->sub, id, &now), KVE_OK);
    assert_memory_equal(&now, &at, sizeof(at));
    p.silent = false;
    until_state(r, &p, id, KVE_STATE_LIVE);
    assert_int_equal(r->n, 0);
    close_keeper(r);
    peer_close(&p);
}

/* A publisher that started anew and has come as far: nothing of the old life
 * stays, and all of the new one comes. */
static void
test_publisher_restarted(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_OF(ways); i++) {
        struct reader *r;
        struct keeper k;
        struct peer p;

        peer_open(&p);
        p.next = 5;
        struct kve_position at = first_process(&p, ways[i], 4);
        p.life = 1;
        kve_source_id id = next_process(&k, &r, &p, ways[i], &at);
        until_state(r, &p, id, KVE_STATE_LIVE);
        assert_numbers(r, 0, 5);
        assert_int_equal(reader_notices(r, KVE_NOTICE_CLEAR), 1);
        assert_int_equal(
            r->notice[KVE_NOTICE_CLEAR].reason, KVE_REASON_RESTART);
        close_keeper(r);
        peer_close(&p);
    }
}

/* The same with ids: one that stays, and another one. */
static void
test_ids(void **state)
{
    static const uint8_t one[16] = "publisher one...";
    static const uint8_t two[16] = "publisher two...";

    (void)state;
    for (size_t i = 0; i < N_OF(ways); i++) {
        struct reader *r;
        struct keeper k;
        struct peer p;

        peer_open(&p);
        p.id = one;
        p.next = 5;
        struct kve_position at = first_process(&p, ways[i], 4);
        assert_true(at.has_publisher_id);
        assert_memory_equal(at.publisher_id, one, 16);

        p.next = 7;
        kve_source_id id = next_process(&k, &r, &p, ways[i], &at);
        until_state(r, &p, id, KVE_STATE_LIVE);
        assert_numbers(r, 5, 2);
        assert_int_equal(reader_notices(r, KVE_NOTICE_CLEAR), 0);
        close_keeper(r);

        p.id = two;
        id = next_process(&k, &r, &p, ways[i], &at);
        until_state(r, &p, id, KVE_STATE_LIVE);
        assert_numbers(r, 0, 7);
        assert_int_equal(reader_notices(r, KVE_NOTICE_CLEAR), 1);
        assert_int_equal(r->notice[KVE_NOTICE_CLEAR].reason, KVE_REASON_NEW_ID);
        close_keeper(r);
        peer_close(&p);
    }
}

/* The publisher's buffer does not reach back. What is lost is said, and stays
 * so in the process after the next one, too. */
static void
buffer_is_short(uint32_t threads, uint32_t on_loss)
{
    bool keep = on_loss == KVE_ON_LOSS_KEEP;
    struct kve_position last;
    struct reader *r;
    struct keeper k;
    struct peer p;

    peer_open(&p);
    p.next = 5;
    struct kve_position at = first_process(&p, threads, 2);
    struct kve_source_opts opts = opts_of(&p);
    opts.on_loss = on_loss;
    opts.resume = &at;
    p.first = 6;
    p.next = 9;
    r = open_keeper(&k, threads, UINT64_MAX);
    kve_source_id id = reader_add(r, &opts);
    until_state(r, &p, id, KVE_STATE_DEGRADED);
    assert_numbers(r, 6, 3);
    assert_int_equal(reader_notices(r, KVE_NOTICE_LOST), 1);
    assert_int_equal(r->notice[KVE_NOTICE_LOST].first, 3);
    assert_int_equal(r->notice[KVE_NOTICE_LOST].last, 5);
    assert_int_equal(reader_notices(r, KVE_NOTICE_CLEAR), 0);
    assert_int_equal(reader_notices(r, KVE_NOTICE_BEGIN), keep ? 0 : 1);
    assert_int_equal(reader_notices(r, KVE_NOTICE_SWAP), keep ? 0 : 1);
    close_keeper(r);
    last = k.last;
    assert_true(last.degraded);
    assert_int_equal(last.reason, KVE_REASON_LOST);
    assert_int_equal(last.missing_first, 3);
    assert_int_equal(last.missing_last, 5);

    opts.resume = &last;
    p.next = 10;
    r = open_keeper(&k, threads, UINT64_MAX);
    id = reader_add(r, &opts);
    assert_int_equal(reader_info(r, id).state, KVE_STATE_DEGRADED);
    RUN_UNTIL(r, peer_serve(&p), reader_n(r) == 1);
    until_state(r, &p, id, KVE_STATE_DEGRADED);
    assert_numbers(r, 9, 1);
    assert_int_equal(reader_info(r, id).reason, KVE_REASON_LOST);
    assert_int_equal(reader_info(r, id).missing_first, 3);
    assert_int_equal(reader_info(r, id).missing_last, 5);
    close_keeper(r);
    peer_close(&p);
}

static void
test_buffer_is_short(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_OF(ways); i++) {
        buffer_is_short(ways[i], KVE_ON_LOSS_DEFAULT);
        buffer_is_short(ways[i], KVE_ON_LOSS_KEEP);
    }
}

/* A batch that could not be read: there is no position while that is told, and
 * the one after it says what is wrong. */
static void
test_unreadable(void **state)
{
    /* [1.0, [["BlockRemoved", "x"]], nil] */
    static const uint8_t payload[] = { 0x93, 0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0,
        0x91, 0x92, 0xac, 'B', 'l', 'o', 'c', 'k', 'R', 'e', 'm', 'o', 'v', 'e',
        'd', 0xa1, 'x', 0xc0 };
    uint8_t number[8];
    struct kve_span frames[] = { { (const uint8_t *)"t", 1 }, { number, 8 },
        { payload, sizeof(payload) } };
    struct kve_source_opts opts;
    struct reader *r;
    struct keeper k;
    struct peer p;

    (void)state;
    peer_open(&p);
    opts = opts_of(&p);
    opts.replay_endpoint = NULL;
    r = open_keeper(&k, 0, 1);
    kve_source_id id = reader_add(r, &opts);
    RUN_UNTIL(r, peer_live(&p, 0), r->n == 1);
    kve_number_write(1, number);
    rig_send(p.pub, frames, 3);
    RUN_UNTIL(r, (void)0, r->n == 2);
    assert_true(k.unread);
    assert_int_equal(reader_info(r, id).state, KVE_STATE_DEGRADED);
    close_keeper(r);
    assert_true(k.kept.degraded);
    assert_int_equal(k.kept.reason, KVE_REASON_UNREADABLE);

    opts.resume = &k.kept;
    struct keeper next;
    r = open_keeper(&next, 0, UINT64_MAX);
    id = reader_add(r, &opts);
    RUN_UNTIL(r, peer_live(&p, 2), r->n == 1);
    assert_int_equal(r->number[0], 2);
    assert_int_equal(reader_info(r, id).state, KVE_STATE_DEGRADED);
    assert_int_equal(reader_info(r, id).reason, KVE_REASON_UNREADABLE);
    close_keeper(r);
    peer_close(&p);
}

/* ---- without ------------------------------------------------------- */

/* Nothing can be asked: the source is live when a message follows, and not
 * before; what was missed is lost, and a number that falls is a restart. */
static void
test_no_replay(void **state)
{
    static const struct {
        uint64_t number;
        unsigned life;
        uint32_t state;
        uint32_t reason;
        size_t losses;
        size_t clears;
    } cases[] = {
        { 5, 0, KVE_STATE_LIVE, KVE_REASON_CAUGHT_UP, 0, 0 },
        { 8, 0, KVE_STATE_DEGRADED, KVE_REASON_NO_REPLAY, 1, 0 },
        { 0, 1, KVE_STATE_LIVE, KVE_REASON_CAUGHT_UP, 0, 1 },
        { 4, 1, KVE_STATE_DEGRADED, KVE_REASON_LATE_START, 1, 1 },
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases) * N_OF(ways); i++) {
        size_t at = i % N_OF(cases);
        uint32_t threads = ways[i / N_OF(cases)];
        struct reader *r;
        struct keeper k;
        struct peer p;

        peer_open(&p);
        p.next = 5;
        struct kve_position from = first_process(&p, threads, 4);
        struct kve_source_opts opts = opts_of(&p);
        opts.replay_endpoint = NULL;
        opts.resume = &from;
        p.life = cases[at].life;
        r = open_keeper(&k, threads, UINT64_MAX);
        kve_source_id id = reader_add(r, &opts);
        RUN_UNTIL(r, (void)0, reader_info(r, id).connected);
        assert_int_equal(reader_info(r, id).state, KVE_STATE_RECOVERING);
        assert_int_equal(reader_info(r, id).reason, KVE_REASON_RESUMED);
        RUN_UNTIL(r, peer_live(&p, cases[at].number), reader_n(r) == 1);
        RUN_UNTIL(r, (void)0, reader_info(r, id).state == cases[at].state);
        assert_numbers(r, cases[at].number, 1);
        assert_int_equal(reader_info(r, id).reason, cases[at].reason);
        assert_int_equal(reader_notices(r, KVE_NOTICE_LOST), cases[at].losses);
        assert_int_equal(reader_notices(r, KVE_NOTICE_CLEAR), cases[at].clears);
        close_keeper(r);
        peer_close(&p);
    }
}

/* ---- streams ------------------------------------------------------- */

/* One process: a bound socket, and one publisher; the position of its stream
 * at batch 1. */
static void
bind_keeper(struct reader *r, char *ret_endpoint)
{
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;

    (void)snprintf(ret_endpoint, 64, "tcp://127.0.0.1:%u", test_port_to_keep());
    opts.endpoint = ret_endpoint;
    opts.bind = KVE_BIND_YES;
    (void)reader_add(r, &opts);
}

static void
stream_goes_on(uint32_t threads)
{
    char endpoint[64];
    struct kve_position at;
    struct keeper k;
    struct peer p;
    struct reader *r = open_keeper(&k, threads, 1);

    bind_keeper(r, endpoint);
    peer_open_connected(&p, endpoint);
    RUN_UNTIL(r, peer_live(&p, 0), reader_n(r) == 1);
    peer_live(&p, 1);
    RUN_UNTIL(r, (void)0, reader_n(r) == 2);
    close_keeper(r);
    peer_close(&p);
    at = k.kept;
    assert_true(at.started);

    /* The same stream: 2 follows. */
    r = open_keeper(&k, threads, UINT64_MAX);
    k.resume = &at;
    bind_keeper(r, endpoint);
    peer_open_connected(&p, endpoint);
    RUN_UNTIL(r, peer_live(&p, 2), reader_n(r) == 1);
    assert_numbers(r, 2, 1);
    assert_int_equal(reader_info(r, k.stream).state, KVE_STATE_LIVE);
    assert_int_equal(reader_notices(r, KVE_NOTICE_LOST), 0);
    close_keeper(r);
    assert_int_equal(k.resumed, KVE_OK);
    assert_int_equal(k.late, KVE_E_INVAL); /* the first batch was judged */
    peer_close(&p);

    /* Another life. */
    r = open_keeper(&k, threads, UINT64_MAX);
    k.resume = &at;
    bind_keeper(r, endpoint);
    peer_open_connected(&p, endpoint);
    p.life = 1;
    RUN_UNTIL(r, peer_live(&p, 0), reader_n(r) == 1);
    assert_int_equal(reader_notices(r, KVE_NOTICE_CLEAR), 1);
    close_keeper(r);
    peer_close(&p);
}

static void
test_streams(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_OF(ways); i++)
        stream_goes_on(ways[i]);
}

/* A stream that asks at a replay endpoint: what its first message shows to be
 * missing comes before it. */
static void
test_stream_with_replay(void **state)
{
    struct kve_source_opts opts;
    struct kve_position at;
    struct keeper k;
    struct reader *r;
    struct peer p;

    (void)state;
    peer_open(&p);
    p.next = 4;
    at = first_process(&p, 0, 3);
    opts = opts_of(&p);
    opts.streams = KVE_STREAMS_SPLIT;
    p.next = 7;
    r = open_keeper(&k, 0, UINT64_MAX);
    k.resume = &at;
    (void)reader_add(r, &opts);
    p.requests = 0;
    RUN_UNTIL(r, (peer_live(&p, 6), peer_serve(&p)), r->n == 3);
    assert_int_equal(p.starts[0], 3);
    assert_numbers(r, 4, 3);
    until_state(r, &p, k.stream, KVE_STATE_LIVE);
    assert_int_equal(r->n, 3);
    close_keeper(r);
    assert_int_equal(k.resumed, KVE_OK);
    peer_close(&p);
}

/* ---- what is refused ----------------------------------------------- */

static void
test_refused(void **state)
{
    static const struct kve_position good = { .started = true, .number = 3 };
    static const struct kve_position bad = { .started = true,
        .number = UINT64_MAX };
    static const struct {
        struct kve_source_opts opts;
        const char *want;
    } cases[] = {
        { { .resume = &good, .start = KVE_START_LIVE }, "start" },
        { { .resume = &good, .first_number = 3 }, "first_number" },
        { { .resume = &good, .streams = KVE_STREAMS_SPLIT },
            "kve_sub_resume()" },
        { { .resume = &good, .endpoint = "tcp://*:1", .bind = KVE_BIND_YES },
            "kve_sub_resume()" },
        { { .resume = &bad }, "kve_sub_position()" },
    };
    struct reader *r = reader_open(NULL);
    struct kve_error err;
    kve_source_id id;

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        struct kve_source_opts opts = cases[i].opts;
        memset(&err, 0, sizeof(err));
        opts.struct_size = sizeof(opts);
        assert_int_equal(kve_sub_add(r->sub, &opts, &id, &err), KVE_E_INVAL);
        assert_non_null(strstr(err.detail, "resume"));
        if (strstr(err.detail, cases[i].want) == NULL)
            fail_msg("'%s' does not name %s", err.detail, cases[i].want);
    }

    /* A caller's build that does not know the field does not resume. */
    struct kve_source_opts old = KVE_SOURCE_OPTS_INIT;
    old.struct_size = offsetof(struct kve_source_opts, resume);
    old.resume = &good;
    id = reader_add(r, &old);
    assert_int_equal(reader_info(r, id).state, KVE_STATE_COLD);
    struct kve_position at;
    assert_int_equal(kve_sub_position(r->sub, id, &at), KVE_OK);
    assert_false(at.started);
    /* No stream, and none at all. */
    assert_int_equal(kve_sub_resume(r->sub, id, &good), KVE_E_INVAL);
    assert_int_equal(kve_sub_resume(r->sub, 99, &good), KVE_E_NOT_FOUND);
    assert_int_equal(kve_sub_position(r->sub, 99, &at), KVE_E_NOT_FOUND);
    assert_int_equal(kve_sub_remove(r->sub, id), KVE_OK);
    assert_int_equal(kve_sub_position(r->sub, id, &at), KVE_E_NOT_FOUND);
    reader_close(r);
}

/* A position that is not started changes nothing. */
static void
test_not_started(void **state)
{
    const struct kve_position none = { .number = 7 };
    struct reader *r;
    struct keeper k;
    struct peer p;

    (void)state;
    peer_open(&p);
    p.next = 3;
    kve_source_id id = next_process(&k, &r, &p, 0, &none);
    assert_int_equal(reader_info(r, id).state, KVE_STATE_COLD);
    until_state(r, &p, id, KVE_STATE_LIVE);
    assert_numbers(r, 0, 3);
    close_keeper(r);
    peer_close(&p);
}

/* With library threads only the source's own callbacks may ask. */
static void
test_wrong_thread(void **state)
{
    struct reader *r;
    struct keeper k;
    struct peer p;
    struct kve_position at = { .started = true };

    (void)state;
    peer_open(&p);
    p.next = 1;
    r = open_keeper(&k, 1, UINT64_MAX);
    struct kve_source_opts opts = opts_of(&p);
    kve_source_id id = reader_add(r, &opts);
    until_state(r, &p, id, KVE_STATE_LIVE);
    assert_int_equal(kve_sub_position(r->sub, id, &at), KVE_E_INVAL);
    assert_int_equal(kve_sub_resume(r->sub, id, &at), KVE_E_INVAL);
    assert_int_equal(kve_sub_position(r->sub, 99, &at), KVE_E_NOT_FOUND);
    close_keeper(r);
    peer_close(&p);
}

/* ---- between two polls --------------------------------------------- */

static int
stop_now(struct reader *r, const struct kve_delivery *d)
{
    (void)on_batch(r, d);
    return 1;
}

/* Whatever ended a poll, the reader stands at what it was given: batches that
 * were held and wait for their turn do not count. */
static void
between_polls(size_t max_batches)
{
    struct kve_source_opts opts;
    struct kve_position at;
    struct keeper k;
    struct reader *r;
    struct peer p;

    peer_open(&p);
    opts = opts_of(&p);
    opts.tail_probe_ms = KVE_NONE;
    r = open_keeper(&k, 0, UINT64_MAX);
    if (max_batches == 0)
        r->on_batch = stop_now;
    kve_source_id id = reader_add(r, &opts);
    RUN_UNTIL(r, peer_live(&p, p.next++),
        reader_counter(r, id, KVE_COUNTER_SUB_HELD) >= 20);
    size_t all = (size_t)p.next;
    p.next -= 15; /* what the answer lacks is held */

    size_t seen = 0;
    int64_t until = kve_now_ns() + 60000 * KVE_MS;
    while (seen < all && kve_now_ns() < until) {
        peer_serve(&p);
        (void)kve_sub_poll(r->sub, 5, max_batches, NULL, NULL);
        assert_int_equal(kve_sub_position(r->sub, id, &at), KVE_OK);
        assert_true(r->n <= seen + 1);
        seen = r->n;
        assert_int_equal(at.started, seen > 0);
        if (seen > 0)
            assert_int_equal(at.number, seen - 1);
    }
    assert_numbers(r, 0, all);
    close_keeper(r);
    peer_close(&p);
}

static void
test_between_polls(void **state)
{
    (void)state;
    between_polls(1);
    between_polls(0);
}

/* Memory that is short for the next batch: it is not delivered, and where the
 * reader stands is not said until it is. */
static void
test_no_memory(void **state)
{
    struct kve_source_opts opts;
    struct kve_position at;
    struct keeper k;
    struct reader *r;
    struct peer p;

    (void)state;
    peer_open(&p);
    opts = opts_of(&p);
    opts.replay_endpoint = NULL;
    r = open_keeper(&k, 0, UINT64_MAX);
    kve_source_id id = reader_add(r, &opts);
    RUN_UNTIL(r, peer_live(&p, 0), r->n == 1);
    RUN_FOR(r, (void)0, 50); /* what was sent twice */
    peer_live(&p, 1);
    kve_mem_fail_at(1, true);
    for (int i = 0; i < 100 && r->n == 1; i++) {
        kve_status status = kve_sub_poll(r->sub, 5, 1, NULL, NULL);
        assert_int_equal(kve_sub_position(r->sub, id, &at), KVE_OK);
        assert_true(!at.started || at.number == r->n - 1);
        if (status == KVE_E_NOMEM)
            break;
    }
    kve_mem_fail_at(0, false);
    RUN_UNTIL(r, (void)0, r->n == 2);
    assert_int_equal(kve_sub_position(r->sub, id, &at), KVE_OK);
    assert_int_equal(at.number, 1);
    close_keeper(r);
    peer_close(&p);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_publisher_goes_on),
        cmocka_unit_test(test_state_at_first),
        cmocka_unit_test(test_publisher_restarted),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_buffer_is_short),
        cmocka_unit_test(test_unreadable),
        cmocka_unit_test(test_no_replay),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_stream_with_replay),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_not_started),
        cmocka_unit_test(test_wrong_thread),
        cmocka_unit_test(test_between_polls),
        cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests_name("subscribe/resume", tests, NULL, NULL);
}
