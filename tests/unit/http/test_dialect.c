/*
 * The dialects, without a socket: questions of many workers, and every failed
 * allocation. What they answer word for word is in tests/http.
 */
#include "http/ask.h"
#include "http/dialect.h"

#include "base/alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#define BLOCK 4u

/* A service without a server: an index that an ingest feeds, of sources that
 * are nowhere. */
struct desk {
    struct kve_http http;
    kve_index_reader *reader;
    struct kve_http_scratch scratch;
    struct kve_buffer out;
};

static void
desk_open(struct desk *desk)
{
    memset(desk, 0, sizeof(*desk));
    assert_int_equal(kve_index_create(NULL, &desk->http.index, NULL), KVE_OK);
    assert_int_equal(kve_ingest_create(NULL, desk->http.index, NULL,
                         &desk->http.ingest, NULL),
        KVE_OK);
    assert_int_equal(
        kve_index_reader_create(desk->http.index, &desk->reader, NULL), KVE_OK);
    desk->http.peers = kve_http_peers_create();
    assert_non_null(desk->http.peers);
    desk->http.opts.max_tokens = 1048576;
}

static void
desk_close(struct desk *desk)
{
    kve_http_peers_destroy(desk->http.peers);
    kve_scratch_release(&desk->scratch);
    kve_buffer_release(&desk->out);
    kve_index_reader_destroy(desk->reader);
    kve_ingest_destroy(desk->http.ingest);
    kve_index_destroy(desk->http.index);
}

/* The status of an answer, which is in desk->out. */
static unsigned
ask(struct desk *desk, kve_http_handler *handler, const char *body)
{
    struct kve_http_request req = {
        .method = KVE_METHOD_POST,
        .path = "/",
        .path_rest = "",
        .content = KVE_MEDIA_JSON,
        .body = (const uint8_t *)body,
        .body_len = strlen(body),
        .reader = desk->reader,
        .scratch = &desk->scratch,
        .status = 200,
        .media = KVE_MEDIA_JSON,
        .out = &desk->out,
    };

    desk->out.len = 0;
    handler(&desk->http, &req);
    return req.status;
}

