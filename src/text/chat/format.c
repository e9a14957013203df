/* format.c - str.format with fields {}, {0} and {name}. Specifications ({:>5}), conversions ({!r}) and attributes are
 * refused.
 */
#include "text/chat/eval.h"
#include <string.h>

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

/* One field: the text between its braces. */
static bool put_field(struct chat_eval *ev, struct fields *in, const char *at, const char *end, bool safe,
                      struct strbuf *sb)
{
    struct chat_value v, text, escaped;
    for (const char *c = at; c < end; c++)
        if (strchr(":!.[{", *c))
            return eval_fail(ev, PLIM_UNSUPPORTED, "format: the field '{%.*s}' is not supported",
                             (int)(end - at < 60 ? end - at : 60), at);
    if (!argument(ev, in, at, (size_t)(end - at), &v)) return false;
    if (!safe) return eval_write(ev, &v, sb);
    return eval_text(ev, &v, &text) && eval_escape(ev, &text, &escaped) && eval_write(ev, &escaped, sb);
}

bool chat_str_format(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    const char *at = call->self.as.string.text, *end = at + call->self.as.string.len;
    struct fields in = {.call = call};
    STRBUF_AUTO sb = STRBUF_INIT;
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
    return ok && eval_take(ev, &sb, out);
}
