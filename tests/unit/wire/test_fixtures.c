/*
 * test_fixtures.c - what real engines sent, decoded, encoded and broken.
 *
 * ctest-timeout: 300
 *
 * tests/wire/fixtures/ holds messages recorded from a real engine and samples
 * made by the classes of 17 releases, each with its meaning in JSON. Here
 * each is decoded and compared with that, written again and compared byte for
 * byte, and cut and damaged at every byte. Payloads lie against a page that
 * cannot be read, so a read behind their end ends the test. All is done once
 * with each variant of the token code that this CPU can run.
 */
#include "want.h"

#include "wire/tokens.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One line of a fixture file. */
struct record {
    char name[160];
    json_t *line;
    uint8_t *payload; /* NULL for a replay record */
    size_t len;
};

static struct record *records;
static size_t n_records;
static size_t longest;

static struct record *
add_record(const char *file, size_t number, json_t *line)
{
    struct want_why why;

    records = realloc(records, (n_records + 1) * sizeof(*records));
    if (records == NULL)
        fail_msg("out of memory");

    struct record *r = &records[n_records++];
    memset(r, 0, sizeof(*r));
    (void)snprintf(r->name, sizeof(r->name), "%s:%zu", file, number);
    r->line = line;

    const json_t *hex = json_object_get(line, "payload");
    if (hex != NULL && !want_hex(hex, &r->payload, &r->len, &why))
        fail_msg("%s: %s", r->name, why.text);
    if (r->len > longest)
        longest = r->len;
    return r;
}

static void
read_file(const char *folder, const char *file)
{
    char path[512], *line = NULL;
    size_t cap = 0, number = 0;
    ssize_t len;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, file);
    FILE *f = fopen(path, "r");
    if (f == NULL)
        fail_msg("cannot open %s", path);
    while ((len = getline(&line, &cap, f)) > 0) {
        struct want_why why;
        json_t *root = want_parse(line, (size_t)len, &why);

        number++;
        if (root == NULL)
            fail_msg("%s:%zu: %s", file, number, why.text);
        add_record(file, number, root);
    }
    free(line);
    (void)fclose(f);
}

static int
setup(void **state)
{
    const char *root = getenv("KVEVENTS_SOURCE_DIR");
    char folder[400];
    size_t i;
    json_t *name;

    (void)state;
    (void)snprintf(folder, sizeof(folder), "%s/tests/wire/fixtures",
        root != NULL ? root : ".");
    json_t *names = want_files(folder, ".jsonl");
    json_array_foreach(names, i, name)
        read_file(folder, json_string_value(name));
    json_decref(names);
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_records; i++) {
        json_decref(records[i].line);
        free(records[i].payload);
    }
    free(records);
    records = NULL;
    n_records = 0;
    return 0;
}

static kve_batch *
new_batch(void)
{
    kve_batch *batch = NULL;

    assert_int_equal(kve_batch_create(NULL, &batch, NULL), KVE_OK);
    return batch;
}

static void
must_decode(kve_batch *batch, const struct record *r, const uint8_t *payload,
    size_t len)
{
    struct kve_error err = { 0 };
    struct want_why why;
    kve_status status = kve_batch_decode(batch, payload, len, &err);

    if (status != KVE_OK)
        fail_msg("%s: %s: %s", r->name, kve_status_name(status), err.detail);
    if (!want_sane(batch, payload, len, &why))
        fail_msg("%s: %s", r->name, why.text);
    if (kve_batch_fault(batch, 0) != NULL)
        fail_msg("%s: fault %s", r->name,
            kve_fault_str(kve_batch_fault(batch, 0)->reason));
}

