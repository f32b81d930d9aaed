/*
 * Lives with blocks in them: what is out of sight at once, what is drained
 * later and how much of it at a time, and that memory comes back.
 *
 * ctest-timeout: 300
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "index/run.h"

#include <kvevents/index.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define CHAIN 64u
#define SIZE 16u

struct world {
    kve_index *index;
    kve_namespace ns;
    kve_index_reader *reader;
};

static void
begin(struct world *world, const struct kve_index_opts *opts)
{
    memset(world, 0, sizeof(*world));
    assert_int_equal(kve_index_create(opts, &world->index, NULL), KVE_OK);
    assert_int_equal(
        kve_index_namespace(world->index, "m", "", &world->ns, NULL), KVE_OK);
    assert_int_equal(
        kve_index_reader_create(world->index, &world->reader, NULL), KVE_OK);
}

static void
end(struct world *world)
{
    kve_index_reader_destroy(world->reader);
    kve_index_destroy(world->index);
}

static kve_instance
add(struct world *world, const char *worker, uint32_t rank)
{
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    kve_instance instance = 0;

    spec.ns = world->ns;
    spec.worker = worker;
    spec.rank = rank;
    assert_int_equal(
        kve_index_add(world->index, &spec, &instance, NULL), KVE_OK);
    return instance;
}

static uint64_t
content_of(uint32_t chain, uint32_t i)
{
    return ((uint64_t)chain << 32 | i) * UINT64_C(0x9e3779b97f4a7c15) + 1;
}

static struct kve_hash
hash_of(uint32_t chain, uint32_t i)
{
    struct kve_hash hash = { .bytes = NULL };

    hash.integer = content_of(chain, i) ^ 0x55;
    return hash;
}

/* One event about the first n blocks of a chain. */
static void
tell(struct world *world, kve_instance instance, uint8_t type, uint32_t chain,
    uint32_t n, const char *medium)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_event event = { .type = type };
    struct kve_hash hashes[CHAIN];
    uint64_t contents[CHAIN];

    for (uint32_t i = 0; i < n; i++) {
        contents[i] = content_of(chain, i);
        hashes[i] = hash_of(chain, i);
    }
    event.hashes = hashes;
    event.n_hashes = n;
    event.block_size = SIZE;
    event.medium.data = medium;
    event.medium.len = strlen(medium);
    view.events = &event;
    view.n_events = 1;
    assert_int_equal(kve_index_apply(world->index, instance, &view, contents,
                         type == KVE_EVENT_STORED ? n : 0, NULL, NULL),
        KVE_OK);
}

static void
store(struct world *world, kve_instance instance, uint32_t chain,
    const char *medium)
{
    tell(world, instance, KVE_EVENT_STORED, chain, CHAIN, medium);
}

/* Tokens of a chain that one instance holds on a tier. */
static uint32_t
match(struct world *world, kve_instance instance, uint32_t chain, uint32_t tier)
{
    struct kve_index_query query = KVE_INDEX_QUERY_INIT;
    struct kve_index_answer answer = KVE_INDEX_ANSWER_INIT;
    struct kve_index_row row;
    uint64_t contents[CHAIN];

    for (uint32_t i = 0; i < CHAIN; i++)
        contents[i] = content_of(chain, i);
    query.ns = world->ns;
    query.contents = contents;
    query.n_contents = CHAIN;
    query.block_size = SIZE;
    query.only = &instance;
    query.n_only = 1;
    answer.rows = &row;
    answer.cap = 1;
    assert_int_equal(
        kve_index_query(world->reader, &query, &answer, NULL), KVE_OK);
    assert_int_equal(answer.n_moving, 0);
    return answer.n == 0 ? 0 : row.alone[tier];
}

static struct kve_index_stats
stats_of(struct world *world)
{
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;

    assert_int_equal(kve_index_get_stats(world->index, 0, &stats), KVE_OK);
    return stats;
}

static void
tidy(struct world *world)
{
    while (kve_index_tidy(world->index, 1000))
        continue;
}

