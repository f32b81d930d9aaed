/*
 * output.h - answers as JSON or msgpack, by the same calls.
 *
 * A writer puts values into a growing buffer with a maximum; commas and colons
 * are its business. In msgpack the number of members stands before them, so it
 * is given to begin_map() and begin_array() (JSON ignores it). The first
 * failure sticks in status (KVE_E_NOMEM or KVE_E_LIMIT; the buffer then holds a
 * part of the answer): a caller looks once, at the end.
 *
 * Texts are names that others gave, and need not be UTF-8: bytes that are not
 * become U+FFFD. A number that is not finite is null in JSON.
 *
 * Hot answers are some hundred bytes; number and text go straight to memory
 * that was reserved once.
 */
#ifndef KVE_HTTP_OUTPUT_H
#define KVE_HTTP_OUTPUT_H

#include <kvevents/codec.h>
#include <kvevents/event.h>
#include <kvevents/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct kve_output {
    struct kve_buffer *buf;
    kve_status status;
    bool msgpack;
    bool comma; /* private: something stands before the next value */
};

void kve_output_begin(
    struct kve_output *out, struct kve_buffer *buf, bool msgpack);

void kve_output_map(struct kve_output *out, uint32_t n);
void kve_output_map_end(struct kve_output *out);
void kve_output_array(struct kve_output *out, uint32_t n);
void kve_output_array_end(struct kve_output *out);
/* A key that is plain ASCII without quotes. */
void kve_output_plain_key(struct kve_output *out, const char *key, size_t len);

/* The same; the length of a literal is known to the compiler. */
static inline void
kve_output_key(struct kve_output *out, const char *key)
{
    kve_output_plain_key(out, key, strlen(key));
}

void kve_output_key_text(struct kve_output *out, struct kve_str key);
/* A key that is a text ready as JSON, with quotes; raw is the same plain. */
void kve_output_key_json(
    struct kve_output *out, const char *json, size_t json_len, const char *raw);
/* The same as a value. */
void kve_output_json(
    struct kve_output *out, const char *json, size_t json_len, const char *raw);
void kve_output_text(struct kve_output *out, const char *text);
void kve_output_str(struct kve_output *out, struct kve_str text); /* data NULL:
                                                                     null */
void kve_output_u64(struct kve_output *out, uint64_t number);
void kve_output_i64(struct kve_output *out, int64_t number);
void kve_output_double(struct kve_output *out, double number);
void kve_output_bool(struct kve_output *out, bool value);
void kve_output_null(struct kve_output *out);
/* A hash as a text: decimal for 8 bytes, hex for others. */
void kve_output_hash(struct kve_output *out, const struct kve_hash *hash);
/* A decimal number as a text, or as a key. */
void kve_output_u64_text(struct kve_output *out, uint64_t number);
void kve_output_key_u64(struct kve_output *out, uint64_t number);

#endif
