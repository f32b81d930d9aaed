/*
 * usual.h - the event that engines send nearly always, read straight through.
 *
 * vLLM's store of blocks on the GPU without an adapter has one form: the same
 * eleven keys in the same order, most with the same values. Here all that does
 * not change between two values that do is compared as one piece, 16 bytes at
 * a time, and an event is six such pieces:
 *
 *   type, block_hashes | HASHES | parent_block_hash | HASH | token_ids |
 *   TOKENS | block_size | N | lora_id nil, medium "GPU", lora_name nil,
 *   extra_keys | NILS | group_idx | N | kv_cache_spec_kind | TEXT
 *
 * kve_read_usual() never says what is wrong. Where an event is not of this
 * form, or is of it and wrong, it returns NULL; the readers of decode_map.c
 * begin again at the event's start and decide. Tokens read until then are
 * kept for them (kve_decoder.known_list), as all else is quickly read twice.
 *
 * All that a usual event leaves empty must be zero in the slot it is written
 * to. It nearly always is from the last time: kve_batch.n_blank slots hold
 * zeros beside what is written here, and are not cleared again.
 *
 * A batch of one event with 16 tokens of 3 or 5 bytes, CPU nanoseconds (AMD
 * EPYC (Zen 4), 3.7 GHz, gcc 12 -O2; bench_codec):
 *
 *   60  key by key, in 1000 instructions
 *   47  this, with nothing else changed
 *   43  no "rep stos" to clear the batch's 96 bytes of information
 *   40  a token kernel for lists of one block (tokens_x86.c)
 *   37  state in registers, one function for batch and events: 550 instructions
 *
 * What is left: 8 clearing, and the calls of who asks for events; 12 up to the
 * tokens, 11 tokens, 6 behind them. It is neither memory (input from the first
 * cache takes 35) nor guessed branches, nor waiting for the tokens' end.
 *
 * Tried, to no effect: to guess the end of the tokens from the batch before;
 * prefetching the payload; tokens aligned to 64 bytes; narrower vectors for the
 * second window of tokens; -O3; aligned jumps; no stack protector.
 */
#ifndef KVE_WIRE_USUAL_H
#define KVE_WIRE_USUAL_H

#include "wire/event_parts.h"
#include "wire/keys.h"
#include "wire/value.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* What stands between the values; each is at least 8 bytes. */
#define KVE_USUAL_HEAD KVE_TYPE_STORED KVE_KEY_BLOCK_HASHES
#define KVE_USUAL_GPU KVE_KEY_LORA_ID "\300" KVE_KEY_MEDIUM "\243"
#define KVE_USUAL_MIDDLE \
    KVE_USUAL_GPU "GPU" KVE_KEY_LORA_NAME "\300" KVE_KEY_EXTRA_KEYS

/* What must be there from an event's start, or from behind its tokens on, for
 * all to be readable up to the next value whose length is not known: enough
 * for both, as no event of this form is shorter. */
#define KVE_USUAL_GROUP \
    (KVE_LEN(KVE_KEY_GROUP_IDX) + 1 + KVE_LEN(KVE_KEY_SPEC_KIND) + 1)
#define KVE_USUAL_REST                                                 \
    (KVE_LEN(KVE_KEY_BLOCK_SIZE) + 1 + KVE_LEN(KVE_USUAL_MIDDLE) + 9 + \
        KVE_USUAL_GROUP)
#define KVE_USUAL_NILS UINT64_C(0xc0c0c0c0c0c0c0c0)

#define KVE_USUAL_KEYS 11
#define KVE_USUAL_SEEN                                                        \
    (KVE_BIT(KVE_FIELD_BLOCK_HASHES) | KVE_BIT(KVE_FIELD_PARENT_BLOCK_HASH) | \
        KVE_BIT(KVE_FIELD_TOKEN_IDS) | KVE_BIT(KVE_FIELD_BLOCK_SIZE) |        \
        KVE_BIT(KVE_FIELD_LORA_ID) | KVE_BIT(KVE_FIELD_MEDIUM) |              \
        KVE_BIT(KVE_FIELD_LORA_NAME) | KVE_BIT(KVE_FIELD_EXTRA_KEYS) |        \
        KVE_BIT(KVE_FIELD_GROUP_IDX) | KVE_BIT(KVE_FIELD_SPEC_KIND))

