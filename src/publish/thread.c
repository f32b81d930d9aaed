/*
 * thread.c - see thread.h.
 */
#include "publish/thread.h"

#include "base/status.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define NICE 10

kve_status
kve_thread_start(pthread_t *ret_thread, void *(*run)(void *), void *arg,
    const char *what, struct kve_error *err)
{
    sigset_t all, before;
    int rc;

    /* Signals are the program's business and its threads'. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(ret_thread, NULL, run, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        errno = rc;
        return kve_fail(err, KVE_E_SYSTEM, "the %s thread was refused: %s",
            what, strerror(rc));
    }
    return KVE_OK;
}

/*
 * A thread that is woken may push aside the one that woke it: here the
 * engine's, in the middle of publish() (on a busy machine one call in a
 * hundred then took 60 us instead of 8). Batch threads do not do that, and
 * get their share of processor time all the same. Where somebody chose another
 * policy, or none is known, all stays as it is.
 */
void
kve_thread_begin(void)
{
#ifdef SCHED_BATCH
    struct sched_param param;
    int policy;

    if (pthread_getschedparam(pthread_self(), &policy, &param) == 0 &&
        policy == SCHED_OTHER)
        (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &param);
#endif
}

/* Among threads of one weight a snapshot that is made takes half a processor
 * from the sender for as long as that takes. */
void
kve_thread_give_way(void)
{
#ifdef __linux__
    /* Here a thread has a weight of its own. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
#endif
}

void
kve_thread_wake(int fd)
{
    uint64_t one = 1;
    ssize_t n;

    /* Only a counter that is full refuses, and then it wakes as well. */
    do
        n = write(fd, &one, sizeof(one));
    while (n < 0 && errno == EINTR);
}

void
kve_thread_woken(int fd)
{
    uint64_t count;

    while (read(fd, &count, sizeof(count)) < 0 && errno == EINTR)
        ;
}
