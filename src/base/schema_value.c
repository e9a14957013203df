/* schema_value.c - a table of kinds: how each is named, checked, stored and printed. */
#include "base/schema_value.h"
#include "base/bytes.h"
#include "base/nearest.h"
#include "base/number.h"
#include "base/yaml.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* One value on its way into a field. */
struct storing {
    const struct schema_row *row;
    const struct node *node;
    void *field;
    struct bump *store;
    struct plim_error *err;
};

struct kind {
    const char *name;    /* "a whole number", as in "expected ..."   */
    const char *plain;   /* "whole number", as in documentation      */
    const char *example; /* when the row has no default              */
    enum plim_status (*put)(struct storing *s);
    void (*print)(const struct schema_row *row, const void *field, struct strbuf *out);
};

static const struct kind kinds[SCHEMA_KINDS];

static void describe(const struct node *node, char *buf, size_t size)
{
    char number[NUMBER_TEXT];
    switch (node->kind) {
    case NODE_NULL:
        snprintf(buf, size, "null");
        break;
    case NODE_BOOL:
        snprintf(buf, size, "%s", node->as.boolean ? "true" : "false");
        break;
    case NODE_INT:
        snprintf(buf, size, "%" PRId64, node->as.integer);
        break;
    case NODE_FLOAT:
        snprintf(buf, size, "%s", number_format_double(number, node->as.real));
        break;
    case NODE_STRING:
        snprintf(buf, size, "'%.80s'", node->as.string.text);
        break;
    case NODE_LIST:
        snprintf(buf, size, "a list");
        break;
    case NODE_MAP:
        snprintf(buf, size, "a map");
        break;
    }
}

static enum plim_status wrong_type(struct storing *s)
{
    char found[128];
    const struct kind *kind = &kinds[s->row->kind];
    describe(s->node, found, sizeof found);
    const char *example = s->row->fallback && *s->row->fallback ? s->row->fallback : kind->example;
    return plim_fail(s->err, PLIM_BAD_INPUT, "expected %s, found %s; write e.g. %s", kind->name, found,
                     example);
}

static enum plim_status no_memory(struct storing *s)
{
    return plim_fail(s->err, PLIM_NO_MEMORY, "out of memory");
}

static bool has_limits(const struct schema_row *row) { return row->min != 0 || row->max != 0; }

/* "at least 1" or "between 1 and 8"; infinities are open ends. */
static void limits_text(const struct schema_row *row, char *buf, size_t size)
{
    char low[NUMBER_TEXT], high[NUMBER_TEXT];
    number_format_double(low, row->min);
    number_format_double(high, row->max);
    if (isinf(row->max))
        snprintf(buf, size, "at least %s", low);
    else if (isinf(row->min))
        snprintf(buf, size, "at most %s", high);
    else
        snprintf(buf, size, "between %s and %s", low, high);
}

static enum plim_status check_limits(struct storing *s, double value)
{
    const struct schema_row *row = s->row;
    if (!has_limits(row) || (value >= row->min && value <= row->max)) return PLIM_OK;
    char found[128], limits[128];
    describe(s->node, found, sizeof found);
    limits_text(row, limits, sizeof limits);
    return plim_fail(s->err, PLIM_BAD_INPUT, "must be %s, found %s", limits, found);
}

static enum plim_status get_int(struct storing *s, int64_t *out)
{
    if (!node_is_whole(s->node, out)) return wrong_type(s);
    return check_limits(s, (double)*out);
}

static enum plim_status get_float(struct storing *s, double *out)
{
    if (s->node->kind != NODE_INT && s->node->kind != NODE_FLOAT) return wrong_type(s);
    *out = node_float(s->node, 0);
    if (!isfinite(*out)) return plim_fail(s->err, PLIM_BAD_INPUT, "expected a finite number");
    return check_limits(s, *out);
}

static enum plim_status put_nothing(struct storing *) { return PLIM_OK; }

static enum plim_status put_bool(struct storing *s)
{
    if (s->node->kind != NODE_BOOL) return wrong_type(s);
    *(bool *)s->field = s->node->as.boolean;
    return PLIM_OK;
}

static enum plim_status put_int(struct storing *s)
{
    int64_t value;
    enum plim_status status = get_int(s, &value);
    if (status != PLIM_OK) return status;
    if (value < INT_MIN || value > INT_MAX)
        return plim_fail(s->err, PLIM_BAD_INPUT, "%" PRId64 " is too large for this key", value);
    *(int *)s->field = (int)value;
    return PLIM_OK;
}