/* The length of a piece without the zero behind it. */
#define KVE_LEN(piece) (sizeof(piece) - 1)

/* Whether a piece stands at p, where at least its length can be read. */
#define KVE_SAME(p, piece) kve_same(p, piece, KVE_LEN(piece))

/* n is known where this is compiled. No loop and no branch is left of it. */
KVE_INLINE bool
kve_same(const uint8_t *p, const char *piece, size_t n)
{
#if defined(__SSE2__)
    if (n >= 16) {
        __m128i same = _mm_set1_epi8(-1);

#pragma GCC unroll 8
        for (size_t i = 0; i < n; i += 16) {
            /* The last 16 overlap those before them. */
            size_t at = i + 16 <= n ? i : n - 16;
            __m128i a =
                _mm_loadu_si128((const __m128i *)(const void *)(p + at));
            __m128i b =
                _mm_loadu_si128((const __m128i *)(const void *)(piece + at));

            same = _mm_and_si128(same, _mm_cmpeq_epi8(a, b));
        }
        return _mm_movemask_epi8(same) == 0xffff;
    }
#endif
    return memcmp(p, piece, n) == 0;
}

/*
 * The head of a list of 1 to 65535 items and at most max, of which 3 bytes can
 * be read; NULL: another.
 */
KVE_INLINE const uint8_t *
kve_usual_count(const uint8_t *p, size_t max, size_t *ret_n)
{
    size_t n;

    if (*p == 0xdc) {
        n = kve_get16(p + 1);
        p += 3;
    } else {
        n = *p ^ 0x90u;
        p += 1;
        if (KVE_UNLIKELY(n > 15))
            return NULL;
    }
    *ret_n = n;
    return KVE_LIKELY(n - 1 < max) ? p : NULL;
}

/*
 * What stands behind the tokens: the position behind the event, or NULL.
 */
KVE_INLINE const uint8_t *
kve_usual_rest(struct kve_decoder *d, const uint8_t *p, struct kve_event *ev)
{
    size_t n;

    if (KVE_UNLIKELY(kve_left(&d->r, p) < KVE_USUAL_REST ||
            !KVE_SAME(p, KVE_KEY_BLOCK_SIZE)))
        return NULL;
    p += KVE_LEN(KVE_KEY_BLOCK_SIZE);
    if (KVE_UNLIKELY(*p > 0x7f || !KVE_SAME(p + 1, KVE_USUAL_MIDDLE)))
        return NULL;
    ev->block_size = *p;
    ev->medium =
        (struct kve_str){ (const char *)p + 1 + KVE_LEN(KVE_USUAL_GPU), 3 };
    p += 1 + KVE_LEN(KVE_USUAL_MIDDLE);

    /* Up to 8 nils are one comparison. */
    n = *p ^ 0x90u;
    if (KVE_LIKELY(n - 1 < 8 &&
            (kve_get64(p + 1) ^ KVE_USUAL_NILS) >> (64 - 8 * n) == 0)) {
        ev->extra_keys = (struct kve_span){ p, 1 + n };
        p += 1 + n;
    } else {
        ev->extra_keys = (struct kve_span){ NULL, 0 };
        p = kve_get_extra(d, p, KVE_FIELD_EXTRA_KEYS, &ev->extra_keys);
        if (p == NULL || kve_left(&d->r, p) < KVE_USUAL_GROUP)
            return NULL;
    }

    n = KVE_LEN(KVE_KEY_GROUP_IDX);
    if (KVE_UNLIKELY(!KVE_SAME(p, KVE_KEY_GROUP_IDX) || p[n] > 0x7f ||
            !KVE_SAME(p + n + 1, KVE_KEY_SPEC_KIND)))
        return NULL;
    ev->group_idx = (struct kve_int){ p[n], true };
    p += n + 1 + KVE_LEN(KVE_KEY_SPEC_KIND);
    n = *p ^ 0xa0u;
    if (KVE_UNLIKELY(n > 31 || n >= kve_left(&d->r, p)))
        return NULL;
    ev->spec_kind = (struct kve_str){ (const char *)p + 1, n };
    return p + 1 + n;
}

/*
 * The event at p into *ev, whose other fields are zeros: the position behind
 * it, or NULL: not usual. *at is the arena's next free byte, and moves on.
 */
