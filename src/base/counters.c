/*
 * counters.c - see counters.h and kvevents/counters.h.
 */
#include "base/counters.h"

#include <stddef.h>

static const struct {
    unsigned number;
    const char *name;
    const char *help;
} table[] = {
#define X(name, number, text, help) { number, text, help },
    KVE_PUB_COUNTER_MAP(X) KVE_SUB_COUNTER_MAP(X) KVE_INDEX_COUNTER_MAP(X)
        KVE_INGEST_COUNTER_MAP(X) KVE_HTTP_COUNTER_MAP(X)
#undef X
};

#define N_TABLE (sizeof(table) / sizeof(table[0]))

/* The arrays have room for every number of the table. */
#define X(name, number, text, help) \
    _Static_assert(number < KVE_PUB_COUNTERS, "room for " text);
KVE_PUB_COUNTER_MAP(X)
#undef X
#define X(name, number, text, help)                           \
    _Static_assert(number >= KVE_SUB_COUNTER_BASE &&          \
            number < KVE_SUB_COUNTER_BASE + KVE_SUB_COUNTERS, \
        "room for " text);
KVE_SUB_COUNTER_MAP(X)
#undef X

const char *
kve_counter_str(unsigned counter)
{
    for (size_t i = 0; i < N_TABLE; i++)
        if (table[i].number == counter)
            return table[i].name;
    return NULL;
}

const char *
kve_counter_help(unsigned counter)
{
    for (size_t i = 0; i < N_TABLE; i++)
        if (table[i].number == counter)
            return table[i].help;
    return NULL;
}

int
kve_counter_at(size_t i)
{
    return i < N_TABLE ? (int)table[i].number : -1;
}

uint64_t
kve_pub_count_get(const struct kve_pub_counters *c, unsigned counter)
{
    return counter < KVE_PUB_COUNTERS
        ? atomic_load_explicit(&c->n[counter], memory_order_relaxed)
        : 0;
}

uint64_t
kve_sub_count_get(const struct kve_sub_counters *c, unsigned counter)
{
    return counter >= KVE_SUB_COUNTER_BASE &&
            counter < KVE_SUB_COUNTER_BASE + KVE_SUB_COUNTERS
        ? atomic_load_explicit(
              &c->n[counter - KVE_SUB_COUNTER_BASE], memory_order_relaxed)
        : 0;
}
