/*
 * v1_query.c - POST /v1/query: which ranks hold how much of a prompt.
 *
 *     body --> input.h --> checked --> ask.h, once a prompt --> rows --> answer
 *
 * Rows come with the state of their source, which is read in one read section
 * a prompt. Who was removed since the rows were found has none. Explaining is
 * for people and takes longer, so it is done before that section, and for a
 * bounded number of rows of one question: all its prompts together.
 */
#include "http/ask.h"
#include "http/scratch.h"
#include "http/v1.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

/* Rows of one question that are explained, of all prompts; those behind have
 * no "ended", and who holds nothing has no row then. */
#define EXPLAINED_MOST 1024u

#define BIT(field) (UINT32_C(1) << KVE_INPUT_##field)

/* What is asked with. */
#define KINDS (BIT(TOKENS) | BIT(PROMPTS) | BIT(CONTENT_HASHES) | BIT(HASHES))

#define FIELDS                                                              \
    (KINDS | BIT(MODEL) | BIT(TENANT) | BIT(BLOCK_SIZE) | BIT(LORA_NAME) |  \
        BIT(CACHE_SALT) | BIT(WORKERS) | BIT(TIERS) | BIT(RECOMPUTE_LAST) | \
        BIT(LIMIT) | BIT(EXPLAIN))

struct asked {
    struct kve_http *http;
    struct kve_http_request *req;
    const struct kve_input *input;
    struct kve_question question;
    uint8_t tiers[KVE_TIERS];
    size_t n_tiers;
    size_t limit;
    bool explain;
    size_t explained;    /* so far, of all prompts */
    kve_instance *ranks; /* those asked about, with explain */
    size_t n_ranks;
    size_t found; /* ranks that hold something, of all prompts */
    struct kve_output out;
};

/* Rows of one prompt that are in the answer. */
struct rows {
    struct kve_index_row *rows;
    size_t n;
    size_t total;
    struct kve_index_ended *ended; /* of the first n_ended */
    size_t n_ended;
};

/* ---- what is asked ---- */

/* Text that a limit of input.h tells about. */
static void
answer_input_error(
    struct kve_http_request *req, const struct kve_input_error *err)
{
    switch (err->fault) {
    case KVE_INPUT_BROKEN:
        if (err->line > 0)
            kve_http_fail_at(req, 400, err->offset,
                "the body is no JSON, in line %u, column %u: %s", err->line,
                err->column, err->detail);
        else
            kve_http_fail_at(req, 400, err->offset,
                "the body is no msgpack: %s", err->detail);
        break;
    case KVE_INPUT_WRONG:
        kve_http_fail_at(req, 422, err->offset, "%s", err->detail);
        break;
    case KVE_INPUT_LARGE:
        kve_http_fail_at(req, 413, err->offset, "%s", err->detail);
        break;
    default:
        kve_http_fail(req, 503, "no memory for the question");
        break;
    }
}

static bool
read_body(struct kve_http *http, struct kve_http_request *req)
{
    const struct kve_input_limits limits = { .max_tokens =
                                                 http->opts.max_tokens,
        .max_prompts = http->opts.max_prompts,
        .max_hashes = http->opts.max_tokens,
        .fields = FIELDS };
    struct kve_input *input = &req->scratch->input;
    struct kve_input_error err;
    enum kve_input_fault fault;

    if (req->content == KVE_MEDIA_JSON) {
        fault = kve_input_json(input, req->body, req->body_len, &limits, &err);
    } else if (req->content == KVE_MEDIA_MSGPACK) {
        fault =
            kve_input_msgpack(input, req->body, req->body_len, &limits, &err);
    } else {
        kve_http_fail(req, 415,
            "the body must be JSON or msgpack, with Content-Type: "
            "application/json or application/msgpack");
        return false;
    }
    if (fault != KVE_INPUT_FINE)
        answer_input_error(req, &err);
    return fault == KVE_INPUT_FINE;
}

