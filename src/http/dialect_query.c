/*
 * dialect_query.c - /query and /query_by_hash of all dialects.
 *
 * A body is read once, for the fields of every dialect; its spelling then says
 * which answer is wanted:
 *
 *     model_name               Dynamo's, as JSON or msgpack
 *     model, as JSON           Mooncake's: {tenant: {instance: {..}}}
 *     model, as msgpack        Mooncake's C++ form: {"instances": {..}}
 *
 * Only when that fails the dialect is looked for in the body itself, which is
 * then read again for the fields of that dialect alone: what another one knows
 * must not be an error in it.
 *
 * Tiers. In Dynamo's answer, and in Mooncake's C++ one, gpu, cpu and disk are
 * cumulative: the prefix that is on the device; on the device or the host; on
 * any tier. In Mooncake's JSON GPU, CPU and DISK are each medium's own tokens:
 * those in front that it holds alone, or by how much it makes the prefix
 * longer, whichever is more. All are tokens, never weighted.
 */
#include "http/dialect.h"

#include "http/ask.h"

#include <stdio.h>
#include <string.h>

#define BIT(FIELD) (UINT32_C(1) << KVE_INPUT_##FIELD)

/* Fields of both questions, of each dialect. */
#define DYNAMO_FIELDS \
    (BIT(MODEL_NAME) | BIT(ROUTING_GROUP) | BIT(TENANT_ID) | BIT(CACHE_SALT))
#define MOONCAKE_FIELDS                                              \
    (BIT(MODEL) | BIT(MODELNAME) | BIT(TENANT_ID) | BIT(LORA_NAME) | \
        BIT(LORA_ID) | BIT(CACHE_SALT) | BIT(BLOCK_SIZE) | BIT(INSTANCE_ID))

enum dialect { DYNAMO, MOONCAKE };

static uint32_t
fields_of(enum dialect dialect, bool by_hash)
{
    if (dialect == DYNAMO)
        return DYNAMO_FIELDS |
            (by_hash ? BIT(BLOCK_HASHES) : BIT(TOKEN_IDS) | BIT(LORA_NAME));
    return MOONCAKE_FIELDS |
        (by_hash ? BIT(SEQ_HASHES) | BIT(BLOCK_HASH) : BIT(TOKEN_IDS));
}

/* One question on its way. */
struct asked {
    struct kve_http *http;
    struct kve_http_request *req;
    const struct kve_input *input;
    bool by_hash;
    bool msgpack; /* the body */
    bool answer_msgpack;
    struct kve_question question;
    struct kve_index_answer answer;
    char lora[32]; /* "#7" for a lora_id */
};

static bool
has(const struct asked *asked, enum kve_input_field field)
{
    return (asked->input->has & (UINT32_C(1) << field)) != 0;
}

/* A text, absent where it is empty. */
static struct kve_str
text_of(const struct asked *asked, enum kve_input_field field)
{
    struct kve_str none = { NULL, 0 };

    return has(asked, field) && asked->input->text[field].len > 0
        ? asked->input->text[field]
        : none;
}

/* ---- errors ---- */

/* Mooncake's C++ form says what is wrong as a map. */
static void
fail_msgpack(struct kve_http_request *req, unsigned status, const char *error,
    const char *reason, int field)
{
    struct kve_output out;

    req->status = status;
    kve_dialect_begin(req, &out, true);
    kve_output_map(&out, field >= 0 ? 3 : 2);
    kve_output_key(&out, "error");
    kve_output_text(&out, error);
    kve_output_key(&out, "reason");
    kve_output_text(&out, reason);
    if (field >= 0) {
        kve_output_key(&out, "field");
        kve_output_text(&out, kve_input_field_name(field));
    }
    kve_output_map_end(&out);
    kve_dialect_end(req, &out);
}

