/*
 * content.c - see content.h.
 *
 * Blocks with extras are rare and go one by one through a scratch buffer in
 * which the bytes of content.h are laid out. All others go through
 * kve_content_blocks(), whose variants are in plain.c and plain_x86.c.
 */
#include "hash/content.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "hash/extras.h"
#include "hash/plain.h"

/* ------------------------------------------------------------------ */
/* Bytes of one block with extras. */

/* Room for n more bytes behind len. */
static bool
reserve(uint8_t **bytes, size_t *cap, size_t len, size_t n)
{
    if (n <= *cap - len)
        return true;
    if (n > SIZE_MAX / 2 - len)
        return false;

    size_t want = 2 * (len + n);
    uint8_t *grown = kve_mem_realloc(*bytes, want);

    if (grown == NULL)
        return false;
    *bytes = grown;
    *cap = want;
    return true;
}

static bool
add_tokens(uint8_t **bytes, size_t *cap, const uint32_t *tokens,
    uint32_t block_size, size_t *ret_len)
{
    if (!reserve(bytes, cap, 0, (size_t)block_size * 4))
        return false;
    kve_plain_bytes(tokens, block_size, *bytes);
    *ret_len = (size_t)block_size * 4;
    return true;
}

/* kind, offset of images, length, bytes */
static bool
add_item(uint8_t **bytes, size_t *cap, size_t *len,
    const struct kve_extra_item *item)
{
    struct kve_span body = kve_extra_body(item);
    uint8_t *w;

    if (body.len > SIZE_MAX / 4 || !reserve(bytes, cap, *len, 17 + body.len))
        return false;
    w = *bytes + *len;
    *w++ = (uint8_t)item->kind;
    if (item->kind == KVE_EXTRA_IMAGE) {
        kve_put_le64(w, (uint64_t)item->offset);
        w += 8;
    }
    kve_put_le64(w, body.len);
    w += 8;
    if (body.len > 0)
        memcpy(w, body.data, body.len);
    *len = (size_t)(w + body.len - *bytes);
    return true;
}

/* ------------------------------------------------------------------ */
/* Stores. */

/* Hash n blocks, and again those that have extras: *ret_any when one has. */
static kve_status
hash_blocks(struct kve_event_content *content, const uint32_t *tokens,
    uint32_t block_size, size_t n, struct kve_extras *extras, uint64_t *hashes,
    bool *ret_any)
{
    struct kve_extra_item item;
    size_t at = SIZE_MAX; /* block whose bytes are being laid out */
    size_t len = 0;

    kve_content_blocks(tokens, block_size, n, hashes);
    while (kve_extras_next(extras, &item)) {
        if (item.block >= n)
            continue; /* no hash was sent for that block */
        if (item.block != at) {
            if (at != SIZE_MAX)
                hashes[at] = kve_plain_hash(content->bytes, len);
            at = item.block;
            if (!add_tokens(&content->bytes, &content->bytes_cap,
                    tokens + at * block_size, block_size, &len))
                return KVE_E_NOMEM;
        }
        if (!add_item(&content->bytes, &content->bytes_cap, &len, &item))
            return KVE_E_NOMEM;
    }
    if (at != SIZE_MAX)
        hashes[at] = kve_plain_hash(content->bytes, len);
    *ret_any = at != SIZE_MAX;
    return KVE_OK;
}

static void
read_lora(struct kve_event_content *content, const struct kve_event *event)
{
    if (event->lora_name.len > 0) {
        content->lora = event->lora_name;
    } else if (event->lora_id.set) {
        int len = snprintf(content->id_text, sizeof(content->id_text), "#%lld",
            (long long)event->lora_id.value);

        content->lora = (struct kve_str){ content->id_text, (size_t)len };
    } else {
        content->lora = (struct kve_str){ NULL, 0 };
    }
}

/* Whole blocks of the skipped part; 0 where it cannot be told. */
static size_t
count_skipped(const struct kve_event *event, bool gpu)
{
    if (event->skipped_tokens == NULL ||
        event->n_skipped_tokens % event->block_size != 0 ||
        (!gpu && !kve_extras_said(event->skipped_extra_keys)) ||
        !kve_extras_whole(event->skipped_extra_keys))
        return 0; /* no bridge */
    return event->n_skipped_tokens / event->block_size;
}

static kve_status
read_blocks(struct kve_event_content *content, const struct kve_event *event,
    size_t n_skipped)
{
    struct kve_extras extras;
    size_t n = event->n_hashes + n_skipped;
    bool any; /* extras in the skipped part: its hashes have them already */
    kve_status status;

    if (n > content->cap) {
        uint64_t *room = kve_mem_array(content->room, n, sizeof(*room));

        if (room == NULL)
            return KVE_E_NOMEM;
        content->room = room;
        content->cap = n;
    }

    kve_extras_of_event(&extras, event);
    if (extras.salt.data != NULL)
        content->salt = extras.salt;
    status = hash_blocks(content, event->tokens, event->block_size,
        event->n_hashes, &extras, content->room, &content->images);
    if (status != KVE_OK)
        return status;
    content->hashes = content->room;
    if (n_skipped == 0)
        return KVE_OK;

    kve_extras_of_skipped(&extras, event);
    if (extras.salt.data != NULL)
        content->salt = extras.salt;
    status = hash_blocks(content, event->skipped_tokens, event->block_size,
        n_skipped, &extras, content->room + event->n_hashes, &any);
    if (status != KVE_OK)
        return status;
    content->skipped = content->room + event->n_hashes;
    content->n_skipped = n_skipped;
    return KVE_OK;
}

