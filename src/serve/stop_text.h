/* stop_text.h - ends a text at the first of a few stop strings, however the text is cut into pieces.
 *
 *     struct stop_text stop = {.strings = strings, .count = 2};
 *     if (stop_text_add(&stop, piece, len, &out) >= 0) ...        // found: out ends before it
 *     stop_text_end(&stop, &out);                                 // not found: releases the text held back
 *     stop_text_release(&stop);
 *
 * The text ends before the first complete string; if several end at the same place, the longest counts. A possible
 * beginning of one is held back until it is decided. Strings and pieces are UTF-8, so the output never ends inside a
 * character.
 */
#pragma once

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

/* Index of the string that was found, or -1. Add nothing after one was found. */
int stop_text_add(struct stop_text *stop, const char *piece, size_t len, struct strbuf *out);
void stop_text_end(struct stop_text *stop, struct strbuf *out);
void stop_text_release(struct stop_text *stop);
