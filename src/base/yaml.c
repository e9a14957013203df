/* yaml.c - libyaml's events into a tree.
 *
 * The event being looked at belongs to the parser struct and is deleted before the next is fetched, on every
 * path. Recursion follows collections and is bounded by NODE_DEPTH_MAX. libyaml proves the text is UTF-8.
 */
#include "base/yaml.h"
#include "base/file.h"
#include "base/node_build.h"
#include "base/number.h"
#include <math.h>
#include <string.h>
#include <yaml.h>

#define YAML_FILE_MAX (16ull << 20)

struct reader {
    yaml_parser_t parser;
    yaml_event_t event;
    bool has_event;
    const char *name, *text;
    size_t len;
    int depth;
    struct node_build build;
    struct plim_error *err;
};

static bool one_of(const char *text, size_t len, const char *const *words)
{
    for (; *words; words++)
        if (strlen(*words) == len && memcmp(*words, text, len) == 0) return true;
    return false;
}

/* 0x1F and 0o17. */
static bool based_integer(const char *text, size_t len, int64_t *out)
{
    if (len < 3 || text[0] != '0' || (text[1] != 'x' && text[1] != 'o')) return false;
    int64_t base = text[1] == 'x' ? 16 : 8, value = 0;
    for (size_t i = 2; i < len; i++) {
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        const char *digit = memchr(digits, text[i], 32);
        int64_t d = digit ? (digit - digits) & 15 : base;
        if (d >= base || value > (INT64_MAX - d) / base) return false;
        value = value * base + d;
    }
    *out = value;
    return true;
}

static bool special_float(const char *text, size_t len, double *out)
{
    static const char *const nan_words[] = {".nan", ".NaN", ".NAN", NULL};
    static const char *const inf_words[] = {".inf", ".Inf", ".INF", NULL};
    if (one_of(text, len, nan_words)) {
        *out = NAN;
        return true;
    }
    bool sign = len > 0 && (text[0] == '-' || text[0] == '+');
    if (!one_of(text + sign, len - sign, inf_words)) return false;
    *out = text[0] == '-' ? -INFINITY : INFINITY;
    return true;
}

void yaml_scalar(const char *text, size_t len, struct node *node)
{
    static const char *const null_words[] = {"", "~", "null", "Null", "NULL", NULL};
    static const char *const true_words[] = {"true", "True", "TRUE", NULL};
    static const char *const false_words[] = {"false", "False", "FALSE", NULL};
    bool yes = one_of(text, len, true_words);
    if (one_of(text, len, null_words)) {
        node->kind = NODE_NULL;
    } else if (yes || one_of(text, len, false_words)) {
        node->kind = NODE_BOOL;
        node->as.boolean = yes;
    } else if (number_parse_int64(text, len, &node->as.integer) ||
               based_integer(text, len, &node->as.integer)) {
        node->kind = NODE_INT;
    } else if (number_parse_double(text, len, &node->as.real) || special_float(text, len, &node->as.real)) {
        node->kind = NODE_FLOAT;
    } else {
        node->kind = NODE_STRING;
        node->as.string.text = text;
        node->as.string.len = len;
    }
}

static int event_line(const struct reader *r) { return (int)r->event.start_mark.line + 1; }

static enum plim_status fail(const struct reader *r, const char *what)
{
    return plim_fail(r->err, PLIM_BAD_INPUT, "%s:%d: %s", r->name, event_line(r), what);
}

/* libyaml knows the line of what it could read as characters, and the byte offset otherwise. */
static enum plim_status fail_parser(const struct reader *r)
{
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR) return plim_fail(r->err, PLIM_NO_MEMORY, "%s: out of memory", r->name);
    size_t line = p->problem_mark.line + 1;
    if (p->error == YAML_READER_ERROR) {
        line = 1;
        for (size_t i = 0; i < p->problem_offset && i < r->len; i++) line += r->text[i] == '\n';
    }
    const char *problem = p->problem ? p->problem : "malformed YAML";
    if (p->context && p->error != YAML_READER_ERROR)
        return plim_fail(r->err, PLIM_BAD_INPUT, "%s:%zu: %s %s", r->name, line, problem, p->context);
    return plim_fail(r->err, PLIM_BAD_INPUT, "%s:%zu: %s", r->name, line, problem);
}

static void drop_event(struct reader *r)
{
    if (r->has_event) yaml_event_delete(&r->event);
    r->has_event = false;
}

static enum plim_status next_event(struct reader *r)
{
    drop_event(r);
    if (!yaml_parser_parse(&r->parser, &r->event)) return fail_parser(r);
    r->has_event = true;
    return PLIM_OK;
}

static enum plim_status keep_text(struct reader *r, const char **text, size_t *len)
{
    *len = r->event.data.scalar.length;
    *text = bump_copy(&r->build.doc->store, (const char *)r->event.data.scalar.value, *len);
    return *text ? PLIM_OK : plim_fail(r->err, PLIM_NO_MEMORY, "%s: out of memory", r->name);
}

static enum plim_status refuse_extras(const struct reader *r, const void *anchor, const void *tag)
{
    if (anchor) return fail(r, "anchors (&name) are not accepted; write the value out where it is used");
    if (tag) return fail(r, "tags (!name) are not accepted; put quotes around a value that is text");
    return PLIM_OK;
}

