/* part.h - the five stages of a tokenizer, each a small interface; tokenizer.json names one part for each.
 *
 *     text -> added tokens are cut out -> normalizer -> pre-tokenizer -> model -> post-processor -> ids
 *     ids -> decoder -> text
 *
 * Every *_build reads one node of tokenizer.json ("type" names the part); a null node gives a NULL part, which
 * does nothing. A type or an option that is not supported is PLIM_UNSUPPORTED and named: "model.json:12:
 * normalizer type 'Foo' is not supported". Parts are read-only once built; scratch comes with the call. The nodes
 * are gone after the build: a part copies what it keeps. (A token_vocab outlives the parts that borrow it.) What a file
 * can make large counts its bytes in the quota it is given (base/quota.h), scratch of the build included.
 * Text inside the tokenizer is always valid UTF-8.
 */
#ifndef PLIM_TEXT_TOKENIZER_PART_H
#define PLIM_TEXT_TOKENIZER_PART_H

#include "base/node.h"
#include "base/quota.h"
#include "text/tokenizer.h"

/* --- normalizer.c: NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, Prepend, Nmt, BertNormalizer,
 *     Precompiled, Sequence ------------------------------------------------------------------------------- */
struct normalizer;
enum plim_status normalizer_build(const struct node *spec, const char *name, struct normalizer **out,
                                  struct plim_error *err);
void normalizer_free(struct normalizer *n);
/* The most bytes a normalizer may make of a text: three for one, since a blank becomes U+2581, and 256 KiB, so that short
 * texts may grow by any rule of Unicode. Callers set it as `most` of both buffers. */
#define NORMALIZER_TIMES 3
#define NORMALIZER_MORE  ((size_t)256 << 10)
static inline size_t normalizer_most(size_t len) { return NORMALIZER_TIMES * len + NORMALIZER_MORE; }
/* PLIM_BAD_INPUT with the numbers, after a run on `len` bytes has filled its buffer. */
enum plim_status normalizer_fail(size_t len, struct plim_error *err);
/* text -> out (replaced, not appended). `spare` is scratch. Out of memory, and `most` not being enough, are sticky in
 * `out` (failed, full). out and spare are different buffers; text lies in neither. */
void normalizer_run(const struct normalizer *n, const char *text, size_t len, struct strbuf *out,
                    struct strbuf *spare);
/* Bytes of a text that it makes one of, at most; 0: any number. */
size_t normalizer_shrinks(const struct normalizer *n);
/* True when the normalizer surely leaves text[0..len) as it is (a quick scan; false is always allowed). */
bool normalizer_is_identity(const struct normalizer *n, const char *text, size_t len);

/* --- scratch ---------------------------------------------------------------------------------------------- */

/* Bytes that the scratch of one encoder may grow by while it reads a text. Whoever makes a buffer larger asks first, and
 * counts it. Buffers that are kept for the next text count only for what they grow. */
struct scratch_limit {
    size_t most; /* 0: no limit */
    size_t grown;
    bool full; /* more was asked for */
};
static inline size_t scratch_left(const struct scratch_limit *limit)
{
    return !limit->most ? SIZE_MAX / 8 : limit->most > limit->grown ? limit->most - limit->grown : 0;
}
/* The next size of a table: twice as many items, and of large ones, which grow where they are, an eighth more. */
static inline size_t scratch_more(size_t items) { return items + (items > 16384 ? items / 8 : items); }
/* Counts `bytes`; false, and nothing is counted, when they are too many. */
static inline bool scratch_take(struct scratch_limit *limit, size_t bytes)
{
    if (bytes > scratch_left(limit)) return limit->full = true, false;
    limit->grown += bytes;
    return true;
}
/* Around the writing of a text: begin lets it grow by what is left, end counts what it grew by. False: it has failed. */
static inline size_t scratch_begin(const struct scratch_limit *limit, struct strbuf *text)
{
    if (limit->most) text->most = text->cap + scratch_left(limit);
    return text->cap;
}
static inline bool scratch_end(struct scratch_limit *limit, const struct strbuf *text, size_t before)
{
    limit->grown += text->cap - before;
    limit->full |= text->full;
    return !text->failed;
}

