/*
 * bench_service.c - what a service is measured with: engines and questions.
 *
 *     bench_service publish SEQUENCES PER_MESSAGE RATE
 *         Eight workers' stores of the workload (index_work.h), from tokens,
 *         each worker on a port of its own. Everything is encoded first; then
 *         one line of JSON says the endpoints. A line on standard input starts
 *         it: RATE events a second, 0: as fast as they are taken, none is ever
 *         dropped. A second line says how it went. It stays until standard
 *         input ends.
 *     bench_service bodies KIND N
 *         N bodies of questions, a line each: tokens, hashes (Dynamo's
 *         spelling), ends:SEQUENCES (each worker's last sequence), msgpack
 *         (/v1/query, as hex digits).
 *     bench_service ask PORT PATH RATE SECONDS
 *         Asks with the bodies on standard input, so many a second, on one
 *         connection; a line of JSON says the latencies.
 *
 * The publishers are XPUB sockets that wait for a full reader, so that what is
 * measured is how fast a service takes events, and every event counts.
 */
#include "index_work.h"

#include <kvevents/codec.h>
#include <kvevents/hash.h>

#include <zmq.h>

#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define WORKERS 8

static const struct work_shape shape = { WORKERS, 0, false, true, 0 };

/* ---- publish ---- */

/* One encoded message. */
struct message {
    uint8_t *data;
    size_t len;
    uint32_t worker;
};

struct messages {
    struct message *items;
    size_t n;
};

/* Events first..first+n-1 of one sequence, as one payload. */
static void
encode(struct message *message, const struct work_blocks *blocks, size_t first,
    size_t n)
{
    struct kve_event events[WORK_BLOCKS / WORK_EVENT];
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_buffer out = KVE_BUFFER_INIT;

    memset(events, 0, sizeof(events));
    for (size_t i = 0; i < n; i++) {
        struct kve_event *event = &events[i];
        size_t at = (first + i) * WORK_EVENT;

        event->type = KVE_EVENT_STORED;
        event->hashes = &blocks->hashes[at];
        event->n_hashes = WORK_EVENT;
        if (at > 0) {
            event->has_parent = true;
            event->parent = blocks->hashes[at - 1];
        }
        event->tokens = &blocks->tokens[at * WORK_TOKENS];
        event->n_tokens = WORK_EVENT * WORK_TOKENS;
        event->block_size = WORK_TOKENS;
        event->medium.data = "GPU";
        event->medium.len = 3;
    }
    view.ts = 1.5;
    view.events = events;
    view.n_events = n;
    if (kve_batch_encode(&view, KVE_LAYOUT_MAP, &out, NULL) != KVE_OK)
        work_die("publish", "a batch was not encoded");
    message->data = out.data;
    message->len = out.len;
}

static void
make_messages(struct messages *messages, size_t n_sequences, size_t per_message)
{
    struct work_blocks blocks;
    size_t per_sequence = WORK_BLOCKS / WORK_EVENT / per_message;
    size_t n = 0;

    messages->items = work_must(
        calloc(n_sequences * WORKERS * per_sequence, sizeof(*messages->items)));
    work_blocks_init(&blocks, &shape, WORKERS * WORK_BLOCKS, true);
    for (size_t s = 0; s < n_sequences; s++) {
        work_fill_stores(&blocks, &shape, s, 1);
        for (uint32_t w = 0; w < WORKERS; w++) {
            struct work_blocks own = blocks;

            own.hashes += (size_t)w * WORK_BLOCKS;
            own.tokens += (size_t)w * WORK_BLOCKS * WORK_TOKENS;
            for (size_t i = 0; i < per_sequence; i++) {
                messages->items[n].worker = w;
                encode(
                    &messages->items[n++], &own, i * per_message, per_message);
            }
        }
    }
    messages->n = n;
    work_blocks_release(&blocks);
}

static void
put_number(uint8_t bytes[8], uint64_t number)
{
    for (int i = 7; i >= 0; i--, number >>= 8)
        bytes[i] = (uint8_t)number;
}

static void
sleep_until(double when_ns)
{
    double now = work_wall_ns();

    if (when_ns > now + 50e3) {
        struct timespec ts = { 0, (long)(when_ns - now) };

        (void)nanosleep(&ts, NULL);
    }
}

