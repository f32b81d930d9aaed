/*
 * endpoints.h - what people write for endpoints and keys, judged early.
 *
 * The library refuses what it cannot use; here are the mistakes that are made
 * most, each with a word on what was meant: no tcp:// in front, a `*` where a
 * program connects, an address that everybody can reach.
 */
#ifndef KVEVENTS_TOOL_ENDPOINTS_H
#define KVEVENTS_TOOL_ENDPOINTS_H

#include "command.h"

#include <kvevents/context.h>
#include <kvevents/event.h>

/* Whether text has a scheme. When not, complains and returns false; what names
 * the option or operand. */
bool endpoint_check(
    const struct command *command, const char *what, const char *text);

/* Whether the endpoint is every address of this machine: `*` and the like. */
bool endpoint_is_wildcard(const char *text);

/* Whether other machines reach the endpoint when it is bound. */
bool endpoint_is_public(const char *text);

/* Two keys, a Z85 text of 40 characters a line: public, then secret. */
struct key_pair {
    char public_key[41];
    char secret_key[41];
};

/* Read a file of keys; false: it is none, and error says why in one line. */
bool key_pair_load(
    const char *path, struct key_pair *ret_keys, char *error, size_t cap);

/* The same; complains. */
bool key_pair_read(
    const struct command *command, const char *path, struct key_pair *ret_keys);

/* What reads --rank, into a struct kve_int. */
bool endpoint_parse_rank(const char *text, void *into);

#endif
