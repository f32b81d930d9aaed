/*
 * dynamo.h - block hashes as Dynamo's clients compute them.
 *
 * They differ from content hashes (content.h) where the chain has an adapter
 * or a salt with Dynamo's prefix, which seed them, and where a block has
 * images (their 64-bit ids, sorted, without offsets).
 */
#ifndef KVE_HASH_DYNAMO_H
#define KVE_HASH_DYNAMO_H

#include <kvevents/event.h>
#include <kvevents/status.h>

/*
 * The seed of a chain. Returns false when it has no Dynamo hash: a salt
 * without the prefix "dynamo-cache-salt:", or with nothing behind it. Absent
 * and empty are one.
 */
bool kve_dynamo_seed(
    struct kve_str lora, struct kve_str salt, uint64_t *ret_seed);

/*
 * Hashes of a complete store's blocks with that seed. A block whose extra keys
 * hold more than images (digests of embeddings, what nobody knows) gets a
 * value that no client computes, so that it is never taken for text.
 */
void kve_dynamo_blocks(
    const struct kve_event *event, uint64_t seed, uint64_t *ret_hashes);

#endif
