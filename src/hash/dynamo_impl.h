/*
 * One block with images, as Dynamo hashes it; for src/hash alone.
 */
#ifndef KVE_HASH_DYNAMO_IMPL_H
#define KVE_HASH_DYNAMO_IMPL_H

#include "hash/plain_impl.h"

/* Images of one block that are sorted; more than that is no block that
 * anybody asks for. */
#define KVE_DYNAMO_IMAGES 64

/* A block that is being hashed: begin, add images, end. */
struct kve_dynamo_block {
    XXH3_state_t state;
    uint64_t ids[KVE_DYNAMO_IMAGES];
    size_t n_ids;
};

void kve_dynamo_begin(struct kve_dynamo_block *block, const uint32_t *tokens,
    size_t n_tokens, uint64_t seed);

void kve_dynamo_add_image(struct kve_dynamo_block *block, uint64_t id);

uint64_t kve_dynamo_end(struct kve_dynamo_block *block);

/* The seed of an adapter and a salt without prefix; "" is none. */
uint64_t kve_dynamo_seed_of(struct kve_str lora, struct kve_str salt);

#endif