/* Compare the batch's events with the record's; as_map: as we rewrote them. */
static void
must_be_wire(kve_batch *batch, const struct record *r, bool as_map)
{
    const json_t *wire = json_object_get(r->line, "wire");
    const json_t *events = json_array_get(wire, 1);
    const json_t *rank = json_array_get(wire, 2);
    const struct kve_batch_info *info = kve_batch_get_info(batch);

    if (info->ts != json_number_value(json_array_get(wire, 0)))
        fail_msg("%s: ts %.17g", r->name, info->ts);
    if (info->ts_integer || info->map || info->publisher_id != NULL ||
        info->trailing != 0 || info->n_faults != 0)
        fail_msg("%s: more than was sent", r->name);
    if (info->rank.set != json_is_integer(rank) ||
        (info->rank.set && info->rank.value != json_integer_value(rank)))
        fail_msg("%s: rank %d", r->name, (int)info->rank.value);
    if (info->n_events != json_array_size(events) ||
        info->n_declared != json_array_size(events))
        fail_msg("%s: %zu events of %zu", r->name, info->n_events,
            json_array_size(events));

    for (size_t i = 0; i < info->n_events; i++) {
        json_t *want = want_from_wire(json_array_get(events, i));
        const struct kve_event *event = kve_batch_next(batch);
        struct want_why why;

        if (as_map) {
            json_t *map = want_as_map(want);

            json_decref(want);
            want = map;
        }
        if (!want_event(want, i, event, &why))
            fail_msg("%s: event %zu: %s", r->name, i, why.text);
        json_decref(want);
    }
    assert_null(kve_batch_next(batch));
    kve_batch_rewind(batch);
}

static void
test_decodes_to_what_was_sent(void **state)
{
    struct want_guard guard;
    kve_batch *batch = new_batch();
    size_t n = 0;

    (void)state;
    assert_true(want_guard_init(&guard, longest));
    for (size_t i = 0; i < n_records; i++) {
        const struct record *r = &records[i];

        if (r->payload == NULL)
            continue;
        const uint8_t *at = want_guard_copy(&guard, r->payload, r->len);
        must_decode(batch, r, at, r->len);
        must_be_wire(batch, r, false);
        n++;
    }
    printf("%zu payloads\n", n);
    assert_true(n >= 266);
    kve_batch_destroy(batch);
    want_guard_release(&guard);
}

/* ------------------------------------------------------------------ */

/* The release that made a record: 32 for 0.32.0, which made the recordings. */
static int
release_of(const struct record *r)
{
    const char *text = json_string_value(json_object_get(r->line, "vllm"));
    int minor = 32;

    if (text != NULL && sscanf(text, "0.%d", &minor) != 1)
        fail_msg("%s: release '%s'", r->name, text);
    return minor;
}

/* Write what batch holds again, from a copy of its events. */
static void
must_encode(kve_batch *batch, const struct record *r, enum kve_layout layout,
    struct kve_buffer *out)
{
    const struct kve_batch_info *info = kve_batch_get_info(batch);
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_event *events =
        calloc(info->n_events + 1, sizeof(struct kve_event));
    struct kve_error err = { 0 };

    assert_non_null(events);
    for (size_t i = 0; i < info->n_events; i++)
        events[i] = *kve_batch_next(batch);
    kve_batch_rewind(batch);
    view.ts = info->ts;
    view.rank = info->rank;
    view.publisher_id = info->publisher_id;
    view.events = events;
    view.n_events = info->n_events;

    out->len = 0;
    kve_status status = kve_batch_encode(&view, layout, out, &err);
    if (status != KVE_OK)
        fail_msg("%s: %s: %s", r->name, kve_status_name(status), err.detail);
    free(events);
}

static void
must_equal(const struct record *r, const struct kve_buffer *out)
{
    size_t at = 0;

    while (at < out->len && at < r->len && out->data[at] == r->payload[at])
        at++;
    if (at != out->len || at != r->len)
        fail_msg("%s: other bytes from %zu on (%zu bytes, sent %zu)", r->name,
            at, out->len, r->len);
}

/* The layout a release writes, or -1 for those that are read only. */
static int
layout_of(int release)
{
    if (release >= 33)
        return KVE_LAYOUT_MAP;
    if (release >= 24)
        return KVE_LAYOUT_MAP_SHORT;
    if (release >= 22)
        return KVE_LAYOUT_ARRAY;
    return release == 10 ? KVE_LAYOUT_FIRST : -1;
}

