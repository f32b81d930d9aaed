/*
 * value.h - the values of fields: hashes, tokens, strings, numbers.
 *
 * Every function reads one value at p, stores it and returns the position
 * behind it; NULL as cursor.h says. nil leaves the target as it was, for
 * absent and nil are one value.
 */
#ifndef KVE_WIRE_VALUE_H
#define KVE_WIRE_VALUE_H

#include "wire/batch.h"
#include "wire/tokens.h"

/* An integer, a bin, or a string that spells one of them; no nil. */
const uint8_t *kve_get_hash(struct kve_decoder *d, const uint8_t *p,
    enum kve_fault_reason reason, int32_t field, struct kve_hash *ret);

/*
 * The kernel of tokens.h stopped at stop, done of n tokens read: cut off, out
 * of range, a list of pairs, or no token. Tokens that are kept after all are
 * in out then, and one more behind them.
 */
KVE_COLD const uint8_t *kve_get_odd_tokens(struct kve_decoder *d,
    const uint8_t *stop, size_t n, size_t done, int32_t field, uint32_t *out,
    bool *ret_kept, uint32_t *notes);

/* extra_keys, skipped_extra_keys: a list of lists and nils, kept raw. */
const uint8_t *kve_get_extra(struct kve_decoder *d, const uint8_t *p,
    int32_t field, struct kve_span *ret);

/* A list or map that is kept raw. */
const uint8_t *kve_get_raw(struct kve_decoder *d, const uint8_t *p,
    int32_t field, struct kve_span *ret);

const uint8_t *kve_get_int(struct kve_decoder *d, const uint8_t *p,
    int32_t field, struct kve_int *ret);

const uint8_t *kve_get_block_size(
    struct kve_decoder *d, const uint8_t *p, uint32_t *ret);

/* A hash in one of the two forms of vLLM; NULL for all else, also what is cut
 * off or wrong. */
KVE_INLINE const uint8_t *
kve_usual_hash(const uint8_t *p, const uint8_t *end, struct kve_hash *ret)
{
    size_t left = (size_t)(end - p);

    if (KVE_LIKELY(left >= 9 && *p == 0xcf)) {
        ret->bytes = NULL;
        ret->integer = kve_get64(p + 1);
        return p + 9;
    }
    if (left >= 2 && *p == 0xc4 && p[1] <= left - 2) {
        ret->bytes = p + 2;
        ret->len = p[1];
        return p + 2 + ret->len;
    }
    return NULL;
}

/* One hash of a list, or a parent; the two forms of vLLM stay out of a call. */
KVE_INLINE const uint8_t *
kve_get_usual_hash(struct kve_decoder *d, const uint8_t *p,
    enum kve_fault_reason reason, int32_t field, struct kve_hash *ret)
{
    const uint8_t *next = kve_usual_hash(p, d->r.end, ret);

    return next != NULL ? next : kve_get_hash(d, p, reason, field, ret);
}

/* block_hashes. Sets d->has_hashes where it is a list. */
KVE_INLINE const uint8_t *
kve_get_hashes(struct kve_decoder *d, const uint8_t *p, struct kve_event *ev)
{
    struct kve_reader *r = &d->r;
    const uint8_t *head = p;
    size_t n;

    if (KVE_UNLIKELY(p == r->end))
        return kve_cut(r);
    if (KVE_UNLIKELY(!kve_is_array(*p)))
        return *p == 0xc0
            ? p + 1
            : kve_wrong(r, KVE_FAULT_BAD_HASHES, KVE_FIELD_BLOCK_HASHES, p);
    p = kve_read_n(r, p, &n);
    if (KVE_UNLIKELY(p == NULL))
        return NULL;
    if (KVE_UNLIKELY(n > d->batch->max_hashes - d->n_hashes))
        return kve_fault_at(
            r, KVE_FAULT_TOO_MANY_HASHES, KVE_FIELD_BLOCK_HASHES, head);
    d->has_hashes = true;
    d->n_hashes += n;
    ev->n_hashes = n;
    ev->hashes = NULL;
    if (n == 0)
        return p;

    struct kve_hash *hash = kve_arena_get(&d->batch->arena, n * sizeof(*hash));
    if (KVE_UNLIKELY(hash == NULL))
        return kve_no_memory(r, head);
    ev->hashes = hash;
    for (struct kve_hash *last = hash + n; hash < last; hash++) {
        p = kve_get_usual_hash(
            d, p, KVE_FAULT_BAD_HASHES, KVE_FIELD_BLOCK_HASHES, hash);
        if (KVE_UNLIKELY(p == NULL))
            return NULL;
    }
    return p;
}