KVE_INLINE const uint8_t *
kve_read_usual(
    struct kve_decoder *d, const uint8_t *p, struct kve_event *ev, uint8_t **at)
{
    const uint8_t *begin = p, *end = d->r.end, *stop;
    struct kve_batch *b = d->batch;
    size_t n_hashes, n_tokens, done;
    struct kve_hash *hash;
    bool wide;

    if (kve_left(&d->r, p) < KVE_USUAL_REST)
        return NULL;
    wide = *p == 0xde;
    if (wide ? kve_get16(p + 1) != KVE_USUAL_KEYS
             : *p != (0x80 | KVE_USUAL_KEYS))
        return NULL;
    p += wide ? 3 : 1;
    if (!KVE_SAME(p, KVE_USUAL_HEAD))
        return NULL;

    p = kve_usual_count(
        p + KVE_LEN(KVE_USUAL_HEAD), b->max_hashes - d->n_hashes, &n_hashes);
    if (KVE_UNLIKELY(p == NULL))
        return NULL;
    size_t room = (size_t)(b->arena.end - *at);
    if (KVE_UNLIKELY(room < n_hashes * sizeof(*hash)))
        return NULL;
    room -= n_hashes * sizeof(*hash);
    hash = (void *)*at;
    ev->hashes = hash;
    ev->n_hashes = n_hashes;
    for (size_t i = n_hashes; i > 0; i--) {
        p = kve_usual_hash(p, end, hash++);
        if (KVE_UNLIKELY(p == NULL))
            return NULL;
    }

    if (kve_left(&d->r, p) < KVE_USUAL_REST ||
        !KVE_SAME(p, KVE_KEY_PARENT_BLOCK_HASH))
        return NULL;
    p += KVE_LEN(KVE_KEY_PARENT_BLOCK_HASH);
    ev->has_parent = true;
    if (KVE_LIKELY(*p == 0xcf)) {
        ev->parent.bytes = NULL;
        ev->parent.integer = kve_get64(p + 1);
        p += 9;
    } else if (*p == 0xc0) {
        ev->has_parent = false;
        ev->parent = (struct kve_hash){ NULL, { 0 } };
        p++;
    } else {
        p = kve_usual_hash(p, end, &ev->parent);
        if (p == NULL || kve_left(&d->r, p) < KVE_USUAL_REST)
            return NULL;
    }

    if (!KVE_SAME(p, KVE_KEY_TOKEN_IDS))
        return NULL;
    const uint8_t *list = p + KVE_LEN(KVE_KEY_TOKEN_IDS);
    p = kve_usual_count(list, b->max_tokens - d->n_tokens, &n_tokens);
    if (KVE_UNLIKELY(p == NULL))
        return NULL;
    uint32_t *tokens = (void *)hash;
    if (KVE_UNLIKELY(room < (n_tokens + KVE_TOKENS_SLACK) * sizeof(*tokens)))
        return NULL;
    p = kve_tokens_decode(p, end, n_tokens, tokens, &stop, &done);
    if (KVE_UNLIKELY(p == NULL))
        return NULL;
    ev->tokens = tokens;
    ev->n_tokens = n_tokens;
    /* One more than there are, and whole pairs: as kve_arena_trim(). */
    *at = (uint8_t *)(tokens + (n_tokens / 2 + 1) * 2);

    const uint8_t *after = kve_usual_rest(d, p, ev);
    if (KVE_UNLIKELY(after == NULL)) {
        d->known_list = list;
        d->known_end = p;
        d->known_tokens = tokens;
        return NULL;
    }
    ev->type = KVE_EVENT_STORED;
    ev->layout = wide ? KVE_LAYOUT_MAP : KVE_LAYOUT_MAP_SHORT;
    ev->tier = KVE_TIER_GPU;
    ev->notes = 0;
    if (n_tokens != (uint64_t)n_hashes * ev->block_size)
        ev->notes = KVE_NOTE_HASH_ONLY | KVE_NOTE_TOKEN_COUNT;
    ev->seen = KVE_USUAL_SEEN;
    ev->raw.data = begin;
    ev->raw.len = (size_t)(after - begin);
    d->n_hashes += n_hashes;
    d->n_tokens += n_tokens;
    return after;
}

#endif
