/* text_replace.h - replaces every match of a pattern by a text; for the normalizer and the decoder named Replace.
 *
 *     "pattern": {"String": "a"} or {"Regex": " {2,}"}, "content": "b"
 *
 * Matches do not overlap and are found from left to right. An empty match directly after another match does not count.
 * An empty text has no matches.
 */
#pragma once

#include "base/node.h"
#include "base/status.h"
#include "base/strbuf.h"

struct regex;

struct text_replace {
    char *pattern, *content;
    size_t pattern_len, content_len;
    size_t least; /* 0: the pattern is a text; else: a run of at least this many of it (or of any space) */
    bool any_space;
    struct regex *regex; /* used for all other expressions */
};

/* Reads "pattern" and "content" of spec. `what` appears in errors ("normalizer", "decoder"). regex.h lists
 * the supported expressions. On failure nothing needs releasing. */
enum plim_status text_replace_read(struct text_replace *r, const struct node *spec, const char *what,
                                   const char *name, struct plim_error *err);
void text_replace_release(struct text_replace *r);

/* Appends text with its matches replaced. */
void text_replace_run(const struct text_replace *r, const char *text, size_t len, struct strbuf *out);
/* True if there is nothing to replace. */
bool text_replace_is_identity(const struct text_replace *r, const char *text, size_t len);
