/*
 * mem_region.c - slabs from the system, and back.
 *
 * Measured where this was written (a virtual machine, Linux 6.18): a fault of
 * a page of 4 KiB takes 1.6 to 1.9 us, so 26 us a slab and 10 ns a block of an
 * index; a huge page takes 105 to 220 us, so 3 to 7 us a slab. Populating 64
 * KiB at once (MADV_POPULATE_WRITE) saves a tenth, and touches what may never
 * be used: not done. Making one huge page of a region that is half used
 * (MADV_COLLAPSE) takes about 200 us and pays when a third of it was not
 * touched yet. Giving 64 KiB of a huge page back takes 1 to 3 us, of small
 * pages 10 us.
 *
 * Therefore, by how much the namespace has in use:
 *
 *     below 4 MiB     small pages: nothing is lost
 *     to 24 MiB       new regions are huge
 *     from 24 MiB     a region becomes huge when what is not used of it yet
 *                     is at most a thirty-second of all (from 64 MiB on: as
 *                     soon as it is made)
 *
 * and small pages when the budget is nearly used up. A load of 27 MB took 16 ms
 * with small pages alone, 6 with huge ones alone, 7.5 so; of 54 MB 31, 10, 16.
 *
 * With an allocator of the caller's, regions have that many slabs that an
 * eighth of what is in use pays for, and are given back whole.
 */
#include "index/mem_pool.h"

#include <sys/mman.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define HUGE_FROM (4u * 1048576 / KVE_SLAB_SIZE)
#define HUGE_FREELY (24u * 1048576 / KVE_SLAB_SIZE)
#define HUGE_SHARE 32u
#define HUGE_PAYS 10u /* slabs not touched yet */
#define SCAN_MAX 16u

static uint32_t
count(uint32_t mask)
{
    return (uint32_t)__builtin_popcount(mask);
}

static uint32_t
all_slabs(const struct kve_region *region)
{
    return ~UINT32_C(0) >> (KVE_REGION_SLABS - region->n_slabs);
}

static uint32_t
kept_slabs(const struct kve_region *region)
{
    return region->resident & ~region->used;
}

/* ---- lists ---- */

static void
link_region(struct kve_region **list, struct kve_region *region)
{
    region->prev = NULL;
    region->next = *list;
    if (*list != NULL)
        (*list)->prev = region;
    *list = region;
}

static void
unlink_region(struct kve_region **list, struct kve_region *region)
{
    if (region->prev != NULL)
        region->prev->next = region->next;
    else
        *list = region->next;
    if (region->next != NULL)
        region->next->prev = region->prev;
}

/* ---- regions ---- */

static void
drop_region(struct kve_pool *pool, struct kve_region *region)
{
    size_t size = (size_t)region->n_slabs * KVE_SLAB_SIZE;
    uint64_t cost = region->fixed_size
        ? kve_mem_map_cost(size, KVE_SLAB_SIZE)
        : (uint64_t)count(region->resident) * KVE_SLAB_SIZE;

    KVE_UNPOISON(region->base, size);
    kve_mem_unmap(region->base, size);
    kve_mem_free(region);
    kve_pool_discharge(pool, cost + sizeof(*region));
}

static struct kve_region *
make_region(struct kve_pool *pool)
{
    bool real = kve_mem_map_real();
    uint32_t n_slabs = KVE_REGION_SLABS;

    if (!real && pool->n_slabs / 8 < n_slabs)
        n_slabs = pool->n_slabs / 8 + 1;

    size_t size = (size_t)n_slabs * KVE_SLAB_SIZE;
    uint64_t cost = sizeof(struct kve_region) +
        (real ? 0 : kve_mem_map_cost(size, KVE_SLAB_SIZE));
    struct kve_region *region = NULL;

    if (!kve_pool_charge(pool, cost))
        return NULL;
    region = kve_mem_zalloc(1, sizeof(*region));
    if (region == NULL)
        goto fail;
    region->base = kve_mem_map(size, real ? KVE_REGION_SIZE : KVE_SLAB_SIZE);
    if (region->base == NULL)
        goto fail;
    region->n_slabs = n_slabs;
    region->fixed_size = !real;
    if (real) {
        (void)madvise(region->base, size, MADV_NOHUGEPAGE);
    } else {
        region->resident = all_slabs(region);
        pool->n_kept += n_slabs;
    }
    link_region(&pool->avail, region);
    return region;

fail:
    kve_mem_free(region);
    kve_pool_discharge(pool, cost);
    return NULL;
}

