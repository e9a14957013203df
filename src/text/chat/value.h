/* value.h - the values a template computes with.
 *
 * A value is small and passed by copy. The data it points to lives in the store of one rendering (or in the template, or
 * in the caller's messages) and never changes, except a namespace's attributes and an iterator's position. So values may
 * share data freely, and freeing the store frees them all.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum chat_kind {
    CHAT_ABSENT,    /* an argument that was not given                                   */
    CHAT_UNDEFINED, /* Jinja's Undefined; text is the name that was looked up */
    CHAT_NONE,
    CHAT_BOOL,
    CHAT_INT,
    CHAT_FLOAT,
    CHAT_STRING, /* UTF-8; lengths and indices seen by the template count code points */
    CHAT_LIST,
    CHAT_TUPLE,
    CHAT_VIEW, /* range(), .items(), .keys(), .values(): has a length, no text */
    CHAT_ITER, /* map, select, ...: can be read once, always true */
    CHAT_DICT,
    CHAT_NAMESPACE,
    CHAT_LOOP,
    CHAT_MACRO,
    CHAT_METHOD,   /* of one value: "x.strip" before its call */
    CHAT_FUNCTION, /* a global one                            */
    CHAT_KINDS,
};

struct chat_value {
    enum chat_kind kind;
    bool safe; /* STRING: marked by |safe or |e (markupsafe's Markup); text added to it is escaped */
    union {
        bool boolean;
        int64_t integer;
        double real;
        struct {
            const char *text;
            size_t len;
        } string;
        struct chat_list *list; /* LIST, TUPLE, VIEW, ITER */
        struct chat_dict *dict; /* DICT, NAMESPACE */
        struct chat_loop *loop;
        struct chat_macro *macro;
        struct chat_method *method;
        const struct chat_row *function;
    } as;
};

struct chat_list {
    const struct chat_value *item;
    size_t count;
};

struct chat_pair {
    struct chat_value key, value;
};

struct chat_dict {
    struct chat_pair *pair; /* in order of insertion, each key once */
    size_t count, cap;
};

struct chat_method {
    struct chat_value self;
    const struct chat_row *row;
};

static inline struct chat_value chat_none(void) { return (struct chat_value){.kind = CHAT_NONE}; }

static inline struct chat_value chat_bool(bool b)
{
    return (struct chat_value){.kind = CHAT_BOOL, .as.boolean = b};
}

static inline struct chat_value chat_int(int64_t i)
{
    return (struct chat_value){.kind = CHAT_INT, .as.integer = i};
}

static inline struct chat_value chat_float(double d)
{
    return (struct chat_value){.kind = CHAT_FLOAT, .as.real = d};
}

static inline struct chat_value chat_string(const char *text, size_t len)
{
    return (struct chat_value){.kind = CHAT_STRING, .as.string = {text, len}};
}

/* `name` appears in the error message; may be NULL. */
static inline struct chat_value chat_undefined(const char *name, size_t len)
{
    return (struct chat_value){.kind = CHAT_UNDEFINED, .as.string = {name, len}};
}

static inline bool chat_is_list(const struct chat_value *v)
{
    return v->kind >= CHAT_LIST && v->kind <= CHAT_ITER;
}

/* The type's name in Python: "str", "dict", "NoneType", ... */
const char *chat_type_name(const struct chat_value *v);

/* Python's bool(v). */
bool chat_truth(const struct chat_value *v);

/* Returns true and the value for a bool, int or float; a bool counts as 0 or 1. */
bool chat_as_double(const struct chat_value *v, double *out);
/* Likewise for bool and int. */
bool chat_as_int(const struct chat_value *v, int64_t *out);

/* True for a string with exactly this text. */
bool chat_is_text(const struct chat_value *v, const char *text);

/* The entry of a string key, or NULL. */
struct chat_pair *chat_dict_find(const struct chat_dict *dict, const char *key, size_t len);
