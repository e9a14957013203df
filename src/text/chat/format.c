/* format.c - texts made by pattern: str.format and its specifications, and the operator %.
 *
 * Both come down to the same thing: a value, and how it is to be laid out (struct layout). Python's rules for strings,
 * whole numbers and fractions; dates and other objects do not occur in templates.
 */
#include "base/utf8.h"
#include "text/chat/eval.h"
#include "text/chat/unicode_text.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH_MOST = 10000, PRECISION_MOST = 100, DIGITS = 512 };

struct layout {
    char fill[4];
    size_t fill_len;
    char align; /* < > ^ =, or 0: as the type has it */
    char sign;  /* - + or blank */
    bool alternate;
    int width, precision; /* -1: not given */
    char group;           /* , or _, or 0 */
    char type;            /* 0: none */
};

/* ---- laying out ---- */

static bool put_fill(struct chat_eval *ev, struct strbuf *sb, const struct layout *f, int64_t times)
{
    while (times-- > 0)
        if (!eval_put(ev, sb, f->fill, f->fill_len)) return false;
    return true;
}

/* head (a sign, a prefix) and body, filled up to the width. */
static bool put_padded(struct chat_eval *ev, struct strbuf *sb, const struct layout *f, char align,
                       const char *head, const char *body, size_t len)
{
    int64_t room = f->width - (int64_t)strlen(head) - (int64_t)utext_count(body, len);
    int64_t left = room <= 0 || align == '<' ? 0 : align == '^' ? room / 2 : room;
    int64_t right = room > 0 && align != '=' ? room - left : 0;
    bool inside = align == '=';
    return (inside || put_fill(ev, sb, f, left)) && eval_put(ev, sb, head, strlen(head)) &&
           (!inside || put_fill(ev, sb, f, left)) && eval_put(ev, sb, body, len) &&
           put_fill(ev, sb, f, right);
}

static bool put_string(struct chat_eval *ev, struct strbuf *sb, const struct layout *f,
                       const struct chat_value *v)
{
    size_t len = v->as.string.len;
    if (f->precision >= 0) len = utext_offset(v->as.string.text, len, (size_t)f->precision);
    return put_padded(ev, sb, f, f->align ? f->align : '<', "", v->as.string.text, len);
}

/* Digits with a sign between every three of them (every four, beyond ten), up to the point. */
static size_t group_digits(const char *digits, char sign, int every, char out[2 * DIGITS])
{
    size_t whole = strspn(digits, "0123456789abcdefABCDEF"), n = 0;
    for (size_t i = 0; digits[i]; i++) {
        if (i && i < whole && (whole - i) % (size_t)every == 0) out[n++] = sign;
        out[n++] = digits[i];
    }
    out[n] = '\0';
    return n;
}

static bool put_number(struct chat_eval *ev, struct strbuf *sb, const struct layout *f, bool minus,
                       const char *prefix, const char *digits)
{
    char head[8], grouped[2 * DIGITS];
    size_t len = strlen(digits);
    snprintf(head, sizeof head, "%s%s",
             minus            ? "-"
             : f->sign == '+' ? "+"
             : f->sign == ' ' ? " "
                              : "",
             prefix);
    if (f->group) {
        len = group_digits(digits, f->group, f->type && strchr("xXob", f->type) ? 4 : 3, grouped);
        digits = grouped;
    }
    return put_padded(ev, sb, f, f->align ? f->align : '>', head, digits, len);
}

static void write_base(uint64_t value, unsigned base, bool upper, char out[80])
{
    char turned[80];
    size_t n = 0;
    do {
        turned[n++] = (upper ? "0123456789ABCDEF" : "0123456789abcdef")[value % base];
        value /= base;
    } while (value);
    for (size_t i = 0; i < n; i++) out[i] = turned[n - 1 - i];
    out[n] = '\0';
}

static bool put_int(struct chat_eval *ev, struct strbuf *sb, const struct layout *f, int64_t value)
{
    static const char types[] = "dboxXn";
    static const unsigned bases[] = {10, 2, 8, 16, 16, 10};
    const char *at = f->type ? strchr(types, f->type) : types;
    char digits[80], prefix[3] = "";
    if (!at) return eval_raise(ev, "a whole number cannot be written as '%c'", f->type);
    unsigned base = bases[at - types];
    write_base(value < 0 ? 0 - (uint64_t)value : (uint64_t)value, base, f->type == 'X', digits);
    if (f->alternate && base != 10) prefix[0] = '0', prefix[1] = f->type;
    return put_number(ev, sb, f, value < 0, prefix, digits);
}

