/*
 * ctest-timeout: 300
 *
 * An ingest, and everything that any thread may do to it at the same time: add,
 * remove, pause, resume and clear sources, also those of one worker and those
 * behind a bound socket; read what they are; ask the index and look its rows
 * up; and look at instances and positions as one who saves them does. Meanwhile
 * engines talk, lose batches, name other ranks and start anew.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "ingest/ingest.h"
#include "support/eventtext.h"
#include "support/port.h"

#include <kvevents/kvevents.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ENGINES 3
#define WORKERS 4
#define RUN_MS 5000

struct engine {
    kve_publisher *pub;
    char live[64];
    char replay[64];
    char topic[32];
    bool joins; /* the bound socket */
};

struct shared {
    kve_index *index;
    kve_ingest *ingest;
    kve_namespace ns;
    char bound[64];
    struct engine engines[ENGINES + 1];
    atomic_bool done;
    atomic_uint_fast64_t events;
    atomic_uint_fast64_t asked;
    atomic_uint_fast64_t shown; /* rows that were somebody's */
    atomic_uint_fast64_t saved;
    atomic_uint_fast64_t late; /* what a removed worker still showed */
};

static uint32_t
next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void
on_event(void *ctx, const struct kve_ingest_event *event)
{
    struct shared *s = ctx;

    if (event->worker == NULL || event->detail == NULL)
        abort();
    atomic_fetch_add(&s->events, 1);
}

/* ---- engines --------------------------------------------------------- */

static void
begin(struct shared *s, struct engine *e)
{
    struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;

    opts.endpoint = e->joins ? s->bound : e->live;
    opts.replay_endpoint = e->joins ? NULL : e->replay;
    opts.bind = e->joins ? KVE_BIND_NO : KVE_BIND_YES;
    opts.topic = e->topic;
    opts.buffer_steps = 4;
    assert_int_equal(kve_pub_create(NULL, &opts, &e->pub, NULL), KVE_OK);
}

static void
say(struct engine *e, struct eventtext *et, uint32_t choice)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_buffer buf = KVE_BUFFER_INIT;

    memset(et, 0, sizeof(*et));
    eventtext_read(et, choice % 2 == 0 ? "S[-]1,2,3" : "R 3; S[2]3; R 1; C");
    view.events = et->events;
    view.n_events = et->n_events;
    view.rank.set = choice % 5 == 0;
    view.rank.value = choice % 3;
    if (choice % 17 != 0) {
        (void)kve_pub_publish(e->pub, &view, NULL, NULL);
        return;
    }
    /* Lost, with what comes behind it often enough. */
    for (int i = 0; i < 6; i++) {
        buf.len = 0;
        if (kve_batch_encode(&view, KVE_LAYOUT_MAP, &buf, NULL) == KVE_OK)
            (void)kve_pub_withhold_payload(
                e->pub, buf.data, buf.len, NULL, NULL);
    }
    kve_buffer_release(&buf);
}

static void *
talk(void *arg)
{
    struct shared *s = arg;
    struct eventtext *et = calloc(1, sizeof(*et));
    uint32_t seed = 7;

    if (et == NULL)
        abort();
    while (!atomic_load(&s->done)) {
        struct engine *e = &s->engines[next_random(&seed) % (ENGINES + 1)];

        if (next_random(&seed) % 400 == 0) {
            kve_pub_destroy(e->pub);
            begin(s, e);
        }
        say(e, et, next_random(&seed));
        (void)usleep(300);
    }
    free(et);
    return NULL;
}

/* ---- those who change ------------------------------------------------ */

static void
worker_name(char *text, size_t size, uint32_t i)
{
    (void)snprintf(text, size, "w%u", i % WORKERS);
}

static void
spec_of(const struct shared *s, uint32_t choice, struct kve_ingest_spec *spec)
{
    const struct engine *e = &s->engines[choice % ENGINES];

    kve_ingest_spec_init(spec);
    spec->model = "m";
    spec->rank = choice % 2;
    spec->block_size = 16;
    spec->source.endpoint = e->live;
    spec->source.replay_endpoint = e->replay;
    spec->source.tail_probe_ms = 20;
    if (choice % 7 != 0)
        return;
    spec->source.endpoint = s->bound;
    spec->source.replay_endpoint = NULL;
    spec->source.bind = KVE_BIND_YES;
    spec->topic_rule = choice % 3;
}

/* A worker that only this thread adds and removes: when it is gone nothing of
 * it shows. */
