/* part.h - the five stages of a tokenizer, each a small interface; tokenizer.json names one part for each.
 *
 *     text -> added tokens are cut out -> normalizer -> pre-tokenizer -> model -> post-processor -> ids
 *     ids -> decoder -> text
 *
 * Every *_build reads one node of tokenizer.json ("type" names the part); a null node gives a NULL part, which does
 * nothing. An unsupported type or option is PLIM_UNSUPPORTED and named: "model.json:12: normalizer type 'Foo' is not
 * supported". Parts are read-only once built; scratch memory comes with each call. The nodes do not outlive the build, so a
 * part copies what it needs. (A token_vocab outlives the parts that borrow it.) Allocations whose size a file controls
 * count in the given quota (base/quota.h), including scratch memory of the build. Text inside the tokenizer is always
 * valid UTF-8.
 */
#pragma once

#include "base/node.h"
#include "base/quota.h"
#include "text/tokenizer.h"

/* --- normalizer.c: NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, Prepend, Nmt, BertNormalizer,
 *     Precompiled, Sequence ------------------------------------------------------------------------------- */
struct normalizer;
enum plim_status normalizer_build(const struct node *spec, const char *name, struct normalizer **out,
                                  struct plim_error *err);
void normalizer_free(struct normalizer *n);
/* Maximum output of a normalizer: three bytes per byte, because a blank becomes U+2581, plus 256 KiB, so that
 * short texts may grow by any rule of Unicode. Callers set it as `most` of both buffers. */
#define NORMALIZER_TIMES 3
#define NORMALIZER_MORE  ((size_t)256 << 10)
static inline size_t normalizer_most(size_t len) { return NORMALIZER_TIMES * len + NORMALIZER_MORE; }
/* PLIM_BAD_INPUT with the numbers, after a run on `len` bytes exceeded its buffer. */
enum plim_status normalizer_fail(size_t len, struct plim_error *err);
/* Writes the normalized text to out (replacing its content). `spare` is scratch. Out of memory and exceeding
 * `most` are sticky in `out` (failed, full). out and spare differ; text is in neither. */
void normalizer_run(const struct normalizer *n, const char *text, size_t len, struct strbuf *out,
                    struct strbuf *spare);
/* Maximum input bytes per output byte; 0: unlimited. */
size_t normalizer_shrinks(const struct normalizer *n);
/* True if the normalizer surely leaves text[0..len) unchanged (a quick scan; it may return false at any
 * time). */
bool normalizer_is_identity(const struct normalizer *n, const char *text, size_t len);

/* --- scratch ---------------------------------------------------------------------------------------------- */

/* Limit for the growth of one encoder's scratch memory while it reads a text. Code that enlarges a buffer
 * asks first and counts it. Buffers kept for the next text count only their growth. */
struct scratch_limit {
    size_t most; /* 0: no limit */
    size_t grown;
    bool full; /* the limit was exceeded */
};
static inline size_t scratch_left(const struct scratch_limit *limit)
{
    return !limit->most ? SIZE_MAX / 8 : limit->most > limit->grown ? limit->most - limit->grown : 0;
}
/* The next size of a table: double, or for large ones, which grow in place, an eighth more. */
static inline size_t scratch_more(size_t items) { return items + (items > 16384 ? items / 8 : items); }
/* Counts `bytes`. Returns false, counting nothing, when they exceed the limit. */
static inline bool scratch_take(struct scratch_limit *limit, size_t bytes)
{
    if (bytes > scratch_left(limit)) return limit->full = true, false;
    limit->grown += bytes;
    return true;
}
/* Called around the writing of a text: begin lets it grow by the remaining bytes, end counts its growth.
 * Returns false if it failed. */
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
    /* Per-thread scratch; NULL if the model needs none. The limit belongs to the encoder and outlives it. */
    void *(*scratch_open)(const struct token_model *, const struct encoder_room *, struct scratch_limit *);
    void (*scratch_close)(void *scratch);
    /* Appends the ids of one piece (never empty). Returns false when out of memory or beyond the limit. */
    bool (*encode)(const struct token_model *, void *scratch, const char *piece, size_t len,
                   struct token_list *out);
    size_t (*bytes)(const struct token_model *); /* held by the model */
    /* Bytes of a piece that a token covers; first: it begins the piece. 0: unknown, for example for unknown
     * text. */
    size_t (*covers)(const struct token_model *, int32_t id, bool first);
    /* Maximum memory that one scratch keeps between two texts. */
    size_t (*scratch_bytes)(const struct token_model *, const struct encoder_room *);
};
/* Every model begins with this. */
struct token_model {
    const struct token_model_ops *ops;
    const struct token_vocab *vocab;
};
/* vocab.c: token text <-> id of the model's own vocabulary (without added tokens). */
struct token_vocab;
/* BPE/WordPiece: {text: id}; Unigram: [[text, score]]. */
enum plim_status token_vocab_build(const struct node *map_or_list, const char *name, struct quota *quota,
                                   struct token_vocab **out, struct plim_error *err);
void token_vocab_free(struct token_vocab *v);
int32_t token_vocab_id(const struct token_vocab *v, const char *text, size_t len);  /* -1: not there */
const char *token_vocab_text(const struct token_vocab *v, int32_t id, size_t *len); /* NULL: no such id */
int64_t token_vocab_size(const struct token_vocab *v);                              /* largest id + 1 */
size_t token_vocab_bytes(const struct token_vocab *v);

/* Maximum bytes of tokens that are searched at every place of a text (those of Unigram and WordPiece, and
 * added ones). Bounds the cost per place. */
enum { TOKEN_BYTES_MOST = 1024 };
/* PLIM_BAD_INPUT when `len` exceeds it. */
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

/* Tokens around two texts; false: there is no such form. */
bool postproc_pair(const struct postproc *p, struct pair_marks *out);
/* True if spans exclude the white space at the ends of tokens. *prefix: the tokenizer puts a blank before
 * every text. */
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
/* Decoding, token by token. add appends text that is certain: it is valid UTF-8 and does not change. end
 * appends the rest; nothing may be added after it. NULL decoder: joins the tokens with spaces.
 * PLIM_BAD_INPUT: the output exceeds its limit. PLIM_NO_MEMORY. */
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
/* True if some text of the added tokens has not been appended yet. */
bool token_decoding_holds(const struct token_decoding *decoding);
/* See tokenizer_piece. */
enum plim_status token_decoder_piece(const struct token_decoder *d, struct token_bytes token,
                                     struct strbuf *out, struct plim_error *err);
