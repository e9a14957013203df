/* beam.h - beam search over rows of logits, as transformers' generate does with early_stopping off.
 *
 *     struct beam_search *s;
 *     beam_open(&(struct beam_options){.beams = 4, .vocab = V, .tokens = 64, .length_penalty = 1, .eos = ids, .eos_count = 1}, &s, &err);
 *     while (beam_step(s, logits)) {             // [beams,V] of each row's last token
 *         // row i goes on from row beam_parents(s)[i] with token beam_tokens(s)[i]
 *     }
 *     const int32_t *best = beam_best(s, &count);
 *     beam_close(s);
 *
 * In each step the likeliest continuations of all rows compete: twice as many as there are beams (more with several end tokens), so that
 * as many rows go on even where some end. A text that ends among the first of them joins the finished ones, of which the
 * best by sum of log p / length^length_penalty are kept; the search ends when as many are finished as there are beams and the best
 * running row, by its length now, is no better than the worst of them. Equal scores go to the earlier row, then the smaller id.
 * Nothing is allocated after beam_open. */
#ifndef PLIM_SERVE_BEAM_H
#define PLIM_SERVE_BEAM_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct beam_options {
    int beams;
    int64_t vocab;  /* numbers of a row of logits */
    int64_t usable; /* ids from here on are never taken; 0: all may be */
    int64_t tokens; /* of a text at most, its end token included */
    double length_penalty;
    const int64_t *eos; /* borrowed */
    int eos_count;
};

struct beam_search;

/* Bytes that such a search takes. */
int64_t beam_bytes(const struct beam_options *options);

enum plim_status beam_open(const struct beam_options *options, struct beam_search **out,
                           struct plim_error *err);
void beam_close(struct beam_search *s);

/* False: it is over, and rows need not go on. */
bool beam_step(struct beam_search *s, const float *logits);
const int *beam_parents(const struct beam_search *s);
const int32_t *beam_tokens(const struct beam_search *s);

/* The best text, with its end token where it has one. */
const int32_t *beam_best(const struct beam_search *s, int64_t *count);

#endif
