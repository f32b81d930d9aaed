/*
 * targets.c - the sources that a command line of watch names.
 */
#include "targets.h"

#include "endpoints.h"

#include <kvevents/context.h>
#include <kvevents/status.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENDPOINT_CAP 512

/* Where ":PORT" of a TCP endpoint begins, or NULL: it has none. */
static const char *
port_of(const char *endpoint)
{
    const char *colon = strrchr(endpoint, ':');

    if (strncmp(endpoint, "tcp://", 6) != 0 || colon < endpoint + 6)
        return NULL;
    return colon;
}

/* Whether a value says how to find an endpoint from another one. */
static bool
is_rule(const char *text)
{
    return text[0] == ':' || text[0] == '+' || strcmp(text, "none") == 0 ||
        strcmp(text, "replay") == 0;
}

/* ":5558" and "+1": an endpoint on the host of another one. */
static char *
beside(const struct command *command, const char *option, const char *endpoint,
    const char *rule)
{
    const char *colon = port_of(endpoint);
    char text[ENDPOINT_CAP];
    uint64_t port = 0;
    uint64_t number;
    char *copy;

    if (!option_number(rule + 1, 1, 65535, &number)) {
        option_complain(command,
            "--%s: '%s' is not accepted; give an endpoint, :PORT (the host of "
            "ENDPOINT and this port) or +N (its port plus N)",
            option, rule);
        return NULL;
    }
    if (colon == NULL || !option_number(colon + 1, 0, 65535, &port)) {
        option_complain(command,
            "--%s: '%s' needs an ENDPOINT with a port, and '%s' has none; give "
            "--%s once for each ENDPOINT",
            option, rule, endpoint, option);
        return NULL;
    }
    number += rule[0] == '+' ? port : 0;
    if (number > 65535) {
        option_complain(command,
            "--%s: '%s' makes port %" PRIu64 " of '%s'; ports end at 65535",
            option, rule, number, endpoint);
        return NULL;
    }
    (void)snprintf(text, sizeof(text), "%.*s:%" PRIu64, (int)(colon - endpoint),
        endpoint, number);
    copy = strdup(text);
    if (copy == NULL)
        option_complain(command, "out of memory");
    return copy;
}

/* Where a publisher serves something, from a value of the option; complains
 * and returns false when the value is none. *ret_text is NULL for none. */
static bool
resolve(const struct command *command, const char *option,
    const struct target *target, const char *value, char **ret_text)
{
    bool is_snapshot = strcmp(option, "snapshot") == 0;

    if (strcmp(value, "none") == 0)
        return true;
    if (is_snapshot && strcmp(value, "replay") == 0) {
        if (target->replay == NULL) {
            option_complain(command,
                "--snapshot: 'replay' is the replay endpoint, and %s has none; "
                "give --replay as well",
                target->endpoint);
            return false;
        }
        value = target->replay;
    } else if (value[0] == ':' || value[0] == '+') {
        *ret_text = beside(command, option, target->endpoint, value);
        return *ret_text != NULL;
    }
    *ret_text = strdup(value);
    if (*ret_text == NULL)
        option_complain(command, "out of memory");
    return *ret_text != NULL;
}

/* An endpoint to ask at, as it stands; complains when it is none. */
static bool
check_asked(const struct command *command, const char *option,
    const struct target *target, const char *text)
{
    char name[32];

    (void)snprintf(name, sizeof(name), "--%s", option);
    if (!endpoint_check(command, name, text))
        return false;
    if (strncmp(text, "tcp://*", 7) == 0) {
        option_complain(command,
            "--%s: '%s' is where a publisher listens; to connect to it name "
            "its host, tcp://127.0.0.1%s",
            option, text, text + 7);
        return false;
    }
    if (strcmp(text, target->endpoint) == 0) {
        option_complain(command,
            "--%s: '%s' is the live stream; give the endpoint where the "
            "publisher serves %s, or leave the option out",
            option, text, option);
        return false;
    }
    return true;
}

/* The value for the i-th of n endpoints: *ret_value, NULL when the option was
 * not given. false: there are too many or too few. */
static bool
value_of(const struct command *command, const char *option,
    const struct option_list *list, size_t i, size_t n, bool one_for_all,
    const char **ret_value)
{
    *ret_value = NULL;
    if (list->n == 0)
        return true;
    if (list->n == n) {
        *ret_value = list->items[i];
        return true;
    }
    if (list->n == 1 && (one_for_all || is_rule(list->items[0]))) {
        *ret_value = list->items[0];
        return true;
    }
    option_complain(command,
        "--%s: given %zu %s for %zu %s; give it once for each, in their "
        "order%s",
        option, list->n, list->n == 1 ? "time" : "times", n,
        n == 1 ? "endpoint" : "endpoints",
        one_for_all ? ", or once for all"
                    : ", or once as :PORT or +N (that port, or its own port "
                      "plus N, on the host of each)");
    return false;
}

/* The host and port of a TCP endpoint, for comparing ranges. */
static bool
host_and_port(const char *endpoint, size_t *ret_len, uint64_t *ret_port)
{
    const char *colon = port_of(endpoint);

    if (colon == NULL || !option_number(colon + 1, 1, 65535, ret_port))
        return false;
    *ret_len = (size_t)(colon - endpoint);
    return true;
}

