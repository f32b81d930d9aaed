/*
 * Decoding: what each form of an event means, which faults cost what, where
 * msgpack breaks, and the limits of a batch. Whole dialects and recorded
 * payloads are in the data of tests/wire/; here is one row a rule.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "spell.h"

#include <kvevents/codec.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))
#define NOTE(name) KVE_NOTE_##name
#define SEEN(name) (1u << KVE_FIELD_##name)

/* The hashes of a short store. */
#define HASH1 "'block_hashes' 91 07"

/* A whole store in vLLM's order. */
#define STORE                                                     \
    "88 'type''BlockStored''block_hashes' 91 cf0102030405060708"  \
    "'parent_block_hash' c0 'token_ids' 92 01 02 'block_size' 02" \
    "'lora_id' c0 'medium''GPU''lora_name' c0"
#define REMOVE "83 'type''BlockRemoved''block_hashes' 91 09 'medium''CPU'"

static int
setup(void **state)
{
    kve_batch *batch;

    assert_int_equal(kve_batch_create(NULL, &batch, NULL), KVE_OK);
    *state = batch;
    return 0;
}

static int
teardown(void **state)
{
    kve_batch_destroy(*state);
    return 0;
}

/* Decode the events spelled in text; the bytes live until the next call. */
static const struct kve_event *
decode(kve_batch *batch, unsigned n_events, const char *text)
{
    static uint8_t *bytes;
    size_t len;

    free(bytes);
    bytes = spell_batch(n_events, text, &len);
    assert_int_equal(kve_batch_decode(batch, bytes, len, NULL), KVE_OK);
    return kve_batch_next(batch);
}

static void
assert_str(struct kve_str got, const char *want)
{
    assert_non_null(got.data);
    assert_int_equal(got.len, strlen(want));
    assert_memory_equal(got.data, want, got.len);
}

/* ------------------------------------------------------------------ */

/* A call keeps the layout of a table that the formatter would widen. */
#define ROW(...)    \
    {               \
        __VA_ARGS__ \
    }

