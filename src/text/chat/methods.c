/* methods.c - methods of lists, dictionaries and `loop`, and the tables by type. Those of texts are in
 * string_methods.c. Methods that would change their value are listed without a function: transformers' sandbox
 * forbids them, and so do we, by name. */
#include "text/chat/eval.h"
#include <string.h>

static bool dict_get(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct chat_pair *pair;
    if (!eval_dict_lookup(ev, call->self.as.dict, &call->arg[0], &pair)) return false;
    *out = pair ? pair->value : call->arg[1].kind == CHAT_ABSENT ? chat_none() : call->arg[1];
    return true;
}

/* items, keys, values: told apart by their names. */
static bool dict_view(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    const struct chat_dict *dict = call->self.as.dict;
    char which = call->row->name[0];
    struct chat_value *item = eval_alloc(ev, dict->count * sizeof *item);
    if (!item || !eval_charge(ev, dict->count)) return false;
    for (size_t i = 0; i < dict->count; i++) {
        struct chat_value *two;
        item[i] = which == 'k' ? dict->pair[i].key : dict->pair[i].value;
        if (which != 'i') continue;
        if (!(two = eval_alloc(ev, 2 * sizeof *two))) return false;
        two[0] = dict->pair[i].key;
        two[1] = dict->pair[i].value;
        if (!eval_list(ev, CHAT_TUPLE, two, 2, &item[i])) return false;
    }
    return eval_list(ev, CHAT_VIEW, item, dict->count, out);
}

static bool loop_cycle(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    if (call->count == 0) return eval_raise(ev, "loop.cycle needs something to choose from");
    *out = call->given[call->self.as.loop->index % call->count];
    return true;
}

static const struct chat_row list_methods[] = {
    {"append", NULL, 0, NULL}, {"extend", NULL, 0, NULL},  {"insert", NULL, 0, NULL},
    {"pop", NULL, 0, NULL},    {"remove", NULL, 0, NULL},  {"clear", NULL, 0, NULL},
    {"sort", NULL, 0, NULL},   {"reverse", NULL, 0, NULL}, {NULL, NULL, 0, NULL},
};

static const struct chat_row dict_methods[] = {
    {"get", "key default", 1, dict_get},
    {"items", "", 0, dict_view},
    {"keys", "", 0, dict_view},
    {"values", "", 0, dict_view},
    {"pop", NULL, 0, NULL},
    {"update", NULL, 0, NULL},
    {"setdefault", NULL, 0, NULL},
    {"clear", NULL, 0, NULL},
    {"popitem", NULL, 0, NULL},
    {NULL, NULL, 0, NULL},
};

static const struct chat_row loop_methods[] = {
    {"cycle", NULL, 0, loop_cycle},
    {NULL, NULL, 0, NULL},
};

static const struct chat_row *const by_kind[CHAT_KINDS] = {
    [CHAT_STRING] = chat_string_methods,
    [CHAT_LIST] = list_methods,
    [CHAT_DICT] = dict_methods,
    [CHAT_LOOP] = loop_methods,
};

const struct chat_row *chat_method_find(const struct chat_value *self, const char *name, size_t len)
{
    const struct chat_row *rows = by_kind[self->kind];
    return rows ? chat_row_find(rows, name, len) : NULL;
}