static void
test_encodes_to_the_same_bytes(void **state)
{
    struct kve_buffer out = KVE_BUFFER_INIT;
    kve_batch *batch = new_batch();
    size_t n[5] = { 0 };

    (void)state;
    for (size_t i = 0; i < n_records; i++) {
        const struct record *r = &records[i];
        int layout = layout_of(release_of(r));

        if (layout < 0 || r->payload == NULL)
            continue;
        must_decode(batch, r, r->payload, r->len);
        must_encode(batch, r, (enum kve_layout)layout, &out);
        must_equal(r, &out);
        n[layout]++;

        if (layout == KVE_LAYOUT_FIRST)
            continue;
        must_encode(batch, r, KVE_LAYOUT_KEEP, &out);
        must_equal(r, &out);
        n[KVE_LAYOUT_KEEP]++;
    }
    printf("maps %zu, short maps %zu, arrays %zu, first arrays %zu, kept %zu\n",
        n[KVE_LAYOUT_MAP], n[KVE_LAYOUT_MAP_SHORT], n[KVE_LAYOUT_ARRAY],
        n[KVE_LAYOUT_FIRST], n[KVE_LAYOUT_KEEP]);
    assert_true(n[KVE_LAYOUT_MAP] >= 9 && n[KVE_LAYOUT_MAP_SHORT] >= 199 &&
        n[KVE_LAYOUT_ARRAY] >= 18 && n[KVE_LAYOUT_FIRST] >= 4);
    kve_batch_destroy(batch);
    kve_buffer_release(&out);
}

static void
test_any_layout_rewritten_means_the_same(void **state)
{
    struct kve_buffer out = KVE_BUFFER_INIT;
    kve_batch *batch = new_batch(), *again = new_batch();

    (void)state;
    for (size_t i = 0; i < n_records; i++) {
        const struct record *r = &records[i];

        if (r->payload == NULL)
            continue;
        must_decode(batch, r, r->payload, r->len);
        must_encode(batch, r, KVE_LAYOUT_MAP, &out);
        must_decode(again, r, out.data, out.len);
        must_be_wire(again, r, true);
    }
    kve_batch_destroy(batch);
    kve_batch_destroy(again);
    kve_buffer_release(&out);
}

/* ------------------------------------------------------------------ */

/* The events of got are the first ones of whole. */
static void
must_be_prefix(
    kve_batch *got, kve_batch *whole, const struct record *r, size_t cut)
{
    size_t n = kve_batch_get_info(got)->n_events;

    if (n > kve_batch_get_info(whole)->n_events)
        fail_msg("%s cut at %zu: %zu events", r->name, cut, n);
    kve_batch_rewind(whole);
    kve_batch_rewind(got);
    for (size_t i = 0; i < n; i++) {
        const struct kve_event *a = kve_batch_next(got);
        const struct kve_event *b = kve_batch_next(whole);

        if (a->type != b->type || a->n_hashes != b->n_hashes ||
            a->n_tokens != b->n_tokens || a->seen != b->seen ||
            a->notes != b->notes || a->raw.len != b->raw.len)
            fail_msg("%s cut at %zu: event %zu is another", r->name, cut, i);
    }
}

static void
test_cut_at_every_byte(void **state)
{
    kve_batch *batch = new_batch(), *whole = new_batch();
    struct want_guard guard;
    struct want_why why;
    size_t n = 0;

    (void)state;
    assert_true(want_guard_init(&guard, longest));
    for (size_t i = 0; i < n_records; i++) {
        const struct record *r = &records[i];

        if (r->payload == NULL)
            continue;
        must_decode(whole, r, r->payload, r->len);
        for (size_t cut = 0; cut < r->len; cut++) {
            const uint8_t *at = want_guard_copy(&guard, r->payload, cut);
            struct kve_error err = { 0 };
            kve_status status = kve_batch_decode(batch, at, cut, &err);

            if ((status != KVE_E_TRUNCATED && status != KVE_E_MALFORMED) ||
                err.status != status || err.offset > cut ||
                err.detail[0] == '\0')
                fail_msg("%s cut at %zu: %s at %zu", r->name, cut,
                    kve_status_name(status), err.offset);
            if (!want_sane(batch, at, cut, &why))
                fail_msg("%s cut at %zu: %s", r->name, cut, why.text);
            must_be_prefix(batch, whole, r, cut);
            n++;
        }
    }
    printf("%zu cuts\n", n);
    kve_batch_destroy(batch);
    kve_batch_destroy(whole);
    want_guard_release(&guard);
}

