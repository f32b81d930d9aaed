/*
 * payload.c - see payload.h.
 *
 * Counting down is release, the last one acquires: whoever frees sees every
 * byte the others wrote. Counting up is release: who got the new reference
 * sees every byte too, when it looks at the count with acquire first. That is
 * how a payload passes through the socket library, whose own ordering is not
 * seen by everyone who checks ours.
 */
#include "transport/payload.h"

#include "base/alloc.h"

#include <string.h>

/* Whether that was the last reference. */
static bool
let_go(atomic_uint *refs)
{
    return atomic_fetch_sub_explicit(refs, 1, memory_order_acq_rel) == 1;
}

struct kve_out_gauge *
kve_out_gauge_create(void)
{
    struct kve_out_gauge *gauge = kve_mem_alloc(sizeof(*gauge));

    if (gauge == NULL)
        return NULL;
    atomic_init(&gauge->bytes[KVE_OUT_LIVE], 0);
    atomic_init(&gauge->bytes[KVE_OUT_REPLAY], 0);
    atomic_init(&gauge->refs, 1);
    return gauge;
}

void
kve_out_gauge_unref(struct kve_out_gauge *gauge)
{
    if (gauge != NULL && let_go(&gauge->refs))
        kve_mem_free(gauge);
}

struct kve_payload *
kve_payload_create(const void *data, size_t len, struct kve_out_gauge *out)
{
    struct kve_payload *payload;

    if (len > SIZE_MAX - sizeof(*payload))
        return NULL;
    payload = kve_mem_alloc(sizeof(*payload) + len);
    if (payload == NULL)
        return NULL;

    atomic_init(&payload->refs, 1);
    payload->flags = 0;
    payload->len = len;
    payload->out = out;
    if (out != NULL)
        atomic_fetch_add_explicit(&out->refs, 1, memory_order_relaxed);
    if (data != NULL && len > 0)
        memcpy(payload->data, data, len);
    return payload;
}

struct kve_payload *
kve_payload_adopt_take(void *block, size_t len)
{
    struct kve_payload *payload = block;

    atomic_init(&payload->refs, 1);
    payload->flags = 0;
    payload->len = len;
    payload->out = NULL;
    return payload;
}

unsigned
kve_payload_refs(struct kve_payload *payload)
{
    return atomic_load_explicit(&payload->refs, memory_order_acquire);
}

bool
kve_payload_alone(struct kve_payload *payload)
{
    return kve_payload_refs(payload) == 1;
}

struct kve_payload *
kve_payload_ref(struct kve_payload *payload)
{
    atomic_fetch_add_explicit(&payload->refs, 1, memory_order_release);
    return payload;
}

void
kve_payload_unref(struct kve_payload *payload)
{
    if (payload == NULL || !let_go(&payload->refs))
        return;
    kve_out_gauge_unref(payload->out);
    kve_mem_free(payload);
}
