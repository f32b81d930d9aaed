/*
 * v1_feed.h - answers that a thread makes while the client reads them.
 *
 *     thread: produce() --> kve_feed_put() --> [ring, 256 KiB] --> pull -->
 * client waits while it is full      `-- wakes the connection
 *
 * A handler may not wait, and a dump is larger than memory should be; so a
 * thread makes it, as fast as the client takes it. When the client leaves,
 * kve_feed_put() says false from then on, and the thread ends. At most
 * KVE_FEEDS run at a time.
 *
 * The thread reads the index and the ingest. So before these are destroyed
 * somebody must wait for it: kve_feeds_wait().
 */
#ifndef KVE_HTTP_V1_FEED_H
#define KVE_HTTP_V1_FEED_H

#include "http/http.h"

#define KVE_FEEDS 8u
#define KVE_FEED_BYTES ((size_t)256 * 1024)

struct kve_feed;

/* Makes the answer; false: cut the connection, it is not whole. arg is freed
 * with kve_mem_free() afterwards. */
typedef bool kve_feed_fn(
    struct kve_http *http, struct kve_feed *feed, void *arg);

/* Give bytes to the client; waits for it. false: it left. */
bool kve_feed_put(struct kve_feed *feed, const void *data, size_t len);

/* false: the client left. */
bool kve_feed_wanted(struct kve_feed *feed);

/* Answer req with what produce() makes. arg is taken, also on failure, which
 * is answered. */
void kve_feed_start(struct kve_http *http, struct kve_http_request *req,
    kve_feed_fn *produce, void *arg);

#endif
