/* pickle_read.c - the stack machine of a pickle, as far as it builds values.
 *
 * A list or dictionary is created empty and filled later, so it is a *box* while it is open: a growing array outside the
 * document. Three rules keep the result a finite tree:
 *
 *   1. An open box lies in exactly one slot of the stack. Storing it in another value, or reading it from the memo, closes it:
 *      its children move into the document and the memo gets the finished node.
 *   2. A closed box takes no more children. A value that contains itself has to fill a box after reading it from the memo,
 *      so this refuses all of them.
 *   3. A value's depth is one more than its deepest child's, and limited.
 *
 * Instructions are rows of one table: a name and a function. Those that would import or call something have the function that
 * refuses. Numbers in the file are compared with the bytes that are left before anything is allocated for them.
 */
#include "base/pickle_read.h"
#include "base/node_build.h"
#include "base/number.h"
#include "base/strbuf.h"
#include "base/utf8.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_BOX = -1, LONG_MOST = 1024, MARKS_MOST = 4096 };

struct value {
    struct node node;
    int depth;
    int box;  /* of an open or closed list or dictionary in this slot; NO_BOX: node is the whole value */
    bool set; /* of the memo: this number is taken */
};

struct box {
    struct value *items; /* of a dictionary: key, value, key, value */
    size_t count, cap;
    size_t memo; /* its number there, SIZE_MAX: none */
    int depth, next_free;
    enum node_kind kind;
    bool closed;
    struct node node; /* when closed */
};

struct values {
    struct value *items;
    size_t count, cap;
};

struct reader {
    const unsigned char *bytes, *at, *end, *op; /* op: the instruction under way */
    struct node_build build;
    struct values stack, memo;
    struct box *boxes;
    size_t box_count, box_cap;
    int free_box;
    size_t marks[MARKS_MOST];
    int mark_count;
    size_t memo_next;
    bool stopped;
    struct plim_error *err;
};

typedef enum plim_status (*instruction)(struct reader *r, int64_t arg);

/* --- errors --------------------------------------------------------------------------------------------------------- */

static enum plim_status fail(struct reader *r, const char *what)
{
    return plim_fail(r->err, PLIM_BAD_INPUT, "%s: byte %td: %s", r->build.doc->name, r->op - r->bytes, what);
}

static enum plim_status too_short(struct reader *r) { return fail(r, "the pickle ends too early"); }

static enum plim_status no_memory(struct reader *r)
{
    return plim_fail(r->err, PLIM_NO_MEMORY, "%s: out of memory", r->build.doc->name);
}

/* --- growing arrays ------------------------------------------------------------------------------------------------- */

static enum plim_status grow(struct reader *r, void **items, size_t *cap, size_t each, size_t need)
{
    if (need <= *cap) return PLIM_OK;
    size_t more = *cap * 2 > need ? *cap * 2 : need;
    if (!quota_take(r->build.quota, (more - *cap) * each))
        return quota_fail(r->build.quota, r->build.doc->name, r->err);
    void *got = realloc(*items, more * each);
    if (!got) return no_memory(r);
    *items = got;
    *cap = more;
    return PLIM_OK;
}

static enum plim_status room(struct reader *r, struct values *v, size_t need)
{
    return grow(r, (void **)&v->items, &v->cap, sizeof *v->items, need);
}

static enum plim_status push(struct reader *r, const struct value *value)
{
    enum plim_status status = room(r, &r->stack, r->stack.count + 1);
    if (status == PLIM_OK) r->stack.items[r->stack.count++] = *value;
    return status;
}

static enum plim_status push_node(struct reader *r, struct node node)
{
    return push(r, &(struct value){.node = node, .box = NO_BOX});
}

/* Values above the last mark, or all of them. */
static size_t above(const struct reader *r)
{
    return r->stack.count - (r->mark_count ? r->marks[r->mark_count - 1] : 0);
}

/* --- boxes ---------------------------------------------------------------------------------------------------------- */

static enum plim_status open_box(struct reader *r, enum node_kind kind)
{
    int at = r->free_box;
    if (at < 0 && r->box_count == INT_MAX) return fail(r, "too many values that are not finished");
    if (at < 0) {
        enum plim_status status =
            grow(r, (void **)&r->boxes, &r->box_cap, sizeof *r->boxes, r->box_count + 1);
        if (status != PLIM_OK) return status;
        at = (int)r->box_count++;
        r->boxes[at] = (struct box){0};
    } else {
        r->free_box = r->boxes[at].next_free;
    }
    struct box *b = &r->boxes[at];
    *b = (struct box){.items = b->items, .cap = b->cap, .memo = SIZE_MAX, .kind = kind, .depth = 1};
    return push(r, &(struct value){.box = at});
}

