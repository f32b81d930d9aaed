/*
 * serve_notify.c - what systemd is told.
 */
#include "serve_notify.h"

#include <inttypes.h>
#include <time.h>

#if defined(KVE_HAVE_SYSTEMD)

#include <systemd/sd-daemon.h>

void
serve_notify_ready(const char *status)
{
    (void)sd_notifyf(0, "READY=1\nSTATUS=%s", status);
}

void
serve_notify_status(const char *status)
{
    (void)sd_notifyf(0, "STATUS=%s", status);
}

void
serve_notify_reloading(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    (void)sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
        (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_nsec / 1000);
}

void
serve_notify_stopping(void)
{
    (void)sd_notify(0, "STOPPING=1");
}

void
serve_notify_watchdog(void)
{
    (void)sd_notify(0, "WATCHDOG=1");
}

uint64_t
serve_notify_watchdog_ms(void)
{
    uint64_t usec = 0;

    if (sd_watchdog_enabled(0, &usec) <= 0)
        return 0;
    /* Twice within the time; at least once a millisecond. */
    return usec / 2000 > 0 ? usec / 2000 : 1;
}

#else

void
serve_notify_ready(const char *status)
{
    (void)status;
}

void
serve_notify_status(const char *status)
{
    (void)status;
}

void
serve_notify_reloading(void)
{
}

void
serve_notify_stopping(void)
{
}

void
serve_notify_watchdog(void)
{
}

uint64_t
serve_notify_watchdog_ms(void)
{
    return 0;
}

#endif