static void
fail_input(struct asked *asked, enum dialect dialect,
    const struct kve_input_error *err)
{
    struct kve_http_request *req = asked->req;
    bool broken = err->fault == KVE_INPUT_BROKEN;
    char words[512];

    if (err->fault == KVE_INPUT_NOMEM) {
        req->retry_after = 1;
        kve_dialect_error(req, 503, "no memory for the question");
    } else if (asked->msgpack) {
        fail_msgpack(req, err->fault == KVE_INPUT_LARGE ? 413 : 400,
            err->detail,
            broken                              ? "invalid_msgpack"
                : err->fault == KVE_INPUT_LARGE ? "out_of_range"
                                                : "invalid_type",
            err->field);
    } else if (err->fault == KVE_INPUT_LARGE) {
        kve_dialect_error(req, 413, "%s", err->detail);
    } else if (dialect == MOONCAKE) {
        kve_dialect_text(req, 400, "Invalid JSON");
    } else {
        kve_input_serde(err, req->body, req->body_len, words, sizeof(words));
        kve_dialect_bad_body(req, broken, words);
    }
}

/* A field that must be there is not, or is null. */
static void
fail_missing(struct asked *asked, enum kve_input_field field)
{
    struct kve_http_request *req = asked->req;
    const struct kve_input *input = asked->input;
    char words[256];

    if (asked->msgpack) {
        snprintf(words, sizeof(words), "missing field %s",
            kve_input_field_name(field));
        fail_msgpack(req, 400, words, "missing", field);
        return;
    }
    if ((input->nulls & (UINT32_C(1) << field)) != 0) {
        unsigned line;
        unsigned column;

        kve_input_place(
            req->body, input->where[field] + strlen("null"), &line, &column);
        snprintf(words, sizeof(words),
            "%s: invalid type: null, expected a %s at line %u column %u",
            kve_input_field_name(field),
            field == KVE_INPUT_MODEL_NAME ? "string" : "sequence", line,
            column);
    } else {
        kve_input_serde_missing(input, req->body, field, words, sizeof(words));
    }
    kve_dialect_bad_body(req, false, words);
}

static void
fail_ask(struct asked *asked, kve_status status, const struct kve_error *err)
{
    if (status == KVE_E_NOMEM) {
        asked->req->retry_after = 1;
        kve_dialect_error(asked->req, 503, "%s", err->detail);
    } else {
        kve_dialect_error(asked->req, 422, "%s", err->detail);
    }
}

/* ---- asking ---- */

struct size_search {
    kve_namespace ns;
    uint32_t size;
};

static bool
see_size(void *ctx, const struct kve_ingest_source *source)
{
    struct size_search *search = ctx;

    if (source->ns == search->ns && source->block_size > 0)
        search->size = source->block_size;
    return search->size == 0;
}

/* What hashes stand for, where the index can not tell: as registered. */
static uint32_t
registered_size(struct kve_http *http, kve_namespace ns)
{
    struct size_search search = { ns, 0 };

    kve_ingest_read_begin(http->ingest);
    (void)kve_ingest_sources(http->ingest, NULL, see_size, &search);
    kve_ingest_read_end(http->ingest);
    return search.size;
}

/*
 * Ask the index. A namespace that is not there, and hashes of which nobody
 * knows how many tokens they are, have no rows. false: it was answered with an
 * error.
 */
static bool
ask(struct asked *asked)
{
    struct kve_question *question = &asked->question;
    struct kve_error err;
    kve_status status;

    memset(&asked->answer, 0, sizeof(asked->answer));
    if (question->ns == 0)
        return true;
    question->input = asked->input;
    question->tiers = kve_dialect_tiers;
    question->n_tiers = KVE_DIALECT_TIERS;
    status = kve_question_ask(
        asked->http, asked->req, question, &asked->answer, &err);
    if (status == KVE_E_INVAL && asked->by_hash && question->block_size == 0) {
        question->block_size = registered_size(asked->http, question->ns);
        if (question->block_size == 0)
            return true;
        status = kve_question_ask(
            asked->http, asked->req, question, &asked->answer, &err);
    }
    if (status == KVE_OK || status == KVE_E_NOT_FOUND)
        return true;
    fail_ask(asked, status, &err);
    return false;
}

/* Rows with their names, by worker. In a read section, which stays. false: no
 * memory. */
static bool
group_rows(struct asked *asked, size_t more, struct kve_groups *groups)
{
    const struct kve_index_answer *answer = &asked->answer;
    struct kve_http_scratch *scratch = asked->req->scratch;

    if (!kve_groups_begin(groups, scratch, answer->n + more))
        return false;
    for (size_t i = 0; i < answer->n; i++) {
        struct kve_ingest_row who = { .struct_size = sizeof(who) };

        if (kve_ingest_row_of(
                asked->http->ingest, answer->rows[i].instance, &who))
            kve_groups_add(groups, scratch, &who, &answer->rows[i]);
    }
    return true;
}

