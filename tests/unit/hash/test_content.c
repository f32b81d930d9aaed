/*
 * test_content.c - what a store says of its blocks, and a prompt of its own:
 * equal content gives equal hashes on both sides, and nothing else does.
 */
#include "data.h"

#include <kvevents/hash.h>

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/alloc.h"
#include "hash/content.h"

#define BS 4

static const struct kve_hash names[8];
static uint32_t tokens[64];
static uint64_t plain[16]; /* of its blocks, nothing else in them */

static struct kve_event_content content;

static int
setup(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_OF(tokens); i++)
        tokens[i] = 1000 + i;
    assert_int_equal(
        kve_content_hash(tokens, N_OF(tokens), BS, plain, N_OF(plain)), 16);
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    kve_event_content_release(&content);
    return 0;
}

/* n blocks on the GPU, first in their chain. */
static struct kve_event
store_of(size_t n)
{
    return (struct kve_event){ .type = KVE_EVENT_STORED,
        .hashes = names,
        .n_hashes = n,
        .block_size = BS,
        .tokens = tokens,
        .n_tokens = n * BS };
}

static void
read_store(const struct kve_event *event)
{
    assert_int_equal(kve_event_content_read(&content, event), KVE_OK);
}

/* Give the event extra keys from items; out keeps them. */
static void
set_keys(struct kve_event *event, struct kve_buffer *out,
    const struct kve_extra_item *items, size_t n)
{
    out->len = 0;
    assert_int_equal(
        kve_extra_write(items, n, event->n_hashes, out, NULL), KVE_OK);
    event->extra_keys = (struct kve_span){ out->data, out->len };
}

static void
assert_text(struct kve_str text, const char *want)
{
    if (want == NULL) {
        assert_null(text.data);
        return;
    }
    assert_int_equal(text.len, strlen(want));
    assert_memory_equal(text.data, want, text.len);
}

/* ------------------------------------------------------------------ */

static void
test_plain_store(void **state)
{
    struct kve_event event = store_of(3);

    (void)state;
    read_store(&event);
    assert_true(content.complete);
    assert_false(content.images);
    assert_false(content.tokens_left);
    assert_memory_equal(content.hashes, plain, 3 * sizeof(*plain));
    assert_null(content.lora.data);
    assert_null(content.salt.data);
    assert_int_equal(content.n_skipped, 0);
}

/* A12, A14, C23: tokens that are not hashes x block_size belong to none. */
static void
test_counts_that_differ(void **state)
{
    struct kve_event event = store_of(2);

    (void)state;
    for (size_t n = 0; n <= 16; n++) {
        event.n_tokens = n;
        read_store(&event);
        assert_int_equal(content.complete, n == 8);
        assert_int_equal(content.tokens_left, n > 8 && n < 12);
        assert_int_equal(content.hashes != NULL, n == 8);
    }
    event = store_of(2);
    event.tokens = NULL;
    read_store(&event);
    assert_false(content.complete);
    event = store_of(0);
    read_store(&event);
    assert_false(content.complete || content.tokens_left);
    event.n_tokens = 3;
    read_store(&event);
    assert_false(content.complete || content.tokens_left);
    event = store_of(2);
    event.block_size = 0;
    read_store(&event);
    assert_false(content.complete || content.tokens_left);

    /* Their product is 8 in 64 bits. */
    event = store_of(2);
    event.n_hashes = SIZE_MAX / 4 + 3;
    read_store(&event);
    assert_false(content.complete || content.tokens_left);
}

/* C41: off the GPU extra keys must be said. */
static void
test_other_media(void **state)
{
    static const uint8_t nil[] = { 0xc0 }, nils[] = { 0x92, 0xc0, 0xc0 };
    struct kve_event event = store_of(2);

    (void)state;
    event.medium = str("CPU");
    read_store(&event);
    assert_false(content.complete);
    event.extra_keys = (struct kve_span){ nil, sizeof(nil) };
    read_store(&event);
    assert_false(content.complete);
    event.extra_keys = (struct kve_span){ nils, sizeof(nils) };
    read_store(&event);
    assert_true(content.complete);
    assert_memory_equal(content.hashes, plain, 2 * sizeof(*plain));
    event.medium = str("QUANTUM");
    event.extra_keys = (struct kve_span){ NULL, 0 };
    read_store(&event);
    assert_false(content.complete);
    event.medium = str("");
    read_store(&event);
    assert_true(content.complete);
}

