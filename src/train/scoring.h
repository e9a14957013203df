/* scoring.h - metrics of an evaluation besides its loss: compares predicted labels and vectors with the data.
 *
 *     struct scoring s;
 *     scoring_open(&s, &job, passes_rows, &err);
 *     scoring_attach(&s, &feed);                      // makes each pass's targets and scores available to the host
 *     scoring_take(&s, exec, &feed, rows, &err);      // after each pass
 *     scoring_end_window(&s, &err);                   // after the passes of a window; for pairs, a batch
 *     scoring_result(&s, &loss, &count, &scores, &err);
 *     scoring_close(&s);
 *
 * masked_tokens: programs count correct tokens themselves (op.h, xent); nothing is scored here.
 * token_labels: the loss is the mean cross-entropy of labelled words; entities are counted as in seqeval (metrics.h).
 * sentence_pairs: the loss is that of training, over batches of training.batch_size pairs in the order of the data. Also
 * computed: the mean cosine of pairs, how often a pair's second text is the nearest in its batch and, if the data have
 * scores, Spearman's correlation of cosines with them.
 */
#pragma once

#include "job/job.h"
#include "runtime/feed.h"
#include "train/metrics.h"
#include "train/preferences.h"

enum score_kind { SCORE_LOSS, SCORE_TOKENS, SCORE_ENTITIES, SCORE_PAIRS, SCORE_PREFERENCES };

/* Results of an evaluation in addition to its loss. */
struct scores {
    enum score_kind kind;
    double accuracy; /* SCORE_TOKENS: share of masked tokens predicted correctly */
    struct f1 entities;
    int64_t wanted, predicted;      /* entities */
    double cosine, retrieval;       /* means over pairs */
    double spearman, pearson;       /* over pairs with a score */
    int64_t scored;                 /* number of these pairs; 0: no correlations */
    struct preferences preferences; /* SCORE_PREFERENCES: computed by the programs themselves */
};

struct scoring {
    const struct job *job;
    enum score_kind kind;
    int64_t batch, width; /* pairs per window; numbers per vector */
    int64_t most;         /* maximum positions of a pass */
    int32_t *targets, *scores;
    float *logits;      /* of one row */
    int32_t *predicted; /* of one row */
    float *vectors;     /* [2][batch][width]: first texts, second texts */
    float *window_scores;
    int64_t here; /* pairs in the current window */
    double loss, cosine, nearest;
    int64_t count; /* words or pairs */
    struct entity_score entities;
    double *cosines, *wanted; /* of pairs with a score */
    size_t nscored, cap;
};

/* Resets it for the next evaluation with the same programs. */
void scoring_clear(struct scoring *s);

/* Kind of scores that a job's evaluation computes. */
enum score_kind score_kind_of(const struct job *job);
/* Host memory of scoring for evaluations of this many rows. */
int64_t scoring_bytes(const struct job *job, int64_t rows);

/* `positions`: maximum of a pass. */
enum plim_status scoring_open(struct scoring *s, const struct job *job, int64_t positions,
                              struct plim_error *err);
void scoring_close(struct scoring *s);
void scoring_attach(struct scoring *s, struct feed *feed);
enum plim_status scoring_take(struct scoring *s, struct exec *exec, const struct feed *feed, int64_t rows,
                              struct plim_error *err);
enum plim_status scoring_end_window(struct scoring *s, struct plim_error *err);
enum plim_status scoring_result(const struct scoring *s, double *loss, int64_t *count, struct scores *out,
                                struct plim_error *err);
