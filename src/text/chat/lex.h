/* lex.h - splits a template into tokens.
 *
 * All of Jinja's whitespace control happens here: text between tags comes out as it will be printed.
 */
#pragma once

#include "base/bump.h"
#include "base/status.h"
#include "text/chat/value.h"

enum chat_token_kind {
    T_END,
    T_DATA,      /* text outside of tags */
    T_PRINT,     /* {{ */
    T_PRINT_END, /* }} */
    T_BLOCK,     /* {% */
    T_BLOCK_END, /* %} */
    T_NAME,      /* text                  */
    T_STRING,    /* value, escapes decoded */
    T_INT,       /* value                 */
    T_FLOAT,     /* value                 */
    T_OP,        /* text: one of the operators */
};

struct chat_token {
    enum chat_token_kind kind;
    int line;
    const char *text;
    size_t len;
    struct chat_value value;
};

/* The tokens of text[0..len), the last of kind T_END. They, and the texts they point to, live in `store`. */
enum plim_status chat_lex(const char *text, size_t len, const char *name, struct bump *store,
                          struct chat_token **out, struct plim_error *err);

/* For messages: "name 'foo'", "'+'", "end of the template"; buf has room for 64. */
const char *chat_token_describe(const struct chat_token *token, char buf[64]);
