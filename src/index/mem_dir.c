/*
 * mem_dir.c - directories: id -> object; see mem.h.
 *
 * A chunk of places has a mapping of its own and never moves; its pages are
 * touched as ids are given, so a new one is not cleared. The list of chunks is
 * copied to grow, behind a head that says it is not to be moved.
 */
#include "index/mem_pool.h"

#include <string.h>

#define TOP_HEAD 16u
#define TOP_MIN 14u /* with its head it fills an object of 128 bytes */
#define CHUNKS_MAX (1u << (32 - KVE_DIR_BITS))

void
kve_dir_init(struct kve_dir *dir, struct kve_pool *pool)
{
    memset(dir, 0, sizeof(*dir));
    dir->pool = pool;
    dir->next = 1;
}

static bool
grow_top(struct kve_dir *dir)
{
    uint32_t cap = dir->cap_chunks == 0 ? TOP_MIN : 2 * dir->cap_chunks;
    _Atomic(void *) **old =
        atomic_load_explicit(&dir->top, memory_order_relaxed);
    char *raw =
        kve_pool_alloc(dir->pool, TOP_HEAD + (size_t)cap * sizeof(*old));
    struct kve_obj head = { KVE_OBJ_FIXED, 0 };

    if (raw == NULL)
        return false;
    memcpy(raw, &head, sizeof(head));

    _Atomic(void *) **top = (_Atomic(void *) **)(raw + TOP_HEAD);
    if (old != NULL)
        memcpy(top, old, dir->n_chunks * sizeof(*old));
    atomic_store_explicit(&dir->top, top, memory_order_release);
    dir->cap_chunks = cap;
    if (old != NULL)
        kve_pool_retire(dir->pool, (char *)old - TOP_HEAD);
    return true;
}

static bool
add_chunk(struct kve_dir *dir)
{
    _Atomic(void *) *chunk;

    if (dir->n_chunks == CHUNKS_MAX)
        return false;
    if (dir->n_chunks == dir->cap_chunks && !grow_top(dir))
        return false;
    chunk = kve_pool_alloc(dir->pool, KVE_DIR_CHUNK * sizeof(*chunk));
    if (chunk == NULL)
        return false;
    atomic_load_explicit(&dir->top, memory_order_relaxed)[dir->n_chunks++] =
        chunk;
    return true;
}

uint32_t
kve_dir_add(struct kve_dir *dir, void *object)
{
    uint32_t id = dir->free_head;

    if (id != 0) {
        void *next =
            atomic_load_explicit(kve_dir_place(dir, id), memory_order_relaxed);

        dir->free_head = (uint32_t)((uintptr_t)next >> 1);
    } else {
        id = dir->next;
        if (id == UINT32_MAX)
            return 0;
        if (id >> KVE_DIR_BITS >= dir->n_chunks && !add_chunk(dir))
            return 0;
        dir->next++;
    }
    dir->n_used++;
    kve_dir_set(dir, id, object);
    return id;
}

void
kve_dir_free(struct kve_dir *dir, uint32_t id)
{
    kve_dir_set(dir, id, (void *)((uintptr_t)dir->free_head << 1 | 1));
    dir->free_head = id;
    dir->n_used--;
}