static void
open_publishers(void *context, void **sockets)
{
    printf("{\"endpoints\":[");
    for (int w = 0; w < WORKERS; w++) {
        int one = 1;
        int hwm = 1000;
        char endpoint[64];
        size_t len = sizeof(endpoint);

        sockets[w] = work_must(zmq_socket(context, ZMQ_XPUB));
        (void)zmq_setsockopt(sockets[w], ZMQ_XPUB_NODROP, &one, sizeof(one));
        (void)zmq_setsockopt(sockets[w], ZMQ_SNDHWM, &hwm, sizeof(hwm));
        if (zmq_bind(sockets[w], "tcp://127.0.0.1:*") != 0 ||
            zmq_getsockopt(sockets[w], ZMQ_LAST_ENDPOINT, endpoint, &len) != 0)
            work_die("publish", "cannot listen");
        printf("%s\"%s\"", w > 0 ? "," : "", endpoint);
    }
    printf("]}\n");
    (void)fflush(stdout);
}

static void
send_all(void **sockets, const struct messages *messages, size_t per_message,
    double rate)
{
    uint64_t numbers[WORKERS] = { 0 };
    double begin = work_wall_ns();

    for (size_t i = 0; i < messages->n; i++) {
        const struct message *message = &messages->items[i];
        void *socket = sockets[message->worker];
        uint8_t number[8];

        if (rate > 0)
            sleep_until(begin + (double)(i * per_message) / rate * 1e9);
        put_number(number, numbers[message->worker]++);
        if (zmq_send(socket, "", 0, ZMQ_SNDMORE) < 0 ||
            zmq_send(socket, number, sizeof(number), ZMQ_SNDMORE) < 0 ||
            zmq_send(socket, message->data, message->len, 0) < 0)
            work_die("publish", "cannot send");
    }
    printf("{\"events\":%zu,\"seconds\":%.6f}\n", messages->n * per_message,
        (work_wall_ns() - begin) / 1e9);
    (void)fflush(stdout);
}

static int
publish(size_t n_sequences, size_t per_message, double rate)
{
    void *context = work_must(zmq_ctx_new());
    void *sockets[WORKERS];
    struct messages messages;
    char line[64];

    make_messages(&messages, n_sequences, per_message);
    open_publishers(context, sockets);
    if (fgets(line, sizeof(line), stdin) != NULL) {
        send_all(sockets, &messages, per_message, rate);
        while (fgets(line, sizeof(line), stdin) != NULL)
            continue;
    }
    for (int w = 0; w < WORKERS; w++) {
        int none = 0;

        (void)zmq_setsockopt(sockets[w], ZMQ_LINGER, &none, sizeof(none));
        (void)zmq_close(sockets[w]);
    }
    (void)zmq_ctx_term(context);
    for (size_t i = 0; i < messages.n; i++)
        free(messages.items[i].data);
    free(messages.items);
    return 0;
}

/* ---- bodies ---- */

/* Keys of the q-th question: a sequence that one worker holds. */
static void
keys_of(uint64_t q, uint64_t sequences, uint64_t *keys)
{
    uint64_t r = work_mix(0xF000000000000000u | q);

    for (uint64_t i = 0; i < WORK_BLOCKS; i++)
        keys[i] = work_key(r % WORKERS, (r >> 32) % sequences, i);
}

static void
print_tokens(const uint64_t *keys)
{
    printf("{\"token_ids\":[");
    for (uint32_t i = 0; i < WORK_BLOCKS * WORK_TOKENS; i++)
        printf("%s%" PRIu32, i > 0 ? "," : "",
            work_token(keys[i / WORK_TOKENS], i % WORK_TOKENS));
    printf("],\"model_name\":\"m\"}\n");
}

static void
print_hashes(const uint64_t *keys)
{
    uint32_t tokens[WORK_TOKENS];

    printf("{\"block_hashes\":[");
    for (uint32_t i = 0; i < WORK_BLOCKS; i++) {
        uint64_t hash;

        for (uint32_t j = 0; j < WORK_TOKENS; j++)
            tokens[j] = work_token(keys[i], j);
        (void)kve_content_hash(tokens, WORK_TOKENS, WORK_TOKENS, &hash, 1);
        printf("%s%" PRId64, i > 0 ? "," : "", (int64_t)hash);
    }
    printf("],\"model_name\":\"m\"}\n");
}

/* {"model":"m","tokens":bin of 32-bit little-endian numbers}, as hex. */
static void
print_msgpack(const uint64_t *keys)
{
    printf("82a56d6f64656ca16da6746f6b656e73c5%04x",
        (unsigned)(WORK_BLOCKS * WORK_TOKENS * 4));
    for (uint32_t i = 0; i < WORK_BLOCKS * WORK_TOKENS; i++) {
        uint32_t t = work_token(keys[i / WORK_TOKENS], i % WORK_TOKENS);

        printf(
            "%02x%02x%02x%02x", t & 255, t >> 8 & 255, t >> 16 & 255, t >> 24);
    }
    printf("\n");
}

