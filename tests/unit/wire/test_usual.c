/*
 * test_usual.c - events that are, or nearly are, what engines always send.
 *
 * usual.h reads such events straight through, hands those that turn out to be
 * different over to the careful reader, and does not clear what the event
 * before left empty. So every two of them must come out right behind each
 * other, in one batch and in a batch used before: what was decoded is encoded
 * again, each event in its own layout, and must be the same bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "spell.h"

#include <kvevents/codec.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define START "'type' 'BlockStored' 'block_hashes' "
#define HASH "91 cf8123456789abcdef "
#define PARENT "'parent_block_hash' cf0123456789abcdef "
#define TOKENS "'token_ids' 94 07 ccff cdffff ce00010000 "
#define MIDDLE "'block_size' 04 'lora_id' c0 'medium' 'GPU' 'lora_name' c0 "
#define EXTRA "'extra_keys' 91 c0 "
#define KIND "'group_idx' 00 'kv_cache_spec_kind' 'full_attention' "
#define FRONT START HASH PARENT TOKENS
#define USUAL "de000b " FRONT MIDDLE EXTRA KIND

static const char *const events[] = {
    USUAL,
    "8b " FRONT MIDDLE EXTRA KIND,
    /* Other values that are read straight through as well. */
    "de000b " START "92 cf8123456789abcdef c404 00010203 'parent_block_hash' "
    "c402 0102 " TOKENS MIDDLE EXTRA KIND,
    "de000b " START HASH "'parent_block_hash' c0 " TOKENS MIDDLE EXTRA KIND,
    "de000b " START HASH PARENT
    "'token_ids' dc0010 cd0100*16 'block_size' 10 'lora_id' c0 'medium' 'GPU' "
    "'lora_name' c0 'extra_keys' 98 c0*8 'group_idx' 7f "
    "'kv_cache_spec_kind' 'mamba' ",
    /* Different behind the tokens, a little later each time. */
    "de000b " FRONT "'block_size' cd0100 'lora_id' c0 'medium' 'GPU' "
    "'lora_name' c0 " EXTRA KIND,
    "de000b " FRONT "'block_size' 04 'lora_id' 05 'medium' 'GPU' "
    "'lora_name' c0 " EXTRA KIND,
    "de000b " FRONT "'block_size' 04 'lora_id' c0 'medium' 'CPU' "
    "'lora_name' c0 " EXTRA KIND,
    "de000b " FRONT "'block_size' 04 'lora_id' c0 'medium' c0 "
    "'lora_name' 'sql' " EXTRA KIND,
    "de000b " FRONT MIDDLE "'extra_keys' 91 91 'salt' " KIND,
    "de000b " FRONT MIDDLE "'extra_keys' 99 c0*9 " KIND,
    "de000b " FRONT MIDDLE EXTRA "'group_idx' ccff "
    "'kv_cache_spec_kind' 'full_attention' ",
    "de000b " FRONT MIDDLE EXTRA "'group_idx' 01 'locality' 'LOCAL' ",
    "de000b " FRONT MIDDLE EXTRA "'kv_cache_spec_kind' "
    "'sliding_window' 'kv_cache_spec_sliding_window' cd0400 ",
    "de000b " FRONT MIDDLE "'group_idx' 01 'locality' 'LOCAL' "
    "'session_id' 'a' ",
    /* Of other numbers of keys, and of other types. */
    "de0008 " FRONT MIDDLE,
    "de000c " FRONT MIDDLE EXTRA KIND "'kv_cache_spec_sliding_window' 20 ",
    "84 'type' 'BlockRemoved' 'block_hashes' " HASH
    "'medium' 'GPU' 'group_idx' 01 ",
    "81 'type' 'AllBlocksCleared' ",
};

#define N_FAULTS 2000
#define N_EVENTS (sizeof(events) / sizeof(events[0]))

/* These events, decoded and encoded again. */
static void
expect_same(kve_batch *batch, const char *a, const char *b, const char *c)
{
    char text[4096];
    size_t len;
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_buffer out = KVE_BUFFER_INIT;
    struct kve_event got[3];

    snprintf(
        text, sizeof(text), "93 cb4025000000000000 93 %s %s %s 00", a, b, c);
    uint8_t *payload = spell(text, &len);
    assert_int_equal(kve_batch_decode(batch, payload, len, NULL), KVE_OK);
    const struct kve_batch_info *info = kve_batch_get_info(batch);
    assert_int_equal(info->n_events, 3);
    assert_int_equal(info->trailing, 0);
    for (size_t i = 0; i < 3; i++) {
        got[i] = *kve_batch_next(batch);
        assert_int_equal(got[i].index, i);
    }
    view.ts = info->ts;
    view.rank = info->rank;
    view.events = got;
    view.n_events = 3;
    assert_int_equal(
        kve_batch_encode(&view, KVE_LAYOUT_KEEP, &out, NULL), KVE_OK);
    assert_int_equal(out.len, len);
    assert_memory_equal(out.data, payload, len);
    kve_buffer_release(&out);
    free(payload);
}

