/*
 * ctest-timeout: 120
 *
 * test_slots.c - requests stand in line: a few at a time over all sources, in
 * order, and nobody waits for one that hears nothing.
 */
#include "rig.h"

#include "subscribe/set.h"
#include "subscribe/slots.h"

#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- the line ------------------------------------------------------ */

static bool
was_signalled(const struct kve_grants *grants)
{
    uint64_t n;

    return read(grants->event_fd, &n, sizeof(n)) == sizeof(n);
}

/* First come, first served; whoever leaves, in whatever state, lets the next
 * one in or is not missed. */
static void
test_line(void **state)
{
    struct kve_grants grants = { .event_fd = eventfd(0, EFD_NONBLOCK) };
    struct kve_slot slot[6];
    struct kve_slots slots;

    (void)state;
    memset(slot, 0, sizeof(slot));
    assert_int_equal(kve_slots_init(&slots, 2, true, NULL), KVE_OK);
    assert_true(kve_slot_take(&slots, &slot[0], &grants));
    assert_true(kve_slot_take(&slots, &slot[1], &grants));
    for (int i = 2; i < 6; i++)
        assert_false(kve_slot_take(&slots, &slot[i], &grants));
    assert_null(kve_slots_granted(&slots, &grants));
    assert_false(was_signalled(&grants));

    kve_slot_give_back(&slots, &slot[3]); /* out of the middle of the line */
    kve_slot_give_back(&slots, &slot[0]);
    assert_true(was_signalled(&grants));
    assert_ptr_equal(kve_slots_granted(&slots, &grants), &slot[2]);
    assert_null(kve_slots_granted(&slots, &grants));

    kve_slot_give_back(&slots, &slot[1]);
    assert_int_equal(slot[4].state, KVE_SLOT_GRANTED);
    kve_slot_give_back(&slots, &slot[4]); /* before its loop knew */
    assert_ptr_equal(kve_slots_granted(&slots, &grants), &slot[5]);
    assert_int_equal(slots.used, 2);
    kve_slot_give_back(&slots, &slot[5]);
    kve_slot_give_back(&slots, &slot[2]);
    kve_slot_give_back(&slots, &slot[2]); /* again: nothing */
    assert_int_equal(slots.used, 0);
    /* Nobody waits: at once again. */
    assert_true(kve_slot_take(&slots, &slot[0], &grants));
    kve_slot_give_back(&slots, &slot[0]);
    kve_slots_release(&slots);
    (void)close(grants.event_fd);
}

/* ---- B6 ------------------------------------------------------------ */

enum { SOURCES = 64, AT_A_TIME = 4, BATCHES = 400, CUT = 300 };

/* Requests that wait for the server; it answers when there are as many as
 * there may be, or when no more come. */
struct desk {
    struct peer *peer;
    struct request waiting[SOURCES];
    size_t n;
    size_t most;
    int64_t last_at;
    int64_t called_at;
    bool stalled; /* the machine did something else: requests were silent
                   * for so long that they count no more */
};

static void
serve_desk(struct desk *d)
{
    struct request r;
    int64_t now = kve_now_ns();

    if (d->called_at != 0 && now - d->called_at > 200 * KVE_MS)
        d->stalled = true;
    d->called_at = now;
    while (peer_request(d->peer, &r)) {
        assert_true(d->n < SOURCES);
        d->waiting[d->n++] = r;
        d->last_at = kve_now_ns();
    }
    if (d->n > d->most)
        d->most = d->n;
    if (d->n == 0 ||
        (d->n < AT_A_TIME && kve_now_ns() - d->last_at < 50 * KVE_MS))
        return;
    for (size_t i = 0; i < d->n; i++)
        peer_answer(d->peer, &d->waiting[i]);
    d->n = 0;
}

static bool
all_have(const struct reader *r, const kve_source_id *ids, size_t n)
{
    for (size_t i = 0; i < SOURCES; i++)
        if (r->of[ids[i]] < n)
            return false;
    return true;
}

/*
 * B6: all ask at once, and each answer is cut. At most so many at a time, each
 * goes on from where it stopped, and all together cost little more than one
 * copy.
 */
