/*
 * verify_blocks.h - the blocks of a recording, as verify.c and
 * verify_search.c share them.
 *
 * Tokens of all blocks lie in one array, extra keys in another; a block has a
 * place in each. A block's digest is the one that was computed last.
 */
#ifndef KVEVENTS_TOOL_VERIFY_BLOCKS_H
#define KVEVENTS_TOOL_VERIFY_BLOCKS_H

#include "verify.h"

#define NO_BLOCK SIZE_MAX

struct block {
    struct kve_hash hash;
    struct kve_hash parent;
    bool has_parent;
    bool defined;        /* its tokens are known */
    bool strange;        /* has extra keys that nobody knows */
    bool adapter;        /* belongs to one */
    struct kve_str lora; /* data NULL: an adapter without a name, or none */
    struct kve_str salt;
    uint32_t block_size;
    uint32_t ahead; /* tokens behind its own that are hashed with it */
    size_t tokens;  /* place in tokens: block_size + ahead of them */
    size_t items;
    size_t n_items;
    uint64_t published;
    size_t parent_at; /* NO_BLOCK: no parent, or not there */
    size_t next_child;
    size_t first_child;
    size_t same; /* next one in its slot of the table */
    uint8_t verdict;
    uint8_t digest[KVE_DIGEST_MAX];
};

struct verify {
    const struct adapters *adapters;
    struct block *blocks;
    size_t n;
    size_t cap;
    size_t *slots; /* of the table: first block, or NO_BLOCK */
    size_t n_slots;
    uint32_t *tokens;
    size_t n_tokens;
    size_t cap_tokens;
    struct kve_extra_item *items;
    size_t n_items;
    size_t cap_items;
    size_t *order; /* blocks whose chains begin here, parents first */
    size_t n_order;
    struct memory *memory; /* bytes of hashes and texts */
    uint64_t published;
};

/*
 * Compute a block behind what chain stands at. The chain was made for
 * chain_size tokens a hash; a block of several is as many steps. false: it
 * cannot be computed so.
 */
bool block_compute(const struct verify *verify, const struct block *block,
    kve_chain *chain, uint32_t chain_size);

/* The form in which a digest is the published hash, or 0. */
unsigned block_form(
    const struct block *block, const uint8_t *digest, size_t len);

/* Whether a block's adapter is one whose path is needed and not known. */
bool block_needs_path(const struct verify *verify, const struct block *block,
    const struct settings *settings);

#endif