static void drop_box(struct reader *r, int at)
{
    struct box *b = &r->boxes[at];
    if (b->cap > 64) { /* large arrays are rare; small ones serve the next box */
        free(b->items);
        quota_give(r->build.quota, b->cap * sizeof *b->items);
        b->items = NULL, b->cap = 0;
    }
    b->count = 0;
    b->next_free = r->free_box;
    r->free_box = at;
}

/* A key as text: keys that are numbers are written out. */
static enum plim_status set_key(struct reader *r, struct node *child, const struct node *key)
{
    char digits[24];
    child->key = key->as.string.text, child->key_len = key->as.string.len;
    if (key->kind == NODE_STRING) return PLIM_OK;
    if (key->kind != NODE_INT) return fail(r, "a dictionary's key is neither text nor a whole number");
    int n = snprintf(digits, sizeof digits, "%lld", (long long)key->as.integer);
    enum plim_status status = PLIM_OK;
    char *copy = node_build_alloc(&r->build, (size_t)n + 1, &status, r->err);
    if (!copy) return status;
    memcpy(copy, digits, (size_t)n + 1);
    child->key = copy, child->key_len = (size_t)n;
    return PLIM_OK;
}

static enum plim_status close_box(struct reader *r, int at)
{
    struct box *b = &r->boxes[at];
    enum plim_status status = PLIM_OK;
    if (b->closed) return PLIM_OK;
    size_t mark = r->build.count, step = b->kind == NODE_MAP ? 2 : 1;
    for (size_t i = 0; i + step <= b->count && status == PLIM_OK; i += step) {
        struct node child = b->items[i + step - 1].node;
        child.key = NULL, child.key_len = 0;
        if (b->kind == NODE_MAP) status = set_key(r, &child, &b->items[i].node);
        if (status == PLIM_OK) status = node_build_push(&r->build, &child, r->err);
    }
    b->node = (struct node){0};
    if (status == PLIM_OK) status = node_build_close(&r->build, mark, b->kind, &b->node, r->err);
    b->closed = true;
    if (status == PLIM_OK && b->memo != SIZE_MAX)
        r->memo.items[b->memo] = (struct value){b->node, b->depth, NO_BOX, true};
    return status;
}

/* The whole value of a slot that leaves the stack; its box can be used again. */
static enum plim_status take(struct reader *r, struct value *v)
{
    if (v->box == NO_BOX) return PLIM_OK;
    enum plim_status status = close_box(r, v->box);
    int at = v->box;
    *v = (struct value){.node = r->boxes[at].node, .depth = r->boxes[at].depth, .box = NO_BOX};
    drop_box(r, at);
    return status;
}

/* Move the top `n` values of the stack into a box. */
static enum plim_status fill_box(struct reader *r, int at, size_t n)
{
    struct value *from = r->stack.items + r->stack.count - n;
    if (r->boxes[at].closed) return fail(r, "a value that contains itself");
    struct box *b = &r->boxes[at];
    enum plim_status status = grow(r, (void **)&b->items, &b->cap, sizeof *b->items, b->count + n);
    for (size_t i = 0; i < n && status == PLIM_OK; i++) {
        status = take(r, &from[i]);
        if (from[i].depth + 1 > b->depth) b->depth = from[i].depth + 1;
        b->items[b->count++] = from[i];
    }
    r->stack.count -= n;
    if (status == PLIM_OK && b->depth > NODE_DEPTH_MAX) status = fail(r, "values nested too deeply");
    return status;
}

/* --- instructions: values ------------------------------------------------------------------------------------------- */

static enum plim_status op_none(struct reader *r, int64_t)
{
    return push_node(r, (struct node){.kind = NODE_NULL});
}

static enum plim_status op_bool(struct reader *r, int64_t arg)
{
    return push_node(r, (struct node){.kind = NODE_BOOL, .as.boolean = arg != 0});
}

static enum plim_status push_int(struct reader *r, int64_t value)
{
    return push_node(r, (struct node){.kind = NODE_INT, .as.integer = value});
}