/* One event: delivered with these notes and fields, or a fault. */
static const struct {
    const char *name;
    const char *event;
    uint32_t reason; /* 0: delivered */
    int field;
    uint32_t notes;
    uint32_t seen; /* not compared when 0 */
} events[] = {
    ROW("usual", STORE, 0, 0, 0, 0x7f),
    ROW("removed", REMOVE, 0, 0, 0, SEEN(BLOCK_HASHES) | SEEN(MEDIUM)),
    ROW("cleared", "81 'type''AllBlocksCleared'", 0, 0, 0, 0),
    ROW("tier cleared", "82 'type''TierBlocksCleared''medium''DISK'", 0, 0, 0,
        SEEN(MEDIUM)),
    ROW("5 slots", "95 'BlockStored' 91 05 c0 92 01 02 02", 0, 0, 0, 0x0f),
    ROW("2 slots", "92 'BlockRemoved' 91 05", 0, 0, 0, SEEN(BLOCK_HASHES)),
    ROW("removed, 6 slots", "96 'BlockRemoved' 91 05 'GPU' 01 'LOCAL' 'me'", 0,
        0, 0,
        SEEN(BLOCK_HASHES) | SEEN(MEDIUM) | SEEN(GROUP_IDX) | SEEN(LOCALITY) |
            SEEN(OWNERSHIP)),
    ROW("cleared, owner", "92 'AllBlocksCleared' 'me'", 0, 0, 0,
        SEEN(OWNERSHIP)),
    ROW("type last",
        "84 'medium''GPU' 'block_size' 00 'block_hashes' 91 07"
        "'type''BlockStored'",
        0, 0, NOTE(HASH_ONLY), 0),
    ROW("other names",
        "83 'event_type''stored' 'seq_hashes' 91 07 'backend_id''b'", 0, 0,
        NOTE(HASH_ONLY), SEEN(BLOCK_HASHES) | SEEN(OWNERSHIP)),
    ROW("two names, alias last",
        "83 'type''BlockRemoved' 'block_hashes' 91 07 'seq_hashes' 91 08", 0, 0,
        NOTE(TWO_NAMES), 0),
    ROW("two names, alias first",
        "83 'seq_hashes' 91 08 'block_hashes' 91 07 'type''BlockRemoved'", 0, 0,
        NOTE(TWO_NAMES), 0),
    ROW("two names, current nil",
        "83 'type''BlockRemoved' 'block_hashes' c0 'seq_hashes' 91 07", 0, 0, 0,
        0),
    ROW("unknown key",
        "83 'type''BlockRemoved' 'block_hashes' 91 07 'x' 91 91 c0", 0, 0,
        NOTE(UNKNOWN_FIELD), 0),
    ROW("key is no string",
        "83 'type''BlockRemoved' 'block_hashes' 91 07 81 01 02 03", 0, 0,
        NOTE(UNKNOWN_FIELD), 0),
    ROW("loose slot",
        "9a 'BlockStored' 91 07 c0 92 01 02 02 c0 c0 01 c3 'group'", 0, 0,
        NOTE(UNKNOWN_FIELD), 0x3f),
    ROW("slots beyond",
        "9d 'BlockStored' 91 07 c0 92 01 02 02 c0 c0 c0 c0 c0 c0 c0 05", 0, 0,
        NOTE(UNKNOWN_FIELD), 0x7ff),
    ROW("tokens nil", "83 'type''BlockStored' " HASH1 "'token_ids' c0", 0, 0,
        NOTE(HASH_ONLY), 0),
    ROW("no tokens", "82 'type''BlockStored' " HASH1, 0, 0, NOTE(HASH_ONLY), 0),
    ROW("one token too many",
        "84 'type''BlockStored' " HASH1 "'token_ids' 93 01 02 03"
        "'block_size' 02",
        0, 0, NOTE(HASH_ONLY) | NOTE(TOKEN_COUNT), 0),
    ROW("no hashes",
        "84 'type''BlockStored' 'block_hashes' 90 'token_ids' 90"
        "'block_size' 02",
        0, 0, NOTE(HASH_ONLY) | NOTE(EMPTY_HASHES), 0),
    ROW("negative token",
        "84 'type''BlockStored' " HASH1 "'token_ids' 92 01 ff"
        "'block_size' 02",
        0, 0, NOTE(HASH_ONLY) | NOTE(TOKEN_RANGE), 0),
    ROW("token above 32 bits",
        "84 'type''BlockStored' " HASH1 "'token_ids' 92 cf0000000100000000 01"
        "'block_size' 02",
        0, 0, NOTE(HASH_ONLY) | NOTE(TOKEN_RANGE), 0),
    ROW("pairs",
        "84 'type''BlockStored' " HASH1 "'token_ids' 92 92 01 02 92 02 03"
        "'block_size' 02",
        0, 0, NOTE(TOKEN_PAIRS), 0),
    ROW("pairs apart",
        "84 'type''BlockStored' " HASH1 "'token_ids' 92 92 01 02 92 09 03"
        "'block_size' 02",
        0, 0, NOTE(HASH_ONLY) | NOTE(TOKEN_PAIRS_BROKEN), 0),
    ROW("triples",
        "84 'type''BlockStored' " HASH1 "'token_ids' 91 93 01 02 03"
        "'block_size' 02",
        0, 0, NOTE(HASH_ONLY) | NOTE(TOKEN_PAIRS_BROKEN), 0),
    ROW("medium unknown",
        "83 'type''BlockRemoved' 'block_hashes' 91 07 'medium''QUANTUM'", 0, 0,
        NOTE(UNKNOWN_MEDIUM), 0),
    ROW("hash list above its place",
        "82 'type''BlockRemoved' 'block_hashes' dd00000002 01 02", 0, 0, 0, 0),
    ROW("no tag", "81 'block_hashes' 91 07", KVE_FAULT_NO_TAG, -1, 0, 0),
    ROW("tag nil", "82 'type' c0 'block_hashes' 91 07", KVE_FAULT_NO_TAG, -1, 0,
        0),
    ROW("no slots", "90", KVE_FAULT_NO_TAG, -1, 0, 0),
    ROW("unknown tag", "91 'BlockBaked'", KVE_FAULT_UNKNOWN_TAG, -1, 0, 0),
    ROW("unknown tag before fields", "82 'block_hashes' 05 'type''BlockBaked'",
        KVE_FAULT_UNKNOWN_TAG, -1, 0, 0),
    ROW("tag a number", "91 05", KVE_FAULT_BAD_TAG, -1, 0, 0),
    ROW("type a list", "81 'type' 91 05", KVE_FAULT_BAD_TAG, -1, 0, 0),
    ROW("a number", "05", KVE_FAULT_NOT_AN_EVENT, -1, 0, 0),
    ROW("nil", "c0", KVE_FAULT_NOT_AN_EVENT, -1, 0, 0),
    ROW("hashes absent", "81 'type''BlockRemoved'", KVE_FAULT_MISSING_HASHES,
        KVE_FIELD_BLOCK_HASHES, 0, 0),
    ROW("hashes nil", "82 'type''BlockStored' 'block_hashes' c0",
        KVE_FAULT_MISSING_HASHES, KVE_FIELD_BLOCK_HASHES, 0, 0),
    ROW("hashes slot absent", "91 'BlockStored'", KVE_FAULT_MISSING_HASHES,
        KVE_FIELD_BLOCK_HASHES, 0, 0),
    ROW("hashes a number", "82 'type''BlockStored' 'block_hashes' 05",
        KVE_FAULT_BAD_HASHES, KVE_FIELD_BLOCK_HASHES, 0, 0),
    ROW("a hash of float", "92 'BlockRemoved' 91 cb4025000000000000",
        KVE_FAULT_BAD_HASHES, KVE_FIELD_BLOCK_HASHES, 0, 0),
    ROW("a hash nil", "92 'BlockRemoved' 92 01 c0", KVE_FAULT_BAD_HASHES,
        KVE_FIELD_BLOCK_HASHES, 0, 0),
    ROW("parent a list", "93 'BlockStored' 91 01 90", KVE_FAULT_BAD_PARENT,
        KVE_FIELD_PARENT_BLOCK_HASH, 0, 0),
    ROW("tokens a number", "94 'BlockStored' 91 01 c0 05", KVE_FAULT_BAD_TOKENS,
        KVE_FIELD_TOKEN_IDS, 0, 0),
    ROW("a token nil", "94 'BlockStored' 91 01 c0 92 01 c0",
        KVE_FAULT_BAD_TOKENS, KVE_FIELD_TOKEN_IDS, 0, 0),
    ROW("pairs, then a number", "94 'BlockStored' 91 01 c0 92 92 01 02 05",
        KVE_FAULT_BAD_TOKENS, KVE_FIELD_TOKEN_IDS, 0, 0),
    ROW("range, then a string", "94 'BlockStored' 91 01 c0 92 ff 'x'",
        KVE_FAULT_BAD_TOKENS, KVE_FIELD_TOKEN_IDS, 0, 0),
    ROW("size negative", "95 'BlockStored' 91 01 c0 90 ff",
        KVE_FAULT_BAD_BLOCK_SIZE, KVE_FIELD_BLOCK_SIZE, 0, 0),
    ROW("size above 32 bits", "95 'BlockStored' 91 01 c0 90 cf0000000100000000",
        KVE_FAULT_BAD_BLOCK_SIZE, KVE_FIELD_BLOCK_SIZE, 0, 0),
    ROW("size a float", "95 'BlockStored' 91 01 c0 90 ca3f800000",
        KVE_FAULT_BAD_BLOCK_SIZE, KVE_FIELD_BLOCK_SIZE, 0, 0),
    ROW("extra a number", "83 'type''BlockStored' " HASH1 "'extra_keys' 05",
        KVE_FAULT_BAD_EXTRA_KEYS, KVE_FIELD_EXTRA_KEYS, 0, 0),
    ROW("extra of numbers",
        "83 'type''BlockStored' " HASH1 "'extra_keys' 93 c0 05 'x'",
        KVE_FAULT_BAD_EXTRA_KEYS, KVE_FIELD_EXTRA_KEYS, 0, 0),
    ROW("medium a number", "83 'type''BlockStored' " HASH1 "'medium' 05",
        KVE_FAULT_BAD_FIELD, KVE_FIELD_MEDIUM, 0, 0),
    ROW("medium slot a number", "93 'BlockRemoved' 91 01 05",
        KVE_FAULT_BAD_FIELD, KVE_FIELD_MEDIUM, 0, 0),
    ROW("group a string", "83 'type''BlockStored' " HASH1 "'group_idx''0'",
        KVE_FAULT_BAD_FIELD, KVE_FIELD_GROUP_IDX, 0, 0),
    ROW("group above 63 bits",
        "83 'type''BlockStored' " HASH1 "'group_idx' cf8000000000000000",
        KVE_FAULT_BAD_FIELD, KVE_FIELD_GROUP_IDX, 0, 0),
    ROW("lookahead a string",
        "83 'type''BlockStored' " HASH1 "'lookahead_token_ids''x'",
        KVE_FAULT_BAD_FIELD, KVE_FIELD_LOOKAHEAD_TOKEN_IDS, 0, 0),
};

