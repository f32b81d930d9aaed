/*
 * names.c - pages of hashes, and their keys.
 *
 * A page is in one list of its owner at most:
 *
 *     free granules        open[form]   granules are given from here
 *     none, some waiting   waiting      so that the owner can find them all
 *     all given            no list
 *
 * A granule that was given back waits until the readers have left, in the
 * pool's list of retired ids; only then it is free, and a page all of whose
 * granules are free is freed at once: whoever could have looked at it has
 * left.
 */
#include "index/names.h"

#include <sys/random.h>

_Static_assert(sizeof(struct kve_page) == 128, "two cache lines");
_Static_assert(sizeof(uintptr_t) <= sizeof(uint64_t), "pointers are words");

#define ALL_GRANULES 255u

static const uint8_t form_width[KVE_NAME_FORMS] = {
    [KVE_NAME_INT] = 1,
    [KVE_NAME_B16] = 2,
    [KVE_NAME_B32] = 4,
    [KVE_NAME_OTHER] = 1,
};

/* ---- keys ---- */

static inline uint64_t
word_at(const uint8_t *bytes)
{
    uint64_t word;

    memcpy(&word, bytes, sizeof(word));
    return word;
}

uint64_t
kve_name_key_bytes(const struct kve_names *names, const uint8_t *bytes,
    size_t len, uint32_t owner)
{
    const uint64_t *secret = names->secret;
    uint64_t state = owner ^ secret[1];
    uint8_t rest[16] = { 0 };
    size_t at = 0;

    for (; len - at >= 16; at += 16)
        state = kve_name_mix(
            word_at(bytes + at) ^ secret[0], word_at(bytes + at + 8) ^ state);
    if (at < len) {
        memcpy(rest, bytes + at, len - at);
        state =
            kve_name_mix(word_at(rest) ^ secret[0], word_at(rest + 8) ^ state);
    }
    return kve_name_mix_end(names, state, (uint64_t)len + 1);
}

uint64_t
kve_block_key(const struct kve_names *names, uint32_t block)
{
    uintptr_t ref = kve_page_ref(names, block);
    const struct kve_page *page = kve_ref_page(ref);
    uint32_t owner = kve_ref_private(ref) ? page->owner : 0;
    struct kve_hash hash;

    if (kve_ref_form(ref) == KVE_NAME_INT)
        return kve_name_key_int(
            names, kve_page_word(page, kve_ref_at(ref, block)), owner);
    hash = kve_name_get(names, block);
    return kve_name_key(names, &hash, owner);
}

/* ---- the table's questions ---- */

static uint64_t
table_key(void *ctx, uint32_t block)
{
    return kve_block_key(ctx, block);
}

static void
table_prefetch(void *ctx, uint32_t block)
{
    uintptr_t ref = kve_page_ref(ctx, block);

    __builtin_prefetch(&kve_ref_page(ref)->words[kve_ref_at(ref, block)]);
    if (kve_ref_private(ref))
        __builtin_prefetch(kve_ref_page(ref));
}

/* ---- lists of pages ---- */

static uint32_t *
list_head(struct kve_page *page, uint8_t list)
{
    return list == KVE_PAGE_OPEN ? &page->lists->open[page->form]
                                 : &page->lists->waiting;
}

static struct kve_page *
page_at(const struct kve_names *names, uint32_t id)
{
    return kve_page_of(names, id * KVE_PAGE_BLOCKS);
}

/* What the directory has for a page; see kve_page_ref(). */
static void *
page_ref(const struct kve_page *page)
{
    return (void *)((uintptr_t)page | (uintptr_t)page->form << 1 |
        (uintptr_t)(page->owner != 0) << 3);
}

static void
page_unlist(struct kve_names *names, struct kve_page *page)
{
    if (page->listed == KVE_PAGE_UNLISTED)
        return;
    if (page->prev != 0)
        page_at(names, page->prev)->next = page->next;
    else
        *list_head(page, page->listed) = page->next;
    if (page->next != 0)
        page_at(names, page->next)->prev = page->prev;
    page->listed = KVE_PAGE_UNLISTED;
}

/* Put a page into the list where it belongs. */
static void
page_list(struct kve_names *names, struct kve_page *page)
{
    uint8_t list = page->free != 0 ? KVE_PAGE_OPEN
        : page->waiting != 0       ? KVE_PAGE_WAITING
                                   : KVE_PAGE_UNLISTED;
    uint32_t *head;

    if (list == page->listed)
        return;
    page_unlist(names, page);
    if (list == KVE_PAGE_UNLISTED)
        return;
    head = list_head(page, list);
    page->prev = 0;
    page->next = *head;
    if (*head != 0)
        page_at(names, *head)->prev = page->obj.id;
    *head = page->obj.id;
    page->listed = list;
}

/* ---- pages ---- */

