/*
 * peers.c - see peers.h.
 */
#include "peers.h"

#include "../../support/port.h"

#include "base/bytes.h"
#include "base/clock.h"

#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct kve_transport *const zmq = &kve_transport_zmq;

struct kve_dial_opts
dial_opts(const char *endpoint)
{
    struct kve_dial_opts opts = { .endpoint = endpoint,
        .topic = "",
        .bind = KVE_BIND_NO,
        .recv_hwm = 1000,
        .max_body_len = 1 << 20,
        .reconnect_ms = 20,
        .reconnect_max_ms = 100,
        .resolve_timeout_ms = 2000 };

    return opts;
}

struct kve_serve_opts
serve_opts(const char *endpoint)
{
    struct kve_serve_opts opts = { .endpoint = endpoint,
        .bind = KVE_BIND_YES,
        .hwm = 1000,
        .max_request_len = 1024 };

    return opts;
}

struct kve_span
span(const char *text)
{
    return (struct kve_span){ (const uint8_t *)text, strlen(text) };
}

void
sleep_ms(int ms)
{
    (void)poll(NULL, 0, ms);
}

/* Wait for one of fds or until the earlier of two times. */
static void
wait_for(const int *fds, size_t n, int64_t deadline, int64_t until)
{
    struct pollfd items[KVE_MAX_FDS];
    int64_t at = deadline < until ? deadline : until;

    for (size_t i = 0; i < n; i++)
        items[i] = (struct pollfd){ fds[i], POLLIN, 0 };
    (void)poll(items, n, kve_ms_until(at, kve_now_ns()));
}

void
reader_open(
    struct reader *r, kve_context *context, const struct kve_dial_opts *opts)
{
    struct kve_error error = { 0 };

    memset(r, 0, sizeof(*r));
    if (zmq->live_in_open(context, opts, &r->in, &error) != KVE_OK)
        fail_msg("open %s: %s", opts->endpoint, error.detail);
}

void
reader_close(struct reader *r)
{
    kve_msg_release(&r->msg);
    zmq->live_in_close(r->in);
    r->in = NULL;
}

/* Step, fetch events, receive; true when a message came. */
static bool
turn(struct reader *r)
{
    struct kve_error error = { 0 };
    struct kve_link_event event;
    bool changed;

    if (zmq->live_in_step(r->in, kve_now_ns(), &changed, &error) != KVE_OK)
        fail_msg("step: %s", error.detail);
    while (zmq->live_in_event(r->in, &event)) {
        assert_in_range(event.type, 1, 7);
        r->seen[event.type]++;
        memcpy(r->detail[event.type], event.detail, sizeof(event.detail));
    }
    switch (zmq->live_in_recv(r->in, &r->msg, &error)) {
    case KVE_IO_OK:
        r->n_messages++;
        if (r->msg.n_frames >= 2 && r->msg.frame[1].len == 8)
            r->last = kve_get64(r->msg.frame[1].data);
        return true;
    case KVE_IO_AGAIN:
        return false;
    default:
        fail_msg("receive: %s", error.detail);
    }
    return false;
}

/* Nothing is there: sleep until a descriptor or a deadline says otherwise. */
static void
rest(struct reader *r, int64_t until)
{
    int fds[KVE_MAX_FDS];
    size_t n = zmq->live_in_fds(r->in, fds);

    wait_for(fds, n, zmq->live_in_deadline(r->in), until);
}

bool
reader_await_event(struct reader *r, unsigned type, int ms)
{
    unsigned before = r->seen[type];
    int64_t until = kve_now_ns() + ms * KVE_MS;

    for (;;) {
        bool message = turn(r);

        if (r->seen[type] > before)
            return true;
        if (kve_now_ns() >= until)
            return false;
        if (!message)
            rest(r, until);
    }
}

bool
reader_await_message(struct reader *r, int ms)
{
    int64_t until = kve_now_ns() + ms * KVE_MS;

    while (!turn(r)) {
        if (kve_now_ns() >= until)
            return false;
        rest(r, until);
    }
    return true;
}

struct kve_live_out *
out_open(kve_context *context, const struct kve_serve_opts *opts)
{
    struct kve_error error = { 0 };
    struct kve_live_out *out = NULL;

    if (zmq->live_out_open(context, opts, &out, &error) != KVE_OK)
        fail_msg("open %s: %s", opts->endpoint, error.detail);
    return out;
}

const char *
out_endpoint(struct kve_live_out *out)
{
    bool bound;

    return zmq->live_out_endpoint(out, &bound);
}

void
out_send(struct kve_live_out *out, const char *topic, uint64_t number,
    const void *data, size_t len)
{
    struct kve_error error = { 0 };
    struct kve_payload *payload = kve_payload_create(data, len, NULL);

    assert_non_null(payload);
    if (zmq->live_out_send(out, span(topic), number, payload, &error) !=
        KVE_IO_OK)
        fail_msg("send: %s", error.detail);
    kve_payload_unref(payload);
}

uint64_t
out_send_until_read(
    struct kve_live_out *out, struct reader *r, uint64_t number, int ms)
{
    int64_t until = kve_now_ns() + ms * KVE_MS;

    for (; kve_now_ns() < until; number++) {
        out_send(out, "t", number, "x", 1);
        if (reader_await_message(r, 20))
            return number;
    }
    fail_msg("no message within %d ms", ms);
    return 0;
}

bool
ask_await(struct kve_replay_ask *ask, struct kve_msg *msg, int ms)
{
    int64_t until = kve_now_ns() + ms * KVE_MS;
    struct kve_error error = { 0 };
    int fds[KVE_MAX_FDS];
    bool changed;

    do {
        if (zmq->replay_ask_step(ask, kve_now_ns(), &changed, &error) != KVE_OK)
            fail_msg("step: %s", error.detail);
        enum kve_io io = zmq->replay_ask_recv(ask, msg, &error);
        if (io == KVE_IO_OK)
            return true;
        if (io != KVE_IO_AGAIN)
            fail_msg("receive: %s", error.detail);
        size_t n = zmq->replay_ask_fds(ask, fds);
        wait_for(fds, n, zmq->replay_ask_deadline(ask), until);
    } while (kve_now_ns() < until);
    return false;
}

bool
serve_await(struct kve_replay_serve *serve,
    struct kve_replay_request *ret_request, int ms)
{
    int64_t until = kve_now_ns() + ms * KVE_MS;
    struct kve_error error = { 0 };
    int fds[KVE_MAX_FDS];

    do {
        enum kve_io io = zmq->replay_serve_recv(serve, ret_request, &error);
        if (io == KVE_IO_OK)
            return true;
        if (io != KVE_IO_AGAIN)
            fail_msg("receive: %s", error.detail);
        size_t n = zmq->replay_serve_fds(serve, fds);
        wait_for(fds, n, KVE_NEVER, until);
    } while (kve_now_ns() < until);
    return false;
}

unsigned
free_port(void)
{
    return test_port_to_keep();
}

void
make_folder(char *ret_path, size_t cap)
{
    (void)snprintf(ret_path, cap, "/tmp/kve-test-XXXXXX");
    assert_non_null(mkdtemp(ret_path));
}

void
remove_folder(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;

    if (dir == NULL)
        return;
    while ((entry = readdir(dir)) != NULL)
        if (entry->d_name[0] != '.')
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    (void)closedir(dir);
    (void)rmdir(path);
}
