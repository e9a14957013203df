/* plimsoll/text.h - tokenizers, chat templates, sentence vectors and labels.
 *
 *     struct plim_embedder *embedder;
 *     plim_embedder_open(context, &(struct plim_embed_options){.size = sizeof(struct plim_embed_options),
 *                                                              .model = "minilm/", .budget = 256 << 20}, &embedder, &err);
 *     plim_embed(embedder, texts, 2, vectors, &err);        // [2][plim_embedder_width(embedder)]
 *     plim_embedder_close(embedder);
 */
#ifndef PLIMSOLL_TEXT_H
#define PLIMSOLL_TEXT_H

#include <plimsoll/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- tokenizer; may be shared by threads --- */

struct plim_tokenizer;

/* tokenizer.json, a SentencePiece model, a GGUF file, a folder with one of them, or "bytes". */
PLIM_API enum plim_status plim_tokenizer_open(struct plim_context *context, const char *path,
                                              struct plim_tokenizer **out, struct plim_error *err);
PLIM_API void plim_tokenizer_close(struct plim_tokenizer *tokenizer);
PLIM_API int64_t plim_tokenizer_vocab(const struct plim_tokenizer *tokenizer);
PLIM_API int32_t plim_tokenizer_eos(const struct plim_tokenizer *tokenizer); /* -1: none */
/* Writes up to `room` ids and sets *count to the number there are. special: also the marks around a text. */
PLIM_API enum plim_status plim_tokenizer_encode(const struct plim_tokenizer *tokenizer, const char *text,
                                                size_t bytes, int special, int32_t *ids, size_t room,
                                                size_t *count, struct plim_error *err);
/* *text is freed with plim_free; it ends at the first NUL byte, if tokens have one. skip_special: marks have no text. */
PLIM_API enum plim_status plim_tokenizer_decode(const struct plim_tokenizer *tokenizer, const int32_t *ids,
                                                size_t count, int skip_special, char **text,
                                                struct plim_error *err);

/* --- chat template --- */

/* Renders a JSON array of messages ({"role": ..., "content": ...}) with the chat template of a model folder or GGUF file.
 * PLIM_NOT_FOUND: the model has none. */
PLIM_API enum plim_status plim_chat_render(struct plim_context *context, const char *model,
                                           const char *messages, int add_generation_prompt, char **text,
                                           struct plim_error *err);

/* --- sentence vectors and labels --- */

struct plim_embedder;

struct plim_embed_options {
    size_t size;
    const char *model;  /* an encoder's folder */
    const char *device; /* "auto" if NULL */
    const char *weights; /* "as-is", "q8", "q4", "nf4", "fp4", "fp8"; NULL: as-is */
    uint64_t budget;    /* 0: what the device or container has free */
    int64_t max_length; /* tokens of a text; 0: the model's */
    int labels;         /* scores of the model's labels instead of vectors: for plim_classify */
    int threads;        /* 0: all cores */
    const char *pooling; /* "mean", "cls"; NULL: as the model's folder says */
    int normalize;      /* 1: vectors of length 1, -1: as they are, 0: as the model's folder says */
};
PLIM_API enum plim_status plim_embedder_open(struct plim_context *context,
                                             const struct plim_embed_options *options,
                                             struct plim_embedder **out, struct plim_error *err);
PLIM_API void plim_embedder_close(struct plim_embedder *embedder);
PLIM_API int64_t plim_embedder_width(const struct plim_embedder *embedder);
PLIM_API uint64_t plim_embedder_bytes(const struct plim_embedder *embedder); /* planned */
/* vectors: [count][width]. Longer texts lose their end. Texts of one call are computed together. */
PLIM_API enum plim_status plim_embed(struct plim_embedder *embedder, const char *const *texts, size_t count,
                                     float *vectors, struct plim_error *err);
/* Changes the budget, and with it the size of batches. 0: what the device or container has free. PLIM_NO_FIT: too small, the old
 * budget stays. */
PLIM_API enum plim_status plim_embedder_set_budget(struct plim_embedder *embedder, uint64_t budget,
                                                   struct plim_error *err);

struct plim_classify_options {
    size_t size;
    const char *aggregation; /* of token labels: "none", "simple", "first", "average", "max"; NULL: none */
    const char *function;    /* "default", "sigmoid", "softmax", "none"; NULL: default */
    int64_t top;             /* labels per text; 0: all */
    int64_t stride;          /* of token labels: long texts are read in windows that share so many tokens; 0: they lose
                                their end */
};
/* Answers as transformers' pipelines: a JSON array with one element per text. Each element is an array: of
 * {"label", "score"}, best first, or for token labels of {"entity" or "entity_group", "score", "word", "start", "end"}.
 * pairs may be NULL, or have one second text for each text, which may be NULL. options may be NULL. Free *json with
 * plim_free. */
PLIM_API enum plim_status plim_classify(struct plim_embedder *embedder, const char *const *texts,
                                        const char *const *pairs, size_t count,
                                        const struct plim_classify_options *options, char **json,
                                        struct plim_error *err);

#ifdef __cplusplus
}
#endif
#endif