/* ---- Dynamo's answer ---- */

static void
put_dp(struct kve_output *out, const struct kve_groups *groups, uint32_t at,
    bool device_only)
{
    for (; at != KVE_NO_GROUP; at = groups->groups[at].next) {
        const struct kve_group *rank = &groups->groups[at];
        uint32_t tokens = kve_row_gpu(rank->row);

        if (tokens == 0 && device_only)
            continue;
        kve_output_key_u64(out, rank->who.rank);
        kve_output_u64(out, tokens);
    }
}

static void
put_name(struct kve_output *out, const struct kve_group *worker)
{
    kve_output_key_json(out, worker->who.worker_json,
        worker->who.worker_json_len, worker->who.worker);
}

static void
put_dynamo_instance(
    struct kve_output *out, const struct kve_groups *groups, uint32_t at)
{
    const struct kve_group *worker = &groups->groups[at];

    put_name(out, worker);
    kve_output_map(out, 5);
    kve_output_key(out, "longest_matched");
    kve_output_u64(out, worker->disk);
    kve_output_key(out, "gpu");
    kve_output_u64(out, worker->gpu);
    kve_output_key(out, "dp");
    kve_output_map(out, worker->n_ranks);
    put_dp(out, groups, at, false);
    kve_output_map_end(out);
    kve_output_key(out, "cpu");
    kve_output_u64(out, worker->cpu);
    kve_output_key(out, "disk");
    kve_output_u64(out, worker->disk);
    kve_output_map_end(out);
}

/* frequencies: how often blocks were asked for of late, which is not counted
 * here, as in Dynamo's own service, where the list is always empty. */
static void
put_dynamo(struct kve_output *out, const struct kve_groups *groups)
{
    uint32_t at;

    kve_output_map(out, 3);
    kve_output_key(out, "frequencies");
    kve_output_array(out, 0);
    kve_output_array_end(out);
    kve_output_key(out, "instances");
    kve_output_map(out, groups->n_workers);
    for (at = groups->first; at != KVE_NO_GROUP;
         at = groups->groups[at].next_worker)
        put_dynamo_instance(out, groups, at);
    kve_output_map_end(out);
    kve_output_key(out, "scores");
    kve_output_map(out, groups->n_device);
    for (at = groups->first; at != KVE_NO_GROUP;
         at = groups->groups[at].next_worker) {
        const struct kve_group *worker = &groups->groups[at];

        if (worker->n_device == 0)
            continue;
        put_name(out, worker);
        kve_output_map(out, worker->n_device);
        put_dp(out, groups, at, true);
        kve_output_map_end(out);
    }
    kve_output_map_end(out);
    kve_output_map_end(out);
}

static void
fail_no_indexer(struct asked *asked)
{
    struct kve_str model = text_of(asked, KVE_INPUT_MODEL_NAME);
    struct kve_str group = text_of(asked, KVE_INPUT_ROUTING_GROUP);

    kve_dialect_error(asked->req, 404,
        "no indexer for model=%.*s routing_group=%.*s", (int)model.len,
        model.len > 0 ? model.data : "", group.len > 0 ? (int)group.len : 7,
        group.len > 0 ? group.data : "default");
}

