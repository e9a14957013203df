/* json_fields.c - see json_fields.h.
 *
 * One pass. Of 64 bytes at a time it is found out, without a branch, which of them matter inside strings: a quote, a
 * backslash, a control character or a byte beyond ASCII; strings are walked from one of these to the next. (To look
 * anew after each escape is to wait for each: on source code that took half as long again.) Where escapes are to be
 * undone, each run between two of them is moved down as soon as its end is known. Invariants: `at` never passes `end`,
 * nothing at or beyond end is read, and nothing at or beyond `at` is written. Recursion is bounded by DEPTH.
 */
#include "data/json_fields.h"
#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

#define DEPTH  128
#define BLOCK  16
#define WINDOW 64

struct scan {
    char *at, *end;
    char *window;  /* the last bytes looked at, at or before `at` */
    uint64_t hits; /* where in them plain runs end; of those behind `at` it says nothing */
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

typedef int8_t block __attribute__((vector_size(BLOCK)));
#define EACH(byte) ((block){} + (int8_t)(byte))

/* A bit of every byte where a plain run ends: bit i % 8 of byte i. Signed, a byte beyond ASCII is below any control
 * character. */
static inline block special(const char *at)
{
    static const block bits = {1, 2, 4, 8, 16, 32, 64, -128, 1, 2, 4, 8, 16, 32, 64, -128};
    block b;
    memcpy(&b, at, BLOCK);
    return ((b < EACH(0x20)) | (b == EACH('"')) | (b == EACH('\\'))) & bits;
}

/* Two neighbours into one, of a and then of b. */
static inline block fold(block a, block b)
{
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) |
           __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

/* Where plain runs end in the WINDOW bytes at `at`: bit i for byte i. */
static inline uint64_t look_at(const char *at)
{
    uint64_t hits;
    block low = fold(special(at), special(at + BLOCK));
    block high = fold(special(at + 2 * BLOCK), special(at + 3 * BLOCK));
    block all = fold(low, high);
    all = fold(all, all);
    memcpy(&hits, &all, sizeof hits);
    return hits;
}

/* look_at for fewer bytes than a window. */
static uint64_t look_near_end(const char *at, size_t left)
{
    char rest[WINDOW] = {0};
    memcpy(rest, at, left);
    return look_at(rest) & (((uint64_t)1 << left) - 1);
}

static inline void look(struct scan *s)
{
    size_t left = (size_t)(s->end - s->at);
    s->window = s->at;
    s->hits = left >= WINDOW ? look_at(s->at) : look_near_end(s->at, left);
}

static inline void skip_plain(struct scan *s)
{
    size_t done = (size_t)(s->at - s->window);
    uint64_t hits = done < WINDOW ? s->hits >> done : 0;
    for (; !hits; hits = s->hits, done = 0) {
        if (done < WINDOW) s->at = s->end - s->window > WINDOW ? s->window + WINDOW : s->end;
        if (s->at == s->end) return;
        look(s);
    }
    s->at += __builtin_ctzll(hits);
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

/* Meaning of a letter after a backslash; 0: handled elsewhere. */
static const char meaning[256] = {['"'] = '"',  ['\\'] = '\\', ['/'] = '/',  ['b'] = '\b',
                                  ['f'] = '\f', ['n'] = '\n',  ['r'] = '\r', ['t'] = '\t'};

/* From the letter after a backslash, when it is none of those. */
static bool skip_point(struct scan *s)
{
    uint32_t high, low;
    if (*s->at != 'u') return fail(s, "unknown escape in a text");
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

/* Skips the characters after a backslash. */
static inline bool skip_escape(struct scan *s)
{
    if (s->at == s->end) return fail(s, "the line ends inside a text");
    if (!meaning[(unsigned char)*s->at]) return skip_point(s);
    s->at++;
    return true;
}

/* Writes what the escape at `slash` stands for; where writing goes on. The escape is checked and is not shorter. */
static inline char *resolve(char *out, const char *slash, const char *end)
{
    uint32_t point = 0, low;
    char plain = meaning[(unsigned char)slash[1]], bytes[4];
    if (plain) return *out = plain, out + 1;
    read_hex(slash + 2, end, &point);
    if (point >= 0xd800 && point <= 0xdbff && read_hex(slash + 8, end, &low))
        point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
    size_t n = utf8_encode(point, bytes);
    memcpy(out, bytes, n);
    return out + n;
}

/* Moves [from, to) down to out; where writing goes on. A block that lies wholly below what it is read from may be
 * written at full width: the bytes too many land on what has been read. */
static inline char *move_down(char *out, const char *from, const char *to, const char *end)
{
    size_t n = (size_t)(to - from);
    if (from - out >= BLOCK && end - to >= BLOCK)
        for (size_t i = 0; i < n; i += BLOCK) memcpy(out + i, from + i, BLOCK);
    else if (from != out)
        memmove(out, from, n);
    return out + n;
}

/* A string from its opening quote; its inside into at, len, escaped. With f->undo its escapes are resolved on the
 * way: everything before `from` has been moved to before `out`. */
static bool scan_string(struct scan *s, struct json_field *f)
{
    char *from = ++s->at, *out = from;
    f->at = from, f->escaped = false;
    for (;;) {
        skip_plain(s);
        if (s->at == s->end) return fail(s, "the line ends inside a text");
        unsigned char c = (unsigned char)*s->at;
        if (c == '\\') {
            char *slash = s->at++;
            if (!skip_escape(s)) return false;
            f->escaped = !f->undo;
            if (!f->undo) continue;
            out = resolve(move_down(out, from, slash, s->end), slash, s->end);
            from = s->at;
        } else if (c == '"') {
            break;
        } else if (c >= 0x80) {
            if (!skip_wide(s)) return false;
        } else {
            return fail(s, "a control character inside a text; it must be written as an escape");
        }
    }
    f->len = (size_t)(move_down(out, from, s->at, s->end) - f->at);
    s->at++;
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
    struct json_field item = {0};
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
static struct json_field *wanted(struct scan *s, const struct json_field *key)
{
    char plain[256];
    const char *at = key->at;
    size_t len = key->len;
    if (s->depth != 1) return NULL;
    if (key->escaped) {
        if (len > sizeof plain) return NULL;
        memcpy(plain, at, len);
        at = plain, len = json_unescape(plain, len);
    }
    for (int i = 0; i < s->count; i++)
        if (s->fields[i].name_len == len && !memcmp(s->fields[i].name, at, len)) return &s->fields[i];
    return NULL;
}

static bool scan_object(struct scan *s)
{
    s->at++;
    skip_blanks(s);
    if (s->at < s->end && *s->at == '}') return s->at++, true;
    for (;;) {
        struct json_field key = {0}, value = {0};
        skip_blanks(s);
        if (s->at == s->end) return fail(s, "the line ends inside an object");
        if (*s->at != '"') return fail(s, "expected a key in double quotes");
        if (!scan_string(s, &key)) return false;
        struct json_field *f = wanted(s, &key);
        value.undo = f && f->undo;
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
        return scan_string(s, out);
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
    struct scan s = {.at = line, .end = line + len, .fields = fields, .count = count};
    struct json_field whole = {0};
    look(&s);
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
    char *from = text, *out = text, *end = text + len, *slash;
    while ((slash = memchr(from, '\\', (size_t)(end - from)))) {
        struct scan s = {.at = slash + 1, .end = end};
        skip_escape(&s);
        out = resolve(move_down(out, from, slash, end), slash, end);
        from = s.at;
    }
    return (size_t)(move_down(out, from, end, end) - text);
}
