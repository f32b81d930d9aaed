/*
 * test_cases_hybrid.c - cases from the field: models whose blocks come in
 * groups.
 *
 * Blocks have two tokens unless said: full attention holds blocks 0..6 is the
 * hashes 1 to 7, and seven usable blocks are 14 tokens. Prompts end with a
 * token more, so that none of their blocks is the last. Index and reference
 * are compared after every line.
 */
#include "rig.h"

#include <string.h>

#define SEVEN "1,2,3,4,5,6,7"

static void
test_c15_a_removal_is_of_one_group(void **state)
{
    struct kve_index_holder h;

    (void)state;
    run("+A", "A: S[-]1,2 g=0 k=full; S[-]1,2 g=1 k=mamba", "A: R 1 g=1");
    assert_int_equal(gpu('A', "1,2,+"), 4);
    assert_int_equal(copies('A', "1"), 1);
    h = holder('A', "1");
    assert_true(h.group.set && h.group.value == 0);
    run("A: R 2 g=1");
    assert_int_equal(gpu('A', "1,2,+"), 0);
    assert_int_equal(copies('A', "2"), 1);
}

static void
test_c16_group_0_is_not_the_main_one(void **state)
{
    struct kve_index_group groups[4];

    (void)state;
    run("+A", "A: S[-]3 g=0 k=mamba b=2 t=*1,2,3; S[-]1,2,3,4 g=1 k=full");
    assert_int_equal(gpu('A', "1,2,3,4,+"), 6);
    assert_int_equal(
        kve_index_groups(rig->index, world_id(rig, 'A'), groups, 4), 2);
    assert_int_equal(groups[0].block_size, 2);

    /* The removals name the group, not its kind. */
    run("A: R 4 g=1");
    assert_int_equal(gpu('A', "1,2,3,4,+"), 6);
    run("A: R 3 g=0");
    assert_int_equal(gpu('A', "1,2,3,4,+"), 0);
    run("A: S[2]3 g=0 k=mamba");
    assert_int_equal(gpu('A', "1,2,3,4,+"), 6);

    /* Of a group that was never learnt: counted, and nobody else's. */
    run("A: R 3 g=5", "A: R 3");
    assert_int_equal(counter('A', KVE_COUNTER_INDEX_UNMATCHED), 2);
    assert_int_equal(gpu('A', "1,2,3,4,+"), 6);

    /* A restart forgets what was learnt. */
    run("A clear 0");
    assert_int_equal(
        kve_index_groups(rig->index, world_id(rig, 'A'), groups, 4), 0);
    run("A: S[-]1,2 g=0 k=full");
    assert_int_equal(gpu('A', "1,2,+"), 4);
}

static void
test_c17_checkpoints(void **state)
{
    (void)state;
    run("+A",
        "A: S[-]1,2,3,4,5,6,7,8,9 g=0 k=full; S[1]2 g=1 k=mamba; "
        "S[5]6 g=1 k=mamba");
    assert_int_equal(gpu('A', SEVEN ",8,9,+"), 12);
    run("A: R 6 g=0"); /* block 5: five are left, and checkpoint 2 */
    assert_int_equal(gpu('A', SEVEN ",8,9,+"), 4);

    run("+B", "B: S[-]1,2,3,4,5,6,7,8 g=0 k=full; S[7]8 g=1 k=mamba",
        "B: R 7,8 g=0");
    assert_int_equal(gpu('B', SEVEN ",8,9,+"), 0);
}

#define FULL "S[-]1,2,3,4,5,6,7 g=0 k=full"

static void
test_c18_a_window_needs_its_end_only(void **state)
{
    (void)state;
    run("+A", "+B", "+C", "+D", "A: " FULL "; S[5]6,7 g=1 k=swa w=4",
        "B: " FULL "; S[6]7 g=1 k=swa w=4",
        "C: " FULL "; S[2]3,4 g=1 k=swa w=4; S[6]7 g=1 k=swa w=4",
        "D: " FULL "; S[-]1 g=1 k=swa w=4");
    assert_int_equal(gpu('A', SEVEN ",8"), 14);
    assert_int_equal(gpu('B', SEVEN ",8"), 0);
    assert_int_equal(gpu('C', SEVEN ",8"), 8);
    assert_int_equal(gpu('D', SEVEN ",8"), 2);

    /* At least one token is computed: a prompt of 14 and one of 15. */
    asking.recompute_last = true;
    assert_int_equal(gpu('A', SEVEN), 0);
    assert_int_equal(gpu('A', SEVEN ",+"), 14);
    assert_int_equal(gpu('C', SEVEN), 8);
    asking.recompute_last = false;
    assert_int_equal(gpu('A', SEVEN), 14);
}

