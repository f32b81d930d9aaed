/*
 * name.h - all addresses of a name, asked for beside the thread that wants
 * them.
 *
 * getaddrinfo() has no deadline and can not be called off, so each question has
 * a thread of its own, which lets go of the last reference when it comes back
 * after nobody wanted the answer any more. (transport/resolve.h keeps eight
 * addresses of a name, enough to connect to it; a headless service has as many
 * as it has pods.)
 */
#ifndef KVE_DISCOVER_NAME_H
#define KVE_DISCOVER_NAME_H

#include <kvevents/status.h>

#include <stdbool.h>
#include <stddef.h>

/* Addresses as endpoints have them: "10.0.0.7", "[fd00::7]"; sorted, each once.
 */
struct kve_name_answer {
    char (*addresses)[64];
    size_t n;
    char why[160]; /* "" or why there is none */
};

struct kve_name_question;

/* Ask for host; fd, an eventfd, is written when the answer is there and stays
 * the caller's. NULL: no memory, or no thread; err says which. */
struct kve_name_question *kve_name_ask(
    const char *host, size_t max, int fd, struct kve_error *err);

/* Whether there is an answer; it is borrowed until kve_name_end(). */
bool kve_name_answered(
    struct kve_name_question *question, const struct kve_name_answer **ret);

/* Want it no more, answered or not. fd is not written after this. NULL is
 * allowed. */
void kve_name_end(struct kve_name_question *question);

/* For tests: what answers instead of the system's resolver, or NULL. It fills
 * answer, whose memory is kve_mem_'s, and may take its time. */
typedef void kve_name_fn(
    void *ctx, const char *host, struct kve_name_answer *answer);
void kve_name_set_fn(kve_name_fn *fn, void *ctx);

#endif
