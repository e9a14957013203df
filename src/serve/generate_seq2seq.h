/* generate_seq2seq.h - text from an encoder-decoder, inside a budget: the source is read once, then one token after the other.
 *
 *     struct seq2seq *s;
 *     seq2seq_open(dir, device, &(struct generate_room){.prompt = n, .tokens = 64}, 4, &s, &err);     // 4 beams
 *     seq2seq_run(s, &(struct generate_request){.prompt = ids, .count = n, .tokens = 64, ..}, 1.0, &result, &err);
 *     seq2seq_close(s);
 *
 * Room, plan, request and result are those of generate.h, where the prompt is the source. The arena holds parameters, keys and values
 * of the source for each layer of the decoder, a cache of exactly the target's positions, and the transients of one pass; it is planned and
 * committed before the weights are read. With several beams rows of all caches are as many as beams, and the answer is handed out when it
 * is certain, at the end. */
#ifndef PLIM_SERVE_GENERATE_SEQ2SEQ_H
#define PLIM_SERVE_GENERATE_SEQ2SEQ_H

#include "serve/generate.h"

#define SEQ2SEQ_MAX_BEAMS 64

struct seq2seq;

/* Errors are those of generator_open; PLIM_BAD_INPUT too when beams are not from 1 to SEQ2SEQ_MAX_BEAMS. */
enum plim_status seq2seq_open(const char *dir, struct device *device, const struct generate_room *room,
                              int beams, struct seq2seq **out, struct plim_error *err);
void seq2seq_close(struct seq2seq *s);

const struct model_spec *seq2seq_spec(const struct seq2seq *s);
const struct generate_plan *seq2seq_plan(const struct seq2seq *s);

/* With one beam tokens are drawn as request->sampling says; with more of them the search of beam.h takes the likeliest text. */
enum plim_status seq2seq_run(struct seq2seq *s, const struct generate_request *request, double length_penalty,
                             struct generate_result *result, struct plim_error *err);

#endif
