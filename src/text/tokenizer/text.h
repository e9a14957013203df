/* text.h - iterating over text that is known to be valid UTF-8. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The code point at `at`; adds its length to *len. */
static inline uint32_t text_point(const char *at, size_t *len)
{
    const unsigned char *p = (const unsigned char *)at;
    if (p[0] < 0x80) {
        *len += 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *len += 2;
        return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    }
    if (p[0] < 0xf0) {
        *len += 3;
        return (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    }
    *len += 4;
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}

/* Start of the code point before text[at]; at > 0. */
static inline size_t text_before(const char *text, size_t at)
{
    for (at--; at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80;) at--;
    return at;
}
