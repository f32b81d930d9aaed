/*
 * test_cases.c - every case of tests/wire/cases, as its line says.
 *
 * ctest-timeout: 300
 *
 * A case is a payload, or the frames of a message, and what must come of it;
 * tests/wire/README.md gives the form. A new case is a new line there and
 * nothing here. Beside what its line says, every payload is also cut at every
 * byte, and none may take more memory or time than its own size allows. All is
 * done once with each variant of the token code that this CPU can run.
 */
#include "want.h"

#include "wire/tokens.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Payloads up to this size are also cut at every byte. */
#define LARGEST_CUT 4096

/* What a batch may hold for a payload of len bytes. The densest thing a
 * payload can ask for is an event of a few bytes, some hundred in a batch. */
static size_t
memory_allowed(size_t len)
{
    return (size_t)1024 * 1024 + 256 * len;
}

static double
cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static size_t
size_option(const json_t *line, const char *name)
{
    return (size_t)json_integer_value(
        json_object_get(json_object_get(line, "opts"), name));
}

static kve_batch *
batch_for(const json_t *line)
{
    struct kve_batch_opts opts = KVE_BATCH_OPTS_INIT;
    kve_batch *batch = NULL;

    opts.max_tokens = size_option(line, "max_tokens");
    opts.max_hashes = size_option(line, "max_hashes");
    opts.max_events = size_option(line, "max_events");
    opts.max_faults = size_option(line, "max_faults");
    assert_int_equal(kve_batch_create(&opts, &batch, NULL), KVE_OK);
    return batch;
}

/* ------------------------------------------------------------------ */

static bool
judge_status(const json_t *want, kve_status got, const struct kve_error *err,
    struct want_why *why)
{
    const char *text = json_string_value(json_object_get(want, "status"));
    const json_t *offset = json_object_get(want, "offset");
    kve_status wanted = KVE_OK;

    if (text != NULL && strcmp(text, "truncated") == 0)
        wanted = KVE_E_TRUNCATED;
    else if (text != NULL && strcmp(text, "malformed") == 0)
        wanted = KVE_E_MALFORMED;
    else if (text != NULL && strcmp(text, "schema") == 0)
        wanted = KVE_E_SCHEMA;
    else if (text != NULL)
        return want_no(why, "status '%s' cannot be stated", text);

    if (got != wanted)
        return want_no(why, "%s at %zu (%s)", kve_status_name(got), err->offset,
            err->detail);
    if (got != KVE_OK && (err->status != got || err->detail[0] == '\0'))
        return want_no(why, "the error has no text, or another status");
    if (offset != NULL && json_integer_value(offset) != (json_int_t)err->offset)
        return want_no(why, "%s at %zu (%s)", kve_status_name(got), err->offset,
            err->detail);
    return true;
}

static bool
judge_publisher(const json_t *want, const uint8_t *got, struct want_why *why)
{
    uint8_t *id;
    size_t len;

    if (want == NULL)
        return got == NULL || want_no(why, "a publisher_id");
    if (!want_hex(want, &id, &len, why))
        return false;
    bool same = got != NULL && len == 16 && memcmp(got, id, 16) == 0;
    free(id);
    return same || want_no(why, "another publisher_id");
}

static bool
judge_info(const json_t *want, const struct kve_batch_info *info, bool whole,
    struct want_why *why)
{
    const json_t *ts = json_object_get(want, "ts");
    const json_t *rank = json_object_get(want, "rank");
    const json_t *declared = json_object_get(want, "declared");

    if (whole && (ts == NULL || rank == NULL))
        return want_no(why, "ts and rank must be stated");
    if (ts != NULL && json_number_value(ts) != info->ts)
        return want_no(why, "ts %.17g", info->ts);
    if (json_is_true(json_object_get(want, "ts_integer")) != info->ts_integer)
        return want_no(why, "ts_integer %d", info->ts_integer);
    if (rank != NULL &&
        (json_is_integer(rank) != info->rank.set ||
            json_integer_value(rank) != info->rank.value))
        return want_no(
            why, "rank %" PRId64 ", set %d", info->rank.value, info->rank.set);
    if (json_is_true(json_object_get(want, "map")) != info->map)
        return want_no(why, "map %d", info->map);
    if (json_integer_value(json_object_get(want, "trailing")) !=
        (json_int_t)info->trailing)
        return want_no(why, "trailing %zu", info->trailing);
    if (declared != NULL &&
        json_integer_value(declared) != (json_int_t)info->n_declared)
        return want_no(why, "n_declared %zu", info->n_declared);
    if (whole && info->n_declared != info->n_events + info->n_faults)
        return want_no(why, "%zu declared, %zu events and %zu faults",
            info->n_declared, info->n_events, info->n_faults);
    return judge_publisher(
        json_object_get(want, "publisher_id"), info->publisher_id, why);
}

