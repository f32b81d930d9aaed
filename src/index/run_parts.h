/*
 * run_parts.h - what the files about runs share: run.c, record.c, cut.c,
 * join.c and finish.c.
 */
#ifndef KVE_INDEX_RUN_PARTS_H
#define KVE_INDEX_RUN_PARTS_H

#include "index/writer.h"

/* The list of children of whatever a run stands behind. */
struct kve_children {
    uint32_t *first;
    uint32_t *n;
};
struct kve_children kve_run_children(struct kve_space *space, uint32_t parent);

/* An object of this shape, without an id; NULL: no memory. */
struct kve_run *kve_run_object(struct kve_space *space, uint32_t block_size,
    uint32_t flags, struct kve_run_shape shape);
struct kve_run_shape kve_run_shape_of(const struct kve_run *run);

/* By what a run is found behind parent; and by its Dynamo hash. */
uint64_t kve_run_edge_key(
    const struct kve_space *space, const struct kve_run *run, uint32_t parent);
uint64_t kve_run_dedge_key(
    const struct kve_space *space, const struct kve_run *run, uint32_t parent);
/* Enter both; false: no memory, and nothing was changed. */
bool kve_run_edges_enter(
    struct kve_space *space, struct kve_run *run, uint32_t parent);

/* Record i of the run enters its scope's list, or leaves it. */
void kve_rec_list_insert(struct kve_space *space, struct kve_scope *scope,
    struct kve_run *run, uint32_t i);
void kve_rec_list_remove(struct kve_space *space, struct kve_scope *scope,
    const struct kve_rec *rec);
/* A record that holds nothing any more goes. */
void kve_rec_drop(struct kve_space *space, struct kve_run *run, uint32_t i);

#endif