static enum plim_status read_scalar(struct reader *r, struct node *node)
{
    enum plim_status status = refuse_extras(r, r->event.data.scalar.anchor, r->event.data.scalar.tag);
    const char *text = NULL;
    size_t len = 0;
    if (status == PLIM_OK) status = keep_text(r, &text, &len);
    if (status != PLIM_OK) return status;
    if (r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE) {
        yaml_scalar(text, len, node);
    } else {
        node->kind = NODE_STRING;
        node->as.string.text = text;
        node->as.string.len = len;
    }
    return PLIM_OK;
}

static enum plim_status read_node(struct reader *r, struct node *node);

/* The current event is a key of a map. */
static enum plim_status read_key(struct reader *r, struct node *child)
{
    if (r->event.type == YAML_ALIAS_EVENT)
        return fail(r, "aliases (*name) are not accepted; write the value out");
    if (r->event.type != YAML_SCALAR_EVENT) return fail(r, "a key must be a single word or text");
    enum plim_status status = refuse_extras(r, r->event.data.scalar.anchor, r->event.data.scalar.tag);
    if (status == PLIM_OK) status = keep_text(r, &child->key, &child->key_len);
    return status == PLIM_OK ? next_event(r) : status;
}

static enum plim_status read_children(struct reader *r, enum node_kind kind, struct node *node)
{
    size_t mark = r->build.count;
    yaml_event_type_t end = kind == NODE_MAP ? YAML_MAPPING_END_EVENT : YAML_SEQUENCE_END_EVENT;
    for (;;) {
        enum plim_status status = next_event(r);
        if (status != PLIM_OK) return status;
        if (r->event.type == end) return node_build_close(&r->build, mark, kind, node, r->err);
        struct node child = {0};
        int line = event_line(r); /* a map's child is where its key is */
        if (kind == NODE_MAP) status = read_key(r, &child);
        if (status == PLIM_OK) status = read_node(r, &child);
        child.line = line;
        if (status == PLIM_OK) status = node_build_push(&r->build, &child, r->err);
        if (status != PLIM_OK) return status;
    }
}

/* The current event begins a node; afterwards it is the node's last event. */
static enum plim_status read_node(struct reader *r, struct node *node)
{
    node->line = event_line(r);
    yaml_event_type_t type = r->event.type;
    if (type == YAML_SCALAR_EVENT) return read_scalar(r, node);
    if (type == YAML_ALIAS_EVENT) return fail(r, "aliases (*name) are not accepted; write the value out");
    bool map = type == YAML_MAPPING_START_EVENT;
    if (!map && type != YAML_SEQUENCE_START_EVENT) return fail(r, "expected a value");
    enum plim_status status =
        map ? refuse_extras(r, r->event.data.mapping_start.anchor, r->event.data.mapping_start.tag)
            : refuse_extras(r, r->event.data.sequence_start.anchor, r->event.data.sequence_start.tag);
    if (status != PLIM_OK) return status;
    if (r->depth == NODE_DEPTH_MAX) return fail(r, "nested more than 128 levels deep");
    r->depth++;
    status = read_children(r, map ? NODE_MAP : NODE_LIST, node);
    r->depth--;
    return status;
}

/* stream start, [document start, node, document end], stream end */
static enum plim_status read_stream(struct reader *r)
{
    enum plim_status status = next_event(r);
    if (status == PLIM_OK) status = next_event(r);
    if (status != PLIM_OK) return status;
    if (r->event.type == YAML_STREAM_END_EVENT) return PLIM_OK;
    struct node root = {0};
    status = next_event(r);
    if (status == PLIM_OK) status = read_node(r, &root);
    if (status == PLIM_OK) r->build.doc->root = root;
    if (status == PLIM_OK) status = next_event(r);
    if (status == PLIM_OK) status = next_event(r);
    if (status == PLIM_OK && r->event.type != YAML_STREAM_END_EVENT)
        status = fail(r, "a second document begins here; one file holds one");
    return status;
}

enum plim_status yaml_parse(const char *text, size_t len, const char *name, struct doc **out,
                            struct plim_error *err)
{
    *out = NULL;
    /* A byte order mark would count as a column, and what begins in the first one as indented. */
    if (len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) text += 3, len -= 3;
    struct reader r = {.name = name, .text = text, .len = len, .err = err};
    if (!yaml_parser_initialize(&r.parser)) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", name);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, len);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    enum plim_status status = node_build_begin(&r.build, name, NULL, err);
    if (status == PLIM_OK) {
        status = read_stream(&r);
        drop_event(&r);
        *out = node_build_end(&r.build, status);
    }
    yaml_parser_delete(&r.parser);
    return status;
}

enum plim_status yaml_load(const char *path, struct doc **out, struct plim_error *err)
{
    *out = NULL;
    struct strbuf text = STRBUF_INIT;
    enum plim_status status = file_read(path, YAML_FILE_MAX, &text, err);
    if (status == PLIM_OK) status = yaml_parse(strbuf_text(&text), text.len, path, out, err);
    strbuf_release(&text);
    return status;
}
