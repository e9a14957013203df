/* tokenizer.h - text to token ids and back, exactly as a Hugging Face tokenizer.json specifies.
 *
 *     struct tokenizer *tok;
 *     tokenizer_load("model/tokenizer.json", &tok, &err);       // or the folder that holds it
 *     struct encoder *enc;
 *     encoder_open(tok, &enc, &err);                            // one per thread
 *     struct token_list ids = {0};
 *     encoder_encode(enc, text, len, TOKENIZE_SPECIAL, &ids, &err);    // appends
 *     tokenizer_decode(tok, ids.id, ids.count, TOKENIZE_SKIP_SPECIAL, &text_out, &err);
 *     token_list_release(&ids); encoder_close(enc); tokenizer_free(tok);
 *
 * A tokenizer is read-only once loaded and may be shared by threads; an encoder holds one thread's scratch memory and
 * cache. Bytes that are not UTF-8 are read as U+FFFD, one for each maximal bad subsequence, as in Python's
 * decode(errors="replace"). Parts of tokenizer.json that are not supported are refused by name when loading.
 */
#pragma once

#include "base/quota.h"
#include "base/status.h"
#include "base/strbuf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;
struct encoder;

/* A list of ids that grows; {0} is empty. The caller owns it. */
struct token_list {
    int32_t *id;
    size_t count, cap;
    size_t most; /* maximum count, set by the owner; 0: no limit */
    bool full;   /* `most` was exceeded */
};
/* Makes room for `more` ids beyond count. Returns false when memory is short or `most` is exceeded. */
bool token_list_reserve(struct token_list *list, size_t more);
void token_list_release(struct token_list *list);

enum tokenize_flag {
    TOKENIZE_BEFORE = 1,       /* encode: tokens that the post-processor puts in front (BOS, [CLS]) */
    TOKENIZE_SKIP_SPECIAL = 2, /* decode: leave special tokens out */
    TOKENIZE_AFTER = 4,        /* encode: tokens that it puts after the text (</s>, [SEP]) */
    TOKENIZE_SPECIAL = TOKENIZE_BEFORE | TOKENIZE_AFTER,
};

/* Loads a tokenizer.json, or a folder with one. PLIM_BAD_INPUT: "file:line: what"; PLIM_UNSUPPORTED names the
 * part. */
enum plim_status tokenizer_load(const char *path, struct tokenizer **out, struct plim_error *err);
/* Maximum memory for reading a tokenizer: the file, its tree and the result. */
#define TOKENIZER_QUOTA ((uint64_t)512 << 20)
/* tokenizer_load from memory. Consumes `text`, which is empty afterwards. `name` appears in errors. The quota counts
 * all memory during loading and, in the end, what the tokenizer holds; NULL: a quota of TOKENIZER_QUOTA. */
enum plim_status tokenizer_read(struct strbuf *text, const char *name, struct quota *quota,
                                struct tokenizer **out, struct plim_error *err);
/* tokenizer_load from memory that stays unchanged. */
enum plim_status tokenizer_parse(const char *text, size_t len, const char *name, struct tokenizer **out,
                                 struct plim_error *err);
void tokenizer_free(struct tokenizer *tok);

const char *tokenizer_kind(const struct tokenizer *tok); /* "byte-level BPE", "BPE", "Unigram", "WordPiece" */
int64_t tokenizer_vocab_size(const struct tokenizer *tok); /* largest id + 1, added tokens included */
/* Id of a token as written in the file, or -1; text of an id, or NULL. */
int32_t tokenizer_id(const struct tokenizer *tok, const char *text, size_t len);
const char *tokenizer_text(const struct tokenizer *tok, int32_t id, size_t *len);
bool tokenizer_is_special(const struct tokenizer *tok, int32_t id);

/* Memory of a loaded tokenizer, and the maximum memory of one encoder for texts of up to `longest` bytes.
 * Part of the plan's io bytes. */
size_t tokenizer_bytes(const struct tokenizer *tok);
size_t encoder_bytes_most(const struct tokenizer *tok, size_t longest);

enum plim_status encoder_open(const struct tokenizer *tok, struct encoder **out, struct plim_error *err);
void encoder_close(struct encoder *enc);

