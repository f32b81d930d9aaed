/*
 * test_explain.c - where and why a match ends.
 *
 * ctest-timeout: 600
 *
 * By hand: each reason once, in the smallest world that has it. At random: the
 * streams of test_random.c; after each question whose rows agree every
 * instance is explained, and index and reference must say the same. The end
 * that is said is the row's longest.
 */
#include "index/space.h"
#include "streams.h"
#include "support/scale.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS (1500u / TEST_SCALE)

static uint64_t seen[16]; /* how often each reason was said */

/* ---- against the reference ---- */

/* The smallest block size that a namespace ever had. */
static uint32_t
least_size(const struct world *w, kve_namespace ns)
{
    const struct kve_space *space = w->index->spaces[ns - 1];
    uint32_t least = 0;

    for (uint32_t i = 0; i < KVE_SPACE_SIZES && space->sizes[i] != 0; i++)
        if (least == 0 || space->sizes[i] < least)
            least = space->sizes[i];
    return least;
}

static bool
explained_alike(struct world *w, const struct kve_index_query *q,
    const char *what, kve_instance instance)
{
    struct kve_index_ended real = KVE_INDEX_ENDED_INIT;
    struct kve_index_ended want;
    kve_status status = kve_index_explain(w->reader, q, instance, &real, NULL);

    ref_explain(&w->ref, q, instance, least_size(w, q->ns), &want);
    if (status == KVE_OK && real.why < sizeof(seen) / sizeof(seen[0]))
        seen[real.why]++;
    if (status == KVE_OK && real.why == want.why && real.at == want.at &&
        real.other == want.other && real.group.set == want.group.set &&
        real.group.value == want.group.value)
        return true;
    (void)snprintf(w->problem, sizeof(w->problem),
        "%.200s: explained as %s at %" PRIu32 " other %" PRIu32
        " group %" PRId64 " (%s), should be %s at %" PRIu32 " other %" PRIu32
        " group %" PRId64,
        what, kve_ended_str(real.why), real.at, real.other, real.group.value,
        kve_status_str(status), kve_ended_str(want.why), want.at, want.other,
        want.group.value);
    return false;
}

static bool
explain_all(struct world *w, const struct kve_index_query *q, const char *what)
{
    for (size_t i = 0; i < WORLD_LETTERS; i++)
        if (w->ids[i] != 0 && !explained_alike(w, q, what, w->ids[i]))
            return false;
    return true;
}

static void
test_streams_are_explained(void **state)
{
    (void)state;
    memset(seen, 0, sizeof(seen));
    world_also = explain_all;
    assert_true(streams_run(STREAMS));
    world_also = NULL;
    for (unsigned why = 1; why <= 9; why++)
        (void)fprintf(
            stderr, "%s: %" PRIu64 "\n", kve_ended_str(why), seen[why]);
    /* A stream that never has one of them tests it not at all. */
    for (unsigned why = 1; why <= KVE_ENDED_NOTHING; why++)
        assert_true(seen[why] > 0);
    assert_int_equal(seen[KVE_ENDED_MOVING], 0);
}

/* ---- by hand ---- */

/* Lines of a world; then instance letter is asked for prompt 0 (as the world
 * has it) and must be told so. */
