/*
 * answers.c - see answers.h.
 */
#include "publish/answers.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <string.h>

struct kve_ask *
kve_ask_create(const uint8_t *peer, size_t peer_len)
{
    struct kve_ask *ask = kve_mem_alloc(sizeof(*ask) + peer_len);

    if (ask == NULL)
        return NULL;
    memset(ask, 0, sizeof(*ask));
    memcpy(ask->peer, peer, peer_len);
    ask->peer_len = peer_len;
    return ask;
}

void
kve_ask_destroy(struct kve_ask *ask)
{
    if (ask == NULL)
        return;
    kve_snapshot_unref(ask->snapshot);
    kve_mem_free(ask);
}

void
kve_asks_add_take(struct kve_asks *asks, struct kve_ask *ask)
{
    ask->next = NULL;
    if (asks->last != NULL)
        asks->last->next = ask;
    else
        asks->first = ask;
    asks->last = ask;
    asks->n++;
}

struct kve_ask *
kve_asks_detach(struct kve_asks *asks, struct kve_ask *before)
{
    struct kve_ask **at = before != NULL ? &before->next : &asks->first;
    struct kve_ask *ask = *at;

    if (ask == NULL)
        return NULL;
    *at = ask->next;
    if (asks->last == ask)
        asks->last = before;
    asks->n--;
    ask->next = NULL;
    return ask;
}

void
kve_asks_move(struct kve_asks *asks, struct kve_asks *from)
{
    struct kve_ask *ask;

    while ((ask = kve_asks_detach(from, NULL)) != NULL)
        kve_asks_add_take(asks, ask);
}

void
kve_asks_release(struct kve_asks *asks)
{
    struct kve_ask *ask;

    while ((ask = kve_asks_detach(asks, NULL)) != NULL)
        kve_ask_destroy(ask);
}

void
kve_ask_answer(struct kve_ask *ask, struct kve_snapshot *snapshot,
    int64_t now_ns, int64_t timeout_ns)
{
    ask->snapshot = kve_snapshot_ref(snapshot);
    ask->retry.at = now_ns;
    kve_retry_begin(&ask->retry);
    ask->expires_at = now_ns + timeout_ns;
}

static void
count_sent(
    struct kve_pub_counters *counters, const struct kve_snapshot *snapshot)
{
    if (snapshot->seq == KVE_SNAPSHOT_NONE) {
        kve_pub_count(counters, KVE_COUNTER_PUB_SNAPSHOT_UNAVAILABLE, 1);
        return;
    }
    kve_pub_count(counters, KVE_COUNTER_PUB_SNAPSHOT_REQUESTS, 1);
    kve_pub_count(
        counters, KVE_COUNTER_PUB_SNAPSHOT_BYTES, snapshot->payload->len);
}

/* One attempt; true: nothing more is to be done for this one. */
static bool
send_one(struct kve_ask *ask, const struct kve_transport *transport,
    struct kve_replay_serve *serve, struct kve_pub_counters *counters,
    int64_t now_ns)
{
    const struct kve_snapshot *snapshot = ask->snapshot;

    switch (transport->replay_serve_send_frames(serve, ask->peer, ask->peer_len,
        snapshot->payload, snapshot->ends, snapshot->n, NULL)) {
    case KVE_IO_OK:
        count_sent(counters, snapshot);
        return true;
    case KVE_IO_AGAIN:
        if (now_ns >= ask->expires_at) {
            kve_pub_count(counters, KVE_COUNTER_PUB_SNAPSHOT_EXPIRED, 1);
            return true;
        }
        kve_retry_later(&ask->retry, now_ns);
        return false;
    default:
        kve_pub_count(counters, KVE_COUNTER_PUB_SNAPSHOT_GONE, 1);
        return true;
    }
}

void
kve_asks_send(struct kve_asks *asks, const struct kve_transport *transport,
    struct kve_replay_serve *serve, struct kve_pub_counters *counters,
    int64_t now_ns)
{
    struct kve_ask *before = NULL;
    struct kve_ask *ask = asks->first;

    while (ask != NULL) {
        struct kve_ask *next = ask->next;

        if (ask->retry.at <= now_ns &&
            send_one(ask, transport, serve, counters, now_ns))
            kve_ask_destroy(kve_asks_detach(asks, before));
        else
            before = ask;
        ask = next;
    }
}

int64_t
kve_asks_deadline(const struct kve_asks *asks)
{
    int64_t deadline = KVE_NEVER;

    for (const struct kve_ask *ask = asks->first; ask != NULL; ask = ask->next)
        if (ask->retry.at < deadline)
            deadline = ask->retry.at;
    return deadline;
}
