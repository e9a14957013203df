/* unicode_text.c - code points inside UTF-8, and the few properties that Python's string methods look at. */
#include "text/chat/unicode_text.h"
#include "base/utf8.h"
#include <string.h>

size_t utext_step(char first)
{
    unsigned char c = (unsigned char)first;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

size_t utext_count(const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

size_t utext_offset(const char *text, size_t len, size_t n)
{
    size_t at = 0;
    while (at < len && n--) at += utext_step(text[at]);
    return at < len ? at : len;
}

struct range {
    uint32_t first, last;
};

static bool in_ranges(const struct range *ranges, size_t n, uint32_t point)
{
    for (size_t i = 0; i < n && ranges[i].first <= point; i++)
        if (point <= ranges[i].last) return true;
    return false;
}

bool utext_is_space(uint32_t point)
{
    static const struct range spaces[] = {
        {0x09, 0x0d},     {0x1c, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
        {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
    };
    return in_ranges(spaces, sizeof spaces / sizeof *spaces, point);
}

bool utext_is_printable(uint32_t point)
{
    static const struct range hidden[] = {
        {0x00, 0x1f},        {0x7f, 0xa0},     {0xad, 0xad},       {0x600, 0x605},     {0x61c, 0x61c},
        {0x6dd, 0x6dd},      {0x70f, 0x70f},   {0x1680, 0x1680},   {0x180e, 0x180e},   {0x2000, 0x200f},
        {0x2028, 0x202f},    {0x205f, 0x206f}, {0x3000, 0x3000},   {0xd800, 0xf8ff},   {0xfeff, 0xfeff},
        {0xfff0, 0xfffb},    {0xfffe, 0xffff}, {0x1fffe, 0x1ffff}, {0x2fffe, 0x2ffff}, {0x323b0, 0xe00ff},
        {0xe01f0, 0x10ffff},
    };
    return !in_ranges(hidden, sizeof hidden / sizeof *hidden, point);
}

/* Runs of letters whose capital is a fixed distance below the small letter. */
static const struct {
    uint32_t small_first, small_last, distance;
} cases[] = {
    {'a', 'z', 32},     {0xe0, 0xf6, 32},   {0xf8, 0xfe, 32},   {0x3b1, 0x3c1, 32},
    {0x3c3, 0x3cb, 32}, {0x430, 0x44f, 32}, {0x450, 0x45f, 80},
};

uint32_t utext_upper(uint32_t point)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (point >= cases[i].small_first && point <= cases[i].small_last) return point - cases[i].distance;
    return point;
}

uint32_t utext_lower(uint32_t point)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (point + cases[i].distance >= cases[i].small_first &&
            point + cases[i].distance <= cases[i].small_last)
            return point + cases[i].distance;
    return point;
}

static bool strippable(uint32_t point, const char *set, size_t set_len)
{
    if (!set) return utext_is_space(point);
    for (size_t i = 0; i < set_len;) {
        uint32_t other;
        size_t n = utf8_decode(set + i, set_len - i, &other);
        if (n == 0) return false;
        if (other == point) return true;
        i += n;
    }
    return false;
}

void utext_strip(const char *text, size_t *begin, size_t *end, const char *set, size_t set_len, int sides)
{
    uint32_t point;
    while ((sides & UTEXT_LEFT) && *begin < *end) {
        size_t n = utf8_decode(text + *begin, *end - *begin, &point);
        if (n == 0 || !strippable(point, set, set_len)) break;
        *begin += n;
    }
    while ((sides & UTEXT_RIGHT) && *begin < *end) {
        size_t last = *end - 1;
        while (last > *begin && ((unsigned char)text[last] & 0xc0) == 0x80) last--;
        if (utf8_decode(text + last, *end - last, &point) == 0 || !strippable(point, set, set_len)) break;
        *end = last;
    }
}