static const struct {
    const char *name;
    const char *lines[8];
    const char *prompt;
    char letter;
    bool recompute_last;
    uint32_t why;
    uint32_t at;
    uint32_t other;
    int64_t group;
} rows[] = {
    { "a rest shorter than a block", { "+A", "A: S[-]1,2 t=1122" }, "11221",
        'A', false, KVE_ENDED_PROMPT_END, 4, 0, 0 },
    { "the last token is computed anyway", { "+A", "A: S[-]1,2 t=1122" },
        "1122", 'A', true, KVE_ENDED_PROMPT_END, 2, 0, 0 },
    { "nobody has it", { "+A", "A: S[-]1 t=11" }, "1122", 'A', false,
        KVE_ENDED_NOT_STORED, 2, 0, 0 },
    { "another one has it",
        { "+A", "+B", "A: S[-]1 t=11", "B: S[-]5,6 t=1122" }, "1122", 'A',
        false, KVE_ENDED_NOT_HELD, 2, 0, 0 },
    { "a hole", { "+A", "A: S[-]1,2,3 t=112211", "A: R 2" }, "112211", 'A',
        false, KVE_ENDED_HOLE, 2, 6, 0 },
    { "under an adapter", { "+A", "A: S[-]1,2 t=1122 lora=ad" }, "1122", 'A',
        false, KVE_ENDED_OTHER_ROOT, 0, 4, 0 },
    { "a window that is not full",
        { "+A",
            "A: S[-]1,2,3,4 t=11223344 g=0 k=full; "
            "S[3]4 t=44 g=1 k=swa w=4" },
        "11223344", 'A', false, KVE_ENDED_GROUP, 0, 8, 1 },
    { "on a tier that is not asked for",
        { "+A", "A: S[-]1 t=11; S[1]2 t=22 @STORAGE loc=REMOTE e=" }, "1122",
        'A', false, KVE_ENDED_OTHER_TIER, 2, 4, 0 },
    { "empty", { "+A", "+B", "B: S[-]1 t=11" }, "1122", 'A', false,
        KVE_ENDED_NOTHING, 0, 0, 0 },
};

static kve_status
explain_row(struct world *w, size_t i, struct kve_index_ended *ret)
{
    struct kve_index_query q = KVE_INDEX_QUERY_INIT;
    uint32_t tokens[16];

    q.n_tokens = strlen(rows[i].prompt);
    for (size_t k = 0; k < q.n_tokens; k++)
        tokens[k] = (uint32_t)(rows[i].prompt[k] - '0');
    q.ns = w->ns[0];
    q.tokens = tokens;
    q.recompute_last = rows[i].recompute_last;
    return kve_index_explain(
        w->reader, &q, world_id(w, rows[i].letter), ret, NULL);
}

static void
test_each_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct kve_index_ended ended = KVE_INDEX_ENDED_INIT;
        struct world *w = calloc(1, sizeof(*w));

        assert_non_null(w);
        assert_true(world_init(w, NULL));
        for (size_t k = 0; k < 8 && rows[i].lines[k] != NULL; k++)
            if (!world_run(w, rows[i].lines[k]))
                fail_msg(
                    "%s: %s: %s", rows[i].name, rows[i].lines[k], w->problem);
        assert_int_equal(explain_row(w, i, &ended), KVE_OK);
        if (ended.why != rows[i].why || ended.at != rows[i].at ||
            ended.other != rows[i].other || ended.group.value != rows[i].group)
            fail_msg("%s: %s at %u other %u, should be %s at %u other %u",
                rows[i].name, kve_ended_str(ended.why), ended.at, ended.other,
                kve_ended_str(rows[i].why), rows[i].at, rows[i].other);
        world_release(w);
        free(w);
    }
}

/* ---- what can not be asked ---- */

static void
test_questions_that_are_none(void **state)
{
    struct kve_index_query q = KVE_INDEX_QUERY_INIT;
    struct kve_index_ended ended = KVE_INDEX_ENDED_INIT;
    struct world *w = calloc(1, sizeof(*w));
    const uint32_t tokens[2] = { 1, 1 };

    (void)state;
    assert_non_null(w);
    assert_true(world_init(w, NULL));
    assert_true(world_run(w, "+A"));
    assert_true(world_run(w, "A: S[-]1 t=11"));
    q.ns = w->ns[0];
    assert_int_equal(
        kve_index_explain(w->reader, &q, world_id(w, 'A'), &ended, NULL),
        KVE_E_INVAL);
    q.tokens = tokens;
    q.n_tokens = 2;
    q.ns = 77;
    assert_int_equal(
        kve_index_explain(w->reader, &q, world_id(w, 'A'), &ended, NULL),
        KVE_E_NOT_FOUND);
    q.ns = w->ns[1]; /* not the instance's */
    assert_int_equal(
        kve_index_explain(w->reader, &q, world_id(w, 'A'), &ended, NULL),
        KVE_OK);
    assert_int_equal(ended.why, KVE_ENDED_NOTHING);
    q.ns = w->ns[0];
    assert_int_equal(
        kve_index_explain(w->reader, &q, UINT64_MAX, &ended, NULL), KVE_OK);
    assert_int_equal(ended.why, KVE_ENDED_NOTHING);
    assert_string_equal(kve_ended_str(0), "?");
    assert_string_equal(kve_ended_str(KVE_ENDED_HOLE), "hole");
    world_release(w);
    free(w);
}