static int
bodies(const char *kind, size_t n, size_t sequences)
{
    uint64_t keys[WORK_BLOCKS];

    for (size_t q = 0; q < n; q++) {
        keys_of(q, sequences, keys);
        if (strcmp(kind, "ends") == 0)
            for (uint64_t i = 0; i < WORK_BLOCKS; i++)
                keys[i] = work_key(q % WORKERS, sequences - 1, i);
        if (strcmp(kind, "hashes") == 0)
            print_hashes(keys);
        else if (strcmp(kind, "msgpack") == 0)
            print_msgpack(keys);
        else
            print_tokens(keys);
    }
    return 0;
}

/* ---- ask ---- */

static int
dial(const char *port)
{
    struct sockaddr_in to = { .sin_family = AF_INET,
        .sin_port = htons((uint16_t)strtoul(port, NULL, 10)),
        .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0)
        work_die("ask", "cannot connect");
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

static void
send_whole(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);

        if (n <= 0)
            work_die("ask", "the connection broke");
        data += n;
        len -= (size_t)n;
    }
}

/* Read one answer to its end; dies unless it is a 200. */
static void
read_answer(int fd)
{
    static char answer[1 << 20];
    size_t len = 0;
    size_t wanted = SIZE_MAX;

    while (len < wanted) {
        ssize_t n = read(fd, answer + len, sizeof(answer) - 1 - len);
        char *end;

        if (n <= 0)
            work_die("ask", "the connection broke");
        len += (size_t)n;
        answer[len] = '\0';
        end = strstr(answer, "\r\n\r\n");
        if (wanted == SIZE_MAX && end != NULL) {
            const char *field = strcasestr(answer, "content-length:");

            if (strncmp(answer, "HTTP/1.1 200", 12) != 0 || field == NULL)
                work_die("ask", answer);
            wanted = (size_t)(end + 4 - answer) +
                strtoul(field + strlen("content-length:"), NULL, 10);
        }
    }
}

static int
ask(const char *port, const char *path, double rate, double seconds)
{
    size_t n = (size_t)(rate * seconds);
    float *us = work_must(calloc(n + 1, sizeof(*us)));
    char **lines = work_must(calloc(n + 1, sizeof(*lines)));
    size_t n_lines = 0;
    char *request = work_must(malloc(1 << 20));
    int fd = dial(port);
    double begin;

    for (size_t cap = 0; n_lines < n; n_lines++, cap = 0)
        if (getline(&lines[n_lines], &cap, stdin) <= 0)
            break;
    if (n_lines == 0)
        work_die("ask", "no bodies on standard input");
    begin = work_wall_ns();
    for (size_t i = 0; i < n; i++) {
        const char *body = lines[i % n_lines];
        double start;
        int len = snprintf(request, 1 << 20,
            "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: "
            "application/json\r\nContent-Length: %zu\r\n\r\n%s",
            path, strlen(body), body);

        sleep_until(begin + (double)i / rate * 1e9);
        start = work_wall_ns();
        send_whole(fd, request, (size_t)len);
        read_answer(fd);
        us[i] = (float)((work_wall_ns() - start) / 1e3);
    }
    qsort(us, n, sizeof(*us), work_by_float);
    printf("{\"n\":%zu,\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f}\n", n,
        (double)us[n / 2], (double)us[n * 99 / 100], (double)us[n - 1]);
    (void)close(fd);
    for (size_t i = 0; i < n_lines; i++)
        free(lines[i]);
    free(lines);
    free(us);
    free(request);
    return 0;
}

int
main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

    if (strcmp(what, "publish") == 0 && argc == 5)
        return publish(strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10),
            strtod(argv[4], NULL));
    if (strcmp(what, "bodies") == 0 && argc == 5)
        return bodies(
            argv[2], strtoul(argv[3], NULL, 10), strtoul(argv[4], NULL, 10));
    if (strcmp(what, "ask") == 0 && argc == 6)
        return ask(
            argv[2], argv[3], strtod(argv[4], NULL), strtod(argv[5], NULL));
    work_die("usage",
        "bench_service publish SEQUENCES PER_MESSAGE RATE | bodies KIND N "
        "SEQUENCES | ask PORT PATH RATE SECONDS");
    return 2;
}
