/* json_read.c - a recursive-descent parser over a byte range.
 *
 * Invariants: at <= end at all times and nothing at or beyond end is read; `line` counts the newlines before
 * `at`; recursion is bounded by NODE_DEPTH_MAX. Every failure goes through fail(), which knows file and line.
 */
#include "base/json.h"
#include "base/file.h"
#include "base/node_build.h"
#include "base/number.h"
#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>

#define JSON_FILE_MAX (64ull << 20)

struct parser {
    const char *at, *end;
    const char *name;
    int line, depth;
    struct node_build build;
    struct strbuf scratch;      /* the string being unescaped, where strings are copied */
    size_t scratch_counted;     /* by the quota */
    const char *begin, *string; /* of the text; of the string, behind its quote */
    char *own;                  /* the text again, when strings stay in it; NULL: they are copied */
    size_t made;                /* bytes of the string so far */
    struct plim_error *err;
};

static enum plim_status parse_value(struct parser *p, struct node *node);

static enum plim_status fail(const struct parser *p, const char *what)
{
    return plim_fail(p->err, PLIM_BAD_INPUT, "%s:%d: %s", p->name, p->line, what);
}

static enum plim_status fail_memory(const struct parser *p)
{
    return plim_fail(p->err, PLIM_NO_MEMORY, "%s:%d: out of memory", p->name, p->line);
}

static enum plim_status fail_char(const struct parser *p, const char *expected)
{
    if (p->at == p->end)
        return plim_fail(p->err, PLIM_BAD_INPUT, "%s:%d: expected %s, found the end of the file", p->name,
                         p->line, expected);
    unsigned char c = (unsigned char)*p->at;
    if (c > 0x20 && c < 0x7f)
        return plim_fail(p->err, PLIM_BAD_INPUT, "%s:%d: expected %s, found '%c'", p->name, p->line, expected,
                         c);
    return plim_fail(p->err, PLIM_BAD_INPUT, "%s:%d: expected %s, found byte 0x%02x", p->name, p->line,
                     expected, c);
}

static void skip_blanks(struct parser *p)
{
    for (; p->at < p->end; p->at++) {
        if (*p->at == '\n')
            p->line++;
        else if (*p->at != ' ' && *p->at != '\t' && *p->at != '\r')
            return;
    }
}

static bool next_is(const struct parser *p, char c) { return p->at < p->end && *p->at == c; }

static bool take(struct parser *p, char c)
{
    bool found = next_is(p, c);
    if (found) p->at++;
    return found;
}

/* Four hexadecimal digits at p->at. */
static bool take_hex(struct parser *p, uint32_t *out)
{
    if (p->end - p->at < 4) return false;
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        const char *digit = memchr(digits, p->at[i], 32);
        if (!digit) return false;
        value = value << 4 | (uint32_t)((digit - digits) & 15);
    }
    p->at += 4;
    *out = value;
    return true;
}

/* Appends to the string. In the text itself it fits before what was read of it: escapes only shrink. */
static void add(struct parser *p, const char *bytes, size_t count)
{
    if (p->own)
        memmove(p->own + (p->string - p->begin) + p->made, bytes, count);
    else
        strbuf_addn(&p->scratch, bytes, count);
    p->made += count;
}

/* Takes the digits after "\u": one code point, or a surrogate pair that makes one. */
static enum plim_status take_unicode(struct parser *p)
{
    uint32_t point, low;
    if (!take_hex(p, &point)) return fail(p, "\\u needs four hexadecimal digits");
    if (point >= 0xdc00 && point <= 0xdfff) return fail(p, "a low surrogate without its high one");
    if (point >= 0xd800 && point <= 0xdbff) {
        if (!take(p, '\\') || !take(p, 'u') || !take_hex(p, &low) || low < 0xdc00 || low > 0xdfff)
            return fail(p, "a high surrogate without its low one");
        point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
    }
    char bytes[4];
    add(p, bytes, utf8_encode(point, bytes));
    return PLIM_OK;
}

static enum plim_status take_escape(struct parser *p)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (p->at == p->end) return fail(p, "the file ends inside a string");
    char c = *p->at++;
    if (c == 'u') return take_unicode(p);
    const char *known = memchr(from, c, sizeof from - 1);
    if (!known) return fail(p, "unknown escape in a string; write \\\\ for a backslash");
    add(p, &to[known - from], 1);
    return PLIM_OK;
}

