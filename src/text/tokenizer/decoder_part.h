/* decoder_part.h - shared by the decoder's source files. Other code uses part.h.
 *
 * A decoder is a chain of steps. A sequence of texts flows through it, at first one per token: bytes are put, and a text is
 * closed when it is complete. A step passes on the part that is certain and holds the rest, so decoding token by token and
 * decoding all at once give the same result.
 *
 *     decoder_put(flow, step + 1, bytes, len);      // more of the text
 *     decoder_close(flow, step + 1);                // the text is complete
 *     decoder_end(flow, step + 1);                  // there are no more texts
 *
 * Texts are put in whole characters.
 */
#pragma once

#include "text/tokenizer/part.h"
#include "text/tokenizer/text_replace.h"

/* State of one decoder step. */
struct decoder_state {
    struct strbuf item; /* the text that is not closed yet */
    struct strbuf held; /* bytes of incomplete characters; BPEDecoder: the previous text */
    size_t count;       /* texts closed so far */
    size_t dropped;     /* Strip: characters removed at the start of the text */
    bool inside, waits; /* Strip: past the start; BPEDecoder: there is a previous text */
    size_t passed;      /* bytes put into the next step */
};

struct token_decoding {
    const struct token_decoder *decoder;
    struct decoder_state *state; /* of each step */
    struct strbuf *out;          /* of the current call */
    struct strbuf spare[2];
    size_t fed; /* bytes put in, plus one per token; limits the output */
    bool failed, full;
};

struct decoder_step;
typedef void decoder_flow(struct token_decoding *flow, size_t step);
typedef void decoder_piece(const struct decoder_step *step, struct token_bytes token, struct strbuf *out);

struct decoder_kind {
    const char *type;
    /* Reads its part of tokenizer.json; NULL: there is nothing to read. */
    enum plim_status (*build)(struct decoder_step *, const struct node *, const char *name,
                              struct plim_error *);
    /* Takes more of a text; NULL: it is collected in state->item. */
    void (*put)(struct token_decoding *, size_t step, const char *bytes, size_t len);
    decoder_flow *close;
    /* Passes on the text that the step still holds; the caller then runs decoder_end. NULL: the step holds
     * nothing. */
    decoder_flow *end;
    /* Appends the result for one token inside a text; NULL: the token itself. */
    decoder_piece *piece;
};

struct decoder_step {
    const struct decoder_kind *kind;
    char *text; /* the replacement, prefix, suffix or content */
    size_t len;
    size_t start, stop; /* Strip */
    bool flag;          /* Metaspace: a blank was put before the text; WordPiece: clean up */
    struct text_replace replace;
};

struct token_decoder {
    struct decoder_step *step;
    size_t count, cap;
};

void decoder_put(struct token_decoding *flow, size_t step, const char *bytes, size_t len);
void decoder_close(struct token_decoding *flow, size_t step);
void decoder_end(struct token_decoding *flow, size_t step);

/* Maximum output of a step: three bytes per byte, plus 1 MiB. decoder_left: bytes that `step` may still
 * put. */
size_t decoder_most(size_t fed);
size_t decoder_left(const struct token_decoding *flow, size_t step);

/* decoder_build.c: all kinds; the last has no type. */
extern const struct decoder_kind decoder_kinds[];

/* decoder_steps.c */
decoder_flow decoder_byte_level_close, decoder_byte_level_end, decoder_byte_fallback_close,
    decoder_byte_fallback_end, decoder_metaspace_close, decoder_wordpiece_close, decoder_bpe_close,
    decoder_bpe_end, decoder_fuse_close, decoder_fuse_end, decoder_strip_close, decoder_replace_close;
void decoder_fuse_put(struct token_decoding *flow, size_t step, const char *bytes, size_t len);
void decoder_strip_put(struct token_decoding *flow, size_t step, const char *bytes, size_t len);
/* Appends the bytes for a token in the byte alphabet. Returns false if it is not in the alphabet. */
bool decoder_add_alphabet(struct strbuf *out, struct token_bytes token);
int decoder_fallback_byte(struct token_bytes token);
void decoder_clean_up(struct strbuf *text, struct strbuf *spare);

/* decoder_piece.c */
decoder_piece decoder_byte_level_piece, decoder_byte_fallback_piece, decoder_blank_piece,
    decoder_wordpiece_piece, decoder_strip_piece, decoder_replace_piece;
