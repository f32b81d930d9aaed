/*
 * decode_map.c - an event that is a map.
 *
 * Nearly all events come from vLLM's classes, whose fields stand in one order:
 * read_usual() looks for each in its turn, comparing head and key as one
 * piece, and a field that is not there costs one failed comparison. It stops
 * without harm at the first key that is not the expected one: from there
 * read_keys() takes any key in any order. The type is a key like the others;
 * fields mean the same in every type, so it may come last.
 */
#include "wire/event_parts.h"
#include "wire/fields.h"
#include "wire/keys.h"
#include "wire/value.h"

/* Whether a whole key, header included, stands at p, and a value's first byte
 * behind it. */
#define AT(d, p, key)                       \
    (kve_left(&(d)->r, p) >= sizeof(key) && \
        memcmp(p, key, sizeof(key) - 1) == 0)

/*
 * A tag under either of its names. Nil is no tag; anything else but a string
 * is a fault, unless the current name's is sound (the caller tells at the
 * end, when both are known: kve_find_tag()).
 */
static const uint8_t *
read_tag(
    struct kve_decoder *d, const uint8_t *p, struct kve_event *ev, bool alias)
{
    struct kve_str tag;

    if (!kve_is_str(*p))
        return kve_skip(&d->r, p);
    p = kve_read_text(&d->r, p, &tag);
    if (p == NULL)
        return NULL;
    if (d->tag.data != NULL)
        ev->notes |= KVE_NOTE_TWO_NAMES;
    if (!alias || d->tag.data == NULL)
        d->tag = tag;
    return p;
}

/*
 * A field that may have come under two names. The current one is used, unless
 * it is nil.
 */
static const uint8_t *
read_named(struct kve_decoder *d, const uint8_t *p, struct kve_event *ev,
    int field, bool alias)
{
    if (*p != 0xc0) {
        uint32_t bit = KVE_BIT(field);
        bool both = (d->given & bit) != 0 && alias != ((d->aliased & bit) != 0);
        d->given |= bit;
        if (both)
            ev->notes |= KVE_NOTE_TWO_NAMES;
        if (both && alias)
            return kve_skip(&d->r, p);
        if (alias)
            d->aliased |= bit;
        else
            d->aliased &= ~bit;
    }
    return kve_read_field(d, p, ev, field);
}

/* n keys in any order. */
static __attribute__((noinline)) const uint8_t *
read_keys(
    struct kve_decoder *d, const uint8_t *p, struct kve_event *ev, size_t n)
{
    for (; n > 0; n--) {
        struct kve_str key;
        bool alias;
        int field;

        p = kve_read_key(d, p, &key, &field, &alias);
        if (p == NULL)
            return NULL;
        if (field == KVE_FIELD_NONE)
            p = kve_read_unknown(d, p, ev, key, 0);
        else if (field == KVE_FIELD_TAG)
            p = read_tag(d, p, ev, alias);
        else
            p = read_named(d, p, ev, field, alias);
        if (p == NULL)
            return NULL;
    }
    return p;
}

/*
 * What nearly every store of vLLM has behind its tokens: a block size of one
 * byte, no adapter, on GPU. One comparison instead of four keys and values.
 */
#define MIDDLE_TO_GPU KVE_KEY_LORA_ID "\300" KVE_KEY_MEDIUM "\243"
#define MIDDLE MIDDLE_TO_GPU "GPU" KVE_KEY_LORA_NAME "\300"

/* Offsets: of the size's byte, of what stands behind it, of "GPU". */
#define MIDDLE_SIZE (sizeof(KVE_KEY_BLOCK_SIZE) - 1)
#define MIDDLE_REST (MIDDLE_SIZE + 1)
#define MIDDLE_GPU (MIDDLE_REST + sizeof(MIDDLE_TO_GPU) - 1)
#define MIDDLE_LEN (MIDDLE_REST + sizeof(MIDDLE) - 1)

#define MIDDLE_SEEN                                               \
    (KVE_BIT(KVE_FIELD_BLOCK_SIZE) | KVE_BIT(KVE_FIELD_LORA_ID) | \
        KVE_BIT(KVE_FIELD_MEDIUM) | KVE_BIT(KVE_FIELD_LORA_NAME))

KVE_INLINE bool
at_usual_middle(const struct kve_decoder *d, const uint8_t *p, size_t left)
{
    return left >= 4 && kve_left(&d->r, p) >= MIDDLE_LEN &&
        memcmp(p, KVE_KEY_BLOCK_SIZE, MIDDLE_SIZE) == 0 &&
        p[MIDDLE_SIZE] <= 0x7f &&
        memcmp(p + MIDDLE_REST, MIDDLE, sizeof(MIDDLE) - 1) == 0;
}

/* nil, or whatever get reads. */
#define NIL_OR(p, get) (*(p) == 0xc0 ? (p) + 1 : (get))

/*
 * As many of the *n keys as stand in vLLM's order; *n are left then. What a
 * key announces is there: AT() has seen one byte behind it.
 */
