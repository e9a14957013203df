/* utf8.c - the encoding by its definition; widths from the few ranges that matter on terminals. */
#include "base/utf8.h"
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

size_t utf8_decode(const char *text, size_t len, uint32_t *point)
{
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] < 0x80) {
        *point = p[0];
        return 1;
    }
    size_t n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || n > len) return 0;
    uint32_t value = p[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        value = value << 6 | (p[i] & 0x3fu);
    }
    if (n == 3 && (value < 0x800 || (value >= 0xd800 && value <= 0xdfff))) return 0;
    if (n == 4 && (value < 0x10000 || value > 0x10ffff)) return 0;
    *point = value;
    return n;
}

size_t utf8_encode(uint32_t point, char out[4])
{
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    size_t n = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, point >>= 6) out[i] = (char)(0x80 | (point & 0x3f));
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(lead[n] | point);
    return n;
}

static bool breaks_line(uint32_t point)
{
    return point < 0x20 || (point >= 0x7f && point < 0xa0) || point == 0x2028 || point == 0x2029;
}

/* How the character of n bytes at `text` is shown; n is 0 when the byte there is none. */
static size_t show(const char *text, size_t n, uint32_t point, char out[8])
{
    if (n && !breaks_line(point)) return memcpy(out, text, n), n;
    if (n && point == '\n') return memcpy(out, "\\n", 2), 2;
    if (n && point == '\t') return memcpy(out, "\\t", 2), 2;
    if (n && point == '\r') return memcpy(out, "\\r", 2), 2;
    if (n > 1) return (size_t)snprintf(out, 8, "\\u%04x", (unsigned)point & 0xffff);
    return (size_t)snprintf(out, 8, "\\x%02x", (unsigned char)*text);
}

size_t utf8_one_line(const char *text, size_t len, char *out, size_t size)
{
    size_t put = 0;
    for (size_t at = 0; at < len;) {
        uint32_t point = 0;
        char shown[8];
        size_t n = utf8_decode(text + at, len - at, &point);
        size_t wide = show(text + at, n, point, shown);
        if (put + wide >= size) break;
        memcpy(out + put, shown, wide);
        put += wide, at += n ? n : 1;
    }
    if (size) out[put] = '\0';
    return put;
}

size_t utf8_valid_prefix(const char *text, size_t len)
{
    size_t at = 0;
    while (at < len) {
        uint32_t point;
        size_t n = utf8_decode(text + at, len - at, &point);
        if (n == 0) break;
        at += n;
    }
    return at;
}

/* Sorted ranges whose characters are not one column wide. */
static const struct width_range {
    uint32_t first, last;
    unsigned width;
} ranges[] = {
    {0x0300, 0x036f, 0},   {0x1100, 0x115f, 2},   {0x200b, 0x200f, 0},   {0x20d0, 0x20ff, 0},
    {0x2e80, 0x303e, 2},   {0x3041, 0x33ff, 2},   {0x3400, 0x4dbf, 2},   {0x4e00, 0x9fff, 2},
    {0xa000, 0xa4cf, 2},   {0xac00, 0xd7a3, 2},   {0xf900, 0xfaff, 2},   {0xfe00, 0xfe0f, 0},
    {0xfe20, 0xfe2f, 0},   {0xfe30, 0xfe6f, 2},   {0xff00, 0xff60, 2},   {0xffe0, 0xffe6, 2},
    {0x1f300, 0x1f64f, 2}, {0x1f680, 0x1f6ff, 2}, {0x1f900, 0x1f9ff, 2}, {0x20000, 0x3fffd, 2},
};

static unsigned point_width(uint32_t point)
{
    if (point < 0x20 || point == 0x7f) return 0;
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0] && point >= ranges[i].first; i++)
        if (point <= ranges[i].last) return ranges[i].width;
    return 1;
}

/* Length of an ANSI sequence "ESC [ ... letter" at text, 0 when there is none. */
static size_t escape_length(const char *text, size_t len)
{
    if (len < 3 || text[0] != '\033' || text[1] != '[') return 0;
    size_t at = 2;
    while (at < len && text[at] >= 0x20 && text[at] < 0x40) at++;
    return at < len ? at + 1 : 0;
}

size_t utf8_width(const char *text, size_t len)
{
    size_t at = 0, width = 0;
    while (at < len) {
        size_t n = escape_length(text + at, len - at);
        if (n == 0) {
            uint32_t point;
            n = utf8_decode(text + at, len - at, &point);
            width += n ? point_width(point) : 1;
            if (n == 0) n = 1;
        }
        at += n;
    }
    return width;
}
