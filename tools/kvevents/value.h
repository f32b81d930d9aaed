/*
 * value.h - how one value is written, in two notations.
 *
 * PYTHON is what the example subscriber of vLLM's documentation prints, the
 * repr of Python values: None, 'text', [1, 2]. Bytes are written as h'00ff',
 * the notation of RFC 8949, because they are hashes to be read and compared.
 * Bytes of a string that are no UTF-8, and characters that move the cursor or
 * turn the text around, are written as \x1b or \u202e: what a publisher sends
 * cannot take over a terminal.
 *
 * JSON is for programs. Every output is one valid JSON text in
 * UTF-8, whatever came in:
 *   hash          a string: decimal for an integer; hex for bytes, with "hex:"
 *                 in front of those of 10 bytes and less, which could be read
 *                 as decimal
 *   bytes         {"$bytes": "00ff"}
 *   extension     {"$ext": [5, "00ff"]}
 *   NaN, inf      {"$float": "nan"}
 *   text          bytes that are no UTF-8 become U+FFFD
 *   nested deeper than 32 levels: {"$msgpack": "91..."}, as it came
 *   a map's key that is no text: the text of its JSON
 */
#ifndef KVEVENTS_TOOL_VALUE_H
#define KVEVENTS_TOOL_VALUE_H

#include "out.h"

#include <kvevents/event.h>

enum notation { NOTATION_PYTHON, NOTATION_JSON };

/* How deep msgpack is shown; and how deep JSON is read for it. */
#define VALUE_DEPTH 32

/* Length of the UTF-8 character at p and what it is, or 0 when there is none.
 * len > 0. */
size_t value_character(const unsigned char *p, size_t len, uint32_t *ret_code);

void value_nil(struct out *out, enum notation notation);
void value_text(
    struct out *out, enum notation notation, const char *text, size_t len);
void value_double(struct out *out, enum notation notation, double number);
void value_hash(
    struct out *out, enum notation notation, const struct kve_hash *hash);

/* One msgpack value. Bytes that are none are written as bytes. */
void value_msgpack(
    struct out *out, enum notation notation, struct kve_span raw);

#endif
