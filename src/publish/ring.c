/*
 * ring.c - see ring.h.
 */
#include "publish/ring.h"

#include "base/alloc.h"
#include "base/status.h"

kve_status
kve_ring_init(struct kve_ring *ring, size_t items, size_t max_bytes,
    struct kve_error *err)
{
    ring->item = kve_mem_array(NULL, items, sizeof(*ring->item));
    if (ring->item == NULL)
        return kve_fail_nomem(err, "snapshot recorder");
    ring->size = items;
    ring->max_bytes = max_bytes;
    return KVE_OK;
}

void
kve_ring_release(struct kve_ring *ring)
{
    while (ring->item != NULL && kve_ring_front(ring) != NULL)
        kve_ring_pop(ring);
    kve_mem_free(ring->item);
    ring->item = NULL;
}

static bool
has_room(struct kve_ring *ring, uint64_t tail, size_t len)
{
    uint64_t head = atomic_load(&ring->head); /* see kve_ring_pop() */
    size_t taken = atomic_load_explicit(&ring->taken, memory_order_relaxed);
    size_t held = ring->given - taken;

    if (tail == head)
        return true;
    return tail - head < ring->size && held <= ring->max_bytes &&
        len <= ring->max_bytes - held;
}

bool
kve_ring_push(
    struct kve_ring *ring, uint64_t number, struct kve_payload *payload)
{
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    size_t len = payload != NULL ? payload->len : 0;

    if (!has_room(ring, tail, len))
        return false;
    ring->item[tail % ring->size] = (struct kve_queue_item){ payload, number };
    ring->given += len;
    /* Sequentially consistent: before the look at sleeping. */
    atomic_store(&ring->tail, tail + 1);
    return true;
}

bool
kve_ring_wants_waking(struct kve_ring *ring)
{
    return atomic_load(&ring->sleeping) &&
        atomic_exchange(&ring->sleeping, false);
}

const struct kve_queue_item *
kve_ring_front(struct kve_ring *ring)
{
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);

    if (head == atomic_load_explicit(&ring->tail, memory_order_acquire))
        return NULL;
    return &ring->item[head % ring->size];
}

void
kve_ring_pop(struct kve_ring *ring)
{
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    struct kve_payload *payload = ring->item[head % ring->size].payload;

    if (payload != NULL) {
        atomic_fetch_add_explicit(
            &ring->taken, payload->len, memory_order_relaxed);
        kve_payload_unref(payload);
    }
    /* Sequentially consistent: before the look at whether the producer waits
     * for room, which says so before it looks at the head. */
    atomic_store(&ring->head, head + 1);
}

bool
kve_ring_has_room(struct kve_ring *ring)
{
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);

    return tail - head <= ring->size / 2;
}

bool
kve_ring_sleep(struct kve_ring *ring)
{
    atomic_store(&ring->sleeping, true);
    if (atomic_load(&ring->tail) == atomic_load(&ring->head))
        return true;
    kve_ring_awake(ring);
    return false;
}

void
kve_ring_awake(struct kve_ring *ring)
{
    atomic_store(&ring->sleeping, false);
}