/* Each event stands between two good ones, which must come through. */
static void
test_events(void **state)
{
    kve_batch *batch = *state;

    for (size_t i = 0; i < N_OF(events); i++) {
        char text[1024];
        snprintf(
            text, sizeof(text), "%s %s %s", REMOVE, events[i].event, STORE);
        const struct kve_event *ev = decode(batch, 3, text);
        const struct kve_batch_info *info = kve_batch_get_info(batch);
        bool good = events[i].reason == 0;

        assert_int_equal(info->n_declared, 3);
        if (info->n_events != (good ? 3 : 2))
            fail_msg("%s: %zu events", events[i].name, info->n_events);
        assert_int_equal(ev->type, KVE_EVENT_REMOVED);
        assert_int_equal(ev->index, 0);
        ev = kve_batch_next(batch);
        if (good) {
            if (ev->notes != events[i].notes)
                fail_msg("%s: notes %x, want %x", events[i].name, ev->notes,
                    events[i].notes);
            if (events[i].seen != 0 && ev->seen != events[i].seen)
                fail_msg("%s: seen %x, want %x", events[i].name, ev->seen,
                    events[i].seen);
            assert_int_equal(info->notes, events[i].notes);
            assert_true(ev->tokens == NULL || ev->n_tokens > 0);
            if ((ev->notes & (NOTE(TOKEN_RANGE) | NOTE(TOKEN_PAIRS_BROKEN))))
                assert_null(ev->tokens);
            ev = kve_batch_next(batch);
        } else {
            const struct kve_fault *fault = kve_batch_fault(batch, 0);
            assert_int_equal(info->n_faults, 1);
            if (fault->reason != events[i].reason ||
                fault->field != events[i].field)
                fail_msg("%s: %s, field %d", events[i].name,
                    kve_fault_str(fault->reason), fault->field);
            assert_int_equal(fault->index, 1);
            size_t len;
            uint8_t *raw = spell(events[i].event, &len);
            assert_int_equal(fault->raw.len, len);
            assert_memory_equal(fault->raw.data, raw, len);
            free(raw);
            assert_null(kve_batch_fault(batch, 1));
        }
        assert_int_equal(ev->type, KVE_EVENT_STORED);
        assert_int_equal(ev->index, 2);
        assert_int_equal(ev->hashes[0].integer, 0x0102030405060708);
        assert_null(kve_batch_next(batch));
    }
}

static void
test_fault_says_where(void **state)
{
    kve_batch *batch = *state;

    /* 13 bytes before the event; 1 + 5 + 12 + 13 + 1 of it before the 05. */
    decode(batch, 1, "83 'type''BlockStored' 'block_hashes' 91 05 'medium' 05");
    const struct kve_fault *fault = kve_batch_fault(batch, 0);
    assert_int_equal(fault->reason, KVE_FAULT_BAD_FIELD);
    assert_int_equal(fault->offset, 13 + 1 + 17 + 13 + 2 + 7);
    assert_str(fault->tag, "BlockStored");

    /* The tag is told even where it stands behind. */
    decode(batch, 1, "82 'medium' 05 'type''BlockStored'");
    fault = kve_batch_fault(batch, 0);
    assert_int_equal(fault->offset, 13 + 1 + 7);
    assert_str(fault->tag, "BlockStored");

    decode(batch, 1, "82 'medium' 05 'type''Bl'");
    fault = kve_batch_fault(batch, 0);
    assert_int_equal(fault->offset, 13 + 1 + 7 + 1 + 5);
    assert_str(fault->tag, "Bl");
    assert_string_equal(kve_fault_str(fault->reason), "unknown_tag");
}

/* ------------------------------------------------------------------ */

