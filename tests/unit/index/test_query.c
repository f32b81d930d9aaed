/*
 * What is special about questions: Dynamo's hashes, who is asked for, more rows
 * than there is room for, many instances, sizes that are not said, memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"

#include <kvevents/hash.h>
#include <kvevents/index.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_SIZE 4
#define MANY 1024

struct rows {
    kve_index *index;
    kve_namespace ns;
    kve_index_reader *reader;
    kve_instance ids[MANY];
    struct kve_index_row room[MANY];
    struct kve_index_query query;
    struct kve_index_answer answer;
};

static int
setup(void **state)
{
    struct rows *r = calloc(1, sizeof(*r));

    assert_non_null(r);
    assert_int_equal(kve_index_create(NULL, &r->index, NULL), KVE_OK);
    assert_int_equal(
        kve_index_namespace(r->index, "m", "", &r->ns, NULL), KVE_OK);
    assert_int_equal(
        kve_index_reader_create(r->index, &r->reader, NULL), KVE_OK);
    kve_index_query_init(&r->query);
    kve_index_answer_init(&r->answer);
    r->query.ns = r->ns;
    r->answer.rows = r->room;
    r->answer.cap = MANY;
    *state = r;
    return 0;
}

static int
teardown(void **state)
{
    struct rows *r = *state;

    kve_index_reader_destroy(r->reader);
    kve_index_destroy(r->index);
    free(r);
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

static void
add(struct rows *r, unsigned i)
{
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    char worker[16];

    snprintf(worker, sizeof(worker), "w%u", i);
    spec.ns = r->ns;
    spec.worker = worker;
    assert_int_equal(kve_index_add(r->index, &spec, &r->ids[i], NULL), KVE_OK);
}

/* n blocks of tokens first, first + 1, ..., as one chain of hashes from hash
 * on. */
struct chain {
    uint32_t first;
    uint64_t hash;
    size_t n;
    uint32_t block_size;
    const char *lora;
    const char *salt; /* sent as a field */
};

static void
store(struct rows *r, unsigned i, const struct chain *chain)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    uint32_t tokens[1024];
    struct kve_hash hashes[256];
    struct kve_event ev = { .type = KVE_EVENT_STORED,
        .tier = KVE_TIER_GPU,
        .hashes = hashes,
        .n_hashes = chain->n,
        .tokens = tokens,
        .n_tokens = chain->n * chain->block_size,
        .block_size = chain->block_size };
    struct kve_index_applied applied = KVE_INDEX_APPLIED_INIT;

    assert_true(ev.n_tokens <= 1024 && chain->n <= 256);
    for (size_t k = 0; k < ev.n_tokens; k++)
        tokens[k] = chain->first + (uint32_t)k;
    for (size_t k = 0; k < chain->n; k++)
        hashes[k] = (struct kve_hash){ NULL, { chain->hash + k } };
    if (chain->lora != NULL)
        ev.lora_name = (struct kve_str){ chain->lora, strlen(chain->lora) };
    if (chain->salt != NULL)
        ev.cache_salt = (struct kve_str){ chain->salt, strlen(chain->salt) };
    view.events = &ev;
    view.n_events = 1;
    assert_int_equal(
        kve_index_apply(r->index, r->ids[i], &view, NULL, 0, &applied, NULL),
        KVE_OK);
    assert_int_equal(applied.stored, chain->n);
}

static void
ask(struct rows *r)
{
    assert_int_equal(
        kve_index_query(r->reader, &r->query, &r->answer, NULL), KVE_OK);
}

static uint32_t
longest(const struct rows *r, unsigned i)
{
    for (size_t k = 0; k < r->answer.n; k++)
        if (r->room[k].instance == r->ids[i])
            return r->room[k].longest;
    return 0;
}

/* ---- Dynamo ----------------------------------------------------------- */

