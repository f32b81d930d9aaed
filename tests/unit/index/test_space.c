/*
 * Namespaces, instances, scopes, groups, roots: everything of an index but its
 * blocks. Limits, names, lives and their ends, from several threads, and with
 * every allocation failing in turn.
 *
 * ctest-timeout: 300
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "hash/dynamo.h"
#include "index/run.h"

#include <kvevents/index.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

static struct kve_str
str(const char *text)
{
    struct kve_str s = { text, text == NULL ? 0 : strlen(text) };

    return s;
}

static kve_index *
make_index(const struct kve_index_opts *opts)
{
    kve_index *index = NULL;
    struct kve_error err = { 0 };

    if (kve_index_create(opts, &index, &err) != KVE_OK)
        fail_msg("create: %s", err.detail);
    return index;
}

static kve_namespace
make_ns(kve_index *index, const char *model)
{
    kve_namespace ns = 0;

    assert_int_equal(kve_index_namespace(index, model, "t", &ns, NULL), KVE_OK);
    return ns;
}

static kve_status
try_add(kve_index *index, kve_namespace ns, const char *worker, uint32_t rank,
    kve_instance *ret)
{
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;

    spec.ns = ns;
    spec.worker = worker;
    spec.rank = rank;
    return kve_index_add(index, &spec, ret, NULL);
}

static kve_instance
must_add(kve_index *index, kve_namespace ns, const char *worker, uint32_t rank)
{
    kve_instance instance = 0;

    assert_int_equal(try_add(index, ns, worker, rank, &instance), KVE_OK);
    assert_int_not_equal(instance, 0);
    return instance;
}

static void
count(kve_index *index, kve_instance instance, unsigned counter, uint64_t n)
{
    struct kve_inst *inst = kve_inst_lock(index, instance);

    assert_non_null(inst);
    kve_index_count(inst, counter, n);
    kve_space_unlock(inst->space);
}

static struct kve_event
store_of(const char *medium, const char *locality, const char *ownership,
    int64_t group)
{
    struct kve_event event = { .type = KVE_EVENT_STORED };

    event.medium = str(medium);
    event.locality = str(locality);
    event.ownership = str(ownership);
    if (group >= 0) {
        event.group_idx.set = true;
        event.group_idx.value = group;
    }
    event.block_size = 16;
    return event;
}

/* ---- options ---- */

static void
test_options_are_checked(void **state)
{
    static const struct {
        const char *text; /* of the error; NULL: fine */
        struct kve_index_opts opts;
    } rows[] = {
        { NULL, { .max_bytes = 0 } },
        { NULL, { .max_bytes = UINT64_C(4) << 20 } },
        { "max_bytes", { .max_bytes = (UINT64_C(4) << 20) - 1 } },
        { NULL, { .max_namespaces = 1, .max_instances = 1, .max_scopes = 1 } },
        { "max_namespaces", { .max_namespaces = UINT32_MAX } },
        { "max_instances", { .max_instances = UINT32_MAX } },
        { "max_scopes", { .max_scopes = UINT32_MAX } },
        { NULL, { .counting = KVE_COUNTING_SET } },
        { "counting", { .counting = 3 } },
        { NULL, { .clearing = KVE_CLEARING_GPU } },
        { "clearing", { .clearing = 3 } },
        { "no_mixed_forms", { .no_mixed_forms = 2 } },
        { "struct_size", { .struct_size = 8 } },
    };

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        struct kve_error err = { 0 };
        kve_index *index = NULL;
        kve_status status = kve_index_create(&rows[i].opts, &index, &err);

        if (rows[i].text == NULL) {
            assert_int_equal(status, KVE_OK);
            assert_non_null(index);
        } else {
            assert_int_equal(status, KVE_E_INVAL);
            assert_null(index);
            if (strstr(err.detail, rows[i].text) == NULL)
                fail_msg("row %zu: '%s'", i, err.detail);
        }
        kve_index_destroy(index);
    }
    kve_index_destroy(NULL);
}

static void
test_initializers_say_the_size_only(void **state)
{
    struct kve_index_opts opts;
    struct kve_instance_spec spec;
    struct kve_index_stats stats;

    (void)state;
    memset(&opts, 0x55, sizeof(opts));
    memset(&spec, 0x55, sizeof(spec));
    memset(&stats, 0x55, sizeof(stats));
    kve_index_opts_init(&opts);
    assert_int_equal(opts.struct_size, sizeof(opts));
    assert_int_equal(opts.max_bytes, 0);
    assert_true(opts.max_namespaces == 0 && opts.max_instances == 0 &&
        opts.max_scopes == 0 && opts.counting == 0 && opts.clearing == 0 &&
        opts.no_mixed_forms == 0);
    kve_instance_spec_init(&spec);
    assert_int_equal(spec.struct_size, sizeof(spec));
    assert_true(spec.ns == 0 && spec.worker == NULL && spec.rank == 0 &&
        spec.counting == 0);
    kve_index_stats_init(&stats);
    assert_int_equal(stats.struct_size, sizeof(stats));
    assert_true(stats.bytes == 0 && stats.residencies[0] == 0 &&
        stats.residencies[4] == 0 && stats.namespaces == 0);
}

/* ---- namespaces ---- */

static void
test_namespaces_go_by_both_names(void **state)
{
    struct kve_index_opts opts = KVE_INDEX_OPTS_INIT;
    kve_namespace a = 0, b = 0, c = 0, d = 0, none = 77;
    char model[] = "llama";
    struct kve_error err = { 0 };
    kve_index *index;

    (void)state;
    opts.max_namespaces = 3;
    index = make_index(&opts);
    assert_int_equal(kve_index_find_namespace(index, "llama", "x"), 0);
    assert_int_equal(kve_index_namespace(index, model, "x", &a, NULL), KVE_OK);
    assert_int_equal(
        kve_index_namespace(index, "llama", "y", &b, NULL), KVE_OK);
    assert_int_equal(kve_index_namespace(index, NULL, NULL, &c, NULL), KVE_OK);
    assert_true(a != 0 && b != 0 && c != 0 && a != b && a != c && b != c);
    assert_int_equal(kve_index_namespace(index, "", "", &d, NULL), KVE_OK);
    assert_int_equal(d, c);

    model[0] = 'L'; /* it was copied */
    assert_int_equal(kve_index_find_namespace(index, "llama", "x"), a);
    assert_int_equal(kve_index_find_namespace(index, "llama", "y"), b);
    assert_int_equal(kve_index_find_namespace(index, NULL, ""), c);
    /* "llama" + "x" is not "llam" + "ax". */
    assert_int_equal(kve_index_find_namespace(index, "llam", "ax"), 0);

    assert_int_equal(
        kve_index_namespace(index, "more", "", &none, &err), KVE_E_LIMIT);
    assert_non_null(strstr(err.detail, "max_namespaces"));
    assert_int_equal(none, 77);
    assert_int_equal(
        kve_index_namespace(index, "llama", "x", &d, NULL), KVE_OK);
    assert_int_equal(d, a);
    kve_index_destroy(index);
}

/* ---- instances ---- */

static void
test_adding_refuses_what_can_not_be(void **state)
{
    struct kve_index_opts opts = KVE_INDEX_OPTS_INIT;
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    kve_instance a, got = 5;
    kve_namespace ns;
    kve_index *index;

    (void)state;
    opts.max_instances = 2;
    index = make_index(&opts);
    ns = make_ns(index, "m");
    spec.ns = ns;
    assert_int_equal(kve_index_add(index, &spec, &got, NULL), KVE_E_INVAL);
    spec.worker = "w";
    spec.counting = 3;
    assert_int_equal(kve_index_add(index, &spec, &got, NULL), KVE_E_INVAL);
    spec.counting = 0;
    spec.ns = ns + 1;
    assert_int_equal(kve_index_add(index, &spec, &got, NULL), KVE_E_NOT_FOUND);
    spec.ns = 0;
    assert_int_equal(kve_index_add(index, &spec, &got, NULL), KVE_E_NOT_FOUND);
    spec.ns = ns;
    spec.struct_size = 4;
    assert_int_equal(kve_index_add(index, &spec, &got, NULL), KVE_E_INVAL);
    assert_int_equal(got, 5);

    a = must_add(index, ns, "w", 0);
    assert_int_equal(try_add(index, ns, "w", 0, &got), KVE_E_IN_USE);
    assert_int_equal(got, a);
    (void)must_add(index, ns, "w", 1);
    assert_int_equal(try_add(index, ns, "w", 2, &got), KVE_E_LIMIT);
    assert_int_equal(kve_index_drop(index, a, NULL), KVE_OK);
    (void)must_add(index, ns, "w", 2);
    kve_index_destroy(index);
}