static void
test_every_field(void **state)
{
    const struct kve_event *ev = decode(*state, 1,
        "de0016 'type''BlockStored' 'block_hashes' 92 c403aabbcc 07"
        "'parent_block_hash' ff 'token_ids' 94 01 cc80 cd0100 ce00010000"
        "'block_size' 02 'lora_id' 05 'medium''cpu' 'lora_name''ad'"
        "'extra_keys' 92 c0 91 'k' 'group_idx' cd0102"
        "'kv_cache_spec_kind''mamba' 'kv_cache_spec_sliding_window' 40"
        "'locality''LOCAL' 'ownership''me' 'session_id''s'"
        "'lookahead_token_ids' 91 91 05 'cache_salt''pepper'"
        "'skipped_parent_block_hash' 09 'skipped_token_ids' 92 06 07"
        "'skipped_extra_keys' 91 c0 'block_offsets' 91 00"
        "'remaining_copy_counts' 91 03");

    assert_non_null(ev);
    assert_int_equal(ev->seen, (1u << 21) - 1);
    assert_int_equal(ev->notes, 0);
    assert_int_equal(ev->layout, KVE_LAYOUT_MAP);
    assert_int_equal(ev->tier, KVE_TIER_CPU);
    assert_int_equal(ev->n_hashes, 2);
    assert_memory_equal(ev->hashes[0].bytes, "\xaa\xbb\xcc", 3);
    assert_int_equal(ev->hashes[0].len, 3);
    assert_null(ev->hashes[1].bytes);
    assert_int_equal(ev->hashes[1].integer, 7);
    assert_true(ev->has_parent);
    assert_int_equal(ev->parent.integer, UINT64_MAX);
    assert_int_equal(ev->n_tokens, 4);
    assert_int_equal(ev->tokens[0], 1);
    assert_int_equal(ev->tokens[1], 0x80);
    assert_int_equal(ev->tokens[2], 0x100);
    assert_int_equal(ev->tokens[3], 0x10000);
    assert_int_equal(ev->block_size, 2);
    assert_true(ev->lora_id.set);
    assert_int_equal(ev->lora_id.value, 5);
    assert_str(ev->medium, "cpu");
    assert_str(ev->lora_name, "ad");
    assert_int_equal(ev->extra_keys.len, 5);
    assert_memory_equal(ev->extra_keys.data, "\x92\xc0\x91\xa1k", 5);
    assert_int_equal(ev->group_idx.value, 0x102);
    assert_str(ev->spec_kind, "mamba");
    assert_int_equal(ev->sliding_window.value, 64);
    assert_str(ev->locality, "LOCAL");
    assert_str(ev->ownership, "me");
    assert_str(ev->session_id, "s");
    assert_int_equal(ev->lookahead_token_ids.len, 3);
    assert_str(ev->cache_salt, "pepper");
    assert_true(ev->has_skipped_parent);
    assert_int_equal(ev->skipped_parent.integer, 9);
    assert_int_equal(ev->n_skipped_tokens, 2);
    assert_int_equal(ev->skipped_tokens[1], 7);
    assert_int_equal(ev->skipped_extra_keys.len, 2);
    assert_int_equal(ev->block_offsets.len, 2);
    assert_int_equal(ev->remaining_copy_counts.len, 2);
    assert_int_equal(ev->n_unknown, 0);
    const struct kve_batch_info *info = kve_batch_get_info(*state);
    assert_int_equal(info->n_tokens, 4);
    assert_int_equal(info->n_hashes, 2);
}

static const struct {
    const char *text;
    uint64_t integer;  /* when bytes is NULL */
    const char *bytes; /* hex, or "bad" */
} hashes[] = {
    { "'0'", 0, NULL },
    { "'77'", 77, NULL },
    { "'18446744073709551615'", UINT64_MAX, NULL },
    { "'-1'", UINT64_MAX, NULL },
    { "'-9223372036854775808'", (uint64_t)1 << 63, NULL },
    { "'0x1f'", 0x1f, NULL },
    { "'0XffffFFFFffffffff'", UINT64_MAX, NULL },
    { "'0x00112233445566778899'", 0, "00112233445566778899" },
    { "'00112233445566778899aabb'", 0, "00112233445566778899aabb" },
    { "d0ff", UINT64_MAX, NULL },
    { "d1ff00", (uint64_t)-256, NULL },
    { "d27fffffff", 0x7fffffff, NULL },
    { "d38000000000000000", (uint64_t)1 << 63, NULL },
    { "cc80", 0x80, NULL },
    { "cd8000", 0x8000, NULL },
    { "ce80000000", 0x80000000, NULL },
    { "c400", 0, "" },
    { "c5000101", 0, "01" },
    { "c6000000020102", 0, "0102" },
    { "''", 0, "bad" },
    { "'-'", 0, "bad" },
    { "'12x'", 0, "bad" },
    { "'0x'", 0, "bad" },
    { "'deadbeef'", 0, "bad" },
    { "'-9223372036854775809'", 0, "bad" },
    { "'00112233445566778899aab'", 0, "bad" },
    { "'00112233445566778899aag0'", 0, "bad" },
    { "c3", 0, "bad" },
    { "d40000", 0, "bad" },
};

static void
test_hashes(void **state)
{
    for (size_t i = 0; i < N_OF(hashes); i++) {
        char text[256];
        char hex[64];
        snprintf(text, sizeof(text), "92 'BlockRemoved' 91 %s", hashes[i].text);
        const struct kve_event *ev = decode(*state, 1, text);
        bool bad =
            hashes[i].bytes != NULL && strcmp(hashes[i].bytes, "bad") == 0;

        if ((ev == NULL) != bad)
            fail_msg("%s", hashes[i].text);
        if (bad) {
            assert_int_equal(
                kve_batch_fault(*state, 0)->reason, KVE_FAULT_BAD_HASHES);
        } else if (hashes[i].bytes == NULL) {
            assert_null(ev->hashes[0].bytes);
            if (ev->hashes[0].integer != hashes[i].integer)
                fail_msg("%s", hashes[i].text);
        } else {
            assert_non_null(ev->hashes[0].bytes);
            kve_hash_format(&ev->hashes[0], hex, sizeof(hex));
            assert_string_equal(hex, hashes[i].bytes);
        }
    }
}

