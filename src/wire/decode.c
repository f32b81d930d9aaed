/*
 * decode.c - the batch around the events.
 *
 *   array  [ts, events, data_parallel_rank?, publisher_id?, more...]
 *   map    {"ts", "events", "data_parallel_rank"?, "publisher_id"?, ...}
 *
 * An event that cannot be read is walked twice: once until the reason was
 * found, then from its start to its end, which also finds its tag. Its memory
 * is given back. If msgpack itself is broken inside it, that is what is told:
 * nothing behind that byte has a place any more.
 */
#include "wire/batch.h"
#include "wire/usual.h"

#include "base/alloc.h"
#include "base/status.h"

/* A time stamp above this is in milliseconds: in seconds it would be the year
 * 5138. */
#define MS_ABOVE 1e11

/* Twice the room of an array, at most max items; false when memory is short
 * (or max is reached, which the caller has excluded). */
static bool
grow(void *array, size_t *cap, size_t max, size_t size)
{
    size_t want = *cap < 16 ? 16 : *cap * 2;
    void *old;

    if (want > max)
        want = max;
    memcpy(&old, array, sizeof(old));
    void *now = kve_mem_array(old, want, size);
    if (now == NULL)
        return false;
    memcpy(array, &now, sizeof(now));
    *cap = want;
    return true;
}

/*
 * The event at d->start is a fault: pass over it and write down why. d->r says
 * what was found first; a fault of the tag goes before that, since without a
 * known tag nothing is known about fields.
 */
static KVE_COLD const uint8_t *
record_fault(struct kve_decoder *d, size_t index)
{
    struct kve_batch *b = d->batch;
    struct kve_reader *r = &d->r;
    struct kve_fault fault = { .reason = r->reason,
        .field = r->field,
        .index = index,
        .offset = (size_t)(r->at - r->begin) };
    const uint8_t *after = kve_skip(r, d->start);

    if (after == NULL)
        return NULL;
    if (kve_is_map(*d->start) || kve_is_array(*d->start)) {
        const uint8_t *at;
        uint32_t reason = kve_find_tag(r, d->start, &fault.tag, &at);
        if (reason == 0 && kve_tag_type(fault.tag) == 0)
            reason = KVE_FAULT_UNKNOWN_TAG;
        if (reason != 0 && fault.reason != KVE_FAULT_TOO_MANY_EVENTS) {
            fault.reason = reason;
            fault.field = -1;
            fault.offset = (size_t)(at - r->begin);
        }
    }
    fault.raw.data = d->start;
    fault.raw.len = (size_t)(after - d->start);

    b->info.n_faults++;
    if (b->n_faults < b->max_faults) {
        if (b->n_faults == b->cap_faults &&
            !grow(&b->faults, &b->cap_faults, b->max_faults,
                sizeof(b->faults[0])))
            return kve_no_memory(r, d->start);
        b->faults[b->n_faults++] = fault;
    }
    return after;
}

/* The event at p, which is the index-th. NULL when reading cannot go on. */
static __attribute__((noinline)) const uint8_t *
read_event(struct kve_decoder *d, const uint8_t *p, size_t index)
{
    struct kve_batch *b = d->batch;
    struct kve_reader *r = &d->r;
    const uint8_t *after;

    d->start = p;
    if (p == r->end)
        return kve_cut(r);
    if (KVE_UNLIKELY(b->info.n_events == b->max_events)) {
        (void)kve_fault_at(r, KVE_FAULT_TOO_MANY_EVENTS, -1, p);
        return record_fault(d, index);
    }
    if (KVE_UNLIKELY(b->info.n_events == b->cap_events) &&
        !grow(&b->events, &b->cap_events, b->max_events, sizeof(b->events[0])))
        return kve_no_memory(r, p);

    struct kve_event *ev = &b->events[b->info.n_events];
    struct kve_arena_mark mark = { b->arena.blocks, d->arena_at };
    size_t tokens = d->n_tokens;
    size_t hashes = d->n_hashes;
    size_t unknown = d->n_unknown;

    kve_zero(ev, sizeof(*ev));
    if (b->n_blank > b->info.n_events)
        b->n_blank = b->info.n_events;
    d->tag = (struct kve_str){ NULL, 0 };
    d->has_hashes = false;
    d->given = 0;
    d->aliased = 0;
    d->n_fields = 0;

    if (kve_is_map(*p))
        after = kve_decode_map(d, p, ev);
    else if (kve_is_array(*p))
        after = kve_decode_array(d, p, ev);
    else
        after = kve_fault_at(r, KVE_FAULT_NOT_AN_EVENT, -1, p);

    if (KVE_UNLIKELY(after == NULL)) {
        kve_arena_return(&b->arena, mark);
        d->n_tokens = tokens;
        d->n_hashes = hashes;
        d->n_unknown = unknown;
        return r->status != KVE_OK ? NULL : record_fault(d, index);
    }
    ev->index = index;
    b->info.n_events++;
    d->sum_tokens += ev->n_tokens;
    d->sum_hashes += ev->n_hashes;
    d->notes |= ev->notes;
    return after;
}

