/*
 * clock.c - see clock.h.
 */
#include "base/clock.h"

#include <limits.h>
#include <time.h>

int64_t
kve_now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double
kve_unix_time(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int
kve_ms_until(int64_t deadline_ns, int64_t now_ns)
{
    if (deadline_ns == KVE_NEVER)
        return -1;
    if (deadline_ns <= now_ns)
        return 0;

    int64_t ms = (deadline_ns - now_ns + KVE_MS - 1) / KVE_MS;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}
