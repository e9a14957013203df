/* tree.h - a parsed template: statements that hold expressions. Built by parse.c and parse_expr.c, then read-only.
 * Everything lives in the template's store.
 *
 * Variable names are numbered in order of appearance, so that scopes compare numbers. `depth` of an expression is the
 * height of its tree; the parser limits it, because evaluation recurses.
 */
#pragma once

#include "base/bump.h"
#include "text/chat/value.h"

enum chat_op {
    CHAT_ADD,
    CHAT_SUB,
    CHAT_MUL,
    CHAT_MOD,
    CHAT_EQ,
    CHAT_NE,
    CHAT_LT,
    CHAT_LE,
    CHAT_GT,
    CHAT_GE,
    CHAT_IN,
    CHAT_NOT_IN,
};

enum expr_kind {
    E_CONST,  /* value                                              */
    E_NAME,   /* name                                               */
    E_TUPLE,  /* items                                              */
    E_LIST,   /* items                                              */
    E_DICT,   /* items: key, value, key, value, ...                 */
    E_ATTR,   /* a . value                                          */
    E_ITEM,   /* a [ b ]                                            */
    E_SLICE,  /* a [ items[0] : items[1] : items[2] ], NULL allowed */
    E_CALL,   /* a ( args )                                         */
    E_FILTER, /* a | row ( args ); a is NULL in block filters; value: its name, row NULL when there is none */
    E_TEST,   /* a is row ( args ), likewise                        */
    E_NOT,    /* not a                                              */
    E_NEG,    /* - a                                                */
    E_POS,    /* + a                                                */
    E_AND,    /* a and b                                            */
    E_OR,     /* a or b                                             */
    E_BINARY, /* a op b                                             */
    E_CONCAT, /* items joined with ~                                */
    E_COMPARE, /* a ops[0] items[0] ops[1] items[1] ...              */
    E_COND,    /* b if a else c; c may be NULL                       */
    E_NSREF,   /* name . value, on the left of =                     */
    E_KINDS,
};

struct chat_row;

struct chat_expr {
    enum expr_kind kind;
    enum chat_op op;
    int line, depth;
    int name;
    struct chat_expr *a, *b, *c;
    struct chat_expr **items;
    const char **keys; /* of arguments; NULL entry: by position */
    enum chat_op *ops;
    size_t count; /* of items */
    struct chat_value value;
    const struct chat_row *row;
};

enum stmt_kind {
    S_DATA,       /* literal text */
    S_PRINT,      /* {{ expr }}                */
    S_IF,         /* branches                  */
    S_FOR,        /* target, expr, test, body, other */
    S_SET,        /* target = expr             */
    S_SET_BLOCK,  /* target = body | expr      */
    S_MACRO,      /* name, params, body        */
    S_FILTER,     /* body | expr               */
    S_GENERATION, /* body, marked              */
    S_BREAK,
    S_CONTINUE,
    S_KINDS,
};

struct chat_stmt {
    enum stmt_kind kind;
    int line;
    struct chat_stmt *next;
    const char *text; /* S_DATA */
    size_t len;
    struct chat_expr *target, *expr, *test;
    /* other: else of a loop, or the next branch of an if (test NULL: else) */
    struct chat_stmt *body, *other;
    int name;     /* S_MACRO */
    size_t count; /* S_MACRO: parameters */
    int *params;
    struct chat_expr **values; /* their defaults, NULL: none */
};

struct chat_name {
    const char *text;
    size_t len;
};

struct chat_template {
    struct bump store; /* the template itself lives in it */
    const char *name;
    uint64_t fingerprint; /* of its text */
    struct chat_stmt *body;
    struct chat_name *names;
    size_t name_count, name_cap;
    bool has_generation;
    /* The loop over the messages; prefixes are derived from its turns (turns.h). NULL: there is none. */
    const struct chat_stmt *loop;
    size_t loop_need;         /* messages a prefix needs for that */
    struct chat_pair *tokens; /* special tokens of tokenizer_config.json */
    size_t token_count;
};
