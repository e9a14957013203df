/* text_model.h - an encoder with device and tokenizer for embed and classify, and the options they share.
 *
 *     struct text_model m = {.command = "embed", .flags = &flags.text, .caller_bytes = own_bytes};
 *     text_model_find(&m, "folder", &err);
 *     text_model_open(&m, &err);               // m.codec, m.device, m.embedder
 *     text_model_close(&m);
 */
#pragma once

#include "base/options.h"
#include "cli/cli.h"
#include "data/json_fields.h"
#include "data/lines.h"
#include "serve/embed.h"
#include "text/codec.h"

struct text_flags {
    const char *tokenizer, *device, *weights;
    bool exact, quiet, budget_given;
    int64_t batch, max_length;
    uint64_t budget, max_line;
    int threads;
};

/* Values of --weights. */
extern const char *const text_weights[];

/* Rows of an option table whose struct `type` has a struct text_flags `text`. max_line_help names the
 * default. */
#define TEXT_ROWS(type, max_line_help)                                                                       \
    {"max-length",                                                                                           \
     0,                                                                                                      \
     OPTION_INT64,                                                                                           \
     offsetof(type, text.max_length),                                                                        \
     "N",                                                                                                    \
     "maximum tokens per text, including special tokens; default: from the model's folder, "                 \
     "else its positions"},                                                                                  \
        {"exact",                                                                                            \
         0,                                                                                                  \
         OPTION_FLAG,                                                                                        \
         offsetof(type, text.exact),                                                                         \
         NULL,                                                                                               \
         "multiply exactly in fp32; by default a CPU that is faster in bf16 splits fp32 into two "           \
         "bf16 parts, which changes results by about 0.00002"},                                              \
        {"batch",      0,                                                                                    \
         OPTION_INT64, offsetof(type, text.batch),                                                           \
         "N",          "maximum texts per batch; default: depends on their length"},                         \
        {"tokenizer",                                                                                        \
         't',                                                                                                \
         OPTION_STRING,                                                                                      \
         offsetof(type, text.tokenizer),                                                                     \
         "FILE",                                                                                             \
         "tokenizer.json, a SentencePiece model or a folder with one; default: the model's own"},            \
        {"max-line", 0, OPTION_BYTES, offsetof(type, text.max_line), "BYTES", max_line_help},                \
        {"budget",                                                                                           \
         'b',                                                                                                \
         OPTION_BYTES,                                                                                       \
         offsetof(type, text.budget),                                                                        \
         "BYTES",                                                                                            \
         "memory budget, e.g. 256MiB; default: none, or what a container's limit leaves",                    \
         .given = OPTION_GIVEN(type, text.budget_given)},                                                    \
        {"device",                                                                                           \
         0,                                                                                                  \
         OPTION_STRING,                                                                                      \
         offsetof(type, text.device),                                                                        \
         "NAME",                                                                                             \
         "cpu, cuda, cuda:N, or auto: a working GPU whose own overhead fits the budget, else the "           \
         "CPU (auto)"},                                                                                      \
        {"threads", 0, OPTION_INT, offsetof(type, text.threads), "N", "CPU threads; 0: one per core (0)"},   \
        {"weights",                                                                                          \
         0,                                                                                                  \
         OPTION_STRING,                                                                                      \
         offsetof(type, text.weights),                                                                       \
         "KIND",                                                                                             \
         "as-is, or quantised on loading to 8 or 4 bits: q8, q4 (as-is)",                                    \
         .choices = text_weights},                                                                           \
    {                                                                                                        \
        "quiet", 'q', OPTION_FLAG, offsetof(type, text.quiet), NULL, "no notes, no summary"                  \
    }

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
