/*
 * Encoding: layouts spelled byte by byte, the shortest forms of numbers, the
 * token writer's variants, what is refused, and the buffer's limit. That
 * recorded payloads come out as they went in is shown in test_fixtures.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "spell.h"
#include "wire/put.h"

#include <kvevents/codec.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))
#define TEXT(text)             \
    {                          \
        text, sizeof(text) - 1 \
    }
#define RAW(bytes)                                  \
    {                                               \
        (const uint8_t *)(bytes), sizeof(bytes) - 1 \
    }

static const uint8_t digest[3] = { 0xaa, 0xbb, 0xcc };
static const struct kve_hash int_hash[] = { { NULL, { 7 } },
    { NULL, { UINT64_MAX } } };
static const struct kve_hash bin_hash[] = { { digest, { 3 } } };
static const uint32_t two_tokens[] = { 1, 200 };

static const struct kve_event plain_store = { .type = KVE_EVENT_STORED,
    .hashes = int_hash,
    .n_hashes = 2,
    .tokens = two_tokens,
    .n_tokens = 2,
    .block_size = 1,
    .medium = TEXT("GPU") };

static const struct kve_event full_store = { .type = KVE_EVENT_STORED,
    .hashes = bin_hash,
    .n_hashes = 1,
    .has_parent = true,
    .parent = { digest, { 3 } },
    .tokens = two_tokens,
    .n_tokens = 2,
    .block_size = 300,
    .lora_id = { -1, true },
    .medium = TEXT("CPU"),
    .lora_name = TEXT("ad"),
    .extra_keys = RAW("\x91\xc0"),
    .group_idx = { 3, true },
    .spec_kind = TEXT("mamba"),
    .sliding_window = { 1024, true },
    .locality = TEXT("LOCAL"),
    .ownership = TEXT("me"),
    .session_id = TEXT(""),
    .lookahead_token_ids = RAW("\x90"),
    .cache_salt = TEXT("pepper"),
    .has_skipped_parent = true,
    .skipped_parent = { NULL, { 9 } },
    .skipped_tokens = two_tokens,
    .n_skipped_tokens = 2,
    .skipped_extra_keys = RAW("\x90"),
    .block_offsets = RAW("\x91\x00"),
    .remaining_copy_counts = RAW("\x91\x03") };

static const struct kve_event remove_int = { .type = KVE_EVENT_REMOVED,
    .hashes = int_hash,
    .n_hashes = 1,
    .medium = TEXT("GPU"),
    .group_idx = { 1, true },
    .locality = TEXT("REMOTE"),
    .ownership = TEXT("me") };

static const struct kve_event clear_all = { .type = KVE_EVENT_CLEARED };
static const struct kve_event clear_one = { .type = KVE_EVENT_CLEARED,
    .ownership = TEXT("me") };
static const struct kve_event clear_tier = { .type = KVE_EVENT_TIER_CLEARED,
    .medium = TEXT("DISK") };

#define PLAIN_KEYS                                                  \
    "'type''BlockStored' 'block_hashes' 92 07 cfffffffffffffffff"   \
    "'parent_block_hash' c0 'token_ids' 92 01 ccc8 'block_size' 01" \
    "'lora_id' c0 'medium''GPU' 'lora_name' c0"

#define FULL_KEYS                                                    \
    "'type''BlockStored' 'block_hashes' 91 c403aabbcc"               \
    "'parent_block_hash' c403aabbcc 'token_ids' 92 01 ccc8"          \
    "'block_size' cd012c 'lora_id' ff 'medium''CPU' 'lora_name''ad'" \
    "'extra_keys' 91 c0 'group_idx' 03 'kv_cache_spec_kind''mamba'"  \
    "'kv_cache_spec_sliding_window' cd0400 'locality''LOCAL'"        \
    "'ownership''me' 'session_id''' 'lookahead_token_ids' 90"        \
    "'cache_salt''pepper' 'skipped_parent_block_hash' 09"            \
    "'skipped_token_ids' 92 01 ccc8 'skipped_extra_keys' 90"         \
    "'block_offsets' 91 00 'remaining_copy_counts' 91 03"

static const struct {
    const struct kve_event *event;
    enum kve_layout layout;
    const char *want;
} rows[] = {
    { &plain_store, KVE_LAYOUT_MAP, "de0008" PLAIN_KEYS },
    { &plain_store, KVE_LAYOUT_MAP_SHORT, "88" PLAIN_KEYS },
    { &plain_store, KVE_LAYOUT_ARRAY,
        "9c 'BlockStored' 92 07 cfffffffffffffffff c0 92 01 ccc8 01 c0 'GPU'"
        "c0 c0 c0 c0 c0" },
    { &plain_store, KVE_LAYOUT_FIRST,
        "96 'BlockStored' 92 07 cfffffffffffffffff c0 92 01 ccc8 01 c0" },
    { &full_store, KVE_LAYOUT_MAP, "de0016" FULL_KEYS },
    { &full_store, KVE_LAYOUT_MAP_SHORT, "de0016" FULL_KEYS },
    { &full_store, KVE_LAYOUT_ARRAY,
        "9c 'BlockStored' 91 c403aabbcc c403aabbcc 92 01 ccc8 cd012c ff 'CPU'"
        "'ad' 91 c0 03 'mamba' cd0400" },
    { &remove_int, KVE_LAYOUT_MAP,
        "86 'type''BlockRemoved' 'block_hashes' 91 07 'medium''GPU'"
        "'group_idx' 01 'locality''REMOTE' 'ownership''me'" },
    { &remove_int, KVE_LAYOUT_ARRAY, "94 'BlockRemoved' 91 07 'GPU' 01" },
    { &remove_int, KVE_LAYOUT_FIRST, "92 'BlockRemoved' 91 07" },
    { &clear_all, KVE_LAYOUT_MAP, "81 'type''AllBlocksCleared'" },
    { &clear_all, KVE_LAYOUT_ARRAY, "91 'AllBlocksCleared'" },
    { &clear_all, KVE_LAYOUT_FIRST, "91 'AllBlocksCleared'" },
    { &clear_one, KVE_LAYOUT_MAP,
        "82 'type''AllBlocksCleared' 'ownership''me'" },
    { &clear_one, KVE_LAYOUT_ARRAY, "92 'AllBlocksCleared' 'me'" },
    { &clear_tier, KVE_LAYOUT_MAP,
        "82 'type''TierBlocksCleared' 'medium''DISK'" },
    { &clear_tier, KVE_LAYOUT_ARRAY, "92 'TierBlocksCleared' 'DISK'" },
};

static kve_status
encode(const struct kve_event *events, size_t n, enum kve_layout layout,
    struct kve_buffer *out, struct kve_error *err)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;

    view.ts = 10.5;
    view.rank = (struct kve_int){ 0, true };
    view.events = events;
    view.n_events = n;
    return kve_batch_encode(&view, layout, out, err);
}

static void
assert_spelled(const struct kve_buffer *out, const char *want, const char *name)
{
    size_t len;
    uint8_t *bytes = spell(want, &len);

    if (out->len != len || memcmp(out->data, bytes, len) != 0) {
        for (size_t i = 0; i < out->len; i++)
            fprintf(stderr, "%02x", out->data[i]);
        fail_msg(" is not %s: %s", name, want);
    }
    free(bytes);
}

static void
test_layouts(void **state)
{
    (void)state;
    struct kve_buffer out = KVE_BUFFER_INIT;

    for (size_t i = 0; i < N_OF(rows); i++) {
        char want[1024];
        char name[16];

        snprintf(
            want, sizeof(want), "93 cb4025000000000000 91 %s 00", rows[i].want);
        snprintf(name, sizeof(name), "row %zu", i);
        out.len = 0;
        assert_int_equal(
            encode(rows[i].event, 1, rows[i].layout, &out, NULL), KVE_OK);
        assert_spelled(&out, want, name);
    }
    kve_buffer_release(&out);
}

/* What is decoded keeps its layout, and a mixed batch becomes itself. */
static void
test_keep(void **state)
{
    (void)state;
    static const char mixed[] =
        "88" PLAIN_KEYS "de0008" PLAIN_KEYS
        "94 'BlockRemoved' 91 07 c0 c0 81 'type''AllBlocksCleared'"
        "91 'AllBlocksCleared' 83 'type''BlockRemoved' 'block_hashes' 90"
        "'medium' c0";
    struct kve_buffer out = KVE_BUFFER_INIT;
    kve_batch *batch;
    size_t len;
    uint8_t *bytes = spell_batch(6, mixed, &len);

    assert_int_equal(kve_batch_create(NULL, &batch, NULL), KVE_OK);
    assert_int_equal(kve_batch_decode(batch, bytes, len, NULL), KVE_OK);
    assert_int_equal(kve_batch_get_info(batch)->n_events, 6);
    assert_int_equal(
        encode(kve_batch_next(batch), 6, KVE_LAYOUT_KEEP, &out, NULL), KVE_OK);
    /* The head of 6 events is one byte where the spelling takes three. */
    assert_int_equal(out.len, len - 2);
    assert_memory_equal(out.data + 11, bytes + 13, len - 13);
    kve_batch_destroy(batch);
    kve_buffer_release(&out);
    free(bytes);
}

