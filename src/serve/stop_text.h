/* stop_text.h - where a text ends because one of a few strings came, wherever the pieces it comes in are cut.
 *
 *     struct stop_text stop = {.strings = strings, .count = 2};
 *     if (stop_text_add(&stop, piece, len, &out) >= 0) ...        // it came: out ends before it
 *     stop_text_end(&stop, &out);                                 // none came: what was held back is text after all
 *     stop_text_release(&stop);
 *
 * The text ends with the first string that is whole, and before it; of several that end at the same place the longest
 * counts. What may be the beginning of one is held back until that is decided. Strings and pieces are UTF-8, so what comes
 * out never ends inside a character.
 */
#ifndef PLIM_SERVE_STOP_TEXT_H
#define PLIM_SERVE_STOP_TEXT_H

#include "base/strbuf.h"

struct stop_string {
    const char *text; /* not empty */
    size_t len;
};

struct stop_text {
    const struct stop_string *strings; /* borrowed */
    int count;
    struct strbuf held;
};

/* The number of the string that came, or -1. Nothing may be added once one has come. */
int stop_text_add(struct stop_text *stop, const char *piece, size_t len, struct strbuf *out);
void stop_text_end(struct stop_text *stop, struct strbuf *out);
void stop_text_release(struct stop_text *stop);

#endif
