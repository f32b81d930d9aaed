/*
 * serve_peers.h - the state of another instance, over HTTP.
 */
#ifndef KVEVENTS_TOOL_SERVE_PEERS_H
#define KVEVENTS_TOOL_SERVE_PEERS_H

#include "logs.h"
#include "serve_options.h"

#include <kvevents/ingest.h>

/* Ask the peers in order; the first whose state was read whole ends it. true:
 * one was. Lines say what was wrong with the others. Any token that a peer asks
 * for is the first one of --token-file. */
bool serve_peers_load(
    kve_ingest *ingest, const struct serve_options *opts, struct logs *logs);

#endif
