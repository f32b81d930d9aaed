/*
 * arena.h - memory for what a batch's events point to.
 *
 * Blocks in a list, filled one after another; nothing in them ever moves, so
 * pointers stay good while the batch grows. Resetting keeps one block: when
 * there were several, they are given back and the next one is made as large
 * as all of them, so that batches of like size soon allocate nothing.
 *
 *   blocks -> [head| used ........ | free ]  -> [head| full ]  -> NULL
 */
#ifndef KVE_WIRE_ARENA_H
#define KVE_WIRE_ARENA_H

#include <stddef.h>
#include <stdint.h>

struct kve_arena_block {
    struct kve_arena_block *next;
    size_t size; /* of the bytes behind this head */
};

struct kve_arena {
    uint8_t *at; /* next free byte of the newest block */
    uint8_t *end;
    struct kve_arena_block *blocks; /* newest first */
    size_t want;                    /* size the next block should have */
    size_t total;                   /* of all blocks, heads included */
};

/* A place to return to. */
struct kve_arena_mark {
    struct kve_arena_block *block;
    uint8_t *at;
};

/* An arena of zeros is empty. */
void kve_arena_release(struct kve_arena *arena);

/* For kve_arena_reset() only. */
void kve_arena_merge(struct kve_arena *arena);

#define KVE_ARENA_HEAD ((sizeof(struct kve_arena_block) + 15) & ~(size_t)15)

/* Everything handed out is gone. */
static inline void
kve_arena_reset(struct kve_arena *arena)
{
    if (arena->blocks != NULL && arena->blocks->next == NULL)
        arena->at = (uint8_t *)arena->blocks + KVE_ARENA_HEAD;
    else
        kve_arena_merge(arena);
}

/* For kve_arena_get() only; size is a multiple of 8. */
void *kve_arena_grow(struct kve_arena *arena, size_t size);

/*
 * size bytes, aligned to 8, not cleared; NULL when memory is short. size is
 * made of a count that was checked against the input, so rounding it up does
 * not overflow.
 */
static inline void *
kve_arena_get(struct kve_arena *arena, size_t size)
{
    size = (size + 7) & ~(size_t)7;
    if (__builtin_expect(size <= (size_t)(arena->end - arena->at), 1)) {
        void *p = arena->at;
        arena->at += size;
        return p;
    }
    return kve_arena_grow(arena, size);
}

/* Give back the end of the newest piece: it ends at `end` now. */
static inline void
kve_arena_trim(struct kve_arena *arena, void *end)
{
    uintptr_t at = ((uintptr_t)end + 7) & ~(uintptr_t)7;

    arena->at = (uint8_t *)end + (at - (uintptr_t)end);
}

static inline struct kve_arena_mark
kve_arena_mark(const struct kve_arena *arena)
{
    return (struct kve_arena_mark){ arena->blocks, arena->at };
}

/* What was handed out since the mark is gone. */
void kve_arena_return(struct kve_arena *arena, struct kve_arena_mark mark);

#endif
