/*
 * v1_feed.c - answers that a thread makes.
 */
#include "http/v1_feed.h"

#include "base/alloc.h"
#include "publish/thread.h"

#include <pthread.h>
#include <string.h>

/* Threads that run, of all services of the process. */
static pthread_mutex_t running_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t running_less = PTHREAD_COND_INITIALIZER;

struct kve_feed {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    struct kve_http *http;
    kve_feed_fn *produce;
    void *arg;
    /* Under the lock. */
    unsigned owners;  /* the thread and the connection */
    void *connection; /* NULL: the client left */
    bool asleep;      /* the connection waits to be woken */
    bool waking;      /* it is just being woken: it may not end */
    bool made;        /* that is all */
    bool failed;      /* and it is not whole */
    size_t first;     /* of the ring */
    size_t n;
    uint8_t ring[KVE_FEED_BYTES];
};

static bool
running_begin(struct kve_http *http)
{
    bool begun;

    (void)pthread_mutex_lock(&running_lock);
    begun = http->feeds < KVE_FEEDS;
    if (begun)
        http->feeds++;
    (void)pthread_mutex_unlock(&running_lock);
    return begun;
}

static void
running_end(struct kve_http *http)
{
    (void)pthread_mutex_lock(&running_lock);
    http->feeds--;
    (void)pthread_cond_broadcast(&running_less);
    (void)pthread_mutex_unlock(&running_lock);
}

void
kve_feeds_wait(struct kve_http *http)
{
    (void)pthread_mutex_lock(&running_lock);
    while (http->feeds > 0)
        (void)pthread_cond_wait(&running_less, &running_lock);
    (void)pthread_mutex_unlock(&running_lock);
}

static struct kve_feed *
feed_create(struct kve_http *http, struct kve_http_request *req,
    kve_feed_fn *produce, void *arg)
{
    struct kve_feed *feed = kve_mem_zalloc(1, sizeof(*feed));

    if (feed == NULL)
        return NULL;
    feed->http = http;
    feed->produce = produce;
    feed->arg = arg;
    feed->owners = 2;
    feed->connection = req->connection;
    (void)pthread_mutex_init(&feed->lock, NULL);
    (void)pthread_cond_init(&feed->moved, NULL);
    return feed;
}

static void
feed_destroy(struct kve_feed *feed)
{
    (void)pthread_cond_destroy(&feed->moved);
    (void)pthread_mutex_destroy(&feed->lock);
    kve_mem_free(feed->arg);
    kve_mem_free(feed);
}

/* One of the two is done with it. */
static void
feed_leave(struct kve_feed *feed, bool client)
{
    bool last;

    (void)pthread_mutex_lock(&feed->lock);
    if (client)
        feed->connection = NULL;
    while (client && feed->waking)
        (void)pthread_cond_wait(&feed->moved, &feed->lock);
    last = --feed->owners == 0;
    (void)pthread_cond_broadcast(&feed->moved);
    (void)pthread_mutex_unlock(&feed->lock);
    if (last)
        feed_destroy(feed);
}

/* ---- the thread's side ---- */

/* Wake the connection when it sleeps. Called with the lock, which is left for
 * that: the connection's own lock is held while it pulls. */
static void
wake(struct kve_feed *feed)
{
    void *connection = feed->connection;

    if (!feed->asleep || connection == NULL)
        return;
    feed->asleep = false;
    feed->waking = true;
    (void)pthread_mutex_unlock(&feed->lock);
    kve_http_wake(feed->http, connection);
    (void)pthread_mutex_lock(&feed->lock);
    feed->waking = false;
    (void)pthread_cond_broadcast(&feed->moved);
}

/* Bytes into the ring, as many as fit. */
static size_t
put_some(struct kve_feed *feed, const uint8_t *data, size_t len)
{
    size_t at = (feed->first + feed->n) % KVE_FEED_BYTES;
    size_t room = KVE_FEED_BYTES - feed->n;

    if (room > KVE_FEED_BYTES - at)
        room = KVE_FEED_BYTES - at;
    if (len > room)
        len = room;
    memcpy(feed->ring + at, data, len);
    feed->n += len;
    return len;
}

bool
kve_feed_put(struct kve_feed *feed, const void *data, size_t len)
{
    const uint8_t *at = data;
    bool wanted;

    (void)pthread_mutex_lock(&feed->lock);
    while (len > 0 && feed->connection != NULL) {
        size_t n = put_some(feed, at, len);

        at += n;
        len -= n;
        if (n > 0) {
            wake(feed);
            continue;
        }
        (void)pthread_cond_wait(&feed->moved, &feed->lock);
    }
    wanted = feed->connection != NULL;
    (void)pthread_mutex_unlock(&feed->lock);
    return wanted;
}

bool
kve_feed_wanted(struct kve_feed *feed)
{
    bool wanted;

    (void)pthread_mutex_lock(&feed->lock);
    wanted = feed->connection != NULL;
    (void)pthread_mutex_unlock(&feed->lock);
    return wanted;
}

static void *
feed_run(void *ctx)
{
    struct kve_feed *feed = ctx;
    struct kve_http *http = feed->http;
    bool whole = feed->produce(http, feed, feed->arg);

    (void)pthread_mutex_lock(&feed->lock);
    feed->made = true;
    feed->failed = !whole;
    wake(feed);
    (void)pthread_mutex_unlock(&feed->lock);
    feed_leave(feed, false);
    running_end(http);
    return NULL;
}

/* ---- the connection's side ---- */

static ptrdiff_t
feed_pull(void *ctx, uint8_t *data, size_t cap)
{
    struct kve_feed *feed = ctx;
    ptrdiff_t ret = 0;
    size_t n;

    (void)pthread_mutex_lock(&feed->lock);
    n = KVE_FEED_BYTES - feed->first;
    if (n > feed->n)
        n = feed->n;
    if (n > cap)
        n = cap;
    if (n > 0) {
        memcpy(data, feed->ring + feed->first, n);
        feed->first = (feed->first + n) % KVE_FEED_BYTES;
        feed->n -= n;
        (void)pthread_cond_broadcast(&feed->moved);
        ret = (ptrdiff_t)n;
    } else if (feed->made) {
        ret = feed->failed ? -2 : -1;
    } else {
        feed->asleep = true;
    }
    (void)pthread_mutex_unlock(&feed->lock);
    return ret;
}

static void
feed_pull_end(void *ctx)
{
    feed_leave(ctx, true);
}

void
kve_feed_start(struct kve_http *http, struct kve_http_request *req,
    kve_feed_fn *produce, void *arg)
{
    struct kve_feed *feed = NULL;
    pthread_t thread;

    if (!running_begin(http)) {
        kve_mem_free(arg);
        kve_http_fail(req, 503,
            "%u dumps are being read already; try again when one has ended",
            KVE_FEEDS);
        req->retry_after = 5;
        return;
    }
    feed = feed_create(http, req, produce, arg);
    if (feed == NULL) {
        kve_mem_free(arg);
    } else if (kve_thread_start(&thread, feed_run, feed, "dump", NULL) !=
        KVE_OK) {
        feed_destroy(feed);
        feed = NULL;
    }
    if (feed == NULL) {
        running_end(http);
        kve_http_fail(req, 503, "no memory, or no thread, for a dump");
        return;
    }
    (void)pthread_detach(thread);
    req->pull = feed_pull;
    req->pull_end = feed_pull_end;
    req->pull_ctx = feed;
}
