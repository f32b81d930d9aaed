/*
 * ask.c - from a parsed question to rows.
 */
#include "http/ask.h"

#include "base/alloc.h"
#include "base/status.h"
#include "http/scratch.h"

#include <stdlib.h>
#include <string.h>

/* Room for rows at first. */
#define FIRST_ROWS 64

/* Longest salt for which no memory is asked. */
#define SHORT_SALT 232

/* How often a question is asked again because instances became more. */
#define TRIES 8

/* ---- names ---- */

/* A model and a tenant as C strings, one after another in room. */
static bool
join_names(char *room, struct kve_str model, struct kve_str tenant)
{
    if (memchr(model.data, 0, model.len) != NULL ||
        memchr(tenant.data, 0, tenant.len) != NULL)
        return false;
    memcpy(room, model.data, model.len);
    room[model.len] = '\0';
    memcpy(room + model.len + 1, tenant.data, tenant.len);
    room[model.len + 1 + tenant.len] = '\0';
    return true;
}

kve_namespace
kve_question_namespace(
    const struct kve_http *http, struct kve_str model, struct kve_str tenant)
{
    char room[512];
    char *names = room;
    kve_namespace ns = 0;

    if (model.data == NULL)
        model.data = "";
    if (tenant.data == NULL) {
        tenant.data = "default";
        tenant.len = strlen(tenant.data);
    }
    if (model.len + tenant.len + 2 > sizeof(room)) {
        names = kve_mem_alloc(model.len + tenant.len + 2);
        if (names == NULL)
            return 0;
    }
    if (join_names(names, model, tenant))
        ns =
            kve_index_find_namespace(http->index, names, names + model.len + 1);
    if (names != room)
        kve_mem_free(names);
    return ns;
}

bool
kve_question_known(const struct kve_http *http, kve_namespace ns)
{
    struct kve_index_stats stats = KVE_INDEX_STATS_INIT;

    return ns != 0 && kve_index_get_stats(http->index, ns, &stats) == KVE_OK &&
        stats.instances > 0;
}

/* ---- the query ---- */

static kve_status
query_tokens(const struct kve_question *question, struct kve_index_query *query,
    struct kve_error *err)
{
    const struct kve_input *input = question->input;
    size_t at = question->prompt;
    size_t begin;

    if (at >= input->n_prompts)
        return kve_fail(err, KVE_E_INVAL, "prompt %zu of a question with %zu",
            at, input->n_prompts);
    begin = at == 0 ? 0 : input->prompt_end[at - 1];
    query->tokens = input->tokens + begin;
    query->n_tokens = input->prompt_end[at] - begin;
    return KVE_OK;
}

static kve_status
query_hashes(const struct kve_question *question, struct kve_index_query *query,
    struct kve_error *err)
{
    const struct kve_input *input = question->input;
    bool contents = input->hashes_field == KVE_INPUT_CONTENT_HASHES;

    if ((question->dynamo || contents) && input->wide)
        return kve_fail_at(err, KVE_E_INVAL, input->where[input->hashes_field],
            "%s has hashes that are not 64 bits; accepted are numbers from "
            "-2^63 to 2^64-1, as numbers or as texts",
            kve_input_field_name((int)input->hashes_field));
    if (question->dynamo) {
        query->dynamo = input->numbers;
        query->n_dynamo = input->n_hashes;
    } else if (contents) {
        query->contents = input->numbers;
        query->n_contents = input->n_hashes;
    } else {
        query->hashes = input->hashes;
        query->n_hashes = input->n_hashes;
    }
    return KVE_OK;
}

/* tokens and the like may be NULL where a list is empty; the index wants to
 * see that the list is there. */
static void
query_empty(const struct kve_question *question, struct kve_index_query *query)
{
    static const uint32_t no_tokens[1];
    static const uint64_t no_numbers[1];
    static const struct kve_hash no_hashes[1];

    if (query->tokens != NULL || query->dynamo != NULL ||
        query->contents != NULL || query->hashes != NULL)
        return;
    if (question->input->n_prompts > 0)
        query->tokens = no_tokens;
    else if (question->dynamo)
        query->dynamo = no_numbers;
    else if (question->input->hashes_field == KVE_INPUT_CONTENT_HASHES)
        query->contents = no_numbers;
    else
        query->hashes = no_hashes;
}

