/* text_model.h - an encoder on a device with its tokenizer, as embed and classify use it.
 *
 *     struct text_model m = {.caller = {context, "embed"}, .options = {.device = "auto"}, .caller_bytes = embed_bytes};
 *     text_model_find(&m, "folder", &err);     // m.how, which the caller may change
 *     text_model_open(&m, &err);               // m.codec, m.device, m.embedder
 *     text_model_close(&m);
 */
#pragma once

#include "api/caller.h"
#include "api/device_line.h"
#include "api/find_model.h"
#include "serve/embed.h"
#include "text/codec.h"

struct text_options {
    const char *tokenizer; /* NULL: the model's own */
    const char *device;
    enum weights_kind weights;
    int threads;
    bool exact;
    int64_t batch, max_length; /* 0: as suits; the model's */
    uint64_t longest;          /* bytes of a text that memory is planned for */
    const struct log *log;     /* NULL: silent */
};

struct text_model {
    struct caller caller;
    struct text_options options;
    struct device_line line;
    bool labels; /* logits of labels instead of vectors */
    /* Host memory that the caller uses for texts of up to `length` tokens. */
    int64_t (*caller_bytes)(const struct text_model *m, const struct model_spec *spec, int64_t length);
    struct sentence_config how; /* the caller may change it before text_model_open */
    char dir[MODEL_PATH];
    struct codec codec;
    struct device *device;
    struct embedder *embedder;
};

/* Finds the folder and reads how it makes vectors. */
enum plim_status text_model_find(struct text_model *m, const char *what, struct plim_error *err);
/* Opens tokenizer, device and weights. "auto" leaves a GPU that has no room for the model. */
enum plim_status text_model_open(struct text_model *m, struct plim_error *err);
/* Also after an error. */
void text_model_close(struct text_model *m);

/* Texts that are sorted by length before they are cut into batches: vectors depend on it by the rounding of sums. */
enum { EMBED_WINDOW = 1024 };
/* A text_model.caller_bytes for vectors: the tokens and vectors of a window, and a text. */
int64_t embed_bytes(const struct text_model *m, const struct model_spec *spec, int64_t length);
