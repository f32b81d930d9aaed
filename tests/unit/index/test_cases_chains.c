/*
 * test_cases_chains.c - cases from the field: where a block stands, and what
 * it is; parents that nobody knows, sizes, adapters, images, foreign hashes.
 *
 * Blocks have two tokens unless said. Index and reference are compared after
 * every line; the numbers are what must come out.
 */
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- parents ------------------------------------------------------- */

static void
test_c4_a_parent_that_comes_later(void **state)
{
    (void)state;
    run("+A", "A: S[1]3", "A: S[3]4");
    assert_int_equal(copies('A', "3"), 1);
    assert_int_equal(copies('A', "4"), 1);
    assert_true(holder('A', "3").taught);
    assert_false(holder('A', "3").placed);
    assert_int_equal(gpu('A', "3,4"), 0); /* no start of any prompt */
    assert_int_equal(counter('A', KVE_COUNTER_INDEX_WAITING), 1);
    run("A: S[-]1");
    assert_int_equal(gpu('A', "1,3,4"), 6);
    assert_int_equal(gpu('A', "3,4"), 0);
    assert_true(holder('A', "4").placed);
    assert_int_equal(holder('A', "4").end, 6);
    assert_int_equal(counter('A', KVE_COUNTER_INDEX_HEALED), 2);
}

static void
test_c4_two_generations_wait(void **state)
{
    (void)state;
    run("+A", "A: S[5]6", "A: S[3]4,5", "A: S[-]1", "A: S[2]3");
    assert_int_equal(gpu('A', "1,2,3,4,5,6"), 2);
    run("A: S[1]2");
    assert_int_equal(gpu('A', "1,2,3,4,5,6"), 12);
    /* What waits is forgotten like all else. */
    run("A: S[80]81", "A: R 81", "A: S[-]80");
    assert_int_equal(gpu('A', "80,81"), 2);
}

static void
test_c5_a_part_that_was_skipped(void **state)
{
    (void)state;
    run("+A", "+B", "A: S[-]10", "A: S[99]12 kp=10 kt=55");
    assert_int_equal(gpu('A', "10,=55,12"), 6);
    assert_int_equal(gpu('A', "10,=55"), 2); /* nothing held ends there */
    assert_int_equal(n_holders("99"), 0);
    assert_int_equal(counter('A', KVE_COUNTER_INDEX_BRIDGED), 1);
    assert_int_equal(counter('A', KVE_COUNTER_INDEX_WAITING), 0);
    run("A: R 12");
    assert_int_equal(gpu('A', "10,=55,12"), 2);

    /* Without the fields it waits, and is counted. */
    run("B: S[-]10", "B: S[99]12");
    assert_int_equal(gpu('B', "10,=55,12"), 2);
    assert_false(holder('B', "12").placed);
    assert_int_equal(counter('B', KVE_COUNTER_INDEX_WAITING), 1);
}

static void
test_c35_children_of_what_came_without_events(void **state)
{
    (void)state;
    run("+A", "A: S[7]8,9", "A: S[9]10", "A: R 8");
    assert_int_equal(copies('A', "9"), 1);
    assert_int_equal(copies('A', "10"), 1);
    run("A: S[-]7");
    assert_int_equal(gpu('A', "7,8,9,10"), 2); /* 8 is a hole */
    run("A: S[7]8");
    assert_int_equal(gpu('A', "7,8,9,10"), 8);
}

static void
test_chains_do_not_contain_themselves(void **state)
{
    (void)state;
    run("+A", "A: S[2]1", "A: S[1]2");
    assert_int_equal(gpu('A', "1,2"), 0);
    assert_int_equal(gpu('A', "2,1"), 0);
    run("A: S[3]3");
    assert_int_equal(gpu('A', "3,3"), 0);
    run("A: S[-]4,5; S[5]4");
    assert_int_equal(gpu('A', "4,5,4"), 4);
    assert_int_equal(copies('A', "4"), 2);
}

/* ---- what is not said ---------------------------------------------- */