static bool
huge_pays(const struct kve_pool *pool, const struct kve_region *region)
{
    uint32_t n_free = region->n_slabs - count(region->resident);

    if (region->fixed_size || region->torn || n_free < HUGE_PAYS)
        return false;
    return pool->n_slabs >= HUGE_FROM &&
        (pool->n_slabs < HUGE_FREELY || n_free <= pool->n_slabs / HUGE_SHARE);
}

/* The last quarter of the budget is for what is needed now: what one pool took
 * early would be missed by another. */
static bool
budget_is_ample(const struct kve_mem_shared *shared, uint64_t cost)
{
    uint64_t bytes = atomic_load_explicit(&shared->bytes, memory_order_relaxed);

    return shared->max_bytes == 0 ||
        bytes + cost <= shared->max_bytes - shared->max_bytes / 4;
}

/* Make one page of a region; it stays as it is when that can not be. */
static void
make_huge(struct kve_pool *pool, struct kve_region *region)
{
    uint32_t n_free = region->n_slabs - count(region->resident);
    uint64_t cost = (uint64_t)n_free * KVE_SLAB_SIZE;

    if (!budget_is_ample(pool->shared, cost) || !kve_pool_charge(pool, cost))
        return;
    if (madvise(region->base, KVE_REGION_SIZE, MADV_HUGEPAGE) != 0 ||
        (region->resident != 0 &&
            madvise(region->base, KVE_REGION_SIZE, MADV_COLLAPSE) != 0)) {
        (void)madvise(region->base, KVE_REGION_SIZE, MADV_NOHUGEPAGE);
        region->torn = true;
        kve_pool_discharge(pool, cost);
        return;
    }
    region->resident = all_slabs(region);
    pool->n_kept += n_free;
    pool->grow = region;
    pool->grow_from = pool->n_slabs;
}

/* The fullest of the first regions that has a slab: one that is kept, or any
 * one. So those that are nearly empty get the chance to become so. */
static struct kve_region *
find_region(const struct kve_pool *pool, bool kept, uint32_t scan_max)
{
    struct kve_region *best = NULL;

    for (struct kve_region *region = pool->avail;
         region != NULL && scan_max > 0; region = region->next, scan_max--) {
        if (kept && kept_slabs(region) == 0)
            continue;
        if (best == NULL || count(region->used) > count(best->used))
            best = region;
    }
    return best;
}

static void *
take_slab(struct kve_pool *pool, struct kve_region *region, uint32_t from)
{
    uint32_t i = (uint32_t)__builtin_ctz(from);

    region->used |= 1u << i;
    pool->n_slabs++;
    if (region->used == all_slabs(region)) {
        unlink_region(&pool->avail, region);
        link_region(&pool->full, region);
        if (pool->grow == region)
            pool->grow = NULL;
    }
    return region->base + (size_t)i * KVE_SLAB_SIZE;
}

/* A slab that was not resident; counted before it is touched. */
static void *
take_new(struct kve_pool *pool, struct kve_region *region)
{
    uint32_t from = all_slabs(region) & ~region->resident;

    if (!kve_pool_charge(pool, KVE_SLAB_SIZE))
        return NULL;
    region->resident |= from & (0 - from);
    return take_slab(pool, region, from);
}

void *
kve_slab_get(struct kve_pool *pool, struct kve_region **ret_region)
{
    uint32_t scan_max = SCAN_MAX;
    struct kve_region *region = NULL;
    void *slab = NULL;

    pool->quiet = 0;
    if (pool->n_kept > 0)
        region = find_region(pool, true, scan_max);
    if (region == NULL) {
        region = find_region(pool, false, scan_max);
        if (region == NULL)
            region = make_region(pool);
        if (region != NULL && huge_pays(pool, region))
            make_huge(pool, region);
        if (region != NULL && kept_slabs(region) == 0)
            slab = take_new(pool, region);
    }
    if (slab == NULL && (region == NULL || kept_slabs(region) == 0))
        region = find_region(pool, true, UINT32_MAX);
    if (slab == NULL && region != NULL) {
        pool->n_kept--;
        slab = take_slab(pool, region, kept_slabs(region));
    }
    *ret_region = region;
    return slab;
}

