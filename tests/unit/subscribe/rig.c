/*
 * rig.c - see rig.h.
 */
#include "rig.h"

#include "subscribe/set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zmq.h>

/* ---- the publisher's end ------------------------------------------- */

static void *
open_socket(struct peer *p, int type)
{
    void *socket = zmq_socket(p->zmq, type);
    int zero = 0;

    assert_non_null(socket);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &zero, sizeof(zero));
    zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof(zero));
    return socket;
}

static void
bind_any(void *socket, char *ret, size_t cap)
{
    assert_int_equal(zmq_bind(socket, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, ret, &cap), 0);
}

static void
init(struct peer *p)
{
    memset(p, 0, sizeof(*p));
    p->topic = "t";
    p->rank = -1;
    p->zmq = zmq_ctx_new();
}

void
peer_open(struct peer *p)
{
    init(p);
    p->pub = open_socket(p, ZMQ_PUB);
    p->router = open_socket(p, ZMQ_ROUTER);
    bind_any(p->pub, p->live, sizeof(p->live));
    bind_any(p->router, p->replay, sizeof(p->replay));
}

void
peer_open_connected(struct peer *p, const char *to)
{
    init(p);
    p->pub = open_socket(p, ZMQ_PUB);
    assert_int_equal(zmq_connect(p->pub, to), 0);
}

void
peer_close(struct peer *p)
{
    if (p->pub != NULL)
        zmq_close(p->pub);
    if (p->router != NULL)
        zmq_close(p->router);
    zmq_ctx_term(p->zmq);
}

size_t
peer_payload(
    const struct peer *p, uint64_t number, const uint8_t *id, uint8_t *out)
{
    static const uint8_t head[] = { 0x93, 0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0,
        0x91, 0x92, 0xac, 'B', 'l', 'o', 'c', 'k', 'R', 'e', 'm', 'o', 'v', 'e',
        'd', 0x91, 0xcf };
    size_t len = sizeof(head);

    memcpy(out, head, len);
    kve_number_write((uint64_t)p->life << 32 | number, out + len);
    len += 8;
    out[len++] = p->rank < 0 ? 0xc0 : (uint8_t)p->rank;
    if (id != NULL) {
        out[0] = 0x94;
        out[len++] = 0xc4;
        out[len++] = 16;
        memcpy(out + len, id, 16);
        len += 16;
    }
    return len;
}

void
rig_send(void *socket, const struct kve_span *frames, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_true(zmq_send(socket, frames[i].data, frames[i].len,
                        i + 1 < n ? ZMQ_SNDMORE : 0) >= 0);
}

static void
send_live(struct peer *p, uint64_t number, const uint8_t *payload, size_t len)
{
    uint8_t seq[8];

    kve_number_write(number, seq);
    struct kve_span frames[] = {
        { (const uint8_t *)p->topic, strlen(p->topic) },
        { seq, 8 },
        { payload, len },
    };
    rig_send(p->pub, frames, 3);
}

void
peer_live(struct peer *p, uint64_t number)
{
    uint8_t payload[80];

    send_live(p, number, payload, peer_payload(p, number, p->id, payload));
}

void
peer_heartbeat(struct peer *p, uint64_t number, const uint8_t *id)
{
    uint8_t payload[32] = { 0x94, 0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0, 0x90,
        0xc0, 0xc4, 16 };

    memcpy(payload + 14, id, 16);
    send_live(p, number, payload, 30);
}

bool
peer_request(struct peer *p, struct request *ret)
{
    uint8_t frame[64];
    int len = zmq_recv(p->router, ret->id, sizeof(ret->id), ZMQ_DONTWAIT);

    if (len < 0)
        return false;
    ret->id_len = (size_t)len;
    assert_int_equal(zmq_recv(p->router, frame, sizeof(frame), 0), 0);
    assert_int_equal(zmq_recv(p->router, frame, sizeof(frame), 0), 8);
    ret->start = kve_number_read(frame);
    p->starts[p->requests++ % N_OF(p->starts)] = ret->start;
    return true;
}

void
peer_answer(struct peer *p, const struct request *r)
{
    uint8_t payload[80];
    uint8_t seq[8];

    uint64_t start = r->start < p->first ? p->first : r->start;

    for (uint64_t i = start, n = 0; i <= p->next; i++, n++) {
        bool end = i == p->next;
        if (p->cut > 0 && n == p->cut)
            return;
        kve_number_write(end ? KVE_NUMBER_END : i, seq);
        struct kve_span frames[] = {
            { r->id, r->id_len },
            { NULL, 0 },
            { (const uint8_t *)p->topic, end ? 0 : strlen(p->topic) },
            { seq, 8 },
            { payload, end ? 0 : peer_payload(p, i, p->id, payload) },
        };
        rig_send(p->router, frames, 5);
        p->sent += !end;
    }
    if (start > p->next) {
        kve_number_write(KVE_NUMBER_END, seq);
        struct kve_span frames[] = { { r->id, r->id_len }, { NULL, 0 },
            { NULL, 0 }, { seq, 8 }, { NULL, 0 } };
        rig_send(p->router, frames, 5);
    }
}