static void
test_an_instance_is_described(void **state)
{
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    struct kve_index_instance info;
    char worker[] = "10.0.0.1:8000";
    kve_index *index = make_index(NULL);
    kve_instance a, twin;

    (void)state;
    spec.ns = make_ns(index, "m");
    spec.worker = worker;
    spec.rank = 7;
    spec.counting = KVE_COUNTING_SET;
    assert_int_equal(kve_index_add(index, &spec, &a, NULL), KVE_OK);
    worker[0] = 'X'; /* it was copied */

    assert_int_equal(kve_index_get_instance(index, a, &info), KVE_OK);
    assert_int_equal(info.instance, a);
    assert_int_equal(info.ns, spec.ns);
    assert_string_equal(info.worker, "10.0.0.1:8000");
    assert_int_equal(info.rank, 7);
    assert_int_equal(info.counting, KVE_COUNTING_SET);
    assert_false(info.twin);

    assert_int_equal(kve_index_rebuild_begin(index, a, &twin, NULL), KVE_OK);
    assert_int_equal(kve_index_get_instance(index, a, &info), KVE_OK);
    assert_true(info.twin);
    assert_int_equal(kve_index_get_instance(index, twin, &info), KVE_OK);
    assert_int_equal(info.instance, twin);
    assert_int_equal(info.counting, KVE_COUNTING_COPIES);
    assert_int_equal(
        kve_index_get_instance(index, 12345, &info), KVE_E_NOT_FOUND);
    kve_index_destroy(index);
}

static void
test_ranks_of_a_worker(void **state)
{
    static const uint32_t ranks[] = { 5, 0, 4000000000u, 3, 1 };
    kve_index *index = make_index(NULL);
    kve_namespace ns = make_ns(index, "m"), other = make_ns(index, "n");
    kve_instance named[N_OF(ranks)], elsewhere;
    kve_instance got = 0;
    size_t n = 99;

    (void)state;
    for (size_t i = 0; i < N_OF(ranks); i++)
        named[i] = must_add(index, ns, "w", ranks[i]);
    elsewhere = must_add(index, other, "w", 3);
    for (size_t i = 0; i < N_OF(ranks); i++)
        assert_int_equal(kve_index_find(index, ns, "w", ranks[i]), named[i]);
    assert_int_equal(kve_index_find(index, ns, "w", 2), 0);
    assert_int_equal(kve_index_find(index, ns, "v", 3), 0);
    assert_int_equal(kve_index_find(index, ns, NULL, 3), 0);
    assert_int_equal(kve_index_find(index, 0, "w", 3), 0);

    /* Another rank of the same worker, there or not. */
    assert_int_equal(kve_index_rank(index, named[0], 3, &got, NULL), KVE_OK);
    assert_int_equal(got, named[3]);
    assert_int_equal(kve_index_rank(index, named[0], 9, &got, NULL), KVE_OK);
    assert_int_equal(kve_index_find(index, ns, "w", 9), got);

    assert_int_equal(kve_index_drop(index, named[3], NULL), KVE_OK);
    assert_int_equal(kve_index_find(index, ns, "w", 3), 0);
    assert_int_equal(
        kve_index_rank(index, named[3], 5, &got, NULL), KVE_E_NOT_FOUND);
    assert_int_equal(kve_index_drop_worker(index, ns, "w", &n, NULL), KVE_OK);
    assert_int_equal(n, N_OF(ranks));
    for (size_t i = 0; i < N_OF(ranks); i++)
        assert_int_equal(kve_index_find(index, ns, "w", ranks[i]), 0);
    assert_int_equal(kve_index_find(index, other, "w", 3), elsewhere);
    assert_int_equal(
        kve_index_drop_worker(index, ns, "w", &n, NULL), KVE_E_NOT_FOUND);
    assert_int_equal(
        kve_index_drop_worker(index, 9, "w", &n, NULL), KVE_E_NOT_FOUND);
    assert_int_equal(
        kve_index_drop_worker(index, ns, NULL, &n, NULL), KVE_E_INVAL);
    assert_int_equal(n, N_OF(ranks));
    assert_int_equal(
        kve_index_drop_worker(index, other, "w", NULL, NULL), KVE_OK);
    kve_index_destroy(index);
}

/* Nothing that takes a handle takes this one. */
static void
expect_dead(kve_index *index, kve_instance dead)
{
    struct kve_index_instance info;
    struct kve_index_group groups[1];
    kve_instance twin;

    assert_null(kve_inst_lock(index, dead));
    assert_int_equal(
        kve_index_get_instance(index, dead, &info), KVE_E_NOT_FOUND);
    assert_int_equal(kve_index_groups(index, dead, groups, 1), 0);
    assert_int_equal(kve_index_clear(index, dead, 0, NULL), KVE_E_NOT_FOUND);
    assert_int_equal(kve_index_drop(index, dead, NULL), KVE_E_NOT_FOUND);
    assert_int_equal(
        kve_index_rebuild_begin(index, dead, &twin, NULL), KVE_E_NOT_FOUND);
    assert_int_equal(
        kve_index_rebuild_commit(index, dead, NULL), KVE_E_NOT_FOUND);
    assert_int_equal(
        kve_index_rebuild_abort(index, dead, NULL), KVE_E_NOT_FOUND);
    assert_int_equal(
        kve_index_counter(index, dead, KVE_COUNTER_INDEX_STORED), 0);
}

static void
test_names_of_instances_are_not_used_twice(void **state)
{
    kve_index *index = make_index(NULL);
    kve_namespace ns = make_ns(index, "m"), other = make_ns(index, "n");
    kve_instance seen[200];

    (void)state;
    expect_dead(index, 0);
    expect_dead(index, 1);
    expect_dead(index, UINT64_MAX);
    for (size_t i = 0; i < N_OF(seen); i++) {
        seen[i] = must_add(index, i % 2 == 0 ? ns : other, "w", 0);
        count(index, seen[i], KVE_COUNTER_INDEX_STORED, 10);
        if (i > 0)
            expect_dead(index, seen[i - 1]);
        assert_int_equal(
            kve_index_counter(index, seen[i], KVE_COUNTER_INDEX_STORED), 10);
        assert_int_equal(kve_index_drop(index, seen[i], NULL), KVE_OK);
        for (size_t k = 0; k < i; k++)
            assert_int_not_equal(seen[k], seen[i]);
        assert_int_equal(kve_index_counter(index, 0, KVE_COUNTER_INDEX_STORED),
            10 * (i + 1));
    }
    /* The slot was the same one all the time. */
    assert_int_equal(seen[0] & 0xffffffffu, seen[199] & 0xffffffffu);
    kve_index_destroy(index);
}

/* A slot that was given as often as its generation can count is not given
 * again. */
static void
test_a_worn_out_slot_rests(void **state)
{
    struct kve_index_opts opts = KVE_INDEX_OPTS_INIT;
    kve_instance a, b, c;
    kve_namespace ns;
    kve_index *index;

    (void)state;
    opts.max_instances = 1;
    index = make_index(&opts);
    ns = make_ns(index, "m");
    a = must_add(index, ns, "w", 0);
    assert_int_equal(kve_index_drop(index, a, NULL), KVE_OK);
    kve_slot_at(index, (uint32_t)a - 1)->generation = 0x7ffffffeu;
    b = must_add(index, ns, "w", 0);
    assert_int_equal(b >> 32, 0x7fffffff);
    assert_int_equal(kve_index_drop(index, b, NULL), KVE_OK);
    c = must_add(index, ns, "w", 0);
    assert_int_not_equal(c & 0xffffffffu, b & 0xffffffffu);
    expect_dead(index, b);
    assert_int_equal(kve_index_drop(index, c, NULL), KVE_OK);
    kve_index_destroy(index);
}

#define MANY 10000u

static void
name_of(char *text, size_t cap, uint32_t i)
{
    (void)snprintf(text, cap, "worker-%u.example:%u", i / 4, 8000 + i / 4);
}

/* As many as a large fleet has: all are found, and all leave. */
static void
test_ten_thousand_instances(void **state)
{
    kve_instance *all = calloc(MANY, sizeof(*all));
    kve_instance *listed = calloc(MANY, sizeof(*listed));
    kve_index *index = make_index(NULL);
    kve_namespace ns = make_ns(index, "m"), empty = make_ns(index, "n");
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;
    struct kve_index_stats after = KVE_INDEX_STATS_INIT;
    char name[64];

    (void)state;
    assert_non_null(all);
    assert_non_null(listed);
    for (uint32_t i = 0; i < MANY; i++) {
        name_of(name, sizeof(name), i);
        all[i] = must_add(index, ns, name, i % 4);
    }
    for (uint32_t i = 0; i < MANY; i++) {
        name_of(name, sizeof(name), i);
        assert_int_equal(kve_index_find(index, ns, name, i % 4), all[i]);
    }
    assert_int_equal(kve_index_instances(index, 0, listed, MANY), MANY);
    for (uint32_t i = 0; i < MANY; i++)
        assert_int_equal(listed[i], all[i]); /* slots were new */
    assert_int_equal(kve_index_instances(index, ns, listed, 3), MANY);
    assert_int_equal(kve_index_instances(index, empty, listed, MANY), 0);
    assert_int_equal(kve_index_get_stats(index, 0, &stats), KVE_OK);
    assert_int_equal(stats.instances, MANY);

    for (uint32_t i = 0; i < MANY; i += 4) {
        size_t n = 0;

        name_of(name, sizeof(name), i);
        if (i % 8 == 0) {
            assert_int_equal(
                kve_index_drop_worker(index, ns, name, &n, NULL), KVE_OK);
            assert_int_equal(n, 4);
        } else {
            for (uint32_t k = 0; k < 4; k++)
                assert_int_equal(
                    kve_index_drop(index, all[i + k], NULL), KVE_OK);
        }
    }
    while (kve_index_tidy(index, 1000))
        continue;
    assert_int_equal(kve_index_instances(index, 0, NULL, 0), 0);
    assert_int_equal(kve_index_get_stats(index, ns, &after), KVE_OK);
    assert_int_equal(after.instances, 0);
    /* Lives are gone; slots stay for the next. */
    assert_int_equal(kve_index_get_stats(index, 0, &after), KVE_OK);
    assert_true(after.bytes < stats.bytes);
    kve_index_destroy(index);
    free(all);
    free(listed);
}

