/*
 * Names of types, tiers, fields, notes and faults; media; hashes as text.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <kvevents/codec.h>

#include <string.h>

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

static void
test_names(void **state)
{
    (void)state;

    assert_string_equal(kve_event_type_str(KVE_EVENT_STORED), "BlockStored");
    assert_string_equal(
        kve_event_type_str(KVE_EVENT_TIER_CLEARED), "TierBlocksCleared");
    assert_string_equal(kve_event_type_str(0), "?");
    assert_string_equal(kve_tier_str(KVE_TIER_DISK), "disk");
    assert_string_equal(kve_tier_str(99), "unknown");
    assert_string_equal(kve_field_str(KVE_FIELD_BLOCK_HASHES), "block_hashes");
    assert_string_equal(kve_field_str(KVE_FIELD_SLIDING_WINDOW),
        "kv_cache_spec_sliding_window");
    assert_string_equal(kve_field_str(21), "?");
    assert_string_equal(kve_note_str(KVE_NOTE_TWO_NAMES), "two_names");
    assert_string_equal(kve_note_str(0), "?");
    assert_string_equal(kve_note_str(3), "?");
    assert_string_equal(kve_fault_str(KVE_FAULT_BAD_PARENT), "bad_parent");
    assert_string_equal(kve_fault_str(0), "?");
    assert_string_equal(
        kve_fault_help(KVE_FAULT_NO_TAG), "the event has no type");
    assert_string_equal(kve_fault_help(99), "?");
}

static void
test_media(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum kve_tier tier;
    } media[] = {
        { "", KVE_TIER_GPU },
        { "GPU", KVE_TIER_GPU },
        { "gpu", KVE_TIER_GPU },
        { "CPU", KVE_TIER_CPU },
        { "cpu", KVE_TIER_CPU },
        { "CPU_PINNED", KVE_TIER_CPU },
        { "CPU_TIER1", KVE_TIER_CPU },
        { "cpu_tier2", KVE_TIER_CPU },
        { "host_pinned", KVE_TIER_CPU },
        { "DISK", KVE_TIER_DISK },
        { "fs", KVE_TIER_DISK },
        { "STORAGE", KVE_TIER_DISK },
        { "SHARED_STORAGE", KVE_TIER_REMOTE },
        { "OBJ", KVE_TIER_REMOTE },
        { "Remote", KVE_TIER_REMOTE },
        { "QUANTUM", KVE_TIER_UNKNOWN },
        { "GP", KVE_TIER_UNKNOWN },
        { "GPU ", KVE_TIER_UNKNOWN },
        { "CPU_TIER3", KVE_TIER_UNKNOWN },
        { "CPU\x7fTIER1", KVE_TIER_UNKNOWN },
    };

    for (size_t i = 0; i < N_OF(media); i++) {
        struct kve_str s = { media[i].text, strlen(media[i].text) };
        if (kve_medium_tier(s) != media[i].tier)
            fail_msg("%s", media[i].text);
    }
    assert_int_equal(
        kve_medium_tier((struct kve_str){ NULL, 0 }), KVE_TIER_GPU);
}

static void
test_hash_equal(void **state)
{
    (void)state;
    static const uint8_t a[8] = { 0, 0, 0, 0, 0, 0, 0, 5 };
    static const uint8_t b[8] = { 0, 0, 0, 0, 0, 0, 0, 5 };
    struct kve_hash five = { NULL, { 5 } };
    struct kve_hash also_five = { NULL, { 5 } };
    struct kve_hash six = { NULL, { 6 } };
    struct kve_hash bytes = { a, { .len = 8 } };
    struct kve_hash same = { b, { .len = 8 } };
    struct kve_hash shorter = { a, { .len = 5 } };
    struct kve_hash empty = { a, { .len = 0 } };

    assert_true(kve_hash_equal(&five, &also_five));
    assert_false(kve_hash_equal(&five, &six));
    assert_true(kve_hash_equal(&bytes, &same));
    assert_false(kve_hash_equal(&bytes, &shorter));
    assert_false(kve_hash_equal(&five, &shorter));
    assert_false(kve_hash_equal(&shorter, &five));
    assert_true(kve_hash_equal(&empty, &empty));
}

static void
test_hash_format(void **state)
{
    (void)state;
    static const uint8_t digest[3] = { 0x0a, 0xbc, 0xff };
    struct kve_hash large = { NULL, { UINT64_MAX } };
    struct kve_hash zero = { NULL, { 0 } };
    struct kve_hash bytes = { digest, { .len = 3 } };
    char text[32];

    assert_int_equal(kve_hash_format(&large, text, sizeof(text)), 20);
    assert_string_equal(text, "18446744073709551615");
    assert_int_equal(kve_hash_format(&zero, text, sizeof(text)), 1);
    assert_string_equal(text, "0");
    assert_int_equal(kve_hash_format(&bytes, text, sizeof(text)), 6);
    assert_string_equal(text, "0abcff");

    /* Too little room: what fits, terminated; the length of all. */
    memset(text, 'x', sizeof(text));
    assert_int_equal(kve_hash_format(&large, text, 5), 20);
    assert_string_equal(text, "1844");
    assert_int_equal(text[5], 'x');
    assert_int_equal(kve_hash_format(&bytes, text, 4), 6);
    assert_string_equal(text, "0ab");
    assert_int_equal(kve_hash_format(&bytes, text, 1), 6);
    assert_string_equal(text, "");
    assert_int_equal(kve_hash_format(&bytes, NULL, 0), 6);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_media),
        cmocka_unit_test(test_hash_equal),
        cmocka_unit_test(test_hash_format),
    };

    return cmocka_run_group_tests_name("wire/event", tests, NULL, NULL);
}