#define HAS(input, FIELD) \
    (((input)->has & (UINT32_C(1) << KVE_INPUT_##FIELD)) != 0)

static bool
has_hashes(const struct kve_input *input)
{
    return HAS(input, BLOCK_HASHES) || HAS(input, BLOCK_HASH) ||
        HAS(input, SEQ_HASHES) || HAS(input, HASHES) ||
        HAS(input, CONTENT_HASHES);
}

kve_status
kve_question_query(const struct kve_question *question,
    struct kve_index_query *ret_query, struct kve_error *err)
{
    const struct kve_input *input = question->input;
    struct kve_index_query query = KVE_INDEX_QUERY_INIT;
    kve_status status;

    query.ns = question->ns;
    query.tiers = question->tiers;
    query.n_tiers = question->n_tiers;
    if (input->n_prompts > 0)
        status = query_tokens(question, &query, err);
    else if (has_hashes(input))
        status = query_hashes(question, &query, err);
    else
        status = kve_fail(err, KVE_E_INVAL,
            "a question has tokens or hashes, and this one has neither");
    if (status != KVE_OK)
        return status;
    query_empty(question, &query);
    if (query.tokens == NULL) {
        query.block_size = question->block_size;
        if (query.block_size == 0 && HAS(input, BLOCK_SIZE) &&
            input->number[KVE_INPUT_BLOCK_SIZE] <= UINT32_MAX)
            query.block_size = (uint32_t)input->number[KVE_INPUT_BLOCK_SIZE];
    }
    query.lora_name = question->lora_name.data != NULL
        ? question->lora_name
        : input->text[KVE_INPUT_LORA_NAME];
    query.cache_salt = input->text[KVE_INPUT_CACHE_SALT];
    query.recompute_last = HAS(input, RECOMPUTE_LAST) &&
        input->number[KVE_INPUT_RECOMPUTE_LAST] != 0;
    *ret_query = query;
    return KVE_OK;
}

/* ---- asking ---- */

/* Ask until all rows have room: in rows, or more. */
static kve_status
ask_all(struct kve_http_request *req, const struct kve_index_query *query,
    bool more, struct kve_index_answer *ret, struct kve_error *err)
{
    struct kve_http_scratch *scratch = req->scratch;
    size_t want = FIRST_ROWS;

    for (int tries = 0; tries < TRIES; tries++) {
        struct kve_index_answer answer = KVE_INDEX_ANSWER_INIT;
        kve_status status;

        if (!(more ? kve_scratch_more(scratch, want)
                   : kve_scratch_rows(scratch, want)))
            return kve_fail_nomem(err, "the rows of an answer");
        answer.rows = more ? scratch->more : scratch->rows;
        answer.cap = more ? scratch->cap_more : scratch->cap_rows;
        status = kve_index_query(req->reader, query, &answer, err);
        if (status != KVE_OK)
            return status;
        *ret = answer;
        if (answer.n == answer.total)
            return KVE_OK;
        want = answer.total + answer.total / 4 + 16;
    }
    /* They become more faster than we ask: the longest of them, then. */
    return KVE_OK;
}

static int
by_instance(const void *a, const void *b)
{
    kve_instance one = ((const struct kve_index_row *)a)->instance;
    kve_instance two = ((const struct kve_index_row *)b)->instance;

    return one < two ? -1 : one > two;
}

static void
merge_row(struct kve_index_row *to, const struct kve_index_row *from)
{
    for (size_t i = 0; i < KVE_TIERS; i++) {
        if (to->alone[i] < from->alone[i])
            to->alone[i] = from->alone[i];
        if (to->upto[i] < from->upto[i])
            to->upto[i] = from->upto[i];
    }
    if (to->longest < from->longest)
        to->longest = from->longest;
    to->flags |= from->flags;
}

/* Put the rows of more to those of rows. */
static kve_status
merge(struct kve_http_scratch *scratch, struct kve_index_answer *to,
    const struct kve_index_answer *from, struct kve_error *err)
{
    size_t n = to->n;

    if (from->n == 0)
        return KVE_OK;
    if (!kve_scratch_rows(scratch, n + from->n))
        return kve_fail_nomem(err, "the rows of an answer");
    to->rows = scratch->rows;
    to->cap = scratch->cap_rows;
    if (n > 1)
        qsort(to->rows, n, sizeof(to->rows[0]), by_instance);
    for (size_t i = 0; i < from->n; i++) {
        struct kve_index_row *same = n == 0
            ? NULL
            : bsearch(&from->rows[i], to->rows, n, sizeof(to->rows[0]),
                  by_instance);

        if (same != NULL)
            merge_row(same, &from->rows[i]);
        else
            to->rows[to->n++] = from->rows[i];
    }
    to->total = to->n;
    to->n_moving += from->n_moving;
    return KVE_OK;
}

/* The same with the salt as vLLM is told it, and both together. */
static kve_status
ask_other_salt(struct kve_http_request *req,
    const struct kve_index_query *query, struct kve_index_answer *answer,
    struct kve_error *err)
{
    size_t before = strlen(KVE_DYNAMO_SALT);
    size_t len = query->cache_salt.len;
    struct kve_index_answer other = KVE_INDEX_ANSWER_INIT;
    struct kve_index_query salted = *query;
    char room[SHORT_SALT + sizeof(KVE_DYNAMO_SALT)];
    char *salt = room;
    kve_status status;

    if (len > SHORT_SALT) {
        salt = kve_mem_alloc(before + len);
        if (salt == NULL)
            return kve_fail_nomem(err, "a salt");
    }
    memcpy(salt, KVE_DYNAMO_SALT, before);
    memcpy(salt + before, query->cache_salt.data, len);
    salted.cache_salt.data = salt;
    salted.cache_salt.len = before + len;
    status = ask_all(req, &salted, true, &other, err);
    if (status == KVE_OK)
        status = merge(req->scratch, answer, &other, err);
    if (salt != room)
        kve_mem_free(salt);
    return status;
}

/* ---- of some workers only ---- */

static int
compare_texts(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);

    return order != 0 ? order : a_len < b_len ? -1 : a_len > b_len;
}

/* Order of numbers of texts, by what they name. */
static int
by_text(const void *a, const void *b, void *ctx)
{
    const struct kve_str *one =
        (const struct kve_str *)ctx + *(const kve_instance *)a;
    const struct kve_str *two =
        (const struct kve_str *)ctx + *(const kve_instance *)b;

    return compare_texts(one->data, one->len, two->data, two->len);
}

bool
kve_question_wants(const struct kve_http_request *req,
    const struct kve_question *question, const char *worker)
{
    const kve_instance *order = req->scratch->only;
    size_t len = strlen(worker);
    size_t low = 0;
    size_t high = question->n_workers;

    if (question->workers == NULL)
        return true;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct kve_str *one = &question->workers[order[middle]];
        int way = compare_texts(worker, len, one->data, one->len);

        if (way == 0)
            return true;
        if (way < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return false;
}

/* Order the workers that are asked for, in scratch. */
static kve_status
sort_workers(struct kve_http_request *req, const struct kve_question *question,
    struct kve_error *err)
{
    kve_instance *order;

    if (!kve_scratch_only(req->scratch, question->n_workers + 1))
        return kve_fail_nomem(err, "a list of workers");
    order = req->scratch->only;
    for (size_t i = 0; i < question->n_workers; i++)
        order[i] = i;
    if (question->n_workers > 1)
        qsort_r(order, question->n_workers, sizeof(order[0]), by_text,
            (void *)(uintptr_t)question->workers);
    return KVE_OK;
}

/* Keep the rows of the workers that were asked for. */
static kve_status
keep_workers(struct kve_http *http, struct kve_http_request *req,
    const struct kve_question *question, struct kve_index_answer *answer,
    struct kve_error *err)
{
    kve_status status = KVE_OK;
    size_t n = 0;

    if (!question->sorted)
        status = sort_workers(req, question, err);
    if (status != KVE_OK)
        return status;
    answer->n_moving = 0;
    kve_ingest_read_begin(http->ingest);
    for (size_t i = 0; i < answer->n; i++) {
        struct kve_ingest_row who = { .struct_size = sizeof(who) };

        if (!kve_ingest_row_of(http->ingest, answer->rows[i].instance, &who) ||
            !kve_question_wants(req, question, who.worker))
            continue;
        answer->n_moving += (answer->rows[i].flags & KVE_ROW_MOVING) != 0;
        answer->rows[n++] = answer->rows[i];
    }
    kve_ingest_read_end(http->ingest);
    answer->n = n;
    answer->total = n;
    return KVE_OK;
}

kve_status
kve_question_ask(struct kve_http *http, struct kve_http_request *req,
    const struct kve_question *question, struct kve_index_answer *ret,
    struct kve_error *err)
{
    struct kve_index_answer answer = KVE_INDEX_ANSWER_INIT;
    struct kve_index_query query;
    kve_status status;

    status = kve_question_query(question, &query, err);
    if (status != KVE_OK)
        return status;
    status = ask_all(req, &query, false, &answer, err);
    if (status == KVE_OK && question->dynamo_salt && query.cache_salt.len > 0)
        status = ask_other_salt(req, &query, &answer, err);
    if (status == KVE_OK && question->workers != NULL)
        status = keep_workers(http, req, question, &answer, err);
    if (status == KVE_OK)
        *ret = answer;
    return status;
}