/* Scratch is as large as the longest string and is counted like the rest. */
static enum plim_status scratch_status(struct parser *p)
{
    size_t more = p->scratch.cap - p->scratch_counted;
    if (p->scratch.full || !quota_take(p->build.quota, more))
        return quota_fail(p->build.quota, p->name, p->err);
    p->scratch_counted += more;
    return p->scratch.failed ? fail_memory(p) : PLIM_OK;
}

/* The rest of a string after its opening quote. */
static enum plim_status take_string(struct parser *p)
{
    strbuf_clear(&p->scratch);
    p->string = p->at, p->made = 0;
    for (;;) {
        const char *begin = p->at;
        while (p->at < p->end && (unsigned char)*p->at >= 0x20 && *p->at != '"' && *p->at != '\\') p->at++;
        size_t len = (size_t)(p->at - begin);
        if (utf8_valid_prefix(begin, len) != len) return fail(p, "a string is not valid UTF-8");
        add(p, begin, len);
        if (p->at == p->end) return fail(p, "the file ends inside a string");
        if (take(p, '"')) return scratch_status(p);
        if (!take(p, '\\'))
            return fail(p, "a control character inside a string; write it as an escape, e.g. \\n");
        enum plim_status status = take_escape(p);
        if (status != PLIM_OK) return status;
    }
}

static enum plim_status keep_string(struct parser *p, const char **text, size_t *len)
{
    enum plim_status status = PLIM_OK;
    char *to =
        p->own ? p->own + (p->string - p->begin) : node_build_alloc(&p->build, p->made + 1, &status, p->err);
    if (!to) return status;
    if (!p->own) memcpy(to, strbuf_text(&p->scratch), p->made);
    to[p->made] = '\0';
    *len = p->made, *text = to;
    return PLIM_OK;
}

static enum plim_status parse_string(struct parser *p, struct node *node)
{
    p->at++;
    enum plim_status status = take_string(p);
    if (status != PLIM_OK) return status;
    node->kind = NODE_STRING;
    return keep_string(p, &node->as.string.text, &node->as.string.len);
}

static size_t digits(const struct parser *p, const char *at)
{
    const char *begin = at;
    while (at < p->end && *at >= '0' && *at <= '9') at++;
    return (size_t)(at - begin);
}

/* The end of the number at p->at by JSON's grammar, or NULL; *whole tells whether it is an integer. */
static const char *number_end(const struct parser *p, bool *whole)
{
    const char *at = p->at;
    *whole = true;
    if (at < p->end && *at == '-') at++;
    size_t n = digits(p, at);
    if (n == 0 || (n > 1 && *at == '0')) return NULL;
    at += n;
    if (at < p->end && *at == '.') {
        *whole = false;
        n = digits(p, ++at);
        if (n == 0) return NULL;
        at += n;
    }
    if (at < p->end && (*at == 'e' || *at == 'E')) {
        *whole = false;
        at++;
        if (at < p->end && (*at == '+' || *at == '-')) at++;
        n = digits(p, at);
        if (n == 0) return NULL;
        at += n;
    }
    return at;
}

static enum plim_status parse_number(struct parser *p, struct node *node)
{
    bool whole;
    const char *end = number_end(p, &whole);
    if (!end) return fail(p, "malformed number");
    size_t len = (size_t)(end - p->at);
    if (whole && number_parse_int64(p->at, len, &node->as.integer)) {
        node->kind = NODE_INT;
    } else {
        node->kind = NODE_FLOAT;
        if (!number_parse_double(p->at, len, &node->as.real)) return fail(p, "number out of range");
    }
    p->at = end;
    return PLIM_OK;
}

static enum plim_status parse_word(struct parser *p, struct node *node)
{
    static const struct {
        const char *text;
        enum node_kind kind;
        bool value;
    } words[] = {{"true", NODE_BOOL, true}, {"false", NODE_BOOL, false}, {"null", NODE_NULL, false}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t len = strlen(words[i].text);
        if ((size_t)(p->end - p->at) < len || memcmp(p->at, words[i].text, len) != 0) continue;
        p->at += len;
        node->kind = words[i].kind;
        if (node->kind == NODE_BOOL) node->as.boolean = words[i].value;
        return PLIM_OK;
    }
    return fail_char(p, "a value");
}

/* "key" : of an object's entry. */
static enum plim_status parse_key(struct parser *p, struct node *child)
{
    if (!next_is(p, '"')) return fail_char(p, "a key in double quotes");
    p->at++;
    child->line = p->line;
    enum plim_status status = take_string(p);
    if (status == PLIM_OK) status = keep_string(p, &child->key, &child->key_len);
    if (status != PLIM_OK) return status;
    skip_blanks(p);
    return take(p, ':') ? PLIM_OK : fail_char(p, "':' after a key");
}

