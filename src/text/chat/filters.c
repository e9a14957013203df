/* filters.c - filters of texts and numbers, and those that take anything. Those of lists are in list_filters.c.
 *
 * Filters that Jinja applies to str(value) do the same here, so {{ 12|upper }} works as it does there.
 */
#include "base/number.h"
#include "base/utf8.h"
#include "text/chat/eval.h"
#include "text/chat/unicode_text.h"
#include <math.h>
#include <stdio.h>
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

static bool filter_center(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    if (call->arg[0].kind == CHAT_ABSENT) call->arg[0] = chat_int(80);
    return by_method(ev, call, "center", 1, out);
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

static bool filter_escape(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct chat_value text;
    return eval_text(ev, &call->self, &text) && eval_escape(ev, &text, out);
}

static bool filter_forceescape(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct chat_value text;
    if (!eval_text(ev, &call->self, &text)) return false;
    text.safe = false;
    return eval_escape(ev, &text, out);
}

/* text|format(a, b) is text % (a, b); with names, a dictionary. */
static bool filter_format(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct chat_value text, values;
    bool named = call->count && call->keys && call->keys[0];
    if (!eval_text(ev, &call->self, &text)) return false;
    if (!named) {
        if (!eval_list(ev, CHAT_TUPLE, call->given, call->count, &values)) return false;
        return eval_percent(ev, &text, &values, out);
    }
    if (!eval_dict_new(ev, &values)) return false;
    for (size_t i = 0; i < call->count; i++) {
        if (!call->keys[i]) return eval_raise(ev, "format takes values by place or by name, not both");
        struct chat_value key = chat_string(call->keys[i], strlen(call->keys[i]));
        if (!eval_dict_set(ev, values.as.dict, &key, &call->given[i])) return false;
    }
    return eval_percent(ev, &text, &values, out);
}

static bool is_word(uint32_t point)
{
    return point == '_' || utext_is_alpha(point) || utext_is_numeric(point);
}

static bool filter_wordcount(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct chat_value text;
    int64_t words = 0;
    bool inside = false;
    if (!eval_text(ev, &call->self, &text) || !eval_charge(ev, text.as.string.len)) return false;
    for (size_t at = 0; at < text.as.string.len; at += utext_step(text.as.string.text[at])) {
        uint32_t point = 0;
        utf8_decode(text.as.string.text + at, text.as.string.len - at, &point);
        bool word = is_word(point);
        words += word && !inside;
        inside = word;
    }
    *out = chat_int(words);
    return true;
}

static bool begins_word(uint32_t point)
{
    return (point < 0x80 && point && strchr("-({[<", (int)point)) || utext_is_space(point);
}

/* Words end at a blank, - ( { [ or <; each begins with a capital. */
static bool filter_title(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct chat_value text, part, made;
    struct strbuf sb = STRBUF_INIT;
    if (!eval_text(ev, &call->self, &text)) return false;
    const char *at = text.as.string.text, *end = at + text.as.string.len;
    while (at < end) {
        const char *stop = at;
        uint32_t point = 0;
        size_t step = utext_step(*at);
        utf8_decode(at, (size_t)(end - at), &point);
        bool gap = begins_word(point);
        for (; stop < end; stop += utext_step(*stop)) {
            utf8_decode(stop, (size_t)(end - stop), &point);
            if (begins_word(point) != gap) break;
        }
        const struct chat_value parts[2] = {chat_string(at, step),
                                            chat_string(at + step, (size_t)(stop - at) - step)};
        for (int i = 0; i < 2; i++) {
            part = parts[i];
            const struct chat_row *row = chat_method_find(&part, i ? "lower" : "upper", 5);
            if (!eval_apply(ev, row, &part, NULL, NULL, 0, &made) ||
                !eval_put(ev, &sb, made.as.string.text, made.as.string.len))
                return strbuf_release(&sb), false;
        }
        at = stop;
    }
    return eval_take(ev, &sb, out);
}

/* Every line but the first, and but empty ones, moved to the right; whatever ended them, \n does now. */
static bool filter_indent(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct chat_value width = chat_string("    ", 4), blank = chat_string(" ", 1), lines,
                      end = chat_string("\n", 1), text;
    struct strbuf sb = STRBUF_INIT;
    bool first = chat_truth(&call->arg[1]), blanks = chat_truth(&call->arg[2]), ok = true;
    if (call->arg[0].kind == CHAT_STRING)
        width = call->arg[0];
    else if (call->arg[0].kind != CHAT_ABSENT && !eval_binary(ev, OP_MUL, &blank, &call->arg[0], &width))
        return false;
    if (call->self.kind != CHAT_STRING) return eval_raise(ev, "indent needs a text");
    width.safe = end.safe = call->self.safe;
    const struct chat_row *row = chat_method_find(&call->self, "splitlines", 10);
    if (!eval_binary(ev, OP_ADD, &call->self, &end, &text) ||
        !eval_apply(ev, row, &text, NULL, NULL, 0, &lines))
        return false;
    for (size_t i = 0; ok && i < lines.as.list->count; i++) {
        const struct chat_value *line = &lines.as.list->item[i];
        if (i) ok = eval_put(ev, &sb, "\n", 1);
        if (ok && (i == 0 ? first : blanks || line->as.string.len))
            ok = eval_put(ev, &sb, width.as.string.text, width.as.string.len);
        ok = ok && eval_put(ev, &sb, line->as.string.text, line->as.string.len);
    }
    if (!ok) return strbuf_release(&sb), false;
    if (!eval_take(ev, &sb, out)) return false;
    out->safe = call->self.safe;
    return true;
}

/* ---- numbers ---- */

static bool filter_int(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    const struct chat_value *v = &call->self;
    int64_t i, base = 10;
    double d;
    bool huge = false;
    if (v->kind == CHAT_UNDEFINED) return eval_undefined(ev, v);
    if (call->arg[1].kind != CHAT_ABSENT &&
        (!chat_as_int(&call->arg[1], &base) || base < 0 || base == 1 || base > 36))
        return eval_raise(ev, "int: a base is 0 or from 2 to 36");
    *out = call->arg[0].kind == CHAT_ABSENT ? chat_int(0) : call->arg[0];
    if (chat_as_int(v, &i)) return *out = chat_int(i), true;
    if (v->kind == CHAT_STRING) {
        if (!eval_charge(ev, v->as.string.len)) return false;
        if (utext_int(v->as.string.text, v->as.string.len, (int)base, &i, &huge) && !huge)
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

static bool filter_abs(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    double d;
    if (!chat_as_double(&call->self, &d)) return eval_raise(ev, "abs of a '%s'", chat_type_name(&call->self));
    struct chat_value zero = chat_int(0);
    return d < 0 ? eval_negate(ev, &call->self, out) : eval_binary(ev, OP_ADD, &call->self, &zero, out);
}

static bool filter_round(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    double d;
    int64_t places = 0;
    const struct chat_value *method = &call->arg[1];
    if (!chat_as_double(&call->self, &d))
        return eval_raise(ev, "round of a '%s'", chat_type_name(&call->self));
    if (call->arg[0].kind != CHAT_ABSENT &&
        (!chat_as_int(&call->arg[0], &places) || places < 0 || places > 15))
        return eval_fail(ev, PLIM_UNSUPPORTED, "round to other than 0 to 15 places is not supported");
    double scale = pow(10, (double)places);
    if (method->kind == CHAT_ABSENT || chat_is_text(method, "common")) {
        char buf[400];
        int n =
            snprintf(buf, sizeof buf, "%.*f", (int)places, d); /* rounds the exact value, as Python does */
        char *comma = strchr(buf, ',');
        if (comma) *comma = '.';
        if (n >= (int)sizeof buf || !number_parse_double(buf, (size_t)n, &d)) return *out = call->self, true;
        int64_t whole;
        if (chat_as_int(&call->self, &whole)) return *out = chat_int(whole), true;
    } else if (chat_is_text(method, "ceil")) {
        d = ceil(d * scale) / scale;
    } else if (chat_is_text(method, "floor")) {
        d = floor(d * scale) / scale;
    } else {
        return eval_raise(ev, "round: the method is common, ceil or floor");
    }
    *out = chat_float(d);
    return true;
}

/* ---- anything ---- */

static bool filter_default(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    (void)ev;
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

static bool filter_attr(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    const struct chat_value *name = &call->arg[0];
    if (name->kind != CHAT_STRING) return eval_raise(ev, "attr needs a name");
    if (call->self.kind == CHAT_DICT)
        return *out = chat_undefined(name->as.string.text, name->as.string.len), true;
    return eval_attr(ev, &call->self, name->as.string.text, name->as.string.len, out);
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
        !eval_binary(ev, OP_MUL, &blank, indent, &style->indent))
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
    struct strbuf sb = STRBUF_INIT;
    if (!json_options(ev, call, &style)) return false;
    if (!eval_write_json(ev, &call->self, &style, 0, &sb)) return strbuf_release(&sb), false;
    return eval_take(ev, &sb, out);
}

static const struct chat_row filters[] = {
    {"trim", "chars", 0, filter_trim},
    {"upper", "", 0, filter_case},
    {"lower", "", 0, filter_case},
    {"capitalize", "", 0, filter_case},
    {"title", "", 0, filter_title},
    {"replace", "old new count", 2, filter_replace},
    {"string", "", 0, filter_string},
    {"safe", "", 0, filter_safe},
    {"escape", "", 0, filter_escape},
    {"e", "", 0, filter_escape},
    {"forceescape", "", 0, filter_forceescape},
    {"center", "width", 0, filter_center},
    {"format", NULL, 0, filter_format},
    {"wordcount", "", 0, filter_wordcount},
    {"indent", "width first blank", 0, filter_indent},
    {"int", "default base", 0, filter_int},
    {"float", "default", 0, filter_float},
    {"abs", "", 0, filter_abs},
    {"round", "precision method", 0, filter_round},
    {"default", "default_value boolean", 0, filter_default},
    {"d", "default_value boolean", 0, filter_default},
    {"length", "", 0, filter_length},
    {"count", "", 0, filter_length},
    {"attr", "name", 1, filter_attr},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, filter_tojson},
    {NULL, NULL, 0, NULL},
};

const struct chat_row *chat_filter_find(const char *name, size_t len)
{
    const struct chat_row *row = chat_row_find(filters, name, len);
    return row ? row : chat_list_filter_find(name, len);
}