static void
test_c40_the_place_is_taught_later_in_the_batch(void **state)
{
    (void)state;
    run("+A", "+B",
        "A: S[-]2 g=0 k=swa w=3 b=2 t=*1,2,3; S[-]1,2,3 g=1 k=full");
    assert_true(holder('A', "2").placed);
    assert_int_equal(holder('A', "2").end, 4);
    assert_int_equal(gpu('A', "1,2,3"), 4);
    assert_int_equal(counter('A', KVE_COUNTER_INDEX_TAUGHT), 1);

    /* The store that would have taught it was lost. */
    run("B: S[-]2 g=0 k=swa w=3 b=2 t=*1,2,3");
    assert_int_equal(copies('B', "2"), 1);
    assert_false(holder('B', "2").taught);
    assert_int_equal(gpu('B', "1,2,3"), 0);
    assert_int_equal(gpu('B', "2"), 0);
    assert_int_equal(gpu('B', "1"), 0);
}

static void
test_c41_tokens_without_keys_off_the_gpu(void **state)
{
    (void)state;
    run("+A", "A: S[-]1 t=77 e=X:0", "A: S[-]1,2 t=7788 @CPU");
    assert_int_equal(holder('A', "1").end, 2);
    assert_false(holder('A', "2").taught);
    asking.image = "X";
    assert_int_equal(alone('A', KVE_TIER_CPU, "=7788"), 2);
    assert_int_equal(gpu('A', "=7788"), 2);
    asking.image = NULL;
    assert_int_equal(alone('A', KVE_TIER_CPU, "=7788"), 0);
    assert_int_equal(gpu('A', "=7788"), 0);
    /* Keys that say there are none teach. */
    run("A: S[-]3,4 t=6655 @CPU e=");
    assert_int_equal(alone('A', KVE_TIER_CPU, "=6655"), 4);
}

static void
test_a16_a_tier_without_tokens(void **state)
{
    (void)state;
    run("+A", "A: S[-]14,15", "A: S[-]14,15,16 @CPU b=0 t=", "A: R 14,15");
    assert_int_equal(gpu('A', "14,15"), 0);
    assert_int_equal(alone('A', KVE_TIER_CPU, "14,15,16"), 4);
    assert_int_equal(copies('A', "16"), 1);
    assert_false(holder('A', "16").taught);
    assert_int_equal(counter('A', KVE_COUNTER_INDEX_HASH_ONLY), 1);
}

static void
test_a12_a14_counts_that_do_not_fit(void **state)
{
    struct kve_index_instance known;

    (void)state;
    run("+A", "A: S[-]11,12 b=4 t=01234", "A: S[-]13 t=123456",
        "A: S[-]14,15,16 t=123", "A: S[-] t=1234");
    assert_int_equal(gpu('A', "=01234"), 0);
    assert_int_equal(gpu('A', "=123456"), 0);
    assert_int_equal(gpu('A', "=1234"), 0);
    assert_int_equal(copies('A', "11"), 1);
    assert_int_equal(copies('A', "16"), 1);
    assert_int_equal(
        kve_index_get_instance(rig->index, world_id(rig, 'A'), &known), KVE_OK);
    assert_int_equal(known.hash_only, 6);
    run("A: S[-]11,12 b=4 t=01234567");
    assert_int_equal(gpu('A', "=01234567"), 8);
}

/* ---- whose chain it is --------------------------------------------- */

static void
test_c19_adapters_do_not_mix(void **state)
{
    (void)state;
    run("+A", "+B", "+C", "A: S[-]1", "B: S[-]1 lora=ad-1",
        "C: S[-]1 id=7; S[1]2");
    assert_int_equal(gpu('A', "1"), 2);
    assert_int_equal(gpu('B', "1"), 0);
    assert_int_equal(gpu('C', "1"), 0);
    asking.lora = "ad-1";
    assert_int_equal(gpu('A', "1"), 0);
    assert_int_equal(gpu('B', "1"), 2);
    asking.lora = "#7";
    assert_int_equal(gpu('B', "1"), 0);
    assert_int_equal(gpu('C', "1,2"), 4);
    asking.lora = "ad-2";
    assert_int_equal(gpu('B', "1"), 0);
}