static void
answer_dynamo(struct asked *asked)
{
    enum kve_input_field list =
        asked->by_hash ? KVE_INPUT_BLOCK_HASHES : KVE_INPUT_TOKEN_IDS;
    struct kve_groups groups;
    struct kve_output out;

    /* What only Mooncake knows means nothing here. */
    asked->req->scratch->input.has &= fields_of(DYNAMO, asked->by_hash);
    if (!has(asked, list)) {
        fail_missing(asked, list);
        return;
    }
    if (!has(asked, KVE_INPUT_MODEL_NAME)) {
        fail_missing(asked, KVE_INPUT_MODEL_NAME);
        return;
    }
    if (asked->by_hash && has(asked, KVE_INPUT_CACHE_SALT)) {
        kve_dialect_error(asked->req, 400,
            "cache_salt is not accepted by /query_by_hash; block_hashes must "
            "already include the intended cache salt");
        return;
    }
    if (asked->by_hash && asked->input->wide) {
        kve_dialect_bad_body(asked->req, false,
            "block_hashes: invalid value: a hash of more than 64 bits, "
            "expected i64 or u64");
        return;
    }
    asked->question.ns = kve_question_namespace(asked->http,
        asked->input->text[KVE_INPUT_MODEL_NAME],
        text_of(asked, KVE_INPUT_ROUTING_GROUP));
    asked->question.dynamo = asked->by_hash;
    asked->question.dynamo_salt = !asked->by_hash;
    if (!ask(asked))
        return;
    if (asked->answer.n == 0 &&
        !kve_question_known(asked->http, asked->question.ns)) {
        fail_no_indexer(asked);
        return;
    }
    kve_dialect_begin(asked->req, &out, asked->answer_msgpack);
    kve_ingest_read_begin(asked->http->ingest);
    if (group_rows(asked, 0, &groups))
        put_dynamo(&out, &groups);
    else
        out.status = KVE_E_NOMEM;
    kve_ingest_read_end(asked->http->ingest);
    kve_dialect_end(asked->req, &out);
}

/* ---- Mooncake's answers ---- */

/* Registered ranks of the namespace, for rows of zeros. */
struct registered {
    struct asked *asked;
    struct kve_groups *groups;    /* NULL: count them only */
    const struct kve_str *worker; /* only this one; NULL: all */
    struct kve_str tenant;
    bool tenant_known;
    size_t n;
};

static bool
text_is(const char *text, struct kve_str other)
{
    return strlen(text) == other.len &&
        memcmp(text, other.data, other.len) == 0;
}

static bool
see_registered(void *ctx, const struct kve_ingest_source *source)
{
    struct registered *registered = ctx;
    struct kve_ingest_row who = { .struct_size = sizeof(who) };

    if (!registered->tenant_known &&
        text_is(source->tenant, registered->tenant))
        registered->tenant_known = true;
    if (source->ns != registered->asked->question.ns ||
        (registered->worker != NULL &&
            !text_is(source->worker, *registered->worker)))
        return true;
    registered->n++;
    if (registered->groups == NULL)
        return true;
    who.worker = source->worker;
    who.worker_json = source->worker_json;
    who.worker_json_len = (uint32_t)strlen(source->worker_json);
    who.rank = source->rank;
    kve_groups_add(
        registered->groups, registered->asked->req->scratch, &who, NULL);
    return true;
}

/* Rows and registered ranks, by worker. In a read section. false: no memory. */
static bool
group_registered(struct registered *registered, struct kve_groups *groups)
{
    kve_ingest *ingest = registered->asked->http->ingest;

    (void)kve_ingest_sources(ingest, NULL, see_registered, registered);
    if (!group_rows(registered->asked, registered->n, groups))
        return false;
    registered->groups = groups;
    (void)kve_ingest_sources(ingest, NULL, see_registered, registered);
    return true;
}

static void
put_json_row(
    struct kve_output *out, const struct kve_groups *groups, uint32_t at)
{
    static const struct kve_group nothing;
    const struct kve_group *worker =
        at == KVE_NO_GROUP ? &nothing : &groups->groups[at];

    kve_output_map(out, 5);
    kve_output_key(out, "longest_matched");
    kve_output_u64(out, worker->disk);
    kve_output_key(out, "DP");
    kve_output_map(out, worker->n_ranks);
    for (; at != KVE_NO_GROUP; at = groups->groups[at].next) {
        kve_output_key_u64(out, groups->groups[at].who.rank);
        kve_output_u64(out, kve_row_disk(groups->groups[at].row));
    }
    kve_output_map_end(out);
    kve_output_key(out, "GPU");
    kve_output_u64(out, worker->gpu);
    kve_output_key(out, "CPU");
    kve_output_u64(out, worker->own_cpu);
    kve_output_key(out, "DISK");
    kve_output_u64(out, worker->own_disk);
    kve_output_map_end(out);
}

/* {tenant: {instance: {..}}}. A worker that was asked for by name has a row of
 * zeros also where nobody knows it. */
