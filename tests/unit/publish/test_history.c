/*
 * The replay buffer without sockets: limits, cuts that outlive what they cut,
 * the wrap of numbers, and a random comparison with a plain list.
 */
#include "pub_test.h"

#include "base/alloc.h"
#include "publish/history.h"

#include <kvevents/codec.h>

#include <stdlib.h>
#include <string.h>

static void
put(struct kve_history *h, uint64_t number, size_t len)
{
    struct kve_payload *payload = kve_payload_create(NULL, len, NULL);

    assert_non_null(payload);
    memset(payload->data, 0, len);
    if (len >= sizeof(number))
        memcpy(payload->data, &number, sizeof(number));
    assert_int_equal(kve_history_put(h, number, payload), KVE_OK);
}

/* Read a cut to its end: numbers first..last without a hole. */
static void
expect(struct kve_history *h, struct kve_cut *cut, uint64_t first, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t number, inside;
        struct kve_payload *payload = kve_cut_at(cut, &number);

        assert_non_null(payload);
        assert_int_equal(number, first + i);
        memcpy(&inside, payload->data, sizeof(inside));
        assert_int_equal(inside, number);
        kve_cut_advance(h, cut);
    }
    assert_null(kve_cut_at(cut, &first));
}

static void
test_start_is_inclusive_and_history_is_short(void **state)
{
    static const struct {
        uint64_t start;
        uint64_t first;
        size_t n;
    } rows[] = {
        { 0, 10, 100 },
        { 9, 10, 100 },
        { 10, 10, 100 },
        { 11, 11, 99 },
        { 100, 100, 10 },
        { 109, 109, 1 },
        { 110, 0, 0 },
        { UINT64_C(0x736e617073686f74), 0, 0 },
        { KVE_NUMBER_END, 0, 0 },
    };
    struct kve_history h;

    (void)state;
    kve_history_init(&h, 100, 1 << 20);
    for (uint64_t i = 0; i < 110; i++)
        put(&h, i, 8);
    assert_int_equal(h.evicted, 10);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct kve_cut cut;

        assert_int_equal(kve_history_cut(&h, rows[i].start, &cut), KVE_OK);
        expect(&h, &cut, rows[i].first, rows[i].n);
        kve_cut_release(&h, &cut);
    }
    kve_history_release(&h);
}

static void
test_bytes_are_a_limit_too(void **state)
{
    struct kve_history h;
    struct kve_cut cut;

    (void)state;
    kve_history_init(&h, 1000, 100);
    for (uint64_t i = 0; i < 20; i++)
        put(&h, i, 30);
    assert_int_equal(h.bytes, 90);
    assert_int_equal(kve_history_cut(&h, 0, &cut), KVE_OK);
    expect(&h, &cut, 17, 3);
    put(&h, 20, 101); /* alone over the limit: not kept, nothing leaves */
    assert_int_equal(h.bytes, 90);
    assert_int_equal(h.evicted, 18);
    put(&h, 21, 100);
    assert_int_equal(h.bytes, 100);
    assert_int_equal(h.end - h.first, 1);
    kve_history_release(&h);
}

static void
test_nothing_is_kept_for_no_steps(void **state)
{
    struct kve_history h;
    struct kve_cut cut;
    uint64_t number;

    (void)state;
    kve_history_init(&h, 0, 100);
    put(&h, 0, 8);
    assert_int_equal(kve_history_cut(&h, 0, &cut), KVE_OK);
    assert_null(kve_cut_at(&cut, &number));
    kve_history_release(&h);
}

static void
test_holes_are_passed_over(void **state)
{
    struct kve_history h;
    struct kve_cut cut;
    uint64_t number;

    (void)state;
    kve_history_init(&h, 100, 1000);
    put(&h, 5, 8);
    put(&h, 9, 8);
    put(&h, 12, 8);
    for (uint64_t start = 6; start <= 9; start++) {
        assert_int_equal(kve_history_cut(&h, start, &cut), KVE_OK);
        assert_non_null(kve_cut_at(&cut, &number));
        assert_int_equal(number, 9);
        kve_cut_release(&h, &cut);
    }
    kve_history_release(&h);
}

static void
test_the_wrap_keeps_the_order(void **state)
{
    static const struct {
        uint64_t start;
        uint64_t first;
        size_t n;
    } rows[] = {
        { KVE_NUMBER_END - 9, KVE_NUMBER_END - 3, 6 },
        { KVE_NUMBER_END - 2, KVE_NUMBER_END - 2, 5 },
        { KVE_NUMBER_END - 1, KVE_NUMBER_END - 1, 4 },
        { 0, 0, 3 },
        { 2, 2, 1 },
        { 3, 0, 0 },
        { UINT64_C(0x736e617073686f74), 0, 0 },
    };
    struct kve_history h;

    (void)state;
    kve_history_init(&h, 100, 1000);
    for (uint64_t i = 3; i >= 1; i--)
        put(&h, KVE_NUMBER_END - i, 8);
    for (uint64_t i = 0; i < 3; i++)
        put(&h, i, 8);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct kve_cut cut;
        uint64_t number = 0;
        size_t n = 0;

        assert_int_equal(kve_history_cut(&h, rows[i].start, &cut), KVE_OK);
        if (kve_cut_at(&cut, &number) != NULL)
            assert_true(number == rows[i].first);
        for (; kve_cut_at(&cut, &number) != NULL; n++)
            kve_cut_advance(&h, &cut);
        assert_int_equal(n, rows[i].n);
    }
    kve_history_release(&h);
}

