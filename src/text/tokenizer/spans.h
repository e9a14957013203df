/* spans.h - traces tokens back to the characters they come from while a text is encoded.
 *
 * The walk is at one character of the text and only moves forward. It normalizes that character alone to learn how many
 * normalized bytes come from it. If the characters one by one do not give the same text as the normalizer did, the walk is
 * lost. It needs no table for a text of any length.
 *
 *     span_begin(&walk, normalizer, model, text, &spans);
 *     span_stretch(&walk, part, part_len, made, made_len);      // `made` is what the model sees of a part of the text
 *     span_piece(&walk, piece, piece_len, ids, count);          // for each piece of `made`, in order
 *     if (walk.lost) ...
 *     span_end(&walk);
 */
#pragma once

#include "text/tokenizer/part.h"

struct span_walk {
    struct span_list *out;
    const struct normalizer *normalizer;
    const struct token_model *model;
    const char *text;         /* the whole text, valid UTF-8 */
    size_t at, point;         /* byte and index of the current character */
    size_t end;               /* of the stretch, in text */
    const char *made;         /* of the stretch */
    size_t made_len;          /* its bytes */
    size_t done, here;        /* bytes of `made` from earlier characters, and from this one */
    const char *copy, *first; /* ByteLevel: a copy of a part of `made` after one blank, and that part */
    size_t copy_len;
    struct strbuf one, spare;
    bool same;   /* `made` is the part of the text itself */
    bool lost;   /* the text was rewritten in a way that cannot be traced */
    bool failed; /* out of memory */
};

void span_begin(struct span_walk *w, const struct normalizer *normalizer, const struct token_model *model,
                const char *text, struct span_list *out);
void span_end(struct span_walk *w);

/* The next part of the text, and the text the model sees for it: the same, or the normalizer's output. */
void span_stretch(struct span_walk *w, const char *part, size_t len, const char *made, size_t made_len);
/* A step put a blank before `from`. */
void span_blank(struct span_walk *w, const char *from, const char *copy, size_t copy_len);
/* Tokens of one piece, or of one range of `made`. */
void span_piece(struct span_walk *w, const char *piece, size_t len, const int32_t *ids, size_t count);
void span_range(struct span_walk *w, size_t begin, size_t end);
