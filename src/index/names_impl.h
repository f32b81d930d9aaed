/*
 * names_impl.h - what names.h has inline: keys, comparing, the look-up.
 */
#ifndef KVE_INDEX_NAMES_IMPL_H
#define KVE_INDEX_NAMES_IMPL_H

#include <string.h>

__extension__ typedef unsigned __int128 kve_uint128;

/* Both halves of a product, folded. */
static inline uint64_t
kve_name_mix(uint64_t a, uint64_t b)
{
    kve_uint128 product = (kve_uint128)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Integers and bytes differ by the last number: 0, or length + 1. */
static inline uint64_t
kve_name_mix_end(const struct kve_names *names, uint64_t state, uint64_t form)
{
    return kve_name_mix(state ^ names->secret[2], form ^ names->secret[3]);
}

static inline uint64_t
kve_name_key_int(const struct kve_names *names, uint64_t value, uint32_t owner)
{
    return kve_name_mix_end(names,
        kve_name_mix(value ^ names->secret[0], owner ^ names->secret[1]), 0);
}

uint64_t kve_name_key_bytes(const struct kve_names *names, const uint8_t *bytes,
    size_t len, uint32_t owner);

static inline uint64_t
kve_name_key(
    const struct kve_names *names, const struct kve_hash *hash, uint32_t owner)
{
    return hash->bytes == NULL
        ? kve_name_key_int(names, hash->integer, owner)
        : kve_name_key_bytes(names, hash->bytes, hash->len, owner);
}

static inline uint64_t
kve_page_word(const struct kve_page *page, uint32_t at)
{
    return atomic_load_explicit(&page->words[at], memory_order_relaxed);
}

/* The name of a block of a page of the form OTHER; NULL: none. */
static inline const struct kve_name_bytes *
kve_page_bytes(const struct kve_page *page, uint32_t slot)
{
    return (const struct kve_name_bytes *)(uintptr_t)atomic_load_explicit(
        &page->words[slot], memory_order_acquire);
}

static inline struct kve_page *
kve_ref_page(uintptr_t ref)
{
    return (struct kve_page *)(ref & ~(uintptr_t)63);
}

static inline enum kve_name_form
kve_ref_form(uintptr_t ref)
{
    return (enum kve_name_form)(ref >> 1 & 3);
}

static inline bool
kve_ref_private(uintptr_t ref)
{
    return (ref & 8) != 0;
}

/* Where the first word of a block's hash is. */
static inline uint32_t
kve_ref_at(uintptr_t ref, uint32_t block)
{
    /* Words a hash, as powers of 2: 1, 2, 4 and 1. */
    const uint32_t shift = 0x0210u >> 4 * (uint32_t)kve_ref_form(ref) & 3;

    return block % KVE_PAGE_BLOCKS << shift;
}

/* Are the n words at the same as those at bytes? */
static inline bool
kve_page_same(
    const struct kve_page *page, uint32_t at, const uint8_t *bytes, uint32_t n)
{
    uint64_t differ = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t word;

        memcpy(&word, bytes + 8 * i, sizeof(word));
        differ |= word ^ kve_page_word(page, at + i);
    }
    return differ == 0;
}

/* Is the hash, whose form is the page's, that of this block of it? */
static inline bool
kve_ref_has(uintptr_t ref, uint32_t block, const struct kve_hash *hash)
{
    const struct kve_page *page = kve_ref_page(ref);
    uint32_t at = kve_ref_at(ref, block);
    const struct kve_name_bytes *name;

    switch (kve_ref_form(ref)) {
    case KVE_NAME_INT:
        return kve_page_word(page, at) == hash->integer;
    case KVE_NAME_B16:
        return kve_page_same(page, at, hash->bytes, 2);
    case KVE_NAME_B32:
        return kve_page_same(page, at, hash->bytes, 4);
    default:
        name = kve_page_bytes(page, at);
        return name != NULL && name->len == hash->len &&
            memcmp(name->bytes, hash->bytes, hash->len) == 0;
    }
}

static inline bool
kve_name_is(
    const struct kve_names *names, uint32_t block, const struct kve_hash *hash)
{
    uintptr_t ref = kve_page_ref(names, block);

    return ref != 0 && kve_ref_form(ref) == kve_name_form_of(hash) &&
        kve_ref_has(ref, block, hash);
}

static inline uint32_t
kve_name_find(const struct kve_names *names, uint64_t key,
    const struct kve_hash *hash, uint32_t owner)
{
    enum kve_name_form form = kve_name_form_of(hash);
    struct kve_probe probe;
    uint32_t block;

    kve_probe_begin(&probe, &names->table, key);
    while ((block = kve_probe_next(&probe)) != KVE_NO_VALUE) {
        uintptr_t ref = kve_page_ref(names, block);

        if (ref != 0 && kve_ref_form(ref) == form &&
            kve_ref_private(ref) == (owner != 0) &&
            kve_ref_has(ref, block, hash) &&
            (owner == 0 || kve_ref_page(ref)->owner == owner))
            return block;
    }
    return KVE_NO_BLOCK;
}

KVE_FETCHES static inline void
kve_name_prefetch(const struct kve_names *names, uint64_t key)
{
    struct kve_probe probe;
    uint32_t block;
    uintptr_t ref;

    kve_probe_begin(&probe, &names->table, key);
    if (probe.mask == 0) {
        /* What is entered next goes behind a full bucket, too. This one is
         * in the cache: fetching it again costs less than a branch. */
        __builtin_prefetch(probe.bucket +
            (probe.passed != 0 || kve_bucket_is_full(probe.bucket)));
        return;
    }
    block = kve_probe_next(&probe);
    ref = kve_page_ref(names, block);
    __builtin_prefetch(kve_ref_page(ref));
    __builtin_prefetch(&kve_ref_page(ref)->words[kve_ref_at(ref, block)]);
}

#endif
