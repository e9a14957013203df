/* dataset.h - data files, and the options that turn them into samples. loader.h makes rows of the samples.
 *
 *     struct data_options options = {.paths = paths, .count = n, .time = 256, ...};
 *     struct dataset *data;
 *     dataset_open(&options, &codec, &data, &err);
 *     dataset_close(data);
 *
 * Files are text, lines, records with fields (JSON lines, CSV, ...) or token files (docs/data.md). A dataset is read in
 * one of two ways:
 *
 *   by index    any sample is available at once: token files, and plain text as bytes. The order of an epoch is a
 *               permutation of all samples, computed rather than stored.
 *   as a stream text and JSON that need a tokenizer, and compressed files: read from front to back and shuffled
 *               within blocks.
 *
 * A sample is a run of at most T + 1 tokens and makes at most T positions: token i is the input, token i + 1 its
 * target.
 */
#pragma once

#include "base/status.h"
#include "text/codec.h"
#include "data/intake.h"
#include "data/inputs.h"
#include "data/objective.h"
#include <stdbool.h>
#include <stdint.h>

/* CSV and CoNLL are read as JSON lines (sheet.h), so an open dataset never has these two. */
enum data_format { DATA_AUTO, DATA_TEXT, DATA_LINES, DATA_JSONL, DATA_TOKENS, DATA_CSV, DATA_CONLL };
enum data_rows { ROWS_AUTO, ROWS_STREAM, ROWS_SAMPLES };
/* OVERLONG_REFUSE is for source_target: a target that is too long is a bad record, while sources are
 * truncated. */
enum data_overlong { OVERLONG_TRUNCATE, OVERLONG_SPLIT, OVERLONG_DROP, OVERLONG_REFUSE };

struct data_options {
    const char *const *paths;
    int count;
    int64_t time; /* T */
    enum data_format format;
    enum data_rows rows;
    enum data_overlong overlong;
    bool packing;
    const char *field;                         /* JSON lines: the field with the text; NULL: "text" */
    const char *prompt_field, *response_field; /* or a pair; only the response is learned */
    const char *messages_field;                /* or a conversation */
    const char *tools_field;                   /* conversations: the assistant's tools; NULL: "tools" */
    bool learn_all; /* prompts and what others than the assistant say are learned, too */
    enum objective objective;
    /* token_labels, sentence_pairs, source_target; NULL: the usual names */
    const char *first_field, *second_field;
    const char *score_field; /* sentence_pairs: similarity; NULL: "score" */
    /* dpo, orpo, kto; NULL: "chosen", "rejected", "label". Prompts are in prompt_field or "prompt", kto's completions in
     * response_field or "completion". */
    const char *chosen_field, *rejected_field, *label_field;
    const char *const *labels; /* token_labels: names */
    int nlabels;
    int64_t source_time;              /* source_target: S; 0: T */
    int64_t pair_time;                /* dpo, orpo: longer samples are left out (objective.h); 0: none */
    int32_t start;                    /* source_target: the decoder's first token */
    const struct chat_template *chat; /* for messages; prompts and responses may be conversations, too */
    const struct tm *now;             /* the template's strftime_now(); NULL: the time of each rendering */
    bool add_special, append_eos, skip_bad;
    /* A token file being written; its parts (MAKING.part*) are not data. NULL: none. */
    const char *making;
};

/* The form in which a file is read, given data.format and the form its content suggests. */
enum data_form data_form_of(enum data_format format, enum data_form found);

struct dataset;

/* The codec and the options' texts are borrowed until dataset_close. PLIM_BAD_INPUT names a file that is
 * missing, empty, of another kind than the others, made with another tokenizer, or without the columns to
 * read. */
enum plim_status dataset_open(const struct data_options *options, const struct codec *codec,
                              struct dataset **out, struct plim_error *err);
void dataset_close(struct dataset *data);

int64_t dataset_time(const struct dataset *data);
const struct data_options *dataset_options(const struct dataset *data); /* with format and rows decided */
const struct inputs *dataset_inputs(const struct dataset *data);

const struct objective_rules *dataset_rules(const struct dataset *data);

/* Log-probabilities of the reference model, for rows made from now on; borrowed. NULL: unknown. */
void dataset_set_reference(struct dataset *data, const struct reference *reference);

/* One more than the largest token id. */
int64_t dataset_vocab_size(const struct dataset *data);

/* Number of samples by index; 0: the dataset is a stream. */
int64_t dataset_samples(const struct dataset *data);

/* Reports the length of sample i, at most T + 1, and how many of its tokens after the first are targets. Asks
 * the system to read it ahead. */
enum plim_status dataset_measure(struct dataset *data, int64_t i, int64_t *length, int64_t *targets,
                                 struct plim_error *err);
/* Like dataset_measure, and also reads the tokens, [T + 1]. Tokens that are not targets have TOKEN_QUIET set
 * (record.h). */
enum plim_status dataset_sample(struct dataset *data, int64_t i, int32_t *tokens, int64_t *length,
                                int64_t *targets, struct plim_error *err);

/* Options for an intake of this stream, except threads, longest line and order. */
void dataset_intake_options(const struct dataset *data, struct intake_options *out);

/* A hash of the files and options: equal numbers mean equal samples. skip_bad is not part of it, so a run
 * that met a bad record can continue with it. */
uint64_t dataset_identity(const struct dataset *data);

/* Maximum memory for reading by index. */
size_t dataset_bytes_most(const struct dataset *data);
