/*
 * sock.c - see sock.h.
 *
 * Closing. zmq_close() only hands the socket to the library's reaper thread;
 * its listener is closed some time later. The one event that comes when all
 * is over is the end of the socket's monitor, so a socket whose port matters
 * gets a monitor for that event alone, just before it is closed.
 */
#include "transport/sock.h"

#include "transport/context.h"

#include "base/clock.h"
#include "base/status.h"

#include <zmq.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

/* Dead peers behind a silent network are found by the kernel. */
#define KEEPALIVE_IDLE_S 15
#define KEEPALIVE_INTERVAL_S 5
#define KEEPALIVE_PROBES 3

/* 5 for the first socket of a context and its threads, 1 for the next one, 1
 * for a monitor, 2 to bind. */
#define FDS_A_SOCKET 10

#define CLOSE_SPARE_MS 2000 /* beyond linger, for the library's threads */

/* Bytes CURVE adds to a frame: "\7MESSAGE", nonce, code, flags. */
#define CURVE_OVERHEAD 64
#define DEFAULT_MAX (16 * 1024 * 1024)
#define DEFAULT_HWM 1000
/* A handshake's commands are frames too, with an identity of up to 255. */
#define LEAST_MAX 512
#define LEAST_MAX_CURVE 1024

#define KEY_TEXT_LEN 40
#define ZAP_DOMAIN "kvevents"

_Static_assert(sizeof(zmq_msg_t) <= 64, "a message fits a slot of kve_msg");

/* ---- options ---- */

kve_status
kve_sock_set_int(void *socket, int option, int value, const char *name,
    struct kve_error *err)
{
    if (zmq_setsockopt(socket, option, &value, sizeof(value)) == 0)
        return KVE_OK;
    return kve_fail(err, KVE_E_SYSTEM, "ZeroMQ refuses %s %d: %s", name, value,
        zmq_strerror(errno));
}

/* Whether there are descriptors for a socket, its address and, with the first
 * one, for the library's threads. The library ends the process when it gets
 * none in some places, so it is not left to find out. Sets errno. */
static bool
has_fds(void)
{
    int fds[FDS_A_SOCKET];
    size_t n = 0;
    int why;

    while (n < FDS_A_SOCKET && (fds[n] = eventfd(0, EFD_CLOEXEC)) >= 0)
        n++;
    why = errno == ENFILE ? EMFILE : errno;
    for (size_t i = 0; i < n; i++)
        (void)close(fds[i]);
    errno = why;
    return n == FDS_A_SOCKET;
}

