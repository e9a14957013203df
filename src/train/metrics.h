/* metrics.h - quality of predictions, computed as the reference libraries do: entities, correlations, cosines. Pure.
 *
 *     struct entity_score score = {0};
 *     entity_score_add(&score, names, count, predicted, wanted, n);      // one sentence after the other
 *     struct f1 f = entity_f1(&score);
 *     metric_spearman(a, b, n, &r);
 *
 * Entities are runs of labels, read like seqeval's default: B-X begins one of type X; I-X continues it, or begins one if no
 * X precedes it; O, and any label without a dash, is outside. S-, E- and L-, U- are also accepted; they end an entity. A
 * predicted entity is right if type, begin and end are.
 */
#pragma once

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

/* Labels are indices of names. Positions whose wanted label is negative are skipped. An index outside the
 * list counts as O. */
void entity_score_add(struct entity_score *score, const char *const *names, int count,
                      const int32_t *predicted, const int32_t *wanted, size_t n);
/* 0 if the divisor is 0. */
struct f1 entity_f1(const struct entity_score *score);

/* Cosine of two vectors; 0 if one of them is zero. */
double metric_cosine(const float *a, const float *b, size_t n);

double metric_pearson(const double *a, const double *b, size_t n);
/* Pearson's correlation of ranks; equal values share their mean rank. Returns false when out of memory. NaN
 * if one side is constant. */
bool metric_spearman(const double *a, const double *b, size_t n, double *out);
