/*
 * message.c - received frames as the machine is told of them.
 */
#include "subscribe/source.h"

#include "stream/digest.h"
#include "subscribe/loop.h"

#include <kvevents/codec.h>

static size_t
frames_kept(const struct kve_msg *msg)
{
    return msg->n_frames < KVE_MSG_FRAMES ? msg->n_frames : KVE_MSG_FRAMES;
}

kve_status
kve_message_read(const struct kve_msg *msg, bool replay,
    struct kve_message *ret_message, struct kve_error *err)
{
    _Static_assert(KVE_MSG_FRAMES > 4, "a message one frame too long is seen");
    return replay
        ? kve_frames_replay(msg->frame, frames_kept(msg), ret_message, err)
        : kve_frames_live(msg->frame, frames_kept(msg), ret_message, err);
}

void
kve_message_bad(struct kve_source *s, const struct kve_error *why)
{
    static const enum kve_counter counters[] = {
        [KVE_FRAMES_ONE] = KVE_COUNTER_SUB_BAD_ONE_FRAME,
        [KVE_FRAMES_TWO] = KVE_COUNTER_SUB_BAD_TWO_FRAMES,
        [KVE_FRAMES_MANY] = KVE_COUNTER_SUB_BAD_MANY_FRAMES,
        [KVE_FRAMES_NUMBER] = KVE_COUNTER_SUB_BAD_NUMBER,
        [KVE_FRAMES_EMPTY] = KVE_COUNTER_SUB_BAD_EMPTY,
    };
    struct kve_notice_args args = { 0, 0, 0, 0, 0, (uint32_t)why->offset, 0,
        why->detail };

    if (why->offset < sizeof(counters) / sizeof(counters[0]))
        kve_sub_count(&s->counters, counters[why->offset], 1);
    kve_source_notify(s, KVE_NOTICE_BAD_FRAMES, &args);
}

struct kve_machine_msg
kve_message_of(const struct kve_source *s, const struct kve_message *message)
{
    const struct kve_batch_info *info = kve_batch_get_info(s->loop->batch);
    struct kve_machine_msg msg = { .number = message->number,
        .digest = kve_digest(message->payload.data, message->payload.len),
        .topic = message->topic,
        .payload = message->payload,
        .publisher_id = message->publisher_id,
        .empty = s->loop->decoded.status == KVE_OK && info->n_events == 0 &&
            info->n_faults == 0 };

    if (msg.publisher_id == NULL)
        msg.publisher_id = info->publisher_id;
    if (!message->has_topic) {
        msg.topic.data = (const uint8_t *)s->topic;
        msg.topic.len = s->topic_len;
    }
    return msg;
}
