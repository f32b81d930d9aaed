/*
 * transport.h - how bytes travel, behind one small table of functions.
 *
 * Four roles, two at each end of a source:
 *
 *     publisher:  live out  ---- topic, number, payload ---->  live in
 *                 replay serve <------- start number --------  replay request
 *                              ---- batches, end marker ---->
 *
 * A transport is a table of functions for these roles. Nothing outside
 * src/transport knows a socket library; a further transport is a further
 * table in the list of kve_transport_find() and touches nothing else.
 *
 * What the table refuses to do: it knows nothing of numbers, gaps or batches;
 * it never blocks (except in close, for at most the linger it was given); it
 * calls nobody back. Each handle is used by one thread at a time.
 *
 * Waiting: a handle names the descriptors its owner has to watch for input
 * (level-triggered as far as the caller can rely on it: after each wake-up
 * the caller calls step() and receives until KVE_IO_AGAIN) and a deadline
 * after which step() wants to be called anyway.
 *
 * Names are resolved here, by a thread of the context, with a deadline, and
 * again before each reconnect: the socket library is only given numeric
 * addresses, because it would resolve in its shared I/O thread and so silence
 * every other source.
 */
#ifndef KVE_TRANSPORT_TRANSPORT_H
#define KVE_TRANSPORT_TRANSPORT_H

#include "transport/payload.h"

#include <kvevents/context.h>
#include <kvevents/event.h>
#include <kvevents/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVE_MSG_FRAMES 6 /* frames kept of a message; more are only counted */
#define KVE_MAX_FDS 4    /* descriptors a handle may name */

/* What one attempt at I/O came to. */
enum kve_io {
    KVE_IO_OK,    /* done */
    KVE_IO_AGAIN, /* not now; nothing was consumed */
    KVE_IO_GONE,  /* the peer left (sending to one reader) */
    KVE_IO_ERROR  /* the handle is broken; see the struct kve_error */
};

/*
 * A received message: its frames lie in the transport's memory and stay valid
 * until kve_msg_release() or the next receive into the same struct.
 */
struct kve_msg {
    size_t n_frames; /* as received; may be more than KVE_MSG_FRAMES */
    struct kve_span frame[KVE_MSG_FRAMES];
    size_t bytes; /* of all frames */
    /* Private to the transport that filled it. */
    void (*release)(struct kve_msg *msg);
    size_t held;
    _Alignas(16) unsigned char priv[KVE_MSG_FRAMES][64];
};

/* An empty message; a struct kve_msg of zeros is one too. */
static inline void
kve_msg_release(struct kve_msg *msg)
{
    if (msg->release != NULL)
        msg->release(msg);
    msg->release = NULL;
    msg->n_frames = 0;
}

/* What happened to the connection of a live-in handle. */
enum kve_link_event_type {
    KVE_LINK_CONNECTED = 1, /* handshake done: messages may come */
    KVE_LINK_DISCONNECTED,
    KVE_LINK_RESOLVE_FAILED, /* detail says which name and why */
    KVE_LINK_OVERSIZE,       /* cut: a message was above max_body_len, or no
                              * ZMTP; comes after DISCONNECTED, when it is
                              * sure, and before a new try. Never for a
                              * bound socket */
    KVE_LINK_REFUSED         /* handshake refused: keys, wrong socket type */
};

struct kve_link_event {
    uint32_t type;  /* enum kve_link_event_type */
    uint32_t peers; /* connected after it; a bound socket can have several */
    char detail[200];
};

/* Options common to the two client roles. Strings borrowed during open. */
struct kve_dial_opts {
    const char *endpoint; /* moved by rank already */
    const char *topic;    /* live in: prefix filter */
    uint32_t bind;        /* enum kve_bind; live in only */
    uint32_t recv_hwm;
    size_t max_body_len;
    uint32_t reconnect_ms;
    uint32_t reconnect_max_ms;
    uint32_t resolve_timeout_ms;
    struct kve_curve curve;
};

/* Options of the two server roles. Strings borrowed during open. */
struct kve_serve_opts {
    const char *endpoint; /* moved by rank already */
    uint32_t bind;        /* enum kve_bind; live out only, replay is bound */
    uint32_t hwm;         /* live out: messages a reader may lag;
                           * replay: messages queued for one reader */
    uint32_t sndbuf;
    bool apart; /* replay: its traffic has an I/O thread of its own, where the
                 * context has one to spare */
    size_t max_request_len; /* what readers send: a replay request, to the
                             * live socket a topic; longer cuts them off */
    struct kve_curve curve;
};

/* Longest identity ZeroMQ gives to a peer. */
#define KVE_PEER_MAX 255

/* One request to a replay server. */
struct kve_replay_request {
    uint8_t peer[KVE_PEER_MAX]; /* whom to answer */
    size_t peer_len;
    size_t n_frames;       /* as the server sees them, identity included */
    bool delimited;        /* the second frame is empty, as is the custom */
    struct kve_span start; /* third frame; valid until the next receive */
};

struct kve_live_in;
struct kve_live_out;
struct kve_replay_ask;
struct kve_replay_serve;

struct kve_transport {
    const char *name;

    /* Whether an endpoint is of this transport ("tcp://", ...). */
    bool (*takes)(const char *endpoint);

    /* ---- live in: a subscription ---- */