static void
test_c19_a_salt_is_the_chains(void **state)
{
    (void)state;
    run("+A", "+B", "A: S[-]1 e=~tenant", "A: S[1]2 e=", "A: S[2]3 e=");
    assert_int_equal(gpu('A', "1,2,3"), 0);
    asking.salt = "tenant";
    assert_int_equal(gpu('A', "1,2,3"), 6);
    asking.salt = "tenan";
    assert_int_equal(gpu('A', "1,2,3"), 0);

    /* Behind an unknown parent there is no salt, and not the absent one. */
    asking.salt = NULL;
    run("B: S[1]2 e=", "B: S[2]3 e=");
    assert_int_equal(gpu('B', "2,3"), 0);
    assert_int_equal(gpu('B', "1,2,3"), 0);
    run("B: S[-]1 e=~tenant");
    assert_int_equal(gpu('B', "1,2,3"), 0);
    asking.salt = "tenant";
    assert_int_equal(gpu('B', "1,2,3"), 6);
}

static void
test_a22_an_adapter_in_the_keys_is_no_image(void **state)
{
    (void)state;
    run("+A", "A: S[-]1,2,3 lora=ad-1 e=~ad-1+~salt-z/~ad-1+img:-2/-");
    asking.lora = "ad-1";
    asking.salt = "salt-z";
    assert_int_equal(gpu('A', "1,2,3"), 2);
    asking.salt = NULL;
    assert_int_equal(gpu('A', "1,2,3"), 0);
}

static void
test_c21_images_that_differ(void **state)
{
    (void)state;
    run("+A", "+B", "A: S[-]1 t=77 e=X:0", "B: S[-]1 t=77 e=Y:0");
    assert_int_equal(gpu('A', "=77"), 0);
    assert_int_equal(gpu('B', "=77"), 0);
    asking.image = "X";
    assert_int_equal(gpu('A', "=77"), 2);
    assert_int_equal(gpu('B', "=77"), 0);
    asking.image = "Y";
    assert_int_equal(gpu('A', "=77"), 0);
    assert_int_equal(gpu('B', "=77"), 2);
    asking.image = "Z";
    assert_int_equal(gpu('A', "=77"), 0);
}

/* ---- sizes --------------------------------------------------------- */

static void
test_c22_sizes_are_learnt(void **state)
{
    struct kve_index_query q = KVE_INDEX_QUERY_INIT;
    struct kve_index_answer answer = KVE_INDEX_ANSWER_INIT;
    struct kve_index_instance known;
    struct kve_index_row rows[4];
    uint64_t contents[2];
    uint32_t tokens[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };

    (void)state;
    run("+A", "+B", "A: S[-]1,2 b=4 t=12345678", "B: S[-]1 b=8 t=12345678");
    assert_int_equal(gpu('A', "=12345678"), 8);
    assert_int_equal(gpu('B', "=12345678"), 8);
    assert_int_equal(gpu('A', "=1234567"), 4);
    assert_int_equal(gpu('B', "=1234567"), 0);
    assert_int_equal(
        kve_index_get_instance(rig->index, world_id(rig, 'A'), &known), KVE_OK);
    assert_int_equal(known.n_block_sizes, 1);
    assert_int_equal(known.block_sizes[0], 4);
    assert_int_equal(
        kve_index_get_instance(rig->index, world_id(rig, 'B'), &known), KVE_OK);
    assert_int_equal(known.block_sizes[0], 8);

    /* Contents are of one size, and match what has that size. */
    contents[0] = ref_content(tokens, 4);
    contents[1] = ref_content(tokens + 4, 4);
    q.ns = rig->ns[0];
    q.contents = contents;
    q.n_contents = 2;
    q.block_size = 4;
    answer.rows = rows;
    answer.cap = 4;
    assert_int_equal(kve_index_query(rig->reader, &q, &answer, NULL), KVE_OK);
    assert_int_equal(answer.n, 1);
    assert_int_equal(rows[0].instance, world_id(rig, 'A'));
    assert_int_equal(rows[0].longest, 8);
}