static void
put_json(struct kve_output *out, const struct registered *registered,
    const struct kve_groups *groups)
{
    bool unknown = registered->worker != NULL && groups->n_workers == 0;

    if (!registered->tenant_known) {
        kve_output_map(out, 0);
        kve_output_map_end(out);
        return;
    }
    kve_output_map(out, 1);
    kve_output_key_text(out, registered->tenant);
    kve_output_map(out, unknown ? 1 : groups->n_workers);
    for (uint32_t at = groups->first; at != KVE_NO_GROUP;
         at = groups->groups[at].next_worker) {
        put_name(out, &groups->groups[at]);
        put_json_row(out, groups, at);
    }
    if (unknown) {
        kve_output_key_text(out, *registered->worker);
        put_json_row(out, groups, KVE_NO_GROUP);
    }
    kve_output_map_end(out);
    kve_output_map_end(out);
}

static void
put_tiers(struct kve_output *out, uint32_t gpu, uint32_t cpu, uint32_t disk)
{
    kve_output_key(out, "gpu");
    kve_output_u64(out, gpu);
    kve_output_key(out, "cpu");
    kve_output_u64(out, cpu);
    kve_output_key(out, "disk");
    kve_output_u64(out, disk);
}

static void
put_msgpack_row(
    struct kve_output *out, const struct kve_groups *groups, uint32_t worker)
{
    const struct kve_group *first = &groups->groups[worker];
    uint32_t at;

    kve_output_map(out, 6);
    kve_output_key(out, "longest_matched");
    kve_output_u64(out, first->disk);
    kve_output_key(out, "dp");
    kve_output_map(out, first->n_ranks);
    for (at = worker; at != KVE_NO_GROUP; at = groups->groups[at].next) {
        kve_output_key_u64(out, groups->groups[at].who.rank);
        kve_output_u64(out, kve_row_disk(groups->groups[at].row));
    }
    kve_output_map_end(out);
    kve_output_key(out, "rank_matches");
    kve_output_map(out, first->n_ranks);
    for (at = worker; at != KVE_NO_GROUP; at = groups->groups[at].next) {
        const struct kve_index_row *row = groups->groups[at].row;

        kve_output_key_u64(out, groups->groups[at].who.rank);
        kve_output_map(out, 3);
        put_tiers(out, kve_row_gpu(row), kve_row_cpu(row), kve_row_disk(row));
        kve_output_map_end(out);
    }
    kve_output_map_end(out);
    put_tiers(out, first->gpu, first->cpu, first->disk);
    kve_output_map_end(out);
}

static void
put_msgpack(struct kve_output *out, const struct kve_groups *groups)
{
    kve_output_map(out, 1);
    kve_output_key(out, "instances");
    kve_output_map(out, groups->n_workers);
    for (uint32_t at = groups->first; at != KVE_NO_GROUP;
         at = groups->groups[at].next_worker) {
        put_name(out, &groups->groups[at]);
        put_msgpack_row(out, groups, at);
    }
    kve_output_map_end(out);
    kve_output_map_end(out);
}

static void
read_mooncake(struct asked *asked, struct kve_str *tenant)
{
    enum kve_input_field model =
        has(asked, KVE_INPUT_MODEL) ? KVE_INPUT_MODEL : KVE_INPUT_MODELNAME;

    *tenant = text_of(asked, KVE_INPUT_TENANT_ID);
    if (tenant->data == NULL) {
        tenant->data = "default";
        tenant->len = strlen(tenant->data);
    }
    asked->question.ns =
        kve_question_namespace(asked->http, asked->input->text[model], *tenant);
    if (has(asked, KVE_INPUT_INSTANCE_ID)) {
        asked->question.workers = &asked->input->text[KVE_INPUT_INSTANCE_ID];
        asked->question.n_workers = 1;
    }
    if (has(asked, KVE_INPUT_LORA_ID) &&
        text_of(asked, KVE_INPUT_LORA_NAME).data == NULL) {
        asked->question.lora_name.len =
            (size_t)snprintf(asked->lora, sizeof(asked->lora), "#%llu",
                (unsigned long long)asked->input->number[KVE_INPUT_LORA_ID]);
        asked->question.lora_name.data = asked->lora;
    }
}

/* Whether anything may match: a block_size of 0 and no list mean nothing. */
static bool
may_match(const struct asked *asked)
{
    if (has(asked, KVE_INPUT_BLOCK_SIZE) &&
        asked->input->number[KVE_INPUT_BLOCK_SIZE] == 0)
        return false;
    return asked->by_hash
        ? has(asked, KVE_INPUT_SEQ_HASHES) || has(asked, KVE_INPUT_BLOCK_HASH)
        : has(asked, KVE_INPUT_TOKEN_IDS);
}