/* ---- scopes ---- */

static void
test_scopes_are_told_apart(void **state)
{
    /* Equal numbers are one scope. */
    static const struct {
        int scope;
        const char *medium, *locality, *ownership;
        int64_t group;
        uint8_t tier;
    } rows[] = {
        { 0, NULL, NULL, NULL, -1, KVE_TIER_GPU },
        { 0, "", NULL, NULL, -1, KVE_TIER_GPU },
        { 0, "GPU", "", "", -1, KVE_TIER_GPU },
        { 1, "gpu", NULL, NULL, -1, KVE_TIER_GPU },
        { 2, "CPU", NULL, NULL, -1, KVE_TIER_CPU },
        { 3, "CPU_TIER1", NULL, NULL, -1, KVE_TIER_CPU },
        { 4, "GPU", "LOCAL", NULL, -1, KVE_TIER_GPU },
        { 5, "GPU", "REMOTE", NULL, -1, KVE_TIER_REMOTE },
        { 6, "DISK", NULL, "pool-a", -1, KVE_TIER_DISK },
        { 7, "DISK", NULL, "pool-b", -1, KVE_TIER_DISK },
        { 8, "GPU", NULL, NULL, 0, KVE_TIER_GPU },
        { 8, NULL, NULL, NULL, 0, KVE_TIER_GPU },
        { 9, "GPU", NULL, NULL, 1, KVE_TIER_GPU },
        { 10, "crystal", NULL, NULL, 1, KVE_TIER_UNKNOWN },
        { 2, "CPU", "", "", -1, KVE_TIER_CPU },
    };
    struct kve_scope *scopes[N_OF(rows)] = { NULL };
    kve_index *index = make_index(NULL);
    kve_instance a = must_add(index, make_ns(index, "m"), "w", 0);
    struct kve_inst *inst = kve_inst_lock(index, a);
    kve_status status = KVE_OK;

    (void)state;
    assert_non_null(inst);
    for (size_t i = 0; i < N_OF(rows); i++) {
        struct kve_event event = store_of(
            rows[i].medium, rows[i].locality, rows[i].ownership, rows[i].group);
        struct kve_scope *scope;

        scope = kve_scope_of(inst, &event, false, &status);
        if (scopes[rows[i].scope] == NULL) {
            assert_null(scope);
            assert_int_equal(status, KVE_E_NOT_FOUND);
            scope = kve_scope_of(inst, &event, true, &status);
            scopes[rows[i].scope] = scope;
        }
        assert_ptr_equal(scope, scopes[rows[i].scope]);
        assert_non_null(scope);
        assert_int_equal(scope->tier, rows[i].tier);
        assert_ptr_equal(scope,
            kve_scope_of(inst, &event, true, &status)); /* the quick way */
        assert_int_equal(KVE_VIEW_SLOT(kve_view_of(inst->space, scope->id)),
            inst->slot->index);
        assert_int_equal(
            KVE_VIEW_TIER(kve_view_of(inst->space, scope->id)), rows[i].tier);
        assert_int_equal(KVE_VIEW_GROUP(kve_view_of(inst->space, scope->id)),
            rows[i].group < 0 ? KVE_NO_GROUP : (uint32_t)rows[i].group);
    }
    kve_space_unlock(inst->space);
    kve_index_destroy(index);
}

static void
test_scopes_have_limits(void **state)
{
    struct kve_index_opts opts = KVE_INDEX_OPTS_INIT;
    char *text = malloc(5000);
    struct kve_event event;
    struct kve_inst *inst;
    kve_status status = KVE_OK;
    kve_index *index;
    char name[24];

    (void)state;
    assert_non_null(text);
    opts.max_scopes = 3;
    index = make_index(&opts);
    inst = kve_inst_lock(index, must_add(index, make_ns(index, "m"), "w", 0));
    memset(text, 'x', 5000);
    event = store_of("GPU", NULL, NULL, -1);
    event.ownership.data = text;
    event.ownership.len = 5000;
    assert_null(kve_scope_of(inst, &event, true, &status));
    assert_int_equal(status, KVE_E_LIMIT);
    for (int i = 0; i < 5; i++) {
        (void)snprintf(name, sizeof(name), "owner-%d", i);
        event = store_of("GPU", NULL, name, -1);
        status = KVE_OK;
        if (i < 3) {
            assert_non_null(kve_scope_of(inst, &event, true, &status));
        } else {
            assert_null(kve_scope_of(inst, &event, true, &status));
            assert_int_equal(status, KVE_E_LIMIT);
        }
        /* The mark of skipped blocks is no scope of the engine's. */
        if (i == 1)
            assert_non_null(kve_scope_bridge(inst));
    }
    assert_ptr_equal(kve_scope_bridge(inst), kve_scope_bridge(inst));
    /* What was kept is a copy. */
    memset(name, '?', sizeof(name));
    event = store_of(NULL, NULL, "owner-1", -1);
    assert_non_null(kve_scope_of(inst, &event, false, &status));
    kve_space_unlock(inst->space);
    kve_index_destroy(index);
    free(text);
}

static uint32_t
shape_of(const struct kve_inst *inst)
{
    return atomic_load(&inst->slot->shape);
}

/* Readers may take the short way for one scope on the GPU only. */
static void
test_shapes(void **state)
{
    static const struct {
        const char *name;
        struct {
            const char *medium;
            int64_t group;
            const char *kind;
            int64_t window;
            uint32_t block_size;
        } stores[3];
        size_t n;
        uint32_t shape;
    } rows[] = {
        { "one on the GPU", { { "GPU", -1, NULL, -1, 16 } }, 1, 0 },
        { "one elsewhere", { { "CPU", -1, NULL, -1, 16 } }, 1,
            KVE_SHAPE_COMPLEX },
        { "two", { { "GPU", -1, NULL, -1, 16 }, { "CPU", -1, NULL, -1, 16 } },
            2, KVE_SHAPE_COMPLEX },
        { "a full group", { { "GPU", 0, "full_attention", -1, 16 } }, 1, 0 },
        { "a window", { { "GPU", 0, "sliding_window", 32, 16 } }, 1,
            KVE_SHAPE_COMPLEX },
        { "mamba", { { "GPU", 0, "mamba", -1, 16 } }, 1, KVE_SHAPE_COMPLEX },
        { "ignored", { { "GPU", 0, "cross_attention", -1, 16 } }, 1,
            KVE_SHAPE_COMPLEX },
        { "sizes without a group",
            { { "GPU", -1, NULL, -1, 16 }, { "GPU", -1, NULL, -1, 64 } }, 2,
            0 },
        { "sizes in a group",
            { { "GPU", 0, NULL, -1, 16 }, { "GPU", 0, NULL, -1, 64 } }, 2,
            KVE_SHAPE_COMPLEX },
        { "two groups",
            { { "GPU", 0, NULL, -1, 16 }, { "GPU", 1, NULL, -1, 16 } }, 2,
            KVE_SHAPE_COMPLEX },
    };

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        kve_index *index = make_index(NULL);
        kve_instance a = must_add(index, make_ns(index, "m"), "w", 0);
        struct kve_inst *inst = kve_inst_lock(index, a);
        kve_status status;

        for (size_t k = 0; k < rows[i].n; k++) {
            struct kve_event event = store_of(
                rows[i].stores[k].medium, NULL, NULL, rows[i].stores[k].group);

            event.block_size = rows[i].stores[k].block_size;
            event.spec_kind = str(rows[i].stores[k].kind);
            event.sliding_window.set = rows[i].stores[k].window >= 0;
            event.sliding_window.value = rows[i].stores[k].window;
            assert_int_equal(kve_group_learn(inst, &event), KVE_OK);
            assert_non_null(kve_scope_of(inst, &event, true, &status));
        }
        if (shape_of(inst) != rows[i].shape)
            fail_msg("%s: shape %u", rows[i].name, shape_of(inst));
        assert_int_equal(atomic_load(&inst->slot->stamp) & 1, 0);
        /* Another life starts anew. */
        inst = kve_inst_renew(inst);
        assert_int_equal(shape_of(inst), 0);
        (void)kve_scope_bridge(inst);
        assert_int_equal(shape_of(inst), KVE_SHAPE_COMPLEX);
        kve_space_unlock(inst->space);
        kve_index_destroy(index);
    }
}

/* ---- groups ---- */

