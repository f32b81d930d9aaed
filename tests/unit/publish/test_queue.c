/*
 * The bounded queue without sockets: numbers, limits, order, sleep.
 */
#include "pub_test.h"

#include "publish/queue.h"

#include <kvevents/codec.h>

#include <string.h>

static struct kve_payload *
payload_of(size_t len)
{
    struct kve_payload *payload = kve_payload_create(NULL, len, NULL);

    assert_non_null(payload);
    memset(payload->data, 'x', len);
    return payload;
}

/* Push one of len bytes; a refused one is let go of. */
static kve_status
push(struct kve_queue *q, size_t len, struct kve_queue_pushed *ret)
{
    struct kve_payload *payload = payload_of(len);
    kve_status status = kve_queue_push(q, payload, ret);

    if (status != KVE_OK)
        kve_payload_unref(payload);
    return status;
}

/* Take n items as the sender does. */
static void
take(struct kve_queue *q, size_t n)
{
    while (n > 0) {
        struct kve_queue_item *items;
        size_t got = kve_queue_front(q, n, &items);
        size_t bytes = 0;

        assert_true(got > 0);
        for (size_t i = 0; i < got; i++) {
            bytes += items[i].payload->len;
            kve_payload_unref(items[i].payload);
        }
        kve_queue_consume(q, got, bytes);
        n -= got;
    }
}

static void
test_numbers_are_given_in_order(void **state)
{
    struct kve_queue q = { 0 };
    struct kve_queue_pushed pushed;
    struct kve_queue_item *items;

    (void)state;
    assert_int_equal(kve_queue_init(&q, 8, 1000, 40, NULL), KVE_OK);
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(push(&q, 1 + i, &pushed), KVE_OK);
        assert_int_equal(pushed.number, 40 + i);
        assert_false(pushed.wake);
    }
    assert_int_equal(kve_queue_front(&q, 99, &items), 5);
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(items[i].number, 40 + i);
        assert_int_equal(items[i].payload->len, 1 + i);
    }
    assert_int_equal(kve_queue_front(&q, 2, &items), 2);
    kve_queue_release(&q);
}

static void
test_full_of_items_leaves_a_hole(void **state)
{
    struct kve_queue q = { 0 };
    struct kve_queue_pushed pushed;

    (void)state;
    assert_int_equal(kve_queue_init(&q, 3, 1000, 0, NULL), KVE_OK);
    for (uint64_t i = 0; i < 10; i++) {
        assert_int_equal(push(&q, 1, &pushed), i < 3 ? KVE_OK : KVE_E_DROPPED);
        assert_int_equal(pushed.number, i);
    }
    take(&q, 1);
    assert_int_equal(push(&q, 1, &pushed), KVE_OK);
    assert_int_equal(pushed.number, 10);
    assert_int_equal(push(&q, 1, &pushed), KVE_E_DROPPED);
    assert_int_equal(kve_queue_tail(&q), 4);
    assert_int_equal(kve_queue_head(&q), 1);
    kve_queue_release(&q);
}

/* A heartbeat is nobody's batch: one that has no place leaves none. */
static void
test_a_heartbeat_leaves_no_hole(void **state)
{
    struct kve_queue q = { 0 };
    struct kve_queue_pushed pushed;
    struct kve_payload *beat = kve_payload_create("x", 1, NULL);

    (void)state;
    assert_non_null(beat);
    beat->flags = KVE_PAYLOAD_HEARTBEAT;
    assert_int_equal(kve_queue_init(&q, 1, 100, 5, NULL), KVE_OK);
    assert_int_equal(kve_queue_push(&q, beat, &pushed), KVE_OK);
    assert_int_equal(pushed.number, 5);
    assert_int_equal(
        kve_queue_push(&q, kve_payload_ref(beat), &pushed), KVE_E_DROPPED);
    kve_payload_unref(beat);
    assert_int_equal(kve_queue_number(&q), 6);
    kve_queue_release(&q);
}

