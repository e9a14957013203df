/* text_flags.h - options, lines and summaries that embed and classify share; api/text_model.h opens the model.
 *
 *     struct text_model m = text_flags_model("embed", &flags.text, &log);
 */
#pragma once

#include "api/text_model.h"
#include "base/options.h"
#include "cli/cli.h"
#include "data/json_fields.h"
#include "data/lines.h"

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
         CLI_DEVICES ", or auto: a working GPU whose own overhead fits the budget, else the "                \
                     "CPU (auto)",                                                                           \
         CLI_DEVICE},                                                                                        \
        {"threads", 0, OPTION_INT, offsetof(type, text.threads), "N", "CPU threads; 0: one per core (0)"},   \
        {"weights",                                                                                          \
         0,                                                                                                  \
         OPTION_STRING,                                                                                      \
         offsetof(type, text.weights),                                                                       \
         "KIND",                                                                                             \
         "quantise the weights on loading to 8 or 4 bits, or keep them (as-is)",                             \
         .choices = text_weights},                                                                           \
    {                                                                                                        \
        "quiet", 'q', OPTION_FLAG, offsetof(type, text.quiet), NULL, "no notes, no summary"                  \
    }

/* PLIM_BAD_INPUT: an option that makes no sense. */
enum plim_status text_flags_check(const char *command, const struct text_flags *f, struct plim_error *err);
/* A model with these options; `log` hears of unused tensors. */
struct text_model text_flags_model(const char *command, const struct text_flags *f, const struct log *log);

/* Extracts the text of a line: without fields the line itself, else the fields of its JSON. The first must be
 * a text; the others may be missing or null (`at` is then NULL). */
enum plim_status text_line(const struct line *line, struct json_field *fields, int count,
                           struct plim_error *err);

/* Prints timings and the plan to standard error; `first` begins the first line. */
void text_model_tell(const struct text_model *m, const char *first);
