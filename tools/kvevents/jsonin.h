/*
 * jsonin.h - one line of JSON as a message, a batch or an event.
 *
 * A line is one of
 *   a recorded message   {"payload": HEX, "topic": TEXT, ...}
 *   a batch              {"events": [EVENT, ...], "ts": N, "rank": N}
 *   an event             {"type": "BlockStored", "block_hashes": [...], ...}
 * with the names of the wire, so that what watch --format json or raw printed
 * can be published again. Its lines that are no batch are passed over.
 *
 * A hash is an integer or a text: up to 20 decimal digits, or 0x and up to 16
 * hex digits, is an integer; anything else is bytes in hex, with hex: in front
 * or without. Raw values (extra_keys and the like) are JSON; {"$bytes": HEX}
 * stands for bytes.
 *
 * jansson reads the JSON. It knows no integers above 2^63-1, which hashes are
 * all the time: when it complains, such integers are put in quotes and the
 * line is read again.
 */
#ifndef KVEVENTS_TOOL_JSONIN_H
#define KVEVENTS_TOOL_JSONIN_H

#include <kvevents/codec.h>

enum jsonin_kind {
    JSONIN_NOTHING, /* no batch: a notice, statistics */
    JSONIN_PAYLOAD,
    JSONIN_BATCH
};

/* What was read; borrowed from the reader until its next line. */
struct jsonin_item {
    enum jsonin_kind kind;
    struct kve_str topic; /* data NULL: none named */
    struct kve_span payload;
    struct kve_batch_view view; /* BATCH */
    /* What watch adds; absent elsewhere. */
    struct kve_str source;
    struct kve_str stream;
    struct kve_str notice; /* NOTHING: type of a notice */
    bool has_number;
    uint64_t number;
    bool hidden;
    bool snapshot;
};

struct jsonin_error {
    size_t column; /* from 1; 0: the text names the place */
    char text[240];
};

struct jsonin;

/* NULL when memory is out. NULL is allowed for destroy. */
struct jsonin *jsonin_create(void);
void jsonin_destroy(struct jsonin *in);

/* Read one line, without its newline. false: *ret_error says why. */
bool jsonin_line(struct jsonin *in, const char *line, size_t len,
    struct jsonin_item *ret_item, struct jsonin_error *ret_error);

#endif
