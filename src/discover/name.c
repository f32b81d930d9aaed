/*
 * name.c - a thread for each question to the resolver.
 */
#include "discover/name.h"

#include "base/alloc.h"
#include "base/status.h"

#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct kve_name_question {
    pthread_mutex_t lock;
    int refs;  /* who asks, and the thread. Under lock */
    int fd;    /* -1: nobody waits. Under lock */
    bool done; /* under lock; answer does not change after it */
    size_t max;
    struct kve_name_answer answer;
    char host[];
};

static struct {
    pthread_mutex_t lock;
    kve_name_fn *fn;
    void *ctx;
} hook = { PTHREAD_MUTEX_INITIALIZER, NULL, NULL };

void
kve_name_set_fn(kve_name_fn *fn, void *ctx)
{
    (void)pthread_mutex_lock(&hook.lock);
    hook.fn = fn;
    hook.ctx = ctx;
    (void)pthread_mutex_unlock(&hook.lock);
}

static void
unref(struct kve_name_question *question)
{
    int refs;

    (void)pthread_mutex_lock(&question->lock);
    refs = --question->refs;
    (void)pthread_mutex_unlock(&question->lock);
    if (refs > 0)
        return;
    (void)pthread_mutex_destroy(&question->lock);
    kve_mem_free(question->answer.addresses);
    kve_mem_free(question);
}

static int
compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Each address once, in order, whatever order the resolver gave them. */
static void
sort(struct kve_name_answer *answer)
{
    size_t n = 0;

    if (answer->n == 0)
        return;
    qsort(answer->addresses, answer->n, sizeof(*answer->addresses), compare);
    for (size_t i = 0; i < answer->n; i++)
        if (n == 0 ||
            strcmp(answer->addresses[n - 1], answer->addresses[i]) != 0)
            memmove(answer->addresses[n++], answer->addresses[i],
                sizeof(*answer->addresses));
    answer->n = n;
}

/* "[fe80::1%eth0]"; false: it has no numeric form that fits. */
static bool
write_address(const struct addrinfo *info, char text[64])
{
    char numeric[62];

    if (getnameinfo(info->ai_addr, info->ai_addrlen, numeric, sizeof(numeric),
            NULL, 0, NI_NUMERICHOST) != 0)
        return false;
    (void)snprintf(
        text, 64, info->ai_family == AF_INET6 ? "[%s]" : "%s", numeric);
    return true;
}

static void
look_up(struct kve_name_question *question)
{
    struct kve_name_answer *answer = &question->answer;
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    struct addrinfo *list = NULL;
    size_t n = 0;
    int code = getaddrinfo(question->host, NULL, &hints, &list);

    if (code != 0) {
        (void)snprintf(
            answer->why, sizeof(answer->why), "%s", gai_strerror(code));
        return;
    }
    for (const struct addrinfo *i = list; i != NULL; i = i->ai_next)
        n++;
    if (n > question->max)
        n = question->max;
    answer->addresses = kve_mem_array(NULL, n + 1, sizeof(*answer->addresses));
    if (answer->addresses == NULL)
        (void)snprintf(answer->why, sizeof(answer->why), "out of memory");
    else
        for (const struct addrinfo *i = list; i != NULL && answer->n < n;
             i = i->ai_next)
            if (i->ai_family == AF_INET || i->ai_family == AF_INET6)
                answer->n +=
                    write_address(i, answer->addresses[answer->n]) ? 1 : 0;
    freeaddrinfo(list);
}

static void *
thread_main(void *arg)
{
    struct kve_name_question *question = arg;
    kve_name_fn *fn;
    void *ctx;

    (void)pthread_mutex_lock(&hook.lock);
    fn = hook.fn;
    ctx = hook.ctx;
    (void)pthread_mutex_unlock(&hook.lock);
    if (fn != NULL)
        fn(ctx, question->host, &question->answer);
    else
        look_up(question);
    sort(&question->answer);
    (void)pthread_mutex_lock(&question->lock);
    question->done = true;
    if (question->fd >= 0) {
        uint64_t one = 1;

        if (write(question->fd, &one, sizeof(one)) < 0)
            question->fd = -1; /* its counter is full: it is readable */
    }
    (void)pthread_mutex_unlock(&question->lock);
    unref(question);
    return NULL;
}

struct kve_name_question *
kve_name_ask(const char *host, size_t max, int fd, struct kve_error *err)
{
    size_t len = strlen(host) + 1;
    struct kve_name_question *question =
        kve_mem_zalloc(1, sizeof(*question) + len);
    pthread_attr_t attr;
    pthread_t thread;
    int code;

    if (question == NULL) {
        (void)kve_fail_nomem(err, "a look-up");
        return NULL;
    }
    (void)pthread_mutex_init(&question->lock, NULL);
    memcpy(question->host, host, len);
    question->refs = 2;
    question->fd = fd;
    question->max = max;
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    code = pthread_create(&thread, &attr, thread_main, question);
    (void)pthread_attr_destroy(&attr);
    if (code != 0) {
        (void)kve_fail(err, KVE_E_SYSTEM, "no thread to look '%s' up: %s", host,
            strerror(code));
        unref(question);
        unref(question);
        question = NULL;
    }
    return question;
}

bool
kve_name_answered(
    struct kve_name_question *question, const struct kve_name_answer **ret)
{
    bool done;

    (void)pthread_mutex_lock(&question->lock);
    done = question->done;
    (void)pthread_mutex_unlock(&question->lock);
    if (done)
        *ret = &question->answer;
    return done;
}

void
kve_name_end(struct kve_name_question *question)
{
    if (question == NULL)
        return;
    (void)pthread_mutex_lock(&question->lock);
    question->fd = -1;
    (void)pthread_mutex_unlock(&question->lock);
    unref(question);
}