static inline const uint8_t *
read_usual(
    struct kve_decoder *d, const uint8_t *p, struct kve_event *ev, size_t *n)
{
    size_t left = *n;
    uint32_t seen = 0;

#define NEXT(field, get)                             \
    do {                                             \
        if (left > 0 && AT(d, p, KVE_KEY_##field)) { \
            p += sizeof(KVE_KEY_##field) - 1;        \
            left--;                                  \
            seen |= KVE_BIT(KVE_FIELD_##field);      \
            p = get;                                 \
            if (KVE_UNLIKELY(p == NULL))             \
                return NULL;                         \
        }                                            \
    } while (0)

    NEXT(BLOCK_HASHES, kve_get_hashes(d, p, ev));
    if (ev->type == KVE_EVENT_STORED) {
        NEXT(PARENT_BLOCK_HASH,
            NIL_OR(p,
                kve_get_parent(d, p, KVE_FIELD_PARENT_BLOCK_HASH, &ev->parent,
                    &ev->has_parent)));
        NEXT(TOKEN_IDS,
            kve_get_tokens(d, p, KVE_FIELD_TOKEN_IDS, &ev->tokens,
                &ev->n_tokens, &ev->notes));
        if (KVE_LIKELY(at_usual_middle(d, p, left))) {
            ev->block_size = p[MIDDLE_SIZE];
            ev->medium = (struct kve_str){ (const char *)p + MIDDLE_GPU, 3 };
            p += MIDDLE_LEN;
            left -= 4;
            seen |= MIDDLE_SEEN;
        } else {
            NEXT(BLOCK_SIZE, kve_get_block_size(d, p, &ev->block_size));
            NEXT(LORA_ID, kve_get_int(d, p, KVE_FIELD_LORA_ID, &ev->lora_id));
            NEXT(MEDIUM, kve_get_str(d, p, KVE_FIELD_MEDIUM, &ev->medium));
            NEXT(LORA_NAME,
                kve_get_str(d, p, KVE_FIELD_LORA_NAME, &ev->lora_name));
        }
        NEXT(EXTRA_KEYS,
            kve_get_extra(d, p, KVE_FIELD_EXTRA_KEYS, &ev->extra_keys));
        NEXT(GROUP_IDX,
            *p <= 0x7f
                ? (ev->group_idx = (struct kve_int){ *p, true }, p + 1)
                : kve_get_int(d, p, KVE_FIELD_GROUP_IDX, &ev->group_idx));
        NEXT(SPEC_KIND, kve_get_str(d, p, KVE_FIELD_SPEC_KIND, &ev->spec_kind));
        NEXT(SLIDING_WINDOW,
            kve_get_int(d, p, KVE_FIELD_SLIDING_WINDOW, &ev->sliding_window));
    } else {
        NEXT(MEDIUM, kve_get_str(d, p, KVE_FIELD_MEDIUM, &ev->medium));
        NEXT(GROUP_IDX, kve_get_int(d, p, KVE_FIELD_GROUP_IDX, &ev->group_idx));
    }
    NEXT(LOCALITY, kve_get_str(d, p, KVE_FIELD_LOCALITY, &ev->locality));
    NEXT(OWNERSHIP, kve_get_str(d, p, KVE_FIELD_OWNERSHIP, &ev->ownership));
    NEXT(SESSION_ID, kve_get_str(d, p, KVE_FIELD_SESSION_ID, &ev->session_id));
#undef NEXT

    /* None of these has another name that came before, but one may follow:
     * d->given holds what is there and not nil. */
    ev->seen = seen;
    if (left > 0) {
        if (d->has_hashes)
            d->given |= KVE_BIT(KVE_FIELD_BLOCK_HASHES);
        if (ev->has_parent)
            d->given |= KVE_BIT(KVE_FIELD_PARENT_BLOCK_HASH);
        if (ev->ownership.data != NULL)
            d->given |= KVE_BIT(KVE_FIELD_OWNERSHIP);
    }
    *n = left;
    return p;
}

const uint8_t *
kve_decode_map(struct kve_decoder *d, const uint8_t *p, struct kve_event *ev)
{
    bool wide = *p == 0xde || *p == 0xdf;
    size_t n;

    p = kve_read_n(&d->r, p, &n);
    if (p == NULL)
        return NULL;

    if (n > 0 && AT(d, p, KVE_TYPE_STORED)) {
        ev->type = KVE_EVENT_STORED;
        p += sizeof(KVE_TYPE_STORED) - 1;
    } else if (n > 0 && AT(d, p, KVE_TYPE_REMOVED)) {
        ev->type = KVE_EVENT_REMOVED;
        p += sizeof(KVE_TYPE_REMOVED) - 1;
    }
    if (KVE_LIKELY(ev->type != 0)) {
        n--;
        p = read_usual(d, p, ev, &n);
        if (p == NULL)
            return NULL;
        /* Found again only where another tag follows. */
        if (n > 0)
            d->tag = ev->type == KVE_EVENT_STORED
                ? (struct kve_str){ "BlockStored", 11 }
                : (struct kve_str){ "BlockRemoved", 12 };
    }
    if (n > 0) {
        p = read_keys(d, p, ev, n);
        if (p == NULL)
            return NULL;
        ev->type = (uint8_t)kve_tag_type(d->tag);
    }
    if (KVE_UNLIKELY(ev->type == 0))
        return kve_fault_at(&d->r,
            d->tag.data == NULL ? KVE_FAULT_NO_TAG : KVE_FAULT_UNKNOWN_TAG, -1,
            d->start);
    ev->layout = ev->type == KVE_EVENT_STORED && !wide ? KVE_LAYOUT_MAP_SHORT
                                                       : KVE_LAYOUT_MAP;
    return kve_finish_event(d, p, ev);
}
