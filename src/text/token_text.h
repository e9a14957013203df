/* token_text.h - turns generated tokens into text as they arrive, with any tokenizer.
 *
 *     struct token_text text;
 *     token_text_init(&text, &codec);
 *     token_text_add(&text, token, &out, &err);      // appends the text that is now certain
 *     token_text_end(&text, &out, &err);             // appends the rest
 *     token_text_release(&text);
 *
 * The output is always valid UTF-8. In total it is the decoded text of prompt and tokens, minus the part it shares with
 * the decoded prompt alone, wherever the prompt ends. So a character spread over several tokens is written when it is
 * complete, and if a prompt ends inside a character, the output begins with the whole character.
 */
#pragma once

#include "text/codec.h"
#include "text/byte_text.h"

struct token_text {
    const struct codec *codec;
    struct byte_text bytes; /* without a tokenizer */
    struct decoding *decoding;
    struct strbuf piece; /* the text that has just become certain */
    struct strbuf known; /* the end of the prompt's text that was not certain yet */
    size_t met;          /* bytes of it that have appeared again */
    bool special;        /* include special tokens in the text; set before the first token */
};

void token_text_init(struct token_text *text, const struct codec *codec);
void token_text_release(struct token_text *text);

/* Sets the prompt: the text continues after these tokens, which are not written. Call it before the first
 * token. */
enum plim_status token_text_follow(struct token_text *text, const int32_t *ids, size_t count,
                                   struct plim_error *err);

/* PLIM_BAD_INPUT for an id beyond the tokenizer's vocabulary. */
enum plim_status token_text_add(struct token_text *text, int32_t token, struct strbuf *out,
                                struct plim_error *err);
enum plim_status token_text_end(struct token_text *text, struct strbuf *out, struct plim_error *err);

/* True if some text of the tokens so far is held back. */
bool token_text_holds(const struct token_text *text);
/* The bytes of a token inside such a text (codec_piece). */
enum plim_status token_text_piece(const struct token_text *text, int32_t token, struct strbuf *out,
                                  struct plim_error *err);