/* Every value at every byte; what it then means is not said, only that it
 * ends well. */
static void
damage(kve_batch *batch, struct want_guard *guard, const struct record *r)
{
    uint8_t *at =
        (uint8_t *)(uintptr_t)want_guard_copy(guard, r->payload, r->len);

    for (size_t i = 0; i < r->len; i++) {
        for (unsigned value = 0; value < 256; value++) {
            struct kve_error err = { 0 };
            struct want_why why;

            at[i] = (uint8_t)value;
            kve_status status = kve_batch_decode(batch, at, r->len, &err);
            if (status != KVE_OK && status != KVE_E_TRUNCATED &&
                status != KVE_E_MALFORMED && status != KVE_E_SCHEMA)
                fail_msg("%s, byte %zu = %u: %s", r->name, i, value,
                    kve_status_name(status));
            if (err.offset > r->len || !want_sane(batch, at, r->len, &why))
                fail_msg("%s, byte %zu = %u: offset %zu, %s", r->name, i, value,
                    err.offset, why.text);
        }
        at[i] = r->payload[i];
    }
}

static void
test_damaged_at_every_byte(void **state)
{
    kve_batch *batch = new_batch();
    struct want_guard guard;
    size_t n = 0;

    (void)state;
    assert_true(want_guard_init(&guard, longest));
    for (size_t i = 0; i < n_records; i++) {
        const struct record *r = &records[i];
        const char *name = json_string_value(json_object_get(r->line, "case"));

        /* Those with the most kinds of fields, old and new. */
        if (name == NULL ||
            (strcmp(name, "all-fields") != 0 && strcmp(name, "mixed") != 0 &&
                strcmp(name, "lora") != 0))
            continue;
        if (release_of(r) != 10 && release_of(r) != 23 && release_of(r) != 33)
            continue;
        damage(batch, &guard, r);
        n++;
    }
    assert_true(n >= 5);
    kve_batch_destroy(batch);
    want_guard_release(&guard);
}

/* ------------------------------------------------------------------ */

static void
test_live_frames(void **state)
{
    size_t n = 0;

    (void)state;
    for (size_t i = 0; i < n_records; i++) {
        const struct record *r = &records[i];
        const json_t *topic = json_object_get(r->line, "topic");
        const json_t *seq_hex = json_object_get(r->line, "seq_hex");
        struct kve_message m;
        struct want_why why;
        uint8_t *number;
        size_t number_len;

        if (topic == NULL)
            continue;
        assert_true(want_hex(seq_hex, &number, &number_len, &why));
        const struct kve_span frames[3] = {
            { (const uint8_t *)json_string_value(topic),
                json_string_length(topic) },
            { number, number_len },
            { r->payload, r->len },
        };
        assert_int_equal(kve_frames_live(frames, 3, &m, NULL), KVE_OK);
        assert_int_equal(m.kind, KVE_MESSAGE_DATA);
        assert_true(m.has_topic);
        assert_int_equal(
            m.number, json_integer_value(json_object_get(r->line, "seq")));
        assert_ptr_equal(m.payload.data, r->payload);
        assert_int_equal(m.payload.len, r->len);
        assert_int_equal(m.topic.len, frames[0].len);
        assert_null(m.publisher_id);
        free(number);
        n++;
    }
    assert_true(n >= 100);
}

