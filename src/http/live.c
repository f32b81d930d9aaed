/*
 * live.c - see live.h.
 *
 * A ring holds whole texts, each behind its length; it wraps anywhere. What is
 * on its way to the client was taken out of the ring first, so that a text is
 * lost whole or sent whole.
 */
#include "http/live.h"

#include "http/live_text.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "wire/buffer.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A client that hears nothing for so long gets a comment. */
#define BEAT (15000 * KVE_MS)
#define ALL_TYPES 0xffffffffu

struct reader {
    struct reader *next; /* under live->lock */
    struct reader *prev;
    struct kve_http *http;
    void *connection;

    /* what it wants; NULL: any */
    char *worker;
    char *model;
    char *tenant;
    kve_ingest_id source; /* 0: any */
    uint32_t types;       /* set of 1 << enum kve_ingest_event_type */

    pthread_mutex_t lock; /* for what follows */
    uint8_t *ring;
    size_t size;
    size_t at;   /* of the oldest text's length */
    size_t used; /* bytes */
    uint64_t lost;
    bool beat; /* a comment is due */

    /* the sending thread's */
    struct kve_buffer sending;
    size_t sent;
    _Atomic int64_t heard_ns; /* when it was sent something last */
};

struct kve_http_live {
    pthread_mutex_t lock;
    struct reader *first;
    _Atomic uint32_t n_readers;
    _Atomic uint64_t next_id;
    _Atomic bool closed;
};

struct kve_http_live *
kve_live_create(void)
{
    struct kve_http_live *live = kve_mem_zalloc(1, sizeof(*live));

    if (live == NULL)
        return NULL;
    if (pthread_mutex_init(&live->lock, NULL) != 0) {
        kve_mem_free(live);
        return NULL;
    }
    atomic_init(&live->next_id, 1);
    return live;
}

void
kve_live_destroy(struct kve_http_live *live)
{
    if (live == NULL)
        return;
    (void)pthread_mutex_destroy(&live->lock);
    kve_mem_free(live);
}

/* ---- the ring ---- */

static void
ring_write(struct reader *reader, size_t offset, const void *from, size_t len)
{
    size_t at = (reader->at + offset) % reader->size;
    size_t part = reader->size - at < len ? reader->size - at : len;

    memcpy(reader->ring + at, from, part);
    memcpy(reader->ring, (const uint8_t *)from + part, len - part);
}

static void
ring_read(const struct reader *reader, size_t offset, void *to, size_t len)
{
    size_t at = (reader->at + offset) % reader->size;
    size_t part = reader->size - at < len ? reader->size - at : len;

    memcpy(to, reader->ring + at, part);
    memcpy((uint8_t *)to + part, reader->ring, len - part);
}

static uint32_t
oldest_len(const struct reader *reader)
{
    uint32_t len;

    ring_read(reader, 0, &len, sizeof(len));
    return len;
}

static void
drop_oldest(struct reader *reader)
{
    size_t n = sizeof(uint32_t) + oldest_len(reader);

    reader->at = (reader->at + n) % reader->size;
    reader->used -= n;
}

/* Append a text; the oldest ones make room. Texts are far smaller than the
 * ring. */
static void
ring_push(struct reader *reader, const uint8_t *text, uint32_t len)
{
    uint64_t lost = 0;

    (void)pthread_mutex_lock(&reader->lock);
    while (reader->size - reader->used < sizeof(len) + len) {
        drop_oldest(reader);
        lost++;
    }
    ring_write(reader, reader->used, &len, sizeof(len));
    ring_write(reader, reader->used + sizeof(len), text, len);
    reader->used += sizeof(len) + len;
    reader->lost += lost;
    (void)pthread_mutex_unlock(&reader->lock);
    if (lost != 0)
        kve_http_count(reader->http, KVE_COUNTER_HTTP_EVENTS_LOST, lost);
}

/* ---- sending ---- */

/* Take what there is, about cap bytes of it, to sending; false: no memory. */
static bool
take(struct reader *reader, size_t cap)
{
    struct kve_buffer *sending = &reader->sending;
    uint64_t taken = 0;
    char line[80];

    sending->len = 0;
    reader->sent = 0;
    if (reader->lost != 0) {
        int n = snprintf(line, sizeof(line),
            "event: lost\ndata: {\"type\":\"lost\",\"lost\":%llu}\n\n",
            (unsigned long long)reader->lost);

        if (!kve_live_put(sending, line, (size_t)n))
            return false;
        reader->lost = 0;
    }
    while (reader->used != 0 && sending->len < cap) {
        uint32_t len = oldest_len(reader);

        if (kve_buffer_reserve(sending, len, NULL) != KVE_OK) {
            if (sending->len == 0)
                return false;
            break;
        }
        ring_read(reader, sizeof(len), sending->data + sending->len, len);
        sending->len += len;
        drop_oldest(reader);
        taken++;
    }
    if (sending->len == 0 && reader->beat && !kve_live_put(sending, ":\n\n", 3))
        return false;
    reader->beat = false;
    kve_http_count(reader->http, KVE_COUNTER_HTTP_EVENTS_SENT, taken);
    return true;
}

