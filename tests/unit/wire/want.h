/*
 * want.h - what a decoded batch should hold, stated as JSON.
 *
 * The data of tests/wire/ says in JSON what each payload means; the functions
 * here compare that with what the decoder delivered. They share no code with
 * the decoder: JSON is read by jansson, raw msgpack values by libmsgpack.
 *
 * An event is stated as an object of its fields by their names on the wire.
 * What is stated must have been seen and be equal (null: seen and nil); what
 * is not stated must not have been seen. Keys that begin with "$" state what
 * is not on the wire; tests/wire/README.md lists them. A key that is not known
 * here fails the test, so that a slip in the data cannot hide anything.
 *
 * jansson refuses integers above 2^63-1, so want_parse() turns them into
 * strings "u64:NNN" first.
 */
#ifndef KVE_TESTS_WANT_H
#define KVE_TESTS_WANT_H

#include <kvevents/codec.h>

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Why a comparison failed; one line, empty while it holds. */
struct want_why {
    char text[400];
};

/* A mapping whose end is the end of readable memory. */
struct want_guard {
    uint8_t *map;
    size_t size;     /* readable, in whole pages */
    size_t map_size; /* with the page that is not */
};

/* Says why and returns false. */
bool want_no(struct want_why *why, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Parse one line of JSON; NULL with the reason in why. */
json_t *want_parse(const char *line, size_t len, struct want_why *why);

/*
 * Bytes from hex: a string, or a list of strings and of
 * {"repeat": hex, "times": n}. The caller frees *ret_bytes with free().
 */
bool want_hex(const json_t *hex, uint8_t **ret_bytes, size_t *ret_len,
    struct want_why *why);

/* The hash is what is stated: an integer, or {"$bytes": hex}. */
bool want_hash(const json_t *want, const struct kve_hash *hash);

/* One whole msgpack value is what is stated. */
bool want_value(const json_t *want, struct kve_span raw, struct want_why *why);

/* All of an event is what is stated; place: in the list of wanted events. */
bool want_event(const json_t *want, size_t place, const struct kve_event *event,
    struct want_why *why);

/* All of a fault is what is stated. */
bool want_fault(
    const json_t *want, const struct kve_fault *fault, struct want_why *why);

/* What holds for every decoded batch, whatever was in it: counts agree,
 * everything borrowed lies where it may. */
bool want_sane(
    kve_batch *batch, const uint8_t *payload, size_t len, struct want_why *why);

/* An event as recorded (array or map) as want_event() takes it; new. */
json_t *want_from_wire(const json_t *event);

/* The same event as it should be after our encoder wrote it as a map; new. */
json_t *want_as_map(const json_t *want);

/* The names in a folder that end in ending, sorted; a list of strings. */
json_t *want_files(const char *folder, const char *ending);

/*
 * Use one variant of the token code (enum kve_tokens_variant) for reading, and
 * the one that goes with it for writing, and say so; false where this CPU
 * cannot run it.
 */
bool want_use_variant(int variant);

/* Room for up to size bytes before a page that cannot be read. */
bool want_guard_init(struct want_guard *guard, size_t size);
void want_guard_release(struct want_guard *guard);

/* A copy of data whose last byte is the last readable one. */
const uint8_t *want_guard_copy(
    struct want_guard *guard, const void *data, size_t len);

#endif
