/*
 * churn.c - see churn.h.
 */
#include "churn.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define MIB ((uint64_t)1024 * 1024)

static uint64_t
mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static void
name(uint64_t n, struct kve_hash *hashes, uint64_t *contents)
{
    for (uint64_t i = 0; i < CHURN_BLOCKS; i++) {
        hashes[i] = (struct kve_hash){ NULL, { mix(2 * (8 * n + i)) } };
        contents[i] = mix(2 * (8 * n + i) + 1);
    }
}

static void
apply(kve_index *index, kve_instance instance, unsigned type, uint64_t n)
{
    struct kve_hash hashes[CHURN_BLOCKS];
    uint64_t contents[CHURN_BLOCKS];
    struct kve_event ev = { .type = (uint8_t)type,
        .block_size = CHURN_TOKENS,
        .hashes = hashes,
        .n_hashes = CHURN_BLOCKS };
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;

    name(n, hashes, contents);
    ev.tier = KVE_TIER_GPU;
    view.events = &ev;
    view.n_events = 1;
    assert_int_equal(
        kve_index_apply(index, instance, &view, contents,
            type == KVE_EVENT_STORED ? CHURN_BLOCKS : 0, NULL, NULL),
        KVE_OK);
}

void
churn_store(kve_index *index, kve_instance instance, uint64_t n)
{
    apply(index, instance, KVE_EVENT_STORED, n);
}

void
churn_remove(kve_index *index, kve_instance instance, uint64_t n)
{
    apply(index, instance, KVE_EVENT_REMOVED, n);
}

uint32_t
churn_match(kve_index_reader *reader, kve_namespace ns, uint64_t n)
{
    struct kve_index_query q = KVE_INDEX_QUERY_INIT;
    struct kve_index_answer answer = KVE_INDEX_ANSWER_INIT;
    struct kve_hash hashes[CHURN_BLOCKS];
    uint64_t contents[CHURN_BLOCKS];
    struct kve_index_row row;

    name(n, hashes, contents);
    q.ns = ns;
    q.contents = contents;
    q.n_contents = CHURN_BLOCKS;
    q.block_size = CHURN_TOKENS;
    answer.rows = &row;
    answer.cap = 1;
    assert_int_equal(kve_index_query(reader, &q, &answer, NULL), KVE_OK);
    return answer.n > 0 ? row.alone[KVE_TIER_GPU] : 0;
}

void
churn_init(struct churn *churn, uint64_t max_bytes)
{
    struct kve_index_opts opts = KVE_INDEX_OPTS_INIT;
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;

    opts.max_bytes = max_bytes;
    assert_int_equal(kve_index_create(&opts, &churn->index, NULL), KVE_OK);
    assert_int_equal(
        kve_index_namespace(churn->index, "m", "", &churn->ns, NULL), KVE_OK);
    spec.ns = churn->ns;
    spec.worker = "a";
    assert_int_equal(
        kve_index_add(churn->index, &spec, &churn->instance, NULL), KVE_OK);
    assert_int_equal(
        kve_index_reader_create(churn->index, &churn->reader, NULL), KVE_OK);
}

void
churn_release(struct churn *churn)
{
    kve_index_reader_destroy(churn->reader);
    kve_index_destroy(churn->index);
}

static uint64_t
resident(void)
{
    unsigned long pages = 0, size = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu %lu", &size, &pages), 2);
    (void)fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t
allocated(const struct churn *churn)
{
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;

    assert_int_equal(kve_index_get_stats(churn->index, 0, &stats), KVE_OK);
    return stats.bytes;
}

void
churn_run(uint64_t n, uint64_t live)
{
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;
    struct churn churn;
    uint64_t warm_bytes = 0, warm_resident = 0, most = 0;

    churn_init(&churn, 0);
    for (uint64_t i = 0; i < n; i++) {
        churn_store(churn.index, churn.instance, i);
        if (i >= live)
            churn_remove(churn.index, churn.instance, i - live);
        if (i == n / 10) {
            warm_bytes = allocated(&churn);
            warm_resident = resident();
        }
        if (i > n / 10 && i % 1024 == 0 && allocated(&churn) > most)
            most = allocated(&churn);
    }
    print_message("allocated %" PRIu64 " KiB when warm, then at most %" PRIu64
                  "; resident %" PRIu64 " KiB, at the end %" PRIu64 "\n",
        warm_bytes >> 10, most >> 10, warm_resident >> 10, resident() >> 10);
    assert_true(most <= warm_bytes + warm_bytes / 4 + MIB);
    /* Shadow memory of a sanitizer is resident, too. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(resident() <= warm_resident + 8 * MIB);
#endif

    assert_int_equal(kve_index_get_stats(churn.index, 0, &stats), KVE_OK);
    assert_int_equal(stats.residencies[KVE_TIER_GPU], live * CHURN_BLOCKS);
    for (uint64_t i = n - live; i < n; i += 1 + live / 100)
        assert_int_equal(churn_match(churn.reader, churn.ns, i),
            CHURN_BLOCKS * CHURN_TOKENS);
    for (uint64_t i = 0; i < n - live; i += 1 + n / 100)
        assert_int_equal(churn_match(churn.reader, churn.ns, i), 0);
    for (uint64_t i = n - live; i < n; i++)
        churn_remove(churn.index, churn.instance, i);
    while (kve_index_tidy(churn.index, 1000))
        ;
    assert_int_equal(kve_index_get_stats(churn.index, 0, &stats), KVE_OK);
    assert_int_equal(stats.blocks, 0);
    assert_int_equal(stats.runs, 0);
    churn_release(&churn);
}
