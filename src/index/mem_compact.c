/*
 * mem_compact.c - slabs that are mostly free are emptied.
 *
 * The sparsest slab of a class is emptied when its objects fit into the others
 * and some room stays there, so that the next objects do not need it back.
 * What was copied is retired as anything else: readers that are inside look at
 * the old place, equal in content because nobody but this writer changes it.
 */
#include "index/mem_pool.h"

#include <string.h>

/* The slab of this class that is worth emptying, or NULL. */
static struct kve_slab *
find_sparse(struct kve_pool *pool, uint32_t cls)
{
    struct kve_class *c = &pool->classes[cls];

    if (c->mask == 0)
        return NULL;

    struct kve_slab *slab = c->lists[__builtin_ctz(c->mask)];
    uint64_t places = (uint64_t)c->n_slabs * slab->n;
    uint64_t elsewhere = c->n_free - (slab->n - slab->n_used);

    if ((slab->flags & KVE_SLAB_PINNED) != 0 ||
        slab->bucket == KVE_SLAB_BUCKETS - 1 ||
        elsewhere < slab->n_live + places / 32)
        return NULL;
    return slab;
}

static struct kve_slab *
next_drain(struct kve_pool *pool)
{
    for (uint32_t i = 0; i < KVE_MEM_CLASSES; i++) {
        struct kve_slab *slab = find_sparse(pool, pool->drain_cls);

        if (slab != NULL) {
            kve_slab_unlist(pool, slab);
            slab->flags = KVE_SLAB_DRAIN;
            pool->classes[slab->cls].n_free -= slab->n - slab->n_used;
            pool->drain = slab;
            pool->drain_at = 0;
            return slab;
        }
        pool->drain_cls = (pool->drain_cls + 1) % KVE_MEM_CLASSES;
    }
    return NULL;
}

/* False when there is no room elsewhere. */
static bool
move(struct kve_pool *pool, struct kve_slab *slab, struct kve_obj *from)
{
    struct kve_obj *to;

    if (from->kind == KVE_OBJ_FIXED)
        return true;
    to = kve_class_take(pool, slab->cls);
    if (to == NULL)
        return false;
    memcpy(to, from, slab->size);
    if (pool->ops.moved != NULL && pool->ops.moved(pool->ops.ctx, from, to))
        kve_pool_retire(pool, from);
    else
        kve_pool_free(pool, to);
    return true;
}

/* The next live object at or behind drain_at, or NULL. */
static struct kve_obj *
next_live(struct kve_pool *pool, struct kve_slab *slab)
{
    for (uint32_t i = pool->drain_at; i < slab->n; i++) {
        uint64_t word = slab->bits[slab->words + i / 64] >> i % 64;

        if (word == 0) {
            i |= 63;
            continue;
        }
        i += (uint32_t)__builtin_ctzll(word);
        pool->drain_at = i + 1;
        return kve_slab_object(slab, i);
    }
    return NULL;
}

/* What is left can not be moved, or waits for readers. */
static void
end_drain(struct kve_pool *pool, struct kve_slab *slab)
{
    pool->drain = NULL;
    if (slab->n_live > 0) {
        slab->flags = KVE_SLAB_PINNED;
        pool->classes[slab->cls].n_free += slab->n - slab->n_used;
        kve_slab_list(pool, slab);
    }
}

bool
kve_pool_compact(struct kve_pool *pool, size_t budget)
{
    size_t done = 0;
    bool more = true;

    while (more && done < budget) {
        struct kve_slab *slab = pool->drain;

        if (slab == NULL)
            slab = next_drain(pool);
        if (slab == NULL) {
            more = false;
            break;
        }

        /* Moving the last object may free the slab. */
        size_t size = slab->size;
        struct kve_obj *from = next_live(pool, slab);
        if (from == NULL || !move(pool, slab, from))
            end_drain(pool, slab);
        else
            done += size;
    }
    kve_pool_settle(pool);
    return more;
}
