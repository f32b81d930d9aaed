/*
 * test_restore.c - a dump that is given back is the instance it was made of.
 *
 * ctest-timeout: 600
 * ctest-label: single
 *
 * Random streams as in test_random.c, with lines "reload" among them: all
 * instances and twins are dumped, given back to another index, which then takes
 * the first one's place; dumps, answers, groups and statistics must agree with
 * the reference afterwards, and so must everything that is applied later.
 */
#include "base/alloc.h"
#include "streams.h"
#include "support/indexcheck.h"
#include "support/scale.h"

#include <kvevents/counters.h>

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS (3000u / TEST_SCALE)

/* "reload" before every line that says "?", as long as there is room. */
static void
add_reloads(struct script *script)
{
    for (size_t i = 0; i < script->n && script->n < SCRIPT_LINES; i++) {
        if (script->lines[i][0] != '?')
            continue;
        memmove(script->lines[i + 1], script->lines[i],
            (script->n - i) * sizeof(script->lines[0]));
        (void)strcpy(script->lines[i], "reload");
        script->n++;
        i++;
    }
}

static void
test_streams_with_reloads(void **state)
{
    uint64_t seed = streams_number("KVE_INDEX_SEED", 1);
    uint64_t n = streams_number("KVE_INDEX_STREAMS", STREAMS);
    struct script *script = malloc(sizeof(*script));
    char problem[512] = "";
    bool good = true;

    (void)state;
    assert_non_null(script);
    for (uint64_t i = 0; i < n && good; i++) {
        streams_draw(script, seed + i, false);
        add_reloads(script);
        good = script_run(script, problem);
        if (good)
            continue;
        (void)fprintf(stderr, "seed %" PRIu64 ": %s\n", seed + i, problem);
        script_shrink(script);
        script_print(script);
    }
    free(script);
    assert_true(good);
}

/* ---- Dynamo's hashes ---- */

static bool
say(void *ctx, const struct kve_index_dump *to)
{
    kve_index **from = ctx;

    return kve_index_dump_instance(
               *from, kve_index_find(*from, 1, "w", 0), to, NULL) == KVE_OK;
}

static kve_index *
index_with(kve_instance *ret_instance)
{
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    kve_index *index;

    assert_int_equal(kve_index_create(NULL, &index, NULL), KVE_OK);
    assert_int_equal(
        kve_index_namespace(index, "m", "", &spec.ns, NULL), KVE_OK);
    spec.worker = "w";
    assert_int_equal(kve_index_add(index, &spec, ret_instance, NULL), KVE_OK);
    return index;
}

/* Prefix in tokens that Dynamo's hashes find. */
static uint32_t
ask_dynamo(kve_index *index, const uint64_t *hashes, size_t n)
{
    struct kve_index_query query = KVE_INDEX_QUERY_INIT;
    struct kve_index_answer answer = KVE_INDEX_ANSWER_INIT;
    struct kve_index_row row;
    kve_index_reader *reader;

    assert_int_equal(kve_index_reader_create(index, &reader, NULL), KVE_OK);
    query.ns = 1;
    query.dynamo = hashes;
    query.n_dynamo = n;
    query.block_size = 4;
    answer.rows = &row;
    answer.cap = 1;
    assert_int_equal(kve_index_query(reader, &query, &answer, NULL), KVE_OK);
    kve_index_reader_destroy(reader);
    return answer.n == 0 ? 0 : row.longest;
}

struct seen {
    uint64_t dynamo[8];
    size_t n;
};

static bool
see_run(void *ctx, const struct kve_index_run *run)
{
    struct seen *seen = ctx;

    assert_non_null(run->dynamo);
    for (size_t i = 0; i < run->n_blocks; i++) {
        assert_true(run->dynamo[i] != run->contents[i]);
        seen->dynamo[seen->n++] = run->dynamo[i];
    }
    return true;
}