/* Its clients' hashes of the tokens first, first + 1, ... */
static void
dynamo_hashes(uint32_t first, size_t n, const char *lora, const char *salt,
    uint64_t *hashes)
{
    struct kve_dynamo_prompt prompt = KVE_DYNAMO_PROMPT_INIT;
    uint32_t tokens[8 * BLOCK_SIZE];
    size_t all;

    for (uint32_t k = 0; k < n * BLOCK_SIZE; k++)
        tokens[k] = first + k;
    prompt.tokens = tokens;
    prompt.n_tokens = n * BLOCK_SIZE;
    prompt.block_size = BLOCK_SIZE;
    if (lora != NULL)
        prompt.lora_name = (struct kve_str){ lora, strlen(lora) };
    if (salt != NULL)
        prompt.salt = (struct kve_str){ salt, strlen(salt) };
    assert_int_equal(kve_dynamo_hash(&prompt, hashes, n, &all, NULL), KVE_OK);
    assert_int_equal(all, n);
}

static void
test_dynamo_hashes_find_plain_and_seeded_chains(void **state)
{
    struct rows *r = *state;
    uint64_t hashes[8];

    for (unsigned i = 0; i < 4; i++)
        add(r, i);
    store(r, 0, &(struct chain){ 1, 100, 8, BLOCK_SIZE, NULL, NULL });
    store(r, 1, &(struct chain){ 1, 200, 6, BLOCK_SIZE, "ad", NULL });
    store(r, 2,
        &(struct chain){
            1, 300, 5, BLOCK_SIZE, NULL, "dynamo-cache-salt:tenant" });
    store(r, 3, &(struct chain){ 1, 400, 4, BLOCK_SIZE, NULL, "other" });
    r->query.dynamo = hashes;
    r->query.n_dynamo = 8;
    r->query.block_size = BLOCK_SIZE;

    dynamo_hashes(1, 8, NULL, NULL, hashes);
    ask(r);
    assert_int_equal(r->answer.total, 1);
    assert_int_equal(longest(r, 0), 32);

    dynamo_hashes(1, 8, "ad", NULL, hashes);
    ask(r);
    assert_int_equal(r->answer.total, 1);
    assert_int_equal(longest(r, 1), 24);

    /* The prefix belongs to Dynamo's salts and is cut off before seeding; a
     * salt without it has no hashes of Dynamo's. */
    dynamo_hashes(1, 8, NULL, "tenant", hashes);
    ask(r);
    assert_int_equal(r->answer.total, 1);
    assert_int_equal(longest(r, 2), 20);

    /* Not the whole chain, and the one size there is. */
    dynamo_hashes(1, 8, NULL, NULL, hashes);
    hashes[3]++;
    r->query.block_size = 0;
    r->query.recompute_last = 1;
    ask(r);
    assert_int_equal(longest(r, 0), 12);
    r->query.n_dynamo = 3;
    ask(r);
    assert_int_equal(longest(r, 0), 8);
}

/* ---- who is asked for ------------------------------------------------- */

/* Instance i holds i % 7 blocks more than 10. */
static void
store_many(struct rows *r, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        add(r, i);
        store(r, i,
            &(struct chain){ 1, 100, 10 + i % 7, BLOCK_SIZE, NULL, NULL });
    }
}

static void
fill_tokens(struct rows *r, uint32_t *tokens, size_t n)
{
    for (size_t k = 0; k < n; k++)
        tokens[k] = 1 + (uint32_t)k;
    r->query.tokens = tokens;
    r->query.n_tokens = n;
}

static void
test_many_rows_are_sorted_and_cut(void **state)
{
    struct rows *r = *state;
    uint32_t tokens[200];
    size_t n16 = 0;

    store_many(r, MANY);
    fill_tokens(r, tokens, 200);
    ask(r);
    assert_int_equal(r->answer.total, MANY);
    assert_int_equal(r->answer.n, MANY);
    for (size_t k = 0; k < MANY; k++) {
        assert_true(k == 0 || r->room[k].longest <= r->room[k - 1].longest);
        n16 += r->room[k].longest == 16 * BLOCK_SIZE;
    }
    for (unsigned i = 0; i < MANY; i++)
        assert_int_equal(longest(r, i), (10 + i % 7) * BLOCK_SIZE);

    r->answer.cap = 3;
    ask(r);
    assert_int_equal(r->answer.total, MANY);
    assert_int_equal(r->answer.n, 3);
    assert_true(n16 > 3);
    for (size_t k = 0; k < 3; k++)
        assert_int_equal(r->room[k].longest, 16 * BLOCK_SIZE);
    r->answer.cap = 0;
    r->answer.rows = NULL;
    ask(r);
    assert_int_equal(r->answer.total, MANY);
    assert_int_equal(r->answer.n, 0);
}

