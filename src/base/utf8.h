/*
 * utf8.h - which bytes are UTF-8: what comes in must be, what goes out is made
 * to be. RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
 */
#ifndef KVE_BASE_UTF8_H
#define KVE_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Length of the character of more than one byte at p, 0 when it is not valid.
 * left > 0. */
size_t kve_utf8_long(const uint8_t *p, size_t left);

/* The length of the valid UTF-8 that begins text: len when it is all valid. */
size_t kve_utf8_valid(const char *text, size_t len);

#endif