static ptrdiff_t
pull(void *ctx, uint8_t *data, size_t cap)
{
    struct reader *reader = ctx;
    size_t n = reader->sending.len - reader->sent;
    bool closed =
        atomic_load_explicit(&reader->http->live->closed, memory_order_acquire);
    bool fine = true;

    if (n == 0) {
        (void)pthread_mutex_lock(&reader->lock);
        fine = take(reader, cap);
        (void)pthread_mutex_unlock(&reader->lock);
        n = reader->sending.len;
    }
    if (!fine)
        return -2;
    if (n == 0)
        return closed ? -1 : 0;
    if (n > cap)
        n = cap;
    memcpy(data, reader->sending.data + reader->sent, n);
    reader->sent += n;
    atomic_store_explicit(
        &reader->heard_ns, kve_now_ns(), memory_order_relaxed);
    return (ptrdiff_t)n;
}

/* ---- readers come and go ---- */

static void
reader_destroy(struct reader *reader)
{
    (void)pthread_mutex_destroy(&reader->lock);
    kve_buffer_release(&reader->sending);
    kve_mem_free(reader->ring);
    kve_mem_free(reader->worker);
    kve_mem_free(reader->model);
    kve_mem_free(reader->tenant);
    kve_mem_free(reader);
}

static void
leave(void *ctx)
{
    struct reader *reader = ctx;
    struct kve_http_live *live = reader->http->live;

    (void)pthread_mutex_lock(&live->lock);
    if (reader->prev != NULL)
        reader->prev->next = reader->next;
    else
        live->first = reader->next;
    if (reader->next != NULL)
        reader->next->prev = reader->prev;
    atomic_fetch_sub_explicit(&live->n_readers, 1, memory_order_relaxed);
    (void)pthread_mutex_unlock(&live->lock);
    reader_destroy(reader);
}

/* false: there are as many as there may be. */
static bool
enter(struct kve_http_live *live, struct reader *reader)
{
    bool room;

    (void)pthread_mutex_lock(&live->lock);
    room = atomic_load_explicit(&live->n_readers, memory_order_relaxed) <
        reader->http->opts.event_clients;
    if (room) {
        reader->next = live->first;
        if (live->first != NULL)
            live->first->prev = reader;
        live->first = reader;
        atomic_fetch_add_explicit(&live->n_readers, 1, memory_order_relaxed);
    }
    (void)pthread_mutex_unlock(&live->lock);
    return room;
}

/* A comma list of types; false: *ret_bad is none. */
static bool
read_types(const char *list, uint32_t *ret, struct kve_str *ret_bad)
{
    uint32_t types = 0;

    while (*list != '\0') {
        size_t len = strcspn(list, ",");
        bool known = false;

#define X(name, number, text, help)                                \
    if (len == sizeof(text) - 1 && memcmp(list, text, len) == 0) { \
        types |= 1u << (number);                                   \
        known = true;                                              \
    }
        KVE_INGEST_EVENT_MAP(X)
#undef X
        if (!known) {
            ret_bad->data = list;
            ret_bad->len = len;
            return false;
        }
        list += len;
        list += *list == ',';
    }
    *ret = types != 0 ? types : ALL_TYPES;
    return true;
}

static bool
read_source(const char *text, kve_ingest_id *ret)
{
    char *end;

    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    *ret = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' && *ret != 0;
}

/* What the arguments ask for; false: it was answered. */
static bool
read_filter(struct kve_http_request *req, uint32_t *ret_types,
    kve_ingest_id *ret_source)
{
    const char *types = kve_http_argument(req, "types");
    const char *source = kve_http_argument(req, "source");
    struct kve_str bad;

    *ret_types = ALL_TYPES;
    *ret_source = 0;
    if (types != NULL && !read_types(types, ret_types, &bad)) {
#define X(name, number, text, help) " " text
        kve_http_fail(req, 422,
            "types has \"%.*s\"; accepted is a comma list "
            "of:" KVE_INGEST_EVENT_MAP(X),
            (int)(bad.len > 40 ? 40 : bad.len), bad.data);
#undef X
        return false;
    }
    if (source != NULL && !read_source(source, ret_source)) {
        kve_http_fail(req, 422,
            "source is \"%.40s\"; a source's id is a number from 1 on, see "
            "/v1/sources",
            source);
        return false;
    }
    return true;
}

/* text NULL stays NULL. */
static bool
keep(const char *text, char **ret)
{
    *ret = kve_mem_strdup(text);
    return text == NULL || *ret != NULL;
}