static json_t *
answer(struct desk *desk, kve_http_handler *handler, const char *body)
{
    json_t *value;

    assert_int_equal(ask(desk, handler, body), 200);
    value = json_loadb((const char *)desk->out.data, desk->out.len,
        JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(value);
    return value;
}

static void
answers(struct desk *desk, kve_http_handler *handler, const char *body,
    unsigned status, const char *text)
{
    assert_int_equal(ask(desk, handler, body), status);
    assert_int_equal(desk->out.len, strlen(text));
    assert_memory_equal(desk->out.data, text, strlen(text));
}

/* A worker's rank that is nowhere, and what it holds: blocks of tokens 0, 1,
 * .., with a salt or NULL. */
static void
add(struct desk *desk, const char *worker, uint32_t rank, size_t blocks,
    const char *salt)
{
    struct kve_ingest_spec spec = KVE_INGEST_SPEC_INIT;
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_event event;
    struct kve_hash hashes[64];
    uint32_t tokens[64 * BLOCK];
    struct kve_ingest_source source = { .struct_size = sizeof(source) };
    kve_ingest_id id;

    spec.model = "m";
    spec.worker = worker;
    spec.rank = rank;
    spec.block_size = BLOCK;
    spec.source.endpoint = "tcp://127.0.0.1:1";
    assert_int_equal(
        kve_ingest_add(desk->http.ingest, &spec, &id, NULL), KVE_OK);
    /* Nobody shall look for it, and allocate meanwhile. */
    assert_int_equal(kve_ingest_pause(desk->http.ingest, id, NULL), KVE_OK);
    kve_ingest_read_begin(desk->http.ingest);
    assert_int_equal(
        kve_ingest_source_of(desk->http.ingest, id, &source), KVE_OK);
    kve_ingest_read_end(desk->http.ingest);
    memset(&event, 0, sizeof(event));
    event.type = KVE_EVENT_STORED;
    event.block_size = BLOCK;
    event.hashes = hashes;
    event.n_hashes = blocks;
    event.tokens = tokens;
    event.n_tokens = blocks * BLOCK;
    if (salt != NULL) {
        event.cache_salt.data = salt;
        event.cache_salt.len = strlen(salt);
    }
    for (size_t i = 0; i < blocks; i++) {
        hashes[i].bytes = NULL;
        hashes[i].integer = 1000 * (salt == NULL ? 1 : strlen(salt)) + i;
    }
    for (uint32_t i = 0; i < blocks * BLOCK; i++)
        tokens[i] = i;
    view.events = &event;
    view.n_events = 1;
    assert_int_equal(kve_index_apply(desk->http.index, source.instance, &view,
                         NULL, 0, NULL, NULL),
        KVE_OK);
}

/* {"token_ids":[0,1,..],MORE} */
static char *
question(size_t blocks, const char *more)
{
    static char body[4096];
    size_t used = (size_t)snprintf(body, sizeof(body), "{\"token_ids\":[");

    for (size_t i = 0; i < blocks * BLOCK; i++)
        used += (size_t)snprintf(
            body + used, sizeof(body) - used, "%s%zu", i == 0 ? "" : ",", i);
    snprintf(body + used, sizeof(body) - used, "],%s}", more);
    return body;
}

static json_int_t
number(const json_t *value, const char *instance, const char *key)
{
    const json_t *one =
        json_object_get(json_object_get(value, "instances"), instance);

    assert_non_null(one);
    return json_integer_value(json_object_get(one, key));
}

/* More rows than there is room for at first; ranks of 7 workers. */
static void
test_many_rows(void **state)
{
    enum { WORKERS = 7, RANKS = 60 };
    struct desk desk;
    json_t *value;
    char name[16];

    (void)state;
    desk_open(&desk);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        for (int w = 0; w < WORKERS; w++) {
            snprintf(name, sizeof(name), "%d", w);
            add(&desk, name, rank, 1 + (rank + (uint32_t)w) % 5, NULL);
        }
    value =
        answer(&desk, kve_dialect_query, question(8, "\"model_name\":\"m\""));
    assert_int_equal(
        json_object_size(json_object_get(value, "instances")), WORKERS);
    for (int w = 0; w < WORKERS; w++) {
        json_t *scores;

        snprintf(name, sizeof(name), "%d", w);
        assert_int_equal(number(value, name, "gpu"), 5 * BLOCK);
        scores = json_object_get(json_object_get(value, "scores"), name);
        assert_int_equal(json_object_size(scores), RANKS);
        for (int rank = 0; rank < RANKS; rank++) {
            char key[16];

            snprintf(key, sizeof(key), "%d", rank);
            assert_int_equal(json_integer_value(json_object_get(scores, key)),
                (1 + (rank + w) % 5) * (int)BLOCK);
        }
    }
    json_decref(value);
    desk_close(&desk);
}

/* Rows of two salts become one a rank, where there is no room at first. */
static void
test_salts_are_merged(void **state)
{
    enum { RANKS = 50 };
    struct desk desk;
    json_t *value;

    (void)state;
    desk_open(&desk);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        add(&desk, "plain", rank, 2, "x");
        add(&desk, "prefixed", rank, 3, KVE_DYNAMO_SALT "x");
        add(&desk, "unsalted", rank, 4, NULL);
    }
    value = answer(&desk, kve_dialect_query,
        question(8, "\"model_name\":\"m\",\"cache_salt\":\"x\""));
    assert_int_equal(json_object_size(json_object_get(value, "instances")), 2);
    assert_int_equal(number(value, "plain", "gpu"), 2 * BLOCK);
    assert_int_equal(number(value, "prefixed", "gpu"), 3 * BLOCK);
    assert_int_equal(json_object_size(json_object_get(
                         json_object_get(value, "scores"), "prefixed")),
        RANKS);
    json_decref(value);
    desk_close(&desk);
}

/* Workers by name: few, many, twice, and ones that nobody knows. */
static void
test_filter_of_workers(void **state)
{
    struct desk desk;
    struct kve_http_request req = { 0 };
    struct kve_question q = { 0 };
    struct kve_input_error wrong;
    struct kve_index_answer got = KVE_INDEX_ANSWER_INIT;
    struct kve_str workers[4] = { { "w3", 2 }, { "nobody", 6 }, { "w1", 2 },
        { "w3", 2 } };
    const char *body = question(2, "\"model\":\"m\"");
    char name[16];

    (void)state;
    desk_open(&desk);
    for (int w = 0; w < 5; w++) {
        snprintf(name, sizeof(name), "w%d", w);
        add(&desk, name, 0, 2, NULL);
        add(&desk, name, 1, 1, NULL);
    }
    assert_int_equal(kve_input_json(&desk.scratch.input, (const uint8_t *)body,
                         strlen(body), &(struct kve_input_limits){ 0 }, &wrong),
        KVE_INPUT_FINE);
    req.reader = desk.reader;
    req.scratch = &desk.scratch;
    q.input = &desk.scratch.input;
    q.ns = kve_index_find_namespace(desk.http.index, "m", "default");
    q.workers = workers;
    for (size_t n = 0; n <= 4; n++) {
        static const size_t expected[] = { 0, 2, 2, 4, 4 };

        q.n_workers = n;
        assert_int_equal(
            kve_question_ask(&desk.http, &req, &q, &got, NULL), KVE_OK);
        assert_int_equal(got.n, expected[n]);
        assert_int_equal(got.total, expected[n]);
    }
    q.prompt = 1;
    assert_int_equal(
        kve_question_ask(&desk.http, &req, &q, &got, NULL), KVE_E_INVAL);
    desk_close(&desk);
}

