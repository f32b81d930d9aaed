/*
 * encode.c - batches to bytes, as vLLM's own classes write them.
 *
 * Two passes over the view. The first checks every event and adds up a bound
 * of what it can take (5 bytes a token, 9 an integer hash, ...); room is
 * reserved once; the second writes without looking at room again. The bound is
 * generous, so near the buffer's limit the batch is first written to memory of
 * its own and only what it really takes counts.
 */
#include "wire/buffer.h"
#include "wire/cursor.h"
#include "wire/put.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"

/* The batch around its events. */
#define BATCH_ROOM 64

/* Events between one that is checked and one whose memory is asked for. */
#define AHEAD 4
#define FETCH_TOKENS 128

#define EVENT_SIZE_MIN \
    (offsetof(struct kve_event, raw) + sizeof(struct kve_span))

/* A newer caller's events are longer and begin as ours do. */
static const struct kve_event *
event_at(const struct kve_batch_view *view, size_t i)
{
    const char *base = (const char *)view->events;

    return (const void *)(base + i * view->event_size);
}

/* ------------------------------------------------------------------ */

/* What is wrong with an event, or NULL; its bound is added to *room. */

static bool
str_ok(struct kve_str s, size_t *room)
{
    *room += s.len;
    return s.len <= UINT32_MAX && (s.data != NULL || s.len == 0);
}

static bool
hash_ok(const struct kve_hash *hash, size_t *room)
{
    if (hash->bytes == NULL) {
        *room += KVE_PUT_HEAD;
        return true;
    }
    *room += KVE_PUT_HEAD + hash->len;
    return hash->len <= UINT32_MAX;
}

/* A short list of nils, which most extra keys are. */
static inline bool
is_nil_list(struct kve_span raw)
{
    if (raw.len > 16 || raw.data[0] != (0x90 | (raw.len - 1)))
        return false;
    for (size_t i = 1; i < raw.len; i++)
        if (raw.data[i] != 0xc0)
            return false;
    return true;
}

/* Out of line: few raw values are anything but absent or nils. */
static __attribute__((noinline)) bool
is_one_value(struct kve_span raw)
{
    struct kve_reader r;

    r.begin = raw.data;
    r.end = raw.data + raw.len;
    r.status = KVE_OK;
    return raw.len != 0 && kve_skip(&r, raw.data) == r.end;
}

static inline bool
raw_ok(struct kve_span raw, size_t *room)
{
    *room += raw.len;
    if (KVE_LIKELY(raw.data == NULL))
        return raw.len == 0;
    return (raw.len != 0 && is_nil_list(raw)) || is_one_value(raw);
}

static const char *
check_hashes(const struct kve_event *ev, enum kve_layout layout, size_t *room)
{
    if (ev->n_hashes > UINT32_MAX || (ev->hashes == NULL && ev->n_hashes != 0))
        return "hashes is NULL with n_hashes above 0, or has too many";
    for (size_t i = 0; i < ev->n_hashes; i++)
        if (!hash_ok(&ev->hashes[i], room))
            return "a hash is longer than 4 GiB";
    if ((ev->has_parent && !hash_ok(&ev->parent, room)) ||
        (ev->has_skipped_parent && !hash_ok(&ev->skipped_parent, room)))
        return "a parent hash is longer than 4 GiB";
    if (layout == KVE_LAYOUT_FIRST) {
        for (size_t i = 0; i < ev->n_hashes; i++)
            if (ev->hashes[i].bytes != NULL)
                return "hashes are bytes; this layout has integers only";
        if (ev->has_parent && ev->parent.bytes != NULL)
            return "the parent is bytes; this layout has integers only";
    }
    return NULL;
}

static const char *
check_event(const struct kve_event *ev, enum kve_layout layout, size_t *room)
{
    if (ev->type < KVE_EVENT_STORED || ev->type > KVE_EVENT_TIER_CLEARED)
        return "type is none of KVE_EVENT_*";
    if (layout > KVE_LAYOUT_MAP_SHORT)
        return "layout is none of KVE_LAYOUT_*";

    const char *wrong = check_hashes(ev, layout, room);
    if (wrong != NULL)
        return wrong;

    if (ev->n_tokens > UINT32_MAX || ev->n_skipped_tokens > UINT32_MAX ||
        (ev->tokens == NULL && ev->n_tokens != 0) ||
        (ev->skipped_tokens == NULL && ev->n_skipped_tokens != 0))
        return "tokens are NULL with a number above 0, or too many";
    *room += 5 * (ev->n_tokens + ev->n_skipped_tokens);

    if (!str_ok(ev->medium, room) || !str_ok(ev->lora_name, room) ||
        !str_ok(ev->spec_kind, room) || !str_ok(ev->locality, room) ||
        !str_ok(ev->ownership, room) || !str_ok(ev->session_id, room) ||
        !str_ok(ev->cache_salt, room))
        return "a string has a length without data, or 4 GiB";
    if (!raw_ok(ev->extra_keys, room) ||
        !raw_ok(ev->lookahead_token_ids, room) ||
        !raw_ok(ev->skipped_extra_keys, room) ||
        !raw_ok(ev->block_offsets, room) ||
        !raw_ok(ev->remaining_copy_counts, room))
        return "a raw value is not exactly one msgpack value";
    *room += KVE_PUT_EVENT;
    return NULL;
}

