/*
 * instance.c - instances come, are found, and leave.
 */
#include "base/status.h"
#include "index/run.h"
#include "index/slot.h"

#include <stddef.h>
#include <string.h>

/* ---- locks ---- */

/* A handle's slot with its space locked, or NULL. A slot may go to another
 * namespace while we wait for the lock; then the handle is dead. */
static struct kve_slot *
lock_slot(const kve_index *index, kve_instance instance)
{
    struct kve_slot *slot = kve_slot_get(index, instance);
    struct kve_space *space;

    if (slot == NULL)
        return NULL;
    space = atomic_load_explicit(&slot->space, memory_order_acquire);
    (void)pthread_mutex_lock(&space->lock);
    if (kve_slot_get(index, instance) == slot &&
        atomic_load_explicit(&slot->space, memory_order_acquire) == space)
        return slot;
    (void)pthread_mutex_unlock(&space->lock);
    return NULL;
}

struct kve_inst *
kve_inst_lock(kve_index *index, kve_instance instance)
{
    struct kve_slot *slot = lock_slot(index, instance);
    struct kve_inst *inst;

    if (slot == NULL)
        return NULL;
    inst = (instance & KVE_TWIN) != 0
        ? slot->twin
        : atomic_load_explicit(&slot->inst, memory_order_relaxed);
    if (inst == NULL)
        (void)pthread_mutex_unlock(
            &atomic_load_explicit(&slot->space, memory_order_relaxed)->lock);
    return inst;
}

/* ---- add ---- */

/* A slot for a new rank, in no list yet. */
static kve_status
reserve(kve_index *index, const struct kve_instance_spec *spec,
    struct kve_slot **ret_slot, kve_instance *ret_instance,
    struct kve_error *err)
{
    struct kve_worker *worker = kve_worker_find(index, spec->ns, spec->worker);
    struct kve_slot *slot = kve_rank_find(worker, spec->rank);

    if (slot != NULL) {
        *ret_instance =
            atomic_load_explicit(&slot->handle, memory_order_relaxed);
        return kve_fail(err, KVE_E_IN_USE,
            "rank %u of this worker is there already; drop it first, or use "
            "the instance that was returned",
            spec->rank);
    }
    if (index->n_instances == index->opts.max_instances)
        return kve_fail(err, KVE_E_LIMIT,
            "%u instances are there already; raise max_instances",
            index->n_instances);
    if (worker == NULL)
        worker = kve_worker_make(index, spec->ns, spec->worker);
    if (worker == NULL || !kve_rank_room(index, worker) ||
        (slot = kve_index_slot_take(index)) == NULL) {
        if (worker != NULL)
            kve_worker_leave(index, worker);
        return KVE_E_NOMEM;
    }
    slot->home = worker;
    slot->worker = worker->name;
    slot->rank = spec->rank;
    *ret_slot = slot;
    return KVE_OK;
}

static void
begin_slot(struct kve_slot *slot, const struct kve_instance_spec *spec)
{
    const kve_index *index = slot->space->index;

    slot->generation++;
    slot->counting = spec->counting != KVE_COUNTING_DEFAULT
        ? spec->counting
        : index->opts.counting;
    for (size_t i = 0; i < KVE_INDEX_COUNTERS; i++)
        atomic_store_explicit(&slot->counters->n[i], 0, memory_order_relaxed);
}

