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
