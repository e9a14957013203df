/* plan_steps.h - steps of planning that decoders, encoder-decoders and encoders share.
 *
 *     plan_tape(&spec, &shape, precision, &quantisation, &tape, &err);     // one pass
 *     plan_refuse(&(struct no_fit){.model = dir, .what = "parameters", .takes = n, .has = budget, .budget = true}, &err);
 */
#ifndef PLIM_SERVE_PLAN_STEPS_H
#define PLIM_SERVE_PLAN_STEPS_H

#include "model/model.h"
#include "model/quantise.h"
#include "tape/pass.h"

/* A forward pass of this shape with the model's weights as they are kept; `out` is not initialised. The same input gives the
 * same bits on every run. */
enum plim_status plan_tape(const struct model_spec *spec, const struct model_shape *shape,
                           enum precision precision, const struct quantisation *quantisation,
                           struct tape *out, struct plim_error *err);

struct no_fit {
    const char *model, *what;
    const char *advice; /* beside a larger budget; NULL: none */
    int64_t takes, has; /* bytes */
    bool budget;        /* `has` is the budget, and not the memory of the device */
    bool host;          /* these are bytes of the host beside a device with its own memory */
};

/* PLIM_NO_FIT: what takes the bytes, how many are missing, and what to do. */
enum plim_status plan_refuse(const struct no_fit *n, struct plim_error *err);

#endif