static void
test_batch_parts(void **state)
{
    (void)state;
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_buffer out = KVE_BUFFER_INIT;
    uint8_t id[16];

    memset(id, 0x11, sizeof(id));
    view.ts = 10.5;
    assert_int_equal(kve_batch_encode(&view, 0, &out, NULL), KVE_OK);
    assert_spelled(&out, "93 cb4025000000000000 90 c0", "no rank");

    out.len = 0;
    view.publisher_id = id;
    view.rank = (struct kve_int){ -33, true };
    assert_int_equal(kve_batch_encode(&view, 0, &out, NULL), KVE_OK);
    assert_spelled(&out, "94 cb4025000000000000 90 d0df c410 11*16", "id");

    /* Appended, not written over. */
    assert_int_equal(kve_batch_encode(&view, 0, &out, NULL), KVE_OK);
    assert_spelled(&out,
        "94 cb4025000000000000 90 d0df c410 11*16 "
        "94 cb4025000000000000 90 d0df c410 11*16",
        "twice");

    /* Time of the call. */
    double before = kve_unix_time();
    kve_batch *batch;
    out.len = 0;
    view.ts = 0;
    assert_int_equal(kve_batch_encode(&view, 0, &out, NULL), KVE_OK);
    assert_int_equal(kve_batch_create(NULL, &batch, NULL), KVE_OK);
    assert_int_equal(kve_batch_decode(batch, out.data, out.len, NULL), KVE_OK);
    assert_true(kve_batch_get_info(batch)->ts >= before);
    assert_true(kve_batch_get_info(batch)->ts <= kve_unix_time());
    kve_batch_destroy(batch);
    kve_buffer_release(&out);
    assert_null(out.data);
}

