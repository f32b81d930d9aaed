/*
 * status.h - fill a struct kve_error and return its status in one line:
 *
 *     return kve_fail_at(err, KVE_E_LIMIT, at, "body of %zu bytes, limit %zu",
 *         n, max);
 *
 * err may be NULL. Texts are one line for people: what was wrong, what was
 * given, what is accepted, what to try.
 */
#ifndef KVE_BASE_STATUS_H
#define KVE_BASE_STATUS_H

#include <kvevents/status.h>

/* With KVE_E_SYSTEM the errno of the moment is kept too. */
kve_status kve_fail(struct kve_error *err, kve_status status, const char *fmt,
    ...) KVE_PRINTF(3, 4);

/* The same about byte offset of an input. */
kve_status kve_fail_at(struct kve_error *err, kve_status status, size_t offset,
    const char *fmt, ...) KVE_PRINTF(4, 5);

/* "out of memory: what" */
kve_status kve_fail_nomem(struct kve_error *err, const char *what);

/*
 * Copy an options structure whose first member is struct_size: what the
 * caller's build does not know becomes zero (the default), and a field that
 * this library does not know must be zero.
 *
 * opts NULL gives all zeros; struct_size 0, as in "= {0}", means the fields of
 * the first release, whose size is min. name is for the error text.
 */
kve_status kve_opts_read(const void *opts, size_t min, void *ret, size_t size,
    const char *name, struct kve_error *err);

#endif
