/*
 * context.h - what publishers and subscribers of one process share.
 *
 * A context holds a ZeroMQ context (its own or the caller's), the limits that
 * are set once for all sockets, the log hook and the CURVE door keeper. Where
 * a function takes a context, NULL means: one of your own, which ends with
 * the handle that made it.
 *
 * Caveats
 *   - after fork() a child may only destroy handles; every other call on a
 *     handle of the parent returns KVE_E_FORKED;
 *   - ZeroMQ ends the process when it runs out of memory; this library
 *     reports KVE_E_NOMEM for its own allocations;
 *   - the library installs no signal handler and raises no SIGPIPE.
 */
#ifndef KVEVENTS_CONTEXT_H
#define KVEVENTS_CONTEXT_H

#include <kvevents/export.h>
#include <kvevents/status.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kve_context kve_context;

/* For options of which 0 means "the default": none at all. */
#define KVE_NONE UINT32_MAX

/* How much a line of the log hook matters. */
enum kve_log_level {
    KVE_LOG_ERROR = 1,
    KVE_LOG_WARNING = 2,
    KVE_LOG_INFO = 3,
    KVE_LOG_DEBUG = 4
};

/*
 * One line of the library's log: no newline, never token ids. May be called
 * from the library's own threads, several at once; must not call the library.
 */
typedef void kve_log_fn(void *ctx, enum kve_log_level level, const char *line);

/* Zero means the default. */
struct kve_context_opts {
    size_t struct_size;
    /* A ZeroMQ context of the caller's, for inproc endpoints shared with
     * other code; borrowed until kve_context_destroy(), which does not end
     * it. The socket limit is then the caller's business. NULL: our own. */
    void *zmq_context;
    uint32_t io_threads;  /* of our own ZeroMQ context; default 1 */
    uint32_t max_sources; /* sockets are allowed for; default 256 */
    kve_log_fn *log;      /* default: no log */
    void *log_ctx;        /* handed to log */
    /* A file with the public keys of the clients that CURVE lets in, one
     * Z85 text of 40 characters a line, # starts a comment. It is read once.
     * NULL: CURVE encrypts and lets anyone in who knows the server's key. */
    const char *curve_allow;
};

#define KVE_CONTEXT_OPTS_INIT                                         \
    {                                                                 \
        sizeof(struct kve_context_opts), NULL, 0, 0, NULL, NULL, NULL \
    }

/* The same as KVE_CONTEXT_OPTS_INIT for languages without macros. */
KVE_API void kve_context_opts_init(struct kve_context_opts *opts);

/*
 * Create a context; opts may be NULL. Strings are copied. The caller owns
 * *ret_context and destroys it after every handle that uses it.
 *
 * Returns KVE_OK, KVE_E_INVAL, KVE_E_IN_USE (curve_allow, and the ZeroMQ
 * context has a door keeper already), KVE_E_UNSUPPORTED, KVE_E_NOMEM or
 * KVE_E_SYSTEM.
 */
KVE_API kve_status kve_context_create(const struct kve_context_opts *opts,
    kve_context **ret_context, struct kve_error *err);

/*
 * Close and free; every publisher and subscriber of it must be gone. Returns
 * when ports are free again. NULL is allowed and does nothing.
 */
KVE_API void kve_context_destroy(kve_context *context);

/*
 * CURVE keys of one end, each a Z85 text of 40 characters. All NULL: no
 * encryption. A publisher (the CURVE server) sets public_key and secret_key;
 * a subscriber sets all three.
 */
struct kve_curve {
    const char *server_key; /* the publisher's public key */
    const char *public_key; /* this end's own */
    const char *secret_key; /* this end's own; wiped when the handle ends */
};

/* Which end of a connection an endpoint is. */
enum kve_bind {
    KVE_BIND_DEFAULT = 0, /* publishers bind, subscribers connect */
    KVE_BIND_YES = 1,
    KVE_BIND_NO = 2,
    /* vLLM's rule: bind when the endpoint has `*` or `::` or starts with
     * ipc:// or inproc://; and, unlike there, for 0.0.0.0 and [::] too;
     * [fd00::5] and other whole addresses connect. */
    KVE_BIND_GUESS = 3
};

/*
 * Where rank's publisher is when rank 0's is at endpoint, by vLLM's rules: a
 * TCP port moves by rank (a port of 0 stays 0), an inproc name gets the
 * suffix _dp<rank>, an ipc path gets the suffix _dp<rank> as well. Rank 0
 * changes nothing.
 *
 * Writes a terminated text of at most cap bytes to ret_text.
 * Returns KVE_OK, KVE_E_INVAL (no such scheme, no port, port above 65535) or
 * KVE_E_LIMIT (cap too small).
 */
KVE_API kve_status kve_endpoint_of_rank(const char *endpoint, uint32_t rank,
    char *ret_text, size_t cap, struct kve_error *err);

/*
 * An allocator for everything this library allocates itself.
 */
struct kve_allocator {
    size_t struct_size;
    /* size > 0: allocate (p NULL) or resize, NULL on failure. size 0: free.
     * Called from any thread. */
    void *(*resize)(void *ctx, void *p, size_t size);
    void *ctx;
};

/*
 * Use this allocator for the whole process. Only before anything else of the
 * library was called.
 *
 * Returns KVE_OK, KVE_E_INVAL, or KVE_E_IN_USE when it is too late.
 */
KVE_API kve_status kve_allocator_set(const struct kve_allocator *allocator);

#ifdef __cplusplus
}
#endif

#endif