/* Long names and names with a zero byte find nothing that is not theirs. */
static void
test_names(void **state)
{
    struct desk desk;
    char body[2048];
    char model[900];

    (void)state;
    desk_open(&desk);
    add(&desk, "1", 0, 2, NULL);
    memset(model, 'x', sizeof(model) - 1);
    model[sizeof(model) - 1] = '\0';
    snprintf(
        body, sizeof(body), "{\"token_ids\":[0],\"model_name\":\"%s\"}", model);
    assert_int_equal(ask(&desk, kve_dialect_query, body), 404);
    assert_int_equal(ask(&desk, kve_dialect_query,
                         "{\"token_ids\":[0],\"model_name\":\"m\\u0000\"}"),
        404);
    assert_int_equal(ask(&desk, kve_dialect_query,
                         "{\"token_ids\":[0],\"model_name\":\"\\u006d\"}"),
        200);
    assert_int_equal(ask(&desk, kve_dynamo_unregister,
                         "{\"instance_id\":1,\"model_name\":\"m\\u0000\"}"),
        422);
    answers(&desk, kve_dynamo_unregister,
        "{\"instance_id\":1,\"model_name\":\"\\u006d\\ud83d\\ude00\"}", 404,
        "{\"error\":\"instance 1 is registered for model=m "
        "routing_group=default\"}");
    desk_close(&desk);
}

/* Every allocation of an answer fails once: 503, or the right answer. */
static void
all_fail(struct desk *desk, kve_http_handler *handler, const char *body,
    unsigned status)
{
    char *right;
    size_t len;
    uint64_t n = 1;
    bool failed = true;

    assert_int_equal(ask(desk, handler, body), status);
    len = desk->out.len;
    right = malloc(len + 1);
    assert_non_null(right);
    memcpy(right, desk->out.data, len);
    for (; failed; n++) {
        unsigned got;

        /* What is kept between questions is asked for again. */
        kve_scratch_release(&desk->scratch);
        kve_buffer_release(&desk->out);
        kve_mem_fail_at(n, false);
        got = ask(desk, handler, body);
        failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        if (got == status) {
            assert_int_equal(desk->out.len, len);
            assert_memory_equal(desk->out.data, right, len);
        } else {
            assert_true(failed);
            assert_int_equal(got, 503);
        }
    }
    assert_true(n > 2);
    free(right);
}

static void
fail_all_of_all(struct desk *desk)
{
    all_fail(desk, kve_dialect_query,
        question(4, "\"model_name\":\"m\",\"cache_salt\":\"x\""), 200);
    all_fail(desk, kve_dialect_query,
        question(4, "\"model\":\"m\",\"instance_id\":\"1\""), 200);
    all_fail(desk, kve_dialect_query,
        question(4, "\"model\":\"m\",\"lora_id\":1"), 200);
    all_fail(desk, kve_dialect_query_by_hash,
        "{\"block_hashes\":[1,2],\"model_name\":\"m\"}", 200);
    all_fail(desk, kve_dialect_query, question(1, "\"model_name\":\"n\""), 404);
    all_fail(desk, kve_dynamo_unregister,
        "{\"instance_id\":1,\"model_name\":\"n\"}", 404);
    all_fail(desk, kve_mooncake_unregister, "{\"instance_id\":\"e\"}", 404);
    all_fail(desk, kve_mooncake_register,
        "{\"instance_id\":\"1\",\"modelname\":\"m\","
        "\"endpoint\":\"tcp://h:1\"}",
        200);
    all_fail(desk, kve_dynamo_deregister_peer, "{\"url\":\"x\"}", 404);
    kve_scratch_release(&desk->scratch);
    kve_buffer_release(&desk->out);
}

static void
test_no_memory(void **state)
{
    struct desk desk;
    int64_t live;
    int tries = 0;

    (void)state;
    desk_open(&desk);
    for (uint32_t rank = 0; rank < 5; rank++) {
        add(&desk, "1", rank, 2, NULL);
        add(&desk, "2", rank, 3, "x");
        add(&desk, "3", rank, 3, KVE_DYNAMO_SALT "x");
    }
    /* The reader of the index has its memory after the first time, and threads
     * of the ingest put sockets away for a while. What leaks does so always. */
    do {
        live = kve_mem_live();
        fail_all_of_all(&desk);
    } while (kve_mem_live() != live && ++tries < 20);
    assert_int_equal(kve_mem_live(), live);
    desk_close(&desk);
}

/* Bodies that were changed here and there: read or refused, and what is read is
 * an object for another reader of JSON, too. */