kve_status
kve_sock_exhausted(struct kve_error *err)
{
    struct rlimit limit;

    if (has_fds() || getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return kve_fail(err, KVE_E_LIMIT,
            "no more sockets: all of the context are in use; raise its "
            "max_sources");
    return kve_fail(err, KVE_E_LIMIT,
        "no more sockets: %llu open files are allowed and in use; raise that "
        "(ulimit -n, LimitNOFILE=); a source needs 4, and up to 10 for a while",
        (unsigned long long)limit.rlim_cur);
}

/* A bit for each I/O thread that may carry the socket's traffic. */
static kve_status
set_affinity(void *socket, uint64_t threads, struct kve_error *err)
{
    if (zmq_setsockopt(socket, ZMQ_AFFINITY, &threads, sizeof(threads)) == 0)
        return KVE_OK;
    return kve_fail(err, KVE_E_SYSTEM, "ZeroMQ refuses I/O threads: %s",
        zmq_strerror(errno));
}

static uint64_t
all_but_last(unsigned n_threads)
{
    return (UINT64_C(1) << (n_threads - 1)) - 1;
}

kve_status
kve_sock_set_apart(kve_context *context, void *socket, struct kve_error *err)
{
    unsigned n = kve_context_io_threads(context);

    if (n < 2 || n > 64)
        return KVE_OK;
    return set_affinity(socket, UINT64_C(1) << (n - 1), err);
}

kve_status
kve_sock_create(kve_context *context, int type, uint32_t hwm, void **ret_socket,
    struct kve_error *err)
{
    /* 0 would be no limit at all. */
    int limit = hwm == 0 ? DEFAULT_HWM : hwm > INT32_MAX ? INT32_MAX : (int)hwm;
    const struct {
        int option;
        int value;
        const char *name;
    } options[] = {
        { ZMQ_LINGER, 0, "linger" },
        { ZMQ_TCP_KEEPALIVE, 1, "keepalive" },
        { ZMQ_TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S, "keepalive idle" },
        { ZMQ_TCP_KEEPALIVE_INTVL, KEEPALIVE_INTERVAL_S, "keepalive interval" },
        { ZMQ_TCP_KEEPALIVE_CNT, KEEPALIVE_PROBES, "keepalive count" },
        { ZMQ_SNDHWM, limit, "hwm" },
        { ZMQ_RCVHWM, limit, "hwm" },
    };
    kve_status status = KVE_OK;
    void *socket = NULL;

    if (has_fds())
        socket = zmq_socket(kve_context_zmq(context), type);
    if (socket == NULL && errno == EMFILE)
        return kve_sock_exhausted(err);
    if (socket == NULL)
        return kve_fail(
            err, KVE_E_SYSTEM, "ZeroMQ socket: %s", zmq_strerror(errno));
    for (size_t i = 0;
         i < sizeof(options) / sizeof(options[0]) && status == KVE_OK; i++)
        status = kve_sock_set_int(
            socket, options[i].option, options[i].value, options[i].name, err);
    if (status == KVE_OK && kve_context_keeps_apart(context))
        status = set_affinity(
            socket, all_but_last(kve_context_io_threads(context)), err);
    if (status != KVE_OK) {
        (void)zmq_close(socket);
        return status;
    }
    *ret_socket = socket;
    return KVE_OK;
}

kve_status
kve_sock_set_max(void *socket, size_t max, bool curve, struct kve_error *err)
{
    int64_t limit = max > INT64_MAX / 2 ? INT64_MAX / 2 : (int64_t)max;
    int64_t least = curve ? LEAST_MAX_CURVE : LEAST_MAX;

    if (max == 0)
        limit = DEFAULT_MAX;
    if (curve)
        limit += CURVE_OVERHEAD;
    if (limit < least)
        limit = least;
    if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &limit, sizeof(limit)) == 0)
        return KVE_OK;
    return kve_fail(err, KVE_E_SYSTEM,
        "ZeroMQ refuses a limit of %zu bytes: "
        "%s",
        max, zmq_strerror(errno));
}

static kve_status
set_key(void *socket, int option, const char *text, const char *name,
    struct kve_error *err)
{
    uint8_t key[32];
    kve_status status = KVE_OK;

    if (text == NULL)
        return kve_fail(err, KVE_E_INVAL,
            "curve.%s is missing; a publisher needs public_key and "
            "secret_key, a subscriber server_key as well",
            name);
    /* The text of a secret must not get into an error. */
    if (strlen(text) != KEY_TEXT_LEN || zmq_z85_decode(key, text) == NULL)
        status = kve_fail(err, KVE_E_INVAL,
            "curve.%s is not a key; accepted is a Z85 text of %d characters "
            "(as of zmq_curve_keypair), this one has %zu",
            name, KEY_TEXT_LEN, strlen(text));
    else if (zmq_setsockopt(socket, option, key, sizeof(key)) != 0)
        status = kve_fail(err, KVE_E_SYSTEM, "ZeroMQ refuses curve.%s: %s",
            name, zmq_strerror(errno));
    explicit_bzero(key, sizeof(key));
    return status;
}

/* With keys of two pairs every handshake would fail, without a reason. */
static kve_status
check_pair(const struct kve_curve *curve, struct kve_error *err)
{
    char public_key[KEY_TEXT_LEN + 1];

    if (zmq_curve_public(public_key, curve->secret_key) != 0 ||
        memcmp(public_key, curve->public_key, KEY_TEXT_LEN) == 0)
        return KVE_OK;
    return kve_fail(err, KVE_E_INVAL,
        "curve.public_key is not that of curve.secret_key; give both keys of "
        "one pair");
}

kve_status
kve_sock_set_curve(void *socket, const struct kve_curve *curve, bool server,
    struct kve_error *err)
{
    kve_status status;

