/*
 * recording.c - a file of recorded messages or of events, batch by batch.
 */
#include "recording.h"

#include "command.h"

#include <stdio.h>
#include <string.h>

bool
recording_open(struct recording *recording, const struct command *command,
    const char *name)
{
    struct kve_error err;

    memset(recording, 0, sizeof(*recording));
    if (!input_open(&recording->input, command, name))
        return false;
    recording->in = jsonin_create();
    if (recording->in != NULL &&
        kve_batch_create(NULL, &recording->batch, &err) == KVE_OK)
        return true;
    option_complain(command, "out of memory");
    return false;
}

void
recording_release(struct recording *recording)
{
    input_release(&recording->input);
    jsonin_destroy(recording->in);
    kve_batch_destroy(recording->batch);
    kve_buffer_release(&recording->encoded);
    recording->in = NULL;
    recording->batch = NULL;
}

/* Make a payload of a batch that was written as JSON. */
static bool
encode(struct recording *recording, struct jsonin_item *item,
    struct jsonin_error *error)
{
    struct kve_error err;

    recording->encoded.len = 0;
    if (kve_batch_encode(
            &item->view, KVE_LAYOUT_MAP, &recording->encoded, &err) != KVE_OK) {
        (void)snprintf(error->text, sizeof(error->text), "%s", err.detail);
        return false;
    }
    item->payload.data = recording->encoded.data;
    item->payload.len = recording->encoded.len;
    return true;
}

/* Say what of a payload could not be read. */
static void
report_faults(struct recording *recording)
{
    const struct kve_fault *fault;

    for (size_t i = 0; (fault = kve_batch_fault(recording->batch, i)) != NULL;
         i++) {
        struct jsonin_error error = { .column = 0 };

        (void)snprintf(error.text, sizeof(error.text), "event %zu: %s",
            fault->index, kve_fault_help(fault->reason));
        input_report(&recording->input, &error);
    }
}

/* Decode an item's payload; false when nothing of it can be used. */
static bool
decode(struct recording *recording, const struct jsonin_item *item)
{
    struct jsonin_error error = { .column = 0 };
    struct kve_error err = { .status = KVE_OK };
    kve_status status = kve_batch_decode(
        recording->batch, item->payload.data, item->payload.len, &err);

    if (status != KVE_OK) {
        (void)snprintf(
            error.text, sizeof(error.text), "payload: %.220s", err.detail);
        input_report(&recording->input, &error);
    }
    report_faults(recording);
    return status != KVE_E_SCHEMA;
}

static bool
is_blank(const char *line, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

static void
fill(const struct recording *recording, const struct jsonin_item *item,
    struct recording_item *ret)
{
    ret->batch = recording->batch;
    ret->topic = item->topic;
    ret->source = item->source;
    ret->stream = item->stream;
    ret->notice = item->notice;
    ret->has_number = item->has_number;
    ret->number = item->number;
    ret->hidden = item->hidden;
    ret->snapshot = item->snapshot;
}

/* Read one line; false: it gave nothing. */
static bool
read_line(struct recording *recording, const char *line, size_t len,
    struct recording_item *ret_item, enum recording_result *ret_result)
{
    struct jsonin_error error = { .column = 0 };
    struct jsonin_item item;

    if (is_blank(line, len))
        return false;
    if (!jsonin_line(recording->in, line, len, &item, &error) ||
        (item.kind == JSONIN_BATCH && !encode(recording, &item, &error))) {
        input_report(&recording->input, &error);
        return false;
    }
    *ret_result = RECORDING_NOTICE;
    if (item.kind == JSONIN_NOTHING && item.notice.data == NULL)
        return false;
    if (item.kind != JSONIN_NOTHING) {
        if (!decode(recording, &item))
            return false;
        recording->batches++;
        *ret_result = RECORDING_BATCH;
    }
    fill(recording, &item, ret_item);
    return true;
}

enum recording_result
recording_next(struct recording *recording, struct recording_item *ret_item)
{
    struct input *input = &recording->input;
    enum recording_result result;
    const char *line;
    size_t len;

    for (;;) {
        input_progress(input, recording->batches, "batches");
        switch (lines_next(&input->lines, &line, &len)) {
        case LINES_LINE:
            if (read_line(recording, line, len, ret_item, &result))
                return result;
            break;
        case LINES_TOO_LONG:
            input_report(input, &input_too_long);
            break;
        case LINES_END:
            input_clear_progress(input);
            return RECORDING_END;
        case LINES_INTERRUPTED:
            input_clear_progress(input);
            return RECORDING_ENDED;
        case LINES_ERROR:
            input_failed(input);
            return RECORDING_ENDED;
        }
        if (recording->strict && input->bad > 0)
            return RECORDING_ENDED;
    }
}
