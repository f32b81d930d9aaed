/*
 * content.h - content hashes of blocks.
 *
 * The content hash of a block is XXH3-64 with seed 1337 over its tokens as
 * 32-bit little-endian numbers: Dynamo's plain block hash. Whatever else makes
 * two blocks of equal tokens different content enters it too: identifiers of
 * images with their offsets, digests of prompt embeddings, and extra keys that
 * nobody knows. Adapter and salt do not: they belong to the root of the chain.
 *
 * With extras the tokens' bytes are followed by each item in the order given:
 * kind (1 byte), offset (8 bytes, little-endian, images only), length (8
 * bytes), bytes; and the whole is hashed the same way. The order is that of
 * engines: images, digests of embeddings, others.
 *
 * Which items of a store are adapter and salt: extras.h. The variants of the
 * hash itself: plain.h.
 */
#ifndef KVE_HASH_CONTENT_H
#define KVE_HASH_CONTENT_H

#include <kvevents/codec.h>
#include <kvevents/event.h>
#include <kvevents/index.h>

#define KVE_CONTENT_SEED UINT64_C(1337)

/* Content hashes of n_blocks blocks without extras, one after another. The hot
 * path: several blocks are in flight at once where the size allows. */
void kve_content_blocks(const uint32_t *tokens, uint32_t block_size,
    size_t n_blocks, uint64_t *ret_hashes);

/*
 * What one store says of its blocks. Reused from event to event; zero it
 * first, end with kve_event_content_release().
 */
struct kve_event_content {
    /* Teaches: tokens are hashes x block_size (block_size > 0), and extra keys
     * were said (a list of nils says: none) or the medium is the GPU. Extra
     * keys that can not be read to their end teach nothing. */
    bool complete;
    bool images;         /* extras make a named block other than plain */
    bool tokens_left;    /* not complete: there are tokens beyond the last hash,
                            too few for a block. (A sparse group names fewer
                            hashes than whole blocks: that is no such store.) */
    struct kve_str lora; /* adapter of the chain; "#<id>" for a bare lora_id;
                            data NULL: base. Empty names are base, too */
    struct kve_str salt; /* said by this store (first block or field); data
                            NULL: not said. Counts for a chain's root only. */
    const uint64_t *hashes;  /* n_hashes content hashes, when complete */
    const uint64_t *skipped; /* content of the skipped part, where given */
    size_t n_skipped;
    /* private */
    uint64_t *room;
    size_t cap;
    char id_text[24];
    uint8_t *bytes;
    size_t bytes_cap;
};

/*
 * Read a store. Returns KVE_OK or KVE_E_NOMEM. What is returned points into
 * the event and into content, valid until the next call.
 */
kve_status kve_event_content_read(
    struct kve_event_content *content, const struct kve_event *event);

void kve_event_content_release(struct kve_event_content *content);

/*
 * Content hashes of n_blocks blocks of a prompt, which have block_size tokens
 * each from token start on, with the extras of the query that overlap them.
 * Extras that name a block count in block_size from token 0 on. Returns KVE_OK
 * or KVE_E_NOMEM; scratch is grown as needed and freed by its owner
 * (kve_mem_free(scratch.bytes)).
 */
struct kve_content_scratch {
    uint8_t *bytes;
    size_t cap;
};
kve_status kve_content_prompt(const struct kve_index_query *query, size_t start,
    uint32_t block_size, size_t n_blocks, uint64_t *ret_hashes,
    struct kve_content_scratch *scratch);

#endif
