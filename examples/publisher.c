/*
 * publisher.c - what an engine does: say what happened to its blocks.
 *
 *     publisher [ENDPOINT [REPLAY-ENDPOINT]]
 *
 * Publishes three batches: a prompt of two blocks is stored, its second block
 * is removed, everything is cleared. kve_pub_publish() only queues; a thread
 * of the publisher sends.
 */
#include <kvevents/kvevents.h>

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define BLOCK_SIZE 16
#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

/* Publish one batch of one event. */
static kve_status
publish(
    kve_publisher *pub, const struct kve_event *event, struct kve_error *err)
{
    struct kve_batch_view batch = KVE_BATCH_VIEW_INIT;
    uint64_t number;
    kve_status status;

    batch.events = event;
    batch.n_events = 1;
    status = kve_pub_publish(pub, &batch, &number, err);
    if (status == KVE_OK)
        printf("%" PRIu64 ": %s\n", number, kve_event_type_str(event->type));
    return status;
}

int
main(int argc, char **argv)
{
    const struct kve_hash hashes[] = {
        { .integer = 11 },
        { .integer = 12 },
    };
    const struct kve_str gpu = { "GPU", 3 };
    uint32_t tokens[2 * BLOCK_SIZE];
    const struct kve_event events[] = {
        { .type = KVE_EVENT_STORED,
            .hashes = hashes,
            .n_hashes = 2,
            .tokens = tokens,
            .n_tokens = N_OF(tokens),
            .block_size = BLOCK_SIZE,
            .medium = gpu },
        { .type = KVE_EVENT_REMOVED,
            .hashes = &hashes[1],
            .n_hashes = 1,
            .medium = gpu },
        { .type = KVE_EVENT_CLEARED },
    };
    struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;
    kve_publisher *pub = NULL;
    struct kve_error err;
    kve_status status;

    for (uint32_t i = 0; i < N_OF(tokens); i++)
        tokens[i] = 1000 + i;
    opts.endpoint = argc > 1 ? argv[1] : "tcp://127.0.0.1:5557";
    opts.replay_endpoint = argc > 2 ? argv[2] : "tcp://127.0.0.1:5558";
    opts.topic = "kv-events";

    status = kve_pub_create(NULL, &opts, &pub, &err);
    if (status == KVE_OK)
        printf("Publishing on %s, replay on %s\n", kve_pub_endpoint(pub),
            kve_pub_replay_endpoint(pub));
    (void)fflush(stdout);
    /* Readers need a moment to connect: a live stream waits for nobody. */
    (void)sleep(1);
    for (size_t i = 0; i < N_OF(events) && status == KVE_OK; i++)
        status = publish(pub, &events[i], &err);
    if (status == KVE_OK)
        status = kve_pub_flush(pub, 1000, &err);
    if (status != KVE_OK)
        fprintf(
            stderr, "publisher: %s: %s\n", kve_status_str(status), err.detail);
    /* A second in which late readers can still ask for a replay. */
    (void)sleep(1);
    kve_pub_destroy(pub);
    return status == KVE_OK ? 0 : 1;
}
