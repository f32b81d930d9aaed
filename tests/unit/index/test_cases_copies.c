/*
 * test_cases_copies.c - cases from the field: copies, removals, tiers, clears,
 * ranks, and instances that come and go.
 *
 * Blocks have two tokens here, so a match of 14 is seven blocks. Index and
 * reference are compared after every line; the numbers are what must come out.
 */
#include "rig.h"

#include <stdlib.h>
#include <string.h>

/* ---- copies -------------------------------------------------------- */

static void
test_c1_two_copies_of_a_block(void **state)
{
    (void)state;
    run("+A", "A: S[-]1,2,3", "A: S[2]3", "A: R 3", "A: S[3]4,5,6,7");
    assert_int_equal(copies('A', "3"), 1);
    assert_int_equal(gpu('A', "1,2,3,4,5,6,7"), 14);
    run("A: R 3");
    assert_int_equal(copies('A', "3"), 0);
    assert_int_equal(gpu('A', "1,2,3,4,5,6,7"), 4);
    assert_int_equal(copies('A', "4"), 1);
    /* The hole is filled, and what stood behind it matches again. */
    run("A: S[2]3");
    assert_int_equal(gpu('A', "1,2,3,4,5,6,7"), 14);
}

static void
test_c1_remaining_copies_win(void **state)
{
    (void)state;
    run("+A", "A: S[-]1,2,3", "A: S[2]3", "A: S[2]3", "A: R 3 n=0");
    assert_int_equal(copies('A', "3"), 0);
    assert_int_equal(gpu('A', "1,2,3"), 4);
    run("A: S[2]3; S[2]3; S[2]3", "A: R 3,2 n=1,1");
    assert_int_equal(copies('A', "3"), 1);
    assert_int_equal(copies('A', "2"), 1);
    assert_int_equal(gpu('A', "1,2,3"), 6);
    run("A: R 3");
    assert_int_equal(gpu('A', "1,2,3"), 4);
}

static void
test_c2_reports_of_what_is_there(void **state)
{
    (void)state;
    run("+A set", "+B", "A: S[-]1,2", "A: S[-]1,2", "B: S[-]1,2; S[-]1,2");
    assert_int_equal(copies('A', "1"), 1);
    assert_int_equal(copies('B', "1"), 2);
    assert_int_equal(counter('A', KVE_COUNTER_INDEX_REPEATS), 2);
    run("A: R 1; R 2", "B: R 1; R 2");
    assert_int_equal(gpu('A', "1,2"), 0);
    assert_int_equal(copies('A', "1"), 0);
    assert_int_equal(copies('A', "2"), 0);
    assert_int_equal(gpu('B', "1,2"), 4);
}

static void
test_c3_chunks_that_overlap(void **state)
{
    (void)state;
    run("+A", "A: S[-]1,2,3 @cpu e=", "A: S[2]3,4 @cpu e=", "A: R 1,2,3 @cpu");
    assert_int_equal(copies('A', "1"), 0);
    assert_int_equal(copies('A', "3"), 1);
    run("A: R 3,4 @cpu");
    assert_int_equal(copies('A', "3"), 0);
    assert_int_equal(n_holders("4"), 0);

    /* A clear resets the counts; what was never there is counted, no more. */
    run("A: S[-]1; S[-]1; S[-]1", "A: C", "A: S[-]1", "A: R 1");
    assert_int_equal(copies('A', "1"), 0);
    assert_int_equal(counter('A', KVE_COUNTER_INDEX_UNMATCHED), 0);
    run("A: R 77");
    assert_int_equal(counter('A', KVE_COUNTER_INDEX_UNMATCHED), 1);
    assert_int_equal(n_holders("77"), 0);
}

static void
test_c3_counts_are_of_a_scope(void **state)
{
    (void)state;
    run("+A", "A: S[-]1; S[-]1 @CPU; S[-]1 loc=LOCAL; S[-]1 own=o; S[-]1 g=0");
    assert_int_equal(n_holders("1"), 5);
    run("A: R 1 @CPU");
    assert_int_equal(n_holders("1"), 4);
    run("A: R 1 own=o");
    assert_int_equal(n_holders("1"), 3);
    run("A: R 1 g=0");
    assert_int_equal(n_holders("1"), 2);
    run("A: R 1 loc=LOCAL");
    assert_int_equal(n_holders("1"), 1);
    run("A: R 1 @GPU"); /* the same as none */
    assert_int_equal(n_holders("1"), 0);
}