static void
test_bodies_by_chance(void **state)
{
    static const char *const seeds[] = {
        "{\"instance_id\":17,\"endpoint\":\"tcp://h:1\",\"model_name\":\"m\","
        "\"block_size\":16,\"dp_rank\":1,\"x\":[{\"y\":[1,\"]\"]},null]}",
        "{\"instance_id\":\"e\\u0031\\n\",\"endpoint\":\"tcp://[::1]:1\","
        "\"modelname\":\"\\ud83d\\ude00\",\"type\":\"vLLM\","
        "\"hash_profile\":{\"a\":{}}, \"dp_rank\":0 }",
        "{\"worker\":\"w\",\"endpoint\":\"ipc:///x\",\"rank\":3,"
        "\"on_loss\":\"keep\",\"streams\":\"split\",\"topic_rule\":\"id\","
        "\"counting\":\"set\",\"block_size\":null}",
    };
    static const char letters[] = "{}[]\",:0123456789-+.eE\\u tfn\xc3\xa9\x01";
    struct desk desk;
    unsigned read = 0;
    char body[512];

    (void)state;
    desk_open(&desk);
    srand(7);
    for (unsigned i = 0; i < 120000; i++) {
        struct kve_http_request req = { 0 };
        struct kve_registration reg;
        struct kve_registration_error err;
        size_t len = (size_t)snprintf(
            body, sizeof(body), "%s", seeds[(unsigned)rand() % 3]);

        for (int changes = rand() % 4; changes > 0 && len > 1; changes--) {
            size_t at = (size_t)rand() % len;

            if (rand() % 3 == 0)
                memmove(body + at, body + at + 1, len-- - at);
            else
                body[at] = letters[(size_t)rand() % (sizeof(letters) - 1)];
        }
        req.scratch = &desk.scratch;
        req.body = (const uint8_t *)body;
        req.body_len = len;
        if (kve_registration_read(
                &reg, &req, (enum kve_spelling)((unsigned)rand() % 3), &err)) {
            json_t *value = json_loadb(body, len, JSON_ALLOW_NUL, NULL);

            assert_true(json_is_object(value));
            assert_non_null(reg.spec.worker);
            assert_non_null(reg.spec.source.endpoint);
            read++;
            json_decref(value);
            kve_registration_release(&reg);
        } else {
            assert_true(err.status == 400 || err.status == 422);
            assert_true(strlen(err.text) > 0);
            assert_null(strchr(err.text, '\n'));
        }
        (void)kve_body_has(
            &desk.scratch.input, req.body, req.body_len, "modelname");
    }
    assert_true(read > 1000);
    desk_close(&desk);
}

/* One peer more than there is room for. */
static void
test_peers(void **state)
{
    struct desk desk;
    char body[64];

    (void)state;
    desk_open(&desk);
    for (unsigned i = 0; i < KVE_MAX_PEERS; i++) {
        snprintf(body, sizeof(body), "{\"url\":\"http://h:%u\"}", i);
        assert_int_equal(ask(&desk, kve_dynamo_register_peer, body), 201);
    }
    assert_int_equal(ask(&desk, kve_dynamo_register_peer, body), 201);
    assert_int_equal(
        ask(&desk, kve_dynamo_register_peer, "{\"url\":\"more\"}"), 409);
    assert_int_equal(
        ask(&desk, kve_dynamo_deregister_peer, "{\"url\":\"http://h:0\"}"),
        200);
    assert_int_equal(
        ask(&desk, kve_dynamo_register_peer, "{\"url\":\"more\"}"), 201);
    desk_close(&desk);
}

/* A listener that can not go on for want of memory is there, and may be asked
 * to again. */
static void
test_resume_without_memory(void **state)
{
    static const char body[] = "{\"instance_id\":7}";
    struct desk desk;
    unsigned status;
    unsigned refused = 0;
    bool failed = true;

    (void)state;
    desk_open(&desk);
    add(&desk, "7", 0, 1, NULL);
    for (uint64_t n = 1; failed; n++) {
        kve_mem_fail_at(n, false);
        status = ask(&desk, kve_dynamo_resume, body);
        failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        assert_true(status == 200 || status == 503);
        refused += status == 503;
        /* The answer may be what there was no memory for. */
        status = ask(&desk, kve_dynamo_pause, body);
        assert_true(status == 200 || status == 409);
    }
    assert_int_equal(ask(&desk, kve_dynamo_resume, body), 200);
    assert_true(refused > 2);
    assert_int_equal(ask(&desk, kve_dynamo_resume, body), 409);
    assert_int_equal(ask(&desk, kve_dynamo_resume, "{\"instance_id\":8}"), 404);
    desk_close(&desk);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_salts_are_merged),
        cmocka_unit_test(test_filter_of_workers),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_bodies_by_chance),
        cmocka_unit_test(test_peers),
        cmocka_unit_test(test_resume_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