static void
test_rows_of_some_only(void **state)
{
    struct rows *r = *state;
    uint32_t tokens[200];
    kve_instance only[] = { 0, 0, 0, UINT64_MAX, 77 };

    store_many(r, 20);
    fill_tokens(r, tokens, 200);
    only[0] = r->ids[3];
    only[1] = r->ids[12];
    only[2] = r->ids[12];
    r->query.only = only;
    r->query.n_only = 5;
    ask(r);
    assert_int_equal(r->answer.total, 2);
    assert_int_equal(longest(r, 3), 13 * BLOCK_SIZE);
    assert_int_equal(longest(r, 12), 15 * BLOCK_SIZE);
    /* A name of an instance that was there before is nobody's. */
    assert_int_equal(kve_index_drop(r->index, r->ids[3], NULL), KVE_OK);
    add(r, 3);
    store(r, 3, &(struct chain){ 1, 100, 4, BLOCK_SIZE, NULL, NULL });
    ask(r);
    assert_int_equal(r->answer.total, 1);
    r->query.n_only = 0;
    ask(r);
    assert_int_equal(r->answer.total, 0);
    r->query.only = NULL;
    ask(r);
    assert_int_equal(r->answer.total, 20);
}

static void
test_the_order_of_tiers(void **state)
{
    struct rows *r = *state;
    uint32_t tokens[40];
    const uint8_t order[] = { KVE_TIER_DISK, KVE_TIER_GPU };

    store_many(r, 1);
    fill_tokens(r, tokens, 40);
    ask(r);
    assert_int_equal(r->room[0].alone[KVE_TIER_GPU], 40);
    assert_int_equal(r->room[0].upto[0], 40);
    assert_int_equal(r->room[0].upto[2], 40);
    assert_int_equal(r->room[0].upto[3], 0);
    r->query.tiers = order;
    r->query.n_tiers = 2;
    ask(r);
    assert_int_equal(r->room[0].upto[0], 0);
    assert_int_equal(r->room[0].upto[1], 40);
    assert_int_equal(r->room[0].upto[2], 0);
    assert_int_equal(r->room[0].longest, 40);
    /* Not in the sums, but on its tier. */
    r->query.n_tiers = 1;
    ask(r);
    assert_int_equal(r->room[0].upto[0], 0);
    assert_int_equal(r->room[0].longest, 40);
}

/* ---- questions that can not be answered -------------------------------- */

static void
refuse(struct rows *r, kve_status status, const char *text)
{
    struct kve_error err;

    assert_int_equal(
        kve_index_query(r->reader, &r->query, &r->answer, &err), status);
    assert_non_null(strstr(err.detail, text));
}

static void
test_questions_that_are_refused(void **state)
{
    struct rows *r = *state;
    const uint64_t contents[] = { 1, 2 };
    const struct kve_hash hash = { NULL, { 100 } };
    const uint8_t tiers[] = { 5, 1, 1, 1, 1, 1 };
    uint32_t tokens[40];

    refuse(r, KVE_E_INVAL, "exactly one");
    fill_tokens(r, tokens, 40);
    r->query.contents = contents;
    r->query.n_contents = 2;
    refuse(r, KVE_E_INVAL, "exactly one");
    r->query.tokens = NULL;
    r->query.ns = 77;
    refuse(r, KVE_E_NOT_FOUND, "77");
    r->query.ns = r->ns;
    r->query.tiers = tiers;
    r->query.n_tiers = 1;
    refuse(r, KVE_E_INVAL, "tier 5");
    r->query.n_tiers = 6;
    refuse(r, KVE_E_INVAL, "6 tiers");
    r->query.n_tiers = 0;
    r->query.n_contents = SIZE_MAX / 2;
    refuse(r, KVE_E_INVAL, "too long");
    r->query.n_contents = 2;
    ask(r); /* nothing is there: no size, no rows */
    assert_int_equal(r->answer.total, 0);

    /* Two sizes begin chains: which one is meant? */
    add(r, 0);
    store(r, 0, &(struct chain){ 1, 100, 2, 4, NULL, NULL });
    ask(r);
    store(r, 0, &(struct chain){ 1, 200, 2, 8, NULL, NULL });
    refuse(r, KVE_E_INVAL, "block_size");
    r->query.contents = NULL;
    r->query.hashes = &hash;
    r->query.n_hashes = 1;
    refuse(r, KVE_E_INVAL, "block_size");
    r->query.block_size = 4;
    ask(r);
    assert_int_equal(longest(r, 0), 4);
    /* Tokens need none. */
    r->query.hashes = NULL;
    r->query.block_size = 0;
    fill_tokens(r, tokens, 40);
    ask(r);
    assert_int_equal(longest(r, 0), 16);
}

