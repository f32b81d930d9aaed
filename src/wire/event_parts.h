/*
 * event_parts.h - what maps and arrays of events share.
 */
#ifndef KVE_WIRE_EVENT_PARTS_H
#define KVE_WIRE_EVENT_PARTS_H

#include "wire/batch.h"

#define KVE_BIT(field) (1u << (field))

/* The value of one known field at p, whatever the layout. */
const uint8_t *kve_read_field(
    struct kve_decoder *d, const uint8_t *p, struct kve_event *ev, int field);

/* The value at p is of no field we know: pass over it, keep it raw. */
KVE_COLD const uint8_t *kve_read_unknown(struct kve_decoder *d,
    const uint8_t *p, struct kve_event *ev, struct kve_str key, uint32_t slot);

/*
 * The key of a map at p: what field it names, and whether by another name.
 * *ret_key is without data when it is no string. A value's first byte is
 * there behind it.
 */
const uint8_t *kve_read_key(struct kve_decoder *d, const uint8_t *p,
    struct kve_str *ret_key, int *ret_field, bool *ret_alias);

/* Move the event's unknown fields to where they stay. */
KVE_COLD bool kve_keep_unknown(struct kve_decoder *d, struct kve_event *ev);

/* What follows from the fields, once all are read. */
KVE_INLINE const uint8_t *
kve_finish_event(struct kve_decoder *d, const uint8_t *p, struct kve_event *ev)
{
    ev->raw.data = d->start;
    ev->raw.len = (size_t)(p - d->start);

    if (KVE_LIKELY(
            ev->medium.len == 3 && memcmp(ev->medium.data, "GPU", 3) == 0))
        ev->tier = KVE_TIER_GPU;
    else
        ev->tier = (uint8_t)kve_medium_tier(ev->medium);
    if (ev->tier == KVE_TIER_UNKNOWN)
        ev->notes |= KVE_NOTE_UNKNOWN_MEDIUM;

    if (ev->type <= KVE_EVENT_REMOVED && KVE_UNLIKELY(!d->has_hashes))
        return kve_fault_at(
            &d->r, KVE_FAULT_MISSING_HASHES, KVE_FIELD_BLOCK_HASHES, d->start);

    if (ev->type == KVE_EVENT_STORED) {
        if (ev->n_tokens == 0)
            ev->notes |= KVE_NOTE_HASH_ONLY;
        else if (ev->n_tokens != (uint64_t)ev->n_hashes * ev->block_size)
            ev->notes |= KVE_NOTE_HASH_ONLY | KVE_NOTE_TOKEN_COUNT;
        if (ev->n_hashes == 0)
            ev->notes |= KVE_NOTE_EMPTY_HASHES;
    }
    if (KVE_UNLIKELY(d->n_fields != 0) && !kve_keep_unknown(d, ev))
        return kve_no_memory(&d->r, p);
    return p;
}

#endif
