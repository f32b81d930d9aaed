/*
 * rig.h - both ends of the tests in this folder.
 *
 * The publisher's end is plain libzmq in the test's own hands: a PUB that is
 * bound or connected, and a ROUTER that answers replays and snapshots when it
 * is told to. The reader's end counts what its subscriber calls back with; a
 * lock guards it, so that library threads may call.
 */
#ifndef KVE_TESTS_SUBSCRIBE_RIG_H
#define KVE_TESTS_SUBSCRIBE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"

#include <kvevents/kvevents.h>

#include <pthread.h>
#include <stdbool.h>

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))
#define RIG_MAX 4096    /* batches remembered */
#define RIG_NOTICES 32  /* kinds of notices */
#define RIG_SOURCES 512 /* sources told apart */

/* ---- the publisher's end ------------------------------------------- */

struct peer {
    void *zmq;
    void *pub;
    void *router;
    char live[64];
    char replay[64];
    const char *topic;
    int rank;          /* part of each payload; < 0: none */
    unsigned life;     /* likewise */
    const uint8_t *id; /* likewise, of what peer_live() and replay send; or
                        * NULL */
    uint64_t first;    /* replay knows first..next-1 */
    uint64_t next;
    uint64_t cut; /* batches after which an answer ends without its end
                   * marker; 0: none */
    bool silent;  /* answer no replay */
    unsigned requests;
    uint64_t sent;       /* batches in replays */
    uint64_t starts[64]; /* the last requests' */
};

void peer_open(struct peer *p);
/* Its PUB connects to a bound subscriber; no ROUTER. */
void peer_open_connected(struct peer *p, const char *to);
void peer_close(struct peer *p);

/* [1.0, [["BlockRemoved", [life and number]]], rank, id]. */
size_t peer_payload(
    const struct peer *p, uint64_t number, const uint8_t *id, uint8_t *out);
void peer_live(struct peer *p, uint64_t number);
/* An empty batch with an id: a heartbeat. */
void peer_heartbeat(struct peer *p, uint64_t number, const uint8_t *id);
void rig_send(void *socket, const struct kve_span *frames, size_t n);

/* A request, when there is one. */
struct request {
    uint8_t id[64];
    size_t id_len;
    uint64_t start;
};
bool peer_request(struct peer *p, struct request *ret);
void peer_answer(struct peer *p, const struct request *r);
/* Both, when there is one. */
void peer_serve(struct peer *p);

/* ---- the reader's end ---------------------------------------------- */

struct reader {
    kve_subscriber *sub;
    pthread_mutex_t lock;
    size_t n;
    uint64_t number[RIG_MAX];
    kve_source_id source[RIG_MAX];
    bool hidden[RIG_MAX];
    bool snapshot[RIG_MAX];
    size_t of[RIG_SOURCES];      /* batches */
    uint64_t last[RIG_SOURCES];  /* number */
    uint32_t state[RIG_SOURCES]; /* enum kve_state */
    size_t notices[RIG_NOTICES];
    struct kve_notice notice[RIG_NOTICES]; /* the last one of a kind */
    char detail[RIG_NOTICES][320];
    uint8_t publisher_id[16]; /* of the last batch */
    bool has_publisher_id;
    /* Called with the lock free; may be NULL. */
    int (*on_batch)(struct reader *r, const struct kve_delivery *d);
    void (*on_notice)(struct reader *r, const struct kve_notice *n);
    void *more;
};

/* opts may be NULL. */
struct reader *reader_open(const struct kve_sub_opts *opts);
struct reader *reader_open_in(
    kve_context *context, const struct kve_sub_opts *opts);
void reader_close(struct reader *r);
kve_source_id reader_add(struct reader *r, const struct kve_source_opts *opts);
struct kve_source_info reader_info(const struct reader *r, kve_source_id id);
uint64_t reader_counter(
    const struct reader *r, kve_source_id id, unsigned counter);
size_t reader_n(struct reader *r);
size_t reader_notices(struct reader *r, unsigned type);
/* Sources that are there, those on their way out included. */
size_t reader_listed(struct reader *r);

/* Poll, or with library threads wait, for a moment. */
void reader_work(struct reader *r);

/* Have both ends work until the condition holds; the limit is for a machine
 * that does something else. */
#define RUN_UNTIL(r, serve, condition)                                    \
    do {                                                                  \
        int64_t until_ = kve_now_ns() + 60000 * KVE_MS;                   \
        while (!(condition) && kve_now_ns() < until_) {                   \
            serve;                                                        \
            reader_work(r);                                               \
        }                                                                 \
        if (!(condition))                                                 \
            fail_msg("not within a minute: %s (%zu batches)", #condition, \
                reader_n(r));                                             \
    } while (0)

#define RUN_FOR(r, serve, ms)                        \
    do {                                             \
        int64_t until_ = kve_now_ns() + (ms)*KVE_MS; \
        while (kve_now_ns() < until_) {              \
            serve;                                   \
            reader_work(r);                          \
        }                                            \
    } while (0)

#endif