static void
answer_mooncake(struct asked *asked)
{
    struct registered registered = { asked, NULL, NULL, { NULL, 0 }, false, 0 };
    struct kve_groups groups;
    struct kve_output out;

    read_mooncake(asked, &registered.tenant);
    registered.worker = asked->question.workers;
    if (may_match(asked) && !ask(asked))
        return;
    kve_dialect_begin(asked->req, &out, asked->answer_msgpack);
    kve_ingest_read_begin(asked->http->ingest);
    if (!group_registered(&registered, &groups))
        out.status = KVE_E_NOMEM;
    else if (asked->msgpack)
        put_msgpack(&out, &groups);
    else
        put_json(&out, &registered, &groups);
    kve_ingest_read_end(asked->http->ingest);
    kve_dialect_end(asked->req, &out);
}

/* ---- reading ---- */

static enum kve_input_fault
read_body(struct asked *asked, uint32_t fields, struct kve_input_error *err)
{
    struct kve_http_request *req = asked->req;
    const struct kve_service_opts *opts = &asked->http->opts;
    const struct kve_input_limits limits = { opts->max_tokens, 1,
        opts->max_tokens, fields };

    return (asked->msgpack ? kve_input_msgpack : kve_input_json)(
        &req->scratch->input, req->body, req->body_len, &limits, err);
}

static bool
spelled_mooncake(struct kve_http_request *req)
{
    struct kve_input *input = &req->scratch->input;

    return !kve_body_has(input, req->body, req->body_len, "model_name") &&
        (kve_body_has(input, req->body, req->body_len, "model") ||
            kve_body_has(input, req->body, req->body_len, "modelname"));
}

/* Read it again for one dialect; false: it was answered with an error. */
static bool
read_again(struct asked *asked, const struct kve_input_error *first)
{
    enum dialect dialect = DYNAMO;
    struct kve_input_error err;

    if (first->fault == KVE_INPUT_NOMEM ||
        (asked->msgpack && first->fault == KVE_INPUT_BROKEN)) {
        fail_input(asked, DYNAMO, first);
        return false;
    }
    if (asked->msgpack) {
        if (read_body(asked, fields_of(DYNAMO, asked->by_hash), &err) ==
                KVE_INPUT_FINE &&
            has(asked, KVE_INPUT_MODEL_NAME))
            return true;
        dialect = MOONCAKE;
    } else if (spelled_mooncake(asked->req)) {
        dialect = MOONCAKE;
    }
    if (read_body(asked, fields_of(dialect, asked->by_hash), &err) ==
        KVE_INPUT_FINE)
        return true;
    fail_input(asked, dialect, &err);
    return false;
}

static void
answer_any(struct kve_http *http, struct kve_http_request *req, bool by_hash)
{
    struct asked asked;
    struct kve_input_error err;
    uint32_t named = BIT(MODEL) | BIT(MODELNAME);

    memset(&asked, 0, sizeof(asked));
    asked.http = http;
    asked.req = req;
    asked.input = &req->scratch->input;
    asked.by_hash = by_hash;
    asked.msgpack = req->content == KVE_MEDIA_MSGPACK;
    asked.answer_msgpack = asked.msgpack || req->accepts_msgpack;
    /* Mooncake's service reads JSON whatever it is called. */
    if (!asked.msgpack && req->content != KVE_MEDIA_JSON &&
        !spelled_mooncake(req)) {
        (void)kve_dialect_no_json(req);
        return;
    }
    if (read_body(&asked,
            fields_of(DYNAMO, by_hash) | fields_of(MOONCAKE, by_hash),
            &err) != KVE_INPUT_FINE &&
        !read_again(&asked, &err))
        return;
    if (!has(&asked, KVE_INPUT_MODEL_NAME) && (asked.input->has & named) != 0)
        answer_mooncake(&asked);
    else
        answer_dynamo(&asked);
}

void
kve_dialect_query(struct kve_http *http, struct kve_http_request *req)
{
    answer_any(http, req, false);
}

void
kve_dialect_query_by_hash(struct kve_http *http, struct kve_http_request *req)
{
    answer_any(http, req, true);
}