void
peer_serve(struct peer *p)
{
    struct request r;

    if (peer_request(p, &r) && !p->silent)
        peer_answer(p, &r);
}

/* ---- the reader's end ---------------------------------------------- */

static int
on_batch(void *ctx, const struct kve_delivery *d)
{
    struct reader *r = ctx;

    pthread_mutex_lock(&r->lock);
    size_t at = r->n++ % RIG_MAX;
    r->number[at] = d->number;
    r->source[at] = d->source;
    r->hidden[at] = d->hidden != 0;
    r->snapshot[at] = d->snapshot != 0;
    r->of[d->source % RIG_SOURCES]++;
    r->last[d->source % RIG_SOURCES] = d->number;
    r->has_publisher_id = d->publisher_id != NULL;
    if (d->publisher_id != NULL)
        memcpy(r->publisher_id, d->publisher_id, 16);
    pthread_mutex_unlock(&r->lock);
    return r->on_batch != NULL ? r->on_batch(r, d) : 0;
}

static void
on_notice(void *ctx, const struct kve_notice *n)
{
    struct reader *r = ctx;

    assert_non_null(n->detail);
    assert_null(strchr(n->detail, '\n'));
    assert_true(n->type < RIG_NOTICES);
    pthread_mutex_lock(&r->lock);
    r->notices[n->type]++;
    r->notice[n->type] = *n;
    r->state[n->source % RIG_SOURCES] = n->state;
    (void)snprintf(r->detail[n->type], sizeof(r->detail[0]), "%s", n->detail);
    pthread_mutex_unlock(&r->lock);
    if (r->on_notice != NULL)
        r->on_notice(r, n);
}

struct reader *
reader_open_in(kve_context *context, const struct kve_sub_opts *opts)
{
    struct reader *r = calloc(1, sizeof(*r));
    struct kve_sub_callbacks callbacks = { sizeof(callbacks), on_batch,
        on_notice, r };
    struct kve_error err = { KVE_OK, 0, 0, "" };

    assert_non_null(r);
    pthread_mutex_init(&r->lock, NULL);
    if (kve_sub_create(context, opts, &callbacks, &r->sub, &err) != KVE_OK)
        fail_msg("%s", err.detail);
    return r;
}

struct reader *
reader_open(const struct kve_sub_opts *opts)
{
    return reader_open_in(NULL, opts);
}

void
reader_close(struct reader *r)
{
    kve_sub_destroy(r->sub);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

kve_source_id
reader_add(struct reader *r, const struct kve_source_opts *opts)
{
    struct kve_error err = { KVE_OK, 0, 0, "" };
    kve_source_id id = 0;

    if (kve_sub_add(r->sub, opts, &id, &err) != KVE_OK)
        fail_msg("%s", err.detail);
    return id;
}

struct kve_source_info
reader_info(const struct reader *r, kve_source_id id)
{
    struct kve_source_info info = { .struct_size = sizeof(info) };

    assert_int_equal(kve_sub_source(r->sub, id, &info), KVE_OK);
    return info;
}

uint64_t
reader_counter(const struct reader *r, kve_source_id id, unsigned counter)
{
    return kve_sub_counter(r->sub, id, counter);
}

size_t
reader_n(struct reader *r)
{
    pthread_mutex_lock(&r->lock);
    size_t n = r->n;
    pthread_mutex_unlock(&r->lock);
    return n;
}

size_t
reader_notices(struct reader *r, unsigned type)
{
    pthread_mutex_lock(&r->lock);
    size_t n = r->notices[type];
    pthread_mutex_unlock(&r->lock);
    return n;
}

void
reader_work(struct reader *r)
{
    if (kve_sub_fd(r->sub) >= 0)
        (void)kve_sub_poll(r->sub, 2, 0, NULL, NULL);
    else
        usleep(2000);
}

size_t
reader_listed(struct reader *r)
{
    pthread_mutex_lock(&r->sub->lock);
    size_t n = r->sub->n_sources;
    pthread_mutex_unlock(&r->sub->lock);
    return n;
}