static void
test_hashes_of_dynamo_come_back(void **state)
{
    static struct eventtext text;
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct seen seen = { { 0 }, 0 };
    struct kve_index_dump look = { sizeof(look), &seen, see_run, NULL, NULL };
    kve_instance a, b;
    kve_index *from = index_with(&a), *to = index_with(&b);

    (void)state;
    eventtext_read(&text, "S[-]1,2,3 b=4 t=123412341234 lora=ad; R 2");
    view.events = text.events;
    view.n_events = text.n_events;
    assert_int_equal(
        kve_index_apply(from, a, &view, NULL, 0, NULL, NULL), KVE_OK);
    assert_int_equal(kve_index_dump_instance(from, a, &look, NULL), KVE_OK);
    assert_int_equal(seen.n, 3);
    assert_int_equal(ask_dynamo(from, seen.dynamo, 3), 4);

    assert_int_equal(
        kve_index_restore(to, b, NULL, 0, say, &from, NULL), KVE_OK);
    assert_int_equal(ask_dynamo(to, seen.dynamo, 3), 4);
    eventtext_read(&text, "S[1]2 b=4 t=1234 lora=ad");
    view.events = text.events;
    view.n_events = text.n_events;
    assert_int_equal(
        kve_index_apply(to, b, &view, NULL, 0, NULL, NULL), KVE_OK);
    assert_int_equal(ask_dynamo(to, seen.dynamo, 3), 12);
    kve_index_destroy(from);
    kve_index_destroy(to);
}

/* ---- callers of other releases ---- */

struct calls {
    size_t runs;
    size_t skipped;
};

static bool
count_run(void *ctx, const struct kve_index_run *run)
{
    (void)run;
    ((struct calls *)ctx)->runs++;
    return true;
}

static bool
count_skipped(void *ctx, const struct kve_index_skipped *skipped)
{
    (void)skipped;
    ((struct calls *)ctx)->skipped++;
    return true;
}

/* Callbacks that its struct_size does not have are not called; what this
 * library does not know is not left out without a word. */
static void
test_dump_for_callers_of_other_releases(void **state)
{
    static struct eventtext text;
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct calls calls = { 0, 0 };
    struct {
        struct kve_index_dump dump;
        void *later;
    } to = { { sizeof(to), &calls, count_run, NULL, count_skipped }, NULL };
    kve_instance instance;
    kve_index *index = index_with(&instance);

    (void)state;
    eventtext_read(&text, "S[-]10; S[99]12 kp=10 kt=55");
    view.events = text.events;
    view.n_events = text.n_events;
    assert_int_equal(
        kve_index_apply(index, instance, &view, NULL, 0, NULL, NULL), KVE_OK);
    assert_int_equal(
        kve_index_dump_instance(index, instance, &to.dump, NULL), KVE_OK);
    assert_true(calls.runs > 0 && calls.skipped > 0);

    calls = (struct calls){ 0, 0 };
    to.dump.struct_size = offsetof(struct kve_index_dump, skipped);
    assert_int_equal(
        kve_index_dump_instance(index, instance, &to.dump, NULL), KVE_OK);
    assert_true(calls.runs > 0 && calls.skipped == 0);

    calls = (struct calls){ 0, 0 };
    to.dump.struct_size = sizeof(to);
    to.later = &calls;
    assert_int_equal(
        kve_index_dump_instance(index, instance, &to.dump, NULL), KVE_E_INVAL);
    to.dump.struct_size = sizeof(size_t);
    assert_int_equal(
        kve_index_dump_instance(index, instance, &to.dump, NULL), KVE_E_INVAL);
    assert_int_equal(calls.runs, 0);
    kve_index_destroy(index);
}

/* ---- what is no dump ---- */

struct told {
    const struct kve_index_run *runs; /* each with the blocks below held */
    size_t n;
    const struct kve_hash *hashes; /* of all runs, in a row */
    const uint32_t *copies;
    bool ends_early;
};