static enum plim_status push_float(struct reader *r, double value)
{
    return push_node(r, (struct node){.kind = NODE_FLOAT, .as.real = value});
}

/* The next n bytes, or NULL: there are fewer. */
static const unsigned char *next(struct reader *r, uint64_t n)
{
    if ((uint64_t)(r->end - r->at) < n) return NULL;
    r->at += n;
    return r->at - n;
}

static uint64_t little_endian(const unsigned char *p, size_t n)
{
    uint64_t value = 0;
    while (n--) value = value << 8 | p[n];
    return value;
}

static enum plim_status op_binint(struct reader *r, int64_t width)
{
    const unsigned char *p = next(r, (uint64_t)width);
    if (!p) return too_short(r);
    uint64_t value = little_endian(p, (size_t)width);
    return push_int(r, width == 4 ? (int32_t)value : (int64_t)value);
}

static enum plim_status op_binfloat(struct reader *r, int64_t)
{
    const unsigned char *p = next(r, 8);
    uint64_t bits = 0;
    double value;
    if (!p) return too_short(r);
    for (int i = 0; i < 8; i++) bits = bits << 8 | p[i];
    memcpy(&value, &bits, sizeof value);
    return push_float(r, value);
}

/* LONG1 and LONG4: a length, then a two's complement number, its lowest byte first. */
static enum plim_status op_long(struct reader *r, int64_t width)
{
    const unsigned char *p = next(r, (uint64_t)width);
    uint64_t n = p ? little_endian(p, (size_t)width) : 0;
    if (!p) return too_short(r);
    if (n > LONG_MOST) return fail(r, "a whole number too large to be meant");
    if (!(p = next(r, n))) return too_short(r);
    bool negative = n && p[n - 1] & 0x80;
    if (n <= 8) {
        uint64_t value = little_endian(p, n);
        if (negative && n < 8) value |= UINT64_MAX << 8 * n;
        return push_int(r, (int64_t)value);
    }
    double value = 0;
    for (uint64_t i = n; i-- > 0;) value = value * 256 + (negative ? p[i] ^ 0xff : p[i]);
    return push_float(r, negative ? -value - 1 : value);
}

static enum plim_status push_text(struct reader *r, const void *text, size_t len)
{
    enum plim_status status = PLIM_OK;
    char *copy = node_build_alloc(&r->build, len + 1, &status, r->err);
    if (!copy) return status;
    memcpy(copy, text, len);
    return push_node(r, (struct node){.kind = NODE_STRING, .as.string.text = copy, .as.string.len = len});
}

/* Text and bytes with a length before them, of 1, 4 or 8 bytes. */
static enum plim_status op_text(struct reader *r, int64_t width)
{
    const unsigned char *p = next(r, (uint64_t)width);
    uint64_t n = p ? little_endian(p, (size_t)width) : 0;
    if (!p || !(p = next(r, n))) return too_short(r);
    return push_text(r, p, n);
}

/* --- instructions: values as lines of text (protocol 0) ------------------------------------------------------------- */

static const char *next_line(struct reader *r, size_t *len)
{
    const unsigned char *nl = memchr(r->at, '\n', (size_t)(r->end - r->at));
    const char *line = (const char *)r->at;
    if (!nl) return NULL;
    *len = (size_t)(nl - r->at);
    r->at = nl + 1;
    return line;
}

static bool all_digits(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(text[i] >= '0' && text[i] <= '9') && text[i] != '-') return false;
    return true;
}

static enum plim_status op_int_line(struct reader *r, int64_t)
{
    size_t n = 0;
    int64_t whole;
    double wide;
    const char *line = next_line(r, &n);
    if (!line) return too_short(r);
    if (n > 0 && line[n - 1] == 'L') n--;
    if (*r->op == 'I' && n == 2 && line[0] == '0' && (line[1] == '0' || line[1] == '1'))
        return op_bool(r, line[1] == '1');
    if (number_parse_int64(line, n, &whole)) return push_int(r, whole);
    if (n <= LONG_MOST && all_digits(line, n) && number_parse_double(line, n, &wide))
        return push_float(r, wide);
    return fail(r, "a number that is none");
}

