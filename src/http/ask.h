/*
 * ask.h - from a parsed question to the rows that answer it.
 *
 *     struct kve_input --+
 *     namespace ---------+--> kve_question_ask() --> rows in the thread's
 *     order of tiers ----+                           scratch memory
 *
 * All dialects come through here, so that they can not differ in what they
 * find, only in how they say it. An answer has the rows of all instances that
 * hold any of the prompt: the scratch grows when there are more than ever
 * before, and the question is asked again. In steady state nothing is
 * allocated.
 *
 * Salts. In Dynamo a salt x is not the engine's: its frontend hands
 * "dynamo-cache-salt:x" to vLLM, and x as it is to SGLang. Nobody can say which
 * engines stand behind a model, so with dynamo_salt both are asked for, and an
 * instance that has both says the longer prefix of each tier.
 */
#ifndef KVE_HTTP_ASK_H
#define KVE_HTTP_ASK_H

#include "http/http.h"
#include "http/input.h"
#include "http/request.h"

#include <kvevents/index.h>
#include <kvevents/status.h>

/* What Dynamo's frontend puts before a salt for vLLM. */
#define KVE_DYNAMO_SALT "dynamo-cache-salt:"

/* A question. Zero is the default everywhere. Borrowed. */
struct kve_question {
    const struct kve_input *input; /* must be set */
    kve_namespace ns;              /* must be set */
    size_t prompt; /* of input's prompts, where it has tokens; from 0 */
    uint32_t
        block_size;   /* of hashes; 0: what input says, or the one there is */
    bool dynamo;      /* hashes are Dynamo's block hashes. Otherwise
                         content_hashes are contents and all others are engine
                         hashes */
    bool dynamo_salt; /* see above */
    struct kve_str lora_name; /* data NULL: what input says */
    const uint8_t *tiers;     /* enum kve_tier, order of the sums; NULL: the
                                 index's own */
    size_t n_tiers;
    const struct kve_str *workers; /* rows of these only; NULL: of all */
    size_t n_workers;
    bool sorted; /* asked before with these workers, and nothing else since */
};

/*
 * The namespace of a model and a tenant; tenant.data NULL means "default". 0:
 * there is none.
 */
kve_namespace kve_question_namespace(
    const struct kve_http *http, struct kve_str model, struct kve_str tenant);

/* Whether a namespace has instances: from the registration of its first source
 * until its last worker leaves. */
bool kve_question_known(const struct kve_http *http, kve_namespace ns);

/* Whether a worker is one of those the question asks for; behind
 * kve_question_ask() of it. */
bool kve_question_wants(const struct kve_http_request *req,
    const struct kve_question *question, const char *worker);

/*
 * The query that a question is, for one salt. What it points to is the
 * question's. With dynamo_salt: the salt as it was given.
 *
 * Returns KVE_OK; KVE_E_INVAL: input has neither tokens nor hashes, no such
 * prompt, or contents that are not 64 bits.
 */
kve_status kve_question_query(const struct kve_question *question,
    struct kve_index_query *ret_query, struct kve_error *err);

/*
 * Ask. ret->rows are in req->scratch, longest first (in no order where two
 * salts were merged), until the next question on this thread; ret->n is
 * ret->total.
 *
 * Returns KVE_OK; KVE_E_INVAL: as above, or block_size was not said and the
 * index can not know it; KVE_E_NOT_FOUND: no such namespace; KVE_E_NOMEM.
 */
kve_status kve_question_ask(struct kve_http *http, struct kve_http_request *req,
    const struct kve_question *question, struct kve_index_answer *ret,
    struct kve_error *err);

#endif
