/* added_tokens.h - tokens that are recognised in the text literally, before the model sees it.
 *
 *     struct added_tokens *added;
 *     added_tokens_build(node, "tokenizer.json", vocab, vocab_count, normalizer, &quota, &added, &err);
 *     struct added_search search = {.text = text, .len = len};
 *     struct added_hit hit;
 *     while (added_next(added, ADDED_RAW, &search, &hit)) ...      // text[hit.start..hit.end) is hit.id
 *
 * A token with "normalized": false is searched in the raw text, the others in the normalized rest. The leftmost match
 * wins, then the longest. "lstrip" and "rstrip" include the white space around a token; "single_word" requires that no
 * letter or digit is next to it.
 */
#pragma once

#include "text/tokenizer/part.h"

struct added_tokens;

enum added_stage { ADDED_RAW, ADDED_NORMALIZED };

/* `vocab_count`: tokens in the model's vocabulary; a token that is not among them gets the next free id. A
 * null list is empty. The vocabulary is borrowed; NULL: ids are indices of the list. */
enum plim_status added_tokens_build(const struct node *list, const char *name,
                                    const struct token_vocab *vocab, size_t vocab_count,
                                    const struct normalizer *normalizer, struct quota *quota,
                                    struct added_tokens **out, struct plim_error *err);
void added_tokens_free(struct added_tokens *added);
size_t added_tokens_bytes(const struct added_tokens *added);

int64_t added_tokens_size(const struct added_tokens *added); /* largest id + 1; 0: none */
int32_t added_tokens_id(const struct added_tokens *added, const char *text, size_t len); /* or -1   */
/* The text as searched for: normalized for ADDED_NORMALIZED. NULL: no such token. */
const char *added_tokens_text(const struct added_tokens *added, int32_t id, size_t *len);
bool added_tokens_special_id(const struct added_tokens *added, int32_t id);
/* True if this text, as written in the file, is a special token. Decoding passes the text it found; so a
 * special token that the normalizer changes is not skipped, as in the reference library. */
bool added_tokens_special(const struct added_tokens *added, const char *text, size_t len);
/* True if some token includes the white space around it. */
bool added_tokens_strip(const struct added_tokens *added);
bool added_tokens_any(const struct added_tokens *added, enum added_stage stage);

struct added_search {
    const char *text;
    size_t len;
    size_t at, taken; /* where to continue; the end of the last hit including white space */
};
struct added_hit {
    size_t start, end;
    int32_t id;
};
/* The next token. The text between two hits is plain. A hit may begin before the end of the last one if that
 * one included the white space. */
bool added_next(const struct added_tokens *added, enum added_stage stage, struct added_search *search,
                struct added_hit *hit);
