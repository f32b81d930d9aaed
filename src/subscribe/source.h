/*
 * source.h - one source of a subscriber: its sockets, its machine, its turn.
 *
 *     live socket --> frames --> decode --> machine ----> on_batch
 *     request ------> frames --> decode --^    |
 *        ^                                     +--------> on_notice
 *        +------------ ask, stop --------------+
 *
 * A source gets turns from its loop. A turn executes what the machine wants
 * done, then feeds it the next input, and so on, up to a quota; it never
 * waits. What it does not do: it knows nothing of other sources, and it never
 * frees itself (kve_sub_remove() may come from one of its own callbacks; the
 * loop frees it between turns).
 *
 * A message is decoded before it is judged: rank and publisher id stand behind
 * the events. When the batch to be delivered is the very message that was
 * decoded last, it is not decoded again; one that waited is, when its time
 * comes.
 *
 * Streams. A socket by which several publishers speak is a source with
 * streams (streams.h): sources without a live socket of their own, fed in the
 * turn of their parent, with a machine and requests and a turn of their own
 * for those. The parent keeps the connection, and no order: its state stays
 * cold.
 *
 * While a request runs live messages and its answer are read in turn, so that
 * neither can starve the other. Each descriptor says for itself whether there
 * is something to read (the ready bits), since asking a socket costs a system
 * call.
 */
#ifndef KVE_SUBSCRIBE_SOURCE_H
#define KVE_SUBSCRIBE_SOURCE_H

#include "base/counters.h"
#include "stream/machine.h"
#include "subscribe/heap.h"
#include "subscribe/slots.h"
#include "transport/transport.h"

#include <kvevents/subscriber.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct kve_loop;
struct kve_source;
struct kve_stream_table;

/* Which of a source's descriptors it is. */
enum kve_tag {
    KVE_TAG_LIVE = 0, /* live messages */
    KVE_TAG_LINK,     /* its connection, its name */
    KVE_TAG_ASK,      /* the answer to a request */
    KVE_TAG_ASK_LINK
};
#define KVE_READY(tag) (1u << (tag))

/* Descriptors of one handle that epoll watches. */
struct kve_watched {
    int fds[KVE_MAX_FDS];
    size_t n;
};

/* How far a snapshot was read. */
enum kve_snap_phase { KVE_SNAP_NUMBER = 0, KVE_SNAP_ID, KVE_SNAP_CHUNKS };

/* The request that the machine wants, from the word to the end of its answer.
 * See ask.c. */
struct kve_ask {
    struct kve_replay_ask *handle; /* NULL: not sent, or it failed */
    int64_t quiet_at; /* nothing heard until then: the slot is given back */
    uint32_t id;      /* the machine's; 0: none */
    uint32_t kind;    /* enum kve_ask_kind */
    uint64_t first;
    bool has_slot;
    bool opened;  /* or tried to; before that it waits for a slot */
    bool has_msg; /* received and not fed yet */
    bool dry;     /* the last receive found nothing */

    /* Of a snapshot, which is read frame by frame. */
    bool more;  /* frames follow the one in msg */
    bool ended; /* all frames were fed, or it failed */
    enum kve_snap_phase phase;
    uint32_t n_empty;
    int64_t number;
    size_t bytes;

    const struct kve_transport *transport;
    struct kve_slot slot;
    struct kve_watched watched;
    struct kve_msg msg;
    char why[240]; /* why it failed; "": nothing to say */
};

/*
 * What every turn looks at stands together, at the front: with many sources
 * each turn finds its source's memory cold.
 */
