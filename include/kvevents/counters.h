/*
 * counters.h - one table of everything that is counted.
 *
 * Each loss, refusal and recovery has a counter; the table makes the enum,
 * the names and the help texts. Counters only grow; they may be read from any
 * thread at any time.
 */
#ifndef KVEVENTS_COUNTERS_H
#define KVEVENTS_COUNTERS_H

#include <kvevents/export.h>

#include <stddef.h>
#include <stdint.h>

/*
 * X(ENUM, number, "name", "help"). Numbers are stable; added at the end of
 * each block. Counters of a publisher:
 */
#define KVE_PUB_COUNTER_MAP(X)                                              \
    X(PUB_BATCHES, 0, "batches_published", "batches given a number")        \
    X(PUB_BYTES, 1, "bytes_published", "payload bytes given a number")      \
    X(PUB_SENT, 2, "batches_sent", "batches handed to the live socket")     \
    X(PUB_DROPPED_QUEUE, 3, "batches_dropped_queue",                        \
        "batches dropped on a full queue; each leaves a hole")              \
    X(PUB_SKIPPED_OUT, 4, "batches_skipped_out",                            \
        "live sends skipped above max_out_bytes; replay has them")          \
    X(PUB_UNENCODABLE, 5, "batches_unencodable",                            \
        "batches refused before a number was given")                        \
    X(PUB_LOST_SHUTDOWN, 6, "batches_lost_shutdown",                        \
        "batches still queued when the shutdown limit passed")              \
    X(PUB_WAKEUPS, 7, "wakeups", "times publish had to wake the sender")    \
    X(PUB_REPLAY_REQUESTS, 8, "replay_requests", "replay requests served")  \
    X(PUB_REPLAY_BAD, 9, "replay_requests_bad",                             \
        "replay requests of a wrong shape, not answered")                   \
    X(PUB_REPLAY_REFUSED, 10, "replay_requests_refused",                    \
        "replay requests over the limit of pending ones, not answered")     \
    X(PUB_REPLAY_EXPIRED, 11, "replay_requests_expired",                    \
        "replay answers given up on: the reader took nothing for too long") \
    X(PUB_REPLAY_GONE, 12, "replay_requests_gone",                          \
        "replay answers given up on: the reader left")                      \
    X(PUB_REPLAY_BATCHES, 13, "replay_batches", "batches sent in replays")  \
    X(PUB_REPLAY_EVICTED, 14, "replay_evicted",                             \
        "batches that left the replay buffer")                              \
    X(PUB_HEARTBEATS, 15, "heartbeats", "empty batches sent while idle")    \
    X(PUB_SNAPSHOT_REQUESTS, 16, "snapshot_requests",                       \
        "snapshots handed to a socket")                                     \
    X(PUB_SNAPSHOT_BYTES, 17, "snapshot_bytes", "bytes of them")            \
    X(PUB_SNAPSHOT_BAD, 18, "snapshot_requests_bad",                        \
        "requests of a wrong shape at the snapshot endpoint, not answered") \
    X(PUB_SNAPSHOT_REFUSED, 19, "snapshot_requests_refused",                \
        "snapshot requests over the limit of waiting ones, not answered")   \
    X(PUB_SNAPSHOT_UNAVAILABLE, 20, "snapshot_requests_unavailable",        \
        "snapshot requests answered with: none is to be had")               \
    X(PUB_SNAPSHOT_EXPIRED, 21, "snapshot_requests_expired",                \
        "snapshots given up on: the reader took nothing for too long")      \
    X(PUB_SNAPSHOT_GONE, 22, "snapshot_requests_gone",                      \
        "snapshots given up on: the reader left")                           \
    X(PUB_RECORDED, 23, "batches_recorded",                                 \
        "batches folded into what a snapshot says")                         \
    X(PUB_RECORDER_LOST, 24, "batches_unrecorded",                          \
        "batches the recorder missed or could not read; no snapshot is "    \
        "to be had until everything was cleared")                           \
    X(PUB_RECORDER_BELOW, 25, "removals_unmatched",                         \
        "removals of blocks that were not there")

