/*
 * slot.h - who is called what: workers, their ranks, and the slots of these.
 *
 *     index.workers   (namespace, worker) -> its ranks, in order -> slot
 *
 * Ten thousand instances are added and found without a walk over all of them,
 * and so are all ranks of a worker. Slots live as long as the index: a reader
 * may hold one whose instance was dropped, and sees by the handle that it
 * means somebody else.
 *
 * Everything is under index.lock, but for making and freeing all.
 */
#ifndef KVE_INDEX_SLOT_H
#define KVE_INDEX_SLOT_H

#include "index/links.h"

/* A slot whose generations are used up is never given again. */
#define KVE_GENERATION_MAX 0x7fffffffu

/* All ranks of one worker. */
struct kve_worker {
    struct kve_link link; /* first */
    uint32_t ns;
    uint32_t n;
    uint32_t cap;
    struct kve_slot **ranks; /* by rank */
    char name[];
};

bool kve_index_slots_init(kve_index *index);
void kve_index_slots_release(kve_index *index);

/* A slot that nobody uses, and it is given back. NULL: no memory. */
struct kve_slot *kve_index_slot_take(kve_index *index);
void kve_index_slot_give(kve_index *index, struct kve_slot *slot);

/* A worker of this name, or NULL: not there, or no memory (make). */
struct kve_worker *kve_worker_find(
    const kve_index *index, kve_namespace ns, const char *name);
struct kve_worker *kve_worker_make(
    kve_index *index, kve_namespace ns, const char *name);
/* A worker that has no rank any more goes. */
void kve_worker_leave(kve_index *index, struct kve_worker *worker);

/* The slot of a rank, or NULL; also when worker is NULL. */
struct kve_slot *kve_rank_find(const struct kve_worker *worker, uint32_t rank);
/* Room for one more rank; then it can be added. */
bool kve_rank_room(kve_index *index, struct kve_worker *worker);
void kve_rank_add(struct kve_worker *worker, struct kve_slot *slot);
void kve_rank_remove(
    kve_index *index, struct kve_worker *worker, struct kve_slot *slot);

#endif
