/* token_place.h - the position in a text at which each token begins, known as soon as the token arrives.
 *
 *     struct token_place place = {0};
 *     size_t at;
 *     token_place_add(&place, &text, token, &out, &at, &err);      // token_text_add, and where the token begins
 *
 * Positions count characters. A token that begins inside a character has that character's position; a token without text
 * has the position of the next one. While text is held back, a position is estimated from the bytes held. If these turn
 * out not to form characters, it may be too low; it is exact again once nothing is held.
 */
#pragma once

#include "text/token_text.h"

struct token_place {
    size_t made;  /* characters written so far */
    size_t begun; /* including those held back */
    size_t last;  /* position of the previous token; positions never decrease */
};

/* Start for a text that follows these bytes. */
struct token_place token_place_behind(const char *text, size_t len);
enum plim_status token_place_add(struct token_place *place, struct token_text *text, int32_t token,
                                 struct strbuf *out, size_t *at, struct plim_error *err);