static enum plim_status op_float_line(struct reader *r, int64_t)
{
    size_t n = 0;
    double value;
    const char *line = next_line(r, &n);
    if (!line) return too_short(r);
    bool negative = n == 4 && *line == '-';
    if (n == (negative ? 4u : 3u) && !memcmp(line + negative, "inf", 3))
        return push_float(r, negative ? -INFINITY : INFINITY);
    if (n == 3 && !memcmp(line, "nan", 3)) return push_float(r, NAN);
    return number_parse_double(line, n, &value) ? push_float(r, value) : fail(r, "a number that is none");
}

/* -1: they are none, or make no character. */
static int hex_digits(const char *p, const char *end, int n)
{
    int value = 0;
    if (end - p < n) return -1;
    for (int i = 0; i < n; i++) {
        int c = p[i], d = c >= '0' && c <= '9'                 ? c - '0'
                          : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                               : -1;
        if (d < 0 || value > 0x10ffff >> 4) return -1;
        value = value << 4 | d;
    }
    return value;
}

/* A backslash at *p and what belongs to it, as one character; *p moves behind it. `wide`: \u and \U, else \x and the letters. */
static int unescape(const char **p, const char *end, bool wide)
{
    static const char letters[] = "\\\\''\"\"n\nt\tr\ra\ab\bf\fv\v";
    const char *at = *p + 1;
    int width = at < end ? *at == 'x' && !wide ? 2 : *at == 'u' && wide ? 4 : *at == 'U' && wide ? 8 : 0 : 0;
    if (width) {
        int c = hex_digits(at + 1, end, width);
        *p = at + 1 + (c < 0 ? 0 : width);
        return c;
    }
    for (const char *l = letters; !wide && at < end && *l; l += 2)
        if (*l == *at) {
            *p = at + 1;
            return l[1];
        }
    *p = at;
    return '\\';
}

/* STRING has quotes and Python's escapes for bytes, UNICODE has \u escapes and Latin-1. */
static enum plim_status op_text_line(struct reader *r, int64_t wide)
{
    struct strbuf text = STRBUF_INIT;
    size_t n = 0;
    const char *p = next_line(r, &n);
    if (!p) return too_short(r);
    const char *end = p + n;
    if (!wide && (n < 2 || (*p != '\'' && *p != '"') || end[-1] != *p))
        return fail(r, "text without its quotes");
    if (!wide) p++, end--;
    bool bad = false;
    while (p < end && !bad) {
        int c = *p == '\\' ? unescape(&p, end, wide) : (unsigned char)*p++;
        char utf8[4];
        bad = c < 0;
        if (!bad && wide)
            strbuf_addn(&text, utf8, (size_t)utf8_encode((uint32_t)c, utf8));
        else if (!bad)
            strbuf_addc(&text, (char)c);
    }
    enum plim_status status = bad ? fail(r, "text with a broken escape") : strbuf_status(&text, r->err);
    if (status == PLIM_OK) status = push_text(r, strbuf_text(&text), text.len);
    strbuf_release(&text);
    return status;
}

/* --- instructions: lists, tuples, dictionaries ---------------------------------------------------------------------- */

static enum plim_status op_mark(struct reader *r, int64_t)
{
    if (r->mark_count == MARKS_MOST) return fail(r, "values nested too deeply");
    r->marks[r->mark_count++] = r->stack.count;
    return PLIM_OK;
}

/* The values above the last mark, which is taken away. */
static enum plim_status pop_mark(struct reader *r, size_t *n)
{
    if (!r->mark_count) return fail(r, "a mark is missing");
    *n = above(r);
    r->mark_count--;
    return PLIM_OK;
}

static enum plim_status op_empty(struct reader *r, int64_t kind) { return open_box(r, (enum node_kind)kind); }

/* Put the top n values into the container below them. */
static enum plim_status fill_below(struct reader *r, size_t n, enum node_kind kind)
{
    if (above(r) < n + 1) return fail(r, "nothing to add to");
    int at = r->stack.items[r->stack.count - n - 1].box;
    if (at == NO_BOX) return fail(r, "adds to a value that is complete, or contains itself");
    if (r->boxes[at].kind != kind) return fail(r, "adds an item of a list to a dictionary, or the reverse");
    if (kind == NODE_MAP && n % 2) return fail(r, "a key without a value");
    return fill_box(r, at, n);
}

static enum plim_status op_append(struct reader *r, int64_t kind)
{
    return fill_below(r, kind == NODE_MAP ? 2 : 1, (enum node_kind)kind);
}