/* The order of tiers: each once. */
static bool
read_tiers(struct asked *a)
{
    static const uint8_t usual[] = { KVE_TIER_GPU, KVE_TIER_CPU,
        KVE_TIER_DISK };
    uint32_t seen = 0;

    if ((a->input->has & BIT(TIERS)) == 0) {
        memcpy(a->tiers, usual, sizeof(usual));
        a->n_tiers = sizeof(usual);
        return true;
    }
    for (size_t i = 0; i < a->input->n_tiers; i++) {
        const struct kve_str *text = &a->input->tiers[i];
        unsigned tier;

        if (!kve_v1_tier_of(text->data, text->len, &tier) ||
            (seen >> tier & 1) != 0)
            break;
        seen |= 1u << tier;
        a->tiers[a->n_tiers++] = (uint8_t)tier;
    }
    if (a->n_tiers > 0 && a->n_tiers == a->input->n_tiers)
        return true;
    kve_http_fail_at(a->req, 422, a->input->where[KVE_INPUT_TIERS],
        "tiers must be one or more of GPU, CPU, DISK, REMOTE and UNKNOWN, each "
        "once");
    return false;
}

static bool
read_numbers(struct asked *a)
{
    const struct kve_input *input = a->input;
    uint64_t limit = input->number[KVE_INPUT_LIMIT];
    uint64_t size = input->number[KVE_INPUT_BLOCK_SIZE];

    a->explain = (input->has & BIT(EXPLAIN)) != 0 &&
        input->number[KVE_INPUT_EXPLAIN] != 0;
    a->limit = SIZE_MAX;
    if ((input->has & BIT(LIMIT)) != 0 && limit < SIZE_MAX)
        a->limit = (size_t)limit;
    if ((input->has & BIT(BLOCK_SIZE)) == 0)
        return true;
    if (size == 0 || size > UINT32_MAX) {
        kve_http_fail_at(a->req, 422, input->where[KVE_INPUT_BLOCK_SIZE],
            "block_size must be a number from 1 to %u", UINT32_MAX);
        return false;
    }
    a->question.block_size = (uint32_t)size;
    return true;
}

static void
answer_unknown(struct kve_http_request *req)
{
    kve_http_fail(req, 404,
        "no source of this model and tenant is known; GET /v1/sources lists "
        "those there are");
}

/* Model and tenant. */
static bool
read_names(struct asked *a)
{
    a->question.ns = kve_question_namespace(a->http,
        a->input->text[KVE_INPUT_MODEL], a->input->text[KVE_INPUT_TENANT]);
    if (a->question.ns == 0)
        answer_unknown(a->req);
    return a->question.ns != 0;
}

static bool
read_question(struct asked *a)
{
    const struct kve_input *input = a->input;
    uint32_t kinds = input->has & KINDS;

    if (kinds == 0 || (kinds & (kinds - 1)) != 0 ||
        (input->nulls & KINDS) != 0) {
        kve_http_fail(a->req, 422,
            "give exactly one of tokens, prompts, content_hashes and hashes");
        return false;
    }
    if (kinds == BIT(PROMPTS) && input->n_prompts == 0) {
        kve_http_fail_at(a->req, 422, input->where[KVE_INPUT_PROMPTS],
            "prompts must have one prompt at least");
        return false;
    }
    if ((kinds & (BIT(CONTENT_HASHES) | BIT(HASHES))) != 0 &&
        input->n_hashes == 0) {
        kve_http_fail(a->req, 422,
            "content_hashes and hashes must have one hash at least");
        return false;
    }
    if (!read_tiers(a) || !read_numbers(a) || !read_names(a))
        return false;
    a->question.input = input;
    a->question.tiers = a->tiers;
    a->question.n_tiers = a->n_tiers;
    if ((input->has & BIT(WORKERS)) != 0) {
        a->question.workers = input->workers;
        a->question.n_workers = input->n_workers;
    }
    return true;
}