static size_t
page_size(enum kve_name_form form)
{
    return sizeof(struct kve_page) +
        (size_t)KVE_PAGE_BLOCKS * form_width[form] * sizeof(uint64_t);
}

static struct kve_page *
page_create(struct kve_names *names, struct kve_name_owner *owner,
    enum kve_name_form form)
{
    struct kve_page *page = kve_pool_alloc(names->pool, page_size(form));
    uint32_t id;

    if (page == NULL)
        return NULL;
    memset(page, 0, page_size(form));
    page->obj.kind = KVE_OBJ_PAGE;
    page->owner = owner->owner;
    page->form = (uint8_t)form;
    page->free = ALL_GRANULES;
    page->lists = owner;
    id = kve_dir_add(&names->pages, page_ref(page));
    if (id > UINT32_MAX / KVE_PAGE_BLOCKS) {
        kve_dir_free(&names->pages, id);
        id = 0;
    }
    if (id == 0) {
        kve_pool_free(names->pool, page);
        return NULL;
    }
    page->obj.id = id;
    page_list(names, page);
    return page;
}

static void
page_destroy(struct kve_names *names, struct kve_page *page)
{
    page_unlist(names, page);
    kve_dir_free(&names->pages, page->obj.id);
    kve_pool_free(names->pool, page);
}

/* ---- granules ---- */

uint32_t
kve_granule_alloc(struct kve_names *names, struct kve_name_owner *owner,
    enum kve_name_form form, uint32_t near)
{
    struct kve_page *page = NULL;
    uint32_t granule;

    if (near != KVE_NO_BLOCK)
        page = kve_page_of(names, near);
    if (page == NULL || page->free == 0 || page->form != form ||
        page->owner != owner->owner)
        page = owner->open[form] != 0 ? page_at(names, owner->open[form])
                                      : page_create(names, owner, form);
    if (page == NULL)
        return KVE_NO_BLOCK;
    granule = (uint32_t)__builtin_ctz(page->free);
    page->free &= (uint8_t)(page->free - 1);
    page_list(names, page);
    return page->obj.id * KVE_PAGE_BLOCKS + granule * KVE_GRANULE;
}

void
kve_granule_free(
    struct kve_names *names, struct kve_name_owner *owner, uint32_t block)
{
    struct kve_page *page = kve_page_of(names, block);

    (void)owner;
    page->waiting |= (uint8_t)(1u << block % KVE_PAGE_BLOCKS / KVE_GRANULE);
    page_list(names, page);
    kve_pool_retire_id(names->pool, KVE_OBJ_GRANULE, block / KVE_GRANULE);
}

void
kve_names_id_free(struct kve_names *names, uint32_t kind, uint32_t id)
{
    uint8_t bit = (uint8_t)(1u << id % (KVE_PAGE_BLOCKS / KVE_GRANULE));
    struct kve_page *page;

    if (kind != KVE_OBJ_GRANULE)
        return;
    page = kve_page_of(names, id * KVE_GRANULE);
    page->waiting &= (uint8_t)~bit;
    page->free |= bit;
    if (page->free == ALL_GRANULES)
        page_destroy(names, page);
    else
        page_list(names, page);
}

void
kve_name_owner_init(struct kve_name_owner *owner, uint32_t number)
{
    memset(owner, 0, sizeof(*owner));
    owner->owner = number;
}

/* Give the pages of a list to names->left. */
static void
owner_leave(struct kve_names *names, uint32_t *head)
{
    while (*head != 0) {
        struct kve_page *page = page_at(names, *head);

        page_unlist(names, page);
        page->lists = &names->left;
        page_list(names, page);
    }
}

void
kve_name_owner_release(struct kve_names *names, struct kve_name_owner *owner)
{
    for (size_t i = 0; i < KVE_NAME_FORMS; i++)
        owner_leave(names, &owner->open[i]);
    owner_leave(names, &owner->waiting);
}

/* ---- hashes ---- */

bool
kve_name_set(
    struct kve_names *names, uint32_t block, const struct kve_hash *hash)
{
    uintptr_t ref = kve_page_ref(names, block);
    _Atomic uint64_t *words = &kve_ref_page(ref)->words[kve_ref_at(ref, block)];
    enum kve_name_form form = kve_ref_form(ref);
    struct kve_name_bytes *name;

    if (form == KVE_NAME_INT) {
        atomic_store_explicit(words, hash->integer, memory_order_relaxed);
        return true;
    }
    if (form != KVE_NAME_OTHER) {
        for (uint32_t i = 0; i < form_width[form]; i++)
            atomic_store_explicit(
                &words[i], word_at(hash->bytes + 8 * i), memory_order_relaxed);
        return true;
    }
    if (hash->len > UINT32_MAX)
        return false;
    name = kve_pool_alloc(names->pool, sizeof(*name) + hash->len);
    if (name == NULL)
        return false;
    name->obj.kind = KVE_OBJ_NAME;
    name->obj.id = block;
    name->len = (uint32_t)hash->len;
    memcpy(name->bytes, hash->bytes, hash->len);
    atomic_store_explicit(words, (uintptr_t)name, memory_order_release);
    return true;
}

