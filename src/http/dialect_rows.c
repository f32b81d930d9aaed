/*
 * dialect_rows.c - rows of an answer, by worker.
 *
 * Rows are of instances, the dialects speak of workers with ranks. A table of
 * buckets finds a worker by its name; few workers need none.
 */
#include "http/dialect.h"

#include "base/alloc.h"

#include <string.h>

/* So many ranks are looked through one by one. */
#define FEW 8u

const uint8_t kve_dialect_tiers[KVE_DIALECT_TIERS] = { KVE_TIER_GPU,
    KVE_TIER_CPU, KVE_TIER_DISK, KVE_TIER_REMOTE, KVE_TIER_UNKNOWN };

static bool
make_room(struct kve_http_scratch *scratch, size_t max, size_t buckets)
{
    void *grown;

    if (max > scratch->cap_groups) {
        grown = kve_mem_array(
            scratch->groups, max + max / 2 + 16, sizeof(struct kve_group));
        if (grown == NULL)
            return false;
        scratch->groups = grown;
        scratch->cap_groups = max + max / 2 + 16;
    }
    if (buckets > scratch->cap_buckets) {
        grown = kve_mem_array(scratch->buckets, buckets, sizeof(uint32_t));
        if (grown == NULL)
            return false;
        scratch->buckets = grown;
        scratch->cap_buckets = buckets;
    }
    return true;
}

bool
kve_groups_begin(
    struct kve_groups *groups, struct kve_http_scratch *scratch, size_t max)
{
    size_t buckets = 0;

    if (max >= UINT32_MAX / 4)
        return false;
    if (max > FEW)
        for (buckets = 32; buckets < 2 * max;)
            buckets *= 2;
    if (!make_room(scratch, max, buckets))
        return false;
    memset(groups, 0, sizeof(*groups));
    groups->groups = scratch->groups;
    groups->first = KVE_NO_GROUP;
    groups->last = KVE_NO_GROUP;
    groups->mask = buckets == 0 ? 0 : (uint32_t)buckets - 1;
    if (buckets > 0)
        memset(scratch->buckets, 0xff, buckets * sizeof(uint32_t));
    return true;
}

static bool
same_worker(const struct kve_ingest_row *a, const struct kve_ingest_row *b)
{
    return a->worker == b->worker ||
        (a->worker_json_len == b->worker_json_len &&
            memcmp(a->worker_json, b->worker_json, a->worker_json_len) == 0);
}

static uint32_t
hash_of(const struct kve_ingest_row *who)
{
    uint32_t h = 2166136261u;

    for (uint32_t i = 0; i < who->worker_json_len; i++)
        h = (h ^ (uint8_t)who->worker_json[i]) * 16777619u;
    return h ^ h >> 15;
}

/* The first rank of a worker, or KVE_NO_GROUP; *ret_bucket is where it would
 * be entered. */
static uint32_t
find_worker(const struct kve_groups *groups, const uint32_t *buckets,
    const struct kve_ingest_row *who, uint32_t *ret_bucket)
{
    uint32_t at;

    if (groups->mask == 0) {
        at = groups->first;
        while (at != KVE_NO_GROUP && !same_worker(&groups->groups[at].who, who))
            at = groups->groups[at].next_worker;
        return at;
    }
    at = hash_of(who) & groups->mask;
    while (buckets[at] != KVE_NO_GROUP &&
        !same_worker(&groups->groups[buckets[at]].who, who))
        at = (at + 1) & groups->mask;
    *ret_bucket = at;
    return buckets[at];
}

static bool
has_rank(const struct kve_groups *groups, uint32_t worker, uint32_t rank)
{
    for (uint32_t at = worker; at != KVE_NO_GROUP; at = groups->groups[at].next)
        if (groups->groups[at].who.rank == rank)
            return true;
    return false;
}

static uint32_t
larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Put a rank's numbers to those of its worker. */
static void
sum_up(struct kve_group *worker, const struct kve_index_row *row)
{
    uint32_t gpu = kve_row_gpu(row);
    uint32_t cpu = kve_row_cpu(row);
    uint32_t disk = kve_row_disk(row);

    worker->n_ranks++;
    if (row == NULL)
        return;
    worker->n_device += gpu > 0;
    worker->gpu = larger(worker->gpu, gpu);
    worker->cpu = larger(worker->cpu, cpu);
    worker->disk = larger(worker->disk, disk);
    worker->own_cpu =
        larger(worker->own_cpu, larger(row->alone[KVE_TIER_CPU], cpu - gpu));
    worker->own_disk = larger(worker->own_disk,
        larger(larger(row->alone[KVE_TIER_DISK], row->alone[KVE_TIER_REMOTE]),
            larger(row->alone[KVE_TIER_UNKNOWN], disk - cpu)));
}

void
kve_groups_add(struct kve_groups *groups, struct kve_http_scratch *scratch,
    const struct kve_ingest_row *who, const struct kve_index_row *row)
{
    uint32_t bucket = 0;
    uint32_t worker = find_worker(groups, scratch->buckets, who, &bucket);
    uint32_t at = (uint32_t)groups->n;
    struct kve_group *group = &groups->groups[at];
    struct kve_group *first;
    bool had_device;

    if (at >= scratch->cap_groups ||
        (row == NULL && worker != KVE_NO_GROUP &&
            has_rank(groups, worker, who->rank)))
        return;
    groups->n++;
    memset(group, 0, sizeof(*group));
    group->who = *who;
    group->row = row;
    group->next = KVE_NO_GROUP;
    group->next_worker = KVE_NO_GROUP;
    group->last = at;
    if (worker == KVE_NO_GROUP) {
        if (groups->mask != 0)
            scratch->buckets[bucket] = at;
        if (groups->first == KVE_NO_GROUP)
            groups->first = at;
        else
            groups->groups[groups->last].next_worker = at;
        groups->last = at;
        groups->n_workers++;
        worker = at;
    } else {
        first = &groups->groups[worker];
        groups->groups[first->last].next = at;
        first->last = at;
    }
    first = &groups->groups[worker];
    had_device = first->n_device > 0;
    sum_up(first, row);
    groups->n_device += !had_device && first->n_device > 0;
}