static void
test_c23_blocks_smaller_than_anything_expected(void **state)
{
    (void)state;
    run("+A", "A: S[-]1 b=8 t=12345678 e=img:3", "A: S[-]2,3 t=123456",
        "A: S[-]4,5 t=12345");
    assert_int_equal(gpu('A', "=12345678"), 0);
    assert_int_equal(gpu('A', "=123456"), 0);
    assert_int_equal(copies('A', "2"), 1);
    assert_int_equal(copies('A', "5"), 1);
    assert_int_equal(counter('A', KVE_COUNTER_INDEX_UNITS_REST), 1);
}

/* 64 tokens as digits. */
#define SIXTEEN "1234567812345678"
#define FORTY_EIGHT SIXTEEN SIXTEEN SIXTEEN
#define SIXTY_FOUR FORTY_EIGHT SIXTEEN

static void
test_c25_a_chunk_is_there_whole_or_not(void **state)
{
    (void)state;
    run("+A", "A: S[-]4 @CPU b=64 t=" SIXTY_FOUR " e=",
        "A: S[-]1,2 b=16 t=" SIXTEEN SIXTEEN);
    assert_int_equal(alone('A', KVE_TIER_CPU, "=" FORTY_EIGHT), 0);
    assert_int_equal(alone('A', KVE_TIER_CPU, "=" SIXTY_FOUR), 64);
    assert_int_equal(gpu('A', "=" SIXTY_FOUR), 32);
    assert_int_equal(upto('A', 1, "=" FORTY_EIGHT), 32);
    assert_int_equal(upto('A', 1, "=" SIXTY_FOUR), 64);
    asking.recompute_last = true;
    assert_int_equal(alone('A', KVE_TIER_CPU, "=" SIXTY_FOUR), 0);
}

static void
test_c26_hashes_finer_than_blocks(void **state)
{
    struct kve_index_instance known;
    char line[1024] = "A: S[-]";
    char prompt[2048] = "=";

    (void)state;
    for (unsigned i = 1; i <= 64; i++)
        (void)sprintf(line + strlen(line), "%s%u", i > 1 ? "," : "", i);
    strcat(line, " b=4 t=" SIXTY_FOUR SIXTY_FOUR SIXTY_FOUR SIXTY_FOUR);
    run("+A", line);
    strcat(prompt, SIXTY_FOUR SIXTY_FOUR SIXTY_FOUR SIXTY_FOUR);
    assert_int_equal(gpu('A', prompt), 256);
    strcat(prompt, SIXTEEN);
    assert_int_equal(gpu('A', prompt), 256);
    prompt[1 + 203] = '\0';
    assert_int_equal(gpu('A', prompt), 200);
    run("A: S[-]900 b=256 t=" SIXTY_FOUR SIXTY_FOUR SIXTY_FOUR SIXTY_FOUR);
    assert_int_equal(gpu('A', prompt), 200);
    assert_int_equal(
        kve_index_get_instance(rig->index, world_id(rig, 'A'), &known), KVE_OK);
    assert_int_equal(known.n_block_sizes, 2);
    assert_int_equal(known.block_sizes[0] + known.block_sizes[1], 260);
}

static void
test_sizes_in_one_chain(void **state)
{
    (void)state;
    run("+A", "A: S[-]1 b=4 t=1234; S[1]2,3 b=2 t=5678; S[3]4 b=1 t=9");
    assert_int_equal(gpu('A', "=123456789"), 9);
    assert_int_equal(gpu('A', "=12345678"), 8);
    assert_int_equal(gpu('A', "=1234567"), 6);
    run("A: R 2");
    assert_int_equal(gpu('A', "=123456789"), 4);
}

/* ---- hashes of engines --------------------------------------------- */