/* Whether the ranks of two endpoints would share ports; complains. */
static bool
overlap(const struct command *command, const char *name_a, const char *a,
    const char *name_b, const char *b, uint64_t ranks)
{
    size_t len_a;
    size_t len_b;
    uint64_t at_a;
    uint64_t at_b;

    if (a == NULL || b == NULL || !host_and_port(a, &len_a, &at_a) ||
        !host_and_port(b, &len_b, &at_b) || len_a != len_b ||
        memcmp(a, b, len_a) != 0)
        return false;
    if (at_a + ranks <= at_b || at_b + ranks <= at_a)
        return false;
    option_complain(command,
        "--ranks: %s %s has ports %" PRIu64 "..%" PRIu64
        " and %s %s has %" PRIu64 "..%" PRIu64
        ", which overlap; ports of ranks follow one another, so these must be "
        "%" PRIu64 " or more apart",
        name_a, a, at_a, at_a + ranks - 1, name_b, b, at_b, at_b + ranks - 1,
        ranks);
    return true;
}

/* Whether every rank of a target has ports of its own. */
static bool
check_ranks(
    const struct command *command, const struct target *target, uint64_t ranks)
{
    const char *of[] = { target->endpoint, target->replay, target->snapshot };
    bool shared = target->replay != NULL && target->snapshot != NULL &&
        strcmp(target->replay, target->snapshot) == 0;
    char text[ENDPOINT_CAP];
    struct kve_error err;

    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
        if (of[i] != NULL &&
            kve_endpoint_of_rank(of[i], (uint32_t)(ranks - 1), text,
                sizeof(text), &err) != KVE_OK) {
            option_complain(command, "--ranks: %s", err.detail);
            return false;
        }
    return !overlap(command, "live", of[0], "replay", of[1], ranks) &&
        !overlap(command, "live", of[0], "snapshot", of[2], ranks) &&
        (shared ||
            !overlap(command, "replay", of[1], "snapshot", of[2], ranks));
}

/* The i-th endpoint with what belongs to it. */
static bool
make_target(const struct command *command, const struct target_words *words,
    size_t i, struct target *target)
{
    size_t n = words->n_endpoints;
    const char *replay;
    const char *snapshot;

    target->endpoint = words->endpoints[i];
    if (!endpoint_check(command, "ENDPOINT", target->endpoint))
        return false;
    if (words->connects && strncmp(target->endpoint, "tcp://*", 7) == 0) {
        option_complain(command,
            "ENDPOINT: '%s' is where a publisher listens; to connect to it "
            "name its host, tcp://127.0.0.1%s; to listen here give --bind yes",
            target->endpoint, target->endpoint + 7);
        return false;
    }
    for (size_t k = 0; k < i; k++)
        if (strcmp(words->endpoints[k], target->endpoint) == 0) {
            option_complain(command,
                "ENDPOINT: '%s' is given twice; one publisher is followed "
                "once",
                target->endpoint);
            return false;
        }
    if (!value_of(command, "replay", words->replays, i, n, false, &replay) ||
        !value_of(
            command, "snapshot", words->snapshots, i, n, false, &snapshot) ||
        !value_of(command, "curve-server-key", words->server_keys, i, n, true,
            &target->server_key))
        return false;
    if (replay != NULL &&
        !resolve(command, "replay", target, replay, &target->replay))
        return false;
    if (target->replay != NULL &&
        !check_asked(command, "replay", target, target->replay))
        return false;
    if (snapshot != NULL &&
        !resolve(command, "snapshot", target, snapshot, &target->snapshot))
        return false;
    if (target->snapshot != NULL &&
        !check_asked(command, "snapshot", target, target->snapshot))
        return false;
    target->rank = words->rank;
    return words->ranks == 0 || check_ranks(command, target, words->ranks);
}

/* Give a target of rank 0 its other ranks, behind it. */
static bool
add_ranks(struct target *target, uint64_t ranks)
{
    target->rank.set = true;
    target->rank.value = 0;
    for (uint64_t rank = 1; rank < ranks; rank++) {
        struct target *other = target + rank;

        *other = *target;
        other->rank.value = (int64_t)rank;
        other->replay = NULL;
        other->snapshot = NULL;
        if (target->replay != NULL) {
            other->replay = strdup(target->replay);
            if (other->replay == NULL)
                return false;
        }
        if (target->snapshot != NULL) {
            other->snapshot = strdup(target->snapshot);
            if (other->snapshot == NULL)
                return false;
        }
    }
    return true;
}

bool
targets_make(const struct command *command, const struct target_words *words,
    struct targets *ret_targets)
{
    size_t each = words->ranks > 0 ? (size_t)words->ranks : 1;
    struct targets targets = { .n = words->n_endpoints * each };
    bool good = false;

    targets.items = calloc(targets.n, sizeof(*targets.items));
    if (targets.items == NULL) {
        option_complain(command, "out of memory");
        goto out;
    }
    for (size_t i = 0; i < words->n_endpoints; i++) {
        struct target *target = &targets.items[i * each];

        if (!make_target(command, words, i, target))
            goto out;
        if (words->ranks > 0 && !add_ranks(target, words->ranks)) {
            option_complain(command, "out of memory");
            goto out;
        }
    }
    *ret_targets = targets;
    targets.items = NULL;
    good = true;

out:
    targets_release(&targets);
    return good;
}

void
targets_release(struct targets *targets)
{
    for (size_t i = 0; targets->items != NULL && i < targets->n; i++) {
        free(targets->items[i].replay);
        free(targets->items[i].snapshot);
    }
    free(targets->items);
    targets->items = NULL;
    targets->n = 0;
}
