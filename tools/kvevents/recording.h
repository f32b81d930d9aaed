/*
 * recording.h - a file of recorded messages or of events, batch by batch.
 *
 * What is read are the lines of jsonin.h: messages as they came, and batches
 * and events as watch --format json printed them or as people write them. All
 * become decoded batches, by the library's own encoder and decoder.
 *
 * A payload that breaks off delivers what stood before that byte; an event
 * that cannot be read costs that event. Both are bad lines: said, counted, and
 * passed over.
 */
#ifndef KVEVENTS_TOOL_RECORDING_H
#define KVEVENTS_TOOL_RECORDING_H

#include "input.h"

enum recording_result {
    RECORDING_BATCH,
    RECORDING_NOTICE, /* of watch: clear, begin, swap, abort, lost, ... */
    RECORDING_END,
    RECORDING_ENDED /* too early: a signal, an error (said), a bad line with
                       strict */
};

/* What was read; borrowed until the next. */
struct recording_item {
    kve_batch *batch;     /* BATCH; at its first event */
    struct kve_str topic; /* data NULL: not known */
    struct kve_str source;
    struct kve_str stream;
    struct kve_str notice; /* NOTICE: its type */
    bool has_number;
    uint64_t number;
    bool hidden;   /* belongs to a twin */
    bool snapshot; /* is part of one; number: the last that it includes */
};

struct recording {
    struct input input;
    bool strict;
    struct jsonin *in;
    kve_batch *batch;
    struct kve_buffer encoded;
    uint64_t batches;
};

/* Open a file, or standard input for "-". Complains when it cannot; release
 * it all the same. */
bool recording_open(struct recording *recording, const struct command *command,
    const char *name);
void recording_release(struct recording *recording);

/* The next batch or notice. */
enum recording_result recording_next(
    struct recording *recording, struct recording_item *ret_item);

#endif
