/*
 * msgpack.h - reading msgpack one token at a time, and writing it.
 *
 * The library hands out what it does not know as raw msgpack; this shows it
 * to people, and makes it from JSON. A token is a scalar, or the head of an
 * array or map, whose members follow as tokens of their own.
 */
#ifndef KVEVENTS_TOOL_MSGPACK_H
#define KVEVENTS_TOOL_MSGPACK_H

#include <kvevents/event.h>

#include <stdbool.h>

enum msgpack_kind {
    MSGPACK_NIL,
    MSGPACK_BOOL,
    MSGPACK_UINT,
    MSGPACK_INT, /* negative */
    MSGPACK_FLOAT,
    MSGPACK_TEXT,
    MSGPACK_BYTES,
    MSGPACK_EXT,
    MSGPACK_ARRAY,
    MSGPACK_MAP
};

struct msgpack_token {
    enum msgpack_kind kind;
    union {
        bool truth;
        uint64_t uint;
        int64_t sint;
        double real;
        uint32_t count; /* members of an array, pairs of a map */
    };
    struct kve_span data; /* TEXT, BYTES, EXT */
    int8_t ext;
};

/* Read the token at *pos and move on; false when there is none. */
bool msgpack_read(struct kve_span in, size_t *pos, struct msgpack_token *ret);

/* Move *pos behind the value that begins there; false when it has no end. */
bool msgpack_skip(struct kve_span in, size_t *pos);

/* What is written; zeros at first, data is the caller's to free(). */
struct msgpack_buffer {
    uint8_t *data;
    size_t len;
    size_t cap;
};

/* Append a token (and its data), or bytes that are msgpack already; false
 * when memory is out. */
bool msgpack_write(
    struct msgpack_buffer *out, const struct msgpack_token *token);
bool msgpack_append(struct msgpack_buffer *out, const void *bytes, size_t len);

#endif
