/*
 * serve_source.h - sources that options and the config file name.
 *
 * What people write,
 *
 *     --source w0=tcp://10.0.0.7:5557,replay_endpoint=:5558,ranks=2
 *     --workers 1=tcp://10.0.0.7:5557,2:1=tcp://10.0.0.8:5557
 *     [source w0] endpoint = tcp://10.0.0.7:5557 ...
 *
 * becomes a list of specs, one for each rank, that an ingest takes. A list can
 * be made again later, when the file has changed; serve_sources_same() says
 * what did not.
 */
#ifndef KVEVENTS_TOOL_SERVE_SOURCE_H
#define KVEVENTS_TOOL_SERVE_SOURCE_H

#include "endpoints.h"
#include "serve_options.h"

#include <kvevents/discover.h>
#include <kvevents/ingest.h>

/* Texts that live as long as what was read. */
struct texts {
    size_t n;
    size_t cap;
    char **items;
};

/* A copy that texts keeps; NULL: no memory. */
const char *texts_keep(struct texts *texts, const char *text, size_t len);
void texts_release(struct texts *texts);

/* A source as it was given, and where. */
struct given_source {
    struct serve_source source;
    const char *found_in; /* file, or "" */
    char where[160];      /* for errors: "--source 'w0=...'", "FILE:12" */
};

/* One rank of one, as an ingest takes it. */
struct wanted_source {
    struct kve_ingest_spec spec;
    const char *where;
    kve_ingest_id id; /* 0: it was not added yet */
};

struct wanted_sources {
    size_t n;
    size_t cap;
    struct wanted_source *items;
};

/* Read WORKER[:RANK]=ENDPOINT[,KEY=VALUE...]; false: error says why. */
bool given_source_read(struct texts *texts, const char *text,
    struct serve_source *ret, char *error, size_t cap);

/* Read the KEY=VALUE,... behind a path or a name into *ret. */
bool given_source_keys(struct texts *texts, const char *text,
    struct serve_source *ret, char *error, size_t cap);

/* Add the ranks of a source to a list; false: error says why. Texts of the
 * list are of opts, of the source and of texts. */
bool wanted_sources_add(struct wanted_sources *list, struct texts *texts,
    const struct given_source *given, const struct serve_options *opts,
    const struct key_pair *keys, char *error, size_t cap);

/* Whether both mean the same publisher, followed in the same way. */
bool wanted_source_same(
    const struct wanted_source *a, const struct wanted_source *b);

void wanted_sources_release(struct wanted_sources *list);

/* What targets and names get that say nothing else. */
void discover_spec_make(struct kve_discover_spec *ret,
    const struct serve_source *given, const struct serve_options *opts,
    const struct key_pair *keys);

#endif