/* ------------------------------------------------------------------ */

static uint8_t *
put_batch(uint8_t *w, const struct kve_batch_view *view, enum kve_layout layout,
    double ts)
{
    w = kve_put_array(w, view->publisher_id != NULL ? 4 : 3);
    w = kve_put_float(w, ts);
    w = kve_put_array(w, view->n_events);
    for (size_t i = 0; i < view->n_events; i++) {
        const struct kve_event *ev = event_at(view, i);
        unsigned how =
            layout == KVE_LAYOUT_KEEP ? ev->layout : (unsigned)layout;

        w = kve_put_event(w, ev, (enum kve_layout)how);
    }
    w = view->rank.set ? kve_put_i64(w, view->rank.value) : kve_put_nil(w);
    if (view->publisher_id != NULL)
        w = kve_put_bin(w, view->publisher_id, 16);
    return w;
}

/* ------------------------------------------------------------------ */

/* What events point to is often cold; the two passes need it soon. */
static inline void
fetch(const struct kve_event *ev)
{
    __builtin_prefetch(ev->hashes);
    size_t n = ev->n_tokens < FETCH_TOKENS ? ev->n_tokens : FETCH_TOKENS;
    for (size_t i = 0; i < n; i += 16)
        __builtin_prefetch(ev->tokens + i);
    if (ev->extra_keys.data != NULL)
        __builtin_prefetch(ev->extra_keys.data);
    if (ev->spec_kind.data != NULL)
        __builtin_prefetch(ev->spec_kind.data);
}

static kve_status
check_view(const struct kve_batch_view *view, enum kve_layout layout,
    size_t *ret_room, struct kve_error *err)
{
    size_t room = BATCH_ROOM;

    if ((unsigned)layout > KVE_LAYOUT_KEEP)
        return kve_fail(err, KVE_E_INVAL,
            "layout is %u; use one of KVE_LAYOUT_*", (unsigned)layout);
    if (view->n_events == 0) {
        *ret_room = room;
        return KVE_OK;
    }
    if (view->events == NULL || view->n_events > UINT32_MAX)
        return kve_fail(err, KVE_E_INVAL,
            "events is %s with n_events %zu; at most 4294967295 can be sent",
            view->events == NULL ? "NULL" : "set", view->n_events);
    if (view->event_size < EVENT_SIZE_MIN ||
        view->event_size % _Alignof(struct kve_event) != 0)
        return kve_fail(err, KVE_E_INVAL,
            "event_size is %zu, at least %zu is needed; start from "
            "KVE_BATCH_VIEW_INIT",
            view->event_size, (size_t)EVENT_SIZE_MIN);

    for (size_t i = 0; i < view->n_events; i++) {
        const struct kve_event *ev = event_at(view, i);
        if (i + AHEAD < view->n_events)
            fetch(event_at(view, i + AHEAD));
        const char *wrong = check_event(ev,
            layout == KVE_LAYOUT_KEEP ? (enum kve_layout)ev->layout : layout,
            &room);
        if (wrong != NULL)
            return kve_fail_at(err, KVE_E_INVAL, i, "event %zu: %s", i, wrong);
    }
    *ret_room = room;
    return KVE_OK;
}

/* The bound does not fit but the batch may: write it elsewhere first. */
static KVE_COLD kve_status
encode_aside(const struct kve_batch_view *view, enum kve_layout layout,
    double ts, size_t room, struct kve_buffer *out, struct kve_error *err)
{
    uint8_t *aside = kve_mem_alloc(room);

    if (aside == NULL)
        return kve_fail_nomem(err, "encoding a batch");
    size_t len = (size_t)(put_batch(aside, view, layout, ts) - aside);
    kve_status status = kve_buffer_reserve(out, len, err);
    if (status == KVE_OK) {
        memcpy(out->data + out->len, aside, len);
        out->len += len;
    }
    kve_mem_free(aside);
    return status;
}

kve_status
kve_batch_encode(const struct kve_batch_view *view, enum kve_layout layout,
    struct kve_buffer *out, struct kve_error *err)
{
    struct kve_batch_view given;
    size_t room = 0;
    kve_status status;

    if (view == NULL)
        return kve_fail(
            err, KVE_E_INVAL, "view is NULL; start from KVE_BATCH_VIEW_INIT");
    if (view->struct_size != sizeof(*view) || view->event_size == 0) {
        status = kve_opts_read(view,
            offsetof(struct kve_batch_view, event_size) + sizeof(size_t),
            &given, sizeof(given), "kve_batch_view", err);
        if (status != KVE_OK)
            return status;
        if (given.event_size == 0)
            given.event_size = EVENT_SIZE_MIN;
        view = &given;
    }
    status = check_view(view, layout, &room, err);
    if (status != KVE_OK)
        return status;

    double ts = view->ts != 0 ? view->ts : kve_unix_time();
    size_t max = kve_buffer_max(out);
    if (KVE_UNLIKELY(room > out->cap - out->len &&
            (out->len > max || room > max - out->len)))
        return encode_aside(view, layout, ts, room, out, err);

    status = kve_buffer_reserve(out, room, err);
    if (status != KVE_OK)
        return status;
    uint8_t *start = out->data + out->len;
    out->len += (size_t)(put_batch(start, view, layout, ts) - start);
    return KVE_OK;
}
