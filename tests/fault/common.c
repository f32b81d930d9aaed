/*
 * common.c - what every process of a run uses; see world.h.
 */
#include "world.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

uint64_t
mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t
draw(struct rng *rng, uint64_t n)
{
    rng->state += UINT64_C(0x9e3779b97f4a7c15);
    return mix64(rng->state) % n;
}

bool
chance(struct rng *rng, unsigned percent)
{
    return draw(rng, 100) < percent;
}

uint64_t
span(struct rng *rng, uint64_t a, uint64_t b)
{
    return a + draw(rng, b - a + 1);
}

void
violation(struct world *world, const char *fmt, ...)
{
    va_list ap;

    if (atomic_flag_test_and_set(&world->failing))
        return;
    va_start(ap, fmt);
    (void)vsnprintf(world->violation, sizeof(world->violation), fmt, ap);
    va_end(ap);
    atomic_store(&world->failed, true);
}

int64_t
now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void
sleep_us(unsigned us)
{
    struct timespec time = { us / 1000000, (long)(us % 1000000) * 1000 };

    if (us > 0)
        (void)nanosleep(&time, NULL);
}
