/*
 * event_parts.c - see event_parts.h; and the tag of an event.
 */
#include "wire/event_parts.h"
#include "wire/fields.h"
#include "wire/value.h"

/* Whether a tag is this text; compared as a constant, without a call. */
#define IS(tag, text)                 \
    ((tag).len == sizeof(text) - 1 && \
        memcmp((tag).data, text, sizeof(text) - 1) == 0)

unsigned
kve_tag_type(struct kve_str tag)
{
    if (IS(tag, "BlockStored") || IS(tag, "stored"))
        return KVE_EVENT_STORED;
    if (IS(tag, "BlockRemoved") || IS(tag, "removed"))
        return KVE_EVENT_REMOVED;
    if (IS(tag, "AllBlocksCleared") || IS(tag, "cleared"))
        return KVE_EVENT_CLEARED;
    if (IS(tag, "TierBlocksCleared"))
        return KVE_EVENT_TIER_CLEARED;
    return 0;
}

static void
add_unknown(
    struct kve_decoder *d, struct kve_event *ev, struct kve_unknown unknown)
{
    ev->notes |= KVE_NOTE_UNKNOWN_FIELD;
    if (d->n_fields < KVE_UNKNOWN_PER_EVENT)
        d->fields[d->n_fields++] = unknown;
}

const uint8_t *
kve_read_unknown(struct kve_decoder *d, const uint8_t *p, struct kve_event *ev,
    struct kve_str key, uint32_t slot)
{
    const uint8_t *after = kve_skip(&d->r, p);

    if (after != NULL)
        add_unknown(d, ev,
            (struct kve_unknown){ key, slot, { p, (size_t)(after - p) } });
    return after;
}

bool
kve_keep_unknown(struct kve_decoder *d, struct kve_event *ev)
{
    size_t room = KVE_UNKNOWN_PER_BATCH - d->n_unknown;
    size_t n = d->n_fields < room ? d->n_fields : room;
    size_t size = n * sizeof(d->fields[0]);

    if (n == 0)
        return true;
    struct kve_unknown *kept = kve_arena_get(&d->batch->arena, size);
    if (kept == NULL)
        return false;
    memcpy(kept, d->fields, size);
    ev->unknown = kept;
    ev->n_unknown = n;
    d->n_unknown += n;
    return true;
}

const uint8_t *
kve_read_key(struct kve_decoder *d, const uint8_t *p, struct kve_str *ret_key,
    int *ret_field, bool *ret_alias)
{
    struct kve_reader *r = &d->r;

    *ret_key = (struct kve_str){ NULL, 0 };
    *ret_field = KVE_FIELD_NONE;
    *ret_alias = false;
    if (p == r->end)
        return kve_cut(r);
    if (kve_is_str(*p)) {
        p = kve_read_text(r, p, ret_key);
        if (p != NULL)
            *ret_field = kve_field_find(*ret_key, ret_alias);
    } else {
        p = kve_skip(r, p);
    }
    return p == r->end ? kve_cut(r) : p;
}

const uint8_t *
kve_read_field(
    struct kve_decoder *d, const uint8_t *p, struct kve_event *ev, int field)
{
    ev->seen |= KVE_BIT(field);
    switch (field) {
    case KVE_FIELD_BLOCK_HASHES:
        return kve_get_hashes(d, p, ev);
    case KVE_FIELD_PARENT_BLOCK_HASH:
        return kve_get_parent(d, p, field, &ev->parent, &ev->has_parent);
    case KVE_FIELD_TOKEN_IDS:
        return kve_get_tokens(
            d, p, field, &ev->tokens, &ev->n_tokens, &ev->notes);
    case KVE_FIELD_BLOCK_SIZE:
        return kve_get_block_size(d, p, &ev->block_size);
    case KVE_FIELD_LORA_ID:
        return kve_get_int(d, p, field, &ev->lora_id);
    case KVE_FIELD_MEDIUM:
        return kve_get_str(d, p, field, &ev->medium);
    case KVE_FIELD_LORA_NAME:
        return kve_get_str(d, p, field, &ev->lora_name);
    case KVE_FIELD_EXTRA_KEYS:
        return kve_get_extra(d, p, field, &ev->extra_keys);
    case KVE_FIELD_GROUP_IDX:
        return kve_get_int(d, p, field, &ev->group_idx);
    case KVE_FIELD_SPEC_KIND:
        return kve_get_str(d, p, field, &ev->spec_kind);
    case KVE_FIELD_SLIDING_WINDOW:
        return kve_get_int(d, p, field, &ev->sliding_window);
    case KVE_FIELD_LOCALITY:
        return kve_get_str(d, p, field, &ev->locality);
    case KVE_FIELD_OWNERSHIP:
        return kve_get_str(d, p, field, &ev->ownership);
    case KVE_FIELD_SESSION_ID:
        return kve_get_str(d, p, field, &ev->session_id);
    case KVE_FIELD_LOOKAHEAD_TOKEN_IDS:
        return kve_get_raw(d, p, field, &ev->lookahead_token_ids);
    case KVE_FIELD_CACHE_SALT:
        return kve_get_str(d, p, field, &ev->cache_salt);
    case KVE_FIELD_SKIPPED_PARENT:
        return kve_get_parent(
            d, p, field, &ev->skipped_parent, &ev->has_skipped_parent);
    case KVE_FIELD_SKIPPED_TOKEN_IDS:
        return kve_get_tokens(d, p, field, &ev->skipped_tokens,
            &ev->n_skipped_tokens, &ev->notes);
    case KVE_FIELD_SKIPPED_EXTRA_KEYS:
        return kve_get_extra(d, p, field, &ev->skipped_extra_keys);
    case KVE_FIELD_BLOCK_OFFSETS:
        return kve_get_raw(d, p, field, &ev->block_offsets);
    default: /* KVE_FIELD_REMAINING_COPIES */
        return kve_get_raw(d, p, field, &ev->remaining_copy_counts);
    }
}

uint32_t
kve_find_tag(struct kve_reader *r, const uint8_t *p, struct kve_str *ret,
    const uint8_t **ret_at)
{
    const uint8_t *bad = NULL;
    bool map = kve_is_map(*p);
    size_t n;

    *ret_at = p;
    p = kve_read_count(r, p, &n);
    if (!map && n > 0) {
        *ret_at = p;
        if (!kve_is_str(*p))
            return *p == 0xc0 ? KVE_FAULT_NO_TAG : KVE_FAULT_BAD_TAG;
        (void)kve_read_text(r, p, ret);
        return 0;
    }
    for (; map && n > 0; n--) {
        struct kve_str key;
        bool alias = false;
        bool tag = false;

        if (kve_is_str(*p)) {
            p = kve_read_text(r, p, &key);
            tag = kve_field_find(key, &alias) == KVE_FIELD_TAG;
        } else {
            p = kve_skip(r, p);
        }
        if (tag && kve_is_str(*p)) {
            if (!alias || ret->data == NULL) {
                *ret_at = p;
                (void)kve_read_text(r, p, ret);
            }
        } else if (tag && *p != 0xc0) {
            bad = p;
        }
        p = kve_skip(r, p);
    }
    if (ret->data != NULL)
        return 0;
    if (bad == NULL)
        return KVE_FAULT_NO_TAG;
    *ret_at = bad;
    return KVE_FAULT_BAD_TAG;
}