/* C19: an adapter by its number only; A22: its name among the keys. */
static void
test_adapters(void **state)
{
    const struct kve_extra_item items[] = {
        { .kind = KVE_EXTRA_TEXT, .block = 0, .text = str("ad-1") },
        { .kind = KVE_EXTRA_TEXT, .block = 0, .text = str("salt-z") },
        { .kind = KVE_EXTRA_TEXT, .block = 1, .text = str("ad-1") },
        { .kind = KVE_EXTRA_IMAGE,
            .block = 1,
            .text = str("imghash"),
            .offset = -3 },
    };
    struct kve_event event = store_of(3);
    struct kve_buffer keys = KVE_BUFFER_INIT;

    (void)state;
    event.lora_name = str("ad-1");
    event.lora_id = (struct kve_int){ 7, true };
    set_keys(&event, &keys, items, N_OF(items));
    read_store(&event);
    assert_true(content.complete);
    assert_true(content.images);
    assert_text(content.lora, "ad-1");
    assert_text(content.salt, "salt-z");
    assert_true(content.hashes[0] == plain[0]);
    assert_true(content.hashes[1] != plain[1]);
    assert_true(content.hashes[2] == plain[2]);

    event = store_of(3);
    event.lora_id = (struct kve_int){ -7, true };
    read_store(&event);
    assert_text(content.lora, "#-7");
    event.lora_name = str("");
    read_store(&event);
    assert_text(content.lora, "#-7");
    kve_buffer_release(&keys);
}

/* A text is the salt where the chain begins, an image elsewhere. */
static void
test_salts(void **state)
{
    const struct kve_extra_item one[] = {
        { .kind = KVE_EXTRA_TEXT, .block = 0, .text = str("x") },
    };
    const struct kve_extra_item two[] = {
        { .kind = KVE_EXTRA_TEXT, .block = 0, .text = str("image") },
        { .kind = KVE_EXTRA_TEXT, .block = 0, .text = str("x") },
        { .kind = KVE_EXTRA_TEXT, .block = 1, .text = str("image") },
    };
    const struct kve_extra_item same[] = {
        { .kind = KVE_EXTRA_TEXT, .block = 0, .text = str("x") },
        { .kind = KVE_EXTRA_TEXT, .block = 0, .text = str("x") },
    };
    struct kve_event event = store_of(2);
    struct kve_buffer keys = KVE_BUFFER_INIT;

    (void)state;
    set_keys(&event, &keys, one, N_OF(one));
    read_store(&event);
    assert_text(content.salt, "x");
    assert_false(content.images);
    assert_memory_equal(content.hashes, plain, 2 * sizeof(*plain));

    event.has_parent = true;
    read_store(&event);
    assert_text(content.salt, NULL);
    assert_true(content.images);
    assert_true(content.hashes[0] != plain[0]);

    /* Said as a field: only an equal text is it. */
    event.has_parent = false;
    event.cache_salt = str("y");
    read_store(&event);
    assert_text(content.salt, "y");
    assert_true(content.images);
    event.cache_salt = str("x");
    read_store(&event);
    assert_text(content.salt, "x");
    assert_false(content.images);
    event.has_parent = true;
    read_store(&event);
    assert_text(content.salt, "x");
    event.has_parent = false;
    event.cache_salt = str(NULL);

    set_keys(&event, &keys, two, N_OF(two));
    read_store(&event);
    assert_text(content.salt, "x");
    assert_true(content.hashes[0] != plain[0]);
    assert_true(content.hashes[1] != plain[1]);

    event.lora_name = str("x");
    set_keys(&event, &keys, same, N_OF(same));
    read_store(&event);
    assert_text(content.salt, "x");
    assert_text(content.lora, "x");
    assert_false(content.images);
    kve_buffer_release(&keys);
}

/* C5: what a store skipped, and whose first block begins the chain then. */
static void
test_skipped(void **state)
{
    static const uint8_t salted[] = { 0x92, 0x91, 0xa1, 's', 0xc0 };
    struct kve_event event = store_of(1);

    (void)state;
    event.has_parent = true;
    event.has_skipped_parent = true;
    event.skipped_tokens = tokens + BS;
    event.n_skipped_tokens = 2 * BS;
    read_store(&event);
    assert_true(content.complete);
    assert_int_equal(content.n_skipped, 2);
    assert_memory_equal(content.skipped, plain + 1, 2 * sizeof(*plain));
    assert_true(content.hashes[0] == plain[0]);

    event.skipped_extra_keys = (struct kve_span){ salted, sizeof(salted) };
    read_store(&event);
    assert_text(content.salt, NULL);
    assert_false(content.images); /* not in the blocks that it names */
    assert_true(content.skipped[0] != plain[1]);
    assert_true(content.skipped[1] == plain[2]);

    event.has_skipped_parent = false;
    read_store(&event);
    assert_text(content.salt, "s");
    assert_memory_equal(content.skipped, plain + 1, 2 * sizeof(*plain));

    /* No bridge where it cannot be told what was skipped. */
    event.n_skipped_tokens = 2 * BS - 1;
    read_store(&event);
    assert_true(content.complete);
    assert_int_equal(content.n_skipped, 0);
    event.n_skipped_tokens = 2 * BS;
    event.skipped_extra_keys.len = 2;
    read_store(&event);
    assert_true(content.complete);
    assert_int_equal(content.n_skipped, 0);
}