    if (curve->server_key == NULL && curve->public_key == NULL &&
        curve->secret_key == NULL)
        return KVE_OK;
    if (!zmq_has("curve"))
        return kve_fail(err, KVE_E_UNSUPPORTED,
            "curve: this ZeroMQ library was built without CURVE");
    if (server) {
        status =
            kve_sock_set_int(socket, ZMQ_CURVE_SERVER, 1, "curve server", err);
        /* With a domain the door keeper is asked, when there is one. */
        if (status == KVE_OK &&
            zmq_setsockopt(
                socket, ZMQ_ZAP_DOMAIN, ZAP_DOMAIN, strlen(ZAP_DOMAIN)) != 0)
            status = kve_fail(err, KVE_E_SYSTEM,
                "ZeroMQ refuses the ZAP "
                "domain: %s",
                zmq_strerror(errno));
    } else {
        status = set_key(
            socket, ZMQ_CURVE_SERVERKEY, curve->server_key, "server_key", err);
    }
    if (status == KVE_OK)
        status = set_key(
            socket, ZMQ_CURVE_PUBLICKEY, curve->public_key, "public_key", err);
    if (status == KVE_OK)
        status = set_key(
            socket, ZMQ_CURVE_SECRETKEY, curve->secret_key, "secret_key", err);
    if (status == KVE_OK)
        status = check_pair(curve, err);
    return status;
}

void
kve_sock_set_family(void *socket, const struct kve_endpoint *endpoint)
{
    bool ipv4 = endpoint->numeric && !endpoint->ipv6 &&
        strcmp(endpoint->host, "*") != 0;
    int ipv6 = ipv4 ? 0 : 1;

    (void)zmq_setsockopt(socket, ZMQ_IPV6, &ipv6, sizeof(ipv6));
}

/* ---- close ---- */

/* A socket that reads the event of the end of socket's monitor, or NULL. */
static void *
watch_end(kve_context *context, void *socket)
{
    static atomic_uint names;
    char name[64];
    void *watch = zmq_socket(kve_context_zmq(context), ZMQ_PAIR);
    int zero = 0;

    if (watch == NULL)
        return NULL;
    (void)snprintf(name, sizeof(name), "inproc://kve-end-%p-%u", (void *)&names,
        atomic_fetch_add_explicit(&names, 1, memory_order_relaxed));
    (void)zmq_setsockopt(watch, ZMQ_LINGER, &zero, sizeof(zero));
    if (zmq_socket_monitor(socket, name, ZMQ_EVENT_MONITOR_STOPPED) == 0 &&
        zmq_connect(watch, name) == 0)
        return watch;
    (void)zmq_close(watch);
    return NULL;
}

void
kve_sock_close(kve_context *context, void *socket, int linger_ms, bool wait)
{
    if (socket == NULL)
        return;
    if (linger_ms < 0)
        linger_ms = 0;
    (void)zmq_setsockopt(socket, ZMQ_LINGER, &linger_ms, sizeof(linger_ms));

    void *watch = wait ? watch_end(context, socket) : NULL;
    (void)zmq_close(socket);
    if (watch == NULL)
        return;

    int64_t until =
        kve_now_ns() + ((int64_t)linger_ms + CLOSE_SPARE_MS) * KVE_MS;
    zmq_pollitem_t item = { .socket = watch, .events = ZMQ_POLLIN };
    int rc;
    do
        rc = zmq_poll(&item, 1, kve_ms_until(until, kve_now_ns()));
    while (rc < 0 && errno == EINTR);
    (void)zmq_close(watch);
}

/* ---- messages ---- */

static void
release_msg(struct kve_msg *msg)
{
    for (size_t i = 0; i < msg->held; i++)
        (void)zmq_msg_close((zmq_msg_t *)(void *)msg->priv[i]);
    msg->held = 0;
}

bool
kve_sock_readable(void *socket)
{
    int events = 0;
    size_t size = sizeof(events);

    return zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) == 0 &&
        (events & ZMQ_POLLIN) != 0;
}

/* One frame without waiting: its length, or -1 with errno. */
static int
recv_frame(void *socket, zmq_msg_t *frame)
{
    int rc;

    do
        rc = zmq_msg_recv(frame, socket, ZMQ_DONTWAIT);
    while (rc < 0 && errno == EINTR);
    return rc;
}

static enum kve_io
recv_failed(struct kve_error *err)
{
    (void)kve_fail(err, KVE_E_SYSTEM, "receiving: %s", zmq_strerror(errno));
    return KVE_IO_ERROR;
}

