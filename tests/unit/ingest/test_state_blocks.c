/*
 * test_state_blocks.c - blocks of an instance as bytes, and back.
 *
 * ctest-timeout: 600
 * ctest-label: single
 *
 * Random streams of events (support/indexscript.h) in which all instances are
 * written and read again every few lines: dumps, answers, groups and statistics
 * must agree with the reference afterwards, and after everything that is
 * applied later. KVE_STATE_STREAMS says how many streams, KVE_STATE_SEED the
 * first one's seed.
 *
 * Then what is no such bytes: cut, flipped, and without memory to read it.
 */
#include "base/alloc.h"
#include "base/clock.h"
#include "ingest/state.h"
#include "support/indexcheck.h"
#include "support/indexscript.h"
#include "support/scale.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS (2000u / TEST_SCALE)

static uint64_t
number(const char *name, uint64_t usual)
{
    const char *text = getenv(name);

    return text != NULL ? strtoull(text, NULL, 10) : usual;
}

/* ---- writing and reading ---- */

static struct kve_state_in
in_of(const uint8_t *data, size_t len)
{
    return (struct kve_state_in){ data, data, data + len, 0, NULL, 0 };
}

/* Instance b is a twin when a is one: it is read to directly then. */
static kve_status
copy_as_bytes(kve_index *from, kve_instance a, kve_index *to, kve_instance b)
{
    struct kve_state_out out = { NULL, 0, 0, false };
    struct kve_state_in in;
    kve_status status = kve_state_put_blocks(&out, from, a, NULL);
    size_t blocks = 0;

    if (status != KVE_OK)
        return status;
    in = in_of(out.data, out.len);
    status = kve_state_read_blocks(&in, to, b, &blocks, NULL);
    if (status == KVE_OK && in.at != in.end)
        status = KVE_E_MALFORMED;
    kve_mem_free(out.data);
    return status;
}

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
    /* Twins are not in a state. */
    for (size_t i = 0; i < script->n; i++)
        if (strstr(script->lines[i], " begin") != NULL)
            (void)strcpy(script->lines[i], "tidy");
}