/* ---- rows ---- */

static bool
has_row(const struct rows *rows, size_t n, kve_instance instance)
{
    for (size_t i = 0; i < n; i++)
        if (rows->rows[i].instance == instance)
            return true;
    return false;
}

/* Ranks that are asked about, listed once a question. false: no memory. */
static bool
list_ranks(struct asked *a)
{
    struct kve_http *http = a->http;
    size_t cap = kve_index_instances(http->index, a->question.ns, NULL, 0) + 16;
    size_t n;

    a->ranks = kve_mem_array(NULL, cap, sizeof(*a->ranks));
    if (a->ranks == NULL)
        return false;
    n = kve_index_instances(http->index, a->question.ns, a->ranks, cap);
    if (n > cap)
        n = cap;
    kve_ingest_read_begin(http->ingest);
    for (size_t i = 0; i < n; i++) {
        struct kve_ingest_row row = { .struct_size = sizeof(row) };

        if (kve_ingest_row_of(http->ingest, a->ranks[i], &row) &&
            kve_question_wants(a->req, &a->question, row.worker))
            a->ranks[a->n_ranks++] = a->ranks[i];
    }
    kve_ingest_read_end(http->ingest);
    return true;
}

/* Rows of those that hold nothing of the prompt, until there are most rows. So
 * no more than so many are looked at. false: no memory. */
static bool
add_empty_rows(struct asked *a, struct rows *rows, size_t most)
{
    size_t had = rows->n;

    if ((a->ranks == NULL && !list_ranks(a)) ||
        !kve_scratch_rows(a->req->scratch, most))
        return false;
    rows->rows = a->req->scratch->rows;
    for (size_t i = 0; i < a->n_ranks && rows->n < most; i++)
        if (!has_row(rows, had, a->ranks[i]))
            rows->rows[rows->n++] =
                (struct kve_index_row){ .instance = a->ranks[i] };
    return true;
}

/* Why each of the rows ends. */
static kve_status
explain_rows(
    struct asked *a, struct rows *rows, size_t most, struct kve_error *err)
{
    struct kve_index_query query;
    size_t n = rows->n < most ? rows->n : most;
    kve_status status;

    if (n == 0)
        return KVE_OK;
    rows->ended = kve_mem_array(NULL, n, sizeof(*rows->ended));
    if (rows->ended == NULL) {
        err->detail[0] = '\0';
        return KVE_E_NOMEM;
    }
    status = kve_question_query(&a->question, &query, err);
    for (size_t i = 0; status == KVE_OK && i < n; i++) {
        rows->ended[i] = (struct kve_index_ended)KVE_INDEX_ENDED_INIT;
        status = kve_index_explain(a->req->reader, &query,
            rows->rows[i].instance, &rows->ended[i], err);
    }
    rows->n_ended = n;
    a->explained += n;
    return status;
}

static kve_status
find_rows(struct asked *a, struct rows *rows, struct kve_error *err)
{
    struct kve_index_answer answer;
    kve_status status =
        kve_question_ask(a->http, a->req, &a->question, &answer, err);

    size_t most = 0;

    *rows = (struct rows){ 0 };
    if (status != KVE_OK)
        return status;
    a->question.sorted = true;
    rows->rows = answer.rows;
    rows->n = answer.n;
    rows->total = answer.total;
    if (a->explain)
        most = EXPLAINED_MOST - a->explained;
    if (most > a->limit)
        most = a->limit;
    if (rows->n < most && !add_empty_rows(a, rows, most))
        return KVE_E_NOMEM;
    return explain_rows(a, rows, most, err);
}

/* ---- the answer ---- */

