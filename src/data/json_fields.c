/* json_fields.c - see json_fields.h.
 *
 * One pass. Strings are walked eight bytes at a time until a byte that matters: a quote, a backslash, a control
 * character or the beginning of a longer UTF-8 character. Invariant: `at` never passes `end`, and nothing at or
 * beyond end is read. Recursion is bounded by DEPTH.
 */
#include "data/json_fields.h"
#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

#define DEPTH 128

struct scan {
    char *at, *end, *begin;
    int depth;
    struct json_field *fields;
    int count;
    const char *what; /* set when it fails */
};

const char *json_kind_name(enum json_kind kind)
{
    static const char *const names[] = {"missing",  "text",          "a list", "an object",
                                        "a number", "true or false", "null"};
    return names[kind];
}

static bool fail(struct scan *s, const char *what)
{
    if (!s->what) s->what = what;
    return false;
}

static void skip_blanks(struct scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\r' || *s->at == '\n')) s->at++;
}

#define EACH(byte) (0x0101010101010101u * (uint64_t)(byte))

/* High bit of every byte that ends a plain run; exact up to the first one. */
static inline uint64_t special(uint64_t w)
{
    uint64_t quote = w ^ EACH('"'), slash = w ^ EACH('\\');
    uint64_t low = (w - EACH(0x20)) & ~w;
    return (low | ((quote - EACH(1)) & ~quote) | ((slash - EACH(1)) & ~slash) | w) & EACH(0x80);
}

static inline char *skip_plain(char *at, const char *end)
{
    while (end - at >= 8) {
        uint64_t w;
        memcpy(&w, at, 8);
        uint64_t hit = special(w);
        if (hit) return at + (__builtin_ctzll(hit) >> 3);
        at += 8;
    }
    while (at < end && (unsigned char)*at >= 0x20 && (unsigned char)*at < 0x80 && *at != '"' && *at != '\\')
        at++;
    return at;
}

