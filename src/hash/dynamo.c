/*
 * dynamo.c - see dynamo.h.
 *
 * Images are named by text in events and by numbers here. A block whose extra
 * keys hold more than images (digests of embeddings, things nobody knows) gets
 * these behind its images as content.h lays them out: no client computes such
 * a hash, so such a block is never taken for one of text.
 */
#include "hash/dynamo.h"

#include <kvevents/hash.h>
#include <string.h>

#include "hash/dynamo_impl.h"
#include "hash/extras.h"
#include "hash/plain.h"

#define PREFIX "dynamo-cache-salt:"
#define PREFIX_LEN (sizeof(PREFIX) - 1)

uint64_t
kve_dynamo_seed_of(struct kve_str lora, struct kve_str salt)
{
    uint64_t seed = KVE_CONTENT_SEED;

    if (lora.len > 0)
        seed += XXH3_64bits(lora.data, lora.len);
    if (salt.len > 0)
        seed += XXH3_64bits_withSeed(salt.data, salt.len, 1);
    return seed;
}

bool
kve_dynamo_seed(struct kve_str lora, struct kve_str salt, uint64_t *ret_seed)
{
    if (salt.len > 0) {
        if (salt.len <= PREFIX_LEN ||
            memcmp(salt.data, PREFIX, PREFIX_LEN) != 0)
            return false;
        salt.data += PREFIX_LEN;
        salt.len -= PREFIX_LEN;
    }
    *ret_seed = kve_dynamo_seed_of(lora, salt);
    return true;
}

/* ------------------------------------------------------------------ */

static int
hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

uint64_t
kve_dynamo_image_id(struct kve_str identifier)
{
    uint64_t id = 0;
    size_t i = 0;

    if (identifier.len == 64)
        while (i < 64 && hex_value(identifier.data[i]) >= 0) {
            if (i < 16)
                id = id << 4 | (uint64_t)hex_value(identifier.data[i]);
            i++;
        }
    return i == 64 ? id : XXH3_64bits(identifier.data, identifier.len);
}

/* Insertion: a block has few images. */
static void
sort_ids(uint64_t *ids, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        uint64_t id = ids[i];
        size_t at = i;

        for (; at > 0 && ids[at - 1] > id; at--)
            ids[at] = ids[at - 1];
        ids[at] = id;
    }
}

/* ------------------------------------------------------------------ */

void
kve_dynamo_begin(struct kve_dynamo_block *block, const uint32_t *tokens,
    size_t n_tokens, uint64_t seed)
{
    uint8_t bytes[256];

    /* A state that was never used would be compared with the seed. */
    XXH3_INITSTATE(&block->state);
    XXH3_64bits_reset_withSeed(&block->state, seed);
    block->n_ids = 0;
    while (n_tokens > 0) {
        size_t some = n_tokens < 64 ? n_tokens : 64;

        kve_plain_bytes(tokens, some, bytes);
        XXH3_64bits_update(&block->state, bytes, 4 * some);
        tokens += some;
        n_tokens -= some;
    }
}

static void
add_number(struct kve_dynamo_block *block, uint64_t x)
{
    uint8_t bytes[8];

    kve_put_le64(bytes, x);
    XXH3_64bits_update(&block->state, bytes, sizeof(bytes));
}

static void
flush_ids(struct kve_dynamo_block *block)
{
    sort_ids(block->ids, block->n_ids);
    for (size_t i = 0; i < block->n_ids; i++)
        add_number(block, block->ids[i]);
    block->n_ids = 0;
}

void
kve_dynamo_add_image(struct kve_dynamo_block *block, uint64_t id)
{
    if (block->n_ids == KVE_DYNAMO_IMAGES)
        flush_ids(block);
    block->ids[block->n_ids++] = id;
}

static void
add_other(struct kve_dynamo_block *block, const struct kve_extra_item *item)
{
    struct kve_span body = kve_extra_body(item);
    uint8_t kind = (uint8_t)item->kind;

    flush_ids(block);
    XXH3_64bits_update(&block->state, &kind, 1);
    add_number(block, body.len);
    if (body.len > 0)
        XXH3_64bits_update(&block->state, body.data, body.len);
}

uint64_t
kve_dynamo_end(struct kve_dynamo_block *block)
{
    flush_ids(block);
    return XXH3_64bits_digest(&block->state);
}

KVE_WIDE_LOCALS void
kve_dynamo_blocks(
    const struct kve_event *event, uint64_t seed, uint64_t *ret_hashes)
{
    struct kve_dynamo_block block;
    struct kve_extras extras;
    struct kve_extra_item item;
    uint32_t size = event->block_size;
    size_t at = SIZE_MAX; /* block whose extras are being read */

    kve_plain_seeded(event->tokens, size, event->n_hashes, seed, ret_hashes);
    kve_extras_of_event(&extras, event);
    while (kve_extras_next(&extras, &item)) {
        if (item.block >= event->n_hashes)
            continue;
        if (item.block != at) {
            if (at != SIZE_MAX)
                ret_hashes[at] = kve_dynamo_end(&block);
            at = item.block;
            kve_dynamo_begin(&block, event->tokens + at * size, size, seed);
        }
        if (item.kind == KVE_EXTRA_IMAGE || item.kind == KVE_EXTRA_TEXT)
            kve_dynamo_add_image(&block, kve_dynamo_image_id(item.text));
        else
            add_other(&block, &item);
    }
    if (at != SIZE_MAX)
        ret_hashes[at] = kve_dynamo_end(&block);
}