static void
test_an_empty_question(void **state)
{
    struct rows *r = *state;
    uint32_t tokens[4] = { 1, 2, 3, 4 };

    store_many(r, 2);
    r->query.tokens = tokens;
    r->query.n_tokens = 0;
    r->query.recompute_last = 1;
    ask(r);
    assert_int_equal(r->answer.total, 0);
    r->query.n_tokens = 3; /* less than a block */
    ask(r);
    assert_int_equal(r->answer.total, 0);
    r->query.n_tokens = 4; /* at least one token is computed */
    ask(r);
    assert_int_equal(r->answer.total, 0);
    r->query.recompute_last = 0;
    ask(r);
    assert_int_equal(r->answer.total, 2);
}

/* ---- memory ------------------------------------------------------------ */

static void
test_nothing_is_allocated_once_the_length_was_seen(void **state)
{
    struct rows *r = *state;
    struct kve_index_stats before = KVE_INDEX_STATS_INIT;
    struct kve_index_stats after = KVE_INDEX_STATS_INIT;
    struct kve_hash hashes[8];
    uint32_t tokens[200];

    store_many(r, 100);
    for (size_t k = 0; k < 8; k++)
        hashes[k] = (struct kve_hash){ NULL, { 100 + k } };
    for (unsigned round = 0; round < 2; round++) {
        r->query.hashes = NULL;
        fill_tokens(r, tokens, 200);
        ask(r);
        r->query.tokens = NULL;
        r->query.hashes = hashes;
        r->query.n_hashes = 8;
        ask(r);
        if (round == 0) {
            assert_int_equal(kve_index_get_stats(r->index, 0, &before), KVE_OK);
            kve_mem_fail_at(1, true); /* from now on none would succeed */
        }
    }
    assert_false(kve_mem_failed());
    kve_mem_fail_at(0, false);
    assert_int_equal(kve_index_get_stats(r->index, 0, &after), KVE_OK);
    assert_int_equal(after.bytes, before.bytes);
}

static void
test_scratch_that_can_not_be_had(void **state)
{
    struct rows *r = *state;
    struct kve_error err;
    uint32_t tokens[200];
    uint64_t n = 0;
    kve_status status;

    store_many(r, 100);
    fill_tokens(r, tokens, 200);
    do {
        kve_index_reader_destroy(r->reader);
        r->reader = NULL;
        assert_int_equal(
            kve_index_reader_create(r->index, &r->reader, NULL), KVE_OK);
        kve_mem_fail_at(++n, false);
        status = kve_index_query(r->reader, &r->query, &r->answer, &err);
        kve_mem_fail_at(0, false);
        if (status != KVE_OK)
            assert_int_equal(status, KVE_E_NOMEM);
    } while (status != KVE_OK);
    assert_true(n > 3);
    assert_int_equal(r->answer.total, 100);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_dynamo_hashes_find_plain_and_seeded_chains),
        TEST(test_many_rows_are_sorted_and_cut),
        TEST(test_rows_of_some_only),
        TEST(test_the_order_of_tiers),
        TEST(test_questions_that_are_refused),
        TEST(test_an_empty_question),
        TEST(test_nothing_is_allocated_once_the_length_was_seen),
        TEST(test_scratch_that_can_not_be_had),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