static kve_status
add(struct kve_space *space, const struct kve_instance_spec *spec,
    kve_instance *ret_instance, struct kve_error *err)
{
    kve_index *index = space->index;
    struct kve_slot *slot = NULL;
    struct kve_inst *inst;
    uint64_t handle;
    kve_status status;

    kve_index_lock(index);
    status = reserve(index, spec, &slot, ret_instance, err);
    kve_index_unlock(index);
    if (slot == NULL)
        return status;

    atomic_store_explicit(&slot->space, space, memory_order_release);
    begin_slot(slot, spec);
    inst = kve_inst_create(slot, slot->counting == KVE_COUNTING_COPIES);
    if (inst == NULL) {
        struct kve_worker *worker = slot->home;

        kve_index_lock(index);
        slot->generation--;
        kve_index_slot_give(index, slot);
        kve_worker_leave(index, worker);
        kve_index_unlock(index);
        return KVE_E_NOMEM;
    }
    kve_inst_show(slot, inst);
    space->n_instances++;
    handle = (uint64_t)slot->generation << 32 | (slot->index + 1);
    kve_index_lock(index);
    kve_rank_add(slot->home, slot);
    atomic_store_explicit(&slot->handle, handle, memory_order_release);
    kve_index_unlock(index);
    *ret_instance = handle;
    return KVE_OK;
}

/* What the smallest life needs, with a slab around it. */
#define ADD_BYTES (2 * (size_t)KVE_SLAB_SIZE)

kve_status
kve_index_add(kve_index *index, const struct kve_instance_spec *given,
    kve_instance *ret_instance, struct kve_error *err)
{
    const size_t min =
        offsetof(struct kve_instance_spec, counting) + sizeof(uint32_t);
    struct kve_instance_spec spec;
    struct kve_space *space;
    kve_status status = kve_opts_read(
        given, min, &spec, sizeof(spec), "kve_instance_spec", err);

    if (status != KVE_OK)
        return status;
    if (spec.worker == NULL)
        return kve_fail(err, KVE_E_INVAL,
            "worker is missing; give the text that names the engine");
    if (spec.counting > KVE_COUNTING_SET)
        return kve_fail(err, KVE_E_INVAL,
            "counting is %u; accepted are 0 (of the index), 1 (copies) and 2 "
            "(set)",
            spec.counting);
    space = kve_space_get(index, spec.ns);
    if (space == NULL)
        return kve_fail(err, KVE_E_NOT_FOUND,
            "there is no namespace %u; kve_index_namespace() makes one",
            spec.ns);

    (void)pthread_mutex_lock(&space->lock);
    status = add(space, &spec, ret_instance, err);
    /* A newcomer is worth more than the oldest runs. */
    if (status == KVE_E_NOMEM && index->opts.max_bytes != 0 &&
        kve_evict(space, ADD_BYTES)) {
        kve_pool_settle(space->pool);
        status = add(space, &spec, ret_instance, err);
    }
    kve_space_unlock(space);
    if (status == KVE_E_NOMEM)
        return kve_fail(err, KVE_E_NOMEM,
            "out of memory: an instance; max_bytes is %llu (0: none)",
            (unsigned long long)index->opts.max_bytes);
    return status;
}

static char *
copy_text(kve_index *index, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = kve_index_alloc(index, size);

    if (copy != NULL)
        memcpy(copy, text, size);
    return copy;
}

kve_status
kve_index_rank(kve_index *index, kve_instance instance, uint32_t rank,
    kve_instance *ret_instance, struct kve_error *err)
{
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    struct kve_slot *slot;
    kve_instance found = 0;
    char *name = NULL;
    size_t size = 0;
    kve_status status = KVE_OK;

    kve_index_lock(index);
    slot = kve_slot_get(index, instance);
    if (slot != NULL && slot->home != NULL) {
        struct kve_slot *other = kve_rank_find(slot->home, rank);

        spec.ns = slot->home->ns;
        spec.rank = rank;
        spec.counting = slot->counting;
        if (other != NULL) {
            found = atomic_load_explicit(&other->handle, memory_order_relaxed);
        } else {
            size = strlen(slot->worker) + 1;
            name = copy_text(index, slot->worker);
        }
    }
    kve_index_unlock(index);

    if (found != 0) {
        *ret_instance = found;
    } else if (size == 0) {
        status = kve_fail(err, KVE_E_NOT_FOUND,
            "there is no instance %llx; it was dropped, or never added",
            (unsigned long long)instance);
    } else if (name == NULL) {
        status = kve_fail_nomem(err, "another rank of a worker");
    } else {
        spec.worker = name;
        status = kve_index_add(index, &spec, ret_instance, err);
        if (status == KVE_E_IN_USE)
            status = KVE_OK; /* somebody else was quicker */
    }
    kve_index_free(index, name, size);
    return status;
}

