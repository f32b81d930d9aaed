/*
 * limits.c - see limits.h.
 *
 * Entries are in chains of a hash table of fixed size; those without a
 * connection are in a list as well, the one that left first at its head. The
 * lock is for both; a client's clock is an atomic of its own.
 */
#include "http/limits.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define BUCKETS 4096u
/* Entries kept of clients that have no connection. */
#define MAX_IDLE 8192u

struct kve_client {
    struct kve_client *chain;
    struct kve_client *older; /* of the idle ones */
    struct kve_client *newer;
    uint8_t key[16];
    uint32_t connections;
    _Atomic int64_t paid_until; /* CLOCK_MONOTONIC: its virtual clock */
};

struct kve_clients {
    pthread_mutex_t lock;
    uint32_t max;
    uint32_t per_client;
    int64_t cost_ns; /* of a request; 0: no limit */
    _Atomic uint32_t connections;
    uint32_t idle;
    struct kve_client *oldest;
    struct kve_client *newest;
    struct kve_client *buckets[BUCKETS];
};

struct kve_clients *
kve_clients_create(uint32_t max, uint32_t per_client, uint32_t rate)
{
    struct kve_clients *clients = kve_mem_zalloc(1, sizeof(*clients));

    if (clients == NULL)
        return NULL;
    if (pthread_mutex_init(&clients->lock, NULL) != 0) {
        kve_mem_free(clients);
        return NULL;
    }
    clients->max = max;
    clients->per_client = per_client;
    clients->cost_ns = rate != 0 ? INT64_C(1000000000) / rate : 0;
    if (rate != 0 && clients->cost_ns == 0)
        clients->cost_ns = 1;
    return clients;
}

void
kve_clients_destroy(struct kve_clients *clients)
{
    if (clients == NULL)
        return;
    for (size_t i = 0; i < BUCKETS; i++) {
        struct kve_client *client = clients->buckets[i];

        while (client != NULL) {
            struct kve_client *next = client->chain;

            kve_mem_free(client);
            client = next;
        }
    }
    (void)pthread_mutex_destroy(&clients->lock);
    kve_mem_free(clients);
}

static void
make_key(const struct sockaddr *address, uint8_t key[16])
{
    static const uint8_t mapped[12] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255,
        255 };

    memset(key, 0, 16);
    if (address == NULL)
        return;
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)address;

        memcpy(key, mapped, sizeof(mapped));
        memcpy(key + 12, &in->sin_addr, 4);
    } else if (address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)address;

        if (memcmp(&in6->sin6_addr, mapped, sizeof(mapped)) == 0)
            memcpy(key, &in6->sin6_addr, 16);
        else
            memcpy(key, &in6->sin6_addr, 8);
    }
}

static struct kve_client **
bucket_of(struct kve_clients *clients, const uint8_t key[16])
{
    uint64_t h = UINT64_C(1469598103934665603);

    for (size_t i = 0; i < 16; i++)
        h = (h ^ key[i]) * UINT64_C(1099511628211);
    return &clients->buckets[(h ^ (h >> 32)) % BUCKETS];
}

static struct kve_client *
find(struct kve_clients *clients, const uint8_t key[16])
{
    struct kve_client *client = *bucket_of(clients, key);

    while (client != NULL && memcmp(client->key, key, 16) != 0)
        client = client->chain;
    return client;
}

static void
idle_remove(struct kve_clients *clients, struct kve_client *client)
{
    if (client->older != NULL)
        client->older->newer = client->newer;
    else
        clients->oldest = client->newer;
    if (client->newer != NULL)
        client->newer->older = client->older;
    else
        clients->newest = client->older;
    client->older = NULL;
    client->newer = NULL;
    clients->idle--;
}

static void
idle_add(struct kve_clients *clients, struct kve_client *client)
{
    client->older = clients->newest;
    client->newer = NULL;
    if (clients->newest != NULL)
        clients->newest->newer = client;
    else
        clients->oldest = client;
    clients->newest = client;
    clients->idle++;
}

static void
forget(struct kve_clients *clients, struct kve_client *client)
{
    struct kve_client **at = bucket_of(clients, client->key);

    while (*at != client)
        at = &(*at)->chain;
    *at = client->chain;
    kve_mem_free(client);
}