/* ------------------------------------------------------------------ */

static const struct {
    int64_t value;
    const char *want;
} numbers[] = {
    { 0, "00" },
    { 127, "7f" },
    { 128, "cc80" },
    { 255, "ccff" },
    { 256, "cd0100" },
    { 65535, "cdffff" },
    { 65536, "ce00010000" },
    { 4294967295, "ceffffffff" },
    { 4294967296, "cf0000000100000000" },
    { INT64_MAX, "cf7fffffffffffffff" },
    { -1, "ff" },
    { -32, "e0" },
    { -33, "d0df" },
    { -128, "d080" },
    { -129, "d1ff7f" },
    { -32768, "d18000" },
    { -32769, "d2ffff7fff" },
    { INT32_MIN, "d280000000" },
    { (int64_t)INT32_MIN - 1, "d3ffffffff7fffffff" },
    { INT64_MIN, "d38000000000000000" },
};

static void
test_numbers(void **state)
{
    (void)state;

    for (size_t i = 0; i < N_OF(numbers); i++) {
        uint8_t got[16];
        struct kve_buffer out = { got, 0, sizeof(got), 0 };
        out.len = (size_t)(kve_put_i64(got, numbers[i].value) - got);
        assert_spelled(&out, numbers[i].want, "number");
    }
}

static void
test_lengths(void **state)
{
    (void)state;
    static const struct {
        size_t n;
        const char *str;
        const char *bin;
        const char *array;
    } want[] = {
        { 15, "af", "c40f", "9f" },
        { 16, "b0", "c410", "dc0010" },
        { 31, "bf", "c41f", "dc001f" },
        { 32, "d920", "c420", "dc0020" },
        { 255, "d9ff", "c4ff", "dc00ff" },
        { 256, "da0100", "c50100", "dc0100" },
        { 65535, "daffff", "c5ffff", "dcffff" },
        { 65536, "db00010000", "c600010000", "dd00010000" },
    };
    static uint8_t bytes[70000];
    static uint8_t got[70000];
    struct kve_buffer out = { got, 0, sizeof(got), 0 };

    for (size_t i = 0; i < N_OF(want); i++) {
        size_t n = want[i].n;
        out.len = (size_t)(kve_put_str(got, (char *)bytes, n) - got) - n;
        assert_spelled(&out, want[i].str, "str");
        out.len = (size_t)(kve_put_bin(got, bytes, n) - got) - n;
        assert_spelled(&out, want[i].bin, "bin");
        out.len = (size_t)(kve_put_array(got, n) - got);
        assert_spelled(&out, want[i].array, "array");
    }
}

