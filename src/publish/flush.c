/*
 * flush.c - waiting until the sender has passed a place in the queue.
 *
 * The sender takes the lock only when somebody waits. It moves the head and
 * then looks for waiting ones; they count themselves and then look at the
 * head. Both are sequentially consistent, so nobody waits unseen.
 */
#include "publish/publisher.h"

#include "base/clock.h"
#include "base/status.h"

#include <errno.h>
#include <time.h>

kve_status
kve_flush_init(struct kve_flush *flush, struct kve_error *err)
{
    pthread_condattr_t attr;
    int rc = pthread_condattr_init(&attr);

    if (rc != 0)
        return kve_fail(err, KVE_E_SYSTEM, "a condition was refused (%d)", rc);
    rc = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    if (rc == 0)
        rc = pthread_cond_init(&flush->moved, &attr);
    (void)pthread_condattr_destroy(&attr);
    if (rc != 0)
        return kve_fail(err, KVE_E_SYSTEM, "a condition was refused (%d)", rc);
    rc = pthread_mutex_init(&flush->lock, NULL);
    if (rc != 0) {
        (void)pthread_cond_destroy(&flush->moved);
        return kve_fail(err, KVE_E_SYSTEM, "a mutex was refused (%d)", rc);
    }
    flush->made = true;
    return KVE_OK;
}

void
kve_flush_release(struct kve_flush *flush)
{
    if (flush->made) {
        (void)pthread_cond_destroy(&flush->moved);
        (void)pthread_mutex_destroy(&flush->lock);
    }
    flush->made = false;
}

void
kve_flush_moved(struct kve_flush *flush, bool end)
{
    if (!end && atomic_load(&flush->waiting) == 0)
        return;
    (void)pthread_mutex_lock(&flush->lock);
    flush->ended |= end;
    (void)pthread_cond_broadcast(&flush->moved);
    (void)pthread_mutex_unlock(&flush->lock);
}

static struct timespec
timespec_of(int64_t ns)
{
    return (struct timespec){ .tv_sec = (time_t)(ns / 1000000000),
        .tv_nsec = (long)(ns % 1000000000) };
}

kve_status
kve_flush_wait(struct kve_flush *flush, struct kve_queue *queue,
    uint64_t target, int timeout_ms)
{
    struct timespec until = timespec_of(kve_now_ns() + timeout_ms * KVE_MS);
    kve_status status = KVE_OK;
    int rc = 0;

    atomic_fetch_add(&flush->waiting, 1);
    (void)pthread_mutex_lock(&flush->lock);
    while (kve_queue_head(queue) < target && !flush->ended && rc == 0)
        rc = timeout_ms < 0
            ? pthread_cond_wait(&flush->moved, &flush->lock)
            : pthread_cond_timedwait(&flush->moved, &flush->lock, &until);
    if (kve_queue_head(queue) < target)
        status = flush->ended ? KVE_E_CLOSED : KVE_E_TIMEOUT;
    (void)pthread_mutex_unlock(&flush->lock);
    atomic_fetch_sub(&flush->waiting, 1);
    return status;
}
