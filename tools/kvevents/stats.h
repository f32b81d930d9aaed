/*
 * stats.h - what watch --stats counts: events by type, medium, group, rank.
 *
 * Names come from strangers, so each table has a fixed number of rows and the
 * last one takes what is over.
 */
#ifndef KVEVENTS_TOOL_STATS_H
#define KVEVENTS_TOOL_STATS_H

#include "out.h"
#include "roster.h"

#include <kvevents/subscriber.h>

#define STATS_ROWS 64

struct stats_row {
    char name[48];
    size_t len;
    uint64_t events;
    uint64_t blocks;
    uint64_t tokens;
};

struct stats_table {
    size_t n;
    struct stats_row rows[STATS_ROWS];
};

struct stats {
    struct stats_table types;
    struct stats_table media;
    struct stats_table groups;
    struct stats_table ranks;
};

/* Count the events of a batch, and leave it at its first one. */
void stats_add(struct stats *stats, kve_batch *batch);

/*
 * Write all, with every counter of sub, as a table or as one JSON line; where
 * the roster has several sources, also how each of them is and those of its
 * counters that are not zero.
 */
void stats_write_text(struct out *out, const struct stats *stats,
    const kve_subscriber *sub, const struct roster *roster);
void stats_write_json(struct out *out, const struct stats *stats,
    const kve_subscriber *sub, const struct roster *roster);

#endif