static void
test_alias_used(void **state)
{
    const struct kve_event *ev = decode(*state, 4,
        "83 'seq_hashes' 91 08 'type''BlockRemoved' 'block_hashes' 91 07"
        "83 'type''BlockRemoved' 'block_hashes' 91 07 'seq_hashes' 91 08"
        "83 'event_type''removed' 'block_hashes' 91 07 'seq_hashes' 91 08"
        "84 'ownership' c0 'backend_id''b' 'event_type''cleared' 'type' c0");

    for (int i = 0; i < 3; i++) {
        assert_int_equal(ev->type, KVE_EVENT_REMOVED);
        assert_int_equal(ev->n_hashes, 1);
        assert_int_equal(ev->hashes[0].integer, 7);
        ev = kve_batch_next(*state);
    }
    assert_int_equal(ev->type, KVE_EVENT_CLEARED);
    assert_str(ev->ownership, "b");
}

static void
test_slot_seven(void **state)
{
    const struct kve_event *ev = decode(*state, 3,
        "99 'BlockStored' 91 07 c0 92 01 02 02 c0 'GPU'"
        "  83 'cache_salt''t' 'lora_name' 05 'odd' 90 c0"
        "98 'BlockStored' 91 07 c0 92 01 02 02 c0 'GPU' 'my-lora'"
        "98 'BlockStored' 91 07 c0 92 01 02 02 c0 'GPU' 20");

    assert_str(ev->cache_salt, "t");
    assert_null(ev->lora_name.data);
    assert_int_equal(ev->n_unknown, 2);
    assert_str(ev->unknown[0].key, "lora_name");
    assert_int_equal(ev->unknown[0].slot, 7);
    assert_str(ev->unknown[1].key, "odd");
    assert_int_equal(ev->unknown[1].value.len, 1);
    assert_int_equal(ev->unknown[1].value.data[0], 0x90);
    ev = kve_batch_next(*state);
    assert_str(ev->lora_name, "my-lora");
    assert_int_equal(ev->layout, KVE_LAYOUT_ARRAY);
    ev = kve_batch_next(*state);
    assert_null(ev->lora_name.data);
    assert_int_equal(ev->n_unknown, 1);
    assert_null(ev->unknown[0].key.data);
    assert_int_equal(ev->unknown[0].slot, 7);
    assert_int_equal(ev->unknown[0].value.data[0], 0x20);
}

static void
test_pairs_fold(void **state)
{
    const struct kve_event *ev = decode(*state, 1,
        "95 'BlockStored' 92 15 16 c0 94 92 01 02 92 02 03 92 03 04 92 04 05"
        "02");

    assert_int_equal(ev->n_tokens, 4);
    for (uint32_t i = 0; i <= 4; i++)
        assert_int_equal(ev->tokens[i], i + 1);
}

/* Many unknown fields: 64 are kept, the event is delivered. */
static void
test_unknown_is_bounded(void **state)
{
    char text[4096] = "de0066 'type''AllBlocksCleared'";

    for (int i = 0; i < 101; i++)
        strcat(text, " 'x' 92 01 02");
    const struct kve_event *ev = decode(*state, 1, text);
    assert_int_equal(ev->n_unknown, 64);
    assert_str(ev->unknown[63].key, "x");
    assert_int_equal(ev->unknown[63].value.len, 3);
}

static void
test_depth_does_not_matter(void **state)
{
    const struct kve_event *ev = decode(
        *state, 2, "82 'type''AllBlocksCleared' 'deep' 91*200000 c0 " REMOVE);

    assert_int_equal(ev->n_unknown, 1);
    assert_int_equal(ev->unknown[0].value.len, 200001);
    assert_int_equal(kve_batch_next(*state)->type, KVE_EVENT_REMOVED);
}

/* ------------------------------------------------------------------ */

#define TS "cb4025000000000000"

