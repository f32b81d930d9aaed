/*
 * live_text.c - see live_text.h.
 *
 * Names and texts that others gave are cut, so that what one text takes is
 * bounded: an event of a batch by EVENT_MAX, the rest by REST_MAX.
 */
#include "http/live_text.h"

#include "http/live.h"
#include "http/output.h"

#include "wire/buffer.h"

#include <stdio.h>
#include <string.h>

#define MAX_NAME ((size_t)1024)
#define MAX_SHORT ((size_t)128)
/* Longer hashes than any engine's are not shown. */
#define MAX_HASH ((size_t)64)
/* Six bytes for each of a text that is all control characters. */
#define EVENT_MAX \
    (6 * 4 * MAX_SHORT + (KVE_LIVE_HASHES + 1) * (2 * MAX_HASH + 8) + 1024)

bool
kve_live_put(struct kve_buffer *text, const char *bytes, size_t len)
{
    if (kve_buffer_reserve(text, len, NULL) != KVE_OK)
        return false;
    memcpy(text->data + text->len, bytes, len);
    text->len += len;
    return true;
}

static void
put_text(
    struct kve_output *out, const char *key, struct kve_str text, size_t max)
{
    if (text.len > max)
        text.len = max;
    kve_output_key(out, key);
    kve_output_str(out, text);
}

static void
put_name(struct kve_output *out, const char *key, const char *text)
{
    struct kve_str str = { text, text != NULL ? strlen(text) : 0 };

    put_text(out, key, str, MAX_NAME);
}

static void
put_u64(struct kve_output *out, const char *key, uint64_t number)
{
    kve_output_key(out, key);
    kve_output_u64(out, number);
}

static void
put_bool(struct kve_output *out, const char *key, bool value)
{
    kve_output_key(out, key);
    kve_output_bool(out, value);
}

static bool
is_shown(const struct kve_hash *hash)
{
    return hash->bytes == NULL || hash->len <= MAX_HASH;
}

static void
put_hashes(struct kve_output *out, const struct kve_event *event)
{
    kve_output_key(out, "hashes");
    kve_output_array(out, 0);
    for (size_t i = 0; i < event->n_hashes && i < KVE_LIVE_HASHES &&
         is_shown(&event->hashes[i]);
         i++)
        kve_output_hash(out, &event->hashes[i]);
    kve_output_array_end(out);
}

/* One event of a batch. Of its tokens the number is said. */
static void
put_event(struct kve_output *out, const struct kve_event *event)
{
    kve_output_map(out, 0);
    kve_output_key(out, "type");
    kve_output_text(out, kve_event_type_str(event->type));
    if (event->type == KVE_EVENT_STORED || event->type == KVE_EVENT_REMOVED) {
        put_u64(out, "blocks", event->n_hashes);
        put_hashes(out, event);
    }
    if (event->type == KVE_EVENT_STORED) {
        put_u64(out, "tokens", event->n_tokens);
        put_u64(out, "block_size", event->block_size);
        if (event->has_parent && is_shown(&event->parent)) {
            kve_output_key(out, "parent");
            kve_output_hash(out, &event->parent);
        }
        if (event->lora_name.len != 0)
            put_text(out, "lora_name", event->lora_name, MAX_SHORT);
    }
    if (event->type != KVE_EVENT_CLEARED) {
        put_text(out, "medium", event->medium, MAX_SHORT);
        kve_output_key(out, "tier");
        kve_output_text(out, kve_tier_str(event->tier));
    }
    if (event->group_idx.set) {
        kve_output_key(out, "group");
        kve_output_i64(out, event->group_idx.value);
    }
    kve_output_map_end(out);
}

static void
put_applied(struct kve_output *out, const struct kve_index_applied *applied)
{
    kve_output_key(out, "applied");
    kve_output_map(out, 4);
    put_u64(out, "stored", applied->stored);
    put_u64(out, "removed", applied->removed);
    put_u64(out, "cleared", applied->cleared);
    put_u64(out, "refused", applied->refused);
    kve_output_map_end(out);
}

static void
put_batch(struct kve_output *out, const struct kve_ingest_event *event)
{
    const struct kve_delivery *delivery = event->delivery;
    const struct kve_event *one;
    uint64_t left_out = 0;

    if (event->applied != NULL)
        put_applied(out, event->applied);
    if (delivery == NULL)
        return;
    put_u64(out, "number", delivery->number);
    put_bool(out, "replayed", delivery->replayed != 0);
    put_bool(out, "hidden", delivery->hidden != 0);
    put_bool(out, "snapshot", delivery->snapshot != 0);
    kve_output_key(out, "events");
    kve_output_array(out, 0);
    while (delivery->batch != NULL &&
        (one = kve_batch_next(delivery->batch)) != NULL) {
        if (out->buf->len + EVENT_MAX > KVE_LIVE_TEXT_MAX - 128)
            left_out++;
        else
            put_event(out, one);
    }
    kve_output_array_end(out);
    if (left_out != 0)
        put_u64(out, "left_out", left_out);
}

static void
put_notice(struct kve_output *out, const struct kve_notice *notice)
{
    kve_output_key(out, "notice");
    kve_output_text(out, kve_notice_str(notice->type));
    put_u64(out, "first", notice->first);
    put_u64(out, "last", notice->last);
    kve_output_key(out, "old_state");
    kve_output_text(out, kve_state_str(notice->old_state));
    kve_output_key(out, "state");
    kve_output_text(out, kve_state_str(notice->state));
    kve_output_key(out, "reason");
    kve_output_text(out, kve_reason_str(notice->reason));
    put_name(out, "detail", notice->detail);
}

bool
kve_live_text(
    struct kve_buffer *text, uint64_t id, const struct kve_ingest_event *event)
{
    struct kve_output out;
    char head[96];
    int len = snprintf(head, sizeof(head),
        "id: %llu\nevent: %s\ndata: ", (unsigned long long)id,
        kve_ingest_event_str(event->type));

    if (!kve_live_put(text, head, (size_t)len))
        return false;
    kve_output_begin(&out, text, false);
    kve_output_map(&out, 0);
    kve_output_key(&out, "type");
    kve_output_text(&out, kve_ingest_event_str(event->type));
    put_u64(&out, "source", event->source);
    put_name(&out, "worker", event->worker);
    put_u64(&out, "rank", event->rank);
    put_name(&out, "model", event->model);
    put_name(&out, "tenant", event->tenant);
    if (event->type == KVE_INGEST_EVENT_BATCH) {
        put_batch(&out, event);
    } else if (event->type == KVE_INGEST_EVENT_NOTICE &&
        event->notice != NULL) {
        put_notice(&out, event->notice);
    } else {
        if (event->type == KVE_INGEST_EVENT_NOT_APPLIED)
            put_u64(&out, "number", event->number);
        put_name(&out, "detail", event->detail);
    }
    kve_output_map_end(&out);
    return out.status == KVE_OK && kve_live_put(text, "\n\n", 2);
}