/* Counters of one source of a subscriber. */
#define KVE_SUB_COUNTER_MAP(X)                                                 \
    X(SUB_MESSAGES, 100, "messages_received", "live messages received")        \
    X(SUB_BYTES, 101, "bytes_received", "payload bytes received live")         \
    X(SUB_BATCHES, 102, "batches_delivered", "batches handed over, in order")  \
    X(SUB_EVENTS, 103, "events_delivered", "events in them")                   \
    X(SUB_GAPS, 104, "gaps", "gaps seen in the numbers")                       \
    X(SUB_MISSED, 105, "batches_missed", "batches missed by the live stream")  \
    X(SUB_REPAIRED, 106, "batches_repaired",                                   \
        "missed batches a replay brought")                                     \
    X(SUB_LOST, 107, "batches_lost", "batches that are gone for good")         \
    X(SUB_REPEATS, 108, "repeats", "messages dropped as already seen")         \
    X(SUB_RESTARTS, 109, "restarts", "new lives of the publisher")             \
    X(SUB_RESETS, 110, "resets", "reset messages of the publisher")            \
    X(SUB_REPLAYS, 111, "replays", "replay requests sent")                     \
    X(SUB_PROBES, 112, "tail_probes",                                          \
        "replay requests sent to check the tail")                              \
    X(SUB_REPLAY_MESSAGES, 113, "replay_messages", "replay messages received") \
    X(SUB_REPLAY_BYTES, 114, "replay_bytes",                                   \
        "payload bytes received in replays")                                   \
    X(SUB_REPLAY_TIMEOUTS, 115, "replay_timeouts",                             \
        "replays without an end in time")                                      \
    X(SUB_REPLAY_FAULTS, 116, "replay_faults",                                 \
        "replay answers of a wrong shape")                                     \
    X(SUB_HELD, 117, "held", "live messages held while a replay ran")          \
    X(SUB_HOLD_OVERFLOWS, 118, "hold_overflows",                               \
        "live messages dropped on a full hold buffer, to be replayed")         \
    X(SUB_CONNECTS, 119, "connects", "connections made")                       \
    X(SUB_DISCONNECTS, 120, "disconnects", "connections lost")                 \
    X(SUB_RESOLVE_FAILURES, 121, "resolve_failures", "names not resolved")     \
    X(SUB_BAD_ONE_FRAME, 122, "bad_one_frame", "messages of 1 frame")          \
    X(SUB_BAD_TWO_FRAMES, 123, "bad_two_frames", "messages of 2 frames")       \
    X(SUB_BAD_MANY_FRAMES, 124, "bad_many_frames",                             \
        "messages of too many frames")                                         \
    X(SUB_BAD_NUMBER, 125, "bad_number",                                       \
        "messages whose number is shorter than 8 bytes or a reserved one")     \
    X(SUB_BAD_EMPTY, 126, "bad_empty", "messages with an empty payload")       \
    X(SUB_UNREADABLE_BATCHES, 127, "unreadable_batches",                       \
        "batches that are broken msgpack or no batch")                         \
    X(SUB_UNREADABLE_EVENTS, 128, "unreadable_events",                         \
        "events that were not delivered, unknown types not counted")           \
    X(SUB_UNKNOWN_EVENTS, 129, "unknown_events", "events of an unknown type")  \
    X(SUB_NOTED_EVENTS, 130, "noted_events", "events delivered with a note")   \
    X(SUB_OVERSIZE, 131, "oversize",                                           \
        "connections cut: message over max_body_len")                          \
    X(SUB_CLEARS, 132, "source_clears",                                        \
        "times the reader was told to forget everything of the source")        \
    X(SUB_RESTARTS_NUMBER, 133, "restarts_number",                             \
        "restarts seen by a number that fell")                                 \
    X(SUB_RESTARTS_DIGEST, 134, "restarts_digest",                             \
        "restarts seen by another batch under a known number")                 \
    X(SUB_RESTARTS_ID, 135, "restarts_id", "restarts seen by another id")      \
    X(SUB_RESTARTS_ANSWER, 136, "restarts_answer",                             \
        "restarts seen by what a replay no longer has")                        \
    X(SUB_SNAPSHOTS, 137, "snapshots", "snapshots asked for")                  \
    X(SUB_SNAPSHOTS_TAKEN, 138, "snapshots_taken", "snapshots swapped in")     \
    X(SUB_SNAPSHOTS_FAILED, 139, "snapshots_failed",                           \
        "snapshots that did not come, or did not fit")                         \
    X(SUB_SNAPSHOT_BATCHES, 140, "snapshot_batches", "batches of snapshots")   \
    X(SUB_SNAPSHOT_BYTES, 141, "snapshot_bytes_received", "bytes of them")     \
    X(SUB_HEARTBEATS, 142, "heartbeats_received", "empty batches with an id")  \
    X(SUB_STALES, 143, "stales", "times the heartbeats stopped")               \
    X(SUB_REBUILDS, 144, "rebuilds", "twins begun")                            \
    X(SUB_WAITS, 145, "requests_delayed",                                      \
        "requests that waited for others: max_replays")                        \
    X(SUB_STREAMS, 146, "streams", "streams begun")                            \
    X(SUB_STREAMS_GONE, 147, "streams_gone", "streams silent for too long")    \
    X(SUB_STREAMS_REFUSED, 148, "streams_refused",                             \
        "messages of streams beyond max_streams, dropped")

