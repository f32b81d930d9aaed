/*
 * teach.h - inside of residency.h: scopes, origins and what they say.
 */
#ifndef KVE_PUBLISH_TEACH_H
#define KVE_PUBLISH_TEACH_H

#include "publish/residency.h"

/* The scope of an event, with a reference; KVE_NO_ID when memory is short. A
 * store's kind of attention is noted with it. */
uint32_t kve_teach_scope(struct kve_residency *r, const struct kve_event *ev);

/* A store was counted; ids are the blocks of its hashes, in order. What it
 * teaches is kept. Blocks may have moved. */
void kve_teach(struct kve_residency *r, const struct kve_event *ev,
    const uint32_t *ids, uint32_t scope);

/* The block no longer needs its origin. */
void kve_teach_forget(struct kve_residency *r, struct kve_block *block);

/* End all origins at once; blocks are not touched. */
void kve_teach_release(struct kve_residency *r);

#endif