/* ---- beside a writer ---- */

#define TURNS (20000u / TEST_SCALE)

struct beside {
    struct world *w;
    _Atomic bool done;
};

/* A's third block comes and goes; everything else stays. */
static void *
write_and_take(void *ctx)
{
    struct beside *b = ctx;
    struct eventtext *store = calloc(1, sizeof(*store));
    struct eventtext *take = calloc(1, sizeof(*take));

    if (store == NULL || take == NULL)
        abort();
    eventtext_read(store, "S[2]3 t=33");
    eventtext_read(take, "R 3");
    for (unsigned i = 0; i < TURNS; i++) {
        struct eventtext *et = i % 2 == 0 ? store : take;
        struct kve_batch_view view = KVE_BATCH_VIEW_INIT;

        view.events = et->events;
        view.n_events = et->n_events;
        if (kve_index_apply(b->w->index, world_id(b->w, 'A'), &view, NULL, 0,
                NULL, NULL) != KVE_OK)
            abort();
    }
    atomic_store(&b->done, true);
    free(store);
    free(take);
    return NULL;
}

/* What is said is true of one moment: the block is there, or others have it. */
static void
test_beside_a_writer(void **state)
{
    const uint32_t tokens[] = { 1, 1, 2, 2, 3, 3 };
    struct kve_index_query q = KVE_INDEX_QUERY_INIT;
    struct world *w = calloc(1, sizeof(*w));
    struct beside b = { .w = w };
    pthread_t thread;
    unsigned n[2] = { 0, 0 };

    (void)state;
    assert_non_null(w);
    assert_true(world_init(w, NULL));
    assert_true(world_run(w, "+A"));
    assert_true(world_run(w, "+B"));
    assert_true(world_run(w, "A: S[-]1,2 t=1122"));
    assert_true(world_run(w, "B: S[-]1,2,3 t=112233"));
    q.ns = w->ns[0];
    q.tokens = tokens;
    q.n_tokens = 6;
    assert_int_equal(pthread_create(&thread, NULL, write_and_take, &b), 0);
    while (!atomic_load(&b.done)) {
        struct kve_index_ended ended = KVE_INDEX_ENDED_INIT;
        bool there;

        assert_int_equal(
            kve_index_explain(w->reader, &q, world_id(w, 'A'), &ended, NULL),
            KVE_OK);
        if (ended.why == KVE_ENDED_MOVING)
            continue;
        there = ended.at == 6;
        n[there]++;
        if (ended.why != (there ? KVE_ENDED_PROMPT_END : KVE_ENDED_NOT_HELD) ||
            (!there && ended.at != 4))
            fail_msg("%s at %u", kve_ended_str(ended.why), ended.at);
    }
    (void)pthread_join(thread, NULL);
    (void)fprintf(stderr, "%u times without it, %u with\n", n[0], n[1]);
    world_release(w);
    free(w);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_reason),
        cmocka_unit_test(test_questions_that_are_none),
        cmocka_unit_test(test_beside_a_writer),
        cmocka_unit_test(test_streams_are_explained),
    };

    return cmocka_run_group_tests_name("index/explain", tests, NULL, NULL);
}
