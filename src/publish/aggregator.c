/*
 * aggregator.c - what all workers of an engine said (kvevents/publisher.h).
 *
 * An event is known by its encoding: two events are the same exactly when the
 * map layout writes them to the same bytes, since it has a place for every
 * field. So the bytes are the key, and also what the results are made of.
 *
 *     bytes    [event 0][event 1][event 2] ...    in order of first arrival
 *     records  {at, len, count}  one each
 *     slots    open addressing, record + 1; at most half full
 *
 * Adding makes room for the worst case first and only then changes anything;
 * from there on it cannot fail, which is what makes it all or nothing.
 */
#include "base/alloc.h"
#include "base/bytes.h"
#include "base/status.h"
#include "stream/digest.h"
#include "wire/buffer.h"

#include <kvevents/publisher.h>

#include <stdint.h>
#include <string.h>

/* A batch of one event and nothing else: array of 3, 9 bytes of time stamp,
 * array of 1; the event; nil. */
#define HEAD_LEN (1 + 9 + 1)
#define TAIL_LEN 1
#define ANY_TIME 1.0

#define RESULT_HEAD_LEN (1 + 9 + 5) /* with the longest array header */

struct record {
    size_t at; /* in bytes */
    size_t len;
    uint64_t hash;
    uint64_t count;
};

struct kve_aggregator {
    uint32_t workers;
    struct kve_buffer bytes;
    struct record *records;
    size_t n_records;
    size_t room; /* for records */
    uint32_t *slots;
    size_t n_slots; /* a power of two, or 0 */
    struct kve_buffer result;
    kve_batch *batch;
};

kve_status
kve_aggregator_create(
    uint32_t workers, kve_aggregator **ret_aggregator, struct kve_error *err)
{
    /* Results are what was added: no limit of its own may cut them. */
    struct kve_batch_opts opts = { .struct_size = sizeof(opts),
        .max_tokens = UINT32_MAX,
        .max_hashes = UINT32_MAX,
        .max_events = UINT32_MAX };
    kve_aggregator *aggregator;
    kve_status status;

    if (workers == 0)
        return kve_fail(err, KVE_E_INVAL, "workers is 0; at least 1 is needed");
    aggregator = kve_mem_zalloc(1, sizeof(*aggregator));
    if (aggregator == NULL)
        return kve_fail_nomem(err, "aggregator");
    aggregator->workers = workers;
    status = kve_batch_create(&opts, &aggregator->batch, err);
    if (status != KVE_OK) {
        kve_mem_free(aggregator);
        return status;
    }
    *ret_aggregator = aggregator;
    return KVE_OK;
}

void
kve_aggregator_destroy(kve_aggregator *aggregator)
{
    if (aggregator == NULL)
        return;
    kve_buffer_release(&aggregator->bytes);
    kve_buffer_release(&aggregator->result);
    kve_batch_destroy(aggregator->batch);
    kve_mem_free(aggregator->records);
    kve_mem_free(aggregator->slots);
    kve_mem_free(aggregator);
}

/* The slot of an event, or the empty one where it belongs. */
static uint32_t *
find_slot(const kve_aggregator *aggregator, const uint8_t *event, size_t len,
    uint64_t hash)
{
    size_t mask = aggregator->n_slots - 1;

    for (size_t i = (size_t)hash & mask;; i = (i + 1) & mask) {
        uint32_t *slot = &aggregator->slots[i];
        const struct record *record;

        if (*slot == 0)
            return slot;
        record = &aggregator->records[*slot - 1];
        if (record->hash == hash && record->len == len &&
            memcmp(aggregator->bytes.data + record->at, event, len) == 0)
            return slot;
    }
}

static kve_status
grow_slots(kve_aggregator *aggregator, size_t n_slots, struct kve_error *err)
{
    uint32_t *slots = kve_mem_zalloc(n_slots, sizeof(*slots));

    if (slots == NULL)
        return kve_fail_nomem(err, "aggregator");
    for (size_t r = 0; r < aggregator->n_records; r++) {
        size_t i = (size_t)aggregator->records[r].hash & (n_slots - 1);

        while (slots[i] != 0)
            i = (i + 1) & (n_slots - 1);
        slots[i] = (uint32_t)(r + 1);
    }
    kve_mem_free(aggregator->slots);
    aggregator->slots = slots;
    aggregator->n_slots = n_slots;
    return KVE_OK;
}

