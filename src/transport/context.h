/*
 * context.h - inside of a kve_context.
 *
 * One per process or per handle: the ZeroMQ context, the resolver thread
 * (started with the first name), the log hook and the CURVE door keeper (a
 * thread that answers ZAP requests, only when a list of keys is given).
 */
#ifndef KVE_TRANSPORT_CONTEXT_H
#define KVE_TRANSPORT_CONTEXT_H

#include <kvevents/context.h>

#include <stdbool.h>

struct kve_resolver;

/*
 * A reference to context, or a new context of one's own when it is NULL, with
 * room for sources sockets. End with kve_context_unref().
 */
kve_status kve_context_ref(kve_context *context, uint32_t sources,
    kve_context **ret_context, struct kve_error *err);
/* The same, and one of our own has one I/O thread more, which only sockets
 * that ask for it use. A caller's context is used as it is. */
kve_status kve_context_ref_apart(kve_context *context, uint32_t sources,
    kve_context **ret_context, struct kve_error *err);
void kve_context_unref(kve_context *context);

/* Whether the last I/O thread is kept for sockets that ask for it. */
bool kve_context_keeps_apart(const kve_context *context);

/* I/O threads of the socket library's context. */
unsigned kve_context_io_threads(kve_context *context);

/* The socket library's context. */
void *kve_context_zmq(kve_context *context);

/* Whether we are a child of the process that made the context. */
bool kve_context_forked(const kve_context *context);

/* The threads that look names up; started by the first call. NULL when memory
 * is short. Any thread. */
struct kve_resolver *kve_context_resolver(kve_context *context);

/* One line for the log hook, when there is one. Never token ids. */
void kve_context_log(kve_context *context, enum kve_log_level level,
    const char *fmt, ...) KVE_PRINTF(3, 4);

/* Whether the n-th time of something that strangers can cause is worth a line:
 * the 1st, 2nd, 4th, 8th ... is. */
static inline bool
kve_is_worth_a_line(uint64_t n)
{
    return (n & (n - 1)) == 0;
}

#endif
