/* decoder_part.h - what the decoder's files share. Outside of them only part.h is used.
 *
 * A decoder is a chain of steps; a step turns a list of texts into a list of texts.
 */
#ifndef PLIM_DATA_TOKENIZER_DECODER_PART_H
#define PLIM_DATA_TOKENIZER_DECODER_PART_H

#include "text/tokenizer/part.h"
#include "text/tokenizer/text_replace.h"

/* One buffer, and where each text in it ends. Out of memory is sticky in `text`. */
struct text_list {
    struct strbuf text;
    size_t *end;
    size_t count, cap;
};

/* Everything added to list->text since the last call is one text. */
void text_list_close(struct text_list *list);
struct token_text text_list_item(const struct text_list *list, size_t i);

struct decoder_step;
typedef void decoder_run(const struct decoder_step *, const struct text_list *in, struct text_list *out);

struct decoder_step {
    decoder_run *run;
    char *text; /* the replacement, prefix, suffix or content */
    size_t len;
    size_t start, stop; /* Strip */
    bool flag;          /* Metaspace: a blank was put before the text; WordPiece: clean up */
    struct text_replace replace;
};

/* decoder_steps.c: `out` is empty when they are called. */
decoder_run decoder_byte_level, decoder_byte_fallback, decoder_metaspace, decoder_wordpiece, decoder_bpe,
    decoder_fuse, decoder_strip, decoder_replace;

#endif
