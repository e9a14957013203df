/* added_tokens.h - tokens that are found in the text as they are written, before any model sees it.
 *
 *     struct added_tokens *added;
 *     added_tokens_build(node, "tokenizer.json", vocab, vocab_count, normalizer, &quota, &added, &err);
 *     struct added_search search = {.text = text, .len = len};
 *     struct added_hit hit;
 *     while (added_next(added, ADDED_RAW, &search, &hit)) ...      // text[hit.start..hit.end) is hit.id
 *
 * A token with "normalized": false is looked for in the raw text, the others in what the normalizer made of the
 * rest. Of several tokens the leftmost wins, then the longest. "lstrip" and "rstrip" take the white space around a
 * token with it, "single_word" wants no letter or digit beside it.
 */
#ifndef PLIM_TEXT_TOKENIZER_ADDED_TOKENS_H
#define PLIM_TEXT_TOKENIZER_ADDED_TOKENS_H

#include "text/tokenizer/part.h"

struct added_tokens;

enum added_stage { ADDED_RAW, ADDED_NORMALIZED };

/* `vocab_count`: tokens in the model's vocabulary; a token that is not among them gets the next free id. A null
 * list is an empty one. The vocabulary is borrowed; NULL: ids are places in the list. */
enum plim_status added_tokens_build(const struct node *list, const char *name,
                                    const struct token_vocab *vocab, size_t vocab_count,
                                    const struct normalizer *normalizer, struct quota *quota,
                                    struct added_tokens **out, struct plim_error *err);
void added_tokens_free(struct added_tokens *added);
size_t added_tokens_bytes(const struct added_tokens *added);

int64_t added_tokens_size(const struct added_tokens *added); /* largest id + 1; 0: none */
int32_t added_tokens_id(const struct added_tokens *added, const char *text, size_t len); /* or -1   */
/* As it is found in the text: normalized when it is looked for there. NULL: no such token. */
const char *added_tokens_text(const struct added_tokens *added, int32_t id, size_t *len);
bool added_tokens_special_id(const struct added_tokens *added, int32_t id);
/* Is this text, as it is written in the file, a special token? Decoding asks this of the text it found, so that a
 * special token which its normalizer changes is not left out: so does the reference library. */
bool added_tokens_special(const struct added_tokens *added, const char *text, size_t len);
/* Does some token take the white space beside it along? */
bool added_tokens_strip(const struct added_tokens *added);
bool added_tokens_any(const struct added_tokens *added, enum added_stage stage);

struct added_search {
    const char *text;
    size_t len;
    size_t at, taken; /* where to look on; the end of the last hit with its white space */
};
struct added_hit {
    size_t start, end;
    int32_t id;
};
/* The next token; what lies between the end of one hit and the start of the next is plain text. A hit may begin
 * before the end of the last one when that one took the white space it begins with. */
bool added_next(const struct added_tokens *added, enum added_stage stage, struct added_search *search,
                struct added_hit *hit);

#endif
