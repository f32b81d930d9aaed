/*
 * batch.c - the handle a batch is kept in; see kvevents/codec.h and batch.h.
 *
 * Nothing is allocated for events, faults and the arena before there is
 * something to keep, so a batch that is never used costs one small block.
 */
#include "wire/batch.h"

#include "base/alloc.h"
#include "base/status.h"

#define MAX_TOKENS ((size_t)4 * 1024 * 1024)
#define MAX_HASHES ((size_t)1024 * 1024)
#define MAX_EVENTS ((size_t)256 * 1024)
#define MAX_FAULTS ((size_t)1024)

void
kve_batch_opts_init(struct kve_batch_opts *opts)
{
    *opts = (struct kve_batch_opts)KVE_BATCH_OPTS_INIT;
}

kve_status
kve_batch_create(const struct kve_batch_opts *opts, kve_batch **ret_batch,
    struct kve_error *err)
{
    struct kve_batch_opts o;
    kve_status status = kve_opts_read(opts,
        offsetof(struct kve_batch_opts, max_faults) + sizeof(o.max_faults), &o,
        sizeof(o), "kve_batch_opts", err);

    if (status != KVE_OK)
        return status;

    struct kve_batch *batch = kve_mem_zalloc(1, sizeof(*batch));
    if (batch == NULL)
        return kve_fail_nomem(err, "batch");
    batch->max_tokens = o.max_tokens != 0 ? o.max_tokens : MAX_TOKENS;
    batch->max_hashes = o.max_hashes != 0 ? o.max_hashes : MAX_HASHES;
    batch->max_events = o.max_events != 0 ? o.max_events : MAX_EVENTS;
    batch->max_faults = o.max_faults != 0 ? o.max_faults : MAX_FAULTS;
    *ret_batch = batch;
    return KVE_OK;
}

void
kve_batch_destroy(kve_batch *batch)
{
    if (batch == NULL)
        return;
    kve_arena_release(&batch->arena);
    kve_mem_free(batch->events);
    kve_mem_free(batch->faults);
    kve_mem_free(batch);
}

void
kve_batch_clear(kve_batch *batch)
{
    kve_batch_empty(batch);
}

const struct kve_batch_info *
kve_batch_get_info(const kve_batch *batch)
{
    return &batch->info;
}

const struct kve_event *
kve_batch_next(kve_batch *batch)
{
    if (batch->next == batch->info.n_events)
        return NULL;
    return &batch->events[batch->next++];
}

void
kve_batch_rewind(kve_batch *batch)
{
    batch->next = 0;
}

const struct kve_fault *
kve_batch_fault(const kve_batch *batch, size_t i)
{
    return i < batch->n_faults ? &batch->faults[i] : NULL;
}

size_t
kve_batch_memory(const kve_batch *batch)
{
    return sizeof(*batch) + batch->cap_events * sizeof(batch->events[0]) +
        batch->cap_faults * sizeof(batch->faults[0]) + batch->arena.total;
}