/* --- models ---------------------------------------------------------------------------------------------- */
struct token_model;
struct token_model_ops {
    const char *kind;
    void (*free)(struct token_model *);
    /* Per-thread scratch; may be NULL when the model needs none. The limit is the encoder's and outlives it. */
    void *(*scratch_open)(const struct token_model *, const struct encoder_room *, struct scratch_limit *);
    void (*scratch_close)(void *scratch);
    /* Appends the ids of one piece (never empty). False: out of memory, or beyond the limit. */
    bool (*encode)(const struct token_model *, void *scratch, const char *piece, size_t len,
                   struct token_list *out);
    size_t (*bytes)(const struct token_model *); /* held by the model */
    /* Bytes of a piece that a token stands for; first: of the piece. 0: unknown, as with unknown text. */
    size_t (*covers)(const struct token_model *, int32_t id, bool first);
    /* Most memory that one scratch keeps between two texts. */
    size_t (*scratch_bytes)(const struct token_model *, const struct encoder_room *);
};
/* Every model begins with this. */
struct token_model {
    const struct token_model_ops *ops;
    const struct token_vocab *vocab;
};
/* vocab.c: token text <-> id of the model's own vocabulary (added tokens not included). */
struct token_vocab;
enum plim_status
token_vocab_build(const struct node *map_or_list, const char *name, struct quota *quota,
                  struct token_vocab **out,
                  struct plim_error *err); /* BPE/WordPiece: {text: id}; Unigram: [[text, score]] */
void token_vocab_free(struct token_vocab *v);
int32_t token_vocab_id(const struct token_vocab *v, const char *text, size_t len);  /* -1: not there */
const char *token_vocab_text(const struct token_vocab *v, int32_t id, size_t *len); /* NULL: no such id */
int64_t token_vocab_size(const struct token_vocab *v);                              /* largest id + 1 */
size_t token_vocab_bytes(const struct token_vocab *v);

/* Tokens that are searched for at every place of a text (those of Unigram and WordPiece, and added ones) have at most so
 * many bytes: what a place costs is bounded by it. */
enum { TOKEN_BYTES_MOST = 1024 };
/* PLIM_BAD_INPUT when `len` is more. */
enum plim_status token_check_length(const char *text, size_t len, const char *name, struct plim_error *err);

/* `spec` is the "model" node. The vocab is borrowed and outlives the model. `byte_level`: pieces arrive as raw
 * bytes and the vocabulary's texts are in GPT-2's byte alphabet (the ByteLevel pre-tokenizer is folded in). */
enum plim_status model_bpe_build(const struct node *spec, const char *name, const struct token_vocab *vocab,
                                 bool byte_level, struct quota *quota, struct token_model **out,
                                 struct plim_error *err);
enum plim_status model_unigram_build(const struct node *spec, const char *name,
                                     const struct token_vocab *vocab, struct quota *quota,
                                     struct token_model **out, struct plim_error *err);
enum plim_status model_wordpiece_build(const struct node *spec, const char *name,
                                       const struct token_vocab *vocab, struct quota *quota,
                                       struct token_model **out, struct plim_error *err);

/* --- postproc.c: TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing, Sequence ---------------- */
struct postproc;
enum plim_status postproc_build(const struct node *spec, const char *name, struct postproc **out,
                                struct plim_error *err);
void postproc_free(struct postproc *p);
/* Tokens to put before and after a single sequence. */
void postproc_single(const struct postproc *p, const int32_t **before, size_t *nbefore, const int32_t **after,
                     size_t *nafter);

/* Around two texts; false: there is no such form. */
bool postproc_pair(const struct postproc *p, struct pair_marks *out);
/* Are spans cut by the white space that tokens begin or end with, and does every text begin with a blank of the tokenizer's? */
bool postproc_trims(const struct postproc *p, bool *prefix);

/* --- decoder.c: ByteLevel, ByteFallback, Metaspace, WordPiece, BPEDecoder, Fuse, Strip, Replace, Sequence --- */
struct token_decoder;
enum plim_status token_decoder_build(const struct node *spec, const char *name, struct token_decoder **out,
                                     struct plim_error *err);
void token_decoder_free(struct token_decoder *d);
struct token_bytes {
    const char *text;
    size_t len;
};
/* Decoding, token by token. add appends what has become certain: it stays whatever follows, and is valid UTF-8. end
 * appends the rest; nothing may be added after it. NULL decoder: the tokens joined by one space. PLIM_BAD_INPUT where the
 * decoder makes more of the tokens than it may, PLIM_NO_MEMORY. */
struct token_decoding;
enum plim_status token_decoding_open(const struct token_decoder *d, struct token_decoding **out,
                                     struct plim_error *err);
void token_decoding_close(struct token_decoding *decoding);
enum plim_status token_decoding_add(struct token_decoding *decoding, struct token_bytes token,
                                    struct strbuf *out, struct plim_error *err);
enum plim_status token_decoding_end(struct token_decoding *decoding, struct strbuf *out,
                                    struct plim_error *err);
/* Appends the text that token_decoding_end would append now. */
enum plim_status token_decoding_tail(const struct token_decoding *decoding, struct strbuf *out,
                                     struct plim_error *err);
/* Is there text of tokens that were added, and not yet in what add has appended? */
bool token_decoding_holds(const struct token_decoding *decoding);
/* See tokenizer_piece. */
enum plim_status token_decoder_piece(const struct token_decoder *d, struct token_bytes token,
                                     struct strbuf *out, struct plim_error *err);

#endif