/* One recorded answer: data with numbers that rise by one, then the end. */
static void
must_be_answer(const struct record *r, kve_batch *batch)
{
    const json_t *received = json_object_get(r->line, "received");
    uint64_t next = 0;
    bool ended = false;

    for (size_t i = 0; i < json_array_size(received); i++) {
        const json_t *texts = json_array_get(received, i);
        size_t n = json_array_size(texts);
        struct kve_span frames[8] = { { NULL, 0 } };
        uint8_t *bytes[8];
        struct kve_message m;
        struct want_why why;

        assert_true(n <= 8);
        if (n == 0)
            continue; /* recorded: the request got no answer at all */
        for (size_t k = 0; k < n; k++) {
            assert_true(want_hex(
                json_array_get(texts, k), &bytes[k], &frames[k].len, &why));
            frames[k].data = bytes[k];
        }
        if (kve_frames_replay(frames, n, &m, NULL) != KVE_OK)
            fail_msg("%s: answer %zu is no message", r->name, i);
        assert_false(ended);
        if (m.kind == KVE_MESSAGE_END) {
            assert_int_equal(m.number, KVE_NUMBER_END);
            ended = true;
        } else {
            assert_int_equal(m.kind, KVE_MESSAGE_DATA);
            if (next != 0 && m.number != next)
                fail_msg("%s: number %d after %d", r->name, (int)m.number,
                    (int)next - 1);
            next = m.number + 1;
            must_decode(batch, r, m.payload.data, m.payload.len);
        }
        for (size_t k = 0; k < n; k++)
            free(bytes[k]);
    }
}

static void
test_replay_frames(void **state)
{
    kve_batch *batch = new_batch();
    size_t n = 0;

    (void)state;
    for (size_t i = 0; i < n_records; i++) {
        const char *socket =
            json_string_value(json_object_get(records[i].line, "socket"));

        if (socket == NULL || strcmp(socket, "DEALER") != 0)
            continue;
        must_be_answer(&records[i], batch);
        n++;
    }
    assert_true(n >= 10);
    kve_batch_destroy(batch);
}

/* ------------------------------------------------------------------ */

#define MOST_ITEMS 256

static void
test_extra_keys_written_again(void **state)
{
    kve_batch *batch = new_batch();
    struct kve_buffer out = KVE_BUFFER_INIT;
    const struct kve_event *event;
    size_t n = 0, n_items = 0;

    (void)state;
    for (size_t i = 0; i < n_records; i++) {
        const struct record *r = &records[i];

        if (r->payload == NULL)
            continue;
        must_decode(batch, r, r->payload, r->len);
        while ((event = kve_batch_next(batch)) != NULL) {
            struct kve_extra_iter iter = { .keys = event->extra_keys };
            struct kve_extra_item items[MOST_ITEMS];
            size_t k = 0;

            if (event->extra_keys.data == NULL)
                continue;
            while (k < MOST_ITEMS && kve_extra_next(&iter, &items[k]))
                k++;
            out.len = 0;
            assert_int_equal(
                kve_extra_write(items, k, event->n_hashes, &out, NULL), KVE_OK);
            if (out.len != event->extra_keys.len ||
                memcmp(out.data, event->extra_keys.data, out.len) != 0)
                fail_msg("%s: extra keys came out otherwise", r->name);
            n_items += k;
            n++;
        }
    }
    printf("%zu events, %zu items\n", n, n_items);
    assert_true(n >= 100 && n_items >= 20);
    kve_batch_destroy(batch);
    kve_buffer_release(&out);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decodes_to_what_was_sent),
        cmocka_unit_test(test_encodes_to_the_same_bytes),
        cmocka_unit_test(test_any_layout_rewritten_means_the_same),
        cmocka_unit_test(test_cut_at_every_byte),
        cmocka_unit_test(test_damaged_at_every_byte),
        cmocka_unit_test(test_live_frames),
        cmocka_unit_test(test_replay_frames),
        cmocka_unit_test(test_extra_keys_written_again),
    };

    int failed = 0;

    for (int v = 0; v < KVE_TOKENS_N_VARIANTS; v++) {
        if (!want_use_variant(v))
            continue;
        failed += cmocka_run_group_tests_name(
            "wire/fixtures", tests, setup, teardown);
    }
    return failed;
}