/* Every variant writes what the plain writer of numbers writes, for each
 * length of run and tokens at every edge of a form. */
static void
test_token_writers(void **state)
{
    (void)state;
    static const uint32_t edges[] = { 0, 1, 0x7f, 0x80, 0xff, 0x100, 0xffff,
        0x10000, 0x1ffff, 0x7fffffff, 0x80000000, 0xffffffff };
    enum { N = 70 };
    uint32_t tokens[N];
    uint8_t want[5 * N + KVE_PUT_SLACK];
    uint32_t seed = 1;

    for (unsigned v = 0; v < KVE_PUT_N_VARIANTS; v++) {
        if (!kve_put_use((enum kve_put_variant)v)) {
            assert_int_not_equal(v, KVE_PUT_SCALAR);
            print_message("variant %u cannot run here\n", v);
            continue;
        }
        for (size_t round = 0; round < 200; round++)
            for (size_t n = 0; n <= N; n++) {
                uint8_t *w = want;
                uint8_t *got = malloc(5 * n + KVE_PUT_SLACK);
                for (size_t i = 0; i < n; i++) {
                    seed = seed * 1664525 + 1013904223;
                    tokens[i] = edges[(seed >> 16) % N_OF(edges)];
                    w = kve_put_u64(w, tokens[i]);
                }
                uint8_t *end = kve_put_tokens(got, tokens, n);
                assert_int_equal(end - got, w - want);
                assert_memory_equal(got, want, (size_t)(w - want));
                free(got);
            }
    }
    (void)kve_put_use(KVE_PUT_AVX512);
    assert_false(kve_put_use(KVE_PUT_N_VARIANTS));
}

/* ------------------------------------------------------------------ */

static void
refuse(const struct kve_event *event, enum kve_layout layout, const char *name)
{
    struct kve_buffer out = KVE_BUFFER_INIT;
    struct kve_event two[2] = { clear_all, *event };
    struct kve_error err = { .offset = 77 };

    if (encode(two, 2, layout, &out, &err) != KVE_E_INVAL)
        fail_msg("%s was accepted", name);
    assert_int_equal(err.offset, 1);
    assert_int_equal(out.len, 0);
    assert_null(out.data);
}

