/* corpus.h - a job's data: tokenizer, chat template, files for training and evaluation, and what they cost.
 *
 *     struct corpus corpus;
 *     corpus_open(&job, CORPUS_TRAIN | CORPUS_VALIDATION, &corpus, &err);
 *     corpus_loader(&corpus, corpus.train, &loader, &err);
 *     corpus_evaluator(&corpus, corpus.validation, &loader, &err);     // once, in order
 *     corpus_close(&corpus);
 *
 * Errors name the configuration file and the key.
 */
#ifndef PLIM_TRAIN_CORPUS_H
#define PLIM_TRAIN_CORPUS_H

#include "data/loader.h"
#include "job/job.h"
#include "report/report.h"
#include <stdatomic.h>

enum corpus_part { CORPUS_TRAIN = 1, CORPUS_VALIDATION = 2 };

struct corpus {
    const struct job *job;
    struct codec codec;
    struct chat_template *chat;
    int64_t seconds; /* since 1970: the time that chat templates see, one for all rows */
    struct tm now;   /* the same, local; datasets borrow it, so a corpus stays where it was opened */
    struct dataset *train, *validation; /* NULL: not asked for, or not in the job */
    size_t longest, longest_eval;       /* bytes of their longest lines (data/longest_line.h); 0: not known */
    int64_t bytes;                      /* host memory that codec and loaders will take, at most */
    struct loader_sizes sizes;          /* the same for smaller loaders of the same rows */
    const atomic_int *stop;             /* for its loaders; set it before they are opened; NULL: never */
};

/* Opens files and loads the tokenizer; no data are read. Refuses a tokenizer or token files whose vocabulary is
 * larger than the model's. */
enum plim_status corpus_open(const struct job *job, unsigned parts, struct corpus *out,
                             struct plim_error *err);
void corpus_close(struct corpus *corpus);

/* Another time than that of corpus_open, before a loader is opened: a resumed run sees that of its beginning. */
void corpus_set_now(struct corpus *corpus, int64_t seconds);

/* Rows of rank 0 of 1, shuffled, for ever; or in order, once. */
enum plim_status corpus_loader(const struct corpus *corpus, struct dataset *data, struct loader **out,
                               struct plim_error *err);
enum plim_status corpus_evaluator(const struct corpus *corpus, struct dataset *data, struct loader **out,
                                  struct plim_error *err);

/* What an evaluation of `data` has, at most `wanted` rows; 0 wanted: all that is known, else a great many. */
int64_t corpus_rows(struct dataset *data, int64_t wanted);

/* The bytes of corpus_open without keeping anything: for a plan. They go into the job, as those of an open corpus do with
 * corpus_count; and so does an estimate of an epoch. The first records are read, so that what a run would refuse at once is
 * refused here, too. Without `here` a run elsewhere is meant: files that are missing cost nothing, and *missing is true. */
enum plim_status corpus_measure(struct job *job, bool here, bool *missing, struct plim_error *err);
void corpus_count(const struct corpus *corpus, struct job *job);

/* Put before a report's remedies what the loader alone could give up (corpus_remedies.c). */
void corpus_remedies(struct plan_report *report);

#endif
