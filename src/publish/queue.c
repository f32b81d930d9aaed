/*
 * queue.c - see queue.h.
 */
#include "publish/queue.h"

#include "base/alloc.h"
#include "base/status.h"

#include <kvevents/codec.h>

static size_t
power_of_two(size_t n)
{
    size_t size = 1;

    while (size < n)
        size *= 2;
    return size;
}

static kve_status
make_lock(pthread_mutex_t *lock, struct kve_error *err)
{
    pthread_mutexattr_t attr;
    int rc = pthread_mutexattr_init(&attr);

    if (rc != 0)
        return kve_fail(err, KVE_E_SYSTEM, "a mutex was refused (%d)", rc);
#ifdef __GLIBC__
    /* What is done under the lock is shorter than going to sleep for it. */
    (void)pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
    rc = pthread_mutex_init(lock, &attr);
    (void)pthread_mutexattr_destroy(&attr);
    if (rc != 0)
        return kve_fail(err, KVE_E_SYSTEM, "a mutex was refused (%d)", rc);
    return KVE_OK;
}

kve_status
kve_queue_init(struct kve_queue *q, size_t max_items, size_t max_bytes,
    uint64_t first_number, struct kve_error *err)
{
    size_t size = power_of_two(max_items);
    kve_status status = make_lock(&q->lock, err);

    if (status != KVE_OK)
        return status;
    q->lock_made = true;

    /* Zeros, so that publish() meets no page for the first time. */
    q->ring = kve_mem_zalloc(size, sizeof(*q->ring));
    if (q->ring == NULL)
        return kve_fail_nomem(err, "queue_items");
    q->mask = size - 1;
    q->max_items = max_items;
    q->max_bytes = max_bytes;
    atomic_store(
        &q->next_number, first_number == KVE_NUMBER_END ? 0 : first_number);
    return KVE_OK;
}

void
kve_queue_release(struct kve_queue *q)
{
    if (q->ring != NULL) {
        uint64_t tail = atomic_load(&q->tail);
        uint64_t head = atomic_load(&q->head);

        for (; head != tail; head++)
            kve_payload_unref(q->ring[head & q->mask].payload);
        atomic_store(&q->head, tail);
    }
    kve_mem_free(q->ring);
    q->ring = NULL;
    if (q->lock_made)
        (void)pthread_mutex_destroy(&q->lock);
    q->lock_made = false;
}

/* Under the lock. The number that ends a replay is no batch's. */
static uint64_t
give_number(struct kve_queue *q)
{
    uint64_t number =
        atomic_load_explicit(&q->next_number, memory_order_relaxed);
    uint64_t next = number + 1 == KVE_NUMBER_END ? 0 : number + 1;

    atomic_store_explicit(&q->next_number, next, memory_order_relaxed);
    return number;
}

uint64_t
kve_queue_number(struct kve_queue *q)
{
    uint64_t number;

    (void)pthread_mutex_lock(&q->lock);
    number = give_number(q);
    (void)pthread_mutex_unlock(&q->lock);
    return number;
}

/* Under the lock. */
static bool
has_room(struct kve_queue *q, uint64_t tail, size_t len)
{
    uint64_t head = atomic_load_explicit(&q->head, memory_order_acquire);
    size_t taken = atomic_load_explicit(&q->taken, memory_order_relaxed);
    size_t held = q->given - taken;

    return tail - head < q->max_items && len <= q->max_bytes &&
        held <= q->max_bytes - len;
}

kve_status
kve_queue_push(struct kve_queue *q, struct kve_payload *payload,
    struct kve_queue_pushed *ret)
{
    kve_status status = KVE_OK;
    size_t len = payload->len;

    ret->wake = false;
    (void)pthread_mutex_lock(&q->lock);
    if (q->closed) {
        status = KVE_E_CLOSED;
    } else {
        uint64_t tail = atomic_load_explicit(&q->tail, memory_order_relaxed);
        bool room = has_room(q, tail, len);

        if (room || (payload->flags & KVE_PAYLOAD_HEARTBEAT) == 0)
            ret->number = give_number(q);
        if (room) {
            q->ring[tail & q->mask] =
                (struct kve_queue_item){ payload, ret->number };
            q->given += len;
            /* Sequentially consistent: before the look at sleeping. */
            atomic_store(&q->tail, tail + 1);
        } else {
            status = KVE_E_DROPPED;
        }
    }
    (void)pthread_mutex_unlock(&q->lock);

    if (status == KVE_OK && atomic_load(&q->sleeping))
        ret->wake = atomic_exchange(&q->sleeping, false);
    return status;
}

void
kve_queue_close(struct kve_queue *q)
{
    (void)pthread_mutex_lock(&q->lock);
    q->closed = true;
    (void)pthread_mutex_unlock(&q->lock);
}

uint64_t
kve_queue_tail(struct kve_queue *q)
{
    return atomic_load(&q->tail);
}

uint64_t
kve_queue_head(struct kve_queue *q)
{
    return atomic_load(&q->head);
}

size_t
kve_queue_front(
    struct kve_queue *q, size_t max, struct kve_queue_item **ret_items)
{
    uint64_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    uint64_t tail = atomic_load_explicit(&q->tail, memory_order_acquire);
    size_t at = (size_t)(head & q->mask);
    size_t n = tail - head < max ? (size_t)(tail - head) : max;

    if (n > q->mask + 1 - at)
        n = q->mask + 1 - at;
    *ret_items = &q->ring[at];
    return n;
}

void
kve_queue_consume(struct kve_queue *q, size_t n, size_t bytes)
{
    uint64_t head = atomic_load_explicit(&q->head, memory_order_relaxed);

    atomic_fetch_add_explicit(&q->taken, bytes, memory_order_relaxed);
    /* Sequentially consistent: before the look at who waits in a flush. */
    atomic_store(&q->head, head + n);
}

bool
kve_queue_sleep(struct kve_queue *q)
{
    atomic_store(&q->sleeping, true);
    if (atomic_load(&q->tail) == atomic_load(&q->head))
        return true;
    kve_queue_awake(q);
    return false;
}

void
kve_queue_awake(struct kve_queue *q)
{
    atomic_store(&q->sleeping, false);
}
