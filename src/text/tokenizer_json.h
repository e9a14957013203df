/* tokenizer_json.h - writes parts of a tokenizer.json converted from another kind of file (GGUF,
 * SentencePiece). */
#pragma once

#include "base/json.h"

#define TOKENIZER_JSON_BLANK "\xe2\x96\x81" /* U+2581 represents a blank */

struct json_token {
    const char *text; /* NULL: none */
    size_t len;
    int64_t id;
};

/* One item of "added_tokens", searched in the raw text. */
void tokenizer_json_added(struct json_writer *w, const struct json_token *token, bool special);

/* "post_processor": the tokens before and after each text. */
void tokenizer_json_around(struct json_writer *w, const struct json_token *before,
                           const struct json_token *behind);

/* A normalizer's or a decoder's Replace. */
void tokenizer_json_replace(struct json_writer *w, const char *from, const char *to);

/* "decoder": U+2581 becomes a blank, byte tokens become bytes. `begins` and `ends`: removes one blank
 * there. */
void tokenizer_json_blank_decoder(struct json_writer *w, bool begins, bool ends);
