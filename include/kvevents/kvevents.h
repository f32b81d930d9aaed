/*
 * kvevents.h - KV-cache events for LLM serving: the whole public API.
 *
 * Anything that is not declared in include/kvevents/ may change in any
 * release. Each part can be included alone:
 *
 *   version.h     which library this is
 *   status.h      status, error detail, conventions of every function
 *   context.h     what publishers and subscribers share
 *   event.h       batches and events as values
 *   codec.h       bytes to batches and back
 *   counters.h    one table of everything that is counted
 *   publisher.h   tell the world what happens to a KV cache
 *   subscriber.h  follow publishers, never silently wrong
 *   hash.h        content hashes of blocks, and the hashes of engines
 *   index.h       which worker holds how much of a prompt
 *   ingest.h      many engines into one index
 *
 * Of the library libkvevents-service, and not included here:
 *
 *   service.h     an ingest and its index, asked over HTTP
 *   discover.h    sources out of files and names
 */
#ifndef KVEVENTS_KVEVENTS_H
#define KVEVENTS_KVEVENTS_H

#include <kvevents/codec.h>
#include <kvevents/context.h>
#include <kvevents/counters.h>
#include <kvevents/event.h>
#include <kvevents/hash.h>
#include <kvevents/index.h>
#include <kvevents/ingest.h>
#include <kvevents/publisher.h>
#include <kvevents/status.h>
#include <kvevents/subscriber.h>
#include <kvevents/version.h>

#endif
