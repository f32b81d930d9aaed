/*
 * zap.c - see zap.h.
 *
 * A request is: version, request id, domain, address, identity, mechanism and,
 * for CURVE, the client's public key of 32 bytes. The answer: version, request
 * id, status, text, user id, metadata. Everything but the key is judged by its
 * place only; a request of another shape is answered "400" too, since an
 * unanswered one would leave a client hanging.
 */
#include "transport/zap.h"

#include "base/alloc.h"
#include "base/status.h"

#include <zmq.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define KEY_LEN 32
#define KEY_TEXT_LEN 40
#define MAX_KEYS 65536
#define MAX_PART 255

enum part { VERSION, REQUEST_ID, DOMAIN, ADDRESS, IDENTITY, MECHANISM, KEY };
#define N_PARTS 7

struct kve_zap {
    pthread_t thread;
    void *socket;
    int stop_fd;
    uint8_t (*keys)[KEY_LEN]; /* sorted */
    size_t n_keys;
};

/* Parts of one request; parts too long are cut, and so match nothing. */
struct request {
    size_t n_parts;
    size_t len[N_PARTS];
    uint8_t part[N_PARTS][MAX_PART + 1];
};

static int
compare_keys(const void *a, const void *b)
{
    return memcmp(a, b, KEY_LEN);
}

/* The first word of a line, terminated, and what comes after it. */
static char *
first_word(char *line, char **ret_rest)
{
    line[strcspn(line, "\r\n")] = '\0';
    line += strspn(line, " \t");

    char *end = line + strcspn(line, " \t");
    *ret_rest = end + strspn(end, " \t");
    *end = '\0';
    return line;
}

/* Nothing, or a comment. A key can begin with # too, but is 40 long. */
static bool
is_no_key(const char *word, const char *rest)
{
    return *word == '\0' ||
        (*word == '#' &&
            (strlen(word) != KEY_TEXT_LEN || (*rest != '\0' && *rest != '#')));
}

static kve_status
add_key(struct kve_zap *zap, const char *path, unsigned line, const char *text,
    const char *rest, struct kve_error *err)
{
    if (zap->n_keys == MAX_KEYS)
        return kve_fail(err, KVE_E_LIMIT, "curve_allow '%s': above %d keys",
            path, MAX_KEYS);
    /* Powers of two from 16 on. */
    if (zap->n_keys == 0 ||
        (zap->n_keys >= 16 && (zap->n_keys & (zap->n_keys - 1)) == 0)) {
        void *more = kve_mem_array(
            zap->keys, zap->n_keys == 0 ? 16 : 2 * zap->n_keys, KEY_LEN);

        if (more == NULL)
            return kve_fail_nomem(err, "list of client keys");
        zap->keys = more;
    }
    if (strlen(text) != KEY_TEXT_LEN || (*rest != '\0' && *rest != '#') ||
        zmq_z85_decode(zap->keys[zap->n_keys], text) == NULL)
        return kve_fail_at(err, KVE_E_INVAL, line,
            "curve_allow '%s' line %u: not a key; accepted is a client's "
            "public "
            "key, a Z85 text of %d characters, alone or before a comment",
            path, line, KEY_TEXT_LEN);
    zap->n_keys++;
    return KVE_OK;
}

static kve_status
read_keys(struct kve_zap *zap, const char *path, struct kve_error *err)
{
    kve_status status = KVE_OK;
    char line[256];
    unsigned n = 0;
    bool whole = true;
    FILE *file = fopen(path, "re");

    if (file == NULL)
        return kve_fail(
            err, KVE_E_SYSTEM, "curve_allow '%s': %s", path, strerror(errno));
    while (status == KVE_OK && fgets(line, sizeof(line), file) != NULL) {
        bool begins = whole;

        /* The rest of a long line is the end of its comment; a key that is
         * cut is too long to be one. */
        whole = strchr(line, '\n') != NULL;
        if (!begins)
            continue;
        n++;

        char *rest;
        const char *word = first_word(line, &rest);
        if (!is_no_key(word, rest))
            status = add_key(zap, path, n, word, rest, err);
    }
    if (status == KVE_OK && ferror(file))
        status = kve_fail(
            err, KVE_E_SYSTEM, "curve_allow '%s': %s", path, strerror(errno));
    (void)fclose(file);
    if (status == KVE_OK && zap->n_keys > 0)
        qsort(zap->keys, zap->n_keys, KEY_LEN, compare_keys);
    return status;
}

/* False: nothing there. */
static bool
receive(void *socket, struct request *ret)
{
    int more = 1;

    memset(ret, 0, sizeof(*ret));
    while (more) {
        uint8_t spare[MAX_PART + 1];
        bool kept = ret->n_parts < N_PARTS;
        int len = zmq_recv(socket, kept ? ret->part[ret->n_parts] : spare,
            MAX_PART + 1, ZMQ_DONTWAIT);
        size_t size = sizeof(more);

        if (len < 0)
            return false;
        if (kept)
            ret->len[ret->n_parts] = (size_t)len;
        ret->n_parts++;
        if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size) != 0)
            return false;
    }
    return true;
}