kve_status
kve_event_content_read(
    struct kve_event_content *content, const struct kve_event *event)
{
    bool gpu = kve_medium_tier(event->medium) == KVE_TIER_GPU;
    uint64_t covered;
    kve_status status;

    content->complete = false;
    content->images = false;
    content->tokens_left = false;
    content->salt = event->cache_salt;
    content->hashes = NULL;
    content->skipped = NULL;
    content->n_skipped = 0;
    read_lora(content, event);

    if (event->tokens == NULL || event->block_size == 0 || event->n_hashes == 0)
        return KVE_OK;
    /* Below the division, so that the product can not overflow. */
    if (event->n_tokens / event->block_size != event->n_hashes)
        return KVE_OK;
    covered = (uint64_t)event->n_hashes * event->block_size;
    if (event->n_tokens != covered) {
        content->tokens_left = true;
        return KVE_OK;
    }
    if (!gpu && !kve_extras_said(event->extra_keys))
        return KVE_OK;
    if (!kve_extras_whole(event->extra_keys))
        return KVE_OK; /* what is not understood teaches nothing */

    status = read_blocks(content, event, count_skipped(event, gpu));
    content->complete = status == KVE_OK;
    return status;
}

void
kve_event_content_release(struct kve_event_content *content)
{
    kve_mem_free(content->room);
    kve_mem_free(content->bytes);
    *content = (struct kve_event_content){ 0 };
}

/* ------------------------------------------------------------------ */
/* Prompts. */

/* Where an extra begins and ends, in tokens of the prompt. */
static void
place_of(const struct kve_query_extra *extra, uint32_t block_size,
    uint64_t *ret_start, uint64_t *ret_end)
{
    if (extra->kind == KVE_EXTRA_IMAGE) {
        *ret_start = extra->start;
        *ret_end = (uint64_t)extra->start + extra->n_tokens;
    } else {
        *ret_start = (uint64_t)extra->block * block_size;
        *ret_end = *ret_start + 1;
    }
}

/* A walk over a query's extras, block after block. */
struct walk {
    const struct kve_index_query *query;
    uint32_t block_size;
    bool in_order; /* by place: what is behind a block ends its search */
    size_t first;  /* those before it lie before the block */
};

static void
begin_walk(
    struct walk *walk, const struct kve_index_query *query, uint32_t block_size)
{
    uint64_t before = 0;

    *walk = (struct walk){ query, block_size, true, 0 };
    for (size_t i = 0; i < query->n_extras; i++) {
        uint64_t from, to;

        place_of(&query->extras[i], block_size, &from, &to);
        if (from < before)
            walk->in_order = false;
        before = from;
    }
}

/* Lay out the block from token start on with what belongs to it; *ret_len
 * stays 0 where nothing does. */
static kve_status
lay_out(struct walk *walk, uint64_t start, struct kve_content_scratch *scratch,
    size_t *ret_len)
{
    const struct kve_index_query *query = walk->query;
    uint64_t end = start + walk->block_size;
    bool passing = true; /* nothing but extras that are over so far */

    for (size_t i = walk->first; i < query->n_extras; i++) {
        const struct kve_query_extra *extra = &query->extras[i];
        struct kve_extra_item item = { .kind = extra->kind,
            .text = extra->text,
            .bytes = extra->bytes,
            .raw = extra->bytes };
        uint64_t from, to;

        place_of(extra, walk->block_size, &from, &to);
        if (from >= end && walk->in_order)
            break;
        passing = passing && to <= start;
        if (passing)
            walk->first = i + 1;
        if (from >= end || to <= start)
            continue;
        item.offset = (int64_t)(from - start);
        if (*ret_len == 0 &&
            !add_tokens(&scratch->bytes, &scratch->cap, query->tokens + start,
                walk->block_size, ret_len))
            return KVE_E_NOMEM;
        if (!add_item(&scratch->bytes, &scratch->cap, ret_len, &item))
            return KVE_E_NOMEM;
    }
    return KVE_OK;
}

kve_status
kve_content_prompt(const struct kve_index_query *query, size_t start,
    uint32_t block_size, size_t n_blocks, uint64_t *ret_hashes,
    struct kve_content_scratch *scratch)
{
    struct walk walk;

    kve_content_blocks(query->tokens + start, block_size, n_blocks, ret_hashes);
    if (query->n_extras == 0)
        return KVE_OK;

    begin_walk(&walk, query, block_size);
    for (size_t i = 0; i < n_blocks && walk.first < query->n_extras; i++) {
        size_t len = 0;
        kve_status status =
            lay_out(&walk, start + (uint64_t)i * block_size, scratch, &len);

        if (status != KVE_OK)
            return status;
        if (len > 0)
            ret_hashes[i] = kve_plain_hash(scratch->bytes, len);
    }
    return KVE_OK;
}