/* parent_block_hash, skipped_parent_block_hash. */
KVE_INLINE const uint8_t *
kve_get_parent(struct kve_decoder *d, const uint8_t *p, int32_t field,
    struct kve_hash *ret, bool *ret_has)
{
    if (KVE_UNLIKELY(p == d->r.end))
        return kve_cut(&d->r);
    if (*p == 0xc0)
        return p + 1;
    p = kve_get_usual_hash(d, p,
        field == KVE_FIELD_PARENT_BLOCK_HASH ? KVE_FAULT_BAD_PARENT
                                             : KVE_FAULT_BAD_FIELD,
        field, ret);
    if (p != NULL)
        *ret_has = true;
    return p;
}

/*
 * token_ids, skipped_token_ids: a list of integers, or of overlapping pairs.
 * Tokens that cannot be kept are left out and say so in *notes. nil is no
 * fault: pool publishers write it for "hashes only".
 */
KVE_INLINE const uint8_t *
kve_get_tokens(struct kve_decoder *d, const uint8_t *p, int32_t field,
    const uint32_t **ret_tokens, size_t *ret_n, uint32_t *notes)
{
    struct kve_reader *r = &d->r;
    struct kve_arena *arena = &d->batch->arena;
    const uint8_t *head = p;
    const uint8_t *stop = NULL;
    size_t done = 0;
    bool kept = true;
    size_t n;

    if (KVE_UNLIKELY(p == r->end))
        return kve_cut(r);
    if (KVE_UNLIKELY(!kve_is_array(*p)))
        return *p == 0xc0 ? p + 1
                          : kve_wrong(r, KVE_FAULT_BAD_TOKENS, field, p);
    p = kve_read_n(r, p, &n);
    if (p == NULL || n == 0)
        return p;
    if (KVE_UNLIKELY(n > d->batch->max_tokens - d->n_tokens)) {
        *notes |= KVE_NOTE_TOKEN_LIMIT;
        return kve_skip(r, head);
    }
    if (head == d->known_list) {
        d->n_tokens += n;
        *ret_tokens = d->known_tokens;
        *ret_n = n;
        return d->known_end;
    }

    uint32_t *out = kve_arena_get(arena, (n + KVE_TOKENS_SLACK) * sizeof(*out));
    if (KVE_UNLIKELY(out == NULL))
        return kve_no_memory(r, head);
    p = kve_tokens_decode(p, r->end, n, out, &stop, &done);
    if (KVE_UNLIKELY(p == NULL)) {
        p = kve_get_odd_tokens(d, stop, n, done, field, out, &kept, notes);
        if (!kept)
            kve_arena_trim(arena, out);
        if (p == NULL || !kept)
            return p;
    }
    kve_arena_trim(arena, out + n + 1);
    d->n_tokens += n;
    *ret_tokens = out;
    *ret_n = n;
    return p;
}

KVE_INLINE const uint8_t *
kve_get_str(
    struct kve_decoder *d, const uint8_t *p, int32_t field, struct kve_str *ret)
{
    if (KVE_UNLIKELY(p == d->r.end))
        return kve_cut(&d->r);
    if (KVE_LIKELY(kve_is_str(*p)))
        return kve_read_text(&d->r, p, ret);
    if (*p == 0xc0)
        return p + 1;
    return kve_wrong(&d->r, KVE_FAULT_BAD_FIELD, field, p);
}

#endif