static enum plim_status op_appends(struct reader *r, int64_t kind)
{
    size_t n = 0;
    enum plim_status status = pop_mark(r, &n);
    return status == PLIM_OK ? fill_below(r, n, (enum node_kind)kind) : status;
}

/* A new container out of the top n values. */
static enum plim_status gather(struct reader *r, size_t n, enum node_kind kind)
{
    if (above(r) < n) return fail(r, "values are missing");
    if (kind == NODE_MAP && n % 2) return fail(r, "a key without a value");
    enum plim_status status = open_box(r, kind);
    if (status != PLIM_OK) return status;
    struct value box = r->stack.items[--r->stack.count];
    status = fill_box(r, box.box, n);
    return status == PLIM_OK ? push(r, &box) : status;
}

static enum plim_status op_gather(struct reader *r, int64_t kind)
{
    size_t n = 0;
    enum plim_status status = pop_mark(r, &n);
    return status == PLIM_OK ? gather(r, n, (enum node_kind)kind) : status;
}

static enum plim_status op_tuple(struct reader *r, int64_t n) { return gather(r, (size_t)n, NODE_LIST); }

/* --- instructions: stack and memo ----------------------------------------------------------------------------------- */

static enum plim_status op_pop(struct reader *r, int64_t)
{
    if (!above(r)) {
        size_t n;
        return pop_mark(r, &n); /* as Python does: a mark counts as a value */
    }
    struct value v = r->stack.items[--r->stack.count];
    return take(r, &v);
}

static enum plim_status op_pop_mark(struct reader *r, int64_t)
{
    size_t n = 0;
    enum plim_status status = pop_mark(r, &n);
    for (; n && status == PLIM_OK; n--) {
        struct value v = r->stack.items[--r->stack.count];
        status = take(r, &v);
    }
    return status;
}

/* A second copy of a value: an open box is closed first. */
static enum plim_status push_copy(struct reader *r, const struct value *v)
{
    struct value copy = *v; /* closing the box and pushing both may write over *v */
    enum plim_status status = PLIM_OK;
    if (copy.box != NO_BOX) {
        status = close_box(r, copy.box);
        const struct box *b = &r->boxes[copy.box];
        copy = (struct value){.node = b->node, .depth = b->depth, .box = NO_BOX};
    }
    return status == PLIM_OK ? push(r, &copy) : status;
}

static enum plim_status op_dup(struct reader *r, int64_t)
{
    if (!above(r)) return fail(r, "values are missing");
    return push_copy(r, &r->stack.items[r->stack.count - 1]);
}

static enum plim_status remember(struct reader *r, uint64_t number)
{
    if (!above(r)) return fail(r, "values are missing");
    if (number > (uint64_t)(r->end - r->bytes)) return fail(r, "the number of a shared value is too large");
    enum plim_status status = room(r, &r->memo, number + 1);
    if (status != PLIM_OK) return status;
    while (r->memo.count <= number) r->memo.items[r->memo.count++] = (struct value){.box = NO_BOX};
    const struct value *v = &r->stack.items[r->stack.count - 1];
    struct value *slot = &r->memo.items[number];
    struct box *b = v->box == NO_BOX ? NULL : &r->boxes[v->box];
    if (slot->box != NO_BOX || (b && b->memo != SIZE_MAX)) return fail(r, "a value is shared twice");
    *slot = b && b->closed ? (struct value){.node = b->node, .depth = b->depth, .box = NO_BOX} : *v;
    slot->set = true;
    if (b && !b->closed) b->memo = number;
    r->memo_next++;
    return PLIM_OK;
}

static enum plim_status recall(struct reader *r, uint64_t number)
{
    if (number >= r->memo.count || !r->memo.items[number].set)
        return fail(r, "refers to a shared value that is not there");
    return push_copy(r, &r->memo.items[number]);
}

static enum plim_status op_memo(struct reader *r, int64_t) { return remember(r, r->memo_next); }

static enum plim_status op_put(struct reader *r, int64_t width)
{
    const unsigned char *p = next(r, (uint64_t)width);
    return p ? remember(r, little_endian(p, (size_t)width)) : too_short(r);
}

static enum plim_status op_get(struct reader *r, int64_t width)
{
    const unsigned char *p = next(r, (uint64_t)width);
    return p ? recall(r, little_endian(p, (size_t)width)) : too_short(r);
}