static void
test_chunks_of_local_attention(void **state)
{
    (void)state;
    /* Chunks of six tokens: three blocks. An end at a chunk's end needs
     * nothing of it, another one what lies between. */
    run("+A", "A: " FULL "; S[3]4,5 g=1 k=chunk w=6");
    assert_int_equal(gpu('A', SEVEN ",8"), 12);
    run("A: R 6 g=0");
    assert_int_equal(gpu('A', SEVEN ",8"), 10);
    run("A: R 5 g=1");
    assert_int_equal(gpu('A', SEVEN ",8"), 8);
    run("A: R 4 g=1");
    assert_int_equal(gpu('A', SEVEN ",8"), 6);
}

static void
test_groups_of_several_sizes(void **state)
{
    (void)state;
    /* Full attention in blocks of 2, a checkpoint every 4 and one at 6 that
     * is no multiple of both. */
    run("+A",
        "A: S[-]1,2,3,4 g=0 k=full t=12345678; "
        "S[-]11,12 g=1 k=mamba b=4 t=12345678");
    assert_int_equal(gpu('A', "=12345678,+"), 8);
    assert_int_equal(gpu('A', "=1234567"), 4);
    run("A: R 4 g=0");
    assert_int_equal(gpu('A', "=12345678,+"), 4);
    run("A: R 11 g=1");
    assert_int_equal(gpu('A', "=12345678,+"), 0);
}

static void
test_kinds_that_nobody_knows(void **state)
{
    struct kve_index_group groups[4];

    (void)state;
    run("+A", "+B", "+C",
        /* Complete stores: it counts as full. */
        "A: S[-]1,2,3 g=0 k=full; S[-]1,2 g=1 k=new_attention",
        /* Sparse ones: it takes no part. */
        "B: S[-]2 g=1 k=new_attention t=*1,2,3; S[-]1,2,3 g=0 k=full",
        "C: S[-]1,2,3 g=0 k=full; S[-]9 g=1 k=cross; S[-]9 g=2 k=encoder");
    assert_int_equal(gpu('A', "1,2,3,+"), 4);
    assert_int_equal(gpu('B', "1,2,3,+"), 6);
    assert_int_equal(gpu('C', "1,2,3,+"), 6);
    assert_int_equal(counter('B', KVE_COUNTER_INDEX_GROUPS_IGNORED), 1);
    assert_int_equal(
        kve_index_groups(rig->index, world_id(rig, 'C'), groups, 4), 3);
    assert_int_equal(
        groups[0].ignored + groups[1].ignored + groups[2].ignored, 2);
}

static void
test_tiers_of_hybrid_models(void **state)
{
    struct kve_index_row row;

    (void)state;
    run("+A",
        "A: S[-]1,2,3 g=0 k=full; S[2]3 g=1 k=mamba; "
        "S[3]4,5 g=0 k=full @CPU e=; S[4]5 g=1 k=mamba @CPU e=");
    row = row_of('A', "1,2,3,4,5,+");
    assert_int_equal(row.alone[KVE_TIER_GPU], 6);
    assert_int_equal(row.alone[KVE_TIER_CPU], 0);
    assert_int_equal(row.upto[0], 6);
    assert_int_equal(row.upto[1], 10);

    /* What is held without a group counts for every group. */
    run("A: R 3 g=1", "A: S[2]3 @CPU e=");
    row = row_of('A', "1,2,3,4,5,+");
    assert_int_equal(row.alone[KVE_TIER_GPU], 0);
    assert_int_equal(row.upto[1], 10);
    run("A: R 5 g=1 @CPU");
    assert_int_equal(upto('A', 1, "1,2,3,4,5,+"), 6);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_c15_a_removal_is_of_one_group),
        RIG_TEST(test_c16_group_0_is_not_the_main_one),
        RIG_TEST(test_c17_checkpoints),
        RIG_TEST(test_c18_a_window_needs_its_end_only),
        RIG_TEST(test_chunks_of_local_attention),
        RIG_TEST(test_groups_of_several_sizes),
        RIG_TEST(test_kinds_that_nobody_knows),
        RIG_TEST(test_tiers_of_hybrid_models),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
