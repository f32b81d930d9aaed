/*
 * rig.h - engines, an ingest that follows them, and somebody who asks.
 *
 * Engines are publishers of this library on loopback; what they say is written
 * as in support/eventtext.h. held() asks the index how many tokens of a prompt
 * a worker's rank has: the prompt of blocks 1, 2, ... n of eventtext.h, two
 * tokens each.
 */
#ifndef KVE_TESTS_INGEST_RIG_H
#define KVE_TESTS_INGEST_RIG_H

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
#define RIG_LOG 65536

/* ---- engines -------------------------------------------------------- */

struct engine {
    kve_publisher *pub;
    char live[64];
    char replay[64];
};

/* opts NULL: on free ports, with replay. Endpoints of opts are used as they
 * are. */
void engine_open(struct engine *e, const struct kve_pub_opts *opts);
/* Where an engine was, on the same ports. */
void engine_reopen(struct engine *e);
/* Its address stays in e. */
void engine_close(struct engine *e);
/* A batch; rank < 0: none is named. */
void engine_say(struct engine *e, int rank, const char *events);
/* The same, but the live stream loses it. */
void engine_lose(struct engine *e, int rank, const char *events);

/* ---- the reader's end ----------------------------------------------- */

/* What on_event said. */
struct rig_event {
    uint32_t type;
    kve_ingest_id source;
    uint32_t notice;
    uint64_t number;
    char detail[200];
};

struct rig {
    kve_context *context;
    kve_index *index;
    kve_ingest *ingest;
    kve_index_reader *reader;
    kve_namespace ns; /* of model "m", tenant "default" */
    pthread_mutex_t lock;
    size_t n_events;
    struct rig_event *events; /* the first RIG_LOG */
};

/* opts may be NULL; on_event and ctx are the rig's. */
void rig_open(struct rig *r, const struct kve_ingest_opts *opts,
    const struct kve_index_opts *index);
void rig_close(struct rig *r);

/* A spec of worker and rank at an engine. */
struct kve_ingest_spec rig_spec(
    const struct engine *e, const char *worker, uint32_t rank);
/* Add it; it must go well. */
kve_ingest_id rig_add(struct rig *r, const struct kve_ingest_spec *spec);
kve_ingest_id rig_follow(
    struct rig *r, const struct engine *e, const char *worker, uint32_t rank);

/* Tokens of the prompt of blocks 1..n that the rank holds. */
uint32_t held(struct rig *r, const char *worker, uint32_t rank, unsigned n);
uint32_t held_in(struct rig *r, kve_namespace ns, const char *worker,
    uint32_t rank, unsigned n);
/* Rows of any worker's for it, as the index has them. */
size_t rows_of(struct rig *r, unsigned n);

/* How a source is. Its strings must not be looked at. */
struct kve_ingest_source rig_source(struct rig *r, kve_ingest_id id);
bool rig_exists(struct rig *r, kve_ingest_id id);
/* Its last error, copied. */
const char *rig_error(struct rig *r, kve_ingest_id id);
bool is_state(struct rig *r, kve_ingest_id id, unsigned state, unsigned reason);
uint64_t rig_count(struct rig *r, kve_ingest_id id, unsigned counter);
/* Events of a type of a source; 0: of any. */
size_t rig_events(struct rig *r, kve_ingest_id id, unsigned type);
const struct rig_event *rig_event(
    struct rig *r, kve_ingest_id id, unsigned type);

/* For a while, readers of the ingest find it free each time. Fails where one
 * would wait for long. */
void rig_reads_go_on(struct rig *r);

void rest_ms(unsigned ms);

/* Wait for it; the limit is for a machine that does something else. */
#define UNTIL(condition)                                     \
    do {                                                     \
        int64_t until_ = kve_now_ns() + 60000 * KVE_MS;      \
        bool done_ = (condition);                            \
        while (!done_ && kve_now_ns() < until_) {            \
            rest_ms(2);                                      \
            done_ = (condition);                             \
        }                                                    \
        if (!done_)                                          \
            fail_msg("not within a minute: %s", #condition); \
    } while (0)

#define LIVE KVE_STATE_LIVE, KVE_REASON_CAUGHT_UP

#endif
