/*
 * test_fold.c - the judge is judged: folds of batches made by hand, with what
 * they must hold counted by hand.
 */
#include "support/fold.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define TEXT(s) ((struct kve_str){ (s), sizeof(s) - 1 })

static const uint8_t name[32] = { 7 };

static const struct kve_hash one[] = { { .integer = 1 } };
static const struct kve_hash two[] = { { .integer = 2 } };
static const struct kve_hash pair[] = { { .integer = 1 }, { .integer = 2 } };
static const struct kve_hash bytes[] = { { .bytes = name, .len = 32 } };
static const struct kve_hash shorter[] = { { .bytes = name, .len = 16 } };

static struct kve_event
event(uint8_t type, const struct kve_hash *hashes, size_t n)
{
    return (struct kve_event){ .type = type, .hashes = hashes, .n_hashes = n };
}

static struct kve_event
on(struct kve_event event, struct kve_str medium)
{
    event.medium = medium;
    return event;
}

static struct kve_event
owned(struct kve_event event, struct kve_str owner)
{
    event.ownership = owner;
    return event;
}

static struct kve_event
grouped(struct kve_event event, int64_t group)
{
    event.group_idx = (struct kve_int){ group, true };
    return event;
}

static struct kve_event
local(struct kve_event event, struct kve_str locality)
{
    event.locality = locality;
    return event;
}

#define STORED(h) event(KVE_EVENT_STORED, h, sizeof(h) / sizeof((h)[0]))
#define REMOVED(h) event(KVE_EVENT_REMOVED, h, sizeof(h) / sizeof((h)[0]))
#define CLEARED event(KVE_EVENT_CLEARED, NULL, 0)
#define TIER_CLEARED event(KVE_EVENT_TIER_CLEARED, NULL, 0)

/* Encode events and fold them. */
static void
fold_events(struct fold *fold, const struct kve_event *events, size_t n)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_buffer out = KVE_BUFFER_INIT;

    view.ts = 1;
    view.events = events;
    view.n_events = n;
    assert_int_equal(
        kve_batch_encode(&view, KVE_LAYOUT_MAP, &out, NULL), KVE_OK);
    assert_true(fold_apply_payload(fold, out.data, out.len));
    kve_buffer_release(&out);
}

#define FOLD(fold, ...)                                                  \
    do {                                                                 \
        struct kve_event events[] = { __VA_ARGS__ };                     \
        fold_events((fold), events, sizeof(events) / sizeof(events[0])); \
    } while (0)

static void
expect(const struct fold *fold, size_t pairs, uint64_t copies, uint64_t below)
{
    assert_int_equal(fold_pairs(fold), pairs);
    assert_int_equal(fold_copies(fold), copies);
    assert_int_equal(fold_below(fold), below);
}

/* Each store is a copy, each removal takes one, and none goes below zero. */
static void
test_copies(void **state)
{
    struct fold *fold = fold_create(false);

    (void)state;
    expect(fold, 0, 0, 0);
    FOLD(fold, STORED(pair), STORED(one));
    expect(fold, 2, 3, 0);
    FOLD(fold, REMOVED(one));
    expect(fold, 2, 2, 0);
    FOLD(fold, REMOVED(pair));
    expect(fold, 0, 0, 0);
    FOLD(fold, REMOVED(one), STORED(one), REMOVED(one), REMOVED(one));
    expect(fold, 0, 0, 2);
    fold_destroy(fold);
}

/* Every part of a scope counts; no medium, an empty one and GPU are one. */
static void
test_scopes(void **state)
{
    struct fold *fold = fold_create(false);

    (void)state;
    FOLD(fold, STORED(one), on(STORED(one), TEXT("GPU")),
        on(STORED(one), TEXT("")));
    expect(fold, 1, 3, 0);
    FOLD(fold, on(STORED(one), TEXT("CPU")));
    expect(fold, 2, 4, 0);
    FOLD(fold, grouped(STORED(one), 0), grouped(STORED(one), 1));
    expect(fold, 4, 6, 0);
    FOLD(fold, owned(STORED(one), TEXT("a")), owned(STORED(one), TEXT("b")));
    expect(fold, 6, 8, 0);
    FOLD(fold, local(STORED(one), TEXT("LOCAL")),
        local(STORED(one), TEXT("REMOTE")));
    expect(fold, 8, 10, 0);
    /* A removal touches its own scope only. */
    FOLD(fold, grouped(REMOVED(one), 2), owned(REMOVED(one), TEXT("c")),
        on(REMOVED(one), TEXT("DISK")), local(REMOVED(one), TEXT("x")));
    expect(fold, 8, 10, 4);
    FOLD(fold, grouped(REMOVED(one), 0), grouped(REMOVED(one), 1),
        owned(REMOVED(one), TEXT("a")), local(REMOVED(one), TEXT("LOCAL")));
    expect(fold, 4, 6, 4);
    fold_destroy(fold);
}