static bool
is_allowed(const struct kve_zap *zap, const struct request *request)
{
    return request->n_parts == N_PARTS && request->len[MECHANISM] == 5 &&
        memcmp(request->part[MECHANISM], "CURVE", 5) == 0 &&
        request->len[KEY] == KEY_LEN && zap->n_keys > 0 &&
        bsearch(request->part[KEY], zap->keys, zap->n_keys, KEY_LEN,
            compare_keys) != NULL;
}

static void
reply(struct kve_zap *zap, const struct request *request)
{
    bool yes = is_allowed(zap, request);
    const char *text = yes ? "OK" : "no such key";
    size_t id_len = request->len[REQUEST_ID] <= MAX_PART
        ? request->len[REQUEST_ID]
        : MAX_PART;

    if (zmq_send(zap->socket, "1.0", 3, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
        return;
    (void)zmq_send(zap->socket, request->part[REQUEST_ID], id_len, ZMQ_SNDMORE);
    (void)zmq_send(zap->socket, yes ? "200" : "400", 3, ZMQ_SNDMORE);
    (void)zmq_send(zap->socket, text, strlen(text), ZMQ_SNDMORE);
    (void)zmq_send(zap->socket, "", 0, ZMQ_SNDMORE);
    (void)zmq_send(zap->socket, "", 0, 0);
}

static void *
keep_door(void *arg)
{
    struct kve_zap *zap = arg;
    struct request request;
    zmq_pollitem_t items[2] = {
        { .socket = zap->socket, .events = ZMQ_POLLIN },
        { .fd = zap->stop_fd, .events = ZMQ_POLLIN },
    };

    for (;;) {
        if (zmq_poll(items, 2, -1) < 0 && errno != EINTR)
            break;
        if (items[1].revents != 0)
            break;
        while (receive(zap->socket, &request))
            reply(zap, &request);
    }
    return NULL;
}

static kve_status
bind_door(struct kve_zap *zap, void *zmq_context, struct kve_error *err)
{
    int zero = 0;

    zap->socket = zmq_socket(zmq_context, ZMQ_REP);
    if (zap->socket == NULL)
        return kve_fail(err, KVE_E_SYSTEM, "socket for curve_allow: %s",
            zmq_strerror(errno));
    (void)zmq_setsockopt(zap->socket, ZMQ_LINGER, &zero, sizeof(zero));
    if (zmq_bind(zap->socket, "inproc://zeromq.zap.01") == 0)
        return KVE_OK;
    if (errno == EADDRINUSE)
        return kve_fail(err, KVE_E_IN_USE,
            "curve_allow: this ZeroMQ context has a ZAP handler already; use "
            "a context of its own, or let that handler decide");
    return kve_fail(err, KVE_E_SYSTEM, "curve_allow: %s", zmq_strerror(errno));
}

static kve_status
start_thread(struct kve_zap *zap, struct kve_error *err)
{
    sigset_t all;
    sigset_t before;

    /* Signals are the program's. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    int rc = pthread_create(&zap->thread, NULL, keep_door, zap);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        return KVE_OK;
    errno = rc;
    return kve_fail(
        err, KVE_E_SYSTEM, "thread for curve_allow: %s", strerror(rc));
}

/* Everything but the thread. */
static void
release(struct kve_zap *zap)
{
    if (zap->socket != NULL)
        (void)zmq_close(zap->socket);
    if (zap->stop_fd >= 0)
        (void)close(zap->stop_fd);
    kve_mem_free(zap->keys);
    kve_mem_free(zap);
}

kve_status
kve_zap_start(void *zmq_context, const char *path, struct kve_zap **ret_zap,
    struct kve_error *err)
{
    struct kve_zap *zap;
    kve_status status;

    if (!zmq_has("curve"))
        return kve_fail(err, KVE_E_UNSUPPORTED,
            "curve_allow: this ZeroMQ library was built without CURVE");
    zap = kve_mem_zalloc(1, sizeof(*zap));
    if (zap == NULL)
        return kve_fail_nomem(err, "curve_allow");
    zap->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (zap->stop_fd < 0) {
        status = kve_fail(err, KVE_E_SYSTEM, "eventfd: %s", strerror(errno));
        goto out;
    }
    status = read_keys(zap, path, err);
    if (status == KVE_OK)
        status = bind_door(zap, zmq_context, err);
    if (status == KVE_OK)
        status = start_thread(zap, err);
    if (status == KVE_OK) {
        *ret_zap = zap;
        zap = NULL;
    }

out:
    if (zap != NULL)
        release(zap);
    return status;
}

void
kve_zap_stop(struct kve_zap *zap)
{
    static const uint64_t one = 1;

    if (zap == NULL)
        return;
    (void)!write(zap->stop_fd, &one, sizeof(one));
    (void)pthread_join(zap->thread, NULL);
    release(zap);
}
