/*
 * counters.h - storage of the counters of kvevents/counters.h.
 *
 * One writer at a time for each counter of a subscriber's source, several for
 * a publisher's; any number of readers. All relaxed: a counter orders nothing.
 */
#ifndef KVE_BASE_COUNTERS_H
#define KVE_BASE_COUNTERS_H

#include <kvevents/counters.h>

#include <stdatomic.h>
#include <stdint.h>

#define KVE_PUB_COUNTERS 32 /* room; numbers 0.. */
#define KVE_SUB_COUNTERS 64 /* room; numbers 100.. */
#define KVE_SUB_COUNTER_BASE 100

struct kve_pub_counters {
    _Atomic uint64_t n[KVE_PUB_COUNTERS];
};

struct kve_sub_counters {
    _Atomic uint64_t n[KVE_SUB_COUNTERS];
};

static inline void
kve_pub_count(struct kve_pub_counters *c, enum kve_counter counter, uint64_t n)
{
    atomic_fetch_add_explicit(&c->n[counter], n, memory_order_relaxed);
}

/* One writer: a load and a store are enough. */
static inline void
kve_sub_count(struct kve_sub_counters *c, enum kve_counter counter, uint64_t n)
{
    _Atomic uint64_t *at = &c->n[counter - KVE_SUB_COUNTER_BASE];

    atomic_store_explicit(at,
        atomic_load_explicit(at, memory_order_relaxed) + n,
        memory_order_relaxed);
}

/* 0 for numbers that are not of this table. */
uint64_t kve_pub_count_get(const struct kve_pub_counters *c, unsigned counter);
uint64_t kve_sub_count_get(const struct kve_sub_counters *c, unsigned counter);

#endif
