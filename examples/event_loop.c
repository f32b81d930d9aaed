/*
 * event_loop.c - a subscriber in an event loop of your own.
 *
 *     event_loop [ENDPOINT [REPLAY-ENDPOINT [SECONDS]]]
 *
 * One epoll loop with a timer of the program and the subscriber's descriptor.
 * The descriptor is readable as long as the subscriber has work, its own
 * timers included; kve_sub_poll() with time-out 0 never waits. So no thread
 * is needed, and a thousand batches that wait cannot starve the timer: 64 are
 * taken at a time.
 */
#include <kvevents/kvevents.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

static uint64_t events_seen;

static int
on_batch(void *ctx, const struct kve_delivery *delivery)
{
    (void)ctx;
    events_seen += kve_batch_get_info(delivery->batch)->n_events;
    return 0;
}

static int
add(int loop, int fd)
{
    struct epoll_event want = { .events = EPOLLIN, .data.fd = fd };

    return epoll_ctl(loop, EPOLL_CTL_ADD, fd, &want);
}

/* Go round until the timer fired so many times. */
static kve_status
run(kve_subscriber *sub, int loop, int timer, long seconds,
    struct kve_error *err)
{
    kve_status status = KVE_OK;

    while (status == KVE_OK && seconds > 0) {
        struct epoll_event ready;
        uint64_t times;

        if (epoll_wait(loop, &ready, 1, -1) != 1)
            continue;
        if (ready.data.fd == kve_sub_fd(sub)) {
            status = kve_sub_poll(sub, 0, 64, NULL, err);
        } else if (read(timer, &times, sizeof(times)) == sizeof(times)) {
            seconds -= (long)times;
            printf("%" PRIu64 " events\n", events_seen);
            (void)fflush(stdout);
        }
    }
    return status;
}

int
main(int argc, char **argv)
{
    struct itimerspec each_second = { { 1, 0 }, { 1, 0 } };
    struct kve_sub_callbacks callbacks = KVE_SUB_CALLBACKS_INIT;
    struct kve_source_opts source = KVE_SOURCE_OPTS_INIT;
    long seconds = argc > 3 ? strtol(argv[3], NULL, 10) : 60;
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    int loop = epoll_create1(0);
    kve_subscriber *sub = NULL;
    struct kve_error err = { .detail = "epoll or timer" };
    kve_source_id id;
    kve_status status;

    source.endpoint = argc > 1 ? argv[1] : NULL; /* NULL: the default */
    source.replay_endpoint = argc > 2 ? argv[2] : NULL;
    callbacks.on_batch = on_batch;
    status = kve_sub_create(NULL, NULL, &callbacks, &sub, &err);
    if (status == KVE_OK)
        status = kve_sub_add(sub, &source, &id, &err);
    if (status == KVE_OK &&
        (timerfd_settime(timer, 0, &each_second, NULL) != 0 ||
            add(loop, timer) != 0 || add(loop, kve_sub_fd(sub)) != 0))
        status = KVE_E_SYSTEM;
    if (status == KVE_OK)
        status = run(sub, loop, timer, seconds, &err);
    if (status != KVE_OK)
        fprintf(stderr, "event_loop: %s\n", err.detail);
    kve_sub_destroy(sub);
    (void)close(loop);
    (void)close(timer);
    return status == KVE_OK ? 0 : 1;
}