/* Without a type a fraction is written as str() does, or, with a precision, as by %g with a fraction. */
static void write_float(const struct layout *f, double d, char out[DIGITS])
{
    char type = f->type == 'F' ? 'f' : f->type == 'n' ? 'g' : f->type, pattern[8];
    int precision = f->precision < 0 ? 6 : f->precision;
    if (!type && f->precision < 0) {
        chat_write_float(d, out);
        return;
    }
    if (type == '%') d *= 100;
    snprintf(pattern, sizeof pattern, f->alternate ? "%%#.*%c" : "%%.*%c",
             type == '%' ? 'f'
             : type      ? type
                         : 'g');
    snprintf(out, DIGITS - 4, pattern, precision, d);
    char *comma = strchr(out, ',');
    if (comma) *comma = '.';
    if (!type && !strpbrk(out, ".e")) strcat(out, ".0");
    if (type == '%') strcat(out, "%");
}

static bool put_float(struct chat_eval *ev, struct strbuf *sb, const struct layout *f, double d)
{
    char digits[DIGITS];
    if (f->type && !strchr("eEfFgGn%", f->type))
        return eval_raise(ev, "a fraction cannot be written as '%c'", f->type);
    if (!isfinite(d)) {
        snprintf(digits, sizeof digits, "%s%s", isnan(d) ? "nan" : "inf", f->type == '%' ? "%" : "");
        for (char *c = digits; *c && (f->type == 'F' || f->type == 'E' || f->type == 'G'); c++)
            if (*c >= 'a' && *c <= 'z') *c = (char)(*c - 32);
    } else {
        write_float(f, fabs(d), digits);
    }
    return put_number(ev, sb, f, signbit(d) && !isnan(d), "", digits);
}

static bool put_value(struct chat_eval *ev, struct strbuf *sb, const struct layout *f, bool plain,
                      const struct chat_value *v)
{
    int64_t i;
    double d;
    if (plain) return eval_write(ev, v, sb);
    if (v->kind == CHAT_STRING) {
        if (f->type && f->type != 's') return eval_raise(ev, "a text cannot be written as '%c'", f->type);
        return put_string(ev, sb, f, v);
    }
    if (chat_as_int(v, &i) && f->type == 'c') {
        char bytes[4];
        if (i < 0 || i > 0x10ffff) return eval_raise(ev, "%" PRId64 " is no character", i);
        return put_padded(ev, sb, f, f->align ? f->align : '<', "", bytes, utf8_encode((uint32_t)i, bytes));
    }
    bool as_float = v->kind == CHAT_FLOAT || (f->type && strchr("eEfFgG%", f->type));
    if (as_float && chat_as_double(v, &d)) return put_float(ev, sb, f, d);
    if (chat_as_int(v, &i)) return put_int(ev, sb, f, i);
    return eval_raise(ev, "a '%s' cannot be laid out", chat_type_name(v));
}

/* ---- specifications ---- */

static bool read_number(struct chat_eval *ev, const char **at, const char *end, int most, int *out)
{
    *out = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at) {
        *out = 10 * *out + (**at - '0');
        if (*out > most) return eval_raise(ev, "a width or precision beyond %d", most);
    }
    return true;
}

/* "[[fill]align][sign][#][0][width][,][.precision][type]" */
static bool read_spec(struct chat_eval *ev, const char *at, const char *end, struct layout *f)
{
    *f = (struct layout){.fill = " ", .fill_len = 1, .width = -1, .precision = -1};
    size_t first = at < end ? utext_step(*at) : 0;
    if ((size_t)(end - at) > first && first && strchr("<>=^", at[first])) {
        memcpy(f->fill, at, first);
        f->fill_len = first, f->align = at[first], at += first + 1;
    } else if (at < end && strchr("<>=^", *at)) {
        f->align = *at++;
    }
    if (at < end && strchr("+- ", *at)) f->sign = *at++;
    if (at < end && *at == '#') f->alternate = true, at++;
    if (at < end && *at == '0') {
        if (!f->align) f->align = '=', f->fill[0] = '0', f->fill_len = 1;
        at++;
    }
    if (!read_number(ev, &at, end, WIDTH_MOST, &f->width)) return false;
    if (at < end && (*at == ',' || *at == '_')) f->group = *at++;
    if (at < end && *at == '.') {
        at++;
        if (!read_number(ev, &at, end, PRECISION_MOST, &f->precision)) return false;
    }
    if (at < end) f->type = *at++;
    return at == end || eval_raise(ev, "the format specification is not understood");
}

/* ---- str.format ---- */

struct fields {
    const struct chat_call *call; /* given and keys */
    size_t next;                  /* of "{}" */
};

