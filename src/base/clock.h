/*
 * clock.h - the library's only sources of time.
 *
 * State machines take now_ns as an argument; only code that does I/O asks
 * the clock.
 */
#ifndef KVE_BASE_CLOCK_H
#define KVE_BASE_CLOCK_H

#include <stdint.h>

#define KVE_MS INT64_C(1000000) /* nanoseconds in a millisecond */
#define KVE_NEVER INT64_MAX     /* a deadline that does not come */

/* CLOCK_MONOTONIC in nanoseconds. */
int64_t kve_now_ns(void);

/* CLOCK_REALTIME in seconds, for time stamps in batches. */
double kve_unix_time(void);

/* Milliseconds until a deadline, rounded up, for poll(): 0 when it passed,
 * -1 for KVE_NEVER. */
int kve_ms_until(int64_t deadline_ns, int64_t now_ns);

#endif
