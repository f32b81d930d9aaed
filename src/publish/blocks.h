/*
 * blocks.h - inside of residency.h: blocks by hash, their copies, their end.
 *
 * Blocks lie in one array and are named by their place. The way from a hash
 * to a place is an open table of 8 bytes a slot, half of it a part of the
 * hash's code, so that it grows without looking at blocks. Nearly every block
 * has copies in one scope; more go to a small array of its own.
 */
#ifndef KVE_PUBLISH_BLOCKS_H
#define KVE_PUBLISH_BLOCKS_H

#include "publish/residency.h"

/* The block of a hash, or KVE_NO_ID. */
uint32_t kve_blocks_find(
    const struct kve_residency *r, const struct kve_hash *hash);

/* The same, made where there is none: without copies, so it has to get some,
 * or a child, or be given up. KVE_NO_ID: memory is short, or a limit reached
 * (r->no_memory says which). Blocks may have moved. */
uint32_t kve_blocks_get(struct kve_residency *r, const struct kve_hash *hash);

/* One copy more; takes a reference of scope of its own. false: as above. */
bool kve_blocks_add(struct kve_residency *r, uint32_t id, uint32_t scope);

/* One copy less; false: there is none. The block may have to be given up. */
bool kve_blocks_take(struct kve_residency *r, uint32_t id, uint32_t scope);

/* No copies in marked scopes any more; as above. */
void kve_blocks_take_marked(struct kve_residency *r, uint32_t id);

/* If nothing needs this block any more it ends, and so do its ancestors. */
void kve_blocks_give_up(struct kve_residency *r, uint32_t id);

/* Give memory back where most places are free. Blocks move. */
void kve_blocks_compact(struct kve_residency *r);

/* End all blocks at once; origins are not touched. */
void kve_blocks_release(struct kve_residency *r);

#endif