static void
test_c33_hashes_that_differ_between_workers(void **state)
{
    (void)state;
    run("+A", "+B", "A: S[-]1 t=12", "B: S[-]900 t=12");
    assert_int_equal(gpu('A', "=12"), 2);
    assert_int_equal(gpu('B', "=12"), 2);
    assert_int_equal(n_holders("1"), 1);
    assert_int_equal(n_holders("900"), 1);

    /* ... and the same hash for another block. */
    run("A: S[1]5 t=34", "B: S[900]5 t=56; S[5]6 t=78");
    assert_int_equal(gpu('A', "=1234"), 4);
    assert_int_equal(gpu('B', "=1234"), 2);
    assert_int_equal(gpu('B', "=125678"), 6);
    run("A: R 5");
    assert_int_equal(gpu('B', "=125678"), 6);
    assert_int_equal(gpu('A', "=1234"), 2);
}

static void
test_a8_a9_forms_of_hashes(void **state)
{
    struct world_opts opts = { .no_mixed_forms = true };

    (void)state;
    run("+A", "+B", "A: S[-]7", "B: S[-]7*32", "B: S[7*32]8*16,9*5");
    assert_int_equal(n_holders("7*32"), 2); /* A's by its last 8 bytes */
    assert_int_equal(n_holders("7"), 1);
    assert_int_equal(gpu('B', "7,8,9"), 6);
    run("B: R 8"); /* no integer of that number is there */
    assert_int_equal(gpu('B', "7,8,9"), 6);
    assert_int_equal(counter('B', KVE_COUNTER_INDEX_UNMATCHED), 1);

    /* Inside an instance bytes are also looked for among its integers. */
    run("A: S[7*32]8", "A: S[8*16]9*32");
    assert_int_equal(gpu('A', "7,8,9"), 6);
    run("A: R 8*32");
    assert_int_equal(copies('A', "8"), 0);
    assert_int_equal(gpu('A', "7,8,9"), 2);
    assert_true(counter('A', KVE_COUNTER_INDEX_MIXED_FORMS) > 0);

    rig_options(&opts);
    run("+A", "A: S[-]7", "A: R 7*32", "A: S[7*32]8");
    assert_int_equal(gpu('A', "7,8"), 2);
    assert_false(holder('A', "8").placed);
    assert_int_equal(counter('A', KVE_COUNTER_INDEX_MIXED_FORMS), 0);
}

static void
test_questions_by_engine_hash(void **state)
{
    struct kve_index_query q = KVE_INDEX_QUERY_INIT;
    struct kve_index_answer answer = KVE_INDEX_ANSWER_INIT;
    struct kve_index_row rows[4];
    struct kve_hash hashes[4];

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        hashes[i] = (struct kve_hash){ NULL, { i + 1 } };
    run("+A", "+B", "hashes 2 1,2,3,4",
        "A: S[-]1,2; S[9]3 @CPU e=", "B: S[-]2,3,4");
    q.ns = rig->ns[0];
    q.hashes = hashes;
    q.n_hashes = 4;
    q.block_size = 2;
    answer.rows = rows;
    answer.cap = 4;
    assert_int_equal(kve_index_query(rig->reader, &q, &answer, NULL), KVE_OK);
    assert_int_equal(answer.n, 1);
    assert_int_equal(rows[0].instance, world_id(rig, 'A'));
    assert_int_equal(rows[0].alone[KVE_TIER_GPU], 4);
    assert_int_equal(rows[0].alone[KVE_TIER_CPU], 0);
    assert_int_equal(rows[0].upto[1], 6);
}

/* Contents that the caller computed teach as tokens do. */
static void
test_contents_given_by_the_caller(void **state)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_index_applied applied = KVE_INDEX_APPLIED_INIT;
    struct eventtext *et = calloc(1, sizeof(*et));
    const uint32_t tokens[6] = { 1, 2, 3, 4, 5, 6 };
    uint64_t contents[3];

    (void)state;
    assert_non_null(et);
    run("+A", "A: S[-]9 t=12");
    for (size_t i = 0; i < 3; i++)
        contents[i] = ref_content(tokens + 2 * i, 2);
    eventtext_read(et, "S[-]1,2 t=; R 9; S[2]3 t=; S[9]4 b=0 t=");
    view.events = et->events;
    view.n_events = et->n_events;
    assert_int_equal(kve_index_apply(rig->index, world_id(rig, 'A'), &view,
                         contents, 3, &applied, NULL),
        KVE_OK);
    assert_int_equal(applied.stored, 4);
    assert_int_equal(applied.removed, 1);
    assert_int_equal(applied.refused, 0);
    assert_int_equal(gpu('A', "=123456"), 6);
    assert_false(holder('A', "4").taught);

    /* A store beyond the contents that were given is refused. */
    eventtext_read(et, "S[3]5,6 t=");
    view.n_events = et->n_events;
    assert_int_equal(kve_index_apply(rig->index, world_id(rig, 'A'), &view,
                         contents, 1, &applied, NULL),
        KVE_OK);
    assert_int_equal(applied.stored, 0);
    assert_int_equal(applied.refused, 1);
    free(et);
}

