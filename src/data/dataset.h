/* dataset.h - what data files are, and how rows are to be made of them. loader.h makes the rows.
 *
 *     struct data_options options = {.paths = paths, .count = n, .time = 256, ...};
 *     struct dataset *data;
 *     dataset_open(&options, &codec, &data, &err);
 *     dataset_close(data);
 *
 * Files are text, lines, records with fields (JSON lines, CSV, ...) or token files (docs/data.md). They come in two ways:
 *
 *   by index    any sample can be had at once: token files, and plain text as bytes. The order of an epoch is
 *               a permutation of all of them, computed, not stored.
 *   as a stream text and JSON through a tokenizer, and whatever is compressed: read from front to back and
 *               shuffled within blocks.
 *
 * A sample is a run of at most T + 1 tokens and makes at most T positions: token i is the input, token i + 1 its
 * target.
 */
#ifndef PLIM_DATA_DATASET_H
#define PLIM_DATA_DATASET_H

#include "base/status.h"
#include "text/codec.h"
#include "data/intake.h"
#include "data/inputs.h"
#include "data/objective.h"
#include <stdbool.h>
#include <stdint.h>

/* Rows of CSV and CoNLL are read as JSON lines (sheet.h): an open dataset has one of the others. */
enum data_format { DATA_AUTO, DATA_TEXT, DATA_LINES, DATA_JSONL, DATA_TOKENS, DATA_CSV, DATA_CONLL };
enum data_rows { ROWS_AUTO, ROWS_STREAM, ROWS_SAMPLES };
/* The last is source_target's: a target that is too long is a bad record; sources are cut. */
enum data_overlong { OVERLONG_TRUNCATE, OVERLONG_SPLIT, OVERLONG_DROP, OVERLONG_REFUSE };

struct data_options {
    const char *const *paths;
    int count;
    int64_t time; /* T */
    enum data_format format;
    enum data_rows rows;
    enum data_overlong overlong;
    bool packing;
    const char *field;                         /* JSON lines: one text; NULL: "text" */
    const char *prompt_field, *response_field; /* or a pair, of which the second is learned */
    const char *messages_field;                /* or a conversation */
    enum objective objective;
    const char *first_field,
        *second_field;         /* token_labels, sentence_pairs, source_target; NULL: the usual names */
    const char *score_field;   /* sentence_pairs: how alike they are; NULL: "score" */
    const char *const *labels; /* token_labels: names */
    int nlabels;
    int64_t source_time;              /* source_target: S; 0: as T */
    int32_t start;                    /* source_target: the decoder's first token */
    const struct chat_template *chat; /* for messages */
    const struct tm *now;             /* what its strftime_now() sees; NULL: the time of each rendering */
    bool add_special, append_eos, skip_bad;
    /* A token file in the making: its parts (MAKING.part*) are not data; NULL: none. */
    const char *making;
};

/* How a file is read, by data.format and by what its content looks like. */
enum data_form data_form_of(enum data_format format, enum data_form found);

struct dataset;

/* The codec and the texts of the options are borrowed until dataset_close. PLIM_BAD_INPUT names the file that is
 * missing, empty, of another kind than the others, made with another tokenizer, or without the columns that are read. */
enum plim_status dataset_open(const struct data_options *options, const struct codec *codec,
                              struct dataset **out, struct plim_error *err);
void dataset_close(struct dataset *data);

int64_t dataset_time(const struct dataset *data);
const struct data_options *dataset_options(const struct dataset *data); /* format and rows decided */
const struct inputs *dataset_inputs(const struct dataset *data);

const struct objective_rules *dataset_rules(const struct dataset *data);

/* One more than the largest token id that may come. */
int64_t dataset_vocab_size(const struct dataset *data);

/* Samples that can be had by index; 0: the dataset is a stream. */
int64_t dataset_samples(const struct dataset *data);

/* Sample i of those: its length, at most T + 1, and how many of its tokens after the first are targets. The system
 * begins to read it. */
enum plim_status dataset_measure(struct dataset *data, int64_t i, int64_t *length, int64_t *targets,
                                 struct plim_error *err);
/* Like dataset_measure, and also reads the tokens, [T + 1]. Targets that do not count are TOKEN_QUIET (record.h). */
enum plim_status dataset_sample(struct dataset *data, int64_t i, int32_t *tokens, int64_t *length,
                                int64_t *targets, struct plim_error *err);

/* How a stream's records are made: everything of the intake's options but threads, longest line and order. */
void dataset_intake_options(const struct dataset *data, struct intake_options *out);

/* A number for what the files and options make of the data: equal numbers, equal samples. Whether bad records are
 * skipped is not in it, so that a run that met one can go on. */
uint64_t dataset_identity(const struct dataset *data);

/* The most memory reading by index takes. */
size_t dataset_bytes_most(const struct dataset *data);

#endif
