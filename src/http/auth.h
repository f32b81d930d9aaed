/*
 * auth.h - bearer tokens from a file.
 *
 * One token a line, # starts a comment, blank lines are nothing. A token is 8
 * to 512 visible ASCII characters; at most 256 of them. Comparing takes a time
 * that depends on the length of what was given and on the number of tokens,
 * not on how much of it is right.
 *
 * Threads: kve_auth_reload() and kve_auth_allows() any thread.
 */
#ifndef KVE_HTTP_AUTH_H
#define KVE_HTTP_AUTH_H

#include <kvevents/status.h>

#include <stdbool.h>

struct kve_auth;

/* KVE_OK, KVE_E_NOT_FOUND (no such file), KVE_E_SYSTEM, KVE_E_MALFORMED (its
 * contents), KVE_E_NOMEM. */
kve_status kve_auth_create(
    const char *path, struct kve_auth **ret_auth, struct kve_error *err);
void kve_auth_destroy(struct kve_auth *auth);

/* Read the file again; on failure the tokens stay. */
kve_status kve_auth_reload(struct kve_auth *auth, struct kve_error *err);

/* header: the value of Authorization, or NULL. */
bool kve_auth_allows(struct kve_auth *auth, const char *header);

#endif
