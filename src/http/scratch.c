/*
 * scratch.c - see scratch.h.
 */
#include "http/scratch.h"

#include "base/alloc.h"

#include <string.h>

/* The first room that is made, in items. */
#define FIRST_CAP 64

/* Room for n items of size bytes; what is there is kept. */
static bool
renew(void **array, size_t *cap, size_t n, size_t size)
{
    size_t more = n < FIRST_CAP ? FIRST_CAP : n + n / 2;
    void *room;

    if (n <= *cap)
        return true;
    room = kve_mem_array(*array, more, size);
    if (room == NULL)
        return false;
    *array = room;
    *cap = more;
    return true;
}

bool
kve_scratch_rows(struct kve_http_scratch *scratch, size_t n)
{
    return renew(
        (void **)&scratch->rows, &scratch->cap_rows, n, sizeof(*scratch->rows));
}

bool
kve_scratch_more(struct kve_http_scratch *scratch, size_t n)
{
    return renew(
        (void **)&scratch->more, &scratch->cap_more, n, sizeof(*scratch->more));
}

bool
kve_scratch_only(struct kve_http_scratch *scratch, size_t n)
{
    return renew(
        (void **)&scratch->only, &scratch->cap_only, n, sizeof(*scratch->only));
}

void
kve_scratch_release(struct kve_http_scratch *scratch)
{
    kve_input_release(&scratch->input);
    kve_mem_free(scratch->rows);
    kve_mem_free(scratch->more);
    kve_mem_free(scratch->only);
    kve_mem_free(scratch->groups);
    kve_mem_free(scratch->buckets);
    memset(scratch, 0, sizeof(*scratch));
}