/* Less room than rows: the longest ones, and how many there are. */
static void
test_more_rows_than_room(void **state)
{
    struct kve_index_query q = KVE_INDEX_QUERY_INIT;
    struct kve_index_answer answer = KVE_INDEX_ANSWER_INIT;
    struct kve_index_row rows[2];
    const uint32_t tokens[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    kve_instance some[2];

    (void)state;
    run("+A", "+B", "+C", "+D", "A: S[-]1 t=12", "B: S[-]1,2,3 t=123456",
        "C: S[-]1,2 t=1234", "D: S[-]1 t=12");
    q.ns = rig->ns[0];
    q.tokens = tokens;
    q.n_tokens = 8;
    answer.rows = rows;
    answer.cap = 2;
    assert_int_equal(kve_index_query(rig->reader, &q, &answer, NULL), KVE_OK);
    assert_int_equal(answer.n, 2);
    assert_int_equal(answer.total, 4);
    assert_int_equal(rows[0].instance, world_id(rig, 'B'));
    assert_int_equal(rows[0].longest, 6);
    assert_int_equal(rows[1].instance, world_id(rig, 'C'));
    answer.cap = 0;
    answer.rows = NULL;
    assert_int_equal(kve_index_query(rig->reader, &q, &answer, NULL), KVE_OK);
    assert_int_equal(answer.n, 0);
    assert_int_equal(answer.total, 4);

    some[0] = world_id(rig, 'A');
    some[1] = world_id(rig, 'C');
    q.only = some;
    q.n_only = 2;
    answer.rows = rows;
    answer.cap = 2;
    assert_int_equal(kve_index_query(rig->reader, &q, &answer, NULL), KVE_OK);
    assert_int_equal(answer.total, 2);
    assert_int_equal(rows[0].instance, some[1]);
    assert_int_equal(rows[1].instance, some[0]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_c4_a_parent_that_comes_later),
        RIG_TEST(test_c4_two_generations_wait),
        RIG_TEST(test_c5_a_part_that_was_skipped),
        RIG_TEST(test_c35_children_of_what_came_without_events),
        RIG_TEST(test_chains_do_not_contain_themselves),
        RIG_TEST(test_c40_the_place_is_taught_later_in_the_batch),
        RIG_TEST(test_c41_tokens_without_keys_off_the_gpu),
        RIG_TEST(test_a16_a_tier_without_tokens),
        RIG_TEST(test_a12_a14_counts_that_do_not_fit),
        RIG_TEST(test_c19_adapters_do_not_mix),
        RIG_TEST(test_c19_a_salt_is_the_chains),
        RIG_TEST(test_a22_an_adapter_in_the_keys_is_no_image),
        RIG_TEST(test_c21_images_that_differ),
        RIG_TEST(test_c22_sizes_are_learnt),
        RIG_TEST(test_c23_blocks_smaller_than_anything_expected),
        RIG_TEST(test_c25_a_chunk_is_there_whole_or_not),
        RIG_TEST(test_c26_hashes_finer_than_blocks),
        RIG_TEST(test_sizes_in_one_chain),
        RIG_TEST(test_c33_hashes_that_differ_between_workers),
        RIG_TEST(test_a8_a9_forms_of_hashes),
        RIG_TEST(test_questions_by_engine_hash),
        RIG_TEST(test_contents_given_by_the_caller),
        RIG_TEST(test_more_rows_than_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