static void
test_any_order(void **state)
{
    (void)state;
    kve_batch *batch;

    assert_int_equal(kve_batch_create(NULL, &batch, NULL), KVE_OK);
    for (size_t i = 0; i < N_EVENTS; i++)
        for (size_t k = 0; k < N_EVENTS; k++)
            expect_same(batch, events[i], events[k], USUAL);
    kve_batch_destroy(batch);
}

/* Read straight through or not, an event says the same: keys in another order
 * are always read one by one. */
static void
test_same_as_by_keys(void **state)
{
    (void)state;
    size_t len;
    kve_batch *batch;
    uint8_t *payload = spell_batch(2,
        USUAL "de000b " FRONT MIDDLE "'kv_cache_spec_kind' 'full_attention' "
              "'group_idx' 00 " EXTRA,
        &len);

    assert_int_equal(kve_batch_create(NULL, &batch, NULL), KVE_OK);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(kve_batch_decode(batch, payload, len, NULL), KVE_OK);
        const struct kve_event *a = kve_batch_next(batch);
        const struct kve_event *b = kve_batch_next(batch);

        assert_int_equal(a->seen, b->seen);
        assert_int_equal(a->notes, 0);
        assert_int_equal(b->notes, 0);
        assert_int_equal(a->type, b->type);
        assert_int_equal(a->layout, b->layout);
        assert_int_equal(a->tier, KVE_TIER_GPU);
        assert_int_equal(b->tier, KVE_TIER_GPU);
        assert_int_equal(a->raw.len, b->raw.len);
        assert_ptr_equal(a->raw.data + a->raw.len, b->raw.data);
        assert_int_equal(a->n_tokens, 4);
        assert_memory_equal(a->tokens, b->tokens, 4 * sizeof(*a->tokens));
        assert_int_equal(kve_batch_get_info(batch)->n_tokens, 8);
        assert_int_equal(kve_batch_get_info(batch)->n_hashes, 2);
    }
    kve_batch_destroy(batch);
    free(payload);
}

/* Tokens that were read before an event turned out to be different count once,
 * and are given back with an event that is a fault. */
static void
test_limits_and_memory(void **state)
{
    (void)state;
    struct kve_batch_opts opts = KVE_BATCH_OPTS_INIT;
    static const char odd[] =
        "de000b " FRONT "'block_size' 04 'lora_id' c0 'medium' 'CPU' "
        "'lora_name' c0 " EXTRA KIND;
    static const char bad[] = "de000b " FRONT MIDDLE "'extra_keys' 01 " KIND;
    char text[4096];
    kve_batch *batch;
    size_t len;

    opts.max_tokens = 8;
    opts.max_faults = 2;
    snprintf(text, sizeof(text), "%s %s %s %s %s", bad, odd, bad, USUAL, USUAL);
    uint8_t *payload = spell_batch(5, text, &len);
    assert_int_equal(kve_batch_create(&opts, &batch, NULL), KVE_OK);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(kve_batch_decode(batch, payload, len, NULL), KVE_OK);
        assert_int_equal(kve_batch_get_info(batch)->n_faults, 2);
        assert_int_equal(
            kve_batch_fault(batch, 1)->reason, KVE_FAULT_BAD_EXTRA_KEYS);
        assert_int_equal(kve_batch_get_info(batch)->n_tokens, 8);
        const struct kve_event *first = kve_batch_next(batch);
        const struct kve_event *second = kve_batch_next(batch);
        const struct kve_event *third = kve_batch_next(batch);

        assert_int_equal(first->n_tokens, 4);
        assert_int_equal(second->n_tokens, 4);
        assert_int_equal(second->tokens[3], 65536);
        assert_int_equal(third->n_tokens, 0);
        assert_int_equal(
            third->notes, KVE_NOTE_TOKEN_LIMIT | KVE_NOTE_HASH_ONLY);
        assert_int_equal(third->seen, second->seen);
    }
    free(payload);

    /* Nothing but faults: as much memory as before. */
    size_t held = kve_batch_memory(batch);
    size_t one;
    uint8_t *event = spell(bad, &one);
    uint8_t *many = malloc(13 + N_FAULTS * one);
    static const uint8_t head[] = { 0x92, 0xcb, 0x40, 0x25, 0, 0, 0, 0, 0, 0,
        0xdc, N_FAULTS >> 8, N_FAULTS & 0xff };

    memcpy(many, head, sizeof(head));
    for (size_t i = 0; i < N_FAULTS; i++)
        memcpy(many + sizeof(head) + i * one, event, one);
    len = sizeof(head) + N_FAULTS * one;
    assert_int_equal(kve_batch_decode(batch, many, len, NULL), KVE_OK);
    assert_int_equal(kve_batch_get_info(batch)->n_faults, N_FAULTS);
    assert_int_equal(kve_batch_memory(batch), held);
    kve_batch_destroy(batch);
    free(event);
    free(many);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_same_as_by_keys),
        cmocka_unit_test(test_limits_and_memory),
    };

    return cmocka_run_group_tests_name("wire/usual", tests, NULL, NULL);
}
