/*
 * digest.c - see digest.h.
 */
#include "stream/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t
kve_digest(const void *data, size_t len)
{
    return XXH3_64bits(data, len);
}