static void
put_tiers(struct asked *a, const struct kve_index_row *row)
{
    struct kve_output *out = &a->out;

    kve_output_key(out, "tiers");
    kve_output_map(out, (uint32_t)a->n_tiers);
    for (size_t i = 0; i < a->n_tiers; i++) {
        kve_output_key(out, kve_v1_tier(a->tiers[i]));
        kve_output_map(out, 2);
        kve_output_key(out, "alone");
        kve_output_u64(out, row->alone[a->tiers[i]]);
        kve_output_key(out, "upto");
        kve_output_u64(out, row->upto[i]);
        kve_output_map_end(out);
    }
    kve_output_map_end(out);
}

static void
describe(const struct kve_index_ended *ended, char *text, size_t cap)
{
    unsigned at = ended->at;

    switch (ended->why) {
    case KVE_ENDED_PROMPT_END:
        (void)snprintf(text, cap,
            "all of the prompt's blocks are held, up to token %u", at);
        break;
    case KVE_ENDED_NOT_STORED:
        (void)snprintf(
            text, cap, "nobody holds the block that begins with token %u", at);
        break;
    case KVE_ENDED_NOT_HELD:
        (void)snprintf(text, cap,
            "others hold the block that begins with token %u, this rank does "
            "not",
            at);
        break;
    case KVE_ENDED_HOLE:
        (void)snprintf(text, cap,
            "a block behind token %u is missing, others up to token %u are "
            "held",
            at, ended->other);
        break;
    case KVE_ENDED_GROUP:
        (void)snprintf(text, cap,
            "full attention goes on to token %u, group %lld does not",
            ended->other, (long long)ended->group.value);
        break;
    case KVE_ENDED_OTHER_ROOT:
        (void)snprintf(text, cap,
            "under another adapter or salt it holds the content up to token "
            "%u",
            ended->other);
        break;
    case KVE_ENDED_OTHER_TIER:
        (void)snprintf(text, cap,
            "with tiers that were not asked for it goes on to token %u",
            ended->other);
        break;
    case KVE_ENDED_NOTHING:
        (void)snprintf(text, cap, "this rank holds nothing at all");
        break;
    default:
        (void)snprintf(
            text, cap, "it changed whenever it was looked at; ask again");
        break;
    }
}

static void
put_ended(struct kve_output *out, const struct kve_index_ended *ended)
{
    char text[160];

    describe(ended, text, sizeof(text));
    kve_output_key(out, "ended");
    kve_output_map(out, 4);
    kve_output_key(out, "at");
    kve_output_u64(out, ended->at);
    kve_output_key(out, "why");
    kve_output_text(out, kve_ended_str(ended->why));
    kve_output_key(out, "group");
    if (ended->why == KVE_ENDED_GROUP && ended->group.set)
        kve_output_i64(out, ended->group.value);
    else
        kve_output_null(out);
    kve_output_key(out, "detail");
    kve_output_text(out, text);
    kve_output_map_end(out);
}

static void
put_row(struct asked *a, const struct kve_index_row *row,
    const struct kve_ingest_row *who, const struct kve_index_ended *ended)
{
    struct kve_output *out = &a->out;

    kve_output_map(out, ended != NULL ? 9 : 8);
    kve_output_key(out, "worker");
    kve_output_json(out, who->worker_json, who->worker_json_len, who->worker);
    kve_output_key(out, "rank");
    kve_output_u64(out, who->rank);
    kve_output_key(out, "longest");
    kve_output_u64(out, row->longest);
    kve_output_key(out, "moving");
    kve_output_bool(out, (row->flags & KVE_ROW_MOVING) != 0);
    put_tiers(a, row);
    kve_v1_put_state(out, who->state, who->reason, who->source);
    if (ended != NULL)
        put_ended(out, ended);
    kve_output_map_end(out);
}

/* How many rows there will be: msgpack says so first. In a read section. */
static size_t
count_rows(const struct asked *a, const struct rows *rows)
{
    size_t n = 0;

    for (size_t i = 0; i < rows->n && n < a->limit; i++) {
        struct kve_ingest_row who = { .struct_size = sizeof(who) };

        n += kve_ingest_row_of(a->http->ingest, rows->rows[i].instance, &who);
    }
    return n;
}

