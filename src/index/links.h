/*
 * links.h - things by name: lists by a keyed hash.
 *
 * A thing begins with its struct kve_link, and compares its name itself. Keys
 * are mixed with a secret of the index, so names can not be chosen to fall
 * into one list. Everything is under index.lock.
 */
#ifndef KVE_INDEX_LINKS_H
#define KVE_INDEX_LINKS_H

#include "index/space.h"

/* The key of two names, one after another: first is 0 or the key so far. */
uint64_t kve_link_key(
    const kve_index *index, uint64_t first, const char *second);

/* Room for one more, so that kve_links_add() can not fail. Without memory for
 * more lists those that are there get longer; false: there are none. */
bool kve_links_room(kve_index *index, struct kve_links *links);
void kve_links_release(kve_index *index, struct kve_links *links);

static inline struct kve_link *
kve_links_first(const struct kve_links *links, uint64_t key)
{
    return links->cap == 0 ? NULL : links->heads[key & (links->cap - 1)];
}

void kve_links_add(struct kve_links *links, struct kve_link *link);
void kve_links_remove(struct kve_links *links, struct kve_link *link);

#endif
