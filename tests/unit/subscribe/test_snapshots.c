/*
 * test_snapshots.c - the reader's end of a snapshot, against a ROUTER of plain
 * libzmq: answers of every shape, good and bad.
 */
#include "rig.h"

#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zmq.h>

static const uint8_t life[16] = "one life of many";
static const uint8_t end_number[8] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    0xff };
static const uint8_t three[8] = { 0, 0, 0, 0, 0, 0, 0, 3 };
static const uint8_t minus_two[8] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    0xfe };
static const uint8_t minus_three[8] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    0xff, 0xfd };

/* [1.0, [["BlockRemoved", [7]]]] */
static const uint8_t chunk[] = "\x92\xcb\x3f\xf0\0\0\0\0\0\0\x91\x92\xac"
                               "BlockRemoved\x91\x07";
/* [1.0, [["BlockRemoved"]]]: no hashes. */
static const uint8_t bad_event[] = "\x92\xcb\x3f\xf0\0\0\0\0\0\0\x91\x91\xac"
                                   "BlockRemoved";
static const uint8_t broken[] = "\x92\xcb\x3f";

#define SPAN(a, n)              \
    {                           \
        (const uint8_t *)(a), n \
    }
#define NOTHING SPAN("", 0)
#define CHUNK SPAN(chunk, sizeof(chunk) - 1)

static struct kve_source_opts
options(const struct peer *p)
{
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;

    opts.endpoint = p->live;
    opts.snapshot_endpoint = p->replay;
    opts.snapshot_timeout_ms = 30000;
    opts.tail_probe_ms = KVE_NONE;
    return opts;
}

/* What the machine needs before it asks: a live message with an id. */
static void
live_with_id(struct peer *p, uint64_t number)
{
    uint8_t payload[80];
    uint8_t seq[8];
    size_t len = peer_payload(p, number, life, payload);

    kve_number_write(number, seq);
    struct kve_span frames[] = { SPAN("t", 1), { seq, 8 }, { payload, len } };
    rig_send(p->pub, frames, 3);
}

static void
answer(struct peer *p, const struct request *to, const struct kve_span *frames,
    size_t n)
{
    struct kve_span all[16] = { { to->id, to->id_len } };

    memcpy(all + 1, frames, n * sizeof(frames[0]));
    rig_send(p->router, all, n + 1);
}

/* Live messages go out until the reader asks for a snapshot. */
static void
until_asked(
    struct peer *p, struct reader *r, uint64_t number, struct request *ret)
{
    bool asked = false;

    RUN_UNTIL(
        r, { asked = asked || peer_request(p, ret); }, asked);
    assert_int_equal(ret->start, UINT64_C(0x736e617073686f74));
    live_with_id(p, number);
}

/* A warm engine: the snapshot up to 3, then what came live behind it, and only
 * then it is shown. */
static void
test_bootstrap(void **state)
{
    (void)state;
    for (int delimited = 0; delimited < 2; delimited++) {
        struct kve_span frames[] = { NOTHING, SPAN(three, 8), SPAN(life, 16),
            CHUNK, CHUNK, CHUNK };
        struct peer p;
        struct request asked;

        peer_open(&p);
        struct reader *r = reader_open(NULL);
        struct kve_source_opts opts = options(&p);
        kve_source_id id = reader_add(r, &opts);
        until_asked(&p, r, 4, &asked);
        answer(&p, &asked, frames + 1 - delimited,
            N_OF(frames) - 1 + (size_t)delimited);
        RUN_UNTIL(r, live_with_id(&p, 4), r->notices[KVE_NOTICE_SWAP] == 1);
        RUN_UNTIL(r, (void)0, reader_info(r, id).state == KVE_STATE_LIVE);

        assert_int_equal(r->notices[KVE_NOTICE_BEGIN], 1);
        assert_int_equal(r->notices[KVE_NOTICE_SNAPSHOT], 1);
        assert_int_equal(r->notices[KVE_NOTICE_ABORT], 0);
        assert_int_equal(r->notices[KVE_NOTICE_SNAPSHOT_FAILED], 0);
        assert_true(r->n >= 4);
        for (size_t i = 0; i < 3; i++) {
            assert_true(r->snapshot[i] && r->hidden[i]);
            assert_int_equal(r->number[i], 3);
        }
        assert_false(r->snapshot[3]);
        assert_int_equal(r->number[3], 4);
        assert_true(r->has_publisher_id);
        assert_memory_equal(r->publisher_id, life, 16);
        assert_true(reader_info(r, id).has_publisher_id);
        assert_int_equal(
            reader_counter(r, id, KVE_COUNTER_SUB_SNAPSHOT_BATCHES), 3);
        assert_int_equal(reader_counter(r, id, KVE_COUNTER_SUB_SNAPSHOT_BYTES),
            8 + 16 + 3 * (sizeof(chunk) - 1));
        assert_int_equal(
            reader_counter(r, id, KVE_COUNTER_SUB_SNAPSHOTS_TAKEN), 1);
        assert_string_equal(
            reader_info(r, id).snapshot_endpoint, opts.snapshot_endpoint);
        reader_close(r);
        peer_close(&p);
    }
}

