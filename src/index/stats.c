/*
 * stats.c - what an index, a namespace or an instance is made of.
 *
 * Sizes are read under the lock of the namespace they belong to, counters
 * without any lock: they only grow, and the slot's handle says before and
 * after whether they were the instance's.
 */
#include "index/run.h"

#include <stddef.h>
#include <string.h>

/* There is room for every counter of the table. */
#define X(name, number, text, help)                               \
    _Static_assert(number >= KVE_INDEX_COUNTER_BASE &&            \
            number < KVE_INDEX_COUNTER_BASE + KVE_INDEX_COUNTERS, \
        "room for " text);
KVE_INDEX_COUNTER_MAP(X)
#undef X

void
kve_index_stats_init(struct kve_index_stats *stats)
{
    *stats = (struct kve_index_stats)KVE_INDEX_STATS_INIT;
}

/* ---- sizes ---- */

/* Tidying up what nobody sees is left to others: this is a look only. */
static void
unlock_space(struct kve_space *space)
{
    (void)pthread_mutex_unlock(&space->lock);
}

static void
add_life(struct kve_index_stats *stats, const struct kve_inst *inst)
{
    for (uint32_t i = 0; i < inst->n_scopes; i++) {
        const struct kve_scope *scope = inst->scopes[i];

        if (scope->tier == KVE_TIER_BRIDGE)
            continue;
        stats->residencies[scope->tier] += scope->held;
        stats->copies += inst->counts ? scope->copies : scope->held;
        stats->waiting += scope->waiting;
        stats->hash_only += scope->loose;
    }
}

static void
add_space(struct kve_index_stats *stats, struct kve_space *space)
{
    struct kve_pool_use use;

    (void)pthread_mutex_lock(&space->lock);
    use = kve_pool_use(space->pool);
    stats->bytes += use.bytes;
    stats->limbo += use.limbo;
    stats->blocks += space->n_blocks;
    stats->runs += space->n_runs;
    stats->instances += space->n_instances;
    stats->namespaces++;
    for (uint32_t id = 1; id < space->insts.next; id++) {
        const struct kve_inst *inst = kve_dir_get(&space->insts, id);

        if (inst != NULL && inst->visible)
            add_life(stats, inst);
    }
    unlock_space(space);
}

kve_status
kve_index_get_stats(
    const kve_index *index, kve_namespace ns, struct kve_index_stats *ret_stats)
{
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;
    size_t given = ret_stats->struct_size;
    uint32_t n = atomic_load_explicit(&index->n_spaces, memory_order_acquire);

    /* 0 means the first release, as everywhere. */
    if (given == 0)
        given = offsetof(struct kve_index_stats, namespaces) + sizeof(uint64_t);
    if (given < sizeof(given))
        return KVE_E_INVAL;
    if (ns > n)
        return KVE_E_NOT_FOUND;
    for (uint32_t i = 1; i <= n; i++)
        if (ns == 0 || ns == i)
            add_space(&stats, kve_space_get(index, i));
    if (ns == 0) {
        stats.bytes =
            atomic_load_explicit(&index->mem.bytes, memory_order_relaxed);
        stats.limbo =
            atomic_load_explicit(&index->mem.limbo, memory_order_relaxed);
    }
    stats.max_bytes = index->opts.max_bytes;
    stats.struct_size = given;
    memcpy(ret_stats, &stats, given < sizeof(stats) ? given : sizeof(stats));
    return KVE_OK;
}

/* ---- one instance ---- */

static void
read_instance(struct kve_index_instance *ret, const struct kve_inst *inst,
    kve_instance instance)
{
    const struct kve_slot *slot = inst->slot;
    bool is_twin = (instance & KVE_TWIN) != 0;
    uint32_t n_sizes = inst->n_sizes;

    memset(ret, 0, sizeof(*ret));
    ret->instance = instance;
    ret->ns = inst->space->id;
    ret->worker = slot->worker;
    ret->rank = slot->rank;
    ret->counting = is_twin ? KVE_COUNTING_COPIES : slot->counting;
    ret->twin = !is_twin && slot->twin != NULL;
    for (uint32_t i = 0; i < inst->n_scopes; i++) {
        const struct kve_scope *scope = inst->scopes[i];

        if (scope->tier == KVE_TIER_BRIDGE)
            continue;
        ret->blocks[scope->tier] += scope->held;
        ret->hash_only += scope->loose;
        ret->waiting += scope->waiting;
    }
    ret->batches = inst->batches;
    memcpy(ret->block_sizes, inst->sizes,
        (n_sizes < 8 ? n_sizes : 8) * sizeof(inst->sizes[0]));
    ret->n_block_sizes = n_sizes;
}

