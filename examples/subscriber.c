/*
 * subscriber.c - follow one publisher and print what happens to its blocks.
 *
 *     subscriber [ENDPOINT [REPLAY-ENDPOINT]]
 *
 * What the live stream loses is asked for at the replay endpoint and delivered
 * in its place: on_batch() sees every batch once, in order.
 */
#include <kvevents/kvevents.h>

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>

static kve_subscriber *sub;

static void
on_interrupt(int number)
{
    (void)number;
    kve_sub_stop(sub); /* allowed in signal handlers */
}

static void
print_event(const struct kve_event *event)
{
    char hash[80] = "";

    if (event->n_hashes > 0)
        (void)kve_hash_format(&event->hashes[0], hash, sizeof(hash));
    printf("  - %s %zu blocks, %zu tokens, on %s %s\n",
        kve_event_type_str(event->type), event->n_hashes, event->n_tokens,
        kve_tier_str(event->tier), hash);
}

static int
on_batch(void *ctx, const struct kve_delivery *delivery)
{
    const struct kve_event *event;

    (void)ctx;
    printf("Received event batch at %.6f:\n",
        kve_batch_get_info(delivery->batch)->ts);
    while ((event = kve_batch_next(delivery->batch)) != NULL)
        print_event(event);
    return 0;
}

static void
on_notice(void *ctx, const struct kve_notice *notice)
{
    (void)ctx;
    if (notice->type == KVE_NOTICE_GAP)
        printf("Missed %" PRIu64 " messages (last: %" PRId64
               ", current: %" PRIu64 ")\n",
            notice->last - notice->first + 1, (int64_t)notice->first - 1,
            notice->last + 1);
    else if (notice->type == KVE_NOTICE_LOST)
        printf("Lost for good: %" PRIu64 "..%" PRIu64 "\n", notice->first,
            notice->last);
}

int
main(int argc, char **argv)
{
    struct kve_sub_callbacks callbacks = KVE_SUB_CALLBACKS_INIT;
    struct kve_source_opts source = KVE_SOURCE_OPTS_INIT;
    struct kve_error err;
    kve_source_id id;
    kve_status status;

    source.endpoint = argc > 1 ? argv[1] : "tcp://127.0.0.1:5557";
    source.replay_endpoint = argc > 2 ? argv[2] : "tcp://127.0.0.1:5558";
    source.topic = "kv-events";
    callbacks.on_batch = on_batch;
    callbacks.on_notice = on_notice;

    status = kve_sub_create(NULL, NULL, &callbacks, &sub, &err);
    if (status == KVE_OK) {
        (void)signal(SIGINT, on_interrupt);
        (void)signal(SIGTERM, on_interrupt);
        status = kve_sub_add(sub, &source, &id, &err);
    }
    if (status == KVE_OK)
        printf("Listening for KV cache events on topic: kv-events\n");
    while (status == KVE_OK) {
        (void)fflush(stdout);
        status = kve_sub_poll(sub, -1, 0, NULL, &err);
    }
    if (status == KVE_E_CLOSED)
        printf("Interrupted\n");
    else
        fprintf(stderr, "subscriber: %s\n", err.detail);
    kve_sub_destroy(sub);
    return status == KVE_E_CLOSED ? 0 : 1;
}