/* Characters beyond ASCII at s->at; the usual two- and three-byte forms without a call. */
static bool skip_wide(struct scan *s)
{
    while (s->at < s->end && (unsigned char)*s->at >= 0x80) {
        const unsigned char *p = (const unsigned char *)s->at;
        size_t left = (size_t)(s->end - s->at), n = 0;
        if (p[0] >= 0xc2 && p[0] <= 0xdf && left >= 2 && (p[1] & 0xc0) == 0x80) n = 2;
        if (p[0] > 0xe0 && p[0] < 0xed && left >= 3 && (p[1] & 0xc0) == 0x80 && (p[2] & 0xc0) == 0x80) n = 3;
        uint32_t point;
        if (!n) n = utf8_decode(s->at, left, &point);
        if (!n) return fail(s, "a text is not valid UTF-8");
        s->at += n;
    }
    return true;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_hex(const char *at, const char *end, uint32_t *out)
{
    uint32_t value = 0;
    if (end - at < 4) return false;
    for (int i = 0; i < 4; i++) {
        int digit = hex_value(at[i]);
        if (digit < 0) return false;
        value = value << 4 | (uint32_t)digit;
    }
    *out = value;
    return true;
}

/* What follows a backslash. */
static bool skip_escape(struct scan *s)
{
    uint32_t high, low;
    if (s->at == s->end) return fail(s, "the line ends inside a text");
    char c = *s->at;
    if (c != 'u') {
        if (!memchr("\"\\/bfnrt", c, 8)) return fail(s, "unknown escape in a text");
        s->at++;
        return true;
    }
    if (!read_hex(s->at + 1, s->end, &high)) return fail(s, "\\u needs four hexadecimal digits");
    if (high >= 0xdc00 && high <= 0xdfff) return fail(s, "a low surrogate without its high one");
    s->at += 5;
    if (high < 0xd800 || high > 0xdbff) return true;
    bool pair = s->end - s->at >= 6 && s->at[0] == '\\' && s->at[1] == 'u' &&
                read_hex(s->at + 2, s->end, &low) && low >= 0xdc00 && low <= 0xdfff;
    if (!pair) return fail(s, "a high surrogate without its low one");
    s->at += 6;
    return true;
}

/* A string from its opening quote; its inside into at, len, escaped. */
static bool scan_string(struct scan *s, char **at, size_t *len, bool *escaped)
{
    *at = ++s->at;
    *escaped = false;
    for (;;) {
        s->at = skip_plain(s->at, s->end);
        if (s->at == s->end) return fail(s, "the line ends inside a text");
        unsigned char c = (unsigned char)*s->at;
        if (c == '"') break;
        if (c >= 0x80) {
            if (!skip_wide(s)) return false;
        } else if (c == '\\') {
            *escaped = true;
            s->at++;
            if (!skip_escape(s)) return false;
        } else {
            return fail(s, "a control character inside a text; it must be written as an escape");
        }
    }
    *len = (size_t)(s->at++ - *at);
    return true;
}

static size_t skip_digits(struct scan *s)
{
    const char *begin = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9') s->at++;
    return (size_t)(s->at - begin);
}

static bool scan_number(struct scan *s)
{
    if (*s->at == '-') s->at++;
    bool zero = s->at < s->end && *s->at == '0';
    size_t n = skip_digits(s);
    if (n == 0 || (zero && n > 1)) return fail(s, "malformed number");
    if (s->at < s->end && *s->at == '.') {
        s->at++;
        if (!skip_digits(s)) return fail(s, "malformed number");
    }
    if (s->at < s->end && (*s->at | 0x20) == 'e') {
        s->at++;
        if (s->at < s->end && (*s->at == '+' || *s->at == '-')) s->at++;
        if (!skip_digits(s)) return fail(s, "malformed number");
    }
    return true;
}

static bool scan_word(struct scan *s, enum json_kind *kind)
{
    static const struct {
        const char *text;
        size_t len;
        enum json_kind kind;
    } words[] = {{"true", 4, JSON_BOOL}, {"false", 5, JSON_BOOL}, {"null", 4, JSON_NULL}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if ((size_t)(s->end - s->at) < words[i].len || memcmp(s->at, words[i].text, words[i].len)) continue;
        s->at += words[i].len;
        *kind = words[i].kind;
        return true;
    }
    return fail(s, "expected a value");
}

static bool scan_value(struct scan *s, struct json_field *out);

static bool scan_list(struct scan *s)
{
    struct json_field item;
    s->at++;
    skip_blanks(s);
    if (s->at < s->end && *s->at == ']') return s->at++, true;
    for (;;) {
        if (!scan_value(s, &item)) return false;
        skip_blanks(s);
        if (s->at == s->end) return fail(s, "the line ends inside a list");
        if (*s->at == ']') return s->at++, true;
        if (*s->at != ',') return fail(s, "expected ',' or ']'");
        s->at++;
    }
}

/* Which of the fields a key names; NULL for none. */
static struct json_field *wanted(struct scan *s, char *key, size_t len, bool escaped)
{
    char plain[256];
    if (s->depth != 1) return NULL;
    if (escaped) {
        if (len > sizeof plain) return NULL;
        memcpy(plain, key, len);
        key = plain, len = json_unescape(plain, len);
    }
    for (int i = 0; i < s->count; i++)
        if (s->fields[i].name_len == len && !memcmp(s->fields[i].name, key, len)) return &s->fields[i];
    return NULL;
}

static bool scan_object(struct scan *s)
{
    s->at++;
    skip_blanks(s);
    if (s->at < s->end && *s->at == '}') return s->at++, true;
    for (;;) {
        char *key;
        size_t len;
        bool escaped;
        struct json_field value;
        skip_blanks(s);
        if (s->at == s->end) return fail(s, "the line ends inside an object");
        if (*s->at != '"') return fail(s, "expected a key in double quotes");
        if (!scan_string(s, &key, &len, &escaped)) return false;
        struct json_field *f = wanted(s, key, len, escaped);
        skip_blanks(s);
        if (s->at == s->end || *s->at != ':') return fail(s, "expected ':' after a key");
        s->at++;
        if (!scan_value(s, &value)) return false;
        if (f) f->kind = value.kind, f->at = value.at, f->len = value.len, f->escaped = value.escaped;
        skip_blanks(s);
        if (s->at == s->end) return fail(s, "the line ends inside an object");
        if (*s->at == '}') return s->at++, true;
        if (*s->at != ',') return fail(s, "expected ',' or '}'");
        s->at++;
    }
}

static bool scan_value(struct scan *s, struct json_field *out)
{
    bool good;
    skip_blanks(s);
    if (s->at == s->end) return fail(s, "the line ends where a value belongs");
    out->at = s->at, out->escaped = false;
    char c = *s->at;
    if (c == '"') {
        out->kind = JSON_TEXT;
        return scan_string(s, &out->at, &out->len, &out->escaped);
    }
    if (c == '{' || c == '[') {
        out->kind = c == '{' ? JSON_OBJECT : JSON_LIST;
        if (s->depth == DEPTH) return fail(s, "nested more than 128 levels deep");
        s->depth++;
        good = c == '{' ? scan_object(s) : scan_list(s);
        s->depth--;
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        out->kind = JSON_NUMBER;
        good = scan_number(s);
    } else {
        good = scan_word(s, &out->kind);
    }
    if (good) out->len = (size_t)(s->at - out->at);
    return good;
}

bool json_fields(char *line, size_t len, struct json_field *fields, int count, struct json_problem *problem)
{
    struct scan s = {.at = line, .end = line + len, .begin = line, .fields = fields, .count = count};
    struct json_field whole;
    for (int i = 0; i < count; i++) fields[i].kind = JSON_ABSENT, fields[i].name_len = strlen(fields[i].name);
    skip_blanks(&s);
    bool good =
        s.at < s.end && *s.at == '{' ? scan_value(&s, &whole) : fail(&s, "expected an object, '{...}'");
    if (good) {
        skip_blanks(&s);
        if (s.at != s.end) good = fail(&s, "something follows the object");
    }
    if (!good) *problem = (struct json_problem){s.what, (size_t)(s.at - line) + 1};
    return good;
}

size_t json_unescape(char *text, size_t len)
{
    char *in = memchr(text, '\\', len), *out = in, *end = text + len;
    if (!in) return len;
    while (in < end) {
        if (*in != '\\') {
            char *next = memchr(in, '\\', (size_t)(end - in));
            size_t n = (size_t)((next ? next : end) - in);
            memmove(out, in, n);
            out += n, in += n;
            continue;
        }
        static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
        if (in[1] != 'u') {
            *out++ = to[(const char *)memchr(from, in[1], 8) - from];
            in += 2;
            continue;
        }
        uint32_t point = 0, low;
        read_hex(in + 2, end, &point);
        in += 6;
        if (point >= 0xd800 && point <= 0xdbff && read_hex(in + 2, end, &low)) {
            point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
            in += 6;
        }
        char bytes[4];
        size_t n = utf8_encode(point, bytes);
        memcpy(out, bytes, n);
        out += n;
    }
    return (size_t)(out - text);
}
