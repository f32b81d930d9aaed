/*
 * register.h - the body of a registration -> what the ingest is to follow.
 *
 * The same question in three spellings:
 *
 *     /v1/sources   {"worker":"w0","endpoint":..,"model":..,"rank":0, ..}
 *     Dynamo        {"instance_id":1,"endpoint":..,"model_name":..,
 *                    "block_size":16,"dp_rank":0, ..}
 *     Mooncake      {"instance_id":"e1","endpoint":..,"modelname":..,"type":..,
 *                    "block_size":128,"dp_rank":0, ..}
 *
 * Of each, what it means is told by the table of its fields. Endpoints are the
 * rank's own in all of them: no port is moved.
 */
#ifndef KVE_HTTP_REGISTER_H
#define KVE_HTTP_REGISTER_H

#include "http/dialect_body.h"
#include "http/request.h"

#include <kvevents/ingest.h>

enum kve_spelling {
    KVE_SPELLING_OWN = 0,
    KVE_SPELLING_DYNAMO = 1,
    KVE_SPELLING_MOONCAKE = 2
};

/* A registration; end it with kve_registration_release(). */
struct kve_registration {
    struct kve_ingest_spec spec; /* its texts are the body's below */
    struct kve_body body;
    char number[24]; /* the worker's name, where it was a number */
};

/* Why there is none. */
struct kve_registration_error {
    unsigned status; /* 400, 413, 422 or 503 */
    bool json;       /* the body could be read: Dynamo says this as JSON */
    size_t offset;   /* byte of the body */
    char text[640];  /* one line for the one who asked */
};

/*
 * Read req's body (JSON, whatever its Content-Type). Nothing is added yet.
 * Returns false with *err; release is allowed and not needed then.
 */
bool kve_registration_read(struct kve_registration *reg,
    struct kve_http_request *req, enum kve_spelling spelling,
    struct kve_registration_error *err);

void kve_registration_release(struct kve_registration *reg);

#endif