static bool
judge_events(const json_t *want, kve_batch *batch, struct want_why *why)
{
    const json_t *events = json_object_get(want, "events");
    size_t i;
    json_t *event;

    if (!json_is_array(events))
        return want_no(why, "events must be stated");
    kve_batch_rewind(batch);
    json_array_foreach(events, i, event)
    {
        const struct kve_event *got = kve_batch_next(batch);
        struct want_why inner;

        if (got == NULL)
            return want_no(
                why, "%zu events, wanted %zu", i, json_array_size(events));
        if (!want_event(event, i, got, &inner))
            return want_no(why, "event %zu: %s", i, inner.text);
    }
    if (kve_batch_next(batch) != NULL)
        return want_no(why, "more events than %zu", json_array_size(events));
    return true;
}

static bool
judge_faults(const json_t *want, kve_batch *batch, struct want_why *why)
{
    const json_t *faults = json_object_get(want, "faults");
    const json_t *number = json_object_get(want, "n_faults");
    size_t got = kve_batch_get_info(batch)->n_faults, i;
    json_t *fault;

    if (json_is_integer(number)) {
        if ((json_int_t)got != json_integer_value(number))
            return want_no(why, "%zu faults", got);
    } else if (number == NULL && got != json_array_size(faults)) {
        fault = NULL;
        return want_no(why, "%zu faults, the first is %s", got,
            got == 0 ? "-" : kve_fault_str(kve_batch_fault(batch, 0)->reason));
    }
    if (!json_is_array(faults))
        return true;
    json_array_foreach(faults, i, fault)
    {
        if (kve_batch_fault(batch, i) == NULL)
            return want_no(why, "%zu faults kept", i);
        if (!want_fault(fault, kve_batch_fault(batch, i), why))
            return false;
    }
    return kve_batch_fault(batch, i) == NULL ||
        want_no(why, "more faults kept than %zu", i);
}

static bool
judge_batch(const json_t *want, kve_batch *batch, const uint8_t *payload,
    size_t len, struct want_why *why)
{
    struct kve_error err = { 0 };
    double before = cpu_seconds();
    kve_status status = kve_batch_decode(batch, payload, len, &err);
    double took = cpu_seconds() - before;

    if (took > 5)
        return want_no(why, "took %.1f s", took);
    if (kve_batch_memory(batch) > memory_allowed(len))
        return want_no(why, "holds %zu bytes for %zu of payload",
            kve_batch_memory(batch), len);
    return judge_status(want, status, &err, why) &&
        want_sane(batch, payload, len, why) && judge_events(want, batch, why) &&
        judge_faults(want, batch, why) &&
        judge_info(want, kve_batch_get_info(batch), status == KVE_OK, why);
}

static bool
judge_cuts(kve_batch *batch, struct want_guard *guard, const uint8_t *payload,
    size_t len, struct want_why *why)
{
    for (size_t cut = 0; cut < len; cut++) {
        const uint8_t *at = want_guard_copy(guard, payload, cut);
        struct kve_error err = { 0 };
        kve_status status = kve_batch_decode(batch, at, cut, &err);

        /* Whole only where the rest was trailing bytes. */
        if (status == KVE_E_NOMEM || status == KVE_E_INVAL || err.offset > cut)
            return want_no(why, "cut at %zu: %s", cut, kve_status_name(status));
        if (!want_sane(batch, at, cut, why))
            return false;
    }
    return true;
}

static bool
judge_case(const json_t *line, struct want_why *why)
{
    const json_t *want = json_object_get(line, "want");
    struct want_guard guard = { NULL, 0, 0 };
    kve_batch *batch = NULL;
    uint8_t *payload = NULL;
    size_t len;
    bool good = false;

    if (!want_hex(json_object_get(line, "hex"), &payload, &len, why))
        return false;
    if (!want_guard_init(&guard, len)) {
        want_no(why, "no guarded page");
        goto out;
    }
    batch = batch_for(line);
    const uint8_t *at = want_guard_copy(&guard, payload, len);

    /* Twice: the second decode must not see what the first left behind. */
    good = judge_batch(want, batch, at, len, why) &&
        judge_batch(want, batch, at, len, why);
    if (good && len <= LARGEST_CUT)
        good = judge_cuts(batch, &guard, payload, len, why);

out:
    kve_batch_destroy(batch);
    if (guard.map != NULL)
        want_guard_release(&guard);
    free(payload);
    return good;
}

/* ------------------------------------------------------------------ */

#define MOST_FRAMES 128

static const char *
kind_name(unsigned kind)
{
    static const char *const names[] = { "?", "data", "reset", "end" };

    return names[kind < 4 ? kind : 0];
}

static bool
same_span(const json_t *hex, struct kve_span got)
{
    struct want_why why;
    uint8_t *bytes;
    size_t len;

    if (!want_hex(hex, &bytes, &len, &why))
        return false;
    bool same =
        len == got.len && (len == 0 || memcmp(bytes, got.data, len) == 0);
    free(bytes);
    return same;
}