static bool
tell(void *ctx, const struct kve_index_dump *to)
{
    const struct told *told = ctx;
    size_t at = 0;

    for (size_t i = 0; i < told->n; i++) {
        struct kve_index_held held = { .n_blocks = told->runs[i].n_blocks,
            .hashes = told->hashes + at,
            .copies = told->copies + at };

        if (!to->run(to->ctx, &told->runs[i]) || !to->held(to->ctx, &held))
            return false;
        at += held.n_blocks;
    }
    return !told->ends_early;
}

static kve_status
restore_told(struct told *told)
{
    kve_instance instance;
    kve_index *index = index_with(&instance);
    char problem[INDEXCHECK_TEXT] = "";
    kve_status status =
        kve_index_restore(index, instance, NULL, 0, tell, told, NULL);

    if (!indexcheck(index, true, problem))
        fail_msg("%s", problem);
    assert_int_equal(kve_index_clear(index, instance, 0, NULL), KVE_OK);
    while (kve_index_tidy(index, 100000))
        continue;
    if (!indexcheck_empty(index, problem))
        fail_msg("%s", problem);
    kve_index_destroy(index);
    return status;
}

static void
test_what_contradicts_itself_is_refused(void **state)
{
    static const uint64_t contents[] = { 7, 8, 9 };
    static const uint32_t copies[] = { 1, 1, 1, 1, 1, 1 };
    const struct kve_index_run good = { .id = 1,
        .rooted = true,
        .taught = true,
        .block_size = 4,
        .n_blocks = 3,
        .contents = contents };
    struct kve_hash hashes[] = { { NULL, { 1 } }, { NULL, { 2 } },
        { NULL, { 3 } }, { NULL, { 4 } }, { NULL, { 5 } }, { NULL, { 6 } } };
    struct kve_index_run runs[2] = { good, good };
    struct told told = { runs, 2, hashes, copies, false };

    (void)state;
    runs[1].parent = 1;
    assert_int_equal(restore_told(&told), KVE_OK);
    told.ends_early = true;
    assert_int_equal(restore_told(&told), KVE_E_CLOSED);
    told.ends_early = false;

    runs[1].parent = 3; /* there is none */
    assert_int_equal(restore_told(&told), KVE_E_INVAL);
    runs[1].parent = 2; /* itself */
    assert_int_equal(restore_told(&told), KVE_E_INVAL);
    runs[1].parent = 1;
    hashes[4].integer = 2; /* here and there */
    assert_int_equal(restore_told(&told), KVE_E_INVAL);
    runs[1].taught = false;
    assert_int_equal(restore_told(&told), KVE_E_INVAL);
    runs[0].taught = false;
    runs[1].taught = true;
    runs[1].parent = 0;
    assert_int_equal(restore_told(&told), KVE_E_INVAL);
    hashes[4].integer = 5;
    assert_int_equal(restore_told(&told), KVE_OK);
    runs[1].parent = 1; /* blocks by hash only have no place */
    assert_int_equal(restore_told(&told), KVE_E_INVAL);
    runs[0].taught = true;
    hashes[1].integer = 1; /* twice in one run */
    assert_int_equal(restore_told(&told), KVE_E_INVAL);
    hashes[1].integer = 2;
    runs[1].block_size = 0;
    assert_int_equal(restore_told(&told), KVE_E_INVAL);
    runs[1].block_size = 4;
    runs[1].contents = NULL;
    assert_int_equal(restore_told(&told), KVE_E_INVAL);
    /* Waits for a parent of its own chain: nothing is joined for it. */
    runs[1].contents = contents;
    runs[1].parent = 0;
    runs[1].rooted = false;
    runs[1].waits_for = hashes[5];
    assert_int_equal(restore_told(&told), KVE_OK);
    /* Two runs that say the same. */
    runs[1] = good;
    assert_int_equal(restore_told(&told), KVE_OK);
    told.n = 1;
    runs[0].n_blocks = 0;
    assert_int_equal(restore_told(&told), KVE_E_INVAL);
}

