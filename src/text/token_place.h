/* token_place.h - where in a text each of its tokens begins, told as soon as the token is there.
 *
 *     struct token_place place = {0};
 *     size_t at;
 *     token_place_add(&place, &text, token, &out, &at, &err);      // token_text_add, and where the token begins
 *
 * Places are counted in characters. A token that goes on inside a character is where that character is; one that makes no
 * text is where the next one begins. While text is held back, a token's place is that of its bytes among the bytes held:
 * should these turn out to be no characters, it may be less than it would be afterwards, and is right again once nothing is
 * held.
 */
#ifndef PLIM_TEXT_TOKEN_PLACE_H
#define PLIM_TEXT_TOKEN_PLACE_H

#include "text/token_text.h"

struct token_place {
    size_t made;  /* characters that have come */
    size_t begun; /* and with those that are held back */
    size_t last;  /* where the token before begins: none begins before that */
};

/* A text that begins behind so many bytes of another. */
struct token_place token_place_behind(const char *text, size_t len);
enum plim_status token_place_add(struct token_place *place, struct token_text *text, int32_t token,
                                 struct strbuf *out, size_t *at, struct plim_error *err);

#endif
