/*
 * hold.c - see hold.h.
 */
#include "stream/hold.h"

#include "base/alloc.h"

#include <string.h>

#define ID_LEN 16 /* of a publisher id */

void
kve_hold_init(struct kve_hold *hold, size_t max_bytes, size_t max_items)
{
    memset(hold, 0, sizeof(*hold));
    hold->tail = &hold->first;
    hold->max_bytes = max_bytes;
    hold->max_items = max_items;
}

/* Copy a span behind at; absent stays absent, empty stays empty. */
static uint8_t *
copy_span(struct kve_span *span, uint8_t *at)
{
    if (span->data == NULL)
        return at;
    if (span->len > 0)
        memcpy(at, span->data, span->len);
    span->data = at;
    return at + span->len;
}

bool
kve_hold_push(struct kve_hold *hold, const struct kve_machine_msg *msg,
    uint32_t ask, uint32_t link)
{
    size_t data = msg->topic.len + msg->payload.len +
        (msg->publisher_id != NULL ? ID_LEN : 0);
    size_t bytes = sizeof(struct kve_held) + data;
    struct kve_held *held = NULL;

    if (hold->items >= hold->max_items || bytes > hold->max_bytes ||
        hold->bytes > hold->max_bytes - bytes)
        return false;
    /* One byte more, so that an empty span has an address of its own. */
    held = kve_mem_alloc(bytes + 1);
    if (held == NULL)
        return false;

    held->next = NULL;
    held->bytes = bytes;
    held->ask = ask;
    held->link = link;
    held->msg = *msg;
    uint8_t *at = copy_span(&held->msg.topic, held->data);
    at = copy_span(&held->msg.payload, at);
    if (msg->publisher_id != NULL) {
        memcpy(at, msg->publisher_id, ID_LEN);
        held->msg.publisher_id = at;
    }

    *hold->tail = held;
    hold->tail = &held->next;
    hold->bytes += bytes;
    hold->items++;
    return true;
}

struct kve_held *
kve_hold_pop(struct kve_hold *hold)
{
    struct kve_held *held = hold->first;

    if (held == NULL)
        return NULL;
    hold->first = held->next;
    if (hold->first == NULL)
        hold->tail = &hold->first;
    hold->bytes -= held->bytes;
    hold->items--;
    held->next = NULL;
    return held;
}

void
kve_hold_put_back(struct kve_hold *hold, struct kve_held *held)
{
    held->next = hold->first;
    if (hold->first == NULL)
        hold->tail = &held->next;
    hold->first = held;
    hold->bytes += held->bytes;
    hold->items++;
}

void
kve_hold_clear(struct kve_hold *hold)
{
    struct kve_held *held;

    while ((held = kve_hold_pop(hold)) != NULL)
        kve_mem_free(held);
}