/* The entries of a list or map after its opening bracket. */
static enum plim_status parse_entries(struct parser *p, enum node_kind kind, char close, size_t mark,
                                      struct node *node)
{
    skip_blanks(p);
    bool done = take(p, close);
    while (!done) {
        struct node child = {0};
        enum plim_status status = kind == NODE_MAP ? parse_key(p, &child) : PLIM_OK;
        if (status == PLIM_OK) status = parse_value(p, &child);
        if (status == PLIM_OK) status = node_build_push(&p->build, &child, p->err);
        if (status != PLIM_OK) return status;
        skip_blanks(p);
        done = take(p, close);
        if (!done && !take(p, ',')) return fail_char(p, kind == NODE_MAP ? "',' or '}'" : "',' or ']'");
        skip_blanks(p);
        if (!done && next_is(p, close)) return fail(p, "a comma before the closing bracket; remove it");
    }
    return node_build_close(&p->build, mark, kind, node, p->err);
}

static enum plim_status parse_container(struct parser *p, struct node *node)
{
    bool map = *p->at++ == '{';
    if (p->depth == NODE_DEPTH_MAX) return fail(p, "nested more than 128 levels deep");
    p->depth++;
    enum plim_status status =
        parse_entries(p, map ? NODE_MAP : NODE_LIST, map ? '}' : ']', p->build.count, node);
    p->depth--;
    return status;
}

static enum plim_status parse_value(struct parser *p, struct node *node)
{
    skip_blanks(p);
    node->line = p->line;
    if (p->at == p->end) return fail_char(p, "a value");
    char c = *p->at;
    if (c == '{' || c == '[') return parse_container(p, node);
    if (c == '"') return parse_string(p, node);
    if (c == '-' || (c >= '0' && c <= '9')) return parse_number(p, node);
    return parse_word(p, node);
}

static enum plim_status parse(const char *text, size_t len, char *own, const char *name, struct quota *quota,
                              bool last_wins, struct doc **out, struct plim_error *err)
{
    *out = NULL;
    struct parser p = {.at = text, .end = text + len, .begin = text, .own = own};
    p.name = name, p.line = 1, p.err = err;
    enum plim_status status = node_build_begin(&p.build, name, quota, err);
    if (status != PLIM_OK) return status;
    p.build.last_wins = last_wins;
    p.scratch.most = quota_left(quota) < SIZE_MAX ? (size_t)quota_left(quota) + 1 : 0;
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) p.at += 3;
    struct node root = {0};
    status = parse_value(&p, &root);
    if (status == PLIM_OK) {
        p.build.doc->root = root;
        skip_blanks(&p);
        if (p.at != p.end) status = fail_char(&p, "the end of the file");
    }
    strbuf_release(&p.scratch);
    quota_give(quota, p.scratch_counted);
    *out = node_build_end(&p.build, status);
    return status;
}

static struct quota usual_quota(void)
{
    return (struct quota){.most = JSON_TREE_MAX, .why = "the most for JSON"};
}

enum plim_status json_parse_within(const char *text, size_t len, const char *name, struct quota *quota,
                                   struct doc **out, struct plim_error *err)
{
    return parse(text, len, NULL, name, quota, false, out, err);
}

enum plim_status json_parse_record(const char *text, size_t len, const char *name, struct quota *quota,
                                   struct doc **out, struct plim_error *err)
{
    return parse(text, len, NULL, name, quota, true, out, err);
}

enum plim_status json_parse(const char *text, size_t len, const char *name, struct doc **out,
                            struct plim_error *err)
{
    struct quota quota = usual_quota();
    return json_parse_within(text, len, name, &quota, out, err);
}

enum plim_status json_parse_taking(struct strbuf *text, const char *name, struct quota *quota,
                                   struct doc **out, struct plim_error *err)
{
    size_t len;
    char *own = strbuf_detach(text, &len);
    *out = NULL;
    if (!own) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", name);
    enum plim_status status = parse(own, len, own, name, quota, false, out, err);
    if (status == PLIM_OK)
        (*out)->text = own;
    else
        free(own);
    return status;
}

enum plim_status json_load(const char *path, struct doc **out, struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    struct quota quota = usual_quota();
    *out = NULL;
    enum plim_status status = file_read(path, JSON_FILE_MAX, &text, err);
    if (status == PLIM_OK) status = json_parse_taking(&text, path, &quota, out, err);
    strbuf_release(&text);
    return status;
}
