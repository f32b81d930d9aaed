/*
 * put_event.c - one event as vLLM's classes write it.
 *
 * Maps follow msgspec: "type" first, then the fields in the order of the
 * class. Those without a default are always there, nil included; the others
 * only where they say something. msgspec writes the number of fields in the
 * form that the class's largest number needs: three bytes for vLLM 0.33's
 * store, of 16, and one byte for all others. Fields that vLLM does not have
 * follow at the end, in the order of enum kve_field.
 */
#include "wire/keys.h"
#include "wire/put.h"

static inline uint8_t *
put_hash(uint8_t *w, const struct kve_hash *hash)
{
    return hash->bytes == NULL ? kve_put_u64(w, hash->integer)
                               : kve_put_bin(w, hash->bytes, hash->len);
}

static uint8_t *
put_hashes(uint8_t *w, const struct kve_hash *hashes, size_t n)
{
    w = kve_put_array(w, n);
    for (size_t i = 0; i < n; i++)
        w = put_hash(w, &hashes[i]);
    return w;
}

static inline uint8_t *
put_parent(uint8_t *w, bool has, const struct kve_hash *hash)
{
    return has ? put_hash(w, hash) : kve_put_nil(w);
}

static inline uint8_t *
put_token_list(uint8_t *w, const uint32_t *tokens, size_t n)
{
    return kve_put_tokens(kve_put_array(w, n), tokens, n);
}

static inline uint8_t *
put_text(uint8_t *w, struct kve_str s)
{
    return s.data == NULL ? kve_put_nil(w) : kve_put_str(w, s.data, s.len);
}

static inline uint8_t *
put_int(uint8_t *w, struct kve_int x)
{
    return x.set ? kve_put_i64(w, x.value) : kve_put_nil(w);
}

static inline uint8_t *
put_raw(uint8_t *w, struct kve_span raw)
{
    if (raw.data == NULL)
        return kve_put_nil(w);
    memcpy(w, raw.data, raw.len);
    return w + raw.len;
}

/* A key or a tag with its head: bytes known when this is compiled. */
#define PUT(w, bytes) \
    (memcpy(w, bytes, sizeof(bytes) - 1), (w) + sizeof(bytes) - 1)

/* A field that is written only where it is there. */
#define PUT_IF(there, key, put) \
    do {                        \
        if (there) {            \
            w = PUT(w, key);    \
            w = put;            \
            n++;                \
        }                       \
    } while (0)

/* Fields that vLLM's classes do not have. */
static uint8_t *
put_foreign(uint8_t *w, const struct kve_event *ev, size_t *count)
{
    size_t n = *count;

    PUT_IF(ev->cache_salt.data != NULL, KVE_KEY_CACHE_SALT,
        put_text(w, ev->cache_salt));
    PUT_IF(ev->has_skipped_parent, KVE_KEY_SKIPPED_PARENT,
        put_hash(w, &ev->skipped_parent));
    PUT_IF(ev->skipped_tokens != NULL, KVE_KEY_SKIPPED_TOKEN_IDS,
        put_token_list(w, ev->skipped_tokens, ev->n_skipped_tokens));
    PUT_IF(ev->skipped_extra_keys.data != NULL, KVE_KEY_SKIPPED_EXTRA_KEYS,
        put_raw(w, ev->skipped_extra_keys));
    PUT_IF(ev->block_offsets.data != NULL, KVE_KEY_BLOCK_OFFSETS,
        put_raw(w, ev->block_offsets));
    PUT_IF(ev->remaining_copy_counts.data != NULL, KVE_KEY_REMAINING_COPIES,
        put_raw(w, ev->remaining_copy_counts));
    *count = n;
    return w;
}

static uint8_t *
put_stored_map(uint8_t *w, const struct kve_event *ev, bool wide)
{
    uint8_t *head = w;
    size_t n = 8;

    w += wide ? 3 : 1;
    w = PUT(w, KVE_TYPE_STORED);
    w = PUT(w, KVE_KEY_BLOCK_HASHES);
    w = put_hashes(w, ev->hashes, ev->n_hashes);
    w = PUT(w, KVE_KEY_PARENT_BLOCK_HASH);
    w = put_parent(w, ev->has_parent, &ev->parent);
    w = PUT(w, KVE_KEY_TOKEN_IDS);
    w = put_token_list(w, ev->tokens, ev->n_tokens);
    w = PUT(w, KVE_KEY_BLOCK_SIZE);
    w = kve_put_u64(w, ev->block_size);
    w = PUT(w, KVE_KEY_LORA_ID);
    w = put_int(w, ev->lora_id);
    w = PUT(w, KVE_KEY_MEDIUM);
    w = put_text(w, ev->medium);
    w = PUT(w, KVE_KEY_LORA_NAME);
    w = put_text(w, ev->lora_name);
    PUT_IF(ev->extra_keys.data != NULL, KVE_KEY_EXTRA_KEYS,
        put_raw(w, ev->extra_keys));
    PUT_IF(ev->group_idx.set, KVE_KEY_GROUP_IDX, put_int(w, ev->group_idx));
    PUT_IF(ev->spec_kind.data != NULL, KVE_KEY_SPEC_KIND,
        put_text(w, ev->spec_kind));
    PUT_IF(ev->sliding_window.set, KVE_KEY_SLIDING_WINDOW,
        put_int(w, ev->sliding_window));
    PUT_IF(
        ev->locality.data != NULL, KVE_KEY_LOCALITY, put_text(w, ev->locality));
    PUT_IF(ev->ownership.data != NULL, KVE_KEY_OWNERSHIP,
        put_text(w, ev->ownership));
    PUT_IF(ev->session_id.data != NULL, KVE_KEY_SESSION_ID,
        put_text(w, ev->session_id));
    PUT_IF(ev->lookahead_token_ids.data != NULL, KVE_KEY_LOOKAHEAD_TOKEN_IDS,
        put_raw(w, ev->lookahead_token_ids));
    w = put_foreign(w, ev, &n);

    if (!wide && n > 15) {
        memmove(head + 3, head + 1, (size_t)(w - head) - 1);
        w += 2;
        wide = true;
    }
    head[0] = wide ? 0xde : (uint8_t)(0x80 | n);
    if (wide)
        kve_put16(head + 1, (uint16_t)n);
    return w;
}