static enum plim_status put_int64(struct storing *s) { return get_int(s, s->field); }

static enum plim_status put_float(struct storing *s) { return get_float(s, s->field); }

static enum plim_status keep_text(struct storing *s, const struct node *node, const char **out)
{
    if (memchr(node->as.string.text, '\0', node->as.string.len))
        return plim_fail(s->err, PLIM_BAD_INPUT, "text with a NUL character is not accepted");
    *out = bump_copy(s->store, node->as.string.text, node->as.string.len);
    return *out ? PLIM_OK : no_memory(s);
}

static enum plim_status put_string(struct storing *s)
{
    char found[128];
    if (s->node->kind == NODE_STRING) return keep_text(s, s->node, s->field);
    if (s->node->kind == NODE_LIST || s->node->kind == NODE_MAP) return wrong_type(s);
    describe(s->node, found, sizeof found);
    return plim_fail(s->err, PLIM_BAD_INPUT, "expected text, found %s; put it in quotes: \"%s\"", found,
                     found);
}

static enum plim_status bad_name(struct storing *s, const char *word)
{
    char list[512] = "";
    struct nearest near = nearest_begin(word);
    for (const char *const *name = s->row->names; *name; name++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", *name);
        nearest_offer(&near, *name);
    }
    if (near.best)
        return plim_fail(s->err, PLIM_BAD_INPUT, "expected one of %s; found '%.80s'; did you mean '%s'?",
                         list, word, near.best);
    return plim_fail(s->err, PLIM_BAD_INPUT, "expected one of %s; found '%.80s'", list, word);
}

static int name_index(const struct schema_row *row, const char *word)
{
    for (int i = 0; row->names && row->names[i]; i++)
        if (strcmp(row->names[i], word) == 0) return i;
    return -1;
}

/* Names such as 8 or none arrive as other kinds than text, so the comparison is by what was written. */
static enum plim_status put_enum(struct storing *s)
{
    char word[128];
    if (s->node->kind == NODE_LIST || s->node->kind == NODE_MAP) return wrong_type(s);
    if (s->node->kind == NODE_STRING)
        snprintf(word, sizeof word, "%s", s->node->as.string.text);
    else
        describe(s->node, word, sizeof word);
    const struct schema_synonym *same = s->row->synonyms;
    while (same && same->word && strcmp(same->word, word) != 0) same++;
    int at = name_index(s->row, same && same->word ? same->name : word);
    if (at < 0) return bad_name(s, word);
    *(int *)s->field = at;
    return PLIM_OK;
}

static enum plim_status put_bytes(struct storing *s)
{
    int64_t whole;
    uint64_t value;
    if (s->node->kind == NODE_STRING && name_index(s->row, s->node->as.string.text) >= 0) {
        *(uint64_t *)s->field = 0;
        return PLIM_OK;
    }
    if (s->node->kind == NODE_STRING) {
        enum plim_status status = bytes_parse(s->node->as.string.text, &value, s->err);
        if (status != PLIM_OK) return status;
    } else {
        if (!node_is_whole(s->node, &whole)) return wrong_type(s);
        if (whole < 0) return plim_fail(s->err, PLIM_BAD_INPUT, "an amount of memory cannot be negative");
        value = (uint64_t)whole;
    }
    *(uint64_t *)s->field = value;
    return check_limits(s, (double)value);
}

/* The items of a list; a single value stands for a list of one. */
static size_t list_items(const struct node *node, const struct node **items)
{
    bool list = node->kind == NODE_LIST;
    *items = list ? node->as.list.items : node;
    return list ? node->as.list.count : 1;
}

static enum plim_status put_strings(struct storing *s)
{
    const struct node *items;
    size_t count = list_items(s->node, &items);
    struct string_list list = {0};
    for (size_t i = 0; i < count; i++) {
        const char *text;
        if (items[i].kind != NODE_STRING) {
            s->node = &items[i];
            return wrong_type(s);
        }
        enum plim_status status = keep_text(s, &items[i], &text);
        if (status != PLIM_OK) return status;
        if (!string_list_add(s->store, &list, text)) return no_memory(s);
    }
    *(struct string_list *)s->field = list;
    return PLIM_OK;
}

