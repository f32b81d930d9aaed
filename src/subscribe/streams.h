/*
 * streams.h - the streams of one source: which message belongs to whom.
 *
 *     message (topic, rank) --> the one found last? --> hash table --> stream
 *                                                          | not there
 *                                                          v
 *                                              a new one, or refused: limits
 *
 * A stream is a source (source.h) whose parent receives for it. Topics come
 * from the network: they are bounded in length, compared whole, and hashed, so
 * that many of them cost no more than few. A stream that was silent for too
 * long leaves; a later message makes a new one.
 */
#ifndef KVE_SUBSCRIBE_STREAMS_H
#define KVE_SUBSCRIBE_STREAMS_H

#include "subscribe/source.h"

struct kve_message;

struct kve_stream_table {
    struct kve_source **buckets; /* a power of two of them */
    size_t n_buckets;
    size_t n;
    struct kve_source *last; /* found last; NULL */
    uint64_t refused;        /* messages, for the notice */
    char *replay_base;       /* not moved by rank; NULL: none */
    char *snapshot_base;
};

kve_status kve_streams_create(const struct kve_source_opts *opts,
    struct kve_stream_table **ret_streams, struct kve_error *err);
/* Only the table: its streams are the loop's. */
void kve_streams_destroy(struct kve_stream_table *streams);

/*
 * The stream that a message, which the loop has just decoded, belongs to; a
 * new one where there is none. *ret_stream is NULL when the message is to be
 * dropped, which was counted and told. KVE_E_NOMEM: try again.
 */
kve_status kve_streams_find(struct kve_source *parent,
    const struct kve_message *message, int64_t now_ns,
    struct kve_source **ret_stream, struct kve_error *err);

/* The connection came or went; the publisher of this topic was reset. */
void kve_streams_link(struct kve_source *parent, bool up);
void kve_streams_reset(struct kve_source *parent, struct kve_span topic);

/* Out of the table. */
void kve_streams_forget(struct kve_source *parent, struct kve_source *stream);

/* Feed the stream's machine its news of the connection, executing what
 * follows. *ret_done false: the quota ended it. */
kve_status kve_stream_settle(struct kve_source *stream, struct kve_turn *turn,
    bool *ret_done, struct kve_error *err);

/* Feed one piece of such news. False: there was none. */
bool kve_stream_take_news(struct kve_source *stream, int64_t now_ns);

#endif