static struct reader *
make_reader(struct kve_http *http, struct kve_http_request *req)
{
    struct reader *reader = kve_mem_zalloc(1, sizeof(*reader));

    if (reader == NULL)
        return NULL;
    (void)pthread_mutex_init(&reader->lock, NULL);
    reader->http = http;
    reader->connection = req->connection;
    reader->size = http->opts.event_bytes;
    atomic_init(&reader->heard_ns, kve_now_ns());
    reader->ring = kve_mem_alloc(reader->size);
    if (reader->ring == NULL ||
        !keep(kve_http_argument(req, "worker"), &reader->worker) ||
        !keep(kve_http_argument(req, "model"), &reader->model) ||
        !keep(kve_http_argument(req, "tenant"), &reader->tenant) ||
        /* So that the client sees at once that it is heard. */
        !kve_live_put(&reader->sending, ":\n\n", 3)) {
        reader_destroy(reader);
        return NULL;
    }
    return reader;
}

static void
get_events(struct kve_http *http, struct kve_http_request *req)
{
    struct reader *reader;
    kve_ingest_id source;
    uint32_t types;

    if (!read_filter(req, &types, &source))
        return;
    if (atomic_load_explicit(&http->live->closed, memory_order_acquire)) {
        kve_http_fail(req, 503, "the service is about to end");
        return;
    }
    reader = make_reader(http, req);
    if (reader == NULL) {
        req->retry_after = 1;
        kve_http_fail(req, 503, "no memory for one more reader of events");
        return;
    }
    reader->types = types;
    reader->source = source;
    if (!enter(http->live, reader)) {
        reader_destroy(reader);
        req->retry_after = 10;
        kve_http_fail(req, 503,
            "%u readers of events are there, which is the limit "
            "(event_clients)",
            http->opts.event_clients);
        return;
    }
    req->media = KVE_MEDIA_EVENTS;
    req->pull = pull;
    req->pull_end = leave;
    req->pull_ctx = reader;
}

const struct kve_http_route kve_routes_live[] = {
    { KVE_METHOD_GET, "/v1/events", get_events, 0 },
    { 0, NULL, NULL, 0 },
};

/* ---- what the ingest says ---- */

static bool
is_same(const char *wanted, const char *text)
{
    return wanted == NULL || (text != NULL && strcmp(wanted, text) == 0);
}

static bool
wants(const struct reader *reader, const struct kve_ingest_event *event)
{
    return (reader->types & (1u << (event->type & 31u))) != 0 &&
        (reader->source == 0 || reader->source == event->source) &&
        is_same(reader->worker, event->worker) &&
        is_same(reader->model, event->model) &&
        is_same(reader->tenant, event->tenant);
}

void
kve_live_event(struct kve_http *http, const struct kve_ingest_event *event)
{
    struct kve_http_live *live = http->live;
    struct kve_buffer text = KVE_BUFFER_INIT;
    bool written = false;
    uint64_t id;

    if (atomic_load_explicit(&live->n_readers, memory_order_relaxed) == 0)
        return;
    id = atomic_fetch_add_explicit(&live->next_id, 1, memory_order_relaxed);
    (void)pthread_mutex_lock(&live->lock);
    for (struct reader *reader = live->first; reader != NULL;
         reader = reader->next) {
        if (!wants(reader, event))
            continue;
        if (!written && !kve_live_text(&text, id, event)) {
            /* No memory for its text: everybody who wanted it lost it. */
            text.len = 0;
        }
        written = true;
        if (text.len != 0 && text.len <= reader->size / 2) {
            ring_push(reader, text.data, (uint32_t)text.len);
        } else {
            (void)pthread_mutex_lock(&reader->lock);
            reader->lost++;
            (void)pthread_mutex_unlock(&reader->lock);
            kve_http_count(http, KVE_COUNTER_HTTP_EVENTS_LOST, 1);
        }
        kve_http_wake(http, reader->connection);
    }
    (void)pthread_mutex_unlock(&live->lock);
    kve_buffer_release(&text);
}

void
kve_live_tick(struct kve_http *http, int64_t now_ns)
{
    struct kve_http_live *live = http->live;

    if (atomic_load_explicit(&live->n_readers, memory_order_relaxed) == 0)
        return;
    (void)pthread_mutex_lock(&live->lock);
    for (struct reader *reader = live->first; reader != NULL;
         reader = reader->next) {
        if (now_ns -
                atomic_load_explicit(&reader->heard_ns, memory_order_relaxed) <
            BEAT)
            continue;
        (void)pthread_mutex_lock(&reader->lock);
        reader->beat = true;
        (void)pthread_mutex_unlock(&reader->lock);
        kve_http_wake(http, reader->connection);
    }
    (void)pthread_mutex_unlock(&live->lock);
}

void
kve_live_close(struct kve_http *http)
{
    struct kve_http_live *live = http->live;

    atomic_store_explicit(&live->closed, true, memory_order_release);
    (void)pthread_mutex_lock(&live->lock);
    for (struct reader *reader = live->first; reader != NULL;
         reader = reader->next)
        kve_http_wake(http, reader->connection);
    (void)pthread_mutex_unlock(&live->lock);
}