static void
test_what_groups_need(void **state)
{
    static const struct {
        const char *kind;
        int64_t window; /* -1: not said */
        size_t n_tokens, n_hashes;
        uint32_t need;
        uint32_t want_window;
    } rows[] = {
        { "full_attention", -1, 32, 2, KVE_NEED_ALL, 0 },
        { "full_attention", -1, 32, 1, KVE_NEED_ALL, 0 },
        { "mla_attention", -1, 32, 2, KVE_NEED_ALL, 0 },
        { "sink_full_attention", -1, 32, 2, KVE_NEED_ALL, 0 },
        { "sliding_window", 128, 32, 1, KVE_NEED_WINDOW, 128 },
        { "sliding_window_mla", 1, 32, 1, KVE_NEED_WINDOW, 1 },
        { "sliding_window", -1, 32, 1, KVE_NEED_ALL, 0 },
        { "sliding_window", 0, 32, 1, KVE_NEED_ALL, 0 },
        { "sliding_window", INT64_C(1) << 40, 32, 1, KVE_NEED_WINDOW,
            UINT32_MAX },
        { "sliding_window", -5, 32, 1, KVE_NEED_ALL, 0 },
        { "mamba", -1, 32, 1, KVE_NEED_LAST, 0 },
        { "mamba2", -1, 32, 1, KVE_NEED_NONE, 0 },
        { "chunked_local_attention", 8192, 32, 1, KVE_NEED_CHUNK, 8192 },
        { "chunked_local_attention", -1, 32, 1, KVE_NEED_ALL, 0 },
        { "encoder_only_attention", -1, 32, 2, KVE_NEED_NONE, 0 },
        { "cross_attention", -1, 32, 2, KVE_NEED_NONE, 0 },
        { "warp_attention", -1, 32, 2, KVE_NEED_ALL, 0 },
        { "warp_attention", -1, 32, 1, KVE_NEED_NONE, 0 },
        { "warp_attention", -1, 0, 1, KVE_NEED_ALL, 0 },
        { "warp_attention", -1, 33, 2, KVE_NEED_NONE, 0 },
        { NULL, -1, 32, 2, KVE_NEED_ALL, 0 },
        { NULL, -1, 32, 0, KVE_NEED_NONE, 0 },
    };
    kve_index *index = make_index(NULL);
    kve_instance a = must_add(index, make_ns(index, "m"), "w", 0);
    struct kve_index_group groups[N_OF(rows)];
    struct kve_inst *inst = kve_inst_lock(index, a);
    const struct kve_groups *known;
    size_t n_ignored = 0;

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        struct kve_event event = store_of("GPU", NULL, NULL, (int64_t)i * 10);
        uint32_t stamp = atomic_load(&inst->slot->stamp);

        event.spec_kind = str(rows[i].kind);
        event.sliding_window.set = rows[i].window >= 0 || rows[i].window == -5;
        event.sliding_window.value = rows[i].window;
        event.n_tokens = rows[i].n_tokens;
        event.n_hashes = rows[i].n_hashes;
        assert_int_equal(kve_group_learn(inst, &event), KVE_OK);
        assert_int_equal(atomic_load(&inst->slot->stamp), stamp + 2);
        n_ignored += rows[i].need == KVE_NEED_NONE;
        /* Said again: nothing changes, and what is ignored is counted. */
        assert_int_equal(kve_group_learn(inst, &event), KVE_OK);
        assert_int_equal(atomic_load(&inst->slot->stamp), stamp + 2);
        n_ignored += rows[i].need == KVE_NEED_NONE;
    }
    known = atomic_load(&inst->groups);
    assert_int_equal(atomic_load(&known->n), N_OF(rows));
    for (size_t i = 0; i < N_OF(rows); i++) {
        if (atomic_load(&known->info[i].need) != rows[i].need)
            fail_msg("row %zu: %u", i, atomic_load(&known->info[i].need));
        assert_int_equal(
            atomic_load(&known->info[i].window), rows[i].want_window);
        assert_int_equal(kve_group_find(inst, (int64_t)i * 10), (uint32_t)i);
    }
    kve_space_unlock(inst->space);

    assert_int_equal(
        kve_index_groups(index, a, groups, N_OF(rows)), N_OF(rows));
    for (size_t i = 0; i < N_OF(rows); i++) {
        assert_int_equal(groups[i].group.value, (int64_t)i * 10);
        assert_true(groups[i].group.set);
        assert_int_equal(groups[i].kind.len,
            rows[i].kind == NULL ? 0 : strlen(rows[i].kind));
        if (rows[i].kind != NULL)
            assert_memory_equal(
                groups[i].kind.data, rows[i].kind, groups[i].kind.len);
        assert_int_equal(groups[i].block_size, 16);
        assert_int_equal(groups[i].window, rows[i].want_window);
        assert_int_equal(groups[i].ignored, rows[i].need == KVE_NEED_NONE);
    }
    assert_int_equal(kve_index_groups(index, a, groups, 0), N_OF(rows));
    assert_int_equal(
        kve_index_counter(index, a, KVE_COUNTER_INDEX_GROUPS_IGNORED),
        n_ignored);
    kve_index_destroy(index);
}

static void
learn(struct kve_inst *inst, const char *kind, int64_t window,
    uint32_t block_size, size_t n_tokens, size_t n_hashes, kve_status want)
{
    struct kve_event event = store_of("GPU", NULL, NULL, 3);

    event.spec_kind = str(kind);
    event.sliding_window.set = window >= 0;
    event.sliding_window.value = window;
    event.block_size = block_size;
    event.n_tokens = n_tokens;
    event.n_hashes = n_hashes;
    assert_int_equal(kve_group_learn(inst, &event), want);
}

/* The last word counts, what is not said stays, and what was sparse once is
 * sparse. */
static void
test_groups_change(void **state)
{
    kve_index *index = make_index(NULL);
    kve_instance a = must_add(index, make_ns(index, "m"), "w", 0);
    struct kve_inst *inst = kve_inst_lock(index, a);
    struct kve_index_instance info;
    struct kve_index_group group;
    struct kve_group_info *seen;

    (void)state;
    learn(inst, NULL, -1, 0, 0, 2, KVE_OK);
    seen = &atomic_load(&inst->groups)->info[0];
    assert_int_equal(atomic_load(&seen->block_size), 0);
    assert_int_equal(atomic_load(&seen->need), KVE_NEED_ALL);
    learn(inst, "sliding_window", 100, 16, 16, 1, KVE_OK);
    learn(inst, NULL, -1, 0, 0, 1, KVE_OK);
    assert_int_equal(atomic_load(&seen->block_size), 16);
    assert_int_equal(atomic_load(&seen->window), 100);
    assert_int_equal(atomic_load(&seen->need), KVE_NEED_WINDOW);
    learn(inst, "warp", -1, 32, 32, 1, KVE_OK);
    assert_int_equal(atomic_load(&seen->need), KVE_NEED_ALL);
    learn(inst, "warp", -1, 32, 64, 1, KVE_OK);
    assert_int_equal(atomic_load(&seen->need), KVE_NEED_NONE);
    learn(inst, "warp", -1, 32, 32, 1, KVE_OK);
    assert_int_equal(atomic_load(&seen->need), KVE_NEED_NONE);
    learn(inst, "mamba", -1, 32, 32, 1, KVE_OK);
    assert_int_equal(atomic_load(&seen->need), KVE_NEED_LAST);
    kve_space_unlock(inst->space);

    assert_int_equal(kve_index_groups(index, a, &group, 1), 1);
    assert_int_equal(group.block_size, 32);
    assert_int_equal(kve_index_get_instance(index, a, &info), KVE_OK);
    assert_int_equal(info.n_block_sizes, 2);
    assert_int_equal(info.block_sizes[0], 16);
    assert_int_equal(info.block_sizes[1], 32);
    assert_int_equal(kve_index_clear(index, a, 0, NULL), KVE_OK);
    assert_int_equal(kve_index_groups(index, a, &group, 1), 0);
    kve_index_destroy(index);
}

static void
test_groups_and_kinds_have_limits(void **state)
{
    kve_index *index = make_index(NULL);
    kve_instance a = must_add(index, make_ns(index, "m"), "w", 0);
    struct kve_inst *inst = kve_inst_lock(index, a);
    struct kve_index_instance info;
    struct kve_index_group group;
    char kind[100];

    (void)state;
    for (int i = 0; i < 1000; i++) {
        (void)snprintf(kind, sizeof(kind), "kind-%d", i);
        learn(inst, kind, -1, (uint32_t)i + 1, 0, 0, KVE_OK);
    }
    memset(kind, 'x', sizeof(kind));
    kind[sizeof(kind) - 1] = '\0';
    for (int i = 0; i < 100; i++) {
        struct kve_event event = store_of("GPU", NULL, NULL, i);

        event.spec_kind = str(kind);
        assert_int_equal(
            kve_group_learn(inst, &event), i < 64 ? KVE_OK : KVE_E_LIMIT);
    }
    kve_space_unlock(inst->space);
    assert_int_equal(kve_index_groups(index, a, &group, 1), 64);
    assert_memory_equal(group.kind.data, "?", 2); /* too long to be kept */
    assert_int_equal(kve_index_get_instance(index, a, &info), KVE_OK);
    assert_int_equal(info.n_block_sizes, 9); /* more than there is room for */
    assert_int_equal(info.block_sizes[7], 8);
    kve_index_destroy(index);
}