/* The same bytes at another length, and an integer, are other hashes. */
static void
test_hashes(void **state)
{
    struct fold *fold = fold_create(false);

    (void)state;
    FOLD(fold, STORED(bytes), STORED(shorter), STORED(two));
    expect(fold, 3, 3, 0);
    FOLD(fold, REMOVED(bytes));
    expect(fold, 2, 2, 0);
    FOLD(fold, REMOVED(bytes), REMOVED(one));
    expect(fold, 2, 2, 2);
    fold_destroy(fold);
}

/* A clear of everything, of the GPU, of an owner, of a tier. */
static void
test_clears(void **state)
{
    struct fold *fold = fold_create(false);

    (void)state;
    for (int gpu_only = 0; gpu_only < 2; gpu_only++) {
        fold_set_gpu_only(fold, gpu_only);
        fold_clear(fold);
        FOLD(fold, STORED(pair), on(STORED(one), TEXT("gpu")),
            on(STORED(two), TEXT("CPU")), CLEARED);
        expect(fold, gpu_only ? 1 : 0, gpu_only ? 1 : 0, 0);
        fold_clear(fold);
        FOLD(fold, STORED(pair), owned(STORED(one), TEXT("a")),
            on(owned(STORED(one), TEXT("a")), TEXT("CPU")),
            owned(CLEARED, TEXT("a")));
        expect(fold, 2, 2, 0);
        fold_clear(fold);
        FOLD(fold, STORED(pair), on(STORED(pair), TEXT("CPU")),
            on(TIER_CLEARED, TEXT("CPU")));
        expect(fold, 2, 2, 0);
        FOLD(fold, TIER_CLEARED);
        expect(fold, 0, 0, 0);
    }
    /* The order inside a batch counts. */
    FOLD(fold, STORED(one), CLEARED, STORED(two));
    expect(fold, 1, 1, 0);
    fold_destroy(fold);
}

/* The order in which equal folds came to be leaves no trace. */
static void
test_equal(void **state)
{
    struct fold *a = fold_create(false);
    struct fold *b = fold_create(false);

    (void)state;
    assert_true(fold_equal(a, b));
    assert_int_equal(fold_digest(a), fold_digest(b));
    FOLD(a, STORED(one), STORED(bytes), on(STORED(two), TEXT("CPU")));
    assert_false(fold_equal(a, b));
    assert_int_not_equal(fold_digest(a), fold_digest(b));
    FOLD(b, on(STORED(two), TEXT("CPU")), STORED(bytes), STORED(one),
        STORED(two), REMOVED(two));
    assert_true(fold_equal(a, b));
    assert_true(fold_equal(b, a));
    assert_int_equal(fold_digest(a), fold_digest(b));
    /* One copy more, another scope, another hash. */
    FOLD(b, STORED(one));
    assert_false(fold_equal(a, b));
    assert_int_not_equal(fold_digest(a), fold_digest(b));
    FOLD(b, REMOVED(one), REMOVED(one), grouped(STORED(one), 0));
    assert_false(fold_equal(a, b));
    assert_int_not_equal(fold_digest(a), fold_digest(b));
    FOLD(b, grouped(REMOVED(one), 0), STORED(two));
    assert_false(fold_equal(a, b));
    assert_false(fold_equal(b, a));
    assert_int_not_equal(fold_digest(a), fold_digest(b));
    fold_destroy(a);
    fold_destroy(b);
}

