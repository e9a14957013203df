/* text_replace.h - "every match of a pattern becomes this text", for the normalizer and the decoder Replace.
 *
 *     "pattern": {"String": "a"} or {"Regex": " {2,}"}, "content": "b"
 *
 * Matches do not overlap and are found from left to right. An empty match right behind
 * another match does not count. In an empty text nothing matches.
 */
#ifndef PLIM_TEXT_TOKENIZER_TEXT_REPLACE_H
#define PLIM_TEXT_TOKENIZER_TEXT_REPLACE_H

#include "base/node.h"
#include "base/status.h"
#include "base/strbuf.h"

struct regex;

struct text_replace {
    char *pattern, *content;
    size_t pattern_len, content_len;
    size_t least; /* 0: the pattern is a text; else: a run of at least so many of it (or of any space) */
    bool any_space;
    struct regex *regex; /* set for all other expressions */
};

/* Reads "pattern" and "content" of spec. `what` stands in errors ("normalizer", "decoder"). Of a regular
 * expression regex.h says what is supported. On errors nothing needs to be released. */
enum plim_status text_replace_read(struct text_replace *r, const struct node *spec, const char *what,
                                   const char *name, struct plim_error *err);
void text_replace_release(struct text_replace *r);

/* Appends text with its matches replaced. */
void text_replace_run(const struct text_replace *r, const char *text, size_t len, struct strbuf *out);
/* Is there nothing to replace? */
bool text_replace_is_identity(const struct text_replace *r, const char *text, size_t len);

#endif