/* ---- roots and waits ---- */

static void
test_roots_go_by_adapter_and_salt(void **state)
{
    static const struct {
        int root;
        const char *lora, *salt;
        bool seeded, unhashed;
    } rows[] = {
        { 0, NULL, NULL, false, false },
        { 0, "", "", false, false },
        { 1, "ad", NULL, true, false },
        { 1, "ad", "", true, false },
        { 2, NULL, "ad", false, true },
        { 3, "a", "d", false, true },
        { 4, NULL, "dynamo-cache-salt:x", true, false },
        { 5, "ad", "dynamo-cache-salt:x", true, false },
        { 2, "", "ad", false, true },
    };
    struct kve_root *roots[N_OF(rows)] = { NULL };
    kve_index *index = make_index(NULL);
    struct kve_space *space = kve_space_get(index, make_ns(index, "m"));

    (void)state;
    (void)pthread_mutex_lock(&space->lock);
    for (size_t i = 0; i < N_OF(rows); i++) {
        char lora[32] = "", salt[32] = "";
        struct kve_str l, s;
        struct kve_root *root;
        uint64_t seed = 0;

        (void)snprintf(
            lora, sizeof(lora), "%s", rows[i].lora ? rows[i].lora : "");
        (void)snprintf(
            salt, sizeof(salt), "%s", rows[i].salt ? rows[i].salt : "");
        l = str(rows[i].lora == NULL ? NULL : lora);
        s = str(rows[i].salt == NULL ? NULL : salt);
        root = kve_root_of(space, l, s, false);
        if (rows[i].root != 0 && roots[rows[i].root] == NULL) {
            assert_null(root);
            root = kve_root_of(space, l, s, true);
            assert_non_null(root);
            roots[rows[i].root] = root;
        } else if (rows[i].root == 0) {
            assert_non_null(root);
            assert_int_equal(root->id, 1);
            roots[0] = root;
        }
        assert_ptr_equal(root, roots[rows[i].root]);
        assert_int_equal(root->seeded, rows[i].seeded);
        assert_int_equal(root->unhashed, rows[i].unhashed);
        if (rows[i].seeded) {
            assert_true(kve_dynamo_seed(l, s, &seed));
            assert_int_equal(root->seed, seed);
        }
        assert_int_equal(atomic_load(&space->moves) & 1, 0);
    }
    for (size_t i = 1; i <= 5; i++)
        for (size_t k = 0; k < i; k++)
            assert_ptr_not_equal(roots[i], roots[k]);
    kve_root_free(space, roots[3]);
    kve_root_free(space, roots[0]); /* the base's stays */
    assert_null(kve_root_of(space, str("a"), str("d"), false));
    assert_non_null(kve_root_of(space, str(NULL), str(NULL), false));
    assert_ptr_equal(kve_root_of(space, str("ad"), str(NULL), false), roots[1]);
    kve_space_unlock(space);
    kve_index_destroy(index);
}

/* Thousands come and go: found by whole text, freed, their ids used again. */
static void
test_many_roots(void **state)
{
    kve_index *index = make_index(NULL);
    struct kve_space *space = kve_space_get(index, make_ns(index, "m"));
    struct kve_index_stats before = KVE_INDEX_STATS_INIT;
    struct kve_index_stats after = KVE_INDEX_STATS_INIT;
    char salt[32];

    (void)state;
    assert_int_equal(kve_index_get_stats(index, 0, &before), KVE_OK);
    for (int round = 0; round < 3; round++) {
        (void)pthread_mutex_lock(&space->lock);
        for (int i = 0; i < 5000; i++) {
            (void)snprintf(salt, sizeof(salt), "tenant-%d", i);
            assert_null(kve_root_of(space, str("l"), str(salt), false));
            assert_non_null(kve_root_of(space, str("l"), str(salt), true));
        }
        for (int i = 4999; i >= 0; i--) {
            struct kve_root *root;

            (void)snprintf(salt, sizeof(salt), "tenant-%d", i);
            root = kve_root_of(space, str("l"), str(salt), false);
            assert_non_null(root);
            assert_true(root->id <= 5001);
            kve_root_free(space, root);
        }
        kve_space_unlock(space);
        while (kve_index_tidy(index, 1000))
            continue;
    }
    assert_int_equal(kve_index_get_stats(index, 0, &after), KVE_OK);
    assert_in_range(after.bytes, 0, before.bytes + (1 << 20));
    assert_int_equal(after.limbo, 0);
    kve_index_destroy(index);
}

/* What readers hash by are the sizes in use, or "ask each" when they are too
 * many; against a plain count of uses. */
static void
test_sizes_of_a_root(void **state)
{
    kve_index *index = make_index(NULL);
    struct kve_space *space = kve_space_get(index, make_ns(index, "m"));
    uint32_t uses[9] = { 0 };
    struct kve_root *root;
    uint32_t seed = 12345;

    (void)state;
    (void)pthread_mutex_lock(&space->lock);
    root = kve_root_of(space, str(NULL), str(NULL), false);
    for (int i = 0; i < 20000; i++) {
        uint32_t size, n_used = 0, n;

        seed = seed * 1664525 + 1013904223;
        size = seed >> 24 & 7;
        if ((seed >> 16 & 3) < 2 || uses[size] == 0) {
            uses[size]++;
            kve_root_size(root, size + 16, 1);
        } else {
            while (uses[size] > 0 && (seed >> 20 & 1) != 0) {
                uses[size]--;
                kve_root_size(root, size + 16, -1);
            }
        }
        n = atomic_load(&root->n_sizes);
        for (uint32_t k = 0; k < 8; k++) {
            bool listed = false;

            n_used += uses[k] > 0;
            for (uint32_t j = 0; j < n && j < 4; j++)
                listed |= atomic_load(&root->sizes[j]) == k + 16;
            if (n <= 4)
                assert_int_equal(listed, uses[k] > 0);
        }
        if (n <= 4)
            assert_int_equal(n, n_used);
        else
            assert_true(n_used > 0);
        if (n_used > 4)
            assert_int_equal(n, 5);
        assert_int_equal(atomic_load(&space->moves) & 1, 0);
    }
    for (uint32_t k = 0; k < 8; k++)
        while (uses[k]-- > 0)
            kve_root_size(root, k + 16, -1);
    assert_int_equal(atomic_load(&root->n_sizes), 0);
    kve_space_unlock(space);
    kve_index_destroy(index);
}

static void
test_waits_belong_to_one_life(void **state)
{
    static const uint8_t eight[8] = { 0, 0, 0, 0, 0, 0, 0, 7 };
    static const uint8_t many[32] = { 7 };
    const struct kve_hash hashes[] = {
        { .bytes = NULL, .integer = 7 },
        { .bytes = eight, .len = 8 },
        { .bytes = many, .len = 32 },
        { .bytes = many, .len = 16 },
    };
    struct kve_wait *waits[2][N_OF(hashes)];
    kve_index *index = make_index(NULL);
    kve_namespace ns = make_ns(index, "m");
    kve_instance handles[2];
    struct kve_inst *inst[2];
    struct kve_space *space = kve_space_get(index, ns);

    (void)state;
    handles[0] = must_add(index, ns, "w", 0);
    handles[1] = must_add(index, ns, "w", 1);
    (void)pthread_mutex_lock(&space->lock);
    for (size_t i = 0; i < 2; i++) {
        inst[i] = atomic_load(&kve_slot_get(index, handles[i])->inst);
        for (size_t k = 0; k < N_OF(hashes); k++) {
            assert_null(kve_wait_of(inst[i], &hashes[k], false));
            waits[i][k] = kve_wait_of(inst[i], &hashes[k], true);
            assert_non_null(waits[i][k]);
        }
        assert_int_equal(inst[i]->n_waits, N_OF(hashes));
    }
    for (size_t i = 0; i < 2; i++)
        for (size_t k = 0; k < N_OF(hashes); k++)
            assert_ptr_equal(
                kve_wait_of(inst[i], &hashes[k], i == 0), waits[i][k]);
    for (size_t k = 0; k < N_OF(hashes); k++) {
        kve_wait_free(inst[0], waits[0][k]);
        assert_null(kve_wait_of(inst[0], &hashes[k], false));
        assert_ptr_equal(kve_wait_of(inst[1], &hashes[k], false), waits[1][k]);
    }
    assert_int_equal(inst[0]->n_waits, 0);
    for (size_t k = 0; k < N_OF(hashes); k++)
        kve_wait_free(inst[1], waits[1][k]);
    kve_space_unlock(space);
    kve_index_destroy(index);
}

/* ---- the ends of lives ---- */

static struct kve_scope *
scope_on(struct kve_inst *inst, const char *medium)
{
    struct kve_event event = store_of(medium, NULL, NULL, -1);
    kve_status status = KVE_OK;

    return kve_scope_of(inst, &event, true, &status);
}

