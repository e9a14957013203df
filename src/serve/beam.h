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
 * In each step the likeliest continuations of all rows compete. There are twice as many as beams (more with several
 * end tokens), so enough rows remain even if some end. A text that ends among the first joins the finished ones,
 * ranked by sum of log p / length^length_penalty. The search ends when there are as many finished texts as beams and
 * the best running row, at its present length, is no better than the worst of them. Equal scores go to the earlier
 * row, then the smaller id. Nothing is allocated after beam_open. */
#pragma once

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct beam_options {
    int beams;
    int64_t vocab;  /* numbers of a row of logits */
    int64_t usable; /* ids from here on are never chosen; 0: all may be */
    int64_t tokens; /* maximum per text, including its end token */
    double length_penalty;
    const int64_t *eos; /* borrowed */
    int eos_count;
};

struct beam_search;

/* Bytes that a search with these options takes. */
int64_t beam_bytes(const struct beam_options *options);

enum plim_status beam_open(const struct beam_options *options, struct beam_search **out,
                           struct plim_error *err);
void beam_close(struct beam_search *s);

/* Returns false when the search is over. */
bool beam_step(struct beam_search *s, const float *logits);
const int *beam_parents(const struct beam_search *s);
const int32_t *beam_tokens(const struct beam_search *s);

/* The best text, including its end token if it has one. */
const int32_t *beam_best(const struct beam_search *s, int64_t *count);
