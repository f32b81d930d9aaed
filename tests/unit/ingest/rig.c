/*
 * rig.c - see rig.h.
 */
#include "rig.h"

#include "ingest/ingest.h"
#include "support/eventtext.h"
#include "support/port.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void
rest_ms(unsigned ms)
{
    (void)usleep(ms * 1000);
}

/* ---- engines -------------------------------------------------------- */

static void
create(struct engine *e, const struct kve_pub_opts *opts)
{
    struct kve_error err = { .status = KVE_OK };

    if (kve_pub_create(NULL, opts, &e->pub, &err) != KVE_OK)
        fail_msg("%s", err.detail);
    (void)snprintf(e->live, sizeof(e->live), "%s", kve_pub_endpoint(e->pub));
    (void)snprintf(
        e->replay, sizeof(e->replay), "%s", kve_pub_replay_endpoint(e->pub));
}

void
engine_open(struct engine *e, const struct kve_pub_opts *opts)
{
    struct kve_pub_opts o = KVE_PUB_OPTS_INIT;

    memset(e, 0, sizeof(*e));
    if (opts != NULL)
        o = *opts;
    /* Ports that stay free when an engine leaves them for a moment. */
    (void)snprintf(
        e->live, sizeof(e->live), "tcp://127.0.0.1:%u", test_port_to_keep());
    (void)snprintf(e->replay, sizeof(e->replay), "tcp://127.0.0.1:%u",
        test_port_to_keep());
    if (o.endpoint == NULL) {
        o.endpoint = e->live;
        o.replay_endpoint = e->replay;
    }
    create(e, &o);
}

void
engine_reopen(struct engine *e)
{
    struct kve_pub_opts o = KVE_PUB_OPTS_INIT;
    char live[64];
    char replay[64];

    memcpy(live, e->live, sizeof(live));
    memcpy(replay, e->replay, sizeof(replay));
    o.endpoint = live;
    o.replay_endpoint = replay;
    create(e, &o);
}

void
engine_close(struct engine *e)
{
    kve_pub_destroy(e->pub);
    e->pub = NULL;
}

/* Too large for a stack that sanitizers make larger. */
static struct eventtext *
read_events(const char *events, struct kve_batch_view *view, int rank)
{
    struct eventtext *et = calloc(1, sizeof(*et));

    assert_non_null(et);
    eventtext_read(et, events);
    *view = (struct kve_batch_view)KVE_BATCH_VIEW_INIT;
    view->events = et->events;
    view->n_events = et->n_events;
    view->rank.set = rank >= 0;
    view->rank.value = rank >= 0 ? rank : 0;
    return et;
}

void
engine_say(struct engine *e, int rank, const char *events)
{
    struct kve_batch_view view;
    struct eventtext *et = read_events(events, &view, rank);

    assert_int_equal(kve_pub_publish(e->pub, &view, NULL, NULL), KVE_OK);
    free(et);
}

void
engine_lose(struct engine *e, int rank, const char *events)
{
    struct kve_batch_view view;
    struct kve_buffer buf = KVE_BUFFER_INIT;
    struct eventtext *et = read_events(events, &view, rank);

    assert_int_equal(
        kve_batch_encode(&view, KVE_LAYOUT_MAP, &buf, NULL), KVE_OK);
    assert_int_equal(
        kve_pub_withhold_payload(e->pub, buf.data, buf.len, NULL, NULL),
        KVE_OK);
    kve_buffer_release(&buf);
    free(et);
}

/* ---- the reader's end ----------------------------------------------- */

static void
on_event(void *ctx, const struct kve_ingest_event *event)
{
    struct rig *r = ctx;

    assert_non_null(event->detail);
    assert_null(strchr(event->detail, '\n'));
    pthread_mutex_lock(&r->lock);
    if (r->n_events < RIG_LOG) {
        struct rig_event *to = &r->events[r->n_events++];

        to->type = event->type;
        to->source = event->source;
        to->notice = event->notice != NULL ? event->notice->type : 0;
        to->number = event->number;
        (void)snprintf(to->detail, sizeof(to->detail), "%s", event->detail);
    }
    pthread_mutex_unlock(&r->lock);
    if (event->type == KVE_INGEST_EVENT_BATCH) {
        /* It may be read from its first event on. */
        size_t n = 0;

        while (kve_batch_next(event->delivery->batch) != NULL)
            n++;
        assert_int_equal(
            n, kve_batch_get_info(event->delivery->batch)->n_events);
    }
}

void
rig_open(struct rig *r, const struct kve_ingest_opts *opts,
    const struct kve_index_opts *index)
{
    struct kve_ingest_opts o = KVE_INGEST_OPTS_INIT;
    struct kve_error err = { .status = KVE_OK };

    memset(r, 0, sizeof(*r));
    pthread_mutex_init(&r->lock, NULL);
    r->events = calloc(RIG_LOG, sizeof(*r->events));
    assert_non_null(r->events);
    if (opts != NULL)
        o = *opts;
    o.on_event = on_event;
    o.ctx = r;
    assert_int_equal(kve_index_create(index, &r->index, &err), KVE_OK);
    if (kve_ingest_create(r->context, r->index, &o, &r->ingest, &err) != KVE_OK)
        fail_msg("%s", err.detail);
    assert_int_equal(
        kve_index_reader_create(r->index, &r->reader, &err), KVE_OK);
    assert_int_equal(
        kve_index_namespace(r->index, "m", "default", &r->ns, &err), KVE_OK);
}

void
rig_close(struct rig *r)
{
    kve_ingest_destroy(r->ingest);
    kve_index_reader_destroy(r->reader);
    kve_index_destroy(r->index);
    pthread_mutex_destroy(&r->lock);
    free(r->events);
}

