/*
 * thread.h - a thread of the publisher's.
 */
#ifndef KVE_PUBLISH_THREAD_H
#define KVE_PUBLISH_THREAD_H

#include <kvevents/status.h>

#include <pthread.h>

/*
 * Start a thread that blocks every signal, and that does not push aside who
 * wakes it. what is for the error's text. Returns KVE_OK or KVE_E_SYSTEM.
 */
kve_status kve_thread_start(pthread_t *ret_thread, void *(*run)(void *),
    void *arg, const char *what, struct kve_error *err);

/* To be called first by such a thread. */
void kve_thread_begin(void);

/* Work that can wait: give way to other threads where there is no processor
 * for all. Nothing where the system cannot. */
void kve_thread_give_way(void);

/* Make descriptor fd, an eventfd, readable. Any thread. */
void kve_thread_wake(int fd);

/* Make it unreadable again. */
void kve_thread_woken(int fd);

#endif
