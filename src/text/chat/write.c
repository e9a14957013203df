/* write.c - values as text: Python's str() and repr(), and json.dumps. */
#include "base/number.h"
#include "base/utf8.h"
#include "text/chat/eval.h"
#include "text/chat/unicode_text.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool write_repr(struct chat_eval *ev, const struct chat_value *v, struct strbuf *sb);

static bool puts_to(struct chat_eval *ev, struct strbuf *sb, const char *text)
{
    return eval_put(ev, sb, text, strlen(text));
}

/* ---- numbers ---- */

/* The fewest digits that read back equal, as d.ddde+xx; returns how many digits. */
static int shortest(double d, char buf[40])
{
    for (int digits = 1;; digits++) {
        double back;
        snprintf(buf, 40, "%.*e", digits - 1, d);
        char *comma = strchr(buf, ',');
        if (comma) *comma = '.';
        if (digits == 17 || (number_parse_double(buf, strlen(buf), &back) && back == d)) return digits;
    }
}

void chat_write_float(double d, char buf[40])
{
    char sci[40], digit[20];
    if (isnan(d) || isinf(d)) {
        strcpy(buf, isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
        return;
    }
    int digits = shortest(d, sci), n = 0;
    int power = atoi(strchr(sci, 'e') + 1);
    for (const char *c = sci; *c != 'e'; c++)
        if (*c >= '0' && *c <= '9') digit[n++] = *c;
    digit[n] = '\0';
    const char *sign = signbit(d) ? "-" : "";
    if (power < -4 || power >= 16)
        snprintf(buf, 40, "%s%c%s%se%c%02d", sign, digit[0], digits > 1 ? "." : "", digit + 1,
                 power < 0 ? '-' : '+', abs(power));
    else if (power < 0)
        snprintf(buf, 40, "%s0.%.*s%s", sign, -power - 1, "0000", digit);
    else if (digits <= power + 1)
        snprintf(buf, 40, "%s%s%.*s.0", sign, digit, power + 1 - digits, "0000000000000000");
    else
        snprintf(buf, 40, "%s%.*s.%s", sign, power + 1, digit, digit + power + 1);
}

/* None, True, 12, 1.5: the kinds whose str() and repr() are short and the same. False: not one of them. */
static bool scalar_text(const struct chat_value *v, char buf[40])
{
    if (v->kind == CHAT_NONE)
        strcpy(buf, "None");
    else if (v->kind == CHAT_BOOL)
        strcpy(buf, v->as.boolean ? "True" : "False");
    else if (v->kind == CHAT_INT)
        snprintf(buf, 40, "%" PRId64, v->as.integer);
    else if (v->kind == CHAT_FLOAT)
        chat_write_float(v->as.real, buf);
    else
        return false;
    return true;
}

/* ---- str and repr ---- */

static bool repr_point(struct chat_eval *ev, struct strbuf *sb, const char *text, size_t n, uint32_t point,
                       char quote)
{
    char buf[16];
    if (point == '\n') return puts_to(ev, sb, "\\n");
    if (point == '\r') return puts_to(ev, sb, "\\r");
    if (point == '\t') return puts_to(ev, sb, "\\t");
    if (point == '\\' || point == (uint32_t)quote)
        return eval_put(ev, sb, "\\", 1) && eval_put(ev, sb, text, 1);
    if (point == ' ' || utext_is_printable(point)) return eval_put(ev, sb, text, n);
    snprintf(buf, sizeof buf,
             point < 0x100     ? "\\x%02x"
             : point < 0x10000 ? "\\u%04x"
                               : "\\U%08x",
             (unsigned)point);
    return puts_to(ev, sb, buf);
}

static bool repr_string(struct chat_eval *ev, const struct chat_value *v, struct strbuf *sb)
{
    const char *text = v->as.string.text;
    size_t len = v->as.string.len;
    bool single = len && memchr(text, '\'', len), twice = len && memchr(text, '"', len);
    char quote = single && !twice ? '"' : '\'';
    if (!eval_charge(ev, len) || !eval_put(ev, sb, &quote, 1)) return false;
    for (size_t at = 0; at < len;) {
        uint32_t point;
        size_t n = utf8_decode(text + at, len - at, &point);
        if (n == 0 || !repr_point(ev, sb, text + at, n, point, quote))
            return n == 0 ? eval_raise(ev, "text that is not UTF-8") : false;
        at += n;
    }
    return eval_put(ev, sb, &quote, 1);
}

static bool repr_list(struct chat_eval *ev, const struct chat_value *v, struct strbuf *sb)
{
    const struct chat_list *list = v->as.list;
    bool tuple = v->kind == CHAT_TUPLE;
    if (!puts_to(ev, sb, tuple ? "(" : "[")) return false;
    for (size_t i = 0; i < list->count; i++) {
        if (i && !puts_to(ev, sb, ", ")) return false;
        if (!write_repr(ev, &list->item[i], sb)) return false;
    }
    return puts_to(ev, sb, !tuple ? "]" : list->count == 1 ? ",)" : ")");
}

static bool repr_dict(struct chat_eval *ev, const struct chat_dict *dict, struct strbuf *sb)
{
    if (!puts_to(ev, sb, "{")) return false;
    for (size_t i = 0; i < dict->count; i++) {
        if (i && !puts_to(ev, sb, ", ")) return false;
        if (!write_repr(ev, &dict->pair[i].key, sb) || !puts_to(ev, sb, ": ") ||
            !write_repr(ev, &dict->pair[i].value, sb))
            return false;
    }
    return puts_to(ev, sb, "}");
}

static bool repr_any(struct chat_eval *ev, const struct chat_value *v, struct strbuf *sb)
{
    char buf[40];
    if (scalar_text(v, buf)) return puts_to(ev, sb, buf);
    if (v->kind == CHAT_STRING) return repr_string(ev, v, sb);
    if (v->kind == CHAT_LIST || v->kind == CHAT_TUPLE) return repr_list(ev, v, sb);
    if (v->kind == CHAT_DICT) return repr_dict(ev, v->as.dict, sb);
    if (v->kind == CHAT_UNDEFINED) return puts_to(ev, sb, "Undefined");
    if (v->kind == CHAT_NAMESPACE)
        return puts_to(ev, sb, "<Namespace ") && repr_dict(ev, v->as.dict, sb) && puts_to(ev, sb, ">");
    return eval_fail(ev, PLIM_UNSUPPORTED, "a %s as text is not supported", chat_type_name(v));
}

static bool write_repr(struct chat_eval *ev, const struct chat_value *v, struct strbuf *sb)
{
    if (!eval_charge(ev, 0) || !eval_enter(ev)) return false;
    bool ok = repr_any(ev, v, sb);
    ev->depth--;
    return ok;
}

bool eval_write(struct chat_eval *ev, const struct chat_value *v, struct strbuf *sb)
{
    if (v->kind == CHAT_STRING) return eval_put(ev, sb, v->as.string.text, v->as.string.len);
    if (v->kind == CHAT_UNDEFINED) return true;
    return write_repr(ev, v, sb);
}

bool eval_text(struct chat_eval *ev, const struct chat_value *v, struct chat_value *out)
{
    STRBUF_AUTO sb = STRBUF_INIT;
    *out = *v;
    if (v->kind == CHAT_STRING) return true;
    if (!eval_write(ev, v, &sb)) return false;
    return eval_take(ev, &sb, out);
}

/* ---- JSON ---- */

static bool json_point(struct chat_eval *ev, struct strbuf *sb, const char *text, size_t n, uint32_t point,
                       bool ascii)
{
    static const char escapes[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    char buf[16];
    for (size_t i = 0; escapes[i]; i += 2)
        if (point == (unsigned char)escapes[i])
            return eval_put(ev, sb, "\\", 1) && eval_put(ev, sb, escapes + i + 1, 1);
    if (point >= 0x20 && (!ascii || point < 0x7f)) return eval_put(ev, sb, text, n);
    if (point < 0x10000)
        snprintf(buf, sizeof buf, "\\u%04x", (unsigned)point);
    else
        snprintf(buf, sizeof buf, "\\u%04x\\u%04x", 0xd800 + (unsigned)((point - 0x10000) >> 10),
                 0xdc00 + (unsigned)((point - 0x10000) & 0x3ff));
    return puts_to(ev, sb, buf);
}

static bool json_string(struct chat_eval *ev, const struct chat_value *v, bool ascii, struct strbuf *sb)
{
    const char *text = v->as.string.text;
    size_t len = v->as.string.len;
    if (!eval_charge(ev, len) || !puts_to(ev, sb, "\"")) return false;
    for (size_t at = 0; at < len;) {
        uint32_t point;
        size_t n = utf8_decode(text + at, len - at, &point);
        if (n == 0) return eval_raise(ev, "text that is not UTF-8");
        if (!json_point(ev, sb, text + at, n, point, ascii)) return false;
        at += n;
    }
    return puts_to(ev, sb, "\"");
}

static bool json_scalar(struct chat_eval *ev, const struct chat_value *v, struct strbuf *sb)
{
    char buf[40];
    if (v->kind == CHAT_NONE) return puts_to(ev, sb, "null");
    if (v->kind == CHAT_BOOL) return puts_to(ev, sb, v->as.boolean ? "true" : "false");
    if (v->kind == CHAT_FLOAT && isnan(v->as.real)) return puts_to(ev, sb, "NaN");
    if (v->kind == CHAT_FLOAT && isinf(v->as.real))
        return puts_to(ev, sb, v->as.real < 0 ? "-Infinity" : "Infinity");
    if (scalar_text(v, buf)) return puts_to(ev, sb, buf);
    return eval_raise(ev, "a value of type %s cannot be written as JSON", chat_type_name(v));
}

/* Writes the separator before an entry: the comma after the previous one, and a new line if indented. */
static bool json_gap(struct chat_eval *ev, const struct json_style *style, bool comma, int level,
                     struct strbuf *sb)
{
    if (comma && !eval_put(ev, sb, style->comma.as.string.text, style->comma.as.string.len)) return false;
    if (!style->spread) return true;
    if (!puts_to(ev, sb, "\n")) return false;
    for (int i = 0; i < level; i++)
        if (!eval_put(ev, sb, style->indent.as.string.text, style->indent.as.string.len)) return false;
    return true;
}

static bool json_list(struct chat_eval *ev, const struct chat_list *list, const struct json_style *style,
                      int level, struct strbuf *sb)
{
    if (!puts_to(ev, sb, "[")) return false;
    for (size_t i = 0; i < list->count; i++)
        if (!json_gap(ev, style, i > 0, level + 1, sb) ||
            !eval_write_json(ev, &list->item[i], style, level + 1, sb))
            return false;
    return (list->count == 0 || json_gap(ev, style, false, level, sb)) && puts_to(ev, sb, "]");
}

static bool json_key(struct chat_eval *ev, const struct chat_value *key, const struct json_style *style,
                     struct strbuf *sb)
{
    if (key->kind == CHAT_STRING) return json_string(ev, key, style->ascii, sb);
    return puts_to(ev, sb, "\"") && json_scalar(ev, key, sb) && puts_to(ev, sb, "\"");
}

/* The next key in order after `last`; keys are few, so each is looked for among all. */
static bool next_key(struct chat_eval *ev, const struct chat_dict *dict, const struct chat_value *last,
                     size_t *out)
{
    size_t best = dict->count;
    for (size_t i = 0; i < dict->count; i++) {
        int order = 1;
        if (last && !eval_order(ev, &dict->pair[i].key, last, &order)) return false;
        if (order <= 0) continue;
        order = -1;
        if (best < dict->count && !eval_order(ev, &dict->pair[i].key, &dict->pair[best].key, &order))
            return false;
        if (order < 0) best = i;
    }
    *out = best;
    return best < dict->count || eval_raise(ev, "keys without an order");
}

static bool json_dict(struct chat_eval *ev, const struct chat_dict *dict, const struct json_style *style,
                      int level, struct strbuf *sb)
{
    const struct chat_value *last = NULL;
    if (!puts_to(ev, sb, "{")) return false;
    for (size_t i = 0; i < dict->count; i++) {
        size_t at = i;
        if (style->sort && !next_key(ev, dict, last, &at)) return false;
        last = &dict->pair[at].key;
        if (!json_gap(ev, style, i > 0, level + 1, sb) || !json_key(ev, last, style, sb) ||
            !eval_put(ev, sb, style->colon.as.string.text, style->colon.as.string.len) ||
            !eval_write_json(ev, &dict->pair[at].value, style, level + 1, sb))
            return false;
    }
    return (dict->count == 0 || json_gap(ev, style, false, level, sb)) && puts_to(ev, sb, "}");
}

bool eval_write_json(struct chat_eval *ev, const struct chat_value *v, const struct json_style *style,
                     int level, struct strbuf *sb)
{
    bool ok;
    if (!eval_charge(ev, 0) || !eval_enter(ev)) return false;
    if (v->kind == CHAT_STRING)
        ok = json_string(ev, v, style->ascii, sb);
    else if (v->kind == CHAT_LIST || v->kind == CHAT_TUPLE)
        ok = json_list(ev, v->as.list, style, level, sb);
    else if (v->kind == CHAT_DICT)
        ok = json_dict(ev, v->as.dict, style, level, sb);
    else
        ok = json_scalar(ev, v, sb);
    ev->depth--;
    return ok;
}