/* Extra keys that break off teach nothing: an image may be missing. */
static void
test_broken_keys(void **state)
{
    static const uint8_t whole[] = { 0x92, 0xc0, 0x92, 0xc4, 0x01, 0x07, 0x05 };
    static const uint8_t map[] = { 0x80 };
    struct kve_event event = store_of(2);

    (void)state;
    for (size_t len = 1; len <= sizeof(whole); len++) {
        event.extra_keys = (struct kve_span){ whole, len };
        read_store(&event);
        assert_int_equal(content.complete, len == sizeof(whole));
    }
    assert_true(content.hashes[0] == plain[0]);
    assert_true(content.hashes[1] != plain[1]);
    event.extra_keys = (struct kve_span){ map, sizeof(map) };
    read_store(&event);
    assert_false(content.complete);
}

/* ------------------------------------------------------------------ */
/* Prompts. */

static struct kve_index_query
query_of(const struct kve_query_extra *extras, size_t n)
{
    struct kve_index_query query = KVE_INDEX_QUERY_INIT;

    query.tokens = tokens;
    query.n_tokens = N_OF(tokens);
    query.extras = extras;
    query.n_extras = n;
    return query;
}

static void
hash_prompt(const struct kve_index_query *query, uint64_t *hashes)
{
    struct kve_content_scratch scratch = { NULL, 0 };

    assert_int_equal(
        kve_content_prompt(query, 0, BS, 8, hashes, &scratch), KVE_OK);
    /* From another block on: the same. */
    for (size_t i = 0; i < 8; i++) {
        uint64_t some[8];

        assert_int_equal(
            kve_content_prompt(query, i * BS, BS, 8 - i, some, &scratch),
            KVE_OK);
        assert_memory_equal(some, hashes + i, (8 - i) * sizeof(*some));
    }
    kve_mem_free(scratch.bytes);
}

/* C21, and an image over three blocks: offsets are of the block. */
static void
test_prompt_equals_store(void **state)
{
    const struct kve_extra_item items[] = {
        { .kind = KVE_EXTRA_IMAGE, .block = 1, .text = str("A"), .offset = 2 },
        { .kind = KVE_EXTRA_IMAGE, .block = 2, .text = str("A"), .offset = -2 },
        { .kind = KVE_EXTRA_IMAGE, .block = 3, .text = str("A"), .offset = -6 },
        { .kind = KVE_EXTRA_IMAGE, .block = 3, .text = str("B"), .offset = 1 },
        { .kind = KVE_EXTRA_BYTES,
            .block = 3,
            .bytes = { (const uint8_t *)"digest", 6 } },
        { .kind = KVE_EXTRA_TEXT, .block = 5, .text = str("old") },
    };
    struct kve_query_extra extras[] = {
        { .kind = KVE_EXTRA_IMAGE,
            .start = 6,
            .n_tokens = 7,
            .text = str("A") },
        { .kind = KVE_EXTRA_IMAGE,
            .start = 13,
            .n_tokens = 1,
            .text = str("B") },
        { .kind = KVE_EXTRA_BYTES,
            .block = 3,
            .bytes = { (const uint8_t *)"digest", 6 } },
        { .kind = KVE_EXTRA_TEXT, .block = 5, .text = str("old") },
    };
    struct kve_index_query query = query_of(extras, N_OF(extras));
    struct kve_event event = store_of(8);
    struct kve_buffer keys = KVE_BUFFER_INIT;
    uint64_t hashes[8];

    (void)state;
    event.has_parent = true; /* else block 0 could hold a salt */
    set_keys(&event, &keys, items, N_OF(items));
    read_store(&event);
    assert_true(content.complete);
    hash_prompt(&query, hashes);
    assert_memory_equal(hashes, content.hashes, sizeof(hashes));
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(
            hashes[i] == plain[i], i != 1 && i != 2 && i != 3 && i != 5);

    /* Anything that differs gives other hashes. */
    extras[1].text = str("C");
    hash_prompt(&query, hashes);
    assert_true(hashes[2] == content.hashes[2]);
    assert_true(hashes[3] != content.hashes[3]);
    extras[1].text = str("B");
    extras[0].start = 5;
    hash_prompt(&query, hashes);
    assert_true(hashes[1] != content.hashes[1]);
    query.n_extras = 0;
    hash_prompt(&query, hashes);
    assert_memory_equal(hashes, plain, sizeof(hashes));
    kve_buffer_release(&keys);
}

