/*
 * pub_test.h - what the tests of the publisher share.
 *
 * The reading side is the socket library itself, not ours: it is the judge.
 */
#ifndef PUB_TEST_H
#define PUB_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <kvevents/publisher.h>

#include <stdbool.h>

/* A test that leaves no block of ours behind. */
#define LEAK_TEST(f) \
    cmocka_unit_test_setup_teardown(f, test_remember, test_nothing_left)

int test_remember(void **state);
int test_nothing_left(void **state);

/* The readers' side: made and ended for a group of tests. */
extern void *test_zmq;

int test_make_zmq(void **state);
int test_end_zmq(void **state);

/* Options of a publisher with replay, both on ports that are free. */
struct kve_pub_opts test_loopback(void);

/* A publisher, or the test fails. */
kve_publisher *test_create(
    kve_context *context, const struct kve_pub_opts *opts);

void test_sleep_ms(int ms);

/* A store of n_tokens tokens in blocks of 16, whose first hash is hash. The
 * event is the caller's, what it points to lives on in the fixture. */
struct test_store {
    struct kve_event event;
    struct kve_hash hashes[64];
    uint32_t tokens[1024];
};

void test_store_init(struct test_store *store, uint64_t hash, size_t n_tokens);

/* A view of one event. */
struct kve_batch_view test_view(const struct kve_event *event);

/* ---- readers ---- */

/* A message as it came: at most 8 frames, copied. */
struct test_msg {
    size_t n;
    size_t len[8];
    uint8_t *data[8];
};

void test_msg_release(struct test_msg *msg);

/* Receive within timeout_ms; false: nothing came. */
bool test_recv(void *socket, struct test_msg *msg, int timeout_ms);

/* The number in frame i, which must be of 8 bytes. */
uint64_t test_number(const struct test_msg *msg, size_t i);

/* A SUB at endpoint with rcvhwm messages of room; "" all topics. */
void *test_sub(void *zmq, const char *endpoint, const char *topic, int rcvhwm);

/* A DEALER. */
void *test_dealer(void *zmq, const char *endpoint, int rcvhwm);

/* "" and start, 8 bytes. */
void test_ask(void *dealer, uint64_t start);

void test_close(void *socket);

/*
 * A reader that never reads: a connection to endpoint, tcp://ADDRESS:PORT, with
 * a small receive buffer, that has shaken hands as a DEALER. A DEALER of the
 * socket library reads whole messages in its own thread, whoever wants them.
 */
int test_mute_dealer(const char *endpoint);

/* It sends frames; "" is an empty one. */
void test_mute_send(int fd, const char *const *frames, size_t n);

/*
 * Receive an answer up to its end marker. Checks that numbers are first,
 * first + 1 ... and the frames of shape; returns how many batches came.
 */
size_t test_answer(
    void *dealer, uint64_t first, const char *topic, int timeout_ms);

/* Publish (to a subscriber that just connected) until something arrives, so
 * that from then on everything does. The numbers used up are below *ret. */
void test_join(kve_publisher *pub, void *sub);

/* Wait until counter is at least n; fails after thirty seconds. */
void test_wait_counter(kve_publisher *pub, unsigned counter, uint64_t n);

/* ---- a publisher whose sender stands still ---- */

/*
 * A log hook that blocks the thread that logs: a bad replay request makes the
 * sender log, and so stand still until it is let go.
 */
struct test_brake;

kve_context *test_brake_context(struct test_brake **ret_brake, void *zmq);
/* Make the sender of pub stand still. */
void test_brake_hold(struct test_brake *brake, kve_publisher *pub, void *zmq);
void test_brake_let_go(struct test_brake *brake);
void test_brake_destroy(struct test_brake *brake);

#endif