void
kve_slab_put(struct kve_pool *pool, struct kve_slab *slab)
{
    struct kve_region *region = slab->region;
    uint32_t i = (uint32_t)(((char *)slab - region->base) / KVE_SLAB_SIZE);

    if (region->used == all_slabs(region)) {
        unlink_region(&pool->full, region);
        link_region(&pool->avail, region);
    }
    region->used &= ~(1u << i);
    pool->n_slabs--;
    pool->n_kept++;
    pool->sweep = true;
    KVE_POISON(slab, KVE_SLAB_SIZE);
}

/* ---- giving back ---- */

uint32_t
kve_regions_keep(const struct kve_pool *pool)
{
    return 2 + pool->n_slabs / 32;
}

/* Pages of kept slabs go; those in a row in one call. Without huge pages from
 * now on: the system might bring back what was given. */
static void
tear_region(struct kve_pool *pool, struct kve_region *region)
{
    uint32_t gone = kept_slabs(region);

    if (!region->torn)
        (void)madvise(region->base, KVE_REGION_SIZE, MADV_NOHUGEPAGE);
    region->torn = true;
    region->resident &= ~gone;
    pool->n_kept -= count(gone);
    kve_pool_discharge(pool, (uint64_t)count(gone) * KVE_SLAB_SIZE);
    while (gone != 0) {
        uint32_t from = (uint32_t)__builtin_ctz(gone);
        uint32_t rest = ~(gone >> from);
        uint32_t n = rest == 0 ? 32 : (uint32_t)__builtin_ctz(rest);
        uint32_t run = n == 32 ? ~0u : ((1u << n) - 1) << from;

        (void)madvise(region->base + (size_t)from * KVE_SLAB_SIZE,
            (size_t)n * KVE_SLAB_SIZE, MADV_DONTNEED);
        gone &= ~run;
    }
}

static void
drop_empty(struct kve_pool *pool, uint32_t target)
{
    struct kve_region *next;

    for (struct kve_region *region = pool->avail;
         region != NULL && pool->n_kept > target; region = next) {
        next = region->next;
        if (region->used != 0 || region == pool->grow)
            continue;
        pool->n_kept -= count(region->resident);
        unlink_region(&pool->avail, region);
        drop_region(pool, region);
    }
}

/* The region that has most to give, or NULL. */
static struct kve_region *
find_kept(const struct kve_pool *pool)
{
    struct kve_region *best = NULL;

    for (struct kve_region *region = pool->avail; region != NULL;
         region = region->next) {
        if (region == pool->grow || region->fixed_size ||
            kept_slabs(region) == 0)
            continue;
        if (best == NULL || count(kept_slabs(region)) > count(kept_slabs(best)))
            best = region;
    }
    return best;
}

void
kve_regions_trim(struct kve_pool *pool, uint32_t keep, bool grow)
{
    if (grow || pool->n_slabs < pool->grow_from - pool->grow_from / 8)
        pool->grow = NULL;

    uint32_t growing = pool->grow == NULL ? 0 : count(kept_slabs(pool->grow));
    if (pool->n_kept <= keep + growing)
        return;

    uint32_t target = growing + (keep == 0 ? 0 : keep / 2 + 1);
    drop_empty(pool, target);
    while (pool->n_kept > target) {
        struct kve_region *region = find_kept(pool);

        if (region == NULL)
            break;
        tear_region(pool, region);
    }
}

void
kve_regions_release(struct kve_pool *pool)
{
    struct kve_region **lists[] = { &pool->avail, &pool->full };

    for (int i = 0; i < 2; i++)
        while (*lists[i] != NULL) {
            struct kve_region *region = *lists[i];

            unlink_region(lists[i], region);
            drop_region(pool, region);
        }
}
