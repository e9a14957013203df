/* functions.c - the functions every template can call. */
#include "text/chat/eval.h"
#include <string.h>
#include <time.h>

enum { RANGE_MAX = 100000, DATE_MAX = 1024 }; /* the first is Jinja's own limit */

static bool fn_raise(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    if (!eval_text(ev, &call->arg[0], out)) return false;
    size_t len = out->as.string.len < 700 ? out->as.string.len : 700;
    return eval_raise(ev, "%.*s", (int)len, out->as.string.text);
}

static bool fn_strftime(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    char format[DATE_MAX], text[4 * DATE_MAX];
    struct tm tm;
    time_t now = time(NULL);
    const struct chat_value *f = &call->arg[0];
    if (f->kind != CHAT_STRING) return eval_raise(ev, "strftime_now needs a text");
    if (f->as.string.len + 2 > sizeof format || memchr(f->as.string.text, '\0', f->as.string.len))
        return eval_raise(ev, "strftime_now: the format is too long");
    /* A mark at the end tells an empty result from one that did not fit. */
    memcpy(format, f->as.string.text, f->as.string.len);
    memcpy(format + f->as.string.len, "x", 2);
    if (ev->options->now)
        tm = *ev->options->now;
    else if (!localtime_r(&now, &tm))
        return eval_raise(ev, "the time of day is not known");
    size_t n = strftime(text, sizeof text, format, &tm);
    if (n == 0) return eval_raise(ev, "strftime_now: the text is too long");
    return eval_copy(ev, text, n - 1, out);
}

static bool named_values(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    if (!eval_dict_new(ev, out)) return false;
    for (size_t i = 0; i < call->count; i++) {
        const struct chat_value *v = &call->given[i];
        if (call->keys[i]) {
            struct chat_value key = chat_string(call->keys[i], strlen(call->keys[i]));
            if (!eval_dict_set(ev, out->as.dict, &key, v)) return false;
            continue;
        }
        if (i > 0 || v->kind != CHAT_DICT)
            return eval_fail(ev, PLIM_UNSUPPORTED, "'%s' of a '%s' is not supported", call->row->name,
                             chat_type_name(v));
        for (size_t k = 0; k < v->as.dict->count; k++)
            if (!eval_dict_set(ev, out->as.dict, &v->as.dict->pair[k].key, &v->as.dict->pair[k].value))
                return false;
    }
    return true;
}

static bool fn_namespace(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    if (!named_values(ev, call, out)) return false;
    out->kind = CHAT_NAMESPACE;
    return true;
}

static bool fn_range(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    int64_t at[3] = {0, 0, 1}, count;
    for (int i = 0; i < 3; i++)
        if (call->arg[i].kind != CHAT_ABSENT && !chat_as_int(&call->arg[i], &at[i]))
            return eval_raise(ev, "range needs whole numbers, not '%s'", chat_type_name(&call->arg[i]));
    if (call->arg[1].kind == CHAT_ABSENT) at[1] = at[0], at[0] = 0;
    if (at[2] == 0) return eval_raise(ev, "range: the step cannot be 0");
    __int128 span = (__int128)at[1] - at[0], step = at[2]; /* wide, so that nothing overflows */
    if (step < 0) span = -span, step = -step;
    __int128 n = span <= 0 ? 0 : (span + step - 1) / step;
    count = n > RANGE_MAX ? RANGE_MAX + 1 : (int64_t)n;
    if (count > RANGE_MAX) return eval_raise(ev, "range: more than %d numbers", RANGE_MAX);
    struct chat_value *item = eval_alloc(ev, (size_t)count * sizeof *item);
    if (!item || !eval_charge(ev, (size_t)count)) return false;
    for (int64_t i = 0; i < count; i++) item[i] = chat_int((int64_t)((__int128)at[0] + (__int128)i * at[2]));
    return eval_list(ev, CHAT_VIEW, item, (size_t)count, out);
}

static const struct chat_row functions[] = {
    {"raise_exception", "message", 1, fn_raise}, {"strftime_now", "format", 1, fn_strftime},
    {"namespace", NULL, 0, fn_namespace},        {"dict", NULL, 0, named_values},
    {"range", "start stop step", 1, fn_range},   {NULL, NULL, 0, NULL},
};

const struct chat_row *chat_function_find(const char *name, size_t len)
{
    return chat_row_find(functions, name, len);
}