static const struct {
    const char *name;
    const char *payload;
    kve_status status;
    size_t offset; /* SIZE_MAX: the end */
    size_t n_events;
    size_t trailing;
    uint32_t notes;
} batches[] = {
    ROW("two parts", "92" TS "90", KVE_OK, 0, 0, 0, 0),
    ROW("rank nil", "93" TS "90 c0", KVE_OK, 0, 0, 0, 0),
    ROW("rank a string", "93" TS "90 'x'", KVE_OK, 0, 0, 0,
        NOTE(UNKNOWN_FIELD)),
    ROW("more parts", "96" TS "90 00 c0 91 91 01 02", KVE_OK, 0, 0, 0,
        NOTE(UNKNOWN_FIELD)),
    ROW("trailing", "92" TS "90 c1 ff", KVE_OK, 0, 0, 2, 0),
    ROW("ts float 32", "92 ca41280000 90", KVE_OK, 0, 0, 0, 0),
    ROW("map", "82 'ts'" TS "'events' 91" REMOVE, KVE_OK, 0, 1, 0, 0),
    ROW("map, any order",
        "84 'x' 91 01 'events' 91" REMOVE "'data_parallel_rank' 02 'ts'" TS,
        KVE_OK, 0, 1, 0, NOTE(UNKNOWN_FIELD)),
    ROW("map, events twice",
        "83 'ts'" TS "'events' 91" REMOVE "'events' 91" REMOVE, KVE_OK, 0, 1, 0,
        NOTE(UNKNOWN_FIELD)),
    ROW("nothing", "", KVE_E_TRUNCATED, 0, 0, 0, 0),
    ROW("a string", "'batch'", KVE_E_SCHEMA, 0, 0, 0, 0),
    ROW("nil", "c0", KVE_E_SCHEMA, 0, 0, 0, 0),
    ROW("never used", "c1", KVE_E_MALFORMED, 0, 0, 0, 0),
    ROW("half a string", "a5 61", KVE_E_TRUNCATED, SIZE_MAX, 0, 0, 0),
    ROW("no part", "90", KVE_E_SCHEMA, 0, 0, 0, 0),
    ROW("one part", "91" TS, KVE_E_SCHEMA, 0, 0, 0, 0),
    ROW("ts a string", "92 'x' 90", KVE_E_SCHEMA, 1, 0, 0, 0),
    ROW("ts nil", "92 c0 90", KVE_E_SCHEMA, 1, 0, 0, 0),
    ROW("events nil", "92" TS "c0", KVE_E_SCHEMA, 10, 0, 0, 0),
    ROW("events a map", "92" TS "80", KVE_E_SCHEMA, 10, 0, 0, 0),
    ROW("map without ts", "81 'events' 91" REMOVE, KVE_E_SCHEMA, 0, 0, 0, 0),
    ROW("map without events", "81 'ts'" TS, KVE_E_SCHEMA, 0, 0, 0, 0),
    ROW("map, ts bad behind", "82 'events' 91" REMOVE "'ts' c0", KVE_E_SCHEMA,
        57, 0, 0, 0),
    ROW("events missing", "93" TS "93" REMOVE, KVE_E_TRUNCATED, SIZE_MAX, 1, 0,
        0),
    ROW("2^32-1 events", "93" TS "ddffffffff" REMOVE REMOVE, KVE_E_TRUNCATED,
        SIZE_MAX, 2, 0, 0),
    ROW("2^32-1 hashes", "92" TS "91 92 'BlockRemoved' ddffffffff 01",
        KVE_E_TRUNCATED, SIZE_MAX, 0, 0, 0),
    ROW("2^32-1 tokens", "92" TS "91 94 'BlockStored' 91 01 c0 ddffffffff 01",
        KVE_E_TRUNCATED, SIZE_MAX, 0, 0, 0),
    ROW("2^32-1 keys", "92" TS "91 dfffffffff", KVE_E_TRUNCATED, SIZE_MAX, 0, 0,
        0),
    ROW("2^32-1 unknown",
        "92" TS "92" REMOVE "82 'type''AllBlocksCleared' 'x' ddffffffff 01",
        KVE_E_TRUNCATED, SIZE_MAX, 1, 0, 0),
    ROW("broken in a fault", "92" TS "92" REMOVE "93 'BlockRemoved' 05 c1",
        KVE_E_MALFORMED, 71, 1, 0, 0),
    ROW("broken as an event", "92" TS "92" REMOVE "c1", KVE_E_MALFORMED, 56, 1,
        0, 0),
    ROW("broken in tokens",
        "92" TS "92" REMOVE "94 'BlockStored' 91 01 c0 92 01 c1",
        KVE_E_MALFORMED, 74, 1, 0, 0),
    ROW("rank missing", "93" TS "91" REMOVE, KVE_E_TRUNCATED, SIZE_MAX, 1, 0,
        0),
    ROW("rank cut", "93" TS "91" REMOVE "cd01", KVE_E_TRUNCATED, SIZE_MAX, 1, 0,
        0),
};

static void
test_batches(void **state)
{
    for (size_t i = 0; i < N_OF(batches); i++) {
        struct kve_error err = { .offset = 12345 };
        size_t len;
        uint8_t *bytes = spell(batches[i].payload, &len);
        kve_status got = kve_batch_decode(*state, bytes, len, &err);
        const struct kve_batch_info *info = kve_batch_get_info(*state);
        size_t offset = batches[i].offset == SIZE_MAX ? len : batches[i].offset;

        if (got != batches[i].status)
            fail_msg("%s: %s (%s)", batches[i].name, kve_status_name(got),
                err.detail);
        if (got != KVE_OK && (err.offset != offset || err.status != got))
            fail_msg("%s: offset %zu, want %zu", batches[i].name, err.offset,
                offset);
        if (got == KVE_OK)
            assert_int_equal(err.offset, 12345);
        if (info->n_events != batches[i].n_events || info->n_faults != 0)
            fail_msg("%s: %zu events, %zu faults", batches[i].name,
                info->n_events, info->n_faults);
        if (info->trailing != batches[i].trailing ||
            info->notes != batches[i].notes)
            fail_msg("%s: trailing %zu, notes %x", batches[i].name,
                info->trailing, info->notes);
        if (got == KVE_OK)
            assert_true(info->ts == 10.5);
        free(bytes);
    }
}

static void
test_info(void **state)
{
    const struct kve_batch_info *info;
    size_t len;
    uint8_t *bytes = spell("94 cf0000019c1c38a400 90 ff c410 01*16", &len);

    assert_int_equal(kve_batch_decode(*state, bytes, len, NULL), KVE_OK);
    info = kve_batch_get_info(*state);
    assert_true(info->ts == 1770000000.0);
    assert_true(info->ts_integer);
    assert_true(info->rank.set);
    assert_int_equal(info->rank.value, -1);
    assert_non_null(info->publisher_id);
    assert_int_equal(info->publisher_id[15], 1);
    assert_false(info->map);
    free(bytes);

    bytes =
        spell("83 'ts' ce6553f100 'events' 90 'data_parallel_rank' 03", &len);
    assert_int_equal(kve_batch_decode(*state, bytes, len, NULL), KVE_OK);
    assert_true(info->ts == 1700000000.0);
    assert_true(info->map);
    assert_int_equal(info->rank.value, 3);
    assert_null(info->publisher_id);
    free(bytes);
}

/* ------------------------------------------------------------------ */

static const char rich[] = STORE REMOVE
    "99 'BlockStored' 92 c4020102 '0x00112233445566778899' 05"
    "93 cc80 cd0100 ce00010000 02 c0 'GPU' 81 'cache_salt''t' 92 c0 91 92 'm' "
    "ff"
    "82 'event_type''cleared' 'odd' 93 c7020102 03 cb4025000000000000 d6*6 "
    "94 'BlockStored' 91 01 c0 92 92 01 02 92 02 03"
    "91 'AllBlocksCleared'";

/* However short a payload is cut, what was whole is delivered, the end is
 * named, and nothing behind it is read (a sanitizer watches). */