static void
test_full_of_bytes_leaves_a_hole(void **state)
{
    struct kve_queue q = { 0 };
    struct kve_queue_pushed pushed;

    (void)state;
    assert_int_equal(kve_queue_init(&q, 100, 10, 0, NULL), KVE_OK);
    assert_int_equal(push(&q, 11, &pushed), KVE_E_DROPPED);
    assert_int_equal(push(&q, 6, &pushed), KVE_OK);
    assert_int_equal(push(&q, 5, &pushed), KVE_E_DROPPED);
    assert_int_equal(push(&q, 4, &pushed), KVE_OK);
    assert_int_equal(push(&q, 1, &pushed), KVE_E_DROPPED);
    take(&q, 1);
    assert_int_equal(push(&q, 7, &pushed), KVE_E_DROPPED);
    assert_int_equal(push(&q, 6, &pushed), KVE_OK);
    assert_int_equal(pushed.number, 6);
    kve_queue_release(&q);
}

static void
test_the_ring_goes_round(void **state)
{
    struct kve_queue q = { 0 };
    struct kve_queue_pushed pushed;
    struct kve_queue_item *items;

    (void)state;
    assert_int_equal(kve_queue_init(&q, 5, 1 << 20, 0, NULL), KVE_OK);
    for (uint64_t i = 0; i < 1000; i++) {
        assert_int_equal(push(&q, 3, &pushed), KVE_OK);
        assert_int_equal(push(&q, 3, &pushed), KVE_OK);
        assert_true(kve_queue_front(&q, 1, &items) == 1);
        assert_int_equal(items[0].number, 2 * i);
        take(&q, 2);
    }
    assert_int_equal(kve_queue_front(&q, 1, &items), 0);
    kve_queue_release(&q);
}

static void
test_the_reserved_number_is_skipped(void **state)
{
    struct kve_queue q = { 0 };
    struct kve_queue_pushed pushed;

    (void)state;
    assert_int_equal(
        kve_queue_init(&q, 8, 100, KVE_NUMBER_END - 1, NULL), KVE_OK);
    assert_int_equal(push(&q, 1, &pushed), KVE_OK);
    assert_true(pushed.number == KVE_NUMBER_END - 1);
    assert_int_equal(push(&q, 1, &pushed), KVE_OK);
    assert_int_equal(pushed.number, 0);
    kve_queue_release(&q);

    memset(&q, 0, sizeof(q));
    assert_int_equal(kve_queue_init(&q, 8, 100, KVE_NUMBER_END, NULL), KVE_OK);
    assert_int_equal(kve_queue_number(&q), 0);
    kve_queue_release(&q);
}

static void
test_closed_takes_nothing_and_no_number(void **state)
{
    struct kve_queue q = { 0 };
    struct kve_queue_pushed pushed;

    (void)state;
    assert_int_equal(kve_queue_init(&q, 8, 100, 0, NULL), KVE_OK);
    assert_int_equal(push(&q, 1, &pushed), KVE_OK);
    kve_queue_close(&q);
    assert_int_equal(push(&q, 1, &pushed), KVE_E_CLOSED);
    assert_int_equal(atomic_load(&q.next_number), 1);
    kve_queue_release(&q);
}

static void
test_one_wake_for_one_sleep(void **state)
{
    struct kve_queue q = { 0 };
    struct kve_queue_pushed pushed;

    (void)state;
    assert_int_equal(kve_queue_init(&q, 8, 100, 0, NULL), KVE_OK);
    assert_true(kve_queue_sleep(&q));
    assert_int_equal(push(&q, 1, &pushed), KVE_OK);
    assert_true(pushed.wake);
    assert_int_equal(push(&q, 1, &pushed), KVE_OK);
    assert_false(pushed.wake);
    kve_queue_awake(&q);
    /* There is work: no sleep, and so nobody to wake. */
    assert_false(kve_queue_sleep(&q));
    assert_int_equal(push(&q, 1, &pushed), KVE_OK);
    assert_false(pushed.wake);
    take(&q, 3);
    assert_true(kve_queue_sleep(&q));
    kve_queue_close(&q);
    assert_int_equal(push(&q, 1, &pushed), KVE_E_CLOSED);
    assert_false(pushed.wake);
    kve_queue_release(&q);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        LEAK_TEST(test_numbers_are_given_in_order),
        LEAK_TEST(test_full_of_items_leaves_a_hole),
        LEAK_TEST(test_full_of_bytes_leaves_a_hole),
        LEAK_TEST(test_a_heartbeat_leaves_no_hole),
        LEAK_TEST(test_the_ring_goes_round),
        LEAK_TEST(test_the_reserved_number_is_skipped),
        LEAK_TEST(test_closed_takes_nothing_and_no_number),
        LEAK_TEST(test_one_wake_for_one_sleep),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
