/*
 * The aggregator: what all workers said, in order, all or nothing.
 */
#include "pub_test.h"

#include "base/alloc.h"

#include <kvevents/codec.h>

#include <string.h>

static kve_aggregator *
create(uint32_t workers)
{
    kve_aggregator *aggregator = NULL;

    assert_int_equal(kve_aggregator_create(workers, &aggregator, NULL), KVE_OK);
    return aggregator;
}

static void
add(kve_aggregator *aggregator, const struct kve_event *events, size_t n)
{
    struct kve_error err = { 0 };

    if (kve_aggregator_add(aggregator, events, n, sizeof(events[0]), &err) !=
        KVE_OK)
        fail_msg("%s", err.detail);
}

/* The first hashes of a result's events are exactly these. */
static void
expect(kve_batch *batch, const uint64_t *hashes, size_t n)
{
    assert_int_equal(kve_batch_get_info(batch)->n_faults, 0);
    for (size_t i = 0; i < n; i++) {
        const struct kve_event *event = kve_batch_next(batch);

        assert_non_null(event);
        assert_true(event->hashes[0].integer == hashes[i]);
    }
    assert_null(kve_batch_next(batch));
}

static void
expect_common(kve_aggregator *aggregator, const uint64_t *hashes, size_t n)
{
    kve_batch *batch = NULL;

    assert_int_equal(kve_aggregator_common(aggregator, &batch, NULL), KVE_OK);
    expect(batch, hashes, n);
}

static void
expect_all(kve_aggregator *aggregator, const uint64_t *hashes, size_t n)
{
    kve_batch *batch = NULL;

    assert_int_equal(kve_aggregator_all(aggregator, &batch, NULL), KVE_OK);
    expect(batch, hashes, n);
}

static void
test_only_what_all_workers_said(void **state)
{
    kve_aggregator *aggregator = create(2);
    struct test_store a, b, c;

    (void)state;
    test_store_init(&a, 1, 16);
    test_store_init(&b, 2, 16);
    test_store_init(&c, 3, 16);
    expect_common(aggregator, NULL, 0);
    struct kve_event first[] = { b.event, a.event, c.event };
    struct kve_event second[] = { a.event, c.event, c.event };
    add(aggregator, first, 3);
    expect_common(aggregator, NULL, 0);
    add(aggregator, second, 3);
    /* c three times: not exactly as often as there are workers. */
    expect_common(aggregator, (uint64_t[]){ 1 }, 1);
    expect_all(aggregator, (uint64_t[]){ 2, 1, 1, 3, 3, 3 }, 6);
    add(aggregator, &b.event, 1);
    expect_common(aggregator, (uint64_t[]){ 2, 1 }, 2);

    assert_int_equal(kve_aggregator_add_workers(aggregator, 1), 3);
    expect_common(aggregator, (uint64_t[]){ 3 }, 1);
    kve_aggregator_reset_workers(aggregator);
    assert_int_equal(kve_aggregator_workers(aggregator), 1);
    expect_common(aggregator, NULL, 0);
    kve_aggregator_clear(aggregator);
    expect_all(aggregator, NULL, 0);
    add(aggregator, first, 3);
    expect_common(aggregator, (uint64_t[]){ 2, 1, 3 }, 3);
    assert_int_equal(
        kve_aggregator_add_workers(aggregator, UINT32_MAX), UINT32_MAX);
    kve_aggregator_destroy(aggregator);
    kve_aggregator_destroy(NULL);
}

