/*
 * fuzz_codec.c - any bytes as a batch, and what was read written again.
 *
 * Whatever could be read must be writable, and read again it must say the
 * same. Written a second time in the layout it came in, it must not change.
 */
#include "check.h"

#define MOST_EVENTS 4096

static void
encode(kve_batch *batch, enum kve_layout layout, struct kve_buffer *out)
{
    static struct kve_event events[MOST_EVENTS];
    const struct kve_batch_info *info = kve_batch_get_info(batch);
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    const struct kve_event *ev;
    size_t n = 0;

    kve_batch_rewind(batch);
    while (n < MOST_EVENTS && (ev = kve_batch_next(batch)) != NULL)
        events[n++] = *ev;
    kve_batch_rewind(batch);
    view.ts = info->ts != 0 ? info->ts : 1; /* 0 would be the time of day */
    view.rank = info->rank;
    view.publisher_id = info->publisher_id;
    view.events = events;
    view.n_events = n;
    out->len = 0;
    CHECK(kve_batch_encode(&view, layout, out, NULL) == KVE_OK);
}

static void
check_same_batch(kve_batch *a, kve_batch *b)
{
    const struct kve_batch_info *in = kve_batch_get_info(a);
    const struct kve_batch_info *out = kve_batch_get_info(b);
    const struct kve_event *ev;

    CHECK(in->rank.set == out->rank.set && in->rank.value == out->rank.value);
    CHECK(out->n_faults == 0 && out->trailing == 0 && !out->map);
    CHECK(out->n_events == in->n_events || in->n_events > MOST_EVENTS);
    CHECK((in->publisher_id == NULL) == (out->publisher_id == NULL));
    while ((ev = kve_batch_next(b)) != NULL)
        check_same_event(kve_batch_next(a), ev);
    kve_batch_rewind(a);
    kve_batch_rewind(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static kve_batch *first, *second, *third;
    static struct kve_buffer out, again;

    if (first == NULL) {
        first = check_batch();
        second = check_batch();
        third = check_batch();
    }
    (void)check_decode(first, data, size);

    encode(first, KVE_LAYOUT_MAP, &out);
    CHECK(check_decode(second, out.data, out.len) == KVE_OK);
    check_same_batch(first, second);

    encode(second, KVE_LAYOUT_MAP, &again);
    CHECK(again.len == out.len && memcmp(again.data, out.data, out.len) == 0);

    encode(first, KVE_LAYOUT_KEEP, &again);
    CHECK(check_decode(third, again.data, again.len) == KVE_OK);
    return 0;
}
