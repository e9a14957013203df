/* unicode_text.c - code points inside UTF-8, and the few properties that Python's string methods look at. */
#include "text/chat/unicode_text.h"
#include "base/number.h"
#include "base/utf8.h"
#include "text/unicode.h"
#include <math.h>
#include <stdlib.h>
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

/* ---- case and digits ---- */

/* Code points first, first + step, ... last; what they become lies at a distance. */
struct case_run {
    uint32_t first, last, step;
    int32_t distance;
};
struct case_many {
    uint32_t point, to[UTEXT_CASE_MOST];
};
#include "text/chat/case_tables.inc"
#define COUNT(table) (sizeof(table) / sizeof *(table))

static const struct case_run *find_run(const struct case_run *runs, size_t count, uint32_t point)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (point > runs[mid].last)
            low = mid + 1;
        else if (point < runs[mid].first)
            high = mid;
        else
            return (point - runs[mid].first) % runs[mid].step == 0 ? &runs[mid] : NULL;
    }
    return NULL;
}

size_t utext_change_case(enum utext_case how, uint32_t point, uint32_t to[UTEXT_CASE_MOST])
{
    static const struct {
        const struct case_run *run;
        const struct case_many *many;
        size_t runs, manys;
    } tables[UTEXT_CASES] = {
        [UTEXT_UPPER] = {upper_runs, upper_many, COUNT(upper_runs), COUNT(upper_many)},
        [UTEXT_LOWER] = {lower_runs, lower_many, COUNT(lower_runs), COUNT(lower_many)},
        [UTEXT_TITLE] = {title_runs, title_many, COUNT(title_runs), COUNT(title_many)},
    };
    const struct case_run *run = find_run(tables[how].run, tables[how].runs, point);
    to[0] = run ? (uint32_t)((int32_t)point + run->distance) : point;
    for (size_t i = 0; point >= 0x80 && !run && i < tables[how].manys; i++) {
        const struct case_many *many = &tables[how].many[i];
        if (many->point != point) continue;
        for (size_t n = 0; n < UTEXT_CASE_MOST; n++) to[n] = many->to[n];
        return to[2] ? 3 : 2;
    }
    return 1;
}

static bool is_upper(uint32_t point) { return find_run(capital_runs, COUNT(capital_runs), point); }
static bool is_lower(uint32_t point) { return find_run(small_runs, COUNT(small_runs), point); }

bool utext_has_case(uint32_t point)
{
    return is_upper(point) || is_lower(point) || unicode_classes(point) & UNICODE_LT;
}

bool utext_is_ignored_by_case(uint32_t point)
{
    static const uint32_t signs[] = {'\'', '.',  ':',  '^',    '`',    0xa8,   0xaf,
                                     0xb4, 0xb7, 0xb8, 0x2018, 0x2019, 0x2024, 0x2027};
    for (size_t i = 0; i < COUNT(signs); i++)
        if (point == signs[i]) return true;
    return unicode_classes(point) & (UNICODE_MN | UNICODE_ME | UNICODE_CF | UNICODE_LM);
}

/* The value of a decimal digit of any script, or -1. */
static int decimal(uint32_t point)
{
    for (size_t i = 0; i < COUNT(decimal_ranges) && decimal_ranges[i].first <= point; i++)
        if (point <= decimal_ranges[i].last) return (int)((point - decimal_ranges[i].first) % 10);
    return -1;
}

/* ---- numbers ---- */

enum { NUMBER_MOST = 400 };

/* Text as Python's number parsers see it: blanks around gone, digits in ASCII, underscores between digits gone. */
static bool plain_number(const char *text, size_t len, char out[NUMBER_MOST], size_t *n)
{
    size_t begin = 0, end = len;
    bool digit = false;
    *n = 0;
    utext_strip(text, &begin, &end, NULL, 0, UTEXT_LEFT | UTEXT_RIGHT);
    for (size_t step; begin < end; begin += step) {
        uint32_t point;
        step = utf8_decode(text + begin, end - begin, &point);
        if (step == 0 || *n + 1 >= NUMBER_MOST) return false;
        bool before = digit;
        int value = decimal(point);
        digit = value >= 0;
        if (point == '_') {
            uint32_t next = 0;
            if (!before || !utf8_decode(text + begin + 1, end - begin - 1, &next)) return false;
            if (decimal(next) < 0) return false;
            continue;
        }
        if (value < 0 && point >= 0x80) return false;
        out[(*n)++] = value >= 0 ? (char)('0' + value) : (char)point;
    }
    out[*n] = '\0';
    return *n > 0;
}

bool utext_int(const char *text, size_t len, int64_t *out, bool *huge)
{
    char plain[NUMBER_MOST];
    size_t n;
    *huge = false, *out = 0;
    if (!plain_number(text, len, plain, &n)) return false;
    bool minus = plain[0] == '-';
    size_t at = minus || plain[0] == '+';
    if (!plain[at]) return false;
    for (; plain[at]; at++) {
        if (plain[at] < '0' || plain[at] > '9') return false;
        *huge |= __builtin_mul_overflow(*out, 10, out) || __builtin_sub_overflow(*out, plain[at] - '0', out);
    }
    if (!minus) *huge |= __builtin_sub_overflow(0, *out, out);
    return true;
}

bool utext_float(const char *text, size_t len, double *out)
{
    static const char *const words[] = {"inf", "infinity", "nan"};
    char plain[NUMBER_MOST], lower[NUMBER_MOST];
    size_t n;
    if (!plain_number(text, len, plain, &n)) return false;
    bool minus = plain[0] == '-';
    size_t at = minus || plain[0] == '+';
    for (size_t i = 0; i <= n - at; i++)
        lower[i] = (char)(plain[at + i] >= 'A' && plain[at + i] <= 'Z' ? plain[at + i] + 32 : plain[at + i]);
    for (int i = 0; i < 3; i++)
        if (strcmp(lower, words[i]) == 0) return *out = (i < 2 ? INFINITY : NAN) * (minus ? -1 : 1), true;
    if (n == at || strchr("+-", plain[at])) return false;
    if (strspn(plain + at, "0123456789.eE+-") != n - at) return false;
    if (!number_parse_double(plain + at, n - at, out)) {
        char *end;
        *out = strtod(plain + at, &end); /* beyond the range: infinity or zero, as Python has it */
        if (*end) return false;
    }
    if (minus) *out = -*out;
    return true;
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