static enum plim_status put_ints(struct storing *s)
{
    const struct node *items;
    size_t count = list_items(s->node, &items);
    struct schema_ints list = {bump_alloc(s->store, count * sizeof(int64_t)), count};
    if (!list.items) return no_memory(s);
    for (size_t i = 0; i < count; i++) {
        s->node = &items[i];
        enum plim_status status = get_int(s, &list.items[i]);
        if (status != PLIM_OK) return status;
    }
    *(struct schema_ints *)s->field = list;
    return PLIM_OK;
}

static enum plim_status put_floats(struct storing *s)
{
    const struct node *items;
    size_t count = list_items(s->node, &items);
    struct schema_floats list = {bump_alloc(s->store, count * sizeof(double)), count};
    if (!list.items) return no_memory(s);
    for (size_t i = 0; i < count; i++) {
        s->node = &items[i];
        enum plim_status status = get_float(s, &list.items[i]);
        if (status != PLIM_OK) return status;
    }
    *(struct schema_floats *)s->field = list;
    return PLIM_OK;
}

static enum plim_status put_node(struct storing *s)
{
    *(const struct node **)s->field = s->node;
    return PLIM_OK;
}

/* ---- printing ---- */

static void add_double(struct strbuf *out, double value)
{
    char text[NUMBER_TEXT];
    strbuf_add(out, number_format_double(text, value));
}

static void print_nothing(const struct schema_row *, const void *, struct strbuf *) {}

static void print_bool(const struct schema_row *, const void *field, struct strbuf *out)
{
    strbuf_add(out, *(const bool *)field ? "true" : "false");
}

static void print_int(const struct schema_row *, const void *field, struct strbuf *out)
{
    strbuf_addf(out, "%d", *(const int *)field);
}

static void print_int64(const struct schema_row *, const void *field, struct strbuf *out)
{
    strbuf_addf(out, "%" PRId64, *(const int64_t *)field);
}

static void print_float(const struct schema_row *, const void *field, struct strbuf *out)
{
    add_double(out, *(const double *)field);
}

static void print_string(const struct schema_row *, const void *field, struct strbuf *out)
{
    const char *text = *(const char *const *)field;
    if (text) strbuf_add(out, text);
}

static void print_enum(const struct schema_row *row, const void *field, struct strbuf *out)
{
    int want = *(const int *)field;
    for (int i = 0; row->names[i]; i++)
        if (i == want) strbuf_add(out, row->names[i]);
}

static void print_bytes(const struct schema_row *row, const void *field, struct strbuf *out)
{
    char text[BYTES_TEXT];
    uint64_t bytes = *(const uint64_t *)field;
    strbuf_add(out, row->names && !bytes ? row->names[0] : bytes_format(text, bytes));
}

static void print_strings(const struct schema_row *, const void *field, struct strbuf *out)
{
    const struct string_list *list = field;
    for (size_t i = 0; i < list->count; i++) strbuf_addf(out, "%s%s", i ? "," : "", list->items[i]);
}

static void print_ints(const struct schema_row *, const void *field, struct strbuf *out)
{
    const struct schema_ints *list = field;
    for (size_t i = 0; i < list->count; i++) strbuf_addf(out, "%s%" PRId64, i ? "," : "", list->items[i]);
}

static void print_floats(const struct schema_row *, const void *field, struct strbuf *out)
{
    const struct schema_floats *list = field;
    for (size_t i = 0; i < list->count; i++) {
        if (i) strbuf_addc(out, ',');
        add_double(out, list->items[i]);
    }
}

static const struct kind kinds[SCHEMA_KINDS] = {
    [SCHEMA_NOTHING] = {"anything", "anything", "null", put_nothing, print_nothing},
    [SCHEMA_BOOL] = {"true or false", "true or false", "true", put_bool, print_bool},
    [SCHEMA_INT] = {"a whole number", "whole number", "8", put_int, print_int},
    [SCHEMA_INT64] = {"a whole number", "whole number", "8", put_int64, print_int64},
    [SCHEMA_FLOAT] = {"a number", "number", "3e-4", put_float, print_float},
    [SCHEMA_STRING] = {"text", "text", "\"text\"", put_string, print_string},
    [SCHEMA_ENUM] = {"a name", "name", "none", put_enum, print_enum},
    [SCHEMA_BYTES] = {"an amount of memory", "bytes", "64MiB", put_bytes, print_bytes},
    [SCHEMA_STRING_LIST] = {"a list of texts", "list of texts", "[a, b]", put_strings, print_strings},
    [SCHEMA_INT_LIST] = {"a list of whole numbers", "list of whole numbers", "[1, 2]", put_ints, print_ints},
    [SCHEMA_FLOAT_LIST] = {"a list of numbers", "list of numbers", "[0.1, 0.9]", put_floats, print_floats},
    [SCHEMA_NODE] = {"a list or map", "list or map", "[]", put_node, print_nothing},
};

