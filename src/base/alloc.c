/*
 * alloc.c - see alloc.h.
 *
 * The fault counters cost one relaxed load when they are off; the count of
 * live blocks is kept in test builds only, so that shipped code shares no
 * cache line between threads that allocate.
 */
#include "base/alloc.h"

#include <kvevents/context.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void *
default_realloc(void *ctx, void *p, size_t size)
{
    (void)ctx;
    if (size == 0) {
        free(p);
        return NULL;
    }
    return realloc(p, size);
}

static struct kve_allocator the_allocator = { sizeof(struct kve_allocator),
    default_realloc, NULL };
static atomic_bool allocator_used;

atomic_bool kve_mem_armed;
static atomic_uint_fast64_t asked;
static atomic_uint_fast64_t fail_at;
static atomic_bool fail_rest;
static atomic_bool failed;

#ifdef KVE_TESTING
static atomic_int_fast64_t live;
#define COUNT_LIVE(n) atomic_fetch_add_explicit(&live, n, memory_order_relaxed)
#else
#define COUNT_LIVE(n) ((void)0)
#endif

bool
kve_mem_must_fail(void)
{
    uint64_t n = atomic_fetch_add(&asked, 1) + 1;
    uint64_t at = atomic_load(&fail_at);
    bool now = n == at || (n > at && atomic_load(&fail_rest));
    if (now)
        atomic_store(&failed, true);
    return now;
}

static void
note_use(void)
{
    if (!atomic_load_explicit(&allocator_used, memory_order_relaxed))
        atomic_store(&allocator_used, true);
}

static void *
get(void *p, size_t size)
{
    if (kve_mem_inject())
        return NULL;
    note_use();

    void *got = the_allocator.resize(the_allocator.ctx, p, size > 0 ? size : 1);
    if (got != NULL && p == NULL)
        COUNT_LIVE(1);
    return got;
}

void *
kve_mem_alloc(size_t size)
{
    return get(NULL, size);
}

void *
kve_mem_zalloc(size_t n, size_t size)
{
    void *p = kve_mem_array(NULL, n, size);

    if (p != NULL)
        memset(p, 0, n * size);
    return p;
}

void *
kve_mem_realloc(void *p, size_t size)
{
    return get(p, size);
}

void *
kve_mem_array(void *p, size_t n, size_t size)
{
    if (size != 0 && n > SIZE_MAX / size)
        return NULL;
    return get(p, n * size);
}

char *
kve_mem_strdup(const char *text)
{
    size_t size = text == NULL ? 0 : strlen(text) + 1;
    char *copy = text == NULL ? NULL : kve_mem_alloc(size);

    if (copy != NULL)
        memcpy(copy, text, size);
    return copy;
}

void
kve_mem_free(void *p)
{
    if (p == NULL)
        return;
    COUNT_LIVE(-1);
    (void)the_allocator.resize(the_allocator.ctx, p, 0);
}

bool
kve_mem_map_real(void)
{
    return the_allocator.resize == default_realloc;
}

size_t
kve_mem_map_cost(size_t size, size_t align)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    if (kve_mem_map_real())
        return (size + page - 1) / page * page;
    return size + align + sizeof(void *);
}

/* Alignment is had by mapping more and giving the ends back. */
static void *
map_pages(size_t size, size_t align)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t want = kve_mem_map_cost(size, align);
    size_t all = align > page ? want + align - page : want;
    char *p = all < size ? MAP_FAILED
                         : mmap(NULL, all, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return NULL;

    size_t before = (align - (uintptr_t)p % align) % align;
    if (before > 0)
        (void)munmap(p, before);
    if (all - before > want)
        (void)munmap(p + before + want, all - before - want);
    return p + before;
}

/* What was really allocated stands right before what is handed out. */
static void *
map_with_allocator(size_t size, size_t align)
{
    size_t all = kve_mem_map_cost(size, align);
    char *p =
        all < size ? NULL : the_allocator.resize(the_allocator.ctx, NULL, all);

    if (p == NULL)
        return NULL;

    char *at = p + sizeof(void *);
    at += (align - (uintptr_t)at % align) % align;
    memcpy(at - sizeof(void *), &p, sizeof(p));
    return at;
}

void *
kve_mem_map(size_t size, size_t align)
{
    if (kve_mem_inject())
        return NULL;
    note_use();

    void *p = kve_mem_map_real() ? map_pages(size, align)
                                 : map_with_allocator(size, align);
    if (p != NULL)
        COUNT_LIVE(1);
    return p;
}

void
kve_mem_unmap(void *p, size_t size)
{
    void *all;

    if (p == NULL)
        return;
    COUNT_LIVE(-1);
    if (kve_mem_map_real()) {
        (void)munmap(p, kve_mem_map_cost(size, 1));
        return;
    }
    memcpy(&all, (char *)p - sizeof(void *), sizeof(all));
    (void)the_allocator.resize(the_allocator.ctx, all, 0);
}

void
kve_mem_fail_at(uint64_t n, bool from_then_on)
{
    atomic_store(&kve_mem_armed, false);
    atomic_store(&asked, 0);
    atomic_store(&failed, false);
    atomic_store(&fail_at, n);
    atomic_store(&fail_rest, from_then_on);
    atomic_store(&kve_mem_armed, n != 0);
}

uint64_t
kve_mem_asked(void)
{
    return atomic_load(&asked);
}

bool
kve_mem_failed(void)
{
    return atomic_load(&failed);
}

int64_t
kve_mem_live(void)
{
#ifdef KVE_TESTING
    return atomic_load(&live);
#else
    return 0;
#endif
}

kve_status
kve_allocator_set(const struct kve_allocator *allocator)
{
    if (allocator == NULL || allocator->resize == NULL ||
        allocator->struct_size < sizeof(struct kve_allocator))
        return KVE_E_INVAL;
    if (atomic_load(&allocator_used))
        return KVE_E_IN_USE;
    the_allocator = *allocator;
    return KVE_OK;
}