static void
test_refused_events(void **state)
{
    (void)state;
    struct kve_event ev;

#define REFUSE(change)                        \
    do {                                      \
        ev = plain_store;                     \
        change;                               \
        refuse(&ev, KVE_LAYOUT_MAP, #change); \
    } while (0)

    REFUSE(ev.type = 0);
    REFUSE(ev.type = 5);
    REFUSE(ev.hashes = NULL);
    REFUSE(ev.tokens = NULL);
    REFUSE(ev.n_skipped_tokens = 1);
    REFUSE(ev.medium.data = NULL);
    REFUSE(ev.session_id.len = 1);
    REFUSE(ev.lora_name.len = 1);
    REFUSE(ev.extra_keys.len = 1);
    REFUSE(ev.extra_keys = ((struct kve_span)RAW("")));
    REFUSE(ev.extra_keys = ((struct kve_span)RAW("\x92\xc0")));
    REFUSE(ev.extra_keys = ((struct kve_span)RAW("\x91\xc0\xc0")));
    REFUSE(ev.block_offsets = ((struct kve_span)RAW("\xc1")));
    REFUSE(ev.lookahead_token_ids = ((struct kve_span)RAW("\xdd\xff\xff")));
#undef REFUSE

    refuse(&full_store, KVE_LAYOUT_FIRST, "bytes in the first layout");
    ev = plain_store;
    ev.has_parent = true;
    ev.parent = bin_hash[0];
    refuse(&ev, KVE_LAYOUT_FIRST, "bytes as parent in the first layout");
    ev = plain_store;
    ev.layout = KVE_LAYOUT_KEEP;
    refuse(&ev, KVE_LAYOUT_KEEP, "an event that keeps no layout");
}

static void
test_refused_views(void **state)
{
    (void)state;
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_buffer out = KVE_BUFFER_INIT;
    struct {
        struct kve_batch_view view;
        uint64_t more;
    } newer = { KVE_BATCH_VIEW_INIT, 0 };

    view.ts = 10.5;
    assert_int_equal(kve_batch_encode(NULL, 0, &out, NULL), KVE_E_INVAL);
    assert_int_equal(kve_batch_encode(&view, 5, &out, NULL), KVE_E_INVAL);
    view.n_events = 1;
    assert_int_equal(kve_batch_encode(&view, 0, &out, NULL), KVE_E_INVAL);
    view.events = &plain_store;
    view.event_size = 8;
    assert_int_equal(kve_batch_encode(&view, 0, &out, NULL), KVE_E_INVAL);
    view.event_size = sizeof(plain_store) + 1;
    assert_int_equal(kve_batch_encode(&view, 0, &out, NULL), KVE_E_INVAL);
    view.event_size = sizeof(plain_store);
    view.struct_size = 8;
    assert_int_equal(kve_batch_encode(&view, 0, &out, NULL), KVE_E_INVAL);

    /* All zeros are the first release's sizes. */
    view = (struct kve_batch_view){
        .ts = 10.5, .events = &clear_all, .n_events = 1
    };
    assert_int_equal(kve_batch_encode(&view, 0, &out, NULL), KVE_OK);
    assert_spelled(&out,
        "93 cb4025000000000000 91 81 'type''AllBlocksCleared' c0", "zeros");
    out.len = 0;
    kve_batch_view_init(&view);
    assert_int_equal(view.struct_size, sizeof(view));
    assert_int_equal(view.event_size, sizeof(struct kve_event));

    /* A newer caller's view is longer; what we do not know must be zero. */
    newer.view.struct_size = sizeof(newer);
    newer.view.ts = 10.5;
    assert_int_equal(kve_batch_encode(&newer.view, 0, &out, NULL), KVE_OK);
    assert_spelled(&out, "93 cb4025000000000000 90 c0", "newer view");
    newer.more = 1;
    assert_int_equal(kve_batch_encode(&newer.view, 0, &out, NULL), KVE_E_INVAL);
    assert_int_equal(out.len, 12);
    kve_buffer_release(&out);
}

/* Events of a newer caller are longer than ours and begin alike. */
static void
test_stride(void **state)
{
    (void)state;
    struct {
        struct kve_event event;
        uint64_t more[2];
    } events[2] = { { clear_all, { 1, 2 } }, { clear_tier, { 3, 4 } } };
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_buffer out = KVE_BUFFER_INIT;

    view.ts = 10.5;
    view.events = &events[0].event;
    view.n_events = 2;
    view.event_size = sizeof(events[0]);
    assert_int_equal(kve_batch_encode(&view, 0, &out, NULL), KVE_OK);
    assert_spelled(&out,
        "93 cb4025000000000000 92 81 'type''AllBlocksCleared'"
        "82 'type''TierBlocksCleared' 'medium''DISK' c0",
        "stride");
    kve_buffer_release(&out);
}

/* The limit is about what is written, not about what might have been. */
static void
test_limit(void **state)
{
    (void)state;
    struct kve_buffer out = KVE_BUFFER_INIT;
    struct kve_buffer exact = KVE_BUFFER_INIT;

    assert_int_equal(encode(&plain_store, 1, 0, &out, NULL), KVE_OK);
    exact.max = out.len;
    assert_int_equal(encode(&plain_store, 1, 0, &exact, NULL), KVE_OK);
    assert_int_equal(exact.len, out.len);
    assert_memory_equal(exact.data, out.data, out.len);
    assert_true(exact.cap <= exact.max);

    assert_int_equal(encode(&plain_store, 1, 0, &exact, NULL), KVE_E_LIMIT);
    assert_int_equal(exact.len, out.len);
    kve_buffer_release(&exact);

    exact.max = out.len - 1;
    assert_int_equal(encode(&plain_store, 1, 0, &exact, NULL), KVE_E_LIMIT);
    assert_int_equal(exact.len, 0);
    kve_buffer_release(&exact);
    kve_buffer_release(&out);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_keep),
        cmocka_unit_test(test_batch_parts),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_token_writers),
        cmocka_unit_test(test_refused_events),
        cmocka_unit_test(test_refused_views),
        cmocka_unit_test(test_stride),
        cmocka_unit_test(test_limit),
    };

    return cmocka_run_group_tests_name("wire/encode", tests, NULL, NULL);
}