/* Every field makes a difference, and every field is in the result. */
static void
test_every_field_counts(void **state)
{
    static const uint8_t raw[] = { 0x91, 0x91, 0xa1, 's' };
    static const uint32_t tokens[16] = { 1, 2, 3 };
    static const uint8_t bytes[32] = { 9 };
    static const struct kve_hash hash = { .integer = 5 };
    static const struct kve_hash hash_bytes = { .bytes = bytes, .len = 32 };
    struct kve_event plain = { .type = KVE_EVENT_STORED,
        .hashes = &hash,
        .n_hashes = 1,
        .tokens = tokens,
        .n_tokens = 16,
        .block_size = 16 };
    struct kve_event events[21];
    size_t n = 0;

    (void)state;
#define VARIANT(change)     \
    do {                    \
        events[n] = plain;  \
        events[n++].change; \
    } while (0)
    VARIANT(type = KVE_EVENT_STORED);
    VARIANT(type = KVE_EVENT_REMOVED);
    VARIANT(type = KVE_EVENT_CLEARED);
    VARIANT(type = KVE_EVENT_TIER_CLEARED);
    VARIANT(hashes = &hash_bytes);
    VARIANT(has_parent = true);
    VARIANT(n_tokens = 15);
    VARIANT(block_size = 8);
    VARIANT(medium = ((struct kve_str){ "CPU", 3 }));
    VARIANT(medium = ((struct kve_str){ "", 0 }));
    VARIANT(lora_name = ((struct kve_str){ "a", 1 }));
    VARIANT(lora_id = ((struct kve_int){ 0, true }));
    VARIANT(group_idx = ((struct kve_int){ 1, true }));
    VARIANT(spec_kind = ((struct kve_str){ "mamba", 5 }));
    VARIANT(sliding_window = ((struct kve_int){ 64, true }));
    VARIANT(locality = ((struct kve_str){ "LOCAL", 5 }));
    VARIANT(ownership = ((struct kve_str){ "me", 2 }));
    VARIANT(session_id = ((struct kve_str){ "s", 1 }));
    VARIANT(cache_salt = ((struct kve_str){ "s", 1 }));
    VARIANT(extra_keys = ((struct kve_span){ raw, sizeof(raw) }));
    VARIANT(has_skipped_parent = true);
#undef VARIANT
    assert_int_equal(n, 21);

    kve_aggregator *aggregator = create(2);
    kve_batch *batch = NULL;
    add(aggregator, events, n);
    assert_int_equal(kve_aggregator_common(aggregator, &batch, NULL), KVE_OK);
    assert_int_equal(kve_batch_get_info(batch)->n_events, 0);
    add(aggregator, events, n);
    assert_int_equal(kve_aggregator_common(aggregator, &batch, NULL), KVE_OK);
    assert_int_equal(kve_batch_get_info(batch)->n_events, n);

    /* The same bytes come out as would have without the aggregator. */
    struct kve_buffer direct = KVE_BUFFER_INIT, through = KVE_BUFFER_INIT;
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    view.ts = 1;
    view.n_events = n;
    view.events = events;
    assert_int_equal(
        kve_batch_encode(&view, KVE_LAYOUT_MAP, &direct, NULL), KVE_OK);
    struct kve_event copies[21];
    for (size_t i = 0; i < n; i++)
        copies[i] = *kve_batch_next(batch);
    view.events = copies;
    assert_int_equal(
        kve_batch_encode(&view, KVE_LAYOUT_MAP, &through, NULL), KVE_OK);
    assert_int_equal(direct.len, through.len);
    assert_memory_equal(direct.data, through.data, direct.len);
    kve_buffer_release(&direct);
    kve_buffer_release(&through);
    kve_aggregator_destroy(aggregator);
}

/* Three workers, 20,000 events in another order each. */
static void
test_many_events(void **state)
{
    enum { N = 20000 };
    static struct kve_hash hashes[N];
    static struct kve_event events[N];
    static uint64_t expected[N];
    kve_aggregator *aggregator = create(3);
    size_t n = 0;

    (void)state;
    for (size_t i = 0; i < N; i++) {
        hashes[i].integer = i;
        events[i] = (struct kve_event){
            .type = KVE_EVENT_REMOVED, .hashes = &hashes[i], .n_hashes = 1
        };
        if (i % 7 != 0)
            expected[n++] = i;
    }
    add(aggregator, events, N);
    for (size_t i = N; i-- > 0;)
        add(aggregator, &events[i], 1);
    for (size_t i = 0; i < N; i++)
        if (i * 7919 % N % 7 != 0)
            add(aggregator, &events[i * 7919 % N], 1);
    expect_common(aggregator, expected, n);
    kve_aggregator_destroy(aggregator);
}