static void
test_a_drop_is_seen_at_once_and_drained_later(void **state)
{
    const uint32_t n_chains = 500;
    struct kve_space *space;
    struct kve_index_stats before, after;
    kve_instance a, b;
    struct world world;
    size_t batches = 0;

    (void)state;
    begin(&world, NULL);
    space = kve_space_get(world.index, world.ns);
    b = add(&world, "b", 0);
    store(&world, b, 0, "GPU");
    tidy(&world);
    before = stats_of(&world);
    assert_int_equal(before.residencies[KVE_TIER_GPU], CHAIN);

    a = add(&world, "a", 0);
    for (uint32_t i = 0; i < n_chains; i++)
        store(&world, a, i, "GPU");
    after = stats_of(&world);
    assert_int_equal(after.residencies[KVE_TIER_GPU], (n_chains + 1) * CHAIN);
    assert_true(after.bytes > before.bytes);
    assert_int_equal(
        match(&world, a, n_chains - 1, KVE_TIER_GPU), CHAIN * SIZE);

    assert_int_equal(kve_index_drop(world.index, a, NULL), KVE_OK);
    assert_int_equal(match(&world, a, n_chains - 1, KVE_TIER_GPU), 0);
    after = stats_of(&world);
    assert_int_equal(after.residencies[KVE_TIER_GPU], CHAIN);
    assert_int_equal(after.instances, 1);
    /* Much is left, and each batch takes a little of it along. */
    assert_non_null(space->drain);
    while (space->drain != NULL && batches < n_chains * CHAIN) {
        tell(&world, b, KVE_EVENT_STORED, 0, 1, "GPU");
        tell(&world, b, KVE_EVENT_REMOVED, 0, 1, "GPU");
        batches += 2;
    }
    assert_null(space->drain);
    assert_true(batches > 10);
    assert_null(space->retired);
    tidy(&world);
    after = stats_of(&world);
    assert_int_equal(after.blocks, before.blocks);
    assert_int_equal(after.runs, before.runs);
    assert_int_equal(after.limbo, 0);
    assert_int_equal(match(&world, b, 0, KVE_TIER_GPU), CHAIN * SIZE);
    end(&world);
}

static void
test_memory_comes_back(void **state)
{
    struct kve_index_stats before = KVE_INDEX_STATS_INIT;
    struct kve_index_stats full, after;
    struct world world;

    (void)state;
    begin(&world, NULL);
    /* What was ever needed stays partly: slots, directories. */
    for (int round = 0; round < 3; round++) {
        kve_instance a[4];

        for (uint32_t i = 0; i < 4; i++) {
            a[i] = add(&world, "a", i);
            for (uint32_t k = 0; k < 500; k++)
                store(&world, a[i], k + (i % 2 == 0 ? 0 : 1000 * i), "GPU");
        }
        full = stats_of(&world);
        assert_int_equal(
            kve_index_drop_worker(world.index, world.ns, "a", NULL, NULL),
            KVE_OK);
        tidy(&world);
        after = stats_of(&world);
        assert_int_equal(after.blocks, 0);
        assert_int_equal(after.runs, 0);
        assert_int_equal(after.residencies[KVE_TIER_GPU], 0);
        assert_int_equal(after.limbo, 0);
        assert_true(after.bytes < full.bytes);
        if (round == 0)
            before = after;
        else
            assert_in_range(after.bytes, 0, before.bytes + (1 << 18));
    }
    end(&world);
}

static void
test_tiers_are_cleared_alone(void **state)
{
    struct kve_index_stats stats;
    struct world world;
    kve_instance a, b;

    (void)state;
    begin(&world, NULL);
    a = add(&world, "a", 0);
    b = add(&world, "b", 0);
    for (uint32_t i = 0; i < 10; i++) {
        store(&world, a, i, "GPU");
        store(&world, a, i, "CPU");
        store(&world, b, i, "GPU");
    }
    assert_int_equal(
        kve_index_clear(world.index, a, 1u << KVE_TIER_GPU, NULL), KVE_OK);
    assert_int_equal(match(&world, a, 3, KVE_TIER_GPU), 0);
    assert_int_equal(match(&world, a, 3, KVE_TIER_CPU), CHAIN * SIZE);
    assert_int_equal(match(&world, b, 3, KVE_TIER_GPU), CHAIN * SIZE);
    store(&world, a, 3, "GPU");
    assert_int_equal(match(&world, a, 3, KVE_TIER_GPU), CHAIN * SIZE);
    assert_int_equal(match(&world, a, 4, KVE_TIER_GPU), 0);
    tidy(&world);
    stats = stats_of(&world);
    assert_int_equal(stats.residencies[KVE_TIER_GPU], 11 * CHAIN);
    assert_int_equal(stats.residencies[KVE_TIER_CPU], 10 * CHAIN);
    assert_int_equal(match(&world, a, 3, KVE_TIER_GPU), CHAIN * SIZE);

    assert_int_equal(kve_index_clear(world.index, a, 0, NULL), KVE_OK);
    assert_int_equal(match(&world, a, 3, KVE_TIER_CPU), 0);
    store(&world, a, 3, "CPU");
    tidy(&world);
    assert_int_equal(match(&world, a, 3, KVE_TIER_CPU), CHAIN * SIZE);
    stats = stats_of(&world);
    assert_int_equal(stats.residencies[KVE_TIER_GPU], 10 * CHAIN);
    assert_int_equal(stats.residencies[KVE_TIER_CPU], CHAIN);
    end(&world);
}