static bool argument(struct chat_eval *ev, struct fields *in, const char *name, size_t len,
                     struct chat_value *out)
{
    const struct chat_call *call = in->call;
    size_t index = len ? 0 : in->next++, position = 0;
    bool number = true;
    for (size_t i = 0; i < len && number; i++) {
        number = name[i] >= '0' && name[i] <= '9' && index < 1000;
        index = 10 * index + (size_t)(name[i] - '0');
    }
    for (size_t i = 0; i < call->count; i++) {
        const char *key = call->keys ? call->keys[i] : NULL;
        bool hit =
            key ? !number && strlen(key) == len && memcmp(key, name, len) == 0 : number && position == index;
        position += !key;
        if (hit) return *out = call->given[i], true;
    }
    return eval_raise(ev, "format: no argument for '{%.*s}'", (int)(len < 60 ? len : 60), name);
}

/* "name.attribute[key]" */
static bool field_value(struct chat_eval *ev, struct fields *in, const char *at, const char *end,
                        struct chat_value *out)
{
    size_t n = 0;
    while (at + n < end && at[n] != '.' && at[n] != '[') n++;
    if (!argument(ev, in, at, n, out)) return false;
    for (at += n; at < end; at += n) {
        struct chat_value from = *out;
        bool bracket = *at++ == '[';
        for (n = 0; at + n < end && (bracket ? at[n] != ']' : at[n] != '.' && at[n] != '[');) n++;
        struct chat_value key = chat_string(at, n);
        int64_t index;
        bool huge;
        if (bracket && utext_int(at, n, 10, &index, &huge) && !huge) key = chat_int(index);
        if (!(bracket ? eval_item(ev, &from, &key, out) : eval_attr(ev, &from, at, n, out))) return false;
        if (out->kind == CHAT_UNDEFINED) return eval_undefined(ev, out);
        if (bracket) n++;
    }
    return true;
}

/* One field: what stands between the braces. */
static bool put_field(struct chat_eval *ev, struct fields *in, const char *at, const char *end, bool safe,
                      struct strbuf *sb)
{
    const char *colon = memchr(at, ':', (size_t)(end - at)), *stop = colon ? colon : end;
    const char *bang = memchr(at, '!', (size_t)(stop - at));
    struct chat_value v, shown;
    struct layout f;
    if (colon && memchr(colon, '{', (size_t)(end - colon)))
        return eval_fail(ev, PLIM_UNSUPPORTED, "format: a field inside a field is not supported");
    if (!field_value(ev, in, at, bang ? bang : stop, &v)) return false;
    if (bang) {
        bool repr = bang + 2 == stop && bang[1] == 'r';
        if (!repr && !(bang + 2 == stop && bang[1] == 's'))
            return eval_raise(ev, "format: after ! comes r or s");
        if (!(repr ? eval_repr(ev, &v, &shown) : eval_text(ev, &v, &shown))) return false;
        v = shown;
    }
    if (!read_spec(ev, colon ? colon + 1 : end, end, &f)) return false;
    bool plain = !colon || colon + 1 == end;
    if (!safe) return put_value(ev, sb, &f, plain, &v);
    struct chat_value text;
    return eval_text(ev, &v, &text) && eval_escape(ev, &text, &v) && put_value(ev, sb, &f, plain, &v);
}

bool chat_str_format(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    const char *at = call->self.as.string.text, *end = at + call->self.as.string.len;
    struct fields in = {.call = call};
    struct strbuf sb = STRBUF_INIT;
    bool ok = eval_charge(ev, call->self.as.string.len);
    while (ok && at < end) {
        const char *brace = at;
        while (brace < end && *brace != '{' && *brace != '}') brace++;
        ok = eval_put(ev, &sb, at, (size_t)(brace - at));
        if (!ok || brace == end) break;
        if (brace + 1 < end && brace[1] == *brace) {
            ok = eval_put(ev, &sb, brace, 1);
            at = brace + 2;
            continue;
        }
        const char *close = *brace == '{' ? memchr(brace, '}', (size_t)(end - brace)) : NULL;
        ok = close ? eval_charge(ev, 0) && put_field(ev, &in, brace + 1, close, call->self.safe, &sb)
                   : eval_raise(ev, "format: a single '%c'", *brace);
        at = close ? close + 1 : end;
    }
    if (!ok) return strbuf_release(&sb), false;
    return eval_take(ev, &sb, out);
}

/* ---- % ---- */

struct percents {
    const struct chat_value *from; /* a tuple, a dictionary, or one value */
    size_t next;
};

static bool next_value(struct chat_eval *ev, struct percents *in, struct chat_value *out)
{
    bool tuple = in->from->kind == CHAT_TUPLE;
    size_t count = tuple ? in->from->as.list->count : 1;
    if (in->next >= count) return eval_raise(ev, "not enough values for the text before %%");
    *out = tuple ? in->from->as.list->item[in->next] : *in->from;
    in->next++;
    return true;
}

