/* scan.c - scanners for the patterns of GPT-2, LLaMA 3 and Qwen 2.
 *
 * All three sort characters into letters, numbers, white space and others. ASCII is sorted by one table; a byte
 * above it says WIDE there and sends its code point to the Unicode tables. Alternatives are tried in the order of
 * the pattern; the comments name the one that is being matched.
 */
#include "text/tokenizer/scan.h"
#include "text/tokenizer/text.h"
#include "text/unicode.h"
#include <string.h>

enum { LETTER = 1, NUMBER = 2, SPACE = 4, OTHER = 8, NEWLINE = 16, WIDE = 32 };

#define SP     SPACE
#define NL     (SPACE | NEWLINE)
#define OT     OTHER
#define NU     NUMBER
#define LE     LETTER
#define WI     WIDE
#define X8(c)  c, c, c, c, c, c, c, c
#define X26(c) X8(c), X8(c), X8(c), c, c

static const unsigned char kinds[256] = {
    X8(OT), OT,      SP,     NL,     SP,     SP,     NL,     OT,     OT,     X8(OT), X8(OT), /* 00 */
    SP,     OT,      OT,     OT,     OT,     OT,     OT,     OT,     X8(OT), X8(NU), NU,
    NU,     OT,      OT,     OT,     OT,     OT,     OT,             /* 20 */
    OT,     X26(LE), OT,     OT,     OT,     OT,     OT,             /* 40 */
    OT,     X26(LE), OT,     OT,     OT,     OT,     OT,             /* 60 */
    X8(WI), X8(WI),  X8(WI), X8(WI), X8(WI), X8(WI), X8(WI), X8(WI), /* 80 */
    X8(WI), X8(WI),  X8(WI), X8(WI), X8(WI), X8(WI), X8(WI), X8(WI), /* c0 */
};

static unsigned wide_kind(const char *at, size_t *len)
{
    uint32_t classes = unicode_classes(text_point(at, len));
    if (classes & UNICODE_L) return LETTER;
    if (classes & UNICODE_N) return NUMBER;
    return classes & UNICODE_SPACE ? SPACE : OTHER;
}

/* Kind of the character at `at`; its length is added to *next. */
static inline unsigned kind_at(const char *text, size_t at, size_t *next)
{
    unsigned kind = kinds[(unsigned char)text[at]];
    *next = at;
    if (kind == WIDE) return wide_kind(text + at, next);
    ++*next;
    return kind;
}

/* The end of the run of characters whose kind is in the mask. */
static inline size_t run_of(const char *text, size_t at, size_t len, unsigned mask)
{
    while (at < len) {
        unsigned kind = kinds[(unsigned char)text[at]];
        if (kind & mask) {
            at++;
        } else if (kind == WIDE) {
            size_t next = at;
            if (!(wide_kind(text + at, &next) & mask)) break;
            at = next;
        } else {
            break;
        }
    }
    return at;
}

/* \s+(?!\S)|\s+: all of it at the end of the text, else all but the last, which goes with what follows. */
static size_t spaces(const char *text, size_t at, size_t len)
{
    size_t end = run_of(text, at, len, SPACE);
    if (end == len) return end;
    size_t last = text_before(text, end);
    return last > at ? last : end;
}

/* Length of a contraction after an apostrophe (s t m d re ve ll), or 0. */
static size_t contraction(const char *text, size_t at, size_t len)
{
    char a = at < len ? text[at] : 0, b = at + 1 < len ? text[at + 1] : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 1;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 2;
    return 0;
}

/* contraction in upper or lower case; the long s (U+017F) folds to s. */
static size_t contraction_any_case(const char *text, size_t at, size_t len)
{
    char low[2] = {0, 0};
    for (size_t i = 0; i < 2 && at + i < len; i++) {
        unsigned char c = (unsigned char)text[at + i];
        low[i] = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
    }
    if (low[0] == '\xc5' && low[1] == '\xbf') return 2;
    return contraction(low, 0, 2);
}

size_t scan_gpt2(const char *text, size_t at, size_t len)
{
    if (text[at] == '\'') {
        size_t n = contraction(text, at + 1, len);
        if (n) return at + 1 + n;
    }
    /*  ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+ */
    size_t start = at + (text[at] == ' ' && at + 1 < len), next;
    unsigned kind = kind_at(text, start, &next);
    if (kind & SPACE) return spaces(text, at, len);
    return run_of(text, next, len, kind);
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
 * \s+(?!\S)|\s+ */
static inline size_t scan_cl100k(const char *text, size_t at, size_t len, int digits)
{
    if (text[at] == '\'') {
        size_t n = contraction_any_case(text, at + 1, len);
        if (n) return at + 1 + n;
    }
    size_t next, after = at;
    unsigned kind = kind_at(text, at, &next), second = 0;
    if (kind == LETTER) return run_of(text, next, len, LETTER);
    if (kind == NUMBER) {
        for (int i = 1; i < digits && next < len && kind_at(text, next, &after) == NUMBER; i++) next = after;
        return next;
    }
    if (next < len) second = kind_at(text, next, &after);
    if (second == LETTER && !(kind & NEWLINE)) return run_of(text, after, len, LETTER);
    if (kind == OTHER || (text[at] == ' ' && second == OTHER))
        return run_of(text, run_of(text, next, len, OTHER), len, NEWLINE);
    size_t end = run_of(text, at, len, SPACE), line = end;
    while (line > at && text[line - 1] != '\n' && text[line - 1] != '\r') line--;
    if (line > at) return line; /* \s*[\r\n]+ */
    return spaces(text, at, len);
}

static size_t scan_llama3(const char *text, size_t at, size_t len) { return scan_cl100k(text, at, len, 3); }
static size_t scan_qwen2(const char *text, size_t at, size_t len) { return scan_cl100k(text, at, len, 1); }

#define CL100K(digits)                                                                                       \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits                               \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
    const char *pattern;
    token_scan *scan;
} scanners[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", scan_gpt2},
    {CL100K("{1,3}"), scan_llama3},
    {CL100K(""), scan_qwen2},
};

token_scan *scan_of(const char *pattern, size_t len)
{
    for (size_t i = 0; i < sizeof scanners / sizeof *scanners; i++)
        if (strlen(scanners[i].pattern) == len && memcmp(scanners[i].pattern, pattern, len) == 0)
            return scanners[i].scan;
    return NULL;
}

const char *scan_pattern(size_t index)
{
    return index < sizeof scanners / sizeof *scanners ? scanners[index].pattern : NULL;
}