/* Counters of one instance of an index. */
#define KVE_INDEX_COUNTER_MAP(X)                                        \
    X(INDEX_BATCHES, 200, "batches_applied", "batches applied")         \
    X(INDEX_EVENTS, 201, "events_applied", "events applied")            \
    X(INDEX_STORED, 202, "copies_stored", "copies of blocks added")     \
    X(INDEX_REMOVED, 203, "copies_removed", "copies of blocks removed") \
    X(INDEX_CLEARS, 204, "clears", "events and calls that cleared")     \
    X(INDEX_REPEATS, 205, "stores_repeated",                            \
        "stores of a block that a set held already")                    \
    X(INDEX_UNMATCHED, 206, "removals_unknown",                         \
        "removals of blocks that were not held in that scope")          \
    X(INDEX_WAITING, 207, "orphan_blocks",                              \
        "blocks stored under a parent that is not known")               \
    X(INDEX_HEALED, 208, "blocks_healed",                               \
        "blocks that waited for a parent and found it")                 \
    X(INDEX_HASH_ONLY, 209, "blocks_hash_only",                         \
        "blocks stored by hash only, taught by nobody")                 \
    X(INDEX_TAUGHT, 210, "blocks_taught",                               \
        "blocks known by hash only that were taught later")             \
    X(INDEX_CONFLICTS, 211, "conflicts",                                \
        "blocks said to stand where they do not: known elsewhere")      \
    X(INDEX_BRIDGED, 212, "blocks_bridged",                             \
        "blocks that a store skipped, and named the tokens of")         \
    X(INDEX_EVICTED, 213, "blocks_evicted",                             \
        "copies forgotten to stay below max_bytes")                     \
    X(INDEX_REFUSED_MEMORY, 214, "refused_memory",                      \
        "stores refused: no memory, or max_bytes")                      \
    X(INDEX_REFUSED_SCOPES, 215, "refused_scopes",                      \
        "stores refused: more than max_scopes scopes")                  \
    X(INDEX_REFUSED_SHAPE, 216, "refused_shape",                        \
        "stores refused: a block size or count that can not be")        \
    X(INDEX_UNITS_REST, 217, "tokens_left_over",                        \
        "stores with tokens that belong to no hash")                    \
    X(INDEX_MIXED_FORMS, 218, "hashes_mixed_forms",                     \
        "hashes in bytes found by their last 8 bytes")                  \
    X(INDEX_GROUPS_IGNORED, 219, "groups_ignored",                      \
        "stores in groups of a kind that takes no part in matches")