static void
put_rows(struct asked *a, const struct rows *rows)
{
    size_t n;

    kve_output_key(&a->out, "workers");
    kve_ingest_read_begin(a->http->ingest);
    n = rows->n < a->limit ? rows->n : a->limit;
    if (a->out.msgpack)
        n = count_rows(a, rows);
    kve_output_array(&a->out, (uint32_t)n);
    for (size_t i = 0; n > 0 && i < rows->n; i++) {
        struct kve_ingest_row who = { .struct_size = sizeof(who) };

        if (!kve_ingest_row_of(a->http->ingest, rows->rows[i].instance, &who))
            continue;
        put_row(a, &rows->rows[i], &who,
            i < rows->n_ended ? &rows->ended[i] : NULL);
        n--;
    }
    kve_ingest_read_end(a->http->ingest);
    kve_output_array_end(&a->out);
}

static void
put_length(struct asked *a)
{
    const struct kve_input *input = a->input;
    size_t at = a->question.prompt;

    kve_output_key(&a->out, "tokens");
    if (input->n_prompts > 0)
        kve_output_u64(&a->out,
            input->prompt_end[at] - (at > 0 ? input->prompt_end[at - 1] : 0));
    else if (a->question.block_size > 0)
        kve_output_u64(
            &a->out, input->n_hashes * (uint64_t)a->question.block_size);
    else
        kve_output_null(&a->out);
}

static kve_status
answer_prompt(struct asked *a, struct kve_error *err)
{
    struct rows rows;
    kve_status status = find_rows(a, &rows, err);

    if (status == KVE_OK) {
        a->found += rows.total;
        kve_output_map(&a->out, 3);
        put_length(a);
        kve_output_key(&a->out, "total");
        kve_output_u64(&a->out, rows.total);
        put_rows(a, &rows);
        kve_output_map_end(&a->out);
    }
    kve_mem_free(rows.ended);
    return status;
}

static void
answer(struct asked *a)
{
    struct kve_http_request *req = a->req;
    size_t n = a->input->n_prompts > 0 ? a->input->n_prompts : 1;
    kve_status status = KVE_OK;
    struct kve_error err;

    req->media = req->content == KVE_MEDIA_MSGPACK || req->accepts_msgpack
        ? KVE_MEDIA_MSGPACK
        : KVE_MEDIA_JSON;
    kve_output_begin(&a->out, req->out, req->media == KVE_MEDIA_MSGPACK);
    kve_output_map(&a->out, 1);
    kve_output_key(&a->out, "prompts");
    kve_output_array(&a->out, (uint32_t)n);
    for (size_t i = 0; status == KVE_OK && i < n; i++) {
        a->question.prompt = i;
        status = answer_prompt(a, &err);
    }
    kve_output_array_end(&a->out);
    kve_output_map_end(&a->out);
    kve_mem_free(a->ranks);
    /* Whether anybody is left there is looked up under a lock: only where
     * nobody was met. */
    if (status == KVE_OK && a->out.status == KVE_OK &&
        (a->found > 0 || kve_question_known(a->http, a->question.ns)))
        return;
    req->out->len = 0;
    req->media = KVE_MEDIA_JSON;
    if (status == KVE_OK && a->out.status == KVE_OK)
        answer_unknown(req);
    else if (status == KVE_OK || status == KVE_E_NOMEM)
        kve_http_fail(req, 503, "no memory for this answer");
    else
        kve_v1_fail(req, status, &err);
}

void
kve_v1_query(struct kve_http *http, struct kve_http_request *req)
{
    struct asked a = {
        .http = http, .req = req, .input = &req->scratch->input
    };

    if (read_body(http, req) && read_question(&a))
        answer(&a);
}