struct kve_source {
    struct kve_loop *loop; /* borrowed */
    struct kve_machine *machine;
    struct kve_source *parent; /* of a stream */
    struct kve_source *busy;   /* whose machine was fed last: self or stream */
    struct kve_stream_table *streams; /* NULL: it is one stream itself */
    const struct kve_transport *transport;
    struct kve_live_in *live; /* NULL: a stream has none */
    int64_t live_at;          /* when the socket's connection wants a step */
    int64_t retry_at;         /* after an error, with library threads */
    int64_t heard_at;         /* last live message */
    int64_t idle_at; /* when to look whether it was silent; KVE_NEVER */
    struct kve_heap_node due;
    struct kve_source *next_queued;
    kve_source_id id;
    kve_source_id parent_id; /* 0: not a stream */
    unsigned ready;          /* bits: descriptors that fired */
    uint32_t fails;          /* turns in a row that failed */
    atomic_bool removed;     /* by the caller, from any thread: nothing more is
                              * delivered */
    bool has_live;           /* received and not fed yet */
    bool live_dry;           /* the last receive found nothing */
    bool events_dry;         /* no connection event waits */
    bool stepped;            /* live_at is to be asked for again */
    bool unwatched;          /* epoll does not know all descriptors yet */
    bool replay_first;       /* whose turn it is while a request runs */
    bool has_action;         /* action is being executed */
    bool untold;             /* it was not delivered yet, and is in the way */
    bool queued;
    bool attached; /* the loop knows it */
    bool dropped;  /* it is to be closed and freed */
    bool closed;
    bool connected;     /* as the socket says */
    bool was_connected; /* ever */
    bool unknown_events;
    bool link_down; /* of a stream: news of the parent's connection that */
    bool link_up;   /* its machine does not know yet, in this order */
    bool link_reset;
    bool silent; /* a stream, for too long: it goes */
    bool has_info_lock;

    struct kve_ask ask;
    struct kve_action action;
    struct kve_msg live_msg;
    struct kve_sub_counters counters;

    struct kve_source_opts opts; /* strings are ours, or the parent's */
    char *endpoint;              /* a stream: the parent's */
    char *replay_endpoint;       /* NULL: none; moved by rank already */
    char *snapshot_endpoint;
    char *topic; /* may hold any byte; terminated */
    size_t topic_len;
    struct kve_int rank;
    char *curve_keys[3];
    struct kve_watched watched;
    int64_t stale_since;   /* 0: connected */
    int64_t unheard_since; /* when heartbeats were missed last */

    uint64_t topic_hash;            /* of a stream */
    struct kve_source *next_stream; /* in its bucket */
    struct kve_source *next_removed;

    /* Of the set, under its lock. */
    bool hidden; /* removed, but not yet gone */
    bool in_inbox;
    struct kve_source *next_inbox;

    /* With library threads: what kve_sub_source() says. */
    pthread_mutex_t info_lock;
    struct kve_source_info info;
};

/* A turn: its bounds, and what it came to. */
struct kve_turn {
    int64_t now_ns;
    size_t max_batches;
    size_t batches; /* delivered */
    size_t inputs;  /* taken in */
    bool more;      /* the quota ended it, not the lack of work */
    bool stop;      /* on_batch asked for it */
    bool late;      /* it took long enough */
};

/* Check options and open the live socket; everything else follows in turns.
 * The loop is not touched. */
kve_status kve_source_create(struct kve_loop *loop,
    const struct kve_source_opts *opts, struct kve_source **ret_source,
    struct kve_error *err);

/* A stream of parent, without an id yet. */
kve_status kve_source_create_stream(struct kve_source *parent,
    struct kve_str topic, struct kve_int rank, struct kve_source **ret_source,
    struct kve_error *err);

/* Close the sockets; the memory stays until kve_source_destroy(). */
void kve_source_close(struct kve_source *source);
void kve_source_destroy(struct kve_source *source);

/* Whether it, or the parent it belongs to, was removed. */
static inline bool
kve_source_gone(const struct kve_source *s)
{
    return atomic_load_explicit(&s->removed, memory_order_relaxed) ||
        (s->parent != NULL &&
            atomic_load_explicit(&s->parent->removed, memory_order_relaxed));
}

/* The socket's owner: itself, or the parent. */
static inline struct kve_source *
kve_source_owner(struct kve_source *s)
{
    return s->parent != NULL ? s->parent : s;
}

