/*
 * dialect.h - the questions of others: Dynamo's indexer service, and
 * Mooncake's.
 *
 * Both have POST /register, /unregister, /query and /query_by_hash. They are
 * told apart by the spelling of the body:
 *
 *     model_name              Dynamo      instance ids are numbers of 64 bits
 *     model, or modelname     Mooncake    ids are texts; tenants
 *
 * and what is neither is answered as Dynamo would. What a Dynamo or Mooncake
 * client was promised is answered exactly, also in the words of errors; where
 * they promise what is wrong we do not follow:
 *
 *     - /unregister without routing_group honours dp_rank;
 *     - hashes may be signed or not, numbers or texts;
 *     - blocks behind an unknown parent are not lost (they wait);
 *     - /dump is consistent for each instance, and a stream;
 *     - a model's name may have a ':' in it.
 *
 *     dialect.c            routes; which dialect; what they share
 *     dialect_body.c       small bodies, and errors in serde_json's words
 *     dialect_rows.c       rows of an answer, by worker
 *     dialect_query.c      /query, /query_by_hash of all dialects
 *     dialect_dynamo.c     /register, /unregister, /workers, /peers, /test/...
 *     dialect_mooncake.c   /register, /unregister, /services
 *     dialect_walk.c       all that instances hold, for the next two
 *     dialect_dump.c       /dump
 *     dialect_view.c       /global_view
 *
 * Names. A routing_group is a tenant, and so is a tenant_id of Mooncake's
 * (Dynamo's tenant_id means nothing). A worker of Dynamo's is the decimal text
 * of its instance_id.
 */
#ifndef KVE_HTTP_DIALECT_H
#define KVE_HTTP_DIALECT_H

#include "http/http.h"
#include "http/output.h"
#include "http/register.h"
#include "http/scratch.h"

#include <pthread.h>

/* ---- what belongs to a service ---- */

/* At most so many urls in /peers. */
#define KVE_MAX_PEERS 1024u

/* The list of /peers, which is kept and shown only. */
struct kve_http_peers {
    pthread_mutex_t lock;
    char **urls;
    size_t n;
    /* Held while a registration is compared with others and added. */
    pthread_mutex_t registering;
};

/* NULL: no memory. */
struct kve_http_peers *kve_http_peers_create(void);

/* NULL is allowed and does nothing. */
void kve_http_peers_destroy(struct kve_http_peers *peers);

/* ---- answers ---- */

/* {"error":"..."} as Dynamo says it. */
void kve_dialect_error(struct kve_http_request *req, unsigned status,
    const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* A line of text. */
void kve_dialect_text(struct kve_http_request *req, unsigned status,
    const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* {"status":"ok"}. */
void kve_dialect_ok(struct kve_http_request *req, unsigned status);

/* The body is no JSON by its Content-Type: 415, and true. */
bool kve_dialect_no_json(struct kve_http_request *req);

/* A body that is broken (400) or of another shape (422), with serde_json's
 * words for it. */
void kve_dialect_bad_body(
    struct kve_http_request *req, bool broken, const char *words);

/* Begin an answer; end it: 503 when it could not be written. */
void kve_dialect_begin(
    struct kve_http_request *req, struct kve_output *out, bool msgpack);
void kve_dialect_end(struct kve_http_request *req, struct kve_output *out);

/* A worker's name as Dynamo's instance id: a number where it is one. */
void kve_dialect_put_id(struct kve_output *out, const char *worker);

/* ---- rows by worker (dialect_rows.c) ---- */

#define KVE_NO_GROUP UINT32_MAX

/* A rank of a worker; the worker's first one sums up all of them. */
struct kve_group {
    struct kve_ingest_row who;       /* worker, worker_json, rank are set */
    const struct kve_index_row *row; /* NULL: it holds nothing */
    uint32_t next;                   /* rank of the same worker */
    /* Of the first one; next_worker leads from each worker to the next. */
    uint32_t next_worker;
    uint32_t last; /* rank */
    uint32_t n_ranks;
    uint32_t n_device; /* ranks that hold some of it on the device */
    uint32_t gpu;      /* the largest of any rank: device */
    uint32_t cpu;      /* device and host */
    uint32_t disk;     /* all tiers */
    uint32_t own_cpu;  /* on the host, or beyond the device because of it */
    uint32_t own_disk; /* the same for disks and all beyond */
};

/* Rows by worker, in scratch. In a read section of the ingest. */
struct kve_groups {
    struct kve_group *groups;
    size_t n;
    uint32_t first; /* worker, or KVE_NO_GROUP */
    uint32_t last;  /* worker */
    uint32_t n_workers;
    uint32_t n_device; /* workers with some of it on the device */
    uint32_t mask;     /* of buckets */
};

/* The order of tiers for which rows must have been asked. */
#define KVE_DIALECT_TIERS 5
extern const uint8_t kve_dialect_tiers[KVE_DIALECT_TIERS];

/* Of a row: up to device, host, and all tiers. */
static inline uint32_t
kve_row_gpu(const struct kve_index_row *row)
{
    return row == NULL ? 0 : row->upto[0];
}

static inline uint32_t
kve_row_cpu(const struct kve_index_row *row)
{
    return row == NULL ? 0 : row->upto[1];
}

static inline uint32_t
kve_row_disk(const struct kve_index_row *row)
{
    return row == NULL ? 0 : row->upto[KVE_DIALECT_TIERS - 1];
}

/* Begin, with room for max rows and ranks; false: no memory. */
bool kve_groups_begin(
    struct kve_groups *groups, struct kve_http_scratch *scratch, size_t max);

/* Add a rank: those with rows first, each once; then others, which are passed
 * over where they are there already. */
void kve_groups_add(struct kve_groups *groups, struct kve_http_scratch *scratch,
    const struct kve_ingest_row *who, const struct kve_index_row *row);

/* ---- handlers ---- */

kve_http_handler kve_dynamo_register;
kve_http_handler kve_dynamo_unregister;
kve_http_handler kve_dynamo_workers;
kve_http_handler kve_dynamo_register_peer;
kve_http_handler kve_dynamo_deregister_peer;
kve_http_handler kve_dynamo_peers;
kve_http_handler kve_dynamo_reopen_logs;
kve_http_handler kve_dynamo_pause;
kve_http_handler kve_dynamo_resume;
kve_http_handler kve_dynamo_dump;
kve_http_handler kve_mooncake_register;
kve_http_handler kve_mooncake_unregister;
kve_http_handler kve_mooncake_services;
kve_http_handler kve_mooncake_global_view;
kve_http_handler kve_dialect_query;
kve_http_handler kve_dialect_query_by_hash;

#endif