    /* Returns at once; connecting goes on in step(). KVE_E_INVAL for an
     * endpoint that can never work, KVE_E_IN_USE for a bind. */
    kve_status (*live_in_open)(kve_context *context,
        const struct kve_dial_opts *opts, struct kve_live_in **ret_in,
        struct kve_error *err);
    void (*live_in_close)(struct kve_live_in *in);
    size_t (*live_in_fds)(struct kve_live_in *in, int ret_fds[KVE_MAX_FDS]);
    /* When step() has to be called at the latest; KVE_NEVER. */
    int64_t (*live_in_deadline)(struct kve_live_in *in);
    /* Do what is due: resolver answers, reconnects, connection events. The
     * set of descriptors may change: *ret_fds_changed. */
    kve_status (*live_in_step)(struct kve_live_in *in, int64_t now_ns,
        bool *ret_fds_changed, struct kve_error *err);
    /* The next connection event in order, or false. */
    bool (*live_in_event)(
        struct kve_live_in *in, struct kve_link_event *ret_event);
    enum kve_io (*live_in_recv)(
        struct kve_live_in *in, struct kve_msg *msg, struct kve_error *err);

    /* ---- replay request: one question, one answer, then closed ---- */

    /* The request (an empty frame and start, 8 bytes big-endian) is sent as
     * soon as there is a connection. One handle per question: late frames of
     * an old question can never be taken for an answer to a new one. */
    kve_status (*replay_ask_open)(kve_context *context,
        const struct kve_dial_opts *opts, uint64_t start,
        struct kve_replay_ask **ret_ask, struct kve_error *err);
    void (*replay_ask_close)(struct kve_replay_ask *ask);
    size_t (*replay_ask_fds)(
        struct kve_replay_ask *ask, int ret_fds[KVE_MAX_FDS]);
    int64_t (*replay_ask_deadline)(struct kve_replay_ask *ask);
    kve_status (*replay_ask_step)(struct kve_replay_ask *ask, int64_t now_ns,
        bool *ret_fds_changed, struct kve_error *err);
    /* The answer's messages as a DEALER reads them: "", ... */
    enum kve_io (*replay_ask_recv)(
        struct kve_replay_ask *ask, struct kve_msg *msg, struct kve_error *err);
    /* The same one frame at a time, for a message of any number of frames,
     * which is then here whole. frame holds one frame; *ret_more: another one
     * of this message follows. */
    enum kve_io (*replay_ask_recv_frame)(struct kve_replay_ask *ask,
        struct kve_msg *frame, bool *ret_more, struct kve_error *err);

    /* ---- live out: PUB ---- */

    kve_status (*live_out_open)(kve_context *context,
        const struct kve_serve_opts *opts, struct kve_live_out **ret_out,
        struct kve_error *err);
    /* linger_ms: how long what readers have not taken yet is kept. Returns
     * when the port is free. */
    void (*live_out_close)(struct kve_live_out *out, int linger_ms);
    /* Real endpoint, real port; whether it was bound. */
    const char *(*live_out_endpoint)(struct kve_live_out *out, bool *ret_bound);
    size_t (*live_out_fds)(struct kve_live_out *out, int ret_fds[KVE_MAX_FDS]);
    /* Take note of readers that came and left, so that what was queued for
     * them, and what the library keeps of them, is given back: sending does
     * that too, but an owner may send nothing for long. Due when a descriptor
     * is readable. Never waits. */
    void (*live_out_step)(struct kve_live_out *out);
    /* One message of three frames. Takes a reference of payload of its own.
     * Never waits: a reader that is full misses it. */
    enum kve_io (*live_out_send)(struct kve_live_out *out,
        struct kve_span topic, uint64_t number, struct kve_payload *payload,
        struct kve_error *err);

    /* ---- replay serve: ROUTER ---- */

    kve_status (*replay_serve_open)(kve_context *context,
        const struct kve_serve_opts *opts, struct kve_replay_serve **ret_serve,
        struct kve_error *err);
    void (*replay_serve_close)(struct kve_replay_serve *serve, int linger_ms);
    const char *(*replay_serve_endpoint)(struct kve_replay_serve *serve);
    size_t (*replay_serve_fds)(
        struct kve_replay_serve *serve, int ret_fds[KVE_MAX_FDS]);
    enum kve_io (*replay_serve_recv)(struct kve_replay_serve *serve,
        struct kve_replay_request *ret_request, struct kve_error *err);
    /* One answer to one peer: "", [topic,] number, payload. with_topic false
     * leaves the topic frame out. payload NULL: an empty one (the end marker,
     * whose topic is empty). KVE_IO_AGAIN: this peer is full, others may not
     * be; nothing was sent of it. KVE_IO_GONE: it left. */
    enum kve_io (*replay_serve_send)(struct kve_replay_serve *serve,
        const uint8_t *peer, size_t peer_len, bool with_topic,
        struct kve_span topic, uint64_t number, struct kve_payload *payload,
        struct kve_error *err);
    /* One message of "" and n frames, which lie in payload one behind the
     * other; ends[i] is where frame i ends. Each frame takes a reference of
     * payload of its own; nothing is copied. As replay_serve_send(). */
    enum kve_io (*replay_serve_send_frames)(struct kve_replay_serve *serve,
        const uint8_t *peer, size_t peer_len, struct kve_payload *payload,
        const size_t *ends, size_t n, struct kve_error *err);
};

/* What is sent in place of a start number to ask for a snapshot: the eight
 * letters "snapshot". As a number it is beyond any that a publisher reaches,
 * so one that knows no snapshots answers with nothing but the end. */
#define KVE_SNAPSHOT_WORD UINT64_C(0x736e617073686f74)

/*
 * The transport of an endpoint, or NULL with err filled: an unknown scheme is
 * KVE_E_INVAL, and the text lists the known ones.
 */
const struct kve_transport *kve_transport_find(
    const char *endpoint, struct kve_error *err);

/* ZeroMQ: tcp, ipc, inproc. */
extern const struct kve_transport kve_transport_zmq;

#endif