static void
test_c7_one_hash_for_equal_blocks(void **state)
{
    (void)state;
    run("+A", "A: S[-]5,5,5 t=999999");
    assert_int_equal(copies('A', "5"), 3);
    assert_int_equal(gpu('A', "=999999"), 2);
    assert_int_equal(holder('A', "5").end, 2);
    assert_int_equal(counter('A', KVE_COUNTER_INDEX_CONFLICTS), 2);
    run("A: R 5,5");
    assert_int_equal(gpu('A', "=999999"), 2);
    run("A: R 5");
    assert_int_equal(gpu('A', "=999999"), 0);
    assert_int_equal(n_holders("5"), 0);
}

static void
test_c8_a_child_of_what_was_just_removed(void **state)
{
    (void)state;
    run("+A", "A: S[-]1,2,3", "A: R 1,2,3", "A: S[2]4");
    assert_int_equal(gpu('A', "1,2,4"), 0);
    assert_int_equal(copies('A', "4"), 1);
    assert_false(holder('A', "4").placed);
    run("A: S[-]1,2");
    assert_int_equal(gpu('A', "1,2,4"), 6);

    /* To the end of a batch what it removed is still known. */
    run("+B", "B: S[-]1,2,3", "B: R 1,2,3; S[2]4");
    assert_true(holder('B', "4").placed);
    assert_int_equal(holder('B', "4").end, 6);
    assert_int_equal(gpu('B', "1,2,4"), 0);
    run("B: S[-]1,2");
    assert_int_equal(gpu('B', "1,2,4"), 6);
    assert_int_equal(gpu('B', "1,2,3"), 4);
}

/* A partial block leaves, comes whole, and then partial once more although its
 * tokens did not change: a fault of the engine, which the index obeys. */
static void
test_c28_a_partial_block_again(void **state)
{
    (void)state;
    run("+A", "A: S[-]1 t=12", "A: R 1", "A: S[-]9 b=4 t=1234");
    assert_int_equal(gpu('A', "=12"), 0);
    assert_int_equal(gpu('A', "=1234"), 4);
    run("A: S[-]1 t=12");
    assert_int_equal(gpu('A', "=12"), 2);
    assert_int_equal(gpu('A', "=1234"), 4);
    assert_int_equal(copies('A', "1"), 1);
    run("A: R 1");
    assert_int_equal(gpu('A', "=12"), 0);
    assert_int_equal(gpu('A', "=1234"), 4);
}

/* ---- tiers --------------------------------------------------------- */

static void
test_c10_a_removal_is_of_one_tier(void **state)
{
    (void)state;
    run("+A", "A: S[-]1,2 @GPU", "A: S[-]1,2 @CPU_PINNED", "A: R 1,2 @GPU");
    assert_int_equal(gpu('A', "1,2"), 0);
    assert_int_equal(alone('A', KVE_TIER_CPU, "1,2"), 4);
    assert_int_equal(upto('A', 0, "1,2"), 0);
    assert_int_equal(upto('A', 1, "1,2"), 4);
    run("A: R 1 @CPU_PINNED");
    assert_int_equal(alone('A', KVE_TIER_CPU, "1,2"), 0);
    assert_int_equal(n_holders("1"), 0);
    assert_int_equal(holder('A', "2").tier, KVE_TIER_CPU);
}

static void
test_c11_a_tier_is_not_reset_by_another(void **state)
{
    (void)state;
    run("+A", "A: S[-]1 @cpu e=", "A: S[-]1 @disk e=", "A: R 1 @cpu",
        "A: S[-]1 @cpu e=", "A: R 1 @cpu");
    assert_int_equal(alone('A', KVE_TIER_CPU, "1"), 0);
    assert_int_equal(alone('A', KVE_TIER_DISK, "1"), 2);
    assert_int_equal(copies('A', "1"), 1);
}

static void
test_c34_sums_over_tiers(void **state)
{
    struct kve_index_row row;

    (void)state;
    run("+A", "A: S[-]1,2; S[2]3,4 @CPU e=; S[4]5 @DISK e=");
    row = row_of('A', "1,2,3,4,5,6");
    assert_int_equal(row.upto[0], 4);
    assert_int_equal(row.upto[1], 8);
    assert_int_equal(row.upto[2], 10);
    assert_int_equal(row.longest, 10);
    assert_int_equal(row.alone[KVE_TIER_GPU], 4);
    assert_int_equal(row.alone[KVE_TIER_CPU], 0); /* not from the start */
    assert_int_equal(row.alone[KVE_TIER_DISK], 0);

    run("A: S[-]1,2,3 @CPU e=");
    row = row_of('A', "1,2,3,4,5,6");
    assert_int_equal(row.alone[KVE_TIER_CPU], 8);
    assert_int_equal(row.alone[KVE_TIER_GPU], 4);
    assert_int_equal(row.upto[1], 8);
}

