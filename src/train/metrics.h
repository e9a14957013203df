/* metrics.h - how good predictions are, as the reference libraries count: entities, correlations, cosines. Pure functions.
 *
 *     struct entity_score score = {0};
 *     entity_score_add(&score, names, count, predicted, wanted, n);      // one sentence after the other
 *     struct f1 f = entity_f1(&score);
 *     metric_spearman(a, b, n, &r);
 *
 * Entities are runs of labels as seqeval reads them by default: B-X begins one of type X; I-X goes on, or begins one where
 * none of X goes before it; O, and any label without a dash, is outside. Labels may also be written S-, E- and L-, U-, which end
 * one. A predicted entity counts when type, begin and end are right.
 */
#ifndef PLIM_TRAIN_METRICS_H
#define PLIM_TRAIN_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct entity_score {
    int64_t right, predicted, wanted; /* entities */
    int64_t labels, labels_right;
};

struct f1 {
    double precision, recall, f1, accuracy; /* accuracy: of labels */
};

/* Labels are numbers of names; those whose wanted one is below 0 are not counted and not seen. A number outside the list is as
 * O. */
void entity_score_add(struct entity_score *score, const char *const *names, int count,
                      const int32_t *predicted, const int32_t *wanted, size_t n);
/* 0 where there is nothing to divide by. */
struct f1 entity_f1(const struct entity_score *score);

/* Cosine of two vectors; 0 where one of them is zero. */
double metric_cosine(const float *a, const float *b, size_t n);

double metric_pearson(const double *a, const double *b, size_t n);
/* Pearson's of ranks, of equals the mean of theirs. False: out of memory. NaN where one
 * side does not vary. */
bool metric_spearman(const double *a, const double *b, size_t n, double *out);

#endif
