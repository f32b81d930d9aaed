/*
 * data.h - reading of tests/hash/ and of the recordings.
 */
#ifndef TESTS_UNIT_HASH_DATA_H
#define TESTS_UNIT_HASH_DATA_H

#include <jansson.h>
#include <kvevents/event.h>

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

/* Text as a struct kve_str. */
struct kve_str str(const char *text);

/* Hex as bytes in room, which is large enough; returns how many. */
size_t unhex(const char *hex, uint8_t *room);

/* Bytes as hex, in one of a few buffers of the function's own. */
const char *hex(const void *bytes, size_t len);

/* A path under tests/; free it. */
char *data_path(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* All of a file, terminated; free it. Ends the test when it cannot. */
char *data_read(const char *path);

/* JSON of which integers above 2^63-1 become strings. Ends the test when it
 * cannot be read. */
json_t *data_json(const char *text, size_t len);

/* Call each() with every line of a file that is not empty. */
void data_lines(
    const char *path, void (*each)(char *line, void *ctx), void *ctx);

/* Tokens from a JSON list behind those that are there; room for all. */
size_t data_tokens(const json_t *list, uint32_t *tokens, size_t n);

#endif