/* Each of these is no snapshot, and the reader is told why; what was begun is
 * dropped, and nothing of it is ever shown. */
static void
test_refused_shapes(void **state)
{
    static const struct {
        const char *says;
        size_t n;
        struct kve_span frames[6];
    } rows[] = {
        { "knows no snapshots", 3, { NOTHING, SPAN(end_number, 8), NOTHING } },
        { "knows no snapshots", 4,
            { NOTHING, NOTHING, SPAN(end_number, 8), NOTHING } },
        { "number should stand", 1, { NOTHING } },
        { "number should stand", 2, { NOTHING, NOTHING } },
        { "number should stand", 2, { NOTHING, SPAN(three, 8) } },
        { "a frame of 7 bytes", 3,
            { NOTHING, SPAN(three, 7), SPAN(life, 16) } },
        { "id should stand", 3, { NOTHING, SPAN(three, 8), SPAN(life, 15) } },
        { "id should stand", 3, { NOTHING, SPAN(three, 8), NOTHING } },
        { "id should stand", 4,
            { NOTHING, NOTHING, SPAN(three, 8), SPAN(life, 16) } },
        { "number is -3", 3,
            { NOTHING, SPAN(minus_three, 8), SPAN(life, 16) } },
        { "none to give", 3, { NOTHING, SPAN(minus_two, 8), SPAN(life, 16) } },
        { "and is not", 4,
            { NOTHING, SPAN(minus_two, 8), SPAN(life, 16), CHUNK } },
        { "broken at byte", 5,
            { NOTHING, SPAN(three, 8), SPAN(life, 16), CHUNK,
                SPAN(broken, 3) } },
        { "broken at byte", 4,
            { NOTHING, SPAN(three, 8), SPAN(life, 16), NOTHING } },
        { "not readable", 5,
            { NOTHING, SPAN(three, 8), SPAN(life, 16), CHUNK,
                SPAN(bad_event, sizeof(bad_event) - 1) } },
    };

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        struct peer p;
        struct request asked;

        peer_open(&p);
        struct reader *r = reader_open(NULL);
        struct kve_source_opts opts = options(&p);
        kve_source_id id = reader_add(r, &opts);
        until_asked(&p, r, 4, &asked);
        answer(&p, &asked, rows[i].frames, rows[i].n);
        RUN_UNTIL(r, (void)0, r->notices[KVE_NOTICE_SNAPSHOT_FAILED] == 1);
        if (strstr(r->detail[KVE_NOTICE_SNAPSHOT_FAILED], rows[i].says) == NULL)
            fail_msg("row %zu: '%s' does not say '%s'", i,
                r->detail[KVE_NOTICE_SNAPSHOT_FAILED], rows[i].says);
        assert_int_equal(
            reader_counter(r, id, KVE_COUNTER_SUB_SNAPSHOTS_FAILED), 1);
        assert_int_equal(r->notices[KVE_NOTICE_SWAP], 0);
        assert_int_equal(
            r->notices[KVE_NOTICE_BEGIN], r->notices[KVE_NOTICE_ABORT]);
        /* It goes on without. */
        RUN_UNTIL(r, live_with_id(&p, 5 + r->n), r->of[id] > 2);
        reader_close(r);
        peer_close(&p);
    }
}

/* Nothing was published yet: an empty snapshot is as good as a full one. */
static void
test_empty(void **state)
{
    struct kve_span frames[] = { NOTHING, SPAN(end_number, 8), SPAN(life, 16) };
    struct peer p;
    struct request asked;

    (void)state;
    peer_open(&p);
    struct reader *r = reader_open(NULL);
    struct kve_source_opts opts = options(&p);
    kve_source_id id = reader_add(r, &opts);
    until_asked(&p, r, 0, &asked);
    answer(&p, &asked, frames, N_OF(frames));
    RUN_UNTIL(r, live_with_id(&p, r->of[id]),
        reader_info(r, id).state == KVE_STATE_LIVE);
    assert_int_equal(r->number[0], 0);
    assert_int_equal(r->notices[KVE_NOTICE_SNAPSHOT_FAILED], 0);
    reader_close(r);
    peer_close(&p);
}

/* Over snapshot_max_bytes: counted while it is read, and dropped. */
static void
test_too_large(void **state)
{
    uint8_t *large = calloc(1, 2000);
    struct kve_span frames[] = { NOTHING, SPAN(three, 8), SPAN(life, 16), CHUNK,
        { large, 2000 }, CHUNK };
    struct peer p;
    struct request asked;

    (void)state;
    assert_non_null(large);
    peer_open(&p);
    struct reader *r = reader_open(NULL);
    struct kve_source_opts opts = options(&p);
    opts.snapshot_max_bytes = 1000;
    kve_source_id id = reader_add(r, &opts);
    until_asked(&p, r, 4, &asked);
    answer(&p, &asked, frames, N_OF(frames));
    RUN_UNTIL(r, (void)0, r->notices[KVE_NOTICE_SNAPSHOT_FAILED] == 1);
    assert_non_null(strstr(
        r->detail[KVE_NOTICE_SNAPSHOT_FAILED], "raise snapshot_max_bytes"));
    assert_int_equal(
        reader_counter(r, id, KVE_COUNTER_SUB_SNAPSHOT_BATCHES), 1);
    assert_int_equal(r->notices[KVE_NOTICE_ABORT], 1);
    reader_close(r);
    peer_close(&p);
    free(large);
}