/* ---- drop, find ---- */

static void
fold_counters(kve_index *index, const struct kve_slot *slot)
{
    for (size_t i = 0; i < KVE_INDEX_COUNTERS; i++)
        atomic_fetch_add_explicit(&index->counters.n[i],
            atomic_load_explicit(&slot->counters->n[i], memory_order_relaxed),
            memory_order_relaxed);
}

static void
drop(struct kve_space *space, struct kve_slot *slot)
{
    kve_index *index = space->index;
    struct kve_inst *twin = slot->twin;

    kve_index_lock(index);
    /* In one step for kve_index_counter(): not both, and not neither. */
    fold_counters(index, slot);
    atomic_store_explicit(&slot->handle, 0, memory_order_release);
    kve_rank_remove(index, slot->home, slot);
    kve_index_unlock(index);
    slot->twin = NULL;
    kve_inst_show(slot, NULL);
    if (twin != NULL)
        kve_inst_retire(twin);
    space->n_instances--;
    kve_index_lock(index);
    kve_index_slot_give(index, slot);
    kve_index_unlock(index);
}

kve_status
kve_index_drop(kve_index *index, kve_instance instance, struct kve_error *err)
{
    struct kve_slot *slot =
        (instance & KVE_TWIN) != 0 ? NULL : lock_slot(index, instance);
    struct kve_space *space;

    if (slot == NULL)
        return kve_fail(err, KVE_E_NOT_FOUND,
            "there is no instance %llx; it was dropped, or never added",
            (unsigned long long)instance);
    space = atomic_load_explicit(&slot->space, memory_order_relaxed);
    drop(space, slot);
    kve_space_unlock(space);
    return KVE_OK;
}

/* The first rank of a worker, or NULL. */
static struct kve_slot *
first_rank(const kve_index *index, kve_namespace ns, const char *name)
{
    struct kve_worker *worker;
    struct kve_slot *slot;

    kve_index_lock(index);
    worker = kve_worker_find(index, ns, name);
    slot = worker == NULL || worker->n == 0 ? NULL : worker->ranks[0];
    kve_index_unlock(index);
    return slot;
}

kve_status
kve_index_drop_worker(kve_index *index, kve_namespace ns, const char *worker,
    size_t *ret_n, struct kve_error *err)
{
    struct kve_space *space = kve_space_get(index, ns);
    struct kve_slot *slot;
    size_t n = 0;

    if (space == NULL || worker == NULL)
        return kve_fail(err, space == NULL ? KVE_E_NOT_FOUND : KVE_E_INVAL,
            "there is no namespace %u, or worker is missing", ns);
    (void)pthread_mutex_lock(&space->lock);
    while ((slot = first_rank(index, ns, worker)) != NULL) {
        drop(space, slot);
        n++;
    }
    kve_space_unlock(space);
    if (n == 0)
        return kve_fail(err, KVE_E_NOT_FOUND,
            "namespace %u has no worker of this name", ns);
    if (ret_n != NULL)
        *ret_n = n;
    return KVE_OK;
}

kve_instance
kve_index_find(
    const kve_index *index, kve_namespace ns, const char *worker, uint32_t rank)
{
    struct kve_slot *slot;
    kve_instance instance = 0;

    if (worker == NULL)
        return 0;
    kve_index_lock(index);
    slot = kve_rank_find(kve_worker_find(index, ns, worker), rank);
    if (slot != NULL)
        instance = atomic_load_explicit(&slot->handle, memory_order_relaxed);
    kve_index_unlock(index);
    return instance;
}
