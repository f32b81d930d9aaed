/*
 * arena.c - see arena.h.
 */
#include "wire/arena.h"

#include "base/alloc.h"

#define FIRST_BLOCK ((size_t)16 * 1024)
#define HEAD KVE_ARENA_HEAD

static void
open_block(struct kve_arena *arena)
{
    struct kve_arena_block *block = arena->blocks;

    arena->at = block == NULL ? NULL : (uint8_t *)block + HEAD;
    arena->end = block == NULL ? NULL : arena->at + block->size;
}

static void
drop_newest(struct kve_arena *arena)
{
    struct kve_arena_block *block = arena->blocks;

    arena->blocks = block->next;
    arena->total -= block->size + HEAD;
    kve_mem_free(block);
}

void
kve_arena_release(struct kve_arena *arena)
{
    while (arena->blocks != NULL)
        drop_newest(arena);
    open_block(arena);
    arena->want = 0;
}

void
kve_arena_merge(struct kve_arena *arena)
{
    size_t all = arena->total;

    kve_arena_release(arena);
    arena->want = all;
}

void *
kve_arena_grow(struct kve_arena *arena, size_t size)
{
    /* Never less than was held before: the number of blocks stays small. */
    size_t want = arena->want > arena->total ? arena->want : arena->total;

    if (want < FIRST_BLOCK)
        want = FIRST_BLOCK;
    if (size > SIZE_MAX - 64)
        return NULL;
    if (want < size)
        want = size;

    struct kve_arena_block *block = kve_mem_alloc(HEAD + want);
    if (block == NULL && want > size) {
        want = size;
        block = kve_mem_alloc(HEAD + want);
    }
    if (block == NULL)
        return NULL;
    block->next = arena->blocks;
    block->size = want;
    arena->blocks = block;
    arena->total += HEAD + want;
    arena->want = 0;
    open_block(arena);

    void *p = arena->at;
    arena->at += size;
    return p;
}

void
kve_arena_return(struct kve_arena *arena, struct kve_arena_mark mark)
{
    while (arena->blocks != mark.block)
        drop_newest(arena);
    open_block(arena);
    if (mark.at != NULL)
        arena->at = mark.at;
}