/* Nobody answers: told, with the time that passed, and asked again later. */
static void
test_no_answer(void **state)
{
    struct peer p;
    struct request asked;

    (void)state;
    peer_open(&p);
    struct reader *r = reader_open(NULL);
    struct kve_source_opts opts = options(&p);
    opts.snapshot_timeout_ms = 100;
    kve_source_id id = reader_add(r, &opts);
    until_asked(&p, r, 4, &asked);
    RUN_UNTIL(r, (void)0, r->notices[KVE_NOTICE_SNAPSHOT_FAILED] >= 1);
    assert_non_null(strstr(r->detail[KVE_NOTICE_SNAPSHOT_FAILED], "no answer"));
    RUN_UNTIL(r, live_with_id(&p, 5 + r->n),
        reader_counter(r, id, KVE_COUNTER_SUB_SNAPSHOTS) >= 2);
    reader_close(r);
    peer_close(&p);
}

/* A large snapshot is read in turns: another source is heard meanwhile, and
 * polls that take one batch each get all of it. */
static void
test_fair(void **state)
{
    enum { CHUNKS = 3000 };
    struct kve_span head[] = { NOTHING, SPAN(three, 8), SPAN(life, 16) };
    struct kve_span frames[CHUNKS + 4];
    struct peer p;
    struct peer other;
    struct request asked;
    size_t snapshot_then = 0;

    (void)state;
    peer_open(&p);
    peer_open(&other);
    struct reader *r = reader_open(NULL);
    struct kve_source_opts opts = options(&p);
    kve_source_id id = reader_add(r, &opts);
    opts.snapshot_endpoint = NULL;
    opts.endpoint = other.live;
    kve_source_id quiet = reader_add(r, &opts);
    uint64_t n = 0;
    RUN_UNTIL(r, peer_live(&other, n++), r->of[quiet] > 0);
    until_asked(&p, r, 4, &asked);
    frames[0] = (struct kve_span){ asked.id, asked.id_len };
    memcpy(frames + 1, head, sizeof(head));
    for (size_t i = 0; i < CHUNKS; i++)
        frames[4 + i] = (struct kve_span)CHUNK;
    rig_send(p.router, frames, N_OF(frames));

    size_t before = r->of[quiet];
    int64_t until = kve_now_ns() + 60000 * KVE_MS;
    while (r->of[id] < CHUNKS && kve_now_ns() < until) {
        peer_live(&other, n++);
        size_t got = 0;
        assert_int_equal(kve_sub_poll(r->sub, 100, 8, &got, NULL), KVE_OK);
        assert_true(got <= 8);
        if (r->of[quiet] == before)
            snapshot_then = r->of[id];
    }
    assert_true(r->of[id] >= CHUNKS);
    assert_true(r->of[quiet] > before);
    assert_true(snapshot_then < CHUNKS / 2);
    reader_close(r);
    peer_close(&p);
    peer_close(&other);
}

/* The n-th allocation fails, for every n: a snapshot is taken in the end. It
 * may be another one, since the message that stands behind the first one can
 * not be kept without memory. */
static void
test_memory_failures(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct kve_span frames[] = { NOTHING, SPAN(three, 8), SPAN(life, 16),
            CHUNK, CHUNK };
        struct peer p;
        struct request asked;
        int64_t live = kve_mem_live();

        assert_true(n < 300);
        peer_open(&p);
        struct reader *r = reader_open(NULL);
        struct kve_source_opts opts = options(&p);
        kve_source_id id = reader_add(r, &opts);
        kve_mem_fail_at(n, false);
        until_asked(&p, r, 4, &asked);
        answer(&p, &asked, frames, N_OF(frames));
        RUN_UNTIL(
            r,
            {
                live_with_id(&p, 4);
                if (peer_request(&p, &asked))
                    answer(&p, &asked, frames, N_OF(frames));
            },
            r->notices[KVE_NOTICE_SWAP] == 1);
        bool failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        assert_int_equal(
            reader_counter(r, id, KVE_COUNTER_SUB_SNAPSHOTS_TAKEN), 1);
        assert_true(
            reader_counter(r, id, KVE_COUNTER_SUB_SNAPSHOT_BATCHES) >= 2);
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
        cmocka_unit_test(test_bootstrap),
        cmocka_unit_test(test_refused_shapes),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_no_answer),
        cmocka_unit_test(test_fair),
        cmocka_unit_test(test_memory_failures),
    };

    return cmocka_run_group_tests_name(
        "subscribe/snapshots", tests, NULL, NULL);
}