/* Frames beyond what msg has room for. */
static enum kve_io
skip_frames(void *socket, struct kve_msg *msg, struct kve_error *err)
{
    zmq_msg_t frame;
    enum kve_io io = KVE_IO_OK;

    (void)zmq_msg_init(&frame);
    do {
        int len = recv_frame(socket, &frame);

        if (len < 0) {
            io = recv_failed(err);
            break;
        }
        msg->n_frames++;
        msg->bytes += (size_t)len;
    } while (zmq_msg_more(&frame));
    (void)zmq_msg_close(&frame);
    return io;
}

enum kve_io
kve_sock_recv(void *socket, struct kve_msg *msg, struct kve_error *err)
{
    zmq_msg_t *frame;

    kve_msg_release(msg);
    msg->release = release_msg;
    msg->held = 0;
    msg->bytes = 0;
    do {
        if (msg->n_frames == KVE_MSG_FRAMES)
            return skip_frames(socket, msg, err);

        frame = (zmq_msg_t *)(void *)msg->priv[msg->n_frames];
        (void)zmq_msg_init(frame);
        msg->held = msg->n_frames + 1;

        int len = recv_frame(socket, frame);
        /* The library promises a whole message once its first frame is
         * there, so only the first can be missing. */
        if (len < 0 && errno == EAGAIN && msg->n_frames == 0)
            return KVE_IO_AGAIN;
        if (len < 0)
            return recv_failed(err);
        msg->frame[msg->n_frames].data = zmq_msg_data(frame);
        msg->frame[msg->n_frames].len = (size_t)len;
        msg->bytes += (size_t)len;
        msg->n_frames++;
    } while (zmq_msg_more(frame));
    return KVE_IO_OK;
}

int
kve_sock_send_copy(void *socket, const void *data, size_t len, int flags)
{
    int rc;

    do
        rc = zmq_send(socket, data, len, flags | ZMQ_DONTWAIT);
    while (rc < 0 && errno == EINTR);
    return rc;
}

static void
payload_sent(struct kve_payload *payload, enum kve_out out)
{
    /* Handed over by the count of references; see payload.c. */
    (void)atomic_load_explicit(&payload->refs, memory_order_acquire);
    if (payload->out != NULL)
        atomic_fetch_sub_explicit(
            &payload->out->bytes[out], payload->len, memory_order_relaxed);
    kve_payload_unref(payload);
}

/* On an I/O thread of the library, or in the call that sends. */
static void
live_sent(void *data, void *hint)
{
    (void)data;
    payload_sent(hint, KVE_OUT_LIVE);
}

static void
replay_sent(void *data, void *hint)
{
    (void)data;
    payload_sent(hint, KVE_OUT_REPLAY);
}

int
kve_sock_send_payload(
    void *socket, struct kve_payload *payload, enum kve_out out)
{
    zmq_msg_t frame;
    int rc;

    if (payload->out != NULL)
        atomic_fetch_add_explicit(
            &payload->out->bytes[out], payload->len, memory_order_relaxed);
    if (zmq_msg_init_data(&frame, payload->data, payload->len,
            out == KVE_OUT_LIVE ? live_sent : replay_sent,
            kve_payload_ref(payload)) != 0) {
        payload_sent(payload, out);
        return -1;
    }
    do
        rc = zmq_msg_send(&frame, socket, ZMQ_DONTWAIT);
    while (rc < 0 && errno == EINTR);
    if (rc < 0) {
        int why = errno;

        (void)zmq_msg_close(&frame);
        errno = why;
    }
    return rc;
}

/* As above, of a payload that is counted by its references alone. */
static void
slice_sent(void *data, void *hint)
{
    (void)data;
    (void)kve_payload_refs(hint);
    kve_payload_unref(hint);
}

int
kve_sock_send_slice(void *socket, struct kve_payload *payload,
    const uint8_t *data, size_t len, int flags)
{
    zmq_msg_t frame;
    int rc;

    if (zmq_msg_init_data(&frame, (void *)data, len, slice_sent,
            kve_payload_ref(payload)) != 0) {
        kve_payload_unref(payload);
        return -1;
    }
    do
        rc = zmq_msg_send(&frame, socket, flags | ZMQ_DONTWAIT);
    while (rc < 0 && errno == EINTR);
    if (rc < 0) {
        int why = errno;

        (void)zmq_msg_close(&frame);
        errno = why;
    }
    return rc;
}

int
kve_sock_fd(void *socket)
{
    int fd = -1;
    size_t size = sizeof(fd);

    if (zmq_getsockopt(socket, ZMQ_FD, &fd, &size) != 0)
        return -1;
    return fd;
}
