/*
 * spell.h - payloads written so that a reader of the test can read them.
 *
 *   93 cb4025000000000000 91 [..] 00
 *
 * Hex digits are bytes; spaces do not count; 'text' becomes a msgpack string
 * with its head; "*n" behind a byte repeats it n times in all. The result
 * lies in memory of exactly its size, so that a sanitizer sees a read beyond.
 */
#ifndef KVE_TESTS_SPELL_H
#define KVE_TESTS_SPELL_H

#include <kvevents/codec.h>

/* The caller frees with free(). Ends the program when text is no spelling. */
uint8_t *spell(const char *text, size_t *ret_len);

/* A batch of rank 0 at 10.5 with the events spelled in text. */
uint8_t *spell_batch(unsigned n_events, const char *text, size_t *ret_len);

#endif
