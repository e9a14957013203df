/* corpus.h - a job's data: tokenizer, chat template, files for training and evaluation, and their memory.
 *
 *     struct corpus corpus;
 *     corpus_open(&job, CORPUS_TRAIN | CORPUS_VALIDATION, &corpus, &err);
 *     corpus_loader(&corpus, corpus.train, &loader, &err);
 *     corpus_evaluator(&corpus, corpus.validation, &loader, &err);     // once, in order
 *     corpus_close(&corpus);
 *
 * Errors name the configuration file and the key.
 */
#pragma once

#include "data/loader.h"
#include "job/job.h"
#include "report/report.h"
#include <stdatomic.h>

/* CORPUS_ASKED: only to compute sizes; no budget applies yet. */
enum corpus_part { CORPUS_TRAIN = 1, CORPUS_VALIDATION = 2, CORPUS_ASKED = 4 };

struct corpus {
    const struct job *job;
    struct codec codec;
    struct chat_template *chat;
    int64_t seconds; /* since 1970: the time for chat templates, the same for all rows */
    struct tm now;   /* the same in local time; datasets borrow it, so a corpus must not be moved */
    struct dataset *train, *validation; /* NULL: not requested, or not in the job */
    size_t longest, longest_eval;       /* bytes of their longest lines (data/longest_line.h); 0: unknown */
    struct loader_sizes sizes; /* possible sizes of its loaders; they are opened with the chosen one */
    const atomic_int *stop;    /* for its loaders; set it before opening them; NULL: never */
};

/* Opens files and loads the tokenizer; no data are read. Refuses a tokenizer or token files whose vocabulary is
 * larger than the model's. */
enum plim_status corpus_open(const struct job *job, unsigned parts, struct corpus *out,
                             struct plim_error *err);
void corpus_close(struct corpus *corpus);

/* Sets another time, before a loader is opened: a resumed run uses the time of its start. */
void corpus_set_now(struct corpus *corpus, int64_t seconds);

/* corpus_loader: rows of rank 0 of 1, shuffled, endless. corpus_evaluator: in order, once. */
enum plim_status corpus_loader(const struct corpus *corpus, struct dataset *data, struct loader **out,
                               struct plim_error *err);
enum plim_status corpus_evaluator(const struct corpus *corpus, struct dataset *data, struct loader **out,
                                  struct plim_error *err);

/* corpus_loader's rows in order, once; no larger than that. */
enum plim_status corpus_reader(const struct corpus *corpus, struct dataset *data, struct loader **out,
                               struct plim_error *err);

/* Rows in an evaluation of `data`, at most `wanted`. With wanted 0: all rows if their number is known, else a very
 * large number. */
int64_t corpus_rows(struct dataset *data, int64_t wanted);

/* Maximum host memory of codec and loaders of this size; and the pieces of text that hold this many batches
 * of full rows. */
int64_t corpus_bytes(const struct corpus *corpus, const struct loader_size *size);
int64_t corpus_pieces(const struct job *job, int64_t batches);

/* corpus_open for a plan. Without `here` the run is on another machine: missing files are not opened, and
 * *missing is set. */
enum plim_status corpus_ask(const struct job *job, bool here, bool *missing, struct corpus *out,
                            struct plim_error *err);
/* corpus_ask that keeps nothing open: returns the loader's sizes and, for an estimated epoch, the run's length. Reads
 * the first records, so that it refuses what a run would refuse at once. */
enum plim_status corpus_measure(const struct job *job, bool here, struct loader_sizes *loader,
                                struct job_length *length, bool *missing, struct plim_error *err);

/* Adds remedies that shrink only the loader before the report's others (corpus_remedies.c). */
void corpus_remedies(struct plan_report *report);
