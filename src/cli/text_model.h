/* text_model.h - an encoder with device and tokenizer for embed and classify, and the options they share.
 *
 *     struct text_model m = {.command = "embed", .flags = &flags.text, .caller_bytes = own_bytes};
 *     text_model_find(&m, "folder", &err);
 *     text_model_open(&m, &err);               // m.codec, m.device, m.embedder
 *     text_model_close(&m);
 */
#ifndef PLIM_CLI_TEXT_MODEL_H
#define PLIM_CLI_TEXT_MODEL_H

#include "base/options.h"
#include "cli/cli.h"
#include "data/json_fields.h"
#include "data/lines.h"
#include "serve/embed.h"
#include "text/codec.h"

struct text_flags {
    struct model_flags model;
    bool exact, quiet;
    int64_t batch, max_length;
    uint64_t max_line;
};

/* Rows of an options table whose struct `type` has a struct text_flags `text`. max_line_help: with the default. */
/* clang-format off */
#define TEXT_ROWS(type, max_line_help) \
    {"max-length", 0, OPTION_INT64, offsetof(type, text.max_length), "N", \
     "tokens of a text at most, marks included; default: as the model's folder says, else its positions", \
     .expected = "a number of tokens, e.g. 256", .most = 1 << 24}, \
    {"exact", 0, OPTION_FLAG, offsetof(type, text.exact), NULL, \
     "multiply fp32 as it is; default: where a CPU multiplies bf16 faster, in two bf16 parts, which changes results by " \
     "about 0.00002"}, \
    {"batch", 0, OPTION_INT64, offsetof(type, text.batch), "N", \
     "texts computed together at most; default: as suits their length", .expected = "1 to 65536", .most = 65536}, \
    {"tokenizer", 't', OPTION_STRING, offsetof(type, text.model.tokenizer), "FILE", \
     "tokenizer.json, a SentencePiece model or a folder with one; default: the model's own"}, \
    {"max-line", 0, OPTION_BYTES, offsetof(type, text.max_line), "BYTES", max_line_help, CLI_MAX_LINE}, \
    MODEL_ROWS(type, text.model), \
    {"quiet", 'q', OPTION_FLAG, offsetof(type, text.quiet), NULL, "no notes, no summary"}
/* clang-format on */

struct text_model {
    const char *command;
    const struct text_flags *flags;
    bool labels; /* compute labels, not vectors */
    /* Host memory of the caller, in addition to the embedder's, for texts of up to `length` tokens. */
    int64_t (*caller_bytes)(const struct text_model *m, const struct model_spec *spec, int64_t length);
    struct device_line line;
    struct sentence_config how; /* the caller may change it before text_model_open */
    char dir[MODEL_PATH];
    struct codec codec;
    struct device *device;
    struct embedder *embedder;
};

/* Checks the options and finds the model folder. */
enum plim_status text_model_find(struct text_model *m, const char *what, struct plim_error *err);
/* Opens tokenizer, device and weights. If the GPU was chosen automatically and has no room, falls back to the
 * CPU. */
enum plim_status text_model_open(struct text_model *m, struct plim_error *err);
void text_model_close(struct text_model *m);

/* Extracts the text of a line: without fields the line itself, else the fields of its JSON. The first must be
 * a text; the others may be missing or null (`at` is then NULL). */
enum plim_status text_model_line(const struct line *line, struct json_field *fields, int count,
                                 struct plim_error *err);

/* Prints timings and the plan to standard error; `first` begins the first line. */
void text_model_tell(const struct text_model *m, const char *first);

#endif