static bool star_or_number(struct chat_eval *ev, struct percents *in, const char **at, const char *end,
                           int most, int *out)
{
    struct chat_value v;
    int64_t i;
    if (*at == end || **at != '*') return read_number(ev, at, end, most, out);
    ++*at;
    if (!next_value(ev, in, &v)) return false;
    if (!chat_as_int(&v, &i) || i > most || i < -most) return eval_raise(ev, "* needs a whole number");
    *out = (int)i;
    return true;
}

/* One conversion behind its %: "(name)" flags width .precision type; *at moves behind it. */
static bool put_percent(struct chat_eval *ev, struct percents *in, const char **at, const char *end,
                        struct strbuf *sb)
{
    struct layout f = {.fill = " ", .fill_len = 1, .width = -1, .precision = -1};
    struct chat_value v = {0}, shown;
    struct chat_pair *pair = NULL;
    bool left = false, zero = false;
    double d;
    if (*at < end && **at == '(') {
        const char *close = memchr(*at, ')', (size_t)(end - *at));
        struct chat_value key = chat_string(*at + 1, close ? (size_t)(close - *at) - 1 : 0);
        if (!close || in->from->kind != CHAT_DICT) return eval_raise(ev, "%%(name) needs a dictionary");
        if (!eval_dict_lookup(ev, in->from->as.dict, &key, &pair)) return false;
        if (!pair)
            return eval_raise(ev, "%%(%.*s): there is no such key", (int)key.as.string.len,
                              key.as.string.text);
        v = pair->value, in->next = 1, *at = close + 1;
    }
    for (; *at < end && strchr("-+ #0", **at); ++*at) {
        left |= **at == '-', zero |= **at == '0', f.alternate |= **at == '#';
        if (**at == '+' || (**at == ' ' && !f.sign)) f.sign = **at;
    }
    if (!star_or_number(ev, in, at, end, WIDTH_MOST, &f.width)) return false;
    if (f.width < 0) left = true, f.width = -f.width;
    if (*at < end && **at == '.') {
        ++*at;
        if (!star_or_number(ev, in, at, end, PRECISION_MOST, &f.precision)) return false;
    }
    if (*at == end) return eval_raise(ev, "the text ends in a %%");
    f.type = *(*at)++;
    if (f.type == '%') return eval_put(ev, sb, "%", 1);
    if (!pair && !next_value(ev, in, &v)) return false;
    f.align = left ? '<' : zero ? '=' : '>';
    if (zero && !left) f.fill[0] = '0';
    if (f.type == 's' || f.type == 'r' || f.type == 'a') {
        if (!(f.type == 's' ? eval_text(ev, &v, &shown) : eval_repr(ev, &v, &shown))) return false;
        f.align = left ? '<' : '>', f.fill[0] = ' ';
        return put_string(ev, sb, &f, &shown);
    }
    if (f.type == 'c' && v.kind == CHAT_STRING) return put_string(ev, sb, &f, &v);
    if (f.type == 'i' || f.type == 'u') f.type = 'd';
    if (!chat_as_double(&v, &d))
        return eval_raise(ev, "%%%c needs a number, not '%s'", f.type, chat_type_name(&v));
    if (f.type == 'd' && v.kind == CHAT_FLOAT) {
        if (!(fabs(d) < 9.2e18)) return eval_fail(ev, PLIM_UNSUPPORTED, "a whole number beyond 64 bits");
        v = chat_int((int64_t)d);
    }
    if (!strchr("dxXoceEfFgG", f.type)) return eval_raise(ev, "%%%c is no conversion", f.type);
    return put_value(ev, sb, &f, false, &v);
}

bool eval_percent(struct chat_eval *ev, const struct chat_value *text, const struct chat_value *values,
                  struct chat_value *out)
{
    const char *at = text->as.string.text, *end = at + text->as.string.len;
    struct percents in = {.from = values};
    struct strbuf sb = STRBUF_INIT;
    bool ok = eval_charge(ev, text->as.string.len);
    if (text->safe) return eval_fail(ev, PLIM_UNSUPPORTED, "%% of a text marked safe is not supported");
    while (ok && at < end) {
        const char *mark = memchr(at, '%', (size_t)(end - at));
        ok = eval_put(ev, &sb, at, (size_t)((mark ? mark : end) - at));
        if (!mark || !ok) break;
        at = mark + 1;
        ok = eval_charge(ev, 0) && put_percent(ev, &in, &at, end, &sb);
    }
    size_t count = values->kind == CHAT_TUPLE ? values->as.list->count : values->kind == CHAT_DICT ? 0 : 1;
    if (ok && in.next < count) ok = eval_raise(ev, "too many values for the text before %%");
    if (!ok) return strbuf_release(&sb), false;
    return eval_take(ev, &sb, out);
}
