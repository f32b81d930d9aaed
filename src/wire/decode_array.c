/*
 * decode_array.c - an event that is an array.
 *
 * The tag comes first and says what the slots are. Slots that all producers
 * agree on are fields; from slot 7 of a store on (3 of a removal, 1 of a
 * clear) dialects differ, so a value of another type than the field's is an
 * unknown slot there, not a fault:
 *
 *   BlockStored   1 hashes 2 parent 3 tokens 4 block_size 5 lora_id 6 medium
 *                 7 lora_name (a string), or a map of metadata
 *                 8 extra_keys 9 group_idx 10 spec_kind 11 sliding_window
 *   BlockRemoved  1 hashes 2 medium 3 group_idx 4 locality 5 ownership
 *   AllBlocksCleared 1 ownership    TierBlocksCleared 1 medium
 */
#include "wire/event_parts.h"
#include "wire/fields.h"

/* Fields of the slots of each type, from slot 1 on. */
static const int8_t stored[] = { KVE_FIELD_BLOCK_HASHES,
    KVE_FIELD_PARENT_BLOCK_HASH, KVE_FIELD_TOKEN_IDS, KVE_FIELD_BLOCK_SIZE,
    KVE_FIELD_LORA_ID, KVE_FIELD_MEDIUM, KVE_FIELD_LORA_NAME,
    KVE_FIELD_EXTRA_KEYS, KVE_FIELD_GROUP_IDX, KVE_FIELD_SPEC_KIND,
    KVE_FIELD_SLIDING_WINDOW };
static const int8_t removed[] = { KVE_FIELD_BLOCK_HASHES, KVE_FIELD_MEDIUM,
    KVE_FIELD_GROUP_IDX, KVE_FIELD_LOCALITY, KVE_FIELD_OWNERSHIP };
static const int8_t cleared[] = { KVE_FIELD_OWNERSHIP };
static const int8_t tier_cleared[] = { KVE_FIELD_MEDIUM };

/* And the first slot that dialects disagree on. */
static const struct {
    const int8_t *fields;
    uint8_t n;
    uint8_t loose;
} slots[] = {
    [KVE_EVENT_STORED] = { stored, sizeof(stored), 7 },
    [KVE_EVENT_REMOVED] = { removed, sizeof(removed), 3 },
    [KVE_EVENT_CLEARED] = { cleared, sizeof(cleared), 1 },
    [KVE_EVENT_TIER_CLEARED] = { tier_cleared, sizeof(tier_cleared), 1 },
};

/* Whether a value that begins with c has the type of one of the fields that
 * stand in loose slots. */
static bool
fits(int field, uint8_t c)
{
    if (c == 0xc0)
        return true;
    switch (field) {
    case KVE_FIELD_EXTRA_KEYS:
        return kve_is_array(c);
    case KVE_FIELD_GROUP_IDX:
    case KVE_FIELD_SLIDING_WINDOW:
        return kve_is_int(c);
    default:
        return kve_is_str(c);
    }
}

/*
 * Slot 7 as a map of metadata: strings we know by name are fields, what else
 * is in it is unknown and kept under its own key.
 */
static KVE_COLD const uint8_t *
read_metadata(struct kve_decoder *d, const uint8_t *p, struct kve_event *ev,
    uint32_t slot)
{
    const uint32_t strings = KVE_BIT(KVE_FIELD_CACHE_SALT) |
        KVE_BIT(KVE_FIELD_LORA_NAME) | KVE_BIT(KVE_FIELD_SESSION_ID) |
        KVE_BIT(KVE_FIELD_LOCALITY) | KVE_BIT(KVE_FIELD_OWNERSHIP);
    size_t n;

    p = kve_read_count(&d->r, p, &n);
    for (; p != NULL && n > 0; n--) {
        struct kve_str key;
        bool alias;
        int field;

        p = kve_read_key(d, p, &key, &field, &alias);
        if (p == NULL)
            return NULL;

        bool known = field >= 0 && field < KVE_FIELD_TAG &&
            (strings & KVE_BIT(field)) != 0 && fits(field, *p);
        p = known ? kve_read_field(d, p, ev, field)
                  : kve_read_unknown(d, p, ev, key, slot);
    }
    return p;
}

const uint8_t *
kve_decode_array(struct kve_decoder *d, const uint8_t *p, struct kve_event *ev)
{
    struct kve_reader *r = &d->r;
    size_t n;

    p = kve_read_n(r, p, &n);
    if (p == NULL)
        return NULL;
    if (n == 0)
        return kve_fault_at(r, KVE_FAULT_NO_TAG, -1, d->start);
    if (p == r->end)
        return kve_cut(r);
    if (!kve_is_str(*p))
        return kve_fault_at(r, KVE_FAULT_BAD_TAG, -1, p);

    const uint8_t *tag_at = p;
    p = kve_read_text(r, p, &d->tag);
    if (p == NULL)
        return NULL;
    unsigned type = kve_tag_type(d->tag);
    if (type == 0)
        return kve_fault_at(r, KVE_FAULT_UNKNOWN_TAG, -1, tag_at);
    ev->type = (uint8_t)type;
    ev->layout = KVE_LAYOUT_ARRAY;

    for (size_t i = 1; i < n; i++) {
        if (p == r->end)
            return kve_cut(r);
        int field =
            i <= slots[type].n ? slots[type].fields[i - 1] : KVE_FIELD_NONE;
        if (field == KVE_FIELD_LORA_NAME && kve_is_map(*p))
            p = read_metadata(d, p, ev, (uint32_t)i);
        else if (field == KVE_FIELD_NONE ||
            (i >= slots[type].loose && !fits(field, *p)))
            p = kve_read_unknown(
                d, p, ev, (struct kve_str){ NULL, 0 }, (uint32_t)i);
        else
            p = kve_read_field(d, p, ev, field);
        if (p == NULL)
            return NULL;
    }
    return kve_finish_event(d, p, ev);
}