/* A store by hash only, or a clear of everything. */
static void
tell_bare(struct world *world, kve_instance instance, uint8_t type,
    uint32_t chain, const char *medium)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_event event = { .type = type };
    struct kve_hash hashes[CHAIN];

    for (uint32_t i = 0; i < CHAIN; i++)
        hashes[i] = hash_of(chain, i);
    if (type == KVE_EVENT_STORED) {
        event.hashes = hashes;
        event.n_hashes = CHAIN;
        event.medium.data = medium;
        event.medium.len = strlen(medium);
        event.group_idx.set = true;
        event.spec_kind.data = "full_attention";
        event.spec_kind.len = strlen(event.spec_kind.data);
    }
    view.events = &event;
    view.n_events = 1;
    assert_int_equal(
        kve_index_apply(world->index, instance, &view, NULL, 0, NULL, NULL),
        KVE_OK);
}

static size_t
holders_of(struct world *world, uint32_t chain, uint32_t i)
{
    struct kve_hash hash = hash_of(chain, i);

    return kve_index_block(world->reader, world->ns, &hash, NULL, 0);
}

/* Blocks that nobody taught have names of the life's own; what was cleared is
 * not found by them any more, and groups stay known. */
static void
test_clearing_names_of_its_own(void **state)
{
    struct kve_index_group group;
    struct kve_index_stats stats;
    struct kve_space *space;
    struct world world;
    kve_instance a;

    (void)state;
    begin(&world, NULL);
    space = kve_space_get(world.index, world.ns);
    a = add(&world, "a", 0);
    for (uint32_t i = 0; i < 100; i++) {
        tell_bare(&world, a, KVE_EVENT_STORED, i, "GPU");
        tell_bare(&world, a, KVE_EVENT_STORED, i + 50, "CPU");
    }
    stats = stats_of(&world);
    assert_int_equal(stats.hash_only, 200 * CHAIN);
    assert_int_equal(holders_of(&world, 70, 5), 2);

    /* Some: the rest is found as before. */
    assert_int_equal(
        kve_index_clear(world.index, a, 1u << KVE_TIER_GPU, NULL), KVE_OK);
    assert_int_equal(holders_of(&world, 20, 5), 0);
    assert_int_equal(holders_of(&world, 70, 5), 1);
    tell_bare(&world, a, KVE_EVENT_STORED, 20, "GPU");
    tell_bare(&world, a, KVE_EVENT_STORED, 70, "GPU");
    assert_int_equal(holders_of(&world, 20, 5), 1);
    assert_int_equal(holders_of(&world, 70, 5), 2);

    /* All: out of sight at once, drained later. */
    tell_bare(&world, a, KVE_EVENT_CLEARED, 0, NULL);
    assert_int_equal(holders_of(&world, 20, 5), 0);
    assert_int_equal(holders_of(&world, 70, 5), 0);
    assert_non_null(space->drain);
    tell_bare(&world, a, KVE_EVENT_STORED, 70, "GPU");
    assert_int_equal(holders_of(&world, 70, 5), 1);
    assert_int_equal(kve_index_groups(world.index, a, &group, 1), 1);
    tidy(&world);
    assert_int_equal(holders_of(&world, 70, 5), 1);
    stats = stats_of(&world);
    assert_int_equal(stats.hash_only, CHAIN);
    assert_int_equal(stats.blocks, CHAIN);
    assert_null(space->retired);
    end(&world);
}

/* A twin is filled in secret and takes the place in one step; in an instance
 * of sets its copies count as one then. */