/* Records and slots for n more events. */
static kve_status
make_room(kve_aggregator *aggregator, size_t n, struct kve_error *err)
{
    size_t need = aggregator->n_records + n;
    size_t n_slots = aggregator->n_slots > 0 ? aggregator->n_slots : 64;
    size_t room = aggregator->room > 0 ? aggregator->room : 32;
    struct record *records;

    if (n >= UINT32_MAX || need >= UINT32_MAX)
        return kve_fail(err, KVE_E_LIMIT,
            "more than 4294967294 different events; clear the aggregator");
    while (room < need)
        room *= 2;
    if (room > aggregator->room) {
        records = kve_mem_array(aggregator->records, room, sizeof(*records));
        if (records == NULL)
            return kve_fail_nomem(err, "aggregator");
        aggregator->records = records;
        aggregator->room = room;
    }
    while (n_slots / 2 < need)
        n_slots *= 2;
    return n_slots > aggregator->n_slots ? grow_slots(aggregator, n_slots, err)
                                         : KVE_OK;
}

/* What can be written but not read would be missing from the results. */
static kve_status
check_readable(kve_aggregator *aggregator, size_t frame, size_t index,
    struct kve_error *err)
{
    const struct kve_buffer *bytes = &aggregator->bytes;
    const struct kve_fault *fault;
    kve_status status = kve_batch_decode(
        aggregator->batch, bytes->data + frame, bytes->len - frame, err);

    if (status != KVE_OK)
        return status;
    fault = kve_batch_fault(aggregator->batch, 0);
    if (fault == NULL)
        return KVE_OK;
    return kve_fail_at(err, KVE_E_INVAL, index, "event %zu: %s", index,
        kve_fault_help(fault->reason));
}

/* Append the encodings of the events, each in its frame, and note where each
 * begins behind the records. */
static kve_status
encode_events(kve_aggregator *aggregator, const struct kve_event *events,
    size_t n_events, size_t event_size, struct kve_error *err)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;

    view.ts = ANY_TIME;
    view.n_events = 1;
    view.event_size = event_size;
    for (size_t i = 0; i < n_events; i++) {
        struct record *record = &aggregator->records[aggregator->n_records + i];
        size_t frame = aggregator->bytes.len;
        kve_status status;

        view.events = (const void *)((const char *)events + i * event_size);
        record->at = frame + HEAD_LEN;
        status =
            kve_batch_encode(&view, KVE_LAYOUT_MAP, &aggregator->bytes, err);
        if (status == KVE_OK)
            status = check_readable(aggregator, frame, i, err);
        if (status != KVE_OK)
            return status;
        record->len = aggregator->bytes.len - TAIL_LEN - record->at;
    }
    return KVE_OK;
}

/* Count one encoded event; its bytes move down to *end when it is new. */
static void
count_event(kve_aggregator *aggregator, struct record found, size_t *end)
{
    uint8_t *bytes = aggregator->bytes.data;
    uint32_t *slot;

    found.hash = kve_digest(bytes + found.at, found.len);
    found.count = 1;
    slot = find_slot(aggregator, bytes + found.at, found.len, found.hash);
    if (*slot != 0) {
        aggregator->records[*slot - 1].count++;
        return;
    }
    memmove(bytes + *end, bytes + found.at, found.len);
    found.at = *end;
    *end += found.len;
    aggregator->records[aggregator->n_records++] = found;
    *slot = (uint32_t)aggregator->n_records;
}

kve_status
kve_aggregator_add(kve_aggregator *aggregator, const struct kve_event *events,
    size_t n_events, size_t event_size, struct kve_error *err)
{
    size_t end = aggregator->bytes.len;
    size_t first = aggregator->n_records;
    kve_status status;

    if (n_events == 0)
        return KVE_OK;
    if (events == NULL)
        return kve_fail(
            err, KVE_E_INVAL, "events is NULL with n_events %zu", n_events);
    if (event_size == 0)
        return kve_fail(
            err, KVE_E_INVAL, "event_size is 0; give sizeof(struct kve_event)");
    status = make_room(aggregator, n_events, err);
    if (status == KVE_OK)
        status = encode_events(aggregator, events, n_events, event_size, err);
    if (status != KVE_OK) {
        aggregator->bytes.len = end;
        return status;
    }
    for (size_t i = 0; i < n_events; i++)
        count_event(aggregator, aggregator->records[first + i], &end);
    aggregator->bytes.len = end;
    return KVE_OK;
}