/*
 * The usual events from p on, of those from *index on: where the first other
 * one begins, if there is one.
 */
KVE_INLINE const uint8_t *
read_usual_events(
    struct kve_decoder *d, const uint8_t *p, size_t n, size_t *index)
{
    struct kve_batch *b = d->batch;
    size_t room = b->cap_events < b->max_events ? b->cap_events : b->max_events;
    size_t done = b->info.n_events;
    size_t i = *index;

    d->arena_at = b->arena.at;
    for (; i < n && done < room; i++) {
        struct kve_event *ev = &b->events[done];
        uint8_t *at = b->arena.at;

        if (KVE_UNLIKELY(done >= b->n_blank)) {
            kve_zero(ev, sizeof(*ev));
            if (done == b->n_blank)
                b->n_blank++;
        }
        const uint8_t *after = kve_read_usual(d, p, ev, &at);
        b->arena.at = at;
        if (KVE_UNLIKELY(after == NULL))
            break;
        d->arena_at = at;
        p = after;
        ev->index = i;
        done++;
        d->sum_tokens += ev->n_tokens;
        d->sum_hashes += ev->n_hashes;
        d->notes |= ev->notes;
    }
    b->info.n_events = done;
    *index = i;
    return p;
}

/* ------------------------------------------------------------------ */

/*
 * The parts of a batch. A part of the wrong type that the batch can do without
 * is noted; one that it cannot do without makes it no batch: *ret_what says
 * which, and NULL is returned with the status still KVE_OK.
 */

static KVE_COLD const uint8_t *
read_odd_ts(struct kve_decoder *d, const uint8_t *p, const char **ret_what)
{
    struct kve_batch_info *info = &d->batch->info;
    struct kve_reader *r = &d->r;

    if (p == r->end || (*p == 0xcb && kve_left(r, p) < 9))
        return kve_cut(r);
    if (*p == 0xca) {
        float ts;
        if (kve_left(r, p) < 5)
            return kve_cut(r);
        uint32_t bits = kve_get32(p + 1);
        memcpy(&ts, &bits, sizeof(bits));
        info->ts = (double)ts;
        return p + 5;
    }
    if (!kve_is_int(*p)) {
        *ret_what = "ts is no number";
        return kve_skip(r, p) == NULL
            ? NULL
            : kve_fault_at(r, KVE_FAULT_BAD_FIELD, -1, p);
    }

    struct kve_number number;
    p = kve_read_number(r, p, &number);
    if (p == NULL)
        return NULL;
    double ts =
        number.negative ? (double)(int64_t)number.bits : (double)number.bits;
    info->ts = ts > MS_ABOVE ? ts / 1000 : ts;
    info->ts_integer = true;
    return p;
}

static inline const uint8_t *
read_ts(struct kve_decoder *d, const uint8_t *p, const char **ret_what)
{
    if (KVE_UNLIKELY(kve_left(&d->r, p) < 9 || *p != 0xcb))
        return read_odd_ts(d, p, ret_what);
    uint64_t bits = kve_get64(p + 1);
    memcpy(&d->batch->info.ts, &bits, sizeof(bits));
    return p + 9;
}