static void
test_every_prefix(void **state)
{
    kve_batch *batch = *state;
    size_t len;
    uint8_t *whole = spell_batch(6, rich, &len);
    size_t ends[6];

    assert_int_equal(kve_batch_decode(batch, whole, len, NULL), KVE_OK);
    assert_int_equal(kve_batch_get_info(batch)->n_events, 6);
    for (size_t i = 0; i < 6; i++) {
        const struct kve_event *ev = kve_batch_next(batch);
        ends[i] = (size_t)(ev->raw.data + ev->raw.len - whole);
    }
    for (size_t cut = 0; cut < len; cut++) {
        struct kve_error err;
        uint8_t *part = malloc(cut > 0 ? cut : 1);
        size_t want = 0;

        memcpy(part, whole, cut);
        while (want < 6 && ends[want] <= cut)
            want++;
        assert_int_equal(
            kve_batch_decode(batch, part, cut, &err), KVE_E_TRUNCATED);
        assert_int_equal(err.offset, cut);
        if (kve_batch_get_info(batch)->n_events != want)
            fail_msg("cut at %zu: %zu events, want %zu", cut,
                kve_batch_get_info(batch)->n_events, want);
        free(part);
    }
    free(whole);
}

/* Whatever one byte becomes: what is delivered lies inside the payload. */
static void
test_every_byte_changed(void **state)
{
    kve_batch *batch = *state;
    size_t len;
    uint8_t *bytes = spell_batch(6, rich, &len);

    for (size_t at = 0; at < len; at++) {
        uint8_t kept = bytes[at];
        for (unsigned value = 0; value < 256; value++) {
            struct kve_error err = { .offset = 0 };
            const struct kve_event *ev;

            bytes[at] = (uint8_t)value;
            kve_status status = kve_batch_decode(batch, bytes, len, &err);
            const struct kve_batch_info *info = kve_batch_get_info(batch);
            assert_true(err.offset <= len);
            assert_true(info->n_events + info->n_faults <= info->n_declared);
            if (status == KVE_OK)
                assert_int_equal(
                    info->n_events + info->n_faults, info->n_declared);
            if (status == KVE_E_MALFORMED)
                assert_int_equal(bytes[err.offset], 0xc1);
            while ((ev = kve_batch_next(batch)) != NULL) {
                assert_true(ev->raw.data >= bytes);
                assert_true(ev->raw.data + ev->raw.len <= bytes + len);
                for (size_t i = 0; i < ev->n_hashes; i++)
                    assert_true(
                        kve_hash_format(&ev->hashes[i], NULL, 0) <= 2 * len);
                uint32_t all = 0;
                for (size_t i = 0; i < ev->n_tokens; i++)
                    all |= ev->tokens[i];
                assert_true(ev->n_tokens == 0 || ev->tokens != NULL);
                (void)all;
            }
        }
        bytes[at] = kept;
    }
    free(bytes);
}

/* ------------------------------------------------------------------ */

static kve_batch *
limited(size_t tokens, size_t hashes_, size_t events_, size_t faults)
{
    struct kve_batch_opts opts = KVE_BATCH_OPTS_INIT;
    kve_batch *batch;

    opts.max_tokens = tokens;
    opts.max_hashes = hashes_;
    opts.max_events = events_;
    opts.max_faults = faults;
    assert_int_equal(kve_batch_create(&opts, &batch, NULL), KVE_OK);
    return batch;
}

static void
test_token_limit(void **state)
{
    (void)state;
    kve_batch *batch = limited(3, 0, 0, 0);
    const struct kve_event *ev =
        decode(batch, 3, STORE STORE "95 'BlockStored' 91 01 c0 91 05 01");

    assert_int_equal(ev->notes, 0);
    ev = kve_batch_next(batch);
    assert_int_equal(ev->notes, NOTE(TOKEN_LIMIT) | NOTE(HASH_ONLY));
    assert_null(ev->tokens);
    assert_int_equal(ev->n_hashes, 1);
    ev = kve_batch_next(batch);
    assert_int_equal(ev->notes, 0);
    assert_int_equal(ev->tokens[0], 5);
    assert_int_equal(kve_batch_get_info(batch)->n_tokens, 3);
    kve_batch_destroy(batch);
}

static void
test_hash_limit(void **state)
{
    (void)state;
    kve_batch *batch = limited(0, 3, 0, 0);

    decode(batch, 3,
        "92 'BlockRemoved' 92 01 02 92 'BlockRemoved' 92 03 04"
        "92 'BlockRemoved' 91 05");
    assert_int_equal(kve_batch_get_info(batch)->n_events, 2);
    assert_int_equal(kve_batch_get_info(batch)->n_hashes, 3);
    assert_int_equal(
        kve_batch_fault(batch, 0)->reason, KVE_FAULT_TOO_MANY_HASHES);
    assert_int_equal(kve_batch_fault(batch, 0)->index, 1);
    kve_batch_destroy(batch);
}

/* What a fault had read is not counted against those behind it. */
static void
test_faults_use_up_no_limit(void **state)
{
    (void)state;
    kve_batch *batch = limited(2, 3, 0, 0);

    decode(batch, 3,
        "93 'BlockRemoved' 93 01 02 03 05"
        "95 'BlockStored' 93 01 02 03 c0 92 01 02 ff"
        "95 'BlockStored' 93 01 02 03 c0 92 01 02 01");
    assert_int_equal(kve_batch_get_info(batch)->n_faults, 2);
    assert_int_equal(kve_batch_get_info(batch)->n_events, 1);
    assert_int_equal(kve_batch_get_info(batch)->n_hashes, 3);
    assert_int_equal(kve_batch_get_info(batch)->n_tokens, 2);
    kve_batch_destroy(batch);
}