static void
test_clearing_tiers(void **state)
{
    kve_index *index = make_index(NULL);
    kve_instance a = must_add(index, make_ns(index, "m"), "w", 0);
    struct kve_inst *inst = kve_inst_lock(index, a), *now;
    struct kve_scope *gpu = scope_on(inst, "GPU"), *cpu = scope_on(inst, "CPU");
    struct kve_space *space = inst->space;
    uint32_t gpu_id = gpu->id, stamp = atomic_load(&inst->slot->stamp);

    (void)state;
    assert_non_null(kve_scope_bridge(inst));
    kve_space_unlock(space);
    assert_int_equal(
        kve_index_clear(index, a, 1u << KVE_TIERS, NULL), KVE_E_INVAL);
    assert_int_equal(
        kve_index_clear(index, a, 1u << KVE_TIER_GPU, NULL), KVE_OK);
    now = kve_inst_lock(index, a);
    assert_ptr_equal(now, inst);
    assert_int_equal(kve_view_of(space, gpu_id), 0);
    assert_int_not_equal(kve_view_of(space, cpu->id), 0);
    assert_int_equal(inst->n_scopes, 2); /* CPU and the bridge */
    assert_int_equal(atomic_load(&inst->slot->stamp), stamp + 2);
    assert_null(space->drain); /* it was empty, and is gone */
    assert_ptr_equal(scope_on(inst, "CPU"), cpu);
    gpu_id = scope_on(inst, "GPU")->id;
    assert_int_not_equal(kve_view_of(space, gpu_id), 0);
    kve_space_unlock(space);

    assert_int_equal(kve_index_clear(index, a, 31, NULL), KVE_OK);
    now = kve_inst_lock(index, a);
    assert_ptr_equal(now, inst);
    assert_int_equal(inst->n_scopes, 1); /* nothing is held over marks */
    assert_int_equal(inst->scopes[0]->tier, KVE_TIER_BRIDGE);
    assert_int_equal(kve_view_of(space, gpu_id), 0);
    kve_space_unlock(space);
    assert_int_equal(kve_index_counter(index, a, KVE_COUNTER_INDEX_CLEARS), 2);
    kve_index_destroy(index);
}

/* Clears that name a medium, an owner, or both. */
static void
test_clearing_by_name(void **state)
{
    static const struct {
        const char *medium, *ownership; /* of the clear; NULL: not named */
        const char *left;               /* scopes that stay */
    } rows[] = {
        { "GPU", NULL, "cde" },
        { "", NULL, "cde" },
        { "CPU", NULL, "abd" },
        { "CPU", "pool", "abcd" },
        { "crystal", NULL, "abce" },
        { "CRYSTAL", NULL, "abcde" },
        { NULL, "pool", "acd" },
        { NULL, "other", "abcde" },
    };

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        kve_index *index = make_index(NULL);
        kve_instance a = must_add(index, make_ns(index, "m"), "w", 0);
        struct kve_inst *inst = kve_inst_lock(index, a);
        const struct kve_event events[] = {
            store_of(NULL, NULL, NULL, -1),
            store_of("GPU", "LOCAL", "pool", 2),
            store_of("CPU", "REMOTE", NULL, -1),
            store_of("crystal", NULL, NULL, -1),
            store_of("CPU", NULL, "pool", -1),
        };
        uint32_t ids[N_OF(events)];
        char left[N_OF(events) + 1] = "";
        kve_status status;
        size_t n = 0;

        for (size_t k = 0; k < N_OF(events); k++)
            ids[k] = kve_scope_of(inst, &events[k], true, &status)->id;
        if (rows[i].medium != NULL)
            kve_inst_clear_medium(
                inst, str(rows[i].medium), str(rows[i].ownership));
        else
            kve_inst_clear_owner(inst, str(rows[i].ownership));
        for (size_t k = 0; k < N_OF(events); k++) {
            bool seen = kve_view_of(inst->space, ids[k]) != 0;

            assert_int_equal(
                seen, kve_scope_of(inst, &events[k], false, &status) != NULL);
            if (seen)
                left[n++] = (char)('a' + k);
        }
        assert_string_equal(left, rows[i].left);
        kve_space_unlock(inst->space);
        kve_index_destroy(index);
    }
}

static void
test_another_life(void **state)
{
    kve_index *index = make_index(NULL);
    kve_instance a = must_add(index, make_ns(index, "m"), "w", 0);
    struct kve_inst *inst = kve_inst_lock(index, a), *now;
    struct kve_scope *scope = scope_on(inst, "GPU");
    struct kve_space *space = inst->space;
    uint32_t id = scope->id, owner = inst->owner;
    struct kve_wait *wait;
    const struct kve_hash hash = { .bytes = NULL, .integer = 3 };

    (void)state;
    wait = kve_wait_of(inst, &hash, true);
    assert_non_null(wait);
    inst->batches = 4;
    kve_space_unlock(space);
    assert_int_equal(kve_index_clear(index, a, 0, NULL), KVE_OK);

    now = kve_inst_lock(index, a);
    assert_ptr_not_equal(now, inst);
    assert_true(now->visible && !inst->visible && inst->retired);
    assert_int_equal(now->batches, 4);
    assert_int_equal(kve_view_of(space, id), 0);
    assert_null(kve_wait_of(now, &hash, false));
    /* Something waits in the old one still: it stays until that is gone. */
    assert_ptr_equal(space->retired, inst);
    assert_int_not_equal(now->owner, owner);
    kve_space_unlock(space);
    assert_ptr_equal(space->retired, inst);
    /* There is nothing to be done about it. */
    assert_false(kve_index_tidy(index, 100));
    assert_ptr_equal(space->retired, inst);
    now = kve_inst_lock(index, a);
    kve_wait_free(inst, wait);
    kve_space_unlock(space);
    now = kve_inst_lock(index, a);
    assert_null(space->retired);
    assert_null(kve_dir_get(&space->insts, owner));
    kve_space_unlock(space);
    assert_false(kve_index_tidy(index, 100));
    kve_index_destroy(index);
}

static void
test_rebuilding(void **state)
{
    struct kve_index_opts opts = KVE_INDEX_OPTS_INIT;
    struct kve_inst *inst, *hidden;
    struct kve_space *space;
    kve_instance a, twin = 0, other = 9;
    struct kve_scope *old, *scope;
    uint32_t old_id, id;
    kve_index *index;

    (void)state;
    opts.counting = KVE_COUNTING_SET;
    index = make_index(&opts);
    a = must_add(index, make_ns(index, "m"), "w", 0);
    assert_int_equal(kve_index_rebuild_commit(index, a, NULL), KVE_E_NOT_FOUND);
    assert_int_equal(kve_index_rebuild_abort(index, a, NULL), KVE_E_NOT_FOUND);
    assert_int_equal(kve_index_rebuild_begin(index, a, &twin, NULL), KVE_OK);
    assert_int_not_equal(twin, a);
    assert_int_equal(
        kve_index_rebuild_begin(index, a, &other, NULL), KVE_E_IN_USE);
    assert_int_equal(
        kve_index_rebuild_begin(index, twin, &other, NULL), KVE_E_NOT_FOUND);
    assert_int_equal(kve_index_drop(index, twin, NULL), KVE_E_NOT_FOUND);
    assert_int_equal(other, 9);

    inst = kve_inst_lock(index, a);
    space = inst->space;
    assert_false(inst->counts);
    old = scope_on(inst, "GPU");
    old_id = old->id;
    kve_space_unlock(space);
    hidden = kve_inst_lock(index, twin);
    assert_ptr_not_equal(hidden, inst);
    assert_true(hidden->counts);
    scope = scope_on(hidden, "GPU");
    id = scope->id;
    (void)scope_on(hidden, "CPU");
    assert_int_equal(kve_view_of(space, id), 0);
    assert_int_equal(shape_of(hidden), 0); /* of the slot: of the other one */
    kve_space_unlock(space);

    assert_int_equal(kve_index_rebuild_commit(index, a, NULL), KVE_OK);
    inst = kve_inst_lock(index, a);
    assert_ptr_equal(inst, hidden);
    assert_false(inst->counts);
    assert_int_equal(kve_view_of(space, old_id), 0);
    assert_int_equal(kve_view_of(space, id),
        kve_view_make(inst->slot->index, KVE_NO_GROUP, KVE_TIER_GPU));
    assert_int_equal(shape_of(inst), KVE_SHAPE_COMPLEX);
    kve_space_unlock(space);
    assert_null(kve_inst_lock(index, twin));

    /* A twin that is cleared is another twin; one that is given up, nothing. */
    assert_int_equal(kve_index_rebuild_begin(index, a, &twin, NULL), KVE_OK);
    hidden = kve_inst_lock(index, twin);
    (void)scope_on(hidden, "GPU");
    kve_space_unlock(space);
    assert_int_equal(kve_index_clear(index, twin, 0, NULL), KVE_OK);
    hidden = kve_inst_lock(index, twin);
    assert_false(hidden->visible);
    assert_int_equal(hidden->n_scopes, 0);
    kve_space_unlock(space);
    assert_int_not_equal(kve_view_of(space, id), 0);
    assert_int_equal(kve_index_rebuild_abort(index, a, NULL), KVE_OK);
    assert_null(kve_inst_lock(index, twin));
    assert_ptr_equal(inst, kve_inst_lock(index, a));
    kve_space_unlock(space);

    /* Dropped with its twin. */
    assert_int_equal(kve_index_rebuild_begin(index, a, &twin, NULL), KVE_OK);
    assert_int_equal(kve_index_drop(index, a, NULL), KVE_OK);
    assert_null(kve_inst_lock(index, twin));
    assert_false(kve_index_tidy(index, 1000));
    assert_null(space->retired);
    kve_index_destroy(index);
}