enum plim_status schema_store(const struct schema_row *row, const struct node *node, void *target,
                              struct bump *store, struct plim_error *err)
{
    struct storing s = {row, node, (char *)target + row->offset, store, err};
    return kinds[row->kind].put(&s);
}

void schema_value(const struct schema_row *row, const void *target, struct strbuf *out)
{
    kinds[row->kind].print(row, (const char *)target + row->offset, out);
}

void schema_exact(const struct schema_row *row, const void *target, struct strbuf *out)
{
    if (row->kind == SCHEMA_BYTES) /* printed for people they are rounded */
        strbuf_addf(out, "%" PRIu64, *(const uint64_t *)((const char *)target + row->offset));
    else if (row->kind == SCHEMA_NODE)
        strbuf_addf(out, "the tree in line %d",
                    (*(const struct node *const *)((const char *)target + row->offset))->line);
    else
        schema_value(row, target, out);
}

void schema_type(const struct schema_row *row, struct strbuf *out)
{
    if (row->kind == SCHEMA_ENUM) {
        for (int i = 0; row->names[i]; i++) strbuf_addf(out, "%s`%s`", i ? ", " : "", row->names[i]);
        const struct schema_synonym *same = row->synonyms;
        for (bool first = true; same && same->word; same++, first = false)
            strbuf_addf(out, "%s`%s` is %s", first ? "; " : ", ", same->word, same->name);
        return;
    }
    char limits[128];
    strbuf_add(out, kinds[row->kind].plain);
    for (int i = 0; row->names && row->names[i]; i++) strbuf_addf(out, " or `%s`,", row->names[i]);
    if (!has_limits(row)) return;
    limits_text(row, limits, sizeof limits);
    strbuf_addf(out, " %s", limits);
}

/* One word by the row's kind: numbers are read as YAML would, the rest is text. */
static void word_node(const struct schema_row *row, const char *text, size_t len, struct node *out)
{
    static const bool plain[SCHEMA_KINDS] = {
        [SCHEMA_BOOL] = true,  [SCHEMA_INT] = true,      [SCHEMA_INT64] = true,
        [SCHEMA_FLOAT] = true, [SCHEMA_INT_LIST] = true, [SCHEMA_FLOAT_LIST] = true,
    };
    *out = (struct node){.kind = NODE_STRING};
    out->as.string.text = text;
    out->as.string.len = len;
    if (len == 0 && (row->kind == SCHEMA_ENUM || row->kind == SCHEMA_BYTES)) out->kind = NODE_NULL;
    if (plain[row->kind]) yaml_scalar(text, len, out);
}

static enum plim_status list_node(const struct schema_row *row, const char *text, struct bump *store,
                                  struct node *out, struct plim_error *err)
{
    size_t count = *text != '\0', at = 0;
    for (const char *p = text; *p; p++) count += *p == ',';
    struct node *items = bump_alloc(store, (count ? count : 1) * sizeof *items);
    if (!items) return plim_fail(err, PLIM_NO_MEMORY, "out of memory");
    while (at < count) {
        while (*text == ' ') text++;
        size_t len = strcspn(text, ","), used = len;
        while (used > 0 && text[used - 1] == ' ') used--;
        const char *copy = bump_copy(store, text, used);
        if (!copy) return plim_fail(err, PLIM_NO_MEMORY, "out of memory");
        word_node(row, copy, used, &items[at++]);
        text += len + (text[len] == ',');
    }
    *out = (struct node){.kind = NODE_LIST};
    out->as.list.items = items;
    out->as.list.count = count;
    return PLIM_OK;
}

enum plim_status schema_text_node(const struct schema_row *row, const char *text, struct bump *store,
                                  struct node *out, struct plim_error *err)
{
    if (row->kind == SCHEMA_NODE)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "a list or map cannot be set from the command line; use the file");
    if (row->kind == SCHEMA_STRING_LIST || row->kind == SCHEMA_INT_LIST || row->kind == SCHEMA_FLOAT_LIST)
        return list_node(row, text, store, out, err);
    word_node(row, text, strlen(text), out);
    return PLIM_OK;
}