static void
come_and_go(struct shared *s, const char *own, uint32_t choice)
{
    struct kve_ingest_spec spec;
    kve_ingest_id id = 0;

    spec_of(s, 7 * choice + 1, &spec);
    spec.worker = own;
    if (kve_ingest_add(s->ingest, &spec, &id, NULL) != KVE_OK)
        return;
    (void)usleep(choice % 20000);
    if (kve_ingest_remove(s->ingest, id, NULL) != KVE_OK ||
        kve_index_find(s->index, s->ns, own, 0) != 0 ||
        kve_index_find(s->index, s->ns, own, 1) != 0 ||
        kve_index_find(s->index, s->ns, own, 2) != 0 ||
        kve_ingest_find(s->ingest, "m", NULL, own, spec.rank) != 0)
        atomic_fetch_add(&s->late, 1);
}

static void
change(struct shared *s, uint32_t choice, uint32_t what)
{
    struct kve_ingest_spec spec;
    char name[16];
    kve_ingest_id id = 0;

    worker_name(name, sizeof(name), choice);
    id = kve_ingest_find(s->ingest, "m", NULL, name, choice % 2);
    switch (what % 8) {
    case 0:
    case 1:
    case 2:
        spec_of(s, choice, &spec);
        spec.worker = name;
        (void)kve_ingest_add(s->ingest, &spec, &id, NULL);
        break;
    case 3:
        (void)kve_ingest_remove(s->ingest, id, NULL);
        break;
    case 4:
        (void)kve_ingest_pause(s->ingest, id, NULL);
        break;
    case 5:
        (void)kve_ingest_resume(s->ingest, id, NULL);
        break;
    case 6:
        (void)kve_ingest_clear(s->ingest, id, choice % 2, NULL);
        break;
    default:
        if (choice % 4 == 0)
            (void)kve_ingest_remove_worker(
                s->ingest, "m", NULL, name, NULL, NULL);
        break;
    }
}

static void *
act(void *arg)
{
    struct shared *s = arg;
    uint32_t seed = (uint32_t)(uintptr_t)pthread_self();
    char own[32];

    (void)snprintf(own, sizeof(own), "own-%lx", (unsigned long)pthread_self());
    while (!atomic_load(&s->done)) {
        uint32_t choice = next_random(&seed);

        if (choice % 5 == 0)
            come_and_go(s, own, next_random(&seed));
        else
            change(s, choice, next_random(&seed));
        (void)usleep(next_random(&seed) % 2000);
    }
    return NULL;
}

/* ---- those who read -------------------------------------------------- */

static bool
look(void *ctx, const struct kve_ingest_source *source)
{
    struct shared *s = ctx;

    if (strlen(source->worker) == 0 || source->worker_json[0] != '"' ||
        strlen(source->endpoint) == 0 || strlen(source->last_error) > 1000 ||
        source->state > KVE_STATE_GONE)
        abort();
    (void)kve_ingest_counter(s->ingest, source->id, KVE_COUNTER_INGEST_BATCHES);
    (void)kve_ingest_counter(s->ingest, source->id, KVE_COUNTER_SUB_BATCHES);
    (void)kve_ingest_counter(s->ingest, source->id, KVE_COUNTER_INDEX_STORED);
    return true;
}

static void *
ask(void *arg)
{
    struct shared *s = arg;
    struct kve_index_query query = KVE_INDEX_QUERY_INIT;
    struct kve_index_answer answer = KVE_INDEX_ANSWER_INIT;
    struct kve_index_row rows[64];
    struct kve_ingest_progress progress = { .struct_size = sizeof(progress) };
    struct kve_ingest_row row = { .struct_size = sizeof(row) };
    kve_index_reader *reader = NULL;
    uint32_t tokens[6];

    if (kve_index_reader_create(s->index, &reader, NULL) != KVE_OK)
        abort();
    for (unsigned i = 0; i < 6; i++)
        tokens[i] = eventtext_token(1 + i / 2, i % 2);
    query.ns = s->ns;
    query.tokens = tokens;
    query.n_tokens = 6;
    answer.rows = rows;
    answer.cap = 64;
    while (!atomic_load(&s->done)) {
        if (kve_index_query(reader, &query, &answer, NULL) != KVE_OK)
            abort();
        kve_ingest_read_begin(s->ingest);
        for (size_t i = 0; i < answer.n; i++)
            if (kve_ingest_row_of(s->ingest, rows[i].instance, &row)) {
                if (strlen(row.worker_json) != row.worker_json_len)
                    abort();
                atomic_fetch_add(&s->shown, 1);
            }
        if (atomic_fetch_add(&s->asked, 1) % 16 == 0)
            (void)kve_ingest_sources(s->ingest, NULL, look, s);
        kve_ingest_read_end(s->ingest);
        kve_ingest_get_progress(s->ingest, &progress);
        (void)kve_ingest_counter(s->ingest, 0, KVE_COUNTER_INGEST_BATCHES);
        (void)usleep(200);
    }
    kve_index_reader_destroy(reader);
    return NULL;
}

