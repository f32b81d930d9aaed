/*
 * churn.h - chains that come and go, in numbers that matter for memory.
 */
#ifndef KVE_TEST_CHURN_H
#define KVE_TEST_CHURN_H

#include <kvevents/index.h>

/* Blocks of a chain here, and tokens a block. */
#define CHURN_BLOCKS 4
#define CHURN_TOKENS 16

/* Store or remove chain number n, whose contents and hashes are its own. */
void churn_store(kve_index *index, kve_instance instance, uint64_t n);
void churn_remove(kve_index *index, kve_instance instance, uint64_t n);

/* Tokens of chain n that the instance holds on the GPU. */
uint32_t churn_match(kve_index_reader *reader, kve_namespace ns, uint64_t n);

/* An index with one instance. */
struct churn {
    kve_index *index;
    kve_index_reader *reader;
    kve_namespace ns;
    kve_instance instance;
};

void churn_init(struct churn *churn, uint64_t max_bytes);
void churn_release(struct churn *churn);

/*
 * Store and remove n chains one after the other while `live` of them stay.
 * Neither what the index says it has allocated nor what the process has may
 * grow after a tenth of them.
 */
void churn_run(uint64_t n, uint64_t live);

#endif
