/*
 * fuzz_frames.c - any frames as a live message and as a replay answer.
 *
 * The input is split into frames: a byte n says how long the next one is, 255
 * that it is all the rest.
 */
#include "check.h"

#define MOST_FRAMES 16

/* The frame is one of those given, or a whole part of the number's. */
static void
check_frame(struct kve_span got, const struct kve_span *frames, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (got.data == frames[i].data && got.len == frames[i].len)
            return;
    }
    CHECK(!"a frame that was not given");
}

static void
check_message(
    const struct kve_message *m, const struct kve_span *frames, size_t n)
{
    struct kve_span number = frames[n - 2];
    uint8_t bytes[8];

    check_frame(m->payload, frames + n - 1, 1);
    if (m->has_topic)
        check_frame(m->topic, frames, n - 2);
    else
        CHECK(m->topic.data == NULL && m->topic.len == 0);
    CHECK(number.len >= 8);
    kve_number_write(m->number, bytes);
    CHECK(memcmp(bytes, number.data, 8) == 0);
    CHECK(kve_number_read(bytes) == m->number);
    CHECK(m->publisher_id ==
        (number.len == 24 ? number.data + 8 : (const uint8_t *)NULL));
    CHECK((m->payload.len == 0) == (m->kind != KVE_MESSAGE_DATA));
    CHECK((m->number == KVE_NUMBER_END) == (m->kind != KVE_MESSAGE_DATA));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static kve_batch *batch;
    struct kve_span frames[MOST_FRAMES];
    size_t n = 0;

    if (batch == NULL)
        batch = check_batch();
    while (size > 0 && n < MOST_FRAMES) {
        size_t len = *data++;

        size--;
        if (len == 255 || len > size)
            len = size;
        frames[n].data = data;
        frames[n++].len = len;
        data += len;
        size -= len;
    }

    for (int replay = 0; replay < 2; replay++) {
        struct kve_message m = { .kind = 99 };
        struct kve_error err = { 0 };
        kve_status status = replay ? kve_frames_replay(frames, n, &m, &err)
                                   : kve_frames_live(frames, n, &m, &err);

        if (status != KVE_OK) {
            CHECK(status == KVE_E_MALFORMED && m.kind == 99);
            CHECK(strcmp(kve_frames_fault_str((unsigned)err.offset), "?") != 0);
            continue;
        }
        CHECK(m.kind == KVE_MESSAGE_DATA ||
            m.kind == (replay ? KVE_MESSAGE_END : KVE_MESSAGE_RESET));
        CHECK(replay ? n == 3 || n == 4 : n == 3);
        check_message(&m, frames, n);
        (void)check_decode(batch, m.payload.data, m.payload.len);
    }
    return 0;
}
