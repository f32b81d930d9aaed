/*
 * roster.h - the sources that watch has seen, and what it calls them.
 *
 * The name stands in remarks: the live endpoint, and of a stream of a socket
 * that several publishers share the topic and the rank behind it:
 *
 *     tcp://10.0.0.1:5557
 *     tcp://127.0.0.1:5557 kv-events/0
 *
 * The prefix stands before lines of text where they could be of several
 * sources: the endpoint when several are followed, the stream when there are
 * streams, both when there are both.
 *
 * A stream whose publisher sends no rank is called by its topic alone, and one
 * with an empty topic "". Names hold nothing that moves the cursor.
 *
 * Here are also the rows of bad messages and the trouble with connecting, of
 * each source (print.h says what for). An entry lives as long as its source.
 */
#ifndef KVEVENTS_TOOL_ROSTER_H
#define KVEVENTS_TOOL_ROSTER_H

#include <kvevents/subscriber.h>

#include <stdbool.h>
#include <stddef.h>

struct seen {
    kve_source_id id;
    kve_source_id parent; /* of a stream; else 0 */
    char *endpoint;
    char *stream; /* topic/rank, or NULL */
    char *name;
    char *prefix;          /* with a blank behind it, or "" */
    unsigned bad_frames;   /* in a row */
    unsigned bad_payloads; /* in a row */
    char trouble[240];     /* with connecting, said last */
    unsigned n_troubles;   /* said since there was a connection */
    char no_snapshot[240]; /* why there is none, said last */
};

struct roster {
    bool several; /* endpoints are followed: prefixes name them */
    int width;    /* of prefixes that name an endpoint */
    size_t n;
    size_t n_streams; /* of them */
    size_t cap;
    struct seen **items; /* by id */
    struct seen unknown; /* for what there is no memory for */
};

/* The entry of a source; it is made when there is none. Never NULL. */
struct seen *roster_get(
    struct roster *roster, const kve_subscriber *sub, kve_source_id source);

/* Whether streams came by a source. */
bool roster_has_streams(const struct roster *roster, kve_source_id source);

/* Forget a source that left. */
void roster_drop(struct roster *roster, kve_source_id source);

void roster_release(struct roster *roster);

#endif