/* Counters of one source of an ingest, beside those above. */
#define KVE_INGEST_COUNTER_MAP(X)                                             \
    X(INGEST_BATCHES, 300, "batches_ingested", "batches given to the index")  \
    X(INGEST_NOT_APPLIED, 301, "events_not_applied",                          \
        "events that the index refused, whole or in part")                    \
    X(INGEST_FAILED, 302, "batches_not_applied",                              \
        "batches that were not applied to their end: no memory, or a limit")  \
    X(INGEST_OTHER_RANK, 303, "batches_other_rank",                           \
        "batches that named another rank than their source's")                \
    X(INGEST_BLOCK_SIZE, 304, "block_sizes_unexpected",                       \
        "block sizes of a stream that are not the registered one")            \
    X(INGEST_CLEARED, 305, "sources_cleared",                                 \
        "times the source's blocks were forgotten: restart, loss, or a call") \
    X(INGEST_SWAPPED, 306, "rebuilds_swapped", "twins that became visible")   \
    X(INGEST_RESUMED, 307, "resumes", "times a position was gone on from")

/* Counters of a service (service.h). */
#define KVE_HTTP_COUNTER_MAP(X)                                            \
    X(HTTP_REQUESTS, 400, "http_requests", "requests answered")            \
    X(HTTP_4XX, 401, "http_errors_client", "answers with a status of 4xx") \
    X(HTTP_5XX, 402, "http_errors_server", "answers with a status of 5xx") \
    X(HTTP_CONNECTIONS, 403, "http_connections", "connections accepted")   \
    X(HTTP_REFUSED, 404, "http_connections_refused",                       \
        "connections refused: max_connections, or too many of one client") \
    X(HTTP_SLOW, 405, "http_requests_slow",                                \
        "connections cut: the request took too long to come")              \
    X(HTTP_UNAUTHORIZED, 406, "http_unauthorized",                         \
        "requests without a valid token")                                  \
    X(HTTP_RATE_LIMITED, 407, "http_rate_limited",                         \
        "requests refused: too many of one client")                        \
    X(HTTP_BODY_BYTES, 408, "http_body_bytes", "bytes of request bodies")  \
    X(HTTP_ANSWER_BYTES, 409, "http_answer_bytes", "bytes of answers")     \
    X(HTTP_EVENTS_SENT, 410, "http_events_sent",                           \
        "events sent to readers of the live stream")                       \
    X(HTTP_EVENTS_LOST, 411, "http_events_lost",                           \
        "events that a slow reader of the live stream missed")

enum kve_counter {
#define X(name, number, text, help) KVE_COUNTER_##name = number,
    KVE_PUB_COUNTER_MAP(X) KVE_SUB_COUNTER_MAP(X) KVE_INDEX_COUNTER_MAP(X)
        KVE_INGEST_COUNTER_MAP(X) KVE_HTTP_COUNTER_MAP(X)
#undef X
};

#ifdef __cplusplus
extern "C" {
#endif

/* Name of a counter, "gaps" for instance; NULL for unknown numbers. */
KVE_API const char *kve_counter_str(unsigned counter);

/* One line for people about a counter; NULL for unknown numbers. */
KVE_API const char *kve_counter_help(unsigned counter);

/*
 * The i-th counter of the table, in its order, or -1 at the end: a walk over
 * all of them. Any thread.
 */
KVE_API int kve_counter_at(size_t i);

#ifdef __cplusplus
}
#endif

#endif
