/* token_text.h - generated tokens as text, while they come, with any tokenizer.
 *
 *     struct token_text text;
 *     token_text_init(&text, &codec);
 *     token_text_add(&text, token, &out, &err);      // appends what has become certain
 *     token_text_end(&text, &out, &err);             // and the rest
 *     token_text_release(&text);
 *
 * What comes out is valid UTF-8 at every moment, and all of it together is the decoded text of prompt and tokens, less
 * what it has in common with the decoded text of the prompt alone: wherever the prompt ends and however the tokens come.
 * So a character whose bytes are spread over several tokens leaves when it is whole, and a prompt that ends inside of one
 * is followed by all of it.
 */
#ifndef PLIM_TEXT_TOKEN_TEXT_H
#define PLIM_TEXT_TOKEN_TEXT_H

#include "text/codec.h"
#include "text/byte_text.h"

struct token_text {
    const struct codec *codec;
    struct byte_text bytes; /* without a tokenizer */
    struct decoding *decoding;
    struct strbuf piece; /* what has just become certain */
    struct strbuf known; /* what the prompt ends with that was not certain at its end */
    size_t met;          /* bytes of it that have come again */
    bool special;        /* special tokens are text, too: set before the first token */
};

void token_text_init(struct token_text *text, const struct codec *codec);
void token_text_release(struct token_text *text);

/* The text follows these tokens, which are not handed out: the prompt. Before the first token. */
enum plim_status token_text_follow(struct token_text *text, const int32_t *ids, size_t count,
                                   struct plim_error *err);

/* PLIM_BAD_INPUT for an id beyond the tokenizer's vocabulary. */
enum plim_status token_text_add(struct token_text *text, int32_t token, struct strbuf *out,
                                struct plim_error *err);
enum plim_status token_text_end(struct token_text *text, struct strbuf *out, struct plim_error *err);

/* Does some text of the tokens so far wait for what follows? */
bool token_text_holds(const struct token_text *text);
/* The bytes of a token inside such a text (codec_piece). */
enum plim_status token_text_piece(const struct token_text *text, int32_t token, struct strbuf *out,
                                  struct plim_error *err);

#endif
