/*
 * arena.h - all of the library's memory in one place that can be copied.
 *
 * A machine that allocates from here is a value: its memory can be saved,
 * brought back and compared. So a search over schedules goes on from any
 * point it has been at, and knows a point when it comes back to it.
 *
 * One large block for a machine, small ones for what it holds. The place is
 * fixed, so pointers stay right; a block that is freed is filled with zeros,
 * so that equal machines have equal bytes.
 */
#ifndef KVE_TEST_ARENA_H
#define KVE_TEST_ARENA_H

#include <stddef.h>
#include <stdint.h>

/* Make it the process's allocator; before the library is used at all. */
void kve_arena_install(void);

/* Forget everything that was allocated. */
void kve_arena_reset(void);

/* How many small blocks are in use; how many blocks in all. */
size_t kve_arena_small(void);
size_t kve_arena_blocks(void);

/* Bytes that kve_arena_save() may write. They are zeros the first time, and
 * kve_arena_hash() was called since anything changed: it finds out which parts
 * of the arena are in use at all. */
size_t kve_arena_size(void);
void kve_arena_save(void *to);
void kve_arena_load(const void *from);

/*
 * A hash of everything in use. The action ring of a machine holds what was
 * pulled long ago, which is of no consequence: such bytes are named with
 * kve_arena_mask() and count as zeros.
 */
uint64_t kve_arena_hash(void);
void kve_arena_mask(const void *from, size_t len);

/* Where these bytes lie in the large block, or NULL. */
const void *kve_arena_find(const void *bytes, size_t len);

#endif