kve_status
kve_index_get_instance(const kve_index *index, kve_instance instance,
    struct kve_index_instance *ret)
{
    struct kve_inst *inst = kve_inst_lock((kve_index *)index, instance);

    if (inst == NULL)
        return KVE_E_NOT_FOUND;
    read_instance(ret, inst, instance);
    unlock_space(inst->space);
    return KVE_OK;
}

static void
read_group(struct kve_index_group *ret, const struct kve_group_info *info)
{
    memset(ret, 0, sizeof(*ret));
    ret->group.value = info->group;
    ret->group.set = true;
    if (info->kind != NULL) {
        ret->kind.data = info->kind;
        ret->kind.len = info->kind_len;
    }
    ret->block_size =
        atomic_load_explicit(&info->block_size, memory_order_relaxed);
    ret->window = atomic_load_explicit(&info->window, memory_order_relaxed);
    ret->ignored = atomic_load_explicit(&info->need, memory_order_relaxed) ==
        KVE_NEED_NONE;
    ret->sparse = info->sparse;
}

size_t
kve_index_groups(const kve_index *index, kve_instance instance,
    struct kve_index_group *groups, size_t cap)
{
    struct kve_inst *inst = kve_inst_lock((kve_index *)index, instance);
    const struct kve_groups *known;
    size_t n = 0;

    if (inst == NULL)
        return 0;
    known = atomic_load_explicit(&inst->groups, memory_order_relaxed);
    if (known != NULL)
        n = atomic_load_explicit(&known->n, memory_order_relaxed);
    for (size_t i = 0; i < n && i < cap; i++)
        read_group(&groups[i], &known->info[i]);
    unlock_space(inst->space);
    return n;
}

/* ---- all instances; under index.lock, so that none comes or goes ---- */

size_t
kve_index_instances(const kve_index *index, kve_namespace ns,
    kve_instance *instances, size_t cap)
{
    size_t n = 0;

    kve_index_lock(index);
    for (uint32_t i = 0; i < index->n_slots; i++) {
        const struct kve_slot *slot = kve_slot_at(index, i);
        kve_instance handle =
            atomic_load_explicit(&slot->handle, memory_order_relaxed);
        const struct kve_space *space =
            atomic_load_explicit(&slot->space, memory_order_relaxed);

        if (handle == 0 || (ns != 0 && space->id != ns))
            continue;
        if (n < cap)
            instances[n] = handle;
        n++;
    }
    kve_index_unlock(index);
    return n;
}

/* ---- counters ---- */

static uint64_t
get_count(const struct kve_index_counters *counters, unsigned i)
{
    return atomic_load_explicit(&counters->n[i], memory_order_relaxed);
}

static uint64_t
sum_of_all(const kve_index *index, unsigned at)
{
    uint64_t sum;
    uint32_t n;

    kve_index_lock(index);
    sum = get_count(&index->counters, at);
    for (uint32_t i = 0; i < index->n_slots; i++) {
        const struct kve_slot *slot = kve_slot_at(index, i);

        if (atomic_load_explicit(&slot->handle, memory_order_relaxed) != 0)
            sum += get_count(slot->counters, at);
    }
    n = atomic_load_explicit(&index->n_spaces, memory_order_relaxed);
    for (uint32_t i = 1; i <= n; i++)
        sum += get_count(kve_space_get(index, i)->no_slot->counters, at);
    kve_index_unlock(index);
    return sum;
}

uint64_t
kve_index_counter(
    const kve_index *index, kve_instance instance, unsigned counter)
{
    unsigned at = counter - KVE_INDEX_COUNTER_BASE;
    const struct kve_slot *slot;
    uint64_t n;

    if (at >= KVE_INDEX_COUNTERS)
        return 0;
    if (instance == 0)
        return sum_of_all(index, at);
    slot = kve_slot_get(index, instance);
    if (slot == NULL)
        return 0;
    n = atomic_load_explicit(&slot->counters->n[at], memory_order_acquire);
    /* Dropped meanwhile: the number may be somebody else's. */
    return kve_slot_get(index, instance) == slot ? n : 0;
}