static void
test_c38_what_is_remote_is_not_its_own(void **state)
{
    struct kve_index_row row;

    (void)state;
    run("+A", "+B", "A: S[-]1,2 @STORAGE loc=REMOTE e=; S[-]1 @GPU loc=REMOTE",
        "B: S[-]1,2 @STORAGE loc=LOCAL e=");
    row = row_of('A', "1,2");
    assert_int_equal(row.alone[KVE_TIER_REMOTE], 4);
    assert_int_equal(row.alone[KVE_TIER_DISK], 0);
    assert_int_equal(row.alone[KVE_TIER_GPU], 0);
    assert_int_equal(row.upto[2], 0);
    row = row_of('B', "1,2");
    assert_int_equal(row.alone[KVE_TIER_DISK], 4);
    assert_int_equal(row.alone[KVE_TIER_REMOTE], 0);
    assert_int_equal(row.upto[2], 4);
}

/* An unknown medium is nobody's GPU. */
static void
test_a17_an_unknown_medium(void **state)
{
    struct kve_index_row row;

    (void)state;
    run("+A", "A: S[-]1 @QUANTUM e=; S[-]2 @");
    row = row_of('A', "1");
    assert_int_equal(row.alone[KVE_TIER_UNKNOWN], 2);
    assert_int_equal(row.alone[KVE_TIER_GPU], 0);
    assert_int_equal(row.upto[2], 0);
    assert_int_equal(gpu('A', "2"), 2);
}

/* ---- clears -------------------------------------------------------- */

static void
test_c12_what_a_clear_clears(void **state)
{
    struct world_opts opts = { .clearing = KVE_CLEARING_GPU };

    (void)state;
    run("+A", "+B", "A: S[-]1,2; S[-]1,2 @CPU", "B: S[-]1; S[-]1 @CPU");
    run("A: T @GPU");
    assert_int_equal(gpu('A', "1,2"), 0);
    assert_int_equal(alone('A', KVE_TIER_CPU, "1,2"), 4);
    assert_int_equal(gpu('B', "1"), 2);
    run("A: S[-]1,2", "A: C");
    assert_int_equal(gpu('A', "1,2"), 0);
    assert_int_equal(alone('A', KVE_TIER_CPU, "1,2"), 0);
    assert_int_equal(copies('A', "1"), 0);
    assert_int_equal(alone('B', KVE_TIER_CPU, "1"), 2);
    assert_int_equal(counter('A', KVE_COUNTER_INDEX_CLEARS), 2);

    /* With a publisher id only the GPU is. */
    run("B!: C");
    assert_int_equal(gpu('B', "1"), 0);
    assert_int_equal(alone('B', KVE_TIER_CPU, "1"), 2);

    rig_options(&opts);
    run("+A", "A: S[-]1,2; S[-]1,2 @CPU; S[-]1 @GPU loc=REMOTE", "A: C");
    assert_int_equal(gpu('A', "1,2"), 0);
    assert_int_equal(alone('A', KVE_TIER_CPU, "1,2"), 4);
    assert_int_equal(alone('A', KVE_TIER_REMOTE, "1,2"), 2);

    opts.clearing = KVE_CLEARING_ALL;
    rig_options(&opts);
    run("+A", "A: S[-]1,2; S[-]1,2 @CPU", "A!: C");
    assert_int_equal(n_holders("1"), 0);
}

static void
test_c12_what_is_like_a_clear_clears_nothing(void **state)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_index_applied applied = KVE_INDEX_APPLIED_INIT;
    struct kve_event ev;

    (void)state;
    run("+A", "A: S[-]1,2");
    memset(&ev, 0, sizeof(ev));
    ev.type = 77;
    view.events = &ev;
    view.n_events = 1;
    assert_int_equal(kve_index_apply(rig->index, world_id(rig, 'A'), &view,
                         NULL, 0, &applied, NULL),
        KVE_OK);
    assert_int_equal(applied.cleared, 0);
    assert_int_equal(gpu('A', "1,2"), 4);
}

/* Of one owner, where a clear names one. */
static void
test_c12_a_clear_of_one_owner(void **state)
{
    (void)state;
    run("+A", "A: S[-]1; S[-]1 own=o; S[-]1 @CPU own=o; S[-]1 own=p",
        "A: C own=o");
    assert_int_equal(n_holders("1"), 2);
    run("A: C own=p");
    assert_int_equal(n_holders("1"), 1);
    run("A: C");
    assert_int_equal(n_holders("1"), 0);
}