static void
test_only_to_what_holds_nothing(void **state)
{
    static struct eventtext text;
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    kve_instance a, b, twin;
    kve_index *from = index_with(&a), *to = index_with(&b);

    (void)state;
    eventtext_read(&text, "S[-]1,2,3");
    view.events = text.events;
    view.n_events = text.n_events;
    assert_int_equal(
        kve_index_apply(to, b, &view, NULL, 0, NULL, NULL), KVE_OK);
    assert_int_equal(
        kve_index_restore(to, b, NULL, 0, say, &from, NULL), KVE_E_INVAL);
    assert_int_equal(kve_index_rebuild_begin(to, b, &twin, NULL), KVE_OK);
    assert_int_equal(
        kve_index_restore(to, twin, NULL, 0, say, &from, NULL), KVE_OK);
    assert_int_equal(
        kve_index_restore(to, b + (1u << 20), NULL, 0, say, &from, NULL),
        KVE_E_NOT_FOUND);
    kve_index_destroy(from);
    kve_index_destroy(to);
}

/* ---- no room ---- */

#define CHAINS 600u
#define CHAIN 256u

/* Runs of one long chain each, and one that begins in the middle of it. */
static bool
tell_much(void *ctx, const struct kve_index_dump *to)
{
    static uint64_t contents[CHAIN];
    static struct kve_hash hashes[CHAIN];
    static uint32_t copies[CHAIN];

    (void)ctx;
    for (uint64_t chain = 0; chain < CHAINS; chain++) {
        struct kve_index_run run = { .id = chain + 1,
            .parent = chain % 2 == 0 ? 0 : chain,
            .rooted = chain % 2 == 0,
            .taught = true,
            .block_size = 16,
            .n_blocks = CHAIN,
            .contents = contents };
        struct kve_index_held held = {
            .n_blocks = CHAIN, .hashes = hashes, .copies = copies
        };

        for (uint64_t i = 0; i < CHAIN; i++) {
            contents[i] = (chain * CHAIN + i) * UINT64_C(0x9e3779b97f4a7c15);
            hashes[i].integer = ~contents[i];
            copies[i] = i % 7 == 3 ? 0 : 1 + (i % 11 == 0);
        }
        if (!to->run(to->ctx, &run) || !to->held(to->ctx, &held))
            return false;
    }
    return true;
}

static void
test_what_has_no_room_is_forgotten(void **state)
{
    struct kve_index_opts opts = KVE_INDEX_OPTS_INIT;
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;
    char problem[INDEXCHECK_TEXT] = "";
    kve_instance instance;
    kve_index *index;

    (void)state;
    opts.max_bytes = 6u << 20;
    assert_int_equal(kve_index_create(&opts, &index, NULL), KVE_OK);
    assert_int_equal(
        kve_index_namespace(index, "m", "", &spec.ns, NULL), KVE_OK);
    spec.worker = "w";
    assert_int_equal(kve_index_add(index, &spec, &instance, NULL), KVE_OK);
    assert_int_equal(
        kve_index_restore(index, instance, NULL, 0, tell_much, NULL, NULL),
        KVE_OK);
    assert_int_equal(kve_index_get_stats(index, 0, &stats), KVE_OK);
    assert_true(stats.bytes <= opts.max_bytes);
    assert_true(stats.residencies[KVE_TIER_GPU] > 1000);
    assert_true(
        kve_index_counter(index, instance, KVE_COUNTER_INDEX_EVICTED) > 1000);
    if (!indexcheck(index, false, problem))
        fail_msg("%s", problem);
    kve_index_destroy(index);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hashes_of_dynamo_come_back),
        cmocka_unit_test(test_dump_for_callers_of_other_releases),
        cmocka_unit_test(test_what_contradicts_itself_is_refused),
        cmocka_unit_test(test_only_to_what_holds_nothing),
        cmocka_unit_test(test_what_has_no_room_is_forgotten),
        cmocka_unit_test(test_streams_with_reloads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
