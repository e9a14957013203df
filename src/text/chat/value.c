/* value.c - what can be said about a value without a rendering around it. */
#include "text/chat/value.h"
#include <string.h>

const char *chat_type_name(const struct chat_value *v)
{
    static const char *const names[CHAT_KINDS] = {
        [CHAT_ABSENT] = "nothing",
        [CHAT_UNDEFINED] = "Undefined",
        [CHAT_NONE] = "NoneType",
        [CHAT_BOOL] = "bool",
        [CHAT_INT] = "int",
        [CHAT_FLOAT] = "float",
        [CHAT_STRING] = "str",
        [CHAT_LIST] = "list",
        [CHAT_TUPLE] = "tuple",
        [CHAT_VIEW] = "view",
        [CHAT_ITER] = "generator",
        [CHAT_DICT] = "dict",
        [CHAT_NAMESPACE] = "Namespace",
        [CHAT_LOOP] = "LoopContext",
        [CHAT_MACRO] = "Macro",
        [CHAT_METHOD] = "method",
        [CHAT_FUNCTION] = "function",
    };
    return names[v->kind];
}

bool chat_truth(const struct chat_value *v)
{
    switch (v->kind) {
    case CHAT_ABSENT:
    case CHAT_UNDEFINED:
    case CHAT_NONE:
        return false;
    case CHAT_BOOL:
        return v->as.boolean;
    case CHAT_INT:
        return v->as.integer != 0;
    case CHAT_FLOAT:
        return v->as.real != 0;
    case CHAT_STRING:
        return v->as.string.len > 0;
    case CHAT_LIST:
    case CHAT_TUPLE:
    case CHAT_VIEW:
        return v->as.list->count > 0;
    case CHAT_DICT:
        return v->as.dict->count > 0;
    default:
        return true;
    }
}

bool chat_as_int(const struct chat_value *v, int64_t *out)
{
    if (v->kind != CHAT_BOOL && v->kind != CHAT_INT) return false;
    *out = v->kind == CHAT_BOOL ? v->as.boolean : v->as.integer;
    return true;
}

bool chat_as_double(const struct chat_value *v, double *out)
{
    int64_t whole;
    if (v->kind == CHAT_FLOAT) {
        *out = v->as.real;
        return true;
    }
    if (!chat_as_int(v, &whole)) return false;
    *out = (double)whole;
    return true;
}

bool chat_is_text(const struct chat_value *v, const char *text)
{
    return v->kind == CHAT_STRING && v->as.string.len == strlen(text) &&
           memcmp(v->as.string.text, text, v->as.string.len) == 0;
}

struct chat_pair *chat_dict_find(const struct chat_dict *dict, const char *key, size_t len)
{
    for (size_t i = 0; i < dict->count; i++) {
        const struct chat_value *k = &dict->pair[i].key;
        if (k->kind == CHAT_STRING && k->as.string.len == len && memcmp(k->as.string.text, key, len) == 0)
            return &dict->pair[i];
    }
    return NULL;
}