static void
test_c13_a_clear_and_a_new_start(void **state)
{
    (void)state;
    run("+A", "A: S[-]1", "A: C");
    assert_int_equal(gpu('A', "1"), 0);
    assert_int_equal(n_holders("1"), 0);
    run("A: S[-]1");
    assert_int_equal(gpu('A', "1"), 2);
    run("A: C; S[-]1,2");
    assert_int_equal(gpu('A', "1,2"), 4);
    assert_int_equal(copies('A', "1"), 1);
    run("A: S[2]3; C");
    assert_int_equal(n_holders("3"), 0);
    assert_int_equal(gpu('A', "1,2"), 0);
}

/* ---- ranks and instances ------------------------------------------- */

static void
test_c14_ranks_are_apart(void **state)
{
    size_t n = 0;

    (void)state;
    run("+A", "A%1: S[-]1,2", "A: S[-]1,2,3");
    assert_int_equal(
        world_id(rig, 'E'), kve_index_find(rig->index, rig->ns[0], "a", 1));
    assert_int_equal(gpu('A', "1,2,3"), 6);
    assert_int_equal(gpu('E', "1,2,3"), 4);
    run("A%1: C");
    assert_int_equal(gpu('A', "1,2,3"), 6);
    assert_int_equal(gpu('E', "1,2,3"), 0);
    run("A%1: S[-]1", "-A");
    assert_int_equal(kve_index_find(rig->index, rig->ns[0], "a", 0), 0);
    assert_int_equal(gpu('E', "1,2,3"), 2);

    run("+A", "+B", "A: S[-]1", "B: S[-]1");
    assert_int_equal(
        kve_index_drop_worker(rig->index, rig->ns[0], "a", &n, NULL), KVE_OK);
    assert_int_equal(n, 2);
    assert_int_equal(n_holders("1"), 1);
    assert_int_equal(gpu('B', "1"), 2);
    ref_drop(&rig->ref, rig->ids[0]);
    ref_drop(&rig->ref, rig->ids[4]);
    assert_true(world_compare(rig));
}

static void
test_c29_a_worker_that_comes_again_starts_empty(void **state)
{
    kve_instance old;

    (void)state;
    run("+A", "+B", "A: S[-]1,2", "B: S[-]1,2");
    old = world_id(rig, 'A');
    run("-A");
    assert_int_equal(n_holders("1"), 1);
    run("+A");
    assert_int_not_equal(world_id(rig, 'A'), old);
    assert_int_equal(gpu('A', "1,2"), 0);
    assert_int_equal(gpu('B', "1,2"), 4);
    run("A: S[1]2");
    assert_false(holder('A', "2").placed); /* 1 means nothing to it */
    run("A: S[-]1");
    assert_int_equal(gpu('A', "1,2"), 4);
}

static void
test_b21_registered_again(void **state)
{
    (void)state;
    run("+A", "A: S[-]1,2 g=0 k=full; R 9", "-A", "+A");
    assert_int_equal(counter('A', KVE_COUNTER_INDEX_BATCHES), 0);
    assert_int_equal(counter('A', KVE_COUNTER_INDEX_UNMATCHED), 0);
    assert_int_equal(
        kve_index_groups(rig->index, world_id(rig, 'A'), NULL, 0), 0);
    assert_int_equal(gpu('A', "1,2"), 0);
}

static void
test_b23_nothing_comes_back(void **state)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct eventtext *et = calloc(1, sizeof(*et));
    kve_instance old;

    (void)state;
    assert_non_null(et);
    run("+A", "+B", "A: S[-]1,2", "B: S[-]1");
    old = world_id(rig, 'A');
    run("-A");
    /* What was queued for it before it was dropped comes now. */
    eventtext_read(et, "S[-]1,2; S[2]3; R 1");
    view.events = et->events;
    view.n_events = et->n_events;
    for (int i = 0; i < 1000; i++)
        assert_int_equal(
            kve_index_apply(rig->index, old, &view, NULL, 0, NULL, NULL),
            KVE_E_NOT_FOUND);
    assert_int_equal(n_holders("1"), 1);
    assert_int_equal(n_holders("3"), 0);
    run("+A", "A: S[2]9"); /* the same place, another instance */
    assert_int_equal(
        kve_index_apply(rig->index, old, &view, NULL, 0, NULL, NULL),
        KVE_E_NOT_FOUND);
    assert_int_equal(n_holders("1"), 1);
    assert_true(world_compare(rig));
    free(et);
}

/* ---- snapshots ----------------------------------------------------- */

