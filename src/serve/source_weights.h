/* source_weights.h - weights of an encoder-decoder, quantised on loading if requested.
 *
 *     source_weights_choose(&q, device, WEIGHTS_Q8, dir, &spec, precision, &err);
 *     quantise_tape(&q, &spec, &tape);                         // each pass
 *     source_weights_load(&q, exec, &spec, precision, dir, log, &err);
 *     quantise_release(&q);
 *
 * One pass reads the source and another generates tokens; neither reads every parameter. So both functions use a tape
 * that is in no plan: the whole model over one token of each.
 */
#pragma once

#include "runtime/load.h"

/* WEIGHTS_AS_IS chooses nothing. Errors are those of weights_choose. */
enum plim_status source_weights_choose(struct quantisation *out, const struct device *device,
                                       enum weights_kind kind, const char *dir, const struct model_spec *spec,
                                       enum precision precision, struct plim_error *err);

/* exec is that of the pass which owns all parameters. */
enum plim_status source_weights_load(const struct quantisation *q, struct exec *exec,
                                     const struct model_spec *spec, enum precision precision, const char *dir,
                                     const struct log *log, struct plim_error *err);

/* Host memory that source_weights_load needs temporarily. */
int64_t source_weights_bytes(const struct quantisation *q, const struct model_spec *spec,
                             enum precision precision);
