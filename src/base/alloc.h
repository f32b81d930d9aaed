/*
 * alloc.h - every allocation of this library goes through here.
 *
 * One place makes three things possible: an allocator of the caller's
 * (kve_allocator_set), a count of bytes that tests and gauges can trust, and
 * a test that makes the n-th allocation fail for every n.
 *
 * kve_mem_free() needs no size: it is the allocator's business. Sizes that
 * come from a multiplication use kve_mem_array(), which refuses to overflow.
 */
#ifndef KVE_BASE_ALLOC_H
#define KVE_BASE_ALLOC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* size bytes, not cleared, or NULL. size 0 is taken as 1. */
void *kve_mem_alloc(size_t size) __attribute__((malloc));

/* n * size bytes of zeros, or NULL (also when n * size overflows). */
void *kve_mem_zalloc(size_t n, size_t size) __attribute__((malloc));

/* Grow or shrink; on failure NULL and p stays. */
void *kve_mem_realloc(void *p, size_t size);

/* Resize an array to n items of size bytes; NULL on failure or overflow. */
void *kve_mem_array(void *p, size_t n, size_t size);

/* A copy of a string; NULL on failure. text NULL gives NULL. */
char *kve_mem_strdup(const char *text) __attribute__((malloc));

/* NULL is allowed and does nothing. */
void kve_mem_free(void *p);

/*
 * A whole mapping of size bytes, aligned to align (a power of two, at least
 * 16); zeroed where kve_mem_map_real(). NULL on failure. It comes from the
 * system, page by page as it is touched, so that what is given back is really
 * gone; with an allocator of the caller's it comes from there, whole, and
 * kve_mem_map_cost() says how much that takes with what alignment loses.
 */
void *kve_mem_map(size_t size, size_t align);
void kve_mem_unmap(void *p, size_t size);
size_t kve_mem_map_cost(size_t size, size_t align);
bool kve_mem_map_real(void);

/*
 * For allocators on top of this one: must this allocation fail, because a test
 * wants it so? One predictable branch while no test does.
 */
extern atomic_bool kve_mem_armed;
bool kve_mem_must_fail(void);

static inline bool
kve_mem_inject(void)
{
    return __builtin_expect(
               atomic_load_explicit(&kve_mem_armed, memory_order_relaxed), 0) &&
        kve_mem_must_fail();
}

/*
 * For tests: the n-th allocation from now on fails (1 is the next one), and
 * with "from then on" every later one too. 0 switches it off. Process-wide.
 */
void kve_mem_fail_at(uint64_t n, bool from_then_on);

/* For tests: allocations asked for since kve_mem_fail_at(), and whether one
 * was made to fail. */
uint64_t kve_mem_asked(void);
bool kve_mem_failed(void);

/* For tests: blocks allocated and not freed. */
int64_t kve_mem_live(void);

#endif