/* Many hashes: the table grows and keeps all of them. */
static void
test_many(void **state)
{
    struct fold *fold = fold_create(false);
    struct kve_hash hashes[1000];

    (void)state;
    for (uint64_t i = 0; i < 100; i++) {
        for (uint64_t k = 0; k < 1000; k++)
            hashes[k] = (struct kve_hash){ .integer = i * 1000 + k };
        FOLD(fold, STORED(hashes));
    }
    expect(fold, 100000, 100000, 0);
    for (uint64_t i = 0; i < 99; i++) {
        for (uint64_t k = 0; k < 1000; k++)
            hashes[k] = (struct kve_hash){ .integer = i * 1000 + k };
        FOLD(fold, REMOVED(hashes));
    }
    expect(fold, 1000, 1000, 0);
    fold_destroy(fold);
}

/* What cannot be read is said; an unknown type of event is no such thing. */
static void
test_unreadable(void **state)
{
    static const uint8_t bad_event[] = { 0x92, 0x01, 0x91, 0x91, 0xab, 'B', 'l',
        'o', 'c', 'k', 'S', 't', 'o', 'r', 'e', 'd' };
    static const uint8_t unknown[] = { 0x92, 0x01, 0x91, 0x91, 0xa3, 'N', 'e',
        'w' };
    struct fold *fold = fold_create(false);

    (void)state;
    assert_false(fold_apply_payload(fold, bad_event, sizeof(bad_event)));
    assert_false(fold_apply_payload(fold, bad_event, sizeof(bad_event) - 3));
    assert_true(fold_apply_payload(fold, unknown, sizeof(unknown)));
    expect(fold, 0, 0, 0);
    fold_destroy(fold);
}

static void
deliver(struct fold_reader *reader, const struct kve_event *e, bool hidden)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_buffer out = KVE_BUFFER_INIT;
    struct kve_delivery delivery = { .hidden = hidden };

    view.ts = 1;
    view.events = e;
    view.n_events = 1;
    assert_int_equal(
        kve_batch_encode(&view, KVE_LAYOUT_MAP, &out, NULL), KVE_OK);
    assert_int_equal(kve_batch_create(NULL, &delivery.batch, NULL), KVE_OK);
    assert_int_equal(
        kve_batch_decode(delivery.batch, out.data, out.len, NULL), KVE_OK);
    fold_reader_batch(reader, &delivery);
    kve_batch_destroy(delivery.batch);
    kve_buffer_release(&out);
}

static void
notice(struct fold_reader *reader, uint32_t type)
{
    struct kve_notice n = { .type = type };

    fold_reader_notice(reader, &n);
}

/* The twin: hidden until it is swapped in, dropped, or cleared. */
static void
test_reader(void **state)
{
    struct fold_reader reader;
    struct kve_event store_pair = STORED(pair);
    struct kve_event store_one = STORED(one);

    (void)state;
    fold_reader_init(&reader, true);
    deliver(&reader, &store_pair, false);
    notice(&reader, KVE_NOTICE_BEGIN);
    deliver(&reader, &store_one, true);
    assert_int_equal(fold_pairs(reader.visible), 2);
    assert_int_equal(fold_pairs(reader.twin), 1);
    notice(&reader, KVE_NOTICE_BEGIN);
    assert_int_equal(fold_pairs(reader.twin), 0);
    notice(&reader, KVE_NOTICE_ABORT);
    assert_null(reader.twin);
    assert_int_equal(fold_pairs(reader.visible), 2);
    notice(&reader, KVE_NOTICE_BEGIN);
    deliver(&reader, &store_one, true);
    notice(&reader, KVE_NOTICE_SWAP);
    assert_null(reader.twin);
    assert_int_equal(fold_pairs(reader.visible), 1);
    notice(&reader, KVE_NOTICE_BEGIN);
    notice(&reader, KVE_NOTICE_CLEAR);
    assert_null(reader.twin);
    assert_int_equal(fold_pairs(reader.visible), 0);
    assert_int_equal(reader.batches, 3);
    assert_int_equal(reader.swaps, 1);
    assert_int_equal(reader.clears, 1);
    fold_reader_release(&reader);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_scopes),
        cmocka_unit_test(test_hashes),
        cmocka_unit_test(test_clears),
        cmocka_unit_test(test_equal),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_unreadable),
        cmocka_unit_test(test_reader),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
