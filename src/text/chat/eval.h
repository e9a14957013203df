/* eval.h - the state of one rendering: limits, scopes, and the interface of filters, tests, methods and functions.
 *
 * Every function that can fail calls eval_fail and returns false; callers return false too. Memory comes from eval_alloc,
 * which enforces the limit, and is freed at the end of the rendering.
 *
 * A built-in is a row of a table: its name, its parameters as one string ("old new count"), how many of them are
 * required, and its function. The function finds the arguments in call->arg[] in the order of the parameters (kind
 * CHAT_ABSENT when not given). A row whose params is NULL takes any arguments, unbound, in call->given[].
 */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"
#include "text/chat/turns.h"
#include "text/chat_template.h"

enum { CALL_ARGS = 6, CALL_GIVEN = 16, EVAL_DEPTH_MAX = 400, VALUE_DEPTH_MAX = 150 };

struct chat_scope {
    struct chat_scope *parent;
    struct scope_var {
        int name;
        struct chat_value value;
    } * vars;
    size_t count, cap;
    bool captured; /* a macro was defined in it or below; it must not be reused */
};

struct chat_macro {
    const struct chat_stmt *stmt;
    struct chat_scope *scope; /* where it was defined */
};

struct chat_loop {
    const struct chat_value *item;
    size_t index, count;
};

enum chat_flow { FLOW_NORMAL, FLOW_BREAK, FLOW_CONTINUE };

struct chat_eval {
    const struct chat_template *tmpl;
    const struct chat_options *options;
    struct bump store;
    struct chat_value *globals; /* by number of the name */
    struct chat_scope *scope;
    struct strbuf *out;
    struct chat_spans *spans;   /* NULL: not wanted */
    const struct strbuf *final; /* what the spans' offsets refer to */
    size_t final_base;
    struct chat_turns *turns; /* may be NULL */
    enum chat_flow flow;
    int line, depth;
    uint64_t steps;
    uint64_t max_steps;
    size_t used;    /* by the store */
    size_t written; /* bytes in the output and in unfinished texts */
    size_t max_bytes, max_output;
    enum plim_status status;
    struct plim_error *err;
};

struct chat_call {
    const struct chat_row *row;
    struct chat_value self;           /* the value that is filtered or tested, or that has the method */
    struct chat_value arg[CALL_ARGS]; /* bound to the row's parameters */
    const struct chat_value *given;   /* as written */
    const char *const *keys;          /* of given; NULL entry: by position */
    size_t count;                     /* of given */
};

typedef bool chat_builtin(struct chat_eval *ev, struct chat_call *call, struct chat_value *out);

struct chat_row {
    const char *name;
    const char *params;
    int required;
    chat_builtin *fn; /* NULL: known, but it would change its value, which templates may not do */
};

/* Tables; NULL when there is no such row. */
const struct chat_row *chat_filter_find(const char *name, size_t len);
const struct chat_row *chat_test_find(const char *name, size_t len);
const struct chat_row *chat_function_find(const char *name, size_t len);
const struct chat_row *chat_method_find(const struct chat_value *self, const char *name, size_t len);
extern const struct chat_row chat_list_filters[], chat_string_methods[];
const struct chat_row *chat_row_find(const struct chat_row *rows, const char *name, size_t len);

/* ---- bounds and errors (eval.c) ---- */