KVE_INLINE const uint8_t *
read_events(struct kve_decoder *d, const uint8_t *p, const char **ret_what)
{
    struct kve_reader *r = &d->r;
    size_t left = kve_left(r, p);
    size_t n;

    if (left == 0)
        return kve_cut(r);
    if (!kve_is_array(*p)) {
        *ret_what = "events is no array";
        return kve_skip(r, p) == NULL
            ? NULL
            : kve_fault_at(r, KVE_FAULT_BAD_FIELD, -1, p);
    }

    /* Not kve_read_n(): a count that promises too much still leaves the
     * events that are there. */
    uint8_t c = *p;
    if (c == 0xdd && left >= 5) {
        n = kve_get32(p + 1);
        p += 5;
    } else if (c == 0xdc && left >= 3) {
        n = kve_get16(p + 1);
        p += 3;
    } else if (c < 0xa0) {
        n = c & 0x0f;
        p += 1;
    } else {
        return kve_cut(r);
    }

    d->batch->info.n_declared = n;
    for (size_t i = 0;; i++) {
        p = read_usual_events(d, p, n, &i);
        if (KVE_LIKELY(i >= n))
            return p;
        p = read_event(d, p, i);
        if (KVE_UNLIKELY(p == NULL))
            return NULL;
    }
}

static const uint8_t *
read_other(struct kve_decoder *d, const uint8_t *p)
{
    d->batch->info.notes |= KVE_NOTE_UNKNOWN_FIELD;
    return kve_skip(&d->r, p);
}

static inline const uint8_t *
read_rank(struct kve_decoder *d, const uint8_t *p)
{
    struct kve_number number;

    if (KVE_UNLIKELY(p == d->r.end))
        return kve_cut(&d->r);
    if (*p == 0xc0)
        return p + 1;
    if (KVE_LIKELY(*p <= 0x7f)) {
        d->batch->info.rank = (struct kve_int){ *p, true };
        return p + 1;
    }
    if (!kve_is_int(*p))
        return read_other(d, p);

    const uint8_t *after = kve_read_number(&d->r, p, &number);
    if (after == NULL)
        return NULL;
    if (!number.negative && number.bits > INT64_MAX)
        return read_other(d, p);
    d->batch->info.rank = (struct kve_int){ (int64_t)number.bits, true };
    return after;
}

static const uint8_t *
read_publisher_id(struct kve_decoder *d, const uint8_t *p)
{
    struct kve_span body;

    if (p == d->r.end)
        return kve_cut(&d->r);
    if (*p == 0xc0)
        return p + 1;
    if (*p < 0xc4 || *p > 0xc6)
        return read_other(d, p);

    const uint8_t *after = kve_read_body(&d->r, p, &body);
    if (after == NULL)
        return NULL;
    if (body.len != 16)
        return read_other(d, p);
    d->batch->info.publisher_id = body.data;
    return after;
}

KVE_INLINE const uint8_t *
read_array_batch(struct kve_decoder *d, const uint8_t *p, const char **ret_what)
{
    const uint8_t *head = p;
    size_t n;

    p = kve_read_n(&d->r, p, &n);
    if (p == NULL)
        return NULL;
    if (n < 2) {
        *ret_what = "an array of fewer than 2 items";
        return kve_fault_at(&d->r, KVE_FAULT_BAD_FIELD, -1, head);
    }
    p = read_ts(d, p, ret_what);
    if (p != NULL)
        p = read_events(d, p, ret_what);
    if (p == NULL || n == 2)
        return p;
    p = read_rank(d, p);
    if (KVE_LIKELY(n == 3) || p == NULL)
        return p;
    p = read_publisher_id(d, p);
    for (size_t i = 4; p != NULL && i < n; i++)
        p = read_other(d, p);
    return p;
}

enum part { TS, EVENTS, RANK, ID, OTHER };

static enum part
find_part(struct kve_str key)
{
    static const char *const names[] = { [TS] = "ts",
        [EVENTS] = "events",
        [RANK] = "data_parallel_rank",
        [ID] = "publisher_id" };

    for (unsigned i = TS; i < OTHER; i++)
        if (key.len == strlen(names[i]) &&
            memcmp(key.data, names[i], key.len) == 0)
            return (enum part)i;
    return OTHER;
}

