/* filters.c - filters of texts and numbers, and those that take anything. Those of lists are in list_filters.c.
 *
 * Filters that Jinja applies to str(value) do the same here, so {{ 12|upper }} works as it does there.
 */
#include "text/chat/eval.h"
#include "text/chat/unicode_text.h"
#include <math.h>
#include <string.h>

/* Call the text's own method of the same name, after making it a text. */
static bool by_method(struct chat_eval *ev, struct chat_call *call, const char *method, size_t count,
                      struct chat_value *out)
{
    struct chat_value text, given[CALL_ARGS];
    if (!eval_text(ev, &call->self, &text)) return false;
    for (size_t i = 0; i < count; i++) given[i] = call->arg[i];
    const struct chat_row *row = chat_method_find(&text, method, strlen(method));
    return eval_apply(ev, row, &text, given, NULL, count, out);
}

static bool filter_case(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    return by_method(ev, call, call->row->name, 0, out); /* upper, lower, capitalize */
}

static bool filter_trim(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    return by_method(ev, call, "strip", call->arg[0].kind != CHAT_ABSENT, out);
}

static bool filter_replace(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct chat_value old = call->arg[0], fresh = call->arg[1];
    if (!eval_text(ev, &old, &call->arg[0]) || !eval_text(ev, &fresh, &call->arg[1])) return false;
    bool counted = call->arg[2].kind != CHAT_ABSENT && call->arg[2].kind != CHAT_NONE;
    call->self.safe = false; /* Jinja makes a plain text of it first */
    return by_method(ev, call, "replace", counted ? 3 : 2, out);
}

static bool filter_string(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    return eval_text(ev, &call->self, out);
}

static bool filter_safe(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    if (!eval_text(ev, &call->self, out)) return false;
    out->safe = true;
    return true;
}

/* Every line but the first, and but empty ones, moved to the right; whatever ended them, \n does now. */
static bool filter_indent(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct chat_value width = chat_string("    ", 4), blank = chat_string(" ", 1), lines,
                      end = chat_string("\n", 1), text;
    STRBUF_AUTO sb = STRBUF_INIT;
    bool first = chat_truth(&call->arg[1]), blanks = chat_truth(&call->arg[2]), ok = true;
    if (call->arg[0].kind == CHAT_STRING)
        width = call->arg[0];
    else if (call->arg[0].kind != CHAT_ABSENT && !eval_binary(ev, CHAT_MUL, &blank, &call->arg[0], &width))
        return false;
    if (call->self.kind != CHAT_STRING) return eval_raise(ev, "indent needs a text");
    width.safe = end.safe = call->self.safe;
    const struct chat_row *row = chat_method_find(&call->self, "splitlines", 10);
    if (!eval_binary(ev, CHAT_ADD, &call->self, &end, &text) ||
        !eval_apply(ev, row, &text, NULL, NULL, 0, &lines))
        return false;
    for (size_t i = 0; ok && i < lines.as.list->count; i++) {
        const struct chat_value *line = &lines.as.list->item[i];
        if (i) ok = eval_put(ev, &sb, "\n", 1);
        if (ok && (i == 0 ? first : blanks || line->as.string.len))
            ok = eval_put(ev, &sb, width.as.string.text, width.as.string.len);
        ok = ok && eval_put(ev, &sb, line->as.string.text, line->as.string.len);
    }
    if (!ok) return false;
    if (!eval_take(ev, &sb, out)) return false;
    out->safe = call->self.safe;
    return true;
}

/* ---- numbers ---- */

static bool filter_int(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    const struct chat_value *v = &call->self;
    int64_t i;
    double d;
    bool huge = false;
    if (v->kind == CHAT_UNDEFINED) return eval_undefined(ev, v);
    *out = call->arg[0].kind == CHAT_ABSENT ? chat_int(0) : call->arg[0];
    if (chat_as_int(v, &i)) return *out = chat_int(i), true;
    if (v->kind == CHAT_STRING) {
        if (!eval_charge(ev, v->as.string.len)) return false;
        if (utext_int(v->as.string.text, v->as.string.len, &i, &huge) && !huge)
            return *out = chat_int(i), true;
        if (!huge && !utext_float(v->as.string.text, v->as.string.len, &d)) return true;
    } else if (!chat_as_double(v, &d)) {
        return true;
    }
    if (!huge && fabs(d) < 9.2e18)
        *out = chat_int((int64_t)d);
    else if (huge || isfinite(d))
        return eval_fail(ev, PLIM_UNSUPPORTED, "a whole number beyond 64 bits is not supported");
    return true;
}

