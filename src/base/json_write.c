/* json_write.c - the writer keeps only its depth and whether a comma is due. */
#include "base/json.h"
#include "base/number.h"
#include "base/utf8.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

void json_writer_init(struct json_writer *w, struct strbuf *out, int indent)
{
    *w = (struct json_writer){.out = out, .indent = indent, .depth = 0, .first = true};
}

static void escape(struct strbuf *out, unsigned char c)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *known = memchr(from, c, sizeof from - 1);
    if (known)
        strbuf_addf(out, "\\%c", to[known - from]);
    else
        strbuf_addf(out, "\\u%04x", c);
}

/* Bytes that stand for themselves: all of ASCII but what is escaped. */
static size_t plain_run(const char *text, size_t len)
{
    size_t n = 0;
    for (; n < len; n++) {
        unsigned char c = (unsigned char)text[n];
        if (c < 0x20 || c >= 0x7f || c == '"' || c == '\\') break;
    }
    return n;
}

/* Runs are added at once: a stream quotes keys that never change, and a few bytes of text, for each of its tokens. */
void json_quote(struct strbuf *out, const char *text, size_t len)
{
    strbuf_addc(out, '"');
    for (size_t at = 0; at < len;) {
        size_t run = plain_run(text + at, len - at);
        strbuf_addn(out, text + at, run);
        if ((at += run) == len) break;
        unsigned char c = (unsigned char)text[at];
        uint32_t point;
        size_t n = utf8_decode(text + at, len - at, &point);
        if (n == 0)
            strbuf_add(out, "\xef\xbf\xbd");
        else if (c < 0x80)
            escape(out, c);
        else
            strbuf_addn(out, text + at, n);
        at += n ? n : 1;
    }
    strbuf_addc(out, '"');
}

static void new_line(struct json_writer *w)
{
    if (!w->indent) return;
    strbuf_addc(w->out, '\n');
    strbuf_pad(w->out, ' ', (size_t)(w->indent * w->depth));
}

/* The comma and line break before an entry, and its key. */
static void entry_n(struct json_writer *w, const char *key, size_t len)
{
    if (w->depth > 0) {
        if (!w->first) strbuf_addc(w->out, ',');
        new_line(w);
    }
    w->first = false;
    if (!key) return;
    json_quote(w->out, key, len);
    strbuf_add(w->out, w->indent ? ": " : ":");
}

static void entry(struct json_writer *w, const char *key) { entry_n(w, key, key ? strlen(key) : 0); }

static void begin(struct json_writer *w, char bracket)
{
    strbuf_addc(w->out, bracket);
    w->depth++;
    w->first = true;
}

static void end(struct json_writer *w, char bracket)
{
    w->depth--;
    if (!w->first) new_line(w);
    strbuf_addc(w->out, bracket);
    w->first = false;
}

void json_begin_object(struct json_writer *w, const char *key)
{
    entry(w, key);
    begin(w, '{');
}

struct json_writer json_object(struct strbuf *out, int indent)
{
    struct json_writer w;
    json_writer_init(&w, out, indent);
    json_begin_object(&w, NULL);
    return w;
}

void json_end_object(struct json_writer *w) { end(w, '}'); }

void json_begin_array(struct json_writer *w, const char *key)
{
    entry(w, key);
    begin(w, '[');
}

void json_end_array(struct json_writer *w) { end(w, ']'); }

void json_strn(struct json_writer *w, const char *key, const char *value, size_t len)
{
    entry(w, key);
    json_quote(w->out, value, len);
}

void json_str(struct json_writer *w, const char *key, const char *value)
{
    if (value)
        json_strn(w, key, value, strlen(value));
    else
        json_null(w, key);
}

void json_int(struct json_writer *w, const char *key, int64_t value)
{
    char digits[24];
    size_t at = sizeof digits;
    uint64_t left = value < 0 ? -(uint64_t)value : (uint64_t)value;
    entry(w, key);
    do digits[--at] = (char)('0' + left % 10);
    while (left /= 10);
    if (value < 0) digits[--at] = '-';
    strbuf_addn(w->out, digits + at, sizeof digits - at);
}

void json_uint(struct json_writer *w, const char *key, uint64_t value)
{
    entry(w, key);
    strbuf_addf(w->out, "%" PRIu64, value);
}

/* A whole value keeps its ".0", so that it reads back as FLOAT and minus zero keeps its sign. */
static void add_double(struct strbuf *out, double value)
{
    char text[NUMBER_TEXT];
    if (!isfinite(value)) {
        strbuf_add(out, "null");
        return;
    }
    strbuf_add(out, number_format_double(text, value));
    if (!strpbrk(text, ".e")) strbuf_add(out, ".0");
}

void json_double(struct json_writer *w, const char *key, double value)
{
    entry(w, key);
    add_double(w->out, value);
}

void json_float(struct json_writer *w, const char *key, float value)
{
    if (!isfinite(value)) return json_null(w, key);
    entry(w, key);
    strbuf_addf(w->out, "%.9g", (double)value);
}

void json_bool(struct json_writer *w, const char *key, bool value)
{
    entry(w, key);
    strbuf_add(w->out, value ? "true" : "false");
}

void json_null(struct json_writer *w, const char *key)
{
    entry(w, key);
    strbuf_add(w->out, "null");
}

/* A value without the comma and key before it. */
static void write_value(struct json_writer *w, const struct node *node)
{
    switch (node ? node->kind : NODE_NULL) {
    case NODE_NULL:
        strbuf_add(w->out, "null");
        break;
    case NODE_BOOL:
        strbuf_add(w->out, node->as.boolean ? "true" : "false");
        break;
    case NODE_INT:
        strbuf_addf(w->out, "%" PRId64, node->as.integer);
        break;
    case NODE_FLOAT:
        add_double(w->out, node->as.real);
        break;
    case NODE_STRING:
        json_quote(w->out, node->as.string.text, node->as.string.len);
        break;
    case NODE_LIST:
    case NODE_MAP:
        begin(w, node->kind == NODE_MAP ? '{' : '[');
        for (size_t i = 0; i < node_count(node); i++) {
            const struct node *child = node_item(node, i);
            entry_n(w, child->key, child->key_len);
            write_value(w, child);
        }
        end(w, node->kind == NODE_MAP ? '}' : ']');
        break;
    }
}

void json_node(struct json_writer *w, const char *key, const struct node *node)
{
    entry(w, key);
    write_value(w, node);
}

void json_plain(struct strbuf *out, const struct node *node)
{
    struct json_writer w;
    if (node->kind == NODE_STRING) {
        strbuf_add(out, node->as.string.text);
        return;
    }
    json_writer_init(&w, out, 0);
    json_node(&w, NULL, node);
}