static void
test_streams_with_reloads(void **state)
{
    uint64_t seed = number("KVE_STATE_SEED", 1);
    uint64_t n = number("KVE_STATE_STREAMS", STREAMS);
    struct script *script = malloc(sizeof(*script));
    const struct script_draft draft = { false, 0, 0 };
    char problem[512] = "";
    bool good = true;

    (void)state;
    assert_non_null(script);
    world_copy = copy_as_bytes;
    for (uint64_t i = 0; i < n && good; i++) {
        struct script_source source = {
            (seed + i) * UINT64_C(0x9e3779b97f4a7c15), NULL, 0, false
        };

        script_draw(script, &source, &draft);
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

/* ---- an index with something of everything ---- */

static kve_index *
new_index(kve_instance *ret_instance)
{
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    kve_index *index = NULL;

    if (kve_index_create(NULL, &index, NULL) != KVE_OK)
        return NULL;
    spec.worker = "w";
    if (kve_index_namespace(index, "m", "", &spec.ns, NULL) == KVE_OK &&
        kve_index_add(index, &spec, ret_instance, NULL) == KVE_OK)
        return index;
    kve_index_destroy(index);
    return NULL;
}

static const char everything[] =
    "S[-]1,2,3,4 lora=ad g=0 k=full; R 2 g=0;"
    "S[4]5*32,6*32 @CPU e= own=o; S[5*32]7 b=4 t=1234;"
    "S[77]8,9*16 salt=s; S[-]10,11; S[10]11 @DISK e=; S[10]11 @DISK e=;"
    "S[-]40 b=0 t= ; S[-]41*9,42 b=0 t= @odd; S[99*8]12 kp=11 kt=1212 b=2;"
    "S[-]13 g=7 k=swa w=6 loc=REMOTE; S[-]14 g=8 k=strange b=2 t=12121";

static kve_index *
index_of_everything(kve_instance *ret_instance)
{
    static struct eventtext text;
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_index_applied applied = KVE_INDEX_APPLIED_INIT;
    kve_index *index = new_index(ret_instance);

    assert_non_null(index);
    memset(&text, 0, sizeof(text));
    eventtext_read(&text, everything);
    view.events = text.events;
    view.n_events = text.n_events;
    assert_int_equal(
        kve_index_apply(index, *ret_instance, &view, NULL, 0, &applied, NULL),
        KVE_OK);
    assert_int_equal(applied.refused, 0);
    return index;
}

static void
get_everything(struct kve_state_out *out)
{
    kve_instance instance;
    kve_index *index = index_of_everything(&instance);

    memset(out, 0, sizeof(*out));
    assert_int_equal(kve_state_put_blocks(out, index, instance, NULL), KVE_OK);
    kve_index_destroy(index);
}

/* Nothing is left of a failure: what the instance held is drained. */
static void
check_nothing_held(kve_index *index, kve_instance instance)
{
    char problem[INDEXCHECK_TEXT] = "";
    struct kve_index_instance info;

    assert_int_equal(kve_index_get_instance(index, instance, &info), KVE_OK);
    for (size_t i = 0; i < KVE_TIERS; i++)
        assert_int_equal(info.blocks[i], 0);
    assert_false(info.twin);
    while (kve_index_tidy(index, 100000))
        continue;
    if (!indexcheck_empty(index, problem))
        fail_msg("%s", problem);
}

/* Read bytes of which nothing is known. */
static kve_status
read_anything(const uint8_t *data, size_t len)
{
    kve_instance instance;
    kve_index *index = new_index(&instance);
    struct kve_state_in in = in_of(data, len);
    char problem[INDEXCHECK_TEXT] = "";
    size_t blocks = 0;
    kve_status status;

    assert_non_null(index);
    status = kve_state_read_blocks(&in, index, instance, &blocks, NULL);
    if (status != KVE_OK) {
        assert_int_equal(blocks, 0);
        assert_true(status == KVE_E_LIMIT || in.wrong != NULL);
        assert_true(status == KVE_E_LIMIT || in.wrong_at <= len);
        check_nothing_held(index, instance);
    } else if (!indexcheck(index, true, problem)) {
        fail_msg("%s", problem);
    }
    kve_index_destroy(index);
    return status;
}

static void
test_as_much_comes_back(void **state)
{
    struct kve_index_stats was = KVE_INDEX_STATS_INIT;
    struct kve_index_stats is = KVE_INDEX_STATS_INIT;
    struct kve_state_out out = { NULL, 0, 0, false };
    struct kve_state_in in;
    kve_instance instance, other;
    kve_index *index = index_of_everything(&instance);
    kve_index *to = new_index(&other);
    size_t blocks = 0;

    (void)state;
    assert_int_equal(kve_state_put_blocks(&out, index, instance, NULL), KVE_OK);
    in = in_of(out.data, out.len);
    assert_int_equal(
        kve_state_read_blocks(&in, to, other, &blocks, NULL), KVE_OK);
    assert_ptr_equal(in.at, in.end);
    assert_int_equal(blocks, 17);
    assert_int_equal(kve_index_get_stats(index, 0, &was), KVE_OK);
    assert_int_equal(kve_index_get_stats(to, 0, &is), KVE_OK);
    assert_memory_equal(
        was.residencies, is.residencies, sizeof(was.residencies));
    assert_int_equal(was.copies, is.copies);
    assert_int_equal(was.waiting, is.waiting);
    assert_int_equal(was.hash_only, is.hash_only);
    assert_int_equal(
        kve_index_counter(to, other, KVE_COUNTER_INDEX_STORED), is.copies);
    kve_mem_free(out.data);
    kve_index_destroy(index);
    kve_index_destroy(to);
}

static void
test_cut_anywhere(void **state)
{
    struct kve_state_out out;

    (void)state;
    get_everything(&out);
    for (size_t n = 0; n < out.len; n++)
        assert_int_equal(read_anything(out.data, n), KVE_E_MALFORMED);
    assert_int_equal(read_anything(out.data, out.len), KVE_OK);
    kve_mem_free(out.data);
}

static void
test_any_byte_is_another(void **state)
{
    struct kve_state_out out;

    (void)state;
    get_everything(&out);
    for (size_t i = 0; i < out.len; i++) {
        static const uint8_t flips[] = { 1, 2, 4, 8, 0x7f, 0x80, 0xff };

        for (size_t k = 0; k < sizeof(flips); k++) {
            out.data[i] ^= flips[k];
            (void)read_anything(out.data, out.len);
            out.data[i] ^= flips[k];
        }
    }
    kve_mem_free(out.data);
}

static void
test_no_memory_to_write_or_read(void **state)
{
    struct kve_state_out out;
    kve_instance instance, empty;
    kve_index *index = index_of_everything(&instance);
    kve_index *to = new_index(&empty);
    char problem[INDEXCHECK_TEXT] = "";
    bool failed = true;

    (void)state;
    for (uint64_t n = 1; failed; n++) {
        struct kve_state_out again = { NULL, 0, 0, false };
        kve_status status;

        kve_mem_fail_at(n, false);
        status = kve_state_put_blocks(&again, index, instance, NULL);
        failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        assert_int_equal(status, failed ? KVE_E_NOMEM : KVE_OK);
        kve_mem_free(again.data);
    }
    get_everything(&out);
    failed = true;
    for (uint64_t n = 1; failed; n++) {
        struct kve_state_in in = in_of(out.data, out.len);
        size_t blocks = 0;
        kve_status status;

        kve_mem_fail_at(n, false);
        status = kve_state_read_blocks(&in, to, empty, &blocks, NULL);
        failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        /* Not everything needs the memory that it asks for. */
        assert_true(status == KVE_OK || (failed && status == KVE_E_NOMEM));
        if (status == KVE_OK)
            assert_int_equal(blocks, 17);
        if (!indexcheck(to, false, problem))
            fail_msg("%s", problem);
        assert_int_equal(kve_index_clear(to, empty, 0, NULL), KVE_OK);
        while (kve_index_tidy(to, 100000))
            continue;
    }
    kve_mem_free(out.data);
    kve_index_destroy(index);
    kve_index_destroy(to);
}

/* ---- many blocks ---- */

#define MANY (1000000u / TEST_SCALE)
#define CHAIN 64u

/* Chains that part, as prompts of many users do. */
static void
fill(kve_index *index, kve_instance instance)
{
    struct kve_hash hashes[CHAIN];
    uint64_t contents[CHAIN];
    struct kve_event event = { .type = KVE_EVENT_STORED,
        .block_size = 16,
        .hashes = hashes,
        .n_hashes = CHAIN };
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;

    view.events = &event;
    view.n_events = 1;
    for (uint64_t chain = 0; chain < MANY / CHAIN; chain++) {
        for (uint64_t i = 0; i < CHAIN; i++) {
            uint64_t n = chain * CHAIN + i + 1;

            contents[i] = n * UINT64_C(0x9e3779b97f4a7c15);
            hashes[i] = (struct kve_hash){ NULL, { n ^ n << 40 } };
        }
        /* Every fourth begins anew; the others behind an earlier one. */
        event.has_parent = chain % 4 != 0;
        if (event.has_parent) {
            uint64_t n = (chain / 4 * 4) * CHAIN + 1 + chain % 40;

            event.parent = (struct kve_hash){ NULL, { n ^ n << 40 } };
        }
        assert_int_equal(kve_index_apply(index, instance, &view, contents,
                             CHAIN, NULL, NULL),
            KVE_OK);
    }
}

static void
test_many_blocks_take_little(void **state)
{
    struct kve_state_out out = { NULL, 0, 0, false };
    struct kve_state_in in;
    kve_instance a, b;
    kve_index *from = new_index(&a), *to = new_index(&b);
    size_t blocks = 0;
    int64_t begun, written, read;

    (void)state;
    fill(from, a);
    begun = kve_now_ns();
    assert_int_equal(kve_state_put_blocks(&out, from, a, NULL), KVE_OK);
    written = kve_now_ns();
    in = in_of(out.data, out.len);
    assert_int_equal(kve_state_read_blocks(&in, to, b, &blocks, NULL), KVE_OK);
    read = kve_now_ns();
    assert_int_equal(blocks, MANY / CHAIN * CHAIN);
    (void)fprintf(stderr,
        "%zu blocks: %.1f MB, %.1f bytes a block; written in %.0f ms, read in "
        "%.0f ms\n",
        blocks, (double)out.len / 1e6, (double)out.len / (double)blocks,
        (double)(written - begun) / 1e6, (double)(read - written) / 1e6);
    assert_true(out.len < blocks * 17);
    kve_mem_free(out.data);
    kve_index_destroy(from);
    kve_index_destroy(to);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_much_comes_back),
        cmocka_unit_test(test_cut_anywhere),
        cmocka_unit_test(test_any_byte_is_another),
        cmocka_unit_test(test_no_memory_to_write_or_read),
        cmocka_unit_test(test_many_blocks_take_little),
        cmocka_unit_test(test_streams_with_reloads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