static void
test_a_twin_takes_the_place(void **state)
{
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    struct kve_index_instance info;
    struct kve_index_stats stats;
    struct world world;
    kve_instance a, twin;

    (void)state;
    begin(&world, NULL);
    spec.ns = world.ns;
    spec.worker = "a";
    spec.counting = KVE_COUNTING_SET;
    assert_int_equal(kve_index_add(world.index, &spec, &a, NULL), KVE_OK);
    store(&world, a, 1, "GPU");
    assert_int_equal(
        kve_index_rebuild_begin(world.index, a, &twin, NULL), KVE_OK);
    store(&world, twin, 2, "GPU");
    store(&world, twin, 2, "GPU");
    assert_int_equal(match(&world, a, 1, KVE_TIER_GPU), CHAIN * SIZE);
    assert_int_equal(match(&world, a, 2, KVE_TIER_GPU), 0);
    assert_int_equal(kve_index_get_instance(world.index, twin, &info), KVE_OK);
    assert_int_equal(info.blocks[KVE_TIER_GPU], CHAIN);
    stats = stats_of(&world);
    assert_int_equal(stats.residencies[KVE_TIER_GPU], CHAIN);

    assert_int_equal(kve_index_rebuild_commit(world.index, a, NULL), KVE_OK);
    assert_int_equal(match(&world, a, 1, KVE_TIER_GPU), 0);
    assert_int_equal(match(&world, a, 2, KVE_TIER_GPU), CHAIN * SIZE);
    stats = stats_of(&world);
    assert_int_equal(stats.residencies[KVE_TIER_GPU], CHAIN);
    assert_int_equal(stats.copies, CHAIN);
    tell(&world, a, KVE_EVENT_REMOVED, 2, CHAIN, "GPU");
    assert_int_equal(match(&world, a, 2, KVE_TIER_GPU), 0);
    tidy(&world);
    stats = stats_of(&world);
    assert_int_equal(stats.residencies[KVE_TIER_GPU], 0);
    assert_int_equal(stats.copies, 0);
    assert_int_equal(stats.blocks, 0);
    end(&world);
}

/* ---- threads ---- */

struct churn {
    struct world *world;
    atomic_bool over;
};

/* Instances that come with blocks and leave again, dropped or cleared. */
static void *
come_and_go(void *arg)
{
    struct churn *churn = arg;

    for (uint32_t i = 0; i < 150; i++) {
        kve_instance a = add(churn->world, "comes", i % 3);

        for (uint32_t k = 0; k < 8; k++)
            store(churn->world, a, k, k % 2 == 0 ? "GPU" : "CPU");
        if (i % 2 == 0)
            (void)kve_index_clear(churn->world->index, a, i % 4 == 0, NULL);
        store(churn->world, a, 9, "GPU");
        assert_int_equal(kve_index_drop(churn->world->index, a, NULL), KVE_OK);
    }
    atomic_store(&churn->over, true);
    return NULL;
}

/* What one instance holds does not depend on who else comes and goes, and who
 * left has no row. */
static void
test_others_come_and_go(void **state)
{
    struct world world;
    struct churn churn = { &world, false };
    kve_instance stays, gone;
    pthread_t thread;

    (void)state;
    begin(&world, NULL);
    stays = add(&world, "stays", 0);
    gone = add(&world, "gone", 0);
    for (uint32_t k = 0; k < 8; k++) {
        store(&world, stays, k, "GPU");
        store(&world, gone, k, "GPU");
    }
    assert_int_equal(kve_index_drop(world.index, gone, NULL), KVE_OK);
    assert_int_equal(pthread_create(&thread, NULL, come_and_go, &churn), 0);
    for (uint32_t i = 0; !atomic_load(&churn.over); i++) {
        assert_int_equal(
            match(&world, stays, i % 8, KVE_TIER_GPU), CHAIN * SIZE);
        assert_int_equal(match(&world, gone, i % 8, KVE_TIER_GPU), 0);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    tidy(&world);
    assert_int_equal(stats_of(&world).residencies[KVE_TIER_GPU], 8 * CHAIN);
    end(&world);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_drop_is_seen_at_once_and_drained_later),
        cmocka_unit_test(test_memory_comes_back),
        cmocka_unit_test(test_tiers_are_cleared_alone),
        cmocka_unit_test(test_clearing_names_of_its_own),
        cmocka_unit_test(test_a_twin_takes_the_place),
        cmocka_unit_test(test_others_come_and_go),
    };

    return cmocka_run_group_tests_name("index/lives", tests, NULL, NULL);
}
