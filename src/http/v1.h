/*
 * v1.h - what the handlers of /v1 share.
 *
 * docs/openapi.json is the contract: a test compares every answer with it, so
 * a field that is added here is added there first. Answers are written with
 * output.h in one go; what may be large is a stream (v1_feed.h).
 *
 *     v1.c           routes; settings; the document itself
 *     v1_sources.c   sources: list, one, pause, resume, clear, remove
 *     v1_register.c  sources: a new one
 *     v1_workers.c   workers, ranks together
 *     v1_query.c     questions
 *     v1_blocks.c    one block
 *     v1_dump.c      everything, line by line
 *     v1_state.c     everything, for another service
 *
 * What is known of sources is read in one read section of the ingest for each
 * answer; nothing but memory is touched in it.
 */
#ifndef KVE_HTTP_V1_H
#define KVE_HTTP_V1_H

#include "http/http.h"
#include "http/output.h"

/* Answer with an error of a library call: 404, 409, 422 or 503. */
void kve_v1_fail(struct kve_http_request *req, kve_status status,
    const struct kve_error *err);

/* 415: only JSON is read here. */
void kve_v1_wrong_type(struct kve_http_request *req);

/* 405, with the methods that are known there. */
void kve_v1_wrong_method(struct kve_http_request *req, const char *allow);

/* The filter of ?model, ?tenant and ?worker; borrowed from the request. */
struct kve_ingest_filter kve_v1_filter(struct kve_http_request *req);

/* The namespace of ?model and ?tenant. false: there is none, and it was
 * answered so. */
bool kve_v1_namespace(
    struct kve_http *http, struct kve_http_request *req, kve_namespace *ret_ns);

/* A decimal number that is all of the text. */
bool kve_v1_number(const char *text, size_t len, uint64_t max, uint64_t *ret);

/* Begin to write the answer; finish it: 503 when there was no memory. */
void kve_v1_begin(struct kve_http_request *req, struct kve_output *out);
void kve_v1_end(struct kve_http_request *req, struct kve_output *out);

/* "GPU" for KVE_TIER_GPU. */
const char *kve_v1_tier(unsigned tier);

/* A tier by name, of any letters; false: there is none of that name. */
bool kve_v1_tier_of(const char *text, size_t len, unsigned *ret_tier);

/* Parts of answers. In a read section of the ingest. */
void kve_v1_put_state(
    struct kve_output *out, uint32_t state, uint32_t reason, uint64_t source);
void kve_v1_put_blocks(struct kve_output *out, const uint64_t blocks[]);
void kve_v1_put_sizes(
    struct kve_output *out, const uint32_t *sizes, size_t n, size_t cap);
void kve_v1_put_source(struct kve_http *http, struct kve_output *out,
    const struct kve_ingest_source *source);
void kve_v1_put_text_or_null(struct kve_output *out, const char *text);

/* Answer with one source as it is now. */
void kve_v1_answer_source(
    struct kve_http *http, struct kve_http_request *req, kve_ingest_id id);

/*
 * The body of a request as a JSON object (jansson). Absent where allowed:
 * *ret_object is NULL. false: it was answered with an error.
 */
struct json_t;
bool kve_v1_object(struct kve_http_request *req, bool may_be_absent,
    struct json_t **ret_object);

/* Whether it has fields of these names only (ended by NULL): one that is
 * mistyped would otherwise be a default that nobody wanted. false: it was
 * answered with an error. */
bool kve_v1_only(struct kve_http_request *req, struct json_t *object,
    const char *const *names);

/* "tiers" of such an object, as a set of 1 << KVE_TIER_*; 0: all. false: it
 * was answered with an error. */
bool kve_v1_tiers(struct kve_http_request *req, const struct json_t *object,
    uint32_t *ret_tiers);

/* A text of such an object; *ret_text NULL when it is absent. false: it was
 * answered with an error. */
bool kve_v1_text(struct kve_http_request *req, const struct json_t *object,
    const char *name, const char **ret_text);

/* Handlers. */
kve_http_handler kve_v1_sources;
kve_http_handler kve_v1_source;
kve_http_handler kve_v1_register;
kve_http_handler kve_v1_workers;
kve_http_handler kve_v1_worker;
kve_http_handler kve_v1_query;
kve_http_handler kve_v1_block;
kve_http_handler kve_v1_dump;
kve_http_handler kve_v1_state;
kve_http_handler kve_v1_clear;

#endif