/* ---- numbers ---- */

static void
test_counters_have_names(void **state)
{
    static const unsigned numbers[] = {
#define X(name, number, text, help) number,
        KVE_INDEX_COUNTER_MAP(X)
#undef X
    };
    kve_index *index = make_index(NULL);
    kve_instance a = must_add(index, make_ns(index, "m"), "w", 0);
    size_t n = 0;
    int counter;

    (void)state;
    for (size_t i = 0; (counter = kve_counter_at(i)) >= 0; i++)
        n += counter >= KVE_INDEX_COUNTER_BASE &&
            counter < KVE_INDEX_COUNTER_BASE + 100;
    assert_int_equal(n, N_OF(numbers));
    for (size_t i = 0; i < N_OF(numbers); i++) {
        assert_non_null(kve_counter_str(numbers[i]));
        assert_non_null(kve_counter_help(numbers[i]));
        for (size_t k = 0; (counter = kve_counter_at(k)) >= 0; k++)
            if ((unsigned)counter != numbers[i])
                assert_string_not_equal(kve_counter_str((unsigned)counter),
                    kve_counter_str(numbers[i]));
        count(index, a, numbers[i], numbers[i]);
        assert_int_equal(kve_index_counter(index, a, numbers[i]), numbers[i]);
        assert_int_equal(kve_index_counter(index, 0, numbers[i]), numbers[i]);
    }
    assert_int_equal(kve_index_counter(index, a, 0), 0);
    assert_int_equal(kve_index_counter(index, a, 100), 0);
    assert_int_equal(kve_index_counter(index, 0, 199), 0);
    assert_int_equal(kve_index_counter(index, 0, 232), 0);
    assert_int_equal(kve_index_counter(index, a, UINT32_MAX), 0);
    kve_index_destroy(index);
}

static void
test_stats_know_their_callers_size(void **state)
{
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;
    struct {
        struct kve_index_stats stats;
        uint64_t beyond;
    } big = { KVE_INDEX_STATS_INIT, 77 };
    struct kve_index_opts opts = KVE_INDEX_OPTS_INIT;
    kve_namespace ns;
    kve_index *index;

    (void)state;
    opts.max_bytes = UINT64_C(64) << 20;
    index = make_index(&opts);
    ns = make_ns(index, "m");
    (void)make_ns(index, "n");
    (void)must_add(index, ns, "w", 0);
    (void)must_add(index, ns, "w", 1);
    assert_int_equal(kve_index_get_stats(index, 0, &stats), KVE_OK);
    assert_int_equal(stats.struct_size, sizeof(stats));
    assert_int_equal(stats.namespaces, 2);
    assert_int_equal(stats.instances, 2);
    assert_int_equal(stats.max_bytes, opts.max_bytes);
    assert_true(stats.bytes > 0 && stats.bytes <= opts.max_bytes);
    assert_int_equal(kve_index_get_stats(index, ns, &stats), KVE_OK);
    assert_int_equal(stats.namespaces, 1);
    assert_int_equal(stats.instances, 2);
    assert_int_equal(kve_index_get_stats(index, ns + 1, &stats), KVE_OK);
    assert_int_equal(stats.instances, 0);
    assert_int_equal(
        kve_index_get_stats(index, ns + 2, &stats), KVE_E_NOT_FOUND);

    big.stats.struct_size = sizeof(big);
    assert_int_equal(kve_index_get_stats(index, 0, &big.stats), KVE_OK);
    assert_int_equal(big.stats.instances, 2);
    assert_int_equal(big.beyond, 77);
    memset(&stats, 0x55, sizeof(stats));
    stats.struct_size = 0; /* the first release's */
    assert_int_equal(kve_index_get_stats(index, 0, &stats), KVE_OK);
    assert_int_equal(stats.namespaces, 2);
    memset(&stats, 0x55, sizeof(stats));
    stats.struct_size = offsetof(struct kve_index_stats, limbo);
    assert_int_equal(kve_index_get_stats(index, 0, &stats), KVE_OK);
    assert_int_equal(stats.limbo, UINT64_C(0x5555555555555555));
    stats.struct_size = 4;
    assert_int_equal(kve_index_get_stats(index, 0, &stats), KVE_E_INVAL);
    kve_index_destroy(index);
}

/* Namespaces and instances until there is no room: never beyond the limit, and
 * what is there goes on. */
static void
test_the_limit_holds(void **state)
{
    struct kve_index_opts opts = KVE_INDEX_OPTS_INIT;
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;
    struct kve_error err = { 0 };
    kve_namespace ns = 0, first;
    kve_instance a, b = 0;
    kve_status status = KVE_OK;
    kve_index *index;
    char name[32];
    uint32_t n = 0;

    (void)state;
    opts.max_bytes = UINT64_C(8) << 20;
    index = make_index(&opts);
    first = make_ns(index, "first");
    a = must_add(index, first, "w", 0);
    while (status == KVE_OK) {
        (void)snprintf(name, sizeof(name), "model-%u", n++);
        status = kve_index_namespace(index, name, "", &ns, &err);
        assert_int_equal(kve_index_get_stats(index, 0, &stats), KVE_OK);
        assert_true(stats.bytes <= opts.max_bytes);
    }
    assert_true(status == KVE_E_NOMEM || status == KVE_E_LIMIT);
    assert_true(n > 1);
    status = KVE_OK;
    for (uint32_t rank = 1; status == KVE_OK; rank++) {
        status = try_add(index, first, "w", rank, &b);
        assert_int_equal(kve_index_get_stats(index, 0, &stats), KVE_OK);
        assert_true(stats.bytes <= opts.max_bytes);
    }
    assert_true(status == KVE_E_NOMEM || status == KVE_E_LIMIT);
    assert_int_equal(kve_index_find(index, first, "w", 0), a);
    assert_int_equal(kve_index_clear(index, a, 0, NULL), KVE_OK);
    assert_int_equal(
        kve_index_drop_worker(index, first, "w", NULL, NULL), KVE_OK);
    while (kve_index_tidy(index, 1000))
        continue;
    (void)must_add(index, first, "w", 0);
    kve_index_destroy(index);
}

/* ---- threads ---- */

struct world {
    kve_index *index;
    kve_namespace ns;
    atomic_bool over;
    atomic_ulong found;
};

static void *
look(void *arg)
{
    struct world *world = arg;
    unsigned long found = 0;

    while (!atomic_load(&world->over)) {
        struct kve_index_stats stats = KVE_INDEX_STATS_INIT;
        struct kve_index_instance info;
        kve_instance list[16];
        size_t n;

        n = kve_index_instances(world->index, 0, list, N_OF(list));
        for (size_t i = 0; i < n && i < N_OF(list); i++) {
            (void)kve_index_counter(
                world->index, list[i], KVE_COUNTER_INDEX_STORED);
            if (kve_index_get_instance(world->index, list[i], &info) == KVE_OK)
                found++;
        }
        assert_int_equal(
            kve_index_find(world->index, world->ns, "stays", 0) != 0, true);
        (void)kve_index_find(world->index, world->ns, "goes", 0);
        (void)kve_index_find_namespace(world->index, "m", "t");
        (void)kve_index_counter(world->index, 0, KVE_COUNTER_INDEX_STORED);
        assert_int_equal(kve_index_get_stats(world->index, 0, &stats), KVE_OK);
        assert_true(stats.instances >= 1);
    }
    atomic_fetch_add(&world->found, found);
    return NULL;
}

/* Adds, counts and drops instances of its own, in its own namespace or in the
 * common one. */
static void *
change(void *arg)
{
    struct world *world = arg;

    for (uint32_t i = 0; i < 400; i++) {
        kve_instance a = 0, twin;
        kve_namespace own = 0;
        char name[32];

        (void)snprintf(name, sizeof(name), "own-%u", i % 4);
        assert_int_equal(
            kve_index_namespace(world->index, name, "", &own, NULL), KVE_OK);
        /* Two threads do this: one of them is first. */
        if (try_add(world->index, i % 2 == 0 ? own : world->ns, "goes", 0,
                &a) != KVE_OK)
            continue;
        (void)kve_index_clear(world->index, a, i % 3 == 0 ? 0 : 2, NULL);
        if (kve_index_rebuild_begin(world->index, a, &twin, NULL) == KVE_OK &&
            i % 3 != 1)
            (void)kve_index_rebuild_commit(world->index, a, NULL);
        (void)kve_index_tidy(world->index, 10);
        assert_int_equal(kve_index_drop(world->index, a, NULL), KVE_OK);
    }
    return NULL;
}