struct kve_ingest_spec
rig_spec(const struct engine *e, const char *worker, uint32_t rank)
{
    struct kve_ingest_spec spec = KVE_INGEST_SPEC_INIT;

    spec.model = "m";
    spec.worker = worker;
    spec.rank = rank;
    spec.source.endpoint = e->live;
    spec.source.replay_endpoint = e->replay;
    spec.source.tail_probe_ms = 50;
    spec.source.reconnect_ms = 10;
    return spec;
}

kve_ingest_id
rig_add(struct rig *r, const struct kve_ingest_spec *spec)
{
    struct kve_error err = { .status = KVE_OK };
    kve_ingest_id id = 0;

    if (kve_ingest_add(r->ingest, spec, &id, &err) != KVE_OK)
        fail_msg("%s", err.detail);
    assert_int_not_equal(id, 0);
    return id;
}

kve_ingest_id
rig_follow(
    struct rig *r, const struct engine *e, const char *worker, uint32_t rank)
{
    struct kve_ingest_spec spec = rig_spec(e, worker, rank);

    return rig_add(r, &spec);
}

static size_t
ask(struct rig *r, kve_namespace ns, unsigned n, struct kve_index_row *rows,
    size_t cap)
{
    struct kve_index_query query = KVE_INDEX_QUERY_INIT;
    struct kve_index_answer answer = KVE_INDEX_ANSWER_INIT;
    uint32_t tokens[1024];

    assert_true(2 * n <= N_OF(tokens));
    for (unsigned i = 0; i < 2 * n; i++)
        tokens[i] = eventtext_token(1 + i / 2, i % 2);
    query.ns = ns;
    query.tokens = tokens;
    query.n_tokens = 2 * n;
    answer.rows = rows;
    answer.cap = cap;
    assert_int_equal(kve_index_query(r->reader, &query, &answer, NULL), KVE_OK);
    return answer.n;
}

uint32_t
held_in(struct rig *r, kve_namespace ns, const char *worker, uint32_t rank,
    unsigned n)
{
    struct kve_index_row rows[256];
    struct kve_ingest_row row = { .struct_size = sizeof(row) };
    size_t n_rows = ask(r, ns, n, rows, N_OF(rows));
    uint32_t tokens = 0;

    kve_ingest_read_begin(r->ingest);
    for (size_t i = 0; i < n_rows; i++)
        if (kve_ingest_row_of(r->ingest, rows[i].instance, &row) &&
            row.rank == rank && strcmp(row.worker, worker) == 0)
            tokens = rows[i].longest;
    kve_ingest_read_end(r->ingest);
    return tokens;
}

uint32_t
held(struct rig *r, const char *worker, uint32_t rank, unsigned n)
{
    return held_in(r, r->ns, worker, rank, n);
}

size_t
rows_of(struct rig *r, unsigned n)
{
    struct kve_index_row rows[256];

    return ask(r, r->ns, n, rows, N_OF(rows));
}

struct kve_ingest_source
rig_source(struct rig *r, kve_ingest_id id)
{
    struct kve_ingest_source source = { .struct_size = sizeof(source) };

    kve_ingest_read_begin(r->ingest);
    if (kve_ingest_source_of(r->ingest, id, &source) != KVE_OK)
        fail_msg("no source %llu", (unsigned long long)id);
    kve_ingest_read_end(r->ingest);
    return source;
}

bool
rig_exists(struct rig *r, kve_ingest_id id)
{
    struct kve_ingest_source source = { .struct_size = sizeof(source) };
    kve_status status;

    kve_ingest_read_begin(r->ingest);
    status = kve_ingest_source_of(r->ingest, id, &source);
    kve_ingest_read_end(r->ingest);
    return status == KVE_OK;
}

const char *
rig_error(struct rig *r, kve_ingest_id id)
{
    static char text[512];
    struct kve_ingest_source source = { .struct_size = sizeof(source) };

    text[0] = '\0';
    kve_ingest_read_begin(r->ingest);
    if (kve_ingest_source_of(r->ingest, id, &source) == KVE_OK)
        (void)snprintf(text, sizeof(text), "%s", source.last_error);
    kve_ingest_read_end(r->ingest);
    return text;
}

bool
is_state(struct rig *r, kve_ingest_id id, unsigned state, unsigned reason)
{
    struct kve_ingest_source source = rig_source(r, id);

    return source.state == state && source.reason == reason;
}

uint64_t
rig_count(struct rig *r, kve_ingest_id id, unsigned counter)
{
    return kve_ingest_counter(r->ingest, id, counter);
}

static bool
is_event(const struct rig_event *event, kve_ingest_id id, unsigned type)
{
    return event->type == type && (id == 0 || event->source == id);
}

size_t
rig_events(struct rig *r, kve_ingest_id id, unsigned type)
{
    size_t n = 0;

    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < r->n_events; i++)
        n += is_event(&r->events[i], id, type);
    pthread_mutex_unlock(&r->lock);
    return n;
}

const struct rig_event *
rig_event(struct rig *r, kve_ingest_id id, unsigned type)
{
    const struct rig_event *found = NULL;

    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < r->n_events && found == NULL; i++)
        if (is_event(&r->events[i], id, type))
            found = &r->events[i];
    pthread_mutex_unlock(&r->lock);
    return found;
}

void
rig_reads_go_on(struct rig *r)
{
    for (int i = 0; i < 150; i++) {
        struct timespec until;

        assert_int_equal(clock_gettime(CLOCK_REALTIME, &until), 0);
        until.tv_sec += 30;
        assert_int_equal(
            pthread_rwlock_timedrdlock(&r->ingest->registry, &until), 0);
        pthread_rwlock_unlock(&r->ingest->registry);
        rest_ms(2);
    }
}