static uint8_t *
put_removed_map(uint8_t *w, const struct kve_event *ev)
{
    uint8_t *head = w++;
    size_t n = 3;

    w = PUT(w, KVE_TYPE_REMOVED);
    w = PUT(w, KVE_KEY_BLOCK_HASHES);
    w = put_hashes(w, ev->hashes, ev->n_hashes);
    w = PUT(w, KVE_KEY_MEDIUM);
    w = put_text(w, ev->medium);
    PUT_IF(ev->group_idx.set, KVE_KEY_GROUP_IDX, put_int(w, ev->group_idx));
    PUT_IF(
        ev->locality.data != NULL, KVE_KEY_LOCALITY, put_text(w, ev->locality));
    PUT_IF(ev->ownership.data != NULL, KVE_KEY_OWNERSHIP,
        put_text(w, ev->ownership));
    w = put_foreign(w, ev, &n);
    *head = (uint8_t)(0x80 | n);
    return w;
}

static uint8_t *
put_cleared_map(uint8_t *w, const struct kve_event *ev)
{
    uint8_t *head = w++;
    size_t n = 1;

    if (ev->type == KVE_EVENT_CLEARED) {
        w = PUT(w, KVE_TYPE_CLEARED);
    } else {
        w = PUT(w, KVE_TYPE_TIER_CLEARED);
        w = PUT(w, KVE_KEY_MEDIUM);
        w = put_text(w, ev->medium);
        n++;
    }
    PUT_IF(ev->ownership.data != NULL, KVE_KEY_OWNERSHIP,
        put_text(w, ev->ownership));
    *head = (uint8_t)(0x80 | n);
    return w;
}

static uint8_t *
put_map(uint8_t *w, const struct kve_event *ev, bool wide)
{
    if (ev->type == KVE_EVENT_STORED)
        return put_stored_map(w, ev, wide);
    if (ev->type == KVE_EVENT_REMOVED)
        return put_removed_map(w, ev);
    return put_cleared_map(w, ev);
}

static uint8_t *
put_stored_array(uint8_t *w, const struct kve_event *ev, bool first)
{
    w = kve_put_array(w, first ? 6 : 12);
    w = PUT(w, KVE_TAG_STORED);
    w = put_hashes(w, ev->hashes, ev->n_hashes);
    w = put_parent(w, ev->has_parent, &ev->parent);
    w = put_token_list(w, ev->tokens, ev->n_tokens);
    w = kve_put_u64(w, ev->block_size);
    w = put_int(w, ev->lora_id);
    if (first)
        return w;
    w = put_text(w, ev->medium);
    w = put_text(w, ev->lora_name);
    w = put_raw(w, ev->extra_keys);
    w = put_int(w, ev->group_idx);
    w = put_text(w, ev->spec_kind);
    return put_int(w, ev->sliding_window);
}

static uint8_t *
put_array(uint8_t *w, const struct kve_event *ev, bool first)
{
    switch (ev->type) {
    case KVE_EVENT_STORED:
        return put_stored_array(w, ev, first);
    case KVE_EVENT_REMOVED:
        w = kve_put_array(w, first ? 2 : 4);
        w = PUT(w, KVE_TAG_REMOVED);
        w = put_hashes(w, ev->hashes, ev->n_hashes);
        if (first)
            return w;
        w = put_text(w, ev->medium);
        return put_int(w, ev->group_idx);
    case KVE_EVENT_CLEARED:
        /* One owner's blocks must not become everybody's, so an owner is
         * written although vLLM's class has no place for one. */
        w = kve_put_array(w, ev->ownership.data != NULL && !first ? 2 : 1);
        w = PUT(w, KVE_TAG_CLEARED);
        return ev->ownership.data != NULL && !first ? put_text(w, ev->ownership)
                                                    : w;
    default:
        w = kve_put_array(w, 2);
        w = PUT(w, KVE_TAG_TIER_CLEARED);
        return put_text(w, ev->medium);
    }
}

uint8_t *
kve_put_event(uint8_t *w, const struct kve_event *ev, enum kve_layout layout)
{
    if (layout == KVE_LAYOUT_MAP || layout == KVE_LAYOUT_MAP_SHORT)
        return put_map(w, ev, layout == KVE_LAYOUT_MAP);
    return put_array(w, ev, layout == KVE_LAYOUT_FIRST);
}