static bool
judge_message(
    const json_t *want, const struct kve_message *m, struct want_why *why)
{
    const char *kind = json_string_value(json_object_get(want, "kind"));
    const char *number = json_string_value(json_object_get(want, "number"));
    const json_t *topic = json_object_get(want, "topic");

    if (kind == NULL || strcmp(kind, kind_name(m->kind)) != 0)
        return want_no(why, "kind %s", kind_name(m->kind));
    if (number == NULL || strtoull(number, NULL, 10) != m->number)
        return want_no(why, "number %" PRIu64, m->number);
    if (m->has_topic != (topic != NULL) ||
        (topic != NULL && !same_span(topic, m->topic)))
        return want_no(why, "another topic");
    if (!same_span(json_object_get(want, "payload"), m->payload))
        return want_no(why, "another payload");
    return judge_publisher(
        json_object_get(want, "publisher_id"), m->publisher_id, why);
}

static bool
judge_split(const json_t *line, const struct kve_span *frames, size_t n,
    struct want_why *why)
{
    const json_t *want = json_object_get(line, "want");
    const char *side = json_string_value(json_object_get(line, "side"));
    const char *fault = json_string_value(json_object_get(want, "fault"));
    const struct kve_message untouched = { .kind = 99 };
    struct kve_message m = untouched;
    struct kve_error err = { 0 };

    kve_status status = strcmp(side, "replay") == 0
        ? kve_frames_replay(frames, n, &m, &err)
        : kve_frames_live(frames, n, &m, &err);
    if (fault == NULL)
        return (status == KVE_OK ||
                   want_no(why, "%s",
                       kve_frames_fault_str((unsigned)err.offset))) &&
            judge_message(want, &m, why);
    if (status != KVE_E_MALFORMED)
        return want_no(why, "status %s", kve_status_name(status));
    if (m.kind != 99)
        return want_no(why, "the message was written although it failed");
    if (strcmp(fault, kve_frames_fault_str((unsigned)err.offset)) != 0)
        return want_no(why, "%s", kve_frames_fault_str((unsigned)err.offset));
    return true;
}

static bool
judge_frames(const json_t *line, struct want_why *why)
{
    const json_t *list = json_object_get(line, "frames");
    struct kve_span frames[MOST_FRAMES];
    uint8_t *bytes[MOST_FRAMES];
    size_t n = 0;
    bool good = json_array_size(list) <= MOST_FRAMES;

    for (; good && n < json_array_size(list); n++) {
        good =
            want_hex(json_array_get(list, n), &bytes[n], &frames[n].len, why);
        if (!good)
            break;
        frames[n].data = bytes[n];
    }
    good = good && judge_split(line, frames, n, why);
    while (n > 0)
        free(bytes[--n]);
    return good;
}

/* ------------------------------------------------------------------ */

static size_t n_cases, n_failed;

static void
run_line(const char *file, const char *text, size_t len)
{
    struct want_why why = { "" };
    json_t *line = want_parse(text, len, &why);
    const char *id = json_string_value(json_object_get(line, "id"));
    bool good = line != NULL && id != NULL;

    if (good && json_object_get(line, "frames") != NULL)
        good = judge_frames(line, &why);
    else if (good)
        good = judge_case(line, &why);
    if (!good) {
        n_failed++;
        print_error("%s: %s: %s\n", file, id != NULL ? id : "?", why.text);
    }
    n_cases++;
    json_decref(line);
}

static void
run_file(const char *folder, const char *file)
{
    char path[512], *text = NULL;
    size_t cap = 0;
    ssize_t len;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, file);
    FILE *f = fopen(path, "r");
    if (f == NULL)
        fail_msg("cannot open %s", path);
    while ((len = getline(&text, &cap, f)) > 0)
        run_line(file, text, (size_t)len);
    free(text);
    (void)fclose(f);
}

static void
test_cases_come_out_as_stated(void **state)
{
    const char *root = getenv("KVEVENTS_SOURCE_DIR");
    char folder[400];
    size_t i;
    json_t *name;

    (void)state;
    n_cases = n_failed = 0;
    (void)snprintf(folder, sizeof(folder), "%s/tests/wire/cases",
        root != NULL ? root : ".");
    json_t *names = want_files(folder, ".jsonl");
    json_array_foreach(names, i, name)
        run_file(folder, json_string_value(name));
    json_decref(names);

    printf("%zu cases\n", n_cases);
    if (n_failed > 0)
        fail_msg("%zu of %zu cases failed", n_failed, n_cases);
    assert_true(n_cases >= 330);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases_come_out_as_stated),
    };

    int failed = 0;

    for (int v = 0; v < KVE_TOKENS_N_VARIANTS; v++) {
        if (!want_use_variant(v))
            continue;
        failed += cmocka_run_group_tests_name("wire/cases", tests, NULL, NULL);
    }
    return failed;
}
