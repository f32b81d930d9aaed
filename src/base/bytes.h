/*
 * bytes.h - big-endian numbers in memory that need not be aligned.
 */
#ifndef KVE_BASE_BYTES_H
#define KVE_BASE_BYTES_H

#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define KVE_BE16(x) (x)
#define KVE_BE32(x) (x)
#define KVE_BE64(x) (x)
#else
#define KVE_BE16(x) __builtin_bswap16(x)
#define KVE_BE32(x) __builtin_bswap32(x)
#define KVE_BE64(x) __builtin_bswap64(x)
#endif

static inline uint16_t
kve_get16(const uint8_t *p)
{
    uint16_t x;

    memcpy(&x, p, sizeof(x));
    return KVE_BE16(x);
}

static inline uint32_t
kve_get32(const uint8_t *p)
{
    uint32_t x;

    memcpy(&x, p, sizeof(x));
    return KVE_BE32(x);
}

static inline uint64_t
kve_get64(const uint8_t *p)
{
    uint64_t x;

    memcpy(&x, p, sizeof(x));
    return KVE_BE64(x);
}

static inline void
kve_put16(uint8_t *p, uint16_t x)
{
    x = KVE_BE16(x);
    memcpy(p, &x, sizeof(x));
}

static inline void
kve_put32(uint8_t *p, uint32_t x)
{
    x = KVE_BE32(x);
    memcpy(p, &x, sizeof(x));
}

static inline void
kve_put64(uint8_t *p, uint64_t x)
{
    x = KVE_BE64(x);
    memcpy(p, &x, sizeof(x));
}

#endif