static KVE_COLD const uint8_t *
read_map_batch(struct kve_decoder *d, const uint8_t *p, const char **ret_what)
{
    struct kve_reader *r = &d->r;
    const uint8_t *head = p;
    unsigned seen = 0;
    size_t n;

    d->batch->info.map = true;
    p = kve_read_n(r, p, &n);
    for (; p != NULL && n > 0; n--) {
        enum part part = OTHER;
        struct kve_str key = { NULL, 0 };

        if (p == r->end)
            return kve_cut(r);
        if (kve_is_str(*p)) {
            p = kve_read_text(r, p, &key);
            if (p != NULL)
                part = find_part(key);
        } else {
            p = kve_skip(r, p);
        }
        if (p == NULL)
            return NULL;

        /* A part that stands twice counts once: its events must not be
         * delivered twice. */
        if ((seen & 1u << part) != 0)
            part = OTHER;
        seen |= 1u << part;
        if (part == TS)
            p = read_ts(d, p, ret_what);
        else if (part == EVENTS)
            p = read_events(d, p, ret_what);
        else if (part == RANK)
            p = read_rank(d, p);
        else if (part == ID)
            p = read_publisher_id(d, p);
        else
            p = read_other(d, p);
    }
    if (p != NULL && (seen & 3) != 3) {
        *ret_what = "a map without ts or without events";
        return kve_fault_at(r, KVE_FAULT_BAD_FIELD, -1, head);
    }
    return p;
}

/* Text for a payload that could not be read to its end. */
static KVE_COLD kve_status
explain(struct kve_decoder *d, const char *what, struct kve_error *err)
{
    struct kve_batch *b = d->batch;
    struct kve_reader *r = &d->r;
    size_t len = (size_t)(r->end - r->begin);

    if (r->status == KVE_E_TRUNCATED)
        return kve_fail_at(err, r->status, len,
            "batch of %zu bytes ends too early: %zu of %zu events were read",
            len, b->info.n_events + b->info.n_faults, b->info.n_declared);
    if (r->status == KVE_E_MALFORMED)
        return kve_fail_at(err, r->status, (size_t)(r->broken - r->begin),
            "byte %zu of the batch is 0x%02x, which msgpack never uses; %zu "
            "of %zu events were read",
            (size_t)(r->broken - r->begin), (unsigned)*r->broken,
            b->info.n_events + b->info.n_faults, b->info.n_declared);
    if (r->status != KVE_OK)
        return kve_fail_at(err, r->status, (size_t)(r->broken - r->begin),
            "out of memory: batch of %zu bytes, %zu of %zu events were read",
            len, b->info.n_events + b->info.n_faults, b->info.n_declared);

    size_t at = (size_t)(r->at - r->begin);
    bool map = b->info.map;
    kve_batch_clear(b);
    b->info.map = map;
    return kve_fail_at(err, KVE_E_SCHEMA, at,
        "not a batch: %s (byte %zu is 0x%02x); expected [ts, events, rank]",
        what, at, (unsigned)*r->at);
}

kve_status
kve_batch_decode(
    kve_batch *batch, const void *payload, size_t len, struct kve_error *err)
{
    struct kve_decoder d;
    const char *what = "neither an array nor a map";
    const uint8_t *p = payload;

    kve_batch_empty(batch);
    if (len == 0)
        return kve_fail_at(err, KVE_E_TRUNCATED, 0,
            "a batch of 0 bytes; expected [ts, events, rank] as msgpack");

    d.batch = batch;
    d.r.begin = p;
    d.r.end = p + len;
    d.r.status = KVE_OK;
    d.r.reason = 0;
    d.known_list = NULL;
    d.n_tokens = 0;
    d.n_hashes = 0;
    d.n_unknown = 0;
    d.sum_tokens = 0;
    d.sum_hashes = 0;
    d.notes = 0;

    if (KVE_LIKELY(kve_is_array(*p)))
        p = read_array_batch(&d, p, &what);
    else if (kve_is_map(*p))
        p = read_map_batch(&d, p, &what);
    else if (kve_skip(&d.r, p) != NULL)
        p = kve_fault_at(&d.r, KVE_FAULT_BAD_FIELD, -1, p);
    else
        p = NULL;

    batch->info.n_tokens = d.sum_tokens;
    batch->info.n_hashes = d.sum_hashes;
    batch->info.notes |= d.notes;
    if (KVE_UNLIKELY(p == NULL))
        return explain(&d, what, err);
    batch->info.trailing = (size_t)(d.r.end - p);
    return KVE_OK;
}