static enum plim_status op_memo_line(struct reader *r, int64_t put)
{
    size_t n, i = 0;
    const char *line = next_line(r, &n);
    uint64_t number = 0;
    if (!line) return too_short(r);
    for (; i < n && i < 18 && line[i] >= '0' && line[i] <= '9'; i++)
        number = number * 10 + (uint64_t)(line[i] - '0');
    if (!n || i < n) return fail(r, "a number that is none");
    return put ? remember(r, number) : recall(r, number);
}

/* --- instructions: the file ----------------------------------------------------------------------------------------- */

static enum plim_status op_proto(struct reader *r, int64_t)
{
    const unsigned char *p = next(r, 1);
    if (!p) return too_short(r);
    return *p > 5 ? fail(r, "a pickle protocol above 5, which this program does not know") : PLIM_OK;
}

/* Frames are for readers that fetch the file in pieces. */
static enum plim_status op_frame(struct reader *r, int64_t)
{
    const unsigned char *p = next(r, 8);
    return !p || little_endian(p, 8) > (uint64_t)(r->end - r->at) ? too_short(r) : PLIM_OK;
}

static enum plim_status op_stop(struct reader *r, int64_t)
{
    if (r->mark_count || r->stack.count != 1) return fail(r, "the pickle does not end with one value");
    r->stopped = true;
    return PLIM_OK;
}

static const struct row {
    const char *name;
    instruction run; /* NULL: would run code (arg 0), or holds what no reader of data needs (arg 1) */
    int64_t arg;
} table[256] = {
    ['('] = {"MARK", op_mark, 0},
    ['.'] = {"STOP", op_stop, 0},
    ['0'] = {"POP", op_pop, 0},
    ['1'] = {"POP_MARK", op_pop_mark, 0},
    ['2'] = {"DUP", op_dup, 0},
    ['F'] = {"FLOAT", op_float_line, 0},
    ['I'] = {"INT", op_int_line, 0},
    ['J'] = {"BININT", op_binint, 4},
    ['K'] = {"BININT1", op_binint, 1},
    ['L'] = {"LONG", op_int_line, 0},
    ['M'] = {"BININT2", op_binint, 2},
    ['N'] = {"NONE", op_none, 0},
    ['S'] = {"STRING", op_text_line, 0},
    ['T'] = {"BINSTRING", op_text, 4},
    ['U'] = {"SHORT_BINSTRING", op_text, 1},
    ['V'] = {"UNICODE", op_text_line, 1},
    ['X'] = {"BINUNICODE", op_text, 4},
    ['a'] = {"APPEND", op_append, NODE_LIST},
    ['d'] = {"DICT", op_gather, NODE_MAP},
    ['}'] = {"EMPTY_DICT", op_empty, NODE_MAP},
    ['e'] = {"APPENDS", op_appends, NODE_LIST},
    ['g'] = {"GET", op_memo_line, 0},
    ['h'] = {"BINGET", op_get, 1},
    ['j'] = {"LONG_BINGET", op_get, 4},
    ['l'] = {"LIST", op_gather, NODE_LIST},
    [']'] = {"EMPTY_LIST", op_empty, NODE_LIST},
    ['p'] = {"PUT", op_memo_line, 1},
    ['q'] = {"BINPUT", op_put, 1},
    ['r'] = {"LONG_BINPUT", op_put, 4},
    ['s'] = {"SETITEM", op_append, NODE_MAP},
    ['t'] = {"TUPLE", op_gather, NODE_LIST},
    [')'] = {"EMPTY_TUPLE", op_tuple, 0},
    ['u'] = {"SETITEMS", op_appends, NODE_MAP},
    ['G'] = {"BINFLOAT", op_binfloat, 0},
    ['B'] = {"BINBYTES", op_text, 4},
    ['C'] = {"SHORT_BINBYTES", op_text, 1},
    [0x80] = {"PROTO", op_proto, 0},
    [0x85] = {"TUPLE1", op_tuple, 1},
    [0x86] = {"TUPLE2", op_tuple, 2},
    [0x87] = {"TUPLE3", op_tuple, 3},
    [0x88] = {"NEWTRUE", op_bool, 1},
    [0x89] = {"NEWFALSE", op_bool, 0},
    [0x8a] = {"LONG1", op_long, 1},
    [0x8b] = {"LONG4", op_long, 4},
    [0x8c] = {"SHORT_BINUNICODE", op_text, 1},
    [0x8d] = {"BINUNICODE8", op_text, 8},
    [0x8e] = {"BINBYTES8", op_text, 8},
    [0x94] = {"MEMOIZE", op_memo, 0},
    [0x95] = {"FRAME", op_frame, 0},
    [0x96] = {"BYTEARRAY8", op_text, 8},
    ['P'] = {"PERSID", NULL, 0},
    ['Q'] = {"BINPERSID", NULL, 0},
    ['R'] = {"REDUCE", NULL, 0},
    ['b'] = {"BUILD", NULL, 0},
    ['c'] = {"GLOBAL", NULL, 0},
    ['i'] = {"INST", NULL, 0},
    ['o'] = {"OBJ", NULL, 0},
    [0x81] = {"NEWOBJ", NULL, 0},
    [0x82] = {"EXT1", NULL, 0},
    [0x83] = {"EXT2", NULL, 0},
    [0x84] = {"EXT4", NULL, 0},
    [0x92] = {"NEWOBJ_EX", NULL, 0},
    [0x93] = {"STACK_GLOBAL", NULL, 0},
    [0x8f] = {"EMPTY_SET", NULL, 1},
    [0x90] = {"ADDITEMS", NULL, 1},
    [0x91] = {"FROZENSET", NULL, 1},
    [0x97] = {"NEXT_BUFFER", NULL, 1},
    [0x98] = {"READONLY_BUFFER", NULL, 1},
};

