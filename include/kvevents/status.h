/*
 * status.h - how every function of this library says what happened.
 *
 * Conventions, true for every function of include/kvevents unless it says
 * otherwise:
 *   - functions that can fail return kve_status; KVE_OK is 0;
 *   - ret_* arguments are written on success only;
 *   - options begin with struct_size, the size of the structure as the caller
 *     knows it; an _INIT macro or an _init() function sets it. 0 means the
 *     size of the structure's first release, so that "= {0}" works too;
 *   - a struct kve_error argument may be NULL; it is written on failure only;
 *   - strings returned as const char * belong to the library and are never
 *     NULL unless the function says so;
 *   - one handle may be used by one thread at a time;
 *   - the library never writes to standard output or standard error.
 */
#ifndef KVEVENTS_STATUS_H
#define KVEVENTS_STATUS_H

#include <kvevents/export.h>

#include <stddef.h>

/*
 * Every status the library can return, with its text. Added at the end only;
 * a number, once released, keeps its meaning for ever.
 */
#define KVE_STATUS_MAP(X)                                            \
    X(OK, 0, "success")                                              \
    X(E_NOMEM, 1, "out of memory")                                   \
    X(E_INVAL, 2, "invalid argument")                                \
    X(E_TRUNCATED, 3, "input ends too early")                        \
    X(E_MALFORMED, 4, "input breaks the format")                     \
    X(E_LIMIT, 5, "a configured limit was reached")                  \
    X(E_CLOSED, 6, "the handle is closed")                           \
    X(E_SYSTEM, 7, "the operating system refused")                   \
    X(E_SCHEMA, 8, "input is well-formed but not what it should be") \
    X(E_FORKED, 9, "the handle belongs to the parent process")       \
    X(E_TIMEOUT, 10, "the time limit passed")                        \
    X(E_UNSUPPORTED, 11, "not supported")                            \
    X(E_IN_USE, 12, "the address is in use")                         \
    X(E_NOT_FOUND, 13, "no such thing")                              \
    X(E_DROPPED, 14, "dropped and counted: the queue is full")

typedef enum kve_status {
#define X(name, number, text) KVE_##name = number,
    KVE_STATUS_MAP(X)
#undef X
} kve_status;

/*
 * What went wrong in one call, in detail. The caller owns it, so two threads
 * never share one. Pass NULL where the status alone is enough.
 */
struct kve_error {
    kve_status status;
    int sys_errno;    /* errno when status is KVE_E_SYSTEM, else 0 */
    size_t offset;    /* byte of the input that the status is about */
    char detail[240]; /* one line, no newline, always terminated */
};

#ifdef __cplusplus
extern "C" {
#endif

/* Fixed text for a status, also for numbers it does not know. Any thread. */
KVE_API const char *kve_status_str(kve_status status);

/* "KVE_E_LIMIT" for KVE_E_LIMIT; "KVE_?" for unknown numbers. Any thread. */
KVE_API const char *kve_status_name(kve_status status);

#ifdef __cplusplus
}
#endif

#endif