/* How often an event is in a result. */
typedef uint64_t times_fn(
    const kve_aggregator *aggregator, const struct record *record);

static uint64_t
times_common(const kve_aggregator *aggregator, const struct record *record)
{
    return record->count == aggregator->workers;
}

static uint64_t
times_all(const kve_aggregator *aggregator, const struct record *record)
{
    (void)aggregator;
    return record->count;
}

static kve_status
measure(const kve_aggregator *aggregator, times_fn *times, uint64_t *ret_n,
    size_t *ret_len, struct kve_error *err)
{
    uint64_t n = 0;
    size_t len = RESULT_HEAD_LEN + TAIL_LEN;

    for (size_t i = 0; i < aggregator->n_records; i++) {
        const struct record *record = &aggregator->records[i];
        uint64_t count = times(aggregator, record);
        size_t more;

        if (__builtin_mul_overflow(count, record->len, &more) ||
            __builtin_add_overflow(len, more, &len))
            return kve_fail_nomem(err, "the aggregator's result");
        n += count;
    }
    if (n > UINT32_MAX)
        return kve_fail_nomem(err, "the aggregator's result");
    *ret_n = n;
    *ret_len = len;
    return KVE_OK;
}

/* A time stamp of 0: published again, the batch takes the time of then. */
static uint8_t *
write_head(uint8_t *w, uint64_t n_events)
{
    *w++ = 0x93;
    *w++ = 0xcb;
    kve_put64(w, 0);
    w += 8;
    *w++ = 0xdd;
    kve_put32(w, (uint32_t)n_events);
    return w + 4;
}

static kve_status
make_result(kve_aggregator *aggregator, times_fn *times, kve_batch **ret_batch,
    struct kve_error *err)
{
    struct kve_buffer *out = &aggregator->result;
    uint64_t n_events = 0;
    size_t len = 0;
    kve_status status = measure(aggregator, times, &n_events, &len, err);
    uint8_t *w;

    if (status != KVE_OK)
        return status;
    kve_batch_clear(aggregator->batch);
    out->len = 0;
    out->max = SIZE_MAX;
    status = kve_buffer_reserve(out, len, err);
    if (status != KVE_OK)
        return status;

    w = write_head(out->data, n_events);
    for (size_t i = 0; i < aggregator->n_records; i++) {
        const struct record *record = &aggregator->records[i];

        for (uint64_t c = times(aggregator, record); c > 0; c--) {
            memcpy(w, aggregator->bytes.data + record->at, record->len);
            w += record->len;
        }
    }
    *w++ = 0xc0;
    out->len = (size_t)(w - out->data);

    status = kve_batch_decode(aggregator->batch, out->data, out->len, err);
    if (status == KVE_OK)
        *ret_batch = aggregator->batch;
    return status;
}

kve_status
kve_aggregator_common(
    kve_aggregator *aggregator, kve_batch **ret_batch, struct kve_error *err)
{
    return make_result(aggregator, times_common, ret_batch, err);
}

kve_status
kve_aggregator_all(
    kve_aggregator *aggregator, kve_batch **ret_batch, struct kve_error *err)
{
    return make_result(aggregator, times_all, ret_batch, err);
}

void
kve_aggregator_clear(kve_aggregator *aggregator)
{
    aggregator->bytes.len = 0;
    aggregator->n_records = 0;
    if (aggregator->n_slots > 0)
        memset(aggregator->slots, 0,
            aggregator->n_slots * sizeof(*aggregator->slots));
}

uint32_t
kve_aggregator_add_workers(kve_aggregator *aggregator, uint32_t more)
{
    aggregator->workers = more > UINT32_MAX - aggregator->workers
        ? UINT32_MAX
        : aggregator->workers + more;
    return aggregator->workers;
}

void
kve_aggregator_reset_workers(kve_aggregator *aggregator)
{
    aggregator->workers = 1;
}

uint32_t
kve_aggregator_workers(const kve_aggregator *aggregator)
{
    return aggregator->workers;
}