/* An order that is not of place costs time, not truth. */
static void
test_prompt_out_of_order(void **state)
{
    const struct kve_query_extra straight[] = {
        { .kind = KVE_EXTRA_IMAGE,
            .start = 1,
            .n_tokens = 2,
            .text = str("A") },
        { .kind = KVE_EXTRA_IMAGE,
            .start = 20,
            .n_tokens = 2,
            .text = str("B") },
    };
    const struct kve_query_extra turned[] = { straight[1], straight[0] };
    struct kve_index_query query = query_of(straight, 2);
    uint64_t a[8], b[8];

    (void)state;
    hash_prompt(&query, a);
    query.extras = turned;
    hash_prompt(&query, b);
    assert_memory_equal(a, b, sizeof(a));
    assert_true(a[0] != plain[0] && a[5] != plain[5]);
    assert_true(a[1] == plain[1] && a[4] == plain[4]);
}

/* An identifier of one kind is not one of another, nor are two one. */
static void
test_kinds_apart(void **state)
{
    const struct kve_query_extra kinds[][2] = {
        { { .kind = KVE_EXTRA_IMAGE, .n_tokens = 1, .text = str("ab") } },
        { { .kind = KVE_EXTRA_TEXT, .text = str("ab") } },
        { { .kind = KVE_EXTRA_BYTES, .bytes = { (const uint8_t *)"ab", 2 } } },
        { { .kind = KVE_EXTRA_OTHER, .bytes = { (const uint8_t *)"ab", 2 } } },
        { { .kind = KVE_EXTRA_TEXT, .text = str("a") },
            { .kind = KVE_EXTRA_TEXT, .text = str("b") } },
        { { .kind = KVE_EXTRA_TEXT, .text = str("") },
            { .kind = KVE_EXTRA_TEXT, .text = str("ab") } },
    };
    uint64_t hashes[N_OF(kinds)][8];

    (void)state;
    for (size_t i = 0; i < N_OF(kinds); i++) {
        struct kve_index_query query = query_of(kinds[i], i < 4 ? 1 : 2);

        hash_prompt(&query, hashes[i]);
        assert_true(hashes[i][0] != plain[0]);
        for (size_t k = 0; k < i; k++)
            assert_true(hashes[i][0] != hashes[k][0]);
    }
}

/* ------------------------------------------------------------------ */

static void
test_without_memory(void **state)
{
    const struct kve_extra_item items[] = {
        { .kind = KVE_EXTRA_IMAGE, .block = 1, .text = str("A"), .offset = 2 },
    };
    const struct kve_query_extra extras[] = {
        { .kind = KVE_EXTRA_IMAGE,
            .start = 6,
            .n_tokens = 2,
            .text = str("A") },
    };
    struct kve_index_query query = query_of(extras, 1);
    struct kve_event event = store_of(3);
    struct kve_buffer keys = KVE_BUFFER_INIT;
    int64_t before;
    unsigned failed = 0;

    (void)state;
    set_keys(&event, &keys, items, N_OF(items));
    kve_event_content_release(&content);
    before = kve_mem_live();
    for (uint64_t n = 1;; n++) {
        struct kve_content_scratch scratch = { NULL, 0 };
        uint64_t hashes[3];
        kve_status status, asked;

        kve_mem_fail_at(n, false);
        status = kve_event_content_read(&content, &event);
        asked = kve_content_prompt(&query, 0, BS, 3, hashes, &scratch);
        bool hit = kve_mem_failed();
        kve_mem_fail_at(0, false);

        assert_int_equal(hit, status == KVE_E_NOMEM || asked == KVE_E_NOMEM);
        assert_int_equal(content.complete, status == KVE_OK);
        read_store(&event); /* goes on after it */
        assert_true(content.complete);
        kve_event_content_release(&content);
        kve_mem_free(scratch.bytes);
        assert_int_equal(kve_mem_live(), before);
        if (!hit)
            break;
        failed++;
    }
    assert_true(failed >= 3);
    kve_buffer_release(&keys);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_store),
        cmocka_unit_test(test_counts_that_differ),
        cmocka_unit_test(test_other_media),
        cmocka_unit_test(test_adapters),
        cmocka_unit_test(test_salts),
        cmocka_unit_test(test_skipped),
        cmocka_unit_test(test_broken_keys),
        cmocka_unit_test(test_prompt_equals_store),
        cmocka_unit_test(test_prompt_out_of_order),
        cmocka_unit_test(test_kinds_apart),
        cmocka_unit_test(test_without_memory),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