static void
test_b6_cut_answers(void **state)
{
    struct kve_sub_opts sub_opts = KVE_SUB_OPTS_INIT;
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    kve_source_id ids[SOURCES];
    struct peer p;
    struct desk desk = { .peer = &p };

    (void)state;
    for (uint32_t threads = 0; threads <= 2; threads += 2) {
        peer_open(&p);
        p.next = BATCHES;
        p.cut = CUT;
        memset(&desk, 0, sizeof(desk));
        desk.peer = &p;
        sub_opts.threads = threads;
        struct reader *r = reader_open(&sub_opts);
        opts.endpoint = p.live;
        opts.replay_endpoint = p.replay;
        opts.replay_timeout_ms = 400;
        opts.tail_probe_ms = KVE_NONE;
        for (size_t i = 0; i < SOURCES; i++)
            ids[i] = reader_add(r, &opts);
        RUN_UNTIL(r, serve_desk(&desk), reader_n(r) >= SOURCES * BATCHES);
        assert_true(all_have(r, ids, BATCHES));
        assert_int_equal(reader_n(r), SOURCES * BATCHES);
        assert_true(desk.most >= AT_A_TIME);
        assert_true(desk.most == AT_A_TIME || desk.stalled);
        /* One batch more for each request: the one that proves the life. */
        assert_true(
            desk.stalled || p.sent <= SOURCES * (BATCHES + BATCHES / CUT + 2));
        assert_true(p.sent < 2 * SOURCES * BATCHES);
        for (size_t i = 0; i < N_OF(p.starts); i++)
            assert_true(p.starts[i] > 0); /* of the last requests */
        assert_true(
            reader_counter(r, 0, KVE_COUNTER_SUB_WAITS) >= SOURCES - AT_A_TIME);
        reader_close(r);
        peer_close(&p);
    }
}

/* One place, taken by a request that nobody answers: another source has it
 * after a second, long before that request is given up. */
static void
test_silent_one_gives_way(void **state)
{
    struct kve_sub_opts sub_opts = KVE_SUB_OPTS_INIT;
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct peer dead;
    struct peer p;

    (void)state;
    peer_open(&dead);
    peer_open(&p);
    dead.silent = true;
    p.next = 3;
    sub_opts.max_replays = 1;
    struct reader *r = reader_open(&sub_opts);
    opts.endpoint = dead.live;
    opts.replay_endpoint = dead.replay;
    opts.replay_timeout_ms = 100000;
    kve_source_id first = reader_add(r, &opts);
    RUN_UNTIL(r, peer_serve(&dead), dead.requests == 1);
    int64_t start = kve_now_ns();
    opts.endpoint = p.live;
    opts.replay_endpoint = p.replay;
    kve_source_id second = reader_add(r, &opts);
    RUN_UNTIL(r, peer_serve(&p), r->of[second] == 3);
    assert_true(kve_now_ns() - start > 500 * KVE_MS);
    assert_int_equal(reader_counter(r, second, KVE_COUNTER_SUB_WAITS), 1);
    assert_int_equal(
        reader_counter(r, first, KVE_COUNTER_SUB_REPLAY_TIMEOUTS), 0);
    reader_close(r);
    peer_close(&dead);
    peer_close(&p);
}

/* Sources leave while they wait, while they ask, and when it is their turn. */
static void
test_leaving(void **state)
{
    struct kve_sub_opts sub_opts = KVE_SUB_OPTS_INIT;
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    kve_source_id ids[12];
    struct peer silent;
    struct peer p;

    (void)state;
    for (uint32_t threads = 0; threads <= 2; threads += 2) {
        peer_open(&silent);
        peer_open(&p);
        silent.silent = true;
        p.next = 5;
        sub_opts.max_replays = 2;
        sub_opts.threads = threads;
        struct reader *r = reader_open(&sub_opts);
        opts.endpoint = silent.live;
        opts.replay_endpoint = silent.replay;
        opts.replay_timeout_ms = 100000;
        for (size_t i = 0; i < N_OF(ids); i++)
            ids[i] = reader_add(r, &opts);
        RUN_UNTIL(r, peer_serve(&silent), silent.requests >= 2);
        for (size_t i = 0; i < N_OF(ids); i += 2)
            assert_int_equal(kve_sub_remove(r->sub, ids[i]), KVE_OK);
        opts.endpoint = p.live;
        opts.replay_endpoint = p.replay;
        kve_source_id last = reader_add(r, &opts);
        for (size_t i = 1; i < N_OF(ids); i += 2)
            assert_int_equal(kve_sub_remove(r->sub, ids[i]), KVE_OK);
        RUN_UNTIL(r, peer_serve(&p), reader_n(r) >= 5);
        assert_int_equal(r->of[last], 5);
        assert_int_equal(kve_sub_remove(r->sub, last), KVE_OK);
        RUN_UNTIL(r, (void)0, reader_listed(r) == 0);
        assert_int_equal(r->sub->slots.used, 0);
        assert_null(r->sub->slots.waiting.first);
        reader_close(r);
        peer_close(&silent);
        peer_close(&p);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line),
        cmocka_unit_test(test_b6_cut_answers),
        cmocka_unit_test(test_silent_one_gives_way),
        cmocka_unit_test(test_leaving),
    };

    return cmocka_run_group_tests_name("subscribe/slots", tests, NULL, NULL);
}