static void
test_a_cut_outlives_what_it_cut(void **state)
{
    struct kve_history h;
    struct kve_cut early, late, part;

    (void)state;
    kve_history_init(&h, 1000, 1 << 20);
    for (uint64_t i = 0; i < 1000; i++)
        put(&h, i, 10);
    assert_int_equal(kve_history_cut(&h, 0, &early), KVE_OK);
    assert_int_equal(kve_history_cut(&h, 900, &late), KVE_OK);
    assert_int_equal(kve_history_cut(&h, 500, &part), KVE_OK);
    assert_int_equal(h.pinned, 0);

    for (uint64_t i = 1000; i < 5000; i++)
        put(&h, i, 10);
    /* Everything of then is held, and of what came later at most what
     * shares a chunk with it. */
    assert_in_range(h.pinned, 1000 * 10, (1000 + KVE_CHUNK) * 10);
    expect(&h, &late, 900, 100);
    assert_in_range(h.pinned, 1000 * 10, (1000 + KVE_CHUNK) * 10);
    expect(&h, &early, 0, 1000);
    assert_in_range(h.pinned, 500 * 10, (500 + 2 * KVE_CHUNK) * 10);
    for (int i = 0; i < 250; i++)
        kve_cut_advance(&h, &part);
    assert_in_range(h.pinned, 250 * 10, (250 + 2 * KVE_CHUNK) * 10);
    kve_cut_release(&h, &part);
    assert_int_equal(h.pinned, 0);
    kve_history_release(&h);
}

static void
test_a_cut_does_not_hold_what_came_later(void **state)
{
    struct kve_history h;
    struct kve_cut cut;

    (void)state;
    kve_history_init(&h, 10, 1 << 20);
    for (uint64_t i = 0; i < 10; i++)
        put(&h, i, 8);
    assert_int_equal(kve_history_cut(&h, 0, &cut), KVE_OK);
    for (uint64_t i = 10; i < 100000; i++)
        put(&h, i, 8);
    assert_in_range(h.pinned, 10 * 8, KVE_CHUNK * 8);
    expect(&h, &cut, 0, 10);
    assert_int_equal(h.pinned, 0);
    kve_history_release(&h);
}

static void
test_memory_is_short(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct kve_history h;
        struct kve_cut cut = { 0 };
        bool failed = false;

        kve_history_init(&h, 10000, 1 << 20);
        kve_mem_fail_at(n, false);
        for (uint64_t i = 0; i < 20 * KVE_CHUNK; i++) {
            struct kve_payload *payload = kve_payload_create(NULL, 1, NULL);

            if (payload != NULL)
                (void)kve_history_put(&h, i, payload);
        }
        if (kve_history_cut(&h, 0, &cut) == KVE_OK)
            for (uint64_t number; kve_cut_at(&cut, &number) != NULL;)
                kve_cut_advance(&h, &cut);
        failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        put(&h, 20 * KVE_CHUNK, 8);
        assert_true(h.end - h.first >= 20 * KVE_CHUNK - 1);
        kve_cut_release(&h, &cut);
        kve_history_release(&h);
        if (!failed)
            break;
    }
}

/* Random puts and cuts; a cut must give what a plain list of numbers says. */
static void
test_random_against_a_list(void **state)
{
    enum { STEPS = 300, N = 20000, CUTS = 5 };
    static uint64_t list[N];
    struct {
        struct kve_cut cut;
        size_t at, end;
        bool open;
    } cuts[CUTS] = { 0 };
    struct kve_history h;
    uint64_t number = 0;

    (void)state;
    srand(1);
    kve_history_init(&h, STEPS, 1 << 30);
    for (size_t n = 0; n < N; n++) {
        number += rand() % 10 == 0 ? (uint64_t)(1 + rand() % 5) : 1;
        list[n] = number;
        put(&h, number, 8);

        size_t i = (size_t)rand() % CUTS;
        if (!cuts[i].open) {
            size_t first = n + 1 > STEPS ? n + 1 - STEPS : 0;
            uint64_t start =
                list[first] - 2 + (uint64_t)rand() % (number - list[first] + 5);

            if (start > number + 3)
                start = 0;
            assert_int_equal(kve_history_cut(&h, start, &cuts[i].cut), KVE_OK);
            for (cuts[i].at = first;
                 cuts[i].at <= n && list[cuts[i].at] < start;)
                cuts[i].at++;
            cuts[i].end = n + 1;
            cuts[i].open = true;
        }
        for (int k = rand() % 10; k > 0 && cuts[i].open; k--) {
            uint64_t got;

            if (kve_cut_at(&cuts[i].cut, &got) == NULL) {
                assert_int_equal(cuts[i].at, cuts[i].end);
                cuts[i].open = false;
                break;
            }
            assert_true(cuts[i].at < cuts[i].end);
            assert_int_equal(got, list[cuts[i].at]);
            cuts[i].at++;
            kve_cut_advance(&h, &cuts[i].cut);
            if (rand() % 500 == 0) {
                kve_cut_release(&h, &cuts[i].cut);
                cuts[i].open = false;
            }
        }
    }
    for (size_t i = 0; i < CUTS; i++)
        kve_cut_release(&h, &cuts[i].cut);
    assert_int_equal(h.pinned, 0);
    kve_history_release(&h);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        LEAK_TEST(test_start_is_inclusive_and_history_is_short),
        LEAK_TEST(test_bytes_are_a_limit_too),
        LEAK_TEST(test_nothing_is_kept_for_no_steps),
        LEAK_TEST(test_holes_are_passed_over),
        LEAK_TEST(test_the_wrap_keeps_the_order),
        LEAK_TEST(test_a_cut_outlives_what_it_cut),
        LEAK_TEST(test_a_cut_does_not_hold_what_came_later),
        LEAK_TEST(test_memory_is_short),
        LEAK_TEST(test_random_against_a_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
