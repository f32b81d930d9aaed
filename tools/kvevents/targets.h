/*
 * targets.h - the sources that a command line of watch names.
 *
 * Endpoints are operands, any number of them. What belongs to an endpoint
 * (where it serves replay and snapshots, its key) is an option that is given
 * once for each, in the order of the endpoints, or once for all. Once for all
 * means a rule where it is an endpoint, because two publishers never share
 * one:
 *
 *     :PORT    the host of ENDPOINT, and this port
 *     +N       the host of ENDPOINT, and its port plus N
 *     none     there is none
 *     replay   of a snapshot: the replay endpoint
 *
 * With ranks each endpoint stands for as many publishers, whose ports follow
 * one another; ranges of ports that overlap are refused with both of them.
 */
#ifndef KVEVENTS_TOOL_TARGETS_H
#define KVEVENTS_TOOL_TARGETS_H

#include "command.h"

#include <kvevents/event.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One source to follow; its endpoints are those of rank 0. */
struct target {
    const char *endpoint;   /* borrowed from the command line */
    char *replay;           /* or NULL */
    char *snapshot;         /* or NULL */
    const char *server_key; /* borrowed; or NULL */
    struct kve_int rank;
};

struct targets {
    size_t n;
    struct target *items;
};

/* What was typed. */
struct target_words {
    size_t n_endpoints;
    char *const *endpoints;
    const struct option_list *replays;
    const struct option_list *snapshots;
    const struct option_list *server_keys;
    bool connects; /* a `*` is a mistake */
    struct kve_int rank;
    uint64_t ranks; /* 0: not given */
};

/* Make the sources of a command line; complains and returns false when they
 * cannot be. The caller ends *ret_targets with targets_release(). */
bool targets_make(const struct command *command,
    const struct target_words *words, struct targets *ret_targets);

void targets_release(struct targets *targets);

#endif