static void
test_b22_a_snapshot_with_a_hole(void **state)
{
    (void)state;
    run("+A", "A: S[-]9", "A begin", "A': S[-]1,2,3");
    assert_int_equal(gpu('A', "1,2,3"), 0); /* not before it is whole */
    assert_int_equal(n_holders("1"), 0);
    assert_int_equal(gpu('A', "9"), 2);
    run("A': R 2");
    run("A commit");
    assert_int_equal(gpu('A', "1,2,3"), 2);
    assert_int_equal(copies('A', "3"), 1);
    assert_int_equal(holder('A', "3").end, 6);
    assert_int_equal(n_holders("9"), 0);
    run("A: S[1]2");
    assert_int_equal(gpu('A', "1,2,3"), 6);

    run("A begin", "A': S[-]7", "A abort");
    assert_int_equal(gpu('A', "1,2,3"), 6);
    assert_int_equal(n_holders("7"), 0);
    run("A begin", "A commit");
    assert_int_equal(n_holders("1"), 0);
}

/* Blocks once as GPU with tokens, the dead leave, each scope is raised to its
 * count, the first stores leave. */
#define PROGRAM                                                             \
    "A': S[-]1,2,3", "A': S[3]4", "A': R 2",                                \
        "A': S[-]1 b=0 t=; S[-]3 b=0 t=; S[-]3 b=0 t=; S[-]4 @CPU b=0 t=; " \
        "S[-]1 @CPU b=0 t=",                                                \
        "A': R 1,3,4"

static void
test_c42_a_snapshot_for_sets(void **state)
{
    (void)state;
    run("+A set", "A begin", PROGRAM, "A commit");
    assert_int_equal(gpu('A', "1,2,3,4"), 2);
    assert_int_equal(alone('A', KVE_TIER_CPU, "1,2,3,4"), 2);
    assert_int_equal(copies('A', "1"), 2); /* one in each scope */
    assert_int_equal(copies('A', "2"), 0);
    assert_int_equal(copies('A', "3"), 1);
    assert_int_equal(copies('A', "4"), 1);
    assert_int_equal(holder('A', "4").tier, KVE_TIER_CPU);
    assert_int_equal(holder('A', "4").end, 8);
    run("A: S[1]2");
    assert_int_equal(gpu('A', "1,2,3,4"), 6);
    assert_int_equal(upto('A', 1, "1,2,3,4"), 8);
    run("A: R 3"); /* a set: gone at once */
    assert_int_equal(copies('A', "3"), 0);
}

static void
test_c42_the_same_with_counts(void **state)
{
    (void)state;
    run("+A", "A begin", PROGRAM, "A commit");
    assert_int_equal(gpu('A', "1,2,3,4"), 2);
    assert_int_equal(copies('A', "1"), 2);
    assert_int_equal(copies('A', "2"), 0);
    assert_int_equal(copies('A', "3"), 2);
    assert_int_equal(copies('A', "4"), 1);
    run("A: R 3");
    assert_int_equal(copies('A', "3"), 1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_c1_two_copies_of_a_block),
        RIG_TEST(test_c1_remaining_copies_win),
        RIG_TEST(test_c2_reports_of_what_is_there),
        RIG_TEST(test_c3_chunks_that_overlap),
        RIG_TEST(test_c3_counts_are_of_a_scope),
        RIG_TEST(test_c7_one_hash_for_equal_blocks),
        RIG_TEST(test_c8_a_child_of_what_was_just_removed),
        RIG_TEST(test_c28_a_partial_block_again),
        RIG_TEST(test_c10_a_removal_is_of_one_tier),
        RIG_TEST(test_c11_a_tier_is_not_reset_by_another),
        RIG_TEST(test_c34_sums_over_tiers),
        RIG_TEST(test_c38_what_is_remote_is_not_its_own),
        RIG_TEST(test_a17_an_unknown_medium),
        RIG_TEST(test_c12_what_a_clear_clears),
        RIG_TEST(test_c12_what_is_like_a_clear_clears_nothing),
        RIG_TEST(test_c12_a_clear_of_one_owner),
        RIG_TEST(test_c13_a_clear_and_a_new_start),
        RIG_TEST(test_c14_ranks_are_apart),
        RIG_TEST(test_c29_a_worker_that_comes_again_starts_empty),
        RIG_TEST(test_b21_registered_again),
        RIG_TEST(test_b23_nothing_comes_back),
        RIG_TEST(test_b22_a_snapshot_with_a_hole),
        RIG_TEST(test_c42_a_snapshot_for_sets),
        RIG_TEST(test_c42_the_same_with_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
