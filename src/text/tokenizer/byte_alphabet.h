/* byte_alphabet.h - the printable characters that byte-level vocabularies use for the 256 bytes.
 *
 * The printable bytes of Latin-1 map to themselves, the others to U+0100 onwards in order. A blank is therefore U+0120.
 */
#pragma once

#include "base/utf8.h"
#include <stdbool.h>

enum { BYTE_ALPHABET_MOST = 2 }; /* bytes of UTF-8 for one byte */

static inline uint32_t byte_alphabet_point(unsigned char byte)
{
    if (byte <= 32) return 256 + byte;
    if (byte >= 127 && byte <= 160) return 256 + 33 + (byte - 127u);
    if (byte == 173) return 256 + 67;
    return byte;
}

/* Writes bytes[0..len) in the alphabet; `out` has room for 2 * len. Returns the bytes written. */
static inline size_t byte_alphabet_write(const char *bytes, size_t len, char *out)
{
    size_t at = 0;
    for (size_t i = 0; i < len; i++) {
        char point[4];
        size_t n = utf8_encode(byte_alphabet_point((unsigned char)bytes[i]), point);
        out[at] = point[0];
        if (n == 2) out[at + 1] = point[1];
        at += n;
    }
    return at;
}