/* Who holds applying sees instances and position at rest. */
static void
save_one(struct shared *s, struct kve_source_entry *e)
{
    (void)pthread_mutex_lock(&e->applying);
    if (!e->dead) {
        struct kve_position position = e->position;
        size_t n = e->n_feeds;

        for (size_t i = 0; i < n; i++) {
            struct kve_index_instance before, after;
            kve_instance instance = e->feeds[i].instance;

            /* Another source of this rank may feed it as well. */
            if (e->feeds[i].rank != e->rank || n > 1)
                continue;
            if (kve_index_get_instance(s->index, instance, &before) == KVE_OK &&
                kve_index_get_instance(s->index, instance, &after) == KVE_OK &&
                before.batches > after.batches)
                abort();
        }
        if (memcmp(&position, &e->position, sizeof(position)) != 0 ||
            n != e->n_feeds)
            abort();
    }
    (void)pthread_mutex_unlock(&e->applying);
}

static void *
save(void *arg)
{
    struct shared *s = arg;
    struct kve_source_entry **entries = NULL;
    size_t n = 0;

    while (!atomic_load(&s->done)) {
        kve_ingest_lock(s->ingest);
        if (kve_ingest_list(s->ingest, &entries, &n, NULL) != KVE_OK)
            abort();
        for (size_t i = 0; i < n; i++) {
            save_one(s, entries[i]);
            kve_entry_unref(entries[i]);
        }
        kve_mem_free(entries);
        kve_ingest_unlock(s->ingest);
        atomic_fetch_add(&s->saved, 1);
        (void)usleep(5000);
    }
    return NULL;
}

static void
test_churn(void **state)
{
    struct shared s;
    struct kve_ingest_opts opts = KVE_INGEST_OPTS_INIT;
    pthread_t threads[7];
    void *(*const what[7])(void *) = { talk, act, act, act, ask, ask, save };

    (void)state;
    memset(&s, 0, sizeof(s));
    (void)snprintf(
        s.bound, sizeof(s.bound), "tcp://127.0.0.1:%u", test_port_to_keep());
    for (size_t i = 0; i < ENGINES + 1; i++) {
        struct engine *e = &s.engines[i];

        (void)snprintf(e->live, sizeof(e->live), "tcp://127.0.0.1:%u",
            test_port_to_keep());
        (void)snprintf(e->replay, sizeof(e->replay), "tcp://127.0.0.1:%u",
            test_port_to_keep());
        (void)snprintf(
            e->topic, sizeof(e->topic), i == ENGINES ? "kv@pod@m" : "");
        e->joins = i == ENGINES;
        begin(&s, e);
    }
    assert_int_equal(kve_index_create(NULL, &s.index, NULL), KVE_OK);
    opts.threads = 2;
    opts.on_event = on_event;
    opts.ctx = &s;
    assert_int_equal(
        kve_ingest_create(NULL, s.index, &opts, &s.ingest, NULL), KVE_OK);
    assert_int_equal(
        kve_index_namespace(s.index, "m", "default", &s.ns, NULL), KVE_OK);
    for (size_t i = 0; i < 7; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, what[i], &s), 0);

    int64_t until = kve_now_ns() + RUN_MS * KVE_MS;
    int64_t limit = kve_now_ns() + 120000 * KVE_MS;
    while (kve_now_ns() < until ||
        (kve_now_ns() < limit &&
            (atomic_load(&s.shown) == 0 || atomic_load(&s.saved) == 0 ||
                kve_ingest_counter(s.ingest, 0, KVE_COUNTER_INGEST_RESUMED) ==
                    0)))
        (void)usleep(20000);
    atomic_store(&s.done, true);
    for (size_t i = 0; i < 7; i++)
        pthread_join(threads[i], NULL);

    assert_int_equal(atomic_load(&s.late), 0);
    assert_true(atomic_load(&s.events) > 0);
    assert_true(atomic_load(&s.shown) > 0);
    assert_true(
        kve_ingest_counter(s.ingest, 0, KVE_COUNTER_INGEST_BATCHES) > 0);
    assert_true(
        kve_ingest_counter(s.ingest, 0, KVE_COUNTER_INGEST_RESUMED) > 0);
    kve_ingest_destroy(s.ingest);
    kve_index_destroy(s.index);
    for (size_t i = 0; i < ENGINES + 1; i++)
        kve_pub_destroy(s.engines[i].pub);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_churn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