bool eval_fail(struct chat_eval *ev, enum plim_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* eval_fail with PLIM_BAD_INPUT: for errors that Python would raise. */
#define eval_raise(ev, ...) eval_fail(ev, PLIM_BAD_INPUT, __VA_ARGS__)
/* Counts steps; `work` is the number of bytes or items examined. */
bool eval_charge(struct chat_eval *ev, size_t work);
void *eval_alloc(struct chat_eval *ev, size_t bytes);
/* A growing array: where count reaches *cap, *array moves to twice the room. */
bool eval_grow(struct chat_eval *ev, void *array, size_t count, size_t *cap, size_t item);
/* One level deeper into a value; the caller counts ev->depth down again. */
bool eval_enter(struct chat_eval *ev);
bool eval_copy(struct chat_eval *ev, const char *text, size_t len, struct chat_value *out);
bool eval_list(struct chat_eval *ev, enum chat_kind kind, const struct chat_value *item, size_t count,
               struct chat_value *out);
/* Turns the text of a buffer into a value. Always releases the buffer. */
bool eval_take(struct chat_eval *ev, struct strbuf *sb, struct chat_value *out);
/* Appends within the limits. */
bool eval_put(struct chat_eval *ev, struct strbuf *sb, const char *text, size_t len);
bool eval_undefined(struct chat_eval *ev, const struct chat_value *v);
/* Escapes & < > " ' as entities and marks the text safe. A safe text is unchanged. */
bool eval_escape(struct chat_eval *ev, const struct chat_value *text, struct chat_value *out);

/* ---- expressions and calls (eval.c, call.c) ---- */

bool eval_expr(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out);
/* Binds call->given to the row's parameters and calls its function. */
bool eval_builtin(struct chat_eval *ev, struct chat_call *call, struct chat_value *out);
/* A method of a text that is marked safe (markup.c); arguments are bound. */
bool eval_safe_method(struct chat_eval *ev, struct chat_call *call, struct chat_value *out);
bool eval_call_expr(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out);
bool eval_row_expr(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out);
/* Filters or tests a value (for block filters, select, map). */
bool eval_apply(struct chat_eval *ev, const struct chat_row *row, const struct chat_value *self,
                const struct chat_value *given, const char *const *keys, size_t count,
                struct chat_value *out);
/* The filters of {% set x | f %} and {% filter f %}; e may be NULL. */
bool eval_block_filters(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *v);

bool eval_attr(struct chat_eval *ev, const struct chat_value *v, const char *name, size_t len,
               struct chat_value *out);
bool eval_item(struct chat_eval *ev, const struct chat_value *v, const struct chat_value *key,
               struct chat_value *out);
bool eval_slice(struct chat_eval *ev, const struct chat_value *v, const struct chat_value bounds[3],
                struct chat_value *out);
bool eval_binary(struct chat_eval *ev, enum chat_op op, const struct chat_value *a,
                 const struct chat_value *b, struct chat_value *out);
bool eval_negate(struct chat_eval *ev, const struct chat_value *a, struct chat_value *out);

/* ---- values in general (compare.c, write.c) ---- */

bool eval_equal(struct chat_eval *ev, const struct chat_value *a, const struct chat_value *b, bool *out);
/* *out is <0, 0 or >0; fails where Python cannot order the values. */
bool eval_order(struct chat_eval *ev, const struct chat_value *a, const struct chat_value *b, int *out);
bool eval_contains(struct chat_eval *ev, const struct chat_value *in, const struct chat_value *v, bool *out);
/* All items of a list, characters of a string or keys of a dict. Consumes an iterator. */
bool eval_items(struct chat_eval *ev, const struct chat_value *v, struct chat_list *out);
bool eval_length(struct chat_eval *ev, const struct chat_value *v, int64_t *out);
bool eval_dict_set(struct chat_eval *ev, struct chat_dict *dict, const struct chat_value *key,
                   const struct chat_value *value);
bool eval_dict_new(struct chat_eval *ev, struct chat_value *out);
bool eval_dict_lookup(struct chat_eval *ev, const struct chat_dict *dict, const struct chat_value *key,
                      struct chat_pair **out);

/* Python's str(v), appended or as a value. */
bool eval_write(struct chat_eval *ev, const struct chat_value *v, struct strbuf *sb);
bool eval_text(struct chat_eval *ev, const struct chat_value *v, struct chat_value *out);

struct json_style {
    bool ascii, sort;
    bool spread;              /* one entry per line */
    struct chat_value indent; /* a string */
    struct chat_value comma, colon;
};
bool eval_write_json(struct chat_eval *ev, const struct chat_value *v, const struct json_style *style,
                     int level, struct strbuf *sb);
void chat_write_float(double d, char buf[40]); /* Python's repr */

/* ---- patterns (format.c) ---- */

bool chat_str_format(struct chat_eval *ev, struct chat_call *call, struct chat_value *out);

/* ---- statements (exec.c) ---- */

bool exec_body(struct chat_eval *ev, const struct chat_stmt *body);
bool exec_macro(struct chat_eval *ev, const struct chat_macro *macro, const struct chat_value *given,
                const char *const *keys, size_t count, struct chat_value *out);
bool scope_set(struct chat_eval *ev, struct chat_scope *scope, int name, const struct chat_value *value);

enum { CHAT_STEPS = 10000000, CHAT_BYTES = 64 << 20 }; /* used where the options are 0 */

/* The conversation to render: its first `count` messages. */
struct chat_talk {
    const struct node *messages;
    size_t count;
    /* NULL: messages become values for this rendering only, and turns are not recorded. */
    struct chat_turns *turns;
};

/* Renders a template into out (see chat_template_render); spans may be NULL. Adds the steps taken to *steps
 * unless it is NULL. */
enum plim_status chat_eval_render(const struct chat_template *tmpl, const struct chat_talk *talk,
                                  const struct chat_options *options, struct strbuf *out,
                                  struct chat_spans *spans, uint64_t *steps, struct plim_error *err);

/* Converts the messages to values, in `store`, for turns->item. */
enum plim_status chat_eval_messages(const struct chat_template *tmpl, const struct node *messages,
                                    const struct chat_options *options, struct bump *store,
                                    struct chat_turns *turns, struct plim_error *err);

bool chat_spans_add(struct chat_spans *spans, size_t begin, size_t end);
