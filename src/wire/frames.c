/*
 * frames.c - which frame of a message is what; see kvevents/codec.h.
 *
 *   live      topic | number | payload
 *   replay    "" | number | payload              vLLM up to 0.25, SGLang
 *             "" | topic | number | payload      vLLM from 0.26, others
 *
 * Both are read from the end, so that a topic of 8 bytes is not taken for a
 * number. The number 2^64-1 is no batch: live it says that the publisher
 * starts anew, in a replay that nothing follows; only with an empty payload.
 */
#include <kvevents/codec.h>

#include "base/bytes.h"
#include "base/status.h"

const char *
kve_frames_fault_str(unsigned fault)
{
    switch (fault) {
#define X(name, number, text, help) \
    case number:                    \
        return text;
        KVE_FRAMES_MAP(X)
#undef X
    default:
        return "?";
    }
}

void
kve_number_write(uint64_t number, uint8_t ret_bytes[8])
{
    kve_put64(ret_bytes, number);
}

uint64_t
kve_number_read(const uint8_t bytes[8])
{
    return kve_get64(bytes);
}

static kve_status
fault(struct kve_error *err, enum kve_frames_fault why, const char *expected,
    size_t n_frames, size_t len)
{
    switch (why) {
    case KVE_FRAMES_NUMBER:
        return kve_fail_at(err, KVE_E_MALFORMED, why,
            "a number frame of %zu bytes; expected 8 bytes, big-endian, and "
            "2^64-1 with an empty payload only",
            len);
    case KVE_FRAMES_EMPTY:
        return kve_fail_at(err, KVE_E_MALFORMED, why,
            "an empty payload with the number of a batch; expected msgpack");
    default:
        return kve_fail_at(err, KVE_E_MALFORMED, why,
            "a message of %zu frame%s; expected %s", n_frames,
            n_frames == 1 ? "" : "s", expected);
    }
}

/* number and payload are the last two frames; topic is told already. */
static kve_status
read_tail(const struct kve_span *frames, size_t n_frames,
    struct kve_message *message, uint32_t kind_of_end, struct kve_error *err)
{
    struct kve_span number = frames[n_frames - 2];

    message->payload = frames[n_frames - 1];
    if (number.len < 8)
        return fault(err, KVE_FRAMES_NUMBER, NULL, n_frames, number.len);
    message->number = kve_get64(number.data);
    message->publisher_id = number.len == 24 ? number.data + 8 : NULL;

    bool empty = message->payload.len == 0;
    bool end = message->number == KVE_NUMBER_END;
    if (end && !empty)
        return fault(err, KVE_FRAMES_NUMBER, NULL, n_frames, number.len);
    if (empty && !end)
        return fault(err, KVE_FRAMES_EMPTY, NULL, n_frames, number.len);
    message->kind = end ? kind_of_end : (uint32_t)KVE_MESSAGE_DATA;
    return KVE_OK;
}

kve_status
kve_frames_live(const struct kve_span *frames, size_t n_frames,
    struct kve_message *ret_message, struct kve_error *err)
{
    struct kve_message message = { .has_topic = true };

    if (n_frames != 3)
        return fault(err,
            n_frames < 2        ? KVE_FRAMES_ONE
                : n_frames == 2 ? KVE_FRAMES_TWO
                                : KVE_FRAMES_MANY,
            "3: topic, number, payload", n_frames, 0);
    message.topic = frames[0];
    kve_status status =
        read_tail(frames, n_frames, &message, KVE_MESSAGE_RESET, err);
    if (status == KVE_OK)
        *ret_message = message;
    return status;
}

kve_status
kve_frames_replay(const struct kve_span *frames, size_t n_frames,
    struct kve_message *ret_message, struct kve_error *err)
{
    struct kve_message message = { .has_topic = false };

    if (n_frames != 3 && n_frames != 4)
        return fault(err,
            n_frames < 2        ? KVE_FRAMES_ONE
                : n_frames == 2 ? KVE_FRAMES_TWO
                                : KVE_FRAMES_MANY,
            "an empty one, perhaps a topic, number, payload", n_frames, 0);

    /* What stands before the number and is not the empty delimiter. */
    if (n_frames == 4 || frames[0].len != 0) {
        message.has_topic = true;
        message.topic = frames[n_frames - 3];
    }
    kve_status status =
        read_tail(frames, n_frames, &message, KVE_MESSAGE_END, err);
    if (status == KVE_OK)
        *ret_message = message;
    return status;
}
