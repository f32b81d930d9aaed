/*
 * attacks.h - hostile streams, a limit in bytes, and no memory.
 */
#ifndef KVE_TEST_ATTACKS_H
#define KVE_TEST_ATTACKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Every hostile stream there is, for this many hashes each, in an index of so
 * many bytes: it stays below, counts, and says nothing that was not stored. */
void limits_attack(uint64_t max_bytes, uint64_t hashes);

/* Random streams in small worlds, beside the reference, in an index that is
 * kept full by others. */
void limits_compare(uint64_t streams);

/* A mixture of all streams, so many events, while allocations fail: one after
 * another, alone and with those that follow. */
void limits_starve(uint64_t events);

/* The same where the n-th allocation fails, alone or with those that follow for
 * a while; returns whether there were so many. */
bool limits_starve_once(uint64_t n, bool for_a_while, uint64_t events);

/* Two namespaces that share a budget, so many times. */
void limits_share(uint64_t max_bytes, unsigned times);

#endif