static void
test_what_is_refused(void **state)
{
    kve_aggregator *aggregator = NULL;
    struct kve_error err = { 0 };
    struct test_store good;
    struct kve_event events[2];

    (void)state;
    assert_int_equal(kve_aggregator_create(0, &aggregator, &err), KVE_E_INVAL);
    assert_non_null(strstr(err.detail, "workers"));

    aggregator = create(1);
    test_store_init(&good, 1, 16);
    events[0] = good.event;
    events[1] = (struct kve_event){ .type = 99 };
    assert_int_equal(
        kve_aggregator_add(aggregator, events, 2, sizeof(events[0]), &err),
        KVE_E_INVAL);
    /* Readable for nobody: extra keys that are a number. */
    events[1] = good.event;
    events[1].extra_keys = (struct kve_span){ (const uint8_t *)"\x07", 1 };
    assert_int_equal(
        kve_aggregator_add(aggregator, events, 2, sizeof(events[0]), &err),
        KVE_E_INVAL);
    assert_int_equal(err.offset, 1);
    assert_int_equal(
        kve_aggregator_add(aggregator, NULL, 2, sizeof(events[0]), &err),
        KVE_E_INVAL);
    assert_int_equal(
        kve_aggregator_add(aggregator, events, 1, 8, &err), KVE_E_INVAL);
    assert_int_equal(
        kve_aggregator_add(aggregator, events, 2, 0, &err), KVE_E_INVAL);
    assert_non_null(strstr(err.detail, "event_size is 0"));
    expect_all(aggregator, NULL, 0);
    add(aggregator, NULL, 0);
    add(aggregator, events, 1);
    expect_all(aggregator, (uint64_t[]){ 1 }, 1);
    kve_aggregator_destroy(aggregator);
}

static void
test_memory_is_short(void **state)
{
    struct test_store stores[100];
    struct kve_event events[100];

    (void)state;
    for (size_t i = 0; i < 100; i++) {
        test_store_init(&stores[i], i + 1, 512);
        events[i] = stores[i].event;
    }
    for (uint64_t n = 1;; n++) {
        kve_aggregator *aggregator = NULL;
        kve_batch *batch = NULL;
        kve_status status;
        bool failed;

        kve_mem_fail_at(n, false);
        status = kve_aggregator_create(1, &aggregator, NULL);
        if (status == KVE_OK)
            status = kve_aggregator_add(
                aggregator, events, 10, sizeof(events[0]), NULL);
        bool ten = status == KVE_OK;
        if (status == KVE_OK)
            status = kve_aggregator_add(
                aggregator, events + 10, 90, sizeof(events[0]), NULL);
        bool hundred = status == KVE_OK;
        if (status == KVE_OK)
            status = kve_aggregator_all(aggregator, &batch, NULL);
        failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        /* An allocation may have been tried again with less. */
        assert_true(status == KVE_OK || (failed && status == KVE_E_NOMEM));

        /* All or nothing, and good for everything afterwards. */
        if (aggregator != NULL) {
            assert_int_equal(
                kve_aggregator_all(aggregator, &batch, NULL), KVE_OK);
            assert_int_equal(kve_batch_get_info(batch)->n_events,
                hundred   ? 100
                    : ten ? 10
                          : 0);
            add(aggregator, events, 100);
        }
        kve_aggregator_destroy(aggregator);
        if (!failed)
            break;
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        LEAK_TEST(test_only_what_all_workers_said),
        LEAK_TEST(test_every_field_counts),
        LEAK_TEST(test_many_events),
        LEAK_TEST(test_what_is_refused),
        LEAK_TEST(test_memory_is_short),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
