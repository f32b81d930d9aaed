/*
 * registry.h - what is there: entries by id, workers by name, rows by instance.
 *
 *     entries  an array in the order they were added, which is by id
 *     workers  a hash table by namespace and name; each lists its entries,
 *              which are few (its ranks)
 *     rows     instance -> whose it is, in open addressing: one look at memory
 *              for each row of an answer
 *
 * Every function here is called under the registry's lock, for writing where
 * it changes something. What can fail comes first (reserve, make), so that
 * what has begun ends.
 */
#ifndef KVE_INGEST_REGISTRY_H
#define KVE_INGEST_REGISTRY_H

#include "ingest/ingest.h"

/* ---- workers ---- */

/* NULL: there is none. */
struct kve_worker_entry *kve_registry_worker(
    const struct kve_ingest *ingest, kve_namespace ns, const char *name);

/* The same, made when it is new; the caller gets a reference. */
kve_status kve_registry_worker_make(struct kve_ingest *ingest, kve_namespace ns,
    const char *model, const char *tenant, const char *name,
    struct kve_worker_entry **ret_worker, struct kve_error *err);

/* The last one frees it. */
void kve_registry_worker_unref(
    struct kve_ingest *ingest, struct kve_worker_entry *worker);

/* ---- entries ---- */

/* Room for one more entry, of this worker. */
kve_status kve_registry_reserve(struct kve_ingest *ingest,
    struct kve_worker_entry *worker, struct kve_error *err);

/* Into the room reserved; the registry has a reference from now on. */
void kve_registry_enter(
    struct kve_ingest *ingest, struct kve_source_entry *entry);

/* Out of it; the caller gets the registry's reference. */
void kve_registry_leave(
    struct kve_ingest *ingest, struct kve_source_entry *entry);

/* NULL: there is none. */
struct kve_source_entry *kve_registry_find(
    const struct kve_ingest *ingest, kve_ingest_id id);

/* The source of a worker's rank; sockets of many, and all others, each have
 * ranks of their own. NULL: there is none. */
struct kve_source_entry *kve_registry_find_rank(
    const struct kve_worker_entry *worker, uint32_t rank, bool many);

/* The first one whose id is not below, as a place in entries. */
size_t kve_registry_place(const struct kve_ingest *ingest, kve_ingest_id id);

/* ---- rows ---- */

/* NULL: the instance is nobody's. */
struct kve_row *kve_row_find(
    const struct kve_ingest *ingest, kve_instance instance);

/* A row for an instance of the index: KVE_OK, or KVE_E_NOMEM. It holds a
 * reference to worker. One that is there is given the entry when it has
 * none. */
kve_status kve_row_put(struct kve_ingest *ingest,
    struct kve_worker_entry *worker, uint32_t rank, kve_instance instance,
    struct kve_source_entry *entry, struct kve_error *err);

/* Drop an instance of the index, and its row. */
void kve_row_drop(struct kve_ingest *ingest, kve_instance instance);

/* The same for all ranks of a worker, rows or not. */
void kve_row_drop_worker(
    struct kve_ingest *ingest, struct kve_worker_entry *worker);

/* The entry has left: its rows are another's that feeds them, or nobody's. */
void kve_row_disown(
    struct kve_ingest *ingest, const struct kve_source_entry *entry);

#endif
