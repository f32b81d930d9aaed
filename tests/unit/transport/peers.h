/*
 * peers.h - the owner's loop of transport handles, for tests: wait, step,
 * fetch events, receive; all on loopback and with ports the system chose.
 */
#ifndef TEST_TRANSPORT_PEERS_H
#define TEST_TRANSPORT_PEERS_H

#include "transport/context.h"
#include "transport/resolve.h"
#include "transport/transport.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

extern const struct kve_transport *const zmq;

/* A subscription and what it saw. */
struct reader {
    struct kve_live_in *in;
    struct kve_msg msg;
    unsigned seen[8];    /* events by type */
    char detail[8][200]; /* of the last one of a type */
    uint64_t last;       /* number of the last message */
    size_t n_messages;
};

/* Options that suit tests: fast reconnects. */
struct kve_dial_opts dial_opts(const char *endpoint);
struct kve_serve_opts serve_opts(const char *endpoint);

void reader_open(
    struct reader *r, kve_context *context, const struct kve_dial_opts *opts);
void reader_close(struct reader *r);
/* Go on until an event of type came (again), or ms passed. */
bool reader_await_event(struct reader *r, unsigned type, int ms);
/* Go on until there is a message, or ms passed. */
bool reader_await_message(struct reader *r, int ms);

struct kve_live_out *out_open(
    kve_context *context, const struct kve_serve_opts *opts);
const char *out_endpoint(struct kve_live_out *out);
void out_send(struct kve_live_out *out, const char *topic, uint64_t number,
    const void *data, size_t len);
/* Send until the reader gets one: a subscription takes a moment. Returns the
 * number of the last one sent. */
uint64_t out_send_until_read(
    struct kve_live_out *out, struct reader *r, uint64_t number, int ms);

/* The next message of an answer, or false when ms passed. */
bool ask_await(struct kve_replay_ask *ask, struct kve_msg *msg, int ms);
/* The next request, or false when ms passed. */
bool serve_await(struct kve_replay_serve *serve,
    struct kve_replay_request *ret_request, int ms);

struct kve_span span(const char *text);
void sleep_ms(int ms);

/* A TCP port that was free a moment ago. */
unsigned free_port(void);

/* A temporary folder, and its end with all files in it. */
void make_folder(char *ret_path, size_t cap);
void remove_folder(const char *path);

#endif