/* Have the loop's epoll watch what the live socket names now. */
kve_status kve_source_sync(struct kve_source *source, struct kve_error *err);

/*
 * Work until turn->max_batches were delivered, the quota is used up, or there
 * is nothing to do. On failure (KVE_E_NOMEM, KVE_E_SYSTEM) nothing is lost:
 * the next turn goes on where this one stopped.
 */
kve_status kve_source_turn(
    struct kve_source *source, struct kve_turn *turn, struct kve_error *err);

/* When a turn is due although no descriptor says so; KVE_NEVER. */
int64_t kve_source_deadline(struct kve_source *source);

void kve_source_info(
    const struct kve_source *source, struct kve_source_info *info);

/* Where its reader stands; on its thread. */
void kve_source_position(
    const struct kve_source *source, struct kve_position *ret_position);

/* With library threads: have other threads see how it is now. */
void kve_source_publish(struct kve_source *source);

/* ---- source.c, source_open.c, for the others ------------------------ */

/* Pull and execute what the machine wants. *ret_done false: the quota ended
 * it, turn->more is set. */
kve_status kve_source_run_actions(struct kve_source *source,
    struct kve_turn *turn, bool *ret_done, struct kve_error *err);

struct kve_dial_opts kve_source_dial_opts(
    const struct kve_source *source, const char *endpoint, uint32_t bind);

/* ---- ask.c ---------------------------------------------------------- */

/* The machine wants a request, or none any more. */
void kve_ask_begin(struct kve_source *source);
void kve_ask_end(struct kve_source *source);

/* Send the request when it has its slot; otherwise nothing happens. */
kve_status kve_ask_open_due(struct kve_source *source, struct kve_error *err);

/* What is due of the handle and the slot. */
kve_status kve_ask_step(
    struct kve_source *source, int64_t now_ns, struct kve_error *err);
int64_t kve_ask_deadline(struct kve_source *source);

/* Feed the machine the next piece of the answer, when there is one. */
kve_status kve_ask_take(struct kve_source *source, int64_t now_ns,
    bool *ret_took, struct kve_error *err);

/* Something was received: the slot stays its own for a while. */
void kve_ask_heard(struct kve_source *source, int64_t now_ns);

/* ---- snapshot.c ------------------------------------------------------ */

/* The next frame of a snapshot, or its end. */
kve_status kve_snapshot_take(struct kve_source *source, int64_t now_ns,
    bool *ret_took, struct kve_error *err);

/* ---- message.c ------------------------------------------------------- */

struct kve_message;

/* Tell the frames apart; frames beyond those kept only count. */
kve_status kve_message_read(const struct kve_msg *msg, bool replay,
    struct kve_message *ret_message, struct kve_error *err);

/* Count and tell a message that is none. */
void kve_message_bad(struct kve_source *source, const struct kve_error *why);

/* What the machine is told of a message that the loop has just decoded. */
struct kve_machine_msg kve_message_of(
    const struct kve_source *source, const struct kve_message *message);

/* ---- deliver.c ------------------------------------------------------- */

/* Hand over the batch that source->action applies; turn->batches and
 * turn->stop say what came of it. KVE_E_NOMEM: nothing was delivered. */
kve_status kve_source_deliver(
    struct kve_source *source, struct kve_turn *turn, struct kve_error *err);

/* ---- notice.c -------------------------------------------------------- */

struct kve_notice_args {
    uint64_t first;
    uint64_t last;
    uint32_t old_state; /* of KVE_NOTICE_STATE, as is state */
    uint32_t state;
    uint32_t reason;
    uint32_t fault;
    size_t offset;
    const char *detail; /* NULL: made from type and range */
};

/* Hand a notice to on_notice; type and what belongs to it. */
void kve_source_notify(struct kve_source *source, enum kve_notice_type type,
    const struct kve_notice_args *args);

/* A string of the network's in a line for people: printable, bounded. */
void kve_printable(char *text, size_t cap, struct kve_str from);

#endif
