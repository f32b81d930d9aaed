/*
 * source.h - one source of a subscriber: its sockets, its machine, its turn.
 *
 *     live_in ----> frames ----> machine ----> decode ----> on_batch
 *     replay_ask -> frames ----^    |
 *                                   +--------------------> on_notice
 *
 * A source gets turns from the subscriber's loop. A turn executes what the
 * machine wants done, then feeds it the next input, and so on, up to a quota;
 * it never waits. What it does not do: it knows nothing of other sources, and
 * it never frees itself (kve_sub_remove() may come from one of its own
 * callbacks; the subscriber frees it after the turn).
 *
 * While a request runs live messages and its answer are read in turn, so that
 * neither can starve the other.
 */
#ifndef KVE_SUBSCRIBE_SOURCE_H
#define KVE_SUBSCRIBE_SOURCE_H

#include "base/counters.h"
#include "stream/machine.h"
#include "transport/transport.h"

#include <kvevents/subscriber.h>

#include <stdbool.h>

#define KVE_SOURCE_FDS (2 * KVE_MAX_FDS)

/* What all sources of a subscriber share; owned by the subscriber. */
struct kve_source_env {
    kve_context *context;
    kve_batch *batch; /* decoded into, one delivery at a time */
    struct kve_sub_callbacks callbacks;
    int epoll_fd;
};

struct kve_source {
    kve_source_id id;
    struct kve_source_env *env;  /* borrowed */
    struct kve_source_opts opts; /* strings are ours; keys are wiped */
    char *endpoint;
    char *replay_endpoint; /* NULL: none */
    char *topic;
    char *curve_keys[3];
    const struct kve_transport *transport;
    const struct kve_transport *replay_transport;

    struct kve_live_in *live;
    struct kve_replay_ask *ask; /* NULL: no request under way */
    uint32_t ask_id;
    struct kve_machine *machine;
    struct kve_sub_counters counters;

    struct kve_msg live_msg;
    struct kve_msg replay_msg;
    struct kve_action action; /* being executed; with has_action */
    bool has_action;
    bool replay_first; /* whose turn it is while a request runs */
    bool events_dry;   /* no connection event is waiting, as of this turn */
    bool live_dry;     /* the last receive found nothing */
    bool replay_dry;

    int fds[KVE_SOURCE_FDS]; /* registered with epoll */
    size_t n_fds;

    bool removed; /* by the caller: nothing more is delivered */
    bool queued;  /* in the subscriber's list of those with work */
    bool unknown_events;
    bool was_connected;
    int64_t stale_since; /* 0: connected */
    struct kve_source *next_queued;
    struct kve_source *next_removed;
};

/* What a turn came to. */
struct kve_turn {
    size_t batches; /* delivered */
    size_t inputs;  /* taken in */
    bool more;      /* the quota ended it, not the lack of work */
    bool stop;      /* on_batch asked for it */
};

/* Open the live socket; everything else follows in turns. */
kve_status kve_source_create(struct kve_source_env *env, kve_source_id id,
    const struct kve_source_opts *opts, struct kve_source **ret_source,
    struct kve_error *err);

/* Close the sockets; the memory stays until kve_source_destroy(). */
void kve_source_close(struct kve_source *source);
void kve_source_destroy(struct kve_source *source);

/*
 * Work until max_batches were delivered, the quota of inputs is used up, or
 * there is nothing to do. On failure (KVE_E_NOMEM, KVE_E_SYSTEM) nothing is
 * lost: the next turn goes on where this one stopped.
 */
kve_status kve_source_turn(struct kve_source *source, int64_t now_ns,
    size_t max_batches, struct kve_turn *ret_turn, struct kve_error *err);

/* When a turn is due although no descriptor says so; KVE_NEVER. */
int64_t kve_source_deadline(struct kve_source *source);

void kve_source_info(
    const struct kve_source *source, struct kve_source_info *info);

/* deliver.c: the batch that source->action applies. *ret_stop: on_batch wants
 * the loop to end. KVE_E_NOMEM: nothing was delivered. */
kve_status kve_source_deliver(struct kve_source *source, int64_t now_ns,
    bool *ret_stop, struct kve_error *err);

/* deliver.c: hand a notice to on_notice; type and what belongs to it. */
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
void kve_source_notify(struct kve_source *source, enum kve_notice_type type,
    const struct kve_notice_args *args);

#endif