struct kve_hash
kve_name_get(const struct kve_names *names, uint32_t block)
{
    uintptr_t ref = kve_page_ref(names, block);
    const struct kve_page *page = kve_ref_page(ref);
    enum kve_name_form form = kve_ref_form(ref);
    uint32_t at = kve_ref_at(ref, block);
    const struct kve_name_bytes *name;
    struct kve_hash hash = { NULL, { 0 } };

    switch (form) {
    case KVE_NAME_INT:
        hash.integer = kve_page_word(page, at);
        break;
    case KVE_NAME_B16:
    case KVE_NAME_B32:
        hash.bytes = (const uint8_t *)&page->words[at];
        hash.len = form_width[form] * sizeof(uint64_t);
        break;
    default:
        name = kve_page_bytes(page, at);
        hash.bytes = name->bytes;
        hash.len = name->len;
        break;
    }
    return hash;
}

size_t
kve_name_match(const struct kve_names *names, uint32_t block,
    const struct kve_hash *hashes, size_t n)
{
    uintptr_t ref = kve_page_ref(names, block);
    const struct kve_page *page = kve_ref_page(ref);
    uint32_t at = kve_ref_at(ref, block);
    size_t room = KVE_GRANULE - block % KVE_GRANULE;
    uint32_t differ = 0;
    size_t i;

    if (n > room)
        n = room;
    if (kve_ref_form(ref) == KVE_NAME_INT) {
        /* All of them without a branch: mostly all are equal. */
        for (i = 0; i < n; i++) {
            uint64_t word = kve_page_word(page, at + (uint32_t)i);

            differ |= (uint32_t)((hashes[i].bytes != NULL) |
                          (hashes[i].integer != word))
                << i;
        }
        return differ == 0 ? n : (size_t)__builtin_ctz(differ);
    }
    for (i = 0; i < n; i++)
        if (kve_name_form_of(&hashes[i]) != kve_ref_form(ref) ||
            !kve_ref_has(ref, block + (uint32_t)i, &hashes[i]))
            break;
    return i;
}

void
kve_name_drop(struct kve_names *names, uint32_t block)
{
    uintptr_t ref = kve_page_ref(names, block);
    _Atomic uint64_t *word = &kve_ref_page(ref)->words[kve_ref_at(ref, block)];
    void *name;

    if (kve_ref_form(ref) != KVE_NAME_OTHER)
        return;
    name = (void *)(uintptr_t)atomic_load_explicit(word, memory_order_relaxed);
    if (name == NULL)
        return;
    atomic_store_explicit(word, 0, memory_order_release);
    kve_pool_retire(names->pool, name);
}

/* ---- table ---- */

bool
kve_name_enter(struct kve_names *names, uint64_t key, uint32_t block)
{
    return kve_table_insert(&names->table, key, block);
}

void
kve_name_leave(struct kve_names *names, uint64_t key, uint32_t block)
{
    if (kve_table_erase(&names->table, key, block))
        kve_table_shrink(&names->table, key);
}

/* ---- all ---- */

kve_status
kve_names_init(struct kve_names *names, struct kve_pool *pool)
{
    struct kve_table_ops ops = { names, table_key, table_prefetch };

    memset(names, 0, sizeof(*names));
    names->pool = pool;
    kve_dir_init(&names->pages, pool);
    /* 32 bytes come at once or not at all. */
    if (getrandom(names->secret, sizeof(names->secret), 0) !=
        (ssize_t)sizeof(names->secret))
        return KVE_E_SYSTEM;
    return kve_table_init(&names->table, pool, 0, &ops);
}

bool
kve_names_moved(
    struct kve_names *names, struct kve_obj *from, struct kve_obj *to)
{
    struct kve_page *page;
    _Atomic uint64_t *word;

    if (to->kind == KVE_OBJ_PAGE) {
        if ((void *)page_at(names, to->id) != (void *)from)
            return false;
        kve_dir_set(
            &names->pages, to->id, page_ref((const struct kve_page *)to));
        return true;
    }
    if (to->kind != KVE_OBJ_NAME)
        return false;
    page = kve_page_of(names, to->id);
    if (page == NULL || page->form != KVE_NAME_OTHER)
        return false;
    word = &page->words[to->id % KVE_PAGE_BLOCKS];
    if (atomic_load_explicit(word, memory_order_relaxed) != (uintptr_t)from)
        return false;
    atomic_store_explicit(word, (uintptr_t)to, memory_order_release);
    return true;
}