static bool filter_float(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    const struct chat_value *v = &call->self;
    double d;
    if (v->kind == CHAT_UNDEFINED) return eval_undefined(ev, v);
    *out = call->arg[0].kind == CHAT_ABSENT ? chat_float(0) : call->arg[0];
    if (chat_as_double(v, &d)) return *out = chat_float(d), true;
    if (v->kind != CHAT_STRING) return true;
    if (!eval_charge(ev, v->as.string.len)) return false;
    if (utext_float(v->as.string.text, v->as.string.len, &d)) *out = chat_float(d);
    return true;
}

/* ---- anything ---- */

static bool filter_default(struct chat_eval *, struct chat_call *call, struct chat_value *out)
{
    bool missing =
        call->self.kind == CHAT_UNDEFINED || (chat_truth(&call->arg[1]) && !chat_truth(&call->self));
    *out = !missing ? call->self : call->arg[0].kind == CHAT_ABSENT ? chat_string("", 0) : call->arg[0];
    return true;
}

static bool filter_length(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    *out = chat_int(0);
    return eval_length(ev, &call->self, &out->as.integer);
}

static bool given(const struct chat_value *v) { return v->kind != CHAT_ABSENT && v->kind != CHAT_NONE; }

static bool json_options(struct chat_eval *ev, struct chat_call *call, struct json_style *style)
{
    const struct chat_value *indent = &call->arg[1], *separators = &call->arg[2];
    struct chat_value blank = chat_string(" ", 1);
    style->ascii = chat_truth(&call->arg[0]);
    style->sort = chat_truth(&call->arg[3]);
    style->spread = given(indent);
    style->comma = style->spread ? chat_string(",", 1) : chat_string(", ", 2);
    style->colon = chat_string(": ", 2);
    style->indent = *indent;
    if (given(indent) && indent->kind != CHAT_STRING &&
        !eval_binary(ev, CHAT_MUL, &blank, indent, &style->indent))
        return false;
    if (!given(separators)) return true;
    if (!chat_is_list(separators) || separators->as.list->count != 2 ||
        separators->as.list->item[0].kind != CHAT_STRING || separators->as.list->item[1].kind != CHAT_STRING)
        return eval_raise(ev, "tojson: separators are two texts");
    style->comma = separators->as.list->item[0];
    style->colon = separators->as.list->item[1];
    return true;
}

static bool filter_tojson(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct json_style style;
    STRBUF_AUTO sb = STRBUF_INIT;
    if (!json_options(ev, call, &style)) return false;
    if (!eval_write_json(ev, &call->self, &style, 0, &sb)) return false;
    return eval_take(ev, &sb, out);
}

static const struct chat_row filters[] = {
    {"trim", "chars", 0, filter_trim},
    {"upper", "", 0, filter_case},
    {"lower", "", 0, filter_case},
    {"capitalize", "", 0, filter_case},
    {"replace", "old new count", 2, filter_replace},
    {"string", "", 0, filter_string},
    {"safe", "", 0, filter_safe},
    {"indent", "width first blank", 0, filter_indent},
    {"int", "default", 0, filter_int},
    {"float", "default", 0, filter_float},
    {"default", "default_value boolean", 0, filter_default},
    {"d", "default_value boolean", 0, filter_default},
    {"length", "", 0, filter_length},
    {"count", "", 0, filter_length},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, filter_tojson},
    {NULL, NULL, 0, NULL},
};

const struct chat_row *chat_filter_find(const char *name, size_t len)
{
    const struct chat_row *row = chat_row_find(filters, name, len);
    return row ? row : chat_row_find(chat_list_filters, name, len);
}
