/*
 * Frames told apart: every shape of live messages and replay answers, and
 * what is no message.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <kvevents/codec.h>

#include <string.h>

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))
#define F(bytes)                                    \
    {                                               \
        (const uint8_t *)(bytes), sizeof(bytes) - 1 \
    }

#define NUMBER5 F("\0\0\0\0\0\0\0\5")
#define ENDS F("\xff\xff\xff\xff\xff\xff\xff\xff")
#define WITH_ID F("\0\0\0\0\0\0\0\5ABCDEFGHIJKLMNOP")

typedef kve_status (*reader)(
    const struct kve_span *, size_t, struct kve_message *, struct kve_error *);

/* A call keeps the layout of a table that the formatter would widen. */
#define ROW(...)    \
    {               \
        __VA_ARGS__ \
    }

static const struct {
    const char *name;
    reader read;
    size_t n;
    struct kve_span frames[5];
    uint32_t fault; /* 0: a message */
    uint32_t kind;
    const char *topic; /* NULL: has none */
    const char *payload;
} rows[] = {
    ROW("live", kve_frames_live, 3, { F("t"), NUMBER5, F("p") }, 0,
        KVE_MESSAGE_DATA, "t", "p"),
    ROW("live, empty topic", kve_frames_live, 3, { F(""), NUMBER5, F("p") }, 0,
        KVE_MESSAGE_DATA, "", "p"),
    ROW("live, id", kve_frames_live, 3, { F("t"), WITH_ID, F("p") }, 0,
        KVE_MESSAGE_DATA, "t", "p"),
    ROW("live, 9 bytes", kve_frames_live, 3,
        { F("t"), F("\0\0\0\0\0\0\0\5x"), F("p") }, 0, KVE_MESSAGE_DATA, "t",
        "p"),
    ROW("live, reset", kve_frames_live, 3, { F("t"), ENDS, F("") }, 0,
        KVE_MESSAGE_RESET, "t", ""),
    ROW("none", kve_frames_live, 0, { F("") }, KVE_FRAMES_ONE, 0, NULL, NULL),
    ROW("one", kve_frames_live, 1, { F("p") }, KVE_FRAMES_ONE, 0, NULL, NULL),
    ROW("two", kve_frames_live, 2, { F("t"), F("p") }, KVE_FRAMES_TWO, 0, NULL,
        NULL),
    ROW("four", kve_frames_live, 4, { F("t"), F("t"), NUMBER5, F("p") },
        KVE_FRAMES_MANY, 0, NULL, NULL),
    ROW("number of 4", kve_frames_live, 3, { F("t"), F("\0\0\0\5"), F("p") },
        KVE_FRAMES_NUMBER, 0, NULL, NULL),
    ROW("number of 0", kve_frames_live, 3, { F("t"), F(""), F("p") },
        KVE_FRAMES_NUMBER, 0, NULL, NULL),
    ROW("reserved with payload", kve_frames_live, 3, { F("t"), ENDS, F("p") },
        KVE_FRAMES_NUMBER, 0, NULL, NULL),
    ROW("empty payload", kve_frames_live, 3, { F("t"), NUMBER5, F("") },
        KVE_FRAMES_EMPTY, 0, NULL, NULL),
    ROW("replay", kve_frames_replay, 3, { F(""), NUMBER5, F("p") }, 0,
        KVE_MESSAGE_DATA, NULL, "p"),
    ROW("replay, topic", kve_frames_replay, 4,
        { F(""), F("t"), NUMBER5, F("p") }, 0, KVE_MESSAGE_DATA, "t", "p"),
    ROW("replay, empty topic", kve_frames_replay, 4,
        { F(""), F(""), NUMBER5, F("p") }, 0, KVE_MESSAGE_DATA, "", "p"),
    ROW("replay, topic of 8", kve_frames_replay, 4,
        { F(""), F("kv-event"), NUMBER5, F("p") }, 0, KVE_MESSAGE_DATA,
        "kv-event", "p"),
    ROW("replay without delimiter", kve_frames_replay, 3,
        { F("t"), NUMBER5, F("p") }, 0, KVE_MESSAGE_DATA, "t", "p"),
    ROW("end", kve_frames_replay, 3, { F(""), ENDS, F("") }, 0, KVE_MESSAGE_END,
        NULL, ""),
    ROW("end, topic", kve_frames_replay, 4, { F(""), F(""), ENDS, F("") }, 0,
        KVE_MESSAGE_END, "", ""),
    ROW("replay, one", kve_frames_replay, 1, { F("") }, KVE_FRAMES_ONE, 0, NULL,
        NULL),
    ROW("replay, two", kve_frames_replay, 2, { F(""), F("p") }, KVE_FRAMES_TWO,
        0, NULL, NULL),
    ROW("replay, five", kve_frames_replay, 5,
        { F(""), F(""), F("t"), NUMBER5, F("p") }, KVE_FRAMES_MANY, 0, NULL,
        NULL),
    ROW("replay, empty payload", kve_frames_replay, 3,
        { F(""), NUMBER5, F("") }, KVE_FRAMES_EMPTY, 0, NULL, NULL),
    ROW("replay, short number", kve_frames_replay, 4,
        { F(""), F("t"), F("\5"), F("p") }, KVE_FRAMES_NUMBER, 0, NULL, NULL),
};

static void
test_shapes(void **state)
{
    (void)state;

    for (size_t i = 0; i < N_OF(rows); i++) {
        struct kve_error err = { .offset = 99 };
        struct kve_message got = { .kind = 42 };
        kve_status status = rows[i].read(rows[i].frames, rows[i].n, &got, &err);

        if (rows[i].fault != 0) {
            if (status != KVE_E_MALFORMED || err.offset != rows[i].fault)
                fail_msg("%s: %s, fault %zu", rows[i].name,
                    kve_status_name(status), err.offset);
            assert_int_equal(got.kind, 42);
            continue;
        }
        if (status != KVE_OK || got.kind != rows[i].kind)
            fail_msg("%s: %s", rows[i].name, err.detail);
        assert_int_equal(err.offset, 99);
        assert_int_equal(got.has_topic, rows[i].topic != NULL);
        if (rows[i].topic != NULL) {
            assert_int_equal(got.topic.len, strlen(rows[i].topic));
            assert_memory_equal(got.topic.data, rows[i].topic, got.topic.len);
        }
        assert_int_equal(got.payload.len, strlen(rows[i].payload));
        assert_true(
            got.number == (got.kind == KVE_MESSAGE_DATA ? 5 : KVE_NUMBER_END));
        bool id = rows[i].frames[rows[i].n - 2].len == 24;
        assert_int_equal(got.publisher_id != NULL, id);
        if (id)
            assert_memory_equal(got.publisher_id, "ABCDEFGHIJKLMNOP", 16);
    }
}

static void
test_numbers(void **state)
{
    (void)state;
    uint8_t bytes[8];

    kve_number_write(0x0102030405060708, bytes);
    assert_memory_equal(bytes, "\1\2\3\4\5\6\7\10", 8);
    assert_int_equal(kve_number_read(bytes), 0x0102030405060708);
    kve_number_write(KVE_NUMBER_END, bytes);
    assert_true(kve_number_read(bytes) == KVE_NUMBER_END);
}

static void
test_names(void **state)
{
    (void)state;

    assert_string_equal(kve_frames_fault_str(KVE_FRAMES_TWO), "two_frames");
    assert_string_equal(
        kve_frames_fault_str(KVE_FRAMES_NUMBER), "number_length");
    assert_string_equal(kve_frames_fault_str(0), "?");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests_name("wire/frames", tests, NULL, NULL);
}
