/*
 * The n-th allocation fails, for every n, in everything the codec does: the
 * status says so, what was whole before is there, nothing leaks, and the same
 * handles work again afterwards.
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

enum { N = 300, TOKENS = 64 };

static uint32_t tokens[TOKENS];
static uint8_t *payload;
static size_t payload_len;

/* Events that need every kind of memory: hashes, tokens, hex strings, unknown
 * fields, faults; enough of them that each has to grow. */
static int
make_payload(void **state)
{
    char *text = calloc(1, (size_t)N * 200);

    (void)state;
    for (int i = 0; i < N; i++)
        strcat(text,
            i % 3 == 0 ? "93 'BlockStored' 92 '0x00112233445566778899' 07 c0"
                : i % 3 == 1 ? "91 'Nothing'"
                             : "94 'BlockStored' 91 01 c0 dc0200 05*512 ");
    strcat(text, "82 'type''AllBlocksCleared' 'new' 91 01");
    payload = spell_batch(N + 1, text, &payload_len);
    free(text);
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = i * 997;
    return 0;
}

static int
free_payload(void **state)
{
    (void)state;
    free(payload);
    return 0;
}

static kve_status
decode_twice(size_t *ret_events)
{
    kve_batch *batch = NULL;
    kve_status status = kve_batch_create(NULL, &batch, NULL);

    *ret_events = 0;
    if (status == KVE_OK) {
        status = kve_batch_decode(batch, payload, payload_len, NULL);
        *ret_events = kve_batch_get_info(batch)->n_events;
        const struct kve_event *ev;
        size_t n = 0;
        while ((ev = kve_batch_next(batch)) != NULL) {
            assert_true(ev->n_tokens == 0 || ev->tokens[511] == 5);
            n++;
        }
        assert_int_equal(n, *ret_events);
    }
    if (status == KVE_OK) {
        status = kve_batch_decode(batch, payload, payload_len, NULL);
        *ret_events = kve_batch_get_info(batch)->n_events;
    }
    if (batch != NULL && status == KVE_E_NOMEM) {
        /* Memory is there again: so is the batch. */
        kve_mem_fail_at(0, false);
        assert_int_equal(
            kve_batch_decode(batch, payload, payload_len, NULL), KVE_OK);
        assert_int_equal(kve_batch_get_info(batch)->n_events, N - N / 3 + 1);
    }
    kve_batch_destroy(batch);
    return status;
}

static void
test_decode(void **state)
{
    (void)state;
    int64_t live = kve_mem_live();
    size_t events;
    uint64_t n = 1;

    for (;; n++) {
        kve_mem_fail_at(n, false);
        kve_status status = decode_twice(&events);
        bool failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        assert_int_equal(kve_mem_live(), live);
        if (status == KVE_OK && !failed && n > 1 && events == N - N / 3 + 1)
            break;
        /* A block as large as the last batch is a wish, not a need. */
        assert_true(status == KVE_E_NOMEM || status == KVE_OK);
    }
    assert_true(n > 10);
}

static kve_status
encode_some(struct kve_buffer *out)
{
    static const uint8_t nil_list[] = { 0x91, 0xc0 };
    struct kve_hash hash = { NULL, { 5 } };
    struct kve_event event = { .type = KVE_EVENT_STORED,
        .hashes = &hash,
        .n_hashes = 1,
        .tokens = tokens,
        .n_tokens = TOKENS,
        .block_size = TOKENS,
        .extra_keys = { nil_list, sizeof(nil_list) } };
    struct kve_extra_item item = { .kind = KVE_EXTRA_TEXT,
        .text = { "salt", 4 } };
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    kve_status status = KVE_OK;

    view.events = &event;
    view.n_events = 1;
    for (int i = 0; i < 30 && status == KVE_OK; i++) {
        size_t before = out->len;
        status = i % 2 == 0 ? kve_batch_encode(&view, KVE_LAYOUT_MAP, out, NULL)
                            : kve_extra_write(&item, 1, 100, out, NULL);
        if (status != KVE_OK)
            assert_int_equal(out->len, before);
    }
    return status;
}

static void
test_encode(void **state)
{
    (void)state;
    int64_t live = kve_mem_live();

    /* Twice: with room to spare, and near the limit, where a batch is first
     * written aside. */
    for (size_t max = 0; max <= 6000; max += 6000) {
        uint64_t n = 1;
        for (;; n++) {
            struct kve_buffer out = { NULL, 0, 0, max };
            kve_mem_fail_at(n, false);
            kve_status status = encode_some(&out);
            bool failed = kve_mem_failed();
            kve_mem_fail_at(0, false);
            kve_buffer_release(&out);
            assert_int_equal(kve_mem_live(), live);
            if (!failed) {
                assert_int_equal(status, max == 0 ? KVE_OK : KVE_E_LIMIT);
                break;
            }
            assert_int_equal(status, KVE_E_NOMEM);
        }
        assert_true(n > 2);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_encode),
    };

    return cmocka_run_group_tests_name(
        "wire/alloc", tests, make_payload, free_payload);
}