static void
test_event_and_fault_limits(void **state)
{
    (void)state;
    kve_batch *batch = limited(0, 0, 2, 1);

    decode(batch, 5, REMOVE " 91 05 " REMOVE REMOVE STORE);
    const struct kve_batch_info *info = kve_batch_get_info(batch);
    assert_int_equal(info->n_events, 2);
    assert_int_equal(info->n_faults, 3);
    assert_int_equal(kve_batch_fault(batch, 0)->reason, KVE_FAULT_BAD_TAG);
    assert_null(kve_batch_fault(batch, 1));
    kve_batch_destroy(batch);

    batch = limited(0, 0, 1, 0);
    decode(batch, 2, REMOVE STORE);
    const struct kve_fault *fault = kve_batch_fault(batch, 0);
    assert_int_equal(fault->reason, KVE_FAULT_TOO_MANY_EVENTS);
    assert_str(fault->tag, "BlockStored");
    kve_batch_destroy(batch);
}

/* Events that are given up give their memory back. */
static void
test_faults_keep_no_memory(void **state)
{
    (void)state;
    kve_batch *batch = limited(0, 0, 0, 0);
    size_t len;
    uint8_t *bytes =
        spell_batch(1, "92 'BlockRemoved' dc4e20 01*19999 c0", &len);

    assert_int_equal(kve_batch_decode(batch, bytes, len, NULL), KVE_OK);
    size_t once = kve_batch_memory(batch);
    free(bytes);

    char *text = calloc(1, 50 * 64);
    for (int i = 0; i < 50; i++)
        strcat(text, "92 'BlockRemoved' dc4e20 01*19999 c0 ");
    bytes = spell_batch(50, text, &len);
    assert_int_equal(kve_batch_decode(batch, bytes, len, NULL), KVE_OK);
    assert_int_equal(kve_batch_get_info(batch)->n_faults, 50);
    assert_true(kve_batch_memory(batch) < once + 64 * 1024);
    free(bytes);
    free(text);
    kve_batch_destroy(batch);
}

/* What was read first must not move while a large batch is read, and the same
 * batch again needs no memory. */
static void
test_reuse(void **state)
{
    enum { N = 2000 };
    kve_batch *batch = *state;
    struct kve_event *many = calloc(N, sizeof(*many));
    struct kve_hash hash[4] = { { .bytes = NULL } };
    uint32_t tokens[64];
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_buffer out = KVE_BUFFER_INIT;

    for (uint32_t i = 0; i < 64; i++)
        tokens[i] = i * 2011;
    for (size_t i = 0; i < N; i++) {
        many[i].type = KVE_EVENT_STORED;
        many[i].hashes = hash;
        many[i].n_hashes = 4;
        many[i].tokens = tokens;
        many[i].n_tokens = 64;
        many[i].block_size = 16;
    }
    view.events = many;
    view.n_events = N;
    view.ts = 1;
    assert_int_equal(
        kve_batch_encode(&view, KVE_LAYOUT_MAP, &out, NULL), KVE_OK);

    for (int round = 0; round < 3; round++) {
        const struct kve_event *ev;
        size_t n = 0;
        kve_mem_fail_at(UINT64_MAX, false); /* counts, fails none */
        assert_int_equal(
            kve_batch_decode(batch, out.data, out.len, NULL), KVE_OK);
        uint64_t asked = kve_mem_asked();
        kve_mem_fail_at(0, false);
        if (round == 2)
            assert_int_equal(asked, 0);
        while ((ev = kve_batch_next(batch)) != NULL) {
            assert_int_equal(ev->index, n++);
            assert_int_equal(ev->notes, 0);
            assert_memory_equal(ev->tokens, tokens, sizeof(tokens));
            assert_int_equal(ev->hashes[3].integer, 0);
        }
        assert_int_equal(n, N);
        kve_batch_rewind(batch);
        assert_int_equal(kve_batch_next(batch)->index, 0);
    }
    size_t held = kve_batch_memory(batch);
    kve_batch_clear(batch);
    assert_null(kve_batch_next(batch));
    assert_int_equal(kve_batch_get_info(batch)->n_events, 0);
    assert_int_equal(kve_batch_memory(batch), held);
    kve_buffer_release(&out);
    free(many);
}

static void
test_options(void **state)
{
    (void)state;
    struct kve_batch_opts opts = { .struct_size = 8 };
    struct kve_error err;
    kve_batch *batch = (kve_batch *)&opts;

    assert_int_equal(kve_batch_create(&opts, &batch, &err), KVE_E_INVAL);
    assert_ptr_equal(batch, &opts);
    opts = (struct kve_batch_opts){ 0 };
    assert_int_equal(kve_batch_create(&opts, &batch, &err), KVE_OK);
    kve_batch_destroy(batch);
    kve_batch_opts_init(&opts);
    assert_int_equal(opts.struct_size, sizeof(opts));
    assert_int_equal(opts.max_tokens, 0);
    kve_batch_destroy(NULL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_events, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fault_says_where, setup, teardown),
        cmocka_unit_test_setup_teardown(test_every_field, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hashes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_alias_used, setup, teardown),
        cmocka_unit_test_setup_teardown(test_slot_seven, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pairs_fold, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_unknown_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_depth_does_not_matter, setup, teardown),
        cmocka_unit_test_setup_teardown(test_batches, setup, teardown),
        cmocka_unit_test_setup_teardown(test_info, setup, teardown),
        cmocka_unit_test_setup_teardown(test_every_prefix, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_every_byte_changed, setup, teardown),
        cmocka_unit_test(test_token_limit),
        cmocka_unit_test(test_hash_limit),
        cmocka_unit_test(test_faults_use_up_no_limit),
        cmocka_unit_test(test_event_and_fault_limits),
        cmocka_unit_test(test_faults_keep_no_memory),
        cmocka_unit_test_setup_teardown(test_reuse, setup, teardown),
        cmocka_unit_test(test_options),
    };

    return cmocka_run_group_tests_name("wire/decode", tests, NULL, NULL);
}