static void
test_threads_look_while_others_change(void **state)
{
    struct world world = { .index = make_index(NULL) };
    pthread_t readers[2], writers[2];

    (void)state;
    world.ns = make_ns(world.index, "m");
    (void)must_add(world.index, world.ns, "stays", 0);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&readers[i], NULL, look, &world), 0);
        assert_int_equal(pthread_create(&writers[i], NULL, change, &world), 0);
    }
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_join(writers[i], NULL), 0);
    atomic_store(&world.over, true);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_join(readers[i], NULL), 0);
    assert_int_equal(kve_index_instances(world.index, 0, NULL, 0), 1);
    kve_index_destroy(world.index);
}

/* A reader looks roots and views up, and reads what it finds, while they come
 * and go. */
static void *
read_roots(void *arg)
{
    struct world *world = arg;
    struct kve_space *space = kve_space_get(world->index, world->ns);
    struct kve_epoch_slot *slot = kve_epoch_slot_get(&world->index->mem);
    unsigned long found = 0;
    char salt[32];

    assert_non_null(slot);
    for (uint32_t i = 0; !atomic_load(&world->over); i++) {
        struct kve_root *root;
        struct kve_inst *inst;
        struct kve_groups *groups;

        (void)snprintf(salt, sizeof(salt), "salt-%u", i % 50);
        kve_epoch_enter(&world->index->mem, slot);
        root = kve_root_of(space, str("lora"), str(salt), false);
        if (root != NULL) {
            assert_int_equal(root->salt.len, strlen(salt));
            assert_memory_equal(root->salt.data, salt, root->salt.len);
            assert_true(atomic_load(&root->n_sizes) <= 5);
            found++;
        }
        inst = atomic_load_explicit(
            &kve_slot_at(world->index, 0)->inst, memory_order_acquire);
        groups = inst == NULL
            ? NULL
            : atomic_load_explicit(&inst->groups, memory_order_acquire);
        if (groups != NULL)
            for (uint32_t k = 0; k < atomic_load(&groups->n); k++)
                found += atomic_load(&groups->info[k].need) == KVE_NEED_LAST;
        kve_epoch_leave(slot);
    }
    kve_epoch_slot_put(slot);
    atomic_fetch_add(&world->found, found);
    return NULL;
}

static void
test_readers_see_roots_and_groups(void **state)
{
    struct world world = { .index = make_index(NULL) };
    kve_instance a;
    pthread_t readers[2];
    char salt[32];

    (void)state;
    world.ns = make_ns(world.index, "m");
    a = must_add(world.index, world.ns, "w", 0);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(
            pthread_create(&readers[i], NULL, read_roots, &world), 0);
    for (int i = 0; i < 2000 || atomic_load(&world.over); i++) {
        struct kve_inst *inst = kve_inst_lock(world.index, a);
        struct kve_event event = store_of("GPU", NULL, NULL, i % 7);
        struct kve_root *root;
        kve_status status;

        event.spec_kind = str(i % 2 == 0 ? "mamba" : "warp");
        (void)snprintf(salt, sizeof(salt), "salt-%d", i % 50);
        root = kve_root_of(inst->space, str("lora"), str(salt), true);
        assert_non_null(root);
        kve_root_size(root, 16 + (uint32_t)i % 6, 1);
        if (i % 3 == 0)
            kve_root_free(inst->space, root);
        assert_non_null(kve_scope_of(inst, &event, true, &status));
        assert_int_equal(kve_group_learn(inst, &event), KVE_OK);
        if (i % 40 == 39)
            inst = kve_inst_renew(inst);
        kve_space_unlock(inst->space);
    }
    atomic_store(&world.over, true);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_join(readers[i], NULL), 0);
    kve_index_destroy(world.index);
}

/* ---- no memory ---- */

/* A life with everything in it; statuses are KVE_OK or KVE_E_NOMEM, and clears
 * never fail. */
static void
run_through(kve_index *index)
{
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    const struct kve_hash hash = { .bytes = NULL, .integer = 5 };
    struct kve_event event = store_of("CPU", NULL, "owner", 4);
    kve_instance a = 0, b = 0, twin = 0;
    kve_namespace ns = 0;
    kve_status status;

    status = kve_index_namespace(index, "model", "tenant", &ns, NULL);
    assert_true(status == KVE_OK || status == KVE_E_NOMEM);
    if (status != KVE_OK)
        return;
    spec.ns = ns;
    spec.worker = "worker";
    status = kve_index_add(index, &spec, &a, NULL);
    assert_true(status == KVE_OK || status == KVE_E_NOMEM);
    assert_int_equal(kve_index_find(index, ns, "worker", 0), a);
    if (status != KVE_OK)
        return;
    status = kve_index_rank(index, a, 1, &b, NULL);
    assert_true(status == KVE_OK || status == KVE_E_NOMEM);
    event.spec_kind = str("unheard of");
    for (int i = 0; i < 3; i++) {
        struct kve_inst *inst = kve_inst_lock(index, i == 2 ? twin : a);
        struct kve_root *root;
        struct kve_wait *wait;

        if (inst == NULL)
            continue; /* no twin */
        status = kve_group_learn(inst, &event);
        assert_true(status == KVE_OK || status == KVE_E_NOMEM);
        if (kve_scope_of(inst, &event, true, &status) == NULL)
            assert_int_equal(status, KVE_E_NOMEM);
        (void)kve_scope_bridge(inst);
        root = kve_root_of(inst->space, str("l"), str("s"), true);
        if (root != NULL)
            kve_root_free(inst->space, root);
        wait = kve_wait_of(inst, &hash, true);
        assert_int_equal(inst->n_waits, wait != NULL);
        if (wait != NULL)
            kve_wait_free(inst, wait);
        kve_space_unlock(inst->space);
        if (i == 0) {
            assert_int_equal(kve_index_clear(index, a, 0, NULL), KVE_OK);
            inst = kve_inst_lock(index, a);
            assert_int_equal(inst->n_scopes, 0);
            assert_null(atomic_load(&inst->groups));
            kve_space_unlock(inst->space);
        } else if (i == 1) {
            assert_int_equal(
                kve_index_clear(index, a, 1u << KVE_TIER_CPU, NULL), KVE_OK);
            status = kve_index_rebuild_begin(index, a, &twin, NULL);
            assert_true(status == KVE_OK || status == KVE_E_NOMEM);
        } else {
            assert_int_equal(kve_index_rebuild_commit(index, a, NULL), KVE_OK);
        }
    }
    assert_int_equal(
        kve_index_drop_worker(index, ns, "worker", NULL, NULL), KVE_OK);
    assert_int_equal(kve_index_find(index, ns, "worker", 0), 0);
}

static void
fail_from(uint64_t n, bool from_then_on, bool *ret_failed)
{
    int64_t live = kve_mem_live();
    kve_index *index = NULL;
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;
    kve_status status;

    kve_mem_fail_at(n, from_then_on);
    status = kve_index_create(NULL, &index, NULL);
    assert_true(status == KVE_OK || status == KVE_E_NOMEM);
    if (status == KVE_OK)
        run_through(index);
    *ret_failed = kve_mem_failed();
    kve_mem_fail_at(0, false);
    if (status == KVE_OK) {
        run_through(index); /* all of it works again */
        while (kve_index_tidy(index, 1000))
            continue;
        assert_int_equal(kve_index_get_stats(index, 0, &stats), KVE_OK);
        assert_int_equal(stats.instances, 0);
    }
    kve_index_destroy(index);
    assert_int_equal(kve_mem_live(), live);
}

static void
test_every_allocation_fails_in_turn(void **state)
{
    bool failed = true;

    (void)state;
    for (uint64_t n = 1; failed; n++) {
        fail_from(n, false, &failed);
        fail_from(n, true, &failed);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_are_checked),
        cmocka_unit_test(test_initializers_say_the_size_only),
        cmocka_unit_test(test_namespaces_go_by_both_names),
        cmocka_unit_test(test_adding_refuses_what_can_not_be),
        cmocka_unit_test(test_an_instance_is_described),
        cmocka_unit_test(test_ranks_of_a_worker),
        cmocka_unit_test(test_names_of_instances_are_not_used_twice),
        cmocka_unit_test(test_a_worn_out_slot_rests),
        cmocka_unit_test(test_ten_thousand_instances),
        cmocka_unit_test(test_scopes_are_told_apart),
        cmocka_unit_test(test_scopes_have_limits),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_what_groups_need),
        cmocka_unit_test(test_groups_change),
        cmocka_unit_test(test_groups_and_kinds_have_limits),
        cmocka_unit_test(test_roots_go_by_adapter_and_salt),
        cmocka_unit_test(test_many_roots),
        cmocka_unit_test(test_sizes_of_a_root),
        cmocka_unit_test(test_waits_belong_to_one_life),
        cmocka_unit_test(test_clearing_tiers),
        cmocka_unit_test(test_clearing_by_name),
        cmocka_unit_test(test_another_life),
        cmocka_unit_test(test_rebuilding),
        cmocka_unit_test(test_counters_have_names),
        cmocka_unit_test(test_stats_know_their_callers_size),
        cmocka_unit_test(test_the_limit_holds),
        cmocka_unit_test(test_threads_look_while_others_change),
        cmocka_unit_test(test_readers_see_roots_and_groups),
        cmocka_unit_test(test_every_allocation_fails_in_turn),
    };

    return cmocka_run_group_tests_name("index/space", tests, NULL, NULL);
}
