/*
 * v1_state.c - GET /v1/state: everything, for another service to begin with.
 *
 * The state is written as fast as a file takes it, into one that has no name
 * in the file system, and given to the client from there: whoever reads slowly
 * holds up nobody, and nothing large is in memory.
 */
#include "http/v1.h"
#include "http/v1_feed.h"

#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <stdio.h>
#include <unistd.h>

#define PIECE ((size_t)64 * 1024)

struct spool {
    struct kve_feed *feed;
    int fd;
};

/* A file that only we have. -1: there is no room for one. */
static int
open_nameless(void)
{
    const char *dir = getenv("TMPDIR");
    char path[4096];
    int fd;

    if (dir == NULL || dir[0] == '\0')
        dir = "/tmp";
#ifdef O_TMPFILE
    fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0)
        return fd;
#endif
    if (snprintf(path, sizeof(path), "%s/kvevents-state-XXXXXX", dir) >=
        (int)sizeof(path))
        return -1;
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        (void)unlink(path);
    return fd;
}

static bool
spool_write(void *ctx, const void *data, size_t len)
{
    struct spool *spool = ctx;

    return kve_write_all(spool->fd, data, len) && kve_feed_wanted(spool->feed);
}

static bool
spool_send(struct spool *spool)
{
    char piece[PIECE];
    ssize_t n;

    if (lseek(spool->fd, 0, SEEK_SET) != 0)
        return false;
    for (;;) {
        n = read(spool->fd, piece, sizeof(piece));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n == 0;
        if (!kve_feed_put(spool->feed, piece, (size_t)n))
            return false;
    }
}

static bool
make_state(struct kve_http *http, struct kve_feed *feed, void *arg)
{
    struct spool spool = { feed, open_nameless() };
    struct kve_error err;
    bool whole;

    (void)arg;
    if (spool.fd < 0) {
        if (http->opts.log != NULL)
            http->opts.log(http->opts.log_ctx, KVE_LOG_WARNING,
                "GET /v1/state: no temporary file can be made; set TMPDIR to a "
                "directory with room");
        return false;
    }
    whole =
        kve_ingest_save_to(http->ingest, spool_write, &spool, &err) == KVE_OK &&
        spool_send(&spool);
    (void)close(spool.fd);
    return whole;
}

void
kve_v1_state(struct kve_http *http, struct kve_http_request *req)
{
    req->media = KVE_MEDIA_BYTES;
    kve_feed_start(http, req, make_state, NULL);
}
