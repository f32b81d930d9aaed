/*
 * feed.h - recordings and events of files into an index.
 *
 * An instance is a rank of a worker, and a worker is a file, a topic or a
 * source, as the user says. Numbers are followed for each instance: a gap is
 * said, a number that was there before is passed over, and number 0 behind
 * others is a publisher that started anew, whose blocks are forgotten.
 *
 * Lines of kvevents watch also say when to forget a source and when its twin,
 * built anew, takes its place (see watch, JSON output); that is done.
 */
#ifndef KVEVENTS_TOOL_FEED_H
#define KVEVENTS_TOOL_FEED_H

#include "recording.h"

#include <kvevents/index.h>

/* What a worker is. */
enum feed_worker { FEED_FILE, FEED_TOPIC, FEED_SOURCE };

struct feed_stream;

struct feed {
    const struct command *command;
    kve_index *index;
    kve_namespace ns;
    enum feed_worker worker_from;
    bool strict;
    bool quiet;
    uint64_t bad;  /* lines, of all files */
    uint64_t gaps; /* in numbers */
    uint64_t refused;
    uint64_t batches;
    size_t n;
    size_t cap;
    struct feed_stream *streams;
    size_t recent; /* the stream of the batch before */
};

/* Feed one file, or standard input for "-". Returns the exit status that goes
 * with it: EXIT_FINE also where bad lines were passed over. */
int feed_file(struct feed *feed, const char *path);

void feed_release(struct feed *feed);

#endif
