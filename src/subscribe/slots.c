/*
 * slots.c - see slots.h.
 */
#include "subscribe/slots.h"

#include "base/status.h"

#include <errno.h>
#include <stddef.h>
#include <unistd.h>

kve_status
kve_slots_init(
    struct kve_slots *slots, uint32_t max, bool locked, struct kve_error *err)
{
    if (locked && pthread_mutex_init(&slots->lock, NULL) != 0)
        return kve_fail(err, KVE_E_SYSTEM, "mutex of requests");
    slots->locked = locked;
    slots->max = max;
    slots->used = 0;
    slots->waiting = (struct kve_slot_list){ NULL, NULL };
    return KVE_OK;
}

void
kve_slots_release(struct kve_slots *slots)
{
    if (slots->locked)
        (void)pthread_mutex_destroy(&slots->lock);
}

static void
lock(struct kve_slots *slots)
{
    if (slots->locked)
        (void)pthread_mutex_lock(&slots->lock);
}

static void
unlock(struct kve_slots *slots)
{
    if (slots->locked)
        (void)pthread_mutex_unlock(&slots->lock);
}

static void
append(struct kve_slot_list *list, struct kve_slot *slot)
{
    slot->next = NULL;
    slot->prev = list->last;
    if (list->last != NULL)
        list->last->next = slot;
    else
        list->first = slot;
    list->last = slot;
}

static void
take_out(struct kve_slot_list *list, struct kve_slot *slot)
{
    if (slot->prev != NULL)
        slot->prev->next = slot->next;
    else
        list->first = slot->next;
    if (slot->next != NULL)
        slot->next->prev = slot->prev;
    else
        list->last = slot->prev;
    slot->next = NULL;
    slot->prev = NULL;
}

/* A slot is free: the first who waits has it from now on. */
static void
grant(struct kve_slots *slots)
{
    struct kve_slot *slot = slots->waiting.first;
    uint64_t one = 1;

    if (slot == NULL || slots->used >= slots->max)
        return;
    take_out(&slots->waiting, slot);
    slots->used++;
    slot->state = KVE_SLOT_GRANTED;
    append(&slot->grants->list, slot);
    atomic_store(&slot->grants->any, true);
    (void)!write(slot->grants->event_fd, &one, sizeof(one));
}

bool
kve_slot_take(
    struct kve_slots *slots, struct kve_slot *slot, struct kve_grants *grants)
{
    bool taken;

    lock(slots);
    slot->grants = grants;
    taken = slots->used < slots->max && slots->waiting.first == NULL;
    if (taken) {
        slots->used++;
        slot->state = KVE_SLOT_HELD;
    } else {
        slot->state = KVE_SLOT_WAITING;
        append(&slots->waiting, slot);
    }
    unlock(slots);
    return taken;
}

void
kve_slot_give_back(struct kve_slots *slots, struct kve_slot *slot)
{
    lock(slots);
    switch (slot->state) {
    case KVE_SLOT_NONE:
        break;
    case KVE_SLOT_WAITING:
        take_out(&slots->waiting, slot);
        break;
    case KVE_SLOT_GRANTED:
        take_out(&slot->grants->list, slot);
        slots->used--;
        break;
    case KVE_SLOT_HELD:
        slots->used--;
        break;
    }
    slot->state = KVE_SLOT_NONE;
    grant(slots);
    unlock(slots);
}

struct kve_slot *
kve_slots_granted(struct kve_slots *slots, struct kve_grants *grants)
{
    struct kve_slot *slot;

    if (!atomic_load(&grants->any))
        return NULL;
    lock(slots);
    slot = grants->list.first;
    if (slot != NULL) {
        take_out(&grants->list, slot);
        slot->state = KVE_SLOT_HELD;
    }
    if (grants->list.first == NULL)
        atomic_store(&grants->any, false);
    unlock(slots);
    return slot;
}