/* Sizes of an encoder, to save memory. */
struct encoder_room {
    size_t cache; /* bytes for words seen before; more than ENCODER_CACHE does not help */
    size_t keep;  /* bytes of buffers to keep; larger ones are freed after each text */
};
#define ENCODER_CACHE ((size_t)4 << 20)
enum plim_status encoder_open_within(const struct tokenizer *tok, const struct encoder_room *room,
                                     struct encoder **out, struct plim_error *err);
/* Maximum memory of such an encoder between two texts. */
size_t encoder_room_bytes(const struct tokenizer *tok, const struct encoder_room *room);
/* Limits the memory a text may take beyond that while it is encoded, not counting its ids; 0: no limit.
 * Exceeding it is PLIM_NO_FIT. ENCODER_LIMIT is enough for ordinary texts of up to that length, and for one
 * long word. */
void encoder_limit(struct encoder *enc, size_t bytes);
#define ENCODER_LIMIT(text_bytes) (12 * (text_bytes) + (16 << 10))

/* Maximum bytes of text per token; 0: unlimited, for example where unknown words become one token. So a text
 * longer than n times that has more than n tokens. */
size_t tokenizer_longest(const struct tokenizer *tok);
/* Bytes of the longest token as written in the file; no token decodes to more. */
size_t tokenizer_text_most(const struct tokenizer *tok);

/* Appends the ids of text[0..len). PLIM_NO_MEMORY: also when the list may not grow (out->full). PLIM_NO_FIT:
 * beyond the encoder's limit. PLIM_BAD_INPUT: the normalizer's output is too long. On failure the list is
 * unchanged. */
enum plim_status encoder_encode(struct encoder *enc, const char *text, size_t len, unsigned flags,
                                struct token_list *out, struct plim_error *err);

/* The origin of a token: characters [begin, end) of its text. */
struct token_span {
    uint32_t begin, end;
};
struct span_list {
    struct token_span *at;
    size_t count, cap;
};
void span_list_release(struct span_list *list);

/* encoder_encode without special tokens, plus the origin of each token, counted as in the reference library
 * (offset_mapping): one span per id. PLIM_UNSUPPORTED: the tokenizer rewrites text in a way that cannot be
 * traced. */
enum plim_status encoder_locate(struct encoder *enc, const char *text, size_t len, struct token_list *out,
                                struct span_list *spans, struct plim_error *err);

/* Ids around two texts. The first `second` ids between the texts belong to the first text's segment; -1: both
 * texts are one segment. Returns false if the tokenizer has no form for two texts. */
struct pair_marks {
    const int32_t *before, *between, *after;
    size_t nbefore, nbetween, nafter;
    int64_t second;
};
bool tokenizer_pair_marks(const struct tokenizer *tok, struct pair_marks *out);

/* Decodes ids one by one. add appends the text that has become certain, end the rest; together they give the
 * same as tokenizer_decode. Output never changes and is always valid UTF-8: a character waits for its last
 * byte, and some decoders hold a token until they see the next. tail appends the text that end would append
 * now. Errors are those of tokenizer_decode. */
struct decoding;
enum plim_status decoding_open(const struct tokenizer *tok, unsigned flags, struct decoding **out,
                               struct plim_error *err);
void decoding_close(struct decoding *decoding);
enum plim_status decoding_add(struct decoding *decoding, int32_t id, struct strbuf *out,
                              struct plim_error *err);
/* decoding_add for a token given as text, which need not be in the vocabulary. */
enum plim_status decoding_add_text(struct decoding *decoding, const char *text, size_t len,
                                   struct strbuf *out, struct plim_error *err);
enum plim_status decoding_end(struct decoding *decoding, struct strbuf *out, struct plim_error *err);
enum plim_status decoding_tail(const struct decoding *decoding, struct strbuf *out, struct plim_error *err);
/* True if some text of the ids so far is held back. */
bool decoding_holds(const struct decoding *decoding);

/* Appends the text of the ids. PLIM_BAD_INPUT: an id is not in the vocabulary, or the decoder's output
 * exceeds three times the bytes of the tokens plus 1 MiB. */
enum plim_status tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t count,
                                  unsigned flags, struct strbuf *out, struct plim_error *err);

/* Appends the bytes of one id as they are inside a text: a leading blank is kept (the first token of a text
 * loses it), and a partial character gives its bytes (<0xC3> is one). Errors are those of
 * tokenizer_decode. */
enum plim_status tokenizer_piece(const struct tokenizer *tok, int32_t id, unsigned flags, struct strbuf *out,
                                 struct plim_error *err);