/* Idle entries that say nothing any more, and those over the bound. */
static void
tidy(struct kve_clients *clients)
{
    int64_t now = kve_now_ns();

    while (clients->oldest != NULL) {
        struct kve_client *client = clients->oldest;

        if (clients->idle <= MAX_IDLE &&
            atomic_load_explicit(&client->paid_until, memory_order_relaxed) >
                now)
            break;
        idle_remove(clients, client);
        forget(clients, client);
    }
}

static bool
has_room(const struct kve_clients *clients, const struct kve_client *client)
{
    if (atomic_load_explicit(&clients->connections, memory_order_relaxed) >=
        clients->max)
        return false;
    return clients->per_client == 0 || client == NULL ||
        client->connections < clients->per_client;
}

bool
kve_clients_accept(struct kve_clients *clients, const struct sockaddr *address)
{
    uint8_t key[16];
    bool room;

    if (clients->per_client == 0)
        return has_room(clients, NULL);
    make_key(address, key);
    (void)pthread_mutex_lock(&clients->lock);
    room = has_room(clients, find(clients, key));
    (void)pthread_mutex_unlock(&clients->lock);
    return room;
}

static struct kve_client *
add(struct kve_clients *clients, const uint8_t key[16])
{
    struct kve_client *client = kve_mem_zalloc(1, sizeof(*client));
    struct kve_client **at = bucket_of(clients, key);

    if (client == NULL)
        return NULL;
    memcpy(client->key, key, 16);
    client->chain = *at;
    *at = client;
    return client;
}

struct kve_client *
kve_clients_enter(struct kve_clients *clients, const struct sockaddr *address)
{
    struct kve_client *client;
    uint8_t key[16];

    make_key(address, key);
    (void)pthread_mutex_lock(&clients->lock);
    client = find(clients, key);
    if (!has_room(clients, client))
        client = NULL;
    else if (client == NULL)
        client = add(clients, key);
    else if (client->connections == 0)
        idle_remove(clients, client);
    if (client != NULL) {
        client->connections++;
        atomic_fetch_add_explicit(
            &clients->connections, 1, memory_order_relaxed);
    }
    (void)pthread_mutex_unlock(&clients->lock);
    return client;
}

void
kve_clients_leave(struct kve_clients *clients, struct kve_client *client)
{
    if (client == NULL)
        return;
    (void)pthread_mutex_lock(&clients->lock);
    client->connections--;
    atomic_fetch_sub_explicit(&clients->connections, 1, memory_order_relaxed);
    if (client->connections == 0) {
        idle_add(clients, client);
        tidy(clients);
    }
    (void)pthread_mutex_unlock(&clients->lock);
}

uint32_t
kve_clients_request(
    struct kve_clients *clients, struct kve_client *client, int64_t now_ns)
{
    const int64_t second = INT64_C(1000000000);
    int64_t paid;
    int64_t next;

    if (clients->cost_ns == 0 || client == NULL)
        return 0;
    paid = atomic_load_explicit(&client->paid_until, memory_order_relaxed);
    do {
        next = (paid > now_ns ? paid : now_ns) + clients->cost_ns;
        if (next - now_ns > second)
            return (uint32_t)((next - now_ns - second) / second) + 1;
    } while (!atomic_compare_exchange_weak_explicit(&client->paid_until, &paid,
        next, memory_order_relaxed, memory_order_relaxed));
    return 0;
}

void
kve_clients_name(const struct sockaddr *address, char *text, size_t size)
{
    uint8_t key[16];

    make_key(address, key);
    text[0] = '\0';
    if (address == NULL)
        return;
    if (key[10] == 255 && key[11] == 255)
        (void)inet_ntop(AF_INET, key + 12, text, (socklen_t)size);
    else if (address->sa_family == AF_INET6)
        (void)inet_ntop(AF_INET6,
            &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr,
            text, (socklen_t)size);
}

uint32_t
kve_clients_connections(const struct kve_clients *clients)
{
    return atomic_load_explicit(&clients->connections, memory_order_relaxed);
}
