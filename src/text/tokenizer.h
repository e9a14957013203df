/* tokenizer.h - text to token ids and back, exactly as a Hugging Face tokenizer.json says.
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
 * A tokenizer is read-only once loaded and may be shared by threads; an encoder holds one thread's scratch and
 * its cache. Bytes that are not UTF-8 are read as U+FFFD, one for each maximal bad subsequence, as Python's
 * decode(errors="replace") does. Parts of tokenizer.json that are not supported are refused by name at load.
 */
#ifndef PLIM_TEXT_TOKENIZER_H
#define PLIM_TEXT_TOKENIZER_H

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
    size_t most; /* ids it may grow to, set by its owner; 0: any number */
    bool full;   /* more were asked for than that */
};
/* Room for `more` ids beyond count; false when memory is short, or for `most`. */
bool token_list_reserve(struct token_list *list, size_t more);
void token_list_release(struct token_list *list);

enum tokenize_flag {
    TOKENIZE_BEFORE = 1,       /* encode: what the post-processor adds in front (BOS, [CLS]) */
    TOKENIZE_SKIP_SPECIAL = 2, /* decode: leave special tokens out */
    TOKENIZE_AFTER = 4,        /* encode: what it adds behind (</s>, [SEP]) */
    TOKENIZE_SPECIAL = TOKENIZE_BEFORE | TOKENIZE_AFTER,
};

/* A tokenizer.json, or a folder with one. PLIM_BAD_INPUT: "file:line: what"; PLIM_UNSUPPORTED names the part. */
enum plim_status tokenizer_load(const char *path, struct tokenizer **out, struct plim_error *err);
/* Memory that reading a tokenizer may take at its peak: the file, its tree, and what is built of it. */
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
/* Id of a token as it is written in the file, or -1; text of an id, or NULL when there is none. */
int32_t tokenizer_id(const struct tokenizer *tok, const char *text, size_t len);
const char *tokenizer_text(const struct tokenizer *tok, int32_t id, size_t *len);
bool tokenizer_is_special(const struct tokenizer *tok, int32_t id);

/* Bytes a loaded tokenizer holds, and what one encoder may come to hold with texts of up to `longest` bytes: for the plan's
 * io line. */
size_t tokenizer_bytes(const struct tokenizer *tok);
size_t encoder_bytes_most(const struct tokenizer *tok, size_t longest);

enum plim_status encoder_open(const struct tokenizer *tok, struct encoder **out, struct plim_error *err);
void encoder_close(struct encoder *enc);

/* Sizes of an encoder, for those who have little memory. */
struct encoder_room {
    size_t cache; /* bytes for words seen before; ENCODER_CACHE is as much as helps */
    size_t keep;  /* bytes; buffers that a text made larger are given back after it */
};
#define ENCODER_CACHE ((size_t)4 << 20)
enum plim_status encoder_open_within(const struct tokenizer *tok, const struct encoder_room *room,
                                     struct encoder **out, struct plim_error *err);
/* Bytes that such an encoder holds between two texts, at most. */
size_t encoder_room_bytes(const struct tokenizer *tok, const struct encoder_room *room);
/* From now on a text may take `bytes` of memory beyond that while it is encoded, not counting its ids; 0: any number. One that
 * needs more is PLIM_NO_FIT. ENCODER_LIMIT is enough for texts that people write, of up to that
 * length, and for one long word. */
void encoder_limit(struct encoder *enc, size_t bytes);
#define ENCODER_LIMIT(text_bytes) (12 * (text_bytes) + (16 << 10))

/* Bytes of text that one token stands for, at most; 0 where nothing is certain, as with unknown words that become one token. A
 * text of more than n times that has more than n tokens, without being read. */
size_t tokenizer_longest(const struct tokenizer *tok);
/* Bytes of the longest token as it is written in the file: no token decodes to more. */
size_t tokenizer_text_most(const struct tokenizer *tok);

/* Appends the ids of text[0..len). PLIM_NO_MEMORY, also when the list may not grow any more (out->full); PLIM_NO_FIT beyond the
 * encoder's limit; PLIM_BAD_INPUT where the normalizer makes more of the text than it may. The list is then as before. */
enum plim_status encoder_encode(struct encoder *enc, const char *text, size_t len, unsigned flags,
                                struct token_list *out, struct plim_error *err);

/* Where a token comes from: the characters [begin, end) of its text. */
struct token_span {
    uint32_t begin, end;
};
struct span_list {
    struct token_span *at;
    size_t count, cap;
};
void span_list_release(struct span_list *list);

/* encoder_encode without marks, and where each token comes from, as the reference library counts (offset_mapping): a span for
 * each id that is appended. PLIM_UNSUPPORTED where the tokenizer rewrites text in a way that is not followed. */
enum plim_status encoder_locate(struct encoder *enc, const char *text, size_t len, struct token_list *out,
                                struct span_list *spans, struct plim_error *err);

/* Ids that stand around two texts. `second` of them between the texts belong to the first one's segment; -1: both texts are one
 * segment. False: the tokenizer has no form for two texts. */
struct pair_marks {
    const int32_t *before, *between, *after;
    size_t nbefore, nbetween, nafter;
    int64_t second;
};
bool tokenizer_pair_marks(const struct tokenizer *tok, struct pair_marks *out);

/* Ids back to text, one after the other: add appends what has become certain, end the rest, and together they are what
 * tokenizer_decode gives for all of the ids. What came out never changes and is valid UTF-8 at every moment; a character
 * waits for its last byte, and some decoders hold a token until they see the next. tail appends what end would append if
 * it came now. Errors as with tokenizer_decode. */
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
/* Does some text of the ids added so far wait for what follows? */
bool decoding_holds(const struct decoding *decoding);

/* Appends the text of the ids. PLIM_BAD_INPUT when an id is not in the vocabulary, or when the decoder makes more than
 * three bytes of each byte of the tokens and 1 MiB. */
enum plim_status tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t count,
                                  unsigned flags, struct strbuf *out, struct plim_error *err);

/* Appends the bytes of one id as they stand inside a text: a blank in front stays, which the first token of a text loses,
 * and a part of a character is the bytes that it is (<0xC3> is one). Errors as with tokenizer_decode. */
enum plim_status tokenizer_piece(const struct tokenizer *tok, int32_t id, unsigned flags, struct strbuf *out,
                                 struct plim_error *err);

#endif
