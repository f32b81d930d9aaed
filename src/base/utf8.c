/*
 * utf8.c - see utf8.h.
 */
#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

#define HIGH UINT64_C(0x8080808080808080)

size_t
kve_utf8_long(const uint8_t *p, size_t left)
{
    uint8_t c = p[0];
    uint8_t least = 0x80, most = 0xbf; /* of the second byte */
    size_t len;

    if (c < 0xc2 || c > 0xf4)
        return 0;
    len = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (c == 0xe0)
        least = 0xa0;
    else if (c == 0xed)
        most = 0x9f;
    else if (c == 0xf0)
        least = 0x90;
    else if (c == 0xf4)
        most = 0x8f;
    if (left < len || p[1] < least || p[1] > most)
        return 0;
    for (size_t i = 2; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    return len;
}

size_t
kve_utf8_valid(const char *text, size_t len)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t i = 0;

    while (i < len) {
        uint64_t eight;
        size_t n;

        if (len - i >= 8) {
            memcpy(&eight, p + i, 8);
            if ((eight & HIGH) == 0) {
                i += 8;
                continue;
            }
        }
        if (p[i] < 0x80) {
            i++;
            continue;
        }
        n = kve_utf8_long(p + i, len - i);
        if (n == 0)
            break;
        i += n;
    }
    return i;
}
