/*
 * serve_notify.h - what systemd is told: ready, alive, reloading, stopping.
 *
 * Built without libsystemd, or started by nobody who listens, it says nothing.
 */
#ifndef KVEVENTS_TOOL_SERVE_NOTIFY_H
#define KVEVENTS_TOOL_SERVE_NOTIFY_H

#include <stdint.h>

void serve_notify_ready(const char *status);
void serve_notify_status(const char *status);
void serve_notify_reloading(void);
void serve_notify_stopping(void);

/* Alive. */
void serve_notify_watchdog(void);

/* How often that has to be said, in milliseconds; 0: never. */
uint64_t serve_notify_watchdog_ms(void);

#endif