/* --- all of it ------------------------------------------------------------------------------------------------------ */

static enum plim_status refuse(struct reader *r, const struct row *row)
{
    const char *name = r->build.doc->name;
    ptrdiff_t at = r->op - r->bytes;
    if (!row->name)
        return plim_fail(r->err, PLIM_BAD_INPUT,
                         "%s: byte %td: 0x%02x is no pickle instruction; is this a pickle?", name, at,
                         *r->op);
    if (row->arg)
        return plim_fail(
            r->err, PLIM_BAD_INPUT,
            "%s: byte %td: %s: only None, numbers, text, lists, tuples and dictionaries are read", name, at,
            row->name);
    return plim_fail(
        r->err, PLIM_BAD_INPUT,
        "%s: byte %td: %s: a pickle that would run code; nothing of it was run, and it is refused", name, at,
        row->name);
}

static enum plim_status run(struct reader *r)
{
    enum plim_status status = PLIM_OK;
    while (status == PLIM_OK && !r->stopped) {
        r->op = r->at;
        if (r->at == r->end) return too_short(r);
        const struct row *row = &table[*r->at++];
        status = row->run ? row->run(r, row->arg) : refuse(r, row);
    }
    if (status != PLIM_OK) return status;
    status = take(r, &r->stack.items[0]);
    if (status == PLIM_OK) r->build.doc->root = r->stack.items[0].node;
    r->op = r->at;
    return status == PLIM_OK && r->at != r->end ? fail(r, "more bytes after the end of the pickle") : status;
}

static void release(struct reader *r)
{
    size_t held = (r->stack.cap + r->memo.cap) * sizeof(struct value) + r->box_cap * sizeof *r->boxes;
    for (size_t i = 0; i < r->box_count; i++) {
        held += r->boxes[i].cap * sizeof(struct value);
        free(r->boxes[i].items);
    }
    quota_give(r->build.quota, held);
    free(r->boxes);
    free(r->stack.items);
    free(r->memo.items);
}

enum plim_status pickle_parse(const void *bytes, size_t len, const char *name, struct quota *quota,
                              struct doc **out, struct plim_error *err)
{
    struct reader *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", name);
    r->bytes = r->at = r->op = bytes, r->end = r->bytes + len, r->free_box = -1, r->err = err;
    enum plim_status status = node_build_begin(&r->build, name, quota, err);
    if (status == PLIM_OK) {
        r->build.last_wins = true;
        status = run(r);
        release(r);
        *out = node_build_end(&r->build, status);
    }
    free(r);
    return status;
}

bool pickle_looks_so(const void *bytes, size_t len)
{
    const unsigned char *p = bytes;
    return len >= 3 && p[0] == 0x80 && p[1] >= 2 && p[1] <= 5;
}
